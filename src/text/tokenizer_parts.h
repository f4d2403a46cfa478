/* The tokenizer as its reader (tokenizer_json.c, tokenizer_steps.c) leaves it to its user (tokenizer.c). */
#ifndef LS_TEXT_TOKENIZER_PARTS_H
#define LS_TEXT_TOKENIZER_PARTS_H

#include "json/json_nul_keys.h"
#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/detoken.h"
#include "text/normalize.h"
#include "text/pretoken.h"
#include "text/tokenizer.h"
#include "text/unigram.h"

typedef struct ls_token {
    const char *text; /* belongs to texts or to an added token */
    int64_t bytes;
    bool special;
} ls_token;

#define LS_TEMPLATE_TEXT (-1) /* in post: the text's own ids */

struct ls_tokenizer {
    const ls_nul_keys *nul_keys; /* while the file is read, else NULL */
    char **texts;                /* of the vocabulary */
    int64_t n_texts, texts_cap;
    ls_token *tokens; /* every token, in no order */
    int64_t n_tokens, tokens_cap;
    ls_pair_map token_of_id; /* id -> index in tokens */
    int64_t size;
    int64_t bytes_per_token; /* no token stands for more bytes of a text; 0: that cannot be said */

    ls_added_token *added;
    int64_t n_added, added_cap;
    ls_token_trie raw, normalized; /* of added tokens */
    ls_regex *word;                /* one word character, for single_word; NULL when no token asks */

    ls_norm_step *norm;
    int64_t n_norm, norm_cap;
    ls_pre_step *pre;
    int64_t n_pre, pre_cap;
    ls_bpe bpe;         /* empty with a unigram model */
    ls_unigram unigram; /* where has_unigram */
    bool has_unigram;
    bool has_words; /* a word is a token of bpe's vocabulary, without merges */
    int32_t *post;  /* ids and LS_TEMPLATE_TEXT; has_post is false when the text stands alone */
    int64_t n_post, post_cap;
    bool has_post;
    ls_dec_step *dec;
    int64_t n_dec, dec_cap;
    bool has_decoder; /* without one, token texts are joined by spaces */
};

/* Sets bytes_per_token, once all else is there. */
void ls_tokenizer_measure(ls_tokenizer *tokenizer);

#endif
