/* scan: what the host can see of a call. */
#include "op/scan.h"

#include "op/operand.h"

ls_status ls_scan_check(const ls_scan_args *args, ls_error *err) {
    const int64_t rows = args->rows, dim = args->dim, states = args->n_states, elem = ls_dtype_bytes(args->in_dtype);
    const ls_operand operands[] = {
        {"u", args->u, rows, dim, args->u_stride, elem, false},
        {"dt_raw", args->dt_raw, rows, dim, args->dt_stride, elem, false},
        {"b", args->b, rows, states, args->b_stride, elem, false},
        {"cc", args->cc, rows, states, args->c_stride, elem, false},
        {"z", args->z, rows, dim, args->z_stride, elem, true},
        {"out", args->out, rows, dim, args->out_stride, ls_dtype_bytes(args->out_dtype), false},
        {"a2", args->a2, dim, states, states, 4, false},
    };
    if ((args->in_dtype != LS_F32 && args->in_dtype != LS_BF16) ||
        (args->out_dtype != LS_F32 && args->out_dtype != LS_BF16))
        return LS_FAIL(err, LS_ERR_UNSUPPORTED, "scan: inputs %s, output %s; f32 and bf16 are built",
                       ls_dtype_name(args->in_dtype), ls_dtype_name(args->out_dtype));
    if (states < 1 || states > LS_SCAN_STATES_MAX)
        return LS_FAIL(err, LS_ERR_ARG, "scan: n_states %lld is not in 1..%d", (long long)states, LS_SCAN_STATES_MAX);
    if (rows < 0 || dim < 1)
        return LS_FAIL(err, LS_ERR_ARG, "scan: rows %lld, dim %lld", (long long)rows, (long long)dim);
    LS_TRY(ls_operands_check("scan", operands, (int64_t)(sizeof operands / sizeof operands[0]), err));
    /* That a2 fits 64 bits has just been checked. */
    LS_TRY(ls_pool_check("scan", &args->state, dim * states * 4, 16, err));
    return ls_spans_check_count("scan", args->spans, args->n_spans, rows, args->span_rows_max, err);
}
