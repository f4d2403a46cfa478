/* The seam between adamw.c (factors, checks, ordered sums) and adamw_cpu.c (one body for each instruction set). */
#ifndef LS_OP_CPU_ADAMW_KERNEL_H
#define LS_OP_CPU_ADAMW_KERNEL_H

#include "op/adamw.h"
#include "op/cpu/kernels.h"

/* Elements that a work item of adamw and cast takes; carries no bits. */
#define LS_ADAMW_BLOCK 4096

typedef struct ls_squares_call {
    const float *x;
    int64_t n;
    float *blocks; /* receives the sum of each block */
} ls_squares_call;

typedef struct ls_weight_cast_call {
    const float *w;
    int64_t n;
    void *out;
    ls_dtype dtype;
} ls_weight_cast_call;

#endif
