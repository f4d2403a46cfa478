/* Hash tables with linear probing, at most half full; own their slots, not the texts. */
#include "text/token_map.h"

#include <stdlib.h>
#include <string.h>

#include "base/fnv.h"
#include "base/mem.h"

static uint64_t mix_hash(uint64_t x) {
    x ^= x >> 32;
    x *= 0xD6E8FEB86659FD93ull;
    x ^= x >> 32;
    x *= 0xD6E8FEB86659FD93ull;
    return x ^ x >> 32;
}

/* Mixed, because the table takes the low bits. */
static uint64_t hash_text(const char *text, int64_t bytes) { return mix_hash(ls_fnv_mix(LS_FNV_START, text, bytes)); }

static ls_text_slot *text_slot(const ls_text_map *map, const char *text, int64_t bytes, uint64_t hash) {
    const uint64_t mask = (uint64_t)map->cap - 1;
    uint64_t i = hash & mask;
    for (;; i = (i + 1) & mask) {
        ls_text_slot *slot = &map->slots[i];
        if (slot->text == NULL) return slot;
        if (slot->hash == hash && slot->bytes == bytes && memcmp(slot->text, text, (size_t)bytes) == 0) return slot;
    }
}

static ls_status text_map_grow(ls_text_map *map, ls_error *err) {
    ls_text_map next = {.n = map->n, .cap = map->cap == 0 ? 64 : map->cap * 2};
    void *slots;
    const ls_status status = ls_array_alloc(&slots, next.cap, sizeof *next.slots, "token table", err);
    if (status != LS_OK) return status;
    next.slots = slots;
    for (int64_t i = 0; i < map->cap; i++) {
        const ls_text_slot *slot = &map->slots[i];
        if (slot->text != NULL) *text_slot(&next, slot->text, slot->bytes, slot->hash) = *slot;
    }
    free(map->slots);
    *map = next;
    return LS_OK;
}

ls_status ls_text_map_add(ls_text_map *map, const char *text, int64_t bytes, int32_t value, bool *added,
                          ls_error *err) {
    const uint64_t hash = hash_text(text, bytes);
    ls_text_slot *slot;
    ls_status status;
    LS_ASSERT(value >= 0, "%d", value);
    if (map->n * 2 >= map->cap && (status = text_map_grow(map, err)) != LS_OK) return status;
    slot = text_slot(map, text, bytes, hash);
    *added = slot->text == NULL;
    if (*added) {
        *slot = (ls_text_slot){.text = text, .bytes = bytes, .hash = hash, .value = value};
        map->n++;
    }
    return LS_OK;
}

int32_t ls_text_map_find(const ls_text_map *map, const char *text, int64_t bytes) {
    const ls_text_slot *slot;
    if (map->cap == 0) return -1;
    slot = text_slot(map, text, bytes, hash_text(text, bytes));
    return slot->text == NULL ? -1 : slot->value;
}

void ls_text_map_deinit(ls_text_map *map) {
    free(map->slots);
    memset(map, 0, sizeof *map);
}

static ls_pair_slot *pair_slot(const ls_pair_map *map, uint64_t key) {
    const uint64_t mask = (uint64_t)map->cap - 1;
    uint64_t i = mix_hash(key) & mask;
    while (map->slots[i].first >= 0 && map->slots[i].key != key) i = (i + 1) & mask;
    return &map->slots[i];
}

static ls_status pair_map_grow(ls_pair_map *map, ls_error *err) {
    ls_pair_map next = {.n = map->n, .cap = map->cap == 0 ? 64 : map->cap * 2};
    void *slots;
    const ls_status status = ls_array_alloc(&slots, next.cap, sizeof *next.slots, "pair table", err);
    if (status != LS_OK) return status;
    next.slots = slots;
    for (int64_t i = 0; i < next.cap; i++) next.slots[i].first = -1;
    for (int64_t i = 0; i < map->cap; i++)
        if (map->slots[i].first >= 0) *pair_slot(&next, map->slots[i].key) = map->slots[i];
    free(map->slots);
    *map = next;
    return LS_OK;
}

ls_status ls_pair_map_set(ls_pair_map *map, uint64_t key, int32_t first, int32_t second, ls_error *err) {
    ls_pair_slot *slot;
    ls_status status;
    LS_ASSERT(first >= 0, "%d", first);
    if (map->n * 2 >= map->cap && (status = pair_map_grow(map, err)) != LS_OK) return status;
    slot = pair_slot(map, key);
    if (slot->first < 0) map->n++;
    *slot = (ls_pair_slot){.key = key, .first = first, .second = second};
    return LS_OK;
}

const ls_pair_slot *ls_pair_map_find(const ls_pair_map *map, uint64_t key) {
    const ls_pair_slot *slot;
    if (map->cap == 0) return NULL;
    slot = pair_slot(map, key);
    return slot->first < 0 ? NULL : slot;
}

void ls_pair_map_deinit(ls_pair_map *map) {
    free(map->slots);
    memset(map, 0, sizeof *map);
}
