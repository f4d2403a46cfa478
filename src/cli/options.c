/* One option table for generate, score, check and serve; each command shows and accepts the options that concern it.
 * The levers follow from their own table (rollout/levers.c). */
#include "cli/options.h"

#include <argp.h>
#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/device_option.h"
#include "load/adapter_chain.h"
#include "text/tool_calls.h"

enum { G = LS_COMMAND_GENERATE, S = LS_COMMAND_SCORE, C = LS_COMMAND_CHECK, V = LS_COMMAND_SERVE };

enum {
    OPT_MODEL = 256,
    OPT_ADAPTER,
    OPT_BASE,
    OPT_PROMPTS,
    OPT_ROLLOUTS,
    OPT_TOKENS,
    OPT_OUT,
    OPT_MAX_TOKENS,
    OPT_MAX_LENGTH,
    OPT_TEMPERATURE,
    OPT_TOP_K,
    OPT_TOP_P,
    OPT_MIN_P,
    OPT_PRESENCE,
    OPT_FREQUENCY,
    OPT_REPETITION,
    OPT_TOP_LOGPROBS,
    OPT_SEED,
    OPT_LOGPROBS,
    OPT_IGNORE_EOS,
    OPT_SCORE_BATCH,
    OPT_SCORE_CHUNK,
    OPT_DTYPE,
    OPT_DEVICE,
    OPT_AGAINST,
    OPT_PROFILE,
    OPT_STOP,
    OPT_WEIGHTS,
    OPT_STOP_ID,
    OPT_INJECT,
    OPT_JSON,
    OPT_MEMORY_PLAN,
    OPT_RESUME,
    OPT_PROFILE_TICKS,
    OPT_HOST,
    OPT_PORT,
    OPT_NAME,
    OPT_API_KEY_FILE,
    OPT_ADMIN_KEY_FILE,
    OPT_TOOL_CALLS,
    OPT_STATE,
    OPT_QUEUE,
    OPT_CONNECTIONS,
    OPT_BODY_BYTES,
    OPT_IDLE_SECONDS,
    OPT_BODY_SECONDS,
    OPT_DRAIN_SECONDS,
    OPT_STREAM_MS,
    OPT_HTTP_THREADS,
    OPT_REPLY_SECONDS,
    OPT_CREW,
    OPT_REQUEST_BYTES,
    OPT_KEY_BYTES,
    OPT_HELD_BYTES,
    OPT_LEAST_PRIORITY,
    OPT_LOG,
    OPT_LEVER /* and on: one for each lever */
};

typedef struct option_row {
    struct argp_option option;
    int commands;
} option_row;

static const option_row rows[] = {
    {{"model", OPT_MODEL, "DIR", 0, "Checkpoint directory: config.json, safetensors, tokenizer.json", 0},
     G | S | C | V},
    {{"adapter", OPT_ADAPTER, "DIR", 0, "LoRA adapter on --model, merged as it is loaded; or --model is one itself", 0},
     G | S | C | V},
    {{"base", OPT_BASE, "DIR", 0, "Of an adapter: its model (base_model_name_or_path of adapter_config.json)", 0},
     G | S | C | V},
    {{"prompts", OPT_PROMPTS, "FILE", 0,
      "Lines {\"id\",\"prompt\"}, {\"id\",\"prompt_ids\"} or {\"id\",\"messages\"}; - is standard input", 0},
     G | C},
    {{"rollouts", OPT_ROLLOUTS, "FILE", 0, "Records that generate wrote", 0}, S},
    {{"tokens", OPT_TOKENS, "FILE", 0, "Lines {\"id\",\"token_ids\"}", 0}, S},
    {{"weights", OPT_WEIGHTS, "N=DIR", 0,
      "Score the tokens that weights of version N drew (meta.weights) with those in DIR; may be given again", 0},
     S},
    {{"out", OPT_OUT, "FILE", 0, "Where the records go; standard output when absent", 0}, G | S},
    {{"resume", OPT_RESUME, NULL, 0,
      "Go on with what a signal stopped: take what FILE.partial of --out FILE has, and generate the rest", 0},
     G},
    {{"max-tokens", OPT_MAX_TOKENS, "N", 0, "Longest completion (128; check without prompts: 64)", 0}, G | C},
    {{"max-length", OPT_MAX_LENGTH, "N", 0, "Longest prompt and completion together (max_position_embeddings)", 0},
     G | S | C | V},
    {{"temperature", OPT_TEMPERATURE, "X", 0, "Sampling temperature, 0 is greedy (1)", 0}, G | S | C},
    {{"top-k", OPT_TOP_K, "N", 0, "Sample among the N likeliest tokens (0: all)", 0}, G | S | C},
    {{"top-p", OPT_TOP_P, "X", 0, "Sample among the likeliest tokens of this total probability (1)", 0}, G | S | C},
    {{"min-p", OPT_MIN_P, "X", 0, "Leave out tokens below this share of the largest probability (0)", 0}, G | S | C},
    {{"presence-penalty", OPT_PRESENCE, "X", 0, "Taken off the logits of tokens that the completion has (0)", 0}, G},
    {{"frequency-penalty", OPT_FREQUENCY, "X", 0, "The same for each time that it has them (0)", 0}, G},
    {{"repetition-penalty", OPT_REPETITION, "X", 0,
      "Divides positive logits of tokens of prompt and completion, multiplies others (1)", 0},
     G},
    {{"top-logprobs", OPT_TOP_LOGPROBS, "N", 0, "Also record the N likeliest tokens of each step (0)", 0}, G},
    {{"seed", OPT_SEED, "N", 0, "Seed of all random draws (0)", 0}, G | C},
    {{"seed", OPT_SEED, "N", 0, "Seed of requests that name none (another for each)", 0}, V},
    {{"logprobs", OPT_LOGPROBS, "KIND", 0,
      "raw: of the model at temperature 1 (default); processed: of the distribution sampled from", 0},
     G | S | C | V},
    {{"stop", OPT_STOP, "TEXT", 0, "End a completion whose text contains this; may be given again", 0}, G | C},
    {{"stop-id", OPT_STOP_ID, "ID", 0, "End a completion with this token; may be given again", 0}, G | C},
    {{"ignore-eos", OPT_IGNORE_EOS, NULL, 0, "Do not stop at the end-of-sequence token", 0}, G | C},
    {{"score-batch", OPT_SCORE_BATCH, "N", 0, "Sequences in one forward of the scoring half (4)", 0}, C},
    {{"score-chunk", OPT_SCORE_CHUNK, "N", 0,
      "Tokens of a sequence in one forward of the scoring half, or 'whole' (whole)", 0},
     C},
    {{"dtype", OPT_DTYPE, "TYPE", 0, "Type of activations: f32 or bf16 (f32); weights are used as stored", 0},
     G | S | C | V},
    {{"device", OPT_DEVICE, "NAME", 0, LS_DEVICE_HELP, 0}, G | S | C | V},
    {{"against", OPT_AGAINST, "NAME", 0, "Score on this device what was generated on the other: cpu, cuda or cuda:N",
      0},
     C},
    {{"profile", OPT_PROFILE, "NAME", 0, LS_PROFILE_HELP, 0}, G | S | C | V},
#ifdef LS_FAULTS
    {{"inject", OPT_INJECT, "NAME", 0, "Run with this fault", 0}, G | C},
#endif
    {{"memory-plan", OPT_MEMORY_PLAN, NULL, 0, "Print what memory is planned for, part by part, before the run", 0},
     G | C},
    {{"profile-ticks", OPT_PROFILE_TICKS, NULL, 0,
      "Print what a tick takes, by kind of call, behind the run; CUDA graphs are off meanwhile", 0},
     G | C},
    {{"host", OPT_HOST, "ADDRESS", 0, "Address to listen on (127.0.0.1)", 0}, V},
    {{"port", OPT_PORT, "N", 0, "Port to listen on, 0: any that is free (8000)", 0}, V},
    {{"served-model-name", OPT_NAME, "NAME", 0, "What clients call the model (--model as it is given)", 0}, V},
    {{"api-key-file", OPT_API_KEY_FILE, "FILE", 0, "Keys, one a line, of which clients must send one (none)", 0}, V},
    {{"admin-key-file", OPT_ADMIN_KEY_FILE, "FILE", 0,
      "Keys of those who may change weights and stop work (--api-key-file's)", 0},
     V},
    {{"tool-call-parser", OPT_TOOL_CALLS, "NAME", 0,
      "How the model writes tool calls: hermes, llama3_json, mistral, jamba; off; auto: as its chat template (auto)",
      0},
     V},
    {{"state", OPT_STATE, "FILE", 0, "Keeps which weights are served, for the next start (--model's, always)", 0}, V},
    {{"queue", OPT_QUEUE, "N", 0, "Completions that may wait; more are answered 429 (4096)", 0}, V},
    {{"connections", OPT_CONNECTIONS, "N", 0, "Connections at once (16384)", 0}, V},
    {{"body-bytes", OPT_BODY_BYTES, "N", 0, "Longest body of a request (16777216)", 0}, V},
    {{"idle-seconds", OPT_IDLE_SECONDS, "N", 0, "Time for the whole header of the next request (60)", 0}, V},
    {{"body-seconds", OPT_BODY_SECONDS, "N", 0, "Time for the whole body of a request (60)", 0}, V},
    {{"drain-seconds", OPT_DRAIN_SECONDS, "N", 0, "Time that a stop leaves to what is unfinished (30)", 0}, V},
    {{"stream-ms", OPT_STREAM_MS, "N", 0, "A stream sends at most so often, all that there is (20)", 0}, V},
    {{"http-threads", OPT_HTTP_THREADS, "N", 0, "Threads that read connections and write to them (1)", 0}, V},
    {{"reply-seconds", OPT_REPLY_SECONDS, "N", 0, "Time to read a reply that is not a stream (600)", 0}, V},
    {{"crew", OPT_CREW, "N", 0, "Threads that read bodies and make replies, 2 or more (2)", 0}, V},
    {{"request-bytes", OPT_REQUEST_BYTES, "N", 0, "Memory of a request with its answer (134217728)", 0}, V},
    {{"key-bytes", OPT_KEY_BYTES, "N", 0, "Memory of all requests of a key (268435456)", 0}, V},
    {{"held-bytes", OPT_HELD_BYTES, "N", 0, "Memory of all requests; more are answered 429 (536870912)", 0}, V},
    {{"least-priority", OPT_LEAST_PRIORITY, "N", 0, "Most urgent priority of a request; keys may say another (0)", 0},
     V},
    {{"log", OPT_LOG, NULL, 0, "A line of JSON on standard error for each request", 0}, V},
    {{"json", OPT_JSON, NULL, 0, "Print the summary as JSON", 0}, G | S | C},
};
#define N_ROWS (sizeof rows / sizeof rows[0])

/* Levers that scoring has too. */
static const char *const score_levers[] = {"ablation", "batch", "chunk", "isa", "page", "threads"};
#define N_SCORE_LEVERS (sizeof score_levers / sizeof score_levers[0])

typedef struct parse_context {
    ls_run_options *o;
    ls_error *err;
    ls_status status;
} parse_context;

static ls_status parse_float(float *out, const char *name, const char *text, double low, double high, ls_error *err) {
    double value;
    LS_TRY(ls_cli_float(&value, name, text, low, high, err));
    if (value != 0 && fabs(value) < (double)FLT_MIN)
        return LS_FAIL(err, LS_ERR_ARG, "%s: '%s' is too small for float32", name, text);
    *out = (float)value;
    return LS_OK;
}

static ls_status parse_temperature(ls_run_options *o, const char *text, ls_error *err) {
    double value;
    LS_TRY(ls_cli_float(&value, "--temperature", text, 0, 1e6, err));
    o->sampling.temperature = (float)value;
    if (value == 0 || value >= LS_TEMPERATURE_MIN) return LS_OK;
    return LS_FAIL(err, LS_ERR_ARG, "--temperature: '%s' is not 0 and below %g", text, LS_TEMPERATURE_MIN);
}

static ls_status parse_chunk(int64_t *out, const char *name, const char *text, ls_error *err) {
    if (strcmp(text, "whole") == 0) {
        *out = 0;
        return LS_OK;
    }
    return ls_cli_int(out, name, text, 0, 1 << 24, err);
}

static ls_status add_stop(ls_run_options *o, const char *text, ls_error *err) {
    if (text[0] == '\0') return LS_FAIL(err, LS_ERR_ARG, "--stop: the text is empty");
    if (o->n_stop == LS_STOP_TEXTS_MAX)
        return LS_FAIL(err, LS_ERR_ARG, "--stop: more than %d texts", LS_STOP_TEXTS_MAX);
    o->stop[o->n_stop++] = text;
    return LS_OK;
}

static ls_status add_stop_id(ls_run_options *o, const char *text, ls_error *err) {
    int64_t id = 0;
    LS_TRY(ls_cli_int(&id, "--stop-id", text, 0, INT32_MAX, err));
    if (o->n_stop_ids == LS_STOP_TEXTS_MAX)
        return LS_FAIL(err, LS_ERR_ARG, "--stop-id: more than %d tokens", LS_STOP_TEXTS_MAX);
    o->stop_ids[o->n_stop_ids++] = (int32_t)id;
    return LS_OK;
}

static ls_status add_weights(ls_run_options *o, const char *text, ls_error *err) {
    const char *equals = strchr(text, '=');
    ls_score_version *v = &o->versions[o->n_versions];
    char number[24];
    if (equals == NULL || equals[1] == '\0' || equals - text >= (ptrdiff_t)sizeof number)
        return LS_FAIL(err, LS_ERR_ARG, "--weights: '%.100s' is not N=DIR", text);
    if (o->n_versions == LS_SCORE_VERSIONS_MAX)
        return LS_FAIL(err, LS_ERR_ARG, "--weights: more than %d versions", LS_SCORE_VERSIONS_MAX);
    snprintf(number, sizeof number, "%.*s", (int)(equals - text), text);
    LS_TRY(ls_cli_int(&v->version, "--weights", number, 0, INT64_MAX, err));
    v->path = equals + 1;
    for (int64_t i = 0; i < o->n_versions; i++)
        if (o->versions[i].version == v->version)
            return LS_FAIL(err, LS_ERR_ARG, "--weights: version %s twice", number);
    o->n_versions++;
    return LS_OK;
}

ls_status ls_cli_profile(ls_run_options *out, const char *text, ls_error *err) {
    out->has_profile = ls_profile_parse(&out->profile, text);
    return out->has_profile ? LS_OK : LS_FAIL(err, LS_ERR_ARG, "--profile: '%s' is not exact or mma16", text);
}

ls_status ls_cli_profile_choose(ls_run_options *o, ls_model *model, ls_error *err) {
    if (!o->has_profile) o->profile = ls_model_default_profile(model, o->dtype);
    return ls_model_set_profile(model, o->profile, o->dtype, err);
}

ls_status ls_lever_as_option(ls_status status, ls_error *err) {
    char name[32], after;
    ls_error lever;
    if (status == LS_OK || sscanf(err->text, "%31[a-z-]%c", name, &after) != 2) return status;
    if (after != ':' || ls_lever_find(name) < 0) return status;
    lever = *err;
    return LS_FAIL(err, status, "--%s", lever.text);
}

/* `auto` might be the device that it is to be compared with. */
static ls_status parse_against(ls_run_options *o, const char *text, ls_error *err) {
    if (strcmp(text, LS_DEVICE_AUTO) == 0)
        return LS_FAIL(err, LS_ERR_ARG, "--against: auto; say which: cpu, cuda or cuda:N");
    return ls_cli_device_name(&o->against, "--against", text, err);
}

static ls_status parse_tool_calls(ls_run_options *o, const char *text, ls_error *err) {
    ls_call_format format;
    if (strcmp(text, "auto") != 0 && !ls_call_format_parse(&format, text))
        return LS_FAIL(err, LS_ERR_ARG,
                       "--tool-call-parser: '%s' is not hermes, llama3_json, mistral, jamba, auto or off", text);
    o->serve.tool_calls = text;
    return LS_OK;
}

static ls_status parse_run_option(ls_run_options *o, int key, const char *text, ls_error *err) {
    switch (key) {
        case OPT_MODEL: o->model = text; return LS_OK;
        case OPT_ADAPTER: o->adapter = text; return LS_OK;
        case OPT_BASE: o->base = text; return LS_OK;
        case OPT_PROMPTS: o->prompts = text; return LS_OK;
        case OPT_ROLLOUTS: o->rollouts = text; return LS_OK;
        case OPT_TOKENS: o->tokens = text; return LS_OK;
        case OPT_OUT: o->out = text; return LS_OK;
        case OPT_IGNORE_EOS: o->ignore_eos = true; return LS_OK;
        case OPT_JSON: o->json = true; return LS_OK;
        case OPT_MEMORY_PLAN: o->memory_plan = true; return LS_OK;
        case OPT_RESUME: o->resume = true; return LS_OK;
        case OPT_PROFILE_TICKS: o->profile_ticks = true; return LS_OK;
        case OPT_MAX_TOKENS: return ls_cli_int(&o->max_tokens, "--max-tokens", text, 1, 1 << 24, err);
        case OPT_MAX_LENGTH: return ls_cli_int(&o->max_length, "--max-length", text, 2, 1 << 30, err);
        case OPT_TEMPERATURE: return parse_temperature(o, text, err);
        case OPT_TOP_K: return ls_cli_int(&o->sampling.top_k, "--top-k", text, 0, INT32_MAX, err);
        case OPT_TOP_P: return parse_float(&o->sampling.top_p, "--top-p", text, 0, 1, err);
        case OPT_MIN_P: return parse_float(&o->sampling.min_p, "--min-p", text, 0, 1, err);
        case OPT_PRESENCE: return parse_float(&o->penalties.presence, "--presence-penalty", text, -1e6, 1e6, err);
        case OPT_FREQUENCY: return parse_float(&o->penalties.frequency, "--frequency-penalty", text, -1e6, 1e6, err);
        case OPT_REPETITION:
            return parse_float(&o->penalties.repetition, "--repetition-penalty", text, LS_REPETITION_MIN, 1e6, err);
        case OPT_TOP_LOGPROBS: return ls_cli_int(&o->top_logprobs, "--top-logprobs", text, 0, LS_TOP_MAX, err);
        case OPT_HOST: o->serve.host = text; return LS_OK;
        case OPT_NAME: o->serve.name = text; return LS_OK;
        case OPT_API_KEY_FILE: o->serve.api_key_file = text; return LS_OK;
        case OPT_ADMIN_KEY_FILE: o->serve.admin_key_file = text; return LS_OK;
        case OPT_TOOL_CALLS: return parse_tool_calls(o, text, err);
        case OPT_STATE: o->serve.state_file = text; return LS_OK;
        case OPT_LOG: o->serve.log = true; return LS_OK;
        case OPT_PORT: return ls_cli_int(&o->serve.port, "--port", text, 0, 65535, err);
        case OPT_QUEUE: return ls_cli_int(&o->serve.queue, "--queue", text, 0, 1 << 20, err);
        case OPT_CONNECTIONS: return ls_cli_int(&o->serve.connections, "--connections", text, 1, 1 << 20, err);
        case OPT_BODY_BYTES: return ls_cli_int(&o->serve.body_bytes, "--body-bytes", text, 1024, 1 << 30, err);
        case OPT_IDLE_SECONDS: return ls_cli_int(&o->serve.idle_seconds, "--idle-seconds", text, 1, 86400, err);
        case OPT_BODY_SECONDS: return ls_cli_int(&o->serve.body_seconds, "--body-seconds", text, 1, 86400, err);
        case OPT_DRAIN_SECONDS: return ls_cli_int(&o->serve.drain_seconds, "--drain-seconds", text, 0, 86400, err);
        case OPT_STREAM_MS: return ls_cli_int(&o->serve.stream_ms, "--stream-ms", text, 0, 10000, err);
        case OPT_HTTP_THREADS: return ls_cli_int(&o->serve.http_threads, "--http-threads", text, 1, 64, err);
        case OPT_REPLY_SECONDS: return ls_cli_int(&o->serve.reply_seconds, "--reply-seconds", text, 1, 86400, err);
        case OPT_CREW: return ls_cli_int(&o->serve.crew, "--crew", text, 2, 64, err);
        case OPT_REQUEST_BYTES:
            return ls_cli_int(&o->serve.request_bytes, "--request-bytes", text, 1 << 20, INT64_MAX / 4, err);
        case OPT_KEY_BYTES: return ls_cli_int(&o->serve.key_bytes, "--key-bytes", text, 1 << 20, INT64_MAX / 4, err);
        case OPT_HELD_BYTES: return ls_cli_int(&o->serve.held_bytes, "--held-bytes", text, 1 << 20, INT64_MAX / 4, err);
        case OPT_LEAST_PRIORITY:
            return ls_cli_int(&o->serve.least_priority, "--least-priority", text, INT32_MIN, INT32_MAX, err);
        case OPT_SEED: o->serve.has_seed = true; return ls_cli_seed(&o->sampling.seed, "--seed", text, err);
        case OPT_SCORE_BATCH: return ls_cli_int(&o->score_batch, "--score-batch", text, 1, 1024, err);
        case OPT_SCORE_CHUNK: return parse_chunk(&o->score_chunk, "--score-chunk", text, err);
        case OPT_STOP: return add_stop(o, text, err);
        case OPT_STOP_ID: return add_stop_id(o, text, err);
        case OPT_WEIGHTS: return add_weights(o, text, err);
        case OPT_DEVICE: return ls_cli_device_name(&o->device, "--device", text, err);
        case OPT_AGAINST: return parse_against(o, text, err);
#ifdef LS_FAULTS
        case OPT_INJECT:
            if (!ls_inject_parse(&o->inject, text)) return LS_FAIL(err, LS_ERR_ARG, "--inject: '%s' is no fault", text);
            return LS_OK;
#endif
        case OPT_DTYPE:
            if (strcmp(text, "f32") != 0 && strcmp(text, "bf16") != 0)
                return LS_FAIL(err, LS_ERR_ARG, "--dtype: '%s' is not f32 or bf16", text);
            o->dtype = strcmp(text, "bf16") == 0 ? LS_BF16 : LS_F32;
            return LS_OK;
        case OPT_PROFILE: return ls_cli_profile(o, text, err);
        case OPT_LOGPROBS:
            if (strcmp(text, "raw") != 0 && strcmp(text, "processed") != 0)
                return LS_FAIL(err, LS_ERR_ARG, "--logprobs: '%s' is not raw or processed", text);
            o->logprob_of = strcmp(text, "raw") == 0 ? LS_LOGPROB_RAW : LS_LOGPROB_PROCESSED;
            return LS_OK;
        default: return ls_lever_as_option(ls_lever_parse(&o->levers, key - OPT_LEVER, text, err), err);
    }
}

static error_t on_run_option(int key, char *text, struct argp_state *state) {
    parse_context *context = state->input;
    if (key == ARGP_KEY_ARG) ls_cli_wrong(state, "unexpected argument '%s'", text);
    if (key < OPT_MODEL || key >= OPT_LEVER + ls_levers_count()) return ARGP_ERR_UNKNOWN;
    if (context->status == LS_OK) context->status = parse_run_option(context->o, key, text, context->err);
    return 0;
}

static const char *command_text(ls_command_kind command) {
    switch (command) {
        case LS_COMMAND_GENERATE:
            return "Continues prompts and writes one record a completion, with the log-probability of every token.";
        case LS_COMMAND_SCORE: return "Recomputes log-probabilities of given sequences with the training forward.";
        case LS_COMMAND_CHECK:
            return "Generates, scores what was generated, and compares every log-probability bit for bit. Exit code 0 "
                   "only if all agree, 3 if any bit differs. Without --prompts it makes up prompts of random tokens.";
        case LS_COMMAND_SERVE:
            return "Serves a model over HTTP in the dialects of OpenAI, vLLM and SGLang, with the bits of generate. "
                   "The "
                   "first line on standard output is the address. SIGTERM and SIGINT end it when what is unfinished is "
                   "done.";
    }
    return "";
}

static bool has_lever(ls_command_kind command, const char *name) {
    if (command == LS_COMMAND_SERVE) /* a request says how many completions it wants; the order is theirs */
        return strcmp(name, "samples") != 0 && strcmp(name, "shuffle") != 0;
    if (command != LS_COMMAND_SCORE) return true;
    for (size_t i = 0; i < N_SCORE_LEVERS; i++)
        if (strcmp(score_levers[i], name) == 0) return true;
    return false;
}

enum { OPTIONS_MAX = 128, GROUP_LEVERS = 1 };

/* The command's options, in the form that argp reads: up to an entry of zeros. */
static void list_options(struct argp_option *out, ls_command_kind command) {
    int n = 0;
    memset(out, 0, OPTIONS_MAX * sizeof *out);
    for (size_t i = 0; i < N_ROWS; i++)
        if (rows[i].commands & (int)command) out[n++] = rows[i].option;
    out[n++] = (struct argp_option){.doc = "Levers: no bit of a result depends on one, but for the ablation",
                                    .group = GROUP_LEVERS};
    for (int i = 0; i < (int)ls_levers_count(); i++) {
        if (!has_lever(command, ls_lever_name(i))) continue;
        LS_ASSERT(n + 1 < OPTIONS_MAX, "%d options", n);
        out[n++] =
            (struct argp_option){ls_lever_name(i), OPT_LEVER + i, ls_lever_value(i), 0, ls_lever_help(i), GROUP_LEVERS};
    }
}

static void set_defaults(ls_run_options *out, ls_command_kind command) {
    memset(out, 0, sizeof *out);
    ls_levers_init(&out->levers);
    if (command == LS_COMMAND_SCORE) out->levers.chunk = 0;
    if (command == LS_COMMAND_CHECK) out->levers.samples = 0; /* what it is depends on --prompts */
    ls_serve_opts_init(&out->serve);
    out->device = LS_DEVICE_AUTO;
    out->score_batch = 4;
    out->penalties.repetition = 1.0f;
    out->sampling.temperature = out->sampling.top_p = 1.0f;
}

/* What is opened is the adapter, whose base is what the options say. */
static ls_status resolve_adapter(ls_run_options *o, ls_error *err) {
    ls_adapter_config config;
    if (o->adapter != NULL && o->base != NULL)
        return LS_FAIL(err, LS_ERR_ARG, "--base: beside --adapter it is --model that names the base");
    if (o->adapter != NULL) {
        o->base = o->model;
        o->model = o->adapter;
    }
    if (o->base == NULL) return LS_OK;
    ls_adapter_base_is(o->model, o->base);
    LS_TRY(ls_adapter_config_open(&config, o->model, err)); /* there must be one */
    free(config.base);
    return LS_OK;
}

ls_status ls_run_options_parse(ls_run_options *out, ls_command_kind command, int argc, char **argv, ls_error *err) {
    struct argp_option options[OPTIONS_MAX];
    struct argp argp = {options, on_run_option, NULL, command_text(command), NULL, NULL, NULL};
    parse_context context = {out, err, LS_OK};
    set_defaults(out, command);
    list_options(options, command);
    ls_cli_parse(&argp, argc, argv, &context);
    if (context.status != LS_OK) return context.status;
    if (out->levers.samples == 0) out->levers.samples = out->prompts == NULL ? 4 : 1;
    if (out->model == NULL) ls_cli_usage(argv[0], "--model is missing; it names the checkpoint directory");
    LS_TRY(resolve_adapter(out, err));
    if (command == LS_COMMAND_GENERATE && out->prompts == NULL)
        ls_cli_usage(argv[0], "--prompts is missing; it names the file of prompts");
    if (command == LS_COMMAND_SCORE && (out->rollouts == NULL) == (out->tokens == NULL))
        ls_cli_usage(argv[0], "give one of --rollouts and --tokens");
    if (ls_lever_as_option(ls_levers_check(&out->levers, err), err) != LS_OK) return err->status;
    if (!(out->sampling.top_p > 0.0f)) return LS_FAIL(err, LS_ERR_ARG, "--top-p: 0 keeps no token");
    if (!(out->penalties.repetition > 0.0f)) return LS_FAIL(err, LS_ERR_ARG, "--repetition-penalty: it is not above 0");
    if (ls_penalties_act(&out->penalties) && out->logprob_of == LS_LOGPROB_PROCESSED)
        return LS_FAIL(err, LS_ERR_UNSUPPORTED,
                       "--logprobs: processed with penalties; what is recorded beside them is the model's own");
    return ls_sampling_check(&out->sampling, err);
}
