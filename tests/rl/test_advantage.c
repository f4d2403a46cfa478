/* Advantages against direct evaluations of their formulas, and groups with nothing to compare. */
#include <math.h>

#include "harness.h"
#include "rl/advantage.h"

static const ls_advantage_options kinds[] = {
    {.kind = LS_ADVANTAGE_MEAN},
    {.kind = LS_ADVANTAGE_STD, .eps = 1e-6},
    {.kind = LS_ADVANTAGE_STD, .eps = 1e-4, .population = true},
    {.kind = LS_ADVANTAGE_RLOO},
};
enum { N_KINDS = sizeof kinds / sizeof kinds[0] };

static double expected(const float *rewards, const uint8_t *failed, int64_t n, int64_t i,
                       const ls_advantage_options *o) {
    double sum = 0.0, others = 0.0, squares = 0.0, count = 0.0;
    for (int64_t k = 0; k < n; k++) {
        if (failed[k] || isnan(rewards[k])) continue;
        sum += (double)rewards[k];
        count += 1.0;
        if (k != i) others += (double)rewards[k];
    }
    for (int64_t k = 0; k < n; k++)
        if (!failed[k] && !isnan(rewards[k])) squares += pow((double)rewards[k] - sum / count, 2.0);
    if (failed[i] || isnan(rewards[i]) || squares == 0.0) return 0.0;
    if (o->kind == LS_ADVANTAGE_RLOO) return (double)rewards[i] - others / (count - 1.0);
    if (o->kind == LS_ADVANTAGE_MEAN) return (double)rewards[i] - sum / count;
    return ((double)rewards[i] - sum / count) / (sqrt(squares / (o->population ? count : count - 1.0)) + o->eps);
}

static void advantages_are_those_of_the_formulas(void **state) {
    uint64_t seed = 5;
    (void)state;
    for (int kind = 0; kind < N_KINDS; kind++)
        for (int64_t size = 2; size <= 9; size++) {
            float rewards[90], out[90];
            uint8_t failed[90], keep[90];
            ls_advantage_metrics m;
            ls_error err;
            const int64_t n = 10 * size;
            int64_t n_failed = 0;
            for (int64_t i = 0; i < n; i++) {
                rewards[i] = test_uniform(&seed, -2.0f, 3.0f);
                failed[i] = test_random(&seed) % 8 == 0;
                if (test_random(&seed) % 8 == 0) rewards[i] = NAN;
                n_failed += failed[i] || isnan(rewards[i]);
            }
            assert_ok(ls_advantages(out, keep, &m, &(ls_group_rewards){rewards, failed, n, size}, &kinds[kind], &err),
                      err);
            for (int64_t i = 0; i < n; i++) {
                const int64_t begin = i / size * size;
                const double e = expected(rewards + begin, failed + begin, size, i - begin, &kinds[kind]);
                if (!(fabs((double)out[i] - e) <= 1e-6 * fabs(e))) fail_msg("%g is not %g", (double)out[i], e);
                assert_int_equal(keep[i], !(failed[i] || isnan(rewards[i])));
            }
            assert_int_equal(m.n_failed, n_failed);
            assert_int_equal(m.n_kept, n - n_failed);
            assert_int_equal(m.n_groups, 10);
        }
}

static void equal_rewards_give_exactly_nothing(void **state) {
    const float rewards[] = {0.1f, 0.1f, 0.1f, 0.7f, NAN, INFINITY, 1.0f, 0.0f, 0.1f, NAN, NAN, NAN};
    const uint8_t kept[] = {0, 0, 0, 0, 0, 0, 1, 1, 1, 0, 0, 0};
    const float zero[12] = {0};
    (void)state;
    for (int kind = 0; kind < N_KINDS; kind++) {
        ls_advantage_options o = kinds[kind];
        float out[12];
        uint8_t keep[12];
        ls_advantage_metrics m;
        ls_error err;
        o.drop_equal = true;
        o.eps = 0.0;
        assert_ok(ls_advantages(out, keep, &m, &(ls_group_rewards){rewards, NULL, 12, 3}, &o, &err), err);
        assert_same_bits(out, zero, 6);
        assert_same_bits(out + 9, zero, 3);
        assert_memory_equal(keep, kept, 12);
        assert_int_equal(m.n_groups_equal, 2);
        assert_int_equal(m.n_groups_empty, 1);
        assert_int_equal(m.n_failed, 5);
        assert_true(fabs(m.reward_mean - (0.3 + 0.7 + 1.1) / 7.0) < 1e-7);
        assert_true(m.reward_min == 0.0 && m.reward_max == 1.0);
        o.drop_equal = false;
        assert_ok(ls_advantages(out, keep, NULL, &(ls_group_rewards){rewards, NULL, 12, 3}, &o, &err), err);
        assert_true(keep[0] && keep[3] && !keep[4] && !keep[9]);
    }
}

static void a_group_knows_nothing_of_others(void **state) {
    uint64_t seed = 6;
    float rewards[32], all[32], one[8];
    ls_error err;
    (void)state;
    for (int i = 0; i < 32; i++) rewards[i] = test_uniform(&seed, 0.0f, 1.0f);
    for (int kind = 0; kind < N_KINDS; kind++) {
        assert_ok(ls_advantages(all, NULL, NULL, &(ls_group_rewards){rewards, NULL, 32, 8}, &kinds[kind], &err), err);
        for (int g = 0; g < 4; g++) {
            assert_ok(
                ls_advantages(one, NULL, NULL, &(ls_group_rewards){rewards + 8 * g, NULL, 8, 8}, &kinds[kind], &err),
                err);
            assert_same_bits(one, all + 8 * g, 8);
        }
    }
}

static void edges(void **state) {
    const float rewards[] = {1.0f, 2.0f, 3.0f};
    float out[3];
    ls_advantage_metrics m;
    ls_error err;
    ls_advantage_options o = kinds[1];
    (void)state;
    assert_ok(ls_advantages(out, NULL, &m, &(ls_group_rewards){rewards, NULL, 0, 4}, &o, &err), err);
    assert_true(isnan(m.reward_mean) && m.n_groups == 0);
    assert_ok(ls_advantages(out, NULL, &m, &(ls_group_rewards){rewards, NULL, 3, 1}, &o, &err), err);
    assert_true(out[0] == 0.0f && out[1] == 0.0f && out[2] == 0.0f);
    check_failed(ls_advantages(out, NULL, NULL, &(ls_group_rewards){rewards, NULL, 3, 2}, &o, &err), &err,
                 "groups of 2");
    check_failed(ls_advantages(out, NULL, NULL, &(ls_group_rewards){rewards, NULL, 3, 0}, &o, &err), &err,
                 "groups of 0");
    o.eps = -1.0;
    check_failed(ls_advantages(out, NULL, NULL, &(ls_group_rewards){rewards, NULL, 3, 3}, &o, &err), &err, "eps");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(advantages_are_those_of_the_formulas),
        cmocka_unit_test(equal_rewards_give_exactly_nothing),
        cmocka_unit_test(a_group_knows_nothing_of_others),
        cmocka_unit_test(edges),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
