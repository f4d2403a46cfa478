/* Fills every tensor that the configuration calls for, by its kind and name. Owns the values until they are written. */
#include "model/init.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/fnv.h"
#include "base/mem.h"
#include "base/rng.h"
#include "load/safetensors_write.h"
#include "model/slots.h"
#include "num/exp64.h"
#include "op/rows.h"

#define HALVES 8
#define DT_LEAST 1e-3
#define DT_MOST 1e-1

typedef struct fresh {
    ls_weight_slot *slots; /* [n] */
    ls_tensor_out *tensors;
    void **values;
    int64_t n, cap, values_cap;
    ls_dtype dtype;
    uint64_t seed;
    double deviation; /* 0: by fan-in */
} fresh;

static ls_philox draw(const fresh *f, uint64_t name, int64_t i) {
    return ls_philox_draw(f->seed, (uint32_t)i, (uint32_t)((uint64_t)i >> 32), (uint32_t)name, (uint32_t)(name >> 32));
}

static double normal(const fresh *f, uint64_t name, int64_t i) {
    const ls_philox x = draw(f, name, i);
    int64_t sum = 0;
    for (int w = 0; w < HALVES / 2; w++) sum += (x.word[w] & 0xFFFF) + (x.word[w] >> 16);
    return (double)(sum - HALVES * 65535 / 2) / sqrt(HALVES * 4294967295.0 / 12.0);
}

static double dt_bias(const fresh *f, uint64_t name, int64_t i) {
    const double low = ls_log64(DT_LEAST), u = (double)draw(f, name, i).word[0] * 0x1p-32;
    const double dt = ls_exp64(low + u * (ls_log64(DT_MOST) - low));
    return dt + ls_log64(1.0 - ls_exp64(-dt));
}

static bool ends_with(const char *name, const char *end) {
    const size_t n = strlen(name), k = strlen(end);
    return n >= k && strcmp(name + n - k, end) == 0;
}

static double value_of(const fresh *f, const ls_weight_slot *slot, double deviation, uint64_t name, int64_t i) {
    if (slot->kind == LS_SLOT_DECAY) return ls_log64((double)(i % slot->dims[1] + 1));
    if (slot->kind != LS_SLOT_VECTOR) return deviation * normal(f, name, i);
    if (ends_with(slot->name, ".weight") || ends_with(slot->name, ".D")) return 1.0;
    return ends_with(slot->name, "dt_proj.bias") ? dt_bias(f, name, i) : 0.0;
}

static ls_status fill(void *context, const ls_weight_slot *slot, ls_error *err) {
    fresh *f = context;
    const uint64_t name = ls_fnv_mix(LS_FNV_START, slot->name, (int64_t)strlen(slot->name));
    const double fan_in = (double)slot->dims[slot->n_dims - 1];
    const double deviation = f->deviation > 0 ? f->deviation : 1.0 / sqrt(fan_in);
    const int64_t n = ls_slot_elements(slot);
    void *values;
    ls_status status;
    LS_TRY(ls_array_grow((void **)&f->slots, &f->cap, f->n + 1, sizeof *f->slots, "weights", err));
    LS_TRY(ls_array_grow((void **)&f->values, &f->values_cap, f->n + 1, sizeof *f->values, "weights", err));
    LS_TRY(ls_array_alloc(&values, n, ls_dtype_bytes(f->dtype), "weights", err));
    f->slots[f->n] = *slot;
    f->values[f->n++] = values;
    for (int64_t i = 0; i < n; i++) {
        const float x = (float)value_of(f, slot, deviation, name, i);
        ls_row_narrow(ls_at_mut(values, f->dtype, i), f->dtype, &x, 1);
    }
done:
    return status;
}

ls_status ls_model_init(const char *path, const ls_model_config *config, uint64_t seed, double deviation,
                        ls_error *err) {
    static const ls_st_dtype stored[] = {[LS_F32] = LS_ST_F32, [LS_BF16] = LS_ST_BF16, [LS_F16] = LS_ST_F16};
    fresh f = {.dtype = config->stored_dtype, .seed = seed, .deviation = deviation};
    ls_model *model = NULL;
    ls_status status;
    LS_TRY(ls_model_outline(&model, config, err));
    LS_TRY(ls_model_slots(model, fill, &f, err));
    LS_TRY(ls_array_alloc((void **)&f.tensors, f.n, sizeof *f.tensors, "weights", err));
    for (int64_t i = 0; i < f.n; i++)
        f.tensors[i] =
            (ls_tensor_out){f.slots[i].name, stored[f.dtype], f.slots[i].n_dims, f.slots[i].dims, f.values[i]};
    LS_TRY(ls_safetensors_write(path, f.tensors, f.n, NULL, NULL, err));
done:
    for (int64_t i = 0; i < f.n; i++) free(f.values[i]);
    free((void *)f.values);
    free(f.tensors);
    free(f.slots);
    ls_model_close(model);
    return status;
}
