/* A line of a resident program, as its greeting and as an answer. What is refused says whose line it was. */
#include <stdlib.h>
#include <string.h>

#include "diagnose/trial/resident.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

static void need_words(ls_status status, const ls_error *err) {
    if (status != LS_OK && strncmp(err->text, "program", strlen("program")) != 0) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes) {
    char *line = malloc(n_bytes + 1);
    ls_error err = {.text = ""};
    if (line == NULL) abort();
    if (n_bytes > 0) memcpy(line, data, n_bytes);
    line[n_bytes] = '\0';
    int version = 0;
    const ls_status greeting = ls_resident_greeting(&version, line, "program", &err);
    need_words(greeting, &err);
    const ls_status answer = ls_resident_answer(line, "program", &err);
    need_words(answer, &err);
    if (answer != LS_OK && answer != LS_ERR_UNSUPPORTED && answer != LS_ERR_FORMAT) abort();
    if (greeting != LS_OK && greeting != LS_ERR_FORMAT) abort();
    free(line);
    return 0;
}
