/* The floating-point mode that every result counts on: round to nearest, subnormals kept in operands and results, no
 * exception trapped. A process may have another one without knowing: a library's constructor or another framework sets
 * flush-to-zero for a thread, and threads inherit it. So whoever enters sets the mode, and leaves the one that was. */
#ifndef LS_BASE_FPMODE_H
#define LS_BASE_FPMODE_H

#include <stdint.h>

/* Of the calling thread. */
typedef struct ls_fpmode {
    uint64_t vector; /* x86: MXCSR; AArch64: FPCR */
    uint32_t x87;
} ls_fpmode;

/* Sets the mode for the calling thread; what was goes to *saved, which may be NULL. */
void ls_fpmode_enter(ls_fpmode *saved);
/* Restores, with the exception flags that were raised then. */
void ls_fpmode_leave(const ls_fpmode *saved);

#endif
