/* Any bytes as the files of a bundle: bundle.json, and behind lines of "---" the records of rollout and trainer. Usual
 * ones stand in for those that the input lacks. What is accepted is what a replay goes by. */
#define _GNU_SOURCE
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "rl/bundle.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

static const char usual[] =
    "{\"id\":\"a/0\",\"prompt_ids\":[5,6],\"completion_ids\":[7,8,9],"
    "\"logprobs\":[-0.5,null,-1.25]}\n";

static void check(const ls_bundle *b) {
    const ls_bundle_sequence *s = &b->sequences[b->sequence];
    ls_error err;
    if (b->step < 0 || b->samples < 1 || b->slots < 1 || b->n_tokens < 0 || b->n_differing < 0) abort();
    if (b->dtype != LS_F32 && b->dtype != LS_BF16) abort();
    if (ls_sampling_check(&b->sampling, &err) != LS_OK || !(b->sampling.temperature > 0)) abort();
    if (ls_levers_check(&b->levers, &err) != LS_OK) abort();
    if (b->sequence < 0 || b->sequence >= b->n || b->row < 0 || b->row >= s->n - 1 || !s->mask[b->row]) abort();
    for (int64_t i = 0; i < b->n; i++) {
        s = &b->sequences[i];
        if (s->id == NULL || s->n_prompt < 1 || s->n <= s->n_prompt || s->n > b->length) abort();
        for (int64_t k = 0; k < s->n; k++)
            if (s->tokens[k] < 0) abort();
        for (int64_t k = 0; k < s->n - 1; k++)
            if (s->mask[k] && (k + 1 < s->n_prompt || !isfinite(s->rollout[k]) || !isfinite(s->trainer[k]))) abort();
    }
}

/* The next part of the input, up to a line of its own "---". */
static const char *next_part(const char **at, const char *end, int64_t *bytes) {
    static const char line[] = "\n---\n";
    const char *part = *at, *found;
    if (part == NULL) return NULL;
    found = memmem(part, (size_t)(end - part), line, sizeof line - 1);
    *bytes = (found != NULL ? found : end) - part;
    *at = found != NULL ? found + sizeof line - 1 : NULL;
    return part;
}

static bool read_side(ls_record **out, int64_t *n, const char *part, int64_t bytes) {
    ls_error err;
    if (part == NULL) {
        part = usual;
        bytes = sizeof usual - 1;
    }
    return ls_records_parse(out, n, part, bytes, "input", LS_RECORD_SEQUENCE, &err) == LS_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes) {
    char *copy = malloc(n_bytes > 0 ? n_bytes : 1);
    const char *at = copy, *json, *rollout, *trainer;
    int64_t bytes = 0, rollout_bytes = 0, trainer_bytes = 0;
    ls_bundle_records records = {0};
    ls_bundle *bundle;
    ls_error err;
    if (copy == NULL) return 0;
    if (n_bytes > 0) memcpy(copy, data, n_bytes);
    json = next_part(&at, copy + n_bytes, &bytes);
    rollout = next_part(&at, copy + n_bytes, &rollout_bytes);
    trainer = next_part(&at, copy + n_bytes, &trainer_bytes);
    if (!read_side(&records.rollout, &records.n_rollout, rollout, rollout_bytes) ||
        !read_side(&records.trainer, &records.n_trainer, trainer, trainer_bytes)) {
        ls_records_free(records.rollout, records.n_rollout);
        ls_records_free(records.trainer, records.n_trainer);
    } else if (ls_bundle_parse(&bundle, json, bytes, &records, "input", &err) == LS_OK) {
        check(bundle);
        ls_bundle_free(bundle);
    } else if (bundle != NULL || strncmp(err.text, "input", 5) != 0) {
        abort();
    }
    free(copy);
    return 0;
}
