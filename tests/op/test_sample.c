/* Choosing tokens against a textbook reading of the contract: kept sets and draws in bits, sets against brute force in
 * float64, frequencies against exact probabilities, the random words against published vectors. */
#include <float.h>

#include "base/rng.h"
#include "op/op_case.h"
#include "op/philox_ref.h"
#include "op/sample.h"

/* ---- the textbook ---- */

/* Wrong on purpose: the higher id first among equals, top_p passed instead of reached, min_p before top_p, position and
 * prompt swapped in the counter, words taken from the id without the division by four. */
typedef enum variant { RIGHT, HIGHER_FIRST, TOP_P_PASSED, MIN_P_FIRST, COUNTER_SWAPPED, WORDS_SHIFTED } variant;

typedef struct entry {
    float z;
    int64_t id;
} entry;

static int compare_up(const void *a, const void *b) {
    const entry *x = a, *y = b;
    if (x->z != y->z) return x->z > y->z ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

static int compare_down(const void *a, const void *b) {
    const entry *x = a, *y = b;
    if (x->z != y->z) return x->z > y->z ? -1 : 1;
    return x->id > y->id ? -1 : x->id < y->id;
}

static float weight_ref(const entry *kept, int64_t i) { return ls_exp(ls_sub(kept[i].z, kept[0].z)); }

static int64_t top_p_ref(const entry *kept, int64_t n, float top_p, variant v) {
    float total = 0.0f, sum = 0.0f, goal;
    for (int64_t i = 0; i < n; i++) total = ls_add(total, weight_ref(kept, i));
    goal = ls_mul(top_p, total);
    for (int64_t i = 0; i < n; i++) {
        sum = ls_add(sum, weight_ref(kept, i));
        if (v == TOP_P_PASSED ? sum > goal : sum >= goal) return i + 1;
    }
    return n;
}

static int64_t min_p_ref(const entry *kept, int64_t n, float min_p) {
    int64_t i = 0;
    while (i < n && weight_ref(kept, i) >= min_p) i++;
    return i;
}

static int64_t process_ref(float *out, const float *logits, int64_t vocab, const ls_sampling *s, variant v) {
    const float inv_t = s->temperature == 0.0f ? 1.0f : ls_div(1.0f, s->temperature);
    entry *kept = op_alloc(vocab * (int64_t)sizeof *kept);
    int64_t n = 0;
    for (int64_t i = 0; i < vocab; i++) {
        const float z = s->temperature == 0.0f || s->temperature == 1.0f ? logits[i] : ls_mul(logits[i], inv_t);
        out[i] = -INFINITY;
        if (z > -INFINITY) kept[n++] = (entry){z, i};
    }
    qsort(kept, (size_t)n, sizeof *kept, v == HIGHER_FIRST ? compare_down : compare_up);
    if (s->temperature != 0.0f) {
        if (s->top_k > 0 && s->top_k < n) n = s->top_k;
        if (v == MIN_P_FIRST && s->min_p > 0.0f) n = min_p_ref(kept, n, s->min_p);
        if (s->top_p < 1.0f) n = top_p_ref(kept, n, s->top_p, v);
        if (v != MIN_P_FIRST && s->min_p > 0.0f) n = min_p_ref(kept, n, s->min_p);
    }
    for (int64_t i = 0; i < n; i++) out[kept[i].id] = kept[i].z;
    free(kept);
    return n;
}

static int32_t sample_ref(const float *z, int64_t vocab, const ls_sampling *s, const ls_draw *draw, variant v) {
    int64_t best = -1;
    float best_value = -INFINITY;
    for (int64_t i = 0; i < vocab; i++) {
        float value = z[i];
        if (!(z[i] > -INFINITY)) continue;
        if (s->temperature != 0.0f) {
            const uint32_t id = (uint32_t)i / (v == WORDS_SHIFTED ? 1u : 4u);
            const uint32_t counter[4] = {id, v == COUNTER_SWAPPED ? draw->prompt : draw->position, draw->sample,
                                         v == COUNTER_SWAPPED ? draw->position : draw->prompt};
            uint32_t word[4];
            float u;
            philox_ref(word, counter, s->seed);
            u = ls_mul(ls_add((float)(word[i % 4] >> 9), 0.5f), 0x1p-23f);
            value = ls_add(z[i], -ls_log(-ls_log(u)));
        }
        if (best < 0 || value > best_value || (v == HIGHER_FIRST && value == best_value)) {
            best = i;
            best_value = value;
        }
    }
    return (int32_t)best;
}

static ls_isa used; /* by the case that runs */

/* One row; the number kept. */
static int64_t process(float *out, const float *logits, int64_t vocab, const ls_sampling *s) {
    int32_t *sort_space = op_alloc(2 * vocab * 4); /* exact: a sanitizer sees a step beyond */
    int64_t kept = -1;
    const ls_process_args args = {logits, 1, vocab, s, NULL, out, &kept, sort_space};
    ls_error err;
    assert_ok(ls_process(op_devices[used][0], &args, &err), err);
    free(sort_space);
    return kept;
}

/* One row of processed logits, of which those above -inf are kept; the token. */
static int64_t sample(const float *processed, int64_t vocab, const ls_sampling *s, const ls_draw *draw) {
    int64_t kept = 0, token = -7;
    const ls_sample_args args = {processed, 1, vocab, &kept, s, draw, &token};
    ls_error err;
    for (int64_t i = 0; i < vocab; i++) kept += processed[i] > -INFINITY;
    assert_ok(ls_sample(op_devices[used][0], &args, &err), err);
    return token;
}

static const ls_sampling plain = {1.0f, 0, 1.0f, 0.0f, 1};

/* ---- random words ---- */

static void words_are_the_published_ones(void **state) {
    /* Random123's known answers: zeros, ones, the digits of pi. */
    const struct {
        uint32_t counter[4], key[2], word[4];
    } known[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    (void)state;
    for (int64_t i = 0; i < OP_COUNT(known); i++) {
        const uint64_t key = known[i].key[0] | (uint64_t)known[i].key[1] << 32;
        const uint32_t *c = known[i].counter;
        const ls_philox got = ls_philox_draw(key, c[0], c[1], c[2], c[3]);
        uint32_t word[4];
        philox_ref(word, c, key);
        assert_memory_equal(word, known[i].word, sizeof word);
        assert_memory_equal(got.word, known[i].word, sizeof word);
    }
}

/* ---- kept sets ---- */

/* Rows: spread, level (many ties), with -inf, all equal, one far above the rest. */
static void fill_row(float *logits, int64_t vocab, int64_t kind, uint64_t *seed) {
    for (int64_t i = 0; i < vocab; i++) {
        const float x = test_uniform(seed, -6.0f, 6.0f);
        logits[i] = kind == 1 ? (float)(int32_t)x * 0.5f : kind == 3 ? -0.25f : x;
        if (kind == 2 && test_random(seed) % 3 == 0) logits[i] = -INFINITY;
        if (kind == 4 && i == vocab / 2) logits[i] = 300.0f;
        if (kind == 5) logits[i] = x < 0.0f ? -0.0f : x < 4.0f ? 0.0f : -FLT_MAX;
    }
}
#define KINDS 6

static ls_sampling random_sampling(uint64_t *seed, int64_t vocab) {
    const float temperatures[] = {1.0f, 0.7f, 1.5f, 0.1f, 100.0f}, top_ps[] = {1.0f, 0.9f, 0.5f, 0.1f, 0.99999f, 1e-9f};
    const float min_ps[] = {0.0f, 0.05f, 0.3f, 1.0f, 1e-6f};
    const int64_t top_ks[] = {0, 1, 2, 5, 50, vocab - 1, vocab, vocab + 1, INT64_MAX};
    ls_sampling s;
    s.temperature = temperatures[test_random(seed) % 5];
    s.top_k = test_random(seed) % 2 ? 0 : top_ks[test_random(seed) % 9];
    s.top_p = test_random(seed) % 2 ? 1.0f : top_ps[test_random(seed) % 6];
    s.min_p = test_random(seed) % 2 ? 0.0f : min_ps[test_random(seed) % 5];
    s.seed = test_random(seed);
    return s;
}

static void kept_sets_equal_the_textbook(void **state) {
    used = op_isa(state); /* first: it may leave the case */
    const int64_t vocabs[] = {1, 2, 3, 7, 16, 17, 255, 256, 257, 1000, 4097};
    uint64_t seed = 5;
    for (int64_t n = 0; n < OP_COUNT(vocabs); n++)
        for (int64_t i = 0; i < 300; i++) {
            const int64_t vocab = vocabs[n];
            const ls_sampling s = random_sampling(&seed, vocab);
            float *logits = op_alloc(vocab * 4), *out = op_alloc(vocab * 4), *expected = op_alloc(vocab * 4);
            int64_t n_kept, n_expected;
            fill_row(logits, vocab, i % KINDS, &seed);
            n_expected = process_ref(expected, logits, vocab, &s, RIGHT);
            n_kept = process(out, logits, vocab, &s);
            if (n_kept != n_expected)
                fail_msg("vocab %lld kind %lld t %g k %lld p %g min %g: %lld kept, expected %lld", (long long)vocab,
                         (long long)(i % KINDS), (double)s.temperature, (long long)s.top_k, (double)s.top_p,
                         (double)s.min_p, (long long)n_kept, (long long)n_expected);
            if (n_kept > 0) assert_same_bits(out, expected, vocab);
            assert_int_equal(process(logits, logits, vocab, &s), n_kept); /* in place */
            if (n_kept > 0) assert_same_bits(logits, expected, vocab);
            free(logits);
            free(out);
            free(expected);
        }
}

static void large_vocabulary_equals_the_textbook(void **state) {
    used = op_isa(state); /* first: it may leave the case */
    enum { VOCAB = 151936 };
    float *logits = op_alloc(VOCAB * 4), *out = op_alloc(VOCAB * 4), *expected = op_alloc(VOCAB * 4);
    const ls_sampling settings[] = {{0.8f, 0, 0.95f, 0.0f, 7}, {1.0f, 1000, 0.9f, 0.01f, 7}, {1.0f, 0, 1.0f, 0.0f, 9}};
    uint64_t seed = 3;
    for (int64_t i = 0; i < OP_COUNT(settings); i++) {
        const ls_draw draw = {1, 2, 3};
        fill_row(logits, VOCAB, i, &seed);
        assert_int_equal(process(out, logits, VOCAB, &settings[i]),
                         process_ref(expected, logits, VOCAB, &settings[i], RIGHT));
        assert_same_bits(out, expected, VOCAB);
        assert_int_equal(sample(out, VOCAB, &settings[i], &draw),
                         sample_ref(expected, VOCAB, &settings[i], &draw, RIGHT));
    }
    free(logits);
    free(out);
    free(expected);
}

/* The set by float64: of exact softmax weights, in order. A token whose decision lies within 1e-6 of the border may go
 * either way, and such rows are few. */
static void kept_sets_are_what_the_names_say(void **state) {
    used = op_isa(state); /* first: it may leave the case */
    enum { VOCAB = 60, ROWS = 2000 };
    float logits[VOCAB], out[VOCAB];
    int64_t borderline = 0, cut = 0;
    uint64_t seed = 12;
    for (int64_t i = 0; i < ROWS; i++) {
        const ls_sampling s = random_sampling(&seed, VOCAB);
        entry order[VOCAB];
        double total = 0.0, before = 0.0;
        int64_t n = 0, kept = 0;
        bool border = false;
        fill_row(logits, VOCAB, i % 3, &seed);
        for (int64_t id = 0; id < VOCAB; id++)
            if (logits[id] > -INFINITY) order[n++] = (entry){logits[id], id};
        qsort(order, (size_t)n, sizeof order[0], compare_up);
        if (s.top_k > 0 && s.top_k < n) n = s.top_k;
        for (int64_t j = 0; j < n; j++) total += exp(((double)order[j].z - order[0].z) / s.temperature);
        process(out, logits, VOCAB, &s);
        for (int64_t j = 0; j < n; j++) {
            const double w = exp(((double)order[j].z - order[0].z) / s.temperature);
            /* A token belongs to the shortest prefix when those before it have not reached top_p yet. */
            const bool in_p = j == 0 || s.top_p == 1.0f || before < s.top_p * total, in_min = w >= s.min_p;
            const bool near_p = j > 0 && s.top_p < 1.0f && fabs(before / total - s.top_p) < 1e-6;
            const bool near_min = s.min_p > 0.0f && fabs(w / s.min_p - 1.0) < 1e-6 && w != 1.0;
            border = border || near_p || near_min;
            if (!near_p && !near_min && (out[order[j].id] > -INFINITY) != (in_p && in_min))
                fail_msg("row %lld: token %lld, number %lld in order", (long long)i, (long long)order[j].id,
                         (long long)j);
            kept += out[order[j].id] > -INFINITY;
            before += w;
        }
        for (int64_t id = 0; id < VOCAB; id++) kept -= out[id] > -INFINITY;
        assert_int_equal(kept, 0); /* none outside top_k */
        borderline += border;
        cut += s.top_k > 0 || s.top_p < 1.0f || s.min_p > 0.0f;
    }
    print_message("%lld of %lld cut rows had a token at the border\n", (long long)borderline, (long long)cut);
    assert_true(borderline < cut / 10);
}

static void ties_keep_the_lower_id(void **state) {
    used = op_isa(state); /* first: it may leave the case */
    const float logits[] = {1.0f, 2.0f, 2.0f, 0.0f, 2.0f, -0.0f};
    float out[6];
    ls_sampling s = plain;
    s.top_k = 2;
    assert_int_equal(process(out, logits, 6, &s), 2);
    assert_true(out[1] == 2.0f && out[2] == 2.0f && out[4] == -INFINITY);
    s.top_k = 5; /* +0 and -0 are equal: id 3 before id 5 */
    assert_int_equal(process(out, logits, 6, &s), 5);
    assert_true(out[3] == 0.0f && out[5] == -INFINITY);
    s.top_k = 3;
    s.top_p = 0.6f; /* a third each: two reach it */
    assert_int_equal(process(out, logits, 6, &s), 2);
    assert_true(out[1] == 2.0f && out[2] == 2.0f && out[4] == -INFINITY);
    s.top_k = 0;
    s.top_p = 1.0f;
    s.min_p = 1.0f;
    assert_int_equal(process(out, logits, 6, &s), 3);
}

/* Rows that hold no choice, and what comes of them. */
static void rows_without_a_token(void **state) {
    used = op_isa(state); /* first: it may leave the case */
    const ls_draw draw = {0, 0, 0};
    const float poison[] = {NAN, INFINITY, -NAN};
    float logits[5], out[5];
    for (int64_t greedy = 0; greedy < 2; greedy++) {
        ls_sampling s = plain;
        if (greedy) s.temperature = 0.0f;
        for (int64_t i = 0; i < 5; i++) logits[i] = -INFINITY;
        assert_int_equal(process(out, logits, 5, &s), 0);
        assert_int_equal(ls_bits(out[0]), 0x7FC00000u);
        assert_int_equal(sample(out, 5, &s, &draw), -1);
        assert_int_equal(sample(logits, 5, &s, &draw), -1);
        for (int64_t i = 0; i < OP_COUNT(poison); i++)
            for (int64_t at = 0; at < 5; at++) {
                for (int64_t j = 0; j < 5; j++) logits[j] = (float)j;
                logits[at] = poison[i];
                assert_int_equal(process(out, logits, 5, &s), 0);
                assert_int_equal(ls_bits(out[0]), 0x7FC00000u);
            }
        /* 10 / 1e-38 overflows: z has no largest value then; greedy does not divide. */
        s.temperature = greedy ? 0.0f : 1e-38f;
        for (int64_t i = 0; i < 5; i++) logits[i] = i < 2 ? 10.0f : -1.0f;
        assert_int_equal(process(out, logits, 5, &s), greedy ? 5 : 0);
        s.temperature = greedy ? 0.0f : 1.0f;
        for (int64_t i = 0; i < 5; i++) logits[i] = i == 3 ? -FLT_MAX : -INFINITY;
        assert_int_equal(process(out, logits, 5, &s), 1);
        assert_int_equal(sample(out, 5, &s, &draw), 3);
    }
}

/* ---- draws ---- */

static void greedy_takes_the_largest_lower_first(void **state) {
    used = op_isa(state); /* first: it may leave the case */
    uint64_t seed = 4;
    for (int64_t i = 0; i < 500; i++) {
        const ls_draw draw = {(uint32_t)i, 1, 2};
        ls_sampling s = random_sampling(&seed, 33);
        float logits[33], out[33];
        int64_t best = -1, finite = 0;
        s.temperature = 0.0f;
        fill_row(logits, 33, i % KINDS, &seed);
        for (int64_t id = 0; id < 33; id++) {
            finite += logits[id] > -INFINITY;
            if (logits[id] > -INFINITY && (best < 0 || logits[id] > logits[best])) best = id;
        }
        /* All are kept, whatever the other fields say; bits as they came. */
        assert_int_equal(process(out, logits, 33, &s), finite);
        assert_same_bits(out, logits, 33);
        assert_int_equal(sample(out, 33, &s, &draw), best);
    }
}

static int64_t draw_diffs(variant v, int64_t n) {
    int64_t diffs = 0;
    uint64_t seed = 44;
    for (int64_t i = 0; i < n; i++) {
        const int64_t vocab = 1 + (int64_t)(test_random(&seed) % 70);
        const ls_sampling s = random_sampling(&seed, vocab);
        const ls_draw draw = {(uint32_t)(test_random(&seed) >> 40), (uint32_t)(test_random(&seed) >> 61),
                              (uint32_t)(test_random(&seed) >> 32)};
        float logits[70], out[70], expected[70];
        fill_row(logits, vocab, i % KINDS, &seed);
        process(out, logits, vocab, &s);
        process_ref(expected, logits, vocab, &s, v);
        diffs += sample(out, vocab, &s, &draw) != sample_ref(expected, vocab, &s, &draw, v);
    }
    return diffs;
}

static void draws_equal_the_textbook(void **state) {
    used = op_isa(state); /* first: it may leave the case */
    assert_int_equal(draw_diffs(RIGHT, 5000), 0);
}

/* A token loses or wins by its own word: taking away others that lost, or adding tokens that cannot win, changes
 * nothing, nor does the place of the row or the order of the draws. */
static void draws_depend_on_nothing_else(void **state) {
    used = op_isa(state); /* first: it may leave the case */
    enum { VOCAB = 50, WIDE = 90, DRAWS = 300 };
    float logits[VOCAB], out[VOCAB], wide[WIDE + 3], fewer[VOCAB];
    int64_t first[DRAWS];
    uint64_t seed = 6;
    ls_sampling s = plain;
    s.seed = 99;
    fill_row(logits, VOCAB, 0, &seed);
    assert_int_equal(process(out, logits, VOCAB, &s), VOCAB);
    for (uint32_t i = 0; i < DRAWS; i++) {
        const ls_draw draw = {i % 7, i % 3, i};
        first[i] = sample(out, VOCAB, &s, &draw);
    }
    for (uint32_t i = DRAWS; i-- > 0;) {
        const ls_draw draw = {i % 7, i % 3, i};
        for (int64_t j = 0; j < WIDE; j++) wide[3 + j] = j < VOCAB ? out[j] : -INFINITY;
        for (int64_t j = 0; j < VOCAB; j++) fewer[j] = j == first[i] || test_random(&seed) % 2 ? out[j] : -INFINITY;
        assert_int_equal(sample(wide + 3, WIDE, &s, &draw), first[i]);
        assert_int_equal(sample(fewer, VOCAB, &s, &draw), first[i]);
    }
}

/* ---- rows together ---- */

enum { TOGETHER = 23, TOGETHER_VOCAB = 67 };

typedef struct batch {
    ls_sampling sampling[TOGETHER];
    ls_draw draws[TOGETHER];
    uint8_t mask[TOGETHER];
    float logits[TOGETHER * TOGETHER_VOCAB], expected[TOGETHER * TOGETHER_VOCAB];
    int64_t kept[TOGETHER], token[TOGETHER]; /* expected; of rows that the mask leaves alone -9 and -1 */
} batch;

static void batch_make(batch *b, bool masked, uint64_t seed) {
    memset(b->expected, OP_GUARD, sizeof b->expected);
    for (int64_t r = 0; r < TOGETHER; r++) {
        float *logits = b->logits + r * TOGETHER_VOCAB, *expected = b->expected + r * TOGETHER_VOCAB;
        b->sampling[r] = random_sampling(&seed, TOGETHER_VOCAB);
        if (r % 6 == 0) b->sampling[r].temperature = 0.0f;
        b->draws[r] = (ls_draw){(uint32_t)r % 3, (uint32_t)r % 2, (uint32_t)(test_random(&seed) >> 40)};
        b->mask[r] = !masked || r % 4 != 1;
        fill_row(logits, TOGETHER_VOCAB, r % KINDS, &seed);
        if (r % 7 == 3) logits[r] = NAN; /* a row that holds no choice */
        b->kept[r] = -9;
        b->token[r] = -1;
        if (!b->mask[r]) continue;
        b->kept[r] = 0;
        if (r % 7 != 3) b->kept[r] = process_ref(expected, logits, TOGETHER_VOCAB, &b->sampling[r], RIGHT);
        if (b->kept[r] == 0)
            expected[0] = ls_from_bits(0x7FC00000u);
        else
            b->token[r] = sample_ref(expected, TOGETHER_VOCAB, &b->sampling[r], &b->draws[r], RIGHT);
    }
}

/* Rows of a batch are the rows alone, with their own settings; those that the mask leaves out are not touched. */
static void batches_equal_their_rows(void **state) {
    const ls_isa isa = op_isa(state);
    static batch b;
    static float out[TOGETHER * TOGETHER_VOCAB];
    int32_t *sort_space = op_alloc(2 * TOGETHER * TOGETHER_VOCAB * 4);
    int64_t n_drawn = 0;
    for (int64_t i = 0; i < 40; i++)
        for (int32_t t = 0; t < OP_THREADS_MAX; t++) {
            int64_t kept[TOGETHER], token[TOGETHER];
            const bool masked = i % 2 == 1, unasked = i % 5 == 4;
            ls_process_args process_args = {b.logits, TOGETHER, TOGETHER_VOCAB, b.sampling, masked ? b.mask : NULL,
                                            out,      kept,     sort_space};
            const ls_sample_args sample_args = {out, TOGETHER, TOGETHER_VOCAB, kept, b.sampling, b.draws, token};
            ls_error err;
            batch_make(&b, masked, (uint64_t)i + 1);
            memset(out, OP_GUARD, sizeof out);
            for (int64_t r = 0; r < TOGETHER; r++) kept[r] = token[r] = -9;
            if (unasked) process_args.kept = NULL;
            assert_ok(ls_process(op_devices[isa][t], &process_args, &err), err);
            for (int64_t r = 0; r < TOGETHER; r++) {
                /* Of a row that holds no choice only the first entry is promised. */
                const int64_t n = b.kept[r] == 0 ? 1 : TOGETHER_VOCAB;
                assert_same_bits(out + r * TOGETHER_VOCAB, b.expected + r * TOGETHER_VOCAB, n);
                assert_int_equal(kept[r], unasked ? -9 : b.kept[r]);
            }
            assert_ok(ls_sample(op_devices[isa][t], &sample_args, &err), err);
            for (int64_t r = 0; r < TOGETHER; r++) assert_int_equal(token[r], unasked ? -1 : b.token[r]);
            for (int64_t r = 0; r < TOGETHER; r++) n_drawn += token[r] >= 0;
        }
    assert_true(n_drawn > 1000);
    free(sort_space);
}

static void bad_batches_are_named(void **state) {
    static batch b;
    float out[TOGETHER_VOCAB];
    int32_t sort_space[2 * TOGETHER_VOCAB];
    int64_t kept = -9, token = -9;
    ls_error err;
    (void)state;
    batch_make(&b, false, 1);
    memset(out, OP_GUARD, sizeof out);
#define PROCESS(word, ...)                                                                              \
    do {                                                                                                \
        ls_process_args args = {b.logits, 1, TOGETHER_VOCAB, b.sampling, NULL, out, &kept, sort_space}; \
        __VA_ARGS__;                                                                                    \
        check_failed(ls_process(op_devices[0][0], &args, &err), &err, "process: " word);                \
    } while (0)
#define SAMPLE(word, ...)                                                                          \
    do {                                                                                           \
        ls_sample_args args = {b.expected, 1, TOGETHER_VOCAB, &kept, b.sampling, b.draws, &token}; \
        __VA_ARGS__;                                                                               \
        check_failed(ls_sample(op_devices[0][0], &args, &err), &err, "sample: " word);             \
    } while (0)
    PROCESS("logits is a null", args.logits = NULL);
    PROCESS("sampling is a null", args.sampling = NULL);
    PROCESS("out is a null", args.out = NULL);
    PROCESS("sort_space is a null", args.sort_space = NULL);
    PROCESS("-1 rows of 67", args.rows = -1);
    PROCESS("1 rows of 0", args.vocab = 0);
    PROCESS("logits: 9223372036854775807 rows", args.rows = INT64_MAX);
    SAMPLE("processed is a null", args.processed = NULL);
    SAMPLE("kept is a null", args.kept = NULL);
    SAMPLE("sampling is a null", args.sampling = NULL);
    SAMPLE("draws is a null", args.draws = NULL);
    SAMPLE("token is a null", args.token = NULL);
    SAMPLE("-7 rows of 67", args.rows = -7);
    SAMPLE("1 rows of -1", args.vocab = -1);
#undef PROCESS
#undef SAMPLE
    assert_true(kept == -9 && token == -9);
    for (int64_t i = 0; i < TOGETHER_VOCAB; i++) assert_int_equal(ls_bits(out[i]), OP_GUARD * 0x01010101u);
}

/* Pearson's statistic of 200,000 draws along one field of the counter. Fixed seeds: the same number on every run. */
static double chi_square(int field, const ls_sampling *s, const float *logits, int64_t vocab, int64_t *cells) {
    enum { DRAWS = 200000, VOCAB_MAX = 16 };
    float out[VOCAB_MAX];
    double p[VOCAB_MAX], total = 0.0, statistic = 0.0;
    int64_t count[VOCAB_MAX] = {0};
    process(out, logits, vocab, s);
    for (int64_t i = 0; i < vocab; i++) total += p[i] = exp((double)out[i]);
    for (uint32_t i = 0; i < DRAWS; i++) {
        const ls_draw draw = {field == 0 ? i : 5, field == 1 ? i : 6, field == 2 ? i : 7};
        ls_sampling with = *s;
        if (field == 3) with.seed = i;
        count[sample(out, vocab, &with, &draw)]++;
    }
    *cells = 0;
    for (int64_t i = 0; i < vocab; i++) {
        const double expected = p[i] / total * DRAWS;
        if (expected == 0.0) assert_int_equal(count[i], 0);
        if (expected == 0.0) continue;
        statistic += ((double)count[i] - expected) * ((double)count[i] - expected) / expected;
        (*cells)++;
    }
    return statistic;
}

static void frequencies_are_the_probabilities(void **state) {
    used = op_isa(state); /* first: it may leave the case */
    const float logits[] = {0.0f, 1.0f, -1.0f, 2.0f, 0.5f, -2.0f, 1.5f, 0.0f, -4.0f, 0.3f};
    /* The 1 - 1e-4 quantile of chi-square for 3 to 9 degrees of freedom. */
    const double quantile[] = {0, 0, 0, 21.11, 23.51, 25.74, 27.86, 29.88, 31.83, 33.72};
    for (int field = 0; field < 4; field++) {
        ls_sampling s = {field == 1 ? 0.7f : 1.0f, field == 2 ? 5 : 0, field == 3 ? 0.9f : 1.0f, 0.0f,
                         123456789012345u};
        int64_t cells;
        const double statistic = chi_square(field, &s, logits, OP_COUNT(logits), &cells);
        print_message("field %d: chi-square %.2f with %lld cells\n", field, statistic, (long long)cells);
        assert_true(cells >= 4 && statistic < quantile[cells - 1]);
    }
}

/* Draws at neighbouring positions, and tokens that share a Philox block, are independent: pairs fill 64 cells evenly.
 */
static void neighbouring_draws_are_independent(void **state) {
    used = op_isa(state); /* first: it may leave the case */
    enum { PAIRS = 100000, N = 8 };
    float out[N] = {0};
    int64_t count[N][N] = {{0}};
    double statistic = 0.0;
    for (uint32_t i = 0; i < PAIRS; i++) {
        const ls_draw a = {1, 2, 2 * i}, b = {1, 2, 2 * i + 1};
        count[sample(out, N, &plain, &a)][sample(out, N, &plain, &b)]++;
    }
    for (int64_t i = 0; i < N * N; i++) {
        const double d = (double)count[i / N][i % N] - (double)PAIRS / (N * N);
        statistic += d * d * (N * N) / PAIRS;
    }
    print_message("chi-square %.2f with 64 cells\n", statistic);
    assert_true(statistic < 110.0); /* 1 - 1e-4 quantile at 63 degrees: 112.1 */
}

/* ---- arguments and the comparison itself ---- */

static void bad_settings_are_named(void **state) {
    const struct {
        ls_sampling s;
        const char *field;
    } bad[] = {
        {{-0.1f, 0, 1.0f, 0.0f, 1}, "temperature"},
        {{NAN, 0, 1.0f, 0.0f, 1}, "temperature"},
        {{INFINITY, 0, 1.0f, 0.0f, 1}, "temperature"},
        {{1.0f, -1, 1.0f, 0.0f, 1}, "top_k"},
        {{1.0f, 0, 0.0f, 0.0f, 1}, "top_p"},
        {{1.0f, 0, 1.5f, 0.0f, 1}, "top_p"},
        {{1.0f, 0, NAN, 0.0f, 1}, "top_p"},
        {{1.0f, 0, -1.0f, 0.0f, 1}, "top_p"},
        {{1.0f, 0, 1.0f, -0.5f, 1}, "min_p"},
        {{1.0f, 0, 1.0f, 1.1f, 1}, "min_p"},
        {{1.0f, 0, 1.0f, NAN, 1}, "min_p"},
    };
    const ls_sampling good[] = {{0.0f, 0, 1.0f, 0.0f, 0}, {1e-30f, INT64_MAX, 1e-30f, 1.0f, UINT64_MAX}};
    ls_error err;
    (void)state;
    for (int64_t i = 0; i < OP_COUNT(bad); i++) check_failed(ls_sampling_check(&bad[i].s, &err), &err, bad[i].field);
    for (int64_t i = 0; i < OP_COUNT(good); i++) assert_ok(ls_sampling_check(&good[i], &err), err);
}

static void variants_are_caught(void **state) {
    used = op_isa(state); /* first: it may leave the case */
    const variant wrong[] = {HIGHER_FIRST, COUNTER_SWAPPED, WORDS_SHIFTED};
    const float logits[] = {0.0f, 0.0f, 0.0f, 0.0f, -1.0f};
    ls_sampling s = {1.0f, 4, 0.5f, 0.0f, 1};
    float out[5], expected[5];
    for (int64_t i = 0; i < OP_COUNT(wrong); i++)
        if (draw_diffs(wrong[i], 2000) < 10) fail_msg("variant %d is not seen", (int)wrong[i]);
    /* Four equal tokens: two reach one half exactly, and do not pass it. */
    assert_int_equal(process(out, logits, 5, &s), 2);
    assert_int_equal(process_ref(expected, logits, 5, &s, RIGHT), 2);
    assert_int_equal(process_ref(expected, logits, 5, &s, TOP_P_PASSED), 3);
    /* Without the token that min_p takes away, three tokens reach top_p; with it, four. */
    s = (ls_sampling){1.0f, 0, 0.74f, 0.5f, 1};
    assert_int_equal(process(out, logits, 5, &s), process_ref(expected, logits, 5, &s, RIGHT));
    assert_int_not_equal(process(out, logits, 5, &s), process_ref(expected, logits, 5, &s, MIN_P_FIRST));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words_are_the_published_ones),
        OP_CASES(kept_sets_equal_the_textbook),
        OP_CASES(large_vocabulary_equals_the_textbook),
        OP_CASES(kept_sets_are_what_the_names_say),
        OP_CASES(ties_keep_the_lower_id),
        OP_CASES(rows_without_a_token),
        OP_CASES(greedy_takes_the_largest_lower_first),
        OP_CASES(draws_equal_the_textbook),
        OP_CASES(draws_depend_on_nothing_else),
        OP_CASES(batches_equal_their_rows),
        OP_CASES(frequencies_are_the_probabilities),
        OP_CASES(neighbouring_draws_are_independent),
        cmocka_unit_test(bad_settings_are_named),
        cmocka_unit_test(bad_batches_are_named),
        OP_CASES(variants_are_caught),
    };
    return cmocka_run_group_tests(tests, op_open, op_close);
}
