/* Regular expressions in the dialect of tokenizer files (Oniguruma, Ruby syntax), run by PCRE2.
 *
 * A pattern is translated first. Whatever the two engines would read differently is either spelled out (\s, \w, \d,
 * \h, \v, \p{..}, ., ^, $, \b, intervals) or refused by name: what remains means the same in both, for every code
 * point. Known exceptions, all about single code points: U+1171E is Mc in Unicode 15 and Mn in ours. */
#ifndef LS_TEXT_REGEX_H
#define LS_TEXT_REGEX_H

#include "text/token_text.h"

typedef struct ls_regex ls_regex;

/* Pattern: valid UTF-8. LS_ERR_UNSUPPORTED names the construct that is not translated, LS_ERR_FORMAT what is
 * malformed. */
ls_status ls_regex_compile(ls_regex **out, const char *pattern, int64_t bytes, ls_error *err);
void ls_regex_free(ls_regex *regex);

/* Search state over one text at a time; not shared between threads. */
typedef struct ls_regex_search ls_regex_search;

ls_status ls_regex_search_create(ls_regex_search **out, const ls_regex *regex, ls_error *err);
void ls_regex_search_free(ls_regex_search *search);

/* Leftmost match in text[from..bytes): valid UTF-8, which lookbehind may read from the beginning. */
ls_status ls_regex_find(ls_regex_search *search, const char *text, int64_t bytes, int64_t from, bool *found,
                        int64_t *begin, int64_t *end, ls_error *err);

/* What a group of the pattern took in the match that was just found; false when it took no part, or is not there. Group
 * 0 is the whole. */
bool ls_regex_group(const ls_regex_search *search, int64_t group, int64_t *begin, int64_t *end);

/* The translation alone (regex_dialect.c): appends the PCRE2 pattern to *out. */
ls_status ls_regex_translate(ls_text *out, const char *pattern, int64_t bytes, ls_error *err);

/* Classes of the reference that are not its regular expressions' own, as text for a PCRE2 class (without brackets):
 * word characters of added tokens and of the Whitespace step. */
ls_status ls_regex_append_plain_word(ls_text *out, ls_error *err);
/* Compiles text that is PCRE2 syntax already. */
ls_status ls_regex_compile_plain(ls_regex **out, const char *pattern, int64_t bytes, ls_error *err);

#endif
