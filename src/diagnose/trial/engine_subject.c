/* The engine of this process as a subject: one engine for each trial. */
#include <stdlib.h>

#include "base/mem.h"
#include "diagnose/trial/trial.h"
#include "rollout/engine.h"

static ls_status run_round(ls_engine *engine, const ls_trial *trial, ls_request *requests, ls_outcome *outcomes,
                           int64_t n, ls_error *err) {
    for (int64_t i = 0; i < n; i++)
        requests[i] = (ls_request){.prompt = outcomes[i].prompt,
                                   .n_prompt = outcomes[i].n_prompt,
                                   .prompt_i = (uint32_t)(i / trial->levers.samples),
                                   .sample_i = (uint32_t)(i % trial->levers.samples),
                                   .max_tokens = trial->max_tokens,
                                   .completion = outcomes[i].completion,
                                   .logprob = outcomes[i].logprob};
    LS_TRY(ls_engine_run(engine, requests, n, NULL, NULL, err));
    for (int64_t i = 0; i < n; i++) {
        outcomes[i].n = requests[i].n_completion;
        if (requests[i].finish == LS_FINISH_ERROR) outcomes[i].failure = LS_FAILURE_GAVE_UP;
        outcomes[i].slot = requests[i].slot;
        outcomes[i].n_hit = requests[i].n_hit;
        outcomes[i].n_preempted = requests[i].n_preempted;
    }
    return LS_OK;
}

static ls_status run_rounds(const ls_engine_subject *s, ls_device *device, const ls_trial *trial, ls_outcomes *out,
                            ls_error *err) {
    const int64_t n = out->n / trial->rounds;
    ls_engine_opts opts = {.dtype = trial->dtype,
                           .levers = trial->levers,
                           .requests_max = n,
                           .logprob_of = trial->logprob_of,
                           .sampling = trial->sampling,
                           .inject = s->inject};
    ls_engine *engine = NULL;
    ls_request *requests = NULL;
    ls_model *model;
    ls_status status;
    for (int64_t i = 0; i < n; i++)
        if (out->of[i].n_prompt + trial->max_tokens > opts.length_max)
            opts.length_max = out->of[i].n_prompt + trial->max_tokens;
    LS_TRY_DONE(ls_sweep_trainer_model_for(s->trainer, trial, 0, &model, err));
    LS_TRY_DONE(ls_array_alloc((void **)&requests, n, sizeof *requests, "requests", err));
    LS_TRY_DONE(ls_engine_create(&engine, model, device, &opts, err));
    for (int64_t round = 0; round < trial->rounds; round++) {
        if (round == 1 && trial->update) {
            ls_model *updated;
            LS_TRY_DONE(ls_sweep_trainer_model_for(s->trainer, trial, 1, &updated, err));
            LS_TRY_DONE(ls_engine_set_weights(engine, updated, 1, err));
        }
        LS_TRY_DONE(run_round(engine, trial, requests, out->of + round * n, n, err));
    }
done:
    ls_engine_free(engine);
    free(requests);
    return status;
}

/* The trial's device, or NULL where it is the run's. */
static ls_status open_own(ls_device **out, const ls_engine_subject *s, const ls_trial *trial, ls_error *err) {
    const ls_levers *l = &trial->levers;
    LS_TRY(ls_device_open_beside(out, s->device, l->threads, l->isa, err));
    if (*out == NULL && (l->threads != s->threads || l->isa != s->isa))
        return LS_FAIL(err, LS_ERR_UNSUPPORTED, "threads and instruction set are the CPU's; this device has neither");
    return LS_OK;
}

static ls_status run_engine(void *context, const ls_trial *trial, const ls_prompt *prompts, int64_t n_prompts,
                            ls_outcomes *out, ls_error *err) {
    const ls_engine_subject *s = context;
    ls_device *own = NULL;
    ls_status status;
    (void)prompts;
    (void)n_prompts; /* outcomes hold them already */
    LS_TRY_DONE(open_own(&own, s, trial, err));
    status = run_rounds(s, own != NULL ? own : s->device, trial, out, err);
done:
    ls_device_close(own);
    return status;
}

ls_subject ls_subject_engine(ls_engine_subject *engine) {
    const ls_subject subject = {.context = engine, .run = run_engine};
    return subject;
}
