/* Whether a template reads a message's content part by part: whether it goes over the content of an item of `messages`,
 * by a loop or by a filter on lists. Names are followed through set, with, for and the arguments of macros, wherever in
 * the template they stand. */
#include "template/template_content.h"

#include <string.h>

/* What a name or an expression may be, a bit each. */
enum { MESSAGES = 1, MESSAGE = 2, CONTENT = 4 };
enum { PASSES_MAX = 16, NAMES_MAX = 256, DEPTH_MAX = 1000 }; /* rendering nests LS_TPL_DEPTH_MAX deep at most */

typedef struct followed {
    const char *text;
    int64_t bytes;
    int is;
} followed;

typedef struct search {
    const ls_tpl_node *body;
    followed names[NAMES_MAX];
    int64_t n;
    int depth;
    bool changed, found;
} search;

static bool is_text(const ls_tpl_node *node, const char *text) {
    return node->bytes == (int64_t)strlen(text) && memcmp(node->text, text, (size_t)node->bytes) == 0;
}

static int look_up(const search *s, const ls_tpl_node *node) {
    for (int64_t i = 0; i < s->n; i++)
        if (s->names[i].bytes == node->bytes && memcmp(s->names[i].text, node->text, (size_t)node->bytes) == 0)
            return s->names[i].is;
    return 0;
}

static void follow(search *s, const ls_tpl_node *node, int is) {
    int64_t i = 0;
    if (is == 0 || node == NULL ||
        (node->kind != LS_TPL_VARIABLE && node->kind != LS_TPL_ATTRIBUTE && node->kind != LS_TPL_KEYWORD))
        return;
    while (i < s->n &&
           (s->names[i].bytes != node->bytes || memcmp(s->names[i].text, node->text, (size_t)node->bytes) != 0))
        i++;
    if (i == NAMES_MAX) return;
    if (i == s->n) s->names[s->n++] = (followed){node->text, node->bytes, 0};
    s->changed = s->changed || (s->names[i].is | is) != s->names[i].is;
    s->names[i].is |= is;
}

static int kind_of(search *s, const ls_tpl_node *e);

/* A member of something, by name. */
static int member_of(search *s, const ls_tpl_node *of, const ls_tpl_node *name) {
    return (kind_of(s, of) & MESSAGE) && is_text(name, "content") ? CONTENT : 0;
}

static int look_at(search *s, const ls_tpl_node *e) {
    switch (e->kind) {
        case LS_TPL_VARIABLE: return look_up(s, e);
        case LS_TPL_ATTRIBUTE: /* a message's content, or a name in a namespace */
            return is_text(e, "content") ? member_of(s, e->a, e) : look_up(s, e);
        case LS_TPL_INDEX:
            if (e->b != NULL && e->b->kind == LS_TPL_CONST_TEXT) return member_of(s, e->a, e->b);
            return kind_of(s, e->a) & MESSAGES ? MESSAGE : 0;
        case LS_TPL_CALL:
            if (e->a->kind == LS_TPL_ATTRIBUTE && is_text(e->a, "get") && e->n > 0 &&
                e->items[0]->kind == LS_TPL_CONST_TEXT)
                return member_of(s, e->a->a, e->items[0]);
            return 0;
        case LS_TPL_FILTER:
            if ((is_text(e, "first") || is_text(e, "last")) && (kind_of(s, e->a) & MESSAGES)) return MESSAGE;
            return kind_of(s, e->a);
        case LS_TPL_SLICE: return kind_of(s, e->a);
        case LS_TPL_COND: return kind_of(s, e->b) | kind_of(s, e->c);
        case LS_TPL_OR:
        case LS_TPL_AND:
        case LS_TPL_BINARY: return kind_of(s, e->a) | kind_of(s, e->b);
        default: return 0;
    }
}

static int kind_of(search *s, const ls_tpl_node *e) {
    int is;
    if (e == NULL || s->depth == DEPTH_MAX) return 0;
    s->depth++;
    is = look_at(s, e);
    s->depth--;
    return is;
}

static const ls_tpl_node *find_macro(const ls_tpl_node *node, const ls_tpl_node *name, int depth) {
    const ls_tpl_node *const children[] = {node->a, node->b, node->c, node->d, node->e};
    const ls_tpl_node *found = NULL;
    if (node->kind == LS_TPL_MACRO && node->bytes == name->bytes &&
        memcmp(node->text, name->text, (size_t)name->bytes) == 0)
        return node;
    if (node->kind < LS_TPL_BODY || depth == DEPTH_MAX) return NULL; /* statements alone hold macros */
    for (size_t i = 0; i < sizeof children / sizeof children[0] && found == NULL; i++)
        if (children[i] != NULL) found = find_macro(children[i], name, depth + 1);
    for (int64_t i = 0; i < node->n && found == NULL; i++) found = find_macro(node->items[i], name, depth + 1);
    return found;
}

/* What a macro is given, its parameters are. */
static void follow_call(search *s, const ls_tpl_node *call) {
    const ls_tpl_node *macro;
    if (call->a->kind != LS_TPL_VARIABLE || (macro = find_macro(s->body, call->a, 0)) == NULL) return;
    for (int64_t i = 0; i < call->n; i++) {
        const ls_tpl_node *given = call->items[i];
        if (given->kind == LS_TPL_KEYWORD)
            follow(s, given, kind_of(s, given->a));
        else if (i < macro->n)
            follow(s, macro->items[i], kind_of(s, given));
    }
}

static bool iterates(const ls_tpl_node *filter) {
    static const char *const names[] = {"map", "select", "reject", "selectattr", "rejectattr"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (is_text(filter, names[i])) return true;
    return false;
}

static void walk(search *s, const ls_tpl_node *node) {
    const ls_tpl_node *const children[] = {node->a, node->b, node->c, node->d, node->e};
    if (s->depth == DEPTH_MAX) return;
    s->depth++;
    if (node->kind == LS_TPL_FOR) {
        const int is = kind_of(s, node->b);
        s->found = s->found || (is & CONTENT);
        if (is & MESSAGES) follow(s, node->a, MESSAGE);
    }
    if (node->kind == LS_TPL_SET) follow(s, node->a, kind_of(s, node->b));
    if (node->kind == LS_TPL_CALL) follow_call(s, node);
    if (node->kind == LS_TPL_FILTER && node->a != NULL && iterates(node) && (kind_of(s, node->a) & CONTENT))
        s->found = true;
    for (size_t i = 0; i < sizeof children / sizeof children[0]; i++)
        if (children[i] != NULL) walk(s, children[i]);
    for (int64_t i = 0; i < node->n; i++) walk(s, node->items[i]);
    s->depth--;
}

bool ls_tpl_reads_parts(const ls_tpl_node *body) {
    static const ls_tpl_node messages = {.kind = LS_TPL_VARIABLE, .text = "messages", .bytes = 8};
    search s;
    memset(&s, 0, sizeof s);
    s.body = body;
    follow(&s, &messages, MESSAGES);
    for (int pass = 0; pass < PASSES_MAX && s.changed && !s.found; pass++) {
        s.changed = false;
        walk(&s, body);
    }
    return s.found;
}
