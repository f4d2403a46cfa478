/* Normalizers: the steps that rewrite text before added tokens of the normalised kind are looked for. */
#ifndef LS_TEXT_NORMALIZE_H
#define LS_TEXT_NORMALIZE_H

#include "text/charsmap.h"
#include "text/pattern.h"

typedef enum ls_norm_kind {
    LS_NORM_FORM, /* form: see ls_unicode_normalize */
    LS_NORM_PREPEND,
    LS_NORM_REPLACE,
    LS_NORM_LOWERCASE,
    LS_NORM_STRIP,
    LS_NORM_STRIP_ACCENTS,
    LS_NORM_NMT, /* control characters away, what separates words to spaces */
    LS_NORM_CHARSMAP
} ls_norm_kind;

typedef struct ls_norm_step {
    ls_norm_kind kind;
    int form;
    ls_pattern pattern;
    ls_charsmap charsmap;
    char *content; /* of Prepend and Replace */
    int64_t content_bytes;
    bool left, right; /* of Strip */
} ls_norm_step;

void ls_norm_step_deinit(ls_norm_step *step);

/* Runs the steps in order and replaces *out. *at_start, on entry whether the text begins where the caller's does,
 * turns false when its first character is taken away. */
ls_status ls_normalize(const ls_norm_step *steps, int64_t n_steps, const char *text, int64_t bytes, ls_text *out,
                       bool *at_start, ls_error *err);

#endif
