/* Problems for the log-probability programs: rows of every kind the contract tells apart, their results by the CPU
 * contract, and batches put together from such known rows. */
#ifndef LS_TESTS_LOGPROB_CASE_H
#define LS_TESTS_LOGPROB_CASE_H

#include <float.h>
#include <math.h>

#include "backend.h"
#include "num/half.h"

#define IGNORED (-100)
#define NEAR_BORDER 64.0f      /* |z| up to here: a leaf in one pass */
#define LOGIT_LIMIT 1048576.0f /* 2^20: above it a row is NaN */
#define LEAVES_OF(vocab) (((vocab) + LS_LOGPROB_LEAF - 1) / LS_LOGPROB_LEAF)

static const ls_dtype logit_types[] = {LS_F32, LS_BF16, LS_F16};
#define LOGIT_TYPES BK_COUNT(logit_types)

/* Inputs on the host, rows without gaps. */
typedef struct problem {
    ls_dtype dtype;
    int64_t rows, vocab;
    uint8_t *logits; /* [rows][vocab] */
    int64_t *targets;
    uint8_t *mask;
    float *temperature;
} problem;

/* Three floats a row, compared as bits. */
typedef struct row_result {
    float logprob, lse, entropy;
} row_result;
#define RESULT_FLOATS 3

static inline problem problem_alloc(ls_dtype dtype, int64_t rows, int64_t vocab) {
    problem p = {dtype, rows, vocab, NULL, NULL, NULL, NULL};
    p.logits = bk_alloc(rows * vocab * ls_dtype_bytes(dtype));
    p.targets = bk_alloc(rows * (int64_t)sizeof *p.targets);
    p.mask = bk_alloc(rows);
    p.temperature = bk_alloc(rows * (int64_t)sizeof *p.temperature);
    for (int64_t r = 0; r < rows; r++) {
        p.targets[r] = 0;
        p.mask[r] = 1;
        p.temperature[r] = 1.0f;
    }
    return p;
}

static inline void problem_free(problem *p) {
    free(p->logits);
    free(p->targets);
    free(p->mask);
    free(p->temperature);
}

static inline int64_t row_bytes(const problem *p) { return p->vocab * ls_dtype_bytes(p->dtype); }
static inline uint8_t *row_at(const problem *p, int64_t row) { return p->logits + row * row_bytes(p); }

static inline void logit_put(const problem *p, int64_t row, int64_t i, float x) {
    const uint16_t half = p->dtype == LS_BF16 ? ls_f32_to_bf16(x) : ls_f32_to_f16(x);
    if (p->dtype == LS_F32)
        memcpy(row_at(p, row) + 4 * i, &x, sizeof x);
    else
        memcpy(row_at(p, row) + 2 * i, &half, sizeof half);
}

static inline float logit_get(const problem *p, int64_t row, int64_t i) {
    float x;
    uint16_t half;
    if (p->dtype == LS_F32) {
        memcpy(&x, row_at(p, row) + 4 * i, sizeof x);
        return x;
    }
    memcpy(&half, row_at(p, row) + 2 * i, sizeof half);
    return p->dtype == LS_BF16 ? ls_bf16_to_f32(half) : ls_f16_to_f32(half);
}

/* ---- rows of many kinds ---- */

typedef enum row_kind {
    ROW_PLAIN,    /* +-8 */
    ROW_STEEP,    /* +-40 */
    ROW_BORDER,   /* around +-64, where near leaves end */
    ROW_FAR,      /* up to 2^20 */
    ROW_ONE_FAR,  /* one leaf is far, the others near */
    ROW_FLAT,     /* all equal */
    ROW_DENORMAL, /* subnormals and zeros of both signs */
    ROW_HOLES,    /* a third is -inf */
    ROW_DEAD_LEAF,
    ROW_LOWEST, /* the most negative finite value here and there */
    ROW_AT_LIMIT,
    ROW_ALL_INF, /* the result of this one and of those below is NaN */
    ROW_BELOW_LIMIT,
    ROW_ABOVE_LIMIT,
    ROW_NAN,
    ROW_INF,
    ROW_KINDS
} row_kind;
#define ROW_KINDS_FINITE ROW_ALL_INF

static inline float row_value(row_kind kind, bool in_leaf, int64_t i, uint64_t *seed) {
    const uint64_t dice = test_random(seed);
    const float steep = test_uniform(seed, -40.0f, 40.0f);
    switch (kind) {
        case ROW_PLAIN: return steep * 0.2f;
        case ROW_BORDER:
            if (dice % 64 == 0) return dice % 128 == 0 ? NEAR_BORDER : -NEAR_BORDER;
            return in_leaf && dice % 64 == 1 ? 64.5f : steep * 1.6f;
        case ROW_FAR: return steep * 20000.0f;
        case ROW_ONE_FAR: return in_leaf ? steep * 1000.0f : steep;
        case ROW_FLAT: return 3.25f;
        case ROW_DENORMAL: return dice % 4 == 0 ? -0.0f : steep * 0x1p-142f;
        case ROW_HOLES: return dice % 3 == 0 ? -INFINITY : steep;
        case ROW_DEAD_LEAF: return in_leaf ? -INFINITY : steep;
        case ROW_LOWEST: return in_leaf || i % 5 == 0 ? -FLT_MAX : steep;
        case ROW_ALL_INF: return -INFINITY;
        case ROW_BELOW_LIMIT: return -1.5f * LOGIT_LIMIT - (float)i;
        default: return steep;
    }
}

/* One value lies in an otherwise steep row. */
static inline float row_odd_value(row_kind kind, float plain) {
    switch (kind) {
        case ROW_AT_LIMIT: return LOGIT_LIMIT;
        case ROW_ABOVE_LIMIT: return LOGIT_LIMIT * 1.01f;
        case ROW_NAN: return NAN;
        case ROW_INF: return INFINITY;
        default: return plain;
    }
}

static inline void row_fill(const problem *p, int64_t row, row_kind kind, uint64_t *seed) {
    const uint64_t leaf = test_random(seed) % (uint64_t)LEAVES_OF(p->vocab);
    const int64_t odd = (int64_t)(test_random(seed) % (uint64_t)p->vocab);
    for (int64_t i = 0; i < p->vocab; i++)
        logit_put(p, row, i, row_value(kind, (uint64_t)(i / LS_LOGPROB_LEAF) == leaf, i, seed));
    logit_put(p, row, odd, row_odd_value(kind, logit_get(p, row, odd)));
    p->targets[row] = (int64_t)(test_random(seed) % (uint64_t)p->vocab);
}

/* Rows of all kinds in turn, with or without temperatures of all sizes. */
static inline problem problem_make(ls_dtype dtype, int64_t rows, int64_t vocab, bool temperatures, uint64_t seed) {
    static const float sizes[] = {1.0f, 0.7f, 2.0f, 1e-3f, 1e30f, 1.3f, 0x1p-149f, FLT_MAX, 0.1f};
    problem p = problem_alloc(dtype, rows, vocab);
    seed = seed * 2654435761u + 1;
    for (int64_t r = 0; r < rows; r++) {
        row_fill(&p, r, (row_kind)(r % ROW_KINDS), &seed);
        if (temperatures) p.temperature[r] = sizes[test_random(&seed) % (uint64_t)BK_COUNT(sizes)];
    }
    return p;
}

/* ---- the op, by the reference and on the back end under test ---- */

static inline void results_join(row_result *out, const float *logprob, const float *lse, const float *entropy,
                                int64_t rows) {
    for (int64_t r = 0; r < rows; r++) out[r] = (row_result){logprob[r], lse[r], entropy[r]};
}

static inline void problem_reference(bk_run *run, const problem *p, row_result *out) {
    float *outputs = bk_alloc(RESULT_FLOATS * p->rows * 4);
    const ls_logprob_args args = {.logits = p->logits,
                                  .dtype = p->dtype,
                                  .rows = p->rows,
                                  .vocab = p->vocab,
                                  .row_stride = p->vocab,
                                  .targets = p->targets,
                                  .ignore_index = IGNORED,
                                  .mask = p->mask,
                                  .temperature = p->temperature,
                                  .logprob = outputs,
                                  .lse = outputs + p->rows,
                                  .entropy = outputs + 2 * p->rows};
    BK_REFERENCE(run, logprob, &args, p->rows * p->vocab);
    results_join(out, args.logprob, args.lse, args.entropy, p->rows);
    free(outputs);
}

/* Where rows lie in device memory, in elements: behind `offset` from 256-byte alignment, `gap` between rows. */
typedef struct layout {
    int64_t offset, gap;
} layout;
static const layout dense = {0, 0};

/* The logits in device memory; gaps hold NaN. */
static inline void *logits_put(bk_run *run, const problem *p, layout l) {
    const int64_t size = ls_dtype_bytes(p->dtype), stride = (p->vocab + l.gap) * size;
    const int64_t bytes = p->rows == 0 ? 0 : (p->rows - 1) * stride + row_bytes(p);
    uint8_t *host = bk_alloc(bytes);
    void *device;
    memset(host, 0xFF, (size_t)bytes);
    for (int64_t r = 0; r < p->rows; r++) memcpy(host + r * stride, row_at(p, r), (size_t)row_bytes(p));
    device = bk_put(run, "logits", host, bytes, l.offset * size);
    free(host);
    return device;
}

/* Arguments with everything in device memory. */
static inline ls_logprob_args problem_put(bk_run *run, const problem *p, layout l) {
    const ls_logprob_args args = {.logits = logits_put(run, p, l),
                                  .dtype = p->dtype,
                                  .rows = p->rows,
                                  .vocab = p->vocab,
                                  .row_stride = p->vocab + l.gap,
                                  .targets = bk_put(run, "targets", p->targets, p->rows * 8, 0),
                                  .ignore_index = IGNORED,
                                  .mask = bk_put(run, "mask", p->mask, p->rows, 0),
                                  .temperature = bk_put(run, "temperature", p->temperature, p->rows * 4, 0),
                                  .logprob = bk_new(run, "logprob", p->rows * 4, 0),
                                  .lse = bk_new(run, "lse", p->rows * 4, 0),
                                  .entropy = bk_new(run, "entropy", p->rows * 4, 0)};
    return args;
}

/* The same for `rows` rows of which row r holds what row r % p->rows of the problem holds: the logits are copied within
 * the device. False where there is no memory for them. */
static inline bool problem_put_repeated(bk_run *run, const problem *p, int64_t rows, ls_logprob_args *args) {
    const int64_t block_bytes = p->rows * row_bytes(p), bytes = rows * row_bytes(p);
    uint8_t *logits = bk_try_new(run, "logits", bytes, 0);
    problem many = problem_alloc(p->dtype, rows, 0);
    if (logits == NULL) {
        problem_free(&many);
        return false;
    }
    for (int64_t r = 0; r < rows; r++) {
        many.targets[r] = p->targets[r % p->rows];
        many.mask[r] = p->mask[r % p->rows];
        many.temperature[r] = p->temperature[r % p->rows];
    }
    *args = problem_put(run, &many, dense);
    problem_free(&many);
    bk_upload(run, logits, p->logits, block_bytes);
    for (int64_t done = block_bytes; done < bytes; done *= 2)
        bk_upload(run, logits + done, logits, done < bytes - done ? done : bytes - done);
    args->logits = logits;
    args->vocab = args->row_stride = p->vocab;
    return true;
}

static inline void results_get(bk_run *run, const ls_logprob_args *args, row_result *out) {
    float *host = bk_alloc(RESULT_FLOATS * args->rows * 4);
    bk_download(run, host, args->logprob, args->rows * 4);
    bk_download(run, host + args->rows, args->lse, args->rows * 4);
    bk_download(run, host + 2 * args->rows, args->entropy, args->rows * 4);
    results_join(out, host, host + args->rows, host + 2 * args->rows, args->rows);
    free(host);
}

/* Fills out[rows], with BK_PATTERN after a failure. */
static inline void problem_run(bk_run *run, const problem *p, layout l, row_result *out) {
    const ls_logprob_args args = problem_put(run, p, l);
    BK_CALL(run, logprob, &args);
    results_get(run, &args, out);
    bk_clear(run);
}

/* ---- known rows, and batches of them ---- */

typedef struct known_rows {
    problem p;
    row_result *out; /* by the reference */
} known_rows;

static inline known_rows known_make(bk_run *run, ls_dtype dtype, int64_t rows, int64_t vocab, uint64_t seed) {
    known_rows k;
    k.p = problem_make(dtype, rows, vocab, true, seed);
    k.out = bk_alloc(rows * (int64_t)sizeof *k.out);
    problem_reference(run, &k.p, k.out);
    return k;
}

static inline void known_free(known_rows *k) {
    problem_free(&k->p);
    free(k->out);
}

/* In place of a known row's number: a row that is left out. */
enum { LEFT_BY_MASK = -1, LEFT_BY_INDEX = -2, LEFT_BY_BOTH = -3 };

/* Row r is the known row from[r] or a row that is left out; expected[r] its result. What is left out holds NaN, and,
 * where the mask says so, a target and a temperature that would be refused. */
static inline problem batch_make(const known_rows *k, const int64_t *from, int64_t rows, row_result *expected) {
    problem p = problem_alloc(k->p.dtype, rows, k->p.vocab);
    for (int64_t r = 0; r < rows; r++) {
        if (from[r] >= 0) {
            memcpy(row_at(&p, r), row_at(&k->p, from[r]), (size_t)row_bytes(&p));
            p.targets[r] = k->p.targets[from[r]];
            p.temperature[r] = k->p.temperature[from[r]];
            expected[r] = k->out[from[r]];
            continue;
        }
        memset(row_at(&p, r), 0xFF, (size_t)row_bytes(&p));
        p.mask[r] = from[r] == LEFT_BY_INDEX;
        p.targets[r] = from[r] == LEFT_BY_MASK ? INT64_MAX : IGNORED;
        p.temperature[r] = NAN;
        expected[r] = (row_result){0.0f, 0.0f, 0.0f};
    }
    return p;
}

/* How a problem gets its results: problem_run, or something that the comparison is meant to catch. */
typedef void (*logprob_runner)(bk_run *run, const problem *p, layout l, row_result *out);

/* Runs the batch and compares every result with the known row's. Returns the number of floats that differ and fails for
 * them unless `what` is NULL. */
static inline int64_t batch_compare(bk_run *run, logprob_runner runner, const known_rows *k, const int64_t *from,
                                    int64_t rows, layout l, const char *what) {
    row_result *expected = bk_alloc(rows * (int64_t)sizeof *expected), *got = bk_alloc(rows * (int64_t)sizeof *got);
    problem p = batch_make(k, from, rows, expected);
    int64_t differences;
    runner(run, &p, l, got);
    differences = bk_differences(expected, got, RESULT_FLOATS * rows, 4, NULL);
    if (what != NULL)
        bk_same(run, expected, got, RESULT_FLOATS * rows, 4,
                "%s: %lld rows of %lld %s, offset %lld, gap %lld: [row][3]", what, (long long)rows, (long long)p.vocab,
                ls_dtype_name(p.dtype), (long long)l.offset, (long long)l.gap);
    problem_free(&p);
    free(expected);
    free(got);
    return differences;
}

static inline void batch_check(bk_run *run, const known_rows *k, const int64_t *from, int64_t rows, layout l,
                               const char *what) {
    batch_compare(run, problem_run, k, from, rows, l, what);
}

#endif
