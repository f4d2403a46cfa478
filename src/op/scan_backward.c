/* scan backward: what the host can see of a call, and the plan of its workspace. */
#include "base/mem.h"
#include "op/operand.h"
#include "op/scan.h"

static const char op[] = "scan_backward";

/* Up to so many blocks, of the states that most models have, a GPU takes runs instead: where blocks do not fill it
 * evenly. Measured; carries no bits. */
#define RUNS_STATES 16
#define RUNS_BLOCKS_MAX 320

static ls_status check_tensors(const ls_scan_backward_args *a, ls_error *err) {
    const int64_t rows = a->rows, dim = a->dim, states = a->n_states, elem = ls_dtype_bytes(a->in_dtype);
    const int64_t out = ls_dtype_bytes(a->out_dtype);
    const int64_t dout = a->dout_bf16 ? 2 : 4, du = a->du_bf16 ? 2 : 4;
    const ls_operand operands[] = {
        {"u", a->u, rows, dim, a->u_stride, elem, false},
        {"dt_raw", a->dt_raw, rows, dim, a->dt_stride, elem, false},
        {"b", a->b, rows, states, a->b_stride, elem, false},
        {"cc", a->cc, rows, states, a->c_stride, elem, false},
        {"z", a->z, rows, dim, a->z_stride, elem, true},
        {"a2", a->a2, dim, states, states, 4, false},
        {"dout", a->dout, rows, dim, a->dout_stride, dout, false},
        {"du", a->du, rows, dim, dim, du, false},
        {"ddt", a->ddt, rows, dim, dim, out, false},
        {"db", a->db, rows, states, states, du, false},
        {"dcc", a->dcc, rows, states, states, du, false},
        {"dz", a->dz, rows, dim, ls_scan_dz_stride(a), out, true},
        {"da2", a->da2, dim, states, states, 4, false},
    };
    LS_TRY(ls_operands_check(op, operands, (int64_t)(sizeof operands / sizeof operands[0]), err));
    LS_TRY(ls_operands_check_pair(op, "z", a->z, "dz", a->dz, err));
    LS_TRY(ls_operands_check_pair(op, "dt_bias", a->dt_bias, "ddt_bias", a->ddt_bias, err));
    return ls_operands_check_pair(op, "d", a->d, "dd", a->dd, err);
}

ls_status ls_scan_backward_check(const ls_scan_backward_args *args, ls_error *err) {
    ls_scan_backward_plan plan;
    if (!ls_dtype_is_stored(args->in_dtype) || !ls_dtype_is_stored(args->out_dtype))
        return LS_FAIL(err, LS_ERR_UNSUPPORTED, "%s: inputs %s, outputs %s; f32 and bf16 are built", op,
                       ls_dtype_name(args->in_dtype), ls_dtype_name(args->out_dtype));
    if (args->n_states < 1 || args->n_states > LS_SCAN_STATES_MAX)
        return LS_FAIL(err, LS_ERR_ARG, "%s: n_states %lld is not in 1..%d", op, (long long)args->n_states,
                       LS_SCAN_STATES_MAX);
    if (args->rows < 0 || args->dim < 1)
        return LS_FAIL(err, LS_ERR_ARG, "%s: rows %lld, dim %lld", op, (long long)args->rows, (long long)args->dim);
    LS_TRY(check_tensors(args, err));
    LS_TRY(ls_spans_check_count(op, args->spans, args->n_spans, args->rows, args->span_rows_max, err));
    if (!ls_scan_backward_plan_make(&plan, args))
        return LS_FAIL(err, LS_ERR_NOMEM, "%s: the workspace of %lld rows, %lld spans, dim %lld does not fit 64 bits",
                       op, (long long)args->rows, (long long)args->n_spans, (long long)args->dim);
    {
        const int64_t state = args->dim * args->n_states, n = args->n_spans;
        const ls_operand states[] = {
            {"initial", args->initial, n, state, state, 4, true},
            {"dinitial", args->dinitial, n, state, state, 4, true},
            {"dfinal", args->dfinal, n, state, state, 4, true},
        };
        return ls_operands_check(op, states, (int64_t)(sizeof states / sizeof states[0]), err);
    }
}

bool ls_scan_backward_plan_make(ls_scan_backward_plan *plan, const ls_scan_backward_args *args) {
    const int64_t dim = args->dim, states = args->n_states, n_spans = args->n_spans;
    int64_t kept;
    if (args->rows < 0 || dim < 0 || !ls_add_i64(args->rows / LS_SCAN_KEEP, n_spans, &kept)) return false;
    plan->n_blocks = ls_scan_sum_blocks(dim);
    plan->by_runs = states == RUNS_STATES && n_spans <= RUNS_BLOCKS_MAX / plan->n_blocks;
    plan->total = 0;
    plan->states = ls_take_i64(&plan->total, ls_mul3_i64(kept, dim, states));
    plan->sums = ls_take_i64(&plan->total,
                             ls_mul3_i64(plan->n_blocks, args->rows, ls_mul3_i64(plan->by_runs ? 4 : 1, 2, states)));
    plan->a2 = ls_take_i64(&plan->total, ls_mul3_i64(n_spans, dim, states));
    plan->d = ls_take_i64(&plan->total, ls_mul3_i64(n_spans, dim, 1));
    plan->bias = ls_take_i64(&plan->total, ls_mul3_i64(n_spans, dim, 1));
    return plan->total >= 0;
}
