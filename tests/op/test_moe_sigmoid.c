/* Routing by sigmoids and its gradient against a textbook reading of their contract, bit for bit, and against
 * differences of float64: groups, ties, instruction sets, threads; variants that must be caught; bad arguments. */
#include "op/moe_sigmoid.h"
#include "op/op_case.h"
#include "op/op_grad.h"

/* Wrong on purpose: the bias in the weights as well, no bias in the choice, the higher expert first among equals, a
 * group's score its largest c alone, all groups stay, no scale, the sum over all experts, a gradient without slope. */
typedef enum variant {
    RIGHT,
    BIASED,
    UNBIASED,
    HIGHER_FIRST,
    LARGEST_ALONE,
    NO_GROUPS,
    NO_SCALE,
    SUM_OF_ALL,
    NO_SLOPE
} variant;

typedef struct shape {
    int64_t rows, n, top_k, groups, top_groups;
    bool normalised;
    float scale;
} shape;

static const shape shapes[] = {
    {3, 1, 1, 1, 1, true, 1.0f},      {5, 4, 2, 1, 1, true, 2.5f},   {7, 8, 3, 4, 2, true, 1.5f},
    {2, 8, 8, 2, 2, false, 0.7f},     {9, 48, 6, 6, 2, true, 2.5f},  {4, 128, 6, 1, 1, true, 2.5f},
    {2, 255, 5, 5, 3, false, 1.0f},   {3, 256, 8, 8, 4, true, 2.5f}, {1, 1024, 22, 16, 3, true, 1.25f},
    {1, 1024, 900, 1, 1, true, 1.0f}, {0, 4, 2, 2, 2, true, 1.0f}};

typedef struct problem {
    shape s;
    op_array logits, bias, expert, weight, d_weight, dlogits;
} problem;

/* How many of the open ones go before i. */
static int64_t rank(const float *x, const bool *open, int64_t n, int64_t i, bool higher_first) {
    int64_t before = 0;
    for (int64_t j = 0; j < n; j++) {
        const bool first = higher_first ? j > i : j < i;
        if (open[j] && (x[j] > x[i] || (x[j] == x[i] && first))) before++;
    }
    return before;
}

static float score_of_group(const float *c, int64_t size, variant v) {
    float best = -INFINITY;
    for (int64_t i = 0; i < size; i++)
        for (int64_t j = 0; j < size; j++)
            if (i != j) best = fmaxf(best, v == LARGEST_ALONE ? c[i] : ls_add(c[i], c[j]));
    return best;
}

static void reference_row(const problem *p, int64_t r, variant v) {
    const int64_t n = p->s.n, top = p->s.top_k, size = n / p->s.groups;
    const float scale = v == NO_SCALE ? 1.0f : p->s.scale;
    float s[LS_EXPERTS_MAX], c[LS_EXPERTS_MAX], group[LS_EXPERTS_MAX], d = 0.0f, sum = 0.0f;
    bool all[LS_EXPERTS_MAX], open[LS_EXPERTS_MAX], ordered = true;
    int64_t chosen[LS_EXPERTS_MAX], k = 0;
    for (int64_t e = 0; e < n; e++) {
        s[e] = ls_sigmoid(op_get(&p->logits, r, e));
        c[e] = ls_add(s[e], v == UNBIASED ? 0.0f : op_get(&p->bias, 0, e));
        all[e] = open[e] = true;
        ordered = ordered && isfinite(c[e]);
    }
    if (p->s.groups > 1 && v != NO_GROUPS) {
        for (int64_t g = 0; g < p->s.groups; g++) group[g] = score_of_group(c + g * size, size, v);
        for (int64_t e = 0; e < n; e++)
            open[e] = rank(group, all, p->s.groups, e / size, v == HIGHER_FIRST) < p->s.top_groups;
    }
    for (int64_t e = 0; e < n; e++)
        if (ordered ? open[e] && rank(c, open, n, e, v == HIGHER_FIRST) < top : e < top) chosen[k++] = e;
    assert_int_equal(k, top);
    for (k = 0; k < top; k++) d = ls_add(d, s[chosen[k]]);
    for (int64_t e = 0; v == SUM_OF_ALL && e < n; e++) d = e == 0 ? s[0] : ls_add(d, s[e]);
    d = ls_add(d, 1e-20f);
    for (k = 0; k < top; k++) {
        const float own = v == BIASED ? c[chosen[k]] : s[chosen[k]];
        const float w = ls_mul(scale, p->s.normalised ? ls_div(own, d) : own);
        ((int32_t *)(void *)p->expert.data)[r * top + k] = (int32_t)chosen[k];
        op_put(&p->weight, r, k, ordered ? w : NAN);
        sum = ls_fma(ls_div(s[chosen[k]], d), op_get(&p->d_weight, r, k), sum);
    }
    for (int64_t e = 0; e < n; e++) op_put(&p->dlogits, r, e, 0.0f);
    for (k = 0; k < top; k++) {
        const float g = op_get(&p->d_weight, r, k), own = s[chosen[k]];
        const float t = p->s.normalised ? ls_div(ls_sub(g, sum), d) : g;
        const float slope = v == NO_SLOPE ? own : ls_mul(own, ls_sigmoid(-op_get(&p->logits, r, chosen[k])));
        op_put(&p->dlogits, r, chosen[k], ls_mul(ls_mul(scale, t), slope));
    }
}

static void reference(const problem *p, variant v) {
    for (int64_t r = 0; r < p->s.rows; r++) reference_row(p, r, v);
}

static float few_levels(uint64_t *seed) { return floorf(test_uniform(seed, -1.0f, 1.0f)) * 0.5f; }

/* Experts lie in an array of floats of the same size. */
static problem problem_make(const shape *s, op_maker make, uint64_t seed) {
    problem p = {.s = *s};
    p.logits = op_array_make(LS_F32, s->rows, s->n, 0);
    p.bias = op_array_make(LS_F32, 1, s->n, 0);
    p.expert = op_array_make(LS_F32, s->rows, s->top_k, 0);
    p.weight = op_array_make(LS_F32, s->rows, s->top_k, 0);
    p.d_weight = op_array_make(LS_F32, s->rows, s->top_k, 0);
    p.dlogits = op_array_make(LS_F32, s->rows, s->n, 0);
    op_fill(&p.logits, make, &seed);
    op_fill(&p.bias, make == few_levels ? few_levels : op_plain, &seed);
    op_fill(&p.d_weight, op_plain, &seed);
    return p;
}

/* The same problem with outputs of its own. */
static problem problem_beside(const problem *p) {
    problem q = *p;
    q.expert = op_copy(&p->expert);
    q.weight = op_copy(&p->weight);
    q.dlogits = op_copy(&p->dlogits);
    return q;
}

static void outputs_free(problem *p) {
    op_array_free(&p->expert);
    op_array_free(&p->weight);
    op_array_free(&p->dlogits);
}

static void problem_free(problem *p) {
    outputs_free(p);
    op_array_free(&p->logits);
    op_array_free(&p->bias);
    op_array_free(&p->d_weight);
}

static ls_moe_sigmoid_route_args forward_args(const problem *p) {
    return (ls_moe_sigmoid_route_args){.logits = op_floats(&p->logits),
                                       .bias = op_floats(&p->bias),
                                       .rows = p->s.rows,
                                       .n_experts = p->s.n,
                                       .top_k = p->s.top_k,
                                       .n_groups = p->s.groups,
                                       .top_groups = p->s.top_groups,
                                       .normalised = p->s.normalised,
                                       .scale = p->s.scale,
                                       .expert = (int32_t *)(void *)p->expert.data,
                                       .weight = op_floats(&p->weight)};
}

static ls_moe_sigmoid_route_backward_args backward_args(const problem *p) {
    return (ls_moe_sigmoid_route_backward_args){.logits = op_floats(&p->logits),
                                                .rows = p->s.rows,
                                                .n_experts = p->s.n,
                                                .top_k = p->s.top_k,
                                                .expert = (const int32_t *)(const void *)p->expert.data,
                                                .d_weight = op_floats(&p->d_weight),
                                                .normalised = p->s.normalised,
                                                .scale = p->s.scale,
                                                .dlogits = op_floats(&p->dlogits)};
}

static void run(const problem *p, ls_device *device) {
    const ls_moe_sigmoid_route_args forward = forward_args(p);
    const ls_moe_sigmoid_route_backward_args backward = backward_args(p);
    ls_error err;
    assert_ok(ls_moe_sigmoid_route(device, &forward, &err), err);
    assert_ok(ls_moe_sigmoid_route_backward(device, &backward, &err), err);
}

static void every_shape_equals_the_textbook(void **state) {
    static const op_maker makers[] = {op_wide, few_levels, op_special};
    const ls_isa isa = op_isa(state);
    for (int64_t i = 0; i < 3 * OP_COUNT(shapes); i++) {
        problem p = problem_make(&shapes[i / 3], makers[i % 3], (uint64_t)i + 1);
        problem want = problem_beside(&p);
        reference(&want, RIGHT);
        for (int32_t t = 0; t < OP_THREADS_MAX; t++) {
            problem got = problem_beside(&p);
            run(&got, op_devices[isa][t]);
            assert_memory_equal(want.expert.data, got.expert.data, (size_t)want.expert.bytes);
            op_check(&want.weight, &got.weight, OP_NAN_ANY, "weights of shape %lld", (long long)(i / 3));
            op_check(&want.dlogits, &got.dlogits, OP_NAN_ANY, "dlogits of shape %lld", (long long)(i / 3));
            outputs_free(&got);
        }
        outputs_free(&want);
        problem_free(&p);
    }
}

/* ---- truth ---- */

enum { T_N = 8, T_TOP = 3 };

typedef struct exact {
    double logits[T_N], g[T_TOP];
    int64_t chosen[T_TOP];
    bool normalised;
} exact;

static double exact_loss(const void *context) {
    const exact *e = context;
    double sum = 0.0, loss = 0.0;
    for (int k = 0; k < T_TOP; k++) sum += 1.0 / (1.0 + exp(-e->logits[e->chosen[k]]));
    for (int k = 0; k < T_TOP; k++)
        loss += 1.5 * e->g[k] / (1.0 + exp(-e->logits[e->chosen[k]])) / (e->normalised ? sum : 1.0);
    return loss;
}

static void gradients_are_those_of_float64(void **state) {
    const ls_isa isa = op_isa(state);
    static exact e;
    for (int normalised = 0; normalised < 2; normalised++) {
        const shape s = {1, T_N, T_TOP, 4, 2, normalised == 1, 1.5f};
        problem p = problem_make(&s, op_plain, 4);
        run(&p, op_devices[isa][0]);
        e.normalised = s.normalised;
        for (int i = 0; i < T_N; i++) e.logits[i] = op_get(&p.logits, 0, i);
        for (int k = 0; k < T_TOP; k++) {
            e.g[k] = op_get(&p.d_weight, 0, k);
            e.chosen[k] = ((const int32_t *)(const void *)p.expert.data)[k];
        }
        assert_true(grad_worst(op_floats(&p.dlogits), e.logits, T_N, exact_loss, &e) < 1e-6);
        problem_free(&p);
    }
}

/* A NaN, or a bias that no sum with is finite: the lowest experts, with weights of NaN. */
static void rows_without_an_order(void **state) {
    static const shape s = {2, 8, 3, 4, 2, true, 1.0f};
    const ls_isa isa = op_isa(state);
    problem p = problem_make(&s, op_plain, 3);
    op_put(&p.logits, 1, 7, NAN);
    for (int i = 0; i < 2; i++) {
        const ls_moe_sigmoid_route_args args = forward_args(&p);
        ls_error err;
        assert_ok(ls_moe_sigmoid_route(op_devices[isa][1], &args, &err), err);
        for (int k = 0; k < 3; k++) {
            assert_int_equal(args.expert[3 + k], k);
            assert_true(isnan(args.weight[3 + k]) && isnan(args.weight[k]) == (i == 1));
        }
        op_put(&p.bias, 0, 2, -INFINITY);
    }
    problem_free(&p);
}

static void bad_arguments_are_named(void **state) {
    static const shape s = {2, 8, 3, 4, 2, true, 1.0f};
    problem p = problem_make(&s, op_plain, 3);
    ls_error err;
    (void)state;
    run(&p, op_devices[0][0]);
#define REFUSED(name, right, word, ...)                                                \
    do {                                                                               \
        ls_##name##_args args = right;                                                 \
        __VA_ARGS__;                                                                   \
        check_failed(ls_##name(op_devices[0][0], &args, &err), &err, #name ": " word); \
    } while (0)
    REFUSED(moe_sigmoid_route, forward_args(&p), "logits is a null", args.logits = NULL);
    REFUSED(moe_sigmoid_route, forward_args(&p), "bias is a null", args.bias = NULL);
    REFUSED(moe_sigmoid_route, forward_args(&p), "expert is a null", args.expert = NULL);
    REFUSED(moe_sigmoid_route, forward_args(&p), "weight is a null", args.weight = NULL);
    REFUSED(moe_sigmoid_route, forward_args(&p), "-1 rows, top 3 of 8", args.rows = -1);
    REFUSED(moe_sigmoid_route, forward_args(&p), "2 rows, top 9 of 8", args.top_k = 9);
    REFUSED(moe_sigmoid_route, forward_args(&p), "2 rows, top 3 of 1025", args.n_experts = 1025);
    REFUSED(moe_sigmoid_route, forward_args(&p), "3 groups of 8", args.n_groups = 3);
    REFUSED(moe_sigmoid_route, forward_args(&p), "8 groups of 8", args.n_groups = 8);
    REFUSED(moe_sigmoid_route, forward_args(&p), "top 1 of 4 groups for 3 of 8", args.top_groups = 1);
    REFUSED(moe_sigmoid_route, forward_args(&p), "top 5 of 4 groups", args.top_groups = 5);
    REFUSED(moe_sigmoid_route_backward, backward_args(&p), "d_weight is a null", args.d_weight = NULL);
    REFUSED(moe_sigmoid_route_backward, backward_args(&p), "dlogits is a null", args.dlogits = NULL);
    REFUSED(moe_sigmoid_route_backward, backward_args(&p), "2 rows, top 0 of 8", args.top_k = 0);
    ((int32_t *)(void *)p.expert.data)[4] = 8;
    REFUSED(moe_sigmoid_route_backward, backward_args(&p), "row 1", (void)0);
#undef REFUSED
    problem_free(&p);
}

static void variants_are_caught(void **state) {
    static const shape s = {40, 16, 3, 4, 2, true, 1.5f};
    (void)state;
    for (int v = BIASED; v <= NO_SLOPE; v++) {
        problem p = problem_make(&s, v == HIGHER_FIRST ? few_levels : op_wide, 5), wrong = problem_beside(&p);
        char text[160];
        reference(&p, RIGHT);
        reference(&wrong, (variant)v);
        if (memcmp(p.expert.data, wrong.expert.data, (size_t)p.expert.bytes) == 0 &&
            op_diffs(&p.weight, &wrong.weight, OP_NAN_ANY, text) == 0 &&
            op_diffs(&p.dlogits, &wrong.dlogits, OP_NAN_ANY, text) == 0)
            fail_msg("variant %d is the same", v);
        outputs_free(&wrong);
        problem_free(&p);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        OP_CASES(every_shape_equals_the_textbook), OP_CASES(gradients_are_those_of_float64),
        OP_CASES(rows_without_an_order),           cmocka_unit_test(bad_arguments_are_named),
        cmocka_unit_test(variants_are_caught),
    };
    return cmocka_run_group_tests(tests, op_open, op_close);
}
