/* attention backward: what the host can see of a call, and its workspace. */
#include "op/attention_backward.h"

#include "base/mem.h"
#include "dev/device.h"
#include "op/operand.h"

static const char op[] = "attention_backward";

static ls_status check_shape(const ls_attention_backward_args *a, ls_error *err) {
    int64_t cols;
    if (a->dtype != LS_F32 && a->dtype != LS_BF16)
        return LS_FAIL(err, LS_ERR_UNSUPPORTED, "%s: inputs %s; f32 and bf16 are built", op, ls_dtype_name(a->dtype));
    if (a->head_dim < 1 || a->head_dim > LS_HEAD_DIM_MAX)
        return LS_FAIL(err, LS_ERR_ARG, "%s: head dim %lld is not in 1..%d", op, (long long)a->head_dim,
                       LS_HEAD_DIM_MAX);
    if (a->n_kv_heads < 1 || a->n_heads < 1 || a->n_heads % a->n_kv_heads != 0 ||
        !ls_mul_i64(a->n_heads, a->head_dim, &cols))
        return LS_FAIL(err, LS_ERR_ARG, "%s: %lld heads over %lld KV heads", op, (long long)a->n_heads,
                       (long long)a->n_kv_heads);
    LS_TRY(ls_attention_check_profile(op, a->profile, a->dtype, a->head_dim, a->scale, err));
    if (a->window < 0) return LS_FAIL(err, LS_ERR_ARG, "%s: a window of %lld positions", op, (long long)a->window);
    if (a->rows < 0) return LS_FAIL(err, LS_ERR_ARG, "%s: rows %lld", op, (long long)a->rows);
    if (a->key_rows_n < 0 || a->keys_max < 0)
        return LS_FAIL(err, LS_ERR_ARG, "%s: %lld key rows, %lld keys a span at most", op, (long long)a->key_rows_n,
                       (long long)a->keys_max);
    if (a->key_rows == NULL && (a->key_rows_n != 0 || a->keys_max != 0))
        return LS_FAIL(err, LS_ERR_ARG, "%s: key_rows is a null pointer, and there are %lld key rows, %lld a span", op,
                       (long long)a->key_rows_n, (long long)a->keys_max);
    return LS_OK;
}

ls_status ls_attention_backward_check(const ls_attention_backward_args *args, ls_error *err) {
    LS_TRY(check_shape(args, err));
    {
        const int64_t rows = args->rows, keys = ls_attention_key_rows(args), elem = ls_dtype_bytes(args->dtype);
        const int64_t q_cols = args->n_heads * args->head_dim, kv_cols = args->n_kv_heads * args->head_dim;
        const ls_operand operands[] = {
            {"q", args->q, rows, q_cols, args->q_stride, elem, false},
            {"k", args->k, keys, kv_cols, args->kv_stride, elem, false},
            {"v", args->v, keys, kv_cols, args->kv_stride, elem, false},
            {"dout", args->dout, rows, q_cols, args->dout_stride, 4, false},
            {"dq", args->dq, rows, q_cols, args->dq_stride, 4, false},
            {"dk", args->dk, keys, kv_cols, args->dkv_stride, 4, false},
            {"dv", args->dv, keys, kv_cols, args->dkv_stride, 4, false},
            {"out", args->out, rows, q_cols, args->out_stride, elem, args->profile == LS_PROFILE_EXACT},
            {"log_sum", args->log_sum, rows, args->n_heads, args->log_sum_stride, 4, args->profile == LS_PROFILE_EXACT},
        };
        LS_TRY(ls_operands_check(op, operands, (int64_t)(sizeof operands / sizeof operands[0]), err));
    }
    LS_TRY(ls_spans_check_count(op, args->spans, args->n_spans, args->rows, args->span_rows_max, err));
    if (ls_op_attention_backward_workspace(args) < 0)
        return LS_FAIL(err, LS_ERR_NOMEM, "%s: the workspace of %lld rows, %lld heads does not fit 64 bits", op,
                       (long long)args->rows, (long long)args->n_heads);
    return LS_OK;
}

int64_t ls_op_attention_backward_workspace(const ls_attention_backward_args *args) {
    const int64_t f32 = (int64_t)sizeof(float), dim = args->head_dim;
    const bool rounded = args->profile == LS_PROFILE_MMA16;
    const int64_t of_query = rounded ? 2 * f32 + dim * (int64_t)sizeof(uint16_t) : LS_ATTENTION_KEPT * f32;
    int64_t bytes, shares;
    if (!ls_mul_i64(args->rows, args->n_heads, &bytes) || !ls_mul_i64(bytes, of_query, &bytes) ||
        !ls_add_i64(bytes, LS_WORKSPACE_HEAD + (rounded ? 16 : 0), &bytes))
        return -1;
    if (rounded) return bytes;
    if (!ls_mul_i64(ls_attention_key_rows(args), args->n_heads, &shares) ||
        !ls_mul_i64(shares, 2 * dim * f32, &shares) || !ls_add_i64(bytes, shares, &bytes))
        return -1;
    return bytes;
}
