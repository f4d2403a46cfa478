/* Causal convolution against a textbook reading of its contract, bit for bit. The reference convolves whole sequences
 * and knows no state; the op sees them in every kind of span, batch and slot. */
#define _GNU_SOURCE
#include "op/conv1d.h"
#include "op/op_case.h"
#include "op/op_sparse.h"

typedef struct problem {
    op_plan plan; /* sequences, not yet begun */
    int64_t dim, d_conv;
    op_array x, y;  /* tokens of all sequences; y is expected */
    op_array state; /* [n_seqs][(d_conv - 1) * dim], expected after the last token */
    float *w, *bias;
    ls_dtype state_dtype;
} problem;

/* Wrong on purpose: newest tap first, the input not rounded to the state's type, bias added last. */
typedef enum variant { RIGHT, NEWEST_FIRST, INPUT_UNROUNDED, BIAS_LAST } variant;

/* x' of token t of sequence s; +0 before its first token. */
static float input_at(const problem *p, int64_t s, int64_t t, int64_t c, variant v) {
    const float x = t < 0 ? 0.0f : op_get(&p->x, p->plan.offset[s] + t, c);
    return v == INPUT_UNROUNDED ? x : op_round(x, p->state_dtype);
}

static void conv_ref(const problem *p, const op_array *y, variant v) {
    for (int64_t s = 0; s < p->plan.n_seqs; s++)
        for (int64_t t = 0; t < p->plan.length[s]; t++)
            for (int64_t c = 0; c < p->dim; c++) {
                const float bias = p->bias == NULL ? 0.0f : p->bias[c];
                float a = v == BIAS_LAST ? 0.0f : bias;
                for (int64_t i = 0; i < p->d_conv; i++) {
                    const int64_t k = v == NEWEST_FIRST ? p->d_conv - 1 - i : i;
                    a = ls_fma(p->w[k * p->dim + c], input_at(p, s, t - (p->d_conv - 1) + k, c, v), a);
                }
                if (v == BIAS_LAST) a = ls_add(a, bias);
                op_put(y, p->plan.offset[s] + t, c, ls_silu(a));
            }
}

static void state_ref(const problem *p) {
    for (int64_t s = 0; s < p->plan.n_seqs; s++)
        for (int64_t i = 0; i < (p->d_conv - 1) * p->dim; i++)
            op_put(&p->state, s, i,
                   input_at(p, s, p->plan.length[s] - (p->d_conv - 1) + i / p->dim, i % p->dim, RIGHT));
}

/* combo: one bit each for the types of x, y and state, then 8 for no bias. */
static problem problem_make(const op_plan *plan, int64_t dim, int64_t d_conv, int64_t combo, uint64_t seed) {
    const ls_dtype types[] = {LS_F32, LS_BF16};
    problem p;
    memset(&p, 0, sizeof p);
    p.plan = *plan;
    p.dim = dim;
    p.d_conv = d_conv;
    p.state_dtype = types[combo / 4 % 2];
    p.x = op_array_make(types[combo % 2], op_plan_rows(plan), dim, 0);
    p.y = op_array_make(types[combo / 2 % 2], op_plan_rows(plan), dim, 0);
    p.state = op_array_make(p.state_dtype, plan->n_seqs, (d_conv - 1) * dim, 0);
    p.w = op_alloc(d_conv * dim * 4);
    for (int64_t i = 0; i < d_conv * dim; i++) p.w[i] = op_plain(&seed);
    if (combo < 8) p.bias = op_alloc(dim * 4);
    for (int64_t c = 0; c < dim && p.bias != NULL; c++) p.bias[c] = op_plain(&seed);
    /* Odd sequences hold NaN, infinities and denormals; even ones are their finite neighbours. */
    for (int64_t s = 0; s < plan->n_seqs; s++)
        for (int64_t t = 0; t < plan->length[s]; t++)
            op_fill_row(&p.x, plan->offset[s] + t, s % 2 ? op_special : op_wide, &seed);
    conv_ref(&p, &p.y, RIGHT);
    state_ref(&p);
    return p;
}

static void problem_free(problem *p) {
    op_array_free(&p->x);
    op_array_free(&p->y);
    op_array_free(&p->state);
    free(p->w);
    free(p->bias);
}

static ls_conv1d_args problem_args(const problem *p, const op_array *x, const op_array *y, const op_batch *batch,
                                   const ls_pool_view *pool) {
    const ls_conv1d_args args = {.x = x->data,
                                 .x_dtype = x->dtype,
                                 .y_dtype = y->dtype,
                                 .state_dtype = p->state_dtype,
                                 .x_stride = x->stride,
                                 .w = p->w,
                                 .bias = p->bias,
                                 .y = y->data,
                                 .y_stride = y->stride,
                                 .rows = x->rows,
                                 .dim = p->dim,
                                 .d_conv = p->d_conv,
                                 .state = *pool,
                                 .spans = batch->spans,
                                 .n_spans = batch->n_spans};
    return args;
}

/* y rounded once more, where there are tokens. */
static op_array rounded_of(const op_array *y, const op_batch *batch) {
    const op_array rounded = op_array_make(LS_BF16, y->rows, y->cols, 3);
    op_guard(&rounded);
    for (int64_t i = 0; i < batch->n_spans; i++)
        for (int64_t t = 0; t < batch->spans[i].n_rows && batch->spans[i].slot >= 0; t++)
            for (int64_t c = 0; c < y->cols; c++)
                op_put(&rounded, batch->spans[i].row + t, c, op_get(y, batch->spans[i].row + t, c));
    return rounded;
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
        const int64_t x_pad = (int64_t)(test_random(&plan.seed) % 4), y_pad = (int64_t)(test_random(&plan.seed) % 4);
        op_array x = op_gather(&p->x, &batch, OP_POISON, x_pad), expected = op_gather(&p->y, &batch, OP_GUARD, y_pad);
        op_array y = op_array_make(p->y.dtype, batch.n_rows, p->dim, y_pad);
        op_array rounded = op_array_make(LS_BF16, batch.n_rows, p->dim, 3), again = rounded_of(&expected, &batch);
        ls_conv1d_args args = problem_args(p, &x, &y, &batch, pool);
        ls_error err;
        op_guard(&y);
        op_guard(&rounded);
        args.rounded = y.dtype == LS_F32 ? (uint16_t *)(void *)rounded.data : NULL;
        args.rounded_stride = rounded.stride;
        assert_ok(ls_conv1d(device, &args, &err), err);
        if (args.rounded != NULL) op_check(&again, &rounded, OP_NAN_PINNED, "rounded, dim %lld", (long long)p->dim);
        op_check(&expected, &y, OP_NAN_PINNED, "dim %lld taps %lld x %s y %s state %s bias %d threads %d chunk %lld%s",
                 (long long)p->dim, (long long)p->d_conv, ls_dtype_name(x.dtype), ls_dtype_name(y.dtype),
                 ls_dtype_name(p->state_dtype), p->bias != NULL, ls_pool_threads(device->exec.workers->pool),
                 (long long)chunk, alone ? " alone" : "");
        op_array_free(&x);
        op_array_free(&y);
        op_array_free(&expected);
        op_array_free(&rounded);
        op_array_free(&again);
    }
    free(batch.source);
}

static void problem_check(const problem *p, ls_isa isa) {
    const int64_t entry_bytes = (p->d_conv - 1) * p->dim * ls_dtype_bytes(p->state_dtype);
    op_pool pool = op_pool_make(12, entry_bytes, p->dim % 2 ? 12 : 4);
    for (int64_t i = 0; i < 2 * OP_COUNT(op_chunks); i++) {
        op_array got = op_array_make(p->state_dtype, p->plan.n_seqs, p->state.cols, 0);
        op_pool_poison(&pool);
        drive(p, &pool.view, op_devices[isa][i % OP_THREADS_MAX], op_chunks[i / 2], i % 2 == 1, (uint64_t)i + 1);
        for (int64_t s = 0; s < p->plan.n_seqs; s++)
            memcpy(op_at(&got, s, 0), ls_pool_at(&pool.view, p->plan.slot[s]), (size_t)entry_bytes);
        op_check(&p->state, &got, OP_NAN_ANY, "state: dim %lld taps %lld type %s chunk %lld", (long long)p->dim,
                 (long long)p->d_conv, ls_dtype_name(p->state_dtype), (long long)op_chunks[i / 2]);
        op_pool_check_others(&pool, p->plan.slot, p->plan.n_seqs, "conv1d");
        op_array_free(&got);
    }
    op_pool_free(&pool);
}

/* Sequences shorter than the window, as long as it, and longer than two chunks of 64. */
static const int64_t lengths[] = {1, 2, 3, 5, 4, 131, 67};
static const int32_t slots[] = {7, 3, 11, 1, 9, 5, 0};

static void every_cut_equals_the_whole(void **state) {
    const ls_isa isa = op_isa(state);
    const int64_t dims[] = {1, 7, 16, 17, 63, 64, 65, 130};
    const op_plan plan = op_plan_make(OP_COUNT(lengths), lengths, slots);
    uint64_t seed = 3;
    for (int64_t d = 0; d < OP_COUNT(dims); d++)
        for (int64_t d_conv = 1; d_conv <= 5; d_conv++) {
            problem p = problem_make(&plan, dims[d], d_conv, (d + 3 * d_conv) % 16, test_random(&seed));
            problem_check(&p, isa);
            problem_free(&p);
        }
}

static void every_type_equals_the_textbook(void **state) {
    const ls_isa isa = op_isa(state);
    const op_plan plan = op_plan_make(OP_COUNT(lengths), lengths, slots);
    for (int64_t combo = 0; combo < 16; combo++)
        for (int64_t d_conv = 2; d_conv <= 4; d_conv += 2) {
            problem p = problem_make(&plan, 75, d_conv, combo, (uint64_t)(combo * 10 + d_conv));
            problem_check(&p, isa);
            problem_free(&p);
        }
}

static void wide_rows_equal_the_textbook(void **state) {
    const ls_isa isa = op_isa(state);
    const int64_t dims[] = {255, 256, 257, 2560}, few[] = {6, 2, 17};
    const op_plan plan = op_plan_make(OP_COUNT(few), few, slots);
    for (int64_t d = 0; d < OP_COUNT(dims); d++) {
        problem p = problem_make(&plan, dims[d], 4, 5 + 2 * d, (uint64_t)d + 50);
        problem_check(&p, isa);
        problem_free(&p);
    }
}

/* The widest window the header allows, and a bias of -0 under weights of +0 (its sign must survive or not as fma says).
 */
static void widest_window(void **state) {
    const ls_isa isa = op_isa(state);
    const op_plan plan = op_plan_make(OP_COUNT(lengths), lengths, slots);
    problem p = problem_make(&plan, 19, LS_CONV_WIDTH_MAX, 7, 1);
    problem_check(&p, isa);
    problem_free(&p);
    p = problem_make(&plan, 19, 3, 0, 1);
    memset(p.w, 0, (size_t)(3 * 19 * 4));
    for (int64_t c = 0; c < 19; c++) p.bias[c] = -0.0f;
    conv_ref(&p, &p.y, RIGHT);
    problem_check(&p, isa);
    problem_free(&p);
}

/* Spans without rows and spans of padding alone change neither rows nor slots. */
static void nothing_to_do_touches_nothing(void **state) {
    const ls_isa isa = op_isa(state);
    const int64_t length[] = {4};
    const op_plan plan = op_plan_make(1, length, slots);
    problem p = problem_make(&plan, 20, 4, 0, 4);
    op_pool pool = op_pool_make(9, 3 * 20 * 4, 4);
    op_array y = op_array_make(LS_F32, 4, 20, 0), untouched = op_array_make(LS_F32, 4, 20, 0);
    op_batch batch;
    memset(&batch, 0, sizeof batch);
    batch.n_spans = 4;
    batch.spans[0] = (ls_span){0, 3, 0, -1, 0};
    batch.spans[1] = (ls_span){3, 0, 5, 7, 0};
    batch.spans[2] = (ls_span){3, 1, 9, INT32_MIN, 0};
    batch.spans[3] = (ls_span){3, 0, 0, 2, 0};
    op_guard(&y);
    op_guard(&untouched);
    for (int32_t t = 0; t < OP_THREADS_MAX; t++) {
        const ls_conv1d_args args = problem_args(&p, &p.x, &y, &batch, &pool.view);
        ls_error err;
        assert_ok(ls_conv1d(op_devices[isa][t], &args, &err), err);
        op_check(&untouched, &y, OP_NAN_PINNED, "padding");
        op_pool_check_others(&pool, NULL, 0, "padding");
    }
    op_array_free(&y);
    op_array_free(&untouched);
    op_pool_free(&pool);
    problem_free(&p);
}

static void bad_slot_writes_nothing(void **state) {
    const ls_isa isa = op_isa(state);
    const int64_t length[] = {4};
    const op_plan plan = op_plan_make(1, length, slots);
    problem p = problem_make(&plan, 20, 4, 0, 4);
    op_pool pool = op_pool_make(9, 3 * 20 * 4, 4);
    op_array y = op_array_make(LS_F32, 4, 20, 0), untouched = op_array_make(LS_F32, 4, 20, 0);
    op_batch batch;
    ls_conv1d_args args;
    ls_error err;
    memset(&batch, 0, sizeof batch);
    batch.n_spans = 2;
    batch.spans[0] = (ls_span){0, 2, 0, 7, 0};
    batch.spans[1] = (ls_span){2, 2, 0, 9, 0};
    op_guard(&y);
    op_guard(&untouched);
    args = problem_args(&p, &p.x, &y, &batch, &pool.view);
    check_failed(ls_conv1d(op_devices[isa][1], &args, &err), &err, "span 1");
    check_failed(ls_conv1d(op_devices[isa][1], &args, &err), &err, "slot 9");
    op_check(&untouched, &y, OP_NAN_PINNED, "bad slot");
    op_pool_check_others(&pool, NULL, 0, "bad slot");
    op_array_free(&y);
    op_array_free(&untouched);
    op_pool_free(&pool);
    problem_free(&p);
}

static void offsets_pass_32_bits(void **state) {
    const ls_isa isa = op_isa(state);
    const int64_t few[SPARSE_LISTED] = {2, 5, 3, 1, 4, 6};
    const op_plan plan = op_plan_make(SPARSE_LISTED, few, sparse_slots);
    ls_pool_view pool = sparse_open();
    problem p = problem_make(&plan, SPARSE_DIM, SPARSE_CONV, 7, 2);
    char text[200];
    drive(&p, &pool, op_devices[isa][1], 2, false, 1);
    if (sparse_damage(&pool, &p.state, 0, text) != 0) fail_msg("conv1d: %s", text);
    sparse_control(&pool, &p.state, 0);
    problem_free(&p);
    sparse_close(&pool);
}

/* Against float64: d_conv fmas, each wrong by half an ulp of a partial sum, and silu. */
static void accurate_within_4e_7_of_the_terms(void **state) {
    const ls_isa isa = op_isa(state);
    const int64_t few[] = {200};
    const op_plan plan = op_plan_make(1, few, slots);
    problem p = problem_make(&plan, 64, 4, 0, 4);
    double worst = 0.0;
    problem_check(&p, isa);
    for (int64_t t = 0; t < few[0]; t++)
        for (int64_t c = 0; c < p.dim; c++) {
            double a = p.bias == NULL ? 0.0 : p.bias[c], size = fabs(a), error;
            for (int64_t k = 0; k < p.d_conv; k++) {
                const double term = (double)p.w[k * p.dim + c] * input_at(&p, 0, t - 3 + k, c, RIGHT);
                a += term;
                size += fabs(term);
            }
            error = fabs(op_get(&p.y, t, c) - a / (1.0 + exp(-a))) / size;
            if (error > worst) worst = error;
        }
    print_message("worst error %.3g of the sum of |terms|\n", worst);
    assert_true(worst < 4e-7);
    problem_free(&p);
}

static void variants_are_caught(void **state) {
    const variant wrong[] = {NEWEST_FIRST, INPUT_UNROUNDED, BIAS_LAST};
    const op_plan plan = op_plan_make(OP_COUNT(lengths), lengths, slots);
    problem p = problem_make(&plan, 9, 4, 4, 8);
    op_array y = op_array_make(p.y.dtype, p.y.rows, 9, 0);
    char text[160];
    (void)state;
    conv_ref(&p, &y, RIGHT);
    assert_int_equal(op_diffs(&p.y, &y, OP_NAN_PINNED, text), 0);
    for (int64_t i = 0; i < OP_COUNT(wrong); i++) {
        conv_ref(&p, &y, wrong[i]);
        assert_true(op_diffs(&p.y, &y, OP_NAN_PINNED, text) > 0);
    }
    op_array_free(&y);
    problem_free(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        OP_CASES(every_cut_equals_the_whole),    OP_CASES(every_type_equals_the_textbook),
        OP_CASES(wide_rows_equal_the_textbook),  OP_CASES(widest_window),
        OP_CASES(nothing_to_do_touches_nothing), OP_CASES(bad_slot_writes_nothing),
        OP_CASES(offsets_pass_32_bits),          OP_CASES(accurate_within_4e_7_of_the_terms),
        cmocka_unit_test(variants_are_caught),
    };
    return cmocka_run_group_tests(tests, op_open, op_close);
}
