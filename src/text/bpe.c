/* Byte-pair encoding with a heap of candidate merges over a linked list of symbols: O(n log n) in the word's length.
 * Owns the model's tables; scratch memory belongs to the encoder. */
#include "text/bpe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"

typedef struct ls_bpe_symbol {
    int32_t id;         /* -1: merged into its left neighbour */
    int32_t prev, next; /* -1 at the ends */
} symbol;

typedef struct ls_bpe_merge {
    int32_t rank, at, id;
} merge;

void ls_bpe_finish(ls_bpe *bpe) {
    char name[8];
    for (int b = 0; b < 256; b++) {
        snprintf(name, sizeof name, "<0x%02X>", (unsigned)b & 0xFFu);
        bpe->byte_ids[b] = ls_text_map_find(&bpe->vocab, name, 6);
    }
    for (int32_t code = 0; code < LS_BPE_LOW_CODES; code++) {
        uint8_t text[4];
        const int64_t n = ls_utf8_encode(code, text);
        bpe->low_ids[code] = ls_text_map_find(&bpe->vocab, (const char *)text, n);
    }
    bpe->unk_id =
        bpe->unk_token == NULL ? -1 : ls_text_map_find(&bpe->vocab, bpe->unk_token, (int64_t)strlen(bpe->unk_token));
}

void ls_bpe_deinit(ls_bpe *bpe) {
    ls_text_map_deinit(&bpe->vocab);
    ls_pair_map_deinit(&bpe->merges);
    free(bpe->unk_token);
    free(bpe->prefix);
    free(bpe->suffix);
    memset(bpe, 0, sizeof *bpe);
}

ls_status ls_ids_append(ls_ids *ids, int32_t id, ls_error *err) {
    const ls_status status = ls_array_grow((void **)&ids->items, &ids->cap, ids->n + 1, sizeof *ids->items, "ids", err);
    if (status == LS_OK) ids->items[ids->n++] = id;
    return status;
}

void ls_bpe_scratch_deinit(ls_bpe_scratch *scratch) {
    free(scratch->symbols);
    free(scratch->heap);
    ls_text_deinit(&scratch->unit);
    memset(scratch, 0, sizeof *scratch);
}

static ls_status add_symbol(ls_bpe_scratch *scratch, int32_t id, ls_error *err) {
    const int64_t n = scratch->symbols_n;
    ls_status status;
    if (n >= INT32_MAX - 1) return LS_FAIL(err, LS_ERR_CAPACITY, "a word of more than %d symbols", INT32_MAX - 1);
    status =
        ls_array_grow((void **)&scratch->symbols, &scratch->symbols_cap, n + 1, sizeof(symbol), "word symbols", err);
    if (status != LS_OK) return status;
    scratch->symbols[n] = (symbol){.id = id, .prev = (int32_t)n - 1, .next = (int32_t)n + 1};
    scratch->symbols_n = n + 1;
    return LS_OK;
}

/* Bytes of a character as symbols, or *done = false when one of them has no token. */
static ls_status add_bytes(const ls_bpe *bpe, ls_bpe_scratch *scratch, const char *text, int64_t bytes, bool *done,
                           ls_error *err) {
    ls_status status;
    *done = false;
    for (int64_t i = 0; i < bytes; i++)
        if (bpe->byte_ids[(uint8_t)text[i]] < 0) return LS_OK;
    for (int64_t i = 0; i < bytes; i++)
        if ((status = add_symbol(scratch, bpe->byte_ids[(uint8_t)text[i]], err)) != LS_OK) return status;
    *done = true;
    return LS_OK;
}

static ls_status word_symbols(const ls_bpe *bpe, ls_bpe_scratch *scratch, const char *word, int64_t bytes,
                              ls_error *err) {
    int64_t unknown = 0, at = 0; /* unknown: tokens owed for unknown characters, written before the next known one */
    scratch->symbols_n = 0;
    while (at < bytes) {
        int32_t code, id;
        const int64_t used = ls_utf8_decode((const uint8_t *)word + at, bytes - at, &code);
        const bool prefixed = bpe->prefix != NULL && at > 0, suffixed = bpe->suffix != NULL && at + used == bytes;
        const char *unit = word + at;
        int64_t unit_bytes = used;
        if (prefixed || suffixed) {
            scratch->unit.bytes = 0;
            if (prefixed) LS_TRY(ls_text_append(&scratch->unit, bpe->prefix, (int64_t)strlen(bpe->prefix), err));
            LS_TRY(ls_text_append(&scratch->unit, word + at, used, err));
            if (suffixed) LS_TRY(ls_text_append(&scratch->unit, bpe->suffix, (int64_t)strlen(bpe->suffix), err));
            unit = scratch->unit.data;
            unit_bytes = scratch->unit.bytes;
            id = ls_text_map_find(&bpe->vocab, unit, unit_bytes);
        } else if (code >= 0 && code < LS_BPE_LOW_CODES) {
            id = bpe->low_ids[code];
        } else {
            id = ls_text_map_find(&bpe->vocab, unit, unit_bytes);
        }
        at += used;
        if (id >= 0) {
            for (; unknown > 0; unknown--) LS_TRY(add_symbol(scratch, bpe->unk_id, err));
            LS_TRY(add_symbol(scratch, id, err));
            continue;
        }
        if (bpe->byte_fallback) {
            bool done;
            LS_TRY(add_bytes(bpe, scratch, unit, unit_bytes, &done, err));
            if (done) continue; /* an unknown token that is still owed comes after these bytes, as in the reference */
        }
        if (bpe->unk_token == NULL) continue;
        if (bpe->unk_id < 0)
            return LS_FAIL(err, LS_ERR_FORMAT, "U+%04X needs the unknown token '%.60s', which is not in the vocabulary",
                           (unsigned)code, bpe->unk_token);
        if (unknown > 0 && !bpe->fuse_unk) {
            LS_TRY(add_symbol(scratch, bpe->unk_id, err));
        } else {
            unknown = 1;
        }
    }
    for (; unknown > 0; unknown--) LS_TRY(add_symbol(scratch, bpe->unk_id, err));
    if (scratch->symbols_n > 0) scratch->symbols[scratch->symbols_n - 1].next = -1;
    return LS_OK;
}

static bool before(const merge *a, const merge *b) { return a->rank != b->rank ? a->rank < b->rank : a->at < b->at; }

/* Four children to a node: half the levels of a binary heap, and a node's children share a cache line. */
static void sift_down(merge *heap, int64_t n, int64_t at) {
    const merge moved = heap[at];
    for (;;) {
        const int64_t first = 4 * at + 1, end = first + 4 < n ? first + 4 : n;
        int64_t child = first;
        if (first >= n) break;
        for (int64_t i = first + 1; i < end; i++)
            if (before(&heap[i], &heap[child])) child = i;
        if (!before(&heap[child], &moved)) break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = moved;
}

static void heap_push(ls_bpe_scratch *scratch, merge item) {
    merge *heap = scratch->heap;
    int64_t at = scratch->heap_n++;
    while (at > 0 && before(&item, &heap[(at - 1) / 4])) {
        heap[at] = heap[(at - 1) / 4];
        at = (at - 1) / 4;
    }
    heap[at] = item;
}

static void push_pair(const ls_bpe *bpe, ls_bpe_scratch *scratch, int32_t left, int32_t right) {
    const symbol *symbols = scratch->symbols;
    const ls_pair_slot *found = ls_pair_map_find(&bpe->merges, ls_pair_key(symbols[left].id, symbols[right].id));
    if (found != NULL) heap_push(scratch, (merge){.rank = found->first, .at = left, .id = found->second});
}

static ls_status merge_symbols(const ls_bpe *bpe, ls_bpe_scratch *scratch, ls_error *err) {
    const int64_t n = scratch->symbols_n;
    symbol *symbols = scratch->symbols;
    /* n - 1 pairs at first, and each of at most n - 1 merges makes two new ones. */
    const ls_status status =
        ls_array_grow((void **)&scratch->heap, &scratch->heap_cap, 3 * n, sizeof(merge), "merge candidates", err);
    if (status != LS_OK) return status;
    scratch->heap_n = 0;
    for (int64_t i = 0; i + 1 < n; i++) {
        const ls_pair_slot *found = ls_pair_map_find(&bpe->merges, ls_pair_key(symbols[i].id, symbols[i + 1].id));
        if (found == NULL) continue;
        scratch->heap[scratch->heap_n++] = (merge){.rank = found->first, .at = (int32_t)i, .id = found->second};
    }
    for (int64_t i = (scratch->heap_n + 2) / 4; i-- > 0;) sift_down(scratch->heap, scratch->heap_n, i);
    while (scratch->heap_n > 0) {
        const merge top = scratch->heap[0];
        symbol *left = &symbols[top.at];
        const ls_pair_slot *found;
        int32_t gone;
        scratch->heap[0] = scratch->heap[--scratch->heap_n];
        if (scratch->heap_n > 0) sift_down(scratch->heap, scratch->heap_n, 0);
        if (left->id < 0 || left->next < 0) continue;
        gone = left->next;
        /* The candidate is stale unless the pair that stands there now has the same result. */
        found = ls_pair_map_find(&bpe->merges, ls_pair_key(left->id, symbols[gone].id));
        if (found == NULL || found->second != top.id) continue;
        left->id = top.id;
        left->next = symbols[gone].next;
        symbols[gone].id = -1;
        if (left->next >= 0) symbols[left->next].prev = top.at;
        if (left->prev >= 0) push_pair(bpe, scratch, left->prev, top.at);
        if (left->next >= 0) push_pair(bpe, scratch, top.at, left->next);
    }
    return LS_OK;
}

ls_status ls_bpe_encode(const ls_bpe *bpe, ls_bpe_scratch *scratch, const char *word, int64_t bytes, ls_ids *ids,
                        ls_error *err) {
    LS_ASSERT(bytes <= INT32_MAX, "%lld", (long long)bytes);
    if (bpe->ignore_merges) {
        const int32_t id = ls_text_map_find(&bpe->vocab, word, bytes);
        if (id >= 0) return ls_ids_append(ids, id, err);
    }
    LS_TRY(word_symbols(bpe, scratch, word, bytes, err));
    if (scratch->symbols_n > 1) LS_TRY(merge_symbols(bpe, scratch, err));
    for (int64_t i = 0; i < scratch->symbols_n; i++)
        if (scratch->symbols[i].id >= 0) LS_TRY(ls_ids_append(ids, scratch->symbols[i].id, err));
    return LS_OK;
}
