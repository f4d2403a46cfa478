/* scan entry: checks, then one item for each span and block of channels. */
#include "op/scan.h"

#include "op/kernels.h"

LS_KERNEL_TABLE(ls_scan_kernel);

ls_status ls_scan_check(const ls_scan_args *args, ls_error *err) {
    const bool gated = args->z != NULL;
    if (args->u == NULL || args->dt_raw == NULL || args->b == NULL || args->cc == NULL || args->out == NULL ||
        args->a2 == NULL)
        return LS_FAIL(err, LS_ERR_ARG, "scan: u %p, dt_raw %p, b %p, cc %p, out %p or a2 %p is null", args->u,
                       args->dt_raw, args->b, args->cc, args->out, (const void *)args->a2);
    if ((args->in_dtype != LS_F32 && args->in_dtype != LS_BF16) ||
        (args->out_dtype != LS_F32 && args->out_dtype != LS_BF16))
        return LS_FAIL(err, LS_ERR_UNSUPPORTED, "scan: inputs %s, output %s; f32 and bf16 are built",
                       ls_dtype_name(args->in_dtype), ls_dtype_name(args->out_dtype));
    if (args->n_states < 1 || args->n_states > LS_SCAN_STATES_MAX)
        return LS_FAIL(err, LS_ERR_ARG, "scan: %lld states a channel, the limit is %d", (long long)args->n_states,
                       LS_SCAN_STATES_MAX);
    if (args->rows < 0 || args->dim <= 0 || args->u_stride < args->dim || args->dt_stride < args->dim ||
        (gated && args->z_stride < args->dim) || args->out_stride < args->dim || args->b_stride < args->n_states ||
        args->c_stride < args->n_states)
        return LS_FAIL(err, LS_ERR_ARG,
                       "scan: rows %lld, dim %lld, states %lld, strides u %lld dt %lld b %lld c %lld z %lld out %lld",
                       (long long)args->rows, (long long)args->dim, (long long)args->n_states,
                       (long long)args->u_stride, (long long)args->dt_stride, (long long)args->b_stride,
                       (long long)args->c_stride, (long long)args->z_stride, (long long)args->out_stride);
    return LS_OK;
}

ls_status ls_scan(ls_queue *queue, const ls_scan_args *args, ls_error *err) {
    ls_status status = ls_scan_check(args, err);
    if (status != LS_OK) return status;
    status = ls_spans_check_slots("scan", args->spans, args->n_spans, args->rows, args->span_rows_max, &args->state,
                                  err);
    if (status != LS_OK) return status;
    if (args->n_spans == 0) return LS_OK;
    ls_kernel_run(
        queue, ls_scan_kernel_table, args, args->n_spans * ((args->dim + LS_SCAN_BLOCK - 1) / LS_SCAN_BLOCK),
        ls_spans_rows(args->spans, args->n_spans) / args->n_spans * LS_SCAN_BLOCK * (20 * args->n_states + 100));
    return LS_OK;
}
