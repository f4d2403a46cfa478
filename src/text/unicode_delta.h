/* Where the reference tokenizer library's character data differs from PCRE2's (Unicode 14) and utf8proc's (15). */
#ifndef LS_TEXT_UNICODE_DELTA_H
#define LS_TEXT_UNICODE_DELTA_H

#include "base/status.h"

typedef struct ls_code_range {
    int32_t first, last;
} ls_code_range;

typedef struct ls_code_new {
    int32_t first, last;
    char category[3];
    const char *script; /* NULL when it is none of the scripts that patterns may name */
} ls_code_new;

typedef struct ls_code_lower {
    int32_t first, last, delta;
} ls_code_lower;

extern const ls_code_new ls_new_codes[];
extern const int64_t ls_new_codes_n;
extern const ls_code_range ls_numeric_more[], ls_punct_more[], ls_punct_less[], ls_mark_more[], ls_mark_less[],
    ls_norm_inert[];
extern const int64_t ls_numeric_more_n, ls_punct_more_n, ls_punct_less_n, ls_mark_more_n, ls_mark_less_n,
    ls_norm_inert_n;
extern const ls_code_lower ls_lower_more[];
extern const int64_t ls_lower_more_n;

#endif
