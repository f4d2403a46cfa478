/* Values of templates; owns nothing, memory is the arena's. */
#define _GNU_SOURCE
#include "template/template_value.h"

#include <math.h>
#include <string.h>

#include "base/utf8.h"

ls_tpl_value ls_tpl_undefined(const char *name) { return (ls_tpl_value){.kind = LS_TPL_UNDEFINED, .text = name}; }

ls_tpl_value ls_tpl_none(void) { return (ls_tpl_value){.kind = LS_TPL_NONE}; }

ls_tpl_value ls_tpl_bool(bool truth) { return (ls_tpl_value){.kind = LS_TPL_BOOL, .integer = truth}; }

ls_tpl_value ls_tpl_int(int64_t integer) { return (ls_tpl_value){.kind = LS_TPL_INT, .integer = integer}; }

ls_tpl_value ls_tpl_real(double real) { return (ls_tpl_value){.kind = LS_TPL_FLOAT, .real = real}; }

ls_tpl_value ls_tpl_text_of(const char *text, int64_t bytes) {
    return (ls_tpl_value){.kind = LS_TPL_TEXT, .bytes = bytes, .text = bytes > 0 ? text : ""};
}

ls_tpl_value ls_tpl_string(const char *text) { return ls_tpl_text_of(text, (int64_t)strlen(text)); }

ls_tpl_value ls_tpl_built(const ls_tpl_text *text) { return ls_tpl_text_of(text->data, text->bytes); }

ls_status ls_tpl_make_list(ls_tpl_run *run, ls_tpl_form form, ls_tpl_value *out) {
    ls_tpl_list *list;
    LS_TRY(ls_tpl_alloc(run, (void **)&list, 1, sizeof *list));
    list->form = form;
    *out = (ls_tpl_value){.kind = LS_TPL_LIST, .list = list};
    return LS_OK;
}

ls_status ls_tpl_push(ls_tpl_run *run, ls_tpl_value *list, ls_tpl_value item) {
    ls_tpl_list *l = list->list;
    LS_TRY(ls_tpl_step(run, 1));
    LS_TRY(ls_tpl_grow(run, (void **)&l->items, &l->cap, l->n + 1, sizeof *l->items));
    l->items[l->n++] = item;
    return LS_OK;
}

ls_status ls_tpl_make_dict(ls_tpl_run *run, ls_tpl_value *out) {
    ls_tpl_dict *dict;
    LS_TRY(ls_tpl_alloc(run, (void **)&dict, 1, sizeof *dict));
    *out = (ls_tpl_value){.kind = LS_TPL_DICT, .dict = dict};
    return LS_OK;
}

static bool is_whole(const ls_tpl_value *v) { return v->kind == LS_TPL_INT || v->kind == LS_TPL_BOOL; }

/* Of keys, which are texts, numbers, truth values and none. */
static bool same_key(const ls_tpl_value *a, const ls_tpl_value *b) {
    if (a->kind == LS_TPL_TEXT)
        return b->kind == LS_TPL_TEXT && a->bytes == b->bytes && memcmp(a->text, b->text, (size_t)a->bytes) == 0;
    if (is_whole(a) && is_whole(b)) return a->integer == b->integer;
    if (ls_tpl_is_number(a) && ls_tpl_is_number(b)) return ls_tpl_number(a) == ls_tpl_number(b);
    return a->kind == LS_TPL_NONE && b->kind == LS_TPL_NONE;
}

ls_tpl_value *ls_tpl_dict_find(const ls_tpl_dict *dict, const ls_tpl_value *key) {
    for (int64_t i = 0; i < dict->n; i++)
        if (same_key(&dict->entries[i].key, key)) return &dict->entries[i].value;
    return NULL;
}

ls_status ls_tpl_dict_set(ls_tpl_run *run, ls_tpl_dict *dict, ls_tpl_value key, ls_tpl_value value) {
    ls_tpl_value *found = ls_tpl_dict_find(dict, &key);
    LS_TRY(ls_tpl_step(run, 1 + dict->n / 16));
    if (key.kind != LS_TPL_TEXT && key.kind != LS_TPL_NONE && !ls_tpl_is_number(&key))
        return ls_tpl_fail(run, LS_ERR_UNSUPPORTED, "%s as a key of a dict is not supported", ls_tpl_kind_name(&key));
    if (found != NULL) {
        *found = value;
        return LS_OK;
    }
    LS_TRY(ls_tpl_grow(run, (void **)&dict->entries, &dict->cap, dict->n + 1, sizeof *dict->entries));
    dict->entries[dict->n++] = (ls_tpl_entry){key, value};
    return LS_OK;
}

static ls_status from_object(ls_tpl_run *run, const ls_node *node, ls_tpl_value *out) {
    void *iterator = NULL;
    ls_node child;
    LS_TRY(ls_tpl_make_dict(run, out));
    while (ls_node_next(node, &iterator, &child)) {
        ls_tpl_value value;
        LS_TRY(ls_tpl_from_node(run, &child, &value));
        /* Keys of JSON are each there once: no search, which would take the square of their number. */
        LS_TRY(ls_tpl_grow(run, (void **)&out->dict->entries, &out->dict->cap, out->dict->n + 1,
                           sizeof *out->dict->entries));
        out->dict->entries[out->dict->n++] = (ls_tpl_entry){ls_tpl_string(child.key), value};
    }
    return LS_OK;
}

/* As Python reads it: a double, but a whole number has all its digits there. */
static ls_status from_real(const ls_node *node, ls_tpl_value *out, ls_error *err) {
    const char *kept = ls_node_kept(node);
    if (kept != NULL && strpbrk(kept, ".eE") == NULL)
        return ls_node_fail(node, LS_ERR_UNSUPPORTED, err, "templates have whole numbers of 64 bits, not %.60s", kept);
    *out = ls_tpl_real(ls_node_number(node));
    return LS_OK;
}

ls_status ls_tpl_from_node(ls_tpl_run *run, const ls_node *node, ls_tpl_value *out) {
    const char *text;
    int64_t bytes;
    bool truth;
    LS_TRY(ls_tpl_step(run, 1));
    switch (ls_node_kind_of(node)) {
        case LS_NODE_NULL: *out = ls_tpl_none(); return LS_OK;
        case LS_NODE_BOOL:
            LS_TRY(ls_node_bool(node, &truth, run->err));
            *out = ls_tpl_bool(truth);
            return LS_OK;
        case LS_NODE_INT:
            LS_TRY(ls_node_int(node, INT64_MIN, INT64_MAX, &bytes, run->err));
            *out = ls_tpl_int(bytes);
            return LS_OK;
        case LS_NODE_REAL: return from_real(node, out, run->err);
        case LS_NODE_TEXT:
            LS_TRY(ls_node_text(node, &text, &bytes, run->err));
            *out = ls_tpl_text_of(text, bytes);
            return LS_OK;
        case LS_NODE_ARRAY: break;
        case LS_NODE_OBJECT: return from_object(run, node, out);
    }
    LS_TRY(ls_tpl_make_list(run, LS_TPL_FORM_LIST, out));
    for (int64_t i = 0; i < ls_node_count(node); i++) {
        const ls_node child = ls_node_at(node, i);
        ls_tpl_value value;
        LS_TRY(ls_tpl_from_node(run, &child, &value));
        LS_TRY(ls_tpl_push(run, out, value));
    }
    return LS_OK;
}

const char *ls_tpl_kind_name(const ls_tpl_value *v) {
    static const char *const forms[] = {"a list", "a tuple", "a range", "a view of a dict", "a generator"};
    static const char *const names[] = {
        "an undefined value", "none",       "a truth value", "an integer", "a float", "a text", "a list", "a dict",
        "a namespace",        "a function", "a method",      "a macro",    "the loop"};
    return v->kind == LS_TPL_LIST ? forms[v->list->form] : names[v->kind];
}

bool ls_tpl_is_text(const ls_tpl_value *v, const char *text) {
    return v->kind == LS_TPL_TEXT && v->bytes == (int64_t)strlen(text) && memcmp(v->text, text, (size_t)v->bytes) == 0;
}

bool ls_tpl_is_number(const ls_tpl_value *v) { return is_whole(v) || v->kind == LS_TPL_FLOAT; }

double ls_tpl_number(const ls_tpl_value *v) { return v->kind == LS_TPL_FLOAT ? v->real : (double)v->integer; }

bool ls_tpl_truth(const ls_tpl_value *v) {
    switch (v->kind) {
        case LS_TPL_UNDEFINED:
        case LS_TPL_NONE: return false;
        case LS_TPL_BOOL:
        case LS_TPL_INT: return v->integer != 0;
        case LS_TPL_FLOAT: return v->real != 0;
        case LS_TPL_TEXT: return v->bytes > 0;
        case LS_TPL_LIST: return v->list->form == LS_TPL_FORM_ONCE || v->list->n > 0;
        case LS_TPL_DICT: return v->dict->n > 0;
        case LS_TPL_NAMESPACE:
        case LS_TPL_FUNCTION:
        case LS_TPL_METHOD:
        case LS_TPL_CALLABLE:
        case LS_TPL_LOOP: break;
    }
    return true;
}

/* ---- equality and order ---- */

static bool text_equal(const ls_tpl_value *a, const ls_tpl_value *b) {
    return a->bytes == b->bytes && memcmp(a->text, b->text, (size_t)a->bytes) == 0;
}

/* Recursion over lists and dicts in lists and dicts. */
static ls_status enter_value(ls_tpl_run *run) {
    LS_TRY(ls_tpl_step(run, 1));
    if (++run->depth <= LS_TPL_DEPTH_MAX) return LS_OK;
    return ls_tpl_fail(run, LS_ERR_CAPACITY, "values nest more than %d deep", LS_TPL_DEPTH_MAX);
}

static ls_status lists_equal(ls_tpl_run *run, const ls_tpl_list *a, const ls_tpl_list *b, bool *out) {
    *out = a == b || (a->form == b->form && a->n == b->n && a->form != LS_TPL_FORM_ONCE);
    if (a == b) return LS_OK;
    for (int64_t i = 0; *out && i < a->n; i++) LS_TRY(ls_tpl_equal(run, &a->items[i], &b->items[i], out));
    return LS_OK;
}

static ls_status dicts_equal(ls_tpl_run *run, const ls_tpl_dict *a, const ls_tpl_dict *b, bool *out) {
    *out = a->n == b->n;
    for (int64_t i = 0; *out && i < a->n; i++) {
        const ls_tpl_value *other = ls_tpl_dict_find(b, &a->entries[i].key);
        *out = other != NULL;
        if (other != NULL) LS_TRY(ls_tpl_equal(run, &a->entries[i].value, other, out));
    }
    return LS_OK;
}

ls_status ls_tpl_equal(ls_tpl_run *run, const ls_tpl_value *a, const ls_tpl_value *b, bool *out) {
    ls_status status = LS_OK;
    LS_TRY(enter_value(run));
    if (ls_tpl_is_number(a) && ls_tpl_is_number(b)) {
        *out = is_whole(a) && is_whole(b) ? a->integer == b->integer : ls_tpl_number(a) == ls_tpl_number(b);
    } else if (a->kind != b->kind) {
        *out = false;
    } else if (a->kind == LS_TPL_TEXT) {
        *out = text_equal(a, b);
    } else if (a->kind == LS_TPL_LIST) {
        status = lists_equal(run, a->list, b->list, out);
    } else if (a->kind == LS_TPL_DICT) {
        status = dicts_equal(run, a->dict, b->dict, out);
    } else {
        *out = a->kind == LS_TPL_UNDEFINED || a->kind == LS_TPL_NONE || a->text == b->text;
    }
    run->depth--;
    return status;
}

static ls_status compare_lists(ls_tpl_run *run, const ls_tpl_list *a, const ls_tpl_list *b, int *order) {
    for (int64_t i = 0; i < a->n && i < b->n; i++) {
        bool same;
        LS_TRY(ls_tpl_equal(run, &a->items[i], &b->items[i], &same));
        if (!same) return ls_tpl_compare(run, &a->items[i], &b->items[i], order);
    }
    *order = a->n < b->n ? -1 : a->n > b->n;
    return LS_OK;
}

ls_status ls_tpl_compare(ls_tpl_run *run, const ls_tpl_value *a, const ls_tpl_value *b, int *order) {
    LS_TRY(ls_tpl_step(run, 1));
    if (is_whole(a) && is_whole(b)) {
        *order = a->integer < b->integer ? -1 : a->integer > b->integer;
        return LS_OK;
    }
    if (ls_tpl_is_number(a) && ls_tpl_is_number(b)) {
        const double x = ls_tpl_number(a), y = ls_tpl_number(b);
        *order = x < y ? -1 : x > y;
        if (!isnan(x) && !isnan(y)) return LS_OK;
        return ls_tpl_fail(run, LS_ERR_UNSUPPORTED, "the order of NaN is not supported");
    }
    if (a->kind == LS_TPL_TEXT && b->kind == LS_TPL_TEXT) { /* bytes of UTF-8 have the order of code points */
        const int64_t n = a->bytes < b->bytes ? a->bytes : b->bytes;
        const int first = memcmp(a->text, b->text, (size_t)n);
        *order = first != 0 ? first : a->bytes < b->bytes ? -1 : a->bytes > b->bytes;
        return LS_OK;
    }
    if (a->kind == LS_TPL_LIST && b->kind == LS_TPL_LIST && a->list->form == b->list->form &&
        a->list->form <= LS_TPL_FORM_TUPLE)
        return compare_lists(run, a->list, b->list, order);
    return ls_tpl_fail(run, LS_ERR_ARG, "%s and %s have no order", ls_tpl_kind_name(a), ls_tpl_kind_name(b));
}

static bool has_part(const ls_tpl_value *whole, const ls_tpl_value *part) {
    return memmem(whole->text, (size_t)whole->bytes, part->text, (size_t)part->bytes) != NULL;
}

ls_status ls_tpl_contains(ls_tpl_run *run, const ls_tpl_value *whole, const ls_tpl_value *part, bool *out) {
    const ls_tpl_list *list;
    *out = false;
    if (whole->kind == LS_TPL_TEXT) {
        if (part->kind != LS_TPL_TEXT)
            return ls_tpl_fail(run, LS_ERR_ARG, "in: %s is looked for in a text", ls_tpl_kind_name(part));
        LS_TRY(ls_tpl_step(run, whole->bytes / 64));
        *out = has_part(whole, part);
        return LS_OK;
    }
    if (whole->kind == LS_TPL_DICT) {
        *out = ls_tpl_dict_find(whole->dict, part) != NULL;
        return LS_OK;
    }
    LS_TRY(ls_tpl_iterate(run, whole, &list));
    for (int64_t i = 0; !*out && i < list->n; i++) LS_TRY(ls_tpl_equal(run, &list->items[i], part, out));
    return LS_OK;
}

/* ---- going through ---- */

static ls_status characters(ls_tpl_run *run, const ls_tpl_value *text, ls_tpl_value *out) {
    LS_TRY(ls_tpl_make_list(run, LS_TPL_FORM_LIST, out));
    for (int64_t at = 0; at < text->bytes;) {
        int32_t code;
        const int64_t used = ls_utf8_decode((const uint8_t *)text->text + at, text->bytes - at, &code);
        LS_TRY(ls_tpl_push(run, out, ls_tpl_text_of(text->text + at, used)));
        at += used;
    }
    return LS_OK;
}

ls_status ls_tpl_iterate(ls_tpl_run *run, const ls_tpl_value *v, const ls_tpl_list **out) {
    static const ls_tpl_list nothing = {0};
    ls_tpl_value made;
    *out = &nothing;
    if (v->kind == LS_TPL_UNDEFINED) return LS_OK;
    if (v->kind == LS_TPL_LIST) {
        if (!v->list->spent) *out = v->list;
        v->list->spent = v->list->form == LS_TPL_FORM_ONCE;
        return LS_OK;
    }
    if (v->kind == LS_TPL_TEXT) {
        LS_TRY(characters(run, v, &made));
    } else if (v->kind == LS_TPL_DICT) {
        LS_TRY(ls_tpl_make_list(run, LS_TPL_FORM_LIST, &made));
        for (int64_t i = 0; i < v->dict->n; i++) LS_TRY(ls_tpl_push(run, &made, v->dict->entries[i].key));
    } else {
        return ls_tpl_fail(run, LS_ERR_ARG, "%s cannot be gone through", ls_tpl_kind_name(v));
    }
    *out = made.list;
    return LS_OK;
}

ls_status ls_tpl_length(ls_tpl_run *run, const ls_tpl_value *v, int64_t *out) {
    *out = 0;
    if (v->kind == LS_TPL_UNDEFINED) return LS_OK;
    if (v->kind == LS_TPL_LIST && v->list->form != LS_TPL_FORM_ONCE) {
        *out = v->list->n;
    } else if (v->kind == LS_TPL_DICT) {
        *out = v->dict->n;
    } else if (v->kind == LS_TPL_TEXT) {
        for (int64_t i = 0; i < v->bytes; i++) *out += ((unsigned char)v->text[i] & 0xC0) != 0x80;
    } else {
        return ls_tpl_fail(run, LS_ERR_ARG, "%s has no length", ls_tpl_kind_name(v));
    }
    return LS_OK;
}
