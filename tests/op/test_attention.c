/* Causal attention over paged keys and values against a textbook reading of its contract, bit for bit. The reference
 * reads whole sequences and knows no pages; the op sees them in every kind of span, batch and page table. */
#include "num/half.h"
#include "num/mma16.h"
#include "op/attention.h"
#include "op/op_case.h"

#define BLOCK 64
#define SEGMENT 1024

typedef struct problem {
    op_plan plan; /* sequences, not yet begun, with their pages */
    int64_t n_heads, n_kv_heads, head_dim, page_tokens;
    float scale;
    int64_t window;
    ls_profile profile;
    op_array q, k, v, out; /* tokens of all sequences; rows of out that `checked` names are expected */
    bool *checked;
    op_pool pool;
    int32_t *page_ids; /* of all sequences, one after another */
    int64_t n_page_ids;
} problem;

/* Wrong on purpose: sums of a block as one chain, one maximum for all keys, no segments, blocks of 32 keys, scale put
 * into the query first; a window of one more and of one less, the block in which it begins skipped, blocks and segments
 * that begin where it does. */
typedef enum variant {
    RIGHT,
    SUM_IN_A_CHAIN,
    TWO_PASSES,
    NO_SEGMENTS,
    BLOCKS_OF_32,
    QUERY_SCALED,
    WINDOW_MORE,
    WINDOW_LESS,
    BLOCK_SKIPPED,
    BLOCKS_OF_WINDOW,
    SEGMENTS_OF_WINDOW
} variant;

typedef struct partial {
    float m, l, acc[LS_HEAD_DIM_MAX];
} partial;

static void partial_reset(partial *p) {
    p->m = -INFINITY;
    p->l = 0.0f;
    for (int64_t d = 0; d < LS_HEAD_DIM_MAX; d++) p->acc[d] = 0.0f;
}

static float fold_halves(const float *e, int64_t i, int64_t step, int64_t n) {
    return step == n ? e[i] : ls_add(fold_halves(e, i, 2 * step, n), fold_halves(e, i + step, 2 * step, n));
}

static float score_ref(const problem *p, int64_t q_row, int64_t head, int64_t k_row, int64_t kv_head, variant v) {
    float chain = 0.0f;
    for (int64_t d = 0; d < p->head_dim; d++) {
        float q = op_get(&p->q, q_row, head * p->head_dim + d);
        if (v == QUERY_SCALED) q = ls_mul(q, p->scale);
        chain = ls_fma(q, op_get(&p->k, k_row, kv_head * p->head_dim + d), chain);
    }
    return v == QUERY_SCALED ? chain : ls_mul(p->scale, chain);
}

/* Takes n keys from k_row on into p, those of one block; the first is number `at` of it. */
static void block_ref(const problem *p, partial *part, const float *score, int64_t n, int64_t at, int64_t k_row,
                      int64_t kv_head, int64_t block, float top, variant v) {
    float e[BLOCK] = {0}, m = part->m, c, sum = 0.0f;
    for (int64_t j = 0; j < n; j++) m = ls_max(score[j], m);
    if (v == TWO_PASSES) m = top;
    c = ls_exp(ls_sub(part->m, m));
    for (int64_t j = 0; j < n; j++) {
        e[at + j] = ls_exp(ls_sub(score[j], m));
        sum = ls_add(sum, e[at + j]);
    }
    if (v != SUM_IN_A_CHAIN) sum = fold_halves(e, 0, 1, block);
    part->l = ls_fma(part->l, c, sum);
    for (int64_t d = 0; d < p->head_dim; d++) {
        part->acc[d] = ls_mul(part->acc[d], c);
        for (int64_t j = 0; j < n; j++)
            part->acc[d] = ls_fma(e[at + j], op_get(&p->v, k_row + j, kv_head * p->head_dim + d), part->acc[d]);
    }
    part->m = m;
}

static void segment_join(partial *all, const partial *part, int64_t head_dim) {
    const float m = ls_max(all->m, part->m), a = ls_exp(ls_sub(all->m, m)), b = ls_exp(ls_sub(part->m, m));
    all->l = ls_fma(all->l, a, ls_mul(part->l, b));
    for (int64_t d = 0; d < head_dim; d++) all->acc[d] = ls_fma(all->acc[d], a, ls_mul(part->acc[d], b));
    all->m = m;
}

/* Head `head` of token pos of sequence s. */
static void query_ref(const problem *p, int64_t s, int64_t pos, int64_t head, const op_array *out, variant v) {
    const int64_t kv_head = head / (p->n_heads / p->n_kv_heads), first = p->plan.offset[s];
    const int64_t segment = v == NO_SEGMENTS ? 1 << 30 : SEGMENT, block = v == BLOCKS_OF_32 ? 32 : BLOCK;
    const int64_t window = p->window == 0 ? 1 << 30 : p->window + (v == WINDOW_MORE) - (v == WINDOW_LESS);
    const int64_t low = pos < window         ? 0
                        : v == BLOCK_SKIPPED ? (pos - window) / BLOCK * BLOCK + BLOCK
                                             : pos - window + 1;
    const int64_t block_from = v == BLOCKS_OF_WINDOW ? low % BLOCK : 0;
    const int64_t segment_from = v == SEGMENTS_OF_WINDOW ? low / BLOCK * BLOCK % SEGMENT : 0;
    float *score = op_alloc((pos + 1) * 4), top = -INFINITY;
    bool began = false;
    partial part, all;
    for (int64_t j = low; j <= pos; j++) {
        score[j] = score_ref(p, first + pos, head, first + j, kv_head, v);
        top = ls_max(score[j], top);
    }
    for (int64_t j = low, n; j <= pos; j += n) {
        const int64_t at = (j - block_from) % block;
        n = pos + 1 - j < block - at ? pos + 1 - j : block - at;
        if (j == low || (j - segment_from) % segment == 0) partial_reset(&part);
        block_ref(p, &part, score + j, n, at, first + j, kv_head, block, top, v);
        if (j + n <= pos && (j + n - segment_from) % segment != 0) continue;
        if (began)
            segment_join(&all, &part, p->head_dim);
        else
            all = part;
        began = true;
    }
    for (int64_t d = 0; d < p->head_dim; d++)
        op_put(out, first + pos, head * p->head_dim + d, ls_div(all.acc[d], all.l));
    free(score);
}

/* ---- the profile mma16 ---- */

/* Wrong on purpose: blocks of 64 keys, each block's sum begun from nothing, weights that are not rounded, exponents
 * that are not multiples of 2^-13, maxima that rise a little, the sum of weights that are not rounded, no segments. */
typedef enum mma16_variant {
    MMA16_RIGHT,
    MMA16_BLOCKS_OF_64,
    MMA16_SUMS_BEGIN_AGAIN,
    MMA16_NOT_ROUNDED,
    MMA16_EXPONENTS_AS_THEY_ARE,
    MMA16_EVERY_MAXIMUM,
    MMA16_SUM_NOT_ROUNDED,
    MMA16_NO_SEGMENTS
} mma16_variant;

typedef struct mma16_partial {
    float m, acc[LS_ATTENTION_DIM_MMA16 + 1]; /* behind the dimensions: l */
} mma16_partial;

/* chain over n, a and b bf16, continuing from c. */
static float mma16_chain(float c, const uint16_t *a, const uint16_t *b, int64_t n) {
    uint16_t x[16], y[16];
    for (int64_t k = 0; k < n; k += 16) {
        for (int64_t i = 0; i < 16; i++) {
            x[i] = k + i < n ? a[k + i] : 0;
            y[i] = k + i < n ? b[k + i] : 0;
        }
        c = ls_from_bits(ls_mma16_step(ls_bits(c), x, 1, y, 1));
    }
    return ls_canonical(c);
}

static void mma16_reset(mma16_partial *p) {
    memset(p, 0, sizeof *p);
    p->m = -INFINITY;
}

static float mma16_larger(float a, float b) { return isnan(a) || isnan(b) ? NAN : fmaxf(a, b); }

/* Keys [low, high) of a block that begins at `first`; row of k and v at position 0: k_row. */
static void mma16_block(const problem *p, mma16_partial *part, int64_t q_row, int64_t head, int64_t k_row,
                        int64_t first, int64_t block, int64_t low, int64_t high, mma16_variant v) {
    const int64_t kv_head = head / (p->n_heads / p->n_kv_heads), dim = p->head_dim;
    const float c = ls_mul(p->scale, 0x1.715476p+0f);
    const uint16_t *q = op_at(&p->q, q_row, head * dim);
    float s[128], e[128] = {0}, top = -INFINITY, m, w;
    uint16_t rounded[128] = {0}, column[128];
    for (int64_t j = low; j < high; j++) {
        s[j] = mma16_chain(0.0f, q, op_at(&p->k, k_row + first + j, kv_head * dim), dim);
        top = mma16_larger(top, s[j]);
    }
    top = ls_mul(c, top);
    m = part->m;
    if (low < high && !(fabsf(top) <= 0x1p20f)) m = NAN;
    if (low < high && top - 1536.0f > m + (v == MMA16_EVERY_MAXIMUM ? 0.0f : 8.0f)) m = top - 1536.0f;
    w = ls_exp2_bounded(ls_sub(part->m, m));
    for (int64_t j = low; j < high; j++) {
        /* By another library's exponential, in double: what is rounded leaves one value. */
        const float lifted = v == MMA16_EXPONENTS_AS_THEY_ARE ? ls_fma(s[j], c, -ls_add(m, 1536.0f))
                                                              : ls_sub(ls_fma(s[j], c, -m), 1536.0f);
        e[j] = lifted < -126.0f ? 0.0f : (float)exp2((double)lifted);
        rounded[j] = ls_f32_to_bf16(e[j]);
    }
    for (int64_t d = 0; d <= dim; d++) {
        const int64_t n = high < block ? high : block;
        for (int64_t j = 0; j < n; j++)
            column[j] =
                j < low ? 0 : ls_f32_to_bf16(d == dim ? 1.0f : op_get(&p->v, k_row + first + j, kv_head * dim + d));
        part->acc[d] = ls_mul(part->acc[d], w);
        if (v == MMA16_SUMS_BEGIN_AGAIN) {
            part->acc[d] = ls_add(part->acc[d], mma16_chain(0.0f, rounded, column, n));
        } else if (v == MMA16_NOT_ROUNDED || (v == MMA16_SUM_NOT_ROUNDED && d == dim)) {
            for (int64_t j = low; j < high; j++) part->acc[d] = ls_fma(e[j], ls_bf16_to_f32(column[j]), part->acc[d]);
        } else {
            part->acc[d] = mma16_chain(part->acc[d], rounded, column, n);
        }
    }
    part->m = m;
}

static void mma16_join(mma16_partial *all, const mma16_partial *part, int64_t dim) {
    const float m = mma16_larger(all->m, part->m);
    const float a = ls_exp2_bounded(ls_sub(all->m, m)), b = ls_exp2_bounded(ls_sub(part->m, m));
    for (int64_t d = 0; d <= dim; d++) all->acc[d] = ls_fma(all->acc[d], a, ls_mul(part->acc[d], b));
    all->m = m;
}

/* Only blocks of which the query has a key. */
static void mma16_query(const problem *p, int64_t s, int64_t pos, int64_t head, const op_array *out, mma16_variant v) {
    const int64_t block = v == MMA16_BLOCKS_OF_64 ? 64 : 128, segment = v == MMA16_NO_SEGMENTS ? 1 << 30 : SEGMENT;
    const int64_t window = p->window == 0 ? INT64_MAX : p->window, low = pos < window ? 0 : pos - window + 1;
    const int64_t row = p->plan.offset[s] + pos, dim = p->head_dim;
    mma16_partial part, all;
    mma16_reset(&all);
    mma16_reset(&part);
    for (int64_t first = low / block * block; first <= pos; first += block) {
        mma16_block(p, &part, row, head, p->plan.offset[s], first, block, low > first ? low - first : 0,
                    pos + 1 - first < block ? pos + 1 - first : block, v);
        if (first + block <= pos && (first + block) % segment != 0) continue;
        mma16_join(&all, &part, dim);
        mma16_reset(&part);
    }
    for (int64_t d = 0; d < dim; d++)
        op_put(out, row, head * dim + d, isfinite(all.m) ? ls_fma(all.acc[d], ls_div(1.0f, all.acc[dim]), 0.0f) : NAN);
}

/* Positions whose rows the reference computes: all of short sequences, the ends of blocks and segments of long ones. */
static bool is_checked(int64_t pos, int64_t length) {
    if (length <= 150 || pos >= length - 2) return true;
    return pos % SEGMENT < 2 || pos % SEGMENT >= SEGMENT - 1 || (pos % BLOCK == 0 && pos < 4 * BLOCK) ||
           pos % 211 == 210;
}

/* Of all that attention_ref reads, and the form of what it writes. */
static uint64_t key_of(const problem *p, const op_array *out, variant v) {
    const int64_t form[] = {p->plan.n_seqs, p->n_heads, p->n_kv_heads, p->head_dim, p->window, p->profile, v,
                            out->rows,      out->cols,  out->stride,   out->bytes,  out->dtype};
    uint64_t key = op_key(op_key(0, form, sizeof form), &p->scale, sizeof p->scale);
    key = op_key(key, p->plan.length, p->plan.n_seqs * (int64_t)sizeof *p->plan.length);
    key = op_key(key, p->plan.offset, p->plan.n_seqs * (int64_t)sizeof *p->plan.offset);
    key = op_key(key, p->checked, p->q.rows * (int64_t)sizeof *p->checked);
    return op_key_array(op_key_array(op_key_array(key, &p->q), &p->k), &p->v);
}

static void attention_ref(const problem *p, const op_array *out, variant v) {
    const uint64_t key = key_of(p, out, v);
    if (op_recall(key, out)) return;
    op_guard(out);
    for (int64_t s = 0; s < p->plan.n_seqs; s++)
        for (int64_t t = 0; t < p->plan.length[s]; t++)
            for (int64_t a = 0; a < p->n_heads && p->checked[p->plan.offset[s] + t]; a++) {
                if (p->profile == LS_PROFILE_MMA16)
                    mma16_query(p, s, t, a, out, MMA16_RIGHT);
                else
                    query_ref(p, s, t, a, out, v);
            }
    op_keep(key, out);
}

typedef struct layout {
    int64_t n_heads, n_kv_heads, head_dim, page_tokens;
    ls_dtype dtype;
    int64_t window;
    ls_profile profile;
} layout;

static void problem_make(problem *p, const op_plan *plan, const layout *shape, op_maker odd, uint64_t seed) {
    const int64_t rows = op_plan_rows(plan), pt = shape->page_tokens;
    int64_t page_bytes, n_pages, at = 0;
    memset(p, 0, sizeof *p);
    p->plan = *plan;
    p->n_heads = shape->n_heads;
    p->n_kv_heads = shape->n_kv_heads;
    p->head_dim = shape->head_dim;
    p->page_tokens = pt;
    p->window = shape->window;
    p->profile = shape->profile;
    p->scale = ls_div(1.0f, ls_sqrt((float)shape->head_dim));
    p->q = op_array_make(shape->dtype, rows, shape->n_heads * shape->head_dim, 0);
    p->k = op_array_make(shape->dtype, rows, shape->n_kv_heads * shape->head_dim, 0);
    p->v = op_array_make(shape->dtype, rows, shape->n_kv_heads * shape->head_dim, 0);
    p->out = op_array_make(shape->dtype, rows, shape->n_heads * shape->head_dim, 0);
    p->checked = op_alloc(rows * (int64_t)sizeof(bool));
    for (int64_t s = 0; s < plan->n_seqs; s++) p->n_page_ids += (plan->length[s] + pt - 1) / pt;
    /* Scattered pages, some of nobody: an odd step over a pool of a power of two visits each page once. */
    for (n_pages = 1; n_pages < p->n_page_ids + 5; n_pages *= 2) {
    }
    page_bytes = ls_kv_page_bytes(p->n_kv_heads, p->head_dim, pt, shape->dtype);
    assert_int_equal(page_bytes, 2 * p->n_kv_heads * p->head_dim * pt * ls_dtype_bytes(shape->dtype));
    p->pool = op_pool_make(n_pages, page_bytes, 4 + 4 * (shape->head_dim % 3));
    p->page_ids = op_alloc(p->n_page_ids * 4);
    for (int64_t i = 0; i < p->n_page_ids; i++) p->page_ids[i] = (int32_t)((n_pages - 1 - i * 5) & (n_pages - 1));
    for (int64_t s = 0; s < plan->n_seqs; s++) {
        p->plan.table[s] = at;
        at += (plan->length[s] + pt - 1) / pt;
        for (int64_t t = 0; t < plan->length[s]; t++) {
            const int64_t r = plan->offset[s] + t;
            p->checked[r] = is_checked(t, plan->length[s]);
            op_fill_row(&p->q, r, s % 2 ? odd : op_wide, &seed);
            op_fill_row(&p->k, r, s % 2 ? odd : op_plain, &seed);
            op_fill_row(&p->v, r, s % 2 ? odd : op_plain, &seed);
        }
    }
    attention_ref(p, &p->out, RIGHT);
}

static void problem_free(problem *p) {
    op_array_free(&p->q);
    op_array_free(&p->k);
    op_array_free(&p->v);
    op_array_free(&p->out);
    op_pool_free(&p->pool);
    free(p->checked);
    free(p->page_ids);
}

/* Outside padding rows, rows that the reference left out are taken over as they came. */
static void accept_unchecked(const problem *p, const op_batch *batch, const op_array *expected, const op_array *got) {
    for (int64_t r = 0; r < batch->n_rows; r++)
        if (batch->source[r] >= 0 && !p->checked[batch->source[r]])
            memcpy(op_at(expected, r, 0), op_at(got, r, 0), (size_t)(got->cols * ls_dtype_bytes(got->dtype)));
}

static ls_attention_args batch_args(const problem *p, const op_array *q, const op_array *k, const op_array *v,
                                    const op_array *out, const op_batch *batch) {
    const ls_attention_args args = {
        q->data,     k->data,       v->data,     out->data, q->dtype,       q->stride,    k->stride,    out->stride,
        p->n_heads,  p->n_kv_heads, p->head_dim, p->scale,  p->page_tokens, p->pool.view, batch->spans, batch->n_spans,
        p->page_ids, p->n_page_ids, q->rows,     false,     p->window,      p->profile,   NULL,         0};
    return args;
}

/* All sequences from their first token to their last, in spans of `chunk` tokens. `all`, when given, takes every row.
 */
static void drive(const problem *p, ls_device *device, int64_t chunk, bool alone, uint64_t seed, const op_array *all) {
    op_plan plan = p->plan;
    op_batch batch = op_batch_make(&plan);
    plan.chunk = chunk;
    plan.alone = alone;
    plan.seed = seed;
    while (op_plan_next(&plan, &batch)) {
        const int64_t q_pad = (int64_t)(test_random(&plan.seed) % 4), kv_pad = (int64_t)(test_random(&plan.seed) % 4);
        op_array q = op_gather(&p->q, &batch, OP_POISON, q_pad), k = op_gather(&p->k, &batch, OP_POISON, kv_pad);
        op_array v = op_gather(&p->v, &batch, OP_POISON, kv_pad);
        op_array expected = op_gather(&p->out, &batch, OP_GUARD, q_pad + 1);
        op_array out = op_array_make(p->out.dtype, batch.n_rows, p->out.cols, q_pad + 1);
        const ls_attention_args args = batch_args(p, &q, &k, &v, &out, &batch);
        ls_error err;
        op_guard(&out);
        assert_ok(ls_attention(device, &args, &err), err);
        accept_unchecked(p, &batch, &expected, &out);
        op_check(&expected, &out, OP_NAN_ANY,
                 "heads %lld/%lld dim %lld page %lld window %lld %s threads %d chunk %lld%s pos %lld",
                 (long long)p->n_heads, (long long)p->n_kv_heads, (long long)p->head_dim, (long long)p->page_tokens,
                 (long long)p->window, ls_dtype_name(q.dtype), ls_pool_threads(device->exec.workers->pool),
                 (long long)chunk, alone ? " alone" : "", (long long)batch.spans[batch.n_spans - 1].pos);
        for (int64_t r = 0; r < batch.n_rows && all != NULL; r++)
            if (batch.source[r] >= 0)
                memcpy(op_at(all, batch.source[r], 0), op_at(&out, r, 0),
                       (size_t)(out.cols * ls_dtype_bytes(out.dtype)));
        op_array_free(&q);
        op_array_free(&k);
        op_array_free(&v);
        op_array_free(&out);
        op_array_free(&expected);
    }
    free(batch.source);
}

/* Pages hold keys and values where the header puts them, poison at positions not yet reached, and nothing else changed.
 */
static void pages_check(const problem *p, int64_t chunk) {
    const int64_t pt = p->page_tokens, hd = p->head_dim, elem = ls_dtype_bytes(p->k.dtype),
                  half = p->n_kv_heads * hd * pt;
    const uint32_t poison = 0xFFFFFFFFu;
    for (int64_t s = 0; s < p->plan.n_seqs; s++)
        for (int64_t pos = 0; pos < (p->plan.length[s] + pt - 1) / pt * pt; pos++) {
            const uint8_t *page = ls_pool_at(&p->pool.view, p->page_ids[p->plan.table[s] + pos / pt]);
            for (int64_t g = 0; g < p->n_kv_heads; g++)
                for (int64_t d = 0; d < hd; d++) {
                    const uint8_t *k = page + ((g * hd + d) * pt + pos % pt) * elem;
                    const uint8_t *v = page + (half + (g * pt + pos % pt) * hd + d) * elem;
                    const int64_t row = p->plan.offset[s] + pos;
                    const bool written = pos < p->plan.length[s];
                    const void *k_expected = written ? op_at(&p->k, row, g * hd + d) : &poison;
                    const void *v_expected = written ? op_at(&p->v, row, g * hd + d) : &poison;
                    if (memcmp(k, k_expected, (size_t)elem) != 0 || memcmp(v, v_expected, (size_t)elem) != 0)
                        fail_msg("page %d of position %lld, head %lld, dimension %lld, chunk %lld: wrong content",
                                 p->page_ids[p->plan.table[s] + pos / pt], (long long)pos, (long long)g, (long long)d,
                                 (long long)chunk);
                }
        }
    op_pool_check_others(&p->pool, p->page_ids, p->n_page_ids, "attention");
}

static void problem_check(const problem *p, ls_isa isa, const int64_t *chunks, int64_t n_chunks) {
    for (int64_t i = 0; i < n_chunks; i++) {
        op_pool_poison(&p->pool);
        drive(p, op_devices[isa][i % OP_THREADS_MAX], chunks[i], i % 2 == 1, (uint64_t)i + 1, NULL);
        pages_check(p, chunks[i]);
    }
}

static const int32_t slots[] = {7, 3, 11, 1, 9, 5, 0};

/* Spans from one token up, over poisoned pages of every size: all rows, all cuts. */
static void every_cut_equals_the_whole(void **state) {
    const ls_isa isa = op_isa(state);
    const layout shapes[] = {{1, 1, 1, 1, LS_F32, 0, LS_PROFILE_EXACT},    {2, 1, 12, 16, LS_BF16, 0, LS_PROFILE_EXACT},
                             {4, 2, 12, 64, LS_F32, 0, LS_PROFILE_EXACT},  {3, 3, 7, 16, LS_BF16, 0, LS_PROFILE_EXACT},
                             {4, 1, 17, 4, LS_F32, 0, LS_PROFILE_EXACT},   {2, 2, 64, 16, LS_BF16, 0, LS_PROFILE_EXACT},
                             {1, 1, 128, 64, LS_F32, 0, LS_PROFILE_EXACT}, {6, 2, 12, 1, LS_BF16, 0, LS_PROFILE_EXACT},
                             {5, 1, 8, 32, LS_BF16, 0, LS_PROFILE_EXACT},  {1, 1, 33, 8, LS_BF16, 0, LS_PROFILE_EXACT}};
    const int64_t lengths[] = {1, 2, 3, 5, 65, 63, 64, 131};
    const int32_t more_slots[] = {7, 3, 11, 1, 9, 5, 0, 2};
    const op_plan plan = op_plan_make(OP_COUNT(lengths), lengths, more_slots);
    for (int64_t i = 0; i < OP_COUNT(shapes); i++) {
        problem p;
        problem_make(&p, &plan, &shapes[i], i % 2 ? op_special : op_plain, (uint64_t)i + 1);
        problem_check(&p, isa, op_chunks, OP_COUNT(op_chunks));
        problem_free(&p);
    }
}

/* Key lengths at the borders of segments, in one span, in chunks and to the end by single tokens. Under sanitizers only
 * heads of one dimension reach a third segment. */
static void long_contexts_equal_the_textbook(void **state) {
    const ls_isa isa = op_isa(state);
    const layout shapes[] = {{2, 1, 12, 16, LS_F32, 0, LS_PROFILE_EXACT},
                             {1, 1, 64, 64, LS_BF16, 0, LS_PROFILE_EXACT},
                             {1, 1, 1, 1, LS_BF16, 0, LS_PROFILE_EXACT},
                             {1, 1, 128, 16, LS_F32, 0, LS_PROFILE_EXACT}};
    const int64_t lengths[] = {1023, 1024, 1025, 2100}, chunks[] = {0, 64, -1};
    const bool taken[][4] = {
        {true, true, true, true}, {false, false, true, false}, {false, true, false, true}, {false, false, true, false}};
    uint64_t seed = 9;
    for (int64_t i = 0; i < OP_COUNT(shapes); i++)
        for (int64_t n = 0; n < OP_COUNT(lengths); n++) {
            const int64_t length[] = {lengths[n], 70};
            const op_plan plan = op_plan_make(2, length, slots);
            problem p;
            if (!taken[i][n] || (SANITIZED && lengths[n] > 2000 && shapes[i].head_dim > 1)) continue;
            problem_make(&p, &plan, &shapes[i], op_plain, test_random(&seed));
            problem_check(&p, isa, chunks, shapes[i].head_dim > 12 ? 2 : 3);
            problem_free(&p);
        }
}

/* Windows within a block, of a block, over blocks and segments, and of more than there is; special values in front of
 * a window take no part. */
static void windows_equal_the_textbook(void **state) {
    const ls_isa isa = op_isa(state);
    static const int64_t windows[] = {1, 2, 63, 64, 65, 100, 128, 1000, INT64_MAX};
    const int64_t lengths[] = {1, 65, 131, 250}, chunks[] = {0, 1, 3, 64, -1};
    for (int64_t i = 0; i < OP_COUNT(windows); i++) {
        const layout shape = {
            4, 2, i % 2 ? 12 : 17, (int64_t)1 << (i * 2 % 7), i % 2 ? LS_BF16 : LS_F32, windows[i], LS_PROFILE_EXACT};
        const op_plan plan = op_plan_make(OP_COUNT(lengths), lengths, slots);
        problem p;
        problem_make(&p, &plan, &shape, i % 2 ? op_special : op_plain, (uint64_t)i + 90);
        problem_check(&p, isa, chunks, OP_COUNT(chunks));
        problem_free(&p);
    }
}

/* A window begins in a later segment than the first one, within a segment, and at its border. */
static void windows_over_segments(void **state) {
    const ls_isa isa = op_isa(state);
    static const int64_t windows[] = {130, 1024, 1025, 1500};
    const int64_t length[] = {2200}, chunks[] = {0, 64};
    const op_plan plan = op_plan_make(1, length, slots);
    for (int64_t i = 0; i < OP_COUNT(windows); i++) {
        const layout shape = {2, 1, 5, 16, i % 2 ? LS_BF16 : LS_F32, windows[i], LS_PROFILE_EXACT};
        problem p;
        problem_make(&p, &plan, &shape, op_plain, (uint64_t)i + 110);
        problem_check(&p, isa, chunks, OP_COUNT(chunks));
        problem_free(&p);
    }
}

/* Token by token through two segment borders, under sanitizers one; rows that the reference leaves out must equal those
 * of one span. */
static void decode_equals_prefill_of(ls_isa isa, int64_t window) {
    const layout shape = {2, 1, 12, 16, LS_BF16, window, LS_PROFILE_EXACT};
    const int64_t length[] = {SANITIZED ? 1100 : 2100};
    const op_plan plan = op_plan_make(1, length, slots);
    const int64_t chunks[] = {1, 3, 1000};
    problem p;
    op_array whole, got;
    problem_make(&p, &plan, &shape, op_plain, 77);
    whole = op_array_make(LS_BF16, length[0], p.out.cols, 0);
    got = op_array_make(LS_BF16, length[0], p.out.cols, 0);
    drive(&p, op_devices[isa][0], 0, true, 1, &whole);
    for (int64_t i = 0; i < OP_COUNT(chunks); i++) {
        op_pool_poison(&p.pool);
        drive(&p, op_devices[isa][i], chunks[i], true, 1, &got);
        op_check(&whole, &got, OP_NAN_PINNED, "chunk %lld", (long long)chunks[i]);
        pages_check(&p, chunks[i]);
    }
    op_array_free(&whole);
    op_array_free(&got);
    problem_free(&p);
}

static void decode_equals_prefill(void **state) {
    decode_equals_prefill_of(op_isa(state), 0);
    decode_equals_prefill_of(op_isa(state), SANITIZED ? 550 : 1100);
}

/* Scores far apart: e underflows, a new maximum wipes out what came before, later segments vanish or take over. */
static void steep_scores(void **state) {
    const ls_isa isa = op_isa(state);
    const layout shape = {1, 1, 2, 16, LS_F32, 0, LS_PROFILE_EXACT};
    const int64_t length[] = {2100};
    const int64_t chunks[] = {0, 64};
    const op_plan plan = op_plan_make(1, length, slots);
    for (int64_t i = 0; i < 4; i++) {
        problem p;
        problem_make(&p, &plan, &shape, op_plain, 8);
        for (int64_t t = 0; t < length[0]; t++) {
            const float rise = (float)t - 1000.0f;
            op_put(&p.q, t, 0, 3.0f);
            op_put(&p.q, t, 1, 0.0f);
            op_put(&p.k, t, 0, i == 0 ? rise : i == 1 ? -rise : i == 2 ? (float)(t % 97) * 50.0f : -0.0f);
            op_put(&p.v, t, 1, i == 3 ? -0.0f : -1e-39f * (float)t);
        }
        attention_ref(&p, &p.out, RIGHT);
        problem_check(&p, isa, chunks, OP_COUNT(chunks));
        problem_free(&p);
    }
}

/* Spans of padding and spans without rows touch nothing, whatever their pages; a bad page id stops the call before it
 * writes. */
static void untouched_rows_and_pages(void **state) {
    const ls_isa isa = op_isa(state);
    const layout shape = {2, 1, 12, 16, LS_F32, 0, LS_PROFILE_EXACT};
    const int64_t length[] = {20};
    const op_plan plan = op_plan_make(1, length, slots);
    op_array out, untouched;
    op_batch batch;
    problem p;
    problem_make(&p, &plan, &shape, op_plain, 3);
    out = op_array_make(LS_F32, 20, p.out.cols, 0);
    untouched = op_array_make(LS_F32, 20, p.out.cols, 0);
    op_guard(&out);
    op_guard(&untouched);
    memset(&batch, 0, sizeof batch);
    for (int32_t t = 0; t < OP_THREADS_MAX; t++) {
        enum { GOOD = 0, BAD = 2, NEGATIVE = 4, N_TABLES = 6 };
        const int32_t tables[N_TABLES] = {
            p.page_ids[0], p.page_ids[1], p.page_ids[0], (int32_t)p.pool.view.n_entries, -1, p.page_ids[1]};
        ls_attention_args args;
        ls_error err;
        char word[32];
        batch.n_spans = 4;
        batch.spans[0] = (ls_span){0, 3, 0, -1, 0};
        batch.spans[1] = (ls_span){3, 0, 5, 7, GOOD};
        batch.spans[2] = (ls_span){3, 1, 9, -5, 0};
        batch.spans[3] = (ls_span){4, 0, 0, 1, GOOD};
        args = batch_args(&p, &p.q, &p.k, &p.v, &out, &batch);
        args.tables = tables;
        args.n_tables = N_TABLES;
        assert_ok(ls_attention(op_devices[isa][t], &args, &err), err);
        batch.n_spans = 2;
        batch.spans[0] = (ls_span){0, 2, 0, 0, GOOD};
        batch.spans[1] = (ls_span){2, 18, 2, 0, BAD};
        args = batch_args(&p, &p.q, &p.k, &p.v, &out, &batch);
        args.tables = tables;
        args.n_tables = N_TABLES;
        snprintf(word, sizeof word, "%d", tables[BAD + 1]);
        check_failed(ls_attention(op_devices[isa][t], &args, &err), &err, word);
        check_failed(ls_attention(op_devices[isa][t], &args, &err), &err, "span 1");
        batch.spans[1].table = NEGATIVE;
        args = batch_args(&p, &p.q, &p.k, &p.v, &out, &batch);
        args.tables = tables;
        args.n_tables = N_TABLES;
        check_failed(ls_attention(op_devices[isa][t], &args, &err), &err, "-1");
        batch.spans[1] = (ls_span){2, -1, 2, 0, GOOD};
        check_failed(ls_attention(op_devices[isa][t], &args, &err), &err, "span 1: row 2, rows -1");
        batch.spans[1] = (ls_span){2, INT64_MAX, 2, 0, GOOD}; /* the sum of all rows does not fit 64 bits */
        check_failed(ls_attention(op_devices[isa][t], &args, &err), &err, "span 1: row 2, rows 9223372036854775807");
        batch.spans[1] = (ls_span){2, 1, -2, 0, GOOD};
        check_failed(ls_attention(op_devices[isa][t], &args, &err), &err, "position -2");
        /* Pages that the tables do not have: one too many, and a beginning outside of them. */
        batch.spans[1] = (ls_span){2, 18, 2, 0, N_TABLES - 1};
        check_failed(ls_attention(op_devices[isa][t], &args, &err), &err,
                     "span 1: 2 pages from 5 on, of tables with 6");
        batch.spans[1].table = -1;
        check_failed(ls_attention(op_devices[isa][t], &args, &err), &err, "span 1: 2 pages from -1 on");
        batch.spans[1].table = INT64_MAX;
        check_failed(ls_attention(op_devices[isa][t], &args, &err), &err,
                     "span 1: 2 pages from 9223372036854775807 on");
        batch.spans[1] = (ls_span){2, 18, INT64_MAX - 1, 0, GOOD};
        check_failed(ls_attention(op_devices[isa][t], &args, &err), &err, "span 1: position 9223372036854775806");
        batch.spans[1] = (ls_span){19, 2, 2, 0, GOOD};
        check_failed(ls_attention(op_devices[isa][t], &args, &err), &err, "span 1: row 19, rows 2; there are 20 rows");
        op_check(&untouched, &out, OP_NAN_PINNED, "padding or a bad page");
        op_pool_check_others(&p.pool, NULL, 0, "padding or a bad page");
    }
    op_array_free(&out);
    op_array_free(&untouched);
    problem_free(&p);
}

/* Against float64: relative to the largest |v|, which no weighted mean exceeds. */
static void accurate_within_2e_6(void **state) {
    const ls_isa isa = op_isa(state);
    const layout shape = {2, 1, 64, 16, LS_F32, 0, LS_PROFILE_EXACT};
    const int64_t length[] = {1500};
    const int64_t chunks[] = {0};
    const op_plan plan = op_plan_make(1, length, slots);
    double worst = 0.0;
    problem p;
    problem_make(&p, &plan, &shape, op_plain, 12);
    problem_check(&p, isa, chunks, 1);
    for (int64_t t = 0; t < length[0]; t++) {
        double exact[64] = {0}, sum = 0.0;
        if (!p.checked[t]) continue;
        for (int64_t j = 0; j <= t; j++) {
            double score = 0.0;
            for (int64_t d = 0; d < 64; d++) score += (double)op_get(&p.q, t, 64 + d) * op_get(&p.k, j, d);
            score = exp(score * (double)p.scale);
            sum += score;
            for (int64_t d = 0; d < 64; d++) exact[d] += score * op_get(&p.v, j, d);
        }
        for (int64_t d = 0; d < 64; d++) {
            const double error = fabs(op_get(&p.out, t, 64 + d) - exact[d] / sum);
            if (error > worst) worst = error;
        }
    }
    print_message("worst error %.3g of the largest value\n", worst);
    assert_true(worst < 2e-6);
    problem_free(&p);
}

/* Of the row of position `pos`, with a head of 4 dimensions. */
static double distance_from_float64(const problem *p, const op_array *out, int64_t row, int64_t pos) {
    double exact[4] = {0}, sum = 0.0, worst = 0.0;
    for (int64_t j = pos < p->window ? 0 : pos - p->window + 1; j <= pos; j++) {
        double score = 0.0;
        for (int64_t d = 0; d < 4; d++) score += (double)op_get(&p->q, pos, d) * op_get(&p->k, j, d);
        score = exp(score * (double)p->scale);
        sum += score;
        for (int64_t d = 0; d < 4; d++) exact[d] += score * op_get(&p->v, j, d);
    }
    for (int64_t d = 0; d < 4; d++) worst = fmax(worst, fabs(op_get(out, row, d) - exact[d] / sum));
    return worst;
}

/* A published size: what positions around the window's, blocks' and segments' borders decode to has the bits of one
 * prompt, and is near float64. */
static void window_of_4096_in_16384(void **state) {
    static const int64_t at[] = {63, 4095, 4096, 4097, 4160, 5119, 5120, 8191, 12345, 16383};
    const ls_isa isa = ls_isa_best();
    const layout shape = {1, 1, 4, 16, LS_F32, 4096, LS_PROFILE_EXACT};
    const int64_t length[] = {16384};
    const op_plan plan = op_plan_make(1, length, slots);
    op_array all = op_array_make(LS_F32, 16384, 4, 0), out = op_array_make(LS_F32, 1, 4, 0);
    op_batch batch = {.n_rows = 1, .n_spans = 1};
    double worst = 0.0;
    problem p;
    (void)state;
    problem_make(&p, &plan, &shape, op_plain, 17);
    drive(&p, op_devices[isa][OP_THREADS_MAX - 1], 0, true, 1, &all);
    for (int64_t i = 0; i < OP_COUNT(at); i++) {
        ls_attention_args args = batch_args(&p, &p.q, &p.k, &p.v, &out, &batch);
        ls_error err;
        batch.spans[0] = (ls_span){0, 1, at[i], 0, p.plan.table[0]};
        args.q = op_at(&p.q, at[i], 0);
        args.k = op_at(&p.k, at[i], 0);
        args.v = op_at(&p.v, at[i], 0);
        args.rows = 1;
        assert_ok(ls_attention(op_devices[isa][0], &args, &err), err);
        if (memcmp(op_at(&out, 0, 0), op_at(&all, at[i], 0), 16) != 0) fail_msg("position %lld", (long long)at[i]);
        worst = fmax(worst, distance_from_float64(&p, &out, 0, at[i]));
    }
    print_message("worst error %.3g of the largest value\n", worst);
    assert_true(worst < 2e-6);
    op_array_free(&all);
    op_array_free(&out);
    problem_free(&p);
}

static void variants_are_caught_of(int64_t window, const variant *wrong, int64_t n_wrong) {
    const layout shape = {1, 1, 12, 16, LS_F32, window, LS_PROFILE_EXACT};
    const int64_t length[] = {1100};
    const op_plan plan = op_plan_make(1, length, slots);
    op_array out;
    problem p;
    char text[160];
    problem_make(&p, &plan, &shape, op_plain, 5);
    out = op_array_make(LS_F32, 1100, 12, 0);
    attention_ref(&p, &out, RIGHT);
    assert_int_equal(op_diffs(&p.out, &out, OP_NAN_ANY, text), 0);
    for (int64_t i = 0; i < n_wrong; i++) {
        attention_ref(&p, &out, wrong[i]);
        if (op_diffs(&p.out, &out, OP_NAN_ANY, text) == 0) fail_msg("variant %d is not seen", (int)wrong[i]);
    }
    op_array_free(&out);
    problem_free(&p);
}

static void variants_are_caught(void **state) {
    static const variant wrong[] = {SUM_IN_A_CHAIN, TWO_PASSES, NO_SEGMENTS, BLOCKS_OF_32, QUERY_SCALED};
    static const variant of_windows[] = {WINDOW_MORE, WINDOW_LESS, BLOCK_SKIPPED, BLOCKS_OF_WINDOW, SEGMENTS_OF_WINDOW};
    (void)state;
    variants_are_caught_of(0, wrong, OP_COUNT(wrong));
    variants_are_caught_of(200, of_windows, OP_COUNT(of_windows));
}

/* mma16: every page size, odd heads and dimensions, cuts, windows and segments. */
static void mma16_equals_the_textbook(void **state) {
    const ls_isa isa = op_isa(state);
    const layout shapes[] = {
        {1, 1, 1, 1, LS_BF16, 0, LS_PROFILE_MMA16},   {4, 2, 12, 16, LS_BF16, 0, LS_PROFILE_MMA16},
        {3, 1, 16, 64, LS_BF16, 1, LS_PROFILE_MMA16}, {2, 2, 40, 4, LS_BF16, 100, LS_PROFILE_MMA16},
        {5, 1, 17, 8, LS_BF16, 63, LS_PROFILE_MMA16}, {1, 1, 256, 16, LS_BF16, 128, LS_PROFILE_MMA16}};
    const int64_t lengths[] = {1, 2, 65, 131}, chunks[] = {0, 1, 5, 64, -1};
    const op_plan plan = op_plan_make(OP_COUNT(lengths), lengths, slots);
    for (int64_t i = 0; i < OP_COUNT(shapes); i++) {
        problem p;
        problem_make(&p, &plan, &shapes[i], op_plain, (uint64_t)i + 201);
        problem_check(&p, isa, chunks, shapes[i].head_dim > 100 ? 1 : OP_COUNT(chunks));
        problem_free(&p);
    }
}

static void mma16_over_segments(void **state) {
    const ls_isa isa = op_isa(state);
    const int64_t length[] = {SANITIZED ? 1100 : 2100}, windows[] = {0, 1030}, chunks[] = {0, 300};
    const op_plan plan = op_plan_make(1, length, slots);
    for (int64_t i = 0; i < OP_COUNT(windows); i++) {
        const layout shape = {2, 1, 8, 16, LS_BF16, windows[i], LS_PROFILE_MMA16};
        problem p;
        op_array whole = op_array_make(LS_BF16, length[0], 16, 0), got = op_array_make(LS_BF16, length[0], 16, 0);
        problem_make(&p, &plan, &shape, op_plain, (uint64_t)i + 301);
        problem_check(&p, isa, chunks, OP_COUNT(chunks));
        drive(&p, op_devices[isa][0], 0, true, 1, &whole);
        drive(&p, op_devices[isa][1], 97, true, 1, &got);
        op_check(&whole, &got, OP_NAN_PINNED, "chunks of 97");
        op_array_free(&whole);
        op_array_free(&got);
        problem_free(&p);
    }
}

/* Scores far apart, and all the same. */
static void mma16_steep_scores(void **state) {
    const ls_isa isa = op_isa(state);
    const layout shape = {1, 1, 2, 16, LS_BF16, 0, LS_PROFILE_MMA16};
    const int64_t length[] = {1300}, chunks[] = {0, 64};
    const op_plan plan = op_plan_make(1, length, slots);
    for (int64_t i = 0; i < 4; i++) {
        problem p;
        problem_make(&p, &plan, &shape, op_plain, 8);
        for (int64_t t = 0; t < length[0]; t++) {
            const float rise = (float)t - 1000.0f;
            op_put(&p.q, t, 0, 3.0f);
            op_put(&p.q, t, 1, 0.0f);
            op_put(&p.k, t, 0, i == 0 ? rise : i == 1 ? -rise : i == 2 ? (float)(t % 97) * 50.0f : -0.0f);
            op_put(&p.v, t, 1, i == 3 ? -0.0f : -1e-38f * (float)t);
        }
        attention_ref(&p, &p.out, RIGHT);
        problem_check(&p, isa, chunks, OP_COUNT(chunks));
        problem_free(&p);
    }
}

/* Rows that see a NaN or an infinity are not finite, whatever the cut; those before its block are not. */
static void mma16_passes_what_is_not_finite(void **state) {
    const ls_isa isa = op_isa(state);
    const layout shape = {2, 1, 12, 16, LS_BF16, 0, LS_PROFILE_MMA16};
    const float bad[] = {NAN, INFINITY, -INFINITY};
    const int64_t length[] = {300}, chunks[] = {0, 1, 64};
    const op_plan plan = op_plan_make(1, length, slots);
    for (int64_t i = 0; i < OP_COUNT(bad) * 3 * OP_COUNT(chunks); i++) {
        problem p;
        op_array out = op_array_make(LS_BF16, 300, 24, 0);
        problem_make(&p, &plan, &shape, op_plain, 4);
        memset(p.checked, 0, 300);
        op_put(i / 3 % 3 == 0 ? &p.q : i / 3 % 3 == 1 ? &p.k : &p.v, 150, 3, bad[i % 3]);
        op_put(&p.q, 150, 12 + 3, bad[i % 3]);
        op_pool_poison(&p.pool);
        drive(&p, op_devices[isa][0], chunks[i / 9], true, 1, &out);
        for (int64_t t = 0; t < 300; t++) {
            /* An infinite key may weigh nothing. */
            const bool query = i / 3 % 3 == 0, key = i / 3 % 3 == 1;
            const bool sees = query ? t == 150 : t >= 150 && (!key || i % 3 == 0);
            const float x = op_get(&out, t, 3);
            if (sees && isfinite(x)) fail_msg("case %lld: token %lld is %g", (long long)i, (long long)t, (double)x);
            if ((t < 128 || (query && !sees)) && !isfinite(x))
                fail_msg("case %lld: token %lld is not finite", (long long)i, (long long)t);
        }
        op_array_free(&out);
        problem_free(&p);
    }
}

static void mma16_variants_are_caught(void **state) {
    const layout shape = {1, 1, 24, 16, LS_BF16, 0, LS_PROFILE_MMA16};
    const int64_t length[] = {1300};
    const op_plan plan = op_plan_make(1, length, slots);
    op_array expected = op_array_make(LS_F32, 1300, 24, 0); /* before they are rounded */
    problem p;
    (void)state;
    problem_make(&p, &plan, &shape, op_wide, 5);
    for (int v = MMA16_RIGHT; v <= MMA16_NO_SEGMENTS; v++) {
        int64_t differ = 0;
        op_array out = v == MMA16_RIGHT ? expected : op_array_make(LS_F32, 1300, 24, 0);
        for (int64_t t = 0; t < 1300; t++) {
            if (!p.checked[t]) continue;
            mma16_query(&p, 0, t, 0, &out, (mma16_variant)v);
            differ += memcmp(op_at(&out, t, 0), op_at(&expected, t, 0), 96) != 0;
        }
        if (v == MMA16_RIGHT) continue;
        if (differ == 0) fail_msg("variant %d is not seen", v);
        op_array_free(&out);
    }
    op_array_free(&expected);
    problem_free(&p);
}

/* Against float64: what is left is the rounding of the weights and of the output to bf16. */
static void mma16_accurate(void **state) {
    const layout shape = {1, 1, 64, 16, LS_BF16, 0, LS_PROFILE_MMA16};
    const int64_t length[] = {1500};
    const op_plan plan = op_plan_make(1, length, slots);
    double worst = 0.0;
    problem p;
    (void)state;
    problem_make(&p, &plan, &shape, op_plain, 12);
    for (int64_t t = 0; t < length[0]; t++) {
        double exact[64] = {0}, sum = 0.0;
        if (!p.checked[t]) continue;
        for (int64_t j = 0; j <= t; j++) {
            double score = 0.0;
            for (int64_t d = 0; d < 64; d++) score += (double)op_get(&p.q, t, d) * op_get(&p.k, j, d);
            score = exp(score * (double)p.scale);
            sum += score;
            for (int64_t d = 0; d < 64; d++) exact[d] += score * op_get(&p.v, j, d);
        }
        for (int64_t d = 0; d < 64; d++) worst = fmax(worst, fabs(op_get(&p.out, t, d) - exact[d] / sum));
    }
    print_message("worst error %.3g of the largest value\n", worst);
    assert_true(worst < 0x1p-8);
    problem_free(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        OP_CASES(every_cut_equals_the_whole),
        OP_CASES(long_contexts_equal_the_textbook),
        OP_CASES(windows_equal_the_textbook),
        OP_CASES(windows_over_segments),
        cmocka_unit_test(window_of_4096_in_16384),
        OP_CASES(decode_equals_prefill),
        OP_CASES(steep_scores),
        OP_CASES(untouched_rows_and_pages),
        OP_CASES(accurate_within_2e_6),
        cmocka_unit_test(variants_are_caught),
        OP_CASES(mma16_equals_the_textbook),
        OP_CASES(mma16_over_segments),
        OP_CASES(mma16_steep_scores),
        OP_CASES(mma16_passes_what_is_not_finite),
        cmocka_unit_test(mma16_variants_are_caught),
        cmocka_unit_test(mma16_accurate),
    };
    return cmocka_run_group_tests(tests, op_open, op_close);
}
