/* The switch of the laboratory: which fault is armed, and what the faults are called. Only the library with LS_FAULTS
 * contains this file. */
#include "base/inject.h"

#include <string.h>

#include "base/status.h"

#ifndef LS_FAULTS
#error "faults are for the laboratory alone"
#endif

ls_inject ls_inject_armed = LS_INJECT_NONE;

static const char *const names[LS_INJECT_COUNT] = {
    [LS_INJECT_NONE] = "none",
    [LS_INJECT_SLOT_STRIDE_U32] = "slot-stride-u32",
    [LS_INJECT_STALE_SLOT] = "stale-slot",
    [LS_INJECT_PREFIX_STATE_SHIFT] = "prefix-state-shift",
    [LS_INJECT_PREFIX_CROSS] = "prefix-cross",
    [LS_INJECT_CONV_SHORT_CHUNK] = "conv-short-chunk",
    [LS_INJECT_NO_RESET_PACKED] = "no-reset-packed",
    [LS_INJECT_STALE_WEIGHTS_PREFIX] = "stale-weights-prefix",
    [LS_INJECT_TEMPERATURE] = "temperature-not-mirrored",
    [LS_INJECT_SPLIT_K] = "split-k-by-batch",
    [LS_INJECT_SOFTPLUS_NAIVE] = "softplus-naive",
    [LS_INJECT_SEED_BY_SLOT] = "seed-by-slot",
    [LS_INJECT_LAG_ONE] = "lag-one",
    [LS_INJECT_DRAFT_STATE] = "draft-state",
    [LS_INJECT_BRANCH_ORDER] = "branch-order",
    [LS_INJECT_HELD_LEFT_BEHIND] = "held-left-behind",
};

void ls_inject_arm(ls_inject fault) { ls_inject_armed = fault; }

const char *ls_inject_name(ls_inject fault) {
    LS_ASSERT((int)fault >= 0 && fault < LS_INJECT_COUNT, "fault %d of %d", (int)fault, (int)LS_INJECT_COUNT);
    return names[fault];
}

bool ls_inject_parse(ls_inject *out, const char *name) {
    for (int i = 0; i < LS_INJECT_COUNT; i++) {
        if (strcmp(names[i], name) != 0) continue;
        *out = (ls_inject)i;
        return true;
    }
    return false;
}
