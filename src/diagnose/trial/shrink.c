/* Shrinking of requests by ddmin and by lengths. Owns the list of what is left while it runs. */
#include "diagnose/trial/shrink.h"

#include <stdlib.h>

#include "base/mem.h"
#include "diagnose/trial/ddmin.h"

typedef struct choice {
    const ls_shrink *shrink;
    const ls_prompt *prompts;
    int64_t max_tokens;
} choice;

static ls_status try_items(void *context, const int64_t *items, int64_t n, bool *fails, ls_error *err) {
    const choice *c = context;
    ls_prompt *prompts = NULL;
    ls_status status;
    LS_TRY_DONE(ls_array_alloc((void **)&prompts, n, sizeof *prompts, "prompts", err));
    for (int64_t i = 0; i < n; i++) prompts[i] = c->prompts[items[i]];
    LS_TRY_DONE(c->shrink->test(c->shrink->context, prompts, n, c->max_tokens, fails, err));
done:
    free(prompts);
    return status;
}

ls_status ls_shrink_requests(const ls_shrink *shrink, const ls_prompt *prompts, int64_t n, int64_t max_tokens,
                             ls_prompt *out, int64_t *n_out, ls_error *err) {
    choice c = {shrink, prompts, max_tokens};
    int64_t *items = NULL;
    bool fails;
    ls_status status;
    *n_out = 0;
    LS_TRY_DONE(ls_array_alloc((void **)&items, n, sizeof *items, "prompts", err));
    for (int64_t i = 0; i < n; i++) items[i] = i;
    LS_TRY_DONE(try_items(&c, items, n, &fails, err));
    if (!fails) goto done;
    LS_TRY_DONE(ls_ddmin(items, &n, try_items, &c, shrink->tests_max, NULL, err));
    for (int64_t i = 0; i < n; i++) out[i] = prompts[items[i]];
    *n_out = n;
done:
    free(items);
    return status;
}

static ls_status shorten(const ls_shrink *s, ls_prompt *prompts, int64_t n, ls_prompt *one, int64_t max_tokens,
                         ls_error *err) {
    const int64_t whole = one->n;
    bool fails = false;
    for (int64_t cut = whole / 2; s->by_halves && cut > 0; cut /= 2) {
        const int64_t before = one->n;
        if (before <= cut) continue;
        one->n -= cut;
        LS_TRY(s->test(s->context, prompts, n, max_tokens, &fails, err));
        if (!fails) one->n = before;
    }
    if (s->by_halves) return LS_OK;
    for (one->n = 1; one->n < whole && !fails; one->n += !fails)
        LS_TRY(s->test(s->context, prompts, n, max_tokens, &fails, err));
    return LS_OK;
}

ls_status ls_shrink_lengths(const ls_shrink *s, ls_prompt *prompts, int64_t n, int64_t *max_tokens, ls_error *err) {
    bool fails = false;
    for (int64_t tokens = 1; tokens < *max_tokens && !fails; tokens += s->by_halves ? tokens : 1) {
        LS_TRY(s->test(s->context, prompts, n, tokens, &fails, err));
        if (fails) *max_tokens = tokens;
    }
    for (int64_t i = 0; i < n; i++) LS_TRY(shorten(s, prompts, n, &prompts[i], *max_tokens, err));
    return LS_OK;
}
