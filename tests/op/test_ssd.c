/* Scan of Mamba-2 against a textbook reading of its contract, bit for bit. The reference scans whole sequences from an
 * empty state; the op sees them in every kind of span, batch and slot. */
#define _GNU_SOURCE
#include "op/op_case.h"
#include "op/op_sparse.h"
#include "op/ssd.h"

#define HEADS_MAX 80

typedef struct shape {
    int64_t heads, dim, groups, states;
    float dt_min, dt_max;
} shape;

typedef struct problem {
    op_plan plan; /* sequences, not yet begun */
    shape s;
    op_array x, dt, b, cc, out; /* tokens of all sequences; out is expected */
    op_array state, scale;      /* [n_seqs][heads * states * dim], [n_seqs][heads], expected after the last token */
    float a[HEADS_MAX], dt_bias[HEADS_MAX], d[HEADS_MAX]; /* [heads] */
} problem;

/* Wrong on purpose: one chain over the states; slices added by halves; the plain chain without a scale; a scale that is
 * never put into the state; S rounded to bf16; w with one rounding. */
typedef enum variant { RIGHT, ONE_CHAIN, BY_HALVES, PLAIN_CHAIN, NO_RESCALE, STATE_BF16, W_DIVIDED } variant;

/* The eight-slice fold. */
static float fold_ref(const float *s, int64_t stride, const op_array *cc, int64_t row, int64_t first, int64_t n,
                      variant v) {
    float slice[8] = {0};
    for (int64_t i = 0; i < n; i++) {
        const int64_t at = v == ONE_CHAIN ? 0 : i / 4 % 8;
        slice[at] = ls_fma(s[i * stride], op_get(cc, row, first + i), slice[at]);
    }
    for (int64_t step = 1; step < 8; step *= 2)
        for (int64_t i = 0; i < 8 / (2 * step); i++) {
            if (v == BY_HALVES)
                for (int64_t j = i; j < 4 / step; j += 8 / (2 * step)) slice[j] = ls_add(slice[j], slice[j + 4 / step]);
            else
                slice[2 * step * i] = ls_add(slice[2 * step * i], slice[2 * step * i + step]);
        }
    return slice[0];
}

static void head_ref(const problem *p, int64_t row, int64_t h, float *s, float *scale, const op_array *out, variant v) {
    const int64_t n = p->s.states, dim = p->s.dim, group = h / (p->s.heads / p->s.groups);
    float dt = ls_softplus(ls_add(op_get(&p->dt, row, h), p->dt_bias[h])), decay, w;
    bool rescale;
    if (dt < p->s.dt_min) dt = p->s.dt_min;
    if (dt > p->s.dt_max) dt = p->s.dt_max;
    decay = ls_exp(ls_mul(dt, p->a[h]));
    *scale = ls_mul(*scale, decay);
    rescale = *scale < 0x1p-40f && v != NO_RESCALE;
    if (v == PLAIN_CHAIN) rescale = true;
    for (int64_t i = 0; i < n * dim && rescale; i++) s[i] = ls_mul(s[i], *scale);
    if (rescale) *scale = 1.0f;
    w = v == W_DIVIDED ? ls_div(dt, *scale) : ls_mul(dt, ls_div(1.0f, *scale));
    for (int64_t c = 0; c < dim; c++) {
        const float x = op_get(&p->x, row, h * dim + c), u = ls_mul(w, x);
        float y;
        for (int64_t i = 0; i < n; i++) {
            float *at = &s[i * dim + c];
            *at = ls_fma(u, op_get(&p->b, row, group * n + i), *at);
            if (v == STATE_BF16) *at = ls_round_bf16(*at);
        }
        y = ls_mul(*scale, fold_ref(s + c, dim, &p->cc, row, group * n, n, v));
        op_put(out, row, h * dim + c, ls_fma(p->d[h], x, y));
    }
}

static void ssd_ref(const problem *p, const op_array *out, const op_array *state, const op_array *scale, variant v) {
    const int64_t each = p->s.states * p->s.dim;
    float *s = op_alloc(each * 4);
    for (int64_t q = 0; q < p->plan.n_seqs; q++)
        for (int64_t h = 0; h < p->s.heads; h++) {
            float acc = 1.0f;
            for (int64_t i = 0; i < each; i++) s[i] = 0.0f;
            for (int64_t t = 0; t < p->plan.length[q]; t++) head_ref(p, p->plan.offset[q] + t, h, s, &acc, out, v);
            memcpy(op_at(state, q, h * each), s, (size_t)(each * 4));
            op_put(scale, q, h, acc);
        }
    free(s);
}

static void problem_make(problem *p, const op_plan *plan, const shape *s, int64_t combo, bool special, uint64_t seed) {
    const int64_t rows = op_plan_rows(plan), dim = s->heads * s->dim, states = s->groups * s->states;
    const ls_dtype in = combo % 2 ? LS_BF16 : LS_F32, out = combo / 2 % 2 ? LS_BF16 : LS_F32;
    memset(p, 0, sizeof *p);
    p->plan = *plan;
    p->s = *s;
    p->x = op_array_make(in, rows, dim, 0);
    p->dt = op_array_make(in, rows, s->heads, 0);
    p->b = op_array_make(in, rows, states, 0);
    p->cc = op_array_make(in, rows, states, 0);
    p->out = op_array_make(out, rows, dim, 0);
    p->state = op_array_make(LS_F32, plan->n_seqs, dim * s->states, 0);
    p->scale = op_array_make(LS_F32, plan->n_seqs, s->heads, 0);
    assert_true(s->heads <= OP_COUNT(p->a));
    for (int64_t h = 0; h < s->heads; h++) {
        p->a[h] = test_uniform(&seed, -16.0f, -0.05f);
        p->dt_bias[h] = test_uniform(&seed, -5.0f, 1.0f);
        p->d[h] = op_plain(&seed);
    }
    /* Odd sequences hold NaN, infinities and denormals; even ones are their finite neighbours. */
    for (int64_t q = 0; q < plan->n_seqs; q++)
        for (int64_t t = 0; t < plan->length[q]; t++) {
            const op_maker make = special && q % 2 ? op_special : op_plain;
            op_fill_row(&p->x, plan->offset[q] + t, make, &seed);
            op_fill_row(&p->dt, plan->offset[q] + t, special && q % 2 ? op_special : op_wide, &seed);
            op_fill_row(&p->b, plan->offset[q] + t, make, &seed);
            op_fill_row(&p->cc, plan->offset[q] + t, make, &seed);
        }
    ssd_ref(p, &p->out, &p->state, &p->scale, RIGHT);
}

static void problem_free(problem *p) {
    op_array *arrays[] = {&p->x, &p->dt, &p->b, &p->cc, &p->out, &p->state, &p->scale};
    for (int64_t i = 0; i < OP_COUNT(arrays); i++) op_array_free(arrays[i]);
}

/* The rows of one call. */
typedef struct rows {
    op_array x, dt, b, cc, out;
} rows;

static ls_ssd_args rows_args(const problem *p, const rows *r, const ls_span *spans, int64_t n_spans,
                             const ls_pool_view *state, const ls_pool_view *scale) {
    const ls_ssd_args args = {.in_dtype = r->x.dtype,
                              .out_dtype = r->out.dtype,
                              .x = r->x.data,
                              .dt_raw = r->dt.data,
                              .b = r->b.data,
                              .cc = r->cc.data,
                              .out = r->out.data,
                              .x_stride = r->x.stride,
                              .dt_stride = r->dt.stride,
                              .b_stride = r->b.stride,
                              .c_stride = r->cc.stride,
                              .out_stride = r->out.stride,
                              .a = p->a,
                              .dt_bias = p->dt_bias,
                              .d = p->d,
                              .dt_min = p->s.dt_min,
                              .dt_max = p->s.dt_max,
                              .rows = r->x.rows,
                              .n_heads = p->s.heads,
                              .head_dim = p->s.dim,
                              .n_groups = p->s.groups,
                              .n_states = p->s.states,
                              .state = *state,
                              .scale = *scale,
                              .spans = spans,
                              .n_spans = n_spans};
    return args;
}

/* What a sequence leaves behind; held: unused where states are written with every token. */
typedef struct pools {
    op_pool state, scale, held;
    int64_t every;
} pools;

/* All sequences from their first token to their last, in spans of `chunk` tokens. */
static void drive(const problem *p, const pools *o, ls_device *device, int64_t chunk, bool alone, uint64_t seed) {
    op_plan plan = p->plan;
    op_batch batch = op_batch_make(&plan);
    plan.chunk = chunk;
    plan.alone = alone;
    plan.seed = seed;
    while (op_plan_next(&plan, &batch)) {
        const uint64_t pads = test_random(&plan.seed);
        rows r;
        op_array expected = op_gather(&p->out, &batch, OP_GUARD, (int64_t)(pads % 4));
        op_array *in[] = {&r.x, &r.dt, &r.b, &r.cc};
        ls_ssd_args args;
        ls_error err;
        r.x = op_gather(&p->x, &batch, OP_POISON, (int64_t)(pads / 4 % 4));
        r.dt = op_gather(&p->dt, &batch, OP_POISON, (int64_t)(pads / 16 % 4));
        r.b = op_gather(&p->b, &batch, OP_POISON, (int64_t)(pads / 64 % 4));
        r.cc = op_gather(&p->cc, &batch, OP_POISON, (int64_t)(pads / 256 % 4));
        r.out = op_array_make(p->out.dtype, batch.n_rows, p->out.cols, (int64_t)(pads % 4));
        op_guard(&r.out);
        args = rows_args(p, &r, batch.spans, batch.n_spans, &o->state.view, &o->scale.view);
        args.state_every = o->every;
        args.held = o->held.view;
        assert_ok(ls_ssd(device, &args, &err), err);
        op_check(&expected, &r.out, OP_NAN_ANY, "heads %lld x %lld groups %lld states %lld in %s out %s chunk %lld%s",
                 (long long)p->s.heads, (long long)p->s.dim, (long long)p->s.groups, (long long)p->s.states,
                 ls_dtype_name(r.x.dtype), ls_dtype_name(r.out.dtype), (long long)chunk, alone ? " alone" : "");
        for (int64_t i = 0; i < OP_COUNT(in); i++) op_array_free(in[i]);
        op_array_free(&r.out);
        op_array_free(&expected);
    }
    free(batch.source);
}

static void pool_holds(const problem *p, const op_array *expected, const op_pool *pool, const char *what,
                       int64_t chunk) {
    op_array got = op_array_make(LS_F32, p->plan.n_seqs, expected->cols, 0);
    for (int64_t q = 0; q < p->plan.n_seqs; q++)
        memcpy(op_at(&got, q, 0), ls_pool_at(&pool->view, p->plan.slot[q]), (size_t)pool->entry_bytes);
    op_check(expected, &got, OP_NAN_ANY, "%s: chunk %lld", what, (long long)chunk);
    op_pool_check_others(pool, p->plan.slot, p->plan.n_seqs, what);
    op_array_free(&got);
}

static void write_held(const problem *p, const pools *o, ls_device *device) {
    const ls_held held = ls_held_make(o->every, p->s.heads, p->s.groups, p->s.states, p->s.dim);
    ls_span spans[16];
    const ls_write_held_args args = ls_held_args(&held, &o->state.view, &o->held.view, spans, p->plan.n_seqs, 0);
    ls_error err;
    assert_true(p->plan.n_seqs <= OP_COUNT(spans));
    for (int64_t q = 0; q < p->plan.n_seqs; q++) spans[q] = (ls_span){0, 0, 1, p->plan.slot[q], 0};
    assert_ok(ls_write_held(device, &args, &err), err);
}

static void run(const problem *p, const pools *o, ls_device *device, int64_t chunk, bool alone, uint64_t seed) {
    op_pool_poison(&o->state);
    op_pool_poison(&o->scale);
    if (o->every > 1) op_pool_poison(&o->held);
    drive(p, o, device, chunk, alone, seed);
    for (int64_t times = 0; times < 2 && o->every > 1; times++) write_held(p, o, device);
    pool_holds(p, &p->state, &o->state, "state", chunk);
    pool_holds(p, &p->scale, &o->scale, "scale", chunk);
    if (o->every > 1) op_pool_check_others(&o->held, p->plan.slot, p->plan.n_seqs, "held");
}

static void problem_check(const problem *p, ls_isa isa) {
    static const int64_t every[] = {2, 3, 8, LS_STATE_EVERY_MAX};
    const int64_t state_bytes = p->state.cols * 4;
    pools o = {.state = op_pool_make(12, state_bytes, 32 - state_bytes % 16),
               .scale = op_pool_make(12, p->scale.cols * 4, 8)};
    for (int64_t i = 0; i < 2 * OP_COUNT(op_chunks); i++)
        run(p, &o, op_devices[isa][i % OP_THREADS_MAX], op_chunks[i / 2], i % 2 == 1, (uint64_t)i + 1);
    for (int64_t i = 0; i < OP_COUNT(every); i++) {
        o.every = every[i];
        o.held = op_pool_make(12, ls_held_floats(every[i], p->s.heads, p->s.groups, p->s.states, p->s.dim) * 4, 16);
        run(p, &o, op_devices[isa][i % OP_THREADS_MAX], i % 3 == 2 ? -1 : 1, i % 2 == 1, (uint64_t)i + 1);
        op_pool_free(&o.held);
    }
    op_pool_free(&o.state);
    op_pool_free(&o.scale);
}

static const int64_t lengths[] = {1, 2, 3, 5, 4, 71, 17};
static const int32_t slots[] = {7, 3, 11, 1, 9, 5, 0};

static void every_cut_equals_the_whole(void **state) {
    const ls_isa isa = op_isa(state);
    static const shape shapes[] = {
        {1, 1, 1, 1, 0.0f, INFINITY},   {2, 3, 1, 5, 0.0f, INFINITY},    {4, 8, 2, 4, 0.001f, 0.1f},
        {6, 16, 3, 31, 0.0f, INFINITY}, {3, 17, 3, 32, 0.01f, INFINITY}, {8, 7, 1, 33, 0.0f, 0.5f},
        {2, 33, 2, 64, 0.0f, INFINITY}, {1, 64, 1, 128, 0.0f, INFINITY},
    };
    const op_plan plan = op_plan_make(OP_COUNT(lengths), lengths, slots);
    for (int64_t i = 0; i < OP_COUNT(shapes); i++) {
        problem p;
        problem_make(&p, &plan, &shapes[i], i, i % 3 != 0, (uint64_t)i + 1);
        problem_check(&p, isa);
        problem_free(&p);
    }
}

static void the_largest_heads_equal_the_textbook(void **state) {
    const ls_isa isa = op_isa(state);
    static const shape shapes[] = {{2, 256, 1, 64, 0.0f, INFINITY}, {1, 64, 1, 256, 0.0f, INFINITY}};
    const int64_t few[] = {6, 2};
    const op_plan plan = op_plan_make(OP_COUNT(few), few, slots);
    for (int64_t i = 0; i < OP_COUNT(shapes); i++) {
        problem p;
        problem_make(&p, &plan, &shapes[i], i + 1, false, (uint64_t)i + 50);
        problem_check(&p, isa);
        problem_free(&p);
    }
}

/* The scale went into the state in the problems above: in some sequences and not in others, or nothing was tried. */
static void scales_are_put_into_states(void **state) {
    static const shape s = {4, 8, 2, 8, 0.0f, INFINITY};
    const op_plan plan = op_plan_make(OP_COUNT(lengths), lengths, slots);
    int64_t small = 0, reset = 0;
    problem p;
    (void)state;
    problem_make(&p, &plan, &s, 0, false, 1);
    for (int64_t q = 0; q < plan.n_seqs; q++)
        for (int64_t h = 0; h < s.heads; h++) {
            double sum = 0.0;
            const float scale = op_get(&p.scale, q, h);
            for (int64_t t = 0; t < plan.length[q]; t++)
                sum += log1p(exp((double)op_get(&p.dt, plan.offset[q] + t, h) + p.dt_bias[h])) * p.a[h];
            assert_true(scale >= 0x1p-40f && scale <= 1.0f);
            small += sum > -20.0 && scale < 1.0f;
            reset += sum < -28.0;
        }
    assert_true(small > 0 && reset > 0);
    problem_free(&p);
}

/* Spans without rows and spans of padding alone change neither rows nor slots; a bad slot stops the call before it
 * writes. */
static void untouched_rows_and_slots(void **state) {
    const ls_isa isa = op_isa(state);
    static const shape s = {2, 5, 1, 3, 0.0f, INFINITY};
    const int64_t length[] = {4};
    const op_plan plan = op_plan_make(1, length, slots);
    const ls_span idle[] = {{0, 3, 0, -1, 0}, {3, 0, 5, 7, 0}, {3, 1, 9, INT32_MIN, 0}, {4, 0, 0, 2, 0}};
    const ls_span bad[] = {{0, 2, 0, 7, 0}, {2, 2, 0, 9, 0}};
    op_pool pool = op_pool_make(9, 2 * 5 * 3 * 4, 8), scale = op_pool_make(9, 8, 0);
    op_array untouched = op_array_make(LS_F32, 4, 10, 0);
    problem p;
    rows r;
    ls_ssd_args args;
    ls_error err;
    problem_make(&p, &plan, &s, 0, false, 4);
    r = (rows){p.x, p.dt, p.b, p.cc, op_array_make(LS_F32, 4, 10, 0)};
    op_guard(&r.out);
    op_guard(&untouched);
    for (int32_t t = 0; t < OP_THREADS_MAX; t++) {
        args = rows_args(&p, &r, idle, OP_COUNT(idle), &pool.view, &scale.view);
        assert_ok(ls_ssd(op_devices[isa][t], &args, &err), err);
        args = rows_args(&p, &r, bad, OP_COUNT(bad), &pool.view, &scale.view);
        check_failed(ls_ssd(op_devices[isa][t], &args, &err), &err, "span 1");
        check_failed(ls_ssd(op_devices[isa][t], &args, &err), &err, "slot 9");
        op_check(&untouched, &r.out, OP_NAN_PINNED, "padding or a bad slot");
        op_pool_check_others(&pool, NULL, 0, "padding or a bad slot");
        op_pool_check_others(&scale, NULL, 0, "padding or a bad slot");
    }
    op_array_free(&r.out);
    op_array_free(&untouched);
    op_pool_free(&pool);
    op_pool_free(&scale);
    problem_free(&p);
}

/* A state that fills a slot of op_sparse.h; the scales lie in a pool of their own. */
static void offsets_pass_32_bits(void **state) {
    const ls_isa isa = op_isa(state);
    static const shape s = {HEADS_MAX, 64, 8, 16, 0.0f, INFINITY};
    const int64_t few[SPARSE_LISTED] = {2, 1, 3, 1, 2, 1};
    const op_plan plan = op_plan_make(SPARSE_LISTED, few, sparse_slots);
    const ls_pool_view pool = sparse_open();
    const pools o = {.state = {{pool.base + SPARSE_CONV_BYTES, pool.stride, pool.n_entries},
                               s.heads * s.dim * s.states * 4,
                               0,
                               NULL},
                     .scale = op_pool_make(SPARSE_SLOTS, s.heads * 4, 0)};
    problem p;
    char text[200];
    assert_int_equal(SPARSE_CONV_BYTES + o.state.entry_bytes, SPARSE_STRIDE);
    problem_make(&p, &plan, &s, 0, false, 2);
    drive(&p, &o, op_devices[isa][1], 2, false, 1);
    if (sparse_damage(&pool, &p.state, SPARSE_CONV_BYTES, text) != 0) fail_msg("ssd: %s", text);
    sparse_control(&pool, &p.state, SPARSE_CONV_BYTES);
    pool_holds(&p, &p.scale, &o.scale, "scale", 2);
    free(o.scale.owned);
    problem_free(&p);
    sparse_close(&pool);
}

/* Against float64 over 4,096 tokens: rescaled or not, the error does not grow with length. */
static void accurate_within_1e_6_of_the_terms(void **state) {
    enum { LENGTH = 4096, HEADS = 2, DIM = 4, STATES = 16 };
    const ls_isa isa = op_isa(state);
    static const shape s = {HEADS, DIM, 1, STATES, 0.0f, INFINITY};
    const int64_t length[] = {LENGTH};
    const op_plan plan = op_plan_make(1, length, slots);
    double kept[HEADS][STATES][DIM] = {{{0}}}, size[HEADS][STATES][DIM] = {{{0}}}, worst = 0.0;
    pools o = {.state = op_pool_make(8, HEADS * DIM * STATES * 4, 0), .scale = op_pool_make(8, HEADS * 4, 0)};
    problem p;
    problem_make(&p, &plan, &s, 0, false, 4);
    drive(&p, &o, op_devices[isa][0], 64, true, 1);
    for (int64_t t = 0; t < LENGTH; t++)
        for (int64_t h = 0; h < HEADS; h++) {
            const double dt = log1p(exp((double)op_get(&p.dt, t, h) + p.dt_bias[h])), decay = exp(dt * p.a[h]);
            for (int64_t c = 0; c < DIM; c++) {
                const double x = op_get(&p.x, t, h * DIM + c);
                double y = p.d[h] * x, y_size = fabs(y), error;
                for (int64_t n = 0; n < STATES; n++) {
                    const double fresh = dt * x * op_get(&p.b, t, n), cc = op_get(&p.cc, t, n);
                    kept[h][n][c] = decay * kept[h][n][c] + fresh;
                    size[h][n][c] = decay * size[h][n][c] + fabs(fresh);
                    y += kept[h][n][c] * cc;
                    y_size += size[h][n][c] * fabs(cc);
                }
                error = fabs(op_get(&p.out, t, h * DIM + c) - y) / y_size;
                worst = fmax(worst, error);
            }
        }
    print_message("worst error %.3g of the sum of |terms|\n", worst);
    assert_true(worst < 1e-6);
    op_pool_free(&o.state);
    op_pool_free(&o.scale);
    problem_free(&p);
}

static void bad_arguments_are_named(void **state) {
    static const shape s = {4, 5, 2, 3, 0.0f, INFINITY};
    const int64_t length[] = {4};
    const op_plan plan = op_plan_make(1, length, slots);
    const ls_span spans[] = {{0, 4, 0, 1, 0}};
    op_pool pool = op_pool_make(3, 4 * 5 * 3 * 4, 0), scale = op_pool_make(3, 16, 0);
    problem p;
    rows r;
    ls_ssd_args right, args;
    ls_error err;
    (void)state;
    problem_make(&p, &plan, &s, 0, false, 4);
    r = (rows){p.x, p.dt, p.b, p.cc, p.out};
    right = rows_args(&p, &r, spans, 1, &pool.view, &scale.view);
#define REFUSED(word, ...)                                               \
    do {                                                                 \
        args = right;                                                    \
        __VA_ARGS__;                                                     \
        check_failed(ls_ssd(op_devices[0][0], &args, &err), &err, word); \
        check_failed(err.status, &err, "ssd");                           \
    } while (0)
    REFUSED("x is a null", args.x = NULL);
    REFUSED("dt_raw is a null", args.dt_raw = NULL);
    REFUSED("b is a null", args.b = NULL);
    REFUSED("cc is a null", args.cc = NULL);
    REFUSED("out is a null", args.out = NULL);
    REFUSED("a is a null", args.a = NULL);
    REFUSED("dt_bias is a null", args.dt_bias = NULL);
    REFUSED("d is a null", args.d = NULL);
    REFUSED("state is a null", args.state.base = NULL);
    REFUSED("scale: state is a null", args.scale.base = NULL);
    REFUSED("inputs f16", args.in_dtype = LS_F16);
    REFUSED("output f16", args.out_dtype = LS_F16);
    REFUSED("n_heads 0", args.n_heads = 0);
    REFUSED("n_heads 65537", args.n_heads = 65537);
    REFUSED("head_dim 257", args.head_dim = 257);
    REFUSED("n_states 257", args.n_states = 257);
    REFUSED("n_states 256 times head_dim 65", args.n_states = 256, args.head_dim = 65);
    REFUSED("n_groups 3 does not divide n_heads 4", args.n_groups = 3);
    REFUSED("n_groups 0", args.n_groups = 0);
    REFUSED("dt_min -1", args.dt_min = -1.0f);
    REFUSED("dt_max 0", args.dt_max = 0.0f);
    REFUSED("dt_min 0.5, dt_max 0.25", args.dt_min = 0.5f, args.dt_max = 0.25f);
    REFUSED("dt_max nan", args.dt_max = ls_from_bits(LS_NAN_BITS));
    REFUSED("rows -1", args.rows = -1);
    REFUSED("x: stride 19", args.x_stride = 19);
    REFUSED("dt_raw: stride 3", args.dt_stride = 3);
    REFUSED("b: stride 5", args.b_stride = 5);
    REFUSED("cc: stride 5", args.c_stride = 5);
    REFUSED("out: stride 19", args.out_stride = 19);
    REFUSED("x: 4 rows of stride 9223372036854775807", args.x_stride = INT64_MAX);
    REFUSED("stride of 239 bytes, for entries of 240", args.state.stride = 239);
    REFUSED("stride of 12 bytes, for entries of 16", args.scale.stride = 12);
    REFUSED("2 entries of scale, 3 of state", args.scale.n_entries = 2);
    REFUSED("state_every 65 is not in 0..64", args.state_every = 65);
    REFUSED("state_every -1", args.state_every = -1);
    REFUSED("held: state: stride of 0 bytes", args.state_every = 2);
    REFUSED("1 spans at", args.spans = NULL);
#undef REFUSED
    op_pool_free(&pool);
    op_pool_free(&scale);
    problem_free(&p);
}

static void variants_are_caught(void **state) {
    const variant wrong[] = {ONE_CHAIN, BY_HALVES, PLAIN_CHAIN, NO_RESCALE, STATE_BF16, W_DIVIDED};
    static const shape s = {4, 9, 2, 64, 0.0f, INFINITY};
    const op_plan plan = op_plan_make(OP_COUNT(lengths), lengths, slots);
    op_array out, states, scales;
    char text[160];
    problem p;
    (void)state;
    problem_make(&p, &plan, &s, 0, false, 8);
    out = op_array_make(LS_F32, p.out.rows, p.out.cols, 0);
    states = op_array_make(LS_F32, plan.n_seqs, p.state.cols, 0);
    scales = op_array_make(LS_F32, plan.n_seqs, p.scale.cols, 0);
    ssd_ref(&p, &out, &states, &scales, RIGHT);
    assert_int_equal(op_diffs(&p.out, &out, OP_NAN_ANY, text), 0);
    assert_int_equal(op_diffs(&p.state, &states, OP_NAN_ANY, text), 0);
    for (int64_t i = 0; i < OP_COUNT(wrong); i++) {
        ssd_ref(&p, &out, &states, &scales, wrong[i]);
        if (op_diffs(&p.out, &out, OP_NAN_ANY, text) == 0) fail_msg("variant %d is not seen", (int)wrong[i]);
    }
    op_array_free(&out);
    op_array_free(&states);
    op_array_free(&scales);
    problem_free(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        OP_CASES(every_cut_equals_the_whole),        OP_CASES(the_largest_heads_equal_the_textbook),
        OP_CASES(untouched_rows_and_slots),          OP_CASES(offsets_pass_32_bits),
        OP_CASES(accurate_within_1e_6_of_the_terms), cmocka_unit_test(scales_are_put_into_states),
        cmocka_unit_test(bad_arguments_are_named),   cmocka_unit_test(variants_are_caught),
    };
    return cmocka_run_group_tests(tests, op_open, op_close);
}
