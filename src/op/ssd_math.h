/* Scalars of op/ssd.h, one a head and token: one text for the CPU and the GPU. */
#ifndef LS_OP_SSD_MATH_H
#define LS_OP_SSD_MATH_H

#include "num/expf.h"

/* Below it the scale goes into the state. */
#define LS_SSD_SCALE_MIN 0x1p-40f

/* What a token does to a head's state. */
typedef struct ls_ssd_step {
    float decay;   /* a */
    float product; /* the scale before the token times a */
    float scale;   /* after the token */
    float w;       /* dt / scale, two roundings */
    bool rescaled; /* the state is multiplied by product, and scale is 1 */
} ls_ssd_step;

/* dt from softplus, within [low, high]; a NaN stays one. */
static LS_HD float ls_ssd_clamp(float dt, float low, float high) { return ls_min(high, ls_max(low, dt)); }

static LS_HD ls_ssd_step ls_ssd_step_of(float scale, float dt, float a) {
    ls_ssd_step step;
    step.decay = ls_exp(ls_mul(dt, a));
    step.product = ls_mul(scale, step.decay);
    step.rescaled = step.product < LS_SSD_SCALE_MIN;
    step.scale = step.rescaled ? 1.0f : step.product;
    step.w = ls_mul(dt, ls_div(1.0f, step.scale));
    return step;
}

#endif
