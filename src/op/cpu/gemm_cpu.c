/* Dense product, CPU body; compiled once for each instruction set. Owns nothing: scratch belongs to the calling thread.
 *
 * Order of arithmetic: each accumulator lane belongs to one output and takes k ascending, one fma a step, from +0.
 * Loops over K are cut into blocks between which accumulators rest in scratch as float32, unchanged; then bias,
 * canonical NaN and one rounding (finish). Everything else here decides only when a lane runs, never what it adds.
 *
 * Shape of the loops, outermost first:
 *   row block     up to ROWS_MAX rows, so that one pass over the weights serves many rows
 *   panel group   as many panels as resting accumulators fit in scratch (one step of panels when K needs one block)
 *   K super-block rows of x packed into tiles [k][tile rows]: the inner loop reads it in order, and the cache sets
 *                 that rows a power of two apart would share are left behind
 *   panel step    1 to WIDE_MAX panels side by side
 *   K block       a slice of the panels that stays in the first-level cache while every tile of rows passes over it;
 *                 meanwhile the next slice is prefetched into the second level, a share by each tile
 *   tile          rows x panels of accumulators in registers */
#include "base/mem.h"
#include "op/cpu/kernels.h"
#include "op/cpu/simd.h"
#include "op/gemm.h"

#define PANEL LS_GEMM_PANEL
#define PANEL_VECTORS (PANEL / LS_VF_LANES)

/* Rows in a tile, and panels side by side for a tile of a given number of rows: accumulators plus one row of weights
 * plus one broadcast fill the register file (16 of 8 lanes, 32 of 16 lanes) and never leave fewer than 8 independent
 * chains where rows and panels allow it (two fma a cycle, four cycles each). */
#if defined(__AVX512F__)
#define TILE_ROWS 14
#define TILE_WIDE(rows) ((rows) == 1 ? 8 : (rows) <= 6 ? 4 : 2)
#elif defined(__AVX2__)
#define TILE_ROWS 6
#define TILE_WIDE(rows) ((rows) == 1 ? 4 : (rows) <= 3 ? 2 : 1)
#else
#define TILE_ROWS 4
#define TILE_WIDE(rows) 1
#endif
#define WIDE_MAX TILE_WIDE(1)

/* Up to this many rows make one tile that reads several panels side by side and leaves fetching ahead to the processor,
 * which follows a few plain streams better than any hint. More rows make at least two tiles: then the first-level cache
 * serves all but the first of them, and software fetches the next slice in their shadow. */
#define LONE_ROWS (TILE_ROWS / 2)

/* Scratch: packed x first, resting accumulators after it. */
#define X_FLOATS (64 * 1024)
#define ACC_FLOATS (LS_SCRATCH_FLOATS - X_FLOATS)
#define TILES_MAX 16
#define ROWS_MAX (TILE_ROWS * TILES_MAX)

/* Bytes of weights in one K block of a panel step: half of a 32 KB first-level cache. */
#define SLICE_BYTES (16 * 1024)

/* Steps of k of x widened and packed at a time. */
#define X_STEPS 64

/* Steps of k between two looks at the loop counter and the prefetch. */
#define UNROLL 4

typedef struct tile_args {
    int64_t k;      /* steps */
    const float *x; /* [k][rows] */
    const void *w;  /* panels [k][PANEL], w_stride bytes apart */
    int64_t w_stride;
    float *acc;         /* [panel][rows of the block][PANEL]: this tile's first row */
    int64_t acc_stride; /* floats between panels */
    bool first;         /* start at +0 instead of acc */
    uintptr_t next;     /* where to prefetch, next_step bytes on at each step, in each panel; an address, never read */
    int64_t next_step;  /* bytes; 0 prefetches nothing */
} tile_args;

/* Vector v of step `step` of the panels side by side. */
static LS_SIMD ls_vf weight_load(const char *const *panels, const int step, const int v, const bool bf16) {
    const char *panel = panels[v / PANEL_VECTORS];
    const int at = step * PANEL + v % PANEL_VECTORS * LS_VF_LANES;
    return bf16 ? ls_vf_load_bf16((const uint16_t *)(const void *)panel + at)
                : ls_vf_load((const float *)(const void *)panel + at);
}

/* One step of k for every accumulator. The shorter of the two, rows of x or vectors of weights, stays in registers and
 * the other passes by. */
static LS_SIMD void tile_step(ls_vf acc[TILE_ROWS][WIDE_MAX * PANEL_VECTORS], const float *x, const char *const *panels,
                              const int step, const int rows, const int wide, const bool bf16) {
    const int vectors = wide * PANEL_VECTORS;
    ls_vf kept[TILE_ROWS < WIDE_MAX * PANEL_VECTORS ? WIDE_MAX * PANEL_VECTORS : TILE_ROWS];
    if (rows < vectors) {
        LS_UNROLL
        for (int r = 0; r < rows; r++) kept[r] = ls_vf_set1(x[step * rows + r]);
        LS_UNROLL
        for (int v = 0; v < vectors; v++) {
            const ls_vf passing = weight_load(panels, step, v, bf16);
            LS_UNROLL
            for (int r = 0; r < rows; r++) ls_vf_accumulate(&acc[r][v], kept[r], passing);
        }
    } else {
        LS_UNROLL
        for (int v = 0; v < vectors; v++) kept[v] = weight_load(panels, step, v, bf16);
        LS_UNROLL
        for (int r = 0; r < rows; r++) {
            const ls_vf passing = ls_vf_set1(x[step * rows + r]);
            LS_UNROLL
            for (int v = 0; v < vectors; v++) ls_vf_accumulate(&acc[r][v], passing, kept[v]);
        }
    }
}

/* rows, wide and bf16 are literals in every call, so the loops unroll and acc lives in registers. */
static LS_SIMD void tile_run(const tile_args *t, const int rows, const int wide, const bool bf16) {
    const int vectors = wide * PANEL_VECTORS;
    const int64_t n = t->k, acc_stride = t->acc_stride, next_step = t->next_step;
    const float *x = t->x;
    float *rest = t->acc;
    uintptr_t next = t->next;
    const char *panels[WIDE_MAX];
    int64_t k = 0;
    ls_vf acc[TILE_ROWS][WIDE_MAX * PANEL_VECTORS];
    LS_UNROLL
    for (int r = 0; r < rows; r++) {
        LS_UNROLL
        for (int v = 0; v < vectors; v++)
            acc[r][v] =
                t->first
                    ? ls_vf_zero()
                    : ls_vf_load(rest + v / PANEL_VECTORS * acc_stride + r * PANEL + v % PANEL_VECTORS * LS_VF_LANES);
    }
    LS_UNROLL
    for (int p = 0; p < wide; p++) panels[p] = (const char *)t->w + p * t->w_stride;
    for (; k + UNROLL <= n; k += UNROLL) {
        if (next_step != 0) {
            LS_UNROLL
            for (int p = 0; p < wide; p++) {
                __builtin_prefetch((const void *)(next + (uintptr_t)(p * t->w_stride)), 0, 2);
                __builtin_prefetch((const void *)(next + (uintptr_t)(p * t->w_stride + 2 * next_step)), 0, 2);
            }
            next += (uintptr_t)(UNROLL * next_step);
        }
        LS_UNROLL
        for (int step = 0; step < UNROLL; step++) tile_step(acc, x, panels, step, rows, wide, bf16);
        x += UNROLL * rows;
        LS_UNROLL
        for (int p = 0; p < wide; p++) panels[p] += UNROLL * PANEL * (bf16 ? 2 : 4);
    }
    for (; k < n; k++) {
        tile_step(acc, x, panels, 0, rows, wide, bf16);
        x += rows;
        LS_UNROLL
        for (int p = 0; p < wide; p++) panels[p] += PANEL * (bf16 ? 2 : 4);
    }
    LS_UNROLL
    for (int r = 0; r < rows; r++) {
        LS_UNROLL
        for (int v = 0; v < vectors; v++)
            ls_vf_store(rest + v / PANEL_VECTORS * acc_stride + r * PANEL + v % PANEL_VECTORS * LS_VF_LANES, acc[r][v]);
    }
}

/* clang-format off */
typedef void (*tile_fn)(const tile_args *);
#define TILE(rows, wide)                                                                         \
    static void tile_f32_##rows##x##wide(const tile_args *t) { tile_run(t, rows, wide, false); } \
    static void tile_bf16_##rows##x##wide(const tile_args *t) { tile_run(t, rows, wide, true); }
#define PAIR(rows, wide) {tile_f32_##rows##x##wide, tile_bf16_##rows##x##wide}
#define NONE {NULL, NULL}

/* tiles[rows - 1][log2 panels][bf16]; NONE where TILE_WIDE has no use for it. */
#if defined(__AVX512F__)
TILE(1, 1) TILE(1, 2) TILE(1, 4) TILE(1, 8)
TILE(2, 1) TILE(2, 2) TILE(2, 4)
TILE(3, 1) TILE(3, 2) TILE(3, 4)
TILE(4, 1) TILE(4, 2) TILE(4, 4)
TILE(5, 1) TILE(5, 2) TILE(5, 4)
TILE(6, 1) TILE(6, 2) TILE(6, 4)
TILE(7, 1) TILE(7, 2)
TILE(8, 1) TILE(8, 2)
TILE(9, 1) TILE(9, 2)
TILE(10, 1) TILE(10, 2)
TILE(11, 1) TILE(11, 2)
TILE(12, 1) TILE(12, 2)
TILE(13, 1) TILE(13, 2)
TILE(14, 1) TILE(14, 2)
static const tile_fn tiles[TILE_ROWS][4][2] = {
    {PAIR(1, 1), PAIR(1, 2), PAIR(1, 4), PAIR(1, 8)},
    {PAIR(2, 1), PAIR(2, 2), PAIR(2, 4), NONE},
    {PAIR(3, 1), PAIR(3, 2), PAIR(3, 4), NONE},
    {PAIR(4, 1), PAIR(4, 2), PAIR(4, 4), NONE},
    {PAIR(5, 1), PAIR(5, 2), PAIR(5, 4), NONE},
    {PAIR(6, 1), PAIR(6, 2), PAIR(6, 4), NONE},
    {PAIR(7, 1), PAIR(7, 2), NONE, NONE},
    {PAIR(8, 1), PAIR(8, 2), NONE, NONE},
    {PAIR(9, 1), PAIR(9, 2), NONE, NONE},
    {PAIR(10, 1), PAIR(10, 2), NONE, NONE},
    {PAIR(11, 1), PAIR(11, 2), NONE, NONE},
    {PAIR(12, 1), PAIR(12, 2), NONE, NONE},
    {PAIR(13, 1), PAIR(13, 2), NONE, NONE},
    {PAIR(14, 1), PAIR(14, 2), NONE, NONE},
};
#elif defined(__AVX2__)
TILE(1, 1) TILE(1, 2) TILE(1, 4)
TILE(2, 1) TILE(2, 2)
TILE(3, 1) TILE(3, 2)
TILE(4, 1)
TILE(5, 1)
TILE(6, 1)
static const tile_fn tiles[TILE_ROWS][4][2] = {
    {PAIR(1, 1), PAIR(1, 2), PAIR(1, 4), NONE},
    {PAIR(2, 1), PAIR(2, 2), NONE, NONE},
    {PAIR(3, 1), PAIR(3, 2), NONE, NONE},
    {PAIR(4, 1), NONE, NONE, NONE},
    {PAIR(5, 1), NONE, NONE, NONE},
    {PAIR(6, 1), NONE, NONE, NONE},
};
#else
TILE(1, 1)
TILE(2, 1)
TILE(3, 1)
TILE(4, 1)
static const tile_fn tiles[TILE_ROWS][4][2] = {
    {PAIR(1, 1), NONE, NONE, NONE},
    {PAIR(2, 1), NONE, NONE, NONE},
    {PAIR(3, 1), NONE, NONE, NONE},
    {PAIR(4, 1), NONE, NONE, NONE},
};
#endif
/* clang-format on */

static int64_t ceil_div(int64_t a, int64_t b) { return (a - 1) / b + 1; }
/* A block of rows on its way through a range of panels. Tiles differ by at most one row, so that none is left with a
 * row or two and few chains. */
typedef struct block {
    const ls_gemm_args *args;
    int64_t row_begin, rows;
    int64_t n_tiles;
    int64_t tile_begin[TILES_MAX + 1]; /* first row of each tile, within the block */
    float *x, *acc;
    int64_t group_begin; /* first panel whose accumulators are in acc */
} block;

/* Moves x [rows][k] to [k][rows]: four rows and four steps at a time where a vector unit helps, else one by one. */
static void tile_pack(float *to, const float *const *from, int64_t rows, int64_t k) {
    int64_t r = 0;
#if defined(__SSE2__)
    for (; r + 4 <= rows; r += 4) {
        const int64_t k4 = k / 4 * 4;
        for (int64_t i = 0; i < k4; i += 4) {
            __m128 a = _mm_loadu_ps(from[r] + i), b = _mm_loadu_ps(from[r + 1] + i);
            __m128 c = _mm_loadu_ps(from[r + 2] + i), d = _mm_loadu_ps(from[r + 3] + i);
            _MM_TRANSPOSE4_PS(a, b, c, d);
            _mm_storeu_ps(to + i * rows + r, a);
            _mm_storeu_ps(to + (i + 1) * rows + r, b);
            _mm_storeu_ps(to + (i + 2) * rows + r, c);
            _mm_storeu_ps(to + (i + 3) * rows + r, d);
        }
        for (int64_t i = k4; i < k; i++)
            for (int64_t j = r; j < r + 4; j++) to[i * rows + j] = from[j][i];
    }
#endif
    for (; r < rows; r++)
        for (int64_t i = 0; i < k; i++) to[i * rows + r] = from[r][i];
}

/* x[rows][k_begin .. k_begin + k) of the block, widened, as tiles [k][tile rows] one after the other. */
static void x_pack(const block *b, int64_t k_begin, int64_t k) {
    const ls_gemm_args *args = b->args;
    float wide[TILE_ROWS][X_STEPS];
    const float *from[TILE_ROWS];
    for (int64_t tile_i = 0; tile_i < b->n_tiles; tile_i++) {
        const int64_t r_begin = b->tile_begin[tile_i], rows = b->tile_begin[tile_i + 1] - r_begin;
        for (int64_t begin = 0; begin < k; begin += X_STEPS) {
            const int64_t steps = ls_min_i64(X_STEPS, k - begin);
            for (int64_t r = 0; r < rows; r++) {
                const int64_t at = (b->row_begin + r_begin + r) * args->x_stride + k_begin + begin;
                from[r] = args->x_dtype == LS_F32 ? (const float *)args->x + at : wide[r];
                if (args->x_dtype == LS_BF16)
                    for (int64_t i = 0; i < steps; i++)
                        wide[r][i] = ls_bf16_to_f32(((const uint16_t *)args->x)[at + i]);
            }
            tile_pack(b->x + r_begin * k + begin * rows, from, rows, steps);
        }
    }
}

/* Adds K steps [k_begin, k_begin + k) to the accumulators of `wide` panels from panel_i on. */
static void panels_add(const block *b, int64_t panel_i, int64_t wide, int64_t k_begin, int64_t k) {
    const ls_gemm_weight *weight = b->args->weight;
    const bool bf16 = weight->dtype == LS_BF16;
    const int64_t elem_bytes = bf16 ? 2 : 4;
    const int log2_wide = wide >= 8 ? 3 : wide >= 4 ? 2 : wide >= 2 ? 1 : 0;
    const int64_t k_block = SLICE_BYTES / (PANEL * elem_bytes * wide);
    const int64_t n_blocks = b->n_tiles == 1 ? 1 : ceil_div(k, k_block);
    tile_args t;
    t.w_stride = weight->panel_stride;
    t.acc_stride = b->rows * PANEL;
    t.next_step = b->n_tiles == 1 ? 0 : PANEL * elem_bytes / b->n_tiles;
    for (int64_t block_i = 0; block_i < n_blocks; block_i++) {
        const int64_t begin = k * block_i / n_blocks;
        const char *w =
            (const char *)weight->panels + panel_i * weight->panel_stride + (k_begin + begin) * PANEL * elem_bytes;
        t.k = k * (block_i + 1) / n_blocks - begin;
        t.w = w;
        t.first = k_begin + begin == 0;
        t.next = (uintptr_t)w + (uintptr_t)(t.k * PANEL * elem_bytes);
        for (int64_t tile_i = 0; tile_i < b->n_tiles; tile_i++) {
            const int64_t r_begin = b->tile_begin[tile_i], rows = b->tile_begin[tile_i + 1] - r_begin;
            t.x = b->x + r_begin * k + begin * rows;
            t.acc = b->acc + (panel_i - b->group_begin) * t.acc_stride + r_begin * PANEL;
            tiles[rows - 1][log2_wide][bf16](&t);
            t.next += (uintptr_t)(t.k * t.next_step);
        }
    }
}

/* Accumulators of one panel to out: bias, canonical NaN, one rounding. */
static void panel_finish(const block *b, int64_t panel_i) {
    const ls_gemm_args *args = b->args;
    const float *acc = b->acc + (panel_i - b->group_begin) * b->rows * PANEL;
    const int64_t column = panel_i * PANEL, columns = ls_min_i64(PANEL, args->weight->n - column);
    float bias[PANEL] = {0};
    if (args->bias != NULL) memcpy(bias, args->bias + column, (size_t)columns * sizeof bias[0]);
    for (int64_t r = 0; r < b->rows; r++, acc += PANEL) {
        const int64_t at = (b->row_begin + r) * args->out_stride + column;
        const bool in_place = args->out_dtype == LS_F32 && columns == PANEL;
        float last[PANEL];
        uint16_t half[PANEL];
        float *y = in_place ? (float *)args->out + at : last;
        LS_UNROLL
        for (int c = 0; c < PANEL; c += LS_VF_LANES) {
            const ls_vf sum = ls_vf_load(acc + c);
            ls_vf_store(y + c, ls_vf_canonical(args->bias != NULL ? ls_vf_add(sum, ls_vf_load(bias + c)) : sum));
        }
        if (in_place) continue;
        if (args->out_dtype == LS_F32) {
            memcpy((float *)args->out + at, y, (size_t)columns * sizeof y[0]);
        } else {
            for (int c = 0; c < PANEL; c++) half[c] = ls_f32_to_bf16(y[c]);
            memcpy((uint16_t *)args->out + at, half, (size_t)columns * sizeof half[0]);
        }
    }
}

static void block_run(const block *rows_block, int64_t panel_begin, int64_t panel_end) {
    block b = *rows_block;
    const int64_t k = b.args->weight->k;
    const int64_t n_supers = ceil_div(k, X_FLOATS / b.rows);
    /* The largest tile has the fewest panels side by side; smaller ones can follow it. */
    const int64_t wide_max = TILE_WIDE(ceil_div(b.rows, b.n_tiles));
    const int64_t group = n_supers == 1 ? wide_max : ACC_FLOATS / (b.rows * PANEL);
    for (int64_t g = panel_begin; g < panel_end; g += group) {
        const int64_t g_end = ls_min_i64(g + group, panel_end);
        b.group_begin = g;
        for (int64_t super_i = 0; super_i < n_supers; super_i++) {
            const int64_t k_begin = k * super_i / n_supers, k_end = k * (super_i + 1) / n_supers;
            int64_t wide = wide_max;
            if (n_supers > 1 || g == panel_begin) x_pack(&b, k_begin, k_end - k_begin);
            for (int64_t p = g; p < g_end; p += wide) {
                while (wide > g_end - p) wide /= 2;
                panels_add(&b, p, wide, k_begin, k_end - k_begin);
            }
        }
        for (int64_t p = g; p < g_end; p++) panel_finish(&b, p);
    }
}

static void run(const void *context, int64_t row_begin, int64_t row_end, int64_t col_begin, int64_t col_end,
                float *scratch) {
    const int64_t rows = row_end - row_begin, n_blocks = rows > 0 ? ceil_div(rows, ROWS_MAX) : 0;
    const int64_t panel_begin = col_begin / LS_GEMM_PANEL, panel_end = ceil_div(col_end, LS_GEMM_PANEL);
    block b;
    b.args = context;
    b.x = scratch;
    b.acc = scratch + X_FLOATS;
    b.group_begin = panel_begin;
    for (int64_t i = 0; i < n_blocks; i++) {
        b.row_begin = row_begin + rows * i / n_blocks;
        b.rows = row_begin + rows * (i + 1) / n_blocks - b.row_begin;
        b.n_tiles = b.rows > LONE_ROWS && b.rows <= TILE_ROWS ? 2 : ceil_div(b.rows, TILE_ROWS);
        for (int64_t t = 0; t <= b.n_tiles; t++) b.tile_begin[t] = b.rows * t / b.n_tiles;
        block_run(&b, panel_begin, panel_end);
    }
}

extern const ls_grid_kernel LS_KERNEL(ls_gemm_kernel);
const ls_grid_kernel LS_KERNEL(ls_gemm_kernel) = {TILE_ROWS, LS_GEMM_PANEL, run};
