/* The copies of matrices that products of few rows read, where a back end has such. All of them lie in one array of the
 * device, in the order of the walk. */
#include "model/slots.h"
#include "op/backend.h"

/* Of the walk over all matrices: the next one's copy begins at `at`. */
typedef struct listing {
    ls_model *model;
    uint8_t *memory; /* NULL: they are counted alone */
    int64_t at;
} listing;

static ls_status list_matrix(listing *l, ls_gemm_weight *w, ls_error *err) {
    const ls_gemm_repack_args pack = {w, w->panels, w->dtype};
    int64_t bytes;
    LS_TRY(ls_gemm_tiles_bytes(l->model->device, w, &bytes, err));
    if (l->memory != NULL && bytes > 0) {
        ls_gemm_set_tiles(w, l->memory + l->at);
        LS_TRY(ls_gemm_repack(l->model->device, &pack, err));
    }
    l->at += bytes;
    return LS_OK;
}

static ls_status list_slot(void *context, const ls_weight_slot *slot, ls_error *err) {
    listing *l = context;
    if (slot->kind != LS_SLOT_MATRIX || (l->model->layer_buffer != NULL && slot->layer_i >= 0)) return LS_OK;
    return list_matrix(l, slot->matrix, err);
}

static ls_status list_all(listing *l, ls_error *err) {
    LS_TRY(ls_model_slots(l->model, list_slot, l, err));
    return l->model->config.tied ? list_matrix(l, &l->model->head, err) : LS_OK;
}

static ls_status forget_slot(void *context, const ls_weight_slot *slot, ls_error *err) {
    ls_model *model = context;
    (void)err;
    if (slot->kind == LS_SLOT_MATRIX && (model->layer_buffer == NULL || slot->layer_i < 0))
        ls_gemm_set_tiles(slot->matrix, NULL);
    return LS_OK;
}

static ls_status give_back(ls_model *model, ls_error *err) {
    LS_TRY(ls_device_wait(model->device, err)); /* a call may read them still */
    LS_TRY(ls_model_slots(model, forget_slot, model, err));
    if (model->config.tied) ls_gemm_set_tiles(&model->head, NULL);
    ls_memory_unreserve(model->device, model->tiles, model->tiles_bytes);
    model->tiles = NULL;
    return LS_OK;
}

ls_status ls_model_tiles(ls_model *model, bool there, ls_error *err) {
    listing l = {.model = model};
    ls_status status;
    if ((model->tiles != NULL) == there) return LS_OK;
    if (!there) return give_back(model, err);
    LS_TRY(list_all(&l, err));
    if (l.at == 0) return LS_OK;
    model->tiles_bytes = l.at;
    LS_TRY(ls_memory_reserve(model->device, &model->tiles, model->tiles_bytes, 1, "tiles", err));
    l = (listing){model, model->tiles, 0};
    status = list_all(&l, err);
    if (status != LS_OK) (void)give_back(model, NULL);
    return status;
}
