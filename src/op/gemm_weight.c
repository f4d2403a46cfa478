/* Packed weights of dense products: made, and freed. */
#include <string.h>

#include "op/backend.h"

#define TILES_ALIGNED 256

ls_status ls_gemm_pack(ls_device *device, ls_gemm_weight *out, const void *w, ls_dtype dtype, int64_t n, int64_t k,
                       ls_error *err) {
    const ls_gemm_repack_args fill = {out, w, dtype};
    ls_gemm_weight plan;
    memset(out, 0, sizeof *out);
    if (w == NULL) return LS_FAIL(err, LS_ERR_ARG, "gemm weight: w is NULL");
    if (ls_dtype_bytes(dtype) == 0) return LS_FAIL(err, LS_ERR_ARG, "gemm weight: dtype %d is unknown", (int)dtype);
    if (n < 1) return LS_FAIL(err, LS_ERR_ARG, "gemm weight: n %lld is less than 1", (long long)n);
    if (k < 1) return LS_FAIL(err, LS_ERR_ARG, "gemm weight: k %lld is less than 1", (long long)k);
    LS_TRY(device->table->pack_plan(&plan, dtype, n, k, err));
    LS_TRY(ls_memory_alloc(device, &plan.panels, plan.panel_bytes, 1, "gemm weight", err));
    *out = plan;
    return ls_gemm_repack(device, &fill, err);
}

/* The copy for few rows is what the layout has behind the rows. */
ls_status ls_gemm_pack_rows(ls_device *device, ls_gemm_weight *out, const void *w, ls_dtype dtype, int64_t n, int64_t k,
                            ls_error *err) {
    const ls_gemm_repack_args fill = {out, w, dtype};
    ls_gemm_weight plan;
    if (!device->table->packs_behind_rows) return ls_gemm_pack(device, out, w, dtype, n, k, err);
    memset(out, 0, sizeof *out);
    LS_TRY(device->table->pack_plan(&plan, dtype, n, k, err));
    plan.panel_bytes = plan.panel_stride;
    plan.panel_stride = 0;
    LS_TRY(ls_memory_alloc(device, &plan.panels, plan.panel_bytes, 1, "gemm weight", err));
    *out = plan;
    return ls_gemm_repack(device, &fill, err);
}

ls_status ls_gemm_tiles_bytes(ls_device *device, const ls_gemm_weight *w, int64_t *bytes, ls_error *err) {
    ls_gemm_weight plan;
    *bytes = 0;
    if (!device->table->packs_behind_rows) return LS_OK;
    LS_TRY(device->table->pack_plan(&plan, w->dtype, w->n, w->k, err));
    *bytes = (plan.panel_bytes - plan.panel_stride + TILES_ALIGNED - 1) / TILES_ALIGNED * TILES_ALIGNED;
    return LS_OK;
}

void ls_gemm_set_tiles(ls_gemm_weight *w, void *tiles) {
    w->panel_stride = tiles == NULL ? 0 : (int64_t)((uintptr_t)tiles - (uintptr_t)w->panels);
}

void ls_gemm_weight_free(ls_device *device, ls_gemm_weight *w) {
    if (w == NULL) return;
    ls_memory_free(device, w->panels);
    memset(w, 0, sizeof *w);
}
