/* Any bytes as the log of a run whose weights change in flight. What is accepted is what a run is drawn along: it has
 * the order and the bounds that the reader promises. */
#include <stdlib.h>
#include <string.h>

#include "rl/borders.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

static const ls_borders_limits limits = {.episodes = 2, .length = 40, .lag = 2};

static void check_episode(const ls_step_borders *b, int64_t i, int64_t step) {
    const int64_t begin = b->ends[i], end = b->ends[i + 1];
    if (end <= begin || end - begin > limits.lag + 1) abort();
    for (int64_t k = begin; k < end; k++) {
        const ls_border *at = &b->list[k];
        if (at->token < 1 || at->token >= limits.length) abort();
        if (at->version < 0 || at->version < step - 1 - limits.lag || at->version >= step) abort();
        if (k > begin && (at->token <= at[-1].token || at->version <= at[-1].version)) abort();
        if (ls_borders_version(b, i, at->token) != at->version) abort();
        if (ls_borders_next(b, i, at->token, limits.length) != (k + 1 < end ? at[1].token : limits.length)) abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes) {
    char *copy = malloc(n_bytes > 0 ? n_bytes : 1);
    ls_borders *b;
    ls_error err;
    if (copy == NULL) return 0;
    if (n_bytes > 0) memcpy(copy, data, n_bytes);
    if (ls_borders_parse(&b, copy, (int64_t)n_bytes, &limits, "input", &err) == LS_OK) {
        if (b->bytes > (int64_t)n_bytes || (b->bytes > 0 && copy[b->bytes - 1] != '\n')) abort();
        for (int64_t s = 1; s <= b->n; s++) {
            const ls_step_borders *of = ls_borders_of(b, s);
            if (of->n != limits.episodes || of->ends[0] != 0) abort();
            for (int64_t i = 0; i < of->n; i++) check_episode(of, i, s);
            if (ls_borders_agree(of, of, &err) != LS_OK) abort();
        }
        if (ls_borders_of(b, 0) != NULL || ls_borders_of(b, b->n + 1) != NULL) abort();
        ls_borders_free(b);
    } else if (b != NULL || strncmp(err.text, "input: line ", 12) != 0) {
        abort();
    }
    free(copy);
    return 0;
}
