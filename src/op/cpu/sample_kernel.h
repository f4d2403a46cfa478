/* The seam between cpu_ops.c and the bodies of sampling in sample_cpu.c. Rows of logits, one at a time. */
#ifndef LS_OP_CPU_SAMPLE_KERNEL_H
#define LS_OP_CPU_SAMPLE_KERNEL_H

#include "op/sample.h"

/* process returns the number kept; workspace holds 2 * vocab. draw returns -1 when nothing is kept. */
typedef struct ls_sample_kernel {
    int64_t (*process)(float *out, const float *logits, int64_t vocab, const ls_sampling *sampling, int32_t *workspace);
    int32_t (*draw)(const float *processed, int64_t vocab, const ls_sampling *sampling, const ls_draw *draw);
} ls_sample_kernel;

#endif
