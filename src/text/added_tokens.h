/* Added tokens: texts with an id of their own, cut out before the model sees anything. */
#ifndef LS_TEXT_ADDED_TOKENS_H
#define LS_TEXT_ADDED_TOKENS_H

#include "text/regex.h"
#include "text/token_map.h"

typedef struct ls_added_token {
    char *content;
    int64_t bytes;
    char *normal; /* the content after the normalizer when `normalized` is set, else NULL */
    int64_t normal_bytes;
    int32_t id;
    bool single_word;    /* matches only where no word character touches it */
    bool lstrip, rstrip; /* takes the white space on that side along */
    bool normalized;     /* looked for, in its own normalised form, in normalised text; else in the raw text */
    bool special;        /* left out when decoding without special tokens */
} ls_added_token;

/* A set of texts, searched for leftmost and longest at once: a trie over bytes. */
typedef struct ls_token_trie {
    ls_pair_map edges; /* node, byte -> node */
    int32_t *tokens;   /* by node: index of the token that ends here, or -1 */
    int64_t n_nodes, nodes_cap;
    bool first[256]; /* bytes that start a text */
} ls_token_trie;

/* Of equal texts the first one added counts. bytes > 0. */
ls_status ls_token_trie_add(ls_token_trie *trie, const char *text, int64_t bytes, int32_t token_i, ls_error *err);
void ls_token_trie_deinit(ls_token_trie *trie);

typedef struct ls_added_span {
    int64_t begin, end;
    int32_t id; /* -1: ordinary text */
} ls_added_span;

typedef struct ls_added_spans {
    ls_added_span *items;
    int64_t n, cap;
} ls_added_spans;

/* Replaces *spans. `word` matches one word character; NULL is fine when no token is single_word. */
ls_status ls_added_split(const ls_token_trie *trie, const ls_added_token *tokens, const ls_regex *word,
                         const char *text, int64_t bytes, ls_added_spans *spans, ls_error *err);

#endif
