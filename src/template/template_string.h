/* Texts of templates as Python's: cut and counted in code points. */
#ifndef LS_TEMPLATE_TEMPLATE_STRING_H
#define LS_TEMPLATE_TEMPLATE_STRING_H

#include "template/template_value.h"

enum { LS_TPL_LEFT = 1, LS_TPL_RIGHT = 2 };

/* Without white space, or without the characters of `chars`, at these ends. */
ls_tpl_value ls_tpl_strip(const ls_tpl_value *text, const ls_tpl_value *chars, int ends);
/* Bytes from the beginning to the code point with this number, at most all. */
int64_t ls_tpl_offset(const ls_tpl_value *text, int64_t codes);

typedef enum ls_tpl_case {
    LS_TPL_TO_UPPER,
    LS_TPL_TO_LOWER,
    LS_TPL_TO_CAPITALIZED,
    LS_TPL_TO_TITLE,    /* str.title: a letter behind none begins a word */
    LS_TPL_TO_WORD_CASE /* Jinja's title: words begin behind spaces, - and opening brackets */
} ls_tpl_case;

ls_status ls_tpl_change_case(ls_tpl_run *run, const ls_tpl_value *text, ls_tpl_case to, ls_tpl_value *out);
/* At most `count` times, from the left; below 0: all. */
ls_status ls_tpl_replace(ls_tpl_run *run, const ls_tpl_value *text, const ls_tpl_value *from, const ls_tpl_value *to,
                         int64_t count, ls_tpl_value *out);
/* Lines without their ends. */
ls_status ls_tpl_split_lines(ls_tpl_run *run, const ls_tpl_value *text, ls_tpl_value *out);
/* At a text, or with separator NULL at white space; at most `count` cuts (below 0: all), from the right if so. */
ls_status ls_tpl_split(ls_tpl_run *run, const ls_tpl_value *text, const ls_tpl_value *separator, int64_t count,
                       bool from_right, ls_tpl_value *out);
/* Whether Python's isspace says so. */
bool ls_tpl_is_space(int32_t code);

#endif
