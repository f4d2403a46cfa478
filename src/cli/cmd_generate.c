/* lockstep generate: prompts in, completions with log-probabilities out. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/interrupt.h"
#include "base/mem.h"
#include "cli/partial.h"

/* What all records of a run share; owned by the record. */
static ls_status describe_run(ls_record *common, const ls_run_options *o, ls_error *err) {
    const char *kind = o->logprob_of == LS_LOGPROB_RAW ? "raw" : "processed";
    char text[64];
    ls_record_init(common);
    common->has_logprobs = common->has_seed = common->has_meta = true;
    common->seed = o->sampling.seed;
    LS_TRY(ls_text_copy(&common->logprob_of, kind, (int64_t)strlen(kind), err));
    common->temperature = ls_float_plain(o->sampling.temperature);
    common->top_k = o->sampling.top_k;
    common->top_p = ls_float_plain(o->sampling.top_p);
    common->min_p = ls_float_plain(o->sampling.min_p);
    if (ls_penalties_act(&o->penalties)) {
        common->presence_penalty = ls_float_plain(o->penalties.presence);
        common->frequency_penalty = ls_float_plain(o->penalties.frequency);
        common->repetition_penalty = ls_float_plain(o->penalties.repetition);
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

/* ---- what a signal stops ---- */

typedef struct generation {
    ls_job job;
    ls_record common;
    ls_partial *partial; /* NULL where the output is no file: then nothing is kept */
} generation;

/* What FILE.partial has is not generated again. */
static ls_status open_partial(generation *g, const ls_run_options *o, ls_error *err) {
    int64_t n;
    LS_TRY(ls_partial_open(&g->partial, &n, &g->job, o, err));
    g->job.stops = true;
    if (o->resume && n < 0) fprintf(stderr, "%s is not there: all is generated\n", ls_partial_path(g->partial));
    if (n <= 0) return LS_OK;
    fprintf(stderr, "going on behind %lld of %lld completions of %s\n", (long long)n, (long long)g->job.n_requests,
            ls_partial_path(g->partial));
    LS_TRY(ls_array_alloc((void **)&g->job.is_done, g->job.n_requests, sizeof *g->job.is_done, "records", err));
    for (int64_t i = 0; i < g->job.n_requests; i++) g->job.is_done[i] = ls_partial_line(g->partial, i) != NULL;
    return LS_OK;
}

static bool is_known(const generation *g, int64_t i) {
    return g->partial != NULL && ls_partial_line(g->partial, i) != NULL;
}

static ls_status write_one(void *context, FILE *stream, int64_t i, ls_error *err) {
    generation *g = context;
    ls_json_out json;
    if (is_known(g, i))
        return fprintf(stream, "%s\n", ls_partial_line(g->partial, i)) > 0
                   ? LS_OK
                   : LS_FAIL(err, LS_ERR_IO, "cannot write: %s", strerror(errno));
    ls_json_init(&json, stream);
    return write_record(&json, &g->job, &g->common, &g->job.requests[i], err);
}

/* Keeps what is finished and says where. */
static ls_status keep_partial(generation *g, ls_error *err) {
    bool *done = NULL;
    int64_t n = 0;
    ls_status status;
    LS_TRY_DONE(ls_array_alloc((void **)&done, g->job.n_requests, sizeof *done, "records", err));
    for (int64_t i = 0; i < g->job.n_requests; i++) {
        const ls_finish finish = g->job.requests[i].finish;
        done[i] = is_known(g, i) || finish == LS_FINISH_STOP || finish == LS_FINISH_LENGTH;
        n += done[i];
    }
    LS_TRY_DONE(ls_partial_save(g->partial, done, write_one, g, err));
    fprintf(stderr, "stopped by signal %d; %lld of %lld completions are in %s, --resume goes on from there\n",
            ls_interrupt_pending(), (long long)n, (long long)g->job.n_requests, ls_partial_path(g->partial));
done:
    free(done);
    return status;
}

static bool was_stopped(const generation *g) {
    bool is_unfinished = false;
    for (int64_t i = 0; i < g->job.n_requests; i++)
        is_unfinished = is_unfinished || (!is_known(g, i) && g->job.requests[i].finish == LS_FINISH_CANCEL);
    return is_unfinished;
}

int ls_cmd_generate(int argc, char **argv) {
    ls_run_options o;
    generation g = {.partial = NULL};
    ls_output *output = NULL;
    bool stopped = false;
    ls_error err;
    ls_status status;
    ls_record_init(&g.common);
    LS_TRY_DONE(ls_run_options_parse(&o, LS_COMMAND_GENERATE, argc, argv, &err));
    LS_TRY_DONE(describe_run(&g.common, &o, &err));
    LS_TRY_DONE(ls_output_open(&output, o.out, &err)); /* first: an unwritable output should not cost a generation */
    if (o.resume && !ls_output_is_file(output)) {
        status = LS_FAIL(&err, LS_ERR_ARG, "--resume: --out names no file");
        goto done;
    }
    LS_TRY_DONE(ls_job_init(&g.job, &o, &err));
    if (ls_output_is_file(output)) LS_TRY_DONE(open_partial(&g, &o, &err));
    ls_interrupt_defer(g.partial != NULL);
    LS_TRY_DONE(ls_job_generate(&g.job, &o, &err));
    if ((stopped = was_stopped(&g))) {
        status = keep_partial(&g, &err);
        goto done;
    }
    for (int64_t i = 0; i < g.job.n_requests; i++) {
        LS_TRY_DONE(ls_output_check(output, &err));
        LS_TRY_DONE(write_one(&g, ls_output_stream(output), i, &err));
    }
    status = ls_output_commit(output, &err);
    output = NULL;
    if (status == LS_OK && o.resume) (void)unlink(ls_partial_path(g.partial)); /* all of it is in the output */
    if (status == LS_OK) status = ls_job_check(&g.job, &err);
    if (status == LS_OK) ls_run_summary(&o, g.job.n_requests, g.job.n_generated, g.job.seconds, &g.job);
done:
    ls_interrupt_defer(false);
    ls_output_abandon(output);
    ls_partial_free(g.partial);
    ls_job_deinit(&g.job);
    ls_record_deinit(&g.common);
    if (status != LS_OK) return ls_cli_fail(&err);
    return stopped ? LS_EXIT_STOPPED : LS_EXIT_OK;
}
