/* From a checkpoint to ls_model: takes each tensor to the device, packs matrices and widens small vectors there.
 * Matrices keep their stored type; every tensor of the file must be used. */
#include <stdlib.h>

#include "base/mem.h"
#include "model/architectures.h"
#include "model/layer_buffer.h"
#include "model/parts.h"
#include "model/stored.h"
#include "op/delta.h"
#include "op/gated_norm.h"
#include "op/regroup.h"
#include "op/sigmoid_gate.h"

typedef struct binder {
    ls_model *model;
    ls_device *device;
    ls_stored stored;
    bool by_layer;
    void *tensor; /* device memory: the tensor that is being read, as stored; one place for all leaves no holes */
    int64_t tensor_bytes;
    ls_error *err;
} binder;

static void drop_tensor(binder *b) {
    if (b->tensor != NULL) ls_memory_unreserve(b->device, b->tensor, b->tensor_bytes);
    b->tensor = NULL;
    b->tensor_bytes = 0;
}

static ls_status make_room(binder *b, int64_t bytes) {
    if (b->tensor != NULL && bytes <= b->tensor_bytes) return LS_OK;
    drop_tensor(b);
    LS_TRY(ls_memory_reserve(b->device, &b->tensor, bytes, 1, "tensor", b->err));
    b->tensor_bytes = bytes;
    return LS_OK;
}

/* Array of n elements that the model owns. */
static ls_status own_array(binder *b, void **out, int64_t n, int64_t elem_bytes) {
    ls_model *model = b->model;
    LS_TRY(ls_array_grow((void **)&model->owned, &model->owned_cap, model->n_owned + 1, sizeof(void *), "weights",
                         b->err));
    LS_TRY(ls_memory_alloc(b->device, out, n, elem_bytes, "weights", b->err));
    model->owned[model->n_owned++] = *out;
    return LS_OK;
}

/* Reads one slot's tensor into the model. */
static ls_status bind_slot(void *context, const ls_weight_slot *slot, ls_error *err) {
    binder *b = context;
    ls_model *model = b->model;
    const int64_t n = ls_slot_elements(slot);
    const ls_tensor_view *view;
    ls_dtype dtype;
    LS_TRY(ls_stored_find(&b->stored, &view, &dtype, slot, err));
    model->n_parameters += n;
    if (b->by_layer && slot->layer_i >= 0) return ls_layer_buffer_add(model, slot, dtype, err);
    if (slot->kind == LS_SLOT_EMBED) { /* kept as stored: a forward reads single rows of it */
        model->embed_dtype = dtype;
        LS_TRY(own_array(b, slot->embed, n, ls_dtype_bytes(dtype)));
        return ls_stored_load(&b->stored, b->device, *slot->embed, view, slot, err);
    }
    LS_TRY(make_room(b, n * ls_dtype_bytes(dtype)));
    LS_TRY(ls_stored_load(&b->stored, b->device, b->tensor, view, slot, err));
    if (slot->kind == LS_SLOT_MATRIX) {
        LS_TRY(ls_gemm_pack_rows(b->device, slot->matrix, b->tensor, dtype, slot->dims[0], slot->dims[1], err));
        model->weight_bytes += ls_gemm_read_bytes(slot->matrix);
    } else {
        LS_TRY(own_array(b, (void **)slot->vector, n, (int64_t)sizeof(float)));
        model->weight_bytes += n * (int64_t)sizeof(float);
        LS_TRY(ls_slot_fill(slot, b->device, b->tensor, dtype, err));
    }
    return ls_device_wait(b->device, err);
}

/* The head of a tied model is the embedding. */
static ls_status bind_tied_head(binder *b) {
    ls_model *model = b->model;
    const ls_model_config *c = &model->config;
    if (!c->tied) return LS_OK;
    LS_TRY(ls_stored_check_head(&b->stored, c, b->err));
    LS_TRY(ls_gemm_pack_rows(b->device, &model->head, model->embed, model->embed_dtype, c->vocab, c->hidden, b->err));
    model->weight_bytes += ls_gemm_read_bytes(&model->head);
    return LS_OK;
}

static const ls_part *mixer_of(const ls_model_config *c, int64_t layer_i) {
    if (c->no_mixer[layer_i]) return NULL;
    if (c->is_attention[layer_i]) return &ls_part_attention;
    switch (ls_config_recurrence(c)) {
        case LS_RECURRENCE_DELTA: return &ls_part_delta;
        case LS_RECURRENCE_SSD: return &ls_part_mamba2;
        default: return &ls_part_mamba;
    }
}

static ls_status make_layer(ls_model *model, int64_t layer_i, ls_error *err) {
    ls_layer *layer = &model->layers[layer_i];
    const ls_model_config *c = &model->config;
    const bool experts = c->is_moe[layer_i] != 0;
    layer->mixer = mixer_of(c, layer_i);
    if (c->ffn == 0 || c->no_ffn[layer_i]) return LS_OK;
    layer->ffn = experts ? &ls_part_experts : c->ungated ? &ls_part_ungated : &ls_part_dense;
    layer->n_experts = experts ? c->n_experts : 1;
    return ls_array_alloc((void **)&layer->expert, layer->n_experts, sizeof *layer->expert, "experts", err);
}

ls_status ls_model_outline(ls_model **out, const ls_model_config *config, ls_error *err) {
    ls_model *model = calloc(1, sizeof *model);
    ls_status status;
    *out = NULL;
    if (model == NULL) return LS_FAIL(err, LS_ERR_NOMEM, "model");
    model->config = *config;
    LS_TRY_DONE(ls_array_alloc((void **)&model->layers, config->n_layers, sizeof *model->layers, "layers", err));
    for (int64_t i = 0; i < config->n_layers; i++) LS_TRY_DONE(make_layer(model, i, err));
    *out = model;
    model = NULL;
done:
    ls_model_close(model);
    return status;
}

/* Calls of no row. */
static ls_status try_ssd(const binder *b, float *w) {
    const ls_model_config *c = &b->model->config;
    const ls_gated_norm_args norm = {.x_stride = c->d_inner,
                                     .z_stride = c->d_inner,
                                     .eps = c->rms_eps,
                                     .y_dtype = LS_F32,
                                     .y_stride = c->d_inner,
                                     .dim = c->d_inner,
                                     .w = w,
                                     .groups = c->ssd_groups};
    return ls_gated_norm(b->device, &norm, b->err);
}

static ls_status try_delta(const binder *b, float *w) {
    const ls_model_config *c = &b->model->config;
    const int64_t keys = (int64_t)c->delta_key_heads * c->d_state, heads = c->delta_heads;
    const int64_t size = (int64_t)sizeof *w, state = c->d_inner * (int64_t)c->d_state * size;
    const ls_delta_args delta = {.q = w,
                                 .k = w,
                                 .v = w,
                                 .a = w,
                                 .b = w,
                                 .out = w,
                                 .q_stride = keys,
                                 .k_stride = keys,
                                 .v_stride = c->d_inner,
                                 .a_stride = heads,
                                 .b_stride = heads,
                                 .out_stride = c->d_inner,
                                 .rate = w,
                                 .dt_bias = w,
                                 .n_heads = heads,
                                 .n_key_heads = c->delta_key_heads,
                                 .key_dim = c->d_state,
                                 .value_dim = c->d_inner / heads,
                                 .state = {NULL, (state + 15) / 16 * 16, 0},
                                 .scale = {NULL, heads * size, 0}};
    const ls_sigmoid_gate_args gate = {.x_stride = 1, .gate_stride = 1, .y_stride = 1, .dim = 1, .gates = 1};
    const ls_regroup_args regroup = {.x = w, .x_stride = 1, .part = {{w, 1, 1}}, .n_parts = 1, .heads = 1};
    LS_TRY(ls_delta(b->device, &delta, b->err));
    if (c->delta_by_head) LS_TRY(ls_regroup(b->device, &regroup, b->err));
    return c->head_gates ? ls_sigmoid_gate(b->device, &gate, b->err) : LS_OK;
}

/* A back end without the ops of Mamba-2 or of the delta rule says so here, and not when a model that took minutes to
 * load runs. */
static ls_status try_ops(const binder *b) {
    const ls_model_config *c = &b->model->config;
    float *w = NULL;
    ls_status status;
    if (ls_config_recurrence(c) == LS_RECURRENCE_SCAN) return LS_OK;
    LS_TRY(ls_memory_alloc(b->device, (void **)&w, c->d_inner, sizeof *w, "weights", b->err));
    status = c->delta_heads > 0 ? try_delta(b, w) : try_ssd(b, w);
    ls_memory_free(b->device, w);
    return status;
}

ls_status ls_model_open_with(ls_model **out, ls_device *device, const char *directory, const ls_model_loading *how,
                             ls_error *err) {
    ls_model_config config;
    const int64_t held = device->ledger.used;
    ls_model *model = NULL;
    binder b = {.device = device, .err = err};
    ls_status status;
    *out = NULL;
    LS_TRY_DONE(ls_model_config_open(&config, directory, err));
    LS_TRY_DONE(ls_model_outline(&model, &config, err));
    model->device = device;
    b.model = model;
    b.by_layer = how != NULL && how->by_layer;
    LS_TRY_DONE(try_ops(&b));
    LS_TRY_DONE(ls_stored_open(&b.stored, directory, config.names, how, err));
    LS_TRY_DONE(ls_model_slots(model, bind_slot, &b, err));
    LS_TRY_DONE(bind_tied_head(&b));
    if (b.by_layer) LS_TRY_DONE(ls_layer_buffer_place(model, err));
    drop_tensor(&b);
    if (how == NULL || !how->no_tiles) LS_TRY_DONE(ls_model_tiles(model, true, err));
    LS_TRY_DONE(ls_memory_trim(device, err)); /* tensors as stored are no longer there */
    model->device_bytes = device->ledger.used - held;
    LS_TRY_DONE(ls_stored_check(&b.stored, config.n_layers, err));
    model->checkpoint = b.stored.checkpoint;
    b.stored.checkpoint = NULL;
    *out = model;
    model = NULL;
done:
    drop_tensor(&b);
    ls_stored_close(&b.stored);
    ls_model_close(model);
    return status;
}

ls_status ls_model_open(ls_model **out, ls_device *device, const char *directory, ls_error *err) {
    return ls_model_open_with(out, device, directory, NULL, err);
}

void ls_model_close(ls_model *model) {
    if (model == NULL) return;
    ls_layer_buffer_free(model);
    for (int64_t i = 0; model->layers != NULL && i < model->config.n_layers; i++) {
        ls_layer *layer = &model->layers[i];
        ls_gemm_weight *matrices[] = {
            &layer->delta.qkv,       &layer->delta.z,       &layer->delta.b,        &layer->delta.a,
            &layer->delta.qkvz,      &layer->delta.ba,      &layer->delta.out_proj, &layer->shared.gate,
            &layer->shared.up,       &layer->shared.down,   &layer->shared_gate,    &layer->attention.q,
            &layer->attention.k,     &layer->attention.v,   &layer->attention.o,    &layer->mamba.in_proj,
            &layer->mamba.x_proj,    &layer->mamba.dt_proj, &layer->mamba.out_proj, &layer->mamba2.in_proj,
            &layer->mamba2.out_proj, &layer->router};
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
    if (model->tiles != NULL) ls_memory_unreserve(model->device, model->tiles, model->tiles_bytes);
    for (int64_t i = 0; i < model->n_owned; i++) ls_memory_free(model->device, model->owned[i]);
    free((void *)model->owned);
    free(model->parked);
    free(model->layers);
    ls_checkpoint_close(model->checkpoint);
    free(model);
}

ls_status ls_model_scale_inputs(ls_model *model, float factor, ls_error *err) {
    const int64_t n = model->config.hidden, bytes = n * (int64_t)sizeof(float);
    float *w = NULL;
    ls_status status;
    LS_ASSERT(model->layer_buffer == NULL, "%d layers come by a buffer", model->config.n_layers);
    LS_TRY_DONE(ls_array_alloc((void **)&w, n, sizeof *w, "weights", err));
    for (int64_t i = 0; i < model->config.n_layers; i++) {
        if (model->layers[i].mixer == NULL) continue;
        LS_TRY_DONE(ls_memory_take(model->device, w, model->layers[i].input_norm, bytes, err));
        for (int64_t k = 0; k < n; k++) w[k] *= factor;
        LS_TRY_DONE(ls_memory_write(model->device, model->layers[i].input_norm, w, bytes, err));
    }
done:
    free(w);
    return status;
}
