/* JSON lines of texts and of ids; owns what it hands out until deinit. */
#include "record/text_lines.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "json/json_node.h"

/* A line and its member that is asked for, which knows its place by the whole. */
typedef struct line_doc {
    ls_json_doc *doc;
    ls_node root, child;
} line_doc;

/* Parses the line, finds its `field` and copies the id. Other members are ignored, as in records. */
static ls_status open_line(line_doc *out, char **id, const char *field, const char *line, int64_t bytes,
                           const char *name, int64_t line_number, ls_error *err) {
    char place[256];
    ls_node id_node;
    ls_status status;
    snprintf(place, sizeof place, "%.200s: line %lld", name, (long long)line_number);
    LS_TRY_DONE(ls_json_doc_open(&out->doc, line, bytes, place, err));
    out->root = ls_json_root(out->doc);
    LS_TRY_DONE(ls_node_expect(&out->root, LS_NODE_OBJECT, err));
    LS_TRY_DONE(ls_node_need(&out->root, field, &out->child, err));
    if (ls_node_get(&out->root, "id", &id_node)) status = ls_node_dump(&id_node, id, err);
done:
    return status;
}

ls_status ls_text_line_parse(ls_text_line *out, const char *line, int64_t bytes, const char *name, int64_t line_number,
                             ls_error *err) {
    line_doc l = {0};
    const char *text = NULL;
    ls_status status;
    memset(out, 0, sizeof *out);
    LS_TRY_DONE(open_line(&l, &out->id, "text", line, bytes, name, line_number, err));
    LS_TRY_DONE(ls_node_text(&l.child, &text, &out->bytes, err));
    status = ls_text_copy(&out->text, text, out->bytes, err);
done:
    ls_json_doc_free(l.doc);
    if (status != LS_OK) ls_text_line_deinit(out);
    return status;
}

void ls_text_line_deinit(ls_text_line *line) {
    free(line->text);
    free(line->id);
    memset(line, 0, sizeof *line);
}

ls_status ls_ids_line_parse(ls_ids_line *out, const char *line, int64_t bytes, const char *name, int64_t line_number,
                            ls_error *err) {
    line_doc l = {0};
    void *ids = NULL;
    ls_status status;
    memset(out, 0, sizeof *out);
    LS_TRY_DONE(open_line(&l, &out->id, "ids", line, bytes, name, line_number, err));
    LS_TRY_DONE(ls_node_expect(&l.child, LS_NODE_ARRAY, err));
    out->n = ls_node_count(&l.child);
    LS_TRY_DONE(ls_array_alloc(&ids, out->n, sizeof *out->ids, "ids", err));
    out->ids = ids;
    for (int64_t i = 0; i < out->n; i++) {
        const ls_node item = ls_node_at(&l.child, i);
        int64_t value = 0;
        LS_TRY_DONE(ls_node_int(&item, 0, INT32_MAX, &value, err));
        out->ids[i] = (int32_t)value;
    }
done:
    ls_json_doc_free(l.doc);
    if (status != LS_OK) ls_ids_line_deinit(out);
    return status;
}

void ls_ids_line_deinit(ls_ids_line *line) {
    free(line->ids);
    free(line->id);
    memset(line, 0, sizeof *line);
}
