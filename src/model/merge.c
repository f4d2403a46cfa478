/* Which tensors belong together, and one matrix at a time through a CPU. */
#include "model/merge.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "load/safetensors_write.h"
#include "num/half.h"
#include "op/choice.h"
#include "op/lora.h"

enum { PATH_BYTES = 4096, NAME_BYTES = 600 };

#define PREFIX "base_model.model."
#define A_END ".lora_A.weight"
#define B_END ".lora_B.weight"

/* One adapter. */
typedef struct level {
    ls_safetensors *file;
    const ls_adapter_config *config;
    const char *directory;
    const ls_tensor_view **a, **b; /* [n], NULL where nothing is merged */
} level;

struct ls_merging {
    ls_checkpoint *base;
    ls_device *device;
    level levels[LS_ADAPTERS_MAX]; /* the one on the base first */
    int64_t n_levels;
    int64_t n;       /* tensors of the base */
    int64_t at_hand; /* the tensor whose merged values lie in `merged`; -1: none does */
    void *merged;    /* device memory */
};

static bool ends(const char *name, const char *end) {
    const size_t n = strlen(name), m = strlen(end);
    return n > m && strcmp(name + n - m, end) == 0;
}

static bool is_float(ls_st_dtype dtype, ls_dtype *out) {
    *out = dtype == LS_ST_F32 ? LS_F32 : dtype == LS_ST_BF16 ? LS_BF16 : LS_F16;
    return dtype == LS_ST_F32 || dtype == LS_ST_BF16 || dtype == LS_ST_F16;
}

/* One tensor of the adapter finds its matrix. */
static ls_status place_tensor(const ls_merging *m, level *l, const ls_tensor_view *view, ls_error *err) {
    const bool is_a = ends(view->name, A_END);
    const size_t end = strlen(A_END), prefix = strlen(PREFIX), bytes = strlen(view->name);
    const ls_tensor_view *matrix;
    char name[NAME_BYTES];
    ls_dtype dtype;
    if ((!is_a && !ends(view->name, B_END)) || strncmp(view->name, PREFIX, prefix) != 0 || bytes >= NAME_BYTES ||
        bytes <= prefix + end)
        return LS_FAIL(err, LS_ERR_UNSUPPORTED,
                       "%s: tensor '%.200s': neither lora_A nor lora_B of a linear module; PEFT's merge_and_unload() "
                       "merges such adapters",
                       view->file, view->name);
    snprintf(name, sizeof name, "%.*s.weight", (int)(bytes - prefix - end), view->name + prefix);
    matrix = ls_checkpoint_find(m->base, name);
    if (matrix == NULL || matrix->n_dims != 2 || !is_float(matrix->dtype, &dtype))
        return LS_FAIL(err, LS_ERR_FORMAT, "%s: tensor '%.200s': the base has no matrix '%.200s'", view->file,
                       view->name, name);
    if (view->n_dims != 2 || !is_float(view->dtype, &dtype) ||
        view->dims[0] != (is_a ? l->config->rank : matrix->dims[0]) ||
        view->dims[1] != (is_a ? matrix->dims[1] : l->config->rank))
        return LS_FAIL(err, LS_ERR_FORMAT,
                       "%s: tensor '%.200s': rank %lld and '%.200s' [%lld, %lld] call for [%lld, %lld]", view->file,
                       view->name, (long long)l->config->rank, name, (long long)matrix->dims[0],
                       (long long)matrix->dims[1], (long long)(is_a ? l->config->rank : matrix->dims[0]),
                       (long long)(is_a ? matrix->dims[1] : l->config->rank));
    for (int64_t i = 0; i < m->n; i++)
        if (ls_checkpoint_at(m->base, i) == matrix) (is_a ? l->a : l->b)[i] = view;
    return LS_OK;
}

static ls_status pair(const ls_merging *m, level *l, ls_error *err) {
    int64_t n_merged = 0;
    for (int64_t i = 0; i < ls_safetensors_count(l->file); i++)
        LS_TRY(place_tensor(m, l, ls_safetensors_at(l->file, i), err));
    for (int64_t i = 0; i < m->n; i++) {
        if ((l->a[i] == NULL) != (l->b[i] == NULL))
            return LS_FAIL(err, LS_ERR_FORMAT, "%s: '%.200s' has one of lora_A and lora_B", l->directory,
                           ls_checkpoint_at(m->base, i)->name);
        n_merged += l->a[i] != NULL;
    }
    return n_merged > 0 ? LS_OK : LS_FAIL(err, LS_ERR_FORMAT, "%s: no tensor", l->directory);
}

/* A or B as float32 on the device; released by the caller, also after a failure. */
static ls_status bring_factor(const ls_merging *m, float **out, const ls_tensor_view *view, ls_error *err) {
    void *stored = NULL;
    float *wide = NULL;
    ls_dtype dtype;
    ls_status status;
    (void)is_float(view->dtype, &dtype);
    LS_TRY_DONE(ls_array_alloc(&stored, view->bytes, 1, "adapter", err));
    LS_TRY_DONE(ls_array_alloc((void **)&wide, view->n_elements, sizeof *wide, "adapter", err));
    LS_TRY_DONE(ls_tensor_read(stored, view, err));
    for (int64_t i = 0; i < view->n_elements; i++)
        wide[i] = dtype == LS_F32    ? ((const float *)stored)[i]
                  : dtype == LS_BF16 ? ls_bf16_to_f32(((const uint16_t *)stored)[i])
                                     : ls_f16_to_f32(((const uint16_t *)stored)[i]);
    LS_TRY_DONE(ls_memory_alloc(m->device, (void **)out, view->n_elements, sizeof(float), "adapter", err));
    status = ls_memory_write(m->device, *out, wide, view->n_elements * (int64_t)sizeof(float), err);
done:
    free(stored);
    free(wide);
    return status;
}

/* m->merged becomes what the level makes of it. */
static ls_status apply(const ls_merging *m, const level *l, int64_t i, ls_error *err) {
    const ls_tensor_view *view = ls_checkpoint_at(m->base, i);
    float *a = NULL, *b = NULL;
    ls_dtype dtype;
    ls_status status;
    (void)is_float(view->dtype, &dtype);
    LS_TRY_DONE(bring_factor(m, &a, l->a[i], err));
    LS_TRY_DONE(bring_factor(m, &b, l->b[i], err));
    LS_TRY_DONE(ls_lora_merge(m->device,
                              &(ls_lora_merge_args){.w0 = m->merged,
                                                    .a = a,
                                                    .b = b,
                                                    .out = m->merged,
                                                    .dtype = dtype,
                                                    .n = view->dims[0],
                                                    .k = view->dims[1],
                                                    .rank = l->config->rank,
                                                    .scale = l->config->scale},
                              err));
    status = ls_device_wait(m->device, err);
done:
    ls_memory_free(m->device, a);
    ls_memory_free(m->device, b);
    return status;
}

/* The merged values of tensor i, in m->merged. */
static ls_status merge(ls_merging *m, int64_t i, ls_error *err) {
    const ls_tensor_view *view = ls_checkpoint_at(m->base, i);
    void *stored = NULL;
    ls_status status;
    ls_memory_free(m->device, m->merged);
    m->merged = NULL;
    m->at_hand = -1;
    LS_TRY_DONE(ls_array_alloc(&stored, view->bytes, 1, "tensor", err));
    LS_TRY_DONE(ls_tensor_read(stored, view, err));
    LS_TRY_DONE(ls_memory_alloc(m->device, &m->merged, view->bytes, 1, "tensor", err));
    LS_TRY_DONE(ls_memory_write(m->device, m->merged, stored, view->bytes, err));
    for (int64_t k = 0; k < m->n_levels; k++)
        if (m->levels[k].a[i] != NULL) LS_TRY_DONE(apply(m, &m->levels[k], i, err));
    m->at_hand = i;
done:
    free(stored);
    return status;
}

/* Its number where it is another one, else -1. */
static int64_t number_of(const ls_merging *m, const ls_tensor_view *view) {
    for (int64_t i = 0; i < m->n; i++) {
        if (ls_checkpoint_at(m->base, i) != view) continue;
        for (int64_t k = 0; k < m->n_levels; k++)
            if (m->levels[k].a[i] != NULL) return i;
    }
    return -1;
}

bool ls_merging_has(const ls_merging *m, const ls_tensor_view *view) { return number_of(m, view) >= 0; }

ls_status ls_merging_read(ls_merging *m, void *host, const ls_tensor_view *view, int64_t at, int64_t bytes,
                          ls_error *err) {
    const int64_t i = number_of(m, view);
    if (i < 0) return ls_tensor_read_part(host, view, at, bytes, err);
    if (m->at_hand != i) LS_TRY(merge(m, i, err));
    LS_TRY(ls_memory_read(m->device, host, (const uint8_t *)m->merged + at, bytes, err));
    return ls_device_wait(m->device, err);
}

ls_status ls_merging_check(const ls_merging *m, ls_error *err) {
    for (int64_t k = 0; k < m->n_levels; k++) LS_TRY(ls_safetensors_check(m->levels[k].file, err));
    return LS_OK;
}

static ls_status open_level(const ls_merging *m, level *l, ls_error *err) {
    char file[PATH_BYTES];
    if (snprintf(file, sizeof file, "%s/adapter_model.safetensors", l->directory) >= (int)sizeof file)
        return LS_FAIL(err, LS_ERR_ARG, "%.200s...: the path is longer than %d bytes", l->directory, PATH_BYTES - 1);
    LS_TRY(ls_safetensors_open(&l->file, file, err));
    LS_TRY(ls_array_alloc((void **)&l->a, m->n, sizeof *l->a, "tensors", err));
    LS_TRY(ls_array_alloc((void **)&l->b, m->n, sizeof *l->b, "tensors", err));
    return pair(m, l, err);
}

ls_status ls_merging_open(ls_merging **out, const ls_adapter_chain *chain, ls_checkpoint *base, ls_error *err) {
    ls_merging *m = NULL;
    ls_status status;
    *out = NULL;
    LS_TRY_DONE(ls_array_alloc((void **)&m, 1, sizeof *m, "adapters", err));
    m->base = base;
    m->n = ls_checkpoint_count(base);
    m->at_hand = -1;
    LS_TRY_DONE(ls_device_open(&m->device, ls_cpu_count(), ls_isa_best(), err));
    for (int64_t k = chain->n; k-- > 0;) {
        level *l = &m->levels[m->n_levels++];
        l->config = &chain->config[k];
        l->directory = chain->directory[k];
        LS_TRY_DONE(open_level(m, l, err));
    }
    *out = m;
    m = NULL;
done:
    ls_merging_close(m);
    return status;
}

void ls_merging_close(ls_merging *m) {
    if (m == NULL) return;
    ls_memory_free(m->device, m->merged);
    for (int64_t k = 0; k < m->n_levels; k++) {
        free((void *)m->levels[k].a);
        free((void *)m->levels[k].b);
        ls_safetensors_close(m->levels[k].file);
    }
    ls_device_close(m->device);
    free(m);
}

/* ---- files ---- */

typedef struct writing {
    ls_merging *merging;
    ls_tensor_out *tensors; /* of the base, in its order */
    const char *directory;
    ls_model_watcher watcher;
    int64_t done, total; /* bytes of tensors */
} writing;

static ls_status fetch(void *context, void *host, const ls_tensor_out *tensor, int64_t at, int64_t bytes,
                       ls_error *err) {
    writing *w = context;
    const ls_tensor_view *view = ls_checkpoint_at(w->merging->base, tensor - w->tensors);
    w->done += bytes;
    if (w->watcher != NULL) w->watcher(NULL, w->directory, w->done, w->total);
    return ls_merging_read(w->merging, host, view, at, bytes, err);
}

ls_status ls_merging_write(const char *path, const ls_adapter_chain *chain, int64_t *n_merged, ls_model_watcher watcher,
                           ls_error *err) {
    writing w = {.directory = chain->home, .watcher = watcher};
    ls_checkpoint *base = NULL;
    int64_t n;
    ls_status status;
    *n_merged = 0;
    LS_TRY_DONE(ls_checkpoint_open(&base, chain->home, err));
    LS_TRY_DONE(ls_merging_open(&w.merging, chain, base, err));
    n = ls_checkpoint_count(base);
    LS_TRY_DONE(ls_array_alloc((void **)&w.tensors, n, sizeof *w.tensors, "tensors", err));
    for (int64_t i = 0; i < n; i++) {
        const ls_tensor_view *view = ls_checkpoint_at(base, i);
        w.tensors[i] = (ls_tensor_out){view->name, view->dtype, view->n_dims, view->dims, NULL};
        w.total += view->bytes;
        *n_merged += ls_merging_has(w.merging, view);
    }
    LS_TRY_DONE(ls_safetensors_write(path, w.tensors, n, fetch, &w, err));
    LS_TRY_DONE(ls_checkpoint_check(base, err));
    status = ls_merging_check(w.merging, err);
done:
    free(w.tensors);
    ls_merging_close(w.merging);
    ls_checkpoint_close(base);
    return status;
}
