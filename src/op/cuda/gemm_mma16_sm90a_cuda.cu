/* Dense products of the profile mma16 on Hopper's tensor cores: many rows. Compiled for sm_90a alone.
 *
 * A block walks over tiles of ROWS x COLS outputs. One thread of its first warpgroup fetches boxes of both operands,
 * 64 or 128 steps of depth at a time, into a ring of stages; each of the other warpgroups, one for each 64 rows, holds
 * their accumulators and issues wgmma, k ascending: one chain for each output, no split. An operand may lie with its
 * depth side by side or with its rows side by side; the instruction takes both. Where there are few tiles they are
 * small: a block takes as long as its operands need to reach its multiprocessor, 64 bytes a clock.
 *
 * Three products of one a: tiles of all of them are walked as those of one. */
#include "op/cuda/wide_cuda.h"

/* Rows whose tiles are walked together, so that what they read of b stays in the second-level cache. */
#define WALKED_ROWS 2048

typedef struct wide_params {
    CUtensorMap a, b[3];
    ls_product p[3];
    int64_t ends[2]; /* tiles of columns up to the second product, and up to the third */
    int64_t row_tiles, col_tiles, tiles;
    bool a_whole, b_whole; /* a stage's part is one box */
    bool pairs;            /* two neighbouring outputs of an even column are one aligned load */
    bool straight;         /* outputs are stored as they are: pairs of float32, eight neighbouring bf16 aligned */
} wide_params;

typedef struct tile_at {
    int64_t row, col;
    int which; /* product */
} tile_at;

template <int ROWS, int COLS, bool THREE>
static __device__ __forceinline__ tile_at tile_of(const wide_params *p, int64_t tile) {
    constexpr int64_t WALKED = WALKED_ROWS / ROWS;
    const int64_t of_walk = WALKED * p->col_tiles, walk = tile / of_walk, rest = tile % of_walk;
    const int64_t rows = p->row_tiles - walk * WALKED < WALKED ? p->row_tiles - walk * WALKED : WALKED;
    tile_at at = {(walk * WALKED + rest % rows) * ROWS, rest / rows, 0};
    if (THREE && at.col >= p->ends[0]) {
        at.which = at.col >= p->ends[1] ? 2 : 1;
        at.col -= p->ends[at.which - 1];
    }
    at.col *= COLS;
    return at;
}

template <int ROWS, int COLS, int A_SIDE, int B_SIDE, bool THREE>
static __device__ __forceinline__ void produce(const wide_params *p, uint32_t shared, uint32_t full, uint32_t empty) {
    using size = tile_size<ROWS, COLS>;
    int stage = 0, phase = 0;
    for (int64_t tile = blockIdx.x; tile < p->tiles; tile += gridDim.x) {
        const tile_at at = tile_of<ROWS, COLS, THREE>(p, tile);
        for (int64_t depth = 0; depth < p->p[0].depth; depth += size::DEPTH) {
            const uint32_t a = shared + stage * size::STAGE_BYTES, b = a + size::A_BYTES, barrier = full + 8 * stage;
            ls_barrier_wait(empty + 8 * stage, phase ^ 1);
            ls_barrier_expect(barrier, size::STAGE_BYTES);
            fetch<A_SIDE, ROWS, size::DEPTH>(&p->a, a, barrier, (int32_t)at.row, (int32_t)depth, p->a_whole);
            fetch<B_SIDE, COLS, size::DEPTH>(&p->b[at.which], b, barrier, (int32_t)at.col, (int32_t)depth, p->b_whole);
            if (++stage == size::STAGES) stage = 0, phase ^= 1;
        }
    }
}

template <int ROWS, int COLS, int A_SIDE, int B_SIDE, bool THREE>
static __device__ __forceinline__ void consume(const wide_params *p, uint32_t shared, uint32_t full, uint32_t empty,
                                               int group, float (*rest)[16][PITCH]) {
    using size = tile_size<ROWS, COLS>;
    constexpr int CHUNK = size::CHUNK;
    const int thread = threadIdx.x % 128, warp = group * 4 + thread / 32;
    int stage = 0, phase = 0;
    for (int64_t tile = blockIdx.x; tile < p->tiles; tile += gridDim.x) {
        const tile_at at = tile_of<ROWS, COLS, THREE>(p, tile);
        const ls_product *product = &p->p[at.which];
        const int64_t row = at.row + warp * 16;
        const bool inside = at.row + ROWS <= product->rows && at.col + COLS <= product->cols;
        float d[COLS / 2];
        int before = -1;
#pragma unroll
        for (int i = 0; i < COLS / 2; i++) d[i] = 0.0f;
        if (!THREE && product->mode == LS_PRODUCT_CONTINUE && p->pairs && inside)
            load_pairs<COLS>(product, d, row, at.col);
        else if (!THREE && product->mode == LS_PRODUCT_CONTINUE)
#pragma unroll
            for (int c = 0; c < COLS; c += CHUNK) load_chunk<CHUNK>(product, rest[warp], &d[c / 2], row, at.col + c);
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
        } while (depth < product->depth);
        ls_wgmma_wait<0>();
        ls_wgmma_hold(d);
        if (thread == 0) ls_barrier_arrive(empty + 8 * before);
        if (COLS % 32 == 0 && p->straight && inside) {
            store_straight<COLS>(product, d, row, at.col);
        } else {
#pragma unroll
            for (int c = 0; c < COLS; c += CHUNK) store_chunk<CHUNK>(product, rest[warp], &d[c / 2], row, at.col + c);
        }
    }
}

template <int ROWS, int COLS, int A_SIDE, int B_SIDE, bool THREE>
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
    if (ls_product_faulty(&p.p[0])) return;
    /* The same in all threads of a warp, and the compiler is to know it. */
    const int role = __shfl_sync(LS_ALL_LANES, (int)threadIdx.x / 128, 0);
    if (role == 0) {
        if (MOVES_REGISTERS) asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x == 0) produce<ROWS, COLS, A_SIDE, B_SIDE, THREE>(&p, shared, full, empty);
    } else {
        if (MOVES_REGISTERS) asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        consume<ROWS, COLS, A_SIDE, B_SIDE, THREE>(&p, shared, full, empty, role - 1, rest);
    }
}

/* A tile's size, and what is to be launched for it. */
typedef struct wide_tile {
    int32_t rows, cols, depth, threads, shared_bytes;
    const void *kernels[2][2]; /* [a's rows side by side][b's]; NULL: not with this tile */
} wide_tile;

template <int ROWS, int COLS, bool THREE>
static wide_tile tile_with(const void *as, const void *bs, const void *both) {
    using size = tile_size<ROWS, COLS>;
    const wide_tile tile = {.rows = ROWS,
                            .cols = COLS,
                            .depth = size::DEPTH,
                            .threads = size::THREADS,
                            .shared_bytes = size::SHARED_BYTES,
                            .kernels = {{(const void *)wide_kernel<ROWS, COLS, 0, 0, THREE>, bs}, {as, both}}};
    return tile;
}

/* Of any operands: COLS is a multiple of 64. Below, of those with their depths side by side. */
template <int ROWS, int COLS>
static wide_tile tile_of_any(void) {
    return tile_with<ROWS, COLS, false>((const void *)wide_kernel<ROWS, COLS, 1, 0, false>,
                                        (const void *)wide_kernel<ROWS, COLS, 0, 1, false>,
                                        (const void *)wide_kernel<ROWS, COLS, 1, 1, false>);
}
template <int ROWS, int COLS, bool THREE = false>
static wide_tile tile_of_depths(void) {
    return tile_with<ROWS, COLS, THREE>(NULL, NULL, NULL);
}

/* Tiles of columns of products side by side; cols 0: there is none. */
static int64_t col_tiles_of(const int64_t (&cols)[3], int64_t tile_cols) {
    return (cols[0] - 1) / tile_cols + 1 + (cols[1] + tile_cols - 1) / tile_cols +
           (cols[2] + tile_cols - 1) / tile_cols;
}

/* The tile with which the slowest multiprocessor ends first. A step of 16 depths takes as many clocks as the tensor
 * cores need for its products or as its operands need to arrive, 128 products or two rows of an operand a clock,
 * whichever is more; that each turn costs some more besides is measured (docs/lab/gpu-ops.md). */
template <int N>
static wide_tile best_tile(const wide_tile (&tiles)[N], int64_t rows, const int64_t (&cols)[3], bool a_side,
                           bool b_side, int64_t processors) {
    int best = 0;
    int64_t least = INT64_MAX;
    for (int i = 0; i < N; i++) {
        const wide_tile *t = &tiles[i];
        const int64_t n = ls_launch_blocks((rows - 1) / t->rows + 1, col_tiles_of(cols, t->cols), 1);
        const int64_t products = t->rows * t->cols / 128, arrival = (t->rows + t->cols) / 2;
        const int64_t cost = ((n - 1) / processors + 1) * ((products > arrival ? products : arrival) + 24);
        if (n / processors >= 16 && i > 0) break; /* the last turn is little; what lies in the cache counts */
        if (t->kernels[a_side][b_side] == NULL || cost >= least) continue;
        least = cost;
        best = i;
    }
    return tiles[best];
}

static wide_tile tile_for(int64_t rows, int64_t cols, bool a_side, bool b_side, int64_t processors) {
    const wide_tile tiles[] = {tile_of_any<128, 256>(),  tile_of_any<128, 192>(), tile_of_depths<128, 160>(),
                               tile_of_any<64, 192>(),   tile_of_any<128, 128>(), tile_of_depths<128, 80>(),
                               tile_of_depths<64, 80>(), tile_of_any<64, 64>(),   tile_of_depths<64, 48>()};
    const int64_t all[3] = {cols, 0, 0};
    return best_tile(tiles, rows, all, a_side, b_side, processors);
}
static wide_tile tile_for_three(int64_t rows, const int64_t (&cols)[3], int64_t processors) {
    const wide_tile tiles[] = {tile_of_depths<128, 192, true>(), tile_of_depths<128, 128, true>(),
                               tile_of_depths<128, 96, true>(), tile_of_depths<64, 96, true>(),
                               tile_of_depths<64, 48, true>()};
    return best_tile(tiles, rows, cols, false, false, processors);
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

/* Where what is stored fits: pairs of float32, or bf16 in eights. */
static bool out_in_pairs(const ls_product *p) {
    return p->out_rows == NULL && p->out_stride % 2 == 0 && (uintptr_t)p->out % 8 == 0;
}
static bool out_is_straight(const ls_product *p) {
    return p->bias == NULL && p->mode != LS_PRODUCT_ADD &&
           (p->out_dtype == LS_F32 ? out_in_pairs(p)
                                   : p->out_rows == NULL && p->out_stride % 8 == 0 && (uintptr_t)p->out % 16 == 0);
}

/* The maps of a and of each product's b. */
static ls_status maps_of(wide_params *p, int n, const wide_tile *tile, bool a_side, bool b_side, ls_error *err) {
    const ls_product *first = &p->p[0];
    p->a_whole = (a_side ? first->rows : first->depth) % SIDE_BY_SIDE == 0;
    p->b_whole = (b_side ? first->cols : first->depth) % SIDE_BY_SIDE == 0;
    const side_operand a = {.base = first->a,
                            .rows = first->rows,
                            .stride = a_side ? first->a_step : first->a_row,
                            .tile_rows = tile->rows,
                            .side = a_side,
                            .whole = p->a_whole};
    LS_CUDA_TRY(map_of(&p->a, first, &a, tile->depth, err));
    for (int i = 0; i < n; i++) {
        const side_operand b = {.base = p->p[i].b,
                                .rows = p->p[i].cols,
                                .stride = b_side ? p->p[i].b_step : p->p[i].b_col,
                                .tile_rows = tile->cols,
                                .side = b_side,
                                .whole = p->b_whole};
        LS_CUDA_TRY(map_of(&p->b[i], &p->p[i], &b, tile->depth, err));
    }
    return LS_OK;
}

/* p: its products and maps are there. */
static ls_status launch_tiles(const ls_exec *exec, wide_params *p, const wide_tile *tile, int64_t col_tiles,
                              const void *kernel, int processors, ls_error *err) {
    ls_product widest = p->p[0];
    for (int i = 1; i < 3; i++) {
        if (p->p[i].cols > widest.cols) widest.cols = p->p[i].cols;
        if (p->p[i].out_stride > widest.out_stride) widest.out_stride = p->p[i].out_stride;
    }
    p->row_tiles = (widest.rows - 1) / tile->rows + 1;
    p->col_tiles = col_tiles;
    p->tiles = ls_launch_blocks(p->row_tiles, p->col_tiles, 1);
    const ls_index index[LS_PRODUCT_INDICES] = LS_PRODUCT_INDEX(&widest);
    const ls_launch launch = {widest.op,     {p->tiles < processors ? p->tiles : processors, 1, 1},
                              tile->threads, tile->shared_bytes,
                              index,         LS_PRODUCT_INDICES};
    return ls_cuda_launch_within(exec, &launch, LS_HOPPER_SHARED_MAX, kernel, p, err);
}

ls_status ls_product_mma16_wgmma(const ls_exec *exec, const ls_product *product, bool *taken, ls_error *err) {
    const bool a_side = product->a_step != 1, b_side = product->b_step != 1;
    wide_params p = {};
    int processors;
    *taken =
        ls_box_possible(product->a, LS_BF16, a_side ? product->a_step : product->a_row, product->rows,
                        product->depth) &&
        ls_box_possible(product->b, LS_BF16, b_side ? product->b_step : product->b_col, product->cols, product->depth);
    if (!*taken) return LS_OK;
    LS_CUDA_TRY(ls_processors(&processors, product->op, err));
    const wide_tile tile = tile_for(product->rows, product->cols, a_side, b_side, processors);
    p.p[0] = *product;
    p.pairs = out_in_pairs(product);
    p.straight = out_is_straight(product);
    LS_CUDA_TRY(maps_of(&p, 1, &tile, a_side, b_side, err));
    return launch_tiles(exec, &p, &tile, (product->cols - 1) / tile.cols + 1, tile.kernels[a_side][b_side], processors,
                        err);
}

/* Of several, depths lie side by side. */
static bool lies_by_depth(const ls_product *p) {
    return p->a_step == 1 && p->b_step == 1 && ls_box_possible(p->a, LS_BF16, p->a_row, p->rows, p->depth) &&
           ls_box_possible(p->b, LS_BF16, p->b_col, p->cols, p->depth);
}

ls_status ls_product_mma16_wgmma_three(const ls_exec *exec, const ls_product products[3], bool *taken, ls_error *err) {
    const int64_t cols[3] = {products[0].cols, products[1].cols, products[2].cols};
    wide_params p = {};
    int processors;
    *taken = lies_by_depth(&products[0]) && lies_by_depth(&products[1]) && lies_by_depth(&products[2]);
    if (!*taken) return LS_OK;
    LS_CUDA_TRY(ls_processors(&processors, products->op, err));
    const wide_tile tile = tile_for_three(products->rows, cols, processors);
    p.straight = true;
    for (int i = 0; i < 3; i++) {
        p.p[i] = products[i];
        p.straight = p.straight && out_is_straight(&products[i]);
        if (i < 2) p.ends[i] = (i == 0 ? 0 : p.ends[0]) + (cols[i] - 1) / tile.cols + 1;
    }
    LS_CUDA_TRY(maps_of(&p, 3, &tile, false, false, err));
    return launch_tiles(exec, &p, &tile, col_tiles_of(cols, tile.cols), tile.kernels[0][0], processors, err);
}
