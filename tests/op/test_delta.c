/* Gated delta rule against a textbook reading of its contract, bit for bit. The reference runs whole sequences from an
 * empty state; the op sees them in every kind of span, batch and slot. */
#define _GNU_SOURCE
#include "op/delta.h"
#include "op/op_case.h"
#include "op/op_sparse.h"

#define HEADS_MAX 64

typedef struct shape {
    int64_t heads, key_heads, keys, dim; /* dim: columns of a head */
} shape;

typedef struct problem {
    op_plan plan; /* sequences, not yet begun */
    shape s;
    op_array q, k, v, a, b, out; /* tokens of all sequences; out is expected */
    op_array state, scale;       /* [n_seqs][heads * keys * dim], [n_seqs][heads], expected after the last token */
    float rate[HEADS_MAX], dt_bias[HEADS_MAX]; /* [heads] */
} problem;

/* Wrong on purpose: one chain over the rows; chains added by halves; the plain chain without a scale; a scale that is
 * never put into the state; S rounded to bf16; w with one rounding; the state decays after the update; beta missing;
 * keys or queries not normalised; the root of the mean instead of the sum; heads of a key head not neighbours; the
 * query scaled instead of the output. */
typedef enum variant {
    RIGHT,
    ONE_CHAIN,
    BY_HALVES,
    PLAIN_CHAIN,
    NO_RESCALE,
    STATE_BF16,
    W_DIVIDED,
    DECAY_AFTER,
    NO_BETA,
    KEY_AS_IT_IS,
    QUERY_AS_IT_IS,
    NORM_OF_MEAN,
    HEADS_TILED,
    QUERY_SCALED
} variant;

/* The sixteen-chain fold of x[i] * s[i * stride]. */
static float fold_ref(const float *x, const float *s, int64_t stride, int64_t n, variant v) {
    float chain[16] = {0};
    for (int64_t i = 0; i < n; i++) {
        float *at = &chain[v == ONE_CHAIN ? 0 : i % 16];
        *at = ls_fma(x[i], s[i * stride], *at);
    }
    for (int step = 1; step < 16; step *= 2)
        for (int i = 0; i < 16; i += 2 * step) {
            if (v == BY_HALVES)
                chain[i / 2 / step] = ls_add(chain[i / 2 / step], chain[i / 2 / step + 8 / step]);
            else
                chain[i] = ls_add(chain[i], chain[i + step]);
        }
    return chain[0];
}

static void normalized_ref(float *out, const op_array *x, int64_t row, int64_t first, int64_t n, bool as_it_is,
                           variant v) {
    float chain[256] = {0}, sum;
    for (int64_t i = 0; i < n; i++) {
        out[i] = op_get(x, row, first + i);
        chain[i] = ls_fma(out[i], out[i], chain[i]);
    }
    sum = op_fold(chain);
    if (v == NORM_OF_MEAN) sum = ls_div(sum, (float)n);
    for (int64_t i = 0; i < n && !as_it_is; i++) out[i] = ls_mul(out[i], ls_div(1.0f, ls_sqrt(ls_add(sum, 1e-6f))));
}

static void head_ref(const problem *p, int64_t row, int64_t h, float *s, float *scale, const op_array *out, variant v) {
    const int64_t n = p->s.keys, dim = p->s.dim, group = p->s.heads / p->s.key_heads;
    const int64_t m = v == HEADS_TILED ? h % p->s.key_heads : h / group;
    const float decay = ls_exp(ls_mul(ls_softplus(ls_add(op_get(&p->a, row, h), p->dt_bias[h])), p->rate[h]));
    const float beta = v == NO_BETA ? 1.0f : ls_sigmoid(op_get(&p->b, row, h));
    const float query_scale = ls_div(1.0f, ls_sqrt((float)n));
    float q[256], k[256], w;
    bool rescale;
    normalized_ref(q, &p->q, row, m * n, n, v == QUERY_AS_IT_IS, v);
    normalized_ref(k, &p->k, row, m * n, n, v == KEY_AS_IT_IS, v);
    for (int64_t i = 0; i < n && v == QUERY_SCALED; i++) q[i] = ls_mul(q[i], query_scale);
    if (v != DECAY_AFTER) *scale = ls_mul(*scale, decay);
    rescale = (*scale < 0x1p-40f && v != NO_RESCALE) || v == PLAIN_CHAIN;
    for (int64_t i = 0; i < n * dim && rescale; i++) s[i] = ls_mul(s[i], *scale);
    if (rescale) *scale = 1.0f;
    w = v == W_DIVIDED ? ls_div(beta, *scale) : ls_mul(beta, ls_div(1.0f, *scale));
    for (int64_t c = 0; c < dim; c++) {
        const float u = fold_ref(k, s + c, dim, n, v);
        const float d = ls_fma(-beta, u, ls_mul(w, op_get(&p->v, row, h * dim + c)));
        float o;
        for (int64_t i = 0; i < n; i++) {
            s[i * dim + c] = ls_fma(k[i], d, s[i * dim + c]);
            if (v == STATE_BF16) s[i * dim + c] = ls_round_bf16(s[i * dim + c]);
        }
        o = fold_ref(q, s + c, dim, n, v);
        op_put(out, row, h * dim + c, ls_mul(v == QUERY_SCALED ? *scale : ls_mul(*scale, query_scale), o));
    }
    if (v == DECAY_AFTER) *scale = ls_mul(*scale, decay);
}

static void delta_ref(const problem *p, const op_array *out, const op_array *state, const op_array *scale, variant v) {
    const int64_t each = p->s.keys * p->s.dim;
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
    const int64_t rows = op_plan_rows(plan), dim = s->heads * s->dim, keys = s->key_heads * s->keys;
    const ls_dtype in = combo % 2 ? LS_BF16 : LS_F32, out = combo / 2 % 2 ? LS_BF16 : LS_F32;
    memset(p, 0, sizeof *p);
    p->plan = *plan;
    p->s = *s;
    p->q = op_array_make(in, rows, keys, 0);
    p->k = op_array_make(in, rows, keys, 0);
    p->v = op_array_make(in, rows, dim, 0);
    p->a = op_array_make(in, rows, s->heads, 0);
    p->b = op_array_make(in, rows, s->heads, 0);
    p->out = op_array_make(out, rows, dim, 0);
    p->state = op_array_make(LS_F32, plan->n_seqs, dim * s->keys, 0);
    p->scale = op_array_make(LS_F32, plan->n_seqs, s->heads, 0);
    assert_true(s->heads <= OP_COUNT(p->rate));
    for (int64_t h = 0; h < s->heads; h++) {
        p->rate[h] = test_uniform(&seed, -16.0f, -0.05f);
        p->dt_bias[h] = test_uniform(&seed, -5.0f, 1.0f);
    }
    /* Odd sequences hold NaN, infinities and denormals; even ones are their finite neighbours. */
    for (int64_t q = 0; q < plan->n_seqs; q++)
        for (int64_t t = 0; t < plan->length[q]; t++) {
            const op_maker make = special && q % 2 ? op_special : op_plain;
            const op_maker wide = special && q % 2 ? op_special : op_wide;
            op_fill_row(&p->q, plan->offset[q] + t, make, &seed);
            op_fill_row(&p->k, plan->offset[q] + t, make, &seed);
            op_fill_row(&p->v, plan->offset[q] + t, make, &seed);
            op_fill_row(&p->a, plan->offset[q] + t, wide, &seed);
            op_fill_row(&p->b, plan->offset[q] + t, wide, &seed);
        }
    delta_ref(p, &p->out, &p->state, &p->scale, RIGHT);
}

static void problem_free(problem *p) {
    op_array *arrays[] = {&p->q, &p->k, &p->v, &p->a, &p->b, &p->out, &p->state, &p->scale};
    for (int64_t i = 0; i < OP_COUNT(arrays); i++) op_array_free(arrays[i]);
}

/* The rows of one call. */
typedef struct rows {
    op_array q, k, v, a, b, out;
} rows;

static ls_delta_args rows_args(const problem *p, const rows *r, const ls_span *spans, int64_t n_spans,
                               const ls_pool_view *state, const ls_pool_view *scale) {
    const ls_delta_args args = {.in_dtype = r->q.dtype,
                                .out_dtype = r->out.dtype,
                                .q = r->q.data,
                                .k = r->k.data,
                                .v = r->v.data,
                                .a = r->a.data,
                                .b = r->b.data,
                                .out = r->out.data,
                                .q_stride = r->q.stride,
                                .k_stride = r->k.stride,
                                .v_stride = r->v.stride,
                                .a_stride = r->a.stride,
                                .b_stride = r->b.stride,
                                .out_stride = r->out.stride,
                                .rate = p->rate,
                                .dt_bias = p->dt_bias,
                                .rows = r->q.rows,
                                .n_heads = p->s.heads,
                                .n_key_heads = p->s.key_heads,
                                .key_dim = p->s.keys,
                                .value_dim = p->s.dim,
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
        op_array *in[] = {&r.q, &r.k, &r.v, &r.a, &r.b};
        ls_delta_args args;
        ls_error err;
        r.q = op_gather(&p->q, &batch, OP_POISON, (int64_t)(pads / 4 % 4));
        r.k = op_gather(&p->k, &batch, OP_POISON, (int64_t)(pads / 16 % 4));
        r.v = op_gather(&p->v, &batch, OP_POISON, (int64_t)(pads / 64 % 4));
        r.a = op_gather(&p->a, &batch, OP_POISON, (int64_t)(pads / 256 % 4));
        r.b = op_gather(&p->b, &batch, OP_POISON, (int64_t)(pads / 1024 % 4));
        r.out = op_array_make(p->out.dtype, batch.n_rows, p->out.cols, (int64_t)(pads % 4));
        op_guard(&r.out);
        args = rows_args(p, &r, batch.spans, batch.n_spans, &o->state.view, &o->scale.view);
        args.state_every = o->every;
        args.held = o->held.view;
        assert_ok(ls_delta(device, &args, &err), err);
        op_check(&expected, &r.out, OP_NAN_ANY, "heads %lld of %lld, %lld x %lld in %s out %s chunk %lld%s",
                 (long long)p->s.heads, (long long)p->s.key_heads, (long long)p->s.keys, (long long)p->s.dim,
                 ls_dtype_name(r.q.dtype), ls_dtype_name(r.out.dtype), (long long)chunk, alone ? " alone" : "");
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
    const ls_held held = ls_held_make(o->every, p->s.heads, p->s.key_heads, p->s.keys, p->s.dim);
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
        o.held = op_pool_make(12, ls_held_floats(every[i], p->s.heads, p->s.key_heads, p->s.keys, p->s.dim) * 4, 16);
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
    static const shape shapes[] = {{1, 1, 1, 1},   {2, 1, 3, 5},  {4, 2, 8, 4},   {6, 3, 16, 31},
                                   {3, 3, 17, 32}, {8, 2, 33, 7}, {4, 1, 64, 33}, {2, 2, 40, 16}};
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
    static const shape shapes[] = {{2, 1, 128, 128}, {1, 1, 256, 64}, {1, 1, 64, 256}};
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
    static const shape s = {4, 2, 8, 8};
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
                sum += log1p(exp((double)op_get(&p.a, plan.offset[q] + t, h) + p.dt_bias[h])) * p.rate[h];
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
    static const shape s = {2, 1, 3, 5};
    const int64_t length[] = {4};
    const op_plan plan = op_plan_make(1, length, slots);
    const ls_span idle[] = {{0, 3, 0, -1, 0}, {3, 0, 5, 7, 0}, {3, 1, 9, INT32_MIN, 0}, {4, 0, 0, 2, 0}};
    const ls_span bad[] = {{0, 2, 0, 7, 0}, {2, 2, 0, 9, 0}};
    op_pool pool = op_pool_make(9, 2 * 5 * 3 * 4, 8), scale = op_pool_make(9, 8, 0);
    op_array untouched = op_array_make(LS_F32, 4, 10, 0);
    problem p;
    rows r;
    ls_delta_args args;
    ls_error err;
    problem_make(&p, &plan, &s, 0, false, 4);
    r = (rows){p.q, p.k, p.v, p.a, p.b, op_array_make(LS_F32, 4, 10, 0)};
    op_guard(&r.out);
    op_guard(&untouched);
    for (int32_t t = 0; t < OP_THREADS_MAX; t++) {
        args = rows_args(&p, &r, idle, OP_COUNT(idle), &pool.view, &scale.view);
        assert_ok(ls_delta(op_devices[isa][t], &args, &err), err);
        args = rows_args(&p, &r, bad, OP_COUNT(bad), &pool.view, &scale.view);
        check_failed(ls_delta(op_devices[isa][t], &args, &err), &err, "span 1");
        check_failed(ls_delta(op_devices[isa][t], &args, &err), &err, "slot 9");
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
    static const shape s = {HEADS_MAX, 16, 16, 80};
    const int64_t few[SPARSE_LISTED] = {2, 1, 3, 1, 2, 1};
    const op_plan plan = op_plan_make(SPARSE_LISTED, few, sparse_slots);
    const ls_pool_view pool = sparse_open();
    const pools o = {
        .state = {{pool.base + SPARSE_CONV_BYTES, pool.stride, pool.n_entries}, s.heads * s.dim * s.keys * 4, 0, NULL},
        .scale = op_pool_make(SPARSE_SLOTS, s.heads * 4, 0)};
    problem p;
    char text[200];
    assert_int_equal(SPARSE_CONV_BYTES + o.state.entry_bytes, SPARSE_STRIDE);
    problem_make(&p, &plan, &s, 0, false, 2);
    drive(&p, &o, op_devices[isa][1], 2, false, 1);
    if (sparse_damage(&pool, &p.state, SPARSE_CONV_BYTES, text) != 0) fail_msg("delta: %s", text);
    sparse_control(&pool, &p.state, SPARSE_CONV_BYTES);
    pool_holds(&p, &p.scale, &o.scale, "scale", 2);
    free(o.scale.owned);
    problem_free(&p);
    sparse_close(&pool);
}

/* Root of the mean square of out - truth over that of truth: the recurrence in float64, without a scale. */
static double error_of(const problem *p, const op_array *out) {
    const int64_t n = p->s.keys, dim = p->s.dim, group = p->s.heads / p->s.key_heads;
    double *s = op_alloc(n * dim * 8), error = 0.0, size = 0.0;
    for (int64_t h = 0; h < p->s.heads; h++) {
        for (int64_t i = 0; i < n * dim; i++) s[i] = 0.0;
        for (int64_t t = 0; t < p->plan.length[0]; t++) {
            const double soft = log1p(exp((double)op_get(&p->a, t, h) + p->dt_bias[h]));
            const double decay = exp(soft * p->rate[h]), beta = 1.0 / (1.0 + exp(-(double)op_get(&p->b, t, h)));
            double q[256], k[256], qq = 0.0, kk = 0.0;
            for (int64_t i = 0; i < n; i++) {
                q[i] = op_get(&p->q, t, h / group * n + i);
                k[i] = op_get(&p->k, t, h / group * n + i);
                qq += q[i] * q[i];
                kk += k[i] * k[i];
            }
            for (int64_t i = 0; i < n; i++) {
                q[i] /= sqrt(qq + 1e-6);
                k[i] /= sqrt(kk + 1e-6);
            }
            for (int64_t c = 0; c < dim; c++) {
                double u = 0.0, o = 0.0, d;
                for (int64_t i = 0; i < n; i++) {
                    s[i * dim + c] *= decay;
                    u += k[i] * s[i * dim + c];
                }
                d = beta * (op_get(&p->v, t, h * dim + c) - u);
                for (int64_t i = 0; i < n; i++) {
                    s[i * dim + c] += k[i] * d;
                    o += q[i] * s[i * dim + c];
                }
                o /= sqrt((double)n);
                error += pow(op_get(out, t, h * dim + c) - o, 2.0);
                size += o * o;
            }
        }
    }
    free(s);
    return sqrt(error / size);
}

/* Against float64 over 2,048 tokens, with slow and with fast decay. The chain without a scale, which costs one
 * operation more for each element, has errors of the same size. */
static void accurate_as_the_plain_chain(void **state) {
    enum { LENGTH = 2048 };
    static const shape s = {2, 1, 32, 8};
    const int64_t length[] = {LENGTH};
    const op_plan plan = op_plan_make(1, length, slots);
    (void)state;
    for (int fast = 0; fast < 2; fast++) {
        problem p;
        double scaled, plain;
        problem_make(&p, &plan, &s, 0, false, 4);
        for (int64_t h = 0; h < s.heads && !fast; h++) p.rate[h] = -0.01f;
        delta_ref(&p, &p.out, &p.state, &p.scale, RIGHT);
        scaled = error_of(&p, &p.out);
        delta_ref(&p, &p.out, &p.state, &p.scale, PLAIN_CHAIN);
        plain = error_of(&p, &p.out);
        print_message("%s decay: error %.3g of the root mean square, of the plain chain %.3g\n", fast ? "fast" : "slow",
                      scaled, plain);
        assert_true(scaled < 5e-7 && scaled < 1.25 * plain);
        problem_free(&p);
    }
}

static void bad_arguments_are_named(void **state) {
    static const shape s = {4, 2, 3, 5};
    const int64_t length[] = {4};
    const op_plan plan = op_plan_make(1, length, slots);
    const ls_span spans[] = {{0, 4, 0, 1, 0}};
    op_pool pool = op_pool_make(3, 4 * 5 * 3 * 4, 0), scale = op_pool_make(3, 16, 0);
    problem p;
    rows r;
    ls_delta_args right, args;
    ls_error err;
    (void)state;
    problem_make(&p, &plan, &s, 0, false, 4);
    r = (rows){p.q, p.k, p.v, p.a, p.b, p.out};
    right = rows_args(&p, &r, spans, 1, &pool.view, &scale.view);
#define REFUSED(word, ...)                                                 \
    do {                                                                   \
        args = right;                                                      \
        __VA_ARGS__;                                                       \
        check_failed(ls_delta(op_devices[0][0], &args, &err), &err, word); \
        check_failed(err.status, &err, "delta");                           \
    } while (0)
    REFUSED("q is a null", args.q = NULL);
    REFUSED("k is a null", args.k = NULL);
    REFUSED("v is a null", args.v = NULL);
    REFUSED("a is a null", args.a = NULL);
    REFUSED("b is a null", args.b = NULL);
    REFUSED("out is a null", args.out = NULL);
    REFUSED("rate is a null", args.rate = NULL);
    REFUSED("dt_bias is a null", args.dt_bias = NULL);
    REFUSED("state is a null", args.state.base = NULL);
    REFUSED("scale: state is a null", args.scale.base = NULL);
    REFUSED("inputs f16", args.in_dtype = LS_F16);
    REFUSED("output f16", args.out_dtype = LS_F16);
    REFUSED("n_heads 0", args.n_heads = 0);
    REFUSED("n_heads 65537", args.n_heads = 65537);
    REFUSED("n_key_heads 3 does not divide n_heads 4", args.n_key_heads = 3);
    REFUSED("n_key_heads 0", args.n_key_heads = 0);
    REFUSED("key_dim 257", args.key_dim = 257);
    REFUSED("key_dim 0", args.key_dim = 0);
    REFUSED("value_dim 257", args.value_dim = 257);
    REFUSED("value_dim -1", args.value_dim = -1);
    REFUSED("key_dim 256 times value_dim 65", args.key_dim = 256, args.value_dim = 65);
    REFUSED("rows -1", args.rows = -1);
    REFUSED("q: stride 5", args.q_stride = 5);
    REFUSED("k: stride 5", args.k_stride = 5);
    REFUSED("v: stride 19", args.v_stride = 19);
    REFUSED("a: stride 3", args.a_stride = 3);
    REFUSED("b: stride 3", args.b_stride = 3);
    REFUSED("out: stride 19", args.out_stride = 19);
    REFUSED("v: 4 rows of stride 9223372036854775807", args.v_stride = INT64_MAX);
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
    static const shape s = {6, 3, 40, 9};
    const op_plan plan = op_plan_make(OP_COUNT(lengths), lengths, slots);
    op_array out, states, scales;
    char text[160];
    problem p;
    (void)state;
    problem_make(&p, &plan, &s, 0, false, 8);
    out = op_array_make(LS_F32, p.out.rows, p.out.cols, 0);
    states = op_array_make(LS_F32, plan.n_seqs, p.state.cols, 0);
    scales = op_array_make(LS_F32, plan.n_seqs, p.scale.cols, 0);
    delta_ref(&p, &out, &states, &scales, RIGHT);
    assert_int_equal(op_diffs(&p.out, &out, OP_NAN_ANY, text), 0);
    assert_int_equal(op_diffs(&p.state, &states, OP_NAN_ANY, text), 0);
    for (int wrong = RIGHT + 1; wrong <= QUERY_SCALED; wrong++) {
        delta_ref(&p, &out, &states, &scales, (variant)wrong);
        if (op_diffs(&p.out, &out, OP_NAN_ANY, text) == 0) fail_msg("variant %d is not seen", wrong);
    }
    op_array_free(&out);
    op_array_free(&states);
    op_array_free(&scales);
    problem_free(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        OP_CASES(every_cut_equals_the_whole),         OP_CASES(the_largest_heads_equal_the_textbook),
        OP_CASES(untouched_rows_and_slots),           OP_CASES(offsets_pass_32_bits),
        cmocka_unit_test(scales_are_put_into_states), cmocka_unit_test(accurate_as_the_plain_chain),
        cmocka_unit_test(bad_arguments_are_named),    cmocka_unit_test(variants_are_caught),
    };
    return cmocka_run_group_tests(tests, op_open, op_close);
}
