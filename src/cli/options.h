/* The options that generate, score and check share. */
#ifndef LS_CLI_OPTIONS_H
#define LS_CLI_OPTIONS_H

#include "cli/commands.h"
#include "dev/queue.h"
#include "model/jamba_score.h"

typedef enum ls_command_kind { LS_COMMAND_GENERATE = 1, LS_COMMAND_SCORE = 2, LS_COMMAND_CHECK = 4 } ls_command_kind;

typedef struct ls_run_options {
    const char *model, *prompts, *rollouts, *tokens, *out;
    int64_t samples, max_tokens, max_length;                     /* max_length 0: the configuration's */
    int64_t batch, chunk, score_batch, score_chunk, page_tokens; /* chunk 0: whole */
    uint64_t shuffle;                                            /* 0: file order */
    int32_t threads;
    ls_isa isa;
    ls_dtype dtype;
    ls_logprob_of logprob_of;
    ls_sampling sampling;
    bool ignore_eos, json;
} ls_run_options;

/* Parses argv for one command. Usage errors print and exit with LS_EXIT_USAGE; a value out of its range is returned. */
ls_status ls_run_options_parse(ls_run_options *out, ls_command_kind command, int argc, char **argv, ls_error *err);

#endif
