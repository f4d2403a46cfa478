/* attention on the GPU. One kernel stores the new keys and values in their pages, the next attends.
 *
 * The queries of a span and a KV head are its tokens times the query heads that share that KV head, token by token. A
 * block takes a tile of them through all their keys, in blocks of 64: keys and values are read once for a tile, whether
 * its rows are the heads of one decoded token or those of a piece of a prompt. A thread holds 4 rows of a tile and some
 * keys of a score or some dimensions of an output, so that each chain of the contract is a chain in one thread.
 *
 * Keys and values come as slabs through a ring in shared memory, as they are stored: a slab of keys is some dimensions
 * of 64 keys, a slab of values is all dimensions of some keys. */
#include <cuda_pipeline.h>

#include "op/cuda/attention_cuda.h"
#include "op/cuda/attention_tile_cuda.h"
#include "op/cuda/check_cuda.h"
#include "op/cuda/cuda_ops.h"
#include "op/cuda/ring_cuda.h"
#include "op/cuda/vector_cuda.h"

#define BLOCK LS_ATTENTION_BLOCK
#define ROWS_HELD 4 /* of a tile, by a thread */
#define STAGES 4    /* of the ring */
#define CHECK_THREADS 1024
#define STORE_THREADS 128
/* Queries of a span up to which it is taken in small tiles. */
#define FEW 32
/* KV heads of spans from which on one tile each fills the chip. */
#define ITEMS_ENOUGH 128
/* Blocks beyond which more tiles at a time do not help. */
#define BLOCKS_ENOUGH 65536

/* ---- checks of what lies in device memory ---- */

typedef struct page_check {
    ls_span_check spans;
    const int32_t *tables;
    int64_t n_tables, n_pages, page_tokens;
} page_check;

/* All lanes of a warp look at the pages of span i; each gets the fault. The spans' rows and positions are right. */
static __device__ ls_fault page_fault(const page_check *c, int64_t i) {
    const ls_span *span = &c->spans.spans[i];
    ls_fault fault = {.code = LS_FAULT_NONE, .index = i, .value = span->pos, .limit = INT64_MAX - span->n_rows};
    int64_t end, n, bad = INT64_MAX;
    if (span->slot < 0) return fault;
    if (span->pos > fault.limit) {
        fault.code = LS_FAULT_SPAN_POS;
        return fault;
    }
    end = span->pos + span->n_rows;
    n = end / c->page_tokens + (end % c->page_tokens != 0);
    fault.value = span->table;
    fault.limit = c->n_tables;
    if (span->table < 0 || span->table > c->n_tables - n) {
        fault.code = LS_FAULT_TABLE;
        return fault;
    }
    fault.limit = c->n_pages;
#pragma unroll 8
    for (int64_t page = threadIdx.x % LS_WARP; page < n; page += LS_WARP) {
        const int32_t id = c->tables[span->table + page];
        if ((id < 0 || id >= c->n_pages) && page < bad) bad = page;
    }
    for (int half = LS_WARP / 2; half > 0; half /= 2) {
        const int64_t other = __shfl_xor_sync(LS_ALL_LANES, bad, half);
        bad = other < bad ? other : bad;
    }
    if (bad == INT64_MAX) return fault;
    fault.code = LS_FAULT_PAGE;
    fault.value = c->tables[span->table + bad];
    return fault;
}

/* One block: rows and positions of all spans, then their pages, a warp a span. The lowest bad span goes to the record.
 */
static __global__ void __launch_bounds__(CHECK_THREADS) check_kernel(const __grid_constant__ page_check c) {
    ls_cuda_begin();
    __shared__ ls_fault found[CHECK_THREADS / LS_WARP];
    const int64_t bad = ls_first_bad<CHECK_THREADS>(&c.spans, c.spans.n_spans);
    const int warp = threadIdx.x / LS_WARP;
    ls_fault fault = {.code = LS_FAULT_NONE, .index = INT64_MAX, .value = 0, .limit = 0};
    if (bad != INT64_MAX) {
        if (threadIdx.x == 0 && c.spans.fault->code == LS_FAULT_NONE) *c.spans.fault = ls_fault_at(&c.spans, bad);
        return;
    }
    for (int64_t i = warp; i < c.spans.n_spans && fault.code == LS_FAULT_NONE; i += CHECK_THREADS / LS_WARP)
        fault = page_fault(&c, i);
    if (threadIdx.x % LS_WARP == 0) found[warp] = fault;
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (int w = 1; w < CHECK_THREADS / LS_WARP; w++)
        if (found[w].code != LS_FAULT_NONE && (fault.code == LS_FAULT_NONE || found[w].index < fault.index))
            fault = found[w];
    if (fault.code != LS_FAULT_NONE && c.spans.fault->code == LS_FAULT_NONE) *c.spans.fault = fault;
}

/* ---- pages ---- */

/* Of an element. */
#define BYTES_OF(TYPE) ((TYPE) == LS_F32 ? 4 : 2)

typedef struct attention_params {
    ls_attention_args a;
    int64_t group;                             /* query heads of a KV head */
    int64_t least, most;                       /* queries of the spans that a kernel takes */
    int64_t slices;                            /* blocks of a span, of a KV head of it in the second kernel */
    int page_shift;                            /* page_tokens = 1 << page_shift */
    bool wide_queries, wide_keys, wide_values; /* are read as vectors of 16 bytes */
    const ls_fault *fault;
} attention_params;

/* The page that holds a position, and where its keys and values of a KV head begin, in elements. */
static __device__ __forceinline__ uint8_t *page_of(const attention_params *p, const ls_span *span, int64_t pos) {
    return (uint8_t *)ls_pool_at(&p->a.pages, __ldg(&p->a.tables[span->table + (pos >> p->page_shift)]));
}
static __device__ __forceinline__ int64_t keys_at(const ls_attention_args *a, int64_t kv_head) {
    return kv_head * a->head_dim * a->page_tokens;
}
static __device__ __forceinline__ int64_t values_at(const ls_attention_args *a, int64_t kv_head) {
    return (a->n_kv_heads + kv_head) * a->head_dim * a->page_tokens;
}

/* A block a token, its threads over the elements of all KV heads. */
template <int TYPE>
static __global__ void __launch_bounds__(STORE_THREADS) store_kernel(const __grid_constant__ attention_params p) {
    ls_cuda_begin();
    typedef typename ls_piece<BYTES_OF(TYPE)>::type element;
    const ls_attention_args *a = &p.a;
    const ls_span *span = &a->spans[blockIdx.x / p.slices];
    const int64_t width = a->n_kv_heads * a->head_dim;
    if (p.fault->code != LS_FAULT_NONE || span->slot < 0) return;
    for (int64_t t = blockIdx.x % p.slices; t < span->n_rows; t += p.slices) {
        const int64_t in_page = (span->pos + t) & (a->page_tokens - 1), row = (span->row + t) * a->kv_stride;
        element *page = (element *)page_of(&p, span, span->pos + t);
        for (int64_t i = threadIdx.x; i < width; i += STORE_THREADS) {
            const int64_t head = i / a->head_dim, d = i % a->head_dim;
            page[keys_at(a, head) + d * a->page_tokens + in_page] = ((const element *)a->k)[row + i];
            page[values_at(a, head) + in_page * a->head_dim + d] = ((const element *)a->v)[row + i];
        }
    }
}

/* Pages of 16 tokens, bf16, all aligned: a warp takes a page's part of a KV head, and turns keys in shared memory. The
 * span's first and last page are taken token by token: what others wrote there stays. */
#define PAGE 16
#define STORE_WARPS (STORE_THREADS / LS_WARP)
#define STORE_DIMS_MAX 256

static __global__ void __launch_bounds__(STORE_THREADS) store_pages_kernel(const __grid_constant__ attention_params p) {
    ls_cuda_begin();
    __shared__ __align__(16) uint16_t turned[STORE_WARPS][PAGE][STORE_DIMS_MAX + 8];
    const ls_attention_args *a = &p.a;
    const int warp = threadIdx.x / LS_WARP, lane = threadIdx.x % LS_WARP;
    const int64_t dims = a->head_dim;
    const int64_t by = (int64_t)gridDim.x * STORE_WARPS, parts = a->n_spans * a->n_kv_heads, count = parts * p.slices;
    if (p.fault->code != LS_FAULT_NONE) return;
    for (int64_t next = (int64_t)blockIdx.x * STORE_WARPS + warp; next < count;) {
        /* Lanes look ahead for a page that is there. */
        const int64_t number = next + lane * by;
        bool there = number < count;
        if (there) {
            const ls_span *span = &a->spans[number % parts / a->n_kv_heads];
            there = span->slot >= 0 && number / parts * PAGE < span->pos % PAGE + span->n_rows;
        }
        const uint32_t found = __ballot_sync(LS_ALL_LANES, there);
        if (found == 0) {
            next += LS_WARP * by;
            continue;
        }
        next += (__ffs(found) - 1) * by;
        const ls_span span = a->spans[next % parts / a->n_kv_heads];
        const int64_t head = next % parts % a->n_kv_heads, first = (span.pos / PAGE + next / parts) * PAGE;
        const int64_t row = span.row + first - span.pos;
        const int from = span.pos > first ? (int)(span.pos - first) : 0;
        const int to = span.pos + span.n_rows - first < PAGE ? (int)(span.pos + span.n_rows - first) : PAGE;
        uint16_t *page = (uint16_t *)page_of(&p, &span, first);
        uint16_t *keys = page + keys_at(a, head), *values = page + values_at(a, head);
        next += by;
        for (int64_t i = lane; i < PAGE * (dims / 8); i += LS_WARP) {
            const int64_t token = i / (dims / 8), dim = i % (dims / 8) * 8;
            if (token < from || token >= to) continue;
            const int64_t at = (row + token) * a->kv_stride + head * dims + dim;
            *(uint4 *)&turned[warp][token][dim] = *(const uint4 *)((const uint16_t *)a->k + at);
            *(uint4 *)(values + token * dims + dim) = *(const uint4 *)((const uint16_t *)a->v + at);
        }
        __syncwarp();
        for (int64_t i = lane; i < 2 * dims; i += LS_WARP) {
            const int64_t dim = i / 2, token = i % 2 * 8;
            __align__(16) uint16_t eight[8];
#pragma unroll
            for (int e = 0; e < 8; e++) eight[e] = turned[warp][token + e][dim];
            if (from == 0 && to == PAGE) {
                *(uint4 *)(keys + dim * PAGE + token) = *(const uint4 *)eight;
            } else {
#pragma unroll
                for (int e = 0; e < 8; e++)
                    if (token + e >= from && token + e < to) keys[dim * PAGE + token + e] = eight[e];
            }
        }
        __syncwarp();
    }
}

/* ---- a tile ---- */

/* What is fixed when a kernel is compiled. DIMS: room for head_dim. A row's 64 keys, and its dimensions, are shared by
 * LANES neighbouring threads. */
template <int TYPE_, int ROWS_, int DIMS_, int THREADS_, int SLAB_BYTES_>
struct shape {
    static constexpr int TYPE = TYPE_, ROWS = ROWS_, DIMS = DIMS_, THREADS = THREADS_, SLAB_BYTES = SLAB_BYTES_;
    static constexpr bool LARGE = false;
    static constexpr int BYTES = BYTES_OF(TYPE);
    static constexpr int LANES = THREADS * ROWS_HELD / ROWS;
    static constexpr int KEYS_HELD = BLOCK / LANES, DIMS_HELD = DIMS / LANES;
    static constexpr int PARTS = DIMS * BLOCK * BYTES > SLAB_BYTES ? DIMS *BLOCK *BYTES / SLAB_BYTES : 1;
    static constexpr int PART_DIMS = DIMS / PARTS, PART_KEYS = BLOCK / PARTS;
    static constexpr int PITCH = ROWS + 4;          /* keeps four rows aligned and columns apart */
    static constexpr int AHEAD = ROWS <= 8 ? 8 : 4; /* steps of a chain that are loaded together */
    static_assert(LANES * KEYS_HELD == BLOCK && LANES * DIMS_HELD == DIMS, "lanes share keys and dimensions");

    struct memory {
        __align__(16) uint8_t ring[STAGES][PART_DIMS * BLOCK * BYTES];
        float q[DIMS][ROWS + 4];
        ls_softmax<ROWS> softmax;
    };
    static_assert(sizeof(memory) <= LS_CUDA_SHARED_MAX, "a tile fits the shared memory of every device");
};

/* The tile of a block. Query i of a span: token i / group, head i % group of the KV head. */
typedef struct tile {
    const attention_params *p;
    const ls_span *span;
    int64_t kv_head, first_query, n_queries; /* n_queries: of the span */
    int64_t begin;                           /* of the first block of which the first row takes a key */
    int64_t keys;                            /* before this position are those that the last row takes */
} tile;

template <class S>
using accumulators = float[ROWS_HELD][S::DIMS_HELD];

template <int BYTES>
static __device__ __forceinline__ void copy_piece(uint8_t *to, const uint8_t *from) {
    if (BYTES == 16)
        __pipeline_memcpy_async(to, from, 16);
    else
        *(typename ls_piece<BYTES>::type *)to = *(const typename ls_piece<BYTES>::type *)from;
}

/* Dimensions [part * PART_DIMS, ...) of the keys from position `first` on, as [dimension][64]. PIECE bytes of a page
 * are neighbouring keys of a dimension. Keys after the tile's last one stay what they were: no row takes them. */
template <class S, int PIECE>
static __device__ __forceinline__ void fetch_keys(const tile *t, uint8_t *slab, int64_t first, int part) {
    constexpr int EACH = PIECE / S::BYTES;
    const attention_params *p = t->p;
    const int shift = p->page_shift - (EACH == 1 ? 0 : EACH == 4 ? 2 : 3); /* pieces of a dimension of a page */
    const int64_t from = keys_at(&p->a, t->kv_head);
#pragma unroll 1
    for (int i = threadIdx.x; i < S::PART_DIMS * BLOCK / EACH; i += S::THREADS) {
        const int piece = i & ((1 << shift) - 1), d = (i >> shift) % S::PART_DIMS;
        const int page = (i >> shift) / S::PART_DIMS, key = (page << p->page_shift) + piece * EACH;
        const int64_t dim = part * S::PART_DIMS + d;
        if (dim >= p->a.head_dim || first + key >= t->keys) continue;
        copy_piece<PIECE>(slab + (d * BLOCK + key) * S::BYTES,
                          page_of(p, t->span, first + key) + (from + dim * p->a.page_tokens + piece * EACH) * S::BYTES);
    }
}

/* The values of keys [part * PART_KEYS, ...) of a block, as [key][DIMS]. */
template <class S, int PIECE>
static __device__ __forceinline__ void fetch_values(const tile *t, uint8_t *slab, int64_t first, int part) {
    constexpr int EACH = PIECE / S::BYTES;
    const attention_params *p = t->p;
    const int64_t from = values_at(&p->a, t->kv_head);
#pragma unroll 1
    for (int i = threadIdx.x; i < S::PART_KEYS * S::DIMS / EACH; i += S::THREADS) {
        const int d = i % (S::DIMS / EACH) * EACH, j = i / (S::DIMS / EACH);
        const int64_t pos = first + part * S::PART_KEYS + j, in_page = pos & (p->a.page_tokens - 1);
        if (d >= p->a.head_dim || pos >= t->keys) continue;
        copy_piece<PIECE>(slab + (j * S::DIMS + d) * S::BYTES,
                          page_of(p, t->span, pos) + (from + in_page * p->a.head_dim + d) * S::BYTES);
    }
}

/* Slab i of a tile: of each block of 64 keys, the parts of its keys, then those of its values. Nothing after the last.
 */
template <class S>
static __device__ __forceinline__ void fetch_slab(const tile *t, typename S::memory *shared, int64_t i) {
    const int64_t first = t->begin + i / (2 * S::PARTS) * BLOCK;
    const int part = (int)(i % (2 * S::PARTS));
    uint8_t *slab = shared->ring[i % STAGES];
    if (first < t->keys) {
        if (part < S::PARTS && t->p->wide_keys)
            fetch_keys<S, 16>(t, slab, first, part);
        else if (part < S::PARTS)
            fetch_keys<S, S::BYTES>(t, slab, first, part);
        else if (t->p->wide_values)
            fetch_values<S, 16>(t, slab, first, part - S::PARTS);
        else
            fetch_values<S, S::BYTES>(t, slab, first, part - S::PARTS);
    }
    __pipeline_commit();
}

/* Waits for slab i and lets the one that takes the place of slab i - 1, which all threads are done with, be fetched. */
template <class S>
static __device__ __forceinline__ const uint8_t *next_slab(const tile *t, typename S::memory *shared, int64_t i) {
    __pipeline_wait_prior(STAGES - 2);
    __syncthreads();
    fetch_slab<S>(t, shared, i + STAGES - 1);
    return shared->ring[i % STAGES];
}

/* N neighbouring elements of a slab. */
template <class S, int N>
static __device__ __forceinline__ void widen(float (&x)[N], const uint8_t *slab, int at) {
    typedef typename ls_piece<N * S::BYTES>::type words;
    const words word = *(const words *)(slab + at * S::BYTES);
    typename ls_piece<S::BYTES>::type raw[N];
    memcpy(raw, &word, sizeof word);
#pragma unroll
    for (int i = 0; i < N; i++) x[i] = ls_widen_raw<S::TYPE>(raw[i]);
}

/* A row of the tile begins: that of a query, or none. */
template <int ROWS>
static __device__ __forceinline__ void begin_row(ls_softmax<ROWS> *softmax, const tile *t, int row) {
    const int64_t query = t->first_query + row, pos = t->span->pos + query / t->p->group;
    if (query < t->n_queries)
        ls_softmax_row(softmax, row, ls_attention_first(pos, t->p->a.window), pos + 1);
    else
        ls_softmax_row(softmax, row, INT64_MAX, 0);
}

template <class S>
static __device__ void begin_tile(const tile *t, typename S::memory *shared) {
    const attention_params *p = t->p;
    const ls_attention_args *a = &p->a;
    for (int row = threadIdx.x; row < S::ROWS; row += S::THREADS) begin_row(&shared->softmax, t, row);
#pragma unroll 1
    for (int i = threadIdx.x; i < S::ROWS * S::DIMS; i += S::THREADS) {
        const int row = i / S::DIMS, d = i % S::DIMS;
        const int64_t query = t->first_query + row;
        if (d >= a->head_dim) continue;
        shared->q[d][row] =
            query < t->n_queries
                ? ls_load_one<S::TYPE>(a->q, (t->span->row + query / p->group) * a->q_stride +
                                                 (t->kv_head * p->group + query % p->group) * a->head_dim + d)
                : 0.0f;
    }
}

/* score[r][k] = chain_d fma(q[d], k[d]) goes on over the dimensions of a slab. */
template <class S>
static __device__ __forceinline__ void add_keys(float (&score)[ROWS_HELD][S::KEYS_HELD],
                                                const typename S::memory *shared, const uint8_t *slab, int first_dim,
                                                int64_t head_dim, int row, int lane) {
    const int dims = head_dim - first_dim < S::PART_DIMS ? (int)head_dim - first_dim : S::PART_DIMS;
#pragma unroll S::AHEAD
    for (int d = 0; d < dims; d++) {
        float q[ROWS_HELD], key[S::KEYS_HELD];
        ls_load_four(q, &shared->q[first_dim + d][row]);
        widen<S>(key, slab, d * BLOCK + lane * S::KEYS_HELD);
#pragma unroll
        for (int r = 0; r < ROWS_HELD; r++)
#pragma unroll
            for (int k = 0; k < S::KEYS_HELD; k++) score[r][k] = ls_fma(q[r], key[k], score[r][k]);
    }
}

/* The same for keys [begin, end) of the slab, of which some rows take none. */
template <class S>
static __device__ __forceinline__ void add_some_values(accumulators<S> &acc, const typename S::memory *shared,
                                                       const uint8_t *slab, int first_key, const int (&low)[ROWS_HELD],
                                                       const int (&n)[ROWS_HELD], int begin, int end, int row,
                                                       int lane) {
#pragma unroll 1
    for (int j = begin; j < end; j++) {
        float e[ROWS_HELD], value[S::DIMS_HELD];
        ls_load_four(e, &shared->softmax.e[first_key + j][row]);
        widen<S>(value, slab, j * S::DIMS + lane * S::DIMS_HELD);
#pragma unroll
        for (int r = 0; r < ROWS_HELD; r++)
#pragma unroll
            for (int d = 0; d < S::DIMS_HELD; d++)
                if (first_key + j >= low[r] && first_key + j < n[r]) acc[r][d] = ls_fma(e[r], value[d], acc[r][d]);
    }
}

/* acc[r][d] = chain_j fma(e[j], v[j][d]) goes on over the keys of a slab, of which row r takes those of the block's
 * keys [low[r], n[r]). */
template <class S>
static __device__ __forceinline__ void add_values(accumulators<S> &acc, const typename S::memory *shared,
                                                  const uint8_t *slab, int first_key, const int (&low)[ROWS_HELD],
                                                  const int (&n)[ROWS_HELD], int row, int lane) {
    /* All rows take [from, least), and none a key outside [begin, most). */
    int begin = S::PART_KEYS, from = 0, least = S::PART_KEYS, most = 0;
#pragma unroll
    for (int r = 0; r < ROWS_HELD; r++) {
        begin = min(begin, max(0, low[r] - first_key));
        from = max(from, low[r] - first_key);
        least = min(least, n[r] - first_key);
        most = max(most, min(S::PART_KEYS, n[r] - first_key));
    }
    add_some_values<S>(acc, shared, slab, first_key, low, n, begin, min(from, most), row, lane);
#pragma unroll S::AHEAD
    for (int j = from; j < least; j++) {
        float e[ROWS_HELD], value[S::DIMS_HELD];
        ls_load_four(e, &shared->softmax.e[first_key + j][row]);
        widen<S>(value, slab, j * S::DIMS + lane * S::DIMS_HELD);
#pragma unroll
        for (int r = 0; r < ROWS_HELD; r++)
#pragma unroll
            for (int d = 0; d < S::DIMS_HELD; d++) acc[r][d] = ls_fma(e[r], value[d], acc[r][d]);
    }
    add_some_values<S>(acc, shared, slab, first_key, low, n, max(from, least), most, row, lane);
}

/* The segment that began at `start` joins the total. */
template <class S>
static __device__ __forceinline__ void end_segment(accumulators<S> &total, accumulators<S> &acc,
                                                   typename S::memory *shared, int64_t start, int row) {
    if (threadIdx.x < S::ROWS) ls_softmax_join(&shared->softmax, threadIdx.x, start);
    __syncthreads();
#pragma unroll
    for (int r = 0; r < ROWS_HELD; r++)
#pragma unroll
        for (int d = 0; d < S::DIMS_HELD; d++) {
            total[r][d] = ls_softmax_joined(&shared->softmax, row + r, start, total[r][d], acc[r][d]);
            acc[r][d] = 0.0f;
        }
}

template <class S>
static __device__ __forceinline__ void store_tile(const tile *t, const accumulators<S> &total,
                                                  const typename S::memory *shared, int row, int lane) {
    const attention_params *p = t->p;
    const ls_attention_args *a = &p->a;
#pragma unroll
    for (int r = 0; r < ROWS_HELD; r++) {
        const int64_t query = t->first_query + row + r;
        const int64_t to = (t->span->row + query / p->group) * a->out_stride +
                           (t->kv_head * p->group + query % p->group) * a->head_dim;
        if (query >= t->n_queries) continue;
#pragma unroll
        for (int d = 0; d < S::DIMS_HELD; d++)
            if (lane * S::DIMS_HELD + d < a->head_dim)
                ls_store_one<S::TYPE>(a->out, to + lane * S::DIMS_HELD + d,
                                      ls_div(total[r][d], shared->softmax.total_l[row + r]));
    }
}

template <class S>
static __device__ __forceinline__ void attend(const tile *t, typename S::memory *shared) {
    const int row = threadIdx.x / S::LANES * ROWS_HELD, lane = threadIdx.x % S::LANES;
    const ls_attention_args *a = &t->p->a;
    accumulators<S> total, acc;
    int64_t slab = 0;
    __syncthreads(); /* the tile before this one is done with the memory */
    begin_tile<S>(t, shared);
#pragma unroll
    for (int r = 0; r < ROWS_HELD; r++)
#pragma unroll
        for (int d = 0; d < S::DIMS_HELD; d++) total[r][d] = acc[r][d] = 0.0f;
#pragma unroll 1
    for (int i = 0; i < STAGES - 1; i++) fetch_slab<S>(t, shared, i);
#pragma unroll 1
    for (int64_t first = t->begin; first < t->keys; first += BLOCK) {
        float score[ROWS_HELD][S::KEYS_HELD] = {};
        int low[ROWS_HELD], n[ROWS_HELD];
#pragma unroll 1
        for (int part = 0; part < S::PARTS; part++)
            add_keys<S>(score, shared, next_slab<S>(t, shared, slab++), part * S::PART_DIMS, a->head_dim, row, lane);
#pragma unroll
        for (int k = 0; k < S::KEYS_HELD; k++)
            *(float4 *)&shared->softmax.e[lane * S::KEYS_HELD + k][row] =
                make_float4(score[0][k], score[1][k], score[2][k], score[3][k]);
        __syncthreads();
        ls_softmax_take<S::ROWS, S::THREADS>(&shared->softmax, a->scale, first);
#pragma unroll
        for (int r = 0; r < ROWS_HELD; r++) {
            low[r] = ls_keys_before(shared->softmax.first[row + r], first);
            n[r] = ls_keys_before(shared->softmax.keys[row + r], first);
        }
#pragma unroll 1
        for (int part = 0; part < S::PARTS; part++) {
            const uint8_t *values = next_slab<S>(t, shared, slab++);
#pragma unroll
            for (int r = 0; r < ROWS_HELD && part == 0; r++)
#pragma unroll
                for (int d = 0; d < S::DIMS_HELD; d++)
                    acc[r][d] = ls_mul(acc[r][d], shared->softmax.correction[row + r]);
            add_values<S>(acc, shared, values, part * S::PART_KEYS, low, n, row, lane);
        }
        if (ls_segment_ends(first + BLOCK, t->keys))
            end_segment<S>(total, acc, shared, first / LS_ATTENTION_SEGMENT * LS_ATTENTION_SEGMENT, row);
    }
    store_tile<S>(t, total, shared, row, lane);
}

/* ---- large tiles of bf16 ---- */

/* 64 queries by 64 keys in fragments of eight rows (attention_tile_cuda.h): more operations for each load, for spans of
 * many queries. Keys and values have a slab each; the next keys come while values are added, the next values while
 * scores are made. */
template <int DIMS_>
struct large_shape {
    static constexpr int TYPE = LS_BF16, BYTES = 2, ROWS = LS_TILE, DIMS = DIMS_, THREADS = LS_TILE_THREADS;
    static constexpr int PARTS = 1, PART_DIMS = DIMS, PART_KEYS = BLOCK; /* a slab is a whole block */
    static constexpr int COLUMNS = DIMS / 16;
    static constexpr bool LARGE = true;
    struct memory {
        __align__(16) uint16_t keys[DIMS_][BLOCK], values[BLOCK][DIMS_];
        ls_tile<float, DIMS_> q;
        ls_softmax<LS_TILE> softmax;
    };
    static_assert(sizeof(memory) <= LS_CUDA_SHARED_MAX, "a tile fits the shared memory of every device");
};

/* Where the query of a row of the tile lies in q, and in out with its stride. */
static __device__ __forceinline__ int64_t query_at(const tile *t, int row, int64_t stride) {
    const int64_t query = t->first_query + row, group = t->p->group;
    return (t->span->row + query / group) * stride + (t->kv_head * group + query % group) * t->p->a.head_dim;
}

template <class S>
static __device__ __forceinline__ void begin_large(const tile *t, typename S::memory *shared) {
    const attention_params *p = t->p;
    if (threadIdx.x < LS_TILE) begin_row(&shared->softmax, t, threadIdx.x);
    /* Two threads a row, half of its dimensions each. */
    const int row = threadIdx.x / 2, begin = threadIdx.x % 2 * (S::DIMS / 2);
    const int dims = t->first_query + row < t->n_queries ? (int)p->a.head_dim : 0;
    const int64_t from = dims > 0 ? query_at(t, row, p->a.q_stride) : 0;
#pragma unroll 2
    for (int d = begin; d < begin + S::DIMS / 2; d += 8) {
        float x[8];
        if (p->wide_queries && d < dims) {
            const ls_vec8<LS_BF16> v = ls_vec8_load<LS_BF16>((const uint16_t *)p->a.q + from + d);
#pragma unroll
            for (int i = 0; i < 8; i++) x[i] = ls_vec8_get<LS_BF16>(v, i);
        } else {
#pragma unroll
            for (int i = 0; i < 8; i++) x[i] = d + i < dims ? ls_load_one<LS_BF16>(p->a.q, from + d + i) : 0.0f;
        }
        *(float4 *)&shared->q.x[row][d] = make_float4(x[0], x[1], x[2], x[3]);
        *(float4 *)&shared->q.x[row][d + 4] = make_float4(x[4], x[5], x[6], x[7]);
    }
}

template <class S>
static __device__ __forceinline__ void fetch_block(const tile *t, void *slab, int64_t first, bool keys) {
    if (first < t->keys) {
        if (keys && t->p->wide_keys)
            fetch_keys<S, 16>(t, (uint8_t *)slab, first, 0);
        else if (keys)
            fetch_keys<S, 2>(t, (uint8_t *)slab, first, 0);
        else if (t->p->wide_values)
            fetch_values<S, 16>(t, (uint8_t *)slab, first, 0);
        else
            fetch_values<S, 2>(t, (uint8_t *)slab, first, 0);
    }
    __pipeline_commit();
}

/* The older of the two slabs that are on their way is there, for all threads. */
static __device__ __forceinline__ void older_slab(void) {
    __pipeline_wait_prior(1);
    __syncthreads();
}

/* Scores of the tile's queries and a block of keys, to softmax.e. */
template <class S>
static __device__ __forceinline__ void score_block(const tile *t, typename S::memory *shared) {
    const int row = ls_lane_row();
    const int key = ls_lane_half() * LS_TILE_WARP + ls_lane_column() * 4;
    ls_fragment<4> score;
    ls_fragment_clear<4>(score);
    ls_tile_dots<true, 4, ls_tile<float, S::DIMS>::PITCH, BLOCK>(score, shared->q.x[ls_lane_row()],
                                                                 &shared->keys[0][key], (int)t->p->a.head_dim);
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
        for (int i = 0; i < LS_TILE_ROWS; i++) shared->softmax.e[key + j][row + 4 * i] = score[i][j];
}

/* acc goes on over a block of values. */
template <class S>
static __device__ __forceinline__ void add_block(ls_fragment<S::COLUMNS> &acc, const tile *t,
                                                 const typename S::memory *shared, int64_t first) {
    const int four = ls_lane_four();
    const ls_softmax<LS_TILE> *softmax = &shared->softmax;
    const uint16_t *values = &shared->values[0][ls_lane_dim<S::DIMS>()];
#pragma unroll
    for (int i = 0; i < LS_TILE_ROWS; i++)
#pragma unroll
        for (int c = 0; c < S::COLUMNS; c++)
            acc[i][c] = ls_mul(acc[i][c], softmax->correction[ls_fragment_row(four, i)]);
    /* The first row's keys end before those of others, the last row's begin behind them. */
    if (first + BLOCK <= softmax->keys[0] && ls_attention_first(t->keys - 1, t->p->a.window) <= first) {
        ls_tile_sums<false, S::COLUMNS, S::DIMS>(acc, softmax->e, values, 0, BLOCK, NULL);
        return;
    }
    const ls_tile_reach takes = ls_tile_takes(softmax, first);
    ls_tile_sums<true, S::COLUMNS, S::DIMS>(acc, softmax->e, values, 0, ls_keys_before(t->keys, first), &takes);
}

template <class S>
static __device__ __forceinline__ void store_large(const tile *t, const ls_fragment<S::COLUMNS> &total,
                                                   const typename S::memory *shared) {
    const int four = ls_lane_four(), across = ls_lane_dim<S::DIMS>();
#pragma unroll
    for (int i = 0; i < LS_TILE_ROWS; i++) {
        const int row = ls_fragment_row(four, i);
        const int64_t to = query_at(t, row, t->p->a.out_stride);
        if (t->first_query + row >= t->n_queries) continue;
#pragma unroll
        for (int c = 0; c < S::COLUMNS; c++) {
            const int d = ls_fragment_dim(across, c);
            if (d < t->p->a.head_dim)
                ls_store_one<LS_BF16>(t->p->a.out, to + d, ls_div(total[i][c], shared->softmax.total_l[row]));
        }
    }
}

template <class S>
static __device__ __forceinline__ void attend_large(const tile *t, typename S::memory *shared) {
    ls_fragment<S::COLUMNS> total, acc;
    ls_fragment_clear<S::COLUMNS>(acc);
    __syncthreads(); /* the tile before this one is done with the memory */
    begin_large<S>(t, shared);
    fetch_block<S>(t, shared->keys, t->begin, true);
    fetch_block<S>(t, shared->values, t->begin, false);
#pragma unroll 1
    for (int64_t first = t->begin; first < t->keys; first += BLOCK) {
        older_slab();
        score_block<S>(t, shared);
        __syncthreads();
        fetch_block<S>(t, shared->keys, first + BLOCK, true);
        ls_softmax_take<LS_TILE, S::THREADS>(&shared->softmax, t->p->a.scale, first);
        older_slab();
        add_block<S>(acc, t, shared, first);
        __syncthreads();
        fetch_block<S>(t, shared->values, first + BLOCK, false);
        if (!ls_segment_ends(first + BLOCK, t->keys)) continue;
        const int four = ls_lane_four();
        const int64_t start = first / LS_ATTENTION_SEGMENT * LS_ATTENTION_SEGMENT;
        if (threadIdx.x < LS_TILE) ls_softmax_join(&shared->softmax, threadIdx.x, start);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < LS_TILE_ROWS; i++)
#pragma unroll
            for (int c = 0; c < S::COLUMNS; c++)
                total[i][c] =
                    ls_softmax_joined(&shared->softmax, ls_fragment_row(four, i), start, total[i][c], acc[i][c]);
        ls_fragment_clear<S::COLUMNS>(acc);
    }
    store_large<S>(t, total, shared);
}

/* ---- the kernel ---- */

template <class S>
static __global__ void __launch_bounds__(S::THREADS, 2) attend_kernel(const __grid_constant__ attention_params p) {
    ls_cuda_begin();
    extern __shared__ uint4 dynamic[];
    /* The last tiles of all spans first: they have most keys, and the chip stays full to the end. */
    const int64_t items = gridDim.x / p.slices, item = blockIdx.x % items, slice = p.slices - 1 - blockIdx.x / items;
    const ls_span *span = &p.a.spans[item / p.a.n_kv_heads];
    tile t = {.p = &p,
              .span = span,
              .kv_head = item % p.a.n_kv_heads,
              .first_query = slice * S::ROWS,
              .n_queries = 0,
              .begin = 0,
              .keys = 0};
    if (p.fault->code != LS_FAULT_NONE || span->slot < 0) return;
    t.n_queries = span->n_rows * p.group;
    if (t.n_queries < p.least || t.n_queries > p.most) return;
    for (; t.first_query < t.n_queries; t.first_query += p.slices * S::ROWS) {
        const int64_t after = t.n_queries - t.first_query < S::ROWS ? t.n_queries : t.first_query + S::ROWS;
        t.begin = ls_attention_first(span->pos + t.first_query / p.group, p.a.window) / BLOCK * BLOCK;
        t.keys = span->pos + (after - 1) / p.group + 1;
        if constexpr (S::LARGE)
            attend_large<S>(&t, (typename S::memory *)dynamic);
        else
            attend<S>(&t, (typename S::memory *)dynamic);
    }
}

/* ---- the host's side ---- */

#define INDICES 7

typedef struct attention_launch {
    const void *kernel;
    int64_t rows, threads, shared_bytes;
} attention_launch;

template <class S>
static attention_launch launch_of(void) {
    const attention_launch launch = {(const void *)attend_kernel<S>, S::ROWS, S::THREADS,
                                     (int64_t)sizeof(typename S::memory)};
    return launch;
}

/* Queries of a tile: 8, 32 or as many as there is room for. */
typedef enum tile_size { TILE_FEW, TILE_GROUP, TILE_MANY } tile_size;

/* Small tiles have more bytes on their way for each operation, large ones more operations for each byte. The middle one
 * is for one token a span whose query heads share a KV head: each key is read once. */
template <int TYPE, int DIMS>
static attention_launch pick_rows(tile_size size) {
    constexpr int MANY_ROWS = DIMS <= 128 ? 64 : DIMS == 256 ? 32 : 16, GROUP_ROWS = DIMS <= 128 ? 32 : 8;
    constexpr int GROUP_BYTES = DIMS <= 128 ? 8192 : 16384;
    switch (size) {
        case TILE_FEW: return launch_of<shape<TYPE, 8, DIMS, 128, 16384>>();
        case TILE_GROUP: return launch_of<shape<TYPE, GROUP_ROWS, DIMS, 128, GROUP_BYTES>>();
        default:
            if constexpr (TYPE == LS_BF16 && DIMS <= 128)
                return launch_of<large_shape<DIMS>>();
            else
                return launch_of<shape<TYPE, MANY_ROWS, DIMS, 256, 8192>>();
    }
}

template <int TYPE>
static attention_launch pick_dims(int64_t head_dim, tile_size size) {
    return head_dim <= 64    ? pick_rows<TYPE, 64>(size)
           : head_dim <= 128 ? pick_rows<TYPE, 128>(size)
           : head_dim <= 256 ? pick_rows<TYPE, 256>(size)
                             : pick_rows<TYPE, 512>(size);
}

/* Spans with queries in [least, most], in tiles of one kind; a span is expected to have up to `queries`. */
static ls_status launch_attend(const ls_exec *exec, attention_params *p, const ls_index *index, tile_size size,
                               int64_t least, int64_t most, int64_t queries, ls_error *err) {
    const ls_attention_args *a = &p->a;
    const attention_launch pick =
        a->dtype == LS_F32 ? pick_dims<LS_F32>(a->head_dim, size) : pick_dims<LS_BF16>(a->head_dim, size);
    const int64_t items = ls_launch_blocks(a->n_spans, a->n_kv_heads, 1);
    const int64_t tiles = (queries - 1) / pick.rows + 1, enough = items < BLOCKS_ENOUGH ? BLOCKS_ENOUGH / items : 1;
    p->least = least;
    p->most = most;
    p->slices = tiles < enough ? tiles : enough;
    const ls_launch launch = {
        "attention", {ls_launch_blocks(items, p->slices, 1), 1, 1}, pick.threads, pick.shared_bytes, index, INDICES};
    return ls_cuda_launch(exec, &launch, pick.kernel, p, err);
}

/* A call of one token a span is all small tiles, a call of one long span all large ones; otherwise a span is taken by
 * one of two kernels. With few spans small tiles fill the chip better, but each of them reads all keys. */
static ls_status launch_all(const ls_exec *exec, attention_params *p, const ls_index *index, ls_error *err) {
    const int64_t queries = ls_launch_blocks(p->a.rows, p->group, 1), limit = p->group > FEW ? p->group : FEW;
    const bool fills = ls_launch_blocks(p->a.n_spans, p->a.n_kv_heads, 1) >= ITEMS_ENOUGH;
    if (p->a.rows <= p->a.n_spans) {
        bool taken;
        LS_CUDA_TRY(ls_attention_tokens(exec, &p->a, p->fault, &taken, err));
        if (taken) return LS_OK;
        return launch_attend(exec, p, index, p->group > 8 && fills ? TILE_GROUP : TILE_FEW, 0, INT64_MAX, p->group,
                             err);
    }
    if (queries <= limit) return launch_attend(exec, p, index, TILE_FEW, 0, INT64_MAX, queries, err);
    if (p->a.n_spans == 1) return launch_attend(exec, p, index, TILE_MANY, 0, INT64_MAX, queries, err);
    LS_CUDA_TRY(launch_attend(exec, p, index, TILE_FEW, 0, limit, limit, err));
    return launch_attend(exec, p, index, TILE_MANY, limit + 1, INT64_MAX, queries, err);
}

static ls_status check_call(const ls_exec *exec, const ls_attention_args *a, ls_error *err) {
    const int64_t elem = ls_dtype_bytes(a->dtype);
    const bool no_rows = a->rows == 0;
    const ls_cuda_operand operands[] = {{"q", a->q, elem, no_rows},
                                        {"k", a->k, elem, no_rows},
                                        {"v", a->v, elem, no_rows},
                                        {"out", a->out, elem, no_rows},
                                        {"pages", a->pages.base, elem, a->pages.n_entries == 0},
                                        {"spans", a->spans, 8, a->n_spans == 0},
                                        {"tables", a->tables, 4, a->n_tables == 0},
                                        {"log_sum", a->log_sum, 4, a->log_sum == NULL}};
    if (a->dtype != LS_F32 && a->dtype != LS_BF16)
        return LS_FAIL(err, LS_ERR_UNSUPPORTED, "attention: %s; f32 and bf16 are built", ls_dtype_name(a->dtype));
    if (a->pages.stride % elem != 0)
        return LS_FAIL(err, LS_ERR_ARG, "attention: pages: stride of %lld bytes, for elements of %lld",
                       (long long)a->pages.stride, (long long)elem);
    return ls_cuda_check("attention", exec, operands, (int64_t)(sizeof operands / sizeof operands[0]),
                         LS_WORKSPACE_HEAD, err);
}

static ls_status launch_check(const ls_exec *exec, const ls_attention_args *a, ls_fault *fault, ls_error *err) {
    page_check check = {ls_span_check_of(a, a->rows, INT64_MAX, fault), a->tables, a->n_tables, a->pages.n_entries,
                        a->page_tokens};
    const ls_launch launch = {"attention", {1, 1, 1}, CHECK_THREADS, 0, NULL, 0};
    LS_CUDA_TRY(ls_cuda_launch(exec, &launch, (const void *)check_kernel, &check, err));
    return ls_cuda_fault_end("attention", exec, fault, err);
}

/* heads: what queries, keys and values are made of by the kernel that attends; NULL: they are there. */
static ls_status attend_call(const ls_exec *exec, const ls_attention_args *a, const ls_rope_args *heads,
                             ls_error *err) {
    const int64_t elem = ls_dtype_bytes(a->dtype), enough = a->n_spans < BLOCKS_ENOUGH ? BLOCKS_ENOUGH : a->n_spans;
    /* Blocks of the store for each span: where there are as many spans as rows, one token each is to be expected. */
    const int64_t tokens = a->rows <= a->n_spans ? 1 : a->rows;
    ls_fault *fault;
    LS_CUDA_TRY(check_call(exec, a, err));
    if (a->n_spans == 0) return LS_OK;
    const bool aligned = (uintptr_t)a->pages.base % 16 == 0 && a->pages.stride % 16 == 0;
    attention_params p = {
        .a = *a,
        .group = a->n_heads / a->n_kv_heads,
        .least = 0,
        .most = 0,
        .slices = tokens < enough / a->n_spans ? tokens : enough / a->n_spans,
        .page_shift = __builtin_ctzll((unsigned long long)a->page_tokens),
        .wide_queries = (uintptr_t)a->q % 16 == 0 && a->q_stride * elem % 16 == 0 && a->head_dim * elem % 16 == 0,
        .wide_keys = aligned && a->page_tokens * elem % 16 == 0 && a->head_dim * a->page_tokens * elem % 16 == 0,
        .wide_values = aligned && a->head_dim * elem % 16 == 0,
        .fault = NULL};
    const ls_index index[INDICES] = {
        {LS_WIDTH_I64, {{{"row", a->rows}, {"q stride", a->q_stride}, {"element", elem}}}},
        {LS_WIDTH_I64, {{{"row", a->rows}, {"kv stride", a->kv_stride}, {"element", elem}}}},
        {LS_WIDTH_I64, {{{"row", a->rows}, {"out stride", a->out_stride}, {"element", elem}}}},
        {LS_WIDTH_I64, {{{"page", a->pages.n_entries}, {"page stride in bytes", a->pages.stride}}}},
        {LS_WIDTH_I64,
         {{{"2 KV heads", 2 * a->n_kv_heads},
           {"head dim", a->head_dim},
           {"page tokens", a->page_tokens},
           {"element", elem}}}},
        {LS_WIDTH_I64, {{{"table entry", a->n_tables}, {"bytes", 4}}}},
        {LS_WIDTH_I64, {{{"row", a->rows}, {"heads of a KV head", p.group}}}}};
    const ls_launch store = {
        "attention store", {ls_launch_blocks(a->n_spans, p.slices, 1), 1, 1}, STORE_THREADS, 0, index, INDICES};
    /* Many tokens a span, whole vectors of them. */
    const bool by_pages = p.wide_keys && p.wide_values && a->page_tokens == PAGE && elem == 2 && a->rows > a->n_spans &&
                          a->head_dim <= STORE_DIMS_MAX && (uintptr_t)a->k % 16 == 0 && (uintptr_t)a->v % 16 == 0 &&
                          a->kv_stride % 8 == 0;
    if (a->rows > 0) LS_CUDA_TRY(ls_launch_check(&store, LS_CUDA_SHARED_MAX, err));
    LS_CUDA_TRY(ls_cuda_fault_begin("attention", exec, &fault, err));
    p.fault = fault;
    LS_CUDA_TRY(a->spans_checked ? ls_cuda_checked_before("attention", exec, err) : launch_check(exec, a, fault, err));
    if (a->rows == 0) return LS_OK;
    if (heads != NULL) return ls_attention_mma16(exec, a, heads, fault, err);
    if (by_pages) {
        const int64_t parts = ls_launch_blocks(a->n_spans, a->n_kv_heads, 1), slices = p.slices;
        int processors;
        LS_CUDA_TRY(ls_processors(&processors, "attention", err));
        p.slices = a->rows / PAGE + 2;
        const int64_t warps = ls_launch_blocks(parts, p.slices, 1), most = (int64_t)processors * 12;
        const int64_t blocks = warps / STORE_WARPS < most ? warps / STORE_WARPS + 1 : most;
        const ls_launch pages = {"attention store", {blocks, 1, 1}, STORE_THREADS, 0, index, INDICES};
        LS_CUDA_TRY(ls_cuda_launch(exec, &pages, (const void *)store_pages_kernel, &p, err));
        p.slices = slices;
    } else
        LS_CUDA_TRY(ls_cuda_launch(
            exec, &store, a->dtype == LS_F32 ? (const void *)store_kernel<LS_F32> : (const void *)store_kernel<LS_BF16>,
            &p, err));
    return a->profile == LS_PROFILE_MMA16 ? ls_attention_mma16(exec, a, NULL, fault, err)
                                          : launch_all(exec, &p, index, err);
}

ls_status ls_cuda_attention(const ls_exec *exec, const ls_attention_args *a, ls_error *err) {
    return attend_call(exec, a, NULL, err);
}

ls_status ls_cuda_attention_heads(const ls_exec *exec, const ls_attention_heads_args *a, ls_error *err) {
    bool hopper;
    LS_CUDA_TRY(ls_is_hopper(&hopper, "attention_heads", err));
    if (hopper && !a->keeps && ls_attention_mma16_makes(&a->attention, &a->heads)) {
        LS_CUDA_TRY(ls_cuda_rope_check(exec, &a->heads, err));
        return attend_call(exec, &a->attention, &a->heads, err);
    }
    LS_CUDA_TRY(ls_cuda_rope(exec, &a->heads, err));
    return attend_call(exec, &a->attention, NULL, err);
}
