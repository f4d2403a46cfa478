/* Expert routing and the ordered combination against a textbook reading of their contract, bit for bit: shapes, ties,
 * instruction sets, threads, rows alone and permuted; accuracy; variants that must be caught. */
#include "op/moe.h"
#include "op/op_case.h"

/* Wrong on purpose: the chosen weights scaled to sum 1, the higher expert first among equals, the sum in descending
 * order, logits in place of p when the best are chosen. */
typedef enum variant { RIGHT, RENORMALISED, HIGHER_FIRST, SUM_DESCENDING, ORDER_BY_LOGIT } variant;

static void route_ref_row(const float *logit, int64_t n, int64_t top_k, int32_t *expert, float *weight, variant v) {
    float p[LS_EXPERTS_MAX], m = logit[0], sum = 0.0f, kept = 0.0f;
    bool chosen[LS_EXPERTS_MAX] = {false};
    int64_t at = 0;
    for (int64_t e = 1; e < n; e++) m = ls_max(m, logit[e]);
    for (int64_t e = 0; e < n; e++) p[e] = ls_exp(ls_sub(logit[e], m));
    for (int64_t i = 0; i < n; i++) sum = ls_add(sum, p[v == SUM_DESCENDING ? n - 1 - i : i]);
    for (int64_t e = 0; e < n; e++) p[e] = ls_div(p[e], sum);
    for (int64_t k = 0; k < top_k; k++) {
        const float *key = v == ORDER_BY_LOGIT ? logit : p;
        int64_t best = -1;
        for (int64_t e = 0; e < n; e++)
            if (!chosen[e] && (best < 0 || key[e] > key[best] || (v == HIGHER_FIRST && key[e] == key[best]))) best = e;
        chosen[best] = true;
        kept = ls_add(kept, p[best]);
    }
    for (int64_t e = 0; e < n; e++)
        if (chosen[e]) {
            expert[at] = (int32_t)e;
            weight[at++] = v == RENORMALISED ? ls_div(p[e], kept) : p[e];
        }
}

typedef struct problem {
    int64_t rows, n, top_k;
    float *logits, *weight, *expected_weight;
    int32_t *expert, *expected_expert;
} problem;

static void route_ref(problem *p, variant v, int32_t *expert, float *weight) {
    for (int64_t r = 0; r < p->rows; r++)
        route_ref_row(p->logits + r * p->n, p->n, p->top_k, expert + r * p->top_k, weight + r * p->top_k, v);
}

static problem problem_make(int64_t rows, int64_t n, int64_t top_k, bool ties, uint64_t seed) {
    problem p = {rows, n, top_k, op_alloc(rows * n * 4), NULL, NULL, NULL, NULL};
    p.weight = op_alloc(rows * top_k * 4);
    p.expected_weight = op_alloc(rows * top_k * 4);
    p.expert = op_alloc(rows * top_k * 4);
    p.expected_expert = op_alloc(rows * top_k * 4);
    /* Ties: a few levels only, both zeros among them. */
    for (int64_t i = 0; i < rows * n; i++) {
        const float x = op_wide(&seed);
        p.logits[i] = !ties ? x : x < -6.0f ? -0.0f : floorf(x / 4.0f);
    }
    route_ref(&p, RIGHT, p.expected_expert, p.expected_weight);
    return p;
}

static void problem_free(problem *p) {
    free(p->logits);
    free(p->weight);
    free(p->expected_weight);
    free(p->expert);
    free(p->expected_expert);
}

static int64_t problem_diffs(const problem *p, const int32_t *expert, const float *weight) {
    int64_t diffs = count_bit_diffs(p->expected_weight, weight, p->rows * p->top_k);
    for (int64_t i = 0; i < p->rows * p->top_k; i++) diffs += p->expected_expert[i] != expert[i];
    return diffs;
}

static void problem_check(problem *p, ls_isa isa) {
    const ls_moe_route_args args = {p->logits, p->rows, p->n, p->top_k, p->expert, p->weight};
    ls_error err;
    for (int32_t t = 0; t < OP_THREADS_MAX; t++) {
        int64_t diffs;
        memset(p->expert, OP_GUARD, (size_t)(p->rows * p->top_k * 4));
        memset(p->weight, OP_GUARD, (size_t)(p->rows * p->top_k * 4));
        assert_ok(ls_moe_route(op_devices[isa][t], &args, &err), err);
        diffs = problem_diffs(p, p->expert, p->weight);
        if (diffs != 0)
            fail_msg("rows %lld experts %lld top_k %lld threads %d: %lld differ", (long long)p->rows, (long long)p->n,
                     (long long)p->top_k, t + 1, (long long)diffs);
    }
}

static void routes_equal_the_textbook(void **state) {
    const ls_isa isa = op_isa(state);
    const int64_t experts[] = {1, 2, 3, 7, 8, 16, 17, 64, 255, LS_EXPERTS_MAX}, top_ks[] = {1, 2, 3, 8, 1 << 20};
    uint64_t seed = 6;
    for (int64_t e = 0; e < OP_COUNT(experts); e++)
        for (int64_t k = 0; k < OP_COUNT(top_ks); k++)
            for (int64_t rows = 1; rows < 40; rows += 18)
                for (int ties = 0; ties < 2; ties++) {
                    const int64_t top_k = top_ks[k] < experts[e] ? top_ks[k] : experts[e];
                    problem p;
                    if (top_k > 16 && (rows > 1 || experts[e] > 64)) continue;
                    p = problem_make(rows, experts[e], top_k, ties, test_random(&seed));
                    problem_check(&p, isa);
                    problem_free(&p);
                }
}

/* All equal: the lowest experts, each with exactly 1/16. Different logits of equal p are ties too. */
static void lowest_expert_wins_ties(void **state) {
    const ls_isa isa = op_isa(state);
    problem p = problem_make(3, 16, 2, false, 1);
    for (int64_t i = 0; i < 16; i++) {
        p.logits[i] = 0.3f;
        p.logits[16 + i] = i == 5 || i == 11 || i == 14 ? 4.0f : i < 3 ? -0.0f : 0.0f;
        /* exp(-200) and exp(-150) are both +0: after the one large p, expert 1 is the lowest of equals. */
        p.logits[32 + i] = i == 9 ? 0.0f : i == 1 ? -200.0f : i == 0 ? -INFINITY : -150.0f;
    }
    route_ref(&p, RIGHT, p.expected_expert, p.expected_weight);
    problem_check(&p, isa);
    assert_true(p.expert[0] == 0 && p.expert[1] == 1 && p.weight[0] == 0.0625f && p.weight[1] == 0.0625f);
    assert_true(p.expert[2] == 5 && p.expert[3] == 11);
    assert_true(p.expert[4] == 0 && p.expert[5] == 9 && p.weight[4] == 0.0f && p.weight[5] == 1.0f);
    problem_free(&p);
}

/* Nothing to compare: NaN for every weight, and experts that exist. */
static void rows_without_an_order(void **state) {
    const ls_isa isa = op_isa(state);
    problem p = problem_make(4, 16, 3, false, 1);
    const ls_moe_route_args args = {p.logits, p.rows, p.n, p.top_k, p.expert, p.weight};
    ls_error err;
    p.logits[7] = NAN;
    p.logits[16 + 15] = INFINITY;
    for (int64_t e = 0; e < 16; e++) {
        p.logits[32 + e] = -INFINITY;
        p.logits[48 + e] = NAN;
    }
    assert_ok(ls_moe_route(op_devices[isa][2], &args, &err), err);
    for (int64_t i = 0; i < 12; i++) {
        assert_int_equal(p.expert[i], i % 3);
        assert_true(p.weight[i] != p.weight[i]);
    }
    problem_free(&p);
}

static void rows_do_not_see_each_other(void **state) {
    enum { ROWS = 29, N = 16, K = 2 };
    const ls_isa isa = op_isa(state);
    problem p = problem_make(ROWS, N, K, false, 9);
    float shuffled[ROWS * N], weight[ROWS * K];
    int32_t expert[ROWS * K];
    ls_moe_route_args args = {p.logits, 1, N, K, p.expert, p.weight};
    ls_error err;
    /* Neighbours that overflow, vanish or are NaN. */
    for (int64_t r = 0; r < ROWS; r += 4)
        for (int64_t e = 0; e < N; e++) p.logits[r * N + e] = r % 8 == 0 ? NAN : (float)(e % 3) * 1e38f - 2e38f;
    for (int64_t r = 0; r < ROWS; r++) {
        args.logits = p.logits + r * N;
        args.expert = p.expected_expert + r * K;
        args.weight = p.expected_weight + r * K;
        assert_ok(ls_moe_route(op_devices[isa][r % OP_THREADS_MAX], &args, &err), err);
        memcpy(shuffled + r * 5 % ROWS * N, p.logits + r * N, sizeof(float) * N);
    }
    args = (ls_moe_route_args){shuffled, ROWS, N, K, expert, weight};
    for (int32_t t = 0; t < OP_THREADS_MAX; t++) {
        assert_ok(ls_moe_route(op_devices[isa][t], &args, &err), err);
        for (int64_t r = 0; r < ROWS; r++) {
            assert_memory_equal(expert + r * 5 % ROWS * K, p.expected_expert + r * K, K * 4);
            assert_memory_equal(weight + r * 5 % ROWS * K, p.expected_weight + r * K, K * 4);
        }
    }
    problem_free(&p);
}

/* Weights of logits without a NaN are the softmax over all experts to within 1e-6, and not scaled to sum 1. */
static void accurate_within_1e_6(void **state) {
    const ls_isa isa = op_isa(state);
    problem p = problem_make(200, 16, 2, false, 10);
    double worst = 0.0, most = 0.0;
    problem_check(&p, isa);
    for (int64_t r = 0; r < p.rows; r++) {
        double sum = 0.0;
        for (int64_t e = 0; e < p.n; e++) sum += exp((double)p.logits[r * p.n + e]);
        for (int64_t k = 0; k < p.top_k; k++) {
            const double exact = exp((double)p.logits[r * p.n + p.expert[r * p.top_k + k]]) / sum;
            const double error = fabs(p.weight[r * p.top_k + k] / exact - 1.0);
            if (error > worst) worst = error;
        }
        if (1.0 - (p.weight[2 * r] + p.weight[2 * r + 1]) > most) most = 1.0 - (p.weight[2 * r] + p.weight[2 * r + 1]);
    }
    print_message("worst relative error %.3g\n", worst);
    assert_true(worst < 1e-6 && most > 0.1);
    problem_free(&p);
}

/* ---- combination ---- */

static void combine_adds_chosen_rows(void **state) {
    const ls_isa isa = op_isa(state);
    const int64_t dims[] = {1, 7, 8, 16, 17, 255, 256, 257, 2560}, counts[] = {0, 1, 3, 20};
    uint64_t seed = 2;
    for (int64_t d = 0; d < OP_COUNT(dims); d++)
        for (int64_t i = 0; i < OP_COUNT(counts); i++) {
            enum { ROWS = 23 };
            const int64_t n = counts[i], dim = dims[d];
            op_array y = op_array_make(LS_F32, n, dim, 0), start = op_array_make(LS_F32, ROWS, dim, 0);
            op_array acc = op_array_make(LS_F32, ROWS, dim, 0), expected = op_array_make(LS_F32, ROWS, dim, 0);
            int64_t rows[ROWS];
            float weight[ROWS];
            op_fill(&y, op_special, &seed);
            op_fill(&start, op_special, &seed);
            memcpy(expected.data, start.data, (size_t)start.bytes);
            for (int64_t r = 0; r < n; r++) {
                rows[r] = r * 7 % ROWS;
                weight[r] = test_uniform(&seed, 0.0f, 1.0f);
                for (int64_t c = 0; c < dim; c++)
                    op_put(&expected, rows[r], c, ls_fma(weight[r], op_get(&y, r, c), op_get(&start, rows[r], c)));
            }
            for (int32_t t = 0; t < OP_THREADS_MAX; t++) {
                const ls_moe_combine_args args = {
                    (const float *)(const void *)y.data, rows, weight, (float *)(void *)acc.data, n, dim, NULL};
                ls_error err;
                memcpy(acc.data, start.data, (size_t)acc.bytes);
                assert_ok(ls_moe_combine(op_devices[isa][t], &args, &err), err);
                op_check(&expected, &acc, OP_NAN_ANY, "combine n %lld dim %lld threads %d", (long long)n,
                         (long long)dim, t + 1);
            }
            op_array_free(&y);
            op_array_free(&start);
            op_array_free(&acc);
            op_array_free(&expected);
        }
}

/* Rows through route and combine as a layer does it, any batch: acc = fma(p_e, y_e, acc) over the chosen experts, e
 * ascending, from +0. expert_output stands for what the feed-forward of expert e makes of row r. */
static float expert_output(int64_t e, int64_t r, int64_t c) {
    uint64_t seed = (uint64_t)(e * 1000003 + r * 1009 + c + 1);
    test_random(&seed);
    return op_plain(&seed);
}

static void layer(ls_device *device, const problem *p, int64_t first, int64_t n_rows, int64_t dim, float *acc) {
    float *y = op_alloc(n_rows * dim * 4), *picked = op_alloc(n_rows * 4);
    int64_t *rows = op_alloc(n_rows * 8);
    for (int64_t i = 0; i < n_rows * dim; i++) acc[i] = 0.0f;
    for (int64_t e = 0; e < p->n; e++) {
        ls_moe_combine_args args = {y, rows, picked, acc, 0, dim, NULL};
        ls_error err;
        for (int64_t r = 0; r < n_rows; r++)
            for (int64_t k = 0; k < p->top_k; k++)
                if (p->expert[(first + r) * p->top_k + k] == e) {
                    picked[args.n] = p->weight[(first + r) * p->top_k + k];
                    for (int64_t c = 0; c < dim; c++) y[args.n * dim + c] = expert_output(e, first + r, c);
                    rows[args.n++] = r;
                }
        assert_ok(ls_moe_combine(device, &args, &err), err);
    }
    free(y);
    free(picked);
    free(rows);
}

static void combination_is_in_ascending_order(void **state) {
    enum { ROWS = 31, DIM = 37 };
    const ls_isa isa = op_isa(state);
    problem p = problem_make(ROWS, 16, 4, false, 21);
    float whole[ROWS * DIM], part[ROWS * DIM];
    int64_t descending_differs = 0;
    problem_check(&p, isa);
    layer(op_devices[isa][1], &p, 0, ROWS, DIM, whole);
    for (int64_t r = 0; r < ROWS; r++)
        for (int64_t c = 0; c < DIM; c++) {
            float up = 0.0f, down = 0.0f;
            for (int64_t k = 0; k < 4; k++) {
                const int64_t a = r * 4 + k, d = r * 4 + 3 - k;
                up = ls_fma(p.expected_weight[a], expert_output(p.expected_expert[a], r, c), up);
                down = ls_fma(p.expected_weight[d], expert_output(p.expected_expert[d], r, c), down);
            }
            assert_int_equal(ls_bits(up), ls_bits(whole[r * DIM + c]));
            descending_differs += ls_bits(down) != ls_bits(up);
        }
    assert_true(descending_differs > 0);
    for (int64_t size = 1; size < 20; size += 6)
        for (int64_t first = 0; first < ROWS; first += size) {
            const int64_t n = first + size < ROWS ? size : ROWS - first;
            layer(op_devices[isa][size % OP_THREADS_MAX], &p, first, n, DIM, part);
            assert_same_bits(part, whole + first * DIM, n * DIM);
        }
    problem_free(&p);
}

static void variants_are_caught(void **state) {
    const variant wrong[] = {RENORMALISED, HIGHER_FIRST, SUM_DESCENDING, ORDER_BY_LOGIT};
    (void)state;
    for (int64_t i = 0; i < OP_COUNT(wrong); i++) {
        problem p = problem_make(20, 16, 2, wrong[i] == HIGHER_FIRST, 5);
        if (wrong[i] == ORDER_BY_LOGIT)
            for (int64_t e = 0; e < 16; e++) p.logits[e] = e == 9 ? 0.0f : -150.0f + (float)e;
        route_ref(&p, RIGHT, p.expected_expert, p.expected_weight);
        route_ref(&p, RIGHT, p.expert, p.weight);
        assert_int_equal(problem_diffs(&p, p.expert, p.weight), 0);
        route_ref(&p, wrong[i], p.expert, p.weight);
        assert_true(problem_diffs(&p, p.expert, p.weight) > 0);
        problem_free(&p);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        OP_CASES(routes_equal_the_textbook),
        OP_CASES(lowest_expert_wins_ties),
        OP_CASES(rows_without_an_order),
        OP_CASES(rows_do_not_see_each_other),
        OP_CASES(accurate_within_1e_6),
        OP_CASES(combine_adds_chosen_rows),
        OP_CASES(combination_is_in_ascending_order),
        cmocka_unit_test(variants_are_caught),
    };
    return cmocka_run_group_tests(tests, op_open, op_close);
}
