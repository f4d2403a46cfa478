/* Which bytes of which file are this process's, and the ways there. */
#define _POSIX_C_SOURCE 200809L
#include "train/saved_tensors.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/durable.h"
#include "base/mem.h"
#include "model/layer_buffer.h"

enum { WEIGHTS, OPTIMIZER, N_FILES };

/* A file: its tensors, the byte at which each one's data begin, and of how many parameters' arrays they are made. */
typedef struct tensor_file {
    const char *name;
    ls_tensor_out *tensors;
    int64_t *places;
    int64_t n, n_parts;
} tensor_file;

struct ls_saved {
    const ls_train_state *state;
    tensor_file files[N_FILES];
    ls_saved_name *names; /* of the optimizer's tensors */
    uint8_t *copy;        /* [bytes], ls_memory_pin; NULL: none was taken */
    int64_t bytes;        /* of this process's elements, all files */
};

/* ---- the arrays of the optimizer ---- */

void ls_saved_array_name(ls_saved_name out, int array, const ls_parameter *p) {
    static const char *const names[LS_SAVED_ARRAYS] = {"master", "m", "v"};
    snprintf(out, sizeof(ls_saved_name), "%s.%s", names[array], p->slot.name);
}

ls_dtype ls_saved_array_dtype(const ls_train_state *s, int array) { return array == 0 ? LS_F32 : s->moments; }

void *ls_saved_array_element(const ls_train_state *s, int array, const ls_parameter *p, int64_t at) {
    void *const all = array == 0 ? s->parameters->masters : array == 1 ? s->m : s->v;
    return (uint8_t *)all + (p->offset + at - s->parameters->begin) * ls_dtype_bytes(ls_saved_array_dtype(s, array));
}

/* ---- files ---- */

ls_st_dtype ls_saved_dtype(ls_dtype dtype) {
    return dtype == LS_F32 ? LS_ST_F32 : dtype == LS_BF16 ? LS_ST_BF16 : LS_ST_F16;
}

static ls_tensor_out tensor_of(const char *name, ls_dtype dtype, const ls_parameter *p) {
    return (ls_tensor_out){name, ls_saved_dtype(dtype), p->slot.tensor.n_dims, p->slot.tensor.dims, NULL};
}

/* ---- weights alone ---- */

ls_status ls_saved_weights_open(ls_saved_weights *out, const ls_parameters *p, ls_error *err) {
    *out = (ls_saved_weights){.parameters = p};
    LS_TRY(ls_array_alloc((void **)&out->tensors, p->n_tensors, sizeof *out->tensors, "checkpoint", err));
    for (int64_t i = 0; i < p->n; i++) {
        const ls_parameter *q = &p->list[i];
        if (q->slot.tensor.at > 0) continue; /* its tensor is listed */
        out->tensors[q->tensor] = tensor_of(q->slot.name, q->dtype, q);
        out->tensors[q->tensor].data = q; /* its first parameter */
    }
    ls_model_pass(p->model);
    return LS_OK;
}

void ls_saved_weights_close(ls_saved_weights *w) { free(w->tensors); }

ls_status ls_saved_weights_fetch(void *context, void *host, const ls_tensor_out *tensor, int64_t at, int64_t bytes,
                                 ls_error *err) {
    const ls_saved_weights *w = context;
    const ls_parameters *p = w->parameters;
    const ls_parameter *q = tensor->data;
    for (; q < p->list + p->n && q->tensor == tensor - w->tensors; q++) {
        const int64_t size = ls_dtype_bytes(q->dtype), first = q->slot.tensor.at * size;
        const int64_t begin = ls_max_i64(at, first), end = ls_min_i64(at + bytes, first + q->n_elements * size);
        if (begin >= end) continue;
        LS_TRY(ls_parameter_need(p, q, err));
        LS_TRY(ls_memory_take(p->device, (uint8_t *)host + (begin - at),
                              (const uint8_t *)ls_parameter_value(q) + (begin - first), end - begin, err));
    }
    return LS_OK;
}

/* ---- files of a checkpoint ---- */

/* Of `arrays` for each parameter. */
static ls_status open_file(tensor_file *f, const char *name, const ls_parameters *p, int64_t arrays, ls_error *err) {
    const int64_t n = arrays * p->n_tensors;
    *f = (tensor_file){.name = name, .n = n, .n_parts = arrays * p->n};
    LS_TRY(ls_array_alloc((void **)&f->tensors, n, sizeof *f->tensors, "checkpoint", err));
    return ls_array_alloc((void **)&f->places, n, sizeof *f->places, "checkpoint", err);
}

/* This process's bytes of part i of a file: where they lie on the device, and of which tensor, from which byte on. */
typedef struct part {
    const void *memory;
    int64_t tensor, first, bytes;
} part;

static part process_part(const ls_saved *saved, int file, int64_t i) {
    const ls_train_state *s = saved->state;
    const ls_parameter *p = &s->parameters->list[i % s->parameters->n];
    const int array = (int)(i / s->parameters->n);
    const ls_dtype dtype = file == WEIGHTS ? p->dtype : ls_saved_array_dtype(s, array);
    const int64_t size = ls_dtype_bytes(dtype);
    part out = {NULL, array * s->parameters->n_tensors + p->tensor, (p->slot.tensor.at + p->begin) * size,
                (p->end - p->begin) * size};
    if (out.bytes > 0)
        out.memory = file == WEIGHTS ? ls_parameter_own(p) : ls_saved_array_element(s, array, p, p->begin);
    return out;
}

static ls_status open_files(ls_saved *saved, ls_error *err) {
    const ls_parameters *p = saved->state->parameters;
    tensor_file *weights = &saved->files[WEIGHTS], *optimizer = &saved->files[OPTIMIZER];
    LS_TRY(open_file(weights, saved->state->adapters != NULL ? "adapter_model.safetensors" : "model.safetensors", p, 1,
                     err));
    LS_TRY(open_file(optimizer, "optimizer.safetensors", p, LS_SAVED_ARRAYS, err));
    LS_TRY(ls_array_alloc((void **)&saved->names, optimizer->n, sizeof *saved->names, "checkpoint", err));
    for (int64_t i = 0; i < p->n; i++) {
        const ls_parameter *q = &p->list[i];
        if (q->slot.tensor.at > 0) continue; /* its tensor is listed */
        weights->tensors[q->tensor] = tensor_of(q->slot.name, q->dtype, q);
        for (int array = 0; array < LS_SAVED_ARRAYS; array++) {
            const int64_t k = array * p->n_tensors + q->tensor;
            ls_saved_array_name(saved->names[k], array, q);
            optimizer->tensors[k] = tensor_of(saved->names[k], ls_saved_array_dtype(saved->state, array), q);
        }
    }
    for (int f = 0; f < N_FILES; f++) {
        LS_TRY(ls_safetensors_places(saved->files[f].places, saved->files[f].tensors, saved->files[f].n, err));
        for (int64_t i = 0; i < saved->files[f].n_parts; i++) saved->bytes += process_part(saved, f, i).bytes;
    }
    return LS_OK;
}

ls_status ls_saved_open(ls_saved **out, const ls_train_state *state, ls_error *err) {
    ls_saved *saved = NULL;
    ls_status status;
    *out = NULL;
    LS_TRY_DONE(ls_array_alloc((void **)&saved, 1, sizeof *saved, "checkpoint", err));
    saved->state = state;
    LS_TRY_DONE(open_files(saved, err));
    *out = saved;
    saved = NULL;
done:
    ls_saved_close(saved);
    return status;
}

void ls_saved_close(ls_saved *saved) {
    if (saved == NULL) return;
    for (int f = 0; f < N_FILES; f++) {
        free(saved->files[f].tensors);
        free(saved->files[f].places);
    }
    free(saved->names);
    ls_memory_unpin(saved->state->parameters->device, saved->copy, saved->bytes);
    free(saved);
}

typedef char file_path[4096];

static ls_status path_of(file_path out, const char *directory, const tensor_file *f, ls_error *err) {
    const int n = snprintf(out, sizeof(file_path), "%s/%s", directory, f->name);
    if (n >= 0 && n < (int)sizeof(file_path)) return LS_OK;
    return LS_FAIL(err, LS_ERR_ARG, "%.200s...: the path is too long", directory);
}

ls_status ls_saved_begin(const ls_saved *saved, const char *directory, ls_error *err) {
    file_path path;
    for (int f = 0; f < N_FILES; f++) {
        LS_TRY(path_of(path, directory, &saved->files[f], err));
        LS_TRY(ls_safetensors_begin(path, saved->files[f].tensors, saved->files[f].n, err));
    }
    return LS_OK;
}

/* ---- elements ---- */

/* Brings bytes of a part to the host, and writes them. */
typedef ls_status (*part_writer)(void *context, const ls_durable *file, const part *p, int64_t place, ls_error *err);

/* All parts of all files, file by file, in the order of their tensors. */
static ls_status write_parts(const ls_saved *saved, const char *directory, part_writer write, void *context,
                             ls_error *err) {
    file_path path;
    for (int k = 0; k < N_FILES; k++) {
        const tensor_file *f = &saved->files[k];
        ls_durable file;
        ls_status status = LS_OK;
        LS_TRY(path_of(path, directory, f, err));
        LS_TRY(ls_durable_open(&file, path, err));
        for (int64_t i = 0; i < f->n_parts && status == LS_OK; i++) {
            const part p = process_part(saved, k, i);
            if (p.bytes > 0) status = write(context, &file, &p, f->places[p.tensor] + p.first, err);
        }
        LS_TRY(ls_durable_close(&file, status, err));
    }
    return LS_OK;
}

typedef struct from_device {
    ls_device *device;
    uint8_t *piece; /* [LS_FETCH_BYTES] */
} from_device;

static int64_t piece_at(const part *p, int64_t at) {
    return p->bytes - at < LS_FETCH_BYTES ? p->bytes - at : LS_FETCH_BYTES;
}

static ls_status write_from_device(void *context, const ls_durable *file, const part *p, int64_t place, ls_error *err) {
    const from_device *from = context;
    for (int64_t at = 0; at < p->bytes; at += LS_FETCH_BYTES) {
        const int64_t n = piece_at(p, at);
        LS_TRY(ls_memory_take(from->device, from->piece, (const uint8_t *)p->memory + at, n, err));
        LS_TRY(ls_durable_write_at(file, from->piece, n, place + at, err));
    }
    return LS_OK;
}

ls_status ls_saved_write(const ls_saved *saved, const char *directory, ls_error *err) {
    from_device from = {saved->state->parameters->device, NULL};
    ls_status status;
    LS_TRY_DONE(ls_array_alloc((void **)&from.piece, LS_FETCH_BYTES, 1, "checkpoint", err));
    status = write_parts(saved, directory, write_from_device, &from, err);
done:
    free(from.piece);
    return status;
}

/* ---- the copy ---- */

ls_status ls_saved_reserve(ls_saved *saved, ls_error *err) {
    return ls_memory_pin(saved->state->parameters->device, (void **)&saved->copy, saved->bytes, 1,
                         "a checkpoint's copy on the host", err);
}

int64_t ls_saved_bytes(const ls_saved *saved) { return saved->bytes; }

ls_status ls_saved_copy(ls_saved *saved, ls_error *err) {
    ls_device *device = saved->state->parameters->device;
    int64_t at = 0;
    for (int f = 0; f < N_FILES; f++)
        for (int64_t i = 0; i < saved->files[f].n_parts; i++) {
            const part p = process_part(saved, f, i);
            if (p.bytes > 0) LS_TRY(ls_memory_copy(device, saved->copy + at, p.memory, p.bytes, err));
            at += p.bytes;
        }
    return ls_device_wait(device, err);
}

typedef struct from_copy {
    const uint8_t *next;
    const atomic_bool *stop;
} from_copy;

static ls_status write_from_copy(void *context, const ls_durable *file, const part *p, int64_t place, ls_error *err) {
    from_copy *from = context;
    for (int64_t at = 0; at < p->bytes; at += LS_FETCH_BYTES) {
        if (atomic_load(from->stop)) return LS_FAIL(err, LS_ERR_IO, "%s: not written to its end", file->path);
        LS_TRY(ls_durable_write_at(file, from->next + at, piece_at(p, at), place + at, err));
    }
    from->next += p->bytes;
    return LS_OK;
}

ls_status ls_saved_write_copy(const ls_saved *saved, const char *directory, const atomic_bool *stop, ls_error *err) {
    from_copy from = {saved->copy, stop};
    return write_parts(saved, directory, write_from_copy, &from, err);
}
