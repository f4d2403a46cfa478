/* ssd on sm_90: prefill of 128 states. A head's state lies in the registers of its threads, 16 states of one slice and
 * PER channels each. A warpgroup walks through time and does nothing else; another, with fewer registers, prepares the
 * tile of tokens after it and finishes the one before it. The three meet once a tile. */
#include "op/cuda/ring_cuda.h"
#include "op/cuda/ssd_cuda.h"

#define WALKERS 128
#define HELPERS 128

/* PER channels of a thread, GROUPS of such threads, HEADS of a block. */
template <int PER, int GROUPS, int HEADS>
struct walk_size {
    static constexpr int DIM = PER * GROUPS;
    static constexpr int PAD = (PER + 3) / 4 * 4; /* a thread's channels of u */
    static constexpr int ROW = GROUPS * PAD;
    static constexpr int TILE = PER % 4 == 0 ? 8 : 4; /* tokens */
    static constexpr int PITCH = DIM + 4;             /* of a slice: eight threads' parts meet in no bank */
    static constexpr int STATES8 = LS_SSD_STATES / 8, DIM8 = DIM / 8;
    static constexpr int BC_LOADS = TILE * 2 * STATES8 / HELPERS; /* of a helper */
    static constexpr int X_LOADS = (TILE * HEADS * DIM8 + HELPERS - 1) / HELPERS;
    static_assert(GROUPS * HEADS * LS_SSD_SLICES == WALKERS && DIM % 8 == 0 && BC_LOADS >= 1 && TILE * HEADS <= 32,
                  "a size");
};

/* w, the scale after the token, what the state is multiplied by before it. */
typedef struct walk_step {
    float w, scale, factor, rest;
} walk_step;

template <class SIZE, int HEADS>
struct walk_memory {
    float bc[2][SIZE::TILE][2][LS_SSD_STATES];
    float u[2][SIZE::TILE][HEADS][SIZE::ROW];
    float x[3][SIZE::TILE][HEADS][SIZE::DIM];
    walk_step step[4][SIZE::TILE][HEADS];
    float part[2][SIZE::TILE][HEADS][LS_SSD_SLICES][SIZE::PITCH];
    float d[HEADS];
};

/* Walkers and helpers meet from different places of the program. */
static __device__ __forceinline__ void sync_roles(void) {
    asm volatile("bar.sync 1, %0;" ::"n"(WALKERS + HELPERS) : "memory");
}

/* ---- walkers ---- */

/* A walker's states: [which of the slice][channel]. */
template <int PER>
struct walk_state {
    float s[LS_SSD_OWN][PER];
};

template <int PER, int PAD>
static __device__ __forceinline__ void read_padded(float to[PER], const float *from) {
    float4 v[PAD / 4];
#pragma unroll
    for (int i = 0; i < PAD / 4; i++) v[i] = ((const float4 *)from)[i];
#pragma unroll
    for (int j = 0; j < PER; j++) {
        const float4 q = v[j / 4];
        to[j] = j % 4 == 0 ? q.x : j % 4 == 1 ? q.y : j % 4 == 2 ? q.z : q.w;
    }
}

template <int PER>
static __device__ __forceinline__ void write_part(float *to, const float y[PER]) {
    if constexpr (PER % 4 == 0) {
#pragma unroll
        for (int j = 0; j < PER; j += 4) *(float4 *)(to + j) = make_float4(y[j], y[j + 1], y[j + 2], y[j + 3]);
    } else if constexpr (PER % 2 == 0) {
#pragma unroll
        for (int j = 0; j < PER; j += 2) *(float2 *)(to + j) = make_float2(y[j], y[j + 1]);
    } else {
#pragma unroll
        for (int j = 0; j < PER; j++) to[j] = y[j];
    }
}

/* One token: b and cc of the thread's slice begin at bc and bc + 128. */
template <int PER>
static __device__ __forceinline__ void walk_token(walk_state<PER> *k, float y[PER], const float u[PER],
                                                  const float *bc) {
#pragma unroll
    for (int j = 0; j < PER; j++) y[j] = 0.0f;
#pragma unroll
    for (int i = 0; i < LS_SSD_OWN / 4; i++) {
        const float4 b4 = *(const float4 *)(bc + i * 4 * LS_SSD_SLICES);
        const float4 c4 = *(const float4 *)(bc + LS_SSD_STATES + i * 4 * LS_SSD_SLICES);
        const float b[4] = {b4.x, b4.y, b4.z, b4.w}, c[4] = {c4.x, c4.y, c4.z, c4.w};
#pragma unroll
        for (int n = 0; n < 4; n++)
#pragma unroll
            for (int j = 0; j < PER; j++) {
                float *s = &k->s[4 * i + n][j];
                *s = ls_fma(u[j], b[n], *s);
                y[j] = ls_fma(c[n], *s, y[j]);
            }
    }
}

/* Where a walker's states lie in a head's: state n of channel c at n * DIM + c. */
template <int PER, int DIM, bool STORE>
static __device__ __forceinline__ void move_state(walk_state<PER> *k, float *head, int slice, int group) {
#pragma unroll
    for (int m = 0; m < LS_SSD_OWN; m++) {
        float *at = head + (m / 4 * 4 * LS_SSD_SLICES + slice * 4 + m % 4) * DIM + group * PER;
#pragma unroll
        for (int j = 0; j < PER; j++) {
            if (STORE)
                at[j] = k->s[m][j];
            else
                k->s[m][j] = at[j];
        }
    }
}

template <int PER, int GROUPS, int HEADS>
static __device__ __forceinline__ void walk(walk_memory<walk_size<PER, GROUPS, HEADS>, HEADS> *memory,
                                            const ssd_params *p, const ls_span *span, int64_t head) {
    using SIZE = walk_size<PER, GROUPS, HEADS>;
    const int thread = (int)threadIdx.x, slice = thread % LS_SSD_SLICES, group = thread / LS_SSD_SLICES % GROUPS,
              which = thread / LS_SSD_SLICES / GROUPS;
    const int64_t n_tiles = (span->n_rows + SIZE::TILE - 1) / SIZE::TILE;
    float *stored =
        (float *)ls_pool_at(&p->a.state, span->slot) + (head + which) * (int64_t)(LS_SSD_STATES * SIZE::DIM);
    walk_state<PER> k;
    if (span->pos == 0) {
#pragma unroll
        for (int m = 0; m < LS_SSD_OWN; m++)
#pragma unroll
            for (int j = 0; j < PER; j++) k.s[m][j] = 0.0f;
    } else {
        move_state<PER, SIZE::DIM, false>(&k, stored, slice, group);
    }
    sync_roles(); /* the helpers' first steps; a barrier for them alone is one that racecheck does not follow */
    sync_roles();
#pragma unroll 1
    for (int64_t i = 0; i < n_tiles; i++) {
        const int64_t left = span->n_rows - i * SIZE::TILE;
        const int n = left < SIZE::TILE ? (int)left : SIZE::TILE, even = (int)(i % 2);
        const float *bc = memory->bc[even][0][0] + slice * 4, *u = memory->u[even][0][which] + group * SIZE::PAD;
        const walk_step *step = &memory->step[i % 4][0][which];
        float *part = memory->part[even][0][which][slice] + group * PER;
#pragma unroll 1
        for (int t = 0; t < n; t++) {
            float drive[PER], y[PER];
            const float factor = step[t * HEADS].factor;
            read_padded<PER, SIZE::PAD>(drive, u + t * (HEADS * GROUPS * SIZE::PAD));
            if (factor != 1.0f)
#pragma unroll
                for (int m = 0; m < LS_SSD_OWN; m++)
#pragma unroll
                    for (int j = 0; j < PER; j++) k.s[m][j] = ls_mul(k.s[m][j], factor);
            walk_token<PER>(&k, y, drive, bc + t * (2 * LS_SSD_STATES));
            write_part<PER>(part + t * (HEADS * LS_SSD_SLICES * SIZE::PITCH), y);
        }
        sync_roles();
    }
    move_state<PER, SIZE::DIM, true>(&k, stored, slice, group);
}

/* ---- helpers ---- */

/* A helper's inputs of a tile, as stored. */
template <class SIZE, int IN>
struct raw_tile {
    ls_vec8<IN> bc[SIZE::BC_LOADS], x[SIZE::X_LOADS];
};

/* The tile that starts at `row` and has n > 0 tokens; what does not exist is replaced by what does. */
template <int PER, int GROUPS, int HEADS, int IN>
static __device__ __forceinline__ void load_tile(raw_tile<walk_size<PER, GROUPS, HEADS>, IN> *raw, const ssd_params *p,
                                                 int thread, int64_t head, int64_t group, int64_t row, int n) {
    using SIZE = walk_size<PER, GROUPS, HEADS>;
#pragma unroll
    for (int r = 0; r < SIZE::BC_LOADS; r++) {
        const int at = thread + r * HELPERS, t = at / (2 * SIZE::STATES8), side = at / SIZE::STATES8 % 2;
        const int64_t from = row + (t < n ? t : n - 1), state = group * LS_SSD_STATES + at % SIZE::STATES8 * 8;
        raw->bc[r] = side == 0 ? ls_eight_load<IN>(p->a.b, from * p->a.b_stride + state, p->vectors)
                               : ls_eight_load<IN>(p->a.cc, from * p->a.c_stride + state, p->vectors);
    }
#pragma unroll
    for (int r = 0; r < SIZE::X_LOADS; r++) {
        const int at = thread + r * HELPERS, t = at / (HEADS * SIZE::DIM8);
        const int64_t from = row + (t < n ? t : n - 1), channel = head * SIZE::DIM + at % (HEADS * SIZE::DIM8) * 8;
        raw->x[r] = ls_eight_load<IN>(p->a.x, from * p->a.x_stride + channel, p->vectors);
    }
}

/* Into the buffers of tile i, whose steps are known. */
template <int PER, int GROUPS, int HEADS, int IN>
static __device__ __forceinline__ void prepare_tile(walk_memory<walk_size<PER, GROUPS, HEADS>, HEADS> *memory,
                                                    const raw_tile<walk_size<PER, GROUPS, HEADS>, IN> *raw, int thread,
                                                    int64_t i) {
    using SIZE = walk_size<PER, GROUPS, HEADS>;
    const int even = (int)(i % 2), third = (int)(i % 3);
#pragma unroll
    for (int r = 0; r < SIZE::BC_LOADS; r++) {
        const int at = thread + r * HELPERS, t = at / (2 * SIZE::STATES8), side = at / SIZE::STATES8 % 2;
        ls_eight_widen<IN>(&memory->bc[even][t][side][at % SIZE::STATES8 * 8], raw->bc[r]);
    }
#pragma unroll
    for (int r = 0; r < SIZE::X_LOADS; r++) {
        const int at = thread + r * HELPERS, t = at / (HEADS * SIZE::DIM8), which = at / SIZE::DIM8 % HEADS;
        const int first = at % SIZE::DIM8 * 8;
        if (SIZE::TILE * HEADS * SIZE::DIM8 % HELPERS != 0 && t >= SIZE::TILE) continue;
        const float w = memory->step[i % 4][t][which].w;
        float *u = memory->u[even][t][which];
        ls_eight_widen<IN>(&memory->x[third][t][which][first], raw->x[r]);
        if constexpr (SIZE::PAD == PER) {
#pragma unroll
            for (int j = 0; j < 8; j += 4)
                *(float4 *)(u + first + j) = make_float4(
                    ls_mul(w, ls_vec8_get<IN>(raw->x[r], j)), ls_mul(w, ls_vec8_get<IN>(raw->x[r], j + 1)),
                    ls_mul(w, ls_vec8_get<IN>(raw->x[r], j + 2)), ls_mul(w, ls_vec8_get<IN>(raw->x[r], j + 3)));
        } else {
#pragma unroll
            for (int j = 0; j < 8; j++)
                u[(first + j) / PER * SIZE::PAD + (first + j) % PER] = ls_mul(w, ls_vec8_get<IN>(raw->x[r], j));
        }
    }
}

/* What the first warp of helpers knows of its lane's token and head: the scale goes on from tile to tile. */
typedef struct step_lane {
    float bias, rate, scale;
    int token, which;
    bool active;
} step_lane;

/* The steps of tile i of n tokens, from dt_raw as widened. */
template <int TILE, int HEADS>
static __device__ __forceinline__ void make_steps(walk_step (*to)[HEADS], step_lane *lane, const ssd_params *p,
                                                  float raw, int n) {
    const float dt = ls_ssd_clamp(ls_softplus(ls_add(raw, lane->bias)), p->a.dt_min, p->a.dt_max);
    const float decay = ls_exp(ls_mul(dt, lane->rate));
    walk_step mine = {0.0f, lane->scale, 1.0f, 0.0f};
#pragma unroll
    for (int t = 0; t < TILE; t++) {
        const float product = ls_mul(lane->scale, __shfl_sync(LS_ALL_LANES, decay, t * HEADS + lane->which));
        const bool rescaled = product < LS_SSD_SCALE_MIN;
        if (t < n) lane->scale = rescaled ? 1.0f : product;
        if (t == lane->token) {
            mine.scale = lane->scale;
            mine.factor = rescaled ? product : 1.0f;
        }
    }
    mine.w = ls_mul(dt, ls_div(1.0f, mine.scale));
    if (lane->active) to[lane->token][lane->which] = mine;
}

/* out of tile i, which starts at `row` and has n tokens. */
template <int PER, int GROUPS, int HEADS, int OUT>
static __device__ __forceinline__ void finish_tile(const walk_memory<walk_size<PER, GROUPS, HEADS>, HEADS> *memory,
                                                   const ssd_params *p, int thread, int64_t head, int64_t i,
                                                   int64_t row, int n) {
    using SIZE = walk_size<PER, GROUPS, HEADS>;
    constexpr int FOURS = SIZE::DIM / 4;
    const int even = (int)(i % 2), third = (int)(i % 3);
#pragma unroll 1
    for (int at = thread; at < n * HEADS * FOURS; at += HELPERS) {
        const int t = at / (HEADS * FOURS), which = at / FOURS % HEADS, first = at % FOURS * 4;
        const float scale = memory->step[i % 4][t][which].scale, d = memory->d[which];
        const float4 x = *(const float4 *)&memory->x[third][t][which][first];
        float4 v[LS_SSD_SLICES];
        float y[4];
#pragma unroll
        for (int s = 0; s < LS_SSD_SLICES; s++) v[s] = *(const float4 *)&memory->part[even][t][which][s][first];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float slice[LS_SSD_SLICES];
#pragma unroll
            for (int s = 0; s < LS_SSD_SLICES; s++)
                slice[s] = j == 0 ? v[s].x : j == 1 ? v[s].y : j == 2 ? v[s].z : v[s].w;
            y[j] = ls_fma(d, j == 0 ? x.x : j == 1 ? x.y : j == 2 ? x.z : x.w, ls_mul(scale, ls_ssd_join(slice)));
        }
        ls_four_store<OUT>(p->a.out, (row + t) * p->a.out_stride + (head + which) * SIZE::DIM + first, 4, p->fours, y);
    }
}

template <int PER, int GROUPS, int HEADS, int IN>
static __device__ __forceinline__ void help(walk_memory<walk_size<PER, GROUPS, HEADS>, HEADS> *memory,
                                            const ssd_params *p, const ls_span *span, int64_t head) {
    using SIZE = walk_size<PER, GROUPS, HEADS>;
    constexpr int TILE = SIZE::TILE;
    const int thread = (int)threadIdx.x - WALKERS;
    const int64_t rows = span->n_rows, n_tiles = (rows + TILE - 1) / TILE, group = head / p->group_heads;
    raw_tile<SIZE, IN> raw;
    step_lane lane;
    float dt_raw = 0.0f;
    lane.token = thread / HEADS;
    lane.which = thread % HEADS;
    lane.active = thread < TILE * HEADS;
    lane.scale = 1.0f;
    if (thread < 32) {
        float *stored = (float *)ls_pool_at(&p->a.scale, span->slot) + head + lane.which;
        lane.bias = p->a.dt_bias[head + lane.which];
        lane.rate = p->a.a[head + lane.which];
        if (span->pos > 0) lane.scale = *stored;
    }
    if (thread < HEADS) memory->d[thread] = p->a.d[head + thread];
    /* dt_raw of the lane's token of tile i, or of the last token. */
    const auto load_dt = [&](int64_t i) {
        const int64_t t = i * TILE + (lane.active ? lane.token : 0);
        return ls_load_one<IN>(p->a.dt_raw,
                               (span->row + (t < rows ? t : rows - 1)) * p->a.dt_stride + head + lane.which);
    };
    const auto tokens = [&](int64_t i) { return rows - i * TILE < TILE ? (int)(rows - i * TILE) : TILE; };
    if (thread < 32) {
        make_steps<TILE, HEADS>(memory->step[0], &lane, p, load_dt(0), tokens(0));
        if (n_tiles > 1) make_steps<TILE, HEADS>(memory->step[1], &lane, p, load_dt(1), tokens(1));
        if (n_tiles > 2) dt_raw = load_dt(2);
    }
    load_tile<PER, GROUPS, HEADS, IN>(&raw, p, thread, head, group, span->row, tokens(0));
    sync_roles(); /* the steps are there */
    prepare_tile<PER, GROUPS, HEADS, IN>(memory, &raw, thread, 0);
    if (n_tiles > 1) load_tile<PER, GROUPS, HEADS, IN>(&raw, p, thread, head, group, span->row + TILE, tokens(1));
    sync_roles();
#pragma unroll 1
    for (int64_t i = 0; i < n_tiles; i++) {
        if (i + 1 < n_tiles) prepare_tile<PER, GROUPS, HEADS, IN>(memory, &raw, thread, i + 1);
        if (i + 2 < n_tiles) {
            load_tile<PER, GROUPS, HEADS, IN>(&raw, p, thread, head, group, span->row + (i + 2) * TILE, tokens(i + 2));
            if (thread < 32) {
                const float now = dt_raw;
                if (i + 3 < n_tiles) dt_raw = load_dt(i + 3);
                make_steps<TILE, HEADS>(memory->step[(i + 2) % 4], &lane, p, now, tokens(i + 2));
            }
        }
        if (i > 0) {
            const int64_t row = span->row + (i - 1) * TILE;
            if (p->a.out_dtype == LS_F32)
                finish_tile<PER, GROUPS, HEADS, LS_F32>(memory, p, thread, head, i - 1, row, TILE);
            else
                finish_tile<PER, GROUPS, HEADS, LS_BF16>(memory, p, thread, head, i - 1, row, TILE);
        }
        sync_roles();
    }
    const int64_t last = span->row + (n_tiles - 1) * TILE;
    if (p->a.out_dtype == LS_F32)
        finish_tile<PER, GROUPS, HEADS, LS_F32>(memory, p, thread, head, n_tiles - 1, last, tokens(n_tiles - 1));
    else
        finish_tile<PER, GROUPS, HEADS, LS_BF16>(memory, p, thread, head, n_tiles - 1, last, tokens(n_tiles - 1));
    if (thread < HEADS) ((float *)ls_pool_at(&p->a.scale, span->slot))[head + thread] = lane.scale;
}

template <int PER, int GROUPS, int HEADS, int IN>
static __global__ void __launch_bounds__(WALKERS + HELPERS, 2) walk_kernel(const __grid_constant__ ssd_params p) {
    ls_cuda_begin();
    extern __shared__ __align__(16) char shared[];
    using SIZE = walk_size<PER, GROUPS, HEADS>;
    auto *memory = (walk_memory<SIZE, HEADS> *)shared;
    const ls_span *span = &p.a.spans[blockIdx.x / p.blocks];
    const int64_t head = (int64_t)(blockIdx.x % p.blocks) * HEADS;
    if (p.fault->code != LS_FAULT_NONE || span->slot < 0 || span->n_rows == 0) return;
    if (threadIdx.x >= WALKERS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 72;");
        help<PER, GROUPS, HEADS, IN>(memory, &p, span, head);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 184;");
        walk<PER, GROUPS, HEADS>(memory, &p, span, head);
    }
}

typedef struct walk_kernel_of {
    const void *entry;
    int64_t heads, shared_bytes;
} walk_kernel_of;

template <int PER, int GROUPS, int HEADS>
static walk_kernel_of sized(ls_dtype in) {
    const walk_kernel_of kernel = {.entry = in == LS_F32 ? (const void *)walk_kernel<PER, GROUPS, HEADS, LS_F32>
                                                         : (const void *)walk_kernel<PER, GROUPS, HEADS, LS_BF16>,
                                   .heads = HEADS,
                                   .shared_bytes = (int64_t)sizeof(walk_memory<walk_size<PER, GROUPS, HEADS>, HEADS>)};
    return kernel;
}

/* Two heads a block share B and C; one where blocks would be too few to fill the GPU, or groups are odd. */
static walk_kernel_of pick(const ls_ssd_args *a, int64_t processors) {
    const int64_t in_group = a->n_heads / a->n_groups;
    const bool pairs = in_group % 2 == 0 && a->n_spans > 4 * processors / a->n_heads;
    const walk_kernel_of none = {NULL, 0, 0};
    if (a->head_dim == 64) return pairs ? sized<8, 8, 2>(a->in_dtype) : sized<4, 16, 1>(a->in_dtype);
    if (a->head_dim == 80) return pairs ? sized<10, 8, 2>(a->in_dtype) : sized<5, 16, 1>(a->in_dtype);
    return a->head_dim == 128 ? sized<8, 16, 1>(a->in_dtype) : none;
}

ls_status ls_ssd_walk(const ls_exec *exec, ssd_params *p, bool *taken, ls_error *err) {
    const ls_ssd_args *a = &p->a;
    int device, processors;
    LS_CUDA_TRY(ls_is_hopper(taken, "ssd", err));
    *taken = *taken && a->n_states == LS_SSD_STATES;
    if (!*taken) return LS_OK;
    LS_CUDA_TRY(ls_cuda_status(cudaGetDevice(&device), "ssd", err));
    LS_CUDA_TRY(
        ls_cuda_status(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device), "ssd", err));
    const walk_kernel_of kernel = pick(a, processors);
    *taken = kernel.entry != NULL;
    if (!*taken) return LS_OK;
    p->blocks = a->n_heads / kernel.heads;
    const ls_launch launch = {
        "ssd", {ls_launch_blocks(a->n_spans, p->blocks, 1), 1, 1}, WALKERS + HELPERS, kernel.shared_bytes, NULL, 0};
    return ls_cuda_launch_within(exec, &launch, LS_HOPPER_SHARED_MAX, kernel.entry, p, err);
}
