/* The walk over all tensors of a model. */
#include "model/jamba_slots.h"

#include <stdio.h>

#include "num/expf.h"
#include "op/rows.h"

typedef struct walk {
    ls_jamba *model;
    ls_slot_visit visit;
    void *context;
    int64_t layer_i; /* -1 outside the layers */
    ls_error *err;
} walk;

/* Fills the name and hands the slot over. */
static ls_status at(const walk *w, ls_weight_slot slot, const char *prefix, const char *rest) {
    if (w->layer_i < 0)
        snprintf(slot.name, sizeof slot.name, "%s%s", prefix, rest);
    else
        snprintf(slot.name, sizeof slot.name, "model.layers.%lld.%s%s", (long long)w->layer_i, prefix, rest);
    return w->visit(w->context, &slot, w->err);
}

static ls_status matrix(const walk *w, ls_gemm_weight *out, int64_t n, int64_t k, const char *prefix,
                        const char *rest) {
    const ls_weight_slot slot = {.kind = LS_SLOT_MATRIX, .n_dims = 2, .dims = {n, k}, .matrix = out};
    return at(w, slot, prefix, rest);
}

static ls_status vector(const walk *w, float **out, int64_t n, const char *name) {
    const ls_weight_slot slot = {.kind = LS_SLOT_VECTOR, .n_dims = 1, .dims = {n}, .vector = out};
    return at(w, slot, "", name);
}

static ls_status walk_attention(const walk *w, ls_attention_weights *a) {
    const ls_jamba_config *c = &w->model->config;
    const int64_t q = (int64_t)c->n_heads * c->head_dim, kv = (int64_t)c->n_kv_heads * c->head_dim;
    ls_status status;
    LS_TRY(matrix(w, &a->q, q, c->hidden, "self_attn.", "q_proj.weight"));
    LS_TRY(matrix(w, &a->k, kv, c->hidden, "self_attn.", "k_proj.weight"));
    LS_TRY(matrix(w, &a->v, kv, c->hidden, "self_attn.", "v_proj.weight"));
    LS_TRY(matrix(w, &a->o, c->hidden, q, "self_attn.", "o_proj.weight"));
done:
    return status;
}

static ls_status walk_mamba(const walk *w, ls_mamba_weights *m) {
    const ls_jamba_config *c = &w->model->config;
    const int64_t dim = c->d_inner, states = c->d_state, rank = c->dt_rank;
    const ls_weight_slot conv = {.kind = LS_SLOT_CONV, .n_dims = 3, .dims = {dim, 1, c->d_conv}, .vector = &m->conv_w};
    const ls_weight_slot decay = {.kind = LS_SLOT_DECAY, .n_dims = 2, .dims = {dim, states}, .vector = &m->a2};
    ls_status status;
    LS_TRY(matrix(w, &m->in_proj, 2 * dim, c->hidden, "mamba.", "in_proj.weight"));
    LS_TRY(matrix(w, &m->x_proj, rank + 2 * states, dim, "mamba.", "x_proj.weight"));
    LS_TRY(matrix(w, &m->dt_proj, dim, rank, "mamba.", "dt_proj.weight"));
    LS_TRY(matrix(w, &m->out_proj, c->hidden, dim, "mamba.", "out_proj.weight"));
    if (c->proj_bias) {
        LS_TRY(vector(w, &m->in_bias, 2 * dim, "mamba.in_proj.bias"));
        LS_TRY(vector(w, &m->out_bias, c->hidden, "mamba.out_proj.bias"));
    }
    LS_TRY(at(w, conv, "mamba.", "conv1d.weight"));
    if (c->conv_bias) LS_TRY(vector(w, &m->conv_bias, dim, "mamba.conv1d.bias"));
    LS_TRY(vector(w, &m->dt_norm, rank, "mamba.dt_layernorm.weight"));
    LS_TRY(vector(w, &m->b_norm, states, "mamba.b_layernorm.weight"));
    LS_TRY(vector(w, &m->c_norm, states, "mamba.c_layernorm.weight"));
    LS_TRY(vector(w, &m->dt_bias, dim, "mamba.dt_proj.bias"));
    LS_TRY(vector(w, &m->d, dim, "mamba.D"));
    LS_TRY(at(w, decay, "mamba.", "A_log"));
done:
    return status;
}

static ls_status walk_ffn(const walk *w, ls_ffn_weights *f, const char *prefix) {
    const ls_jamba_config *c = &w->model->config;
    ls_status status;
    LS_TRY(matrix(w, &f->gate, c->ffn, c->hidden, prefix, "gate_proj.weight"));
    LS_TRY(matrix(w, &f->up, c->ffn, c->hidden, prefix, "up_proj.weight"));
    LS_TRY(matrix(w, &f->down, c->hidden, c->ffn, prefix, "down_proj.weight"));
done:
    return status;
}

static ls_status walk_layer(const walk *w, ls_layer *layer) {
    const ls_jamba_config *c = &w->model->config;
    char prefix[64];
    ls_status status;
    LS_TRY(vector(w, &layer->input_norm, c->hidden, "input_layernorm.weight"));
    LS_TRY(vector(w, &layer->ffn_norm, c->hidden, "pre_ff_layernorm.weight"));
    LS_TRY(layer->is_attention ? walk_attention(w, &layer->attention) : walk_mamba(w, &layer->mamba));
    if (!layer->is_moe) {
        LS_TRY(walk_ffn(w, &layer->ffn[0], "feed_forward."));
        goto done;
    }
    LS_TRY(matrix(w, &layer->router, c->n_experts, c->hidden, "feed_forward.", "router.weight"));
    for (int64_t e = 0; e < c->n_experts; e++) {
        snprintf(prefix, sizeof prefix, "feed_forward.experts.%lld.", (long long)e);
        LS_TRY(walk_ffn(w, &layer->ffn[e], prefix));
    }
done:
    return status;
}

ls_status ls_jamba_slots(ls_jamba *model, ls_slot_visit visit, void *context, ls_error *err) {
    const ls_jamba_config *c = &model->config;
    walk w = {model, visit, context, -1, err};
    const ls_weight_slot embed = {
        .kind = LS_SLOT_EMBED, .n_dims = 2, .dims = {c->vocab, c->hidden}, .embed = &model->embed};
    ls_status status;
    LS_TRY(at(&w, embed, "", "model.embed_tokens.weight"));
    LS_TRY(vector(&w, &model->final_norm, c->hidden, "model.final_layernorm.weight"));
    for (w.layer_i = 0; w.layer_i < c->n_layers; w.layer_i++) LS_TRY(walk_layer(&w, &model->layers[w.layer_i]));
    w.layer_i = -1;
    if (!c->tied) LS_TRY(matrix(&w, &model->head, c->vocab, c->hidden, "", "lm_head.weight"));
done:
    return status;
}

void ls_slot_fill(const ls_weight_slot *slot, const void *data, ls_dtype dtype) {
    float *out = *slot->vector;
    int64_t n = 1;
    for (int32_t i = 0; i < slot->n_dims; i++) n *= slot->dims[i];
    if (slot->kind != LS_SLOT_CONV) ls_row_widen(out, data, dtype, n);
    if (slot->kind == LS_SLOT_DECAY)
        for (int64_t i = 0; i < n; i++) out[i] = ls_mul(-ls_exp(out[i]), LS_LOG2E);
    if (slot->kind == LS_SLOT_CONV) /* stored [D][1][W], read by the kernel as [W][D] */
        for (int64_t channel = 0; channel < slot->dims[0]; channel++)
            for (int64_t k = 0; k < slot->dims[2]; k++)
                ls_row_widen(&out[k * slot->dims[0] + channel], ls_at(data, dtype, channel * slot->dims[2] + k), dtype,
                             1);
}
