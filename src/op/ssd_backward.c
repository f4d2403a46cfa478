/* ssd backward: what the host can see of a call, and the plan of its workspace. */
#include "base/mem.h"
#include "op/operand.h"
#include "op/ssd.h"

static const char op[] = "ssd_backward";

ls_status ls_ssd_backward_check(const ls_ssd_backward_args *args, ls_error *err) {
    const int64_t rows = args->rows, heads = args->n_heads, elem = ls_dtype_bytes(args->in_dtype);
    const ls_ssd_shape shape = {rows,           heads,        args->head_dim, args->n_groups,
                                args->n_states, args->dt_min, args->dt_max};
    ls_ssd_backward_plan plan;
    if (!ls_dtype_is_stored(args->in_dtype) || !ls_dtype_is_stored(args->ddt_dtype))
        return LS_FAIL(err, LS_ERR_UNSUPPORTED, "%s: inputs %s, ddt %s; f32 and bf16 are built", op,
                       ls_dtype_name(args->in_dtype), ls_dtype_name(args->ddt_dtype));
    LS_TRY(ls_ssd_check_shape(op, &shape, err));
    {
        const int64_t dim = heads * args->head_dim, states = args->n_groups * args->n_states;
        const ls_operand operands[] = {
            {"x", args->x, rows, dim, args->x_stride, elem, false},
            {"dt_raw", args->dt_raw, rows, heads, args->dt_stride, elem, false},
            {"b", args->b, rows, states, args->b_stride, elem, false},
            {"cc", args->cc, rows, states, args->c_stride, elem, false},
            {"a", args->a, 1, heads, heads, 4, false},
            {"dt_bias", args->dt_bias, 1, heads, heads, 4, false},
            {"d", args->d, 1, heads, heads, 4, false},
            {"dout", args->dout, rows, dim, args->dout_stride, 4, false},
            {"dx", args->dx, rows, dim, args->dx_stride, 4, false},
            {"db", args->db, rows, states, args->db_stride, 4, false},
            {"dcc", args->dcc, rows, states, args->dc_stride, 4, false},
            {"ddt", args->ddt, rows, heads, args->ddt_stride, ls_dtype_bytes(args->ddt_dtype), false},
            {"da", args->da, 1, heads, heads, 4, false},
            {"ddt_bias", args->ddt_bias, 1, heads, heads, 4, false},
            {"dd", args->dd, 1, heads, heads, 4, false},
        };
        LS_TRY(ls_operands_check(op, operands, (int64_t)(sizeof operands / sizeof operands[0]), err));
    }
    LS_TRY(ls_spans_check_count(op, args->spans, args->n_spans, rows, args->span_rows_max, err));
    if (!ls_ssd_backward_plan_make(&plan, args))
        return LS_FAIL(err, LS_ERR_NOMEM, "%s: the workspace of %lld rows, %lld spans, %lld heads does not fit 64 bits",
                       op, (long long)rows, (long long)args->n_spans, (long long)heads);
    if (args->initial_scale != NULL && args->initial == NULL)
        return LS_FAIL(err, LS_ERR_ARG, "%s: initial is a null pointer and initial_scale is not", op);
    {
        const int64_t state = heads * args->n_states * args->head_dim, n = args->n_spans;
        const ls_operand states[] = {
            {"initial", args->initial, n, state, state, 4, true},
            {"initial_scale", args->initial_scale, n, heads, heads, 4, true},
            {"dinitial", args->dinitial, n, state, state, 4, true},
            {"dfinal", args->dfinal, n, state, state, 4, true},
        };
        return ls_operands_check(op, states, (int64_t)(sizeof states / sizeof states[0]), err);
    }
}

bool ls_ssd_backward_plan_make(ls_ssd_backward_plan *plan, const ls_ssd_backward_args *args) {
    const int64_t heads = args->n_heads, n_spans = args->n_spans;
    int64_t entries;
    if (args->rows < 0 || n_spans < 0 || heads < 0 || args->n_groups < 1 ||
        !ls_add_i64(args->rows / LS_SSD_PIECE, n_spans, &entries))
        return false;
    plan->group_blocks = ls_ssd_group_blocks(heads, args->n_groups);
    plan->n_blocks = ls_mul3_i64(plan->group_blocks, args->n_groups, 1);
    plan->total = 0;
    plan->states =
        ls_take_i64(&plan->total, ls_mul3_i64(entries, heads, ls_mul3_i64(args->n_states, args->head_dim, 1)));
    plan->first = ls_take_i64(&plan->total, ls_mul3_i64(entries, heads, 1));
    plan->sums = ls_take_i64(&plan->total, ls_mul3_i64(plan->n_blocks, args->rows, ls_mul3_i64(2, args->n_states, 1)));
    plan->e = ls_take_i64(&plan->total, ls_mul3_i64(args->rows, heads, 1));
    plan->x = ls_take_i64(&plan->total, ls_mul3_i64(args->rows, heads, 1));
    plan->y = ls_take_i64(&plan->total, ls_mul3_i64(args->rows, heads, 1));
    plan->k = ls_take_i64(&plan->total, ls_mul3_i64(args->rows, args->n_groups, 1));
    plan->j = ls_take_i64(&plan->total, ls_mul3_i64(args->rows, plan->n_blocks, 1));
    plan->a = ls_take_i64(&plan->total, ls_mul3_i64(entries, heads, 1));
    plan->d = ls_take_i64(&plan->total, ls_mul3_i64(entries, heads, 1));
    plan->bias = ls_take_i64(&plan->total, ls_mul3_i64(entries, heads, 1));
    plan->last = ls_take_i64(&plan->total, args->dfinal != NULL ? ls_mul3_i64(n_spans, heads, 1) : 0);
    return plan->total >= 0;
}
