/* The ops around log-probabilities on every back end: shards of the vocabulary and their combination, gradients, sums
 * of sequences. Whatever the cut, the layout or the memory, bits are those of the CPU contract. */
#include "golden_logprob.h"
#include "logprob_case.h"
#include "num/contract.h"
#include "num/expf.h"

/* NaN whose pattern is not part of a contract, made equal. */
static void canonicalize(float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++) x[i] = ls_canonical(x[i]);
}

/* Rows of every kind, every fifth left out in one of three ways; results go to expected[rows]. */
static problem mixed_problem(bk_run *run, ls_dtype dtype, int64_t rows, int64_t vocab, uint64_t seed,
                             row_result *expected) {
    known_rows known = known_make(run, dtype, rows < 2 * ROW_KINDS ? rows : 2 * ROW_KINDS, vocab, seed);
    int64_t *from = bk_alloc(rows * 8);
    problem p;
    for (int64_t r = 0; r < rows; r++) from[r] = r % 5 == 4 ? LEFT_BY_BOTH + r % 3 : r % known.p.rows;
    p = batch_make(&known, from, rows, expected);
    known_free(&known);
    free(from);
    return p;
}

/* ---- shards ---- */

static problem problem_columns(const problem *p, int64_t first, int64_t vocab) {
    const int64_t size = ls_dtype_bytes(p->dtype);
    problem part = problem_alloc(p->dtype, p->rows, vocab);
    for (int64_t r = 0; r < p->rows; r++)
        memcpy(row_at(&part, r), row_at(p, r) + first * size, (size_t)row_bytes(&part));
    return part;
}

typedef struct shard_memory {
    ls_logprob_leaf *leaves; /* [rows][leaf_stride] */
    int64_t leaf_stride;
    float *target_z;
    const int64_t *targets;
    const uint8_t *mask;
    const float *temperature;
} shard_memory;

static ls_logprob_shard_args shard_args(const problem *whole, const problem *part, int64_t first, const void *logits,
                                        int64_t row_stride, const shard_memory *m) {
    const ls_logprob_shard_args args = {.logits = logits,
                                        .dtype = whole->dtype,
                                        .rows = whole->rows,
                                        .vocab = part->vocab,
                                        .row_stride = row_stride,
                                        .first = first,
                                        .total = whole->vocab,
                                        .targets = m->targets,
                                        .ignore_index = IGNORED,
                                        .mask = m->mask,
                                        .temperature = m->temperature,
                                        .leaves = m->leaves,
                                        .leaf_stride = m->leaf_stride,
                                        .target_z = m->target_z};
    return args;
}

/* Leaves and targets' logits by the reference, in one shard. Nothing else in that memory is touched. */
static shard_memory shards_reference(bk_run *run, const problem *p, int64_t leaf_stride) {
    const int64_t leaf_bytes = p->rows * leaf_stride * (int64_t)sizeof(ls_logprob_leaf);
    const shard_memory m = {bk_alloc(leaf_bytes), leaf_stride, bk_alloc(p->rows * 4),
                            p->targets,           p->mask,     p->temperature};
    const ls_logprob_shard_args args = shard_args(p, p, 0, p->logits, p->vocab, &m);
    memset(m.leaves, BK_PATTERN, (size_t)leaf_bytes);
    memset(m.target_z, BK_PATTERN, (size_t)p->rows * 4);
    BK_REFERENCE(run, logprob_shard, &args, p->rows * p->vocab);
    return m;
}

/* Shard i holds the leaves [ends[i - 1], ends[i]), in memory of its own shape; all write to the same two arrays. */
static void shards_check(bk_run *run, const problem *p, const row_result *whole, const int64_t *ends, int64_t n) {
    const int64_t leaf_stride = LEAVES_OF(p->vocab) + 2, leaf_floats = p->rows * leaf_stride * 4;
    shard_memory expected = shards_reference(run, p, leaf_stride);
    shard_memory m = {.leaves = bk_new(run, "leaves", leaf_floats * 4, 0),
                      .leaf_stride = leaf_stride,
                      .target_z = bk_new(run, "target_z", p->rows * 4, 0),
                      .targets = bk_put(run, "targets", p->targets, p->rows * 8, 0),
                      .mask = bk_put(run, "mask", p->mask, p->rows, 0),
                      .temperature = bk_put(run, "temperature", p->temperature, p->rows * 4, 0)};
    const ls_logprob_combine_args combine = {.leaves = m.leaves,
                                             .rows = p->rows,
                                             .total = p->vocab,
                                             .leaf_stride = leaf_stride,
                                             .target_z = m.target_z,
                                             .targets = m.targets,
                                             .ignore_index = IGNORED,
                                             .mask = m.mask,
                                             .logprob = bk_new(run, "logprob", p->rows * 4, 0),
                                             .lse = bk_new(run, "lse", p->rows * 4, 0),
                                             .entropy = bk_new(run, "entropy", p->rows * 4, 0)};
    const ls_logprob_args outputs = {
        .rows = p->rows, .logprob = combine.logprob, .lse = combine.lse, .entropy = combine.entropy};
    row_result *got = bk_alloc(p->rows * (int64_t)sizeof *got);
    float *leaves = bk_alloc(leaf_floats * 4), *target_z = bk_alloc(p->rows * 4);
    for (int64_t i = 0; i < n; i++) {
        const int64_t first = (i > 0 ? ends[i - 1] : 0) * LS_LOGPROB_LEAF;
        const int64_t end = ends[i] * LS_LOGPROB_LEAF < p->vocab ? ends[i] * LS_LOGPROB_LEAF : p->vocab;
        problem part = problem_columns(p, first, end - first);
        const layout l = {i % 8, 3 * i % 16};
        const ls_logprob_shard_args args =
            shard_args(p, &part, first, logits_put(run, &part, l), part.vocab + l.gap, &m);
        BK_CALL(run, logprob_shard, &args);
        problem_free(&part);
    }
    BK_CALL(run, logprob_combine, &combine);
    results_get(run, &outputs, got);
    bk_download(run, leaves, m.leaves, leaf_floats * 4);
    bk_download(run, target_z, m.target_z, p->rows * 4);
    canonicalize(expected.target_z, p->rows);
    canonicalize(target_z, p->rows);
    bk_same(run, whole, got, RESULT_FLOATS * p->rows, 4, "%lld shards of %lld %s: [row][3]", (long long)n,
            (long long)p->vocab, ls_dtype_name(p->dtype));
    bk_same(run, expected.leaves, leaves, leaf_floats, 4, "%lld shards of %lld %s: leaves [row][%lld][4]", (long long)n,
            (long long)p->vocab, ls_dtype_name(p->dtype), (long long)leaf_stride);
    bk_same(run, expected.target_z, target_z, p->rows, 4, "%lld shards of %lld %s: target_z", (long long)n,
            (long long)p->vocab, ls_dtype_name(p->dtype));
    bk_clear(run);
    free(expected.leaves);
    free(expected.target_z);
    free(leaves);
    free(target_z);
    free(got);
}

static void shards_equal_the_whole(bk_run *run) {
    const int64_t vocabs[] = {1, 2048, 2049, 5000, 16384, bk_size(run, 20481, 151936, 151936)};
    const int64_t row_counts[] = {2 * ROW_KINDS, bk_size(run, 513, 513, 600)};
    for (int64_t v = 0; v < BK_COUNT(vocabs); v++)
        for (int64_t k = 0; k < LOGIT_TYPES; k++) {
            const int64_t leaves = LEAVES_OF(vocabs[v]), rows = row_counts[vocabs[v] == 5000 ? 1 : 0];
            row_result *whole = bk_alloc(rows * (int64_t)sizeof *whole);
            problem p = mixed_problem(run, logit_types[k], rows, vocabs[v], 201 + (uint64_t)k, whole);
            for (int64_t n = 1; n <= 8 && n <= leaves; n *= 2) {
                int64_t ends[8];
                for (int64_t i = 0; i < n; i++) ends[i] = leaves * (i + 1) / n;
                shards_check(run, &p, whole, ends, n);
            }
            if (leaves >= 3) {
                shards_check(run, &p, whole, (const int64_t[]){1, leaves}, 2);
                shards_check(run, &p, whole, (const int64_t[]){leaves - 1, leaves}, 2);
                shards_check(run, &p, whole, (const int64_t[]){1, 2, leaves}, 3);
            }
            problem_free(&p);
            free(whole);
        }
}

/* ---- gradients ---- */

enum { D_LOGPROB = 1, D_LSE = 2, D_ENTROPY = 4, D_ALL = 7, PLAIN = 8 /* no mask, no temperature */ };

typedef struct gradient {
    problem p;
    float *lse, *entropy, *d[3]; /* d of logprob, lse, entropy */
} gradient;

/* The forward results are those of the reference. A plain one keeps all rows and has no temperature. */
static gradient gradient_make(bk_run *run, ls_dtype dtype, int64_t rows, int64_t vocab, bool plain, uint64_t seed) {
    row_result *forward = bk_alloc(rows * (int64_t)sizeof *forward);
    gradient g;
    if (plain) {
        g.p = problem_make(dtype, rows, vocab, false, seed);
        problem_reference(run, &g.p, forward);
    } else {
        g.p = mixed_problem(run, dtype, rows, vocab, seed, forward);
    }
    g.lse = bk_alloc(rows * 4);
    g.entropy = bk_alloc(rows * 4);
    for (int64_t i = 0; i < 3; i++) g.d[i] = bk_alloc(rows * 4);
    for (int64_t r = 0; r < rows; r++) {
        g.lse[r] = forward[r].lse;
        g.entropy[r] = forward[r].entropy;
        for (int64_t i = 0; i < 3; i++) g.d[i][r] = r % 7 == i ? 0.0f : test_uniform(&seed, -2.0f, 2.0f);
    }
    free(forward);
    return g;
}

static void gradient_free(gradient *g) {
    problem_free(&g->p);
    free(g->lse);
    free(g->entropy);
    for (int64_t i = 0; i < 3; i++) free(g->d[i]);
}

/* Arguments on the host; d_logits is set by the caller. */
static ls_logprob_backward_args gradient_args(const gradient *g, int which) {
    const ls_logprob_backward_args args = {.logits = g->p.logits,
                                           .dtype = g->p.dtype,
                                           .rows = g->p.rows,
                                           .vocab = g->p.vocab,
                                           .row_stride = g->p.vocab,
                                           .targets = g->p.targets,
                                           .ignore_index = IGNORED,
                                           .mask = which & PLAIN ? NULL : g->p.mask,
                                           .temperature = which & PLAIN ? NULL : g->p.temperature,
                                           .lse = g->lse,
                                           .entropy = which & D_ENTROPY ? g->entropy : NULL,
                                           .d_logprob = which & D_LOGPROB ? g->d[0] : NULL,
                                           .d_lse = which & D_LSE ? g->d[1] : NULL,
                                           .d_entropy = which & D_ENTROPY ? g->d[2] : NULL,
                                           .d_stride = g->p.vocab};
    return args;
}

/* All but the logits and d_logits into device memory. */
static ls_logprob_backward_args gradient_put(bk_run *run, const gradient *g, int which) {
    const int64_t bytes = g->p.rows * 4;
    ls_logprob_backward_args args = gradient_args(g, which);
    args.targets = bk_put(run, "targets", args.targets, g->p.rows * 8, 0);
    args.mask = bk_put(run, "mask", args.mask, g->p.rows, 0);
    args.temperature = bk_put(run, "temperature", args.temperature, bytes, 0);
    args.lse = bk_put(run, "lse", args.lse, bytes, 0);
    args.entropy = bk_put(run, "entropy", args.entropy, bytes, 0);
    args.d_logprob = bk_put(run, "d_logprob", args.d_logprob, bytes, 0);
    args.d_lse = bk_put(run, "d_lse", args.d_lse, bytes, 0);
    args.d_entropy = bk_put(run, "d_entropy", args.d_entropy, bytes, 0);
    return args;
}

static uint8_t *gradient_reference(bk_run *run, const gradient *g, int which) {
    ls_logprob_backward_args args = gradient_args(g, which);
    args.d_logits = bk_alloc(g->p.rows * row_bytes(&g->p));
    BK_REFERENCE(run, logprob_backward, &args, g->p.rows * g->p.vocab);
    return args.d_logits;
}

/* Every byte of d_logits counts, the gaps between rows too: they stay as they were. */
static void gradient_check(bk_run *run, const gradient *g, int which, layout l, bool in_place, const char *what) {
    const int64_t size = ls_dtype_bytes(g->p.dtype), stride = g->p.vocab + l.gap, rows = g->p.rows;
    const int64_t elements = (rows - 1) * stride + g->p.vocab;
    ls_logprob_backward_args args = gradient_put(run, g, which);
    uint8_t *rows_expected = gradient_reference(run, g, which), *expected = bk_alloc(elements * size);
    uint8_t *got = bk_alloc(elements * size);
    memset(expected, in_place ? 0xFF : BK_PATTERN, (size_t)(elements * size));
    for (int64_t r = 0; r < rows; r++)
        memcpy(expected + r * stride * size, rows_expected + r * row_bytes(&g->p), (size_t)row_bytes(&g->p));
    args.logits = logits_put(run, &g->p, in_place ? l : dense);
    args.row_stride = in_place ? stride : g->p.vocab;
    args.d_logits =
        in_place ? (void *)(uintptr_t)args.logits : bk_new(run, "d_logits", elements * size, l.offset * size);
    args.d_stride = stride;
    BK_CALL(run, logprob_backward, &args);
    bk_download(run, got, args.d_logits, elements * size);
    bk_same(run, expected, got, elements, size, "%s: %lld rows of %lld %s, gradients %d, %s, offset %lld, gap %lld",
            what, (long long)rows, (long long)g->p.vocab, ls_dtype_name(g->p.dtype), which,
            in_place ? "in place" : "apart", (long long)l.offset, (long long)l.gap);
    bk_clear(run);
    free(rows_expected);
    free(expected);
    free(got);
}

static void every_gradient(bk_run *run) {
    const int64_t vocabs[] = {1, 7, 2049, 4100};
    for (int64_t v = 0; v < BK_COUNT(vocabs); v++)
        for (int64_t k = 0; k < LOGIT_TYPES; k++) {
            gradient g = gradient_make(run, logit_types[k], 2 * ROW_KINDS + 3, vocabs[v], false, 211 + (uint64_t)k);
            for (int which = 0; which <= D_ALL; which++)
                for (int in_place = 0; in_place < 2; in_place++)
                    gradient_check(run, &g, which, dense, in_place != 0, "gradient");
            gradient_free(&g);
        }
}

static void gradients_of_many_rows_and_long_rows(bk_run *run) {
    const int64_t shapes[][2] = {{1, 300},    {2, 4097},  {513, 2100}, {bk_size(run, 600, 1500, 3000), 700},
                                 {2, 50257},  {3, 65536}, {2, 128256}, {2, 151936},
                                 {1, 1000000}};
    for (int64_t s = 0; s < BK_COUNT(shapes); s++)
        for (int64_t k = 0; k < LOGIT_TYPES; k++) {
            gradient g = gradient_make(run, logit_types[k], shapes[s][0], shapes[s][1], false, 221 + (uint64_t)k);
            gradient_check(run, &g, D_ALL, (layout){1, 5}, k == 0, "shape");
            gradient_free(&g);
        }
}

static void gradient_offsets_and_strides(bk_run *run) {
    for (int64_t k = 0; k < LOGIT_TYPES; k++) {
        const int64_t in_16_bytes = 16 / ls_dtype_bytes(logit_types[k]);
        gradient g = gradient_make(run, logit_types[k], ROW_KINDS, 300, false, 231 + (uint64_t)k);
        for (layout l = {0, 0}; l.offset < in_16_bytes; l.offset++)
            for (l.gap = 0; l.gap < in_16_bytes; l.gap++)
                for (int in_place = 0; in_place < 2; in_place++)
                    gradient_check(run, &g, D_ALL, l, in_place != 0, "layout");
        gradient_free(&g);
    }
}

static void gradients_without_mask_and_temperature(bk_run *run) {
    for (int64_t k = 0; k < LOGIT_TYPES; k++) {
        gradient g = gradient_make(run, logit_types[k], 2 * ROW_KINDS, 2500, true, 241);
        gradient_check(run, &g, D_LOGPROB | PLAIN, dense, false, "plain");
        gradient_check(run, &g, D_ALL | PLAIN, dense, true, "plain");
        gradient_free(&g);
    }
}

static const float *repeat_put(bk_run *run, const char *name, const float *values, int64_t n, int64_t rows) {
    float *host = bk_alloc(rows * 4);
    const float *device;
    for (int64_t r = 0; r < rows; r++) host[r] = values[r % n];
    device = bk_put(run, name, host, rows * 4, 0);
    free(host);
    return device;
}

/* rows * vocab just above 2^32, in place. */
static void more_gradients_than_32_bits_count(bk_run *run) {
    enum { BLOCK = 64, VOCAB = 65536, ROWS = (1 << 16) + BLOCK };
    const int64_t block_bytes = BLOCK * VOCAB * 2;
    gradient g;
    ls_logprob_args forward;
    if (run->small) {
        bk_skip(run, "LS_SMALL");
        return;
    }
    g = gradient_make(run, LS_BF16, BLOCK, VOCAB, false, 251);
    if (problem_put_repeated(run, &g.p, ROWS, &forward)) {
        uint8_t *expected = gradient_reference(run, &g, D_ALL), *got = bk_alloc(block_bytes);
        ls_logprob_backward_args args = gradient_args(&g, D_ALL);
        args.logits = forward.logits;
        args.rows = ROWS;
        args.targets = forward.targets;
        args.mask = forward.mask;
        args.temperature = forward.temperature;
        args.lse = repeat_put(run, "lse", g.lse, BLOCK, ROWS);
        args.entropy = repeat_put(run, "entropy", g.entropy, BLOCK, ROWS);
        args.d_logprob = repeat_put(run, "d_logprob", g.d[0], BLOCK, ROWS);
        args.d_lse = repeat_put(run, "d_lse", g.d[1], BLOCK, ROWS);
        args.d_entropy = repeat_put(run, "d_entropy", g.d[2], BLOCK, ROWS);
        args.d_logits = (void *)(uintptr_t)forward.logits;
        BK_CALL(run, logprob_backward, &args);
        for (int64_t row = 0; row < ROWS; row += BLOCK) {
            bk_download(run, got, (const uint8_t *)args.d_logits + row * VOCAB * 2, block_bytes);
            bk_same(run, expected, got, BLOCK * VOCAB, 2, "gradients of rows from %lld on", (long long)row);
        }
        free(expected);
        free(got);
    } else {
        bk_skip(run, "%d rows of %d: %s", ROWS, VOCAB, run->err.text);
    }
    gradient_free(&g);
}

/* ---- sums of sequences ---- */

typedef enum side { TOKENS_LEFT, TOKENS_RIGHT, TOKENS_SPREAD, PACKED, PACKED_BEHIND_ROWS, SIDES } side;

/* Sequences of the given lengths, and the same in a layout with rows that do not count; those hold NaN. */
typedef struct sums {
    int64_t n, rows, length; /* length: of the padded layouts, 0 for packed */
    float *logprob;
    uint8_t *mask;
    int64_t *offsets;
} sums;

static sums sums_lay_out(const float *tokens, const int64_t *lengths, int64_t n, side where, uint64_t seed) {
    const bool packed = where >= PACKED;
    const int64_t first = where == PACKED_BEHIND_ROWS ? 5 : 0;
    int64_t longest = 0, total = 0, at;
    sums s = {.n = n};
    for (int64_t i = 0; i < n; i++) {
        total += lengths[i];
        if (lengths[i] > longest) longest = lengths[i];
    }
    s.length = packed ? 0 : longest + (where == TOKENS_SPREAD ? longest / 2 : 3);
    s.rows = packed ? 2 * first + total : n * s.length;
    s.logprob = bk_alloc(s.rows * 4);
    s.mask = bk_alloc(s.rows);
    s.offsets = bk_alloc((n + 1) * 8);
    memset(s.logprob, 0xFF, (size_t)s.rows * 4);
    memset(s.mask, 0, (size_t)s.rows);
    s.offsets[0] = first;
    for (int64_t i = 0; i < n; i++) {
        const int64_t room = packed ? lengths[i] : s.length;
        int64_t spare = room - lengths[i];
        at = packed ? s.offsets[i] : i * s.length;
        s.offsets[i + 1] = s.offsets[i] + lengths[i];
        for (int64_t t = 0; t < lengths[i]; t++) {
            /* Padding in front of this token. */
            const int64_t pad = where == TOKENS_RIGHT                                           ? spare
                                : where == TOKENS_SPREAD && spare > 0 && test_random(&seed) % 2 ? 1
                                                                                                : 0;
            at += pad;
            spare -= pad;
            s.logprob[at] = *tokens++;
            s.mask[at++] = (uint8_t)(1 + t % 255);
        }
    }
    return s;
}

static void sums_free(sums *s) {
    free(s->logprob);
    free(s->mask);
    free(s->offsets);
}

static ls_sequence_sum_args sums_args(const sums *s, float *out) {
    const ls_sequence_sum_args args = {.logprob = s->logprob,
                                       .mask = s->mask,
                                       .offsets = s->length == 0 ? s->offsets : NULL,
                                       .length = s->length,
                                       .n_sequences = s->n,
                                       .rows = s->rows,
                                       .out = out};
    return args;
}

/* Without a mask every row counts, as it does in the packed layout. */
static void sums_check(bk_run *run, const sums *s, const float *expected, bool with_mask, const char *what, int style) {
    ls_sequence_sum_args args = sums_args(s, NULL);
    float *got = bk_alloc(s->n * 4);
    args.logprob = bk_put(run, "logprob", s->logprob, s->rows * 4, 0);
    args.mask = with_mask ? bk_put(run, "mask", s->mask, s->rows, 0) : NULL;
    args.offsets = args.offsets != NULL ? bk_put(run, "offsets", s->offsets, (s->n + 1) * 8, 0) : NULL;
    args.out = bk_new(run, "out", s->n * 4, 0);
    BK_CALL(run, sequence_sum, &args);
    bk_download(run, got, args.out, s->n * 4);
    bk_same(run, expected, got, s->n, 4, "%s, layout %d, %s mask: sums", what, style, with_mask ? "with" : "without");
    bk_clear(run);
    free(got);
}

static void sums_in_every_layout(bk_run *run, const float *tokens, const int64_t *lengths, int64_t n,
                                 const char *what) {
    float *expected = bk_alloc(n * 4);
    sums packed = sums_lay_out(tokens, lengths, n, PACKED, 1);
    const ls_sequence_sum_args reference = sums_args(&packed, expected);
    BK_REFERENCE(run, sequence_sum, &reference, packed.rows);
    sums_check(run, &packed, expected, false, what, PACKED);
    for (int where = 0; where < SIDES; where++) {
        sums s = sums_lay_out(tokens, lengths, n, (side)where, 261);
        sums_check(run, &s, expected, true, what, where);
        sums_free(&s);
    }
    sums_free(&packed);
    free(expected);
}

static void sums_of_packed_and_padded_sequences(bk_run *run) {
    const int64_t lengths[] = {0, 1, 2, 7, 8, 9, 255, 256, 257, 0, 511, 512, 513, 1000, 2048, 4099, 0};
    const int64_t many = bk_size(run, 40, 400, 3000);
    int64_t total = 0, *random_lengths = bk_alloc(many * 8);
    uint64_t seed = 262;
    float *tokens;
    for (int64_t i = 0; i < BK_COUNT(lengths); i++) total += lengths[i];
    for (int64_t i = 0; i < many; i++) random_lengths[i] = (int64_t)(test_random(&seed) % 700);
    total += many * 700;
    tokens = bk_alloc(total * 4);
    for (int64_t i = 0; i < total; i++) tokens[i] = -test_uniform(&seed, 0.0f, 12.0f);
    sums_in_every_layout(run, tokens, lengths, BK_COUNT(lengths), "lengths");
    sums_in_every_layout(run, tokens, random_lengths, many, "many sequences");
    for (int64_t i = 0; i < BK_COUNT(lengths); i++) sums_in_every_layout(run, tokens, &lengths[i], 1, "one sequence");
    /* Impossible tokens, sure tokens of either sign of zero, subnormals, and magnitudes that absorb others. */
    for (int64_t i = 0; i < total; i++) {
        static const float odd[] = {-INFINITY, 0.0f, -0.0f, -0x1p-149f, -0x1p-130f, -0x1p100f, -1e-3f};
        if (test_random(&seed) % 50 == 0) tokens[i] = odd[test_random(&seed) % (uint64_t)BK_COUNT(odd)];
    }
    sums_in_every_layout(run, tokens, lengths, BK_COUNT(lengths), "odd values");
    free(tokens);
    free(random_lengths);
}

/* A NaN token, whatever its pattern, makes its sequence NaN of the one pattern, and no other sequence. */
static void a_sum_with_a_nan(bk_run *run) {
    const int64_t lengths[] = {300, 300, 1, 1, 300};
    float tokens[902];
    for (int64_t i = 0; i < BK_COUNT(tokens); i++) tokens[i] = -1.5f;
    tokens[299] = tokens[600] = ls_from_bits(LS_NAN_BITS);
    tokens[300] = ls_from_bits(0xFFC12345u);
    sums_in_every_layout(run, tokens, lengths, BK_COUNT(lengths), "NaN");
}

/* A long sequence: its tokens pass 2^24, where float counts end. */
static void a_sum_of_20_million_tokens(bk_run *run) {
    const int64_t length = bk_size(run, 100000, 20000003, 20000003);
    float *tokens = bk_alloc(length * 4);
    uint64_t seed = 263;
    for (int64_t i = 0; i < length; i++) tokens[i] = -test_uniform(&seed, 0.0f, 1.0f);
    sums_in_every_layout(run, tokens, &length, 1, "one long sequence");
    free(tokens);
}

/* Calls without rows succeed and write nothing. */
static void no_rows(bk_run *run) {
    gradient g = gradient_make(run, LS_BF16, ROW_KINDS, 3000, false, 271);
    ls_logprob_args forward = problem_put(run, &g.p, dense);
    ls_logprob_backward_args backward = gradient_put(run, &g, D_ALL);
    const int64_t offsets[1] = {0};
    ls_sequence_sum_args sum = {.logprob = bk_put(run, "logprob", g.lse, 4, 0),
                                .offsets = bk_put(run, "offsets", offsets, 8, 0),
                                .out = bk_new(run, "out", 4, 0)};
    forward.rows = backward.rows = 0;
    backward.logits = forward.logits;
    backward.d_logits = bk_new(run, "d_logits", g.p.rows * row_bytes(&g.p), 0);
    BK_CALL(run, logprob, &forward);
    BK_CALL(run, logprob_backward, &backward);
    BK_CALL(run, sequence_sum, &sum);
    if (!bk_untouched(run, forward.logprob, g.p.rows * 4) || !bk_untouched(run, sum.out, 4) ||
        !bk_untouched(run, backward.d_logits, g.p.rows * row_bytes(&g.p)))
        bk_fail(run, "something was written");
    gradient_free(&g);
}

/* ---- golden bits ---- */

static uint64_t golden_forward(bk_run *run, ls_dtype dtype, int64_t rows, int64_t vocab, uint64_t seed) {
    row_result *out = bk_alloc(rows * (int64_t)sizeof *out);
    problem p = problem_make(dtype, rows, vocab, seed % 2 == 0, seed);
    uint64_t hash;
    problem_run(run, &p, dense, out);
    hash = bk_hash(BK_HASH_START, out, rows * (int64_t)sizeof *out);
    problem_free(&p);
    free(out);
    return hash;
}

static uint64_t golden_gradient(bk_run *run, ls_dtype dtype, uint64_t seed) {
    gradient g = gradient_make(run, dtype, 2 * ROW_KINDS, 3000, false, seed);
    const int64_t bytes = g.p.rows * row_bytes(&g.p);
    ls_logprob_backward_args args = gradient_put(run, &g, D_ALL);
    uint8_t *got = bk_alloc(bytes);
    uint64_t hash;
    args.logits = logits_put(run, &g.p, dense);
    args.d_logits = bk_new(run, "d_logits", bytes, 0);
    BK_CALL(run, logprob_backward, &args);
    bk_download(run, got, args.d_logits, bytes);
    hash = bk_hash(BK_HASH_START, got, bytes);
    bk_clear(run);
    gradient_free(&g);
    free(got);
    return hash;
}

static uint64_t golden_sum(bk_run *run) {
    enum { TOKENS = 5000, LENGTH = 1250, SEQUENCES = TOKENS / LENGTH };
    float tokens[TOKENS], got[SEQUENCES];
    uint64_t seed = 289;
    ls_sequence_sum_args args = {.length = LENGTH, .n_sequences = SEQUENCES, .rows = TOKENS};
    for (int64_t i = 0; i < TOKENS; i++) tokens[i] = -test_uniform(&seed, 0.0f, 12.0f);
    args.logprob = bk_put(run, "logprob", tokens, (int64_t)sizeof tokens, 0);
    args.out = bk_new(run, "out", (int64_t)sizeof got, 0);
    BK_CALL(run, sequence_sum, &args);
    bk_download(run, got, args.out, (int64_t)sizeof got);
    bk_clear(run);
    return bk_hash(BK_HASH_START, got, (int64_t)sizeof got);
}

static void golden_bits(bk_run *run) {
    const uint64_t got[] = {golden_forward(run, LS_F32, 2 * ROW_KINDS, 7, 281),
                            golden_forward(run, LS_F32, 2 * ROW_KINDS, 4097, 282),
                            golden_forward(run, LS_BF16, 520, 2049, 283),
                            golden_forward(run, LS_BF16, ROW_KINDS, 20481, 284),
                            golden_forward(run, LS_F16, ROW_KINDS, 5000, 285),
                            golden_forward(run, LS_F32, 3, 151936, 286),
                            golden_gradient(run, LS_F32, 287),
                            golden_gradient(run, LS_BF16, 287),
                            golden_gradient(run, LS_F16, 288),
                            golden_sum(run)};
    _Static_assert(sizeof got == sizeof golden_logprob, "one hash for each problem");
    if (LS_NUMERICS_VERSION != GOLDEN_NUMERICS)
        bk_fail(run, "recorded for numerics %d, these are numerics %d", GOLDEN_NUMERICS, LS_NUMERICS_VERSION);
    for (int64_t i = 0; i < BK_COUNT(got); i++)
        if (got[i] != golden_logprob[i])
            bk_fail(run, "problem %lld: hash 0x%016llx, recorded is 0x%016llx", (long long)i,
                    (unsigned long long)got[i], (unsigned long long)golden_logprob[i]);
}

int main(int argc, char **argv) {
    static const bk_case cases[] = {
        {"shards_equal_the_whole", shards_equal_the_whole, BK_ANYWHERE},
        {"every_gradient", every_gradient, BK_ANYWHERE},
        {"gradients_of_many_rows_and_long_rows", gradients_of_many_rows_and_long_rows, BK_ANYWHERE},
        {"gradient_offsets_and_strides", gradient_offsets_and_strides, BK_ANYWHERE},
        {"gradients_without_mask_and_temperature", gradients_without_mask_and_temperature, BK_ANYWHERE},
        {"more_gradients_than_32_bits_count", more_gradients_than_32_bits_count, BK_CUDA_ONLY},
        {"sums_of_packed_and_padded_sequences", sums_of_packed_and_padded_sequences, BK_ANYWHERE},
        {"a_sum_with_a_nan", a_sum_with_a_nan, BK_ANYWHERE},
        {"a_sum_of_20_million_tokens", a_sum_of_20_million_tokens, BK_ANYWHERE},
        {"no_rows", no_rows, BK_ANYWHERE},
        {"golden_bits", golden_bits, BK_ANYWHERE},
    };
    return bk_main(argc, argv, cases, BK_COUNT(cases));
}
