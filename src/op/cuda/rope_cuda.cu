/* rope on the GPU: a group of lanes takes a head of a row. Rows and heads carry no bit; chains of a norm's gradient go
 * over all rows, which other threads bring. */
#include "num/sincosf.h"
#include "op/cuda/attention_cuda.h"
#include "op/cuda/columns_cuda.h"
#include "op/cuda/cuda_ops.h"
#include "op/cuda/rope_heads_cuda.h"

#define THREADS 256

/* ---- rope_table ---- */

#define TABLE_ROWS 32 /* of a block */

typedef struct table_params {
    ls_rope_table_args a;
    const ls_fault *fault;
} table_params;

static __global__ void __launch_bounds__(THREADS) table_kernel(const __grid_constant__ table_params p) {
    ls_cuda_begin();
    if (p.fault->code != LS_FAULT_NONE) return;
    const ls_span span = p.a.spans[blockIdx.x];
    const int64_t first = (int64_t)blockIdx.y * TABLE_ROWS, half = p.a.half;
    const int64_t rows = span.n_rows - first < TABLE_ROWS ? span.n_rows - first : TABLE_ROWS;
    for (int64_t i = threadIdx.x; i < rows * half; i += THREADS) {
        const int64_t r = first + i / half, j = i % half;
        float *c = p.a.table + (span.row + r) * 2 * half + j;
        float sine, cosine;
        ls_sincosf(ls_angle(span.pos + r, p.a.inv_freq[j]), &sine, &cosine);
        c[0] = ls_canonical(ls_mul(cosine, p.a.scale));
        c[half] = ls_canonical(ls_mul(sine, p.a.scale));
    }
}

ls_status ls_cuda_rope_table(const ls_exec *exec, const ls_rope_table_args *a, ls_error *err) {
    const int64_t most = ls_spans_most(a->span_rows_max, a->rows),
                  pieces = most / TABLE_ROWS + (most % TABLE_ROWS != 0);
    const ls_cuda_operand operands[] = {{"inv_freq", a->inv_freq, 4, false},
                                        {"table", a->table, 4, a->rows == 0},
                                        {"spans", a->spans, 8, a->n_spans == 0}};
    LS_CUDA_TRY(ls_cuda_check("rope_table", exec, operands, 3, LS_WORKSPACE_HEAD, err));
    if (a->rows == 0 || a->n_spans == 0) return LS_OK;
    const ls_index index[] = {{LS_WIDTH_I64, {{{"row", a->rows}, {"2 half", 2 * a->half}, {"element", 4}}}}};
    const ls_launch launch = {"rope_table", {a->n_spans, pieces, 1}, THREADS, 0, index, 1};
    ls_fault *fault;
    LS_CUDA_TRY(ls_launch_check(&launch, LS_CUDA_SHARED_MAX, err));
    LS_CUDA_TRY(ls_cuda_fault_begin("rope_table", exec, &fault, err));
    ls_span_check check = ls_span_check_of(a, most, INT64_MAX, fault);
    LS_CUDA_TRY(ls_cuda_check_spans("rope_table", exec, &check, err));
    table_params p = {*a, fault};
    return ls_cuda_launch(exec, &launch, (const void *)table_kernel, &p, err);
}

/* ---- rope ---- */

/* What a group of lanes works on. */
typedef struct head_place {
    int64_t row, head, column; /* head: of all parts; column: where it begins */
    int64_t lane;
    bool is_there;
} head_place;

template <int LANES>
static __device__ __forceinline__ head_place place_of(int64_t rows, int64_t heads, int64_t dim) {
    const int64_t item = (int64_t)blockIdx.x * (THREADS / LANES) + threadIdx.x / LANES;
    const int64_t row = item / heads, head = item % heads;
    return head_place{row, head, head * dim, (int64_t)threadIdx.x % LANES, row < rows};
}

typedef struct rope_params {
    ls_rope_args a;
    int64_t heads;
    rope_ways ways;
} rope_params;

template <int LANES, int RUNS, int Y>
static __global__ void __launch_bounds__(THREADS) rope_kernel(const __grid_constant__ rope_params p) {
    ls_cuda_begin();
    __shared__ float shared[THREADS / LANES][LANES * RUNS * RUN];
    const int64_t dim = p.a.head_dim;
    const head_place at = place_of<LANES>(p.a.rows, p.heads, dim);
    const int64_t row = at.is_there ? at.row : 0;
    int64_t head = at.head;
    const ls_rope_part *part = part_of(p.a.part, &head);
    float n[RUNS][RUN], norm[RUNS][RUN];
    const turning t = turning_of<LANES, RUNS>(p.a.table, p.a.half, part->rotates, p.ways.by_lanes, row, at.lane);
    load_norm<LANES, RUNS>(norm, part, at.lane, dim, p.ways.vector);
    load_head<LANES, RUNS>(n, p.a.x + row * p.a.x_stride + at.column,
                           part->bias == NULL ? NULL : part->bias + head * dim, at.lane, dim, p.ways.vector);
    turn_head<LANES, RUNS>(n, norm, part, &t, at.lane, dim, p.a.eps, shared[threadIdx.x / LANES]);
    if (!at.is_there) return;
#pragma unroll
    for (int i = 0; i < RUNS; i++) {
        const int64_t c = (at.lane + i * LANES) * RUN;
        if (c < dim) store_run<Y>(p.a.y, row * p.a.y_stride + at.column + c, dim - c, p.ways.vector, n[i]);
    }
}

/* Lanes of a group and runs of a lane, by head_dim. */
template <int Y>
static const void *rope_kernel_of(int64_t dim, int64_t *lanes) {
    *lanes = dim <= 8 * RUN ? 8 : dim <= 16 * RUN ? 16 : 32;
    if (*lanes == 8) return (const void *)rope_kernel<8, 1, Y>;
    if (*lanes == 16) return (const void *)rope_kernel<16, 1, Y>;
    return dim <= 32 * RUN ? (const void *)rope_kernel<32, 1, Y> : (const void *)rope_kernel<32, 2, Y>;
}

static int64_t blocks_of(int64_t rows, int64_t heads, int64_t lanes) {
    const int64_t items = ls_launch_blocks(rows, heads, 1), groups = THREADS / lanes;
    return items / groups + (items % groups != 0);
}

ls_status ls_cuda_rope_check(const ls_exec *exec, const ls_rope_args *a, ls_error *err) {
    const ls_cuda_operand operands[] = {{"x", a->x, 4, a->rows == 0},
                                        {"y", a->y, ls_dtype_bytes(a->y_dtype), a->rows == 0},
                                        {"table", a->table, 4, a->rows == 0 || a->half == 0},
                                        {"part 0's bias", a->part[0].bias, 4, true},
                                        {"part 0's norm", a->part[0].norm, 4, true}};
    return ls_cuda_check("rope", exec, operands, 5, LS_WORKSPACE_HEAD, err);
}

ls_status ls_cuda_rope(const ls_exec *exec, const ls_rope_args *a, ls_error *err) {
    rope_params p = {without_table(a), ls_rope_heads(a->part, a->n_parts), {}};
    LS_CUDA_TRY(ls_cuda_rope_check(exec, a, err));
    if (a->rows == 0) return LS_OK;
    p.ways = ways_of(&p.a, a->y_stride % 4 == 0 && ls_four_fits(a->y, a->y_dtype));
    int64_t lanes;
    const void *kernel = a->y_dtype == LS_F32 ? rope_kernel_of<LS_F32>(a->head_dim, &lanes)
                                              : rope_kernel_of<LS_BF16>(a->head_dim, &lanes);
    const ls_index index[] = {{LS_WIDTH_I64, {{{"row", a->rows}, {"x stride", a->x_stride}, {"element", 4}}}},
                              {LS_WIDTH_I64, {{{"row", a->rows}, {"y stride", a->y_stride}, {"element", 4}}}}};
    const ls_launch launch = {"rope", {blocks_of(a->rows, p.heads, lanes), 1, 1}, THREADS, 0, index, 2};
    return ls_cuda_launch(exec, &launch, kernel, &p, err);
}

/* ---- rope_backward ---- */

typedef struct backward_params {
    ls_rope_backward_args a;
    int64_t heads;
    bool vector, by_lanes;
} backward_params;

template <int LANES, int RUNS, int DX>
static __global__ void __launch_bounds__(THREADS) backward_kernel(const __grid_constant__ backward_params p) {
    ls_cuda_begin();
    __shared__ float shared[THREADS / LANES][LANES * RUNS * RUN];
    const int64_t dim = p.a.head_dim;
    const head_place at = place_of<LANES>(p.a.rows, p.heads, dim);
    const int64_t row = at.is_there ? at.row : 0;
    int64_t head = at.head;
    const ls_rope_part *part = part_of(p.a.part, &head);
    float g[RUNS][RUN], b[RUNS][RUN];
    load_head<LANES, RUNS>(g, p.a.dy + row * p.a.dy_stride + at.column, NULL, at.lane, dim, p.vector);
    const turning t = turning_of<LANES, RUNS>(p.a.table, p.a.half, part->rotates, p.by_lanes, row, at.lane);
    rotate<LANES, RUNS, true>(g, shared[threadIdx.x / LANES], &t, at.lane, dim);
    /* Lanes of one warp may be of heads with and without a norm: all take part in the sums. */
    const bool normed = part->norm != NULL;
    if (normed)
        load_head<LANES, RUNS>(b, p.a.x + row * p.a.x_stride + at.column,
                               part->bias == NULL ? NULL : part->bias + head * dim, at.lane, dim, p.vector);
#pragma unroll
    for (int i = 0; i < RUNS; i++)
        for (int j = 0; j < RUN; j++) b[i][j] = normed ? b[i][j] : 0.0f;
    const float s = ls_norm_scale(sum_of_products<LANES, RUNS>(b, b), dim, p.a.eps);
    float gn[RUNS][RUN];
#pragma unroll
    for (int i = 0; i < RUNS; i++) {
        float w[RUN] = {0};
        if (normed) load_run(part->norm, (at.lane + i * LANES) * RUN, dim, p.vector, w);
        for (int j = 0; j < RUN; j++) {
            b[i][j] = ls_mul(b[i][j], s);
            gn[i][j] = ls_mul(g[i][j], w[j]);
        }
    }
    const float u = ls_div(sum_of_products<LANES, RUNS>(gn, b), (float)dim);
    if (!at.is_there) return;
    if (part->dnorm != NULL && at.lane == 0) p.a.scale[row * p.heads + at.head] = s;
#pragma unroll
    for (int i = 0; i < RUNS; i++) {
        const int64_t c = (at.lane + i * LANES) * RUN;
        if (normed)
            for (int j = 0; j < RUN; j++) g[i][j] = ls_mul(s, ls_fma(-b[i][j], u, gn[i][j]));
        if (c < dim) store_run<DX>(p.a.dx, row * p.a.dx_stride + at.column + c, dim - c, p.vector, g[i]);
    }
}

template <int DX>
static const void *backward_kernel_of(int64_t dim, int64_t *lanes) {
    *lanes = dim <= 8 * RUN ? 8 : dim <= 16 * RUN ? 16 : 32;
    if (*lanes == 8) return (const void *)backward_kernel<8, 1, DX>;
    if (*lanes == 16) return (const void *)backward_kernel<16, 1, DX>;
    return dim <= 32 * RUN ? (const void *)backward_kernel<32, 1, DX> : (const void *)backward_kernel<32, 2, DX>;
}

/* The chains of a norm's gradient. A block takes columns of a head; where they turn these are pairs, so that partners
 * are in one warp. The wide shape is as fast a block and takes twice as many columns; with few heads it leaves
 * processors idle. */
typedef ls_columns<32, 24, 6> dnorm_wide;
typedef ls_columns<16, 12, 8> dnorm_narrow;
#define DNORM_WIDE_BLOCKS 64 /* from so many on */

typedef struct dnorm_params {
    ls_rope_backward_args a;
    int64_t heads, pieces; /* pieces: of a head, at most */
} dnorm_params;

/* Blocks that the columns of a head take. */
static __host__ __device__ __forceinline__ int64_t dnorm_pieces(int64_t dim, int64_t half, int64_t columns) {
    const int64_t pairs = columns / 2;
    return (half + pairs - 1) / pairs + (dim - 2 * half + columns - 1) / columns;
}

/* A column of a block: dim where there is none. */
typedef struct dnorm_column {
    int64_t c, angle; /* angle: of a column that turns, else 0 */
    bool turns, low;
} dnorm_column;

template <int COLUMNS>
static __device__ __forceinline__ dnorm_column column_of(int64_t piece, int64_t i, int64_t dim, int64_t half) {
    constexpr int PAIRS = COLUMNS / 2;
    const int64_t turning = (half + PAIRS - 1) / PAIRS;
    if (piece >= turning) {
        const int64_t c = 2 * half + (piece - turning) * COLUMNS + i;
        return dnorm_column{c < dim ? c : dim, 0, false, false};
    }
    const int64_t angle = piece * PAIRS + i % PAIRS;
    if (angle >= half) return dnorm_column{dim, 0, false, false};
    return dnorm_column{i < PAIRS ? angle : half + angle, angle, true, i < PAIRS};
}

/* g and b s of a column. Of a pair's angle the first column's lane reads the cosine and the other's the sine. */
template <int COLUMNS>
struct dnorm_reader {
    const float *x, *dy, *scale, *table; /* of row 0 and this column; table NULL: it does not turn */
    int64_t x_stride, dy_stride, heads, table_stride;
    float bias;
    bool has_bias, low;
    struct raw {
        float x, dy, scale, angle;
    };
    __device__ __forceinline__ raw read(int64_t row) const {
        return raw{x[row * x_stride], dy[row * dy_stride], scale[row * heads],
                   table != NULL ? table[row * table_stride] : 0.0f};
    }
    __device__ __forceinline__ float2 pair(const raw &r) const {
        const float partner = __shfl_xor_sync(LS_ALL_LANES, r.dy, COLUMNS / 2);
        const float other = __shfl_xor_sync(LS_ALL_LANES, r.angle, COLUMNS / 2);
        const float turn = ls_mul(partner, low ? other : r.angle);
        const float g = table != NULL ? ls_fma(r.dy, low ? r.angle : other, low ? turn : -turn) : r.dy;
        return make_float2(g, ls_mul(has_bias ? ls_add(r.x, bias) : r.x, r.scale));
    }
};

template <class SHAPE>
static __global__ void __launch_bounds__(SHAPE::BLOCK_THREADS) dnorm_kernel(const __grid_constant__ dnorm_params p) {
    constexpr int COLUMNS = SHAPE::COLUMNS;
    extern __shared__ __align__(16) uint8_t memory[];
    ls_cuda_begin();
    const ls_rope_backward_args *a = &p.a;
    const int64_t dim = a->head_dim, of_all = blockIdx.x / p.pieces, piece = blockIdx.x % p.pieces;
    int64_t head = of_all;
    const ls_rope_part *part = part_of(a->part, &head);
    const int64_t half = part->rotates ? a->half : 0;
    if (part->dnorm == NULL || piece >= dnorm_pieces(dim, half, COLUMNS)) return;
    const dnorm_column at = column_of<COLUMNS>(piece, threadIdx.x % COLUMNS, dim, half);
    const int64_t mine = at.c < dim ? at.c : 0, column = of_all * dim + mine;
    const bool adds = threadIdx.x / 32 == SHAPE::WARPS && threadIdx.x % 32 < COLUMNS && at.c < dim;
    float *chain = &part->dnorm[head * dim + mine];
    const dnorm_reader<COLUMNS> reader = {
        .x = a->x + column,
        .dy = a->dy + column,
        .scale = a->scale + of_all,
        .table = at.turns ? a->table + (at.low ? at.angle : a->half + at.angle) : NULL,
        .x_stride = a->x_stride,
        .dy_stride = a->dy_stride,
        .heads = p.heads,
        .table_stride = 2 * a->half,
        .bias = part->bias != NULL ? part->bias[head * dim + mine] : 0.0f,
        .has_bias = part->bias != NULL,
        .low = at.low};
    const float sum = ls_columns_sum((SHAPE *)memory, reader, a->rows, adds ? *chain : 0.0f);
    if (adds) *chain = sum;
}

template <class SHAPE>
static ls_status run_dnorm(const ls_exec *exec, dnorm_params *p, ls_error *err) {
    const int64_t turning = dnorm_pieces(p->a.head_dim, p->a.half, SHAPE::COLUMNS);
    const int64_t still = dnorm_pieces(p->a.head_dim, 0, SHAPE::COLUMNS);
    p->pieces = turning > still ? turning : still;
    const ls_launch chains = {"rope_backward",
                              {ls_launch_blocks(p->heads, p->pieces, 1), 1, 1},
                              SHAPE::BLOCK_THREADS,
                              sizeof(SHAPE),
                              NULL,
                              0};
    return ls_cuda_launch(exec, &chains, (const void *)dnorm_kernel<SHAPE>, p, err);
}

ls_status ls_cuda_rope_backward(const ls_exec *exec, const ls_rope_backward_args *a, ls_error *err) {
    const char *op = "rope_backward";
    bool norms = false, trains = false, rotates = false;
    for (int64_t i = 0; i < a->n_parts; i++) {
        norms |= a->part[i].norm != NULL;
        trains |= a->part[i].dnorm != NULL;
        rotates |= a->part[i].rotates;
    }
    const ls_cuda_operand operands[] = {{"x", a->x, 4, a->rows == 0 || !norms},
                                        {"dy", a->dy, 4, a->rows == 0},
                                        {"dx", a->dx, ls_dtype_bytes(a->dx_dtype), a->rows == 0},
                                        {"table", a->table, 4, a->rows == 0 || !rotates},
                                        {"scale", a->scale, 4, a->rows == 0 || !trains}};
    backward_params p = {*a, ls_rope_heads(a->part, a->n_parts), false, false};
    LS_CUDA_TRY(ls_cuda_check(op, exec, operands, 5, LS_WORKSPACE_HEAD, err));
    if (a->rows == 0) return LS_OK;
    if (!rotates) p.a.half = 0;
    p.by_lanes = turns_by_lanes(a->table, p.a.half, a->head_dim);
    p.vector = a->head_dim % 4 == 0 && a->dy_stride % 4 == 0 && a->dx_stride % 4 == 0 &&
               (!norms || (a->x_stride % 4 == 0 && ls_four_fits(a->x, LS_F32))) && ls_four_fits(a->dy, LS_F32) &&
               ls_four_fits(a->dx, a->dx_dtype) && parts_fit(a->part, a->n_parts);
    int64_t lanes;
    const void *kernel = a->dx_dtype == LS_F32 ? backward_kernel_of<LS_F32>(a->head_dim, &lanes)
                                               : backward_kernel_of<LS_BF16>(a->head_dim, &lanes);
    const ls_index index[] = {
        {LS_WIDTH_I64, {{{"row", a->rows}, {"x stride", norms ? a->x_stride : 1}, {"element", 4}}}},
        {LS_WIDTH_I64, {{{"row", a->rows}, {"dy stride", a->dy_stride}, {"element", 4}}}},
        {LS_WIDTH_I64, {{{"row", a->rows}, {"dx stride", a->dx_stride}, {"element", 4}}}}};
    const ls_launch launch = {op, {blocks_of(a->rows, p.heads, lanes), 1, 1}, THREADS, 0, index, 3};
    LS_CUDA_TRY(ls_cuda_launch(exec, &launch, kernel, &p, err));
    if (!trains) return LS_OK;
    dnorm_params d = {p.a, p.heads, 0};
    return ls_launch_blocks(p.heads, dnorm_pieces(a->head_dim, 0, dnorm_wide::COLUMNS), 1) >= DNORM_WIDE_BLOCKS
               ? run_dnorm<dnorm_wide>(exec, &d, err)
               : run_dnorm<dnorm_narrow>(exec, &d, err);
}

/* ---- rope_norm_fold ---- */

static __global__ void __launch_bounds__(THREADS) fold_kernel(const __grid_constant__ ls_rope_norm_fold_args a) {
    ls_cuda_begin();
    const int64_t c = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    float sum = 0.0f;
    if (c >= a.head_dim) return;
    for (int64_t head = 0; head < a.n_heads; head++) sum = ls_add(sum, a.chains[head * a.head_dim + c]);
    a.out[c] = sum;
}

ls_status ls_cuda_rope_norm_fold(const ls_exec *exec, const ls_rope_norm_fold_args *a, ls_error *err) {
    const ls_cuda_operand operands[] = {{"chains", a->chains, 4, false}, {"out", a->out, 4, false}};
    const ls_index index[] = {{LS_WIDTH_I64, {{{"head", a->n_heads}, {"head dim", a->head_dim}, {"element", 4}}}}};
    const ls_launch launch = {"rope_norm_fold", {(a->head_dim - 1) / THREADS + 1, 1, 1}, THREADS, 0, index, 1};
    ls_rope_norm_fold_args p = *a;
    LS_CUDA_TRY(ls_cuda_check("rope_norm_fold", exec, operands, 2, LS_WORKSPACE_HEAD, err));
    return ls_cuda_launch(exec, &launch, (const void *)fold_kernel, &p, err);
}
