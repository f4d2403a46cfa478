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
#include "op/sample.h"

#define VERSIONS 3

typedef struct versions {
    ls_model *model[VERSIONS];
} versions;

/* The distribution that tokens come from, and which of its two log-probabilities is recorded. */
typedef struct distribution {
    ls_sampling sampling;
    ls_logprob_of of;
} distribution;

static inline void versions_open_one(versions *v, int version, const char *name) {
    char path[512];
    ls_error err;
    float *norm;
    snprintf(path, sizeof path, "%s/%s", LS_FIXTURES, name);
    assert_ok(ls_model_open(&v->model[version], path, &err), err);
    norm = v->model[version]->layers[0].input_norm;
    for (int64_t c = 0; version > 0 && c < v->model[version]->config.hidden; c++)
        norm[c] *= c % 2 == version % 2 ? 1.5f : 0.75f;
}

static inline void versions_open(versions *v, const char *name) {
    for (int i = 0; i < VERSIONS; i++) versions_open_one(v, i, name);
}

static inline void versions_close(versions *v) {
    for (int i = 0; i < VERSIONS; i++) ls_model_close(v->model[i]);
}

/* One sequence's cache and working memory. */
typedef struct alone {
    ls_device *queue;
    ls_cache *cache;
    ls_workspace *ws;
    int64_t vocab, length_max;
    int32_t *sort_space;
    float *logits, *processed;
} alone;

#define ALONE_PAGE 64

static inline void alone_open(alone *a, const ls_model *model, ls_device *queue, ls_dtype dtype, int64_t length_max) {
    const ls_cache_opts cache = {
        .dtype = dtype, .n_slots = 1, .n_pages = (length_max + ALONE_PAGE - 1) / ALONE_PAGE, .page_tokens = ALONE_PAGE};
    const size_t vocab = (size_t)model->config.vocab;
    ls_error err;
    a->queue = queue;
    a->vocab = model->config.vocab;
    a->length_max = length_max;
    assert_ok(ls_cache_create(&a->cache, &model->config, &cache, &err), err);
    assert_ok(ls_workspace_create(&a->ws, &model->config, dtype, length_max, false, &err), err);
    a->sort_space = calloc(2 * vocab, sizeof *a->sort_space);
    a->logits = calloc(vocab, sizeof *a->logits);
    a->processed = calloc(vocab, sizeof *a->processed);
}

static inline void alone_close(alone *a) {
    free(a->processed);
    free(a->logits);
    free(a->sort_space);
    ls_workspace_free(a->ws);
    ls_cache_free(a->cache);
}

/* The token behind tokens [n] and its log-probability. chunk 0: one forward over all of them. */
static inline ls_status alone_next(alone *a, const ls_model *model, const int32_t *tokens, int64_t n, int64_t chunk,
                                   const distribution *d, const ls_draw *draw, int32_t *token, float *logprob,
                                   ls_error *err) {
    const int64_t each = chunk > 0 ? chunk : n, row_bytes = model->config.hidden * ls_dtype_bytes(a->ws->dtype);
    ls_head_row row = {0, d->of, &d->sampling};
    int32_t *pages = calloc((size_t)a->cache->n_pages + 1, sizeof *pages);
    int64_t target, n_rows = 0;
    ls_status status;
    LS_ASSERT(n <= a->length_max, "%lld tokens", (long long)n);
    for (int64_t p = 0; p < a->cache->n_pages; p++) pages[p] = (int32_t)p;
    for (int64_t pos = 0; pos < n; pos += each) {
        ls_span span = {.n_rows = n - pos < each ? n - pos : each, .pos = pos, .pages = pages};
        n_rows = span.n_rows;
        LS_TRY(ls_model_forward(model, a->queue, a->cache, a->ws, tokens + pos, &span, 1, err));
    }
    LS_TRY(ls_model_logits(model, a->queue, (const uint8_t *)a->ws->x + (n_rows - 1) * row_bytes, a->ws->dtype, 1,
                           a->logits, err));
    ls_sampling_process(a->queue->isa, a->processed, a->logits, a->vocab, &d->sampling, a->sort_space);
    *token = ls_sample(a->queue->isa, a->processed, a->vocab, &d->sampling, draw);
    row.target = *token;
    LS_TRY(ls_head_logprob(a->queue, a->logits, a->vocab, &row, 1, &target, a->sort_space, logprob, err));
done:
    free(pages);
    return status;
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
