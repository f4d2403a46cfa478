/* Walks of delta through time on sm_90, of keys of 128 rows: the op's, and both of its gradient. A block has PER
 * columns of each of 32 groups of four threads; a thread has the rows of four of the sixteen chains in registers. A
 * warpgroup walks and does nothing else; another, with fewer registers, prepares the tile of tokens after it and
 * finishes the one before it. The two meet once a tile. Backwards, tiles and their tokens come from the last to the
 * first. */
#include "op/cuda/delta_cuda.h"
#include "op/cuda/ring_cuda.h"

#define WALKERS 128
#define HELPERS 128
#define TILE 8 /* tokens */
#define KEYS LS_DELTA_KEYS
#define OWN (KEYS / 4)            /* rows of a thread */
#define SLICES 4                  /* threads that share columns */
#define GROUPS (WALKERS / SLICES) /* of columns */
#define BUFFERS 3                 /* of what a tile is finished with as well */
#define LANES (HELPERS / TILE)    /* helpers of a token */
static_assert(LANES * 8 == KEYS && LS_DELTA_PIECE % TILE == 0, "a tile");

/* Of a token: beta, what the state is multiplied by first, w or r, A or F. */
typedef struct walk_step {
    float beta, factor, drive, scale;
} walk_step;

template <int PER>
struct walk_memory {
    static constexpr int COLUMNS = PER * GROUPS, PITCH = COLUMNS + 8; /* slices meet in no bank */
    float k[2][TILE][KEYS], q[2][TILE][KEYS];
    float drive[BUFFERS][TILE][COLUMNS]; /* w v, or r dy */
    walk_step step[4][TILE];
    float own[BUFFERS][TILE];           /* x; backwards only */
    float part[2][TILE][SLICES][PITCH]; /* slices of o; d or c' in the first of them */
};

/* What both roles know of the block. */
typedef struct place {
    const ls_span *span;
    int64_t span_i, head, key, column, n_tiles; /* column: the first */
} place;

static __device__ __forceinline__ void sync_roles(void) {
    asm volatile("bar.sync 1, %0;" ::"n"(WALKERS + HELPERS) : "memory");
}

/* The blocks of a head are a cluster: none writes the head's scale before all have read it. */
static __device__ __forceinline__ void cluster_arrive(void) { asm volatile("barrier.cluster.arrive;" ::: "memory"); }
static __device__ __forceinline__ void cluster_wait(void) { asm volatile("barrier.cluster.wait;" ::: "memory"); }

/* The first token of the i-th tile of a walk, and how many it has. */
template <int MODE>
static __device__ __forceinline__ int64_t tile_begin(const place *at, int64_t i) {
    return (MODE == LS_DELTA_BACK ? at->n_tiles - 1 - i : i) * TILE;
}
template <int MODE>
static __device__ __forceinline__ int tile_tokens(const place *at, int64_t i) {
    const int64_t left = at->span->n_rows - tile_begin<MODE>(at, i);
    return left < TILE ? (int)left : TILE;
}

/* ---- walkers ---- */

/* Row 16 m + 4 slice + c of the state is 4 m + c of the thread's. */
template <int PER>
struct walk_state {
    float s[OWN][PER];
};

static __device__ __forceinline__ void read_rows(float x[OWN], const float *row) {
#pragma unroll
    for (int m = 0; m < OWN / 4; m++) {
        const float4 v = *(const float4 *)(row + m * LS_DELTA_FOLD);
        x[4 * m] = v.x, x[4 * m + 1] = v.y, x[4 * m + 2] = v.z, x[4 * m + 3] = v.w;
    }
}

/* The fold of the thread's four chains. */
template <int PER>
static __device__ __forceinline__ void fold_own(float y[PER], const walk_state<PER> *k, const float x[OWN]) {
#pragma unroll
    for (int j = 0; j < PER; j++) {
        float c[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
        for (int i = 0; i < OWN; i++) c[i % 4] = ls_fma(x[i], k->s[i][j], c[i % 4]);
        y[j] = ls_add(ls_add(c[0], c[1]), ls_add(c[2], c[3]));
    }
}

template <int PER>
static __device__ __forceinline__ void fold_slices(float y[PER]) {
#pragma unroll
    for (int step = 1; step < SLICES; step *= 2)
#pragma unroll
        for (int j = 0; j < PER; j++) y[j] = ls_add(y[j], __shfl_xor_sync(LS_ALL_LANES, y[j], step));
}

template <int PER>
static __device__ __forceinline__ void take(walk_state<PER> *k, const float x[OWN], const float d[PER]) {
#pragma unroll
    for (int i = 0; i < OWN; i++)
#pragma unroll
        for (int j = 0; j < PER; j++) k->s[i][j] = ls_fma(x[i], d[j], k->s[i][j]);
}

template <int PER>
static __device__ __forceinline__ void rescale(walk_state<PER> *k, float factor) {
#pragma unroll
    for (int i = 0; i < OWN; i++)
#pragma unroll
        for (int j = 0; j < PER; j++) k->s[i][j] = ls_mul(k->s[i][j], factor);
}

template <int PER>
static __device__ __forceinline__ void read_columns(float to[PER], const float *from) {
    if constexpr (PER == 4) {
        const float4 v = *(const float4 *)from;
        to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
    } else if constexpr (PER == 2) {
        const float2 v = *(const float2 *)from;
        to[0] = v.x, to[1] = v.y;
    } else {
        to[0] = *from;
    }
}

template <int PER>
static __device__ __forceinline__ void write_columns(float *to, const float y[PER]) {
    if constexpr (PER == 4)
        *(float4 *)to = make_float4(y[0], y[1], y[2], y[3]);
    else if constexpr (PER == 2)
        *(float2 *)to = make_float2(y[0], y[1]);
    else
        *to = y[0];
}

/* head: of a whole matrix, at the thread's first row and column. */
template <int PER, bool STORE>
static __device__ __forceinline__ void move_state(walk_state<PER> *k, float *head, int64_t dim) {
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        float *at = head + (i / 4 * LS_DELTA_FOLD + i % 4) * dim;
        if (STORE)
            write_columns<PER>(at, k->s[i]);
        else
            read_columns<PER>(k->s[i], at);
    }
}

/* The fold over rows of x * (factor * y): x is what the walk has; y of a whole matrix, at the thread's first row and
 * column. */
template <int PER>
static __device__ __forceinline__ void border_columns(float t[PER], const walk_state<PER> *x, const float *y,
                                                      float factor, int64_t dim) {
    float c[4][PER];
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < PER; j++) c[i][j] = 0.0f;
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        float row[PER];
        read_columns<PER>(row, y + (i / 4 * LS_DELTA_FOLD + i % 4) * dim);
#pragma unroll
        for (int j = 0; j < PER; j++) c[i % 4][j] = ls_fma(ls_mul(factor, row[j]), x->s[i][j], c[i % 4][j]);
    }
#pragma unroll
    for (int j = 0; j < PER; j++) t[j] = ls_add(ls_add(c[0][j], c[1][j]), ls_add(c[2][j], c[3][j]));
    fold_slices<PER>(t);
}

/* What a walker knows of itself and of its tile. */
template <int PER>
struct walker {
    const float *k, *q, *drive; /* the tile's, at the thread's rows and columns */
    const walk_step *step;
    const float *own;
    float *part;
    int64_t slice;
};

/* Token t of the tile forwards; the fold of the token before is made while the slices' sums are on their way. */
template <int PER, int MODE>
static __device__ __forceinline__ void token_forwards(walk_state<PER> *s, const walker<PER> *w, int64_t t) {
    using MEMORY = walk_memory<PER>;
    constexpr int PART = SLICES * MEMORY::PITCH;
    const float4 raw = *(const float4 *)&w->step[t];
    float x[OWN], y[PER], d[PER], o[PER], q[OWN];
    const bool rescaled = raw.y != 1.0f;
    const auto fold_before = [&]() {
        read_rows(q, w->q + (t - 1) * KEYS);
        fold_own<PER>(o, s, q);
        write_columns<PER>(w->part + (t - 1) * PART + w->slice * MEMORY::PITCH, o);
    };
    read_rows(x, w->k + t * KEYS);
    if (rescaled) {
        if (MODE == LS_DELTA_FORWARD && t > 0) fold_before();
        rescale<PER>(s, raw.y);
    }
    fold_own<PER>(y, s, x);
    fold_slices<PER>(y);
    if (MODE == LS_DELTA_FORWARD && t > 0 && !rescaled) fold_before();
    read_columns<PER>(d, w->drive + t * MEMORY::COLUMNS);
#pragma unroll
    for (int j = 0; j < PER; j++) d[j] = ls_fma(-raw.x, y[j], d[j]);
    if (MODE == LS_DELTA_KEEP && w->slice == 0) write_columns<PER>(w->part + t * PART, d);
    take<PER>(s, x, d);
}

template <int PER>
static __device__ __forceinline__ void token_backwards(walk_state<PER> *s, const walker<PER> *w, int64_t t) {
    using MEMORY = walk_memory<PER>;
    const float4 raw = *(const float4 *)&w->step[t];
    float k[OWN], q[OWN], inner[PER], z[PER], p[PER];
    read_rows(k, w->k + t * KEYS);
    if (raw.y != 1.0f) rescale<PER>(s, raw.y);
    fold_own<PER>(inner, s, k);
    fold_slices<PER>(inner);
    read_columns<PER>(z, w->drive + t * MEMORY::COLUMNS);
    read_rows(q, w->q + t * KEYS);
    take<PER>(s, q, z);
#pragma unroll
    for (int j = 0; j < PER; j++) p[j] = -ls_mul(raw.x, ls_fma(w->own[t], z[j], inner[j]));
    if (w->slice == 0) write_columns<PER>(w->part + t * (SLICES * MEMORY::PITCH), inner);
    take<PER>(s, k, p);
}

template <int PER, int MODE>
static __device__ __forceinline__ void walk(walk_memory<PER> *memory, const delta_params *p, const place *at) {
    using MEMORY = walk_memory<PER>;
    const int thread = (int)threadIdx.x, column = thread / SLICES * PER;
    const int64_t slice = thread % SLICES, dim = p->a.value_dim, each = KEYS * dim,
                  from = slice * 4 * dim + at->column + column;
    const int64_t entry = ls_delta_entry(at->span, at->span_i);
    const float *initial = NULL;
    walk_state<PER> s;
    if (MODE == LS_DELTA_FORWARD && at->span->pos > 0)
        initial = (const float *)ls_pool_at(&p->state, at->span->slot) + at->head * each;
    if (MODE == LS_DELTA_KEEP && p->a.initial != NULL)
        initial = p->a.initial + ls_delta_state_at(p, at->span_i, at->head);
    if (MODE == LS_DELTA_BACK && p->a.dfinal != NULL)
        initial = p->a.dfinal + ls_delta_state_at(p, at->span_i, at->head);
#pragma unroll
    for (int i = 0; i < OWN; i++)
#pragma unroll
        for (int j = 0; j < PER; j++) s.s[i][j] = 0.0f;
    if (initial != NULL) move_state<PER, false>(&s, (float *)initial + from, dim);
    sync_roles(); /* the helpers' first steps; a barrier for them alone is one that racecheck does not follow */
    if (MODE == LS_DELTA_FORWARD) cluster_arrive();
    sync_roles();
#pragma unroll 1
    for (int64_t i = 0; i < at->n_tiles; i++) {
        const int n = tile_tokens<MODE>(at, i), even = (int)(i % 2), third = (int)(i % BUFFERS);
        const int64_t begin = tile_begin<MODE>(at, i);
        const walker<PER> w = {.k = memory->k[even][0] + slice * 4,
                               .q = memory->q[even][0] + slice * 4,
                               .drive = memory->drive[third][0] + column,
                               .step = memory->step[i % 4],
                               .own = memory->own[third],
                               .part = memory->part[even][0][0] + column,
                               .slice = slice};
        if (MODE == LS_DELTA_KEEP && begin % LS_DELTA_PIECE == 0)
            move_state<PER, true>(
                &s, ls_delta_matrix(p, p->plan.states, entry + begin / LS_DELTA_PIECE, at->head) + from, dim);
        if (MODE == LS_DELTA_BACK) {
#pragma unroll 1
            for (int64_t t = n - 1; t >= 0; t--) token_backwards<PER>(&s, &w, t);
            if (begin % LS_DELTA_PIECE == 0) {
                const int64_t piece = entry + begin / LS_DELTA_PIECE;
                float t[PER];
                border_columns<PER>(t, &s, ls_delta_matrix(p, p->plan.states, piece, at->head) + from,
                                    *ls_delta_number(p, p->plan.factor, at->span->row + begin, at->head), dim);
                if (slice == 0) write_columns<PER>(ls_delta_border(p, piece, at->head) + at->column + column, t);
                move_state<PER, true>(&s, ls_delta_matrix(p, p->plan.grads, piece, at->head) + from, dim);
            }
        } else {
#pragma unroll 1
            for (int64_t t = 0; t < n; t++) token_forwards<PER, MODE>(&s, &w, t);
        }
        if (MODE == LS_DELTA_FORWARD) {
            float q[OWN], o[PER];
            read_rows(q, w.q + (int64_t)(n - 1) * KEYS);
            fold_own<PER>(o, &s, q);
            write_columns<PER>(w.part + (int64_t)(n - 1) * (SLICES * MEMORY::PITCH) + slice * MEMORY::PITCH, o);
        }
        sync_roles();
    }
    if (MODE == LS_DELTA_KEEP && p->a.dfinal != NULL) {
        float t[PER];
        border_columns<PER>(t, &s, p->a.dfinal + ls_delta_state_at(p, at->span_i, at->head) + from, 1.0f, dim);
        if (slice == 0) write_columns<PER>(ls_delta_last(p, at->span_i, at->head) + at->column + column, t);
    }
    if (MODE == LS_DELTA_FORWARD)
        move_state<PER, true>(&s, (float *)ls_pool_at(&p->state, at->span->slot) + at->head * each + from, dim);
    if (MODE == LS_DELTA_FORWARD) cluster_wait();
}

/* ---- helpers ---- */

/* A helper's inputs of a tile, as stored: rows of k and q, and of v or dy. */
template <int IN, int DRIVE>
struct raw_tile {
    ls_vec8<IN> k, q;
    ls_vec8<DRIVE> drive;
    float own;
};

/* Helper `thread` has eight elements of token thread / LANES; of columns likewise, by as many lanes as there are. */
template <int PER, int MODE, int IN, int DRIVE>
static __device__ __forceinline__ void load_tile(raw_tile<IN, DRIVE> *raw, const delta_params *p, const place *at,
                                                 int thread, int64_t i) {
    constexpr int COLUMN_LANES = walk_memory<PER>::COLUMNS / 8;
    const int n = tile_tokens<MODE>(at, i), t = thread / LANES, u = thread / COLUMN_LANES;
    const int64_t begin = at->span->row + tile_begin<MODE>(at, i), row = begin + (t < n ? t : n - 1);
    const int64_t of_key = at->key * KEYS + thread % LANES * 8;
    if (MODE == LS_DELTA_FORWARD) {
        raw->k = ls_eight_load<IN>(p->a.k, row * p->a.k_stride + of_key, p->vectors);
        raw->q = ls_eight_load<IN>(p->a.q, row * p->a.q_stride + of_key, p->vectors);
    } else {
        const int64_t from = row * p->a.n_key_heads * KEYS + of_key;
        raw->k = ls_eight_load<IN>(p->work + p->plan.keys, from, true);
        if (MODE == LS_DELTA_BACK) raw->q = ls_eight_load<IN>(p->work + p->plan.queries, from, true);
    }
    if (MODE == LS_DELTA_BACK && thread % LANES == 0)
        raw->own = p->work[p->plan.own + row * p->a.n_key_heads + at->key];
    if (u >= TILE) return;
    const int64_t driven = begin + (u < n ? u : n - 1);
    const int64_t column = at->head * p->a.value_dim + at->column + thread % COLUMN_LANES * 8;
    raw->drive = MODE == LS_DELTA_BACK ? ls_eight_load<DRIVE>(p->a.dout, driven * p->a.dout_stride + column, p->vectors)
                                       : ls_eight_load<DRIVE>(p->a.v, driven * p->a.v_stride + column, p->vectors);
}

/* 1 / length of a row of which each of 16 lanes has eight elements. */
template <int IN>
static __device__ __forceinline__ float norm_of(const ls_vec8<IN> &v) {
    float x[8];
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] = ls_vec8_get<IN>(v, i);
    return ls_delta_norm_of(ls_runs_sum<LANES>(x, x, 8));
}

template <int DTYPE>
static __device__ __forceinline__ void put_scaled(float *to, const ls_vec8<DTYPE> &v, float factor) {
#pragma unroll
    for (int j = 0; j < 8; j += 4)
        *(float4 *)(to + j) =
            make_float4(ls_mul(ls_vec8_get<DTYPE>(v, j), factor), ls_mul(ls_vec8_get<DTYPE>(v, j + 1), factor),
                        ls_mul(ls_vec8_get<DTYPE>(v, j + 2), factor), ls_mul(ls_vec8_get<DTYPE>(v, j + 3), factor));
}

/* Into the buffers of tile i, whose steps are known. */
template <int PER, int MODE, int IN, int DRIVE>
static __device__ __forceinline__ void prepare_tile(walk_memory<PER> *memory, const raw_tile<IN, DRIVE> *raw,
                                                    int thread, int64_t i) {
    constexpr int COLUMN_LANES = walk_memory<PER>::COLUMNS / 8;
    const int even = (int)(i % 2), third = (int)(i % BUFFERS), t = thread / LANES, first = thread % LANES * 8;
    if (MODE == LS_DELTA_FORWARD) {
        put_scaled<IN>(&memory->k[even][t][first], raw->k, norm_of<IN>(raw->k));
        put_scaled<IN>(&memory->q[even][t][first], raw->q, norm_of<IN>(raw->q));
    } else {
        ls_eight_widen<IN>(&memory->k[even][t][first], raw->k);
        if (MODE == LS_DELTA_BACK) ls_eight_widen<IN>(&memory->q[even][t][first], raw->q);
    }
    if (MODE == LS_DELTA_BACK && thread % LANES == 0) memory->own[third][t] = raw->own;
    const int u = thread / COLUMN_LANES;
    if (u >= TILE) return;
    put_scaled<DRIVE>(&memory->drive[third][u][thread % COLUMN_LANES * 8], raw->drive, memory->step[i % 4][u].drive);
}

/* What the first warp of helpers knows: a lane is a token. Scale, and backwards the decay of the token after, go on
 * from tile to tile. */
typedef struct step_lane {
    float bias, rate, scale, after, a, b;
} step_lane;

template <int MODE, int STORED>
static __device__ __forceinline__ void load_scalars(step_lane *lane, const delta_params *p, const place *at, int token,
                                                    int64_t i) {
    const int n = tile_tokens<MODE>(at, i);
    const int64_t row = at->span->row + tile_begin<MODE>(at, i) + (token < n ? token : n - 1);
    lane->a = ls_load_one<STORED>(p->a.a, row * p->a.a_stride + at->head);
    lane->b = ls_load_one<STORED>(p->a.b, row * p->a.b_stride + at->head);
}

/* The steps of tile i, from scalars as widened. All lanes of the warp call it. */
template <int MODE>
static __device__ __forceinline__ void make_steps(walk_step *to, step_lane *lane, const delta_params *p,
                                                  const place *at, int token, int64_t i) {
    const int n = tile_tokens<MODE>(at, i);
    const float decay = ls_exp(ls_mul(ls_softplus(ls_add(lane->a, lane->bias)), lane->rate));
    walk_step mine = {ls_sigmoid(lane->b), 1.0f, 0.0f, 1.0f};
#pragma unroll
    for (int u = 0; u < TILE; u++) {
        const int t = MODE == LS_DELTA_BACK ? TILE - 1 - u : u;
        const float own = __shfl_sync(LS_ALL_LANES, decay, t);
        const float product = ls_mul(lane->scale, MODE == LS_DELTA_BACK ? lane->after : own);
        const bool rescaled = product < LS_DELTA_SCALE_MIN;
        if (t < n) {
            lane->scale = rescaled ? 1.0f : product;
            lane->after = own;
        }
        if (t == token) {
            mine.scale = lane->scale;
            mine.factor = rescaled ? product : 1.0f;
        }
    }
    const float rest = ls_div(1.0f, mine.scale);
    mine.drive = MODE == LS_DELTA_BACK ? ls_mul(rest, ls_delta_query_scale(KEYS)) : ls_mul(mine.beta, rest);
    if (token >= TILE) return;
    to[token] = mine;
    if (MODE == LS_DELTA_FORWARD || at->column > 0 || token >= n) return;
    const int64_t row = at->span->row + tile_begin<MODE>(at, i) + token;
    *ls_delta_number(p, MODE == LS_DELTA_BACK ? p->plan.g_scale : p->plan.scale, row, at->head) = mine.scale;
    *ls_delta_number(p, MODE == LS_DELTA_BACK ? p->plan.g_factor : p->plan.factor, row, at->head) = mine.factor;
}

/* What tile i gave, four columns at a time. */
template <int PER, int MODE>
static __device__ __forceinline__ void finish_tile(const walk_memory<PER> *memory, const delta_params *p,
                                                   const place *at, int thread, int64_t i) {
    constexpr int FOURS = walk_memory<PER>::COLUMNS / 4;
    const int even = (int)(i % 2), third = (int)(i % BUFFERS), n = tile_tokens<MODE>(at, i);
    const int64_t begin = at->span->row + tile_begin<MODE>(at, i), dim = p->a.value_dim;
#pragma unroll 1
    for (int u = thread; u < n * FOURS; u += HELPERS) {
        const int t = u / FOURS, first = u % FOURS * 4;
        const int64_t row = begin + t, column = at->column + first;
        const walk_step step = memory->step[i % 4][t];
        float4 v[SLICES];
        float y[4];
#pragma unroll
        for (int s = 0; s < (MODE == LS_DELTA_FORWARD ? SLICES : 1); s++)
            v[s] = *(const float4 *)&memory->part[even][t][s][first];
        if (MODE == LS_DELTA_FORWARD) {
            const float top = ls_mul(step.scale, ls_delta_query_scale(KEYS));
            y[0] = ls_mul(top, ls_add(ls_add(v[0].x, v[1].x), ls_add(v[2].x, v[3].x)));
            y[1] = ls_mul(top, ls_add(ls_add(v[0].y, v[1].y), ls_add(v[2].y, v[3].y)));
            y[2] = ls_mul(top, ls_add(ls_add(v[0].z, v[1].z), ls_add(v[2].z, v[3].z)));
            y[3] = ls_mul(top, ls_add(ls_add(v[0].w, v[1].w), ls_add(v[2].w, v[3].w)));
            const int64_t to = row * p->out_stride + at->head * dim + column;
            const bool fours = p->vectors && p->out_stride % 4 == 0;
            if (p->out_dtype == LS_F32)
                ls_four_store<LS_F32>(p->out, to, 4, fours, y);
            else
                ls_four_store<LS_BF16>(p->out, to, 4, fours, y);
            continue;
        }
        const int64_t part = MODE == LS_DELTA_BACK ? p->plan.inner : p->plan.deltas;
        *(float4 *)(ls_delta_vector(p, part, row, at->head) + column) = v[0];
        if (MODE != LS_DELTA_BACK) continue;
        const float4 z = *(const float4 *)&memory->drive[third][t][first];
        const float own = memory->own[third][t];
        y[0] = ls_mul(step.scale, ls_mul(step.beta, ls_fma(own, z.x, v[0].x)));
        y[1] = ls_mul(step.scale, ls_mul(step.beta, ls_fma(own, z.y, v[0].y)));
        y[2] = ls_mul(step.scale, ls_mul(step.beta, ls_fma(own, z.z, v[0].z)));
        y[3] = ls_mul(step.scale, ls_mul(step.beta, ls_fma(own, z.w, v[0].w)));
        ls_four_store<LS_F32>(p->a.dv, row * p->a.dv_stride + at->head * dim + column, 4,
                              p->a.dv_stride % 4 == 0 && p->vectors, y);
    }
}

/* STORED: the type of the op's inputs; IN, DRIVE: of what the walk reads. */
template <int PER, int MODE, int STORED>
static __device__ __forceinline__ void help(walk_memory<PER> *memory, const delta_params *p, const place *at) {
    constexpr int IN = MODE == LS_DELTA_FORWARD ? STORED : LS_F32, DRIVE = MODE == LS_DELTA_BACK ? LS_F32 : STORED;
    const int thread = (int)threadIdx.x - WALKERS;
    const int64_t n_tiles = at->n_tiles;
    raw_tile<IN, DRIVE> raw;
    step_lane lane;
    lane.scale = lane.after = 1.0f;
    if (thread < 32) {
        lane.bias = p->a.dt_bias[at->head];
        lane.rate = p->a.rate[at->head];
        if (MODE == LS_DELTA_KEEP) lane.scale = ls_delta_first_scale(p, at->span_i, at->head);
        if (MODE == LS_DELTA_FORWARD && at->span->pos > 0)
            lane.scale = ((const float *)ls_pool_at(&p->scale, at->span->slot))[at->head];
        load_scalars<MODE, STORED>(&lane, p, at, thread, 0);
        make_steps<MODE>(memory->step[0], &lane, p, at, thread, 0);
        if (n_tiles > 1) {
            load_scalars<MODE, STORED>(&lane, p, at, thread, 1);
            make_steps<MODE>(memory->step[1], &lane, p, at, thread, 1);
        }
        if (n_tiles > 2) load_scalars<MODE, STORED>(&lane, p, at, thread, 2);
    }
    load_tile<PER, MODE, IN, DRIVE>(&raw, p, at, thread, 0);
    sync_roles(); /* the steps are there */
    if (MODE == LS_DELTA_FORWARD) cluster_arrive();
    prepare_tile<PER, MODE, IN, DRIVE>(memory, &raw, thread, 0);
    if (n_tiles > 1) load_tile<PER, MODE, IN, DRIVE>(&raw, p, at, thread, 1);
    sync_roles();
#pragma unroll 1
    for (int64_t i = 0; i < n_tiles; i++) {
        if (i + 1 < n_tiles) prepare_tile<PER, MODE, IN, DRIVE>(memory, &raw, thread, i + 1);
        if (i + 2 < n_tiles) {
            load_tile<PER, MODE, IN, DRIVE>(&raw, p, at, thread, i + 2);
            if (thread < 32) {
                make_steps<MODE>(memory->step[(i + 2) % 4], &lane, p, at, thread, i + 2);
                if (i + 3 < n_tiles) load_scalars<MODE, STORED>(&lane, p, at, thread, i + 3);
            }
        }
        if (i > 0) finish_tile<PER, MODE>(memory, p, at, thread, i - 1);
        sync_roles();
    }
    finish_tile<PER, MODE>(memory, p, at, thread, n_tiles - 1);
    if (MODE == LS_DELTA_FORWARD) cluster_wait();
    if (MODE == LS_DELTA_FORWARD && thread == 0 && at->column == 0)
        ((float *)ls_pool_at(&p->scale, at->span->slot))[at->head] = lane.scale;
}

template <int PER, int MODE, int STORED>
static __global__ void __cluster_dims__(LS_DELTA_COLUMNS / walk_memory<PER>::COLUMNS)
    __launch_bounds__(WALKERS + HELPERS, 2) walk_kernel(const __grid_constant__ delta_params p) {
    ls_cuda_begin();
    /* Registers of a walker; a helper has the rest of 256. With these the fewest are spilled. */
    constexpr int WALKER = PER == 4 && MODE == LS_DELTA_FORWARD ? 200 : 184;
    extern __shared__ __align__(16) char shared[];
    auto *memory = (walk_memory<PER> *)shared;
    const int64_t blocks = p.a.value_dim / walk_memory<PER>::COLUMNS;
    const int64_t head = blockIdx.x / blocks % p.a.n_heads, span_i = blockIdx.x / blocks / p.a.n_heads;
    const ls_span *span = &p.a.spans[span_i];
    const place at = {.span = span,
                      .span_i = span_i,
                      .head = head,
                      .key = head / p.group,
                      .column = blockIdx.x % blocks * walk_memory<PER>::COLUMNS,
                      .n_tiles = (span->n_rows + TILE - 1) / TILE};
    if (p.fault->code != LS_FAULT_NONE || span->slot < 0 || span->n_rows == 0) return;
    if (threadIdx.x >= WALKERS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(256 - WALKER));
        help<PER, MODE, STORED>(memory, &p, &at);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(WALKER));
        walk<PER, MODE>(memory, &p, &at);
    }
}

typedef struct walk_kernel_of {
    const void *entry;
    int64_t columns, shared_bytes;
} walk_kernel_of;

template <int PER, int MODE>
static walk_kernel_of sized(ls_dtype in) {
    const walk_kernel_of kernel = {.entry = in == LS_F32 ? (const void *)walk_kernel<PER, MODE, LS_F32>
                                                         : (const void *)walk_kernel<PER, MODE, LS_BF16>,
                                   .columns = walk_memory<PER>::COLUMNS,
                                   .shared_bytes = (int64_t)sizeof(walk_memory<PER>)};
    return kernel;
}

/* Blocks of all columns where there are heads enough to fill the GPU, else of fewer. */
template <int MODE>
static walk_kernel_of pick(const ls_delta_backward_args *a, int64_t processors) {
    const int64_t heads = a->n_spans * a->n_heads;
    if (heads >= 3 * processors / 2) return sized<4, MODE>(a->in_dtype);
    return heads >= 3 * processors / 4 ? sized<2, MODE>(a->in_dtype) : sized<1, MODE>(a->in_dtype);
}

ls_status ls_delta_walk(const ls_exec *exec, const delta_params *p, int mode, bool *taken, ls_error *err) {
    const ls_delta_backward_args *a = &p->a;
    delta_params params = *p;
    int device, processors;
    LS_CUDA_TRY(ls_is_hopper(taken, "delta", err));
    *taken = *taken && a->key_dim == KEYS && a->value_dim == LS_DELTA_COLUMNS;
    if (!*taken) return LS_OK;
    LS_CUDA_TRY(ls_cuda_status(cudaGetDevice(&device), "delta", err));
    LS_CUDA_TRY(
        ls_cuda_status(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device), "delta", err));
    const walk_kernel_of kernel = mode == LS_DELTA_FORWARD ? pick<LS_DELTA_FORWARD>(a, processors)
                                  : mode == LS_DELTA_KEEP  ? pick<LS_DELTA_KEEP>(a, processors)
                                                           : pick<LS_DELTA_BACK>(a, processors);
    const ls_launch launch = {"delta",
                              {ls_launch_blocks(a->n_spans, a->n_heads, a->value_dim / kernel.columns), 1, 1},
                              WALKERS + HELPERS,
                              kernel.shared_bytes,
                              NULL,
                              0};
    return ls_cuda_launch_within(exec, &launch, LS_HOPPER_SHARED_MAX, kernel.entry, &params, err);
}
