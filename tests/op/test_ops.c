/* The flat ABI: a call on the CPU is the direct call, and what a call lacks is named before anything is written. */
#include "op/attention_backward.h"
#include "op/conv1d.h"
#include "op/elementwise_backward.h"
#include "op/gated_norm.h"
#include "op/gemm_backward.h"
#include "op/logprob.h"
#include "op/moe_backward.h"
#include "op/moe_sigmoid.h"
#include "op/op_case.h"
#include "op/rmsnorm_backward.h"
#include "op/scan.h"
#include "op/sigmoid_gate.h"
#include "op/weight.h"

/* Every op on a problem of a few rows. Inputs are shared; what an op writes lies in `out`, which is guarded. */
enum { ROWS = 6, VOCAB = 2100, DIM = 5, STATES = 3, TAPS = 4, OUT_FLOATS = ROWS * VOCAB };
enum { HEADS = 2, HEAD_DIM = 2, PAGE = 4, PAGE_FLOATS = 2 * HEAD_DIM * PAGE, TOP = 2 };

static float logits[ROWS * VOCAB], wide[ROWS * DIM], narrow[ROWS * STATES], rates[DIM * STATES], taps[TAPS * DIM];
static float lse[ROWS], entropy[ROWS], vector[DIM > ROWS ? DIM : ROWS];
static int64_t targets[ROWS] = {0, 2099, 5, -100, 2048, 7};
static const ls_span spans[] = {{0, 4, 0, 0, 0}, {4, 2, 0, 1, 0}};
static ls_logprob_leaf leaves[ROWS * 2];
static float target_z[ROWS];
static _Alignas(16) float state_pool[2 * DIM * (STATES + TAPS)];
static _Alignas(16) float pages[2 * PAGE_FLOATS];
static const ls_span attention_spans[] = {{0, 4, 0, 0, 0}, {4, 2, 0, 1, 1}};
static const int32_t tables[] = {0, 1}, tokens[ROWS] = {0, 3, 1, 0, 2, 1};
static const int32_t experts[ROWS * TOP] = {0, 1, 0, 2, 1, 2, 0, 1, 1, 2, 0, 2};
static const int64_t numbers[ROWS] = {0, 1, 2, 3, 4, 5};
static _Alignas(256) uint8_t panels[1024];
static ls_gemm_weight weight; /* taps [STATES][DIM] */

static void fill(float *x, int64_t n, float low, float high, uint64_t *seed) {
    for (int64_t i = 0; i < n; i++) x[i] = test_uniform(seed, low, high);
}

/* As a caller of the flat ABI packs one. */
static int pack_weight(void) {
    const ls_exec exec = {.workers = op_devices[0][0]->exec.workers};
    const ls_gemm_repack_args args = {&weight, taps, LS_F32};
    ls_error err;
    if (ls_op_gemm_plan(LS_BACKEND_CPU, LS_F32, STATES, DIM, &weight, &err) != LS_OK) return -1;
    if (weight.panel_bytes > (int64_t)sizeof panels || ls_op_gemm_repack_workspace(&args) < 256) return -1;
    weight.panels = panels;
    return ls_op_gemm_repack(&exec, &args, &err) == LS_OK ? 0 : -1;
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
    if (op_open(state) != 0) return -1;
    return pack_weight();
}

static ls_gemm_args make_gemm(float *out) {
    const ls_gemm_args args = {
        .x = wide, .x_stride = DIM, .weight = &weight, .bias = vector, .out = out, .out_stride = STATES, .m = ROWS};
    return args;
}

static ls_gemm_backward_input_args make_gemm_backward_input(float *out) {
    const ls_gemm_backward_input_args args = {.dy = narrow,
                                              .dy_stride = STATES,
                                              .w = taps,
                                              .dx = out,
                                              .dx_stride = DIM,
                                              .dx_count = ROWS,
                                              .m = ROWS,
                                              .n = STATES,
                                              .k = DIM};
    return args;
}

static ls_gemm_backward_weight_args make_gemm_backward_weight(float *out) {
    const ls_gemm_backward_weight_args args = {.dy = narrow,
                                               .dy_stride = STATES,
                                               .x = wide,
                                               .x_stride = DIM,
                                               .x_count = ROWS,
                                               .dw = out,
                                               .dbias = out + STATES * DIM,
                                               .m = ROWS,
                                               .n = STATES,
                                               .k = DIM};
    return args;
}

static ls_rmsnorm_args make_rmsnorm(float *out) {
    const ls_rmsnorm_args args = {
        .x = wide, .x_stride = DIM, .w = vector, .eps = 1e-5f, .y = out, .y_stride = DIM, .rows = ROWS, .dim = DIM};
    return args;
}

static ls_rmsnorm_backward_args make_rmsnorm_backward(float *out) {
    const ls_rmsnorm_backward_args args = {.x = wide,
                                           .x_stride = DIM,
                                           .w = vector,
                                           .eps = 1e-5f,
                                           .dy = wide,
                                           .dy_stride = DIM,
                                           .dx = out,
                                           .dx_stride = DIM,
                                           .dw = out + ROWS * DIM,
                                           .scale = out + (ROWS + 1) * DIM,
                                           .rows = ROWS,
                                           .dim = DIM};
    return args;
}

static ls_embed_args make_embed(float *out) {
    const ls_embed_args args = {.table = wide, .vocab = 4, .dim = DIM, .tokens = tokens, .y = out, .rows = ROWS};
    return args;
}

static ls_embed_backward_args make_embed_backward(float *out) {
    const ls_embed_backward_args args = {
        .tokens = tokens, .dy = wide, .dy_stride = DIM, .dtable = out, .vocab = 4, .dim = DIM, .rows = ROWS, .pad = -1};
    return args;
}

static ls_swiglu_args make_swiglu(float *out) {
    const ls_swiglu_args args = {.gate = wide, .up = wide, .y = out, .rows = ROWS, .dim = DIM};
    return args;
}

static ls_swiglu_backward_args make_swiglu_backward(float *out) {
    const ls_swiglu_backward_args args = {
        .gate = wide, .up = wide, .dy = wide, .dgate = out, .dup = out + ROWS * DIM, .rows = ROWS, .dim = DIM};
    return args;
}

static ls_attention_args make_attention(float *out) {
    const ls_attention_args args = {.q = wide,
                                    .k = wide,
                                    .v = wide,
                                    .out = out,
                                    .q_stride = DIM,
                                    .kv_stride = DIM,
                                    .out_stride = HEADS * HEAD_DIM,
                                    .n_heads = HEADS,
                                    .n_kv_heads = 1,
                                    .head_dim = HEAD_DIM,
                                    .scale = 0.5f,
                                    .page_tokens = PAGE,
                                    .pages = {(uint8_t *)pages, PAGE_FLOATS * 4, 2},
                                    .spans = attention_spans,
                                    .n_spans = OP_COUNT(attention_spans),
                                    .tables = tables,
                                    .n_tables = OP_COUNT(tables),
                                    .rows = ROWS};
    return args;
}

static ls_attention_backward_args make_attention_backward(float *out) {
    const ls_attention_backward_args args = {.q = wide,
                                             .k = wide,
                                             .v = wide,
                                             .q_stride = DIM,
                                             .kv_stride = DIM,
                                             .dout = wide,
                                             .dout_stride = DIM,
                                             .dq = out,
                                             .dk = out + ROWS * HEADS * HEAD_DIM,
                                             .dv = out + ROWS * (HEADS + 1) * HEAD_DIM,
                                             .dq_stride = HEADS * HEAD_DIM,
                                             .dkv_stride = HEAD_DIM,
                                             .rows = ROWS,
                                             .n_heads = HEADS,
                                             .n_kv_heads = 1,
                                             .head_dim = HEAD_DIM,
                                             .scale = 0.5f,
                                             .spans = attention_spans,
                                             .n_spans = OP_COUNT(attention_spans)};
    return args;
}

static ls_decay_args make_decay(float *out) {
    const ls_decay_args args = {.x = wide, .n = ROWS * DIM, .out = out};
    return args;
}

static ls_rates_args make_rates(float *out) {
    const ls_rates_args args = {.x = wide, .n = ROWS * DIM, .out = out};
    return args;
}

static ls_gated_norm_args make_gated_norm(float *out) {
    const ls_gated_norm_args args = {.x = wide,
                                     .z = wide,
                                     .x_stride = DIM,
                                     .z_stride = DIM,
                                     .w = vector,
                                     .eps = 1e-5f,
                                     .y = out,
                                     .y_stride = DIM,
                                     .rows = ROWS,
                                     .dim = DIM,
                                     .groups = 1};
    return args;
}

static ls_gated_norm_backward_args make_gated_norm_backward(float *out) {
    const ls_gated_norm_backward_args args = {.x = wide,
                                              .z = wide,
                                              .x_stride = DIM,
                                              .z_stride = DIM,
                                              .w = vector,
                                              .eps = 1e-5f,
                                              .dy = wide,
                                              .dy_stride = DIM,
                                              .dx = out,
                                              .dx_stride = DIM,
                                              .dz = out + ROWS * DIM,
                                              .dz_stride = DIM,
                                              .dw = out + 2 * ROWS * DIM,
                                              .scale = out + 3 * ROWS * DIM,
                                              .rows = ROWS,
                                              .dim = DIM,
                                              .groups = 1};
    return args;
}

static ls_relu2_args make_relu2(float *out) {
    const ls_relu2_args args = {.x = wide, .y = out, .rows = ROWS, .dim = DIM};
    return args;
}

static ls_relu2_backward_args make_relu2_backward(float *out) {
    const ls_relu2_backward_args args = {.x = wide, .dy = wide, .dx = out, .rows = ROWS, .dim = DIM};
    return args;
}

static ls_sigmoid_gate_args make_sigmoid_gate(float *out) {
    const ls_sigmoid_gate_args args = {.x = wide,
                                       .gate = narrow,
                                       .x_stride = DIM,
                                       .gate_stride = STATES,
                                       .y = out,
                                       .y_stride = DIM,
                                       .rows = ROWS,
                                       .dim = DIM,
                                       .gates = 1};
    return args;
}

static ls_sigmoid_gate_backward_args make_sigmoid_gate_backward(float *out) {
    const ls_sigmoid_gate_backward_args args = {.x = wide,
                                                .gate = narrow,
                                                .x_stride = DIM,
                                                .gate_stride = STATES,
                                                .dy = wide,
                                                .dy_stride = DIM,
                                                .dx = out,
                                                .dx_stride = DIM,
                                                .dgate = out + ROWS * DIM,
                                                .dgate_stride = 1,
                                                .rows = ROWS,
                                                .dim = DIM,
                                                .gates = 1};
    return args;
}

static ls_moe_sigmoid_route_args make_moe_sigmoid_route(float *out) {
    const ls_moe_sigmoid_route_args args = {.logits = narrow,
                                            .bias = vector,
                                            .rows = ROWS,
                                            .n_experts = STATES,
                                            .top_k = TOP,
                                            .n_groups = 1,
                                            .top_groups = 1,
                                            .normalised = true,
                                            .scale = 2.5f,
                                            .expert = (int32_t *)(void *)(out + ROWS * TOP),
                                            .weight = out};
    return args;
}

static ls_moe_sigmoid_route_backward_args make_moe_sigmoid_route_backward(float *out) {
    const ls_moe_sigmoid_route_backward_args args = {.logits = narrow,
                                                     .rows = ROWS,
                                                     .n_experts = STATES,
                                                     .top_k = TOP,
                                                     .expert = experts,
                                                     .d_weight = wide,
                                                     .normalised = true,
                                                     .scale = 2.5f,
                                                     .dlogits = out};
    return args;
}

static ls_moe_route_args make_moe_route(float *out) {
    const ls_moe_route_args args = {.logits = narrow,
                                    .rows = ROWS,
                                    .n_experts = STATES,
                                    .top_k = TOP,
                                    .expert = (int32_t *)(void *)(out + ROWS * TOP),
                                    .weight = out};
    return args;
}

static ls_moe_place_args make_moe_place(float *out) {
    int64_t *places = (int64_t *)(void *)out;
    const ls_moe_place_args args = {.expert = experts,
                                    .rows = ROWS,
                                    .n_experts = STATES,
                                    .top_k = TOP,
                                    .pick = places,
                                    .row = places + ROWS * TOP,
                                    .place = places + 2 * ROWS * TOP,
                                    .offsets = places + 3 * ROWS * TOP};
    return args;
}

static ls_moe_combine_args make_moe_combine(float *out) {
    const ls_moe_combine_args args = {.y = wide, .rows = numbers, .weight = vector, .acc = out, .n = ROWS, .dim = DIM};
    return args;
}

static ls_moe_combine_backward_args make_moe_combine_backward(float *out) {
    const ls_moe_combine_backward_args args = {.y = wide,
                                               .rows = numbers,
                                               .weight = vector,
                                               .dacc = wide,
                                               .dy = out,
                                               .dweight = out + ROWS * DIM,
                                               .n = ROWS,
                                               .dim = DIM,
                                               .acc_rows = ROWS};
    return args;
}

static ls_moe_route_backward_args make_moe_route_backward(float *out) {
    const ls_moe_route_backward_args args = {.logits = narrow,
                                             .rows = ROWS,
                                             .n_experts = STATES,
                                             .top_k = TOP,
                                             .expert = experts,
                                             .d_weight = wide,
                                             .dlogits = out};
    return args;
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

static _Alignas(16) float direct[OUT_FLOATS], through[OUT_FLOATS];
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
    bool works_in_it;  /* on the CPU too */
    const char *count; /* what a refusal of -3 rows calls them */
} op_calls;

#define CALLS(name, rows)                                                           \
    static ls_status call_##name(ls_device *device, float *out, ls_error *err) {    \
        const ls_##name##_args args = make_##name(out);                             \
        return ls_##name(device, &args, err);                                       \
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
CALLS(logprob, rows)
CALLS(logprob_shard, rows)
CALLS(logprob_combine, rows)
CALLS(logprob_backward, rows)
CALLS(sequence_sum, rows)
CALLS(conv1d, rows)
CALLS(scan, rows)
CALLS(conv1d_backward, rows)
CALLS(scan_backward, rows)
CALLS(gemm, m)
CALLS(gemm_backward_input, m)
CALLS(gemm_backward_weight, m)
CALLS(rmsnorm, rows)
CALLS(rmsnorm_backward, rows)
CALLS(embed, rows)
CALLS(embed_backward, rows)
CALLS(swiglu, rows)
CALLS(swiglu_backward, rows)
CALLS(attention, rows)
CALLS(attention_backward, rows)
CALLS(decay, n)
CALLS(rates, n)
CALLS(gated_norm, rows)
CALLS(gated_norm_backward, rows)
CALLS(relu2, rows)
CALLS(relu2_backward, rows)
CALLS(sigmoid_gate, rows)
CALLS(sigmoid_gate_backward, rows)
CALLS(moe_sigmoid_route, rows)
CALLS(moe_sigmoid_route_backward, rows)
CALLS(moe_route, rows)
CALLS(moe_place, rows)
CALLS(moe_combine, n)
CALLS(moe_combine_backward, n)
CALLS(moe_route_backward, rows)

#define ENTRY_OF(name, works, count) \
    { #name, call_##name, op_##name, bytes_##name, wrong_##name, works, count }
#define ENTRY(name, works) ENTRY_OF(name, works, "rows")
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
    ENTRY_OF(gemm, false, "m"),
    ENTRY_OF(gemm_backward_input, false, "m"),
    ENTRY_OF(gemm_backward_weight, false, "m"),
    ENTRY(rmsnorm, false),
    ENTRY(rmsnorm_backward, false),
    ENTRY(embed, false),
    ENTRY(embed_backward, false),
    ENTRY(swiglu, false),
    ENTRY(swiglu_backward, false),
    ENTRY(attention, false),
    ENTRY(attention_backward, true),
    ENTRY_OF(decay, false, "n"),
    ENTRY_OF(rates, false, "n"),
    ENTRY(gated_norm, false),
    ENTRY(gated_norm_backward, false),
    ENTRY(relu2, false),
    ENTRY(relu2_backward, false),
    ENTRY(sigmoid_gate, false),
    ENTRY(sigmoid_gate_backward, false),
    ENTRY(moe_sigmoid_route, false),
    ENTRY(moe_sigmoid_route_backward, false),
    ENTRY(moe_route, false),
    ENTRY(moe_place, false),
    ENTRY(moe_combine, false),
    ENTRY(moe_combine_backward, false),
    ENTRY(moe_route_backward, false),
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

static void weights_that_cannot_be_are_named(void **state) {
    const ls_exec exec = {.workers = op_devices[0][0]->exec.workers};
    const ls_gemm_weight made_up = {LS_F16, STATES, DIM, panels, 320, 320};
    ls_gemm_args args = make_gemm(through);
    ls_gemm_weight plan;
    ls_error err;
    (void)state;
    check_failed(ls_op_gemm_plan(LS_BACKEND_CPU, (ls_dtype)7, 3, 5, &plan, &err), &err, "dtype 7");
    check_failed(ls_op_gemm_plan(LS_BACKEND_CPU, LS_F32, 0, 5, &plan, &err), &err, "n 0");
    check_failed(ls_op_gemm_plan(LS_BACKEND_CPU, LS_F32, 3, -1, &plan, &err), &err, "k -1");
    check_failed(ls_op_gemm_plan(LS_BACKEND_CPU, LS_F32, INT64_MAX, INT64_MAX, &plan, &err), &err, "64-bit");
    check_failed(ls_op_gemm_plan(LS_BACKEND_CPU, LS_F32, 3, 5, NULL, &err), &err, "out is NULL");
    check_failed(ls_op_gemm_plan(LS_BACKEND_HIP, LS_F32, 3, 5, &plan, &err), &err, "hip");
    args.weight = &made_up;
    check_failed(ls_op_gemm(&exec, &args, &err), &err, "f16");
}

/* A null pointer among the tensors of each op whose check is the flat ABI's own. */
static void null_tensors_are_named(void **state) {
    const ls_exec exec = on_cpu(op_devices[0][0], sizeof workspace);
    ls_rmsnorm_args norm = make_rmsnorm(through);
    ls_embed_args embed = make_embed(through);
    ls_swiglu_args swiglu = make_swiglu(through);
    ls_attention_args attention = make_attention(through);
    ls_moe_route_args route = make_moe_route(through);
    ls_moe_combine_args combine = make_moe_combine(through);
    ls_error err;
    (void)state;
    norm.w = NULL;
    check_failed(ls_op_rmsnorm(&exec, &norm, &err), &err, "w is a null pointer");
    embed.tokens = NULL;
    check_failed(ls_op_embed(&exec, &embed, &err), &err, "tokens is a null pointer");
    swiglu.up = NULL;
    check_failed(ls_op_swiglu(&exec, &swiglu, &err), &err, "up is a null pointer");
    attention.pages.base = NULL;
    check_failed(ls_op_attention(&exec, &attention, &err), &err, "is a null pointer");
    route.expert = NULL;
    check_failed(ls_op_moe_route(&exec, &route, &err), &err, "expert is a null pointer");
    combine.acc = NULL;
    check_failed(ls_op_moe_combine(&exec, &combine, &err), &err, "acc is a null pointer");
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
        check_failed(ops[i].wrong(&exec, through, &err), &err, ops[i].count);
        check_failed(err.status, &err, "-3");
        check_untouched(ops[i].name);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weights_that_cannot_be_are_named),
        cmocka_unit_test(null_tensors_are_named),
        OP_CASES(cpu_calls_are_direct_calls),
        cmocka_unit_test(missing_back_ends_are_named),
        cmocka_unit_test(missing_queues_are_named),
        cmocka_unit_test(small_workspaces_are_named),
        cmocka_unit_test(wrong_arguments_come_first),
    };
    return cmocka_run_group_tests(tests, open_all, op_close);
}
