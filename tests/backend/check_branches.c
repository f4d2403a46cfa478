/* Gradients of ops with state, of spans that continue others and that others continue: the same bits as the CPU for
 * every kernel, with any of the states that a call may leave out; what is wrong in device memory is refused before a
 * byte is written. */
#include "attention_case.h"

/* What a call has of the states before and behind its spans. */
enum { INITIAL = 1, DINITIAL = 2, DFINAL = 4, STATES = 8 };

#define SPANS_MAX 48

typedef struct layout {
    ls_span spans[SPANS_MAX];
    int64_t n, rows, most;
} layout;

/* n spans of these lengths in turn, with rows of nobody between them; the fourth is padding. */
static layout layout_make(const int64_t *length, int64_t n_lengths, int64_t n, int states) {
    layout l;
    memset(&l, 0, sizeof l);
    for (int64_t i = 0; i < n; i++) {
        const int64_t rows = length[i % n_lengths];
        l.spans[l.n++] = (ls_span){l.rows, rows, states & INITIAL ? 3 * i : 0, i == 3 ? -1 : (int32_t)i, 0};
        l.rows += rows + i % 2;
        l.most = rows > l.most ? rows : l.most;
    }
    return l;
}

/* A call's buffers: those that are written are compared afterwards. */
typedef struct rig {
    sides d;
    layout l;
    sides_buffer spans, initial, scale, dinitial, dfinal;
    sides_buffer out[SIDES_BUFFERS_MAX];
    int64_t out_bytes[SIDES_BUFFERS_MAX], n_out; /* of an element */
    uint64_t seed;
} rig;

static sides_buffer input(rig *r, const char *name, int64_t n, ls_dtype dtype, float low, float high) {
    uint8_t *host = bk_alloc(n * 4);
    sides_buffer b;
    for (int64_t i = 0; i < n; i++) put(host, dtype, i, test_uniform(&r->seed, low, high));
    b = sides_in(&r->d, name, host, n * ls_dtype_bytes(dtype));
    free(host);
    return b;
}

static sides_buffer output(rig *r, const char *name, int64_t n, ls_dtype dtype) {
    r->out_bytes[r->n_out] = ls_dtype_bytes(dtype);
    return r->out[r->n_out++] = sides_out(&r->d, name, n * ls_dtype_bytes(dtype));
}

/* Sums over spans: zeros, which a call may go on from. */
static sides_buffer sums(rig *r, const char *name, int64_t n) {
    float *zeros = bk_alloc(n * 4);
    memset(zeros, 0, (size_t)n * 4);
    r->out_bytes[r->n_out] = 4;
    r->out[r->n_out] = sides_in(&r->d, name, zeros, n * 4);
    free(zeros);
    return r->out[r->n_out++];
}

/* each: elements of a state; scales: of a span, 0 where the op has none. What is left out is NULL on both sides. */
static rig rig_open(bk_run *run, const layout *l, int states, int64_t each, ls_dtype dtype, int64_t scales,
                    uint64_t seed) {
    rig r;
    memset(&r, 0, sizeof r);
    r.d = sides_open(run);
    r.l = *l;
    r.seed = seed;
    r.spans = sides_in(&r.d, "spans", l->spans, l->n * (int64_t)sizeof(ls_span));
    if (states & INITIAL) r.initial = input(&r, "initial", l->n * each, dtype, -1.0f, 1.0f);
    if (states & INITIAL && scales > 0) r.scale = input(&r, "initial scale", l->n * scales, LS_F32, 0x1p-39f, 1.0f);
    if (states & DINITIAL) r.dinitial = output(&r, "dinitial", l->n * each, LS_F32);
    if (states & DFINAL) r.dfinal = input(&r, "dfinal", l->n * each, LS_F32, -1.0f, 1.0f);
    return r;
}

static void rig_check(rig *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void rig_check(rig *r, const char *format, ...) {
    char what[160];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    for (int64_t i = 0; i < r->n_out; i++)
        sides_compare(&r->d, &r->out[i], r->out_bytes[i], r->out_bytes[i] == 4, what);
}

static void rig_untouched(rig *r, const char *what) {
    for (int64_t b = 0; b < r->n_out; b++)
        for (int s = 0; s < 2; s++) {
            uint8_t *now = sides_take(&r->d, &r->out[b], s);
            int64_t written = 0;
            for (int64_t i = 0; i < r->out[b].bytes; i++)
                written += now[BK_GUARD + i] != BK_PATTERN && now[BK_GUARD + i] != 0;
            if (written > 0) bk_fail(r->d.run, "%s: side %d wrote %s", what, s, r->out[b].name);
            free(now);
        }
}

#define SPANS(r)                                                                                     \
    .spans = (r)->spans.at[s], .n_spans = (r)->l.n, .span_rows_max = (r)->l.most, .continued = true, \
    .initial = (r)->initial.at[s], .dinitial = (r)->dinitial.at[s], .dfinal = (r)->dfinal.at[s], .rows = (r)->l.rows

static const int64_t lengths[] = {9, 1, 70, 2, 133, 64, 3, 0, 65, 128};

/* Of a CPU, fewer and smaller. */
static layout spans_of(bk_run *run, int64_t turn, int states) {
    const int64_t n = bk_size(run, 3, 4, BK_COUNT(lengths));
    return layout_make(lengths + turn % 2, BK_COUNT(lengths) - 1, n, states);
}

/* ---- conv1d ---- */

typedef struct conv_shape {
    int64_t dim, taps;
    ls_dtype x, state, dx;
} conv_shape;

static void conv1d(bk_run *run) {
    static const conv_shape list[] = {{65, 4, LS_F32, LS_F32, LS_F32},   {130, 4, LS_BF16, LS_BF16, LS_BF16},
                                      {64, 4, LS_F32, LS_BF16, LS_BF16}, {33, 2, LS_BF16, LS_F32, LS_F32},
                                      {7, 16, LS_F32, LS_BF16, LS_F32},  {9, 3, LS_BF16, LS_BF16, LS_BF16},
                                      {5, 1, LS_F32, LS_F32, LS_F32}};
    for (int64_t i = 0; i < BK_COUNT(list) * STATES; i++) {
        const conv_shape *c = &list[i / STATES];
        const int states = (int)(i % STATES);
        const layout l = spans_of(run, i, states);
        rig r = rig_open(run, &l, states, (c->taps - 1) * c->dim, c->state, 0, (uint64_t)i + 1);
        const sides_buffer x = input(&r, "x", l.rows * c->dim, c->x, -2.0f, 2.0f);
        const sides_buffer w = input(&r, "w", c->taps * c->dim, LS_F32, -1.0f, 1.0f);
        const sides_buffer bias = input(&r, "bias", c->dim, LS_F32, -1.0f, 1.0f);
        const sides_buffer dy = input(&r, "dy", l.rows * c->dim, LS_F32, -1.0f, 1.0f);
        const sides_buffer dx = output(&r, "dx", l.rows * c->dim, c->dx);
        const sides_buffer dw = sums(&r, "dw", c->taps * c->dim), dbias = sums(&r, "dbias", c->dim);
        SIDES_CALL(&r.d, conv1d_backward, SPANS(&r), .x = x.at[s], .x_dtype = c->x, .state_dtype = c->state,
                   .x_stride = c->dim, .w = w.at[s], .bias = bias.at[s], .dy = dy.at[s], .dy_stride = c->dim,
                   .dx = dx.at[s], .dx_dtype = c->dx, .dx_stride = c->dim, .dw = dw.at[s], .dbias = dbias.at[s],
                   .dim = c->dim, .d_conv = c->taps, .dw_by_channel = i % 3 == 0);
        rig_check(&r, "conv1d of %lld channels, %lld taps, states %d", (long long)c->dim, (long long)c->taps, states);
        sides_close(&r.d);
    }
}

/* ---- scan ---- */

typedef struct scan_shape {
    int64_t dim, states;
    ls_dtype in, out;
    int64_t spans; /* 0: those of lengths */
} scan_shape;

/* Sixteen states in runs, and with more spans in blocks; groups of every size. */
static void scan(bk_run *run) {
    static const scan_shape list[] = {{64, 16, LS_F32, LS_F32, 0},    {70, 16, LS_BF16, LS_BF16, 0},
                                      {320, 16, LS_BF16, LS_F32, 40}, {300, 16, LS_F32, LS_BF16, 40},
                                      {33, 5, LS_F32, LS_F32, 0},     {40, 17, LS_BF16, LS_BF16, 0},
                                      {9, 64, LS_F32, LS_F32, 0},     {8, 200, LS_BF16, LS_F32, 0}};
    static const int64_t many[] = {9, 1, 17, 2, 33};
    for (int64_t i = 0; i < BK_COUNT(list) * STATES; i++) {
        const scan_shape *c = &list[i / STATES];
        const int states = (int)(i % STATES);
        const layout l = c->spans > 0 ? layout_make(many, BK_COUNT(many), c->spans, states) : spans_of(run, i, states);
        if (!run->cuda && c->spans > 0 && states != STATES - 1) continue;
        rig r = rig_open(run, &l, states, c->dim * c->states, LS_F32, 0, (uint64_t)i + 100);
        const sides_buffer u = input(&r, "u", l.rows * c->dim, c->in, -1.0f, 1.0f);
        const sides_buffer dt = input(&r, "dt_raw", l.rows * c->dim, c->in, -4.0f, 2.0f);
        const sides_buffer b = input(&r, "b", l.rows * c->states, c->in, -1.0f, 1.0f);
        const sides_buffer cc = input(&r, "cc", l.rows * c->states, c->in, -1.0f, 1.0f);
        const sides_buffer z = input(&r, "z", l.rows * c->dim, c->in, -2.0f, 2.0f);
        const sides_buffer a2 = input(&r, "a2", c->dim * c->states, LS_F32, i % 2 ? -60.0f : -2.0f, -0.05f);
        const sides_buffer bias = input(&r, "dt_bias", c->dim, LS_F32, -3.0f, 1.0f);
        const sides_buffer d = input(&r, "d", c->dim, LS_F32, -1.0f, 1.0f);
        const sides_buffer dout = input(&r, "dout", l.rows * c->dim, LS_F32, -1.0f, 1.0f);
        const sides_buffer du = output(&r, "du", l.rows * c->dim, LS_F32);
        const sides_buffer ddt = output(&r, "ddt", l.rows * c->dim, c->out);
        const sides_buffer dz = output(&r, "dz", l.rows * c->dim, c->out);
        const sides_buffer db = output(&r, "db", l.rows * c->states, LS_F32);
        const sides_buffer dcc = output(&r, "dcc", l.rows * c->states, LS_F32);
        const sides_buffer da2 = sums(&r, "da2", c->dim * c->states), dbias = sums(&r, "ddt_bias", c->dim);
        const sides_buffer dd = sums(&r, "dd", c->dim);
        SIDES_CALL(&r.d, scan_backward, SPANS(&r), .in_dtype = c->in, .u = u.at[s], .dt_raw = dt.at[s], .b = b.at[s],
                   .cc = cc.at[s], .z = z.at[s], .u_stride = c->dim, .dt_stride = c->dim, .b_stride = c->states,
                   .c_stride = c->states, .z_stride = c->dim, .a2 = a2.at[s], .dt_bias = bias.at[s], .d = d.at[s],
                   .dout = dout.at[s], .dout_stride = c->dim, .du = du.at[s], .ddt = ddt.at[s], .db = db.at[s],
                   .dcc = dcc.at[s], .dz = dz.at[s], .da2 = da2.at[s], .ddt_bias = dbias.at[s], .dd = dd.at[s],
                   .dim = c->dim, .n_states = c->states, .out_dtype = c->out);
        rig_check(&r, "scan of %lld x %lld, %lld spans, states %d", (long long)c->dim, (long long)c->states,
                  (long long)l.n, states);
        sides_close(&r.d);
    }
}

/* ---- ssd ---- */

typedef struct ssd_shape {
    int64_t heads, dim, groups, states;
    ls_dtype in;
    bool slow;
} ssd_shape;

/* Heads that models have, and others. */
static void ssd(bk_run *run) {
    static const ssd_shape list[] = {{4, 64, 1, 128, LS_BF16, true},  {8, 64, 2, 128, LS_F32, false},
                                     {4, 80, 1, 128, LS_F32, true},   {4, 80, 1, 128, LS_BF16, false},
                                     {5, 9, 1, 17, LS_F32, true},     {6, 16, 2, 31, LS_BF16, false},
                                     {2, 128, 1, 128, LS_BF16, true}, {1, 1, 1, 1, LS_F32, true}};
    for (int64_t i = 0; i < BK_COUNT(list) * STATES; i++) {
        const ssd_shape *c = &list[i / STATES];
        const int states = (int)(i % STATES);
        const int64_t dim = c->heads * c->dim, n = c->groups * c->states;
        const layout l = spans_of(run, i, states);
        if (!run->cuda && c->states == 128 && i != STATES - 1) continue;
        rig r = rig_open(run, &l, states, dim * c->states, LS_F32, c->heads, (uint64_t)i + 300);
        const sides_buffer x = input(&r, "x", l.rows * dim, c->in, -1.0f, 1.0f);
        const sides_buffer dt =
            input(&r, "dt_raw", l.rows * c->heads, c->in, c->slow ? -4.0f : -6.0f, c->slow ? 0.0f : 4.0f);
        const sides_buffer b = input(&r, "b", l.rows * n, c->in, -1.0f, 1.0f);
        const sides_buffer cc = input(&r, "cc", l.rows * n, c->in, -1.0f, 1.0f);
        const sides_buffer a = input(&r, "a", c->heads, LS_F32, c->slow ? -1.0f : -16.0f, -0.05f);
        const sides_buffer bias = input(&r, "dt_bias", c->heads, LS_F32, -3.0f, 1.0f);
        const sides_buffer d = input(&r, "d", c->heads, LS_F32, -1.0f, 1.0f);
        const sides_buffer dout = input(&r, "dout", l.rows * dim, LS_F32, -1.0f, 1.0f);
        const sides_buffer dx = output(&r, "dx", l.rows * dim, LS_F32),
                           ddt = output(&r, "ddt", l.rows * c->heads, c->in);
        const sides_buffer db = output(&r, "db", l.rows * n, LS_F32), dcc = output(&r, "dcc", l.rows * n, LS_F32);
        const sides_buffer da = sums(&r, "da", c->heads), dbias = sums(&r, "ddt_bias", c->heads);
        const sides_buffer dd = sums(&r, "dd", c->heads);
        SIDES_CALL(&r.d, ssd_backward, SPANS(&r), .initial_scale = i % 5 == 0 ? NULL : r.scale.at[s], .in_dtype = c->in,
                   .x = x.at[s], .dt_raw = dt.at[s], .b = b.at[s], .cc = cc.at[s], .x_stride = dim,
                   .dt_stride = c->heads, .b_stride = n, .c_stride = n, .a = a.at[s], .dt_bias = bias.at[s],
                   .d = d.at[s], .dt_max = INFINITY, .dout = dout.at[s], .dout_stride = dim, .dx = dx.at[s],
                   .db = db.at[s], .dcc = dcc.at[s], .ddt = ddt.at[s], .ddt_dtype = c->in, .dx_stride = dim,
                   .db_stride = n, .dc_stride = n, .ddt_stride = c->heads, .da = da.at[s], .ddt_bias = dbias.at[s],
                   .dd = dd.at[s], .n_heads = c->heads, .head_dim = c->dim, .n_groups = c->groups,
                   .n_states = c->states);
        rig_check(&r, "ssd of %lld x %lld, %lld states, states %d", (long long)c->heads, (long long)c->dim,
                  (long long)c->states, states);
        sides_close(&r.d);
    }
}

/* ---- delta ---- */

typedef struct delta_shape {
    int64_t heads, key_heads, keys, dim;
    ls_dtype in;
    bool slow;
} delta_shape;

/* Heads that models have, few and many, and others. */
static void delta(bk_run *run) {
    static const delta_shape list[] = {{2, 1, 128, 128, LS_BF16, true},   {4, 2, 128, 128, LS_F32, false},
                                       {32, 16, 128, 128, LS_BF16, true}, {3, 1, 17, 9, LS_F32, true},
                                       {4, 2, 31, 16, LS_BF16, false},    {1, 1, 128, 64, LS_F32, true},
                                       {1, 1, 64, 256, LS_BF16, true},    {2, 2, 1, 1, LS_F32, true}};
    for (int64_t i = 0; i < BK_COUNT(list) * STATES; i++) {
        const delta_shape *c = &list[i / STATES];
        const int states = (int)(i % STATES);
        const int64_t keys = c->key_heads * c->keys, dim = c->heads * c->dim, heads = c->heads;
        const layout l = spans_of(run, i, states);
        if (!run->cuda && c->keys * c->dim > 4096 && i != STATES - 1) continue;
        rig r = rig_open(run, &l, states, keys / c->key_heads * dim, LS_F32, heads, (uint64_t)i + 500);
        const sides_buffer q = input(&r, "q", l.rows * keys, c->in, -1.0f, 1.0f);
        const sides_buffer k = input(&r, "k", l.rows * keys, c->in, -1.0f, 1.0f);
        const sides_buffer v = input(&r, "v", l.rows * dim, c->in, -1.0f, 1.0f);
        const sides_buffer a = input(&r, "a", l.rows * heads, c->in, c->slow ? -4.0f : -6.0f, c->slow ? 0.0f : 4.0f);
        const sides_buffer b = input(&r, "b", l.rows * heads, c->in, -3.0f, 3.0f);
        const sides_buffer rate = input(&r, "rate", heads, LS_F32, c->slow ? -1.0f : -16.0f, -0.05f);
        const sides_buffer bias = input(&r, "dt_bias", heads, LS_F32, -3.0f, 1.0f);
        const sides_buffer dout = input(&r, "dout", l.rows * dim, LS_F32, -1.0f, 1.0f);
        const sides_buffer dq = output(&r, "dq", l.rows * keys, LS_F32), dk = output(&r, "dk", l.rows * keys, LS_F32);
        const sides_buffer dv = output(&r, "dv", l.rows * dim, LS_F32);
        const sides_buffer da = output(&r, "da", l.rows * heads, c->in), db = output(&r, "db", l.rows * heads, c->in);
        const sides_buffer drate = sums(&r, "drate", heads), dbias = sums(&r, "ddt_bias", heads);
        SIDES_CALL(&r.d, delta_backward, SPANS(&r), .initial_scale = i % 5 == 0 ? NULL : r.scale.at[s],
                   .in_dtype = c->in, .q = q.at[s], .k = k.at[s], .v = v.at[s], .a = a.at[s], .b = b.at[s],
                   .q_stride = keys, .k_stride = keys, .v_stride = dim, .a_stride = heads, .b_stride = heads,
                   .rate = rate.at[s], .dt_bias = bias.at[s], .dout = dout.at[s], .dout_stride = dim, .dq = dq.at[s],
                   .dk = dk.at[s], .dv = dv.at[s], .da = da.at[s], .db = db.at[s], .dab_dtype = c->in,
                   .dq_stride = keys, .dk_stride = keys, .dv_stride = dim, .da_stride = heads, .db_stride = heads,
                   .drate = drate.at[s], .ddt_bias = dbias.at[s], .n_heads = heads, .n_key_heads = c->key_heads,
                   .key_dim = c->keys, .value_dim = c->dim);
        rig_check(&r, "delta of %lld over %lld heads, %lld x %lld, states %d", (long long)heads,
                  (long long)c->key_heads, (long long)c->keys, (long long)c->dim, states);
        sides_close(&r.d);
    }
}

/* ---- refusals ---- */

/* A span behind others needs the state that it began from, and no span has a position below 0. */
static void refusals(bk_run *run) {
    enum { DIM = 8, TAPS = 4 };
    static const int64_t two[] = {5, 6};
    const char *const one[] = {"span 1", "position 3"}, *const below[] = {"span 1", "position -1"};
    for (int i = 0; i < 2; i++) {
        const int states = i == 0 ? DFINAL | DINITIAL : INITIAL | DFINAL | DINITIAL;
        layout l = layout_make(two, 2, 2, states);
        l.spans[1].pos = i == 0 ? 3 : -1;
        rig r = rig_open(run, &l, states, (TAPS - 1) * DIM, LS_F32, 0, 7);
        const sides_buffer x = input(&r, "x", l.rows * DIM, LS_F32, -1.0f, 1.0f);
        const sides_buffer w = input(&r, "w", TAPS * DIM, LS_F32, -1.0f, 1.0f);
        const sides_buffer dx = output(&r, "dx", l.rows * DIM, LS_F32), dw = sums(&r, "dw", TAPS * DIM);
        const char *const *words = i == 0 ? one : below;
        const char *const taken[] = {words[0], words[1]};
        SIDES_REFUSED(&r.d, words[1], taken, conv1d_backward, SPANS(&r), .x = x.at[s], .x_dtype = LS_F32,
                      .state_dtype = LS_F32, .x_stride = DIM, .w = w.at[s], .dy = x.at[s], .dy_stride = DIM,
                      .dx = dx.at[s], .dx_dtype = LS_F32, .dx_stride = DIM, .dw = dw.at[s], .dim = DIM, .d_conv = TAPS);
        rig_untouched(&r, words[1]);
        sides_close(&r.d);
    }
}

int main(int argc, char **argv) {
    static const bk_case cases[] = {
        {"conv1d", conv1d, BK_ANYWHERE}, {"scan", scan, BK_ANYWHERE},         {"ssd", ssd, BK_ANYWHERE},
        {"delta", delta, BK_ANYWHERE},   {"refusals", refusals, BK_ANYWHERE},
    };
    return bk_main(argc, argv, cases, BK_COUNT(cases));
}
