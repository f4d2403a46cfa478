/* Workspaces of the ops of the flat ABI: each begins with LS_WORKSPACE_HEAD bytes that are not the op's. */
#include "dev/device.h"
#include "op/conv1d.h"
#include "op/delta.h"
#include "op/gemm_cuda.h"
#include "op/logprob.h"
#include "op/scan.h"
#include "op/ssd.h"

/* Most workspaces hold nothing but their head. */
#define HEAD_ONLY(name)                                              \
    int64_t ls_op_##name##_workspace(const ls_##name##_args *args) { \
        (void)args;                                                  \
        return LS_WORKSPACE_HEAD;                                    \
    }

HEAD_ONLY(logprob_shard)
HEAD_ONLY(logprob_combine)
HEAD_ONLY(logprob_backward)
HEAD_ONLY(sequence_sum)
HEAD_ONLY(conv1d)
HEAD_ONLY(scan)
HEAD_ONLY(ssd)
HEAD_ONLY(delta)
HEAD_ONLY(gemm_repack)
HEAD_ONLY(gemm)
HEAD_ONLY(rmsnorm)
HEAD_ONLY(rmsnorm_backward)
HEAD_ONLY(gated_norm)
HEAD_ONLY(gated_norm_backward)
HEAD_ONLY(embed)
HEAD_ONLY(embed_backward)
HEAD_ONLY(swiglu)
HEAD_ONLY(swiglu_backward)
HEAD_ONLY(relu2)
HEAD_ONLY(relu2_backward)
HEAD_ONLY(sigmoid_gate)
HEAD_ONLY(sigmoid_gate_backward)
HEAD_ONLY(attention)
HEAD_ONLY(rope_table)
HEAD_ONLY(rope)
HEAD_ONLY(rope_backward)
HEAD_ONLY(rope_norm_fold)
HEAD_ONLY(decay)
HEAD_ONLY(rates)
HEAD_ONLY(moe_route)
HEAD_ONLY(moe_reweigh)
HEAD_ONLY(moe_reweigh_backward)
HEAD_ONLY(moe_place)
HEAD_ONLY(moe_combine)
HEAD_ONLY(moe_combine_backward)
HEAD_ONLY(moe_route_backward)
HEAD_ONLY(moe_sigmoid_route)
HEAD_ONLY(moe_sigmoid_route_backward)

/* Few rows are split into leaves, which wait here for their sum. */
int64_t ls_op_logprob_workspace(const ls_logprob_args *args) {
    if (args->rows < 0 || args->rows > LS_LOGPROB_SPLIT_ROWS || args->vocab < 0 || args->vocab > LS_LOGPROB_VOCAB_MAX)
        return LS_WORKSPACE_HEAD;
    return LS_WORKSPACE_HEAD + args->rows * ls_logprob_leaves(args->vocab) * (int64_t)sizeof(ls_logprob_leaf);
}

static int64_t with_head(int64_t floats) {
    return floats < 0 || floats > (INT64_MAX - LS_WORKSPACE_HEAD) / 4 ? -1 : LS_WORKSPACE_HEAD + 4 * floats;
}

int64_t ls_op_conv1d_backward_workspace(const ls_conv1d_backward_args *args) {
    return with_head(ls_conv1d_backward_floats(args));
}

int64_t ls_op_scan_backward_workspace(const ls_scan_backward_args *args) {
    ls_scan_backward_plan plan;
    return ls_scan_backward_plan_make(&plan, args) ? with_head(plan.total) : -1;
}

int64_t ls_op_ssd_backward_workspace(const ls_ssd_backward_args *args) {
    ls_ssd_backward_plan plan;
    return ls_ssd_backward_plan_make(&plan, args) ? with_head(plan.total) : -1;
}

int64_t ls_op_delta_backward_workspace(const ls_delta_backward_args *args) {
    ls_delta_backward_plan plan;
    return ls_delta_backward_plan_make(&plan, args) ? with_head(plan.total) : -1;
}

/* A GPU keeps rounded or gathered operands there; other back ends need nothing. */
int64_t ls_op_gemm_backward_input_workspace(const ls_gemm_backward_input_args *args) {
    return ls_cuda_gemm_backward_input_workspace(args);
}

int64_t ls_op_gemm_backward_weight_workspace(const ls_gemm_backward_weight_args *args) {
    return ls_cuda_gemm_backward_weight_workspace(args);
}
