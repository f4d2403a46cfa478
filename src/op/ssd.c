/* ssd: what the host can see of a call. */
#include "op/ssd.h"

#include "op/held.h"
#include "op/operand.h"

#define HEAD_MAX 256

ls_status ls_ssd_check_shape(const char *op, const ls_ssd_shape *s, ls_error *err) {
    if (s->n_heads < 1 || s->n_heads > LS_SSD_HEADS_MAX)
        return LS_FAIL(err, LS_ERR_ARG, "%s: n_heads %lld is not in 1..%d", op, (long long)s->n_heads,
                       LS_SSD_HEADS_MAX);
    if (s->head_dim < 1 || s->head_dim > HEAD_MAX)
        return LS_FAIL(err, LS_ERR_ARG, "%s: head_dim %lld is not in 1..%d", op, (long long)s->head_dim, HEAD_MAX);
    if (s->n_states < 1 || s->n_states > LS_SCAN_STATES_MAX)
        return LS_FAIL(err, LS_ERR_ARG, "%s: n_states %lld is not in 1..%d", op, (long long)s->n_states,
                       LS_SCAN_STATES_MAX);
    if (s->n_states * s->head_dim > LS_SSD_STATE_MAX)
        return LS_FAIL(err, LS_ERR_UNSUPPORTED, "%s: n_states %lld times head_dim %lld is above %d", op,
                       (long long)s->n_states, (long long)s->head_dim, LS_SSD_STATE_MAX);
    if (s->n_groups < 1 || s->n_heads % s->n_groups != 0)
        return LS_FAIL(err, LS_ERR_ARG, "%s: n_groups %lld does not divide n_heads %lld", op, (long long)s->n_groups,
                       (long long)s->n_heads);
    if (!(s->dt_min >= 0.0f && s->dt_max > 0.0f && s->dt_max >= s->dt_min))
        return LS_FAIL(err, LS_ERR_ARG, "%s: dt_min %g, dt_max %g", op, (double)s->dt_min, (double)s->dt_max);
    if (s->rows < 0) return LS_FAIL(err, LS_ERR_ARG, "%s: rows %lld", op, (long long)s->rows);
    return LS_OK;
}

ls_status ls_ssd_check(const ls_ssd_args *args, ls_error *err) {
    const int64_t rows = args->rows, heads = args->n_heads, elem = ls_dtype_bytes(args->in_dtype);
    const ls_ssd_shape shape = {rows,           heads,        args->head_dim, args->n_groups,
                                args->n_states, args->dt_min, args->dt_max};
    if (!ls_dtype_is_stored(args->in_dtype) || !ls_dtype_is_stored(args->out_dtype))
        return LS_FAIL(err, LS_ERR_UNSUPPORTED, "ssd: inputs %s, output %s; f32 and bf16 are built",
                       ls_dtype_name(args->in_dtype), ls_dtype_name(args->out_dtype));
    LS_TRY(ls_ssd_check_shape("ssd", &shape, err));
    {
        const int64_t dim = heads * args->head_dim, states = args->n_groups * args->n_states;
        const ls_operand operands[] = {
            {"x", args->x, rows, dim, args->x_stride, elem, false},
            {"dt_raw", args->dt_raw, rows, heads, args->dt_stride, elem, false},
            {"b", args->b, rows, states, args->b_stride, elem, false},
            {"cc", args->cc, rows, states, args->c_stride, elem, false},
            {"out", args->out, rows, dim, args->out_stride, ls_dtype_bytes(args->out_dtype), false},
            {"a", args->a, 1, heads, heads, 4, false},
            {"dt_bias", args->dt_bias, 1, heads, heads, 4, false},
            {"d", args->d, 1, heads, heads, 4, false},
        };
        LS_TRY(ls_operands_check("ssd", operands, (int64_t)(sizeof operands / sizeof operands[0]), err));
        LS_TRY(ls_pool_check("ssd", &args->state, dim * args->n_states * 4, 16, err));
        LS_TRY(ls_pool_check("ssd: scale", &args->scale, heads * 4, 4, err));
    }
    {
        const ls_held held = ls_ssd_held(args);
        LS_TRY(ls_held_check("ssd", &held, &args->held, args->state.n_entries, err));
    }
    if (args->scale.n_entries != args->state.n_entries)
        return LS_FAIL(err, LS_ERR_ARG, "ssd: %lld entries of scale, %lld of state", (long long)args->scale.n_entries,
                       (long long)args->state.n_entries);
    return ls_spans_check_count("ssd", args->spans, args->n_spans, rows, args->span_rows_max, err);
}
