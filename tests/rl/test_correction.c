/* Corrections against a direct evaluation with libm, exactness on policy, and what lists say. */
#define _POSIX_C_SOURCE 200809L
#include <math.h>

#include "harness.h"
#include "rl/correction.h"

enum { SEQUENCES = 9, TOKENS = 72 };

typedef struct batch {
    int64_t offsets[SEQUENCES + 1];
    uint8_t mask[TOKENS];
    float r[TOKENS], t[TOKENS];
} batch;

/* Eight tokens a sequence; 3 has none that counts, 5 is equal on both sides, 7 has values that are none. */
static void fill(batch *b, uint64_t seed, float spread) {
    for (int s = 0; s <= SEQUENCES; s++) b->offsets[s] = 8 * s;
    for (int i = 0; i < TOKENS; i++) {
        b->mask[i] = i / 8 != 3 && test_random(&seed) % 5 != 0;
        b->r[i] = test_uniform(&seed, -6.0f, -0.1f);
        b->t[i] = i / 8 == 5 ? b->r[i] : b->r[i] + test_uniform(&seed, -spread, spread);
    }
    for (int i = 56; i < 62; i++) b->mask[i] = 1;
    b->t[56] = NAN;
    b->r[57] = NAN;
    b->r[58] = -INFINITY;
    b->t[59] = INFINITY;
    b->t[60] = -INFINITY;
}

static ls_tokens tokens_of(const batch *b) { return (ls_tokens){SEQUENCES, b->offsets, b->mask}; }

static ls_correction parse(const char *text) {
    ls_correction c;
    ls_error err;
    assert_ok(ls_correction_parse(&c, text, &err), err);
    return c;
}

typedef struct result {
    float weights[TOKENS];
    uint8_t kept[TOKENS];
    ls_correction_metrics m;
} result;

static result apply(const batch *b, const char *text) {
    const ls_correction c = parse(text);
    const ls_tokens tokens = tokens_of(b);
    result r;
    ls_error err;
    memset(&r, 0xAB, sizeof r);
    assert_ok(ls_correction_apply(r.weights, r.kept, &r.m, &tokens, b->r, b->t, &c, &err), err);
    return r;
}

/* ---- the same by another hand ---- */

static double bound(double d) { return fmin(fmax(d, -20.0), 20.0); }

static bool seen(const batch *b, int i) {
    return b->mask[i] && !isnan(b->r[i]) && !isnan(b->t[i]) && !isinf(b->r[i]) && !(b->t[i] == INFINITY);
}

/* The value that a correction of this name bounds. */
static double statistic(const batch *b, const char *name, int i) {
    const int begin = i / 8 * 8;
    const double own = (double)b->t[i] - (double)b->r[i];
    double n = 0.0, sum = 0.0, error = 0.0, smallest = INFINITY, k_sum = 0.0, k_max = 0.0;
    const bool k3 = strstr(name, "k3") != NULL;
    for (int k = begin; k < begin + 8; k++) {
        const double d = (double)b->t[k] - (double)b->r[k];
        const double value = k3 ? expm1(bound(d)) - bound(d) : d * d / 2.0;
        if (!seen(b, k)) continue;
        n += 1.0;
        sum += d;
        error += exp(fabs(bound(d)));
        smallest = fmin(smallest, exp(bound(d)));
        k_sum += value;
        k_max = fmax(k_max, value);
    }
    if (strcmp(name, "token-k2") == 0) return own * own / 2.0;
    if (strcmp(name, "token-k3") == 0) return expm1(bound(own)) - bound(own);
    if (strncmp(name, "token", 5) == 0) return exp(bound(own));
    if (strncmp(name, "sequence", 8) == 0) return exp(bound(sum));
    if (strncmp(name, "geometric", 9) == 0) return exp(bound(sum / n));
    if (strncmp(name, "sum-k", 5) == 0) return k_sum;
    if (strncmp(name, "mean-k", 6) == 0) return k_sum / n;
    if (strncmp(name, "max-k", 5) == 0) return k_max;
    if (strcmp(name, "veto") == 0) return smallest;
    return error / n;
}

static double weight(const batch *b, const char *name, double low, double high, int i) {
    const double value = statistic(b, name, i);
    if (!seen(b, i)) return 0.0;
    if (strstr(name, "truncate") != NULL) return fmin(fmax(value, low), high);
    if (value < low || value > high) return 0.0;
    return strstr(name, "mask") != NULL ? value : 1.0;
}

static void assert_close(double value, double expected, const char *what) {
    if (!(fabs(value - expected) <= 1e-6 * fabs(expected)) && !(isnan(value) && isnan(expected)))
        fail_msg("%s: %.12g is not %.12g", what, value, expected);
}

static const struct {
    const char *text, *name;
    double low, high;
} single[] = {
    {"token-truncate=1.2", "token-truncate", 0.0, 1.2},
    {"token-truncate=0.8:1.2", "token-truncate", 0.8, 1.2},
    {"token-mask=0.8:1.3", "token-mask", 0.8, 1.3},
    {"sequence-truncate=1.5", "sequence-truncate", 0.0, 1.5},
    {"sequence-mask=0.5:3", "sequence-mask", 0.5, 3.0},
    {"token-reject=0.7:1.4", "token-reject", 0.7, 1.4},
    {"sequence-reject=0.7:1.4", "sequence-reject", 0.7, 1.4},
    {"geometric-reject=0.9:1.1", "geometric-reject", 0.9, 1.1},
    {"token-k2=0.05", "token-k2", 0.0, 0.05},
    {"token-k3=0.05", "token-k3", 0.0, 0.05},
    {"sum-k2=0.3", "sum-k2", 0.0, 0.3},
    {"sum-k3=0.3", "sum-k3", 0.0, 0.3},
    {"mean-k2=0.04", "mean-k2", 0.0, 0.04},
    {"mean-k3=0.04", "mean-k3", 0.0, 0.04},
    {"max-k2=0.1", "max-k2", 0.0, 0.1},
    {"max-k3=0.1", "max-k3", 0.0, 0.1},
    {"veto=0.65", "veto", 0.65, INFINITY},
    {"error-reject=1.25", "error-reject", 0.0, 1.25},
};
enum { N_SINGLE = sizeof single / sizeof single[0] };

static void weights_are_those_of_the_formulas(void **state) {
    (void)state;
    for (int k = 0; k < N_SINGLE; k++) {
        int zero = 0, some = 0;
        for (uint64_t seed = 1; seed < 6; seed++) {
            batch b;
            fill(&b, seed, 0.5f);
            const result r = apply(&b, single[k].text);
            for (int i = 0; i < TOKENS; i++) {
                const double e = weight(&b, single[k].name, single[k].low, single[k].high, i);
                assert_close((double)r.weights[i], e, single[k].text);
                if (strstr(single[k].name, "truncate") == NULL && strstr(single[k].name, "mask") == NULL)
                    assert_int_equal(r.kept[i], e != 0.0);
                else
                    assert_int_equal(r.kept[i], seen(&b, i));
                zero += seen(&b, i) && e == 0.0;
                some += e != 0.0;
            }
        }
        if (some == 0 || (zero == 0 && strstr(single[k].name, "truncate") == NULL)) fail_msg("%s", single[k].text);
    }
}

static void lists_multiply_in_any_order(void **state) {
    static const char *const orders[] = {"token-truncate=1.2,geometric-reject=0.9:1.1,veto=0.65,token-k3=0.05",
                                         "token-k3=0.05,veto=0.65,token-truncate=1.2,geometric-reject=0.9:1.1"};
    batch b;
    (void)state;
    fill(&b, 3, 0.5f);
    const result first = apply(&b, orders[0]), second = apply(&b, orders[1]);
    for (int i = 0; i < TOKENS; i++) {
        const double e = weight(&b, "token-truncate", 0.0, 1.2, i) * weight(&b, "geometric-reject", 0.9, 1.1, i) *
                         weight(&b, "veto", 0.65, INFINITY, i) * weight(&b, "token-k3", 0.0, 0.05, i);
        assert_close((double)first.weights[i], e, "product");
    }
    assert_same_bits(first.weights, second.weights, TOKENS);
    assert_memory_equal(first.kept, second.kept, TOKENS);
}

static void measures_are_those_of_the_formulas(void **state) {
    batch b;
    double n = 0.0, raw = 0.0, w1 = 0.0, w2 = 0.0, high = 0.0, low = 0.0, zero = 0.0, rejected = 0.0, k3_kept = 0.0,
           k3_zero = 0.0, counted = 0.0, means = 0.0, out = 0.0, largest = 0.0, abs_mean = 0.0, sequences = 0.0;
    (void)state;
    fill(&b, 4, 0.5f);
    const result r = apply(&b, "token-mask=0.7:1.25,mean-k2=0.045");
    for (int s = 0; s < SEQUENCES; s++) {
        double in = 0.0, sum = 0.0, abs = 0.0;
        for (int i = 8 * s; i < 8 * s + 8; i++) {
            const double rho = statistic(&b, "token-mask", i);
            const double w = weight(&b, "token-mask", 0.7, 1.25, i) * weight(&b, "mean-k2", 0.0, 0.045, i);
            counted += b.mask[i];
            if (!seen(&b, i)) continue;
            in += 1.0;
            raw += rho;
            w1 += w;
            w2 += w * w;
            high += rho > 1.25;
            low += rho < 0.7;
            zero += w == 0.0;
            rejected += weight(&b, "mean-k2", 0.0, 0.045, i) == 0.0;
            *(w == 0.0 ? &k3_zero : &k3_kept) += statistic(&b, "token-k3", i);
            sum += w;
            abs += fabs(rho - 1.0);
            largest = fmax(largest, rho);
        }
        if (in == 0.0) continue;
        n += in;
        sequences += 1.0;
        means += sum / in;
        abs_mean += abs / in;
        out += statistic(&b, "mean-k2", 8 * s) > 0.045;
    }
    assert_int_equal(r.m.n_tokens, (int64_t)counted);
    assert_int_equal(r.m.n_missing, 4);
    assert_int_equal(r.m.n_sequences, (int64_t)sequences);
    assert_close(r.m.raw_mean, raw / n, "raw_mean");
    assert_close(r.m.raw_max, largest, "raw_max");
    assert_close(r.m.weight_mean, w1 / n, "weight_mean");
    assert_close(r.m.weight_std, sqrt(w2 / n - w1 / n * w1 / n), "weight_std");
    assert_close(r.m.effective_fraction, w1 * w1 / (n * w2), "effective_fraction");
    assert_close(r.m.fraction_high, high / n, "high");
    assert_close(r.m.fraction_low, low / n, "low");
    assert_close(r.m.outside_fraction, (high + low) / n, "outside");
    assert_close(r.m.zero_fraction, zero / n, "zero");
    assert_close(r.m.rejected_fraction, rejected / n, "rejected");
    assert_close(r.m.k3_kept, k3_kept / (n - zero), "k3_kept");
    assert_close(r.m.k3_zero, k3_zero / zero, "k3_zero");
    assert_close(r.m.sequence_weight_mean, means / sequences, "sequence_weight_mean");
    assert_close(r.m.sequence_abs_mean, abs_mean / sequences, "sequence_abs_mean");
    assert_close(r.m.shares[1].sequences, out / sequences, "share of sequences");
    assert_close(r.m.shares[1].tokens, rejected / n, "share of tokens");
    assert_close(r.m.shares[0].tokens, (high + low) / n, "share of tokens of the mask");
    assert_true(high > 0.0 && low > 0.0 && out > 0.0 && out < sequences);
}

static void on_policy_is_exact(void **state) {
    float one[TOKENS];
    batch b;
    (void)state;
    fill(&b, 5, 0.5f);
    memset(b.mask, 1, sizeof b.mask);
    for (int i = 0; i < TOKENS; i++) {
        if (!isfinite(b.r[i])) b.r[i] = -1.0f;
        b.t[i] = b.r[i];
        one[i] = 1.0f;
    }
    for (int k = 0; k < N_SINGLE; k++) {
        const result r = apply(&b, single[k].text);
        assert_same_bits(r.weights, one, TOKENS);
        assert_true(r.m.raw_mean == 1.0 && r.m.raw_min == 1.0 && r.m.raw_max == 1.0);
        assert_true(r.m.weight_mean == 1.0 && r.m.weight_std == 0.0 && r.m.effective_fraction == 1.0);
        assert_true(r.m.outside_fraction == 0.0 && r.m.zero_fraction == 0.0 && r.m.rejected_fraction == 0.0);
        assert_true(r.m.fraction_high == 0.0 && r.m.fraction_low == 0.0 && r.m.k3_kept == 0.0);
        assert_true(r.m.sequence_weight_std == 0.0 && r.m.sequences_zero == 0);
    }
}

static void sequences_stand_alone(void **state) {
    static const int64_t offsets[2] = {0, 8};
    const char *text = "sequence-truncate=2,mean-k3=0.05,token-reject=0.6:1.5";
    const ls_correction c = parse(text);
    batch b;
    (void)state;
    fill(&b, 6, 0.5f);
    const result all = apply(&b, text);
    for (int s = SEQUENCES - 1; s >= 0; s--) {
        const ls_tokens tokens = {1, offsets, b.mask + 8 * s};
        float weights[8];
        uint8_t kept[8];
        ls_error err;
        assert_ok(ls_correction_apply(weights, kept, NULL, &tokens, b.r + 8 * s, b.t + 8 * s, &c, &err), err);
        assert_same_bits(weights, all.weights + 8 * s, 8);
        assert_memory_equal(kept, all.kept + 8 * s, 8);
    }
}

static void extremes_stay_finite(void **state) {
    batch b;
    (void)state;
    fill(&b, 7, 0.5f);
    for (int i = 0; i < TOKENS; i++) {
        b.r[i] = -1.0f;
        b.t[i] = i % 2 == 0 ? -3e38f : 3e38f;
    }
    for (int k = 0; k < N_SINGLE; k++) {
        const result r = apply(&b, single[k].text);
        for (int i = 0; i < TOKENS; i++) assert_true(isfinite(r.weights[i]));
        assert_true(r.m.raw_min >= 0.0 && isfinite(r.m.raw_max));
    }
    memset(b.mask, 0, sizeof b.mask);
    const result none = apply(&b, "token-truncate=2,veto=1e-4");
    assert_true(none.m.n_tokens == 0 && none.m.n_sequences == 0 && isnan(none.m.weight_mean) && isnan(none.m.raw_min));
    b.mask[0] = 1; /* t = -inf takes part, and the veto sees it */
    b.t[0] = -INFINITY;
    const result veto = apply(&b, "veto=1e-4");
    assert_true(veto.m.sequences_zero == 1 && veto.kept[0] == 0);
    b.t[0] = 30.0f;
    const result upper = apply(&b, "veto=1e-4:100");
    assert_true(upper.m.sequences_zero == 1);
}

static void lists_are_checked(void **state) {
    static const struct {
        const char *text, *says;
    } bad[] = {
        {"tis=2", "'tis'"},
        {"token-truncate", "token-truncate=NUMBER"},
        {"token-truncate=", "token-truncate=NUMBER"},
        {"token-truncate=-1", "not negative"},
        {"token-truncate=nan", "not negative"},
        {"token-truncate=1e999", "not negative"},
        {"token-mask=2:1", "upper bound"},
        {"token-mask=1:x", "upper bound"},
        {"token-mask=1:2:3", "upper bound"},
        {"token-mask=1:2,", "''"},
        {",veto=1", "''"},
        {"veto=1,veto=2", "twice"},
        {"token-mask=1:2,sequence-truncate=2", "one weight"},
        {"a-name-that-is-much-longer-than-any-there-is=2", "a-name"},
        {"none,veto=1", "'none'"},
    };
    ls_correction c;
    ls_error err;
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        check_failed(ls_correction_parse(&c, bad[i].text, &err), &err, bad[i].says);
    assert_int_equal(parse("").n, 0);
    assert_int_equal(parse("none").n, 0);
    c = parse("geometric-reject=0.99:1.01,veto=1e-4,token-truncate=2");
    assert_int_equal(c.n, 3);
    assert_int_equal(c.steps[0].kind, LS_CORRECT_GEOMETRIC_REJECT);
    assert_true(c.steps[0].low == 0.99 && c.steps[0].high == 1.01);
    assert_true(c.steps[1].low == 1e-4 && isinf(c.steps[1].high));
    assert_true(c.steps[2].low == 0.0 && c.steps[2].high == 2.0);
}

static void measures_are_written(void **state) {
    char text[16384] = "";
    FILE *file = fmemopen(text, sizeof text - 1, "w");
    const ls_correction c = parse("token-truncate=1.2,max-k3=0.1,error-reject=1.25");
    ls_json_out json;
    batch b;
    (void)state;
    fill(&b, 8, 0.5f);
    const result r = apply(&b, "token-truncate=1.2,max-k3=0.1,error-reject=1.25");
    assert_non_null(file);
    ls_json_init(&json, file);
    ls_json_begin_object(&json, NULL);
    ls_correction_write(&json, &r.m, &c);
    ls_correction_write_aliases(&json, &r.m, &c);
    ls_json_end_object(&json);
    ls_correction_print(file, &r.m, &c);
    assert_int_equal(fclose(file), 0);
    assert_non_null(strstr(text, "\"effective_fraction\":"));
    assert_null(strstr(text, "\"rollout_corr/rollout_is_")); /* verl's are of the weights before a rejection */
    assert_non_null(strstr(text, "\"rollout_corr/rollout_rs_seq_max_k3_seq_mean\":"));
    assert_non_null(strstr(text, "\"num_masked_seqs_by_logprob_error\":"));
    assert_non_null(strstr(text, "\nmax-k3 "));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weights_are_those_of_the_formulas),
        cmocka_unit_test(lists_multiply_in_any_order),
        cmocka_unit_test(measures_are_those_of_the_formulas),
        cmocka_unit_test(on_policy_is_exact),
        cmocka_unit_test(sequences_stand_alone),
        cmocka_unit_test(extremes_stay_finite),
        cmocka_unit_test(lists_are_checked),
        cmocka_unit_test(measures_are_written),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
