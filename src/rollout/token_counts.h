/* Tokens of a request that penalties look at, each once with how often its completion has it. What it holds follows
 * from the request's prompt and completion alone, so that nothing that happens to the sequence in between changes it.
 * Owns its lists; all is allocated at creation. */
#ifndef LS_ROLLOUT_TOKEN_COUNTS_H
#define LS_ROLLOUT_TOKEN_COUNTS_H

#include "op/support.h"

typedef struct ls_token_counts {
    ls_penalty_item *items; /* [n], in the order of their first place */
    int64_t n;
    int32_t *table; /* open addressing: 1 + number of an item, 0: free */
    int64_t table_cap;
} ls_token_counts;

/* Of a prompt, whose tokens count only where repetition is penalised, and room for max_tokens drawn ones: there are no
 * more different ones than `vocab`. */
ls_status ls_token_counts_create(ls_token_counts **out, const int32_t *prompt, int64_t n_prompt, int64_t max_tokens,
                                 int64_t vocab, const ls_penalties *penalties, ls_error *err);
void ls_token_counts_free(ls_token_counts *counts); /* accepts NULL */
/* One more drawn token. */
void ls_token_counts_add(ls_token_counts *counts, int32_t token);
/* The counts as they were, with n_items items, before the last n tokens were added. */
void ls_token_counts_take_back(ls_token_counts *counts, const int32_t *tokens, int64_t n, int64_t n_items);

#endif
