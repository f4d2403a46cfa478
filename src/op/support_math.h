/* Arithmetic of op/support.h that every back end reads from here. */
#ifndef LS_OP_SUPPORT_MATH_H
#define LS_OP_SUPPORT_MATH_H

#include "num/expf.h"
#include "op/support.h"

static LS_HD float ls_penalized(float logit, const ls_penalties *p, int32_t count) {
    float l = logit;
    if (p->repetition != 1.0f) l = l > 0.0f ? ls_div(l, p->repetition) : ls_mul(l, p->repetition);
    if (count > 0) {
        l = ls_sub(l, ls_mul(p->frequency, (float)count));
        l = ls_sub(l, p->presence);
    }
    return l;
}

#endif
