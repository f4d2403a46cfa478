/* One token of each sequence through a Mamba-1 mixer on the GPU. in_proj, the convolution and x_proj are the kernels of
 * their ops. The norms of dt, B and C, dt_proj and the scan are one: a step needs nothing of other channels but B and
 * C, so that each block makes the norms of its rows itself and goes on from its part of dt_proj.
 *
 * A block has some strips of eight channels and a tile of 16 spans; a warp has a strip, both for the product and for
 * the scan. All but what x_proj wrote is on its way before the kernel waits: whatever came before the kernel of x_proj
 * ended before that one let this one start (dev/cuda.h). */
#include <cuda_pipeline_primitives.h>

#include "op/cuda/cuda_ops.h"
#include "op/cuda/mma16_cuda.h"
#include "op/cuda/ring_cuda.h"
#include "op/cuda/rmsnorm_cuda.h"
#include "op/cuda/scan_cuda.h"
#include "op/gemm_cuda.h"
#include "op/mamba_step.h"

#define TILE 16 /* spans */
#define STRIP LS_WARP_CHANNELS
#define STRIPS_MAX 5
#define STATES 16
#define RANK_MAX 256
#define STEPS_MAX (RANK_MAX / 16)
#define STEPS_FEW 10 /* leave registers for all that waits */
#define PAD 8        /* elements between normalised rows: fragments of eight rows meet in no bank */
/* Up to so many spans the one kernel is faster than the ops in turn, measured on an H200 (docs/lab/gpu-models.md). */
#define SPANS_MAX 32
/* Blocks have as many strips as give every multiprocessor of an H100 no more than one block of a tile. */
#define BLOCKS_WANTED 132

typedef struct tail_params {
    ls_scan_args scan;
    ls_rmsnorm_args norm[3];
    const uint16_t *w; /* [dim][rank] */
    int64_t rank;
    uint32_t blocks;       /* of channels */
    int32_t strips, spans; /* of a block */
    const ls_fault *fault;
} tail_params;

/* A span as its block keeps it. */
typedef struct turn {
    int64_t row;
    int32_t slot; /* < 0: nothing to do */
    bool begun;   /* there is a state to read */
} turn;

/* Of one warp: a row of its channels for each span. */
typedef struct exchange {
    float u[TILE][STRIP], z[TILE][STRIP];
    float dt[TILE][STRIP];
} exchange;

/* Shared memory of a block: states, as the lanes of each warp have them; exchanges; B and C; weights of the norms,
 * those of B and C first; the rows of the product. */
static __host__ __device__ __forceinline__ int64_t states_bytes(const tail_params *p) {
    return (int64_t)p->strips * p->spans * 32 * 16;
}

static int64_t shared_bytes(const tail_params *p) {
    return states_bytes(p) + p->strips * (int64_t)sizeof(exchange) + TILE * (2 * STATES * 4 + (p->rank + PAD) * 2) +
           (2 * STATES + p->rank) * 4;
}

static __device__ __forceinline__ turn turn_of(const ls_span *span) {
    turn t = {0, -1, false};
    if (span->n_rows > 0 && span->slot >= 0) t = turn{span->row, span->slot, span->pos > 0};
    return t;
}

static __device__ __forceinline__ void load8(float to[8], const float *from) {
    const float4 low = *(const float4 *)from, high = *(const float4 *)(from + 4);
    to[0] = low.x, to[1] = low.y, to[2] = low.z, to[3] = low.w;
    to[4] = high.x, to[5] = high.y, to[6] = high.z, to[7] = high.w;
}

/* ---- norms ---- */

/* Eight neighbours of a norm's row. */
typedef struct piece {
    const ls_rmsnorm_args *a;
    int at; /* < 0: none */
} piece;

/* A lane has piece `lane` of dt; lanes 16 to 19 have one of B or C besides. */
static __device__ __forceinline__ piece piece_of_dt(const tail_params *p, int lane) {
    return piece{&p->norm[0], 8 * lane < p->rank ? 8 * lane : -1};
}
static __device__ __forceinline__ piece piece_of_bc(const tail_params *p, int lane) {
    return piece{&p->norm[lane < 18 ? 1 : 2], lane / 4 == 4 ? lane % 2 * 8 : -1};
}

static __device__ __forceinline__ void load_piece(float to[8], const piece *of, int64_t row) {
#pragma unroll
    for (int i = 0; i < 8; i++) to[i] = 0.0f;
    if (of->at >= 0) load8(to, (const float *)of->a->x + row * of->a->x_stride + of->at);
}

/* The run of num/sum.h that eight neighbouring chains of at most one element are: j += j + 4, then j + 2 and j + 1. */
static __device__ __forceinline__ float run_of(const float x[8]) {
    float q[4];
#pragma unroll
    for (int j = 0; j < 4; j++) q[j] = ls_add(ls_fma(x[j], x[j], 0.0f), ls_fma(x[j + 4], x[j + 4], 0.0f));
    return ls_add(ls_add(q[0], q[2]), ls_add(q[1], q[3]));
}

static __device__ __forceinline__ void normalise(float x[8], const float *from, float scale) {
    float w[8];
    load8(w, from);
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] = ls_mul(ls_mul(x[i], scale), w[i]);
}

/* One row's norms: dt rounded to bf16 for the product, B and C side by side. Runs are lanes and fold by halves; of B
 * and C all but the first two are +0, which an add of squares leaves as it is. Half of the lanes make dt's scale, the
 * others those of B and C, with one division and root for all. */
static __device__ __forceinline__ void norm_row(const tail_params *p, float dt[8], float bc[8], const float *w,
                                                uint16_t *dt_to, float *bc_to) {
    const int lane = (int)(threadIdx.x % 32), at = 8 * (lane - 16);
    float q = run_of(dt), r = run_of(bc);
    r = ls_add(r, __shfl_xor_sync(LS_ALL_LANES, r, 1));
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2) q = ls_add(q, __shfl_xor_sync(LS_ALL_LANES, q, lanes));
    const bool of_dt = lane < 16;
    const float scale = ls_norm_scale(of_dt ? q : r, of_dt ? p->rank : STATES,
                                      p->norm[of_dt       ? 0
                                              : lane < 18 ? 1
                                                          : 2]
                                          .eps);
    const float dt_scale = __shfl_sync(LS_ALL_LANES, scale, 0);
    if (8 * lane < p->rank) {
        uint32_t pair[4];
        normalise(dt, &w[2 * STATES + 8 * lane], dt_scale);
#pragma unroll
        for (int i = 0; i < 4; i++)
            pair[i] = (uint32_t)ls_narrow_one<LS_BF16>(dt[2 * i]) | (uint32_t)ls_narrow_one<LS_BF16>(dt[2 * i + 1])
                                                                        << 16;
        *(uint4 *)(dt_to + 8 * lane) = make_uint4(pair[0], pair[1], pair[2], pair[3]);
    }
    if (lane / 4 == 4) {
        normalise(bc, &w[at], scale);
        *(float4 *)(bc_to + at) = make_float4(bc[0], bc[1], bc[2], bc[3]);
        *(float4 *)(bc_to + at + 4) = make_float4(bc[4], bc[5], bc[6], bc[7]);
    }
}

/* A warp's rows of the block, each loaded while the one before it is normalised. */
static __device__ __forceinline__ void norm_rows(const tail_params *p, const turn *turns, int n, const float *w,
                                                 uint16_t *rows, int pitch, float (*bc)[2 * STATES]) {
    const int lane = (int)(threadIdx.x % 32), step = (int)blockDim.x / 32;
    const piece of_dt = piece_of_dt(p, lane), of_bc = piece_of_bc(p, lane);
    float dt[8], few[8], next_dt[8], next_few[8];
    int k = (int)threadIdx.x / 32;
    if (k >= n) return;
    load_piece(next_dt, &of_dt, turns[k].row);
    load_piece(next_few, &of_bc, turns[k].row);
#pragma unroll 1
    for (; k < n; k += step) {
#pragma unroll
        for (int i = 0; i < 8; i++) dt[i] = next_dt[i], few[i] = next_few[i];
        if (k + step < n) {
            load_piece(next_dt, &of_dt, turns[k + step].row);
            load_piece(next_few, &of_bc, turns[k + step].row);
        }
        norm_row(p, dt, few, w, rows + k * pitch, bc[k]);
    }
}

/* ---- the kernel ---- */

/* u and z of the warp's channels, and the states, all on their way to where the lanes that fetched them, or a barrier
 * later the whole warp, read them. */
static __device__ __forceinline__ void send_for_spans(const ls_scan_args *a, const turn *turns, int n, float4 *before,
                                                      exchange *x, int64_t first) {
    const int lane = (int)(threadIdx.x % 32);
#pragma unroll 1
    for (int k = 0; k < n; k++) {
        const turn t = turns[k];
        if (t.slot < 0) continue;
        if (t.begun)
            __pipeline_memcpy_async(&before[k * 32 + lane],
                                    (const float *)ls_pool_at(&a->state, t.slot) + first * STATES + 4 * lane, 16);
        else
            before[k * 32 + lane] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
#pragma unroll 1
    for (int k = lane / 4; k < n; k += 8) {
        const int64_t row = turns[k].row, column = first + lane % 2 * 4;
        const float *from =
            lane % 4 < 2 ? (const float *)a->u + row * a->u_stride : (const float *)a->z + row * a->z_stride;
        __pipeline_memcpy_async(&(lane % 4 < 2 ? x->u : x->z)[k][lane % 2 * 4], from + column, 16);
    }
    __pipeline_commit();
}

/* The scan's step of a tile for a warp's eight channels; lane t has states t % 4 * 4 and on of channel t / 4. The first
 * of a channel's lanes leaves the sum over states where its own first state was. */
static __device__ __forceinline__ void scan_tile(const ls_scan_args *a, const turn *turns, int n, float4 *before,
                                                 const float (*bc)[2 * STATES], const exchange *x, const float rates[4],
                                                 int64_t first) {
    const int lane = (int)(threadIdx.x % 32), group = lane % 4, slot = lane / 4;
    float biggest = 0.0f;
#pragma unroll
    for (int s = 0; s < 4; s++) biggest = ls_max_nan(biggest, fabsf(rates[s]));
    const float safe = ls_safe_dt<4>(biggest);
#pragma unroll 1
    for (int k = 0; k < n; k++) {
        const turn t = turns[k];
        if (t.slot < 0) continue;
        const float dt = x->dt[k][slot], v = ls_mul(dt, x->u[k][slot]);
        const float4 h = before[k * 32 + lane];
        const float4 b4 = *(const float4 *)&bc[k][4 * group], c4 = *(const float4 *)&bc[k][STATES + 4 * group];
        const float b[4] = {b4.x, b4.y, b4.z, b4.w}, c[4] = {c4.x, c4.y, c4.z, c4.w};
        states<4> g = {{h.x, h.y, h.z, h.w}, {rates[0], rates[1], rates[2], rates[3]}};
        const float part = __all_sync(LS_ALL_LANES, fabsf(dt) <= safe) ? step<4, true, true>(&g, dt, v, b, c, 4)
                                                                       : step<4, true, false>(&g, dt, v, b, c, 4);
        store_group<4, true>((float *)ls_pool_at(&a->state, t.slot) + first * STATES + 4 * lane, g.h, 4);
        const float y = ls_quad_sum(part);
        if (group == 0) before[k * 32 + lane].x = y; /* what the other lanes read stays as it is */
    }
}

template <int STEPS, int OUT>
static __global__ void __launch_bounds__(32 * STRIPS_MAX, 4) tail_kernel(const __grid_constant__ tail_params p) {
    extern __shared__ __align__(16) uint8_t memory[];
    __shared__ turn turns[TILE];
    const ls_scan_args *a = &p.scan;
    const int lane = (int)(threadIdx.x % 32), warp = (int)threadIdx.x / 32, warps = p.strips;
    const int64_t from = (int64_t)(blockIdx.x / p.blocks) * TILE;
    const int n = (int)(a->n_spans - from < TILE ? a->n_spans - from : TILE);
    const int64_t strip = (int64_t)(blockIdx.x % p.blocks) * p.strips + warp;
    const bool works = strip * STRIP < a->dim;
    /* One of a span's channels, the same for all spans. */
    const int64_t first = works ? strip * STRIP : 0, channel = first + lane % STRIP;
    float4 *before = (float4 *)memory + warp * p.spans * 32;
    exchange *x = (exchange *)(memory + states_bytes(&p)) + warp;
    float(*bc)[2 * STATES] = (float(*)[2 * STATES])(memory + states_bytes(&p) + warps * sizeof(exchange));
    float *weights = (float *)(bc + TILE);
    uint16_t *rows = (uint16_t *)(weights + 2 * STATES + p.rank);
    const int pitch = (int)p.rank + PAD;

    const bool sound = p.fault->code == LS_FAULT_NONE;
    if (threadIdx.x < TILE)
        turns[threadIdx.x] =
            sound && (int)threadIdx.x < n ? turn_of(&a->spans[from + threadIdx.x]) : turn{0, -1, false};
#pragma unroll 1
    for (int i = threadIdx.x; i < p.rank; i += blockDim.x) weights[2 * STATES + i] = p.norm[0].w[i];
    if (threadIdx.x < 2 * STATES) weights[threadIdx.x] = p.norm[1 + threadIdx.x / STATES].w[threadIdx.x % STATES];
    __syncthreads();
    send_for_spans(a, turns, n, before, x, first);
    uint32_t w[STEPS][2];
    float rates[4];
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
        const uint16_t *at = p.w + (first + lane / 4) * p.rank + 16 * s + lane % 4 * 2;
        w[s][0] = 16 * s < p.rank ? *(const uint32_t *)at : 0;
        w[s][1] = 16 * s < p.rank ? *(const uint32_t *)(at + 8) : 0;
    }
    load_group<4, true>(rates, a->a2 + first * STATES + 4 * lane, 4);
    const float bias = a->dt_bias != NULL ? a->dt_bias[channel] : 0.0f, skip = a->d != NULL ? a->d[channel] : 0.0f;
    ls_cuda_begin();
    if (!sound) {
        __pipeline_wait_prior(0);
        return;
    }
    norm_rows(&p, turns, n, weights, rows, pitch, bc);
    __pipeline_wait_prior(0);
    __syncthreads();
    if (!works) return;

    /* Rows that nobody normalised are products of whatever lies there, which nobody uses. */
    float d[4] = {0, 0, 0, 0};
    const uint16_t *mine = rows + lane / 4 * pitch + lane % 4 * 2;
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
        if (16 * s >= p.rank) break;
        const uint32_t four[4] = {*(const uint32_t *)(mine + 16 * s), *(const uint32_t *)(mine + 8 * pitch + 16 * s),
                                  *(const uint32_t *)(mine + 16 * s + 8),
                                  *(const uint32_t *)(mine + 8 * pitch + 16 * s + 8)};
        ls_mma16(d, four, w[s]);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) x->dt[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2] = d[i];
    __syncwarp();
#pragma unroll 1
    for (int at = 0; at < n * STRIP; at += 32) { /* of all lanes: four spans */
        const int k = at / STRIP + lane / STRIP;
        float dt[1] = {k < n && turns[k].slot >= 0 ? ls_canonical(x->dt[k][lane % STRIP]) : 0.0f};
        if (a->dt_bias != NULL) dt[0] = ls_add(dt[0], bias);
        ls_softplus_all<1>(dt);
        if (k < n) x->dt[k][lane % STRIP] = dt[0];
    }
    __syncwarp();
    scan_tile(a, turns, n, before, bc, x, rates, first);
    __syncwarp();
#pragma unroll 1
    for (int at = 0; at < n * STRIP; at += 32) {
        const int k = at / STRIP + lane / STRIP;
        const bool there = k < n && turns[k].slot >= 0;
        float z[1] = {there ? x->z[k][lane % STRIP] : 0.0f};
        ls_silu_all<1>(z);
        if (!there) continue;
        float y = before[(int64_t)k * 32 + lane % STRIP * 4].x;
        if (a->d != NULL) y = ls_fma(skip, x->u[k][lane % STRIP], y);
        ls_store_one<OUT>(a->out, turns[k].row * a->out_stride + channel, ls_mul(y, z[0]));
    }
}

/* ---- the host's side ---- */

static bool aligned(const void *memory, int64_t bytes) { return (uintptr_t)memory % (uintptr_t)bytes == 0; }

static bool norm_fits(const ls_rmsnorm_args *a, ls_dtype y, int64_t dim) {
    return a->x_dtype == LS_F32 && a->y_dtype == y && a->dim == dim && a->x_stride % 4 == 0 && aligned(a->x, 16) &&
           aligned(a->w, 16);
}

/* Shapes and types of the one kernel; others are ops in turn. Its spans are those that conv has checked. */
static bool tail_takes(const ls_exec *exec, const ls_mamba_step_args *a) {
    const ls_scan_args *scan = &a->scan;
    const ls_gemm_args *dt = &a->dt_proj;
    const int64_t rank = dt->weight->k;
    return exec->fault != NULL && scan->n_spans > 0 && scan->n_spans <= SPANS_MAX && scan->in_dtype == LS_F32 &&
           !scan->dt_activated && scan->n_states == STATES && scan->dim % STRIP == 0 && scan->z != NULL &&
           scan->u_stride % 4 == 0 && aligned(scan->u, 16) && scan->z_stride % 4 == 0 && aligned(scan->z, 16) &&
           dt->profile == LS_PROFILE_MMA16 && dt->bias == NULL && dt->range == NULL && dt->weight->n == scan->dim &&
           rank % 16 == 0 && rank <= RANK_MAX && norm_fits(&a->norms.part[0], LS_BF16, rank) &&
           norm_fits(&a->norms.part[1], LS_F32, STATES) && norm_fits(&a->norms.part[2], LS_F32, STATES);
}

template <int STEPS>
static const void *kernel_of(ls_dtype out) {
    return out == LS_F32 ? (const void *)tail_kernel<STEPS, LS_F32> : (const void *)tail_kernel<STEPS, LS_BF16>;
}

static ls_status tail(const ls_exec *exec, const ls_mamba_step_args *a, ls_error *err) {
    const ls_scan_args *scan = &a->scan;
    const ls_rmsnorm_args *part = a->norms.part;
    const char *op = "mamba_step";
    const ls_cuda_operand operands[] = {{"u", scan->u, 16, false},
                                        {"z", scan->z, 16, false},
                                        {"out", scan->out, ls_dtype_bytes(scan->out_dtype), false},
                                        {"a2", scan->a2, 16, false},
                                        {"dt_bias", scan->dt_bias, 4, true},
                                        {"d", scan->d, 4, true},
                                        {"state", scan->state.base, 16, scan->state.n_entries == 0},
                                        {"spans", scan->spans, 8, false},
                                        {"dt, B and C", part[0].x, 16, false},
                                        {"B", part[1].x, 16, false},
                                        {"C", part[2].x, 16, false},
                                        {"dt_norm", part[0].w, 16, false},
                                        {"b_norm", part[1].w, 16, false},
                                        {"c_norm", part[2].w, 16, false},
                                        {"dt_proj", a->dt_proj.weight->panels, 4, false}};
    const int64_t strips = scan->dim / STRIP;
    ls_fault *fault;
    tail_params p;
    LS_CUDA_TRY(
        ls_cuda_check(op, exec, operands, (int64_t)(sizeof operands / sizeof operands[0]), LS_WORKSPACE_HEAD, err));
    LS_CUDA_TRY(ls_cuda_mma16_proven(err));
    LS_CUDA_TRY(ls_cuda_fault_begin(op, exec, &fault, err));
    p.scan = *scan;
    for (int i = 0; i < 3; i++) p.norm[i] = part[i];
    p.w = (const uint16_t *)a->dt_proj.weight->panels;
    p.rank = a->dt_proj.weight->k;
    p.strips = (int32_t)((strips - 1) / BLOCKS_WANTED + 1);
    if (p.strips > STRIPS_MAX) p.strips = STRIPS_MAX;
    p.spans = (int32_t)(scan->n_spans < TILE ? scan->n_spans : TILE);
    p.blocks = (uint32_t)((strips - 1) / p.strips + 1);
    p.fault = fault;
    const ls_index index[] = {
        {LS_WIDTH_I64, {{{"row", scan->rows}, {"u stride", scan->u_stride}, {"element", 4}}}},
        {LS_WIDTH_I64, {{{"row", scan->rows}, {"z stride", scan->z_stride}, {"element", 4}}}},
        {LS_WIDTH_I64, {{{"row", scan->rows}, {"out stride", scan->out_stride}, {"element", 4}}}},
        {LS_WIDTH_I64, {{{"row", scan->rows}, {"dt stride", part[0].x_stride}, {"element", 4}}}},
        {LS_WIDTH_I64, {{{"row", scan->rows}, {"b stride", part[1].x_stride}, {"element", 4}}}},
        {LS_WIDTH_I64, {{{"row", scan->rows}, {"c stride", part[2].x_stride}, {"element", 4}}}},
        {LS_WIDTH_I64, {{{"slot", scan->state.n_entries}, {"state stride in bytes", scan->state.stride}}}},
        {LS_WIDTH_I64, {{{"channel", scan->dim}, {"rank", p.rank}, {"element", 4}}}}};
    const ls_launch launch = {op,
                              {ls_launch_blocks((scan->n_spans - 1) / TILE + 1, p.blocks, 1), 1, 1},
                              32 * p.strips,
                              shared_bytes(&p),
                              index,
                              (int64_t)(sizeof index / sizeof index[0])};
    return ls_cuda_launch_within(
        exec, &launch, LS_HOPPER_SHARED_MAX,
        p.rank <= 16 * STEPS_FEW ? kernel_of<STEPS_FEW>(scan->out_dtype) : kernel_of<STEPS_MAX>(scan->out_dtype), &p,
        err);
}

ls_status ls_cuda_mamba_step(const ls_exec *exec, const ls_mamba_step_args *a, ls_error *err) {
    bool hopper;
    LS_CUDA_TRY(ls_is_hopper(&hopper, "mamba_step", err));
    LS_CUDA_TRY(ls_cuda_gemm(exec, &a->in_proj, err));
    LS_CUDA_TRY(ls_cuda_conv1d(exec, &a->conv, err));
    LS_CUDA_TRY(ls_cuda_gemm(exec, &a->x_proj, err));
    if (hopper && tail_takes(exec, a)) return tail(exec, a, err);
    LS_CUDA_TRY(ls_cuda_rmsnorm_parts(exec, &a->norms, err));
    LS_CUDA_TRY(ls_cuda_gemm(exec, &a->dt_proj, err));
    return ls_cuda_scan(exec, &a->scan, err);
}
