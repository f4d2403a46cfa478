/* rope on the GPU: a group of lanes takes a head of a row. Rows and heads carry no bit; chains of a norm's gradient go
 * over all rows, which other threads bring. */
#include "num/sincosf.h"
#include "op/cuda/attention_cuda.h"
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
    float n[RUNS][RUN];
    load_head<LANES, RUNS>(n, p.a.x + row * p.a.x_stride + at.column,
                           part->bias == NULL ? NULL : part->bias + head * dim, at.lane, dim, p.ways.vector);
    turn_head<LANES, RUNS>(n, &p.a, p.ways, part, row, at.lane, shared[threadIdx.x / LANES]);
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
    const turning t = {p.a.half > 0 ? p.a.table + row * 2 * p.a.half : NULL, p.a.half, part->rotates, p.by_lanes};
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

/* The chains of a norm's gradient: a block takes 32 columns of a head, where they turn 16 pairs, so that partners are
 * in one warp. Twelve warps bring g and b s of 96 rows, and read what the next ones take, while the last warp goes
 * through those of the 96 rows before. */
#define DNORM_COLUMNS 32
#define DNORM_PAIRS (DNORM_COLUMNS / 2)
#define DNORM_WARPS 12
#define DNORM_ROWS_WARP 8
#define DNORM_ROWS (DNORM_WARPS * DNORM_ROWS_WARP)
#define DNORM_THREADS (32 * (DNORM_WARPS + 1))

typedef struct dnorm_params {
    ls_rope_backward_args a;
    int64_t heads, pieces; /* pieces: of a head, at most */
} dnorm_params;

/* Blocks that the columns of a head take. */
static __host__ __device__ __forceinline__ int64_t dnorm_pieces(int64_t dim, int64_t half) {
    return (half + DNORM_PAIRS - 1) / DNORM_PAIRS + (dim - 2 * half + DNORM_COLUMNS - 1) / DNORM_COLUMNS;
}

/* What a lane of a loading warp brings: its column, dim where there is none. */
typedef struct dnorm_column {
    int64_t c, angle; /* angle: of a column that turns */
    bool turns, low;
} dnorm_column;

static __device__ __forceinline__ dnorm_column column_of(int64_t piece, int64_t lane, int64_t dim, int64_t half) {
    const int64_t turning = (half + DNORM_PAIRS - 1) / DNORM_PAIRS;
    if (piece >= turning) {
        const int64_t c = 2 * half + (piece - turning) * DNORM_COLUMNS + lane;
        return dnorm_column{c < dim ? c : dim, 0, false, false};
    }
    const int64_t angle = piece * DNORM_PAIRS + lane % DNORM_PAIRS;
    if (angle >= half) return dnorm_column{dim, 0, false, false};
    return dnorm_column{lane < DNORM_PAIRS ? angle : half + angle, angle, true, lane < DNORM_PAIRS};
}

/* What a lane has read of its rows. */
typedef struct dnorm_rows {
    float dy[DNORM_ROWS_WARP], x[DNORM_ROWS_WARP], scale[DNORM_ROWS_WARP], cosine[DNORM_ROWS_WARP],
        sine[DNORM_ROWS_WARP];
} dnorm_rows;

/* Rows behind the last are the last once more: the chain ends before them. */
static __device__ __forceinline__ void read_rows(dnorm_rows *out, const dnorm_params *p, const dnorm_column *at,
                                                 int64_t head, int64_t first) {
    const ls_rope_backward_args *a = &p->a;
    const int64_t column = head * a->head_dim + (at->c < a->head_dim ? at->c : 0);
#pragma unroll
    for (int i = 0; i < DNORM_ROWS_WARP; i++) {
        const int64_t row = first + i * DNORM_WARPS, r = row < a->rows ? row : a->rows - 1;
        out->dy[i] = a->dy[r * a->dy_stride + column];
        out->x[i] = a->x[r * a->x_stride + column];
        out->scale[i] = a->scale[r * p->heads + head];
        out->cosine[i] = at->turns ? a->table[r * 2 * a->half + at->angle] : 0.0f;
        out->sine[i] = at->turns ? a->table[r * 2 * a->half + a->half + at->angle] : 0.0f;
    }
}

static __global__ void __launch_bounds__(DNORM_THREADS) dnorm_kernel(const __grid_constant__ dnorm_params p) {
    ls_cuda_begin();
    __shared__ float g[2][DNORM_ROWS][DNORM_COLUMNS], n[2][DNORM_ROWS][DNORM_COLUMNS];
    const ls_rope_backward_args *a = &p.a;
    const int64_t dim = a->head_dim, of_all = blockIdx.x / p.pieces, piece = blockIdx.x % p.pieces;
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    int64_t head = of_all;
    const ls_rope_part *part = part_of(a->part, &head);
    const int64_t half = part->rotates ? a->half : 0;
    if (part->dnorm == NULL || piece >= dnorm_pieces(dim, half)) return;
    const dnorm_column at = column_of(piece, lane, dim, half);
    const bool is_there = at.c < dim, is_chain = warp == DNORM_WARPS;
    const float bias = part->bias != NULL && is_there ? part->bias[head * dim + at.c] : 0.0f;
    float chain = is_chain && is_there ? part->dnorm[head * dim + at.c] : 0.0f;
    const int64_t blocks = (a->rows + DNORM_ROWS - 1) / DNORM_ROWS;
    dnorm_rows next;
    if (!is_chain) read_rows(&next, &p, &at, of_all, warp);
    for (int64_t k = 0; k <= blocks; k++) {
        if (!is_chain && k < blocks) {
#pragma unroll
            for (int i = 0; i < DNORM_ROWS_WARP; i++) {
                const int r = i * DNORM_WARPS + warp;
                const float own = next.dy[i];
                const float turn = ls_mul(__shfl_xor_sync(LS_ALL_LANES, own, DNORM_PAIRS), next.sine[i]);
                const float b = part->bias != NULL ? ls_add(next.x[i], bias) : next.x[i];
                g[k % 2][r][lane] = at.turns ? ls_fma(own, next.cosine[i], at.low ? turn : -turn) : own;
                n[k % 2][r][lane] = ls_mul(b, next.scale[i]);
            }
            if (k + 1 < blocks) read_rows(&next, &p, &at, of_all, (k + 1) * DNORM_ROWS + warp);
        }
        if (is_chain && k > 0) {
            const int64_t left = a->rows - (k - 1) * DNORM_ROWS;
            const int rows = left < DNORM_ROWS ? (int)left : DNORM_ROWS;
#pragma unroll 16
            for (int r = 0; r < rows; r++) chain = ls_fma(g[(k - 1) % 2][r][lane], n[(k - 1) % 2][r][lane], chain);
        }
        __syncthreads();
    }
    if (is_chain && is_there) part->dnorm[head * dim + at.c] = chain;
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
    const int64_t turning = dnorm_pieces(a->head_dim, p.a.half), still = dnorm_pieces(a->head_dim, 0);
    const int64_t pieces = turning > still ? turning : still;
    const ls_launch chains = {op, {ls_launch_blocks(p.heads, pieces, 1), 1, 1}, DNORM_THREADS, 0, index, 3};
    dnorm_params d = {p.a, p.heads, pieces};
    return ls_cuda_launch(exec, &chains, (const void *)dnorm_kernel, &d, err);
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
