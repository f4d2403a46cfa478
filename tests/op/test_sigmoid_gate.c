/* sigmoid_gate and its gradients against a textbook reading of their contract, bit for bit, and against differences of
 * float64; sizes, strides, types, instruction sets, threads; variants that must be caught; bad arguments. */
#include "op/op_case.h"
#include "op/op_grad.h"
#include "op/sigmoid_gate.h"

typedef struct shape {
    int64_t rows, dim, gates;
} shape;

/* What the forward takes and what both directions give. */
typedef struct problem {
    shape s;
    op_array x, gate, dy, y, dx, dgate;
} problem;

/* Wrong on purpose: a silu for the sigmoid; the gate rounded to bf16 before the product; gates of neighbouring columns
 * taken in turn; a gradient without its second factor; one chain over the columns of a gate. */
typedef enum variant { RIGHT, SILU, GATE_BF16, TURNS, HALF_SLOPE, ONE_CHAIN } variant;

static void reference(const problem *p, variant v) {
    const int64_t width = p->s.dim / p->s.gates;
    for (int64_t r = 0; r < p->s.rows; r++) {
        for (int64_t i = 0; i < p->s.gates; i++) {
            const float g = op_get(&p->gate, r, i);
            float chain[256] = {0}, k = v == SILU ? ls_silu(g) : ls_sigmoid(g), slope;
            if (v == GATE_BF16) k = ls_round_bf16(k);
            for (int64_t c = 0; c < width; c++) {
                const int64_t at = v == TURNS ? c * p->s.gates + i : i * width + c;
                const float x = op_get(&p->x, r, at), dy = op_get(&p->dy, r, at);
                float *to = &chain[v == ONE_CHAIN ? 0 : c % 256];
                op_put(&p->y, r, at, ls_mul(x, k));
                op_put(&p->dx, r, at, ls_mul(dy, k));
                *to = ls_fma(dy, x, *to);
            }
            slope = v == HALF_SLOPE ? k : ls_mul(k, ls_sigmoid(-g));
            op_put(&p->dgate, r, i, ls_mul(op_fold(chain), slope));
        }
    }
}

static problem problem_make(const shape *s, ls_dtype out, op_maker make, uint64_t seed) {
    const int64_t pad = (int64_t)(seed % 4);
    problem p = {.s = *s};
    p.x = op_array_make(out, s->rows, s->dim, pad);
    p.gate = op_array_make(LS_F32, s->rows, s->gates, pad * 3);
    p.dy = op_array_make(LS_F32, s->rows, s->dim, pad * 2);
    p.y = op_array_make(out, s->rows, s->dim, pad);
    p.dx = op_array_make(LS_F32, s->rows, s->dim, pad * 2);
    p.dgate = op_array_make(out, s->rows, s->gates, pad);
    op_fill(&p.x, make, &seed);
    op_fill(&p.gate, make == op_plain ? op_wide : make, &seed);
    op_fill(&p.dy, make, &seed);
    op_guard(&p.y);
    op_guard(&p.dx);
    op_guard(&p.dgate);
    return p;
}

/* Outputs of its own, of the same sizes. */
static problem problem_beside(const problem *p) {
    problem q = *p;
    q.y = op_copy(&p->y);
    q.dx = op_copy(&p->dx);
    q.dgate = op_copy(&p->dgate);
    return q;
}

static void outputs_free(problem *p) {
    op_array_free(&p->y);
    op_array_free(&p->dx);
    op_array_free(&p->dgate);
}

static void problem_free(problem *p) {
    outputs_free(p);
    op_array_free(&p->x);
    op_array_free(&p->gate);
    op_array_free(&p->dy);
}

static ls_sigmoid_gate_args forward_args(const problem *p) {
    const ls_sigmoid_gate_args args = {.x = p->x.data,
                                       .x_dtype = p->x.dtype,
                                       .gate = op_floats(&p->gate),
                                       .x_stride = p->x.stride,
                                       .gate_stride = p->gate.stride,
                                       .y = p->y.data,
                                       .y_dtype = p->y.dtype,
                                       .y_stride = p->y.stride,
                                       .rows = p->s.rows,
                                       .dim = p->s.dim,
                                       .gates = p->s.gates};
    return args;
}

static ls_sigmoid_gate_backward_args backward_args(const problem *p) {
    const ls_sigmoid_gate_backward_args args = {.x = p->x.data,
                                                .x_dtype = p->x.dtype,
                                                .gate = op_floats(&p->gate),
                                                .x_stride = p->x.stride,
                                                .gate_stride = p->gate.stride,
                                                .dy = op_floats(&p->dy),
                                                .dy_stride = p->dy.stride,
                                                .dx = op_floats(&p->dx),
                                                .dx_stride = p->dx.stride,
                                                .dgate = p->dgate.data,
                                                .dgate_dtype = p->dgate.dtype,
                                                .dgate_stride = p->dgate.stride,
                                                .rows = p->s.rows,
                                                .dim = p->s.dim,
                                                .gates = p->s.gates};
    return args;
}

static void run(const problem *p, ls_device *device) {
    const ls_sigmoid_gate_args forward = forward_args(p);
    const ls_sigmoid_gate_backward_args backward = backward_args(p);
    ls_error err;
    assert_ok(ls_sigmoid_gate(device, &forward, &err), err);
    assert_ok(ls_sigmoid_gate_backward(device, &backward, &err), err);
}

static const shape shapes[] = {{1, 1, 1},    {3, 7, 7},   {5, 7, 1},  {4, 24, 6},  {0, 8, 2},      {2, 300, 300},
                               {3, 1024, 1}, {2, 520, 2}, {9, 96, 3}, {2, 255, 1}, {2, 2050, 1025}};

static void every_shape_equals_the_textbook(void **state) {
    const ls_isa isa = op_isa(state);
    for (int64_t i = 0; i < 4 * OP_COUNT(shapes); i++) {
        const ls_dtype out = i % 2 ? LS_BF16 : LS_F32;
        problem p = problem_make(&shapes[i / 4], out, i / 2 % 2 ? op_special : op_plain, (uint64_t)i + 1);
        for (int32_t t = 0; t < OP_THREADS_MAX; t++) {
            problem got = problem_beside(&p), want = problem_beside(&p);
            reference(&want, RIGHT);
            run(&got, op_devices[isa][t]);
            op_check(&want.y, &got.y, OP_NAN_ANY, "y of shape %lld", (long long)(i / 4));
            op_check(&want.dx, &got.dx, OP_NAN_ANY, "dx of shape %lld", (long long)(i / 4));
            op_check(&want.dgate, &got.dgate, OP_NAN_ANY, "dgate of shape %lld", (long long)(i / 4));
            outputs_free(&got);
            outputs_free(&want);
        }
        problem_free(&p);
    }
}

/* ---- truth ---- */

enum { T_ROWS = 3, T_DIM = 6, T_GATES = 2 };

typedef struct exact {
    double x[T_ROWS * T_DIM], gate[T_ROWS * T_GATES], dy[T_ROWS * T_DIM];
} exact;

static double exact_loss(const void *context) {
    const exact *e = context;
    double loss = 0.0;
    for (int i = 0; i < T_ROWS * T_DIM; i++) loss += e->dy[i] * e->x[i] / (1.0 + exp(-e->gate[i / (T_DIM / T_GATES)]));
    return loss;
}

static void gradients_are_those_of_float64(void **state) {
    const ls_isa isa = op_isa(state);
    static const shape s = {T_ROWS, T_DIM, T_GATES};
    static exact e;
    problem p = problem_make(&s, LS_F32, op_plain, 4); /* without padding */
    for (int i = 0; i < T_ROWS * T_DIM; i++) {
        e.x[i] = op_get(&p.x, i / T_DIM, i % T_DIM);
        e.dy[i] = op_get(&p.dy, i / T_DIM, i % T_DIM);
    }
    for (int i = 0; i < T_ROWS * T_GATES; i++) e.gate[i] = op_get(&p.gate, i / T_GATES, i % T_GATES);
    run(&p, op_devices[isa][0]);
    assert_true(grad_worst(op_floats(&p.dx), e.x, T_ROWS * T_DIM, exact_loss, &e) < 1e-6);
    assert_true(grad_worst(op_floats(&p.dgate), e.gate, T_ROWS * T_GATES, exact_loss, &e) < 1e-6);
    problem_free(&p);
}

/* ---- errors ---- */

static void bad_arguments_are_named(void **state) {
    static const shape s = {2, 6, 3};
    problem p = problem_make(&s, LS_F32, op_plain, 4), untouched = problem_beside(&p);
    const ls_sigmoid_gate_args forward = forward_args(&p);
    const ls_sigmoid_gate_backward_args backward = backward_args(&p);
    ls_error err;
    (void)state;
#define REFUSED(name, right, word, ...)                                                \
    do {                                                                               \
        ls_##name##_args args = right;                                                 \
        __VA_ARGS__;                                                                   \
        check_failed(ls_##name(op_devices[0][0], &args, &err), &err, #name ": " word); \
    } while (0)
    REFUSED(sigmoid_gate, forward, "x is a null", args.x = NULL);
    REFUSED(sigmoid_gate, forward, "gate is a null", args.gate = NULL);
    REFUSED(sigmoid_gate, forward, "y is a null", args.y = NULL);
    REFUSED(sigmoid_gate, forward, "x f16", args.x_dtype = LS_F16);
    REFUSED(sigmoid_gate, forward, "y f16", args.y_dtype = LS_F16);
    REFUSED(sigmoid_gate, forward, "rows -1", args.rows = -1);
    REFUSED(sigmoid_gate, forward, "rows 2, dim 0", args.dim = 0);
    REFUSED(sigmoid_gate, forward, "gates 4 does not divide dim 6", args.gates = 4);
    REFUSED(sigmoid_gate, forward, "gates 0", args.gates = 0);
    REFUSED(sigmoid_gate, forward, "x: stride 5", args.x_stride = 5);
    REFUSED(sigmoid_gate, forward, "gate: stride 2", args.gate_stride = 2);
    REFUSED(sigmoid_gate, forward, "y: stride 5", args.y_stride = 5);
    REFUSED(sigmoid_gate_backward, backward, "x is a null", args.x = NULL);
    REFUSED(sigmoid_gate_backward, backward, "gate is a null", args.gate = NULL);
    REFUSED(sigmoid_gate_backward, backward, "dy is a null", args.dy = NULL);
    REFUSED(sigmoid_gate_backward, backward, "dx is a null", args.dx = NULL);
    REFUSED(sigmoid_gate_backward, backward, "dgate is a null", args.dgate = NULL);
    REFUSED(sigmoid_gate_backward, backward, "x f16", args.x_dtype = LS_F16);
    REFUSED(sigmoid_gate_backward, backward, "dgate f16", args.dgate_dtype = LS_F16);
    REFUSED(sigmoid_gate_backward, backward, "gates 4 does not divide dim 6", args.gates = 4);
    REFUSED(sigmoid_gate_backward, backward, "dy: stride 5", args.dy_stride = 5);
    REFUSED(sigmoid_gate_backward, backward, "dx: stride 5", args.dx_stride = 5);
    REFUSED(sigmoid_gate_backward, backward, "dgate: stride 2", args.dgate_stride = 2);
#undef REFUSED
    op_check(&untouched.y, &p.y, OP_NAN_PINNED, "y");
    op_check(&untouched.dx, &p.dx, OP_NAN_PINNED, "dx");
    op_check(&untouched.dgate, &p.dgate, OP_NAN_PINNED, "dgate");
    outputs_free(&untouched);
    problem_free(&p);
}

static void variants_are_caught(void **state) {
    static const shape s = {4, 600, 2};
    problem p = problem_make(&s, LS_F32, op_plain, 4), right = problem_beside(&p);
    (void)state;
    reference(&right, RIGHT);
    for (int v = SILU; v <= ONE_CHAIN; v++) {
        problem wrong = problem_beside(&p);
        char text[160];
        reference(&wrong, (variant)v);
        if (op_diffs(&right.dgate, &wrong.dgate, OP_NAN_ANY, text) == 0) fail_msg("variant %d: dgate is the same", v);
        if (v < HALF_SLOPE && op_diffs(&right.y, &wrong.y, OP_NAN_ANY, text) == 0)
            fail_msg("variant %d: y is the same", v);
        outputs_free(&wrong);
    }
    outputs_free(&right);
    problem_free(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        OP_CASES(every_shape_equals_the_textbook),
        OP_CASES(gradients_are_those_of_float64),
        cmocka_unit_test(bad_arguments_are_named),
        cmocka_unit_test(variants_are_caught),
    };
    return cmocka_run_group_tests(tests, op_open, op_close);
}
