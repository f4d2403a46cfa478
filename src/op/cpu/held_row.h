/* Outer products that a state lacks, on the CPU: op/held.h. */
#ifndef LS_OP_CPU_HELD_ROW_H
#define LS_OP_CPU_HELD_ROW_H

#include "op/held.h"

/* A head of a slot, for one span. */
typedef struct ls_held_head {
    const ls_held *held;
    float *entry; /* NULL: nothing is ever held */
    int64_t head;
    bool keeps; /* the span leaves its outer product instead of a state */
} ls_held_head;

static inline ls_held_head ls_held_begin(const ls_held *held, const ls_pool_view *pool, const ls_span *span,
                                         int64_t head) {
    ls_held_head k = {held, NULL, head, false};
    if (held->total == 0) return k;
    k.entry = (float *)ls_pool_at(pool, span->slot);
    k.keeps = ls_held_keeps(held, span, ls_held_count(held, k.entry, head));
    return k;
}

/* row = fma(own, shared, row); they do not overlap. */
static inline void ls_held_row(float *restrict row, const float *restrict own, float shared, int64_t n) {
    for (int64_t i = 0; i < n; i++) row[i] = ls_fma(own[i], shared, row[i]);
}

/* s: the head's state after all tokens, from the one as it was written. */
static inline void ls_held_run(const ls_held_head *k, float *s) {
    const ls_held *h = k->held;
    const int64_t n = ls_held_count(h, k->entry, k->head), each = h->rows * h->cols;
    for (int64_t t = 0; t < n; t++) {
        float *record = ls_held_record(h, k->entry, t);
        const float factor = *ls_held_factor(h, record, k->head);
        const float *own = ls_held_own(h, record, k->head), *shared = ls_held_shared(h, record, k->head);
        if (factor != 1.0f)
            for (int64_t i = 0; i < each; i++) s[i] = ls_mul(s[i], factor);
        for (int64_t r = 0; r < h->rows; r++) ls_held_row(s + r * h->cols, own, shared[r], h->cols);
    }
}

/* The state before the span's first row, in place or, where the span keeps, in `copy`. */
static inline float *ls_held_open(const ls_held_head *k, const ls_span *span, float *stored, float *copy) {
    const size_t bytes = (size_t)(k->held->rows * k->held->cols) * sizeof *stored;
    if (span->pos == 0) return memset(stored, 0, bytes);
    if (k->keeps) stored = memcpy(copy, stored, bytes);
    if (k->entry != NULL) ls_held_run(k, stored);
    return stored;
}

/* Adds a token's outer product to what is held. factor: 1 where it does not rescale. */
static inline void ls_held_add(const ls_held_head *k, const float *own, const float *shared, float factor) {
    const ls_held *h = k->held;
    const int64_t n = ls_held_count(h, k->entry, k->head);
    float *record = ls_held_record(h, k->entry, n);
    memcpy(ls_held_own(h, record, k->head), own, (size_t)h->cols * sizeof *own);
    *ls_held_factor(h, record, k->head) = factor;
    if (ls_held_writes_shared(h, k->head))
        memcpy(ls_held_shared(h, record, k->head), shared, (size_t)h->rows * sizeof *shared);
    ls_held_set_count(k->entry, k->head, n + 1);
}

/* Behind the span's last row. */
static inline void ls_held_close(const ls_held_head *k, const float *own, const float *shared, float factor) {
    if (k->keeps)
        ls_held_add(k, own, shared, factor);
    else if (k->entry != NULL)
        ls_held_set_count(k->entry, k->head, 0);
}

#endif
