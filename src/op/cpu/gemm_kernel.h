/* The seam between gemm.c (checks, split over threads) and gemm_cpu.c (one body for each instruction set). */
#ifndef LS_OP_CPU_GEMM_KERNEL_H
#define LS_OP_CPU_GEMM_KERNEL_H

#include "op/cpu/kernels.h"
#include "op/gemm.h"

typedef struct ls_gemm_kernel {
    /* Rows that one register tile holds: a split over rows is best a multiple of it. */
    int64_t tile_rows;
    /* Computes the outputs of rows [row_begin, row_end) and panels [panel_begin, panel_end); scratch is the calling
     * thread's, LS_SCRATCH_FLOATS long. */
    void (*run)(const ls_gemm_args *args, int64_t row_begin, int64_t row_end, int64_t panel_begin, int64_t panel_end,
                float *scratch);
} ls_gemm_kernel;

#endif
