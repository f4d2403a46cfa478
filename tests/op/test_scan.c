/* Selective scan against a textbook reading of its contract, bit for bit. The reference scans whole sequences from an
 * empty state; the op sees them in every kind of span, batch and slot. */
#define _GNU_SOURCE
#include <malloc.h>
#include <sys/resource.h>

#include "cost.h"
#include "op/op_case.h"
#include "op/op_sparse.h"
#include "op/scan.h"

typedef struct problem {
    op_plan plan; /* sequences, not yet begun */
    int64_t dim, n_states;
    op_array u, dt, b, cc, z, out; /* tokens of all sequences; out is expected */
    op_array state;                /* [n_seqs][dim * n_states], expected after the last token */
    float *a2, *dt_bias, *d;
} problem;

/* Wrong on purpose: log(1 + e^x) without log1p, one chain over the states, e^(dt a) through exp, the state kept in
 * bf16, the decay times the state rounded before the input is added. */
typedef enum variant { RIGHT, NAIVE_SOFTPLUS, ONE_CHAIN, PLAIN_EXP, STATE_BF16, NO_FMA } variant;

/* The four-chain tree: groups of ceil(n / 4) neighbours. */
static float tree_ref(const float *h, const op_array *cc, int64_t row, int64_t n, variant v) {
    const int64_t group = v == ONE_CHAIN ? n : (n + 3) / 4;
    float p[4] = {0};
    for (int64_t s = 0; s < n; s++) p[s / group] = ls_fma(h[s], op_get(cc, row, s), p[s / group]);
    return ls_add(ls_add(p[0], p[1]), ls_add(p[2], p[3]));
}

/* One token: h [dim][n_states] and row of out. */
static void token_ref(const problem *p, int64_t row, float *h, const op_array *out, variant v) {
    const int64_t n = p->n_states;
    for (int64_t c = 0; c < p->dim; c++) {
        const float raw = ls_add(op_get(&p->dt, row, c), p->dt_bias[c]), u = op_get(&p->u, row, c);
        const float dt = v == NAIVE_SOFTPLUS ? ls_log(ls_add(1.0f, ls_exp(raw))) : ls_softplus(raw);
        const float input = ls_mul(dt, u);
        float y;
        for (int64_t s = 0; s < n; s++) {
            const float rate = p->a2[c * n + s], power = ls_mul(dt, rate);
            const float round = ls_fma(dt, rate, LS_ROUND_MAGIC), n_2 = ls_sub(round, LS_ROUND_MAGIC);
            const float poly = ls_exp2_poly(ls_fma(dt, rate, -n_2));
            const bool inside = power >= -126.0f && power <= 127.0f;
            const float exact = inside ? ls_from_bits(ls_bits(poly) + (ls_bits(round) << 23)) : ls_exp2_bounded(power);
            const float decay = v == PLAIN_EXP ? ls_exp(ls_mul(power, LS_LN2)) : exact;
            const float fresh = ls_mul(input, op_get(&p->b, row, s));
            float *state = &h[c * n + s];
            *state = v == NO_FMA ? ls_add(ls_mul(decay, *state), fresh) : ls_fma(decay, *state, fresh);
            if (v == STATE_BF16) *state = ls_round_bf16(*state);
        }
        y = tree_ref(h + c * n, &p->cc, row, n, v);
        y = ls_fma(p->d[c], u, y);
        op_put(out, row, c, ls_mul(y, ls_silu(op_get(&p->z, row, c))));
    }
}

static void scan_ref(const problem *p, const op_array *out, const op_array *state, variant v) {
    float *h = op_alloc(p->dim * p->n_states * 4);
    for (int64_t s = 0; s < p->plan.n_seqs; s++) {
        for (int64_t i = 0; i < p->dim * p->n_states; i++) h[i] = 0.0f;
        for (int64_t t = 0; t < p->plan.length[s]; t++) token_ref(p, p->plan.offset[s] + t, h, out, v);
        memcpy(op_at(state, s, 0), h, (size_t)(p->dim * p->n_states * 4));
    }
    free(h);
}

static void problem_alloc(problem *p, const op_plan *plan, int64_t dim, int64_t n, ls_dtype in, ls_dtype out,
                          uint64_t seed) {
    const int64_t rows = op_plan_rows(plan);
    memset(p, 0, sizeof *p);
    p->plan = *plan;
    p->dim = dim;
    p->n_states = n;
    p->u = op_array_make(in, rows, dim, 0);
    p->dt = op_array_make(in, rows, dim, 0);
    p->z = op_array_make(in, rows, dim, 0);
    p->b = op_array_make(in, rows, n, 0);
    p->cc = op_array_make(in, rows, n, 0);
    p->out = op_array_make(out, rows, dim, 0);
    p->state = op_array_make(LS_F32, plan->n_seqs, dim * n, 0);
    p->a2 = op_alloc(dim * n * 4);
    p->dt_bias = op_alloc(dim * 4);
    p->d = op_alloc(dim * 4);
    for (int64_t i = 0; i < dim * n; i++) p->a2[i] = ls_mul(test_uniform(&seed, -16.0f, -0.05f), LS_LOG2E);
    for (int64_t c = 0; c < dim; c++) {
        p->dt_bias[c] = test_uniform(&seed, -5.0f, 1.0f);
        p->d[c] = op_plain(&seed);
    }
    /* Odd sequences hold NaN, infinities and denormals; even ones are their finite neighbours. */
    for (int64_t s = 0; s < plan->n_seqs; s++)
        for (int64_t t = 0; t < plan->length[s]; t++) {
            const op_maker make = s % 2 ? op_special : op_plain;
            op_fill_row(&p->u, plan->offset[s] + t, make, &seed);
            op_fill_row(&p->dt, plan->offset[s] + t, s % 2 ? op_special : op_wide, &seed);
            op_fill_row(&p->z, plan->offset[s] + t, s % 2 ? op_special : op_wide, &seed);
            op_fill_row(&p->b, plan->offset[s] + t, make, &seed);
            op_fill_row(&p->cc, plan->offset[s] + t, make, &seed);
        }
}

static void problem_make(problem *p, const op_plan *plan, int64_t dim, int64_t n, int64_t combo, uint64_t seed) {
    problem_alloc(p, plan, dim, n, combo % 2 ? LS_BF16 : LS_F32, combo / 2 % 2 ? LS_BF16 : LS_F32, seed);
    scan_ref(p, &p->out, &p->state, RIGHT);
}

static void problem_free(problem *p) {
    op_array *arrays[] = {&p->u, &p->dt, &p->b, &p->cc, &p->z, &p->out, &p->state};
    for (int64_t i = 0; i < OP_COUNT(arrays); i++) op_array_free(arrays[i]);
    free(p->a2);
    free(p->dt_bias);
    free(p->d);
}

/* The rows of one call. */
typedef struct rows {
    op_array u, dt, b, cc, z, out;
} rows;

static ls_scan_args rows_args(const problem *p, const rows *r, const ls_span *spans, int64_t n_spans,
                              const ls_pool_view *pool) {
    ls_scan_args args;
    memset(&args, 0, sizeof args);
    args.in_dtype = r->u.dtype;
    args.out_dtype = r->out.dtype;
    args.u = r->u.data;
    args.dt_raw = r->dt.data;
    args.b = r->b.data;
    args.cc = r->cc.data;
    args.z = r->z.data;
    args.out = r->out.data;
    args.u_stride = r->u.stride;
    args.dt_stride = r->dt.stride;
    args.b_stride = r->b.stride;
    args.c_stride = r->cc.stride;
    args.z_stride = r->z.stride;
    args.out_stride = r->out.stride;
    args.a2 = p->a2;
    args.dt_bias = p->dt_bias;
    args.d = p->d;
    args.rows = r->u.rows;
    args.dim = p->dim;
    args.n_states = p->n_states;
    args.state = *pool;
    args.spans = spans;
    args.n_spans = n_spans;
    return args;
}

/* All sequences from their first token to their last, in spans of `chunk` tokens. */
static void drive(const problem *p, const ls_pool_view *pool, ls_device *device, int64_t chunk, bool alone,
                  uint64_t seed) {
    op_plan plan = p->plan;
    op_batch batch = op_batch_make(&plan);
    plan.chunk = chunk;
    plan.alone = alone;
    plan.seed = seed;
    while (op_plan_next(&plan, &batch)) {
        const uint64_t pads = test_random(&plan.seed);
        rows r;
        op_array expected = op_gather(&p->out, &batch, OP_GUARD, (int64_t)(pads % 4));
        op_array *in[] = {&r.u, &r.dt, &r.b, &r.cc, &r.z};
        ls_scan_args args;
        ls_error err;
        r.u = op_gather(&p->u, &batch, OP_POISON, (int64_t)(pads / 4 % 4));
        r.dt = op_gather(&p->dt, &batch, OP_POISON, (int64_t)(pads / 16 % 4));
        r.b = op_gather(&p->b, &batch, OP_POISON, (int64_t)(pads / 64 % 4));
        r.cc = op_gather(&p->cc, &batch, OP_POISON, (int64_t)(pads / 256 % 4));
        r.z = op_gather(&p->z, &batch, OP_POISON, (int64_t)(pads / 1024 % 4));
        r.out = op_array_make(p->out.dtype, batch.n_rows, p->dim, (int64_t)(pads % 4));
        op_guard(&r.out);
        args = rows_args(p, &r, batch.spans, batch.n_spans, pool);
        assert_ok(ls_scan(device, &args, &err), err);
        op_check(&expected, &r.out, OP_NAN_ANY, "dim %lld states %lld in %s out %s threads %d chunk %lld%s",
                 (long long)p->dim, (long long)p->n_states, ls_dtype_name(r.u.dtype), ls_dtype_name(r.out.dtype),
                 ls_pool_threads(device->exec.workers->pool), (long long)chunk, alone ? " alone" : "");
        for (int64_t i = 0; i < OP_COUNT(in); i++) op_array_free(in[i]);
        op_array_free(&r.out);
        op_array_free(&expected);
    }
    free(batch.source);
}

static void problem_check(const problem *p, ls_isa isa) {
    const int64_t entry_bytes = p->dim * p->n_states * 4;
    op_pool pool = op_pool_make(12, entry_bytes, 32 - entry_bytes % 16);
    for (int64_t i = 0; i < 2 * OP_COUNT(op_chunks); i++) {
        op_array got = op_array_make(LS_F32, p->plan.n_seqs, p->state.cols, 0);
        op_pool_poison(&pool);
        drive(p, &pool.view, op_devices[isa][i % OP_THREADS_MAX], op_chunks[i / 2], i % 2 == 1, (uint64_t)i + 1);
        for (int64_t s = 0; s < p->plan.n_seqs; s++)
            memcpy(op_at(&got, s, 0), ls_pool_at(&pool.view, p->plan.slot[s]), (size_t)entry_bytes);
        op_check(&p->state, &got, OP_NAN_ANY, "state: dim %lld states %lld chunk %lld", (long long)p->dim,
                 (long long)p->n_states, (long long)op_chunks[i / 2]);
        op_pool_check_others(&pool, p->plan.slot, p->plan.n_seqs, "scan");
        op_array_free(&got);
    }
    op_pool_free(&pool);
}

static const int64_t lengths[] = {1, 2, 3, 5, 4, 71, 17};
static const int32_t slots[] = {7, 3, 11, 1, 9, 5, 0};

static void every_cut_equals_the_whole(void **state) {
    const ls_isa isa = op_isa(state);
    const int64_t dims[] = {1, 7, 15, 16, 17, 33}, states[] = {1, 2, 3, 4, 5, 8, 16, 17};
    const op_plan plan = op_plan_make(OP_COUNT(lengths), lengths, slots);
    uint64_t seed = 3;
    for (int64_t d = 0; d < OP_COUNT(dims); d++)
        for (int64_t n = 0; n < OP_COUNT(states); n++) {
            problem p;
            problem_make(&p, &plan, dims[d], states[n], d + n, test_random(&seed));
            problem_check(&p, isa);
            problem_free(&p);
        }
}

static void wide_rows_equal_the_textbook(void **state) {
    const ls_isa isa = op_isa(state);
    const int64_t shapes[][2] = {{255, 16}, {256, 3}, {257, 16}, {2560, 16}, {20, 64}, {3, LS_SCAN_STATES_MAX}};
    const int64_t few[] = {6, 2, 5};
    const op_plan plan = op_plan_make(OP_COUNT(few), few, slots);
    for (int64_t i = 0; i < OP_COUNT(shapes); i++) {
        problem p;
        problem_make(&p, &plan, shapes[i][0], shapes[i][1], i + 2, (uint64_t)i + 50);
        problem_check(&p, isa);
        problem_free(&p);
    }
}

/* Spans without rows and spans of padding alone change neither rows nor slots; a bad slot stops the call before it
 * writes. */
static void untouched_rows_and_slots(void **state) {
    const ls_isa isa = op_isa(state);
    const int64_t length[] = {4};
    const op_plan plan = op_plan_make(1, length, slots);
    const ls_span idle[] = {{0, 3, 0, -1, 0}, {3, 0, 5, 7, 0}, {3, 1, 9, INT32_MIN, 0}, {4, 0, 0, 2, 0}};
    const ls_span bad[] = {{0, 2, 0, 7, 0}, {2, 2, 0, 9, 0}};
    op_pool pool = op_pool_make(9, 20 * 5 * 4, 16);
    op_array untouched = op_array_make(LS_F32, 4, 20, 0);
    problem p;
    rows r;
    ls_scan_args args;
    ls_error err;
    problem_make(&p, &plan, 20, 5, 0, 4);
    r = (rows){p.u, p.dt, p.b, p.cc, p.z, op_array_make(LS_F32, 4, 20, 0)};
    op_guard(&r.out);
    op_guard(&untouched);
    for (int32_t t = 0; t < OP_THREADS_MAX; t++) {
        args = rows_args(&p, &r, idle, OP_COUNT(idle), &pool.view);
        assert_ok(ls_scan(op_devices[isa][t], &args, &err), err);
        args = rows_args(&p, &r, bad, OP_COUNT(bad), &pool.view);
        check_failed(ls_scan(op_devices[isa][t], &args, &err), &err, "span 1");
        check_failed(ls_scan(op_devices[isa][t], &args, &err), &err, "slot 9");
        op_check(&untouched, &r.out, OP_NAN_PINNED, "padding or a bad slot");
        op_pool_check_others(&pool, NULL, 0, "padding or a bad slot");
    }
    op_array_free(&r.out);
    op_array_free(&untouched);
    op_pool_free(&pool);
    problem_free(&p);
}

static void offsets_pass_32_bits(void **state) {
    const ls_isa isa = op_isa(state);
    const int64_t few[SPARSE_LISTED] = {2, 1, 3, 1, 2, 1};
    const op_plan plan = op_plan_make(SPARSE_LISTED, few, sparse_slots);
    const ls_pool_view pool = sparse_open();
    ls_pool_view scan_view = pool;
    problem p;
    char text[200];
    problem_make(&p, &plan, SPARSE_DIM, SPARSE_STATES, 3, 2);
    /* Payloads of NaN are open; this case compares bytes. */
    for (int64_t i = 0; i < p.u.rows; i++) {
        uint64_t seed = (uint64_t)i + 1;
        op_fill_row(&p.u, i, op_plain, &seed);
        op_fill_row(&p.dt, i, op_wide, &seed);
        op_fill_row(&p.b, i, op_plain, &seed);
    }
    scan_ref(&p, &p.out, &p.state, RIGHT);
    scan_view.base += SPARSE_CONV_BYTES;
    drive(&p, &scan_view, op_devices[isa][1], 2, false, 1);
    if (sparse_damage(&pool, &p.state, SPARSE_CONV_BYTES, text) != 0) fail_msg("scan: %s", text);
    sparse_control(&pool, &p.state, SPARSE_CONV_BYTES);
    problem_free(&p);
    sparse_close(&pool);
}

/* Against float64 over 4,096 tokens: the error does not grow with length, because every factor is below 1. */
static void accurate_within_1e_6_of_the_terms(void **state) {
    enum { LENGTH = 4096, DIM = 8, STATES = 16 };
    const ls_isa isa = op_isa(state);
    const int64_t length[] = {LENGTH};
    const op_plan plan = op_plan_make(1, length, slots);
    double h[DIM][STATES] = {{0}}, size[DIM][STATES] = {{0}}, worst = 0.0;
    op_pool pool = op_pool_make(8, DIM * STATES * 4, 0);
    problem p;
    problem_make(&p, &plan, DIM, STATES, 0, 4);
    drive(&p, &pool.view, op_devices[isa][0], 64, true, 1);
    for (int64_t t = 0; t < LENGTH; t++)
        for (int64_t c = 0; c < DIM; c++) {
            const double raw = (double)op_get(&p.dt, t, c) + p.dt_bias[c], dt = log1p(exp(raw)), u = op_get(&p.u, t, c);
            const double z = op_get(&p.z, t, c), gate = z / (1.0 + exp(-z));
            double y = p.d[c] * u, y_size = fabs(y), error;
            for (int64_t s = 0; s < STATES; s++) {
                const double decay = exp2(dt * p.a2[c * STATES + s]), fresh = dt * u * op_get(&p.b, t, s);
                h[c][s] = decay * h[c][s] + fresh;
                size[c][s] = decay * size[c][s] + fabs(fresh);
                y += h[c][s] * op_get(&p.cc, t, s);
                y_size += size[c][s] * fabs(op_get(&p.cc, t, s));
            }
            error = fabs(op_get(&p.out, t, c) - y * gate) / (y_size * fabs(gate));
            if (error > worst) worst = error;
        }
    print_message("worst error %.3g of the sum of |terms|\n", worst);
    assert_true(worst < 1e-6);
    op_pool_free(&pool);
    problem_free(&p);
}

/* ---- time and memory ---- */

typedef struct scanning {
    const ls_scan_args *args;
    ls_device *device;
} scanning;

static void scan_first(void *context, int64_t n) {
    const scanning *s = context;
    const ls_span span = {0, n, 0, 0, 0};
    ls_scan_args part = *s->args;
    ls_error err;
    part.spans = &span;
    part.n_spans = 1;
    assert_ok(ls_scan(s->device, &part, &err), err);
}

/* Four times the tokens take about four times the time (bounds are generous: machines are shared) and no memory. */
static void linear_in_time_and_constant_in_memory(void **state) {
    enum { LENGTH = 2048, DIM = 64, STATES = 16 };
    const ls_isa isa = op_isa(state);
    const int64_t length[] = {4 * LENGTH};
    const op_plan plan = op_plan_make(1, length, slots);
    op_pool pool = op_pool_make(1, DIM * STATES * 4, 0);
    struct mallinfo2 heap_before, heap_after;
    struct rusage before, after;
    scanning first;
    double ratio;
    problem p;
    rows r;
    ls_scan_args args;
    problem_alloc(&p, &plan, DIM, STATES, LS_F32, LS_F32, 1);
    op_guard(&p.out);
    r = (rows){p.u, p.dt, p.b, p.cc, p.z, p.out};
    args = rows_args(&p, &r, NULL, 0, &pool.view);
    first = (scanning){&args, op_devices[isa][0]};
    scan_first(&first, LENGTH);
    getrusage(RUSAGE_SELF, &before);
    heap_before = mallinfo2();
    ratio = test_growth(scan_first, &first, LENGTH, 2.0, 8.0);
    heap_after = mallinfo2();
    getrusage(RUSAGE_SELF, &after);
    print_message("%d tokens to %d: %.2f times the time\n", LENGTH, 4 * LENGTH, ratio);
    assert_true(ratio >= 2.0 && ratio <= 8.0);
    assert_int_equal(heap_before.uordblks, heap_after.uordblks);
    assert_int_equal(heap_before.hblks, heap_after.hblks);
    assert_int_equal(before.ru_maxrss, after.ru_maxrss);
    op_pool_free(&pool);
    problem_free(&p);
}

static void variants_are_caught(void **state) {
    const variant wrong[] = {NAIVE_SOFTPLUS, ONE_CHAIN, PLAIN_EXP, STATE_BF16, NO_FMA};
    const op_plan plan = op_plan_make(OP_COUNT(lengths), lengths, slots);
    op_array out, states;
    char text[160];
    problem p;
    (void)state;
    problem_make(&p, &plan, 9, 16, 0, 8);
    out = op_array_make(LS_F32, p.out.rows, 9, 0);
    states = op_array_make(LS_F32, plan.n_seqs, p.state.cols, 0);
    scan_ref(&p, &out, &states, RIGHT);
    assert_int_equal(op_diffs(&p.out, &out, OP_NAN_ANY, text), 0);
    assert_int_equal(op_diffs(&p.state, &states, OP_NAN_ANY, text), 0);
    for (int64_t i = 0; i < OP_COUNT(wrong); i++) {
        scan_ref(&p, &out, &states, wrong[i]);
        assert_true(op_diffs(&p.out, &out, OP_NAN_ANY, text) > 0);
        assert_true(wrong[i] == ONE_CHAIN || op_diffs(&p.state, &states, OP_NAN_ANY, text) > 0);
    }
    op_array_free(&out);
    op_array_free(&states);
    problem_free(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        OP_CASES(every_cut_equals_the_whole),        OP_CASES(wide_rows_equal_the_textbook),
        OP_CASES(untouched_rows_and_slots),          OP_CASES(offsets_pass_32_bits),
        OP_CASES(accurate_within_1e_6_of_the_terms), OP_CASES(linear_in_time_and_constant_in_memory),
        cmocka_unit_test(variants_are_caught),
    };
    return cmocka_run_group_tests(tests, op_open, op_close);
}
