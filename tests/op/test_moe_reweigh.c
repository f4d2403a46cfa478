/* Weights over the chosen experts alone and their gradient against a textbook reading of op/moe.h, bit for bit: shapes,
 * instruction sets, threads, rows with infinities and NaN; the gradient against central differences in float64; bad
 * experts. */
#include "op/moe_backward.h"
#include "op/op_case.h"

enum { ROWS = 9, EXPERTS_MAX = 40 };

typedef struct problem {
    int64_t n, top_k;
    float logits[ROWS * EXPERTS_MAX], weight[ROWS * EXPERTS_MAX], d_weight[ROWS * EXPERTS_MAX];
    int32_t expert[ROWS * EXPERTS_MAX];
} problem;

static void problem_make(problem *p, int64_t n, int64_t top_k, op_maker make, uint64_t seed) {
    p->n = n;
    p->top_k = top_k;
    for (int64_t i = 0; i < ROWS * n; i++) p->logits[i] = i / n % 3 == 1 ? op_plain(&seed) : make(&seed);
    for (int64_t i = 0; i < ROWS * top_k; i++) p->d_weight[i] = op_plain(&seed);
    {
        const ls_moe_route_args route = {p->logits, ROWS, n, top_k, p->expert, p->weight};
        ls_error err;
        assert_ok(ls_moe_route(op_devices[0][0], &route, &err), err);
    }
}

/* w of a row; false where the routing gave NaN. */
static bool weights_ref(const problem *p, int64_t row, float *w) {
    float m = -HUGE_VALF, sum = 0.0f;
    if (isnan(p->weight[row * p->top_k])) return false;
    for (int64_t k = 0; k < p->top_k; k++) {
        const float logit = p->logits[row * p->n + p->expert[row * p->top_k + k]];
        if (logit > m) m = logit;
    }
    for (int64_t k = 0; k < p->top_k; k++) {
        w[k] = ls_exp(ls_sub(p->logits[row * p->n + p->expert[row * p->top_k + k]], m));
        sum = ls_add(sum, w[k]);
    }
    for (int64_t k = 0; k < p->top_k; k++) w[k] = ls_div(w[k], sum);
    return true;
}

static void weights_are_those_of_the_chosen(void **state) {
    static const int64_t sizes[][2] = {{1, 1}, {4, 2}, {8, 8}, {33, 5}, {40, 33}};
    const ls_isa isa = op_isa(state);
    static problem p;
    for (int64_t i = 0; i < 2 * OP_COUNT(sizes); i++)
        for (int32_t t = 0; t < OP_THREADS_MAX; t++) {
            static float weight[ROWS * EXPERTS_MAX], w[EXPERTS_MAX];
            ls_error err;
            problem_make(&p, sizes[i / 2][0], sizes[i / 2][1], i % 2 == 0 ? op_wide : op_special, (uint64_t)i + 5);
            memcpy(weight, p.weight, sizeof weight);
            {
                const ls_moe_reweigh_args a = {p.logits, ROWS, p.n, p.top_k, p.expert, weight};
                assert_ok(ls_moe_reweigh(op_devices[isa][t], &a, &err), err);
            }
            for (int64_t r = 0; r < ROWS; r++) {
                const bool finite = weights_ref(&p, r, w);
                for (int64_t k = 0; k < p.top_k; k++)
                    if (finite ? ls_bits(w[k]) != ls_bits(weight[r * p.top_k + k]) : !isnan(weight[r * p.top_k + k]))
                        fail_msg("%lld of %lld, row %lld", (long long)p.top_k, (long long)p.n, (long long)r);
            }
        }
}

static void gradients_equal_the_textbook(void **state) {
    const ls_isa isa = op_isa(state);
    static problem p;
    static float dlogits[ROWS * EXPERTS_MAX], w[EXPERTS_MAX];
    for (int64_t i = 0; i < 4; i++)
        for (int32_t t = 0; t < OP_THREADS_MAX; t++) {
            ls_error err;
            problem_make(&p, 4 + 12 * i, 1 + 3 * i, op_wide, (uint64_t)i + 50);
            memset(dlogits, OP_GUARD, sizeof dlogits);
            {
                const ls_moe_reweigh_backward_args a = {p.logits, ROWS, p.n, p.top_k, p.expert, p.d_weight, dlogits};
                assert_ok(ls_moe_reweigh_backward(op_devices[isa][t], &a, &err), err);
            }
            for (int64_t r = 0; r < ROWS; r++) {
                const float *g = p.d_weight + r * p.top_k;
                float sum = 0.0f, expected[EXPERTS_MAX] = {0};
                assert_true(weights_ref(&p, r, w));
                for (int64_t k = 0; k < p.top_k; k++) sum = ls_fma(w[k], g[k], sum);
                for (int64_t k = 0; k < p.top_k; k++)
                    expected[p.expert[r * p.top_k + k]] = ls_mul(w[k], ls_sub(g[k], sum));
                for (int64_t e = 0; e < p.n; e++)
                    if (ls_bits(expected[e]) != ls_bits(dlogits[r * p.n + e]))
                        fail_msg("%lld of %lld, row %lld, expert %lld", (long long)p.top_k, (long long)p.n,
                                 (long long)r, (long long)e);
            }
        }
}

static double objective(const problem *p, int64_t row, const double *logit) {
    double sum = 0.0, total = 0.0;
    for (int64_t k = 0; k < p->top_k; k++) sum += exp(logit[p->expert[row * p->top_k + k]]);
    for (int64_t k = 0; k < p->top_k; k++)
        total += exp(logit[p->expert[row * p->top_k + k]]) / sum * (double)p->d_weight[row * p->top_k + k];
    return total;
}

static void gradients_are_derivatives(void **state) {
    static problem p;
    static float dlogits[ROWS * EXPERTS_MAX];
    ls_error err;
    (void)state;
    problem_make(&p, 12, 4, op_plain, 3);
    {
        const ls_moe_reweigh_backward_args a = {p.logits, ROWS, p.n, p.top_k, p.expert, p.d_weight, dlogits};
        assert_ok(ls_moe_reweigh_backward(op_devices[0][0], &a, &err), err);
    }
    for (int64_t r = 0; r < ROWS; r++) {
        double logit[12];
        for (int64_t e = 0; e < 12; e++) logit[e] = (double)p.logits[r * 12 + e];
        for (int64_t e = 0; e < 12; e++) {
            const double h = 1e-5, at = logit[e];
            double up, down;
            logit[e] = at + h;
            up = objective(&p, r, logit);
            logit[e] = at - h;
            down = objective(&p, r, logit);
            logit[e] = at;
            assert_float_equal((float)((up - down) / (2.0 * h)), dlogits[r * 12 + e], 1e-6);
        }
    }
}

static void bad_calls_are_named(void **state) {
    static problem p;
    static float out[ROWS * EXPERTS_MAX];
    ls_error err;
    (void)state;
    problem_make(&p, 6, 3, op_plain, 1);
#define FORWARD(word, ...)                                                                          \
    check_failed(ls_moe_reweigh(op_devices[0][0], &(ls_moe_reweigh_args){__VA_ARGS__}, &err), &err, \
                 "moe_reweigh: " word)
#define BACKWARD(word, ...)                                                                                           \
    check_failed(ls_moe_reweigh_backward(op_devices[0][0], &(ls_moe_reweigh_backward_args){__VA_ARGS__}, &err), &err, \
                 "moe_reweigh_backward: " word)
    FORWARD("-1 rows, top 3", p.logits, -1, 6, 3, p.expert, p.weight);
    FORWARD("9 rows, top 7 of 6 experts", p.logits, ROWS, 6, 7, p.expert, p.weight);
    FORWARD("logits is a null", NULL, ROWS, 6, 3, p.expert, p.weight);
    FORWARD("weight is a null", p.logits, ROWS, 6, 3, p.expert, NULL);
    BACKWARD("top 0 of 6 experts", p.logits, ROWS, 6, 0, p.expert, p.d_weight, out);
    BACKWARD("dlogits is a null", p.logits, ROWS, 6, 3, p.expert, p.d_weight, NULL);
    p.expert[4] = p.expert[3];
    FORWARD("row 1: expert", p.logits, ROWS, 6, 3, p.expert, p.weight);
    p.expert[4] = 6;
    BACKWARD("row 1: expert 6, choice 1", p.logits, ROWS, 6, 3, p.expert, p.d_weight, out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        OP_CASES(weights_are_those_of_the_chosen), OP_CASES(gradients_equal_the_textbook),
        cmocka_unit_test(gradients_are_derivatives), cmocka_unit_test(bad_calls_are_named)};
    return cmocka_run_group_tests(tests, op_open, op_close);
}
