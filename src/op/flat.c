/* The flat ABI of lockstep/ops.h: a call names a back end and brings its own execution state; it is checked once and
 * goes to that back end's table. */
#include "base/fpmode.h"
#include "op/attention_backward.h"
#include "op/backend.h"
#include "op/conv1d.h"
#include "op/delta.h"
#include "op/elementwise.h"
#include "op/elementwise_backward.h"
#include "op/gated_norm.h"
#include "op/gemm_backward.h"
#include "op/held.h"
#include "op/logprob.h"
#include "op/moe_backward.h"
#include "op/moe_sigmoid.h"
#include "op/rmsnorm.h"
#include "op/rmsnorm_backward.h"
#include "op/rope.h"
#include "op/scan.h"
#include "op/sigmoid_gate.h"
#include "op/ssd.h"
#include "op/weight.h"

const ls_backend_table *ls_backend_table_of(ls_backend backend) {
    if (backend == LS_BACKEND_CPU) return &ls_backend_table_cpu;
    return backend == LS_BACKEND_CUDA ? &ls_backend_table_cuda : NULL;
}

static ls_status no_backend(const char *op, const ls_exec *exec, ls_error *err) {
    ls_error why = {LS_OK, ""};
    if (ls_backend_available(exec->backend, &why))
        return LS_FAIL(err, LS_ERR_UNSUPPORTED, "%s: not on %s", op, ls_backend_name(exec->backend));
    return LS_FAIL(err, LS_ERR_UNSUPPORTED, "%s: %s", op, why.text);
}

static ls_status check_exec(const char *op, const ls_exec *exec, ls_error *err) {
    if (exec->backend == LS_BACKEND_CPU && exec->workers == NULL)
        return LS_FAIL(err, LS_ERR_ARG, "%s: a call on the CPU needs workers", op);
    return LS_OK;
}

/* A caller from outside may have set another floating-point mode than the contracts count on. */
#define FLAT(name)                                                                                  \
    static ls_status run_##name(const ls_exec *exec, const ls_##name##_args *args, ls_error *err) { \
        const ls_backend_table *table = ls_backend_table_of(exec->backend);                         \
        if (table == NULL || table->name == NULL) return no_backend(#name, exec, err);              \
        LS_TRY(check_exec(#name, exec, err));                                                       \
        LS_TRY(ls_##name##_check(args, err));                                                       \
        return table->name(exec, args, err);                                                        \
    }                                                                                               \
    ls_status ls_op_##name(const ls_exec *exec, const ls_##name##_args *args, ls_error *err) {      \
        ls_fpmode mode;                                                                             \
        ls_status status;                                                                           \
        ls_fpmode_enter(&mode);                                                                     \
        status = run_##name(exec, args, err);                                                       \
        ls_fpmode_leave(&mode);                                                                     \
        return status;                                                                              \
    }

FLAT(logprob)
FLAT(logprob_shard)
FLAT(logprob_combine)
FLAT(logprob_backward)
FLAT(sequence_sum)
FLAT(conv1d)
FLAT(conv1d_backward)
FLAT(scan)
FLAT(scan_backward)
FLAT(ssd)
FLAT(ssd_backward)
FLAT(delta)
FLAT(write_held)
FLAT(delta_backward)
FLAT(gemm_repack)
FLAT(gemm)
FLAT(gemm_backward_input)
FLAT(gemm_backward_weight)
FLAT(rmsnorm)
FLAT(rmsnorm_backward)
FLAT(gated_norm)
FLAT(gated_norm_backward)
FLAT(embed)
FLAT(embed_backward)
FLAT(swiglu)
FLAT(swiglu_backward)
FLAT(relu2)
FLAT(relu2_backward)
FLAT(sigmoid_gate)
FLAT(sigmoid_gate_backward)
FLAT(attention)
FLAT(attention_backward)
FLAT(rope_table)
FLAT(rope)
FLAT(rope_backward)
FLAT(rope_norm_fold)
FLAT(decay)
FLAT(rates)
FLAT(moe_route)
FLAT(moe_reweigh)
FLAT(moe_reweigh_backward)
FLAT(moe_place)
FLAT(moe_combine)
FLAT(moe_combine_backward)
FLAT(moe_route_backward)
FLAT(moe_sigmoid_route)
FLAT(moe_sigmoid_route_backward)

ls_status ls_op_gemm_plan(ls_backend backend, ls_dtype dtype, int64_t n, int64_t k, ls_gemm_weight *out,
                          ls_error *err) {
    const ls_exec exec = {.backend = backend};
    const ls_backend_table *table = ls_backend_table_of(backend);
    if (table == NULL || table->pack_plan == NULL) return no_backend("gemm_plan", &exec, err);
    if (out == NULL) return LS_FAIL(err, LS_ERR_ARG, "gemm_plan: out is NULL");
    if (ls_dtype_bytes(dtype) == 0) return LS_FAIL(err, LS_ERR_ARG, "gemm_plan: dtype %d is unknown", (int)dtype);
    if (n < 1) return LS_FAIL(err, LS_ERR_ARG, "gemm_plan: n %lld is less than 1", (long long)n);
    if (k < 1) return LS_FAIL(err, LS_ERR_ARG, "gemm_plan: k %lld is less than 1", (long long)k);
    return table->pack_plan(out, dtype, n, k, err);
}
