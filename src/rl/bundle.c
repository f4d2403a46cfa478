/* Bundles as files. A bundle that was read owns its records and rows. */
#include "rl/bundle.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "json/json_node.h"
#include "rl/gate.h"

/* 2: names the profile; bundles of format 1 are exact. */
enum { FORMAT = 2, JSON_BYTES_MAX = 1 << 24 };
#define PATH_MAX_BYTES 1400

/* ---- writing ---- */

/* Prompt and what follows it, with one side's log-probabilities. */
static ls_status write_record(ls_json_out *json, const ls_bundle *b, const ls_bundle_sequence *s, const float *logprob,
                              ls_error *err) {
    const int64_t first = s->n_prompt - 1, n = s->n - s->n_prompt;
    ls_record record;
    uint8_t *missing = NULL;
    ls_status status;
    ls_record_init(&record);
    LS_TRY_DONE(ls_array_alloc((void **)&missing, n, 1, "bundle", err));
    for (int64_t i = 0; i < n; i++) missing[i] = s->mask[first + i] == 0;
    record.id = (char *)(uintptr_t)s->id;
    record.prompt_ids = (int32_t *)(uintptr_t)s->tokens;
    record.n_prompt = s->n_prompt;
    record.completion_ids = (int32_t *)(uintptr_t)(s->tokens + s->n_prompt);
    record.n_completion = record.n_logprobs = n;
    record.has_logprobs = record.has_seed = record.has_meta = true;
    record.logprobs = (float *)(uintptr_t)(logprob + first);
    record.logprob_missing = missing;
    record.seed = b->sampling.seed;
    record.sample = (s - b->sequences) % b->samples;
    record.temperature = (double)b->sampling.temperature;
    record.top_k = b->sampling.top_k;
    record.top_p = (double)b->sampling.top_p;
    record.min_p = (double)b->sampling.min_p;
    record.slot = s->slot;
    record.cache_hit = s->n_hit;
    record.preemptions = s->n_preempted;
    ls_record_write(json, &record);
done:
    free(missing);
    return status;
}

/* One of the two sides of a bundle. */
typedef struct side {
    const ls_bundle *b;
    bool trainer;
} side;

static ls_status fill_records(ls_json_out *json, const void *context, ls_error *err) {
    const side *s = context;
    for (int64_t i = 0; i < s->b->n; i++) {
        const ls_bundle_sequence *one = &s->b->sequences[i];
        LS_TRY(write_record(json, s->b, one, s->trainer ? one->trainer : one->rollout, err));
    }
    return LS_OK;
}

static ls_status write_records(const char *directory, const char *name, const ls_bundle *b, bool trainer,
                               ls_error *err) {
    const side s = {b, trainer};
    char path[PATH_MAX_BYTES];
    LS_TRY(ls_path_join(path, sizeof path, directory, name, err));
    return ls_json_save(path, fill_records, &s, err);
}

static void write_hex(ls_json_out *json, const char *key, uint64_t value, int digits) {
    char text[32];
    snprintf(text, sizeof text, "%0*llx", digits, (unsigned long long)value);
    ls_json_string(json, key, text);
}

static void write_first(ls_json_out *json, const ls_bundle *b) {
    const ls_bundle_sequence *s = &b->sequences[b->sequence];
    const float r = s->rollout[b->row], t = s->trainer[b->row];
    ls_json_begin_object(json, "first");
    ls_json_int(json, "sequence", b->sequence);
    ls_json_string(json, "id", s->id);
    ls_json_int(json, "row", b->row);
    ls_json_int(json, "token", s->tokens[b->row + 1]);
    ls_json_float(json, "rollout", r);
    write_hex(json, "rollout_bits", ls_float_bits(r), 8);
    ls_json_float(json, "trainer", t);
    write_hex(json, "trainer_bits", ls_float_bits(t), 8);
    ls_json_int(json, "ulps", ls_float_ulps(r, t));
    ls_json_end_object(json);
}

static void write_versions(ls_json_out *json, const ls_bundle *b) {
    if (b->n_versions == 0) return;
    ls_json_begin_array(json, "versions");
    for (int64_t i = 0; i < b->n_versions; i++) {
        ls_json_begin_object(json, NULL);
        ls_json_int(json, "step", b->versions[i].step);
        write_hex(json, "weights", b->versions[i].weights, 16);
        ls_json_end_object(json);
    }
    ls_json_end_array(json);
}

static void write_levers(ls_json_out *json, const ls_levers *levers) {
    char text[64];
    ls_json_begin_object(json, "levers");
    for (int64_t i = 0; i < ls_levers_count(); i++) {
        ls_lever_format(text, sizeof text, levers, i);
        ls_json_string(json, ls_lever_name(i), text);
    }
    ls_json_end_object(json);
}

static void write_members(ls_json_out *json, const ls_bundle *b, const ls_config *config) {
    char numerics[LS_NUMERICS_BYTES], seed[32];
    ls_numerics_text(numerics, b->profile, b->dtype);
    snprintf(seed, sizeof seed, "%llu", (unsigned long long)b->sampling.seed);
    ls_json_int(json, "format", FORMAT);
    ls_json_int(json, "step", b->step);
    ls_json_string(json, "numerics", numerics);
    ls_json_string(json, "dtype", ls_dtype_name(b->dtype));
    ls_json_string(json, "profile", ls_profile_name(b->profile));
    ls_json_double(json, "temperature", (double)b->sampling.temperature);
    ls_json_int(json, "top_k", b->sampling.top_k);
    ls_json_double(json, "top_p", (double)b->sampling.top_p);
    ls_json_double(json, "min_p", (double)b->sampling.min_p);
    ls_json_string(json, "seed", seed);
    write_hex(json, "weights", b->weights, 16);
    write_versions(json, b);
    ls_json_int(json, "first_prompt", b->first_prompt);
    ls_json_int(json, "samples", b->samples);
    ls_json_int(json, "length", b->length);
    ls_json_int(json, "slots", b->slots);
    ls_json_int(json, "tokens", b->n_tokens);
    ls_json_int(json, "differing", b->n_differing);
    ls_json_int(json, "differing_sequences", b->n_sequences_differing);
    write_first(json, b);
    write_levers(json, &b->levers);
    if (config == NULL) return;
    ls_json_begin_object(json, "options");
    ls_config_write(json, config);
    ls_json_end_object(json);
}

typedef struct whole {
    const ls_bundle *b;
    const ls_config *config;
} whole;

static ls_status fill_bundle(ls_json_out *json, const void *context, ls_error *err) {
    const whole *w = context;
    (void)err;
    ls_json_begin_object(json, NULL);
    write_members(json, w->b, w->config);
    ls_json_end_object(json);
    ls_json_newline(json);
    return LS_OK;
}

ls_status ls_bundle_write(const char *directory, const ls_bundle *b, const ls_config *config, ls_error *err) {
    const whole w = {b, config};
    char path[PATH_MAX_BYTES];
    LS_TRY(write_records(directory, "rollout.jsonl", b, false, err));
    LS_TRY(write_records(directory, "trainer.jsonl", b, true, err));
    LS_TRY(ls_path_join(path, sizeof path, directory, "bundle.json", err));
    return ls_json_save(path, fill_bundle, &w, err);
}

/* ---- reading ---- */

struct ls_bundle_store {
    ls_bundle_records records;
    int64_t n_rows;
    int32_t *tokens;
    uint8_t *masks;
    float *values; /* rollout's, then trainer's */
};

static void free_records(const ls_bundle_records *r) {
    ls_records_free(r->rollout, r->n_rollout);
    ls_records_free(r->trainer, r->n_trainer);
}

void ls_bundle_free(ls_bundle *b) {
    struct ls_bundle_store *store;
    if (b == NULL) return;
    store = b->store;
    if (store != NULL) {
        free_records(&store->records);
        free(store->tokens);
        free(store->masks);
        free(store->values);
    }
    free(store);
    free(b->sequences);
    free(b);
}

static ls_status read_int(const ls_node *root, const char *key, int64_t low, int64_t high, int64_t *out,
                          ls_error *err) {
    ls_node child;
    LS_TRY(ls_node_need(root, key, &child, err));
    return ls_node_int(&child, low, high, out, err);
}

static ls_status read_string(const ls_node *root, const char *key, const char **out, ls_error *err) {
    ls_node child;
    LS_TRY(ls_node_need(root, key, &child, err));
    return ls_node_string(&child, out, err);
}

/* A number as text of this base, 10 or 16: its digits and nothing else. */
static ls_status read_uint(const ls_node *root, const char *key, int base, uint64_t *out, ls_error *err) {
    const char *text;
    ls_status status;
    LS_TRY_DONE(read_string(root, key, &text, err));
    errno = 0;
    *out = strtoull(text, NULL, base);
    if (errno != 0 || text[0] == '\0' || text[strspn(text, base == 10 ? "0123456789" : "0123456789abcdef")] != '\0')
        status = ls_node_fail(root, LS_ERR_FORMAT, err, "%s: '%.60s' is no number", key, text);
done:
    return status;
}

static ls_status read_levers(const ls_node *root, ls_levers *out, ls_error *err) {
    ls_node levers, child;
    void *iterator = NULL;
    ls_status status;
    ls_levers_init(out);
    LS_TRY_DONE(ls_node_need_kind(root, "levers", LS_NODE_OBJECT, &levers, err));
    while (ls_node_next(&levers, &iterator, &child)) {
        const int64_t i = ls_lever_find(child.key);
        const char *text;
        if (i < 0) return ls_node_fail(&child, LS_ERR_UNSUPPORTED, err, "is no lever");
        LS_TRY_DONE(ls_node_string(&child, &text, err));
        if ((status = ls_lever_parse(out, i, text, err)) != LS_OK) {
            ls_node_blame(&levers, err);
            goto done;
        }
    }
    if ((status = ls_levers_check(out, err)) != LS_OK) ls_node_blame(&levers, err);
done:
    return status;
}

/* Bundles of runs without truncation may lack it. */
static ls_status read_truncation(const ls_node *root, ls_sampling *s, ls_error *err) {
    ls_node child;
    ls_status status;
    s->top_p = 1.0f;
    if (ls_node_get(root, "top_k", &child)) LS_TRY(ls_node_int(&child, 0, INT64_MAX, &s->top_k, err));
    if (ls_node_get(root, "top_p", &child)) s->top_p = (float)ls_node_number(&child);
    if (ls_node_get(root, "min_p", &child)) s->min_p = (float)ls_node_number(&child);
    status = ls_sampling_check(s, err);
    if (status != LS_OK) ls_node_blame(root, err);
    return status;
}

static ls_status read_members(const ls_node *root, ls_bundle *b, ls_error *err) {
    const char *dtype, *profile = "exact";
    ls_node first, child;
    int64_t format, prompt;
    LS_TRY(read_int(root, "format", 1, FORMAT, &format, err));
    LS_TRY(read_int(root, "step", 0, INT64_MAX, &b->step, err));
    LS_TRY(read_string(root, "dtype", &dtype, err));
    if (strcmp(dtype, "f32") != 0 && strcmp(dtype, "bf16") != 0)
        return ls_node_fail(root, LS_ERR_FORMAT, err, "dtype: '%.60s' is not f32 or bf16", dtype);
    b->dtype = strcmp(dtype, "bf16") == 0 ? LS_BF16 : LS_F32;
    if (format > 1) LS_TRY(read_string(root, "profile", &profile, err));
    if (!ls_profile_parse(&b->profile, profile))
        return ls_node_fail(root, LS_ERR_FORMAT, err, "profile: '%.60s' is not exact or mma16", profile);
    LS_TRY(ls_node_need(root, "temperature", &child, err));
    b->sampling.temperature = (float)ls_node_number(&child);
    if (!(b->sampling.temperature > 0.0f)) return ls_node_fail(&child, LS_ERR_FORMAT, err, "is not above 0");
    LS_TRY(read_truncation(root, &b->sampling, err));
    LS_TRY(read_uint(root, "seed", 10, &b->sampling.seed, err));
    LS_TRY(read_uint(root, "weights", 16, &b->weights, err));
    if (ls_node_get(root, "versions", &child))
        return ls_node_fail(&child, LS_ERR_UNSUPPORTED, err,
                            "several versions drew the episodes; train grpo draws them again along the run's log "
                            "(follow)");
    LS_TRY(read_int(root, "first_prompt", 0, UINT32_MAX, &prompt, err));
    b->first_prompt = (uint32_t)prompt;
    LS_TRY(read_int(root, "samples", 1, 1 << 20, &b->samples, err));
    LS_TRY(read_int(root, "length", 2, 1 << 24, &b->length, err));
    LS_TRY(read_int(root, "slots", 1, INT32_MAX, &b->slots, err));
    LS_TRY(read_int(root, "tokens", 0, INT64_MAX, &b->n_tokens, err));
    LS_TRY(read_int(root, "differing", 0, INT64_MAX, &b->n_differing, err));
    LS_TRY(read_int(root, "differing_sequences", 0, INT64_MAX, &b->n_sequences_differing, err));
    LS_TRY(ls_node_need(root, "first", &first, err));
    LS_TRY(read_int(&first, "sequence", 0, INT64_MAX, &b->sequence, err));
    LS_TRY(read_int(&first, "row", 0, INT64_MAX, &b->row, err));
    return read_levers(root, &b->levers, err);
}

/* The length of one record's sequence, which both sides must have. */
static ls_status check_pair(const ls_bundle *b, const ls_record *r, const ls_record *t, ls_error *err) {
    const int64_t n = r->n_prompt + r->n_completion;
    if (r->prompt_ids == NULL || t->prompt_ids == NULL || !r->has_logprobs || !t->has_logprobs)
        return LS_FAIL(err, LS_ERR_FORMAT, "%s: without prompt_ids or logprobs", r->id);
    if (strcmp(r->id, t->id) != 0 || t->n_prompt != r->n_prompt || t->n_completion != r->n_completion)
        return LS_FAIL(err, LS_ERR_FORMAT, "%s: trainer.jsonl has '%s' of %lld tokens in its place", r->id, t->id,
                       (long long)(t->n_prompt + t->n_completion));
    if (r->n_prompt < 1 || r->n_completion < 1 || n > b->length)
        return LS_FAIL(err, LS_ERR_FORMAT, "%s: %lld tokens and %lld behind them; the length is %lld", r->id,
                       (long long)r->n_prompt, (long long)r->n_completion, (long long)b->length);
    return LS_OK;
}

static ls_status lay_out_bundle(ls_bundle *b, ls_error *err) {
    struct ls_bundle_store *store = b->store;
    const ls_bundle_records *records = &store->records;
    int64_t at = 0;
    if (records->n_rollout != records->n_trainer)
        return LS_FAIL(err, LS_ERR_FORMAT, "trainer.jsonl has %lld records; rollout.jsonl has %lld",
                       (long long)records->n_trainer, (long long)records->n_rollout);
    b->n = records->n_rollout;
    for (int64_t i = 0; i < b->n; i++) {
        LS_TRY(check_pair(b, &records->rollout[i], &records->trainer[i], err));
        store->n_rows += records->rollout[i].n_prompt + records->rollout[i].n_completion;
    }
    LS_TRY(ls_array_alloc((void **)&b->sequences, b->n, sizeof *b->sequences, "bundle", err));
    LS_TRY(ls_array_alloc((void **)&store->tokens, store->n_rows, sizeof *store->tokens, "bundle", err));
    LS_TRY(ls_array_alloc((void **)&store->masks, store->n_rows, 1, "bundle", err));
    LS_TRY(ls_array_alloc((void **)&store->values, 2 * store->n_rows, sizeof *store->values, "bundle", err));
    for (int64_t i = 0; i < b->n; i++) {
        const ls_record *r = &records->rollout[i], *t = &records->trainer[i];
        const int64_t first = r->n_prompt - 1;
        float *rollout = store->values + at, *trainer = store->values + store->n_rows + at;
        memcpy(store->tokens + at, r->prompt_ids, (size_t)r->n_prompt * sizeof(int32_t));
        memcpy(store->tokens + at + r->n_prompt, r->completion_ids, (size_t)r->n_completion * sizeof(int32_t));
        for (int64_t k = 0; k < r->n_completion; k++) store->masks[at + first + k] = r->logprob_missing[k] == 0;
        memcpy(rollout + first, r->logprobs, (size_t)r->n_completion * sizeof(float));
        memcpy(trainer + first, t->logprobs, (size_t)r->n_completion * sizeof(float));
        b->sequences[i] = (ls_bundle_sequence){r->id,
                                               store->tokens + at,
                                               first + 1 + r->n_completion,
                                               r->n_prompt,
                                               store->masks + at,
                                               rollout,
                                               trainer,
                                               r->slot,
                                               r->cache_hit,
                                               r->preemptions};
        at += r->n_prompt + r->n_completion;
    }
    return LS_OK;
}

static ls_status read_records(ls_bundle_records *out, const char *directory, ls_error *err) {
    char path[PATH_MAX_BYTES];
    LS_TRY(ls_path_join(path, sizeof path, directory, "rollout.jsonl", err));
    LS_TRY(ls_records_read(&out->rollout, &out->n_rollout, path, LS_RECORD_SEQUENCE, err));
    LS_TRY(ls_path_join(path, sizeof path, directory, "trainer.jsonl", err));
    return ls_records_read(&out->trainer, &out->n_trainer, path, LS_RECORD_SEQUENCE, err);
}

ls_status ls_bundle_parse(ls_bundle **out, const char *text, int64_t bytes, const ls_bundle_records *records,
                          const char *directory, ls_error *err) {
    char path[PATH_MAX_BYTES];
    ls_json_doc *doc = NULL;
    ls_bundle *b = NULL;
    bool is_taken = false;
    ls_node root;
    ls_status status;
    *out = NULL;
    LS_TRY_DONE(ls_path_join(path, sizeof path, directory, "bundle.json", err));
    LS_TRY_DONE(ls_array_alloc((void **)&b, 1, sizeof *b, "bundle", err));
    LS_TRY_DONE(ls_array_alloc((void **)&b->store, 1, sizeof *b->store, "bundle", err));
    b->store->records = *records;
    is_taken = true;
    LS_TRY_DONE(ls_json_doc_open(&doc, text, bytes, path, err));
    root = ls_json_root(doc);
    LS_TRY_DONE(read_members(&root, b, err));
    if ((status = lay_out_bundle(b, err)) != LS_OK) {
        ls_error_prefix(err, "%s", directory);
        goto done;
    }
    if (b->sequence >= b->n || b->row + 1 >= b->sequences[b->sequence].n ||
        b->sequences[b->sequence].mask[b->row] == 0) {
        status = LS_FAIL(err, LS_ERR_FORMAT, "%s: first: row %lld of sequence %lld was not drawn", path,
                         (long long)b->row, (long long)b->sequence);
        goto done;
    }
    *out = b;
    b = NULL;
done:
    if (!is_taken) free_records(records);
    ls_bundle_free(b);
    ls_json_doc_free(doc);
    return status;
}

ls_status ls_bundle_read(ls_bundle **out, const char *directory, ls_error *err) {
    char path[PATH_MAX_BYTES], *text = NULL;
    int64_t bytes;
    ls_bundle_records records = {0};
    ls_status status;
    *out = NULL;
    LS_TRY_DONE(ls_path_join(path, sizeof path, directory, "bundle.json", err));
    LS_TRY_DONE(ls_file_read(&text, &bytes, path, JSON_BYTES_MAX, err));
    if ((status = read_records(&records, directory, err)) != LS_OK) {
        free_records(&records);
        goto done;
    }
    status = ls_bundle_parse(out, text, bytes, &records, directory, err);
done:
    free(text);
    return status;
}
