/* What stands between a product and attention, for a head in the registers of a group of lanes (op/rope.h): each lane
 * has runs of eight columns, as the sums of num/sum.h have them. */
#ifndef LS_OP_CUDA_ROPE_HEADS_CUDA_H
#define LS_OP_CUDA_ROPE_HEADS_CUDA_H

#include "op/cuda/elements_cuda.h"
#include "op/cuda/rmsnorm_cuda.h"
#include "op/rope.h"

#define RUN 8 /* columns of a run */

/* A lane's columns c and on, of which those before dim are there; others are +0. */
static __device__ __forceinline__ void load_run(const float *x, int64_t c, int64_t dim, bool vector, float v[RUN]) {
    ls_four_load<LS_F32>(x, c, dim - c, vector && dim - c >= 4, v);
    ls_four_load<LS_F32>(x, c + 4, dim - c - 4, vector && dim - c >= 8, v + 4);
}

template <int DTYPE>
static __device__ __forceinline__ void store_run(void *y, int64_t at, int64_t n, bool vector, const float v[RUN]) {
    ls_four_store<DTYPE>(y, at, n, vector && n >= 4, v);
    if (n > 4) ls_four_store<DTYPE>(y, at + 4, n - 4, vector && n >= 8, v + 4);
}

/* The part of a head, which becomes its number in the part. */
static __device__ __forceinline__ const ls_rope_part *part_of(const ls_rope_part *part, int64_t *head) {
    while (*head >= part->n_heads) *head -= part++->n_heads;
    return part;
}

/* The 256-chain sum of products of a head, in all lanes of its group. Chains that no column reaches are +0, and adding
 * them makes +0 of -0, which is all that they do. */
template <int LANES, int RUNS>
static __device__ __forceinline__ float sum_of_products(const float a[RUNS][RUN], const float b[RUNS][RUN]) {
    float chain[RUN];
#pragma unroll
    for (int j = 0; j < RUN; j++) chain[j] = ls_fma(a[0][j], b[0][j], 0.0f);
#pragma unroll
    for (int i = 1; i < RUNS; i++)
        for (int j = 0; j < RUN; j++) chain[j] = ls_fma(a[i][j], b[i][j], chain[j]);
    float x = ls_add(ls_add(ls_add(chain[0], chain[4]), ls_add(chain[2], chain[6])),
                     ls_add(ls_add(chain[1], chain[5]), ls_add(chain[3], chain[7])));
    if (LANES < 32) x = ls_add(x, 0.0f);
#pragma unroll
    for (int lanes = LANES / 2; lanes > 0; lanes /= 2) x = ls_add(x, __shfl_xor_sync(LS_ALL_LANES, x, lanes));
    return x;
}

/* b of a lane's runs. */
template <int LANES, int RUNS>
static __device__ __forceinline__ void load_head(float b[RUNS][RUN], const float *x, const float *bias, int64_t lane,
                                                 int64_t dim, bool vector) {
#pragma unroll
    for (int i = 0; i < RUNS; i++) {
        const int64_t c = (lane + i * LANES) * RUN;
        float add[RUN];
        load_run(x, c, dim, vector, b[i]);
        if (bias == NULL) continue;
        load_run(bias, c, dim, vector, add);
        for (int j = 0; j < RUN; j++)
            if (c + j < dim) b[i][j] = ls_add(b[i][j], add[j]);
    }
}

/* How a head turns: `half` pairs, of which a part that does not rotate takes none. In the usual case all columns turn
 * and each lane's partner is as many lanes away as half of the group: its angles are here. */
typedef struct turning {
    const float *table; /* of the row; NULL: nothing turns, in any head */
    int64_t half;
    bool rotates; /* this head */
    bool by_lanes;
    float cosine[RUN], sine[RUN];
} turning;

/* Begins to read what the head needs, so that it is on its way beside the head itself. */
template <int LANES, int RUNS>
static __device__ __forceinline__ turning turning_of(const float *table, int64_t half, bool rotates, bool by_lanes,
                                                     int64_t row, int64_t lane) {
    turning t = {half > 0 ? table + row * 2 * half : NULL, half, rotates, RUNS == 1 && by_lanes, {}, {}};
    if (t.table == NULL || !t.by_lanes) return t;
    const int64_t at = lane % (LANES / 2) * RUN;
    load_run(t.table, at, half, true, t.cosine);
    load_run(t.table + half, at, half, true, t.sine);
    return t;
}

/* The partners' columns come by shuffles, in which all lanes of the warp take part. */
template <int LANES, bool BACK>
static __device__ __forceinline__ void rotate_by_lanes(float n[RUN], const turning *t, int64_t lane) {
    const bool low = lane < LANES / 2;
#pragma unroll
    for (int j = 0; j < RUN; j++) {
        const float turn = ls_mul(__shfl_xor_sync(LS_ALL_LANES, n[j], LANES / 2), t->sine[j]);
        if (t->rotates) n[j] = ls_fma(n[j], t->cosine[j], low != BACK ? -turn : turn);
    }
}

/* Rotates the group's head, or back; the other half of each pair comes by shared memory. */
template <int LANES, int RUNS, bool BACK>
static __device__ __forceinline__ void rotate(float n[RUNS][RUN], float *shared, const turning *t, int64_t lane,
                                              int64_t dim) {
    const int64_t half = t->half;
    if (t->table == NULL) return;
    if (t->by_lanes) {
        rotate_by_lanes<LANES, BACK>(n[0], t, lane);
        return;
    }
#pragma unroll
    for (int i = 0; i < RUNS; i++)
        for (int j = 0; j < RUN; j++)
            if ((lane + i * LANES) * RUN + j < dim) shared[(lane + i * LANES) * RUN + j] = n[i][j];
    __syncwarp();
#pragma unroll
    for (int i = 0; i < RUNS; i++)
#pragma unroll
        for (int j = 0; j < RUN; j++) {
            const int64_t c = (lane + i * LANES) * RUN + j;
            if (c >= 2 * half || !t->rotates) continue;
            const bool low = c < half;
            const int64_t at = low ? c : c - half;
            const float turn = ls_mul(shared[low ? c + half : at], t->table[half + at]);
            n[i][j] = ls_fma(n[i][j], t->table[at], low != BACK ? -turn : turn);
        }
    __syncwarp();
}

/* How the rows of a call are read, and how its heads turn. */
typedef struct rope_ways {
    bool vector, by_lanes;
} rope_ways;

/* Begins to read the weights of the head's norm where it has one. */
template <int LANES, int RUNS>
static __device__ __forceinline__ void load_norm(float norm[RUNS][RUN], const ls_rope_part *part, int64_t lane,
                                                 int64_t dim, bool vector) {
    if (part->norm == NULL) return;
#pragma unroll
    for (int i = 0; i < RUNS; i++) load_run(part->norm, (lane + i * LANES) * RUN, dim, vector, norm[i]);
}

/* n of a head's columns c[0 ..), which its group's lanes have loaded, becomes y before it is rounded. `shared`: the
 * group's own, LANES * RUNS * RUN elements. All lanes of a warp call it together. */
template <int LANES, int RUNS>
static __device__ __forceinline__ void turn_head(float n[RUNS][RUN], const float norm[RUNS][RUN],
                                                 const ls_rope_part *part, const turning *turns, int64_t lane,
                                                 int64_t dim, float eps, float *shared) {
    const float s = ls_norm_scale(sum_of_products<LANES, RUNS>(n, n), dim, eps);
    if (part->norm != NULL) {
#pragma unroll
        for (int i = 0; i < RUNS; i++)
            for (int j = 0; j < RUN; j++) n[i][j] = ls_mul(ls_mul(n[i][j], s), norm[i][j]);
    }
    rotate<LANES, RUNS, false>(n, shared, turns, lane, dim);
}

/* ---- the host's side ---- */

/* Whether partners lie as many lanes apart as half of a group, and the table's rows can be read in fours. */
static inline bool turns_by_lanes(const float *table, int64_t half, int64_t dim) {
    return 2 * half == dim && (dim == 8 * RUN || dim == 16 * RUN || dim == 32 * RUN) && ls_four_fits(table, LS_F32);
}

/* Whether rows of these parts can be read and written in fours. */
static inline bool parts_fit(const ls_rope_part *part, int64_t n_parts) {
    for (int64_t i = 0; i < n_parts; i++)
        if (!ls_four_fits(part[i].bias, LS_F32) || !ls_four_fits(part[i].norm, LS_F32)) return false;
    return true;
}

/* `y_fits`: y can be written in fours. */
static inline rope_ways ways_of(const ls_rope_args *a, bool y_fits) {
    return rope_ways{y_fits && a->head_dim % 4 == 0 && a->x_stride % 4 == 0 && ls_four_fits(a->x, LS_F32) &&
                         parts_fit(a->part, a->n_parts),
                     turns_by_lanes(a->table, a->half, a->head_dim)};
}

/* The call without a table where no part turns. */
static inline ls_rope_args without_table(const ls_rope_args *a) {
    ls_rope_args own = *a;
    bool rotates = false;
    for (int64_t i = 0; i < a->n_parts; i++) rotates |= a->part[i].rotates;
    if (!rotates) own.half = 0;
    return own;
}

#endif
