/* Whether values are off by which tokens stand in the prompt, as rows of an embedding make it that are not those of the
 * prompt's own values: prompts of one token part into two sets, and longer prompts of either set alone go with it. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "base/sort.h"
#include "diagnose/rounding/inquiry.h"

enum { TOKENS = 28, SET_LEAST = 5, PROMPTS = 10, LENGTH = 4, TEXT = 4100 };
/* Of the two sets, the one is so much nearer than the other. */
#define PARTS 3.0
/* Other tokens in place of the prompt's would give the likeliest token of its text no more than any other has, in the
 * mean: what is off by more than this share of that may be such. */
#define ROWS_MOST 0.5
#define ROWS_SURE 0.96
#define ROWS_CHANCE 1e-3

typedef struct single {
    int32_t token;
    double size;
} single;

static int by_size(const void *a, const void *b) {
    const single *x = a, *y = b;
    return (x->size > y->size) - (x->size < y->size);
}

static void greedy_first(const ls_inquiry *q, ls_trial *trial) {
    ls_stack_trial(q, LS_STACK_SOLO_C, trial, NULL);
    trial->sampling.temperature = 0.0f;
    trial->max_tokens = 1;
}

static ls_status lay_singles(ls_inquiry *q, int64_t text, ls_trial *trial, ls_requests *r, ls_error *err) {
    greedy_first(q, trial);
    for (int64_t i = 0; i < TOKENS; i++) {
        const int32_t id = ls_plain_token(q, text, i);
        LS_TRY(ls_requests_add(r, &id, 1, err));
    }
    return LS_OK;
}

static ls_status find_singles(ls_inquiry *q, single *of, int64_t *n, ls_error *err) {
    ls_seen s;
    *n = 0;
    LS_TRY(ls_foreign_try_laid(q, lay_singles, TEXT, &s, err));
    for (int64_t i = 0; i < s.outcomes.n && s.outcomes.n == TOKENS; i++)
        if (s.outcomes.of[i].n > 0) of[(*n)++] = (single){ls_plain_token(q, TEXT, i), ls_probe_size(&s.outcomes.of[i])};
    ls_seen_deinit(&s);
    qsort(of, (size_t)*n, sizeof *of, by_size);
    return LS_OK;
}

/* Prompts of the tokens of one set alone; how many have a first token beyond `cut`, and the middle of their
 * records. */
static ls_status try_set(ls_inquiry *q, const single *of, int64_t n, double cut, int64_t *n_off, double *value,
                         ls_error *err) {
    ls_requests *r = calloc(1, sizeof *r);
    double list[PROMPTS];
    ls_seen s = {0};
    ls_trial trial;
    ls_status status;
    LS_TRY_DONE(r != NULL ? LS_OK : LS_FAIL(err, LS_ERR_NOMEM, "prompts"));
    greedy_first(q, &trial);
    for (int64_t i = 0; i < PROMPTS; i++) {
        int32_t ids[LENGTH];
        for (int64_t k = 0; k < LENGTH; k++) ids[k] = of[(3 * i + k * (1 + i / n) + k) % n].token;
        LS_TRY_DONE(ls_requests_add(r, ids, LENGTH, err));
    }
    LS_TRY_DONE(ls_foreign_try(q, &trial, 0, r->of, r->n, &s, err));
    *n_off = s.outcomes.n == PROMPTS ? 0 : -1;
    for (int64_t i = 0; i < PROMPTS && *n_off >= 0; i++) {
        *n_off += ls_probe_size(&s.outcomes.of[i]) > cut;
        list[i] = s.outcomes.of[i].n > 0 ? (double)s.outcomes.of[i].logprob[0] : 0.0;
    }
    *value = *n_off >= 0 ? ls_quantile(list, PROMPTS, 0.5, 0.0) : 0.0;
done:
    ls_seen_deinit(&s);
    if (r != NULL) free(r->ids);
    free(r);
    return status;
}

ls_status ls_probe_decide_rows(ls_inquiry *q, bool *found, ls_error *err) {
    const double from = ls_probe_moved_from(q);
    single of[TOKENS];
    double chance, value;
    int64_t n, n_right = 0, off_right, off_wrong;
    LS_TRY(find_singles(q, of, &n, err));
    while (n_right < n && of[n_right].size <= from) n_right++;
    if (n_right < SET_LEAST || n - n_right < SET_LEAST || of[n_right / 2].size * PARTS > of[n_right].size) return LS_OK;
    LS_TRY(try_set(q, of, n_right, from, &off_right, &value, err));
    LS_TRY(try_set(q, of + n_right, n - n_right, from, &off_wrong, &value, err));
    if (off_right < 0 || off_wrong < 0) return LS_OK;
    chance = ls_probe_chance(off_wrong, PROMPTS, off_right, PROMPTS);
    if (chance > ROWS_CHANCE || of[(n_right + n) / 2].size > ROWS_MOST * (value + log((double)q->config->vocab)))
        return LS_OK;
    *found = true;
    ls_foreign_find(q->f, LS_CAUSE_WEIGHTS, LS_STACK_SINGLE, ROWS_SURE - chance,
                    "prompts of one token: %" PRId64 " of %" PRId64
                    " tokens are off. Of longer prompts of these tokens alone %" PRId64
                    " of %d are, and of prompts of the others %" PRId64 " of %d: rows of the embedding are others",
                    n - n_right, n, off_wrong, PROMPTS, off_right, PROMPTS);
    return LS_OK;
}
