/* Gradient of delta on the GPU: normalised rows, a walk forwards, a walk backwards, the pieces' rows of queries and
 * keys, their scalars, and the gradient of the norms. The walks and pieces here take any shape; delta_sm90a_cuda.cu and
 * delta_backward_sm90a_cuda.cu have those of heads that models have. */
#include "dev/device.h"
#include "op/cuda/cuda_ops.h"
#include "op/cuda/delta_cuda.h"

#define THREADS 256
#define WARPS (THREADS / 32)
#define PIECE LS_DELTA_PIECE

/* ---- normalised rows: a warp a row of a key head ---- */

/* Whether four neighbouring elements of every row are one load. */
static __device__ __forceinline__ bool fours_of(const delta_params *p) {
    return p->vectors && p->a.key_dim % 4 == 0 && p->a.value_dim % 4 == 0;
}

/* Normalises a row; l comes back. */
static __device__ __forceinline__ float normalize_run(float x[8]) {
    const float l = ls_delta_norm_of(ls_runs_sum<32>(x, x, 8));
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] = ls_mul(x[i], l);
    return l;
}

template <int IN>
static __global__ void __launch_bounds__(THREADS) rows_kernel(const __grid_constant__ delta_params p) {
    ls_cuda_begin();
    const int64_t i = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32, n = p.a.key_dim;
    const int64_t row = i / p.a.n_key_heads, key = i % p.a.n_key_heads, first = threadIdx.x % 32 * 8;
    const bool fours = fours_of(&p);
    float q[8], k[8];
    if (p.fault->code != LS_FAULT_NONE || row >= p.a.rows) return;
    ls_run_load<IN>(p.a.q, row * p.a.q_stride + key * n + first, n - first, fours, q);
    ls_run_load<IN>(p.a.k, row * p.a.k_stride + key * n + first, n - first, fours, k);
    normalize_run(q);
    normalize_run(k);
    ls_run_store<LS_F32>(ls_delta_row(&p, p.plan.queries, row, key), first, n - first, fours, q);
    ls_run_store<LS_F32>(ls_delta_row(&p, p.plan.keys, row, key), first, n - first, fours, k);
    const float own = ls_runs_sum<32>(q, k, 8);
    if (threadIdx.x % 32 == 0) p.work[p.plan.own + i] = own;
}

/* dx' becomes dx, of the rows of a span: a warp a row of a key head of q or of k. */
template <int IN>
static __global__ void __launch_bounds__(THREADS) norms_kernel(const __grid_constant__ delta_params p) {
    ls_cuda_begin();
    const ls_span *span = &p.a.spans[blockIdx.x % p.a.n_spans];
    const int64_t i = blockIdx.x / p.a.n_spans * WARPS + threadIdx.x / 32, n = p.a.key_dim, side = i % 2;
    const int64_t row = span->row + i / 2 / p.a.n_key_heads, key = i / 2 % p.a.n_key_heads;
    const int64_t first = threadIdx.x % 32 * 8;
    const bool fours = fours_of(&p);
    float x[8], dx[8];
    if (p.fault->code != LS_FAULT_NONE || span->slot < 0 || row >= span->row + span->n_rows) return;
    float *to = side == 0 ? p.a.dq + row * p.a.dq_stride + key * n : p.a.dk + row * p.a.dk_stride + key * n;
    ls_run_load<IN>(side == 0 ? p.a.q : p.a.k, row * (side == 0 ? p.a.q_stride : p.a.k_stride) + key * n + first,
                    n - first, fours, x);
    ls_run_load<LS_F32>(to, first, n - first, fours, dx);
    const float l = normalize_run(x), t = ls_runs_sum<32>(dx, x, 8);
#pragma unroll
    for (int e = 0; e < 8; e++) dx[e] = ls_mul(l, ls_fma(-x[e], t, dx[e]));
    ls_run_store<LS_F32>(to, first, n - first, fours, dx);
}

/* ---- walks of any shape: a block is one head of one span, its state in shared memory, a thread a column ---- */

static __device__ __forceinline__ void store_state(float *to, const float *s, int64_t n) {
    __syncthreads();
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) to[i] = s[i];
    __syncthreads();
}

/* The sixteen-chain fold over i of g[i * dim] * (factor * s[i * dim]). */
static __device__ __forceinline__ float border_column(const float *g, const float *s, float factor, int64_t keys,
                                                      int64_t dim) {
    float chain[LS_DELTA_FOLD];
#pragma unroll
    for (int c = 0; c < LS_DELTA_FOLD; c++) chain[c] = 0.0f;
    for (int64_t base = 0; base < keys; base += LS_DELTA_FOLD)
#pragma unroll
        for (int c = 0; c < LS_DELTA_FOLD; c++)
            if (base + c < keys) chain[c] = ls_fma(g[(base + c) * dim], ls_mul(factor, s[(base + c) * dim]), chain[c]);
    return ls_delta_join(chain);
}

/* A head's state of a span; +0 where there are none. */
static __device__ void load_state(float *s, const float *states, const delta_params *p, int64_t span_i, int64_t head) {
    const int64_t each = p->a.key_dim * p->a.value_dim;
    for (int64_t i = threadIdx.x; i < each; i += blockDim.x)
        s[i] = states == NULL ? 0.0f : states[ls_delta_state_at(p, span_i, head) + i];
}

template <int IN>
static __device__ void forwards(const delta_params *p, const ls_span *span, int64_t span_i, int64_t head, float *s,
                                float *k) {
    const int64_t dim = p->a.value_dim, keys = p->a.key_dim, each = dim * keys, j = threadIdx.x;
    const int64_t entry = ls_delta_entry(span, span_i);
    float scale = ls_delta_first_scale(p, span_i, head);
    load_state(s, p->a.initial, p, span_i, head);
    for (int64_t t = 0; t < span->n_rows; t++) {
        const int64_t row = span->row + t;
        const ls_delta_step step = ls_delta_step_at<IN>(p, row, head, scale);
        scale = step.scale;
        if (t % PIECE == 0) store_state(ls_delta_matrix(p, p->plan.states, entry + t / PIECE, head), s, each);
        __syncthreads();
        for (int64_t i = threadIdx.x; i < keys; i += blockDim.x)
            k[i] = ls_delta_row(p, p->plan.keys, row, head / p->group)[i];
        __syncthreads();
        if (threadIdx.x == 0) {
            *ls_delta_number(p, p->plan.scale, row, head) = step.scale;
            *ls_delta_number(p, p->plan.factor, row, head) = step.rescaled ? step.product : 1.0f;
        }
        if (j >= dim) continue;
        for (int64_t i = 0; i < keys && step.rescaled; i++) s[i * dim + j] = ls_mul(s[i * dim + j], step.product);
        const float v = ls_load_one<IN>(p->a.v, row * p->a.v_stride + head * dim + j);
        const float d = ls_fma(-step.beta, ls_delta_fold_rows(k, s + j, dim, keys), ls_mul(step.w, v));
        ls_delta_vector(p, p->plan.deltas, row, head)[j] = d;
        for (int64_t i = 0; i < keys; i++) s[i * dim + j] = ls_fma(k[i], d, s[i * dim + j]);
    }
    if (p->a.dfinal == NULL) return;
    __syncthreads();
    if (j < dim)
        ls_delta_last(p, span_i, head)[j] =
            border_column(p->a.dfinal + ls_delta_state_at(p, span_i, head) + j, s + j, 1.0f, keys, dim);
}

template <int IN>
static __device__ void backwards(const delta_params *p, const ls_span *span, int64_t span_i, int64_t head, float *g,
                                 float *k, float *q) {
    const int64_t dim = p->a.value_dim, keys = p->a.key_dim, each = dim * keys, j = threadIdx.x;
    const int64_t entry = ls_delta_entry(span, span_i);
    float scale = 1.0f, decay = 1.0f;
    __syncthreads();
    load_state(g, p->a.dfinal, p, span_i, head);
    for (int64_t t = span->n_rows - 1; t >= 0; t--) {
        const int64_t row = span->row + t;
        const ls_delta_back back = ls_delta_back_of(scale, decay);
        const ls_delta_step step = ls_delta_step_at<IN>(p, row, head, 1.0f);
        scale = back.scale;
        decay = step.decay;
        __syncthreads();
        for (int64_t i = threadIdx.x; i < keys; i += blockDim.x) {
            k[i] = ls_delta_row(p, p->plan.keys, row, head / p->group)[i];
            q[i] = ls_delta_row(p, p->plan.queries, row, head / p->group)[i];
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            *ls_delta_number(p, p->plan.g_scale, row, head) = back.scale;
            *ls_delta_number(p, p->plan.g_factor, row, head) = back.factor;
        }
        if (j < dim) {
            const float own = p->work[p->plan.own + row * p->a.n_key_heads + head / p->group];
            const float rest = ls_mul(ls_div(1.0f, scale), ls_delta_query_scale(keys));
            const float z = ls_mul(rest, p->a.dout[row * p->a.dout_stride + head * dim + j]);
            for (int64_t i = 0; i < keys && back.factor != 1.0f; i++)
                g[i * dim + j] = ls_mul(g[i * dim + j], back.factor);
            const float inner = ls_delta_fold_rows(k, g + j, dim, keys), m = ls_mul(step.beta, ls_fma(own, z, inner));
            ls_delta_vector(p, p->plan.inner, row, head)[j] = inner;
            p->a.dv[row * p->a.dv_stride + head * dim + j] = ls_mul(scale, m);
            for (int64_t i = 0; i < keys; i++) g[i * dim + j] = ls_fma(k[i], -m, ls_fma(q[i], z, g[i * dim + j]));
        }
        if (t % PIECE != 0) continue;
        const int64_t piece = entry + t / PIECE;
        if (j < dim)
            ls_delta_border(p, piece, head)[j] =
                border_column(g + j, ls_delta_matrix(p, p->plan.states, piece, head) + j,
                              *ls_delta_number(p, p->plan.factor, row, head), keys, dim);
        store_state(ls_delta_matrix(p, p->plan.grads, piece, head), g, each);
    }
}

template <int IN>
static __global__ void __launch_bounds__(LS_DELTA_DIM_MAX) walks_kernel(const __grid_constant__ delta_params p) {
    ls_cuda_begin();
    extern __shared__ __align__(16) float s[]; /* [keys][dim], then k and q */
    const int64_t span_i = blockIdx.x / p.a.n_heads, head = blockIdx.x % p.a.n_heads,
                  each = p.a.key_dim * p.a.value_dim;
    const ls_span *span = &p.a.spans[span_i];
    if (p.fault->code != LS_FAULT_NONE || span->slot < 0) return;
    forwards<IN>(&p, span, span_i, head, s, s + each);
    backwards<IN>(&p, span, span_i, head, s, s + each, s + each + p.a.key_dim);
}

/* ---- pieces of any shape: a block is a piece's key head, a thread a row of the key ---- */

typedef struct piece {
    const ls_span *span;
    int64_t span_i, entry, begin, n; /* begin: its first row */
    bool last;
} piece;

/* Piece j of span i; n is at most 0 where there is none. */
static __device__ __forceinline__ piece piece_of(const delta_params *p, int64_t i, int64_t j) {
    piece at;
    at.span = &p->a.spans[i];
    at.span_i = i;
    at.entry = ls_delta_entry(at.span, i) + j;
    at.begin = at.span->row + j * PIECE;
    const int64_t left = at.span->n_rows - j * PIECE;
    at.n = left < PIECE ? left : PIECE;
    at.last = left <= PIECE;
    return at;
}

/* G1 of a head; NULL where nothing comes after. */
static __device__ __forceinline__ const float *after_of(const delta_params *p, const piece *at, int64_t head) {
    if (!at->last) return ls_delta_matrix(p, p->plan.grads, at->entry + 1, head);
    return p->a.dfinal == NULL ? NULL : p->a.dfinal + ls_delta_state_at(p, at->span_i, head);
}

/* What token t has to do with the token s = threadIdx.x of its piece. */
typedef struct link {
    float query, key, into; /* of k_s in Q, of k_s in K, of q_s in K */
} link;

/* The chain over j of x[j] * y[j]. */
static __device__ __forceinline__ float chain_of(const float *x, const float *y, int64_t n) {
    float sum = 0.0f;
    for (int64_t j = 0; j < n; j++) sum = ls_fma(x[j], y[j], sum);
    return sum;
}

template <int IN>
static __device__ __forceinline__ float beta_of(const delta_params *p, int64_t row, int64_t head) {
    return ls_sigmoid(ls_load_one<IN>(p->a.b, row * p->a.b_stride + head));
}

static __device__ __forceinline__ float rest_of(const delta_params *p, int64_t row, int64_t head) {
    return ls_mul(ls_div(1.0f, *ls_delta_number(p, p->plan.g_scale, row, head)), ls_delta_query_scale(p->a.key_dim));
}

/* p of column j of a row. */
template <int IN>
static __device__ __forceinline__ float p_of(const delta_params *p, int64_t row, int64_t head, int64_t j) {
    const float dy = p->a.dout[row * p->a.dout_stride + head * p->a.value_dim + j];
    const float own = p->work[p->plan.own + row * p->a.n_key_heads + head / p->group];
    const float c = ls_fma(own, ls_mul(rest_of(p, row, head), dy), ls_delta_vector(p, p->plan.inner, row, head)[j]);
    return ls_mul(beta_of<IN>(p, row, head), c);
}

template <int IN>
static __device__ __forceinline__ float p_chain(const delta_params *p, int64_t row, int64_t head, const float *d) {
    float sum = 0.0f;
    for (int64_t j = 0; j < p->a.value_dim; j++) sum = ls_fma(p_of<IN>(p, row, head, j), d[j], sum);
    return sum;
}

/* The ascending product of f of tokens from `from` to t of the piece; the descending one of g of `from` - 1 to t. */
static __device__ float forward_factor(const delta_params *p, int64_t begin, int64_t head, int64_t from, int64_t t) {
    float product = 1.0f;
    for (int64_t u = from; u <= t; u++) product = ls_mul(product, *ls_delta_number(p, p->plan.factor, begin + u, head));
    return product;
}
static __device__ float backward_factor(const delta_params *p, int64_t begin, int64_t head, int64_t from, int64_t t) {
    float product = 1.0f;
    for (int64_t u = from - 1; u >= t; u--)
        product = ls_mul(product, *ls_delta_number(p, p->plan.g_factor, begin + u, head));
    return product;
}

template <int IN>
static __device__ link link_of(const delta_params *p, const piece *at, int64_t head, int64_t t, int64_t s) {
    const int64_t dim = p->a.value_dim, row = at->begin + t, other = at->begin + s;
    const float *d = ls_delta_vector(p, p->plan.deltas, row, head);
    const float *d_s = ls_delta_vector(p, p->plan.deltas, other, head);
    link l = {0.0f, 0.0f, 0.0f};
    if (s <= t) {
        const float e = forward_factor(p, at->begin, head, s + 1, t);
        l.query = ls_mul(e, chain_of(p->a.dout + row * p->a.dout_stride + head * dim, d_s, dim));
        l.key = -ls_mul(e, p_chain<IN>(p, row, head, d_s));
    }
    if (s >= t) {
        const float g = backward_factor(p, at->begin, head, s, t);
        l.into = ls_mul(rest_of(p, other, head), chain_of(p->a.dout + other * p->a.dout_stride + head * dim, d, dim));
        if (s > t) {
            l.into = ls_mul(g, l.into);
            l.key = -ls_mul(g, p_chain<IN>(p, other, head, d));
        }
    }
    return l;
}

/* The quad fold of x[i] * y[i], x[i] where y is NULL, by one thread. */
static __device__ float quad_fold(const float *x, const float *y, int64_t n) {
    float chain[LS_DELTA_FOLD];
#pragma unroll
    for (int c = 0; c < LS_DELTA_FOLD; c++) chain[c] = 0.0f;
    for (int64_t base = 0; base < n; base += 4 * LS_DELTA_FOLD)
#pragma unroll
        for (int c = 0; c < LS_DELTA_FOLD; c++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int64_t i = base + 4 * c + e;
                if (i < n) chain[c] = y == NULL ? ls_add(chain[c], x[i]) : ls_fma(x[i], y[i], chain[c]);
            }
    return ls_delta_join(chain);
}

template <int IN>
static __global__ void __launch_bounds__(LS_DELTA_DIM_MAX) pieces_kernel(const __grid_constant__ delta_params p) {
    ls_cuda_begin();
    __shared__ link links[PIECE];
    __shared__ float of_m[LS_DELTA_DIM_MAX], of_r[LS_DELTA_DIM_MAX];
    const int64_t key = blockIdx.x % p.a.n_key_heads, span_i = blockIdx.x / p.a.n_key_heads % p.a.n_spans;
    const piece at = piece_of(&p, span_i, blockIdx.x / p.a.n_key_heads / p.a.n_spans);
    const int64_t dim = p.a.value_dim, keys = p.a.key_dim, i = threadIdx.x;
    if (p.fault->code != LS_FAULT_NONE || at.span->slot < 0 || at.n <= 0) return;
    for (int64_t head = key * p.group; head < (key + 1) * p.group; head++)
        for (int64_t t = 0; t < at.n; t++) {
            const int64_t row = at.begin + t;
            __syncthreads();
            if (i < at.n) links[i] = link_of<IN>(&p, &at, head, t, i);
            __syncthreads();
            const float all = forward_factor(&p, at.begin, head, 0, t);
            const float end = backward_factor(&p, at.begin, head, at.n, t);
            const float scale = *ls_delta_number(&p, p.plan.scale, row, head);
            const float top = ls_mul(scale, ls_delta_query_scale(keys));
            const float both = ls_mul(scale, *ls_delta_number(&p, p.plan.g_scale, row, head));
            if (i < keys) {
                const float *s0 = ls_delta_matrix(&p, p.plan.states, at.entry, head) + i * dim;
                const float *g1 = after_of(&p, &at, head);
                const float own = p.work[p.plan.own + row * p.a.n_key_heads + key], beta = beta_of<IN>(&p, row, head);
                const float *k_t = ls_delta_row(&p, p.plan.keys, row, key);
                float q = ls_mul(all, chain_of(p.a.dout + row * p.a.dout_stride + head * dim, s0, dim)), k = 0.0f;
                if (g1 != NULL)
                    k = ls_mul(end, chain_of(ls_delta_vector(&p, p.plan.deltas, row, head), g1 + i * dim, dim));
                k = ls_sub(k, ls_mul(all, p_chain<IN>(&p, row, head, s0)));
                for (int64_t s = 0; s < at.n; s++) {
                    const float k_s = ls_delta_row(&p, p.plan.keys, at.begin + s, key)[i];
                    if (s < t) {
                        q = ls_fma(links[s].query, k_s, q);
                        k = ls_fma(links[s].key, k_s, k);
                    } else {
                        k = ls_fma(links[s].into, ls_delta_row(&p, p.plan.queries, at.begin + s, key)[i], k);
                        if (s > t) k = ls_fma(links[s].key, k_s, k);
                    }
                }
                of_m[i] = q;
                of_r[i] = ls_fma(-ls_mul(own, beta), k_t[i], ls_delta_row(&p, p.plan.queries, row, key)[i]);
                q = ls_fma(links[t].query, k_t[i], q);
                float *dq = p.a.dq + row * p.a.dq_stride + key * keys + i;
                float *dk = p.a.dk + row * p.a.dk_stride + key * keys + i;
                const bool first = head == key * p.group;
                *dq = ls_fma(top, q, first ? 0.0f : *dq);
                *dk = ls_fma(both, k, first ? 0.0f : *dk);
            }
            __syncthreads();
            if (i == 0) *ls_delta_number(&p, p.plan.e, row, head) = ls_mul(top, quad_fold(of_r, of_m, keys));
        }
}

/* ---- scalars ---- */

/* dinitial: a block is a span's head, a thread a column. */
template <int IN>
static __global__ void __launch_bounds__(LS_DELTA_DIM_MAX) initial_kernel(const __grid_constant__ delta_params p) {
    ls_cuda_begin();
    const int64_t head = blockIdx.x % p.a.n_heads, span_i = blockIdx.x / p.a.n_heads, dim = p.a.value_dim;
    const piece at = piece_of(&p, span_i, 0);
    if (p.fault->code != LS_FAULT_NONE || at.span->slot < 0 || at.n <= 0 || threadIdx.x >= dim) return;
    const float *g = ls_delta_matrix(&p, p.plan.grads, at.entry, head) + threadIdx.x;
    const float whole = ls_mul(*ls_delta_number(&p, p.plan.g_scale, at.begin, head),
                               ls_delta_step_at<IN>(&p, at.begin, head, 1.0f).decay);
    float *to = p.a.dinitial + ls_delta_state_at(&p, span_i, head) + threadIdx.x;
    for (int64_t i = 0; i < p.a.key_dim; i++) to[i * dim] = ls_mul(whole, g[i * dim]);
}

/* W of the first token of a piece, and of the token after it, +0 without one: the lower and the upper 16 lanes of a
 * warp, of which all get theirs. Lane c of 16 has chain c. */
static __device__ __forceinline__ float w_of_borders(const delta_params *p, const piece *at, int64_t head) {
    const int64_t lane = threadIdx.x % LS_DELTA_FOLD, dim = p->a.value_dim, next = at->begin + at->n;
    const bool after = threadIdx.x % 32 >= LS_DELTA_FOLD;
    const float *t = NULL;
    float scale = 0.0f, sum = 0.0f;
    if (!after || !at->last) {
        const int64_t row = after ? next : at->begin;
        t = ls_delta_border(p, at->entry + after, head);
        scale = ls_mul(*ls_delta_number(p, p->plan.scale, row, head), *ls_delta_number(p, p->plan.g_scale, row, head));
    } else if (p->a.dfinal != NULL) {
        t = ls_delta_last(p, at->span_i, head);
        scale = *ls_delta_number(p, p->plan.scale, next - 1, head);
    }
    for (int64_t first = 4 * lane; t != NULL && first < dim; first += 4 * LS_DELTA_FOLD)
        for (int64_t j = first; j < first + 4 && j < dim; j++) sum = ls_add(sum, t[j]);
#pragma unroll
    for (int step = 1; step < LS_DELTA_FOLD; step *= 2) sum = ls_add(sum, __shfl_xor_sync(LS_ALL_LANES, sum, step));
    return ls_mul(scale, sum);
}

/* Of a token: what its W goes on with, and what parameters' gradients take. */
typedef struct token_scalars {
    float e, x, decay, soft, slope; /* slope: sigmoid of what softplus took */
} token_scalars;

/* A block is a piece's head; 16 lanes fold a token's columns, lane c having chain c. */
template <int IN>
static __global__ void __launch_bounds__(THREADS) scalars_kernel(const __grid_constant__ delta_params p) {
    ls_cuda_begin();
    __shared__ token_scalars of[PIECE];
    __shared__ float w_of[PIECE], border[2];
    const int64_t head = blockIdx.x % p.a.n_heads, span_i = blockIdx.x / p.a.n_heads % p.a.n_spans;
    const piece at = piece_of(&p, span_i, blockIdx.x / p.a.n_heads / p.a.n_spans);
    const int64_t dim = p.a.value_dim, lane = threadIdx.x % LS_DELTA_FOLD;
    if (p.fault->code != LS_FAULT_NONE || at.span->slot < 0 || at.n <= 0) return;
    if (threadIdx.x < 32) border[threadIdx.x / LS_DELTA_FOLD] = w_of_borders(&p, &at, head);
    for (int64_t base = 0; base < at.n; base += THREADS / LS_DELTA_FOLD) { /* all lanes of a warp take part in sums */
        const int64_t t = base + threadIdx.x / LS_DELTA_FOLD, row = at.begin + (t < at.n ? t : at.n - 1);
        const float *inner = ls_delta_vector(&p, p.plan.inner, row, head);
        const float *d = ls_delta_vector(&p, p.plan.deltas, row, head);
        const float *dy = p.a.dout + row * p.a.dout_stride + head * dim;
        const float own = p.work[p.plan.own + row * p.a.n_key_heads + head / p.group], rest = rest_of(&p, row, head);
        float with_v = 0.0f, with_d = 0.0f;
        for (int64_t first = 4 * lane; first < dim; first += 4 * LS_DELTA_FOLD)
            for (int64_t j = first; j < first + 4 && j < dim; j++) {
                with_v = ls_fma(inner[j], ls_load_one<IN>(p.a.v, row * p.a.v_stride + head * dim + j), with_v);
                with_d = ls_fma(ls_fma(own, ls_mul(rest, dy[j]), inner[j]), d[j], with_d);
            }
#pragma unroll
        for (int step = 1; step < LS_DELTA_FOLD; step *= 2) {
            with_v = ls_add(with_v, __shfl_xor_sync(LS_ALL_LANES, with_v, step));
            with_d = ls_add(with_d, __shfl_xor_sync(LS_ALL_LANES, with_d, step));
        }
        if (lane != 0 || t >= at.n) continue;
        const ls_delta_step step = ls_delta_step_at<IN>(&p, row, head, 1.0f);
        const float back = *ls_delta_number(&p, p.plan.g_scale, row, head);
        const float both = ls_mul(*ls_delta_number(&p, p.plan.scale, row, head), back);
        const float b = ls_load_one<IN>(p.a.b, row * p.a.b_stride + head);
        const float db = ls_mul(ls_mul(both, with_d), ls_sigmoid(-b));
        of[t] = {*ls_delta_number(&p, p.plan.e, row, head), ls_mul(ls_mul(back, step.beta), with_v), step.decay,
                 step.soft, ls_sigmoid(step.raw)};
        if (p.a.dab_dtype == LS_F32)
            ls_store_one<LS_F32>(p.a.db, row * p.a.db_stride + head, db);
        else
            ls_store_one<LS_BF16>(p.a.db, row * p.a.db_stride + head, db);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        float w = border[1], drate = 0.0f, ddt_bias = 0.0f;
        for (int64_t t = at.n - 1; t >= 0; t--) {
            if (t == 0)
                w = border[0];
            else
                w = of[t].decay < LS_DELTA_DECAY_MIN ? of[t].e : ls_add(w, ls_sub(of[t].e, of[t].x));
            w_of[t] = ls_mul(ls_mul(w, p.a.rate[head]), of[t].slope);
            drate = ls_fma(w, of[t].soft, drate);
            ddt_bias = ls_add(ddt_bias, w_of[t]);
        }
        p.work[p.plan.rate + at.entry * p.a.n_heads + head] = drate;
        p.work[p.plan.bias + at.entry * p.a.n_heads + head] = ddt_bias;
    }
    __syncthreads();
    if ((int64_t)threadIdx.x >= at.n) return;
    const int64_t to = (at.begin + threadIdx.x) * p.a.da_stride + head;
    if (p.a.dab_dtype == LS_F32)
        ls_store_one<LS_F32>(p.a.da, to, w_of[threadIdx.x]);
    else
        ls_store_one<LS_BF16>(p.a.da, to, w_of[threadIdx.x]);
}

/* Parameters: a thread a head, pieces in order. */
static __global__ void __launch_bounds__(THREADS) parameters_kernel(const __grid_constant__ delta_params p) {
    ls_cuda_begin();
    const int64_t head = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (p.fault->code != LS_FAULT_NONE || head >= p.a.n_heads) return;
    float drate = p.a.continued ? p.a.drate[head] : 0.0f, ddt_bias = p.a.continued ? p.a.ddt_bias[head] : 0.0f;
    for (int64_t i = 0; i < p.a.n_spans; i++) {
        const int64_t pieces = p.a.spans[i].slot < 0 ? 0 : ls_delta_pieces(&p.a.spans[i]);
        const float *share = p.work + ls_delta_entry(&p.a.spans[i], i) * p.a.n_heads + head;
#pragma unroll 4
        for (int64_t j = 0; j < pieces; j++) {
            drate = ls_add(drate, share[p.plan.rate + j * p.a.n_heads]);
            ddt_bias = ls_add(ddt_bias, share[p.plan.bias + j * p.a.n_heads]);
        }
    }
    p.a.drate[head] = drate;
    p.a.ddt_bias[head] = ddt_bias;
}

/* ---- launches ---- */

typedef struct launches {
    ls_launch rows, walks, pieces, initial, scalars, norms, parameters;
} launches;

static int64_t blocks_of(int64_t n, int64_t each) { return n / each + (n % each != 0); }

/* Threads for one a column or row of a key, whole warps. */
static int64_t threads_of(int64_t n) { return n <= 64 ? 64 : blocks_of(n, 32) * 32; }

static launches launches_of(const delta_params *p, int64_t most, const ls_index *index, int64_t n_index) {
    const ls_delta_backward_args *a = &p->a;
    const int64_t pieces = ls_launch_blocks(a->n_spans, blocks_of(most, PIECE), 1);
    const int64_t shared = (a->value_dim + 2) * a->key_dim * 4;
    const launches l = {
        .rows = {"delta_backward, rows",
                 {blocks_of(ls_launch_blocks(a->rows, a->n_key_heads, 1), WARPS), 1, 1},
                 THREADS,
                 0,
                 index,
                 n_index},
        .walks = {"delta_backward",
                  {ls_launch_blocks(a->n_spans, a->n_heads, 1), 1, 1},
                  threads_of(a->value_dim),
                  shared,
                  index,
                  n_index},
        .pieces = {"delta_backward, pieces",
                   {ls_launch_blocks(pieces, a->n_key_heads, 1), 1, 1},
                   threads_of(a->key_dim),
                   0,
                   index,
                   n_index},
        .initial = {"delta_backward, initial",
                    {ls_launch_blocks(a->n_spans, a->n_heads, 1), 1, 1},
                    threads_of(a->value_dim),
                    0,
                    index,
                    n_index},
        .scalars =
            {"delta_backward, scalars", {ls_launch_blocks(pieces, a->n_heads, 1), 1, 1}, THREADS, 0, index, n_index},
        .norms = {"delta_backward, norms",
                  {ls_launch_blocks(a->n_spans, blocks_of(ls_launch_blocks(most, a->n_key_heads, 2), WARPS), 1), 1, 1},
                  THREADS,
                  0,
                  index,
                  n_index},
        .parameters = {
            "delta_backward, parameters", {blocks_of(a->n_heads, THREADS), 1, 1}, THREADS, 0, index, n_index}};
    return l;
}

template <int IN>
static ls_status launch_all(const ls_exec *exec, delta_params *p, const launches *l, int64_t most, ls_error *err) {
    bool taken;
    LS_CUDA_TRY(ls_cuda_launch(exec, &l->rows, (const void *)rows_kernel<IN>, p, err));
    LS_CUDA_TRY(ls_delta_walk(exec, p, LS_DELTA_KEEP, &taken, err));
    if (taken)
        LS_CUDA_TRY(ls_delta_walk(exec, p, LS_DELTA_BACK, &taken, err));
    else
        LS_CUDA_TRY(ls_cuda_launch(exec, &l->walks, (const void *)walks_kernel<IN>, p, err));
    LS_CUDA_TRY(ls_delta_pieces_back(exec, p, most, &taken, err));
    if (!taken) LS_CUDA_TRY(ls_cuda_launch(exec, &l->pieces, (const void *)pieces_kernel<IN>, p, err));
    if (p->a.dinitial != NULL) LS_CUDA_TRY(ls_cuda_launch(exec, &l->initial, (const void *)initial_kernel<IN>, p, err));
    LS_CUDA_TRY(ls_cuda_launch(exec, &l->scalars, (const void *)scalars_kernel<IN>, p, err));
    return ls_cuda_launch(exec, &l->norms, (const void *)norms_kernel<IN>, p, err);
}

ls_status ls_cuda_delta_backward(const ls_exec *exec, const ls_delta_backward_args *a, ls_error *err) {
    const int64_t elem = ls_dtype_bytes(a->in_dtype), most = ls_spans_most(a->span_rows_max, a->rows);
    const int64_t ab = ls_dtype_bytes(a->dab_dtype);
    const ls_cuda_operand operands[] = {{"q", a->q, elem, false},
                                        {"k", a->k, elem, false},
                                        {"v", a->v, elem, false},
                                        {"a", a->a, elem, false},
                                        {"b", a->b, elem, false},
                                        {"rate", a->rate, 4, false},
                                        {"dt_bias", a->dt_bias, 4, false},
                                        {"initial", a->initial, 16, a->initial == NULL},
                                        {"dout", a->dout, 4, false},
                                        {"dq", a->dq, 4, false},
                                        {"dk", a->dk, 4, false},
                                        {"dv", a->dv, 4, false},
                                        {"da", a->da, ab, false},
                                        {"db", a->db, ab, false},
                                        {"drate", a->drate, 4, false},
                                        {"ddt_bias", a->ddt_bias, 4, false},
                                        {"dinitial", a->dinitial, 4, a->dinitial == NULL},
                                        {"initial_scale", a->initial_scale, 4, true},
                                        {"dfinal", a->dfinal, 16, true},
                                        {"spans", a->spans, 8, a->n_spans == 0}};
    const ls_index index[] = {{LS_WIDTH_I64, {{{"row", a->rows}, {"q stride", a->q_stride}, {"element", 4}}}},
                              {LS_WIDTH_I64, {{{"row", a->rows}, {"k stride", a->k_stride}, {"element", 4}}}},
                              {LS_WIDTH_I64, {{{"row", a->rows}, {"v stride", a->v_stride}, {"element", 4}}}},
                              {LS_WIDTH_I64, {{{"row", a->rows}, {"a stride", a->a_stride}, {"element", 4}}}},
                              {LS_WIDTH_I64, {{{"row", a->rows}, {"b stride", a->b_stride}, {"element", 4}}}},
                              {LS_WIDTH_I64, {{{"row", a->rows}, {"dout stride", a->dout_stride}, {"element", 4}}}},
                              {LS_WIDTH_I64, {{{"row", a->rows}, {"dq stride", a->dq_stride}, {"element", 4}}}},
                              {LS_WIDTH_I64, {{{"row", a->rows}, {"dk stride", a->dk_stride}, {"element", 4}}}},
                              {LS_WIDTH_I64, {{{"row", a->rows}, {"dv stride", a->dv_stride}, {"element", 4}}}},
                              {LS_WIDTH_I64, {{{"row", a->rows}, {"da stride", a->da_stride}, {"element", 4}}}},
                              {LS_WIDTH_I64, {{{"row", a->rows}, {"db stride", a->db_stride}, {"element", 4}}}}};
    delta_params p = {};
    ls_fault *fault;
    LS_CUDA_TRY(ls_cuda_check("delta_backward", exec, operands, (int64_t)(sizeof operands / sizeof operands[0]),
                              ls_op_delta_backward_workspace(a), err));
    p.a = *a;
    (void)ls_delta_backward_plan_make(&p.plan, a);
    p.work = (float *)((char *)exec->workspace + LS_WORKSPACE_HEAD);
    p.group = a->n_heads / a->n_key_heads;
    p.vectors = ls_eight_fits(a->q, a->q_stride, elem) && ls_eight_fits(a->k, a->k_stride, elem) &&
                ls_eight_fits(a->v, a->v_stride, elem) && ls_eight_fits(a->dout, a->dout_stride, 4) &&
                ls_eight_fits(a->dq, a->dq_stride, 4) && ls_eight_fits(a->dk, a->dk_stride, 4) &&
                ls_eight_fits(a->dv, a->dv_stride, 4);
    const launches l = launches_of(&p, most, index, (int64_t)(sizeof index / sizeof index[0]));
    const ls_launch *const all[] = {&l.rows, &l.walks, &l.pieces, &l.initial, &l.scalars, &l.norms};
    const bool any = a->n_spans > 0 && a->rows > 0;
    for (int i = 0; any && i < 6; i++) LS_CUDA_TRY(ls_launch_check(all[i], LS_CUDA_SHARED_MAX, err));
    LS_CUDA_TRY(ls_launch_check(&l.parameters, LS_CUDA_SHARED_MAX, err));
    LS_CUDA_TRY(ls_cuda_fault_begin("delta_backward", exec, &fault, err));
    ls_span_check check = ls_span_check_back(a, most, a->initial == NULL, fault);
    p.fault = fault;
    LS_CUDA_TRY(ls_cuda_check_spans("delta_backward", exec, &check, err));
    if (any)
        LS_CUDA_TRY(a->in_dtype == LS_BF16 ? launch_all<LS_BF16>(exec, &p, &l, most, err)
                                           : launch_all<LS_F32>(exec, &p, &l, most, err));
    return ls_cuda_launch(exec, &l.parameters, (const void *)parameters_kernel, &p, err);
}
