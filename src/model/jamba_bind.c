/* From a checkpoint to ls_jamba: finds each tensor by name, checks shape and type, repacks matrices into panels and
 * widens small vectors. Matrices keep their stored type; every tensor of the file must be used. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "model/jamba.h"
#include "num/expf.h"
#include "op/rows.h"

typedef struct binder {
    ls_jamba *model;
    const ls_checkpoint *checkpoint;
    const char *directory;
    const ls_tensor_view **used; /* [n_used], room for every tensor of the checkpoint */
    int64_t n_used;
    ls_error *err;
} binder;

static void format_shape(char *text, size_t bytes, const int64_t *dims, int32_t n_dims) {
    size_t used = 0;
    text[0] = '\0';
    for (int32_t i = 0; i < n_dims && used < bytes; i++)
        used += (size_t)snprintf(text + used, bytes - used, "%s%lld", i > 0 ? ", " : "", (long long)dims[i]);
}

/* The tensor called name, with exactly these dimensions (trailing dims of -1 are absent). */
static ls_status find(binder *b, const ls_tensor_view **out, ls_dtype *dtype, const char *name, int64_t d0, int64_t d1,
                      int64_t d2) {
    const ls_tensor_view *view = ls_checkpoint_find(b->checkpoint, name);
    const int64_t dims[3] = {d0, d1, d2};
    const int32_t n_dims = d1 < 0 ? 1 : d2 < 0 ? 2 : 3;
    bool same;
    if (view == NULL) return LS_FAIL(b->err, LS_ERR_FORMAT, "%s: missing tensor %s", b->directory, name);
    same = view->n_dims == n_dims;
    for (int32_t i = 0; same && i < n_dims; i++) same = view->dims[i] == dims[i];
    if (!same) {
        char want[96], got[256];
        format_shape(want, sizeof want, dims, n_dims);
        format_shape(got, sizeof got, view->dims, view->n_dims);
        return LS_FAIL(b->err, LS_ERR_FORMAT, "%s: %s: shape is [%s], the configuration calls for [%s]", view->file,
                       name, got, want);
    }
    if (view->dtype == LS_ST_F32)
        *dtype = LS_F32;
    else if (view->dtype == LS_ST_BF16)
        *dtype = LS_BF16;
    else if (view->dtype == LS_ST_F16)
        *dtype = LS_F16;
    else
        return LS_FAIL(b->err, LS_ERR_UNSUPPORTED, "%s: %s: data type %s; weights must be F32, BF16 or F16", view->file,
                       name, ls_st_dtype_name(view->dtype));
    b->used[b->n_used++] = view;
    b->model->n_parameters += view->n_elements;
    *out = view;
    return LS_OK;
}

static ls_status take_matrix(binder *b, ls_gemm_weight *out, int64_t n, int64_t k, const char *name) {
    const ls_tensor_view *view;
    ls_dtype dtype;
    ls_status status;
    LS_TRY(find(b, &view, &dtype, name, n, k, -1));
    LS_TRY(ls_gemm_pack(out, view->data, dtype, n, k, b->err));
    b->model->weight_bytes += out->panel_bytes;
done:
    return status;
}

/* Array of n elements that the model owns. */
static ls_status own_array(binder *b, void **out, int64_t n, int64_t elem_bytes) {
    ls_jamba *model = b->model;
    ls_status status;
    LS_TRY(ls_array_grow((void **)&model->owned, &model->owned_cap, model->n_owned + 1, sizeof(void *), "weights",
                         b->err));
    LS_TRY(ls_array_alloc(out, n, elem_bytes, "weights", b->err));
    model->owned[model->n_owned++] = *out;
done:
    return status;
}

static ls_status own_floats(binder *b, float **out, int64_t n) {
    b->model->weight_bytes += n * (int64_t)sizeof(float);
    return own_array(b, (void **)out, n, (int64_t)sizeof(float));
}

static ls_status take_vector(binder *b, float **out, int64_t n, const char *name) {
    const ls_tensor_view *view;
    ls_dtype dtype;
    ls_status status;
    LS_TRY(find(b, &view, &dtype, name, n, -1, -1));
    LS_TRY(own_floats(b, out, n));
    ls_row_widen(*out, view->data, dtype, n);
done:
    return status;
}

#define NAME_MAX_BYTES 160
/* Writes "model.layers.LAYER.rest" to name. */
static const char *layer_name(char *name, int64_t layer_i, const char *rest) {
    snprintf(name, NAME_MAX_BYTES, "model.layers.%lld.%s", (long long)layer_i, rest);
    return name;
}

static ls_status bind_attention(binder *b, ls_attention_weights *w, int64_t layer_i) {
    const ls_jamba_config *c = &b->model->config;
    const int64_t q = (int64_t)c->n_heads * c->head_dim, kv = (int64_t)c->n_kv_heads * c->head_dim;
    char name[NAME_MAX_BYTES];
    ls_status status;
    LS_TRY(take_matrix(b, &w->q, q, c->hidden, layer_name(name, layer_i, "self_attn.q_proj.weight")));
    LS_TRY(take_matrix(b, &w->k, kv, c->hidden, layer_name(name, layer_i, "self_attn.k_proj.weight")));
    LS_TRY(take_matrix(b, &w->v, kv, c->hidden, layer_name(name, layer_i, "self_attn.v_proj.weight")));
    LS_TRY(take_matrix(b, &w->o, c->hidden, q, layer_name(name, layer_i, "self_attn.o_proj.weight")));
done:
    return status;
}

/* conv1d.weight is stored [D][1][W]; the kernel reads [W][D]. */
static ls_status take_conv(binder *b, ls_mamba_weights *w, int64_t layer_i) {
    const ls_jamba_config *c = &b->model->config;
    const ls_tensor_view *view;
    ls_dtype dtype;
    char name[NAME_MAX_BYTES];
    ls_status status;
    LS_TRY(find(b, &view, &dtype, layer_name(name, layer_i, "mamba.conv1d.weight"), c->d_inner, 1, c->d_conv));
    LS_TRY(own_floats(b, &w->conv_w, (int64_t)c->d_inner * c->d_conv));
    for (int64_t channel = 0; channel < c->d_inner; channel++)
        for (int64_t k = 0; k < c->d_conv; k++)
            ls_row_widen(&w->conv_w[k * c->d_inner + channel], ls_at(view->data, dtype, channel * c->d_conv + k), dtype,
                         1);
    if (c->conv_bias) LS_TRY(take_vector(b, &w->conv_bias, c->d_inner, layer_name(name, layer_i, "mamba.conv1d.bias")));
done:
    return status;
}

static ls_status take_decay(binder *b, ls_mamba_weights *w, int64_t layer_i) {
    const ls_jamba_config *c = &b->model->config;
    const int64_t n = (int64_t)c->d_inner * c->d_state;
    const ls_tensor_view *view;
    ls_dtype dtype;
    char name[NAME_MAX_BYTES];
    ls_status status;
    LS_TRY(find(b, &view, &dtype, layer_name(name, layer_i, "mamba.A_log"), c->d_inner, c->d_state, -1));
    LS_TRY(own_floats(b, &w->a2, n));
    ls_row_widen(w->a2, view->data, dtype, n);
    for (int64_t i = 0; i < n; i++) w->a2[i] = ls_mul(-ls_exp(w->a2[i]), LS_LOG2E);
done:
    return status;
}

static ls_status bind_mamba(binder *b, ls_mamba_weights *w, int64_t layer_i) {
    const ls_jamba_config *c = &b->model->config;
    const int64_t dim = c->d_inner, states = c->d_state, rank = c->dt_rank;
    char name[NAME_MAX_BYTES];
    ls_status status;
    LS_TRY(take_matrix(b, &w->in_proj, 2 * dim, c->hidden, layer_name(name, layer_i, "mamba.in_proj.weight")));
    LS_TRY(take_matrix(b, &w->x_proj, rank + 2 * states, dim, layer_name(name, layer_i, "mamba.x_proj.weight")));
    LS_TRY(take_matrix(b, &w->dt_proj, dim, rank, layer_name(name, layer_i, "mamba.dt_proj.weight")));
    LS_TRY(take_matrix(b, &w->out_proj, c->hidden, dim, layer_name(name, layer_i, "mamba.out_proj.weight")));
    if (c->proj_bias) {
        LS_TRY(take_vector(b, &w->in_bias, 2 * dim, layer_name(name, layer_i, "mamba.in_proj.bias")));
        LS_TRY(take_vector(b, &w->out_bias, c->hidden, layer_name(name, layer_i, "mamba.out_proj.bias")));
    }
    LS_TRY(take_conv(b, w, layer_i));
    LS_TRY(take_vector(b, &w->dt_norm, rank, layer_name(name, layer_i, "mamba.dt_layernorm.weight")));
    LS_TRY(take_vector(b, &w->b_norm, states, layer_name(name, layer_i, "mamba.b_layernorm.weight")));
    LS_TRY(take_vector(b, &w->c_norm, states, layer_name(name, layer_i, "mamba.c_layernorm.weight")));
    LS_TRY(take_vector(b, &w->dt_bias, dim, layer_name(name, layer_i, "mamba.dt_proj.bias")));
    LS_TRY(take_vector(b, &w->d, dim, layer_name(name, layer_i, "mamba.D")));
    LS_TRY(take_decay(b, w, layer_i));
done:
    return status;
}

static ls_status bind_ffn(binder *b, ls_ffn_weights *w, int64_t layer_i, const char *prefix) {
    const ls_jamba_config *c = &b->model->config;
    char name[NAME_MAX_BYTES], rest[NAME_MAX_BYTES / 2];
    ls_status status;
    snprintf(rest, sizeof rest, "%sgate_proj.weight", prefix);
    LS_TRY(take_matrix(b, &w->gate, c->ffn, c->hidden, layer_name(name, layer_i, rest)));
    snprintf(rest, sizeof rest, "%sup_proj.weight", prefix);
    LS_TRY(take_matrix(b, &w->up, c->ffn, c->hidden, layer_name(name, layer_i, rest)));
    snprintf(rest, sizeof rest, "%sdown_proj.weight", prefix);
    LS_TRY(take_matrix(b, &w->down, c->hidden, c->ffn, layer_name(name, layer_i, rest)));
done:
    return status;
}

static ls_status bind_layer(binder *b, int64_t layer_i) {
    const ls_jamba_config *c = &b->model->config;
    ls_layer *layer = &b->model->layers[layer_i];
    char name[NAME_MAX_BYTES], prefix[NAME_MAX_BYTES / 4];
    ls_status status;
    layer->is_attention = c->is_attention[layer_i];
    layer->is_moe = c->is_moe[layer_i];
    layer->n_ffn = layer->is_moe ? c->n_experts : 1;
    LS_TRY(ls_array_alloc((void **)&layer->ffn, layer->n_ffn, sizeof *layer->ffn, "experts", b->err));
    LS_TRY(take_vector(b, &layer->input_norm, c->hidden, layer_name(name, layer_i, "input_layernorm.weight")));
    LS_TRY(take_vector(b, &layer->ffn_norm, c->hidden, layer_name(name, layer_i, "pre_ff_layernorm.weight")));
    LS_TRY(layer->is_attention ? bind_attention(b, &layer->attention, layer_i) : bind_mamba(b, &layer->mamba, layer_i));
    if (!layer->is_moe) {
        LS_TRY(bind_ffn(b, &layer->ffn[0], layer_i, "feed_forward."));
        goto done;
    }
    LS_TRY(take_matrix(b, &layer->router, c->n_experts, c->hidden,
                       layer_name(name, layer_i, "feed_forward.router.weight")));
    for (int64_t e = 0; e < c->n_experts; e++) {
        snprintf(prefix, sizeof prefix, "feed_forward.experts.%lld.", (long long)e);
        LS_TRY(bind_ffn(b, &layer->ffn[e], layer_i, prefix));
    }
done:
    return status;
}

/* The embedding is kept as stored: a forward reads single rows of it. */
static ls_status bind_embedding(binder *b) {
    ls_jamba *model = b->model;
    const ls_tensor_view *view;
    void *embed;
    ls_status status;
    LS_TRY(find(b, &view, &model->embed_dtype, "model.embed_tokens.weight", model->config.vocab, model->config.hidden,
                -1));
    LS_TRY(own_array(b, &embed, view->n_elements, ls_dtype_bytes(model->embed_dtype)));
    memcpy(embed, view->data, (size_t)view->bytes);
    model->embed = embed;
done:
    return status;
}

/* The head: lm_head.weight, or the embedding when tied. A tied checkpoint may store lm_head.weight as well; it must
 * then hold the embedding's bytes, or the two readings of the file would be different models. */
static ls_status bind_head(binder *b) {
    ls_jamba *model = b->model;
    const ls_jamba_config *c = &model->config;
    const ls_tensor_view *head;
    ls_dtype dtype;
    ls_status status = LS_OK;
    if (!c->tied) return take_matrix(b, &model->head, c->vocab, c->hidden, "lm_head.weight");
    if (ls_checkpoint_find(b->checkpoint, "lm_head.weight") != NULL) {
        LS_TRY(find(b, &head, &dtype, "lm_head.weight", c->vocab, c->hidden, -1));
        model->n_parameters -= head->n_elements;
        if (dtype != model->embed_dtype || memcmp(head->data, model->embed, (size_t)head->bytes) != 0)
            return LS_FAIL(
                b->err, LS_ERR_FORMAT,
                "%s: lm_head.weight: differs from model.embed_tokens.weight, but tie_word_embeddings is true",
                head->file);
    }
    LS_TRY(ls_gemm_pack(&model->head, model->embed, model->embed_dtype, c->vocab, c->hidden, b->err));
    model->weight_bytes += model->head.panel_bytes;
done:
    return status;
}

/* Every tensor of the checkpoint must have been asked for; the first that was not is named. */
static ls_status check_all_used(binder *b) {
    const int64_t n = ls_checkpoint_count(b->checkpoint);
    if (b->n_used == n) return LS_OK;
    for (int64_t i = 0; i < n; i++) {
        const ls_tensor_view *view = ls_checkpoint_at(b->checkpoint, i);
        bool used = false;
        for (int64_t j = 0; j < b->n_used && !used; j++) used = b->used[j] == view;
        if (!used)
            return LS_FAIL(b->err, LS_ERR_FORMAT, "%s: %s: the configuration (%d layers) calls for no such tensor",
                           view->file, view->name, b->model->config.n_layers);
    }
    return LS_FAIL(b->err, LS_ERR_FORMAT, "%s: a tensor was asked for twice", b->directory);
}

ls_status ls_jamba_open(ls_jamba **out, const char *directory, ls_error *err) {
    ls_jamba *model = calloc(1, sizeof *model);
    binder b = {.model = model, .directory = directory, .err = err};
    ls_status status;
    *out = NULL;
    if (model == NULL) return LS_FAIL(err, LS_ERR_NOMEM, "model");
    LS_TRY(ls_jamba_config_open(&model->config, directory, err));
    LS_TRY(ls_checkpoint_open(&model->checkpoint, directory, err));
    b.checkpoint = model->checkpoint;
    LS_TRY(ls_array_alloc((void **)&b.used, ls_checkpoint_count(b.checkpoint), sizeof(const ls_tensor_view *),
                          "tensors", err));
    LS_TRY(ls_array_alloc((void **)&model->layers, model->config.n_layers, sizeof *model->layers, "layers", err));
    LS_TRY(bind_embedding(&b));
    LS_TRY(take_vector(&b, &model->final_norm, model->config.hidden, "model.final_layernorm.weight"));
    for (int64_t i = 0; i < model->config.n_layers; i++) LS_TRY(bind_layer(&b, i));
    LS_TRY(bind_head(&b));
    LS_TRY(check_all_used(&b));
    LS_TRY(ls_checkpoint_let_go(model->checkpoint, err));
    *out = model;
    model = NULL;
done:
    free((void *)b.used);
    ls_jamba_close(model);
    return status;
}

void ls_jamba_close(ls_jamba *model) {
    if (model == NULL) return;
    for (int64_t i = 0; model->layers != NULL && i < model->config.n_layers; i++) {
        ls_layer *layer = &model->layers[i];
        ls_gemm_weight *matrices[] = {&layer->attention.q,   &layer->attention.k,    &layer->attention.v,
                                      &layer->attention.o,   &layer->mamba.in_proj,  &layer->mamba.x_proj,
                                      &layer->mamba.dt_proj, &layer->mamba.out_proj, &layer->router};
        for (size_t m = 0; m < sizeof matrices / sizeof matrices[0]; m++) ls_gemm_weight_free(matrices[m]);
        for (int64_t e = 0; layer->ffn != NULL && e < layer->n_ffn; e++) {
            ls_gemm_weight_free(&layer->ffn[e].gate);
            ls_gemm_weight_free(&layer->ffn[e].up);
            ls_gemm_weight_free(&layer->ffn[e].down);
        }
        free(layer->ffn);
    }
    ls_gemm_weight_free(&model->head);
    for (int64_t i = 0; i < model->n_owned; i++) free(model->owned[i]);
    free(model->owned);
    free(model->layers);
    ls_checkpoint_close(model->checkpoint);
    free(model);
}
