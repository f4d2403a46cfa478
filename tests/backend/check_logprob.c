/* Log-probabilities of selected tokens on every back end: bits that depend on the row alone, whatever the batch, the
 * padding, the memory it lies in, the stream or the graph it runs in; and their accuracy. */
#include "logprob_case.h"
#include "num/expf.h"

/* ---- batches ---- */

/* A sequence of three rows at every place of batches of unrelated rows, NaN, -inf and subnormals among them. */
static void batch_sizes_and_positions(bk_run *run) {
    enum { SEQUENCE = 3, UNRELATED = 2 * ROW_KINDS + 1 };
    const int64_t sizes[] = {1, 2, 3, 7, 64, bk_size(run, 200, 1000, 1000)};
    const int64_t vocab = bk_size(run, 2100, 2100, 4097);
    for (int64_t k = 0; k < LOGIT_TYPES; k++) {
        known_rows known = known_make(run, logit_types[k], SEQUENCE + UNRELATED, vocab, 11 + (uint64_t)k);
        for (int64_t s = 0; s < BK_COUNT(sizes); s++) {
            /* Alone at each place; in large batches at every eighth place at once. */
            const int64_t period = sizes[s] <= 64 ? sizes[s] : 8, rows = SEQUENCE * sizes[s];
            int64_t *from = bk_alloc(rows * 8);
            for (int64_t place = 0; place < period; place++) {
                for (int64_t r = 0; r < rows; r++)
                    from[r] = r / SEQUENCE % period == place ? r % SEQUENCE : SEQUENCE + (r + place) % UNRELATED;
                batch_check(run, &known, from, rows, dense, "position");
            }
            free(from);
        }
        known_free(&known);
    }
}

/* The same content with row counts around 512, where a GPU stops to deal leaves to its blocks; long rows only just
 * there. */
static void row_counts_around_the_split(bk_run *run) {
    static const int64_t counts[] = {511, 512, 513, 1, 2, 31, 32, 33, 514, 1024, 1025};
    const int64_t vocabs[] = {bk_size(run, 2049, 4500, 10241), bk_size(run, 3000, 20481, 151936)};
    for (int64_t k = 0; k < LOGIT_TYPES; k++)
        for (int64_t v = 0; v < BK_COUNT(vocabs); v++) {
            known_rows known = known_make(run, logit_types[k], 3 * ROW_KINDS, vocabs[v], 21 + (uint64_t)k);
            for (int64_t c = 0; c < (v == 0 ? BK_COUNT(counts) : 3); c++) {
                int64_t *from = bk_alloc(counts[c] * 8);
                for (int64_t r = 0; r < counts[c]; r++) from[r] = r % known.p.rows;
                batch_check(run, &known, from, counts[c], dense, "rows");
                free(from);
            }
            known_free(&known);
        }
}

/* ---- padding ---- */

typedef enum padding {
    PAD_LEFT,
    PAD_RIGHT,
    PAD_BETWEEN,
    PAD_ONE_KEPT,
    PAD_ALL_BUT_ONE,
    PAD_NONE,
    PAD_ALL,
    PADDINGS
} padding;

/* Whether row r of `rows` holds a token. */
static bool is_kept(padding style, int64_t r, int64_t rows, uint64_t *seed) {
    const bool random = test_random(seed) % 3 == 0;
    switch (style) {
        case PAD_LEFT: return r >= rows / 3;
        case PAD_RIGHT: return r < rows / 3;
        case PAD_BETWEEN: return random;
        case PAD_ONE_KEPT: return r == rows / 2;
        case PAD_ALL_BUT_ONE: return r != rows / 2;
        case PAD_NONE: return true;
        default: return false;
    }
}

static void padding_by_mask_and_by_index(bk_run *run) {
    const int64_t row_counts[] = {20, 600};
    uint64_t seed = 5;
    for (int64_t k = 0; k < LOGIT_TYPES; k++) {
        known_rows known = known_make(run, logit_types[k], 2 * ROW_KINDS, 2100, 31 + (uint64_t)k);
        for (int64_t c = 0; c < BK_COUNT(row_counts); c++)
            for (int style = 0; style < PADDINGS; style++)
                for (int64_t how = LEFT_BY_BOTH; how <= LEFT_BY_MASK; how++) {
                    const int64_t rows = row_counts[c];
                    int64_t *from = bk_alloc(rows * 8), next = 0;
                    for (int64_t r = 0; r < rows; r++)
                        from[r] = is_kept((padding)style, r, rows, &seed) ? next++ % known.p.rows : how;
                    batch_check(run, &known, from, rows, dense, "padding");
                    free(from);
                }
        known_free(&known);
    }
}

/* No mask keeps every row, no temperature is 1, and lse and entropy may each be left out. */
static void optional_arrays(bk_run *run) {
    enum { ROWS = 2 * ROW_KINDS };
    for (int64_t k = 0; k < LOGIT_TYPES; k++)
        for (int left_out = 0; left_out < 16; left_out++) {
            row_result expected[ROWS], got[ROWS];
            problem p = problem_make(logit_types[k], ROWS, 2500, (left_out & 1) == 0, 41);
            ls_logprob_args args = problem_put(run, &p, dense), call = args;
            problem_reference(run, &p, expected);
            if (left_out & 1) call.temperature = NULL;
            if (left_out & 2) call.mask = NULL;
            if (left_out & 4) call.lse = NULL;
            if (left_out & 8) call.entropy = NULL;
            BK_CALL(run, logprob, &call);
            results_get(run, &args, got);
            for (int64_t r = 0; r < ROWS; r++) {
                if (left_out & 4) memset(&expected[r].lse, BK_PATTERN, 4);
                if (left_out & 8) memset(&expected[r].entropy, BK_PATTERN, 4);
            }
            bk_same(run, expected, got, RESULT_FLOATS * ROWS, 4, "without arrays %d: [row][3]", left_out);
            bk_clear(run);
            problem_free(&p);
        }
}

/* ---- rows ---- */

/* Results in device memory against those of the reference for the n rows of `expected`, over and over. */
static void results_compare(bk_run *run, const row_result *expected, int64_t n, const ls_logprob_args *args,
                            const char *what) {
    row_result *all = bk_alloc(args->rows * (int64_t)sizeof *all), *got = bk_alloc(args->rows * (int64_t)sizeof *got);
    for (int64_t r = 0; r < args->rows; r++) all[r] = expected[r % n];
    results_get(run, args, got);
    bk_same(run, all, got, RESULT_FLOATS * args->rows, 4, "%s: %lld rows of %lld %s, stride %lld: [row][3]", what,
            (long long)args->rows, (long long)args->vocab, ls_dtype_name(args->dtype), (long long)args->row_stride);
    free(all);
    free(got);
}

/* The same against the reference for the problem itself. */
static void results_check(bk_run *run, const problem *p, const ls_logprob_args *args, const char *what) {
    row_result *expected = bk_alloc(p->rows * (int64_t)sizeof *expected);
    problem_reference(run, p, expected);
    results_compare(run, expected, p->rows, args, what);
    free(expected);
}

static void problem_check(bk_run *run, const problem *p, const char *what) {
    const ls_logprob_args args = problem_put(run, p, dense);
    BK_CALL(run, logprob, &args);
    results_check(run, p, &args, what);
    bk_clear(run);
}

static void every_vocabulary(bk_run *run) {
    const int64_t vocabs[] = {1,    2,    7,    8,     9,     31,    255,    256,    257,    2047,
                              2048, 2049, 4097, 50257, 65536, 65537, 128256, 151936, 1000000};
    for (int64_t v = 0; v < BK_COUNT(vocabs); v++)
        for (int64_t k = 0; k < LOGIT_TYPES; k++)
            for (int temperatures = 0; temperatures < 2; temperatures++) {
                const int64_t most = vocabs[v] > 200000 ? bk_size(run, 1, 2, ROW_KINDS) : bk_size(run, 2, 4, ROW_KINDS);
                problem p = problem_make(logit_types[k], vocabs[v] > 5000 ? most : 2 * ROW_KINDS, vocabs[v],
                                         temperatures != 0, (uint64_t)(v * LOGIT_TYPES + k) + 51);
                problem_check(run, &p, "every kind of row");
                problem_free(&p);
            }
}

/* Large vocabularies with each kind of row once. */
static void every_kind_of_row_when_long(bk_run *run) {
    const int64_t vocab = bk_size(run, 10000, 20481, 151936);
    for (int64_t k = 0; k < LOGIT_TYPES; k++) {
        problem p = problem_make(logit_types[k], 4 * ROW_KINDS, vocab, k == 1, 61 + (uint64_t)k);
        problem_check(run, &p, "long rows");
        problem_free(&p);
    }
}

/* The leaf of |z| <= 64 against the others, and the limit of 2^20, one float on either side, at the first and last
 * place of leaves. */
static void borders_of_near_and_limit(bk_run *run) {
    static const float values[] = {64.0f,           -64.0f,   0x1.000002p6f,  -0x1.000002p6f,  0x1.fffffep5f,
                                   0x1p20f,         -0x1p20f, 0x1.000002p20f, -0x1.000002p20f, 0x1.fffffep19f,
                                   -0x1.fffffep19f, 80.0f,    -80.0f,         1000.0f,         -1000.0f};
    const int64_t places[] = {0, 1, 255, 256, 2047, 2048, 4095, 4096, 4999};
    problem p = problem_alloc(LS_F32, BK_COUNT(values) * BK_COUNT(places), 5000);
    uint64_t seed = 71;
    for (int64_t v = 0; v < BK_COUNT(values); v++)
        for (int64_t i = 0; i < BK_COUNT(places); i++) {
            const int64_t row = v * BK_COUNT(places) + i;
            row_fill(&p, row, ROW_PLAIN, &seed);
            logit_put(&p, row, places[i], values[v]);
            p.targets[row] = i % 2 == 0 ? places[i] : 17;
        }
    problem_check(run, &p, "borders");
    problem_free(&p);
}

/* ---- memory ---- */

/* Every place of the first element within 16 bytes and every distance of rows modulo 16 bytes. */
static void offsets_and_strides(bk_run *run) {
    enum { ROWS = ROW_KINDS_FINITE };
    const int64_t vocabs[] = {7, 2049};
    int64_t from[ROWS];
    for (int64_t r = 0; r < ROWS; r++) from[r] = r;
    for (int64_t k = 0; k < LOGIT_TYPES; k++)
        for (int64_t v = 0; v < BK_COUNT(vocabs); v++) {
            const int64_t in_16_bytes = 16 / ls_dtype_bytes(logit_types[k]);
            known_rows known = known_make(run, logit_types[k], ROWS, vocabs[v], 81 + (uint64_t)k);
            for (layout l = {0, 0}; l.offset < in_16_bytes; l.offset++)
                for (l.gap = 0; l.gap < in_16_bytes; l.gap++) batch_check(run, &known, from, ROWS, l, "layout");
            batch_check(run, &known, from, ROWS, (layout){3, 100003}, "layout");
            known_free(&known);
        }
}

/* ---- time ---- */

static void repeated_runs(bk_run *run) {
    const int64_t row_counts[] = {40, 520}, runs = bk_size(run, 3, 100, 100);
    for (int64_t c = 0; c < BK_COUNT(row_counts); c++) {
        const int64_t rows = row_counts[c];
        problem p = problem_make(LS_BF16, rows, bk_size(run, 2100, 2500, 50257), true, 91);
        const ls_logprob_args args = problem_put(run, &p, dense);
        row_result *out = bk_alloc(rows * (int64_t)sizeof *out);
        uint64_t expected;
        problem_reference(run, &p, out);
        expected = bk_hash(BK_HASH_START, out, rows * (int64_t)sizeof *out);
        for (int64_t i = 0; i < runs && run->failures == 0; i++) {
            BK_CALL(run, logprob, &args);
            results_get(run, &args, out);
            if (bk_hash(BK_HASH_START, out, rows * (int64_t)sizeof *out) != expected)
                bk_fail(run, "%lld rows: run %lld has another hash", (long long)rows, (long long)i);
        }
        bk_clear(run);
        free(out);
        problem_free(&p);
    }
}

static void the_default_stream(bk_run *run) {
    void *stream = run->exec.stream;
    problem p = problem_make(LS_F32, 30, 5000, true, 101);
    run->exec.stream = NULL;
    problem_check(run, &p, "default stream");
    run->exec.stream = stream;
    problem_free(&p);
}

/* Two problems at once, one dealt by leaves and one by rows, each many times. */
static void two_streams(bk_run *run) {
    const int64_t rows[2] = {100, 700}, rounds = bk_size(run, 2, 50, 50);
    problem p[2];
    ls_logprob_args args[2];
    ls_exec exec[2];
    for (int i = 0; i < 2; i++) {
        p[i] =
            problem_make(i == 0 ? LS_BF16 : LS_F32, rows[i], bk_size(run, 2100, 2100, 20481), true, 111 + (uint64_t)i);
        args[i] = problem_put(run, &p[i], dense);
        exec[i] = bk_async_exec(run, ls_op_logprob_workspace(&args[i]));
    }
    for (int64_t round = 0; round < rounds; round++)
        for (int i = 0; i < 2; i++)
            if (ls_op_logprob(&exec[i], &args[i], &run->err) != LS_OK) bk_fail(run, "stream %d: %s", i, run->err.text);
    for (int i = 0; i < 2; i++) {
        if (ls_fault_take(&exec[i], &run->err) != LS_OK) bk_fail(run, "stream %d: %s", i, run->err.text);
        results_check(run, &p[i], &args[i], "two streams");
    }
    bk_after_call(run);
    for (int i = 0; i < 2; i++) {
        ls_stream_free(exec[i].backend, exec[i].stream);
        problem_free(&p[i]);
    }
}

/* A captured call reads what its arrays hold when the graph runs. */
static void graph_replay(bk_run *run) {
    const int64_t row_counts[] = {60, 600};
    for (int64_t c = 0; c < BK_COUNT(row_counts); c++) {
        const int64_t rows = row_counts[c], vocab = bk_size(run, 2100, 2100, 10241);
        problem p = problem_make(LS_BF16, rows, vocab, true, 121);
        const ls_logprob_args args = problem_put(run, &p, dense);
        ls_exec exec = bk_async_exec(run, ls_op_logprob_workspace(&args));
        void *graph = NULL;
        if (ls_graph_begin(&exec, &run->err) != LS_OK) bk_die(run, "capture");
        if (ls_op_logprob(&exec, &args, &run->err) != LS_OK) bk_fail(run, "captured call: %s", run->err.text);
        if (ls_graph_end(&exec, &graph, &run->err) != LS_OK) bk_die(run, "capture");
        for (uint64_t replay = 0; replay < 4; replay++) {
            problem_free(&p);
            p = problem_make(LS_BF16, rows, vocab, true, 122 + replay % 3);
            bk_upload(run, (void *)(uintptr_t)args.logits, p.logits, rows * row_bytes(&p));
            bk_upload(run, (void *)(uintptr_t)args.targets, p.targets, rows * 8);
            bk_upload(run, (void *)(uintptr_t)args.temperature, p.temperature, rows * 4);
            if (ls_graph_launch(&exec, graph, &run->err) != LS_OK) bk_fail(run, "launch: %s", run->err.text);
            if (ls_fault_take(&exec, &run->err) != LS_OK) bk_fail(run, "launch: %s", run->err.text);
            results_check(run, &p, &args, "graph");
        }
        bk_after_call(run);
        ls_graph_free(graph);
        ls_stream_free(exec.backend, exec.stream);
        bk_clear(run);
        problem_free(&p);
    }
}

/* ---- accuracy ---- */

static row_result row_errors(const problem *p, int64_t row, row_result got) {
    const float inv_t = 1.0f / p->temperature[row];
    const double target = (double)(logit_get(p, row, p->targets[row]) * inv_t);
    double top = -INFINITY, sum = 0.0, mean = 0.0, lse, entropy;
    for (int64_t i = 0; i < p->vocab; i++) top = fmax(top, (double)(logit_get(p, row, i) * inv_t));
    for (int64_t i = 0; i < p->vocab; i++) {
        const double z = (double)(logit_get(p, row, i) * inv_t) - top, weight = exp(z);
        sum += weight;
        mean += weight * z;
    }
    lse = top + log(sum);
    entropy = log(sum) - mean / sum;
    return (row_result){(float)(fabs((double)got.logprob - (target - lse)) / fmax(1.0, fabs(target - lse))),
                        (float)(fabs((double)got.lse - lse) / fmax(1.0, fabs(lse))),
                        (float)(fabs((double)got.entropy - entropy) / fmax(1.0, entropy))};
}

/* Against float64, logits within +-40: 2e-6 of max(1, |value|). */
static void accuracy(bk_run *run) {
    static const float spreads[] = {0.5f, 3.0f, 12.0f, 40.0f};
    const int64_t vocabs[] = {2, 300, 2049, 50257, 151936};
    row_result worst = {0.0f, 0.0f, 0.0f};
    uint64_t seed = 131;
    for (int64_t v = 0; v < BK_COUNT(vocabs); v++)
        for (int64_t k = 0; k < LOGIT_TYPES; k++) {
            const int64_t rows = vocabs[v] > 5000 ? 4 : 40;
            problem p = problem_alloc(logit_types[k], rows, vocabs[v]);
            row_result *got = bk_alloc(rows * (int64_t)sizeof *got);
            for (int64_t r = 0; r < rows; r++) {
                const float spread = spreads[r % BK_COUNT(spreads)],
                            middle = test_uniform(&seed, spread - 40.0f, 40.0f - spread);
                for (int64_t i = 0; i < vocabs[v]; i++)
                    logit_put(&p, r, i, middle + test_uniform(&seed, -spread, spread));
                p.targets[r] = (int64_t)(test_random(&seed) % (uint64_t)vocabs[v]);
                p.temperature[r] = k == 1 ? 1.3f : 1.0f;
            }
            problem_run(run, &p, dense, got);
            for (int64_t r = 0; r < rows; r++) {
                const row_result error = row_errors(&p, r, got[r]);
                if (!(error.logprob <= 2e-6f && error.lse <= 2e-6f && error.entropy <= 2e-6f))
                    bk_fail(run, "vocabulary %lld, %s, row %lld: errors %g, %g, %g", (long long)vocabs[v],
                            ls_dtype_name(p.dtype), (long long)r, (double)error.logprob, (double)error.lse,
                            (double)error.entropy);
                worst.logprob = fmaxf(worst.logprob, error.logprob);
                worst.lse = fmaxf(worst.lse, error.lse);
                worst.entropy = fmaxf(worst.entropy, error.entropy);
            }
            free(got);
            problem_free(&p);
        }
    printf("worst error of max(1, |x|): logprob %.2g, lse %.2g, entropy %.2g\n", (double)worst.logprob,
           (double)worst.lse, (double)worst.entropy);
}

/* ---- 64-bit addresses ---- */

/* rows * vocab just above 2^31 and 2^32. */
static void more_logits_than_32_bits_count(bk_run *run) {
    enum { BLOCK = 64, VOCAB = 65536 };
    const int64_t row_counts[] = {(1 << 15) + BLOCK, (1 << 16) + BLOCK};
    known_rows known;
    if (run->small) {
        bk_skip(run, "LS_SMALL");
        return;
    }
    known = known_make(run, LS_BF16, BLOCK, VOCAB, 141);
    for (int64_t c = 0; c < BK_COUNT(row_counts); c++) {
        ls_logprob_args args;
        if (problem_put_repeated(run, &known.p, row_counts[c], &args)) {
            BK_CALL(run, logprob, &args);
            results_compare(run, known.out, BLOCK, &args, "many logits");
        } else {
            bk_skip(run, "%lld rows of %d: %s", (long long)row_counts[c], VOCAB, run->err.text);
        }
        bk_clear(run);
    }
    known_free(&known);
}

/* Rows so far apart that row * stride passes 2^31 and 2^32, on both ways through the op. */
static void strides_beyond_32_bits(bk_run *run) {
    static const struct {
        ls_dtype dtype;
        int64_t rows, stride;
    } cases[] = {{LS_BF16, 2, (1LL << 31) + 17},
                 {LS_F32, 2, (1LL << 31) + 17},
                 {LS_BF16, 3, (1LL << 32) + 17},
                 {LS_BF16, 600, (1LL << 23) + 17}};
    if (run->small) {
        bk_skip(run, "LS_SMALL");
        return;
    }
    for (int64_t c = 0; c < BK_COUNT(cases); c++) {
        const int64_t rows = cases[c].rows, size = ls_dtype_bytes(cases[c].dtype), vocab = 5000;
        known_rows known = known_make(run, cases[c].dtype, rows, vocab, 151 + (uint64_t)c);
        ls_logprob_args args = problem_put(run, &known.p, dense);
        uint8_t *logits = bk_try_new(run, "logits", ((rows - 1) * cases[c].stride + vocab) * size, 0);
        if (logits == NULL) {
            bk_skip(run, "stride %lld: %s", (long long)cases[c].stride, run->err.text);
        } else {
            for (int64_t r = 0; r < rows; r++)
                bk_upload(run, logits + r * cases[c].stride * size, row_at(&known.p, r), row_bytes(&known.p));
            args.logits = logits;
            args.row_stride = cases[c].stride;
            BK_CALL(run, logprob, &args);
            results_compare(run, known.out, rows, &args, "long stride");
        }
        bk_clear(run);
        known_free(&known);
    }
}

/* ---- the comparison itself ---- */

/* Wrong on purpose: up to eight rows it adds in leaves of 2,048, above in leaves of 256. */
static void planted_run(bk_run *run, const problem *p, layout l, row_result *out) {
    const int64_t leaf = p->rows <= 8 ? 2048 : 256;
    (void)run, (void)l;
    for (int64_t r = 0; r < p->rows; r++) {
        float top = -INFINITY, sum = 0.0f;
        for (int64_t i = 0; i < p->vocab; i++) top = ls_max(logit_get(p, r, i), top);
        for (int64_t base = 0; base < p->vocab; base += leaf) {
            float part = 0.0f;
            for (int64_t i = base; i < base + leaf && i < p->vocab; i++)
                part = ls_add(part, ls_exp(ls_sub(logit_get(p, r, i), top)));
            sum = ls_add(sum, part);
        }
        out[r].entropy = 0.0f;
        out[r].lse = ls_add(top, ls_log(sum));
        out[r].logprob = ls_sub(logit_get(p, r, p->targets[r]), out[r].lse);
    }
}

/* Batches that add in the same order must agree by the same comparison that must tell the others apart. */
static void an_order_that_depends_on_the_batch_is_seen(bk_run *run) {
    enum { ROWS = 40 };
    int64_t from[ROWS];
    known_rows known = known_make(run, LS_F32, ROWS, 5000, 161);
    uint64_t seed = 161;
    for (int64_t r = 0; r < ROWS; r++) {
        problem alone = {LS_F32, 1, known.p.vocab, row_at(&known.p, r), &known.p.targets[r], NULL, NULL};
        row_fill(&known.p, r, ROW_PLAIN, &seed);
        planted_run(run, &alone, dense, &known.out[r]);
        from[r] = r;
    }
    if (batch_compare(run, planted_run, &known, from, 8, dense, NULL) != 0) bk_fail(run, "one order, and bits differ");
    if (batch_compare(run, planted_run, &known, from, 9, dense, NULL) == 0)
        bk_fail(run, "9 rows: another order is not seen");
    if (batch_compare(run, planted_run, &known, from, ROWS, dense, NULL) == 0)
        bk_fail(run, "another order is not seen");
    known_free(&known);
}

int main(int argc, char **argv) {
    static const bk_case cases[] = {
        {"batch_sizes_and_positions", batch_sizes_and_positions, BK_ANYWHERE},
        {"row_counts_around_the_split", row_counts_around_the_split, BK_ANYWHERE},
        {"padding_by_mask_and_by_index", padding_by_mask_and_by_index, BK_ANYWHERE},
        {"optional_arrays", optional_arrays, BK_ANYWHERE},
        {"every_vocabulary", every_vocabulary, BK_ANYWHERE},
        {"every_kind_of_row_when_long", every_kind_of_row_when_long, BK_ANYWHERE},
        {"borders_of_near_and_limit", borders_of_near_and_limit, BK_ANYWHERE},
        {"offsets_and_strides", offsets_and_strides, BK_ANYWHERE},
        {"repeated_runs", repeated_runs, BK_ANYWHERE},
        {"the_default_stream", the_default_stream, BK_CUDA_ONLY},
        {"two_streams", two_streams, BK_CUDA_ONLY},
        {"graph_replay", graph_replay, BK_CUDA_ONLY},
        {"accuracy", accuracy, BK_ANYWHERE},
        {"more_logits_than_32_bits_count", more_logits_than_32_bits_count, BK_CUDA_ONLY},
        {"strides_beyond_32_bits", strides_beyond_32_bits, BK_CUDA_ONLY},
        {"an_order_that_depends_on_the_batch_is_seen", an_order_that_depends_on_the_batch_is_seen, BK_ANYWHERE},
    };
    return bk_main(argc, argv, cases, BK_COUNT(cases));
}
