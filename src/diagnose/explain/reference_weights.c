/* Weights of the float64 forward, from a checkpoint. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "diagnose/explain/reference_state.h"
#include "num/half.h"

/* Where a tensor's name lies: 0 the layer itself, 1 Mamba, 2 attention, 3 feed-forward. */
static const struct {
    int part;
    const char *name;
} tensor_names[TENSORS] = {
    [IN_PROJ] = {1, "in_proj.weight"},
    [IN_BIAS] = {1, "in_proj.bias"},
    [CONV] = {1, "conv1d.weight"},
    [CONV_BIAS] = {1, "conv1d.bias"},
    [X_PROJ] = {1, "x_proj.weight"},
    [DT_PROJ] = {1, "dt_proj.weight"},
    [DT_NORM] = {1, "dt_layernorm.weight"},
    [B_NORM] = {1, "b_layernorm.weight"},
    [SKIP] = {1, "D"},
    [C_NORM] = {1, "c_layernorm.weight"},
    [DT_BIAS] = {1, "dt_proj.bias"},
    [A_LOG] = {1, "A_log"},
    [OUT_PROJ] = {1, "out_proj.weight"},
    [OUT_BIAS] = {1, "out_proj.bias"},
    [WQ] = {2, "q_proj.weight"},
    [WK] = {2, "k_proj.weight"},
    [WV] = {2, "v_proj.weight"},
    [WO] = {2, "o_proj.weight"},
    [Q_BIAS] = {2, "q_proj.bias"},
    [K_BIAS] = {2, "k_proj.bias"},
    [V_BIAS] = {2, "v_proj.bias"},
    [O_BIAS] = {2, "o_proj.bias"},
    [Q_NORM] = {2, "q_norm.weight"},
    [K_NORM] = {2, "k_norm.weight"},
    [GATED_NORM] = {1, "norm.weight"}, /* Mamba-2, and the next */
    [HEAD_BIAS] = {1, "dt_bias"},
    [IN_QKV] = {1, "in_proj_qkv.weight"}, /* the delta rule, and the next three */
    [IN_Z] = {1, "in_proj_z.weight"},
    [IN_B] = {1, "in_proj_b.weight"},
    [IN_A] = {1, "in_proj_a.weight"},
    [IN_QKVZ] = {1, "in_proj_qkvz.weight"}, /* by head, of which those four are made; and the next */
    [IN_BA] = {1, "in_proj_ba.weight"},
    [SHARED_GATE] = {3, NULL},
    [ROUTER] = {3, NULL}, /* its name is the architecture's, like the next one's */
    [ROUTER_BIAS] = {3, NULL},
};

static double element(const void *bytes, ls_st_dtype dtype, int64_t i) {
    if (dtype == LS_ST_F32) return (double)((const float *)bytes)[i];
    if (dtype == LS_ST_BF16) return (double)ls_bf16_to_f32(((const uint16_t *)bytes)[i]);
    return (double)ls_f16_to_f32(((const uint16_t *)bytes)[i]);
}

static ls_status own(ls_reference *r, matrix *out, int64_t n, const char *name, ls_error *err) {
    if (r->n_owned == (int64_t)(sizeof r->owned / sizeof r->owned[0]))
        return LS_FAIL(err, LS_ERR_UNSUPPORTED, "more tensors than the reference forward takes");
    LS_TRY(ls_array_alloc((void **)&out->at, n, sizeof *out->at, name, err));
    r->owned[r->n_owned++] = out->at;
    return LS_OK;
}

static ls_status take_matrix(ls_reference *r, matrix *out, const char *name, bool needed, ls_error *err) {
    const ls_tensor_view *view = ls_checkpoint_find(r->checkpoint, name);
    void *bytes = NULL;
    ls_status status;
    if (view == NULL) return needed ? LS_FAIL(err, LS_ERR_FORMAT, "tensor '%s' is missing", name) : LS_OK;
    if (view->dtype != LS_ST_F32 && view->dtype != LS_ST_BF16 && view->dtype != LS_ST_F16)
        return LS_FAIL(err, LS_ERR_UNSUPPORTED, "tensor '%s' is %s", name, ls_st_dtype_name(view->dtype));
    LS_TRY_DONE(ls_array_alloc(&bytes, view->bytes, 1, name, err));
    LS_TRY_DONE(own(r, out, view->n_elements, name, err));
    LS_TRY_DONE(ls_tensor_read(bytes, view, err));
    out->rows = view->n_dims > 0 ? view->dims[0] : 1;
    out->columns = out->rows > 0 ? view->n_elements / out->rows : 0;
    for (int64_t i = 0; i < view->n_elements; i++) out->at[i] = element(bytes, view->dtype, i);
done:
    free(bytes);
    return status;
}

/* A norm of the stream or of heads, as it weighs. */
static ls_status take_norm(ls_reference *r, matrix *out, const char *name, bool needed, ls_error *err) {
    LS_TRY(take_matrix(r, out, name, needed, err));
    for (int64_t i = 0; r->config.norms_above_one && i < out->rows * out->columns; i++) out->at[i] += 1.0;
    return LS_OK;
}

enum { NAME_BYTES = 512 };

/* Gates, ups and downs of n experts of this width that have two tensors together. */
static ls_status take_joined(ls_reference *r, matrix *expert, int64_t n, int64_t width, const char *prefix,
                             ls_error *err) {
    const ls_model_config *c = &r->config;
    const int64_t hidden = c->hidden, size = width * hidden;
    matrix gate_up = {0}, down = {0};
    char name[NAME_BYTES];
    snprintf(name, sizeof name, "%s%s", prefix, c->names->gate_up);
    LS_TRY(take_matrix(r, &gate_up, name, true, err));
    snprintf(name, sizeof name, "%s%s", prefix, c->names->down);
    LS_TRY(take_matrix(r, &down, name, true, err));
    if (gate_up.rows * gate_up.columns != 2 * n * size || down.rows * down.columns != n * size)
        return LS_FAIL(err, LS_ERR_FORMAT, "tensors of '%s': not %lld of %lld columns", prefix, (long long)n,
                       (long long)width);
    for (int64_t e = 0; e < n; e++) {
        expert[3 * e] = (matrix){gate_up.at + 2 * e * size, width, hidden};
        expert[3 * e + 1] = (matrix){gate_up.at + (2 * e + 1) * size, width, hidden};
        expert[3 * e + 2] = (matrix){down.at + e * size, hidden, width};
    }
    return LS_OK;
}

/* Where feed-forwards are of such tensors. */
static ls_status take_all_joined(ls_reference *r, layer *l, int32_t layer_i, ls_error *err) {
    const ls_model_config *c = &r->config;
    const bool moe = c->is_moe[layer_i] != 0;
    char prefix[NAME_BYTES];
    snprintf(prefix, sizeof prefix, "%s%d.%s", c->names->layers, layer_i, moe ? c->names->experts : c->names->ffn);
    LS_TRY(take_joined(r, l->expert, moe ? c->n_experts : 1, c->ffn, prefix, err));
    if (!moe || c->shared_ffn == 0) return LS_OK;
    snprintf(prefix, sizeof prefix, "%s%d.%s%s", c->names->layers, layer_i, c->names->ffn, c->names->shared);
    return take_joined(r, l->shared, 1, c->shared_ffn, prefix, err);
}

static ls_status take_experts(ls_reference *r, layer *l, int32_t layer_i, ls_error *err) {
    const ls_model_config *c = &r->config;
    const char *const names[3] = {c->names->gate, c->names->up, c->names->down};
    const int64_t n = c->is_moe[layer_i] ? c->n_experts : 1;
    char name[NAME_BYTES];
    if (c->ffn == 0 || c->no_ffn[layer_i]) return LS_OK;
    LS_TRY(ls_array_alloc((void **)&l->expert, 3 * n, sizeof *l->expert, "experts", err));
    if (c->names->gate_up != NULL) return take_all_joined(r, l, layer_i, err);
    for (int64_t i = 0; i < 3 * n; i++) {
        char expert[32] = "";
        if (c->ungated && i % 3 == 0) continue;
        if (c->is_moe[layer_i]) snprintf(expert, sizeof expert, "experts.%lld.", (long long)(i / 3));
        snprintf(name, sizeof name, "%s%d.%s%s%s", c->names->layers, layer_i, c->names->ffn, expert, names[i % 3]);
        LS_TRY(take_matrix(r, &l->expert[i], name, true, err));
    }
    for (int64_t i = 0; c->is_moe[layer_i] && c->shared_ffn > 0 && i < 3; i++) {
        if (c->ungated && i == 0) continue;
        snprintf(name, sizeof name, "%s%d.%s%s%s", c->names->layers, layer_i, c->names->ffn, c->names->shared,
                 names[i]);
        LS_TRY(take_matrix(r, &l->shared[i], name, true, err));
    }
    return LS_OK;
}

/* Of a matrix whose rows lie by key head, `width` of a head: rows [from, from + n) of every head, to *rows. */
static void take_kind(const ls_model_config *c, double **rows, const matrix *by_head, int64_t from, int64_t n) {
    const int64_t heads = c->delta_key_heads, width = by_head->rows / heads, columns = by_head->columns;
    for (int64_t h = 0; h < heads; h++, *rows += n * columns)
        memcpy(*rows, by_head->at + (h * width + from) * columns, (size_t)(n * columns) * sizeof **rows);
}

static ls_status part_by_head(ls_reference *r, layer *l, ls_error *err) {
    const ls_model_config *c = &r->config;
    const matrix *qkvz = &l->of[IN_QKVZ], *ba = &l->of[IN_BA];
    const int64_t key = c->d_state, value = c->d_inner / c->delta_key_heads, each = c->delta_heads / c->delta_key_heads;
    const struct {
        int tensor;
        const matrix *from;
        int64_t rows, parts, begin[3], n[3]; /* of a head */
    } kinds[] = {{IN_QKV, qkvz, 2 * key + value, 3, {0, key, 2 * key}, {key, key, value}},
                 {IN_Z, qkvz, value, 1, {2 * key + value}, {value}},
                 {IN_B, ba, each, 1, {0}, {each}},
                 {IN_A, ba, each, 1, {each}, {each}}};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        matrix *out = &l->of[kinds[i].tensor];
        double *rows;
        out->rows = kinds[i].rows * c->delta_key_heads;
        out->columns = kinds[i].from->columns;
        LS_TRY(own(r, out, out->rows * out->columns, "projections", err));
        rows = out->at;
        for (int64_t k = 0; k < kinds[i].parts; k++)
            take_kind(c, &rows, kinds[i].from, kinds[i].begin[k], kinds[i].n[k]);
    }
    return LS_OK;
}

static const char *name_of(const ls_model_config *c, int tensor) {
    switch (tensor) {
        case ROUTER: return c->names->router;
        case ROUTER_BIAS: return c->names->router_bias;
        case SHARED_GATE: return c->names->shared_gate;
        default: return tensor_names[tensor].name;
    }
}

static ls_status take_layer(ls_reference *r, int32_t layer_i, ls_error *err) {
    const ls_model_config *c = &r->config;
    layer *l = &r->layers[layer_i];
    char name[NAME_BYTES];
    if (!c->no_mixer[layer_i]) {
        snprintf(name, sizeof name, "%s%d.%s", c->names->layers, layer_i, c->names->input_norm);
        LS_TRY(take_norm(r, &l->of[INPUT_NORM], name, true, err));
    }
    if (c->ffn > 0 && !c->no_ffn[layer_i]) {
        snprintf(name, sizeof name, "%s%d.%s", c->names->layers, layer_i, c->names->ffn_norm);
        LS_TRY(take_norm(r, &l->of[FFN_NORM], name, true, err));
    }
    for (int i = 0; i < TENSORS; i++) {
        const int part = tensor_names[i].part;
        const char *prefix = part == 1 ? c->names->mamba : part == 2 ? c->names->attention : c->names->ffn;
        const char *own_name = name_of(c, i);
        if (part == 0 || prefix == NULL || own_name == NULL) continue;
        if (part == 3 && (c->n_experts <= 1 || (i == SHARED_GATE && c->shared_ffn == 0))) continue;
        snprintf(name, sizeof name, "%s%d.%s%s", c->names->layers, layer_i, prefix, own_name);
        LS_TRY((i == Q_NORM || i == K_NORM ? take_norm : take_matrix)(r, &l->of[i], name, false, err));
    }
    if (l->of[IN_QKVZ].at != NULL && l->of[IN_BA].at != NULL) LS_TRY(part_by_head(r, l, err));
    return take_experts(r, l, layer_i, err);
}

ls_status ls_reference_create(ls_reference **out, const char *directory, const ls_model_config *config,
                              int64_t parameters_max, ls_error *err) {
    ls_reference *r = calloc(1, sizeof *r);
    int64_t n = 0;
    ls_status status;
    *out = NULL;
    if (r == NULL) return LS_FAIL(err, LS_ERR_NOMEM, "reference forward");
    r->config = *config;
    LS_TRY_DONE(ls_checkpoint_open(&r->checkpoint, directory, err));
    for (int64_t i = 0; i < ls_checkpoint_count(r->checkpoint); i++) {
        const int64_t elements = ls_checkpoint_at(r->checkpoint, i)->n_elements;
        n = elements < parameters_max - n ? n + elements : parameters_max + 1;
        if (n > parameters_max) break;
    }
    if (n > parameters_max) {
        status = LS_FAIL(err, LS_ERR_UNSUPPORTED, "the reference forward takes %lld parameters at most",
                         (long long)parameters_max);
        goto done;
    }
    LS_TRY_DONE(ls_array_alloc((void **)&r->layers, r->config.n_layers, sizeof *r->layers, "layers", err));
    LS_TRY_DONE(take_matrix(r, &r->embed, r->config.names->embed, true, err));
    LS_TRY_DONE(take_norm(r, &r->final_norm, r->config.names->final_norm, true, err));
    if (r->config.tied)
        r->head = r->embed;
    else
        LS_TRY_DONE(take_matrix(r, &r->head, r->config.names->head, true, err));
    for (int32_t i = 0; i < r->config.n_layers; i++) LS_TRY_DONE(take_layer(r, i, err));
    *out = r;
    r = NULL;
done:
    ls_reference_free(r);
    return status;
}

void ls_reference_free(ls_reference *r) {
    if (r == NULL) return;
    for (int64_t i = 0; i < r->n_owned; i++) free(r->owned[i]);
    for (int32_t i = 0; r->layers != NULL && i < r->config.n_layers; i++) free(r->layers[i].expert);
    free(r->layers);
    ls_checkpoint_close(r->checkpoint);
    free(r);
}

const ls_model_config *ls_reference_config(const ls_reference *r) { return &r->config; }
