/* What generate and check share: an opened model, its prompts as requests, and a run of the engine over them. */
#ifndef LS_CLI_JOB_H
#define LS_CLI_JOB_H

#include "cli/device_option.h"
#include "cli/options.h"
#include "record/record.h"
#include "rollout/engine.h"
#include "template/chat.h"
#include "text/stop.h"

#define LS_JOB_WEIGHTS 0 /* version of the weights of a model as it was opened */

typedef struct ls_job {
    ls_model *model;
    ls_chat *chat;           /* NULL when no prompt is a conversation */
    ls_tokenizer *tokenizer; /* NULL when the directory has none and no prompt needs one */
    ls_device *device;
    ls_device_choice choice; /* which one it is */
    bool is_reported;        /* that to the user */
    ls_record *prompts;
    int64_t n_prompts;
    ls_request *requests; /* [n_prompts * samples], ordered by (prompt, sample) */
    int64_t n_requests;
    bool *is_done; /* [n_requests] requests that are not run, since somebody has their results; NULL: none */
    bool stops;    /* a signal that is remembered (base/interrupt.h) ends the run; what is unfinished is cancelled */
    int32_t *completions; /* storage of the requests' results */
    float *logprobs;
    int64_t top; /* likeliest tokens of each drawn one, as the requests point to them; 0: none are recorded */
    int32_t *top_ids;
    float *top_logprobs;
    ls_stop *stop; /* NULL without stop texts */
    ls_stop_state *stop_states;
    ls_engine_plan plan;
    ls_engine_stats stats;
    double seconds;      /* of the engine's run */
    int64_t n_generated; /* tokens */
} ls_job;

/* Opens everything and lays out the requests; chooses the options' profile. The job must be zeroed; ls_job_deinit
 * releases it in any case. */
ls_status ls_job_init(ls_job *job, ls_run_options *options, ls_error *err);
/* Says which device and which profile it is, once. */
void ls_job_tell(ls_job *job, const ls_run_options *options);
/* Runs all requests; those that came to nothing have LS_FINISH_ERROR. */
ls_status ls_job_generate(ls_job *job, const ls_run_options *options, ls_error *err);
/* The sentence of the first request that came to nothing, and how many did. */
ls_status ls_job_check(const ls_job *job, ls_error *err);
void ls_job_deinit(ls_job *job);
/* Of ls_score_opts: the line of progress, between ls_progress_begin and ls_progress_end. */
void ls_job_scored(void *context, int64_t n_done, int64_t n_items);

/* The closing lines of generate and score on standard error, with what the engine of a job (or NULL) planned and did;
 * with --json an object, on standard output unless the records go there. */
void ls_run_summary(const ls_run_options *options, int64_t n_sequences, int64_t n_tokens, double seconds,
                    const ls_job *job);
/* Members "plan" and "stats" of such an object. */
void ls_job_write(ls_json_out *json, const ls_job *job);
/* A record's conversation as ids; chat and tokenizer are opened from `model` when they are not yet. is_prompt: into
 * prompt_ids, with what begins the answer; else into completion_ids. */
ls_status ls_chat_ids(ls_chat **chat, ls_tokenizer **tokenizer, const char *model, const char *path, ls_record *record,
                      bool is_prompt, ls_error *err);
/* Tokens of a file's record against the vocabulary; the error names file, line, field, index and value. */
ls_status ls_ids_check(const char *path, const ls_record *record, const char *field, const int32_t *ids, int64_t n,
                       int32_t vocab, ls_error *err);

#endif
