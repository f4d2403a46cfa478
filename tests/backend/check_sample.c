/* Processing of logits and choice of tokens through the device interface, on the reference and on the device under
 * test. */
#include <math.h>

#include "op/sample.h"
#include "op/support.h"
#include "sides.h"

/* ---- values ---- */

typedef float maker(uint64_t *seed);

/* Sums of uniform numbers: a bell, as logits are. */
static float bell(uint64_t *seed) {
    float x = 0.0f;
    for (int i = 0; i < 4; i++) x += test_uniform(seed, -3.0f, 3.0f);
    return x;
}
static float flat(uint64_t *seed) {
    (void)seed;
    return 0.25f;
}
/* Nearly flat: chains of top_p as long as they get. */
static float narrow(uint64_t *seed) { return test_uniform(seed, -0.5f, 0.5f); }
static float wide(uint64_t *seed) { return test_uniform(seed, -120.0f, 120.0f); }
/* Many equals, both zeros among them. */
static float level(uint64_t *seed) {
    static const float levels[] = {-0.0f, 0.0f, 0.5f, -1.0f, 1.0f, 1.0000001f, -30.0f, -INFINITY};
    return levels[test_random(seed) % 8];
}
/* Numbers of every kind that a row may have without being refused. */
static float odd(uint64_t *seed) {
    static const float values[] = {-0.0f, 0.0f, 1e-45f, -1e-45f, -1e-39f, 0x1p-126f, -3e38f, -INFINITY};
    const uint64_t choice = test_random(seed) % 20;
    return choice < 8 ? values[choice] : bell(seed);
}
/* At most a few above -inf. */
static float sparse(uint64_t *seed) { return test_random(seed) % 50 == 0 ? bell(seed) : -INFINITY; }
/* One far above the others, whose terms count for little or nothing. */
static float peaked(uint64_t *seed) {
    return test_random(seed) % 1000 == 0 ? test_uniform(seed, 10.0f, 10.1f) : test_uniform(seed, -20.0f, -2.0f);
}

static maker *const makers[] = {bell, narrow, flat, wide, level, odd, sparse, peaked};

/* What a row may have in one place. */
static const float spoilers[] = {NAN, INFINITY, 3.4e38f, -INFINITY};

static float *make_logits(int64_t rows, int64_t vocab, uint64_t seed) {
    float *x = bk_alloc(rows * vocab * 4);
    seed = seed * 2 + 1;
    for (int64_t r = 0; r < rows; r++) {
        maker *make = makers[(r + (int64_t)(seed / 2)) % BK_COUNT(makers)];
        for (int64_t i = 0; i < vocab; i++) x[r * vocab + i] = make(&seed);
    }
    return x;
}

/* ---- a problem ---- */

typedef struct problem {
    int64_t rows, vocab;
    bool in_place, with_kept, with_mask;
    int64_t offset; /* bytes from an aligned address */
} problem;

typedef struct buffers {
    sides_buffer logits, sampling, mask, out, kept, space, draws, token;
} buffers;

static buffers put(sides *d, const problem *p, const float *logits, const ls_sampling *sampling, uint64_t seed) {
    uint8_t *mask = bk_alloc(p->rows);
    ls_draw *draws = bk_alloc(p->rows * (int64_t)sizeof *draws);
    for (int64_t r = 0; r < p->rows; r++) {
        const ls_draw draw = {(uint32_t)(seed * 77 + (uint64_t)r), (uint32_t)r % 3, (uint32_t)(seed + 5)};
        draws[r] = draw;
        mask[r] = (uint8_t)(r % 3 != 1 ? r + 1 : 0);
    }
    const buffers b = {sides_put(d, "logits", logits, p->rows * p->vocab * 4, p->offset),
                       sides_in(d, "sampling", sampling, p->rows * (int64_t)sizeof *sampling),
                       sides_put(d, "mask", mask, p->rows, 1),
                       sides_put(d, "out", NULL, p->rows * p->vocab * 4, (p->offset + 4) % 8),
                       sides_out(d, "kept", p->rows * 8),
                       sides_put(d, "sort space", NULL, p->rows * p->vocab * 8, 4),
                       sides_put(d, "draws", draws, p->rows * (int64_t)sizeof *draws, 4),
                       sides_out(d, "token", p->rows * 8)};
    free(mask);
    free(draws);
    return b;
}

static void process(sides *d, const problem *p, const buffers *b) {
    SIDES_CALL(d, process, .logits = b->logits.at[s], .rows = p->rows, .vocab = p->vocab, .sampling = b->sampling.at[s],
               .mask = p->with_mask ? b->mask.at[s] : NULL, .out = p->in_place ? b->logits.at[s] : b->out.at[s],
               .kept = p->with_kept ? b->kept.at[s] : NULL, .sort_space = b->space.at[s]);
}

/* Processes, compares everything but the sort space, and draws where every row has its number kept. */
static void check(bk_run *run, const problem *p, const float *logits, const ls_sampling *sampling, uint64_t seed) {
    sides d = sides_open(run);
    const buffers b = put(&d, p, logits, sampling, seed);
    const sides_buffer *processed = p->in_place ? &b.logits : &b.out;
    const char *const what = "rows %lld, vocabulary %lld, number %lld";
#define SAME(buffer, elem) \
    sides_same(&d, (buffer), (elem), what, (long long)p->rows, (long long)p->vocab, (long long)seed)
    for (int again = 0; again < (p->in_place ? 1 : 2); again++) {
        process(&d, p, &b);
        SAME(processed, 4);
        SAME(&b.kept, 8);
    }
    SAME(&b.logits, 4);
    if (p->with_kept && !p->with_mask) {
        SIDES_CALL(&d, sample, .processed = processed->at[s], .rows = p->rows, .vocab = p->vocab, .kept = b.kept.at[s],
                   .sampling = b.sampling.at[s], .draws = b.draws.at[s], .token = b.token.at[s]);
        SAME(&b.token, 8);
    }
#undef SAME
    sides_close(&d);
}

/* Row r of number i has options of its own. */
static ls_sampling options(int64_t i, int64_t vocab) {
    static const float temperatures[] = {1.0f, 0.7f, 0.0f, 1.3f, 1.0f, 1e-3f, 40.0f, 1.0f, 0.9f};
    static const float top_ps[] = {1.0f, 0.9f, 0.5f, 0.99999f, 1e-30f, 0.99999994f, 0.1f};
    static const float min_ps[] = {0.0f, 0.0f, 0.05f, 1e-6f, 1.0f};
    const int64_t top_ks[] = {0, 0, 50, 1, 2, vocab - 1, vocab, vocab + 9, vocab / 2, 3, 1000};
    const ls_sampling s = {temperatures[i % BK_COUNT(temperatures)], top_ks[i * 3 % BK_COUNT(top_ks)],
                           top_ps[i * 5 % BK_COUNT(top_ps)], min_ps[i % BK_COUNT(min_ps)],
                           (uint64_t)i * 0x9E3779B97F4A7C15u};
    return s;
}

static void check_options(bk_run *run, const problem *p, uint64_t seed) {
    float *logits = make_logits(p->rows, p->vocab, seed);
    ls_sampling *sampling = bk_alloc(p->rows * (int64_t)sizeof *sampling);
    for (int64_t r = 0; r < p->rows; r++) sampling[r] = options((int64_t)seed * 13 + r, p->vocab);
    check(run, p, logits, sampling, seed);
    free(logits);
    free(sampling);
}

/* ---- supports and penalties ---- */

static void check_support(bk_run *run, int64_t rows, int64_t vocab, uint64_t seed) {
    sides d = sides_open(run);
    float *logits = make_logits(rows, vocab, seed), *others = make_logits(rows, vocab, seed + 1);
    const sides_buffer from = sides_put(&d, "processed", logits, rows * vocab * 4, 4 * (int64_t)(seed % 3)),
                       to = sides_put(&d, "logits", others, rows * vocab * 4, 0),
                       bits = sides_out(&d, "bits", rows * ls_support_words(vocab) * 4);
    const char *const what = "support, vocabulary %lld";
    SIDES_CALL(&d, support, .logits = from.at[s], .rows = rows, .vocab = vocab, .bits = bits.at[s], .apply = false);
    sides_same(&d, &bits, 4, what, (long long)vocab);
    sides_same(&d, &from, 4, what, (long long)vocab);
    SIDES_CALL(&d, support, .logits = to.at[s], .rows = rows, .vocab = vocab, .bits = bits.at[s], .apply = true);
    sides_same(&d, &to, 4, what, (long long)vocab);
    sides_close(&d);
    free(logits);
    free(others);
}

/* Rows of no item, of all tokens, and of some; penalties of all kinds; then all of it taken back. */
static void check_penalize(bk_run *run, int64_t rows, int64_t vocab, uint64_t seed) {
    static const ls_penalties kinds[] = {
        {1.0f, 0.0f, 0.0f}, {1.3f, 0.0f, 0.0f}, {0.7f, 0.3f, -1.5f}, {1.0f, 2.5f, 0.1f}, {1e-3f, -1e3f, 1e6f}};
    const int64_t items_max = rows * vocab;
    sides d = sides_open(run);
    float *logits = make_logits(rows, vocab, seed);
    ls_penalties *penalties = bk_alloc(rows * (int64_t)sizeof *penalties);
    ls_penalty_item *items = bk_alloc(items_max * (int64_t)sizeof *items);
    int64_t *begins = bk_alloc((rows + 1) * 8), n = 0;
    begins[0] = 0;
    for (int64_t r = 0; r < rows; r++) {
        penalties[r] = kinds[(r + (int64_t)seed) % BK_COUNT(kinds)];
        for (int64_t v = vocab - 1; v >= 0 && r % 4 != 0; v -= r % 4)
            items[n++] = (ls_penalty_item){(int32_t)v, (int32_t)((v + r) % 5)};
        begins[r + 1] = n;
    }
    {
        const int64_t bytes = rows * vocab * 4;
        const sides_buffer at = sides_put(&d, "logits", logits, bytes, 4 * (int64_t)(seed % 3)),
                           p = sides_in(&d, "penalties", penalties, rows * (int64_t)sizeof *penalties),
                           b = sides_in(&d, "begins", begins, (rows + 1) * 8),
                           list = sides_in(&d, "items", items, items_max * (int64_t)sizeof *items),
                           saved = sides_out(&d, "saved", items_max * 4);
        const char *const what = "penalties, vocabulary %lld, undone %lld";
        for (int undo = 0; undo < 2; undo++) {
            SIDES_CALL(&d, penalize, .logits = at.at[s], .rows = rows, .vocab = vocab, .penalties = p.at[s],
                       .begins = b.at[s], .items = list.at[s], .saved = saved.at[s], .items_max = items_max,
                       .undo = undo == 1);
            sides_same(&d, &at, 4, what, (long long)vocab, (long long)undo);
            sides_same(&d, &saved, 4, what, (long long)vocab, (long long)undo);
        }
    }
    sides_close(&d);
    free(logits);
    free(penalties);
    free(items);
    free(begins);
}

static void supports_and_penalties(bk_run *run) {
    static const int64_t vocabs[] = {1, 31, 32, 33, 257, 1000, 4096};
    for (int64_t i = 0; i < BK_COUNT(vocabs); i++) {
        if (run->small && vocabs[i] > 300) continue;
        check_support(run, 1 + i * 2, vocabs[i], (uint64_t)i);
        check_penalize(run, 2 + i * 2, vocabs[i], (uint64_t)i);
    }
}

/* ---- cases ---- */

static void every_vocabulary(bk_run *run) {
    static const int64_t vocabs[] = {1, 2, 3, 4, 5, 31, 32, 33, 63, 64, 100, 255, 257, 1000, 1023, 1024, 1025, 2051};
    for (int64_t i = 0; i < 4 * BK_COUNT(vocabs); i++) {
        const problem p = {i % 7 + (i < 4 ? 9 : 3), vocabs[i / 4], i % 2 == 1, true, false, i % 4 * 4};
        if (run->small && p.vocab > 300) continue;
        check_options(run, &p, (uint64_t)i);
    }
}

static void every_option(bk_run *run) {
    static const problem p = {60, 700, false, true, false, 4};
    for (int64_t i = 0; i < bk_size(run, 2, 8, 40); i++) check_options(run, &p, (uint64_t)i + 100);
}

static void large_vocabularies(bk_run *run) {
    const int64_t vocabs[] = {4097, 8192, 8193, 20000, 65536, 262144, 151936, 65539};
    for (int64_t i = 0; i < bk_size(run, 1, 5, BK_COUNT(vocabs)); i++) {
        const problem p = {bk_size(run, 2, i < 4 ? 9 : 3, 24), vocabs[i], i % 2 == 1, true, false, i % 3 * 4};
        check_options(run, &p, (uint64_t)i + 200);
    }
}

/* One step of the chain for each of nearly equal terms, over several tiles. */
static void long_chains(bk_run *run) {
    static maker *const long_makers[] = {narrow, flat, bell, level};
    const int64_t vocab = bk_size(run, 600, 20001, 100003);
    for (int64_t i = 0; i < BK_COUNT(long_makers); i++) {
        const problem p = {4, vocab, false, true, false, 0};
        float *logits = bk_alloc(p.rows * vocab * 4);
        ls_sampling sampling[4];
        uint64_t seed = (uint64_t)i + 1;
        for (int64_t k = 0; k < p.rows * vocab; k++) logits[k] = long_makers[i](&seed);
        for (int64_t r = 0; r < 4; r++)
            sampling[r] = (ls_sampling){1.0f, r == 3 ? vocab / 3 : 0,
                                        r == 0   ? 0.5f
                                        : r == 1 ? 0.9999999f
                                                 : 0.95f,
                                        0.0f, (uint64_t)i};
        check(run, &p, logits, sampling, (uint64_t)i + 300);
        free(logits);
    }
}

/* Rows that the mask leaves alone, and no number kept. */
static void masks(bk_run *run) {
    for (int64_t i = 0; i < 8; i++) {
        const problem p = {11, 130, i % 2 == 1, i / 2 % 2 == 1, i / 4 == 0, 4};
        check_options(run, &p, (uint64_t)i + 400);
    }
}

/* NaN, +inf, what overflows and what is nowhere, at the start, the end and in between. */
static void rows_that_keep_nothing(bk_run *run) {
    enum { VOCAB = 1500 };
    const int64_t at[] = {0, 1, 31, 700, 1023, 1024, VOCAB - 1};
    for (int64_t i = 0; i < 3 * BK_COUNT(at); i++) {
        const problem p = {12, VOCAB, i % 2 == 1, true, false, 4};
        float *logits = bk_alloc(p.rows * VOCAB * 4);
        ls_sampling sampling[12];
        uint64_t seed = (uint64_t)i + 1;
        for (int64_t k = 0; k < p.rows * VOCAB; k++) logits[k] = k / VOCAB % 6 == 5 ? -INFINITY : bell(&seed);
        for (int64_t r = 0; r < p.rows; r++) {
            const float temperature = i % 3 == 0 ? 1.0f : i % 3 == 1 ? 0.5f : 0.0f;
            sampling[r] = (ls_sampling){temperature, r % 2 * 5, r % 3 == 0 ? 0.9f : 1.0f, 0.01f, 3};
            if (r % 6 < 4) logits[r * VOCAB + at[i / 3]] = spoilers[r % 6];
        }
        check(run, &p, logits, sampling, (uint64_t)i + 500);
        free(logits);
    }
}

static void no_rows(bk_run *run) {
    const problem p = {0, 77, false, true, false, 0};
    check_options(run, &p, 1);
}

/* Draws from what no processing made: kept says none or some, whatever lies in the row. */
static void draws(bk_run *run) {
    static const int64_t vocabs[] = {1, 3, 4, 6, 129, 4095, 4096, 4100, 12289};
    for (int64_t i = 0; i < 3 * BK_COUNT(vocabs); i++) {
        const problem p = {bk_size(run, 5, 40, 300), vocabs[i / 3], true, true, false, i % 3 * 4};
        if (run->small && p.vocab > 300) continue;
        sides d = sides_open(run);
        float *logits = make_logits(p.rows, p.vocab, (uint64_t)i);
        ls_sampling *sampling = bk_alloc(p.rows * (int64_t)sizeof *sampling);
        int64_t *kept = bk_alloc(p.rows * 8);
        for (int64_t r = 0; r < p.rows; r++) {
            sampling[r] = (ls_sampling){r % 4 == 0 ? 0.0f : 1.0f, 0, 1.0f, 0.0f, (uint64_t)(i * 1000 + r)};
            kept[r] = r % 5 == 4 ? -(r % 2) : 1 + r;
        }
        const buffers b = put(&d, &p, logits, sampling, (uint64_t)i);
        const sides_buffer counts = sides_in(&d, "kept", kept, p.rows * 8);
        for (int again = 0; again < 2; again++) {
            SIDES_CALL(&d, sample, .processed = b.logits.at[s], .rows = p.rows, .vocab = p.vocab, .kept = counts.at[s],
                       .sampling = b.sampling.at[s], .draws = b.draws.at[s], .token = b.token.at[s]);
            sides_same(&d, &b.token, 8, "draws %lld", (long long)i);
        }
        free(logits);
        free(sampling);
        free(kept);
        sides_close(&d);
    }
}

int main(int argc, char **argv) {
    static const bk_case cases[] = {
        {"every vocabulary", every_vocabulary, BK_ANYWHERE},
        {"every option", every_option, BK_ANYWHERE},
        {"large vocabularies", large_vocabularies, BK_ANYWHERE},
        {"long chains", long_chains, BK_ANYWHERE},
        {"masks", masks, BK_ANYWHERE},
        {"rows that keep nothing", rows_that_keep_nothing, BK_ANYWHERE},
        {"no rows", no_rows, BK_ANYWHERE},
        {"draws", draws, BK_ANYWHERE},
        {"supports and penalties", supports_and_penalties, BK_ANYWHERE},
    };
    return bk_main(argc, argv, cases, BK_COUNT(cases));
}
