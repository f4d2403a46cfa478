/* The ledger of a device's memory. Owns its rows. */
#include "op/ledger.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

ls_status ls_ledger_assure(ls_ledger *l, ls_error *err) {
    return ls_array_grow((void **)&l->rows, &l->cap, l->n + 1, (int64_t)sizeof *l->rows, "ledger", err);
}

static void take_off(ls_ledger *l, int64_t row_i) {
    const ls_ledger_row *row = &l->rows[row_i];
    if (row->is_pinned)
        l->pinned -= row->bytes;
    else
        l->used -= row->bytes;
    l->rows[row_i] = l->rows[--l->n];
}

void ls_ledger_remove(ls_ledger *l, const void *memory) {
    for (int64_t i = l->n - 1; i >= 0; i--) /* what came last mostly goes first */
        if (l->rows[i].memory == memory) {
            take_off(l, i);
            return;
        }
}

void ls_ledger_add(ls_ledger *l, const void *memory, int64_t bytes, bool is_pinned, const char *what) {
    ls_ledger_row *row;
    LS_ASSERT(l->n < l->cap, "%lld rows of %lld", (long long)l->n, (long long)l->cap);
    row = &l->rows[l->n++];
    *row = (ls_ledger_row){.memory = memory, .bytes = bytes, .is_pinned = is_pinned};
    snprintf(row->what, sizeof row->what, "%s", what);
    l->n_allocations++;
    if (is_pinned)
        l->pinned += bytes;
    else
        l->used += bytes;
    if (l->used > l->used_max) l->used_max = l->used;
}

int64_t ls_ledger_held(const ls_ledger *l, const char *what) {
    int64_t bytes = 0;
    for (int64_t i = 0; i < l->n; i++)
        if (strncmp(l->rows[i].what, what, LS_LEDGER_NAME_MAX - 1) == 0) bytes += l->rows[i].bytes;
    return bytes;
}

static bool is_listed(const ls_ledger_sum *sums, int64_t n, const char *what) {
    for (int64_t i = 0; i < n; i++)
        if (strcmp(sums[i].what, what) == 0) return true;
    return false;
}

/* The largest sum of a name that is not listed yet. */
static ls_ledger_sum next_largest(const ls_ledger *l, const ls_ledger_sum *listed, int64_t n) {
    ls_ledger_sum best = {NULL, 0};
    for (int64_t i = 0; i < l->n; i++) {
        const ls_ledger_row *row = &l->rows[i];
        int64_t bytes;
        if (row->is_pinned || is_listed(listed, n, row->what)) continue;
        if (best.what != NULL && strcmp(best.what, row->what) == 0) continue;
        bytes = ls_ledger_held(l, row->what);
        if (best.what == NULL || bytes > best.bytes) best = (ls_ledger_sum){row->what, bytes};
    }
    return best;
}

int64_t ls_ledger_largest(const ls_ledger *l, ls_ledger_sum *out, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        out[i] = next_largest(l, out, i);
        if (out[i].what == NULL) return i;
    }
    return n;
}

void ls_ledger_deinit(ls_ledger *l) {
    free(l->rows);
    memset(l, 0, sizeof *l);
}
