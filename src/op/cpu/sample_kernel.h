/* The seam between sample.c and its bodies in sample_cpu.c. */
#ifndef LS_OP_CPU_SAMPLE_KERNEL_H
#define LS_OP_CPU_SAMPLE_KERNEL_H

#include "op/sample.h"

typedef struct ls_sample_kernel {
    int64_t (*process)(float *out, const float *logits, int64_t vocab, const ls_sampling *sampling, int32_t *workspace);
    int32_t (*draw)(const float *processed, int64_t vocab, const ls_sampling *sampling, const ls_draw *draw);
} ls_sample_kernel;

#endif
