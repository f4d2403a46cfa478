/* Gradients of the dense product, CPU body; compiled once for each instruction set. Owns nothing: scratch belongs to
 * the calling thread.
 *
 * Order of arithmetic: each accumulator lane belongs to one output and takes the steps in ascending order, one fma a
 * step. Between blocks of steps accumulators rest in scratch as float32, unchanged. Everything else here decides only
 * when a lane runs, never what it adds.
 *
 * Shape of the loops, outermost first:
 *   block       up to ROWS_MAX x COLS_MAX outputs, whose accumulators rest in scratch as whole tiles: ragged edges are
 *               a matter of packing and of the copies in and out, and lanes past them are never stored
 *   steps       up to STEPS_MAX of them, both factors packed: a as tiles [step][TILE_ROWS], b as panels
 *               [step][TILE_COLS]; the inner loop reads both in order
 *   panel       stays in the first-level cache while every tile of rows passes over it
 *   tile        TILE_ROWS x TILE_COLS accumulators in registers */
#include "base/mem.h"
#include "op/cpu/gemm_backward_kernel.h"
#include "op/cpu/simd.h"
#include "op/rows.h"

/* Accumulators, one step of b and one broadcast fill the register file (16 of 8 lanes, 32 of 16 lanes). */
#if defined(__AVX512F__)
#define TILE_ROWS 14
#define TILE_COLS 32
#elif defined(__AVX2__)
#define TILE_ROWS 6
#define TILE_COLS 16
#else
#define TILE_ROWS 4
#define TILE_COLS 16
#endif
#define TILE_VECTORS (TILE_COLS / LS_VF_LANES)
#define TILE_FLOATS (TILE_ROWS * TILE_COLS)

#define STEPS_MAX 256
#define ROWS_MAX (192 / TILE_ROWS * TILE_ROWS)
#define COLS_MAX 1024

/* Columns of a row packed at a time, a multiple of TILE_COLS. */
#define PACK_COLS 128

#define A_FLOATS (ROWS_MAX * STEPS_MAX)
#define B_FLOATS (COLS_MAX * STEPS_MAX)
_Static_assert(A_FLOATS + B_FLOATS + ROWS_MAX * COLS_MAX <= LS_SCRATCH_FLOATS, "a block fits scratch");

static int64_t ceil_div(int64_t a, int64_t b) { return (a - 1) / b + 1; }
/* Outputs [row, row + rows) x [col, col + cols), and where they rest: acc [panel][tile][TILE_ROWS][TILE_COLS]. */
typedef struct block {
    const ls_gemm_chain *chain;
    int64_t row, rows, col, cols;
    int64_t n_tiles, n_panels;
    float *a, *b, *acc;
} block;

static void tile_run(float *rest, const float *a, const float *b, int64_t steps) {
    ls_vf acc[TILE_ROWS][TILE_VECTORS];
    LS_UNROLL
    for (int r = 0; r < TILE_ROWS; r++) {
        LS_UNROLL
        for (int v = 0; v < TILE_VECTORS; v++) acc[r][v] = ls_vf_load(rest + r * TILE_COLS + v * LS_VF_LANES);
    }
    for (int64_t s = 0; s < steps; s++, a += TILE_ROWS, b += TILE_COLS) {
        ls_vf kept[TILE_VECTORS];
        LS_UNROLL
        for (int v = 0; v < TILE_VECTORS; v++) kept[v] = ls_vf_load(b + v * LS_VF_LANES);
        LS_UNROLL
        for (int r = 0; r < TILE_ROWS; r++) {
            const ls_vf passing = ls_vf_set1(a[r]);
            LS_UNROLL
            for (int v = 0; v < TILE_VECTORS; v++) acc[r][v] = ls_vf_fma(passing, kept[v], acc[r][v]);
        }
    }
    LS_UNROLL
    for (int r = 0; r < TILE_ROWS; r++) {
        LS_UNROLL
        for (int v = 0; v < TILE_VECTORS; v++) ls_vf_store(rest + r * TILE_COLS + v * LS_VF_LANES, acc[r][v]);
    }
}

/* a's rows of the block as tiles [step][TILE_ROWS], one after the other; rows past the end are +0. */
static void a_pack(const block *b, int64_t step, int64_t steps) {
    const ls_gemm_chain *chain = b->chain;
    for (int64_t tile = 0; tile < b->n_tiles; tile++) {
        const int64_t rows = ls_min_i64(TILE_ROWS, b->rows - tile * TILE_ROWS);
        const float *from = chain->a + (b->row + tile * TILE_ROWS) * chain->a_row + step * chain->a_step;
        float *to = b->a + tile * TILE_ROWS * steps;
        if (rows < TILE_ROWS) memset(to, 0, (size_t)(TILE_ROWS * steps) * sizeof *to);
        if (chain->a_step == 1) {
            ls_transpose(to, TILE_ROWS, from, chain->a_row, rows, steps);
            continue;
        }
        for (int64_t s = 0; s < steps; s++)
            for (int64_t r = 0; r < rows; r++) to[s * TILE_ROWS + r] = from[s * chain->a_step + r];
    }
}

/* b's columns of the block, widened, as panels [step][TILE_COLS], one after the other; columns past the end are +0. A
 * row is read PACK_COLS at a time: single lines a row apart would each wait for memory. */
static void b_pack(const block *b, int64_t step, int64_t steps) {
    const ls_gemm_chain *chain = b->chain;
    for (int64_t begin = 0; begin < b->cols; begin += PACK_COLS) {
        const int64_t end = ls_min_i64(begin + PACK_COLS, b->cols);
        for (int64_t s = 0; s < steps; s++) {
            const int64_t row = chain->b_rows != NULL ? chain->b_rows[step + s] : step + s;
            const int64_t at = row * chain->b_stride + b->col;
            for (int64_t col = begin; col < end; col += TILE_COLS) {
                const int64_t cols = ls_min_i64(TILE_COLS, end - col);
                float *to = b->b + col * steps + s * TILE_COLS;
                if (cols == TILE_COLS) {
                    ls_row_widen(to, ls_at(chain->b, chain->b_dtype, at + col), chain->b_dtype, TILE_COLS);
                    continue;
                }
                ls_row_widen(to, ls_at(chain->b, chain->b_dtype, at + col), chain->b_dtype, cols);
                for (int64_t c = cols; c < TILE_COLS; c++) to[c] = 0.0f;
            }
        }
    }
}

/* Row i of the block: in the accumulators of a panel, and in out. */
static float *acc_row(const block *b, int64_t panel, int64_t i) {
    return b->acc + (panel * b->n_tiles * TILE_ROWS + i) * TILE_COLS;
}
static float *out_row(const block *b, int64_t i) {
    const ls_gemm_chain *chain = b->chain;
    const int64_t row = b->row + i;
    return chain->out + (chain->out_rows != NULL ? chain->out_rows[row] : row) * chain->out_stride + b->col;
}

static void block_start(const block *b) {
    memset(b->acc, 0, (size_t)(b->n_panels * b->n_tiles * TILE_FLOATS) * sizeof *b->acc);
    if (b->chain->mode != LS_CHAIN_CONTINUE) return;
    for (int64_t i = 0; i < b->rows; i++)
        for (int64_t panel = 0; panel < b->n_panels; panel++) {
            const int64_t col = panel * TILE_COLS, cols = ls_min_i64(TILE_COLS, b->cols - col);
            memcpy(acc_row(b, panel, i), out_row(b, i) + col, (size_t)cols * sizeof(float));
        }
}

static void block_finish(const block *b) {
    for (int64_t i = 0; i < b->rows; i++)
        for (int64_t panel = 0; panel < b->n_panels; panel++) {
            const int64_t col = panel * TILE_COLS, cols = ls_min_i64(TILE_COLS, b->cols - col);
            const float *acc = acc_row(b, panel, i);
            float *out = out_row(b, i) + col;
            if (b->chain->mode == LS_CHAIN_ADD)
                for (int64_t c = 0; c < cols; c++) out[c] = ls_add(out[c], acc[c]);
            else
                memcpy(out, acc, (size_t)cols * sizeof *out);
        }
}

static void block_run(const block *b) {
    const int64_t steps = b->chain->steps, n_parts = ceil_div(steps, STEPS_MAX);
    block_start(b);
    for (int64_t part = 0; part < n_parts; part++) {
        const int64_t begin = steps * part / n_parts, n = steps * (part + 1) / n_parts - begin;
        a_pack(b, begin, n);
        b_pack(b, begin, n);
        for (int64_t panel = 0; panel < b->n_panels; panel++)
            for (int64_t tile = 0; tile < b->n_tiles; tile++)
                tile_run(acc_row(b, panel, tile * TILE_ROWS), b->a + tile * TILE_ROWS * n, b->b + panel * TILE_COLS * n,
                         n);
    }
    block_finish(b);
}

static void run(const void *context, int64_t row_begin, int64_t row_end, int64_t col_begin, int64_t col_end,
                float *scratch) {
    block b;
    b.chain = context;
    b.a = scratch;
    b.b = b.a + A_FLOATS;
    b.acc = b.b + B_FLOATS;
    for (b.col = col_begin; b.col < col_end; b.col += COLS_MAX) {
        b.cols = ls_min_i64(COLS_MAX, col_end - b.col);
        b.n_panels = ceil_div(b.cols, TILE_COLS);
        for (b.row = row_begin; b.row < row_end; b.row += ROWS_MAX) {
            b.rows = ls_min_i64(ROWS_MAX, row_end - b.row);
            b.n_tiles = ceil_div(b.rows, TILE_ROWS);
            block_run(&b);
        }
    }
}

extern const ls_grid_kernel LS_KERNEL(ls_gemm_chain_kernel);
const ls_grid_kernel LS_KERNEL(ls_gemm_chain_kernel) = {TILE_ROWS, TILE_COLS, run};

/* dbias: an item is a block of columns. */
LS_KERNEL_DEFINE(ls_gemm_dbias_kernel) {
    const ls_gemm_backward_weight_args *args = context;
    (void)scratch;
    for (int64_t item = begin; item < end; item++) {
        const int64_t column = item * LS_GEMM_BIAS_BLOCK, n = ls_min_i64(LS_GEMM_BIAS_BLOCK, args->n - column);
        float acc[LS_GEMM_BIAS_BLOCK];
        memcpy(acc, args->dbias + column, (size_t)n * sizeof *acc);
        for (int64_t row = 0; row < args->m; row++) {
            const float *dy = args->dy + row * args->dy_stride + column;
            for (int64_t c = 0; c < n; c++) acc[c] = ls_add(acc[c], dy[c]);
        }
        memcpy(args->dbias + column, acc, (size_t)n * sizeof *acc);
    }
}
