/* Faults for the laboratory. Only the library that is built for tests with LS_FAULTS contains them; in every other
 * build LS_INJECTED is the constant false, no code is left and nothing can switch one on.
 *
 * The engine arms its fault for the length of a tick, so that scoring, which stands for the trainer, stays sound. */
#ifndef LS_BASE_INJECT_H
#define LS_BASE_INJECT_H

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum ls_inject {
    LS_INJECT_NONE = 0,
    LS_INJECT_SLOT_STRIDE_U32,      /* scan spans of several tokens write state at offsets that wrap at 2^32 elements */
    LS_INJECT_STALE_SLOT,           /* a first chunk of one token continues from what the slot held */
    LS_INJECT_PREFIX_STATE_SHIFT,   /* a snapshot holds the state one token late */
    LS_INJECT_PREFIX_CROSS,         /* a prefix hit looks at a hash only, not at the tokens */
    LS_INJECT_CONV_SHORT_CHUNK,     /* a chunk of several tokens, shorter than the window, loses the inputs before it */
    LS_INJECT_NO_RESET_PACKED,      /* a sequence that begins behind another one in a forward begins with its state */
    LS_INJECT_STALE_WEIGHTS_PREFIX, /* prefix entries outlive the weights that made them */
    LS_INJECT_TEMPERATURE,          /* processed log-probabilities are recorded at temperature 1 */
    LS_INJECT_SPLIT_K,              /* dense products of 8 rows and more add two half chains */
    LS_INJECT_SOFTPLUS_NAIVE,       /* decode takes log(exp(x) + 1) */
    LS_INJECT_SEED_BY_SLOT,         /* draws are addressed by slot */
    LS_INJECT_LAG_ONE,              /* each token's record is the log-probability of the one before */
    LS_INJECT_DRAFT_STATE,          /* a refused draft leaves its state behind */
    LS_INJECT_BRANCH_ORDER,         /* in company gradients of branches add in descending order */
    LS_INJECT_HELD_LEFT_BEHIND,     /* a copy of a slot leaves behind what its states lack */
    LS_INJECT_COUNT
} ls_inject;

/* LS_INJECT_SPLIT_K: products of as many rows and steps, and more, are split. */
#define LS_INJECT_SPLIT_ROWS 8
#define LS_INJECT_SPLIT_STEPS 16

#ifdef LS_FAULTS
struct ls_pool;
struct ls_gemm_args;

extern ls_inject ls_inject_armed;
#define LS_INJECTED(fault) (ls_inject_armed == (fault))
void ls_inject_arm(ls_inject fault);
/* "slot-stride-u32", "stale-slot", "prefix-state-shift", "prefix-cross", "conv-short-chunk", "no-reset-packed",
 * "stale-weights-prefix", "temperature-not-mirrored", "split-k-by-batch", "softplus-naive", "seed-by-slot",
 * "lag-one", "draft-state", "branch-order", "held-left-behind" */
const char *ls_inject_name(ls_inject fault);
bool ls_inject_parse(ls_inject *out, const char *name);
/* Faults that are more than a hook (src/lab): true where the call is one of theirs and has been done. */
bool ls_inject_split_k(struct ls_pool *pool, const struct ls_gemm_args *args);
#else
#define LS_INJECTED(fault) false
#define ls_inject_arm(fault) ((void)(fault))
#define ls_inject_split_k(pool, args) false
#endif

#ifdef __cplusplus
}
#endif

#endif
