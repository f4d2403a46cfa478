/* What the kernels of attention's forward of the profile mma16 share: a call, a tile of queries, and what a thread
 * keeps of a row. Compiled for sm_90a. */
#ifndef LS_OP_CUDA_ATTENTION_MMA16_ROWS_CUDA_H
#define LS_OP_CUDA_ATTENTION_MMA16_ROWS_CUDA_H

#include "op/cuda/attention_cuda.h"
#include "op/cuda/attention_mma16_cuda.h"
#include "op/cuda/mma16_cuda.h"
#include "op/cuda/rope_heads_cuda.h"

#define STEPS (BLOCK / 16)

typedef struct mma16_params {
    ls_attention_args a;
    const ls_fault *fault;
    uint32_t group;  /* query heads of a KV head */
    uint32_t items;  /* KV heads of spans */
    uint32_t count;  /* items, slices times */
    uint32_t slices; /* tiles of a KV head of a span, at the most; all of them and all queries fit 31 bits */
    int page_shift;  /* page_tokens = 1 << page_shift */
    float scale2;    /* c */
    bool boxed;      /* pages come by keys and values, the maps */
    bool wide_pages, wide_queries, wide_out; /* are copied 16 bytes at a time */
    bool boxed_queries;                      /* come by queries, which needs boxed */
    CUtensorMap keys, values, queries;
    ls_rope_args heads; /* of a call that makes queries and new keys and values itself */
} mma16_params;

/* Query i of a span: token i / group, head i % group of the KV head. */
typedef struct tile {
    const mma16_params *p;
    ls_span span;
    int64_t kv_head;
    uint32_t first_query, n_queries; /* n_queries: of the span */
    int64_t begin;                   /* of the first block of which the first row takes a key */
    int64_t keys;                    /* before this position are those that the last row takes */
} tile;

/* Where those who wait together are in the ring, and the number of their tile or its parity. */
typedef struct ring_place {
    int stage, phase, tile;
} ring_place;

template <class S>
static __device__ __forceinline__ void advance(ring_place *r) {
    if (++r->stage == S::STAGES) {
        r->stage = 0;
        r->phase ^= 1;
    }
}

/* One of the two rows of a tile of which a thread has columns. */
typedef struct row_state {
    float m, total_m, total_l; /* m: of the segment */
    float weight;
    int first, keys; /* takes the keys [first, keys), counted from the tile's begin */
} row_state;

static __device__ __forceinline__ void row_begin(row_state *s, const tile *t, int row) {
    const uint32_t query = t->first_query + row, last = t->n_queries - 1;
    const int64_t pos = t->span.pos + (query < last ? query : last) / t->p->group;
    s->first = (int)(ls_attention_first(pos, t->p->a.window) - t->begin);
    s->keys = (int)(pos + 1 - t->begin);
    s->weight = 1.0f;
    s->m = s->total_m = -INFINITY;
    s->total_l = 0.0f;
}

/* The segment, whose weights add up to l, joins the total of a row: what the sums over values are multiplied with, too.
 */
static __device__ __forceinline__ void join_row(row_state *s, float l, float *of_total, float *of_segment) {
    const float m = larger(s->total_m, s->m);
    *of_total = ls_exp2_bounded(ls_sub(s->total_m, m));
    *of_segment = ls_exp2_bounded(ls_sub(s->m, m));
    s->total_l = ls_fma(s->total_l, *of_total, ls_mul(l, *of_segment));
    s->total_m = m;
    s->m = -INFINITY;
}

/* Where the query of a row of the tile lies in q, or out. */
static __device__ __forceinline__ int64_t query_at(const tile *t, int row, int64_t stride) {
    const uint32_t query = t->first_query + row, group = t->p->group;
    return (t->span.row + query / group) * stride + (t->kv_head * group + query % group) * t->p->a.head_dim;
}

/* 1 / L of a row, NaN where its maximum is not finite; its logarithm is kept. */
static __device__ __forceinline__ float finish_row(const tile *t, const row_state *s, int row, bool there) {
    const ls_attention_args *a = &t->p->a;
    const float sum = s->total_l;
    const bool finite = ls_sub(s->total_m, s->total_m) == 0.0f;
    if (there && a->log_sum != NULL && threadIdx.x % 4 == 0) {
        const uint32_t query = t->first_query + row, group = t->p->group;
        a->log_sum[(t->span.row + query / group) * a->log_sum_stride + t->kv_head * group + query % group] =
            finite ? ls_fma(ls_log(sum), LS_LOG2E, ls_add(s->total_m, LS_EXP2_LIFT)) : NAN;
    }
    return finite ? ls_div(1.0f, sum) : NAN;
}

typedef struct mma16_launch {
    const void *kernel;
    int64_t rows, threads, shared_bytes, resident;
} mma16_launch;

/* Queries of a tile of the kernel for few of them. */
#define FEW_QUERIES 16

/* That kernel, for boxed pages, outputs that move 16 bytes at a time, queries as well unless it makes them, and a
 * head_dim that is a multiple of 16. A block takes all tiles of an item, one after another. alone: there is no more
 * than an item for each multiprocessor, whose block then has all of its shared memory. makes: of `heads`. */
mma16_launch ls_attention_mma16_few(int64_t head_dim, bool alone, bool makes);

#endif
