/* Any bytes as a record file, read as each kind. What is accepted and written again must read back with the same bits.
 */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "record/record.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

static bool same_ids(const int32_t *a, int64_t n_a, const int32_t *b, int64_t n_b) {
    if (n_a != n_b || (a == NULL) != (b == NULL)) return false;
    return n_a == 0 || memcmp(a, b, (size_t)n_a * sizeof *a) == 0;
}

static bool same_text(const char *a, const char *b) { return a == NULL || b == NULL ? a == b : strcmp(a, b) == 0; }

static bool same_meta(const ls_record *a, const ls_record *b) {
    if (a->has_meta != b->has_meta || a->n_levers != b->n_levers || (a->levers == NULL) != (b->levers == NULL))
        return false;
    if (a->weights != b->weights || a->slot != b->slot || a->cache_hit != b->cache_hit) return false;
    if (a->preemptions != b->preemptions || !same_text(a->error, b->error)) return false;
    for (int64_t i = 0; i < a->n_levers; i++) {
        const ls_record_lever *x = &a->levers[i], *y = &b->levers[i];
        if (x->is_number != y->is_number || !same_text(x->name, y->name) || !same_text(x->value, y->value))
            return false;
    }
    return true;
}

static void round_trip(const ls_record *records, int64_t n, ls_record_kind kind) {
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);
    ls_json_out json;
    ls_record *again;
    int64_t n_again;
    ls_error err;
    if (file == NULL) return;
    ls_json_init(&json, file);
    for (int64_t i = 0; i < n; i++) ls_record_write(&json, &records[i]);
    if (fclose(file) != 0) abort();
    if (ls_records_parse(&again, &n_again, text, (int64_t)bytes, "again", kind, &err) != LS_OK) {
        fprintf(stderr, "%s\n", err.text);
        abort();
    }
    if (n_again != n) abort();
    for (int64_t i = 0; i < n; i++) {
        const ls_record *a = &records[i], *b = &again[i];
        if (strcmp(a->id, b->id) != 0) abort();
        if (!same_ids(a->prompt_ids, a->n_prompt, b->prompt_ids, b->n_prompt)) abort();
        if (!same_ids(a->completion_ids, a->n_completion, b->completion_ids, b->n_completion)) abort();
        if (a->is_tokens != b->is_tokens || a->has_logprobs != b->has_logprobs) abort();
        if (a->n_logprobs != b->n_logprobs || a->text_bytes != b->text_bytes) abort();
        if (a->has_seed != b->has_seed || a->seed != b->seed || a->sample != b->sample) abort();
        if (!same_meta(a, b)) abort();
        if (a->text_bytes > 0 && memcmp(a->text, b->text, (size_t)a->text_bytes) != 0) abort();
        for (int64_t j = 0; j < a->n_logprobs; j++)
            if (a->logprob_missing[j] != b->logprob_missing[j] ||
                memcmp(&a->logprobs[j], &b->logprobs[j], sizeof a->logprobs[j]) != 0)
                abort();
    }
    ls_records_free(again, n_again);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes) {
    static const ls_record_kind kinds[] = {LS_RECORD_PROMPT, LS_RECORD_SEQUENCE, LS_RECORD_LOGPROB, LS_RECORD_VALUE};
    char *copy = malloc(n_bytes > 0 ? n_bytes : 1);
    if (copy == NULL) return 0;
    if (n_bytes > 0) memcpy(copy, data, n_bytes);
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        ls_record *records;
        int64_t n;
        ls_error err;
        if (ls_records_parse(&records, &n, copy, (int64_t)n_bytes, "input", kinds[i], &err) == LS_OK) {
            round_trip(records, n, kinds[i]);
            ls_records_free(records, n);
        } else if (strstr(err.text, "input") != err.text) {
            abort();
        }
    }
    free(copy);
    return 0;
}
