/* Members and methods; owns nothing. */
#define _GNU_SOURCE
#include "template/template_methods.h"

#include <string.h>

#include "base/utf8.h"
#include "template/template_string.h"
#include "text/unicode.h"

/* ---- members ---- */

static bool is_among(const char *const *names, const ls_tpl_value *name) {
    for (int i = 0; names[i] != NULL; i++)
        if (ls_tpl_is_text(name, names[i])) return true;
    return false;
}

/* Python's methods, read or refused when they are called. */
static bool has_method(const ls_tpl_value *v, const ls_tpl_value *name) {
    static const char *const of_text[] = {
        "capitalize", "casefold",     "center",      "count",        "encode",       "endswith", "expandtabs",
        "find",       "format",       "index",       "isalnum",      "isalpha",      "isascii",  "isdecimal",
        "isdigit",    "islower",      "isnumeric",   "isspace",      "istitle",      "isupper",  "join",
        "ljust",      "lower",        "lstrip",      "partition",    "replace",      "rfind",    "rindex",
        "rjust",      "rpartition",   "rsplit",      "rstrip",       "split",        "strip",    "swapcase",
        "splitlines", "startswith",   "title",       "translate",    "upper",        "zfill",    "maketrans",
        "format_map", "isidentifier", "isprintable", "removeprefix", "removesuffix", NULL};
    static const char *const of_list[] = {"append", "clear", "copy",   "count",   "extend", "index",
                                          "insert", "pop",   "remove", "reverse", "sort",   NULL};
    static const char *const of_dict[] = {"clear", "copy",    "fromkeys",   "get",    "items",  "keys",
                                          "pop",   "popitem", "setdefault", "update", "values", NULL};
    static const char *const of_loop[] = {"cycle", "changed", NULL};
    if (v->kind == LS_TPL_TEXT) return is_among(of_text, name);
    if (v->kind == LS_TPL_LIST) return v->list->form == LS_TPL_FORM_LIST && is_among(of_list, name);
    if (v->kind == LS_TPL_LOOP) return is_among(of_loop, name);
    return v->kind == LS_TPL_DICT && is_among(of_dict, name);
}

static ls_status bind_method(ls_tpl_run *run, const ls_tpl_value *v, const ls_tpl_value *name, ls_tpl_value *out) {
    ls_tpl_value *self;
    ls_tpl_text text = {0};
    LS_TRY(ls_tpl_alloc(run, (void **)&self, 1, sizeof *self));
    LS_TRY(ls_tpl_append(run, &text, name->text, name->bytes));
    LS_TRY(ls_tpl_append(run, &text, "", 1));
    *self = *v;
    *out = (ls_tpl_value){.kind = LS_TPL_METHOD, .bytes = text.bytes - 1, .text = text.data, .self = self};
    return LS_OK;
}

static bool loop_member(const ls_tpl_loop *loop, const ls_tpl_value *name, ls_tpl_value *out) {
    const int64_t at = loop->at, n = loop->list->n;
    const struct {
        const char *name;
        ls_tpl_value value;
    } members[] = {
        {"index", ls_tpl_int(at + 1)},
        {"index0", ls_tpl_int(at)},
        {"revindex", ls_tpl_int(n - at)},
        {"revindex0", ls_tpl_int(n - at - 1)},
        {"first", ls_tpl_bool(at == 0)},
        {"last", ls_tpl_bool(at == n - 1)},
        {"length", ls_tpl_int(n)},
        {"depth", ls_tpl_int(loop->depth)},
        {"depth0", ls_tpl_int(loop->depth - 1)},
        {"previtem", at > 0 ? loop->list->items[at - 1] : ls_tpl_undefined("there is no previous item")},
        {"nextitem", at < n - 1 ? loop->list->items[at + 1] : ls_tpl_undefined("there is no next item")},
    };
    for (size_t i = 0; i < sizeof members / sizeof members[0]; i++) {
        if (!ls_tpl_is_text(name, members[i].name)) continue;
        *out = members[i].value;
        return true;
    }
    return false;
}

/* An undefined value that knows the name which was looked for. */
static ls_status missing(ls_tpl_run *run, const ls_tpl_value *name, ls_tpl_value *out) {
    ls_tpl_text text = {0};
    if (name->kind == LS_TPL_TEXT) LS_TRY(ls_tpl_append(run, &text, name->text, name->bytes < 100 ? name->bytes : 100));
    LS_TRY(ls_tpl_append(run, &text, "", 1));
    *out = ls_tpl_undefined(text.data);
    return LS_OK;
}

static ls_status check_defined(ls_tpl_run *run, const ls_tpl_value *v, const ls_tpl_value *name) {
    if (v->kind != LS_TPL_UNDEFINED) return LS_OK;
    return ls_tpl_fail(run, LS_ERR_ARG, "'%.100s' is undefined, and '%.*s' of it is asked for",
                       v->text != NULL ? v->text : "",
                       name->kind == LS_TPL_TEXT && name->bytes < 60 ? (int)name->bytes : 0, name->text);
}

ls_status ls_tpl_attribute(ls_tpl_run *run, const ls_tpl_value *v, const ls_tpl_value *name, ls_tpl_value *out) {
    const ls_tpl_value *found = NULL;
    LS_TRY(check_defined(run, v, name));
    if (v->kind == LS_TPL_LOOP && loop_member(v->loop, name, out)) return LS_OK;
    if (has_method(v, name)) return bind_method(run, v, name, out);
    if (v->kind == LS_TPL_DICT || v->kind == LS_TPL_NAMESPACE) found = ls_tpl_dict_find(v->dict, name);
    if (found != NULL) {
        *out = *found;
        return LS_OK;
    }
    return missing(run, name, out);
}

static ls_status item_of_list(const ls_tpl_value *v, int64_t at, ls_tpl_value *out) {
    const ls_tpl_list *list = v->list;
    if (at < 0) at += list->n;
    *out = at >= 0 && at < list->n ? list->items[at] : ls_tpl_undefined("an index beyond the list");
    return LS_OK;
}

static ls_status item_of_text(ls_tpl_run *run, const ls_tpl_value *v, int64_t at, ls_tpl_value *out) {
    int64_t n, begin;
    LS_TRY(ls_tpl_length(run, v, &n));
    if (at < 0) at += n;
    *out = ls_tpl_undefined("an index beyond the text");
    if (at < 0 || at >= n) return LS_OK;
    begin = ls_tpl_offset(v, at);
    *out = ls_tpl_text_of(v->text + begin, ls_tpl_offset(v, at + 1) - begin);
    return LS_OK;
}

ls_status ls_tpl_item(ls_tpl_run *run, const ls_tpl_value *v, const ls_tpl_value *index, ls_tpl_value *out) {
    const bool is_whole = index->kind == LS_TPL_INT || index->kind == LS_TPL_BOOL;
    const ls_tpl_value *found;
    LS_TRY(check_defined(run, v, index));
    if (v->kind == LS_TPL_DICT && (found = ls_tpl_dict_find(v->dict, index)) != NULL) {
        *out = *found;
        return LS_OK;
    }
    if (is_whole && v->kind == LS_TPL_LIST && v->list->form <= LS_TPL_FORM_RANGE)
        return item_of_list(v, index->integer, out);
    if (is_whole && v->kind == LS_TPL_TEXT) return item_of_text(run, v, index->integer, out);
    if (index->kind == LS_TPL_TEXT) return ls_tpl_attribute(run, v, index, out);
    return missing(run, index, out);
}

/* ---- slices ---- */

/* A bound as Python clips it to a sequence of n items. */
static ls_status clip(ls_tpl_run *run, const ls_tpl_value *v, int64_t n, int64_t absent, bool down, int64_t *out) {
    *out = absent;
    if (v == NULL || v->kind == LS_TPL_NONE) return LS_OK;
    LS_TRY(ls_tpl_want_int(run, "a slice", v, out));
    if (*out < 0) *out = *out < -n ? -1 : *out + n;
    if (*out < 0) *out = down ? -1 : 0;
    if (*out >= n) *out = down ? n - 1 : n;
    return LS_OK;
}

ls_status ls_tpl_slice(ls_tpl_run *run, const ls_tpl_value *v, const ls_tpl_value *begin, const ls_tpl_value *end,
                       const ls_tpl_value *step, ls_tpl_value *out) {
    const bool is_text = v->kind == LS_TPL_TEXT;
    const ls_tpl_list *list;
    ls_tpl_text text = {0};
    int64_t n, first, last, by = 1;
    if (v->kind == LS_TPL_UNDEFINED) return check_defined(run, v, v);
    if (!is_text && (v->kind != LS_TPL_LIST || v->list->form > LS_TPL_FORM_TUPLE)) {
        *out = ls_tpl_undefined("a slice");
        if (v->kind == LS_TPL_LIST) return ls_tpl_fail(run, LS_ERR_UNSUPPORTED, "a slice of %s", ls_tpl_kind_name(v));
        return LS_OK;
    }
    LS_TRY(ls_tpl_iterate(run, v, &list));
    n = list->n;
    if (step != NULL && step->kind != LS_TPL_NONE) LS_TRY(ls_tpl_want_int(run, "a slice", step, &by));
    if (by == 0) return ls_tpl_fail(run, LS_ERR_ARG, "a slice has the step 0");
    LS_TRY(clip(run, begin, n, by < 0 ? n - 1 : 0, by < 0, &first));
    LS_TRY(clip(run, end, n, by < 0 ? -1 : n, by < 0, &last));
    LS_TRY(ls_tpl_make_list(run, is_text ? LS_TPL_FORM_LIST : v->list->form, out));
    for (int64_t i = first; by > 0 ? i < last : i > last;) {
        if (is_text)
            LS_TRY(ls_tpl_append(run, &text, list->items[i].text, list->items[i].bytes));
        else
            LS_TRY(ls_tpl_push(run, out, list->items[i]));
        if (__builtin_add_overflow(i, by, &i)) break;
    }
    if (is_text) *out = ls_tpl_built(&text);
    return LS_OK;
}

/* ---- methods of texts ---- */

typedef ls_status (*method)(ls_tpl_run *run, const ls_tpl_value *self, const ls_tpl_args *args, ls_tpl_value *out);

static ls_status strip_text(ls_tpl_run *run, const ls_tpl_value *self, const ls_tpl_args *args, int ends,
                            ls_tpl_value *out) {
    const ls_tpl_value *a[LS_TPL_PARAMETERS_MAX];
    LS_TRY(ls_tpl_bind(run, "strip", args, "chars", 0, a));
    if (a[0] != NULL && a[0]->kind == LS_TPL_NONE) a[0] = NULL;
    if (a[0] != NULL) LS_TRY(ls_tpl_want_text(run, "strip", a[0]));
    *out = ls_tpl_strip(self, a[0], ends);
    return LS_OK;
}

static ls_status m_strip(ls_tpl_run *r, const ls_tpl_value *s, const ls_tpl_args *a, ls_tpl_value *o) {
    return strip_text(r, s, a, LS_TPL_LEFT | LS_TPL_RIGHT, o);
}

static ls_status m_lstrip(ls_tpl_run *r, const ls_tpl_value *s, const ls_tpl_args *a, ls_tpl_value *o) {
    return strip_text(r, s, a, LS_TPL_LEFT, o);
}

static ls_status m_rstrip(ls_tpl_run *r, const ls_tpl_value *s, const ls_tpl_args *a, ls_tpl_value *o) {
    return strip_text(r, s, a, LS_TPL_RIGHT, o);
}

static ls_status split_text(ls_tpl_run *run, const ls_tpl_value *self, const ls_tpl_args *args, bool right,
                            ls_tpl_value *out) {
    const ls_tpl_value *a[LS_TPL_PARAMETERS_MAX];
    int64_t count = -1;
    LS_TRY(ls_tpl_bind(run, "split", args, "sep maxsplit", 0, a));
    if (a[0] != NULL && a[0]->kind == LS_TPL_NONE) a[0] = NULL;
    if (a[0] != NULL) LS_TRY(ls_tpl_want_text(run, "split", a[0]));
    if (a[1] != NULL) LS_TRY(ls_tpl_want_int(run, "split", a[1], &count));
    return ls_tpl_split(run, self, a[0], count, right, out);
}

static ls_status m_split(ls_tpl_run *r, const ls_tpl_value *s, const ls_tpl_args *a, ls_tpl_value *o) {
    return split_text(r, s, a, false, o);
}

static ls_status m_rsplit(ls_tpl_run *r, const ls_tpl_value *s, const ls_tpl_args *a, ls_tpl_value *o) {
    return split_text(r, s, a, true, o);
}

static ls_status m_splitlines(ls_tpl_run *r, const ls_tpl_value *s, const ls_tpl_args *args, ls_tpl_value *o) {
    const ls_tpl_value *a[LS_TPL_PARAMETERS_MAX];
    LS_TRY(ls_tpl_bind(r, "splitlines", args, "", 0, a));
    return ls_tpl_split_lines(r, s, o);
}

static bool has_end(const ls_tpl_value *v, const ls_tpl_value *end, bool at_start) {
    return end->bytes <= v->bytes &&
           memcmp(at_start ? v->text : v->text + v->bytes - end->bytes, end->text, (size_t)end->bytes) == 0;
}

static ls_status test_end(ls_tpl_run *run, const ls_tpl_value *self, const ls_tpl_args *args, bool at_start,
                          ls_tpl_value *out) {
    const ls_tpl_value *a[LS_TPL_PARAMETERS_MAX];
    bool found = false;
    LS_TRY(ls_tpl_bind(run, "startswith and endswith", args, "prefix", 1, a));
    if (a[0]->kind == LS_TPL_LIST && a[0]->list->form == LS_TPL_FORM_TUPLE) {
        for (int64_t i = 0; i < a[0]->list->n; i++) {
            LS_TRY(ls_tpl_want_text(run, "startswith and endswith", &a[0]->list->items[i]));
            found = found || has_end(self, &a[0]->list->items[i], at_start);
        }
    } else {
        LS_TRY(ls_tpl_want_text(run, "startswith and endswith", a[0]));
        found = has_end(self, a[0], at_start);
    }
    *out = ls_tpl_bool(found);
    return LS_OK;
}

static ls_status m_startswith(ls_tpl_run *r, const ls_tpl_value *s, const ls_tpl_args *a, ls_tpl_value *o) {
    return test_end(r, s, a, true, o);
}

static ls_status m_endswith(ls_tpl_run *r, const ls_tpl_value *s, const ls_tpl_args *a, ls_tpl_value *o) {
    return test_end(r, s, a, false, o);
}

static ls_status remove_end(ls_tpl_run *run, const ls_tpl_value *self, const ls_tpl_args *args, bool at_start,
                            ls_tpl_value *out) {
    const ls_tpl_value *a[LS_TPL_PARAMETERS_MAX];
    LS_TRY(ls_tpl_bind(run, "removeprefix and removesuffix", args, "prefix", 1, a));
    LS_TRY(ls_tpl_want_text(run, "removeprefix and removesuffix", a[0]));
    *out = *self;
    if (has_end(self, a[0], at_start))
        *out = ls_tpl_text_of(self->text + (at_start ? a[0]->bytes : 0), self->bytes - a[0]->bytes);
    return LS_OK;
}

static ls_status m_removeprefix(ls_tpl_run *r, const ls_tpl_value *s, const ls_tpl_args *a, ls_tpl_value *o) {
    return remove_end(r, s, a, true, o);
}

static ls_status m_removesuffix(ls_tpl_run *r, const ls_tpl_value *s, const ls_tpl_args *a, ls_tpl_value *o) {
    return remove_end(r, s, a, false, o);
}

static ls_status m_replace(ls_tpl_run *r, const ls_tpl_value *s, const ls_tpl_args *args, ls_tpl_value *o) {
    const ls_tpl_value *a[LS_TPL_PARAMETERS_MAX];
    int64_t count = -1;
    LS_TRY(ls_tpl_bind(r, "replace", args, "old new count", 2, a));
    LS_TRY(ls_tpl_want_text(r, "replace", a[0]));
    LS_TRY(ls_tpl_want_text(r, "replace", a[1]));
    if (a[2] != NULL) LS_TRY(ls_tpl_want_int(r, "replace", a[2], &count));
    return ls_tpl_replace(r, s, a[0], a[1], count, o);
}

static ls_status change_case(ls_tpl_run *r, const ls_tpl_value *s, const ls_tpl_args *args, ls_tpl_case to,
                             ls_tpl_value *o) {
    const ls_tpl_value *a[LS_TPL_PARAMETERS_MAX];
    LS_TRY(ls_tpl_bind(r, "a change of case", args, "", 0, a));
    return ls_tpl_change_case(r, s, to, o);
}

static ls_status m_upper(ls_tpl_run *r, const ls_tpl_value *s, const ls_tpl_args *a, ls_tpl_value *o) {
    return change_case(r, s, a, LS_TPL_TO_UPPER, o);
}

static ls_status m_lower(ls_tpl_run *r, const ls_tpl_value *s, const ls_tpl_args *a, ls_tpl_value *o) {
    return change_case(r, s, a, LS_TPL_TO_LOWER, o);
}

static ls_status m_title(ls_tpl_run *r, const ls_tpl_value *s, const ls_tpl_args *a, ls_tpl_value *o) {
    return change_case(r, s, a, LS_TPL_TO_TITLE, o);
}

static ls_status m_capitalize(ls_tpl_run *r, const ls_tpl_value *s, const ls_tpl_args *a, ls_tpl_value *o) {
    return change_case(r, s, a, LS_TPL_TO_CAPITALIZED, o);
}

static ls_status m_join(ls_tpl_run *r, const ls_tpl_value *s, const ls_tpl_args *args, ls_tpl_value *o) {
    const ls_tpl_value *a[LS_TPL_PARAMETERS_MAX];
    const ls_tpl_list *list;
    ls_tpl_text text = {0};
    LS_TRY(ls_tpl_bind(r, "join", args, "iterable", 1, a));
    LS_TRY(ls_tpl_iterate(r, a[0], &list));
    for (int64_t i = 0; i < list->n; i++) {
        LS_TRY(ls_tpl_want_text(r, "join", &list->items[i]));
        if (i > 0) LS_TRY(ls_tpl_append(r, &text, s->text, s->bytes));
        LS_TRY(ls_tpl_append(r, &text, list->items[i].text, list->items[i].bytes));
    }
    *o = ls_tpl_built(&text);
    return LS_OK;
}

/* The place of the part, first or last, in code points, or -1. */
static ls_status find_part(ls_tpl_run *r, const ls_tpl_value *s, const ls_tpl_args *args, bool last, ls_tpl_value *o) {
    const ls_tpl_value *a[LS_TPL_PARAMETERS_MAX];
    int64_t at = -1, place = -1;
    LS_TRY(ls_tpl_bind(r, "find", args, "sub", 1, a));
    LS_TRY(ls_tpl_want_text(r, "find", a[0]));
    LS_TRY(ls_tpl_step(r, s->bytes / 8));
    for (int64_t i = 0; i + a[0]->bytes <= s->bytes && (last || at < 0); i++)
        if (memcmp(s->text + i, a[0]->text, (size_t)a[0]->bytes) == 0) at = i;
    if (at >= 0) {
        const ls_tpl_value before = ls_tpl_text_of(s->text, at);
        LS_TRY(ls_tpl_length(r, &before, &place));
    }
    *o = ls_tpl_int(place);
    return LS_OK;
}

static ls_status m_find(ls_tpl_run *r, const ls_tpl_value *s, const ls_tpl_args *a, ls_tpl_value *o) {
    return find_part(r, s, a, false, o);
}

static ls_status m_rfind(ls_tpl_run *r, const ls_tpl_value *s, const ls_tpl_args *a, ls_tpl_value *o) {
    return find_part(r, s, a, true, o);
}

static ls_status m_count_text(ls_tpl_run *r, const ls_tpl_value *s, const ls_tpl_args *args, ls_tpl_value *o) {
    const ls_tpl_value *a[LS_TPL_PARAMETERS_MAX];
    int64_t n = 0;
    LS_TRY(ls_tpl_bind(r, "count", args, "sub", 1, a));
    LS_TRY(ls_tpl_want_text(r, "count", a[0]));
    if (a[0]->bytes == 0) return ls_tpl_fail(r, LS_ERR_UNSUPPORTED, "count of an empty text is not supported");
    for (const char *at = s->text; at != NULL; n++) {
        at = memmem(at, (size_t)(s->text + s->bytes - at), a[0]->text, (size_t)a[0]->bytes);
        if (at == NULL) break;
        at += a[0]->bytes;
        LS_TRY(ls_tpl_step(r, 1));
    }
    *o = ls_tpl_int(n);
    return LS_OK;
}

/* The argument that a field of a format names: a number, a name, or nothing for the next. */
static const ls_tpl_value *format_field(const ls_tpl_args *args, const char *name, int64_t bytes, int64_t *next) {
    int64_t place = 0;
    if (bytes == 0) return *next >= 0 && *next < args->n ? &args->list[(*next)++] : NULL;
    for (int64_t i = 0; i < args->n_named; i++)
        if (args->named[i].bytes == bytes && memcmp(args->named[i].name, name, (size_t)bytes) == 0)
            return &args->named[i].value;
    for (int64_t i = 0; i < bytes; i++) {
        if (name[i] < '0' || name[i] > '9' || place > args->n) return NULL;
        place = place * 10 + name[i] - '0';
    }
    if (*next > 0 || place >= args->n) return NULL; /* places are all given, or none */
    *next = -1;
    return &args->list[place];
}

/* str.format with fields that are a place or a name alone. */
static ls_status m_format(ls_tpl_run *r, const ls_tpl_value *s, const ls_tpl_args *args, ls_tpl_value *o) {
    ls_tpl_text text = {0};
    int64_t next = 0;
    for (int64_t at = 0; at < s->bytes;) {
        const char c = s->text[at];
        const ls_tpl_value *value;
        const char *end;
        if ((c == '{' || c == '}') && at + 1 < s->bytes && s->text[at + 1] == c)
            at++;
        else if (c == '{') {
            end = memchr(s->text + at, '}', (size_t)(s->bytes - at));
            value = end == NULL ? NULL : format_field(args, s->text + at + 1, end - s->text - at - 1, &next);
            if (value == NULL)
                return ls_tpl_fail(r, LS_ERR_UNSUPPORTED, "format: a field that is no argument's place or name alone");
            LS_TRY(ls_tpl_str(r, value, &text));
            at = end - s->text + 1;
            continue;
        } else if (c == '}') {
            return ls_tpl_fail(r, LS_ERR_ARG, "format: a '}' closes nothing");
        }
        LS_TRY(ls_tpl_append(r, &text, s->text + at, 1));
        at++;
    }
    *o = ls_tpl_built(&text);
    return LS_OK;
}

static bool is_alpha(int32_t code) { return ls_code_is_letter(code); }

static bool code_is_digit(int32_t code) { return ls_code_is_digit(code); }

/* Whether all characters are of a kind, and there is one. */
static ls_status all_are(ls_tpl_run *r, const ls_tpl_value *s, const ls_tpl_args *args, bool (*is)(int32_t),
                         ls_tpl_value *o) {
    const ls_tpl_value *a[LS_TPL_PARAMETERS_MAX];
    bool all = s->bytes > 0;
    LS_TRY(ls_tpl_bind(r, "a question about characters", args, "", 0, a));
    for (int64_t at = 0; at < s->bytes && all;) {
        int32_t code;
        at += ls_utf8_decode((const uint8_t *)s->text + at, s->bytes - at, &code);
        if (is != ls_tpl_is_space && code >= 0x80)
            return ls_tpl_fail(r, LS_ERR_UNSUPPORTED, "isdigit and isalpha of U+%04X are not supported",
                               (unsigned)code);
        all = is(code);
    }
    *o = ls_tpl_bool(all);
    return LS_OK;
}

static ls_status m_isdigit(ls_tpl_run *r, const ls_tpl_value *s, const ls_tpl_args *a, ls_tpl_value *o) {
    return all_are(r, s, a, code_is_digit, o);
}

static ls_status m_isalpha(ls_tpl_run *r, const ls_tpl_value *s, const ls_tpl_args *a, ls_tpl_value *o) {
    return all_are(r, s, a, is_alpha, o);
}

static ls_status m_isspace(ls_tpl_run *r, const ls_tpl_value *s, const ls_tpl_args *a, ls_tpl_value *o) {
    return all_are(r, s, a, ls_tpl_is_space, o);
}

/* ---- methods of dicts, lists and the loop ---- */

static ls_status m_get(ls_tpl_run *r, const ls_tpl_value *s, const ls_tpl_args *args, ls_tpl_value *o) {
    const ls_tpl_value *a[LS_TPL_PARAMETERS_MAX], *found;
    LS_TRY(ls_tpl_bind(r, "get", args, "key default", 1, a));
    found = ls_tpl_dict_find(s->dict, a[0]);
    *o = found != NULL ? *found : a[1] != NULL ? *a[1] : ls_tpl_none();
    return LS_OK;
}

enum { WITH_KEYS = 1, WITH_VALUES = 2 };

static ls_status view(ls_tpl_run *r, const ls_tpl_value *s, const ls_tpl_args *args, int parts, ls_tpl_value *o) {
    const ls_tpl_value *a[LS_TPL_PARAMETERS_MAX];
    LS_TRY(ls_tpl_bind(r, "a view of a dict", args, "", 0, a));
    LS_TRY(ls_tpl_make_list(r, LS_TPL_FORM_VIEW, o));
    for (int64_t i = 0; i < s->dict->n; i++) {
        const ls_tpl_entry *entry = &s->dict->entries[i];
        ls_tpl_value pair = parts == WITH_KEYS ? entry->key : entry->value;
        if (parts == (WITH_KEYS | WITH_VALUES)) {
            LS_TRY(ls_tpl_make_list(r, LS_TPL_FORM_TUPLE, &pair));
            LS_TRY(ls_tpl_push(r, &pair, entry->key));
            LS_TRY(ls_tpl_push(r, &pair, entry->value));
        }
        LS_TRY(ls_tpl_push(r, o, pair));
    }
    return LS_OK;
}

static ls_status m_items(ls_tpl_run *r, const ls_tpl_value *s, const ls_tpl_args *a, ls_tpl_value *o) {
    return view(r, s, a, WITH_KEYS | WITH_VALUES, o);
}

static ls_status m_keys(ls_tpl_run *r, const ls_tpl_value *s, const ls_tpl_args *a, ls_tpl_value *o) {
    return view(r, s, a, WITH_KEYS, o);
}

static ls_status m_values(ls_tpl_run *r, const ls_tpl_value *s, const ls_tpl_args *a, ls_tpl_value *o) {
    return view(r, s, a, WITH_VALUES, o);
}

static ls_status m_copy_dict(ls_tpl_run *r, const ls_tpl_value *s, const ls_tpl_args *args, ls_tpl_value *o) {
    const ls_tpl_value *a[LS_TPL_PARAMETERS_MAX];
    LS_TRY(ls_tpl_bind(r, "copy", args, "", 0, a));
    LS_TRY(ls_tpl_make_dict(r, o));
    for (int64_t i = 0; i < s->dict->n; i++)
        LS_TRY(ls_tpl_dict_set(r, o->dict, s->dict->entries[i].key, s->dict->entries[i].value));
    return LS_OK;
}

static ls_status m_count_list(ls_tpl_run *r, const ls_tpl_value *s, const ls_tpl_args *args, ls_tpl_value *o) {
    const ls_tpl_value *a[LS_TPL_PARAMETERS_MAX];
    int64_t n = 0;
    LS_TRY(ls_tpl_bind(r, "count", args, "value", 1, a));
    for (int64_t i = 0; i < s->list->n; i++) {
        bool same;
        LS_TRY(ls_tpl_equal(r, &s->list->items[i], a[0], &same));
        n += same;
    }
    *o = ls_tpl_int(n);
    return LS_OK;
}

static ls_status m_index_list(ls_tpl_run *r, const ls_tpl_value *s, const ls_tpl_args *args, ls_tpl_value *o) {
    const ls_tpl_value *a[LS_TPL_PARAMETERS_MAX];
    LS_TRY(ls_tpl_bind(r, "index", args, "value", 1, a));
    for (int64_t i = 0; i < s->list->n; i++) {
        bool same;
        LS_TRY(ls_tpl_equal(r, &s->list->items[i], a[0], &same));
        *o = ls_tpl_int(i);
        if (same) return LS_OK;
    }
    return ls_tpl_fail(r, LS_ERR_ARG, "index: the value is not in the list");
}

static ls_status m_cycle(ls_tpl_run *r, const ls_tpl_value *s, const ls_tpl_args *args, ls_tpl_value *o) {
    if (args->n == 0 || args->n_named > 0) return ls_tpl_fail(r, LS_ERR_ARG, "cycle: what to go through is missing");
    *o = args->list[s->loop->at % args->n];
    return LS_OK;
}

static ls_status m_changed(ls_tpl_run *r, const ls_tpl_value *s, const ls_tpl_args *args, ls_tpl_value *o) {
    ls_tpl_loop *loop = s->loop;
    ls_tpl_value now;
    bool same = false;
    LS_TRY(ls_tpl_make_list(r, LS_TPL_FORM_TUPLE, &now));
    for (int64_t i = 0; i < args->n; i++) LS_TRY(ls_tpl_push(r, &now, args->list[i]));
    if (loop->has_changed) LS_TRY(ls_tpl_equal(r, &loop->changed, &now, &same));
    loop->has_changed = true;
    loop->changed = now;
    *o = ls_tpl_bool(!same);
    return LS_OK;
}

typedef struct method_row {
    const char *name;
    method run;
} method_row;

static const method_row text_methods[] = {
    {"capitalize", m_capitalize},
    {"count", m_count_text},
    {"endswith", m_endswith},
    {"find", m_find},
    {"format", m_format},
    {"isalpha", m_isalpha},
    {"isdigit", m_isdigit},
    {"isspace", m_isspace},
    {"join", m_join},
    {"lower", m_lower},
    {"lstrip", m_lstrip},
    {"removeprefix", m_removeprefix},
    {"removesuffix", m_removesuffix},
    {"replace", m_replace},
    {"rfind", m_rfind},
    {"rsplit", m_rsplit},
    {"rstrip", m_rstrip},
    {"split", m_split},
    {"splitlines", m_splitlines},
    {"startswith", m_startswith},
    {"strip", m_strip},
    {"title", m_title},
    {"upper", m_upper},
    {NULL, NULL},
};
static const method_row dict_methods[] = {{"copy", m_copy_dict}, {"get", m_get},       {"items", m_items},
                                          {"keys", m_keys},      {"values", m_values}, {NULL, NULL}};
static const method_row list_methods[] = {{"count", m_count_list}, {"index", m_index_list}, {NULL, NULL}};
static const method_row loop_methods[] = {{"changed", m_changed}, {"cycle", m_cycle}, {NULL, NULL}};

ls_status ls_tpl_call_method(ls_tpl_run *run, const ls_tpl_value *m, const ls_tpl_args *args, ls_tpl_value *out) {
    const ls_tpl_value *self = m->self;
    const method_row *rows = self->kind == LS_TPL_TEXT   ? text_methods
                             : self->kind == LS_TPL_DICT ? dict_methods
                             : self->kind == LS_TPL_LIST ? list_methods
                                                         : loop_methods;
    if (self->kind == LS_TPL_TEXT && self->markup) return ls_tpl_want_text(run, m->text, self);
    for (; rows->name != NULL; rows++)
        if (strcmp(rows->name, m->text) == 0) return rows->run(run, self, args, out);
    return ls_tpl_fail(run, LS_ERR_UNSUPPORTED, "the method '%.60s' of %s is not supported", m->text,
                       ls_tpl_kind_name(self));
}
