/* How much memory requests hold: each request for itself, all of one client together, and all together, against limits.
 * What is asked for beyond a limit is refused before it is allocated. The first LS_QUOTA_FLOOR bytes of a request are
 * counted and never refused, so that small requests are served whatever others hold: their number is bounded elsewhere.
 * Any number of threads may call it; its lock is innermost. */
#ifndef LS_SERVE_QUOTA_H
#define LS_SERVE_QUOTA_H

#include <pthread.h>

#include "base/status.h"

enum { LS_QUOTA_FLOOR = 16384 };

typedef struct ls_quota {
    pthread_mutex_t lock;
    int64_t request_max, client_max, total_max; /* bytes */
    int64_t total;
} ls_quota;

/* Of a client, who has a key; zeroed at the beginning. */
typedef struct ls_account {
    int64_t bytes;
} ls_account;

/* What one request holds. */
typedef struct ls_holding {
    ls_quota *quota;
    ls_account *client; /* NULL: of nobody who is known, only the other limits count */
    int64_t bytes;
} ls_holding;

void ls_quota_init(ls_quota *quota, int64_t request_max, int64_t client_max, int64_t total_max);
void ls_quota_deinit(ls_quota *quota);
int64_t ls_quota_total(ls_quota *quota);

/* Counts so many bytes more, or refuses them with LS_ERR_CAPACITY: *is_own says whether the request alone is too large,
 * so that it is of no use to try again. */
ls_status ls_holding_take(ls_holding *holding, int64_t bytes, bool *is_own, ls_error *err);
/* Counts so many less. */
void ls_holding_give(ls_holding *holding, int64_t bytes);
/* Counts them whatever the limits say: what is there already. */
void ls_holding_add(ls_holding *holding, int64_t bytes);

#endif
