/* Expressions of templates. Owns nothing: nodes are the arena's. */
#include "template/template_expression.h"

#include <string.h>

static const ls_tpl_token *here(const ls_tpl_parser *p) { return &p->tokens[p->at]; }

static bool is_text(const ls_tpl_token *t, const char *text) {
    return t->bytes == (int64_t)strlen(text) && memcmp(t->text, text, (size_t)t->bytes) == 0;
}

bool ls_tpl_is_name(const ls_tpl_parser *p, const char *name) {
    return here(p)->kind == LS_TPL_NAME && is_text(here(p), name);
}

bool ls_tpl_is_op(const ls_tpl_parser *p, const char *op) {
    return here(p)->kind == LS_TPL_OPERATOR && is_text(here(p), op);
}

/* The token after the next. */
static bool is_name_behind(const ls_tpl_parser *p, const char *name) {
    const ls_tpl_token *t = here(p)->kind == LS_TPL_END ? here(p) : here(p) + 1;
    return t->kind == LS_TPL_NAME && is_text(t, name);
}

bool ls_tpl_skip_name(ls_tpl_parser *p, const char *name) {
    const bool found = ls_tpl_is_name(p, name);
    p->at += found;
    return found;
}

bool ls_tpl_skip_op(ls_tpl_parser *p, const char *op) {
    const bool found = ls_tpl_is_op(p, op);
    p->at += found;
    return found;
}

ls_status ls_tpl_unexpected(ls_tpl_parser *p, const char *expected) {
    const ls_tpl_token *t = here(p);
    p->run->line = t->line;
    switch (t->kind) {
        case LS_TPL_END: return ls_tpl_fail(p->run, LS_ERR_FORMAT, "the template ends, expected %s", expected);
        case LS_TPL_BLOCK_END:
        case LS_TPL_PRINT_END: return ls_tpl_fail(p->run, LS_ERR_FORMAT, "the tag ends, expected %s", expected);
        case LS_TPL_DATA:
        case LS_TPL_BLOCK_BEGIN:
        case LS_TPL_PRINT_BEGIN:
        case LS_TPL_NAME:
        case LS_TPL_STRING:
        case LS_TPL_INTEGER:
        case LS_TPL_REAL:
        case LS_TPL_OPERATOR: break;
    }
    return ls_tpl_fail(p->run, LS_ERR_FORMAT, "found '%.*s', expected %s", t->bytes < 60 ? (int)t->bytes : 60,
                       t->text != NULL ? t->text : "", expected);
}

ls_status ls_tpl_expect_op(ls_tpl_parser *p, const char *op) {
    char expected[8] = "'";
    strncat(expected, op, 3);
    strncat(expected, "'", 2);
    return ls_tpl_skip_op(p, op) ? LS_OK : ls_tpl_unexpected(p, expected);
}

ls_status ls_tpl_expect_name(ls_tpl_parser *p, const ls_tpl_token **out) {
    if (here(p)->kind != LS_TPL_NAME) return ls_tpl_unexpected(p, "a name");
    *out = &p->tokens[p->at++];
    return LS_OK;
}

ls_status ls_tpl_make(ls_tpl_parser *p, ls_tpl_node_kind kind, ls_tpl_node **out) {
    LS_TRY(ls_tpl_alloc(p->run, (void **)out, 1, sizeof **out));
    (*out)->kind = kind;
    (*out)->line = p->run->line = here(p)->line;
    return LS_OK;
}

ls_status ls_tpl_add_item(ls_tpl_parser *p, ls_tpl_node *list, ls_tpl_node *item) {
    LS_TRY(ls_tpl_grow(p->run, (void **)&list->items, &list->cap, list->n + 1, sizeof *list->items));
    list->items[list->n++] = item;
    return LS_OK;
}

/* Node `kind` over a and b. */
static ls_status make_over(ls_tpl_parser *p, ls_tpl_node_kind kind, ls_tpl_node *a, ls_tpl_node *b, ls_tpl_node **out) {
    LS_TRY(ls_tpl_make(p, kind, out));
    (*out)->a = a;
    (*out)->b = b;
    if (a != NULL) (*out)->line = a->line;
    return LS_OK;
}

static ls_status make_text(ls_tpl_parser *p, ls_tpl_node_kind kind, const ls_tpl_token *t, ls_tpl_node **out) {
    LS_TRY(ls_tpl_make(p, kind, out));
    (*out)->text = t->text;
    (*out)->bytes = t->bytes;
    (*out)->line = t->line;
    return LS_OK;
}

/* The parser calls itself through here only, so that this counts how deep expressions nest. */
static ls_status enter_expression(ls_tpl_parser *p) {
    if (++p->run->depth <= LS_TPL_DEPTH_MAX) return LS_OK;
    return ls_tpl_fail(p->run, LS_ERR_CAPACITY, "expressions and tags nest more than %d deep", LS_TPL_DEPTH_MAX);
}

static ls_status parse_unary(ls_tpl_parser *p, bool with_filter, ls_tpl_node **out);
static ls_status parse_postfix(ls_tpl_parser *p, ls_tpl_node **node);

/* ---- primaries ---- */

static ls_status parse_strings(ls_tpl_parser *p, ls_tpl_node **out) {
    ls_tpl_text text = {0};
    LS_TRY(ls_tpl_make(p, LS_TPL_CONST_TEXT, out));
    for (; here(p)->kind == LS_TPL_STRING; p->at++) LS_TRY(ls_tpl_append(p->run, &text, here(p)->text, here(p)->bytes));
    (*out)->text = text.data != NULL ? text.data : "";
    (*out)->bytes = text.bytes;
    return LS_OK;
}

static ls_status parse_list(ls_tpl_parser *p, ls_tpl_node **out) {
    LS_TRY(ls_tpl_make(p, LS_TPL_MAKE_LIST, out));
    p->at++;
    while (!ls_tpl_is_op(p, "]")) {
        ls_tpl_node *item;
        if ((*out)->n > 0) LS_TRY(ls_tpl_expect_op(p, ","));
        if (ls_tpl_is_op(p, "]")) break;
        LS_TRY(ls_tpl_parse_expression(p, true, &item));
        LS_TRY(ls_tpl_add_item(p, *out, item));
    }
    return ls_tpl_expect_op(p, "]");
}

static ls_status parse_dict(ls_tpl_parser *p, ls_tpl_node **out) {
    LS_TRY(ls_tpl_make(p, LS_TPL_MAKE_DICT, out));
    p->at++;
    while (!ls_tpl_is_op(p, "}")) {
        ls_tpl_node *key, *value;
        if ((*out)->n > 0) LS_TRY(ls_tpl_expect_op(p, ","));
        if (ls_tpl_is_op(p, "}")) break;
        LS_TRY(ls_tpl_parse_expression(p, true, &key));
        LS_TRY(ls_tpl_expect_op(p, ":"));
        LS_TRY(ls_tpl_parse_expression(p, true, &value));
        LS_TRY(ls_tpl_add_item(p, *out, key));
        LS_TRY(ls_tpl_add_item(p, *out, value));
    }
    return ls_tpl_expect_op(p, "}");
}

/* What stands in round brackets: an expression, or a tuple, which may be empty. */
static ls_status parse_brackets(ls_tpl_parser *p, ls_tpl_node **out) {
    p->at++;
    if (ls_tpl_is_op(p, ")"))
        LS_TRY(ls_tpl_make(p, LS_TPL_MAKE_TUPLE, out));
    else
        LS_TRY(ls_tpl_parse_tuple(p, true, out));
    return ls_tpl_expect_op(p, ")");
}

static ls_status parse_name(ls_tpl_parser *p, ls_tpl_node **out) {
    static const struct {
        const char *name;
        ls_tpl_node_kind kind;
    } constants[] = {{"true", LS_TPL_CONST_TRUE},   {"True", LS_TPL_CONST_TRUE}, {"false", LS_TPL_CONST_FALSE},
                     {"False", LS_TPL_CONST_FALSE}, {"none", LS_TPL_CONST_NONE}, {"None", LS_TPL_CONST_NONE}};
    const ls_tpl_token *t = &p->tokens[p->at];
    for (size_t i = 0; i < sizeof constants / sizeof constants[0]; i++) {
        if (!ls_tpl_is_name(p, constants[i].name)) continue;
        LS_TRY(ls_tpl_make(p, constants[i].kind, out));
        p->at++;
        return LS_OK;
    }
    LS_TRY(make_text(p, LS_TPL_VARIABLE, t, out));
    p->at++;
    return LS_OK;
}

static ls_status parse_primary(ls_tpl_parser *p, ls_tpl_node **out) {
    const ls_tpl_token *t = here(p);
    if (t->kind == LS_TPL_NAME) return parse_name(p, out);
    if (t->kind == LS_TPL_STRING) return parse_strings(p, out);
    if (t->kind == LS_TPL_INTEGER || t->kind == LS_TPL_REAL) {
        LS_TRY(ls_tpl_make(p, t->kind == LS_TPL_INTEGER ? LS_TPL_CONST_INT : LS_TPL_CONST_REAL, out));
        (*out)->integer = t->integer;
        (*out)->real = t->real;
        p->at++;
        return LS_OK;
    }
    if (ls_tpl_is_op(p, "(")) return parse_brackets(p, out);
    if (ls_tpl_is_op(p, "[")) return parse_list(p, out);
    if (ls_tpl_is_op(p, "{")) return parse_dict(p, out);
    return ls_tpl_unexpected(p, "an expression");
}

/* ---- what follows a primary ---- */

/* *expression. */
static ls_status parse_spread(ls_tpl_parser *p, ls_tpl_node **out) {
    LS_TRY(ls_tpl_make(p, LS_TPL_SPREAD, out));
    p->at++;
    return ls_tpl_parse_expression(p, true, &(*out)->a);
}

static ls_status parse_arguments(ls_tpl_parser *p, ls_tpl_node *call) {
    bool named = false, spread = false;
    LS_TRY(ls_tpl_expect_op(p, "("));
    for (int64_t i = 0; !ls_tpl_is_op(p, ")"); i++) {
        ls_tpl_node *item, *value;
        if (i > 0) LS_TRY(ls_tpl_expect_op(p, ","));
        if (ls_tpl_is_op(p, ")")) break;
        if (ls_tpl_is_op(p, "**"))
            return ls_tpl_fail(p->run, LS_ERR_UNSUPPORTED, "arguments with ** are not supported");
        if (ls_tpl_is_op(p, "*")) {
            if (spread) return ls_tpl_unexpected(p, "one argument with *");
            LS_TRY(parse_spread(p, &item));
            spread = true;
        } else if (here(p)->kind == LS_TPL_NAME && here(p)[1].kind == LS_TPL_OPERATOR && is_text(&here(p)[1], "=")) {
            LS_TRY(make_text(p, LS_TPL_KEYWORD, here(p), &item));
            p->at += 2;
            LS_TRY(ls_tpl_parse_expression(p, true, &value));
            item->a = value;
            named = true;
        } else if (named || spread) {
            return ls_tpl_unexpected(p, "an argument with a name");
        } else {
            LS_TRY(ls_tpl_parse_expression(p, true, &item));
        }
        LS_TRY(ls_tpl_add_item(p, call, item));
    }
    return ls_tpl_expect_op(p, ")");
}

static ls_status parse_call(ls_tpl_parser *p, ls_tpl_node **node) {
    ls_tpl_node *call;
    LS_TRY(make_over(p, LS_TPL_CALL, *node, NULL, &call));
    LS_TRY(parse_arguments(p, call));
    *node = call;
    return LS_OK;
}

/* One part of a slice, which may be left out. */
static ls_status parse_bound(ls_tpl_parser *p, ls_tpl_node **out) {
    *out = NULL;
    if (ls_tpl_is_op(p, ":") || ls_tpl_is_op(p, "]") || ls_tpl_is_op(p, ",")) return LS_OK;
    return ls_tpl_parse_expression(p, true, out);
}

static ls_status parse_subscript(ls_tpl_parser *p, ls_tpl_node **node) {
    ls_tpl_node *first, *got;
    p->at++;
    LS_TRY(parse_bound(p, &first));
    if (ls_tpl_skip_op(p, ":")) {
        LS_TRY(make_over(p, LS_TPL_SLICE, *node, first, &got));
        LS_TRY(parse_bound(p, &got->c));
        if (ls_tpl_skip_op(p, ":")) LS_TRY(parse_bound(p, &got->d));
    } else {
        if (first == NULL) return ls_tpl_unexpected(p, "an expression");
        LS_TRY(make_over(p, LS_TPL_INDEX, *node, first, &got));
    }
    if (ls_tpl_is_op(p, ",")) return ls_tpl_fail(p->run, LS_ERR_UNSUPPORTED, "a tuple as an index is not supported");
    *node = got;
    return ls_tpl_expect_op(p, "]");
}

static ls_status parse_dot(ls_tpl_parser *p, ls_tpl_node **node) {
    ls_tpl_node *got, *index;
    p->at++;
    if (here(p)->kind == LS_TPL_NAME) {
        LS_TRY(make_text(p, LS_TPL_ATTRIBUTE, here(p), &got));
        got->a = *node;
    } else if (here(p)->kind == LS_TPL_INTEGER) {
        LS_TRY(ls_tpl_make(p, LS_TPL_CONST_INT, &index));
        index->integer = here(p)->integer;
        LS_TRY(make_over(p, LS_TPL_INDEX, *node, index, &got));
    } else {
        return ls_tpl_unexpected(p, "a name or a number");
    }
    p->at++;
    *node = got;
    return LS_OK;
}

static ls_status parse_postfix(ls_tpl_parser *p, ls_tpl_node **node) {
    for (int32_t n = 0;; n++) {
        if (n > LS_TPL_DEPTH_MAX)
            return ls_tpl_fail(p->run, LS_ERR_CAPACITY, "a chain of more than %d parts", LS_TPL_DEPTH_MAX);
        if (ls_tpl_is_op(p, ".")) {
            LS_TRY(parse_dot(p, node));
        } else if (ls_tpl_is_op(p, "[")) {
            LS_TRY(parse_subscript(p, node));
        } else if (ls_tpl_is_op(p, "(")) {
            LS_TRY(parse_call(p, node));
        } else {
            return LS_OK;
        }
    }
}

/* The name of a filter or a test, which may have dots. */
static ls_status parse_dotted(ls_tpl_parser *p, ls_tpl_node_kind kind, ls_tpl_node **out) {
    const ls_tpl_token *t;
    LS_TRY(ls_tpl_expect_name(p, &t));
    if (ls_tpl_is_op(p, "."))
        return ls_tpl_fail(p->run, LS_ERR_UNSUPPORTED, "'%.*s.': filters and tests of modules are not supported",
                           t->bytes < 60 ? (int)t->bytes : 60, t->text);
    return make_text(p, kind, t, out);
}

static ls_status parse_filter(ls_tpl_parser *p, ls_tpl_node **node) {
    ls_tpl_node *filter;
    LS_TRY(parse_dotted(p, LS_TPL_FILTER, &filter));
    filter->a = *node;
    if (ls_tpl_is_op(p, "(")) LS_TRY(parse_arguments(p, filter));
    *node = filter;
    return LS_OK;
}

/* A test takes what stands behind it without brackets as its argument. */
static bool has_bare_argument(const ls_tpl_parser *p) {
    const ls_tpl_token *t = here(p);
    if (t->kind == LS_TPL_STRING || t->kind == LS_TPL_INTEGER || t->kind == LS_TPL_REAL) return true;
    if (ls_tpl_is_op(p, "[") || ls_tpl_is_op(p, "{")) return true;
    return t->kind == LS_TPL_NAME && !ls_tpl_is_name(p, "else") && !ls_tpl_is_name(p, "or") &&
           !ls_tpl_is_name(p, "and");
}

static ls_status parse_test(ls_tpl_parser *p, ls_tpl_node **node) {
    const bool negated = ls_tpl_skip_name(p, "not");
    ls_tpl_node *test, *argument;
    LS_TRY(parse_dotted(p, LS_TPL_TEST, &test));
    test->a = *node;
    if (ls_tpl_is_op(p, "(")) {
        LS_TRY(parse_arguments(p, test));
    } else if (has_bare_argument(p)) {
        if (ls_tpl_is_name(p, "is")) return ls_tpl_unexpected(p, "no second 'is'");
        LS_TRY(parse_primary(p, &argument));
        LS_TRY(parse_postfix(p, &argument));
        LS_TRY(ls_tpl_add_item(p, test, argument));
    }
    *node = test;
    return negated ? make_over(p, LS_TPL_NOT, test, NULL, node) : LS_OK;
}

static ls_status parse_filter_chain(ls_tpl_parser *p, ls_tpl_node **node) {
    for (int32_t n = 0;; n++) {
        if (n > LS_TPL_DEPTH_MAX)
            return ls_tpl_fail(p->run, LS_ERR_CAPACITY, "a chain of more than %d parts", LS_TPL_DEPTH_MAX);
        if (ls_tpl_skip_op(p, "|")) {
            LS_TRY(parse_filter(p, node));
        } else if (ls_tpl_skip_name(p, "is")) {
            LS_TRY(parse_test(p, node));
        } else if (ls_tpl_is_op(p, "(")) {
            LS_TRY(parse_call(p, node));
        } else {
            return LS_OK;
        }
    }
}

ls_status ls_tpl_parse_filters(ls_tpl_parser *p, ls_tpl_node **out) {
    *out = NULL;
    do {
        LS_TRY(parse_filter(p, out));
    } while (ls_tpl_skip_op(p, "|"));
    return LS_OK;
}

/* ---- operators ---- */

static ls_status parse_unary(ls_tpl_parser *p, bool with_filter, ls_tpl_node **out) {
    const bool minus = ls_tpl_is_op(p, "-");
    ls_tpl_node *inner;
    LS_TRY(enter_expression(p));
    if (minus || ls_tpl_is_op(p, "+")) {
        p->at++;
        LS_TRY(parse_unary(p, false, &inner));
        LS_TRY(make_over(p, minus ? LS_TPL_NEGATIVE : LS_TPL_POSITIVE, inner, NULL, out));
    } else {
        LS_TRY(parse_primary(p, out));
    }
    LS_TRY(parse_postfix(p, out));
    if (with_filter) LS_TRY(parse_filter_chain(p, out));
    p->run->depth--;
    return LS_OK;
}

/* An operator of a level: its sign and what it means. */
typedef struct sign {
    const char *text;
    ls_tpl_op op;
} sign;

/* Chains make deep trees, which the evaluator walks. */
static ls_status count_chain(ls_tpl_parser *p, int32_t n) {
    if (n <= LS_TPL_DEPTH_MAX) return LS_OK;
    return ls_tpl_fail(p->run, LS_ERR_CAPACITY, "a chain of more than %d operators", LS_TPL_DEPTH_MAX);
}

static ls_status parse_pow(ls_tpl_parser *p, ls_tpl_node **out) {
    LS_TRY(parse_unary(p, true, out));
    for (int32_t n = 0; ls_tpl_skip_op(p, "**"); n++) {
        ls_tpl_node *right, *left = *out;
        LS_TRY(count_chain(p, n));
        LS_TRY(parse_unary(p, true, &right));
        LS_TRY(make_over(p, LS_TPL_BINARY, left, right, out));
        (*out)->op = LS_TPL_POW;
    }
    return LS_OK;
}

static const sign *sign_here(const ls_tpl_parser *p, const sign *signs, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (ls_tpl_is_op(p, signs[i].text)) return &signs[i];
    return NULL;
}

static ls_status parse_product(ls_tpl_parser *p, ls_tpl_node **out) {
    static const sign signs[] = {{"*", LS_TPL_MUL}, {"/", LS_TPL_DIV}, {"//", LS_TPL_FLOOR_DIV}, {"%", LS_TPL_MOD}};
    const sign *found;
    LS_TRY(parse_pow(p, out));
    for (int32_t n = 0; (found = sign_here(p, signs, 4)) != NULL; n++) {
        ls_tpl_node *right, *left = *out;
        LS_TRY(count_chain(p, n));
        p->at++;
        LS_TRY(parse_pow(p, &right));
        LS_TRY(make_over(p, LS_TPL_BINARY, left, right, out));
        (*out)->op = found->op;
    }
    return LS_OK;
}

static ls_status parse_concat(ls_tpl_parser *p, ls_tpl_node **out) {
    ls_tpl_node *first, *next;
    LS_TRY(parse_product(p, &first));
    *out = first;
    if (!ls_tpl_is_op(p, "~")) return LS_OK;
    LS_TRY(ls_tpl_make(p, LS_TPL_CONCAT, out));
    LS_TRY(ls_tpl_add_item(p, *out, first));
    while (ls_tpl_skip_op(p, "~")) {
        LS_TRY(parse_product(p, &next));
        LS_TRY(ls_tpl_add_item(p, *out, next));
    }
    return LS_OK;
}

static ls_status parse_sum(ls_tpl_parser *p, ls_tpl_node **out) {
    static const sign signs[] = {{"+", LS_TPL_ADD}, {"-", LS_TPL_SUB}};
    const sign *found;
    LS_TRY(parse_concat(p, out));
    for (int32_t n = 0; (found = sign_here(p, signs, 2)) != NULL; n++) {
        ls_tpl_node *right, *left = *out;
        LS_TRY(count_chain(p, n));
        p->at++;
        LS_TRY(parse_concat(p, &right));
        LS_TRY(make_over(p, LS_TPL_BINARY, left, right, out));
        (*out)->op = found->op;
    }
    return LS_OK;
}

/* The comparison ahead, taken; false: there is none. */
static bool take_comparison(ls_tpl_parser *p, ls_tpl_op *op) {
    static const sign signs[] = {{"==", LS_TPL_EQ}, {"!=", LS_TPL_NE}, {"<", LS_TPL_LT},
                                 {"<=", LS_TPL_LE}, {">", LS_TPL_GT},  {">=", LS_TPL_GE}};
    const sign *found = sign_here(p, signs, sizeof signs / sizeof signs[0]);
    if (found != NULL) {
        *op = found->op;
        p->at++;
        return true;
    }
    if (ls_tpl_skip_name(p, "in")) {
        *op = LS_TPL_IN;
        return true;
    }
    if (!ls_tpl_is_name(p, "not") || !is_name_behind(p, "in")) return false;
    *op = LS_TPL_NOT_IN;
    p->at += 2;
    return true;
}

static ls_status parse_compare(ls_tpl_parser *p, ls_tpl_node **out) {
    ls_tpl_node *first, *operand;
    ls_tpl_op op;
    LS_TRY(parse_sum(p, &first));
    *out = first;
    while (take_comparison(p, &op)) {
        if (*out == first) LS_TRY(make_over(p, LS_TPL_COMPARE, first, NULL, out));
        LS_TRY(ls_tpl_make(p, LS_TPL_OPERAND, &operand));
        operand->op = op;
        LS_TRY(parse_sum(p, &operand->a));
        LS_TRY(ls_tpl_add_item(p, *out, operand));
    }
    return LS_OK;
}

static ls_status parse_not(ls_tpl_parser *p, ls_tpl_node **out) {
    ls_tpl_node *inner;
    if (!ls_tpl_skip_name(p, "not")) return parse_compare(p, out);
    LS_TRY(enter_expression(p));
    LS_TRY(parse_not(p, &inner));
    p->run->depth--;
    return make_over(p, LS_TPL_NOT, inner, NULL, out);
}

static ls_status parse_and(ls_tpl_parser *p, ls_tpl_node **out) {
    LS_TRY(parse_not(p, out));
    for (int32_t n = 0; ls_tpl_skip_name(p, "and"); n++) {
        ls_tpl_node *right, *left = *out;
        LS_TRY(count_chain(p, n));
        LS_TRY(parse_not(p, &right));
        LS_TRY(make_over(p, LS_TPL_AND, left, right, out));
    }
    return LS_OK;
}

static ls_status parse_or(ls_tpl_parser *p, ls_tpl_node **out) {
    LS_TRY(parse_and(p, out));
    for (int32_t n = 0; ls_tpl_skip_name(p, "or"); n++) {
        ls_tpl_node *right, *left = *out;
        LS_TRY(count_chain(p, n));
        LS_TRY(parse_and(p, &right));
        LS_TRY(make_over(p, LS_TPL_OR, left, right, out));
    }
    return LS_OK;
}

ls_status ls_tpl_parse_expression(ls_tpl_parser *p, bool with_condition, ls_tpl_node **out) {
    LS_TRY(enter_expression(p));
    LS_TRY(parse_or(p, out));
    for (int32_t n = 0; with_condition && ls_tpl_skip_name(p, "if"); n++) {
        ls_tpl_node *then = *out, *test;
        LS_TRY(count_chain(p, n));
        LS_TRY(parse_or(p, &test));
        LS_TRY(make_over(p, LS_TPL_COND, test, then, out));
        if (ls_tpl_skip_name(p, "else")) LS_TRY(ls_tpl_parse_expression(p, true, &(*out)->c));
    }
    p->run->depth--;
    return LS_OK;
}

/* ---- tuples and targets ---- */

/* Whether a tuple ends here, behind a comma. */
static bool ends_tuple(const ls_tpl_parser *p) {
    const ls_tpl_token *t = here(p);
    return t->kind == LS_TPL_BLOCK_END || t->kind == LS_TPL_PRINT_END || t->kind == LS_TPL_END || ls_tpl_is_op(p, ")");
}

ls_status ls_tpl_parse_tuple(ls_tpl_parser *p, bool with_condition, ls_tpl_node **out) {
    ls_tpl_node *first, *next;
    LS_TRY(ls_tpl_parse_expression(p, with_condition, &first));
    *out = first;
    if (!ls_tpl_is_op(p, ",")) return LS_OK;
    LS_TRY(ls_tpl_make(p, LS_TPL_MAKE_TUPLE, out));
    LS_TRY(ls_tpl_add_item(p, *out, first));
    while (ls_tpl_skip_op(p, ",") && !ends_tuple(p)) {
        LS_TRY(ls_tpl_parse_expression(p, with_condition, &next));
        LS_TRY(ls_tpl_add_item(p, *out, next));
    }
    return LS_OK;
}

static ls_status parse_target_name(ls_tpl_parser *p, ls_tpl_node **out) {
    const ls_tpl_token *t;
    if (ls_tpl_is_op(p, "(")) return ls_tpl_fail(p->run, LS_ERR_UNSUPPORTED, "targets in brackets are not supported");
    LS_TRY(ls_tpl_expect_name(p, &t));
    return make_text(p, LS_TPL_VARIABLE, t, out);
}

ls_status ls_tpl_parse_target(ls_tpl_parser *p, bool with_namespace, ls_tpl_node **out) {
    ls_tpl_node *first, *next;
    const ls_tpl_token *t;
    LS_TRY(parse_target_name(p, &first));
    *out = first;
    if (with_namespace && ls_tpl_skip_op(p, ".")) {
        LS_TRY(ls_tpl_expect_name(p, &t));
        LS_TRY(make_text(p, LS_TPL_ATTRIBUTE, t, out));
        (*out)->a = first;
        return LS_OK;
    }
    if (!ls_tpl_is_op(p, ",")) return LS_OK;
    LS_TRY(ls_tpl_make(p, LS_TPL_MAKE_TUPLE, out));
    LS_TRY(ls_tpl_add_item(p, *out, first));
    while (ls_tpl_skip_op(p, ",") && here(p)->kind == LS_TPL_NAME && !ls_tpl_is_name(p, "in")) {
        LS_TRY(parse_target_name(p, &next));
        LS_TRY(ls_tpl_add_item(p, *out, next));
    }
    return LS_OK;
}
