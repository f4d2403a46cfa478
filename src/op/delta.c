/* delta: what the host can see of a call. */
#include "op/delta.h"

#include "op/held.h"
#include "op/operand.h"

ls_status ls_delta_check_shape(const char *op, const ls_delta_shape *s, ls_error *err) {
    if (s->n_heads < 1 || s->n_heads > LS_DELTA_HEADS_MAX)
        return LS_FAIL(err, LS_ERR_ARG, "%s: n_heads %lld is not in 1..%d", op, (long long)s->n_heads,
                       LS_DELTA_HEADS_MAX);
    if (s->n_key_heads < 1 || s->n_heads % s->n_key_heads != 0)
        return LS_FAIL(err, LS_ERR_ARG, "%s: n_key_heads %lld does not divide n_heads %lld", op,
                       (long long)s->n_key_heads, (long long)s->n_heads);
    if (s->key_dim < 1 || s->key_dim > LS_DELTA_DIM_MAX)
        return LS_FAIL(err, LS_ERR_ARG, "%s: key_dim %lld is not in 1..%d", op, (long long)s->key_dim,
                       LS_DELTA_DIM_MAX);
    if (s->value_dim < 1 || s->value_dim > LS_DELTA_DIM_MAX)
        return LS_FAIL(err, LS_ERR_ARG, "%s: value_dim %lld is not in 1..%d", op, (long long)s->value_dim,
                       LS_DELTA_DIM_MAX);
    if (s->key_dim * s->value_dim > LS_DELTA_STATE_MAX)
        return LS_FAIL(err, LS_ERR_UNSUPPORTED, "%s: key_dim %lld times value_dim %lld is above %d", op,
                       (long long)s->key_dim, (long long)s->value_dim, LS_DELTA_STATE_MAX);
    if (s->rows < 0) return LS_FAIL(err, LS_ERR_ARG, "%s: rows %lld", op, (long long)s->rows);
    return LS_OK;
}

ls_status ls_delta_check(const ls_delta_args *args, ls_error *err) {
    const int64_t rows = args->rows, heads = args->n_heads, elem = ls_dtype_bytes(args->in_dtype);
    const ls_delta_shape shape = {rows, heads, args->n_key_heads, args->key_dim, args->value_dim};
    if (!ls_dtype_is_stored(args->in_dtype) || !ls_dtype_is_stored(args->out_dtype))
        return LS_FAIL(err, LS_ERR_UNSUPPORTED, "delta: inputs %s, output %s; f32 and bf16 are built",
                       ls_dtype_name(args->in_dtype), ls_dtype_name(args->out_dtype));
    LS_TRY(ls_delta_check_shape("delta", &shape, err));
    {
        const int64_t keys = args->n_key_heads * args->key_dim, values = heads * args->value_dim;
        const ls_operand operands[] = {
            {"q", args->q, rows, keys, args->q_stride, elem, false},
            {"k", args->k, rows, keys, args->k_stride, elem, false},
            {"v", args->v, rows, values, args->v_stride, elem, false},
            {"a", args->a, rows, heads, args->a_stride, elem, false},
            {"b", args->b, rows, heads, args->b_stride, elem, false},
            {"out", args->out, rows, values, args->out_stride, ls_dtype_bytes(args->out_dtype), false},
            {"rate", args->rate, 1, heads, heads, 4, false},
            {"dt_bias", args->dt_bias, 1, heads, heads, 4, false},
        };
        LS_TRY(ls_operands_check("delta", operands, (int64_t)(sizeof operands / sizeof operands[0]), err));
        LS_TRY(ls_pool_check("delta", &args->state, values * args->key_dim * 4, 16, err));
        LS_TRY(ls_pool_check("delta: scale", &args->scale, heads * 4, 4, err));
    }
    {
        const ls_held held = ls_delta_held(args);
        LS_TRY(ls_held_check("delta", &held, &args->held, args->state.n_entries, err));
    }
    if (args->scale.n_entries != args->state.n_entries)
        return LS_FAIL(err, LS_ERR_ARG, "delta: %lld entries of scale, %lld of state", (long long)args->scale.n_entries,
                       (long long)args->state.n_entries);
    return ls_spans_check_count("delta", args->spans, args->n_spans, rows, args->span_rows_max, err);
}
