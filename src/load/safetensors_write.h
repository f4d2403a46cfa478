/* Writing of safetensors, the format that safetensors.h reads. The header is padded to a multiple of 8 bytes and
 * tensors stand by the size of their elements, largest first, else in the caller's order, so that all are aligned. The
 * metadata say {"format": "pt"}, which other readers ask for. */
#ifndef LS_LOAD_SAFETENSORS_WRITE_H
#define LS_LOAD_SAFETENSORS_WRITE_H

#include "load/safetensors.h"

typedef struct ls_tensor_out {
    const char *name;  /* different for every tensor */
    ls_st_dtype dtype; /* of whole bytes */
    int32_t n_dims;
    const int64_t *dims;
    const void *data;
} ls_tensor_out;

/* Bytes of its data; an error where they do not fit 64 bits. */
ls_status ls_tensor_out_bytes(int64_t *bytes, const ls_tensor_out *tensor, ls_error *err);

/* Brings bytes [at, at + bytes) of a tensor, which is one of those given, to the host. Pieces of a tensor come in order
 * and begin at multiples of LS_FETCH_BYTES. */
#define LS_FETCH_BYTES ((int64_t)8 << 20)
typedef ls_status (*ls_tensor_fetch)(void *context, void *host, const ls_tensor_out *tensor, int64_t at, int64_t bytes,
                                     ls_error *err);

/* The file must not exist yet; it is synced when this returns. fetch: for data that is not host memory, else NULL;
 * with it no more than LS_FETCH_BYTES of data are held at a time. */
ls_status ls_safetensors_write(const char *path, const ls_tensor_out *tensors, int64_t n, ls_tensor_fetch fetch,
                               void *context, ls_error *err);

/* In two halves, for data that several write, each its own: the file with its header alone, synced; and, whether it is
 * there yet or not, the byte of the file at which each tensor's data begin, [n]. */
ls_status ls_safetensors_begin(const char *path, const ls_tensor_out *tensors, int64_t n, ls_error *err);
ls_status ls_safetensors_places(int64_t *places, const ls_tensor_out *tensors, int64_t n, ls_error *err);

#endif
