/* Tests; owns nothing. */
#include "template/template_tests.h"

#include <string.h>

#include "base/utf8.h"
#include "text/unicode.h"

typedef ls_status (*test)(ls_tpl_run *run, const ls_tpl_value *v, const ls_tpl_value *argument, bool *out);

/* Tests that only look at what kind of value it is. */
static bool is_kind(const char *name, const ls_tpl_value *v, bool *out) {
    const ls_tpl_kind k = v->kind;
    const bool is_list = k == LS_TPL_LIST;
    const struct {
        const char *name;
        bool truth;
    } kinds[] = {
        {"defined", k != LS_TPL_UNDEFINED},
        {"undefined", k == LS_TPL_UNDEFINED},
        {"none", k == LS_TPL_NONE},
        {"boolean", k == LS_TPL_BOOL},
        {"true", k == LS_TPL_BOOL && v->integer != 0},
        {"false", k == LS_TPL_BOOL && v->integer == 0},
        {"integer", k == LS_TPL_INT},
        {"float", k == LS_TPL_FLOAT},
        {"number", ls_tpl_is_number(v)},
        {"string", k == LS_TPL_TEXT},
        {"mapping", k == LS_TPL_DICT},
        {"iterable", k == LS_TPL_TEXT || is_list || k == LS_TPL_DICT || k == LS_TPL_UNDEFINED},
        {"sequence", k == LS_TPL_TEXT || k == LS_TPL_DICT || (is_list && v->list->form <= LS_TPL_FORM_RANGE)},
        {"callable", k == LS_TPL_FUNCTION || k == LS_TPL_METHOD || k == LS_TPL_CALLABLE},
    };
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (strcmp(kinds[i].name, name) != 0) continue;
        *out = kinds[i].truth;
        return true;
    }
    return false;
}

static ls_status t_eq(ls_tpl_run *run, const ls_tpl_value *v, const ls_tpl_value *a, bool *out) {
    return ls_tpl_equal(run, v, a, out);
}

static ls_status t_ne(ls_tpl_run *run, const ls_tpl_value *v, const ls_tpl_value *a, bool *out) {
    LS_TRY(ls_tpl_equal(run, v, a, out));
    *out = !*out;
    return LS_OK;
}

static ls_status t_lt(ls_tpl_run *run, const ls_tpl_value *v, const ls_tpl_value *a, bool *out) {
    int order;
    LS_TRY(ls_tpl_compare(run, v, a, &order));
    *out = order < 0;
    return LS_OK;
}

static ls_status t_le(ls_tpl_run *run, const ls_tpl_value *v, const ls_tpl_value *a, bool *out) {
    int order;
    LS_TRY(ls_tpl_compare(run, v, a, &order));
    *out = order <= 0;
    return LS_OK;
}

static ls_status t_gt(ls_tpl_run *run, const ls_tpl_value *v, const ls_tpl_value *a, bool *out) {
    return t_lt(run, a, v, out);
}

static ls_status t_ge(ls_tpl_run *run, const ls_tpl_value *v, const ls_tpl_value *a, bool *out) {
    return t_le(run, a, v, out);
}

static ls_status t_in(ls_tpl_run *run, const ls_tpl_value *v, const ls_tpl_value *a, bool *out) {
    return ls_tpl_contains(run, a, v, out);
}

static ls_status t_sameas(ls_tpl_run *run, const ls_tpl_value *v, const ls_tpl_value *a, bool *out) {
    if (v->kind > LS_TPL_BOOL && a->kind > LS_TPL_BOOL)
        return ls_tpl_fail(run, LS_ERR_UNSUPPORTED, "sameas: only none and truth values are the same object for sure");
    *out = v->kind == a->kind && (v->kind != LS_TPL_BOOL || v->integer == a->integer);
    return LS_OK;
}

static ls_status remainder_of(ls_tpl_run *run, const ls_tpl_value *v, int64_t by, int64_t *out) {
    LS_TRY(ls_tpl_want_int(run, "a test of a remainder", v, out));
    if (by == 0) return ls_tpl_fail(run, LS_ERR_ARG, "divisibleby: a division by 0");
    *out = by == -1 ? 0 : *out % by;
    return LS_OK;
}

static ls_status t_divisibleby(ls_tpl_run *run, const ls_tpl_value *v, const ls_tpl_value *a, bool *out) {
    int64_t by, rest;
    LS_TRY(ls_tpl_want_int(run, "divisibleby", a, &by));
    LS_TRY(remainder_of(run, v, by, &rest));
    *out = rest == 0;
    return LS_OK;
}

static ls_status t_odd(ls_tpl_run *run, const ls_tpl_value *v, const ls_tpl_value *a, bool *out) {
    int64_t rest;
    (void)a;
    LS_TRY(remainder_of(run, v, 2, &rest));
    *out = rest != 0;
    return LS_OK;
}

static ls_status t_even(ls_tpl_run *run, const ls_tpl_value *v, const ls_tpl_value *a, bool *out) {
    LS_TRY(t_odd(run, v, a, out));
    *out = !*out;
    return LS_OK;
}

/* str(value).isupper() or islower(): a letter of this case, and none of the other. */
static ls_status is_case(ls_tpl_run *run, const ls_tpl_value *v, bool upper, bool *out) {
    ls_tpl_value text;
    bool found = false;
    *out = true;
    LS_TRY(ls_tpl_str_value(run, v, &text));
    for (int64_t at = 0; at < text.bytes;) {
        int32_t code;
        at += ls_utf8_decode((const uint8_t *)text.text + at, text.bytes - at, &code);
        found = found || (upper ? ls_code_is_upper(code) : ls_code_is_lower(code));
        if (upper ? ls_code_is_lower(code) : ls_code_is_upper(code)) *out = false;
    }
    *out = *out && found;
    return LS_OK;
}

static ls_status t_upper(ls_tpl_run *run, const ls_tpl_value *v, const ls_tpl_value *a, bool *out) {
    (void)a;
    return is_case(run, v, true, out);
}

static ls_status t_lower(ls_tpl_run *run, const ls_tpl_value *v, const ls_tpl_value *a, bool *out) {
    (void)a;
    return is_case(run, v, false, out);
}

static const struct {
    const char *name;
    int64_t arguments;
    test run;
} tests[] = {
    {"==", 1, t_eq},          {"eq", 1, t_eq},         {"equalto", 1, t_eq},
    {"!=", 1, t_ne},          {"ne", 1, t_ne},         {"<", 1, t_lt},
    {"lt", 1, t_lt},          {"lessthan", 1, t_lt},   {"<=", 1, t_le},
    {"le", 1, t_le},          {">", 1, t_gt},          {"gt", 1, t_gt},
    {"greaterthan", 1, t_gt}, {">=", 1, t_ge},         {"ge", 1, t_ge},
    {"in", 1, t_in},          {"sameas", 1, t_sameas}, {"divisibleby", 1, t_divisibleby},
    {"odd", 0, t_odd},        {"even", 0, t_even},     {"upper", 0, t_upper},
    {"lower", 0, t_lower},
};

ls_status ls_tpl_test(ls_tpl_run *run, const char *name, int64_t bytes, const ls_tpl_value *v, const ls_tpl_args *args,
                      bool *out) {
    char text[40] = "";
    LS_TRY(ls_tpl_step(run, 1));
    if (bytes < (int64_t)sizeof text) memcpy(text, name, (size_t)bytes);
    if (args->n_named > 0) return ls_tpl_fail(run, LS_ERR_UNSUPPORTED, "is %s: arguments with names", text);
    if (is_kind(text, v, out)) {
        if (args->n > 0) return ls_tpl_fail(run, LS_ERR_ARG, "is %s: it takes no argument", text);
        return LS_OK;
    }
    for (size_t i = 0; i < sizeof tests / sizeof tests[0]; i++) {
        if (strcmp(tests[i].name, text) != 0) continue;
        if (args->n != tests[i].arguments)
            return ls_tpl_fail(run, LS_ERR_ARG, "is %s: it takes %lld arguments, not %lld", text,
                               (long long)tests[i].arguments, (long long)args->n);
        return tests[i].run(run, v, args->n > 0 ? &args->list[0] : NULL, out);
    }
    return ls_tpl_fail(run, LS_ERR_UNSUPPORTED, "the test '%.*s' is not supported", bytes < 60 ? (int)bytes : 60, name);
}
