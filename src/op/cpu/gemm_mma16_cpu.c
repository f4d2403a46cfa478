/* The profile mma16, CPU body; compiled once for each instruction set. Owns nothing: scratch belongs to the calling
 * thread.
 *
 * Each lane belongs to one output and takes its steps in ascending order; a step is rules 1 to 4 of num/mma16.h in
 * 32-bit integers. Cut to 25 fraction bits a product is at most 255 * 255 * 2^11, so the 16 of a step add up within 31
 * bits; c takes a 32nd, which is why the sum is kept as sign and magnitude. A step that meets an infinity or a NaN,
 * which is known when its operands are packed, goes through the scalar step lane by lane.
 *
 * Shape of the loops, outermost first:
 *   block       up to ROWS_MAX x COLS_MAX outputs, whose accumulators rest in scratch as float32
 *   part        up to K_MAX of a segment's k; a's rows are packed apart into sign, exponent and significand
 *   step        of all rows and columns of the block; the rows' step stays in the first-level cache
 *   panel       16 columns of b, whose step is decoded
 *   row         one step of one row with the 16 columns */
#include "base/mem.h"
#include "num/half.h"
#include "num/mma16.h"
#include "op/cpu/gemm_mma16.h"
#include "op/cpu/simd.h"
#include "op/rows.h"

#define STEP LS_MMA16_STEP
#define PANEL LS_MMA16_PANEL
#define ROWS_MAX 64
#define COLS_MAX 1024
#define K_MAX 512

/* The significand of a is packed 11 places up: a product then stands in units of 2^(E - 25) when its exponent is E. */
#define UP (LS_MMA16_FRACTION - 14)
/* Added to the exponent of a zero, so that no product with it is the largest, and cuts it away. */
#define ZERO_EXPONENT (-1000)

/* Integer vectors of the instruction set's own width. */
#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX2__)
#define LANES 8
#else
#define LANES 4
#endif
#define VECTORS (PANEL / LANES)
typedef int32_t vi __attribute__((vector_size(LANES * 4)));
typedef uint32_t vu __attribute__((vector_size(LANES * 4)));
typedef uint16_t vh __attribute__((vector_size(LANES * 2)));

#if defined(__AVX512F__)
static LS_SIMD vi vi_max(vi a, vi b) { return (vi)_mm512_max_epi32((__m512i)a, (__m512i)b); }
/* Counts of 32 and more, and negative ones, give 0. */
static LS_SIMD vu vu_right(vu x, vi count) { return (vu)_mm512_srlv_epi32((__m512i)x, (__m512i)count); }
static LS_SIMD vu vu_left(vu x, vi count) { return (vu)_mm512_sllv_epi32((__m512i)x, (__m512i)count); }
#elif defined(__AVX2__)
static LS_SIMD vi vi_max(vi a, vi b) { return (vi)_mm256_max_epi32((__m256i)a, (__m256i)b); }
static LS_SIMD vu vu_right(vu x, vi count) { return (vu)_mm256_srlv_epi32((__m256i)x, (__m256i)count); }
static LS_SIMD vu vu_left(vu x, vi count) { return (vu)_mm256_sllv_epi32((__m256i)x, (__m256i)count); }
#else
static LS_SIMD vi vi_max(vi a, vi b) {
    const vi m = a > b;
    return (a & m) | (b & ~m);
}
static LS_SIMD vu vu_right(vu x, vi count) {
    for (int i = 0; i < LANES; i++) x[i] = (uint32_t)count[i] < 32u ? x[i] >> count[i] : 0u;
    return x;
}
static LS_SIMD vu vu_left(vu x, vi count) {
    for (int i = 0; i < LANES; i++) x[i] = (uint32_t)count[i] < 32u ? x[i] << count[i] : 0u;
    return x;
}
#endif
static LS_SIMD vi vi_set(int32_t x) { return (vi){0} + x; }
static LS_SIMD vu vu_set(uint32_t x) { return (vu){0} + x; }
/* yes where the mask is all ones, no where it is 0. */
static LS_SIMD vu vu_select(vi mask, vu yes, vu no) { return ((vu)mask & yes) | (~(vu)mask & no); }
static LS_SIMD vi vi_select(vi mask, vi yes, vi no) { return (mask & yes) | (~mask & no); }

static LS_SIMD bool vi_any(vi mask) {
#if defined(__AVX512F__)
    return _mm512_test_epi32_mask((__m512i)mask, (__m512i)mask) != 0;
#elif defined(__AVX2__)
    return !_mm256_testz_si256((__m256i)mask, (__m256i)mask);
#else
    int32_t any = 0;
    for (int i = 0; i < LANES; i++) any |= mask[i];
    return any != 0;
#endif
}

/* One step's 16 operands of a row: significands, exponents, signs (0 or -1), patterns. */
typedef struct a_step {
    int32_t up[STEP], exponent[STEP], sign[STEP];
    uint16_t bits[STEP];
    bool special; /* has an infinity or a NaN */
} a_step;

/* One step's 16 rows of a panel, decoded. */
typedef struct b_step {
    vi exponent[STEP][VECTORS], sign[STEP][VECTORS];
    vu significand[STEP][VECTORS];
    uint16_t bits[STEP][PANEL];
    bool special;
} b_step;

#define A_FLOATS ((int64_t)(ROWS_MAX * (K_MAX / STEP) * sizeof(a_step) / sizeof(float)))
_Static_assert(A_FLOATS + ROWS_MAX * COLS_MAX <= LS_MMA16_SCRATCH_FLOATS, "a block fits scratch");

/* Outputs [row, row + rows) x [col, col + cols); acc [panel][row][PANEL], a [step][row]. */
typedef struct block {
    const ls_mma16_chain *chain;
    int64_t row, rows, col, cols, n_panels;
    a_step *a;
    uint32_t *acc;
} block;

static void a_decode(a_step *to) {
    to->special = false;
    for (int i = 0; i < STEP; i++) {
        const uint32_t x = to->bits[i];
        to->up[i] = ls_mma16_significand(x) << UP;
        to->exponent[i] = (x & 0x7FFFu) != 0 ? ls_mma16_exponent(x) : ZERO_EXPONENT;
        to->sign[i] = -(int32_t)(x >> 15);
        to->special |= (x & 0x7F80u) == 0x7F80u;
    }
}

/* k in [k, k + count) of the block's rows; the last step is padded with +0. */
static void a_pack(const block *b, int64_t k, int64_t count, int64_t steps) {
    const ls_mma16_chain *chain = b->chain;
    for (int64_t i = 0; i < b->rows; i++)
        for (int64_t s = 0; s < steps; s++) {
            a_step *to = b->a + s * b->rows + i;
            const int64_t n = ls_min_i64(STEP, count - s * STEP);
            const int64_t at = (b->row + i) * chain->a_row + (k + s * STEP) * chain->a_k;
            for (int64_t j = 0; j < n; j++)
                to->bits[j] = chain->a_dtype == LS_BF16
                                  ? ((const uint16_t *)chain->a)[at + j * chain->a_k]
                                  : ls_f32_to_bf16(((const float *)chain->a)[at + j * chain->a_k]);
            for (int64_t j = n; j < STEP; j++) to->bits[j] = 0;
            a_decode(to);
        }
}

/* Rows [k, k + n) of one panel, n <= STEP; what is missing is +0. */
static void b_decode(b_step *to, const ls_mma16_chain *chain, int64_t k, int64_t n, int64_t col) {
    const int64_t cols = ls_min_i64(PANEL, chain->cols - col);
    vi special = vi_set(0);
    memset(to->bits, 0, sizeof to->bits);
    for (int64_t i = 0; i < n; i++) {
        const int64_t row = chain->b_rows != NULL ? chain->b_rows[k + i] : k + i;
        memcpy(to->bits[i], chain->b + row * chain->b_k + col / PANEL * chain->b_panel,
               (size_t)cols * sizeof to->bits[i][0]);
    }
    for (int i = 0; i < STEP; i++)
        for (int v = 0; v < VECTORS; v++) {
            vh bits;
            memcpy(&bits, &to->bits[i][v * LANES], sizeof bits);
            const vu x = __builtin_convertvector(bits, vu);
            const vi field = (vi)((x >> 7) & 0xFFu), zero = (vi)((x & 0x7FFFu) == 0);
            to->significand[i][v] = (x & 0x7Fu) | ((vu)(field != 0) & 0x80u);
            to->exponent[i][v] = vi_select(zero, vi_set(ZERO_EXPONENT), field - 127 - (field == 0));
            to->sign[i][v] = -(vi)(x >> 15);
            special |= field == 255;
        }
    to->special = vi_any(special);
}

/* Rule 4 for lanes: magnitude * 2^(e - 25), signs 0 or -1, to float32 patterns. */
static LS_SIMD vu lanes_pack(vu magnitude, vi sign, vi e) {
    const vu zero = vu_set(0), sign_bit = (vu)sign & 0x80000000u;
    vu left = magnitude, normal, tiny, result;
    vi top = vi_set(31), field;
    /* The leading bit moves to place 31. */
    LS_UNROLL
    for (int step = 16; step > 0; step /= 2) {
        const vi low = (vi)((left >> (32 - step)) == 0);
        left = vu_select(low, left << step, left);
        top -= low & step;
    }
    field = e - LS_MMA16_FRACTION + top + 127;
    normal = sign_bit | (vu)(field << 23) | ((left >> 8) & 0x7FFFFFu);
    tiny = vu_right(magnitude, LS_MMA16_FRACTION - 149 - e) | vu_left(magnitude, e - LS_MMA16_FRACTION + 149);
    tiny = vu_select((vi)(tiny == 0), zero, tiny | sign_bit);
    result = vu_select(field <= 0, tiny, normal);
    result = vu_select(field >= 255, sign_bit | 0x7F800000u, result);
    return vu_select((vi)(magnitude == 0), zero, result);
}

/* One step for the lanes of one vector without infinities and NaN. */
static LS_SIMD vu lanes_step(vu c, const a_step *a, const b_step *b, const int v) {
    const vi c_field = (vi)((c >> 23) & 0xFFu), c_sign = (vi)c >> 31;
    const vu c_significand = (c & 0x7FFFFFu) | ((vu)(c_field != 0) & 0x800000u);
    const vi c_exponent = c_field - 127 - (c_field == 0), c_there = (vi)(c_significand != 0);
    vi e = vi_select(c_there, c_exponent, vi_set(LS_MMA16_FLOOR)), sum = vi_set(0), part, wrapped, sign;
    LS_UNROLL
    for (int i = 0; i < STEP; i++) e = vi_max(e, b->exponent[i][v] + a->exponent[i]);
    LS_UNROLL
    for (int i = 0; i < STEP; i++) {
        const vi down = e - a->exponent[i] - b->exponent[i][v], minus = b->sign[i][v] ^ a->sign[i];
        const vi cut = (vi)vu_right(b->significand[i][v] * (uint32_t)a->up[i], down);
        sum += (cut ^ minus) - minus;
    }
    /* c last: two terms of 31 bits and a sign. Where their sum wraps its sign bit is the wrong one. */
    part = (vi)vu_right(c_significand << 2, (e - c_exponent) & c_there);
    part = (part ^ c_sign) - c_sign;
    wrapped = (vi)((vu)sum + (vu)part);
    sign = (wrapped ^ (~(sum ^ part) & (sum ^ wrapped))) >> 31;
    return lanes_pack(((vu)wrapped ^ (vu)sign) - (vu)sign, sign, e);
}

/* Steps with infinities and NaN, one lane after the other. */
static void special_step(uint32_t *acc, const a_step *a, const b_step *b) {
    for (int lane = 0; lane < PANEL; lane++) acc[lane] = ls_mma16_step(acc[lane], a->bits, 1, &b->bits[0][lane], PANEL);
}

static void row_step(uint32_t *acc, const a_step *a, const b_step *b) {
    vi special = vi_set(a->special || b->special ? -1 : 0);
    vu c[VECTORS];
    memcpy(c, acc, sizeof c);
    LS_UNROLL
    for (int v = 0; v < VECTORS; v++) special |= (vi)((c[v] & 0x7F800000u) == 0x7F800000u);
    if (vi_any(special)) {
        special_step(acc, a, b);
        return;
    }
    LS_UNROLL
    for (int v = 0; v < VECTORS; v++) c[v] = lanes_step(c[v], a, b, v);
    memcpy(acc, c, sizeof c);
}

/* Row i of the block's accumulators in a panel, and in out. */
static uint32_t *acc_row(const block *b, int64_t panel, int64_t i) { return b->acc + (panel * b->rows + i) * PANEL; }
static int64_t out_at(const block *b, int64_t panel, int64_t i) {
    const ls_mma16_chain *chain = b->chain;
    const int64_t row = b->row + i;
    return (chain->out_rows != NULL ? chain->out_rows[row] : row) * chain->out_stride + b->col + panel * PANEL;
}

static void block_start(const block *b) {
    memset(b->acc, 0, (size_t)(b->n_panels * b->rows * PANEL) * sizeof *b->acc);
    if (b->chain->mode != LS_MMA16_CONTINUE) return;
    for (int64_t panel = 0; panel < b->n_panels; panel++)
        for (int64_t i = 0; i < b->rows; i++)
            memcpy(acc_row(b, panel, i), (const float *)b->chain->out + out_at(b, panel, i),
                   (size_t)ls_min_i64(PANEL, b->cols - panel * PANEL) * sizeof(float));
}

/* Canonical NaN, then the bias or what is there, then one rounding. */
static void block_finish(const block *b) {
    const ls_mma16_chain *chain = b->chain;
    for (int64_t panel = 0; panel < b->n_panels; panel++)
        for (int64_t i = 0; i < b->rows; i++) {
            const int64_t at = out_at(b, panel, i), cols = ls_min_i64(PANEL, b->cols - panel * PANEL);
            const uint32_t *acc = acc_row(b, panel, i);
            const float *bias = chain->bias != NULL ? chain->bias + b->col + panel * PANEL : NULL;
            for (int64_t c = 0; c < cols; c++) {
                float y = ls_canonical(ls_from_bits(acc[c]));
                if (bias != NULL) y = ls_canonical(ls_add(y, bias[c]));
                if (chain->mode == LS_MMA16_ADD) y = ls_canonical(ls_add(((const float *)chain->out)[at + c], y));
                ls_row_narrow(ls_at_mut(chain->out, chain->out_dtype, at + c), chain->out_dtype, &y, 1);
            }
        }
}

/* k in [k, k + count) of a segment, count <= K_MAX, a multiple of STEP unless it ends the segment. */
static void part_run(const block *b, int64_t k, int64_t count) {
    const int64_t steps = (count - 1) / STEP + 1;
    a_pack(b, k, count, steps);
    for (int64_t s = 0; s < steps; s++)
        for (int64_t panel = 0; panel < b->n_panels; panel++) {
            b_step decoded;
            b_decode(&decoded, b->chain, k + s * STEP, ls_min_i64(STEP, count - s * STEP), b->col + panel * PANEL);
            for (int64_t i = 0; i < b->rows; i++) row_step(acc_row(b, panel, i), b->a + s * b->rows + i, &decoded);
        }
}

static void block_run(const block *b) {
    const ls_mma16_chain *chain = b->chain;
    block_start(b);
    for (int64_t s = 0; s < chain->n_segments; s++)
        for (int64_t k = chain->segments[s]; k < chain->segments[s + 1]; k += K_MAX)
            part_run(b, k, ls_min_i64(K_MAX, chain->segments[s + 1] - k));
    block_finish(b);
}

static void run(const void *context, int64_t row_begin, int64_t row_end, int64_t col_begin, int64_t col_end,
                float *scratch) {
    block b;
    b.chain = context;
    b.a = (a_step *)(void *)scratch;
    b.acc = (uint32_t *)(void *)(scratch + A_FLOATS);
    for (b.col = col_begin; b.col < col_end; b.col += COLS_MAX) {
        b.cols = ls_min_i64(COLS_MAX, col_end - b.col);
        b.n_panels = (b.cols - 1) / PANEL + 1;
        for (b.row = row_begin; b.row < row_end; b.row += ROWS_MAX) {
            b.rows = ls_min_i64(ROWS_MAX, row_end - b.row);
            block_run(&b);
        }
    }
}

/* Rows of a part: the second factor is decoded once for all of them. */
#define ROW_UNIT 8

extern const ls_grid_kernel LS_KERNEL(ls_mma16_kernel);
const ls_grid_kernel LS_KERNEL(ls_mma16_kernel) = {ROW_UNIT, LS_MMA16_PANEL, run};
