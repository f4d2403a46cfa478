/* One trial of the sweep: the suspect runs it, the trainer scores it, and what differs is observed. */
#include <math.h>

#include "base/mem.h"
#include "diagnose/bits/sweep_ladder.h"

/* A value that a server does not have is none that is wrong: it counts as agreeing here, and is told as missing by
 * itself. Sequences without any value of the prompt are left as they are. */
static void pass_over_missing(ls_outcomes *outcomes) {
    for (int64_t s = 0; s < outcomes->n; s++) {
        ls_outcome *c = &outcomes->of[s];
        bool any = false;
        for (int64_t i = 0; i < c->n; i++) any = any || !isnan(c->scored[i]);
        for (int64_t i = 0; any && i < c->n; i++) {
            c->lacks = c->lacks || isnan(c->scored[i]) || isnan(c->logprob[i]);
            if (isnan(c->scored[i])) c->scored[i] = c->logprob[i];
            if (isnan(c->logprob[i])) c->logprob[i] = c->scored[i];
            if (isnan(c->scored[i])) c->scored[i] = c->logprob[i] = 0.0f; /* neither side has it */
        }
    }
}

ls_status ls_runner_try(const ls_runner *runner, const ls_trial *trial, const ls_prompt *prompts, int64_t n_prompts,
                        const ls_outcomes *baseline, ls_outcomes *outcomes, ls_observation *seen, ls_error *err) {
    ls_outcomes own = {0}, *out = outcomes != NULL ? outcomes : &own;
    ls_error failure;
    ls_status status;
    LS_TRY_DONE(ls_outcomes_create(out, trial, prompts, n_prompts, err));
    runner->sweep->n_trials++;
    if (runner->subject->run(runner->subject->context, trial, prompts, n_prompts, out, &failure) != LS_OK) {
        ls_observe_failure(seen, &failure);
        goto done;
    }
    LS_TRY_DONE(ls_sweep_trainer_score(runner->trainer, trial, out, err));
    if (runner->subject->is_server) pass_over_missing(out);
    ls_observe(seen, out, baseline, ls_ladder_noise(trial->dtype));
    runner->sweep->n_sequences += seen->n_sequences;
    runner->sweep->n_bits += seen->n_bits;
done:
    ls_outcomes_deinit(&own);
    return status;
}
