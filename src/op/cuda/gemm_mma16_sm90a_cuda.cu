/* Dense products of the profile mma16 on Hopper's tensor cores: many rows. Compiled for sm_90a alone.
 *
 * A block of three warpgroups walks over tiles of TILE_ROWS x COLS outputs. One thread of the first fetches boxes
 * of both operands, 64 steps of depth at a time, into a ring of stages; each of the other two holds 64 rows of
 * accumulators and issues wgmma, k ascending: one chain for each output, no split. An operand may lie with its depth
 * side by side or with its rows side by side; the instruction takes both. */
#include <cuda.h>

#include "op/cuda/product_cuda.h"
#include "op/cuda/ring_cuda.h"
#include "op/cuda/wgmma_cuda.h"

#define TILE_ROWS 128
#define TILE_DEPTH 64
#define STAGES 4
#define THREADS 384
#define A_BYTES (TILE_ROWS * TILE_DEPTH * 2)
#define STAGE_BYTES(cols) (A_BYTES + (cols)*TILE_DEPTH * 2)
#define SHARED_BYTES(cols) (STAGES * STAGE_BYTES(cols) + 1024)
/* Tiles of rows that are walked together, so that what they read of b stays in the second-level cache. */
#define GROUP 16
/* Columns that go from accumulators to out together, and the pitch at which they meet in no bank. */
#define CHUNK 32
#define PITCH 40

typedef struct wide_params {
    CUtensorMap a, b;
    ls_product p;
    int64_t row_tiles, col_tiles, tiles;
    bool a_chunks, b_chunks;
    bool pairs; /* two neighbouring outputs of an even column are one aligned load */
} wide_params;

typedef struct tile_at {
    int64_t row, col;
} tile_at;

template <int COLS>
static __device__ __forceinline__ tile_at tile_of(const wide_params *p, int64_t tile) {
    const int64_t of_group = GROUP * p->col_tiles, group = tile / of_group, rest = tile % of_group;
    const int64_t rows = p->row_tiles - group * GROUP < GROUP ? p->row_tiles - group * GROUP : GROUP;
    const tile_at at = {(group * GROUP + rest % rows) * TILE_ROWS, rest / rows * COLS};
    return at;
}

/* SIDE: rows lie side by side, and a box holds 64 of them at 64 depths, or several times 64 where their number is a
 * multiple; else a box holds 64 depths of all rows. */
template <int SIDE>
static __device__ __forceinline__ void fetch(const CUtensorMap *map, uint32_t to, uint32_t barrier, int32_t row,
                                             int32_t depth, int rows, bool chunks) {
    if (SIDE && chunks) {
        ls_box_fetch3(map, to, barrier, 0, depth, row / 64);
    } else if (SIDE) {
        for (int r = 0; r < rows; r += 64) ls_box_fetch(map, to + r * TILE_DEPTH * 2, barrier, row + r, depth);
    } else {
        ls_box_fetch(map, to, barrier, depth, row);
    }
}

/* Descriptor of 64 rows or more of an operand from `row` on, and how far it moves for 16 depths. */
template <int SIDE>
static __device__ __forceinline__ uint64_t operand(uint32_t address, int row) {
    if (SIDE) return ls_wgmma_descriptor(address + row * TILE_DEPTH * 2, 64 * TILE_DEPTH * 2, 1024, LS_WG_SWIZZLE_128);
    return ls_wgmma_descriptor(address + row * TILE_DEPTH * 2, 16, 1024, LS_WG_SWIZZLE_128);
}
template <int SIDE>
static __device__ __forceinline__ uint64_t step_bytes(void) {
    return SIDE ? 16 * 128 >> 4 : 32 >> 4;
}

/* A warp's 16 rows of CHUNK columns on their way between accumulators and out, in shared memory: code that handles
 * edges, types and modes stands there once for each chunk, not once for each register. */
static __device__ __forceinline__ void store_chunk(const ls_product *p, float (*rest)[PITCH], const float *d,
                                                   int64_t row, int64_t col) {
    const int lane = threadIdx.x % 32;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < CHUNK / 2; i += 2)
        *(float2 *)&rest[lane / 4 + i % 4 / 2 * 8][i / 4 * 8 + lane % 4 * 2] = make_float2(d[i], d[i + 1]);
    __syncwarp();
#pragma unroll 1
    for (int at = lane; at < 16 * CHUNK / 8; at += 32)
        ls_product_store8(p, row + at / (CHUNK / 8), col + at % (CHUNK / 8) * 8,
                          &rest[at / (CHUNK / 8)][at % (CHUNK / 8) * 8]);
}

static __device__ __forceinline__ void load_chunk(const ls_product *p, float (*rest)[PITCH], float *d, int64_t row,
                                                  int64_t col) {
    const int lane = threadIdx.x % 32;
    float x[16]; /* all on their way at once */
#pragma unroll
    for (int r = 0; r < 16; r++) x[r] = ls_product_begin(p, row + r, col + lane);
    __syncwarp();
#pragma unroll
    for (int r = 0; r < 16; r++) rest[r][lane] = x[r];
    __syncwarp();
#pragma unroll
    for (int i = 0; i < CHUNK / 2; i++) d[i] = rest[lane / 4 + i % 4 / 2 * 8][i / 4 * 8 + lane % 4 * 2 + i % 2];
}

/* Accumulators of a tile without an edge from what is there: all loads on their way at once, two columns each. */
template <int COLS>
static __device__ __forceinline__ void load_pairs(const ls_product *p, float (&d)[COLS / 2], int64_t row, int64_t col) {
    const int lane = threadIdx.x % 32;
    const float *from = (const float *)p->out + (row + lane / 4) * p->out_stride + col + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < COLS / 2; i += 2) {
        const float2 x = *(const float2 *)(from + i % 4 / 2 * 8 * p->out_stride + i / 4 * 8);
        d[i] = x.x;
        d[i + 1] = x.y;
    }
}

template <int COLS, int A_SIDE, int B_SIDE>
static __device__ __forceinline__ void produce(const wide_params *p, uint32_t shared, uint32_t full, uint32_t empty) {
    int stage = 0, phase = 0;
    for (int64_t tile = blockIdx.x; tile < p->tiles; tile += gridDim.x) {
        const tile_at at = tile_of<COLS>(p, tile);
        for (int64_t depth = 0; depth < p->p.depth; depth += TILE_DEPTH) {
            const uint32_t a = shared + stage * STAGE_BYTES(COLS), b = a + A_BYTES;
            ls_barrier_wait(empty + 8 * stage, phase ^ 1);
            ls_barrier_expect(full + 8 * stage, STAGE_BYTES(COLS));
            fetch<A_SIDE>(&p->a, a, full + 8 * stage, (int32_t)at.row, (int32_t)depth, TILE_ROWS, p->a_chunks);
            fetch<B_SIDE>(&p->b, b, full + 8 * stage, (int32_t)at.col, (int32_t)depth, COLS, p->b_chunks);
            if (++stage == STAGES) stage = 0, phase ^= 1;
        }
    }
}

template <int COLS, int A_SIDE, int B_SIDE>
static __device__ __forceinline__ void consume(const wide_params *p, uint32_t shared, uint32_t full, uint32_t empty,
                                               int group, float (*rest)[16][PITCH]) {
    const int thread = threadIdx.x % 128, warp = group * 4 + thread / 32;
    int stage = 0, phase = 0;
    for (int64_t tile = blockIdx.x; tile < p->tiles; tile += gridDim.x) {
        const tile_at at = tile_of<COLS>(p, tile);
        const int64_t row = at.row + warp * 16;
        float d[COLS / 2];
        int before = -1;
#pragma unroll
        for (int i = 0; i < COLS / 2; i++) d[i] = 0.0f;
        if (p->p.mode == LS_PRODUCT_CONTINUE && p->pairs && at.row + TILE_ROWS <= p->p.rows &&
            at.col + COLS <= p->p.cols)
            load_pairs<COLS>(&p->p, d, row, at.col);
        else if (p->p.mode == LS_PRODUCT_CONTINUE)
#pragma unroll
            for (int c = 0; c < COLS / CHUNK; c++)
                load_chunk(&p->p, rest[warp], &d[c * CHUNK / 2], row, at.col + c * CHUNK);
        ls_wgmma_hold(d);
        int64_t depth = 0;
        do {
            uint64_t a = operand<A_SIDE>(shared + stage * STAGE_BYTES(COLS), group * 64);
            uint64_t b = operand<B_SIDE>(shared + stage * STAGE_BYTES(COLS) + A_BYTES, 0);
            ls_barrier_wait(full + 8 * stage, phase);
            ls_wgmma_fence();
#pragma unroll
            for (int k = 0; k < TILE_DEPTH / 16; k++, a += step_bytes<A_SIDE>(), b += step_bytes<B_SIDE>())
                ls_wgmma<COLS>::template ss<A_SIDE, B_SIDE>(d, a, b);
            ls_wgmma_commit();
            ls_wgmma_wait<1>();
            if (before >= 0 && thread == 0) ls_barrier_arrive(empty + 8 * before);
            before = stage;
            if (++stage == STAGES) stage = 0, phase ^= 1;
            depth += TILE_DEPTH;
        } while (depth < p->p.depth);
        ls_wgmma_wait<0>();
        ls_wgmma_hold(d);
        if (thread == 0) ls_barrier_arrive(empty + 8 * before);
#pragma unroll
        for (int c = 0; c < COLS / CHUNK; c++)
            store_chunk(&p->p, rest[warp], &d[c * CHUNK / 2], row, at.col + c * CHUNK);
    }
}

template <int COLS, int A_SIDE, int B_SIDE>
static __global__ void __launch_bounds__(THREADS, 1) wide_kernel(const __grid_constant__ wide_params p) {
    extern __shared__ uint8_t memory[];
    __shared__ uint64_t barriers[2 * STAGES];
    __shared__ __align__(16) float rest[TILE_ROWS / 16][16][PITCH];
    const uint32_t shared = (ls_shared_address(memory) + 1023u) & ~1023u;
    const uint32_t full = ls_shared_address(barriers), empty = full + 8 * STAGES;
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; s++) {
            ls_barrier_init(full + 8 * s, 1);
            ls_barrier_init(empty + 8 * s, 2);
        }
        ls_barrier_init_done();
    }
    __syncthreads();
    ls_cuda_wait_for_previous();
    ls_cuda_let_next_start();
    if (ls_product_faulty(&p.p)) return;
    /* The same in all threads of a warp, and the compiler is to know it. */
    const int role = __shfl_sync(LS_ALL_LANES, (int)threadIdx.x / 128, 0);
    if (role == 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x == 0) produce<COLS, A_SIDE, B_SIDE>(&p, shared, full, empty);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        consume<COLS, A_SIDE, B_SIDE>(&p, shared, full, empty, role - 1, rest);
    }
}

template <int COLS>
static const void *kernel_of(bool a_side, bool b_side) {
    if (a_side) return b_side ? (const void *)wide_kernel<COLS, 1, 1> : (const void *)wide_kernel<COLS, 1, 0>;
    return b_side ? (const void *)wide_kernel<COLS, 0, 1> : (const void *)wide_kernel<COLS, 0, 0>;
}

/* Columns of a tile: where the tiles do not fill the chip often, those whose last turn wastes least. */
static int64_t columns_of(int64_t row_tiles, int64_t cols, int64_t processors) {
    static const int64_t sizes[] = {256, 192, 128};
    int64_t best = 256, least = INT64_MAX;
    for (int i = 0; i < 3; i++) {
        const int64_t tiles = ls_launch_blocks(row_tiles, (cols - 1) / sizes[i] + 1, 1);
        /* A narrower tile reads more for each result. */
        const int64_t cost = ((tiles - 1) / processors + 1) * (sizes[i] + 24);
        if (tiles / processors >= 16 && i > 0) break;
        if (cost >= least) continue;
        least = cost;
        best = sizes[i];
    }
    return best;
}

/* Map of an operand for tiles of `tile` rows. */
static ls_status map_of(CUtensorMap *map, const char *op, const void *base, bool side, bool chunks, int64_t rows,
                        int64_t depth, int64_t stride, int tile, ls_error *err) {
    if (chunks) return ls_box_map3(map, op, base, rows / 64, depth, stride, TILE_DEPTH, tile / 64, err);
    if (side) return ls_box_map(map, op, base, rows, depth, stride, TILE_DEPTH, err);
    return ls_box_map(map, op, base, depth, rows, stride, tile, err);
}

ls_status ls_product_mma16_wgmma(const ls_exec *exec, const ls_product *product, bool *taken, ls_error *err) {
    const bool a_side = product->a_step != 1, b_side = product->b_step != 1;
    const int64_t a_stride = a_side ? product->a_step : product->a_row;
    const int64_t b_stride = b_side ? product->b_step : product->b_col;
    int64_t cols;
    wide_params p;
    int processors;
    *taken = ls_box_possible(product->a, LS_BF16, a_stride, product->rows, product->depth) &&
             ls_box_possible(product->b, LS_BF16, b_stride, product->cols, product->depth);
    if (!*taken) return LS_OK;
    LS_CUDA_TRY(ls_processors(&processors, product->op, err));
    p.p = *product;
    p.row_tiles = (product->rows - 1) / TILE_ROWS + 1;
    cols = columns_of(p.row_tiles, product->cols, processors);
    p.col_tiles = (product->cols - 1) / cols + 1;
    p.tiles = ls_launch_blocks(p.row_tiles, p.col_tiles, 1);
    p.a_chunks = a_side && product->rows % 64 == 0;
    p.b_chunks = b_side && product->cols % 64 == 0;
    p.pairs = product->out_rows == NULL && product->out_stride % 2 == 0 && (uintptr_t)product->out % 8 == 0;
    LS_CUDA_TRY(map_of(&p.a, product->op, product->a, a_side, p.a_chunks, product->rows, product->depth, a_stride,
                       TILE_ROWS, err));
    LS_CUDA_TRY(map_of(&p.b, product->op, product->b, b_side, p.b_chunks, product->cols, product->depth, b_stride,
                       (int)cols, err));
    const ls_index index[LS_PRODUCT_INDICES] = LS_PRODUCT_INDEX(product);
    const ls_launch launch = {product->op, {p.tiles < processors ? p.tiles : processors, 1, 1},
                              THREADS,     SHARED_BYTES(cols),
                              index,       LS_PRODUCT_INDICES};
    return ls_cuda_launch_within(exec, &launch, LS_HOPPER_SHARED_MAX,
                                 cols == 256   ? kernel_of<256>(a_side, b_side)
                                 : cols == 192 ? kernel_of<192>(a_side, b_side)
                                               : kernel_of<128>(a_side, b_side),
                                 &p, err);
}
