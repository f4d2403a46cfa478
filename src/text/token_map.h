/* Two open-addressing hash tables: text to number, and a 64-bit key to a pair of numbers. Both only grow. */
#ifndef LS_TEXT_TOKEN_MAP_H
#define LS_TEXT_TOKEN_MAP_H

#include "base/status.h"

typedef struct ls_text_slot {
    const char *text; /* NULL: empty slot; the bytes belong to the caller and outlive the map */
    int64_t bytes;
    uint64_t hash;
    int32_t value;
} ls_text_slot;

typedef struct ls_text_map {
    ls_text_slot *slots;
    int64_t n, cap; /* cap is 0 or a power of two */
} ls_text_map;

/* *added is false, and the map unchanged, when the text is already there. */
ls_status ls_text_map_add(ls_text_map *map, const char *text, int64_t bytes, int32_t value, bool *added, ls_error *err);
/* The text's value, or -1. Values are >= 0. */
int32_t ls_text_map_find(const ls_text_map *map, const char *text, int64_t bytes);
void ls_text_map_deinit(ls_text_map *map);

typedef struct ls_pair_slot {
    uint64_t key;
    int32_t first, second; /* first < 0: empty slot */
} ls_pair_slot;

typedef struct ls_pair_map {
    ls_pair_slot *slots;
    int64_t n, cap;
} ls_pair_map;

/* Sets key's numbers (first >= 0), replacing what was there. */
ls_status ls_pair_map_set(ls_pair_map *map, uint64_t key, int32_t first, int32_t second, ls_error *err);
/* NULL when key is absent. */
const ls_pair_slot *ls_pair_map_find(const ls_pair_map *map, uint64_t key);
void ls_pair_map_deinit(ls_pair_map *map);

static inline uint64_t ls_pair_key(int32_t high, int32_t low) { return (uint64_t)(uint32_t)high << 32 | (uint32_t)low; }

#endif
