/* Norms and their gradients on sm_90, where rows come by bulk copies: y and dx from a row that lies in shared memory,
 * dw from a ring of boxes of columns. All sums are those of rmsnorm_cuda.cu and rmsnorm_backward_cuda.cu. */
#include "op/cuda/cuda_ops.h"
#include "op/cuda/ring_cuda.h"
#include "op/cuda/rmsnorm_cuda.h"

/* Rows in a block's shared memory; at least three blocks fit a multiprocessor. */
#define STAGED_MAX (72 * 1024)
/* With fewer rows than that the start of a copy is what one waits for. */
#define STAGED_ROWS 1024

/* The block's first thread sends for rows, and all wait, once. */
static __device__ __forceinline__ void staged_init(uint32_t full) {
    if (threadIdx.x == 0) {
        ls_barrier_init(full, 1);
        ls_barrier_init_done();
    }
}
static __device__ __forceinline__ void staged_wait(uint32_t full) {
    __syncthreads();
    ls_barrier_wait(full, 0);
}

/* ---- y ---- */

template <int Y, bool ADD>
static __global__ void __launch_bounds__(LS_CHAIN_THREADS) staged_kernel(const __grid_constant__ ls_norm_call p) {
    extern __shared__ __align__(16) float staged[];
    __shared__ float runs[LS_CHAIN_RUNS];
    __shared__ uint64_t barrier;
    const int64_t row = blockIdx.x;
    const int dim = (int)p.a.dim, first = 4 * (int)threadIdx.x;
    const float *add = staged + dim;
    const uint32_t full = ls_shared_address(&barrier), bytes = (uint32_t)dim * 4;
    float chain[4] = {0, 0, 0, 0};
    staged_init(full);
    ls_cuda_begin();
    if (threadIdx.x == 0) {
        ls_barrier_expect(full, ADD ? 2 * bytes : bytes);
        ls_bulk_fetch(ls_shared_address(staged), (const float *)p.a.x + row * p.a.x_stride, bytes, full);
        if (ADD) ls_bulk_fetch(ls_shared_address(add), p.add + row * dim, bytes, full);
    }
    staged_wait(full);
#pragma unroll 5
    for (int c = first; c < dim; c += LS_CHAIN_STEP) {
        float x[4], y[4];
        ls_four_load<LS_F32>(staged, c, 4, true, x);
        if (ADD) {
            ls_four_load<LS_F32>(add, c, 4, true, y);
            for (int j = 0; j < 4; j++) x[j] = ls_add(x[j], y[j]);
            ls_four_store<LS_F32>(staged, c, 4, true, x);
            ls_four_store<LS_F32>(p.sum, row * dim + c, 4, true, x);
        }
        ls_chain_add(chain, x, x, 4);
    }
    const float s = ls_norm_scale(ls_chain_fold(chain, runs), dim, p.a.eps);
#pragma unroll 5
    for (int c = first; c < dim; c += LS_CHAIN_STEP) {
        float x[4], w[4];
        ls_four_load<LS_F32>(staged, c, 4, true, x);
        ls_four_load<LS_F32>(p.a.w, c, 4, true, w);
        for (int j = 0; j < 4; j++) x[j] = ls_mul(ls_mul(x[j], s), w[j]);
        ls_four_store<Y>(p.a.y, row * p.a.y_stride + c, 4, true, x);
    }
}

template <bool ADD>
static const void *staged_kernel_of(ls_dtype y) {
    return y == LS_F32 ? (const void *)staged_kernel<LS_F32, ADD> : (const void *)staged_kernel<LS_BF16, ADD>;
}

/* Rows that bulk copies can bring, too long for the registers of the chains' threads. */
static ls_status can_stage(bool *out, const char *op, ls_dtype x_dtype, int64_t rows, int64_t dim, int64_t row_bytes,
                           ls_error *err) {
    *out = x_dtype == LS_F32 && rows >= STAGED_ROWS && dim > LS_NORM_SHORT_STEPS * LS_CHAIN_STEP &&
           dim <= STAGED_MAX / row_bytes;
    return *out ? ls_is_hopper(out, op, err) : LS_OK;
}

ls_status ls_norm_staged(const ls_exec *exec, const char *op, const ls_norm_call *call, bool *taken, ls_error *err) {
    const ls_rmsnorm_args *a = &call->a;
    const int64_t row_bytes = call->add != NULL ? 8 : 4;
    ls_norm_call p = *call;
    LS_CUDA_TRY(can_stage(taken, op, a->x_dtype, a->rows, a->dim, row_bytes, err));
    *taken = *taken && p.vector;
    if (!*taken) return LS_OK;
    const ls_index index[] = {{LS_WIDTH_I64, {{{"row", a->rows}, {"x stride", a->x_stride}, {"element", 4}}}},
                              {LS_WIDTH_I64, {{{"row", a->rows}, {"y stride", a->y_stride}, {"element", 4}}}}};
    const ls_launch launch = {op, {a->rows, 1, 1}, LS_CHAIN_THREADS, a->dim * row_bytes, index, 2};
    return ls_cuda_launch_within(
        exec, &launch, LS_HOPPER_SHARED_MAX,
        p.add != NULL ? staged_kernel_of<true>(a->y_dtype) : staged_kernel_of<false>(a->y_dtype), &p, err);
}

/* ---- dx ---- */

/* A block a row: x, dy and, with `add`, what dx holds are on their way together; its threads are those of the chains.
 */
static __global__ void __launch_bounds__(LS_CHAIN_THREADS) staged_dx_kernel(const __grid_constant__ ls_norm_params p) {
    extern __shared__ __align__(16) float staged[];
    __shared__ float runs[2][LS_CHAIN_RUNS];
    __shared__ uint64_t barrier;
    const int64_t row = blockIdx.x;
    const int dim = (int)p.a.dim, first = 4 * (int)threadIdx.x;
    const float *x = staged, *dy = staged + dim, *old = staged + 2 * dim;
    const uint32_t full = ls_shared_address(&barrier), bytes = (uint32_t)dim * 4;
    float squares[4] = {0, 0, 0, 0}, products[4] = {0, 0, 0, 0};
    staged_init(full);
    ls_cuda_begin();
    if (threadIdx.x == 0) {
        ls_barrier_expect(full, bytes * (p.a.add ? 3 : 2));
        ls_bulk_fetch(ls_shared_address(x), (const float *)p.a.x + row * p.a.x_stride, bytes, full);
        ls_bulk_fetch(ls_shared_address(dy), p.a.dy + row * p.a.dy_stride, bytes, full);
        if (p.a.add) ls_bulk_fetch(ls_shared_address(old), p.a.dx + row * p.a.dx_stride, bytes, full);
    }
    staged_wait(full);
#pragma unroll 5
    for (int c = first; c < dim; c += LS_CHAIN_STEP) ls_chain_add(squares, &x[c], &x[c], 4);
    const float s = ls_norm_scale(ls_chain_fold(squares, runs[0]), dim, p.a.eps);
#pragma unroll 5
    for (int c = first; c < dim; c += LS_CHAIN_STEP) {
        float n[4], g[4], w[4];
        ls_four_load<LS_F32>(x, c, 4, true, n);
        ls_four_load<LS_F32>(dy, c, 4, true, g);
        ls_four_load<LS_F32>(p.a.w, c, 4, true, w);
        ls_norm_normalise(n, g, w, s);
        ls_chain_add(products, g, n, 4);
    }
    const float u = ls_div(ls_chain_fold(products, runs[1]), (float)dim);
#pragma unroll 5
    for (int c = first; c < dim; c += LS_CHAIN_STEP) {
        float n[4], g[4], w[4], d[4], before[4];
        ls_four_load<LS_F32>(x, c, 4, true, n);
        ls_four_load<LS_F32>(dy, c, 4, true, g);
        ls_four_load<LS_F32>(p.a.w, c, 4, true, w);
        ls_norm_normalise(n, g, w, s);
        ls_norm_dx(d, n, g, s, u);
        if (p.a.add) {
            ls_four_load<LS_F32>(old, c, 4, true, before);
            for (int j = 0; j < 4; j++) d[j] = ls_add(before[j], d[j]);
        }
        ls_four_store<LS_F32>(p.a.dx, row * p.a.dx_stride + c, 4, true, d);
    }
    if (threadIdx.x == 0) p.a.scale[row] = s;
}

ls_status ls_norm_dx_staged(const ls_exec *exec, const ls_norm_params *p, bool *taken, ls_error *err) {
    const ls_rmsnorm_backward_args *a = &p->a;
    const int64_t row_bytes = a->add ? 12 : 8;
    ls_norm_params copy = *p;
    LS_CUDA_TRY(can_stage(taken, "rmsnorm_backward", a->x_dtype, a->rows, a->dim, row_bytes, err));
    *taken = *taken && p->vector;
    if (!*taken) return LS_OK;
    const ls_index index[] = {{LS_WIDTH_I64, {{{"row", a->rows}, {"x stride", a->x_stride}, {"element", 4}}}},
                              {LS_WIDTH_I64, {{{"row", a->rows}, {"dy stride", a->dy_stride}, {"element", 4}}}},
                              {LS_WIDTH_I64, {{{"row", a->rows}, {"dx stride", a->dx_stride}, {"element", 4}}}}};
    const ls_launch launch = {"rmsnorm_backward", {a->rows, 1, 1}, LS_CHAIN_THREADS, a->dim * row_bytes, index, 3};
    return ls_cuda_launch_within(exec, &launch, LS_HOPPER_SHARED_MAX, (const void *)staged_dx_kernel, &copy, err);
}

/* ---- dw ---- */

#define COLUMNS 32 /* of a block: one for each lane of the warp that adds */
#define STAGE_ROWS 128
#define BATCH 16         /* rows that are in registers together */
#define STAGES 3         /* 98 KB: two blocks a multiprocessor where there are as many */
#define FEW_COLUMNS 1056 /* that leave most processors idle so; blocks of fewer columns take them sooner */

/* What a block needs of its norm. */
typedef struct ring_part {
    CUtensorMap x, dy, scale;
    float *dw;
    int64_t dim, first_block;
} ring_part;

typedef struct ring_params {
    ring_part part[LS_NORM_PARTS];
    int64_t n, rows;
} ring_params;

typedef struct ring_stage {
    float x[STAGE_ROWS][COLUMNS], dy[STAGE_ROWS][COLUMNS], scale[STAGE_ROWS];
} ring_stage;

static __device__ __forceinline__ void produce(const ring_params *p, const ring_part *part, int column,
                                               ring_stage *ring, uint32_t full, uint32_t empty) {
    int stage = 0, phase = 0;
    for (int64_t row = 0; row < p->rows; row += STAGE_ROWS) {
        const uint32_t barrier = full + 8 * stage;
        ls_barrier_wait(empty + 8 * stage, phase ^ 1);
        ls_barrier_expect(barrier, sizeof(ring_stage));
        ls_line_fetch(&part->scale, ls_shared_address(ring[stage].scale), barrier, (int32_t)row);
        ls_box_fetch(&part->x, ls_shared_address(ring[stage].x), barrier, column, (int32_t)row);
        ls_box_fetch(&part->dy, ls_shared_address(ring[stage].dy), barrier, column, (int32_t)row);
        if (++stage == STAGES) stage = 0, phase ^= 1;
    }
}

/* BATCH rows of a column in registers. */
typedef struct batch {
    float x[BATCH], dy[BATCH];
    float4 scale[BATCH / 4];
} batch;

static __device__ __forceinline__ void load_batch(batch *b, const ring_stage *stage, int row, int lane) {
#pragma unroll
    for (int i = 0; i < BATCH; i++) b->x[i] = stage->x[row + i][lane], b->dy[i] = stage->dy[row + i][lane];
#pragma unroll
    for (int i = 0; i < BATCH / 4; i++) b->scale[i] = *(const float4 *)&stage->scale[row + 4 * i];
}

/* sum = fma(dy, x * scale, sum), rows ascending. */
static __device__ __forceinline__ float add_batch(const batch *b, float sum) {
#pragma unroll
    for (int i = 0; i < BATCH; i++) {
        const float4 s = b->scale[i / 4];
        sum = ls_fma(b->dy[i], ls_mul(b->x[i], i % 4 == 0 ? s.x : i % 4 == 1 ? s.y : i % 4 == 2 ? s.z : s.w), sum);
    }
    return sum;
}

/* The sum of a column over all rows. While one batch is added the next one is on its way to registers: one that were
 * loaded and added together would wait for shared memory. */
static __device__ __forceinline__ float consume(const ring_params *p, const ring_stage *ring, int lane, uint32_t full,
                                                uint32_t empty, float sum) {
    const int64_t pairs = p->rows / STAGE_ROWS * (STAGE_ROWS / (2 * BATCH));
    int stage = 0, phase = 0;
    batch even, odd;
    ls_barrier_wait(full, 0);
    load_batch(&even, &ring[0], 0, lane);
#pragma unroll 1
    for (int64_t i = 0; i < pairs; i++) {
        const int row = (int)(i % (STAGE_ROWS / (2 * BATCH))) * 2 * BATCH, before = stage;
        const bool ends = row + 2 * BATCH == STAGE_ROWS, more = (i + 1) * 2 * BATCH < p->rows;
        load_batch(&odd, &ring[stage], row + BATCH, lane);
        sum = add_batch(&even, sum);
        if (ends && more) {
            if (++stage == STAGES) stage = 0, phase ^= 1;
            ls_barrier_wait(full + 8 * stage, phase);
        }
        load_batch(&even, &ring[stage], ends ? 0 : row + 2 * BATCH, lane);
        sum = add_batch(&odd, sum);
        __syncwarp();
        if (ends && threadIdx.x == 0) ls_barrier_arrive(empty + 8 * before);
    }
    const int left = (int)(p->rows % STAGE_ROWS);
    if (left > 0) ls_barrier_wait(full + 8 * stage, phase);
    for (int row = 0; row < left; row++)
        sum = ls_fma(ring[stage].dy[row][lane], ls_mul(ring[stage].x[row][lane], ring[stage].scale[row]), sum);
    return sum;
}

/* One warp brings stages, the other adds them, a lane a column. Told of one block a multiprocessor, the compiler keeps
 * whole batches in registers. */
static __global__ void __launch_bounds__(64, 1) ring_dw_kernel(const __grid_constant__ ring_params p) {
    extern __shared__ __align__(128) uint8_t memory[];
    __shared__ uint64_t barriers[2 * STAGES];
    ring_stage *ring = (ring_stage *)memory;
    const uint32_t full = ls_shared_address(barriers), empty = full + 8 * STAGES;
    const int lane = (int)threadIdx.x % 32;
    int part_i = (int)p.n - 1;
    while (blockIdx.x < p.part[part_i].first_block) part_i--;
    const ring_part *part = &p.part[part_i];
    const int64_t column = (blockIdx.x - part->first_block) * COLUMNS;
    const bool adds = column + lane < part->dim;
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; s++) {
            ls_barrier_init(full + 8 * s, 1);
            ls_barrier_init(empty + 8 * s, 1);
        }
        ls_barrier_init_done();
    }
    __syncthreads();
    ls_cuda_begin();
    if (threadIdx.x >= 32) {
        if (lane == 0) produce(&p, part, (int)column, ring, full, empty);
        return;
    }
    const float before = adds ? part->dw[column + lane] : 0.0f;
    const float sum = consume(&p, ring, lane, full, empty, before);
    if (adds) part->dw[column + lane] = sum;
}

static bool possible(const ls_rmsnorm_backward_args *a) {
    return a->x_dtype == LS_F32 && ls_box_possible(a->x, LS_F32, a->x_stride, a->rows, a->dim) &&
           ls_box_possible(a->dy, LS_F32, a->dy_stride, a->rows, a->dim) && (uintptr_t)a->scale % 16 == 0;
}

ls_status ls_norm_dw_ring(const ls_exec *exec, const char *op, const ls_rmsnorm_backward_args *parts, int64_t n,
                          bool *taken, ls_error *err) {
    ring_params p = {};
    int64_t blocks = 0, columns = 0;
    LS_CUDA_TRY(ls_is_hopper(taken, op, err));
    for (int64_t i = 0; i < n; i++) columns += parts[i].dim;
    for (int64_t i = 0; i < n; i++) *taken = *taken && possible(&parts[i]) && columns > FEW_COLUMNS;
    if (!*taken) return LS_OK;
    p.n = n;
    p.rows = parts[0].rows;
    for (int64_t i = 0; i < n; i++) {
        const ls_rmsnorm_backward_args *a = &parts[i];
        ring_part *part = &p.part[i];
        const ls_box_matrix x = {a->x, a->dim, a->rows, a->x_stride}, dy = {a->dy, a->dim, a->rows, a->dy_stride};
        const ls_box_matrix scale = {a->scale, a->rows, 0, 0};
        LS_CUDA_TRY(ls_box_map_f32(&part->x, op, &x, COLUMNS, STAGE_ROWS, err));
        LS_CUDA_TRY(ls_box_map_f32(&part->dy, op, &dy, COLUMNS, STAGE_ROWS, err));
        LS_CUDA_TRY(ls_box_map_f32(&part->scale, op, &scale, STAGE_ROWS, 1, err));
        part->dw = a->dw;
        part->dim = a->dim;
        part->first_block = blocks;
        blocks += (a->dim + COLUMNS - 1) / COLUMNS;
    }
    const ls_launch launch = {op, {blocks, 1, 1}, 64, STAGES * (int64_t)sizeof(ring_stage), NULL, 0};
    return ls_cuda_launch_within(exec, &launch, LS_HOPPER_SHARED_MAX, (const void *)ring_dw_kernel, &p, err);
}
