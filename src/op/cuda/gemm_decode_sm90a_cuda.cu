/* Dense products of the profile mma16 for few rows, on Hopper's tensor cores; the pace is that of reading the weights.
 * Compiled for sm_90a alone.
 *
 * 64 rows of x are the instruction's 64 rows: those that are not there are computed from whatever lies in shared memory
 * and never stored. A block takes COLUMNS rows of the weight, all of their depth, as one chain for each output, and up
 * to 64 rows of x for each of its GROUPS warpgroups that multiply, one or two, fewer where the weight has few blocks.
 * One thread fetches stages of some times 64 depths, the weight's part as one copy and x as one box, because each of
 * them takes it some 75 ns however small it is; a warpgroup issues wgmma in steps of up to four of these tiles, the
 * next while the last is under way, and gives back the stages that are behind it. Before the kernel waits for the one
 * ahead of it the weight is put on its way into the second-level cache, and its part of the first stage into shared
 * memory: no kernel that writes tiles lets the next one start before its end.
 *
 * Two products, through a gate or not: a block takes the same rows of both weights, and a stage holds a part of each.
 * Three: beside its rows of the first weight a block takes SIDE rows of each of two narrow ones, as long as there are
 * any, so that x and the start of a kernel are paid once.
 *
 * Tiles of a weight: blocks of COLUMNS rows; in a block 64 depths after another; there strips of eight rows; a strip is
 * 8 core matrices of 8 rows x 8 depths, 128 bytes each, along depth. COLUMNS follows from n alone. */
#include "base/mem.h"
#include "num/expf.h"
#include "op/cuda/gemm_size_cuda.h"
#include "op/cuda/product_cuda.h"
#include "op/cuda/ring_cuda.h"
#include "op/cuda/wgmma_cuda.h"
#include "op/gemm_cuda.h"

/* Warpgroups multiply and end the chains; one thread of the warp behind them fetches. Where chains end in a gate, which
 * takes time, three more warps help to end them. */
#define MULTIPLIERS(groups) (128 * (groups))
#define ENDING(weights, groups) ((weights) == 2 ? MULTIPLIERS(groups) + 96 : MULTIPLIERS(groups))
#define THREADS(weights, groups) (ENDING(weights, groups) + 32)
#define TILE_DEPTH 64
#define GROUP_ROWS 64
/* A row of a box. */
#define ROW_BYTES (TILE_DEPTH * 2)
/* Weights up to this many rows are so narrow that up to so many rows of x fill the chip better with blocks of a few of
 * both than with tiles. */
#define NARROW 512
#define NARROW_ROWS 256
/* Up to so many rows a block takes all of them, measured on an H200 (docs/lab/gpu-ops.md). */
#define WHOLE_ROWS 32
/* Blocks of at least so many rows of the weight take rows of x beyond 64 by a second warpgroup: beside fewer, all of x
 * would be read too often, and tiles that share it out are faster. */
#define COLUMNS_OF_TWO 40
/* Rows of each narrow weight of three that a block takes. */
#define SIDE 8
/* A strip's 64 depths. */
#define STRIP_BYTES 1024
#define STAGES_MAX 16
/* To align, and to be read where rows are not there. */
#define SLACK(groups) (1024 + (groups)*GROUP_ROWS * ROW_BYTES)
/* Of the chip: a layout of weights must not depend on the machine that made it. */
#define PROCESSORS LS_DECODE_PROCESSORS
/* Of a block's weights, on their way before the block starts. */
#define EXPECTED_BYTES (64 * 1024)

typedef struct decode_params {
    CUtensorMap x;
    ls_product p;
    const uint8_t *tiles[2]; /* the second of two products */
    int64_t tiles_deep;      /* times 64 depths */
    bool boxes;              /* a stage of x is one box of 64 x rows8 x stage_tiles; else stage_tiles boxes */
    int32_t block_rows;      /* rows of x that a block takes */
    int32_t rows8;           /* the same, up to a multiple of 8 */
    int32_t stage_tiles, stages, n_stages;
    void *other_out;     /* of the second product; NULL: both go through the gate */
    ls_product sides[2]; /* the narrow two of three */
    const uint8_t *side_tiles[2];
    int32_t side_blocks; /* that have rows of them */
} decode_params;

/* WEIGHTS: 1, 2, or 3 of which two are narrow. Columns of a block, and those of weights as wide as the first. */
static __host__ __device__ constexpr int wide_weights(int weights) { return weights == 2 ? 2 : 1; }
static __host__ __device__ constexpr int all_columns(int columns, int weights) {
    return wide_weights(weights) * columns + (weights == 3 ? 2 * SIDE : 0);
}

static __device__ __forceinline__ uint32_t x_bytes(const decode_params *p) {
    return (uint32_t)(p->stage_tiles * p->rows8 * ROW_BYTES);
}

/* Of one weight, in a stage. */
template <int COLUMNS>
static __device__ __forceinline__ uint32_t part_bytes(const decode_params *p) {
    return (uint32_t)(p->stage_tiles * COLUMNS / 8 * STRIP_BYTES);
}

template <int COLUMNS, int WEIGHTS>
static __device__ __forceinline__ uint32_t stage_bytes(const decode_params *p) {
    return x_bytes(p) + part_bytes<all_columns(COLUMNS, WEIGHTS)>(p);
}

template <int COLUMNS, int WEIGHTS>
static __device__ __forceinline__ void produce(const decode_params *p, uint32_t shared, uint32_t full, uint32_t empty) {
    constexpr uint32_t TILE = COLUMNS / 8 * STRIP_BYTES, SIDE_TILE = SIDE / 8 * STRIP_BYTES;
    constexpr int WIDE = wide_weights(WEIGHTS);
    const int64_t block = (int64_t)blockIdx.x * p->tiles_deep * TILE, bytes = p->tiles_deep * TILE;
    const int64_t side_block = (int64_t)blockIdx.x * p->tiles_deep * SIDE_TILE;
    const uint32_t box = (uint32_t)p->rows8 * ROW_BYTES;
    const int32_t row = (int32_t)blockIdx.y * p->block_rows;
    const int sides = WEIGHTS == 3 && (int32_t)blockIdx.x < p->side_blocks ? 2 : 0;
    int slot = 0, phase = 1;
    ls_box_expect(&p->x);
#pragma unroll
    for (int w = 0; w < WIDE; w++)
        ls_bulk_expect(p->tiles[w] + block, (uint32_t)(bytes < EXPECTED_BYTES ? bytes : EXPECTED_BYTES));
    for (int stage = 0; stage < p->n_stages; stage++) {
        const int64_t first = (int64_t)stage * p->stage_tiles, left = p->tiles_deep - first;
        const int n = left < p->stage_tiles ? (int)left : p->stage_tiles;
        const uint32_t x = shared + slot * stage_bytes<COLUMNS, WEIGHTS>(p), barrier = full + 8 * slot;
        ls_barrier_wait(empty + 8 * slot, phase);
        /* A box counts whole, also what of it lies outside. */
        ls_barrier_expect(barrier, (p->boxes ? x_bytes(p) : (uint32_t)n * box) +
                                       (uint32_t)n * (WIDE * TILE + (uint32_t)sides * SIDE_TILE));
#pragma unroll
        for (int w = 0; w < WIDE; w++)
            ls_bulk_fetch(x + x_bytes(p) + w * part_bytes<COLUMNS>(p), p->tiles[w] + block + first * TILE,
                          (uint32_t)n * TILE, barrier);
        for (int w = 0; w < sides; w++)
            ls_bulk_fetch(x + x_bytes(p) + part_bytes<COLUMNS>(p) + w * part_bytes<SIDE>(p),
                          p->side_tiles[w] + side_block + first * SIDE_TILE, (uint32_t)n * SIDE_TILE, barrier);
        if (stage == 0) ls_cuda_wait_for_previous();
        if (p->boxes)
            ls_box_fetch3(&p->x, x, barrier, 0, row, (int32_t)first);
        else
            for (int t = 0; t < n; t++)
                ls_box_fetch(&p->x, x + t * box, barrier, (int32_t)((first + t) * TILE_DEPTH), row);
        if (++slot == p->stages) slot = 0, phase ^= 1;
    }
}

/* Outputs of a block in shared memory. */
template <int COLUMNS, int WEIGHTS, int GROUPS>
struct outputs {
    float of[wide_weights(WEIGHTS)][GROUPS * GROUP_ROWS][COLUMNS + 8];
    float side[WEIGHTS == 3 ? GROUPS * GROUP_ROWS : 1][2 * SIDE + 8];
    bool faulty; /* nothing is to be stored */
};

/* A group of wgmma: the chains go on by TILES tiles, `box` and a strip's bytes apart. No loop may remain in it: around
 * one the compiler closes the group itself, and who waits for the group before this waits for this one too. Two weights
 * whose parts of a stage are one tile each lie strip behind strip, as one of twice the columns, and x is read once. The
 * strips of two narrow ones are one of 16 columns, `side_part` apart; where a block has none of their rows, what they
 * are multiplied from is anything, and nobody stores it. */
template <int TILES, int COLUMNS, int WEIGHTS, bool JOINED>
static __device__ __forceinline__ void multiply(float (&d)[all_columns(COLUMNS, WEIGHTS) / 2], uint32_t x, uint32_t box,
                                                uint32_t w, uint32_t part, uint32_t side, uint32_t side_part) {
    constexpr uint32_t TILE = COLUMNS / 8 * STRIP_BYTES;
    constexpr int WIDE = wide_weights(WEIGHTS), AT_ONCE = JOINED ? WIDE * COLUMNS : COLUMNS;
    const uint64_t a = ls_wgmma_descriptor(x, 16, 1024, LS_WG_SWIZZLE_128);
    const uint64_t b = ls_wgmma_descriptor(w, 128, STRIP_BYTES, LS_WG_PLAIN);
    const uint64_t c = ls_wgmma_descriptor(side, 128, side_part, LS_WG_PLAIN);
    ls_wgmma_fence();
#pragma unroll
    for (int t = 0; t < TILES; t++)
#pragma unroll
        for (int k = 0; k < TILE_DEPTH / 16; k++) {
            const uint64_t rows = a + t * (box >> 4) + k * (32 >> 4);
#pragma unroll
            for (int i = 0; i < WIDE * COLUMNS / AT_ONCE; i++)
                ls_wgmma<AT_ONCE>::template ss<0, 0>(*(float(*)[AT_ONCE / 2]) & d[i * AT_ONCE / 2], rows,
                                                     b + i * (part >> 4) + t * (TILE >> 4) + k * (256 >> 4));
            if (WEIGHTS == 3)
                ls_wgmma<2 * SIDE>::template ss<0, 0>(*(float(*)[SIDE]) & d[COLUMNS / 2], rows,
                                                      c + t * (STRIP_BYTES >> 4) + k * (256 >> 4));
        }
    ls_wgmma_commit();
}

template <int COLUMNS, int WEIGHTS, int GROUPS, int TILES>
static __device__ __forceinline__ void consume(const decode_params *p, outputs<COLUMNS, WEIGHTS, GROUPS> *out,
                                               uint32_t shared, uint32_t full, uint32_t computed, int group) {
    constexpr uint32_t TILE = COLUMNS / 8 * STRIP_BYTES;
    const int thread = threadIdx.x % 128, lane = thread % 32;
    const uint32_t box = (uint32_t)p->rows8 * ROW_BYTES, mine = (uint32_t)group * GROUP_ROWS * ROW_BYTES;
    constexpr bool JOINED = WEIGHTS == 2 && GROUPS == 2; /* stages are single tiles */
    float d[all_columns(COLUMNS, WEIGHTS) / 2];
    int slot = 0, phase = 0;
#pragma unroll
    for (int i = 0; i < all_columns(COLUMNS, WEIGHTS) / 2; i++) d[i] = 0.0f;
    ls_cuda_wait_for_previous();
    ls_cuda_let_next_start();
    /* Asked for here and looked at when all is computed, so that nobody waits for it. */
    const bool faulty = ls_product_faulty(&p->p);
    ls_wgmma_hold(d);
    const uint32_t part = part_bytes<COLUMNS>(p), side_part = part_bytes<SIDE>(p), weights = x_bytes(p);
    uint32_t stage = shared, barrier = full, ended = 0; /* where the stage before may be given back, or 0 */
    int at = 0, left = (int)p->tiles_deep;              /* tiles into the stage, and to the end */
    for (; left >= TILES; left -= TILES) {
        if (at == 0) ls_barrier_wait(barrier, phase);
        multiply<TILES, COLUMNS, WEIGHTS, JOINED>(d, stage + at * box + mine, box, stage + weights + at * TILE, part,
                                                  stage + weights + part + at * STRIP_BYTES, side_part);
        ls_wgmma_wait<1>();
        if (ended != 0 && thread == 0) ls_barrier_arrive(ended);
        ended = 0;
        if ((at += TILES) < p->stage_tiles) continue;
        at = 0;
        ended = barrier + 8 * STAGES_MAX;
        barrier += 8;
        stage += stage_bytes<COLUMNS, WEIGHTS>(p);
        if (++slot < p->stages) continue;
        slot = 0;
        phase ^= 1;
        barrier = full;
        stage = shared;
    }
    /* Fewer than TILES, so in one stage. */
#pragma unroll 1
    for (; TILES > 1 && left > 0; left--, at++) {
        if (at == 0) ls_barrier_wait(barrier, phase);
        multiply<1, COLUMNS, WEIGHTS, JOINED>(d, stage + at * box + mine, box, stage + weights + at * TILE, part,
                                              stage + weights + part + at * STRIP_BYTES, side_part);
    }
    ls_wgmma_wait<0>();
    ls_wgmma_hold(d);
    /* Every warp that multiplies has read its last stage: the ring is idle. */
    asm volatile("bar.sync 1, %0;" ::"n"(MULTIPLIERS(GROUPS)) : "memory");
    const int row = group * GROUP_ROWS + thread / 32 * 16 + lane / 4, column = lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < COLUMNS / 2; i += 2)
#pragma unroll
        for (int w = 0; w < wide_weights(WEIGHTS); w++)
            *(float2 *)&out->of[w][row + i % 4 / 2 * 8][i / 4 * 8 + column] =
                make_float2(d[w * COLUMNS / 2 + i], d[w * COLUMNS / 2 + i + 1]);
    if (WEIGHTS == 3)
#pragma unroll
        for (int i = 0; i < SIDE; i += 2)
            *(float2 *)&out->side[row + i % 4 / 2 * 8][i / 4 * 8 + column] =
                make_float2(d[COLUMNS / 2 + i], d[COLUMNS / 2 + i + 1]);
    if (threadIdx.x == 0) out->faulty = faulty;
    ls_barrier_arrive(computed);
}

/* Ends the chains of the rows that are there, eight outputs of a row at a time: of the one weight, of two, which may go
 * through the gate, or of three. By ENDING threads, which count from 0. They wait at an mbarrier for all that multiply:
 * at a bar.sync that one warp of the block passes by, racecheck takes what they read for a race. */
template <int COLUMNS, int WEIGHTS, int GROUPS>
static __device__ __forceinline__ void finish(const decode_params *p, outputs<COLUMNS, WEIGHTS, GROUPS> *out,
                                              uint32_t computed, int thread) {
    const int64_t first = (int64_t)blockIdx.y * p->block_rows, left = p->p.rows - first;
    const int rows = left < p->block_rows ? (int)left : p->block_rows;
    ls_barrier_wait(computed, 0);
    if (out->faulty) return;
#pragma unroll 1
    for (int at = thread; at < rows * (COLUMNS / 8); at += ENDING(WEIGHTS, GROUPS)) {
        const int row = at / (COLUMNS / 8), column = at % (COLUMNS / 8) * 8;
        float *y = &out->of[0][row][column];
        const float *other = &out->of[wide_weights(WEIGHTS) - 1][row][column];
        const int64_t to = (int64_t)blockIdx.x * COLUMNS + column;
        if (WEIGHTS == 2 && p->other_out == NULL)
#pragma unroll
            for (int c = 0; c < 8; c++) y[c] = ls_mul(ls_silu(ls_canonical(y[c])), ls_canonical(other[c]));
        ls_product_store8(&p->p, first + row, to, y);
        if (WEIGHTS == 2 && p->other_out != NULL) {
            ls_product second = p->p;
            second.out = p->other_out;
            ls_product_store8(&second, first + row, to, other);
        }
    }
    const int sides = WEIGHTS == 3 && (int32_t)blockIdx.x < p->side_blocks ? 2 * rows : 0;
#pragma unroll 1
    for (int at = thread; at < sides; at += ENDING(WEIGHTS, GROUPS))
        ls_product_store8(&p->sides[at % 2], first + at / 2, (int64_t)blockIdx.x * SIDE,
                          &out->side[at / 2][at % 2 * SIDE]);
}

template <int COLUMNS, int WEIGHTS, int GROUPS, int TILES>
static __global__ void __launch_bounds__(THREADS(WEIGHTS, GROUPS))
    decode_kernel(const __grid_constant__ decode_params p) {
    constexpr int FETCHES = MULTIPLIERS(GROUPS);
    extern __shared__ __align__(16) uint8_t memory[];
    __shared__ uint64_t barriers[2 * STAGES_MAX + 1];
    const uint32_t shared = (ls_shared_address(memory) + 1023u) & ~1023u;
    const uint32_t full = ls_shared_address(barriers), empty = full + 8 * STAGES_MAX, computed = empty + 8 * STAGES_MAX;
    if (threadIdx.x == FETCHES) {
        for (int s = 0; s < p.stages; s++) {
            ls_barrier_init(full + 8 * s, 1);
            ls_barrier_init(empty + 8 * s, GROUPS);
        }
        ls_barrier_init(computed, MULTIPLIERS(GROUPS));
        ls_barrier_init_done();
    }
    __syncthreads();
    /* The same in all threads of a warp, and the compiler is to know it. */
    const int warp = __shfl_sync(LS_ALL_LANES, (int)threadIdx.x / 32, 0);
    outputs<COLUMNS, WEIGHTS, GROUPS> *out = (outputs<COLUMNS, WEIGHTS, GROUPS> *)memory;
    if (warp < FETCHES / 32) {
        consume<COLUMNS, WEIGHTS, GROUPS, TILES>(&p, out, shared, full, computed, GROUPS == 1 ? 0 : warp / 4);
        finish<COLUMNS, WEIGHTS, GROUPS>(&p, out, computed, threadIdx.x);
    } else if (WEIGHTS == 2 && warp > FETCHES / 32) {
        ls_cuda_wait_for_previous();
        finish<COLUMNS, WEIGHTS, GROUPS>(&p, out, computed, threadIdx.x - 32);
    } else if (threadIdx.x == FETCHES) {
        produce<COLUMNS, WEIGHTS>(&p, shared, full, empty);
    }
}

template <int WEIGHTS, int TILES>
static const void *kernel_of_one(int64_t columns) {
    switch (columns) {
        case 8: return (const void *)decode_kernel<8, WEIGHTS, 1, TILES>;
        case 16: return (const void *)decode_kernel<16, WEIGHTS, 1, TILES>;
        case 24: return (const void *)decode_kernel<24, WEIGHTS, 1, TILES>;
        case 32: return (const void *)decode_kernel<32, WEIGHTS, 1, TILES>;
        case 40: return (const void *)decode_kernel<40, WEIGHTS, 1, TILES>;
        case 64: return (const void *)decode_kernel<64, WEIGHTS, 1, TILES>;
        case 80: return (const void *)decode_kernel<80, WEIGHTS, 1, TILES>;
        default: return (const void *)decode_kernel<128, WEIGHTS, 1, TILES>;
    }
}

/* NULL: of three weights the first is too wide. */
template <int TILES>
static const void *kernel_of_three(int64_t columns) {
    switch (columns) {
        case 8: return (const void *)decode_kernel<8, 3, 1, TILES>;
        case 16: return (const void *)decode_kernel<16, 3, 1, TILES>;
        case 24: return (const void *)decode_kernel<24, 3, 1, TILES>;
        case 32: return (const void *)decode_kernel<32, 3, 1, TILES>;
        case 40: return (const void *)decode_kernel<40, 3, 1, TILES>;
        case 64: return (const void *)decode_kernel<64, 3, 1, TILES>;
        default: return NULL;
    }
}

template <int WEIGHTS>
static const void *kernel_of_two(int64_t columns) {
    switch (columns) {
        case 40: return (const void *)decode_kernel<40, WEIGHTS, 2, 1>;
        case 64: return (const void *)decode_kernel<64, WEIGHTS, 2, 1>;
        case 80: return (const void *)decode_kernel<80, WEIGHTS, 2, 1>;
        default: return (const void *)decode_kernel<128, WEIGHTS, 2, 1>;
    }
}

template <int TILES>
static const void *kernel_for(int64_t weights, int64_t columns) {
    return weights == 3   ? kernel_of_three<TILES>(columns)
           : weights == 2 ? kernel_of_one<2, TILES>(columns)
                          : kernel_of_one<1, TILES>(columns);
}

/* Of the longest steps that stages are made of. */
static const void *kernel_of(int64_t weights, int64_t columns, int64_t groups, int64_t stage_tiles) {
    if (groups == 2) return weights == 2 ? kernel_of_two<2>(columns) : kernel_of_two<1>(columns);
    if (stage_tiles % 4 == 0) return kernel_for<4>(weights, columns);
    if (stage_tiles % 2 == 0) return kernel_for<2>(weights, columns);
    return kernel_for<1>(weights, columns);
}

static int64_t blocks_of(int64_t cols) { return (cols - 1) / ls_decode_columns(cols) + 1; }

/* Warpgroups that multiply in a block of this weight. */
static int64_t groups_for(int64_t rows, int64_t cols) {
    const bool two = rows > GROUP_ROWS && ls_decode_columns(cols) >= COLUMNS_OF_TWO && blocks_of(cols) <= PROCESSORS;
    return two ? 2 : 1;
}

/* More than 64 rows of a narrow weight: a row of blocks each. */
bool ls_decode_takes(int64_t rows, int64_t cols) {
    return rows <= GROUP_ROWS * groups_for(rows, cols) || (cols <= NARROW && rows <= NARROW_ROWS);
}

/* Rows of x that a block takes: beside a weight with few blocks as few, in sixteens, as give every multiprocessor no
 * more than one block, since a block takes as long as all of its x needs to reach its multiprocessor. */
static int64_t block_rows_for(int64_t rows, int64_t cols) {
    const int64_t most = GROUP_ROWS * groups_for(rows, cols), blocks = blocks_of(cols);
    const int64_t side_by_side = blocks < PROCESSORS ? PROCESSORS / blocks : 1;
    const int64_t block_rows = ((rows - 1) / side_by_side / 16 + 1) * 16;
    return rows <= WHOLE_ROWS || block_rows > most || side_by_side == 1 ? most : block_rows;
}

/* Measured on an H200 (docs/lab/gpu-ops.md): a block alone on its multiprocessor wants some four stages in all of
 * its memory, of many rows more and smaller ones, because wgmma reads x as long as it comes; stages are whole steps;
 * blocks that take turns want two side by side, so that one reads while another ends; one of few rows, whose product
 * is short, leaves room for blocks of the next kernel. */
static ls_decode_plan plan_for(int64_t rows, int64_t cols, int64_t weights) {
    const int64_t columns = ls_decode_columns(cols), block_rows = block_rows_for(rows, cols);
    const int64_t high = rows < block_rows ? rows : block_rows;
    const int64_t tile = ((high + 7) / 8 * 8 + all_columns((int)columns, (int)weights)) * ROW_BYTES;
    ls_decode_plan plan = {(rows > 8 ? 54 : 64) * 1024 / tile, LS_HOPPER_SHARED_MAX - 1024, block_rows};
    if (block_rows > GROUP_ROWS) {
        plan.stage_tiles = weights == 1 && columns == COLUMNS_OF_TWO ? 3 : 1;
    } else if (blocks_of(cols) > PROCESSORS) {
        plan.stage_tiles = rows > 8 ? 1 : 2;
        plan.shared_bytes = 112 * 1024;
    } else if (block_rows < GROUP_ROWS) {
        plan.shared_bytes = 160 * 1024;
    } else if (rows > 48 && cols > NARROW && plan.stage_tiles > 2) {
        plan.stage_tiles = 2;
    }
    if (plan.stage_tiles > 16) plan.stage_tiles = 16;
    if (plan.stage_tiles > 4) plan.stage_tiles -= plan.stage_tiles % 4;
    return plan;
}

ls_decode_plan ls_decode_plan_for(int64_t rows, int64_t cols) { return plan_for(rows, cols, 1); }

static bool can_take(const ls_product *product) {
    return ls_decode_takes(product->rows, product->cols) && product->a_step == 1 && product->mode == LS_PRODUCT_STORE &&
           (product->depth - 1) / TILE_DEPTH + 1 < INT32_MAX / TILE_DEPTH &&
           ls_box_possible(product->a, LS_BF16, product->a_row, product->rows, product->depth);
}

/* p: its products, outs and tiles are there. */
static ls_status run(const ls_exec *exec, decode_params *p, int64_t weights, ls_decode_plan plan, ls_error *err) {
    const ls_product *product = &p->p;
    const int64_t high = product->rows < plan.block_rows ? product->rows : plan.block_rows, rows8 = (high + 7) / 8 * 8,
                  deep = (product->depth - 1) / TILE_DEPTH + 1;
    const int64_t columns = ls_decode_columns(product->cols), groups = (plan.block_rows - 1) / GROUP_ROWS + 1;
    const int64_t all = all_columns((int)columns, (int)weights);
    const int64_t rows_of_all = groups * GROUP_ROWS, side_rows = weights == 3 ? rows_of_all : 1;
    const int64_t outputs =
        (rows_of_all * wide_weights((int)weights) * (columns + 8) + side_rows * (2 * SIDE + 8)) * 4 + 16;
    const int64_t stage = plan.stage_tiles * (rows8 * ROW_BYTES + all / 8 * STRIP_BYTES);
    int64_t stages = (plan.shared_bytes - SLACK(groups)) / stage, shared;
    p->n_stages = (int32_t)((deep - 1) / plan.stage_tiles + 1);
    if (stages > STAGES_MAX) stages = STAGES_MAX;
    if (stages > p->n_stages) stages = p->n_stages;
    if (stages < 1 || (stages < 2 && stages < p->n_stages)) /* a ring of one stage would wait for itself */
        return LS_FAIL(err, LS_ERR_ARG, "%s: %lld bytes of shared memory hold %lld stages of %lld, 2 are needed",
                       product->op, (long long)plan.shared_bytes, (long long)stages, (long long)stage);
    shared =
        SLACK(groups) + stages * stage; /* no more than that, so that other kernels find room beside a small product */
    if (shared < outputs) shared = outputs; /* which pass through the ring at the end */
    p->boxes = product->depth % TILE_DEPTH == 0;
    const ls_box_matrix x = {product->a, product->depth, product->rows, product->a_row};
    LS_CUDA_TRY(p->boxes ? ls_box_map3(&p->x, product->op, &x, (int)rows8, (int)plan.stage_tiles, err)
                         : ls_box_map(&p->x, product->op, &x, (int)rows8, err));
    p->tiles_deep = deep;
    p->block_rows = (int32_t)plan.block_rows;
    p->rows8 = (int32_t)rows8;
    p->stage_tiles = (int32_t)plan.stage_tiles;
    p->stages = (int32_t)stages;
    const ls_index index[] = {
        {LS_WIDTH_I64, {{{"row", product->rows}, {"out stride", product->out_stride}, {"element", 4}}}},
        {LS_WIDTH_I64, {{{"row", product->rows}, {"narrow out stride", p->sides[0].out_stride}, {"element", 4}}}},
        {LS_WIDTH_I64, {{{"strip", product->cols / 8 + 16}, {"tile", deep}, {"bytes", STRIP_BYTES}}}}};
    const ls_launch launch = {product->op,
                              {(product->cols - 1) / columns + 1, (product->rows - 1) / plan.block_rows + 1, 1},
                              THREADS(weights, groups),
                              shared,
                              index,
                              3};
    return ls_cuda_launch_within(exec, &launch, LS_HOPPER_SHARED_MAX,
                                 kernel_of(weights, columns, groups, plan.stage_tiles), p, err);
}

ls_status ls_product_mma16_decode(const ls_exec *exec, const ls_product *product, const void *tiles,
                                  ls_decode_plan plan, bool *taken, ls_error *err) {
    decode_params p = {};
    p.p = *product;
    p.tiles[0] = (const uint8_t *)tiles;
    *taken = tiles != NULL && can_take(product);
    return *taken ? run(exec, &p, 1, plan, err) : LS_OK;
}

ls_status ls_product_mma16_two(const ls_exec *exec, const ls_product *product, const void *tiles,
                               const void *other_tiles, void *other_out, bool *taken, ls_error *err) {
    decode_params p = {};
    p.p = *product;
    p.tiles[0] = (const uint8_t *)tiles;
    p.tiles[1] = (const uint8_t *)other_tiles;
    p.other_out = other_out;
    *taken = tiles != NULL && other_tiles != NULL &&
             product->rows <= GROUP_ROWS * groups_for(product->rows, product->cols) && can_take(product);
    return *taken ? run(exec, &p, 2, plan_for(product->rows, product->cols, 2), err) : LS_OK;
}

ls_status ls_product_mma16_three(const ls_exec *exec, const ls_product products[3], const void *const tiles[3],
                                 bool *taken, ls_error *err) {
    const int64_t cols = products[0].cols, side_cols = products[1].cols;
    decode_params p = {};
    p.p = products[0];
    p.tiles[0] = (const uint8_t *)tiles[0];
    for (int i = 0; i < 2; i++) {
        p.sides[i] = products[i + 1];
        p.side_tiles[i] = (const uint8_t *)tiles[i + 1];
    }
    *taken = tiles[0] != NULL && tiles[1] != NULL && tiles[2] != NULL && products[0].rows <= GROUP_ROWS &&
             can_take(&products[0]) && kernel_of(3, ls_decode_columns(cols), 1, 1) != NULL &&
             ls_decode_columns(side_cols) == SIDE && blocks_of(side_cols) <= blocks_of(cols);
    if (!*taken) return LS_OK;
    p.side_blocks = (int32_t)blocks_of(side_cols);
    return run(exec, &p, 3, plan_for(products[0].rows, cols, 3), err);
}

/* ---- tiles ---- */

typedef struct pack_params {
    uint4 *tiles;
    const uint16_t *w;
    int64_t n, k, deep, strips, words; /* strips of a block; words of 16 bytes: one row of a core matrix */
} pack_params;

#define PACK_THREADS 256

/* Lets no kernel start before its end: a product fetches tiles before it waits. */
static __global__ void __launch_bounds__(PACK_THREADS) pack_kernel(const __grid_constant__ pack_params p) {
    ls_cuda_wait_for_previous();
    const int64_t word = (int64_t)blockIdx.x * PACK_THREADS + threadIdx.x;
    const int64_t strip = word / 64 % p.strips, tile = word / 64 / p.strips;
    const int64_t row = (tile / p.deep * p.strips + strip) * 8 + word % 8;
    const int64_t k = tile % p.deep * TILE_DEPTH + word / 8 % 8 * 8;
    __align__(16) uint16_t eight[8];
    if (word >= p.words) return;
    for (int i = 0; i < 8; i++) eight[i] = row < p.n && k + i < p.k ? p.w[row * p.k + k + i] : (uint16_t)0;
    p.tiles[word] = *(const uint4 *)eight;
}

ls_status ls_cuda_gemm_pack(const ls_exec *exec, void *tiles, const void *w, int64_t n, int64_t k, ls_error *err) {
    const ls_cuda_operand operands[] = {{"tiles", tiles, 128, false}, {"w", w, 2, false}};
    const int64_t bytes = ls_cuda_gemm_tiles_bytes(n, k);
    pack_params p;
    if (n < 1 || k < 1 || bytes < 0)
        return LS_FAIL(err, LS_ERR_ARG, "gemm_pack: n %lld, k %lld: not positive, or too large", (long long)n,
                       (long long)k);
    LS_CUDA_TRY(ls_cuda_check("gemm_pack", exec, operands, 2, 0, err));
    p.tiles = (uint4 *)tiles;
    p.w = (const uint16_t *)w;
    p.n = n;
    p.k = k;
    p.deep = (k - 1) / TILE_DEPTH + 1;
    p.strips = ls_decode_columns(n) / 8;
    p.words = bytes / 16;
    const ls_index index[] = {{LS_WIDTH_I64, {{{"row", n}, {"k", k}, {"element", 2}}}},
                              {LS_WIDTH_I64, {{{"word", p.words}, {"bytes", 16}}}}};
    const ls_launch launch = {"gemm_pack", {(p.words - 1) / PACK_THREADS + 1, 1, 1}, PACK_THREADS, 0, index, 2};
    return ls_cuda_launch(exec, &launch, (const void *)pack_kernel, &p, err);
}
