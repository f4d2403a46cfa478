/* UTF-8 by the Unicode Standard's table 3-7: no overlong forms, no surrogates, nothing above U+10FFFF. */
#ifndef LS_BASE_UTF8_H
#define LS_BASE_UTF8_H

#include "base/status.h"

/* Decodes one code point from text[0..bytes), bytes > 0. Returns the bytes used (>= 1). On an ill-formed sequence
 * *code is -1 and the return value is the length of its maximal subpart (what one U+FFFD replaces). */
int64_t ls_utf8_decode(const uint8_t *text, int64_t bytes, int32_t *code);
/* Writes code (a scalar value) to out[4]; returns the bytes written. */
int64_t ls_utf8_encode(int32_t code, uint8_t *out);
bool ls_utf8_valid(const uint8_t *text, int64_t bytes);
/* Bytes of the mark of byte order that Windows writes in front of a text: 3, or 0 where there is none. */
int64_t ls_utf8_mark(const char *text, int64_t bytes);

/* ASCII alone, whatever the locale. */
static inline bool ls_is_digit(char c) { return c >= '0' && c <= '9'; }
static inline bool ls_is_space(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

#endif
