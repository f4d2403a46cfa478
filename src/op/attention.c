/* attention: what the host can see of a call. */
#include "op/attention.h"

int64_t ls_kv_page_bytes(int64_t n_kv_heads, int64_t head_dim, int64_t page_tokens, ls_dtype dtype) {
    return 2 * n_kv_heads * head_dim * page_tokens * ls_dtype_bytes(dtype);
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
    if (a->q_stride < a->n_heads * a->head_dim || a->kv_stride < a->n_kv_heads * a->head_dim ||
        a->out_stride < a->n_heads * a->head_dim)
        return LS_FAIL(err, LS_ERR_ARG, "attention: strides q %lld kv %lld out %lld", (long long)a->q_stride,
                       (long long)a->kv_stride, (long long)a->out_stride);
    return ls_spans_check_count("attention", a->spans, a->n_spans, a->rows, 0, err);
}
