/* Roundings to the types that others compute and store in, in float64. */
#include "diagnose/explain/rounded.h"

#include <math.h>

#include "diagnose/explain/reference.h"

double ls_rounded_fp8(double x) {
    const double size = fabs(x), floor_of = size < 0x1p-6 ? 0x1p-6 : size;
    const double step = exp2(floor(log2(floor_of)) - 3.0);
    const double y = rint(x / step) * step;
    return y > 448.0 ? 448.0 : y < -448.0 ? -448.0 : y;
}

double ls_rounded_mantissa(double x, int bits) {
    int exponent;
    const double part = frexp(x, &exponent), scale = exp2((double)bits);
    return isfinite(x) ? ldexp(rint(part * scale) / scale, exponent) : x;
}

double ls_rounded(double x, ls_rounding to) {
    switch (to) {
        case LS_ROUND_NONE: return x;
        case LS_ROUND_BF16: return ls_rounded_mantissa(x, 8);
        case LS_ROUND_F16: return fabs(x) < 0x1p-14 ? rint(x * 0x1p24) * 0x1p-24 : ls_rounded_mantissa(x, 11);
        case LS_ROUND_FP8: return ls_rounded_fp8(x);
        case LS_ROUND_E5M2: return fabs(x) < 0x1p-14 ? rint(x * 0x1p16) * 0x1p-16 : ls_rounded_mantissa(x, 3);
        case LS_ROUND_INT8:
        case LS_ROUND_INT4: return rint(x);
    }
    return x;
}
