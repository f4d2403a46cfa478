/* Products of groups of rows on Hopper's tensor cores. Compiled for sm_90a alone.
 *
 * A block walks over tiles of ROWS x COLS outputs of all groups. Its first warpgroup copies 64 depths of both operands
 * at a time into a ring of stages; each of the others, one for each 64 rows, holds their accumulators and issues wgmma,
 * depths ascending: one chain for each output, no split. Groups begin at rows that no map of boxes knows and the steps
 * of a gradient end inside of a sequence, so threads copy 16 bytes each and put +0 where there is nothing. */
#include "op/cuda/check_cuda.h"
#include "op/cuda/groups_cuda.h"
#include "op/cuda/wide_cuda.h"

#define DEPTH SIDE_BY_SIDE /* of a stage */
#define STEPS (DEPTH / 16)
#define COPIERS 128
/* Rows of an operand, or depths, that the copiers fill at a time: eight threads a row of 128 bytes. */
#define AT_ONCE (COPIERS / 8)
static_assert(AT_ONCE == 16, "what is copied at once is a step of a gradient");

typedef struct group_params {
    ls_product p;
    const int64_t *offsets, *n_steps;
    const ls_group_step *steps;
    int64_t n_groups, n_sequences, row_tiles, col_tiles; /* row_tiles: of one group, of depths only */
    bool straight;                                       /* as in wide_params */
    const void *list[LS_EXPERTS_MAX];
} group_params;

template <int ROWS, int COLS>
struct group_size {
    static constexpr int MULTIPLIERS = ROWS / GROUP_ROWS;
    static constexpr int THREADS = COPIERS + 128 * MULTIPLIERS;
    static constexpr int A_BYTES = ROWS * DEPTH * 2;
    static constexpr int STAGE_BYTES = (ROWS + COLS) * DEPTH * 2;
    /* Beside the ring: outputs on their way, the groups' tiles, barriers, 1 KB to align. */
    static constexpr int FIT = (LS_HOPPER_SHARED_MAX - ROWS * PITCH * 4 - LS_EXPERTS_MAX * 4 - 2048) / STAGE_BYTES;
    static constexpr int STAGES = FIT < STAGES_MAX ? FIT : STAGES_MAX;
    static constexpr int SHARED_BYTES = STAGES * STAGE_BYTES + 1024;
};

/* What a block multiplies at a time. */
typedef struct group_tile {
    int64_t group, row, col;
    int64_t row_end, depth_end; /* of the group: rows of out; depths, or steps of 16 of them */
} group_tile;

/* Groups' first tiles of rows, in shared memory; false if the offsets are none, which block 0 puts on record. */
template <int THREADS>
static __device__ bool place_tiles(const group_params *p, int32_t rows, int32_t *tiles) {
    const ls_offset_check check = {p->offsets, p->n_groups, p->p.rows, p->p.fault};
    bool bad = p->p.fault->code != LS_FAULT_NONE;
    for (int64_t g = threadIdx.x; g < p->n_groups; g += THREADS) {
        tiles[g + 1] = (int32_t)((p->offsets[g + 1] - p->offsets[g] + rows - 1) / rows);
        bad = bad || ls_fault_at(&check, g).code != LS_FAULT_NONE;
    }
    if (__syncthreads_or(bad)) {
        if (blockIdx.x == 0 && threadIdx.x == 0 && p->p.fault->code == LS_FAULT_NONE) {
            int64_t g = 0;
            while (ls_fault_at(&check, g).code == LS_FAULT_NONE) g++;
            *p->p.fault = ls_fault{LS_FAULT_RANGE, p->offsets[g], p->offsets[g + 1], p->p.rows};
        }
        return false;
    }
    if (threadIdx.x < 32) {
        const int64_t lane = threadIdx.x;
        int32_t before = 0;
        for (int64_t first = 0; first < p->n_groups; first += 32) {
            const int64_t g = first + lane;
            int32_t sum = g < p->n_groups ? tiles[g + 1] : 0;
            for (int by = 1; by < 32; by *= 2) {
                const int32_t lower = __shfl_up_sync(LS_ALL_LANES, sum, by);
                sum += lane >= by ? lower : 0;
            }
            if (g < p->n_groups) tiles[g + 1] = before + sum;
            before += __shfl_sync(LS_ALL_LANES, sum, 31);
        }
        if (lane == 0) tiles[0] = 0;
    }
    __syncthreads();
    return true;
}

template <int ROWS, int COLS, bool OF_DEPTHS>
static __device__ __forceinline__ int64_t tile_count(const group_params *p, const int32_t *tiles) {
    return (OF_DEPTHS ? p->n_groups * p->row_tiles : tiles[p->n_groups]) * p->col_tiles;
}

/* Tiles of one column of a group are neighbours: what they read of b stays in the second-level cache. */
template <int ROWS, int COLS, bool OF_DEPTHS>
static __device__ __forceinline__ group_tile tile_of(const group_params *p, const int32_t *tiles, int64_t i) {
    group_tile at;
    if (OF_DEPTHS) {
        const int64_t each = p->row_tiles * p->col_tiles, rest = i % each;
        at.group = i / each;
        at.row = rest % p->row_tiles * ROWS;
        at.col = rest / p->row_tiles * COLS;
        at.row_end = p->p.rows;
        at.depth_end = p->n_steps[at.group];
        return at;
    }
    int64_t low = 0, high = p->n_groups;
    while (high - low > 1) {
        const int64_t middle = (low + high) / 2;
        if (tiles[middle] * p->col_tiles <= i)
            low = middle;
        else
            high = middle;
    }
    const int64_t rest = i - tiles[low] * p->col_tiles, rows = tiles[low + 1] - tiles[low];
    at.group = low;
    at.row = p->offsets[low] + rest % rows * ROWS;
    at.col = rest / rows * COLS;
    at.row_end = p->offsets[low + 1];
    at.depth_end = p->p.depth;
    return at;
}

/* ---- copiers ---- */

/* 16 bytes of shared memory: `bytes` of them from `from`, then +0. Nothing is read where there are none. */
template <bool ALIGNED>
static __device__ __forceinline__ void copy16(uint32_t to, const uint16_t *from, int bytes) {
    if (ALIGNED) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
    } else {
        uint32_t pair[4] = {0, 0, 0, 0};
#pragma unroll
        for (int i = 0; i < 8; i++)
            if (2 * i < bytes) pair[i / 2] |= (uint32_t)from[i] << i % 2 * 16;
        asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(pair[0]), "r"(pair[1]), "r"(pair[2]),
                     "r"(pair[3])
                     : "memory");
    }
}

/* Of eight elements at `at`, the bytes of those before `end`. */
static __device__ __forceinline__ int bytes_before(int64_t at, int64_t end) {
    return end - at >= 8 ? 16 : end > at ? (int)(end - at) * 2 : 0;
}

/* Rows of a matrix whose depths lie side by side, as this thread copies them: `from` is its first row's at depth 0. */
typedef struct row_walk {
    const uint16_t *from;
    int64_t by; /* elements from one of its rows to the next */
    int rows;   /* of the tile, counted from its first, that are there */
} row_walk;

static __device__ __forceinline__ row_walk walk_rows(const void *matrix, int64_t stride, int64_t first, int64_t end) {
    const int64_t row = first + threadIdx.x / 8, left = end - row;
    const row_walk walk = {(const uint16_t *)matrix + row * stride + threadIdx.x % 8 * 8, AT_ONCE * stride,
                           left > 4096 ? 4096 : (int)left};
    return walk;
}

template <int COUNT, bool ALIGNED>
static __device__ __forceinline__ void copy_rows(uint32_t to, const row_walk *walk, int64_t depth, int64_t end) {
    const int row = threadIdx.x / 8, chunk = threadIdx.x % 8, bytes = bytes_before(depth + chunk * 8, end);
    const uint32_t own = to + row * 128 + ((chunk ^ (row & 7)) << 4);
    const uint16_t *from = walk->from + depth;
#pragma unroll
    for (int i = 0; i < COUNT / AT_ONCE; i++) {
        copy16<ALIGNED>(own + i * AT_ONCE * 128, from, i * AT_ONCE < walk->rows ? bytes : 0);
        from += walk->by;
    }
}

/* AT_ONCE depths of COUNT rows that lie side by side: row is the depth's of this thread, below zero for none. */
template <int COUNT, bool ALIGNED>
static __device__ __forceinline__ void copy_depths(uint32_t to, const uint16_t *from, int64_t stride, int64_t row,
                                                   int64_t first, int64_t end) {
    const int depth = threadIdx.x / 8, chunk = threadIdx.x % 8;
    const int64_t at = first + chunk * 8;
    const uint32_t own = to + depth * 128 + ((chunk ^ (depth & 7)) << 4);
    from += row * stride + at;
#pragma unroll
    for (int i = 0; i < COUNT / SIDE_BY_SIDE; i++)
        copy16<ALIGNED>(own + i * SIDE_BY_SIDE * DEPTH * 2, from + i * SIDE_BY_SIDE,
                        row >= 0 ? bytes_before(at + i * SIDE_BY_SIDE, end) : 0);
}

/* The row that this thread copies of steps [first, first + STEPS) of a group. */
static __device__ __forceinline__ void rows_of_steps(const ls_group_step *steps, int64_t first, int64_t n,
                                                     int64_t (&row)[STEPS]) {
    const int64_t in_step = threadIdx.x / 8;
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
        const ls_group_step step = first + i < n ? steps[first + i] : ls_group_step{0, 0};
        row[i] = in_step < step.n_rows ? step.row + in_step : -1;
    }
}

template <int ROWS, int COLS, bool B_SIDE, bool OF_DEPTHS, bool ALIGNED>
static __device__ __forceinline__ void copy_tiles(const group_params *p, const int32_t *tiles, uint32_t shared,
                                                  uint32_t full, uint32_t empty) {
    using size = group_size<ROWS, COLS>;
    constexpr int BEHIND = size::STAGES - 1; /* stages that are on their way when one is handed over */
    const int64_t count = tile_count<ROWS, COLS, OF_DEPTHS>(p, tiles);
    const uint16_t *a = (const uint16_t *)p->p.a;
    int64_t issued = 0;
    int stage = 0, phase = 0, old = 0;
    for (int64_t i = blockIdx.x; i < count; i += gridDim.x) {
        const group_tile at = tile_of<ROWS, COLS, OF_DEPTHS>(p, tiles, i);
        const uint16_t *b = (const uint16_t *)(OF_DEPTHS ? p->p.b : p->list[at.group]);
        const int64_t end = at.depth_end * (OF_DEPTHS ? 16 : 1);
        const ls_group_step *steps =
            OF_DEPTHS ? p->steps + ls_group_first_step(at.group, p->offsets[at.group], p->n_sequences) : NULL;
        const row_walk rows_of_a = walk_rows(a, p->p.a_row, at.row, at.row_end);
        const row_walk rows_of_b = walk_rows(b, p->p.b_col, at.col, p->p.cols);
        int64_t row[STEPS], next[STEPS];
        if (OF_DEPTHS) rows_of_steps(steps, 0, at.depth_end, next);
        for (int64_t depth = 0; depth < end; depth += DEPTH) {
            const uint32_t to_a = shared + stage * size::STAGE_BYTES, to_b = to_a + size::A_BYTES;
            if (OF_DEPTHS) {
#pragma unroll
                for (int s = 0; s < STEPS; s++) row[s] = next[s];
                rows_of_steps(steps, depth / 16 + STEPS, at.depth_end, next); /* on their way beside the copies */
            } else {
#pragma unroll
                for (int s = 0; s < STEPS; s++) {
                    const int64_t own = depth + s * AT_ONCE + threadIdx.x / 8;
                    row[s] = own < end ? own : -1;
                }
            }
            ls_barrier_wait(empty + 8 * stage, phase ^ 1);
            if (OF_DEPTHS)
#pragma unroll
                for (int s = 0; s < STEPS; s++)
                    copy_depths<ROWS, ALIGNED>(to_a + s * AT_ONCE * 128, a, p->p.a_step, row[s], at.row, at.row_end);
            else
                copy_rows<ROWS, ALIGNED>(to_a, &rows_of_a, depth, end);
            if (B_SIDE)
#pragma unroll
                for (int s = 0; s < STEPS; s++)
                    copy_depths<COLS, ALIGNED>(to_b + s * AT_ONCE * 128, b, p->p.b_step, row[s], at.col, p->p.cols);
            else
                copy_rows<COLS, ALIGNED>(to_b, &rows_of_b, depth, end);
            asm volatile("cp.async.commit_group;" ::: "memory");
            if (++stage == size::STAGES) stage = 0, phase ^= 1;
            if (++issued >= BEHIND) {
                hand_over<BEHIND - 1>(full + 8 * old);
                if (++old == size::STAGES) old = 0;
            }
        }
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
    for (int64_t left = issued < BEHIND - 1 ? issued : BEHIND - 1; left > 0; left--) {
        hand_over<0>(full + 8 * old);
        if (++old == size::STAGES) old = 0;
    }
}

/* ---- multipliers ---- */

/* Accumulators from what is there, or from +0. The compiler serialises wgmma where their values meet from branches, so
 * there is none: each load is made or not. Two columns of a lane are one load where they are aligned. */
template <int COLS, bool ALIGNED>
static __device__ __forceinline__ void begin(const ls_product *p, float (&d)[COLS / 2], int64_t row, int64_t col,
                                             bool continues) {
    const int lane = threadIdx.x % 32;
    const float *from = (const float *)p->out + (row + lane / 4) * p->out_stride + col + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < COLS / 2; i += 2) {
        const int64_t r = row + lane / 4 + i % 4 / 2 * 8, left = p->cols - col - lane % 4 * 2 - i / 4 * 8;
        const float *at = from + i % 4 / 2 * 8 * p->out_stride + i / 4 * 8;
        const bool there = continues && r < p->rows && left > 0;
        if (ALIGNED) {
            const float2 x = there ? *(const float2 *)at : make_float2(0.0f, 0.0f);
            d[i] = x.x;
            d[i + 1] = x.y;
        } else {
            d[i] = there ? at[0] : 0.0f;
            d[i + 1] = there && left > 1 ? at[1] : 0.0f;
        }
    }
}

template <int ROWS, int COLS, bool B_SIDE, bool OF_DEPTHS, bool ALIGNED>
static __device__ __forceinline__ void multiply_tiles(const group_params *q, const int32_t *tiles, uint32_t shared,
                                                      uint32_t full, uint32_t empty, int group,
                                                      float (*rest)[16][PITCH]) {
    using size = group_size<ROWS, COLS>;
    constexpr int CHUNK = 32;
    const int64_t count = tile_count<ROWS, COLS, OF_DEPTHS>(q, tiles);
    const int thread = threadIdx.x % 128, warp = group * 4 + thread / 32;
    ls_product p = q->p;
    int stage = 0, phase = 0;
    for (int64_t i = blockIdx.x; i < count; i += gridDim.x) {
        const group_tile at = tile_of<ROWS, COLS, OF_DEPTHS>(q, tiles, i);
        const int64_t row = at.row + warp * 16, end = at.depth_end * (OF_DEPTHS ? 16 : 1);
        const bool inside = at.row + ROWS <= at.row_end && at.col + COLS <= p.cols;
        float d[COLS / 2];
        int before = -1;
        if (end == 0) continue; /* a sum of nothing continues as it is */
        p.rows = at.row_end;
        if (OF_DEPTHS) p.out = (void *)q->list[at.group];
        begin<COLS, ALIGNED>(&p, d, row, at.col, OF_DEPTHS && p.mode == LS_PRODUCT_CONTINUE);
        ls_wgmma_hold(d);
        /* No step returns -0, and the first of a stage is one of what is there: steps of padding change nothing. */
        int64_t depth = 0;
        do {
            const uint32_t a = shared + stage * size::STAGE_BYTES, b = a + size::A_BYTES;
            ls_barrier_wait(full + 8 * stage, phase);
            ls_wgmma_fence();
#pragma unroll
            for (int k = 0; k < STEPS; k++)
                ls_wgmma<COLS>::template ss<OF_DEPTHS, B_SIDE>(
                    d, operand<OF_DEPTHS, ROWS, DEPTH>(a, group * GROUP_ROWS, k),
                    operand<B_SIDE, COLS, DEPTH>(b, 0, k));
            ls_wgmma_commit();
            ls_wgmma_wait<1>();
            if (before >= 0 && thread == 0) ls_barrier_arrive(empty + 8 * before);
            before = stage;
            if (++stage == size::STAGES) stage = 0, phase ^= 1;
            depth += DEPTH;
        } while (depth < end);
        ls_wgmma_wait<0>();
        ls_wgmma_hold(d);
        if (thread == 0) ls_barrier_arrive(empty + 8 * before);
        if (q->straight && inside) {
            store_straight<COLS>(&p, d, row, at.col);
            continue;
        }
#pragma unroll
        for (int c = 0; c < COLS; c += CHUNK) store_chunk<CHUNK>(&p, rest[warp], &d[c / 2], row, at.col + c);
    }
}

template <int ROWS, int COLS, bool B_SIDE, bool OF_DEPTHS, bool ALIGNED>
static __global__ void __launch_bounds__(group_size<ROWS, COLS>::THREADS, 1)
    group_kernel(const __grid_constant__ group_params p) {
    using size = group_size<ROWS, COLS>;
    constexpr bool MOVES_REGISTERS = ROWS == 128 && COLS == 256;
    extern __shared__ uint8_t memory[];
    __shared__ uint64_t barriers[2 * STAGES_MAX];
    __shared__ __align__(16) float rest[ROWS / 16][16][PITCH];
    __shared__ int32_t tiles[LS_EXPERTS_MAX + 1];
    const uint32_t shared = (ls_shared_address(memory) + 1023u) & ~1023u;
    const uint32_t full = ls_shared_address(barriers), empty = full + 8 * STAGES_MAX;
    if (threadIdx.x == 0) {
        for (int s = 0; s < size::STAGES; s++) {
            ls_barrier_init(full + 8 * s, COPIERS);
            ls_barrier_init(empty + 8 * s, size::MULTIPLIERS);
        }
        ls_barrier_init_done();
    }
    __syncthreads();
    ls_cuda_wait_for_previous();
    ls_cuda_let_next_start();
    if (OF_DEPTHS ? ls_product_faulty(&p.p) : !place_tiles<size::THREADS>(&p, ROWS, tiles)) return;
    /* The same in all threads of a warp, and the compiler is to know it. */
    const int role = __shfl_sync(LS_ALL_LANES, (int)threadIdx.x / 128, 0);
    if (role == 0) {
        if (MOVES_REGISTERS) asm volatile("setmaxnreg.dec.sync.aligned.u32 56;");
        copy_tiles<ROWS, COLS, B_SIDE, OF_DEPTHS, ALIGNED>(&p, tiles, shared, full, empty);
    } else {
        if (MOVES_REGISTERS) asm volatile("setmaxnreg.inc.sync.aligned.u32 224;");
        multiply_tiles<ROWS, COLS, B_SIDE, OF_DEPTHS, ALIGNED>(&p, tiles, shared, full, empty, role - 1, rest);
    }
}

/* ---- host ---- */

typedef struct group_launch {
    int32_t rows, cols, threads, shared_bytes;
    const void *kernel;
} group_launch;

template <int ROWS, int COLS, bool ALIGNED>
static group_launch launch_of(bool b_side, bool of_depths) {
    using size = group_size<ROWS, COLS>;
    const group_launch launch = {.rows = ROWS,
                                 .cols = COLS,
                                 .threads = size::THREADS,
                                 .shared_bytes = size::SHARED_BYTES,
                                 .kernel = of_depths ? (const void *)group_kernel<ROWS, COLS, true, true, ALIGNED>
                                           : b_side  ? (const void *)group_kernel<ROWS, COLS, true, false, ALIGNED>
                                                     : (const void *)group_kernel<ROWS, COLS, false, false, ALIGNED>};
    return launch;
}

/* Groups of some 64 rows are as fast as their weights arrive, in tiles of which many are on their way. */
static group_launch launch_for(const ls_group_product *product, bool aligned) {
    const bool b_side = product->p.b_step != 1, of_depths = product->of_depths;
    const bool few = !of_depths && product->p.rows / product->n_groups <= 96;
    if (!aligned) return launch_of<64, 128, false>(b_side, of_depths);
    if (few || product->p.rows <= 64) return launch_of<64, 128, true>(b_side, of_depths);
    if (product->p.cols <= 128) return launch_of<128, 128, true>(b_side, of_depths);
    return launch_of<128, 256, true>(b_side, of_depths);
}

/* Whether 16 bytes can be copied from every row. */
static bool can_copy(const void *base, int64_t stride) { return (uintptr_t)base % 16 == 0 && stride % 8 == 0; }

ls_status ls_group_product_wgmma(const ls_exec *exec, const ls_group_product *product, ls_error *err) {
    const bool of_depths = product->of_depths;
    const int64_t a_stride = of_depths ? product->p.a_step : product->p.a_row;
    const int64_t b_stride = product->p.b_step != 1 ? product->p.b_step : product->p.b_col;
    bool aligned = can_copy(product->p.a, a_stride), pairs = product->p.out_stride % 2 == 0;
    bool eight = product->p.out_stride % 8 == 0;
    group_params p;
    int processors;
    LS_CUDA_TRY(ls_processors(&processors, product->p.op, err));
    if (of_depths) aligned = aligned && can_copy(product->p.b, b_stride);
    for (int64_t g = 0; g < product->n_groups; g++) {
        const void *out = of_depths ? product->list[g] : product->p.out;
        p.list[g] = product->list[g];
        if (!of_depths) aligned = aligned && can_copy(product->list[g], b_stride);
        pairs = pairs && (uintptr_t)out % 8 == 0;
        eight = eight && (uintptr_t)out % 16 == 0;
    }
    /* Sums that continue are read two at a time. */
    const group_launch group = launch_for(product, aligned && (pairs || !of_depths));
    p.p = product->p;
    p.offsets = product->offsets;
    p.n_steps = product->n_steps;
    p.steps = product->steps;
    p.n_groups = product->n_groups;
    p.n_sequences = product->n_sequences;
    p.row_tiles = (product->p.rows - 1) / group.rows + 1;
    p.col_tiles = (product->p.cols - 1) / group.cols + 1;
    p.straight = product->p.out_dtype == LS_F32 ? pairs : eight;
    const int64_t tiles = ls_launch_blocks(of_depths ? p.row_tiles * p.n_groups : p.row_tiles + p.n_groups, p.col_tiles,
                                           1); /* of rows: at most */
    ls_index index[LS_PRODUCT_INDICES + 1] = LS_PRODUCT_INDEX(&product->p);
    const ls_index of_tiles = {LS_WIDTH_I32, {{{"tile of rows", p.row_tiles + p.n_groups}}}};
    index[LS_PRODUCT_INDICES] = of_tiles;
    const ls_launch launch = {product->p.op, {tiles < processors ? tiles : processors, 1, 1},
                              group.threads, group.shared_bytes,
                              index,         LS_PRODUCT_INDICES + 1};
    return ls_cuda_launch_within(exec, &launch, LS_HOPPER_SHARED_MAX, group.kernel, &p, err);
}
