/* Any bytes as an answer or a dump of another program. What is accepted must hold what records promise. The first byte
 * says of which program, and whether one side of it is read or both. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "record/answers.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

static void use(const ls_record *r) {
    if (r->id == NULL || !r->has_logprobs || r->n_logprobs < 0 || r->n_completion < 0 || r->n_prompt < 0) abort();
    if (r->completion_ids != NULL && r->n_completion != r->n_logprobs + (r->is_tokens && r->n_completion > 0)) abort();
    for (int64_t i = 0; i < r->n_logprobs; i++)
        if (r->logprob_missing[i] > 1 || !isfinite(r->logprobs[i]) || r->logprobs[i] > LS_LOGPROB_MAX) abort();
    for (int64_t i = 0; r->completion_ids != NULL && i < r->n_completion; i++)
        if (r->completion_ids[i] < 0) abort();
    for (int64_t i = 0; r->prompt_ids != NULL && i < r->n_prompt; i++)
        if (r->prompt_ids[i] < 0) abort();
}

static void join(const uint8_t *data, size_t n_bytes, ls_answer_format format) {
    ls_dump dump;
    ls_error err;
    if (ls_answers_dump(&dump, (const char *)data, (int64_t)n_bytes, "input", format, &err) != LS_OK) return;
    if (dump.offsets[0] != 0 || dump.offsets[dump.n_sequences] != dump.n_tokens) abort();
    for (int64_t i = 0; i < dump.n_tokens; i++)
        if (dump.mask[i] && !(isfinite(dump.rollout[i]) && isfinite(dump.trainer[i]))) abort();
    ls_dump_deinit(&dump);
}

static void read_side(const uint8_t *data, size_t n_bytes, ls_answer_format format, bool of_trainer) {
    ls_record *records;
    int64_t n;
    ls_error err;
    if (ls_answers_parse(&records, &n, (const char *)data, (int64_t)n_bytes, "input", format, of_trainer, &err) ==
        LS_OK) {
        if (n < 1) abort();
        for (int64_t i = 0; i < n; i++) use(&records[i]);
        ls_records_free(records, n);
    } else if (strstr(err.text, "input") != err.text) {
        abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes) {
    static const ls_answer_format with_both_sides[] = {LS_ANSWER_VERL, LS_ANSWER_SLIME, LS_ANSWER_OPENRLHF};
    enum { FORMATS = LS_ANSWER_NEMO_RL + 1, BOTH = 3 };
    int which;
    if (n_bytes < 1) return 0;
    which = data[0] % (2 * FORMATS + BOTH);
    if (which < 2 * FORMATS)
        read_side(data + 1, n_bytes - 1, (ls_answer_format)(which / 2), which % 2 == 1);
    else
        join(data + 1, n_bytes - 1, with_both_sides[which - 2 * FORMATS]);
    return 0;
}
