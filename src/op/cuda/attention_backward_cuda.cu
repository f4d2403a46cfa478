/* Gradient of attention on the GPU, in tiles of 64 queries by 64 keys; a thread holds 4 x 4 of every tile, so that each
 * chain of the contract is a chain in one thread. Four kernels follow one another: what the softmax of each query came
 * to goes to the workspace; dq runs over keys, a block a tile of queries; dk and dv run over queries, a block a
 * tile of keys and a query head, and the heads' shares are added at the end. Both make scores again, and share outputs
 * of many dimensions among blocks. */
#include "op/attention_backward.h"
#include "op/cuda/attention_softmax_cuda.h"
#include "op/cuda/check_cuda.h"
#include "op/cuda/cuda_ops.h"
#include "op/cuda/vector_cuda.h"

#define TILE LS_ATTENTION_BLOCK
#define PITCH (TILE + 4)
#define THREADS 256
#define HELD 4   /* rows, and lanes, of a tile that a thread holds */
#define DEPTH 32 /* dimensions of a step of the products over dimensions */
#define EACH 8   /* neighbouring dimensions that a thread loads */
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
    int64_t tiles;  /* of a span that run at the same time */
    int64_t shares; /* blocks among which the dimensions of an output are shared */
    float *kept;    /* [LS_ATTENTION_KEPT][n_heads][rows] */
    float *heads;   /* [2][n_heads][rows][head_dim]: shares of dk, of dv */
    const ls_fault *fault;
} backward_params;

/* Where a tile of rows lies: n rows from `row` on, the head's first element at `column`. */
typedef struct place {
    int64_t row, column;
    int n;
} place;

typedef float matrix[TILE][PITCH];

/* The operands of a product: two tensors as [dimension][row] while scores are made, up to two as [row][dimension] while
 * outputs are. */
union operands {
    float turned[2][DEPTH][PITCH];
    matrix rows[2];
};

static __device__ __forceinline__ place place_of(const ls_span *span, int64_t tile, int64_t column) {
    const int64_t first = tile * TILE, left = span->n_rows - first;
    const place at = {span->row + first, column, left < TILE ? (int)left : TILE};
    return at;
}

static __device__ __forceinline__ float *kept_at(const backward_params *p, int what, int64_t head, int64_t row) {
    return p->kept + (what * p->a.n_heads + head) * p->a.rows + row;
}

/* ---- loads ---- */

/* Eight dimensions of a row from `dim` on; +0 where there is no such row or dimension. */
template <int TYPE>
static __device__ __forceinline__ void load_eight(float (&x)[EACH], const source *s, const place *at, int row,
                                                  int64_t dim, int64_t dims) {
    const int64_t first = (at->row + row) * s->stride + at->column + dim;
    const int n = row >= at->n || dim >= dims ? 0 : dims - dim < EACH ? (int)(dims - dim) : EACH;
    if (n == EACH && s->wide) {
        ls_vec8<TYPE> v;
        const uint4 *from = (const uint4 *)((const uint8_t *)s->rows + first * (TYPE == LS_F32 ? 4 : 2));
        for (int w = 0; w < (TYPE == LS_F32 ? 2 : 1); w++) v.word[w] = __ldg(from + w);
#pragma unroll
        for (int i = 0; i < EACH; i++) x[i] = ls_vec8_get<TYPE>(v, i);
        return;
    }
#pragma unroll
    for (int i = 0; i < EACH; i++) x[i] = i < n ? ls_load_one<TYPE>(s->rows, first + i) : 0.0f;
}

/* Dimensions [dim, dim + DEPTH) of a tile's rows: neighbouring threads have neighbouring rows. */
template <int TYPE>
static __device__ __forceinline__ void load_turned(float (&to)[DEPTH][PITCH], const source *s, const place *at,
                                                   int64_t dim, int64_t dims) {
    static_assert(TILE * DEPTH == THREADS * EACH, "a thread loads once");
    const int row = threadIdx.x % TILE, d = threadIdx.x / TILE * EACH;
    float x[EACH];
    load_eight<TYPE>(x, s, at, row, dim + d, dims);
#pragma unroll
    for (int i = 0; i < EACH; i++) to[d + i][row] = x[i];
}

/* Dimensions [dim, dim + TILE) of a tile's rows. */
template <int TYPE>
static __device__ __forceinline__ void load_rows(matrix &to, const source *s, const place *at, int64_t dim,
                                                 int64_t dims) {
#pragma unroll
    for (int i = threadIdx.x; i < TILE * TILE / EACH; i += THREADS) {
        const int row = i / (TILE / EACH), d = i % (TILE / EACH) * EACH;
        float x[EACH];
        load_eight<TYPE>(x, s, at, row, dim + d, dims);
        *(float4 *)&to[row][d] = make_float4(x[0], x[1], x[2], x[3]);
        *(float4 *)&to[row][d + 4] = make_float4(x[4], x[5], x[6], x[7]);
    }
}

/* ---- products ---- */

typedef float fragment[HELD][HELD];

static __device__ __forceinline__ void clear(fragment &f) {
#pragma unroll
    for (int r = 0; r < HELD; r++)
#pragma unroll
        for (int c = 0; c < HELD; c++) f[r][c] = 0.0f;
}

/* f[r][c] = fma(a[row + r], b[lane + c], f[r][c]) */
static __device__ __forceinline__ void step(fragment &f, const float *a, const float *b) {
    float x[HELD], y[HELD];
    ls_load_four(x, a);
    ls_load_four(y, b);
#pragma unroll
    for (int r = 0; r < HELD; r++)
#pragma unroll
        for (int c = 0; c < HELD; c++) f[r][c] = ls_fma(x[r], y[c], f[r][c]);
}

/* s[r][c] = chain_d fma(a[row + r][d], b[lane + c][d]), d ascending from +0: the rows of two tiles, all dimensions. */
template <int A, int B>
static __device__ __forceinline__ void chains(fragment &s, operands *shared, const source *a, const place *a_at,
                                              const source *b, const place *b_at, int64_t dims, int row, int lane) {
    clear(s);
    for (int64_t dim = 0; dim < dims; dim += DEPTH) {
        const int n = dims - dim < DEPTH ? (int)(dims - dim) : DEPTH;
        __syncthreads();
        load_turned<A>(shared->turned[0], a, a_at, dim, dims);
        load_turned<B>(shared->turned[1], b, b_at, dim, dims);
        __syncthreads();
#pragma unroll 4
        for (int d = 0; d < n; d++) step(s, &shared->turned[0][d][row], &shared->turned[1][d][lane]);
    }
}

/* Which t of a product over rows a thread's rows take: row r those in [low[r], high[r]). */
typedef struct reach {
    int low[HELD], high[HELD];
} reach;

static __device__ __forceinline__ void some_steps(fragment &f, const matrix &weights, const matrix &values,
                                                  const reach *takes, int begin, int end, int row, int lane) {
#pragma unroll 1
    for (int t = begin; t < end; t++) {
        float x[HELD], y[HELD];
        ls_load_four(x, &weights[t][row]);
        ls_load_four(y, &values[t][lane]);
#pragma unroll
        for (int r = 0; r < HELD; r++)
#pragma unroll
            for (int c = 0; c < HELD; c++)
                if (t >= takes->low[r] && t < takes->high[r]) f[r][c] = ls_fma(x[r], y[c], f[r][c]);
    }
}

/* f[r][c] = chain_t fma(weights[t][row + r], values[t][lane + c], f[r][c]), t ascending. */
static __device__ __forceinline__ void sums(fragment &f, const matrix &weights, const matrix &values,
                                            const reach *takes, int row, int lane) {
    int first = TILE, all = 0, any = 0, last = TILE; /* all rows take [all, last), some take [first, any) */
#pragma unroll
    for (int r = 0; r < HELD; r++) {
        first = min(first, takes->low[r]);
        all = max(all, takes->low[r]);
        last = min(last, takes->high[r]);
        any = max(any, takes->high[r]);
    }
    if (all > last) all = last = any;
    some_steps(f, weights, values, takes, first, all, row, lane);
#pragma unroll 4
    for (int t = all; t < last; t++) step(f, &weights[t][row], &values[t][lane]);
    some_steps(f, weights, values, takes, last, any, row, lane);
}

/* A thread's part of a tile of weights, so that `sums` finds it. */
static __device__ __forceinline__ void put(matrix &weights, const fragment &f, int row, int lane) {
#pragma unroll
    for (int c = 0; c < HELD; c++) *(float4 *)&weights[lane + c][row] = make_float4(f[0][c], f[1][c], f[2][c], f[3][c]);
}

/* ---- first kernel: M, r and D of every query ---- */

template <int TILES>
struct softmax_memory {
    operands in;
    ls_softmax<TILE> softmax;
};

/* The softmax of a tile of queries of a head, and ACC of TILES * 64 dimensions from `dim` on. */
template <int TYPE, int TILES>
static __device__ __forceinline__ void attend(fragment (&total)[TILES], softmax_memory<TILES> *shared,
                                              const backward_params *p, const ls_span *span, int64_t tile, int64_t head,
                                              int64_t dim, int row, int lane) {
    const int64_t dims = p->a.head_dim, keys = tile * TILE + TILE;
    const place queries = place_of(span, tile, head * dims);
    ls_softmax<TILE> *softmax = &shared->softmax;
    fragment acc[TILES], score;
#pragma unroll
    for (int i = 0; i < TILES; i++) clear(acc[i]);
    __syncthreads();
    if (threadIdx.x < TILE) ls_softmax_row(softmax, threadIdx.x, tile * TILE + threadIdx.x + 1);
#pragma unroll 1
    for (int64_t first = 0; first < keys; first += TILE) {
        const place at = place_of(span, first / TILE, head / p->group * dims);
        reach takes;
        chains<TYPE, TYPE>(score, &shared->in, &p->q, &queries, &p->k, &at, dims, row, lane);
        put(softmax->e, score, row, lane);
        __syncthreads();
        ls_softmax_take<TILE, THREADS>(softmax, p->a.scale, first);
#pragma unroll
        for (int r = 0; r < HELD; r++) {
            takes.low[r] = 0;
            takes.high[r] = ls_keys_taken(softmax->keys[row + r], first);
        }
#pragma unroll
        for (int i = 0; i < TILES; i++) {
            __syncthreads();
            load_rows<TYPE>(shared->in.rows[0], &p->v, &at, dim + i * TILE, dims);
            __syncthreads();
#pragma unroll
            for (int r = 0; r < HELD; r++)
#pragma unroll
                for (int c = 0; c < HELD; c++) acc[i][r][c] = ls_mul(acc[i][r][c], softmax->correction[row + r]);
            sums(acc[i], softmax->e, shared->in.rows[0], &takes, row, lane);
        }
        if (!ls_segment_ends(first + TILE, keys)) continue;
        const int64_t start = first / LS_ATTENTION_SEGMENT * LS_ATTENTION_SEGMENT;
        if (threadIdx.x < TILE) ls_softmax_join(softmax, threadIdx.x, start);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < TILES; i++) {
#pragma unroll
            for (int r = 0; r < HELD; r++)
#pragma unroll
                for (int c = 0; c < HELD; c++)
                    total[i][r][c] = ls_softmax_joined(softmax, row + r, start, total[i][r][c], acc[i][r][c]);
            clear(acc[i]);
        }
    }
}

/* D goes on over 64 dimensions; a thread a query. */
static __device__ __forceinline__ float add_dout(float sum, matrix &out, const fragment &total,
                                                 const ls_softmax<TILE> *softmax, const backward_params *p,
                                                 const place *at, int64_t dim, int row, int lane) {
    const int query = threadIdx.x;
    fragment quotient;
#pragma unroll
    for (int r = 0; r < HELD; r++)
#pragma unroll
        for (int c = 0; c < HELD; c++) quotient[r][c] = ls_div(total[r][c], softmax->total_l[row + r]);
    __syncthreads();
    put(out, quotient, row, lane);
    __syncthreads();
    if (query >= at->n) return sum;
    for (int d = 0; d < TILE && dim + d < p->a.head_dim; d++)
        sum = ls_fma(p->a.dout[(at->row + query) * p->a.dout_stride + at->column + dim + d], out[d][query], sum);
    return sum;
}

/* A block takes all dimensions, one share after another, since D is one chain. */
template <int TYPE, int TILES>
static __global__ void __launch_bounds__(THREADS, 2) softmax_kernel(const __grid_constant__ backward_params p) {
    ls_cuda_begin();
    extern __shared__ uint4 dynamic[];
    softmax_memory<TILES> *shared = (softmax_memory<TILES> *)dynamic;
    const int row = threadIdx.x / (TILE / HELD) * HELD, lane = threadIdx.x % (TILE / HELD) * HELD;
    const int64_t item = blockIdx.x / p.tiles, head = item % p.a.n_heads;
    const ls_span *span = &p.a.spans[item / p.a.n_heads];
    if (p.fault->code != LS_FAULT_NONE || span->slot < 0) return;
    for (int64_t tile = blockIdx.x % p.tiles; tile * TILE < span->n_rows; tile += p.tiles) {
        const place at = place_of(span, tile, head * p.a.head_dim);
        const int query = threadIdx.x;
        float sum = 0.0f;
        for (int64_t dim = 0; dim < p.a.head_dim; dim += TILES * TILE) {
            fragment total[TILES];
            attend<TYPE, TILES>(total, shared, &p, span, tile, head, dim, row, lane);
#pragma unroll
            for (int i = 0; i < TILES; i++)
                sum = add_dout(sum, shared->in.rows[0], total[i], &shared->softmax, &p, &at, dim + i * TILE, row, lane);
        }
        if (query >= at.n) continue;
        *kept_at(&p, LS_ATTENTION_KEPT_M, head, at.row + query) = shared->softmax.total_m[query];
        *kept_at(&p, LS_ATTENTION_KEPT_R, head, at.row + query) = ls_div(1.0f, shared->softmax.total_l[query]);
        *kept_at(&p, LS_ATTENTION_KEPT_D, head, at.row + query) = sum;
    }
}

/* ---- second kernel: dq ---- */

/* What the workspace keeps of four queries; of queries that are not there, nothing that is used. */
typedef struct kept {
    float m[HELD], r[HELD], d[HELD];
} kept;

static __device__ __forceinline__ kept load_kept(const backward_params *p, int64_t head, const place *at, int first) {
    kept k;
#pragma unroll
    for (int i = 0; i < HELD; i++) {
        const int64_t row = at->row + (first + i < at->n ? first + i : 0);
        k.m[i] = *kept_at(p, LS_ATTENTION_KEPT_M, head, row);
        k.r[i] = *kept_at(p, LS_ATTENTION_KEPT_R, head, row);
        k.d[i] = *kept_at(p, LS_ATTENTION_KEPT_D, head, row);
    }
    return k;
}

static __device__ __forceinline__ float probability(float chain, float scale, const kept *k, int query) {
    return ls_mul(ls_exp(ls_sub(ls_mul(scale, chain), k->m[query])), k->r[query]);
}

struct dq_memory {
    operands in;
    matrix ds; /* [key][query] */
};

template <int TYPE, int TILES>
static __device__ __forceinline__ void query_tile(dq_memory *shared, const backward_params *p, const ls_span *span,
                                                  int64_t tile, int64_t head, int64_t dim, int row, int lane) {
    const int64_t dims = p->a.head_dim;
    const place queries = place_of(span, tile, head * dims);
    const kept of = load_kept(p, head, &queries, row);
    fragment dq[TILES];
#pragma unroll
    for (int i = 0; i < TILES; i++) clear(dq[i]);
#pragma unroll 1
    for (int64_t other = 0; other <= tile; other++) {
        const place keys = place_of(span, other, head / p->group * dims);
        fragment score, dp;
        reach takes;
        chains<TYPE, TYPE>(score, &shared->in, &p->q, &queries, &p->k, &keys, dims, row, lane);
        chains<LS_F32, TYPE>(dp, &shared->in, &p->dout, &queries, &p->v, &keys, dims, row, lane);
#pragma unroll
        for (int r = 0; r < HELD; r++) {
            takes.low[r] = 0;
            takes.high[r] = other == tile ? row + r + 1 : TILE;
#pragma unroll
            for (int c = 0; c < HELD; c++)
                dp[r][c] = ls_mul(probability(score[r][c], p->a.scale, &of, r), ls_sub(dp[r][c], of.d[r]));
        }
        put(shared->ds, dp, row, lane);
#pragma unroll
        for (int i = 0; i < TILES; i++) {
            __syncthreads();
            load_rows<TYPE>(shared->in.rows[0], &p->k, &keys, dim + i * TILE, dims);
            __syncthreads();
            sums(dq[i], shared->ds, shared->in.rows[0], &takes, row, lane);
        }
    }
#pragma unroll
    for (int i = 0; i < TILES; i++)
#pragma unroll
        for (int r = 0; r < HELD; r++)
#pragma unroll
            for (int c = 0; c < HELD; c++)
                if (row + r < queries.n && dim + i * TILE + lane + c < dims)
                    p->a.dq[(queries.row + row + r) * p->a.dq_stride + queries.column + dim + i * TILE + lane + c] =
                        ls_mul(p->a.scale, dq[i][r][c]);
}

template <int TYPE, int TILES>
static __global__ void __launch_bounds__(THREADS, 2) dq_kernel(const __grid_constant__ backward_params p) {
    ls_cuda_begin();
    extern __shared__ uint4 dynamic[];
    const int row = threadIdx.x / (TILE / HELD) * HELD, lane = threadIdx.x % (TILE / HELD) * HELD;
    const int64_t item = blockIdx.x / p.tiles, share = item % p.shares, head = item / p.shares % p.a.n_heads;
    const ls_span *span = &p.a.spans[item / p.shares / p.a.n_heads];
    if (p.fault->code != LS_FAULT_NONE || span->slot < 0) return;
    for (int64_t tile = blockIdx.x % p.tiles; tile * TILE < span->n_rows; tile += p.tiles)
        query_tile<TYPE, TILES>((dq_memory *)dynamic, &p, span, tile, head, share * TILES * TILE, row, lane);
}

/* ---- third kernel: dk and dv ---- */

struct dkv_memory {
    operands in;
    matrix p, ds; /* [query][key] */
};

static __device__ __forceinline__ float *head_share(const backward_params *p, int what, int64_t head, int64_t row) {
    return p->heads + ((what * p->a.n_heads + head) * p->a.rows + row) * p->a.head_dim;
}

template <int TILES>
static __device__ __forceinline__ void put_share(const fragment (&f)[TILES], const backward_params *p, int what,
                                                 int64_t head, const place *keys, int64_t dim, int row, int lane) {
#pragma unroll
    for (int i = 0; i < TILES; i++)
#pragma unroll
        for (int r = 0; r < HELD; r++)
#pragma unroll
            for (int c = 0; c < HELD; c++) {
                const int64_t d = dim + i * TILE + lane + c;
                if (row + r < keys->n && d < p->a.head_dim)
                    head_share(p, what, head, keys->row + row + r)[d] = f[i][r][c];
            }
}

template <int TYPE, int TILES>
static __device__ __forceinline__ void key_tile(dkv_memory *shared, const backward_params *p, const ls_span *span,
                                                int64_t tile, int64_t head, int64_t dim, int row, int lane) {
    const int64_t dims = p->a.head_dim, tiles = (span->n_rows - 1) / TILE + 1;
    const place keys = place_of(span, tile, head / p->group * dims);
    fragment dk[TILES], dv[TILES];
#pragma unroll
    for (int i = 0; i < TILES; i++) {
        clear(dk[i]);
        clear(dv[i]);
    }
#pragma unroll 1
    for (int64_t other = tile; other < tiles; other++) {
        const place queries = place_of(span, other, head * dims);
        const kept of = load_kept(p, head, &queries, lane);
        fragment probabilities, ds;
        reach takes;
        chains<TYPE, TYPE>(probabilities, &shared->in, &p->k, &keys, &p->q, &queries, dims, row, lane);
        chains<TYPE, LS_F32>(ds, &shared->in, &p->v, &keys, &p->dout, &queries, dims, row, lane);
#pragma unroll
        for (int r = 0; r < HELD; r++) {
            takes.low[r] = other == tile ? row + r : 0;
            takes.high[r] = queries.n;
#pragma unroll
            for (int c = 0; c < HELD; c++) {
                probabilities[r][c] = probability(probabilities[r][c], p->a.scale, &of, c);
                ds[r][c] = ls_mul(probabilities[r][c], ls_sub(ds[r][c], of.d[c]));
            }
        }
        put(shared->p, probabilities, row, lane);
        put(shared->ds, ds, row, lane);
#pragma unroll
        for (int i = 0; i < TILES; i++) {
            __syncthreads();
            load_rows<LS_F32>(shared->in.rows[0], &p->dout, &queries, dim + i * TILE, dims);
            load_rows<TYPE>(shared->in.rows[1], &p->q, &queries, dim + i * TILE, dims);
            __syncthreads();
            sums(dv[i], shared->p, shared->in.rows[0], &takes, row, lane);
            sums(dk[i], shared->ds, shared->in.rows[1], &takes, row, lane);
        }
    }
    put_share<TILES>(dk, p, 0, head, &keys, dim, row, lane);
    put_share<TILES>(dv, p, 1, head, &keys, dim, row, lane);
}

template <int TYPE, int TILES>
static __global__ void __launch_bounds__(THREADS, 2) dkv_kernel(const __grid_constant__ backward_params p) {
    ls_cuda_begin();
    extern __shared__ uint4 dynamic[];
    const int row = threadIdx.x / (TILE / HELD) * HELD, lane = threadIdx.x % (TILE / HELD) * HELD;
    const int64_t item = blockIdx.x / p.tiles, share = item % p.shares, head = item / p.shares % p.a.n_heads;
    const ls_span *span = &p.a.spans[item / p.shares / p.a.n_heads];
    if (p.fault->code != LS_FAULT_NONE || span->slot < 0) return;
    for (int64_t tile = blockIdx.x % p.tiles; tile * TILE < span->n_rows; tile += p.tiles)
        key_tile<TYPE, TILES>((dkv_memory *)dynamic, &p, span, tile, head, share * TILES * TILE, row, lane);
}

/* ---- fourth kernel: the heads of a KV head ---- */

/* A block a row: heads in order, one chain an element; dk is scaled behind it. */
static __global__ void __launch_bounds__(THREADS) heads_kernel(const __grid_constant__ backward_params p) {
    ls_cuda_begin();
    const int64_t dims = p.a.n_kv_heads * p.a.head_dim, item = blockIdx.x / p.tiles;
    const ls_span *span = &p.a.spans[item];
    if (p.fault->code != LS_FAULT_NONE || span->slot < 0) return;
    for (int64_t t = blockIdx.x % p.tiles; t < span->n_rows; t += p.tiles)
        for (int64_t i = threadIdx.x; i < 2 * dims; i += THREADS) {
            const int64_t row = span->row + t, column = i % dims, first = column / p.a.head_dim * p.group;
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
    p->tiles = tiles < enough ? tiles : enough;
    const ls_launch contract = {
        of->name, {ls_launch_blocks(items, p->tiles, 1), 1, 1}, THREADS, of->shared_bytes, index, INDICES};
    return ls_cuda_launch(exec, &contract, of->kernel, p, err);
}

template <int TYPE, int TILES>
static ls_status launch_all(const ls_exec *exec, backward_params *p, const ls_index *index, ls_error *err) {
    const int64_t shares = (p->a.head_dim - 1) / (TILES * TILE) + 1;
    const backward_launch softmax = {"attention_backward softmax", (const void *)softmax_kernel<TYPE, TILES>,
                                     p->a.n_heads, 1, (int64_t)sizeof(softmax_memory<TILES>)};
    const backward_launch dq = {"attention_backward dq", (const void *)dq_kernel<TYPE, TILES>, p->a.n_heads, shares,
                                (int64_t)sizeof(dq_memory)};
    const backward_launch dkv = {"attention_backward dkv", (const void *)dkv_kernel<TYPE, TILES>, p->a.n_heads, shares,
                                 (int64_t)sizeof(dkv_memory)};
    const backward_launch heads = {"attention_backward heads", (const void *)heads_kernel, 1, 1, 0};
    const int64_t rows = ls_spans_most(p->a.span_rows_max, p->a.rows), tiles = ls_attention_tiles(rows);
    LS_CUDA_TRY(launch(exec, &softmax, tiles, p, index, err));
    LS_CUDA_TRY(launch(exec, &dq, tiles, p, index, err));
    LS_CUDA_TRY(launch(exec, &dkv, tiles, p, index, err));
    return launch(exec, &heads, rows, p, index, err);
}

static source source_of(const void *rows, int64_t stride, int64_t head_dim, int64_t elem) {
    const bool wide = (uintptr_t)rows % 16 == 0 && stride * elem % 16 == 0 && head_dim * elem % 16 == 0;
    const source s = {rows, stride, wide};
    return s;
}

ls_status ls_cuda_attention_backward(const ls_exec *exec, const ls_attention_backward_args *a, ls_error *err) {
    const int64_t elem = ls_dtype_bytes(a->dtype);
    const bool none = a->rows == 0;
    const ls_cuda_operand operands[] = {{"q", a->q, elem, none}, {"k", a->k, elem, none},
                                        {"v", a->v, elem, none}, {"dout", a->dout, 4, none},
                                        {"dq", a->dq, 4, none},  {"dk", a->dk, 4, none},
                                        {"dv", a->dv, 4, none},  {"spans", a->spans, 8, a->n_spans == 0}};
    ls_fault *fault;
    LS_CUDA_TRY(ls_cuda_check("attention_backward", exec, operands, (int64_t)(sizeof operands / sizeof operands[0]),
                              ls_op_attention_backward_workspace(a), err));
    if (a->n_spans == 0) return LS_OK;
    const ls_index index[INDICES] = {
        {LS_WIDTH_I64, {{{"row", a->rows}, {"q stride", a->q_stride}, {"element", elem}}}},
        {LS_WIDTH_I64, {{{"row", a->rows}, {"kv stride", a->kv_stride}, {"element", elem}}}},
        {LS_WIDTH_I64, {{{"row", a->rows}, {"dout stride", a->dout_stride}, {"element", 4}}}},
        {LS_WIDTH_I64, {{{"row", a->rows}, {"dq stride", a->dq_stride}, {"element", 4}}}},
        {LS_WIDTH_I64, {{{"row", a->rows}, {"dkv stride", a->dkv_stride}, {"element", 4}}}},
        {LS_WIDTH_I64, {{{"kept", LS_ATTENTION_KEPT}, {"head", a->n_heads}, {"row", a->rows}, {"element", 4}}}},
        {LS_WIDTH_I64,
         {{{"dk and dv of heads", 2 * a->n_heads}, {"row", a->rows}, {"dim", a->head_dim}, {"element", 4}}}}};
    backward_params p = {*a,
                         source_of(a->q, a->q_stride, a->head_dim, elem),
                         source_of(a->k, a->kv_stride, a->head_dim, elem),
                         source_of(a->v, a->kv_stride, a->head_dim, elem),
                         source_of(a->dout, a->dout_stride, a->head_dim, 4),
                         a->n_heads / a->n_kv_heads,
                         0,
                         0,
                         (float *)((uint8_t *)exec->workspace + LS_WORKSPACE_HEAD),
                         NULL,
                         NULL};
    p.heads = p.kept + LS_ATTENTION_KEPT * a->n_heads * a->rows;
    LS_CUDA_TRY(ls_cuda_fault_begin("attention_backward", exec, &fault, err));
    ls_span_check check = {a->spans,  a->n_spans, a->rows, ls_spans_most(a->span_rows_max, a->rows),
                           INT64_MAX, true,       fault};
    p.fault = fault;
    LS_CUDA_TRY(ls_cuda_check_spans("attention_backward", exec, &check, err));
    if (none) return LS_OK;
    if (a->dtype == LS_F32)
        return a->head_dim <= TILE ? launch_all<LS_F32, 1>(exec, &p, index, err)
                                   : launch_all<LS_F32, 2>(exec, &p, index, err);
    return a->head_dim <= TILE ? launch_all<LS_BF16, 1>(exec, &p, index, err)
                               : launch_all<LS_BF16, 2>(exec, &p, index, err);
}
