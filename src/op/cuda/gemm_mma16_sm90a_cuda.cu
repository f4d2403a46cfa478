/* Dense products of the profile mma16 on Hopper's tensor cores: many rows. Compiled for sm_90a alone.
 *
 * A block walks over tiles of ROWS x COLS outputs. One thread of its first warpgroup fetches boxes of both operands,
 * 64 or 128 steps of depth at a time, into a ring of stages; each of the other warpgroups, one for each 64 rows, holds
 * their accumulators and issues wgmma, k ascending: one chain for each output, no split. An operand may lie with its
 * depth side by side or with its rows side by side; the instruction takes both. Where there are few tiles they are
 * small: a block takes as long as its operands need to reach its multiprocessor, 64 bytes a clock. */
#include <cuda.h>

#include "op/cuda/product_cuda.h"
#include "op/cuda/ring_cuda.h"
#include "op/cuda/wgmma_cuda.h"

/* Rows that one warpgroup multiplies; rows or depths that a box has side by side. */
#define GROUP_ROWS 64
#define SIDE_BY_SIDE 64
#define STAGES_MAX 8
/* Rows whose tiles are walked together, so that what they read of b stays in the second-level cache. */
#define WALKED_ROWS 2048
/* Floats from a row to the next of outputs on their way from accumulators, at which they meet in no bank. */
#define PITCH 40

/* What follows from a tile's size. */
template <int ROWS, int COLS>
struct tile_size {
    static constexpr int MULTIPLIERS = ROWS / GROUP_ROWS; /* warpgroups */
    static constexpr int THREADS = 128 * (1 + MULTIPLIERS);
    /* A box takes the thread that asks for it some 75 ns however small it is. */
    static constexpr int DEPTH = ROWS + COLS <= 160 ? 2 * SIDE_BY_SIDE : SIDE_BY_SIDE;
    static constexpr int A_BYTES = ROWS * DEPTH * 2;
    static constexpr int STAGE_BYTES = (ROWS + COLS) * DEPTH * 2;
    static constexpr int REST_BYTES = ROWS * PITCH * 4; /* outputs on their way, beside 1 KB to align and barriers */
    static constexpr int FIT = (LS_HOPPER_SHARED_MAX - 2048 - REST_BYTES) / STAGE_BYTES;
    static constexpr int STAGES = FIT < STAGES_MAX ? FIT : STAGES_MAX;
    static constexpr int SHARED_BYTES = STAGES * STAGE_BYTES + 1024;
    /* Columns that go from accumulators to out together. */
    static constexpr int CHUNK = COLS % 32 == 0 ? 32 : 16;
};

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

/* A stage's part of an operand of ROWS rows. SIDE: its rows lie side by side, and it is 64 rows at all depths after
 * another 64; else it is 64 depths of all rows after another 64. That is one box where the map knows of them. */
template <int SIDE, int ROWS, int DEPTH>
static __device__ __forceinline__ void fetch(const CUtensorMap *map, uint32_t to, uint32_t barrier, int32_t row,
                                             int32_t depth, bool whole) {
    if (whole) {
        ls_box_fetch3(map, to, barrier, 0, SIDE ? depth : row, (SIDE ? row : depth) / SIDE_BY_SIDE);
    } else if (SIDE) {
        for (int r = 0; r < ROWS; r += SIDE_BY_SIDE) ls_box_fetch(map, to + r * DEPTH * 2, barrier, row + r, depth);
    } else {
        for (int d = 0; d < DEPTH; d += SIDE_BY_SIDE) ls_box_fetch(map, to + d * ROWS * 2, barrier, depth + d, row);
    }
}

/* Descriptor of 64 rows or more of a stage's part from `row` on, at the k-th 16 depths. */
template <int SIDE, int ROWS, int DEPTH>
static __device__ __forceinline__ uint64_t operand(uint32_t address, int row, int k) {
    constexpr int STEPS = SIDE_BY_SIDE / 16;
    if (SIDE)
        return ls_wgmma_descriptor(address + row * DEPTH * 2, SIDE_BY_SIDE * DEPTH * 2, 1024, LS_WG_SWIZZLE_128) +
               (k * 16 * SIDE_BY_SIDE * 2 >> 4);
    return ls_wgmma_descriptor(address + row * SIDE_BY_SIDE * 2, 16, 1024, LS_WG_SWIZZLE_128) +
           ((k / STEPS * ROWS * SIDE_BY_SIDE * 2 + k % STEPS * 32) >> 4);
}

/* A warp's 16 rows of CHUNK columns on their way between accumulators and out, in shared memory: code that handles
 * edges, types and modes stands there once for each chunk, not once for each register. */
template <int CHUNK>
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

template <int CHUNK>
static __device__ __forceinline__ void load_chunk(const ls_product *p, float (*rest)[PITCH], float *d, int64_t row,
                                                  int64_t col) {
    constexpr int ROWS = 32 / CHUNK; /* that a warp loads at a time */
    const int lane = threadIdx.x % 32;
    float x[16 / ROWS]; /* all on their way at once */
#pragma unroll
    for (int r = 0; r < 16 / ROWS; r++) x[r] = ls_product_begin(p, row + r * ROWS + lane / CHUNK, col + lane % CHUNK);
    __syncwarp();
#pragma unroll
    for (int r = 0; r < 16 / ROWS; r++) rest[r * ROWS + lane / CHUNK][lane % CHUNK] = x[r];
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

/* Outputs of a tile without an edge straight from accumulators, where nothing is added to them. float32: two columns of
 * a lane at once. bf16: the four lanes that hold a row's columns exchange what they have of 32, so that each has eight
 * neighbours: words w[0..3] of lanes 0..3 become their transpose. */
template <int COLS>
static __device__ __forceinline__ void store_straight(const ls_product *p, const float (&d)[COLS / 2], int64_t row,
                                                      int64_t col) {
    const int lane = threadIdx.x % 32, quarter = lane % 4;
    const int64_t first = (row + lane / 4) * p->out_stride + col;
    if (p->out_dtype == LS_F32) {
        float *to = (float *)p->out + first + quarter * 2;
#pragma unroll
        for (int i = 0; i < COLS / 2; i += 2)
            *(float2 *)(to + i % 4 / 2 * 8 * p->out_stride + i / 4 * 8) =
                make_float2(ls_canonical(d[i]), ls_canonical(d[i + 1]));
        return;
    }
    uint16_t *to = (uint16_t *)p->out + first + quarter * 8;
#pragma unroll
    for (int i = 0; i < COLS / 2; i += 16)
#pragma unroll
        for (int low = 0; low < 4; low += 2) {
            uint32_t w[4];
#pragma unroll
            for (int j = 0; j < 4; j++)
                w[j] = (uint32_t)ls_narrow_one<LS_BF16>(d[i + 4 * j + low]) |
                       (uint32_t)ls_narrow_one<LS_BF16>(d[i + 4 * j + low + 1]) << 16;
#pragma unroll
            for (int step = 1; step <= 2; step *= 2)
#pragma unroll
                for (int k = 0; k < 2; k++) {
                    const int a = step == 1 ? 2 * k : k, b = a + step;
                    const bool upper = (quarter & step) != 0;
                    const uint32_t got = __shfl_xor_sync(LS_ALL_LANES, upper ? w[a] : w[b], step);
                    w[a] = upper ? got : w[a];
                    w[b] = upper ? w[b] : got;
                }
            *(uint4 *)(to + low / 2 * 8 * p->out_stride + i * 2) = make_uint4(w[0], w[1], w[2], w[3]);
        }
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
    const wide_tile tile = {ROWS,
                            COLS,
                            size::DEPTH,
                            size::THREADS,
                            size::SHARED_BYTES,
                            {{(const void *)wide_kernel<ROWS, COLS, 0, 0>, bs}, {as, both}}};
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

/* Map of an operand for tiles of `rows` rows and `depth` depths; whole: of which a box holds all. */
static ls_status map_of(CUtensorMap *map, const ls_product *product, const void *base, bool side, bool whole,
                        int64_t rows, int64_t stride, int tile_rows, int tile_depth, ls_error *err) {
    const int64_t inner = side ? rows : product->depth, outer = side ? product->depth : rows;
    const int box_outer = side ? tile_depth : tile_rows, box_inner = side ? tile_rows : tile_depth;
    if (!whole) return ls_box_map(map, product->op, base, inner, outer, stride, box_outer, err);
    return ls_box_map3(map, product->op, base, inner / SIDE_BY_SIDE, outer, stride, box_outer, box_inner / SIDE_BY_SIDE,
                       err);
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
    LS_CUDA_TRY(
        map_of(&p.a, product, product->a, a_side, p.a_whole, product->rows, a_stride, tile.rows, tile.depth, err));
    LS_CUDA_TRY(
        map_of(&p.b, product, product->b, b_side, p.b_whole, product->cols, b_stride, tile.cols, tile.depth, err));
    const ls_index index[LS_PRODUCT_INDICES] = LS_PRODUCT_INDEX(product);
    const ls_launch launch = {product->op,  {p.tiles < processors ? p.tiles : processors, 1, 1},
                              tile.threads, tile.shared_bytes,
                              index,        LS_PRODUCT_INDICES};
    return ls_cuda_launch_within(exec, &launch, LS_HOPPER_SHARED_MAX, tile.kernels[a_side][b_side], &p, err);
}
