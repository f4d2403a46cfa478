/* A template as a tree. Nodes and texts are the arena's. */
#ifndef LS_TEMPLATE_TEMPLATE_TREE_H
#define LS_TEMPLATE_TEMPLATE_TREE_H

#include "template/template_arena.h"

typedef enum ls_tpl_node_kind {
    /* Expressions. */
    LS_TPL_CONST_NONE,
    LS_TPL_CONST_TRUE,
    LS_TPL_CONST_FALSE,
    LS_TPL_CONST_INT,  /* integer */
    LS_TPL_CONST_REAL, /* real */
    LS_TPL_CONST_TEXT, /* text */
    LS_TPL_VARIABLE,   /* text */
    LS_TPL_MAKE_LIST,  /* items */
    LS_TPL_MAKE_TUPLE, /* items */
    LS_TPL_MAKE_DICT,  /* items: key, value, key, value .. */
    LS_TPL_ATTRIBUTE,  /* a.text */
    LS_TPL_INDEX,      /* a[b] */
    LS_TPL_SLICE,      /* a[b:c:d], each of b c d may be NULL */
    LS_TPL_CALL,       /* a(items), see LS_TPL_SPREAD and LS_TPL_KEYWORD */
    LS_TPL_FILTER,     /* a | text(items); a NULL: of a block's text */
    LS_TPL_TEST,       /* a is text(items) */
    LS_TPL_COND,       /* b if a else c; c may be NULL */
    LS_TPL_OR,         /* a, b */
    LS_TPL_AND,        /* a, b */
    LS_TPL_NOT,        /* a */
    LS_TPL_COMPARE,    /* a, then items of LS_TPL_OPERAND */
    LS_TPL_OPERAND,    /* op, a */
    LS_TPL_BINARY,     /* op, a, b */
    LS_TPL_CONCAT,     /* items */
    LS_TPL_NEGATIVE,   /* a */
    LS_TPL_POSITIVE,   /* a */
    LS_TPL_SPREAD,     /* *a, in the items of a call: once, behind what has no name */
    LS_TPL_KEYWORD,    /* text = a, in the items of a call */
    /* Statements. */
    LS_TPL_BODY,   /* items */
    LS_TPL_OUTPUT, /* text */
    LS_TPL_PRINT,  /* a */
    LS_TPL_IF,     /* a: body b, else c (a body or another LS_TPL_IF) or NULL */
    LS_TPL_FOR,    /* target a in b if c: body d, else e */
    LS_TPL_BREAK,
    LS_TPL_CONTINUE,
    LS_TPL_SET,          /* target a = b */
    LS_TPL_SET_BLOCK,    /* target a, filters b (or NULL), body c */
    LS_TPL_MACRO,        /* text(items: LS_TPL_KEYWORD with a NULL or the default): body b */
    LS_TPL_WITH,         /* items: LS_TPL_SET; body b */
    LS_TPL_FILTER_BLOCK, /* filters a, body b */
    LS_TPL_GENERATION    /* body b */
} ls_tpl_node_kind;

typedef enum ls_tpl_op {
    LS_TPL_ADD,
    LS_TPL_SUB,
    LS_TPL_MUL,
    LS_TPL_DIV,
    LS_TPL_FLOOR_DIV,
    LS_TPL_MOD,
    LS_TPL_POW,
    LS_TPL_EQ,
    LS_TPL_NE,
    LS_TPL_LT,
    LS_TPL_LE,
    LS_TPL_GT,
    LS_TPL_GE,
    LS_TPL_IN,
    LS_TPL_NOT_IN
} ls_tpl_op;

typedef struct ls_tpl_node {
    ls_tpl_node_kind kind;
    ls_tpl_op op;
    int32_t line;
    const char *text;
    int64_t bytes;
    int64_t integer;
    double real;
    struct ls_tpl_node *a, *b, *c, *d, *e;
    struct ls_tpl_node **items;
    int64_t n, cap;
} ls_tpl_node;

/* The text as one LS_TPL_BODY. *marks: it has a generation block. */
ls_status ls_tpl_parse(ls_tpl_run *run, const char *text, int64_t bytes, ls_tpl_node **out, bool *marks);

#endif
