/* The account of processors: each side writes its own share and reads the other's. */
#include "base/parallel_shares.h"

#include <math.h>

void ls_shares_init(ls_shares *shares, int32_t n, int32_t most) {
    *shares = (ls_shares){.n = n, .most = most < n ? most : n > 1 ? n - 1 : 1};
    for (int i = 0; i < LS_SIDES; i++) {
        atomic_init(&shares->of[i].last, -HUGE_VAL);
        atomic_init(&shares->of[i].held, 1);
    }
}

static bool works(const ls_share *share, double now) {
    return atomic_load(&share->is_in_range) || now - atomic_load(&share->last) < LS_SHARES_QUIET;
}

int32_t ls_shares_limit(const ls_shares *shares, ls_side side, double now) {
    const bool is_home = side == LS_SIDE_HOME;
    const ls_share *other = &shares->of[is_home ? LS_SIDE_BESIDE : LS_SIDE_HOME];
    int32_t held;
    if (!works(other, now)) return shares->n;
    if (!is_home) return shares->most;
    held = atomic_load(&other->held);
    if (held > shares->most) held = shares->most;
    return held < shares->n ? shares->n - held : 1;
}

/* Of two that begin at once, one at least sees the other. */
int32_t ls_shares_begin(ls_shares *shares, ls_side side, int32_t worth, double now) {
    ls_share *own = &shares->of[side];
    int32_t limit, parts;
    atomic_store(&own->is_in_range, true);
    limit = ls_shares_limit(shares, side, now);
    parts = worth < limit ? worth : limit;
    if (parts > own->widest) own->widest = parts;
    if (++own->n_ranges == LS_SHARES_WINDOW) {
        atomic_store(&own->held, own->widest);
        own->widest = own->n_ranges = 0;
    } else if (own->widest > atomic_load(&own->held)) {
        atomic_store(&own->held, own->widest);
    }
    return parts;
}

void ls_shares_end(ls_shares *shares, ls_side side, double now) {
    atomic_store(&shares->of[side].last, now);
    atomic_store(&shares->of[side].is_in_range, false);
}

int32_t ls_shares_held(const ls_shares *shares, ls_side side) { return atomic_load(&shares->of[side].held); }
