/* Waiting entries in a binary heap, live addresses in a hash table. Both grow at submission only. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "rollout/engine_state.h"

bool ls_entry_before(const entry *a, const entry *b) {
    if (a->request->priority != b->request->priority) return a->request->priority < b->request->priority;
    return a->arrival < b->arrival;
}

static void place_entry(waiting *w, int64_t i, entry *x) {
    w->heap[i] = x;
    x->heap_i = i;
}

static void sift_up(waiting *w, int64_t i, entry *x) {
    for (; i > 0 && ls_entry_before(x, w->heap[(i - 1) / 2]); i = (i - 1) / 2) place_entry(w, i, w->heap[(i - 1) / 2]);
    place_entry(w, i, x);
}

static void sift_down(waiting *w, int64_t i, entry *x) {
    for (;;) {
        int64_t child = 2 * i + 1;
        if (child + 1 < w->n && ls_entry_before(w->heap[child + 1], w->heap[child])) child++;
        if (child >= w->n || !ls_entry_before(w->heap[child], x)) break;
        place_entry(w, i, w->heap[child]);
        i = child;
    }
    place_entry(w, i, x);
}

void ls_waiting_push(waiting *w, entry *x) {
    LS_ASSERT(w->n < w->cap, "%lld waiting of %lld", (long long)w->n, (long long)w->cap);
    w->n++;
    sift_up(w, w->n - 1, x);
}

entry *ls_waiting_top(const waiting *w) { return w->n > 0 ? w->heap[0] : NULL; }

void ls_waiting_remove(waiting *w, entry *x) {
    const int64_t i = x->heap_i;
    entry *last;
    LS_ASSERT(i >= 0 && i < w->n && w->heap[i] == x, "entry %lld does not wait", (long long)x->arrival);
    last = w->heap[--w->n];
    x->heap_i = -1;
    if (last == x) return;
    if (i > 0 && ls_entry_before(last, w->heap[(i - 1) / 2]))
        sift_up(w, i, last);
    else
        sift_down(w, i, last);
}

static int64_t hash(const waiting *w, const ls_request *r) {
    const uint64_t address = ((uint64_t)r->prompt_i << 32 | r->sample_i) + r->owner * UINT64_C(0xD6E8FEB86659FD93);
    return (int64_t)((address * UINT64_C(0x9E3779B97F4A7C15)) >> 20) & (w->table_cap - 1);
}

static bool same_address(const ls_request *a, const ls_request *b) {
    return a->prompt_i == b->prompt_i && a->sample_i == b->sample_i && a->owner == b->owner;
}

static int64_t find_place(const waiting *w, const ls_request *address) {
    int64_t i = hash(w, address);
    while (w->table[i] != NULL && !same_address(w->table[i]->request, address)) i = (i + 1) & (w->table_cap - 1);
    return i;
}

entry *ls_live_find(const waiting *w, const ls_request *address) {
    return w->table_cap == 0 ? NULL : w->table[find_place(w, address)];
}

void ls_live_add(waiting *w, entry *x) {
    const int64_t i = find_place(w, x->request);
    LS_ASSERT(w->table[i] == NULL && 2 * w->table_n < w->table_cap, "address %u, %u", x->request->prompt_i,
              x->request->sample_i);
    w->table[i] = x;
    w->table_n++;
}

/* Closes the gap: entries behind it that would no longer be found move up. */
void ls_live_remove(waiting *w, const entry *x) {
    const int64_t mask = w->table_cap - 1;
    int64_t gap = find_place(w, x->request);
    LS_ASSERT(w->table[gap] == x, "address %u, %u", x->request->prompt_i, x->request->sample_i);
    w->table[gap] = NULL;
    w->table_n--;
    for (int64_t i = (gap + 1) & mask; w->table[i] != NULL; i = (i + 1) & mask) {
        const ls_request *r = w->table[i]->request;
        const int64_t home = hash(w, r);
        if (((i - home) & mask) < ((i - gap) & mask)) continue;
        w->table[gap] = w->table[i];
        w->table[i] = NULL;
        gap = i;
    }
}

ls_status ls_waiting_reserve(waiting *w, int64_t n, ls_error *err) {
    int64_t table_cap = w->table_cap < 64 ? 64 : w->table_cap;
    entry **old = w->table, **table = NULL;
    const int64_t old_cap = w->table_cap;
    LS_TRY(ls_array_grow((void **)&w->heap, &w->cap, n, sizeof *w->heap, "waiting requests", err));
    while (table_cap < 2 * n + 2) table_cap *= 2;
    if (table_cap == old_cap) return LS_OK;
    LS_TRY(ls_array_alloc((void **)&table, table_cap, sizeof *table, "live requests", err));
    w->table = table;
    w->table_cap = table_cap;
    w->table_n = 0;
    for (int64_t i = 0; i < old_cap; i++)
        if (old[i] != NULL) ls_live_add(w, old[i]);
    free(old);
    return LS_OK;
}

void ls_waiting_deinit(waiting *w) {
    free(w->table);
    free(w->heap);
}
