/* The smallest requests that still fail, as a file of prompts. */
#include <inttypes.h>

#include "diagnose/bits/sweep.h"

void ls_sweep_repro(FILE *file, const ls_sweep *s) {
    for (int64_t i = 0; i < s->n_repro; i++) {
        fprintf(file, "{\"id\":\"r%" PRId64 "\",\"prompt_ids\":[", i);
        for (int64_t t = 0; t < s->repro[i].n; t++) fprintf(file, "%s%d", t > 0 ? "," : "", s->repro[i].ids[t]);
        fprintf(file, "]}\n");
    }
}
