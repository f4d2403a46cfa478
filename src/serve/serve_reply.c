/* Replies. A sample's tokens [first, n) are told at a time: all of them, or what a stream has not told yet. */
#define _POSIX_C_SOURCE 200809L
#include "serve/serve_reply.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/fnv.h"
#include "base/mem.h"
#include "json/json_out.h"
#include "num/round.h"
#include "serve/serve_part.h"

/* ---- text ---- */

static ls_status write_token(ls_json_out *json, const char *key, const ls_part *p, int32_t id, bool as_id,
                             ls_error *err) {
    char *text, name[32];
    int64_t bytes;
    if (as_id) {
        snprintf(name, sizeof name, "token_id:%d", id);
        ls_json_string(json, key, name);
        return LS_OK;
    }
    LS_TRY(ls_part_decode(p, &id, 1, false, &text, &bytes, err));
    ls_json_text(json, key, text, bytes);
    free(text);
    return LS_OK;
}

/* As a member's name, which must not be told twice: alternatives without a text of their own go by their ids. */
static ls_status token_key(char out[160], const ls_part *p, int32_t id, bool as_id, ls_error *err) {
    char *text;
    int64_t bytes;
    snprintf(out, 160, "token_id:%d", id);
    if (as_id || p->about->tokenizer == NULL) return LS_OK;
    LS_TRY(ls_part_decode(p, &id, 1, false, &text, &bytes, err));
    if (bytes > 0 && bytes < 160 && strlen(text) == (size_t)bytes && strstr(text, "\xEF\xBF\xBD") == NULL)
        memcpy(out, text, (size_t)bytes + 1);
    free(text);
    return LS_OK;
}

/* ---- parts that dialects share ---- */

static const char *reason_of(ls_finish finish) {
    switch (finish) {
        case LS_FINISH_STOP: return "stop";
        case LS_FINISH_LENGTH: return "length";
        case LS_FINISH_CANCEL: return "abort";
        case LS_FINISH_ERROR: return "error";
        case LS_FINISH_NONE: break;
    }
    return NULL;
}

/* Why it ended, and what ended it: a stop text, one of the request's stop tokens, or null: the end of the sequence. */
static ls_status write_reason(ls_json_out *json, const ls_part *p, ls_error *err) {
    const char *reason = reason_of(p->finish), *stop;
    if (reason == NULL)
        ls_json_null(json, "finish_reason");
    else
        ls_json_string(json, "finish_reason", p->calls != NULL && p->calls->n > 0 ? "tool_calls" : reason);
    LS_TRY(ls_part_stop_text(p, &stop, err));
    if (stop != NULL)
        ls_json_string(json, "stop_reason", stop);
    else if (p->finish == LS_FINISH_STOP && p->sample->ended_by_id && !p->sample->ended_by_eos)
        ls_json_int(json, "stop_reason", p->sample->stop_id);
    else
        ls_json_null(json, "stop_reason");
    return LS_OK;
}

static void write_reply_ids(ls_json_out *json, const char *key, const int32_t *ids, int64_t n) {
    ls_json_begin_array(json, key);
    for (int64_t i = 0; i < n; i++) ls_json_int(json, NULL, ids[i]);
    ls_json_end_array(json);
}

static void write_floats(ls_json_out *json, const char *key, const float *values, int64_t first, int64_t n) {
    ls_json_begin_array(json, key);
    for (int64_t i = first; i < n; i++) ls_json_float(json, NULL, values[i]);
    ls_json_end_array(json);
}

static void write_bits(ls_json_out *json, const char *key, const float *values, int64_t first, int64_t n) {
    char text[16];
    ls_json_begin_array(json, key);
    for (int64_t i = first; i < n; i++) {
        snprintf(text, sizeof text, "%08x", ls_bits(values[i]));
        ls_json_string(json, NULL, text);
    }
    ls_json_end_array(json);
}

static void write_masks(ls_json_out *json, const char *key, const ls_part *p) {
    ls_json_begin_array(json, key);
    for (int64_t i = p->first; i < p->n; i++) {
        const int32_t *ids = p->sample->stats.mask + i * LS_STATS_MASK_MAX;
        int64_t n = 0;
        while (n < LS_STATS_MASK_MAX && ids[n] >= 0) n++;
        write_reply_ids(json, NULL, ids, n);
    }
    ls_json_end_array(json);
}

/* Whether the prompt's log-probabilities are there: the engine no longer writes them, and it was not cancelled before
 * they were. */
static bool has_prompt(const ls_part *p) {
    const bool is_cut = p->finish == LS_FINISH_CANCEL && p->sample->request.n_completion == 0;
    return p->sample->prompt_logprob != NULL && p->finish != LS_FINISH_NONE && !is_cut;
}

/* Probability, at the temperature, of what truncation left to draw token i from. Greedy keeps all, and is no
 * distribution at a temperature. */
static double kept_mass(const ls_part *p, int64_t i) {
    const ls_completion *s = p->sample;
    const double mass = exp((double)s->of_all[i] - (double)s->of_kept[i]);
    return p->group->sampling.temperature == 0 || mass > 1 ? 1 : mass;
}

/* Lockstep's own fields of a part. */
static void write_lockstep(ls_json_out *json, const ls_part *p) {
    const ls_completion *s = p->sample;
    if (!p->group->ask->lockstep) return;
    ls_json_begin_object(json, "lockstep");
    ls_json_string(json, "numerics", p->about->numerics);
    ls_json_string(json, "logprob_of", p->about->logprob_of == LS_LOGPROB_RAW ? "raw" : "processed");
    ls_json_uint(json, "seed", p->group->sampling.seed);
    ls_json_int(json, "prompt", s->request.prompt_i);
    ls_json_int(json, "sample", s->request.sample_i);
    write_bits(json, "logprob_bits", s->logprob, p->first, p->n);
    ls_json_begin_array(json, "weights");
    for (int64_t i = p->first; i < p->n; i++) ls_json_uint(json, NULL, s->weights[i]);
    ls_json_end_array(json);
    if (p->group->ask->distributions) {
        const float *raw = s->of_model != NULL ? s->of_model : s->logprob;
        write_floats(json, "raw_logprobs", raw, p->first, p->n);
        write_bits(json, "raw_logprob_bits", raw, p->first, p->n);
        write_floats(json, "processed_logprobs", s->of_kept, p->first, p->n);
        write_bits(json, "processed_logprob_bits", s->of_kept, p->first, p->n);
        ls_json_begin_array(json, "kept_mass");
        for (int64_t i = p->first; i < p->n; i++) ls_json_double(json, NULL, kept_mass(p, i));
        ls_json_end_array(json);
        ls_json_begin_array(json, "kept");
        for (int64_t i = p->first; i < p->n; i++) ls_json_int(json, NULL, s->kept[i]);
        ls_json_end_array(json);
    }
    if (p->group->ask->mask) write_masks(json, "mask", p);
    if (p->finish != LS_FINISH_NONE) { /* the engine no longer writes these */
        if (has_prompt(p)) {
            write_bits(json, "prompt_logprob_bits", s->prompt_logprob, 0, s->request.n_prompt - 1);
            ls_json_uint(json, "prompt_weights", s->version);
        }
        ls_json_int(json, "slot", s->request.slot);
        ls_json_int(json, "cache_hit", s->request.n_hit);
        ls_json_int(json, "preemptions", s->request.n_preempted);
    }
    ls_json_end_object(json);
}

static void write_usage(ls_json_out *json, const ls_group *g) {
    int64_t prompt = 0, completion = 0, cached = 0;
    for (int64_t i = 0; i < g->n_samples; i++) {
        const ls_completion *s = &g->samples[i];
        completion += s->request.n_completion;
        if (s->request.sample_i > g->ask->first_sample) continue;
        prompt += s->request.n_prompt;
        cached += s->request.n_hit;
    }
    ls_json_begin_object(json, "usage");
    ls_json_int(json, "prompt_tokens", prompt);
    ls_json_int(json, "completion_tokens", completion);
    ls_json_int(json, "total_tokens", prompt + completion);
    ls_json_begin_object(json, "prompt_tokens_details");
    ls_json_int(json, "cached_tokens", cached);
    ls_json_end_object(json);
    ls_json_end_object(json);
}

/* ---- log-probabilities, by dialect ---- */

static int64_t n_top(const ls_logit_stats *s, int64_t row) {
    int64_t n = 0;
    while (n < s->top && s->top_id[row * s->top + n] >= 0) n++;
    return n;
}

/* /v1/completions: lists side by side. */
static ls_status write_columns(ls_json_out *json, const ls_part *p, ls_error *err) {
    const ls_ask *a = p->group->ask;
    const ls_logit_stats *s = &p->sample->stats;
    char key[160];
    int64_t offset = p->offset != NULL ? *p->offset : 0;
    if (a->top < 0) {
        ls_json_null(json, "logprobs");
        return LS_OK;
    }
    ls_json_begin_object(json, "logprobs");
    ls_json_begin_array(json, "tokens");
    for (int64_t i = p->first; i < p->n; i++)
        LS_TRY(write_token(json, NULL, p, p->sample->completion[i], a->ids_as_tokens, err));
    ls_json_end_array(json);
    write_floats(json, "token_logprobs", p->sample->logprob, p->first, p->n);
    ls_json_begin_array(json, "text_offset");
    for (int64_t i = p->first; i < p->n; i++) {
        char *text;
        int64_t bytes;
        ls_json_int(json, NULL, offset);
        LS_TRY(ls_part_decode(p, &p->sample->completion[i], 1, false, &text, &bytes, err));
        offset += bytes;
        free(text);
    }
    if (p->offset != NULL) *p->offset = offset;
    ls_json_end_array(json);
    ls_json_begin_array(json, "top_logprobs");
    for (int64_t i = p->first; i < p->n; i++) {
        const int32_t own = p->sample->completion[i];
        ls_json_begin_object(json, NULL);
        LS_TRY(token_key(key, p, own, a->ids_as_tokens, err));
        ls_json_float(json, key, p->sample->logprob[i]);
        for (int64_t k = 0; s->top > 0 && k < n_top(s, i); k++) {
            if (s->top_id[i * s->top + k] == own) continue;
            LS_TRY(token_key(key, p, s->top_id[i * s->top + k], a->ids_as_tokens, err));
            ls_json_float(json, key, s->top_logprob[i * s->top + k]);
        }
        ls_json_end_object(json);
    }
    ls_json_end_array(json);
    ls_json_end_object(json);
    return LS_OK;
}

static ls_status write_entry(ls_json_out *json, const ls_part *p, int32_t id, float logprob, int64_t rank,
                             ls_error *err) {
    const ls_ask *a = p->group->ask;
    const bool is_chat = a->kind == LS_ASK_CHAT;
    LS_TRY(write_token(json, "token", p, id, a->ids_as_tokens || !is_chat, err));
    if (!is_chat) ls_json_int(json, "token_id", id);
    ls_json_float(json, "logprob", logprob);
    if (!is_chat) ls_json_int(json, "rank", rank);
    if (is_chat) {
        char *text;
        int64_t bytes;
        LS_TRY(ls_part_decode(p, &id, 1, false, &text, &bytes, err));
        ls_json_begin_array(json, "bytes");
        for (int64_t i = 0; i < bytes; i++) ls_json_int(json, NULL, (uint8_t)text[i]);
        ls_json_end_array(json);
        free(text);
    }
    return LS_OK;
}

/* Chats and /inference/v1/generate: an entry for each token. */
static ls_status write_content(ls_json_out *json, const ls_part *p, ls_error *err) {
    const ls_logit_stats *s = &p->sample->stats;
    if (p->group->ask->top < 0) {
        ls_json_null(json, "logprobs");
        return LS_OK;
    }
    ls_json_begin_object(json, "logprobs");
    ls_json_begin_array(json, "content");
    for (int64_t i = p->first; i < p->n; i++) {
        ls_json_begin_object(json, NULL);
        LS_TRY(write_entry(json, p, p->sample->completion[i], p->sample->logprob[i], s->rank != NULL ? s->rank[i] : 0,
                           err));
        ls_json_begin_array(json, "top_logprobs");
        for (int64_t k = 0; s->top > 0 && k < n_top(s, i); k++) {
            ls_json_begin_object(json, NULL);
            LS_TRY(write_entry(json, p, s->top_id[i * s->top + k], s->top_logprob[i * s->top + k], k + 1, err));
            ls_json_end_object(json);
        }
        ls_json_end_array(json);
        ls_json_end_object(json);
    }
    ls_json_end_array(json);
    ls_json_end_object(json);
    return LS_OK;
}

static ls_status write_prompt_entry(ls_json_out *json, const ls_part *p, int32_t id, float logprob, int64_t rank,
                                    ls_error *err) {
    char key[16];
    snprintf(key, sizeof key, "%d", id);
    ls_json_begin_object(json, key);
    ls_json_float(json, "logprob", logprob);
    ls_json_int(json, "rank", rank);
    LS_TRY(write_token(json, "decoded_token", p, id, false, err));
    ls_json_end_object(json);
    return LS_OK;
}

/* A position each, the first null; the prompt's own token is the first member. */
static ls_status write_prompt_logprobs(ls_json_out *json, const ls_part *p, ls_error *err) {
    const ls_request *r = &p->sample->request;
    const ls_logit_stats *s = &p->sample->prompt_stats;
    if (p->group->ask->prompt_top < 0 || !has_prompt(p)) {
        ls_json_null(json, "prompt_logprobs");
        return LS_OK;
    }
    ls_json_begin_array(json, "prompt_logprobs");
    ls_json_null(json, NULL);
    for (int64_t i = 0; i + 1 < r->n_prompt; i++) {
        const int32_t own = r->prompt[i + 1];
        ls_json_begin_object(json, NULL);
        LS_TRY(write_prompt_entry(json, p, own, p->sample->prompt_logprob[i], s->rank[i], err));
        for (int64_t k = 0; s->top > 0 && k < n_top(s, i); k++)
            if (s->top_id[i * s->top + k] != own)
                LS_TRY(
                    write_prompt_entry(json, p, s->top_id[i * s->top + k], s->top_logprob[i * s->top + k], k + 1, err));
        ls_json_end_object(json);
    }
    ls_json_end_array(json);
    return LS_OK;
}

/* Versions as spans: [{"version", "start", "end"}]. */
static void write_version_spans(ls_json_out *json, const ls_part *p) {
    int64_t start = p->first;
    ls_json_begin_array(json, "weight_versions");
    for (int64_t i = p->first; i < p->n; i++) {
        if (i + 1 < p->n && p->sample->weights[i + 1] == p->sample->weights[i]) continue;
        ls_json_begin_object(json, NULL);
        ls_json_uint(json, "version", p->sample->weights[i]);
        ls_json_int(json, "start", start);
        ls_json_int(json, "end", i + 1);
        ls_json_end_object(json);
        start = i + 1;
    }
    ls_json_end_array(json);
}

/* ---- a choice, by dialect ---- */

static int64_t index_of(const ls_part *p) { return p->sample - p->group->samples; }

static ls_status completion_choice(ls_json_out *json, const ls_part *p, const char *text, int64_t bytes, bool is_chunk,
                                   ls_error *err) {
    const ls_ask *a = p->group->ask;
    const ls_request *r = &p->sample->request;
    ls_json_int(json, "index", index_of(p));
    ls_json_text(json, "text", text, bytes);
    LS_TRY(write_columns(json, p, err));
    LS_TRY(write_reason(json, p, err));
    if (a->return_ids) {
        write_reply_ids(json, "token_ids", p->sample->completion + p->first, p->n - p->first);
        if (p->first == 0) write_reply_ids(json, "prompt_token_ids", r->prompt, r->n_prompt);
    }
    if (!is_chunk) LS_TRY(write_prompt_logprobs(json, p, err));
    return LS_OK;
}

/* A name that the request's other calls do not have: Mistral's templates want nine letters and digits. */
static void name_call(char out[32], const ls_part *p, int64_t i) {
    static const char digits[] = "0123456789abcdefghijklmnopqrstuvwxyz";
    uint64_t hash = ls_fnv_mix(LS_FNV_START, p->group->name, (int64_t)strlen(p->group->name));
    const int64_t place[2] = {index_of(p), i};
    hash = ls_fnv_mix(hash, place, (int64_t)sizeof place);
    if (p->group->ask->calls != LS_CALLS_MISTRAL) {
        snprintf(out, 32, "call_%016llx", (unsigned long long)hash);
        return;
    }
    for (int k = 0; k < 9; k++, hash /= 36) out[k] = digits[hash % 36];
    out[9] = '\0';
}

static void write_calls(ls_json_out *json, const ls_part *p, bool is_chunk) {
    char name[32];
    if (p->calls == NULL || p->calls->n == 0) return;
    ls_json_begin_array(json, "tool_calls");
    for (int64_t i = 0; i < p->calls->n && (i == 0 || !p->group->ask->one_call); i++) {
        name_call(name, p, i);
        ls_json_begin_object(json, NULL);
        if (is_chunk) ls_json_int(json, "index", i);
        ls_json_string(json, "id", name);
        ls_json_string(json, "type", "function");
        ls_json_begin_object(json, "function");
        ls_json_string(json, "name", p->calls->items[i].name);
        ls_json_string(json, "arguments", p->calls->items[i].arguments);
        ls_json_end_object(json);
        ls_json_end_object(json);
    }
    ls_json_end_array(json);
}

static ls_status chat_choice(ls_json_out *json, const ls_part *p, const char *text, int64_t bytes, bool is_chunk,
                             ls_error *err) {
    ls_json_int(json, "index", index_of(p));
    ls_json_begin_object(json, is_chunk ? "delta" : "message");
    if (!is_chunk || p->first == 0) ls_json_string(json, "role", "assistant");
    if (bytes == 0 && p->calls != NULL && p->calls->n > 0)
        ls_json_null(json, "content");
    else
        ls_json_text(json, "content", text, bytes);
    if (!is_chunk) ls_json_null(json, "refusal");
    write_calls(json, p, is_chunk);
    ls_json_end_object(json);
    LS_TRY(write_content(json, p, err));
    LS_TRY(write_reason(json, p, err));
    if (p->group->ask->return_ids)
        write_reply_ids(json, "token_ids", p->sample->completion + p->first, p->n - p->first);
    return LS_OK;
}

static ls_status tokens_choice(ls_json_out *json, const ls_part *p, ls_error *err) {
    ls_json_int(json, "index", index_of(p));
    write_reply_ids(json, "token_ids", p->sample->completion + p->first, p->n - p->first);
    LS_TRY(write_content(json, p, err));
    LS_TRY(write_reason(json, p, err));
    if (p->group->ask->mask)
        write_masks(json, "sampling_mask", p);
    else
        ls_json_null(json, "sampling_mask");
    write_version_spans(json, p);
    return LS_OK;
}

static ls_status sglang_rows(ls_json_out *json, const ls_part *p, ls_error *err) {
    const ls_ask *a = p->group->ask;
    const ls_completion *s = p->sample;
    if (a->top >= 0) {
        ls_json_begin_array(json, "output_token_logprobs");
        for (int64_t i = p->first; i < p->n; i++) {
            ls_json_begin_array(json, NULL);
            ls_json_float(json, NULL, s->logprob[i]);
            ls_json_int(json, NULL, s->completion[i]);
            LS_TRY(write_token(json, NULL, p, s->completion[i], false, err));
            ls_json_end_array(json);
        }
        ls_json_end_array(json);
    }
    if (a->top > 0) {
        ls_json_begin_array(json, "output_top_logprobs");
        for (int64_t i = p->first; i < p->n; i++) {
            ls_json_begin_array(json, NULL);
            for (int64_t k = 0; k < n_top(&s->stats, i); k++) {
                ls_json_begin_array(json, NULL);
                ls_json_float(json, NULL, s->stats.top_logprob[i * s->stats.top + k]);
                ls_json_int(json, NULL, s->stats.top_id[i * s->stats.top + k]);
                ls_json_null(json, NULL);
                ls_json_end_array(json);
            }
            ls_json_end_array(json);
        }
        ls_json_end_array(json);
    }
    if (!has_prompt(p)) return LS_OK;
    ls_json_begin_array(json, "input_token_logprobs");
    for (int64_t i = 0; i < s->request.n_prompt; i++) {
        ls_json_begin_array(json, NULL);
        if (i == 0)
            ls_json_null(json, NULL);
        else
            ls_json_float(json, NULL, s->prompt_logprob[i - 1]);
        ls_json_int(json, NULL, s->request.prompt[i]);
        ls_json_null(json, NULL);
        ls_json_end_array(json);
    }
    ls_json_end_array(json);
    return LS_OK;
}

/* All that there is so far, also in a stream: that is how this dialect streams. */
static ls_status sglang_object(ls_json_out *json, const ls_part *p, ls_error *err) {
    const ls_completion *s = p->sample;
    const char *reason = reason_of(p->finish), *stop;
    char *text = NULL, version[24];
    int64_t bytes;
    ls_status status;
    LS_TRY(ls_part_stop_text(p, &stop, err));
    LS_TRY(ls_part_text(p, &text, &bytes, err));
    ls_json_text(json, "text", text, bytes);
    free(text);
    write_reply_ids(json, "output_ids", s->completion, p->n);
    ls_json_begin_object(json, "meta_info");
    ls_json_string(json, "id", p->group->ask->id != NULL ? p->group->ask->id : p->group->name);
    if (reason == NULL) {
        ls_json_null(json, "finish_reason");
    } else {
        ls_json_begin_object(json, "finish_reason");
        ls_json_string(json, "type", reason);
        if (p->finish == LS_FINISH_LENGTH) ls_json_int(json, "length", p->n);
        if (p->finish == LS_FINISH_STOP && s->ended_by_id) ls_json_int(json, "matched", s->stop_id);
        if (stop != NULL) ls_json_string(json, "matched", stop);
        ls_json_end_object(json);
    }
    ls_json_int(json, "prompt_tokens", s->request.n_prompt);
    ls_json_int(json, "completion_tokens", p->n);
    if (p->finish != LS_FINISH_NONE) {
        ls_json_int(json, "cached_tokens", s->request.n_hit);
        ls_json_double(json, "e2e_latency", s->last_s - p->group->born_s);
    }
    snprintf(version, sizeof version, "%llu", (unsigned long long)(p->n > 0 ? s->weights[p->n - 1] : s->version));
    ls_json_string(json, "weight_version", version);
    status = sglang_rows(json, p, err);
    ls_json_end_object(json);
    write_lockstep(json, p);
    return status;
}

static void score_object(ls_json_out *json, const ls_part *p) {
    const ls_completion *s = p->sample;
    ls_json_int(json, "index", index_of(p));
    write_floats(json, "logprobs", s->prompt_logprob, 0, s->request.n_prompt - 1);
    write_bits(json, "logprob_bits", s->prompt_logprob, 0, s->request.n_prompt - 1);
    ls_json_uint(json, "weights", s->version);
}

/* ---- whole replies ---- */

static const char *object_of(const ls_ask *a, bool is_chunk) {
    switch (a->kind) {
        case LS_ASK_CHAT: return is_chunk ? "chat.completion.chunk" : "chat.completion";
        case LS_ASK_SCORE: return "score";
        case LS_ASK_TOKENS: return is_chunk ? "generate.chunk" : "generate";
        case LS_ASK_COMPLETION:
        case LS_ASK_SGLANG:
        case LS_ASK_TOKENIZE: break;
    }
    return "text_completion";
}

static void begin_reply(ls_json_out *json, const ls_reply_about *about, const ls_group *g, bool is_chunk) {
    const char *id = g->ask->id != NULL ? g->ask->id : g->name;
    ls_json_begin_object(json, NULL);
    ls_json_string(json, "id", id);
    if (g->ask->kind == LS_ASK_TOKENS) ls_json_string(json, "request_id", id);
    ls_json_string(json, "object", object_of(g->ask, is_chunk));
    ls_json_int(json, "created", g->created);
    ls_json_string(json, "model", about->model);
    if (g->ask->kind == LS_ASK_SCORE) ls_json_string(json, "numerics", about->numerics);
}

static ls_status write_choice(ls_json_out *json, const ls_part *p, const char *text, int64_t bytes, bool is_chunk,
                              ls_error *err) {
    ls_status status = LS_OK;
    ls_json_begin_object(json, NULL);
    switch (p->group->ask->kind) {
        case LS_ASK_COMPLETION: status = completion_choice(json, p, text, bytes, is_chunk, err); break;
        case LS_ASK_CHAT: status = chat_choice(json, p, text, bytes, is_chunk, err); break;
        case LS_ASK_TOKENS: status = tokens_choice(json, p, err); break;
        case LS_ASK_SGLANG: status = sglang_object(json, p, err); break;
        case LS_ASK_SCORE: score_object(json, p); break;
        case LS_ASK_TOKENIZE: break; /* draws nothing */
    }
    if (p->group->ask->kind != LS_ASK_SGLANG) write_lockstep(json, p);
    ls_json_end_object(json);
    return status;
}

static ls_part whole_part(const ls_reply_about *about, const ls_group *g, int64_t i) {
    const ls_completion *s = &g->samples[i];
    return (ls_part){about, g, s, 0, s->request.n_completion, s->finish, NULL, NULL};
}

static ls_status write_whole_choice(ls_json_out *json, ls_part *p, ls_error *err) {
    ls_tool_calls calls = {0};
    char *text = NULL;
    int64_t bytes = 0;
    ls_status status;
    if (p->group->ask->kind & (LS_ASK_COMPLETION | LS_ASK_CHAT))
        LS_TRY_DONE(ls_part_text_and_calls(p, &calls, &text, &bytes, err));
    p->calls = &calls;
    status = write_choice(json, p, text, bytes, false, err);
done:
    ls_tool_calls_deinit(&calls);
    free(text);
    return status;
}

static ls_status sglang_whole(ls_json_out *json, const ls_reply_about *about, const ls_group *g, ls_error *err) {
    const bool is_list = g->n_samples > 1 || g->ask->is_batch;
    if (is_list) ls_json_begin_array(json, NULL);
    for (int64_t i = 0; i < g->n_samples; i++) {
        const ls_part p = whole_part(about, g, i);
        LS_TRY(write_choice(json, &p, NULL, 0, false, err));
    }
    if (is_list) ls_json_end_array(json);
    return LS_OK;
}

ls_status ls_reply_check(const ls_group *g, ls_error *err) {
    if (g->excess.status != LS_OK) {
        if (err != NULL) *err = g->excess;
        return g->excess.status;
    }
    for (int64_t i = 0; i < g->n_samples; i++) {
        const ls_completion *s = &g->samples[i];
        const ls_error *wrong = s->finish == LS_FINISH_ERROR ? &s->request.error : &s->look_error;
        if (g->ask->kind == LS_ASK_SCORE && s->finish == LS_FINISH_CANCEL) /* a score has no other place to say so */
            return LS_FAIL(err, LS_ERR_DEVICE, "the request was aborted");
        if (s->finish != LS_FINISH_ERROR && s->look_error.status == LS_OK) continue;
        if (err != NULL) *err = *wrong;
        return wrong->status != LS_OK ? wrong->status : LS_ERR_DEVICE;
    }
    return LS_OK;
}

ls_status ls_reply_whole(FILE *out, const ls_reply_about *about, ls_group *g, ls_error *err) {
    const ls_part first = whole_part(about, g, 0);
    ls_json_out json;
    ls_json_init(&json, out);
    if (g->ask->kind == LS_ASK_SGLANG) return sglang_whole(&json, about, g, err);
    begin_reply(&json, about, g, false);
    ls_json_begin_array(&json, g->ask->kind == LS_ASK_SCORE ? "data" : "choices");
    for (int64_t i = 0; i < g->n_samples; i++) {
        ls_part p = whole_part(about, g, i);
        LS_TRY(write_whole_choice(&json, &p, err));
    }
    ls_json_end_array(&json);
    write_usage(&json, g);
    if (g->ask->kind & (LS_ASK_CHAT | LS_ASK_TOKENS)) {
        LS_TRY(write_prompt_logprobs(&json, &first, err));
        if (g->ask->return_ids || g->ask->kind == LS_ASK_TOKENS)
            write_reply_ids(&json, "prompt_token_ids", first.sample->request.prompt, first.sample->request.n_prompt);
    }
    ls_json_end_object(&json);
    return LS_OK;
}

/* ---- streams ---- */

static ls_status write_event(FILE *out, const ls_part *p, const char *text, int64_t bytes, ls_error *err) {
    ls_json_out json;
    ls_json_init(&json, out);
    fputs("data: ", out);
    if (p->group->ask->kind == LS_ASK_SGLANG) {
        LS_TRY(write_choice(&json, p, NULL, 0, true, err));
    } else {
        begin_reply(&json, p->about, p->group, true);
        ls_json_begin_array(&json, "choices");
        LS_TRY(write_choice(&json, p, text, bytes, true, err));
        ls_json_end_array(&json);
        ls_json_end_object(&json);
    }
    fputs("\n\n", out);
    return LS_OK;
}

static void write_usage_event(FILE *out, const ls_reply_about *about, const ls_group *g) {
    ls_json_out json;
    ls_json_init(&json, out);
    fputs("data: ", out);
    begin_reply(&json, about, g, true);
    ls_json_begin_array(&json, "choices");
    ls_json_end_array(&json);
    write_usage(&json, g);
    ls_json_end_object(&json);
    fputs("\n\n", out);
}

enum { WINDOW = 256, WINDOW_KEPT = 32 };

/* Moves the beginning of what is decoded on, near the end of the text: where its last tokens alone read as they do
 * there, what comes later reads the same from there on. What is not told yet stays in it. */
static ls_status move_window(const ls_part *p, ls_sent *sent, const char *text, int64_t bytes, ls_error *err) {
    const int64_t from = p->n - WINDOW_KEPT;
    char *tail;
    int64_t tail_bytes;
    if (p->n - sent->from_token < WINDOW || (bytes >= 3 && memcmp(text + bytes - 3, "\xEF\xBF\xBD", 3) == 0))
        return LS_OK;
    LS_TRY(ls_part_decode(p, p->sample->completion + from, WINDOW_KEPT, !p->group->ask->keeps_special, &tail,
                          &tail_bytes, err));
    if (tail_bytes <= bytes && sent->from_bytes + bytes - tail_bytes <= sent->bytes &&
        memcmp(text + bytes - tail_bytes, tail, (size_t)tail_bytes) == 0) {
        sent->from_token = from;
        sent->from_bytes += bytes - tail_bytes;
    }
    free(tail);
    return LS_OK;
}

/* Text that is certain and was not told: *text [*bytes], at *at. The end decodes everything once more, and what was
 * told must be its beginning. */
static ls_status new_text(const ls_part *p, ls_sent *sent, ls_tool_calls *calls, char **text, const char **at,
                          int64_t *bytes, ls_error *err) {
    const ls_ask *a = p->group->ask;
    const int64_t from = p->finish == LS_FINISH_NONE ? sent->from_bytes : 0;
    int64_t n, whole = 0;
    *bytes = 0;
    if (p->finish == LS_FINISH_NONE && sent->in_call) return LS_OK;
    if (p->finish != LS_FINISH_NONE) {
        LS_TRY(ls_part_text_and_calls(p, calls, text, &n, err));
        if (n < sent->bytes || ls_fnv_mix(LS_FNV_START, *text, sent->bytes) != sent->hash) {
            free(*text);
            *text = NULL;
            return LS_FAIL(err, LS_ERR_FORMAT, "the text of a stream does not begin as it was told");
        }
    } else {
        LS_TRY(ls_part_decode(p, p->sample->completion + sent->from_token, p->n - sent->from_token, !a->keeps_special,
                              text, &whole, err));
        n = ls_tool_calls_final(a->calls, *text, ls_part_final(a, *text, whole), from == 0, &sent->in_call);
    }
    n = n + from > sent->bytes ? n + from - sent->bytes : 0;
    *at = *text + (n > 0 ? sent->bytes - from : 0);
    *bytes = n;
    sent->bytes += n;
    sent->hash = ls_fnv_mix(sent->hash, *at, n);
    return p->finish == LS_FINISH_NONE ? move_window(p, sent, *text, whole, err) : LS_OK;
}

/* What is new of one sample. */
static ls_status tell_sample(FILE *out, ls_part *p, ls_sent *sent, ls_error *err) {
    ls_tool_calls calls = {0};
    char *text = NULL;
    const char *at = "";
    int64_t bytes = 0;
    ls_status status;
    if (sent->ended || (p->n == sent->tokens && p->finish == LS_FINISH_NONE)) return LS_OK;
    if (sent->tokens == 0) sent->hash = LS_FNV_START;
    p->first = p->group->ask->kind == LS_ASK_SGLANG ? 0 : sent->tokens;
    p->offset = &sent->offset;
    LS_TRY_DONE((p->group->ask->kind & (LS_ASK_COMPLETION | LS_ASK_CHAT)) == 0
                    ? LS_OK
                    : new_text(p, sent, &calls, &text, &at, &bytes, err));
    p->calls = &calls;
    LS_TRY_DONE(write_event(out, p, at, bytes, err));
    sent->tokens = p->n;
    sent->ended = p->finish != LS_FINISH_NONE;
done:
    ls_tool_calls_deinit(&calls);
    free(text);
    return status;
}

ls_status ls_reply_more(FILE *out, const ls_reply_about *about, ls_group *g, ls_sent *sent, bool *done, ls_error *err) {
    bool all = true;
    for (int64_t i = 0; i < g->n_samples; i++) {
        ls_part p = {.about = about, .group = g, .sample = &g->samples[i]};
        ls_work_lock(g->work);
        p.n = g->samples[i].n_public;
        p.finish = g->samples[i].finish;
        ls_work_unlock(g->work);
        LS_TRY(tell_sample(out, &p, &sent[i], err));
        all = all && sent[i].ended;
    }
    *done = all;
    if (!all) return LS_OK;
    if (g->ask->usage_at_end) write_usage_event(out, about, g);
    fputs("data: [DONE]\n\n", out);
    return LS_OK;
}

int ls_reply_status(const ls_error *err) {
    switch (err->status) {
        case LS_OK: return 200;
        case LS_ERR_NOMEM: return 500;
        case LS_ERR_DEVICE: return 503;
        case LS_ERR_ARG:
        case LS_ERR_IO:
        case LS_ERR_FORMAT:
        case LS_ERR_UNSUPPORTED:
        case LS_ERR_CAPACITY: break;
    }
    return ls_ask_wants_other_model(err) ? 404 : 400;
}

/* The field that a sentence "request: FIELD: .." blames; NULL where it names none. */
static const char *param_of(const char *message, char out[64]) {
    static const char begin[] = "request: ";
    const char *at = message + sizeof begin - 1;
    size_t n;
    if (strncmp(message, begin, sizeof begin - 1) != 0) return NULL;
    n = strcspn(at, ": '");
    if (n == 0 || n >= 64 || at[n] != ':') return NULL;
    memcpy(out, at, n);
    out[n] = '\0';
    return out;
}

void ls_reply_error(FILE *out, int http_status, const char *message) {
    const char *type = http_status == 401                         ? "authentication_error"
                       : http_status == 404                       ? "not_found_error"
                       : http_status == 429                       ? "rate_limit_error"
                       : http_status >= 500 && http_status != 505 ? "server_error"
                                                                  : "invalid_request_error";
    char field[64];
    const char *param = param_of(message, field);
    ls_json_out json;
    ls_json_init(&json, out);
    ls_json_begin_object(&json, NULL);
    ls_json_string(&json, "object", "error");
    ls_json_string(&json, "message", message); /* where some clients look */
    ls_json_begin_object(&json, "error");
    ls_json_string(&json, "message", message);
    ls_json_string(&json, "type", type);
    if (param != NULL)
        ls_json_string(&json, "param", param);
    else
        ls_json_null(&json, "param");
    if (http_status == 404 && param != NULL) /* as OpenAI says it */
        ls_json_string(&json, "code", "model_not_found");
    else
        ls_json_int(&json, "code", http_status);
    ls_json_end_object(&json);
    ls_json_end_object(&json);
}
