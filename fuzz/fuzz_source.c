/* Any bytes as a file of records, which gzip may have compressed. However it is unpacked, it becomes no more than was
 * promised, and the same each time. */
#include <stdlib.h>
#include <string.h>

#include "record/source.h"

enum { LINE_MAX_BYTES = 1 << 20 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

/* What comes out: its length, a sum of all bytes, and why it ended. */
typedef struct outcome {
    int64_t bytes, lines;
    uint64_t sum;
    ls_status status;
    ls_error err;
} outcome;

static void read_all(outcome *out, ls_source *source) {
    char *line = NULL;
    int64_t cap = 0, bytes = 0;
    bool more = true;
    *out = (outcome){0};
    while ((out->status = ls_source_line(source, &line, &cap, &bytes, LINE_MAX_BYTES, &more, &out->err)) == LS_OK &&
           more) {
        if (line[bytes] != '\0') abort();
        for (int64_t i = 0; i < bytes; i++) out->sum = out->sum * 31 + (uint8_t)line[i];
        out->bytes += bytes + 1;
        out->lines++;
    }
    free(line);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes) {
    outcome outcomes[2];
    char *copy = malloc(n_bytes + 1);
    if (copy == NULL) return 0;
    memcpy(copy, data, n_bytes);
    for (int i = 0; i < 2; i++) {
        ls_source *source;
        if (ls_source_open_bytes(&source, copy, (int64_t)n_bytes, "input", &outcomes[i].err) != LS_OK) abort();
        read_all(&outcomes[i], source);
        ls_source_close(source);
    }
    free(copy);
    if (outcomes[0].bytes > (65 << 20) + 201 * (int64_t)n_bytes) abort();
    if (outcomes[0].bytes != outcomes[1].bytes || outcomes[0].sum != outcomes[1].sum ||
        outcomes[0].lines != outcomes[1].lines || outcomes[0].status != outcomes[1].status)
        abort();
    /* Before the first line it is the whole that is no text. */
    if (outcomes[0].status != LS_OK && outcomes[0].lines > 0 && strncmp(outcomes[0].err.text, "line ", 5) != 0) abort();
    if (outcomes[0].status != LS_OK && outcomes[0].err.text[0] == '\0') abort();
    return 0;
}
