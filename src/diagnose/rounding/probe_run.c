/* The inquiry of a server. Each path to a value has a floor, measured where nothing is moved; one limit for all of them
 * comes from the farthest value there, since a batch, a cache hit or a chunk is no more than another of the server's
 * kernels. What lies beyond it is looked at by experiments; what does not is rounding of two kernels, and said. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/sort.h"
#include "diagnose/rounding/inquiry.h"

/* Below it nothing is told apart. Rounding alone passes this often the farthest of a hundred values seldom. */
#define LIMIT_LEAST 5e-5
#define BEYOND 3.0
/* Without a checkpoint: logits up to 64 have a quantum of 0.25 in bf16, and two of them make a difference. The middle
 * of what is not nearly sure is a tenth of that in any stack that was measured. */
#define BF16_TOKEN 0.5
/* Of the farthest value beside nine tenths of them. */
#define FAR_TIMES 100.0
#define FAR_LEAST 0.01
#define BF16_MEDIAN 0.05
/* With one: our own orders of addition move values by so much, and the server has orders that we do not. */
#define EXPECTED_TIMES 6.0

static double distance(const ls_outcome *c, int64_t i) { return fabs((double)c->scored[i] - (double)c->logprob[i]); }

/* The path of token i; LS_PATHS: none that is measured. */
static ls_path path_of(ls_stack_experiment experiment, const ls_outcomes *o, int64_t s, int64_t i) {
    if (experiment != LS_STACK_CACHED_SAME) return i == 0 ? LS_PATH_PREFILL : LS_PATH_DECODE;
    return i == 0 && s % 3 > 0 && o->of[s].n > 0 ? LS_PATH_HIT : LS_PATHS; /* each prompt comes three times */
}

/* Takes what it has of each path from one experiment. unsure: of tokens that are not nearly sure, the decoded ones. */
static ls_status measure_paths(ls_inquiry *q, const ls_stack_experiment *experiments, int64_t n_experiments,
                               ls_path from, ls_path to, double *unsure, ls_error *err) {
    double *list = NULL;
    int64_t total = 0;
    for (int64_t r = 0; r < n_experiments; r++)
        for (int64_t s = 0; s < q->f->seen[experiments[r]].outcomes.n; s++)
            total += q->f->seen[experiments[r]].outcomes.of[s].n;
    LS_TRY(ls_array_alloc((void **)&list, total + 1, sizeof *list, "floor", err));
    for (int path = (int)from; path <= (int)to + 1; path++) { /* the last: all that is not nearly sure */
        const bool of_unsure = path > (int)to;
        int64_t n = 0;
        for (int64_t r = 0; r < n_experiments; r++) {
            const ls_outcomes *o = &q->f->seen[experiments[r]].outcomes;
            for (int64_t s = 0; s < o->n; s++)
                for (int64_t i = 0; i < o->of[s].n; i++)
                    if (isfinite(distance(&o->of[s], i)) &&
                        (of_unsure ? (double)o->of[s].scored[i] < LS_SURE_TOKEN
                                   : path_of(experiments[r], o, s, i) == (ls_path)path))
                        list[n++] = distance(&o->of[s], i);
        }
        if (of_unsure) {
            if (unsure != NULL) *unsure = ls_quantile(list, n, 0.5, 0.0);
        } else {
            q->f->paths[path] = (ls_path_floor){n, ls_quantile(list, n, 0.5, 0.0), ls_quantile(list, n, 0.9, 0.0),
                                                ls_quantile(list, n, 1.0, 0.0)};
        }
    }
    free(list);
    return LS_OK;
}

static double deepest(const ls_foreign *f) {
    double most = 0.0;
    for (int r = 0; r < LS_PROBE_SOLO; r++) {
        const ls_outcomes *o = &f->seen[ls_probe_solo[r]].outcomes;
        for (int64_t s = 0; s < o->n; s++)
            for (int64_t i = 0; i < o->of[s].n; i++)
                if (isfinite(o->of[s].scored[i])) most = fmax(most, -(double)o->of[s].scored[i]);
    }
    return most;
}

enum { FIRST_LEAST = 20 };
static ls_status find_floor(ls_inquiry *q, ls_error *err) {
    ls_foreign *f = q->f;
    const ls_path_floor *prefill = &f->paths[LS_PATH_PREFILL], *decode = &f->paths[LS_PATH_DECODE];
    const bool has_model = f->expected.n > 0;
    double unsure = 0.0, bound;
    LS_TRY(measure_paths(q, ls_probe_solo, LS_PROBE_SOLO, LS_PATH_PREFILL, LS_PATH_DECODE, &unsure, err));
    /* Decoded tokens are most of them: first ones may be off alone. */
    if (prefill->n >= FIRST_LEAST) unsure = fmax(unsure, prefill->median);
    f->floor_tokens = prefill->n + decode->n;
    f->floor = decode->median;
    f->deepest = deepest(f);
    f->floor_q90 = fmax(decode->q90, prefill->q90);
    f->floor_max = fmax(decode->most, prefill->most);
    bound = has_model ? fmax(BEYOND * f->expected.most, LIMIT_LEAST) : BF16_TOKEN;
    /* A few values that lie so far beyond nine tenths of them are none that rounding makes. */
    bound = fmin(bound, fmax(FAR_LEAST, FAR_TIMES * f->floor_q90));
    f->limit = fmax(LIMIT_LEAST, f->floor_tokens > 0 ? fmin(BEYOND * f->floor_max, bound) : bound);
    f->constant = unsure > (has_model ? fmax(EXPECTED_TIMES * f->expected.median, LIMIT_LEAST) : BF16_MEDIAN);
    /* What bf16 would make is no excuse for a server whose prefill is of float32. */
    if (!f->constant && (!(f->floor_q90 > 0.0) || f->floor_max > LS_LEAST_PATTERN))
        LS_TRY(ls_probe_prefill_is_fine(q, &f->fine, err));
    f->constant = f->constant || (f->fine && unsure > LS_FLIP_OF_F16);
    if (f->constant) f->floor = unsure;
    return LS_OK;
}

/* A completion ends at a token whose value the server does not have, as one within a character, and one seed may draw
 * such a token first of all from every text. Of half the values that were asked for no floor is to be had. */
enum { SEEDS_MOST = 4, SOLO_VALUES = 5 * 8 + 34 * 3 };
static bool lacks_values(const ls_foreign *f) {
    int64_t n = 0;
    bool answered = false;
    for (int i = 0; i < LS_PROBE_SOLO; i++) {
        n += f->seen[ls_probe_solo[i]].n_tokens;
        answered = answered || f->seen[ls_probe_solo[i]].outcomes.n > 0;
    }
    return answered && 2 * n < SOLO_VALUES;
}

static ls_status run_solo(ls_inquiry *q, ls_error *err) {
    ls_foreign *f = q->f;
    bool tried = false;
    for (int i = 0; i < LS_PROBE_SOLO; i++) {
        LS_TRY(ls_foreign_run_experiment(q, ls_probe_solo[i], err));
        tried = tried || f->seen[ls_probe_solo[i]].outcomes.n > 0;
        if (ls_probe_solo[i] == LS_STACK_SOLO_C && !tried)
            return LS_FAIL(err, LS_ERR_UNSUPPORTED, "requests alone cannot be tried: %s", ls_foreign_why_untried(f));
    }
    return LS_OK;
}

static ls_status start_solo(ls_inquiry *q, ls_error *err) {
    ls_foreign *f = q->f;
    const ls_seen *one = &f->seen[LS_STACK_SOLO_LONG], *two = &f->seen[LS_STACK_AGAIN];
    const int64_t n_tried = f->n_tried;
    f->limit = LIMIT_LEAST;
    LS_TRY(run_solo(q, err));
    for (int i = 1; i < SEEDS_MOST && lacks_values(f) && !f->out_of_time; i++) {
        for (int r = 0; r < LS_PROBE_SOLO; r++) ls_seen_deinit(&f->seen[ls_probe_solo[r]]);
        f->n_tried = n_tried;
        q->runner->sweep->opts.seed++; /* of draws; texts stay */
        LS_TRY(run_solo(q, err));
    }
    LS_TRY(ls_probe_expect(q, err));
    LS_TRY(find_floor(q, err));
    LS_TRY(ls_probe_ask_for_keys(q, err));
    for (int i = 0; i < LS_PROBE_SOLO; i++)
        if (f->seen[ls_probe_solo[i]].outcomes.n > 0) ls_foreign_judge(f, &f->seen[ls_probe_solo[i]]);
    f->repeat = one->outcomes.n == 1 && two->outcomes.n == 1
                    ? ls_probe_apart(&one->outcomes.of[0], &two->outcomes.of[0])
                    : -1.0;
    return LS_OK;
}

static void leave_rest(ls_foreign *f) {
    for (int i = LS_STACK_SEQUENCE; i < LS_STACK_EXPERIMENTS; i++)
        if (f->seen[i].note[0] == '\0')
            snprintf(f->seen[i].note, sizeof f->seen[i].note, "requests alone are off, or the server's answers are");
}

/* ---- the whole ---- */

/* The first request with a value that is not there; nothing is smaller, since it does not make anything off. */
static ls_status keep_lacking(ls_inquiry *q, ls_error *err) {
    for (int r = 0; r < LS_STACK_EXPERIMENTS; r++) {
        const ls_outcomes *o = &q->f->seen[r].outcomes;
        for (int64_t s = 0; s < o->n; s++) {
            const ls_prompt prompt = {o->of[s].prompt, o->of[s].n_prompt};
            ls_trial trial;
            if (!o->of[s].lacks) continue;
            ls_stack_trial(q, (ls_stack_experiment)r, &trial, NULL);
            q->f->repro_of = (ls_stack_experiment)r;
            q->f->repro_shown = true; /* it is one of the trials */
            q->runner->sweep->repro_from = 1;
            return ls_sweep_keep_repro(q->runner->sweep, &prompt, 1, &trial, err);
        }
    }
    return LS_OK;
}

/* The first request that was never answered: nothing is smaller than one. */
static ls_status keep_hung(ls_inquiry *q, ls_error *err) {
    for (int r = 0; r < LS_STACK_EXPERIMENTS; r++) {
        ls_trial trial;
        if (q->f->seen[r].first_hung < 0) continue;
        ls_stack_trial(q, (ls_stack_experiment)r, &trial, NULL);
        q->f->repro_of = (ls_stack_experiment)r;
        q->f->repro_shown = true; /* it is one of the trials */
        q->runner->sweep->repro_from = q->requests[r].n;
        return ls_sweep_keep_repro(
            q->runner->sweep, &q->requests[r].of[q->f->seen[r].first_hung / trial.levers.samples % q->requests[r].n], 1,
            &trial, err);
    }
    return LS_OK;
}

/* Every request shows it, by a value within a limit that it makes itself or by no value at all. */
static ls_status keep_any(ls_inquiry *q, ls_error *err) {
    ls_trial trial;
    ls_stack_trial(q, LS_STACK_SOLO_C, &trial, NULL);
    trial.max_tokens = 2;
    q->f->repro_of = LS_STACK_SOLO_C;
    q->f->repro_shown = true; /* it is one of the trials */
    q->runner->sweep->repro_from = 1;
    return ls_sweep_keep_repro(q->runner->sweep, q->requests[LS_STACK_SOLO_C].of, 1, &trial, err);
}

static bool any_sequence_off(const ls_foreign *f) {
    for (int r = 0; r < LS_STACK_EXPERIMENTS; r++)
        if (f->seen[r].n_sequences_off > 0) return true;
    return false;
}

/* What no rounding makes: of float32 anything that is so many limits off, twice; of others what no time was left to
 * look into, if it is a quarter of the requests, and of a coarse type more of their tokens than ties are. */
#define FINE_FAR 100.0
#define TIES_MOST 0.05
static bool is_far_off(const ls_foreign *f, const ls_seen *s) {
    if (s->look != LS_LOOK_OFF) return false;
    if (f->floor_max <= LS_FINE && s->n_sequences_off >= 2 && s->abs_max > FINE_FAR * f->limit) return true;
    if (f->floor_q90 >= LS_LEAST_PATTERN && s->n_failed == 0 && (double)s->n_off <= TIES_MOST * (double)s->n_tokens)
        return false;
    return f->out_of_time && 4 * s->n_sequences_off >= s->n_sequences && s->abs_max > 2.0 * f->limit;
}

static bool is_left_open(const ls_foreign *f) {
    for (int r = LS_STACK_SEQUENCE; r < LS_STACK_EXPERIMENTS; r++) {
        if (r == LS_STACK_RAW || r == LS_STACK_COLD) continue; /* it may be a convention */
        if (is_far_off(f, &f->seen[r])) return true;
    }
    return false;
}

/* A request that was off, where fewer than all do not show it again. */
static ls_status keep_first_off(ls_inquiry *q, ls_error *err) {
    for (int r = 0; r < LS_STACK_EXPERIMENTS; r++) {
        const ls_outcomes *o = &q->f->seen[r].outcomes;
        for (int64_t s = 0; s < o->n; s++) {
            const ls_prompt prompt = {o->of[s].prompt, o->of[s].n_prompt};
            ls_trial trial;
            if (!ls_sequence_off(q->f, &o->of[s])) continue;
            ls_stack_trial(q, (ls_stack_experiment)r, &trial, NULL);
            q->f->repro_of = (ls_stack_experiment)r;
            q->runner->sweep->repro_from = o->n;
            return ls_sweep_keep_repro(q->runner->sweep, &prompt, 1, &trial, err);
        }
    }
    return LS_OK;
}

/* Sequences alone lie beyond the limit, in the middle or one here and there. */
static bool solo_is_off(const ls_foreign *f) { return f->constant || !ls_probe_solo_is_right(f); }

/* Where requests take long one of each kind comes first, and what is off before what lengths show within the limit. */
static ls_status look_at_levers(ls_inquiry *q, ls_error *err) {
    const bool in_haste = ls_probe_lacks_time(q);
    bool talks = false;
    if (in_haste) LS_TRY(ls_foreign_run_kinds(q, err));
    if (in_haste && !ls_foreign_any_off(q->f)) LS_TRY(ls_probe_decide_talk(q, &talks, err));
    if (!talks && !(in_haste && ls_foreign_any_off(q->f))) LS_TRY(ls_probe_decide_lengths(q, err));
    return q->f->found.n == 0 ? ls_foreign_climb(q, ls_probe_decide_early, err) : LS_OK;
}

ls_status ls_probe_inquire(ls_inquiry *q, ls_error *err) {
    static const ls_stack_experiment hits[1] = {LS_STACK_CACHED_SAME};
    ls_sweep *sweep = q->runner->sweep;
    ls_foreign *f = q->f;
    bool wrong_solo = false, turns = false, unsalted = false;
    LS_TRY(start_solo(q, err));
    f->undecided = false; /* experiments that were not tried decide nothing */
    /* Where requests alone are wrong nothing that is moved says more. */
    if (solo_is_off(f) && !ls_probe_is_odd(q)) LS_TRY(ls_probe_solo_holds(q, &wrong_solo, err));
    /* What was off alone and is not with other texts may come seldom, or hang on what was in front. */
    if (solo_is_off(f) && !wrong_solo && !ls_probe_is_odd(q)) LS_TRY(ls_probe_decide_turns(q, &turns, err));
    if (wrong_solo || turns || ls_probe_is_odd(q)) {
        leave_rest(f);
    } else {
        LS_TRY(ls_probe_decide_pattern(q, err));
        if (f->found.n == 0) LS_TRY(ls_probe_decide_unsalted(q, &unsalted, err));
        if (f->found.n == 0) LS_TRY(look_at_levers(q, err));
    }
    LS_TRY(measure_paths(q, hits, 1, LS_PATH_HIT, LS_PATH_HIT, NULL, err));
    LS_TRY(ls_probe_decide(q, err));
    /* What is off and was not looked into, for want of time, is no clean server's. */
    sweep->different = f->found.n > 0 || is_left_open(f) || (ls_foreign_is_incomplete(f) && ls_foreign_any_off(f));
    if (!sweep->different) return LS_OK;
    if (f->found.n == 0) return keep_first_off(q, err);
    f->repro_of = f->found.of[0].experiment;
    if (sweep->n_repro > 0) { /* found on the way */
        sweep->repro_from = sweep->n_repro;
        f->repro_shown = true;
        return LS_OK;
    }
    if (f->found.of[0].cause == LS_CAUSE_MISSING) return keep_lacking(q, err);
    if (f->found.of[0].cause == LS_CAUSE_NO_ANSWER) return keep_hung(q, err);
    if (f->constant || !any_sequence_off(f)) return keep_any(q, err);
    LS_TRY(ls_foreign_repro(q, err));
    return sweep->n_repro > 0 ? LS_OK : keep_first_off(q, err);
}
