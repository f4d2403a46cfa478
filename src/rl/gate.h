/* The gate: before anything is learnt from a token, the trainer's own forward must have given it the log-probability
 * that the rollout recorded, bit for bit. */
#ifndef LS_RL_GATE_H
#define LS_RL_GATE_H

#include "measure/tokens.h"

typedef struct ls_gate {
    int64_t n_tokens, n_differing; /* counted; of those with other bits, or NaN on both sides */
    int64_t n_sequences_differing;
    int64_t sequence, row;  /* of the first difference, by sequence and row; -1: none */
    float rollout, trainer; /* its two values */
} ls_gate;

void ls_gate_begin(ls_gate *gate);
/* One sequence: rows [begin, end) of r and t where mask is set; row counts from begin. Sequences may come in any order.
 */
void ls_gate_compare(ls_gate *gate, int64_t sequence, int64_t begin, int64_t end, const uint8_t *mask, const float *r,
                     const float *t);

uint32_t ls_float_bits(float value);
/* How many float32 values lie between two, both zeros being one; -1 where one of them is NaN. */
int64_t ls_float_ulps(float a, float b);

#endif
