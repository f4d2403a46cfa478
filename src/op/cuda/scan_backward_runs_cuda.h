/* Gradient of the scan for sixteen states where spans are few: four runs a block leave multiprocessors idle there. A
 * block is one run of eight channels, and its warps take the run's tiles in turns. Little of a tile depends on
 * the tile before it: h forwards; g, and then da2, dd and ddt_bias, backwards. Only these go from warp to warp, through
 * shared memory: a warp does all it can, waits for its turn, takes them over, goes on with its tile's part of the
 * chain, passes them on and does the rest. */
#ifndef LS_OP_CUDA_SCAN_BACKWARD_RUNS_CUDA_H
#define LS_OP_CUDA_SCAN_BACKWARD_RUNS_CUDA_H

#include "op/cuda/scan_backward16_cuda.h"

/* Blocks that a multiprocessor is to hold: of 5,120 channels of one span, five on each of an H100. */
#define LS_RUN_BLOCKS 5
/* Warps of a run; measured. */
#define LS_RUN_PHASES 3

/* A chain goes from each warp to the one of the next phase, what is passed on lying in one place of shared memory: who
 * takes it over writes it next and passes it on after that, so it is read before it is written again. Each warp has a
 * barrier at which it passes on. It comes to it a second time only by taking over from the warp before, which has taken
 * over from the one before that, and so on from the receiver of the first time. */
typedef struct run_ring {
    uint64_t passed[LS_RUN_PHASES];
} run_ring;

/* By all threads of the block. */
static __device__ __forceinline__ void ls_rings_begin(run_ring *rings, int n) {
    if (threadIdx.x < (unsigned)n * LS_RUN_PHASES)
        asm volatile("mbarrier.init.shared.b64 [%0], 32;" ::"r"(
                         (uint32_t)__cvta_generic_to_shared(&rings[0].passed[0] + threadIdx.x))
                     : "memory");
    __syncthreads();
}

/* lap: how many tiles this warp has taken before. */
static __device__ __forceinline__ void ls_take_over(run_ring *ring, const place16 *at, int lap) {
    const int from = at->phase == 0 ? LS_RUN_PHASES - 1 : at->phase - 1;
    const uint32_t barrier = (uint32_t)__cvta_generic_to_shared(&ring->passed[from]);
    const uint32_t parity = (uint32_t)(at->phase == 0 ? lap - 1 : lap) & 1;
    asm volatile(
        "{\n.reg .pred done;\n"
        "again:\n"
        "mbarrier.test_wait.parity.shared.b64 done, [%0], %1;\n"
        "@!done bra again;\n}\n" ::"r"(barrier),
        "r"(parity)
        : "memory");
}

/* Every lane passes on what it has written to the same lane of the other warp. */
static __device__ __forceinline__ void ls_pass_on(run_ring *ring, const place16 *at) {
    asm volatile(
        "mbarrier.arrive.shared.b64 _, [%0];" ::"r"((uint32_t)__cvta_generic_to_shared(&ring->passed[at->phase]))
        : "memory");
}

/* ---- h before every tile ---- */

typedef struct keep_run {
    float b[LS_BACK_KEEP][LS_BACK16_STATES];
    float2 dtv[LS_BACK_KEEP][LS_WARP_CHANNELS]; /* dt and v = dt u */
} keep_run;

/* What a tile needs, as loaded. */
typedef struct keep_run_raw {
    float dt[LS_BACK16_OWN], u[LS_BACK16_OWN], b[LS_BACK16_LOADS(1)];
} keep_run_raw;

template <int IN>
static __device__ __forceinline__ void ls_keep_run_load(keep_run_raw *raw, const back_params *p, const place16 *at,
                                                        int64_t row) {
    const ls_scan_backward_args *a = &p->a;
#pragma unroll
    for (int j = 0; j < LS_BACK16_OWN; j++) {
        const int64_t own = row + j * 4 + at->group;
        raw->dt[j] = ls_load_one<IN>(a->dt_raw, own * a->dt_stride + at->channel);
        if (a->dt_bias != NULL) raw->dt[j] = ls_add(raw->dt[j], a->dt_bias[at->channel]);
        raw->u[j] = ls_load_one<IN>(a->u, own * a->u_stride + at->channel);
    }
    ls_states16_load<IN, 1>(raw->b, a->b, a->b_stride, row, LS_BACK_KEEP);
}

/* Into shared memory. Returns whether every dt of the warp is safe. */
static __device__ __forceinline__ bool ls_keep_run_prepare(keep_run *tile, const keep_run_raw *raw,
                                                           const ls_scan_backward_args *a, const place16 *at,
                                                           float safe) {
    float dt[LS_BACK16_OWN];
    bool inside = true;
#pragma unroll
    for (int j = 0; j < LS_BACK16_OWN; j++) dt[j] = raw->dt[j];
    if (!a->dt_activated) ls_softplus_all<LS_BACK16_OWN>(dt);
    __syncwarp();
#pragma unroll
    for (int j = 0; j < LS_BACK16_OWN; j++) {
        tile->dtv[j * 4 + at->group][at->slot] = make_float2(dt[j], ls_mul(dt[j], raw->u[j]));
        inside &= fabsf(dt[j]) <= safe;
    }
    ls_states16_put<1>(tile->b, raw->b);
    return __all_sync(LS_ALL_LANES, inside);
}

/* decay and v b of every token. */
template <bool INSIDE>
static __device__ __forceinline__ void ls_keep_run_steps(const keep_run *tile, const place16 *at,
                                                         float decay[LS_BACK_KEEP][4], float vb[LS_BACK_KEEP][4],
                                                         const float a2[4]) {
#pragma unroll
    for (int i = 0; i < LS_BACK_KEEP; i++) {
        const float2 d = tile->dtv[i][at->slot];
        float b[4];
        ls_spread(b, *(const float4 *)&tile->b[i][at->group * 4]);
#pragma unroll
        for (int s = 0; s < 4; s++) {
            decay[i][s] = INSIDE ? ls_exp2_product_inside(d.x, a2[s]) : ls_exp2_product(d.x, a2[s]);
            vb[i][s] = ls_mul(d.y, b[s]);
        }
    }
}

/* The last tile is not walked: the states behind it are nobody's. */
template <int IN>
static __global__ void __launch_bounds__(32 * LS_RUN_PHASES, LS_RUN_BLOCKS)
    ls_keep_run_kernel(const __grid_constant__ back_params p) {
    ls_cuda_begin();
    __shared__ keep_run tiles[LS_RUN_PHASES];
    __shared__ float4 passed[32];
    __shared__ run_ring ring;
    const place16 at = ls_place16<1, LS_RUN_PHASES>(&p);
    const ls_span *span = &p.a.spans[at.span_i];
    const int64_t walked = (span->n_rows - 1) / LS_BACK_KEEP; /* tiles, the last one not */
    const int lane = (int)threadIdx.x % 32;
    keep_run *tile = &tiles[at.phase];
    keep_run_raw raw = {};
    float h[4], a2[4];
    if (p.fault->code != LS_FAULT_NONE || span->slot < 0 || span->n_rows == 0) return;
    ls_rings_begin(&ring, 1);
    const float safe = ls_rates16(&p, &at, a2);
    ls_span_states16(h, p.a.initial, &p, &at);
    if (at.phase < walked) ls_keep_run_load<IN>(&raw, &p, &at, span->row + at.phase * LS_BACK_KEEP);
    int lap = 0;
    for (int64_t i = at.phase; i <= walked; i += LS_RUN_PHASES, lap++) {
        float decay[LS_BACK_KEEP][4], vb[LS_BACK_KEEP][4];
        if (i < walked) {
            const bool inside = ls_keep_run_prepare(tile, &raw, &p.a, &at, safe);
            if (i + LS_RUN_PHASES < walked) /* on its way while this tile is walked */
                ls_keep_run_load<IN>(&raw, &p, &at, span->row + (i + LS_RUN_PHASES) * LS_BACK_KEEP);
            __syncwarp();
            if (inside)
                ls_keep_run_steps<true>(tile, &at, decay, vb, a2);
            else
                ls_keep_run_steps<false>(tile, &at, decay, vb, a2);
        }
        if (i > 0) {
            ls_take_over(&ring, &at, lap);
            ls_spread(h, passed[lane]);
        }
        const float4 before = ls_four_of(h);
        if (i < walked) {
#pragma unroll
            for (int t = 0; t < LS_BACK_KEEP; t++)
#pragma unroll
                for (int s = 0; s < 4; s++) h[s] = ls_fma(decay[t][s], h[s], vb[t][s]);
            passed[lane] = ls_four_of(h);
            ls_pass_on(&ring, &at);
        }
        if (at.active) *(float4 *)ls_kept_state(&p, span, at.span_i, i, at.channel, at.group * 4) = before;
    }
}

/* ---- the walk ---- */

/* What goes from tile to tile, as carried16. */
typedef struct turn16 {
    float4 g[32], da2[32];
    float2 rest[32];  /* dd, ddt_bias */
    run_ring ring[2]; /* of g, and of the others */
} turn16;

/* What a walk works on. */
typedef struct walk16 {
    const back_params *p;
    const place16 *at;
    const back16_tile<1> *tile;
    turn16 *turn;
    int64_t i, row;
    int n_tokens, lap; /* lap: tiles that the warp has walked before */
    bool first;        /* of the span's tiles, as they are walked */
} walk16;

/* A tile in registers. decay_h is decay * h', of which w is a multiple, and then w; g is as V, B and w have it. */
typedef struct walked16 {
    float decay[LS_BACK_KEEP][4], decay_h[LS_BACK_KEEP][4], g[LS_BACK_KEEP][4], ddt[LS_BACK16_OWN];
} walked16;

/* Two neighbouring tokens' products for db (part 0) or dcc (part 1), four states each, summed over the run's
 * channels. */
template <bool SURE>
static __device__ __forceinline__ void ls_run_share(const walk16 *w, int token, int part, float share[8]) {
    const int lane = (int)threadIdx.x % 32, state = w->at->group * 4 + lane / 8 % 2 * 2 + lane / 4 % 2;
    if (!SURE && !w->at->active)
        for (int s = 0; s < 8; s++) share[s] = 0.0f;
    const float sum = ls_channel_sums8(share);
    token += lane / 16;
    if (!SURE && token >= w->n_tokens) return;
    *ls_channel_share(w->p, w->at->run, w->row + token, part, state) = sum;
}

/* States and decays, shares of dcc, and dz from y. OUT: type of dz and ddt. SURE: all tokens of the tile are there,
 * every dt * a2 is known to be in range, and every channel is one. */
template <int OUT, bool SURE>
static __device__ __forceinline__ void ls_run_forwards(const walk16 *w, walked16 *of, const float a2[4], float h[4]) {
    const ls_scan_backward_args *a = &w->p->a;
    const place16 *at = w->at;
    float part[LS_BACK_KEEP], share[8];
#pragma unroll
    for (int i = 0; i < LS_BACK_KEEP; i++) {
        part[i] = 0.0f;
        if (SURE || i < w->n_tokens) {
            const float4 d = w->tile->step[0][i][at->slot];
            float b[4], c[4];
            ls_spread(b, *(const float4 *)&w->tile->b[0][i][at->group * 4]);
            ls_spread(c, *(const float4 *)&w->tile->c[0][i][at->group * 4]);
#pragma unroll
            for (int s = 0; s < 4; s++) {
                of->decay[i][s] = SURE ? ls_exp2_product_inside(d.x, a2[s]) : ls_exp2_product(d.x, a2[s]);
                of->decay_h[i][s] = ls_mul(of->decay[i][s], h[s]);
                h[s] = ls_fma(of->decay[i][s], h[s], ls_mul(d.y, b[s]));
                part[i] = ls_fma(h[s], c[s], part[i]);
                share[i % 2 * 4 + s] = ls_mul(d.z, h[s]);
            }
        }
        if (i % 2 == 1) ls_run_share<SURE>(w, i - 1, 1, share);
    }
    if (a->z == NULL) return;
#pragma unroll
    for (int j = 0; j < LS_BACK16_OWN; j++) {
        const int token = j * 4 + at->group;
        float y = ls_quad_sum4(&part[4 * j], at->group);
        const float4 end = w->tile->end[0][token][at->slot];
        if (a->d != NULL) y = ls_fma(a->d[at->channel], w->tile->step[0][token][at->slot].w, y);
        if (SURE || (token < w->n_tokens && at->active))
            ls_store_one<OUT>(a->dz, (w->row + token) * a->dz_stride + at->channel, ls_mul(ls_mul(end.y, y), end.z));
    }
}

/* The chain of g. */
template <bool SURE>
static __device__ __forceinline__ void ls_run_chain(const walk16 *w, walked16 *of, float g[4]) {
#pragma unroll
    for (int i = LS_BACK_KEEP - 1; i >= 0; i--) {
        if (!SURE && i >= w->n_tokens) continue;
        const float dy = w->tile->step[0][i][w->at->slot].z;
        float c[4];
        ls_spread(c, *(const float4 *)&w->tile->c[0][i][w->at->group * 4]);
#pragma unroll
        for (int s = 0; s < 4; s++) {
            of->g[i][s] = ls_fma(dy, c[s], g[s]);
            g[s] = ls_mul(of->g[i][s], of->decay[i][s]);
        }
    }
}

/* w, shares of db, du and ddt. DU: type of du. */
template <int OUT, int DU, bool SURE>
static __device__ __forceinline__ void ls_run_rows(const walk16 *w, walked16 *of, const float a2[4]) {
    const ls_scan_backward_args *a = &w->p->a;
    const place16 *at = w->at;
#pragma unroll
    for (int j = LS_BACK16_OWN - 1; j >= 0; j--) {
        float V[4], T[4], share[8];
#pragma unroll
        for (int q = 3; q >= 0; q--) {
            const int i = 4 * j + q;
            V[q] = T[q] = 0.0f;
            if (SURE || i < w->n_tokens) {
                const float4 d = w->tile->step[0][i][at->slot];
                float b[4];
                ls_spread(b, *(const float4 *)&w->tile->b[0][i][at->group * 4]);
#pragma unroll
                for (int s = 0; s < 4; s++) {
                    V[q] = ls_fma(of->g[i][s], b[s], V[q]);
                    share[q % 2 * 4 + s] = ls_mul(of->g[i][s], d.y);
                    of->decay_h[i][s] = ls_mul(of->g[i][s], of->decay_h[i][s]);
                    if (!SURE) {
                        const float x = ls_mul(d.x, a2[s]);
                        if (!(x >= -126.0f && x <= 127.0f)) of->decay_h[i][s] = 0.0f;
                    }
                    T[q] = ls_fma(of->decay_h[i][s], a2[s], T[q]);
                }
            }
            if (q % 2 == 0) ls_run_share<SURE>(w, i, 0, share);
        }
        const int token = j * 4 + at->group;
        const float whole_V = ls_quad_sum4(V, at->group), whole_T = ls_quad_sum4(T, at->group);
        const float4 d = w->tile->step[0][token][at->slot];
        float du = ls_mul(whole_V, d.x);
        of->ddt[j] = ls_fma(whole_T, LS_LN2, ls_mul(whole_V, d.w));
        if (a->d != NULL) du = ls_fma(d.z, a->d[at->channel], du);
        if (!a->dt_activated) of->ddt[j] = ls_mul(of->ddt[j], w->tile->end[0][token][at->slot].x);
        if (SURE || (token < w->n_tokens && at->active)) {
            const int64_t to = (w->row + token) * a->dim + at->channel;
            ls_store_one<DU>(a->du, to, du);
            ls_store_one<OUT>(a->ddt, to, of->ddt[j]);
        }
    }
}

/* The tile's share of the sums over tokens. */
template <bool SURE>
static __device__ __forceinline__ void ls_run_parameters(const walk16 *w, const walked16 *of, carried16 *k) {
#pragma unroll
    for (int i = LS_BACK_KEEP - 1; i >= 0; i--) {
        const float ddt = __shfl_sync(LS_ALL_LANES, of->ddt[i / 4], i % 4, 4);
        if (!SURE && i >= w->n_tokens) continue;
        const float4 d = w->tile->step[0][i][w->at->slot];
#pragma unroll
        for (int s = 0; s < 4; s++) k->da2[s] = ls_fma(of->decay_h[i][s], d.x, k->da2[s]);
        if (w->p->a.d != NULL) k->dd = ls_fma(d.z, d.w, k->dd);
        k->dbias = ls_add(k->dbias, ddt);
    }
}

/* One tile. */
template <int OUT, int DU, bool SURE>
static __device__ __forceinline__ void ls_run_walk(const walk16 *w, carried16 *k, const float a2[4], float4 kept) {
    const int lane = (int)threadIdx.x % 32;
    float h[4];
    walked16 of;
    ls_spread(h, kept);
    ls_run_forwards<OUT, SURE>(w, &of, a2, h);
    if (w->first) {
        ls_span_states16(k->g, w->p->a.dfinal, w->p, w->at);
    } else {
        ls_take_over(&w->turn->ring[0], w->at, w->lap);
        ls_spread(k->g, w->turn->g[lane]);
    }
    ls_run_chain<SURE>(w, &of, k->g);
    if (w->i > 0) {
        w->turn->g[lane] = ls_four_of(k->g);
        ls_pass_on(&w->turn->ring[0], w->at);
    } else {
        ls_back16_initial(w->p, w->at, k->g);
    }
    ls_run_rows<OUT, DU, SURE>(w, &of, a2);
    if (!w->first) {
        ls_take_over(&w->turn->ring[1], w->at, w->lap);
        ls_spread(k->da2, w->turn->da2[lane]);
        k->dd = w->turn->rest[lane].x;
        k->dbias = w->turn->rest[lane].y;
    }
    ls_run_parameters<SURE>(w, &of, k);
    if (w->i == 0) return;
    w->turn->da2[lane] = ls_four_of(k->da2);
    w->turn->rest[lane] = make_float2(k->dd, k->dbias);
    ls_pass_on(&w->turn->ring[1], w->at);
}

template <int IN, int OUT, int DU>
static __global__ void __launch_bounds__(32 * LS_RUN_PHASES, LS_RUN_BLOCKS)
    ls_run_kernel(const __grid_constant__ back_params p) {
    ls_cuda_begin();
    __shared__ back16_tile<1> tiles[LS_RUN_PHASES];
    __shared__ turn16 turn;
    const place16 at = ls_place16<1, LS_RUN_PHASES>(&p);
    const ls_span *span = &p.a.spans[at.span_i];
    const int64_t n_tiles = (span->n_rows + LS_BACK_KEEP - 1) / LS_BACK_KEEP, first = n_tiles - 1 - at.phase;
    const int rest = (int)(span->n_rows - (n_tiles - 1) * LS_BACK_KEEP); /* tokens of the last tile */
    const bool whole_run = (int64_t)(at.run + 1) * LS_WARP_CHANNELS <= p.a.dim;
    back16_raw<1> raw = {};
    walk16 w = {.p = &p,
                .at = &at,
                .tile = &tiles[at.phase],
                .turn = &turn,
                .i = 0,
                .row = 0,
                .n_tokens = 0,
                .lap = 0,
                .first = false};
    float a2[4];
    if (p.fault->code != LS_FAULT_NONE || span->slot < 0) return;
    ls_rings_begin(turn.ring, 2);
    const float safe = ls_rates16(&p, &at, a2);
    if (first >= 0) ls_back16_load<IN, 1>(&raw, &p, &at, span, first, at.phase == 0 ? rest : LS_BACK_KEEP);
    for (w.i = first; w.i >= 0; w.i -= LS_RUN_PHASES, w.lap++) {
        const float4 kept = raw.h;
        carried16 k = {};
        w.row = span->row + w.i * LS_BACK_KEEP;
        w.first = w.i == n_tiles - 1;
        w.n_tokens = w.first ? rest : LS_BACK_KEEP;
        const bool sure =
            ls_back16_prepare<1>(&tiles[at.phase], &raw, &p.a, &at, 0, safe, whole_run && w.n_tokens == LS_BACK_KEEP);
        if (w.i >= LS_RUN_PHASES) ls_back16_load<IN, 1>(&raw, &p, &at, span, w.i - LS_RUN_PHASES, LS_BACK_KEEP);
        __syncwarp();
        if (sure)
            ls_run_walk<OUT, DU, true>(&w, &k, a2, kept);
        else
            ls_run_walk<OUT, DU, false>(&w, &k, a2, kept);
        if (w.i == 0) ls_back16_finish(&p, &at, &k);
    }
}

#endif
