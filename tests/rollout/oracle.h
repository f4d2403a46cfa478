/* What a request must give, from one sequence at a time: its tokens go through ls_model_forward alone, in a cache of
 * their own, from the first one on for every token that is drawn. No engine, no batch, no state that is older than the
 * call.
 *
 * Weights come in versions: the fixture as it is, and copies with a norm scaled so that states, keys and logits all
 * become others. */
#ifndef LS_TESTS_ORACLE_H
#define LS_TESTS_ORACLE_H

#include <stdlib.h>

#include "model/fixture.h"
#include "op/support.h"

#define VERSIONS 3

typedef struct versions {
    ls_model *model[VERSIONS];
} versions;

/* The distribution that tokens come from, and which of its two log-probabilities is recorded. */
typedef struct distribution {
    ls_sampling sampling;
    ls_logprob_of of;
    ls_penalties penalties; /* repetition 0: none */
} distribution;

static inline void versions_open_one(versions *v, int version, const char *name) {
    char path[512];
    ls_error err;
    float norm[4096], *place;
    int64_t n, bytes;
    snprintf(path, sizeof path, "%s/%s", LS_FIXTURES, name);
    assert_ok(ls_model_open(&v->model[version], test_home(), path, &err), err);
    if (version == 0) return;
    n = v->model[version]->config.hidden;
    bytes = n * (int64_t)sizeof *norm;
    place = v->model[version]->layers[0].input_norm;
    assert_in_range((uintmax_t)n, 1, 4096);
    from_device(test_home(), norm, place, bytes);
    for (int64_t c = 0; c < n; c++) norm[c] *= c % 2 == version % 2 ? 1.5f : 0.75f;
    assert_ok(ls_memory_write(test_home(), place, norm, bytes, &err), err);
    assert_ok(ls_device_wait(test_home(), &err), err);
}

static inline void versions_open(versions *v, const char *name) {
    for (int i = 0; i < VERSIONS; i++) versions_open_one(v, i, name);
}

static inline void versions_close(versions *v) {
    for (int i = 0; i < VERSIONS; i++) ls_model_close(v->model[i]);
}

/* One sequence's cache and working memory. */
typedef struct alone {
    ls_device *device;
    ls_cache *cache;
    ls_workspace *ws;
    ls_batch *batch;
    ls_head *head;
    float *h;
    int64_t length_max;
} alone;

#define ALONE_PAGE 64

static inline void alone_open(alone *a, const ls_model *model, ls_device *device, ls_dtype dtype, int64_t length_max) {
    const ls_cache_opts cache = {
        .dtype = dtype, .n_slots = 1, .n_pages = (length_max + ALONE_PAGE - 1) / ALONE_PAGE, .page_tokens = ALONE_PAGE};
    const ls_head_opts head = {
        .dtype = dtype, .rows_max = 1, .samples = true, .keeps_logits = true, .temperature = 1.0f};
    const ls_model_config *c = &model->config;
    ls_error err;
    a->device = device;
    a->length_max = length_max;
    assert_ok(ls_cache_create(&a->cache, device, c, &cache, &err), err);
    assert_ok(ls_workspace_create(&a->ws, device, model, dtype, length_max, false, &err), err);
    assert_ok(ls_batch_create(&a->batch, device, length_max, 1, cache.n_pages, &err), err);
    assert_ok(ls_head_create(&a->head, device, c, &head, &err), err);
    a->h = to_device(device, NULL, length_max * c->hidden * (int64_t)sizeof *a->h);
}

static inline void alone_close(alone *a) {
    ls_memory_free(a->device, a->h);
    ls_head_free(a->head);
    ls_batch_free(a->batch);
    ls_workspace_free(a->ws);
    ls_cache_free(a->cache);
}

/* The penalised row beside the one of the engine: counted from the tokens themselves, in another order. */
static inline ls_status alone_penalize(alone *a, const int32_t *tokens, int64_t n_prompt, int64_t n,
                                       const ls_penalties *p, ls_error *err) {
    const int64_t vocab = a->head->vocab, bytes = vocab * (int64_t)sizeof(float);
    float *row = malloc((size_t)bytes);
    ls_status status;
    LS_TRY_DONE(ls_memory_take(a->device, row, a->head->logits, bytes, err));
    for (int32_t v = (int32_t)vocab - 1; v >= 0; v--) {
        int32_t count = 0;
        bool there = false;
        for (int64_t i = 0; i < n; i++) {
            there = there || tokens[i] == v;
            count += i >= n_prompt && tokens[i] == v;
        }
        if (there && row[v] > 0)
            row[v] = row[v] / p->repetition;
        else if (there)
            row[v] = row[v] * p->repetition;
        if (count > 0) {
            const float frequency = p->frequency * (float)count;
            row[v] = row[v] - frequency;
            row[v] = row[v] - p->presence;
        }
    }
    LS_TRY_DONE(ls_memory_write(a->device, a->head->logits, row, bytes, err));
    status = ls_device_wait(a->device, err);
done:
    free(row);
    return status;
}

/* The token behind tokens [n], of which n_prompt are the prompt's, and its log-probability. chunk 0: one forward over
 * all of them. */
static inline ls_status alone_next_behind(alone *a, const ls_model *model, const int32_t *tokens, int64_t n_prompt,
                                          int64_t n, int64_t chunk, const distribution *d, const ls_draw *draw,
                                          int32_t *token, float *logprob, ls_error *err) {
    const ls_forward f = {model, a->cache, a->ws, a->batch, a->h, 0, false};
    const int64_t each = chunk > 0 ? chunk : n;
    int32_t *pages = calloc((size_t)a->cache->n_pages + 1, sizeof *pages);
    int64_t last = 0, drawn;
    ls_status status;
    LS_ASSERT(n <= a->length_max, "%lld tokens", (long long)n);
    for (int64_t p = 0; p < a->cache->n_pages; p++) pages[p] = (int32_t)p;
    for (int64_t pos = 0; pos < n; pos += each) {
        const ls_span span = {.n_rows = n - pos < each ? n - pos : each, .pos = pos};
        last = span.n_rows - 1;
        LS_TRY_DONE(ls_batch_write(a->batch, tokens + pos, &span, 1, pages, a->cache->n_pages, err));
        LS_TRY_DONE(ls_model_forward(&f, NULL, NULL, err));
    }
    LS_TRY_DONE(ls_head_take(a->head, model, a->ws->a.x, last + 1, &last, 1, err));
    if (d->penalties.repetition > 0) LS_TRY_DONE(alone_penalize(a, tokens, n_prompt, n, &d->penalties, err));
    LS_TRY_DONE(ls_head_process(a->head, &d->sampling, NULL, err));
    LS_TRY_DONE(ls_head_sample(a->head, draw, err));
    if (d->penalties.repetition > 0) /* the model's own logits again */
        LS_TRY_DONE(ls_model_logits(model, a->device, a->head->x, 1, a->head->logits, err));
    LS_TRY_DONE(
        ls_head_logprob(a->head, d->of == LS_LOGPROB_RAW ? a->head->logits : a->head->processed, NULL, false, err));
    LS_TRY_DONE(ls_memory_read(a->device, &drawn, a->head->targets, (int64_t)sizeof drawn, err));
    LS_TRY_DONE(ls_memory_take(a->device, logprob, a->head->logprob, (int64_t)sizeof *logprob, err));
    *token = (int32_t)drawn;
done:
    free(pages);
    return status;
}

/* The same without penalties. */
static inline ls_status alone_next(alone *a, const ls_model *model, const int32_t *tokens, int64_t n, int64_t chunk,
                                   const distribution *d, const ls_draw *draw, int32_t *token, float *logprob,
                                   ls_error *err) {
    return alone_next_behind(a, model, tokens, n, n, chunk, d, draw, token, logprob, err);
}

/* All n tokens of a completion with one version of the weights. */
static inline void alone_complete(alone *a, const ls_model *model, const int32_t *prompt, int64_t n_prompt,
                                  const distribution *d, uint32_t prompt_i, uint32_t sample_i, int64_t n,
                                  int32_t *completion, float *logprob) {
    int32_t *tokens = calloc((size_t)(n_prompt + n), sizeof *tokens);
    ls_error err;
    memcpy(tokens, prompt, (size_t)n_prompt * sizeof *tokens);
    for (int64_t t = 0; t < n; t++) {
        const ls_draw draw = {prompt_i, sample_i, (uint32_t)(n_prompt + t)};
        assert_ok(alone_next(a, model, tokens, n_prompt + t, 0, d, &draw, &completion[t], &logprob[t], &err), err);
        tokens[n_prompt + t] = completion[t];
    }
    free(tokens);
}

#endif
