/* One parameter: which part of it is whose, where its value lies, and the way of that into the model. */
#include "model/layer_buffer.h"
#include "model/params.h"
#include "op/adamw.h"
#include "op/weight.h"

int64_t ls_parameters_share(const ls_parameters *all, int64_t share, int64_t n_shares) {
    /* share n / n_shares without a product that could wrap */
    const int64_t n = all->n_elements, at = n / n_shares * share + n % n_shares * share / n_shares;
    if (share == 0) return 0;
    for (int64_t i = 0; i < all->n; i++) {
        const ls_parameter *p = &all->list[i];
        if (at > p->offset + p->n_elements) continue;
        const int64_t block = ((at - p->offset) + LS_SQUARES_BLOCK - 1) / LS_SQUARES_BLOCK;
        return p->offset + (block * LS_SQUARES_BLOCK < p->n_elements ? block * LS_SQUARES_BLOCK : p->n_elements);
    }
    return n;
}

void ls_parameter_part(const ls_parameter *p, int64_t from, int64_t to, int64_t *begin, int64_t *end) {
    *begin = from > p->offset ? from - p->offset : 0;
    if (*begin > p->n_elements) *begin = p->n_elements;
    *end = to - p->offset < p->n_elements ? to - p->offset : p->n_elements;
    if (*end < *begin) *end = *begin;
}

bool ls_parameter_is_whole(const ls_parameters *all, const ls_parameter *p) {
    return all->model->layer_buffer == NULL || p->slot.layer_i < 0;
}

void *ls_parameter_value(const ls_parameter *p) {
    if (p->own != NULL) return p->own;
    return p->slot.kind == LS_SLOT_EMBED ? *p->slot.embed : p->slot.matrix->panels;
}

void *ls_parameter_own(const ls_parameter *p) {
    if (p->part != NULL) return p->part;
    return (uint8_t *)ls_parameter_value(p) + p->begin * ls_dtype_bytes(p->dtype);
}

ls_status ls_parameter_need(const ls_parameters *all, const ls_parameter *p, ls_error *err) {
    return p->slot.layer_i < 0 ? LS_OK : ls_model_need(all->model, p->slot.layer_i, err);
}

ls_status ls_parameter_store(const ls_parameters *all, const ls_parameter *p, ls_error *err) {
    void *value = ls_parameter_value(p);
    const bool is_embedding = p->slot.kind == LS_SLOT_EMBED;
    const ls_gemm_weight *matrix = is_embedding ? &all->model->head : p->slot.matrix;
    const ls_gemm_repack_args pack = {matrix, value, p->dtype};
    if (!is_embedding && p->slot.kind != LS_SLOT_MATRIX)
        LS_TRY(ls_slot_fill(&p->slot, all->device, value, p->dtype, err));
    if (p->slot.kind == LS_SLOT_MATRIX || (is_embedding && all->model->config.tied))
        LS_TRY(ls_gemm_repack(all->device, &pack, err));
    return LS_OK;
}
