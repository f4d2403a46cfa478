/* Dense products of the profile mma16 on Hopper's tensor cores: many rows. Compiled for sm_90a alone.
 *
 * A block walks over tiles of ROWS x COLS outputs. One thread of its first warpgroup fetches boxes of both operands,
 * 64 or 128 steps of depth at a time, into a ring of stages; each of the other warpgroups, one for each 64 rows, holds
 * their accumulators and issues wgmma, k ascending: one chain for each output, no split. An operand may lie with its
 * depth side by side or with its rows side by side; the instruction takes both. Where there are few tiles they are
 * small: a block takes as long as its operands need to reach its multiprocessor, 64 bytes a clock. */
#include "op/cuda/wide_cuda.h"

/* Rows whose tiles are walked together, so that what they read of b stays in the second-level cache. */
#define WALKED_ROWS 2048

typedef struct wide_params {
    CUtensorMap a, b;
    ls_product p;
    int64_t row_tiles, col_tiles, tiles;
    bool a_whole, b_whole; /* a stage's part is one box */
    bool pairs;            /* two neighbouring outputs of an even column are one aligned load */
    bool straight;         /* outputs are stored as they are: pairs of float32, eight neighbouring bf16 aligned */
} wide_params;

typedef struct tile_at {
    int64_t row, col;
} tile_at;

template <int ROWS, int COLS>
static __device__ __forceinline__ tile_at tile_of(const wide_params *p, int64_t tile) {
    constexpr int64_t WALKED = WALKED_ROWS / ROWS;
    const int64_t of_walk = WALKED * p->col_tiles, walk = tile / of_walk, rest = tile % of_walk;
    const int64_t rows = p->row_tiles - walk * WALKED < WALKED ? p->row_tiles - walk * WALKED : WALKED;
    const tile_at at = {(walk * WALKED + rest % rows) * ROWS, rest / rows * COLS};
    return at;
}

template <int ROWS, int COLS, int A_SIDE, int B_SIDE>
static __device__ __forceinline__ void produce(const wide_params *p, uint32_t shared, uint32_t full, uint32_t empty) {
    using size = tile_size<ROWS, COLS>;
    int stage = 0, phase = 0;
    for (int64_t tile = blockIdx.x; tile < p->tiles; tile += gridDim.x) {
        const tile_at at = tile_of<ROWS, COLS>(p, tile);
        for (int64_t depth = 0; depth < p->p.depth; depth += size::DEPTH) {
            const uint32_t a = shared + stage * size::STAGE_BYTES, b = a + size::A_BYTES, barrier = full + 8 * stage;
            ls_barrier_wait(empty + 8 * stage, phase ^ 1);
            ls_barrier_expect(barrier, size::STAGE_BYTES);
            fetch<A_SIDE, ROWS, size::DEPTH>(&p->a, a, barrier, (int32_t)at.row, (int32_t)depth, p->a_whole);
            fetch<B_SIDE, COLS, size::DEPTH>(&p->b, b, barrier, (int32_t)at.col, (int32_t)depth, p->b_whole);
            if (++stage == size::STAGES) stage = 0, phase ^= 1;
        }
    }
}

template <int ROWS, int COLS, int A_SIDE, int B_SIDE>
static __device__ __forceinline__ void consume(const wide_params *p, uint32_t shared, uint32_t full, uint32_t empty,
                                               int group, float (*rest)[16][PITCH]) {
    using size = tile_size<ROWS, COLS>;
    constexpr int CHUNK = size::CHUNK;
    const int thread = threadIdx.x % 128, warp = group * 4 + thread / 32;
    int stage = 0, phase = 0;
    for (int64_t tile = blockIdx.x; tile < p->tiles; tile += gridDim.x) {
        const tile_at at = tile_of<ROWS, COLS>(p, tile);
        const int64_t row = at.row + warp * 16;
        const bool inside = at.row + ROWS <= p->p.rows && at.col + COLS <= p->p.cols;
        float d[COLS / 2];
        int before = -1;
#pragma unroll
        for (int i = 0; i < COLS / 2; i++) d[i] = 0.0f;
        if (p->p.mode == LS_PRODUCT_CONTINUE && p->pairs && inside)
            load_pairs<COLS>(&p->p, d, row, at.col);
        else if (p->p.mode == LS_PRODUCT_CONTINUE)
#pragma unroll
            for (int c = 0; c < COLS; c += CHUNK) load_chunk<CHUNK>(&p->p, rest[warp], &d[c / 2], row, at.col + c);
        ls_wgmma_hold(d);
        int64_t depth = 0;
        do {
            const uint32_t a = shared + stage * size::STAGE_BYTES, b = a + size::A_BYTES;
            ls_barrier_wait(full + 8 * stage, phase);
            ls_wgmma_fence();
#pragma unroll
            for (int k = 0; k < size::DEPTH / 16; k++)
                ls_wgmma<COLS>::template ss<A_SIDE, B_SIDE>(
                    d, operand<A_SIDE, ROWS, size::DEPTH>(a, group * GROUP_ROWS, k),
                    operand<B_SIDE, COLS, size::DEPTH>(b, 0, k));
            ls_wgmma_commit();
            ls_wgmma_wait<1>();
            if (before >= 0 && thread == 0) ls_barrier_arrive(empty + 8 * before);
            before = stage;
            if (++stage == size::STAGES) stage = 0, phase ^= 1;
            depth += size::DEPTH;
        } while (depth < p->p.depth);
        ls_wgmma_wait<0>();
        ls_wgmma_hold(d);
        if (thread == 0) ls_barrier_arrive(empty + 8 * before);
        if (COLS % 32 == 0 && p->straight && inside) {
            store_straight<COLS>(&p->p, d, row, at.col);
            continue;
        }
#pragma unroll
        for (int c = 0; c < COLS; c += CHUNK) store_chunk<CHUNK>(&p->p, rest[warp], &d[c / 2], row, at.col + c);
    }
}

template <int ROWS, int COLS, int A_SIDE, int B_SIDE>
static __global__ void __launch_bounds__(tile_size<ROWS, COLS>::THREADS, 1)
    wide_kernel(const __grid_constant__ wide_params p) {
    using size = tile_size<ROWS, COLS>;
    /* Accumulators of a large tile need more registers than three warpgroups have at the start. */
    constexpr bool MOVES_REGISTERS = ROWS == 128 && COLS >= 128;
    extern __shared__ uint8_t memory[];
    __shared__ uint64_t barriers[2 * STAGES_MAX];
    __shared__ __align__(16) float rest[ROWS / 16][16][PITCH];
    const uint32_t shared = (ls_shared_address(memory) + 1023u) & ~1023u;
    const uint32_t full = ls_shared_address(barriers), empty = full + 8 * STAGES_MAX;
    if (threadIdx.x == 0) {
        for (int s = 0; s < size::STAGES; s++) {
            ls_barrier_init(full + 8 * s, 1);
            ls_barrier_init(empty + 8 * s, size::MULTIPLIERS);
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
        if (MOVES_REGISTERS) asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x == 0) produce<ROWS, COLS, A_SIDE, B_SIDE>(&p, shared, full, empty);
    } else {
        if (MOVES_REGISTERS) asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        consume<ROWS, COLS, A_SIDE, B_SIDE>(&p, shared, full, empty, role - 1, rest);
    }
}

/* A tile's size, and what is to be launched for it. */
typedef struct wide_tile {
    int32_t rows, cols, depth, threads, shared_bytes;
    const void *kernels[2][2]; /* [a's rows side by side][b's]; NULL: not with this tile */
} wide_tile;

template <int ROWS, int COLS>
static wide_tile tile_with(const void *as, const void *bs, const void *both) {
    using size = tile_size<ROWS, COLS>;
    const wide_tile tile = {.rows = ROWS,
                            .cols = COLS,
                            .depth = size::DEPTH,
                            .threads = size::THREADS,
                            .shared_bytes = size::SHARED_BYTES,
                            .kernels = {{(const void *)wide_kernel<ROWS, COLS, 0, 0>, bs}, {as, both}}};
    return tile;
}

/* Of any operands: COLS is a multiple of 64. Below, of those with their depths side by side. */
template <int ROWS, int COLS>
static wide_tile tile_of_any(void) {
    return tile_with<ROWS, COLS>((const void *)wide_kernel<ROWS, COLS, 1, 0>,
                                 (const void *)wide_kernel<ROWS, COLS, 0, 1>,
                                 (const void *)wide_kernel<ROWS, COLS, 1, 1>);
}
template <int ROWS, int COLS>
static wide_tile tile_of_depths(void) {
    return tile_with<ROWS, COLS>(NULL, NULL, NULL);
}

/* The tile with which the slowest multiprocessor ends first. A step of 16 depths takes as many clocks as the tensor
 * cores need for its products or as its operands need to arrive, 128 products or two rows of an operand a clock,
 * whichever is more; that each turn costs some more besides is measured (docs/lab/gpu-ops.md). */
static wide_tile tile_for(int64_t rows, int64_t cols, bool a_side, bool b_side, int64_t processors) {
    const wide_tile tiles[] = {tile_of_any<128, 256>(),  tile_of_any<128, 192>(), tile_of_depths<128, 160>(),
                               tile_of_any<64, 192>(),   tile_of_any<128, 128>(), tile_of_depths<128, 80>(),
                               tile_of_depths<64, 80>(), tile_of_any<64, 64>(),   tile_of_depths<64, 48>()};
    int best = 0;
    int64_t least = INT64_MAX;
    for (int i = 0; i < (int)(sizeof tiles / sizeof *tiles); i++) {
        const wide_tile *t = &tiles[i];
        const int64_t n = ls_launch_blocks((rows - 1) / t->rows + 1, (cols - 1) / t->cols + 1, 1);
        const int64_t products = t->rows * t->cols / 128, arrival = (t->rows + t->cols) / 2;
        const int64_t cost = ((n - 1) / processors + 1) * ((products > arrival ? products : arrival) + 24);
        if (n / processors >= 16 && i > 0) break; /* the last turn is little; what lies in the cache counts */
        if (t->kernels[a_side][b_side] == NULL || cost >= least) continue;
        least = cost;
        best = i;
    }
    return tiles[best];
}

typedef struct side_operand {
    const void *base;
    int64_t rows, stride;
    int tile_rows;
    bool side, whole; /* whole: a box holds all of a tile */
} side_operand;

/* Map of an operand for tiles of `depth` depths. */
static ls_status map_of(CUtensorMap *map, const ls_product *product, const side_operand *of, int depth, ls_error *err) {
    const ls_box_matrix matrix = {of->base, of->side ? of->rows : product->depth, of->side ? product->depth : of->rows,
                                  of->stride};
    const int box_outer = of->side ? depth : of->tile_rows, box_inner = of->side ? of->tile_rows : depth;
    if (!of->whole) return ls_box_map(map, product->op, &matrix, box_outer, err);
    return ls_box_map3(map, product->op, &matrix, box_outer, box_inner / SIDE_BY_SIDE, err);
}

ls_status ls_product_mma16_wgmma(const ls_exec *exec, const ls_product *product, bool *taken, ls_error *err) {
    const bool a_side = product->a_step != 1, b_side = product->b_step != 1;
    const int64_t a_stride = a_side ? product->a_step : product->a_row;
    const int64_t b_stride = b_side ? product->b_step : product->b_col;
    wide_params p;
    int processors;
    *taken = ls_box_possible(product->a, LS_BF16, a_stride, product->rows, product->depth) &&
             ls_box_possible(product->b, LS_BF16, b_stride, product->cols, product->depth);
    if (!*taken) return LS_OK;
    LS_CUDA_TRY(ls_processors(&processors, product->op, err));
    const wide_tile tile = tile_for(product->rows, product->cols, a_side, b_side, processors);
    p.p = *product;
    p.row_tiles = (product->rows - 1) / tile.rows + 1;
    p.col_tiles = (product->cols - 1) / tile.cols + 1;
    p.tiles = ls_launch_blocks(p.row_tiles, p.col_tiles, 1);
    p.a_whole = (a_side ? product->rows : product->depth) % SIDE_BY_SIDE == 0;
    p.b_whole = (b_side ? product->cols : product->depth) % SIDE_BY_SIDE == 0;
    p.pairs = product->out_rows == NULL && product->out_stride % 2 == 0 && (uintptr_t)product->out % 8 == 0;
    p.straight = product->bias == NULL && product->mode != LS_PRODUCT_ADD &&
                 (product->out_dtype == LS_F32
                      ? p.pairs
                      : product->out_rows == NULL && product->out_stride % 8 == 0 && (uintptr_t)product->out % 16 == 0);
    const side_operand a = {.base = product->a,
                            .rows = product->rows,
                            .stride = a_stride,
                            .tile_rows = tile.rows,
                            .side = a_side,
                            .whole = p.a_whole};
    const side_operand b = {.base = product->b,
                            .rows = product->cols,
                            .stride = b_stride,
                            .tile_rows = tile.cols,
                            .side = b_side,
                            .whole = p.b_whole};
    LS_CUDA_TRY(map_of(&p.a, product, &a, tile.depth, err));
    LS_CUDA_TRY(map_of(&p.b, product, &b, tile.depth, err));
    const ls_index index[LS_PRODUCT_INDICES] = LS_PRODUCT_INDEX(product);
    const ls_launch launch = {product->op,  {p.tiles < processors ? p.tiles : processors, 1, 1},
                              tile.threads, tile.shared_bytes,
                              index,        LS_PRODUCT_INDICES};
    return ls_cuda_launch_within(exec, &launch, LS_HOPPER_SHARED_MAX, tile.kernels[a_side][b_side], &p, err);
}
