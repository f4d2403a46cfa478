/* Keys of JSON objects that hold NUL, which vocabularies may have and the JSON library does not read: in the text their
 * \u0000 becomes another escape, of a noncharacter that is nowhere else in it, and back when the keys are read. */
#ifndef LS_JSON_JSON_NUL_KEYS_H
#define LS_JSON_JSON_NUL_KEYS_H

#include "base/status.h"

typedef struct ls_nul_keys {
    char *text;      /* a copy of the JSON with other keys, NULL: the text as it is has no such key; owned */
    char standin[4]; /* the noncharacter as UTF-8 */
} ls_nul_keys;

/* Fails where the text has all noncharacters already. */
ls_status ls_nul_keys_open(ls_nul_keys *out, const char *json, int64_t bytes, const char *name, ls_error *err);
void ls_nul_keys_close(ls_nul_keys *keys);
/* A key as it was meant, in place; returns its bytes, which are not more. The end is marked by a NUL. */
int64_t ls_nul_keys_restore(const ls_nul_keys *keys, char *key);

#endif
