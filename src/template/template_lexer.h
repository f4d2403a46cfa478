/* A template's text as tokens, by Jinja's rules of white space: trim_blocks and lstrip_blocks on, one newline at the
 * end of the template taken away, newlines of all kinds made one. */
#ifndef LS_TEMPLATE_TEMPLATE_LEXER_H
#define LS_TEMPLATE_TEMPLATE_LEXER_H

#include "template/template_arena.h"

typedef enum ls_tpl_token_kind {
    LS_TPL_DATA,        /* text between tags */
    LS_TPL_BLOCK_BEGIN, /* {% */
    LS_TPL_BLOCK_END,
    LS_TPL_PRINT_BEGIN, /* {{ */
    LS_TPL_PRINT_END,
    LS_TPL_NAME,
    LS_TPL_STRING, /* text with its escapes resolved */
    LS_TPL_INTEGER,
    LS_TPL_REAL,
    LS_TPL_OPERATOR,
    LS_TPL_END
} ls_tpl_token_kind;

typedef struct ls_tpl_token {
    ls_tpl_token_kind kind;
    int32_t line;
    const char *text; /* [bytes], not NUL-terminated; of an operator its characters */
    int64_t bytes;
    int64_t integer;
    double real;
} ls_tpl_token;

/* The list ends with LS_TPL_END; it and its texts are the arena's. */
ls_status ls_tpl_lex(ls_tpl_run *run, const char *text, int64_t bytes, ls_tpl_token **out, int64_t *n);

#endif
