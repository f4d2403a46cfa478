/* delta backward: what the host can see of a call, and the plan of its workspace. */
#include "base/mem.h"
#include "op/delta.h"
#include "op/operand.h"

static const char op[] = "delta_backward";

ls_status ls_delta_backward_check(const ls_delta_backward_args *args, ls_error *err) {
    const int64_t rows = args->rows, heads = args->n_heads, elem = ls_dtype_bytes(args->in_dtype);
    const int64_t ab = ls_dtype_bytes(args->dab_dtype);
    const ls_delta_shape shape = {rows, heads, args->n_key_heads, args->key_dim, args->value_dim};
    ls_delta_backward_plan plan;
    if (!ls_dtype_is_stored(args->in_dtype) || !ls_dtype_is_stored(args->dab_dtype))
        return LS_FAIL(err, LS_ERR_UNSUPPORTED, "%s: inputs %s, da and db %s; f32 and bf16 are built", op,
                       ls_dtype_name(args->in_dtype), ls_dtype_name(args->dab_dtype));
    LS_TRY(ls_delta_check_shape(op, &shape, err));
    LS_TRY(ls_spans_check_count(op, args->spans, args->n_spans, rows, args->span_rows_max, err));
    if (!ls_delta_backward_plan_make(&plan, args))
        return LS_FAIL(err, LS_ERR_NOMEM, "%s: the workspace of %lld rows, %lld spans, %lld heads does not fit 64 bits",
                       op, (long long)rows, (long long)args->n_spans, (long long)heads);
    if (args->initial_scale != NULL && args->initial == NULL)
        return LS_FAIL(err, LS_ERR_ARG, "%s: initial is a null pointer and initial_scale is not", op);
    {
        const int64_t keys = args->n_key_heads * args->key_dim, values = heads * args->value_dim;
        const int64_t state = values * args->key_dim, n = args->n_spans;
        const ls_operand operands[] = {
            {"q", args->q, rows, keys, args->q_stride, elem, false},
            {"k", args->k, rows, keys, args->k_stride, elem, false},
            {"v", args->v, rows, values, args->v_stride, elem, false},
            {"a", args->a, rows, heads, args->a_stride, elem, false},
            {"b", args->b, rows, heads, args->b_stride, elem, false},
            {"rate", args->rate, 1, heads, heads, 4, false},
            {"dt_bias", args->dt_bias, 1, heads, heads, 4, false},
            {"initial", args->initial, n, state, state, 4, true},
            {"dout", args->dout, rows, values, args->dout_stride, 4, false},
            {"dq", args->dq, rows, keys, args->dq_stride, 4, false},
            {"dk", args->dk, rows, keys, args->dk_stride, 4, false},
            {"dv", args->dv, rows, values, args->dv_stride, 4, false},
            {"da", args->da, rows, heads, args->da_stride, ab, false},
            {"db", args->db, rows, heads, args->db_stride, ab, false},
            {"drate", args->drate, 1, heads, heads, 4, false},
            {"ddt_bias", args->ddt_bias, 1, heads, heads, 4, false},
            {"dinitial", args->dinitial, n, state, state, 4, true},
            {"initial_scale", args->initial_scale, n, heads, heads, 4, true},
            {"dfinal", args->dfinal, n, state, state, 4, true},
        };
        return ls_operands_check(op, operands, (int64_t)(sizeof operands / sizeof operands[0]), err);
    }
}

bool ls_delta_backward_plan_make(ls_delta_backward_plan *plan, const ls_delta_backward_args *args) {
    const int64_t heads = args->n_heads, n_spans = args->n_spans;
    int64_t entries;
    if (args->rows < 0 || n_spans < 0 || heads < 0 || !ls_add_i64(args->rows / LS_DELTA_PIECE, n_spans, &entries))
        return false;
    plan->total = 0;
    /* Vectors before numbers: where the first are of multiples of four, so are their places. */
    plan->states =
        ls_take_i64(&plan->total, ls_mul3_i64(entries, heads, ls_mul3_i64(args->key_dim, args->value_dim, 1)));
    plan->grads =
        ls_take_i64(&plan->total, ls_mul3_i64(entries, heads, ls_mul3_i64(args->key_dim, args->value_dim, 1)));
    plan->deltas = ls_take_i64(&plan->total, ls_mul3_i64(args->rows, heads, args->value_dim));
    plan->inner = ls_take_i64(&plan->total, ls_mul3_i64(args->rows, heads, args->value_dim));
    plan->queries = ls_take_i64(&plan->total, ls_mul3_i64(args->rows, args->n_key_heads, args->key_dim));
    plan->keys = ls_take_i64(&plan->total, ls_mul3_i64(args->rows, args->n_key_heads, args->key_dim));
    plan->last = ls_take_i64(&plan->total, args->dfinal != NULL ? ls_mul3_i64(n_spans, heads, args->value_dim) : 0);
    plan->borders = ls_take_i64(&plan->total, ls_mul3_i64(entries, heads, args->value_dim));
    plan->scale = ls_take_i64(&plan->total, ls_mul3_i64(args->rows, heads, 1));
    plan->factor = ls_take_i64(&plan->total, ls_mul3_i64(args->rows, heads, 1));
    plan->g_scale = ls_take_i64(&plan->total, ls_mul3_i64(args->rows, heads, 1));
    plan->g_factor = ls_take_i64(&plan->total, ls_mul3_i64(args->rows, heads, 1));
    plan->e = ls_take_i64(&plan->total, ls_mul3_i64(args->rows, heads, 1));
    plan->own = ls_take_i64(&plan->total, ls_mul3_i64(args->rows, args->n_key_heads, 1));
    plan->first = ls_take_i64(&plan->total, ls_mul3_i64(entries, heads, 1));
    plan->rate = ls_take_i64(&plan->total, ls_mul3_i64(entries, heads, 1));
    plan->bias = ls_take_i64(&plan->total, ls_mul3_i64(entries, heads, 1));
    return plan->total >= 0;
}
