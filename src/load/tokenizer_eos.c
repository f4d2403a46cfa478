/* From the name of a token to its number. */
#include "load/tokenizer_eos.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "json/json_node.h"
#include "json/json_nul_keys.h"

#define TOKENIZER_BYTES_MAX ((int64_t)512 << 20)
enum { PATH_BYTES = 4096 };

/* A file of the directory as JSON; *doc NULL: it is not there. */
static ls_status open_file(ls_json_doc **doc, const char *directory, const char *name, ls_error *err) {
    char path[PATH_BYTES], *text = NULL;
    ls_nul_keys keys = {0};
    int64_t bytes;
    ls_status status;
    *doc = NULL;
    if (snprintf(path, sizeof path, "%s/%s", directory, name) >= (int)sizeof path || !ls_file_exists(path))
        return LS_OK;
    LS_TRY_DONE(ls_file_read(&text, &bytes, path, TOKENIZER_BYTES_MAX, err));
    LS_TRY_DONE(ls_nul_keys_open(&keys, text, bytes, path, err)); /* a token with NUL is no end of sequence */
    status = ls_json_doc_open(doc, keys.text != NULL ? keys.text : text, bytes, path, err);
done:
    ls_nul_keys_close(&keys);
    free(text);
    return status;
}

/* A token is a text, or an object with its content. */
static bool content_of(const char **out, const ls_node *token, ls_node *content) {
    *content = *token;
    if (ls_node_kind_of(token) == LS_NODE_OBJECT && !ls_node_get(token, "content", content)) return false;
    return ls_node_kind_of(content) == LS_NODE_TEXT && ls_node_string(content, out, NULL) == LS_OK;
}

static bool is_token(const ls_node *token, const char *name) {
    ls_node content;
    const char *text;
    return content_of(&text, token, &content) && strcmp(text, name) == 0;
}

/* {"2": {"content": "</s>"}} */
static int64_t id_in_decoder(const ls_node *root, const char *name) {
    ls_node decoder, token;
    void *iterator = NULL;
    if (!ls_node_get(root, "added_tokens_decoder", &decoder) || ls_node_kind_of(&decoder) != LS_NODE_OBJECT) return -1;
    while (ls_node_next(&decoder, &iterator, &token)) {
        char *end;
        const long long id = strtoll(token.key, &end, 10);
        if (end != token.key && *end == '\0' && id >= 0 && is_token(&token, name)) return id;
    }
    return -1;
}

static int64_t int_of(const ls_node *node) {
    int64_t id;
    return ls_node_int(node, 0, INT32_MAX, &id, NULL) == LS_OK ? id : -1;
}

/* In tokenizer.json: an added token, or one of the vocabulary, which is an object, or of unigram a list of pairs. */
static int64_t id_in_tokenizer(const ls_node *root, const char *name) {
    ls_node list, model, node;
    if (ls_node_get(root, "added_tokens", &list) && ls_node_kind_of(&list) == LS_NODE_ARRAY)
        for (int64_t i = 0; i < ls_node_count(&list); i++) {
            const ls_node token = ls_node_at(&list, i);
            if (ls_node_kind_of(&token) == LS_NODE_OBJECT && is_token(&token, name) && ls_node_get(&token, "id", &node))
                return int_of(&node);
        }
    if (!ls_node_get(root, "model", &model) || ls_node_kind_of(&model) != LS_NODE_OBJECT ||
        !ls_node_get(&model, "vocab", &list))
        return -1;
    if (ls_node_kind_of(&list) == LS_NODE_OBJECT) return ls_node_get(&list, name, &node) ? int_of(&node) : -1;
    for (int64_t i = 0; ls_node_kind_of(&list) == LS_NODE_ARRAY && i < ls_node_count(&list); i++) {
        const ls_node pair = ls_node_at(&list, i);
        if (ls_node_kind_of(&pair) != LS_NODE_ARRAY || ls_node_count(&pair) < 1) continue;
        node = ls_node_at(&pair, 0);
        if (is_token(&node, name)) return i;
    }
    return -1;
}

ls_status ls_tokenizer_eos(ls_model_config *out, const char *directory, ls_error *err) {
    ls_json_doc *config = NULL, *tokenizer = NULL;
    ls_node root, token, content;
    const char *name = NULL;
    int64_t id;
    ls_status status;
    LS_TRY_DONE(open_file(&config, directory, "tokenizer_config.json", err));
    if (config == NULL) goto done;
    root = ls_json_root(config);
    if (!ls_node_get_some(&root, "eos_token", &token) || !content_of(&name, &token, &content)) goto done;
    id = id_in_decoder(&root, name);
    if (id < 0) {
        LS_TRY_DONE(open_file(&tokenizer, directory, "tokenizer.json", err));
        if (tokenizer != NULL) {
            const ls_node whole = ls_json_root(tokenizer);
            id = id_in_tokenizer(&whole, name);
        }
    }
    if (id < 0) goto done; /* a name that no token has */
    if (id >= out->vocab) {
        status = ls_node_fail(&token, LS_ERR_FORMAT, err, "'%.60s' is token %lld, not below vocab_size %d", name,
                              (long long)id, out->vocab);
        goto done;
    }
    out->n_eos = 1;
    out->eos[0] = (int32_t)id;
done:
    ls_json_doc_free(tokenizer);
    ls_json_doc_free(config);
    return status;
}
