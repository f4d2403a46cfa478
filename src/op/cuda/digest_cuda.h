/* The digest FNV-1a (base/fnv.h) of device memory, found in parallel.
 *
 * A step h = (h ^ b) * P changes no more of h than its lowest byte before it multiplies. So with h = u + l, l the
 * lowest byte, n steps give u * P^n + F(l), F(l) what they make of l alone. The lowest byte of h goes its own way,
 * l = (l ^ b) * P mod 256, and its lower four bits go theirs, P mod 16. As P is odd, adding the highest bit to what a
 * way begins with adds it to what it ends with.
 *
 * So every chunk of bytes is walked three times. First from each value 0 .. 7 of the four lowest bits: the host follows
 * those of the hash from chunk to chunk, and so knows which value each chunk begins with. Then from the eight lowest
 * bytes below 128 that end in these four bits: the host follows the lowest byte. Last from the one lowest byte that the
 * chunk begins with, which gives F: the host puts these together. */
#ifndef LS_OP_CUDA_DIGEST_CUDA_H
#define LS_OP_CUDA_DIGEST_CUDA_H

#include "op/backend.h"

#define LS_DIGEST_CHUNK ((int64_t)1 << 14)  /* bytes */
#define LS_DIGEST_CHUNKS ((int64_t)1 << 16) /* of a slab, at most: 1 GiB */
#define LS_DIGEST_RUNS 4096                 /* of a slab, at most */

typedef enum ls_digest_walk { LS_WALK_NIBBLES, LS_WALK_LOWS, LS_WALK_HASH, LS_DIGEST_WALKS } ls_digest_walk;

/* Bytes that follow each other. Those of the device are cut into chunks of which the last may be shorter; `first` is
 * the number of the first one, or of the next run's. */
typedef struct ls_digest_run {
    const uint8_t *memory;
    int64_t bytes, first;
    bool on_host;
} ls_digest_run;

/* What of a digest is under way at a time, once on the host and once on the device. */
typedef struct ls_digest_slab {
    ls_digest_run runs[LS_DIGEST_RUNS];
    uint64_t ends[LS_DIGEST_CHUNKS];
    uint8_t starts[LS_DIGEST_CHUNKS];
} ls_digest_slab;

#ifdef __cplusplus
extern "C" {
#endif

/* One walk over all n_chunks > 0 chunks of the runs of a slab on the device: fills `ends`. Of NIBBLES byte i is what
 * becomes of the four bits i; of LOWS, what becomes of the byte starts + 16 i, starts < 16; of HASH it is F(starts). */
ls_status ls_cuda_digest_walk(const ls_exec *exec, ls_digest_slab *slab, ls_digest_walk walk, int64_t n_runs,
                              int64_t n_chunks, ls_error *err);

/* *hash mixed with the parts in order. Waits. A slab on the host and one on the device, whatever they hold. */
ls_status ls_cuda_digest(ls_device *device, uint64_t *hash, const ls_digest_part *parts, int64_t n,
                         ls_digest_slab *host, ls_digest_slab *there, ls_error *err);

#ifdef __cplusplus
}
#endif
#endif
