/* Any lines NAME=VALUE as the environment of a process. What is accepted is a rank of some, with an address that ends
 * with a port. */
#include <stdlib.h>
#include <string.h>

#include "train/own_rank.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

/* The value of the first line that begins with the name. */
static const char *look(void *context, const char *name) {
    const size_t n = strlen(name);
    for (const char *line = context; *line != '\0'; line += strlen(line) + 1)
        if (strncmp(line, name, n) == 0 && line[n] == '=') return line + n + 1;
    return NULL;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes) {
    char *copy = malloc(n_bytes + 2);
    if (copy == NULL) return 0;
    if (n_bytes > 0) memcpy(copy, data, n_bytes);
    copy[n_bytes] = copy[n_bytes + 1] = '\0';
    for (size_t i = 0; i < n_bytes; i++)
        if (copy[i] == '\n') copy[i] = '\0';
    for (int launcher = LS_LAUNCHER_AUTO; launcher <= LS_LAUNCHER_SRUN; launcher++) {
        ls_own_rank p = {.ranks = 1};
        ls_error err;
        if (ls_own_rank_read(&p, (ls_launcher)launcher, 256, look, copy, &err) != LS_OK) {
            if (err.text[0] == '\0') abort();
            continue;
        }
        if (p.rank < 0 || p.rank >= p.ranks || p.ranks > 256 || p.local < 0) abort();
        if (p.address[0] != '\0' && strrchr(p.address, ':') == NULL) abort();
    }
    free(copy);
    return 0;
}
