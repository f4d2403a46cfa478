/* The plan of a probe, from the experiments' own requests, and the temperature of its trials. */
#include "diagnose/rounding/probe_plan.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/sort.h"
#include "diagnose/rounding/inquiry.h"

/* A median |d| above which a record at temperature 3 is of another distribution than the prompt's values. */
#define FOLLOWS 0.05
#define FLAT_TEMPERATURE 3.0

/* An inquiry that runs nothing. */
static ls_inquiry *open_inquiry(const ls_runner *runner, const ls_model_config *config, ls_error *err) {
    ls_inquiry *q = calloc(1, sizeof *q);
    if (q == NULL) {
        (void)LS_FAIL(err, LS_ERR_NOMEM, "plan");
        return NULL;
    }
    q->runner = runner;
    q->config = config;
    q->seed = runner->sweep->opts.seed;
    return q;
}

static void close_inquiry(ls_inquiry *q) {
    for (int i = 0; q != NULL && i < LS_STACK_EXPERIMENTS; i++) free(q->requests[i].ids);
    free(q);
}

ls_status ls_probe_plan(FILE *file, const ls_sweep_opts *opts, const ls_model_config *config, ls_door *door,
                        const ls_probe_server *server, ls_error *err) {
    ls_sweep *sweep = calloc(1, sizeof *sweep);
    ls_bits_trials trials = {.config = config};
    const ls_runner runner = {sweep, &trials, door};
    const bool by_token = server->dialect == LS_DIALECT_LLAMA_CPP;
    int64_t all_requests = 0, all_tokens = 0, n_tried = 0;
    ls_inquiry *q = NULL;
    ls_status status = LS_OK;
    if (sweep == NULL) return LS_FAIL(err, LS_ERR_NOMEM, "plan");
    sweep->opts = *opts;
    trials.opts = &sweep->opts;
    q = open_inquiry(&runner, config, err);
    if (q == NULL) status = LS_ERR_NOMEM;
    fprintf(file, "%s: %s, asked as %s; a sequence has %s%" PRId64 " tokens at most\nplan\n", server->url,
            server->who[0] != '\0' ? server->who : "it does not say what it is", ls_dialect_name(server->dialect),
            server->length_max > 0 ? "" : "it does not say how many", server->length_max);
    for (int r = 0; r < LS_STACK_EXPERIMENTS && status == LS_OK; r++) {
        const char *refused = ls_stack_refused(q, (ls_stack_experiment)r);
        int64_t requests = 0, tokens = 0;
        ls_trial trial;
        if (refused != NULL) {
            fprintf(file, "  %-20s not tried: %s\n", ls_stack_experiment_name((ls_stack_experiment)r), refused);
            continue;
        }
        ls_stack_trial(q, (ls_stack_experiment)r, &trial, NULL);
        status = ls_stack_requests(q, (ls_stack_experiment)r, err);
        for (int64_t i = 0; i < q->requests[r].n; i++) {
            const int64_t n = q->requests[r].of[i].n + trial.max_tokens;
            const int64_t per = 1 + trial.levers.samples * (by_token ? trial.max_tokens : 1);
            requests += trial.rounds * per;
            tokens += trial.rounds * per * n;
        }
        fprintf(file, "  %-20s %4" PRId64 " requests, %6" PRId64 " tokens: %s\n",
                ls_stack_experiment_name((ls_stack_experiment)r), requests, tokens,
                ls_stack_experiment_text((ls_stack_experiment)r, true));
        all_requests += requests;
        all_tokens += tokens;
        n_tried++;
    }
    fprintf(file,
            "%" PRId64 " experiments, %" PRId64 " requests and %" PRId64
            " tokens at most, and as many again where something is off; limits: %" PRId64 " requests, %" PRId64
            " tokens, %g s\n",
            n_tried, all_requests, all_tokens, server->max_requests, server->max_tokens, door->seconds);
    close_inquiry(q);
    free(sweep);
    return status;
}

ls_status ls_probe_temperature(ls_sweep_opts *opts, const ls_model_config *config, ls_door *door, ls_error *err) {
    ls_sweep *sweep = calloc(1, sizeof *sweep);
    ls_bits_trials trials = {.config = config};
    const ls_runner runner = {sweep, &trials, door};
    ls_outcomes outcomes = {0};
    ls_observation seen;
    ls_inquiry *q = NULL;
    ls_trial trial;
    double list[64];
    int64_t n = 0;
    ls_status status;
    opts->temperature = 1.0;
    LS_TRY_DONE(sweep != NULL ? LS_OK : LS_FAIL(err, LS_ERR_NOMEM, "probe"));
    sweep->opts = *opts;
    sweep->opts.temperature = FLAT_TEMPERATURE;
    sweep->opts.seed ^= 0x5EED;
    trials.opts = &sweep->opts;
    q = open_inquiry(&runner, config, err);
    LS_TRY_DONE(q != NULL ? LS_OK : LS_ERR_NOMEM);
    ls_stack_trial(q, LS_STACK_SOLO_B, &trial, NULL);
    ls_sweep_tell(opts, 0, LS_STACK_EXPERIMENTS, "the temperature of its values");
    LS_TRY_DONE(ls_stack_requests(q, LS_STACK_SOLO_B, err));
    LS_TRY_DONE(ls_runner_try(&runner, &trial, q->requests[LS_STACK_SOLO_B].of, 1, NULL, &outcomes, &seen, err));
    for (int64_t s = 0; s < outcomes.n; s++)
        for (int64_t i = 0; i < outcomes.of[s].n && n < 64; i++)
            list[n++] = fabs((double)outcomes.of[s].scored[i] - (double)outcomes.of[s].logprob[i]);
    ls_sort(list, n);
    opts->hot_differs = n > 0 && !(list[n / 2] < FOLLOWS);
    if (n > 0 && !opts->hot_differs) opts->temperature = FLAT_TEMPERATURE;
done:
    ls_outcomes_deinit(&outcomes);
    close_inquiry(q);
    free(sweep);
    return status;
}
