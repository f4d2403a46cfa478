/* attention: what the host can see of a call. */
#include "op/attention.h"

#include "base/mem.h"
#include "op/operand.h"
#include "op/profile.h"

int64_t ls_kv_page_bytes(int64_t n_kv_heads, int64_t head_dim, int64_t page_tokens, ls_dtype dtype) {
    return 2 * n_kv_heads * head_dim * page_tokens * ls_dtype_bytes(dtype);
}

static ls_status check_memory(const ls_attention_args *a, ls_error *err) {
    const int64_t rows = a->rows, elem = ls_dtype_bytes(a->dtype);
    int64_t page;
    if (a->dtype != LS_F32 && a->dtype != LS_BF16)
        return LS_FAIL(err, LS_ERR_UNSUPPORTED, "attention: %s; f32 and bf16 are built", ls_dtype_name(a->dtype));
    if (rows < 0 || a->n_tables < 0)
        return LS_FAIL(err, LS_ERR_ARG, "attention: %lld rows, %lld entries of tables", (long long)rows,
                       (long long)a->n_tables);
    if (!ls_mul_i64(a->n_kv_heads, 2 * a->head_dim * a->page_tokens * elem, &page))
        return LS_FAIL(err, LS_ERR_NOMEM, "attention: a page of %lld KV heads does not fit 64 bits",
                       (long long)a->n_kv_heads);
    {
        const int64_t q_cols = a->n_heads * a->head_dim, kv_cols = a->n_kv_heads * a->head_dim;
        const ls_operand operands[] = {
            {"q", a->q, rows, q_cols, a->q_stride, elem, rows == 0},
            {"k", a->k, rows, kv_cols, a->kv_stride, elem, rows == 0},
            {"v", a->v, rows, kv_cols, a->kv_stride, elem, rows == 0},
            {"out", a->out, rows, q_cols, a->out_stride, elem, rows == 0},
            {"tables", a->tables, a->n_tables, 1, 1, 4, a->n_tables == 0},
            {"log_sum", a->log_sum, rows, a->n_heads, a->log_sum_stride, 4, a->log_sum == NULL},
        };
        LS_TRY(ls_operands_check("attention", operands, (int64_t)(sizeof operands / sizeof operands[0]), err));
    }
    return rows == 0 ? LS_OK : ls_pool_check("attention", &a->pages, page, elem, err);
}

ls_status ls_attention_check_profile(const char *op, ls_profile profile, ls_dtype dtype, int64_t head_dim, float scale,
                                     ls_error *err) {
    LS_TRY(ls_profile_check(op, profile, "q, k, v", dtype, err));
    if (profile == LS_PROFILE_EXACT) return LS_OK;
    if (head_dim > LS_ATTENTION_DIM_MMA16)
        return LS_FAIL(err, LS_ERR_UNSUPPORTED, "%s: profile mma16: head dim %lld; up to %d are built", op,
                       (long long)head_dim, LS_ATTENTION_DIM_MMA16);
    if (!(scale > 0.0f))
        return LS_FAIL(err, LS_ERR_ARG, "%s: profile mma16: scale %g is not above 0", op, (double)scale);
    return LS_OK;
}

ls_status ls_attention_check(const ls_attention_args *a, ls_error *err) {
    if (a->head_dim < 1 || a->head_dim > LS_HEAD_DIM_MAX)
        return LS_FAIL(err, LS_ERR_ARG, "attention: head dim %lld is not in 1..%d", (long long)a->head_dim,
                       LS_HEAD_DIM_MAX);
    if (a->n_kv_heads < 1 || a->n_heads < 1 || a->n_heads % a->n_kv_heads != 0)
        return LS_FAIL(err, LS_ERR_ARG, "attention: %lld heads over %lld KV heads", (long long)a->n_heads,
                       (long long)a->n_kv_heads);
    if (a->page_tokens < 1 || LS_ATTENTION_BLOCK % a->page_tokens != 0)
        return LS_FAIL(err, LS_ERR_ARG, "attention: page of %lld tokens does not divide %d", (long long)a->page_tokens,
                       LS_ATTENTION_BLOCK);
    if (a->window < 0) return LS_FAIL(err, LS_ERR_ARG, "attention: a window of %lld positions", (long long)a->window);
    if (a->q_stride < a->n_heads * a->head_dim || a->kv_stride < a->n_kv_heads * a->head_dim ||
        a->out_stride < a->n_heads * a->head_dim)
        return LS_FAIL(err, LS_ERR_ARG, "attention: strides q %lld kv %lld out %lld", (long long)a->q_stride,
                       (long long)a->kv_stride, (long long)a->out_stride);
    LS_TRY(ls_attention_check_profile("attention", a->profile, a->dtype, a->head_dim, a->scale, err));
    if (a->log_sum != NULL && (a->profile != LS_PROFILE_MMA16 || a->log_sum_stride < a->n_heads))
        return LS_FAIL(err, LS_ERR_ARG, "attention: log_sum of %lld heads with stride %lld: profile mma16 alone has it",
                       (long long)a->n_heads, (long long)a->log_sum_stride);
    LS_TRY(check_memory(a, err));
    return ls_spans_check_count("attention", a->spans, a->n_spans, a->rows, 0, err);
}

ls_status ls_attention_heads_check(const ls_attention_heads_args *args, ls_error *err) {
    const ls_rope_args *h = &args->heads;
    const ls_attention_args *a = &args->attention;
    const uint8_t *y = h->y;
    LS_TRY(ls_rope_check(h, err));
    LS_TRY(ls_attention_check(a, err));
    const int64_t size = ls_dtype_bytes(a->dtype), q = a->n_heads * a->head_dim, kv = a->n_kv_heads * a->head_dim;
    if (h->n_parts != 3 || h->part[0].n_heads != a->n_heads || h->part[1].n_heads != a->n_kv_heads ||
        h->part[2].n_heads != a->n_kv_heads || h->head_dim != a->head_dim || h->rows != a->rows)
        return LS_FAIL(err, LS_ERR_ARG, "attention_heads: the parts are not the heads of q, k and v");
    if (h->y_dtype != a->dtype || h->y_stride != a->q_stride || h->y_stride != a->kv_stride ||
        (h->rows > 0 && (a->q != y || a->k != y + q * size || a->v != y + (q + kv) * size)))
        return LS_FAIL(err, LS_ERR_ARG, "attention_heads: q, k and v are not what heads.y holds");
    return LS_OK;
}
