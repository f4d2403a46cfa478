/* Gradient of attention of the profile mma16 on Hopper's tensor cores. Compiled for sm_90a alone.
 *
 * Three kernels follow one another. The first rounds dout and makes D. dq runs over keys, a block 128 queries of a
 * head; dk and dv run over the queries of all heads of a KV head, a block 128 keys. Both make scores and dp: that costs
 * two products of seven and needs no order among blocks. In each a warpgroup copies rows into a ring of stages, and two
 * others multiply, for 64 rows each. Tiles of rows lie so that products over dimensions and products over rows read the
 * same bytes: probabilities and ds go from accumulators to the next product in registers. */
#include "op/attention_backward.h"
#include "op/cuda/attention_cuda.h"
#include "op/cuda/attention_mma16_cuda.h"
#include "op/cuda/check_cuda.h"

/* Blocks beyond which more tiles at a time do not help. */
#define BLOCKS_ENOUGH 65536
#define ROUND_THREADS 256
/* Rows of a stage. */
#define PASSING 64
#define STEPS (PASSING / 16)
#define GROUPS 2
#define THREADS (WARPGROUP * (1 + GROUPS))

/* Rows of a tensor of heads. */
typedef struct source {
    const uint16_t *rows;
    int64_t stride;
    bool wide; /* eight dimensions are one aligned vector */
    CUtensorMap map;
} source;

typedef struct backward_params {
    ls_attention_backward_args a;
    source q, k, v, dout;
    bool boxed;        /* rows that pass come by maps */
    int64_t group;     /* query heads of a KV head */
    int64_t items;     /* spans, heads, shares */
    int64_t tiles;     /* of a span that run at the same time */
    int64_t shares;    /* blocks among which the dimensions of an output are shared */
    float scale2;      /* c */
    float *lift, *dot; /* [n_heads][rows]: LIFT - N, and D */
    uint16_t *rounded; /* [rows][n_heads * head_dim]: do */
    const ls_fault *fault;
} backward_params;

/* ---- do and D ---- */

/* A warp a head of a row; a lane eight dimensions. */
static __global__ void __launch_bounds__(ROUND_THREADS) round_kernel(const __grid_constant__ backward_params p) {
    ls_cuda_begin();
    const ls_attention_backward_args *a = &p.a;
    const int64_t at = ((int64_t)blockIdx.x * ROUND_THREADS + threadIdx.x) / 32, lane = threadIdx.x % 32;
    const int64_t row = at / a->n_heads, head = at % a->n_heads, dim = lane * 8;
    const float *dout = a->dout + row * a->dout_stride + head * a->head_dim + dim;
    const uint16_t *out = (const uint16_t *)a->out + row * a->out_stride + head * a->head_dim + dim;
    uint16_t *to = p.rounded + (row * a->n_heads + head) * a->head_dim + dim;
    float x[8];
    if (p.fault->code != LS_FAULT_NONE || row >= a->rows) return;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const bool there = dim + i < a->head_dim;
        const uint16_t r = there ? ls_f32_to_bf16(dout[i]) : 0;
        x[i] = there ? ls_fma(ls_bf16_to_f32(r), ls_bf16_to_f32(out[i]), 0.0f) : 0.0f;
        if (there) to[i] = r;
    }
    float sum = ls_add(ls_add(ls_add(x[0], x[4]), ls_add(x[2], x[6])), ls_add(ls_add(x[1], x[5]), ls_add(x[3], x[7])));
    for (int half = 16; half > 0; half /= 2) sum = ls_add(sum, __shfl_xor_sync(LS_ALL_LANES, sum, half));
    if (lane != 0) return;
    p.lift[head * a->rows + row] = ls_attention_lift(a->log_sum[row * a->log_sum_stride + head]);
    p.dot[head * a->rows + row] = sum;
}

/* ---- tiles of rows ---- */

template <int DIMS_, int STAGES_>
struct backward_shape {
    static constexpr int DIMS = DIMS_, STAGES = STAGES_;
    static constexpr int PASSING_BYTES = PASSING * DIMS * 2, RESTING_BYTES = GROUP_ROWS * GROUPS * DIMS * 2;
    static constexpr int SHARE = DIMS <= 128 ? DIMS : 128; /* dimensions of dk and dv that a block makes */
    struct memory {
        uint8_t resting[2][RESTING_BYTES]; /* queries and do, or keys and values, of the block's own rows */
        uint8_t passing[STAGES][2][PASSING_BYTES];
        float lift[STAGES][PASSING], dot[STAGES][PASSING]; /* of queries that pass */
        uint64_t there, full[STAGES], empty[STAGES];
    };
    static constexpr int64_t SHARED_BYTES = (int64_t)sizeof(memory) + 1024; /* to align */
};

/* ROWS rows from `first` on, n of which are there; the head's first element at `column`. By a warpgroup. */
template <int ROWS, int DIMS>
static __device__ __forceinline__ void copy_tile(uint32_t to, const source *s, int64_t first, int64_t column, int n,
                                                 int dims) {
    constexpr int UNITS = DIMS / 8;
    const int thread = threadIdx.x % WARPGROUP;
    if (s->wide) {
#pragma unroll 4
        for (int i = thread; i < ROWS * UNITS; i += WARPGROUP) {
            const int row = i / UNITS, unit = i % UNITS;
            const bool there = row < n && 8 * unit < dims;
            copy8(to + place8<ROWS>(row, unit),
                  there ? s->rows + (first + row) * s->stride + column + 8 * unit : s->rows, there);
        }
        return;
    }
#pragma unroll 1
    for (int i = thread; i < ROWS * DIMS; i += WARPGROUP) {
        const int row = i / DIMS, dim = i % DIMS;
        put1(to + place1<ROWS>(row, dim),
             row < n && dim < dims ? s->rows[(first + row) * s->stride + column + dim] : (uint16_t)0);
    }
}

static __device__ __forceinline__ int rows_left(int64_t n, int64_t first, int most) {
    return n - first < most ? (int)(n - first) : most;
}

/* Where the copiers are in the ring. */
typedef struct copier {
    int stage, phase, old, waiting;
} copier;

template <class S>
static __device__ __forceinline__ void stage_done(typename S::memory *m, copier *c) {
    constexpr int BEHIND = S::STAGES > 1 ? S::STAGES - 1 : 1;
    copies_done();
    if (++c->stage == S::STAGES) c->stage = 0, c->phase ^= 1;
    if (++c->waiting < BEHIND) return;
    hand_over<BEHIND - 1>(ls_shared_address(&m->full[c->old]));
    if (++c->old == S::STAGES) c->old = 0;
    c->waiting--;
}

template <class S>
static __device__ __forceinline__ void stages_done(typename S::memory *m, copier *c) {
    asm volatile("cp.async.wait_all;" ::: "memory");
    for (; c->waiting > 0; c->waiting--) {
        hand_over<0>(ls_shared_address(&m->full[c->old]));
        if (++c->old == S::STAGES) c->old = 0;
    }
}

/* The same by boxes of one of the sources. What is behind the span's rows is whatever follows them. */
template <class S>
static __device__ __forceinline__ void fetch_stage(const source *first, const source *second, typename S::memory *m,
                                                   copier *c, int64_t row, int64_t head, int64_t second_head,
                                                   int dims) {
    const int thread = threadIdx.x % WARPGROUP, chunks = (dims + 63) / 64;
    const uint32_t full = ls_shared_address(&m->full[c->stage]);
    if (thread == 0 || thread == 32) {
        const source *s = thread == 0 ? first : second;
        const uint32_t to = ls_shared_address(m->passing[c->stage][thread / 32]);
        ls_barrier_expect(full, (uint32_t)(chunks * PASSING * 128));
        for (int i = 0; i < chunks; i++)
            ls_box_fetch3(&s->map, to + i * PASSING * 128, full, 64 * i, (int32_t)(thread == 0 ? head : second_head),
                          (int32_t)row);
    } else {
        ls_barrier_arrive(full);
    }
    if (++c->stage == S::STAGES) c->stage = 0, c->phase ^= 1;
}

/* What a block does. */
typedef struct task {
    ls_span span;
    int64_t key_row, n_keys; /* of the span's keys */
    int64_t tile, head;      /* head: of queries for dq, of keys for dk and dv */
    int dim;                 /* the first dimension of its share */
} task;

template <bool LAST>
static __device__ __forceinline__ task task_of(const backward_params *p, int64_t heads, int share_dims) {
    const int64_t item = blockIdx.x % p->items, rest = item / p->shares, tile = blockIdx.x / p->items;
    const ls_span *span = &p->a.spans[rest / heads];
    const task t = {*span,
                    ls_attention_key_row(&p->a, rest / heads),
                    ls_attention_keys(span),
                    LAST ? p->tiles - 1 - tile : tile,
                    rest % heads,
                    (int)(item % p->shares) * share_dims};
    return t;
}

/* Keys or queries [first, end), in whole stages, with which a block's n rows, the first at position `own`, meet. */
typedef struct meeting {
    int64_t first, end;
} meeting;

static __device__ __forceinline__ meeting keys_met(const backward_params *p, int64_t own, int n) {
    const meeting m = {ls_attention_first(own, p->a.window) / PASSING * PASSING, own + n};
    return m;
}
static __device__ __forceinline__ meeting queries_met(const backward_params *p, const ls_span *span, int64_t own,
                                                      int n) {
    const int64_t after = ls_attention_after(own + n - 1, p->a.window) - span->pos;
    const meeting m = {own > span->pos ? (own - span->pos) / PASSING * PASSING : 0,
                       after < span->n_rows ? after : span->n_rows};
    return m;
}

/* Whether every query of [query, query + n) takes every key of [key, key + m). */
static __device__ __forceinline__ bool all_take(const backward_params *p, int64_t query, int n, int64_t key, int m) {
    return key + m - 1 <= query && key >= ls_attention_first(query + n - 1, p->a.window);
}

/* A query takes the keys at most `reach` behind its own position. */
static __device__ __forceinline__ int reach_of(const backward_params *p) {
    return p->a.window > 0 && p->a.window < INT32_MAX ? (int)p->a.window - 1 : INT32_MAX;
}

/* Scores and dp of a warpgroup's 64 rows and those of a stage, in that order of completion. */
template <class S>
static __device__ __forceinline__ void begin_products(float (&score)[PASSING / 2], float (&dp)[PASSING / 2],
                                                      typename S::memory *m, int stage, int group) {
    constexpr int ROWS = GROUP_ROWS * GROUPS;
    const uint32_t own = ls_shared_address(m->resting[0]), own_too = ls_shared_address(m->resting[1]);
    const uint32_t other = ls_shared_address(m->passing[stage][0]), other_too = ls_shared_address(m->passing[stage][1]);
    ls_wgmma_any(score);
    ls_wgmma_any(dp);
    ls_wgmma_fence();
    ls_wgmma<PASSING>::template ss_first<0, 0>(score, operand<0, ROWS, S::DIMS>(own, group * GROUP_ROWS, 0),
                                               operand<0, PASSING, S::DIMS>(other, 0, 0));
#pragma unroll
    for (int k = 1; k < S::DIMS / 16; k++)
        ls_wgmma<PASSING>::template ss<0, 0>(score, operand<0, ROWS, S::DIMS>(own, group * GROUP_ROWS, k),
                                             operand<0, PASSING, S::DIMS>(other, 0, k));
    ls_wgmma_commit();
    ls_wgmma<PASSING>::template ss_first<0, 0>(dp, operand<0, ROWS, S::DIMS>(own_too, group * GROUP_ROWS, 0),
                                               operand<0, PASSING, S::DIMS>(other_too, 0, 0));
#pragma unroll
    for (int k = 1; k < S::DIMS / 16; k++)
        ls_wgmma<PASSING>::template ss<0, 0>(dp, operand<0, ROWS, S::DIMS>(own_too, group * GROUP_ROWS, k),
                                             operand<0, PASSING, S::DIMS>(other_too, 0, k));
    ls_wgmma_commit();
}

/* Accumulators of a warpgroup's 64 rows, n of which are there, times factor. */
template <int N>
static __device__ __forceinline__ void store_sums(float *to, int64_t stride, const float (&d)[N], float factor, int n,
                                                  int dims) {
    const int row = threadIdx.x % WARPGROUP / 32 * 16 + threadIdx.x % 32 / 4, column = threadIdx.x % 4 * 2;
    const bool pairs = (uintptr_t)to % 8 == 0 && stride % 2 == 0 && dims % 2 == 0;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        if (row + 8 * half >= n) continue;
        float *at = to + (row + 8 * half) * stride + column;
#pragma unroll
        for (int j = 0; j < N / 4; j++) {
            const float x = ls_mul(factor, d[4 * j + 2 * half]), y = ls_mul(factor, d[4 * j + 2 * half + 1]);
            if (8 * j + column >= dims) continue;
            if (pairs) {
                *(float2 *)(at + 8 * j) = make_float2(x, y);
            } else {
                at[8 * j] = x;
                if (8 * j + column + 1 < dims) at[8 * j + 1] = y;
            }
        }
    }
}

/* ---- dq ---- */

template <class S>
static __device__ __forceinline__ void copy_for_dq(const backward_params *p, const task *t, typename S::memory *m,
                                                   copier *c) {
    constexpr int ROWS = GROUP_ROWS * GROUPS;
    const int dims = (int)p->a.head_dim;
    const int64_t own = t->tile * ROWS, kv_head = t->head / p->group;
    const meeting met = keys_met(p, t->span.pos + own, rows_left(t->span.n_rows, own, ROWS));
    for (int64_t first = met.first; first < met.end; first += PASSING) {
        const int left = rows_left(t->n_keys, first, PASSING);
        const int64_t row = t->key_row + first;
        ls_barrier_wait(ls_shared_address(&m->empty[c->stage]), c->phase ^ 1);
        if (p->boxed) {
            fetch_stage<S>(&p->k, &p->v, m, c, row, kv_head, kv_head, dims);
            continue;
        }
        copy_tile<PASSING, S::DIMS>(ls_shared_address(m->passing[c->stage][0]), &p->k, row, kv_head * dims, left, dims);
        copy_tile<PASSING, S::DIMS>(ls_shared_address(m->passing[c->stage][1]), &p->v, row, kv_head * dims, left, dims);
        stage_done<S>(m, c);
    }
}

/* Rows of a stage behind the span's last become +0. Each warpgroup does it for itself: it is the same that they write.
 */
template <class S>
static __device__ __forceinline__ void clear_rows(typename S::memory *m, int stage, int from, int group) {
    constexpr int UNITS = S::DIMS / 8;
    for (int i = from * UNITS + threadIdx.x % WARPGROUP; i < PASSING * UNITS; i += WARPGROUP)
#pragma unroll
        for (int which = 0; which < 2; which++)
            put16(ls_shared_address(m->passing[stage][which]) + place8<PASSING>(i / UNITS, i % UNITS),
                  make_uint4(0, 0, 0, 0));
    show_writes();
    warpgroup_sync(2 + group);
}

/* A stage is free when every thread is done with it: each reads there by itself, too. */
template <class S>
static __device__ __forceinline__ void done_with(typename S::memory *m, int *stage, int *phase) {
    ls_barrier_arrive(ls_shared_address(&m->empty[*stage]));
    if (++*stage == S::STAGES) *stage = 0, *phase ^= 1;
}

/* The block's own rows, by all warpgroups that multiply. */
template <class S>
static __device__ __forceinline__ void load_own(typename S::memory *m, const source *first, const source *second,
                                                int64_t row, int64_t column, int n, int dims, int group) {
    constexpr int ROWS = GROUP_ROWS * GROUPS;
    asm volatile("bar.sync 1, 256;" ::: "memory"); /* the tile before is done with them */
    if (group == 0)
        copy_tile<ROWS, S::DIMS>(ls_shared_address(m->resting[0]), first, row, column, n, dims);
    else
        copy_tile<ROWS, S::DIMS>(ls_shared_address(m->resting[1]), second, row, column, n, dims);
    asm volatile("cp.async.wait_all;" ::: "memory");
    show_writes();
    asm volatile("bar.sync 1, 256;" ::: "memory");
}

/* Of two neighbours as a product takes them. */
static __device__ __forceinline__ float one_of(uint32_t pair, int i) {
    return ls_from_bits(i == 0 ? pair << 16 : pair & 0xFFFF0000u);
}

/* dp becomes ds. The thread's first row lies `apart` positions behind its first key. */
template <bool WHOLE>
static __device__ __forceinline__ void weigh_queries(float (&dp)[PASSING / 2], const float (&score)[PASSING / 2],
                                                     float scale2, const float (&lift)[2], const float (&dot)[2],
                                                     int apart, int reach) {
#pragma unroll
    for (int j = 0; j < PASSING / 8; j++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int at = 4 * j + 2 * half;
            const uint32_t p = pair_of(ls_attention_probability(score[at], scale2, lift[half]),
                                       ls_attention_probability(score[at + 1], scale2, lift[half]));
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int behind = apart + half * 8 - 8 * j - i;
                const float y = ls_mul(one_of(p, i), ls_sub(dp[at + i], dot[half]));
                dp[at + i] = WHOLE || (behind >= 0 && behind <= reach) ? y : 0.0f;
            }
        }
}

template <class S>
static __device__ __forceinline__ void make_dq(const backward_params *p, const task *t, typename S::memory *m,
                                               int *stage, int *phase, int group) {
    constexpr int ROWS = GROUP_ROWS * GROUPS;
    const int dims = (int)p->a.head_dim, column = threadIdx.x % 4 * 2;
    const int64_t own = t->tile * ROWS, pos = t->span.pos + own;
    const int n = rows_left(t->span.n_rows, own, ROWS), row = threadIdx.x % WARPGROUP / 32 * 16 + threadIdx.x % 32 / 4;
    const meeting met = keys_met(p, pos, n);
    float dq[S::DIMS / 2], lift[2], dot[2];
    load_own<S>(m, &p->q, &p->dout, t->span.row + own, t->head * dims, n, dims, group);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int of_row = group * GROUP_ROWS + row + 8 * half;
        const int64_t at = t->head * p->a.rows + t->span.row + own + (of_row < n ? of_row : 0);
        lift[half] = p->lift[at];
        dot[half] = p->dot[at];
    }
#pragma unroll
    for (int i = 0; i < S::DIMS / 2; i++) dq[i] = 0.0f;
    ls_wgmma_hold(dq);
#pragma unroll 1
    for (int64_t first = met.first; first < met.end; first += PASSING) {
        float score[PASSING / 2], dp[PASSING / 2];
        uint32_t ds[STEPS][4];
        ls_barrier_wait(ls_shared_address(&m->full[*stage]), *phase);
        if (p->boxed && first + PASSING > t->n_keys) clear_rows<S>(m, *stage, (int)(t->n_keys - first), group);
        begin_products<S>(score, dp, m, *stage, group);
        ls_wgmma_wait<0>();
        ls_wgmma_hold(score);
        ls_wgmma_hold(dp);
        if (all_take(p, pos, ROWS, first, PASSING))
            weigh_queries<true>(dp, score, p->scale2, lift, dot, 0, 0);
        else
            weigh_queries<false>(dp, score, p->scale2, lift, dot,
                                 (int)(pos + group * GROUP_ROWS + row - first) - column, reach_of(p));
#pragma unroll
        for (int k = 0; k < STEPS; k++) left_of(ds[k], dp, k);
        ls_wgmma_fence();
        const uint32_t keys = ls_shared_address(m->passing[*stage][0]);
#pragma unroll
        for (int k = 0; k < STEPS; k++)
            ls_wgmma<S::DIMS>::template rs<1>(dq, ds[k], operand<1, S::DIMS, PASSING>(keys, 0, k));
        ls_wgmma_commit();
        ls_wgmma_wait<0>();
        ls_wgmma_hold(dq);
        done_with<S>(m, stage, phase);
    }
    const int64_t to = (t->span.row + own + group * GROUP_ROWS) * p->a.dq_stride + t->head * dims;
    store_sums(p->a.dq + to, p->a.dq_stride, dq, p->a.scale, n - group * GROUP_ROWS, dims);
}

/* ---- dk and dv ---- */

template <class S>
static __device__ __forceinline__ void copy_for_dkv(const backward_params *p, const task *t, typename S::memory *m,
                                                    copier *c) {
    constexpr int ROWS = GROUP_ROWS * GROUPS;
    const int dims = (int)p->a.head_dim, thread = threadIdx.x % WARPGROUP;
    const int64_t own = t->tile * ROWS;
    const meeting met = queries_met(p, &t->span, own, rows_left(t->n_keys, own, ROWS));
    for (int64_t head = t->head * p->group; head < (t->head + 1) * p->group; head++)
        for (int64_t first = met.first; first < met.end; first += PASSING) {
            const int left = rows_left(t->span.n_rows, first, PASSING);
            const int64_t row = t->span.row + first;
            ls_barrier_wait(ls_shared_address(&m->empty[c->stage]), c->phase ^ 1);
            if (!p->boxed) {
                copy_tile<PASSING, S::DIMS>(ls_shared_address(m->passing[c->stage][0]), &p->q, row, head * dims, left,
                                            dims);
                copy_tile<PASSING, S::DIMS>(ls_shared_address(m->passing[c->stage][1]), &p->dout, row, head * dims,
                                            left, dims);
            }
            if (thread >= PASSING) {
                const int of_row = thread - PASSING;
                const int64_t at = head * p->a.rows + row + (of_row < left ? of_row : 0);
                m->lift[c->stage][of_row] = p->lift[at];
                m->dot[c->stage][of_row] = p->dot[at];
            }
            if (p->boxed)
                fetch_stage<S>(&p->q, &p->dout, m, c, row, head, head, dims);
            else
                stage_done<S>(m, c);
        }
}

/* Scores become probabilities. The thread's first query lies `apart` positions behind its first row, a key; `left`
 * queries of the stage are there. */
template <bool WHOLE>
static __device__ __forceinline__ void weigh_keys(float (&score)[PASSING / 2], const float *lifts, float scale2,
                                                  int apart, int reach, int left) {
    const int column = threadIdx.x % 4 * 2;
#pragma unroll
    for (int j = 0; j < PASSING / 8; j++) {
        const float2 lift = *(const float2 *)&lifts[8 * j + column];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int behind = apart + 8 * j + i % 2 - i / 2 * 8;
            const float x = ls_attention_probability(score[4 * j + i], scale2, i % 2 == 0 ? lift.x : lift.y);
            score[4 * j + i] = WHOLE || (behind >= 0 && behind <= reach && 8 * j + column + i % 2 < left) ? x : 0.0f;
        }
    }
}

/* dp becomes ds; what is not seen has the probability +0. */
template <bool WHOLE>
static __device__ __forceinline__ void weigh_gradients(float (&dp)[PASSING / 2], const uint32_t (&p)[STEPS][4],
                                                       const float *dots) {
    const int column = threadIdx.x % 4 * 2;
#pragma unroll
    for (int j = 0; j < PASSING / 8; j++) {
        const float2 dot = *(const float2 *)&dots[8 * j + column];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float x = one_of(p[j / 2][j % 2 * 2 + i / 2], i % 2),
                        y = ls_mul(x, ls_sub(dp[4 * j + i], i % 2 == 0 ? dot.x : dot.y));
            dp[4 * j + i] = WHOLE || x != 0.0f ? y : 0.0f;
        }
    }
}

template <class S>
static __device__ __forceinline__ void make_dkv(const backward_params *p, const task *t, typename S::memory *m,
                                                int *stage, int *phase, int group) {
    constexpr int ROWS = GROUP_ROWS * GROUPS;
    const int dims = (int)p->a.head_dim, column = threadIdx.x % 4 * 2;
    const int64_t own = t->tile * ROWS;
    const int n = rows_left(t->n_keys, own, ROWS), row = threadIdx.x % WARPGROUP / 32 * 16 + threadIdx.x % 32 / 4;
    const meeting met = queries_met(p, &t->span, own, n);
    float dk[S::SHARE / 2], dv[S::SHARE / 2];
    load_own<S>(m, &p->k, &p->v, t->key_row + own, t->head * dims, n, dims, group);
#pragma unroll
    for (int i = 0; i < S::SHARE / 2; i++) dk[i] = dv[i] = 0.0f;
    ls_wgmma_hold(dk);
    ls_wgmma_hold(dv);
#pragma unroll 1
    for (int64_t head = 0; head < p->group; head++)
#pragma unroll 1
        for (int64_t first = met.first; first < met.end; first += PASSING) {
            float score[PASSING / 2], dp[PASSING / 2];
            uint32_t weights[STEPS][4], ds[STEPS][4];
            ls_barrier_wait(ls_shared_address(&m->full[*stage]), *phase);
            if (p->boxed && first + PASSING > t->span.n_rows)
                clear_rows<S>(m, *stage, (int)(t->span.n_rows - first), group);
            begin_products<S>(score, dp, m, *stage, group);
            ls_wgmma_wait<1>();
            ls_wgmma_hold(score);
            const int64_t pos = t->span.pos + first;
            const bool whole = all_take(p, pos, PASSING, own, ROWS) && first + PASSING <= t->span.n_rows;
            const int apart = (int)(pos - own - group * GROUP_ROWS - row) + column,
                      left = (int)(t->span.n_rows - first);
            if (whole)
                weigh_keys<true>(score, m->lift[*stage], p->scale2, 0, 0, 0);
            else
                weigh_keys<false>(score, m->lift[*stage], p->scale2, apart, reach_of(p), left);
#pragma unroll
            for (int k = 0; k < STEPS; k++) left_of(weights[k], score, k);
            ls_wgmma_wait<0>();
            ls_wgmma_hold(dp);
            ls_wgmma_fence();
            const uint32_t queries = ls_shared_address(m->passing[*stage][0]);
            const uint32_t dout = ls_shared_address(m->passing[*stage][1]);
#pragma unroll
            for (int k = 0; k < STEPS; k++)
                ls_wgmma<S::SHARE>::template rs<1>(dv, weights[k], operand<1, S::DIMS, PASSING>(dout, t->dim, k));
            ls_wgmma_commit();
            if (whole)
                weigh_gradients<true>(dp, weights, m->dot[*stage]);
            else
                weigh_gradients<false>(dp, weights, m->dot[*stage]);
#pragma unroll
            for (int k = 0; k < STEPS; k++) left_of(ds[k], dp, k);
            ls_wgmma_fence();
#pragma unroll
            for (int k = 0; k < STEPS; k++)
                ls_wgmma<S::SHARE>::template rs<1>(dk, ds[k], operand<1, S::DIMS, PASSING>(queries, t->dim, k));
            ls_wgmma_commit();
            ls_wgmma_wait<0>();
            ls_wgmma_hold(dk);
            ls_wgmma_hold(dv);
            done_with<S>(m, stage, phase);
        }
    const int64_t to = (t->key_row + own + group * GROUP_ROWS) * p->a.dkv_stride + t->head * dims + t->dim;
    store_sums(p->a.dk + to, p->a.dkv_stride, dk, p->a.scale, n - group * GROUP_ROWS, dims - t->dim);
    store_sums(p->a.dv + to, p->a.dkv_stride, dv, 1.0f, n - group * GROUP_ROWS, dims - t->dim);
}

/* ---- the kernels ---- */

template <class S>
static __device__ __forceinline__ typename S::memory *open_memory(const backward_params *p, uint8_t *dynamic) {
    typename S::memory *m = (typename S::memory *)(((uintptr_t)dynamic + 1023) & ~(uintptr_t)1023);
    if (threadIdx.x == 0) {
        for (int s = 0; s < S::STAGES; s++) {
            ls_barrier_init(ls_shared_address(&m->full[s]), WARPGROUP);
            ls_barrier_init(ls_shared_address(&m->empty[s]), GROUPS * WARPGROUP);
        }
        ls_barrier_init_done();
    }
    /* Boxes do not write dimensions that are 64 or more behind the last. */
    if (p->a.head_dim <= S::DIMS - 64) {
        for (int i = threadIdx.x; i < (int)sizeof m->passing / 16; i += THREADS)
            ((uint4 *)m->passing)[i] = make_uint4(0, 0, 0, 0);
        show_writes();
    }
    __syncthreads();
    ls_cuda_begin();
    return m;
}

template <class S>
static __global__ void __launch_bounds__(THREADS, 1) dq_kernel(const __grid_constant__ backward_params p) {
    extern __shared__ uint8_t dynamic[];
    typename S::memory *m = open_memory<S>(&p, dynamic);
    if (p.fault->code != LS_FAULT_NONE) return;
    task t = task_of<true>(&p, p.a.n_heads, S::DIMS);
    const int64_t n_tiles = (t.span.n_rows + GROUP_ROWS * GROUPS - 1) / (GROUP_ROWS * GROUPS);
    if (t.span.slot < 0) return;
    const int role = __shfl_sync(LS_ALL_LANES, (int)threadIdx.x / WARPGROUP, 0);
    if (role == 0) {
        copier c = {};
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        for (; t.tile < n_tiles; t.tile += p.tiles) copy_for_dq<S>(&p, &t, m, &c);
        if (!p.boxed) stages_done<S>(m, &c);
    } else {
        int stage = 0, phase = 0;
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        for (; t.tile < n_tiles; t.tile += p.tiles) make_dq<S>(&p, &t, m, &stage, &phase, role - 1);
    }
}

template <class S>
static __global__ void __launch_bounds__(THREADS, 1) dkv_kernel(const __grid_constant__ backward_params p) {
    extern __shared__ uint8_t dynamic[];
    typename S::memory *m = open_memory<S>(&p, dynamic);
    if (p.fault->code != LS_FAULT_NONE) return;
    task t = task_of<false>(&p, p.a.n_kv_heads, S::SHARE);
    const int64_t n_tiles = (t.n_keys + GROUP_ROWS * GROUPS - 1) / (GROUP_ROWS * GROUPS);
    if (t.span.slot < 0) return;
    const int role = __shfl_sync(LS_ALL_LANES, (int)threadIdx.x / WARPGROUP, 0);
    if (role == 0) {
        copier c = {};
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        for (; t.tile < n_tiles; t.tile += p.tiles) copy_for_dkv<S>(&p, &t, m, &c);
        if (!p.boxed) stages_done<S>(m, &c);
    } else {
        int stage = 0, phase = 0;
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        for (; t.tile < n_tiles; t.tile += p.tiles) make_dkv<S>(&p, &t, m, &stage, &phase, role - 1);
    }
}

/* ---- the host's side ---- */

#define INDICES 8

typedef struct backward_launch {
    const char *name;
    const void *kernel;
    int64_t shared_bytes, heads, shares, rows; /* rows: of the longest span */
} backward_launch;

static ls_status launch_one(const ls_exec *exec, const backward_launch *of, backward_params *p, const ls_index *index,
                            ls_error *err) {
    const int64_t tiles = (of->rows - 1) / (GROUP_ROWS * GROUPS) + 1;
    p->shares = of->shares;
    p->items = ls_launch_blocks(p->a.n_spans, of->heads, of->shares);
    const int64_t enough = p->items < BLOCKS_ENOUGH ? BLOCKS_ENOUGH / p->items : 1;
    p->tiles = tiles < enough ? tiles : enough;
    const ls_launch contract = {
        of->name, {ls_launch_blocks(p->items, p->tiles, 1), 1, 1}, THREADS, of->shared_bytes, index, INDICES};
    return ls_cuda_launch_within(exec, &contract, LS_HOPPER_SHARED_MAX, of->kernel, p, err);
}

template <class S>
static ls_status launch_all(const ls_exec *exec, backward_params *p, const ls_index *index, ls_error *err) {
    static_assert(S::SHARED_BYTES <= LS_HOPPER_SHARED_MAX, "a tile fits a multiprocessor");
    const ls_launch round = {"attention_backward round",
                             {ls_launch_blocks(p->a.rows, p->a.n_heads, 1) / (ROUND_THREADS / 32) + 1, 1, 1},
                             ROUND_THREADS,
                             0,
                             index,
                             INDICES};
    LS_CUDA_TRY(ls_cuda_launch(exec, &round, (const void *)round_kernel, p, err));
    const backward_launch dq = {.name = "attention_backward dq",
                                .kernel = (const void *)dq_kernel<S>,
                                .shared_bytes = S::SHARED_BYTES,
                                .heads = p->a.n_heads,
                                .shares = 1,
                                .rows = ls_spans_most(p->a.span_rows_max, p->a.rows)};
    const backward_launch dkv = {.name = "attention_backward dkv",
                                 .kernel = (const void *)dkv_kernel<S>,
                                 .shared_bytes = S::SHARED_BYTES,
                                 .heads = p->a.n_kv_heads,
                                 .shares = (p->a.head_dim - 1) / S::SHARE + 1,
                                 .rows = ls_attention_keys_most(&p->a)};
    LS_CUDA_TRY(launch_one(exec, &dq, p, index, err));
    return launch_one(exec, &dkv, p, index, err);
}

static ls_status source_of(source *s, const void *rows, int64_t n_rows, int64_t stride, int64_t heads,
                           const ls_attention_backward_args *a, bool *boxed, ls_error *err) {
    memset(s, 0, sizeof *s);
    s->rows = (const uint16_t *)rows;
    s->stride = stride;
    s->wide = (uintptr_t)rows % 16 == 0 && stride % 8 == 0 && a->head_dim % 8 == 0;
    *boxed = *boxed && s->wide && ls_box_possible(rows, LS_BF16, stride, n_rows, heads);
    const ls_box_matrix matrix = {rows, heads * a->head_dim, n_rows, stride};
    return *boxed ? ls_heads_map(&s->map, "attention_backward", &matrix, a->head_dim, 1, PASSING, err) : LS_OK;
}

ls_status ls_attention_backward_mma16(const ls_exec *exec, const ls_attention_backward_args *a, const ls_fault *fault,
                                      ls_error *err) {
    const int64_t dims = a->n_heads * a->head_dim, key_rows = ls_attention_key_rows(a);
    float *floats = (float *)((uint8_t *)exec->workspace + LS_WORKSPACE_HEAD);
    uint16_t *rounded = ls_attention_rounded(floats, a->n_heads, a->rows);
    backward_params p = {};
    p.a = *a;
    p.group = a->n_heads / a->n_kv_heads;
    p.scale2 = ls_attention_scale2(a->scale);
    p.lift = floats;
    p.dot = floats + a->n_heads * a->rows;
    p.rounded = rounded;
    p.fault = fault;
    p.boxed = true;
    const ls_index index[INDICES] = {
        {LS_WIDTH_I64, {{{"row", a->rows}, {"q stride", a->q_stride}, {"element", 2}}}},
        {LS_WIDTH_I64, {{{"row", key_rows}, {"kv stride", a->kv_stride}, {"element", 2}}}},
        {LS_WIDTH_I64, {{{"row", a->rows}, {"dout stride", a->dout_stride}, {"element", 4}}}},
        {LS_WIDTH_I64, {{{"row", a->rows}, {"out stride", a->out_stride}, {"element", 2}}}},
        {LS_WIDTH_I64, {{{"row", a->rows}, {"log_sum stride", a->log_sum_stride}, {"element", 4}}}},
        {LS_WIDTH_I64, {{{"row", a->rows}, {"dq stride", a->dq_stride}, {"element", 4}}}},
        {LS_WIDTH_I64, {{{"row", key_rows}, {"dkv stride", a->dkv_stride}, {"element", 4}}}},
        {LS_WIDTH_I64, {{{"row", a->rows}, {"head", a->n_heads}, {"dim", a->head_dim}, {"element", 2}}}}};
    bool hopper;
    LS_CUDA_TRY(ls_is_hopper(&hopper, "attention_backward", err));
    if (!hopper)
        return LS_FAIL(err, LS_ERR_UNSUPPORTED,
                       "attention_backward: profile mma16 is built for devices of sm_90 alone");
    LS_CUDA_TRY(source_of(&p.q, a->q, a->rows, a->q_stride, a->n_heads, a, &p.boxed, err));
    LS_CUDA_TRY(source_of(&p.k, a->k, key_rows, a->kv_stride, a->n_kv_heads, a, &p.boxed, err));
    LS_CUDA_TRY(source_of(&p.v, a->v, key_rows, a->kv_stride, a->n_kv_heads, a, &p.boxed, err));
    LS_CUDA_TRY(source_of(&p.dout, rounded, a->rows, dims, a->n_heads, a, &p.boxed, err));
    if (a->head_dim <= 64) return launch_all<backward_shape<64, 4>>(exec, &p, index, err);
    if (a->head_dim <= 128) return launch_all<backward_shape<128, 3>>(exec, &p, index, err);
    return launch_all<backward_shape<256, 1>>(exec, &p, index, err);
}
