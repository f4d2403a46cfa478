/* Dense products on CUDA devices, forward and backward, in both profiles: implementations of op/gemm.h and
 * op/gemm_backward.h, where the arithmetic stands; the bits are those of the CPU.
 *
 * All tensors are device memory. Weights are used as stored, [n][k]; for few rows in the profile mma16 they are also
 * packed on the device, once, by ls_cuda_gemm_pack. The profile mma16 needs a device whose tensor cores compute the
 * step of num/mma16.h: a short test at the first use of a device proves it, and a device that fails is refused. */
#ifndef LS_OP_GEMM_CUDA_H
#define LS_OP_GEMM_CUDA_H

#include "dev/device.h"
#include "op/gemm.h"
#include "op/gemm_backward.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Rows up to which packed weights are used, whatever their size; those of 4,225 to 16,896 rows for twice as many, those
 * of up to 512 for four times as many. */
#define LS_CUDA_GEMM_DECODE_ROWS 64

typedef struct ls_cuda_gemm_args {
    const void *x;    /* [m][k], rows x_stride elements apart */
    ls_dtype x_dtype; /* f32 or bf16 */
    int64_t x_stride;
    const void *w; /* [n][k] as stored, rows contiguous */
    ls_dtype w_dtype;
    const void *w_tiles; /* what ls_cuda_gemm_pack wrote for w, or NULL; mma16 only */
    const float *bias;   /* [n], or NULL */
    void *out;           /* [m][n], rows out_stride elements apart; elements between rows are not touched */
    ls_dtype out_dtype;  /* f32 or bf16 */
    int64_t out_stride;
    int64_t m, n, k; /* m 0 is allowed and does nothing */
    ls_profile profile;
    bool nan_open;        /* which NaN a NaN is may be left open: then cuBLASLt can be used where it is prepared */
    const int64_t *range; /* as in ls_gemm_args */
} ls_cuda_gemm_args;

/* Bytes of exec's workspace; negative where they do not fit 64 bits. */
int64_t ls_cuda_gemm_workspace(const ls_cuda_gemm_args *args);
/* In stream order; allocates nothing. out must not overlap what is read. */
ls_status ls_cuda_gemm_stored(const ls_exec *exec, const ls_cuda_gemm_args *args, ls_error *err);

/* The back end's layout of a weight: as stored, f16 widened to float32; of bf16, its tiles follow. */
ls_status ls_cuda_gemm_pack_plan(ls_gemm_weight *out, ls_dtype dtype, int64_t n, int64_t k, ls_error *err);

/* Looks for an algorithm of cuBLASLt that gives the bits of the profile mma16 for this call's sizes, strides and types,
 * compared on random data with the project's own kernel; calls with nan_open and without bias use it from then on. Kept
 * for the life of the process. Allocates and waits, so never while a stream is captured. A failure says why there is
 * none: the library is missing, or its bits differ; calls then go on with the project's own kernels. */
ls_status ls_cuda_gemm_prepare(const ls_cuda_gemm_args *args, ls_error *err);

/* For tests: the proof of that call's algorithms, each made to split the depth in two. LS_ERR_UNSUPPORTED with the
 * reason is what it should say. Keeps nothing. */
ls_status ls_cuda_gemm_prepare_planted(const ls_cuda_gemm_args *args, ls_error *err);

/* Bytes of the tiles of a bf16 weight; negative where they do not fit 64 bits. */
int64_t ls_cuda_gemm_tiles_bytes(int64_t n, int64_t k);
/* Writes the tiles of w [n][k], bf16, rows contiguous; tiles is aligned to 128 bytes. In stream order. */
ls_status ls_cuda_gemm_pack(const ls_exec *exec, void *tiles, const void *w, int64_t n, int64_t k, ls_error *err);

/* sequences, row numbers and ranges are device memory; they are checked on the device, and a fault goes where exec says
 * (lockstep/ops.h). mma16 refuses x_rows by name. */
int64_t ls_cuda_gemm_backward_input_workspace(const ls_gemm_backward_input_args *args);
ls_status ls_cuda_gemm_backward_input(const ls_exec *exec, const ls_gemm_backward_input_args *args, ls_error *err);
int64_t ls_cuda_gemm_backward_weight_workspace(const ls_gemm_backward_weight_args *args);
ls_status ls_cuda_gemm_backward_weight(const ls_exec *exec, const ls_gemm_backward_weight_args *args, ls_error *err);

/* LS_OK where the current device's tensor cores compute the step of num/mma16.h; tested once for each device. Waits. */
ls_status ls_cuda_mma16_proven(ls_error *err);

#ifdef __cplusplus
}
#endif
#endif
