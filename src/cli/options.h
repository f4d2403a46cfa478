/* The options that generate, score, check and serve share. */
#ifndef LS_CLI_OPTIONS_H
#define LS_CLI_OPTIONS_H

#include "base/inject.h"
#include "cli/commands.h"
#include "model/score.h"
#include "op/support.h"
#include "op/top.h"
#include "rollout/levers.h"
#include "serve/serve.h"

typedef enum ls_command_kind {
    LS_COMMAND_GENERATE = 1,
    LS_COMMAND_SCORE = 2,
    LS_COMMAND_CHECK = 4,
    LS_COMMAND_SERVE = 8
} ls_command_kind;

#define LS_STOP_TEXTS_MAX 64
#define LS_SCORE_VERSIONS_MAX 64

/* Weights of a number, in a directory. */
typedef struct ls_score_version {
    int64_t version;
    const char *path;
} ls_score_version;

#define LS_PROFILE_HELP                                                                                            \
    "How dense products are summed: exact, or mma16, with --dtype bf16 and weights in bf16 (mma16 on a GPU where " \
    "both are bf16, else exact)"

typedef struct ls_run_options {
    const char *model;          /* a directory: of a model, or of an adapter with its base */
    const char *adapter, *base; /* as they were given; resolved into model when the options are read */
    const char *prompts, *rollouts, *tokens, *out;
    const char *device, *against;        /* names; against NULL: the same */
    const char *stop[LS_STOP_TEXTS_MAX]; /* texts that end a completion */
    int64_t n_stop;
    int32_t stop_ids[LS_STOP_TEXTS_MAX]; /* tokens that end one, besides the end-of-sequence tokens */
    int64_t n_stop_ids;
    ls_score_version versions[LS_SCORE_VERSIONS_MAX]; /* of score: which weights drew which tokens */
    int64_t n_versions;
    int64_t max_tokens, max_length;   /* max_length 0: the configuration's */
    int64_t score_batch, score_chunk; /* chunk 0: whole */
    ls_levers levers;                 /* score has some of them: batch, chunk, page_tokens, threads, isa, ablation */
    ls_dtype dtype;
    ls_profile profile; /* has_profile: as asked for; else ls_cli_profile_choose fills it in */
    bool has_profile;
    ls_logprob_of logprob_of;
    ls_sampling sampling;
    ls_penalties penalties;
    int64_t top_logprobs;
    bool ignore_eos, json, memory_plan, profile_ticks, resume;
    ls_inject inject; /* none but in the laboratory's build */
    ls_serve_opts serve;
} ls_run_options;

/* Parses argv for one command. Usage errors print and exit with LS_EXIT_USAGE; a value out of its range is returned. */
ls_status ls_run_options_parse(ls_run_options *out, ls_command_kind command, int argc, char **argv, ls_error *err);
/* --profile. */
ls_status ls_cli_profile(ls_run_options *out, const char *text, ls_error *err);
/* Gives the model the profile that was asked for or, where none was, its default. */
ls_status ls_cli_profile_choose(ls_run_options *options, ls_model *model, ls_error *err);
/* A sentence that begins with the name of a lever, which on the command line is an option: "--" goes in front of it. */
ls_status ls_lever_as_option(ls_status status, ls_error *err);

#endif
