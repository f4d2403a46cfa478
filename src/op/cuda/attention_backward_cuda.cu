/* Gradient of attention on the GPU, in tiles of 64 queries by 64 keys (attention_tile_cuda.h). Four kernels follow one
 * another: what the softmax of each query came to goes to the workspace; dq runs over keys, a block a tile of queries;
 * dk and dv run over queries, a block a tile of keys and a query head, and the heads' shares are added at the end. Each
 * makes scores again. Two warps make the chains of the scores while two make those of dp. Heads of more than 128
 * dimensions (64 in float32) are taken in parts, and their outputs are shared among blocks. */
#include <cuda_pipeline.h>

#include "op/attention_backward.h"
#include "op/cuda/attention_cuda.h"
#include "op/cuda/attention_tile_cuda.h"
#include "op/cuda/check_cuda.h"
#include "op/cuda/cuda_ops.h"

#define TILE LS_TILE
#define THREADS LS_TILE_THREADS
#define EACH LS_TILE_VECTOR
#define PARKED 2 /* rows of a fragment */
/* Blocks beyond which more tiles at a time do not help. */
#define BLOCKS_ENOUGH 65536

/* Rows of a tensor of heads. */
typedef struct source {
    const void *rows;
    int64_t stride;
    bool wide; /* eight dimensions are one aligned vector */
} source;

typedef struct backward_params {
    ls_attention_backward_args a;
    source q, k, v, dout;
    int64_t group;  /* query heads of a KV head */
    int64_t items;  /* spans, heads and shares */
    int64_t tiles;  /* of a span that run at the same time */
    int64_t shares; /* blocks among which the dimensions of an output are shared */
    float *kept;    /* [LS_ATTENTION_KEPT][n_heads][rows] */
    float *heads;   /* [2][n_heads][key_rows][head_dim]: shares of dk, of dv */
    int64_t key_rows;
    const ls_fault *fault;
} backward_params;

/* Where a tile of rows lies: n rows from `row` on, the head's first element at `column`. */
typedef struct place {
    int64_t row, column;
    int n;
} place;

static __device__ __forceinline__ place place_of(const ls_span *span, int64_t tile, int64_t column) {
    const int64_t first = tile * TILE, left = span->n_rows - first;
    const place at = {span->row + first, column, left < TILE ? (int)left : TILE};
    return at;
}

/* The same of keys, of which there are n from `first` on. */
static __device__ __forceinline__ place key_place(int64_t key_row, int64_t first, int64_t n, int64_t column) {
    const place at = {key_row + first, column, n < TILE ? (int)n : TILE};
    return at;
}

static __device__ __forceinline__ float *kept_at(const backward_params *p, int what, int64_t head, int64_t row) {
    return p->kept + (what * p->a.n_heads + head) * p->a.rows + row;
}

/* What a block does: a share of the dimensions of a head of a span, and the tiles of the span that it takes. */
typedef struct task {
    const ls_span *span;
    int64_t key_row; /* of the span's first key */
    int tile, head, dim;
} task;

/* The position of the first query of a tile. */
static __device__ __forceinline__ int64_t tile_pos(const task *t, int tile) {
    return t->span->pos + (int64_t)tile * TILE;
}
/* A tile of the span's keys. */
static __device__ __forceinline__ place keys_at(const task *t, int64_t tile, int64_t column) {
    return key_place(t->key_row, tile * TILE, ls_attention_keys(t->span) - tile * TILE, column);
}

/* LAST: the last tiles first. The tiles with most to do come first, so that the chip is full to the end. */
template <bool LAST>
static __device__ __forceinline__ task task_of(const backward_params *p, int share_dims) {
    const int64_t item = blockIdx.x % p->items, rest = item / p->shares, tile = blockIdx.x / p->items;
    const task t = {&p->a.spans[rest / p->a.n_heads], ls_attention_key_row(&p->a, rest / p->a.n_heads),
                    (int)(LAST ? p->tiles - 1 - tile : tile), (int)(rest % p->a.n_heads),
                    (int)(item % p->shares) * share_dims};
    return t;
}

/* ---- loads ---- */

/* Eight dimensions of a row from `dim` on, as stored; +0 where there is no such row or dimension. */
template <int TYPE>
static __device__ __forceinline__ ls_vec8<TYPE> load_eight(const source *s, const place *at, int row, int64_t dim,
                                                           int64_t dims) {
    const typename ls_stored<TYPE>::type *from =
        (const typename ls_stored<TYPE>::type *)s->rows + (at->row + row) * s->stride + at->column + dim;
    const int n = row >= at->n || dim >= dims ? 0 : dims - dim < EACH ? (int)(dims - dim) : EACH;
    typename ls_stored<TYPE>::type x[EACH];
    ls_vec8<TYPE> v;
#pragma unroll
    for (int i = 0; i < EACH; i++) x[i] = i < n ? from[i] : 0;
    memcpy(&v, x, sizeof v);
    return v;
}

/* Dimensions [dim, dim + DIMS) of a tile's rows; `loaded` waits for them. */
template <int TYPE, int DIMS>
static __device__ __forceinline__ void load_tile(ls_tile<typename ls_stored<TYPE>::type, DIMS> &to, const source *s,
                                                 const place *at, int64_t dim, int64_t dims) {
    typedef typename ls_stored<TYPE>::type element;
    constexpr int WORD = 16 / (int)sizeof(element), WORDS = DIMS / WORD, ROWS = THREADS / WORDS;
    if (s->wide && at->n == TILE && dims - dim >= DIMS) {
        const int row = threadIdx.x / WORDS, d = threadIdx.x % WORDS * WORD;
        const element *from = (const element *)s->rows + (at->row + row) * s->stride + at->column + dim + d;
#pragma unroll 2
        for (int r = 0; r < TILE; r += ROWS, from += ROWS * s->stride)
            __pipeline_memcpy_async(&to.x[row + r][d], from, 16);
        return;
    }
#pragma unroll 1
    for (int i = threadIdx.x; i < TILE * DIMS / EACH; i += THREADS) {
        const int row = i / (DIMS / EACH), d = i % (DIMS / EACH) * EACH;
        const ls_vec8<TYPE> v = load_eight<TYPE>(s, at, row, dim + d, dims);
        memcpy(&to.x[row][d], &v, sizeof v);
    }
}

/* What this block has loaded is there, for all its threads. */
static __device__ __forceinline__ void loaded(void) {
    __pipeline_commit();
    __pipeline_wait_prior(0);
    __syncthreads();
}

/* Every thread widens what it finds: rows of bf16 as rows of floats. */
template <class T, int DIMS>
static __device__ __forceinline__ void widen_tile(ls_tile<float, DIMS> &to, const ls_tile<T, DIMS> &from) {
#pragma unroll 4
    for (int i = threadIdx.x; i < TILE * DIMS / 4; i += THREADS) {
        const int row = i / (DIMS / 4), d = i % (DIMS / 4) * 4;
        float x[4];
        ls_tile_four(x, &from.x[row][d]);
        *(float4 *)&to.x[row][d] = make_float4(x[0], x[1], x[2], x[3]);
    }
}

static __device__ __forceinline__ int dims_left(int dims, int dim, int most) {
    return dims - dim < most ? dims - dim : most;
}

/* What is fixed when a kernel is compiled: type of q, k and v, and the dimensions of a tile. */
template <int TYPE_, int DIMS_>
struct shape {
    static constexpr int TYPE = TYPE_, DIMS = DIMS_, COLUMNS = DIMS / 16;
    typedef ls_tile<float, DIMS> wide;
    typedef ls_tile<typename ls_stored<TYPE>::type, DIMS> narrow;
};

/* ---- first kernel: M, r and D of every query ---- */

template <class S>
struct softmax_memory {
    typename S::wide q;
    union {
        struct {
            typename S::narrow k, v;
        };
        float out[S::DIMS][LS_TILE_PITCH]; /* [dimension][query] */
    };
    ls_softmax<TILE> softmax;
};

/* Dimensions of a tile of queries, widened; they come by way of the keys' place. */
template <class S>
static __device__ __forceinline__ void bring_queries(softmax_memory<S> *shared, const backward_params *p,
                                                     const place *queries, int dim, int dims) {
    __syncthreads();
    load_tile<S::TYPE>(shared->k, &p->q, queries, dim, dims);
    loaded();
    widen_tile(shared->q, shared->k);
}

/* Scores of a tile of queries and a tile of keys, chains over all dimensions, to softmax.e. */
template <class S>
static __device__ __forceinline__ void score_tile(softmax_memory<S> *shared, const backward_params *p,
                                                  const place *queries, const place *keys, int dims) {
    const int column = ls_lane_half() * LS_TILE_WARP + ls_lane_column();
    ls_fragment<4> score;
    ls_fragment_clear<4>(score);
#pragma unroll 1
    for (int dim = 0; dim < dims; dim += S::DIMS) {
        if (dims > S::DIMS) bring_queries<S>(shared, p, queries, dim, dims);
        __syncthreads();
        load_tile<S::TYPE>(shared->k, &p->k, keys, dim, dims);
        loaded();
        ls_tile_dots<false, 4, S::wide::PITCH, S::narrow::PITCH>(score, shared->q.x[ls_lane_row()], shared->k.x[column],
                                                                 dims_left(dims, dim, S::DIMS));
    }
    ls_tile_put<4>(shared->softmax.e, score, column);
}

/* Whether 64 queries from position `query` on take all keys of a tile. */
static __device__ __forceinline__ bool takes_whole(const backward_params *p, int64_t query, int64_t keys) {
    return keys * TILE + TILE - 1 <= query && ls_attention_first(query + TILE - 1, p->a.window) <= keys * TILE;
}

/* Keys of a tile that queries from position `query` on take, a row a query. */
static __device__ __forceinline__ ls_tile_reach keys_of_query(const backward_params *p, int64_t query, int64_t keys) {
    const int four = ls_lane_four();
    ls_tile_reach takes;
#pragma unroll
    for (int i = 0; i < LS_TILE_ROWS; i++) {
        const int64_t pos = query + ls_fragment_row(four, i);
        takes.low[i] = ls_keys_before(ls_attention_first(pos, p->a.window), keys * TILE);
        takes.high[i] = ls_keys_before(pos + 1, keys * TILE);
    }
    return takes;
}

/* The other way round: queries from position `query` on that take a key, a row a key. */
static __device__ __forceinline__ ls_tile_reach queries_of_key(const backward_params *p, int64_t query, int64_t keys) {
    const int four = ls_lane_four();
    ls_tile_reach takes;
#pragma unroll
    for (int i = 0; i < LS_TILE_ROWS; i++) {
        const int64_t key = keys * TILE + ls_fragment_row(four, i);
        takes.low[i] = ls_keys_before(key, query);
        takes.high[i] = ls_keys_before(ls_attention_after(key, p->a.window), query);
    }
    return takes;
}

/* The first tile of keys of which a query from position `query` on takes one. */
static __device__ __forceinline__ int64_t first_tile(const backward_params *p, int64_t query) {
    return ls_attention_first(query, p->a.window) / TILE;
}

/* What comes before the end of a tile that begins at `first`, seen from there. */
static __device__ __forceinline__ int tile_end(int64_t end, int64_t first) {
    return end - first < TILE ? (int)(end - first) : TILE;
}

/* The softmax of a tile of queries of a head, and ACC of S::DIMS dimensions. */
template <class S>
static __device__ __forceinline__ void attend(ls_fragment<S::COLUMNS> &total, softmax_memory<S> *shared,
                                              const backward_params *p, const task *t, int dim) {
    const int dims = (int)p->a.head_dim;
    const int64_t pos = tile_pos(t, t->tile), last = pos + TILE, n_keys = ls_attention_keys(t->span);
    const int64_t keys = last < n_keys ? last : n_keys, begin = first_tile(p, pos) * TILE;
    const place queries = place_of(t->span, t->tile, t->head * p->a.head_dim);
    ls_softmax<TILE> *softmax = &shared->softmax;
    ls_fragment<S::COLUMNS> acc;
    ls_fragment_clear<S::COLUMNS>(acc);
    __syncthreads();
    if (threadIdx.x < TILE) {
        const int64_t query = pos + threadIdx.x;
        ls_softmax_row(softmax, threadIdx.x, ls_attention_first(query, p->a.window), query + 1);
    }
    if (dims <= S::DIMS) bring_queries<S>(shared, p, &queries, 0, dims);
#pragma unroll 1
    for (int64_t first = begin; first < keys; first += TILE) {
        const place at = keys_at(t, first / TILE, t->head / p->group * p->a.head_dim);
        __syncthreads();
        load_tile<S::TYPE>(shared->v, &p->v, &at, dim, dims);
        score_tile<S>(shared, p, &queries, &at, dims);
        __syncthreads();
        ls_softmax_take<TILE, THREADS>(softmax, p->a.scale, first);
        __syncthreads();
        const int four = ls_lane_four();
#pragma unroll
        for (int i = 0; i < LS_TILE_ROWS; i++)
#pragma unroll
            for (int c = 0; c < S::COLUMNS; c++)
                acc[i][c] = ls_mul(acc[i][c], softmax->correction[ls_fragment_row(four, i)]);
        if (takes_whole(p, pos, first / TILE)) {
            ls_tile_sums<false, S::COLUMNS, S::narrow::PITCH>(acc, softmax->e, &shared->v.x[0][ls_lane_dim<S::DIMS>()],
                                                              0, TILE, NULL);
        } else {
            const ls_tile_reach takes = ls_tile_takes(softmax, first);
            const int end = tile_end(pos + ls_lane_first() + LS_TILE_WARP, first);
            ls_tile_sums<true, S::COLUMNS, S::narrow::PITCH>(acc, softmax->e, &shared->v.x[0][ls_lane_dim<S::DIMS>()],
                                                             0, end, &takes);
        }
        if (!ls_segment_ends(first + TILE, keys)) continue;
        const int64_t start = first / LS_ATTENTION_SEGMENT * LS_ATTENTION_SEGMENT;
        __syncthreads();
        if (threadIdx.x < TILE) ls_softmax_join(softmax, threadIdx.x, start);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < LS_TILE_ROWS; i++)
#pragma unroll
            for (int c = 0; c < S::COLUMNS; c++)
                total[i][c] = ls_softmax_joined(softmax, ls_fragment_row(four, i), start, total[i][c], acc[i][c]);
        ls_fragment_clear<S::COLUMNS>(acc);
    }
}

/* D goes on over S::DIMS dimensions; a thread a query. */
template <class S>
static __device__ __forceinline__ float add_dout(float sum, const ls_fragment<S::COLUMNS> &total,
                                                 softmax_memory<S> *shared, const backward_params *p, const place *at,
                                                 int dim) {
    const int four = ls_lane_four(), across = ls_lane_dim<S::DIMS>();
    const int query = threadIdx.x, n = dims_left((int)p->a.head_dim, dim, S::DIMS);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < LS_TILE_ROWS; i++)
#pragma unroll
        for (int c = 0; c < S::COLUMNS; c++)
            shared->out[ls_fragment_dim(across, c)][ls_fragment_row(four, i)] =
                ls_div(total[i][c], shared->softmax.total_l[ls_fragment_row(four, i)]);
    __syncthreads();
    if (query >= at->n) return sum;
    const float *dout = p->a.dout + (at->row + query) * p->a.dout_stride + at->column + dim;
#pragma unroll 8
    for (int d = 0; d < n; d++) sum = ls_fma(dout[d], shared->out[d][query], sum);
    return sum;
}

/* A block takes all dimensions, one share after another, since D is one chain. */
template <class S>
static __global__ void __launch_bounds__(THREADS, 2) softmax_kernel(const __grid_constant__ backward_params p) {
    ls_cuda_begin();
    extern __shared__ uint4 dynamic[];
    softmax_memory<S> *shared = (softmax_memory<S> *)dynamic;
    task t = task_of<true>(&p, 0);
    if (p.fault->code != LS_FAULT_NONE || t.span->slot < 0) return;
    for (; (int64_t)t.tile * TILE < t.span->n_rows; t.tile += (int)p.tiles) {
        const place at = place_of(t.span, t.tile, t.head * p.a.head_dim);
        const int query = threadIdx.x;
        float sum = 0.0f;
#pragma unroll 1
        for (int dim = 0; dim < p.a.head_dim; dim += S::DIMS) {
            ls_fragment<S::COLUMNS> total;
            attend<S>(total, shared, &p, &t, dim);
            sum = add_dout<S>(sum, total, shared, &p, &at, dim);
        }
        if (query >= at.n) continue;
        *kept_at(&p, LS_ATTENTION_KEPT_M, t.head, at.row + query) = shared->softmax.total_m[query];
        *kept_at(&p, LS_ATTENTION_KEPT_R, t.head, at.row + query) = ls_div(1.0f, shared->softmax.total_l[query]);
        *kept_at(&p, LS_ATTENTION_KEPT_D, t.head, at.row + query) = sum;
    }
}

/* ---- probabilities and ds of a tile of queries and a tile of keys ---- */

/* The chains of the scores replace the keys, those of dp the values, once both are made. */
template <class S>
struct pair_memory {
    typename S::narrow q;
    typename S::wide dout;
    union {
        typename S::narrow k;
        ls_tile_weights p;
    };
    union {
        typename S::narrow v;
        ls_tile_weights ds;
    };
    float kept[LS_ATTENTION_KEPT][TILE]; /* of the queries */
    float4 parked[PARKED * S::COLUMNS / 4][THREADS];
};

/* Rows of a fragment that wait in shared memory while chains are made: dk, dv and a fragment of chains are more than
 * the registers of a thread. */
template <class S>
static __device__ __forceinline__ void park(pair_memory<S> *shared, const ls_fragment<S::COLUMNS> &f) {
#pragma unroll
    for (int i = 0; i < PARKED * S::COLUMNS; i += 4) {
        const float *x = &f[i / S::COLUMNS][i % S::COLUMNS];
        shared->parked[i / 4][threadIdx.x] = make_float4(x[0], x[1], x[2], x[3]);
    }
}
template <class S>
static __device__ __forceinline__ void fetch_parked(ls_fragment<S::COLUMNS> &f, const pair_memory<S> *shared) {
#pragma unroll
    for (int i = 0; i < PARKED * S::COLUMNS; i += 4) {
        const float4 v = shared->parked[i / 4][threadIdx.x];
        float *x = &f[i / S::COLUMNS][i % S::COLUMNS];
        x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
    }
}

static __device__ __forceinline__ void load_kept(float (&kept)[LS_ATTENTION_KEPT][TILE], const backward_params *p,
                                                 int64_t head, const place *at) {
    for (int i = threadIdx.x; i < LS_ATTENTION_KEPT * TILE; i += THREADS) {
        const int query = i % TILE;
        kept[i / TILE][query] = *kept_at(p, i / TILE, head, at->row + (query < at->n ? query : 0));
    }
}

/* Two of the warps make the chains of a score, two those of dp: rows are `a`'s tile, columns `b`'s. */
template <class S, class A, class B, class C, class D>
static __device__ __forceinline__ void pair_chains(ls_fragment<8> &f, const A &scores_a, const B &scores_b,
                                                   const C &dp_a, const D &dp_b, int dims) {
    if (ls_lane_half() == 0)
        ls_tile_dots<false, 8, A::PITCH, B::PITCH>(f, scores_a.x[ls_lane_row()], scores_b.x[ls_lane_column()], dims);
    else
        ls_tile_dots<false, 8, C::PITCH, D::PITCH>(f, dp_a.x[ls_lane_row()], dp_b.x[ls_lane_column()], dims);
}

static __device__ __forceinline__ float probability(float chain, float scale, float m, float r) {
    return ls_mul(ls_exp(ls_sub(ls_mul(scale, chain), m)), r);
}

/* Chains become probabilities, where they are asked for, and ds. QUERIES: rows of the weights are queries. */
template <bool QUERIES>
static __device__ __forceinline__ void weigh(ls_tile_weights &p, ls_tile_weights &ds,
                                             const float (&kept)[LS_ATTENTION_KEPT][TILE], float scale) {
#pragma unroll 2
    for (int i = threadIdx.x; i < TILE * TILE / 4; i += THREADS) {
        const int row = i / (TILE / 4), first = i % (TILE / 4) * 4;
        float s[4], d[4];
        ls_load_four(s, &p[row][first]);
        ls_load_four(d, &ds[row][first]);
#pragma unroll
        for (int c = 0; c < 4; c++) {
            const int query = QUERIES ? row : first + c;
            s[c] = probability(s[c], scale, kept[LS_ATTENTION_KEPT_M][query], kept[LS_ATTENTION_KEPT_R][query]);
            d[c] = ls_mul(s[c], ls_sub(d[c], kept[LS_ATTENTION_KEPT_D][query]));
        }
        if (QUERIES) *(float4 *)&p[row][first] = make_float4(s[0], s[1], s[2], s[3]);
        *(float4 *)&ds[row][first] = make_float4(d[0], d[1], d[2], d[3]);
    }
}

/* Chains of a tile of queries and one of keys over all dimensions. KEYS_DOWN: keys are the fragment's rows. Queries and
 * dout are loaded if `fresh` or where their dimensions do not fit a tile. */
template <class S, bool KEYS_DOWN>
static __device__ __forceinline__ void make_chains(pair_memory<S> *shared, const backward_params *p,
                                                   const place *queries, const place *keys, bool fresh) {
    const int dims = (int)p->a.head_dim;
    ls_fragment<8> f;
    ls_fragment_clear<8>(f);
#pragma unroll 1
    for (int dim = 0; dim < dims; dim += S::DIMS) {
        const int n = dims_left(dims, dim, S::DIMS);
        __syncthreads();
        load_tile<S::TYPE>(shared->k, &p->k, keys, dim, dims);
        load_tile<S::TYPE>(shared->v, &p->v, keys, dim, dims);
        if (fresh || dims > S::DIMS) {
            load_tile<S::TYPE>(shared->q, &p->q, queries, dim, dims);
            load_tile<LS_F32>(shared->dout, &p->dout, queries, dim, dims);
        }
        loaded();
        if (KEYS_DOWN)
            pair_chains<S>(f, shared->k, shared->q, shared->v, shared->dout, n);
        else
            pair_chains<S>(f, shared->q, shared->k, shared->dout, shared->v, n);
    }
    __syncthreads();
    ls_tile_put<8>(ls_lane_half() == 0 ? shared->p : shared->ds, f, ls_lane_column());
    __syncthreads();
    weigh<KEYS_DOWN>(shared->p, shared->ds, shared->kept, p->a.scale);
    __syncthreads();
}

/* ---- second kernel: dq ---- */

template <class S>
static __device__ __forceinline__ void query_tile(pair_memory<S> *shared, const backward_params *p, const task *t) {
    const int dims = (int)p->a.head_dim;
    const place queries = place_of(t->span, t->tile, t->head * p->a.head_dim);
    const int64_t pos = tile_pos(t, t->tile), begin = first_tile(p, pos), last = (pos + queries.n - 1) / TILE;
    ls_fragment<S::COLUMNS> dq;
    ls_fragment_clear<S::COLUMNS>(dq);
    __syncthreads();
    load_kept(shared->kept, p, t->head, &queries);
#pragma unroll 1
    for (int64_t other = begin; other <= last; other++) {
        const place keys = keys_at(t, other, t->head / p->group * p->a.head_dim);
        make_chains<S, false>(shared, p, &queries, &keys, other == begin);
        /* The keys come once more, in place of the chains of the scores. */
        load_tile<S::TYPE>(shared->k, &p->k, &keys, t->dim, dims);
        loaded();
        if (takes_whole(p, pos, other)) {
            ls_tile_sums<false, S::COLUMNS, S::narrow::PITCH>(dq, shared->ds, &shared->k.x[0][ls_lane_dim<S::DIMS>()],
                                                              0, TILE, NULL);
        } else {
            const ls_tile_reach takes = keys_of_query(p, pos, other);
            const int end = tile_end(pos + ls_lane_first() + LS_TILE_WARP, other * TILE);
            ls_tile_sums<true, S::COLUMNS, S::narrow::PITCH>(dq, shared->ds, &shared->k.x[0][ls_lane_dim<S::DIMS>()], 0,
                                                             end, &takes);
        }
    }
    const int four = ls_lane_four(), across = ls_lane_dim<S::DIMS>();
#pragma unroll
    for (int i = 0; i < LS_TILE_ROWS; i++)
#pragma unroll
        for (int c = 0; c < S::COLUMNS; c++) {
            const int row = ls_fragment_row(four, i);
            const int64_t dim = t->dim + ls_fragment_dim(across, c);
            if (row < queries.n && dim < dims)
                p->a.dq[(queries.row + row) * p->a.dq_stride + queries.column + dim] = ls_mul(p->a.scale, dq[i][c]);
        }
}

template <class S>
static __global__ void __launch_bounds__(THREADS, 2) dq_kernel(const __grid_constant__ backward_params p) {
    ls_cuda_begin();
    extern __shared__ uint4 dynamic[];
    task t = task_of<true>(&p, S::DIMS);
    if (p.fault->code != LS_FAULT_NONE || t.span->slot < 0) return;
    for (; (int64_t)t.tile * TILE < t.span->n_rows; t.tile += (int)p.tiles)
        query_tile<S>((pair_memory<S> *)dynamic, &p, &t);
}

/* ---- third kernel: dk and dv ---- */

static __device__ __forceinline__ float *head_share(const backward_params *p, int what, int64_t head, int64_t row) {
    return p->heads + ((what * p->a.n_heads + head) * p->key_rows + row) * p->a.head_dim;
}

template <class S>
static __device__ __forceinline__ void put_share(const ls_fragment<S::COLUMNS> &f, const backward_params *p, int what,
                                                 const task *t, const place *keys) {
    const int four = ls_lane_four(), across = ls_lane_dim<S::DIMS>();
#pragma unroll
    for (int i = 0; i < LS_TILE_ROWS; i++)
#pragma unroll
        for (int c = 0; c < S::COLUMNS; c++) {
            const int row = ls_fragment_row(four, i);
            const int64_t dim = t->dim + ls_fragment_dim(across, c);
            if (row < keys->n && dim < p->a.head_dim) head_share(p, what, t->head, keys->row + row)[dim] = f[i][c];
        }
}

template <class S>
static __device__ __forceinline__ void key_tile(pair_memory<S> *shared, const backward_params *p, const task *t) {
    const int dims = (int)p->a.head_dim;
    const place keys = keys_at(t, t->tile, t->head / p->group * p->a.head_dim);
    const int64_t first = (int64_t)t->tile * TILE;
    ls_fragment<S::COLUMNS> dk, dv;
    ls_fragment_clear<S::COLUMNS>(dk);
    ls_fragment_clear<S::COLUMNS>(dv);
#pragma unroll 1
    for (int other = first > t->span->pos ? (int)((first - t->span->pos) / TILE) : 0;
         (int64_t)other * TILE < t->span->n_rows && first_tile(p, tile_pos(t, other)) <= t->tile; other++) {
        const int64_t pos = tile_pos(t, other);
        const place queries = place_of(t->span, other, t->head * p->a.head_dim);
        __syncthreads();
        load_kept(shared->kept, p, t->head, &queries);
        park<S>(shared, dk);
        make_chains<S, true>(shared, p, &queries, &keys, true);
        fetch_parked<S>(dk, shared);
        if (dims > S::DIMS) {
            load_tile<S::TYPE>(shared->q, &p->q, &queries, t->dim, dims);
            load_tile<LS_F32>(shared->dout, &p->dout, &queries, t->dim, dims);
            loaded();
        }
        const typename ls_stored<S::TYPE>::type *q = &shared->q.x[0][ls_lane_dim<S::DIMS>()];
        const float *dout = &shared->dout.x[0][ls_lane_dim<S::DIMS>()];
        if (takes_whole(p, pos, t->tile)) {
            ls_tile_sums<false, S::COLUMNS, S::wide::PITCH>(dv, shared->p, dout, 0, queries.n, NULL);
            ls_tile_sums<false, S::COLUMNS, S::narrow::PITCH>(dk, shared->ds, q, 0, queries.n, NULL);
        } else {
            const ls_tile_reach takes = queries_of_key(p, pos, t->tile);
            const int from = ls_keys_before(first + ls_lane_first(), pos);
            ls_tile_sums<true, S::COLUMNS, S::wide::PITCH>(dv, shared->p, dout, from, queries.n, &takes);
            ls_tile_sums<true, S::COLUMNS, S::narrow::PITCH>(dk, shared->ds, q, from, queries.n, &takes);
        }
    }
    put_share<S>(dk, p, 0, t, &keys);
    put_share<S>(dv, p, 1, t, &keys);
}

template <class S>
static __global__ void __launch_bounds__(THREADS, 2) dkv_kernel(const __grid_constant__ backward_params p) {
    ls_cuda_begin();
    extern __shared__ uint4 dynamic[];
    task t = task_of<false>(&p, S::DIMS);
    if (p.fault->code != LS_FAULT_NONE || t.span->slot < 0) return;
    for (; (int64_t)t.tile * TILE < ls_attention_keys(t.span); t.tile += (int)p.tiles)
        key_tile<S>((pair_memory<S> *)dynamic, &p, &t);
}

/* ---- fourth kernel: the heads of a KV head ---- */

/* A block a key's row: heads in order, one chain an element; dk is scaled behind it. */
static __global__ void __launch_bounds__(THREADS) heads_kernel(const __grid_constant__ backward_params p) {
    ls_cuda_begin();
    const int64_t dims = p.a.n_kv_heads * p.a.head_dim, item = blockIdx.x / p.tiles;
    const ls_span *span = &p.a.spans[item];
    if (p.fault->code != LS_FAULT_NONE || span->slot < 0) return;
    const int64_t n_keys = ls_attention_keys(span), key_row = ls_attention_key_row(&p.a, item);
    for (int64_t t = blockIdx.x % p.tiles; t < n_keys; t += p.tiles)
        for (int64_t i = threadIdx.x; i < 2 * dims; i += THREADS) {
            const int64_t row = key_row + t, column = i % dims, first = column / p.a.head_dim * p.group;
            const int what = i >= dims;
            float sum = 0.0f;
#pragma unroll 4
            for (int64_t h = 0; h < p.group; h++)
                sum = ls_add(sum, head_share(&p, what, first + h, row)[column % p.a.head_dim]);
            if (what == 0)
                p.a.dk[row * p.a.dkv_stride + column] = ls_mul(p.a.scale, sum);
            else
                p.a.dv[row * p.a.dkv_stride + column] = sum;
        }
}

/* ---- the host's side ---- */

#define INDICES 7

typedef struct backward_launch {
    const char *name;
    const void *kernel;
    int64_t heads, shares, shared_bytes;
} backward_launch;

/* tiles: of the longest span. */
static ls_status launch(const ls_exec *exec, const backward_launch *of, int64_t tiles, backward_params *p,
                        const ls_index *index, ls_error *err) {
    const int64_t items = ls_launch_blocks(p->a.n_spans, of->heads, of->shares);
    const int64_t enough = items < BLOCKS_ENOUGH ? BLOCKS_ENOUGH / items : 1;
    p->shares = of->shares;
    p->items = items;
    p->tiles = tiles < enough ? tiles : enough;
    const ls_launch contract = {
        of->name, {ls_launch_blocks(items, p->tiles, 1), 1, 1}, THREADS, of->shared_bytes, index, INDICES};
    return ls_cuda_launch(exec, &contract, of->kernel, p, err);
}

template <class S>
static ls_status launch_all(const ls_exec *exec, backward_params *p, const ls_index *index, ls_error *err) {
    const int64_t shares = (p->a.head_dim - 1) / S::DIMS + 1;
    const backward_launch softmax = {"attention_backward softmax", (const void *)softmax_kernel<S>, p->a.n_heads, 1,
                                     (int64_t)sizeof(softmax_memory<S>)};
    const backward_launch dq = {"attention_backward dq", (const void *)dq_kernel<S>, p->a.n_heads, shares,
                                (int64_t)sizeof(pair_memory<S>)};
    const backward_launch dkv = {"attention_backward dkv", (const void *)dkv_kernel<S>, p->a.n_heads, shares,
                                 (int64_t)sizeof(pair_memory<S>)};
    const backward_launch heads = {"attention_backward heads", (const void *)heads_kernel, 1, 1, 0};
    const int64_t tiles = ls_attention_tiles(ls_spans_most(p->a.span_rows_max, p->a.rows));
    const int64_t keys = ls_attention_keys_most(&p->a);
    LS_CUDA_TRY(launch(exec, &softmax, tiles, p, index, err));
    LS_CUDA_TRY(launch(exec, &dq, tiles, p, index, err));
    LS_CUDA_TRY(launch(exec, &dkv, ls_attention_tiles(keys), p, index, err));
    return launch(exec, &heads, keys, p, index, err);
}

static source source_of(const void *rows, int64_t stride, int64_t head_dim, int64_t elem) {
    const bool wide = (uintptr_t)rows % 16 == 0 && stride * elem % 16 == 0 && head_dim * elem % 16 == 0;
    const source s = {rows, stride, wide};
    return s;
}

ls_status ls_cuda_attention_backward(const ls_exec *exec, const ls_attention_backward_args *a, ls_error *err) {
    const int64_t elem = ls_dtype_bytes(a->dtype);
    const bool none = a->rows == 0 || ls_attention_key_rows(a) == 0;
    const ls_cuda_operand operands[] = {{"q", a->q, elem, none},
                                        {"k", a->k, elem, none},
                                        {"v", a->v, elem, none},
                                        {"dout", a->dout, 4, none},
                                        {"dq", a->dq, 4, none},
                                        {"dk", a->dk, 4, none},
                                        {"dv", a->dv, 4, none},
                                        {"spans", a->spans, 8, a->n_spans == 0},
                                        {"out", a->out, elem, none || a->profile == LS_PROFILE_EXACT},
                                        {"log_sum", a->log_sum, 4, none || a->profile == LS_PROFILE_EXACT},
                                        {"key_rows", a->key_rows, 8, true}};
    const int64_t key_rows = ls_attention_key_rows(a);
    ls_fault *fault;
    LS_CUDA_TRY(ls_cuda_check("attention_backward", exec, operands, (int64_t)(sizeof operands / sizeof operands[0]),
                              ls_op_attention_backward_workspace(a), err));
    if (a->n_spans == 0) return LS_OK;
    const ls_index index[INDICES] = {
        {LS_WIDTH_I64, {{{"row", a->rows}, {"q stride", a->q_stride}, {"element", elem}}}},
        {LS_WIDTH_I64, {{{"row", key_rows}, {"kv stride", a->kv_stride}, {"element", elem}}}},
        {LS_WIDTH_I64, {{{"row", a->rows}, {"dout stride", a->dout_stride}, {"element", 4}}}},
        {LS_WIDTH_I64, {{{"row", a->rows}, {"dq stride", a->dq_stride}, {"element", 4}}}},
        {LS_WIDTH_I64, {{{"row", key_rows}, {"dkv stride", a->dkv_stride}, {"element", 4}}}},
        {LS_WIDTH_I64, {{{"kept", LS_ATTENTION_KEPT}, {"head", a->n_heads}, {"row", a->rows}, {"element", 4}}}},
        {LS_WIDTH_I64,
         {{{"dk and dv of heads", 2 * a->n_heads}, {"row", key_rows}, {"dim", a->head_dim}, {"element", 4}}}}};
    backward_params p = {.a = *a,
                         .q = source_of(a->q, a->q_stride, a->head_dim, elem),
                         .k = source_of(a->k, a->kv_stride, a->head_dim, elem),
                         .v = source_of(a->v, a->kv_stride, a->head_dim, elem),
                         .dout = source_of(a->dout, a->dout_stride, a->head_dim, 4),
                         .group = a->n_heads / a->n_kv_heads,
                         .items = 0,
                         .tiles = 0,
                         .shares = 0,
                         .kept = (float *)((uint8_t *)exec->workspace + LS_WORKSPACE_HEAD),
                         .heads = NULL,
                         .key_rows = key_rows,
                         .fault = NULL};
    p.heads = p.kept + LS_ATTENTION_KEPT * a->n_heads * a->rows;
    LS_CUDA_TRY(ls_cuda_fault_begin("attention_backward", exec, &fault, err));
    ls_span_check check = ls_span_check_back(a, ls_spans_most(a->span_rows_max, a->rows), a->key_rows == NULL, fault);
    p.fault = fault;
    LS_CUDA_TRY(ls_cuda_check_spans("attention_backward", exec, &check, err));
    if (a->key_rows != NULL) {
        ls_key_check keys = {a->spans, a->key_rows, a->n_spans, a->key_rows_n, ls_attention_keys_most(a), fault};
        LS_CUDA_TRY(ls_cuda_check_keys("attention_backward", exec, &keys, err));
    }
    if (none) return LS_OK;
    if (a->profile == LS_PROFILE_MMA16) return ls_attention_backward_mma16(exec, a, fault, err);
    if (a->dtype == LS_F32)
        return launch_all<shape<LS_F32, 64>>(exec, &p, index,
                                             err); /* 128 do not fit the shared memory of every device */
    return a->head_dim <= 64 ? launch_all<shape<LS_BF16, 64>>(exec, &p, index, err)
                             : launch_all<shape<LS_BF16, 128>>(exec, &p, index, err);
}
