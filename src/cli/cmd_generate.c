/* lockstep generate: prompts in, completions with log-probabilities out. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "cli/job.h"

/* One request as a record. The record borrows the job's arrays; only id and text are its own. */
static ls_status write_record(ls_json_out *json, const ls_job *job, const ls_run_options *o, const ls_request *r,
                              const char *digest, ls_error *err) {
    const ls_record *prompt = &job->prompts[r->prompt_i];
    ls_record record;
    char *id = NULL, *text = NULL, finish[16], kind[16], digest_text[64];
    const size_t id_bytes = strlen(prompt->id) + 16;
    uint8_t *missing = NULL;
    ls_status status;
    ls_record_init(&record);
    LS_TRY(ls_array_alloc((void **)&id, (int64_t)id_bytes, 1, "id", err));
    LS_TRY(ls_array_alloc((void **)&missing, r->n_completion, 1, "log-probabilities", err));
    snprintf(id, id_bytes, "%s/%u", prompt->id, r->sample_i);
    snprintf(finish, sizeof finish, "%s", ls_finish_name(r->finish));
    snprintf(kind, sizeof kind, "%s", o->logprob_of == LS_LOGPROB_RAW ? "raw" : "processed");
    snprintf(digest_text, sizeof digest_text, "%s", digest);
    record.id = id;
    record.prompt_ids = prompt->prompt_ids;
    record.n_prompt = prompt->n_prompt;
    record.completion_ids = r->completion;
    record.n_completion = record.n_logprobs = r->n_completion;
    record.has_logprobs = true;
    record.logprobs = r->logprob;
    record.logprob_missing = missing;
    record.finish = finish;
    record.has_seed = true;
    record.seed = o->sampling.seed;
    record.sample = r->sample_i;
    if (job->tokenizer != NULL) {
        LS_TRY(
            ls_tokenizer_decode(job->tokenizer, r->completion, r->n_completion, true, &text, &record.text_bytes, err));
        record.text = text;
    }
    record.has_meta = true;
    record.logprob_of = kind;
    record.temperature = (double)o->sampling.temperature;
    record.top_k = o->sampling.top_k;
    record.top_p = (double)o->sampling.top_p;
    record.min_p = (double)o->sampling.min_p;
    record.digest = digest_text;
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
    ls_output *output = NULL;
    ls_json_out json;
    ls_error err;
    char digest[64];
    ls_status status;
    LS_TRY(ls_run_options_parse(&o, LS_COMMAND_GENERATE, argc, argv, &err));
    ls_digest_text(digest, sizeof digest, o.dtype);
    LS_TRY(ls_output_open(&output, o.out, &err)); /* first: an unwritable output should not cost a generation */
    LS_TRY(ls_job_init(&job, &o, &err));
    LS_TRY(ls_job_generate(&job, &o, &err));
    ls_json_init(&json, ls_output_stream(output));
    for (int64_t i = 0; i < job.n_requests; i++) LS_TRY(write_record(&json, &job, &o, &job.requests[i], digest, &err));
    status = ls_output_commit(output, &err);
    output = NULL;
    if (status == LS_OK) ls_run_summary(&o, job.n_requests, job.n_generated, job.seconds);
done:
    ls_output_abandon(output);
    ls_job_deinit(&job);
    return status == LS_OK ? LS_EXIT_OK : ls_cli_fail(&err);
}
