/* attention on the CPU: lanes are keys while scores are made, dimensions while values are summed. */
#include "num/expf.h"
#include "op/attention.h"
#include "op/cpu/kernels.h"
#include "op/rows.h"

/* Start of the page's K part for a KV head, and of its V part; offsets in elements. */
static int64_t k_offset(const ls_attention_args *a, int64_t kv_head) { return kv_head * a->head_dim * a->page_tokens; }
static int64_t v_offset(const ls_attention_args *a, int64_t kv_head) {
    return (a->n_kv_heads + kv_head) * a->head_dim * a->page_tokens;
}

/* Number of the page that holds a position. */
static int32_t page_of(const ls_attention_args *a, const ls_span *span, int64_t pos) {
    return a->tables[span->table + pos / a->page_tokens];
}

static void store_element(void *page, ls_dtype dtype, int64_t at, const void *from, int64_t from_at) {
    if (dtype == LS_F32)
        ((float *)page)[at] = ((const float *)from)[from_at];
    else
        ((uint16_t *)page)[at] = ((const uint16_t *)from)[from_at];
}

LS_KERNEL_DEFINE(ls_kv_store_kernel) {
    const ls_attention_args *a = context;
    (void)scratch;
    for (int64_t i = begin; i < end; i++) {
        const ls_span *span = &a->spans[i];
        if (span->slot < 0) continue;
        for (int64_t t = 0; t < span->n_rows; t++) {
            const int64_t pos = span->pos + t, in_page = pos % a->page_tokens;
            void *page = ls_pool_at(&a->pages, page_of(a, span, pos));
            for (int64_t head = 0; head < a->n_kv_heads; head++)
                for (int64_t d = 0; d < a->head_dim; d++) {
                    const int64_t from = (span->row + t) * a->kv_stride + head * a->head_dim + d;
                    store_element(page, a->dtype, k_offset(a, head) + d * a->page_tokens + in_page, a->k, from);
                    store_element(page, a->dtype, v_offset(a, head) + in_page * a->head_dim + d, a->v, from);
                }
        }
    }
}

/* n stored values as float32: where they lie, or widened in scratch. */
static const float *as_floats(const void *page, ls_dtype dtype, int64_t at, int64_t n, float *scratch) {
    if (dtype == LS_F32) return (const float *)page + at;
    ls_row_widen(scratch, ls_at(page, dtype, at), dtype, n);
    return scratch;
}

typedef struct softmax_state {
    float m, l;
    float acc[LS_HEAD_DIM_MAX];
} softmax_state;

static float fold64(float *e) {
    for (int half = LS_ATTENTION_BLOCK / 2; half > 0; half /= 2)
        for (int j = 0; j < half; j++) e[j] = ls_add(e[j], e[j + half]);
    return e[0];
}

/* Takes keys [begin, end) of the block that begins at position first into the running softmax: all of a block, or what
 * the query sees of it. */
static void take_block(const ls_attention_args *a, const ls_span *span, const float *q, int64_t kv_head, int64_t first,
                       int64_t begin, int64_t end, softmax_state *state, float *scratch) {
    const int64_t dim = a->head_dim, page_tokens = a->page_tokens;
    float score[LS_ATTENTION_BLOCK] = {0}, e[LS_ATTENTION_BLOCK] = {0}, folded[LS_ATTENTION_BLOCK];
    float m = state->m, correction;
    for (int64_t base = begin / page_tokens * page_tokens; base < end; base += page_tokens) {
        const void *page = ls_pool_at(&a->pages, page_of(a, span, first + base));
        float *restrict s = score + base;
        for (int64_t d = 0; d < dim; d++) {
            const float *keys = as_floats(page, a->dtype, k_offset(a, kv_head) + d * page_tokens, page_tokens, scratch);
            for (int64_t j = 0; j < page_tokens; j++) s[j] = ls_fma(q[d], keys[j], s[j]);
        }
    }
    for (int64_t j = begin; j < end; j++) {
        score[j] = ls_mul(score[j], a->scale);
        m = ls_max(score[j], m);
    }
    correction = ls_exp(ls_sub(state->m, m));
    for (int64_t j = begin; j < end; j++) e[j] = ls_exp(ls_sub(score[j], m));
    memcpy(folded, e, sizeof e);
    state->l = ls_fma(state->l, correction, fold64(folded));
    state->m = m;
    for (int64_t d = 0; d < dim; d++) state->acc[d] = ls_mul(state->acc[d], correction);
    for (int64_t base = begin / page_tokens * page_tokens; base < end; base += page_tokens) {
        const void *page = ls_pool_at(&a->pages, page_of(a, span, first + base));
        const int64_t part = end - base < page_tokens ? end - base : page_tokens;
        for (int64_t j = begin > base ? begin - base : 0; j < part; j++) {
            const float *values = as_floats(page, a->dtype, v_offset(a, kv_head) + j * dim, dim, scratch);
            for (int64_t d = 0; d < dim; d++) state->acc[d] = ls_fma(e[base + j], values[d], state->acc[d]);
        }
    }
}

static void reset(softmax_state *state, int64_t dim) {
    state->m = -HUGE_VALF;
    state->l = 0.0f;
    memset(state->acc, 0, (size_t)dim * sizeof(float));
}

static void combine(softmax_state *total, const softmax_state *segment, int64_t dim) {
    const float m = ls_max(segment->m, total->m);
    const float from_total = ls_exp(ls_sub(total->m, m)), from_segment = ls_exp(ls_sub(segment->m, m));
    total->l = ls_fma(total->l, from_total, ls_mul(segment->l, from_segment));
    total->m = m;
    for (int64_t d = 0; d < dim; d++)
        total->acc[d] = ls_fma(total->acc[d], from_total, ls_mul(segment->acc[d], from_segment));
}

static void attend(const ls_attention_args *a, const ls_span *span, int64_t t, int64_t head, float *scratch) {
    const int64_t dim = a->head_dim, row = span->row + t, n_keys = span->pos + t + 1;
    const int64_t from = ls_attention_first(span->pos + t, a->window);
    const int64_t kv_head = head / (a->n_heads / a->n_kv_heads);
    float q[LS_HEAD_DIM_MAX];
    softmax_state total, segment;
    ls_row_widen(q, ls_at(a->q, a->dtype, row * a->q_stride + head * dim), a->dtype, dim);
    reset(&total, dim);
    for (int64_t start = from / LS_ATTENTION_SEGMENT * LS_ATTENTION_SEGMENT; start < n_keys;
         start += LS_ATTENTION_SEGMENT) {
        const int64_t stop = n_keys - start < LS_ATTENTION_SEGMENT ? n_keys : start + LS_ATTENTION_SEGMENT;
        const bool is_first = start <= from;
        softmax_state *state = is_first ? &total : &segment;
        if (!is_first) reset(&segment, dim);
        for (int64_t first = is_first ? from / LS_ATTENTION_BLOCK * LS_ATTENTION_BLOCK : start; first < stop;
             first += LS_ATTENTION_BLOCK)
            take_block(a, span, q, kv_head, first, first < from ? from - first : 0,
                       stop - first < LS_ATTENTION_BLOCK ? stop - first : LS_ATTENTION_BLOCK, state, scratch);
        if (!is_first) combine(&total, &segment, dim);
    }
    for (int64_t d = 0; d < dim; d++) q[d] = ls_div(total.acc[d], total.l);
    ls_row_narrow(ls_at_mut(a->out, a->dtype, row * a->out_stride + head * dim), a->dtype, q, dim);
}

LS_KERNEL_DEFINE(ls_attention_kernel) {
    const ls_attention_args *a = context;
    int64_t first = 0; /* items of the spans before this one */
    for (int64_t i = 0; i < a->n_spans && first < end; i++) {
        const ls_span *span = &a->spans[i];
        const int64_t n = span->n_rows * a->n_heads;
        const int64_t from = begin > first ? begin - first : 0, to = end - first < n ? end - first : n;
        if (span->slot >= 0)
            for (int64_t item = from; item < to; item++) attend(a, span, item / a->n_heads, item % a->n_heads, scratch);
        first += n;
    }
}
