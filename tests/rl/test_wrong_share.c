/* Runs with a lag whose account of processors is wrong: ranges are cut into any number of parts, whatever the other
 * caller does. That costs time and carries no bits. The linker puts these functions before the account's. */
#define _GNU_SOURCE
#include <stdatomic.h>

#include "base/parallel_shares.h"
#include "rl/grpo_run.h"

int32_t __real_ls_shares_limit(const ls_shares *shares, ls_side side, double now);
int32_t __real_ls_shares_begin(ls_shares *shares, ls_side side, int32_t worth, double now);
int32_t __wrap_ls_shares_limit(const ls_shares *shares, ls_side side, double now);
int32_t __wrap_ls_shares_begin(ls_shares *shares, ls_side side, int32_t worth, double now);
int32_t __wrap_ls_shares_held(const ls_shares *shares, ls_side side);

static atomic_bool lies;
static atomic_uint n_answers, n_lies;

/* 1..n, another number each time. */
static int32_t any_of(int32_t n) {
    const unsigned mixed = (atomic_fetch_add(&n_answers, 1) + 1) * 2654435761u;
    return 1 + (int32_t)((mixed >> 16) % (unsigned)n);
}

int32_t __wrap_ls_shares_limit(const ls_shares *shares, ls_side side, double now) {
    return atomic_load(&lies) ? any_of(shares->n) : __real_ls_shares_limit(shares, side, now);
}

int32_t __wrap_ls_shares_begin(ls_shares *shares, ls_side side, int32_t worth, double now) {
    const int32_t parts = __real_ls_shares_begin(shares, side, worth, now), wrong = any_of(shares->n);
    if (!atomic_load(&lies)) return parts;
    if (wrong > parts) atomic_fetch_add(&n_lies, 1);
    return wrong;
}

int32_t __wrap_ls_shares_held(const ls_shares *shares, ls_side side) {
    (void)side;
    return any_of(shares->n);
}

static void a_wrong_share_moves_no_bit(void **state) {
    const char *const kinds[][3] = {{"lag=1", "threads=1"}, {"lag=2", "threads=1", "minibatches=2"}};
    (void)state;
    for (int i = 0; i < 2; i++) {
        const char *sets[5] = {kinds[i][0], kinds[i][1], "draw_threads=1", kinds[i][2]};
        const int64_t n = kinds[i][2] != NULL ? 4 : 3;
        const uint64_t want = digest_with(sets, n);
        sets[1] = "threads=4";
        sets[2] = "draw_threads=2";
        assert_int_equal(digest_with(sets, n), want); /* shares that follow who works */
        atomic_store(&lies, true);
        assert_int_equal(digest_with(sets, n), want);
        atomic_store(&lies, false);
    }
    assert_true(atomic_load(&n_lies) > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_wrong_share_moves_no_bit)};
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
