/* Ids of a pool, handed out by a policy and counted by reference. Which ids a sequence gets never changes a bit of it;
 * policies exist to show that, and to find where it is not so. */
#ifndef LS_ROLLOUT_IDS_H
#define LS_ROLLOUT_IDS_H

#include "base/status.h"

typedef enum ls_policy {
    LS_POLICY_FIFO = 0, /* the one that has been free longest: ids rotate through the whole pool */
    LS_POLICY_LOWEST,   /* the free one that comes first in the pool's order */
    LS_POLICY_HIGHEST,  /* the one that comes last */
    LS_POLICY_RANDOM,   /* any, drawn by the seed */
    LS_POLICY_COUNT
} ls_policy;

const char *ls_policy_name(ls_policy policy); /* "fifo", "lowest", "highest", "random" */
bool ls_policy_parse(ls_policy *out, const char *name);

typedef struct ls_ids_opts {
    int64_t n; /* ids 0..n-1; at most 2^31 - 1 */
    ls_policy policy;
    /* The pool's order, which fifo begins with and lowest and highest keep to: from base up to n - 1, then from 0 up to
     * base - 1; all that shuffled by the seed `permutation` unless it is 0. */
    int64_t base;
    uint64_t permutation;
    uint64_t seed; /* of the random policy */
} ls_ids_opts;

typedef struct ls_ids ls_ids;

/* `what` names the pool in errors. */
ls_status ls_ids_create(ls_ids **out, const ls_ids_opts *opts, const char *what, ls_error *err);
void ls_ids_free(ls_ids *ids);

/* A free id with one reference, or -1. Nothing here allocates after creation. */
int32_t ls_ids_acquire(ls_ids *ids);
/* One reference more to a held id. To share or release a free one is a broken invariant, and asserted. */
void ls_ids_share(ls_ids *ids, int32_t id);
/* One reference less; true when it was the last and the id is free again. */
bool ls_ids_release(ls_ids *ids, int32_t id);
int32_t ls_ids_references(const ls_ids *ids, int32_t id); /* 0: free */
int64_t ls_ids_available(const ls_ids *ids);              /* free ids */

/* References begin firm. A holder that can let go of an id whenever asked (a cache) makes its reference loose; to share
 * makes a firm one, and only a firm one is released. */
void ls_ids_loosen(ls_ids *ids, int32_t id);        /* a firm reference is a loose one from here on */
void ls_ids_tighten(ls_ids *ids, int32_t id);       /* and back */
int32_t ls_ids_firm(const ls_ids *ids, int32_t id); /* firm references */
int64_t ls_ids_reclaimable(const ls_ids *ids);      /* held ids without a firm reference */
int64_t ls_ids_count(const ls_ids *ids);

#endif
