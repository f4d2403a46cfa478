/* Reads and writes the control registers. Other machines than these two have no mode that C cannot name. */
#include "base/fpmode.h"

#include <fenv.h>
#include <stddef.h>

#if defined(__x86_64__)
#include <xmmintrin.h>

#define MXCSR_DEFAULT 0x1F80u /* all exceptions masked, to nearest, neither FTZ nor DAZ */
#define X87_DEFAULT 0x037Fu   /* all exceptions masked, 64-bit precision, to nearest */

void ls_fpmode_enter(ls_fpmode *saved) {
    const uint16_t x87 = X87_DEFAULT;
    uint16_t before;
    __asm__ volatile("fnstcw %0" : "=m"(before));
    if (saved != NULL) *saved = (ls_fpmode){_mm_getcsr(), before};
    _mm_setcsr(MXCSR_DEFAULT);
    if (before != x87) __asm__ volatile("fldcw %0" : : "m"(x87));
}

void ls_fpmode_leave(const ls_fpmode *saved) {
    const uint16_t x87 = (uint16_t)saved->x87;
    _mm_setcsr((uint32_t)saved->vector);
    if (x87 != X87_DEFAULT) __asm__ volatile("fldcw %0" : : "m"(x87));
}

#elif defined(__aarch64__)

void ls_fpmode_enter(ls_fpmode *saved) {
    const uint64_t none = 0; /* to nearest, no flushing, no trap */
    uint64_t before;
    __asm__ volatile("mrs %0, fpcr" : "=r"(before));
    if (saved != NULL) *saved = (ls_fpmode){before, 0};
    __asm__ volatile("msr fpcr, %0" : : "r"(none));
}

void ls_fpmode_leave(const ls_fpmode *saved) { __asm__ volatile("msr fpcr, %0" : : "r"(saved->vector)); }

#else

void ls_fpmode_enter(ls_fpmode *saved) {
    if (saved != NULL) *saved = (ls_fpmode){(uint64_t)fegetround(), 0};
    fesetround(FE_TONEAREST);
}

void ls_fpmode_leave(const ls_fpmode *saved) { fesetround((int)saved->vector); }

#endif
