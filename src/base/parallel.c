/* Worker threads: each waits for a numbered job, runs its own contiguous part, and reports back. Jobs of a decode step
 * are microseconds apart, so both sides look for a moment before they sleep. */
#define _GNU_SOURCE
#include "base/parallel.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/mem.h"

typedef struct worker {
    ls_pool *pool;
    pthread_t thread;
    int32_t thread_i;
} worker;

struct ls_pool {
    int32_t n_threads;
    int32_t n_started;
    worker *workers; /* [n_threads - 1] */
    pthread_mutex_t lock;
    pthread_cond_t start, finished;
    /* The job, under the lock. */
    atomic_llong job_number;
    atomic_int n_running;
    int32_t n_looks; /* before sleeping; 0 when there are more threads than processors */
    bool quit;
    ls_work work;
    void *context;
    int64_t n_items, part_items;
};

#define LOOKS 2000

static void pause_briefly(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static void run_part(const ls_pool *pool, int32_t thread_i) {
    const int64_t begin = pool->part_items * thread_i;
    const int64_t rest = pool->n_items - begin;
    if (rest > 0)
        pool->work(pool->context, begin, begin + (rest < pool->part_items ? rest : pool->part_items), thread_i);
}

static void *worker_main(void *context) {
    worker *self = context;
    ls_pool *pool = self->pool;
    long long seen = 0;
    pthread_mutex_lock(&pool->lock);
    for (;;) {
        pthread_mutex_unlock(&pool->lock);
        for (int32_t look = 0; look < pool->n_looks && atomic_load(&pool->job_number) == seen; look++) pause_briefly();
        pthread_mutex_lock(&pool->lock);
        while (!pool->quit && atomic_load(&pool->job_number) == seen) pthread_cond_wait(&pool->start, &pool->lock);
        if (pool->quit) break;
        seen = atomic_load(&pool->job_number);
        pthread_mutex_unlock(&pool->lock);
        run_part(pool, self->thread_i);
        pthread_mutex_lock(&pool->lock);
        if (atomic_fetch_sub(&pool->n_running, 1) == 1) pthread_cond_signal(&pool->finished);
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
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
        if (pthread_create(&pool->workers[i].thread, NULL, worker_main, &pool->workers[i]) != 0) {
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
    pthread_mutex_lock(&pool->lock);
    pool->quit = true;
    pthread_cond_broadcast(&pool->start);
    pthread_mutex_unlock(&pool->lock);
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
    pthread_mutex_lock(&pool->lock);
    pool->work = work;
    pool->context = context;
    pool->n_items = n_items;
    pool->part_items = (n_grains + pool->n_threads - 1) / pool->n_threads * grain;
    atomic_store(&pool->n_running, pool->n_threads - 1);
    atomic_fetch_add(&pool->job_number, 1);
    pthread_cond_broadcast(&pool->start);
    pthread_mutex_unlock(&pool->lock);
    run_part(pool, 0);
    for (int32_t look = 0; look < pool->n_looks && atomic_load(&pool->n_running) > 0; look++) pause_briefly();
    pthread_mutex_lock(&pool->lock);
    while (atomic_load(&pool->n_running) > 0) pthread_cond_wait(&pool->finished, &pool->lock);
    pthread_mutex_unlock(&pool->lock);
}

int32_t ls_cpu_count(void) {
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
    return CPU_COUNT(&set) > 0 ? CPU_COUNT(&set) : 1;
}
