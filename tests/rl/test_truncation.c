/* Learning from truncated draws. On a bandit whose gradient is known the estimator is unbiased, by its exact
 * expectation, and it is biased without the support; a whole model's gradient over supports is that of differences of
 * its loss. */
#include <math.h>

#include "device.h"
#include "model/score.h"
#include "model/tape.h"
#include "model/trained.h"
#include "op/logprob.h"
#include "rl/loss.h"

/* ---- a bandit: one row of logits, an arm a token ---- */

enum { ARMS = 48 };

typedef struct bandit {
    float logits[ARMS], rewards[ARMS];
    ls_sampling sampling;
    uint32_t support[2];
    double q[ARMS], kept_mass, value; /* the distribution drawn from; of the kept set; sum of q rewards */
} bandit;

static void own_support(bandit *b) {
    ls_device *device = test_device(1, ls_isa_best());
    float *logits = to_device(device, b->logits, sizeof b->logits), *out = to_device(device, NULL, sizeof b->logits);
    int32_t *space = to_device(device, NULL, 2 * sizeof b->logits);
    ls_sampling *sampling = to_device(device, &b->sampling, sizeof b->sampling);
    uint32_t *bits = to_device(device, NULL, sizeof b->support);
    const ls_process_args process = {
        .logits = logits, .rows = 1, .vocab = ARMS, .sampling = sampling, .out = out, .sort_space = space};
    const ls_support_args find = {out, 1, ARMS, bits, false};
    ls_error err;
    assert_ok(ls_process(device, &process, &err), err);
    assert_ok(ls_support(device, &find, &err), err);
    from_device(device, b->support, bits, sizeof b->support);
    ls_memory_free(device, logits);
    ls_memory_free(device, out);
    ls_memory_free(device, space);
    ls_memory_free(device, sampling);
    ls_memory_free(device, bits);
    test_device_close(device);
}

static bool is_kept(const bandit *b, int i) { return (b->support[i / 32] >> i % 32 & 1u) != 0; }

/* The same in float64, by another hand. */
static void know(bandit *b) {
    double all = 0, kept = 0;
    b->value = 0;
    for (int i = 0; i < ARMS; i++) {
        const double p = exp((double)b->logits[i] / (double)b->sampling.temperature);
        all += p;
        kept += is_kept(b, i) ? p : 0;
        b->q[i] = is_kept(b, i) ? p : 0;
    }
    for (int i = 0; i < ARMS; i++) {
        b->q[i] /= kept;
        b->value += b->q[i] * (double)b->rewards[i];
    }
    b->kept_mass = kept / all;
}

static void make(bandit *b, uint64_t seed, ls_sampling sampling) {
    b->sampling = sampling;
    for (int i = 0; i < ARMS; i++) {
        b->logits[i] = test_uniform(&seed, -3.0f, 3.0f);
        b->rewards[i] = test_uniform(&seed, -0.5f, 1.5f);
    }
    own_support(b);
    know(b);
}

/* The expectation of the estimator: the gradients of the losses of all arms that can be drawn, each with its
 * probability. supports: learn from the support that was drawn from, else from the whole vocabulary. ratios [ARMS] are
 * those of the loss. */
static void expect(double *out, double *ratios, const bandit *b, ls_policy_kind policy, bool supports) {
    ls_device *device = test_device(1, ls_isa_best());
    float rows[ARMS][ARMS], temperature[ARMS], logprob[ARMS], old[ARMS], d_logprob[ARMS], gradient[ARMS][ARMS];
    uint8_t mask[ARMS];
    uint32_t bits[ARMS][2];
    int64_t targets[ARMS];
    ls_loss_sums sums[ARMS];
    const ls_loss_options options = {.policy = policy, .norm = LS_LOSS_NORM_TOKEN, .eps_low = 0.9, .eps_high = 9};
    ls_loss_totals totals = {1, 1}; /* of a run: one draw */
    ls_error err;
    int64_t n = 0;
    for (int i = 0; i < ARMS; i++) {
        if (!is_kept(b, i)) continue;
        memcpy(rows[n], b->logits, sizeof b->logits);
        memcpy(bits[n], b->support, sizeof b->support);
        temperature[n] = b->sampling.temperature;
        targets[n++] = i;
    }
    {
        float *logits = to_device(device, rows, n * (int64_t)sizeof rows[0]), *lse = to_device(device, NULL, n * 4);
        float *t = to_device(device, temperature, n * 4), *lp = to_device(device, NULL, n * 4);
        uint32_t *words = to_device(device, bits, n * (int64_t)sizeof bits[0]);
        int64_t *target = to_device(device, targets, n * 8);
        const ls_support_args apply = {logits, n, ARMS, words, true};
        const ls_logprob_args forward = {.logits = logits,
                                         .dtype = LS_F32,
                                         .rows = n,
                                         .vocab = ARMS,
                                         .row_stride = ARMS,
                                         .targets = target,
                                         .ignore_index = -1,
                                         .temperature = t,
                                         .logprob = lp,
                                         .lse = lse};
        float *d;
        if (supports) assert_ok(ls_support(device, &apply, &err), err);
        assert_ok(ls_logprob(device, &forward, &err), err);
        from_device(device, logprob, lp, n * 4);
        for (int64_t k = 0; k < n; k++) { /* one sequence of one token each: its own loss */
            const int64_t one[2] = {0, 1};
            const float advantage = b->rewards[targets[k]];
            ls_loss_input input = {.tokens = {1, one, mask}, .advantages = &advantage, .logprobs = logprob + k};
            mask[0] = 1;
            old[k] = (float)log(b->q[targets[k]]);
            input.old = &old[k];
            assert_ok(ls_loss(&d_logprob[k], NULL, &sums[k], &input, &totals, &options, &err), err);
            ratios[targets[k]] = sums[k].ratio;
        }
        d = to_device(device, d_logprob, n * 4);
        {
            const ls_logprob_backward_args backward = {.logits = logits,
                                                       .dtype = LS_F32,
                                                       .rows = n,
                                                       .vocab = ARMS,
                                                       .row_stride = ARMS,
                                                       .targets = target,
                                                       .ignore_index = -1,
                                                       .temperature = t,
                                                       .lse = lse,
                                                       .d_logprob = d,
                                                       .d_logits = logits,
                                                       .d_stride = ARMS};
            assert_ok(ls_logprob_backward(device, &backward, &err), err);
        }
        from_device(device, gradient, logits, n * (int64_t)sizeof gradient[0]);
        ls_memory_free(device, logits);
        ls_memory_free(device, lse);
        ls_memory_free(device, t);
        ls_memory_free(device, lp);
        ls_memory_free(device, words);
        ls_memory_free(device, target);
        ls_memory_free(device, d);
    }
    for (int i = 0; i < ARMS; i++) {
        out[i] = 0;
        for (int64_t k = 0; k < n; k++) out[i] += b->q[targets[k]] * (double)gradient[k][i];
    }
    test_device_close(device);
}

/* Of the expected loss, which is minus the expected reward. */
static double known(const bandit *b, int i) {
    return -b->q[i] * ((double)b->rewards[i] - b->value) / (double)b->sampling.temperature;
}

static void measure(const bandit *b, ls_policy_kind policy, bool supports, double *bias, double *size, double *ratio) {
    double expected[ARMS], ratios[ARMS];
    *bias = *size = *ratio = 0;
    expect(expected, ratios, b, policy, supports);
    for (int i = 0; i < ARMS; i++) {
        *bias += pow(expected[i] - known(b, i), 2);
        *size += pow(known(b, i), 2);
        if (is_kept(b, i)) *ratio += b->q[i] * ratios[i];
    }
    *bias = sqrt(*bias);
    *size = sqrt(*size);
}

static void the_estimator_is_unbiased_with_the_support_alone(void **state) {
    static const ls_sampling samplings[] = {{1.0f, 0, 0.9f, 0.0f, 0},  {1.0f, 8, 1.0f, 0.0f, 0},
                                            {1.0f, 0, 1.0f, 0.1f, 0},  {0.7f, 20, 0.9f, 0.02f, 0},
                                            {1.3f, 12, 0.8f, 0.0f, 0}, {1.0f, 1, 1.0f, 0.0f, 0}};
    static const ls_policy_kind policies[] = {LS_LOSS_POLICY_REINFORCE, LS_LOSS_POLICY_PPO};
    (void)state;
    for (size_t i = 0; i < sizeof samplings / sizeof samplings[0]; i++)
        for (int p = 0; p < 2; p++) {
            bandit b;
            double bias, size, ratio, biased, biased_ratio;
            make(&b, 17 + i, samplings[i]);
            measure(&b, policies[p], true, &bias, &size, &ratio);
            measure(&b, policies[p], false, &biased, &size, &biased_ratio);
            print_message(
                "kept mass %.3f, gradient %.4f: bias %.1e, ratio %.6f; without the support %.4f, ratio %.3f\n",
                b.kept_mass, size, bias, ratio, biased, biased_ratio);
            assert_true(bias < 2e-6 && fabs(ratio - 1) < 2e-6);
            assert_true(biased > 0.005 && b.kept_mass < 0.96);
            if (policies[p] == LS_LOSS_POLICY_PPO) assert_true(fabs(biased_ratio - b.kept_mass) < 2e-6);
        }
}

/* Nothing truncated: both are the same, and without bias. */
static void without_truncation_nothing_changes(void **state) {
    bandit b;
    double bias, size, ratio, plain, plain_ratio;
    (void)state;
    make(&b, 5, (ls_sampling){1.0f, 0, 1.0f, 0.0f, 0});
    measure(&b, LS_LOSS_POLICY_PPO, true, &bias, &size, &ratio);
    measure(&b, LS_LOSS_POLICY_PPO, false, &plain, &size, &plain_ratio);
    assert_true(bias == plain && ratio == plain_ratio && bias < 2e-6);
}

/* ---- a model ---- */

enum { SEQUENCES = 2 };

typedef struct learner {
    trained t;
    batch b;
    ls_device *device;
    ls_tape *tape;
    ls_supports *supports;
    float logprob[64], entropy[64];
} learner;

static const ls_sampling model_sampling = {1.5f, 12, 0.97f, 0.001f, 0};

static void learner_open(learner *l) {
    const int64_t lengths[] = {14, 9};
    const ls_tape_opts opts = {LS_F32,          23, SEQUENCES, LS_RECOMPUTE_ALL, model_sampling.temperature, 0, NULL,
                               &model_sampling, 0,  0};
    ls_error err;
    trained_open(&l->t, "jamba-dense");
    batch_make(&l->b, l->t.model, lengths, SEQUENCES, 3);
    l->device = test_device(2, ls_isa_best());
    assert_ok(ls_tape_create(&l->tape, l->t.parameters, l->device, &opts, &err), err);
    assert_ok(ls_supports_create(&l->supports, 23, l->t.model->config.vocab, &err), err);
}

static void learner_close(learner *l) {
    ls_supports_free(l->supports);
    ls_tape_free(l->tape);
    test_device_close(l->device);
    batch_free(&l->b);
    trained_close(&l->t);
}

static double value(learner *l) {
    double sum = 0;
    ls_error err;
    assert_ok(ls_tape_forward(l->tape, l->b.tokens, l->b.offsets, SEQUENCES, &err), err);
    ls_tape_support(l->tape, l->supports, 0, NULL);
    assert_ok(ls_tape_logprob(l->tape, l->b.targets, l->logprob, l->entropy, &err), err);
    for (int64_t r = 0; r < 23; r++)
        if (l->b.targets[r] >= 0)
            sum +=
                (double)l->b.d_logprob[r] * (double)l->logprob[r] + (double)l->b.d_entropy[r] * (double)l->entropy[r];
    return sum;
}

/* Every target becomes a token that its row keeps. */
static void aim_within(learner *l) {
    uint32_t bits[64];
    for (int64_t r = 0; r < 23; r++) {
        int32_t v = (int32_t)(r % 7);
        if (l->b.targets[r] < 0) continue;
        ls_supports_get(l->supports, r, bits);
        while ((bits[v / 32] >> v % 32 & 1u) == 0) v = (v + 1) % l->t.model->config.vocab;
        l->b.targets[r] = v;
    }
}

static void move(learner *l, const ls_parameter *p, const float *from, const float *along, float step) {
    float *at = calloc((size_t)p->n_elements, sizeof *at);
    ls_error err;
    for (int64_t i = 0; i < p->n_elements; i++) at[i] = from[i] + step * along[i];
    assert_ok(ls_memory_write(test_home(), p->master, at, p->n_elements * 4, &err), err);
    assert_ok(ls_parameters_publish(l->t.parameters, &err), err);
    free(at);
}

static void gradients_over_supports_are_differences(void **state) {
    learner l;
    float *gradient, *there;
    int64_t bytes, checked = 0;
    ls_error err;
    (void)state;
    learner_open(&l);
    (void)value(&l); /* finds the supports */
    aim_within(&l);
    (void)value(&l);
    bytes = l.t.parameters->n_elements * 4;
    gradient = malloc((size_t)bytes);
    there = to_device(l.device, NULL, bytes);
    const ls_leaf_part part = {.begin = 0,
                               .end = SEQUENCES,
                               .targets = l.b.targets,
                               .d_logprob = l.b.d_logprob,
                               .d_entropy = l.b.d_entropy,
                               .is_first = true,
                               .is_last = true};
    assert_ok(ls_tape_backward(l.tape, &part, there, &err), err);
    from_device(l.device, gradient, there, bytes);
    ls_memory_free(l.device, there);
    for (int64_t k = 0; k < l.t.parameters->n; k++) {
        const ls_parameter *p = &l.t.parameters->list[k];
        const float *g = gradient + p->offset;
        float *from = malloc((size_t)p->n_elements * 4);
        double squares = 0, difference, step;
        if (k % 5 != 0 && k + 1 != l.t.parameters->n) { /* some will do */
            free(from);
            continue;
        }
        for (int64_t i = 0; i < p->n_elements; i++) squares += (double)g[i] * (double)g[i];
        from_device(test_home(), from, p->master, p->n_elements * 4);
        step = 2e-3 / sqrt(squares);
        move(&l, p, from, g, (float)step);
        difference = value(&l);
        move(&l, p, from, g, (float)-step);
        difference -= value(&l);
        move(&l, p, from, g, 0.0f);
        difference /= 2 * step;
        if (p->dtype == LS_F32 && fabs(difference - squares) > 0.02 * squares)
            fail_msg("%s: along its gradient %g, by differences %g", p->slot.name, squares, difference);
        checked += p->dtype == LS_F32;
        free(from);
    }
    assert_true(checked >= 4);
    free(gradient);
    learner_close(&l);
}

/* A row's support is found once: afterwards the weights may move as they like. */
static void supports_stay(void **state) {
    learner l;
    const ls_parameter *p;
    uint32_t before[64], after[64];
    float *from;
    double moved;
    ls_error err;
    (void)state;
    learner_open(&l);
    (void)value(&l);
    aim_within(&l);
    p = &l.t.parameters->list[0];
    from = malloc((size_t)p->n_elements * 4);
    from_device(test_home(), from, p->master, p->n_elements * 4);
    ls_supports_get(l.supports, 1, before);
    moved = value(&l);
    move(&l, p, from, from, 1.0f);
    assert_true(value(&l) != moved);
    ls_supports_get(l.supports, 1, after);
    assert_memory_equal(before, after, (size_t)l.supports->words * 4);
    ls_supports_clear(l.supports);
    (void)value(&l);
    ls_supports_get(l.supports, 1, after);
    assert_memory_not_equal(before, after, (size_t)l.supports->words * 4);
    move(&l, p, from, from, 0.0f);
    free(from);
    learner_close(&l);
    (void)err;
}

/* Scoring finds the supports of the tape, from the row on that is asked for, however it cuts sequences. */
static void scoring_finds_supports(void **state) {
    learner l;
    ls_supports *found;
    ls_score_item items[SEQUENCES];
    uint32_t want[64], got[64];
    float logprob[SEQUENCES][32];
    int64_t rows = 0;
    ls_error err;
    (void)state;
    learner_open(&l);
    (void)value(&l);
    assert_ok(ls_supports_create(&found, 23, l.t.model->config.vocab, &err), err);
    for (int64_t chunk = 0; chunk <= 6; chunk += 3) {
        const ls_score_opts opts = {.dtype = LS_F32, .batch = SEQUENCES, .chunk = chunk, .page_tokens = 8};
        ls_supports_clear(found);
        for (int64_t s = 0; s < SEQUENCES; s++)
            items[s] = (ls_score_item){.tokens = l.b.tokens + l.b.offsets[s],
                                       .n_tokens = l.b.offsets[s + 1] - l.b.offsets[s],
                                       .of = LS_LOGPROB_PROCESSED,
                                       .sampling = model_sampling,
                                       .logprob = logprob[s],
                                       .supports = {found, l.b.offsets[s], 1 + s}};
        assert_ok(ls_score(l.t.model, l.device, &opts, items, SEQUENCES, &err), err);
        for (int64_t s = 0; s < SEQUENCES; s++)
            for (int64_t i = 0; i + 1 < items[s].n_tokens; i++) {
                const int64_t row = l.b.offsets[s] + i;
                assert_int_equal(ls_supports_has(found, row), i > s);
                if (i <= s || !ls_supports_has(l.supports, row)) continue;
                ls_supports_get(l.supports, row, want);
                ls_supports_get(found, row, got);
                assert_memory_equal(want, got, (size_t)found->words * sizeof *want);
                rows++;
            }
    }
    assert_true(rows > 30);
    ls_supports_free(found);
    learner_close(&l);
}

/* Lists of ids and rows of bits give back what was put, other supports as well. */
static void supports_keep_lists_and_bits(void **state) {
    enum { VOCAB = 1000, WORDS = 32 };
    ls_supports *s, *others;
    ls_error err;
    uint32_t bits[WORDS], back[WORDS];
    uint64_t seed = 9;
    (void)state;
    assert_ok(ls_supports_create(&s, 40, VOCAB, &err), err);
    assert_ok(ls_supports_create(&others, 40, VOCAB, &err), err);
    for (int round = 0; round < 2; round++) {
        for (int64_t row = 39; row >= 0; row--) {
            memset(bits, 0, sizeof bits);
            seed = (uint64_t)(row * 2 + round) * 2 + 1;
            for (int64_t i = 0; i < row * 2; i++) {
                const uint64_t v = test_random(&seed) % VOCAB;
                bits[v / 32] |= UINT32_C(1) << v % 32;
            }
            assert_false(ls_supports_has(s, row));
            assert_ok(ls_supports_put(s, row, bits, &err), err);
            ls_supports_get(s, row, back);
            assert_memory_equal(bits, back, sizeof bits);
            const ls_support_row of = ls_supports_row(s, row);
            assert_ok(ls_supports_put_row(others, 39 - row, &of, &err), err);
            ls_supports_get(others, 39 - row, back);
            assert_memory_equal(bits, back, sizeof bits);
        }
        assert_true(s->used < (int64_t)40 * WORDS && others->used == s->used);
        ls_supports_clear(s);
        ls_supports_clear(others);
    }
    ls_supports_free(s);
    ls_supports_free(others);
}

static void numbers_that_are_no_support_are_refused(void **state) {
    enum { VOCAB = 70 };
    static const uint32_t ids[] = {3, 9, 69}, beyond[] = {3, 70}, back[] = {9, 3}, twice[] = {3, 3},
                          words[] = {7, 0, 1}, fewer[] = {1, 0, 1};
    static const struct {
        ls_support_row of;
        bool is_one;
    } cases[] = {{{2, 2, ids}, true},     {{0, 0, ids}, true},    {{4, 3, words}, true}, {{2, 2, beyond}, false},
                 {{2, 2, back}, false},   {{2, 2, twice}, false}, {{2, 1, ids}, false},  {{-1, 0, ids}, false},
                 {{71, 3, words}, false}, {{4, 2, words}, false}, {{4, 3, fewer}, false}};
    ls_supports *s;
    ls_error err;
    (void)state;
    assert_ok(ls_supports_create(&s, 16, VOCAB, &err), err);
    assert_int_equal(s->words, 3);
    for (int64_t i = 0; i < (int64_t)(sizeof cases / sizeof cases[0]); i++) {
        const ls_status status = ls_supports_put_row(s, i, &cases[i].of, &err);
        assert_int_equal(status == LS_OK, cases[i].is_one);
        assert_int_equal(ls_supports_has(s, i), cases[i].is_one);
    }
    check_failed(ls_supports_put_row(s, 7, &cases[3].of, &err), &err, "row 7: its numbers are no support");
    ls_supports_free(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_estimator_is_unbiased_with_the_support_alone),
        cmocka_unit_test(without_truncation_nothing_changes),
        cmocka_unit_test(gradients_over_supports_are_differences),
        cmocka_unit_test(supports_stay),
        cmocka_unit_test(scoring_finds_supports),
        cmocka_unit_test(supports_keep_lists_and_bits),
        cmocka_unit_test(numbers_that_are_no_support_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
