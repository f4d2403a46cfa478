/* Log-probabilities as other programs answer or dump them, read as records (record/record.h).
 *
 * A file holds JSON objects one behind another: a line each, over several lines, or as the items of one array. NaN
 * and the infinities, which Python writes, and sentinels of -9000 or less are missing values. Members that are not
 * named here are ignored; a named one of a wrong type is an error with file, line and path.
 *
 *   vllm          choices[] of /v1/completions ("logprobs": {"tokens", "token_logprobs"}) or /v1/chat/completions
 *                 ("logprobs": {"content": [{"token", "logprob"}]}), ids from "token_ids" or tokens "token_id:N",
 *                 prompts from "prompt_token_ids"; a line of run_batch ("custom_id", "response": {"body"}) too.
 *                 llama.cpp's /v1/chat/completions has "id" in each item of "content"
 *   vllm-prompt   "prompt_logprobs" of the same: null for the first token, then {"ID": {"logprob"}}; whole sequences
 *   sglang        /generate: meta_info.output_token_logprobs, triples [value, id, text]; cached_tokens
 *   sglang-prompt meta_info.input_token_logprobs, the first value null; whole sequences
 *   llama.cpp     /completion: completion_probabilities[] {"id", "logprob"}; id_slot. Its server has no item for a
 *                 token that ends within a character: with "tokens" (return_tokens) that token's value is missing, as
 *                 is one whose place is not certain; without, fewer items than tokens_predicted are refused where
 *                 "stop_type" is "limit"
 *   trl           /generate/ of its server: prompt_ids, completion_ids, logprobs, lists of lists; values may be lists
 *                 whose first is meant, or the one that logprob_token_ids gives to the token
 *   verl          fields of a batch: responses, response_mask, rollout_log_probs | old_log_probs, perhaps prompts, uid
 *   slime         a sample or {"samples": []}: tokens, response_length, rollout_log_probs | log_probs, perhaps index
 *   openrlhf      an experience: sequences, action_mask, rollout_log_probs | action_log_probs, one value for each token
 *                 after the first
 *   prime-rl, nemo-rl  as record/dump.h has them; whole sequences, tokens that do not count are missing
 *
 * The last five have both sides: the first of two names is the rollout's, the second the trainer's. Ids are custom_id,
 * uid or index where there is one, with a slash and the number of the choice where there are several, else the number
 * of the sequence in the file. Where samples of verl share a uid, which is the group's then, they are called uid/0,
 * uid/1 and so on in the order of the file.
 *
 * A request or sample that came to nothing has null where its lists would be: a list of tokens that is null is empty,
 * and the values of one are all missing. A line of run_batch without a response or with an error in place of choices
 * has no sequence. */
#ifndef LS_RECORD_ANSWERS_H
#define LS_RECORD_ANSWERS_H

#include "record/dump.h"
#include "record/record.h"

typedef enum ls_answer_format {
    LS_ANSWER_VLLM,
    LS_ANSWER_VLLM_PROMPT,
    LS_ANSWER_SGLANG,
    LS_ANSWER_SGLANG_PROMPT,
    LS_ANSWER_LLAMA_CPP,
    LS_ANSWER_TRL,
    LS_ANSWER_VERL,
    LS_ANSWER_SLIME,
    LS_ANSWER_OPENRLHF,
    LS_ANSWER_PRIME_RL,
    LS_ANSWER_NEMO_RL
} ls_answer_format;
extern const char *const ls_answer_format_names[]; /* "vllm", .., NULL */
#define LS_ANSWER_FORMATS \
    "vllm, vllm-prompt, sglang, sglang-prompt, llama.cpp, trl, verl, slime, openrlhf, prime-rl, nemo-rl"

/* of_trainer: the second of two sides; formats with one side have the same for both. At least one sequence with a value
 * is demanded. by_order: ids are the numbers of the sequences in the file, whatever it says of them. */
ls_status ls_answers_read(ls_record **out, int64_t *n, const char *path, ls_answer_format format, bool of_trainer,
                          bool by_order, ls_error *err);
ls_status ls_answers_parse(ls_record **out, int64_t *n, const char *text, int64_t bytes, const char *name,
                           ls_answer_format format, bool of_trainer, ls_error *err);
/* The same of a suspect: no value need be there, and one may be what no log-probability is. */
ls_status ls_answers_parse_any(ls_record **out, int64_t *n, const char *text, int64_t bytes, const char *name,
                               ls_answer_format format, ls_error *err);
/* Both sides of a format that has them, as a dump: tokens count that have a value on both sides. Of a completion the
 * prompt is left out. */
ls_status ls_answers_dump(ls_dump *out, const char *text, int64_t bytes, const char *name, ls_answer_format format,
                          ls_error *err);

#endif
