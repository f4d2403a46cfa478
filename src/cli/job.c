/* Opening a model with its prompts, and running the engine over them. */
#define _POSIX_C_SOURCE 200809L
#include "cli/job.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/interrupt.h"
#include "base/mem.h"
#include "base/rng.h"
#include "cli/progress.h"
#include "load/adapter_chain.h"
#include "op/memory.h"
#include "op/timing.h"

static void print_plan(const ls_job *job) {
    const ls_engine_plan *p = &job->plan;
    const ls_engine_stats *s = &job->stats;
    fprintf(stderr,
            "%lld slots of %lld bytes a layer, %lld pages of %lld, %lld snapshots, %lld rows a forward: %.1f MB\n"
            "%lld forwards, %lld rows of prompts computed, %lld of %lld taken from the prefix cache, %lld forks, %lld "
            "preemptions, %lld of %lld drafts taken\n",
            (long long)p->slots, (long long)p->slot_stride, (long long)p->pages, (long long)p->page_stride,
            (long long)p->snapshots, (long long)p->rows, (double)p->total_bytes * 1e-6, (long long)s->forwards,
            (long long)s->prefill_tokens, (long long)s->prefix.tokens_hit, (long long)s->prefix.tokens_asked,
            (long long)s->forked, (long long)(s->preempted_recompute + s->preempted_swap),
            (long long)s->drafts_accepted, (long long)s->drafts_proposed);
}

static void print_part(const char *name, int64_t count, int64_t bytes, const char *where) {
    char number[24] = "";
    if (count >= 0) snprintf(number, sizeof number, "%lld", (long long)count);
    fprintf(stderr, "%-20s %10s %16lld %12.1f%s\n", name, number, (long long)bytes, ls_mib(bytes), where);
}

/* The plan of memory as a table. */
static void print_memory(const ls_engine_plan *p) {
    ls_memory_part parts[LS_MEMORY_PARTS_MAX];
    const int64_t n = ls_engine_plan_parts(p, parts);
    int64_t total = 0;
    fprintf(stderr, "%-20s %10s %16s %12s\n", "memory", "number", "bytes", "MiB");
    for (int64_t i = 0; i < n; i++) {
        print_part(parts[i].name, parts[i].count, parts[i].bytes, parts[i].on_host ? ", on the host" : "");
        if (!parts[i].on_host) total += parts[i].bytes;
    }
    print_part("all", -1, total, "");
    if (p->device_bytes > 0) print_part("of the device", -1, p->device_bytes, "");
}

/* What the ticks of a run took, by kind of call, for one of them. */
static ls_status print_ticks(ls_timing *timing, int64_t ticks, ls_error *err) {
    const ls_timed_row *rows;
    const double each = ticks > 0 ? (double)ticks : 1;
    int64_t n;
    double total;
    LS_TRY(ls_timing_read(timing, &rows, &n, &total, err));
    fprintf(stderr, "%-28s %10s %12s %7s\n", "calls of a tick", "number", "ms", "share");
    for (int64_t i = 0; i < n; i++)
        fprintf(stderr, "%-28s %10.1f %12.4f %5.1f %%\n", rows[i].name, (double)rows[i].calls / each, rows[i].ms / each,
                rows[i].ms / total * 100);
    fprintf(stderr, "%-28s %10lld %12.4f\n", "ticks", (long long)ticks, total / each);
    return LS_OK;
}

void ls_run_summary(const ls_run_options *o, int64_t n_sequences, int64_t n_tokens, double seconds, const ls_job *job) {
    const double rate = (double)n_tokens / (seconds > 0 ? seconds : 1);
    if (o->json) {
        ls_json_out json;
        ls_json_init(&json, o->out != NULL && strcmp(o->out, "-") != 0 ? stdout : stderr);
        ls_json_begin_object(&json, NULL);
        ls_json_int(&json, "sequences", n_sequences);
        ls_json_int(&json, "tokens", n_tokens);
        ls_json_double(&json, "seconds", seconds);
        ls_json_double(&json, "tokens_per_second", rate);
        if (job != NULL) ls_job_write(&json, job);
        ls_json_end_object(&json);
        ls_json_newline(&json);
        return;
    }
    if (job != NULL) print_plan(job);
    fprintf(stderr, "%lld sequences, %lld tokens in %.2f s: %.0f tokens/s\n", (long long)n_sequences,
            (long long)n_tokens, seconds, rate);
}

/* Members of an object by name and value, all integers. */
typedef struct count {
    const char *name;
    int64_t value;
} count;

static void write_counts(ls_json_out *json, const char *key, const count *counts, size_t n) {
    ls_json_begin_object(json, key);
    for (size_t i = 0; i < n; i++) ls_json_int(json, counts[i].name, counts[i].value);
    ls_json_end_object(json);
}

void ls_job_write(ls_json_out *json, const ls_job *job) {
    const ls_engine_plan *p = &job->plan;
    const ls_engine_stats *s = &job->stats;
    const count plan[] = {{"slots", p->slots},
                          {"slot_stride", p->slot_stride},
                          {"slot_bytes", p->slot_bytes},
                          {"pages", p->pages},
                          {"page_stride", p->page_stride},
                          {"page_bytes", p->page_bytes},
                          {"snapshots", p->snapshots},
                          {"snapshot_bytes", p->snapshot_bytes},
                          {"swap_slots", p->swap_slots},
                          {"swap_pages", p->swap_pages},
                          {"swap_bytes", p->swap_bytes},
                          {"rows", p->rows},
                          {"workspace_bytes", p->workspace_bytes},
                          {"head_bytes", p->head_bytes},
                          {"tick_bytes", p->tick_bytes},
                          {"ops_bytes", p->ops_bytes},
                          {"recording_bytes", p->recording_bytes},
                          {"weight_bytes", p->weight_bytes},
                          {"total_bytes", p->total_bytes}};
    const count stats[] = {{"ticks", s->ticks},
                           {"forwards", s->forwards},
                           {"rows", s->rows},
                           {"prefill_tokens", s->prefill_tokens},
                           {"preempted_recompute", s->preempted_recompute},
                           {"preempted_swap", s->preempted_swap},
                           {"forked", s->forked},
                           {"verified", s->verified},
                           {"drafts_proposed", s->drafts_proposed},
                           {"drafts_accepted", s->drafts_accepted},
                           {"slots_used_max", s->slots_used_max},
                           {"pages_used_max", s->pages_used_max},
                           {"prefix_lookups", s->prefix.lookups},
                           {"prefix_hits", s->prefix.hits},
                           {"prefix_tokens_asked", s->prefix.tokens_asked},
                           {"prefix_tokens_hit", s->prefix.tokens_hit},
                           {"snapshots_published", s->prefix.published},
                           {"snapshots_evicted", s->prefix.snapshots_evicted},
                           {"pages_evicted", s->prefix.pages_evicted}};
    write_counts(json, "plan", plan, sizeof plan / sizeof plan[0]);
    write_counts(json, "stats", stats, sizeof stats / sizeof stats[0]);
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
    return LS_OK;
}

ls_status ls_chat_ids(ls_chat **chat, ls_tokenizer **tokenizer, const char *model, const char *path, ls_record *record,
                      bool is_prompt, ls_error *err) {
    ls_template_output text = {0};
    char place[1200];
    ls_status status;
    snprintf(place, sizeof place, "%.1100s: line %lld", path, (long long)record->line);
    if (*chat == NULL) LS_TRY_DONE(ls_chat_open(chat, model, NULL, err));
    if (*tokenizer == NULL) LS_TRY_DONE(ls_tokenizer_open(tokenizer, model, err));
    LS_TRY_DONE(ls_chat_render_text(*chat, record->chat, (int64_t)strlen(record->chat), place, is_prompt, &text, err));
    status = ls_tokenizer_encode(*tokenizer, text.text, text.bytes, false,
                                 is_prompt ? &record->prompt_ids : &record->completion_ids,
                                 is_prompt ? &record->n_prompt : &record->n_completion, err);
done:
    if (status != LS_OK && strncmp(err->text, place, strlen(place)) != 0) ls_error_prefix(err, "%s", place);
    ls_template_output_deinit(&text);
    return status;
}

static ls_status encode_prompts(ls_job *job, const ls_run_options *o, int64_t length_max, ls_error *err) {
    for (int64_t i = 0; i < job->n_prompts; i++) {
        ls_record *p = &job->prompts[i];
        if (p->chat != NULL) {
            LS_TRY(ls_chat_ids(&job->chat, &job->tokenizer, o->model, o->prompts, p, true, err));
        } else if (p->prompt_ids == NULL) {
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
    return LS_OK;
}

/* Likeliest tokens of each drawn one. */
static ls_status lay_out_top(ls_job *job, const ls_run_options *o, int64_t max_tokens, ls_error *err) {
    const int64_t vocab = job->model->config.vocab;
    int64_t row, total;
    job->top = o->top_logprobs < vocab ? o->top_logprobs : vocab;
    if (job->top == 0) return LS_OK;
    if (!ls_mul_i64(max_tokens, job->top, &row) || !ls_mul_i64(job->n_requests, row, &total))
        return LS_FAIL(err, LS_ERR_NOMEM, "--top-logprobs: %lld of %lld tokens do not fit", (long long)job->top,
                       (long long)max_tokens);
    LS_TRY(ls_array_alloc((void **)&job->top_ids, total, sizeof *job->top_ids, "likeliest tokens", err));
    LS_TRY(ls_array_alloc((void **)&job->top_logprobs, total, sizeof *job->top_logprobs, "likeliest tokens", err));
    for (int64_t i = 0; i < job->n_requests; i++) {
        job->requests[i].top_id = job->top_ids + i * row;
        job->requests[i].top_logprob = job->top_logprobs + i * row;
    }
    return LS_OK;
}

static ls_status lay_out_requests(ls_job *job, const ls_run_options *o, int64_t length_max, ls_error *err) {
    const int64_t max_tokens = o->max_tokens > 0 ? o->max_tokens : o->prompts != NULL ? 128 : 64;
    int64_t total;
    if (!ls_mul_i64(job->n_prompts, o->levers.samples, &job->n_requests) ||
        !ls_mul_i64(job->n_requests, max_tokens, &total))
        return LS_FAIL(err, LS_ERR_NOMEM, "--samples: %lld prompts of %lld samples and %lld tokens do not fit",
                       (long long)job->n_prompts, (long long)o->levers.samples, (long long)max_tokens);
    LS_TRY(ls_array_alloc((void **)&job->requests, job->n_requests, sizeof *job->requests, "requests", err));
    LS_TRY(ls_array_alloc((void **)&job->completions, total, sizeof *job->completions, "completions", err));
    LS_TRY(ls_array_alloc((void **)&job->logprobs, total, sizeof *job->logprobs, "log-probabilities", err));
    if (job->stop != NULL)
        LS_TRY(
            ls_array_alloc((void **)&job->stop_states, job->n_requests, sizeof *job->stop_states, "stop texts", err));
    for (int64_t i = 0; i < job->n_requests; i++) {
        const ls_record *p = &job->prompts[i / o->levers.samples];
        ls_request *r = &job->requests[i];
        r->prompt = p->prompt_ids;
        r->n_prompt = p->n_prompt;
        r->prompt_i = (uint32_t)(i / o->levers.samples);
        r->sample_i = (uint32_t)(i % o->levers.samples);
        r->max_tokens = max_tokens < length_max - p->n_prompt ? max_tokens : length_max - p->n_prompt;
        r->completion = job->completions + i * max_tokens;
        r->logprob = job->logprobs + i * max_tokens;
        r->penalties = ls_penalties_act(&o->penalties) ? &o->penalties : NULL;
        if (job->stop == NULL) continue;
        ls_stop_begin(&job->stop_states[i], job->stop);
        r->stop = ls_stop_reached;
        r->stop_context = &job->stop_states[i];
    }
    return lay_out_top(job, o, max_tokens, err);
}

void ls_job_tell(ls_job *job, const ls_run_options *o) {
    if (!job->is_reported) ls_cli_device_tell("device", &job->choice, o->profile);
    job->is_reported = true;
}

/* A tokenizer that is there but of a kind that this program does not have is missed only where text goes in, or must
 * stop a completion; records have no text then. */
static ls_status open_tokenizer(ls_job *job, const ls_run_options *o, ls_error *err) {
    char path[4096], *home = NULL;
    bool needed = o->n_stop > 0;
    ls_status status;
    ls_error why;
    for (int64_t i = 0; i < job->n_prompts && !needed; i++) needed = job->prompts[i].prompt_ids == NULL;
    if (needed) return ls_tokenizer_open(&job->tokenizer, o->model, err);
    LS_TRY(ls_adapter_home(&home, o->model, err));
    snprintf(path, sizeof path, "%s/tokenizer.json", home);
    free(home);
    if (!ls_file_exists(path)) return LS_OK;
    status = ls_tokenizer_open(&job->tokenizer, o->model, &why);
    if (status == LS_ERR_UNSUPPORTED) {
        ls_job_tell(job, o);
        ls_cli_clean(why.text);
        fprintf(stderr, "lockstep: records will have no text: %s\n", why.text);
        return LS_OK;
    }
    if (status != LS_OK && err != NULL) *err = why;
    return status;
}

static ls_status check_stop_ids(const ls_job *job, const ls_run_options *o, ls_error *err) {
    for (int64_t i = 0; i < o->n_stop_ids; i++)
        if (o->stop_ids[i] >= job->model->config.vocab)
            return LS_FAIL(err, LS_ERR_ARG, "--stop-id: %d is not in the vocabulary 0..%d", o->stop_ids[i],
                           job->model->config.vocab - 1);
    return LS_OK;
}

ls_status ls_job_init(ls_job *job, ls_run_options *o, ls_error *err) {
    int64_t length_max;
    ls_status status;
    LS_TRY_DONE(ls_cli_device_open(&job->device, &job->choice, o->device, &o->levers, err));
    LS_TRY_DONE(ls_model_open(&job->model, job->device, o->model, err));
    LS_TRY_DONE(ls_cli_profile_choose(o, job->model, err));
    job->model->ablation = o->levers.ablation;
    if (o->prompts != NULL)
        LS_TRY_DONE(ls_records_read(&job->prompts, &job->n_prompts, o->prompts, LS_RECORD_PROMPT, err));
    else
        LS_TRY_DONE(make_up_prompts(job, o->sampling.seed, err));
    LS_TRY_DONE(check_stop_ids(job, o, err));
    LS_TRY_DONE(open_tokenizer(job, o, err));
    if (o->n_stop > 0 && (status = ls_stop_create(&job->stop, job->tokenizer, o->stop, o->n_stop, err)) != LS_OK) {
        ls_error_prefix(err, "--stop");
        goto done;
    }
    length_max = o->max_length > 0 ? o->max_length : job->model->config.positions_max;
    LS_TRY_DONE(encode_prompts(job, o, length_max, err));
    LS_TRY_DONE(lay_out_requests(job, o, length_max, err));
done:
    return status;
}

static void show_progress(void *context, int64_t n_done, int64_t n_requests, int64_t n_tokens) {
    const double *start = context;
    const double seconds = ls_clock_seconds() - *start;
    char rate[64];
    if (!ls_progress_is_due()) return;
    snprintf(rate, sizeof rate, "%lld tokens, %.0f/s", (long long)n_tokens,
             (double)n_tokens / (seconds > 0 ? seconds : 1));
    ls_progress_show(n_done, n_requests, rate);
}

void ls_job_scored(void *context, int64_t n_done, int64_t n_items) {
    (void)context;
    ls_progress_show(n_done, n_items, "");
}

/* The tokens that end a completion; returns how many. */
static int64_t gather_stop_ids(int32_t stop[LS_EOS_MAX + LS_STOP_TEXTS_MAX], const ls_model_config *c,
                               const ls_run_options *o) {
    int64_t n = 0;
    for (int64_t i = 0; i < c->n_eos && !o->ignore_eos; i++) stop[n++] = c->eos[i];
    for (int64_t i = 0; i < o->n_stop_ids; i++) stop[n++] = o->stop_ids[i];
    return n;
}

static bool is_stopped(void) { return ls_interrupt_pending() != 0; }

/* The requests whose results nobody has, in their order. */
static ls_status run_requests(ls_engine *engine, ls_job *job, double *start, ls_error *err) {
    ls_request *left = NULL;
    int64_t n = 0;
    ls_status status;
    if (job->is_done == NULL) return ls_engine_run(engine, job->requests, job->n_requests, show_progress, start, err);
    LS_TRY_DONE(ls_array_alloc((void **)&left, job->n_requests, sizeof *left, "requests", err));
    for (int64_t i = 0; i < job->n_requests; i++)
        if (!job->is_done[i]) left[n++] = job->requests[i];
    status = ls_engine_run(engine, left, n, show_progress, start, err);
    n = 0;
    for (int64_t i = 0; i < job->n_requests; i++)
        if (!job->is_done[i]) job->requests[i] = left[n++];
done:
    free(left);
    return status;
}

ls_status ls_job_generate(ls_job *job, const ls_run_options *o, ls_error *err) {
    double start = ls_clock_seconds();
    int32_t stop[LS_EOS_MAX + LS_STOP_TEXTS_MAX];
    const int64_t n_stop = gather_stop_ids(stop, &job->model->config, o);
    ls_engine_opts opts = {.dtype = o->dtype,
                           .levers = o->levers,
                           .length_max = 1,
                           .logprob_of = o->logprob_of,
                           .sampling = o->sampling,
                           .penalizes = ls_penalties_act(&o->penalties),
                           .top = job->top,
                           .stop = stop,
                           .n_stop = n_stop,
                           .weights = LS_JOB_WEIGHTS,
                           .inject = o->inject,
                           .stops = job->stops ? is_stopped : NULL};
    ls_engine *engine = NULL;
    ls_timing *timing = NULL;
    ls_status status;
    for (int64_t i = 0; i < job->n_requests; i++) {
        const int64_t length = job->requests[i].n_prompt + job->requests[i].max_tokens;
        if (length > opts.length_max) opts.length_max = length;
    }
    LS_TRY_DONE(ls_lever_as_option(ls_engine_create(&engine, job->model, job->device, &opts, err), err));
    ls_engine_get_plan(engine, &job->plan);
    ls_job_tell(job, o);
    if (o->memory_plan) print_memory(&job->plan);
    if (o->profile_ticks) LS_TRY_DONE(ls_timing_begin(&timing, job->device, err));
    ls_progress_begin("generating", "sequences");
    LS_TRY_DONE(run_requests(engine, job, &start, err));
    ls_progress_end();
    ls_engine_get_stats(engine, &job->stats);
    if (timing != NULL) LS_TRY_DONE(print_ticks(timing, job->stats.ticks, err));
    job->seconds = ls_clock_seconds() - start;
    job->n_generated = 0;
    for (int64_t i = 0; i < job->n_requests; i++) job->n_generated += job->requests[i].n_completion;
done:
    ls_progress_end();
    ls_timing_end(timing);
    ls_engine_free(engine);
    return status;
}

ls_status ls_job_check(const ls_job *job, ls_error *err) {
    const ls_request *first = NULL;
    int64_t n = 0;
    for (int64_t i = 0; i < job->n_requests; i++) {
        if (job->requests[i].finish != LS_FINISH_ERROR) continue;
        if (n++ == 0) first = &job->requests[i];
    }
    if (n == 0) return LS_OK;
    return LS_FAIL(err, first->error.status, "%lld of %lld requests came to nothing; %s/%u: %s", (long long)n,
                   (long long)job->n_requests, job->prompts[first->prompt_i].id, first->sample_i, first->error.text);
}

void ls_job_deinit(ls_job *job) {
    free(job->is_done);
    free(job->stop_states);
    ls_stop_free(job->stop);
    free(job->top_logprobs);
    free(job->top_ids);
    free(job->logprobs);
    free(job->completions);
    free(job->requests);
    ls_records_free(job->prompts, job->n_prompts);
    ls_chat_free(job->chat);
    ls_tokenizer_free(job->tokenizer);
    ls_model_close(job->model);
    ls_device_close(job->device);
}
