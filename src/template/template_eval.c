/* Rendering of templates. Owns the parsed template; what a rendering makes lies in an arena that ends with it. */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/mem.h"
#include "template/template.h"
#include "template/template_content.h"
#include "template/template_filters.h"
#include "template/template_methods.h"
#include "template/template_operators.h"
#include "template/template_tests.h"

enum { RANGE_MAX = 100000, NAME_MAX_BYTES = 200 }; /* Jinja's sandbox has this range, too */

struct ls_template {
    ls_tpl_arena arena;
    char name[NAME_MAX_BYTES];
    ls_tpl_node *body;
    bool marks, reads_parts;
};

/* Names with values; the inner one hides the outer one's. */
typedef struct scope {
    struct scope *outer;
    ls_tpl_named *names;
    int64_t n, cap;
} scope;

struct ls_tpl_macro {
    const ls_tpl_node *node;
    scope *scope; /* where it was written */
};

typedef enum jump { JUMP_NONE, JUMP_BREAK, JUMP_CONTINUE } jump;

typedef struct renderer {
    ls_tpl_run run;
    scope *scope;
    ls_tpl_text *out;  /* where text goes */
    ls_tpl_text whole; /* the output */
    int64_t output_max, now;
    jump jump;
    ls_template_span *spans;
    int64_t n_spans, spans_cap, n_unplaced;
} renderer;

static ls_status eval(renderer *r, const ls_tpl_node *node, ls_tpl_value *out);
static ls_status run_body(renderer *r, const ls_tpl_node *body);

static ls_status enter_node(renderer *r, const ls_tpl_node *node) {
    r->run.line = node->line;
    LS_TRY(ls_tpl_step(&r->run, 1));
    if (++r->run.depth <= LS_TPL_DEPTH_MAX) return LS_OK;
    return ls_tpl_fail(&r->run, LS_ERR_CAPACITY, "calls nest more than %d deep", LS_TPL_DEPTH_MAX);
}

/* ---- names ---- */

static ls_status open_scope(renderer *r, scope *outer) {
    scope *inner;
    LS_TRY(ls_tpl_alloc(&r->run, (void **)&inner, 1, sizeof *inner));
    inner->outer = outer;
    r->scope = inner;
    return LS_OK;
}

static ls_tpl_named *find_name(const scope *s, const char *name, int64_t bytes) {
    for (int64_t i = 0; i < s->n; i++)
        if (s->names[i].bytes == bytes && memcmp(s->names[i].name, name, (size_t)bytes) == 0) return &s->names[i];
    return NULL;
}

static ls_status set_name(renderer *r, const char *name, int64_t bytes, ls_tpl_value value) {
    scope *s = r->scope;
    ls_tpl_named *found = find_name(s, name, bytes);
    if (found == NULL) {
        LS_TRY(ls_tpl_grow(&r->run, (void **)&s->names, &s->cap, s->n + 1, sizeof *s->names));
        found = &s->names[s->n++];
    }
    *found = (ls_tpl_named){name, bytes, value};
    return LS_OK;
}

static ls_status look_up(renderer *r, const ls_tpl_node *node, ls_tpl_value *out) {
    static const char *const functions[] = {"range", "dict", "namespace", "raise_exception", "strftime_now"};
    const ls_tpl_named *found;
    char *name;
    for (const scope *s = r->scope; s != NULL; s = s->outer) {
        if ((found = find_name(s, node->text, node->bytes)) == NULL) continue;
        *out = found->value;
        return LS_OK;
    }
    LS_TRY(ls_tpl_alloc(&r->run, (void **)&name, node->bytes + 1, 1));
    memcpy(name, node->text, (size_t)node->bytes);
    *out = ls_tpl_undefined(name);
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++)
        if (strcmp(name, functions[i]) == 0) *out = (ls_tpl_value){.kind = LS_TPL_FUNCTION, .text = name};
    if (strcmp(name, "lipsum") == 0 || strcmp(name, "cycler") == 0 || strcmp(name, "joiner") == 0)
        return ls_tpl_fail(&r->run, LS_ERR_UNSUPPORTED, "the function '%s' is not supported", name);
    return LS_OK;
}

/* ---- calls ---- */

/* Arguments by place are `list` and, behind them, what a loop over `spread` goes through. */
static ls_status add_spread(renderer *r, const ls_tpl_node *spread, ls_tpl_args *args) {
    const ls_tpl_list *more;
    ls_tpl_value *list, value;
    LS_TRY(eval(r, spread->a, &value));
    LS_TRY(ls_tpl_iterate(&r->run, &value, &more));
    LS_TRY(ls_tpl_alloc(&r->run, (void **)&list, args->n + more->n, sizeof *list));
    for (int64_t i = 0; i < args->n; i++) list[i] = args->list[i];
    for (int64_t i = 0; i < more->n; i++) list[args->n + i] = more->items[i];
    args->list = list;
    args->n += more->n;
    return LS_OK;
}

static ls_status eval_arguments(renderer *r, const ls_tpl_node *node, ls_tpl_args *out) {
    ls_tpl_value *list;
    ls_tpl_named *named;
    LS_TRY(ls_tpl_alloc(&r->run, (void **)&list, node->n, sizeof *list));
    LS_TRY(ls_tpl_alloc(&r->run, (void **)&named, node->n, sizeof *named));
    *out = (ls_tpl_args){list, 0, named, 0};
    for (int64_t i = 0; i < node->n; i++) {
        const ls_tpl_node *item = node->items[i];
        if (item->kind == LS_TPL_KEYWORD) {
            ls_tpl_named *to = &named[out->n_named++];
            *to = (ls_tpl_named){.name = item->text, .bytes = item->bytes};
            LS_TRY(eval(r, item->a, &to->value));
        } else if (item->kind == LS_TPL_SPREAD) {
            LS_TRY(add_spread(r, item, out));
        } else {
            LS_TRY(eval(r, item, &list[out->n++]));
        }
    }
    return LS_OK;
}

static ls_status call_range(renderer *r, const ls_tpl_args *args, ls_tpl_value *out) {
    int64_t part[3] = {0, 0, 1};
    if (args->n < 1 || args->n > 3 || args->n_named > 0)
        return ls_tpl_fail(&r->run, LS_ERR_ARG, "range takes 1 to 3 integers");
    for (int64_t i = 0; i < args->n; i++)
        LS_TRY(ls_tpl_want_int(&r->run, "range", &args->list[i], &part[args->n == 1 ? 1 : i]));
    if (part[2] == 0) return ls_tpl_fail(&r->run, LS_ERR_ARG, "range has the step 0");
    LS_TRY(ls_tpl_make_list(&r->run, LS_TPL_FORM_RANGE, out));
    for (int64_t i = part[0]; part[2] > 0 ? i < part[1] : i > part[1];) {
        if (out->list->n == RANGE_MAX)
            return ls_tpl_fail(&r->run, LS_ERR_CAPACITY, "range: more than %d integers", RANGE_MAX);
        LS_TRY(ls_tpl_push(&r->run, out, ls_tpl_int(i)));
        if (__builtin_add_overflow(i, part[2], &i)) break;
    }
    return LS_OK;
}

/* dict(..) and namespace(..): a dict, names. */
static ls_status call_dict(renderer *r, const char *what, const ls_tpl_args *args, ls_tpl_value *out) {
    LS_TRY(ls_tpl_make_dict(&r->run, out));
    if (args->n > 1 || (args->n == 1 && args->list[0].kind != LS_TPL_DICT))
        return ls_tpl_fail(&r->run, LS_ERR_UNSUPPORTED, "%s of what is not one dict", what);
    for (int64_t i = 0; args->n == 1 && i < args->list[0].dict->n; i++) {
        const ls_tpl_entry *entry = &args->list[0].dict->entries[i];
        LS_TRY(ls_tpl_dict_set(&r->run, out->dict, entry->key, entry->value));
    }
    for (int64_t i = 0; i < args->n_named; i++)
        LS_TRY(ls_tpl_dict_set(&r->run, out->dict, ls_tpl_text_of(args->named[i].name, args->named[i].bytes),
                               args->named[i].value));
    if (strcmp(what, "namespace") == 0) out->kind = LS_TPL_NAMESPACE;
    return LS_OK;
}

static ls_status call_strftime(renderer *r, const ls_tpl_args *args, ls_tpl_value *out) {
    const ls_tpl_value *a[LS_TPL_PARAMETERS_MAX];
    const time_t now = (time_t)r->now;
    struct tm local;
    char format[100], text[400];
    ls_tpl_text built = {0};
    size_t n;
    LS_TRY(ls_tpl_bind(&r->run, "strftime_now", args, "format", 1, a));
    LS_TRY(ls_tpl_want_text(&r->run, "strftime_now", a[0]));
    if (a[0]->bytes >= (int64_t)sizeof format || memchr(a[0]->text, '\0', (size_t)a[0]->bytes) != NULL)
        return ls_tpl_fail(&r->run, LS_ERR_UNSUPPORTED, "strftime_now: a format of %lld bytes", (long long)a[0]->bytes);
    memcpy(format, a[0]->text, (size_t)a[0]->bytes);
    format[a[0]->bytes] = '\0';
    if (localtime_r(&now, &local) == NULL) return ls_tpl_fail(&r->run, LS_ERR_ARG, "strftime_now: no such time");
    n = strftime(text, sizeof text, format, &local);
    LS_TRY(ls_tpl_append(&r->run, &built, text, (int64_t)n));
    *out = ls_tpl_built(&built);
    return LS_OK;
}

static ls_status call_raise(renderer *r, const ls_tpl_args *args) {
    const ls_tpl_value *a[LS_TPL_PARAMETERS_MAX];
    ls_tpl_text text = {0};
    LS_TRY(ls_tpl_bind(&r->run, "raise_exception", args, "message", 1, a));
    LS_TRY(ls_tpl_str(&r->run, a[0], &text));
    return ls_tpl_fail(&r->run, LS_ERR_ARG, "the template raises: %.*s", text.bytes < 300 ? (int)text.bytes : 300,
                       text.bytes > 0 ? text.data : "");
}

static ls_status call_function(renderer *r, const char *name, const ls_tpl_args *args, ls_tpl_value *out) {
    if (strcmp(name, "range") == 0) return call_range(r, args, out);
    if (strcmp(name, "raise_exception") == 0) return call_raise(r, args);
    if (strcmp(name, "strftime_now") == 0) return call_strftime(r, args, out);
    return call_dict(r, name, args, out);
}

/* Parameters of a macro as names of the scope that is open. */
static ls_status bind_parameters(renderer *r, const ls_tpl_node *macro, const ls_tpl_args *args) {
    int64_t named = 0;
    if (args->n > macro->n)
        return ls_tpl_fail(&r->run, LS_ERR_ARG, "macro %.*s takes %lld arguments, not %lld", (int)macro->bytes,
                           macro->text, (long long)macro->n, (long long)args->n);
    for (int64_t i = 0; i < macro->n; i++) {
        const ls_tpl_node *parameter = macro->items[i];
        char *name;
        ls_tpl_value value;
        bool given = i < args->n;
        if (given) value = args->list[i];
        for (int64_t k = 0; k < args->n_named && !given; k++) {
            const ls_tpl_named *a = &args->named[k];
            if (a->bytes != parameter->bytes || memcmp(a->name, parameter->text, (size_t)a->bytes) != 0) continue;
            value = a->value;
            given = true;
            named++;
        }
        if (!given && parameter->a != NULL) {
            LS_TRY(eval(r, parameter->a, &value));
        } else if (!given) {
            LS_TRY(ls_tpl_alloc(&r->run, (void **)&name, parameter->bytes + 1, 1));
            memcpy(name, parameter->text, (size_t)parameter->bytes);
            value = ls_tpl_undefined(name);
        }
        LS_TRY(set_name(r, parameter->text, parameter->bytes, value));
    }
    if (named == args->n_named) return LS_OK;
    return ls_tpl_fail(&r->run, LS_ERR_ARG, "macro %.*s: an argument that is not its own, or given twice",
                       (int)macro->bytes, macro->text);
}

/* Runs a body in a scope of its own; what it writes becomes *out. */
static ls_status capture(renderer *r, const ls_tpl_node *body, scope *outer, ls_tpl_value *out) {
    scope *kept = r->scope;
    ls_tpl_text *kept_out = r->out, text = {0};
    LS_TRY(open_scope(r, outer));
    r->out = &text;
    LS_TRY(run_body(r, body));
    r->scope = kept;
    r->out = kept_out;
    *out = ls_tpl_built(&text);
    return LS_OK;
}

static ls_status call_macro(renderer *r, const struct ls_tpl_macro *macro, const ls_tpl_args *args, ls_tpl_value *out) {
    scope *kept = r->scope;
    LS_TRY(open_scope(r, macro->scope));
    LS_TRY(bind_parameters(r, macro->node, args));
    LS_TRY(capture(r, macro->node->b, r->scope, out));
    r->scope = kept;
    return LS_OK;
}

static ls_status eval_call(renderer *r, const ls_tpl_node *node, ls_tpl_value *out) {
    ls_tpl_value callee;
    ls_tpl_args args;
    LS_TRY(eval(r, node->a, &callee));
    LS_TRY(eval_arguments(r, node, &args));
    r->run.line = node->line;
    if (callee.kind == LS_TPL_FUNCTION) return call_function(r, callee.text, &args, out);
    if (callee.kind == LS_TPL_METHOD) return ls_tpl_call_method(&r->run, &callee, &args, out);
    if (callee.kind == LS_TPL_CALLABLE) return call_macro(r, callee.macro, &args, out);
    if (callee.kind == LS_TPL_UNDEFINED)
        return ls_tpl_fail(&r->run, LS_ERR_ARG, "'%.100s' is undefined, and is called",
                           callee.text != NULL ? callee.text : "");
    return ls_tpl_fail(&r->run, LS_ERR_ARG, "%s is called", ls_tpl_kind_name(&callee));
}

/* ---- expressions ---- */

static ls_status eval_items(renderer *r, const ls_tpl_node *node, ls_tpl_form form, ls_tpl_value *out) {
    LS_TRY(ls_tpl_make_list(&r->run, form, out));
    for (int64_t i = 0; i < node->n; i++) {
        ls_tpl_value item;
        LS_TRY(eval(r, node->items[i], &item));
        LS_TRY(ls_tpl_push(&r->run, out, item));
    }
    return LS_OK;
}

static ls_status eval_dict(renderer *r, const ls_tpl_node *node, ls_tpl_value *out) {
    LS_TRY(ls_tpl_make_dict(&r->run, out));
    for (int64_t i = 0; i < node->n; i += 2) {
        ls_tpl_value key, value;
        LS_TRY(eval(r, node->items[i], &key));
        LS_TRY(eval(r, node->items[i + 1], &value));
        LS_TRY(ls_tpl_dict_set(&r->run, out->dict, key, value));
    }
    return LS_OK;
}

static ls_status eval_slice(renderer *r, const ls_tpl_node *node, ls_tpl_value *out) {
    const ls_tpl_node *nodes[3] = {node->b, node->c, node->d};
    const ls_tpl_value *bounds[3] = {NULL, NULL, NULL};
    ls_tpl_value value, parts[3];
    LS_TRY(eval(r, node->a, &value));
    for (int i = 0; i < 3; i++) {
        if (nodes[i] == NULL) continue;
        LS_TRY(eval(r, nodes[i], &parts[i]));
        bounds[i] = &parts[i];
    }
    return ls_tpl_slice(&r->run, &value, bounds[0], bounds[1], bounds[2], out);
}

static ls_status eval_compare(renderer *r, const ls_tpl_node *node, ls_tpl_value *out) {
    ls_tpl_value left, right;
    bool truth = true;
    LS_TRY(eval(r, node->a, &left));
    for (int64_t i = 0; i < node->n && truth; i++) {
        LS_TRY(eval(r, node->items[i]->a, &right));
        LS_TRY(ls_tpl_operand(&r->run, node->items[i]->op, &left, &right, &truth));
        left = right;
    }
    *out = ls_tpl_bool(truth);
    return LS_OK;
}

static ls_status eval_concat(renderer *r, const ls_tpl_node *node, ls_tpl_value *out) {
    ls_tpl_text text = {0};
    for (int64_t i = 0; i < node->n; i++) {
        ls_tpl_value part;
        LS_TRY(eval(r, node->items[i], &part));
        LS_TRY(ls_tpl_str(&r->run, &part, &text));
    }
    *out = ls_tpl_built(&text);
    return LS_OK;
}

/* Of a value that is there already: of a block's text, too. */
static ls_status apply_filter(renderer *r, const ls_tpl_node *node, const ls_tpl_value *value, ls_tpl_value *out) {
    ls_tpl_args args;
    LS_TRY(eval_arguments(r, node, &args));
    r->run.line = node->line;
    return ls_tpl_filter(&r->run, node->text, node->bytes, value, &args, out);
}

static ls_status eval_test(renderer *r, const ls_tpl_node *node, ls_tpl_value *out) {
    ls_tpl_value value;
    ls_tpl_args args;
    bool truth;
    LS_TRY(eval(r, node->a, &value));
    LS_TRY(eval_arguments(r, node, &args));
    LS_TRY(ls_tpl_test(&r->run, node->text, node->bytes, &value, &args, &truth));
    *out = ls_tpl_bool(truth);
    return LS_OK;
}

/* a and b, a or b: the value that decides. */
static ls_status eval_logic(renderer *r, const ls_tpl_node *node, ls_tpl_value *out) {
    LS_TRY(eval(r, node->a, out));
    return ls_tpl_truth(out) == (node->kind == LS_TPL_AND) ? eval(r, node->b, out) : LS_OK;
}

static ls_status eval_cond(renderer *r, const ls_tpl_node *node, ls_tpl_value *out) {
    ls_tpl_value test;
    LS_TRY(eval(r, node->a, &test));
    if (ls_tpl_truth(&test)) return eval(r, node->b, out);
    if (node->c != NULL) return eval(r, node->c, out);
    *out = ls_tpl_undefined("an inline if without else");
    return LS_OK;
}

/* What takes one or two values that are evaluated first. */
static ls_status eval_plain(renderer *r, const ls_tpl_node *node, ls_tpl_value *out) {
    const ls_tpl_value name = ls_tpl_text_of(node->text, node->bytes);
    ls_tpl_value a, b = {0};
    LS_TRY(eval(r, node->a, &a));
    if (node->b != NULL) LS_TRY(eval(r, node->b, &b));
    r->run.line = node->line;
    switch (node->kind) {
        case LS_TPL_ATTRIBUTE: return ls_tpl_attribute(&r->run, &a, &name, out);
        case LS_TPL_INDEX: return ls_tpl_item(&r->run, &a, &b, out);
        case LS_TPL_BINARY: return ls_tpl_binary(&r->run, node->op, &a, &b, out);
        case LS_TPL_NEGATIVE:
        case LS_TPL_POSITIVE: return ls_tpl_sign(&r->run, node->kind == LS_TPL_NEGATIVE, &a, out);
        case LS_TPL_FILTER: return apply_filter(r, node, &a, out);
        default: break;
    }
    LS_ASSERT(node->kind == LS_TPL_NOT, "node %d", (int)node->kind);
    *out = ls_tpl_bool(!ls_tpl_truth(&a));
    return LS_OK;
}

static ls_status eval_kind(renderer *r, const ls_tpl_node *node, ls_tpl_value *out) {
    switch (node->kind) {
        case LS_TPL_CONST_NONE: *out = ls_tpl_none(); return LS_OK;
        case LS_TPL_CONST_TRUE:
        case LS_TPL_CONST_FALSE: *out = ls_tpl_bool(node->kind == LS_TPL_CONST_TRUE); return LS_OK;
        case LS_TPL_CONST_INT: *out = ls_tpl_int(node->integer); return LS_OK;
        case LS_TPL_CONST_REAL: *out = ls_tpl_real(node->real); return LS_OK;
        case LS_TPL_CONST_TEXT: *out = ls_tpl_text_of(node->text, node->bytes); return LS_OK;
        case LS_TPL_VARIABLE: return look_up(r, node, out);
        case LS_TPL_MAKE_LIST: return eval_items(r, node, LS_TPL_FORM_LIST, out);
        case LS_TPL_MAKE_TUPLE: return eval_items(r, node, LS_TPL_FORM_TUPLE, out);
        case LS_TPL_MAKE_DICT: return eval_dict(r, node, out);
        case LS_TPL_SLICE: return eval_slice(r, node, out);
        case LS_TPL_CALL: return eval_call(r, node, out);
        case LS_TPL_TEST: return eval_test(r, node, out);
        case LS_TPL_COND: return eval_cond(r, node, out);
        case LS_TPL_OR:
        case LS_TPL_AND: return eval_logic(r, node, out);
        case LS_TPL_COMPARE: return eval_compare(r, node, out);
        case LS_TPL_CONCAT: return eval_concat(r, node, out);
        default: return eval_plain(r, node, out);
    }
}

static ls_status eval(renderer *r, const ls_tpl_node *node, ls_tpl_value *out) {
    LS_TRY(enter_node(r, node));
    LS_TRY(eval_kind(r, node, out));
    r->run.depth--;
    return LS_OK;
}

/* ---- statements ---- */

static ls_status assign(renderer *r, const ls_tpl_node *target, const ls_tpl_value *value) {
    const ls_tpl_list *list;
    ls_tpl_value object;
    if (target->kind == LS_TPL_VARIABLE) return set_name(r, target->text, target->bytes, *value);
    if (target->kind == LS_TPL_ATTRIBUTE) {
        LS_TRY(eval(r, target->a, &object));
        if (object.kind != LS_TPL_NAMESPACE)
            return ls_tpl_fail(&r->run, LS_ERR_ARG, "set: '%.*s' of %s, which is no namespace", (int)target->bytes,
                               target->text, ls_tpl_kind_name(&object));
        return ls_tpl_dict_set(&r->run, object.dict, ls_tpl_text_of(target->text, target->bytes), *value);
    }
    LS_TRY(ls_tpl_iterate(&r->run, value, &list));
    if (list->n != target->n)
        return ls_tpl_fail(&r->run, LS_ERR_ARG, "%lld values for %lld names", (long long)list->n, (long long)target->n);
    for (int64_t i = 0; i < target->n; i++) LS_TRY(assign(r, target->items[i], &list->items[i]));
    return LS_OK;
}

static ls_status write(renderer *r, const char *text, int64_t bytes) {
    LS_TRY(ls_tpl_append(&r->run, r->out, text, bytes));
    if (r->out->bytes <= r->output_max) return LS_OK;
    return ls_tpl_fail(&r->run, LS_ERR_CAPACITY, "the output is longer than %lld bytes", (long long)r->output_max);
}

static ls_status run_print(renderer *r, const ls_tpl_node *node) {
    ls_tpl_value value;
    LS_TRY(eval(r, node->a, &value));
    LS_TRY(ls_tpl_str(&r->run, &value, r->out));
    return write(r, "", 0);
}

static ls_status run_if(renderer *r, const ls_tpl_node *node) {
    for (; node != NULL; node = node->c) {
        ls_tpl_value test;
        if (node->kind == LS_TPL_BODY) return run_body(r, node);
        LS_TRY(eval(r, node->a, &test));
        if (ls_tpl_truth(&test)) return run_body(r, node->b);
    }
    return LS_OK;
}

/* The items that the loop's condition lets through, each looked at in a scope of its own. */
static ls_status filter_items(renderer *r, const ls_tpl_node *node, scope *outer, const ls_tpl_list *from,
                              ls_tpl_value *out) {
    LS_TRY(ls_tpl_make_list(&r->run, LS_TPL_FORM_LIST, out));
    for (int64_t i = 0; i < from->n; i++) {
        ls_tpl_value test = ls_tpl_bool(true);
        if (node->c != NULL) {
            LS_TRY(open_scope(r, outer));
            LS_TRY(assign(r, node->a, &from->items[i]));
            LS_TRY(eval(r, node->c, &test));
        }
        if (ls_tpl_truth(&test)) LS_TRY(ls_tpl_push(&r->run, out, from->items[i]));
    }
    r->scope = outer;
    return LS_OK;
}

static ls_status run_for(renderer *r, const ls_tpl_node *node) {
    scope *outer = r->scope;
    const ls_tpl_list *from;
    ls_tpl_value value, items;
    ls_tpl_loop *loop;
    LS_TRY(eval(r, node->b, &value));
    LS_TRY(ls_tpl_iterate(&r->run, &value, &from));
    LS_TRY(filter_items(r, node, outer, from, &items));
    LS_TRY(ls_tpl_alloc(&r->run, (void **)&loop, 1, sizeof *loop));
    *loop = (ls_tpl_loop){.list = items.list, .depth = 1};
    for (; loop->at < items.list->n; loop->at++) {
        LS_TRY(ls_tpl_step(&r->run, 1));
        LS_TRY(open_scope(r, outer));
        LS_TRY(set_name(r, "loop", 4, (ls_tpl_value){.kind = LS_TPL_LOOP, .loop = loop}));
        LS_TRY(assign(r, node->a, &items.list->items[loop->at]));
        LS_TRY(run_body(r, node->d));
        if (r->jump == JUMP_BREAK) break;
        r->jump = JUMP_NONE;
    }
    r->jump = JUMP_NONE;
    if (items.list->n == 0 && node->e != NULL) {
        LS_TRY(open_scope(r, outer));
        LS_TRY(run_body(r, node->e));
    }
    r->scope = outer;
    return LS_OK;
}

/* A chain of filters over the text of a block; the innermost node has no value. */
static ls_status filter_text(renderer *r, const ls_tpl_node *chain, const ls_tpl_value *text, ls_tpl_value *out) {
    ls_tpl_value inner = *text;
    LS_TRY(enter_node(r, chain));
    if (chain->a != NULL) LS_TRY(filter_text(r, chain->a, text, &inner));
    LS_TRY(apply_filter(r, chain, &inner, out));
    r->run.depth--;
    return LS_OK;
}

static ls_status run_set_block(renderer *r, const ls_tpl_node *node) {
    ls_tpl_value text, value;
    LS_TRY(capture(r, node->c, r->scope, &text));
    value = text;
    if (node->b != NULL) LS_TRY(filter_text(r, node->b, &text, &value));
    return assign(r, node->a, &value);
}

static ls_status run_filter_block(renderer *r, const ls_tpl_node *node) {
    ls_tpl_value text, value;
    LS_TRY(capture(r, node->b, r->scope, &text));
    LS_TRY(filter_text(r, node->a, &text, &value));
    LS_TRY(ls_tpl_str(&r->run, &value, r->out));
    return write(r, "", 0);
}

static ls_status run_macro(renderer *r, const ls_tpl_node *node) {
    struct ls_tpl_macro *macro;
    LS_TRY(ls_tpl_alloc(&r->run, (void **)&macro, 1, sizeof *macro));
    *macro = (struct ls_tpl_macro){node, r->scope};
    return set_name(r, node->text, node->bytes, (ls_tpl_value){.kind = LS_TPL_CALLABLE, .macro = macro});
}

/* Values of a with are of the outer scope, all of them. */
static ls_status run_with(renderer *r, const ls_tpl_node *node) {
    scope *outer = r->scope, *inner;
    LS_TRY(open_scope(r, outer));
    inner = r->scope;
    for (int64_t i = 0; i < node->n; i++) {
        ls_tpl_value value;
        r->scope = outer;
        LS_TRY(eval(r, node->items[i]->b, &value));
        r->scope = inner;
        LS_TRY(assign(r, node->items[i]->a, &value));
    }
    LS_TRY(run_body(r, node->b));
    r->scope = outer;
    return LS_OK;
}

static ls_status run_generation(renderer *r, const ls_tpl_node *node) {
    scope *outer = r->scope;
    const int64_t begin = r->whole.bytes;
    LS_TRY(open_scope(r, outer));
    LS_TRY(run_body(r, node->b));
    r->scope = outer;
    if (r->out != &r->whole) {
        r->n_unplaced++; /* of a value that may stand anywhere, or nowhere */
        return LS_OK;
    }
    LS_TRY(ls_tpl_grow(&r->run, (void **)&r->spans, &r->spans_cap, r->n_spans + 1, sizeof *r->spans));
    r->spans[r->n_spans++] = (ls_template_span){begin, r->whole.bytes};
    return LS_OK;
}

static ls_status run_statement(renderer *r, const ls_tpl_node *node) {
    ls_tpl_value value;
    switch (node->kind) {
        case LS_TPL_OUTPUT: return write(r, node->text, node->bytes);
        case LS_TPL_PRINT: return run_print(r, node);
        case LS_TPL_IF: return run_if(r, node);
        case LS_TPL_FOR: return run_for(r, node);
        case LS_TPL_SET: LS_TRY(eval(r, node->b, &value)); return assign(r, node->a, &value);
        case LS_TPL_SET_BLOCK: return run_set_block(r, node);
        case LS_TPL_MACRO: return run_macro(r, node);
        case LS_TPL_WITH: return run_with(r, node);
        case LS_TPL_FILTER_BLOCK: return run_filter_block(r, node);
        case LS_TPL_GENERATION: return run_generation(r, node);
        case LS_TPL_BREAK: r->jump = JUMP_BREAK; return LS_OK;
        case LS_TPL_CONTINUE: r->jump = JUMP_CONTINUE; return LS_OK;
        default: break;
    }
    LS_ASSERT(false, "statement %d", (int)node->kind);
    return LS_OK;
}

static ls_status run_body(renderer *r, const ls_tpl_node *body) {
    LS_TRY(enter_node(r, body));
    for (int64_t i = 0; i < body->n && r->jump == JUMP_NONE; i++) {
        r->run.line = body->items[i]->line;
        LS_TRY(run_statement(r, body->items[i]));
    }
    r->run.depth--;
    return LS_OK;
}

/* ---- templates ---- */

#define PARSED_BYTES_MAX ((int64_t)1 << 28)

ls_status ls_template_parse(ls_template **out, const char *text, int64_t bytes, const char *name, ls_error *err) {
    ls_template *t;
    ls_status status;
    *out = NULL;
    if (bytes > LS_TEMPLATE_BYTES_MAX)
        return LS_FAIL(err, LS_ERR_CAPACITY, "%.200s: a template of %lld bytes; at most %lld are read", name,
                       (long long)bytes, (long long)LS_TEMPLATE_BYTES_MAX);
    t = calloc(1, sizeof *t);
    if (t == NULL) return LS_FAIL(err, LS_ERR_NOMEM, "%.200s: template", name);
    snprintf(t->name, sizeof t->name, "%s", name);
    t->arena.bytes_max = PARSED_BYTES_MAX;
    ls_tpl_run run = {.arena = &t->arena, .name = t->name, .steps_max = INT64_MAX / 2, .err = err};
    LS_TRY_DONE(ls_tpl_parse(&run, text, bytes, &t->body, &t->marks));
    t->reads_parts = ls_tpl_reads_parts(t->body);
    *out = t;
    t = NULL;
done:
    ls_template_free(t);
    return status;
}

void ls_template_free(ls_template *t) {
    if (t == NULL) return;
    ls_tpl_arena_deinit(&t->arena);
    free(t);
}

const char *ls_template_name(const ls_template *parsed) { return parsed->name; }

bool ls_template_marks_generation(const ls_template *t) { return t->marks; }
bool ls_template_reads_parts(const ls_template *t) { return t->reads_parts; }

/* A message's reasoning under the names that templates know: what transformers 5 does before it renders. */
static ls_status alias_reasoning(ls_tpl_run *run, ls_tpl_value *message) {
    static const char *const names[] = {"reasoning_content", "thinking", "reasoning"};
    const ls_tpl_value standard = ls_tpl_string(names[0]), older = ls_tpl_string(names[1]);
    const ls_tpl_value *found = NULL;
    ls_tpl_value made;
    if (message->kind != LS_TPL_DICT) return LS_OK;
    for (int i = 0; i < 3 && (found == NULL || found->kind == LS_TPL_NONE); i++) {
        const ls_tpl_value name = ls_tpl_string(names[i]);
        found = ls_tpl_dict_find(message->dict, &name);
    }
    if (found == NULL || found->kind == LS_TPL_NONE) return LS_OK;
    LS_TRY(ls_tpl_make_dict(run, &made));
    LS_TRY(ls_tpl_dict_set(run, made.dict, older, *found));
    for (int64_t i = 0; i < message->dict->n; i++)
        LS_TRY(ls_tpl_dict_set(run, made.dict, message->dict->entries[i].key, message->dict->entries[i].value));
    LS_TRY(ls_tpl_dict_set(run, made.dict, standard, *found));
    *message = made;
    return LS_OK;
}

static ls_status set_variables(renderer *r, const ls_template_variable *variables, int64_t n) {
    LS_TRY(open_scope(r, NULL));
    for (int64_t i = 0; i < n; i++) {
        const ls_template_variable *v = &variables[i];
        ls_tpl_value value = ls_tpl_bool(v->truth);
        if (v->kind == LS_TEMPLATE_TEXT) value = ls_tpl_string(v->text);
        if (v->kind == LS_TEMPLATE_NODE) LS_TRY(ls_tpl_from_node(&r->run, v->node, &value));
        if (v->first > 0 && value.kind == LS_TPL_LIST && value.list->n > v->first) value.list->n = v->first;
        for (int64_t k = 0; v->is_messages && value.kind == LS_TPL_LIST && k < value.list->n; k++)
            LS_TRY(alias_reasoning(&r->run, &value.list->items[k]));
        LS_TRY(set_name(r, v->name, (int64_t)strlen(v->name), value));
    }
    return open_scope(r, r->scope);
}

/* The output as the caller's own memory. */
static ls_status hand_out(const renderer *r, ls_template_output *out, ls_error *err) {
    ls_status status;
    LS_TRY_DONE(ls_text_copy(&out->text, r->whole.data, r->whole.bytes, err));
    out->bytes = r->whole.bytes;
    LS_TRY_DONE(ls_array_alloc((void **)&out->spans, r->n_spans, sizeof *out->spans, "spans", err));
    if (r->n_spans > 0) memcpy(out->spans, r->spans, (size_t)r->n_spans * sizeof *out->spans);
    out->n_spans = r->n_spans;
    out->n_unplaced = r->n_unplaced;
done:
    if (status != LS_OK) ls_template_output_deinit(out);
    return status;
}

ls_status ls_template_render(const ls_template *t, const ls_template_variable *variables, int64_t n, int64_t now,
                             const ls_template_limits *limits, ls_template_output *out, ls_error *err) {
    static const ls_template_limits usual = {20000000, (int64_t)1 << 30, (int64_t)1 << 26};
    const ls_template_limits *l = limits != NULL ? limits : &usual;
    ls_tpl_arena arena = {.bytes_max = l->memory};
    renderer r = {.run = {.arena = &arena, .name = t->name, .line = 1, .steps_max = l->steps, .err = err},
                  .output_max = l->output,
                  .now = now};
    ls_status status;
    memset(out, 0, sizeof *out);
    r.out = &r.whole;
    LS_TRY_DONE(set_variables(&r, variables, n));
    LS_TRY_DONE(run_body(&r, t->body));
    status = hand_out(&r, out, err);
done:
    ls_tpl_arena_deinit(&arena);
    return status;
}

void ls_template_output_deinit(ls_template_output *out) {
    free(out->text);
    free(out->spans);
    memset(out, 0, sizeof *out);
}
