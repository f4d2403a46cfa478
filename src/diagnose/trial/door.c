/* One trial: the suspect runs it, the trainer scores it, and both have the same limits. */
#include "diagnose/trial/door.h"

#include <math.h>
#include <string.h>

#include "base/clock.h"

void ls_door_open(ls_door *door, double seconds, double timeout) {
    memset(door, 0, sizeof *door);
    door->opened = ls_clock_seconds();
    door->seconds = seconds;
    door->limits.timeout = timeout;
}

void ls_door_limit(ls_door *door) {
    if (door->seconds > 0.0) door->limits.end = door->opened + door->seconds;
}

bool ls_door_is_closed(const ls_door *door) { return ls_limits_are_over(&door->limits); }

double ls_door_share(const ls_door *door, double share) {
    const double now = ls_clock_seconds();
    if (door->hurried) return now;
    return door->limits.end > 0.0 ? now + share * fmax(door->limits.end - now, 0.0) : (double)INFINITY;
}

void ls_door_hurry(ls_door *door) { door->hurried = true; }

bool ls_limits_are_over(const ls_limits *limits) { return limits->end > 0.0 && ls_clock_seconds() > limits->end; }

/* A value of a prompt below which a token is not sure, whatever type it is computed in. */
#define NOT_SURE -0.05f

/* A value that a server does not have is none that is wrong: it counts as agreeing here, and is told as missing by
 * itself. Sequences without any value of the prompt are left as they are. */
static void pass_over_missing(const ls_trial *trial, ls_outcomes *outcomes) {
    /* Cut to one token a distribution has 0 for it, and is told so; else 0 is what stands where there is no value. */
    const bool is_whole = trial->sampling.temperature > 0.0f && !ls_sampling_truncates(&trial->sampling);
    for (int64_t s = 0; s < outcomes->n; s++) {
        ls_outcome *c = &outcomes->of[s];
        bool any = false;
        for (int64_t i = 0; i < c->n; i++) any = any || !isnan(c->scored[i]);
        for (int64_t i = 0; any && is_whole && i < c->n; i++) {
            if (c->logprob[i] != 0.0f || !(c->scored[i] < NOT_SURE)) continue;
            c->n_zero++;
            c->logprob[i] = (float)NAN;
        }
        for (int64_t i = 0; any && i < c->n; i++) {
            c->lacks = c->lacks || isnan(c->scored[i]) || isnan(c->logprob[i]);
            if (isnan(c->scored[i])) c->scored[i] = c->logprob[i];
            if (isnan(c->logprob[i])) c->logprob[i] = c->scored[i];
            if (isnan(c->scored[i])) c->scored[i] = c->logprob[i] = 0.0f; /* neither side has it */
        }
    }
}

static void count_requests(ls_outcomes *o) {
    for (int64_t s = 0; s < o->n; s++)
        if (o->of[s].failure != LS_FAILURE_NONE)
            ls_failures_add(&o->failures, o->of[s].failure, "%s", ls_failure_words(o->of[s].failure));
}

static bool has_tokens(const ls_outcomes *o) {
    for (int64_t s = 0; s < o->n; s++)
        if (o->of[s].n > 0) return true;
    return false;
}

static void end_for_time(ls_outcomes *out) {
    const ls_error none = {LS_ERR_CAPACITY, "no time was left"};
    ls_failures_end(&out->failures, LS_FAILURE_NO_TIME, &none);
}

ls_status ls_door_try(ls_door *door, const ls_trial *trial, const ls_prompt *prompts, int64_t n_prompts,
                      ls_outcomes *out, ls_error *err) {
    ls_trial limited = *trial;
    ls_error failure;
    ls_status status;
    limited.limits = door->limits;
    LS_TRY(ls_outcomes_create(out, trial, prompts, n_prompts, err));
    if (ls_door_is_closed(door)) {
        end_for_time(out);
        return LS_OK;
    }
    status = door->subject->run(door->subject->context, &limited, prompts, n_prompts, out, &failure);
    count_requests(out);
    if (status != LS_OK) {
        ls_failures_end(&out->failures, out->failures.whole, &failure);
        return LS_OK;
    }
    if (has_tokens(out) && ls_door_is_closed(door)) {
        end_for_time(out);
        return LS_OK;
    }
    status = ls_sweep_trainer_score(door->trainer, &limited, out, &failure);
    if (status == LS_ERR_CAPACITY && ls_door_is_closed(door)) {
        end_for_time(out);
        return LS_OK;
    }
    if (status != LS_OK) {
        if (err != NULL) *err = failure;
        return status;
    }
    if (door->subject->is_server) pass_over_missing(trial, out);
    return LS_OK;
}
