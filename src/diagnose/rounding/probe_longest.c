/* Whether a text's values hang on how long the request in front of it was, whatever that said: a scale that is of the
 * longest so far. A hit that is given to the wrong prompt hangs on what was said.
 * What is of the longest request ever stays behind a short one as well. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "diagnose/rounding/inquiry.h"

/* Behind a short one, so that all begin alike: two texts in front, each of two lengths. */
enum { TEXTS = 4, FROM = 4900, SHORT = 5, NEW = 3, SAID = 2, WAYS = 2 * SAID, EACH = 3 };
#define CHANCE 1e-3

static ls_status lay_longest(ls_inquiry *q, int64_t value, ls_trial *trial, ls_requests *r, ls_error *err) {
    const int64_t way = value % WAYS, n = value / WAYS < LS_PLAIN_MOST ? value / WAYS : LS_PLAIN_MOST;
    const int64_t twice = 2 * n < LS_PLAIN_MOST ? 2 * n : LS_PLAIN_MOST;
    ls_stack_trial(q, LS_STACK_SOLO_C, trial, NULL);
    trial->sampling.temperature = 0.0f;
    trial->max_tokens = NEW;
    for (int64_t i = 0; i < TEXTS; i++) {
        LS_TRY(ls_requests_plain(q, r, FROM, SHORT, err));
        LS_TRY(ls_requests_plain(q, r, FROM + 1 + TEXTS * (way % SAID) + i, way < SAID ? twice : n / 2, err));
        LS_TRY(ls_requests_plain(q, r, FROM + 1 + TEXTS * SAID + i, n, err));
    }
    return LS_OK;
}

static int64_t count_moved(const ls_inquiry *q, const ls_seen *a, const ls_seen *b) {
    int64_t n = 0;
    for (int64_t i = EACH - 1; i < a->outcomes.n && i < b->outcomes.n; i += EACH)
        n += ls_probe_apart(&a->outcomes.of[i], &b->outcomes.of[i]) > ls_probe_moved_from(q);
    return n;
}

ls_status ls_probe_measure_longest(ls_inquiry *q, int64_t length, ls_longest *out, ls_error *err) {
    ls_seen of[WAYS] = {0};
    ls_status status = LS_OK;
    *out = (ls_longest){.n = TEXTS * SAID};
    for (int64_t way = 0; way < WAYS && status == LS_OK; way++)
        status = ls_foreign_try_laid(q, lay_longest, WAYS * length + way, &of[way], err);
    for (int k = 0; k < SAID && status == LS_OK; k++) {
        out->by_length += count_moved(q, &of[k], &of[SAID + k]);
        out->by_text += count_moved(q, &of[SAID * k], &of[SAID * k + 1]);
    }
    for (int way = 0; way < WAYS; way++) ls_seen_deinit(&of[way]);
    LS_TRY(status);
    out->chance = ls_probe_chance(out->by_length, out->n, out->by_text, out->n);
    out->hangs = out->by_text == 0 && out->chance <= CHANCE;
    return LS_OK;
}

/* ---- of the longest ever ---- */

/* Texts behind a request that is longer than all before it, behind another one of that length, and behind a short one:
 * what is of the longest so far moves them with the first alone. */
enum { OWN = 3, OWN_LENGTH = 40, OWN_FROM = 4940, STEPS = 4, GROWN = 3, GROWN_LEAST = 160 };

static ls_status lay_outgrown(ls_inquiry *q, int64_t value, ls_trial *trial, ls_requests *r, ls_error *err) {
    ls_stack_trial(q, LS_STACK_SOLO_C, trial, NULL);
    trial->sampling.temperature = 0.0f;
    trial->max_tokens = NEW;
    for (int64_t step = 0; step < STEPS; step++) {
        const int64_t in_front = step == STEPS - 1 ? SHORT : value;
        if (step > 0) LS_TRY(ls_requests_plain(q, r, OWN_FROM + OWN + step, in_front, err));
        for (int64_t i = 0; i < OWN; i++) LS_TRY(ls_requests_plain(q, r, OWN_FROM + i, OWN_LENGTH, err));
    }
    return LS_OK;
}

static int64_t longest_so_far(const ls_foreign *f) {
    int64_t most = GROWN_LEAST;
    for (int r = 0; r < LS_STACK_EXPERIMENTS; r++)
        for (int64_t s = 0; s < f->seen[r].outcomes.n; s++) {
            const ls_outcome *c = &f->seen[r].outcomes.of[s];
            if (c->n_prompt + c->n > most) most = c->n_prompt + c->n;
        }
    return most;
}

/* Of the steps from a longer request, from another of that length, from a short one: how many move a text. */
static ls_status count_outgrown(ls_inquiry *q, int64_t length, int64_t moved[STEPS], int64_t *n, double *most,
                                ls_error *err) {
    ls_seen s;
    LS_TRY(ls_foreign_try_laid(q, lay_outgrown, length, &s, err));
    for (int64_t step = 1; step < STEPS && s.outcomes.n == OWN * STEPS + STEPS - 1; step++)
        for (int64_t i = 0; i < OWN; i++) {
            const ls_outcome *c = &s.outcomes.of[(OWN + 1) * step + i];
            const double d = ls_probe_records_apart(c - OWN - 1, c);
            moved[step] += d > ls_probe_moved_from(q);
            if (step == 1) *most = fmax(*most, d), ++*n;
        }
    ls_seen_deinit(&s);
    return LS_OK;
}

/* A text, a longer one than all before, and the text once more. */
static ls_status keep_outgrown(ls_inquiry *q, int64_t length, ls_error *err) {
    ls_requests *r = calloc(1, sizeof *r);
    ls_trial trial;
    ls_status status;
    LS_TRY_DONE(r != NULL ? LS_OK : LS_FAIL(err, LS_ERR_NOMEM, "prompts"));
    ls_stack_trial(q, LS_STACK_SOLO_C, &trial, NULL);
    trial.sampling.temperature = 0.0f;
    trial.max_tokens = NEW;
    LS_TRY_DONE(ls_requests_plain(q, r, OWN_FROM, OWN_LENGTH, err));
    LS_TRY_DONE(ls_requests_plain(q, r, OWN_FROM + OWN + 1, length, err));
    LS_TRY_DONE(ls_requests_plain(q, r, OWN_FROM, OWN_LENGTH, err));
    LS_TRY_DONE(ls_sweep_keep_repro(q->runner->sweep, r->of, r->n, &trial, err));
done:
    if (r != NULL) free(r->ids);
    free(r);
    return status;
}

ls_status ls_probe_decide_outgrown(ls_inquiry *q, bool *found, ls_error *err) {
    const int64_t allowed = q->runner->sweep->opts.length_max > 0 ? q->runner->sweep->opts.length_max - NEW : INT64_MAX;
    int64_t moved[STEPS] = {0}, n = 0, length = longest_so_far(q->f);
    double most = 0.0, chance;
    for (int k = 0; k < GROWN; k++) {
        const int64_t longer = length * 8 / 5;
        if (longer > LS_PLAIN_MOST || longer > allowed) break;
        length = longer;
        LS_TRY(count_outgrown(q, length, moved, &n, &most, err));
        if (moved[1] == 0 || moved[2] + moved[3] > 0) return LS_OK;
    }
    chance = ls_probe_chance(moved[1], n, moved[2] + moved[3], 2 * n);
    *found = n > 0 && chance <= CHANCE;
    if (*found)
        ls_foreign_find(q->f, LS_CAUSE_POSITIONS, LS_STACK_LENGTHS, ls_probe_sure(chance, 0.0),
                        "behind a request that is longer than all before it %" PRId64 " of %" PRId64
                        " texts move, by up to %.2g, and none behind another one of that length or a short one: what "
                        "hangs on the longest so far stays, as a base of positions does",
                        moved[1], n, most);
    return *found ? keep_outgrown(q, length, err) : LS_OK;
}
