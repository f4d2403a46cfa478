/* What the kernels of the norms and of their gradients share. */
#ifndef LS_OP_CUDA_RMSNORM_CUDA_H
#define LS_OP_CUDA_RMSNORM_CUDA_H

#include "op/cuda/chains_cuda.h"
#include "op/rmsnorm_backward.h"

/* Rows of as many steps of the chains stay in the registers of the chains' threads. */
#define LS_NORM_SHORT_STEPS 4

/* Rows of at most LS_RUN_ROW columns share blocks of so many threads. */
#define LS_NORM_RUN_THREADS 128
static inline int64_t ls_norm_run_lanes(int64_t dim) { return dim <= LS_RUN_ROW / 2 ? 16 : 32; }
static inline int64_t ls_norm_blocks(int64_t rows, int64_t each) { return rows / each + (rows % each != 0); }

/* A gradient. vector: all rows can be read and written in fours. */
typedef struct ls_norm_params {
    ls_rmsnorm_backward_args a;
    bool vector;
} ls_norm_params;

/* s from q, the sum of squares. */
static __device__ __forceinline__ float ls_norm_scale(float q, int64_t dim, float eps) {
    return ls_div(1.0f, ls_sqrt(ls_add(ls_div(q, (float)dim), eps)));
}

/* x becomes n, dy becomes g. */
static __device__ __forceinline__ void ls_norm_normalise(float x[4], float dy[4], const float w[4], float s) {
    for (int j = 0; j < 4; j++) {
        x[j] = ls_mul(x[j], s);
        dy[j] = ls_mul(dy[j], w[j]);
    }
}

/* d of four columns from n and g. */
static __device__ __forceinline__ void ls_norm_dx(float d[4], const float n[4], const float g[4], float s, float u) {
    for (int j = 0; j < 4; j++) d[j] = ls_mul(s, ls_fma(-n[j], u, g[j]));
}

/* On a device of sm_90: y of many rows that bulk copies can bring; `taken` is whether these are. */
typedef struct ls_norm_call {
    ls_rmsnorm_args a; /* of add_rmsnorm: x is h */
    const float *add;  /* NULL: nothing is added, and there is no sum */
    float *sum;
    bool vector; /* all rows can be read and written in fours */
} ls_norm_call;

ls_status ls_norm_staged(const ls_exec *exec, const char *op, const ls_norm_call *call, bool *taken, ls_error *err);
/* There too: dx of such rows. */
ls_status ls_norm_dx_staged(const ls_exec *exec, const ls_norm_params *p, bool *taken, ls_error *err);
/* There too: dw of n norms of the same rows together, where they have many columns and maps can describe their
 * matrices. */
ls_status ls_norm_dw_ring(const ls_exec *exec, const char *op, const ls_rmsnorm_backward_args *parts, int64_t n,
                          bool *taken, ls_error *err);

#endif
