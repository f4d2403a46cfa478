/* A trainer over a fixture with a batch of made-up sequences: the mean of -log-probability over most of their tokens.
 */
#ifndef LS_TESTS_TRAINING_H
#define LS_TESTS_TRAINING_H

#include <math.h>
#include <stdlib.h>

#include "device.h"
#include "train/trainer.h"

typedef struct batch {
    int32_t *tokens;
    int64_t *offsets, *targets;
    int64_t n, count;
} batch;

/* n sequences of 2 to `longest` tokens, different for every seed. */
static inline batch batch_make(int64_t n, int64_t longest, int32_t vocab, uint64_t seed) {
    batch b = {calloc((size_t)(n * longest), sizeof(int32_t)), calloc((size_t)n + 1, sizeof(int64_t)),
               calloc((size_t)(n * longest), sizeof(int64_t)), n, 0};
    seed = seed * UINT64_C(0x9E3779B97F4A7C15) + 1;
    for (int64_t i = 0; i < n; i++) {
        const int64_t length = 2 + (int64_t)(test_random(&seed) % (uint64_t)(longest - 1));
        b.offsets[i + 1] = b.offsets[i] + length;
        for (int64_t r = b.offsets[i]; r < b.offsets[i + 1]; r++)
            b.tokens[r] = (int32_t)(test_random(&seed) % (uint64_t)vocab);
        for (int64_t r = b.offsets[i]; r < b.offsets[i + 1]; r++) {
            const bool counts = r + 1 < b.offsets[i + 1] && (r - b.offsets[i]) % 4 != 3;
            b.targets[r] = counts ? b.tokens[r + 1] : -1;
            b.count += counts;
        }
    }
    return b;
}

static inline void batch_free(batch *b) {
    free(b->tokens);
    free(b->offsets);
    free(b->targets);
}

static inline ls_train_batch batch_view(const batch *b) {
    const ls_train_batch view = {b->tokens, b->offsets, b->targets, b->n, (double)b->count, NULL};
    return view;
}

/* Sum of -log-probability, and of entropy where there is one with a small gradient, so that it takes part. */
static inline ls_status plain_loss(void *context, const ls_train_rows *rows, ls_error *err) {
    (void)context;
    (void)err;
    for (int64_t i = 0; i < rows->n_sequences; i++)
        for (int64_t r = rows->offsets[i]; r < rows->offsets[i + 1]; r++) {
            if (rows->targets[r] < 0) continue;
            rows->d_logprob[r] = -1.0f;
            rows->metrics[i] -= (double)rows->logprob[r];
            if (rows->entropy == NULL) continue;
            rows->d_entropy[r] = -0.01f;
            rows->metrics[i] -= 0.01 * (double)rows->entropy[r];
        }
    return LS_OK;
}

static inline ls_trainer_opts usual_opts(void) {
    const ls_trainer_opts opts = {.dtype = LS_F32,
                                  .temperature = 1.0f,
                                  .leaf = 2,
                                  .adamw = {0, 0.9, 0.95, 1e-8, 0.1},
                                  .rate = {LS_RATE_COSINE, 3e-3, 3e-4, 3, 20},
                                  .max_norm = 1.0,
                                  .microbatch = 1,
                                  .rows_max = 4096,
                                  .sequences_max = 15,
                                  .n_metrics = 1,
                                  .loss = plain_loss};
    return opts;
}

typedef struct training {
    ls_model *model;
    ls_device *device;
    ls_trainer *trainer;
    ls_train_state *state;
} training;

static inline void training_open(training *t, const char *directory, const ls_trainer_opts *opts, int32_t threads,
                                 ls_isa isa) {
    ls_error err;
    t->device = test_device(threads, isa);
    assert_ok(ls_model_open(&t->model, t->device, directory, &err), err);
    assert_ok(ls_trainer_create(&t->trainer, t->model, directory, t->device, opts, &err), err);
    t->state = ls_trainer_state(t->trainer);
}

static inline void training_close(training *t) {
    ls_trainer_free(t->trainer);
    ls_model_close(t->model);
    test_device_close(t->device);
}

static inline uint64_t mix_bytes(uint64_t hash, const void *bytes, int64_t n) {
    for (int64_t i = 0; i < n; i++) hash = (hash ^ ((const uint8_t *)bytes)[i]) * UINT64_C(0x100000001B3);
    return hash;
}

/* Of all masters and moments. */
static inline uint64_t state_bits(const ls_train_state *s) {
    const void *const arrays[] = {s->parameters->masters, s->m, s->v};
    const int64_t n = s->parameters->n_elements;
    void *host = malloc((size_t)n * 4);
    uint64_t hash = 7;
    assert_non_null(host);
    for (int i = 0; i < 3; i++) {
        const int64_t bytes = n * ls_dtype_bytes(i == 0 ? LS_F32 : s->moments);
        from_device(s->parameters->device, host, arrays[i], bytes);
        hash = mix_bytes(hash, host, bytes);
    }
    free(host);
    return hash;
}

static inline uint64_t weight_digest(const ls_parameters *parameters) {
    uint64_t digest;
    ls_error err;
    assert_ok(ls_parameters_digest(parameters, &digest, &err), err);
    return digest;
}

/* Steps [from, to) over batches of 15 sequences; the loss of the last. */
static inline double train(training *t, int64_t from, int64_t to) {
    double loss = 0;
    for (int64_t step = from; step < to; step++) {
        batch b = batch_make(15, 14, t->model->config.vocab, (uint64_t)step);
        const ls_train_batch view = batch_view(&b);
        ls_train_stats stats;
        ls_error err;
        assert_ok(ls_trainer_step(t->trainer, &view, &stats, &err), err);
        loss = stats.totals[0] / (double)b.count;
        batch_free(&b);
    }
    return loss;
}

static inline const char *fixture_path(const char *name) {
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", LS_FIXTURES, name);
    return path;
}

#endif
