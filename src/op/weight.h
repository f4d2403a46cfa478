/* From what is stored or learnt to what ops compute with. Elementwise; at most one rounding, named below.
 *
 * weight_cast: out[i] = w[i] rounded to nearest even to bf16 or f16, a copy for f32
 * widen:       out[i] = x[i] as float32, exactly; with plus_one 1 + x[i], one rounding: a norm's weight that is stored
 *              as what it has above 1 (Qwen3-Next). The gradient of out is that of x.
 * decay:       out[i] = (-exp(x[i])) * LOG2E, exp of num/expf.h: a2 of op/scan.h from A_log
 * rates:       out[i] = -exp(x[i]), the same exp: a of op/ssd.h from A_log
 * taps:        out[j][i] = x[i][j] as float32, exactly: the taps of a convolution, stored [dim][d_conv], as
 *              [d_conv][dim], and their gradient back */
#ifndef LS_OP_WEIGHT_H
#define LS_OP_WEIGHT_H

#include "base/status.h"
#include "lockstep/ops.h"

typedef struct ls_weight_cast_args {
    const float *w; /* [n] */
    int64_t n;
    void *out; /* [n] */
    ls_dtype dtype;
} ls_weight_cast_args;

typedef struct ls_widen_args {
    const void *x; /* [n] */
    ls_dtype dtype;
    int64_t n;
    float *out; /* [n] */
    bool plus_one;
} ls_widen_args;

typedef struct ls_taps_args {
    const void *x; /* [rows][cols] */
    ls_dtype dtype;
    int64_t rows, cols;
    float *out; /* [cols][rows] */
} ls_taps_args;

/* Inputs and outputs do not overlap. */
ls_status ls_weight_cast_check(const ls_weight_cast_args *args, ls_error *err);
ls_status ls_widen_check(const ls_widen_args *args, ls_error *err);
ls_status ls_decay_check(const ls_decay_args *args, ls_error *err);
ls_status ls_rates_check(const ls_rates_args *args, ls_error *err);
ls_status ls_taps_check(const ls_taps_args *args, ls_error *err);

#endif
