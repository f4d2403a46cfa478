/* The flat ABI of lockstep/ops.h: each op goes to the back end that its call names, in the floating-point mode that its
 * contract counts on, whatever the caller's is. */
#include "base/fpmode.h"
#include "dev/device.h"
#include "op/conv1d.h"
#include "op/logprob.h"
#include "op/scan.h"

static ls_status no_backend(const char *op, const ls_exec *exec, ls_error *err) {
    ls_error why = {LS_OK, ""};
    if (ls_backend_available(exec->backend, &why))
        return LS_FAIL(err, LS_ERR_UNSUPPORTED, "%s: not on %s", op, ls_backend_name(exec->backend));
    return LS_FAIL(err, LS_ERR_UNSUPPORTED, "%s: %s", op, why.text);
}

/* The CPU's own needs; the other back ends check theirs. */
static ls_status check_cpu(const char *op, const ls_exec *exec, int64_t workspace, ls_error *err) {
    if (exec->queue == NULL) return LS_FAIL(err, LS_ERR_ARG, "%s: a call on the CPU needs a queue", op);
    if (workspace < 0) return LS_FAIL(err, LS_ERR_NOMEM, "%s: the workspace does not fit 64 bits", op);
    if (workspace > 0 && (exec->workspace == NULL || exec->workspace_bytes < workspace))
        return LS_FAIL(err, LS_ERR_CAPACITY, "%s: workspace of %lld bytes at %p, %lld are needed", op,
                       (long long)exec->workspace_bytes, exec->workspace, (long long)workspace);
    return LS_OK;
}

/* The entry of an op: run_NAME does the work. */
#define ENTRY(name)                                                                            \
    ls_status ls_op_##name(const ls_exec *exec, const ls_##name##_args *args, ls_error *err) { \
        ls_fpmode mode;                                                                        \
        ls_status status;                                                                      \
        ls_fpmode_enter(&mode);                                                                \
        status = run_##name(exec, args, err);                                                  \
        ls_fpmode_leave(&mode);                                                                \
        return status;                                                                         \
    }

/* An op whose CPU reading needs no workspace. */
#define PLAIN_OP(name)                                                                              \
    static ls_status run_##name(const ls_exec *exec, const ls_##name##_args *args, ls_error *err) { \
        ls_status status;                                                                           \
        if (exec->backend == LS_BACKEND_CUDA) return ls_cuda_##name(exec, args, err);               \
        if (exec->backend != LS_BACKEND_CPU) return no_backend(#name, exec, err);                   \
        status = check_cpu(#name, exec, 0, err);                                                    \
        return status != LS_OK ? status : ls_##name(exec->queue, args, err);                        \
    }                                                                                               \
    ENTRY(name)

/* The same for one that does. */
#define WORKSPACE_OP(name)                                                                          \
    static ls_status run_##name(const ls_exec *exec, const ls_##name##_args *args, ls_error *err) { \
        ls_status status;                                                                           \
        if (exec->backend == LS_BACKEND_CUDA) return ls_cuda_##name(exec, args, err);               \
        if (exec->backend != LS_BACKEND_CPU) return no_backend(#name, exec, err);                   \
        status = ls_##name##_check(args, err);                                                      \
        if (status != LS_OK) return status;                                                         \
        status = check_cpu(#name, exec, ls_op_##name##_workspace(args), err);                       \
        return status != LS_OK ? status : ls_##name(exec->queue, args, exec->workspace, err);       \
    }                                                                                               \
    ENTRY(name)

PLAIN_OP(logprob)
PLAIN_OP(logprob_shard)
PLAIN_OP(logprob_combine)
PLAIN_OP(logprob_backward)
PLAIN_OP(sequence_sum)
PLAIN_OP(conv1d)
PLAIN_OP(scan)
WORKSPACE_OP(conv1d_backward)
WORKSPACE_OP(scan_backward)

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
