/* The seam between cpu_ops.c and the bodies of low-rank adapters in lora_cpu.c. */
#ifndef LS_OP_CPU_LORA_KERNEL_H
#define LS_OP_CPU_LORA_KERNEL_H

#include "op/lora.h"

#define LS_LORA_BLOCK 64 /* columns of an item of the gradient of A */

#endif
