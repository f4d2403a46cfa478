/* attention entry: checks, one pass that stores the new keys and values, one that attends (item: row x head). */
#include "op/attention.h"

#include "op/cpu/kernels.h"

LS_KERNEL_TABLE(ls_kv_store_kernel);
LS_KERNEL_TABLE(ls_attention_kernel);

int64_t ls_kv_page_bytes(int64_t n_kv_heads, int64_t head_dim, int64_t page_tokens, ls_dtype dtype) {
    return 2 * n_kv_heads * head_dim * page_tokens * ls_dtype_bytes(dtype);
}

static ls_status check(const ls_attention_args *a, ls_error *err) {
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
    if (ls_spans_check_rows("attention", a->spans, a->n_spans, INT64_MAX, 0, err) != LS_OK) return LS_ERR_ARG;
    for (int64_t i = 0; i < a->n_spans; i++) {
        const ls_span *s = &a->spans[i];
        if (s->slot < 0) continue;
        for (int64_t page = 0; page * a->page_tokens < s->pos + s->n_rows; page++)
            if (s->pages[page] < 0 || s->pages[page] >= a->pages.n_entries)
                return LS_FAIL(err, LS_ERR_ARG, "attention: span %lld: page %d is not in a pool of %lld", (long long)i,
                               s->pages[page], (long long)a->pages.n_entries);
    }
    return LS_OK;
}

ls_status ls_attention(ls_queue *queue, const ls_attention_args *args, ls_error *err) {
    const ls_status status = check(args, err);
    const int64_t rows = ls_spans_rows(args->spans, args->n_spans);
    int64_t keys = 0; /* over all rows */
    if (status != LS_OK || rows == 0) return status;
    for (int64_t i = 0; i < args->n_spans; i++)
        keys += args->spans[i].n_rows * (args->spans[i].pos + args->spans[i].n_rows / 2 + 1);
    ls_kernel_run(queue, ls_kv_store_kernel_table, args, args->n_spans,
                  rows / args->n_spans * args->n_kv_heads * args->head_dim * 8);
    ls_kernel_run(queue, ls_attention_kernel_table, args, rows * args->n_heads,
                  keys / rows * (2 * args->head_dim + 50));
    return LS_OK;
}
