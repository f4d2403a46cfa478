/* Values of templates as text: str() and repr() of Python, json.dumps. Owns nothing. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "template/template_value.h"
#include "text/unicode.h"

enum { NUMBER_MAX = 64 };

/* repr of a float: the fewest digits that read back, with an exponent below 1e-4 and from 1e16 on. */
static void write_real(char out[NUMBER_MAX], double value) {
    char digits[NUMBER_MAX];
    int n = 1, exponent;
    if (isnan(value) || isinf(value)) {
        snprintf(out, NUMBER_MAX, "%s", isnan(value) ? "nan" : value < 0 ? "-inf" : "inf");
        return;
    }
    do {
        snprintf(digits, sizeof digits, "%.*e", n - 1, value);
    } while (strtod(digits, NULL) != value && ++n <= 17);
    exponent = atoi(strchr(digits, 'e') + 1);
    if (exponent < -4 || exponent >= 16) {
        const char *e = strchr(digits, 'e');
        snprintf(out, NUMBER_MAX, "%.*se%c%02d", (int)(e - digits), digits, exponent < 0 ? '-' : '+', abs(exponent));
        return;
    }
    snprintf(out, NUMBER_MAX, "%.*f", n - 1 - exponent > 1 ? n - 1 - exponent : 1, value);
}

static ls_status write_number(ls_tpl_run *run, const ls_tpl_value *v, ls_tpl_text *out) {
    char text[NUMBER_MAX];
    if (v->kind == LS_TPL_FLOAT)
        write_real(text, v->real);
    else
        snprintf(text, sizeof text, "%lld", (long long)v->integer);
    return ls_tpl_append_string(run, out, text);
}

static ls_status write_escape(ls_tpl_run *run, ls_tpl_text *out, int32_t code) {
    char text[16];
    if (code < 0x100)
        snprintf(text, sizeof text, "\\x%02x", (unsigned)code);
    else
        snprintf(text, sizeof text, code < 0x10000 ? "\\u%04x" : "\\U%08x", (unsigned)code);
    return ls_tpl_append_string(run, out, text);
}

/* repr of a text. */
static ls_status write_quoted(ls_tpl_run *run, const ls_tpl_value *v, ls_tpl_text *out) {
    const bool is_double =
        memchr(v->text, '\'', (size_t)v->bytes) != NULL && memchr(v->text, '"', (size_t)v->bytes) == NULL;
    const char quote[2] = {is_double ? '"' : '\'', '\0'};
    LS_TRY(ls_tpl_append(run, out, quote, 1));
    for (int64_t at = 0; at < v->bytes;) {
        int32_t code;
        const int64_t used = ls_utf8_decode((const uint8_t *)v->text + at, v->bytes - at, &code);
        const char c = v->text[at];
        if (c == '\\' || c == quote[0]) LS_TRY(ls_tpl_append(run, out, "\\", 1));
        if (c == '\n' || c == '\r' || c == '\t')
            LS_TRY(ls_tpl_append_string(run, out, c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t"));
        else if (code < 0x20 || !ls_code_is_printable(code))
            LS_TRY(write_escape(run, out, code));
        else
            LS_TRY(ls_tpl_append(run, out, v->text + at, used));
        at += used;
    }
    return ls_tpl_append(run, out, quote, 1);
}

static ls_status enter_written(ls_tpl_run *run) {
    LS_TRY(ls_tpl_step(run, 1));
    if (++run->depth <= LS_TPL_DEPTH_MAX) return LS_OK;
    return ls_tpl_fail(run, LS_ERR_CAPACITY, "values nest more than %d deep", LS_TPL_DEPTH_MAX);
}

static ls_status write_repr(ls_tpl_run *run, const ls_tpl_value *v, ls_tpl_text *out);

static ls_status repr_list(ls_tpl_run *run, const ls_tpl_list *list, ls_tpl_text *out) {
    const bool is_tuple = list->form == LS_TPL_FORM_TUPLE;
    LS_TRY(ls_tpl_append_string(run, out, is_tuple ? "(" : "["));
    for (int64_t i = 0; i < list->n; i++) {
        if (i > 0) LS_TRY(ls_tpl_append_string(run, out, ", "));
        LS_TRY(write_repr(run, &list->items[i], out));
    }
    return ls_tpl_append_string(run, out, !is_tuple ? "]" : list->n == 1 ? ",)" : ")");
}

static ls_status repr_dict(ls_tpl_run *run, const ls_tpl_dict *dict, ls_tpl_text *out) {
    LS_TRY(ls_tpl_append_string(run, out, "{"));
    for (int64_t i = 0; i < dict->n; i++) {
        if (i > 0) LS_TRY(ls_tpl_append_string(run, out, ", "));
        LS_TRY(write_repr(run, &dict->entries[i].key, out));
        LS_TRY(ls_tpl_append_string(run, out, ": "));
        LS_TRY(write_repr(run, &dict->entries[i].value, out));
    }
    return ls_tpl_append_string(run, out, "}");
}

static ls_status write_repr(ls_tpl_run *run, const ls_tpl_value *v, ls_tpl_text *out) {
    ls_status status;
    LS_TRY(enter_written(run));
    if (v->kind == LS_TPL_UNDEFINED)
        status = ls_tpl_append_string(run, out, "Undefined");
    else if (v->kind == LS_TPL_TEXT && v->markup)
        status = ls_tpl_fail(run, LS_ERR_UNSUPPORTED, "a text that is safe, within a list or a dict, as text");
    else if (v->kind == LS_TPL_TEXT)
        status = write_quoted(run, v, out);
    else
        status = ls_tpl_str(run, v, out);
    run->depth--;
    return status;
}

ls_status ls_tpl_str(ls_tpl_run *run, const ls_tpl_value *v, ls_tpl_text *out) {
    switch (v->kind) {
        case LS_TPL_UNDEFINED: return LS_OK;
        case LS_TPL_NONE: return ls_tpl_append_string(run, out, "None");
        case LS_TPL_BOOL: return ls_tpl_append_string(run, out, v->integer != 0 ? "True" : "False");
        case LS_TPL_INT:
        case LS_TPL_FLOAT: return write_number(run, v, out);
        case LS_TPL_TEXT: return ls_tpl_append(run, out, v->text, v->bytes);
        case LS_TPL_LIST:
            if (v->list->form <= LS_TPL_FORM_TUPLE) return repr_list(run, v->list, out);
            break;
        case LS_TPL_DICT: return repr_dict(run, v->dict, out);
        case LS_TPL_NAMESPACE:
        case LS_TPL_FUNCTION:
        case LS_TPL_METHOD:
        case LS_TPL_CALLABLE:
        case LS_TPL_LOOP: break;
    }
    return ls_tpl_fail(run, LS_ERR_UNSUPPORTED, "%s as text is not supported", ls_tpl_kind_name(v));
}

ls_status ls_tpl_str_value(ls_tpl_run *run, const ls_tpl_value *v, ls_tpl_value *out) {
    ls_tpl_text text = {0};
    if (v->kind == LS_TPL_TEXT) {
        *out = *v;
        return LS_OK;
    }
    LS_TRY(ls_tpl_str(run, v, &text));
    *out = ls_tpl_built(&text);
    return LS_OK;
}

/* ---- JSON ---- */

static ls_status json_escape(ls_tpl_run *run, ls_tpl_text *out, int32_t code) {
    char text[16];
    if (code < 0x10000)
        snprintf(text, sizeof text, "\\u%04x", (unsigned)code);
    else
        snprintf(text, sizeof text, "\\u%04x\\u%04x", (unsigned)(0xD800 + ((code - 0x10000) >> 10)),
                 (unsigned)(0xDC00 + ((code - 0x10000) & 0x3FF)));
    return ls_tpl_append_string(run, out, text);
}

static ls_status json_text(ls_tpl_run *run, const ls_tpl_value *v, bool ascii, ls_tpl_text *out) {
    static const char from[] = "\"\\\n\r\t\b\f", to[] = "\"\\nrtbf";
    LS_TRY(ls_tpl_append(run, out, "\"", 1));
    for (int64_t at = 0; at < v->bytes;) {
        int32_t code;
        const int64_t used = ls_utf8_decode((const uint8_t *)v->text + at, v->bytes - at, &code);
        const char *found = code > 0 && code < 0x80 ? strchr(from, (char)code) : NULL;
        if (found != NULL) {
            const char escape[2] = {'\\', to[found - from]};
            LS_TRY(ls_tpl_append(run, out, escape, 2));
        } else if (code < 0x20 || (ascii && code > 0x7E)) {
            LS_TRY(json_escape(run, out, code));
        } else {
            LS_TRY(ls_tpl_append(run, out, v->text + at, used));
        }
        at += used;
    }
    return ls_tpl_append(run, out, "\"", 1);
}

static ls_status new_line(ls_tpl_run *run, const ls_tpl_json_style *style, int32_t level, ls_tpl_text *out) {
    if (style->indent == NULL) return LS_OK;
    LS_TRY(ls_tpl_append(run, out, "\n", 1));
    for (int32_t i = 0; i < level; i++) LS_TRY(ls_tpl_append(run, out, style->indent, style->indent_bytes));
    return LS_OK;
}

static ls_status json_value(ls_tpl_run *run, const ls_tpl_value *v, const ls_tpl_json_style *style, int32_t level,
                            ls_tpl_text *out);

static ls_status json_list(ls_tpl_run *run, const ls_tpl_list *list, const ls_tpl_json_style *style, int32_t level,
                           ls_tpl_text *out) {
    if (list->n == 0) return ls_tpl_append_string(run, out, "[]");
    LS_TRY(ls_tpl_append(run, out, "[", 1));
    for (int64_t i = 0; i < list->n; i++) {
        if (i > 0) LS_TRY(ls_tpl_append(run, out, style->item_separator.text, style->item_separator.bytes));
        LS_TRY(new_line(run, style, level + 1, out));
        LS_TRY(json_value(run, &list->items[i], style, level + 1, out));
    }
    LS_TRY(new_line(run, style, level, out));
    return ls_tpl_append(run, out, "]", 1);
}

static ls_status json_key(ls_tpl_run *run, const ls_tpl_value *key, bool ascii, ls_tpl_text *out) {
    ls_tpl_text text = {0};
    ls_tpl_value built;
    if (key->kind == LS_TPL_TEXT) return json_text(run, key, ascii, out);
    if (key->kind == LS_TPL_NONE) return ls_tpl_append_string(run, out, "\"null\"");
    if (key->kind == LS_TPL_BOOL) return ls_tpl_append_string(run, out, key->integer != 0 ? "\"true\"" : "\"false\"");
    LS_TRY(write_number(run, key, &text));
    built = ls_tpl_built(&text);
    return json_text(run, &built, ascii, out);
}

static ls_status sort_entries(ls_tpl_run *run, const ls_tpl_dict *dict, ls_tpl_entry **out) {
    ls_tpl_entry *sorted;
    LS_TRY(ls_tpl_alloc(run, (void **)&sorted, dict->n, sizeof *sorted));
    for (int64_t i = 0; i < dict->n; i++) {
        int64_t at = i;
        for (; at > 0; at--) {
            int order;
            LS_TRY(ls_tpl_compare(run, &sorted[at - 1].key, &dict->entries[i].key, &order));
            if (order <= 0) break;
            sorted[at] = sorted[at - 1];
        }
        sorted[at] = dict->entries[i];
    }
    *out = sorted;
    return LS_OK;
}

static ls_status json_dict(ls_tpl_run *run, const ls_tpl_dict *dict, const ls_tpl_json_style *style, int32_t level,
                           ls_tpl_text *out) {
    ls_tpl_entry *entries = dict->entries;
    if (dict->n == 0) return ls_tpl_append_string(run, out, "{}");
    if (style->sorted) LS_TRY(sort_entries(run, dict, &entries));
    LS_TRY(ls_tpl_append(run, out, "{", 1));
    for (int64_t i = 0; i < dict->n; i++) {
        if (i > 0) LS_TRY(ls_tpl_append(run, out, style->item_separator.text, style->item_separator.bytes));
        LS_TRY(new_line(run, style, level + 1, out));
        LS_TRY(json_key(run, &entries[i].key, style->ascii, out));
        LS_TRY(ls_tpl_append(run, out, style->key_separator.text, style->key_separator.bytes));
        LS_TRY(json_value(run, &entries[i].value, style, level + 1, out));
    }
    LS_TRY(new_line(run, style, level, out));
    return ls_tpl_append(run, out, "}", 1);
}

static ls_status json_real(ls_tpl_run *run, double value, ls_tpl_text *out) {
    const ls_tpl_value v = ls_tpl_real(value);
    if (isnan(value)) return ls_tpl_append_string(run, out, "NaN");
    if (isinf(value)) return ls_tpl_append_string(run, out, value < 0 ? "-Infinity" : "Infinity");
    return write_number(run, &v, out);
}

static ls_status json_value(ls_tpl_run *run, const ls_tpl_value *v, const ls_tpl_json_style *style, int32_t level,
                            ls_tpl_text *out) {
    LS_TRY(ls_tpl_step(run, 1));
    if (level > LS_TPL_DEPTH_MAX)
        return ls_tpl_fail(run, LS_ERR_CAPACITY, "values nest more than %d deep", LS_TPL_DEPTH_MAX);
    if (v->kind == LS_TPL_NONE) return ls_tpl_append_string(run, out, "null");
    if (v->kind == LS_TPL_BOOL) return ls_tpl_append_string(run, out, v->integer != 0 ? "true" : "false");
    if (v->kind == LS_TPL_INT) return write_number(run, v, out);
    if (v->kind == LS_TPL_FLOAT) return json_real(run, v->real, out);
    if (v->kind == LS_TPL_TEXT) return json_text(run, v, style->ascii, out);
    if (v->kind == LS_TPL_LIST && v->list->form <= LS_TPL_FORM_TUPLE) return json_list(run, v->list, style, level, out);
    if (v->kind == LS_TPL_DICT) return json_dict(run, v->dict, style, level, out);
    return ls_tpl_fail(run, LS_ERR_ARG, "tojson: %s is nothing that JSON has", ls_tpl_kind_name(v));
}

ls_status ls_tpl_json(ls_tpl_run *run, const ls_tpl_value *v, const ls_tpl_json_style *style, ls_tpl_text *out) {
    return json_value(run, v, style, 0, out);
}
