/* attention of one token a span on sm_90, over keys and values that lie in their pages. Compiled for sm_90a alone.
 *
 * A block takes a tile of queries of a span and a KV head, four a warp, through all keys, 128 at a time: two blocks of
 * the contract, since then a lane has scores of four queries and four keys, and later outputs of four queries and up to
 * four dimensions: sixteen steps of chains for six words out of shared memory. One warp more fetches: a lane a page, as
 * one copy each for its keys and its values, which lie side by side. Keys of what follows come while values are added,
 * and values while scores are made. A warp waits for its copies alone, never for other warps: what it shares lies in
 * its own rows.
 *
 * The order of all arithmetic is that of op/attention.h; lanes fold by halves as in attention_softmax_cuda.h. */
#include "op/cuda/attention_cuda.h"
#include "op/cuda/attention_softmax_cuda.h"
#include "op/cuda/ring_cuda.h"

#define BLOCK LS_ATTENTION_BLOCK
#define BLOCKS 2 /* of keys at a time */
#define KEYS (BLOCKS * BLOCK)
#define PAGE 16 /* tokens: an engine's own choice */
#define PAGES (KEYS / PAGE)
#define HELD 4 /* rows, and keys, of a lane */
/* Of a block's rows: two such blocks fit the registers of a multiprocessor, and eight neighbouring columns of so many
 * rows lie in banks of their own. */
#define WARPS_MAX 7
#define ROWS_MAX (HELD * WARPS_MAX)
/* Lanes that share a row when scores become weights. */
#define PARTS (LS_WARP / HELD)
#define THREADS_MAX (LS_WARP * (WARPS_MAX + 1))
/* Steps of a chain that are loaded together. */
#define AHEAD 4
/* Blocks that fill the chip. No more than these ask for more than half of a multiprocessor's shared memory, so that
 * none shares one while another is idle. */
#define BLOCKS_WANTED 132
#define SHARED_ALONE (116 * 1024)

typedef struct token_params {
    ls_attention_args a;
    const ls_fault *fault;
    int64_t group;  /* query heads of a KV head */
    int32_t rows;   /* of a tile */
    int64_t slices; /* tiles of a span and KV head that have blocks of their own */
} token_params;

/* WINDOW: a call without one does nothing for it, and has the registers. */
template <int TYPE_, int DIMS_, bool WINDOW_>
struct token_shape {
    static constexpr bool WINDOW = WINDOW_;
    static constexpr int TYPE = TYPE_, DIMS = DIMS_, BYTES = TYPE == LS_F32 ? 4 : 2;
    static constexpr int DIMS_HELD = DIMS / LS_WARP;
    /* A page's keys, and what keeps pages in banks of their own. */
    static constexpr int KEY_PAGE = DIMS * PAGE * BYTES + PAGE * BYTES, VALUE_PAGE = DIMS * PAGE * BYTES;
    struct memory {
        __align__(128) uint8_t keys[PAGES * KEY_PAGE], values[PAGES * VALUE_PAGE + DIMS * BYTES];
        __align__(16) float q[DIMS][ROWS_MAX], e[KEYS][ROWS_MAX];
        __align__(16) float correction[BLOCKS][ROWS_MAX], from_total[ROWS_MAX], from_segment[ROWS_MAX], l[ROWS_MAX];
        uint64_t keys_there, values_there, keys_done, values_done;
    };
};

/* The queries that a block takes at a time. Query i of a span: token i / group, head i % group of the KV head. */
typedef struct tile {
    const token_params *p;
    ls_span span;
    int64_t kv_head, first_query, n_queries; /* n_queries: of the span */
    int64_t begin;                           /* of the first 128 keys of which the first row takes one */
    int64_t keys;                            /* before this position are those that the last row takes */
} tile;

typedef struct query {
    int64_t token;
    int32_t head; /* of the KV head */
    bool there;
} query;

static __device__ __forceinline__ query query_of(const tile *t, int row) {
    const uint32_t group = (uint32_t)t->p->group;
    const int64_t token = t->first_query / t->p->group;
    const uint32_t rest = (uint32_t)(t->first_query - token * t->p->group) + (uint32_t)row;
    return query{token + rest / group, (int32_t)(rest % group), t->first_query + row < t->n_queries};
}

/* ---- copies ---- */

/* A lane's part of 128 keys or values: those of a page, if there is one. Barriers count PAGES arrivals, one a lane. */
static __device__ __forceinline__ void fetch_page(uint32_t to, const uint8_t *page, int64_t at, int64_t bytes,
                                                  uint32_t barrier) {
    if (page != NULL) {
        ls_barrier_expect(barrier, (uint32_t)bytes);
        ls_bulk_fetch(to, page + at, (uint32_t)bytes, barrier);
    } else if (threadIdx.x % LS_WARP < PAGES) {
        ls_barrier_arrive(barrier);
    }
}

/* Keys and values of all the tile's positions, 128 at a time. `turn` counts such steps over all tiles of the block. */
template <class S>
static __device__ __forceinline__ void fetch(const tile *t, typename S::memory *m, uint32_t *turn) {
    const ls_attention_args *a = &t->p->a;
    const int lane = threadIdx.x % LS_WARP;
    const int64_t bytes = a->head_dim * PAGE * S::BYTES; /* of a page's keys, and of its values */
    const uint32_t keys_there = ls_shared_address(&m->keys_there), values_there = ls_shared_address(&m->values_there);
    const uint32_t keys_done = ls_shared_address(&m->keys_done), values_done = ls_shared_address(&m->values_done);
    const uint32_t keys_to = ls_shared_address(m->keys), values_to = ls_shared_address(m->values);
#pragma unroll 1
    for (int64_t first = t->begin; first < t->keys; first += KEYS, ++*turn) {
        const int64_t left = (t->keys - first - 1) / PAGE + 1;
        const int pages = left < PAGES ? (int)left : PAGES;
        const uint8_t *page = NULL;
        if (lane < pages) page = (const uint8_t *)ls_pool_at(&a->pages, a->tables[t->span.table + first / PAGE + lane]);
        ls_barrier_wait(keys_done, *turn % 2 ^ 1);
        fetch_page(keys_to + (uint32_t)(lane * (bytes + PAGE * S::BYTES)), page, t->kv_head * bytes, bytes, keys_there);
        ls_barrier_wait(values_done, *turn % 2 ^ 1);
        fetch_page(values_to + (uint32_t)(lane * bytes), page, (a->n_kv_heads + t->kv_head) * bytes, bytes,
                   values_there);
    }
}

/* ---- a warp's rows ---- */

template <int BYTES, int N>
static __device__ __forceinline__ void widen(float (&x)[N], typename ls_piece<N * BYTES>::type raw) {
    uint32_t words[N * BYTES / 4];
    memcpy(words, &raw, sizeof words);
#pragma unroll
    for (int i = 0; i < N; i++)
        x[i] = __uint_as_float(BYTES == 4 ? words[i] : i % 2 == 0 ? words[i / 2] << 16 : words[i / 2] & 0xFFFF0000u);
}

/* Keys that the tile has and a row of it does not take; all of them where there is no such row. */
static __device__ __forceinline__ int less_of(const tile *t, query q) {
    return q.there ? (int)(t->keys - (t->span.pos + q.token + 1)) : INT32_MAX / 2;
}

/* Keys of a block that end before a row does, where the last row ends `left` keys from the block's first on. The same
 * of keys that come before the first ones that rows take: each row begins as much before the last row as it ends. */
static __device__ __forceinline__ int taken_of(int left, int less) { return max(0, min(left - less, BLOCK)); }

/* Keys from `begin` on that come before the last row's first one; far below 0 where there are none. */
static __device__ __forceinline__ int before_of(const tile *t) {
    const int64_t before = t->keys - t->p->a.window - t->begin;
    return before < 0 ? -2 * LS_ATTENTION_SEGMENT : (int)before;
}

/* A row's running softmax, the same in all lanes that share it. */
typedef struct softmax_row {
    float m, l; /* of the segment */
    float total_m, total_l;
} softmax_row;

/* Chains of one block become weights of its keys [low, n); m and l follow. Returns the correction of what came
 * before. */
static __device__ __forceinline__ float take_block(softmax_row *s, float (*e)[ROWS_MAX], int row, int part, float scale,
                                                   int low, int n) {
    constexpr int KEYS_HELD = BLOCK / PARTS;
    const float before = s->m;
    float x[KEYS_HELD], m = before;
#pragma unroll
    for (int i = 0; i < KEYS_HELD; i++) {
        const float scaled = ls_mul(e[part + i * PARTS][row], scale);
        x[i] = part + i * PARTS >= low && part + i * PARTS < n ? scaled : -INFINITY;
        m = fmaxf(m, x[i]);
    }
#pragma unroll
    for (int half = PARTS / 2; half > 0; half /= 2) m = fmaxf(m, __shfl_xor_sync(LS_ALL_LANES, m, half * HELD));
#pragma unroll
    for (int i = 0; i < KEYS_HELD; i++) {
        const float weight = ls_exp(ls_sub(x[i], m));
        x[i] = part + i * PARTS >= low && part + i * PARTS < n ? weight : 0.0f;
        e[part + i * PARTS][row] = x[i];
    }
    ls_add_halves<KEYS_HELD>(x);
#pragma unroll
    for (int half = PARTS / 2; half > 0; half /= 2)
        x[0] = ls_add(x[0], __shfl_xor_sync(LS_ALL_LANES, x[0], half * HELD));
    const float correction = ls_exp(ls_sub(before, m));
    if (n <= low) return 1.0f;
    s->l = ls_fma(s->l, correction, x[0]);
    s->m = m;
    return correction;
}

/* The segment joins the row's total, if it is not the first and the row has keys of it; the next one starts afresh. */
static __device__ __forceinline__ void join_row(softmax_row *s, bool is_first, bool has_keys, float *from_total,
                                                float *from_segment) {
    if (is_first) {
        s->total_m = s->m;
        s->total_l = s->l;
    } else if (has_keys) {
        const float m = ls_max(s->m, s->total_m);
        *from_total = ls_exp(ls_sub(s->total_m, m));
        *from_segment = ls_exp(ls_sub(s->m, m));
        s->total_l = ls_fma(s->total_l, *from_total, ls_mul(s->l, *from_segment));
        s->total_m = m;
    }
    s->m = -INFINITY;
    s->l = 0.0f;
}

template <class S>
using accumulators = float[HELD][S::DIMS_HELD];

/* What some steps of chains take, on its way: four rows' weights, or queries, and N neighbouring elements a step. */
template <int BYTES, int STEPS, int N>
struct operands {
    float4 rows[STEPS];
    typename ls_piece<N * BYTES>::type elements[STEPS];
};

template <int BYTES, int STEPS, int N>
static __device__ __forceinline__ void load(operands<BYTES, STEPS, N> *o, const float *rows, const uint8_t *elements,
                                            int64_t element_bytes) {
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
        o->rows[i] = *(const float4 *)(rows + i * ROWS_MAX);
        o->elements[i] = *(const typename ls_piece<N * BYTES>::type *)(elements + i * element_bytes);
    }
}

/* x[r][n] = fma(rows[step][r], elements[step][n], x[r][n]); row r goes on for taken[r] of the steps, if it is given. */
template <int BYTES, int STEPS, int N>
static __device__ __forceinline__ void add(float (&x)[HELD][N], const operands<BYTES, STEPS, N> *o, const int *taken) {
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
        const float of_row[HELD] = {o->rows[i].x, o->rows[i].y, o->rows[i].z, o->rows[i].w};
        float y[N];
        widen<BYTES>(y, o->elements[i]);
#pragma unroll
        for (int r = 0; r < HELD; r++)
#pragma unroll
            for (int n = 0; n < N; n++)
                if (taken == NULL || i < taken[r]) x[r][n] = ls_fma(of_row[r], y[n], x[r][n]);
    }
}

/* The same for AHEAD * groups steps of all rows, some of which are loaded while those before them are added. */
template <int BYTES, int N>
static __device__ __forceinline__ void add_groups(float (&x)[HELD][N], const float *rows, const uint8_t *elements,
                                                  int64_t element_bytes, int groups) {
    operands<BYTES, AHEAD, N> even, odd;
    if (groups == 0) return;
    load(&even, rows, elements, element_bytes);
#pragma unroll 1
    for (int g = 1; g < groups; g += 2) {
        const int64_t next = g + 1 < groups ? g + 1 : 0; /* 0: of no use */
        load(&odd, rows + (int64_t)g * (AHEAD * ROWS_MAX), elements + (int64_t)g * (AHEAD * element_bytes),
             element_bytes);
        add(x, &even, NULL);
        load(&even, rows + next * (AHEAD * ROWS_MAX), elements + next * (AHEAD * element_bytes), element_bytes);
        add(x, &odd, NULL);
    }
    if (groups % 2 == 1) add(x, &even, NULL);
}

/* The same for keys [begin, end), of which some rows take none. */
template <class S>
static __device__ __forceinline__ void add_some_values(accumulators<S> &acc, const float *e, const uint8_t *values,
                                                       int64_t value_bytes, const int (&low)[HELD],
                                                       const int (&n)[HELD], int begin, int end) {
#pragma unroll 1
    for (int j = begin; j < end; j++) {
        int taken[HELD];
        operands<S::BYTES, 1, S::DIMS_HELD> one;
#pragma unroll
        for (int r = 0; r < HELD; r++) taken[r] = j < low[r] ? 0 : n[r] - j;
        load(&one, e + j * ROWS_MAX, values + j * value_bytes, value_bytes);
        add(acc, &one, taken);
    }
}

static __device__ __forceinline__ int least_of(const int (&x)[HELD]) { return min(min(x[0], x[1]), min(x[2], x[3])); }
static __device__ __forceinline__ int most_of(const int (&x)[HELD]) { return max(max(x[0], x[1]), max(x[2], x[3])); }

/* acc[r][d] = chain_j fma(e[j], v[j][d]) goes on over a block's keys, of which row r takes [low[r], n[r]). */
template <class S>
static __device__ __forceinline__ void add_values(accumulators<S> &acc, const float *e, const uint8_t *values,
                                                  int64_t value_bytes, const int (&low)[HELD], const int (&n)[HELD]) {
    /* All rows take [from, to), whole groups of it at a time. */
    const int from = most_of(low), most = most_of(n), groups = max(0, least_of(n) - from) / AHEAD;
    add_some_values<S>(acc, e, values, value_bytes, low, n, least_of(low), min(from, most));
    add_groups<S::BYTES>(acc, e + from * ROWS_MAX, values + from * value_bytes, value_bytes, groups);
    add_some_values<S>(acc, e, values, value_bytes, low, n, from + groups * AHEAD, most);
}

template <class S>
static __device__ __forceinline__ void load_queries(const tile *t, typename S::memory *m, int row) {
    const ls_attention_args *a = &t->p->a;
    int64_t from[HELD];
    bool there[HELD];
#pragma unroll
    for (int r = 0; r < HELD; r++) {
        const query q = query_of(t, row + r);
        there[r] = q.there;
        from[r] = (t->span.row + q.token) * a->q_stride + (t->kv_head * t->p->group + q.head) * a->head_dim;
    }
    for (int d = threadIdx.x % LS_WARP; d < a->head_dim; d += LS_WARP) {
        float x[HELD];
#pragma unroll
        for (int r = 0; r < HELD; r++) x[r] = there[r] ? ls_load_one<S::TYPE>(a->q, from[r] + d) : 0.0f;
        *(float4 *)&m->q[d][row] = make_float4(x[0], x[1], x[2], x[3]);
    }
}

/* A warp's rows of a tile. */
template <class S>
static __device__ __forceinline__ void attend(const tile *t, typename S::memory *m, uint32_t *turn) {
    const ls_attention_args *a = &t->p->a;
    const int lane = threadIdx.x % LS_WARP, row = threadIdx.x / LS_WARP * HELD;
    /* Of scores: neighbouring keys; of weights: a row, and keys that are PARTS apart. */
    const int key = lane * HELD, my_row = row + lane % HELD, part = lane / HELD;
    const int dims = (int)a->head_dim, dim = lane * S::DIMS_HELD;
    const uint8_t *keys = m->keys + (a->head_dim + 1) * (key / PAGE * PAGE * S::BYTES) + key % PAGE * S::BYTES;
    const uint8_t *values = m->values + dim * S::BYTES;
    const int64_t value_bytes = a->head_dim * S::BYTES;
    const uint32_t keys_there = ls_shared_address(&m->keys_there), values_there = ls_shared_address(&m->values_there);
    const uint32_t keys_done = ls_shared_address(&m->keys_done), values_done = ls_shared_address(&m->values_done);
    accumulators<S> total, acc;
    softmax_row s = {-INFINITY, 0.0f, 0.0f, 0.0f};
    const int my_less = less_of(t, query_of(t, my_row)), before = S::WINDOW ? before_of(t) : 0;
    const int64_t begin = S::WINDOW ? t->begin : 0;
    int less[HELD];
#pragma unroll
    for (int r = 0; r < HELD; r++) {
        less[r] = less_of(t, query_of(t, row + r));
#pragma unroll
        for (int d = 0; d < S::DIMS_HELD; d++) total[r][d] = acc[r][d] = 0.0f;
    }
    load_queries<S>(t, m, row);
    __syncwarp();
#pragma unroll 1
    for (int64_t first = begin; first < t->keys; first += KEYS, ++*turn) {
        const int64_t left = t->keys - first, from_start = first % LS_ATTENTION_SEGMENT, passed = first - begin;
        /* is_first: of the tile, and so of its rows, but for those whose window begins in the segment behind. */
        const bool ends = ls_segment_ends(first + KEYS, t->keys);
        const bool is_first = S::WINDOW ? passed <= from_start : first == from_start;
        /* As far as it matters: a row of the tile takes fewer keys than another by less than the tile's rows, and its
         * keys begin in the first KEYS of the tile or the next. */
        const int near = left < 2 * KEYS ? (int)left : 2 * KEYS, of_segment = (int)from_start + near;
        const int ahead = before - (int)(passed < 2 * LS_ATTENTION_SEGMENT ? passed : 2 * LS_ATTENTION_SEGMENT);
        const int begins = ahead + (int)from_start; /* as many keys of the segment come before the last row's first */
        float score[HELD][HELD] = {};
        ls_barrier_wait(keys_there, *turn % 2);
        add_groups<S::BYTES>(score, &m->q[0][row], keys, PAGE * S::BYTES, dims / AHEAD);
        ls_barrier_arrive(keys_done);
        __syncwarp(); /* all lanes are done with the weights before */
#pragma unroll
        for (int i = 0; i < HELD; i++)
            *(float4 *)&m->e[key + i][row] = make_float4(score[0][i], score[1][i], score[2][i], score[3][i]);
        __syncwarp();
#pragma unroll
        for (int b = 0; b < BLOCKS; b++) {
            const float correction =
                take_block(&s, m->e + b * BLOCK, my_row, part, a->scale,
                           S::WINDOW ? taken_of(ahead - b * BLOCK, my_less) : 0, taken_of(near - b * BLOCK, my_less));
            if (part == 0) m->correction[b][my_row] = correction;
        }
        if (ends) {
            float from_total = 0.0f, from_segment = 0.0f;
            join_row(&s, is_first || (S::WINDOW && begins >= my_less), of_segment > my_less, &from_total,
                     &from_segment);
            if (part == 0) {
                m->from_total[my_row] = from_total;
                m->from_segment[my_row] = from_segment;
                m->l[my_row] = s.total_l;
            }
        }
        __syncwarp();
        ls_barrier_wait(values_there, *turn % 2);
#pragma unroll
        for (int b = 0; b < BLOCKS; b++) {
            float correction[HELD];
            int low[HELD], n[HELD];
            if (near <= b * BLOCK) break;
            ls_load_four(correction, &m->correction[b][row]);
#pragma unroll
            for (int r = 0; r < HELD; r++) {
                low[r] = S::WINDOW ? taken_of(ahead - b * BLOCK, less[r]) : 0;
                n[r] = taken_of(near - b * BLOCK, less[r]);
#pragma unroll
                for (int d = 0; d < S::DIMS_HELD; d++) acc[r][d] = ls_mul(acc[r][d], correction[r]);
            }
            add_values<S>(acc, &m->e[b * BLOCK][row], values + b * BLOCK * value_bytes, value_bytes, low, n);
        }
        ls_barrier_arrive(values_done);
        if (!ends) continue;
#pragma unroll
        for (int r = 0; r < HELD; r++)
#pragma unroll
            for (int d = 0; d < S::DIMS_HELD; d++) {
                if (is_first || (S::WINDOW && begins >= less[r]))
                    total[r][d] = acc[r][d];
                else if (of_segment > less[r])
                    total[r][d] =
                        ls_fma(total[r][d], m->from_total[row + r], ls_mul(acc[r][d], m->from_segment[row + r]));
                acc[r][d] = 0.0f;
            }
    }
#pragma unroll
    for (int r = 0; r < HELD; r++) {
        const query q = query_of(t, row + r);
        const int64_t to = (t->span.row + q.token) * a->out_stride + (t->kv_head * t->p->group + q.head) * a->head_dim;
        if (!q.there) continue;
#pragma unroll
        for (int d = 0; d < S::DIMS_HELD; d++)
            if (dim + d < dims) ls_store_one<S::TYPE>(a->out, to + dim + d, ls_div(total[r][d], m->l[row + r]));
    }
    __syncwarp(); /* queries, weights and sums are free for the next tile */
}

template <class S>
static __global__ void __launch_bounds__(THREADS_MAX, 2) token_kernel(const __grid_constant__ token_params p) {
    extern __shared__ __align__(128) uint8_t dynamic[];
    typename S::memory *m = (typename S::memory *)dynamic;
    const int warps = p.rows / HELD;
    const bool fetches = (int)threadIdx.x >= warps * LS_WARP;
    const int64_t items = gridDim.x / p.slices, item = blockIdx.x % items;
    uint32_t turn = 0;
    if (threadIdx.x == 0) {
        ls_barrier_init(ls_shared_address(&m->keys_there), PAGES);
        ls_barrier_init(ls_shared_address(&m->values_there), PAGES);
        ls_barrier_init(ls_shared_address(&m->keys_done), LS_WARP * warps);
        ls_barrier_init(ls_shared_address(&m->values_done), LS_WARP * warps);
        ls_barrier_init_done();
    }
    __syncthreads();
    ls_cuda_begin();
    if (p.fault->code != LS_FAULT_NONE) return;
    tile t = {.p = &p,
              .span = p.a.spans[item / p.a.n_kv_heads],
              .kv_head = item % p.a.n_kv_heads,
              .first_query = blockIdx.x / items * p.rows,
              .n_queries = 0,
              .begin = 0,
              .keys = 0};
    if (t.span.slot < 0) return;
    t.n_queries = t.span.n_rows * p.group;
    for (; t.first_query < t.n_queries; t.first_query += p.slices * p.rows) {
        const int64_t left = t.n_queries - t.first_query;
        t.begin = ls_attention_first(t.span.pos + query_of(&t, 0).token, p.a.window) / KEYS * KEYS;
        t.keys = t.span.pos + query_of(&t, (int)(left < p.rows ? left : p.rows) - 1).token + 1;
        if (fetches)
            fetch<S>(&t, m, &turn);
        else
            attend<S>(&t, m, &turn);
    }
}

/* ---- the host's side ---- */

typedef struct token_kernel_of {
    const void *kernel;
    int64_t shared_bytes;
} token_kernel_of;

template <class S>
static token_kernel_of made(void) {
    static_assert(sizeof(typename S::memory) <= LS_HOPPER_SHARED_MAX, "a tile fits a multiprocessor");
    return token_kernel_of{(const void *)token_kernel<S>, (int64_t)sizeof(typename S::memory)};
}

template <int TYPE, bool WINDOW>
static token_kernel_of pick_dims(int64_t head_dim) {
    return head_dim <= 64 ? made<token_shape<TYPE, 64, WINDOW>>() : made<token_shape<TYPE, 128, WINDOW>>();
}

template <int TYPE>
static token_kernel_of pick(const ls_attention_args *a) {
    return a->window > 0 ? pick_dims<TYPE, true>(a->head_dim) : pick_dims<TYPE, false>(a->head_dim);
}

/* Rows of a tile: as many of a KV head's queries as there is room for where there are blocks enough, else fewer. */
static int64_t tile_rows(int64_t items, int64_t group) {
    const int64_t least = (group - 1) / ROWS_MAX + 1, most = (group - 1) / HELD + 1;
    const int64_t wanted = items < BLOCKS_WANTED ? BLOCKS_WANTED / items : 1;
    const int64_t tiles = wanted < least ? least : wanted < most ? wanted : most;
    return ((group - 1) / tiles / HELD + 1) * HELD;
}

ls_status ls_attention_tokens(const ls_exec *exec, const ls_attention_args *a, const ls_fault *fault, bool *taken,
                              ls_error *err) {
    const int64_t elem = ls_dtype_bytes(a->dtype), items = ls_launch_blocks(a->n_spans, a->n_kv_heads, 1);
    token_params p = {*a, fault, a->n_heads / a->n_kv_heads, 0, 0};
    bool hopper;
    *taken = false;
    LS_CUDA_TRY(ls_is_hopper(&hopper, "attention", err));
    if (!hopper || a->page_tokens != PAGE || a->head_dim > 128 || a->head_dim % AHEAD != 0 || p.group > INT32_MAX / 2 ||
        (uintptr_t)a->pages.base % 16 != 0 || a->pages.stride % 16 != 0)
        return LS_OK;
    *taken = true;
    p.rows = (int32_t)tile_rows(items, p.group);
    p.slices = (p.group - 1) / p.rows + 1;
    const token_kernel_of k = a->dtype == LS_F32 ? pick<LS_F32>(a) : pick<LS_BF16>(a);
    const ls_index index[] = {
        {LS_WIDTH_I64, {{{"row", a->rows}, {"q stride", a->q_stride}, {"element", elem}}}},
        {LS_WIDTH_I64, {{{"row", a->rows}, {"out stride", a->out_stride}, {"element", elem}}}},
        {LS_WIDTH_I64, {{{"page", a->pages.n_entries}, {"page stride in bytes", a->pages.stride}}}},
        {LS_WIDTH_I64,
         {{{"2 KV heads", 2 * a->n_kv_heads}, {"head dim", a->head_dim}, {"page tokens", PAGE}, {"element", elem}}}},
        {LS_WIDTH_I64, {{{"table entry", a->n_tables}, {"bytes", 4}}}},
        {LS_WIDTH_I64, {{{"row", a->rows}, {"heads of a KV head", p.group}}}}};
    const int64_t blocks = ls_launch_blocks(items, p.slices, 1);
    const bool alone = blocks <= BLOCKS_WANTED && k.shared_bytes < SHARED_ALONE;
    const ls_launch launch = {"attention",
                              {blocks, 1, 1},
                              (p.rows / HELD + 1) * LS_WARP,
                              alone ? SHARED_ALONE : k.shared_bytes,
                              index,
                              (int64_t)(sizeof index / sizeof index[0])};
    return ls_cuda_launch_within(exec, &launch, LS_HOPPER_SHARED_MAX, k.kernel, &p, err);
}
