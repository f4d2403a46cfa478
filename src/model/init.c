/* Fills every tensor that the configuration calls for, by its kind and name, piece by piece as the file is written. */
#define _GNU_SOURCE
#include "model/init.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fnv.h"
#include "base/mem.h"
#include "base/parallel.h"
#include "base/rng.h"
#include "load/safetensors_write.h"
#include "model/slots.h"
#include "num/exp64.h"
#include "op/rows.h"

#define HALVES 8
#define DT_LEAST 1e-3
#define DT_MOST 1e-1

/* Draws at a time. A piece begins at a multiple of it, so that the low word of a counter never wraps within a block. */
enum { BLOCK = 64 };

/* Blocks that one thread draws at least. */
#define GRAIN (64 * BLOCK)

typedef struct fresh {
    ls_weight_slot *slots; /* [n], each of a whole tensor */
    ls_tensor_out *tensors;
    int64_t n, cap;
    ls_pool *pool;
    ls_dtype dtype;
    uint64_t seed;
    double deviation; /* 0: by fan-in */
} fresh;

/* A part of a tensor: elements [at, at + n) go to `to`. */
typedef struct piece {
    const fresh *f;
    const ls_weight_slot *slot;
    uint64_t name;
    double deviation;
    int64_t at;
    void *to;
} piece;

static double normal_of(uint32_t w0, uint32_t w1, uint32_t w2, uint32_t w3) {
    const int64_t sum = (int64_t)(w0 & 0xFFFF) + (w0 >> 16) + (w1 & 0xFFFF) + (w1 >> 16) + (w2 & 0xFFFF) + (w2 >> 16) +
                        (w3 & 0xFFFF) + (w3 >> 16);
    return (double)(sum - HALVES * 65535 / 2) / sqrt(HALVES * 4294967295.0 / 12.0);
}

/* Values of BLOCK normals from a multiple of BLOCK on. */
static void draw_block(float *out, const piece *p, int64_t i) {
    uint32_t w[4 * BLOCK];
    ls_philox_lanes(w, BLOCK, p->f->seed, (uint32_t)i, (uint32_t)((uint64_t)i >> 32), (uint32_t)p->name,
                    (uint32_t)(p->name >> 32));
    for (int k = 0; k < BLOCK; k++)
        out[k] = (float)(p->deviation * normal_of(w[k], w[BLOCK + k], w[2 * BLOCK + k], w[3 * BLOCK + k]));
}

static double dt_bias(const piece *p, int64_t i) {
    const ls_philox x = ls_philox_draw(p->f->seed, (uint32_t)i, (uint32_t)((uint64_t)i >> 32), (uint32_t)p->name,
                                       (uint32_t)(p->name >> 32));
    const double low = ls_log64(DT_LEAST), u = (double)x.word[0] * 0x1p-32;
    const double dt = ls_exp64(low + u * (ls_log64(DT_MOST) - low));
    return dt + ls_log64(1.0 - ls_exp64(-dt));
}

static bool ends_with(const char *name, const char *end) {
    const size_t n = strlen(name), k = strlen(end);
    return n >= k && strcmp(name + n - k, end) == 0;
}

/* Of what is not drawn from normals. */
static double weight_value(const piece *p, int64_t i) {
    if (p->slot->kind == LS_SLOT_RATES) return ls_log64((double)(i + 1));
    if (p->slot->kind == LS_SLOT_DECAY) return ls_log64((double)(i % p->slot->dims[1] + 1));
    if (p->slot->above_one) return 0.0;
    if (ends_with(p->slot->name, ".weight") || ends_with(p->slot->name, ".D")) return 1.0;
    return ends_with(p->slot->name, "dt_proj.bias") || ends_with(p->slot->name, ".dt_bias") ? dt_bias(p, i) : 0.0;
}

static void fill_part(void *context, int64_t begin, int64_t end, int32_t thread_i) {
    const piece *p = context;
    const ls_slot_kind kind = p->slot->kind;
    const bool is_normal = kind != LS_SLOT_DECAY && kind != LS_SLOT_RATES && kind != LS_SLOT_VECTOR;
    float block[BLOCK];
    (void)thread_i;
    for (int64_t i = begin; i < end; i += BLOCK) {
        const int64_t n = end - i < BLOCK ? end - i : BLOCK;
        if (is_normal) draw_block(block, p, p->at + i);
        for (int64_t k = 0; !is_normal && k < n; k++) block[k] = (float)weight_value(p, p->at + i + k);
        ls_row_narrow(ls_at_mut(p->to, p->f->dtype, i), p->f->dtype, block, n);
    }
}

/* ls_tensor_fetch. */
static ls_status fill_tensor(void *context, void *host, const ls_tensor_out *tensor, int64_t at, int64_t bytes,
                             ls_error *err) {
    const fresh *f = context;
    const ls_weight_slot *slot = &f->slots[tensor - f->tensors];
    const int64_t each = ls_dtype_bytes(f->dtype);
    piece p = {.f = f, .slot = slot, .at = at / each, .to = host};
    (void)err;
    LS_ASSERT(p.at % BLOCK == 0, "%s: a piece from %lld on", slot->name, (long long)p.at);
    p.name = ls_fnv_mix(LS_FNV_START, slot->name, (int64_t)strlen(slot->name));
    p.deviation = f->deviation > 0 ? f->deviation : 1.0 / sqrt((double)slot->dims[slot->n_dims - 1]);
    ls_parallel_for(f->pool, bytes / each, GRAIN, fill_part, &p);
    return LS_OK;
}

static ls_status list_weight(void *context, const ls_weight_slot *slot, ls_error *err) {
    fresh *f = context;
    ls_weight_slot *tensor;
    if (slot->tensor.at > 0) return LS_OK; /* of the tensor that its first slot has listed */
    LS_TRY(ls_array_grow((void **)&f->slots, &f->cap, f->n + 1, sizeof *f->slots, "weights", err));
    tensor = &f->slots[f->n++];
    *tensor = *slot;
    tensor->n_dims = slot->tensor.n_dims;
    memcpy(tensor->dims, slot->tensor.dims, sizeof tensor->dims);
    return LS_OK;
}

/* All tensors that the file has. */
static ls_status list_tensors(fresh *f, ls_model **model, const ls_model_config *config, ls_error *err) {
    static const ls_st_dtype stored[] = {[LS_F32] = LS_ST_F32, [LS_BF16] = LS_ST_BF16, [LS_F16] = LS_ST_F16};
    LS_TRY(ls_model_outline(model, config, err));
    LS_TRY(ls_model_slots(*model, list_weight, f, err));
    LS_TRY(ls_array_alloc((void **)&f->tensors, f->n, sizeof *f->tensors, "weights", err));
    for (int64_t i = 0; i < f->n; i++)
        f->tensors[i] = (ls_tensor_out){f->slots[i].name, stored[f->dtype], f->slots[i].n_dims, f->slots[i].dims, NULL};
    return LS_OK;
}

ls_status ls_model_init_empty(const char *path, const ls_model_config *config, ls_error *err) {
    fresh f = {.dtype = config->stored_dtype};
    ls_model *model = NULL;
    int64_t *places = NULL, end;
    ls_status status;
    LS_TRY_DONE(list_tensors(&f, &model, config, err));
    LS_TRY_DONE(ls_array_alloc((void **)&places, f.n, sizeof *places, "weights", err));
    LS_TRY_DONE(ls_safetensors_begin(path, f.tensors, f.n, err));
    LS_TRY_DONE(ls_safetensors_places(places, f.tensors, f.n, err));
    end = places[f.n - 1] + ls_slot_elements(&f.slots[f.n - 1]) * ls_dtype_bytes(f.dtype);
    if (truncate(path, (off_t)end) != 0)
        status = LS_FAIL(err, LS_ERR_IO, "%s: %lld bytes: %s", path, (long long)end, strerror(errno));
done:
    free(places);
    free(f.tensors);
    free(f.slots);
    ls_model_close(model);
    return status;
}

ls_status ls_model_init(const char *path, const ls_model_config *config, uint64_t seed, double deviation,
                        int32_t n_threads, ls_error *err) {
    fresh f = {.dtype = config->stored_dtype, .seed = seed, .deviation = deviation};
    ls_model *model = NULL;
    ls_status status;
    LS_TRY_DONE(ls_pool_create(&f.pool, n_threads, err));
    LS_TRY_DONE(list_tensors(&f, &model, config, err));
    LS_TRY_DONE(ls_safetensors_write(path, f.tensors, f.n, fill_tensor, &f, err));
done:
    free(f.tensors);
    free(f.slots);
    ls_model_close(model);
    ls_pool_free(f.pool);
    return status;
}
