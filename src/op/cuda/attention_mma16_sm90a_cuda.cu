/* Attention of the profile mma16 on Hopper's tensor cores: prompts and chunks, and of single tokens those that
 * attention_mma16_few_sm90a_cuda.cu does not take. Compiled for sm_90a alone.
 *
 * The queries of a span and a KV head are its tokens times the query heads that share that KV head, token by token. A
 * block takes 64 of them for each of its warpgroups but the first, which copies keys and values from their pages into a
 * ring of stages, keys and values of a block of 128 by turns. The others make scores, weigh them in registers and
 * multiply values, each for its own 64 rows: while one weighs, another multiplies. Sums of weights are products, too,
 * with ones. Sums of segments meet in shared memory. */
#include "op/cuda/attention_mma16_rows_cuda.h"
#include "op/cuda/check_cuda.h"

/* GROUPS warpgroups with 64 queries each; DIMS: room for head_dim. */
template <int DIMS_, int GROUPS_, int STAGES_>
struct mma16_shape {
    static constexpr int DIMS = DIMS_, GROUPS = GROUPS_, STAGES = STAGES_, THREADS = WARPGROUP * (1 + GROUPS);
    static constexpr int ROWS = GROUP_ROWS * GROUPS;
    /* Two blocks of one warpgroup of up to 128 dimensions share a multiprocessor. */
    static constexpr int RESIDENT = GROUPS == 1 && DIMS <= 128 ? 2 : 1;
    static constexpr bool MOVES_REGISTERS = DIMS <= 128;
    /* Products of 64 dimensions are too short to wait for. */
    static constexpr bool TURNS = GROUPS == 2 && DIMS > 64;
    static constexpr int REGISTERS = GROUPS == 2 ? 224 : 200; /* of a thread that multiplies, where they move */
    static constexpr int STAGE_BYTES = BLOCK * DIMS * 2, QUERY_BYTES = GROUP_ROWS * DIMS * 2;
    struct memory {
        uint8_t stages[STAGES][STAGE_BYTES];
        uint8_t queries[GROUPS][QUERY_BYTES];
        float4 total[GROUPS][DIMS / 8][WARPGROUP]; /* of the segments before: sums over values of each thread */
        uint64_t full[STAGES], empty[STAGES], queries_full, queries_empty;
    };
    static constexpr int64_t SHARED_BYTES = (int64_t)sizeof(memory) + 1024; /* to align */
};

/* The next tile of this block from number *next on, of spans, KV heads and slices; false if there is none. The last
 * tiles of all spans come first: they have most keys, and the chip stays full to the end. All lanes of a warp look. */
template <class S>
static __device__ __forceinline__ bool next_tile(const mma16_params *p, uint32_t *next, tile *t) {
    const uint32_t kv_heads = (uint32_t)p->a.n_kv_heads, items = p->items, count = p->count, by = gridDim.x;
    for (; *next < count; *next += 32 * by) {
        const uint32_t number = *next + threadIdx.x % 32 * by;
        const int64_t first = (int64_t)(p->slices - 1 - number / items) * S::ROWS;
        bool there = number < count;
        if (there) {
            const ls_span *span = &p->a.spans[number % items / kv_heads];
            there = span->slot >= 0 && first < span->n_rows * p->group;
        }
        const uint32_t found = __ballot_sync(LS_ALL_LANES, there);
        if (found == 0) continue;
        *next += (__ffs(found) - 1) * by;
        break;
    }
    if (*next >= count) return false;
    const uint32_t item = *next % items;
    t->p = p;
    t->span = p->a.spans[item / kv_heads];
    t->kv_head = item % kv_heads;
    t->first_query = (uint32_t)((int64_t)(p->slices - 1 - *next / items) * S::ROWS);
    t->n_queries = (uint32_t)(t->span.n_rows * p->group);
    const uint32_t left = t->n_queries - t->first_query;
    const uint32_t last = t->first_query + (left < S::ROWS ? left : S::ROWS) - 1;
    t->begin = ls_attention_first(t->span.pos + t->first_query / p->group, p->a.window) / BLOCK * BLOCK;
    t->keys = t->span.pos + last / p->group + 1;
    *next += by;
    return true;
}

/* ---- copiers ---- */

static __device__ __forceinline__ const uint16_t *page_of(const tile *t, int64_t pos) {
    const mma16_params *p = t->p;
    return (const uint16_t *)ls_pool_at(&p->a.pages, __ldg(&p->a.tables[t->span.table + (pos >> p->page_shift)]));
}

/* Where a key of a dimension lies: 16 keys side by side at all dimensions, swizzled, behind the 16 before. */
template <class S>
static __device__ __forceinline__ uint32_t key_place(int dim, int key) {
    return (uint32_t)(key / 16 * (S::DIMS * 32) + dim * 32 + ((key / 8 % 2 ^ dim / 4 % 2) << 4) + key % 8 * 2);
}

/* Descriptor of all keys of a block at the k-th 16 dimensions. */
template <class S>
static __device__ __forceinline__ uint64_t keys_operand(uint32_t address, int k) {
    return ls_wgmma_descriptor(address + k * 512, S::DIMS * 32, 256, LS_WG_SWIZZLE_32);
}

/* Pages of at least eight tokens, dimensions a multiple of eight, all aligned. Keys of a page are [dim][token]. */
template <class S>
static __device__ __forceinline__ void copy_keys(const tile *t, uint32_t to, int64_t first) {
    const mma16_params *p = t->p;
    const int units_shift = p->page_shift - 3, dims = (int)p->a.head_dim, thread = threadIdx.x;
    const int each = dims << units_shift; /* pieces of a page */
    for (int base = 0; base < BLOCK; base += 1 << p->page_shift) {
        const bool there = first + base < t->keys;
        const uint16_t *keys = there ? page_of(t, first + base) + ((t->kv_head * dims) << p->page_shift)
                                     : (const uint16_t *)p->a.pages.base;
#pragma unroll 2
        for (int i = thread; i < each; i += WARPGROUP) {
            const int dim = i >> units_shift, unit = (base >> 3) + (i & ((1 << units_shift) - 1));
            copy8(to + key_place<S>(dim, 8 * unit), keys + 8 * i, there);
        }
    }
}

/* Values of a page are [token][dim]. Those behind the tile's last key are +0, whatever the page holds. */
template <class S>
static __device__ __forceinline__ void copy_values(const tile *t, uint32_t to, int64_t first) {
    const mma16_params *p = t->p;
    const int dims = (int)p->a.head_dim, units = dims / 8, thread = threadIdx.x, each = units << p->page_shift;
    const int n_keys = within_block(t->keys, first);
    for (int base = 0; base < BLOCK; base += 1 << p->page_shift) {
        const bool there = base < n_keys;
        const uint16_t *values =
            there ? page_of(t, first + base) + (((p->a.n_kv_heads + t->kv_head) * dims) << p->page_shift)
                  : (const uint16_t *)p->a.pages.base;
#pragma unroll 2
        for (int i = thread; i < each; i += WARPGROUP) {
            const int key = base + i / units;
            copy8(to + place8<BLOCK>(key, i % units), values + 8 * i, key < n_keys);
        }
    }
}

/* The same for whatever pages there are, an element at a time. */
template <class S>
static __device__ __forceinline__ void put_keys(const tile *t, uint32_t to, int64_t first) {
    const mma16_params *p = t->p;
    const int n_keys = within_block(t->keys, first), dims = (int)p->a.head_dim;
    for (int i = threadIdx.x; i < dims * BLOCK; i += WARPGROUP) {
        const int dim = i / BLOCK, key = i % BLOCK;
        uint16_t x = 0;
        if (key < n_keys)
            x = page_of(
                t,
                first + key)[((t->kv_head * dims + dim) << p->page_shift) + ((first + key) & (p->a.page_tokens - 1))];
        put1(to + key_place<S>(dim, key), x);
    }
}

template <class S>
static __device__ __forceinline__ void put_values(const tile *t, uint32_t to, int64_t first) {
    const mma16_params *p = t->p;
    const int n_keys = within_block(t->keys, first), dims = (int)p->a.head_dim;
    for (int i = threadIdx.x; i < S::DIMS * BLOCK; i += WARPGROUP) {
        const int key = i / S::DIMS, dim = i % S::DIMS;
        uint16_t x = 0;
        if (dim < dims && key < n_keys)
            x = page_of(t, first + key)[(((p->a.n_kv_heads + t->kv_head) * dims) << p->page_shift) +
                                        ((first + key) & (p->a.page_tokens - 1)) * dims + dim];
        put1(to + place1<BLOCK>(key, dim), x);
    }
}

/* A tile's queries, while what was there before is still at work. Rows behind the last query of the span are those of
 * others, of which nothing comes. */
template <class S>
static __device__ __forceinline__ void fetch_queries(const tile *t, typename S::memory *m, int parity) {
    const mma16_params *p = t->p;
    const uint32_t full = ls_shared_address(&m->queries_full), to = ls_shared_address(m->queries);
    const int chunks = ((int)p->a.head_dim + 63) / 64, tokens = GROUP_ROWS / (int)p->group;
    const int token = (int)t->span.row + (int)(t->first_query / p->group), head = (int)(t->kv_head * p->group);
    ls_barrier_wait(ls_shared_address(&m->queries_empty), parity ^ 1);
    ls_barrier_expect(full, (uint32_t)(S::GROUPS * chunks * GROUP_ROWS * 128));
    for (int g = 0; g < S::GROUPS; g++)
        for (int c = 0; c < chunks; c++)
            ls_box_fetch3(&p->queries, to + g * S::QUERY_BYTES + c * GROUP_ROWS * 128, full, 64 * c, head,
                          token + g * tokens);
}

/* By boxes: a page of 16 tokens each. A warp has two pages of a block, and one of its threads asks for them. What lies
 * behind the tile's last key is not fetched, or is what the page holds. */
template <class S>
static __device__ __forceinline__ void fetch_tile(const tile *t, typename S::memory *m, ring_place *r) {
    constexpr int PAGES = BLOCK / 16, WARPS = WARPGROUP / 32;
    const mma16_params *p = t->p;
    const int warp = threadIdx.x / 32, dims = (int)p->a.head_dim, chunks = (dims + 63) / 64;
    const uint32_t full = ls_shared_address(m->full), empty = ls_shared_address(m->empty);
    const int32_t *table = p->a.tables + t->span.table, head = (int32_t)t->kv_head;
    const int32_t first_dim = (int32_t)(t->kv_head * p->a.head_dim);
    const int64_t n_pages = (t->keys + 15) / 16;
    int32_t id[PAGES / WARPS], next[PAGES / WARPS];
#pragma unroll
    for (int i = 0; i < PAGES / WARPS; i++) {
        const int64_t page = t->begin / 16 + warp + i * WARPS;
        next[i] = page < n_pages ? __ldg(table + page) : -1;
    }
#pragma unroll 1
    for (int64_t first = t->begin; first < t->keys; first += BLOCK) {
        int there = 0;
#pragma unroll
        for (int i = 0; i < PAGES / WARPS; i++) {
            const int64_t page = first / 16 + PAGES + warp + i * WARPS;
            id[i] = next[i];
            there += id[i] >= 0;
            next[i] = page < n_pages ? __ldg(table + page) : -1; /* on its way beside the copies */
        }
        const uint32_t keys = ls_shared_address(m->stages[r->stage]), keys_full = full + 8 * r->stage;
        ls_barrier_wait(empty + 8 * r->stage, r->phase ^ 1);
        ls_barrier_expect(keys_full, (uint32_t)(there * dims * 32));
#pragma unroll
        for (int i = 0; i < PAGES / WARPS; i++)
            if (id[i] >= 0)
                ls_box_fetch3(&p->keys, keys + (warp + i * WARPS) * (S::DIMS * 32), keys_full, 0, first_dim, id[i]);
        advance<S>(r);
        const uint32_t values = ls_shared_address(m->stages[r->stage]), values_full = full + 8 * r->stage;
        ls_barrier_wait(empty + 8 * r->stage, r->phase ^ 1);
        ls_barrier_expect(values_full, (uint32_t)(there * chunks * 2048));
#pragma unroll
        for (int i = 0; i < PAGES / WARPS; i++)
            for (int c = 0; c < chunks; c++)
                if (id[i] >= 0)
                    ls_box_fetch4(&p->values, values + c * (BLOCK * 128) + (warp + i * WARPS) * 2048, values_full,
                                  64 * c, 0, head, id[i]);
        advance<S>(r);
    }
}

template <class S>
static __device__ __forceinline__ void copy_tile(const tile *t, typename S::memory *m, ring_place *r, int *old,
                                                 int *waiting) {
    constexpr int BEHIND = S::STAGES - 1; /* stages that are on their way when one is handed over */
    const uint32_t full = ls_shared_address(m->full), empty = ls_shared_address(m->empty);
    for (int64_t first = t->begin; first < t->keys; first += BLOCK)
#pragma unroll 1
        for (int values = 0; values < 2; values++) {
            const uint32_t to = ls_shared_address(m->stages[r->stage]);
            ls_barrier_wait(empty + 8 * r->stage, r->phase ^ 1);
            if (t->p->wide_pages) {
                if (values)
                    copy_values<S>(t, to, first);
                else
                    copy_keys<S>(t, to, first);
            } else {
                if (values)
                    put_values<S>(t, to, first);
                else
                    put_keys<S>(t, to, first);
            }
            copies_done();
            advance<S>(r);
            if (++*waiting < BEHIND) continue;
            hand_over<BEHIND - 1>(full + 8 * *old);
            if (++*old == S::STAGES) *old = 0;
            --*waiting;
        }
}

/* ---- multipliers ---- */

/* Scores of the thread's columns of row HALF become exponentials; m and the weight of what was before follow. BEGINS,
 * ENDS: the row may take no keys before its first, or behind its last. */
template <int HALF, bool BEGINS, bool ENDS>
static __device__ __forceinline__ void take_scores(row_state *s, float (&d)[BLOCK / 2], float scale2, int at) {
    const int column = threadIdx.x % 4 * 2, low = BEGINS ? s->first - at : 0, high = ENDS ? s->keys - at : BLOCK;
    const bool any = low < BLOCK && high > 0 && low < high;
    float top = -INFINITY;
#pragma unroll
    for (int j = 0; j < BLOCK / 8; j++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float *x = &d[4 * j + 2 * HALF + i];
            if (ENDS && 8 * j + i >= high - column) *x = -INFINITY;
            if (BEGINS && 8 * j + i < low - column) *x = -INFINITY;
            top = larger(top, *x);
        }
    top = larger(top, __shfl_xor_sync(LS_ALL_LANES, top, 1));
    top = larger(top, __shfl_xor_sync(LS_ALL_LANES, top, 2));
    const float m = any ? ls_attention_maximum(s->m, ls_mul(scale2, top)) : s->m;
    const float below = any ? -m : 0.0f; /* a row without any key yet has no m */
    s->weight = ls_exp2_bounded(ls_sub(s->m, m));
    s->m = m;
#pragma unroll
    for (int j = 0; j < BLOCK / 8; j++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float *x = &d[4 * j + 2 * HALF + i];
            *x = ls_exp2_lifted(ls_fma(*x, scale2, below)); /* +0 of -inf */
        }
}

/* A warpgroup's own queries; rows and dimensions that are not there are +0. */
template <class S>
static __device__ __forceinline__ void load_queries(const tile *t, uint32_t to, int first_row) {
    const mma16_params *p = t->p;
    const int dims = (int)p->a.head_dim;
    constexpr int UNITS = S::DIMS / 8;
#pragma unroll 4
    for (int i = threadIdx.x % WARPGROUP; i < GROUP_ROWS * UNITS; i += WARPGROUP) {
        const int row = i / UNITS, unit = i % UNITS;
        const bool there = t->first_query + first_row + row < t->n_queries && 8 * unit < dims;
        uint4 x = make_uint4(0, 0, 0, 0);
        if (there) {
            const uint16_t *from = (const uint16_t *)p->a.q + query_at(t, first_row + row, p->a.q_stride) + 8 * unit;
            if (p->wide_queries && 8 * unit + 8 <= dims) {
                x = *(const uint4 *)from;
            } else {
                uint16_t part[8];
#pragma unroll
                for (int e = 0; e < 8; e++) part[e] = 8 * unit + e < dims ? from[e] : 0;
                memcpy(&x, part, sizeof x);
            }
        }
        put16(to + place8<GROUP_ROWS>(row, unit), x);
    }
    show_writes();
}

/* A row's outputs: each thread has two neighbours of every eight. The four threads of a row exchange what they have of
 * 32, so that each has eight neighbours. */
template <class S>
static __device__ __forceinline__ void store_row(const tile *t, const float (&acc)[S::DIMS / 2], int half, int row,
                                                 float inverse, bool there) {
    const mma16_params *p = t->p;
    const int quarter = threadIdx.x % 4, dims = (int)p->a.head_dim;
    uint16_t *out = there ? (uint16_t *)p->a.out + query_at(t, row, p->a.out_stride) : NULL;
#pragma unroll
    for (int c = 0; c < S::DIMS; c += 32) {
        uint32_t w[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int at = 4 * (c / 8 + j) + 2 * half;
            w[j] = (uint32_t)ls_narrow_one<LS_BF16>(ls_fma(acc[at], inverse, 0.0f)) |
                   (uint32_t)ls_narrow_one<LS_BF16>(ls_fma(acc[at + 1], inverse, 0.0f)) << 16;
        }
        if (!p->wide_out) {
#pragma unroll
            for (int j = 0; j < 4; j++)
#pragma unroll
                for (int i = 0; i < 2; i++)
                    if (there && c + 8 * j + 2 * quarter + i < dims)
                        out[c + 8 * j + 2 * quarter + i] = (uint16_t)(w[j] >> 16 * i);
            continue;
        }
#pragma unroll
        for (int step = 1; step <= 2; step *= 2)
#pragma unroll
            for (int k = 0; k < 2; k++) {
                const int a = step == 1 ? 2 * k : k, b = a + step;
                const bool upper = (quarter & step) != 0;
                const uint32_t got = __shfl_xor_sync(LS_ALL_LANES, upper ? w[a] : w[b], step);
                w[a] = upper ? got : w[a];
                w[b] = upper ? w[b] : got;
            }
        if (there && c + 8 * quarter < dims) *(uint4 *)(out + c + 8 * quarter) = make_uint4(w[0], w[1], w[2], w[3]);
    }
}

/* Rows of values from `from` on become +0. Each warpgroup does it for itself: it is the same that they write. */
template <class S>
static __device__ __forceinline__ void clear_values(uint32_t values, int from, int group) {
    constexpr int UNITS = S::DIMS / 8;
    for (int i = from * UNITS + threadIdx.x % WARPGROUP; i < BLOCK * UNITS; i += WARPGROUP)
        put16(values + place8<BLOCK>(i / UNITS, i % UNITS), make_uint4(0, 0, 0, 0));
    show_writes();
    warpgroup_sync(1 + group);
}

/* The warpgroups take turns with the tensor cores: while one multiplies, the other weighs. */
template <class S>
static __device__ __forceinline__ void take_turn(int group) {
    if (S::TURNS) asm volatile("bar.sync %0, 256;" ::"r"(4 + group) : "memory");
}
template <class S>
static __device__ __forceinline__ void give_turn(int group) {
    if (S::TURNS) asm volatile("bar.arrive %0, 256;" ::"r"(5 - group) : "memory");
}

/* Scores of the block of keys in a stage are asked for. */
template <class S>
static __device__ __forceinline__ void ask_scores(float (&d)[BLOCK / 2], typename S::memory *m, int stage,
                                                  uint32_t queries) {
    const uint32_t keys = ls_shared_address(m->stages[stage]);
    ls_wgmma<BLOCK>::template ss_first<0, 1>(d, operand<0, GROUP_ROWS, S::DIMS>(queries, 0, 0),
                                             keys_operand<S>(keys, 0));
#pragma unroll
    for (int k = 1; k < S::DIMS / 16; k++)
        ls_wgmma<BLOCK>::template ss<0, 1>(d, operand<0, GROUP_ROWS, S::DIMS>(queries, 0, k), keys_operand<S>(keys, k));
    ls_wgmma_commit();
}

/* acc goes on over weights * values of the block in a stage. */
template <class S>
static __device__ __forceinline__ void ask_values(float (&acc)[S::DIMS / 2], const uint32_t (&weights)[STEPS][4],
                                                  typename S::memory *m, int stage) {
    const uint32_t values = ls_shared_address(m->stages[stage]);
#pragma unroll
    for (int k = 0; k < STEPS; k++)
        ls_wgmma<S::DIMS>::template rs<1>(acc, weights[k], operand<1, S::DIMS, BLOCK>(values, 0, k));
    ls_wgmma_commit();
}

/* l goes on over weights * 1: a product of the warp alone, which waits for no one. */
static __device__ __forceinline__ void add_weights(float (&l)[4], const uint32_t (&weights)[STEPS][4]) {
    const uint32_t ones[2] = {0x3F803F80u, 0x3F803F80u};
#pragma unroll
    for (int k = 0; k < STEPS; k++) ls_mma16(l, weights[k], ones);
}

template <class S>
static __device__ __forceinline__ void done_with(typename S::memory *m, ring_place *r) {
    if (threadIdx.x % WARPGROUP == 0) ls_barrier_arrive(ls_shared_address(&m->empty[r->stage]));
    advance<S>(r);
}

static __device__ __forceinline__ void get_four(float (&x)[4], uint32_t from) {
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3])
                 : "r"(from)
                 : "memory");
}
static __device__ __forceinline__ void put_four(uint32_t to, const float *x) {
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to), "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3])
                 : "memory");
}

/* The segment joins the total; acc is the total where it is the last. */
template <class S>
static __device__ __forceinline__ void join_segment(float (&acc)[S::DIMS / 2], float (&l)[4], row_state (&s)[2],
                                                    typename S::memory *m, bool is_first, bool is_last, int group) {
    const int thread = threadIdx.x % WARPGROUP;
    float of_total[2], of_segment[2];
    join_row(&s[0], l[0], &of_total[0], &of_segment[0]);
    join_row(&s[1], l[2], &of_total[1], &of_segment[1]);
#pragma unroll
    for (int i = 0; i < 4; i++) l[i] = 0.0f;
#pragma unroll
    for (int i = 0; i < S::DIMS / 2; i += 4) {
        const uint32_t total = ls_shared_address(&m->total[group][i / 4][thread]);
        float before[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        if (!is_first) get_four(before, total);
#pragma unroll
        for (int j = 0; j < 4; j++)
            acc[i + j] = ls_fma(before[j], of_total[j / 2], ls_mul(acc[i + j], of_segment[j / 2]));
        if (!is_last) put_four(total, &acc[i]);
    }
    if (is_last) return;
#pragma unroll
    for (int i = 0; i < S::DIMS / 2; i++) acc[i] = 0.0f;
}

/* Scores become weights. Between the last two, every row of the tile takes every key. */
static __device__ __forceinline__ void weigh(uint32_t (&weights)[STEPS][4], row_state (&s)[2], float (&d)[BLOCK / 2],
                                             float scale2, int at, bool weighs, int whole_from, int whole_to) {
    if (!weighs) {
#pragma unroll
        for (int i = 0; i < BLOCK / 2; i++) d[i] = 0.0f;
    } else if (at < whole_from) {
        take_scores<0, true, true>(&s[0], d, scale2, at);
        take_scores<1, true, true>(&s[1], d, scale2, at);
    } else if (at + BLOCK > whole_to) {
        take_scores<0, false, true>(&s[0], d, scale2, at);
        take_scores<1, false, true>(&s[1], d, scale2, at);
    } else {
        take_scores<0, false, false>(&s[0], d, scale2, at);
        take_scores<1, false, false>(&s[1], d, scale2, at);
    }
#pragma unroll
    for (int k = 0; k < STEPS; k++) left_of(weights[k], d, k);
}

/* A warpgroup's rows of a tile. Values of a block are added in the turn in which the next scores are made. */
template <class S>
static __device__ __forceinline__ void attend(const tile *t, typename S::memory *m, ring_place *r, int group) {
    const mma16_params *p = t->p;
    const uint32_t full = ls_shared_address(m->full), queries = ls_shared_address(m->queries[group]);
    const int thread = threadIdx.x % WARPGROUP, lane = threadIdx.x % 32;
    const int row = thread / 32 * 16 + lane / 4, first_row = group * GROUP_ROWS;
    /* Counted from the tile's begin. */
    const int n_keys = (int)(t->keys - t->begin), in_segment = (int)(t->begin % LS_ATTENTION_SEGMENT);
    const int whole_from = (int)(ls_attention_first(t->keys - 1, p->a.window) - t->begin);
    const int whole_to = (int)(t->span.pos + t->first_query / p->group + 1 - t->begin);
    /* Whether any row of the warp is there: the weights of others are of no use. */
    const bool weighs = t->first_query + first_row + thread / 32 * 16 < t->n_queries;
    row_state s[2];
    float acc[S::DIMS / 2], l[4] = {0.0f, 0.0f, 0.0f, 0.0f}; /* l: of the first row twice, and of the second */
    uint32_t weights[STEPS][4];
    row_begin(&s[0], t, first_row + row);
    row_begin(&s[1], t, first_row + row + 8);
#pragma unroll
    for (int i = 0; i < S::DIMS / 2; i++) acc[i] = 0.0f;
    if (p->boxed_queries) {
        ls_barrier_wait(ls_shared_address(&m->queries_full), r->tile);
    } else {
        load_queries<S>(t, queries, first_row);
        warpgroup_sync(1 + group);
    }
    {
        float d[BLOCK / 2];
        ls_barrier_wait(full + 8 * r->stage, r->phase);
        take_turn<S>(group);
        ls_wgmma_any(d);
        ls_wgmma_fence();
        ask_scores<S>(d, m, r->stage, queries);
        give_turn<S>(group);
        ls_wgmma_wait<0>();
        ls_wgmma_hold(d);
        done_with<S>(m, r);
        weigh(weights, s, d, p->scale2, 0, weighs, whole_from, whole_to);
        add_weights(l, weights);
    }
#pragma unroll 1
    for (int at = BLOCK; at < n_keys; at += BLOCK) {
        float d[BLOCK / 2];
        ring_place keys = *r;
        advance<S>(&keys);
        ls_barrier_wait(full + 8 * r->stage, r->phase);
        ls_barrier_wait(full + 8 * keys.stage, keys.phase);
        take_turn<S>(group);
        ls_wgmma_any(d);
        ls_wgmma_hold(acc);
        ls_wgmma_fence();
        ask_values<S>(acc, weights, m, r->stage);
        ask_scores<S>(d, m, keys.stage, queries);
        give_turn<S>(group);
        ls_wgmma_wait<0>();
        ls_wgmma_hold(acc);
        ls_wgmma_hold(d);
        done_with<S>(m, r);
        done_with<S>(m, r);
        if ((in_segment + at) % LS_ATTENTION_SEGMENT == 0)
            join_segment<S>(acc, l, s, m, in_segment + at <= LS_ATTENTION_SEGMENT, false, group);
        weigh(weights, s, d, p->scale2, at, weighs, whole_from, whole_to);
        /* Most blocks raise no maximum, and 1 would change nothing. */
        if (__any_sync(LS_ALL_LANES, s[0].weight != 1.0f || s[1].weight != 1.0f)) {
#pragma unroll
            for (int i = 0; i < S::DIMS / 2; i++) acc[i] = ls_mul(acc[i], s[i / 2 % 2].weight);
#pragma unroll
            for (int i = 0; i < 4; i++) l[i] = ls_mul(l[i], s[i / 2].weight);
        }
        add_weights(l, weights);
    }
    if (thread == 0) ls_barrier_arrive(ls_shared_address(&m->queries_empty));
    r->tile ^= 1;
    ls_barrier_wait(full + 8 * r->stage, r->phase);
    if (p->boxed && n_keys % BLOCK != 0) clear_values<S>(ls_shared_address(m->stages[r->stage]), n_keys % BLOCK, group);
    take_turn<S>(group);
    ls_wgmma_hold(acc);
    ls_wgmma_fence();
    ask_values<S>(acc, weights, m, r->stage);
    give_turn<S>(group);
    ls_wgmma_wait<0>();
    ls_wgmma_hold(acc);
    done_with<S>(m, r);
    join_segment<S>(acc, l, s, m, in_segment + n_keys <= LS_ATTENTION_SEGMENT, true, group);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int of_row = first_row + row + 8 * half;
        const bool there = t->first_query + of_row < t->n_queries;
        const float inverse = finish_row(t, &s[half], of_row, there);
        store_row<S>(t, acc, half, of_row, inverse, there);
    }
}

/* ---- the kernel ---- */

template <class S>
static __global__ void __launch_bounds__(S::THREADS, S::RESIDENT) mma16_kernel(const __grid_constant__ mma16_params p) {
    extern __shared__ uint8_t dynamic[];
    typename S::memory *m = (typename S::memory *)(((uintptr_t)dynamic + 1023) & ~(uintptr_t)1023);
    if (threadIdx.x == 0) {
        for (int s = 0; s < S::STAGES; s++) {
            ls_barrier_init(ls_shared_address(&m->full[s]), p.boxed ? WARPGROUP / 32 : WARPGROUP);
            ls_barrier_init(ls_shared_address(&m->empty[s]), S::GROUPS);
        }
        ls_barrier_init(ls_shared_address(&m->queries_full), 1);
        ls_barrier_init(ls_shared_address(&m->queries_empty), S::GROUPS);
        ls_barrier_init_done();
    }
    /* Dimensions that there are not are +0 in the stages of keys, which are every other one. */
    if (p.a.head_dim < S::DIMS) {
        for (int64_t i = threadIdx.x; i < S::STAGES * S::STAGE_BYTES / 16; i += S::THREADS)
            ((uint4 *)m->stages)[i] = make_uint4(0, 0, 0, 0);
        show_writes();
    }
    __syncthreads();
    ls_cuda_begin();
    if (p.fault->code != LS_FAULT_NONE) return;
    ring_place place = {0, 0, 0};
    uint32_t next = blockIdx.x;
    tile t;
    /* The same in all threads of a warp, and the compiler is to know it. */
    const int role = __shfl_sync(LS_ALL_LANES, (int)threadIdx.x / WARPGROUP, 0);
    if (role == 0) {
        int old = 0, waiting = 0;
        if (S::MOVES_REGISTERS) asm volatile("setmaxnreg.dec.sync.aligned.u32 56;");
        while (next_tile<S>(&p, &next, &t)) {
            if (!p.boxed)
                copy_tile<S>(&t, m, &place, &old, &waiting);
            else if (threadIdx.x % 32 == 0) {
                if (p.boxed_queries && threadIdx.x == 0) fetch_queries<S>(&t, m, place.tile);
                place.tile ^= 1;
                fetch_tile<S>(&t, m, &place);
            }
            __syncwarp();
        }
        if (p.boxed) return;
        asm volatile("cp.async.wait_all;" ::: "memory");
        for (; waiting > 0; waiting--) {
            hand_over<0>(ls_shared_address(&m->full[old]));
            if (++old == S::STAGES) old = 0;
        }
    } else {
        if (S::MOVES_REGISTERS) asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(S::REGISTERS));
        if (role == 2) give_turn<S>(1);
        while (next_tile<S>(&p, &next, &t)) attend<S>(&t, m, &place, role - 1);
    }
}

/* ---- the host's side ---- */

template <class S>
static mma16_launch launch_of(void) {
    static_assert(S::SHARED_BYTES <= LS_HOPPER_SHARED_MAX, "a tile fits a multiprocessor");
    return mma16_launch{(const void *)mma16_kernel<S>, S::ROWS, S::THREADS, S::SHARED_BYTES, S::RESIDENT};
}

/* Few queries of a span leave most rows of large tiles without one; two blocks of small ones share a multiprocessor. */
static mma16_launch pick(int64_t head_dim, int64_t queries) {
    const bool few = queries <= GROUP_ROWS;
    if (head_dim <= 64) return few ? launch_of<mma16_shape<64, 1, 4>>() : launch_of<mma16_shape<64, 2, 4>>();
    if (head_dim <= 128) return few ? launch_of<mma16_shape<128, 1, 2>>() : launch_of<mma16_shape<128, 2, 4>>();
    return launch_of<mma16_shape<256, 1, 2>>();
}

/* Queries of a span that are to be expected. */
static int64_t expected_queries(const ls_attention_args *a) {
    return ls_launch_blocks(a->rows <= a->n_spans ? 1 : a->rows, a->n_heads / a->n_kv_heads, 1);
}

static bool is_aligned(const ls_attention_args *a) {
    return (uintptr_t)a->pages.base % 16 == 0 && a->pages.stride % 16 == 0 && a->head_dim % 8 == 0;
}

static bool is_boxed(const ls_attention_args *a) {
    return is_aligned(a) && a->page_tokens == 16 && a->n_kv_heads * a->head_dim < INT32_MAX &&
           a->pages.n_entries < INT32_MAX && a->pages.stride < (int64_t)1 << 37;
}

static bool has_wide_out(const ls_attention_args *a) {
    return (uintptr_t)a->out % 16 == 0 && a->out_stride % 8 == 0 && a->head_dim % 8 == 0;
}

bool ls_attention_mma16_makes(const ls_attention_args *a, const ls_rope_args *heads) {
    const ls_rope_args turning = without_table(heads);
    const rope_ways ways = ways_of(&turning, true);
    return ways.vector && ways.by_lanes && a->profile == LS_PROFILE_MMA16 && a->spans_checked &&
           expected_queries(a) <= FEW_QUERIES && is_boxed(a) && has_wide_out(a) && a->head_dim % 16 == 0;
}

ls_status ls_attention_mma16(const ls_exec *exec, const ls_attention_args *a, const ls_rope_args *heads,
                             const ls_fault *fault, ls_error *err) {
    const int64_t group = a->n_heads / a->n_kv_heads;
    const int64_t queries = ls_launch_blocks(a->rows, group, 1); /* of a span, at the most */
    int processors;
    const int64_t expected = expected_queries(a);
    const bool wide_queries = (uintptr_t)a->q % 16 == 0 && a->q_stride % 8 == 0 && a->head_dim % 8 == 0;
    const bool wide_out = has_wide_out(a), aligned = is_aligned(a), boxed = is_boxed(a), makes = heads != NULL;
    const bool few = makes || (expected <= FEW_QUERIES && boxed && wide_queries && wide_out && a->head_dim % 16 == 0);
    LS_CUDA_TRY(ls_processors(&processors, "attention", err));
    const mma16_launch k = few ? ls_attention_mma16_few(a->head_dim, a->n_spans * a->n_kv_heads <= processors, makes)
                               : pick(a->head_dim, expected);
    const int64_t slices = few ? 1 : (queries - 1) / k.rows + 1;
    const int64_t tiles = ls_launch_blocks(a->n_spans, a->n_kv_heads, slices);
    bool hopper;
    /* Tiles past the last one by as many as the blocks' lanes look ahead fit, too. */
    if (queries > INT32_MAX / 2 || tiles > INT32_MAX / 2)
        return LS_FAIL(err, LS_ERR_UNSUPPORTED, "attention: profile mma16: %lld rows of %lld heads in %lld spans",
                       (long long)a->rows, (long long)a->n_heads, (long long)a->n_spans);
    if (ls_launch_blocks(a->n_tables, a->page_tokens, 1) > INT32_MAX / 2)
        return LS_FAIL(err, LS_ERR_UNSUPPORTED, "attention: profile mma16: %lld pages of %lld tokens in a call",
                       (long long)a->n_tables, (long long)a->page_tokens);
    LS_CUDA_TRY(ls_is_hopper(&hopper, "attention", err));
    if (!hopper)
        return LS_FAIL(err, LS_ERR_UNSUPPORTED, "attention: profile mma16 is built for devices of sm_90 alone");
    mma16_params p = {.a = *a,
                      .fault = fault,
                      .group = (uint32_t)group,
                      .items = (uint32_t)(a->n_spans * a->n_kv_heads),
                      .count = (uint32_t)tiles,
                      .slices = (uint32_t)slices,
                      .page_shift = __builtin_ctzll((unsigned long long)a->page_tokens),
                      .scale2 = ls_attention_scale2(a->scale),
                      .boxed = boxed,
                      .wide_pages = aligned && a->page_tokens >= 8,
                      .wide_queries = wide_queries,
                      .wide_out = wide_out,
                      .boxed_queries = boxed && !few && GROUP_ROWS % group == 0 && a->rows < INT32_MAX &&
                                       ls_box_possible(a->q, LS_BF16, a->q_stride, a->n_heads, a->rows),
                      .keys = {},
                      .values = {},
                      .queries = {},
                      .heads = {}};
    if (makes) p.heads = *heads;
    const ls_index index[] = {
        {LS_WIDTH_I64, {{{"row", a->rows}, {"q stride", a->q_stride}, {"element", 2}}}},
        {LS_WIDTH_I64, {{{"row", a->rows}, {"out stride", a->out_stride}, {"element", 2}}}},
        {LS_WIDTH_I64, {{{"row", a->rows}, {"log_sum stride", a->log_sum_stride}, {"element", 4}}}},
        {LS_WIDTH_I64, {{{"page", a->pages.n_entries}, {"page stride in bytes", a->pages.stride}}}},
        {LS_WIDTH_I64,
         {{{"2 KV heads", 2 * a->n_kv_heads},
           {"head dim", a->head_dim},
           {"page tokens", a->page_tokens},
           {"element", 2}}}},
        {LS_WIDTH_I64, {{{"table entry", a->n_tables}, {"bytes", 4}}}},
        {LS_WIDTH_I64, {{{"row", a->rows}, {"heads of a KV head", group}}}}};
    const ls_launch launch = {"attention", {tiles < processors * k.resident ? tiles : processors * k.resident, 1, 1},
                              k.threads,   k.shared_bytes,
                              index,       (int64_t)(sizeof index / sizeof index[0])};
    if (boxed) LS_CUDA_TRY(ls_page_maps(&p.keys, &p.values, "attention", &a->pages, a->n_kv_heads, a->head_dim, err));
    if (p.boxed_queries) {
        const ls_box_matrix queries = {a->q, a->n_heads * a->head_dim, a->rows, a->q_stride};
        LS_CUDA_TRY(
            ls_heads_map(&p.queries, "attention", &queries, a->head_dim, (int)group, GROUP_ROWS / (int)group, err));
    }
    return ls_cuda_launch_within(exec, &launch, LS_HOPPER_SHARED_MAX, k.kernel, &p, err);
}
