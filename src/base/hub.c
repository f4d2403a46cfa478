/* What tells a hub's name from a path: two words without a folder of the first one's name. */
#define _POSIX_C_SOURCE 200809L
#include "base/hub.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { WORD_BYTES_MAX = 96 };

/* Letters, digits and - _ . as the hub's names have them; where the word ends, NULL: it is none. */
static const char *end_of_word(const char *at) {
    const char *end = at;
    while ((*end >= 'a' && *end <= 'z') || (*end >= 'A' && *end <= 'Z') || (*end >= '0' && *end <= '9') ||
           *end == '-' || *end == '_' || *end == '.')
        end++;
    return end == at || *at == '.' || *at == '-' || end - at > WORD_BYTES_MAX ? NULL : end;
}

static bool is_file_name(const char *name) {
    static const char *const ends[] = {".json", ".jsonl", ".jinja", ".safetensors", ".ptx",     ".sass", ".cubin",
                                       ".so",   ".gz",    ".txt",   ".csv",         ".parquet", ".zst",  ".html"};
    const size_t n = strlen(name);
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++)
        if (n > strlen(ends[i]) && strcmp(name + n - strlen(ends[i]), ends[i]) == 0) return true;
    return false;
}

const char *ls_hub_hint(char out[LS_HUB_HINT_MAX], const char *path) {
    const char *slash = end_of_word(path), *end;
    char owner[WORD_BYTES_MAX + 1];
    int n;
    out[0] = '\0';
    if (slash == NULL || *slash != '/' || (end = end_of_word(slash + 1)) == NULL) return out;
    if (*end == '\0' ? is_file_name(slash + 1) : *end != '/' || !is_file_name(end + 1)) return out;
    snprintf(owner, sizeof owner, "%.*s", (int)(slash - path), path);
    if (access(owner, F_OK) == 0) return out; /* a folder here: a path is meant */
    n = (int)(end - path);
    snprintf(out, LS_HUB_HINT_MAX, "; no hub is reached: `hf download %.*s --local-dir %.*s` brings it%s", n, path, n,
             path, *end == '\0' ? " (a data set with --repo-type dataset)" : "");
    return out;
}
