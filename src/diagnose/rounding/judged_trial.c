/* One trial of a stack that promises no bits, judged by the floor. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/sort.h"
#include "diagnose/rounding/inquiry.h"

static double distance(const ls_outcome *c, int64_t i) { return fabs((double)c->scored[i] - (double)c->logprob[i]); }

bool ls_token_off(const ls_foreign *f, const ls_outcome *c, int64_t i) {
    return !(distance(c, i) <= f->limit) && !(i < 64 && (c->excused >> i & 1));
}

/* Without an answer nothing is known of values: that is a finding of its own (probe_causes.c). */
static bool is_unanswered(const ls_outcome *c) {
    return c->failure == LS_FAILURE_TIMED_OUT || c->failure == LS_FAILURE_DIED;
}

bool ls_sequence_off(const ls_foreign *f, const ls_outcome *c) {
    for (int64_t i = 0; i < c->n; i++)
        if (ls_token_off(f, c, i)) return true;
    return c->failure != LS_FAILURE_NONE && !is_unanswered(c);
}

static int64_t first_hung(const ls_outcomes *o) {
    for (int64_t s = 0; s < o->n; s++)
        if (is_unanswered(&o->of[s])) return s;
    return -1;
}

static double median_of(const ls_outcomes *o, double *most) {
    double *list = NULL, median = 0.0;
    int64_t n = 0, total = 0;
    ls_error ignored;
    *most = 0.0;
    for (int64_t s = 0; s < o->n; s++) total += o->of[s].n;
    if (total == 0 || ls_array_alloc((void **)&list, total, sizeof *list, "d", &ignored) != LS_OK) return 0.0;
    for (int64_t s = 0; s < o->n; s++)
        for (int64_t i = 0; i < o->of[s].n; i++)
            if (isfinite(distance(&o->of[s], i))) list[n++] = distance(&o->of[s], i);
    if (n > 0) {
        ls_sort(list, n);
        median = list[n / 2];
        *most = list[n - 1];
    }
    free(list);
    return median;
}

void ls_foreign_judge(const ls_foreign *f, ls_seen *s) {
    if (s->outcomes.n == 0) return;
    s->n_sequences = s->outcomes.n;
    s->n_sequences_off = s->n_tokens = s->n_off = s->n_failed = 0;
    s->first_off = -1;
    for (int64_t k = 0; k < s->outcomes.n; k++) {
        const ls_outcome *c = &s->outcomes.of[k];
        const bool off = ls_sequence_off(f, c);
        s->n_sequences_off += off;
        s->n_failed += c->failure != LS_FAILURE_NONE;
        if (off && s->first_off < 0) s->first_off = k;
        s->n_tokens += c->n;
        for (int64_t i = 0; i < c->n; i++) {
            s->n_off += ls_token_off(f, c, i);
            s->n_failed += !isfinite(c->logprob[i]);
        }
    }
    s->abs_median = median_of(&s->outcomes, &s->abs_max);
    s->spread = !f->is_server && s->n_off == 0 && s->n_tokens >= 24 && s->abs_median > 5.0 * f->floor &&
                s->abs_median > 0.2 * f->limit;
    s->look = s->n_sequences_off > 0 || s->spread ? LS_LOOK_OFF : LS_LOOK_CLEAN;
    if (f->is_server && s->n_off > 0 && s->n_failed == 0 && ls_probe_is_tail(f, s->n_off, s->n_tokens, s->abs_max))
        s->look = LS_LOOK_CLEAN;
}

/* A place where a little rounding moves a value by much is off for every stack: such tokens are excused, by how far the
 * reference moves there. */
#define EXCUSED 40.0
static ls_status excuse(ls_inquiry *q, ls_seen *seen, ls_error *err) {
    const ls_foreign *f = q->f;
    double moves[64];
    if (q->reference == NULL || f->strength <= 0.0) return LS_OK;
    for (int64_t s = 0; s < seen->outcomes.n; s++) {
        ls_outcome *c = &seen->outcomes.of[s];
        if (c->n > 64 || c->n == 0 || c->failure != LS_FAILURE_NONE || !ls_sequence_off(f, c)) continue;
        LS_TRY(ls_sensitivity(q, c, moves, err));
        for (int64_t i = 0; i < c->n; i++)
            if (distance(c, i) <= EXCUSED * f->strength * moves[i]) c->excused |= (uint64_t)1 << i;
    }
    ls_foreign_judge(f, seen);
    return LS_OK;
}

ls_status ls_foreign_excuse(ls_inquiry *q, ls_seen *seen, ls_error *err) {
    ls_foreign_judge(q->f, seen);
    return seen->look == LS_LOOK_OFF && !seen->spread ? excuse(q, seen, err) : LS_OK;
}

ls_status ls_foreign_try(ls_inquiry *q, const ls_trial *trial, uint64_t needs, const ls_prompt *prompts, int64_t n,
                         ls_seen *seen, ls_error *err) {
    const double start = ls_clock_seconds();
    ls_observation bits;
    memset(seen, 0, sizeof *seen);
    seen->first_off = seen->first_hung = -1;
    LS_TRY(ls_runner_try(q->runner, trial, prompts, n, NULL, &seen->outcomes, &bits, err));
    seen->seconds = ls_clock_seconds() - start;
    seen->failures = bits.failures;
    seen->first_hung = first_hung(&seen->outcomes);
    if (bits.failures.whole != LS_FAILURE_NONE) {
        memcpy(seen->note, bits.failures.first, sizeof seen->note);
        seen->look = bits.verdict == LS_UNTRIED ? LS_LOOK_UNTRIED : LS_LOOK_OFF;
        seen->n_failed = bits.verdict != LS_UNTRIED;
        if (bits.failures.whole == LS_FAILURE_NO_TIME) q->f->out_of_time = q->f->undecided = true;
        ls_outcomes_deinit(&seen->outcomes);
        return LS_OK;
    }
    LS_TRY(ls_foreign_excuse(q, seen, err));
    /* A hit chooses another kernel for all that is behind it, where requests alone have one. So may company. */
    if (q->f->is_server && (trial->levers.prefix == LS_PREFIX_ON || (q->rows_choose && ls_probe_has_company(trial))) &&
        seen->n_off > 0 && seen->n_failed == 0 && ls_probe_is_flip(q->f, seen->abs_max))
        seen->look = LS_LOOK_CLEAN;
    if (seen->outcomes.tells_levers && (needs & ~seen->outcomes.levers) != 0) {
        for (int64_t i = 0; i < ls_levers_count(); i++)
            if ((needs & ~seen->outcomes.levers) >> i & 1)
                snprintf(seen->note, sizeof seen->note, "the suspect does not say that it obeys --%s",
                         ls_lever_name(i));
        if (seen->look == LS_LOOK_CLEAN) seen->look = LS_LOOK_UNTRIED;
    }
    return LS_OK;
}

ls_status ls_foreign_try_experiment(ls_inquiry *q, ls_stack_experiment experiment, const ls_trial *trial, ls_seen *seen,
                                    ls_error *err) {
    return ls_foreign_try(q, trial, 0, q->requests[experiment].of, q->requests[experiment].n, seen, err);
}

void ls_seen_deinit(ls_seen *seen) {
    ls_outcomes_deinit(&seen->outcomes);
    memset(seen, 0, sizeof *seen);
    seen->first_off = seen->first_hung = -1;
}
