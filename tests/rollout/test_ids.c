/* Pools of ids: the order of each policy, references, and options that cannot be. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness.h"
#include "rollout/ids.h"

static ls_ids *create(ls_ids_opts opts) {
    ls_ids *ids;
    ls_error err;
    assert_ok(ls_ids_create(&ids, &opts, "pool", &err), err);
    assert_int_equal(ls_ids_count(ids), opts.n);
    assert_int_equal(ls_ids_available(ids), opts.n);
    return ids;
}

static void expect_ids(ls_ids *ids, const int32_t *expected, int64_t n) {
    for (int64_t i = 0; i < n; i++) assert_int_equal(ls_ids_acquire(ids), expected[i]);
}

#define EXPECT(ids, ...) expect_ids(ids, (const int32_t[]){__VA_ARGS__}, sizeof((const int32_t[]){__VA_ARGS__}) / 4)

static void names_go_both_ways(void **state) {
    const char *names[] = {"fifo", "lowest", "highest", "random"};
    ls_policy policy = LS_POLICY_COUNT;
    (void)state;
    for (int i = 0; i < LS_POLICY_COUNT; i++) {
        assert_string_equal(ls_policy_name((ls_policy)i), names[i]);
        assert_true(ls_policy_parse(&policy, names[i]));
        assert_int_equal(policy, i);
    }
    assert_false(ls_policy_parse(&policy, "Lowest"));
    assert_false(ls_policy_parse(&policy, ""));
    assert_int_equal(policy, LS_POLICY_RANDOM); /* untouched */
}

static void fifo_rotates(void **state) {
    ls_ids *ids = create((ls_ids_opts){.n = 5, .policy = LS_POLICY_FIFO, .base = 3});
    (void)state;
    EXPECT(ids, 3, 4, 0);
    ls_ids_release(ids, 4);
    ls_ids_release(ids, 3);
    EXPECT(ids, 1, 2, 4, 3, -1);
    ls_ids_release(ids, 2);
    EXPECT(ids, 2, -1);
    ls_ids_free(ids);
}

static void lowest_comes_first_in_the_pool(void **state) {
    ls_ids *ids = create((ls_ids_opts){.n = 5, .policy = LS_POLICY_LOWEST, .base = 3});
    (void)state;
    EXPECT(ids, 3, 4, 0, 1);
    ls_ids_release(ids, 0);
    ls_ids_release(ids, 4);
    EXPECT(ids, 4, 0, 2, -1);
    ls_ids_free(ids);
}

static void highest_comes_last_in_the_pool(void **state) {
    ls_ids *ids = create((ls_ids_opts){.n = 5, .policy = LS_POLICY_HIGHEST, .base = 3});
    (void)state;
    EXPECT(ids, 2, 1, 0, 4);
    ls_ids_release(ids, 0);
    ls_ids_release(ids, 1);
    EXPECT(ids, 1, 0, 3, -1);
    ls_ids_free(ids);
}

static void random_draws_again_what_it_drew(void **state) {
    enum { N = 200 };
    int32_t first[N], n_moved = 0;
    (void)state;
    for (int run = 0; run < 3; run++) { /* twice the same seed, then another */
        ls_ids *ids = create((ls_ids_opts){.n = N, .policy = LS_POLICY_RANDOM, .seed = run < 2 ? 7 : 8});
        bool seen[N] = {false};
        for (int i = 0; i < N; i++) {
            const int32_t id = ls_ids_acquire(ids);
            assert_in_range(id, 0, N - 1);
            assert_false(seen[id]);
            seen[id] = true;
            if (run == 0) first[i] = id;
            if (run == 1) assert_int_equal(id, first[i]);
            if (run == 2) n_moved += id != first[i];
        }
        assert_int_equal(ls_ids_acquire(ids), -1);
        ls_ids_free(ids);
    }
    assert_true(n_moved > N / 2);
    /* One id of four, again and again: each comes about as often. */
    ls_ids *ids = create((ls_ids_opts){.n = 4, .policy = LS_POLICY_RANDOM, .seed = 1});
    int64_t count[4] = {0};
    for (int i = 0; i < 4000; i++) {
        const int32_t id = ls_ids_acquire(ids);
        count[id]++;
        assert_true(ls_ids_release(ids, id));
    }
    for (int i = 0; i < 4; i++) assert_in_range(count[i], 850, 1150);
    ls_ids_free(ids);
}

/* A permuted pool holds every id once, in an order that depends on the seed and base, and keeps to it. */
static void permutations_cover_the_pool(void **state) {
    enum { N = 5000 };
    static int32_t order[4][N];
    (void)state;
    for (int run = 0; run < 4; run++) {
        const ls_ids_opts opts = {.n = N,
                                  .policy = run == 3 ? LS_POLICY_FIFO : LS_POLICY_LOWEST,
                                  .base = run == 1 ? 17 : 0,
                                  .permutation = run == 2 ? 6 : 5};
        ls_ids *ids = create(opts);
        static bool seen[N];
        memset(seen, 0, sizeof seen);
        for (int i = 0; i < N; i++) {
            order[run][i] = ls_ids_acquire(ids);
            assert_in_range(order[run][i], 0, N - 1);
            assert_false(seen[order[run][i]]);
            seen[order[run][i]] = true;
        }
        for (int i = N; i-- > 0;) assert_true(ls_ids_release(ids, order[run][i]));
        if (opts.policy == LS_POLICY_LOWEST) expect_ids(ids, order[run], N);
        ls_ids_free(ids);
    }
    for (int i = 0; i < N; i++) {
        assert_int_equal(order[1][i], (order[0][i] + 17) % N); /* the same shuffle of a pool that begins at 17 */
        assert_int_equal(order[3][i], order[0][i]);
    }
    assert_memory_not_equal(order[0], order[2], sizeof order[0]);
}

/* Any sequence of calls against a plain list of the free ids. The sizes end inside, at and behind words of the bitmap.
 */
static void policies_follow_the_list(void **state) {
    static const int64_t sizes[] = {1, 2, 63, 64, 65, 500, 4096, 4097};
    uint64_t random = 11;
    (void)state;
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
        for (int policy = 0; policy < LS_POLICY_RANDOM; policy++) {
            const int64_t n = sizes[s], base = n / 3;
            ls_ids *ids = create((ls_ids_opts){.n = n, .policy = (ls_policy)policy, .base = base});
            int64_t *freed_at = calloc((size_t)n, sizeof *freed_at), clock = n, n_free = n; /* by position; -1: held */
            for (int64_t p = 0; p < n; p++) freed_at[p] = p;
            for (int step = 0; step < 600; step++) {
                int64_t best = -1;
                if (test_random(&random) % 5 < 3) {
                    for (int64_t p = 0; p < n; p++) {
                        if (freed_at[p] < 0) continue;
                        if (best < 0 || policy == LS_POLICY_HIGHEST ||
                            (policy == LS_POLICY_FIFO && freed_at[p] < freed_at[best]))
                            best = p;
                    }
                    assert_int_equal(ls_ids_acquire(ids), best < 0 ? -1 : (best + base) % n);
                    if (best >= 0) freed_at[best] = -1, n_free--;
                } else {
                    const int64_t p = (int64_t)(test_random(&random) % (uint64_t)n);
                    const int32_t id = (int32_t)((p + base) % n);
                    assert_int_equal(ls_ids_references(ids, id), freed_at[p] < 0);
                    if (freed_at[p] >= 0) continue;
                    assert_true(ls_ids_release(ids, id));
                    freed_at[p] = clock++;
                    n_free++;
                }
                assert_int_equal(ls_ids_available(ids), n_free);
            }
            free(freed_at);
            ls_ids_free(ids);
        }
}

static void the_last_reference_frees(void **state) {
    (void)state;
    for (int policy = 0; policy < LS_POLICY_COUNT; policy++) {
        ls_ids *ids = create((ls_ids_opts){.n = 3, .policy = (ls_policy)policy});
        const int32_t id = ls_ids_acquire(ids);
        assert_int_equal(ls_ids_references(ids, id), 1);
        ls_ids_share(ids, id);
        ls_ids_share(ids, id);
        assert_int_equal(ls_ids_references(ids, id), 3);
        assert_false(ls_ids_release(ids, id));
        assert_false(ls_ids_release(ids, id));
        assert_int_equal(ls_ids_available(ids), 2);
        assert_true(ls_ids_release(ids, id));
        assert_int_equal(ls_ids_available(ids), 3);
        assert_int_equal(ls_ids_references(ids, id), 0);
        ls_ids_free(ids);
    }
    ls_ids_free(NULL);
}

/* Random calls on one id against two plain counts: what only loose references hold is counted, and nothing else. */
static void loose_references_are_reclaimable(void **state) {
    ls_ids *ids = create((ls_ids_opts){.n = 3});
    int64_t firm[3] = {0}, loose[3] = {0};
    uint64_t random = 5;
    (void)state;
    for (int step = 0; step < 3000; step++) {
        const int i = (int)(test_random(&random) % 3);
        int64_t n_free = 0, n_reclaimable = 0;
        switch (test_random(&random) % 4) {
            case 0:
                if (firm[i] + loose[i] == 0) { /* the free ones come in turn */
                    const int32_t id = ls_ids_acquire(ids);
                    assert_int_equal(firm[id] + loose[id], 0);
                    firm[id] = 1;
                } else {
                    ls_ids_share(ids, i);
                    firm[i]++;
                }
                break;
            case 1:
                if (firm[i] == 0) break;
                firm[i]--;
                assert_int_equal(ls_ids_release(ids, i), firm[i] + loose[i] == 0);
                break;
            case 2:
                if (firm[i] == 0) break;
                ls_ids_loosen(ids, i);
                firm[i]--, loose[i]++;
                break;
            default:
                if (loose[i] == 0) break;
                ls_ids_tighten(ids, i);
                firm[i]++, loose[i]--;
        }
        for (int k = 0; k < 3; k++) {
            n_free += firm[k] + loose[k] == 0;
            n_reclaimable += firm[k] == 0 && loose[k] > 0;
            assert_int_equal(ls_ids_references(ids, k), firm[k] + loose[k]);
            assert_int_equal(ls_ids_firm(ids, k), firm[k]);
        }
        assert_int_equal(ls_ids_available(ids), n_free);
        assert_int_equal(ls_ids_reclaimable(ids), n_reclaimable);
    }
    ls_ids_free(ids);
}

static void options_that_cannot_be_are_named(void **state) {
    const struct {
        ls_ids_opts opts;
        const char *word;
    } cases[] = {
        {{.n = 0}, " 0 ids"},
        {{.n = -4}, " -4 ids"},
        {{.n = (int64_t)INT32_MAX + 1}, "2147483648"},
        {{.n = INT64_MAX}, "9223372036854775807"},
        {{.n = 5, .base = 5}, "base 5"},
        {{.n = 5, .base = -1}, "base -1"},
        {{.n = 5, .policy = LS_POLICY_COUNT}, "policy 4"},
        {{.n = 5, .policy = (ls_policy)-1}, "policy -1"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ls_ids *ids = (ls_ids *)&ids;
        ls_error err;
        const ls_status status = ls_ids_create(&ids, &cases[i].opts, "the slots", &err);
        assert_int_equal(status, LS_ERR_ARG);
        check_failed(status, &err, cases[i].word);
        check_failed(status, &err, "the slots");
        assert_null(ids);
    }
}

/* A child does it and must abort. */
static void expect_abort(void (*misuse)(ls_ids *, int32_t), int32_t id) {
    const pid_t child = fork();
    int status;
    assert_true(child >= 0);
    if (child == 0) {
        ls_ids *ids = NULL;
        const ls_ids_opts opts = {.n = 4};
        signal(SIGABRT, SIG_DFL); /* cmocka's handler would report a failure of its own */
        if (freopen("/dev/null", "w", stderr) == NULL) _exit(1);
        if (ls_ids_create(&ids, &opts, "pool", NULL) != LS_OK) _exit(1);
        misuse(ids, id);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

static void release(ls_ids *ids, int32_t id) { ls_ids_release(ids, id); }
static void references(ls_ids *ids, int32_t id) { ls_ids_references(ids, id); }

static void release_loose(ls_ids *ids, int32_t id) {
    ls_ids_loosen(ids, ls_ids_acquire(ids));
    ls_ids_release(ids, id);
}
static void tighten_firm(ls_ids *ids, int32_t id) {
    ls_ids_acquire(ids);
    ls_ids_tighten(ids, id);
}

static void misuse_is_asserted(void **state) {
    (void)state;
    expect_abort(ls_ids_share, 0);
    expect_abort(release, 0);
    expect_abort(release, 4);
    expect_abort(references, -1);
    expect_abort(ls_ids_loosen, 0);
    expect_abort(release_loose, 0);
    expect_abort(tighten_firm, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_go_both_ways),
        cmocka_unit_test(fifo_rotates),
        cmocka_unit_test(lowest_comes_first_in_the_pool),
        cmocka_unit_test(highest_comes_last_in_the_pool),
        cmocka_unit_test(random_draws_again_what_it_drew),
        cmocka_unit_test(permutations_cover_the_pool),
        cmocka_unit_test(policies_follow_the_list),
        cmocka_unit_test(the_last_reference_frees),
        cmocka_unit_test(loose_references_are_reclaimable),
        cmocka_unit_test(options_that_cannot_be_are_named),
        cmocka_unit_test(misuse_is_asserted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
