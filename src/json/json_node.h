/* Reading JSON with errors that name the file, the path and the value. A node knows its parents, so that the path is
 * only written when something is wrong; nodes live on the stack, the parsed document behind them in a handle. */
#ifndef LS_JSON_JSON_NODE_H
#define LS_JSON_JSON_NODE_H

#include "base/status.h"
#include "json/json_decimal.h"
#include "json/json_out.h"

typedef struct ls_json_doc ls_json_doc;

/* Parses one object by the rules of json_read.h, NUL in strings allowed. `name` stands for the file in errors and is
 * copied. */
ls_status ls_json_doc_open(ls_json_doc **out, const char *text, int64_t bytes, const char *name, ls_error *err);
/* The same where numbers are compared as decimals: all that are not their doubles are kept, as ls_node_kept, and none
 * is too large. */
ls_status ls_json_doc_open_exact(ls_json_doc **out, const char *text, int64_t bytes, const char *name, ls_error *err);
void ls_json_doc_free(ls_json_doc *doc);

typedef enum ls_node_kind {
    LS_NODE_NULL,
    LS_NODE_BOOL,
    LS_NODE_INT,
    LS_NODE_REAL,
    LS_NODE_TEXT,
    LS_NODE_ARRAY,
    LS_NODE_OBJECT
} ls_node_kind;

typedef struct ls_node {
    const ls_json_doc *doc;
    const void *value;
    const struct ls_node *parent; /* must outlive this node */
    const char *key;              /* NULL inside an array */
    int64_t index;
} ls_node;

ls_node ls_json_root(const ls_json_doc *doc);
ls_node_kind ls_node_kind_of(const ls_node *node);
/* Items of an array, members of an object, 0 otherwise. */
int64_t ls_node_count(const ls_node *node);

/* Sets err to "NAME: PATH: sentence" and returns status. */
ls_status ls_node_fail(const ls_node *node, ls_status status, ls_error *err, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* Puts "NAME: PATH: " in front of what err says. */
void ls_node_blame(const ls_node *node, ls_error *err);

/* A member of an object: false when it is absent, or null for ls_node_get_some. */
bool ls_node_get(const ls_node *object, const char *key, ls_node *child);
bool ls_node_get_some(const ls_node *object, const char *key, ls_node *child);
/* A member that must be there. */
ls_status ls_node_need(const ls_node *object, const char *key, ls_node *child, ls_error *err);
/* The same, of this kind. */
ls_status ls_node_need_kind(const ls_node *object, const char *key, ls_node_kind kind, ls_node *child, ls_error *err);
ls_node ls_node_at(const ls_node *array, int64_t index);

/* Members in file order: *iterator starts as NULL. */
bool ls_node_next(const ls_node *object, void **iterator, ls_node *child);

/* Typed values. A value of another kind is LS_ERR_FORMAT. Text may hold NUL characters and lives as long as the
 * document. */
ls_status ls_node_expect(const ls_node *node, ls_node_kind kind, ls_error *err);
ls_status ls_node_text(const ls_node *node, const char **text, int64_t *bytes, ls_error *err);
/* As above, and free of NUL characters. */
ls_status ls_node_string(const ls_node *node, const char **text, ls_error *err);
ls_status ls_node_bool(const ls_node *node, bool *out, ls_error *err);
ls_status ls_node_int(const ls_node *node, int64_t low, int64_t high, int64_t *out, ls_error *err);
/* The value of a REAL or an INT: the next double, of an exact document an infinity where there is none. */
double ls_node_number(const ls_node *node);
/* The text of a number that neither 64 bits nor a double hold (json_numbers.h), whose kind is REAL; else NULL. */
const char *ls_node_kept(const ls_node *node);
/* As a decimal; `text` is scratch memory that it may point to. */
ls_json_decimal ls_node_decimal(const ls_node *node, char text[LS_DOUBLE_TEXT_MAX]);

/* The value as JSON text on one line, released with free(): numbers that are kept as they were, other reals as the
 * shortest text of their double. */
ls_status ls_node_dump(const ls_node *node, char **out, ls_error *err);

/* Every member must have one of the keys (the list ends with NULL), else LS_ERR_UNSUPPORTED. */
ls_status ls_node_only(const ls_node *object, const char *const *keys, ls_error *err);

#endif
