/* A library that changes the floating-point mode of every process that it is loaded into, as some do. */
#if defined(__x86_64__)
#include <xmmintrin.h>

__attribute__((constructor)) static void flush_to_zero(void) { _mm_setcsr(0xDFC0); /* FTZ, DAZ, rounding upward */ }
#else
#include <fenv.h>

__attribute__((constructor)) static void flush_to_zero(void) { fesetround(FE_UPWARD); }
#endif
