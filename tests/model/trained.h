/* A fixture opened for training, and batches of sequences with gradients of their log-probabilities and entropies. */
#ifndef LS_TESTS_TRAINED_H
#define LS_TESTS_TRAINED_H

#include "model/fixture.h"
#include "model/params.h"

typedef struct trained {
    ls_model *model;
    ls_parameters *parameters;
    char directory[512];
} trained;

static inline void trained_open_at(trained *t, const char *directory) {
    ls_error err;
    snprintf(t->directory, sizeof t->directory, "%s", directory);
    assert_ok(ls_model_open(&t->model, test_home(), t->directory, &err), err);
    assert_ok(ls_parameters_open(&t->parameters, t->model, test_home(), t->directory, &err), err);
}

static inline void trained_open(trained *t, const char *name) {
    char directory[400];
    snprintf(directory, sizeof directory, "%s/%s", LS_FIXTURES, name);
    trained_open_at(t, directory);
}

static inline void trained_close(trained *t) {
    ls_parameters_free(t->parameters);
    ls_model_close(t->model);
}

/* Sequences one behind the other; row r predicts the next token of its sequence. */
typedef struct batch {
    int32_t *tokens;
    int64_t offsets[16], n;
    int64_t *targets;
    float *d_logprob, *d_entropy;
} batch;

static inline void batch_make(batch *b, const ls_model *model, const int64_t *lengths, int64_t n, uint64_t seed) {
    int64_t rows = 0;
    for (int64_t i = 0; i < n; i++) rows += lengths[i];
    b->n = n;
    b->tokens = calloc((size_t)rows, sizeof *b->tokens);
    b->targets = calloc((size_t)rows, sizeof *b->targets);
    b->d_logprob = calloc((size_t)rows, sizeof *b->d_logprob);
    b->d_entropy = calloc((size_t)rows, sizeof *b->d_entropy);
    b->offsets[0] = 0;
    for (int64_t i = 0; i < n; i++) {
        b->offsets[i + 1] = b->offsets[i] + lengths[i];
        for (int64_t r = b->offsets[i]; r < b->offsets[i + 1]; r++)
            b->tokens[r] = (int32_t)(test_random(&seed) % (uint64_t)model->config.vocab);
        for (int64_t r = b->offsets[i]; r < b->offsets[i + 1]; r++) {
            /* Some tokens take no part, as a prompt's do. */
            const bool counts = r + 1 < b->offsets[i + 1] && (r - b->offsets[i]) % 5 != 0;
            b->targets[r] = counts ? b->tokens[r + 1] : -1;
            b->d_logprob[r] = test_uniform(&seed, -1.0f, 1.0f);
            b->d_entropy[r] = test_uniform(&seed, -0.1f, 0.1f);
        }
    }
}

static inline void batch_free(batch *b) {
    free(b->tokens);
    free(b->targets);
    free(b->d_logprob);
    free(b->d_entropy);
}

#endif
