/* Gradients of routing and combination against a textbook reading of their contract, bit for bit, and against central
 * differences of a float64 layer. */
#include "num/sum.h"
#include "op/moe_backward.h"
#include "op/op_grad.h"

static float *floats_of(const op_array *a) { return (float *)(void *)a->data; }

/* ---- routing ---- */

typedef struct routing {
    int64_t rows, n, top_k;
    op_array logits, d_weight; /* [rows][n], [rows][top_k] */
    int32_t *expert;           /* [rows][top_k], as the forward chooses */
} routing;

static routing routing_make(int64_t rows, int64_t n, int64_t top_k, op_maker make, uint64_t seed) {
    routing p = {rows,
                 n,
                 top_k,
                 op_array_make(LS_F32, rows, n, 0),
                 op_array_make(LS_F32, rows, top_k, 0),
                 op_alloc(rows * top_k * 4)};
    float *weight = op_alloc(rows * top_k * 4);
    const ls_moe_route_args args = {floats_of(&p.logits), rows, n, top_k, p.expert, weight};
    ls_error err;
    op_fill(&p.logits, make, &seed);
    op_fill(&p.d_weight, make == op_special ? op_special : op_plain, &seed);
    assert_ok(ls_moe_route(op_devices[0][0], &args, &err), err);
    free(weight);
    return p;
}

static void routing_free(routing *p) {
    op_array_free(&p->logits);
    op_array_free(&p->d_weight);
    free(p->expert);
}

static ls_moe_route_backward_args routing_args(const routing *p, const op_array *dlogits) {
    const ls_moe_route_backward_args args = {floats_of(&p->logits),   p->rows,           p->n, p->top_k, p->expert,
                                             floats_of(&p->d_weight), floats_of(dlogits)};
    return args;
}

/* Wrong on purpose: the softmax over the chosen only, the sum from the last expert on, the product taken apart. */
typedef enum variant { RIGHT, CHOSEN_ONLY, SUM_DESCENDING, PRODUCT_APART } variant;

static void route_ref(const routing *p, const op_array *dlogits, variant v) {
    for (int64_t r = 0; r < p->rows; r++) {
        float prob[LS_EXPERTS_MAX], g[LS_EXPERTS_MAX] = {0}, top = -INFINITY, total = 0.0f, sum = 0.0f;
        bool chosen[LS_EXPERTS_MAX] = {false};
        for (int64_t k = 0; k < p->top_k; k++) {
            const int32_t e = p->expert[r * p->top_k + k];
            chosen[e] = true;
            g[e] = op_get(&p->d_weight, r, k);
        }
        for (int64_t e = 0; e < p->n; e++) top = ls_max(op_get(&p->logits, r, e), top);
        for (int64_t e = 0; e < p->n; e++) {
            prob[e] = ls_exp(ls_sub(op_get(&p->logits, r, e), top));
            if (v == CHOSEN_ONLY && !chosen[e]) prob[e] = 0.0f;
            total = ls_add(total, prob[e]);
        }
        for (int64_t e = 0; e < p->n; e++) prob[e] = ls_div(prob[e], total);
        for (int64_t step = 0; step < p->n; step++) {
            const int64_t e = v == SUM_DESCENDING ? p->n - 1 - step : step;
            if (chosen[e]) sum = ls_fma(prob[e], g[e], sum);
        }
        for (int64_t e = 0; e < p->n; e++)
            op_put(dlogits, r, e,
                   v == PRODUCT_APART ? ls_sub(ls_mul(prob[e], g[e]), ls_mul(prob[e], sum))
                                      : ls_mul(prob[e], ls_sub(g[e], sum)));
    }
}

static void routes_equal_the_textbook(void **state) {
    const ls_isa isa = op_isa(state);
    const int64_t experts[] = {1, 2, 3, 8, 16, 17, 64, LS_EXPERTS_MAX}, top_ks[] = {1, 2, 3, 8, 1 << 20};
    const op_maker makers[] = {op_plain, op_wide, op_special};
    uint64_t seed = 6;
    for (int64_t i = 0; i < OP_COUNT(experts) * OP_COUNT(top_ks) * 3; i++) {
        const int64_t n = experts[i % OP_COUNT(experts)], most = top_ks[i / 3 % OP_COUNT(top_ks)];
        const int64_t rows = n > 64 ? 2 : (int64_t)(test_random(&seed) % 40);
        routing p = routing_make(rows, n, most < n ? most : n, makers[i % 3], test_random(&seed));
        op_array expected = op_array_make(LS_F32, rows, n, 0);
        route_ref(&p, &expected, RIGHT);
        for (int32_t t = 0; t < OP_THREADS_MAX; t++) {
            op_array got = op_array_make(LS_F32, rows, n, 0);
            const ls_moe_route_backward_args args = routing_args(&p, &got);
            ls_error err;
            op_guard(&got);
            assert_ok(ls_moe_route_backward(op_devices[isa][t], &args, &err), err);
            op_check(&expected, &got, OP_NAN_ANY, "rows %lld, top %lld of %lld, threads %d", (long long)rows,
                     (long long)p.top_k, (long long)n, t + 1);
            op_array_free(&got);
        }
        op_array_free(&expected);
        routing_free(&p);
    }
}

/* Each row as a call of its own, among neighbours that are NaN or overflow. */
static void rows_do_not_see_each_other(void **state) {
    enum { ROWS = 29, N = 16, K = 3 };
    const ls_isa isa = op_isa(state);
    routing p = routing_make(ROWS, N, K, op_wide, 9);
    op_array packed = op_array_make(LS_F32, ROWS, N, 0), alone = op_array_make(LS_F32, ROWS, N, 0);
    ls_moe_route_backward_args args = routing_args(&p, &packed);
    ls_error err;
    for (int64_t r = 0; r < ROWS; r += 4)
        for (int64_t e = 0; e < N; e++) op_put(&p.logits, r, e, r % 8 == 0 ? NAN : (float)(e % 3) * 1e38f - 2e38f);
    assert_ok(ls_moe_route_backward(op_devices[isa][2], &args, &err), err);
    for (int64_t r = 0; r < ROWS; r++) {
        args.rows = 1;
        args.logits = floats_of(&p.logits) + r * N;
        args.expert = p.expert + r * K;
        args.d_weight = floats_of(&p.d_weight) + r * K;
        args.dlogits = floats_of(&alone) + r * N;
        assert_ok(ls_moe_route_backward(op_devices[isa][r % OP_THREADS_MAX], &args, &err), err);
    }
    op_check(&alone, &packed, OP_NAN_ANY, "rows alone");
    op_array_free(&packed);
    op_array_free(&alone);
    routing_free(&p);
}

/* ---- combination ---- */

static float combine_ref(const op_array *y, int64_t row, const op_array *dacc, int64_t acc_row) {
    float chain[LS_SUM_CHAINS] = {0};
    for (int64_t c = 0; c < y->cols; c++)
        chain[c % 256] = ls_fma(op_get(y, row, c), op_get(dacc, acc_row, c), chain[c % 256]);
    return op_fold(chain);
}

static void combines_equal_the_textbook(void **state) {
    enum { ROWS = 23 };
    const ls_isa isa = op_isa(state);
    const int64_t dims[] = {1, 7, 8, 17, 255, 256, 257, 600, 2560}, counts[] = {0, 1, 3, 20};
    uint64_t seed = 2;
    for (int64_t i = 0; i < OP_COUNT(dims) * OP_COUNT(counts); i++) {
        const int64_t dim = dims[i % OP_COUNT(dims)], n = counts[i / OP_COUNT(dims)];
        op_array y = op_array_make(LS_F32, n, dim, 0), dacc = op_array_make(LS_F32, ROWS, dim, 0);
        op_array dy = op_array_make(LS_F32, n, dim, 0), dweight = op_array_make(LS_F32, 1, ROWS, 0);
        op_array expected_dy = op_array_make(LS_F32, n, dim, 0), expected_dweight = op_array_make(LS_F32, 1, ROWS, 0);
        int64_t rows[ROWS];
        float weight[ROWS];
        op_fill(&y, i % 2 ? op_special : op_plain, &seed);
        op_fill(&dacc, i % 2 ? op_special : op_plain, &seed);
        op_guard(&expected_dweight);
        for (int64_t r = 0; r < n; r++) {
            rows[r] = r * 7 % ROWS;
            weight[r] = test_uniform(&seed, 0.0f, 1.0f);
            op_put(&expected_dweight, 0, r, combine_ref(&y, r, &dacc, rows[r]));
            for (int64_t c = 0; c < dim; c++) op_put(&expected_dy, r, c, ls_mul(weight[r], op_get(&dacc, rows[r], c)));
        }
        /* The last time dy takes the place of y. */
        for (int32_t t = 0; t <= OP_THREADS_MAX; t++) {
            const op_array *into = t == OP_THREADS_MAX ? &y : &dy;
            const ls_moe_combine_backward_args args = {
                floats_of(&y), rows, weight, floats_of(&dacc), floats_of(into), floats_of(&dweight), n, dim, ROWS};
            ls_error err;
            op_guard(&dy);
            op_guard(&dweight);
            assert_ok(ls_moe_combine_backward(op_devices[isa][t % OP_THREADS_MAX], &args, &err), err);
            op_check(&expected_dy, into, OP_NAN_ANY, "dy, n %lld, dim %lld", (long long)n, (long long)dim);
            op_check(&expected_dweight, &dweight, OP_NAN_ANY, "dweight, n %lld, dim %lld", (long long)n,
                     (long long)dim);
        }
        op_array_free(&y);
        op_array_free(&dacc);
        op_array_free(&dy);
        op_array_free(&dweight);
        op_array_free(&expected_dy);
        op_array_free(&expected_dweight);
    }
}

/* ---- truth ---- */

enum { T_ROWS = 7, T_N = 6, T_K = 2, T_DIM = 40 };

/* A layer in float64: rows of logits, the outputs of every expert, and the experts that were chosen. */
typedef struct exact {
    double logits[T_ROWS * T_N], y[T_N * T_ROWS * T_DIM], dout[T_ROWS * T_DIM];
    const int32_t *expert;
} exact;

/* The sum of dout * out. */
static double exact_loss(const void *context) {
    const exact *e = context;
    double loss = 0.0;
    for (int64_t r = 0; r < T_ROWS; r++) {
        double total = 0.0;
        for (int64_t i = 0; i < T_N; i++) total += exp(e->logits[r * T_N + i]);
        for (int64_t k = 0; k < T_K; k++) {
            const int64_t of = e->expert[r * T_K + k];
            for (int64_t c = 0; c < T_DIM; c++)
                loss +=
                    exp(e->logits[r * T_N + of]) / total * e->y[(of * T_ROWS + r) * T_DIM + c] * e->dout[r * T_DIM + c];
        }
    }
    return loss;
}

static void widen_to(double *to, const op_array *from) {
    for (int64_t i = 0; i < from->rows * from->cols; i++) to[i] = (double)floats_of(from)[i];
}

/* Both ops as a layer calls them; every gradient is within 1e-5 of the largest of its kind. */
static void gradients_are_those_of_float64(void **state) {
    const ls_isa isa = op_isa(state);
    routing p = routing_make(T_ROWS, T_N, T_K, op_plain, 5);
    op_array y = op_array_make(LS_F32, T_N * T_ROWS, T_DIM, 0), dy = op_array_make(LS_F32, T_N * T_ROWS, T_DIM, 0);
    op_array dout = op_array_make(LS_F32, T_ROWS, T_DIM, 0), dlogits = op_array_make(LS_F32, T_ROWS, T_N, 0);
    float weight[T_ROWS * T_K];
    const ls_moe_route_args route = {floats_of(&p.logits), T_ROWS, T_N, T_K, p.expert, weight};
    const ls_moe_route_backward_args route_back = routing_args(&p, &dlogits);
    static exact e;
    uint64_t seed = 77;
    double worst_logits, worst_y;
    ls_error err;
    op_fill(&y, op_plain, &seed);
    op_fill(&dout, op_plain, &seed);
    memset(dy.data, 0, (size_t)dy.bytes);
    assert_ok(ls_moe_route(op_devices[isa][0], &route, &err), err);
    for (int64_t of = 0; of < T_N; of++)
        for (int64_t i = 0; i < T_ROWS * T_K; i++) {
            const int64_t row = i / T_K;
            const ls_moe_combine_backward_args args = {(const float *)op_at(&y, of * T_ROWS + row, 0),
                                                       &row,
                                                       &weight[i],
                                                       floats_of(&dout),
                                                       (float *)op_at(&dy, of * T_ROWS + row, 0),
                                                       (float *)op_at(&p.d_weight, row, i % T_K),
                                                       1,
                                                       T_DIM,
                                                       T_ROWS};
            if (p.expert[i] == of) assert_ok(ls_moe_combine_backward(op_devices[isa][1], &args, &err), err);
        }
    assert_ok(ls_moe_route_backward(op_devices[isa][2], &route_back, &err), err);
    widen_to(e.logits, &p.logits);
    widen_to(e.y, &y);
    widen_to(e.dout, &dout);
    e.expert = p.expert;
    worst_logits = grad_worst(floats_of(&dlogits), e.logits, T_ROWS * T_N, exact_loss, &e);
    worst_y = grad_worst(floats_of(&dy), e.y, T_N * T_ROWS * T_DIM, exact_loss, &e);
    print_message("worst error %.3g of the largest gradient of logits, %.3g of outputs\n", worst_logits, worst_y);
    assert_true(worst_logits <= 1e-5 && worst_y <= 1e-5);
    op_array_free(&y);
    op_array_free(&dy);
    op_array_free(&dout);
    op_array_free(&dlogits);
    routing_free(&p);
}

/* ---- errors ---- */

static void bad_routes_are_named(void **state) {
    routing p = routing_make(4, 8, 3, op_plain, 1);
    op_array got = op_array_make(LS_F32, 4, 8, 0), untouched = op_array_make(LS_F32, 4, 8, 0);
    const ls_moe_route_backward_args right = routing_args(&p, &got);
    const int32_t experts[] = {0, 1, 2, 3, 4, 5, 1, 5, 7, 0, 2, 7};
    ls_moe_route_backward_args args;
    ls_error err;
    (void)state;
    op_guard(&got);
    op_guard(&untouched);
#define REFUSED(word, ...)                                                              \
    do {                                                                                \
        args = right;                                                                   \
        memcpy(p.expert, experts, sizeof experts);                                      \
        __VA_ARGS__;                                                                    \
        check_failed(ls_moe_route_backward(op_devices[0][1], &args, &err), &err, word); \
        check_failed(err.status, &err, "moe_route_backward");                           \
    } while (0)
    REFUSED("logits is a null", args.logits = NULL);
    REFUSED("expert is a null", args.expert = NULL);
    REFUSED("d_weight is a null", args.d_weight = NULL);
    REFUSED("dlogits is a null", args.dlogits = NULL);
    REFUSED("rows -1", args.rows = -1);
    REFUSED("top 9 of 8", args.top_k = 9);
    REFUSED("top 0 of 8", args.top_k = 0);
    REFUSED("top 3 of 1025", args.n_experts = 1025);
    REFUSED("top 3 of 0", args.n_experts = 0);
    REFUSED("9223372036854775807 rows", args.rows = INT64_MAX);
    REFUSED("row 3: expert 8, choice 2", p.expert[11] = 8);
    REFUSED("row 2: expert -1, choice 0", p.expert[6] = -1);
    REFUSED("row 2: expert 1, choice 1, is not in 2..7", p.expert[7] = 1);
    REFUSED("row 1: expert 2147483647, choice 1", p.expert[4] = INT32_MAX);
#undef REFUSED
    op_check(&untouched, &got, OP_NAN_PINNED, "refused");
    args = right;
    args.rows = 0;
    assert_ok(ls_moe_route_backward(op_devices[0][1], &args, &err), err);
    op_check(&untouched, &got, OP_NAN_PINNED, "no rows");
    op_array_free(&got);
    op_array_free(&untouched);
    routing_free(&p);
}

static void bad_combines_are_named(void **state) {
    float y[3 * 5] = {0}, weight[3] = {0}, dacc[4 * 5] = {0}, dy[3 * 5], dweight[3], guard[3 * 5];
    const int64_t good_rows[] = {2, 0, 3}, high[] = {2, 0, 4}, negative[] = {2, -1, 3};
    const ls_moe_combine_backward_args right = {y, good_rows, weight, dacc, dy, dweight, 3, 5, 4};
    ls_moe_combine_backward_args args;
    ls_error err;
    (void)state;
    memset(dy, OP_GUARD, sizeof dy);
    memset(dweight, OP_GUARD, sizeof dweight);
    memset(guard, OP_GUARD, sizeof guard);
#define REFUSED(word, ...)                                                                \
    do {                                                                                  \
        args = right;                                                                     \
        __VA_ARGS__;                                                                      \
        check_failed(ls_moe_combine_backward(op_devices[0][1], &args, &err), &err, word); \
        check_failed(err.status, &err, "moe_combine_backward");                           \
    } while (0)
    REFUSED("y is a null", args.y = NULL);
    REFUSED("rows is a null", args.rows = NULL);
    REFUSED("weight is a null", args.weight = NULL);
    REFUSED("dacc is a null", args.dacc = NULL);
    REFUSED("dy is a null", args.dy = NULL);
    REFUSED("dweight is a null", args.dweight = NULL);
    REFUSED("-1 rows of 5 out of 4", args.n = -1);
    REFUSED("3 rows of 0", args.dim = 0);
    REFUSED("out of -4", args.acc_rows = -4);
    REFUSED("9223372036854775807", args.dim = INT64_MAX);
    REFUSED("row 4, entry 2, is not in 0..3", args.rows = high);
    REFUSED("row -1, entry 1", args.rows = negative);
    REFUSED("row 2, entry 0, is not in 0..1", args.acc_rows = 2);
#undef REFUSED
    assert_memory_equal(dy, guard, sizeof dy);
    assert_memory_equal(dweight, guard, sizeof dweight);
    args = right;
    args.n = 0;
    args.rows = NULL;
    assert_ok(ls_moe_combine_backward(op_devices[0][1], &args, &err), err);
}

/* ---- the comparison itself ---- */

static void variants_are_caught(void **state) {
    const variant wrong[] = {CHOSEN_ONLY, SUM_DESCENDING, PRODUCT_APART};
    routing p = routing_make(20, 16, 3, op_plain, 5);
    op_array right = op_array_make(LS_F32, 20, 16, 0), got = op_array_make(LS_F32, 20, 16, 0);
    char text[160];
    (void)state;
    route_ref(&p, &right, RIGHT);
    for (int64_t i = 0; i < OP_COUNT(wrong); i++) {
        route_ref(&p, &got, wrong[i]);
        if (op_diffs(&right, &got, OP_NAN_ANY, text) == 0) fail_msg("variant %d is not seen", (int)wrong[i]);
    }
    op_array_free(&right);
    op_array_free(&got);
    routing_free(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        OP_CASES(routes_equal_the_textbook),    OP_CASES(rows_do_not_see_each_other),
        OP_CASES(combines_equal_the_textbook),  OP_CASES(gradients_are_those_of_float64),
        cmocka_unit_test(bad_routes_are_named), cmocka_unit_test(bad_combines_are_named),
        cmocka_unit_test(variants_are_caught),
    };
    return cmocka_run_group_tests(tests, op_open, op_close);
}
