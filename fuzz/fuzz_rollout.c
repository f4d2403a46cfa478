/* Any bytes as what a rollout server says. What is taken for a completion must lie within what was asked for, and each
 * of its log-probabilities must be one. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "record/rollout_json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

enum { TOKENS_MAX = 4, VOCAB = 64 };

static void check(const ls_rollout_answer *a) {
    if (a->n < 1 || a->n > TOKENS_MAX || a->slot < -1 || a->hit < 0 || a->preempted < 0) abort();
    for (int64_t i = 0; i < a->n; i++) {
        if (a->tokens[i] < 0 || a->tokens[i] >= VOCAB) abort();
        if (!isfinite(a->logprobs[i]) || a->logprobs[i] > 0) abort();
        if (a->kept[i] < 1 || a->kept[i] > VOCAB || !(a->log_mass[i] <= 0)) abort();
    }
}

static void complain(const ls_error *err) {
    if (strncmp(err->text, "input", 5) != 0) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes) {
    const ls_rollout_asked asked = {.numerics = "exact/2/f32",
                                    .logprob_of = "processed",
                                    .seed = 7,
                                    .version = 5,
                                    .prompt = 3,
                                    .sample = 1,
                                    .max_tokens = TOKENS_MAX,
                                    .vocab = VOCAB,
                                    .is_recorded = true,
                                    .is_weighed = true};
    int32_t tokens[TOKENS_MAX], kept[TOKENS_MAX];
    float logprobs[TOKENS_MAX], log_mass[TOKENS_MAX];
    ls_rollout_answer answer = {.tokens = tokens, .logprobs = logprobs, .kept = kept, .log_mass = log_mass};
    ls_rollout_server server;
    uint64_t version;
    char refusal[40], *copy = malloc(n_bytes > 0 ? n_bytes : 1);
    ls_error err;
    if (copy == NULL) return 0;
    if (n_bytes > 0) memcpy(copy, data, n_bytes);
    if (ls_rollout_answer_parse(&answer, &asked, copy, (int64_t)n_bytes, "input", &err) == LS_OK)
        check(&answer);
    else
        complain(&err);
    if (ls_rollout_server_parse(&server, copy, (int64_t)n_bytes, "input", &err) != LS_OK) complain(&err);
    if (ls_rollout_version_parse(&version, copy, (int64_t)n_bytes, "input", &err) != LS_OK) complain(&err);
    if (ls_rollout_refusal(refusal, sizeof refusal, copy, (int64_t)n_bytes) < 0) abort();
    if (strchr(refusal, '\n') != NULL) abort();
    free(copy);
    return 0;
}
