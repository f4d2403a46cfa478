/* Merging of files: which tensors belong together, and one matrix at a time through the device. */
#include "model/merge.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "load/safetensors_write.h"
#include "num/half.h"
#include "op/lora.h"

enum { PATH_BYTES = 4096, NAME_BYTES = 600 };

#define PREFIX "base_model.model."
#define A_END ".lora_A.weight"
#define B_END ".lora_B.weight"

typedef struct merging {
    ls_checkpoint *base;
    ls_safetensors *adapter;
    const ls_adapter_config *config;
    ls_device *device;
    ls_tensor_out *tensors;        /* [n] of base, in its order */
    const ls_tensor_view **a, **b; /* [n], NULL where nothing is merged */
    int64_t n;
    int64_t at_hand; /* the tensor whose merged values lie in `merged`; -1: none does */
    void *merged;    /* device memory */
    const char *directory;
    ls_model_watcher watcher;
    int64_t done, total; /* bytes of tensors */
} merging;

static bool ends(const char *name, const char *end) {
    const size_t n = strlen(name), m = strlen(end);
    return n > m && strcmp(name + n - m, end) == 0;
}

static bool is_float(ls_st_dtype dtype, ls_dtype *out) {
    *out = dtype == LS_ST_F32 ? LS_F32 : dtype == LS_ST_BF16 ? LS_BF16 : LS_F16;
    return dtype == LS_ST_F32 || dtype == LS_ST_BF16 || dtype == LS_ST_F16;
}

/* One tensor of the adapter finds its matrix. */
static ls_status place(merging *m, const ls_tensor_view *view, ls_error *err) {
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
        view->dims[0] != (is_a ? m->config->rank : matrix->dims[0]) ||
        view->dims[1] != (is_a ? matrix->dims[1] : m->config->rank))
        return LS_FAIL(err, LS_ERR_FORMAT,
                       "%s: tensor '%.200s': rank %lld and '%.200s' [%lld, %lld] call for [%lld, %lld]", view->file,
                       view->name, (long long)m->config->rank, name, (long long)matrix->dims[0],
                       (long long)matrix->dims[1], (long long)(is_a ? m->config->rank : matrix->dims[0]),
                       (long long)(is_a ? matrix->dims[1] : m->config->rank));
    for (int64_t i = 0; i < m->n; i++)
        if (ls_checkpoint_at(m->base, i) == matrix) (is_a ? m->a : m->b)[i] = view;
    return LS_OK;
}

static ls_status pair(merging *m, const char *adapter, int64_t *n_merged, ls_error *err) {
    *n_merged = 0;
    for (int64_t i = 0; i < ls_safetensors_count(m->adapter); i++)
        LS_TRY(place(m, ls_safetensors_at(m->adapter, i), err));
    for (int64_t i = 0; i < m->n; i++) {
        if ((m->a[i] == NULL) != (m->b[i] == NULL))
            return LS_FAIL(err, LS_ERR_FORMAT, "%s: '%.200s' has one of lora_A and lora_B", adapter,
                           m->tensors[i].name);
        *n_merged += m->a[i] != NULL;
    }
    return *n_merged > 0 ? LS_OK : LS_FAIL(err, LS_ERR_FORMAT, "%s: no tensor", adapter);
}

/* A or B as float32 on the device; released by the caller, also after a failure. */
static ls_status bring_factor(const merging *m, float **out, const ls_tensor_view *view, ls_error *err) {
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

/* The merged values of tensor i, in m->merged. */
static ls_status merge(merging *m, int64_t i, ls_error *err) {
    const ls_tensor_view *view = ls_checkpoint_at(m->base, i);
    float *a = NULL, *b = NULL;
    void *stored = NULL;
    ls_dtype dtype;
    ls_status status;
    (void)is_float(view->dtype, &dtype);
    ls_memory_free(m->device, m->merged);
    m->merged = NULL;
    m->at_hand = -1;
    LS_TRY_DONE(ls_array_alloc(&stored, view->bytes, 1, "tensor", err));
    LS_TRY_DONE(ls_tensor_read(stored, view, err));
    LS_TRY_DONE(ls_memory_alloc(m->device, &m->merged, view->bytes, 1, "tensor", err));
    LS_TRY_DONE(ls_memory_write(m->device, m->merged, stored, view->bytes, err));
    LS_TRY_DONE(bring_factor(m, &a, m->a[i], err));
    LS_TRY_DONE(bring_factor(m, &b, m->b[i], err));
    LS_TRY_DONE(ls_lora_merge(m->device,
                              &(ls_lora_merge_args){.w0 = m->merged,
                                                    .a = a,
                                                    .b = b,
                                                    .out = m->merged,
                                                    .dtype = dtype,
                                                    .n = view->dims[0],
                                                    .k = view->dims[1],
                                                    .rank = m->config->rank,
                                                    .scale = m->config->scale},
                              err));
    LS_TRY_DONE(ls_device_wait(m->device, err));
    m->at_hand = i;
done:
    ls_memory_free(m->device, a);
    ls_memory_free(m->device, b);
    free(stored);
    return status;
}

static ls_status fetch(void *context, void *host, const ls_tensor_out *tensor, int64_t at, int64_t bytes,
                       ls_error *err) {
    merging *m = context;
    const int64_t i = tensor - m->tensors;
    m->done += bytes;
    if (m->watcher != NULL) m->watcher(NULL, m->directory, m->done, m->total);
    if (m->a[i] == NULL) return ls_tensor_read_part(host, ls_checkpoint_at(m->base, i), at, bytes, err);
    if (m->at_hand != i) LS_TRY(merge(m, i, err));
    LS_TRY(ls_memory_read(m->device, host, (const uint8_t *)m->merged + at, bytes, err));
    return ls_device_wait(m->device, err);
}

ls_status ls_adapter_merge_files(const char *path, const char *base, const char *adapter,
                                 const ls_adapter_config *config, ls_device *device, int64_t *n_merged,
                                 ls_model_watcher watcher, ls_error *err) {
    merging m = {.config = config, .device = device, .at_hand = -1, .directory = base, .watcher = watcher};
    char file[PATH_BYTES];
    ls_status status;
    LS_TRY_DONE(ls_checkpoint_open(&m.base, base, err));
    snprintf(file, sizeof file, "%s/adapter_model.safetensors", adapter);
    LS_TRY_DONE(ls_safetensors_open(&m.adapter, file, err));
    m.n = ls_checkpoint_count(m.base);
    LS_TRY_DONE(ls_array_alloc((void **)&m.tensors, m.n, sizeof *m.tensors, "tensors", err));
    LS_TRY_DONE(ls_array_alloc((void **)&m.a, m.n, sizeof *m.a, "tensors", err));
    LS_TRY_DONE(ls_array_alloc((void **)&m.b, m.n, sizeof *m.b, "tensors", err));
    for (int64_t i = 0; i < m.n; i++) {
        const ls_tensor_view *view = ls_checkpoint_at(m.base, i);
        m.total += view->bytes;
        m.tensors[i] = (ls_tensor_out){view->name, view->dtype, view->n_dims, view->dims, NULL};
    }
    LS_TRY_DONE(pair(&m, adapter, n_merged, err));
    LS_TRY_DONE(ls_safetensors_write(path, m.tensors, m.n, fetch, &m, err));
    LS_TRY_DONE(ls_checkpoint_check(m.base, err));
    status = ls_safetensors_check(m.adapter, err);
done:
    ls_memory_free(device, m.merged);
    free(m.tensors);
    free((void *)m.a);
    free((void *)m.b);
    ls_safetensors_close(m.adapter);
    ls_checkpoint_close(m.base);
    return status;
}
