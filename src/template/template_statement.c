/* Tags of templates: the tree as a whole. Owns nothing: nodes are the arena's. */
#include <string.h>

#include "template/template_expression.h"

static ls_status parse_body(ls_tpl_parser *p, const char *const *ends, ls_tpl_node **out);

static const ls_tpl_token *here(const ls_tpl_parser *p) { return &p->tokens[p->at]; }

static ls_status end_tag(ls_tpl_parser *p) {
    if (here(p)->kind != LS_TPL_BLOCK_END) return ls_tpl_unexpected(p, "the end of the tag");
    p->at++;
    return LS_OK;
}

/* The end tag of a block that is open: "endif %}". */
static ls_status end_block(ls_tpl_parser *p, const char *name) {
    if (!ls_tpl_skip_name(p, name)) return ls_tpl_unexpected(p, name);
    return end_tag(p);
}

static ls_status parse_if(ls_tpl_parser *p, ls_tpl_node **out) {
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    static const char *const last[] = {"endif", NULL};
    ls_tpl_node *at;
    LS_TRY(ls_tpl_make(p, LS_TPL_IF, out));
    at = *out;
    for (;;) {
        LS_TRY(ls_tpl_parse_tuple(p, false, &at->a));
        LS_TRY(end_tag(p));
        LS_TRY(parse_body(p, ends, &at->b));
        if (!ls_tpl_skip_name(p, "elif")) break;
        LS_TRY(ls_tpl_make(p, LS_TPL_IF, &at->c));
        at = at->c;
    }
    if (ls_tpl_skip_name(p, "else")) {
        LS_TRY(end_tag(p));
        LS_TRY(parse_body(p, last, &at->c));
    }
    return end_block(p, "endif");
}

static ls_status parse_for(ls_tpl_parser *p, ls_tpl_node **out) {
    static const char *const ends[] = {"else", "endfor", NULL}, *const last[] = {"endfor", NULL};
    LS_TRY(ls_tpl_make(p, LS_TPL_FOR, out));
    LS_TRY(ls_tpl_parse_target(p, false, &(*out)->a));
    if (!ls_tpl_skip_name(p, "in")) return ls_tpl_unexpected(p, "'in'");
    LS_TRY(ls_tpl_parse_tuple(p, false, &(*out)->b));
    if (ls_tpl_skip_name(p, "if")) LS_TRY(ls_tpl_parse_expression(p, true, &(*out)->c));
    if (ls_tpl_is_name(p, "recursive"))
        return ls_tpl_fail(p->run, LS_ERR_UNSUPPORTED, "for: a recursive loop is not supported");
    LS_TRY(end_tag(p));
    p->loops++;
    LS_TRY(parse_body(p, ends, &(*out)->d));
    p->loops--;
    if (ls_tpl_skip_name(p, "else")) {
        LS_TRY(end_tag(p));
        LS_TRY(parse_body(p, last, &(*out)->e));
    }
    return end_block(p, "endfor");
}

static ls_status parse_set(ls_tpl_parser *p, ls_tpl_node **out) {
    static const char *const ends[] = {"endset", NULL};
    LS_TRY(ls_tpl_make(p, LS_TPL_SET, out));
    LS_TRY(ls_tpl_parse_target(p, true, &(*out)->a));
    if (ls_tpl_skip_op(p, "=")) {
        LS_TRY(ls_tpl_parse_tuple(p, true, &(*out)->b));
        return end_tag(p);
    }
    (*out)->kind = LS_TPL_SET_BLOCK;
    if (ls_tpl_skip_op(p, "|")) LS_TRY(ls_tpl_parse_filters(p, &(*out)->b));
    LS_TRY(end_tag(p));
    LS_TRY(parse_body(p, ends, &(*out)->c));
    return end_block(p, "endset");
}

static ls_status parse_parameters(ls_tpl_parser *p, ls_tpl_node *macro) {
    bool with_default = false;
    LS_TRY(ls_tpl_expect_op(p, "("));
    for (int64_t i = 0; !ls_tpl_is_op(p, ")"); i++) {
        const ls_tpl_token *name;
        ls_tpl_node *parameter;
        if (i > 0) LS_TRY(ls_tpl_expect_op(p, ","));
        LS_TRY(ls_tpl_expect_name(p, &name));
        LS_TRY(ls_tpl_make(p, LS_TPL_KEYWORD, &parameter));
        parameter->text = name->text;
        parameter->bytes = name->bytes;
        if (ls_tpl_skip_op(p, "=")) {
            LS_TRY(ls_tpl_parse_expression(p, true, &parameter->a));
            with_default = true;
        } else if (with_default) {
            return ls_tpl_fail(p->run, LS_ERR_FORMAT, "macro: a parameter without a default behind one with it");
        }
        LS_TRY(ls_tpl_add_item(p, macro, parameter));
    }
    return ls_tpl_expect_op(p, ")");
}

static ls_status parse_macro(ls_tpl_parser *p, ls_tpl_node **out) {
    static const char *const ends[] = {"endmacro", NULL};
    const int32_t loops = p->loops;
    const ls_tpl_token *name;
    LS_TRY(ls_tpl_make(p, LS_TPL_MACRO, out));
    LS_TRY(ls_tpl_expect_name(p, &name));
    (*out)->text = name->text;
    (*out)->bytes = name->bytes;
    LS_TRY(parse_parameters(p, *out));
    LS_TRY(end_tag(p));
    p->loops = 0;
    LS_TRY(parse_body(p, ends, &(*out)->b));
    p->loops = loops;
    return end_block(p, "endmacro");
}

static ls_status parse_with(ls_tpl_parser *p, ls_tpl_node **out) {
    static const char *const ends[] = {"endwith", NULL};
    LS_TRY(ls_tpl_make(p, LS_TPL_WITH, out));
    while (here(p)->kind != LS_TPL_BLOCK_END) {
        ls_tpl_node *set;
        const ls_tpl_token *name;
        if ((*out)->n > 0) LS_TRY(ls_tpl_expect_op(p, ","));
        LS_TRY(ls_tpl_make(p, LS_TPL_SET, &set));
        LS_TRY(ls_tpl_expect_name(p, &name));
        LS_TRY(ls_tpl_make(p, LS_TPL_VARIABLE, &set->a));
        set->a->text = name->text;
        set->a->bytes = name->bytes;
        LS_TRY(ls_tpl_expect_op(p, "="));
        LS_TRY(ls_tpl_parse_expression(p, true, &set->b));
        LS_TRY(ls_tpl_add_item(p, *out, set));
    }
    LS_TRY(end_tag(p));
    LS_TRY(parse_body(p, ends, &(*out)->b));
    return end_block(p, "endwith");
}

static ls_status parse_filter_block(ls_tpl_parser *p, ls_tpl_node **out) {
    static const char *const ends[] = {"endfilter", NULL};
    LS_TRY(ls_tpl_make(p, LS_TPL_FILTER_BLOCK, out));
    LS_TRY(ls_tpl_parse_filters(p, &(*out)->a));
    LS_TRY(end_tag(p));
    LS_TRY(parse_body(p, ends, &(*out)->b));
    return end_block(p, "endfilter");
}

static ls_status parse_generation(ls_tpl_parser *p, ls_tpl_node **out) {
    static const char *const ends[] = {"endgeneration", NULL};
    p->marks = true;
    LS_TRY(ls_tpl_make(p, LS_TPL_GENERATION, out));
    LS_TRY(end_tag(p));
    LS_TRY(parse_body(p, ends, &(*out)->b));
    return end_block(p, "endgeneration");
}

/* break and continue. */
static ls_status parse_jump(ls_tpl_parser *p, ls_tpl_node_kind kind, ls_tpl_node **out) {
    LS_TRY(ls_tpl_make(p, kind, out));
    if (p->loops == 0) return ls_tpl_fail(p->run, LS_ERR_FORMAT, "break or continue outside of a loop");
    return end_tag(p);
}

/* Behind "{%". */
static ls_status parse_tag(ls_tpl_parser *p, ls_tpl_node **out) {
    const ls_tpl_token *t = here(p);
    p->run->line = t->line;
    if (ls_tpl_skip_name(p, "if")) return parse_if(p, out);
    if (ls_tpl_skip_name(p, "for")) return parse_for(p, out);
    if (ls_tpl_skip_name(p, "set")) return parse_set(p, out);
    if (ls_tpl_skip_name(p, "macro")) return parse_macro(p, out);
    if (ls_tpl_skip_name(p, "with")) return parse_with(p, out);
    if (ls_tpl_skip_name(p, "filter")) return parse_filter_block(p, out);
    if (ls_tpl_skip_name(p, "generation")) return parse_generation(p, out);
    if (ls_tpl_skip_name(p, "break")) return parse_jump(p, LS_TPL_BREAK, out);
    if (ls_tpl_skip_name(p, "continue")) return parse_jump(p, LS_TPL_CONTINUE, out);
    if (t->kind != LS_TPL_NAME) return ls_tpl_unexpected(p, "the name of a tag");
    return ls_tpl_fail(p->run, LS_ERR_UNSUPPORTED, "the tag '%.*s' is not supported here",
                       t->bytes < 60 ? (int)t->bytes : 60, t->text);
}

static bool is_end(const ls_tpl_parser *p, const char *const *ends) {
    for (int i = 0; ends[i] != NULL; i++)
        if (ls_tpl_is_name(p, ends[i])) return true;
    return false;
}

/* As far as a tag that ends it, whose name is then ahead; ends NULL: as far as the template goes. */
static ls_status parse_body(ls_tpl_parser *p, const char *const *ends, ls_tpl_node **out) {
    if (++p->run->depth > LS_TPL_DEPTH_MAX)
        return ls_tpl_fail(p->run, LS_ERR_CAPACITY, "expressions and tags nest more than %d deep", LS_TPL_DEPTH_MAX);
    LS_TRY(ls_tpl_make(p, LS_TPL_BODY, out));
    for (;;) {
        const ls_tpl_token *t = here(p);
        ls_tpl_node *node;
        if (t->kind == LS_TPL_END) {
            if (ends != NULL) return ls_tpl_unexpected(p, ends[0]);
            break;
        }
        p->at++;
        if (t->kind == LS_TPL_DATA) {
            LS_TRY(ls_tpl_make(p, LS_TPL_OUTPUT, &node));
            node->text = t->text;
            node->bytes = t->bytes;
        } else if (t->kind == LS_TPL_PRINT_BEGIN) {
            LS_TRY(ls_tpl_make(p, LS_TPL_PRINT, &node));
            LS_TRY(ls_tpl_parse_tuple(p, true, &node->a));
            if (here(p)->kind != LS_TPL_PRINT_END) return ls_tpl_unexpected(p, "}}");
            p->at++;
        } else {
            if (ends != NULL && is_end(p, ends)) break;
            LS_TRY(parse_tag(p, &node));
        }
        LS_TRY(ls_tpl_add_item(p, *out, node));
    }
    p->run->depth--;
    return LS_OK;
}

ls_status ls_tpl_parse(ls_tpl_run *run, const char *text, int64_t bytes, ls_tpl_node **out, bool *marks) {
    ls_tpl_parser p = {.run = run};
    ls_tpl_token *tokens;
    int64_t n;
    LS_TRY(ls_tpl_lex(run, text, bytes, &tokens, &n));
    p.tokens = tokens;
    LS_TRY(parse_body(&p, NULL, out));
    *marks = p.marks;
    return LS_OK;
}
