/* Trials that tell two causes apart which the experiments show alike: whether a request needs another one in front of
 * it, whether what its neighbours hold matters, whether a threshold moves with the page. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "diagnose/rounding/inquiry.h"

ls_status ls_foreign_off_solo(ls_inquiry *q, ls_stack_experiment experiment, int64_t most, int64_t *n_tried,
                              int64_t *n_off, ls_error *err) {
    const ls_outcomes *o = &q->f->seen[experiment].outcomes;
    ls_trial trial;
    uint64_t needs;
    *n_tried = *n_off = 0;
    ls_stack_trial(q, experiment, &trial, &needs);
    trial.levers.batch = 1;
    for (int64_t s = 0; s < o->n && *n_tried < most; s++) {
        const ls_prompt one = {o->of[s].prompt, o->of[s].n_prompt};
        ls_seen seen;
        if (!ls_sequence_off(q->f, &o->of[s])) continue;
        LS_TRY(ls_foreign_try(q, &trial, 0, &one, 1, &seen, err));
        if (seen.outcomes.n > 0) {
            ++*n_tried;
            *n_off += seen.look == LS_LOOK_OFF;
        }
        ls_seen_deinit(&seen);
    }
    return LS_OK;
}

/* Tokens that an experiment's trial puts through the model. */
static double work_of(ls_inquiry *q, ls_stack_experiment experiment) {
    double tokens = 0.0;
    ls_trial trial;
    ls_stack_trial(q, experiment, &trial, NULL);
    for (int64_t i = 0; i < q->requests[experiment].n; i++)
        tokens += (double)trial.levers.samples * (double)(q->requests[experiment].of[i].n + trial.max_tokens);
    return tokens * (double)trial.rounds;
}

bool ls_foreign_is_slow(ls_inquiry *q, ls_stack_experiment experiment) {
    const double limit = q->runner->door->limits.timeout;
    double pace = 0.0; /* seconds a token */
    if (q->f->seen[experiment].failures.n[LS_FAILURE_TIMED_OUT] == 0) return false;
    for (int r = 0; r < LS_STACK_EXPERIMENTS; r++) {
        const ls_seen *s = &q->f->seen[r];
        if (s->outcomes.n > 0 && s->first_hung < 0 && work_of(q, (ls_stack_experiment)r) >= 64.0)
            pace = fmax(pace, s->seconds / work_of(q, (ls_stack_experiment)r));
    }
    return pace * work_of(q, experiment) > 0.2 * limit;
}

/* Prompts of n tokens with pages of `page`, 0: the usual ones. Is one off? *told: the suspect says that it obeyed. */
static ls_status try_page(ls_inquiry *q, int64_t n, int64_t page, bool *off, bool *reported, ls_error *err) {
    const int64_t lever = ls_lever_find("page");
    ls_requests *r = calloc(1, sizeof *r);
    ls_seen seen = {0};
    ls_trial trial;
    ls_status status;
    *off = false;
    LS_TRY_DONE(r != NULL ? LS_OK : LS_FAIL(err, LS_ERR_NOMEM, "prompts"));
    ls_stack_trial(q, LS_STACK_LENGTHS, &trial, NULL);
    if (page > 0) trial.levers.page_tokens = page;
    trial.max_tokens = 1;
    for (int64_t i = 0; i < 4; i++) LS_TRY_DONE(ls_requests_plain(q, r, 2500 + i, n, err));
    LS_TRY_DONE(ls_foreign_try(q, &trial, 0, r->of, r->n, &seen, err));
    *off = seen.look == LS_LOOK_OFF;
    *reported = seen.outcomes.n > 0 && seen.outcomes.tells_levers && lever >= 0 && (seen.outcomes.levers >> lever & 1);
done:
    ls_seen_deinit(&seen);
    if (r != NULL) free(r->ids);
    free(r);
    return status;
}

ls_status ls_foreign_page_moves(ls_inquiry *q, int64_t length, ls_page_moves *out, ls_error *err) {
    bool usual, below, at, reported, tells = true, moves = false;
    *out = LS_PAGE_MOVES_UNKNOWN;
    if (length < 2 || length > 1024) return LS_OK;
    LS_TRY(try_page(q, length, 0, &usual, &reported, err));
    for (int k = 0; k < 2; k++) {
        const int64_t page = k == 0 ? 4 : 64;
        LS_TRY(try_page(q, length - 1, page, &below, &reported, err));
        tells = tells && reported;
        LS_TRY(try_page(q, length, page, &at, &reported, err));
        tells = tells && reported && at;
        moves = moves || below || (usual && !at);
    }
    *out = moves ? LS_PAGE_MOVES : tells ? LS_PAGE_STAYS : LS_PAGE_MOVES_UNKNOWN;
    return LS_OK;
}

/* The experiment's requests, of which every second one, from number `from_other` on, has another text of the same
 * length. */
static ls_status try_mixed(ls_inquiry *q, ls_stack_experiment experiment, int64_t from_other, int64_t slots,
                           ls_seen *seen, ls_error *err) {
    ls_requests *from = &q->requests[experiment], *r = calloc(1, sizeof *r);
    int32_t ids[1088];
    ls_trial trial;
    ls_status status;
    LS_TRY_DONE(r != NULL ? LS_OK : LS_FAIL(err, LS_ERR_NOMEM, "prompts"));
    ls_stack_trial(q, experiment, &trial, NULL);
    if (slots > 0) trial.levers.slots = slots;
    for (int64_t p = 0; p < from->n; p++) {
        const ls_prompt *one = &from->of[p];
        for (int64_t i = 0; i < one->n && i < 1088; i++)
            ids[i] = p % 2 == from_other ? ls_plain_token(q, 4000 + p, i) : one->ids[i];
        LS_TRY_DONE(ls_requests_add(r, ids, one->n, err));
    }
    LS_TRY_DONE(ls_foreign_try(q, &trial, 0, r->of, r->n, seen, err));
    for (int64_t i = 0; i < seen->outcomes.n; i++) seen->outcomes.of[i].prompt = NULL; /* they end here */
done:
    if (r != NULL) free(r->ids);
    free(r);
    return status;
}

/* How far the requests that kept their text and are off moved from one trial to the other. */
static double moved(const ls_foreign *f, const ls_outcomes *one, const ls_outcomes *two, int64_t first_kept) {
    double most = 0.0;
    for (int64_t s = first_kept; s < one->n && s < two->n; s += 2) {
        const ls_outcome *a = &one->of[s], *b = &two->of[s];
        for (int64_t i = 0; i < a->n && i < b->n && a->completion[i] == b->completion[i]; i++)
            if (ls_token_off(f, a, i) || ls_token_off(f, b, i))
                most = fmax(most, fabs((double)a->logprob[i] - (double)b->logprob[i]));
    }
    return most;
}

/* Which of them are off is not known before: the odd ones have another text first, then the even ones. */
ls_status ls_foreign_others_matter(ls_inquiry *q, ls_stack_experiment experiment, int64_t slots, double *content,
                                   int64_t *n_off, ls_error *err) {
    ls_seen one = {0}, two = {0};
    ls_status status;
    *content = 0.0;
    *n_off = 0;
    LS_TRY_DONE(try_mixed(q, experiment, -1, slots, &one, err));
    for (int64_t s = 0; s < one.outcomes.n; s++) *n_off += ls_sequence_off(q->f, &one.outcomes.of[s]);
    for (int64_t other = 1; other >= 0; other--) {
        ls_seen_deinit(&two);
        LS_TRY_DONE(try_mixed(q, experiment, other, slots, &two, err));
        *content = fmax(*content, moved(q->f, &one.outcomes, &two.outcomes, 1 - other));
    }
done:
    ls_seen_deinit(&one);
    ls_seen_deinit(&two);
    return status;
}

ls_status ls_lay_batch(ls_inquiry *q, int64_t value, ls_trial *trial, ls_requests *r, ls_error *err) {
    ls_stack_trial(q, LS_STACK_PAIR, trial, NULL);
    trial->levers.batch = value;
    trial->levers.slots = value > 64 ? value : 64;
    trial->max_tokens = 3;
    for (int64_t i = 0; i < value; i++) LS_TRY(ls_requests_plain(q, r, 2000 + i, 4, err));
    return LS_OK;
}

/* ---- what is recorded ---- */

enum { COPIES = 64, COPIES_LENGTH = 9, DRAWN_LEAST = 12 };

/* Copies of one prompt, one token each. */
static ls_status lay_copies(ls_inquiry *q, int64_t copies, ls_trial *trial, ls_requests *r, ls_error *err) {
    ls_stack_trial(q, LS_STACK_LENGTHS, trial, NULL);
    trial->levers.slots = copies;
    trial->max_tokens = 1;
    for (int64_t i = 0; i < copies; i++) LS_TRY(ls_requests_plain(q, r, 2900, COPIES_LENGTH, err));
    return LS_OK;
}

/* What the first tokens of equal requests say against their values: of one context each token has one, other tokens
 * have others, and all together are likely by 1 at most. */
static const char *against_copies(const ls_foreign *f, const ls_outcomes *o) {
    int64_t n_drawn = 0, n_twins = 0;
    double sum = 0.0;
    for (int64_t a = 0; a < o->n; a++) {
        bool again = false, twin = false;
        if (o->of[a].n == 0) continue;
        for (int64_t b = 0; b < o->n; b++) {
            const double apart = fabs((double)o->of[a].logprob[0] - (double)o->of[b].logprob[0]);
            if (b == a || o->of[b].n == 0) continue;
            if (o->of[a].completion[0] == o->of[b].completion[0]) {
                again = again || b < a;
                if (apart > 0.1 * f->floor + 2.0 * fmax(f->repeat, 0.0))
                    return "one token of one context has two values";
            } else {
                twin = twin || apart < 1e-6;
            }
        }
        if (again) continue;
        n_drawn++;
        n_twins += twin;
        sum += exp((double)o->of[a].logprob[0]);
    }
    if (n_drawn >= 3 && n_twins == n_drawn) return "all tokens of one context have one value";
    if (n_drawn >= DRAWN_LEAST && 4 * n_twins > n_drawn) return "many tokens of one context have values in common";
    return sum > 1.01 ? "tokens of one context are likely by more than 1 together" : NULL;
}

/* A request that ends at its first token, against the same one that went on. */
static ls_status try_ended(ls_inquiry *q, ls_stack_experiment experiment, bool *moves, ls_error *err) {
    const ls_outcomes *o = &q->f->seen[experiment].outcomes;
    ls_seen seen = {0};
    ls_trial trial;
    *moves = false;
    ls_stack_trial(q, experiment, &trial, NULL);
    trial.max_tokens = 1;
    LS_TRY(ls_foreign_try_experiment(q, experiment, &trial, &seen, err));
    for (int64_t s = 0; s < seen.outcomes.n && s < o->n; s++) {
        const ls_outcome *a = &seen.outcomes.of[s], *b = &o->of[s];
        if (a->n > 0 && b->n > 0 && a->completion[0] == b->completion[0])
            *moves = *moves || fabs((double)a->logprob[0] - (double)b->logprob[0]) >
                                   0.1 * q->f->floor + 2.0 * fmax(q->f->repeat, 0.0);
    }
    ls_seen_deinit(&seen);
    return LS_OK;
}

ls_status ls_foreign_against_records(ls_inquiry *q, const char **why, ls_error *err) {
    ls_seen seen;
    bool moves = false;
    *why = NULL;
    for (int r = LS_STACK_SOLO_A; r <= LS_STACK_SOLO_C && !moves; r++)
        LS_TRY(try_ended(q, (ls_stack_experiment)r, &moves, err));
    if (moves) *why = "a value depends on the tokens behind it";
    if (moves) return LS_OK;
    LS_TRY(ls_foreign_try_laid(q, lay_copies, COPIES, &seen, err));
    *why = against_copies(q->f, &seen.outcomes);
    ls_seen_deinit(&seen);
    return LS_OK;
}

ls_status ls_foreign_right_in_one_slot(ls_inquiry *q, ls_stack_experiment experiment, bool *is_right, ls_error *err) {
    ls_seen seen = {0};
    ls_trial trial;
    ls_stack_trial(q, experiment, &trial, NULL);
    trial.levers.slots = 1;
    LS_TRY(ls_foreign_try_experiment(q, experiment, &trial, &seen, err));
    *is_right = seen.outcomes.n > 0 && seen.look == LS_LOOK_CLEAN;
    ls_seen_deinit(&seen);
    return LS_OK;
}

/* ---- what is in the prompt ---- */

enum { FADE_TEXTS = 8, FADE_TOKENS = 48, FADE_EARLY = 3, FADE_LATE = 32 };

/* Of what is off where decoding begins, so much is left far behind it when it came with the prompt. */
#define FADED 0.2

static ls_status lay_single(ls_inquiry *q, int64_t texts, ls_trial *trial, ls_requests *r, ls_error *err) {
    ls_stack_trial(q, LS_STACK_LENGTHS, trial, NULL);
    trial->max_tokens = FADE_TOKENS;
    for (int64_t i = 0; i < texts; i++) LS_TRY(ls_requests_plain(q, r, 2950 + i, 1, err));
    return LS_OK;
}

/* Mean |d|, up to 1 each, of the tokens [from, to) that are not nearly sure. */
static double mean_of(const ls_outcomes *o, int64_t from, int64_t to) {
    double sum = 0.0;
    int64_t n = 0;
    for (int64_t s = 0; s < o->n; s++)
        for (int64_t i = from; i < to && i < o->of[s].n; i++) {
            const double d = fabs((double)o->of[s].scored[i] - (double)o->of[s].logprob[i]);
            if ((double)o->of[s].scored[i] >= LS_SURE_TOKEN) continue;
            sum += isfinite(d) ? fmin(d, 1.0) : 1.0;
            n++;
        }
    return n > 0 ? sum / (double)n : (double)NAN;
}

ls_status ls_foreign_fades(ls_inquiry *q, bool *fades, ls_error *err) {
    ls_seen seen;
    LS_TRY(ls_foreign_try_laid(q, lay_single, FADE_TEXTS, &seen, err));
    *fades = mean_of(&seen.outcomes, FADE_LATE, FADE_TOKENS) < FADED * mean_of(&seen.outcomes, 0, FADE_EARLY);
    ls_seen_deinit(&seen);
    return LS_OK;
}
