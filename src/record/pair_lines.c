/* Lines of pairs; owns what it hands out until it is freed. */
#define _POSIX_C_SOURCE 200809L
#include "record/pair_lines.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "json/json_node.h"
#include "record/source.h"

#define LINE_BYTES_MAX 268435456

static ls_status read_text(const ls_node *root, const char *key, char **out, int64_t *bytes, ls_error *err) {
    const char *text;
    ls_node node;
    LS_TRY(ls_node_need(root, key, &node, err));
    LS_TRY(ls_node_text(&node, &text, bytes, err));
    if (*bytes == 0) return ls_node_fail(&node, LS_ERR_FORMAT, err, "is empty");
    return ls_text_copy(out, text, *bytes, err);
}

static ls_status read_ids(const ls_node *root, const char *key, int32_t **out, int64_t *n, ls_error *err) {
    ls_node node;
    LS_TRY(ls_node_need_kind(root, key, LS_NODE_ARRAY, &node, err));
    *n = ls_node_count(&node);
    if (*n == 0) return ls_node_fail(&node, LS_ERR_FORMAT, err, "is empty");
    LS_TRY(ls_array_alloc((void **)out, *n, sizeof **out, key, err));
    for (int64_t i = 0; i < *n; i++) {
        const ls_node item = ls_node_at(&node, i);
        int64_t id = 0;
        LS_TRY(ls_node_int(&item, 0, INT32_MAX, &id, err));
        (*out)[i] = (int32_t)id;
    }
    return LS_OK;
}

ls_status ls_pair_parse(ls_pair *out, const char *line, int64_t bytes, const char *name, int64_t line_number,
                        ls_error *err) {
    char place[1200];
    ls_json_doc *doc = NULL;
    ls_node root, node;
    bool has_text, has_ids;
    ls_status status;
    memset(out, 0, sizeof *out);
    out->line = line_number;
    snprintf(place, sizeof place, "%.1100s: line %lld", name, (long long)line_number);
    LS_TRY_DONE(ls_json_doc_open(&doc, line, bytes, place, err));
    root = ls_json_root(doc);
    has_text = ls_node_get_some(&root, "prompt", &node) || ls_node_get_some(&root, "completion", &node);
    has_ids = ls_node_get_some(&root, "prompt_ids", &node) || ls_node_get_some(&root, "completion_ids", &node);
    if (has_text == has_ids) {
        status = ls_node_fail(&root, LS_ERR_FORMAT, err,
                              "one of 'prompt' with 'completion' and 'prompt_ids' with 'completion_ids' is required%s",
                              has_text ? ""
                                       : "; or messages, or a prompt and an answer under their usual names (question, "
                                         "problem, answer, solution, ..) or those of data_prompt and data_answer");
    } else if (has_text) {
        LS_TRY_DONE(read_text(&root, "prompt", &out->prompt, &out->prompt_bytes, err));
        LS_TRY_DONE(read_text(&root, "completion", &out->completion, &out->completion_bytes, err));
    } else {
        LS_TRY_DONE(read_ids(&root, "prompt_ids", &out->prompt_ids, &out->n_prompt, err));
        LS_TRY_DONE(read_ids(&root, "completion_ids", &out->completion_ids, &out->n_completion, err));
    }
done:
    ls_json_doc_free(doc);
    if (status != LS_OK) ls_pair_deinit(out);
    return status;
}

void ls_pair_deinit(ls_pair *pair) {
    free(pair->prompt);
    free(pair->completion);
    free(pair->prompt_ids);
    free(pair->completion_ids);
    memset(pair, 0, sizeof *pair);
}

void ls_pairs_free(ls_pair *pairs, int64_t n) {
    for (int64_t i = 0; i < n; i++) ls_pair_deinit(&pairs[i]);
    free(pairs);
}

ls_status ls_pairs_read(ls_pair **out, int64_t *n, const char *path, ls_error *err) {
    FILE *file = NULL;
    char *line = NULL;
    int64_t line_cap = 0, bytes, cap = 0, count = 0, line_number = 0;
    ls_pair *pairs = NULL;
    bool more;
    ls_status status;
    *out = NULL;
    *n = 0;
    if ((status = ls_file_stream(&file, path, err)) != LS_OK) return status;
    for (;;) {
        line_number++;
        if ((status = ls_line_read(file, &line, &line_cap, &bytes, LINE_BYTES_MAX, &more, err)) != LS_OK) {
            ls_error_prefix(err, "%s: line %lld", path, (long long)line_number);
            goto done;
        }
        if (!more) break;
        if (line_number == 1 && (status = ls_text_head(line, &bytes, err)) != LS_OK) {
            ls_error_prefix(err, "%s", path);
            goto done;
        }
        if (ls_line_is_blank(line, bytes)) continue;
        LS_TRY_DONE(ls_array_grow((void **)&pairs, &cap, count + 1, sizeof *pairs, "pairs", err));
        LS_TRY_DONE(ls_pair_parse(&pairs[count], line, bytes, path, line_number, err));
        count++;
    }
    if (count == 0) {
        status = LS_FAIL(err, LS_ERR_FORMAT, "%s: holds no pair", path);
        goto done;
    }
    *out = pairs;
    *n = count;
    pairs = NULL;
done:
    if (pairs != NULL) ls_pairs_free(pairs, count);
    free(line);
    fclose(file);
    return status;
}

/* Under a name that pairs do not have. */
static bool has_answer(const ls_node *root) {
    static const char *const names[] = {"answer", "solution", "output", "target", NULL};
    ls_node node;
    for (int i = 0; names[i] != NULL; i++)
        if (ls_node_get_some(root, names[i], &node)) return true;
    return false;
}

ls_status ls_pairs_detect(bool *out, const char *path, ls_error *err) {
    FILE *file = NULL;
    char *line = NULL;
    int64_t cap = 0, bytes = 0;
    bool more = true, is_first = true;
    ls_json_doc *doc = NULL;
    ls_node root, node;
    ls_status status;
    *out = true;
    if ((status = ls_file_stream(&file, path, err)) != LS_OK) return status;
    do {
        if (ls_line_read(file, &line, &cap, &bytes, LINE_BYTES_MAX, &more, NULL) != LS_OK) goto done;
        if (is_first && more && ls_text_head(line, &bytes, NULL) != LS_OK) goto done;
        is_first = false;
    } while (more && ls_line_is_blank(line, bytes));
    if (!more || ls_json_doc_open(&doc, line, bytes, path, NULL) != LS_OK) goto done;
    root = ls_json_root(doc);
    *out = !ls_node_get_some(&root, "messages", &node);
    if (*out)
        *out = ls_node_get_some(&root, "prompt_ids", &node) || ls_node_get_some(&root, "completion_ids", &node) ||
               ls_node_get_some(&root, "completion", &node) || !has_answer(&root);
done:
    ls_json_doc_free(doc);
    free(line);
    fclose(file);
    return status;
}
