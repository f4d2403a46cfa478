/* Bytes as a text with URLs in it (base/url.h). What may be said of it has no @ behind a :// that is not REDACTED's,
 * and saying it once more changes nothing. */
#include <stdlib.h>
#include <string.h>

#include "base/url.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

static void check(const char *text) {
    for (const char *at = text; (at = strstr(at, "://")) != NULL; at++) {
        const size_t n = strcspn(at + 3, "/?# \t\r\n\"'<>");
        const char *mark = memchr(at + 3, '@', n);
        if (mark != NULL && strncmp(at + 3, "REDACTED@", 9) != 0) abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes) {
    const size_t room = 16 * n_bytes + 64;
    char *text = malloc(n_bytes + 1), *once = malloc(room), *twice = malloc(2 * room), small[16];
    ls_error err;
    if (text != NULL && once != NULL && twice != NULL) {
        if (n_bytes > 0) memcpy(text, data, n_bytes);
        text[n_bytes] = '\0';
        ls_url_redact(once, room, text);
        check(once);
        ls_url_redact(twice, 2 * room, once);
        if (strcmp(once, twice) != 0) abort();
        ls_url_redact(small, sizeof small, text);
        if (strlen(small) >= sizeof small) abort();
        (void)ls_url_complete(once, room, text, "url", &err);
    }
    free(twice);
    free(once);
    free(text);
    return 0;
}
