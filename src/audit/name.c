/* Comparisons of pieces of a text. */
#define _GNU_SOURCE /* memmem */
#include "audit/name.h"

#include <string.h>

/* A piece of no bytes may have no text. */
static int compare(const char *a, const char *b, size_t bytes) { return bytes == 0 ? 0 : memcmp(a, b, bytes); }
static bool has_word(const char *text, int64_t bytes, const char *word) {
    return bytes > 0 && memmem(text, (size_t)bytes, word, strlen(word)) != NULL;
}

bool ls_ptx_is(ls_ptx_name name, const char *text) {
    return (size_t)name.bytes == strlen(text) && compare(name.text, text, (size_t)name.bytes) == 0;
}

/* Opcodes are held against dozens of texts, of which nearly all differ in the first letter. */
bool ls_ptx_begins(ls_ptx_name name, const char *text) {
    if (text[0] == '\0' || name.bytes == 0 || name.text[0] != text[0]) return text[0] == '\0';
    const size_t n = strlen(text);
    return (size_t)name.bytes >= n && memcmp(name.text, text, n) == 0;
}

bool ls_ptx_has(ls_ptx_name name, const char *text) { return has_word(name.text, name.bytes, text); }

bool ls_ptx_same(ls_ptx_name a, ls_ptx_name b) {
    return a.bytes == b.bytes && compare(a.text, b.text, (size_t)a.bytes) == 0;
}

int ls_ptx_compare(ls_ptx_name a, ls_ptx_name b) {
    const int c = compare(a.text, b.text, (size_t)(a.bytes < b.bytes ? a.bytes : b.bytes));
    return c != 0 ? c : (a.bytes > b.bytes) - (a.bytes < b.bytes);
}

bool ls_ptx_has_text(const char *text, int64_t bytes, const char *word) { return has_word(text, bytes, word); }
