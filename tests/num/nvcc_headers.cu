/* Compiled, never run: nvcc takes num/*.h as they are, one kernel for each function. */
#include "num/expf.h"
#include "num/half.h"
#include "num/mma16.h"
#include "num/round.h"
#include "num/sincosf.h"

#define SCALAR_KERNEL(name)                                                       \
    extern "C" __global__ void name##_kernel(float *out, const float *x, int n) { \
        const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);               \
        if (i < n) out[i] = ls_##name(x[i]);                                      \
    }
SCALAR_KERNEL(exp2_bounded)
SCALAR_KERNEL(exp2_poly)
SCALAR_KERNEL(exp)
SCALAR_KERNEL(log)
SCALAR_KERNEL(log1p)
SCALAR_KERNEL(sigmoid)
SCALAR_KERNEL(silu)
SCALAR_KERNEL(softplus)
SCALAR_KERNEL(round_bf16)
SCALAR_KERNEL(sqrt)

extern "C" __global__ void arithmetic_kernel(float *out, const float *x) {
    out[0] = ls_add(x[0], ls_sub(x[1], ls_mul(x[2], ls_div(x[3], ls_fma(x[4], x[5], x[6])))));
    out[1] = ls_min(ls_max(x[0], x[1]), x[2]);
}

extern "C" __global__ void sincosf_kernel(float *out, const float *x) { ls_sincosf(x[0], &out[0], &out[1]); }

extern "C" __global__ void half_kernel(uint16_t *out, const float *x, float *widened, const uint16_t *h) {
    out[0] = ls_f32_to_bf16(x[0]);
    out[1] = ls_f32_to_f16(x[1]);
    widened[0] = ls_bf16_to_f32(h[0]);
    widened[1] = ls_f16_to_f32(h[1]);
}

extern "C" __global__ void mma16_kernel(uint32_t *c, const uint16_t *a, const uint16_t *b) {
    c[threadIdx.x] = ls_mma16_step(c[threadIdx.x], a, 1, b + threadIdx.x, 32);
}

/* The host side of the same translation unit. */
float host_check(float x) {
    return ls_exp2_bounded(x) + ls_exp(x) + ls_log(x) + ls_log1p(x) + ls_sigmoid(x) + ls_silu(x) + ls_softplus(x);
}
