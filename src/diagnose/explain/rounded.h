/* Roundings that reference.c makes beside ls_rounded. */
#ifndef LS_DIAGNOSE_EXPLAIN_ROUNDED_H
#define LS_DIAGNOSE_EXPLAIN_ROUNDED_H

/* To e4m3 without a scale, ties to even, at most 448. */
double ls_rounded_fp8(double x);
/* To `bits` of mantissa, of any exponent. */
double ls_rounded_mantissa(double x, int bits);

#endif
