/* The header in memory, then the data as it lies. */
#define _POSIX_C_SOURCE 200809L
#include "load/safetensors_write.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/durable.h"
#include "base/mem.h"
#include "json/json_out.h"

#define ALIGN_BYTES 8

ls_status ls_tensor_out_bytes(int64_t *bytes, const ls_tensor_out *t, ls_error *err) {
    *bytes = ls_st_dtype_bytes(t->dtype);
    LS_ASSERT(*bytes > 0 && t->n_dims >= 0 && t->n_dims <= LS_TENSOR_DIMS_MAX, "%s: type %s, %d dimensions", t->name,
              ls_st_dtype_name(t->dtype), t->n_dims);
    for (int32_t i = 0; i < t->n_dims; i++)
        if (!ls_mul_i64(*bytes, t->dims[i], bytes))
            return LS_FAIL(err, LS_ERR_ARG, "tensor %s: its size does not fit 64 bits", t->name);
    return LS_OK;
}

/* The order of the data: *order is released with free(). */
static ls_status lay_out_tensors(const ls_tensor_out ***order, const ls_tensor_out *tensors, int64_t n, ls_error *err) {
    int64_t at = 0;
    ls_status status = ls_array_alloc((void **)order, n, sizeof **order, "tensors", err);
    for (int64_t bytes = 8; status == LS_OK && bytes >= 1; bytes /= 2)
        for (int64_t i = 0; i < n; i++)
            if (ls_st_dtype_bytes(tensors[i].dtype) == bytes) (*order)[at++] = &tensors[i];
    LS_ASSERT(status != LS_OK || at == n, "%lld of %lld tensors", (long long)at, (long long)n);
    return status;
}

/* *text, of *bytes bytes, is released with free(). */
static ls_status make_header(char **text, size_t *bytes, const ls_tensor_out *const *order, int64_t n, ls_error *err) {
    FILE *file = open_memstream(text, bytes);
    ls_json_out json;
    int64_t begin = 0, size;
    ls_status status = LS_OK;
    if (file == NULL) return LS_FAIL(err, LS_ERR_NOMEM, "safetensors header");
    ls_json_init(&json, file);
    ls_json_begin_object(&json, NULL);
    ls_json_begin_object(&json, "__metadata__");
    ls_json_string(&json, "format", "pt");
    ls_json_end_object(&json);
    for (int64_t i = 0; i < n; i++) {
        const ls_tensor_out *t = order[i];
        LS_TRY_DONE(ls_tensor_out_bytes(&size, t, err));
        ls_json_begin_object(&json, t->name);
        ls_json_string(&json, "dtype", ls_st_dtype_name(t->dtype));
        ls_json_begin_array(&json, "shape");
        for (int32_t k = 0; k < t->n_dims; k++) ls_json_int(&json, NULL, t->dims[k]);
        ls_json_end_array(&json);
        ls_json_begin_array(&json, "data_offsets");
        ls_json_int(&json, NULL, begin);
        if (!ls_add_i64(begin, size, &begin)) {
            status = LS_FAIL(err, LS_ERR_ARG, "tensor %s: its place does not fit 64 bits", t->name);
            goto done;
        }
        ls_json_int(&json, NULL, begin);
        ls_json_end_array(&json);
        ls_json_end_object(&json);
    }
    ls_json_end_object(&json);
    while (ftell(file) % ALIGN_BYTES != 0) fputc(' ', file);
done:
    if ((ferror(file) != 0 || fflush(file) != 0) && status == LS_OK)
        status = LS_FAIL(err, LS_ERR_NOMEM, "safetensors header");
    fclose(file);
    return status;
}

/* What stands before the data: eight bytes of length, and the header. */
typedef struct heading {
    const ls_tensor_out **order; /* [n]: of the data */
    char *text;
    size_t bytes;
} heading;

static void heading_free(heading *h) {
    free(h->text);
    free((void *)h->order);
}

/* heading_free, whatever this returns. `name` stands for the file in errors. */
static ls_status heading_make(heading *h, const char *name, const ls_tensor_out *tensors, int64_t n, ls_error *err) {
    *h = (heading){NULL, NULL, 0};
    LS_TRY(lay_out_tensors(&h->order, tensors, n, err));
    LS_TRY(make_header(&h->text, &h->bytes, h->order, n, err));
    if (h->bytes <= LS_ST_HEADER_MAX) return LS_OK;
    return LS_FAIL(err, LS_ERR_UNSUPPORTED, "%s: a header of %zu bytes; the format's limit is %d", name, h->bytes,
                   LS_ST_HEADER_MAX);
}

static ls_status write_heading(const ls_durable *file, const heading *h, ls_error *err) {
    uint8_t prefix[ALIGN_BYTES];
    for (int i = 0; i < ALIGN_BYTES; i++) prefix[i] = (uint8_t)((uint64_t)h->bytes >> 8 * i);
    LS_TRY(ls_durable_write(file, prefix, ALIGN_BYTES, err));
    return ls_durable_write(file, h->text, (int64_t)h->bytes, err);
}

/* Writes data that is fetched piece by piece. */
static ls_status write_fetched(const ls_durable *file, const ls_tensor_out *tensor, int64_t bytes, void *piece,
                               ls_tensor_fetch fetch, void *context, ls_error *err) {
    for (int64_t at = 0; at < bytes; at += LS_FETCH_BYTES) {
        const int64_t n = bytes - at < LS_FETCH_BYTES ? bytes - at : LS_FETCH_BYTES;
        LS_TRY(fetch(context, piece, tensor, at, n, err));
        LS_TRY(ls_durable_write(file, piece, n, err));
    }
    return LS_OK;
}

ls_status ls_safetensors_write(const char *path, const ls_tensor_out *tensors, int64_t n, ls_tensor_fetch fetch,
                               void *context, ls_error *err) {
    heading h;
    void *piece = NULL;
    ls_durable file = {-1, path};
    ls_status status;
    LS_TRY_DONE(heading_make(&h, path, tensors, n, err));
    if (fetch != NULL) LS_TRY_DONE(ls_array_alloc(&piece, LS_FETCH_BYTES, 1, "checkpoint", err));
    LS_TRY_DONE(ls_durable_create(&file, path, err));
    LS_TRY_DONE(write_heading(&file, &h, err));
    for (int64_t i = 0; i < n; i++) {
        int64_t bytes;
        LS_TRY_DONE(ls_tensor_out_bytes(&bytes, h.order[i], err));
        LS_TRY_DONE(fetch == NULL ? ls_durable_write(&file, h.order[i]->data, bytes, err)
                                  : write_fetched(&file, h.order[i], bytes, piece, fetch, context, err));
    }
done:
    if (file.fd >= 0) status = ls_durable_close(&file, status, err);
    free(piece);
    heading_free(&h);
    return status;
}

ls_status ls_safetensors_begin(const char *path, const ls_tensor_out *tensors, int64_t n, ls_error *err) {
    heading h;
    ls_durable file = {-1, path};
    ls_status status;
    LS_TRY_DONE(heading_make(&h, path, tensors, n, err));
    LS_TRY_DONE(ls_durable_create(&file, path, err));
    status = write_heading(&file, &h, err);
done:
    if (file.fd >= 0) status = ls_durable_close(&file, status, err);
    heading_free(&h);
    return status;
}

ls_status ls_safetensors_places(int64_t *places, const ls_tensor_out *tensors, int64_t n, ls_error *err) {
    heading h;
    int64_t at;
    ls_status status;
    LS_TRY_DONE(heading_make(&h, "checkpoint", tensors, n, err));
    at = ALIGN_BYTES + (int64_t)h.bytes;
    for (int64_t i = 0; i < n; i++) {
        int64_t bytes;
        places[h.order[i] - tensors] = at;
        LS_TRY_DONE(ls_tensor_out_bytes(&bytes, h.order[i], err));
        at += bytes;
    }
done:
    heading_free(&h);
    return status;
}
