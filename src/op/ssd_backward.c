/* ssd backward: what the host can see of a call, and the plan of its workspace. */
#include "base/mem.h"
#include "op/operand.h"
#include "op/ssd.h"

static const char op[] = "ssd_backward";

static bool stored(ls_dtype dtype) { return dtype == LS_F32 || dtype == LS_BF16; }

ls_status ls_ssd_backward_check(const ls_ssd_backward_args *args, ls_error *err) {
    const int64_t rows = args->rows, heads = args->n_heads, elem = ls_dtype_bytes(args->in_dtype);
    const ls_ssd_shape shape = {rows,           heads,        args->head_dim, args->n_groups,
                                args->n_states, args->dt_min, args->dt_max};
    ls_ssd_backward_plan plan;
    if (!stored(args->in_dtype) || !stored(args->ddt_dtype))
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
    return LS_OK;
}

/* Takes `count` floats, none where count is -1; its offset, or -1. */
static int64_t take(int64_t *total, int64_t count) {
    const int64_t at = *total;
    if (at < 0 || !ls_add_i64(at, count, total)) *total = -1;
    return at;
}

/* a * b * c, or -1. */
static int64_t product(int64_t a, int64_t b, int64_t c) {
    int64_t out;
    return a >= 0 && b >= 0 && c >= 0 && ls_mul_i64(a, b, &out) && ls_mul_i64(out, c, &out) ? out : -1;
}

bool ls_ssd_backward_plan_make(ls_ssd_backward_plan *plan, const ls_ssd_backward_args *args) {
    const int64_t heads = args->n_heads, n_spans = args->n_spans;
    int64_t entries;
    if (args->rows < 0 || n_spans < 0 || heads < 0 || args->n_groups < 1 ||
        !ls_add_i64(args->rows / LS_SSD_PIECE, n_spans, &entries))
        return false;
    plan->group_blocks = ls_ssd_group_blocks(heads, args->n_groups);
    plan->n_blocks = product(plan->group_blocks, args->n_groups, 1);
    plan->total = 0;
    plan->states = take(&plan->total, product(entries, heads, product(args->n_states, args->head_dim, 1)));
    plan->first = take(&plan->total, product(entries, heads, 1));
    plan->sums = take(&plan->total, product(plan->n_blocks, args->rows, product(2, args->n_states, 1)));
    plan->e = take(&plan->total, product(args->rows, heads, 1));
    plan->x = take(&plan->total, product(args->rows, heads, 1));
    plan->y = take(&plan->total, product(args->rows, heads, 1));
    plan->k = take(&plan->total, product(args->rows, args->n_groups, 1));
    plan->j = take(&plan->total, product(args->rows, plan->n_blocks, 1));
    plan->a = take(&plan->total, product(entries, heads, 1));
    plan->d = take(&plan->total, product(entries, heads, 1));
    plan->bias = take(&plan->total, product(entries, heads, 1));
    return plan->total >= 0;
}
