/* One trial of the sweep: through the door, and what differs is observed. */
#include "diagnose/bits/sweep_ladder.h"

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
    ls_observe(seen, out, baseline, ls_ladder_noise(trial->dtype));
    runner->sweep->n_sequences += seen->n_sequences;
    runner->sweep->n_bits += seen->n_bits;
done:
    ls_outcomes_deinit(&own);
    return status;
}
