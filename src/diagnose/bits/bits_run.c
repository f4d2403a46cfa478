/* The sweep: runs the experiments, ranks the causes, bisects the levers that decide, shrinks the requests. Owns the
 * outcomes of baselines meanwhile. */
#define _POSIX_C_SOURCE 200809L
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "diagnose/bits/bits_trials.h"
#include "diagnose/rounding/inquiry.h"
#include "diagnose/trial/ddmin.h"
#include "diagnose/trial/shrink.h"
#include "load/stack_config.h"

enum { LEVER_MAX = 16, DDMIN_TRIALS = 400 };

static void tell_progress(const ls_runner *runner, const char *what) {
    ls_sweep_tell(&runner->sweep->opts, 0, 0, what);
}

/* ---- the experiments ---- */

/* *foreign: the suspect promises no bits, and the rest is not for these experiments. */
static ls_status climb(const ls_runner *runner, bool *foreign, ls_error *err) {
    ls_sweep *sweep = runner->sweep;
    ls_outcomes kept[LS_EXPERIMENTS] = {0};
    ls_status status = LS_OK;
    for (int i = 0; i < LS_EXPERIMENTS; i++) {
        const ls_experiment baseline = ls_experiment_baseline((ls_experiment)i);
        const ls_prompt_set set = ls_experiment_set((ls_experiment)i);
        ls_trial trial;
        ls_sweep_tell(&sweep->opts, i, LS_EXPERIMENTS, ls_experiment_text((ls_experiment)i));
        if (i == LS_TRY_FAR_PAGES && runner->trials->far_pages == 0) {
            const ls_failures none = {.whole = LS_FAILURE_UNABLE, .first = "the model has no attention layer"};
            ls_observe_failure(&sweep->seen[i], &none);
            continue;
        }
        ls_bits_trials_of(&trial, runner->trials, (ls_experiment)i);
        LS_TRY_DONE(ls_runner_try(runner, &trial, runner->trials->set[set], runner->trials->n_set[set],
                                  baseline < LS_EXPERIMENTS ? &kept[baseline] : NULL, &kept[i], &sweep->seen[i], err));
        if (runner->door->subject->is_program &&
            (kept[i].promises_nothing || sweep->seen[LS_TRY_SOLO].failures.whole != LS_FAILURE_NONE)) {
            *foreign = true;
            goto done;
        }
        sweep->different = sweep->different || sweep->seen[i].verdict > LS_CLEAN;
        if (i == LS_TRY_SOLO && sweep->seen[i].verdict == LS_UNTRIED) {
            status =
                LS_FAIL(err, LS_ERR_UNSUPPORTED, "the baseline cannot be tried: %s", sweep->seen[i].failures.first);
            goto done;
        }
    }
done:
    for (int i = 0; i < LS_EXPERIMENTS; i++) ls_outcomes_deinit(&kept[i]);
    return status;
}

/* Differences no larger than rounding, and no cause for them: in bf16 most of them are rounded away, so that one is
 * seen here and none there. In float32 every one shows. */
static bool hides_in_rounding(const ls_sweep *sweep) {
    if (sweep->opts.dtype == LS_F32 || !sweep->different || sweep->ranked[0].fits) return false;
    for (int i = 0; i < LS_EXPERIMENTS; i++)
        if (sweep->seen[i].verdict == LS_LARGE) return false;
    return true;
}

static bool differs(const ls_sweep *sweep, ls_experiment experiment) {
    return ls_observed_difference(&sweep->seen[experiment]);
}

/* ---- bisection ---- */

typedef struct lever_search lever_search;

/* Lays out the trial with the lever at `value`. */
typedef void (*place_lever)(ls_trial *trial, ls_prompt *prompts, int64_t *n_prompts, const lever_search *search,
                            int64_t value);

struct lever_search {
    const ls_runner *runner;
    ls_bounded lever;
    place_lever place;
    ls_experiment base;
    ls_dtype dtype;
    bool first_token; /* nothing is decoded */
    int64_t low, high, n_trials;
    bool inverted; /* what is searched is the first value that does not differ */
};

static ls_status try_value(void *context, int64_t value, bool *fails, ls_error *err) {
    lever_search *s = context;
    ls_sweep *sweep = s->runner->sweep;
    ls_prompt prompts[LEVER_MAX];
    ls_observation seen;
    ls_trial trial;
    int64_t n_prompts = 0;
    ls_bits_trials_of(&trial, s->runner->trials, s->base);
    ls_bits_trials_numerics(&trial, s->runner->trials, s->dtype);
    if (s->first_token) trial.max_tokens = 1;
    s->place(&trial, prompts, &n_prompts, s, value);
    LS_TRY(ls_runner_try(s->runner, &trial, prompts, n_prompts, NULL, NULL, &seen, err));
    s->n_trials++;
    *fails = ls_observed_difference(&seen) != s->inverted;
    if (s->lever == LS_BOUNDED_SLOT && sweep->n_probes < LS_PROBES_MAX) {
        sweep->probes[sweep->n_probes].slot = value;
        sweep->probes[sweep->n_probes].differs = ls_observed_difference(&seen);
        sweep->probes[sweep->n_probes++].abs_mean = seen.abs_mean;
    }
    return LS_OK;
}

/* Finds where the verdict changes between low and high; no bound when both ends come out alike. */
static ls_status find_bound(lever_search *s, ls_error *err) {
    ls_sweep *sweep = s->runner->sweep;
    ls_bound *bound = &sweep->bounds[sweep->n_bounds];
    bool low, high;
    int64_t value;
    if (sweep->n_bounds == LS_BOUNDS_MAX) return LS_OK;
    LS_TRY(try_value(s, s->low, &low, err));
    LS_TRY(try_value(s, s->high, &high, err));
    if (low == high) return LS_OK;
    s->inverted = low;
    LS_TRY(ls_bisect(&value, s->low, s->high, try_value, s, err));
    *bound = (ls_bound){s->lever, s->dtype, low ? value - 1 : value, low, s->n_trials};
    sweep->n_bounds++;
    return LS_OK;
}

/* Prompts of two whole chunks. */
static void place_chunk(ls_trial *trial, ls_prompt *prompts, int64_t *n, const lever_search *s, int64_t value) {
    trial->levers.chunk = value;
    for (*n = 0; *n < 4; ++*n) {
        prompts[*n] = s->runner->trials->set[LS_SET_LONG][*n];
        prompts[*n].n = 2 * value;
    }
}

/* As many equal prompts as run at once. */
static void place_batch(ls_trial *trial, ls_prompt *prompts, int64_t *n, const lever_search *s, int64_t value) {
    trial->levers.batch = value;
    for (*n = 0; *n < value; ++*n) {
        prompts[*n] = s->runner->trials->set[LS_SET_LONG][*n];
        prompts[*n].n = LS_PLAIN_TOKENS;
    }
}

static void place_slot(ls_trial *trial, ls_prompt *prompts, int64_t *n, const lever_search *s, int64_t value) {
    trial->levers.policy = LS_POLICY_LOWEST;
    trial->levers.slot_base = value;
    prompts[(*n)++] = s->runner->trials->set[LS_SET_ONE][0];
}

/* The last page of a pool. */
static void place_page(ls_trial *trial, ls_prompt *prompts, int64_t *n, const lever_search *s, int64_t value) {
    trial->levers.pages = value + 1;
    prompts[(*n)++] = s->runner->trials->set[LS_SET_ONE][0];
}

static ls_status find_bounds(const ls_runner *runner, ls_error *err) {
    const ls_sweep *sweep = runner->sweep;
    const ls_dtype dtype = sweep->opts.dtype, other = dtype == LS_F32 ? LS_BF16 : LS_F32;
    const bool first = differs(sweep, LS_TRY_SOLO) && !differs(sweep, LS_TRY_FIRST);
    const bool solo = !differs(sweep, LS_TRY_SOLO);
    if ((solo || first) && (differs(sweep, LS_TRY_CHUNK1) || differs(sweep, LS_TRY_CHUNK2) ||
                            differs(sweep, LS_TRY_CHUNK2_FIRST) || differs(sweep, LS_TRY_WHOLE))) {
        const int64_t least = differs(sweep, LS_TRY_CHUNK2) && !differs(sweep, LS_TRY_CHUNK1) ? 2 : 1;
        lever_search s = {runner, LS_BOUNDED_CHUNK,   place_chunk, LS_TRY_SOLO, dtype, first,
                          least,  LS_LONG_TOKENS / 2, 0,           false};
        tell_progress(runner, "bisecting the chunk");
        LS_TRY(find_bound(&s, err));
    }
    if (solo && (differs(sweep, LS_TRY_PAIR) || differs(sweep, LS_TRY_BATCH))) {
        /* One row a sequence, if that is right by itself. */
        const ls_experiment base = differs(sweep, LS_TRY_CHUNK1) ? LS_TRY_SOLO : LS_TRY_CHUNK1;
        lever_search s = {runner, LS_BOUNDED_BATCH, place_batch, base, dtype, false, 1, LEVER_MAX, 0, false};
        tell_progress(runner, "bisecting the batch");
        LS_TRY(find_bound(&s, err));
    }
    if (solo && differs(sweep, LS_TRY_FAR)) {
        const int64_t last = sweep->opts.far_slots - 1;
        lever_search s = {runner, LS_BOUNDED_SLOT, place_slot, LS_TRY_FAR, dtype, false, 0, last, 0, false};
        tell_progress(runner, "bisecting the slot");
        LS_TRY(find_bound(&s, err));
        /* A second type of activations tells parts of the pool apart whose elements have the same size in the first. */
        s = (lever_search){runner, LS_BOUNDED_SLOT, place_slot, LS_TRY_FAR, other, false, 0, last, 0, false};
        LS_TRY(find_bound(&s, err));
    }
    if (solo && differs(sweep, LS_TRY_FAR_PAGES)) {
        lever_search s = {
            runner, LS_BOUNDED_PAGE, place_page, LS_TRY_FAR_PAGES, dtype, false, 15, runner->trials->far_pages - 1, 0,
            false};
        tell_progress(runner, "bisecting the page");
        LS_TRY(find_bound(&s, err));
    }
    return LS_OK;
}

static const ls_bound *bound_of(const ls_sweep *sweep, ls_bounded lever, ls_dtype dtype) {
    for (int64_t i = 0; i < sweep->n_bounds; i++)
        if (sweep->bounds[i].lever == lever && sweep->bounds[i].dtype == dtype) return &sweep->bounds[i];
    return NULL;
}

static int64_t pools_of(const ls_runner *runner, ls_dtype dtype, ls_pooled_tensor out[LS_POOLED_MAX]) {
    const ls_sweep_opts *o = &runner->sweep->opts;
    const ls_model_config *c = runner->trials->config;
    return ls_pooled_tensors(out, c, dtype, 4 * o->far_words, o->far_slots, ls_page_bytes(c, dtype, 64),
                             runner->trials->far_pages);
}

/* What expression wraps at the threshold that was found, in both types of activations. */
static void invert(const ls_runner *runner) {
    ls_sweep *sweep = runner->sweep;
    const ls_dtype dtype = sweep->opts.dtype, other = dtype == LS_F32 ? LS_BF16 : LS_F32;
    const ls_bound *page = bound_of(sweep, LS_BOUNDED_PAGE, dtype), *slot = bound_of(sweep, LS_BOUNDED_SLOT, dtype);
    const ls_bound *bound = slot != NULL ? slot : page, *second;
    ls_pooled_tensor tensors[LS_POOLED_MAX];
    ls_wrap wraps[LS_WRAPS_MAX];
    int64_t n_tensors, n_wraps;
    if (bound == NULL || bound->from_above) return;
    sweep->n_tensors = pools_of(runner, dtype, sweep->tensors);
    sweep->n_wraps = ls_threshold_invert(sweep->wraps, sweep->tensors, sweep->n_tensors, bound->lever, bound->value);
    second = bound_of(sweep, bound->lever, other);
    if (second == NULL) return;
    n_tensors = pools_of(runner, other, tensors);
    n_wraps = ls_threshold_invert(wraps, tensors, n_tensors, second->lever, second->value);
    for (int64_t i = 0; i < sweep->n_wraps; i++) {
        ls_wrap *w = &sweep->wraps[i];
        for (int64_t j = 0; j < n_wraps; j++)
            if (wraps[j].tensor - tensors == w->tensor - sweep->tensors && wraps[j].in_bytes == w->in_bytes &&
                wraps[j].is_signed == w->is_signed)
                w->fits = w->fits && wraps[j].fits;
    }
}

/* ---- the smallest requests ---- */

typedef struct repro {
    const ls_runner *runner;
    ls_trial trial, baseline; /* the latter where tokens are to be compared */
    bool compare;             /* fails: tokens or records are not the baseline's */
} repro;

static ls_status try_prompts(void *context, const ls_prompt *prompts, int64_t n, int64_t max_tokens, bool *fails,
                             ls_error *err) {
    repro *r = context;
    ls_outcomes baseline = {0};
    ls_observation seen;
    ls_status status;
    r->trial.max_tokens = r->baseline.max_tokens = max_tokens;
    r->runner->sweep->repro_trials++;
    if (r->compare) LS_TRY_DONE(ls_runner_try(r->runner, &r->baseline, prompts, n, NULL, &baseline, &seen, err));
    LS_TRY_DONE(ls_runner_try(r->runner, &r->trial, prompts, n, r->compare ? &baseline : NULL, NULL, &seen, err));
    *fails = r->compare ? seen.n_changed > 0 : ls_observed_difference(&seen);
done:
    ls_outcomes_deinit(&baseline);
    return status;
}

/* The experiment to shrink: the first that shows the named cause, or the first of all. */
static ls_experiment failing(const ls_sweep *sweep) {
    const ls_ranked *named = ls_sweep_cause(sweep);
    const ls_bits_pattern *pattern = named != NULL ? &ls_cause_of(named->cause)->bits : NULL;
    if (pattern != NULL && pattern->sign == LS_SIGN_UNREPEATABLE) return LS_TRY_AGAIN;
    for (int i = LS_TRY_SOLO; i < LS_EXPERIMENTS; i++) {
        const uint64_t bit = (uint64_t)1 << i;
        if (pattern != NULL && ((pattern->large | pattern->small | pattern->moved) & named->met & bit) == 0) continue;
        if (sweep->seen[i].verdict > LS_CLEAN) return (ls_experiment)i;
    }
    return LS_TRY_GIVEN;
}

static ls_status find_repro(const ls_runner *runner, ls_error *err) {
    ls_sweep *sweep = runner->sweep;
    const ls_experiment experiment = failing(sweep);
    const ls_prompt_set set = ls_experiment_set(experiment);
    const ls_bound *slot = bound_of(sweep, LS_BOUNDED_SLOT, sweep->opts.dtype);
    const int64_t n_all = runner->trials->n_set[set];
    ls_experiment baseline = ls_experiment_baseline(experiment);
    repro r = {.runner = runner};
    const ls_shrink shrink = {.context = &r, .test = try_prompts, .tests_max = DDMIN_TRIALS};
    ls_prompt *prompts = NULL;
    int64_t n, max_tokens;
    ls_status status;
    ls_bits_trials_of(&r.trial, runner->trials, experiment);
    if (baseline == LS_EXPERIMENTS) baseline = experiment;
    ls_bits_trials_of(&r.baseline, runner->trials, baseline);
    r.compare = !differs(sweep, experiment);
    if (experiment == LS_TRY_FAR && slot != NULL) { /* at the threshold itself */
        r.trial.levers.policy = LS_POLICY_LOWEST;
        r.trial.levers.slot_base = slot->value;
    }
    tell_progress(runner, "shrinking the requests");
    sweep->repro_of = experiment;
    sweep->repro_from = n_all;
    max_tokens = r.trial.max_tokens;
    LS_TRY_DONE(ls_array_alloc((void **)&prompts, n_all, sizeof *prompts, "prompts", err));
    LS_TRY_DONE(ls_shrink_requests(&shrink, runner->trials->set[set], n_all, max_tokens, prompts, &n, err));
    if (n == 0) goto done; /* it does not come back: nothing to shrink */
    LS_TRY_DONE(ls_shrink_lengths(&shrink, prompts, n, &max_tokens, err));
    r.trial.max_tokens = max_tokens;
    LS_TRY_DONE(ls_sweep_keep_repro(sweep, prompts, n, &r.trial, err));
done:
    free(prompts);
    return status;
}

/* ---- the whole ---- */

const ls_ranked *ls_sweep_cause(const ls_sweep *sweep) {
    return sweep->different && sweep->ranked[0].fits ? &sweep->ranked[0] : NULL;
}

/* Neither side is this program: nothing promises bits, and no model is opened here. */
static ls_status run_strangers(ls_sweep *out, ls_door *door, ls_error *err) {
    ls_model_config config;
    ls_bits_trials trials = {.opts = &out->opts, .config = &config};
    const ls_runner runner = {out, &trials, door};
    LS_TRY(ls_stack_config_open(&config, out->opts.model, err));
    return ls_foreign_run(&runner, out->opts.model, err);
}

ls_status ls_sweep_run(ls_sweep *out, const ls_sweep_opts *opts, ls_door *door, ls_error *err) {
    const double start = ls_clock_seconds();
    ls_bits_trials trials = {0};
    const ls_runner runner = {out, &trials, door};
    ls_model *model;
    bool foreign = false;
    ls_status status;
    memset(out, 0, sizeof *out);
    out->opts = *opts;
    out->onset_slope = out->period_slope = (double)NAN;
    if (ls_sweep_trainer_is_other(door->trainer)) {
        LS_TRY_DONE(run_strangers(out, door, err));
        out->seconds = ls_clock_seconds() - start;
        goto done;
    }
    LS_TRY_DONE(ls_sweep_trainer_model(door->trainer, 0, &model, err));
    LS_TRY_DONE(ls_bits_trials_create(&trials, &out->opts, &model->config, err));
    LS_TRY_DONE(climb(&runner, &foreign, err));
    if (foreign) {
        LS_TRY_DONE(ls_foreign_run(&runner, opts->model, err));
        out->seconds = ls_clock_seconds() - start;
        goto done;
    }
    out->n_ranked = ls_causes_rank(out->ranked, out->seen);
    if (hides_in_rounding(out)) {
        out->opts.dtype = LS_F32;
        LS_TRY_DONE(climb(&runner, &foreign, err));
        out->n_ranked = ls_causes_rank(out->ranked, out->seen);
    }
    if (opts->story) LS_TRY_DONE(ls_series_run(&runner, err));
    for (int64_t i = 0; i < out->n_series; i++)
        out->different = out->different || out->series[i].n_sequences_different > 0;
    if (out->different) {
        LS_TRY_DONE(find_bounds(&runner, err));
        invert(&runner);
        LS_TRY_DONE(find_repro(&runner, err));
    }
    out->seconds = ls_clock_seconds() - start;
done:
    ls_bits_trials_deinit(&trials);
    if (status != LS_OK) ls_sweep_deinit(out);
    return status;
}

ls_status ls_sweep_run_server(ls_sweep *out, const ls_sweep_opts *opts, const ls_model_config *config, ls_door *door,
                              ls_error *err) {
    const ls_subject *subject = door->subject;
    const double start = ls_clock_seconds();
    const ls_bits_trials trials = {.opts = &out->opts, .config = config};
    const ls_runner runner = {out, &trials, door};
    ls_status status;
    memset(out, 0, sizeof *out);
    out->opts = *opts;
    out->onset_slope = out->period_slope = (double)NAN;
    LS_TRY_DONE(ls_foreign_run(&runner, opts->model, err));
    if (out->n_repro > 0 && subject->repro != NULL) {
        size_t bytes;
        FILE *stream = open_memstream(&out->repro_text, &bytes);
        if (stream == NULL) {
            status = LS_FAIL(err, LS_ERR_NOMEM, "command lines");
            goto done;
        }
        subject->repro(subject->context, stream, &out->repro_trial, out->repro, out->n_repro);
        if (fclose(stream) != 0) status = LS_FAIL(err, LS_ERR_NOMEM, "command lines");
    }
    out->seconds = ls_clock_seconds() - start;
done:
    if (status != LS_OK) ls_sweep_deinit(out);
    return status;
}

void ls_sweep_deinit(ls_sweep *sweep) {
    free(sweep->repro_text);
    ls_foreign_free(sweep->foreign);
    free(sweep->repro);
    free(sweep->repro_ids);
    memset(sweep, 0, sizeof *sweep);
}
