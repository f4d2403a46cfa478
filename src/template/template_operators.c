/* Operators, as Python's; owns nothing. */
#include "template/template_operators.h"

#include <math.h>
#include <string.h>

static const char *name_of(ls_tpl_op op) {
    static const char *const names[] = {"+", "-", "*", "/", "//", "%", "**"};
    return names[op];
}

static ls_status refuse_operands(ls_tpl_run *run, ls_tpl_op op, const ls_tpl_value *a, const ls_tpl_value *b) {
    const ls_tpl_value *missing = a->kind == LS_TPL_UNDEFINED ? a : b;
    if (missing->kind == LS_TPL_UNDEFINED)
        return ls_tpl_fail(run, LS_ERR_ARG, "%s: '%.100s' is undefined", name_of(op),
                           missing->text != NULL ? missing->text : "");
    return ls_tpl_fail(run, LS_ERR_ARG, "%s of %s and %s", name_of(op), ls_tpl_kind_name(a), ls_tpl_kind_name(b));
}

static ls_status beyond(ls_tpl_run *run, ls_tpl_op op) {
    return ls_tpl_fail(run, LS_ERR_UNSUPPORTED, "%s: the result is beyond 64 bits", name_of(op));
}

/* Quotient rounded down, and what is left. */
static ls_status divide(ls_tpl_run *run, ls_tpl_op op, int64_t x, int64_t y, int64_t *quotient, int64_t *rest) {
    if (y == 0) return ls_tpl_fail(run, LS_ERR_ARG, "%s: a division by 0", name_of(op));
    if (y == -1 && x == INT64_MIN) return beyond(run, op);
    *quotient = x / y;
    *rest = x % y;
    if (*rest != 0 && (*rest < 0) != (y < 0)) {
        *quotient -= 1;
        *rest += y;
    }
    return LS_OK;
}

static ls_status power(ls_tpl_run *run, int64_t base, int64_t exponent, ls_tpl_value *out) {
    int64_t result = 1;
    if (exponent < 0) {
        if (base == 0) return ls_tpl_fail(run, LS_ERR_ARG, "**: a division by 0");
        *out = ls_tpl_real(pow((double)base, (double)exponent));
        return LS_OK;
    }
    if (base == 0 || base == 1 || base == -1) exponent = base == -1 ? exponent % 2 : exponent > 0;
    for (; exponent > 0; exponent--)
        if (__builtin_mul_overflow(result, base, &result)) return beyond(run, LS_TPL_POW);
    *out = ls_tpl_int(result);
    return LS_OK;
}

static ls_status of_integers(ls_tpl_run *run, ls_tpl_op op, int64_t x, int64_t y, ls_tpl_value *out) {
    int64_t result = 0, rest = 0;
    bool over = false;
    switch (op) {
        case LS_TPL_ADD: over = __builtin_add_overflow(x, y, &result); break;
        case LS_TPL_SUB: over = __builtin_sub_overflow(x, y, &result); break;
        case LS_TPL_MUL: over = __builtin_mul_overflow(x, y, &result); break;
        case LS_TPL_DIV:
            if (y == 0) return ls_tpl_fail(run, LS_ERR_ARG, "/: a division by 0");
            *out = ls_tpl_real((double)x / (double)y);
            return LS_OK;
        case LS_TPL_FLOOR_DIV: LS_TRY(divide(run, op, x, y, &result, &rest)); break;
        case LS_TPL_MOD: LS_TRY(divide(run, op, x, y, &rest, &result)); break;
        case LS_TPL_POW: return power(run, x, y, out);
        default: LS_ASSERT(false, "operator %d", (int)op);
    }
    *out = ls_tpl_int(result);
    return over ? beyond(run, op) : LS_OK;
}

static ls_status of_reals(ls_tpl_run *run, ls_tpl_op op, double x, double y, ls_tpl_value *out) {
    double rest;
    if ((op == LS_TPL_DIV || op == LS_TPL_FLOOR_DIV || op == LS_TPL_MOD) && y == 0)
        return ls_tpl_fail(run, LS_ERR_ARG, "%s: a division by 0", name_of(op));
    switch (op) {
        case LS_TPL_ADD: *out = ls_tpl_real(x + y); break;
        case LS_TPL_SUB: *out = ls_tpl_real(x - y); break;
        case LS_TPL_MUL: *out = ls_tpl_real(x * y); break;
        case LS_TPL_DIV: *out = ls_tpl_real(x / y); break;
        case LS_TPL_FLOOR_DIV: *out = ls_tpl_real(floor(x / y)); break;
        case LS_TPL_MOD:
            rest = fmod(x, y);
            *out = ls_tpl_real(rest != 0 && (rest < 0) != (y < 0) ? rest + y : rest);
            break;
        case LS_TPL_POW: *out = ls_tpl_real(pow(x, y)); break;
        default: LS_ASSERT(false, "operator %d", (int)op);
    }
    return LS_OK;
}

/* A text beside one that is safe is escaped, as markupsafe does it. */
static ls_status append_escaped(ls_tpl_run *run, ls_tpl_text *out, const ls_tpl_value *text) {
    static const char from[] = "&<>'\"";
    static const char *const to[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
    for (int64_t i = 0; i < text->bytes; i++) {
        const char *found = text->text[i] != '\0' ? strchr(from, text->text[i]) : NULL;
        if (found != NULL)
            LS_TRY(ls_tpl_append_string(run, out, to[found - from]));
        else
            LS_TRY(ls_tpl_append(run, out, text->text + i, 1));
    }
    return LS_OK;
}

static ls_status join_texts(ls_tpl_run *run, const ls_tpl_value *a, const ls_tpl_value *b, ls_tpl_value *out) {
    ls_tpl_text text = {0};
    const bool markup = a->markup || b->markup;
    if (markup && !a->markup)
        LS_TRY(append_escaped(run, &text, a));
    else
        LS_TRY(ls_tpl_append(run, &text, a->text, a->bytes));
    if (markup && !b->markup)
        LS_TRY(append_escaped(run, &text, b));
    else
        LS_TRY(ls_tpl_append(run, &text, b->text, b->bytes));
    *out = ls_tpl_built(&text);
    out->markup = markup;
    return LS_OK;
}

static ls_status join_lists(ls_tpl_run *run, const ls_tpl_list *a, const ls_tpl_list *b, ls_tpl_value *out) {
    LS_TRY(ls_tpl_make_list(run, a->form, out));
    for (int64_t i = 0; i < a->n; i++) LS_TRY(ls_tpl_push(run, out, a->items[i]));
    for (int64_t i = 0; i < b->n; i++) LS_TRY(ls_tpl_push(run, out, b->items[i]));
    return LS_OK;
}

static ls_status repeat(ls_tpl_run *run, const ls_tpl_value *what, int64_t times, ls_tpl_value *out) {
    ls_tpl_text text = {0};
    if (what->kind == LS_TPL_TEXT && what->markup)
        return ls_tpl_fail(run, LS_ERR_UNSUPPORTED, "* of a text that is safe is not supported");
    if (what->kind == LS_TPL_LIST) LS_TRY(ls_tpl_make_list(run, what->list->form, out));
    for (int64_t i = 0; i < times; i++) {
        LS_TRY(ls_tpl_step(run, 1));
        if (what->kind == LS_TPL_TEXT) LS_TRY(ls_tpl_append(run, &text, what->text, what->bytes));
        for (int64_t k = 0; what->kind == LS_TPL_LIST && k < what->list->n; k++)
            LS_TRY(ls_tpl_push(run, out, what->list->items[k]));
    }
    if (what->kind == LS_TPL_TEXT) *out = ls_tpl_built(&text);
    return LS_OK;
}

static bool is_whole(const ls_tpl_value *v) { return v->kind == LS_TPL_INT || v->kind == LS_TPL_BOOL; }

static bool is_repeated(const ls_tpl_value *v) {
    return v->kind == LS_TPL_TEXT || (v->kind == LS_TPL_LIST && v->list->form <= LS_TPL_FORM_TUPLE);
}

ls_status ls_tpl_binary(ls_tpl_run *run, ls_tpl_op op, const ls_tpl_value *a, const ls_tpl_value *b,
                        ls_tpl_value *out) {
    if (is_whole(a) && is_whole(b)) return of_integers(run, op, a->integer, b->integer, out);
    if (ls_tpl_is_number(a) && ls_tpl_is_number(b)) return of_reals(run, op, ls_tpl_number(a), ls_tpl_number(b), out);
    if (op == LS_TPL_ADD && a->kind == LS_TPL_TEXT && b->kind == LS_TPL_TEXT) return join_texts(run, a, b, out);
    if (op == LS_TPL_ADD && a->kind == LS_TPL_LIST && b->kind == LS_TPL_LIST && is_repeated(a) &&
        a->list->form == b->list->form)
        return join_lists(run, a->list, b->list, out);
    if (op == LS_TPL_MUL && is_repeated(a) && is_whole(b)) return repeat(run, a, b->integer, out);
    if (op == LS_TPL_MUL && is_whole(a) && is_repeated(b)) return repeat(run, b, a->integer, out);
    if (op == LS_TPL_MOD && a->kind == LS_TPL_TEXT)
        return ls_tpl_fail(run, LS_ERR_UNSUPPORTED, "%% of a text, which formats, is not supported");
    return refuse_operands(run, op, a, b);
}

ls_status ls_tpl_operand(ls_tpl_run *run, ls_tpl_op op, const ls_tpl_value *a, const ls_tpl_value *b, bool *out) {
    int order = 0;
    if (op == LS_TPL_IN || op == LS_TPL_NOT_IN)
        LS_TRY(ls_tpl_contains(run, b, a, out));
    else if (op == LS_TPL_EQ || op == LS_TPL_NE)
        LS_TRY(ls_tpl_equal(run, a, b, out));
    else
        LS_TRY(ls_tpl_compare(run, a, b, &order));
    if (op == LS_TPL_NOT_IN || op == LS_TPL_NE) *out = !*out;
    if (op == LS_TPL_LT) *out = order < 0;
    if (op == LS_TPL_LE) *out = order <= 0;
    if (op == LS_TPL_GT) *out = order > 0;
    if (op == LS_TPL_GE) *out = order >= 0;
    return LS_OK;
}

ls_status ls_tpl_sign(ls_tpl_run *run, bool negative, const ls_tpl_value *a, ls_tpl_value *out) {
    if (!ls_tpl_is_number(a)) return ls_tpl_fail(run, LS_ERR_ARG, "a sign before %s", ls_tpl_kind_name(a));
    if (a->kind == LS_TPL_FLOAT) {
        *out = ls_tpl_real(negative ? -a->real : a->real);
        return LS_OK;
    }
    if (negative && a->integer == INT64_MIN) return beyond(run, LS_TPL_SUB);
    *out = ls_tpl_int(negative ? -a->integer : a->integer);
    return LS_OK;
}
