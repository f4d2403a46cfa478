/* A chain of most ops through a device that sees memory through the door alone: what a new back end runs first beside
 * the CPU (docs/guide/adding-a-back-end.md). Arguments, weights and the host's data are spoilt as soon as a call has
 * returned, and memory is released before the wait, as op/backend.h allows. */
#ifndef LS_TESTS_OP_CHAIN_H
#define LS_TESTS_OP_CHAIN_H

#include "op/adamw.h"
#include "op/attention_backward.h"
#include "op/elementwise.h"
#include "op/gather.h"
#include "op/logprob.h"
#include "op/moe.h"
#include "op/op_case.h"
#include "op/rmsnorm.h"
#include "op/sample.h"
#include "op/weight.h"

/* A buffer with the host's bytes; the host's own are spoilt as soon as the write has been called. */
static inline void *chain_put(ls_device *device, const void *host, int64_t bytes, const char *what) {
    void *copy = op_alloc(bytes), *memory;
    ls_error err;
    memcpy(copy, host, (size_t)bytes);
    assert_ok(ls_memory_alloc(device, &memory, bytes, 1, what, &err), err);
    assert_ok(ls_memory_write(device, memory, copy, bytes, &err), err);
    memset(copy, OP_POISON, (size_t)bytes);
    free(copy);
    return memory;
}

static inline void *chain_space(ls_device *device, int64_t count, int64_t elem_bytes, const char *what) {
    void *memory;
    ls_error err;
    assert_ok(ls_memory_alloc(device, &memory, count, elem_bytes, what, &err), err);
    return memory;
}

enum {
    CHAIN_ROWS = 12,
    CHAIN_DIM = 48,
    CHAIN_WIDE = 80,
    CHAIN_VOCAB = 41,
    CHAIN_EXPERTS = 6,
    CHAIN_TOP = 2,
    CHAIN_PICKS = CHAIN_ROWS * CHAIN_TOP,
    CHAIN_HEADS = 3,
    CHAIN_HEAD = 16
};

typedef struct chain_results {
    float h[CHAIN_ROWS * CHAIN_DIM], acc[CHAIN_ROWS * CHAIN_DIM], logits[CHAIN_ROWS * CHAIN_VOCAB], logprob[CHAIN_ROWS],
        dq[CHAIN_ROWS * CHAIN_DIM], dk[CHAIN_ROWS * CHAIN_DIM];
    float squares[1];
    int64_t offsets[CHAIN_EXPERTS + 1], row[CHAIN_PICKS], token[CHAIN_ROWS], differs;
    uint16_t half[CHAIN_ROWS * CHAIN_DIM];
} chain_results;

typedef struct chain {
    ls_device *device;
    uint64_t seed;
    void *memory[64];
    int64_t n;
    ls_error err;
} chain;

static inline void *chain_keep(chain *c, void *memory) {
    assert_true(c->n < OP_COUNT(c->memory));
    return c->memory[c->n++] = memory;
}

static inline float *chain_values(chain *c, int64_t n, const char *what) {
    float *host = op_alloc(n * 4), *memory;
    for (int64_t i = 0; i < n; i++) host[i] = op_plain(&c->seed);
    memory = chain_keep(c, chain_put(c->device, host, n * 4, what));
    free(host);
    return memory;
}

static inline void *chain_room(chain *c, int64_t count, int64_t elem_bytes, const char *what) {
    return chain_keep(c, chain_space(c->device, count, elem_bytes, what));
}

/* y [m][n] = x [m][k] times random weights, its arguments and its weight spoilt as soon as it has been called. */
static inline float *chain_product(chain *c, const float *x, int64_t m, int64_t n, int64_t k, const char *what) {
    float *w = chain_values(c, n * k, "weights as stored"), *y = chain_room(c, m * n, 4, what);
    ls_gemm_weight weight;
    ls_gemm_args args = {x, LS_F32, k, &weight, NULL, y, LS_F32, n, m, LS_PROFILE_EXACT, NULL, false};
    assert_ok(ls_gemm_pack(c->device, &weight, w, LS_F32, n, k, &c->err), c->err);
    chain_keep(c, weight.panels);
    assert_ok(ls_gemm(c->device, &args, &c->err), c->err);
    memset(&args, OP_POISON, sizeof args);
    memset(&weight, OP_POISON, sizeof weight);
    return y;
}

#define CALL(name, ...) assert_ok(ls_##name(c->device, &(ls_##name##_args){__VA_ARGS__}, &c->err), c->err)

/* Embedding, norm, gate, residual; h of the chain. */
static inline float *chain_dense(chain *c, chain_results *out) {
    int32_t host_tokens[CHAIN_ROWS];
    int32_t *tokens;
    float *h = chain_room(c, CHAIN_ROWS * CHAIN_DIM, 4, "h");
    float *normed = chain_room(c, CHAIN_ROWS * CHAIN_DIM, 4, "normed");
    float *gated = chain_room(c, CHAIN_ROWS * CHAIN_WIDE, 4, "gated");
    float *sum = chain_room(c, CHAIN_ROWS * CHAIN_DIM, 4, "sum"), *gate, *up, *y;
    const float *table = chain_values(c, CHAIN_VOCAB * CHAIN_DIM, "table"), *w = chain_values(c, CHAIN_DIM, "norm");
    uint16_t *half = chain_room(c, CHAIN_ROWS * CHAIN_DIM, 2, "half");
    for (int64_t i = 0; i < CHAIN_ROWS; i++) host_tokens[i] = (int32_t)(test_random(&c->seed) % CHAIN_VOCAB);
    tokens = chain_keep(c, chain_put(c->device, host_tokens, sizeof host_tokens, "tokens"));
    CALL(embed, table, LS_F32, CHAIN_VOCAB, CHAIN_DIM, tokens, h, LS_F32, CHAIN_ROWS);
    CALL(rmsnorm, h, LS_F32, CHAIN_DIM, w, 1e-6f, normed, LS_F32, CHAIN_DIM, CHAIN_ROWS, CHAIN_DIM);
    gate = chain_product(c, normed, CHAIN_ROWS, CHAIN_WIDE, CHAIN_DIM, "gate");
    up = chain_product(c, normed, CHAIN_ROWS, CHAIN_WIDE, CHAIN_DIM, "up");
    CALL(swiglu, gate, up, gated, LS_F32, CHAIN_ROWS, CHAIN_WIDE);
    y = chain_product(c, gated, CHAIN_ROWS, CHAIN_DIM, CHAIN_WIDE, "y");
    CALL(residual, h, y, CHAIN_ROWS, CHAIN_DIM, sum);
    CALL(weight_cast, sum, CHAIN_ROWS * CHAIN_DIM, half, LS_BF16);
    assert_ok(ls_memory_read(c->device, out->h, sum, sizeof out->h, &c->err), c->err);
    assert_ok(ls_memory_read(c->device, out->half, half, sizeof out->half, &c->err), c->err);
    return sum;
}

/* Experts by ranges that only the device knows. */
static inline void chain_experts(chain *c, const float *h, chain_results *out) {
    float *routing = chain_product(c, h, CHAIN_ROWS, CHAIN_EXPERTS, CHAIN_DIM, "routing");
    float *picked_weight = chain_room(c, CHAIN_PICKS, 4, "picked weight");
    float *weight = chain_room(c, CHAIN_PICKS, 4, "weight"), *acc = chain_room(c, CHAIN_ROWS * CHAIN_DIM, 4, "acc");
    float *picked = chain_room(c, CHAIN_PICKS * CHAIN_DIM, 4, "picked");
    float *y = chain_room(c, CHAIN_PICKS * CHAIN_DIM, 4, "expert output");
    int32_t *expert = chain_room(c, CHAIN_PICKS, 4, "expert");
    int64_t *pick = chain_room(c, CHAIN_PICKS, 8, "pick"), *row = chain_room(c, CHAIN_PICKS, 8, "row");
    int64_t *place = chain_room(c, CHAIN_PICKS, 8, "place");
    int64_t *offsets = chain_room(c, CHAIN_EXPERTS + 1, 8, "offsets");
    CALL(moe_route, routing, CHAIN_ROWS, CHAIN_EXPERTS, CHAIN_TOP, expert, weight);
    CALL(moe_place, expert, CHAIN_ROWS, CHAIN_EXPERTS, CHAIN_TOP, pick, row, place, offsets);
    CALL(gather, h, row, picked, CHAIN_ROWS, CHAIN_DIM * 4, CHAIN_PICKS, CHAIN_DIM * 4, CHAIN_DIM * 4);
    CALL(gather, weight, pick, picked_weight, CHAIN_PICKS, 4, CHAIN_PICKS, 4, 4);
    for (int64_t e = 0; e < CHAIN_EXPERTS; e++) {
        const float *w = chain_values(c, CHAIN_DIM * CHAIN_DIM, "expert");
        ls_gemm_weight packed;
        assert_ok(ls_gemm_pack(c->device, &packed, w, LS_F32, CHAIN_DIM, CHAIN_DIM, &c->err), c->err);
        chain_keep(c, packed.panels);
        CALL(gemm, picked, LS_F32, CHAIN_DIM, &packed, NULL, y, LS_F32, CHAIN_DIM, CHAIN_PICKS, LS_PROFILE_EXACT,
             offsets + e, false);
        CALL(moe_combine, y, row, picked_weight, acc, CHAIN_PICKS, CHAIN_DIM, offsets + e);
    }
    assert_ok(ls_memory_read(c->device, out->acc, acc, sizeof out->acc, &c->err), c->err);
    assert_ok(ls_memory_read(c->device, out->offsets, offsets, sizeof out->offsets, &c->err), c->err);
    assert_ok(ls_memory_read(c->device, out->row, row, sizeof out->row, &c->err), c->err);
}

/* Logits, their log-probabilities, a draw, and the comparison of two regions. */
static inline void chain_head(chain *c, const float *h, chain_results *out) {
    ls_sampling host_sampling[CHAIN_ROWS];
    ls_draw host_draws[CHAIN_ROWS];
    int64_t host_targets[CHAIN_ROWS];
    float *logits = chain_product(c, h, CHAIN_ROWS, CHAIN_VOCAB, CHAIN_DIM, "logits");
    float *logprob = chain_room(c, CHAIN_ROWS, 4, "logprob");
    float *processed = chain_room(c, CHAIN_ROWS * CHAIN_VOCAB, 4, "processed");
    float *squares = chain_room(c, 1, 4, "squares");
    int64_t *kept = chain_room(c, CHAIN_ROWS, 8, "kept"), *token = chain_room(c, CHAIN_ROWS, 8, "token");
    int64_t *differs = chain_room(c, 1, 8, "differs");
    int32_t *sort_space = chain_room(c, 2 * CHAIN_ROWS * CHAIN_VOCAB, 4, "sort space");
    for (int64_t r = 0; r < CHAIN_ROWS; r++) {
        host_targets[r] = (int64_t)(test_random(&c->seed) % CHAIN_VOCAB);
        host_sampling[r] = (ls_sampling){0.8f, r % 3 == 0 ? 5 : 0, 0.9f, 0.0f, 77};
        host_draws[r] = (ls_draw){1, (uint32_t)r, 9};
    }
    const int64_t *targets = chain_keep(c, chain_put(c->device, host_targets, sizeof host_targets, "targets"));
    const ls_sampling *sampling = chain_keep(c, chain_put(c->device, host_sampling, sizeof host_sampling, "sampling"));
    const ls_draw *draws = chain_keep(c, chain_put(c->device, host_draws, sizeof host_draws, "draws"));
    CALL(logprob, .logits = logits, .rows = CHAIN_ROWS, .vocab = CHAIN_VOCAB, .row_stride = CHAIN_VOCAB,
         .targets = targets, .ignore_index = -100, .logprob = logprob);
    CALL(process, logits, CHAIN_ROWS, CHAIN_VOCAB, sampling, NULL, processed, kept, sort_space);
    CALL(sample, processed, CHAIN_ROWS, CHAIN_VOCAB, kept, sampling, draws, token);
    CALL(squares, .x = logits, .n = CHAIN_ROWS * CHAIN_VOCAB, .blocks = squares);
    CALL(differs, logits, processed, CHAIN_ROWS, CHAIN_VOCAB * 4, CHAIN_VOCAB * 4, differs);
    assert_ok(ls_memory_read(c->device, out->logits, logits, sizeof out->logits, &c->err), c->err);
    assert_ok(ls_memory_read(c->device, out->logprob, logprob, sizeof out->logprob, &c->err), c->err);
    assert_ok(ls_memory_read(c->device, out->token, token, sizeof out->token, &c->err), c->err);
    assert_ok(ls_memory_read(c->device, out->squares, squares, sizeof out->squares, &c->err), c->err);
    assert_ok(ls_memory_read(c->device, &out->differs, differs, sizeof out->differs, &c->err), c->err);
}

/* An op with a workspace, whose size makes the device wait in the middle of the chain. */
static inline void chain_attention(chain *c, chain_results *out) {
    const ls_span host_spans[] = {{0, 7, 0, 0, 0}, {7, 5, 0, 1, 0}};
    const ls_span *spans = chain_keep(c, chain_put(c->device, host_spans, sizeof host_spans, "spans"));
    const float *q = chain_values(c, CHAIN_ROWS * CHAIN_DIM, "q"), *k = chain_values(c, CHAIN_ROWS * CHAIN_DIM, "k");
    const float *v = chain_values(c, CHAIN_ROWS * CHAIN_DIM, "v");
    const float *dout = chain_values(c, CHAIN_ROWS * CHAIN_DIM, "dout");
    float *dq = chain_room(c, CHAIN_ROWS * CHAIN_DIM, 4, "dq"), *dk = chain_room(c, CHAIN_ROWS * CHAIN_DIM, 4, "dk");
    float *dv = chain_room(c, CHAIN_ROWS * CHAIN_DIM, 4, "dv");
    CALL(attention_backward, .q = q, .k = k, .v = v, .dtype = LS_F32, .q_stride = CHAIN_DIM, .kv_stride = CHAIN_DIM,
         .dout = dout, .dout_stride = CHAIN_DIM, .dq = dq, .dk = dk, .dv = dv, .dq_stride = CHAIN_DIM,
         .dkv_stride = CHAIN_DIM, .rows = CHAIN_ROWS, .n_heads = CHAIN_HEADS, .n_kv_heads = CHAIN_HEADS,
         .head_dim = CHAIN_HEAD, .scale = 0.25f, .spans = spans, .n_spans = 2);
    assert_ok(ls_memory_read(c->device, out->dq, dq, sizeof out->dq, &c->err), c->err);
    assert_ok(ls_memory_read(c->device, out->dk, dk, sizeof out->dk, &c->err), c->err);
}

/* All calls of the chain and the releases of what they use; the results are there after the next wait. */
static inline void chain_call(ls_device *device, uint64_t seed, chain_results *out) {
    chain *c = &(chain){.device = device, .seed = seed};
    const float *h;
    memset(out, 0, sizeof *out);
    h = chain_dense(c, out);
    chain_experts(c, h, out);
    chain_head(c, h, out);
    chain_attention(c, out);
    for (int64_t i = 0; i < c->n; i++) ls_memory_free(device, c->memory[i]);
}

#undef CALL
#endif
