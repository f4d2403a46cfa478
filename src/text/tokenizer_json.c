/* Reads tokenizer.json: the file as a whole, the vocabulary and merges, the added tokens. What a field may hold is
 * decided here and in tokenizer_steps.c; owns the tokenizer until it is complete. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/other_forms.h"
#include "load/adapter_chain.h"
#include "text/tokenizer_reader.h"

#define FILE_BYTES_MAX ((int64_t)512 << 20)
#define AFFIX_BYTES_MAX 64 /* continuing_subword_prefix and end_of_word_suffix, repeated for every character */

static ls_status read_vocab(ls_tokenizer *t, const ls_node *model, ls_error *err) {
    ls_node vocab, item;
    void *iterator = NULL;
    LS_TRY(ls_node_need_kind(model, "vocab", LS_NODE_OBJECT, &vocab, err));
    while (ls_node_next(&vocab, &iterator, &item)) {
        int64_t bytes = (int64_t)strlen(item.key), id = 0;
        bool added;
        LS_TRY(ls_node_int(&item, 0, INT32_MAX - 1, &id, err));
        LS_TRY(ls_array_grow((void **)&t->texts, &t->texts_cap, t->n_texts + 1, sizeof *t->texts, "vocabulary", err));
        LS_TRY(ls_text_copy(&t->texts[t->n_texts], item.key, bytes, err));
        t->n_texts++;
        bytes = ls_nul_keys_restore(t->nul_keys, t->texts[t->n_texts - 1]);
        LS_TRY(ls_text_map_add(&t->bpe.vocab, t->texts[t->n_texts - 1], bytes, (int32_t)id, &added, err));
        LS_ASSERT(added, "%s", item.key); /* the parser refused duplicates */
        LS_TRY(ls_read_token(t, &item, id, t->texts[t->n_texts - 1], bytes, err));
    }
    return LS_OK;
}

static ls_status merge_id(const ls_tokenizer *t, const ls_node *node, const char *text, int64_t bytes, int32_t *id,
                          ls_error *err) {
    *id = ls_text_map_find(&t->bpe.vocab, text, bytes);
    if (*id >= 0) return LS_OK;
    return ls_node_fail(node, LS_ERR_FORMAT, err, "'%.*s' is not in the vocabulary", (int)(bytes < 60 ? bytes : 60),
                        text);
}

typedef struct merge_part {
    const char *text;
    int64_t bytes;
} merge_part;

static ls_status add_merge(ls_tokenizer *t, const ls_node *node, merge_part left, merge_part right, int32_t rank,
                           ls_text *joined, ls_error *err) {
    const int64_t prefix = t->bpe.prefix == NULL ? 0 : (int64_t)strlen(t->bpe.prefix);
    int32_t left_id, right_id, id;
    LS_TRY(merge_id(t, node, left.text, left.bytes, &left_id, err));
    LS_TRY(merge_id(t, node, right.text, right.bytes, &right_id, err));
    if (right.bytes < prefix)
        return ls_node_fail(node, LS_ERR_FORMAT, err, "the right part is shorter than the prefix");
    joined->bytes = 0;
    LS_TRY(ls_text_append(joined, left.text, left.bytes, err));
    LS_TRY(ls_text_append(joined, right.text + prefix, right.bytes - prefix, err));
    LS_TRY(merge_id(t, node, joined->bytes > 0 ? joined->data : "", joined->bytes, &id, err));
    /* A pair that is listed twice takes its last rank. */
    return ls_pair_map_set(&t->bpe.merges, ls_pair_key(left_id, right_id), rank, id, err);
}

/* Merges are "LEFT RIGHT" or [LEFT, RIGHT], the same kind throughout. */
static ls_status read_merges(ls_tokenizer *t, const ls_node *model, ls_error *err) {
    ls_node merges;
    ls_text joined = {0};
    int32_t rank = 0;
    bool pairs = false;
    ls_status status;
    LS_TRY_DONE(ls_node_need_kind(model, "merges", LS_NODE_ARRAY, &merges, err));
    if (ls_node_count(&merges) > 0) {
        const ls_node first = ls_node_at(&merges, 0);
        pairs = ls_node_kind_of(&first) == LS_NODE_ARRAY;
    }
    for (int64_t i = 0; i < ls_node_count(&merges); i++) {
        const ls_node item = ls_node_at(&merges, i);
        merge_part left = {NULL, 0}, right = {NULL, 0};
        if (pairs) {
            ls_node part;
            LS_TRY_DONE(ls_node_expect(&item, LS_NODE_ARRAY, err));
            if (ls_node_count(&item) != 2) {
                status = ls_node_fail(&item, LS_ERR_FORMAT, err, "two parts are required");
                goto done;
            }
            part = ls_node_at(&item, 0);
            LS_TRY_DONE(ls_node_text(&part, &left.text, &left.bytes, err));
            part = ls_node_at(&item, 1);
            LS_TRY_DONE(ls_node_text(&part, &right.text, &right.bytes, err));
        } else {
            int64_t all;
            LS_TRY_DONE(ls_node_text(&item, &left.text, &all, err));
            if (strncmp(left.text, "#version", 8) == 0) continue; /* a line kept from merges.txt */
            const char *space = memchr(left.text, ' ', (size_t)all);
            if (space == NULL || memchr(space + 1, ' ', (size_t)(left.text + all - space - 1)) != NULL) {
                status = ls_node_fail(&item, LS_ERR_FORMAT, err, "'%.60s' is not two parts with one space", left.text);
                goto done;
            }
            left.bytes = space - left.text;
            right = (merge_part){space + 1, all - left.bytes - 1};
        }
        LS_TRY_DONE(add_merge(t, &item, left, right, rank, &joined, err));
        rank++;
    }
done:
    ls_text_deinit(&joined);
    return status;
}

/* A text that may be absent, null or empty: then *out stays NULL. */
static ls_status maybe_affix(const ls_node *model, const char *key, char **out, ls_error *err) {
    ls_node child;
    const char *text = NULL;
    ls_status status = LS_OK;
    if (!ls_node_get_some(model, key, &child)) return LS_OK;
    LS_TRY_DONE(ls_node_string(&child, &text, err));
    if (strlen(text) > AFFIX_BYTES_MAX)
        return ls_node_fail(&child, LS_ERR_UNSUPPORTED, err, "more than %d bytes", AFFIX_BYTES_MAX);
    if (text[0] != '\0') status = ls_text_copy(out, text, (int64_t)strlen(text), err);
done:
    return status;
}

static ls_status maybe_flag(const ls_node *model, const char *key, bool *out, ls_error *err) {
    ls_node child;
    return ls_node_get(model, key, &child) ? ls_node_bool(&child, out, err) : LS_OK;
}

/* A word is one token, or the unknown one. */
static ls_status read_words(ls_tokenizer *t, const ls_node *model, ls_error *err) {
    static const char *const keys[] = {"type", "vocab", "unk_token", NULL};
    const char *text = NULL;
    ls_node child;
    LS_TRY(ls_node_only(model, keys, err));
    LS_TRY(ls_node_need(model, "unk_token", &child, err));
    LS_TRY(ls_node_string(&child, &text, err));
    LS_TRY(ls_text_copy(&t->bpe.unk_token, text, (int64_t)strlen(text), err));
    LS_TRY(read_vocab(t, model, err));
    ls_bpe_finish(&t->bpe);
    t->has_words = true;
    return LS_OK;
}

static ls_status read_model(ls_tokenizer *t, const ls_node *root, ls_error *err) {
    static const char *const keys[] = {"type",
                                       "dropout",
                                       "unk_token",
                                       "continuing_subword_prefix",
                                       "end_of_word_suffix",
                                       "fuse_unk",
                                       "byte_fallback",
                                       "ignore_merges",
                                       "vocab",
                                       "merges",
                                       NULL};
    ls_node model, child;
    const char *text = NULL;
    LS_TRY(ls_node_need_kind(root, "model", LS_NODE_OBJECT, &model, err));
    if (ls_node_get(&model, "type", &child)) {
        LS_TRY(ls_node_string(&child, &text, err));
        if (strcmp(text, "Unigram") == 0) return ls_read_unigram(t, &model, err);
        if (strcmp(text, "WordLevel") == 0) return read_words(t, &model, err);
        if (strcmp(text, "BPE") != 0)
            return ls_node_fail(&child, LS_ERR_UNSUPPORTED, err, "the model '%.60s' is not supported", text);
    } /* files of early days leave the type out; merges, required below, tell this model from the others */
    LS_TRY(ls_node_only(&model, keys, err));
    if (ls_node_get_some(&model, "dropout", &child)) {
        const ls_node_kind kind = ls_node_kind_of(&child);
        if ((kind != LS_NODE_INT && kind != LS_NODE_REAL) || ls_node_number(&child) < 0 || ls_node_number(&child) > 0)
            return ls_node_fail(&child, LS_ERR_UNSUPPORTED, err, "dropout is not supported");
    }
    if (ls_node_get_some(&model, "unk_token", &child)) {
        LS_TRY(ls_node_string(&child, &text, err));
        LS_TRY(ls_text_copy(&t->bpe.unk_token, text, (int64_t)strlen(text), err));
    }
    LS_TRY(maybe_affix(&model, "continuing_subword_prefix", &t->bpe.prefix, err));
    LS_TRY(maybe_affix(&model, "end_of_word_suffix", &t->bpe.suffix, err));
    LS_TRY(maybe_flag(&model, "fuse_unk", &t->bpe.fuse_unk, err));
    LS_TRY(maybe_flag(&model, "byte_fallback", &t->bpe.byte_fallback, err));
    LS_TRY(maybe_flag(&model, "ignore_merges", &t->bpe.ignore_merges, err));
    LS_TRY(read_vocab(t, &model, err));
    LS_TRY(read_merges(t, &model, err));
    ls_bpe_finish(&t->bpe);
    return LS_OK;
}

/* Reads one added token into `token`, whose content then belongs to the caller. */
static ls_status read_added(const ls_node *node, ls_added_token *token, int64_t *id, ls_error *err) {
    static const char *const keys[] = {"id",     "content",    "single_word", "lstrip",
                                       "rstrip", "normalized", "special",     NULL};
    ls_node child;
    const char *text = NULL;
    struct {
        const char *key;
        bool *out;
    } flags[] = {{"single_word", &token->single_word},
                 {"lstrip", &token->lstrip},
                 {"rstrip", &token->rstrip},
                 {"normalized", &token->normalized},
                 {"special", &token->special}};
    LS_TRY(ls_node_expect(node, LS_NODE_OBJECT, err));
    LS_TRY(ls_node_only(node, keys, err));
    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++) {
        LS_TRY(ls_node_need(node, flags[i].key, &child, err));
        LS_TRY(ls_node_bool(&child, flags[i].out, err));
    }
    LS_TRY(ls_node_need(node, "id", &child, err));
    LS_TRY(ls_node_int(&child, 0, INT32_MAX - 1, id, err));
    LS_TRY(ls_node_need(node, "content", &child, err));
    LS_TRY(ls_node_text(&child, &text, &token->bytes, err));
    if (token->bytes == 0) return ls_node_fail(&child, LS_ERR_FORMAT, err, "an added token must not be empty");
    return ls_text_copy(&token->content, text, token->bytes, err);
}

static ls_status add_to_tries(ls_tokenizer *t, bool special, ls_error *err) {
    for (int64_t i = 0; i < t->n_added; i++) {
        const ls_added_token *token = &t->added[i];
        if (token->special != special) continue;
        if (token->normalized) {
            LS_TRY(ls_token_trie_add(&t->normalized, token->normal, token->normal_bytes, (int32_t)i, err));
        } else {
            LS_TRY(ls_token_trie_add(&t->raw, token->content, token->bytes, (int32_t)i, err));
        }
    }
    return LS_OK;
}

static ls_status normalize_added(const ls_tokenizer *t, const ls_node *node, ls_added_token *token, ls_error *err) {
    ls_text normal = {0};
    bool at_start = true;
    ls_status status;
    LS_TRY_DONE(ls_normalize(t->norm, t->n_norm, token->content, token->bytes, &normal, &at_start, err));
    if (normal.bytes == 0) {
        status = ls_node_fail(node, LS_ERR_UNSUPPORTED, err, "the normalizer leaves nothing of this token");
        goto done;
    }
    LS_TRY_DONE(ls_text_copy(&token->normal, normal.data, normal.bytes, err));
    token->normal_bytes = normal.bytes;
done:
    ls_text_deinit(&normal);
    return status;
}

/* A normalised token decodes to its normalised text, and that text, not the content, is looked up among the contents
 * of special tokens when these are to be left out: so does the reference since its version 0.23. */
static ls_status set_decoded_texts(ls_tokenizer *t, ls_error *err) {
    ls_text_map special = {0};
    bool added;
    ls_status status = LS_OK;
    for (int64_t i = 0; i < t->n_added; i++)
        if (t->added[i].special)
            LS_TRY_DONE(ls_text_map_add(&special, t->added[i].content, t->added[i].bytes, 0, &added, err));
    for (int64_t i = 0; i < t->n_added; i++) {
        const ls_added_token *from = &t->added[i];
        ls_token *token = &t->tokens[ls_pair_map_find(&t->token_of_id, (uint64_t)from->id)->first];
        token->text = from->normalized ? from->normal : from->content;
        token->bytes = from->normalized ? from->normal_bytes : from->bytes;
        token->special = ls_text_map_find(&special, token->text, token->bytes) >= 0;
    }
done:
    ls_text_map_deinit(&special);
    return status;
}

static ls_status compile_word(ls_regex **out, ls_error *err) {
    ls_text text = {0};
    ls_status status;
    LS_TRY_DONE(ls_text_append(&text, "[", 1, err));
    LS_TRY_DONE(ls_regex_append_plain_word(&text, err));
    LS_TRY_DONE(ls_text_append(&text, "]", 2, err)); /* with its NUL, for messages */
    status = ls_regex_compile_plain(out, text.data, text.bytes - 1, err);
done:
    ls_text_deinit(&text);
    return status;
}

/* The model's id of a text, or -1. */
static int32_t vocab_id(const ls_tokenizer *t, const ls_added_token *token) {
    return ls_text_map_find(t->has_unigram ? &t->unigram.vocab : &t->bpe.vocab, token->content, token->bytes);
}

static ls_status read_added_tokens(ls_tokenizer *t, const ls_node *list, ls_error *err) {
    ls_text_map known = {0};
    int64_t next = t->n_texts; /* the id the reference gives a text that has none yet: after all others */
    ls_status status;
    LS_TRY_DONE(ls_node_expect(list, LS_NODE_ARRAY, err));
    for (int64_t i = 0; i < ls_node_count(list); i++) {
        const ls_node node = ls_node_at(list, i);
        ls_added_token *token;
        int64_t id = 0, expected;
        bool added;
        LS_TRY_DONE(
            ls_array_grow((void **)&t->added, &t->added_cap, t->n_added + 1, sizeof *t->added, "added tokens", err));
        token = &t->added[t->n_added];
        memset(token, 0, sizeof *token);
        LS_TRY_DONE(read_added(&node, token, &id, err));
        t->n_added++;
        LS_TRY_DONE(ls_text_map_add(&known, token->content, token->bytes, 0, &added, err));
        if (!added) {
            status = ls_node_fail(&node, LS_ERR_FORMAT, err, "'%.60s' is added twice", token->content);
            goto done;
        }
        expected = vocab_id(t, token);
        if (expected < 0) expected = next;
        if (id != expected) {
            status = ls_node_fail(&node, LS_ERR_UNSUPPORTED, err, "the id %lld; this token's place gives it %lld",
                                  (long long)id, (long long)expected);
            goto done;
        }
        token->id = (int32_t)id;
        if (id >= next) next = id + 1;
        if (vocab_id(t, token) < 0) LS_TRY_DONE(ls_read_token(t, &node, id, token->content, token->bytes, err));
        if (token->normalized) LS_TRY_DONE(normalize_added(t, &node, token, err));
        if (token->single_word && t->word == NULL) LS_TRY_DONE(compile_word(&t->word, err));
    }
    /* Special ones first: of two that normalise to the same text the first counts. */
    LS_TRY_DONE(add_to_tries(t, true, err));
    LS_TRY_DONE(add_to_tries(t, false, err));
    LS_TRY_DONE(set_decoded_texts(t, err));
done:
    ls_text_map_deinit(&known);
    return status;
}

static ls_status read_root(ls_tokenizer *t, const ls_node *root, ls_error *err) {
    static const char *const keys[] = {"version",       "truncation",     "padding", "added_tokens", "normalizer",
                                       "pre_tokenizer", "post_processor", "decoder", "model",        NULL};
    /* For callers that ask the reference to cut and to fill up; a text that is encoded without is neither. */
    static const char *const unused[] = {"truncation", "padding"};
    ls_node child;
    const char *text = NULL;
    LS_TRY(ls_node_expect(root, LS_NODE_OBJECT, err));
    LS_TRY(ls_node_only(root, keys, err));
    if (ls_node_get(root, "version", &child)) {
        LS_TRY(ls_node_string(&child, &text, err));
        if (strcmp(text, "1.0") != 0)
            return ls_node_fail(&child, LS_ERR_UNSUPPORTED, err, "the version '%.60s' is not supported", text);
    }
    for (size_t i = 0; i < sizeof unused / sizeof unused[0]; i++)
        if (ls_node_get_some(root, unused[i], &child)) LS_TRY(ls_node_expect(&child, LS_NODE_OBJECT, err));
    LS_TRY(read_model(t, root, err));
    /* Before the added tokens, whose texts are normalised. */
    if (ls_node_get_some(root, "normalizer", &child)) LS_TRY(ls_read_normalizer(t, &child, err));
    if (ls_node_get_some(root, "pre_tokenizer", &child)) LS_TRY(ls_read_pre_tokenizer(t, &child, err));
    if (ls_node_get_some(root, "added_tokens", &child)) LS_TRY(read_added_tokens(t, &child, err));
    if (ls_node_get_some(root, "post_processor", &child)) LS_TRY(ls_read_post_processor(t, &child, err));
    if (ls_node_get_some(root, "decoder", &child)) LS_TRY(ls_read_decoder(t, &child, err));
    return LS_OK;
}

ls_status ls_tokenizer_parse(ls_tokenizer **out, const char *json, int64_t bytes, const char *name, ls_error *err) {
    ls_json_doc *doc = NULL;
    ls_tokenizer *tokenizer = calloc(1, sizeof *tokenizer);
    ls_nul_keys nul_keys = {0};
    ls_node root;
    ls_status status;
    *out = NULL;
    if (tokenizer == NULL) return LS_FAIL(err, LS_ERR_NOMEM, "%s: tokenizer", name);
    LS_TRY_DONE(ls_nul_keys_open(&nul_keys, json, bytes, name, err));
    LS_TRY_DONE(ls_json_doc_open(&doc, nul_keys.text != NULL ? nul_keys.text : json, bytes, name, err));
    root = ls_json_root(doc);
    tokenizer->nul_keys = &nul_keys;
    LS_TRY_DONE(read_root(tokenizer, &root, err));
    tokenizer->nul_keys = NULL;
    ls_tokenizer_measure(tokenizer);
    *out = tokenizer;
    tokenizer = NULL;
done:
    ls_json_doc_free(doc);
    ls_nul_keys_close(&nul_keys);
    ls_tokenizer_free(tokenizer);
    return status;
}

ls_status ls_tokenizer_open(ls_tokenizer **out, const char *directory, ls_error *err) {
    static const char file[] = "/tokenizer.json";
    char *path = NULL, *json = NULL, *home = NULL;
    int64_t bytes = 0;
    size_t n;
    ls_status status;
    *out = NULL;
    LS_TRY_DONE(ls_adapter_home(&home, directory, err)); /* of an adapter, the model that it is of */
    n = strlen(home);
    LS_TRY_DONE(ls_array_alloc((void **)&path, (int64_t)(n + sizeof file), 1, "path", err));
    memcpy(path, home, n);
    memcpy(path + n, file, sizeof file);
    if (!ls_file_exists(path)) LS_TRY_DONE(ls_foreign_directory(home, LS_WANT_TOKENIZER, err));
    LS_TRY_DONE(ls_file_read(&json, &bytes, path, FILE_BYTES_MAX, err));
    status = ls_tokenizer_parse(out, json, bytes, path, err);
done:
    free(json);
    free(path);
    free(home);
    return status;
}
