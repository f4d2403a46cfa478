/* Measures over arrays against a direct evaluation with libm, and their exact values on policy. What compare shows of
 * them is held to NumPy in tests/parity. */
#include <math.h>

#include "harness.h"
#include "measure/mismatch.h"

enum { SEQUENCES = 5, TOKENS = 50 };
static const int64_t offsets[SEQUENCES + 1] = {0, 12, 12, 25, 37, 50};

static void assert_close(double value, double expected, const char *what) {
    if (!(fabs(value - expected) <= 1e-9 * fabs(expected) + 1e-15))
        fail_msg("%s: %.15g is not %.15g", what, value, expected);
}

static void measures_are_those_of_the_formulas(void **state) {
    for (int round = 0; round < 3; round++) {
        const float spread = round == 0 ? 1e-4f : round == 1 ? 0.5f : 12.0f;
        uint64_t seed = 40 + (uint64_t)round;
        float r[TOKENS], t[TOKENS];
        uint8_t mask[TOKENS];
        double n = 0.0, k1 = 0.0, k2 = 0.0, k3 = 0.0, back = 0.0, js = 0.0, mult = 0.0, chi2 = 0.0, rho = 0.0;
        double k3_squares = 0.0, k3_max = 0.0, chi2_sequence = 0.0, trainer_ppl = 0.0, rollout_ppl = 0.0, ratio = 0.0;
        double diff = 0.0, diff_abs = 0.0, diff_max = -INFINITY, sequence_abs = 0.0, sequences = 0.0, mult_max = 0.0;
        ls_mismatch m;
        ls_error err;
        (void)state;
        for (int i = 0; i < TOKENS; i++) {
            r[i] = test_uniform(&seed, -6.0f, -0.1f);
            t[i] = r[i] + test_uniform(&seed, -spread, spread);
            if (round == 2 && i < 12) t[i] += 6.0f; /* beyond the bound of a sequence's sum */
            mask[i] = i < 37 && test_random(&seed) % 4 != 0;
        }
        mask[3] = 1;
        t[3] = NAN;
        mask[14] = 1;
        r[14] = -INFINITY;
        for (int s = 0; s < SEQUENCES; s++) {
            double in = 0.0, d_sum = 0.0, d_abs = 0.0, r_sum = 0.0, t_sum = 0.0, error = 0.0;
            for (int64_t i = offsets[s]; i < offsets[s + 1]; i++) {
                const double d = (double)t[i] - (double)r[i];
                const double mixture = log(0.5 * exp((double)t[i]) + 0.5 * exp((double)r[i]));
                const double kt = (double)t[i] - mixture, kr = (double)r[i] - mixture;
                if (!mask[i] || !isfinite(d)) continue;
                in += 1.0;
                k1 -= d;
                k2 += d * d / 2.0;
                k3 += expm1(d) - d;
                back += expm1(-d) + d;
                js += 0.5 * (expm1(kt) - kt) + 0.5 * (expm1(kr) - kr);
                mult += exp(fabs(d));
                chi2 += exp(d) * exp(d);
                rho += exp(d);
                k3_max = fmax(k3_max, expm1(d) - d);
                k3_squares += pow(expm1(d) - d, 2.0);
                d_sum += d;
                d_abs += fabs(d);
                r_sum += (double)r[i];
                t_sum += (double)t[i];
                error += exp(fabs(d));
            }
            if (in == 0.0) continue;
            n += in;
            sequences += 1.0;
            chi2_sequence += exp(2.0 * fmin(fmax(d_sum, -20.0), 20.0));
            trainer_ppl += exp(-t_sum / in);
            rollout_ppl += exp(-r_sum / in);
            ratio += exp((r_sum - t_sum) / in);
            diff += (r_sum - t_sum) / in;
            diff_abs += fabs((r_sum - t_sum) / in);
            diff_max = fmax(diff_max, (r_sum - t_sum) / in);
            sequence_abs += d_abs / in;
            mult_max = fmax(mult_max, error / in);
        }
        {
            const ls_tokens tokens = {SEQUENCES, offsets, mask};
            assert_ok(ls_mismatch_of(&m, &tokens, r, t, &err), err);
        }
        assert_int_equal(m.n, (int64_t)n);
        assert_int_equal(m.n_sequences, (int64_t)sequences);
        assert_close(m.k1, k1 / n, "k1");
        assert_close(m.k2, k2 / n, "k2");
        assert_close(m.k3, k3 / n, "k3");
        assert_close(m.k3_reverse, back / n, "k3_reverse");
        assert_close(m.k3_max, k3_max, "k3_max");
        assert_close(m.k3_std, sqrt((k3_squares - k3 * k3 / n) / (n - 1.0)), "k3_std");
        if (round > 0) assert_close(m.js, js / n, "js"); /* the reference's log cancels below that */
        if (round == 0) assert_true(fabs(m.js - m.k3 / 4.0) < 1e-3 * m.js);
        assert_close(m.mult_error, mult / n, "mult_error");
        assert_close(m.chi2_token, chi2 / n - 1.0, "chi2_token");
        assert_close(m.chi2_sequence, chi2_sequence / sequences - 1.0, "chi2_sequence");
        assert_close(m.rho_mean, rho / n, "rho_mean");
        assert_close(m.trainer_ppl, trainer_ppl / sequences, "trainer_ppl");
        assert_close(m.rollout_ppl, rollout_ppl / sequences, "rollout_ppl");
        assert_close(m.ppl_ratio, ratio / sequences, "ppl_ratio");
        assert_close(m.log_ppl_diff, diff / sequences, "log_ppl_diff");
        assert_close(m.log_ppl_abs_diff, diff_abs / sequences, "log_ppl_abs_diff");
        assert_close(m.log_ppl_diff_max, diff_max, "log_ppl_diff_max");
        assert_close(m.sequence_abs_mean, sequence_abs / sequences, "sequence_abs_mean");
        assert_close(m.sequence_mult_max, mult_max, "sequence_mult_max");
    }
}

static void on_policy_is_exact(void **state) {
    uint64_t seed = 50;
    float r[TOKENS];
    const ls_tokens tokens = {SEQUENCES, offsets, NULL};
    ls_mismatch m;
    ls_error err;
    (void)state;
    for (int i = 0; i < TOKENS; i++) r[i] = test_uniform(&seed, -9.0f, 0.0f);
    assert_ok(ls_mismatch_of(&m, &tokens, r, r, &err), err);
    assert_true(m.equal_fraction == 1.0 && m.abs_max == 0.0 && m.signed_mean == 0.0);
    assert_true(m.k1 == 0.0 && m.k2 == 0.0 && m.k3 == 0.0 && m.k3_reverse == 0.0 && m.k3_std == 0.0 && m.js == 0.0);
    assert_true(m.rho_mean == 1.0 && m.rho_min == 1.0 && m.rho_max == 1.0 && m.rho_geometric == 1.0);
    assert_true(m.rho_std == 0.0 && m.chi2_token == 0.0 && m.chi2_sequence == 0.0 && m.effective_fraction == 1.0);
    assert_true(m.mult_error == 1.0 && m.ppl_ratio == 1.0 && m.log_ppl_diff == 0.0 && m.prob_max == 0.0);
}

static void nothing_has_no_measure(void **state) {
    const float r[2] = {NAN, -1.0f}, t[2] = {-1.0f, INFINITY};
    const int64_t two[2] = {0, 2};
    const ls_tokens tokens = {1, two, NULL}, none = {0, two, NULL};
    ls_mismatch m;
    ls_error err;
    (void)state;
    assert_ok(ls_mismatch_of(&m, &tokens, r, t, &err), err);
    assert_true(m.n == 0 && m.equal_fraction == 0.0 && isnan(m.k3) && isnan(m.log_ppl_diff) && m.sequence_worst == -1);
    assert_ok(ls_mismatch_of(&m, &none, r, t, &err), err);
    assert_true(m.n == 0 && isnan(m.equal_fraction));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(measures_are_those_of_the_formulas),
        cmocka_unit_test(on_policy_is_exact),
        cmocka_unit_test(nothing_has_no_measure),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
