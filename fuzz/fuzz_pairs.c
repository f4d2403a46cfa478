/* Any bytes as lines of pairs. What is accepted has all its parts. */
#include <stdlib.h>
#include <string.h>

#include "record/pair_lines.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

static void check(const ls_pair *p) {
    if ((p->prompt != NULL) == (p->prompt_ids != NULL) || (p->completion != NULL) == (p->completion_ids != NULL))
        abort();
    if ((p->prompt != NULL) != (p->completion != NULL)) abort();
    if (p->prompt != NULL && (p->prompt_bytes < 1 || p->completion_bytes < 1)) abort();
    if (p->prompt_ids != NULL && (p->n_prompt < 1 || p->n_completion < 1)) abort();
    for (int64_t i = 0; i < p->n_prompt; i++)
        if (p->prompt_ids[i] < 0) abort();
    for (int64_t i = 0; i < p->n_completion; i++)
        if (p->completion_ids[i] < 0) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes) {
    char *copy = malloc(n_bytes + 1), *line = copy;
    if (copy == NULL) return 0;
    if (n_bytes > 0) memcpy(copy, data, n_bytes);
    copy[n_bytes] = '\n';
    for (int64_t number = 1; line <= copy + n_bytes; number++) {
        char *end = memchr(line, '\n', (size_t)(copy + n_bytes + 1 - line));
        ls_pair pair;
        ls_error err;
        if (ls_pair_parse(&pair, line, end - line, "input", number, &err) == LS_OK)
            check(&pair);
        else if (strstr(err.text, "input: line ") != err.text)
            abort();
        ls_pair_deinit(&pair);
        line = end + 1;
    }
    free(copy);
    return 0;
}
