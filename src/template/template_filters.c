/* Filters; owns nothing. */
#include "template/template_filters.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "template/template_methods.h"
#include "template/template_string.h"
#include "template/template_tests.h"

/* run: who it is for; v: the value; args: the rest; o: the result. */
#define FILTER(name) \
    static ls_status name(ls_tpl_run *run, const ls_tpl_value *v, const ls_tpl_args *args, ls_tpl_value *o)
#define BIND(what, names, least)                  \
    const ls_tpl_value *a[LS_TPL_PARAMETERS_MAX]; \
    LS_TRY(ls_tpl_bind(run, what, args, names, least, a))

static bool truth_of(const ls_tpl_value *v) { return v != NULL && ls_tpl_truth(v); }

/* The value as text, which `safe` has not touched. */
static ls_status soft_text(ls_tpl_run *run, const char *what, const ls_tpl_value *v, ls_tpl_value *out) {
    LS_TRY(ls_tpl_str_value(run, v, out));
    return ls_tpl_want_text(run, what, out);
}

/* ---- texts ---- */

static ls_status change_case(ls_tpl_run *run, const ls_tpl_value *v, const ls_tpl_args *args, ls_tpl_case to,
                             ls_tpl_value *o) {
    ls_tpl_value text;
    BIND("a change of case", "", 0);
    LS_TRY(soft_text(run, "a change of case", v, &text));
    return ls_tpl_change_case(run, &text, to, o);
}

FILTER(f_upper) { return change_case(run, v, args, LS_TPL_TO_UPPER, o); }

FILTER(f_lower) { return change_case(run, v, args, LS_TPL_TO_LOWER, o); }

FILTER(f_capitalize) { return change_case(run, v, args, LS_TPL_TO_CAPITALIZED, o); }

FILTER(f_title) { return change_case(run, v, args, LS_TPL_TO_WORD_CASE, o); }

FILTER(f_trim) {
    ls_tpl_value text;
    BIND("trim", "chars", 0);
    LS_TRY(soft_text(run, "trim", v, &text));
    if (a[0] != NULL && a[0]->kind == LS_TPL_NONE) a[0] = NULL;
    if (a[0] != NULL) LS_TRY(ls_tpl_want_text(run, "trim", a[0]));
    *o = ls_tpl_strip(&text, a[0], LS_TPL_LEFT | LS_TPL_RIGHT);
    return LS_OK;
}

FILTER(f_replace) {
    ls_tpl_value text, from, to;
    int64_t count = -1;
    BIND("replace", "old new count", 2);
    LS_TRY(soft_text(run, "replace", v, &text));
    LS_TRY(soft_text(run, "replace", a[0], &from));
    LS_TRY(soft_text(run, "replace", a[1], &to));
    if (a[2] != NULL && a[2]->kind != LS_TPL_NONE) LS_TRY(ls_tpl_want_int(run, "replace", a[2], &count));
    return ls_tpl_replace(run, &text, &from, &to, count, o);
}

FILTER(f_string) {
    BIND("string", "", 0);
    return ls_tpl_str_value(run, v, o);
}

FILTER(f_safe) {
    BIND("safe", "", 0);
    LS_TRY(ls_tpl_str_value(run, v, o));
    o->markup = true;
    return LS_OK;
}

/* `n` spaces as a text. */
static ls_status spaces(ls_tpl_run *run, int64_t n, ls_tpl_value *out) {
    ls_tpl_text text = {0};
    LS_TRY(ls_tpl_step(run, n > 0 ? n : 0));
    for (int64_t i = 0; i < n; i++) LS_TRY(ls_tpl_append(run, &text, " ", 1));
    *out = ls_tpl_built(&text);
    return LS_OK;
}

static ls_status width_of(ls_tpl_run *run, const char *what, const ls_tpl_value *v, ls_tpl_value *out) {
    int64_t n;
    *out = *v;
    if (v->kind == LS_TPL_TEXT) return ls_tpl_want_text(run, what, v);
    LS_TRY(ls_tpl_want_int(run, what, v, &n));
    return spaces(run, n, out);
}

FILTER(f_indent) {
    const ls_tpl_value four = ls_tpl_int(4);
    ls_tpl_value text, indent, lines;
    ls_tpl_text whole = {0}, out = {0};
    BIND("indent", "width first blank", 0);
    if (v->kind != LS_TPL_TEXT && v->kind != LS_TPL_UNDEFINED) return ls_tpl_want_text(run, "indent", v);
    LS_TRY(soft_text(run, "indent", v, &text));
    LS_TRY(width_of(run, "indent", a[0] != NULL ? a[0] : &four, &indent));
    /* The newline more is Jinja's: a text that ends with one keeps it. */
    LS_TRY(ls_tpl_append(run, &whole, text.text, text.bytes));
    LS_TRY(ls_tpl_append(run, &whole, "\n", 1));
    text = ls_tpl_built(&whole);
    LS_TRY(ls_tpl_split_lines(run, &text, &lines));
    for (int64_t i = 0; i < lines.list->n; i++) {
        const ls_tpl_value *line = &lines.list->items[i];
        if (i > 0) LS_TRY(ls_tpl_append(run, &out, "\n", 1));
        if (i > 0 ? truth_of(a[2]) || line->bytes > 0 : truth_of(a[1]))
            LS_TRY(ls_tpl_append(run, &out, indent.text, indent.bytes));
        LS_TRY(ls_tpl_append(run, &out, line->text, line->bytes));
    }
    *o = ls_tpl_built(&out);
    return LS_OK;
}

/* Spaces for a number, the text itself, or nothing for none. */
static ls_status json_indent(ls_tpl_run *run, const ls_tpl_value *v, ls_tpl_json_style *style) {
    ls_tpl_value indent;
    if (v == NULL || v->kind == LS_TPL_NONE) return LS_OK;
    LS_TRY(width_of(run, "tojson: indent", v, &indent));
    style->indent = indent.text;
    style->indent_bytes = indent.bytes;
    style->item_separator = ls_tpl_string(",");
    return LS_OK;
}

FILTER(f_tojson) {
    ls_tpl_json_style style = {.item_separator = ls_tpl_string(", "), .key_separator = ls_tpl_string(": ")};
    ls_tpl_text text = {0};
    BIND("tojson", "ensure_ascii indent separators sort_keys", 0);
    style.ascii = truth_of(a[0]);
    style.sorted = truth_of(a[3]);
    LS_TRY(json_indent(run, a[1], &style));
    if (a[2] != NULL && a[2]->kind != LS_TPL_NONE) {
        if (a[2]->kind != LS_TPL_LIST || a[2]->list->n != 2)
            return ls_tpl_fail(run, LS_ERR_ARG, "tojson: separators are two texts");
        style.item_separator = a[2]->list->items[0];
        style.key_separator = a[2]->list->items[1];
        LS_TRY(ls_tpl_want_text(run, "tojson: separators", &style.item_separator));
        LS_TRY(ls_tpl_want_text(run, "tojson: separators", &style.key_separator));
    }
    LS_TRY(ls_tpl_json(run, v, &style, &text));
    *o = ls_tpl_built(&text);
    return LS_OK;
}

/* ---- numbers ---- */

/* int(text) or float(text) of Python, white space around it. */
static bool read_int(const ls_tpl_value *v, int64_t *out) {
    const ls_tpl_value text = ls_tpl_strip(v, NULL, LS_TPL_LEFT | LS_TPL_RIGHT);
    char digits[32], *end;
    if (text.bytes == 0 || text.bytes >= (int64_t)sizeof digits) return false;
    memcpy(digits, text.text, (size_t)text.bytes);
    digits[text.bytes] = '\0';
    if (strspn(digits, "+-0123456789") != (size_t)text.bytes) return false;
    errno = 0;
    *out = strtoll(digits, &end, 10);
    return *end == '\0' && errno == 0;
}

static bool read_real(const ls_tpl_value *v, double *out) {
    const ls_tpl_value text = ls_tpl_strip(v, NULL, LS_TPL_LEFT | LS_TPL_RIGHT);
    char digits[64], *end;
    if (text.bytes == 0 || text.bytes >= (int64_t)sizeof digits) return false;
    memcpy(digits, text.text, (size_t)text.bytes);
    digits[text.bytes] = '\0';
    if (strspn(digits, "+-0123456789.eE") != (size_t)text.bytes) return false;
    *out = strtod(digits, &end);
    return *end == '\0';
}

FILTER(f_int) {
    double real = ls_tpl_is_number(v) ? ls_tpl_number(v) : 0;
    int64_t whole;
    BIND("int", "default base", 0);
    if (a[1] != NULL && (a[1]->kind != LS_TPL_INT || a[1]->integer != 10))
        return ls_tpl_fail(run, LS_ERR_UNSUPPORTED, "int: a base but 10 is not supported");
    *o = a[0] != NULL ? *a[0] : ls_tpl_int(0);
    if (v->kind == LS_TPL_INT || v->kind == LS_TPL_BOOL) {
        *o = ls_tpl_int(v->integer);
        return LS_OK;
    }
    if (v->kind == LS_TPL_TEXT && read_int(v, &whole)) {
        *o = ls_tpl_int(whole);
        return LS_OK;
    }
    if (v->kind != LS_TPL_FLOAT && (v->kind != LS_TPL_TEXT || !read_real(v, &real))) return LS_OK;
    if (!(fabs(real) < 9e18)) return ls_tpl_fail(run, LS_ERR_UNSUPPORTED, "int: %g is beyond 64 bits", real);
    *o = ls_tpl_int((int64_t)real);
    return LS_OK;
}

FILTER(f_float) {
    double real;
    BIND("float", "default", 0);
    *o = a[0] != NULL ? *a[0] : ls_tpl_real(0.0);
    if (ls_tpl_is_number(v))
        *o = ls_tpl_real(ls_tpl_number(v));
    else if (v->kind == LS_TPL_TEXT && read_real(v, &real))
        *o = ls_tpl_real(real);
    return LS_OK;
}

FILTER(f_abs) {
    BIND("abs", "", 0);
    if (!ls_tpl_is_number(v) || (v->kind == LS_TPL_INT && v->integer == INT64_MIN))
        return ls_tpl_fail(run, LS_ERR_ARG, "abs needs a number, not %s", ls_tpl_kind_name(v));
    *o = v->kind == LS_TPL_FLOAT ? ls_tpl_real(fabs(v->real)) : ls_tpl_int(v->integer < 0 ? -v->integer : v->integer);
    return LS_OK;
}

FILTER(f_round) {
    char text[400];
    double scale;
    int64_t digits = 0;
    BIND("round", "precision method", 0);
    if (!ls_tpl_is_number(v)) return ls_tpl_fail(run, LS_ERR_ARG, "round needs a number, not %s", ls_tpl_kind_name(v));
    if (a[0] != NULL) LS_TRY(ls_tpl_want_int(run, "round", a[0], &digits));
    if (digits < 0 || digits > 17) return ls_tpl_fail(run, LS_ERR_UNSUPPORTED, "round: a precision but 0 to 17");
    scale = pow(10, (double)digits);
    if (a[1] == NULL || ls_tpl_is_text(a[1], "common")) {
        /* Exact decimals, halves to even: what Python's round does. A whole number stays one. */
        if (v->kind != LS_TPL_FLOAT) {
            *o = *v;
            return LS_OK;
        }
        snprintf(text, sizeof text, "%.*f", (int)digits, v->real);
        *o = ls_tpl_real(strtod(text, NULL));
    } else if (ls_tpl_is_text(a[1], "ceil")) {
        *o = ls_tpl_real(ceil(ls_tpl_number(v) * scale) / scale);
    } else if (ls_tpl_is_text(a[1], "floor")) {
        *o = ls_tpl_real(floor(ls_tpl_number(v) * scale) / scale);
    } else {
        return ls_tpl_fail(run, LS_ERR_ARG, "round: the method is common, ceil or floor");
    }
    return LS_OK;
}

/* ---- lists ---- */

FILTER(f_length) {
    int64_t n;
    BIND("length", "", 0);
    LS_TRY(ls_tpl_length(run, v, &n));
    *o = ls_tpl_int(n);
    return LS_OK;
}

FILTER(f_default) {
    BIND("default", "default_value boolean", 0);
    *o = *v;
    if (v->kind == LS_TPL_UNDEFINED || (truth_of(a[1]) && !ls_tpl_truth(v)))
        *o = a[0] != NULL ? *a[0] : ls_tpl_string("");
    return LS_OK;
}

FILTER(f_first) {
    const ls_tpl_list *list;
    BIND("first", "", 0);
    LS_TRY(ls_tpl_iterate(run, v, &list));
    *o = list->n > 0 ? list->items[0] : ls_tpl_undefined("the first of nothing");
    return LS_OK;
}

FILTER(f_last) {
    const ls_tpl_list *list;
    BIND("last", "", 0);
    if (v->kind == LS_TPL_LIST && v->list->form == LS_TPL_FORM_ONCE)
        return ls_tpl_fail(run, LS_ERR_ARG, "last: a generator is not gone through backwards");
    LS_TRY(ls_tpl_iterate(run, v, &list));
    *o = list->n > 0 ? list->items[list->n - 1] : ls_tpl_undefined("the last of nothing");
    return LS_OK;
}

static ls_status copy_list(ls_tpl_run *run, const ls_tpl_value *v, ls_tpl_form form, ls_tpl_value *o) {
    const ls_tpl_list *list;
    LS_TRY(ls_tpl_iterate(run, v, &list));
    LS_TRY(ls_tpl_make_list(run, form, o));
    for (int64_t i = 0; i < list->n; i++) LS_TRY(ls_tpl_push(run, o, list->items[i]));
    return LS_OK;
}

FILTER(f_list) {
    BIND("list", "", 0);
    return copy_list(run, v, LS_TPL_FORM_LIST, o);
}

static ls_status reverse(ls_tpl_run *run, const ls_tpl_value *v, ls_tpl_form form, ls_tpl_value *o) {
    const ls_tpl_list *list;
    LS_TRY(ls_tpl_iterate(run, v, &list));
    LS_TRY(ls_tpl_make_list(run, form, o));
    for (int64_t i = list->n - 1; i >= 0; i--) LS_TRY(ls_tpl_push(run, o, list->items[i]));
    return LS_OK;
}

FILTER(f_reverse) {
    ls_tpl_value items;
    ls_tpl_text text = {0};
    BIND("reverse", "", 0);
    if (v->kind != LS_TPL_TEXT) return reverse(run, v, LS_TPL_FORM_ONCE, o);
    LS_TRY(ls_tpl_want_text(run, "reverse", v));
    LS_TRY(reverse(run, v, LS_TPL_FORM_LIST, &items));
    for (int64_t i = 0; i < items.list->n; i++)
        LS_TRY(ls_tpl_append(run, &text, items.list->items[i].text, items.list->items[i].bytes));
    *o = ls_tpl_built(&text);
    return LS_OK;
}

FILTER(f_items) {
    BIND("items", "", 0);
    LS_TRY(ls_tpl_make_list(run, LS_TPL_FORM_ONCE, o));
    if (v->kind == LS_TPL_UNDEFINED) return LS_OK;
    if (v->kind != LS_TPL_DICT) return ls_tpl_fail(run, LS_ERR_ARG, "items needs a dict, not %s", ls_tpl_kind_name(v));
    for (int64_t i = 0; i < v->dict->n; i++) {
        ls_tpl_value pair;
        LS_TRY(ls_tpl_make_list(run, LS_TPL_FORM_TUPLE, &pair));
        LS_TRY(ls_tpl_push(run, &pair, v->dict->entries[i].key));
        LS_TRY(ls_tpl_push(run, &pair, v->dict->entries[i].value));
        LS_TRY(ls_tpl_push(run, o, pair));
    }
    return LS_OK;
}

/* The attribute with this name, "a.b" one within another, a number an index. */
static ls_status path_of(ls_tpl_run *run, const ls_tpl_value *item, const ls_tpl_value *path, ls_tpl_value *out) {
    ls_tpl_value at = *item;
    if (path->kind == LS_TPL_INT) return ls_tpl_item(run, item, path, out);
    LS_TRY(ls_tpl_want_text(run, "an attribute", path));
    for (int64_t begin = 0; begin <= path->bytes;) {
        const char *dot = memchr(path->text + begin, '.', (size_t)(path->bytes - begin));
        const int64_t end = dot != NULL ? dot - path->text : path->bytes;
        ls_tpl_value part = ls_tpl_text_of(path->text + begin, end - begin), next;
        int64_t index;
        if (part.bytes > 0 && part.text[0] >= '0' && part.text[0] <= '9' && read_int(&part, &index))
            part = ls_tpl_int(index);
        LS_TRY(ls_tpl_item(run, &at, &part, &next));
        at = next;
        begin = end + 1;
    }
    *out = at;
    return LS_OK;
}

FILTER(f_join) {
    const ls_tpl_list *list;
    ls_tpl_value separator = ls_tpl_string("");
    ls_tpl_text text = {0};
    BIND("join", "d attribute", 0);
    if (a[0] != NULL) LS_TRY(soft_text(run, "join", a[0], &separator));
    LS_TRY(ls_tpl_iterate(run, v, &list));
    for (int64_t i = 0; i < list->n; i++) {
        ls_tpl_value item = list->items[i];
        if (a[1] != NULL && a[1]->kind != LS_TPL_NONE) LS_TRY(path_of(run, &list->items[i], a[1], &item));
        if (i > 0) LS_TRY(ls_tpl_append(run, &text, separator.text, separator.bytes));
        LS_TRY(ls_tpl_str(run, &item, &text));
    }
    *o = ls_tpl_built(&text);
    return LS_OK;
}

FILTER(f_sum) {
    const ls_tpl_list *list;
    int64_t total = 0;
    BIND("sum", "", 0);
    LS_TRY(ls_tpl_iterate(run, v, &list));
    for (int64_t i = 0; i < list->n; i++) {
        int64_t item;
        LS_TRY(ls_tpl_want_int(run, "sum", &list->items[i], &item));
        if (__builtin_add_overflow(total, item, &total))
            return ls_tpl_fail(run, LS_ERR_UNSUPPORTED, "sum: beyond 64 bits");
    }
    *o = ls_tpl_int(total);
    return LS_OK;
}

/* ---- choosing and mapping ---- */

/* Arguments behind the first `skip`. */
static ls_tpl_args rest_of(const ls_tpl_args *args, int64_t skip) {
    return (ls_tpl_args){args->list + (args->n > skip ? skip : 0), args->n > skip ? args->n - skip : 0, args->named,
                         args->n_named};
}

/* select and reject (by themselves, by_attribute false) and selectattr and rejectattr. */
static ls_status choose(ls_tpl_run *run, const ls_tpl_value *v, const ls_tpl_args *args, bool by_attribute, bool keep,
                        ls_tpl_value *o) {
    const int64_t at = by_attribute;
    const ls_tpl_list *list;
    const ls_tpl_args rest = rest_of(args, at + 1);
    if (args->n < at) return ls_tpl_fail(run, LS_ERR_ARG, "selectattr and rejectattr: the attribute is missing");
    if (args->n > at) LS_TRY(ls_tpl_want_text(run, "the name of a test", &args->list[at]));
    LS_TRY(ls_tpl_make_list(run, LS_TPL_FORM_ONCE, o));
    if (!ls_tpl_truth(v)) return LS_OK; /* none, too, is nothing to choose from */
    LS_TRY(ls_tpl_iterate(run, v, &list));
    for (int64_t i = 0; i < list->n; i++) {
        ls_tpl_value item = list->items[i];
        bool truth;
        if (by_attribute) LS_TRY(path_of(run, &list->items[i], &args->list[0], &item));
        truth = ls_tpl_truth(&item);
        if (args->n > at) LS_TRY(ls_tpl_test(run, args->list[at].text, args->list[at].bytes, &item, &rest, &truth));
        if (truth == keep) LS_TRY(ls_tpl_push(run, o, list->items[i]));
    }
    return LS_OK;
}

FILTER(f_select) { return choose(run, v, args, false, true, o); }

FILTER(f_reject) { return choose(run, v, args, false, false, o); }

FILTER(f_selectattr) { return choose(run, v, args, true, true, o); }

FILTER(f_rejectattr) { return choose(run, v, args, true, false, o); }

FILTER(f_map) {
    const ls_tpl_args rest = rest_of(args, 1);
    const ls_tpl_list *list;
    const ls_tpl_value *a[LS_TPL_PARAMETERS_MAX] = {NULL};
    if (args->n == 0) LS_TRY(ls_tpl_bind(run, "map", args, "attribute default", 1, a));
    if (args->n > 0) LS_TRY(ls_tpl_want_text(run, "map: the name of a filter", &args->list[0]));
    LS_TRY(ls_tpl_make_list(run, LS_TPL_FORM_ONCE, o));
    if (!ls_tpl_truth(v)) return LS_OK;
    LS_TRY(ls_tpl_iterate(run, v, &list));
    for (int64_t i = 0; i < list->n; i++) {
        ls_tpl_value item;
        if (a[0] == NULL)
            LS_TRY(ls_tpl_filter(run, args->list[0].text, args->list[0].bytes, &list->items[i], &rest, &item));
        else
            LS_TRY(path_of(run, &list->items[i], a[0], &item));
        if (a[0] != NULL && a[1] != NULL && item.kind == LS_TPL_UNDEFINED) item = *a[1];
        LS_TRY(ls_tpl_push(run, o, item));
    }
    return LS_OK;
}

/* ---- order ---- */

/* What an item is compared by: its attribute, if one is named, and texts in lower case unless case counts. */
static ls_status sort_key(ls_tpl_run *run, const ls_tpl_value *item, const ls_tpl_value *attribute, bool with_case,
                          ls_tpl_value *out) {
    ls_tpl_value key = *item;
    if (attribute != NULL && attribute->kind != LS_TPL_NONE) LS_TRY(path_of(run, item, attribute, &key));
    *out = key;
    return key.kind == LS_TPL_TEXT && !with_case ? ls_tpl_change_case(run, &key, LS_TPL_TO_LOWER, out) : LS_OK;
}

/* Stable, by insertion. With `backwards` items that are equal keep their order, too. */
static ls_status sort_items(ls_tpl_run *run, const ls_tpl_list *list, const ls_tpl_value *attribute, bool with_case,
                            bool backwards, ls_tpl_value *o) {
    ls_tpl_value *keys;
    LS_TRY(ls_tpl_make_list(run, LS_TPL_FORM_LIST, o));
    LS_TRY(ls_tpl_alloc(run, (void **)&keys, list->n, sizeof *keys));
    for (int64_t i = 0; i < list->n; i++) {
        ls_tpl_value key, item = list->items[i];
        int64_t at = i;
        LS_TRY(sort_key(run, &item, attribute, with_case, &key));
        LS_TRY(ls_tpl_push(run, o, item));
        for (; at > 0; at--) {
            int order;
            LS_TRY(ls_tpl_compare(run, &keys[at - 1], &key, &order));
            if (backwards ? order >= 0 : order <= 0) break;
            keys[at] = keys[at - 1];
            o->list->items[at] = o->list->items[at - 1];
        }
        keys[at] = key;
        o->list->items[at] = item;
    }
    return LS_OK;
}

FILTER(f_sort) {
    const ls_tpl_list *list;
    BIND("sort", "reverse case_sensitive attribute", 0);
    if (a[2] != NULL && a[2]->kind == LS_TPL_TEXT && memchr(a[2]->text, ',', (size_t)a[2]->bytes) != NULL)
        return ls_tpl_fail(run, LS_ERR_UNSUPPORTED, "sort by several attributes is not supported");
    LS_TRY(ls_tpl_iterate(run, v, &list));
    return sort_items(run, list, a[2], truth_of(a[1]), truth_of(a[0]), o);
}

FILTER(f_dictsort) {
    const ls_tpl_value by_key = ls_tpl_int(0), by_value = ls_tpl_int(1);
    ls_tpl_value pairs;
    const ls_tpl_args none = {0};
    BIND("dictsort", "case_sensitive by reverse", 0);
    if (v->kind != LS_TPL_DICT)
        return ls_tpl_fail(run, LS_ERR_ARG, "dictsort needs a dict, not %s", ls_tpl_kind_name(v));
    LS_TRY(f_items(run, v, &none, &pairs));
    return sort_items(run, pairs.list, a[1] != NULL && ls_tpl_is_text(a[1], "value") ? &by_value : &by_key,
                      truth_of(a[0]), truth_of(a[2]), o);
}

FILTER(f_unique) {
    const ls_tpl_list *list;
    ls_tpl_value seen;
    BIND("unique", "case_sensitive attribute", 0);
    LS_TRY(ls_tpl_iterate(run, v, &list));
    LS_TRY(ls_tpl_make_list(run, LS_TPL_FORM_ONCE, o));
    LS_TRY(ls_tpl_make_list(run, LS_TPL_FORM_LIST, &seen));
    for (int64_t i = 0; i < list->n; i++) {
        ls_tpl_value key;
        bool found;
        LS_TRY(sort_key(run, &list->items[i], a[1], truth_of(a[0]), &key));
        LS_TRY(ls_tpl_contains(run, &seen, &key, &found));
        if (found) continue;
        LS_TRY(ls_tpl_push(run, &seen, key));
        LS_TRY(ls_tpl_push(run, o, list->items[i]));
    }
    return LS_OK;
}

/* The smallest or the largest item. */
static ls_status extreme(ls_tpl_run *run, const ls_tpl_value *v, const ls_tpl_args *args, int sign, ls_tpl_value *o) {
    const ls_tpl_list *list;
    ls_tpl_value best, key;
    BIND("min and max", "case_sensitive attribute", 0);
    LS_TRY(ls_tpl_iterate(run, v, &list));
    *o = ls_tpl_undefined("no item");
    for (int64_t i = 0; i < list->n; i++) {
        int order = -1;
        LS_TRY(sort_key(run, &list->items[i], a[1], truth_of(a[0]), &key));
        if (i > 0) LS_TRY(ls_tpl_compare(run, &key, &best, &order));
        if (i > 0 && order * sign >= 0) continue;
        best = key;
        *o = list->items[i];
    }
    return LS_OK;
}

FILTER(f_min) { return extreme(run, v, args, 1, o); }

FILTER(f_max) { return extreme(run, v, args, -1, o); }

/* ---- the table ---- */

typedef ls_status (*filter)(ls_tpl_run *run, const ls_tpl_value *v, const ls_tpl_args *args, ls_tpl_value *o);

static filter find_filter(const char *name) {
    static const struct {
        const char *name;
        filter run;
    } filters[] = {
        {"abs", f_abs},
        {"capitalize", f_capitalize},
        {"count", f_length},
        {"d", f_default},
        {"default", f_default},
        {"dictsort", f_dictsort},
        {"first", f_first},
        {"float", f_float},
        {"indent", f_indent},
        {"int", f_int},
        {"items", f_items},
        {"join", f_join},
        {"last", f_last},
        {"length", f_length},
        {"list", f_list},
        {"lower", f_lower},
        {"map", f_map},
        {"max", f_max},
        {"min", f_min},
        {"reject", f_reject},
        {"rejectattr", f_rejectattr},
        {"replace", f_replace},
        {"reverse", f_reverse},
        {"round", f_round},
        {"safe", f_safe},
        {"select", f_select},
        {"selectattr", f_selectattr},
        {"sort", f_sort},
        {"string", f_string},
        {"sum", f_sum},
        {"title", f_title},
        {"tojson", f_tojson},
        {"trim", f_trim},
        {"unique", f_unique},
        {"upper", f_upper},
    };
    for (size_t i = 0; i < sizeof filters / sizeof filters[0]; i++)
        if (strcmp(filters[i].name, name) == 0) return filters[i].run;
    return NULL;
}

ls_status ls_tpl_filter(ls_tpl_run *run, const char *name, int64_t bytes, const ls_tpl_value *v,
                        const ls_tpl_args *args, ls_tpl_value *o) {
    char text[40] = "";
    filter found;
    ls_status status;
    LS_TRY(ls_tpl_step(run, 1));
    if (bytes < (int64_t)sizeof text) memcpy(text, name, (size_t)bytes);
    found = find_filter(text);
    if (found == NULL)
        return ls_tpl_fail(run, LS_ERR_UNSUPPORTED, "the filter '%.*s' is not supported", bytes < 60 ? (int)bytes : 60,
                           name);
    if (++run->depth > LS_TPL_DEPTH_MAX) return ls_tpl_fail(run, LS_ERR_CAPACITY, "filters nest too deep");
    status = found(run, v, args, o);
    run->depth--;
    return status;
}
