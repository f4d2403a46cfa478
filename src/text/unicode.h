/* Questions about single code points, answered as the reference tokenizer library answers them. */
#ifndef LS_TEXT_UNICODE_H
#define LS_TEXT_UNICODE_H

#include "text/token_text.h"

bool ls_code_is_space(int32_t code);   /* property White_Space */
bool ls_code_is_numeric(int32_t code); /* category N */
bool ls_code_is_punct(int32_t code);   /* category P and the ASCII symbols */
bool ls_code_is_mark(int32_t code);    /* category M */
/* Whether a grapheme cluster ends between two characters that follow each other; *state is 0 before the first. */
bool ls_code_is_break(int32_t before, int32_t code, int32_t *state);
/* Appends the full lower-case mapping. */
ls_status ls_code_append_lower(int32_t code, ls_text *out, ls_error *err);
/* Not a control, format, surrogate, private or unassigned code point, nor a separator but the space. */
bool ls_code_is_printable(int32_t code);
/* Single code points of the simple case mappings. */
int32_t ls_code_to_upper(int32_t code);
int32_t ls_code_to_lower(int32_t code);
/* Whether the full mapping to upper case is that of ls_code_to_upper; some characters become several. */
bool ls_code_upper_is_simple(int32_t code);
bool ls_code_is_letter(int32_t code); /* category L */
bool ls_code_is_upper(int32_t code);  /* category Lu */
bool ls_code_is_lower(int32_t code);  /* category Ll */
bool ls_code_is_digit(int32_t code);  /* category Nd */

enum { LS_FORM_COMPOSE = 1, LS_FORM_COMPAT = 2 };

/* Appends the normalization form: NFD is 0, NFC LS_FORM_COMPOSE, NFKD LS_FORM_COMPAT, NFKC both. Text is valid UTF-8.
 * Time is O(n log n) whatever the text, long runs of marks included. */
ls_status ls_unicode_normalize(const char *text, int64_t bytes, int form, ls_text *out, ls_error *err);

#endif
