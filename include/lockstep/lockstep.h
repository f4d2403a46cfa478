/* Public types of liblockstep: status codes, the error record, data types.
 *
 * Every function that can fail returns ls_status, zero being success, and fills an ls_error (last argument, may be
 * NULL) with one sentence that names what failed, where, and the offending value. On failure outputs are untouched
 * unless the function says otherwise. */
#ifndef LOCKSTEP_LOCKSTEP_H
#define LOCKSTEP_LOCKSTEP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define LS_VERSION "0.1.0"

typedef enum ls_status {
    LS_OK = 0,
    LS_ERR_ARG,         /* an argument or option is out of its domain */
    LS_ERR_IO,          /* the operating system refused: open, read, write, map, rename */
    LS_ERR_FORMAT,      /* bytes from outside do not follow their format */
    LS_ERR_UNSUPPORTED, /* well-formed, but asks for something that is not built */
    LS_ERR_NOMEM,       /* an allocation failed or its size does not fit */
    LS_ERR_CAPACITY,    /* a planned budget (pages, slots, tokens) cannot hold the request */
    LS_ERR_DEVICE       /* a device failed; its handle is poisoned */
} ls_status;

#define LS_ERROR_TEXT_MAX 1024

typedef struct ls_error {
    ls_status status;
    char text[LS_ERROR_TEXT_MAX];
} ls_error;

/* Short name of a status, for example "format". Never NULL. */
const char *ls_status_name(ls_status status);

/* Element types of tensors. bf16 and fp16 are carried as uint16_t bit patterns. */
typedef enum ls_dtype { LS_F32 = 0, LS_BF16 = 1, LS_F16 = 2 } ls_dtype;

/* Bytes of one element; 0 for a value that is not an ls_dtype. */
int64_t ls_dtype_bytes(ls_dtype dtype);
/* "f32", "bf16", "f16". Never NULL. */
const char *ls_dtype_name(ls_dtype dtype);

/* How dense products are summed (NUMERICS.md). exact: one float32 fma chain. mma16: one chain of a tensor core's steps
 * of 16, bf16 operands only. */
typedef enum ls_profile { LS_PROFILE_EXACT = 0, LS_PROFILE_MMA16 = 1 } ls_profile;

/* "exact", "mma16"; "unknown" for a value that is not an ls_profile. Never NULL. */
const char *ls_profile_name(ls_profile profile);

#ifdef __cplusplus
}
#endif
#endif
