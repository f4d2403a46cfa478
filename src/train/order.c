/* Keeps the permutation of the latest epoch that was asked for. */
#include "train/order.h"

#include <stdlib.h>

#include "base/mem.h"
#include "base/rng.h"

struct ls_order {
    int64_t n, epoch; /* epoch -1: none yet */
    uint64_t seed;
    int64_t *permutation; /* [n] */
};

ls_status ls_order_create(ls_order **out, int64_t n, uint64_t seed, ls_error *err) {
    ls_order *o = NULL;
    ls_status status;
    *out = NULL;
    LS_ASSERT(n > 0, "%lld examples", (long long)n);
    LS_TRY_DONE(ls_array_alloc((void **)&o, 1, sizeof *o, "order", err));
    o->n = n;
    o->epoch = -1;
    o->seed = seed;
    LS_TRY_DONE(ls_array_alloc((void **)&o->permutation, n, sizeof *o->permutation, "order", err));
    *out = o;
    o = NULL;
done:
    ls_order_free(o);
    return status;
}

void ls_order_free(ls_order *o) {
    if (o == NULL) return;
    free(o->permutation);
    free(o);
}

/* floor(a b / 2^64) by halves. */
static uint64_t upper_product(uint64_t a, uint64_t b) {
    const uint64_t a0 = (uint32_t)a, a1 = a >> 32, b0 = (uint32_t)b, b1 = b >> 32;
    const uint64_t middle = a1 * b0 + (a0 * b0 >> 32), other = a0 * b1 + (uint32_t)middle;
    return a1 * b1 + (middle >> 32) + (other >> 32);
}

static void permute(ls_order *o, int64_t epoch) {
    for (int64_t i = 0; i < o->n; i++) o->permutation[i] = i;
    for (int64_t i = o->n - 1; i > 0; i--) {
        const ls_philox draw =
            ls_philox_draw(o->seed, (uint32_t)i, (uint32_t)(i >> 32), (uint32_t)epoch, (uint32_t)(epoch >> 32));
        const uint64_t u = draw.word[0] | (uint64_t)draw.word[1] << 32;
        const int64_t j = (int64_t)upper_product((uint64_t)i + 1, u), kept = o->permutation[i];
        o->permutation[i] = o->permutation[j];
        o->permutation[j] = kept;
    }
    o->epoch = epoch;
}

int64_t ls_order_at(ls_order *o, int64_t position) {
    const int64_t epoch = position / o->n;
    LS_ASSERT(position >= 0, "position %lld", (long long)position);
    if (epoch != o->epoch) permute(o, epoch);
    return o->permutation[position % o->n];
}
