/* The ledger of a device's memory: sums by name, what is pinned apart, what it does not know. */
#include "harness.h"
#include "op/ledger.h"

static char place[8];

static void add(ls_ledger *l, int i, int64_t bytes, bool is_pinned, const char *what) {
    ls_error err;
    assert_ok(ls_ledger_assure(l, &err), err);
    ls_ledger_add(l, &place[i], bytes, is_pinned, what);
}

static void sums_follow_what_comes_and_goes(void **state) {
    ls_ledger l = {0};
    (void)state;
    add(&l, 0, 100, false, "weights");
    add(&l, 1, 30, false, "head");
    add(&l, 2, 50, false, "head");
    add(&l, 3, 7, true, "swap");
    assert_int_equal(l.used, 180);
    assert_int_equal(l.pinned, 7);
    assert_int_equal(ls_ledger_held(&l, "head"), 80);
    ls_ledger_remove(&l, &place[0]);
    ls_ledger_remove(&l, &place[3]);
    ls_ledger_remove(&l, &place[7]); /* not its own */
    assert_int_equal(l.used, 80);
    assert_int_equal(l.pinned, 0);
    assert_int_equal(l.used_max, 180);
    assert_int_equal(l.n_allocations, 4);
    assert_int_equal(ls_ledger_held(&l, "weights"), 0);
    ls_ledger_deinit(&l);
    assert_int_equal(l.n, 0);
}

static void the_largest_come_first(void **state) {
    ls_ledger l = {0};
    ls_ledger_sum sums[4];
    (void)state;
    assert_int_equal(ls_ledger_largest(&l, sums, 4), 0);
    add(&l, 0, 10, false, "small");
    add(&l, 1, 60, false, "in two parts");
    add(&l, 2, 100, false, "large");
    add(&l, 3, 60, false, "in two parts");
    add(&l, 4, 1000, true, "of the host");
    assert_int_equal(ls_ledger_largest(&l, sums, 4), 3);
    assert_string_equal(sums[0].what, "in two parts");
    assert_int_equal(sums[0].bytes, 120);
    assert_string_equal(sums[1].what, "large");
    assert_string_equal(sums[2].what, "small");
    assert_int_equal(ls_ledger_largest(&l, sums, 1), 1);
    ls_ledger_deinit(&l);
}

static void long_names_are_cut(void **state) {
    ls_ledger l = {0};
    (void)state;
    add(&l, 0, 5, false, "a name that is longer than a row of the ledger holds");
    assert_int_equal(ls_ledger_held(&l, "a name that is longer than a row of the ledger holds"), 5);
    ls_ledger_deinit(&l);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_follow_what_comes_and_goes),
        cmocka_unit_test(the_largest_come_first),
        cmocka_unit_test(long_names_are_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
