/* What a device's memory is held for: a row for each allocation, so that it is known at any time how much there is of
 * what, and how many allocations were made. */
#ifndef LS_OP_LEDGER_H
#define LS_OP_LEDGER_H

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { LS_LEDGER_NAME_MAX = 24 };

typedef struct ls_ledger_row {
    const void *memory;
    int64_t bytes;
    bool is_pinned; /* memory of the host */
    char what[LS_LEDGER_NAME_MAX];
} ls_ledger_row;

typedef struct ls_ledger {
    ls_ledger_row *rows; /* [n], those that live */
    int64_t n, cap;
    int64_t used, used_max, pinned; /* bytes: of the device, the most so far, of the host */
    int64_t n_allocations;          /* ever */
} ls_ledger;

/* What all allocations of one name hold together. */
typedef struct ls_ledger_sum {
    const char *what; /* the ledger's */
    int64_t bytes;
} ls_ledger_sum;

/* Room for one more row: what is added next cannot fail. */
ls_status ls_ledger_assure(ls_ledger *ledger, ls_error *err);
void ls_ledger_add(ls_ledger *ledger, const void *memory, int64_t bytes, bool is_pinned, const char *what);
/* Memory that is not in the ledger, of another device with the same memory, changes nothing. */
void ls_ledger_remove(ls_ledger *ledger, const void *memory);
/* The n names that hold most of the device's memory, largest first; returns how many there are, up to n. */
int64_t ls_ledger_largest(const ls_ledger *ledger, ls_ledger_sum *out, int64_t n);
/* What the allocations of this name hold. */
int64_t ls_ledger_held(const ls_ledger *ledger, const char *what);
void ls_ledger_deinit(ls_ledger *ledger);

#ifdef __cplusplus
}
#endif
#endif
