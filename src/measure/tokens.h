/* How the tokens of sequences lie in the flat arrays of this folder, and named options. */
#ifndef LS_MEASURE_TOKENS_H
#define LS_MEASURE_TOKENS_H

#include <string.h>

#include "base/status.h"

/* Sequences laid end to end: sequence s has the tokens offsets[s] <= i < offsets[s + 1] of every array [tokens]. A
 * token counts where its mask is not 0: prompts and padding do not. */
typedef struct ls_tokens {
    int64_t n_sequences;
    const int64_t *offsets; /* [n_sequences + 1], from 0, not descending */
    const uint8_t *mask;    /* [tokens]; NULL: every token counts */
} ls_tokens;

static inline bool ls_token_counts(const ls_tokens *tokens, int64_t i) {
    return tokens->mask == NULL || tokens->mask[i] != 0;
}

/* Index of text in a list of names that NULL ends, or -1. */
static inline int ls_name_find(const char *const *names, const char *text) {
    for (int i = 0; names[i] != NULL; i++)
        if (strcmp(names[i], text) == 0) return i;
    return -1;
}

/* A log ratio is bounded by this before it becomes a ratio, so that no ratio overflows. */
#define LS_LOG_RATIO_MAX 20.0

static inline double ls_log_ratio_bound(double d) {
    if (d > LS_LOG_RATIO_MAX) return LS_LOG_RATIO_MAX;
    return d < -LS_LOG_RATIO_MAX ? -LS_LOG_RATIO_MAX : d;
}

#endif
