/* Likeliest entries on the CPU: an item is a row. */
#include "op/cpu/kernels.h"
#include "op/logprob.h"
#include "op/logprob_math.h"
#include "op/top.h"
#include "op/top_math.h"

/* Insertion into a short list of places, nearest first; most entries stand behind its last one at the first look. */
static void find_places(uint64_t *place, int64_t k, const float *row, int64_t vocab) {
    float last = 0.0f;
    int64_t n = 0;
    for (int64_t v = 0; v < vocab; v++) {
        int64_t i = n;
        uint64_t own;
        if (n == k && row[v] <= last) continue;
        own = ls_top_place(row[v], v);
        if (n == k && own > place[k - 1]) continue;
        if (n < k) n++;
        if (i == k) i--;
        for (; i > 0 && place[i - 1] > own; i--) place[i] = place[i - 1];
        place[i] = own;
        last = row[(uint32_t)place[n - 1]];
    }
}

static ls_logprob_leaf join_leaves(ls_logprob_leaf *leaves, int64_t n) {
    for (int64_t step = 1; step < n; step *= 2)
        for (int64_t i = 0; i + step < n; i += 2 * step) leaves[i] = ls_logprob_join(leaves[i], leaves[i + step]);
    return leaves[0];
}

LS_KERNEL_DEFINE(ls_top_kernel) {
    const ls_top_args *a = context;
    const int64_t n_leaves = ls_logprob_leaves(a->vocab);
    uint64_t place[LS_TOP_MAX];
    (void)scratch;
    for (int64_t r = begin; r < end; r++) {
        const float *row = a->logits + r * a->vocab;
        const ls_logprob_leaf sum = join_leaves(a->leaves + r * n_leaves, n_leaves);
        find_places(place, a->k, row, a->vocab);
        for (int64_t i = 0; i < a->k; i++) {
            const int32_t id = (int32_t)(uint32_t)place[i];
            a->id[r * a->k + i] = id;
            a->logprob[r * a->k + i] = ls_logprob_finish(sum, row[id]).logprob;
        }
    }
}
