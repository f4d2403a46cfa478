/* What a file or a directory is that is not what was looked for: told by its first bytes, or by the names in it, with
 * the line that makes of it what is read here. Only for the sentences of failures: nothing is taken on this ground. */
#ifndef LS_BASE_OTHER_FORMS_H
#define LS_BASE_OTHER_FORMS_H

#include "base/status.h"

/* As many first bytes as tell most. */
#define LS_FOREIGN_BYTES 64

/* "Git LFS's pointer to the file: `git lfs pull` brings it", or NULL: nothing that is known. */
const char *ls_foreign_bytes(const void *bytes, int64_t n_bytes);
/* The same where lines of text are wanted. */
const char *ls_foreign_lines(const void *bytes, int64_t n_bytes);
/* The same of a file; NULL also where it cannot be read. */
const char *ls_foreign_file(const char *path);

typedef enum ls_foreign_want { LS_WANT_CONFIG, LS_WANT_WEIGHTS, LS_WANT_TOKENIZER } ls_foreign_want;

/* Fails with a sentence where the directory, which lacks what is wanted, has a form that is known. */
ls_status ls_foreign_directory(const char *directory, ls_foreign_want want, ls_error *err);

#endif
