/* How far a model is from Hugging Face's numbers of a fixture. */
#ifndef LS_TESTS_MEASURE_H
#define LS_TESTS_MEASURE_H

#include <math.h>

#include "fixture.h"

/* Logits of n tokens, float32 [n][vocab]. */
static inline float *logits_of(const ls_model *model, ls_device *device, const int32_t *tokens, int64_t n,
                               ls_dtype dtype) {
    const ls_model_config *c = &model->config;
    const int64_t n_pages = (n + 15) / 16;
    const ls_cache_opts opts = {.dtype = dtype, .n_slots = 1, .n_pages = n_pages, .page_tokens = 16};
    int32_t *pages = malloc((size_t)n_pages * sizeof *pages);
    float *logits = malloc((size_t)(n * c->vocab) * sizeof *logits);
    const ls_span span = {.n_rows = n};
    const int64_t logit_bytes = n * c->vocab * (int64_t)sizeof *logits;
    float *h = to_device(device, NULL, n * c->hidden * (int64_t)sizeof *h);
    float *out = to_device(device, NULL, logit_bytes);
    ls_cache *cache;
    ls_workspace *ws;
    ls_batch *batch;
    ls_error err;
    for (int64_t i = 0; i < n_pages; i++) pages[i] = (int32_t)i;
    assert_ok(ls_cache_create(&cache, device, c, &opts, &err), err);
    assert_ok(ls_workspace_create(&ws, device, model, dtype, n, false, &err), err);
    assert_ok(ls_batch_create(&batch, device, n, 1, n_pages, &err), err);
    assert_ok(ls_batch_write(batch, tokens, &span, 1, pages, n_pages, &err), err);
    {
        const ls_forward forward = {model, cache, ws, batch, h, 0, false};
        assert_ok(ls_model_forward(&forward, NULL, NULL, &err), err);
    }
    assert_ok(ls_model_logits(model, device, ws->a.x, n, out, &err), err);
    from_device(device, logits, out, logit_bytes);
    ls_memory_free(device, out);
    ls_memory_free(device, h);
    ls_batch_free(batch);
    ls_workspace_free(ws);
    ls_cache_free(cache);
    free(pages);
    return logits;
}

static inline float *all_logits(const fixture *f, ls_device *device, int64_t s, ls_dtype dtype) {
    return logits_of(f->model, device, f->ids + s * f->n_tokens, f->n_tokens, dtype);
}

typedef struct errors {
    double max_logit, max_logprob, mean_logprob;
} errors;

static inline errors measure_in(const char *name, ls_dtype dtype, ls_profile profile) {
    fixture f;
    ls_device *device = test_device(2, ls_isa_best());
    errors e = {0, 0, 0};
    ls_error err;
    fixture_open(&f, name);
    assert_ok(ls_model_set_profile(f.model, profile, dtype, &err), err);
    for (int64_t s = 0; s < f.n_sequences; s++) {
        const int32_t vocab = f.model->config.vocab;
        float *logits = all_logits(&f, device, s, dtype);
        float *logprob = malloc((size_t)f.n_tokens * sizeof *logprob);
        ls_score_item item = {.tokens = f.ids + s * f.n_tokens, .n_tokens = f.n_tokens, .logprob = logprob};
        const ls_score_opts opts = {.dtype = dtype, .batch = 1, .chunk = 0, .page_tokens = 64};
        for (int64_t p = 0; p < f.n_positions; p++)
            for (int64_t v = 0; v < vocab; v++) {
                const double diff = fabs((double)logits[f.positions[p] * vocab + v] -
                                         (double)f.logits[(s * f.n_positions + p) * vocab + v]);
                e.max_logit = fmax(e.max_logit, diff);
            }
        assert_ok(ls_score(f.model, device, &opts, &item, 1, &err), err);
        for (int64_t t = 0; t + 1 < f.n_tokens; t++) {
            const double diff = fabs((double)logprob[t] - f.logprobs[s * (f.n_tokens - 1) + t]);
            e.max_logprob = fmax(e.max_logprob, diff);
            e.mean_logprob += diff / (double)(f.n_sequences * (f.n_tokens - 1));
        }
        free(logprob);
        free(logits);
    }
    print_message("%s, %s, activations %s: max |logit| error %.3g, max |logprob| error %.3g, mean %.3g\n", name,
                  ls_profile_name(profile), ls_dtype_name(dtype), e.max_logit, e.max_logprob, e.mean_logprob);
    fixture_close(&f);
    test_device_close(device);
    return e;
}

static inline errors measure(const char *name, ls_dtype dtype) { return measure_in(name, dtype, LS_PROFILE_EXACT); }

#endif
