/* Two callers of one crew of threads: the account of processors by a clock that the test turns, and what ranges of both
 * do beside each other. */
#define _GNU_SOURCE
#include <stdatomic.h>
#include <time.h>

#include "base/parallel.h"
#include "base/parallel_shares.h"
#include "base/thread.h"
#include "harness.h"

/* ---- the account ---- */

static int32_t range(ls_shares *s, ls_side side, int32_t worth, double now) {
    const int32_t parts = ls_shares_begin(s, side, worth, now);
    ls_shares_end(s, side, now);
    return parts;
}

static void who_waits_gives_all_away(void **state) {
    const double later = 2 * LS_SHARES_QUIET;
    ls_shares s;
    (void)state;
    ls_shares_init(&s, 16, 5);
    assert_int_equal(ls_shares_limit(&s, LS_SIDE_HOME, 0), 16);
    assert_int_equal(ls_shares_limit(&s, LS_SIDE_BESIDE, 0), 16);
    assert_int_equal(ls_shares_begin(&s, LS_SIDE_HOME, 100, 0), 16);
    assert_int_equal(ls_shares_limit(&s, LS_SIDE_BESIDE, 1000), 5); /* however long the range takes */
    assert_int_equal(ls_shares_begin(&s, LS_SIDE_BESIDE, 100, 1000), 5);
    ls_shares_end(&s, LS_SIDE_HOME, 1000);
    assert_int_equal(ls_shares_limit(&s, LS_SIDE_HOME, 1000), 11);
    ls_shares_end(&s, LS_SIDE_BESIDE, 1000);
    assert_int_equal(ls_shares_limit(&s, LS_SIDE_HOME, 1000), 11); /* the next range is near */
    assert_int_equal(ls_shares_limit(&s, LS_SIDE_BESIDE, 1000), 5);
    assert_int_equal(ls_shares_limit(&s, LS_SIDE_HOME, 1000 + later), 16);
    assert_int_equal(ls_shares_limit(&s, LS_SIDE_BESIDE, 1000 + later), 16);
}

static void who_has_little_to_do_holds_few(void **state) {
    ls_shares s;
    (void)state;
    ls_shares_init(&s, 16, 5);
    assert_int_equal(range(&s, LS_SIDE_BESIDE, 16, 0), 16);
    assert_int_equal(ls_shares_held(&s, LS_SIDE_BESIDE), 16);
    assert_int_equal(ls_shares_limit(&s, LS_SIDE_HOME, 0), 11);
    for (int i = 0; i < 2 * LS_SHARES_WINDOW; i++) assert_int_equal(range(&s, LS_SIDE_BESIDE, 2, 0), 2);
    assert_int_equal(ls_shares_held(&s, LS_SIDE_BESIDE), 2);
    assert_int_equal(ls_shares_limit(&s, LS_SIDE_HOME, 0), 14);
    assert_int_equal(range(&s, LS_SIDE_HOME, 16, 0), 14);
    assert_int_equal(range(&s, LS_SIDE_BESIDE, 16, 0), 5); /* more at once when it is worth more */
    assert_int_equal(range(&s, LS_SIDE_HOME, 16, 0), 11);
}

/* Once each knows that the other works they have no more than there are, and each has one. */
static void shares_add_up(void **state) {
    (void)state;
    for (int32_t n = 1; n <= 9; n++)
        for (int32_t most = 1; most <= 12; most++)
            for (int32_t worth = 1; worth <= 9; worth++) {
                ls_shares s;
                int32_t home, beside;
                ls_shares_init(&s, n, most);
                (void)range(&s, LS_SIDE_HOME, worth, 0);
                beside = ls_shares_begin(&s, LS_SIDE_BESIDE, worth, 0);
                home = ls_shares_begin(&s, LS_SIDE_HOME, 9, 0);
                assert_in_range(beside, 1, worth);
                assert_in_range(beside, 1, most);
                assert_in_range(home, 1, n);
                assert_true(home + beside <= n || n == 1);
            }
}

/* ---- ranges ---- */

enum { THREADS = 4, ITEMS = 60 };

typedef struct job {
    ls_pool *other;
    int32_t width;               /* of the other, from within a range */
    atomic_int seen[ITEMS];      /* how often each item was run */
    atomic_int running[THREADS]; /* parts of each thread now */
    atomic_int wrong;
} job;

static void mark(void *context, int64_t begin, int64_t end, int32_t thread_i) {
    job *j = context;
    if (thread_i < 0 || thread_i >= THREADS) {
        atomic_fetch_add(&j->wrong, 1);
        return;
    }
    if (atomic_fetch_add(&j->running[thread_i], 1) != 0) atomic_fetch_add(&j->wrong, 1);
    if (begin == 0 && j->other != NULL) j->width = ls_pool_width(j->other);
    for (int64_t i = begin; i < end; i++) atomic_fetch_add(&j->seen[i], 1);
    atomic_fetch_sub(&j->running[thread_i], 1);
}

static void check_range(ls_pool *pool, job *j, int64_t n, int64_t grain) {
    ls_parallel_for(pool, n, grain, mark, j);
    for (int64_t i = 0; i < ITEMS; i++)
        if (atomic_exchange(&j->seen[i], 0) != (i < n)) atomic_fetch_add(&j->wrong, 1);
}

static void sleep_for(double seconds) {
    const struct timespec time = {0, (long)(seconds * 1e9)};
    (void)nanosleep(&time, NULL);
}

static void a_range_knows_of_the_other(void **state) {
    ls_pool *home, *beside;
    ls_error err;
    job j = {.width = 0};
    (void)state;
    assert_ok(ls_pool_create(&home, THREADS, &err), err);
    assert_int_equal(ls_pool_width(home), THREADS);
    check_failed(ls_pool_create_beside(&beside, home, 0, &err), &err, "threads: 0");
    assert_ok(ls_pool_create_beside(&beside, home, 1, &err), err);
    assert_int_equal(ls_pool_threads(beside), THREADS);
    assert_int_equal(ls_pool_width(home), THREADS);
    assert_int_equal(ls_pool_width(beside), THREADS);
    j.other = beside;
    check_range(home, &j, ITEMS, 1);
    assert_int_equal(j.width, 1);
    sleep_for(2 * LS_SHARES_QUIET);
    j.other = home;
    check_range(beside, &j, ITEMS, 1);
    assert_int_equal(j.width, THREADS - 1);
    assert_int_equal(atomic_load(&j.wrong), 0);
    ls_pool_free(beside);
    assert_int_equal(ls_pool_width(home), THREADS);
    assert_ok(ls_pool_create_beside(&beside, home, 9, &err), err); /* when the one before has gone */
    check_range(beside, &j, ITEMS, 1);
    assert_int_equal(j.width, 1); /* one stays at home */
    ls_pool_free(beside);
    ls_pool_free(home);
}

typedef struct caller {
    ls_pool *pool;
    job job;
    int32_t n_ranges;
} caller;

/* Now and then it waits, for so long that its processors go to the other. */
static void *call(void *context) {
    caller *c = context;
    for (int32_t i = 0; i < c->n_ranges; i++) {
        if (i % 500 == 499) sleep_for(2 * LS_SHARES_QUIET);
        check_range(c->pool, &c->job, i % (ITEMS + 1), 1 + i % 7);
    }
    return NULL;
}

static void two_callers_do_no_harm(void **state) {
    (void)state;
    for (int32_t most = 1; most < THREADS; most++) {
        caller at_home = {.n_ranges = 4000}, next_door = {.n_ranges = 4000};
        pthread_t thread;
        ls_error err;
        assert_ok(ls_pool_create(&at_home.pool, THREADS, &err), err);
        assert_ok(ls_pool_create_beside(&next_door.pool, at_home.pool, most, &err), err);
        assert_int_equal(ls_thread_start(&thread, call, &next_door), 0);
        call(&at_home);
        assert_int_equal(pthread_join(thread, NULL), 0);
        assert_int_equal(atomic_load(&at_home.job.wrong), 0);
        assert_int_equal(atomic_load(&next_door.job.wrong), 0);
        ls_pool_free(next_door.pool);
        ls_pool_free(at_home.pool);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_waits_gives_all_away),
        cmocka_unit_test(who_has_little_to_do_holds_few),
        cmocka_unit_test(shares_add_up),
        cmocka_unit_test(a_range_knows_of_the_other),
        cmocka_unit_test(two_callers_do_no_harm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
