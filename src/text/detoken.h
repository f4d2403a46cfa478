/* Decoders: the steps from a list of token texts back to one text. */
#ifndef LS_TEXT_DETOKEN_H
#define LS_TEXT_DETOKEN_H

#include "text/pattern.h"

typedef enum ls_dec_kind {
    LS_DEC_BYTE_LEVEL,
    LS_DEC_REPLACE,
    LS_DEC_BYTE_FALLBACK, /* runs of <0x..> become the character they spell, or one U+FFFD for each */
    LS_DEC_FUSE,
    LS_DEC_STRIP,
    LS_DEC_METASPACE,
    LS_DEC_BPE /* an end-of-word suffix becomes a space, except at the end */
} ls_dec_kind;

typedef struct ls_dec_step {
    ls_dec_kind kind;
    ls_pattern pattern; /* what is replaced, stripped (one character), or stands for a space or a word's end */
    char *content;      /* of Replace */
    int64_t content_bytes;
    int64_t start, stop; /* of Strip: at most so many characters at either end */
    bool drop_first;     /* of Metaspace: in the first token the mark disappears */
} ls_dec_step;

void ls_dec_step_deinit(ls_dec_step *step);

/* Runs the steps over *tokens in place. */
ls_status ls_detokenize(const ls_dec_step *steps, int64_t n_steps, ls_pieces *tokens, ls_error *err);

/* What two decoders make of one token, for whoever decodes token by token: the bytes that ByteLevel appends for it, and
 * the byte that it spells for ByteFallback as <0xHH>, or -1. */
ls_status ls_byte_level_append(ls_text *raw, const char *text, int64_t bytes, ls_error *err);
int ls_token_byte(const char *text, int64_t bytes);

#endif
