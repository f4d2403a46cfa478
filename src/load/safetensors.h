/* Reading of safetensors: one file (ls_safetensors) and a checkpoint directory of one or more files (ls_checkpoint).
 *
 * A file is 8 bytes of little-endian header length N, N bytes of JSON, then the data section. The header maps each
 * tensor name to {"dtype", "shape", "data_offsets": [begin, end)} and may hold "__metadata__", a map of strings.
 * What the reader promises about a file that it opened: the tensors tile the data section exactly, without holes,
 * overlaps or trailing bytes; end - begin is the size that dtype and shape ask for; no name occurs twice; and every
 * tensor that has elements starts at a byte of the file that is a multiple of its element size, so elements of one in
 * memory may be loaded directly. A file that breaks any of these is refused. Opening reads the header only, and nothing
 * is mapped: a file that others cut short is an error of the read that meets its end, not a signal. Tensors with a zero
 * dimension are allowed and have no bytes. Elements are little-endian, as is every machine this builds for. */
#ifndef LS_LOAD_SAFETENSORS_H
#define LS_LOAD_SAFETENSORS_H

#include "base/status.h"

typedef enum ls_st_dtype {
    LS_ST_BOOL = 0,
    LS_ST_U8,
    LS_ST_I8,
    LS_ST_U16,
    LS_ST_I16,
    LS_ST_U32,
    LS_ST_I32,
    LS_ST_U64,
    LS_ST_I64,
    LS_ST_F4,      /* packed, two to a byte */
    LS_ST_F6_E2M3, /* packed, four to three bytes, as is the next */
    LS_ST_F6_E3M2,
    LS_ST_F8_E4M3,
    LS_ST_F8_E4M3FNUZ,
    LS_ST_F8_E5M2,
    LS_ST_F8_E5M2FNUZ,
    LS_ST_F8_E8M0,
    LS_ST_F16,
    LS_ST_BF16,
    LS_ST_F32,
    LS_ST_F64,
    LS_ST_C64, /* pairs of F32 */
    LS_ST_DTYPES
} ls_st_dtype;

/* The format's own name, for example "BF16". Never NULL. */
const char *ls_st_dtype_name(ls_st_dtype dtype);
/* False where the format has no type of that name. */
bool ls_st_dtype_parse(ls_st_dtype *out, const char *name);
/* Bits of one element. */
int32_t ls_st_dtype_bits(ls_st_dtype dtype);
/* Bytes of one element; 0 for the packed types, whose elements are smaller than a byte. */
int64_t ls_st_dtype_bytes(ls_st_dtype dtype);

#define LS_TENSOR_DIMS_MAX 8
/* The format's own limit on the JSON header. */
#define LS_ST_HEADER_MAX 100000000

/* One tensor; pointers live as long as the handle that gave the view. A scalar has n_dims 0 and one element. */
typedef struct ls_tensor_view {
    const char *name;
    const char *file; /* where it was read from, for error sentences */
    ls_st_dtype dtype;
    int32_t n_dims;
    int64_t dims[LS_TENSOR_DIMS_MAX];
    int64_t n_elements;
    int64_t bytes;
    int64_t at;       /* its first byte in the file */
    const void *data; /* of bytes that were parsed, points to no byte when bytes is 0; NULL of a file: ls_tensor_read */
} ls_tensor_view;

/* Whether two have the same type and shape. */
bool ls_tensor_is_alike(const ls_tensor_view *a, const ls_tensor_view *b);

typedef struct ls_safetensors ls_safetensors;

/* Reads and checks a file's header. */
ls_status ls_safetensors_open(ls_safetensors **out, const char *path, ls_error *err);
/* The same over bytes that the caller keeps until close; bytes must be aligned to 8. */
ls_status ls_safetensors_parse(ls_safetensors **out, const uint8_t *bytes, int64_t n_bytes, const char *name,
                               ls_error *err);
/* The tensor's bytes, whether of a file or parsed; out has room for them. */
ls_status ls_tensor_read(void *out, const ls_tensor_view *view, ls_error *err);
/* Of them bytes [at, at + bytes), which must lie within the tensor. Threads may read at once. */
ls_status ls_tensor_read_part(void *out, const ls_tensor_view *view, int64_t at, int64_t bytes, ls_error *err);
/* LS_OK when the file is still what it was when it was opened: else what was read may be of two contents. Always for
 * bytes of the caller's. */
ls_status ls_safetensors_check(const ls_safetensors *file, ls_error *err);
/* NULL is accepted. */
void ls_safetensors_close(ls_safetensors *file);
int64_t ls_safetensors_count(const ls_safetensors *file);
/* Tensors in the order of their data, i in [0, count). */
const ls_tensor_view *ls_safetensors_at(const ls_safetensors *file, int64_t i);
/* NULL when there is none of that name. */
const ls_tensor_view *ls_safetensors_find(const ls_safetensors *file, const char *name);

/* A directory with model.safetensors or, when that is absent, model.safetensors.index.json and its shards. Where both
 * exist the single file is read, as other readers do. With an index, its weight_map and the shards must name exactly
 * the same tensors in the same files, and a shard must be a plain file name inside the directory. The index's other
 * members describe and are not read. Tensors come under the names that models are read by (tensor_names.h). */
typedef struct ls_checkpoint ls_checkpoint;

#define LS_SHARDS_MAX 4096

ls_status ls_checkpoint_open(ls_checkpoint **out, const char *dir, ls_error *err);
/* ls_safetensors_check for every file. */
ls_status ls_checkpoint_check(const ls_checkpoint *checkpoint, ls_error *err);
/* NULL is accepted. */
void ls_checkpoint_close(ls_checkpoint *checkpoint);
int64_t ls_checkpoint_count(const ls_checkpoint *checkpoint);
/* Tensors by shard name, then in the order of their data. */
const ls_tensor_view *ls_checkpoint_at(const ls_checkpoint *checkpoint, int64_t i);
const ls_tensor_view *ls_checkpoint_find(const ls_checkpoint *checkpoint, const char *name);

#endif
