/* Opening a model with its prompts, and running the engine over them. */
#define _POSIX_C_SOURCE 200809L
#include "cli/job.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/rng.h"
#include "num/contract.h"

double ls_clock_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

void ls_run_summary(const ls_run_options *o, int64_t n_sequences, int64_t n_tokens, double seconds) {
    const double rate = (double)n_tokens / (seconds > 0 ? seconds : 1);
    if (o->json) {
        ls_json_out json;
        ls_json_init(&json, o->out != NULL && strcmp(o->out, "-") != 0 ? stdout : stderr);
        ls_json_begin_object(&json, NULL);
        ls_json_int(&json, "sequences", n_sequences);
        ls_json_int(&json, "tokens", n_tokens);
        ls_json_double(&json, "seconds", seconds);
        ls_json_double(&json, "tokens_per_second", rate);
        ls_json_end_object(&json);
        ls_json_newline(&json);
        return;
    }
    fprintf(stderr, "%lld sequences, %lld tokens in %.2f s: %.0f tokens/s\n", (long long)n_sequences,
            (long long)n_tokens, seconds, rate);
}

void ls_digest_text(char *text, size_t bytes, ls_dtype dtype) {
    snprintf(text, bytes, "%s/%d/%s", LS_NUMERICS_PROFILE, LS_NUMERICS_VERSION, ls_dtype_name(dtype));
}

ls_status ls_ids_check(const char *path, const ls_record *record, const char *field, const int32_t *ids, int64_t n,
                       int32_t vocab, ls_error *err) {
    for (int64_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= vocab)
            return LS_FAIL(err, LS_ERR_FORMAT, "%s: line %lld: %s[%lld]: token %d is not in the vocabulary 0..%d", path,
                           (long long)record->line, field, (long long)i, ids[i], vocab - 1);
    return LS_OK;
}

/* Prompts for a check without a file: lengths 1 to 48, tokens drawn by the seed. */
static ls_status make_up_prompts(ls_job *job, uint64_t seed, ls_error *err) {
    const int64_t n = 16;
    ls_status status;
    LS_TRY(ls_array_alloc((void **)&job->prompts, n, sizeof *job->prompts, "prompts", err));
    job->n_prompts = n;
    for (int64_t i = 0; i < n; i++) ls_record_init(&job->prompts[i]);
    for (int64_t i = 0; i < n; i++) {
        ls_record *p = &job->prompts[i];
        char id[32];
        snprintf(id, sizeof id, "random-%lld", (long long)i);
        LS_TRY(ls_text_copy(&p->id, id, (int64_t)strlen(id), err));
        p->n_prompt = 1 + (int64_t)(ls_philox_draw(seed, 0, 0, 0, (uint32_t)i).word[0] % 48);
        LS_TRY(ls_array_alloc((void **)&p->prompt_ids, p->n_prompt, sizeof(int32_t), "prompt", err));
        for (int64_t t = 0; t < p->n_prompt; t++)
            p->prompt_ids[t] = (int32_t)(ls_philox_draw(seed, 1, (uint32_t)t, 0, (uint32_t)i).word[0] %
                                         (uint32_t)job->model->config.vocab);
    }
done:
    return status;
}

static ls_status encode_prompts(ls_job *job, const ls_run_options *o, int64_t length_max, ls_error *err) {
    ls_status status = LS_OK;
    for (int64_t i = 0; i < job->n_prompts; i++) {
        ls_record *p = &job->prompts[i];
        if (p->prompt_ids == NULL) {
            if (p->prompt_bytes == 0)
                return LS_FAIL(err, LS_ERR_FORMAT, "%s: line %lld: prompt: is empty", o->prompts, (long long)p->line);
            if (job->tokenizer == NULL) LS_TRY(ls_tokenizer_open(&job->tokenizer, o->model, err));
            LS_TRY(ls_tokenizer_encode(job->tokenizer, p->prompt, p->prompt_bytes, true, &p->prompt_ids, &p->n_prompt,
                                       err));
        }
        if (p->n_prompt == 0)
            return LS_FAIL(err, LS_ERR_FORMAT, "%s: line %lld: prompt: encodes to no tokens", o->prompts,
                           (long long)p->line);
        if (p->n_prompt >= length_max)
            return LS_FAIL(err, LS_ERR_CAPACITY,
                           "%s: line %lld: prompt: %lld tokens leave no room under the limit of %lld (--max-length)",
                           o->prompts, (long long)p->line, (long long)p->n_prompt, (long long)length_max);
        LS_TRY(ls_ids_check(o->prompts, p, "prompt_ids", p->prompt_ids, p->n_prompt, job->model->config.vocab, err));
    }
done:
    return status;
}

/* A permutation of 0..n-1 by Fisher-Yates with counter-based draws. */
static void shuffle(int64_t *order, int64_t n, uint64_t seed) {
    for (int64_t i = 0; i < n; i++) order[i] = i;
    for (int64_t i = n - 1; i > 0; i--) {
        const int64_t j = (int64_t)(ls_philox_draw(seed, 2, (uint32_t)i, 0, 0).word[0] % (uint64_t)(i + 1));
        const int64_t kept = order[i];
        order[i] = order[j];
        order[j] = kept;
    }
}

static ls_status lay_out_requests(ls_job *job, const ls_run_options *o, int64_t length_max, ls_error *err) {
    const int64_t max_tokens = o->max_tokens > 0 ? o->max_tokens : o->prompts != NULL ? 128 : 64;
    int64_t total;
    ls_status status;
    if (!ls_mul_i64(job->n_prompts, o->samples, &job->n_requests) || !ls_mul_i64(job->n_requests, max_tokens, &total))
        return LS_FAIL(err, LS_ERR_NOMEM, "--samples: %lld prompts of %lld samples and %lld tokens do not fit",
                       (long long)job->n_prompts, (long long)o->samples, (long long)max_tokens);
    LS_TRY(ls_array_alloc((void **)&job->requests, job->n_requests, sizeof *job->requests, "requests", err));
    LS_TRY(ls_array_alloc((void **)&job->completions, total, sizeof *job->completions, "completions", err));
    LS_TRY(ls_array_alloc((void **)&job->logprobs, total, sizeof *job->logprobs, "log-probabilities", err));
    LS_TRY(ls_array_alloc((void **)&job->order, job->n_requests, sizeof *job->order, "order", err));
    for (int64_t i = 0; i < job->n_requests; i++) {
        const ls_record *p = &job->prompts[i / o->samples];
        ls_request *r = &job->requests[i];
        r->prompt = p->prompt_ids;
        r->n_prompt = p->n_prompt;
        r->prompt_i = (uint32_t)(i / o->samples);
        r->sample_i = (uint32_t)(i % o->samples);
        r->max_tokens = max_tokens < length_max - p->n_prompt ? max_tokens : length_max - p->n_prompt;
        r->completion = job->completions + i * max_tokens;
        r->logprob = job->logprobs + i * max_tokens;
        job->order[i] = i;
    }
    if (o->shuffle != 0) shuffle(job->order, job->n_requests, o->shuffle);
done:
    return status;
}

ls_status ls_job_init(ls_job *job, const ls_run_options *o, ls_error *err) {
    char path[4096];
    int64_t length_max;
    ls_status status;
    LS_TRY(ls_queue_create(&job->queue, o->threads, o->isa, err));
    LS_TRY(ls_jamba_open(&job->model, o->model, err));
    if (o->prompts != NULL)
        LS_TRY(ls_records_read(&job->prompts, &job->n_prompts, o->prompts, LS_RECORD_PROMPT, err));
    else
        LS_TRY(make_up_prompts(job, o->sampling.seed, err));
    snprintf(path, sizeof path, "%s/tokenizer.json", o->model);
    if (ls_file_exists(path)) LS_TRY(ls_tokenizer_open(&job->tokenizer, o->model, err));
    length_max = o->max_length > 0 ? o->max_length : job->model->config.positions_max;
    LS_TRY(encode_prompts(job, o, length_max, err));
    LS_TRY(lay_out_requests(job, o, length_max, err));
done:
    return status;
}

static void show_progress(void *context, int64_t n_done, int64_t n_requests, int64_t n_tokens) {
    const double *start = context;
    const double seconds = ls_clock_seconds() - *start;
    fprintf(stderr, "\r%lld of %lld sequences, %lld tokens, %.0f tokens/s ", (long long)n_done, (long long)n_requests,
            (long long)n_tokens, (double)n_tokens / (seconds > 0 ? seconds : 1));
    if (n_done == n_requests) fputc('\n', stderr);
}

ls_status ls_job_generate(ls_job *job, const ls_run_options *o, ls_error *err) {
    double start = ls_clock_seconds();
    const ls_jamba_config *c = &job->model->config;
    const ls_engine_opts opts = {.dtype = o->dtype,
                                 .batch = o->batch,
                                 .chunk = o->chunk,
                                 .page_tokens = o->page_tokens,
                                 .logprob_of = o->logprob_of,
                                 .sampling = o->sampling,
                                 .order = job->order,
                                 .stop = c->eos,
                                 .n_stop = o->ignore_eos ? 0 : c->n_eos,
                                 .progress = isatty(STDERR_FILENO) ? show_progress : NULL,
                                 .progress_context = &start};
    const ls_status status = ls_engine_run(job->model, job->queue, &opts, job->requests, job->n_requests, err);
    job->seconds = ls_clock_seconds() - start;
    job->n_generated = 0;
    for (int64_t i = 0; i < job->n_requests; i++) job->n_generated += job->requests[i].n_completion;
    return status;
}

void ls_job_deinit(ls_job *job) {
    free(job->order);
    free(job->logprobs);
    free(job->completions);
    free(job->requests);
    ls_records_free(job->prompts, job->n_prompts);
    ls_tokenizer_free(job->tokenizer);
    ls_jamba_close(job->model);
    ls_queue_free(job->queue);
}
