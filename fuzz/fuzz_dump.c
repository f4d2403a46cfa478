/* Any bytes as a dump of another trainer, in both formats. What is accepted goes through a correction and the measures:
 * its arrays must hold what they promise. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "measure/mismatch.h"
#include "record/dump.h"
#include "rl/correction.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

static void use(const ls_dump *dump) {
    const ls_tokens tokens = {dump->n_sequences, dump->offsets, dump->mask};
    float *weights = malloc(sizeof *weights * (size_t)(dump->n_tokens + 1));
    ls_correction correction;
    ls_correction_metrics metrics;
    ls_mismatch mismatch;
    ls_error err;
    if (weights == NULL) return;
    if (dump->offsets[0] != 0 || dump->offsets[dump->n_sequences] != dump->n_tokens) abort();
    for (int64_t s = 0; s < dump->n_sequences; s++)
        if (dump->offsets[s] > dump->offsets[s + 1]) abort();
    if (ls_correction_parse(&correction, "token-truncate=2,veto=1e-4,mean-k3=1", &err) != LS_OK) abort();
    if (ls_correction_apply(weights, NULL, &metrics, &tokens, dump->rollout, dump->trainer, &correction, &err) != LS_OK)
        abort();
    for (int64_t i = 0; i < dump->n_tokens; i++) {
        if (dump->mask[i] > 1 || dump->token_ids[i] < 0 || !(weights[i] >= 0.0f && weights[i] <= 2.0f)) abort();
        if (isinf(dump->rollout[i]) || isinf(dump->trainer[i]) || isinf(dump->advantages[i])) abort();
    }
    if (metrics.n_tokens != dump->n_masked) abort();
    if (ls_mismatch_of(&mismatch, &tokens, dump->rollout, dump->trainer, &err) != LS_OK) abort();
    free(weights);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes) {
    for (int format = 0; format < 2; format++) {
        ls_dump dump;
        ls_error err;
        if (ls_dump_parse(&dump, (const char *)data, (int64_t)n_bytes, "input", (ls_dump_format)format, &err) ==
            LS_OK) {
            use(&dump);
            ls_dump_deinit(&dump);
        } else if (strstr(err.text, "input") != err.text) {
            abort();
        }
    }
    return 0;
}
