/* Losses against a direct evaluation with libm, gradients against differences of that value, exactness on policy, and
 * independence of the rest of the batch in raw bits. */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <stdlib.h>

#include "harness.h"
#include "rl/loss.h"

enum { SEQUENCES = 7, TOKENS = 60 };

/* A step of seven sequences: one empty, one of masked tokens only, one not kept, one that ended by length. */
typedef struct step {
    int64_t offsets[SEQUENCES + 1];
    uint8_t mask[TOKENS], keep[SEQUENCES], overlong[SEQUENCES];
    float advantages[SEQUENCES], t[TOKENS], old[TOKENS], reference[TOKENS], weights[TOKENS], entropy[TOKENS];
} step;

static void fill(step *b, uint64_t seed, float spread) {
    static const int64_t offsets[SEQUENCES + 1] = {0, 9, 9, 20, 31, 40, 52, 60};
    memcpy(b->offsets, offsets, sizeof offsets);
    for (int i = 0; i < TOKENS; i++) {
        b->mask[i] = test_random(&seed) % 4 != 0;
        b->t[i] = test_uniform(&seed, -6.0f, -0.1f);
        b->old[i] = b->t[i] + test_uniform(&seed, -spread, spread);
        b->reference[i] = b->t[i] + test_uniform(&seed, -1.0f, 1.0f);
        b->weights[i] = test_uniform(&seed, 0.0f, 2.0f);
        b->entropy[i] = test_uniform(&seed, 0.0f, 4.0f);
    }
    memset(b->mask + 20, 0, 11);
    for (int s = 0; s < SEQUENCES; s++) {
        b->keep[s] = s != 4;
        b->overlong[s] = s == 5;
        b->advantages[s] = test_uniform(&seed, -2.0f, 2.0f);
    }
}

static ls_loss_input input_of(const step *b) {
    return (ls_loss_input){{SEQUENCES, b->offsets, b->mask},
                           b->keep,
                           b->overlong,
                           b->advantages,
                           b->t,
                           b->old,
                           b->reference,
                           b->weights,
                           b->entropy};
}

typedef struct result {
    float d_logprob[TOKENS], d_entropy[TOKENS];
    ls_loss_sums sums[SEQUENCES];
    ls_loss_metrics metrics;
} result;

static ls_status try(result *r, const ls_loss_input *in, const ls_loss_options *o, ls_error *err) {
    ls_loss_totals totals = {0};
    ls_status status;
    memset(r, 0xAB, sizeof *r);
    ls_loss_count(&totals, in, o);
    status = ls_loss(r->d_logprob, r->d_entropy, r->sums, in, &totals, o, err);
    if (status == LS_OK) ls_loss_measure(&r->metrics, r->sums, in->tokens.n_sequences);
    return status;
}

static void run(result *r, const ls_loss_input *in, const ls_loss_options *o) {
    ls_error err;
    assert_ok(try(r, in, o, &err), err);
}

/* ---- the same by another hand ---- */

static bool counts(const step *b, const ls_loss_options *o, int s, int64_t i) {
    return b->mask[i] && b->keep[s] && !(o->mask_overlong && b->overlong[s]);
}

static double bound(double d) { return fmin(fmax(d, -20.0), 20.0); }

/* held: t where a factor of the loss is a constant (CISPO). */
static double reference_loss(const step *b, const ls_loss_options *o, const double *t, const double *held) {
    double total = 0.0, n_tokens = 0.0, n_sequences = 0.0;
    for (int s = 0; s < SEQUENCES; s++) {
        double n = 0.0;
        for (int64_t i = b->offsets[s]; i < b->offsets[s + 1]; i++) n += counts(b, o, s, i);
        n_tokens += n;
        n_sequences += n > 0.0;
    }
    for (int s = 0; s < SEQUENCES; s++) {
        double n = 0.0, mean = 0.0, sum = 0.0, divisor;
        for (int64_t i = b->offsets[s]; i < b->offsets[s + 1]; i++) {
            if (!counts(b, o, s, i)) continue;
            n += 1.0;
            mean += t[i] - (double)b->old[i];
        }
        mean /= n;
        for (int64_t i = b->offsets[s]; i < b->offsets[s + 1]; i++) {
            const double a = (double)b->advantages[s], low = 1.0 - o->eps_low, high = 1.0 + o->eps_high;
            const double d = (double)b->reference[i] - t[i];
            double rho = exp(bound(o->policy == LS_LOSS_POLICY_GSPO ? mean : t[i] - (double)b->old[i])), loss = 0.0;
            if (!counts(b, o, s, i)) continue;
            if (o->policy == LS_LOSS_POLICY_REINFORCE) {
                loss = -a * t[i];
            } else if (o->policy == LS_LOSS_POLICY_CISPO) {
                rho = exp(bound(held[i] - (double)b->old[i]));
                loss = -a * fmin(rho, high) * t[i];
            } else {
                loss = fmax(-a * rho, -a * fmin(fmax(rho, low), high));
                if (a < 0.0 && o->dual_clip > 0.0) loss = fmin(loss, -a * o->dual_clip);
            }
            sum += (double)b->weights[i] * loss;
            if (o->kl == LS_KL_K1) sum += o->beta * -d;
            if (o->kl == LS_KL_K2) sum += o->beta * d * d / 2.0;
            if (o->kl == LS_KL_K3) sum += o->beta * (expm1(bound(d)) - bound(d));
            sum -= o->entropy_bonus * (double)b->entropy[i];
        }
        divisor =
            o->norm == LS_LOSS_NORM_TOKEN ? n_tokens : n_sequences * (o->norm == LS_LOSS_NORM_SEQUENCE ? n : o->length);
        if (n > 0.0) total += sum / divisor;
    }
    return total;
}

static void assert_close(double value, double expected, const char *what) {
    if (!(fabs(value - expected) <= 1e-6 * fabs(expected) + 1e-12))
        fail_msg("%s: %.12g is not %.12g", what, value, expected);
}

static void value_and_gradient_agree(const step *b, const ls_loss_options *o) {
    const ls_loss_input in = input_of(b);
    double t[TOKENS], held[TOKENS];
    result r;
    run(&r, &in, o);
    for (int i = 0; i < TOKENS; i++) t[i] = held[i] = (double)b->t[i];
    assert_close(r.metrics.loss, reference_loss(b, o, t, held), "loss");
    for (int i = 0; i < TOKENS; i++) {
        const double h = 1e-6, at = t[i];
        double up, down, slope;
        t[i] = at + h;
        up = reference_loss(b, o, t, held);
        t[i] = at - h;
        down = reference_loss(b, o, t, held);
        t[i] = at;
        slope = (up - down) / (2.0 * h);
        if (!(fabs((double)r.d_logprob[i] - slope) <= 1e-6 * fabs(slope) + 3e-8 * fabs(r.metrics.loss) + 1e-8))
            fail_msg("policy %d norm %d kl %d token %d: %.9g is not %.9g", (int)o->policy, (int)o->norm, (int)o->kl, i,
                     (double)r.d_logprob[i], slope);
    }
    for (int s = 0; s < SEQUENCES; s++)
        for (int64_t i = b->offsets[s]; i < b->offsets[s + 1]; i++) {
            const double n = (double)r.sums[s].n_tokens, all = (double)r.metrics.n_sequences;
            const double divisor = o->norm == LS_LOSS_NORM_TOKEN      ? (double)r.metrics.n_tokens
                                   : o->norm == LS_LOSS_NORM_SEQUENCE ? all * n
                                                                      : all * o->length;
            const double expected = counts(b, o, s, i) ? -o->entropy_bonus / divisor : 0.0;
            assert_close((double)r.d_entropy[i], expected, "d_entropy");
        }
}

static ls_loss_options options_of(int policy, int norm, int kl) {
    return (ls_loss_options){.policy = (ls_policy_kind)policy,
                             .norm = (ls_loss_norm)norm,
                             .kl = (ls_kl_kind)kl,
                             .eps_low = 0.2,
                             .eps_high = 0.28,
                             .length = 16.0};
}

static void losses_and_gradients_are_those_of_the_formulas(void **state) {
    (void)state;
    for (int policy = 0; policy < 4; policy++)
        for (int norm = 0; norm < 3; norm++)
            for (int kl = 0; kl < 3; kl++)
                for (int variant = 0; variant < 4; variant++) {
                    ls_loss_options o = options_of(policy, norm, kl);
                    step b;
                    fill(&b, (uint64_t)(policy * 100 + norm * 10 + kl + 1000 * variant + 1), 1.5f);
                    o.beta = variant % 2 == 0 ? 0.05 : 0.0;
                    o.entropy_bonus = variant / 2 == 0 ? 0.01 : 0.0;
                    o.dual_clip = variant % 2 == 0 ? 0.0 : 2.0;
                    o.mask_overlong = variant == 1;
                    value_and_gradient_agree(&b, &o);
                }
}

static void clips_are_counted(void **state) {
    step b;
    result r;
    ls_loss_options o = options_of(LS_LOSS_POLICY_PPO, LS_LOSS_NORM_TOKEN, LS_KL_K3);
    int64_t low = 0, high = 0, dual = 0, n = 0;
    double k1 = 0.0, k2 = 0.0, k3 = 0.0, ratio = 0.0;
    (void)state;
    fill(&b, 77, 1.5f);
    o.dual_clip = 2.0;
    for (int s = 0; s < SEQUENCES; s++)
        for (int64_t i = b.offsets[s]; i < b.offsets[s + 1]; i++) {
            const double d = (double)b.t[i] - (double)b.old[i], rho = exp(d);
            if (!counts(&b, &o, s, i)) continue;
            n++;
            high += b.advantages[s] > 0.0f && rho > 1.28;
            low += b.advantages[s] < 0.0f && rho < 0.8;
            dual += b.advantages[s] < 0.0f && rho > 2.0;
            k1 -= d;
            k2 += d * d / 2.0;
            k3 += expm1(d) - d;
            ratio += rho;
        }
    assert_true(low > 0 && high > 0 && dual > 0);
    {
        const ls_loss_input in = input_of(&b);
        run(&r, &in, &o);
    }
    assert_int_equal(r.metrics.n_tokens, n);
    assert_close(r.metrics.clip_low, (double)low / (double)n, "low");
    assert_close(r.metrics.clip_high, (double)high / (double)n, "high");
    assert_close(r.metrics.clip_dual, (double)dual / (double)n, "dual");
    assert_close(r.metrics.clip_fraction, (double)(low + high + dual) / (double)n, "any");
    assert_close(r.metrics.old_k1, k1 / (double)n, "k1");
    assert_close(r.metrics.old_k2, k2 / (double)n, "k2");
    assert_close(r.metrics.old_k3, k3 / (double)n, "k3");
    assert_close(r.metrics.ratio_mean, ratio / (double)n, "ratio");
    assert_true(r.metrics.ratio_min < 0.8 && r.metrics.ratio_max > 2.0);
}

static void on_policy_is_exact(void **state) {
    (void)state;
    for (int policy = 0; policy < 4; policy++)
        for (int kl = 0; kl < 3; kl++) {
            ls_loss_options o = options_of(policy, LS_LOSS_NORM_TOKEN, kl);
            step b;
            result r;
            fill(&b, 9, 1.0f);
            o.beta = 0.1;
            o.dual_clip = 3.0;
            memcpy(b.old, b.t, sizeof b.t);
            memcpy(b.reference, b.t, sizeof b.t);
            {
                const ls_loss_input in = input_of(&b);
                run(&r, &in, &o);
            }
            assert_true(r.metrics.ratio_mean == 1.0 && r.metrics.ratio_min == 1.0 && r.metrics.ratio_max == 1.0);
            assert_true(r.metrics.clip_fraction == 0.0);
            assert_true(r.metrics.old_k1 == 0.0 && r.metrics.old_k2 == 0.0 && r.metrics.old_k3 == 0.0);
            assert_true(r.metrics.reference_kl == 0.0 && r.metrics.kl_loss == 0.0);
        }
}

/* The step's sequences in another order and in calls of their own, with the step's totals. */
static void sequences_stand_alone(void **state) {
    static const int order[SEQUENCES] = {6, 2, 0, 5, 1, 3, 4};
    (void)state;
    for (int policy = 0; policy < 4; policy++)
        for (int norm = 0; norm < 3; norm++) {
            ls_loss_options o = options_of(policy, norm, LS_KL_K3);
            ls_loss_sums sums[SEQUENCES];
            ls_loss_metrics metrics;
            ls_loss_totals totals = {0}, parts = {0};
            step b;
            result r;
            fill(&b, 11, 1.0f);
            o.beta = 0.1;
            o.entropy_bonus = 0.01;
            const ls_loss_input in = input_of(&b);
            run(&r, &in, &o);
            ls_loss_count(&totals, &in, &o);
            for (int k = 0; k < SEQUENCES; k++) {
                const int s = order[k];
                const int64_t begin = b.offsets[s], n = b.offsets[s + 1] - begin;
                const int64_t offsets[2] = {0, n};
                float d_logprob[TOKENS], d_entropy[TOKENS];
                ls_error err;
                const ls_loss_input one = {{1, offsets, b.mask + begin},
                                           b.keep + s,
                                           b.overlong + s,
                                           b.advantages + s,
                                           b.t + begin,
                                           b.old + begin,
                                           b.reference + begin,
                                           b.weights + begin,
                                           b.entropy + begin};
                ls_loss_count(&parts, &one, &o);
                assert_ok(ls_loss(d_logprob, d_entropy, &sums[s], &one, &totals, &o, &err), err);
                assert_same_bits(d_logprob, r.d_logprob + begin, n);
                assert_same_bits(d_entropy, r.d_entropy + begin, n);
            }
            assert_int_equal(parts.n_tokens, totals.n_tokens);
            assert_int_equal(parts.n_sequences, totals.n_sequences);
            ls_loss_measure(&metrics, sums, SEQUENCES);
            assert_memory_equal(&metrics, &r.metrics, sizeof metrics);
        }
}

static void huge_differences_stay_finite(void **state) {
    (void)state;
    for (int policy = 0; policy < 4; policy++)
        for (int sign = -1; sign <= 1; sign++) {
            ls_loss_options o = options_of(policy, LS_LOSS_NORM_SEQUENCE, LS_KL_K3);
            step b;
            fill(&b, 13, 0.1f);
            o.beta = 1e-3;
            for (int s = 0; s < SEQUENCES; s++) b.advantages[s] = (float)sign;
            for (int i = 0; i < TOKENS; i++) b.old[i] = b.t[i] + (i % 2 == 0 ? 3000.0f : -3000.0f);
            for (int i = 0; i < TOKENS; i++) b.reference[i] = i % 3 == 0 ? -3e38f : b.t[i] + 900.0f;
            value_and_gradient_agree(&b, &o);
        }
}

static void nothing_to_count_is_no_loss(void **state) {
    const ls_loss_options o = options_of(LS_LOSS_POLICY_GSPO, LS_LOSS_NORM_TOKEN, LS_KL_K1);
    const float zero[TOKENS] = {0};
    step b;
    result r;
    (void)state;
    fill(&b, 15, 0.1f);
    memset(b.mask, 0, sizeof b.mask);
    for (int i = 0; i < TOKENS; i++) b.t[i] = NAN; /* not read */
    ls_loss_input in = input_of(&b);
    run(&r, &in, &o);
    assert_true(r.metrics.loss == 0.0 && r.metrics.n_tokens == 0 && isnan(r.metrics.ratio_mean));
    assert_same_bits(r.d_logprob, zero, TOKENS);
    in.tokens.n_sequences = 0;
    run(&r, &in, &o);
    assert_true(r.metrics.loss == 0.0);
}

static void what_cannot_be_is_refused(void **state) {
    ls_loss_options o = options_of(LS_LOSS_POLICY_PPO, LS_LOSS_NORM_LENGTH, LS_KL_K3);
    const ls_loss_totals few = {.n_tokens = 3, .n_sequences = 7};
    step b;
    result r;
    ls_error err;
    (void)state;
    fill(&b, 17, 0.1f);
    o.beta = 0.1;
    b.mask[2] = b.mask[53] = b.mask[54] = 1;
    ls_loss_input in = input_of(&b);
    b.t[53] = -INFINITY;
    check_failed(try(&r, &in, &o, &err), &err, "the log-probability of sequence 6, token 1 is -inf");
    b.t[53] = -1.0f;
    b.old[2] = NAN;
    check_failed(try(&r, &in, &o, &err), &err, "the old log-probability of sequence 0, token 2 is");
    b.old[2] = -1.0f;
    b.advantages[3] = NAN; /* has no counted token */
    run(&r, &in, &o);
    b.advantages[6] = INFINITY;
    check_failed(try(&r, &in, &o, &err), &err, "the advantage of sequence 6");
    b.advantages[6] = 1.0f;
    check_failed(ls_loss(r.d_logprob, NULL, r.sums, &in, &few, &o, &err), &err, "of 3 and 7");
    in.reference = NULL;
    check_failed(try(&r, &in, &o, &err), &err, "reference");
    in.reference = b.reference;
    in.old = NULL;
    check_failed(try(&r, &in, &o, &err), &err, "old log-probabilities");
    o.policy = LS_LOSS_POLICY_REINFORCE;
    run(&r, &in, &o);
    o.length = 0.0;
    check_failed(try(&r, &in, &o, &err), &err, "length");
    o.length = 1.0;
    o.dual_clip = 0.9;
    check_failed(try(&r, &in, &o, &err), &err, "dual_clip");
    o.dual_clip = 0.0;
    o.eps_low = 1.0;
    check_failed(try(&r, &in, &o, &err), &err, "eps_low");
    o.eps_low = 0.2;
    o.eps_high = NAN;
    check_failed(try(&r, &in, &o, &err), &err, "eps_high");
    assert_int_equal(ls_name_find(ls_policy_names, "cispo"), LS_LOSS_POLICY_CISPO);
    assert_int_equal(ls_name_find(ls_loss_norm_names, "length"), LS_LOSS_NORM_LENGTH);
    assert_int_equal(ls_name_find(ls_kl_names, "k3"), LS_KL_K3);
    assert_int_equal(ls_name_find(ls_kl_names, "k4"), -1);
}

static void metrics_are_written_with_aliases(void **state) {
    char text[4096] = "";
    FILE *file = fmemopen(text, sizeof text - 1, "w");
    const ls_loss_options o = options_of(LS_LOSS_POLICY_PPO, LS_LOSS_NORM_TOKEN, LS_KL_K3);
    ls_json_out json;
    step b;
    result r;
    (void)state;
    fill(&b, 19, 1.0f);
    const ls_loss_input in = input_of(&b);
    run(&r, &in, &o);
    assert_non_null(file);
    ls_json_init(&json, file);
    ls_loss_metrics_write(&json, NULL, &r.metrics, LS_LOSS_POLICY_PPO);
    assert_int_equal(fclose(file), 0);
    assert_non_null(strstr(text, "\"policy_loss\":"));
    assert_non_null(strstr(text, "\"reference_kl\":null"));
    assert_non_null(strstr(text, "\"actor/pg_clipfrac\":"));
    assert_non_null(strstr(text, "\"clip_ratio/low_mean\":"));
    assert_non_null(file = fmemopen(text, sizeof text - 1, "w"));
    ls_json_init(&json, file);
    ls_loss_metrics_write(&json, NULL, &r.metrics, LS_LOSS_POLICY_GSPO);
    assert_int_equal(fclose(file), 0);
    assert_non_null(strstr(text, "\"actor/pg_clipfrac\":"));
    assert_null(strstr(text, "clip_ratio")); /* TRL's is of sequences there */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(losses_and_gradients_are_those_of_the_formulas),
        cmocka_unit_test(clips_are_counted),
        cmocka_unit_test(on_policy_is_exact),
        cmocka_unit_test(sequences_stand_alone),
        cmocka_unit_test(huge_differences_stay_finite),
        cmocka_unit_test(nothing_to_count_is_no_loss),
        cmocka_unit_test(what_cannot_be_is_refused),
        cmocka_unit_test(metrics_are_written_with_aliases),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
