/* JSON nodes over jansson; owns the parsed document. */
#define _POSIX_C_SOURCE 200809L
#include "json/json_node.h"

#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "json/json_numbers.h"
#include "json/json_read.h"

/* A number of the document that the library does not hold. */
typedef struct kept_value {
    const json_t *value;
    const char *text;
} kept_value;

struct ls_json_doc {
    json_t *root;
    char *name;
    ls_kept_numbers numbers;
    kept_value *kept; /* [numbers.n] by address */
};

/* The library takes nodes it only reads through pointers to non-const. */
static json_t *json_of(const ls_node *node) {
    union {
        const void *in;
        json_t *out;
    } pointer = {node->value};
    return pointer.out;
}

static int compare_kept(const void *a, const void *b) {
    const uintptr_t x = (uintptr_t)((const kept_value *)a)->value, y = (uintptr_t)((const kept_value *)b)->value;
    return x < y ? -1 : x > y;
}

/* Finds the values of kept numbers: all numbers in the order of the text. *index and *k are those met so far. */
static void find_kept(ls_json_doc *doc, json_t *value, int64_t *index, int64_t *k) {
    const char *key;
    json_t *child;
    size_t i;
    if (json_is_object(value)) json_object_foreach(value, key, child) find_kept(doc, child, index, k);
    if (json_is_array(value)) json_array_foreach(value, i, child) find_kept(doc, child, index, k);
    if (!json_is_number(value) || *k == doc->numbers.n) return;
    if (doc->numbers.list[*k].index == *index) {
        doc->kept[*k] = (kept_value){value, doc->numbers.list[*k].text};
        ++*k;
    }
    ++*index;
}

static ls_status open_doc(ls_json_doc **out, const char *text, int64_t bytes, ls_numbers_mode mode, const char *name,
                          ls_error *err) {
    ls_json_doc *doc = calloc(1, sizeof *doc);
    int64_t index = 0, k = 0;
    ls_status status = LS_OK;
    *out = NULL;
    if (doc == NULL) return LS_FAIL(err, LS_ERR_NOMEM, "%s: document", name);
    LS_TRY_DONE(ls_text_copy(&doc->name, name, (int64_t)strlen(name), err));
    LS_TRY_DONE(ls_kept_numbers_open(&doc->numbers, text, bytes, mode, name, err));
    LS_TRY_DONE(
        ls_json_parse_with_nul(&doc->root, doc->numbers.json != NULL ? doc->numbers.json : text, bytes, name, err));
    if (doc->numbers.n > 0) {
        LS_TRY_DONE(ls_array_alloc((void **)&doc->kept, doc->numbers.n, sizeof *doc->kept, "numbers", err));
        find_kept(doc, doc->root, &index, &k);
        LS_ASSERT(k == doc->numbers.n, "%lld of %lld numbers", (long long)k, (long long)doc->numbers.n);
        qsort(doc->kept, (size_t)k, sizeof *doc->kept, compare_kept);
    }
    *out = doc;
    doc = NULL;
done:
    ls_json_doc_free(doc);
    return status;
}

ls_status ls_json_doc_open(ls_json_doc **out, const char *text, int64_t bytes, const char *name, ls_error *err) {
    return open_doc(out, text, bytes, LS_NUMBERS_PLAIN, name, err);
}

ls_status ls_json_doc_open_exact(ls_json_doc **out, const char *text, int64_t bytes, const char *name, ls_error *err) {
    return open_doc(out, text, bytes, LS_NUMBERS_EXACT, name, err);
}

void ls_json_doc_free(ls_json_doc *doc) {
    if (doc == NULL) return;
    ls_json_release(doc->root);
    ls_kept_numbers_close(&doc->numbers);
    free(doc->kept);
    free(doc->name);
    free(doc);
}

static const char *kept_text(const ls_json_doc *doc, const json_t *value) {
    const kept_value wanted = {value, NULL}, *found = NULL;
    if (doc->numbers.n > 0)
        found = bsearch(&wanted, doc->kept, (size_t)doc->numbers.n, sizeof *doc->kept, compare_kept);
    return found != NULL ? found->text : NULL;
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
    const char *kept = ls_node_kept(node);
    if (kept != NULL && strpbrk(kept, ".eE") == NULL)
        return ls_node_fail(node, LS_ERR_FORMAT, err, "%.60s is beyond 64 bits", kept);
    LS_TRY(ls_node_expect(node, LS_NODE_INT, err));
    *out = (int64_t)json_integer_value(json_of(node));
    if (*out < low || *out > high)
        return ls_node_fail(node, LS_ERR_FORMAT, err, "%lld is not in %lld..%lld", (long long)*out, (long long)low,
                            (long long)high);
    return LS_OK;
}

const char *ls_node_kept(const ls_node *node) { return kept_text(node->doc, node->value); }

double ls_node_number(const ls_node *node) {
    const char *text = ls_node_kept(node);
    return text != NULL ? strtod(text, NULL) : json_number_value(json_of(node));
}

ls_json_decimal ls_node_decimal(const ls_node *node, char text[LS_DOUBLE_TEXT_MAX]) {
    const char *number = ls_node_kept(node);
    ls_json_decimal out;
    if (number == NULL && ls_node_kind_of(node) == LS_NODE_INT)
        snprintf(text, LS_DOUBLE_TEXT_MAX, "%lld", (long long)json_integer_value(json_of(node)));
    else if (number == NULL)
        ls_double_show(text, json_real_value(json_of(node)));
    if (number == NULL) number = text;
    if (!ls_json_decimal_read(&out, number, (int64_t)strlen(number))) LS_ASSERT(false, "no number: %s", number);
    return out;
}

/* ---- as text ---- */

/* The library writes 0.1 as 0.10000000000000001, which a reader of decimals takes for another number. */
static void write_real(FILE *out, const ls_json_doc *doc, const json_t *value) {
    const char *kept = kept_text(doc, value);
    char number[LS_DOUBLE_TEXT_MAX];
    if (kept == NULL) ls_double_show(number, json_real_value(value));
    fputs(kept != NULL ? kept : number, out);
    if (kept == NULL && strpbrk(number, ".e") == NULL) fputs(".0", out);
}

/* Returns whether the library had the memory. */
static bool write_value(FILE *out, const ls_json_doc *doc, json_t *value);

static bool write_object(FILE *out, const ls_json_doc *doc, json_t *object) {
    const char *key;
    json_t *child;
    bool ok = true, is_first = true;
    fputc('{', out);
    json_object_foreach(object, key, child) {
        json_t *name = json_string(key);
        if (!is_first) fputc(',', out);
        is_first = false;
        ok = ok && name != NULL && json_dumpf(name, out, JSON_ENCODE_ANY) == 0;
        fputc(':', out);
        ok = ok && write_value(out, doc, child);
        json_decref(name);
    }
    fputc('}', out);
    return ok;
}

static bool write_array(FILE *out, const ls_json_doc *doc, json_t *array) {
    json_t *child;
    size_t i;
    bool ok = true;
    fputc('[', out);
    json_array_foreach(array, i, child) {
        if (i > 0) fputc(',', out);
        ok = ok && write_value(out, doc, child);
    }
    fputc(']', out);
    return ok;
}

static bool write_value(FILE *out, const ls_json_doc *doc, json_t *value) {
    if (json_is_object(value)) return write_object(out, doc, value);
    if (json_is_array(value)) return write_array(out, doc, value);
    if (!json_is_real(value)) return json_dumpf(value, out, JSON_ENCODE_ANY) == 0;
    write_real(out, doc, value);
    return true;
}

ls_status ls_node_dump(const ls_node *node, char **out, ls_error *err) {
    size_t bytes;
    FILE *stream = open_memstream(out, &bytes);
    bool ok;
    if (stream == NULL) return ls_node_fail(node, LS_ERR_NOMEM, err, "cannot write this value");
    ok = write_value(stream, node->doc, json_of(node));
    if (fclose(stream) == 0 && ok) return LS_OK;
    free(*out);
    *out = NULL;
    return ls_node_fail(node, LS_ERR_NOMEM, err, "cannot write this value");
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
