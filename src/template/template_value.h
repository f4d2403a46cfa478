/* Values of templates, as Python's: truth, equality, order, text, JSON. What lies behind a value is the arena's. */
#ifndef LS_TEMPLATE_TEMPLATE_VALUE_H
#define LS_TEMPLATE_TEMPLATE_VALUE_H

#include "json/json_node.h"
#include "template/template_tree.h"

typedef enum ls_tpl_kind {
    LS_TPL_UNDEFINED, /* text: the name that has no value, or NULL */
    LS_TPL_NONE,
    LS_TPL_BOOL, /* integer is 0 or 1 */
    LS_TPL_INT,
    LS_TPL_FLOAT,
    LS_TPL_TEXT, /* text */
    LS_TPL_LIST, /* list, of a form */
    LS_TPL_DICT,
    LS_TPL_NAMESPACE, /* dict */
    LS_TPL_FUNCTION,  /* text: the name of a global one */
    LS_TPL_METHOD,    /* text: its name; self */
    LS_TPL_CALLABLE,  /* macro */
    LS_TPL_LOOP       /* loop */
} ls_tpl_kind;

/* What a list may do that Python's object would. */
typedef enum ls_tpl_form {
    LS_TPL_FORM_LIST,
    LS_TPL_FORM_TUPLE,
    LS_TPL_FORM_RANGE, /* length and index, no text */
    LS_TPL_FORM_VIEW,  /* of a dict: length, no index, no text */
    LS_TPL_FORM_ONCE   /* a generator: it is gone through once */
} ls_tpl_form;

struct ls_tpl_list;
struct ls_tpl_dict;

typedef struct ls_tpl_value {
    ls_tpl_kind kind;
    bool markup; /* of a text: it went through `safe` */
    union {
        int64_t integer;
        double real;
        int64_t bytes;
    };
    union {
        const char *text; /* [bytes]; names end in NUL */
        struct ls_tpl_list *list;
        struct ls_tpl_dict *dict;
        struct ls_tpl_loop *loop;
        const struct ls_tpl_macro *macro;
    };
    const struct ls_tpl_value *self;
} ls_tpl_value;

typedef struct ls_tpl_list {
    ls_tpl_value *items;
    int64_t n, cap;
    ls_tpl_form form;
    bool spent;
} ls_tpl_list;

typedef struct ls_tpl_entry {
    ls_tpl_value key, value;
} ls_tpl_entry;

typedef struct ls_tpl_dict {
    ls_tpl_entry *entries; /* in the order in which they came */
    int64_t n, cap;
} ls_tpl_dict;

typedef struct ls_tpl_loop {
    const ls_tpl_list *list;
    int64_t at, depth;
    ls_tpl_value changed; /* the arguments of the last loop.changed() */
    bool has_changed;
} ls_tpl_loop;

ls_tpl_value ls_tpl_undefined(const char *name);
ls_tpl_value ls_tpl_none(void);
ls_tpl_value ls_tpl_bool(bool truth);
ls_tpl_value ls_tpl_int(int64_t integer);
ls_tpl_value ls_tpl_real(double real);
ls_tpl_value ls_tpl_text_of(const char *text, int64_t bytes);
ls_tpl_value ls_tpl_string(const char *text);
/* The text that was built. */
ls_tpl_value ls_tpl_built(const ls_tpl_text *text);
ls_status ls_tpl_make_list(ls_tpl_run *run, ls_tpl_form form, ls_tpl_value *out);
ls_status ls_tpl_push(ls_tpl_run *run, ls_tpl_value *list, ls_tpl_value item);
ls_status ls_tpl_make_dict(ls_tpl_run *run, ls_tpl_value *out);
/* The entry of a key, or NULL. */
ls_tpl_value *ls_tpl_dict_find(const ls_tpl_dict *dict, const ls_tpl_value *key);
ls_status ls_tpl_dict_set(ls_tpl_run *run, ls_tpl_dict *dict, ls_tpl_value key, ls_tpl_value value);
ls_status ls_tpl_from_node(ls_tpl_run *run, const ls_node *node, ls_tpl_value *out);

/* A name for errors: "a text", "a list". */
const char *ls_tpl_kind_name(const ls_tpl_value *value);
bool ls_tpl_is_text(const ls_tpl_value *value, const char *text);
bool ls_tpl_is_number(const ls_tpl_value *value); /* also a truth value, as in Python */
double ls_tpl_number(const ls_tpl_value *value);
bool ls_tpl_truth(const ls_tpl_value *value);
ls_status ls_tpl_equal(ls_tpl_run *run, const ls_tpl_value *a, const ls_tpl_value *b, bool *out);
/* *order < 0, 0, > 0; values without an order are an error. */
ls_status ls_tpl_compare(ls_tpl_run *run, const ls_tpl_value *a, const ls_tpl_value *b, int *order);
ls_status ls_tpl_contains(ls_tpl_run *run, const ls_tpl_value *whole, const ls_tpl_value *part, bool *out);

/* What a loop over the value goes through: items of a list, keys of a dict, characters of a text, nothing of what is
 * undefined. A generator is spent by it. */
ls_status ls_tpl_iterate(ls_tpl_run *run, const ls_tpl_value *value, const ls_tpl_list **out);
ls_status ls_tpl_length(ls_tpl_run *run, const ls_tpl_value *value, int64_t *out);

/* str(value), and repr(value). */
ls_status ls_tpl_str(ls_tpl_run *run, const ls_tpl_value *value, ls_tpl_text *out);
ls_status ls_tpl_str_value(ls_tpl_run *run, const ls_tpl_value *value, ls_tpl_value *out);

typedef struct ls_tpl_json_style {
    bool ascii, sorted;
    const char *indent; /* of one level, or NULL: one line */
    int64_t indent_bytes;
    ls_tpl_value item_separator, key_separator; /* texts */
} ls_tpl_json_style;

/* json.dumps(value). */
ls_status ls_tpl_json(ls_tpl_run *run, const ls_tpl_value *value, const ls_tpl_json_style *style, ls_tpl_text *out);

#endif
