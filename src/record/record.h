/* The record format: JSON Lines, one sequence a line. Reading checks it, writing produces it.
 *
 * A prompt line is {"id","prompt"}, {"id","prompt_ids"} or {"id","messages"}, a conversation with perhaps "tools",
 * "documents" and "chat_template_kwargs" (template/chat.h); a token line {"id","token_ids"} or a conversation; a
 * rollout line
 *   {"id","prompt_ids","completion_ids","logprobs","logprob_bits","finish","seed","sample","text","meta"};
 * a score line {"id","token_ids","logprobs","logprob_bits"}, where token_ids may be absent. Rules:
 *   - "id" is a string, or an integer, which stands for its digits, unique in its file. Unknown members are ignored;
 *     known ones of a wrong type are errors; null is the same as absent. Lines of white space are skipped. A member may
 *     stand once in its object.
 *   - "logprobs" has 9 significant digits, "logprob_bits" the float32 as 8 hex digits. Where both are present the bits
 *     are the value: a NaN or an infinity has null in "logprobs" and its bits in "logprob_bits". An entry is missing
 *     when it is null in "logprob_bits" or, without that member, in "logprobs". Values and bits that contradict each
 *     other, by more than 1e-4 of the value and 1e-6, are an error.
 *   - NaN, Infinity and -Infinity, which Python writes into JSON, are null.
 *   - A finite log-probability above LS_LOGPROB_MAX is an error; up to there it is another engine's rounding.
 *   - Entries are one for each completion token, or, on a line with token_ids, one for each token after the first.
 *   - "top_ids", "top_logprobs" and "top_logprob_bits" have for each completion token the likeliest tokens of its
 *     step, likeliest first, the lower id among equals, and their log-probabilities, of what "logprob_of" says.
 *   - meta.presence_penalty, frequency_penalty and repetition_penalty tell what draws were made with (op/support.h);
 *     the log-probabilities are those without.
 *   - "finish" is "stop", "length", "cancel" or "error"; meta.error tells of the last. Their completions are as far as
 *     they came.
 *   - meta.levers maps names to texts and finite numbers.
 *   - "seed" is an integer, or its decimal text where it needs more than 63 bits, which JSON readers seldom have.  */
#ifndef LS_RECORD_RECORD_H
#define LS_RECORD_RECORD_H

#include "base/status.h"
#include "json/json_out.h"

#define LS_LINE_BYTES_MAX 268435456
#define LS_LOGPROB_MAX 1e-2f

/* What every line of a file must hold. */
typedef enum ls_record_kind {
    LS_RECORD_PROMPT,   /* one of prompt, messages, and prompt_ids that are not empty */
    LS_RECORD_SEQUENCE, /* token_ids, messages, or prompt_ids and completion_ids; the prompt or the sequence is not
                           empty */
    LS_RECORD_LOGPROB,  /* logprobs or logprob_bits */
    LS_RECORD_VALUE     /* the same, and values may be what no log-probability is: of suspects */
} ls_record_kind;

/* A member of meta.levers. A number's text is an integer or as
 * ls_double_text has it. */
typedef struct ls_record_lever {
    char *name, *value;
    bool is_number;
} ls_record_lever;

/* One line. Pointers are owned by the record. NULL says that the member is absent; an empty list is not NULL. */
typedef struct ls_record {
    int64_t line; /* where it was read, from 1 */
    char *id;
    char *prompt; /* ends in NUL and may contain more of them */
    int64_t prompt_bytes;
    char *chat; /* the conversation as JSON */
    int32_t *prompt_ids;
    int64_t n_prompt;
    int32_t *completion_ids; /* the token_ids when is_tokens */
    int64_t n_completion;
    bool is_tokens;
    bool has_logprobs;
    float *logprobs;          /* [n_logprobs], 0 where missing */
    uint8_t *logprob_missing; /* [n_logprobs], 0 or 1 */
    bool of_suspect;          /* of a reader: values may be what no log-probability is */
    int64_t n_logprobs;
    int64_t n_top;       /* the likeliest tokens of each completion token's step; 0: none. Written, not read */
    int32_t *top_ids;    /* [n_completion][n_top], likeliest first; ties: the lower id */
    float *top_logprobs; /* the same */
    char *finish;
    bool has_seed;
    uint64_t seed;
    int64_t sample; /* -1 when absent */
    char *text;     /* ends in NUL and may contain more of them */
    int64_t text_bytes;
    bool has_meta;
    char *logprob_of;                                               /* "raw" or "processed" */
    double temperature, top_p, min_p;                               /* NaN when absent */
    int64_t top_k;                                                  /* -1 when absent */
    double presence_penalty, frequency_penalty, repetition_penalty; /* NaN when absent */
    char *digest;
    /* Which weights drew it, and how it came about, which says nothing about the result. */
    int64_t weights, slot, cache_hit, preemptions; /* -1 when absent */
    int64_t *token_weights;  /* [n_completion] which weights drew each token; NULL: all of them `weights` */
    char *error;             /* of finish "error" */
    ls_record_lever *levers; /* [n_levers] in their order, or NULL */
    int64_t n_levers;
} ls_record;

/* An empty record: nothing present. */
void ls_record_init(ls_record *record);
/* Frees what it owns. */
void ls_record_deinit(ls_record *record);

/* Reads all lines of a file ("-" is standard input) in file order, with at least one record demanded. */
ls_status ls_records_read(ls_record **out, int64_t *n, const char *path, ls_record_kind kind, ls_error *err);
/* The same, whatever their ids are: each has the number of its place, from 0. */
ls_status ls_records_read_by_order(ls_record **out, int64_t *n, const char *path, ls_record_kind kind, ls_error *err);
/* The same from memory. */
ls_status ls_records_parse(ls_record **out, int64_t *n, const char *text, int64_t bytes, const char *name,
                           ls_record_kind kind, ls_error *err);
void ls_records_free(ls_record *records, int64_t n);

/* One rollout, token or prompt line with its newline; absent members are left out. prompt is written only where there
 * are no prompt_ids. */
void ls_record_write(ls_json_out *json, const ls_record *record);
/* One score line with its newline. token_ids are written when the record has them: whoever compares the line later can
 * then check that it is about the same tokens. */
void ls_score_write(ls_json_out *json, const ls_record *record);

#endif
