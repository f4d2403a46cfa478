/* The buffer: what lies where in its two places, and which layers are there. */
#include "model/layer_buffer.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

#define ALIGN_BYTES 256
enum { PLACES = 2 };

/* A slot of a layer, at these bytes of its place. */
typedef struct piece {
    ls_weight_slot slot;
    int64_t value, packed; /* rows as stored, and as the model computes with; equal where that is one and the same */
} piece;

struct ls_layer_buffer {
    piece *pieces; /* [n], in the order of the walk */
    int64_t n, cap;
    int64_t layer_i, used, n_layer; /* of the layer that is being added: bytes and pieces of it so far */
    int64_t bytes, n_max;           /* the most of any layer */
    uint8_t *place[PLACES];
    int64_t held[PLACES]; /* layers; -1: none */
    ls_layer_source source;
    void *context;
};

static int64_t take_place(ls_layer_buffer *w, int64_t bytes) {
    const int64_t at = w->used;
    w->used += (bytes + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
    return at;
}

static ls_status assure(ls_model *model, ls_error *err) {
    if (model->layer_buffer != NULL) return LS_OK;
    LS_TRY(ls_array_alloc((void **)&model->layer_buffer, 1, sizeof *model->layer_buffer, "buffer", err));
    model->layer_buffer->layer_i = -1;
    return LS_OK;
}

ls_status ls_layer_buffer_add(ls_model *model, const ls_weight_slot *slot, ls_dtype dtype, ls_error *err) {
    const int64_t n = ls_slot_elements(slot);
    int64_t packed = n * (int64_t)sizeof(float);
    ls_layer_buffer *w;
    piece *p;
    LS_TRY(assure(model, err));
    w = model->layer_buffer;
    LS_TRY(ls_array_grow((void **)&w->pieces, &w->cap, w->n + 1, (int64_t)sizeof *w->pieces, "buffer", err));
    if (w->layer_i != slot->layer_i) {
        w->layer_i = slot->layer_i;
        w->used = w->n_layer = 0;
    }
    p = &w->pieces[w->n++];
    p->slot = *slot;
    if (slot->kind == LS_SLOT_MATRIX) {
        LS_TRY(model->device->table->pack_plan(slot->matrix, dtype, slot->dims[0], slot->dims[1], err));
        packed = slot->matrix->panel_bytes;
    }
    model->weight_bytes += slot->kind == LS_SLOT_MATRIX ? ls_gemm_read_bytes(slot->matrix) : packed;
    p->packed = take_place(w, packed);
    p->value = ls_slot_is_value(slot, model->device, dtype) ? p->packed : take_place(w, n * ls_dtype_bytes(dtype));
    if (w->used > w->bytes) w->bytes = w->used;
    if (++w->n_layer > w->n_max) w->n_max = w->n_layer;
    return LS_OK;
}

static void put_matrix(const piece *p, void *memory) {
    if (p->slot.kind == LS_SLOT_MATRIX)
        p->slot.matrix->panels = memory;
    else
        *p->slot.vector = memory;
}

ls_status ls_layer_buffer_place(ls_model *model, ls_error *err) {
    ls_layer_buffer *w;
    LS_TRY(assure(model, err));
    w = model->layer_buffer;
    for (int i = 0; i < PLACES; i++)
        LS_TRY(ls_memory_alloc(model->device, (void **)&w->place[i], w->bytes, 1, "weights", err));
    for (int64_t i = 0; i < w->n; i++)
        put_matrix(&w->pieces[i], w->place[w->pieces[i].slot.layer_i % PLACES] + w->pieces[i].packed);
    return LS_OK;
}

void ls_layer_buffer_free(ls_model *model) {
    ls_layer_buffer *w = model->layer_buffer;
    if (w == NULL) return;
    for (int64_t i = 0; i < w->n; i++) put_matrix(&w->pieces[i], NULL);
    for (int i = 0; i < PLACES; i++) ls_memory_free(model->device, w->place[i]);
    free(w->pieces);
    free(w);
    model->layer_buffer = NULL;
}

void ls_layer_buffer_connect(ls_model *model, ls_layer_source source, void *context) {
    model->layer_buffer->source = source;
    model->layer_buffer->context = context;
}

void *ls_layer_buffer_value(const ls_model *model, const ls_weight_slot *slot) {
    const ls_layer_buffer *w = model->layer_buffer;
    for (int64_t i = 0; i < w->n; i++)
        if (strcmp(w->pieces[i].slot.name, slot->name) == 0 && w->pieces[i].slot.tensor.at == slot->tensor.at)
            return w->place[slot->layer_i % PLACES] + w->pieces[i].value;
    LS_ASSERT(false, "%s is in no buffer", slot->name);
    return NULL;
}

int64_t ls_layer_buffer_bytes(const ls_model *model) {
    return model->layer_buffer == NULL ? 0 : model->layer_buffer->bytes;
}

/* A piece is copied, from two owners at the border of their ranges, and packed. */
int64_t ls_layer_buffer_calls(const ls_model *model) {
    return model->layer_buffer == NULL ? 0 : 3 * model->layer_buffer->n_max;
}

void ls_model_pass(const ls_model *model) {
    ls_layer_buffer *w = model->layer_buffer;
    if (w == NULL) return;
    LS_ASSERT(w->source != NULL, "%lld weights of layers come from nobody", (long long)w->n);
    /* The norm after a sublayer would be more than a layer away. */
    LS_ASSERT(model->ablation == LS_ABLATE_NONE, "ablation %d", (int)model->ablation);
    for (int i = 0; i < PLACES; i++) w->held[i] = -1;
}

ls_status ls_model_need(const ls_model *model, int64_t layer_i, ls_error *err) {
    ls_layer_buffer *w = model->layer_buffer;
    if (w == NULL || w->held[layer_i % PLACES] == layer_i) return LS_OK;
    w->held[layer_i % PLACES] = -1;
    LS_TRY(w->source(w->context, layer_i, err));
    w->held[layer_i % PLACES] = layer_i;
    return LS_OK;
}
