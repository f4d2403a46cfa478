/* From a checkpoint to ls_model: finds each tensor by name, checks shape and type, packs matrices and widens small
 * vectors on the device. Matrices keep their stored type; every tensor of the file must be used. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "model/architectures.h"
#include "model/parts.h"

typedef struct binder {
    ls_model *model;
    ls_device *device;
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

/* The slot's tensor, with exactly its shape. */
static ls_status find(binder *b, const ls_tensor_view **out, ls_dtype *dtype, const ls_weight_slot *slot) {
    const ls_tensor_view *view = ls_checkpoint_find(b->checkpoint, slot->name);
    bool same;
    if (view == NULL) return LS_FAIL(b->err, LS_ERR_FORMAT, "%s: missing tensor %s", b->directory, slot->name);
    same = view->n_dims == slot->n_dims;
    for (int32_t i = 0; same && i < slot->n_dims; i++) same = view->dims[i] == slot->dims[i];
    if (!same) {
        char want[96], got[256];
        format_shape(want, sizeof want, slot->dims, slot->n_dims);
        format_shape(got, sizeof got, view->dims, view->n_dims);
        return LS_FAIL(b->err, LS_ERR_FORMAT, "%s: %s: shape is [%s], the configuration calls for [%s]", view->file,
                       slot->name, got, want);
    }
    if (view->dtype == LS_ST_F32)
        *dtype = LS_F32;
    else if (view->dtype == LS_ST_BF16)
        *dtype = LS_BF16;
    else if (view->dtype == LS_ST_F16)
        *dtype = LS_F16;
    else
        return LS_FAIL(b->err, LS_ERR_UNSUPPORTED, "%s: %s: data type %s; weights must be F32, BF16 or F16", view->file,
                       slot->name, ls_st_dtype_name(view->dtype));
    b->used[b->n_used++] = view;
    b->model->n_parameters += view->n_elements;
    *out = view;
    return LS_OK;
}

/* Array of n elements that the model owns. */
static ls_status own_array(binder *b, void **out, int64_t n, int64_t elem_bytes) {
    ls_model *model = b->model;
    ls_status status;
    LS_TRY(ls_array_grow((void **)&model->owned, &model->owned_cap, model->n_owned + 1, sizeof(void *), "weights",
                         b->err));
    LS_TRY(ls_memory_alloc(b->device, out, n, elem_bytes, "weights", b->err));
    model->owned[model->n_owned++] = *out;
done:
    return status;
}

/* A tensor's bytes on the host, released with free(). */
static ls_status read_tensor(void **out, const ls_tensor_view *view, ls_error *err) {
    ls_status status;
    LS_TRY(ls_array_alloc(out, view->bytes, 1, "tensor", err));
    LS_TRY(ls_tensor_read(*out, view, err));
done:
    return status;
}

/* Reads one slot's tensor into the model. */
static ls_status bind_slot(void *context, const ls_weight_slot *slot, ls_error *err) {
    binder *b = context;
    const ls_tensor_view *view;
    void *host = NULL, *data = NULL; /* as stored, on the host and on the device */
    ls_dtype dtype;
    ls_status status;
    LS_TRY(find(b, &view, &dtype, slot));
    LS_TRY(read_tensor(&host, view, err));
    if (slot->kind == LS_SLOT_EMBED) { /* kept as stored: a forward reads single rows of it */
        b->model->embed_dtype = dtype;
        LS_TRY(own_array(b, slot->embed, view->n_elements, ls_dtype_bytes(dtype)));
        LS_TRY(ls_memory_write(b->device, *slot->embed, host, view->bytes, err));
        goto done;
    }
    LS_TRY(ls_memory_alloc(b->device, &data, view->bytes, 1, "tensor", err));
    LS_TRY(ls_memory_write(b->device, data, host, view->bytes, err));
    if (slot->kind == LS_SLOT_MATRIX) {
        LS_TRY(ls_gemm_pack(b->device, slot->matrix, data, dtype, slot->dims[0], slot->dims[1], err));
        b->model->weight_bytes += slot->matrix->panel_bytes;
    } else {
        LS_TRY(own_array(b, (void **)slot->vector, view->n_elements, (int64_t)sizeof(float)));
        b->model->weight_bytes += view->n_elements * (int64_t)sizeof(float);
        LS_TRY(ls_slot_fill(slot, b->device, data, dtype, err));
    }
    LS_TRY(ls_device_wait(b->device, err));
done:
    ls_memory_free(b->device, data);
    free(host);
    return status;
}

/* Whether the tensor holds what the embedding holds. */
static ls_status same_as_embedding(binder *b, bool *same, const ls_tensor_view *view) {
    void *stored = NULL, *embed = NULL;
    ls_status status;
    LS_TRY(read_tensor(&stored, view, b->err));
    LS_TRY(ls_array_alloc(&embed, view->bytes, 1, "tensor", b->err));
    LS_TRY(ls_memory_take(b->device, embed, b->model->embed, view->bytes, b->err));
    *same = memcmp(stored, embed, (size_t)view->bytes) == 0;
done:
    free(embed);
    free(stored);
    return status;
}

/* The head of a tied model is the embedding. Its checkpoint may store lm_head.weight as well; it must then hold the
 * embedding's bytes, or the two readings of the file would be different models. */
static ls_status bind_tied_head(binder *b) {
    ls_model *model = b->model;
    const ls_model_config *c = &model->config;
    ls_weight_slot slot = {.n_dims = 2, .dims = {c->vocab, c->hidden}};
    const ls_tensor_view *head;
    bool same = false;
    ls_dtype dtype;
    ls_status status = LS_OK;
    if (!c->tied) return LS_OK;
    snprintf(slot.name, sizeof slot.name, "%s", c->names->head);
    if (ls_checkpoint_find(b->checkpoint, slot.name) != NULL) {
        LS_TRY(find(b, &head, &dtype, &slot));
        model->n_parameters -= head->n_elements;
        if (dtype == model->embed_dtype) LS_TRY(same_as_embedding(b, &same, head));
        if (!same)
            return LS_FAIL(b->err, LS_ERR_FORMAT, "%s: %s: differs from %s, but tie_word_embeddings is true",
                           head->file, c->names->head, c->names->embed);
    }
    LS_TRY(ls_gemm_pack(b->device, &model->head, model->embed, model->embed_dtype, c->vocab, c->hidden, b->err));
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

static ls_status make_layer(ls_model *model, int64_t layer_i, ls_error *err) {
    ls_layer *layer = &model->layers[layer_i];
    const ls_model_config *c = &model->config;
    const bool experts = c->is_moe[layer_i] != 0;
    layer->mixer = c->is_attention[layer_i] ? &ls_part_attention : &ls_part_mamba;
    if (c->ffn == 0) return LS_OK;
    layer->ffn = experts ? &ls_part_experts : &ls_part_dense;
    layer->n_experts = experts ? c->n_experts : 1;
    return ls_array_alloc((void **)&layer->expert, layer->n_experts, sizeof *layer->expert, "experts", err);
}

ls_status ls_model_outline(ls_model **out, const ls_model_config *config, ls_error *err) {
    ls_model *model = calloc(1, sizeof *model);
    ls_status status;
    *out = NULL;
    if (model == NULL) return LS_FAIL(err, LS_ERR_NOMEM, "model");
    model->config = *config;
    LS_TRY(ls_array_alloc((void **)&model->layers, config->n_layers, sizeof *model->layers, "layers", err));
    for (int64_t i = 0; i < config->n_layers; i++) LS_TRY(make_layer(model, i, err));
    *out = model;
    model = NULL;
done:
    ls_model_close(model);
    return status;
}

ls_status ls_model_open(ls_model **out, ls_device *device, const char *directory, ls_error *err) {
    ls_model_config config;
    ls_model *model = NULL;
    binder b = {.device = device, .directory = directory, .err = err};
    ls_status status;
    *out = NULL;
    LS_TRY(ls_model_config_open(&config, directory, err));
    LS_TRY(ls_model_outline(&model, &config, err));
    model->device = device;
    LS_TRY(ls_checkpoint_open(&model->checkpoint, directory, err));
    b.model = model;
    b.checkpoint = model->checkpoint;
    LS_TRY(ls_array_alloc((void **)&b.used, ls_checkpoint_count(b.checkpoint), sizeof(const ls_tensor_view *),
                          "tensors", err));
    LS_TRY(ls_model_slots(model, bind_slot, &b, err));
    LS_TRY(bind_tied_head(&b));
    LS_TRY(check_all_used(&b));
    LS_TRY(ls_checkpoint_check(model->checkpoint, err));
    *out = model;
    model = NULL;
done:
    free((void *)b.used);
    ls_model_close(model);
    return status;
}

void ls_model_close(ls_model *model) {
    if (model == NULL) return;
    for (int64_t i = 0; model->layers != NULL && i < model->config.n_layers; i++) {
        ls_layer *layer = &model->layers[i];
        ls_gemm_weight *matrices[] = {&layer->attention.q,   &layer->attention.k,    &layer->attention.v,
                                      &layer->attention.o,   &layer->mamba.in_proj,  &layer->mamba.x_proj,
                                      &layer->mamba.dt_proj, &layer->mamba.out_proj, &layer->router};
        for (size_t m = 0; m < sizeof matrices / sizeof matrices[0]; m++)
            ls_gemm_weight_free(model->device, matrices[m]);
        for (int64_t e = 0; layer->expert != NULL && e < layer->n_experts; e++) {
            ls_gemm_weight_free(model->device, &layer->expert[e].gate);
            ls_gemm_weight_free(model->device, &layer->expert[e].up);
            ls_gemm_weight_free(model->device, &layer->expert[e].down);
        }
        free(layer->expert);
    }
    ls_gemm_weight_free(model->device, &model->head);
    for (int64_t i = 0; i < model->n_owned; i++) ls_memory_free(model->device, model->owned[i]);
    free((void *)model->owned);
    free(model->layers);
    ls_checkpoint_close(model->checkpoint);
    free(model);
}

ls_status ls_model_scale_inputs(ls_model *model, float factor, ls_error *err) {
    const int64_t n = model->config.hidden, bytes = n * (int64_t)sizeof(float);
    float *w = NULL;
    ls_status status;
    LS_TRY(ls_array_alloc((void **)&w, n, sizeof *w, "weights", err));
    for (int64_t i = 0; i < model->config.n_layers; i++) {
        LS_TRY(ls_memory_take(model->device, w, model->layers[i].input_norm, bytes, err));
        for (int64_t k = 0; k < n; k++) w[k] *= factor;
        LS_TRY(ls_memory_write(model->device, model->layers[i].input_norm, w, bytes, err));
    }
done:
    free(w);
    return status;
}
