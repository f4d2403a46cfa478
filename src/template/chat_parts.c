/* Content parts and the arguments of tool calls. */
#define _POSIX_C_SOURCE 200809L
#include "template/chat_parts.h"

#include <stdlib.h>
#include <string.h>

#include "json/json_out.h"

/* A part's text. */
static ls_status read_part(const ls_node *part, const char **text, int64_t *bytes, ls_error *err) {
    static const char *const types[] = {"text", "input_text", "output_text"};
    const char *type;
    ls_node child;
    size_t i = 0;
    if (ls_node_kind_of(part) == LS_NODE_TEXT) return ls_node_text(part, text, bytes, err);
    LS_TRY(ls_node_expect(part, LS_NODE_OBJECT, err));
    LS_TRY(ls_node_need(part, "type", &child, err));
    LS_TRY(ls_node_string(&child, &type, err));
    while (i < sizeof types / sizeof types[0] && strcmp(types[i], type) != 0) i++;
    if (i == sizeof types / sizeof types[0])
        return ls_node_fail(part, LS_ERR_UNSUPPORTED, err, "a part of type '%.60s': the model reads text alone", type);
    LS_TRY(ls_node_need(part, "text", &child, err));
    return ls_node_text(&child, text, bytes, err);
}

/* Whether it can stay as it is where parts are read. */
static bool is_plain(const ls_node *part) {
    const char *type;
    ls_node child;
    return ls_node_kind_of(part) == LS_NODE_OBJECT && ls_node_get_some(part, "type", &child) &&
           ls_node_string(&child, &type, NULL) == LS_OK && strcmp(type, "text") == 0;
}

/* Whether the list must be written anew. */
static ls_status check_content(const ls_node *content, bool reads_parts, bool *changes, ls_error *err) {
    if (ls_node_kind_of(content) != LS_NODE_ARRAY) return LS_OK;
    *changes = *changes || !reads_parts;
    for (int64_t i = 0; i < ls_node_count(content); i++) {
        const ls_node part = ls_node_at(content, i);
        const char *text;
        int64_t bytes;
        LS_TRY(read_part(&part, &text, &bytes, err));
        *changes = *changes || !is_plain(&part);
    }
    return LS_OK;
}

static ls_status write_content(ls_json_out *json, const ls_node *content, bool reads_parts, ls_error *err) {
    const int64_t n = ls_node_count(content);
    char *joined = NULL;
    size_t joined_bytes = 0;
    FILE *file = NULL;
    ls_status status = LS_OK;
    if (reads_parts)
        ls_json_begin_array(json, "content");
    else if ((file = open_memstream(&joined, &joined_bytes)) == NULL)
        return LS_FAIL(err, LS_ERR_NOMEM, "messages");
    for (int64_t i = 0; i < n && status == LS_OK; i++) {
        const ls_node part = ls_node_at(content, i);
        const char *text = "";
        int64_t bytes = 0;
        status = read_part(&part, &text, &bytes, err);
        if (reads_parts) {
            ls_json_begin_object(json, NULL);
            ls_json_string(json, "type", "text");
            ls_json_text(json, "text", text, bytes);
            ls_json_end_object(json);
        } else {
            if (i > 0) fputc('\n', file);
            fwrite(text, 1, (size_t)bytes, file);
        }
    }
    if (reads_parts) {
        ls_json_end_array(json);
        return status;
    }
    if (fclose(file) != 0 && status == LS_OK) status = LS_FAIL(err, LS_ERR_NOMEM, "messages");
    if (status == LS_OK) ls_json_text(json, "content", joined, (int64_t)joined_bytes);
    free(joined);
    return status;
}

/* ---- tool calls ---- */

/* The arguments of a call, where they are text. */
static bool arguments_of(const ls_node *call, ls_node *function, ls_node *arguments) {
    return ls_node_kind_of(call) == LS_NODE_OBJECT && ls_node_get_some(call, "function", function) &&
           ls_node_kind_of(function) == LS_NODE_OBJECT && ls_node_get_some(function, "arguments", arguments) &&
           ls_node_kind_of(arguments) == LS_NODE_TEXT;
}

static bool has_text_arguments(const ls_node *calls) {
    if (ls_node_kind_of(calls) != LS_NODE_ARRAY) return false;
    for (int64_t i = 0; i < ls_node_count(calls); i++) {
        const ls_node call = ls_node_at(calls, i);
        ls_node function, arguments;
        if (arguments_of(&call, &function, &arguments)) return true;
    }
    return false;
}

static ls_status write_raw(ls_json_out *json, const char *key, const ls_node *node, ls_error *err) {
    char *text;
    LS_TRY(ls_node_dump(node, &text, err));
    ls_json_raw(json, key, text);
    free(text);
    return LS_OK;
}

/* All members but one. */
static ls_status write_others(ls_json_out *json, const ls_node *object, const char *but, ls_error *err) {
    void *iterator = NULL;
    ls_node child;
    while (ls_node_next(object, &iterator, &child))
        if (strcmp(child.key, but) != 0) LS_TRY(write_raw(json, child.key, &child, err));
    return LS_OK;
}

static ls_status write_arguments(ls_json_out *json, const ls_node *arguments, ls_error *err) {
    ls_json_doc *doc;
    const char *text;
    int64_t bytes;
    ls_node root;
    ls_error why;
    ls_status status;
    LS_TRY(ls_node_text(arguments, &text, &bytes, err));
    if (bytes == 0) {
        ls_json_begin_object(json, "arguments");
        ls_json_end_object(json);
        return LS_OK;
    }
    if (ls_json_doc_open(&doc, text, bytes, "JSON", &why) != LS_OK)
        return ls_node_fail(arguments, LS_ERR_FORMAT, err, "no JSON object: %.200s", why.text);
    root = ls_json_root(doc);
    status = write_raw(json, "arguments", &root, err);
    ls_json_doc_free(doc);
    return status;
}

static ls_status write_calls(ls_json_out *json, const ls_node *calls, ls_error *err) {
    ls_json_begin_array(json, "tool_calls");
    for (int64_t i = 0; i < ls_node_count(calls); i++) {
        const ls_node call = ls_node_at(calls, i);
        ls_node function, arguments;
        if (!arguments_of(&call, &function, &arguments)) {
            LS_TRY(write_raw(json, NULL, &call, err));
            continue;
        }
        ls_json_begin_object(json, NULL);
        LS_TRY(write_others(json, &call, "function", err));
        ls_json_begin_object(json, "function");
        LS_TRY(write_others(json, &function, "arguments", err));
        LS_TRY(write_arguments(json, &arguments, err));
        ls_json_end_object(json);
        ls_json_end_object(json);
    }
    ls_json_end_array(json);
    return LS_OK;
}

/* ---- messages ---- */

static ls_status write_message(ls_json_out *json, const ls_node *message, bool reads_parts, ls_error *err) {
    void *iterator = NULL;
    ls_node child;
    ls_json_begin_object(json, NULL);
    while (ls_node_next(message, &iterator, &child)) {
        if (ls_node_kind_of(&child) == LS_NODE_NULL) continue;
        if (strcmp(child.key, "content") == 0 && ls_node_kind_of(&child) == LS_NODE_ARRAY)
            LS_TRY(write_content(json, &child, reads_parts, err));
        else if (strcmp(child.key, "tool_calls") == 0 && has_text_arguments(&child))
            LS_TRY(write_calls(json, &child, err));
        else
            LS_TRY(write_raw(json, child.key, &child, err));
    }
    ls_json_end_object(json);
    return LS_OK;
}

static ls_status write_messages(FILE *file, const ls_node *messages, bool reads_parts, ls_error *err) {
    ls_json_out json;
    ls_json_init(&json, file);
    ls_json_begin_object(&json, NULL);
    ls_json_begin_array(&json, "messages");
    for (int64_t i = 0; i < ls_node_count(messages); i++) {
        const ls_node message = ls_node_at(messages, i);
        LS_TRY(write_message(&json, &message, reads_parts, err));
    }
    ls_json_end_array(&json);
    ls_json_end_object(&json);
    return LS_OK;
}

/* Clients send null for what a message does not have. Templates ask whether a member is there. */
static bool has_null(const ls_node *message) {
    void *iterator = NULL;
    ls_node child;
    while (ls_node_next(message, &iterator, &child))
        if (ls_node_kind_of(&child) == LS_NODE_NULL) return true;
    return false;
}

static ls_status look_for_changes(const ls_node *messages, bool reads_parts, bool *changes, ls_error *err) {
    for (int64_t i = 0; i < ls_node_count(messages); i++) {
        const ls_node message = ls_node_at(messages, i);
        ls_node child;
        *changes = *changes || has_null(&message);
        if (ls_node_get_some(&message, "content", &child)) LS_TRY(check_content(&child, reads_parts, changes, err));
        if (ls_node_get_some(&message, "tool_calls", &child) && has_text_arguments(&child)) *changes = true;
    }
    return LS_OK;
}

ls_status ls_chat_messages_read(ls_json_doc **out, const ls_node *messages, bool reads_parts, ls_error *err) {
    char *text = NULL;
    size_t bytes = 0;
    bool changes = false;
    FILE *file;
    ls_status status;
    *out = NULL;
    LS_TRY(look_for_changes(messages, reads_parts, &changes, err));
    if (!changes) return LS_OK;
    if ((file = open_memstream(&text, &bytes)) == NULL) return LS_FAIL(err, LS_ERR_NOMEM, "messages");
    status = write_messages(file, messages, reads_parts, err);
    if (fclose(file) != 0 && status == LS_OK) status = LS_FAIL(err, LS_ERR_NOMEM, "messages");
    if (status == LS_OK) status = ls_json_doc_open(out, text, (int64_t)bytes, "conversation", err);
    free(text);
    return status;
}
