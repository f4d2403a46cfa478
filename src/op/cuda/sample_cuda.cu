/* Choosing a token on the GPU: a block a row.
 *
 * The kept set of a row is a prefix of its entries in the contract's order, so one number says what it is: the order of
 * the last entry kept. top_k finds it digit by digit from counts, without a sort. top_p sorts, but only what can change
 * its chain. A row with neither is read once, or twice with min_p. */
#include "base/rng.h"
#include "op/cuda/cuda_ops.h"
#include "op/cuda/vector_cuda.h"
#include "op/sample.h"
#include "op/sample_math.h"

#define THREADS 1024
#define WARPS (THREADS / 32)
#define BATCH 8 /* loads of a thread on their way at once */

/* Digits of an order, and the warps that count them or scan their counts. */
#define DIGIT_BITS 8
#define DIGITS (1 << DIGIT_BITS)
#define DIGIT_WARPS (DIGITS / 32)

/* Terms of the chain of top_p that lie in shared memory at a time. */
#define TILE (WARPS * DIGITS)
#define STEP 16 /* of them in the registers of the lane that adds */

/* Entries with z - max below this have terms below 2^-26. The chain's first term is 1, so its sums are at least 1 and
 * half an ulp of them is at least 2^-24: such a term changes no sum, wherever it stands. */
#define TAIL (-18.5f)

typedef struct room {
    union {
        uint32_t counts[WARPS][DIGITS]; /* by warp and digit; then places */
        float4 terms[TILE / 4];
    } u;
    uint32_t digit_runs[DIGIT_WARPS], digit, before;
    int64_t warp_kept[WARPS];
    float warp_max[WARPS], sum;
    uint64_t last;
    bool whole;
} room;

/* A row of z and what its steps have found out. */
typedef struct z_row {
    const float *z;
    int64_t vocab, kept;
    float max;
} z_row;

static __device__ __forceinline__ int lane_of(void) { return (int)(threadIdx.x % 32); }
static __device__ __forceinline__ int warp_of(void) { return (int)(threadIdx.x / 32); }
static __device__ __forceinline__ float infinite(void) { return ls_from_bits(LS_INF_BITS); }

/* ---- the block's sums ---- */

static __device__ __forceinline__ int64_t block_sum(room *r, int64_t x) {
    int64_t sum = 0;
    for (int lanes = 16; lanes > 0; lanes /= 2) x += __shfl_xor_sync(LS_ALL_LANES, (long long)x, lanes);
    if (lane_of() == 0) r->warp_kept[warp_of()] = x;
    __syncthreads();
    for (int w = 0; w < WARPS; w++) sum += r->warp_kept[w];
    __syncthreads();
    return sum;
}

static __device__ __forceinline__ float block_max(room *r, float x) {
    float max = -infinite();
    for (int lanes = 16; lanes > 0; lanes /= 2) x = ls_max(__shfl_xor_sync(LS_ALL_LANES, x, lanes), x);
    if (lane_of() == 0) r->warp_max[warp_of()] = x;
    __syncthreads();
    for (int w = 0; w < WARPS; w++) max = ls_max(r->warp_max[w], max);
    __syncthreads();
    return max;
}

/* ---- counts of digits: every warp has its own, so that nothing is counted together ---- */

static __device__ __forceinline__ void clear_counts(room *r) {
    for (int d = lane_of(); d < DIGITS; d += 32) r->u.counts[warp_of()][d] = 0;
    __syncwarp();
}

/* One digit of each lane, DIGITS for none. One lane of those with a digit counts for all of them. */
static __device__ __forceinline__ void count_digits(room *r, uint32_t digit) {
    const uint32_t peers = __match_any_sync(LS_ALL_LANES, digit);
    if (digit < DIGITS && lane_of() == __ffs((int)peers) - 1) r->u.counts[warp_of()][digit] += __popc(peers);
    __syncwarp();
}

/* What thread d < DIGITS knows of digit d. */
typedef struct digit_count {
    uint32_t before, count; /* of lower digits, of this one */
} digit_count;

/* After a barrier behind the last count. Each warp's count becomes the number of those of the warps before it. */
static __device__ __forceinline__ digit_count total_digits(room *r) {
    const int d = (int)threadIdx.x;
    digit_count total = {0, 0};
    uint32_t through;
    if (d < DIGITS)
        for (int w = 0; w < WARPS; w++) {
            const uint32_t own = r->u.counts[w][d];
            r->u.counts[w][d] = total.count;
            total.count += own;
        }
    through = total.count;
    for (int lanes = 1; lanes < 32; lanes *= 2) {
        const uint32_t left = __shfl_up_sync(LS_ALL_LANES, through, lanes);
        if (lane_of() >= lanes) through += left;
    }
    if (warp_of() < DIGIT_WARPS && lane_of() == 31) r->digit_runs[warp_of()] = through;
    __syncthreads();
    total.before = through - total.count;
    for (int w = 0; w < DIGIT_WARPS; w++) total.before += w < warp_of() ? r->digit_runs[w] : 0;
    return total;
}

/* ---- top_k: the place of entry number `need`, counted from 1, of more than `need` ---- */

/* Counts the digit at `shift` of all places that begin with `prefix`. */
static __device__ __forceinline__ void count_places(room *r, const z_row *row, uint64_t prefix, uint64_t mask,
                                                    int shift) {
    for (int64_t first = threadIdx.x - lane_of(); first < row->vocab; first += BATCH * THREADS) {
        float z[BATCH];
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
            const int64_t id = first + b * THREADS + lane_of();
            z[b] = id < row->vocab ? row->z[id] : -infinite();
        }
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
            const uint64_t place = ls_order_word(z[b], first + b * THREADS + lane_of());
            const bool counts = z[b] > -infinite() && (place & mask) == prefix;
            if (__any_sync(LS_ALL_LANES, counts))
                count_digits(r, counts ? (uint32_t)(place >> shift) % DIGITS : DIGITS);
        }
    }
}

/* From the highest digit down; done as soon as all that begin alike are taken, and at the last digit at the latest. */
static __device__ __forceinline__ uint64_t place_of_number(room *r, const z_row *row, uint32_t need) {
    uint64_t prefix = 0, mask = 0;
    for (int shift = 64 - DIGIT_BITS;; shift -= DIGIT_BITS) {
        digit_count own;
        clear_counts(r);
        count_places(r, row, prefix, mask, shift);
        __syncthreads();
        own = total_digits(r);
        if (threadIdx.x < DIGITS && own.before < need && need - own.before <= own.count) {
            r->digit = threadIdx.x;
            r->before = own.before;
            r->whole = need - own.before == own.count;
        }
        __syncthreads();
        need -= r->before;
        prefix |= (uint64_t)r->digit << shift;
        mask |= (uint64_t)(DIGITS - 1) << shift;
        if (r->whole || shift == 0) return prefix | ~mask;
    }
}

/* ---- top_p: a stable sort of ids by order, lowest digit first ---- */

/* The entries that a pass takes: all that can change the chain in the first pass, ids in the others. */
typedef struct pass {
    const int32_t *from; /* [n], or NULL in the first one */
    int32_t *to;
    int64_t n;
    int shift;
    uint64_t bound;
} pass;

/* BATCH times 32 ids from number `first` on, each lane one of every 32, and their digits, DIGITS for none. */
static __device__ __forceinline__ void load_digits(const z_row *row, const pass *p, int64_t first, int64_t end,
                                                   int32_t *id, uint32_t *digit) {
    float z[BATCH];
#pragma unroll
    for (int b = 0; b < BATCH; b++) {
        const int64_t i = first + 32 * b + lane_of();
        id[b] = i >= end ? -1 : p->from == NULL ? (int32_t)i : p->from[i];
    }
#pragma unroll
    for (int b = 0; b < BATCH; b++) z[b] = id[b] < 0 ? -infinite() : row->z[id[b]];
#pragma unroll
    for (int b = 0; b < BATCH; b++) {
        const bool takes = id[b] >= 0 && (p->from != NULL ||
                                          (ls_sub(z[b], row->max) >= TAIL && ls_order_word(z[b], id[b]) <= p->bound));
        digit[b] = takes ? (ls_order_of(z[b]) >> p->shift) % DIGITS : DIGITS;
    }
}

/* Each warp has a run of the entries; it counts their digits, then puts them down in the order in which they come. The
 * number of entries taken. */
static __device__ __forceinline__ int64_t sort_pass(room *r, const z_row *row, const pass *p) {
    const int64_t run = (p->n + THREADS - 1) / THREADS * 32, begin = warp_of() * run;
    const int64_t end = begin + run < p->n ? begin + run : p->n;
    uint32_t *counts = r->u.counts[warp_of()], digit[BATCH], taken = 0;
    int32_t id[BATCH];
    digit_count own;
    clear_counts(r);
    for (int64_t first = begin; first < end; first += 32 * BATCH) {
        load_digits(row, p, first, end, id, digit);
#pragma unroll
        for (int b = 0; b < BATCH; b++) count_digits(r, digit[b]);
    }
    __syncthreads();
    own = total_digits(r);
    for (int w = 0; w < DIGIT_WARPS; w++) taken += r->digit_runs[w];
    if (threadIdx.x < DIGITS)
        for (int w = 0; w < WARPS; w++) r->u.counts[w][threadIdx.x] += own.before;
    __syncthreads();
    for (int64_t first = begin; first < end; first += 32 * BATCH) {
        load_digits(row, p, first, end, id, digit);
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
            const uint32_t peers = __match_any_sync(LS_ALL_LANES, digit[b]);
            if (digit[b] < DIGITS) p->to[counts[digit[b]] + __popc(peers & ((1u << lane_of()) - 1u))] = id[b];
            __syncwarp();
            if (digit[b] < DIGITS && lane_of() == __ffs((int)peers) - 1) counts[digit[b]] += __popc(peers);
            __syncwarp();
        }
    }
    __syncthreads();
    return taken;
}

/* Ids of the entries up to `bound` that can change the chain, sorted, in space[0..n); space has 2 vocab. */
static __device__ __forceinline__ int64_t sort_row(room *r, const z_row *row, uint64_t bound, int32_t *space) {
    int32_t *const half[] = {space, space + row->vocab};
    pass p = {NULL, half[1], row->vocab, 0, bound};
    for (; p.shift < 32; p.shift += DIGIT_BITS) {
        p.n = sort_pass(r, row, &p);
        p.from = p.to;
        p.to = p.to == half[0] ? half[1] : half[0];
    }
    return p.n;
}

/* ---- top_p: the chain ----
 *
 * All threads take the powers of a tile, one lane adds them in order and leaves every sum where its term was. That is
 * one add after the other, about four cycles each: 0.15 ms where all of 65,536 entries count. */

static __device__ __forceinline__ float added(float sum, float4 *term) {
    sum = ls_add(sum, term->x);
    term->x = sum;
    sum = ls_add(sum, term->y);
    term->y = sum;
    sum = ls_add(sum, term->z);
    term->z = sum;
    sum = ls_add(sum, term->w);
    term->w = sum;
    return sum;
}

/* One lane: n terms, a multiple of STEP, become sums; the next terms are loaded before those of a step are stored. */
static __device__ __forceinline__ float add_tile(float4 *terms, int64_t n, float sum) {
    float4 now[STEP / 4], next[STEP / 4];
#pragma unroll
    for (int j = 0; j < STEP / 4; j++) next[j] = terms[j];
    for (int64_t at = 0; at < n / 4; at += STEP / 4) {
        const int64_t after = at + STEP / 4 < n / 4 ? at + STEP / 4 : at;
#pragma unroll
        for (int j = 0; j < STEP / 4; j++) {
            now[j] = next[j];
            next[j] = terms[after + j];
        }
#pragma unroll
        for (int j = 0; j < STEP / 4; j++) sum = added(sum, &now[j]);
#pragma unroll
        for (int j = 0; j < STEP / 4; j++) terms[at + j] = now[j];
    }
    return sum;
}

static __device__ __forceinline__ float term_of(const z_row *row, int32_t id) {
    return ls_exp(ls_sub(row->z[id], row->max));
}

/* The chain over ids[n], its sums as bits in sums[n]; the number of entries after which it stands still, and the last
 * sum in r->sum. Terms descend, but for their last bits: as soon as one is below 2^-26 of the sum, none that follows
 * reaches half an ulp of it. */
static __device__ __forceinline__ int64_t chain(room *r, const z_row *row, const int32_t *ids, int64_t n,
                                                int32_t *sums) {
    float *terms = (float *)r->u.terms, sum = 0.0f;
    for (int64_t first = 0;; first += TILE) {
        const int64_t count = n - first < TILE ? n - first : TILE, padded = (count + STEP - 1) / STEP * STEP;
        bool ends;
        for (int64_t i = threadIdx.x; i < padded; i += THREADS)
            terms[i] = i < count ? term_of(row, ids[first + i]) : 0.0f;
        __syncthreads();
        if (threadIdx.x == 0) r->sum = add_tile(r->u.terms, padded, sum);
        __syncthreads();
        sum = r->sum;
        for (int64_t i = threadIdx.x; i < count; i += THREADS) sums[first + i] = (int32_t)ls_bits(terms[i]);
        ends = first + TILE >= n || term_of(row, ids[first + TILE]) < ls_mul(sum, 0x1p-26f);
        __syncthreads();
        if (ends) return first + count;
    }
}

/* The place of the last entry that top_p keeps of those up to `bound`. Sums do not descend, so that one entry alone is
 * the first that reaches the goal; the last one does. It is read before the barrier: then the row is written. */
static __device__ __forceinline__ uint64_t reach(room *r, const z_row *row, float top_p, uint64_t bound,
                                                 int32_t *space) {
    int32_t *sums = space + row->vocab;
    const int64_t n = chain(r, row, space, sort_row(r, row, bound, space), sums);
    const float goal = ls_mul(top_p, r->sum);
    for (int64_t i = threadIdx.x; i < n; i += THREADS) {
        const bool there = !(ls_from_bits((uint32_t)sums[i]) < goal);
        if (there && (i == 0 || ls_from_bits((uint32_t)sums[i - 1]) < goal))
            r->last = ls_order_word(row->z[space[i]], space[i]);
    }
    __syncthreads();
    return r->last;
}

/* ---- a row ---- */

/* A NaN of the row stays the one that it is, made quiet; the product of infinity and zero is the CPU's. */
static __device__ __forceinline__ float scaled(float logit, float inv_t) {
    const float z = ls_mul(logit, inv_t);
    if (inv_t == 1.0f) return logit;
    return z == z ? z : ls_from_bits(logit == logit ? 0xFFC00000u : ls_bits(logit) | 0x400000u);
}

/* z of the row, the number above -inf and the largest. A row with a NaN or +inf keeps none. */
static __device__ __forceinline__ z_row scale_row(room *r, float *out, const float *logits, int64_t vocab,
                                                  float inv_t) {
    const bool writes = out != logits || inv_t != 1.0f;
    z_row row = {out, vocab, 0, -infinite()};
    bool bad = false;
    for (int64_t first = threadIdx.x; first < vocab; first += BATCH * THREADS) {
        float z[BATCH];
#pragma unroll
        for (int b = 0; b < BATCH; b++)
            if (first + b * THREADS < vocab) z[b] = logits[first + b * THREADS];
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
            if (first + b * THREADS >= vocab) break;
            z[b] = scaled(z[b], inv_t);
            bad = bad || !(z[b] < infinite());
            row.kept += z[b] > -infinite();
            row.max = ls_max(z[b], row.max);
            if (writes) out[first + b * THREADS] = z[b];
        }
    }
    bad = __syncthreads_or(bad);
    row.kept = block_sum(r, row.kept);
    row.max = block_max(r, row.max);
    if (bad) row.kept = 0;
    return row;
}

/* Entries beyond `bound` and those that min_p leaves out become -inf; the number kept. A thread meets the entries that
 * it has written. */
static __device__ __forceinline__ int64_t cut_row(room *r, const z_row *row, float *out, uint64_t bound, float min_p) {
    int64_t kept = 0;
    for (int64_t first = threadIdx.x; first < row->vocab; first += BATCH * THREADS) {
        float z[BATCH];
#pragma unroll
        for (int b = 0; b < BATCH; b++)
            if (first + b * THREADS < row->vocab) z[b] = out[first + b * THREADS];
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
            const int64_t id = first + b * THREADS;
            bool keeps;
            if (id >= row->vocab) break;
            keeps = z[b] > -infinite() && ls_order_word(z[b], id) <= bound;
            if (min_p > 0.0f) keeps = keeps && !(ls_exp(ls_sub(z[b], row->max)) < min_p);
            if (!keeps) out[id] = -infinite();
            kept += keeps;
        }
    }
    return block_sum(r, kept);
}

static __device__ __forceinline__ int64_t process_row(room *r, float *out, const float *logits, int64_t vocab,
                                                      const ls_sampling *s, int32_t *space) {
    const float inv_t = s->temperature > 0.0f ? ls_div(1.0f, s->temperature) : 1.0f;
    const z_row row = scale_row(r, out, logits, vocab, inv_t);
    const bool top_k = s->top_k > 0 && s->top_k < row.kept, top_p = s->top_p < 1.0f;
    uint64_t bound = UINT64_MAX;
    if (s->temperature == 0.0f || row.kept == 0) return row.kept;
    if (top_k) bound = place_of_number(r, &row, (uint32_t)s->top_k);
    if (top_p) bound = reach(r, &row, s->top_p, bound, space);
    return top_k || top_p || s->min_p > 0.0f ? cut_row(r, &row, out, bound, s->min_p) : row.kept;
}

static __global__ void __launch_bounds__(THREADS) process_kernel(const __grid_constant__ ls_process_args a) {
    ls_cuda_begin();
    __shared__ room r;
    const int64_t row = blockIdx.x;
    float *out = a.out + row * a.vocab;
    if (a.mask != NULL && a.mask[row] == 0) return;
    const ls_sampling sampling = a.sampling[row];
    const int64_t kept =
        process_row(&r, out, a.logits + row * a.vocab, a.vocab, &sampling, a.sort_space + 2 * row * a.vocab);
    if (threadIdx.x != 0) return;
    if (kept == 0) out[0] = ls_from_bits(LS_NAN_BITS);
    if (a.kept != NULL) a.kept[row] = kept;
}

ls_status ls_cuda_process(const ls_exec *exec, const ls_process_args *a, ls_error *err) {
    const bool none = a->rows == 0;
    const ls_cuda_operand operands[] = {{"logits", a->logits, 4, none}, {"sampling", a->sampling, 8, none},
                                        {"mask", a->mask, 1, true},     {"out", a->out, 4, none},
                                        {"kept", a->kept, 8, true},     {"sort_space", a->sort_space, 4, none}};
    const ls_index index[] = {{LS_WIDTH_I64, {{{"row", a->rows}, {"twice", 2}, {"vocab", a->vocab}, {"element", 4}}}},
                              {LS_WIDTH_I32, {{{"id", a->vocab}}}}};
    const ls_launch launch = {"process", {a->rows, 1, 1}, THREADS, 0, index, 2};
    ls_process_args params = *a;
    LS_CUDA_TRY(ls_cuda_check("process", exec, operands, 6, LS_WORKSPACE_HEAD, err));
    return none ? LS_OK : ls_cuda_launch(exec, &launch, (const void *)process_kernel, &params, err);
}

/* ---- sample ---- */

/* id -1: none. */
typedef struct candidate {
    float key;
    int32_t id;
} candidate;

static __device__ __forceinline__ candidate better(candidate a, candidate b) {
    const bool second = b.id >= 0 && (a.id < 0 || b.key > a.key || (b.key == a.key && b.id < a.id));
    return second ? b : a;
}

/* The warp's best, in all lanes. */
static __device__ __forceinline__ candidate warp_best(candidate x) {
    for (int lanes = 16; lanes > 0; lanes /= 2) {
        const candidate other = {__shfl_xor_sync(LS_ALL_LANES, x.key, lanes),
                                 __shfl_xor_sync(LS_ALL_LANES, x.id, lanes)};
        x = better(x, other);
    }
    return x;
}

/* z of ids 4 group .. 4 group + 3; -inf outside of the row. */
static __device__ __forceinline__ void load_group(const float *row, int64_t vocab, bool vectors, int64_t group,
                                                  float z[4]) {
    if (vectors && 4 * group < vocab) {
        const float4 v = *(const float4 *)(row + 4 * group);
        z[0] = v.x;
        z[1] = v.y;
        z[2] = v.z;
        z[3] = v.w;
        return;
    }
#pragma unroll
    for (int j = 0; j < 4; j++) z[j] = 4 * group + j < vocab ? row[4 * group + j] : -infinite();
}

/* Keys of a lane's four ids, one draw for all of them. False where no lane of the warp has one that could be the
 * largest beside `best`, which some lane has reached: then no logarithm is taken. */
static __device__ __forceinline__ bool take_keys(const ls_sampling *s, const ls_draw *draw, int64_t group,
                                                 const float z[4], float best, float key[4]) {
    bool hopes = false;
    if (s->temperature > 0.0f) {
        const ls_philox words = ls_philox_draw(s->seed, (uint32_t)group, draw->position, draw->sample, draw->prompt);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            key[j] = (float)(int32_t)(words.word[j] >> 9);
            hopes = hopes || (z[j] > -infinite() && ls_add(z[j], ls_gumbel_bound(ls_sub(8388607.5f, key[j]))) >= best);
        }
        if (!__any_sync(LS_ALL_LANES, hopes)) return false;
#pragma unroll
        for (int j = 0; j < 4; j++) key[j] = ls_add(z[j], ls_gumbel(key[j]));
    } else {
#pragma unroll
        for (int j = 0; j < 4; j++) key[j] = z[j];
    }
    return true;
}

/* A thread's ids ascend, so that of equal keys its first one stays. */
static __device__ __forceinline__ candidate best_of_thread(const ls_sample_args *a, int64_t row, bool vectors) {
    const ls_sampling s = a->sampling[row];
    const ls_draw draw = a->draws[row];
    const float *processed = a->processed + row * a->vocab;
    candidate own = {-infinite(), -1};
    float best = -infinite();
    for (int64_t first = threadIdx.x - lane_of(); 4 * first < a->vocab; first += THREADS) {
        const int64_t group = first + lane_of();
        float z[4], key[4];
        load_group(processed, a->vocab, vectors, group, z);
        if (!__any_sync(LS_ALL_LANES,
                        z[0] > -infinite() || z[1] > -infinite() || z[2] > -infinite() || z[3] > -infinite()))
            continue;
        if (!take_keys(&s, &draw, group, z, best, key)) continue;
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (z[j] > -infinite() && (own.id < 0 || key[j] > own.key)) {
                own.key = key[j];
                own.id = (int32_t)(4 * group + j);
            }
        best = own.key;
        for (int lanes = 16; lanes > 0; lanes /= 2) best = ls_max(__shfl_xor_sync(LS_ALL_LANES, best, lanes), best);
    }
    return own;
}

typedef struct sample_params {
    ls_sample_args a;
    bool vectors; /* rows lie at multiples of 16 bytes */
} sample_params;

static __global__ void __launch_bounds__(THREADS) sample_kernel(const __grid_constant__ sample_params p) {
    ls_cuda_begin();
    __shared__ candidate bests[WARPS];
    const int64_t row = blockIdx.x;
    candidate best;
    if (p.a.kept[row] <= 0) {
        if (threadIdx.x == 0) p.a.token[row] = -1;
        return;
    }
    best = warp_best(best_of_thread(&p.a, row, p.vectors));
    if (lane_of() == 0) bests[warp_of()] = best;
    __syncthreads();
    if (warp_of() != 0) return;
    best = warp_best(bests[lane_of()]);
    if (threadIdx.x == 0) p.a.token[row] = best.id;
}

ls_status ls_cuda_sample(const ls_exec *exec, const ls_sample_args *a, ls_error *err) {
    const bool none = a->rows == 0;
    const ls_cuda_operand operands[] = {{"processed", a->processed, 4, none},
                                        {"kept", a->kept, 8, none},
                                        {"sampling", a->sampling, 8, none},
                                        {"draws", a->draws, 4, none},
                                        {"token", a->token, 8, none}};
    const ls_index index[] = {{LS_WIDTH_I64, {{{"row", a->rows}, {"vocab", a->vocab}, {"element", 4}}}},
                              {LS_WIDTH_I32, {{{"id", a->vocab}}}}};
    const ls_launch launch = {"sample", {a->rows, 1, 1}, THREADS, 0, index, 2};
    sample_params p = {*a, a->vocab % 4 == 0 && (uintptr_t)a->processed % 16 == 0};
    LS_CUDA_TRY(ls_cuda_check("sample", exec, operands, 5, LS_WORKSPACE_HEAD, err));
    return none ? LS_OK : ls_cuda_launch(exec, &launch, (const void *)sample_kernel, &p, err);
}
