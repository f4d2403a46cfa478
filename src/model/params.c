/* Parameters: read once from the checkpoint, rounded into the model whenever they are published. */
#include "model/params.h"

#include <stdlib.h>
#include <string.h>

#include "base/fnv.h"
#include "base/mem.h"
#include "model/layer_buffer.h"
#include "model/shared_weights.h"
#include "model/stored.h"
#include "op/adamw.h"
#include "op/weight.h"

static ls_status count_slot(void *context, const ls_weight_slot *slot, ls_error *err) {
    ls_parameters *p = context;
    (void)slot;
    (void)err;
    p->n++;
    return LS_OK;
}

typedef struct listing {
    ls_parameters *parameters;
    ls_stored stored;
} listing;

static ls_status list_slot(void *context, const ls_weight_slot *slot, ls_error *err) {
    listing *l = context;
    ls_parameters *all = l->parameters;
    ls_parameter *p = &all->list[all->n++];
    const ls_tensor_view *view;
    LS_TRY(ls_stored_find(&l->stored, &view, &p->dtype, slot, err));
    p->slot = *slot;
    p->n_elements = ls_slot_elements(slot);
    all->n_tensors += slot->tensor.at == 0;
    p->tensor = all->n_tensors - 1;
    p->offset = all->n_elements;
    all->n_elements += p->n_elements;
    if (ls_slot_is_value(slot, all->device, p->dtype)) return LS_OK;
    if (!ls_parameter_is_whole(all, p)) {
        p->own = ls_layer_buffer_value(all->model, slot);
        return LS_OK;
    }
    return ls_memory_alloc(all->device, &p->own, p->n_elements, ls_dtype_bytes(p->dtype), "parameters", err);
}

/* A parameter's value from the checkpoint, or its own part of one that comes by layer, and its master by exact
 * widening. */
static ls_status read_parameter(listing *l, ls_parameter *q, ls_error *err) {
    const ls_widen_args widen = {ls_parameter_own(q), q->dtype, q->end - q->begin, q->master, false};
    const ls_tensor_view *view = ls_checkpoint_find(l->stored.checkpoint, q->slot.name);
    const int64_t size = ls_dtype_bytes(q->dtype);
    if (ls_parameter_is_whole(l->parameters, q))
        LS_TRY(ls_stored_load(&l->stored, l->parameters->device, ls_parameter_value(q), view, &q->slot, err));
    else if (widen.n > 0)
        LS_TRY(ls_stored_load_part(&l->stored, l->parameters->device, q->part, view,
                                   (q->slot.tensor.at + q->begin) * size, widen.n * size, err));
    return widen.n > 0 ? ls_widen(l->parameters->device, &widen, err) : LS_OK;
}

static ls_status alloc_masters(ls_parameters *p, int64_t share, int64_t n_shares, ls_error *err) {
    p->begin = ls_parameters_share(p, share, n_shares);
    p->end = ls_parameters_share(p, share + 1, n_shares);
    LS_TRY(ls_memory_alloc(p->device, (void **)&p->masters, p->end - p->begin, sizeof(float), "parameters", err));
    for (int64_t i = 0; i < p->n; i++) {
        ls_parameter *q = &p->list[i];
        ls_parameter_part(q, p->begin, p->end, &q->begin, &q->end);
        q->master = q->begin < q->end ? p->masters + (q->offset + q->begin - p->begin) : NULL;
    }
    return LS_OK;
}

ls_status ls_parameters_open(ls_parameters **out, ls_model *model, ls_device *device, const char *directory,
                             ls_error *err) {
    return ls_parameters_open_share(out, model, device, directory, 0, 1, err);
}

ls_status ls_parameters_open_share(ls_parameters **out, ls_model *model, ls_device *device, const char *directory,
                                   int64_t share, int64_t n_shares, ls_error *err) {
    ls_parameters *p = calloc(1, sizeof *p);
    listing l = {.parameters = p};
    int64_t n;
    ls_status status = LS_OK;
    *out = NULL;
    if (p == NULL) return LS_FAIL(err, LS_ERR_NOMEM, "parameters");
    p->model = model;
    p->device = device;
    LS_TRY_DONE(ls_stored_open(&l.stored, directory, model->config.names, NULL, err));
    l.stored.watcher = NULL; /* who watches the opening of a model has seen it */
    LS_TRY_DONE(ls_model_slots(model, count_slot, p, err));
    n = p->n;
    p->n = 0;
    LS_TRY_DONE(ls_array_alloc((void **)&p->list, n, sizeof *p->list, "parameters", err));
    LS_TRY_DONE(ls_model_slots(model, list_slot, &l, err));
    LS_TRY_DONE(alloc_masters(p, share, n_shares, err));
    if (model->layer_buffer != NULL) LS_TRY_DONE(ls_shared_weights_open(&p->shared, p, share, n_shares, err));
    for (int64_t i = 0; i < n; i++) LS_TRY_DONE(read_parameter(&l, &p->list[i], err));
    LS_TRY_DONE(ls_checkpoint_check(l.stored.checkpoint, err));
    *out = p;
    p = NULL;
done:
    ls_stored_close(&l.stored);
    ls_parameters_free(p);
    return status;
}

void ls_parameters_free(ls_parameters *p) {
    if (p == NULL) return;
    ls_shared_weights_free(p->shared);
    for (int64_t i = 0; p->list != NULL && i < p->n; i++)
        if (ls_parameter_is_whole(p, &p->list[i])) ls_memory_free(p->device, p->list[i].own);
    ls_memory_free(p->device, p->masters);
    free(p->list);
    free(p);
}

ls_status ls_parameters_round(ls_parameters *parameters, ls_error *err) {
    for (int64_t i = 0; i < parameters->n; i++) {
        const ls_parameter *p = &parameters->list[i];
        const ls_weight_cast_args cast = {p->master, p->end - p->begin, ls_parameter_own(p), p->dtype};
        if (cast.n > 0) LS_TRY(ls_weight_cast(parameters->device, &cast, err));
    }
    return LS_OK;
}

ls_status ls_parameters_store(ls_parameters *parameters, ls_error *err) {
    for (int64_t i = 0; i < parameters->n; i++)
        if (ls_parameter_is_whole(parameters, &parameters->list[i]))
            LS_TRY(ls_parameter_store(parameters, &parameters->list[i], err));
    return LS_OK;
}

ls_status ls_parameters_publish(ls_parameters *parameters, ls_error *err) {
    LS_ASSERT(parameters->end - parameters->begin == parameters->n_elements, "elements [%lld, %lld) of %lld",
              (long long)parameters->begin, (long long)parameters->end, (long long)parameters->n_elements);
    LS_TRY(ls_parameters_round(parameters, err));
    return ls_parameters_store(parameters, err);
}

const ls_parameter *ls_parameter_of_matrix(const ls_parameters *parameters, const ls_gemm_weight *matrix) {
    for (int64_t i = 0; i < parameters->n; i++) {
        const ls_weight_slot *slot = &parameters->list[i].slot;
        if (slot->kind == LS_SLOT_MATRIX && slot->matrix == matrix) return &parameters->list[i];
    }
    LS_ASSERT(false, "no parameter of the matrix at %p", (const void *)matrix);
    return NULL;
}

const ls_parameter *ls_parameter_of_vector(const ls_parameters *parameters, int64_t layer_i, const float *vector) {
    for (int64_t i = 0; vector != NULL && i < parameters->n; i++) {
        const ls_weight_slot *slot = &parameters->list[i].slot;
        if (slot->layer_i == layer_i && slot->kind != LS_SLOT_MATRIX && slot->kind != LS_SLOT_EMBED &&
            *slot->vector == vector)
            return &parameters->list[i];
    }
    LS_ASSERT(false, "no parameter of the vector at %p", (const void *)vector);
    return NULL;
}

const ls_parameter *ls_parameter_of_embedding(const ls_parameters *parameters) {
    for (int64_t i = 0; i < parameters->n; i++)
        if (parameters->list[i].slot.kind == LS_SLOT_EMBED) return &parameters->list[i];
    LS_ASSERT(false, "%lld parameters and no embedding", (long long)parameters->n);
    return NULL;
}

/* Bytes of device memory that are looked at at a time. */
enum { PIECE_BYTES = 1 << 16 };

static ls_status mix_part(ls_device *device, uint64_t *hash, const ls_digest_part *part, uint8_t *piece,
                          ls_error *err) {
    if (part->on_host) *hash = ls_fnv_mix(*hash, part->memory, part->bytes);
    for (int64_t at = 0; !part->on_host && at < part->bytes; at += PIECE_BYTES) {
        const int64_t n = part->bytes - at < PIECE_BYTES ? part->bytes - at : PIECE_BYTES;
        LS_TRY(ls_memory_take(device, piece, (const uint8_t *)part->memory + at, n, err));
        *hash = ls_fnv_mix(*hash, piece, n);
    }
    return LS_OK;
}

ls_status ls_parts_digest(ls_device *device, uint64_t *hash, const ls_digest_part *parts, int64_t n, ls_error *err) {
    uint8_t *piece = NULL;
    ls_status status;
    if (device->table->digest != NULL) return device->table->digest(device, hash, parts, n, err);
    LS_TRY_DONE(ls_array_alloc((void **)&piece, PIECE_BYTES, 1, "digest", err));
    for (int64_t i = 0; i < n; i++) LS_TRY_DONE(mix_part(device, hash, &parts[i], piece, err));
done:
    free(piece);
    return status;
}

ls_status ls_memory_digest(ls_device *device, uint64_t *hash, const void *memory, int64_t bytes, ls_error *err) {
    const ls_digest_part part = {memory, bytes, false};
    return ls_parts_digest(device, hash, &part, 1, err);
}

/* All at once, but where layers share a buffer a layer at a time, as no more of them are there. */
ls_status ls_parameters_digest(const ls_parameters *parameters, uint64_t *out, ls_error *err) {
    enum { PARTS = LS_SLOT_PARTS + 1 };
    const bool by_layer = parameters->model->layer_buffer != NULL;
    ls_digest_part *parts;
    int64_t n = 0;
    ls_status status;
    *out = LS_FNV_START;
    LS_TRY(ls_array_alloc((void **)&parts, parameters->n, PARTS * (int64_t)sizeof *parts, "digest", err));
    ls_model_pass(parameters->model);
    for (int64_t i = 0; i < parameters->n; i++) {
        const ls_parameter *p = &parameters->list[i];
        const bool is_last = i + 1 == parameters->n || (by_layer && p[1].slot.layer_i != p->slot.layer_i);
        LS_TRY_DONE(ls_parameter_need(parameters, p, err));
        ls_slot_parts(&parts[n], &p->slot, &p->dtype);
        parts[n + LS_SLOT_PARTS] =
            (ls_digest_part){ls_parameter_value(p), p->n_elements * ls_dtype_bytes(p->dtype), false};
        n += PARTS;
        if (!is_last) continue;
        LS_TRY_DONE(ls_parts_digest(parameters->device, out, parts, n, err));
        n = 0;
    }
    status = LS_OK;
done:
    free(parts);
    return status;
}
