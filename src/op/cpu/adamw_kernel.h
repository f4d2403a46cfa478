/* The seam between cpu_ops.c and the bodies of the optimizer in adamw_cpu.c. */
#ifndef LS_OP_CPU_ADAMW_KERNEL_H
#define LS_OP_CPU_ADAMW_KERNEL_H

#include "op/adamw.h"
#include "op/cpu/kernels.h"
#include "op/weight.h"

/* Elements that a work item of adamw and cast takes; carries no bits. */
#define LS_ADAMW_BLOCK 4096

#endif
