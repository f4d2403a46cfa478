/* The smallest requests that still fail: fewer of them, then fewer new tokens, then shorter prompts. */
#ifndef LS_DIAGNOSE_TRIAL_SHRINK_H
#define LS_DIAGNOSE_TRIAL_SHRINK_H

#include "diagnose/trial/trial.h"

typedef struct ls_shrink {
    void *context;
    /* Whether these prompts fail with so many new tokens. */
    ls_status (*test)(void *context, const ls_prompt *prompts, int64_t n, int64_t max_tokens, bool *fails,
                      ls_error *err);
    int64_t tests_max; /* for fewer requests */
    bool by_halves;    /* lengths are halved; else tried one by one, from the shortest */
} ls_shrink;

/* Those of prompts[n] that fail without the others, into out[n]; *n_out 0: not even all of them do. */
ls_status ls_shrink_requests(const ls_shrink *shrink, const ls_prompt *prompts, int64_t n, int64_t max_tokens,
                             ls_prompt *out, int64_t *n_out, ls_error *err);
/* Shortens prompts[n] and the new tokens, as long as they fail. */
ls_status ls_shrink_lengths(const ls_shrink *shrink, ls_prompt *prompts, int64_t n, int64_t *max_tokens, ls_error *err);

#endif
