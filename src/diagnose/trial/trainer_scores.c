/* The trainer's side: outcomes and their scores. Experiments ask for the same sequences again and again, so each is
 * scored once and kept by its tokens and by what they were scored with. Owns the models and all that is kept. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "diagnose/trial/trial.h"

/* Rows of one scoring forward; carries no bits. */
enum { SCORE_BATCH = 64, PAGE_TOKENS = 16 };

ls_status ls_outcomes_create(ls_outcomes *out, const ls_trial *trial, const ls_prompt *prompts, int64_t n_prompts,
                             ls_error *err) {
    const int64_t samples = trial->levers.samples, most = trial->max_tokens;
    int64_t total;
    ls_status status;
    memset(out, 0, sizeof *out);
    if (!ls_mul_i64(n_prompts, samples, &out->n) || !ls_mul_i64(out->n, trial->rounds, &out->n) ||
        !ls_mul_i64(out->n, most, &total))
        return LS_FAIL(err, LS_ERR_NOMEM, "%lld prompts of %lld samples do not fit", (long long)n_prompts,
                       (long long)samples);
    LS_TRY_DONE(ls_array_alloc((void **)&out->of, out->n, sizeof *out->of, "outcomes", err));
    LS_TRY_DONE(ls_array_alloc((void **)&out->completions, total, sizeof *out->completions, "completions", err));
    LS_TRY_DONE(ls_array_alloc((void **)&out->logprobs, total, sizeof *out->logprobs, "log-probabilities", err));
    LS_TRY_DONE(ls_array_alloc((void **)&out->scored, total, sizeof *out->scored, "scores", err));
    for (int64_t i = 0; i < out->n; i++) {
        ls_outcome *c = &out->of[i];
        const ls_prompt *prompt = &prompts[i / samples % n_prompts];
        c->prompt = prompt->ids;
        c->n_prompt = prompt->n;
        c->completion = out->completions + i * most;
        c->logprob = out->logprobs + i * most;
        c->scored = out->scored + i * most;
        c->slot = -1;
        c->n_hit = c->n_preempted = -1;
        c->version = trial->update && i >= n_prompts * samples;
    }
done:
    if (status != LS_OK) ls_outcomes_deinit(out);
    return status;
}

void ls_outcomes_deinit(ls_outcomes *outcomes) {
    free(outcomes->scored);
    free(outcomes->logprobs);
    free(outcomes->completions);
    free(outcomes->of);
    memset(outcomes, 0, sizeof *outcomes);
}

/* A sequence that was scored: n tokens at `token`, n - 1 values at `value`. */
typedef struct entry {
    uint64_t hash, condition;
    int64_t token, value, n; /* n 0: an empty place */
} entry;

struct ls_sweep_trainer {
    const char *directory;
    ls_device *device;
    ls_model *model[2];
    ls_scorer by; /* in place of models; or without a function */
    entry *table; /* [1 << bits], at most half full; linear probing */
    int64_t bits, n_entries;
    int32_t *tokens;
    float *values;
    int64_t n_tokens, tokens_cap, n_values, values_cap;
    int32_t *sequence; /* the one being looked up */
    int64_t sequence_cap;
};

ls_status ls_sweep_trainer_create(ls_sweep_trainer **out, const char *directory, ls_device *device, ls_error *err) {
    ls_sweep_trainer *t = calloc(1, sizeof *t);
    ls_status status;
    *out = NULL;
    if (t == NULL) return LS_FAIL(err, LS_ERR_NOMEM, "trainer");
    t->directory = directory;
    t->device = device;
    t->bits = 10;
    LS_TRY_DONE(ls_array_alloc((void **)&t->table, (int64_t)1 << t->bits, sizeof *t->table, "scores", err));
    LS_TRY_DONE(ls_model_open(&t->model[0], device, directory, err));
    *out = t;
    t = NULL;
done:
    ls_sweep_trainer_free(t);
    return status;
}

ls_status ls_sweep_trainer_create_by(ls_sweep_trainer **out, ls_scorer scorer, ls_error *err) {
    ls_sweep_trainer *t = calloc(1, sizeof *t);
    ls_status status;
    *out = NULL;
    if (t == NULL) return LS_FAIL(err, LS_ERR_NOMEM, "trainer");
    t->by = scorer;
    t->bits = 10;
    LS_TRY_DONE(ls_array_alloc((void **)&t->table, (int64_t)1 << t->bits, sizeof *t->table, "scores", err));
    *out = t;
    t = NULL;
done:
    ls_sweep_trainer_free(t);
    return status;
}

bool ls_sweep_trainer_is_other(const ls_sweep_trainer *t) { return t->by.score != NULL; }

const char *ls_sweep_trainer_directory(const ls_sweep_trainer *t) { return t->directory; }

void ls_sweep_trainer_free(ls_sweep_trainer *t) {
    if (t == NULL) return;
    free(t->sequence);
    free(t->values);
    free(t->tokens);
    free(t->table);
    ls_model_close(t->model[1]);
    ls_model_close(t->model[0]);
    free(t);
}

ls_status ls_sweep_trainer_model(ls_sweep_trainer *t, int32_t version, ls_model **out, ls_error *err) {
    if (t->model[version] == NULL) {
        LS_TRY(ls_model_open(&t->model[version], t->device, t->directory, err));
        /* As an optimiser would: every layer's input moves a little, so every cached state of the old weights is wrong.
         */
        LS_TRY(ls_model_scale_inputs(t->model[version], 1.0625f, err));
    }
    *out = t->model[version];
    return LS_OK;
}

ls_status ls_sweep_trainer_model_for(ls_sweep_trainer *t, const ls_trial *trial, int32_t version, ls_model **out,
                                     ls_error *err) {
    LS_TRY(ls_sweep_trainer_model(t, version, out, err));
    (*out)->ablation = trial->levers.ablation;
    return ls_model_set_profile(*out, trial->profile, trial->dtype, err);
}

/* What a value depends on besides tokens. Sweeps sample from the whole distribution, so of the way of sampling only the
 * temperature counts. */
static uint64_t condition_of(const ls_trial *trial, int32_t version) {
    uint32_t temperature;
    memcpy(&temperature, &trial->sampling.temperature, sizeof temperature);
    if (trial->logprob_of == LS_LOGPROB_RAW) temperature = 0;
    return (uint64_t)temperature << 32 | (uint64_t)trial->profile << 16 | (uint64_t)trial->levers.ablation << 12 |
           (uint64_t)trial->logprob_of << 8 | (uint64_t)trial->dtype << 4 | (uint64_t)version;
}

/* FNV-1a over 64-bit words, with a last mix so that low bits depend on all. */
static uint64_t hash_of(uint64_t condition, const int32_t *tokens, int64_t n) {
    uint64_t h = (14695981039346656037u ^ condition) * 1099511628211u;
    for (int64_t i = 0; i < n; i++) h = (h ^ (uint64_t)(uint32_t)tokens[i]) * 1099511628211u;
    h ^= h >> 32;
    return h * 11400714819323198485u;
}

/* The entry of a sequence, or the empty place where it belongs. */
static entry *find_entry(const ls_sweep_trainer *t, uint64_t hash, uint64_t condition, const int32_t *tokens,
                         int64_t n) {
    const uint64_t mask = ((uint64_t)1 << t->bits) - 1;
    for (uint64_t i = hash >> (64 - t->bits);; i = (i + 1) & mask) {
        entry *e = &t->table[i];
        if (e->n == 0) return e;
        if (e->hash == hash && e->condition == condition && e->n == n &&
            memcmp(t->tokens + e->token, tokens, (size_t)n * sizeof *tokens) == 0)
            return e;
    }
}

static ls_status grow_table(ls_sweep_trainer *t, ls_error *err) {
    entry *old = t->table;
    const int64_t n = (int64_t)1 << t->bits;
    const ls_status status = ls_array_alloc((void **)&t->table, 2 * n, sizeof *t->table, "scores", err);
    if (status != LS_OK) {
        t->table = old;
        return status;
    }
    t->bits++;
    for (int64_t i = 0; i < n; i++)
        if (old[i].n > 0) *find_entry(t, old[i].hash, old[i].condition, t->tokens + old[i].token, old[i].n) = old[i];
    free(old);
    return LS_OK;
}

/* Puts an outcome's tokens into t->sequence. */
static ls_status join_tokens(ls_sweep_trainer *t, const ls_outcome *c, ls_error *err) {
    const int64_t n = c->n_prompt + c->n;
    LS_TRY(ls_array_grow((void **)&t->sequence, &t->sequence_cap, n, sizeof *t->sequence, "tokens", err));
    memcpy(t->sequence, c->prompt, (size_t)c->n_prompt * sizeof *t->sequence);
    memcpy(t->sequence + c->n_prompt, c->completion, (size_t)c->n * sizeof *t->sequence);
    return LS_OK;
}

/* Gives t->sequence a place; *fresh says that it has no values yet. */
static ls_status keep_score(ls_sweep_trainer *t, uint64_t condition, int64_t n, bool *fresh, int64_t *value,
                            ls_error *err) {
    const uint64_t hash = hash_of(condition, t->sequence, n);
    entry *e = find_entry(t, hash, condition, t->sequence, n);
    *fresh = e->n == 0;
    if (*fresh) {
        LS_TRY(ls_array_grow((void **)&t->tokens, &t->tokens_cap, t->n_tokens + n, sizeof *t->tokens, "tokens", err));
        LS_TRY(
            ls_array_grow((void **)&t->values, &t->values_cap, t->n_values + n - 1, sizeof *t->values, "scores", err));
        memcpy(t->tokens + t->n_tokens, t->sequence, (size_t)n * sizeof *t->tokens);
        *e = (entry){hash, condition, t->n_tokens, t->n_values, n};
        t->n_tokens += n;
        t->n_values += n - 1;
    }
    *value = e->value;
    if (*fresh && 2 * ++t->n_entries > (int64_t)1 << t->bits) LS_TRY(grow_table(t, err));
    return LS_OK;
}

/* A sequence to be scored: where its tokens and values lie, which move while they are collected. */
typedef struct pending {
    int64_t token, value, n, from;
} pending;

static ls_status score_by_other(ls_sweep_trainer *t, const ls_trial *trial, const pending *list, int64_t n,
                                ls_error *err) {
    ls_scored *items = NULL;
    ls_status status;
    LS_TRY(ls_array_alloc((void **)&items, n, sizeof *items, "score items", err));
    for (int64_t i = 0; i < n; i++)
        items[i] = (ls_scored){t->tokens + list[i].token, list[i].n, list[i].from, t->values + list[i].value};
    status = t->by.score(t->by.context, trial, items, n, err);
    free(items);
    return status;
}

static ls_status score_pending(ls_sweep_trainer *t, const ls_trial *trial, int32_t version, const pending *list,
                               int64_t n, ls_error *err) {
    const ls_score_opts opts = {.dtype = trial->dtype, .batch = SCORE_BATCH, .page_tokens = PAGE_TOKENS};
    ls_score_item *items = NULL;
    ls_model *model;
    ls_status status;
    if (t->by.score != NULL) return score_by_other(t, trial, list, n, err);
    LS_TRY_DONE(ls_sweep_trainer_model_for(t, trial, version, &model, err));
    LS_TRY_DONE(ls_array_alloc((void **)&items, n, sizeof *items, "score items", err));
    for (int64_t i = 0; i < n; i++)
        items[i] = (ls_score_item){.tokens = t->tokens + list[i].token,
                                   .n_tokens = list[i].n,
                                   .of = trial->logprob_of,
                                   .sampling = trial->sampling,
                                   .logprob = t->values + list[i].value};
    status = ls_score(model, t->device, &opts, items, n, err);
done:
    free(items);
    return status;
}

static ls_status score_version(ls_sweep_trainer *t, const ls_trial *trial, int32_t version, ls_outcomes *outcomes,
                               ls_error *err) {
    const uint64_t condition = condition_of(trial, version);
    pending *list = NULL;
    int64_t n_pending = 0, *value = NULL;
    ls_status status;
    LS_TRY_DONE(ls_array_alloc((void **)&list, outcomes->n, sizeof *list, "score items", err));
    LS_TRY_DONE(ls_array_alloc((void **)&value, outcomes->n, sizeof *value, "score items", err));
    for (int64_t i = 0; i < outcomes->n; i++) {
        const ls_outcome *c = &outcomes->of[i];
        const int64_t n = c->n_prompt + c->n;
        bool fresh;
        if (c->version != version || c->n == 0) continue;
        LS_TRY_DONE(join_tokens(t, c, err));
        /* Others may give the values of completions alone. */
        LS_TRY_DONE(keep_score(t, condition ^ (t->by.score != NULL ? (uint64_t)c->n_prompt << 20 : 0), n, &fresh,
                               &value[i], err));
        if (fresh) list[n_pending++] = (pending){t->n_tokens - n, value[i], n, c->n_prompt};
    }
    if (n_pending > 0) LS_TRY_DONE(score_pending(t, trial, version, list, n_pending, err));
    for (int64_t i = 0; i < outcomes->n; i++) {
        const ls_outcome *c = &outcomes->of[i];
        if (c->version == version && c->n > 0)
            memcpy(c->scored, t->values + value[i] + c->n_prompt - 1, (size_t)c->n * sizeof *c->scored);
    }
done:
    free(value);
    free(list);
    return status;
}

ls_status ls_sweep_trainer_score(ls_sweep_trainer *t, const ls_trial *trial, ls_outcomes *outcomes, ls_error *err) {
    LS_TRY(score_version(t, trial, 0, outcomes, err));
    if (trial->update) LS_TRY(score_version(t, trial, 1, outcomes, err));
    return LS_OK;
}
