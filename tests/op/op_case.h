/* What tests of ops share: devices for every instruction set and thread count, typed arrays with guards, seeded values,
 * comparison in bits, pools with poison, and plans that cut sequences into spans and pack them into batches.
 *
 * The `_ref` functions of these tests are written from the comments in src/op, with num/ only; they are the second
 * reading of each contract. */
#ifndef LS_TESTS_OP_CASE_H
#define LS_TESTS_OP_CASE_H

#include <math.h>
#include <stdlib.h>

#include "harness.h"
#include "num/expf.h"
#include "num/half.h"
#include "op/backend.h"
#include "op/span.h"

#define OP_COUNT(array) ((int64_t)(sizeof(array) / sizeof((array)[0])))
#define OP_THREADS_MAX 3
#define OP_GUARD 0xA5  /* fills outputs: a write where none belongs shows */
#define OP_POISON 0xFF /* fills inputs' padding and pools: NaN in every type, so a read where none belongs shows */

/* ---- back ends ---- */

static ls_device *op_devices[LS_ISA_COUNT][OP_THREADS_MAX]; /* NULL where the processor cannot run the set */
static ls_isa op_isas[LS_ISA_COUNT] __attribute__((unused)) = {LS_ISA_GENERIC, LS_ISA_AVX2, LS_ISA_AVX512};

static inline int op_open(void **state) {
    (void)state;
    for (int isa = 0; isa < LS_ISA_COUNT; isa++)
        for (int32_t t = 0; t < OP_THREADS_MAX && ls_isa_available((ls_isa)isa); t++) {
            ls_error err;
            if (ls_device_open_cpu(&op_devices[isa][t], t + 1, (ls_isa)isa, &err) != LS_OK) {
                print_message("%s\n", err.text);
                return -1;
            }
        }
    return 0;
}

/* What references gave, of this program: op_recall. */
typedef struct op_kept {
    uint64_t key;
    void *data;
} op_kept;
static op_kept *op_kept_list;
static int64_t op_n_kept;

static inline int op_close(void **state) {
    (void)state;
    for (int64_t i = 0; i < op_n_kept; i++) free(op_kept_list[i].data);
    free(op_kept_list);
    for (int isa = 0; isa < LS_ISA_COUNT; isa++)
        for (int32_t t = 0; t < OP_THREADS_MAX; t++) ls_device_close(op_devices[isa][t]);
    return 0;
}

/* One case for each instruction set, which the case asks for with op_isa(). */
#define OP_CASES(function)                                          \
    {#function "_generic", (function), NULL, NULL, &op_isas[0]},    \
        {#function "_avx2", (function), NULL, NULL, &op_isas[1]}, { \
#function "_avx512", (function), NULL, NULL, &op_isas[2]    \
    }

/* The instruction set of this case; leaves the case as skipped where the processor cannot run it. */
static inline ls_isa op_isa(void **state) {
    const ls_isa isa = *(const ls_isa *)*state;
    if (op_devices[isa][0] == NULL) {
        print_message("skipped: instruction set %s is not available here\n", ls_isa_name(isa));
        skip();
    }
    return isa;
}

/* ---- values ---- */

typedef float (*op_maker)(uint64_t *seed);

static inline float op_plain(uint64_t *seed) { return test_uniform(seed, -1.0f, 1.0f); }
static inline float op_wide(uint64_t *seed) { return test_uniform(seed, -8.0f, 8.0f); }

/* Mostly plain; sometimes NaN of either sign and any payload, infinities, zeros, denormals, huge and tiny values. */
static inline float op_special(uint64_t *seed) {
    const uint64_t u = test_random(seed);
    const uint32_t sign = (uint32_t)(u >> 63) << 31, bits = (uint32_t)(u >> 32) & 0x007FFFFFu;
    switch (u % 300) {
        case 0: return ls_from_bits(sign | 0x7F800000u | bits | 1u);
        case 1: return ls_from_bits(sign | 0x7F800000u);
        case 2: return ls_from_bits(sign | 0x7F7FFFFFu);
        default: break;
    }
    switch (u % 16) {
        case 3: return ls_from_bits(sign);
        case 4: return ls_from_bits(sign | bits);
        case 5: return ls_from_bits(sign | 0x1F800000u | bits);
        case 6: return ls_from_bits(sign | 0x5D000000u | bits);
        case 7: return ls_from_bits(sign | 0x00800000u | bits);
        default: return op_plain(seed);
    }
}

static inline float op_round(float x, ls_dtype dtype) {
    return dtype == LS_F32 ? x : dtype == LS_BF16 ? ls_round_bf16(x) : ls_f16_to_f32(ls_f32_to_f16(x));
}

/* num/sum.h read as a recursion: chains fold within each run of 8, then runs fold by halves. */
static inline float op_fold_run(const float *run, int i, int step) {
    return step == 8 ? run[i] : ls_add(op_fold_run(run, i, 2 * step), op_fold_run(run, i + step, 2 * step));
}
static inline float op_fold_runs(const float *chain, int i, int step) {
    return step == 32 ? op_fold_run(chain + (ptrdiff_t)8 * i, 0, 1)
                      : ls_add(op_fold_runs(chain, i, 2 * step), op_fold_runs(chain, i + step, 2 * step));
}
static inline float op_fold(const float chain[256]) { return op_fold_runs(chain, 0, 1); }

/* ---- typed arrays ---- */

typedef struct op_array {
    ls_dtype dtype;
    int64_t rows, cols, stride; /* elements */
    int64_t bytes;              /* from the first element to the last, with no padding after it */
    uint8_t *data;              /* one element past the start of `owned`, so that nothing is aligned by luck */
    void *owned;
} op_array;

static inline void *op_alloc(int64_t bytes) {
    void *p = malloc((size_t)bytes + 1);
    assert_non_null(p);
    return p;
}

static inline op_array op_array_make(ls_dtype dtype, int64_t rows, int64_t cols, int64_t pad) {
    const int64_t elem = ls_dtype_bytes(dtype);
    op_array a = {dtype, rows, cols, cols + pad, 0, NULL, NULL};
    a.bytes = rows == 0 ? 0 : ((rows - 1) * a.stride + cols) * elem;
    a.owned = malloc((size_t)(a.bytes + elem));
    assert_non_null(a.owned);
    a.data = (uint8_t *)a.owned + elem;
    memset(a.data, OP_POISON, (size_t)a.bytes);
    return a;
}

static inline void op_array_free(op_array *a) {
    free(a->owned);
    a->owned = NULL;
}

/* ---- references, which are the same for every instruction set: computed for the first that asks ---- */

/* A key that tells `bytes` more of what a reference reads. */
static inline uint64_t op_key(uint64_t key, const void *data, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i += 8) {
        uint64_t word = 0;
        memcpy(&word, (const uint8_t *)data + i, (size_t)(bytes - i < 8 ? bytes - i : 8));
        key = (key ^ word) * UINT64_C(0x9E3779B97F4A7C15);
        key ^= key >> 29;
    }
    return key;
}
static inline uint64_t op_key_array(uint64_t key, const op_array *a) {
    const int64_t form[] = {a->dtype, a->rows, a->cols, a->stride, a->bytes};
    return op_key(op_key(key, form, sizeof form), a->data, a->bytes);
}

/* Whether a reference was kept under `key`, which tells all that it reads and the form of `out`: out has it then. */
static inline bool op_recall(uint64_t key, const op_array *out) {
    for (int64_t i = 0; i < op_n_kept; i++) {
        if (op_kept_list[i].key != key) continue;
        memcpy(out->data, op_kept_list[i].data, (size_t)out->bytes);
        return true;
    }
    return false;
}
static inline void op_keep(uint64_t key, const op_array *out) {
    op_kept *list = realloc(op_kept_list, (size_t)(op_n_kept + 1) * sizeof *list);
    assert_non_null(list);
    op_kept_list = list;
    list[op_n_kept].key = key;
    memcpy(list[op_n_kept++].data = op_alloc(out->bytes), out->data, (size_t)out->bytes);
}

static inline op_array op_copy(const op_array *a) {
    const op_array copy = op_array_make(a->dtype, a->rows, a->cols, a->stride - a->cols);
    memcpy(copy.data, a->data, (size_t)a->bytes);
    return copy;
}

/* The elements of a float32 array. */
static inline float *op_floats(const op_array *a) {
    assert_int_equal(a->dtype, LS_F32);
    return (float *)(void *)a->data;
}

static inline void *op_at(const op_array *a, int64_t row, int64_t col) {
    return a->data + (row * a->stride + col) * ls_dtype_bytes(a->dtype);
}

static inline void op_put(const op_array *a, int64_t row, int64_t col, float value) {
    const uint16_t half = a->dtype == LS_BF16 ? ls_f32_to_bf16(value) : ls_f32_to_f16(value);
    if (a->dtype == LS_F32)
        memcpy(op_at(a, row, col), &value, 4);
    else
        memcpy(op_at(a, row, col), &half, 2);
}

static inline float op_get(const op_array *a, int64_t row, int64_t col) {
    uint16_t half;
    float value;
    if (a->dtype == LS_F32) {
        memcpy(&value, op_at(a, row, col), 4);
        return value;
    }
    memcpy(&half, op_at(a, row, col), 2);
    return a->dtype == LS_BF16 ? ls_bf16_to_f32(half) : ls_f16_to_f32(half);
}

static inline void op_fill_row(const op_array *a, int64_t row, op_maker make, uint64_t *seed) {
    for (int64_t c = 0; c < a->cols; c++) op_put(a, row, c, make(seed));
}
static inline void op_fill(const op_array *a, op_maker make, uint64_t *seed) {
    for (int64_t r = 0; r < a->rows; r++) op_fill_row(a, r, make, seed);
}
static inline void op_guard(const op_array *a) { memset(a->data, OP_GUARD, (size_t)a->bytes); }

/* ---- comparison ---- */

/* PINNED: NaN is compared like any other bits. ANY: the contract leaves the payload of a float32 NaN open, so a NaN
 * equals a NaN. 16-bit outputs are pinned by num/half.h: the rounding knows one NaN. */
typedef enum op_nan { OP_NAN_PINNED, OP_NAN_ANY } op_nan;

static inline bool op_is_nan(const uint8_t *elem, ls_dtype dtype) {
    uint32_t u = 0;
    memcpy(&u, elem, (size_t)ls_dtype_bytes(dtype));
    return dtype == LS_F32 && (u & 0x7FFFFFFFu) > 0x7F800000u;
}

/* Elements that differ in bits, guards between rows included; text (160 bytes) names the first. */
static inline int64_t op_diffs(const op_array *expected, const op_array *got, op_nan nan, char *text) {
    const int64_t elem = ls_dtype_bytes(expected->dtype);
    int64_t diffs = 0;
    text[0] = '\0';
    assert_int_equal(expected->bytes, got->bytes);
    if (memcmp(expected->data, got->data, (size_t)got->bytes) == 0) return 0;
    for (int64_t i = 0; i < got->bytes; i += elem) {
        const uint8_t *a = expected->data + i, *b = got->data + i;
        uint32_t a_bits = 0, b_bits = 0;
        if (memcmp(a, b, (size_t)elem) == 0) continue;
        if (nan == OP_NAN_ANY && op_is_nan(a, got->dtype) && op_is_nan(b, got->dtype)) continue;
        memcpy(&a_bits, a, (size_t)elem);
        memcpy(&b_bits, b, (size_t)elem);
        if (diffs++ == 0)
            snprintf(text, 160, "row %lld column %lld of %lld: expected %#x, got %#x",
                     (long long)(i / elem / got->stride), (long long)(i / elem % got->stride), (long long)got->cols,
                     a_bits, b_bits);
    }
    return diffs;
}

static inline void __attribute__((format(printf, 4, 5)))
op_check(const op_array *expected, const op_array *got, op_nan nan, const char *format, ...) {
    char text[160], what[256];
    const int64_t diffs = op_diffs(expected, got, nan, text);
    va_list args;
    if (diffs == 0) return;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    fail_msg("%s: %lld elements differ; %s", what, (long long)diffs, text);
}

/* ---- pools ---- */

typedef struct op_pool {
    ls_pool_view view;
    int64_t entry_bytes, bytes;
    void *owned;
} op_pool;

/* n entries of entry_bytes, gap bytes apart, all poison. Entries lie at multiples of 16 bytes where the stride does. */
static inline op_pool op_pool_make(int64_t n, int64_t entry_bytes, int64_t gap) {
    op_pool pool = {{NULL, entry_bytes + gap, n}, entry_bytes, n * (entry_bytes + gap), NULL};
    pool.owned = op_alloc(pool.bytes + 16);
    pool.view.base = (uint8_t *)pool.owned + (pool.view.stride % 16 == 0 ? 16 : 4);
    memset(pool.view.base, OP_POISON, (size_t)pool.bytes);
    return pool;
}

static inline void op_pool_poison(const op_pool *pool) { memset(pool->view.base, OP_POISON, (size_t)pool->bytes); }
static inline void op_pool_free(op_pool *pool) { free(pool->owned); }

/* No byte outside the entries named by ids changed. */
static inline void op_pool_check_others(const op_pool *pool, const int32_t *ids, int64_t n, const char *what) {
    for (int64_t e = 0; e < pool->view.n_entries; e++) {
        const uint8_t *bytes = pool->view.base + e * pool->view.stride;
        int64_t from = 0;
        for (int64_t i = 0; i < n; i++)
            if (ids[i] == e) from = pool->entry_bytes;
        for (int64_t i = from; i < pool->view.stride; i++)
            if (bytes[i] != OP_POISON)
                fail_msg("%s: byte %lld of pool entry %lld changed", what, (long long)i, (long long)e);
    }
}

/* ---- plans: sequences cut into spans, spans packed into batches ---- */

#define OP_SEQS_MAX 8

/* Tokens of all sequences lie one after another in the arrays of a case; sequence s starts at row offset[s]. */
typedef struct op_plan {
    int64_t n_seqs, length[OP_SEQS_MAX], offset[OP_SEQS_MAX], done[OP_SEQS_MAX];
    int32_t slot[OP_SEQS_MAX];
    int64_t table[OP_SEQS_MAX]; /* where its pages begin in the tables of the case */
    int64_t chunk;              /* tokens of a span; 0: the whole sequence, -1: random */
    bool alone;                 /* one sequence at a time, without padding */
    uint64_t seed;
} op_plan;

typedef struct op_batch {
    int64_t n_rows, n_spans, cap;
    int64_t *source; /* [n_rows]: row in the arrays of the case, or -1 for padding */
    ls_span spans[3 * OP_SEQS_MAX];
} op_batch;

/* Chunk sizes that every op with state is tested with; the random cut twice. */
static const int64_t op_chunks[] = {0, 1, 2, 3, 5, 64, -1, -1};

static inline op_plan op_plan_make(int64_t n_seqs, const int64_t *length, const int32_t *slot) {
    op_plan plan;
    memset(&plan, 0, sizeof plan);
    plan.n_seqs = n_seqs;
    for (int64_t s = 0, at = 0; s < n_seqs; at += length[s++]) {
        plan.length[s] = length[s];
        plan.offset[s] = at;
        plan.slot[s] = slot[s];
    }
    return plan;
}

static inline int64_t op_plan_rows(const op_plan *plan) {
    return plan->offset[plan->n_seqs - 1] + plan->length[plan->n_seqs - 1];
}

static inline void op_batch_rows(op_batch *batch, int64_t n, int64_t source) {
    for (int64_t i = 0; i < n; i++) {
        assert_true(batch->n_rows < batch->cap);
        batch->source[batch->n_rows++] = source < 0 ? -1 : source + i;
    }
}

static inline op_batch op_batch_make(const op_plan *plan) {
    op_batch batch;
    memset(&batch, 0, sizeof batch);
    batch.cap = op_plan_rows(plan) + 8 * OP_SEQS_MAX;
    batch.source = op_alloc(batch.cap * (int64_t)sizeof *batch.source);
    return batch;
}

/* The next batch: a span of each unfinished sequence in an order that changes, with padding spans (slot -1) and rows of
 * no span in between. False when all sequences are done. */
static inline bool op_plan_next(op_plan *plan, op_batch *batch) {
    const int64_t first = (int64_t)(test_random(&plan->seed) % (uint64_t)plan->n_seqs);
    batch->n_rows = 0;
    batch->n_spans = 0;
    for (int64_t i = 0; i < plan->n_seqs; i++) {
        const int64_t s = (first + i * (plan->n_seqs > 2 ? plan->n_seqs - 1 : 1)) % plan->n_seqs;
        const int64_t left = plan->length[s] - plan->done[s];
        int64_t n = plan->chunk > 0 ? plan->chunk : left;
        ls_span *span;
        if (left == 0) continue;
        if (plan->chunk < 0) n = 1 + (int64_t)(test_random(&plan->seed) % (uint64_t)(left < 70 ? left : 70));
        if (n > left) n = left;
        if (!plan->alone && test_random(&plan->seed) % 2 == 0) {
            const int64_t pads = 1 + (int64_t)(test_random(&plan->seed) % 3);
            const ls_span padding = {batch->n_rows, pads, (int64_t)(test_random(&plan->seed) % 2), -1, 0};
            batch->spans[batch->n_spans++] = padding;
            op_batch_rows(batch, pads, -1);
        }
        if (!plan->alone && test_random(&plan->seed) % 4 == 0) op_batch_rows(batch, 2, -1);
        span = &batch->spans[batch->n_spans++];
        span->row = batch->n_rows;
        span->n_rows = n;
        span->pos = plan->done[s];
        span->slot = plan->slot[s];
        span->table = plan->table[s];
        op_batch_rows(batch, n, plan->offset[s] + plan->done[s]);
        plan->done[s] += n;
        if (plan->alone) break;
    }
    return batch->n_spans > 0;
}

/* Rows of `from` where the batch wants them, over bytes of `fill`; padding rows stay fill. */
static inline op_array op_gather(const op_array *from, const op_batch *batch, int fill, int64_t pad) {
    const op_array to = op_array_make(from->dtype, batch->n_rows, from->cols, pad);
    memset(to.data, fill, (size_t)to.bytes);
    for (int64_t r = 0; r < batch->n_rows; r++)
        if (batch->source[r] >= 0)
            memcpy(op_at(&to, r, 0), op_at(from, batch->source[r], 0),
                   (size_t)(from->cols * ls_dtype_bytes(from->dtype)));
    return to;
}

#endif
