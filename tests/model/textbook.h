/* A whole forward in the profile mma16, written beside the one of the library: it reads tensors from the file by name,
 * multiplies with the step of num/mma16_oracle.h, and says on its own what is rounded where. Norms, convolution, scan,
 * attention and routing, which are those of the profile exact, are single calls on a CPU. One sequence, from its
 * first token on. */
#ifndef LS_TESTS_TEXTBOOK_H
#define LS_TESTS_TEXTBOOK_H

#include <math.h>

#include "fixture.h"
#include "num/expf.h"
#include "num/half.h"
#include "num/mma16_oracle.h"
#include "op/attention.h"
#include "op/conv1d.h"
#include "op/moe.h"
#include "op/rmsnorm.h"
#include "op/scan.h"

enum { TEXTBOOK_PAGE = 16, TEXTBOOK_ARRAYS = 512 };

typedef struct textbook {
    const ls_model_config *c;
    const ls_tensor_names *names;
    ls_device *cpu; /* its memory is the host's */
    ls_safetensors *file;
    char *bytes;
    int64_t n; /* tokens */
    ls_span span;
    void *arrays[TEXTBOOK_ARRAYS]; /* all that was allocated, released together */
    int n_arrays;
} textbook;

static inline void *tb_alloc(textbook *t, int64_t count, int64_t bytes) {
    void *p = aligned_alloc(64, (size_t)((count * bytes + 64) / 64 * 64));
    assert_non_null(p);
    assert_true(t->n_arrays < TEXTBOOK_ARRAYS);
    memset(p, 0, (size_t)(count * bytes));
    return t->arrays[t->n_arrays++] = p;
}
static inline float *tb_floats(textbook *t, int64_t count) { return tb_alloc(t, count, 4); }
static inline uint16_t *tb_halves(textbook *t, int64_t count) { return tb_alloc(t, count, 2); }

/* ---- tensors ---- */

static inline const ls_tensor_view *tb_find(const textbook *t, int64_t layer, const char *prefix, const char *name) {
    char full[160] = "";
    const ls_tensor_view *view;
    if (layer >= 0) snprintf(full, sizeof full, "%s%lld.", t->names->layers, (long long)layer);
    snprintf(full + strlen(full), sizeof full - strlen(full), "%s%s", prefix, name);
    view = ls_safetensors_find(t->file, full);
    if (view == NULL) fail_msg("no tensor %s", full);
    return view;
}

static inline const uint16_t *tb_matrix(const textbook *t, int64_t layer, const char *prefix, const char *name) {
    const ls_tensor_view *view = tb_find(t, layer, prefix, name);
    assert_int_equal(view->dtype, LS_ST_BF16);
    return view->data;
}

static inline float *tb_vector(textbook *t, int64_t layer, const char *prefix, const char *name) {
    const ls_tensor_view *view = tb_find(t, layer, prefix, name);
    float *out = tb_floats(t, view->n_elements);
    for (int64_t i = 0; i < view->n_elements; i++)
        out[i] = view->dtype == LS_ST_F32 ? ((const float *)view->data)[i]
                                          : ls_bf16_to_f32(((const uint16_t *)view->data)[i]);
    return out;
}

/* ---- what a layer is made of ---- */

static inline float tb_dot(const uint16_t *x, const uint16_t *w, int64_t k) {
    uint32_t acc = 0;
    float out;
    for (int64_t at = 0; at < k; at += 16) {
        uint16_t a[16] = {0}, b[16] = {0};
        const int64_t left = k - at < 16 ? k - at : 16;
        memcpy(a, x + at, (size_t)left * 2);
        memcpy(b, w + at, (size_t)left * 2);
        acc = oracle_step(acc, a, b, oracle_right);
    }
    memcpy(&out, &acc, 4);
    return out;
}

/* [rows][n] = x [rows][k] of bf16 by w [n][k]. */
static inline float *tb_product(textbook *t, const uint16_t *x, int64_t rows, const uint16_t *w, int64_t n, int64_t k,
                                const float *bias) {
    float *out = tb_floats(t, rows * n);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < n; i++) {
            const float dot = tb_dot(x + r * k, w + i * k, k);
            out[r * n + i] = bias != NULL ? dot + bias[i] : dot;
        }
    return out;
}

/* The first `columns` of each row, rounded. */
static inline uint16_t *tb_round(textbook *t, const float *x, int64_t stride, int64_t columns) {
    uint16_t *out = tb_halves(t, t->n * columns);
    for (int64_t r = 0; r < t->n; r++)
        for (int64_t i = 0; i < columns; i++) out[r * columns + i] = ls_f32_to_bf16(x[r * stride + i]);
    return out;
}

static inline void *tb_norm(textbook *t, const float *x, int64_t stride, const float *w, int64_t dim, ls_dtype to) {
    void *y = tb_alloc(t, t->n * dim, ls_dtype_bytes(to));
    const ls_rmsnorm_args args = {x, LS_F32, stride, w, t->c->rms_eps, y, to, dim, t->n, dim};
    ls_error err;
    assert_ok(ls_rmsnorm(t->cpu, &args, &err), err);
    return y;
}

/* ---- mixers ---- */

/* Queries, keys or values: rounded products. */
static inline uint16_t *tb_projected(textbook *t, int64_t layer, const char *name, const uint16_t *x, int64_t n) {
    const uint16_t *w = tb_matrix(t, layer, t->names->attention, name);
    return tb_round(t, tb_product(t, x, t->n, w, n, t->c->hidden, NULL), n, n);
}

static inline float *tb_attention(textbook *t, int64_t layer, const uint16_t *x) {
    const ls_model_config *c = t->c;
    const char *prefix = t->names->attention;
    const int64_t q = (int64_t)c->n_heads * c->head_dim, kv = (int64_t)c->n_kv_heads * c->head_dim;
    const int64_t pages = (t->n + TEXTBOOK_PAGE - 1) / TEXTBOOK_PAGE,
                  page = ls_kv_page_bytes(c->n_kv_heads, c->head_dim, TEXTBOOK_PAGE, LS_BF16);
    int32_t *table = tb_alloc(t, pages, 4);
    uint16_t *heads = tb_halves(t, t->n * q);
    const ls_attention_args args = {.q = tb_projected(t, layer, "q_proj.weight", x, q),
                                    .k = tb_projected(t, layer, "k_proj.weight", x, kv),
                                    .v = tb_projected(t, layer, "v_proj.weight", x, kv),
                                    .out = heads,
                                    .dtype = LS_BF16,
                                    .q_stride = q,
                                    .kv_stride = kv,
                                    .out_stride = q,
                                    .n_heads = c->n_heads,
                                    .n_kv_heads = c->n_kv_heads,
                                    .head_dim = c->head_dim,
                                    .scale = 1.0f / sqrtf((float)c->head_dim),
                                    .page_tokens = TEXTBOOK_PAGE,
                                    .pages = {tb_alloc(t, pages, page), page, pages},
                                    .spans = &t->span,
                                    .n_spans = 1,
                                    .tables = table,
                                    .n_tables = pages,
                                    .rows = t->n,
                                    .profile = LS_PROFILE_MMA16};
    ls_error err;
    for (int64_t i = 0; i < pages; i++) table[i] = (int32_t)i;
    assert_ok(ls_attention(t->cpu, &args, &err), err);
    return tb_product(t, heads, t->n, tb_matrix(t, layer, prefix, "o_proj.weight"), c->hidden, q, NULL);
}

static inline float *tb_convolution(textbook *t, int64_t layer, const float *uz) {
    const ls_model_config *c = t->c;
    const int64_t dim = c->d_inner, taps = c->d_conv, window = (taps - 1) * dim * 2;
    const float *stored = tb_vector(t, layer, t->names->mamba, "conv1d.weight");
    float *w = tb_floats(t, taps * dim), *u = tb_floats(t, t->n * dim);
    const ls_conv1d_args args = {.x = uz,
                                 .x_dtype = LS_F32,
                                 .y_dtype = LS_F32,
                                 .state_dtype = LS_BF16,
                                 .x_stride = 2 * dim,
                                 .w = w,
                                 .bias = c->conv_bias ? tb_vector(t, layer, t->names->mamba, "conv1d.bias") : NULL,
                                 .y = u,
                                 .y_stride = dim,
                                 .rows = t->n,
                                 .dim = dim,
                                 .d_conv = taps,
                                 .state = {tb_alloc(t, 1, window), (window + 63) / 64 * 64, 1},
                                 .spans = &t->span,
                                 .n_spans = 1};
    ls_error err;
    for (int64_t d = 0; d < dim; d++)
        for (int64_t k = 0; k < taps; k++) w[k * dim + d] = stored[d * taps + k];
    assert_ok(ls_conv1d(t->cpu, &args, &err), err);
    return u;
}

static inline float *tb_mamba(textbook *t, int64_t layer, const uint16_t *x) {
    const ls_model_config *c = t->c;
    const char *prefix = t->names->mamba;
    const int64_t dim = c->d_inner, rank = c->dt_rank, states = c->d_state, narrow = rank + 2 * states;
    const float *in_bias = c->proj_bias ? tb_vector(t, layer, prefix, "in_proj.bias") : NULL;
    const float *out_bias = c->proj_bias ? tb_vector(t, layer, prefix, "out_proj.bias") : NULL;
    const float *uz =
        tb_product(t, x, t->n, tb_matrix(t, layer, prefix, "in_proj.weight"), 2 * dim, c->hidden, in_bias);
    const float *u = tb_convolution(t, layer, uz);
    const uint16_t *u_in = tb_round(t, u, dim, dim);
    const float *raw = tb_product(t, u_in, t->n, tb_matrix(t, layer, prefix, "x_proj.weight"), narrow, dim, NULL);
    const float *b = raw + rank, *cc = raw + rank + states;
    const uint16_t *dt_in;
    float *a2 = tb_vector(t, layer, prefix, "A_log");
    uint16_t *scanned = tb_halves(t, t->n * dim);
    ls_error err;
    if (c->inner_norms) {
        dt_in = tb_norm(t, raw, narrow, tb_vector(t, layer, prefix, "dt_layernorm.weight"), rank, LS_BF16);
        b = tb_norm(t, b, narrow, tb_vector(t, layer, prefix, "b_layernorm.weight"), states, LS_F32);
        cc = tb_norm(t, cc, narrow, tb_vector(t, layer, prefix, "c_layernorm.weight"), states, LS_F32);
    } else {
        dt_in = tb_round(t, raw, narrow, rank);
    }
    for (int64_t i = 0; i < dim * states; i++) a2[i] = ls_mul(-ls_exp(a2[i]), LS_LOG2E);
    const ls_scan_args scan = {
        .in_dtype = LS_F32,
        .out_dtype = LS_BF16,
        .u = u,
        .dt_raw = tb_product(t, dt_in, t->n, tb_matrix(t, layer, prefix, "dt_proj.weight"), dim, rank, NULL),
        .b = b,
        .cc = cc,
        .z = uz + dim,
        .out = scanned,
        .u_stride = dim,
        .dt_stride = dim,
        .b_stride = c->inner_norms ? states : narrow,
        .c_stride = c->inner_norms ? states : narrow,
        .z_stride = 2 * dim,
        .out_stride = dim,
        .a2 = a2,
        .dt_bias = tb_vector(t, layer, prefix, "dt_proj.bias"),
        .d = tb_vector(t, layer, prefix, "D"),
        .rows = t->n,
        .dim = dim,
        .n_states = states,
        .state = {tb_alloc(t, dim * states, 4), (dim * states * 4 + 63) / 64 * 64, 1},
        .spans = &t->span,
        .n_spans = 1};
    assert_ok(ls_scan(t->cpu, &scan, &err), err);
    return tb_product(t, scanned, t->n, tb_matrix(t, layer, prefix, "out_proj.weight"), c->hidden, dim, out_bias);
}

/* ---- feed-forwards ---- */

static inline float *tb_ffn(textbook *t, int64_t layer, const char *prefix, const uint16_t *x) {
    const int64_t ffn = t->c->ffn, hidden = t->c->hidden;
    const float *gate = tb_product(t, x, t->n, tb_matrix(t, layer, prefix, "gate_proj.weight"), ffn, hidden, NULL);
    const float *up = tb_product(t, x, t->n, tb_matrix(t, layer, prefix, "up_proj.weight"), ffn, hidden, NULL);
    uint16_t *gated = tb_halves(t, t->n * ffn);
    for (int64_t i = 0; i < t->n * ffn; i++) gated[i] = ls_f32_to_bf16(ls_mul(ls_silu(gate[i]), up[i]));
    return tb_product(t, gated, t->n, tb_matrix(t, layer, prefix, "down_proj.weight"), hidden, ffn, NULL);
}

/* The router is a chain of float32 whatever the profile. All experts are computed, the chosen ones taken. */
static inline float *tb_experts(textbook *t, int64_t layer, const uint16_t *x) {
    const ls_model_config *c = t->c;
    const int64_t hidden = c->hidden, experts = c->n_experts, k = c->top_k;
    const float *router = tb_vector(t, layer, t->names->ffn, "router.weight");
    float *logits = tb_floats(t, t->n * experts), *weight = tb_floats(t, t->n * k), *out = tb_floats(t, t->n * hidden);
    int32_t *chosen = tb_alloc(t, t->n * k, 4);
    const ls_moe_route_args route = {logits, t->n, experts, k, chosen, weight};
    ls_error err;
    for (int64_t r = 0; r < t->n; r++)
        for (int64_t e = 0; e < experts; e++)
            for (int64_t i = 0; i < hidden; i++)
                logits[r * experts + e] =
                    ls_fma(ls_bf16_to_f32(x[r * hidden + i]), router[e * hidden + i], logits[r * experts + e]);
    assert_ok(ls_moe_route(t->cpu, &route, &err), err);
    for (int64_t e = 0; e < experts; e++) {
        char prefix[64];
        const float *y;
        snprintf(prefix, sizeof prefix, "%sexperts.%lld.", t->names->ffn, (long long)e);
        y = tb_ffn(t, layer, prefix, x);
        for (int64_t i = 0; i < t->n * k; i++)
            for (int64_t j = 0; chosen[i] == e && j < hidden; j++)
                out[i / k * hidden + j] = ls_fma(weight[i], y[i / k * hidden + j], out[i / k * hidden + j]);
    }
    return out;
}

/* ---- the whole ---- */

static inline void tb_add(float *h, const float *y, int64_t count) {
    for (int64_t i = 0; i < count; i++) h[i] = h[i] + y[i];
}

/* Logits [n][vocab] of the tokens; the caller frees them. */
static inline float *textbook_logits(const char *directory, const ls_model_config *c, const int32_t *tokens,
                                     int64_t n) {
    textbook t = {.c = c, .names = c->names, .n = n, .span = {.n_rows = n}};
    const int64_t hidden = c->hidden, bytes = n * c->vocab * (int64_t)sizeof(float);
    char path[512];
    const float *embed, *logits;
    float *h, *out = malloc((size_t)bytes);
    const uint16_t *x;
    ls_error err;
    assert_non_null(out);
    assert_ok(ls_device_open_cpu(&t.cpu, 1, ls_isa_best(), &err), err);
    snprintf(path, sizeof path, "%s/model.safetensors", directory);
    tensors_open(&t.file, &t.bytes, path);
    embed = tb_vector(&t, -1, "", c->names->embed);
    h = tb_floats(&t, n * hidden);
    for (int64_t r = 0; r < n; r++) memcpy(h + r * hidden, embed + tokens[r] * hidden, (size_t)hidden * sizeof *h);
    for (int64_t i = 0; i < c->n_layers; i++) {
        x = tb_norm(&t, h, hidden, tb_vector(&t, i, "", c->names->input_norm), hidden, LS_BF16);
        tb_add(h, c->is_attention[i] ? tb_attention(&t, i, x) : tb_mamba(&t, i, x), n * hidden);
        if (c->ffn == 0) continue;
        x = tb_norm(&t, h, hidden, tb_vector(&t, i, "", c->names->ffn_norm), hidden, LS_BF16);
        tb_add(h, c->is_moe[i] ? tb_experts(&t, i, x) : tb_ffn(&t, i, c->names->ffn, x), n * hidden);
    }
    x = tb_norm(&t, h, hidden, tb_vector(&t, -1, "", c->names->final_norm), hidden, LS_BF16);
    logits =
        tb_product(&t, x, n, tb_matrix(&t, -1, "", c->tied ? c->names->embed : c->names->head), c->vocab, hidden, NULL);
    memcpy(out, logits, (size_t)bytes);
    while (t.n_arrays > 0) free(t.arrays[--t.n_arrays]);
    ls_safetensors_close(t.file);
    free(t.bytes);
    ls_device_close(t.cpu);
    return out;
}

#endif
