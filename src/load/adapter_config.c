/* Which fields of adapter_config.json are read, which are inert, and which refuse. */
#include "load/adapter_config.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/other_forms.h"
#include "json/json_node.h"

enum { RANK_MAX = 1024, PATH_BYTES = 4096 };
#define CONFIG_BYTES_MAX ((int64_t)1 << 24)

/* Read here; what the tensors tell themselves; and what training alone knows. */
static const char *const known[] = {"peft_type",
                                    "r",
                                    "lora_alpha",
                                    "use_rslora",
                                    "bias",
                                    "init_lora_weights",
                                    "base_model_name_or_path",
                                    "task_type",
                                    "auto_mapping",
                                    "peft_version",
                                    "revision",
                                    "inference_mode",
                                    "target_modules",
                                    "exclude_modules",
                                    "lora_dropout",
                                    "layers_to_transform",
                                    "layers_pattern",
                                    "megatron_core",
                                    "qalora_group_size",
                                    "eva_config",
                                    NULL};

/* null, false, and lists and objects without anything. */
static bool says_nothing(const ls_node *value) {
    bool flag = true;
    switch (ls_node_kind_of(value)) {
        case LS_NODE_NULL: return true;
        case LS_NODE_BOOL: return ls_node_bool(value, &flag, NULL) == LS_OK && !flag;
        case LS_NODE_ARRAY:
        case LS_NODE_OBJECT: return ls_node_count(value) == 0;
        default: return false;
    }
}

static ls_status check_fields(const ls_node *root, ls_error *err) {
    void *iterator = NULL;
    ls_node value;
    while (ls_node_next(root, &iterator, &value)) {
        bool is_known = says_nothing(&value);
        for (int i = 0; known[i] != NULL && !is_known; i++) is_known = strcmp(known[i], value.key) == 0;
        if (!is_known)
            return ls_node_fail(&value, LS_ERR_UNSUPPORTED, err,
                                "this makes more of an adapter than products for whole matrices; PEFT's "
                                "merge_and_unload() merges it");
    }
    return LS_OK;
}

/* A text that must be one of two where it is there. */
static ls_status check_text(const ls_node *root, const char *key, const char *first, const char *second,
                            ls_error *err) {
    const char *text = NULL;
    ls_node value;
    if (!ls_node_get_some(root, key, &value) || ls_node_kind_of(&value) == LS_NODE_BOOL) return LS_OK;
    LS_TRY(ls_node_string(&value, &text, err));
    if (strcmp(text, first) == 0 || strcmp(text, second) == 0) return LS_OK;
    return ls_node_fail(&value, LS_ERR_UNSUPPORTED, err, "'%.60s'; PEFT's merge_and_unload() merges it", text);
}

static ls_status read_numbers(ls_adapter_config *out, const ls_node *root, ls_error *err) {
    bool rslora = false;
    ls_node value;
    LS_TRY(ls_node_need(root, "r", &value, err));
    LS_TRY(ls_node_int(&value, 1, RANK_MAX, &out->rank, err));
    LS_TRY(ls_node_need(root, "lora_alpha", &value, err));
    if (ls_node_kind_of(&value) != LS_NODE_INT && ls_node_kind_of(&value) != LS_NODE_REAL)
        return ls_node_fail(&value, LS_ERR_FORMAT, err, "a number is required");
    out->alpha = ls_node_number(&value);
    if (!(fabs(out->alpha) <= 1e6)) return ls_node_fail(&value, LS_ERR_FORMAT, err, "%g; at most 1e6", out->alpha);
    if (ls_node_get_some(root, "use_rslora", &value)) LS_TRY(ls_node_bool(&value, &rslora, err));
    out->scale = (float)(out->alpha / (rslora ? sqrt((double)out->rank) : (double)out->rank));
    return LS_OK;
}

static ls_status read_adapter_config(ls_adapter_config *out, const ls_node *root, ls_error *err) {
    const char *text = NULL;
    ls_node value;
    LS_TRY(ls_node_need(root, "peft_type", &value, err));
    LS_TRY(check_text(root, "peft_type", "LORA", "LORA", err));
    LS_TRY(check_fields(root, err));
    LS_TRY(check_text(root, "bias", "none", "none", err));
    LS_TRY(check_text(root, "init_lora_weights", "gaussian", "orthogonal", err)); /* others change the base */
    LS_TRY(read_numbers(out, root, err));
    if (!ls_node_get_some(root, "base_model_name_or_path", &value)) return LS_OK;
    LS_TRY(ls_node_string(&value, &text, err));
    return ls_text_copy(&out->base, text, (int64_t)strlen(text), err);
}

ls_status ls_adapter_config_parse(ls_adapter_config *out, const char *json, int64_t bytes, const char *name,
                                  ls_error *err) {
    ls_json_doc *doc = NULL;
    ls_node root;
    ls_status status;
    *out = (ls_adapter_config){0};
    LS_TRY_DONE(ls_json_doc_open(&doc, json, bytes, name, err));
    root = ls_json_root(doc);
    status = read_adapter_config(out, &root, err);
done:
    ls_json_doc_free(doc);
    if (status != LS_OK) {
        free(out->base);
        out->base = NULL;
    }
    return status;
}

ls_status ls_adapter_config_open(ls_adapter_config *out, const char *directory, ls_error *err) {
    char path[PATH_BYTES], *text = NULL;
    int64_t bytes;
    ls_status status;
    *out = (ls_adapter_config){0};
    snprintf(path, sizeof path, "%s/adapter_config.json", directory);
    if (!ls_file_exists(path)) LS_TRY_DONE(ls_foreign_directory(directory, LS_WANT_CONFIG, err));
    LS_TRY_DONE(ls_file_read(&text, &bytes, path, CONFIG_BYTES_MAX, err));
    status = ls_adapter_config_parse(out, text, bytes, path, err);
done:
    free(text);
    return status;
}
