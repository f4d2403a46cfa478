/* Dense product: what the host can see of a call, and weights. */
#include "op/gemm.h"

#include "op/profile.h"

ls_status ls_gemm_check(const ls_gemm_args *args, ls_error *err) {
    const ls_gemm_weight *weight = args->weight;
    if (weight == NULL) return LS_FAIL(err, LS_ERR_ARG, "gemm: weight is NULL");
    if (weight->panels == NULL) return LS_FAIL(err, LS_ERR_ARG, "gemm: weight is not packed, its panels are NULL");
    if (weight->n < 1 || weight->k < 1 || (weight->dtype != LS_F32 && weight->dtype != LS_BF16))
        return LS_FAIL(err, LS_ERR_ARG, "gemm: weight is %lld rows of %lld, %s: ls_op_gemm_plan makes them",
                       (long long)weight->n, (long long)weight->k, ls_dtype_name(weight->dtype));
    if (args->m < 0) return LS_FAIL(err, LS_ERR_ARG, "gemm: m %lld is negative", (long long)args->m);
    if (args->x_dtype != LS_F32 && args->x_dtype != LS_BF16)
        return LS_FAIL(err, LS_ERR_ARG, "gemm: x_dtype %d (%s) is neither f32 nor bf16", (int)args->x_dtype,
                       ls_dtype_name(args->x_dtype));
    if (args->out_dtype != LS_F32 && args->out_dtype != LS_BF16)
        return LS_FAIL(err, LS_ERR_ARG, "gemm: out_dtype %d (%s) is neither f32 nor bf16", (int)args->out_dtype,
                       ls_dtype_name(args->out_dtype));
    if (args->x_stride < weight->k)
        return LS_FAIL(err, LS_ERR_ARG, "gemm: x_stride %lld is less than k %lld", (long long)args->x_stride,
                       (long long)weight->k);
    if (args->out_stride < weight->n)
        return LS_FAIL(err, LS_ERR_ARG, "gemm: out_stride %lld is less than n %lld", (long long)args->out_stride,
                       (long long)weight->n);
    if (args->m > 0 && args->x == NULL) return LS_FAIL(err, LS_ERR_ARG, "gemm: x is NULL");
    if (args->m > 0 && args->out == NULL) return LS_FAIL(err, LS_ERR_ARG, "gemm: out is NULL");
    {
        const ls_status status = ls_profile_check("gemm", args->profile, "x", args->x_dtype, err);
        return status != LS_OK ? status : ls_profile_check("gemm", args->profile, "weight", weight->dtype, err);
    }
}

/* Of the shape and type of a packed weight, and packed. */
static bool is_like(const ls_gemm_weight *other, const ls_gemm_weight *weight) {
    return other != NULL && other->panels != NULL && other->n == weight->n && other->k == weight->k &&
           other->dtype == weight->dtype;
}

ls_status ls_gemm_three_check(const ls_gemm_three_args *args, ls_error *err) {
    const ls_gemm_args *first = &args->first;
    const ls_gemm_weight *other = args->others[0];
    const ls_status status = ls_gemm_check(first, err);
    if (status != LS_OK) return status;
    if (other == NULL || other->n < 1 || other->k != first->weight->k || other->dtype != first->weight->dtype)
        return LS_FAIL(err, LS_ERR_ARG, "gemm_three: others are not of the first weight's depth and type");
    if (!is_like(other, other) || !is_like(args->others[1], other))
        return LS_FAIL(err, LS_ERR_ARG, "gemm_three: others are not packed weights of one shape and type");
    if (first->bias != NULL || first->range != NULL)
        return LS_FAIL(err, LS_ERR_ARG, "gemm_three: first has a bias or a range");
    if (args->outs_stride < other->n)
        return LS_FAIL(err, LS_ERR_ARG, "gemm_three: outs_stride %lld is less than n %lld",
                       (long long)args->outs_stride, (long long)other->n);
    if (first->m > 0 && (args->outs[0] == NULL || args->outs[1] == NULL))
        return LS_FAIL(err, LS_ERR_ARG, "gemm_three: an out of others is NULL");
    return LS_OK;
}

ls_status ls_gemm_gated_check(const ls_gemm_gated_args *args, ls_error *err) {
    const ls_gemm_args *gate = &args->gate;
    const ls_gemm_weight *up = args->up;
    const ls_status status = ls_gemm_check(gate, err);
    if (status != LS_OK) return status;
    if (!is_like(up, gate->weight))
        return LS_FAIL(err, LS_ERR_ARG, "gemm_gated: up is not a packed weight of the gate's shape and type");
    if (gate->bias != NULL || gate->range != NULL || gate->out_dtype != LS_F32 || gate->out_stride != up->n)
        return LS_FAIL(err, LS_ERR_ARG,
                       "gemm_gated: gate has a bias, a range, or an out that is not float32 rows of n");
    if (gate->m > 0 && (args->up_out == NULL || args->y == NULL))
        return LS_FAIL(err, LS_ERR_ARG, "gemm_gated: up_out or y is NULL");
    if (ls_dtype_bytes(args->y_dtype) == 0)
        return LS_FAIL(err, LS_ERR_UNSUPPORTED, "gemm_gated: y_dtype %d", (int)args->y_dtype);
    return LS_OK;
}

ls_status ls_gemm_repack_check(const ls_gemm_repack_args *args, ls_error *err) {
    if (args->weight == NULL) return LS_FAIL(err, LS_ERR_ARG, "gemm weight: weight is NULL");
    if (args->w == NULL) return LS_FAIL(err, LS_ERR_ARG, "gemm weight: w is NULL");
    if (ls_dtype_bytes(args->dtype) == 0)
        return LS_FAIL(err, LS_ERR_ARG, "gemm weight: dtype %d is unknown", (int)args->dtype);
    if (args->weight->panels == NULL)
        return LS_FAIL(err, LS_ERR_ARG, "gemm weight: not packed before, its panels are NULL");
    return LS_OK;
}
