/* Weights on the host while something else needs the device's memory. Owns, between park and unpark, one array of the
 * host with all of them, in the order of the walk. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "model/slots.h"
#include "model/stored.h"

/* An array of the model on the device, and who points to it. */
typedef struct piece {
    void **place, **owned; /* owned: the model's list of arrays has it too; NULL: it has not */
    int64_t bytes, at;     /* at: where it lies on the host */
} piece;

typedef struct listing {
    ls_model *model;
    piece *pieces; /* [n] */
    int64_t n, cap, bytes, n_owned;
} listing;

static ls_status list_piece(listing *l, void **place, void **owned, int64_t bytes, ls_error *err) {
    LS_TRY(ls_array_grow((void **)&l->pieces, &l->cap, l->n + 1, (int64_t)sizeof *l->pieces, "weights", err));
    l->pieces[l->n++] = (piece){place, owned, bytes, l->bytes};
    return ls_add_i64(l->bytes, bytes, &l->bytes) ? LS_OK : LS_FAIL(err, LS_ERR_NOMEM, "weights: more than 64 bits");
}

/* What is no matrix is in the model's list, in the order of the walk. */
static ls_status list_owned(listing *l, void **place, int64_t bytes, ls_error *err) {
    LS_ASSERT(l->n_owned < l->model->n_owned, "array %lld of %lld", (long long)l->n_owned,
              (long long)l->model->n_owned);
    return list_piece(l, place, &l->model->owned[l->n_owned++], bytes, err);
}

static ls_status list_slot(void *context, const ls_weight_slot *slot, ls_error *err) {
    listing *l = context;
    const int64_t n = ls_slot_elements(slot);
    if (slot->kind == LS_SLOT_MATRIX) return list_piece(l, &slot->matrix->panels, NULL, slot->matrix->panel_bytes, err);
    if (slot->kind == LS_SLOT_EMBED) return list_owned(l, slot->embed, n * ls_dtype_bytes(l->model->embed_dtype), err);
    return list_owned(l, (void **)slot->vector, n * (int64_t)sizeof(float), err);
}

static ls_status list_all(listing *l, ls_error *err) {
    LS_TRY(ls_model_slots(l->model, list_slot, l, err));
    if (!l->model->config.tied) return LS_OK;
    return list_piece(l, &l->model->head.panels, NULL, l->model->head.panel_bytes, err);
}

static void put_piece(const piece *p, void *memory) {
    *p->place = memory;
    if (p->owned != NULL) *p->owned = memory;
}

/* ---- away ---- */

static ls_status take_all(const listing *l, uint8_t *host, ls_error *err) {
    for (int64_t i = 0; i < l->n; i++)
        LS_TRY(ls_memory_read(l->model->device, host + l->pieces[i].at, *l->pieces[i].place, l->pieces[i].bytes, err));
    return ls_device_wait(l->model->device, err);
}

ls_status ls_model_park(ls_model *model, ls_error *err) {
    listing l = {.model = model};
    uint8_t *host = NULL;
    ls_status status;
    LS_ASSERT(model->layer_buffer == NULL, "%d layers come by a buffer", model->config.n_layers);
    if (model->parked != NULL) return LS_OK;
    LS_TRY_DONE(ls_model_tiles(model, false, err));
    LS_TRY_DONE(list_all(&l, err));
    LS_TRY_DONE(ls_array_alloc((void **)&host, l.bytes, 1, "weights on the host", err));
    LS_TRY_DONE(take_all(&l, host, err));
    for (int64_t i = 0; i < l.n; i++) {
        ls_memory_free(model->device, *l.pieces[i].place);
        put_piece(&l.pieces[i], NULL);
    }
    model->parked = host;
    host = NULL;
    status = ls_memory_trim(model->device, err);
done:
    if (status != LS_OK) {
        (void)ls_device_wait(model->device, NULL); /* reads may still end there */
        (void)ls_model_tiles(model, true, NULL);   /* their memory was free a moment ago */
    }
    free(host);
    free(l.pieces);
    return status;
}

/* ---- back ---- */

static ls_status bring_back(void *context, void *host, int64_t at, int64_t bytes, ls_error *err) {
    (void)err;
    memcpy(host, (const uint8_t *)context + at, (size_t)bytes);
    return LS_OK;
}

/* New arrays with the weights in them, [n]; those that are there after a failure are the caller's to free. */
static ls_status bring_all(const listing *l, void **arrays, ls_error *err) {
    ls_device *device = l->model->device;
    for (int64_t i = 0; i < l->n; i++) {
        const piece *p = &l->pieces[i];
        LS_TRY(ls_memory_alloc(device, &arrays[i], p->bytes, 1, "weights", err));
        LS_TRY(ls_memory_load(device, arrays[i], p->bytes, LS_PIECE_BYTES, bring_back, l->model->parked + p->at, err));
    }
    return ls_device_wait(device, err);
}

ls_status ls_model_unpark(ls_model *model, ls_error *err) {
    listing l = {.model = model};
    void **arrays = NULL;
    ls_status status;
    if (model->parked == NULL) return LS_OK;
    LS_TRY_DONE(list_all(&l, err));
    LS_TRY_DONE(ls_array_alloc((void **)&arrays, l.n, sizeof *arrays, "weights", err));
    LS_TRY_DONE(bring_all(&l, arrays, err));
    for (int64_t i = 0; i < l.n; i++) put_piece(&l.pieces[i], arrays[i]);
    status = ls_model_tiles(model, true, err);
    for (int64_t i = 0; i < l.n; i++) {
        if (status != LS_OK) put_piece(&l.pieces[i], NULL);
        if (status == LS_OK) arrays[i] = NULL;
    }
    if (status != LS_OK) goto done;
    free(model->parked);
    model->parked = NULL;
done:
    for (int64_t i = 0; arrays != NULL && i < l.n; i++) ls_memory_free(model->device, arrays[i]);
    free((void *)arrays);
    free(l.pieces);
    return status;
}
