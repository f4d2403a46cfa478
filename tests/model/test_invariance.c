/* No lever reaches a bit: generation and scoring under every lever reproduce one baseline, token by token and bit by
 * bit.
 *
 * The baseline of a fixture and activation type is 16 prompts of 1 to 48 tokens, 4 samples each, 64 tokens each at
 * temperature 1 without stop tokens: 4,096 generated tokens, made at batch 16, chunk 256, pages of 16, 2 threads and
 * the best instruction set. For each instruction set, one test then runs
 *   - on 16 of the 64 requests with 32 tokens each (512 tokens; alone, and so in other company than in the baseline),
 * the whole product batch {1, 3, 16} x chunk {1, 2, 5, 64, whole} x threads {1, 2}: 30 runs, of the engine and of
 * scoring in turn, the ones with f32 activations where the others are with bf16. Pages of 1, 16 and 64, shuffled
 * admission and scattered slots in a larger pool go round within the product.
 *   - on all 4,096 tokens, the covering sets below, in which each value of each lever occurs: 6 runs of the engine, 5
 * of scoring, and one of each packed with sequences that have nothing to do with the baseline. The generic set is the
 * slowest. It runs batch x chunk as a chequerboard, the engine on one colour and scoring on the other, with thread
 * counts in turn, on 3, 6 and 16 requests for batch 1, 3 and 16, with 8 tokens each (128 at batch 16); and all 4,096
 * tokens once generated and once scored (of jamba-bf16, the largest, 1,024). All of it for 4 fixtures, f32 and bf16
 * activations: 24 tests. An instruction set that the processor lacks shows as skipped. With LS_TEST_DEVICE the same
 * runs are made on that device, once for each fixture and type and not for each instruction set, and recordings take
 * the place of the second thread: 8 tests, and the 24 show as skipped. The last tests are controls: what the comparison
 * says when something did change. */
#include <math.h>

#include "invariance.h"

#define N_PROMPTS 16
#define N_SAMPLES 4
#define N_TOKENS 64
#define N_SUBSET 16
#define N_SUBSET_TOKENS 32
#define N_SUBSET_TOKENS_SLOW 8
#define COUNT(array) ((int64_t)(sizeof(array) / sizeof(array)[0]))

static const levers baseline_levers = {16, 256, 16, 2, 0, false, 0};

static const levers covering_generate[] = {
    {1, WHOLE, 64, 2, 31, true, 4}, {3, 5, 1, 1, 32, true, 8},    {16, 1, 16, 2, 0, false, 2},
    {16, 2, 64, 1, 33, false, 1},   {16, 64, 1, 2, 34, true, 64}, {3, WHOLE, 16, 2, 0, true, 0},
};

static const levers covering_score[] = {
    {1, WHOLE, 16, 1, 0, false, 0}, {3, 1, 64, 2, 0, false, 0},  {16, 2, 1, 2, 0, false, 0},
    {16, 5, 16, 1, 0, false, 0},    {3, 64, 64, 2, 0, false, 0},
};

typedef struct baseline {
    fixture f;
    bool made;
    request_set set;
} baseline;

typedef struct invariance_case {
    const char *fixture;
    ls_dtype dtype;
    ls_isa isa;
    int32_t baseline_i;
} invariance_case;

#define N_BASELINES 8
static baseline baselines[N_BASELINES];

static baseline *baseline_of(const invariance_case *c) {
    baseline *b = &baselines[c->baseline_i];
    ls_device *device;
    if (b->made) return b;
    device = test_device(2, ls_isa_best());
    fixture_open(&b->f, c->fixture);
    set_make(&b->set, b->f.model->config.vocab, N_PROMPTS, N_SAMPLES, PROMPT_MAX, N_TOKENS, 1 + (uint64_t)c->baseline_i,
             0);
    generate(b->f.model, device, c->dtype, &baseline_levers, &plain_sampling, &b->set);
    test_device_close(device);
    b->made = true;
    return b;
}

typedef struct runner {
    const invariance_case *c;
    const baseline *b;
    ls_device *devices[3]; /* by threads */
} runner;

static void generate_again(const runner *r, const levers *l, request_set *set) {
    differences d;
    generate(r->b->f.model, r->devices[l->threads], r->c->dtype, l, &plain_sampling, set);
    d = compare_sets(&r->b->set, set);
    must_agree(&d, set->n * set->max_tokens, "generate", l);
}

static void score_again(const runner *r, const levers *l, const request_set *set, int64_t n_extra) {
    differences d;
    int64_t row;
    float *scores = score(r->b->f.model, r->devices[l->threads], r->c->dtype, l, &plain_sampling, set, set->max_tokens,
                          n_extra, &row);
    d = compare_scores(set, scores, row, set->max_tokens);
    free(scores);
    must_agree(&d, set->n * set->max_tokens, "score", l);
}

/* Batch, chunk and threads in all combinations; the other levers in turn. */
static void whole_product(const runner *r) {
    static const int64_t batches[] = {1, 3, 16}, chunks[] = {1, 2, 5, 64, WHOLE}, pages[] = {1, 16, 64};
    static const int64_t n_slow[] = {3, 6, 16};
    const bool slow = r->c->isa == LS_ISA_GENERIC, bf16 = r->c->dtype == LS_BF16;
    const int64_t n_tokens = slow ? N_SUBSET_TOKENS_SLOW : N_SUBSET_TOKENS;
    request_set set, known; /* one to generate, one to score */
    uint64_t turn = 0;
    set_pick(&set, &r->b->set, N_SUBSET, n_tokens);
    set_pick(&known, &r->b->set, N_SUBSET, n_tokens);
    set_fill(&known, &r->b->set);
    for (int64_t i = 0; i < COUNT(batches); i++)
        for (int64_t j = 0; j < COUNT(chunks); j++)
            for (int32_t threads = 1; threads <= 2; threads++, turn++) {
                const levers l = {batches[i],   chunks[j],        pages[turn % 3], threads, turn % 2 == 0 ? 0 : turn,
                                  turn % 4 < 2, (int64_t)turn % 5};
                if (slow) {
                    if (threads != 1 + (int32_t)(j / 2 % 2)) continue;
                    set.n = known.n = n_slow[i];
                }
                if (slow ? (i + j) % 2 == 0 : (i + j + threads + bf16) % 2 == 0)
                    generate_again(r, &l, &set);
                else if (!test_defers() || threads == 1) /* scoring records nothing */
                    score_again(r, &l, &known, 0);
            }
    set_free(&known);
    set_free(&set);
}

/* Every second request of the batch is a stranger, with other prompts, addresses and lengths. */
static void with_neighbours(const runner *r, const levers *l) {
    const request_set *mine = &r->b->set;
    request_set others, both;
    differences d;
    set_make(&others, r->b->f.model->config.vocab, 16, 4, PROMPT_MAX, N_TOKENS, 99, 5000);
    set_alloc(&both, mine->n + others.n, N_TOKENS);
    for (int64_t i = 0; i < mine->n; i++) {
        set_borrow(&both, 2 * i, &mine->requests[i]);
        set_borrow(&both, 2 * i + 1, &others.requests[i]);
        both.requests[2 * i + 1].max_tokens = 1 + i % N_TOKENS;
    }
    generate(r->b->f.model, r->devices[l->threads], r->c->dtype, l, &plain_sampling, &both);
    d = compare_sets(mine, &both);
    must_agree(&d, mine->n * N_TOKENS, "generate with neighbours", l);
    set_free(&both);
    set_free(&others);
}

static void all_tokens(const runner *r) {
    static const levers packed = {16, 64, 16, 2, 55, true, 3};
    const bool slow = r->c->isa == LS_ISA_GENERIC, large = strcmp(r->c->fixture, "jamba-bf16") == 0;
    const int64_t n = slow && large ? r->b->set.n / 4 : r->b->set.n;
    request_set set, known;
    set_pick(&set, &r->b->set, n, N_TOKENS);
    set_pick(&known, &r->b->set, n, N_TOKENS);
    set_fill(&known, &r->b->set);
    if (slow) {
        generate_again(r, &packed, &set);
        score_again(r, &packed, &known, 0);
    } else {
        for (int64_t i = 0; i < COUNT(covering_generate); i++) generate_again(r, &covering_generate[i], &set);
        for (int64_t i = 0; i < COUNT(covering_score); i++) score_again(r, &covering_score[i], &known, 0);
        score_again(r, &packed, &known, 40);
        with_neighbours(r, &packed);
    }
    set_free(&known);
    set_free(&set);
}

static void no_lever_reaches_a_bit(void **state) {
    const invariance_case *c = *state;
    runner r = {.c = c};
    skip_elsewhere(c->isa);
    r.b = baseline_of(c);
    r.devices[1] = test_device(1, c->isa);
    r.devices[2] = test_device(2, c->isa);
    whole_product(&r);
    all_tokens(&r);
    test_device_close(r.devices[1]);
    test_device_close(r.devices[2]);
}

/* Controls. A comparison that cannot fail shows nothing, so each of these must be found, and found in the right place.
 */

static void control_finds_one_flipped_bit(void **state) {
    const invariance_case *c = *state;
    const baseline *b = baseline_of(c);
    request_set set;
    uint32_t bits;
    differences d;
    set_alloc(&set, b->set.n, N_TOKENS);
    for (int64_t i = 0; i < set.n; i++) set_borrow(&set, i, &b->set.requests[i]);
    set_fill(&set, &b->set);
    d = compare_sets(&b->set, &set);
    must_agree(&d, set.n * N_TOKENS, "a copy", &baseline_levers);

    memcpy(&bits, &set.logprobs[37 * N_TOKENS + 5], sizeof bits);
    bits ^= 1;
    memcpy(&set.logprobs[37 * N_TOKENS + 5], &bits, sizeof bits);
    d = compare_sets(&b->set, &set);
    assert_true(d.n_logprobs == 1 && d.n_tokens == 0 && d.first_request == 37 && d.first_token == 5);
    assert_int_equal(d.bits_got, bits);

    set.completions[12 * N_TOKENS + 63] ^= 1;
    d = compare_sets(&b->set, &set);
    assert_true(d.n_logprobs == 1 && d.n_tokens == 1 && d.first_request == 12 && d.first_token == 63);
    set_free(&set);
}

static void put_weight(float *weight, float value) {
    ls_error err;
    assert_ok(ls_memory_write(test_home(), weight, &value, sizeof value, &err), err);
    assert_ok(ls_device_wait(test_home(), &err), err);
}

/* One weight of one norm vector, one unit in the last place up. */
static void control_finds_one_ulp_of_a_norm(void **state) {
    const invariance_case *c = *state;
    const baseline *b = baseline_of(c);
    ls_device *device = test_device(2, ls_isa_best());
    float *weight = &b->f.model->final_norm[3], kept, changed;
    request_set set;
    differences generated, scored;
    float *scores;
    int64_t row;
    set_pick(&set, &b->set, N_SUBSET, N_SUBSET_TOKENS);
    from_device(test_home(), &kept, weight, sizeof kept);
    changed = nextafterf(kept, INFINITY);
    put_weight(weight, changed);
    generate(b->f.model, device, c->dtype, &baseline_levers, &plain_sampling, &set);
    generated = compare_sets(&b->set, &set);
    put_weight(weight, kept);
    /* set now holds what the changed model recorded; the model as it is must not confirm it */
    scores = score(b->f.model, device, c->dtype, &baseline_levers, &plain_sampling, &set, N_SUBSET_TOKENS, 0, &row);
    scored = compare_scores(&set, scores, row, N_SUBSET_TOKENS);
    print_message("%s: one ulp of one weight changes %lld and %lld of %d log-probabilities\n", c->fixture,
                  (long long)generated.n_logprobs, (long long)scored.n_logprobs, N_SUBSET * N_SUBSET_TOKENS);
    assert_true(generated.n_logprobs > 0 && generated.first_request >= 0);
    assert_true(scored.n_logprobs > 0 && scored.first_request >= 0);
    free(scores);
    set_free(&set);
    test_device_close(device);
}

static int free_baselines(void **state) {
    (void)state;
    for (int32_t i = 0; i < N_BASELINES; i++) {
        if (!baselines[i].made) continue;
        set_free(&baselines[i].set);
        fixture_close(&baselines[i].f);
    }
    return 0;
}

/* One row a fixture, activation type and instruction set; names are words, so that a skipped one can be listed. */
#define CASE(name, directory, type, set, i)                                                      \
    {                                                                                            \
        name, no_lever_reaches_a_bit, NULL, NULL, &(invariance_case) { directory, type, set, i } \
    }
#define CASES(label, directory, type, i)                                                                              \
    CASE(label "_generic", directory, type, LS_ISA_GENERIC, i), CASE(label "_avx2", directory, type, LS_ISA_AVX2, i), \
        CASE(label "_avx512", directory, type, LS_ISA_AVX512, i),                                                     \
        CASE(label "_device", directory, type, LS_ISA_COUNT, i)
#define CONTROL(test, label, directory, i)                                                             \
    {                                                                                                  \
#test "_" label, test, NULL, NULL, &(invariance_case) { directory, LS_F32, LS_ISA_GENERIC, i } \
    }

int main(void) {
    const struct CMUnitTest tests[] = {
        CASES("dense_f32", "jamba-dense", LS_F32, 0),
        CASES("dense_bf16", "jamba-dense", LS_BF16, 1),
        CASES("moe_f32", "jamba-moe", LS_F32, 2),
        CASES("moe_bf16", "jamba-moe", LS_BF16, 3),
        CASES("bf16_f32", "jamba-bf16", LS_F32, 4),
        CASES("bf16_bf16", "jamba-bf16", LS_BF16, 5),
        CASES("odd_f32", "jamba-odd", LS_F32, 6),
        CASES("odd_bf16", "jamba-odd", LS_BF16, 7),
        CONTROL(control_finds_one_flipped_bit, "dense", "jamba-dense", 0),
        CONTROL(control_finds_one_ulp_of_a_norm, "dense", "jamba-dense", 0),
        CONTROL(control_finds_one_ulp_of_a_norm, "moe", "jamba-moe", 2),
        CONTROL(control_finds_one_ulp_of_a_norm, "bf16", "jamba-bf16", 4),
        CONTROL(control_finds_one_ulp_of_a_norm, "odd", "jamba-odd", 6),
    };
    return cmocka_run_group_tests(tests, NULL, free_baselines);
}
