/* Worker threads: each waits for a numbered job, takes its own contiguous part, and reports back. Jobs of a decode step
 * are microseconds apart, so both sides look for a moment before they sleep, and a job whose threads are all awake is
 * handed over and back by atomics: the lock is taken only by who goes to sleep and by who has to wake them.
 * On a machine with other work a thread may not run for milliseconds: the caller, done with its own part, takes
 * those that nobody has begun, and whoever looks gives its processor to others meanwhile. */
#define _GNU_SOURCE
#include "base/parallel.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/fpmode.h"
#include "base/mem.h"
#include "base/thread.h"

#define CACHE_LINE 64

typedef struct worker {
    ls_pool *pool;
    pthread_t thread;
    int32_t thread_i;
    atomic_llong taken; /* the last job whose part with this thread's number somebody has begun */
    char apart[CACHE_LINE];
} worker;

struct ls_pool {
    int32_t n_threads;
    int32_t n_started;
    worker *workers; /* [n_threads - 1] */
    int32_t n_looks; /* before sleeping; 0 when there are more threads than processors */
    pthread_mutex_t lock;
    pthread_cond_t start, finished;
    /* The job: written before job_number changes, left alone until n_running is 0. */
    atomic_bool quit;
    ls_work work;
    void *context;
    int64_t n_items, grain, n_grains;
    char apart[CACHE_LINE]; /* who looks at job_number does not take the job's line from who writes it */
    /* A sleeper first announces itself, then looks again; a waker first changes what is looked at, then looks for
     * sleepers. All of it is sequentially consistent, so one of the two sees the other. */
    atomic_llong job_number;
    atomic_int n_asleep; /* workers */
    char apart_too[CACHE_LINE];
    atomic_int n_running;
    atomic_bool caller_asleep;
};

#define LOOKS 2000
#define LOOKS_ALONE 100 /* before others may have the processor between looks */
#define LOOKS_A_YIELD 16
#define LOOKS_BEFORE_HELP 20

static void pause_briefly(int32_t look) {
    if (look >= LOOKS_ALONE && look % LOOKS_A_YIELD == 0) sched_yield();
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

/* Parts differ by at most one grain; the last may end within its last grain. */
static void run_part(const ls_pool *pool, int32_t part, int32_t thread_i) {
    const int64_t begin = pool->n_grains * part / pool->n_threads * pool->grain;
    const int64_t end = pool->n_grains * (part + 1) / pool->n_threads * pool->grain;
    if (begin < end) pool->work(pool->context, begin, end < pool->n_items ? end : pool->n_items, thread_i);
}

/* A job is not over before each part has been taken: who takes one of job `number` finds the job as it was announced,
 * however long ago it looked. */
static bool take_part(worker *of, long long number) {
    long long before = atomic_load(&of->taken);
    return before < number && atomic_compare_exchange_strong(&of->taken, &before, number);
}

static void finish_part(ls_pool *pool) {
    if (atomic_fetch_sub(&pool->n_running, 1) > 1 || !atomic_load(&pool->caller_asleep)) return;
    pthread_mutex_lock(&pool->lock);
    pthread_cond_signal(&pool->finished);
    pthread_mutex_unlock(&pool->lock);
}

static void wait_for_job(ls_pool *pool, long long seen) {
    for (int32_t look = 0; look < pool->n_looks && atomic_load(&pool->job_number) == seen; look++) pause_briefly(look);
    if (atomic_load(&pool->job_number) != seen) return;
    pthread_mutex_lock(&pool->lock);
    atomic_fetch_add(&pool->n_asleep, 1);
    while (atomic_load(&pool->job_number) == seen) pthread_cond_wait(&pool->start, &pool->lock);
    atomic_fetch_sub(&pool->n_asleep, 1);
    pthread_mutex_unlock(&pool->lock);
}

static void announce_job(ls_pool *pool) {
    atomic_fetch_add(&pool->job_number, 1);
    if (atomic_load(&pool->n_asleep) == 0) return;
    pthread_mutex_lock(&pool->lock);
    pthread_cond_broadcast(&pool->start);
    pthread_mutex_unlock(&pool->lock);
}

static void *worker_main(void *context) {
    worker *self = context;
    ls_pool *pool = self->pool;
    ls_fpmode_enter(NULL); /* a thread begins with the mode of the one that made it */
    for (long long seen = 0;;) {
        wait_for_job(pool, seen);
        seen = atomic_load(&pool->job_number);
        if (atomic_load(&pool->quit)) return NULL;
        if (!take_part(self, seen)) continue;
        run_part(pool, self->thread_i, self->thread_i);
        finish_part(pool);
    }
}

/* Of the caller: parts whose threads have not come yet, perhaps because others have the processors. */
static void help_workers(ls_pool *pool) {
    const long long number = atomic_load(&pool->job_number);
    for (int32_t look = 0; look < LOOKS_BEFORE_HELP && atomic_load(&pool->n_running) > 0; look++) pause_briefly(look);
    for (int32_t i = 0; i < pool->n_threads - 1 && atomic_load(&pool->n_running) > 0; i++) {
        if (!take_part(&pool->workers[i], number)) continue;
        run_part(pool, i + 1, 0);
        finish_part(pool);
    }
}

static void wait_for_workers(ls_pool *pool) {
    for (int32_t look = 0; look < pool->n_looks && atomic_load(&pool->n_running) > 0; look++) pause_briefly(look);
    if (atomic_load(&pool->n_running) == 0) return;
    pthread_mutex_lock(&pool->lock);
    atomic_store(&pool->caller_asleep, true);
    while (atomic_load(&pool->n_running) > 0) pthread_cond_wait(&pool->finished, &pool->lock);
    atomic_store(&pool->caller_asleep, false);
    pthread_mutex_unlock(&pool->lock);
}

ls_status ls_pool_create(ls_pool **out, int32_t n_threads, ls_error *err) {
    ls_pool *pool;
    int32_t i;
    *out = NULL;
    if (n_threads < 1 || n_threads > LS_THREADS_MAX)
        return LS_FAIL(err, LS_ERR_ARG, "threads: %d is not in 1..%d", n_threads, LS_THREADS_MAX);
    pool = calloc(1, sizeof *pool);
    if (pool == NULL) return LS_FAIL(err, LS_ERR_NOMEM, "thread pool");
    pool->n_threads = n_threads;
    pool->n_looks = n_threads <= ls_cpu_count() ? LOOKS : 0;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->start, NULL);
    pthread_cond_init(&pool->finished, NULL);
    pool->workers = calloc((size_t)n_threads, sizeof *pool->workers);
    if (pool->workers == NULL) {
        ls_pool_free(pool);
        return LS_FAIL(err, LS_ERR_NOMEM, "thread pool of %d", n_threads);
    }
    for (i = 0; i < n_threads - 1; i++) {
        pool->workers[i].pool = pool;
        pool->workers[i].thread_i = i + 1;
        if (ls_thread_start(&pool->workers[i].thread, worker_main, &pool->workers[i]) != 0) {
            ls_pool_free(pool);
            return LS_FAIL(err, LS_ERR_NOMEM, "threads: cannot start thread %d of %d", i + 2, n_threads);
        }
        pool->n_started++;
    }
    *out = pool;
    return LS_OK;
}

void ls_pool_free(ls_pool *pool) {
    int32_t i;
    if (pool == NULL) return;
    atomic_store(&pool->quit, true);
    announce_job(pool);
    for (i = 0; i < pool->n_started; i++) pthread_join(pool->workers[i].thread, NULL);
    pthread_cond_destroy(&pool->finished);
    pthread_cond_destroy(&pool->start);
    pthread_mutex_destroy(&pool->lock);
    free(pool->workers);
    free(pool);
}

int32_t ls_pool_threads(const ls_pool *pool) { return pool->n_threads; }

void ls_parallel_for(ls_pool *pool, int64_t n_items, int64_t grain, ls_work work, void *context) {
    int64_t n_grains;
    LS_ASSERT(grain > 0 && n_items >= 0, "n_items %lld, grain %lld", (long long)n_items, (long long)grain);
    n_grains = n_items / grain + (n_items % grain != 0);
    if (n_grains == 0) return;
    if (pool->n_threads == 1 || n_grains == 1) {
        work(context, 0, n_items, 0);
        return;
    }
    pool->work = work;
    pool->context = context;
    pool->n_items = n_items;
    pool->grain = grain;
    pool->n_grains = n_grains;
    atomic_store(&pool->n_running, pool->n_threads - 1);
    announce_job(pool);
    run_part(pool, 0, 0);
    help_workers(pool);
    wait_for_workers(pool);
}

int32_t ls_cpu_count(void) {
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
    return CPU_COUNT(&set) > 0 ? CPU_COUNT(&set) : 1;
}
