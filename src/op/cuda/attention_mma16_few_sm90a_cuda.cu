/* Attention of the profile mma16 where a span has few queries: tokens that are decoded. Compiled for sm_90a alone.
 *
 * What bounds it are the bytes of keys and values, so a block is there to keep copies on their way. One warp fetches
 * the pages of a block of 128 keys into a ring of stages, keys and values by turns, each page's part of a KV head in
 * one piece: 4 KB at 128 dimensions. Four warps compute, by mma.sync, for up to 16 queries of a span and a KV head. A
 * warp makes the scores of 32 of the keys, and adds values in a quarter of the dimensions. Shared memory takes maxima
 * and weights between them. The next tile's pages are on their way while the last one ends.
 *
 * The kernel ahead of this one has waited for all before it. It stores the call's own keys and values, so this one
 * reads spans, tables, queries and older keys at once, and waits where the first new keys are to be fetched, and
 * before it writes.
 *
 * Or the kernel ahead is a product, and this one makes queries, keys and values of what that gives (op/rope.h). One
 * more warp makes a tile's queries while the tile before is at work, and stores the new keys and values of the item in
 * their page, where the fetching warp finds them. Nobody else reads these: an item is a block's alone. */
#include "op/cuda/attention_mma16_rows_cuda.h"
#include "op/cuda/check_cuda.h"

#define WARP 32
#define PAGE 16 /* tokens */
#define PAGES (BLOCK / PAGE)
#define TILE FEW_QUERIES
#define WARPS 4 /* that compute */
#define KEYS (BLOCK / WARPS)
#define THREADS(makes) (WARP * (WARPS + 1 + (makes)))
/* Spans of a block's first items, which it looks up while memory is still idle: where copies keep that busy, one word
 * takes as long as a block of keys. */
#define SPANS 32
#define UNDER_WAY (64 * 1024) /* bytes of a multiprocessor's copies */
/* Elements from a row of weights to the next: eight rows lie in banks of their own. */
#define WEIGHTS_PITCH (BLOCK + 8)

/* DIMS: room for head_dim. RESIDENT blocks share a multiprocessor, and its shared memory. MAKES queries, new keys and
 * new values, as many lanes a head as op rope takes. */
template <int DIMS_, int RESIDENT_, bool MAKES_>
struct few_shape {
    static constexpr int DIMS = DIMS_, RESIDENT = RESIDENT_, STAGES = 768 / DIMS / RESIDENT;
    static constexpr bool MAKES = MAKES_;
    static constexpr int LANES = DIMS / RUN, HEADS = WARP / LANES; /* of a head; heads that are made together */
    static constexpr int STAGE_BYTES = BLOCK * DIMS * 2, PAGE_BYTES = PAGE * DIMS * 2;
    static constexpr int COLUMNS = DIMS / WARPS / 8;  /* eights of dimensions of a warp */
    static constexpr int AHEAD = DIMS <= 128 ? 1 : 0; /* steps whose operands are on their way beside products */
    struct memory {
        uint8_t stages[STAGES][STAGE_BYTES];
        __align__(16) uint16_t queries[2][TILE][DIMS]; /* of a tile and of the next */
        __align__(16) uint16_t weights[TILE][WEIGHTS_PITCH];
        float top[WARPS][TILE];
        uint64_t full[STAGES], empty[STAGES], queries_full[2], queries_empty[2];
        uint64_t stored[2]; /* an item's new keys and values, and those of the next */
        ls_span spans[SPANS];
    };
    static constexpr int64_t SHARED_BYTES = (int64_t)sizeof(memory) + 1024; /* to align */
};

/* ---- tiles ---- */

static __device__ __forceinline__ void set_tile(tile *t, uint32_t first_query) {
    const uint32_t group = t->p->group, left = t->n_queries - first_query;
    const uint32_t last = first_query + (left < TILE ? left : TILE) - 1;
    t->first_query = first_query;
    t->begin = ls_attention_first(t->span.pos + first_query / group, t->p->a.window) / BLOCK * BLOCK;
    t->keys = t->span.pos + last / group + 1;
}

/* The block's items are numbered from 0. */
static __device__ __forceinline__ int64_t item_of(int number) { return blockIdx.x + (int64_t)number * gridDim.x; }

static __device__ __forceinline__ ls_span span_of(const mma16_params *p, uint32_t item) {
    return p->a.spans[item / (uint32_t)p->a.n_kv_heads];
}

/* The first tile of the block's items from `number` on. *number: the item it is of; false: there is none. */
static __device__ __forceinline__ bool find_tile(const mma16_params *p, const ls_span *spans, int *number, tile *t) {
    for (; item_of(*number) < p->items; ++*number) {
        const int64_t item = item_of(*number);
        t->p = p;
        t->span = *number < SPANS ? spans[*number] : span_of(p, (uint32_t)item);
        t->kv_head = (uint32_t)item % (uint32_t)p->a.n_kv_heads;
        t->n_queries = t->span.slot >= 0 ? (uint32_t)(t->span.n_rows * p->group) : 0;
        if (t->n_queries == 0) continue;
        set_tile(t, 0);
        return true;
    }
    return false;
}

static __device__ __forceinline__ bool next_tile(const mma16_params *p, const ls_span *spans, int *number, tile *t) {
    if (t->n_queries - t->first_query <= TILE) {
        ++*number;
        return find_tile(p, spans, number, t);
    }
    set_tile(t, t->first_query + TILE);
    return true;
}

/* ---- the warp that fetches ---- */

/* Bytes of a lane's part of a stage or of queries, which may be none; every lane below `lanes` arrives. */
static __device__ __forceinline__ void arrive_with(uint32_t barrier, int bytes, int lanes) {
    if (bytes > 0)
        ls_barrier_expect(barrier, (uint32_t)bytes);
    else if (threadIdx.x % WARP < lanes)
        ls_barrier_arrive(barrier);
}

template <class S>
static __device__ __forceinline__ void fetch_queries(const tile *t, typename S::memory *m, int number) {
    const mma16_params *p = t->p;
    const int lane = threadIdx.x % WARP, which = number % 2, bytes = (int)p->a.head_dim * 2;
    const uint32_t full = ls_shared_address(&m->queries_full[which]);
    const bool there = lane < TILE && t->first_query + lane < t->n_queries;
    ls_barrier_wait(ls_shared_address(&m->queries_empty[which]), number / 2 % 2 ^ 1);
    arrive_with(full, there ? bytes : 0, TILE);
    if (there)
        ls_bulk_fetch(ls_shared_address(m->queries[which][lane]),
                      (const uint16_t *)p->a.q + query_at(t, lane, p->a.q_stride), (uint32_t)bytes, full);
}

/* The page of a lane in the block of keys from `first` on; -1 where there is none. */
static __device__ __forceinline__ int32_t page_of(const tile *t, int64_t first) {
    const int64_t page = first / PAGE + threadIdx.x % WARP;
    const bool there = threadIdx.x % WARP < PAGES && page * PAGE < t->keys;
    return there ? __ldg(&t->p->a.tables[t->span.table + page]) : -1;
}

/* No more of a multiprocessor is under way than keeps memory busy: behind it every other word waits. */
template <class S>
static __device__ __forceinline__ void wait_for_copies(const ring_place *r, uint32_t full) {
    constexpr int STAGE = S::STAGE_BYTES * S::RESIDENT, BEHIND = STAGE < UNDER_WAY ? UNDER_WAY / STAGE : 1;
    static_assert(BEHIND < S::STAGES, "a stage that is behind");
    const bool around = r->stage < BEHIND;
    ls_barrier_wait(full + 8 * (around ? r->stage - BEHIND + S::STAGES : r->stage - BEHIND),
                    around ? r->phase ^ 1 : r->phase);
}

/* Keys and values of a block: a lane has a page. What lies behind the tile's last page is not fetched. */
template <class S>
static __device__ __forceinline__ void fetch_block(const tile *t, int32_t page, typename S::memory *m, ring_place *r) {
    const mma16_params *p = t->p;
    const int lane = threadIdx.x % WARP, dims = (int)p->a.head_dim, chunks = (dims + 63) / 64;
    const uint32_t full = ls_shared_address(m->full), empty = ls_shared_address(m->empty);
    for (int values = 0; values < 2; values++) {
        const uint32_t to = ls_shared_address(m->stages[r->stage]), there = full + 8 * r->stage;
        ls_barrier_wait(empty + 8 * r->stage, r->phase ^ 1);
        wait_for_copies<S>(r, full);
        arrive_with(there, page < 0 ? 0 : values ? chunks * PAGE * 128 : dims * PAGE * 2, PAGES);
        if (page >= 0 && !values)
            ls_bulk_fetch(to + lane * S::PAGE_BYTES,
                          (const uint16_t *)ls_pool_at(&p->a.pages, page) + t->kv_head * dims * PAGE,
                          (uint32_t)(dims * PAGE * 2), there);
        if (page >= 0 && values)
            for (int c = 0; c < chunks; c++)
                ls_box_fetch4(&p->values, to + c * (BLOCK * 128) + lane * (PAGE * 128), there, 64 * c, 0,
                              (int32_t)t->kv_head, page);
        advance<S>(r);
    }
}

/* What was written before is there for copies from now on. */
static __device__ __forceinline__ void show_to_copies(void) { asm volatile("fence.proxy.async;" ::: "memory"); }

template <class S>
static __device__ __forceinline__ void fetch_all(const mma16_params *p, typename S::memory *m) {
    ring_place r = {0, 0, 0};
    tile t, next;
    int item = 0, n_items = 0;
    if (!find_tile(p, m->spans, &item, &t)) return;
    int64_t first = t.begin;
    int32_t page = page_of(&t, first);
    if (!S::MAKES) fetch_queries<S>(&t, m, r.tile);
    for (;;) {
        /* The next block's pages are looked up beside this one's copies. */
        const bool ends = first + BLOCK >= t.keys;
        next = t;
        const bool more = !ends || next_tile(p, m->spans, &item, &next);
        const int64_t next_first = ends ? next.begin : first + BLOCK;
        const int32_t next_page = more ? page_of(&next, next_first) : -1;
        if (first + BLOCK > t.span.pos) { /* the first new key, or behind it */
            ls_cuda_begin();
            if (S::MAKES) {
                ls_barrier_wait(ls_shared_address(&m->stored[n_items % 2]), n_items / 2 % 2);
                show_to_copies();
            }
        }
        fetch_block<S>(&t, page, m, &r);
        if (!more) return;
        if (ends && !S::MAKES) fetch_queries<S>(&next, m, ++r.tile);
        if (ends && next.first_query == 0) n_items++;
        t = next;
        first = next_first;
        page = next_page;
    }
}

/* ---- the warp that makes ---- */

/* A head that a group of lanes makes: a new key, a new value, or a query. */
typedef struct made_head {
    const ls_rope_part *part;
    int64_t row, head, column; /* of the call; of the part; where it begins in x */
    int token, query;          /* of the span; of the tile, -1: a key or a value */
    int32_t page;              /* of a key or a value */
    bool is_there, is_key;
} made_head;

/* Number i of a tile: first the keys, then the values of its item, where they are its first, then queries. */
static __device__ __forceinline__ made_head made_head_of(const tile *t, int i, int n_new, int n_queries) {
    const mma16_params *p = t->p;
    const ls_rope_part *part = p->heads.part;
    const bool is_key = i < n_new / 2, is_query = i >= n_new;
    made_head h;
    h.is_there = i < n_new + n_queries;
    h.is_key = is_key;
    h.query = is_query ? i - n_new : -1;
    if (is_query) {
        const uint32_t query = t->first_query + (h.is_there ? h.query : 0);
        h.token = (int)(query / p->group);
        h.head = t->kv_head * p->group + query % p->group;
        h.column = h.head;
        h.part = part;
    } else {
        h.token = is_key ? i : i - n_new / 2;
        h.head = t->kv_head;
        h.column = part[0].n_heads + (is_key ? 0 : part[1].n_heads) + h.head;
        h.part = part + (is_key ? 1 : 2);
    }
    h.row = t->span.row + h.token;
    h.column *= p->a.head_dim;
    h.page = is_query ? 0 : __ldg(&p->a.tables[t->span.table + (t->span.pos + h.token) / PAGE]);
    return h;
}

/* A lane's eight columns of a key or a value, in the page of its token. */
static __device__ __forceinline__ void store_new(const tile *t, const made_head *h, int64_t c,
                                                 const uint16_t (&y)[RUN]) {
    const mma16_params *p = t->p;
    const int64_t pos = t->span.pos + h->token, in_page = pos % PAGE, dims = p->a.head_dim;
    uint16_t *page = (uint16_t *)ls_pool_at(&p->a.pages, h->page);
    if (h->is_key) {
        uint16_t *keys = page + t->kv_head * dims * PAGE + in_page;
#pragma unroll
        for (int j = 0; j < RUN; j++) keys[(c + j) * PAGE] = y[j];
    } else
        *(uint4 *)(page + (p->a.n_kv_heads + t->kv_head) * dims * PAGE + in_page * dims + c) = *(const uint4 *)y;
}

/* Heads that a lane has in flight. */
#define ROUNDS 3

/* The queries are there first: nobody needs the new keys and values before all older ones went by, and it takes long
 * until copies see them. */
template <class S>
static __device__ __forceinline__ void make_tile(const tile *t, typename S::memory *m, int which, uint32_t stored) {
    const mma16_params *p = t->p;
    const ls_rope_args *a = &p->heads;
    const int lane = threadIdx.x % WARP, own = lane % S::LANES, group = lane / S::LANES;
    const int n_new = t->first_query == 0 ? 2 * (int)t->span.n_rows : 0;
    const uint32_t left = t->n_queries - t->first_query;
    const int n_queries = left < TILE ? (int)left : TILE;
    constexpr int64_t DIM = S::DIMS;
    const int64_t c = own * RUN;
    int64_t row = t->span.row + t->first_query / p->group;
    turning turns = turning_of<S::LANES, 1>(a->table, DIM / 2, false, true, row, own);
    for (int first = 0; first < n_new + n_queries; first += ROUNDS * S::HEADS) {
        made_head h[ROUNDS];
        float n[ROUNDS][1][RUN], norm[ROUNDS][1][RUN];
#pragma unroll
        for (int i = 0; i < ROUNDS; i++) {
            h[i] = made_head_of(t, first + i * S::HEADS + group, n_new, n_queries);
            load_norm<S::LANES, 1>(norm[i], h[i].part, own, DIM, true);
            load_head<S::LANES, 1>(n[i], a->x + h[i].row * a->x_stride + h[i].column,
                                   h[i].part->bias == NULL ? NULL : h[i].part->bias + h[i].head * DIM, own, DIM, true);
        }
#pragma unroll
        for (int i = 0; i < ROUNDS; i++) {
            __align__(16) uint16_t y[RUN];
            if (h[i].row != row) turns = turning_of<S::LANES, 1>(a->table, DIM / 2, false, true, row = h[i].row, own);
            turns.rotates = h[i].part->rotates;
            __syncwarp();
            turn_head<S::LANES, 1>(n[i], norm[i], h[i].part, &turns, own, DIM, a->eps, NULL);
#pragma unroll
            for (int j = 0; j < RUN; j++) y[j] = (uint16_t)ls_narrow_one<LS_BF16>(n[i][0][j]);
            if (!h[i].is_there) continue;
            if (h[i].query < 0)
                store_new(t, &h[i], c, y);
            else
                *(uint4 *)&m->queries[which][h[i].query][c] = *(const uint4 *)y;
        }
    }
    ls_barrier_arrive(ls_shared_address(&m->queries_full[which]));
    if (n_new == 0) return;
    show_to_copies();
    ls_barrier_arrive(stored);
}

/* Norms are on their way into the second-level cache, from memory: since a layer's last use all weights went by. */
static __device__ __forceinline__ void expect_norms(const ls_rope_args *a) {
    const int64_t at = (int64_t)threadIdx.x % WARP * 8; /* floats of a sector */
    for (int i = 0; i < 2; i++)
        if (a->part[i].norm != NULL && at < a->head_dim)
            asm volatile("prefetch.global.L2 [%0];" ::"l"(a->part[i].norm + at) : "memory");
}

template <class S>
static __device__ __forceinline__ void make_all(const mma16_params *p, typename S::memory *m) {
    tile t;
    int number = 0, n_items = 0, item = 0;
    bool more = find_tile(p, m->spans, &item, &t);
    expect_norms(&p->heads);
    if (S::RESIDENT == 1)
        ls_cuda_begin();
    else
        ls_cuda_wait_for_previous();
    for (; more; more = next_tile(p, m->spans, &item, &t), number++) {
        const int which = number % 2;
        ls_barrier_wait(ls_shared_address(&m->queries_empty[which]), number / 2 % 2 ^ 1);
        make_tile<S>(&t, m, which, ls_shared_address(&m->stored[n_items % 2]));
        if (t.n_queries - t.first_query <= TILE) n_items++;
    }
}

/* ---- the warps that compute ---- */

/* Four 8 x 8 matrices, lane i / 8 of rows for matrix i; transposed, a lane has two neighbours of a column. */
static __device__ __forceinline__ void get_matrices(uint32_t (&x)[4], uint32_t row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(row)
                 : "memory");
}
static __device__ __forceinline__ void get_transposed(uint32_t (&x)[4], uint32_t row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(row)
                 : "memory");
}

/* All warps that compute. */
static __device__ __forceinline__ void warps_sync(void) {
    asm volatile("bar.sync 1, %0;" ::"n"(WARP * WARPS) : "memory");
}

template <class S>
static __device__ __forceinline__ void done_with(typename S::memory *m, ring_place *r) {
    ls_barrier_arrive(ls_shared_address(&m->empty[r->stage]));
    advance<S>(r);
}

/* A tile's queries as left factors; rows from 8 on are +0 where there are none of them. Who makes queries is at most a
 * tile ahead of those that compute, and so of the warp that fetches: they give them back when the tile ends. */
template <class S>
static __device__ __forceinline__ void take_queries(uint32_t (&q)[S::DIMS / 16][4], const tile *t,
                                                    typename S::memory *m, int number, bool both) {
    const int lane = threadIdx.x % WARP, which = number % 2;
    ls_barrier_wait(ls_shared_address(&m->queries_full[which]), number / 2 % 2);
#pragma unroll
    for (int k = 0; k < S::DIMS / 16; k++) {
        if (16 * k < t->p->a.head_dim)
            get_matrices(q[k], ls_shared_address(&m->queries[which][lane % 16][16 * k + lane / 16 * 8]));
        if (!both) q[k][1] = q[k][3] = 0;
    }
    if (!S::MAKES) ls_barrier_arrive(ls_shared_address(&m->queries_empty[which]));
}

/* A step's sixteen dimensions of the warp's keys: of a page two pieces of eight keys in each of sixteen rows. */
template <class S>
static __device__ __forceinline__ void get_keys(uint32_t (&b)[KEYS / PAGE][4], uint32_t from, int k) {
#pragma unroll
    for (int page = 0; page < KEYS / PAGE; page++) get_transposed(b[page], from + page * S::PAGE_BYTES + k * (16 * 32));
}

/* Scores of the warp's keys of a block. */
template <class S>
static __device__ __forceinline__ void make_scores(float (&d)[KEYS / 8][4], const uint32_t (&q)[S::DIMS / 16][4],
                                                   uint32_t keys, int64_t dims, int warp) {
    const int lane = threadIdx.x % WARP;
    const uint32_t from = keys + warp * (KEYS / PAGE) * S::PAGE_BYTES + lane % 16 * 32 + lane / 16 * 16;
    uint32_t b[1 + S::AHEAD][KEYS / PAGE][4];
#pragma unroll
    for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) d[j][i] = 0.0f;
#pragma unroll
    for (int k = 0; k < S::DIMS / 16; k++) {
        if (16 * k >= dims) break;
        if (k == 0 || S::AHEAD == 0) get_keys<S>(b[k & S::AHEAD], from, k);
        if (S::AHEAD && k + 1 < S::DIMS / 16) get_keys<S>(b[k + 1 & S::AHEAD], from, k + 1);
#pragma unroll
        for (int j = 0; j < KEYS / 8; j++) {
            const uint32_t *two = &b[k & S::AHEAD][j / 2][j % 2 * 2];
            const uint32_t right[2] = {two[0], two[1]};
            ls_mma16(d[j], q[k], right);
        }
    }
}

/* The largest of the warp's scores in row HALF of a thread; those that the row does not take become -inf. */
template <int HALF>
static __device__ __forceinline__ float top_of(const row_state *s, float (&d)[KEYS / 8][4], int at, bool whole) {
    const int column = threadIdx.x % 4 * 2, low = s->first - at - column, high = s->keys - at - column;
    float top = -INFINITY;
#pragma unroll
    for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float *x = &d[j][2 * HALF + i];
            if (!whole && (8 * j + i < low || 8 * j + i >= high)) *x = -INFINITY;
            top = larger(top, *x);
        }
    top = larger(top, __shfl_xor_sync(LS_ALL_LANES, top, 1));
    return larger(top, __shfl_xor_sync(LS_ALL_LANES, top, 2));
}

/* The row's maximum over all warps; scores of row HALF become weights, for all warps. */
template <int HALF>
static __device__ __forceinline__ void put_weights(row_state *s, const float (&d)[KEYS / 8][4], const float *top,
                                                   uint16_t *to, float scale2, int at) {
    const bool any = s->first < at + BLOCK && s->keys > at;
    const float over = larger(larger(top[0], top[TILE]), larger(top[2 * TILE], top[3 * TILE]));
    const float m = any ? ls_attention_maximum(s->m, ls_mul(scale2, over)) : s->m;
    const float below = any ? -m : 0.0f; /* a row without any key yet has no m */
    s->weight = ls_exp2_bounded(ls_sub(s->m, m));
    s->m = m;
#pragma unroll
    for (int j = 0; j < KEYS / 8; j++)
        *(uint32_t *)(to + 8 * j) = pair_of(ls_exp2_lifted(ls_fma(d[j][2 * HALF], scale2, below)),
                                            ls_exp2_lifted(ls_fma(d[j][2 * HALF + 1], scale2, below)));
}

/* Rows of values from `from` to the end of its page become +0, in the warp's own dimensions. */
template <class S>
static __device__ __forceinline__ void clear_values(uint32_t values, int from, int warp) {
    for (int i = threadIdx.x % WARP; i < (PAGE - from % PAGE) * S::COLUMNS; i += WARP)
        put16(values + place8<BLOCK>(from + i / S::COLUMNS, warp * S::COLUMNS + i % S::COLUMNS),
              make_uint4(0, 0, 0, 0));
    show_writes();
    __syncwarp();
}

/* A step's sixteen keys: their weights, and their values in the warp's dimensions. */
template <class S>
static __device__ __forceinline__ void get_step(uint32_t (&e)[4], uint32_t (&b)[S::COLUMNS / 2][4], uint32_t weights,
                                                uint32_t values, int k, int warp) {
    const int lane = threadIdx.x % WARP;
    get_matrices(e, weights + k * 32);
#pragma unroll
    for (int c = 0; c < S::COLUMNS; c += 2)
        get_transposed(b[c / 2], values + place8<BLOCK>(16 * k + lane % 16, warp * S::COLUMNS + c + lane / 16));
}

/* acc goes on over weights * values in the warp's dimensions, and l over weights * 1. */
template <class S>
static __device__ __forceinline__ void add_values(float (&acc)[S::COLUMNS][4], float (&l)[4], uint32_t weights,
                                                  uint32_t values, int steps, int warp) {
    const uint32_t ones[2] = {0x3F803F80u, 0x3F803F80u};
    uint32_t e[1 + S::AHEAD][4], b[1 + S::AHEAD][S::COLUMNS / 2][4];
#pragma unroll
    for (int k = 0; k < STEPS; k++) {
        if (k >= steps) break;
        const int now = k & S::AHEAD, next = k + 1 & S::AHEAD;
        if (k == 0 || S::AHEAD == 0) get_step<S>(e[now], b[now], weights, values, k, warp);
        if (S::AHEAD && k + 1 < STEPS) get_step<S>(e[next], b[next], weights, values, k + 1, warp);
        ls_mma16(l, e[now], ones);
#pragma unroll
        for (int c = 0; c < S::COLUMNS; c++) {
            const uint32_t *two = &b[now][c / 2][c % 2 * 2];
            const uint32_t right[2] = {two[0], two[1]};
            ls_mma16(acc[c], e[now], right);
        }
    }
}

/* The segment joins the total. */
template <class S>
static __device__ __forceinline__ void join_segment(float (&total)[S::COLUMNS][4], float (&acc)[S::COLUMNS][4],
                                                    float (&l)[4], row_state (&s)[2]) {
    float of_total[2], of_segment[2];
    join_row(&s[0], l[0], &of_total[0], &of_segment[0]);
    join_row(&s[1], l[2], &of_total[1], &of_segment[1]);
#pragma unroll
    for (int c = 0; c < S::COLUMNS; c++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            total[c][i] = ls_fma(total[c][i], of_total[i / 2], ls_mul(acc[c][i], of_segment[i / 2]));
            acc[c][i] = 0.0f;
        }
#pragma unroll
    for (int i = 0; i < 4; i++) l[i] = 0.0f;
}

/* A row's outputs in the warp's dimensions: a lane has two neighbours of every eight. */
template <class S>
static __device__ __forceinline__ void store_row(const tile *t, const float (&total)[S::COLUMNS][4], row_state *s,
                                                 int half, int warp) {
    const int row = threadIdx.x % WARP / 4 + 8 * half, first = warp * S::COLUMNS * 8 + threadIdx.x % 4 * 2;
    const bool there = t->first_query + row < t->n_queries;
    const float inverse = finish_row(t, s, row, there && warp == 0);
    if (!there) return;
    uint16_t *out = (uint16_t *)t->p->a.out + query_at(t, row, t->p->a.out_stride);
#pragma unroll
    for (int c = 0; c < S::COLUMNS; c++)
        if (first + 8 * c < t->p->a.head_dim)
            *(uint32_t *)(out + first + 8 * c) =
                (uint32_t)ls_narrow_one<LS_BF16>(ls_fma(total[c][2 * half], inverse, 0.0f)) |
                (uint32_t)ls_narrow_one<LS_BF16>(ls_fma(total[c][2 * half + 1], inverse, 0.0f)) << 16;
}

template <class S>
static __device__ __forceinline__ void attend(const tile *t, typename S::memory *m, ring_place *r) {
    const mma16_params *p = t->p;
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, row = lane / 4;
    const int n_keys = (int)(t->keys - t->begin), in_segment = (int)(t->begin % LS_ATTENTION_SEGMENT);
    /* Between these every row takes every key. */
    const int whole_from = (int)(ls_attention_first(t->keys - 1, p->a.window) - t->begin);
    const int whole_to = (int)(t->span.pos + t->first_query / p->group + 1 - t->begin);
    const bool both = t->n_queries - t->first_query > 8;
    const uint32_t full = ls_shared_address(m->full);
    const uint32_t weights = ls_shared_address(&m->weights[lane % 16][lane / 16 * 8]);
    uint32_t q[S::DIMS / 16][4];
    float acc[S::COLUMNS][4], total[S::COLUMNS][4], l[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    row_state s[2];
    row_begin(&s[0], t, row);
    row_begin(&s[1], t, row + 8);
#pragma unroll
    for (int c = 0; c < S::COLUMNS; c++)
#pragma unroll
        for (int i = 0; i < 4; i++) acc[c][i] = total[c][i] = 0.0f;
    const int number = r->tile++;
    take_queries<S>(q, t, m, number, both);
#pragma unroll 1
    for (int at = 0; at < n_keys; at += BLOCK) {
        float d[KEYS / 8][4];
        const int mine = at + warp * KEYS, left = n_keys - at;
        const bool whole = at >= whole_from && at + BLOCK <= whole_to;
        if (at > 0 && (in_segment + at) % LS_ATTENTION_SEGMENT == 0) join_segment<S>(total, acc, l, s);
        ls_barrier_wait(full + 8 * r->stage, r->phase);
        make_scores<S>(d, q, ls_shared_address(m->stages[r->stage]), p->a.head_dim, warp);
        done_with<S>(m, r);
        const float top = top_of<0>(&s[0], d, mine, whole), other = both ? top_of<1>(&s[1], d, mine, whole) : 0.0f;
        if (lane % 4 == 0) {
            m->top[warp][row] = top;
            m->top[warp][row + 8] = other;
        }
        warps_sync();
        put_weights<0>(&s[0], d, &m->top[0][row], &m->weights[row][warp * KEYS + lane % 4 * 2], p->scale2, at);
        if (both)
            put_weights<1>(&s[1], d, &m->top[0][row + 8], &m->weights[row + 8][warp * KEYS + lane % 4 * 2], p->scale2,
                           at);
        warps_sync();
        /* Most blocks raise no maximum, and 1 would change nothing. */
        if (__any_sync(LS_ALL_LANES, s[0].weight != 1.0f || s[1].weight != 1.0f)) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
#pragma unroll
                for (int c = 0; c < S::COLUMNS; c++) acc[c][i] = ls_mul(acc[c][i], s[i / 2].weight);
                l[i] = ls_mul(l[i], s[i / 2].weight);
            }
        }
        const uint32_t values = ls_shared_address(m->stages[r->stage]);
        ls_barrier_wait(full + 8 * r->stage, r->phase);
        if (left < BLOCK && left % PAGE != 0) clear_values<S>(values, left, warp);
        add_values<S>(acc, l, weights, values, left < BLOCK ? (left + 15) / 16 : STEPS, warp);
        done_with<S>(m, r);
    }
    join_segment<S>(total, acc, l, s);
    ls_cuda_wait_for_previous();
    store_row<S>(t, total, &s[0], 0, warp);
    if (both) store_row<S>(t, total, &s[1], 1, warp);
    if (S::MAKES) ls_barrier_arrive(ls_shared_address(&m->queries_empty[number % 2]));
}

/* ---- the kernel ---- */

template <class S>
static __global__ void __launch_bounds__(THREADS(S::MAKES), S::RESIDENT)
    few_kernel(const __grid_constant__ mma16_params p) {
    extern __shared__ uint8_t dynamic[];
    typename S::memory *m = (typename S::memory *)(((uintptr_t)dynamic + 1023) & ~(uintptr_t)1023);
    if (threadIdx.x == 0) {
        for (int s = 0; s < S::STAGES; s++) {
            ls_barrier_init(ls_shared_address(&m->full[s]), PAGES);
            ls_barrier_init(ls_shared_address(&m->empty[s]), WARP * WARPS);
        }
        for (int i = 0; i < 2; i++) {
            ls_barrier_init(ls_shared_address(&m->queries_full[i]), S::MAKES ? WARP : TILE);
            ls_barrier_init(ls_shared_address(&m->stored[i]), WARP);
            ls_barrier_init(ls_shared_address(&m->queries_empty[i]), WARP * WARPS);
        }
        ls_barrier_init_done();
    }
    /* Weights of rows that a tile has not are of no use, but they are read. */
    for (int i = threadIdx.x; i < (int)(sizeof m->weights / 4); i += THREADS(S::MAKES)) ((uint32_t *)m->weights)[i] = 0;
    const uint64_t mine = min((uint64_t)item_of(threadIdx.x), (uint64_t)p.items);
    if (threadIdx.x < SPANS && mine < p.items) m->spans[threadIdx.x] = span_of(&p, (uint32_t)mine);
    __syncthreads();
    /* The same in all threads of a warp, and the compiler is to know it. */
    const int warp = __shfl_sync(LS_ALL_LANES, (int)threadIdx.x / WARP, 0);
    if (p.fault->code == LS_FAULT_NONE && warp == WARPS) {
        fetch_all<S>(&p, m);
    } else if (S::MAKES && p.fault->code == LS_FAULT_NONE && warp > WARPS) {
        make_all<S>(&p, m);
    } else if (p.fault->code == LS_FAULT_NONE) {
        ring_place place = {0, 0, 0};
        tile t;
        int item = 0;
        for (bool more = find_tile(&p, m->spans, &item, &t); more; more = next_tile(&p, m->spans, &item, &t))
            attend<S>(&t, m, &place);
    }
    ls_cuda_begin();
}

template <class S>
static mma16_launch launch_of(void) {
    static_assert(S::SHARED_BYTES * S::RESIDENT <= LS_HOPPER_SHARED_MAX, "blocks fit a multiprocessor");
    return mma16_launch{(const void *)few_kernel<S>, TILE, THREADS(S::MAKES), S::SHARED_BYTES, S::RESIDENT};
}

template <bool MAKES>
static mma16_launch pick(int64_t head_dim, bool alone) {
    if (head_dim <= 64) return alone ? launch_of<few_shape<64, 1, MAKES>>() : launch_of<few_shape<64, 2, MAKES>>();
    if (head_dim <= 128) return alone ? launch_of<few_shape<128, 1, MAKES>>() : launch_of<few_shape<128, 2, MAKES>>();
    return launch_of<few_shape<256, 1, MAKES>>();
}

mma16_launch ls_attention_mma16_few(int64_t head_dim, bool alone, bool makes) {
    return makes ? pick<true>(head_dim, alone) : pick<false>(head_dim, alone);
}
