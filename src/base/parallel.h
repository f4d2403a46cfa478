/* A fixed set of worker threads and one primitive: split an index range over them.
 * Work is parallel over outputs only; no reduction ever crosses a thread, so the thread count carries no bits. */
#ifndef LS_BASE_PARALLEL_H
#define LS_BASE_PARALLEL_H

#include "base/status.h"

typedef struct ls_pool ls_pool;

#define LS_THREADS_MAX 1024

/* n_threads includes the calling thread: 1 starts no worker. */
ls_status ls_pool_create(ls_pool **out, int32_t n_threads, ls_error *err);
/* A pool of the same workers for a second caller, who works beside that of `home`: processors follow who works
 * (base/parallel_shares.h). While home works, a range here has n_most threads at most, the caller's included, and home
 * what this pool does not hold; each keeps one. Else it has all. One at a time; to be freed before home. */
ls_status ls_pool_create_beside(ls_pool **out, ls_pool *home, int32_t n_most, ls_error *err);
void ls_pool_free(ls_pool *pool);
/* Of all its workers and the caller: thread_i of every range is below it. */
int32_t ls_pool_threads(const ls_pool *pool);
/* What a range may have that begins now, 1..threads: more parts are not worth cutting. */
int32_t ls_pool_width(const ls_pool *pool);

/* Calls work(context, begin, end, thread_i) on contiguous parts that cover [0, n_items) once, no more of them than
 * the width. Each part but the last is a multiple of `grain` items. thread_i is of the thread that runs the part, below
 * the pool's number; the caller's is 0, and it may run several parts, one after another. Returns when all parts are
 * done. Not reentrant: one caller at a time. */
typedef void (*ls_work)(void *context, int64_t begin, int64_t end, int32_t thread_i);
void ls_parallel_for(ls_pool *pool, int64_t n_items, int64_t grain, ls_work work, void *context);

/* Number of processors this process may run on, at least 1. */
int32_t ls_cpu_count(void);

#endif
