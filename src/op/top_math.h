/* The order of op/top.h, as every back end reads it from here. */
#ifndef LS_OP_TOP_MATH_H
#define LS_OP_TOP_MATH_H

#include "op/sample_math.h"

/* Places of a row ascend in its order; the low 32 bits are the entry's id. */
static LS_HD uint64_t ls_top_place(float logit, int64_t id) {
    return logit == logit ? ls_order_word(logit, id) : (uint64_t)0xFFFFFFFFu << 32 | (uint64_t)id;
}

#endif
