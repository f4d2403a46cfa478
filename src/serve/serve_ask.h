/* What a client asks for, in one form whatever the dialect: the JSON body of a request becomes an ls_ask, or an error
 * that names the field. Fields are rows of one table (serve_ask.c); a field without a row, or with a value that would
 * ask for something that is not built, is refused by name. */
#ifndef LS_SERVE_ASK_H
#define LS_SERVE_ASK_H

#include "op/sample.h"
#include "op/support.h"
#include "rollout/logit_stats.h"
#include "template/chat.h"
#include "text/tokenizer.h"

/* The shape of the body. A bit each: rows of the table say where a field occurs. */
typedef enum ls_ask_kind {
    LS_ASK_COMPLETION = 1, /* /v1/completions */
    LS_ASK_CHAT = 2,       /* /v1/chat/completions */
    LS_ASK_TOKENS = 4,     /* /inference/v1/generate */
    LS_ASK_SGLANG = 8,     /* /generate of SGLang */
    LS_ASK_SCORE = 16,     /* /v1/score: sequences whose log-probabilities are wanted */
    LS_ASK_TOKENIZE = 128  /* /tokenize: the ids of a text or of a conversation */
} ls_ask_kind;

enum {
    LS_ASK_PROMPTS_MAX = 4096,
    LS_ASK_SAMPLES_MAX = 4096, /* prompts times completions of each */
    LS_ASK_STOPS_MAX = 64,
    LS_ASK_STOP_BYTES_MAX = 65536,      /* of all stop texts together */
    LS_ASK_TOP_MAX = 256,               /* alternatives of a token */
    LS_ASK_MASK_MAX = LS_STATS_MASK_MAX /* kept tokens that are told */
};

typedef struct ls_ask_prompt {
    int32_t *ids;
    int64_t n;
} ls_ask_prompt;

typedef struct ls_ask {
    ls_ask_kind kind;
    ls_ask_prompt *prompts; /* [n_prompts] */
    int64_t n_prompts, prompts_cap;
    int64_t n;            /* completions of each prompt; 0 where only scores are wanted */
    int64_t max_tokens;   /* -1: what the length leaves */
    ls_sampling sampling; /* seed: where has_seed */
    ls_penalties penalties;
    bool has_seed, ignore_eos, keeps_stop, keeps_special;
    char *stop[LS_ASK_STOPS_MAX];
    int64_t n_stop;
    int32_t stop_ids[LS_ASK_STOPS_MAX];
    int64_t n_stop_ids;
    int64_t top, prompt_top; /* alternatives beside each token's log-probability; -1: no log-probabilities */
    bool stream, usage_at_end, return_ids, ids_as_tokens, return_text;
    bool is_batch;                       /* several prompts were given as a list, so answers are a list (SGLang) */
    bool token_strs;                     /* /tokenize: the tokens as the vocabulary writes them */
    ls_call_format calls;                /* tool calls that are looked for in what a chat's model writes */
    bool one_call;                       /* the first of them alone is told */
    bool lockstep, distributions, mask;  /* Lockstep's own fields */
    uint32_t first_prompt, first_sample; /* numbers of the first prompt and of its first completion, of draws */
    int64_t priority;
    uint64_t salt;
    char *id; /* the client's own name for the request, or NULL */
} ls_ask;

/* What requests are held against. */
typedef struct ls_ask_limits {
    const char *model; /* name that requests may give */
    int32_t vocab;
    int64_t length_max;            /* prompt and completion */
    const ls_tokenizer *tokenizer; /* NULL: text is refused */
    const ls_chat *chat;           /* NULL: conversations are refused */
    ls_call_format calls;          /* in which the model writes tool calls */
    bool processed;                /* log-probabilities are recorded so: penalties are refused */
} ls_ask_limits;

/* Errors: LS_ERR_FORMAT, LS_ERR_ARG (a value), LS_ERR_UNSUPPORTED (a field or what it asks for), LS_ERR_CAPACITY (too
 * long), all of which are the client's; LS_ERR_NOMEM. Any number of threads may call it with the same limits. */
ls_status ls_ask_parse(ls_ask **out, ls_ask_kind kind, const ls_ask_limits *limits, const char *json, int64_t bytes,
                       ls_error *err);
void ls_ask_free(ls_ask *ask); /* accepts NULL */
/* Whether the error says that the request wants a model that is not here. */
bool ls_ask_wants_other_model(const ls_error *err);

/* The body of /detokenize: ids, [n], released with free(). Errors as above. */
ls_status ls_ask_parse_ids(int32_t **ids, int64_t *n, const ls_ask_limits *limits, const char *json, int64_t bytes,
                           ls_error *err);
/* Tokens that a completion of this prompt may have. */
int64_t ls_ask_room(const ls_ask *ask, const ls_ask_limits *limits, int64_t prompt_i);

#endif
