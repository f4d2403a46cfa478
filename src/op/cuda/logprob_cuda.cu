/* logprob on the GPU: a warp sums a leaf, lane l owning the chains 8 l .. 8 l + 7, so that a lane's load is a 16-byte
 * vector and the fold of 256 chains is seven adds in the lane and five exchanges.
 *
 * Many rows: a block a row, its warps taking leaves in turn, the next leaf already on its way in registers. Few rows:
 * a warp a leaf over the whole GPU, then a second kernel that combines; that is the shard entry, too.
 *
 * A row that begins `skew` elements behind a vector's begin is loaded from that vector on. Position j of lane l is
 * chain (8 l + j - skew) mod 256 then: the first positions of lane 0 are the last chains and take their elements a step
 * late, the last of them from `tail`, the vector behind the leaf's last one. What is folded is put in order first. */
#include "dev/device.h"
#include "op/cuda/check_cuda.h"
#include "op/cuda/cuda_ops.h"
#include "op/cuda/vector_cuda.h"
#include "op/logprob.h"
#include "op/logprob_math.h"

#define LEAF LS_LOGPROB_LEAF
#define STEPS (LEAF / 256) /* vectors that a lane holds of a leaf */
#define LEAVES_MAX ((LS_LOGPROB_VOCAB_MAX + LEAF - 1) / LEAF)
#define ROW_WARPS 4
#define FOLD_WARPS 4
/* Blocks of a multiprocessor that registers are left for; more of them spill. */
#define ROW_BLOCKS(DTYPE, ENTROPY, SKEWED) ((DTYPE) == LS_F32 ? ((SKEWED) ? 3 : 4) : (ENTROPY) || (SKEWED) ? 6 : 7)

/* ---- one leaf ---- */

static __device__ __forceinline__ float min_nan(float a, float b) {
    float c;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
    return c;
}

/* Of a lane's part of a leaf; a NaN anywhere makes both NaN. */
typedef struct bounds {
    float low, high;
} bounds;

#define PACKED(op, a, b, c, type) asm(op "." type " %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b))

template <int DTYPE, int N>
static __device__ __forceinline__ bounds lane_bounds(const ls_vec8<DTYPE> *v) {
    bounds out;
    if (DTYPE == LS_F32) {
        out.low = out.high = ls_vec8_get<DTYPE>(v[0], 0);
#pragma unroll
        for (int i = 0; i < N; i++)
#pragma unroll
            for (int j = 0; j < 8; j++) {
                out.low = min_nan(out.low, ls_vec8_get<DTYPE>(v[i], j));
                out.high = ls_max_nan(out.high, ls_vec8_get<DTYPE>(v[i], j));
            }
        return out;
    }
    /* Pairs of 16-bit values; the compiler joins two steps to one instruction of three operands. */
    uint32_t low = v[0].word[0].x, high = low;
#pragma unroll
    for (int i = 0; i < N; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const uint32_t pair = ls_word_of(v[i].word[0], j);
            if (DTYPE == LS_BF16) {
                PACKED("min.NaN", low, pair, low, "bf16x2");
                PACKED("max.NaN", high, pair, high, "bf16x2");
            } else {
                PACKED("min.NaN", low, pair, low, "f16x2");
                PACKED("max.NaN", high, pair, high, "f16x2");
            }
        }
    ls_vec8<DTYPE> ends;
    ends.word[0].x = low;
    ends.word[0].y = high;
    out.low = min_nan(ls_vec8_get<DTYPE>(ends, 0), ls_vec8_get<DTYPE>(ends, 1));
    out.high = ls_max_nan(ls_vec8_get<DTYPE>(ends, 2), ls_vec8_get<DTYPE>(ends, 3));
    return out;
}

static __device__ __forceinline__ float warp_max(float x) {
    for (int lanes = 16; lanes > 0; lanes /= 2) x = ls_max_nan(x, __shfl_xor_sync(LS_ALL_LANES, x, lanes));
    return x;
}

/* A lane's eight chains and then the warp's 32 runs, in all lanes. */
static __device__ __forceinline__ float warp_fold(const float chain[8]) {
    float x = ls_add(ls_add(ls_add(chain[0], chain[4]), ls_add(chain[2], chain[6])),
                     ls_add(ls_add(chain[1], chain[5]), ls_add(chain[3], chain[7])));
    for (int lanes = 16; lanes > 0; lanes /= 2) x = ls_add(x, __shfl_xor_sync(LS_ALL_LANES, x, lanes));
    return x;
}

/* What the terms of a leaf are measured against. */
typedef struct reference {
    float shift, power_shift, low; /* MAGIC - K, shift + Q */
} reference;

template <bool FAR, bool ENTROPY>
static __device__ __forceinline__ void add_term(float *s, float *e, float z, const reference *ref) {
    const float x = FAR ? ls_max(z, ref->low) : z;
    const float shift = FAR ? ref->shift : LS_ROUND_MAGIC;
    const float r = ls_fma(x, LS_LOG2E, shift);
    const float f = ls_fma(x, LS_LOG2E, -ls_sub(r, shift));
    const float term = ls_exp2_scale(ls_exp2_poly(f), r);
    *s = ls_add(*s, term);
    if (ENTROPY) *e = ls_fma(term, ls_add(ls_sub(r, ref->power_shift), f), *e);
}

/* K, Q and reference of a leaf whose entries span `high` over the warp; false where it has no terms, with its sum. */
static __device__ __forceinline__ bool refer(bool near, float high, reference *ref, ls_logprob_leaf *leaf) {
    *leaf = ls_logprob_dead_leaf(high <= LS_LOGPROB_LIMIT ? 0.0f : __uint_as_float(LS_NAN_BITS));
    if (!(high >= -LS_LOGPROB_LIMIT && high <= LS_LOGPROB_LIMIT)) return false;
    leaf->q = ls_logprob_reference(high);
    leaf->k = near ? 0.0f : leaf->q;
    ref->shift = ls_sub(LS_ROUND_MAGIC, leaf->k);
    ref->power_shift = ls_add(ref->shift, leaf->q);
    ref->low = near ? -LS_LOGPROB_NEAR : floorf(ls_sub(high, 80.0f));
    return true;
}

/* ---- rows that begin between vectors ---- */

/* Elements of a vector that lie in front of the row. */
template <int DTYPE>
static __device__ __forceinline__ int skew_of(const char *row) {
    return (int)((uint64_t)row % 16 / (DTYPE == LS_F32 ? 4 : 2));
}

/* Bits of a vector's words, in lane 0, that are a step late. */
template <int DTYPE>
static __device__ __forceinline__ uint4 late_bits(int skew) {
    uint32_t word[4];
#pragma unroll
    for (int k = 0; k < 4; k++) {
        const int n = DTYPE == LS_F32 ? 2 * (skew - k) : skew - 2 * k; /* halves of this word */
        word[k] = threadIdx.x % 32 != 0 || n <= 0 ? 0 : n == 1 ? 0xFFFFu : 0xFFFFFFFFu;
    }
    return make_uint4(word[0], word[1], word[2], word[3]);
}

static __device__ __forceinline__ uint4 blend(uint4 a, uint4 b, uint4 bits) {
    return make_uint4((a.x & ~bits.x) | (b.x & bits.x), (a.y & ~bits.y) | (b.y & bits.y),
                      (a.z & ~bits.z) | (b.z & bits.z), (a.w & ~bits.w) | (b.w & bits.w));
}

/* Every position's own elements, step by step. */
template <int DTYPE>
static __device__ __forceinline__ void take_late(ls_vec8<DTYPE> *v, uint4 tail, uint4 late) {
#pragma unroll
    for (int i = 0; i < STEPS; i++) v[i].word[0] = blend(v[i].word[0], i + 1 < STEPS ? v[i + 1].word[0] : tail, late);
}

/* The vector behind those of a whole leaf, where it holds its last entries; of lane 0. */
template <int DTYPE>
static __device__ __forceinline__ uint4 load_tail(const char *at, int skew) {
    if (skew == 0 || threadIdx.x % 32 != 0) return make_uint4(0, 0, 0, 0);
    return __ldcs((const uint4 *)(at + LEAF * (DTYPE == LS_F32 ? 4 : 2)));
}

template <int SKEW>
static __device__ __forceinline__ void rotate(float chain[8]) {
    float in_order[8];
#pragma unroll
    for (int j = 0; j < 8; j++)
        in_order[j] = j + SKEW < 8 ? chain[(j + SKEW) % 8]
                                   : __shfl_sync(LS_ALL_LANES, chain[(j + SKEW) % 8], (threadIdx.x + 1) % 32);
#pragma unroll
    for (int j = 0; j < 8; j++) chain[j] = in_order[j];
}

/* From positions to chains. */
static __device__ __forceinline__ void put_in_order(float chain[8], int skew) {
    switch (skew) {
        case 1: rotate<1>(chain); break;
        case 2: rotate<2>(chain); break;
        case 3: rotate<3>(chain); break;
        case 4: rotate<4>(chain); break;
        case 5: rotate<5>(chain); break;
        case 6: rotate<6>(chain); break;
        case 7: rotate<7>(chain); break;
        default: break;
    }
}

/* ---- sums of a leaf ---- */

template <bool ENTROPY>
static __device__ __forceinline__ void fold_leaf(float s[8], float e[8], int skew, ls_logprob_leaf *leaf) {
    put_in_order(s, skew);
    leaf->s = warp_fold(s);
    if (ENTROPY) put_in_order(e, skew);
    leaf->e = ENTROPY ? warp_fold(e) : 0.0f;
}

/* A whole leaf from the lane's vectors. With `next`, each vector is replaced by the next leaf's as soon as it is used:
 * its address is next + its own place. */
template <int DTYPE, bool SCALED, bool FAR, bool ENTROPY>
static __device__ __forceinline__ void sum_vectors(ls_vec8<DTYPE> *v, const char *next, int skew, float inv_t,
                                                   const reference *ref, ls_logprob_leaf *leaf) {
    float s[8] = {0, 0, 0, 0, 0, 0, 0, 0}, e[8] = {0, 0, 0, 0, 0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
        const ls_vec8<DTYPE> now = v[i];
        if (next != NULL) v[i] = ls_vec8_load<DTYPE>(next + i * 256 * (DTYPE == LS_F32 ? 4 : 2));
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const float logit = ls_vec8_get<DTYPE>(now, j);
            add_term<FAR, ENTROPY>(&s[j], &e[j], SCALED ? ls_mul(logit, inv_t) : logit, ref);
        }
    }
    fold_leaf<ENTROPY>(s, e, skew, leaf);
}

template <int DTYPE>
static __device__ __forceinline__ void load_leaf(ls_vec8<DTYPE> *v, const char *from) {
#pragma unroll
    for (int i = 0; i < STEPS; i++) v[i] = ls_vec8_load<DTYPE>(from + i * 256 * (DTYPE == LS_F32 ? 4 : 2));
}

template <int DTYPE, bool SCALED, bool ENTROPY>
static __device__ __forceinline__ ls_logprob_leaf vector_leaf(ls_vec8<DTYPE> *v, const char *next, int skew,
                                                              float inv_t) {
    const bounds lane = lane_bounds<DTYPE, STEPS>(v);
    const float low = SCALED ? ls_mul(lane.low, inv_t) : lane.low;
    const float high = SCALED ? ls_mul(lane.high, inv_t) : lane.high;
    const bool near = __all_sync(LS_ALL_LANES, low >= -LS_LOGPROB_NEAR && high <= LS_LOGPROB_NEAR);
    ls_logprob_leaf leaf;
    reference ref;
    if (near) {
        (void)refer(true, ENTROPY ? warp_max(high) : 0.0f, &ref, &leaf);
        sum_vectors<DTYPE, SCALED, false, ENTROPY>(v, next, skew, inv_t, &ref, &leaf);
    } else if (refer(false, warp_max(high), &ref, &leaf)) {
        sum_vectors<DTYPE, SCALED, true, ENTROPY>(v, next, skew, inv_t, &ref, &leaf);
    } else if (next != NULL) {
        load_leaf<DTYPE>(v, next);
    }
    return leaf;
}

/* ---- the last leaf of a row, of fewer entries ---- */

/* Its vectors in shared memory, where they wait while whole leaves are summed: code for a leaf in registers would be
 * long, and run once. A lane reads what it brought itself. */
template <int DTYPE>
struct part_vectors {
    uint4 word[STEPS + 1][DTYPE == LS_F32 ? 2 : 1][32];
};

/* Begins to bring the vectors that hold one of n entries. */
template <int DTYPE>
static __device__ __forceinline__ void bring_part(part_vectors<DTYPE> *part, const char *at, int n, int skew) {
    const int lane = (int)(threadIdx.x % 32), mine = n + skew - 8 * lane;
#pragma unroll
    for (int i = 0; i <= STEPS; i++)
#pragma unroll
        for (int w = 0; w < (DTYPE == LS_F32 ? 2 : 1); w++)
            if ((i < STEPS || (lane == 0 && w == 0)) && i * 256 + 4 * w < mine)
                asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                                 (uint32_t)__cvta_generic_to_shared(&part->word[i][w][lane])),
                             "l"(at + i * 256 * (DTYPE == LS_F32 ? 4 : 2) + 16 * w)
                             : "memory");
}

/* Every position's own elements of a step; those behind the leaf's end are anything. */
template <int DTYPE>
static __device__ __forceinline__ ls_vec8<DTYPE> part_step(const part_vectors<DTYPE> *part, int i, uint4 late) {
    const int lane = (int)(threadIdx.x % 32);
    ls_vec8<DTYPE> v;
    v.word[0] = blend(part->word[i][0][lane], part->word[i + 1][0][lane], late);
    if (DTYPE == LS_F32) v.word[DTYPE == LS_F32] = part->word[i][DTYPE == LS_F32][lane];
    return v;
}

/* Bounds of both parts, and of one entry more. */
static __device__ __forceinline__ void widen(bounds *b, bounds with) {
    b->low = min_nan(b->low, with.low);
    b->high = ls_max_nan(b->high, with.high);
}

template <int DTYPE, bool ENTROPY>
static __device__ __forceinline__ ls_logprob_leaf last_leaf(const part_vectors<DTYPE> *part, int n, int skew,
                                                            float inv_t) {
    const int lane = (int)(threadIdx.x % 32), mine = n + skew - 8 * lane, late_mine = n + skew - 256;
    const int full = n / 256; /* steps in which every position has its entry */
    const uint4 late = late_bits<DTYPE>(skew);
    bounds span = {__uint_as_float(LS_INF_BITS), -__uint_as_float(LS_INF_BITS)};
    float s[8] = {0, 0, 0, 0, 0, 0, 0, 0}, e[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    ls_logprob_leaf leaf;
    reference ref;
    asm volatile("cp.async.wait_all;" ::: "memory");
#pragma unroll 1
    for (int i = 0; i < full; i++) {
        const ls_vec8<DTYPE> v = part_step<DTYPE>(part, i, late);
        widen(&span, lane_bounds<DTYPE, 1>(&v));
    }
    const ls_vec8<DTYPE> rest = part_step<DTYPE>(part, full, late);
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const float logit = ls_vec8_get<DTYPE>(rest, j);
        const bounds one = {logit, logit};
        if (full * 256 + j < (lane == 0 && j < skew ? late_mine : mine)) widen(&span, one);
    }
    span.low = ls_mul(span.low, inv_t);
    span.high = ls_mul(span.high, inv_t);
    const bool near = __all_sync(LS_ALL_LANES, span.low >= -LS_LOGPROB_NEAR && span.high <= LS_LOGPROB_NEAR);
    if (!refer(near, warp_max(span.high), &ref, &leaf)) return leaf;
#pragma unroll 1
    for (int i = 0; i < full; i++) {
        const ls_vec8<DTYPE> v = part_step<DTYPE>(part, i, late);
#pragma unroll
        for (int j = 0; j < 8; j++)
            add_term<true, ENTROPY>(&s[j], &e[j], ls_mul(ls_vec8_get<DTYPE>(v, j), inv_t), &ref);
    }
#pragma unroll
    for (int j = 0; j < 8; j++)
        if (full * 256 + j < (lane == 0 && j < skew ? late_mine : mine))
            add_term<true, ENTROPY>(&s[j], &e[j], ls_mul(ls_vec8_get<DTYPE>(rest, j), inv_t), &ref);
    fold_leaf<ENTROPY>(s, e, skew, &leaf);
    return leaf;
}

/* ---- leaves of a row to its result ---- */

static __device__ __forceinline__ ls_logprob_leaf from_lane(ls_logprob_leaf x, int lane) {
    return ls_logprob_leaf_make(__shfl_sync(LS_ALL_LANES, x.k, lane), __shfl_sync(LS_ALL_LANES, x.q, lane),
                                __shfl_sync(LS_ALL_LANES, x.s, lane), __shfl_sync(LS_ALL_LANES, x.e, lane));
}

/* The aligned tree over the n <= 32 leaves that the first n lanes hold, in lane 0. */
static __device__ __forceinline__ ls_logprob_leaf tree_of_lanes(ls_logprob_leaf x, int n) {
    const int lane = (int)(threadIdx.x % 32);
    for (int step = 1; step < 32; step *= 2) {
        const ls_logprob_leaf right = from_lane(x, (lane + step) % 32);
        if (lane % (2 * step) == 0 && lane + step < n) x = ls_logprob_join(x, right);
    }
    return x;
}

/* The aligned tree over n leaves in memory, in lane 0: groups of 32, then the groups. */
static __device__ __forceinline__ ls_logprob_leaf tree(const ls_logprob_leaf *leaves, int n) {
    const int lane = (int)(threadIdx.x % 32), groups = (n + 31) / 32;
    ls_logprob_leaf node = ls_logprob_dead_leaf(0.0f);
    for (int g = 0; g < groups; g++) {
        const int in_group = n - 32 * g < 32 ? n - 32 * g : 32;
        ls_logprob_leaf x = lane < in_group ? leaves[32 * g + lane] : ls_logprob_dead_leaf(0.0f);
        x = from_lane(tree_of_lanes(x, in_group), 0);
        if (lane == g) node = x;
    }
    return groups == 1 ? node : tree_of_lanes(node, groups);
}

typedef struct outputs {
    float *logprob, *lse, *entropy;
} outputs;

static __device__ __forceinline__ void put(const outputs *out, int64_t row, ls_logprob_result x) {
    out->logprob[row] = x.logprob;
    if (out->lse != NULL) out->lse[row] = x.lse;
    if (out->entropy != NULL) out->entropy[row] = x.entropy;
}

/* ---- kernels ---- */

typedef struct rows {
    const char *logits;
    int64_t n, vocab, stride; /* vocab: columns here; stride in bytes */
    const int64_t *targets;
    int64_t ignore_index;
    const uint8_t *mask;
    const float *temperature;
    const ls_fault *fault;
} rows;

static __device__ __forceinline__ float inverse_temperature(const rows *in, int64_t row) {
    return in->temperature == NULL ? 1.0f : ls_div(1.0f, in->temperature[row]);
}

typedef struct rows_params {
    rows in;
    outputs out;
} rows_params;

template <int DTYPE, bool SCALED, bool ENTROPY, bool SKEWED>
static __global__ void __launch_bounds__(32 * ROW_WARPS, ROW_BLOCKS(DTYPE, ENTROPY, SKEWED))
    rows_kernel(const __grid_constant__ rows_params p) {
    ls_cuda_begin();
    __shared__ ls_logprob_leaf leaves[LEAVES_MAX];
    __shared__ part_vectors<DTYPE> part;
    const int64_t row = blockIdx.x, elem = DTYPE == LS_F32 ? 4 : 2;
    const int lane = (int)(threadIdx.x % 32), warp = (int)(threadIdx.x / 32);
    const int vocab = (int)p.in.vocab, n = (vocab + LEAF - 1) / LEAF;
    const char *logits = p.in.logits + row * p.in.stride;
    const int64_t target = p.in.targets[row];
    if (p.in.fault->code != LS_FAULT_NONE) return;
    if (!ls_logprob_keeps(p.in.targets, p.in.ignore_index, p.in.mask, row)) {
        const ls_logprob_result zero = {0.0f, 0.0f, 0.0f};
        if (threadIdx.x == 0) put(&p.out, row, zero);
        return;
    }
    const float inv_t = inverse_temperature(&p.in, row);
    float z_target = 0.0f;
    if (threadIdx.x == 0) z_target = ls_load_one<DTYPE>(logits, target);
    const int whole = vocab / LEAF, rest = vocab % LEAF, skew = SKEWED ? skew_of<DTYPE>(logits) : 0;
    const uint4 late = late_bits<DTYPE>(skew);
    const bool has_last = rest > 0 && warp == whole % ROW_WARPS;
    const char *at = logits + (whole * LEAF + 8 * lane - skew) * elem;
    if (has_last) bring_part<DTYPE>(&part, at, rest, skew);
    if (warp < whole) {
        at = logits + (warp * LEAF + 8 * lane - skew) * elem;
        ls_vec8<DTYPE> v[STEPS];
        load_leaf<DTYPE>(v, at);
        uint4 tail = load_tail<DTYPE>(at, skew);
        for (int leaf_i = warp; leaf_i < whole; leaf_i += ROW_WARPS) {
            const char *next = leaf_i + ROW_WARPS < whole ? at + ROW_WARPS * LEAF * elem : NULL;
            if (SKEWED) take_late<DTYPE>(v, tail, late);
            if (SKEWED && next != NULL) tail = load_tail<DTYPE>(next, skew);
            const ls_logprob_leaf leaf = vector_leaf<DTYPE, SCALED, ENTROPY>(v, next, skew, inv_t);
            if (lane == 0) leaves[leaf_i] = leaf;
            at = next;
        }
    }
    if (has_last) {
        const ls_logprob_leaf leaf = last_leaf<DTYPE, ENTROPY>(&part, rest, skew, inv_t);
        if (lane == 0) leaves[whole] = leaf;
    }
    __syncthreads();
    if (warp != 0) return;
    const ls_logprob_leaf sum = tree(leaves, n);
    if (lane == 0) put(&p.out, row, ls_logprob_finish(sum, ls_mul(z_target, inv_t)));
}

typedef struct leaves_params {
    rows in;
    int64_t first, leaf_stride; /* first: column of `total` that column 0 here is */
    ls_logprob_leaf *leaves;
    float *target_z; /* or NULL */
} leaves_params;

template <int DTYPE, bool SCALED, bool ENTROPY, bool SKEWED>
static __global__ void __launch_bounds__(32 * FOLD_WARPS) leaves_kernel(const __grid_constant__ leaves_params p) {
    ls_cuda_begin();
    __shared__ part_vectors<DTYPE> part[FOLD_WARPS];
    const int64_t elem = DTYPE == LS_F32 ? 4 : 2, n = (p.in.vocab + LEAF - 1) / LEAF;
    const int64_t item = (int64_t)blockIdx.x * FOLD_WARPS + threadIdx.x / 32, row = item / n, leaf_i = item % n;
    const int lane = (int)(threadIdx.x % 32);
    if (row >= p.in.n || !ls_logprob_keeps(p.in.targets, p.in.ignore_index, p.in.mask, row)) return;
    if (p.in.fault != NULL && p.in.fault->code != LS_FAULT_NONE) return;
    const char *logits = p.in.logits + row * p.in.stride, *from = logits + leaf_i * LEAF * elem;
    const float inv_t = inverse_temperature(&p.in, row);
    const int64_t rest = p.in.vocab - leaf_i * LEAF;
    const int skew = SKEWED ? skew_of<DTYPE>(from) : 0;
    const char *at = from + (8 * lane - skew) * elem;
    ls_logprob_leaf leaf;
    if (rest >= LEAF) {
        ls_vec8<DTYPE> v[STEPS];
        load_leaf<DTYPE>(v, at);
        if (SKEWED) take_late<DTYPE>(v, load_tail<DTYPE>(at, skew), late_bits<DTYPE>(skew));
        leaf = vector_leaf<DTYPE, SCALED, ENTROPY>(v, NULL, skew, inv_t);
    } else {
        bring_part<DTYPE>(&part[threadIdx.x / 32], at, (int)rest, skew);
        leaf = last_leaf<DTYPE, ENTROPY>(&part[threadIdx.x / 32], (int)rest, skew, inv_t);
    }
    if (lane != 0) return;
    p.leaves[row * p.leaf_stride + p.first / LEAF + leaf_i] = leaf;
    const int64_t target = p.in.targets[row] - p.first;
    if (p.target_z != NULL && leaf_i == 0 && target >= 0 && target < p.in.vocab)
        p.target_z[row] = ls_mul(ls_load_one<DTYPE>(logits, target), inv_t);
}

typedef struct combine_params {
    rows in; /* logits: NULL where target_z is given */
    const ls_logprob_leaf *leaves;
    int64_t leaf_stride;
    const float *target_z;
    ls_row_check check; /* made by every block itself, where fault is not NULL */
    outputs out;
} combine_params;

template <int DTYPE>
static __global__ void __launch_bounds__(32 * FOLD_WARPS) combine_kernel(const __grid_constant__ combine_params p) {
    ls_cuda_begin();
    const int lane = (int)(threadIdx.x % 32);
    const int64_t row = (int64_t)blockIdx.x * FOLD_WARPS + threadIdx.x / 32;
    if (p.check.fault != NULL ? !ls_block_may_write<32 * FOLD_WARPS>(&p.check, p.check.rows)
                              : p.in.fault->code != LS_FAULT_NONE)
        return;
    if (row >= p.in.n) return;
    ls_logprob_result result = {0.0f, 0.0f, 0.0f};
    if (ls_logprob_keeps(p.in.targets, p.in.ignore_index, p.in.mask, row)) {
        float z = 0.0f;
        if (lane == 0)
            z = p.target_z != NULL ? p.target_z[row]
                                   : ls_mul(ls_load_one<DTYPE>(p.in.logits + row * p.in.stride, p.in.targets[row]),
                                            inverse_temperature(&p.in, row));
        result = ls_logprob_finish(tree(p.leaves + row * p.leaf_stride, (int)((p.in.vocab + LEAF - 1) / LEAF)), z);
    }
    if (lane == 0) put(&p.out, row, result);
}

/* ---- entries ---- */

/* The kernel of a type and three switches. */
#define PICK1(kernel, dtype, a, b, c) \
    ((c) ? (const void *)kernel<dtype, a, b, true> : (const void *)kernel<dtype, a, b, false>)
#define PICK2(kernel, dtype, a, b, c) ((b) ? PICK1(kernel, dtype, a, true, c) : PICK1(kernel, dtype, a, false, c))
#define PICK3(kernel, dtype, a, b, c) ((a) ? PICK2(kernel, dtype, true, b, c) : PICK2(kernel, dtype, false, b, c))
#define PICK0(kernel, dtype) ((const void *)kernel<dtype>)
#define BY_TYPE(pick, kernel, dtype, ...)                     \
    ((dtype) == LS_F32    ? pick(kernel, LS_F32 __VA_ARGS__)  \
     : (dtype) == LS_BF16 ? pick(kernel, LS_BF16 __VA_ARGS__) \
                          : pick(kernel, LS_F16 __VA_ARGS__))
#define AND ,

/* Whether some rows begin between vectors. */
static bool is_skewed(const rows *in) { return (uintptr_t)in->logits % 16 != 0 || (in->n > 1 && in->stride % 16 != 0); }

static const void *rows_kernel_of(ls_dtype dtype, const rows *in, bool entropy) {
    const bool scaled = in->temperature != NULL, skewed = is_skewed(in);
    return BY_TYPE(PICK3, rows_kernel, dtype, AND scaled AND entropy AND skewed);
}
static const void *leaves_kernel_of(ls_dtype dtype, const rows *in, bool entropy) {
    const bool scaled = in->temperature != NULL, skewed = is_skewed(in);
    return BY_TYPE(PICK3, leaves_kernel, dtype, AND scaled AND entropy AND skewed);
}
static const void *combine_kernel_of(ls_dtype dtype) { return BY_TYPE(PICK0, combine_kernel, dtype); }

/* Where the kernels compute: bytes of a row and of the column in 64 bits, columns alone in 32. */
static void index_of_rows(ls_index index[2], int64_t n_rows, int64_t stride_bytes, int64_t vocab, int64_t elem) {
    const ls_index contract[2] = {
        {LS_WIDTH_I64,
         {{{"row", n_rows}, {"row stride in bytes", stride_bytes}}, {{"column", vocab}, {"element", elem}}}},
        {LS_WIDTH_I32, {{{"column", vocab + LEAF}, {"element", elem}}}}};
    index[0] = contract[0];
    index[1] = contract[1];
}

static ls_status launch_leaves(const ls_exec *exec, leaves_params *p, ls_dtype dtype, bool entropy, ls_error *err) {
    const int64_t n = ls_logprob_leaves(p->in.vocab);
    ls_index index[3];
    index_of_rows(index, p->in.n, p->in.stride, p->in.vocab, ls_dtype_bytes(dtype));
    const ls_index place = {LS_WIDTH_I64, {{{"row", p->in.n}, {"leaf stride", p->leaf_stride}, {"leaf", 16}}}};
    index[2] = place;
    const ls_launch launch = {
        "logprob_shard, leaves", {(p->in.n * n + FOLD_WARPS - 1) / FOLD_WARPS, 1, 1}, 32 * FOLD_WARPS, 0, index, 3};
    return ls_cuda_launch(exec, &launch, leaves_kernel_of(dtype, &p->in, entropy), p, err);
}

static ls_status launch_combine(const ls_exec *exec, combine_params *p, ls_dtype dtype, ls_error *err) {
    const ls_index index = {LS_WIDTH_I64, {{{"row", p->in.n}, {"leaf stride", p->leaf_stride}, {"leaf", 16}}}};
    const ls_launch launch = {
        "logprob_combine", {(p->in.n + FOLD_WARPS - 1) / FOLD_WARPS, 1, 1}, 32 * FOLD_WARPS, 0, &index, 1};
    return ls_cuda_launch(exec, &launch, combine_kernel_of(dtype), p, err);
}

ls_status ls_cuda_logprob(const ls_exec *exec, const ls_logprob_args *a, ls_error *err) {
    const ls_cuda_operand operands[] = {{"logits", a->logits, ls_dtype_bytes(a->dtype), false},
                                        {"targets", a->targets, 8, false},
                                        {"mask", a->mask, 1, true},
                                        {"temperature", a->temperature, 4, true},
                                        {"logprob", a->logprob, 4, false},
                                        {"lse", a->lse, 4, true},
                                        {"entropy", a->entropy, 4, true}};
    const int64_t n_operands = (int64_t)(sizeof operands / sizeof operands[0]);
    const outputs out = {a->logprob, a->lse, a->entropy};
    const bool entropy = a->entropy != NULL, split = a->rows <= LS_LOGPROB_SPLIT_ROWS;
    ls_fault *fault;
    LS_CUDA_TRY(ls_cuda_check("logprob", exec, operands, n_operands, ls_op_logprob_workspace(a), err));
    if (a->rows == 0) return LS_OK;
    ls_index index[2];
    index_of_rows(index, a->rows, a->row_stride * ls_dtype_bytes(a->dtype), a->vocab, ls_dtype_bytes(a->dtype));
    const ls_launch whole_rows = {"logprob", {a->rows, 1, 1}, 32 * ROW_WARPS, 0, index, 2};
    LS_CUDA_TRY(ls_launch_check(&whole_rows, LS_CUDA_SHARED_MAX, err));
    LS_CUDA_TRY(ls_cuda_fault_begin("logprob", exec, &fault, err));
    ls_row_check check = ls_row_check_of(a, a->temperature, a->vocab, fault);
    const rows in = {.logits = (const char *)a->logits,
                     .n = a->rows,
                     .vocab = a->vocab,
                     .stride = a->row_stride * ls_dtype_bytes(a->dtype),
                     .targets = a->targets,
                     .ignore_index = a->ignore_index,
                     .mask = a->mask,
                     .temperature = a->temperature,
                     .fault = fault};
    if (!split) {
        rows_params p = {in, out};
        LS_CUDA_TRY(ls_cuda_check_rows("logprob", exec, &check, err));
        return ls_cuda_launch(exec, &whole_rows, rows_kernel_of(a->dtype, &in, entropy), &p, err);
    }
    ls_logprob_leaf *leaves = (ls_logprob_leaf *)((char *)exec->workspace + LS_WORKSPACE_HEAD);
    leaves_params first = {in, 0, ls_logprob_leaves(a->vocab), leaves, NULL};
    combine_params second = {in, leaves, first.leaf_stride, NULL, check, out};
    first.in.fault = NULL; /* the second kernel checks, and it alone writes what the caller sees */
    LS_CUDA_TRY(launch_leaves(exec, &first, a->dtype, entropy, err));
    LS_CUDA_TRY(launch_combine(exec, &second, a->dtype, err));
    return ls_cuda_fault_end("logprob", exec, fault, err);
}

ls_status ls_cuda_logprob_shard(const ls_exec *exec, const ls_logprob_shard_args *a, ls_error *err) {
    const ls_cuda_operand operands[] = {{"logits", a->logits, ls_dtype_bytes(a->dtype), false},
                                        {"targets", a->targets, 8, false},
                                        {"mask", a->mask, 1, true},
                                        {"temperature", a->temperature, 4, true},
                                        {"leaves", a->leaves, 16, false},
                                        {"target_z", a->target_z, 4, false}};
    const int64_t n_operands = (int64_t)(sizeof operands / sizeof operands[0]);
    ls_fault *fault;
    LS_CUDA_TRY(ls_cuda_check("logprob_shard", exec, operands, n_operands, ls_op_logprob_shard_workspace(a), err));
    if (a->rows == 0) return LS_OK;
    LS_CUDA_TRY(ls_cuda_fault_begin("logprob_shard", exec, &fault, err));
    ls_row_check check = ls_row_check_of(a, a->temperature, a->total, fault);
    leaves_params p = {{.logits = (const char *)a->logits,
                        .n = a->rows,
                        .vocab = a->vocab,
                        .stride = a->row_stride * ls_dtype_bytes(a->dtype),
                        .targets = a->targets,
                        .ignore_index = a->ignore_index,
                        .mask = a->mask,
                        .temperature = a->temperature,
                        .fault = fault},
                       a->first,
                       a->leaf_stride,
                       a->leaves,
                       a->target_z};
    LS_CUDA_TRY(ls_cuda_check_rows("logprob_shard", exec, &check, err));
    return launch_leaves(exec, &p, a->dtype, true, err);
}

ls_status ls_cuda_logprob_combine(const ls_exec *exec, const ls_logprob_combine_args *a, ls_error *err) {
    const ls_cuda_operand operands[] = {{"leaves", a->leaves, 16, false},  {"target_z", a->target_z, 4, false},
                                        {"targets", a->targets, 8, false}, {"mask", a->mask, 1, true},
                                        {"logprob", a->logprob, 4, false}, {"lse", a->lse, 4, true},
                                        {"entropy", a->entropy, 4, true}};
    const int64_t n_operands = (int64_t)(sizeof operands / sizeof operands[0]);
    ls_fault *fault;
    LS_CUDA_TRY(ls_cuda_check("logprob_combine", exec, operands, n_operands, ls_op_logprob_combine_workspace(a), err));
    if (a->rows == 0) return LS_OK;
    LS_CUDA_TRY(ls_cuda_fault_begin("logprob_combine", exec, &fault, err));
    ls_row_check check = ls_row_check_of(a, NULL, a->total, fault);
    combine_params p = {{.logits = NULL,
                         .n = a->rows,
                         .vocab = a->total,
                         .stride = 0,
                         .targets = a->targets,
                         .ignore_index = a->ignore_index,
                         .mask = a->mask,
                         .temperature = NULL,
                         .fault = fault},
                        a->leaves,
                        a->leaf_stride,
                        a->target_z,
                        {},
                        {a->logprob, a->lse, a->entropy}};
    LS_CUDA_TRY(ls_cuda_check_rows("logprob_combine", exec, &check, err));
    return launch_combine(exec, &p, LS_F32, err);
}
