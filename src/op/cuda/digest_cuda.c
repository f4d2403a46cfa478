/* The host's side of a digest: it deals out chunks, and follows what they make of what they begin with. */
#include "op/cuda/digest_cuda.h"

#include "base/fnv.h"

/* What of a hash a walk follows. */
static const uint64_t followed[LS_DIGEST_WALKS] = {0xF, 0xFF, UINT64_MAX};

/* Where a digest is: its next part, and how many bytes of it are done. */
typedef struct digest_place {
    const ls_digest_part *parts;
    int64_t n, at;
} digest_place;

static uint64_t power(uint64_t base, int64_t n) {
    uint64_t p = 1;
    for (; n > 0; n /= 2, base *= base)
        if (n % 2 != 0) p *= base;
    return p;
}

/* Fills the runs with what there is room for, from the place on, which goes behind it. Returns how many they are. */
static int64_t fill_runs(ls_digest_slab *slab, digest_place *place, int64_t *n_chunks) {
    int64_t n = 0;
    for (*n_chunks = 0; place->n > 0 && n < LS_DIGEST_RUNS && *n_chunks < LS_DIGEST_CHUNKS; n++) {
        const ls_digest_part *part = place->parts;
        const int64_t left = part->bytes - place->at, room = (LS_DIGEST_CHUNKS - *n_chunks) * LS_DIGEST_CHUNK;
        const int64_t bytes = part->on_host || left < room ? left : room;
        slab->runs[n] = (ls_digest_run){(const uint8_t *)part->memory + place->at, bytes, *n_chunks, part->on_host};
        if (!part->on_host) *n_chunks += (bytes + LS_DIGEST_CHUNK - 1) / LS_DIGEST_CHUNK;
        place->at += bytes;
        if (place->at == part->bytes) *place = (digest_place){place->parts + 1, place->n - 1, 0};
    }
    return n;
}

/* What a chunk makes of `from`, which is what is followed: `end` is what the walk found, power_of_bytes P to the number
 * of the chunk's bytes. */
static uint64_t behind_chunk(ls_digest_walk walk, uint64_t from, uint64_t end, uint64_t power_of_bytes) {
    if (walk == LS_WALK_NIBBLES) return (end >> from % 8 * 8 & 0xF) ^ (from & 8);
    if (walk == LS_WALK_LOWS) return (end >> from / 16 % 8 * 8 & 0xFF) ^ (from & 128);
    return (from & ~UINT64_C(0xFF)) * power_of_bytes + end;
}

/* From the first chunk to behind the last one; every chunk's start is what it begins with. */
static uint64_t follow(ls_digest_slab *slab, ls_digest_walk walk, uint64_t from, int64_t n_runs) {
    const uint64_t whole = power(LS_FNV_PRIME, LS_DIGEST_CHUNK);
    for (int64_t r = 0; r < n_runs; r++) {
        const ls_digest_run *run = &slab->runs[r];
        int64_t c = run->first, left = run->bytes;
        if (run->on_host) from = ls_fnv_mix(from, run->memory, run->bytes) & followed[walk];
        for (; !run->on_host && left > 0; c++, left -= LS_DIGEST_CHUNK) {
            slab->starts[c] = (uint8_t)from;
            from = behind_chunk(walk, from, slab->ends[c], left >= LS_DIGEST_CHUNK ? whole : power(LS_FNV_PRIME, left));
        }
    }
    return from;
}

static ls_status walk_chunks(ls_device *device, ls_digest_slab *host, ls_digest_slab *there, ls_digest_walk walk,
                             int64_t n_runs, int64_t n_chunks, ls_error *err) {
    if (walk == LS_WALK_NIBBLES)
        LS_TRY(ls_memory_write(device, there->runs, host->runs, n_runs * (int64_t)sizeof *host->runs, err));
    else
        LS_TRY(ls_memory_write(device, there->starts, host->starts, n_chunks, err));
    LS_TRY(ls_cuda_digest_walk(&device->exec, there, walk, n_runs, n_chunks, err));
    return ls_memory_take(device, host->ends, there->ends, n_chunks * (int64_t)sizeof *host->ends, err);
}

ls_status ls_cuda_digest(ls_device *device, uint64_t *hash, const ls_digest_part *parts, int64_t n,
                         ls_digest_slab *host, ls_digest_slab *there, ls_error *err) {
    digest_place place = {parts, n, 0};
    uint64_t h = *hash, from = 0;
    while (place.n > 0) {
        int64_t n_chunks;
        const int64_t n_runs = fill_runs(host, &place, &n_chunks);
        for (ls_digest_walk walk = 0; walk < LS_DIGEST_WALKS; walk++) {
            if (n_chunks > 0) LS_TRY(walk_chunks(device, host, there, walk, n_runs, n_chunks, err));
            from = follow(host, walk, h & followed[walk], n_runs);
        }
        h = from;
    }
    *hash = h;
    return LS_OK;
}
