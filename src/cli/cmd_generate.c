/* lockstep generate: prompts in, completions with log-probabilities out. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "cli/job.h"

/* What all records of a run share; owned by the record. */
static ls_status describe_run(ls_record *common, const ls_run_options *o, ls_error *err) {
    const char *kind = o->logprob_of == LS_LOGPROB_RAW ? "raw" : "processed";
    char text[64];
    ls_record_init(common);
    common->has_logprobs = common->has_seed = common->has_meta = true;
    common->seed = o->sampling.seed;
    LS_TRY(ls_text_copy(&common->logprob_of, kind, (int64_t)strlen(kind), err));
    common->temperature = (double)o->sampling.temperature;
    common->top_k = o->sampling.top_k;
    common->top_p = (double)o->sampling.top_p;
    common->min_p = (double)o->sampling.min_p;
    if (ls_penalties_act(&o->penalties)) {
        common->presence_penalty = (double)o->penalties.presence;
        common->frequency_penalty = (double)o->penalties.frequency;
        common->repetition_penalty = (double)o->penalties.repetition;
    }
    common->weights = LS_JOB_WEIGHTS;
    ls_numerics_text(text, o->profile, o->dtype);
    LS_TRY(ls_text_copy(&common->digest, text, (int64_t)strlen(text), err));
    LS_TRY(ls_array_alloc((void **)&common->levers, ls_levers_count(), sizeof *common->levers, "levers", err));
    for (int64_t i = 0; i < ls_levers_count(); i++) {
        ls_record_lever *lever = &common->levers[common->n_levers++];
        ls_lever_format(text, sizeof text, &o->levers, i);
        lever->is_number = ls_lever_is_number(&o->levers, i);
        LS_TRY(ls_text_copy(&lever->name, ls_lever_name(i), (int64_t)strlen(ls_lever_name(i)), err));
        LS_TRY(ls_text_copy(&lever->value, text, (int64_t)strlen(text), err));
    }
    return LS_OK;
}

/* One request as a record, which borrows from the job and from what is common; only id and text are its own. */
static ls_status write_record(ls_json_out *json, const ls_job *job, const ls_record *common, ls_request *r,
                              ls_error *err) {
    const ls_record *prompt = &job->prompts[r->prompt_i];
    ls_record record = *common;
    char *id = NULL, *text = NULL, finish[16];
    const size_t id_bytes = strlen(prompt->id) + 16;
    uint8_t *missing = NULL;
    ls_status status;
    LS_TRY_DONE(ls_array_alloc((void **)&id, (int64_t)id_bytes, 1, "id", err));
    LS_TRY_DONE(ls_array_alloc((void **)&missing, r->n_completion, 1, "log-probabilities", err));
    snprintf(id, id_bytes, "%s/%u", prompt->id, r->sample_i);
    snprintf(finish, sizeof finish, "%s", ls_finish_name(r->finish));
    record.id = id;
    record.prompt_ids = prompt->prompt_ids;
    record.n_prompt = prompt->n_prompt;
    record.completion_ids = r->completion;
    record.n_completion = record.n_logprobs = r->n_completion;
    record.logprobs = r->logprob;
    record.logprob_missing = missing;
    record.n_top = job->top;
    record.top_ids = r->top_id;
    record.top_logprobs = r->top_logprob;
    record.finish = finish;
    record.sample = r->sample_i;
    if (job->tokenizer != NULL) {
        LS_TRY_DONE(ls_tokenizer_decode_known(job->tokenizer, r->completion, r->n_completion, true, &text,
                                              &record.text_bytes, err));
        record.text = text;
    }
    record.slot = r->slot;
    record.cache_hit = r->n_hit;
    record.preemptions = r->n_preempted;
    if (r->finish == LS_FINISH_ERROR) record.error = r->error.text;
    ls_record_write(json, &record);
done:
    free(text);
    free(missing);
    free(id);
    return status;
}

int ls_cmd_generate(int argc, char **argv) {
    ls_run_options o;
    ls_job job = {0};
    ls_record common;
    ls_output *output = NULL;
    ls_json_out json;
    ls_error err;
    ls_status status;
    ls_record_init(&common);
    LS_TRY_DONE(ls_run_options_parse(&o, LS_COMMAND_GENERATE, argc, argv, &err));
    LS_TRY_DONE(describe_run(&common, &o, &err));
    LS_TRY_DONE(ls_output_open(&output, o.out, &err)); /* first: an unwritable output should not cost a generation */
    LS_TRY_DONE(ls_job_init(&job, &o, &err));
    LS_TRY_DONE(ls_job_generate(&job, &o, &err));
    ls_json_init(&json, ls_output_stream(output));
    for (int64_t i = 0; i < job.n_requests; i++) {
        LS_TRY_DONE(ls_output_check(output, &err));
        LS_TRY_DONE(write_record(&json, &job, &common, &job.requests[i], &err));
    }
    status = ls_output_commit(output, &err);
    output = NULL;
    if (status == LS_OK) status = ls_job_check(&job, &err);
    if (status == LS_OK) ls_run_summary(&o, job.n_requests, job.n_generated, job.seconds, &job);
done:
    ls_output_abandon(output);
    ls_job_deinit(&job);
    ls_record_deinit(&common);
    return status == LS_OK ? LS_EXIT_OK : ls_cli_fail(&err);
}
