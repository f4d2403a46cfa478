/* Parameters: read once from the checkpoint, rounded into the model whenever they are published. */
#include "model/jamba_params.h"

#include <stdlib.h>
#include <string.h>

#include "base/fnv.h"
#include "base/mem.h"
#include "op/rows.h"

/* Where a slot's weight lives in the model: what ls_parameter_of is asked with. */
static const void *place_of(const ls_weight_slot *slot) {
    if (slot->kind == LS_SLOT_MATRIX) return slot->matrix;
    return slot->kind == LS_SLOT_EMBED ? *slot->embed : (const void *)*slot->vector;
}

static ls_status count_slot(void *context, const ls_weight_slot *slot, ls_error *err) {
    ls_parameters *p = context;
    (void)slot;
    (void)err;
    p->n++;
    return LS_OK;
}

typedef struct listing {
    ls_parameters *parameters;
    const ls_checkpoint *checkpoint;
} listing;

static ls_status list_slot(void *context, const ls_weight_slot *slot, ls_error *err) {
    const listing *l = context;
    const ls_tensor_view *view = ls_checkpoint_find(l->checkpoint, slot->name);
    ls_parameter *p = &l->parameters->list[l->parameters->n++];
    int64_t n = 1;
    if (view == NULL) return LS_FAIL(err, LS_ERR_FORMAT, "parameters: missing tensor %s", slot->name);
    for (int32_t i = 0; i < slot->n_dims; i++) n *= slot->dims[i];
    p->slot = *slot;
    p->n_elements = n;
    p->offset = l->parameters->n_elements;
    p->dtype = view->dtype == LS_ST_F32 ? LS_F32 : view->dtype == LS_ST_BF16 ? LS_BF16 : LS_F16;
    if (view->n_elements != n || view->bytes != n * ls_dtype_bytes(p->dtype))
        return LS_FAIL(err, LS_ERR_FORMAT, "%s: %s: is not what the model was opened with", view->file, slot->name);
    l->parameters->n_elements += n;
    return ls_array_alloc(&p->value, n, ls_dtype_bytes(p->dtype), "parameters", err);
}

ls_status ls_parameters_open(ls_parameters **out, ls_jamba *model, const char *directory, ls_error *err) {
    ls_parameters *p = calloc(1, sizeof *p);
    listing l = {p, NULL};
    ls_checkpoint *checkpoint = NULL;
    int64_t n;
    ls_status status = LS_OK;
    *out = NULL;
    if (p == NULL) return LS_FAIL(err, LS_ERR_NOMEM, "parameters");
    p->model = model;
    LS_TRY(ls_checkpoint_open(&checkpoint, directory, err));
    l.checkpoint = checkpoint;
    LS_TRY(ls_jamba_slots(model, count_slot, p, err));
    n = p->n;
    p->n = 0;
    LS_TRY(ls_array_alloc((void **)&p->list, n, sizeof *p->list, "parameters", err));
    LS_TRY(ls_jamba_slots(model, list_slot, &l, err));
    LS_TRY(ls_array_alloc((void **)&p->masters, p->n_elements, sizeof(float), "parameters", err));
    for (int64_t i = 0; i < n; i++) {
        const ls_tensor_view *view = ls_checkpoint_find(checkpoint, p->list[i].slot.name);
        p->list[i].master = p->masters + p->list[i].offset;
        LS_TRY(ls_tensor_read(p->list[i].value, view, err));
        ls_row_widen(p->list[i].master, p->list[i].value, p->list[i].dtype, p->list[i].n_elements);
    }
    LS_TRY(ls_checkpoint_check(checkpoint, err));
    *out = p;
    p = NULL;
done:
    ls_checkpoint_close(checkpoint);
    ls_parameters_free(p);
    return status;
}

void ls_parameters_free(ls_parameters *p) {
    if (p == NULL) return;
    for (int64_t i = 0; p->list != NULL && i < p->n; i++) free(p->list[i].value);
    free(p->masters);
    free(p->list);
    free(p);
}

static void repack(ls_gemm_weight *weight, const ls_parameter *p) {
    ls_error err;
    LS_ASSERT(ls_gemm_repack(weight, p->value, p->dtype, &err) == LS_OK, "%s", err.text);
}

void ls_parameters_publish(ls_parameters *parameters) {
    for (int64_t i = 0; i < parameters->n; i++) {
        const ls_parameter *p = &parameters->list[i];
        ls_row_narrow(p->value, p->dtype, p->master, p->n_elements);
        if (p->slot.kind == LS_SLOT_MATRIX)
            repack(p->slot.matrix, p);
        else if (p->slot.kind == LS_SLOT_EMBED)
            memcpy(*p->slot.embed, p->value, (size_t)(p->n_elements * ls_dtype_bytes(p->dtype)));
        else
            ls_slot_fill(&p->slot, p->value, p->dtype);
        if (p->slot.kind == LS_SLOT_EMBED && parameters->model->config.tied) repack(&parameters->model->head, p);
    }
}

const ls_parameter *ls_parameter_of(const ls_parameters *parameters, const void *place) {
    for (int64_t i = 0; i < parameters->n; i++)
        if (place_of(&parameters->list[i].slot) == place) return &parameters->list[i];
    LS_ASSERT(false, "no parameter at %p", place);
    return NULL;
}

uint64_t ls_parameters_digest(const ls_parameters *parameters) {
    uint64_t hash = LS_FNV_START;
    for (int64_t i = 0; i < parameters->n; i++) {
        const ls_parameter *p = &parameters->list[i];
        hash = ls_fnv_mix(hash, p->slot.name, (int64_t)strlen(p->slot.name) + 1);
        hash = ls_fnv_mix(hash, p->slot.dims, (int64_t)sizeof p->slot.dims);
        hash = ls_fnv_mix(hash, &p->dtype, (int64_t)sizeof p->dtype);
        hash = ls_fnv_mix(hash, p->value, p->n_elements * ls_dtype_bytes(p->dtype));
    }
    return hash;
}
