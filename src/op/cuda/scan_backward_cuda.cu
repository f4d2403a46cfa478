/* Gradient of the scan on the GPU. One kernel walks each span forwards and keeps the state every KEEP tokens; one walks
 * the pieces backwards, each piece forwards once more into shared memory, then in reverse; two add the shares of
 * channel blocks and spans in their fixed order. */
#include "dev/device.h"
#include "op/cuda/check_cuda.h"
#include "op/cuda/cuda_ops.h"
#include "op/cuda/scan_backward_runs_cuda.h"
#include "op/scan.h"

#define KEEP LS_BACK_KEEP
#define WARPS LS_BACK_WARPS
#define SUM_THREADS 256

/* Place of a thread: its channel (the last one again where the block hangs over) and its group of states. */
typedef struct place {
    int64_t span_i, channel;
    int block, lane, warp, group, slot, base, n;
    bool active;
} place;

template <int GROUP>
static __device__ __forceinline__ place place_of(const back_params *p) {
    place at;
    const int per = ((int)p->a.n_states + 3) / 4;
    at.block = (int)(blockIdx.x % p->plan.n_blocks);
    at.span_i = blockIdx.x / p->plan.n_blocks;
    at.lane = (int)(threadIdx.x % 32);
    at.warp = (int)(threadIdx.x / 32);
    at.group = at.lane % 4;
    at.slot = at.warp * LS_WARP_CHANNELS + at.lane / 4;
    at.base = at.group * per;
    at.n = (int)p->a.n_states - at.base < per ? (int)p->a.n_states - at.base : per;
    if (at.n < 0) at.n = 0;
    at.channel = (int64_t)at.block * LS_SCAN_SUM_BLOCK + at.slot;
    at.active = at.channel < p->a.dim;
    if (!at.active) at.channel = p->a.dim - 1;
    return at;
}

static __device__ __forceinline__ float *kept_state(const back_params *p, const place *at, const ls_span *span,
                                                    int64_t piece) {
    return ls_kept_state(p, span, at->span_i, piece, at->channel, at->base);
}

/* dt and v of a token. */
template <int IN>
static __device__ __forceinline__ float2 step_sizes(const ls_scan_backward_args *a, int64_t row, int64_t channel) {
    const float raw = ls_load_one<IN>(a->dt_raw, row * a->dt_stride + channel);
    const float dt = ls_dt_of(raw, a->dt_bias, channel, a->dt_activated);
    return make_float2(dt, ls_mul(dt, ls_load_one<IN>(a->u, row * a->u_stride + channel)));
}

/* The thread's states of its span in a tensor of them; +0 where there is none. */
template <int GROUP>
static __device__ __forceinline__ void load_states(float *to, const float *states, const back_params *p,
                                                   const place *at) {
    const int64_t from = ls_span_state(p, at->span_i, at->channel, at->base);
#pragma unroll
    for (int s = 0; s < GROUP; s++) to[s] = states != NULL && s < at->n ? states[from + s] : 0.0f;
}

/* h before the first token of every piece. */
template <int GROUP, int IN>
static __global__ void __launch_bounds__(32 * WARPS) keep_kernel(const __grid_constant__ back_params p) {
    ls_cuda_begin();
    __shared__ float2 dtv[KEEP][LS_SCAN_SUM_BLOCK];
    const ls_scan_backward_args *a = &p.a;
    const place at = place_of<GROUP>(&p);
    const ls_span *span = &a->spans[at.span_i];
    float h[GROUP], a2[GROUP];
    if (p.fault->code != LS_FAULT_NONE || span->slot < 0) return;
    load_states<GROUP>(h, a->initial, &p, &at);
#pragma unroll
    for (int s = 0; s < GROUP; s++) {
        a2[s] = s < at.n ? a->a2[at.channel * a->n_states + at.base + s] : 0.0f;
    }
    for (int64_t t = 0; t < span->n_rows; t += KEEP) {
        const int n_tokens = span->n_rows - t < KEEP ? (int)(span->n_rows - t) : KEEP;
        float *kept = kept_state(&p, &at, span, t / KEEP);
#pragma unroll
        for (int s = 0; s < GROUP; s++)
            if (s < at.n && at.active) kept[s] = h[s];
        __syncwarp();
        for (int i = at.group; i < n_tokens; i += 4) dtv[i][at.slot] = step_sizes<IN>(a, span->row + t + i, at.channel);
        __syncwarp();
        for (int i = 0; i < n_tokens; i++) {
            const float2 d = dtv[i][at.slot];
#pragma unroll
            for (int s = 0; s < GROUP; s++)
                if (s < at.n)
                    h[s] = ls_fma(ls_exp2_product(d.x, a2[s]), h[s],
                                  ls_mul(d.y, ls_load_one<IN>(a->b, (span->row + t + i) * a->b_stride + at.base + s)));
        }
    }
}

/* What a token and a channel need in the walk back. */
typedef struct token_terms {
    float dt, u, dy, slope; /* slope: d dt / d dt_raw */
} token_terms;

/* Tokens that are walked back at a time: a piece where its states fit shared memory, a part of it for large groups. */
#define WALKED(group) ((group) <= 16 ? KEEP : KEEP / 4)

template <int GROUP>
struct back_tile {
    float h[WALKED(GROUP)][GROUP][32 * WARPS]; /* states after each token */
    token_terms terms[WALKED(GROUP)][LS_SCAN_SUM_BLOCK];
    float b[WALKED(GROUP)][4 * GROUP], c[WALKED(GROUP)][4 * GROUP];
    float sums[WARPS][WALKED(GROUP)][2][4 * GROUP]; /* the warps' shares of db and dcc */
};

/* x summed over the warp's eight channels by halves 4, 2, 1, in every lane. */
static __device__ __forceinline__ float channel_sum(float x) {
    x = ls_add(x, __shfl_xor_sync(LS_ALL_LANES, x, 16));
    x = ls_add(x, __shfl_xor_sync(LS_ALL_LANES, x, 8));
    return ls_add(x, __shfl_xor_sync(LS_ALL_LANES, x, 4));
}

/* h through n tokens from `row` on, without a trace. */
template <int GROUP, int IN>
static __device__ __forceinline__ void pass_over(const ls_scan_backward_args *a, const place *at, float *h,
                                                 const float *a2, int64_t row, int n) {
    for (int i = 0; i < n; i++) {
        const float2 dtv = step_sizes<IN>(a, row + i, at->channel);
#pragma unroll
        for (int s = 0; s < GROUP; s++)
            if (s < at->n)
                h[s] = ls_fma(ls_exp2_product(dtv.x, a2[s]), h[s],
                              ls_mul(dtv.y, ls_load_one<IN>(a->b, (row + i) * a->b_stride + at->base + s)));
    }
}

/* Forwards: states into shared memory, y for dz. */
template <int GROUP, int IN>
static __device__ __forceinline__ void walk_forwards(const back_params *p, const place *at, back_tile<GROUP> *tile,
                                                     float *h, const float *a2, int64_t row, int n_tokens) {
    const ls_scan_backward_args *a = &p->a;
    for (int i = 0; i < n_tokens; i++) {
        const token_terms *terms = &tile->terms[i][at->slot];
        const float dt = terms->dt, u = terms->u, v = ls_mul(dt, u);
        float part = 0.0f;
#pragma unroll
        for (int s = 0; s < GROUP; s++) {
            if (s < at->n) {
                h[s] = ls_fma(ls_exp2_product(dt, a2[s]), h[s], ls_mul(v, tile->b[i][at->base + s]));
                part = ls_fma(h[s], tile->c[i][at->base + s], part);
            }
            tile->h[i][s][threadIdx.x] = h[s];
        }
        if (a->z == NULL) continue;
        float y = ls_quad_sum(part);
        if (a->d != NULL) y = ls_fma(a->d[at->channel], u, y);
        if (i % 4 == at->group && at->active) {
            const float z = ls_load_one<IN>(a->z, (row + i) * a->z_stride + at->channel);
            const float sig = ls_sigmoid(z), sl = ls_silu(z);
            const float dout = ls_load_either(a->dout_bf16, a->dout, (row + i) * a->dout_stride + at->channel);
            ls_store_either(a->out_dtype == LS_BF16, a->dz, (row + i) * a->dz_stride + at->channel,
                            ls_mul(ls_mul(dout, y), ls_fma(sl, ls_sub(1.0f, sig), sig)));
        }
    }
}

/* What the walk back carries from token to token. */
template <int GROUP>
struct carried {
    float g[GROUP], da2[GROUP], dd, dbias;
};

template <int GROUP>
static __device__ __forceinline__ void walk_backwards(const back_params *p, const place *at, back_tile<GROUP> *tile,
                                                      carried<GROUP> *k, const float *before, const float *a2,
                                                      int64_t row, int n_tokens) {
    const ls_scan_backward_args *a = &p->a;
    for (int i = n_tokens - 1; i >= 0; i--) {
        const token_terms terms = tile->terms[i][at->slot];
        const float v = ls_mul(terms.dt, terms.u);
        float V = 0.0f, T = 0.0f;
#pragma unroll
        for (int s = 0; s < GROUP; s++) {
            float share_b = 0.0f, share_c = 0.0f;
            if (s < at->n) {
                const float b = tile->b[i][at->base + s], c = tile->c[i][at->base + s], h = tile->h[i][s][threadIdx.x];
                const float h_before = i > 0 ? tile->h[i - 1][s][threadIdx.x] : before[s];
                const float decay = ls_exp2_product(terms.dt, a2[s]), x = ls_mul(terms.dt, a2[s]);
                const bool bounded = !(x >= -126.0f && x <= 127.0f);
                k->g[s] = ls_fma(terms.dy, c, k->g[s]);
                V = ls_fma(k->g[s], b, V);
                const float w = bounded ? 0.0f : ls_mul(k->g[s], ls_mul(decay, h_before));
                T = ls_fma(w, a2[s], T);
                k->da2[s] = ls_fma(w, terms.dt, k->da2[s]);
                share_c = at->active ? ls_mul(terms.dy, h) : 0.0f;
                share_b = at->active ? ls_mul(k->g[s], v) : 0.0f;
                k->g[s] = ls_mul(k->g[s], decay);
            }
            /* All lanes exchange, also those whose group has fewer states. */
            const float sum_b = channel_sum(share_b), sum_c = channel_sum(share_c);
            if (at->lane < 4 && s < at->n) {
                tile->sums[at->warp][i][0][at->base + s] = sum_b;
                tile->sums[at->warp][i][1][at->base + s] = sum_c;
            }
        }
        V = ls_quad_sum(V);
        T = ls_quad_sum(T);
        float du = ls_mul(V, terms.dt);
        if (a->d != NULL) {
            du = ls_fma(terms.dy, a->d[at->channel], du);
            k->dd = ls_fma(terms.dy, terms.u, k->dd);
        }
        float ddt = ls_fma(T, LS_LN2, ls_mul(V, terms.u));
        if (!a->dt_activated) ddt = ls_mul(ddt, terms.slope);
        k->dbias = ls_add(k->dbias, ddt);
        if (i % 4 == at->group && at->active) {
            ls_store_either(a->du_bf16, a->du, (row + i) * a->dim + at->channel, du);
            ls_store_either(a->out_dtype == LS_BF16, a->ddt, (row + i) * a->dim + at->channel, ddt);
        }
    }
}

template <int IN>
static __device__ __forceinline__ token_terms terms_of(const ls_scan_backward_args *a, int64_t row, int64_t channel) {
    token_terms terms;
    float raw = ls_load_one<IN>(a->dt_raw, row * a->dt_stride + channel);
    terms.dt = ls_dt_of(raw, a->dt_bias, channel, a->dt_activated);
    if (a->dt_bias != NULL) raw = ls_add(raw, a->dt_bias[channel]);
    terms.slope = a->dt_activated ? 1.0f : ls_sigmoid(raw);
    terms.u = ls_load_one<IN>(a->u, row * a->u_stride + channel);
    terms.dy = ls_load_either(a->dout_bf16, a->dout, row * a->dout_stride + channel);
    if (a->z != NULL) terms.dy = ls_mul(terms.dy, ls_silu(ls_load_one<IN>(a->z, row * a->z_stride + channel)));
    return terms;
}

template <int GROUP, int IN>
static __global__ void __launch_bounds__(32 * WARPS) back_kernel(const __grid_constant__ back_params p) {
    ls_cuda_begin();
    extern __shared__ char shared[];
    back_tile<GROUP> *tile = (back_tile<GROUP> *)shared;
    const ls_scan_backward_args *a = &p.a;
    const place at = place_of<GROUP>(&p);
    const ls_span *span = &a->spans[at.span_i];
    const int64_t state = a->dim * a->n_states, pieces = (span->n_rows + KEEP - 1) / KEEP;
    float h[GROUP], before[GROUP], a2[GROUP];
    carried<GROUP> k;
    if (p.fault->code != LS_FAULT_NONE || span->slot < 0) return;
    k.dd = k.dbias = 0.0f;
    load_states<GROUP>(k.g, a->dfinal, &p, &at);
#pragma unroll
    for (int s = 0; s < GROUP; s++) {
        k.da2[s] = 0.0f;
        a2[s] = s < at.n ? a->a2[at.channel * a->n_states + at.base + s] : 0.0f;
    }
    for (int64_t i = pieces * (KEEP / WALKED(GROUP)) - 1; i >= 0; i--) {
        const int64_t first = i * WALKED(GROUP), row = span->row + first, left = span->n_rows - first;
        const int n_tokens = left < WALKED(GROUP) ? (int)left : WALKED(GROUP), states = (int)a->n_states;
        const float *kept = kept_state(&p, &at, span, first / KEEP);
        if (n_tokens <= 0) continue;
#pragma unroll
        for (int s = 0; s < GROUP; s++) h[s] = s < at.n ? kept[s] : 0.0f;
        if (WALKED(GROUP) < KEEP) pass_over<GROUP, IN>(a, &at, h, a2, row - first % KEEP, (int)(first % KEEP));
#pragma unroll
        for (int s = 0; s < GROUP; s++) before[s] = h[s];
        for (int t = at.group; t < n_tokens; t += 4) tile->terms[t][at.slot] = terms_of<IN>(a, row + t, at.channel);
        for (int j = (int)threadIdx.x; j < n_tokens * states; j += 32 * WARPS) {
            tile->b[j / states][j % states] = ls_load_one<IN>(a->b, (row + j / states) * a->b_stride + j % states);
            tile->c[j / states][j % states] = ls_load_one<IN>(a->cc, (row + j / states) * a->c_stride + j % states);
        }
        __syncthreads();
        walk_forwards<GROUP, IN>(&p, &at, tile, h, a2, row, n_tokens);
        walk_backwards<GROUP>(&p, &at, tile, &k, before, a2, row, n_tokens);
        __syncthreads();
        /* The four runs of eight channels by halves 2, 1. */
        for (int j = (int)threadIdx.x; j < n_tokens * 2 * states; j += 32 * WARPS) {
            const int token = j / (2 * states), part = j / states % 2, s = j % states;
            const float sum = ls_four_runs(tile->sums[0][token][part][s], tile->sums[1][token][part][s],
                                           tile->sums[2][token][part][s], tile->sums[3][token][part][s]);
            *ls_channel_share(&p, at.block, row + token, part, s) = sum;
        }
        __syncthreads();
    }
    if (!at.active) return;
#pragma unroll
    for (int s = 0; s < GROUP; s++)
        if (s < at.n) p.work[p.plan.a2 + at.span_i * state + at.channel * a->n_states + at.base + s] = k.da2[s];
#pragma unroll
    for (int s = 0; s < GROUP; s++)
        if (s < at.n && a->dinitial != NULL && pieces > 0)
            a->dinitial[ls_span_state(&p, at.span_i, at.channel, at.base + s)] = k.g[s];
    if (at.group != 0) return;
    p.work[p.plan.d + at.span_i * a->dim + at.channel] = k.dd;
    p.work[p.plan.bias + at.span_i * a->dim + at.channel] = k.dbias;
}

/* A block's share, of what the walk left. */
template <bool BY_RUNS>
static __device__ __forceinline__ float block_share(const back_params *p, int64_t block, int64_t row, int part, int s) {
    if (!BY_RUNS) return *ls_channel_share(p, block, row, part, s);
    const float *run = ls_channel_share(p, LS_BACK_WARPS * block, row, part, s);
    const int64_t next = p->a.rows * 2 * p->a.n_states;
    return ls_four_runs(run[0], run[next], run[2 * next], run[3 * next]);
}

/* db and dcc: a thread a (row of a span, state), channel blocks in order. */
template <bool BY_RUNS>
static __global__ void __launch_bounds__(SUM_THREADS) channel_kernel(const __grid_constant__ back_params p) {
    ls_cuda_begin();
    const ls_scan_backward_args *a = &p.a;
    const int64_t states = a->n_states, per_span = blockIdx.x / a->n_spans, span_i = blockIdx.x % a->n_spans;
    const ls_span *span = &a->spans[span_i];
    const int64_t i = per_span * SUM_THREADS + threadIdx.x;
    if (p.fault->code != LS_FAULT_NONE || span->slot < 0 || i >= span->n_rows * 2 * states) return;
    const int64_t row = span->row + i / (2 * states), part = i / states % 2, s = i % states;
    float sum = 0.0f;
#pragma unroll 8
    for (int64_t block = 0; block < p.plan.n_blocks; block++)
        sum = ls_add(sum, block_share<BY_RUNS>(&p, block, row, (int)part, (int)s));
    ls_store_either(a->du_bf16, part == 0 ? a->db : a->dcc, row * states + s, sum);
}

/* Parameters: a thread one of them, spans in order. */
static __global__ void __launch_bounds__(SUM_THREADS) span_kernel(const __grid_constant__ back_params p) {
    ls_cuda_begin();
    const ls_scan_backward_args *a = &p.a;
    const int64_t state = a->dim * a->n_states, i = (int64_t)blockIdx.x * SUM_THREADS + threadIdx.x;
    if (p.fault->code != LS_FAULT_NONE || i >= state + 2 * a->dim) return;
    const int64_t j = i < state ? i : (i - state) % a->dim, width = i < state ? state : a->dim;
    const float *share = p.work + (i < state ? p.plan.a2 : i < state + a->dim ? p.plan.d : p.plan.bias);
    float *to = i < state ? a->da2 : i < state + a->dim ? a->dd : a->ddt_bias;
    if (to == NULL) return;
    float sum = a->continued ? to[j] : 0.0f;
    for (int64_t s = 0; s < a->n_spans; s++)
        if (a->spans[s].slot >= 0 && a->spans[s].n_rows > 0) sum = ls_add(sum, share[s * width + j]);
    to[j] = i < state && !a->continued ? ls_mul(sum, LS_LN2) : sum;
}

/* Blocks of the first two kernels are `runs` runs of eight channels. */
typedef struct kernels {
    const void *keep, *back, *channels;
    int64_t runs, keep_threads, back_threads, shared_bytes;
} kernels;

template <int GROUP, int IN>
static kernels kernels_of(void) {
    return {(const void *)keep_kernel<GROUP, IN>,
            (const void *)back_kernel<GROUP, IN>,
            (const void *)channel_kernel<false>,
            WARPS,
            32 * WARPS,
            32 * WARPS,
            (int64_t)sizeof(back_tile<GROUP>)};
}

template <int IN, int OUT, int DU>
static kernels typed16(bool by_runs) {
    if (by_runs)
        return {(const void *)ls_keep_run_kernel<IN>,
                (const void *)ls_run_kernel<IN, OUT, DU>,
                (const void *)channel_kernel<true>,
                1,
                32 * LS_RUN_PHASES,
                32 * LS_RUN_PHASES,
                0};
    return {(const void *)ls_keep16_kernel<IN>,
            (const void *)ls_back16_kernel<IN, OUT, DU>,
            (const void *)channel_kernel<false>,
            WARPS,
            32 * WARPS,
            32 * WARPS,
            0};
}

/* Sixteen states, as models have them. */
template <int IN>
static kernels kernels16(const back_params *p) {
    const bool by_runs = p->plan.by_runs;
    if (p->a.out_dtype == LS_F32)
        return p->a.du_bf16 ? typed16<IN, LS_F32, LS_BF16>(by_runs) : typed16<IN, LS_F32, LS_F32>(by_runs);
    return p->a.du_bf16 ? typed16<IN, LS_BF16, LS_BF16>(by_runs) : typed16<IN, LS_BF16, LS_F32>(by_runs);
}

template <int IN>
static kernels choose(const back_params *p) {
    const int64_t group = (p->a.n_states + 3) / 4;
    if (p->a.n_states == LS_BACK16_STATES && (uintptr_t)p->a.a2 % 16 == 0) return kernels16<IN>(p);
    if (group <= 4) return kernels_of<4, IN>();
    if (group <= 8) return kernels_of<8, IN>();
    return group <= 16 ? kernels_of<16, IN>() : kernels_of<64, IN>();
}

/* All launches but the last; with `only_check`, their contracts alone. */
static ls_status launch_all(const ls_exec *exec, back_params *p, int64_t most, bool only_check, ls_error *err) {
    const ls_scan_backward_args *a = &p->a;
    const kernels k = a->in_dtype == LS_F32 ? choose<LS_F32>(p) : choose<LS_BF16>(p);
    const int64_t states = a->n_states, per_span = (most * 2 * states + SUM_THREADS - 1) / SUM_THREADS;
    const ls_index index[] = {
        {LS_WIDTH_I64, {{{"row", a->rows}, {"u stride", a->u_stride}, {"element", 4}}}},
        {LS_WIDTH_I64, {{{"row", a->rows}, {"dt stride", a->dt_stride}, {"element", 4}}}},
        {LS_WIDTH_I64, {{{"row", a->rows}, {"z stride", a->z != NULL ? a->z_stride : 0}, {"element", 4}}}},
        {LS_WIDTH_I64, {{{"row", a->rows}, {"b stride", a->b_stride}, {"element", 4}}}},
        {LS_WIDTH_I64, {{{"row", a->rows}, {"c stride", a->c_stride}, {"element", 4}}}},
        {LS_WIDTH_I64, {{{"row", a->rows}, {"dout stride", a->dout_stride}, {"element", 4}}}},
        {LS_WIDTH_I64, {{{"row", a->rows}, {"dim", a->dim}, {"element", 4}}}},
        {LS_WIDTH_I64, {{{"row", a->rows}, {"dz stride", ls_scan_dz_stride(a)}, {"element", 4}}}},
        {LS_WIDTH_I64, {{{"workspace", p->plan.total}, {"element", 4}}}}};
    const int64_t n = (int64_t)(sizeof index / sizeof index[0]),
                  blocks = ls_launch_blocks(a->n_spans, p->plan.n_blocks, WARPS / k.runs);
    const ls_launch keep = {"scan_backward, states", {blocks, 1, 1}, k.keep_threads, 0, index, n};
    const ls_launch back = {"scan_backward", {blocks, 1, 1}, k.back_threads, k.shared_bytes, index, n};
    const ls_launch channels = {
        "scan_backward, channels", {ls_launch_blocks(a->n_spans, per_span, 1), 1, 1}, SUM_THREADS, 0, index, n};
    if (only_check) {
        LS_CUDA_TRY(ls_launch_check(&keep, LS_CUDA_SHARED_MAX, err));
        LS_CUDA_TRY(ls_launch_check(&back, LS_CUDA_SHARED_MAX, err));
        return ls_launch_check(&channels, LS_CUDA_SHARED_MAX, err);
    }
    LS_CUDA_TRY(ls_cuda_launch(exec, &keep, k.keep, p, err));
    LS_CUDA_TRY(ls_cuda_launch(exec, &back, k.back, p, err));
    return ls_cuda_launch(exec, &channels, k.channels, p, err);
}

ls_status ls_cuda_scan_backward(const ls_exec *exec, const ls_scan_backward_args *a, ls_error *err) {
    const int64_t elem = ls_dtype_bytes(a->in_dtype), out = ls_dtype_bytes(a->out_dtype);
    const int64_t dout = a->dout_bf16 ? 2 : 4, du = a->du_bf16 ? 2 : 4;
    const ls_cuda_operand operands[] = {{"u", a->u, elem, false},
                                        {"dt_raw", a->dt_raw, elem, false},
                                        {"b", a->b, elem, false},
                                        {"cc", a->cc, elem, false},
                                        {"z", a->z, elem, true},
                                        {"a2", a->a2, 4, false},
                                        {"dt_bias", a->dt_bias, 4, true},
                                        {"d", a->d, 4, true},
                                        {"dout", a->dout, dout, false},
                                        {"du", a->du, du, false},
                                        {"ddt", a->ddt, out, false},
                                        {"db", a->db, du, false},
                                        {"dcc", a->dcc, du, false},
                                        {"dz", a->dz, out, true},
                                        {"da2", a->da2, 4, false},
                                        {"ddt_bias", a->ddt_bias, 4, true},
                                        {"dd", a->dd, 4, true},
                                        {"initial", a->initial, 16, true},
                                        {"dinitial", a->dinitial, 16, true},
                                        {"dfinal", a->dfinal, 16, true},
                                        {"spans", a->spans, 8, a->n_spans == 0}};
    const int64_t most = ls_spans_most(a->span_rows_max, a->rows);
    back_params p;
    ls_fault *fault;
    LS_CUDA_TRY(ls_cuda_check("scan_backward", exec, operands, (int64_t)(sizeof operands / sizeof operands[0]),
                              ls_op_scan_backward_workspace(a), err));
    p.a = *a;
    p.a.dz_stride = ls_scan_dz_stride(a);
    (void)ls_scan_backward_plan_make(&p.plan, a);
    p.work = (float *)((char *)exec->workspace + LS_WORKSPACE_HEAD);
    const int64_t parameters = a->dim * a->n_states + 2 * a->dim;
    const ls_launch spans = {
        "scan_backward, spans", {(parameters + SUM_THREADS - 1) / SUM_THREADS, 1, 1}, SUM_THREADS, 0, NULL, 0};
    const bool any = a->n_spans > 0 && a->rows > 0;
    if (any) LS_CUDA_TRY(launch_all(exec, &p, most, true, err));
    LS_CUDA_TRY(ls_launch_check(&spans, LS_CUDA_SHARED_MAX, err));
    LS_CUDA_TRY(ls_cuda_fault_begin("scan_backward", exec, &fault, err));
    ls_span_check check = ls_span_check_back(a, most, a->initial == NULL, fault);
    p.fault = fault;
    LS_CUDA_TRY(ls_cuda_check_spans("scan_backward", exec, &check, err));
    if (any) LS_CUDA_TRY(launch_all(exec, &p, most, false, err));
    return ls_cuda_launch(exec, &spans, (const void *)span_kernel, &p, err);
}
