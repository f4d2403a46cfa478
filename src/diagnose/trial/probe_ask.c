/* The body of a request, in the words of each dialect. */
#define _POSIX_C_SOURCE 200809L
#include "diagnose/trial/probe_ask.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "json/json_out.h"

static void write_prompt_ids(ls_json_out *json, const char *key, const ls_probe_ask *a) {
    if (a->text != NULL) {
        ls_json_string(json, key, a->text);
        return;
    }
    ls_json_begin_array(json, key);
    for (int64_t i = 0; i < a->n; i++) ls_json_int(json, NULL, a->ids[i]);
    ls_json_end_array(json);
}

static void write_draws(ls_json_out *json, const ls_probe_ask *a, const char *seed_key) {
    const ls_sampling *s = a->draws;
    if (s == NULL) {
        ls_json_int(json, "temperature", 0);
        return;
    }
    ls_json_double(json, "temperature", ls_float_plain(s->temperature));
    if (s->top_k > 0) ls_json_int(json, "top_k", s->top_k);
    if (s->top_p < 1.0f) ls_json_double(json, "top_p", ls_float_plain(s->top_p));
    if (seed_key != NULL) ls_json_uint(json, seed_key, s->seed);
    ls_json_bool(json, "ignore_eos", true);
}

/* What must not be left behind for another request. */
enum { MARKED_IDS = 8 };
static void write_marks(ls_json_out *json, const ls_probe_ask *a, const char *repetition, bool pairs) {
    if (!a->marked) return;
    ls_json_double(json, repetition, 1.5);
    ls_json_double(json, "frequency_penalty", 1.0);
    ls_json_double(json, "presence_penalty", 1.0);
    (pairs ? ls_json_begin_array : ls_json_begin_object)(json, "logit_bias");
    for (int64_t i = 0; i < a->n && i < MARKED_IDS; i++) {
        char id[16];
        snprintf(id, sizeof id, "%" PRId32, a->ids[i]);
        if (pairs) {
            ls_json_begin_array(json, NULL);
            ls_json_int(json, NULL, a->ids[i]);
            ls_json_double(json, NULL, 4.0);
            ls_json_end_array(json);
        } else {
            ls_json_double(json, id, 4.0);
        }
    }
    (pairs ? ls_json_end_array : ls_json_end_object)(json);
}

static void write_stops(ls_json_out *json, const ls_probe_ask *a) {
    if (a->n_stops == 0) return;
    ls_json_begin_array(json, "stop_token_ids");
    for (int32_t id = 0; id < a->n_stops; id += 2) ls_json_int(json, NULL, id);
    ls_json_end_array(json);
}

static void write_salt(ls_json_out *json, const ls_probe_ask *a) {
    char salt[40];
    if (a->salt == 0) return;
    snprintf(salt, sizeof salt, "lockstep-%" PRIu64, a->salt);
    ls_json_string(json, "cache_salt", salt);
}

static void write_vllm(ls_json_out *json, const ls_probe_server *s, const ls_probe_ask *a) {
    if (s->model[0] != '\0') ls_json_string(json, "model", s->model);
    write_prompt_ids(json, "prompt", a);
    ls_json_int(json, "max_tokens", a->n_new);
    write_draws(json, a, "seed");
    write_marks(json, a, "repetition_penalty", false);
    write_stops(json, a);
    if (a->samples > 1) ls_json_int(json, "n", a->samples);
    ls_json_int(json, a->scores ? "prompt_logprobs" : "logprobs", 0);
    ls_json_bool(json, "return_token_ids", true);
    ls_json_bool(json, "return_tokens_as_token_ids", true);
    write_salt(json, a);
}

static void write_sglang(ls_json_out *json, const ls_probe_ask *a) {
    write_prompt_ids(json, a->text != NULL ? "text" : "input_ids", a);
    ls_json_begin_object(json, "sampling_params");
    ls_json_int(json, "max_new_tokens", a->n_new);
    write_draws(json, a, NULL);
    write_marks(json, a, "repetition_penalty", false);
    write_stops(json, a);
    if (a->samples > 1) ls_json_int(json, "n", a->samples);
    ls_json_end_object(json);
    ls_json_bool(json, "return_logprob", true);
    if (a->scores) ls_json_int(json, "logprob_start_len", 0);
}

/* Its server gives values to tokens it draws alone: a token is scored by leaving it no other to draw. Biases are not
 * seen in what it reports. */
static void write_llama_cpp(ls_json_out *json, const ls_probe_ask *a) {
    write_prompt_ids(json, "prompt", a);
    ls_json_int(json, "n_predict", a->n_new);
    write_draws(json, a, "seed");
    if (a->draws == NULL || a->draws->top_k == 0) ls_json_int(json, "top_k", 0);
    if (a->draws == NULL || a->draws->top_p >= 1.0f) ls_json_double(json, "top_p", 1.0);
    ls_json_double(json, "min_p", 0.0);
    ls_json_int(json, "n_probs", 1);
    ls_json_bool(json, "return_tokens", true); /* not every token has a value there: ls_answers_parse() */
    ls_json_bool(json, "cache_prompt", a->cache);
    if (a->slot_id >= 0) ls_json_int(json, "id_slot", a->slot_id);
    write_marks(json, a, "repeat_penalty", true);
    if (a->forced < 0) return;
    ls_json_begin_array(json, "logit_bias");
    ls_json_begin_array(json, NULL);
    ls_json_int(json, NULL, a->forced);
    ls_json_double(json, NULL, 10000.0);
    ls_json_end_array(json);
    ls_json_end_array(json);
}

ls_status ls_probe_ask_write(char **out, int64_t *bytes, const ls_probe_server *s, const ls_probe_ask *a,
                             ls_error *err) {
    size_t n = 0;
    ls_json_out json;
    FILE *stream = open_memstream(out, &n);
    if (stream == NULL) return LS_FAIL(err, LS_ERR_NOMEM, "request to the server");
    ls_json_init(&json, stream);
    ls_json_begin_object(&json, NULL);
    if (s->dialect == LS_DIALECT_VLLM)
        write_vllm(&json, s, a);
    else if (s->dialect == LS_DIALECT_SGLANG)
        write_sglang(&json, a);
    else
        write_llama_cpp(&json, a);
    ls_json_end_object(&json);
    if (fclose(stream) != 0) return LS_FAIL(err, LS_ERR_NOMEM, "request to the server");
    *bytes = (int64_t)n;
    return LS_OK;
}
