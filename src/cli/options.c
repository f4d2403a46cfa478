/* One option table for generate, score and check; each command shows and accepts the options that concern it. */
#include "cli/options.h"

#include <argp.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { G = LS_COMMAND_GENERATE, S = LS_COMMAND_SCORE, C = LS_COMMAND_CHECK };

enum {
    OPT_MODEL = 256,
    OPT_PROMPTS,
    OPT_ROLLOUTS,
    OPT_TOKENS,
    OPT_OUT,
    OPT_SAMPLES,
    OPT_MAX_TOKENS,
    OPT_MAX_LENGTH,
    OPT_TEMPERATURE,
    OPT_TOP_K,
    OPT_TOP_P,
    OPT_MIN_P,
    OPT_SEED,
    OPT_LOGPROBS,
    OPT_IGNORE_EOS,
    OPT_BATCH,
    OPT_CHUNK,
    OPT_SCORE_BATCH,
    OPT_SCORE_CHUNK,
    OPT_SHUFFLE,
    OPT_PAGE,
    OPT_THREADS,
    OPT_ISA,
    OPT_DTYPE,
    OPT_JSON
};

typedef struct option_row {
    struct argp_option option;
    int commands;
} option_row;

static const option_row rows[] = {
    {{"model", OPT_MODEL, "DIR", 0, "Checkpoint directory: config.json, safetensors, tokenizer.json", 0}, G | S | C},
    {{"prompts", OPT_PROMPTS, "FILE", 0, "Lines {\"id\",\"prompt\"} or {\"id\",\"prompt_ids\"}; - is standard input",
      0},
     G | C},
    {{"rollouts", OPT_ROLLOUTS, "FILE", 0, "Records that generate wrote", 0}, S},
    {{"tokens", OPT_TOKENS, "FILE", 0, "Lines {\"id\",\"token_ids\"}", 0}, S},
    {{"out", OPT_OUT, "FILE", 0, "Where the records go; standard output when absent", 0}, G | S},
    {{"samples", OPT_SAMPLES, "N", 0, "Completions for each prompt (1; check without prompts: 4)", 0}, G | C},
    {{"max-tokens", OPT_MAX_TOKENS, "N", 0, "Longest completion (128; check without prompts: 64)", 0}, G | C},
    {{"max-length", OPT_MAX_LENGTH, "N", 0, "Longest prompt and completion together (max_position_embeddings)", 0},
     G | S | C},
    {{"temperature", OPT_TEMPERATURE, "X", 0, "Sampling temperature, 0 is greedy (1)", 0}, G | S | C},
    {{"top-k", OPT_TOP_K, "N", 0, "Sample among the N likeliest tokens (0: all)", 0}, G | S | C},
    {{"top-p", OPT_TOP_P, "X", 0, "Sample among the likeliest tokens of this total probability (1)", 0}, G | S | C},
    {{"min-p", OPT_MIN_P, "X", 0, "Leave out tokens below this share of the largest probability (0)", 0}, G | S | C},
    {{"seed", OPT_SEED, "N", 0, "Seed of all random draws (0)", 0}, G | C},
    {{"logprobs", OPT_LOGPROBS, "KIND", 0,
      "raw: of the model at temperature 1 (default); processed: of the distribution sampled from", 0},
     G | S | C},
    {{"ignore-eos", OPT_IGNORE_EOS, NULL, 0, "Do not stop at the end-of-sequence token", 0}, G | C},
    {{"batch", OPT_BATCH, "N", 0, "Sequences in one forward (16)", 0}, G | S | C},
    {{"chunk", OPT_CHUNK, "N", 0, "Tokens of a sequence in one forward, or 'whole' (256; score: whole)", 0}, G | S | C},
    {{"score-batch", OPT_SCORE_BATCH, "N", 0, "The same for the scoring half (4)", 0}, C},
    {{"score-chunk", OPT_SCORE_CHUNK, "N", 0, "The same for the scoring half (whole)", 0}, C},
    {{"shuffle", OPT_SHUFFLE, "N", 0, "Admit requests in the order that this seed gives (0: file order)", 0}, G | C},
    {{"page", OPT_PAGE, "N", 0, "Tokens in a KV page: 1, 2, 4, ... 64 (16)", 0}, G | S | C},
    {{"threads", OPT_THREADS, "N", 0, "Threads (all processors)", 0}, G | S | C},
    {{"isa", OPT_ISA, "NAME", 0, "Instruction set: generic, avx2, avx512 (the best there is)", 0}, G | S | C},
    {{"dtype", OPT_DTYPE, "TYPE", 0, "Type of activations: f32 or bf16 (f32); weights are used as stored", 0},
     G | S | C},
    {{"json", OPT_JSON, NULL, 0, "Print the summary as JSON", 0}, G | S | C},
};
#define N_ROWS (sizeof rows / sizeof rows[0])

typedef struct parse_context {
    ls_run_options *o;
    ls_error *err;
    ls_status status;
} parse_context;

static ls_status parse_float(float *out, const char *name, const char *text, double low, double high, ls_error *err) {
    double value;
    const ls_status status = ls_cli_float(&value, name, text, low, high, err);
    if (status == LS_OK) *out = (float)value;
    return status;
}

static ls_status parse_chunk(int64_t *out, const char *name, const char *text, ls_error *err) {
    if (strcmp(text, "whole") == 0) {
        *out = 0;
        return LS_OK;
    }
    return ls_cli_int(out, name, text, 0, 1 << 24, err);
}

static ls_status parse_u64(uint64_t *out, const char *name, const char *text, ls_error *err) {
    char *end;
    unsigned long long value;
    errno = 0;
    value = strtoull(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0 || strchr(text, '-') != NULL)
        return LS_FAIL(err, LS_ERR_ARG, "%s: '%s' is not an integer in 0..2^64-1", name, text);
    *out = value;
    return LS_OK;
}

static ls_status parse_option(ls_run_options *o, int key, const char *text, ls_error *err) {
    int64_t number = 0;
    ls_status status;
    switch (key) {
        case OPT_MODEL: o->model = text; return LS_OK;
        case OPT_PROMPTS: o->prompts = text; return LS_OK;
        case OPT_ROLLOUTS: o->rollouts = text; return LS_OK;
        case OPT_TOKENS: o->tokens = text; return LS_OK;
        case OPT_OUT: o->out = text; return LS_OK;
        case OPT_IGNORE_EOS: o->ignore_eos = true; return LS_OK;
        case OPT_JSON: o->json = true; return LS_OK;
        case OPT_SAMPLES: return ls_cli_int(&o->samples, "--samples", text, 1, 1 << 20, err);
        case OPT_MAX_TOKENS: return ls_cli_int(&o->max_tokens, "--max-tokens", text, 1, 1 << 24, err);
        case OPT_MAX_LENGTH: return ls_cli_int(&o->max_length, "--max-length", text, 2, 1 << 30, err);
        case OPT_TEMPERATURE: return parse_float(&o->sampling.temperature, "--temperature", text, 0, 1e6, err);
        case OPT_TOP_K: return ls_cli_int(&o->sampling.top_k, "--top-k", text, 0, INT32_MAX, err);
        case OPT_TOP_P: return parse_float(&o->sampling.top_p, "--top-p", text, 0, 1, err);
        case OPT_MIN_P: return parse_float(&o->sampling.min_p, "--min-p", text, 0, 1, err);
        case OPT_SEED: return parse_u64(&o->sampling.seed, "--seed", text, err);
        case OPT_BATCH: return ls_cli_int(&o->batch, "--batch", text, 1, 1024, err);
        case OPT_CHUNK: return parse_chunk(&o->chunk, "--chunk", text, err);
        case OPT_SCORE_BATCH: return ls_cli_int(&o->score_batch, "--score-batch", text, 1, 1024, err);
        case OPT_SCORE_CHUNK: return parse_chunk(&o->score_chunk, "--score-chunk", text, err);
        case OPT_SHUFFLE: return parse_u64(&o->shuffle, "--shuffle", text, err);
        case OPT_PAGE: return ls_cli_int(&o->page_tokens, "--page", text, 1, 64, err);
        case OPT_THREADS:
            status = ls_cli_int(&number, "--threads", text, 1, LS_THREADS_MAX, err);
            if (status == LS_OK) o->threads = (int32_t)number;
            return status;
        case OPT_ISA:
            if (!ls_isa_parse(&o->isa, text))
                return LS_FAIL(err, LS_ERR_ARG, "--isa: '%s' is not generic, avx2 or avx512", text);
            return LS_OK;
        case OPT_DTYPE:
            if (strcmp(text, "f32") != 0 && strcmp(text, "bf16") != 0)
                return LS_FAIL(err, LS_ERR_ARG, "--dtype: '%s' is not f32 or bf16", text);
            o->dtype = strcmp(text, "bf16") == 0 ? LS_BF16 : LS_F32;
            return LS_OK;
        case OPT_LOGPROBS:
            if (strcmp(text, "raw") != 0 && strcmp(text, "processed") != 0)
                return LS_FAIL(err, LS_ERR_ARG, "--logprobs: '%s' is not raw or processed", text);
            o->logprob_of = strcmp(text, "raw") == 0 ? LS_LOGPROB_RAW : LS_LOGPROB_PROCESSED;
            return LS_OK;
        default: return LS_OK;
    }
}

static error_t on_option(int key, char *text, struct argp_state *state) {
    parse_context *context = state->input;
    if (key == ARGP_KEY_ARG) argp_error(state, "unexpected argument '%s'", text);
    if (key < OPT_MODEL || key > OPT_JSON) return ARGP_ERR_UNKNOWN;
    if (context->status == LS_OK) context->status = parse_option(context->o, key, text, context->err);
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
    }
    return "";
}

ls_status ls_run_options_parse(ls_run_options *out, ls_command_kind command, int argc, char **argv, ls_error *err) {
    const ls_run_options defaults = {.batch = 16,
                                     .chunk = command == LS_COMMAND_SCORE ? 0 : 256,
                                     .score_batch = 4,
                                     .page_tokens = 16,
                                     .threads = ls_cpu_count(),
                                     .isa = ls_isa_best(),
                                     .sampling = {.temperature = 1.0f, .top_p = 1.0f}};
    struct argp_option options[N_ROWS + 1];
    struct argp argp = {options, on_option, NULL, command_text(command), NULL, NULL, NULL};
    parse_context context = {out, err, LS_OK};
    size_t n = 0;
    *out = defaults;
    memset(options, 0, sizeof options);
    for (size_t i = 0; i < N_ROWS; i++)
        if (rows[i].commands & (int)command) options[n++] = rows[i].option;
    argp_err_exit_status = LS_EXIT_USAGE;
    argp_parse(&argp, argc, argv, 0, NULL, &context);
    if (context.status != LS_OK) return context.status;
    if (out->samples == 0) out->samples = command == LS_COMMAND_CHECK && out->prompts == NULL ? 4 : 1;
    if (out->model == NULL) ls_cli_usage(argv[0], "--model is missing; it names the checkpoint directory");
    if (command == LS_COMMAND_GENERATE && out->prompts == NULL)
        ls_cli_usage(argv[0], "--prompts is missing; it names the file of prompts");
    if (command == LS_COMMAND_SCORE && (out->rollouts == NULL) == (out->tokens == NULL))
        ls_cli_usage(argv[0], "give one of --rollouts and --tokens");
    if (64 % out->page_tokens != 0)
        return LS_FAIL(err, LS_ERR_ARG, "--page: %lld does not divide 64", (long long)out->page_tokens);
    if (!(out->sampling.top_p > 0.0f)) return LS_FAIL(err, LS_ERR_ARG, "--top-p: 0 keeps no token");
    return ls_sampling_check(&out->sampling, err);
}
