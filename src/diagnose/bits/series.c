/* The series: steps of prompts x rollouts through one engine whose slots rotate, for several numbers of rollouts. A
 * fault of high slots shows as spikes that come back with a period, and both onset and period shrink as rollouts grow.
 */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "diagnose/bits/bits_trials.h"

enum { PROMPT_TOKENS = 3, COMPLETION_TOKENS = 2, BATCH_MAX = 256 };

static const int64_t rollouts[] = {8, 16, 32, 64, 128};

/* Sizes follow the pool: 128 rollouts fill nearly all of it in one step, 8 take 17 steps. */
static int64_t n_prompts_of(const ls_sweep_opts *o) {
    const int64_t n = o->far_slots / 136;
    return n < 1 ? 1 : n < 16 ? n : n / 16 * 16;
}
/* A clean stretch between two runs of bad sequences is at least this long. Neighbours in a batch may trade places. */
static int64_t gap_of(const ls_sweep_opts *o) { return o->far_slots / 32; }
static int64_t batch_of(const ls_sweep_opts *o) {
    const int64_t n = o->far_slots / 64;
    return n < 1 ? 1 : n < BATCH_MAX ? n : BATCH_MAX;
}

void ls_series_edges(const uint8_t *bad, int64_t n, int64_t gap, int64_t *first, int64_t *second) {
    int64_t clean = gap;
    *first = *second = -1;
    for (int64_t i = 0; i < n; i++) {
        if (!bad[i]) {
            clean++;
            continue;
        }
        if (clean >= gap || *first < 0) {
            if (*first < 0) {
                *first = i;
            } else {
                *second = i;
                return;
            }
        }
        clean = 0;
    }
}

double ls_series_slope(const double *x, const double *y, int64_t n) {
    double count = 0.0, sx = 0.0, sy = 0.0, sxx = 0.0, sxy = 0.0, variance;
    for (int64_t i = 0; i < n; i++) {
        if (!(x[i] > 0.0) || !(y[i] > 0.0)) continue;
        count += 1.0;
        sx += log(x[i]);
        sy += log(y[i]);
        sxx += log(x[i]) * log(x[i]);
        sxy += log(x[i]) * log(y[i]);
    }
    variance = count * sxx - sx * sx;
    return count >= 3.0 && variance > 0.0 ? (count * sxy - sx * sy) / variance : (double)NAN;
}

/* Steps until the pool's slots have been through once, and well into the second time. */
static int64_t steps_for(const ls_sweep_opts *o, int64_t per_step) {
    const int64_t steps = (o->far_slots * 7 / 4 + per_step - 1) / per_step;
    return steps < LS_STEPS_MAX ? steps : LS_STEPS_MAX;
}

static void add_slot(ls_sweep *sweep, const ls_outcome *c) {
    const int64_t bin = c->slot < 0 ? -1 : (int64_t)c->slot * LS_SLOT_BINS / sweep->opts.far_slots;
    if (bin < 0 || bin >= LS_SLOT_BINS) return;
    sweep->slot_n[bin]++;
    sweep->slot_abs[bin] += ls_outcome_abs(c);
}

static ls_status measure_series(ls_sweep *sweep, ls_series *s, const ls_outcomes *outcomes, ls_error *err) {
    const int64_t per_step = outcomes->n / s->n_steps;
    uint8_t *bad = NULL;
    ls_status status;
    LS_TRY_DONE(ls_array_alloc((void **)&bad, outcomes->n, 1, "series", err));
    for (int64_t i = 0; i < outcomes->n; i++) {
        bad[i] = ls_outcome_differs(&outcomes->of[i]);
        s->step_abs[i / per_step] += ls_outcome_abs(&outcomes->of[i]) / (double)per_step;
        add_slot(sweep, &outcomes->of[i]);
    }
    ls_series_edges(bad, outcomes->n, gap_of(&sweep->opts), &s->first_bad, &s->second_bad);
    s->onset = s->first_bad >= 0 ? (double)s->first_bad / (double)per_step : (double)NAN;
    s->period = s->second_bad >= 0 ? (double)(s->second_bad - s->first_bad) / (double)per_step : (double)NAN;
done:
    free(bad);
    return status;
}

/* One engine over all steps: every round is a step. */
static ls_status run_one(const ls_runner *runner, const ls_prompt *prompts, int64_t per_prompt, ls_series *s,
                         ls_error *err) {
    const ls_sweep_opts *o = &runner->sweep->opts;
    ls_observation seen;
    ls_outcomes outcomes = {0};
    ls_trial trial;
    ls_status status;
    ls_bits_trials_of(&trial, runner->trials, LS_TRY_SOLO);
    trial.sampling.temperature = 1.0f;
    trial.levers.samples = s->rollouts = per_prompt;
    trial.levers.batch = batch_of(o);
    trial.levers.chunk = 0;
    trial.levers.tick_tokens = batch_of(o) * PROMPT_TOKENS;
    trial.levers.slots = o->far_slots;
    trial.levers.slot_words = o->far_words;
    trial.levers.policy = LS_POLICY_FIFO;
    trial.max_tokens = COMPLETION_TOKENS;
    trial.rounds = s->n_steps = steps_for(o, n_prompts_of(o) * per_prompt);
    s->n_prompts = n_prompts_of(o);
    LS_TRY_DONE(ls_runner_try(runner, &trial, prompts, s->n_prompts, NULL, &outcomes, &seen, err));
    if (seen.failures.whole != LS_FAILURE_NONE) {
        status = LS_FAIL(err, LS_ERR_CAPACITY, "story: %" PRId64 " rollouts: %s", per_prompt, seen.failures.first);
        goto done;
    }
    s->n_sequences = seen.n_sequences;
    s->n_sequences_different = seen.n_sequences_different;
    s->n_bits = seen.n_bits;
    LS_TRY_DONE(measure_series(runner->sweep, s, &outcomes, err));
done:
    ls_outcomes_deinit(&outcomes);
    return status;
}

ls_status ls_series_run(const ls_runner *runner, ls_error *err) {
    ls_sweep *sweep = runner->sweep;
    const ls_prompt *longs = runner->trials->set[LS_SET_LONG];
    const int32_t vocab = runner->trials->config->vocab;
    const int64_t n_prompts = n_prompts_of(&sweep->opts);
    double x[LS_SERIES_MAX], onset[LS_SERIES_MAX], period[LS_SERIES_MAX];
    int32_t *ids = NULL;
    ls_prompt *prompts = NULL;
    ls_status status;
    LS_TRY_DONE(ls_array_alloc((void **)&ids, n_prompts * PROMPT_TOKENS, sizeof *ids, "prompts", err));
    LS_TRY_DONE(ls_array_alloc((void **)&prompts, n_prompts, sizeof *prompts, "prompts", err));
    for (int64_t i = 0; i < n_prompts; i++) {
        const int32_t *from = longs[i % LS_LONG_PROMPTS].ids;
        int32_t *to = ids + i * PROMPT_TOKENS;
        for (int64_t t = 0; t < PROMPT_TOKENS; t++) to[t] = (from[t] + (int32_t)(i / LS_LONG_PROMPTS)) % vocab;
        prompts[i] = (ls_prompt){to, PROMPT_TOKENS};
    }
    for (size_t i = 0; i < sizeof rollouts / sizeof rollouts[0]; i++) {
        char what[64];
        snprintf(what, sizeof what, "series with %" PRId64 " rollouts per prompt", rollouts[i]);
        ls_sweep_tell(&sweep->opts, (int64_t)i, (int64_t)(sizeof rollouts / sizeof rollouts[0]), what);
        LS_TRY_DONE(run_one(runner, prompts, rollouts[i], &sweep->series[sweep->n_series], err));
        x[i] = (double)rollouts[i];
        onset[i] = sweep->series[sweep->n_series].onset;
        period[i] = sweep->series[sweep->n_series].period;
        sweep->n_series++;
    }
    sweep->onset_slope = ls_series_slope(x, onset, sweep->n_series);
    sweep->period_slope = ls_series_slope(x, period, sweep->n_series);
    for (int i = 0; i < LS_SLOT_BINS; i++)
        if (sweep->slot_n[i] > 0) sweep->slot_abs[i] /= (double)sweep->slot_n[i];
done:
    free(prompts);
    free(ids);
    return status;
}
