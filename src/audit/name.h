/* Pieces of a text: names of registers, opcodes, kernels. */
#ifndef LS_AUDIT_NAME_H
#define LS_AUDIT_NAME_H

#include "base/status.h"

/* A piece of the text that is read; not NUL-terminated, valid as long as the text is. */
typedef struct ls_ptx_name {
    const char *text;
    int32_t bytes;
} ls_ptx_name;

bool ls_ptx_is(ls_ptx_name name, const char *text);     /* it is this text */
bool ls_ptx_begins(ls_ptx_name name, const char *text); /* it begins with it */
bool ls_ptx_has(ls_ptx_name name, const char *text);    /* it stands somewhere in it */
/* Whether text[0..bytes) holds the word. */
bool ls_ptx_has_text(const char *text, int64_t bytes, const char *word);
bool ls_ptx_same(ls_ptx_name a, ls_ptx_name b);
/* < 0, 0 or > 0: as bytes, a piece before all that begin with it. */
int ls_ptx_compare(ls_ptx_name a, ls_ptx_name b);

#endif
