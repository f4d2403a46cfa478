/* JSON nodes over jansson; owns the parsed document. */
#include "json/json_node.h"

#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "json/json_out.h"
#include "json/json_read.h"

struct ls_json_doc {
    json_t *root;
    char *name;
};

/* The library takes nodes it only reads through pointers to non-const. */
static json_t *json_of(const ls_node *node) {
    union {
        const void *in;
        json_t *out;
    } pointer = {node->value};
    return pointer.out;
}

ls_status ls_json_doc_open(ls_json_doc **out, const char *text, int64_t bytes, const char *name, ls_error *err) {
    ls_json_doc *doc = calloc(1, sizeof *doc);
    ls_status status = LS_OK;
    *out = NULL;
    if (doc == NULL) return LS_FAIL(err, LS_ERR_NOMEM, "%s: document", name);
    LS_TRY_DONE(ls_text_copy(&doc->name, name, (int64_t)strlen(name), err));
    LS_TRY_DONE(ls_json_parse_with_nul(&doc->root, text, bytes, name, err));
    *out = doc;
    doc = NULL;
done:
    ls_json_doc_free(doc);
    return status;
}

void ls_json_doc_free(ls_json_doc *doc) {
    if (doc == NULL) return;
    ls_json_release(doc->root);
    free(doc->name);
    free(doc);
}

ls_node ls_json_root(const ls_json_doc *doc) { return (ls_node){.doc = doc, .value = doc->root}; }

ls_node_kind ls_node_kind_of(const ls_node *node) {
    switch (json_typeof(json_of(node))) {
        case JSON_OBJECT: return LS_NODE_OBJECT;
        case JSON_ARRAY: return LS_NODE_ARRAY;
        case JSON_STRING: return LS_NODE_TEXT;
        case JSON_INTEGER: return LS_NODE_INT;
        case JSON_REAL: return LS_NODE_REAL;
        case JSON_TRUE:
        case JSON_FALSE: return LS_NODE_BOOL;
        case JSON_NULL: break;
    }
    return LS_NODE_NULL;
}

int64_t ls_node_count(const ls_node *node) {
    const json_t *value = json_of(node);
    return (int64_t)(json_is_array(value) ? json_array_size(value) : json_object_size(value));
}

static void write_path(const ls_node *node, char *path, size_t size) {
    size_t used;
    if (node->parent == NULL) {
        path[0] = '\0';
        return;
    }
    write_path(node->parent, path, size);
    used = strlen(path);
    if (node->key == NULL)
        snprintf(path + used, size - used, "[%lld]", (long long)node->index);
    else
        snprintf(path + used, size - used, "%s%.60s", used == 0 ? "" : ".", node->key);
}

void ls_node_blame(const ls_node *node, ls_error *err) {
    char path[256];
    write_path(node, path, sizeof path);
    if (path[0] == '\0')
        ls_error_prefix(err, "%s", node->doc->name);
    else
        ls_error_prefix(err, "%s: %s", node->doc->name, path);
}

ls_status ls_node_fail(const ls_node *node, ls_status status, ls_error *err, const char *format, ...) {
    char sentence[512];
    va_list ap;
    va_start(ap, format);
    vsnprintf(sentence, sizeof sentence, format, ap);
    va_end(ap);
    LS_FAIL(err, status, "%s", sentence);
    ls_node_blame(node, err);
    return status;
}

bool ls_node_get(const ls_node *object, const char *key, ls_node *child) {
    const json_t *value = json_object_get(json_of(object), key);
    if (value == NULL) return false;
    *child = (ls_node){.doc = object->doc, .value = value, .parent = object, .key = key};
    return true;
}

bool ls_node_get_some(const ls_node *object, const char *key, ls_node *child) {
    return ls_node_get(object, key, child) && ls_node_kind_of(child) != LS_NODE_NULL;
}

ls_status ls_node_need(const ls_node *object, const char *key, ls_node *child, ls_error *err) {
    if (ls_node_get(object, key, child)) return LS_OK;
    return ls_node_fail(object, LS_ERR_FORMAT, err, "'%s' is missing", key);
}

ls_status ls_node_need_kind(const ls_node *object, const char *key, ls_node_kind kind, ls_node *child, ls_error *err) {
    LS_TRY(ls_node_need(object, key, child, err));
    return ls_node_expect(child, kind, err);
}

ls_node ls_node_at(const ls_node *array, int64_t index) {
    const json_t *value = json_array_get(json_of(array), (size_t)index);
    LS_ASSERT(value != NULL, "index %lld of %lld", (long long)index, (long long)ls_node_count(array));
    return (ls_node){.doc = array->doc, .value = value, .parent = array, .index = index};
}

bool ls_node_next(const ls_node *object, void **iterator, ls_node *child) {
    json_t *value = json_of(object);
    *iterator = *iterator == NULL ? json_object_iter(value) : json_object_iter_next(value, *iterator);
    if (*iterator == NULL) return false;
    *child = (ls_node){.doc = object->doc,
                       .value = json_object_iter_value(*iterator),
                       .parent = object,
                       .key = json_object_iter_key(*iterator)};
    return true;
}

ls_status ls_node_expect(const ls_node *node, ls_node_kind kind, ls_error *err) {
    static const char *const names[] = {"null",     "true or false", "a whole number", "a number",
                                        "a string", "an array",      "an object"};
    const ls_node_kind found = ls_node_kind_of(node);
    if (found == kind) return LS_OK;
    return ls_node_fail(node, LS_ERR_FORMAT, err, "%s is required, found %s", names[kind], names[found]);
}

ls_status ls_node_text(const ls_node *node, const char **text, int64_t *bytes, ls_error *err) {
    const ls_status status = ls_node_expect(node, LS_NODE_TEXT, err);
    if (status != LS_OK) return status;
    *text = json_string_value(json_of(node));
    *bytes = (int64_t)json_string_length(json_of(node));
    return LS_OK;
}

ls_status ls_node_string(const ls_node *node, const char **text, ls_error *err) {
    int64_t bytes;
    const ls_status status = ls_node_text(node, text, &bytes, err);
    if (status != LS_OK) return status;
    if (strlen(*text) != (size_t)bytes) return ls_node_fail(node, LS_ERR_UNSUPPORTED, err, "a NUL character in a name");
    return LS_OK;
}

ls_status ls_node_bool(const ls_node *node, bool *out, ls_error *err) {
    const ls_status status = ls_node_expect(node, LS_NODE_BOOL, err);
    if (status == LS_OK) *out = json_is_true(json_of(node));
    return status;
}

ls_status ls_node_int(const ls_node *node, int64_t low, int64_t high, int64_t *out, ls_error *err) {
    const ls_status status = ls_node_expect(node, LS_NODE_INT, err);
    if (status != LS_OK) return status;
    *out = (int64_t)json_integer_value(json_of(node));
    if (*out < low || *out > high)
        return ls_node_fail(node, LS_ERR_FORMAT, err, "%lld is not in %lld..%lld", (long long)*out, (long long)low,
                            (long long)high);
    return LS_OK;
}

double ls_node_number(const ls_node *node) { return json_number_value(json_of(node)); }

/* The library writes 0.1 as 0.10000000000000001, which a reader of decimals takes for another number. Every real
 * becomes its shortest text, in place: none gets longer. */
static void shorten_reals(char *text) {
    char *to = text;
    for (const char *at = text; *at != '\0';) {
        const size_t n = *at == '"' ? 0 : strspn(at, "-+.eE0123456789");
        if (*at == '"') { /* a string, as it is */
            do {
                if (*at == '\\') *to++ = *at++;
                *to++ = *at++;
            } while (*at != '"');
            *to++ = *at++;
        } else if (n == 0 || strcspn(at, ".eE") >= n) { /* no real */
            const size_t all = n == 0 ? strcspn(at, "-0123456789\"") : n;
            memmove(to, at, all);
            at += all;
            to += all;
        } else {
            char number[LS_DOUBLE_TEXT_MAX + 2];
            ls_double_show(number, strtod(at, NULL));
            if (strpbrk(number, ".e") == NULL) strcat(number, ".0");
            at += n;
            memcpy(to, number, strlen(number));
            to += strlen(number);
        }
    }
    *to = '\0';
}

ls_status ls_node_dump(const ls_node *node, char **out, ls_error *err) {
    *out = json_dumps(json_of(node), JSON_COMPACT | JSON_ENCODE_ANY);
    if (*out == NULL) return ls_node_fail(node, LS_ERR_NOMEM, err, "cannot write this value");
    shorten_reals(*out);
    return LS_OK;
}

ls_status ls_node_only(const ls_node *object, const char *const *keys, ls_error *err) {
    void *iterator = NULL;
    ls_node child;
    while (ls_node_next(object, &iterator, &child)) {
        int64_t i = 0;
        while (keys[i] != NULL && strcmp(keys[i], child.key) != 0) i++;
        if (keys[i] == NULL) return ls_node_fail(&child, LS_ERR_UNSUPPORTED, err, "this field is not supported");
    }
    return LS_OK;
}
