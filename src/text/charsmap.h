/* The rewriting rules of SentencePiece's models, as the step Precompiled of a tokenizer.json has them: a double-array
 * trie of byte strings, whose values are places in a text of replacements.
 *
 * The text is taken grapheme cluster by grapheme cluster. A cluster of fewer than 6 bytes is replaced by the rule of
 * its shortest beginning that has one; otherwise each of its characters is, where it has one. So does the reference. */
#ifndef LS_TEXT_CHARSMAP_H
#define LS_TEXT_CHARSMAP_H

#include "text/token_text.h"

typedef struct ls_charsmap {
    uint32_t *units; /* [n_units] of the trie */
    int64_t n_units;
    char *text; /* replacements, each ending in NUL */
    int64_t text_bytes;
} ls_charsmap;

/* From the base64 text in the file. */
ls_status ls_charsmap_parse(ls_charsmap *out, const char *base64, int64_t bytes, ls_error *err);
void ls_charsmap_deinit(ls_charsmap *map);
/* Appends the rewritten text, which is valid UTF-8. */
ls_status ls_charsmap_apply(const ls_charsmap *map, const char *text, int64_t bytes, ls_text *out, ls_error *err);

#endif
