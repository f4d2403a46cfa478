/* Training's forward and backward: the bits of scoring, the gradients of PyTorch's autograd, and no bit that depends on
 * recomputation, neighbours, threads or instruction set; in mma16 gradients that are near those of exact. */
#define _GNU_SOURCE
#include <math.h>

#include "fresh.h"
#include "model/tape_state.h"
#include "op/logprob.h"
#include "textbook.h"
#include "trained.h"

enum { SAMPLES = 60 };

/* Gradient of sequences [begin, end) of a forward over all of the batch. */
static float *gradient_of(const trained *t, const batch *b, ls_device *device, ls_dtype dtype, int64_t recompute,
                          int64_t begin, int64_t end, float *logprob) {
    const int64_t rows = b->offsets[b->n];
    const ls_tape_opts opts = {dtype, rows, b->n, recompute, 1.0f, 0, NULL, NULL, 0, 0};
    const int64_t bytes = t->parameters->n_elements * (int64_t)sizeof(float);
    float *gradient = malloc((size_t)bytes), *there = to_device(device, NULL, bytes);
    ls_tape *tape;
    ls_error err;
    assert_ok(ls_tape_create(&tape, t->parameters, device, &opts, &err), err);
    assert_ok(ls_tape_forward(tape, b->tokens, b->offsets, b->n, &err), err);
    if (logprob != NULL) assert_ok(ls_tape_logprob(tape, b->targets, logprob, NULL, &err), err);
    const ls_leaf_part part = {.begin = begin,
                               .end = end,
                               .targets = b->targets,
                               .d_logprob = b->d_logprob,
                               .d_entropy = b->d_entropy,
                               .is_first = true,
                               .is_last = true};
    assert_ok(ls_tape_backward(tape, &part, there, &err), err);
    from_device(device, gradient, there, bytes);
    ls_memory_free(device, there);
    ls_tape_free(tape);
    return gradient;
}

/* ---- PyTorch ---- */

static int by_name(const void *a, const void *b) {
    return strcmp((*(const ls_parameter *const *)a)->slot.name, (*(const ls_parameter *const *)b)->slot.name);
}

static void check_autograd(const char *name, double bound) {
    char path[600];
    trained t;
    ls_safetensors *file;
    char *bytes;
    const ls_parameter **sorted;
    const ls_tensor_view *ids, *weights, *norms, *samples;
    ls_device *device = test_device(2, ls_isa_best());
    double worst = 0, worst_norm = 0;
    const char *worst_name = "";
    float *gradient;
    batch b = {0};
    trained_open(&t, name);
    snprintf(path, sizeof path, "%s/gradients.safetensors", t.directory);
    tensors_open(&file, &bytes, path);
    ids = ls_safetensors_find(file, "input_ids");
    weights = ls_safetensors_find(file, "weights");
    norms = ls_safetensors_find(file, "norms");
    samples = ls_safetensors_find(file, "samples");
    assert_true(ids != NULL && weights != NULL && norms != NULL && samples != NULL);
    assert_int_equal(norms->n_elements, t.parameters->n_tensors);
    {
        const int64_t length = ids->dims[1], lengths[] = {length, length};
        batch_make(&b, t.model, lengths, 2, 1);
        memcpy(b.tokens, ids->data, (size_t)ids->bytes);
        for (int64_t s = 0; s < 2; s++)
            for (int64_t i = 0; i < length; i++) {
                const int64_t r = s * length + i;
                b.targets[r] = i + 1 < length ? b.tokens[r + 1] : -1;
                b.d_logprob[r] = i + 1 < length ? ((const float *)weights->data)[s * (length - 1) + i] : 0.0f;
                b.d_entropy[r] = 0.0f;
            }
    }
    gradient = gradient_of(&t, &b, device, LS_F32, true, 0, 2, NULL);
    sorted = calloc((size_t)t.parameters->n_tensors, sizeof *sorted); /* of each tensor, its first parameter */
    for (int64_t i = t.parameters->n - 1; i >= 0; i--) sorted[t.parameters->list[i].tensor] = &t.parameters->list[i];
    qsort((void *)sorted, (size_t)t.parameters->n_tensors, sizeof *sorted, by_name);
    for (int64_t i = 0; i < t.parameters->n_tensors; i++) {
        const ls_parameter *p = sorted[i];
        const int64_t n = ls_slot_tensor_elements(&p->slot.tensor);
        const float *g = gradient + p->offset, *want = (const float *)samples->data + i * SAMPLES;
        const double norm = (double)((const float *)norms->data)[i];
        double squares = 0;
        for (int64_t k = 0; k < n; k++) squares += (double)g[k] * (double)g[k];
        if (norm == 0.0) {
            if (squares != 0.0) fail_msg("%s: %s has a gradient", name, p->slot.name);
            continue;
        }
        worst_norm = fmax(worst_norm, fabs(sqrt(squares) - norm) / norm);
        for (uint64_t k = 0; k < SAMPLES; k++) {
            const uint64_t index = ((k + 1) * UINT64_C(0x9E3779B97F4A7C15) >> 32) % (uint64_t)n;
            const double error = fabs((double)g[index] - (double)want[k]) / norm;
            if (error <= worst) continue;
            worst = error;
            worst_name = p->slot.name;
        }
    }
    print_message("%s: largest error %.2g of the tensor's norm (%s), of norms %.2g\n", name, worst, worst_name,
                  worst_norm);
    assert_true(worst < bound && worst_norm < bound);
    free((void *)sorted);
    free(gradient);
    batch_free(&b);
    ls_safetensors_close(file);
    free(bytes);
    trained_close(&t);
    test_device_close(device);
}

static void gradients_are_those_of_autograd(void **state) {
    (void)state;
    check_autograd("jamba-dense", 1e-4);
    check_autograd("jamba-moe", 1e-4);
    check_autograd("jamba-odd", 1e-4);
    check_autograd("mamba-small", 1e-4);
    check_autograd("mamba-odd", 1e-4);
    check_autograd("falcon-mamba-small", 1e-4);
    check_autograd("mamba2-small", 1e-4);
    check_autograd("mamba2-odd", 1e-4);
    check_autograd("nemotron-h-small", 1e-4);
    check_autograd("nemotron-h-odd", 1e-4);
    check_autograd("nemotron-h-moe", 1e-4);
    check_autograd("bamba-small", 1e-4);
    check_autograd("qwen3.5-small", 1e-4);
    check_autograd("qwen3.5-odd", 1e-4);
    check_autograd("qwen3.5-moe-small", 1e-4);
    check_autograd("qwen3-next-small", 1e-4);
    check_autograd("llama-small", 1e-4);
    check_autograd("llama-odd", 1e-4);
    check_autograd("mistral-small", 1e-4);
    check_autograd("mistral-window", 1e-4);
    check_autograd("qwen2-window", 1e-4);
    check_autograd("qwen2-small", 1e-4);
    check_autograd("qwen3-small", 1e-4);
    check_autograd("qwen3-moe-small", 1e-4);
    check_autograd("mixtral-small", 1e-4);
    check_autograd("granite-moe-small", 1e-4);
    check_autograd("granite-odd", 1e-4);
}

/* ---- bits ---- */

static const char *const names[] = {"jamba-dense",     "jamba-moe",         "jamba-odd",          "jamba-nobias",
                                    "mamba-small",     "mamba-odd",         "llama-odd",          "qwen3-small",
                                    "qwen3-moe-small", "qwen2-window",      "falcon-mamba-small", "mamba2-small",
                                    "mamba2-odd",      "nemotron-h-small",  "nemotron-h-odd",     "bamba-small",
                                    "qwen3.5-small",   "qwen3.5-odd",       "qwen3.5-moe-small",  "qwen3-next-small",
                                    "nemotron-h-moe",  "granite-moe-small", "granite-odd"};

/* Those of them, and one more, that the profile mma16 takes: all weights in bf16. */
static const char *const names_mma16[] = {"jamba-nobias",     "jamba-bf16",      "jamba-odd",          "llama-odd",
                                          "qwen3-small",      "qwen3-moe-small", "falcon-mamba-small", "mamba2-small",
                                          "nemotron-h-small", "bamba-small",     "qwen3.5-moe-small",  "qwen3.5-small",
                                          "qwen3-next-small", "nemotron-h-moe",  "granite-moe-small",  "granite-odd"};

static void trained_open_as(trained *t, const char *name, ls_dtype dtype, ls_profile profile) {
    ls_error err;
    trained_open(t, name);
    assert_ok(ls_model_set_profile(t->model, profile, dtype, &err), err);
}

static void check_log_probabilities(const char *name, ls_dtype dtype, ls_profile profile, uint64_t seed) {
    const int64_t lengths[] = {3, 70, 1, 17};
    ls_device *device = test_device(2, ls_isa_best());
    trained t;
    batch b;
    float logprob[91], scored[91], *gradient;
    ls_error err;
    trained_open_as(&t, name, dtype, profile);
    batch_make(&b, t.model, lengths, 4, seed);
    gradient = gradient_of(&t, &b, device, dtype, true, 0, 4, logprob);
    for (int64_t s = 0; s < 4; s++) {
        ls_score_item item = {.tokens = b.tokens + b.offsets[s], .n_tokens = lengths[s], .logprob = scored};
        const ls_score_opts opts = {.dtype = dtype, .batch = 1, .chunk = 5, .page_tokens = 16};
        assert_ok(ls_score(t.model, device, &opts, &item, 1, &err), err);
        for (int64_t i = 0; i + 1 < lengths[s]; i++)
            if (b.targets[b.offsets[s] + i] >= 0)
                assert_same_bits(&logprob[b.offsets[s] + i], &scored[i], 1);
            else
                assert_true(logprob[b.offsets[s] + i] == 0.0f);
    }
    free(gradient);
    batch_free(&b);
    trained_close(&t);
    test_device_close(device);
}

static void log_probabilities_are_those_of_scoring(void **state) {
    (void)state;
    for (size_t m = 0; m < sizeof names / sizeof names[0]; m++)
        for (ls_dtype dtype = LS_F32; dtype <= LS_BF16; dtype++)
            check_log_probabilities(names[m], dtype, LS_PROFILE_EXACT, 7 + m);
    for (size_t m = 0; m < sizeof names_mma16 / sizeof names_mma16[0]; m++)
        check_log_probabilities(names_mma16[m], LS_BF16, LS_PROFILE_MMA16, 7 + m);
}

/* The gradient of two sequences in the middle, whatever surrounds them. */
static void check_leaf(const char *name, ls_dtype dtype, ls_profile profile, int64_t length, uint64_t seed) {
    const int64_t lengths[] = {9, length, 5, 20, 2}, alone[] = {length, 5}, rows = length + 5;
    trained t;
    batch b, leaf;
    float *first = NULL;
    trained_open_as(&t, name, dtype, profile);
    batch_make(&b, t.model, lengths, 5, seed);
    batch_make(&leaf, t.model, alone, 2, 1);
    memcpy(leaf.tokens, b.tokens + 9, (size_t)rows * sizeof *b.tokens);
    memcpy(leaf.targets, b.targets + 9, (size_t)rows * sizeof *b.targets);
    memcpy(leaf.d_logprob, b.d_logprob + 9, (size_t)rows * sizeof *b.d_logprob);
    memcpy(leaf.d_entropy, b.d_entropy + 9, (size_t)rows * sizeof *b.d_entropy);
    for (int32_t threads = 1; threads <= 2; threads++)
        for (ls_isa isa = LS_ISA_GENERIC; isa < LS_ISA_COUNT; isa++)
            for (int64_t recompute = 0; recompute <= 4; recompute += recompute < 2 ? 1 : 2) /* 4: all of two layers */
                for (int packed = 0; packed < 2; packed++) {
                    ls_device *device;
                    float *g;
                    if (!ls_isa_available(isa)) continue;
                    device = test_device(threads, isa);
                    g = packed ? gradient_of(&t, &b, device, dtype, recompute, 1, 3, NULL)
                               : gradient_of(&t, &leaf, device, dtype, recompute, 0, 2, NULL);
                    if (first == NULL) {
                        first = g;
                    } else {
                        assert_same_bits(g, first, t.parameters->n_elements);
                        free(g);
                    }
                    test_device_close(device);
                }
    free(first);
    batch_free(&b);
    batch_free(&leaf);
    trained_close(&t);
}

static void a_leaf_is_one_computation(void **state) {
    (void)state;
    for (size_t m = 0; m < sizeof names / sizeof names[0]; m++)
        for (ls_dtype dtype = test_looks() ? LS_BF16 : LS_F32; dtype <= LS_BF16; dtype++)
            check_leaf(names[m], dtype, LS_PROFILE_EXACT, 70, 70 + m);
    check_leaf("jamba-nobias", LS_BF16, LS_PROFILE_MMA16, 70, 70);
    check_leaf("jamba-bf16", LS_BF16, LS_PROFILE_MMA16, 8, 71);
    check_leaf("jamba-odd", LS_BF16, LS_PROFILE_MMA16, 8, 72);
}

/* A leaf that goes through in parts, a forward each, has the bits of a leaf in one piece. The head takes rows in blocks
 * of 64, which hold other rows of a sequence in the one case than in the other. */
static void check_parts(const char *directory, ls_profile profile) {
    const int64_t lengths[] = {61, 90, 7, 200};
    ls_tape_opts opts = {LS_BF16, 200, 1, 0, 1.0f, 358, NULL, NULL, 0, 0};
    ls_device *device = test_device(2, ls_isa_best());
    float *together, *apart, *there;
    ls_tape *tape;
    trained t;
    batch b;
    ls_error err;
    int64_t bytes, waiting;
    trained_open_at(&t, directory);
    assert_ok(ls_model_set_profile(t.model, profile, LS_BF16, &err), err);
    batch_make(&b, t.model, lengths, 4, 33);
    bytes = t.parameters->n_elements * (int64_t)sizeof(float);
    together = gradient_of(&t, &b, device, LS_BF16, false, 0, 4, NULL);
    apart = malloc((size_t)bytes);
    there = to_device(device, NULL, bytes);
    waiting = opts.leaf_rows_max * t.model->config.hidden * (int64_t)sizeof(float);
    assert_ok(ls_memory_pin(device, (void **)&opts.leaf_dh, waiting, 1, "test", &err), err);
    assert_ok(ls_tape_create(&tape, t.parameters, device, &opts, &err), err);
    for (int64_t s = 0; s < 4; s++) {
        const int64_t row = b.offsets[s];
        assert_ok(ls_tape_forward(tape, b.tokens, b.offsets + s, 1, &err), err);
        const ls_leaf_part part = {.begin = 0,
                                   .end = 1,
                                   .targets = b.targets + row,
                                   .d_logprob = b.d_logprob + row,
                                   .d_entropy = b.d_entropy + row,
                                   .is_first = s == 0,
                                   .is_last = s == 3};
        assert_ok(ls_tape_backward(tape, &part, there, &err), err);
    }
    from_device(device, apart, there, bytes);
    for (int64_t i = 0; i < t.parameters->n; i++) {
        const ls_parameter *p = &t.parameters->list[i];
        if (count_bit_diffs(together + p->offset, apart + p->offset, p->n_elements) != 0)
            fail_msg("%s: %s: bits differ", ls_profile_name(profile), p->slot.name);
    }
    ls_memory_free(device, there);
    ls_tape_free(tape);
    ls_memory_unpin(device, opts.leaf_dh, waiting);
    free(together);
    free(apart);
    batch_free(&b);
    trained_close(&t);
    test_device_close(device);
}

/* The gradient of a recurrence whose workspace is cut. */
static void check_cuts(const char *name, int64_t step) {
    static const int64_t lengths[] = {61, 90, 7, 200, 1};
    const ls_tape_opts opts = {LS_F32, 359, 5, 0, 1.0f, 0, NULL, NULL, 0, 0};
    ls_device *device = test_device(2, ls_isa_best());
    float *whole, *cut, *there;
    ls_tape *tape;
    trained t;
    batch b;
    ls_error err;
    int64_t bytes;
    trained_open(&t, name);
    batch_make(&b, t.model, lengths, 5, 34);
    bytes = t.parameters->n_elements * (int64_t)sizeof(float);
    whole = gradient_of(&t, &b, device, LS_F32, false, 0, 5, NULL);
    cut = malloc((size_t)bytes);
    for (int64_t cut_bytes = 1; cut_bytes < 20 * step; cut_bytes += step) { /* from a sequence a call to all at once */
        there = to_device(device, NULL, bytes);
        assert_ok(ls_tape_create(&tape, t.parameters, device, &opts, &err), err);
        tape->cut_bytes = cut_bytes;
        assert_ok(ls_tape_forward(tape, b.tokens, b.offsets, 5, &err), err);
        const ls_leaf_part part = {.begin = 0,
                                   .end = 5,
                                   .targets = b.targets,
                                   .d_logprob = b.d_logprob,
                                   .d_entropy = b.d_entropy,
                                   .is_first = true,
                                   .is_last = true};
        assert_ok(ls_tape_backward(tape, &part, there, &err), err);
        from_device(device, cut, there, bytes);
        assert_int_equal(count_bit_diffs(whole, cut, t.parameters->n_elements), 0);
        ls_memory_free(device, there);
        ls_tape_free(tape);
    }
    free(whole);
    free(cut);
    batch_free(&b);
    trained_close(&t);
    test_device_close(device);
}

static void cuts_of_recurrences_carry_no_bit(void **state) {
    (void)state;
    check_cuts("mamba2-small", 200000);
    check_cuts("qwen3.5-small", 20000);
}

static void a_leaf_in_parts_is_one(void **state) {
    char untied[] = "/tmp/ls-test-XXXXXX", tied[] = "/tmp/ls-test-XXXXXX";
    (void)state;
    fresh_model(untied, FRESH_MAMBA("false"));
    fresh_model(tied, FRESH_MAMBA("true"));
    for (int profile = LS_PROFILE_EXACT; profile <= LS_PROFILE_MMA16; profile++) {
        check_parts(untied, (ls_profile)profile);
        check_parts(tied, (ls_profile)profile);
    }
    remove_model(untied);
    remove_model(tied);
}

/* ---- the head's gradient in mma16, written out ---- */

/* dw[v][k] of rows with a target, those of each sequence padded to whole steps. */
static float chain_over_rows(const batch *b, const float *dlogits, const uint16_t *x, int64_t vocab, int64_t hidden,
                             int64_t v, int64_t k) {
    uint32_t acc = 0;
    int64_t row = 0; /* of those with a target */
    float out;
    for (int64_t s = 0; s < b->n; s++) {
        uint16_t dy[256] = {0}, in[256] = {0};
        int64_t n = 0;
        for (int64_t r = b->offsets[s]; r < b->offsets[s + 1]; r++) {
            if (b->targets[r] < 0) continue;
            dy[n] = ls_f32_to_bf16(dlogits[row++ * vocab + v]);
            in[n++] = x[r * hidden + k];
        }
        for (int64_t at = 0; at < n; at += 16) acc = oracle_step(acc, dy + at, in + at, oracle_right);
    }
    memcpy(&out, &acc, sizeof out);
    return out;
}

/* What the head reads: the last norm of the residual stream behind the last half, in bf16. */
static uint16_t *head_input(const trained *t, const batch *b, ls_device *device, ls_device *cpu) {
    const ls_model_config *c = &t->model->config;
    const int64_t rows = b->offsets[b->n], hidden = c->hidden;
    const ls_tape_opts opts = {LS_BF16, rows, b->n, LS_RECOMPUTE_ALL, 1.0f, 0, NULL, NULL, 0, 0};
    float *h = malloc((size_t)(rows * hidden) * sizeof *h), *w = malloc((size_t)hidden * sizeof *w);
    uint16_t *x = malloc((size_t)(rows * hidden) * sizeof *x);
    const ls_rmsnorm_args norm = {h, LS_F32, hidden, w, c->rms_eps, x, LS_BF16, hidden, rows, hidden};
    ls_tape *tape;
    ls_error err;
    assert_ok(ls_tape_create(&tape, t->parameters, device, &opts, &err), err);
    assert_ok(ls_tape_forward(tape, b->tokens, b->offsets, b->n, &err), err);
    assert_ok(ls_tape_residual(tape, 2 * (int64_t)c->n_layers, 0, rows, h, &err), err);
    from_device(test_home(), w, t->model->final_norm, hidden * (int64_t)sizeof *w);
    assert_ok(ls_rmsnorm(cpu, &norm, &err), err);
    ls_tape_free(tape);
    free(w);
    free(h);
    return x;
}

/* Gradients of the logits of all rows with a target, one behind the other. */
static float *logit_gradients(const trained *t, const batch *b, const uint16_t *x, ls_device *cpu) {
    const int64_t vocab = t->model->config.vocab, hidden = t->model->config.hidden, rows = b->offsets[b->n];
    const ls_parameter *head = ls_parameter_of_matrix(t->parameters, &t->model->head);
    uint16_t *w = malloc((size_t)(vocab * hidden) * sizeof *w);
    float *logits = calloc((size_t)(rows * vocab), sizeof *logits),
          *of_rows = calloc((size_t)rows * 5, sizeof *of_rows);
    int64_t *targets = calloc((size_t)rows, sizeof *targets), n = 0;
    float *lse = of_rows, *entropy = of_rows + rows, *logprob = of_rows + 2 * rows, *d = of_rows + 3 * rows,
          *de = of_rows + 4 * rows;
    ls_error err;
    from_device(test_home(), w, ls_parameter_value(head), vocab * hidden * (int64_t)sizeof *w);
    for (int64_t r = 0; r < rows; r++) {
        if (b->targets[r] < 0) continue;
        for (int64_t v = 0; v < vocab; v++) logits[n * vocab + v] = tb_dot(x + r * hidden, w + v * hidden, hidden);
        d[n] = b->d_logprob[r];
        de[n] = b->d_entropy[r];
        targets[n++] = b->targets[r];
    }
    const ls_logprob_args forward = {.logits = logits,
                                     .dtype = LS_F32,
                                     .rows = n,
                                     .vocab = vocab,
                                     .row_stride = vocab,
                                     .targets = targets,
                                     .ignore_index = -1,
                                     .logprob = logprob,
                                     .lse = lse,
                                     .entropy = entropy};
    const ls_logprob_backward_args backward = {.logits = logits,
                                               .rows = n,
                                               .vocab = vocab,
                                               .row_stride = vocab,
                                               .targets = targets,
                                               .ignore_index = -1,
                                               .lse = lse,
                                               .entropy = entropy,
                                               .d_logprob = d,
                                               .d_entropy = de,
                                               .d_logits = logits,
                                               .d_stride = vocab};
    assert_ok(ls_logprob(cpu, &forward, &err), err);
    assert_ok(ls_logprob_backward(cpu, &backward, &err), err);
    free(targets);
    free(of_rows);
    free(w);
    return logits;
}

static void the_heads_gradient_is_the_textbooks(void **state) {
    const int64_t lengths[] = {61, 90, 7};
    char directory[] = "/tmp/ls-test-XXXXXX";
    ls_device *device = test_device(2, ls_isa_best()), *cpu;
    const ls_parameter *head;
    uint16_t *x;
    float *gradient, *dlogits;
    trained t;
    batch b;
    ls_error err;
    (void)state;
    assert_ok(ls_device_open_cpu(&cpu, 1, ls_isa_best(), &err), err);
    fresh_model(directory, FRESH_MAMBA("false"));
    trained_open_at(&t, directory);
    assert_ok(ls_model_set_profile(t.model, LS_PROFILE_MMA16, LS_BF16, &err), err);
    batch_make(&b, t.model, lengths, 3, 44);
    head = ls_parameter_of_matrix(t.parameters, &t.model->head);
    gradient = gradient_of(&t, &b, device, LS_BF16, true, 0, 3, NULL);
    x = head_input(&t, &b, device, cpu);
    dlogits = logit_gradients(&t, &b, x, cpu);
    for (int64_t v = 0; v < t.model->config.vocab; v++)
        for (int64_t k = 0; k < t.model->config.hidden; k++) {
            const float want = chain_over_rows(&b, dlogits, x, t.model->config.vocab, t.model->config.hidden, v, k);
            assert_same_bits(&want, gradient + head->offset + v * t.model->config.hidden + k, 1);
        }
    free(dlogits);
    free(x);
    free(gradient);
    batch_free(&b);
    trained_close(&t);
    remove_model(directory);
    ls_device_close(cpu);
    test_device_close(device);
}

/* Sums over rows of mma16 cut at 25 bits and round dy to bf16, 8 bits, half of them away from where they were: an
 * element is off by some of 2^-9 of the sum of magnitudes, and so is each product on the way back. What is compared is
 * the gradient of every tensor as a vector: its error against exact's is a few percent, mostly what the forward's own
 * rounding moved, which is bounded by how far exact in bf16 is from exact in f32. The gradient of attention rounds
 * three operands more, dout, probabilities and ds, by 2^-9 of each at most. */
static void gradients_of_mma16_are_near_those_of_exact(void **state) {
    const int64_t lengths[] = {40, 17};
    ls_device *device = test_device(2, ls_isa_best());
    (void)state;
    for (size_t m = 0; m < sizeof names_mma16 / sizeof names_mma16[0]; m++) {
        float *g[3];
        double worst[2] = {0, 0};
        trained t;
        batch b;
        ls_error err;
        trained_open(&t, names_mma16[m]);
        batch_make(&b, t.model, lengths, 2, 5 + m);
        g[0] = gradient_of(&t, &b, device, LS_F32, true, 0, 2, NULL);
        g[1] = gradient_of(&t, &b, device, LS_BF16, true, 0, 2, NULL);
        assert_ok(ls_model_set_profile(t.model, LS_PROFILE_MMA16, LS_BF16, &err), err);
        g[2] = gradient_of(&t, &b, device, LS_BF16, true, 0, 2, NULL);
        for (int64_t i = 0; i < t.parameters->n; i++) {
            const ls_parameter *p = &t.parameters->list[i];
            double squares = 0, off[2] = {0, 0};
            for (int64_t k = p->offset; k < p->offset + p->n_elements; k++) {
                squares += (double)g[0][k] * (double)g[0][k];
                for (int a = 0; a < 2; a++) off[a] += pow((double)g[a + 1][k] - (double)g[0][k], 2);
            }
            for (int a = 0; a < 2; a++) worst[a] = fmax(worst[a], sqrt(off[a] / squares));
        }
        print_message(
            "%s: against exact in f32, tensors' gradients are off by at most %.2g of their norm in exact with "
            "bf16, %.2g in mma16\n",
            names_mma16[m], worst[0], worst[1]);
        assert_true(worst[1] > 0 && worst[1] < 2.0 * worst[0] + 3 * 0x1p-9);
        for (int a = 0; a < 3; a++) free(g[a]);
        batch_free(&b);
        trained_close(&t);
    }
    test_device_close(device);
}

static uint64_t digest_of(const trained *t) {
    uint64_t digest;
    ls_error err;
    assert_ok(ls_parameters_digest(t->parameters, &digest, &err), err);
    return digest;
}

static void publish(const trained *t) {
    ls_error err;
    assert_ok(ls_parameters_publish(t->parameters, &err), err);
    assert_ok(ls_device_wait(test_home(), &err), err);
}

/* Publishing what was read changes nothing; publishing another master changes that weight and the digest. */
static void publishing_is_one_rounding(void **state) {
    const int64_t lengths[] = {40};
    ls_device *device = test_device(1, ls_isa_best());
    (void)state;
    for (size_t m = 0; m < sizeof names / sizeof names[0]; m++) {
        float before[40], after[40];
        uint64_t digest;
        ls_error err;
        trained t;
        batch b;
        trained_open(&t, names[m]);
        batch_make(&b, t.model, lengths, 1, m);
        digest = digest_of(&t);
        free(gradient_of(&t, &b, device, LS_F32, true, 0, 1, before));
        publish(&t);
        assert_true(digest_of(&t) == digest);
        free(gradient_of(&t, &b, device, LS_F32, true, 0, 1, after));
        assert_same_bits(before, after, 40);
        for (int64_t i = 0; i < t.parameters->n; i++) {
            float *w = &t.parameters->list[i].master[0], kept, moved;
            from_device(test_home(), &kept, w, sizeof kept);
            moved = kept + 0.25f;
            assert_ok(ls_memory_write(test_home(), w, &moved, sizeof moved, &err), err);
            publish(&t);
            assert_false(digest_of(&t) == digest);
            assert_ok(ls_memory_write(test_home(), w, &kept, sizeof kept, &err), err);
        }
        publish(&t);
        assert_true(digest_of(&t) == digest);
        batch_free(&b);
        trained_close(&t);
    }
    test_device_close(device);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_are_those_of_autograd),
        cmocka_unit_test(log_probabilities_are_those_of_scoring),
        cmocka_unit_test(a_leaf_is_one_computation),
        cmocka_unit_test(a_leaf_in_parts_is_one),
        cmocka_unit_test(cuts_of_recurrences_carry_no_bit),
        cmocka_unit_test(the_heads_gradient_is_the_textbooks),
        cmocka_unit_test(gradients_of_mma16_are_near_those_of_exact),
        cmocka_unit_test(publishing_is_one_rounding),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
