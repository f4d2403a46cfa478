/* Gradient of ssd on sm_90: the two walks, of 128 states and heads of 64 or 80 channels; STATES: spans may continue
 * others, or others them. A block is the four heads whose shares of db and dcc are one chain. Two warpgroups walk
 * through time, S forwards and then, in a kernel of its own, g backwards, 16 states of one slice and PER channels a
 * thread; a third, with fewer registers, prepares the tile of tokens after theirs and finishes the one before. */
#include "op/cuda/ring_cuda.h"
#include "op/cuda/ssd_backward_cuda.h"

#define HEADS LS_SSD_SUM_HEADS
#define COLUMNS 8 /* threads that share a head's channels: column i has the channels i, i + 8, i + 16, .. */
#define WALKERS (HEADS * LS_SSD_SLICES * COLUMNS)
#define HELPERS 128
#define TILE 4 /* tokens */
#define STATES8 (LS_SSD_STATES / 8)

static_assert(LS_SSD_PIECE % TILE == 0 && LS_SSD_FOLD == 2 * COLUMNS && TILE * HEADS * 8 == HELPERS, "a tile");

/* PER channels of a thread. */
template <int PER>
struct back_size {
    static constexpr int DIM = PER * COLUMNS;
    static constexpr int WORD = PER % 4 == 0 ? 4 : 2;            /* neighbouring channels of a thread, as one load */
    static constexpr int SEGMENT = COLUMNS * WORD + WORD;        /* all threads' words, and what keeps banks apart */
    static constexpr int ROW = PER / WORD * SEGMENT;             /* a head's channels by threads */
    static constexpr int PITCH = DIM + (8 + 32 - DIM % 32) % 32; /* of a slice: eight beside a multiple of 32 */
    static constexpr int LOADS = (TILE * HEADS * DIM / 8 + HELPERS - 1) / HELPERS;
};

/* Of a token and head: what scales the drive, the state's scale, what the state is multiplied by first, dt. */
typedef struct back_step {
    float drive, scale, factor, dt;
} back_step;

template <int PER>
struct back_memory {
    float bc[3][TILE][2][LS_SSD_STATES];
    float drive[2][TILE][HEADS][back_size<PER>::ROW];
    float with[3][TILE][HEADS][back_size<PER>::ROW];  /* what is folded with the state: dy forwards, x backwards */
    float other[3][TILE][HEADS][back_size<PER>::DIM]; /* x forwards, dy backwards */
    back_step step[4][TILE][HEADS];
    float folded[2][TILE][HEADS][LS_SSD_STATES];
    float part[2][TILE][HEADS][LS_SSD_SLICES][back_size<PER>::PITCH]; /* of U; backwards only */
    float border[HEADS][LS_SSD_SLICES][back_size<PER>::PITCH];        /* of T; forwards after the last token */
};

static __device__ __forceinline__ void sync_roles(void) {
    asm volatile("bar.sync 1, %0;" ::"n"(WALKERS + HELPERS) : "memory");
}

/* Where channel p of a head lies by threads. */
template <int PER>
static __device__ __forceinline__ int by_threads(int p) {
    using SIZE = back_size<PER>;
    const int k = p / COLUMNS;
    return k / SIZE::WORD * SIZE::SEGMENT + p % COLUMNS * SIZE::WORD + k % SIZE::WORD;
}

/* What both roles know of the block. */
typedef struct place {
    const ls_span *span;
    int64_t span_i, entry, block, head, group, n_tiles; /* head: the first */
} place;

/* The tile that is the i-th on the walk. */
template <bool BACK>
static __device__ __forceinline__ int64_t tile_at(const place *at, int64_t i) {
    return BACK ? at->n_tiles - 1 - i : i;
}
static __device__ __forceinline__ int tokens_of(const place *at, int64_t tile) {
    const int64_t left = at->span->n_rows - tile * TILE;
    return left < TILE ? (int)left : TILE;
}

/* ---- walkers ---- */

template <int PER>
static __device__ __forceinline__ void read_own(float to[PER], const float *row) {
    using SIZE = back_size<PER>;
#pragma unroll
    for (int i = 0; i < PER / SIZE::WORD; i++) {
        if constexpr (SIZE::WORD == 4) {
            const float4 v = *(const float4 *)(row + i * SIZE::SEGMENT);
            to[4 * i] = v.x, to[4 * i + 1] = v.y, to[4 * i + 2] = v.z, to[4 * i + 3] = v.w;
        } else {
            const float2 v = *(const float2 *)(row + i * SIZE::SEGMENT);
            to[2 * i] = v.x, to[2 * i + 1] = v.y;
        }
    }
}

/* Two values of which the lane's partner across `lane` keeps the other: the sum over both lanes of the one it keeps. */
static __device__ __forceinline__ float exchange(float low, float high, int lane) {
    const bool upper = (int)threadIdx.x & lane;
    return ls_add(upper ? high : low, __shfl_xor_sync(LS_ALL_LANES, upper ? low : high, lane));
}

/* The thread's chains of the fold over channels of with[p] * s[p], the first halving done. */
template <int PER>
static __device__ __forceinline__ float fold_own(const float with[PER], const float s[PER]) {
    float even = 0.0f, odd = 0.0f;
#pragma unroll
    for (int j = 0; j < PER; j += 2) {
        even = ls_fma(with[j], s[j], even);
        odd = ls_fma(with[j + 1], s[j + 1], odd);
    }
    return ls_add(even, odd);
}

/* State m of a thread lies in a head's states at this number. */
static __device__ __forceinline__ int state_of(int m, int slice) {
    return m / 4 * 4 * LS_SSD_SLICES + slice * 4 + m % 4;
}

template <int PER>
static __device__ __forceinline__ void rescale(float s[LS_SSD_OWN][PER], float factor) {
    if (factor == 1.0f) return;
#pragma unroll
    for (int m = 0; m < LS_SSD_OWN; m++)
#pragma unroll
        for (int j = 0; j < PER; j++) s[m][j] = ls_mul(s[m][j], factor);
}

template <int PER>
static __device__ __forceinline__ void keep(const float s[LS_SSD_OWN][PER], float *kept, int slice, int column) {
#pragma unroll
    for (int m = 0; m < LS_SSD_OWN; m++)
#pragma unroll
        for (int j = 0; j < PER; j++) kept[state_of(m, slice) * back_size<PER>::DIM + column + COLUMNS * j] = s[m][j];
}

/* The state of a head, in a tensor of them; +0 where there are none. */
template <int PER>
static __device__ __forceinline__ void load_state(float s[LS_SSD_OWN][PER], const float *states,
                                                  const ssd_back_params *p, const place *at, int which, int slice,
                                                  int column) {
    const float *from = states + ls_ssd_state_at(p, at->span_i, at->head + which);
#pragma unroll
    for (int m = 0; m < LS_SSD_OWN; m++)
#pragma unroll
        for (int j = 0; j < PER; j++)
            s[m][j] = states != NULL ? from[state_of(m, slice) * back_size<PER>::DIM + column + COLUMNS * j] : 0.0f;
}

/* Whether a piece's S and A are kept at a tile, and its W is made from them. */
template <bool STATES>
static __device__ __forceinline__ bool is_border(const ssd_back_params *p, int64_t tile) {
    return tile % (LS_SSD_PIECE / TILE) == 0 && (tile > 0 || (STATES && p->a.initial != NULL));
}

/* W's fold at a border: S is in the workspace. After the last token s is S, and its gradient is what is read. */
template <int PER>
static __device__ __forceinline__ void fold_border(const float g[LS_SSD_OWN][PER], const float *kept, float *border,
                                                   int slice, int column) {
    float sum[PER];
#pragma unroll
    for (int j = 0; j < PER; j++) sum[j] = 0.0f;
#pragma unroll
    for (int m = 0; m < LS_SSD_OWN; m++) {
        /* Two states are on their way at a time: more would not fit the registers beside g. */
        if (m % 2 == 0) asm volatile("" ::: "memory");
        const float *from = kept + state_of(m, slice) * back_size<PER>::DIM + column;
#pragma unroll
        for (int j = 0; j < PER; j++) sum[j] = ls_fma(g[m][j], from[COLUMNS * j], sum[j]);
    }
#pragma unroll
    for (int j = 0; j < PER; j++) border[column + COLUMNS * j] = sum[j];
}

/* One token: s is S or g. */
template <bool BACK, int PER>
static __device__ __forceinline__ void walk_token(float s[LS_SSD_OWN][PER], const float *bc, const float *drive_row,
                                                  const float *with_row, float *part, float *folded) {
    float drive[PER], with[PER], u[PER], waiting = 0.0f;
    read_own<PER>(drive, drive_row);
    read_own<PER>(with, with_row);
#pragma unroll
    for (int j = 0; j < PER; j++) u[j] = 0.0f;
#pragma unroll
    for (int i = 0; i < LS_SSD_OWN / 4; i++) {
        const float4 by4 = *(const float4 *)(bc + (BACK ? LS_SSD_STATES : 0) + i * 4 * LS_SSD_SLICES);
        const float4 b4 = *(const float4 *)(bc + i * 4 * LS_SSD_SLICES);
        const float by[4] = {by4.x, by4.y, by4.z, by4.w}, b[4] = {b4.x, b4.y, b4.z, b4.w};
        float f[4];
#pragma unroll
        for (int n = 0; n < 4; n++) {
            float *own = s[4 * i + n];
            f[n] = fold_own<PER>(with, own);
            if (BACK)
#pragma unroll
                for (int j = 0; j < PER; j++) u[j] = ls_fma(b[n], own[j], u[j]);
#pragma unroll
            for (int j = 0; j < PER; j++) own[j] = ls_fma(drive[j], by[n], own[j]);
        }
        /* Halves 4 and 2 leave one of the four states to a lane, 1 leaves one of two fours. */
        const float mine = exchange(exchange(f[0], f[2], 4), exchange(f[1], f[3], 4), 2);
        if (i % 2 == 0)
            waiting = mine;
        else
            folded[(i - 1) * 4 * LS_SSD_SLICES] = exchange(waiting, mine, 1);
    }
    if (BACK)
#pragma unroll
        for (int j = 0; j < PER; j++) part[COLUMNS * j] = u[j];
}

template <bool BACK, int PER, bool STATES>
static __device__ __forceinline__ void walk(back_memory<PER> *memory, const ssd_back_params *p, const place *at) {
    using SIZE = back_size<PER>;
    const int thread = (int)threadIdx.x, column = thread % COLUMNS, warp = thread / 32, which = warp / 2,
              slice = warp % 2 * 4 + thread % 32 / COLUMNS;
    /* The states of `folded` that are left to the lane are this one and that of two fours further. */
    const int mine = slice * 4 + column % 2 * 4 * LS_SSD_SLICES + column / 4 * 2 + column / 2 % 2;
    float s[LS_SSD_OWN][PER];
    load_state<PER>(s, !STATES ? NULL : BACK ? p->a.dfinal : p->a.initial, p, at, which, slice, column);
    sync_roles(); /* the helpers' first steps; a barrier for them alone is one that racecheck does not follow */
    sync_roles();
#pragma unroll 1
    for (int64_t i = 0; i < at->n_tiles; i++) {
        const int64_t tile = tile_at<BACK>(at, i);
        const int n = tokens_of(at, tile), even = (int)(i % 2), third = (int)(i % 3);
        const bool border = is_border<STATES>(p, tile);
        float *kept = ls_ssd_kept(p, at->entry + tile / (LS_SSD_PIECE / TILE), at->head + which);
        if (!BACK && border) {
            rescale<PER>(s, memory->step[i % 4][0][which].factor);
            keep<PER>(s, kept, slice, column);
        }
#pragma unroll 1
        for (int step_i = 0; step_i < n; step_i++) {
            const int t = BACK ? n - 1 - step_i : step_i;
            if (BACK || !border || t > 0) rescale<PER>(s, memory->step[i % 4][t][which].factor);
            walk_token<BACK, PER>(s, memory->bc[third][t][0] + slice * 4,
                                  memory->drive[even][t][which] + column * SIZE::WORD,
                                  memory->with[third][t][which] + column * SIZE::WORD,
                                  memory->part[even][t][which][slice] + column, memory->folded[even][t][which] + mine);
        }
        if (BACK && border) fold_border<PER>(s, kept, memory->border[which][slice], slice, column);
        sync_roles();
    }
    if (!STATES) return;
    const int64_t state = ls_ssd_state_at(p, at->span_i, at->head + which);
    if (!BACK && p->a.dfinal != NULL) {
        fold_border<PER>(s, p->a.dfinal + state, memory->border[which][slice], slice, column);
        sync_roles();
    }
    if (BACK && p->a.dinitial != NULL) {
        const back_step *first = &memory->step[(at->n_tiles - 1) % 4][0][which];
        const float decay = ls_exp(ls_mul(first->dt, p->a.a[at->head + which])), factor = ls_mul(first->scale, decay);
#pragma unroll
        for (int m = 0; m < LS_SSD_OWN; m++)
#pragma unroll
            for (int j = 0; j < PER; j++) s[m][j] = ls_mul(factor, s[m][j]);
        keep<PER>(s, p->a.dinitial + state, slice, column);
    }
}

/* ---- helpers ---- */

/* A helper's inputs of a tile, as stored. */
template <int PER, int IN>
struct raw_tile {
    ls_vec8<IN> bc, x[back_size<PER>::LOADS];
    ls_vec8<LS_F32> dy[back_size<PER>::LOADS];
};

/* Where a helper's load r of x and dy lies. */
template <int PER>
struct load_place {
    int t, which, first;
    bool there;
};
template <int PER>
static __device__ __forceinline__ load_place<PER> load_at(int thread, int r) {
    constexpr int DIM8 = back_size<PER>::DIM / 8;
    const int at = thread + r * HELPERS;
    return {at / (HEADS * DIM8), at / DIM8 % HEADS, at % DIM8 * 8, at < TILE * HEADS * DIM8};
}

/* What does not exist is replaced by what does. */
template <int PER, int IN>
static __device__ __forceinline__ void load_tile(raw_tile<PER, IN> *raw, const ssd_back_params *p, const place *at,
                                                 int thread, int64_t tile) {
    const ls_ssd_backward_args *a = &p->a;
    const int n = tokens_of(at, tile), token = thread / (2 * STATES8);
    const int64_t row = at->span->row + tile * TILE, state = at->group * LS_SSD_STATES + thread % STATES8 * 8;
    const int64_t from = row + (token < n ? token : n - 1);
    raw->bc = thread / STATES8 % 2 == 0 ? ls_eight_load<IN>(a->b, from * a->b_stride + state, p->vectors)
                                        : ls_eight_load<IN>(a->cc, from * a->c_stride + state, p->vectors);
#pragma unroll
    for (int r = 0; r < back_size<PER>::LOADS; r++) {
        const load_place<PER> l = load_at<PER>(thread, r);
        const int64_t of = row + (l.t < n ? l.t : n - 1),
                      channel = (at->head + l.which) * back_size<PER>::DIM + l.first;
        raw->x[r] = ls_eight_load<IN>(a->x, of * a->x_stride + channel, p->vectors);
        raw->dy[r] = ls_eight_load<LS_F32>(a->dout, of * a->dout_stride + channel, p->vectors);
    }
}

/* Into the buffers of the i-th tile, whose steps are known. */
template <bool BACK, int PER, int IN>
static __device__ __forceinline__ void prepare_tile(back_memory<PER> *memory, const raw_tile<PER, IN> *raw, int thread,
                                                    int64_t i) {
    using SIZE = back_size<PER>;
    const int even = (int)(i % 2), third = (int)(i % 3);
    ls_eight_widen<IN>(&memory->bc[third][thread / (2 * STATES8)][thread / STATES8 % 2][thread % STATES8 * 8], raw->bc);
#pragma unroll
    for (int r = 0; r < SIZE::LOADS; r++) {
        const load_place<PER> l = load_at<PER>(thread, r);
        if (!l.there) continue;
        const int k = l.first / COLUMNS, to = k / SIZE::WORD * SIZE::SEGMENT + k % SIZE::WORD;
        const float scale = memory->step[i % 4][l.t][l.which].drive;
        float *drive = memory->drive[even][l.t][l.which] + to, *with = memory->with[third][l.t][l.which] + to;
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const float x = ls_vec8_get<IN>(raw->x[r], j), dy = ls_vec8_get<LS_F32>(raw->dy[r], j);
            drive[j * SIZE::WORD] = ls_mul(scale, BACK ? dy : x);
            with[j * SIZE::WORD] = BACK ? x : dy;
        }
        float *other = &memory->other[third][l.t][l.which][l.first];
        if (BACK)
            ls_eight_widen<LS_F32>(other, raw->dy[r]);
        else
            ls_eight_widen<IN>(other, raw->x[r]);
    }
}

/* A lane of the first warp of helpers has a token of the tile and a head. Forwards scale is A and before means nothing;
 * backwards it is F, and before the decay of the token after. */
typedef struct step_lane {
    float bias, rate, scale, before;
    int token, which;
} step_lane;

template <bool BACK>
static __device__ __forceinline__ void make_steps(back_step (*to)[HEADS], step_lane *lane, const ssd_back_params *p,
                                                  float raw, int n) {
    const float dt = ls_ssd_clamp(ls_softplus(ls_add(raw, lane->bias)), p->a.dt_min, p->a.dt_max);
    const float decay = ls_exp(ls_mul(dt, lane->rate));
    back_step mine = {0.0f, 1.0f, 1.0f, dt};
#pragma unroll
    for (int step_i = 0; step_i < TILE; step_i++) {
        const int t = BACK ? TILE - 1 - step_i : step_i;
        const float of = __shfl_sync(LS_ALL_LANES, decay, t * HEADS + lane->which);
        const float product = ls_mul(lane->scale, BACK ? lane->before : of);
        const bool rescaled = product < LS_SSD_SCALE_MIN;
        if (t >= n) continue;
        lane->scale = rescaled ? 1.0f : product;
        lane->before = of;
        if (t == lane->token) {
            mine.scale = lane->scale;
            mine.factor = rescaled ? product : 1.0f;
        }
    }
    mine.drive = BACK ? ls_div(1.0f, mine.scale) : ls_mul(dt, ls_div(1.0f, mine.scale));
    if (lane->token < TILE) to[lane->token][lane->which] = mine;
}

/* x over the eight lanes of a token and head by halves 4, 2, 1. */
static __device__ __forceinline__ float join_columns(float x) {
    x = ls_add(x, __shfl_xor_sync(LS_ALL_LANES, x, 4));
    x = ls_add(x, __shfl_xor_sync(LS_ALL_LANES, x, 2));
    return ls_add(x, __shfl_xor_sync(LS_ALL_LANES, x, 1));
}
/* x over the eight lanes of a token and head, slices by neighbours. */
static __device__ __forceinline__ float join_slices(float x) {
    x = ls_add(x, __shfl_xor_sync(LS_ALL_LANES, x, 1));
    x = ls_add(x, __shfl_xor_sync(LS_ALL_LANES, x, 2));
    return ls_add(x, __shfl_xor_sync(LS_ALL_LANES, x, 4));
}

/* The lane's slice of the fold over n of x[n] * y[n]. */
static __device__ __forceinline__ float fold_slice(const float *x, const float *y, int slice) {
    float sum = 0.0f;
#pragma unroll
    for (int m = 0; m < LS_SSD_OWN; m++) sum = ls_fma(x[state_of(m, slice)], y[state_of(m, slice)], sum);
    return sum;
}

/* Channel p of the slices that a head's walkers left. */
template <int PER>
static __device__ __forceinline__ float join_parts(const float (*part)[back_size<PER>::PITCH], int p) {
    float slice[LS_SSD_SLICES];
#pragma unroll
    for (int s = 0; s < LS_SSD_SLICES; s++) slice[s] = part[s][p];
    return ls_ssd_join(slice);
}

/* Shares of dcc or db of the tile: a thread is a state. */
template <bool BACK, int PER>
static __device__ __forceinline__ void finish_shares(const back_memory<PER> *memory, const ssd_back_params *p,
                                                     const place *at, int thread, int64_t i, int64_t row, int n) {
    for (int t = 0; t < n; t++) {
        float sum = 0.0f;
#pragma unroll
        for (int h = 0; h < HEADS; h++) {
            const back_step *step = &memory->step[i % 4][t][h];
            sum = ls_fma(BACK ? ls_mul(step->dt, step->scale) : step->scale, memory->folded[i % 2][t][h][thread], sum);
        }
        ls_ssd_share(p, at->block, row + t, BACK ? 0 : 1)[thread] = sum;
    }
}

/* Forwards, a tile: e, y, k, dcc's shares; where the state was kept, its scale. Eight lanes a token and head. */
template <int PER, bool STATES>
static __device__ __forceinline__ void finish_forwards(const back_memory<PER> *memory, const ssd_back_params *p,
                                                       const place *at, int thread, int64_t i) {
    const int n = tokens_of(at, i), lane = thread % 8, which = thread / 8 % HEADS, t = thread / 8 / HEADS;
    const int64_t row = at->span->row + i * TILE, head = at->head + which;
    const float *bc = memory->bc[i % 3][t][0];
    const float scale = memory->step[i % 4][t][which].scale;
    float even = 0.0f, odd = 0.0f;
    const float e = ls_mul(scale, join_slices(fold_slice(bc + LS_SSD_STATES, memory->folded[i % 2][t][which], lane)));
    const float own = join_slices(fold_slice(bc, bc + LS_SSD_STATES, lane));
#pragma unroll
    for (int k = 0; k < PER; k++) {
        const int c = lane + COLUMNS * k;
        float *chain = k % 2 == 0 ? &even : &odd;
        *chain = ls_fma(memory->with[i % 3][t][which][by_threads<PER>(c)], memory->other[i % 3][t][which][c], *chain);
    }
    const float y = join_columns(ls_add(even, odd));
    if (lane == 0 && t < n) {
        p->work[p->plan.e + (row + t) * p->a.n_heads + head] = e;
        p->work[p->plan.y + (row + t) * p->a.n_heads + head] = y;
        if (head % p->group_heads == 0) p->work[p->plan.k + (row + t) * p->a.n_groups + at->group] = own;
        if (t == 0 && is_border<STATES>(p, i))
            p->work[p->plan.first + (at->entry + i / (LS_SSD_PIECE / TILE)) * p->a.n_heads + head] = scale;
    }
    finish_shares<false, PER>(memory, p, at, thread, i, row, n);
}

/* The fold over channels of what the walkers left at a border, by the eight lanes of a head. */
template <int PER>
static __device__ __forceinline__ float join_border(const back_memory<PER> *memory, int which, int lane) {
    float even = 0.0f, odd = 0.0f;
#pragma unroll
    for (int k = 0; k < PER; k++) {
        float *chain = k % 2 == 0 ? &even : &odd;
        *chain = ls_add(*chain, join_parts<PER>(memory->border[which], lane + COLUMNS * k));
    }
    return join_columns(ls_add(even, odd));
}

/* W after the last token. A warp: eight lanes a head. */
template <int PER>
static __device__ __forceinline__ void finish_last(const back_memory<PER> *memory, const ssd_back_params *p,
                                                   const place *at, int thread) {
    const int64_t tile = at->n_tiles - 1;
    const int lane = thread % 8, which = thread / 8;
    const float scale = memory->step[tile % 4][tokens_of(at, tile) - 1][which].scale;
    const float w = ls_mul(scale, join_border<PER>(memory, which, lane));
    if (lane == 0) p->work[p->plan.last + at->span_i * p->a.n_heads + at->head + which] = w;
}

/* Backwards, a tile: dx, x, db's shares, and W of a piece's first token. */
template <int PER, bool STATES>
static __device__ __forceinline__ void finish_backwards(const back_memory<PER> *memory, const ssd_back_params *p,
                                                        const place *at, int thread, int64_t i) {
    const int64_t tile = at->n_tiles - 1 - i, row = at->span->row + tile * TILE;
    const int n = tokens_of(at, tile), lane = thread % 8, which = thread / 8 % HEADS, t = thread / 8 / HEADS;
    const int64_t head = at->head + which, of = row + (t < n ? t : n - 1);
    const back_step step = memory->step[i % 4][t][which];
    const float own = p->work[p->plan.k + of * p->a.n_groups + at->group], d = p->a.d[head];
    float *dx = p->a.dx + of * p->a.dx_stride + head * back_size<PER>::DIM;
    float even = 0.0f, odd = 0.0f;
#pragma unroll
    for (int k = 0; k < PER; k++) {
        const int c = lane + COLUMNS * k;
        const float u = ls_mul(step.scale, join_parts<PER>(memory->part[i % 2][t][which], c));
        const float dy = memory->other[i % 3][t][which][c];
        float *chain = k % 2 == 0 ? &even : &odd;
        *chain = ls_fma(memory->with[i % 3][t][which][by_threads<PER>(c)], u, *chain);
        if (t < n) dx[c] = ls_fma(d, dy, ls_mul(step.dt, ls_fma(own, dy, u)));
    }
    const float x = join_columns(ls_add(even, odd));
    if (lane == 0 && t < n) p->work[p->plan.x + (row + t) * p->a.n_heads + head] = x;
    if (tile % (LS_SSD_PIECE / TILE) == 0 && t == 0) {
        float *first = &p->work[p->plan.first + (at->entry + tile / (LS_SSD_PIECE / TILE)) * p->a.n_heads + head];
        float w = 0.0f;
        if (is_border<STATES>(p, tile)) w = ls_mul(ls_mul(*first, step.scale), join_border<PER>(memory, which, lane));
        __syncwarp();
        if (lane == 0) *first = w;
    }
    finish_shares<true, PER>(memory, p, at, thread, i, row, n);
}

template <bool BACK, int PER, bool STATES>
static __device__ __forceinline__ void finish_tile(const back_memory<PER> *memory, const ssd_back_params *p,
                                                   const place *at, int thread, int64_t i) {
    if (BACK)
        finish_backwards<PER, STATES>(memory, p, at, thread, i);
    else
        finish_forwards<PER, STATES>(memory, p, at, thread, i);
}

/* The states that a border of the i-th tile reads, into the cache. */
template <int PER, bool STATES>
static __device__ __forceinline__ void fetch_border(const ssd_back_params *p, const place *at, int thread, int64_t i) {
    const int64_t tile = at->n_tiles - 1 - i;
    if (tile < 0 || !is_border<STATES>(p, tile)) return;
    const char *kept = (const char *)ls_ssd_kept(p, at->entry + tile / (LS_SSD_PIECE / TILE), at->head);
    for (int line = thread; line < HEADS * LS_SSD_STATES * back_size<PER>::DIM / 32; line += HELPERS)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(kept + (int64_t)line * 128));
}

template <bool BACK, int PER, int IN, bool STATES>
static __device__ __forceinline__ void help(back_memory<PER> *memory, const ssd_back_params *p, const place *at) {
    const int thread = (int)threadIdx.x - WALKERS;
    const int64_t n_tiles = at->n_tiles;
    raw_tile<PER, IN> raw;
    step_lane lane;
    float dt_raw = 0.0f;
    lane.token = thread / HEADS;
    lane.which = thread % HEADS;
    lane.scale = lane.before = 1.0f;
    if (thread < 32) {
        lane.bias = p->a.dt_bias[at->head + lane.which];
        lane.rate = p->a.a[at->head + lane.which];
        if (STATES && !BACK) lane.scale = ls_ssd_first_scale(p, at->span_i, at->head + lane.which);
    }
    const auto tile_of = [&](int64_t i) { return tile_at<BACK>(at, i); };
    /* dt_raw of the lane's token of the i-th tile, or of a token that exists. */
    const auto load_dt = [&](int64_t i) {
        const int64_t t = tile_of(i) * TILE + (lane.token < TILE ? lane.token : 0);
        return ls_load_one<IN>(p->a.dt_raw,
                               (at->span->row + (t < at->span->n_rows ? t : at->span->n_rows - 1)) * p->a.dt_stride +
                                   at->head + lane.which);
    };
    if (thread < 32) {
        make_steps<BACK>(memory->step[0], &lane, p, load_dt(0), tokens_of(at, tile_of(0)));
        if (n_tiles > 1) make_steps<BACK>(memory->step[1], &lane, p, load_dt(1), tokens_of(at, tile_of(1)));
        if (n_tiles > 2) dt_raw = load_dt(2);
    }
    load_tile<PER, IN>(&raw, p, at, thread, tile_of(0));
    sync_roles(); /* the steps are there */
    prepare_tile<BACK, PER, IN>(memory, &raw, thread, 0);
    if (n_tiles > 1) load_tile<PER, IN>(&raw, p, at, thread, tile_of(1));
    sync_roles();
#pragma unroll 1
    for (int64_t i = 0; i < n_tiles; i++) {
        if (i + 1 < n_tiles) prepare_tile<BACK, PER, IN>(memory, &raw, thread, i + 1);
        if (i + 2 < n_tiles) {
            load_tile<PER, IN>(&raw, p, at, thread, tile_of(i + 2));
            if (thread < 32) {
                const float now = dt_raw;
                if (i + 3 < n_tiles) dt_raw = load_dt(i + 3);
                make_steps<BACK>(memory->step[(i + 2) % 4], &lane, p, now, tokens_of(at, tile_of(i + 2)));
            }
            if (BACK) fetch_border<PER, STATES>(p, at, thread, i + 2);
        }
        if (i > 0) finish_tile<BACK, PER, STATES>(memory, p, at, thread, i - 1);
        sync_roles();
    }
    finish_tile<BACK, PER, STATES>(memory, p, at, thread, n_tiles - 1);
    if (!STATES || BACK || p->a.dfinal == NULL) return;
    sync_roles();
    if (thread < 32) finish_last<PER>(memory, p, at, thread);
}

template <bool BACK, int PER, int IN, bool STATES>
static __global__ void __launch_bounds__(WALKERS + HELPERS, 1) back_kernel(const __grid_constant__ ssd_back_params p) {
    ls_cuda_begin();
    extern __shared__ __align__(16) char shared[];
    auto *memory = (back_memory<PER> *)shared;
    const int64_t span_i = blockIdx.x / p.plan.n_blocks;
    place at;
    at.span = &p.a.spans[span_i];
    if (p.fault->code != LS_FAULT_NONE || at.span->slot < 0 || at.span->n_rows == 0) return;
    at.span_i = span_i;
    at.entry = ls_ssd_entry(at.span, span_i);
    at.block = blockIdx.x % p.plan.n_blocks;
    at.head = at.block * HEADS;
    at.group = at.head / p.group_heads;
    at.n_tiles = (at.span->n_rows + TILE - 1) / TILE;
    if (threadIdx.x >= WALKERS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 72;");
        help<BACK, PER, IN, STATES>(memory, &p, &at);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 216;");
        walk<BACK, PER, STATES>(memory, &p, &at);
    }
}

template <int PER, int IN, bool STATES>
static ls_status launch_walks(const ls_exec *exec, const ssd_back_params *p, ls_error *err) {
    const int64_t blocks = ls_launch_blocks(p->a.n_spans, p->plan.n_blocks, 1);
    const ls_launch walks = {
        "ssd_backward, walks", {blocks, 1, 1}, WALKERS + HELPERS, (int64_t)sizeof(back_memory<PER>), NULL, 0};
    ssd_back_params params = *p;
    LS_CUDA_TRY(ls_cuda_launch_within(exec, &walks, LS_HOPPER_SHARED_MAX,
                                      (const void *)back_kernel<false, PER, IN, STATES>, &params, err));
    return ls_cuda_launch_within(exec, &walks, LS_HOPPER_SHARED_MAX, (const void *)back_kernel<true, PER, IN, STATES>,
                                 &params, err);
}

template <int PER, int IN>
static ls_status launch(const ls_exec *exec, const ssd_back_params *p, ls_error *err) {
    const bool states = p->a.initial != NULL || p->a.dinitial != NULL || p->a.dfinal != NULL;
    return states ? launch_walks<PER, IN, true>(exec, p, err) : launch_walks<PER, IN, false>(exec, p, err);
}

ls_status ls_ssd_back_walks(const ls_exec *exec, const ssd_back_params *p, bool *taken, ls_error *err) {
    const ls_ssd_backward_args *a = &p->a;
    const bool bf16 = a->in_dtype == LS_BF16;
    LS_CUDA_TRY(ls_is_hopper(taken, "ssd_backward", err));
    *taken = *taken && a->n_states == LS_SSD_STATES && p->group_heads % HEADS == 0 &&
             (a->head_dim == 64 || a->head_dim == 80);
    if (!*taken) return LS_OK;
    if (a->head_dim == 64) return bf16 ? launch<8, LS_BF16>(exec, p, err) : launch<8, LS_F32>(exec, p, err);
    return bf16 ? launch<10, LS_BF16>(exec, p, err) : launch<10, LS_F32>(exec, p, err);
}
