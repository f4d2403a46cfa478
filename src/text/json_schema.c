/* Checking values against a schema by walking both. Owns the schema's document and its compiled patterns. */
#include "text/json_schema.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "json/json_node.h"
#include "text/regex.h"

enum { DEPTH_MAX = 64 };

/* Patterns by the schema's own text of them, so that each is compiled once. */
typedef struct pattern_entry {
    const char *text;
    ls_regex *regex;
    ls_regex_search *search;
} pattern_entry;

struct ls_json_schema {
    ls_json_doc *doc;
    pattern_entry *patterns;
    int64_t n_patterns, cap;
};

static const char *const known[] = {"type",
                                    "enum",
                                    "const",
                                    "properties",
                                    "required",
                                    "items",
                                    "additionalProperties",
                                    "minProperties",
                                    "maxProperties",
                                    "minItems",
                                    "maxItems",
                                    "minLength",
                                    "maxLength",
                                    "pattern",
                                    "minimum",
                                    "maximum",
                                    "exclusiveMinimum",
                                    "exclusiveMaximum",
                                    "multipleOf",
                                    "anyOf",
                                    "allOf",
                                    "oneOf",
                                    "not",
                                    "$schema",
                                    "$id",
                                    "title",
                                    "description",
                                    "default",
                                    "examples",
                                    "$comment",
                                    NULL};
static const char *const type_names[] = {"null", "boolean", "integer", "number", "string", "array", "object", NULL};
static const char *const counts[] = {"minProperties", "maxProperties", "minItems", "maxItems",
                                     "minLength",     "maxLength",     NULL};
static const char *const bounds[] = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", NULL};
static const char *const lists[] = {"anyOf", "allOf", "oneOf", NULL};
static const char *const schemas[] = {"items", "additionalProperties", "not", NULL};

static bool is_number(const ls_node *node) {
    return ls_node_kind_of(node) == LS_NODE_INT || ls_node_kind_of(node) == LS_NODE_REAL;
}

/* ---- the schema ---- */

static ls_status check_schema(ls_json_schema *s, const ls_node *node, int depth, ls_error *err);

static ls_status check_type(const ls_node *node, ls_error *err) {
    const char *text;
    LS_TRY(ls_node_string(node, &text, err));
    for (int i = 0; type_names[i] != NULL; i++)
        if (strcmp(type_names[i], text) == 0) return LS_OK;
    return ls_node_fail(node, LS_ERR_FORMAT, err, "'%.60s' is no type", text);
}

static ls_status check_types(const ls_node *object, ls_error *err) {
    ls_node types;
    if (!ls_node_get(object, "type", &types)) return LS_OK;
    if (ls_node_kind_of(&types) != LS_NODE_ARRAY) return check_type(&types, err);
    for (int64_t i = 0; i < ls_node_count(&types); i++) {
        const ls_node type = ls_node_at(&types, i);
        LS_TRY(check_type(&type, err));
    }
    return LS_OK;
}

static ls_status compile_pattern(ls_json_schema *s, const ls_node *object, ls_error *err) {
    ls_node node;
    const char *text;
    pattern_entry *entry;
    ls_status status;
    if (!ls_node_get(object, "pattern", &node)) return LS_OK;
    LS_TRY_DONE(ls_node_string(&node, &text, err));
    LS_TRY_DONE(ls_array_grow((void **)&s->patterns, &s->cap, s->n_patterns + 1, sizeof *s->patterns, "patterns", err));
    entry = &s->patterns[s->n_patterns++];
    *entry = (pattern_entry){.text = text};
    if ((status = ls_regex_compile_plain(&entry->regex, text, (int64_t)strlen(text), err)) != LS_OK) {
        ls_node_blame(&node, err);
        goto done;
    }
    LS_TRY_DONE(ls_regex_search_create(&entry->search, entry->regex, err));
done:
    return status;
}

static ls_status check_members(ls_json_schema *s, const ls_node *object, int depth, ls_error *err) {
    ls_node child, item;
    void *iterator = NULL;
    for (int i = 0; counts[i] != NULL; i++) {
        int64_t count;
        if (ls_node_get(object, counts[i], &child)) LS_TRY(ls_node_int(&child, 0, INT64_MAX, &count, err));
    }
    for (int i = 0; bounds[i] != NULL; i++)
        if (ls_node_get(object, bounds[i], &child) && !is_number(&child))
            return ls_node_fail(&child, LS_ERR_FORMAT, err, "a number is required");
    if (ls_node_get(object, "multipleOf", &child)) {
        char text[LS_DOUBLE_TEXT_MAX];
        const ls_json_decimal step = ls_node_decimal(&child, text);
        if (step.n == 0 || step.is_negative)
            return ls_node_fail(&child, LS_ERR_FORMAT, err, "a number above 0 is required");
        if (step.n > LS_DECIMAL_DIVISOR_DIGITS)
            return ls_node_fail(&child, LS_ERR_UNSUPPORTED, err, "a number of more than %d digits",
                                LS_DECIMAL_DIVISOR_DIGITS);
    }
    for (int i = 0; lists[i] != NULL; i++) {
        if (!ls_node_get(object, lists[i], &child)) continue;
        LS_TRY(ls_node_expect(&child, LS_NODE_ARRAY, err));
        for (int64_t k = 0; k < ls_node_count(&child); k++) {
            item = ls_node_at(&child, k);
            LS_TRY(check_schema(s, &item, depth + 1, err));
        }
    }
    for (int i = 0; schemas[i] != NULL; i++)
        if (ls_node_get(object, schemas[i], &child)) LS_TRY(check_schema(s, &child, depth + 1, err));
    if (ls_node_get(object, "enum", &child)) LS_TRY(ls_node_expect(&child, LS_NODE_ARRAY, err));
    if (ls_node_get(object, "required", &child)) {
        LS_TRY(ls_node_expect(&child, LS_NODE_ARRAY, err));
        for (int64_t k = 0; k < ls_node_count(&child); k++) {
            const char *name;
            item = ls_node_at(&child, k);
            LS_TRY(ls_node_string(&item, &name, err));
        }
    }
    if (!ls_node_get(object, "properties", &child)) return LS_OK;
    LS_TRY(ls_node_expect(&child, LS_NODE_OBJECT, err));
    while (ls_node_next(&child, &iterator, &item)) LS_TRY(check_schema(s, &item, depth + 1, err));
    return LS_OK;
}

static ls_status check_schema(ls_json_schema *s, const ls_node *node, int depth, ls_error *err) {
    if (depth > DEPTH_MAX) return ls_node_fail(node, LS_ERR_UNSUPPORTED, err, "more than %d schemas deep", DEPTH_MAX);
    if (ls_node_kind_of(node) == LS_NODE_BOOL) return LS_OK;
    LS_TRY(ls_node_expect(node, LS_NODE_OBJECT, err));
    LS_TRY(ls_node_only(node, known, err));
    LS_TRY(check_types(node, err));
    LS_TRY(compile_pattern(s, node, err));
    return check_members(s, node, depth, err);
}

ls_status ls_json_schema_parse(ls_json_schema **out, const char *text, int64_t bytes, const char *name, ls_error *err) {
    ls_json_schema *s = calloc(1, sizeof *s);
    ls_node root;
    ls_status status;
    *out = NULL;
    if (s == NULL) return LS_FAIL(err, LS_ERR_NOMEM, "%s: schema", name);
    LS_TRY_DONE(ls_json_doc_open_exact(&s->doc, text, bytes, name, err));
    root = ls_json_root(s->doc);
    LS_TRY_DONE(check_schema(s, &root, 0, err));
    *out = s;
    s = NULL;
done:
    ls_json_schema_free(s);
    return status;
}

void ls_json_schema_free(ls_json_schema *s) {
    if (s == NULL) return;
    for (int64_t i = 0; i < s->n_patterns; i++) {
        ls_regex_search_free(s->patterns[i].search);
        ls_regex_free(s->patterns[i].regex);
    }
    free(s->patterns);
    ls_json_doc_free(s->doc);
    free(s);
}

/* ---- values ---- */

static bool refuse_keyword(const ls_node *value, ls_error *err, const char *keyword) {
    (void)ls_node_fail(value, LS_ERR_FORMAT, err, "%s", keyword);
    return false;
}

static int compare_numbers(const ls_node *a, const ls_node *b) {
    char first[LS_DOUBLE_TEXT_MAX], second[LS_DOUBLE_TEXT_MAX];
    const ls_json_decimal x = ls_node_decimal(a, first), y = ls_node_decimal(b, second);
    return ls_json_decimal_compare(&x, &y);
}

static bool equal(const ls_node *a, const ls_node *b) {
    ls_node x, y;
    void *iterator = NULL;
    if (is_number(a) && is_number(b)) return compare_numbers(a, b) == 0;
    if (ls_node_kind_of(a) != ls_node_kind_of(b)) return false;
    if (ls_node_kind_of(a) == LS_NODE_ARRAY || ls_node_kind_of(a) == LS_NODE_OBJECT)
        if (ls_node_count(a) != ls_node_count(b)) return false;
    if (ls_node_kind_of(a) == LS_NODE_ARRAY) {
        for (int64_t i = 0; i < ls_node_count(a); i++) {
            x = ls_node_at(a, i);
            y = ls_node_at(b, i);
            if (!equal(&x, &y)) return false;
        }
        return true;
    }
    if (ls_node_kind_of(a) == LS_NODE_OBJECT) {
        while (ls_node_next(a, &iterator, &x))
            if (!ls_node_get(b, x.key, &y) || !equal(&x, &y)) return false;
        return true;
    }
    if (ls_node_kind_of(a) == LS_NODE_TEXT) {
        const char *s = "", *t = "";
        int64_t n = 0, m = 0;
        if (ls_node_text(a, &s, &n, NULL) != LS_OK || ls_node_text(b, &t, &m, NULL) != LS_OK) return false;
        return n == m && memcmp(s, t, (size_t)n) == 0;
    }
    if (ls_node_kind_of(a) == LS_NODE_BOOL) {
        bool s = false, t = false;
        return ls_node_bool(a, &s, NULL) == LS_OK && ls_node_bool(b, &t, NULL) == LS_OK && s == t;
    }
    return true; /* null */
}

static bool is_type(const ls_node *value, const ls_node *type) {
    static const ls_node_kind kinds[] = {LS_NODE_NULL, LS_NODE_BOOL,  LS_NODE_INT,   LS_NODE_REAL,
                                         LS_NODE_TEXT, LS_NODE_ARRAY, LS_NODE_OBJECT};
    const char *name = "";
    int i = 0;
    if (ls_node_string(type, &name, NULL) != LS_OK) return false;
    while (strcmp(type_names[i], name) != 0) i++;
    if (kinds[i] == LS_NODE_REAL) return is_number(value);
    if (kinds[i] == LS_NODE_INT && ls_node_kind_of(value) == LS_NODE_REAL) {
        char text[LS_DOUBLE_TEXT_MAX];
        const ls_json_decimal x = ls_node_decimal(value, text);
        return ls_json_decimal_is_integer(&x);
    }
    return ls_node_kind_of(value) == kinds[i];
}

static bool accepts_type(const ls_node *schema, const ls_node *value, ls_error *err) {
    ls_node types, type;
    if (!ls_node_get(schema, "type", &types)) return true;
    if (ls_node_kind_of(&types) != LS_NODE_ARRAY)
        return is_type(value, &types) || refuse_keyword(value, err, "is of another type");
    for (int64_t i = 0; i < ls_node_count(&types); i++) {
        type = ls_node_at(&types, i);
        if (is_type(value, &type)) return true;
    }
    return refuse_keyword(value, err, "is of another type");
}

static bool accepts_constant(const ls_node *schema, const ls_node *value, ls_error *err) {
    ls_node list, item;
    if (ls_node_get(schema, "const", &item) && !equal(&item, value))
        return refuse_keyword(value, err, "is not the constant");
    if (!ls_node_get(schema, "enum", &list)) return true;
    for (int64_t i = 0; i < ls_node_count(&list); i++) {
        item = ls_node_at(&list, i);
        if (equal(&item, value)) return true;
    }
    return refuse_keyword(value, err, "is none of the enum");
}

static bool within(const ls_node *schema, const char *low, const char *high, int64_t n) {
    ls_node bound;
    int64_t limit = 0;
    if (ls_node_get(schema, low, &bound) && ls_node_int(&bound, 0, INT64_MAX, &limit, NULL) == LS_OK && n < limit)
        return false;
    if (ls_node_get(schema, high, &bound) && ls_node_int(&bound, 0, INT64_MAX, &limit, NULL) == LS_OK && n > limit)
        return false;
    return true;
}

static bool accepts_number(const ls_node *schema, const ls_node *value, ls_error *err) {
    ls_node b;
    if ((ls_node_get(schema, "minimum", &b) && compare_numbers(value, &b) < 0) ||
        (ls_node_get(schema, "maximum", &b) && compare_numbers(value, &b) > 0) ||
        (ls_node_get(schema, "exclusiveMinimum", &b) && compare_numbers(value, &b) <= 0) ||
        (ls_node_get(schema, "exclusiveMaximum", &b) && compare_numbers(value, &b) >= 0))
        return refuse_keyword(value, err, "is beyond a bound");
    if (ls_node_get(schema, "multipleOf", &b)) {
        char first[LS_DOUBLE_TEXT_MAX], second[LS_DOUBLE_TEXT_MAX];
        const ls_json_decimal x = ls_node_decimal(value, first), y = ls_node_decimal(&b, second);
        if (!ls_json_decimal_is_multiple(&x, &y)) return refuse_keyword(value, err, "is no multiple");
    }
    return true;
}

static bool accepts_text(const ls_json_schema *s, const ls_node *schema, const ls_node *value, ls_error *err) {
    const char *text = "", *pattern = NULL;
    int64_t bytes = 0, n = 0, begin, end;
    bool found = false;
    ls_node node;
    if (ls_node_text(value, &text, &bytes, err) != LS_OK) return false;
    for (int64_t at = 0; at < bytes; n++) {
        int32_t code;
        at += ls_utf8_decode((const uint8_t *)text + at, bytes - at, &code);
    }
    if (!within(schema, "minLength", "maxLength", n)) return refuse_keyword(value, err, "is too short or too long");
    if (!ls_node_get(schema, "pattern", &node) || ls_node_string(&node, &pattern, err) != LS_OK) return true;
    for (int64_t i = 0; i < s->n_patterns; i++)
        if (s->patterns[i].text == pattern)
            return (ls_regex_find(s->patterns[i].search, text, bytes, 0, &found, &begin, &end, NULL) == LS_OK &&
                    found) ||
                   refuse_keyword(value, err, "does not have the pattern");
    return refuse_keyword(value, err, "has a pattern that is not known");
}

static bool accepts(const ls_json_schema *s, const ls_node *schema, const ls_node *value, ls_error *err);

static bool accepts_array(const ls_json_schema *s, const ls_node *schema, const ls_node *value, ls_error *err) {
    ls_node items, item;
    if (!within(schema, "minItems", "maxItems", ls_node_count(value)))
        return refuse_keyword(value, err, "has too few or too many items");
    if (!ls_node_get(schema, "items", &items)) return true;
    for (int64_t i = 0; i < ls_node_count(value); i++) {
        item = ls_node_at(value, i);
        if (!accepts(s, &items, &item, err)) return false;
    }
    return true;
}

static bool accepts_object(const ls_json_schema *s, const ls_node *schema, const ls_node *value, ls_error *err) {
    ls_node list, name, properties, others, child, rule;
    void *iterator = NULL;
    const char *text = "";
    const bool has_properties = ls_node_get(schema, "properties", &properties);
    const bool has_others = ls_node_get(schema, "additionalProperties", &others);
    if (!within(schema, "minProperties", "maxProperties", ls_node_count(value)))
        return refuse_keyword(value, err, "has too few or too many members");
    if (ls_node_get(schema, "required", &list))
        for (int64_t i = 0; i < ls_node_count(&list); i++) {
            name = ls_node_at(&list, i);
            if (ls_node_string(&name, &text, NULL) != LS_OK || !ls_node_get(value, text, &child))
                return refuse_keyword(value, err, "lacks a required member");
        }
    while (ls_node_next(value, &iterator, &child)) {
        if (has_properties && ls_node_get(&properties, child.key, &rule)) {
            if (!accepts(s, &rule, &child, err)) return false;
        } else if (has_others && !accepts(s, &others, &child, err)) {
            return false;
        }
    }
    return true;
}

static int64_t count_accepting(const ls_json_schema *s, const ls_node *list, const ls_node *value) {
    int64_t n = 0;
    for (int64_t i = 0; i < ls_node_count(list); i++) {
        const ls_node item = ls_node_at(list, i);
        n += accepts(s, &item, value, NULL);
    }
    return n;
}

static bool accepts_combined(const ls_json_schema *s, const ls_node *schema, const ls_node *value, ls_error *err) {
    ls_node list;
    if (ls_node_get(schema, "allOf", &list) && count_accepting(s, &list, value) < ls_node_count(&list))
        return refuse_keyword(value, err, "is not of all forms");
    if (ls_node_get(schema, "anyOf", &list) && count_accepting(s, &list, value) < 1)
        return refuse_keyword(value, err, "is of none of the forms");
    if (ls_node_get(schema, "oneOf", &list) && count_accepting(s, &list, value) != 1)
        return refuse_keyword(value, err, "is not of exactly one of the forms");
    if (ls_node_get(schema, "not", &list) && accepts(s, &list, value, NULL))
        return refuse_keyword(value, err, "is of a form that is ruled out");
    return true;
}

static bool accepts(const ls_json_schema *s, const ls_node *schema, const ls_node *value, ls_error *err) {
    bool all = true;
    if (ls_node_kind_of(schema) == LS_NODE_BOOL)
        return (ls_node_bool(schema, &all, NULL) == LS_OK && all) || refuse_keyword(value, err, "may not be there");
    if (!accepts_type(schema, value, err) || !accepts_constant(schema, value, err) ||
        !accepts_combined(s, schema, value, err))
        return false;
    switch (ls_node_kind_of(value)) {
        case LS_NODE_INT:
        case LS_NODE_REAL: return accepts_number(schema, value, err);
        case LS_NODE_TEXT: return accepts_text(s, schema, value, err);
        case LS_NODE_ARRAY: return accepts_array(s, schema, value, err);
        case LS_NODE_OBJECT: return accepts_object(s, schema, value, err);
        case LS_NODE_NULL:
        case LS_NODE_BOOL: break;
    }
    return true;
}

/* The parser takes objects: the value becomes the one member of one. More than one says that the text was no value. */
bool ls_json_schema_accepts(const ls_json_schema *s, const char *text, int64_t bytes, ls_error *err) {
    static const char before[] = "{\"value\":";
    const int64_t n = (int64_t)sizeof before - 1;
    ls_json_doc *doc = NULL;
    char *wrapped = NULL;
    ls_node root, value, schema = ls_json_root(s->doc);
    bool ok = false;
    if (ls_array_alloc((void **)&wrapped, bytes + n + 1, 1, "value", err) != LS_OK) return false;
    memcpy(wrapped, before, (size_t)n);
    if (bytes > 0) memcpy(wrapped + n, text, (size_t)bytes);
    wrapped[n + bytes] = '}';
    if (ls_json_doc_open_exact(&doc, wrapped, bytes + n + 1, "value", err) == LS_OK) {
        root = ls_json_root(doc);
        if (ls_node_count(&root) == 1 && ls_node_get(&root, "value", &value))
            ok = accepts(s, &schema, &value, err);
        else
            (void)LS_FAIL(err, LS_ERR_FORMAT, "no single JSON value");
    }
    ls_json_doc_free(doc);
    free(wrapped);
    return ok;
}
