/* Pieces of delta's gradient on sm_90, of 128 x 128 states: dq', dk' and E. A block is a piece's key head, its value
 * heads one after another. A thread has four tokens and eight rows of the key, which are four neighbours and the four
 * 64 further on: a chain of the quad fold. Products with states come first, in slabs of columns, and with them Y and P;
 * then the links between tokens, from shared memory. */
#include "op/cuda/delta_cuda.h"
#include "op/cuda/ring_cuda.h"

#define THREADS 256
#define PIECE LS_DELTA_PIECE
#define KEYS LS_DELTA_KEYS
#define COLUMNS LS_DELTA_COLUMNS
#define SLAB 16 /* columns */
#define OWN_T 4 /* tokens of a thread */
#define OWN_I 8 /* rows of a thread */
#define LANES (KEYS / OWN_I)
#define PITCH_T (PIECE + 4)
#define PITCH_I (KEYS + 4)
static_assert(THREADS / LANES * OWN_T == PIECE && LANES == LS_DELTA_FOLD && KEYS == 2 * 4 * LANES, "a thread's share");

/* Columns of a slab: of tokens, and of states, whose rows are neighbours. */
typedef struct slab {
    float dy[SLAB][PITCH_T], d[SLAB][PITCH_T], p[SLAB][PITCH_T];
    float entry[SLAB][PITCH_I], after[SLAB][PITCH_I];
} slab;

typedef struct piece_memory {
    slab slabs[2];
    float q[PIECE][KEYS], k[PIECE][KEYS];
    /* [of token s][on token t]: of k_s in Q; of k_s in K; of q_s in K */
    float query[PIECE][PITCH_T], key[PIECE][PITCH_T], into[PIECE][PITCH_T];
    float beta[PIECE], own[PIECE], rest[PIECE], scale[PIECE], back[PIECE], factor[PIECE], g_factor[PIECE];
    uint32_t rescaled[2], g_rescaled[2]; /* tokens whose factor is not 1, a bit each */
} piece_memory;

/* What the block works on. */
typedef struct place {
    int64_t entry, begin, key; /* begin: the first row */
    int n;
    bool ends;           /* nothing comes after */
    const float *dfinal; /* G1 of the first head, where it is not another piece's; else NULL */
} place;

/* Tokens, a bit each: those of a shared mask; those of `bits` from `from` up to `to`, which is not among them. */
static __device__ __forceinline__ uint64_t bits_of(const uint32_t bits[2]) { return (uint64_t)bits[1] << 32 | bits[0]; }
static __device__ __forceinline__ uint64_t bits_between(uint64_t bits, int from, int to) {
    const uint64_t low = to < 64 ? ((uint64_t)1 << to) - 1 : ~(uint64_t)0;
    return from < 64 ? (bits & low) >> from << from : 0;
}

/* The factors of tokens from `from` to t, ascending; of `from` - 1 to t, descending. bits: the tokens that rescale,
 * since a factor of 1 changes nothing. */
static __device__ __forceinline__ float forward_factor(const piece_memory *m, uint64_t bits, int from, int t) {
    float product = 1.0f;
    for (uint64_t left = bits_between(bits, from, t + 1); left != 0; left &= left - 1)
        product = ls_mul(product, m->factor[__ffsll((long long)left) - 1]);
    return product;
}
static __device__ __forceinline__ float backward_factor(const piece_memory *m, uint64_t bits, int from, int t) {
    float product = 1.0f;
    uint64_t left = bits_between(bits, t, from);
    while (left != 0) {
        const int u = 63 - __clzll((long long)left);
        product = ls_mul(product, m->g_factor[u]);
        left ^= (uint64_t)1 << u;
    }
    return product;
}

static __device__ __forceinline__ float4 load4(const float *from) { return *(const float4 *)from; }

/* A thread's share of a slab as loaded: four columns of a token, eight of a row of each state. */
typedef struct raw_slab {
    float4 dy, d, inner, entry[2], after[2];
} raw_slab;

/* G1 of a head. */
template <bool STATES>
static __device__ __forceinline__ const float *after_of(const delta_params *p, const place *at, int64_t head) {
    if (STATES && at->dfinal != NULL) return at->dfinal + head * KEYS * COLUMNS;
    return ls_delta_matrix(p, p->plan.grads, at->entry + 1, head);
}

template <bool STATES>
static __device__ __forceinline__ void load_slab(raw_slab *raw, const delta_params *p, const place *at, int64_t head,
                                                 int first) {
    const int token = (int)threadIdx.x % PIECE, column = first + (int)threadIdx.x / PIECE * 4;
    const int64_t row = at->begin + (token < at->n ? token : at->n - 1);
    const int64_t from = ((int)threadIdx.x % KEYS) * COLUMNS + first + (int)threadIdx.x / KEYS * (SLAB / 2);
    raw->dy = load4(p->a.dout + row * p->a.dout_stride + head * COLUMNS + column);
    raw->d = load4(ls_delta_vector(p, p->plan.deltas, row, head) + column);
    raw->inner = load4(ls_delta_vector(p, p->plan.inner, row, head) + column);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        raw->entry[i] = load4(ls_delta_matrix(p, p->plan.states, at->entry, head) + from + 4 * i);
        if (!at->ends) raw->after[i] = load4(after_of<STATES>(p, at, head) + from + 4 * i);
    }
}

static __device__ __forceinline__ void put4(float *to, int pitch, float4 v) {
    to[0] = v.x, to[pitch] = v.y, to[2 * pitch] = v.z, to[3 * pitch] = v.w;
}

static __device__ __forceinline__ void put_slab(piece_memory *m, slab *to, const raw_slab *raw, const place *at) {
    const int token = (int)threadIdx.x % PIECE, column = (int)threadIdx.x / PIECE * 4;
    const int row = (int)threadIdx.x % KEYS, half = (int)threadIdx.x / KEYS * (SLAB / 2);
    const float beta = m->beta[token], own = m->own[token], rest = m->rest[token];
    const float4 dy = raw->dy, c = raw->inner;
    put4(&to->dy[column][token], PITCH_T, dy);
    put4(&to->d[column][token], PITCH_T, raw->d);
    put4(&to->p[column][token], PITCH_T,
         make_float4(
             ls_mul(beta, ls_fma(own, ls_mul(rest, dy.x), c.x)), ls_mul(beta, ls_fma(own, ls_mul(rest, dy.y), c.y)),
             ls_mul(beta, ls_fma(own, ls_mul(rest, dy.z), c.z)), ls_mul(beta, ls_fma(own, ls_mul(rest, dy.w), c.w))));
#pragma unroll
    for (int i = 0; i < 2; i++) {
        put4(&to->entry[half + 4 * i][row], PITCH_I, raw->entry[i]);
        if (!at->ends) put4(&to->after[half + 4 * i][row], PITCH_I, raw->after[i]);
    }
}

static __device__ __forceinline__ void spread(float to[4], float4 v) {
    to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
}

/* The thread's sums: of dy, of p with S0, of d with G1; Y and P of its tokens and the four tokens of its lane. */
typedef struct sums {
    float query[OWN_T][OWN_I], minus[OWN_T][OWN_I], key[OWN_T][OWN_I], y[OWN_T][4], p[OWN_T][4];
} sums;

static __device__ __forceinline__ void add_slab(sums *to, const slab *s, int token, int lane, bool ends) {
#pragma unroll
    for (int j = 0; j < SLAB; j++) {
        float dy[OWN_T], d[OWN_T], p[OWN_T], other[4], x[OWN_I];
        spread(dy, load4(&s->dy[j][token]));
        spread(d, load4(&s->d[j][token]));
        spread(p, load4(&s->p[j][token]));
        spread(other, load4(&s->d[j][4 * lane]));
        spread(x, load4(&s->entry[j][4 * lane]));
        spread(x + 4, load4(&s->entry[j][KEYS / 2 + 4 * lane]));
#pragma unroll
        for (int t = 0; t < OWN_T; t++) {
#pragma unroll
            for (int i = 0; i < OWN_I; i++) {
                to->query[t][i] = ls_fma(dy[t], x[i], to->query[t][i]);
                to->minus[t][i] = ls_fma(p[t], x[i], to->minus[t][i]);
            }
#pragma unroll
            for (int i = 0; i < 4; i++) {
                to->y[t][i] = ls_fma(dy[t], other[i], to->y[t][i]);
                to->p[t][i] = ls_fma(p[t], other[i], to->p[t][i]);
            }
        }
        if (ends) continue;
        spread(x, load4(&s->after[j][4 * lane]));
        spread(x + 4, load4(&s->after[j][KEYS / 2 + 4 * lane]));
#pragma unroll
        for (int t = 0; t < OWN_T; t++)
#pragma unroll
            for (int i = 0; i < OWN_I; i++) to->key[t][i] = ls_fma(d[t], x[i], to->key[t][i]);
    }
}

static __device__ __forceinline__ void clear(sums *s) {
#pragma unroll
    for (int t = 0; t < OWN_T; t++) {
#pragma unroll
        for (int i = 0; i < OWN_I; i++) s->query[t][i] = s->minus[t][i] = s->key[t][i] = 0.0f;
#pragma unroll
        for (int i = 0; i < 4; i++) s->y[t][i] = s->p[t][i] = 0.0f;
    }
}

/* Links both ways between the thread's tokens and the four of its lane, where those are not later. Fours of tokens are
 * one store; where both fours are the same tokens, that has what nobody reads as well. */
static __device__ __forceinline__ void put_links(piece_memory *m, const sums *s, int token, int lane) {
    const int other = 4 * lane;
    const uint64_t rescaled = bits_of(m->rescaled), g_rescaled = bits_of(m->g_rescaled);
    float query[4][OWN_T], up[4][OWN_T]; /* from the lane's tokens to the thread's */
    if (other > token) return;
#pragma unroll
    for (int r = 0; r < OWN_T; r++)
#pragma unroll
        for (int c = 0; c < 4; c++) {
            const float e = forward_factor(m, rescaled, other + c + 1, token + r);
            query[c][r] = ls_mul(e, s->y[r][c]);
            up[c][r] = -ls_mul(e, s->p[r][c]);
        }
#pragma unroll
    for (int r = 0; r < OWN_T; r++) {
        float into[4], down[4]; /* from the thread's token to the lane's */
        const float rest = m->rest[token + r];
#pragma unroll
        for (int c = 0; c < 4; c++) {
            const float g = backward_factor(m, g_rescaled, token + r, other + c);
            into[c] = ls_mul(g, ls_mul(rest, s->y[r][c]));
            down[c] = -ls_mul(g, s->p[r][c]);
            if (other == token && c < r) up[r][c] = down[c];
        }
        *(float4 *)&m->into[token + r][other] = make_float4(into[0], into[1], into[2], into[3]);
        if (other < token) *(float4 *)&m->key[token + r][other] = make_float4(down[0], down[1], down[2], down[3]);
    }
#pragma unroll
    for (int c = 0; c < 4; c++) {
        *(float4 *)&m->query[other + c][token] = make_float4(query[c][0], query[c][1], query[c][2], query[c][3]);
        *(float4 *)&m->key[other + c][token] = make_float4(up[c][0], up[c][1], up[c][2], up[c][3]);
    }
}

static __device__ __forceinline__ void read_row(float x[OWN_I], const float *row, int lane) {
    spread(x, load4(row + 4 * lane));
    spread(x + 4, load4(row + KEYS / 2 + 4 * lane));
}

static __device__ __forceinline__ void add_row(float to[OWN_I], float factor, const float x[OWN_I]) {
#pragma unroll
    for (int i = 0; i < OWN_I; i++) to[i] = ls_fma(factor, x[i], to[i]);
}

/* Q and K of the thread's tokens from all tokens of the piece, ascending; e: its part of the fold of E. */
static __device__ __forceinline__ void add_tokens(sums *to, float e[OWN_T], const piece_memory *m, int n, int token,
                                                  int lane) {
    const int begin = token / 8 * 8, end = begin + 8 < n ? begin + 8 : n; /* tokens of the warp */
    float k[OWN_I], q[OWN_I], query[OWN_T], key[OWN_T], into[OWN_T];
#pragma unroll 2
    for (int s = 0; s < begin && s < n; s++) {
        read_row(k, m->k[s], lane);
        spread(query, load4(&m->query[s][token]));
        spread(key, load4(&m->key[s][token]));
#pragma unroll
        for (int r = 0; r < OWN_T; r++) {
            add_row(to->query[r], query[r], k);
            add_row(to->key[r], key[r], k);
        }
    }
#pragma unroll 1
    for (int s = begin; s < end; s++) {
        read_row(k, m->k[s], lane);
        read_row(q, m->q[s], lane);
        spread(query, load4(&m->query[s][token]));
        spread(key, load4(&m->key[s][token]));
        spread(into, load4(&m->into[s][token]));
#pragma unroll
        for (int r = 0; r < OWN_T; r++) {
            const int t = token + r;
            if (s < t) {
                add_row(to->query[r], query[r], k);
                add_row(to->key[r], key[r], k);
            } else {
                if (s == t) {
                    const float minus = -ls_mul(m->own[t], m->beta[t]);
#pragma unroll
                    for (int i = 0; i < OWN_I; i++) e[r] = ls_fma(ls_fma(minus, k[i], q[i]), to->query[r][i], e[r]);
                    add_row(to->query[r], query[r], k);
                }
                add_row(to->key[r], into[r], q);
                if (s > t) add_row(to->key[r], key[r], k);
            }
        }
    }
#pragma unroll 2
    for (int s = end; s < n; s++) {
        read_row(k, m->k[s], lane);
        read_row(q, m->q[s], lane);
        spread(key, load4(&m->key[s][token]));
        spread(into, load4(&m->into[s][token]));
#pragma unroll
        for (int r = 0; r < OWN_T; r++) {
            add_row(to->key[r], into[r], q);
            add_row(to->key[r], key[r], k);
        }
    }
}

/* fma(factor, x, what is there), or nothing is there yet. */
static __device__ __forceinline__ void add_out(float *to, float factor, const float x[OWN_I], int lane, bool first) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float4 *at = (float4 *)(to + half * (KEYS / 2) + 4 * lane);
        const float4 old = first ? make_float4(0.0f, 0.0f, 0.0f, 0.0f) : *at;
        const float *v = x + 4 * half;
        *at = make_float4(ls_fma(factor, v[0], old.x), ls_fma(factor, v[1], old.y), ls_fma(factor, v[2], old.z),
                          ls_fma(factor, v[3], old.w));
    }
}

/* The piece's normalised rows, and x of its tokens. */
static __device__ __forceinline__ void load_rows(piece_memory *m, const delta_params *p, const place *at) {
    for (int i = (int)threadIdx.x; i < at->n * (KEYS / 4); i += THREADS) {
        const int t = i / (KEYS / 4), first = i % (KEYS / 4) * 4;
        *(float4 *)&m->q[t][first] = load4(ls_delta_row(p, p->plan.queries, at->begin + t, at->key) + first);
        *(float4 *)&m->k[t][first] = load4(ls_delta_row(p, p->plan.keys, at->begin + t, at->key) + first);
    }
    if ((int)threadIdx.x < PIECE && (int)threadIdx.x < at->n)
        m->own[threadIdx.x] = p->work[p->plan.own + (at->begin + threadIdx.x) * p->a.n_key_heads + at->key];
}

/* Of a head; all threads call it, behind a barrier. */
template <int STORED>
static __device__ __forceinline__ void load_numbers(piece_memory *m, const delta_params *p, const place *at,
                                                    int64_t head) {
    const int t = (int)threadIdx.x;
    bool rescaled = false, g_rescaled = false;
    if (t < at->n) {
        const int64_t row = at->begin + t;
        m->scale[t] = *ls_delta_number(p, p->plan.scale, row, head);
        m->back[t] = *ls_delta_number(p, p->plan.g_scale, row, head);
        m->factor[t] = *ls_delta_number(p, p->plan.factor, row, head);
        m->g_factor[t] = *ls_delta_number(p, p->plan.g_factor, row, head);
        m->rest[t] = ls_mul(ls_div(1.0f, m->back[t]), ls_delta_query_scale(KEYS));
        m->beta[t] = ls_sigmoid(ls_load_one<STORED>(p->a.b, row * p->a.b_stride + head));
        rescaled = m->factor[t] != 1.0f;
        g_rescaled = m->g_factor[t] != 1.0f;
    }
    if (t < PIECE) {
        m->rescaled[t / 32] = __ballot_sync(LS_ALL_LANES, rescaled);
        m->g_rescaled[t / 32] = __ballot_sync(LS_ALL_LANES, g_rescaled);
    }
    __syncthreads();
}

template <int STORED, bool STATES>
static __device__ __forceinline__ void run_head(piece_memory *m, const delta_params *p, const place *at, int64_t head,
                                                bool first) {
    const int lane = (int)threadIdx.x % LANES, token = (int)threadIdx.x / LANES * OWN_T;
    raw_slab raw;
    sums s;
    float e[OWN_T] = {0.0f, 0.0f, 0.0f, 0.0f};
    load_numbers<STORED>(m, p, at, head);
    load_slab<STATES>(&raw, p, at, head, 0);
    put_slab(m, &m->slabs[0], &raw, at);
    clear(&s);
    __syncthreads();
#pragma unroll 1
    for (int i = 0; i < COLUMNS / SLAB; i++) {
        if (i + 1 < COLUMNS / SLAB) load_slab<STATES>(&raw, p, at, head, (i + 1) * SLAB);
        add_slab(&s, &m->slabs[i % 2], token, lane, at->ends);
        if (i + 1 < COLUMNS / SLAB) put_slab(m, &m->slabs[(i + 1) % 2], &raw, at);
        __syncthreads();
    }
    put_links(m, &s, token, lane);
#pragma unroll
    for (int r = 0; r < OWN_T; r++) {
        const float all = forward_factor(m, bits_of(m->rescaled), 0, token + r),
                    end = backward_factor(m, bits_of(m->g_rescaled), PIECE, token + r);
#pragma unroll
        for (int i = 0; i < OWN_I; i++) {
            s.query[r][i] = ls_mul(all, s.query[r][i]);
            s.key[r][i] = ls_sub(at->ends ? 0.0f : ls_mul(end, s.key[r][i]), ls_mul(all, s.minus[r][i]));
        }
    }
    __syncthreads();
    add_tokens(&s, e, m, at->n, token, lane);
#pragma unroll
    for (int r = 0; r < OWN_T; r++) {
        const int t = token + r;
        const int64_t row = at->begin + t;
#pragma unroll
        for (int step = 1; step < LANES; step *= 2) e[r] = ls_add(e[r], __shfl_xor_sync(LS_ALL_LANES, e[r], step));
        if (t >= at->n) continue;
        const float top = ls_mul(m->scale[t], ls_delta_query_scale(KEYS)), both = ls_mul(m->scale[t], m->back[t]);
        if (lane == 0) *ls_delta_number(p, p->plan.e, row, head) = ls_mul(top, e[r]);
        add_out(p->a.dq + row * p->a.dq_stride + at->key * KEYS, top, s.query[r], lane, first);
        add_out(p->a.dk + row * p->a.dk_stride + at->key * KEYS, both, s.key[r], lane, first);
    }
    __syncthreads();
}

/* STATES: others may continue a span. */
template <int STORED, bool STATES>
static __global__ void __launch_bounds__(THREADS, 1) pieces_kernel(const __grid_constant__ delta_params p) {
    ls_cuda_begin();
    extern __shared__ __align__(16) char shared[];
    auto *m = (piece_memory *)shared;
    const int64_t key = blockIdx.x % p.a.n_key_heads, span_i = blockIdx.x / p.a.n_key_heads % p.a.n_spans;
    const int64_t j = blockIdx.x / p.a.n_key_heads / p.a.n_spans;
    const ls_span *span = &p.a.spans[span_i];
    const int64_t left = span->n_rows - j * PIECE;
    const bool last = left <= PIECE;
    const place at = {.entry = ls_delta_entry(span, span_i) + j,
                      .begin = span->row + j * PIECE,
                      .key = key,
                      .n = left < PIECE ? (int)left : PIECE,
                      .ends = last && !STATES,
                      .dfinal = last && STATES ? p.a.dfinal + ls_delta_state_at(&p, span_i, 0) : NULL};
    if (p.fault->code != LS_FAULT_NONE || span->slot < 0 || left <= 0) return;
    load_rows(m, &p, &at);
    for (int64_t head = key * p.group; head < (key + 1) * p.group; head++)
        run_head<STORED, STATES>(m, &p, &at, head, head == key * p.group);
}

template <bool STATES>
static const void *kernel_of(const ls_delta_backward_args *a) {
    return a->in_dtype == LS_F32 ? (const void *)pieces_kernel<LS_F32, STATES>
                                 : (const void *)pieces_kernel<LS_BF16, STATES>;
}

ls_status ls_delta_pieces_back(const ls_exec *exec, const delta_params *p, int64_t most, bool *taken, ls_error *err) {
    const ls_delta_backward_args *a = &p->a;
    delta_params params = *p;
    LS_CUDA_TRY(ls_is_hopper(taken, "delta_backward", err));
    *taken = *taken && a->key_dim == KEYS && a->value_dim == COLUMNS && p->vectors;
    if (!*taken) return LS_OK;
    const int64_t pieces = ls_launch_blocks(a->n_spans, most / PIECE + (most % PIECE != 0), 1);
    const ls_launch launch = {"delta_backward, pieces",
                              {ls_launch_blocks(pieces, a->n_key_heads, 1), 1, 1},
                              THREADS,
                              (int64_t)sizeof(piece_memory),
                              NULL,
                              0};
    return ls_cuda_launch_within(exec, &launch, LS_HOPPER_SHARED_MAX,
                                 a->dfinal != NULL ? kernel_of<true>(a) : kernel_of<false>(a), &params, err);
}
