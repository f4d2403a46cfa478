/* The counts of a request. */
#include "rollout/token_counts.h"

#include <stdlib.h>

#include "base/mem.h"

/* Where the table has the token, or 0. */
static int32_t *item_place(const ls_token_counts *t, int32_t token) {
    uint64_t at = (uint64_t)(uint32_t)token * UINT64_C(0x9E3779B97F4A7C15) >> 32;
    for (;; at++) {
        int32_t *place = &t->table[at & (uint64_t)(t->table_cap - 1)];
        if (*place == 0 || t->items[*place - 1].token == token) return place;
    }
}

static ls_penalty_item *item_of(ls_token_counts *t, int32_t token) {
    int32_t *place = item_place(t, token);
    if (*place == 0) {
        t->items[t->n] = (ls_penalty_item){token, 0};
        *place = (int32_t)++t->n;
    }
    return &t->items[*place - 1];
}

ls_status ls_token_counts_create(ls_token_counts **out, const int32_t *prompt, int64_t n_prompt, int64_t max_tokens,
                                 int64_t vocab, const ls_penalties *penalties, ls_error *err) {
    const bool with_prompt = penalties->repetition != 1.0f;
    ls_token_counts *t = NULL;
    int64_t room = max_tokens;
    ls_status status;
    *out = NULL;
    if (with_prompt && !ls_add_i64(max_tokens, n_prompt, &room))
        return LS_FAIL(err, LS_ERR_NOMEM, "request of %lld tokens", (long long)n_prompt);
    if (room > vocab) room = vocab;
    LS_TRY_DONE(ls_array_alloc((void **)&t, 1, sizeof *t, "request", err));
    for (t->table_cap = 8; t->table_cap / 2 < room; t->table_cap *= 2) {
    }
    LS_TRY_DONE(ls_array_alloc((void **)&t->items, room, sizeof *t->items, "request", err));
    LS_TRY_DONE(ls_array_alloc((void **)&t->table, t->table_cap, sizeof *t->table, "request", err));
    for (int64_t i = 0; with_prompt && i < n_prompt; i++) (void)item_of(t, prompt[i]);
    *out = t;
    t = NULL;
done:
    ls_token_counts_free(t);
    return status;
}

void ls_token_counts_free(ls_token_counts *t) {
    if (t == NULL) return;
    free(t->items);
    free(t->table);
    free(t);
}

void ls_token_counts_add(ls_token_counts *t, int32_t token) { item_of(t, token)->count++; }

/* What came last into the table leaves it first, so that no search ends too early. */
void ls_token_counts_take_back(ls_token_counts *t, const int32_t *tokens, int64_t n, int64_t n_items) {
    for (int64_t i = 0; i < n; i++) item_of(t, tokens[i])->count--;
    for (; t->n > n_items; t->n--) *item_place(t, t->items[t->n - 1].token) = 0;
}
