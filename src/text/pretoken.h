/* Pre-tokenizers: the steps that cut normalised text into the words the model sees. */
#ifndef LS_TEXT_PRETOKEN_H
#define LS_TEXT_PRETOKEN_H

#include "text/pattern.h"

/* What becomes of the matches of a split, by the example "the-final--countdown" split at '-'. */
typedef enum ls_split_behavior {
    LS_SPLIT_REMOVED,         /* the|final|countdown */
    LS_SPLIT_ISOLATED,        /* the|-|final|-|-|countdown */
    LS_SPLIT_MERGED_PREVIOUS, /* the-|final-|-|countdown */
    LS_SPLIT_MERGED_NEXT,     /* the|-final|-|-countdown */
    LS_SPLIT_CONTIGUOUS       /* the|-|final|--|countdown */
} ls_split_behavior;

typedef enum ls_pre_kind {
    LS_PRE_BYTE_LEVEL,
    LS_PRE_SPLIT, /* by pattern; also the Whitespace step */
    LS_PRE_METASPACE,
    LS_PRE_DIGITS,
    LS_PRE_PUNCTUATION,
    LS_PRE_WHITESPACE_SPLIT
} ls_pre_kind;

typedef enum ls_prepend_scheme { LS_PREPEND_ALWAYS, LS_PREPEND_NEVER, LS_PREPEND_FIRST } ls_prepend_scheme;

typedef struct ls_pre_step {
    ls_pre_kind kind;
    ls_pattern pattern; /* of Split; of ByteLevel when it splits; the replacement character of Metaspace */
    ls_split_behavior behavior;
    bool invert;
    bool add_prefix_space; /* of ByteLevel */
    bool split;            /* of ByteLevel and Metaspace */
    ls_prepend_scheme scheme;
} ls_pre_step;

void ls_pre_step_deinit(ls_pre_step *step);

/* Cuts the text and leaves the words in *words. */
ls_status ls_pretokenize(const ls_pre_step *steps, int64_t n_steps, const char *text, int64_t bytes, bool at_start,
                         ls_pieces *words, ls_error *err);

/* The character that stands for a byte in byte-level vocabularies, and the byte back, or -1. */
int32_t ls_byte_to_code(uint8_t byte);
int32_t ls_code_to_byte(int32_t code);
/* The pattern that ByteLevel splits by when it uses its own, in the dialect of tokenizer files. */
extern const char ls_byte_level_pattern[];

#endif
