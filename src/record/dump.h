/* What other trainers leave on disk about a step's tokens: JSON Lines with the log-probabilities of both sides.
 *
 * prime-rl token exports, one sequence a line: "token_ids", "loss_mask", "inference_logprobs" (r), "trainer_logprobs"
 * (t), and, where present, "advantages" and "rewards", all lists of equal length.
 *
 * NeMo-RL train_data_step*.jsonl, one sequence or a batch of them a line: "token_ids", "token_loss_mask",
 * "generation_logprobs" (r), "prev_logprobs" (t), and, where present, "advantages", "sample_loss_mask", "rewards" and
 * "input_lengths". A batch is a list of lists, and lists of a number a sequence; a single sequence may be either.
 * Tokens from input_lengths on are padding and are left out. The first token of a sequence has no log-probability and
 * does not count.
 *
 * Entry i of every list belongs to token i. null, NaN and the infinities, which Python writes into JSON as NaN,
 * Infinity and -Infinity, and sentinels of -9000 or less, are missing and become NaN; exactly 0 is a value, and
 * counted. A log-probability above LS_LOGPROB_MAX (record/record.h) is an error. A mask is true, false, 0 or 1.
 * A list that is null, of a sequence that came to nothing, is one of missing values, a mask of 0, or no tokens.
 * "schema_version", where present, is 1. Unknown members are ignored. */
#ifndef LS_RECORD_DUMP_H
#define LS_RECORD_DUMP_H

#include "base/status.h"

typedef enum ls_dump_format { LS_DUMP_PRIME_RL, LS_DUMP_NEMO_RL } ls_dump_format;
extern const char *const ls_dump_format_names[]; /* "prime-rl", "nemo-rl", NULL */

/* Sequences laid end to end: sequence s has the tokens offsets[s] <= i < offsets[s + 1]. Arrays are owned. */
typedef struct ls_dump {
    int64_t n_sequences, n_tokens;
    int64_t *offsets;                   /* [n_sequences + 1] */
    int64_t *lines;                     /* [n_sequences] where it was read, from 1 */
    float *rewards;                     /* [n_sequences], NaN where missing; the first of a list */
    int32_t *token_ids;                 /* [n_tokens] */
    uint8_t *mask;                      /* [n_tokens] 0 or 1: the token counts */
    float *rollout, *trainer;           /* [n_tokens] log-probabilities, NaN where missing */
    float *advantages;                  /* [n_tokens], NaN where missing */
    int64_t n_masked;                   /* tokens that count */
    int64_t zero_rollout, zero_trainer; /* of those, exactly 0, which some engines write for "none" */
    int64_t cap_sequences, cap_tokens;  /* room in the arrays */
} ls_dump;

/* A file ("-" is standard input) or its text; errors begin with name, line and member. At least one sequence is
 * demanded. */
ls_status ls_dump_read(ls_dump *out, const char *path, ls_dump_format format, ls_error *err);
ls_status ls_dump_parse(ls_dump *out, const char *text, int64_t bytes, const char *name, ls_dump_format format,
                        ls_error *err);
void ls_dump_deinit(ls_dump *dump);

#endif
