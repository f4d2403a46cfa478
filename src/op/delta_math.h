/* Scalars of op/delta.h, one a head and token: one text for the CPU and the GPU. */
#ifndef LS_OP_DELTA_MATH_H
#define LS_OP_DELTA_MATH_H

#include "num/expf.h"

/* Below it the scale goes into the state. */
#define LS_DELTA_SCALE_MIN 0x1p-40f
/* What is added to a sum of squares under the root of the l2 norm. */
#define LS_DELTA_NORM_EPS 1e-6f

/* What a token does to a head's state. */
typedef struct ls_delta_step {
    float raw, soft; /* a + dt_bias, and softplus of it */
    float decay;
    float product; /* the scale before the token times decay */
    float scale;   /* after the token */
    float beta;    /* sigmoid(b) */
    float w;       /* beta / scale, two roundings */
    bool rescaled; /* the state is multiplied by product, and scale is 1 */
} ls_delta_step;

/* scale: before the token. */
static LS_HD ls_delta_step ls_delta_step_of(float scale, float a, float dt_bias, float rate, float b) {
    ls_delta_step step;
    step.raw = ls_add(a, dt_bias);
    step.soft = ls_softplus(step.raw);
    step.decay = ls_exp(ls_mul(step.soft, rate));
    step.product = ls_mul(scale, step.decay);
    step.rescaled = step.product < LS_DELTA_SCALE_MIN;
    step.scale = step.rescaled ? 1.0f : step.product;
    step.beta = ls_sigmoid(b);
    step.w = ls_mul(step.beta, ls_div(1.0f, step.scale));
    return step;
}

/* The scale of the walk backwards at a token, from that of the token after, and what G is multiplied by. */
typedef struct ls_delta_back {
    float scale, factor; /* F, g */
} ls_delta_back;

/* scale, decay: of the token after; both 1 at the last token. */
static LS_HD ls_delta_back ls_delta_back_of(float scale, float decay) {
    const float product = ls_mul(scale, decay);
    const bool rescaled = product < LS_DELTA_SCALE_MIN;
    const ls_delta_back back = {rescaled ? 1.0f : product, rescaled ? product : 1.0f};
    return back;
}

/* 1 / length of a row whose sum of squares is q. */
static LS_HD float ls_delta_norm_of(float q) { return ls_div(1.0f, ls_sqrt(ls_add(q, LS_DELTA_NORM_EPS))); }

/* What queries are scaled by, two roundings. */
static LS_HD float ls_delta_query_scale(int64_t key_dim) { return ls_div(1.0f, ls_sqrt((float)key_dim)); }

#endif
