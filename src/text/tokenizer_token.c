/* A token of tokenizer.json, whatever the type of its model. */
#include "base/mem.h"
#include "text/tokenizer_reader.h"

ls_status ls_read_token(ls_tokenizer *t, const ls_node *node, int64_t id, const char *text, int64_t bytes,
                        ls_error *err) {
    if (ls_pair_map_find(&t->token_of_id, (uint64_t)id) != NULL)
        return ls_node_fail(node, LS_ERR_FORMAT, err, "two tokens have the id %lld", (long long)id);
    LS_TRY(ls_array_grow((void **)&t->tokens, &t->tokens_cap, t->n_tokens + 1, sizeof *t->tokens, "tokens", err));
    t->tokens[t->n_tokens] = (ls_token){.text = text, .bytes = bytes};
    LS_TRY(ls_pair_map_set(&t->token_of_id, (uint64_t)id, (int32_t)t->n_tokens, 0, err));
    t->n_tokens++;
    if (id >= t->size) t->size = id + 1;
    return LS_OK;
}
