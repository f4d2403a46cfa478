/* The learning rate as a function of the step, from 1 on, in binary64.
 *
 *   warm-up   step <= warmup: peak * (step / warmup)
 *   constant  peak
 *   linear    c peak + (1 - c) floor, c = 1 - x, x = (step - warmup) / (total - warmup)
 *   cosine    the same with c = (1 + cos(pi x)) / 2
 * At step = warmup the rate is exactly peak, from step = total on exactly floor.
 *
 * libm's cosine differs between machines, so it is not used: c = 1/2 - s(x - 1/2) where s(u) = sin(pi u) / 2 is
 * v (a0 + w (a1 + ... + w a9)), v = pi u, w = v v, a_i = (-1)^i / (2 (2i + 1)!), one rounding for each operation; the
 * error is below 4e-16. */
#ifndef LS_TRAIN_RATE_H
#define LS_TRAIN_RATE_H

#include "base/status.h"

typedef enum ls_rate_kind { LS_RATE_CONSTANT = 0, LS_RATE_LINEAR, LS_RATE_COSINE, LS_RATE_COUNT } ls_rate_kind;
const char *ls_rate_name(ls_rate_kind kind); /* "constant", "linear", "cosine" */

typedef struct ls_rate {
    ls_rate_kind kind;
    double peak, floor;
    int64_t warmup, total; /* steps; total is not read when the kind is constant */
} ls_rate;

/* peak and floor are finite, 0 <= floor <= peak; 0 <= warmup < total. */
ls_status ls_rate_check(const ls_rate *rate, ls_error *err);
double ls_rate_at(const ls_rate *rate, int64_t step);

#endif
