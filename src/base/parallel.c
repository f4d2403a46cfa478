/* Worker threads: each waits for a numbered job that has a part for it, takes its own contiguous part, and reports
 * back. Jobs of a decode step are microseconds apart, so both sides look for a moment before they sleep, and a job
 * whose threads are all awake is handed over and back by atomics: the lock is taken only by who goes to sleep and by
 * who has to wake them.
 * On a machine with other work a thread may not run for milliseconds: the caller, done with its own part, takes
 * those that nobody has begun, and whoever looks gives its processor to others meanwhile.
 * A crew of workers has two callers at most, each with a job of its own. They are no two crews: a processor that goes
 * from one caller to the other is a worker that takes its next part from there, and nobody has to be put to sleep. */
#define _GNU_SOURCE
#include "base/parallel.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/fpmode.h"
#include "base/mem.h"
#include "base/parallel_shares.h"
#include "base/thread.h"

#define CACHE_LINE 64

typedef struct crew crew;

typedef struct worker {
    crew *crew;
    pthread_t thread;
    int32_t thread_i;
    pthread_cond_t start;
    long long seen[LS_SIDES];     /* its own: the last job that it looked at */
    atomic_llong taken[LS_SIDES]; /* the last job whose part with this thread's number somebody has begun */
    char apart[CACHE_LINE];
} worker;

/* A caller and its job: written before `job` changes, left alone until n_running is 0. */
struct ls_pool {
    crew *crew;
    ls_side side;
    ls_work work;
    void *context;
    int64_t n_items, grain, n_grains;
    int32_t n_parts;
    long long n_jobs;
    char apart[CACHE_LINE]; /* who looks at `job` does not take the job's line from who writes it */
    /* A sleeper first announces itself, then looks again; a waker first changes what is looked at, then looks for
     * sleepers. All of it is sequentially consistent, so one of the two sees the other. */
    atomic_llong job;   /* job_word */
    atomic_int n_awake; /* threads of this side that look for the next job */
    char apart_too[CACHE_LINE];
    atomic_int n_running;
    atomic_bool caller_asleep;
    pthread_cond_t finished;
};

struct crew {
    int32_t n_threads;
    int32_t n_started;
    worker *workers; /* [n_threads - 1] */
    int32_t n_looks; /* before sleeping; 0 when there are more threads than processors */
    ls_pool pools[LS_SIDES];
    bool has_beside; /* two callers */
    ls_shares shares;
    pthread_mutex_t lock;
    atomic_bool quit;
    atomic_int n_asleep;  /* workers */
    atomic_uchar *asleep; /* [n_threads - 1] */
};

/* A job as workers see it: its number, and how many parts it has. */
#define PARTS_BITS 11

static long long job_word(long long number, int32_t parts) { return number << PARTS_BITS | parts; }
static long long number_of(long long job) { return job >> PARTS_BITS; }
static int32_t parts_of(long long job) { return (int32_t)(job & ((1 << PARTS_BITS) - 1)); }

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

/* The worker that runs part `part` > 0 of a side's jobs, and the other way round: home counts them from the first on,
 * who is beside from the last on, so that they meet as late as can be. Its own inverse. */
static int32_t other_end(const crew *c, ls_side side, int32_t i) { return side == LS_SIDE_HOME ? i : c->n_threads - i; }

/* Parts differ by at most one grain; the last may end within its last grain. */
static void run_part(const ls_pool *pool, int32_t part, int32_t thread_i) {
    const int64_t begin = pool->n_grains * part / pool->n_parts * pool->grain;
    const int64_t end = pool->n_grains * (part + 1) / pool->n_parts * pool->grain;
    if (begin < end) pool->work(pool->context, begin, end < pool->n_items ? end : pool->n_items, thread_i);
}

/* A job is not over before each part has been taken: who takes one of job `number` finds the job as it was announced,
 * however long ago it looked. */
static bool take_part(worker *of, ls_side side, long long number) {
    long long before = atomic_load(&of->taken[side]);
    return before < number && atomic_compare_exchange_strong(&of->taken[side], &before, number);
}

static void finish_part(ls_pool *pool) {
    if (atomic_fetch_sub(&pool->n_running, 1) > 1 || !atomic_load(&pool->caller_asleep)) return;
    pthread_mutex_lock(&pool->crew->lock);
    pthread_cond_signal(&pool->finished);
    pthread_mutex_unlock(&pool->crew->lock);
}

/* What a worker finds when it looks: nothing new, a job that others run while it stays awake, or a part of its own. */
typedef enum found { NOTHING, OTHERS, PART } found;

/* Who is beside has the shorter ranges. */
static found look_for_job(worker *self, ls_pool **out, long long *job) {
    found seen = NOTHING;
    for (int side = LS_SIDES - 1; side >= 0; side--) {
        ls_pool *pool = &self->crew->pools[side];
        const int32_t part = other_end(self->crew, (ls_side)side, self->thread_i);
        *job = atomic_load(&pool->job);
        if (*job == self->seen[side]) continue;
        self->seen[side] = *job;
        *out = pool;
        if (part < parts_of(*job)) return PART;
        if (part < atomic_load(&pool->n_awake)) seen = OTHERS;
    }
    return seen;
}

/* Waits for a part; false: the crew ends. */
static bool wait_for_job(worker *self, ls_pool **pool, long long *job) {
    crew *c = self->crew;
    atomic_uchar *asleep = &c->asleep[self->thread_i - 1];
    found seen = NOTHING;
    for (int32_t look = 0; look < c->n_looks && !atomic_load(&c->quit); look++) {
        if ((seen = look_for_job(self, pool, job)) == PART) return true;
        if (seen == OTHERS) look = 0;
        pause_briefly(look);
    }
    pthread_mutex_lock(&c->lock);
    atomic_store(asleep, 1);
    atomic_fetch_add(&c->n_asleep, 1);
    while (!atomic_load(&c->quit) && (seen = look_for_job(self, pool, job)) != PART)
        pthread_cond_wait(&self->start, &c->lock);
    atomic_fetch_sub(&c->n_asleep, 1);
    atomic_store(asleep, 0);
    pthread_mutex_unlock(&c->lock);
    return seen == PART;
}

/* Those of the job's workers that sleep. Who has announced that has seen the job, or waits once the lock is free. */
static void wake_workers(ls_pool *pool) {
    crew *c = pool->crew;
    bool is_free = false;
    if (atomic_load(&c->n_asleep) == 0) return;
    for (int32_t part = 1; part < pool->n_parts; part++) {
        const int32_t i = other_end(c, pool->side, part) - 1;
        if (atomic_load(&c->asleep[i]) == 0) continue;
        if (!is_free) pthread_mutex_lock(&c->lock);
        if (!is_free) pthread_mutex_unlock(&c->lock);
        is_free = true;
        pthread_cond_signal(&c->workers[i].start);
    }
}

static void *worker_main(void *context) {
    worker *self = context;
    ls_pool *pool;
    long long job;
    ls_fpmode_enter(NULL); /* a thread begins with the mode of the one that made it */
    while (wait_for_job(self, &pool, &job)) {
        if (!take_part(self, pool->side, number_of(job))) continue;
        run_part(pool, other_end(self->crew, pool->side, self->thread_i), self->thread_i);
        finish_part(pool);
    }
    return NULL;
}

/* Of the caller: parts whose threads have not come yet, perhaps because others have the processors. */
static void help_workers(ls_pool *pool) {
    for (int32_t look = 0; look < LOOKS_BEFORE_HELP && atomic_load(&pool->n_running) > 0; look++) pause_briefly(look);
    for (int32_t part = 1; part < pool->n_parts && atomic_load(&pool->n_running) > 0; part++) {
        worker *of = &pool->crew->workers[other_end(pool->crew, pool->side, part) - 1];
        if (!take_part(of, pool->side, pool->n_jobs)) continue;
        run_part(pool, part, 0);
        finish_part(pool);
    }
}

static void wait_for_workers(ls_pool *pool) {
    crew *c = pool->crew;
    for (int32_t look = 0; look < c->n_looks && atomic_load(&pool->n_running) > 0; look++) pause_briefly(look);
    if (atomic_load(&pool->n_running) == 0) return;
    pthread_mutex_lock(&c->lock);
    atomic_store(&pool->caller_asleep, true);
    while (atomic_load(&pool->n_running) > 0) pthread_cond_wait(&pool->finished, &c->lock);
    atomic_store(&pool->caller_asleep, false);
    pthread_mutex_unlock(&c->lock);
}

static void free_crew(crew *c) {
    pthread_mutex_lock(&c->lock);
    atomic_store(&c->quit, true);
    for (int32_t i = 0; i < c->n_started; i++) pthread_cond_signal(&c->workers[i].start);
    pthread_mutex_unlock(&c->lock);
    for (int32_t i = 0; i < c->n_started; i++) pthread_join(c->workers[i].thread, NULL);
    for (int32_t i = 0; i < c->n_started; i++) pthread_cond_destroy(&c->workers[i].start);
    for (int side = 0; side < LS_SIDES; side++) pthread_cond_destroy(&c->pools[side].finished);
    pthread_mutex_destroy(&c->lock);
    free(c->workers);
    free(c->asleep);
    free(c);
}

static ls_status start_workers(crew *c, ls_error *err) {
    for (int32_t i = 0; i < c->n_threads - 1; i++, c->n_started++) {
        worker *w = &c->workers[i];
        w->crew = c;
        w->thread_i = i + 1;
        pthread_cond_init(&w->start, NULL);
        if (ls_thread_start(&w->thread, worker_main, w) == 0) continue;
        pthread_cond_destroy(&w->start);
        return LS_FAIL(err, LS_ERR_NOMEM, "threads: cannot start thread %d of %d", i + 2, c->n_threads);
    }
    return LS_OK;
}

ls_status ls_pool_create(ls_pool **out, int32_t n_threads, ls_error *err) {
    crew *c;
    ls_status status = LS_OK;
    *out = NULL;
    if (n_threads < 1 || n_threads > LS_THREADS_MAX)
        return LS_FAIL(err, LS_ERR_ARG, "threads: %d is not in 1..%d", n_threads, LS_THREADS_MAX);
    c = calloc(1, sizeof *c);
    if (c == NULL) return LS_FAIL(err, LS_ERR_NOMEM, "thread pool");
    c->n_threads = n_threads;
    c->n_looks = n_threads <= ls_cpu_count() ? LOOKS : 0;
    pthread_mutex_init(&c->lock, NULL);
    for (int side = 0; side < LS_SIDES; side++) {
        c->pools[side].crew = c;
        c->pools[side].side = (ls_side)side;
        pthread_cond_init(&c->pools[side].finished, NULL);
    }
    c->workers = calloc((size_t)n_threads, sizeof *c->workers);
    c->asleep = calloc((size_t)n_threads, sizeof *c->asleep);
    if (c->workers == NULL || c->asleep == NULL)
        LS_TRY_DONE(LS_FAIL(err, LS_ERR_NOMEM, "thread pool of %d", n_threads));
    LS_TRY_DONE(start_workers(c, err));
    *out = &c->pools[LS_SIDE_HOME];
    c = NULL;
done:
    if (c != NULL) free_crew(c);
    return status;
}

ls_status ls_pool_create_beside(ls_pool **out, ls_pool *home, int32_t n_most, ls_error *err) {
    crew *c = home->crew;
    *out = NULL;
    LS_ASSERT(home->side == LS_SIDE_HOME && !c->has_beside, "a third caller of %d threads", c->n_threads);
    if (n_most < 1 || n_most > LS_THREADS_MAX)
        return LS_FAIL(err, LS_ERR_ARG, "threads: %d is not in 1..%d", n_most, LS_THREADS_MAX);
    ls_shares_init(&c->shares, c->n_threads, n_most);
    c->has_beside = true;
    *out = &c->pools[LS_SIDE_BESIDE];
    return LS_OK;
}

void ls_pool_free(ls_pool *pool) {
    if (pool == NULL) return;
    if (pool->side == LS_SIDE_BESIDE) {
        pool->crew->has_beside = false;
        return;
    }
    LS_ASSERT(!pool->crew->has_beside, "threads are freed before who is beside");
    free_crew(pool->crew);
}

int32_t ls_pool_threads(const ls_pool *pool) { return pool->crew->n_threads; }

int32_t ls_pool_width(const ls_pool *pool) {
    const crew *c = pool->crew;
    return c->has_beside && c->n_threads > 1 ? ls_shares_limit(&c->shares, pool->side, ls_clock_seconds())
                                             : c->n_threads;
}

static void run_job(ls_pool *pool, int32_t n_parts, int32_t n_awake) {
    pool->n_parts = n_parts;
    if (n_parts == 1) {
        pool->work(pool->context, 0, pool->n_items, 0);
        return;
    }
    atomic_store(&pool->n_running, n_parts - 1);
    if (n_awake != atomic_load(&pool->n_awake)) atomic_store(&pool->n_awake, n_awake);
    atomic_store(&pool->job, job_word(++pool->n_jobs, n_parts));
    wake_workers(pool);
    run_part(pool, 0, 0);
    help_workers(pool);
    wait_for_workers(pool);
}

void ls_parallel_for(ls_pool *pool, int64_t n_items, int64_t grain, ls_work work, void *context) {
    crew *c = pool->crew;
    int32_t worth;
    LS_ASSERT(grain > 0 && n_items >= 0, "n_items %lld, grain %lld", (long long)n_items, (long long)grain);
    if (n_items == 0) return;
    pool->work = work;
    pool->context = context;
    pool->n_items = n_items;
    pool->grain = grain;
    pool->n_grains = n_items / grain + (n_items % grain != 0);
    worth = pool->n_grains < c->n_threads ? (int32_t)pool->n_grains : c->n_threads;
    if (!c->has_beside || c->n_threads == 1) {
        run_job(pool, worth, c->n_threads);
        return;
    }
    worth = ls_shares_begin(&c->shares, pool->side, worth, ls_clock_seconds());
    run_job(pool, worth, ls_shares_held(&c->shares, pool->side));
    ls_shares_end(&c->shares, pool->side, ls_clock_seconds());
}

int32_t ls_cpu_count(void) {
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
    return CPU_COUNT(&set) > 0 ? CPU_COUNT(&set) : 1;
}
