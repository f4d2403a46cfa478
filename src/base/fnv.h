/* FNV-1a, 64 bits: a digest to tell different contents apart, not to withstand somebody who forges one. */
#ifndef LS_BASE_FNV_H
#define LS_BASE_FNV_H

#include <stdint.h>

#define LS_FNV_START UINT64_C(0xCBF29CE484222325)
#define LS_FNV_PRIME UINT64_C(0x100000001B3)

static inline uint64_t ls_fnv_mix(uint64_t hash, const void *bytes, int64_t n) {
    for (int64_t i = 0; i < n; i++) hash = (hash ^ ((const uint8_t *)bytes)[i]) * LS_FNV_PRIME;
    return hash;
}

#endif
