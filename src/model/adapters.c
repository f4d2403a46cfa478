/* Adapters: made from the names of matrices, merged into the model. Owns W0 and the adapters. */
#include "model/adapters.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "op/lora.h"

#define ALL_LINEAR "all-linear"
#define LORA_COUNTER UINT32_C(0x6C6F7261)
#define DRAW_FLOATS 4096

/* ---- which matrices ---- */

/* A tensor's name without ".weight"; false: it is no module's weight. */
static bool module_of(char out[LS_TENSOR_NAME_MAX], const char *tensor) {
    const size_t bytes = strlen(tensor), end = strlen(".weight");
    if (bytes <= end || strcmp(tensor + bytes - end, ".weight") != 0) return false;
    snprintf(out, LS_TENSOR_NAME_MAX, "%.*s", (int)(bytes - end), tensor);
    return true;
}

/* As PEFT has it: the whole name, or its end behind a point. */
static bool is_named(const char *module, const char *target, size_t bytes) {
    const size_t n = strlen(module);
    if (n < bytes || strncmp(module + n - bytes, target, bytes) != 0) return false;
    return n == bytes || module[n - bytes - 1] == '.';
}

/* Part of a mixture of experts. In Hugging Face's models a router and experts are no linear layers but parameters, the
 * experts of a layer one tensor: PEFT refuses adapters of the first and passes over those of the second. */
static bool is_in_mixture(const char *module, const ls_weight_slot *slot) {
    static const char *const routers[] = {"router", "gate", "router.layer"};
    for (size_t i = 0; i < sizeof routers / sizeof routers[0]; i++)
        if (is_named(module, routers[i], strlen(routers[i]))) return true;
    return slot->tensor.n_dims == 3 || strstr(module, ".experts.") != NULL;
}

static bool is_target(const char *module, const ls_weight_slot *slot, const char *targets) {
    if (strcmp(targets, ALL_LINEAR) == 0)
        return !is_named(module, "lm_head", strlen("lm_head")) && !is_in_mixture(module, slot);
    for (const char *at = targets; *at != '\0';) {
        const size_t bytes = strcspn(at, ",");
        if (bytes > 0 && is_named(module, at, bytes)) return true;
        at += bytes + (at[bytes] == ',');
    }
    return false;
}

/* Every target names something that can be adapted. */
static ls_status check_targets(const ls_parameters *base, const char *targets, ls_error *err) {
    if (strcmp(targets, ALL_LINEAR) == 0) return LS_OK;
    if (targets[0] == '\0') return LS_FAIL(err, LS_ERR_ARG, "lora_targets: empty");
    for (const char *at = targets; *at != '\0';) {
        const size_t bytes = strcspn(at, ",");
        char module[LS_TENSOR_NAME_MAX];
        bool found = false;
        for (int64_t i = 0; i < base->n; i++) {
            const ls_weight_slot *slot = &base->list[i].slot;
            if (slot->kind != LS_SLOT_MATRIX || !module_of(module, slot->name) || !is_named(module, at, bytes))
                continue;
            found = true;
            if (is_in_mixture(module, slot))
                return LS_FAIL(err, LS_ERR_UNSUPPORTED,
                               "lora_targets: '%.*s' names %s, of a mixture of experts, whose adapters PEFT does not "
                               "load; name modules that stand outside of it",
                               (int)bytes, at, module);
        }
        if (!found || bytes == 0)
            return LS_FAIL(err, LS_ERR_ARG, "lora_targets: '%.*s' is no matrix of this model", (int)bytes, at);
        at += bytes + (at[bytes] == ',');
    }
    return LS_OK;
}

/* ---- making them ---- */

static ls_status add_parameter(ls_parameters *list, const char *module, const char *which, int64_t n, int64_t k,
                               ls_error *err) {
    ls_parameter *p = &list->list[list->n];
    const int length = snprintf(p->slot.name, sizeof p->slot.name, "base_model.model.%s.%s.weight", module, which);
    if (length < 0 || length >= (int)sizeof p->slot.name)
        return LS_FAIL(err, LS_ERR_FORMAT, "%s: the name is too long for an adapter", module);
    p->slot.kind = LS_SLOT_MATRIX;
    p->slot.n_dims = 2;
    p->slot.dims[0] = n;
    p->slot.dims[1] = k;
    p->slot.tensor = (ls_slot_tensor){0, 2, {n, k, 0}};
    p->tensor = list->n_tensors++;
    if (!ls_mul_i64(n, k, &p->n_elements)) return LS_FAIL(err, LS_ERR_NOMEM, "%s: adapters", module);
    p->offset = list->n_elements;
    p->dtype = LS_F32;
    p->end = p->n_elements;
    list->n_elements += p->n_elements;
    list->n++;
    return ls_memory_alloc(list->device, &p->own, p->n_elements, sizeof(float), "adapters", err);
}

/* Where a parameter's elements lie in its tensor. */
static void *part_of(void *tensor, const ls_parameter *p) {
    return (uint8_t *)tensor + p->slot.tensor.at * ls_dtype_bytes(p->dtype);
}

static ls_status add_adapter(ls_adapters *s, const ls_parameter *base, const char *module, ls_error *err) {
    ls_adapter *x = &s->adapters[s->n];
    const int64_t *dims = base->slot.tensor.dims;
    const int64_t size = ls_dtype_bytes(base->dtype), bytes = ls_slot_tensor_elements(&base->slot.tensor) * size;
    x->base = base;
    for (; base + x->n_parts < s->base->list + s->base->n && base[x->n_parts].tensor == base->tensor;) x->n_parts++;
    x->a = s->list->n;
    x->b = s->list->n + 1;
    snprintf(x->module, sizeof x->module, "%s", module);
    s->n++;
    LS_TRY(ls_memory_alloc(s->base->device, &x->w0, bytes, 1, "adapters", err));
    for (int64_t i = 0; i < x->n_parts; i++)
        LS_TRY(ls_memory_copy(s->base->device, part_of(x->w0, &base[i]), ls_parameter_value(&base[i]),
                              base[i].n_elements * size, err));
    LS_TRY(add_parameter(s->list, module, "lora_A", s->rank, dims[1], err));
    return add_parameter(s->list, module, "lora_B", dims[0], s->rank, err);
}

static ls_status add_all(ls_adapters *s, ls_error *err) {
    char module[LS_TENSOR_NAME_MAX];
    for (int64_t i = 0; i < s->base->n; i++) {
        const ls_parameter *p = &s->base->list[i];
        if (p->slot.kind != LS_SLOT_MATRIX || p->slot.tensor.at > 0 || !module_of(module, p->slot.name) ||
            !is_target(module, &p->slot, s->targets))
            continue;
        LS_TRY(add_adapter(s, p, module, err));
    }
    if (s->n == 0) return LS_FAIL(err, LS_ERR_ARG, "lora_targets: no matrix of this model is one of them");
    return LS_OK;
}

static ls_status alloc_masters(ls_parameters *list, ls_error *err) {
    list->end = list->n_elements;
    LS_TRY(ls_memory_alloc(list->device, (void **)&list->masters, list->n_elements, sizeof(float), "adapters", err));
    for (int64_t i = 0; i < list->n; i++) list->list[i].master = list->masters + list->list[i].offset;
    return LS_OK;
}

/* A of adapter m. */
static ls_status draw_a(const ls_adapters *s, int64_t m, uint64_t seed, ls_error *err) {
    const ls_parameter *p = &s->list->list[s->adapters[m].a];
    const float bound = (float)(1.0 / sqrt((double)p->slot.dims[1]));
    float values[DRAW_FLOATS];
    for (int64_t at = 0; at < p->n_elements; at += DRAW_FLOATS) {
        const int64_t n = p->n_elements - at < DRAW_FLOATS ? p->n_elements - at : DRAW_FLOATS;
        for (int64_t i = 0; i < n; i++) {
            const uint64_t block = (uint64_t)(at + i) / 4;
            const ls_philox words =
                ls_philox_draw(seed, (uint32_t)block, (uint32_t)(block >> 32), (uint32_t)m, LORA_COUNTER);
            values[i] = ((float)(words.word[(at + i) % 4] >> 8) * 0x1p-23f - 1.0f) * bound;
        }
        LS_TRY(ls_memory_write(s->list->device, p->master + at, values, n * (int64_t)sizeof *values, err));
    }
    return LS_OK;
}

static ls_status fill_adapters(ls_adapters *s, const ls_adapters_opts *o, ls_error *err) {
    const int64_t n = s->base->n;
    s->rank = o->rank;
    s->alpha = o->alpha;
    s->scale = (float)(o->alpha / (double)o->rank);
    LS_TRY(ls_text_copy(&s->targets, o->targets, (int64_t)strlen(o->targets), err));
    LS_TRY(check_targets(s->base, s->targets, err));
    LS_TRY(ls_array_alloc((void **)&s->adapters, n, sizeof *s->adapters, "adapters", err));
    LS_TRY(ls_array_alloc((void **)&s->list, 1, sizeof *s->list, "adapters", err));
    s->list->device = s->base->device;
    s->list->model = s->base->model;
    LS_TRY(ls_array_alloc((void **)&s->list->list, 2 * n, sizeof *s->list->list, "adapters", err));
    LS_TRY(add_all(s, err));
    LS_TRY(alloc_masters(s->list, err));
    for (int64_t m = 0; m < s->n; m++) LS_TRY(draw_a(s, m, o->seed, err));
    return ls_parameters_round(s->list, err);
}

ls_status ls_adapters_open(ls_adapters **out, ls_parameters *base, const char *directory, const ls_adapters_opts *opts,
                           ls_error *err) {
    ls_adapters *s = NULL;
    ls_status status;
    *out = NULL;
    if (opts->rank < 1 || opts->rank > LS_LORA_RANK_MAX || !(opts->alpha > 0 && isfinite(opts->alpha)))
        return LS_FAIL(err, LS_ERR_ARG, "lora_rank: %lld with lora_alpha %g; a rank is 1 to %d, alpha above 0",
                       (long long)opts->rank, opts->alpha, LS_LORA_RANK_MAX);
    LS_TRY_DONE(ls_array_alloc((void **)&s, 1, sizeof *s, "adapters", err));
    s->base = base;
    LS_TRY_DONE(ls_text_copy(&s->directory, directory, (int64_t)strlen(directory), err));
    LS_TRY_DONE(fill_adapters(s, opts, err));
    *out = s;
    s = NULL;
done:
    ls_adapters_free(s);
    return status;
}

void ls_adapters_free(ls_adapters *s) {
    if (s == NULL) return;
    for (int64_t i = 0; i < s->n; i++) ls_memory_free(s->base->device, s->adapters[i].w0);
    ls_parameters_free(s->list);
    free(s->adapters);
    free(s->targets);
    free(s->directory);
    free(s);
}

int64_t ls_adapters_bytes(const ls_adapters *s) {
    int64_t bytes = s->list->n_elements * (int64_t)sizeof(float);
    for (int64_t i = 0; i < s->n; i++)
        bytes +=
            ls_slot_tensor_elements(&s->adapters[i].base->slot.tensor) * ls_dtype_bytes(s->adapters[i].base->dtype);
    return bytes;
}

/* ---- steps ---- */

ls_status ls_adapters_gradient(const ls_adapters *s, const float *base, float *out, ls_error *err) {
    for (int64_t i = 0; i < s->n; i++) {
        const ls_adapter *x = &s->adapters[i];
        const ls_parameter *a = &s->list->list[x->a], *b = &s->list->list[x->b];
        const ls_lora_backward_args args = {.dw = base + x->base->offset,
                                            .a = a->master,
                                            .b = b->master,
                                            .da = out + a->offset,
                                            .db = out + b->offset,
                                            .n = x->base->slot.tensor.dims[0],
                                            .k = x->base->slot.tensor.dims[1],
                                            .rank = s->rank,
                                            .scale = s->scale};
        LS_TRY(ls_lora_backward(s->base->device, &args, err));
    }
    return LS_OK;
}

/* Rows of a matrix take rows of B alone, so that the parts of a tensor are merged one by one. */
static ls_status merge_part(const ls_adapters *s, const ls_adapter *x, const ls_parameter *p, ls_error *err) {
    const ls_lora_merge_args args = {.w0 = part_of(x->w0, p),
                                     .a = s->list->list[x->a].master,
                                     .b = s->list->list[x->b].master + p->slot.tensor.at / p->slot.dims[1] * s->rank,
                                     .out = ls_parameter_value(p),
                                     .dtype = p->dtype,
                                     .n = p->slot.dims[0],
                                     .k = p->slot.dims[1],
                                     .rank = s->rank,
                                     .scale = s->scale};
    LS_TRY(ls_lora_merge(s->base->device, &args, err));
    return ls_parameter_store(s->base, p, err);
}

ls_status ls_adapters_merge(const ls_adapters *s, ls_error *err) {
    for (int64_t i = 0; i < s->n; i++)
        for (int64_t k = 0; k < s->adapters[i].n_parts; k++)
            LS_TRY(merge_part(s, &s->adapters[i], &s->adapters[i].base[k], err));
    return LS_OK;
}
