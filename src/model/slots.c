/* The walk over all tensors of a model. */
#include "model/slots.h"

#include <stdio.h>
#include <string.h>

#include "model/parts.h"
#include "op/weight.h"

ls_status ls_walk_slot(const ls_walk *w, ls_weight_slot slot, const char *prefix, const char *name) {
    size_t used = 0;
    if (w->layer_i >= 0)
        used = (size_t)snprintf(slot.name, sizeof slot.name, "%s%lld.", w->names->layers, (long long)w->layer_i);
    slot.layer_i = w->layer_i;
    if (slot.tensor.n_dims == 0) {
        slot.tensor.n_dims = slot.n_dims;
        memcpy(slot.tensor.dims, slot.dims, sizeof slot.dims);
    }
    snprintf(slot.name + used, sizeof slot.name - used, "%s%s", prefix, name);
    return w->visit(w->context, &slot, w->err);
}

ls_status ls_walk_matrix(const ls_walk *w, ls_gemm_weight *out, int64_t n, int64_t k, const char *prefix,
                         const char *name) {
    const ls_weight_slot slot = {.kind = LS_SLOT_MATRIX, .n_dims = 2, .dims = {n, k}, .matrix = out};
    return ls_walk_slot(w, slot, prefix, name);
}

ls_status ls_walk_part(const ls_walk *w, ls_gemm_weight *out, int64_t n, int64_t k, const ls_slot_tensor *tensor,
                       const char *prefix, const char *name) {
    const ls_weight_slot slot = {.kind = LS_SLOT_MATRIX, .n_dims = 2, .dims = {n, k}, .tensor = *tensor, .matrix = out};
    return ls_walk_slot(w, slot, prefix, name);
}

ls_status ls_walk_vector(const ls_walk *w, float **out, int64_t n, const char *prefix, const char *name) {
    const ls_weight_slot slot = {.kind = LS_SLOT_VECTOR, .n_dims = 1, .dims = {n}, .vector = out};
    return ls_walk_slot(w, slot, prefix, name);
}

ls_status ls_walk_norm(const ls_walk *w, float **out, int64_t n, const char *prefix, const char *name) {
    const ls_weight_slot slot = {
        .kind = LS_SLOT_VECTOR, .above_one = w->model->config.norms_above_one, .n_dims = 1, .dims = {n}, .vector = out};
    return ls_walk_slot(w, slot, prefix, name);
}

static ls_status walk_layer(const ls_walk *w, ls_layer *layer) {
    const int64_t hidden = w->model->config.hidden;
    if (layer->mixer != NULL) LS_TRY(ls_walk_norm(w, &layer->input_norm, hidden, "", w->names->input_norm));
    if (layer->ffn != NULL) LS_TRY(ls_walk_norm(w, &layer->ffn_norm, hidden, "", w->names->ffn_norm));
    if (layer->mixer != NULL) LS_TRY(layer->mixer->walk(w, layer));
    if (layer->ffn != NULL) LS_TRY(layer->ffn->walk(w, layer));
    return LS_OK;
}

ls_status ls_model_slots(ls_model *model, ls_slot_visit visit, void *context, ls_error *err) {
    const ls_model_config *c = &model->config;
    ls_walk w = {model, c->names, visit, context, -1, err};
    const ls_weight_slot embed = {
        .kind = LS_SLOT_EMBED, .n_dims = 2, .dims = {c->vocab, c->hidden}, .embed = &model->embed};
    LS_TRY(ls_walk_slot(&w, embed, "", c->names->embed));
    LS_TRY(ls_walk_norm(&w, &model->final_norm, c->hidden, "", c->names->final_norm));
    for (w.layer_i = 0; w.layer_i < c->n_layers; w.layer_i++) LS_TRY(walk_layer(&w, &model->layers[w.layer_i]));
    w.layer_i = -1;
    if (!c->tied) LS_TRY(ls_walk_matrix(&w, &model->head, c->vocab, c->hidden, "", c->names->head));
    return LS_OK;
}

bool ls_slot_is_value(const ls_weight_slot *slot, const ls_device *device, ls_dtype dtype) {
    if (slot->kind == LS_SLOT_EMBED) return true;
    return slot->kind == LS_SLOT_MATRIX && device->table->packs_behind_rows && slot->matrix->dtype == dtype;
}

void ls_slot_parts(ls_digest_part out[LS_SLOT_PARTS], const ls_weight_slot *slot, const ls_dtype *dtype) {
    out[0] = (ls_digest_part){slot->name, (int64_t)strlen(slot->name) + 1, true};
    out[1] = (ls_digest_part){slot->dims, (int64_t)sizeof slot->dims, true};
    out[2] = (ls_digest_part){dtype, (int64_t)sizeof *dtype, true};
}

ls_status ls_slot_fill(const ls_weight_slot *slot, ls_device *device, const void *data, ls_dtype dtype, ls_error *err) {
    const int64_t n = ls_slot_elements(slot);
    const ls_taps_args taps = {data, dtype, slot->dims[0], slot->dims[2], *slot->vector};
    const ls_decay_args decay = {data, dtype, n, *slot->vector};
    const ls_rates_args rates = {data, dtype, n, *slot->vector};
    const ls_widen_args widen = {data, dtype, n, *slot->vector, slot->above_one};
    if (slot->kind == LS_SLOT_CONV) return ls_taps(device, &taps, err);
    if (slot->kind == LS_SLOT_RATES) return ls_rates(device, &rates, err);
    return slot->kind == LS_SLOT_DECAY ? ls_decay(device, &decay, err) : ls_widen(device, &widen, err);
}
