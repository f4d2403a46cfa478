/* Reading the expressions of a template: Jinja's grammar, with its precedences. */
#ifndef LS_TEMPLATE_TEMPLATE_EXPRESSION_H
#define LS_TEMPLATE_TEMPLATE_EXPRESSION_H

#include "template/template_lexer.h"
#include "template/template_tree.h"

typedef struct ls_tpl_parser {
    ls_tpl_run *run;
    const ls_tpl_token *tokens; /* the last is LS_TPL_END */
    int64_t at;
    int32_t loops; /* loops around this place, within the macro */
    bool marks;    /* there was a generation block */
} ls_tpl_parser;

/* Looks at the token ahead. */
bool ls_tpl_is_name(const ls_tpl_parser *p, const char *name);
bool ls_tpl_is_op(const ls_tpl_parser *p, const char *op);
/* Takes it if it is that. */
bool ls_tpl_skip_name(ls_tpl_parser *p, const char *name);
bool ls_tpl_skip_op(ls_tpl_parser *p, const char *op);
ls_status ls_tpl_expect_op(ls_tpl_parser *p, const char *op);
ls_status ls_tpl_expect_name(ls_tpl_parser *p, const ls_tpl_token **out);
/* "found '..', expected .." */
ls_status ls_tpl_unexpected(ls_tpl_parser *p, const char *expected);

ls_status ls_tpl_make(ls_tpl_parser *p, ls_tpl_node_kind kind, ls_tpl_node **out);
ls_status ls_tpl_add_item(ls_tpl_parser *p, ls_tpl_node *list, ls_tpl_node *item);

/* One expression; with_condition: x if y else z may be one. */
ls_status ls_tpl_parse_expression(ls_tpl_parser *p, bool with_condition, ls_tpl_node **out);
/* One, or several with commas between, which are a tuple. */
ls_status ls_tpl_parse_tuple(ls_tpl_parser *p, bool with_condition, ls_tpl_node **out);
/* Names that are assigned to: a, or a.b where with_namespace, or a tuple of names. */
ls_status ls_tpl_parse_target(ls_tpl_parser *p, bool with_namespace, ls_tpl_node **out);
/* A chain of filters over a block's text: "upper | trim". */
ls_status ls_tpl_parse_filters(ls_tpl_parser *p, ls_tpl_node **out);

#endif
