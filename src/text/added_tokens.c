/* Finding added tokens in text; owns the tries. */
#include "text/added_tokens.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "text/unicode.h"

static ls_status add_node(ls_token_trie *trie, int32_t *node, ls_error *err) {
    const int64_t n = trie->n_nodes;
    ls_status status;
    if (n >= INT32_MAX) return LS_FAIL(err, LS_ERR_CAPACITY, "added tokens are too long together");
    status = ls_array_grow((void **)&trie->tokens, &trie->nodes_cap, n + 1, sizeof *trie->tokens, "token trie", err);
    if (status != LS_OK) return status;
    trie->tokens[n] = -1;
    trie->n_nodes = n + 1;
    *node = (int32_t)n;
    return LS_OK;
}

ls_status ls_token_trie_add(ls_token_trie *trie, const char *text, int64_t bytes, int32_t token_i, ls_error *err) {
    int32_t node = 0;
    if (trie->n_nodes == 0) LS_TRY(add_node(trie, &node, err));
    trie->first[(uint8_t)text[0]] = true;
    for (int64_t i = 0; i < bytes; i++) {
        const uint64_t key = ls_pair_key(node, (uint8_t)text[i]);
        const ls_pair_slot *edge = ls_pair_map_find(&trie->edges, key);
        if (edge != NULL) {
            node = edge->first;
        } else {
            LS_TRY(add_node(trie, &node, err));
            LS_TRY(ls_pair_map_set(&trie->edges, key, node, 0, err));
        }
    }
    if (trie->tokens[node] < 0) trie->tokens[node] = token_i;
    return LS_OK;
}

void ls_token_trie_deinit(ls_token_trie *trie) {
    ls_pair_map_deinit(&trie->edges);
    free(trie->tokens);
    memset(trie, 0, sizeof *trie);
}

/* The longest token that starts at text[at], or -1. */
static int32_t longest(const ls_token_trie *trie, const char *text, int64_t bytes, int64_t at, int64_t *end) {
    int32_t node = 0, token_i = -1;
    for (int64_t i = at; i < bytes; i++) {
        const ls_pair_slot *edge = ls_pair_map_find(&trie->edges, ls_pair_key(node, (uint8_t)text[i]));
        if (edge == NULL) break;
        node = edge->first;
        if (trie->tokens[node] >= 0) {
            token_i = trie->tokens[node];
            *end = i + 1;
        }
    }
    return token_i;
}

static int64_t last_code(const char *text, int64_t end, int32_t *code) {
    int64_t at = end - 1;
    while (((uint8_t)text[at] & 0xC0) == 0x80) at--;
    ls_utf8_decode((const uint8_t *)text + at, end - at, code);
    return at;
}

static ls_status is_word(ls_regex_search *search, int32_t code, bool *word, ls_error *err) {
    uint8_t text[4];
    int64_t begin, end;
    const int64_t n = ls_utf8_encode(code, text);
    return ls_regex_find(search, (const char *)text, n, 0, word, &begin, &end, err);
}

/* Whether a word character touches text[begin..end). */
static ls_status touched(ls_regex_search *search, const char *text, int64_t bytes, int64_t begin, int64_t end,
                         bool *result, ls_error *err) {
    int32_t code;
    *result = false;
    if (begin > 0) {
        last_code(text, begin, &code);
        LS_TRY(is_word(search, code, result, err));
    }
    if (!*result && end < bytes) {
        ls_utf8_decode((const uint8_t *)text + end, bytes - end, &code);
        LS_TRY(is_word(search, code, result, err));
    }
    return LS_OK;
}

static ls_status append_span(ls_added_spans *spans, int64_t begin, int64_t end, int32_t id, ls_error *err) {
    const ls_status status =
        ls_array_grow((void **)&spans->items, &spans->cap, spans->n + 1, sizeof *spans->items, "token spans", err);
    if (status == LS_OK) spans->items[spans->n++] = (ls_added_span){.begin = begin, .end = end, .id = id};
    return status;
}

ls_status ls_added_split(const ls_token_trie *trie, const ls_added_token *tokens, const ls_regex *word,
                         const char *text, int64_t bytes, ls_added_spans *spans, ls_error *err) {
    ls_regex_search *search = NULL;
    int64_t covered = 0, at = 0;
    ls_status status = LS_OK;
    spans->n = 0;
    if (word != NULL) LS_TRY_DONE(ls_regex_search_create(&search, word, err));
    while (at < bytes && trie->n_nodes > 0) {
        int64_t begin = at, end = at;
        const int32_t token_i = trie->first[(uint8_t)text[at]] ? longest(trie, text, bytes, at, &end) : -1;
        const ls_added_token *token;
        if (token_i < 0) {
            at++;
            continue;
        }
        at = end; /* a match that is turned down below is passed over all the same */
        token = &tokens[token_i];
        if (token->single_word) {
            bool inside;
            LS_TRY_DONE(touched(search, text, bytes, begin, end, &inside, err));
            if (inside) continue;
        }
        while (token->lstrip && begin > covered) {
            int32_t code;
            const int64_t previous = last_code(text, begin, &code);
            if (!ls_code_is_space(code)) break;
            begin = previous;
        }
        while (token->rstrip && end < bytes) {
            int32_t code;
            const int64_t used = ls_utf8_decode((const uint8_t *)text + end, bytes - end, &code);
            if (!ls_code_is_space(code)) break;
            end += used;
        }
        if (covered < begin) LS_TRY_DONE(append_span(spans, covered, begin, -1, err));
        LS_TRY_DONE(append_span(spans, begin, end, token->id, err));
        covered = end;
    }
    if (covered < bytes) LS_TRY_DONE(append_span(spans, covered, bytes, -1, err));
done:
    ls_regex_search_free(search);
    return status;
}
