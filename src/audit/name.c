/* Comparisons of pieces of a text. */
#define _GNU_SOURCE /* memmem */
#include "audit/name.h"

#include <string.h>

bool ls_ptx_is(ls_ptx_name name, const char *text) {
    return (size_t)name.bytes == strlen(text) && memcmp(name.text, text, (size_t)name.bytes) == 0;
}

/* Opcodes are held against dozens of texts, of which nearly all differ in the first letter. */
bool ls_ptx_begins(ls_ptx_name name, const char *text) {
    if (text[0] == '\0' || name.bytes == 0 || name.text[0] != text[0]) return text[0] == '\0';
    const size_t n = strlen(text);
    return (size_t)name.bytes >= n && memcmp(name.text, text, n) == 0;
}

bool ls_ptx_has(ls_ptx_name name, const char *text) {
    return memmem(name.text, (size_t)name.bytes, text, strlen(text)) != NULL;
}

bool ls_ptx_same(ls_ptx_name a, ls_ptx_name b) {
    return a.bytes == b.bytes && memcmp(a.text, b.text, (size_t)a.bytes) == 0;
}

bool ls_ptx_has_text(const char *text, int64_t bytes, const char *word) {
    return memmem(text, (size_t)bytes, word, strlen(word)) != NULL;
}
