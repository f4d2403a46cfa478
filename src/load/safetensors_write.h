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

/* Copies `bytes` of a tensor's data, from where it is on, to the host. */
typedef ls_status (*ls_tensor_fetch)(void *context, void *host, const void *data, int64_t bytes, ls_error *err);

/* The file must not exist yet; it is synced when this returns. fetch: for data that is not host memory, else NULL. */
ls_status ls_safetensors_write(const char *path, const ls_tensor_out *tensors, int64_t n, ls_tensor_fetch fetch,
                               void *context, ls_error *err);

#endif
