/* Chat templates: the part of Jinja that templates of chat models use, rendered as Hugging Face transformers renders
 * them with apply_chat_template: trim_blocks and lstrip_blocks on, no autoescape, immutable containers, `break` and
 * `continue`, raise_exception, strftime_now, tojson without escapes, `{% generation %}`.
 *
 * Read:
 *   tags       if elif else, for (else, a condition, unpacking), break, continue, set (also of a namespace, and as a
 *              block), macro, with, filter, raw, generation; comments; - and + at both ends of a tag
 *   values     none, booleans, 64-bit integers, binary64, texts, lists, tuples, dicts, undefined, namespaces
 *   operators  or and not, comparisons in chains, in, is, + - * / // % **, ~, |, inline if, calls (also f(*list)), [],
 *              slices, .
 *   filters, tests, methods of texts and dicts: the tables of template_filters.c, template_tests.c, template_methods.c
 *   functions  range, dict, namespace, raise_exception, strftime_now; loop with all its members
 *
 * Everything else is refused by its name: a tag when the template is read, the rest where it is used. Python's values
 * without an end (integers beyond 64 bits) are errors. Texts are cut and counted in code points. What a generator of
 * Jinja cannot do (length, index, print) is an error here, too.
 *
 * Errors begin "NAME: line N: ". Depth, steps, memory and output are bounded (ls_template_limits). */
#ifndef LS_TEMPLATE_TEMPLATE_H
#define LS_TEMPLATE_TEMPLATE_H

#include "json/json_node.h"

typedef struct ls_template ls_template;

typedef struct ls_template_limits {
    int64_t steps;  /* of the evaluator; text costs one for 64 bytes */
    int64_t memory; /* bytes of values */
    int64_t output; /* bytes */
} ls_template_limits;

#define LS_TEMPLATE_BYTES_MAX ((int64_t)1 << 20)

/* `name` stands for the template in errors; it is copied. */
ls_status ls_template_parse(ls_template **out, const char *text, int64_t bytes, const char *name, ls_error *err);
void ls_template_free(ls_template *parsed); /* accepts NULL */
/* What stands for it in errors. */
const char *ls_template_name(const ls_template *parsed);
/* Whether it has a {% generation %} block. */
bool ls_template_marks_generation(const ls_template *parsed);
/* Whether it goes over the content of a message, by a loop or a filter on lists: content may be a list of parts. */
bool ls_template_reads_parts(const ls_template *parsed);

/* A variable of the template: JSON, or a text, or a truth value. */
typedef enum ls_template_kind { LS_TEMPLATE_NODE, LS_TEMPLATE_TEXT, LS_TEMPLATE_BOOL } ls_template_kind;

typedef struct ls_template_variable {
    const char *name;
    ls_template_kind kind;
    const ls_node *node;
    int64_t first;    /* of a list: only its first so many items; 0: all */
    bool is_messages; /* reasoning_content, thinking and reasoning of its items stand for each other, as there */
    const char *text; /* NUL-terminated */
    bool truth;
} ls_template_variable;

typedef struct ls_template_span {
    int64_t begin, end; /* bytes of the output */
} ls_template_span;

typedef struct ls_template_output {
    char *text; /* ends in NUL, may contain more of them */
    int64_t bytes;
    ls_template_span *spans;     /* [n_spans]: what {% generation %} blocks wrote, in order */
    int64_t n_spans, n_unplaced; /* n_unplaced: such blocks of macros, set blocks and filters, which have no span */
} ls_template_output;

/* Of variables of one name the last counts. now: seconds since 1970 for strftime_now, shown in local time. limits NULL:
 * usual ones. The output is released with ls_template_output_deinit. Any number of threads may share the template. */
ls_status ls_template_render(const ls_template *parsed, const ls_template_variable *variables, int64_t n, int64_t now,
                             const ls_template_limits *limits, ls_template_output *out, ls_error *err);
void ls_template_output_deinit(ls_template_output *out);

#endif
