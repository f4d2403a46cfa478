/* The few members of any config.json that requests are made from. */
#include "load/stack_config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "json/json_node.h"

enum { CONFIG_BYTES_MAX = 1 << 24 };

/* At the top or under "text_config". */
static bool find_field(const ls_node *root, const ls_node *text, const char *key, ls_node *out) {
    return ls_node_get_some(root, key, out) || (text->value != NULL && ls_node_get_some(text, key, out));
}

static ls_status read_int(const ls_node *root, const ls_node *text, const char *key, int64_t low, int64_t high,
                          int32_t *out, ls_error *err) {
    ls_node node;
    int64_t value;
    if (!find_field(root, text, key, &node)) return LS_OK;
    LS_TRY(ls_node_int(&node, low, high, &value, err));
    *out = (int32_t)value;
    return LS_OK;
}

static ls_status read_eos(const ls_node *root, const ls_node *text, ls_model_config *out, ls_error *err) {
    ls_node node;
    int64_t value;
    if (!find_field(root, text, "eos_token_id", &node)) return LS_OK;
    if (ls_node_kind_of(&node) != LS_NODE_ARRAY) {
        LS_TRY(ls_node_int(&node, 0, INT32_MAX, &value, err));
        out->eos[out->n_eos++] = (int32_t)value;
        return LS_OK;
    }
    if (ls_node_count(&node) > LS_EOS_MAX)
        return ls_node_fail(&node, LS_ERR_FORMAT, err, "more than %d tokens", LS_EOS_MAX);
    for (int64_t i = 0; i < ls_node_count(&node); i++) {
        const ls_node item = ls_node_at(&node, i);
        LS_TRY(ls_node_int(&item, 0, INT32_MAX, &value, err));
        out->eos[out->n_eos++] = (int32_t)value;
    }
    return LS_OK;
}

ls_status ls_stack_config_parse(ls_model_config *out, const char *json, int64_t bytes, const char *name,
                                ls_error *err) {
    static const char *const windows[] = {"mamba_d_conv", "d_conv", "conv_kernel", "linear_conv_kernel_dim"};
    ls_json_doc *doc = NULL;
    ls_model_config c = {.bos = -1, .pad = -1};
    ls_node root, text = {0};
    ls_status status;
    LS_TRY_DONE(ls_json_doc_open(&doc, json, bytes, name, err));
    root = ls_json_root(doc);
    if (ls_node_get_some(&root, "text_config", &text)) LS_TRY_DONE(ls_node_expect(&text, LS_NODE_OBJECT, err));
    LS_TRY_DONE(read_int(&root, &text, "vocab_size", 2, INT32_MAX, &c.vocab, err));
    if (c.vocab == 0) {
        status = LS_FAIL(err, LS_ERR_FORMAT, "%s: vocab_size is missing", name);
        goto done;
    }
    LS_TRY_DONE(read_int(&root, &text, "bos_token_id", 0, INT32_MAX, &c.bos, err));
    LS_TRY_DONE(read_int(&root, &text, "pad_token_id", 0, INT32_MAX, &c.pad, err));
    LS_TRY_DONE(read_eos(&root, &text, &c, err));
    for (size_t i = 0; i < sizeof windows / sizeof windows[0]; i++)
        LS_TRY_DONE(read_int(&root, &text, windows[i], 1, 1024, &c.d_conv, err));
    *out = c;
done:
    ls_json_doc_free(doc);
    return status;
}

ls_status ls_stack_config_open(ls_model_config *out, const char *dir, ls_error *err) {
    char path[4096], *text = NULL;
    int64_t bytes;
    ls_status status;
    if (snprintf(path, sizeof path, "%s/config.json", dir) >= (int)sizeof path)
        return LS_FAIL(err, LS_ERR_ARG, "%.200s..: the path is too long", dir);
    LS_TRY(ls_file_read(&text, &bytes, path, CONFIG_BYTES_MAX, err));
    status = ls_stack_config_parse(out, text, bytes, path, err);
    free(text);
    return status;
}
