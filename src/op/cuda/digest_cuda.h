/* The digest FNV-1a (base/fnv.h) of device memory, found in parallel.
 *
 * A step h = (h ^ b) * P changes no more of h than its lowest byte before it multiplies. So with h = u + l, l the
 * lowest byte, n steps give u * P^n + F(l), F(l) what they make of l alone; and the lowest byte of h goes its own
 * way, l = (l ^ b) * P mod 256. Of that, adding 128 to l adds 128 to what becomes of it.
 *
 * First every chunk of bytes finds what it makes of the lowest bytes 0 .. 127. The host follows them from chunk to
 * chunk, and so knows the l that each begins with. Then every chunk finds F of that one l, and the host puts these
 * together. */
#ifndef LS_OP_CUDA_DIGEST_CUDA_H
#define LS_OP_CUDA_DIGEST_CUDA_H

#include "op/backend.h"

#define LS_DIGEST_CHUNK ((int64_t)1 << 13)
#define LS_DIGEST_LOWS 128

#ifdef __cplusplus
extern "C" {
#endif

/* lows [chunks of `bytes`][LS_DIGEST_LOWS], device memory, aligned to 4 bytes: the lowest byte that each chunk, the
 * last maybe shorter, makes of 0, 1, .. 127. */
ls_status ls_cuda_digest_lows(const ls_exec *exec, uint8_t *lows, const void *memory, int64_t bytes, ls_error *err);
/* ends [chunks]: F of starts [chunks], device memory. */
ls_status ls_cuda_digest_ends(const ls_exec *exec, uint64_t *ends, const uint8_t *starts, const void *memory,
                              int64_t bytes, ls_error *err);

#ifdef __cplusplus
}
#endif
#endif
