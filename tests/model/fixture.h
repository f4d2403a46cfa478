/* A checkpoint of the fixtures with what Hugging Face computed for it (tests/fixtures/README.md tells how). */
#ifndef LS_TESTS_FIXTURE_H
#define LS_TESTS_FIXTURE_H

#include <stdlib.h>

#include "base/file.h"
#include "device.h"
#include "load/safetensors.h"
#include "model/score.h"

typedef struct fixture {
    ls_model *model;
    char *bytes; /* of expected */
    ls_safetensors *expected;
    const int32_t *ids; /* [n_sequences][n_tokens] */
    int64_t n_sequences, n_tokens;
    const float *logits; /* [n_sequences][n_positions][vocab] */
    const int32_t *positions;
    int64_t n_positions;
    const double *logprobs; /* [n_sequences][n_tokens - 1] */
} fixture;

/* A file's tensors in memory, which *bytes are. */
static inline void tensors_open(ls_safetensors **out, char **bytes, const char *path) {
    int64_t n;
    ls_error err;
    assert_ok(ls_file_read(bytes, &n, path, INT64_MAX, &err), err);
    assert_ok(ls_safetensors_parse(out, (const uint8_t *)*bytes, n, path, &err), err);
}

static inline void fixture_open(fixture *f, const char *name) {
    char path[512];
    ls_error err;
    const ls_tensor_view *view;
    snprintf(path, sizeof path, "%s/%s", LS_FIXTURES, name);
    assert_ok(ls_model_open(&f->model, test_home(), path, &err), err);
    snprintf(path, sizeof path, "%s/%s/expected.safetensors", LS_FIXTURES, name);
    tensors_open(&f->expected, &f->bytes, path);
    view = ls_safetensors_find(f->expected, "input_ids");
    assert_non_null(view);
    f->ids = view->data;
    f->n_sequences = view->dims[0];
    f->n_tokens = view->dims[1];
    view = ls_safetensors_find(f->expected, "logits");
    assert_non_null(view);
    f->logits = view->data;
    f->n_positions = view->dims[1];
    assert_int_equal(view->dims[2], f->model->config.vocab);
    f->positions = ls_safetensors_find(f->expected, "logit_positions")->data;
    f->logprobs = ls_safetensors_find(f->expected, "logprobs")->data;
}

static inline void fixture_close(fixture *f) {
    ls_safetensors_close(f->expected);
    free(f->bytes);
    ls_model_close(f->model);
}

#endif
