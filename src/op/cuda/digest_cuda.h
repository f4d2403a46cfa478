/* The digest FNV-1a (base/fnv.h) of device memory, found in parallel.
 *
 * A step h = (h ^ b) * P changes no more of h than its lowest byte before it multiplies. So with h = u + l, l the
 * lowest byte, n steps give u * P^n + F(l), F(l) what they make of l alone: what a chunk of bytes does to any h is
 * known from what it does to 256 values of one byte. Chunks find theirs side by side; the host puts them together in
 * order. */
#ifndef LS_OP_CUDA_DIGEST_CUDA_H
#define LS_OP_CUDA_DIGEST_CUDA_H

#include "op/backend.h"

#define LS_DIGEST_CHUNK ((int64_t)1 << 16)
#define LS_DIGEST_STARTS 256

#ifdef __cplusplus
extern "C" {
#endif

/* ends [chunks of `bytes`][LS_DIGEST_STARTS], device memory: what each chunk, the last maybe shorter, makes of 0, 1, ..
 * 255. */
ls_status ls_cuda_digest_chunks(const ls_exec *exec, uint64_t *ends, const void *memory, int64_t bytes, ls_error *err);

#ifdef __cplusplus
}
#endif
#endif
