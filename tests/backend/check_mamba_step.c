/* A step of Mamba as one call on every back end: out and both pools as the six ops leave them one after the other, for
 * every batch, slots and rows in any order, padding between them, both types of states, with biases and without. */
#include "elements.h"
#include "op/mamba_step.h"

typedef struct shape {
    int64_t hidden, dim, rank, states;
    ls_dtype state;
    bool bias;
    value_kind decay;
} shape;

/* What a step reads, and what its two sets of results are: of the one call, and of the ops in turn. */
typedef struct step {
    shape of;
    int64_t rows, slots, n_spans;
    ls_gemm_weight in_proj[2], x_proj[2], dt_proj[2];
    sides_buffer x, conv_w, conv_bias, dt_norm, b_norm, c_norm, a2, dt_bias, d, spans;
    sides_buffer uz, u, rounded, raw, dt_in, bc, dt;
    struct {
        sides_buffer conv, ssm, out;
    } set[2];
} step;

enum { TAPS = 4, GAP = 16 };

static int64_t narrow(const shape *of) { return of->rank + 2 * of->states; }
static int64_t conv_stride(const shape *of) { return (TAPS - 1) * of->dim * ls_dtype_bytes(of->state) + GAP; }
static int64_t ssm_stride(const shape *of) { return of->dim * of->states * 4 + GAP; }

static void pack(sides *d, ls_gemm_weight out[2], const char *name, int64_t n, int64_t k, uint64_t seed) {
    const sides_buffer w = values_put(d, name, LS_BF16, n * k, VALUES_PLAIN, seed, 0);
    for (int s = 0; s < 2; s++)
        if (ls_gemm_pack(d->device[s], &out[s], w.at[s], LS_BF16, n, k, &d->run->err) != LS_OK) bk_die(d->run, name);
}

/* A span of one row for each sequence, rows and slots falling by steps that meet all of them; in between padding, a
 * span without a row and, at the end, a row of no span. */
static void spans_put(sides *d, step *c, int64_t n, int64_t pos) {
    ls_span *spans = bk_alloc((n + 2) * (int64_t)sizeof *spans);
    int64_t at = 0;
    for (int64_t i = 0; i < n; i++) {
        const int64_t j = (i * 7919 + 3) % n;
        spans[at++] = (ls_span){n - 1 - j, 1, pos == 0 ? i % 3 * 7 : pos, (int32_t)((j * 6151 + 1) % n), 0};
        if (i == n / 2) spans[at++] = (ls_span){n, 1, 0, -1, 0};
        if (i == n / 3) spans[at++] = (ls_span){n + 2, 0, 1, (int32_t)n, 0};
    }
    c->n_spans = at;
    c->spans = sides_in(d, "spans", spans, at * (int64_t)sizeof *spans);
    free(spans);
}

static step step_make(sides *d, const shape *of, int64_t n) {
    step c;
    const int64_t rows = n + 2, dim = of->dim, f32 = 4;
    memset(&c, 0, sizeof c);
    c.of = *of;
    c.rows = rows;
    c.slots = n + 1;
    pack(d, c.in_proj, "in_proj", 2 * dim, of->hidden, 11);
    pack(d, c.x_proj, "x_proj", narrow(of), dim, 12);
    pack(d, c.dt_proj, "dt_proj", dim, of->rank, 13);
    c.x = values_put(d, "x", LS_BF16, rows * of->hidden, VALUES_PLAIN, 1, 0);
    c.conv_w = values_put(d, "conv_w", LS_F32, TAPS * dim, VALUES_PLAIN, 2, 0);
    c.conv_bias = values_put(d, "conv_bias", LS_F32, dim, VALUES_PLAIN, 3, 0);
    c.dt_norm = values_put(d, "dt_norm", LS_F32, of->rank, VALUES_PLAIN, 4, 0);
    c.b_norm = values_put(d, "b_norm", LS_F32, of->states, VALUES_PLAIN, 5, 0);
    c.c_norm = values_put(d, "c_norm", LS_F32, of->states, VALUES_PLAIN, 6, 0);
    c.a2 = values_put(d, "a2", LS_F32, dim * of->states, of->decay, 7, 0);
    c.dt_bias = values_put(d, "dt_bias", LS_F32, dim, VALUES_PLAIN, 8, 0);
    c.d = values_put(d, "d", LS_F32, dim, VALUES_PLAIN, 9, 0);
    c.uz = sides_out(d, "uz", rows * 2 * dim * f32);
    c.u = sides_out(d, "u", rows * dim * f32);
    c.rounded = sides_out(d, "rounded", rows * dim * 2);
    c.raw = sides_out(d, "raw", rows * narrow(of) * f32);
    c.dt_in = sides_out(d, "dt_in", rows * of->rank * 2);
    c.bc = sides_out(d, "bc", rows * 2 * of->states * f32);
    c.dt = sides_out(d, "dt", rows * dim * f32);
    for (int i = 0; i < 2; i++) {
        c.set[i].conv = values_put(d, "conv", of->state, c.slots * conv_stride(of) / ls_dtype_bytes(of->state),
                                   VALUES_PLAIN, 20, 0);
        c.set[i].ssm = values_put(d, "ssm", LS_F32, c.slots * ssm_stride(of) / f32, VALUES_PLAIN, 21, 0);
        c.set[i].out = sides_out(d, "out", rows * dim * 2);
    }
    return c;
}

static void step_free(sides *d, step *c) {
    for (int s = 0; s < 2; s++) {
        ls_gemm_weight_free(d->device[s], &c->in_proj[s]);
        ls_gemm_weight_free(d->device[s], &c->x_proj[s]);
        ls_gemm_weight_free(d->device[s], &c->dt_proj[s]);
    }
    sides_clear_to(d, 0);
}

static ls_gemm_args product(const step *c, int s, const void *x, const ls_gemm_weight *w, void *out) {
    return (ls_gemm_args){x, LS_BF16, w[s].k, &w[s], NULL, out, LS_F32, w[s].n, c->rows, LS_PROFILE_MMA16, NULL, true};
}

static ls_rmsnorm_args norm(const step *c, const float *x, const sides_buffer *w, int s, void *y, ls_dtype dtype,
                            int64_t y_stride, int64_t dim) {
    return (ls_rmsnorm_args){x, LS_F32, narrow(&c->of), w->at[s], 1e-6f, y, dtype, y_stride, c->rows, dim};
}

static ls_mamba_step_args args_of(const step *c, int s, int set) {
    const shape *of = &c->of;
    const int64_t dim = of->dim, rank = of->rank, n = of->states;
    const float *raw = c->raw.at[s];
    float *uz = c->uz.at[s], *bc = c->bc.at[s];
    return (ls_mamba_step_args){.in_proj = product(c, s, c->x.at[s], c->in_proj, uz),
                                .conv = {uz,
                                         LS_F32,
                                         LS_F32,
                                         of->state,
                                         2 * dim,
                                         c->conv_w.at[s],
                                         of->bias ? c->conv_bias.at[s] : NULL,
                                         c->u.at[s],
                                         dim,
                                         c->rounded.at[s],
                                         dim,
                                         c->rows,
                                         dim,
                                         TAPS,
                                         {c->set[set].conv.at[s], conv_stride(of), c->slots},
                                         c->spans.at[s],
                                         c->n_spans,
                                         1,
                                         false},
                                .x_proj = product(c, s, c->rounded.at[s], c->x_proj, c->raw.at[s]),
                                .norms = {{norm(c, raw, &c->dt_norm, s, c->dt_in.at[s], LS_BF16, rank, rank),
                                           norm(c, raw + rank, &c->b_norm, s, bc, LS_F32, 2 * n, n),
                                           norm(c, raw + rank + n, &c->c_norm, s, bc + n, LS_F32, 2 * n, n)},
                                          3},
                                .dt_proj = product(c, s, c->dt_in.at[s], c->dt_proj, c->dt.at[s]),
                                .scan = {.in_dtype = LS_F32,
                                         .out_dtype = LS_BF16,
                                         .u = c->u.at[s],
                                         .dt_raw = c->dt.at[s],
                                         .b = bc,
                                         .cc = bc + n,
                                         .z = uz + dim,
                                         .out = c->set[set].out.at[s],
                                         .u_stride = dim,
                                         .dt_stride = dim,
                                         .b_stride = 2 * n,
                                         .c_stride = 2 * n,
                                         .z_stride = 2 * dim,
                                         .out_stride = dim,
                                         .a2 = c->a2.at[s],
                                         .dt_bias = of->bias ? c->dt_bias.at[s] : NULL,
                                         .d = of->bias ? c->d.at[s] : NULL,
                                         .rows = c->rows,
                                         .dim = dim,
                                         .n_states = n,
                                         .state = {c->set[set].ssm.at[s], ssm_stride(of), c->slots},
                                         .spans = c->spans.at[s],
                                         .n_spans = c->n_spans,
                                         .span_rows_max = 1}};
}

static ls_status in_turn(ls_device *device, const ls_mamba_step_args *a, ls_error *err) {
    LS_TRY(ls_gemm(device, &a->in_proj, err));
    LS_TRY(ls_conv1d(device, &a->conv, err));
    LS_TRY(ls_gemm(device, &a->x_proj, err));
    LS_TRY(ls_rmsnorm_parts(device, &a->norms, err));
    LS_TRY(ls_gemm(device, &a->dt_proj, err));
    return ls_scan(device, &a->scan, err);
}

static void same(sides *d, const step *c, int64_t n, int64_t call) {
    for (int set = 0; set < 2; set++) {
        const char *how = set == 0 ? "one call" : "in turn";
        values_same(d, &c->set[set].out, LS_BF16, "dim %lld, %lld sequences, call %lld, %s", (long long)c->of.dim,
                    (long long)n, (long long)call, how);
        values_same(d, &c->set[set].conv, c->of.state, "dim %lld, %lld sequences, call %lld, %s", (long long)c->of.dim,
                    (long long)n, (long long)call, how);
        values_same(d, &c->set[set].ssm, LS_F32, "dim %lld, %lld sequences, call %lld, %s", (long long)c->of.dim,
                    (long long)n, (long long)call, how);
    }
}

/* Two steps: the first begins some sequences and goes on with others. */
static void check_step(sides *d, const shape *of, int64_t n) {
    step c = step_make(d, of, n);
    for (int64_t call = 0; call < 2; call++) {
        spans_put(d, &c, n, 5 * call);
        for (int s = 0; s < 2; s++) {
            const ls_mamba_step_args one = args_of(&c, s, 0), six = args_of(&c, s, 1);
            if (ls_mamba_step(d->device[s], &one, &d->run->err) != LS_OK ||
                in_turn(d->device[s], &six, &d->run->err) != LS_OK)
                bk_fail(d->run, "side %d: %s", s, d->run->err.text);
        }
        same(d, &c, n, call);
    }
    step_free(d, &c);
}

/* 1,096: strips that no block takes whole; 24 and 8: a rank and states that the one kernel does not have. */
static const shape shapes[] = {
    {64, 128, 16, 16, LS_BF16, true, VALUES_PLAIN},  {40, 1096, 48, 16, LS_F32, false, VALUES_PLAIN},
    {96, 1064, 160, 16, LS_BF16, true, VALUES_WIDE}, {32, 320, 256, 16, LS_BF16, true, VALUES_SPECIAL},
    {32, 320, 24, 16, LS_F32, true, VALUES_PLAIN},   {32, 100, 32, 8, LS_BF16, true, VALUES_PLAIN}};

static void every_shape_and_batch(bk_run *run) {
    static const int64_t batches[] = {1, 2, 7, 16, 17, 33, 62, 63, 64, 65, 129, 256, 512};
    sides d = sides_open(run);
    for (int64_t i = 0; i < BK_COUNT(shapes) * BK_COUNT(batches); i++) {
        const int64_t batch = batches[i % BK_COUNT(batches)];
        if (!run->cuda && batch > bk_size(run, 2, 17, 65)) continue;
        check_step(&d, &shapes[i / BK_COUNT(batches)], batch);
    }
    sides_close(&d);
}

/* Jamba-3B's. */
static void a_model_of_3b(bk_run *run) {
    static const shape of = {2560, 5120, 160, 16, LS_BF16, true, VALUES_PLAIN};
    sides d = sides_open(run);
    check_step(&d, &of, 1);
    check_step(&d, &of, 40);
    sides_close(&d);
}

/* Nothing is written where a span is wrong, and arguments that are no step are refused. */
static void faults_are_found(bk_run *run) {
    static const char *const of_slot[] = {"slot"}, *const of_link[] = {"mamba_step", "does not read"},
                             *const of_spans[] = {"mamba_step", "different spans"};
    const ls_span bad[] = {{0, 1, 1, 0, 0}, {1, 1, 1, 4, 0}};
    sides d = sides_open(run);
    step c = step_make(&d, &shapes[0], 3);
    c.spans = sides_in(&d, "spans", bad, sizeof bad);
    c.n_spans = 2;
    for (int s = 0; s < 2; s++) {
        ls_mamba_step_args a = args_of(&c, s, 0);
        sides_refused(&d, "slot", s, ls_mamba_step(d.device[s], &a, &run->err), of_slot, 1);
        a.dt_proj.x = c.rounded.at[s];
        sides_refused(&d, "link", s, ls_mamba_step(d.device[s], &a, &run->err), of_link, 2);
        a = args_of(&c, s, 0);
        a.scan.n_spans = 1;
        sides_refused(&d, "spans", s, ls_mamba_step(d.device[s], &a, &run->err), of_spans, 2);
    }
    same(&d, &c, 3, 0);
    step_free(&d, &c);
    sides_close(&d);
}

int main(int argc, char **argv) {
    static const bk_case cases[] = {{"every shape and batch", every_shape_and_batch, BK_ANYWHERE},
                                    {"a model of 3B", a_model_of_3b, BK_CUDA_ONLY},
                                    {"faults are found", faults_are_found, BK_ANYWHERE}};
    return bk_main(argc, argv, cases, BK_COUNT(cases));
}
