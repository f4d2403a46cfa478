/* One token of each sequence through a Mamba-1 mixer: what the host can see of a call. */
#include "op/mamba_step.h"

/* Its ops' own checks. */
static ls_status check_ops(const ls_mamba_step_args *a, ls_error *err) {
    LS_TRY(ls_gemm_check(&a->in_proj, err));
    LS_TRY(ls_conv1d_check(&a->conv, err));
    LS_TRY(ls_gemm_check(&a->x_proj, err));
    LS_TRY(ls_rmsnorm_parts_check(&a->norms, err));
    LS_TRY(ls_gemm_check(&a->dt_proj, err));
    return ls_scan_check(&a->scan, err);
}

ls_status ls_mamba_step_check(const ls_mamba_step_args *a, ls_error *err) {
    const ls_conv1d_args *conv = &a->conv;
    const ls_scan_args *scan = &a->scan;
    const ls_rmsnorm_args *part = a->norms.part;
    const ls_status status = check_ops(a, err);
    if (status != LS_OK) {
        ls_error_prefix(err, "mamba_step");
        return status;
    }
    if (conv->x != a->in_proj.out || (a->x_proj.x != conv->y && a->x_proj.x != conv->rounded) || a->norms.n != 3 ||
        part[0].x != a->x_proj.out || a->dt_proj.x != part[0].y || scan->b != part[1].y || scan->cc != part[2].y ||
        scan->dt_raw != a->dt_proj.out || scan->u != conv->y)
        return LS_FAIL(err, LS_ERR_ARG, "mamba_step: an op does not read what the one before it wrote");
    if (a->in_proj.m != scan->rows || conv->rows != scan->rows || a->x_proj.m != scan->rows ||
        part[0].rows != scan->rows || a->dt_proj.m != scan->rows)
        return LS_FAIL(err, LS_ERR_ARG, "mamba_step: the ops have different numbers of rows");
    if (conv->spans != scan->spans || conv->n_spans != scan->n_spans || conv->span_rows_max != 1 ||
        scan->span_rows_max != 1 || conv->spans_checked != scan->spans_checked ||
        conv->state.n_entries != scan->state.n_entries)
        return LS_FAIL(err, LS_ERR_ARG,
                       "mamba_step: conv and scan have different spans or slots, or spans of more than one row");
    return LS_OK;
}
