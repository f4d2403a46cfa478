/* Any bytes as lines of problems, with the usual names and with names of the input's own. What is accepted has a prompt
 * and an id. */
#include <stdlib.h>
#include <string.h>

#include "record/data_lines.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

static void read_lines(const char *text, int64_t bytes, const ls_data_fields *fields) {
    ls_data_line *lines;
    int64_t n;
    ls_error err;
    if (ls_data_lines_parse(&lines, &n, text, bytes, "input", fields, &err) != LS_OK) {
        if (strncmp(err.text, "input: ", 7) != 0) abort();
        return;
    }
    if (n < 1) abort();
    for (int64_t i = 0; i < n; i++) {
        if (lines[i].prompt_bytes < 1 || lines[i].id[0] == '\0' || strlen(lines[i].id) > LS_DATA_ID_MAX) abort();
        if (lines[i].whole[0] != '{' || (lines[i].answer == NULL && lines[i].answer_bytes != 0)) abort();
        if (lines[i].max_tokens < 0 || lines[i].max_tokens > LS_DATA_TOKENS_MAX) abort();
        if (lines[i].prompt[lines[i].prompt_bytes] != '\0') abort();
    }
    ls_data_lines_free(lines, n);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes) {
    static const ls_data_fields usual = {.prompt = NULL}, named = {"a.b", "c", "d.e.f", "n"};
    char *copy = malloc(n_bytes + 1);
    if (copy == NULL) return 0;
    if (n_bytes > 0) memcpy(copy, data, n_bytes);
    read_lines(copy, (int64_t)n_bytes, &usual);
    read_lines(copy, (int64_t)n_bytes, &named);
    free(copy);
    return 0;
}
