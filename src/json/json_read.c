/* JSON from outside: one strict parse and the wording of its errors. Owns the choice of the library's flags. */
#include "json/json_read.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/other_forms.h"

/* Numbers that Python's json writes and reads, and JSON does not have. */
static const char *not_a_number(const char *text, int64_t bytes, const json_error_t *at) {
    static const char *const words[] = {"Infinity", "-Infinity", "NaN"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        const int64_t n = (int64_t)strlen(words[i]);
        for (int64_t from = at->position - n; from <= at->position; from++)
            if (from >= 0 && from + n <= bytes && memcmp(text + from, words[i], (size_t)n) == 0) return words[i];
    }
    return NULL;
}

static ls_status fail_syntax(const char *text, int64_t bytes, const char *name, const json_error_t *at, ls_error *err) {
    const char *is = ls_foreign_bytes(text, bytes), *word = not_a_number(text, bytes, at);
    if (is != NULL) return LS_FAIL(err, LS_ERR_FORMAT, "%s: %s", name, is);
    if (word != NULL)
        return LS_FAIL(err, LS_ERR_FORMAT,
                       "%s: invalid JSON at line %d, column %d: %s, which Python writes, is no JSON; "
                       "null or a number is",
                       name, at->line, at->column, word);
    return LS_FAIL(err, LS_ERR_FORMAT, "%s: invalid JSON at line %d, column %d: %s", name, at->line, at->column,
                   at->text);
}

static ls_status parse_json(struct json_t **out, const char *text, int64_t bytes, size_t flags, const char *name,
                            ls_error *err) {
    json_error_t json_err;
    json_t *json;
    *out = NULL;
    if (bytes <= 0) return LS_FAIL(err, LS_ERR_FORMAT, "%s: empty, expected a JSON object", name);
    json = json_loadb(text, (size_t)bytes, JSON_REJECT_DUPLICATES | flags, &json_err);
    if (json == NULL) return fail_syntax(text, bytes, name, &json_err, err);
    if (!json_is_object(json)) {
        json_decref(json);
        return LS_FAIL(err, LS_ERR_FORMAT, "%s: the JSON value is an array, expected an object", name);
    }
    *out = json;
    return LS_OK;
}

ls_status ls_json_parse(struct json_t **out, const char *text, int64_t bytes, const char *name, ls_error *err) {
    return parse_json(out, text, bytes, 0, name, err);
}

ls_status ls_json_parse_with_nul(struct json_t **out, const char *text, int64_t bytes, const char *name,
                                 ls_error *err) {
    return parse_json(out, text, bytes, JSON_ALLOW_NUL, name, err);
}

void ls_json_release(struct json_t *json) { json_decref(json); }

const char *ls_json_show(const struct json_t *json, char out[LS_JSON_SHOW_MAX]) {
    switch (json_typeof(json)) {
        case JSON_OBJECT: snprintf(out, LS_JSON_SHOW_MAX, "an object of %zu members", json_object_size(json)); break;
        case JSON_ARRAY: snprintf(out, LS_JSON_SHOW_MAX, "a list of %zu items", json_array_size(json)); break;
        case JSON_STRING: snprintf(out, LS_JSON_SHOW_MAX, "\"%.60s\"", json_string_value(json)); break;
        case JSON_INTEGER: snprintf(out, LS_JSON_SHOW_MAX, "%lld", (long long)json_integer_value(json)); break;
        case JSON_REAL: snprintf(out, LS_JSON_SHOW_MAX, "%.17g", json_real_value(json)); break;
        case JSON_TRUE: snprintf(out, LS_JSON_SHOW_MAX, "true"); break;
        case JSON_FALSE: snprintf(out, LS_JSON_SHOW_MAX, "false"); break;
        case JSON_NULL: snprintf(out, LS_JSON_SHOW_MAX, "null"); break;
    }
    return out;
}
