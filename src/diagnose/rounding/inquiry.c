/* The inquiry: requests alone first, the floor from them, then experiment by experiment, then what it means. */
#include "diagnose/rounding/inquiry.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/sort.h"

/* A median abs d from which on requests alone are wrong and not rounded, if nothing says that they are. */
#define CONSTANT 1.5e-3
#define LARGE_NOISE 3e-4
#define CALM_FLOOR 1e-4
#define LIMIT_LEAST 5e-5
#define QUIET_FLOOR 1e-5

/* ---- the floor ---- */

enum { GROUPS = 4, GROUP_MOST = 512 };

/* Abs d of requests alone, apart by where they could be wrong: each alone in its process; and in one process first
 * tokens of short prompts, first tokens of long ones, decoded ones. The median is of the tokens that could be off. */
typedef struct groups {
    double of[GROUPS][GROUP_MOST], of_unsure[GROUPS][GROUP_MOST];
    int64_t n[GROUPS], n_unsure[GROUPS];
} groups;

static void add_distance(groups *g, int group, const ls_outcome *c, int64_t i) {
    const double d = fabs((double)c->scored[i] - (double)c->logprob[i]);
    if (!isfinite(d) || g->n[group] == GROUP_MOST) return;
    g->of[group][g->n[group]++] = d;
    if ((double)c->scored[i] < LS_SURE_TOKEN) g->of_unsure[group][g->n_unsure[group]++] = d;
}

static void collect_distances(groups *g, const ls_seen *seen, bool one_process) {
    for (int64_t s = 0; s < seen->outcomes.n; s++) {
        const ls_outcome *c = &seen->outcomes.of[s];
        for (int64_t i = 0; i < c->n; i++)
            add_distance(g, !one_process ? 0 : i > 0 ? 3 : c->n_prompt > 9 ? 2 : 1, c, i);
    }
}

/* Where one group is far below another, the fault is in the other: the floor is what the lowest one says. */
static ls_status find_floor(ls_inquiry *q, ls_error *err) {
    static const ls_stack_experiment solo[] = {LS_STACK_SOLO_A, LS_STACK_SOLO_B, LS_STACK_SOLO_C, LS_STACK_SOLO_LONG,
                                               LS_STACK_LENGTHS};
    ls_foreign *f = q->f;
    groups *g = calloc(1, sizeof *g);
    double *all = NULL, low = (double)INFINITY, high = 0.0;
    int64_t n = 0;
    int lowest = 0;
    ls_status status;
    LS_TRY_DONE(g != NULL ? LS_OK : LS_FAIL(err, LS_ERR_NOMEM, "floor"));
    LS_TRY_DONE(ls_array_alloc((void **)&all, (int64_t)GROUPS * GROUP_MOST, sizeof *all, "floor", err));
    for (size_t i = 0; i < sizeof solo / sizeof solo[0]; i++)
        collect_distances(g, &f->seen[solo[i]], solo[i] == LS_STACK_LENGTHS);
    for (int k = 0; k < GROUPS; k++) {
        const double median = ls_quantile(g->of_unsure[k], g->n_unsure[k], 0.5, (double)INFINITY);
        if (g->n_unsure[k] < 3) continue;
        if (median < low) lowest = k;
        low = median < low ? median : low;
        high = median > high ? median : high;
    }
    for (int k = 0; k < GROUPS; k++) {
        if (high > 10.0 * low && high > LIMIT_LEAST && k != lowest &&
            !(ls_quantile(g->of_unsure[k], g->n_unsure[k], 0.5, (double)INFINITY) <=
              10.0 * fmax(low, LIMIT_LEAST / 24.0)))
            continue;
        memcpy(all + n, g->of[k], (size_t)g->n[k] * sizeof *all);
        n += g->n[k];
    }
    f->floor_tokens = n;
    f->floor = ls_quantile(all, n, 0.5, 0.0);
    f->floor_q90 = ls_quantile(all, n, 0.9, 0.0);
    f->floor_max = n > 0 ? all[n - 1] : 0.0;
    f->limit = 24.0 * f->floor;
    if (f->floor_q90 < 10.0 * f->floor && 5.0 * f->floor_q90 > f->limit) f->limit = 5.0 * f->floor_q90;
    if (f->limit < LIMIT_LEAST) f->limit = LIMIT_LEAST;
    /* Decode and prefill of one server: bf16 sums in two orders are further apart than a stack and its trainer should
     * be. Without a reference to say where rounding moves much, the farthest of ordinary values bounds it. */
    if (q->reference == NULL && f->floor > LARGE_NOISE) f->limit = fmax(f->limit, 2.0 * fmin(f->floor_max, 0.3));
    /* Where nearly sure tokens are many, the median of all says little of what is wrong with the others. */
    if (isfinite(low) && low > CONSTANT) f->floor = fmax(f->floor, low);
    f->constant = f->floor > CONSTANT;
done:
    free(all);
    free(g);
    return status;
}

/* The floor as a share of what bf16 activations do to the same requests. */
static ls_status find_strength(ls_inquiry *q, ls_error *err) {
    double list[64];
    int64_t n = 0;
    if (q->reference == NULL || q->f->constant) return LS_OK;
    for (int r = LS_STACK_SOLO_A; r <= LS_STACK_SOLO_LONG; r++) {
        const ls_outcomes *o = &q->f->seen[r].outcomes;
        if (o->n != 1 || o->of[0].n == 0 || n + o->of[0].n > 64) continue;
        LS_TRY(ls_sensitivity(q, &o->of[0], list + n, err));
        n += o->of[0].n;
    }
    if (n > 0) q->f->strength = q->f->floor / fmax(ls_quantile(list, n, 0.5, 0.0), 1e-12);
    return LS_OK;
}

/* Largest difference of two runs of equal requests, while their tokens are the same; -1: none. */
static double difference(const ls_seen *a, const ls_seen *b) {
    double most = -1.0;
    for (int64_t s = 0; s < a->outcomes.n && s < b->outcomes.n; s++) {
        const ls_outcome *x = &a->outcomes.of[s], *y = &b->outcomes.of[s];
        for (int64_t i = 0; i < x->n && i < y->n; i++) {
            if (x->completion[i] != y->completion[i]) break; /* another token, another value */
            most = fmax(most, fabs((double)x->logprob[i] - (double)y->logprob[i]));
        }
    }
    return most;
}

/* ---- the whole ---- */

static ls_status start_solo(ls_inquiry *q, ls_error *err) {
    ls_foreign *f = q->f;
    bool tried = false;
    f->limit = LIMIT_LEAST;
    for (int i = LS_STACK_SOLO_A; i <= LS_STACK_LENGTHS; i++) {
        LS_TRY(ls_foreign_run_experiment(q, (ls_stack_experiment)i, err));
        tried = tried || f->seen[i].outcomes.n > 0;
        if (i == LS_STACK_SOLO_C && !tried)
            return LS_FAIL(err, LS_ERR_UNSUPPORTED, "requests alone cannot be tried: %s", ls_foreign_why_untried(f));
    }
    LS_TRY(find_floor(q, err));
    LS_TRY(find_strength(q, err));
    for (int i = LS_STACK_SOLO_A; i <= LS_STACK_LENGTHS; i++)
        if (f->seen[i].outcomes.n > 0) LS_TRY(ls_foreign_excuse(q, &f->seen[i], err));
    f->repeat = difference(&f->seen[LS_STACK_SOLO_LONG], &f->seen[LS_STACK_AGAIN]);
    return LS_OK;
}

/* Explains requests alone. With a fault that explains them, there is nothing to climb for. */
static ls_status explain_solo(ls_inquiry *q, bool *explained, ls_error *err) {
    static const ls_stack_experiment solo[] = {LS_STACK_SOLO_A, LS_STACK_SOLO_LONG, LS_STACK_SOLO_B, LS_STACK_SOLO_C};
    ls_foreign *f = q->f;
    double confidence;
    *explained = false;
    ls_foreign_tell(q, "explaining requests alone");
    LS_TRY(ls_explain(q, solo, 4, err));
    if (f->n_best == 0 || f->best[0].harmless) return LS_OK;
    confidence = ls_explained_confidence(f);
    *explained = confidence >= LS_NAMED;
    ls_foreign_find(f, f->best[0].cause, LS_STACK_SOLO_LONG, confidence,
                    "requests alone: %s; with that the median |d| is %.2g in place of %.2g", f->best[0].what,
                    f->best[0].median, f->before.median);
    f->found.of[0].is_confirmed = true;
    return *explained && f->found.of[0].cause == LS_CAUSE_FROM_A_LENGTH ? ls_bound_length(q, err) : LS_OK;
}

/* With much rounding a few tokens lie beyond any limit: rare ones, not far beyond it, that nothing was found to move.
 */
static bool is_calm(const ls_foreign *f) {
    int64_t n_tokens = 0, n_off = 0;
    /* Beside its control the best cause is no better than chance. */
    const bool by_chance = f->found.n > 0 && f->found.of[0].doubt >= 0.5;
    if (f->found.n > 0 && f->found.of[0].is_confirmed) return false;
    if ((f->floor < CALM_FLOOR && !by_chance) || f->constant || ls_foreign_named(f) != NULL ||
        f->rival != LS_CAUSE_NONE)
        return false;
    for (int i = 0; i < LS_STACK_EXPERIMENTS; i++) {
        const ls_seen *s = &f->seen[i];
        if (s->n_failed > 0 || (s->look == LS_LOOK_OFF && s->outcomes.n == 0) || s->spread) return false;
        if (s->n_off > 0 && s->abs_max > 4.0 * f->limit && (!by_chance || f->floor < CALM_FLOOR)) return false;
        n_tokens += s->n_tokens;
        n_off += s->n_off;
    }
    return 300 * n_off <= n_tokens;
}

/* No more tokens beyond the limit than large differences have by themselves. */
#define FEW_OFF 0.08

/* Nothing is found that stands out, and requests alone are off by more than float32 makes: is that rounding? */
static bool is_quiet(const ls_inquiry *q) {
    const ls_foreign *f = q->f;
    for (int i = 0; i < LS_STACK_EXPERIMENTS; i++)
        if (f->seen[i].look == LS_LOOK_OFF && (double)f->seen[i].n_off > FEW_OFF * (double)f->seen[i].n_tokens)
            return false;
    return q->reference != NULL && !f->coarser && f->floor > QUIET_FLOOR &&
           (f->found.n == 0 || f->found.of[0].confidence < 0.5);
}

/* Records that are rounded, by little beside what faults do, are a finding and no reason to look for nothing else: one
 * that stands out behind them counts. */
static ls_status look_behind_rounding(ls_inquiry *q, bool *explained, ls_error *err) {
    ls_foreign *f = q->f;
    const ls_finding rounding = f->found.of[0];
    if (f->constant || rounding.cause != LS_CAUSE_COARSE_RECORDS) return LS_OK;
    f->found.n = 0;
    LS_TRY(ls_foreign_climb(q, NULL, err));
    LS_TRY(ls_foreign_decide(q, err));
    LS_TRY(ls_foreign_weigh(q, err));
    if (ls_foreign_named(f) != NULL) {
        *explained = false;
        return LS_OK;
    }
    f->found.of[0] = rounding;
    f->found.n = 1;
    f->rival = LS_CAUSE_NONE;
    return LS_OK;
}

static ls_status inquire(ls_inquiry *q, ls_error *err) {
    ls_sweep *sweep = q->runner->sweep;
    ls_foreign *f = q->f;
    bool explained, climbed; /* climbed: and what was seen is decided */
    LS_TRY(start_solo(q, err));
    f->undecided = false; /* experiments that were not tried decide nothing */
    LS_TRY(explain_solo(q, &explained, err));
    climbed = explained;
    if (explained) LS_TRY(look_behind_rounding(q, &explained, err));
    climbed = climbed && !explained;
    if (!explained && !climbed) LS_TRY(ls_foreign_climb(q, NULL, err));
    if (!climbed) LS_TRY(ls_foreign_decide(q, err));
    if (!explained && !climbed) LS_TRY(ls_foreign_weigh(q, err));
    if (!explained && ls_foreign_named(f) != NULL && ls_foreign_named(f)->cause == LS_CAUSE_PAGE_SIZE)
        LS_TRY(ls_bound_page(q, err));
    if (is_quiet(q)) LS_TRY(ls_decide_noise(q, err));
    if (is_quiet(q)) LS_TRY(ls_decide_rounding_or_weights(q, err));
    sweep->different = f->found.n > 0 || ls_foreign_any_off(f);
    if (sweep->different && is_calm(f)) {
        sweep->different = false;
        f->found.n = 0;
    }
    f->repro_of = f->found.n > 0 ? f->found.of[0].experiment : LS_STACK_SOLO_LONG;
    if (!sweep->different) return LS_OK;
    if (sweep->n_repro > 0) { /* found on the way */
        sweep->repro_from = sweep->n_repro;
        f->repro_shown = true;
        return LS_OK;
    }
    if (f->found.n == 0)
        for (int i = LS_STACK_EXPERIMENTS - 1; i >= 0; i--)
            if (f->seen[i].look == LS_LOOK_OFF) f->repro_of = (ls_stack_experiment)i;
    if (explained || f->constant) {
        /* Every request shows it, by a value that is not above a floor it makes itself. */
        ls_trial trial;
        ls_stack_trial(q, LS_STACK_SOLO_C, &trial, NULL);
        trial.max_tokens = f->found.n > 0 ? 2 : 1;
        f->repro_of = LS_STACK_SOLO_C;
        f->repro_shown = true; /* it is one of the trials */
        sweep->repro_from = 1;
        return ls_sweep_keep_repro(q->runner->sweep, q->requests[LS_STACK_SOLO_C].of, 1, &trial, err);
    }
    return ls_foreign_repro(q, err);
}

ls_status ls_foreign_run(const ls_runner *runner, const char *directory, ls_error *err) {
    ls_inquiry *q = calloc(1, sizeof *q);
    ls_error none;
    ls_status status;
    if (q == NULL) return LS_FAIL(err, LS_ERR_NOMEM, "sweep");
    q->runner = runner;
    q->config = runner->trials->config;
    q->seed = runner->sweep->opts.seed;
    q->climb_end = (double)INFINITY;
    ls_door_limit(runner->door);
    q->f = runner->sweep->foreign = calloc(1, sizeof *q->f);
    LS_TRY_DONE(q->f != NULL ? LS_OK : LS_FAIL(err, LS_ERR_NOMEM, "sweep"));
    for (int i = 0; i < LS_STACK_EXPERIMENTS; i++) q->f->seen[i].first_hung = -1;
    q->f->is_server = runner->door->subject->is_server;
    if (ls_sweep_trainer_is_other(runner->door->trainer))
        snprintf(q->f->no_reference, sizeof q->f->no_reference, "%s",
                 q->f->is_server ? "the server is its own trainer" : "the trainer is another program");
    else if (ls_reference_create(&q->reference, directory, q->config, LS_REFERENCE_PARAMETERS, &none) != LS_OK)
        snprintf(q->f->no_reference, sizeof q->f->no_reference, "%.*s", LS_NOTE_BYTES - 1, none.text);
    LS_TRY_DONE(q->f->is_server ? ls_probe_inquire(q, err) : inquire(q, err));
done:
    for (int i = 0; i < LS_STACK_EXPERIMENTS; i++) {
        if (q->f != NULL) ls_outcomes_deinit(&q->f->seen[i].outcomes);
        free(q->requests[i].ids);
    }
    ls_reference_free(q->reference);
    free(q);
    return status;
}

void ls_foreign_free(ls_foreign *f) { free(f); }

const ls_finding *ls_foreign_named(const ls_foreign *f) {
    if (f->rival != LS_CAUSE_NONE) return NULL;
    return ls_findings_named(&f->found);
}
