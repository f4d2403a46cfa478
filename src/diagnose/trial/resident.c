/* Reading of a resident program's lines. */
#include "diagnose/trial/resident.h"

#include <string.h>

#include "json/json_node.h"

static ls_status read_greeting(int *version, const ls_node *root, const char *program, ls_error *err) {
    int64_t said;
    ls_node node;
    LS_TRY(ls_node_need(root, "lockstep", &node, err));
    LS_TRY(ls_node_int(&node, 0, INT32_MAX, &said, err));
    if (said < LS_PROTOCOL_FIRST || said > LS_PROTOCOL_LAST)
        return LS_FAIL(err, LS_ERR_FORMAT, "%s: it speaks version %lld; %d to %d are known", program, (long long)said,
                       LS_PROTOCOL_FIRST, LS_PROTOCOL_LAST);
    *version = (int)said;
    return LS_OK;
}

static ls_status read_answer(const ls_node *root, const char *program, ls_error *err) {
    const char *why = "it says no more";
    bool ok;
    ls_node node;
    LS_TRY(ls_node_need(root, "ok", &node, err));
    LS_TRY(ls_node_bool(&node, &ok, err));
    if (ok) return LS_OK;
    if (ls_node_get_some(root, "error", &node)) LS_TRY(ls_node_string(&node, &why, err));
    return LS_FAIL(err, LS_ERR_UNSUPPORTED, "%s: %.200s", program, why);
}

ls_status ls_resident_greeting(int *version, const char *line, const char *program, ls_error *err) {
    ls_json_doc *doc;
    LS_TRY(ls_json_doc_open(&doc, line, (int64_t)strlen(line), program, err));
    const ls_node root = ls_json_root(doc);
    const ls_status status = read_greeting(version, &root, program, err);
    ls_json_doc_free(doc);
    return status;
}

ls_status ls_resident_answer(const char *line, const char *program, ls_error *err) {
    ls_json_doc *doc;
    LS_TRY(ls_json_doc_open(&doc, line, (int64_t)strlen(line), program, err));
    const ls_node root = ls_json_root(doc);
    const ls_status status = read_answer(&root, program, err);
    ls_json_doc_free(doc);
    return status;
}
