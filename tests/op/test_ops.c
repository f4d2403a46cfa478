/* The flat ABI: a call on the CPU is the direct call, and what a call lacks is named before anything is written. */
#include "op/conv1d.h"
#include "op/logprob.h"
#include "op/op_case.h"
#include "op/scan.h"

/* Every op on a problem of a few rows. Inputs are shared; what an op writes lies in `out`, which is guarded. */
enum { ROWS = 6, VOCAB = 2100, DIM = 5, STATES = 3, TAPS = 4, OUT_FLOATS = ROWS * VOCAB };

static float logits[ROWS * VOCAB], wide[ROWS * DIM], narrow[ROWS * STATES], rates[DIM * STATES], taps[TAPS * DIM];
static float lse[ROWS], entropy[ROWS], vector[DIM > ROWS ? DIM : ROWS];
static int64_t targets[ROWS] = {0, 2099, 5, -100, 2048, 7};
static const ls_span spans[] = {{0, 4, 0, 0, 0}, {4, 2, 0, 1, 0}};
static ls_logprob_leaf leaves[ROWS * 2];
static float target_z[ROWS];
static _Alignas(16) float state_pool[2 * DIM * (STATES + TAPS)];

static void fill(float *x, int64_t n, float low, float high, uint64_t *seed) {
    for (int64_t i = 0; i < n; i++) x[i] = test_uniform(seed, low, high);
}

/* Results of forward calls that later ones read. */
static int open_all(void **state) {
    uint64_t seed = 5;
    fill(logits, ROWS * VOCAB, -9.0f, 9.0f, &seed);
    fill(wide, ROWS * DIM, -1.0f, 1.0f, &seed);
    fill(narrow, ROWS * STATES, -1.0f, 1.0f, &seed);
    fill(rates, DIM * STATES, -3.0f, -0.1f, &seed);
    fill(taps, TAPS * DIM, -1.0f, 1.0f, &seed);
    fill(lse, ROWS, 8.0f, 9.0f, &seed);
    fill(entropy, ROWS, 1.0f, 5.0f, &seed);
    fill(vector, OP_COUNT(vector), -1.0f, 1.0f, &seed);
    fill(target_z, ROWS, -9.0f, 9.0f, &seed);
    for (int64_t i = 0; i < 2 * ROWS; i++) leaves[i] = (ls_logprob_leaf){0.0f, 12.0f, 1000.0f, -5000.0f};
    return op_open(state);
}

static ls_logprob_args make_logprob(float *out) {
    const ls_logprob_args args = {.logits = logits,
                                  .rows = ROWS,
                                  .vocab = VOCAB,
                                  .row_stride = VOCAB,
                                  .targets = targets,
                                  .ignore_index = -100,
                                  .logprob = out,
                                  .lse = out + ROWS,
                                  .entropy = out + 2 * ROWS};
    return args;
}

static ls_logprob_shard_args make_logprob_shard(float *out) {
    const ls_logprob_shard_args args = {.logits = logits,
                                        .rows = ROWS,
                                        .vocab = VOCAB,
                                        .row_stride = VOCAB,
                                        .total = VOCAB,
                                        .targets = targets,
                                        .ignore_index = -100,
                                        .leaves = (ls_logprob_leaf *)(void *)out,
                                        .leaf_stride = 2,
                                        .target_z = out + ROWS * 8};
    return args;
}

static ls_logprob_combine_args make_logprob_combine(float *out) {
    const ls_logprob_combine_args args = {.leaves = leaves,
                                          .rows = ROWS,
                                          .total = VOCAB,
                                          .leaf_stride = 2,
                                          .target_z = target_z,
                                          .targets = targets,
                                          .ignore_index = -100,
                                          .logprob = out,
                                          .lse = out + ROWS,
                                          .entropy = out + 2 * ROWS};
    return args;
}

static ls_logprob_backward_args make_logprob_backward(float *out) {
    const ls_logprob_backward_args args = {.logits = logits,
                                           .rows = ROWS,
                                           .vocab = VOCAB,
                                           .row_stride = VOCAB,
                                           .targets = targets,
                                           .ignore_index = -100,
                                           .lse = lse,
                                           .entropy = entropy,
                                           .d_logprob = vector,
                                           .d_entropy = vector,
                                           .d_logits = out,
                                           .d_stride = VOCAB};
    return args;
}

static ls_sequence_sum_args make_sequence_sum(float *out) {
    const ls_sequence_sum_args args = {.logprob = lse, .length = 3, .n_sequences = 2, .rows = ROWS, .out = out};
    return args;
}

static ls_conv1d_args make_conv1d(float *out) {
    const ls_conv1d_args args = {.x = wide,
                                 .x_stride = DIM,
                                 .w = taps,
                                 .bias = vector,
                                 .y = out,
                                 .y_stride = DIM,
                                 .rows = ROWS,
                                 .dim = DIM,
                                 .d_conv = TAPS,
                                 .state = {(uint8_t *)state_pool, (TAPS - 1) * DIM * 4, 2},
                                 .spans = spans,
                                 .n_spans = OP_COUNT(spans)};
    return args;
}

static ls_scan_args make_scan(float *out) {
    const ls_scan_args args = {.u = wide,
                               .dt_raw = wide,
                               .b = narrow,
                               .cc = narrow,
                               .z = wide,
                               .out = out,
                               .u_stride = DIM,
                               .dt_stride = DIM,
                               .b_stride = STATES,
                               .c_stride = STATES,
                               .z_stride = DIM,
                               .out_stride = DIM,
                               .a2 = rates,
                               .dt_bias = vector,
                               .d = vector,
                               .rows = ROWS,
                               .dim = DIM,
                               .n_states = STATES,
                               .state = {(uint8_t *)state_pool, DIM * (STATES + 1) * 4, 2},
                               .spans = spans,
                               .n_spans = OP_COUNT(spans)};
    return args;
}

static ls_conv1d_backward_args make_conv1d_backward(float *out) {
    const ls_conv1d_backward_args args = {.x = wide,
                                          .x_stride = DIM,
                                          .w = taps,
                                          .dy = wide,
                                          .dy_stride = DIM,
                                          .dx = out,
                                          .dx_stride = DIM,
                                          .dw = out + ROWS * DIM,
                                          .rows = ROWS,
                                          .dim = DIM,
                                          .d_conv = TAPS,
                                          .spans = spans,
                                          .n_spans = OP_COUNT(spans)};
    return args;
}

static ls_scan_backward_args make_scan_backward(float *out) {
    const ls_scan_backward_args args = {.u = wide,
                                        .dt_raw = wide,
                                        .b = narrow,
                                        .cc = narrow,
                                        .u_stride = DIM,
                                        .dt_stride = DIM,
                                        .b_stride = STATES,
                                        .c_stride = STATES,
                                        .a2 = rates,
                                        .dout = wide,
                                        .dout_stride = DIM,
                                        .du = out,
                                        .ddt = out + ROWS * DIM,
                                        .db = out + 2 * ROWS * DIM,
                                        .dcc = out + 2 * ROWS * DIM + ROWS * STATES,
                                        .da2 = out + 2 * ROWS * (DIM + STATES),
                                        .rows = ROWS,
                                        .dim = DIM,
                                        .n_states = STATES,
                                        .spans = spans,
                                        .n_spans = OP_COUNT(spans)};
    return args;
}

/* ---- one op through the ABI ---- */

static float direct[OUT_FLOATS], through[OUT_FLOATS];
static _Alignas(256) uint8_t workspace[1 << 16];

static ls_exec on_cpu(const ls_device *device, int64_t workspace_bytes) {
    const ls_exec exec = {.workers = device == NULL ? NULL : device->exec.workers,
                          .workspace = workspace,
                          .workspace_bytes = workspace_bytes};
    return exec;
}

static void check_untouched(const char *name) {
    memset(direct, OP_GUARD, sizeof direct);
    if (memcmp(direct, through, sizeof direct) != 0) fail_msg("%s: a refused call wrote", name);
}

/* Calls of each op: the direct one, the one through the ABI, its workspace, and one whose rows are negative. */
typedef struct op_calls {
    const char *name;
    ls_status (*call)(ls_device *device, float *out, ls_error *err);
    ls_status (*op)(const ls_exec *exec, float *out, ls_error *err);
    int64_t (*bytes)(void);
    ls_status (*wrong)(const ls_exec *exec, float *out, ls_error *err);
    bool works_in_it; /* on the CPU too */
} op_calls;

#define CALLS(name, direct_call)                                                    \
    static ls_status call_##name(ls_device *device, float *out, ls_error *err) {    \
        const ls_##name##_args args = make_##name(out);                             \
        return direct_call;                                                         \
    }                                                                               \
    static ls_status op_##name(const ls_exec *exec, float *out, ls_error *err) {    \
        const ls_##name##_args args = make_##name(out);                             \
        return ls_op_##name(exec, &args, err);                                      \
    }                                                                               \
    static int64_t bytes_##name(void) {                                             \
        const ls_##name##_args args = make_##name(direct);                          \
        return ls_op_##name##_workspace(&args);                                     \
    }                                                                               \
    static ls_status wrong_##name(const ls_exec *exec, float *out, ls_error *err) { \
        ls_##name##_args args = make_##name(out);                                   \
        args.rows = -3;                                                             \
        return ls_op_##name(exec, &args, err);                                      \
    }
CALLS(logprob, ls_logprob(device, &args, err))
CALLS(logprob_shard, ls_logprob_shard(device, &args, err))
CALLS(logprob_combine, ls_logprob_combine(device, &args, err))
CALLS(logprob_backward, ls_logprob_backward(device, &args, err))
CALLS(sequence_sum, ls_sequence_sum(device, &args, err))
CALLS(conv1d, ls_conv1d(device, &args, err))
CALLS(scan, ls_scan(device, &args, err))
CALLS(conv1d_backward, ls_conv1d_backward(device, &args, err))
CALLS(scan_backward, ls_scan_backward(device, &args, err))

#define ENTRY(name, works) \
    { #name, call_##name, op_##name, bytes_##name, wrong_##name, works }
static const op_calls ops[] = {
    ENTRY(logprob, false),
    ENTRY(logprob_shard, false),
    ENTRY(logprob_combine, false),
    ENTRY(logprob_backward, false),
    ENTRY(sequence_sum, false),
    ENTRY(conv1d, false),
    ENTRY(scan, false),
    ENTRY(conv1d_backward, true),
    ENTRY(scan_backward, true),
};

static void cpu_calls_are_direct_calls(void **state) {
    const ls_isa isa = op_isa(state);
    for (int64_t i = 0; i < OP_COUNT(ops); i++) {
        const ls_exec exec = on_cpu(op_devices[isa][1], ops[i].works_in_it ? ops[i].bytes() : 0);
        ls_error err;
        memset(direct, OP_GUARD, sizeof direct);
        memset(through, OP_GUARD, sizeof through);
        assert_ok(ops[i].call(op_devices[isa][0], direct, &err), err);
        memset(workspace, OP_POISON, sizeof workspace);
        assert_ok(ops[i].op(&exec, through, &err), err);
        if (memcmp(direct, through, sizeof direct) != 0) fail_msg("%s differs through the ABI", ops[i].name);
        assert_true(ls_bits(direct[0]) != OP_GUARD * 0x01010101u);
        assert_ok(ls_fault_take(&exec, &err), err);
    }
}

static void missing_back_ends_are_named(void **state) {
    const ls_backend missing[] = {LS_BACKEND_HIP, LS_BACKEND_TRITON, LS_BACKEND_CUDA, (ls_backend)9};
    (void)state;
    for (int64_t b = 0; b < OP_COUNT(missing); b++) {
        ls_error err;
        if (ls_backend_available(missing[b], &err)) continue;
        for (int64_t i = 0; i < OP_COUNT(ops); i++) {
            ls_exec exec = on_cpu(op_devices[0][0], sizeof workspace);
            exec.backend = missing[b];
            memset(through, OP_GUARD, sizeof through);
            check_failed(ops[i].op(&exec, through, &err), &err, ops[i].name);
            if (missing[b] != LS_BACKEND_CUDA) {
                check_failed(err.status, &err, ls_backend_name(missing[b]));
                assert_int_equal(err.status, LS_ERR_UNSUPPORTED);
            }
            check_untouched(ops[i].name);
        }
    }
}

static void missing_queues_are_named(void **state) {
    (void)state;
    for (int64_t i = 0; i < OP_COUNT(ops); i++) {
        const ls_exec exec = on_cpu(NULL, sizeof workspace);
        ls_error err;
        memset(through, OP_GUARD, sizeof through);
        check_failed(ops[i].op(&exec, through, &err), &err, ops[i].name);
        check_failed(err.status, &err, "needs workers");
        check_untouched(ops[i].name);
    }
}

/* One byte short, or none at all; ops that need none on the CPU do not ask. */
static void small_workspaces_are_named(void **state) {
    (void)state;
    for (int64_t i = 0; i < OP_COUNT(ops); i++) {
        const int64_t bytes = ops[i].bytes();
        ls_exec exec = on_cpu(op_devices[0][0], bytes - 1);
        char needed[64];
        ls_error err;
        assert_true(bytes >= 256 && bytes <= (int64_t)sizeof workspace);
        if (!ops[i].works_in_it) continue;
        snprintf(needed, sizeof needed, "%lld are needed", (long long)bytes);
        memset(through, OP_GUARD, sizeof through);
        check_failed(ops[i].op(&exec, through, &err), &err, ops[i].name);
        check_failed(err.status, &err, needed);
        assert_int_equal(err.status, LS_ERR_CAPACITY);
        exec.workspace = NULL;
        exec.workspace_bytes = sizeof workspace;
        check_failed(ops[i].op(&exec, through, &err), &err, needed);
        check_untouched(ops[i].name);
    }
}

/* Arguments that are wrong are named before the workspace that follows from them. */
static void wrong_arguments_come_first(void **state) {
    (void)state;
    for (int64_t i = 0; i < OP_COUNT(ops); i++) {
        const ls_exec exec = on_cpu(op_devices[0][0], 0);
        ls_error err;
        memset(through, OP_GUARD, sizeof through);
        check_failed(ops[i].wrong(&exec, through, &err), &err, "rows");
        check_failed(err.status, &err, "-3");
        check_untouched(ops[i].name);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        OP_CASES(cpu_calls_are_direct_calls),         cmocka_unit_test(missing_back_ends_are_named),
        cmocka_unit_test(missing_queues_are_named),   cmocka_unit_test(small_workspaces_are_named),
        cmocka_unit_test(wrong_arguments_come_first),
    };
    return cmocka_run_group_tests(tests, open_all, op_close);
}
