/* Comparison of raw bits; owns nothing. */
#include "rl/gate.h"

#include <math.h>

uint32_t ls_float_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* The value's number on the line of all floats. */
static int64_t order_of(float value) {
    const uint32_t bits = ls_float_bits(value);
    const int64_t size = bits & UINT32_C(0x7FFFFFFF);
    return bits >> 31 != 0 ? -size : size;
}

int64_t ls_float_ulps(float a, float b) {
    const int64_t d = order_of(a) - order_of(b);
    if (isnan(a) || isnan(b)) return -1;
    return d < 0 ? -d : d;
}

void ls_gate_begin(ls_gate *gate) { *gate = (ls_gate){.sequence = -1, .row = -1}; }

void ls_gate_compare(ls_gate *g, int64_t sequence, int64_t begin, int64_t end, const uint8_t *mask, const float *r,
                     const float *t) {
    int64_t n = 0;
    for (int64_t i = begin; i < end; i++) {
        if (mask[i] == 0) continue;
        g->n_tokens++;
        if (ls_float_bits(r[i]) == ls_float_bits(t[i]) && !isnan(r[i])) continue; /* no NaN agrees with anything */
        if (n++ == 0 && (g->sequence < 0 || sequence < g->sequence)) {
            g->sequence = sequence;
            g->row = i - begin;
            g->rollout = r[i];
            g->trainer = t[i];
        }
    }
    g->n_differing += n;
    g->n_sequences_differing += n > 0;
}
