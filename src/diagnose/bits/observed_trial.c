/* One trial of the sweep: through the door, and what differs is observed. And the requests that are kept of one. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "diagnose/bits/bits_trials.h"

ls_status ls_runner_try(const ls_runner *runner, const ls_trial *trial, const ls_prompt *prompts, int64_t n_prompts,
                        const ls_outcomes *baseline, ls_outcomes *outcomes, ls_observation *seen, ls_error *err) {
    ls_outcomes own = {0}, *out = outcomes != NULL ? outcomes : &own;
    ls_status status;
    LS_TRY_DONE(ls_door_try(runner->door, trial, prompts, n_prompts, out, err));
    runner->sweep->n_trials += out->failures.whole != LS_FAILURE_NO_TIME;
    if (out->failures.whole != LS_FAILURE_NONE) {
        ls_observe_failure(seen, &out->failures);
        goto done;
    }
    ls_observe(seen, out, baseline, ls_bits_noise(trial->dtype));
    runner->sweep->n_sequences += seen->n_sequences;
    runner->sweep->n_bits += seen->n_bits;
done:
    ls_outcomes_deinit(&own);
    return status;
}

ls_status ls_sweep_keep_repro(ls_sweep *sweep, const ls_prompt *prompts, int64_t n, const ls_trial *trial,
                              ls_error *err) {
    int64_t total = 0;
    LS_TRY(ls_array_alloc((void **)&sweep->repro, n, sizeof *sweep->repro, "prompts", err));
    for (int64_t i = 0; i < n; i++) total += prompts[i].n;
    LS_TRY(ls_array_alloc((void **)&sweep->repro_ids, total, sizeof *sweep->repro_ids, "prompts", err));
    for (int64_t i = 0, at = 0; i < n; at += prompts[i++].n) {
        memcpy(sweep->repro_ids + at, prompts[i].ids, (size_t)prompts[i].n * sizeof *sweep->repro_ids);
        sweep->repro[i] = (ls_prompt){sweep->repro_ids + at, prompts[i].n};
    }
    sweep->n_repro = n;
    sweep->repro_trial = *trial;
    return LS_OK;
}

void ls_sweep_drop_repro(ls_sweep *sweep) {
    free(sweep->repro);
    free(sweep->repro_ids);
    sweep->repro = NULL;
    sweep->repro_ids = NULL;
    sweep->n_repro = 0;
}
