/* Bytes as changes of weights: the text of changes.json, a NUL, and changes.safetensors. What is accepted has every
 * tensor of its list under its name. */
#include <stdlib.h>
#include <string.h>

#include "load/changes.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

static void check(const ls_changes *c, const uint8_t *text, size_t n) {
    char name[32];
    uint64_t digest;
    if (ls_changes_count(c) < 0 || ls_changes_count(c) > (int64_t)n) abort();
    if (ls_changes_count(c) == 0 && ls_changes_result(c, "a", &digest)) abort();
    if (n < sizeof name) return;
    memcpy(name, text + n - sizeof name, sizeof name - 1);
    name[sizeof name - 1] = '\0';
    (void)ls_changes_result(c, name, &digest);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes) {
    const uint8_t *end = n_bytes > 0 ? memchr(data, '\0', n_bytes) : NULL;
    const size_t n_text = end != NULL ? (size_t)(end - data) : n_bytes;
    const size_t n_file = end != NULL ? n_bytes - n_text - 1 : 0;
    char *text = malloc(n_text + 1);
    uint8_t *file = malloc(n_file > 0 ? n_file : 1); /* aligned to 16, and the sanitizer sees its end */
    ls_changes *changes;
    ls_error err;
    if (text != NULL && file != NULL) {
        if (n_text > 0) memcpy(text, data, n_text);
        if (n_file > 0) memcpy(file, end + 1, n_file);
        if (ls_changes_parse(&changes, text, (int64_t)n_text, file, (int64_t)n_file, "input", &err) == LS_OK) {
            check(changes, data, n_text);
            ls_changes_close(changes);
        } else if (strncmp(err.text, "input", 5) != 0) {
            abort();
        }
    }
    free(file);
    free(text);
    return 0;
}
