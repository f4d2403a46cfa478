/* Tiles of 64 rows of attention in shared memory, and the products that forward and backward take of them. A block has
 * 128 threads, four warps. A thread holds a fragment of eight rows by four or eight columns of a product, so that each
 * chain of the contracts is a chain in one thread, and one load of four floats feeds sixteen steps.
 *
 * Tiles lie as rows, eight elements of 16 bits or four floats longer than their dimensions, so that eight neighbouring
 * rows read at the same dimension come from different banks. The same layout serves products over dimensions, which
 * read four dimensions of a row at a time, and products over rows, which read neighbouring dimensions of one row. */
#ifndef LS_OP_CUDA_ATTENTION_TILE_CUDA_H
#define LS_OP_CUDA_ATTENTION_TILE_CUDA_H

#include "op/attention.h"
#include "op/cuda/attention_softmax_cuda.h"
#include "op/cuda/vector_cuda.h"

#define LS_TILE LS_ATTENTION_BLOCK
#define LS_TILE_THREADS 128
#define LS_TILE_WARP 32  /* rows of a tile that a warp's fragments cover */
#define LS_TILE_ROWS 8   /* of a fragment */
#define LS_TILE_VECTOR 8 /* neighbouring dimensions that a thread brings to a tile */
#define LS_TILE_PITCH (LS_TILE + 4)

/* As a tile keeps elements of a type: float32, or the 16 bits of bf16. */
template <int TYPE>
struct ls_stored {
    typedef uint16_t type;
};
template <>
struct ls_stored<LS_F32> {
    typedef float type;
};

template <class T, int DIMS>
struct ls_tile {
    static constexpr int PITCH = DIMS + 16 / (int)sizeof(T);
    __align__(16) T x[LS_TILE][PITCH];
};

/* Weights of a product over rows, [row][64]. */
typedef float ls_tile_weights[LS_TILE][LS_TILE_PITCH];

template <int COLUMNS>
using ls_fragment = float[LS_TILE_ROWS][COLUMNS];

/* ---- where a thread's fragments lie ---- */

/* A warp's lanes are 4 by 8, two warps share the rows of a tile and two the columns. In products over dimensions row
 * i of a fragment is row ls_lane_row() + 4 i of its tile and column j row ls_lane_column() + 8 j of the other. In
 * products over rows the fragment's rows are two runs of four neighbouring columns of the weights, from ls_lane_four()
 * and 16 behind it on, and its columns runs of four neighbouring dimensions, 32 apart, from ls_lane_dim() on. All of
 * them are made again where they are used: registers are scarce. */
static __device__ __forceinline__ unsigned ls_tile_thread(void) {
    unsigned thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
}
/* Which two of the four warps. */
static __device__ __forceinline__ int ls_lane_half(void) { return (int)(ls_tile_thread() / (2 * LS_WARP) % 2); }
/* The first of the warp's 32 rows. */
static __device__ __forceinline__ int ls_lane_first(void) {
    return (int)(ls_tile_thread() / LS_WARP % 2) * LS_TILE_WARP;
}
static __device__ __forceinline__ int ls_lane_down(void) { return (int)(ls_tile_thread() % LS_WARP / 8); }
static __device__ __forceinline__ int ls_lane_column(void) { return (int)(ls_tile_thread() % 8); }
static __device__ __forceinline__ int ls_lane_row(void) { return ls_lane_first() + ls_lane_down(); }
static __device__ __forceinline__ int ls_lane_four(void) { return ls_lane_first() + ls_lane_down() * 4; }
template <int DIMS>
static __device__ __forceinline__ int ls_lane_dim(void) {
    return ls_lane_half() * (DIMS / 2) + ls_lane_column() * 4;
}

/* Row i of a fragment of a product over rows. */
static __device__ __forceinline__ int ls_fragment_row(int four, int i) { return four + i / 4 * 16 + i % 4; }

/* Column c of a fragment of a product over rows: a dimension of the tile. */
static __device__ __forceinline__ int ls_fragment_dim(int dim, int c) { return dim + c / 4 * 32 + c % 4; }

template <int COLUMNS>
static __device__ __forceinline__ void ls_fragment_clear(ls_fragment<COLUMNS> &f) {
#pragma unroll
    for (int i = 0; i < LS_TILE_ROWS; i++)
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) f[i][c] = 0.0f;
}

/* ---- products ---- */

/* The lower of two bf16, by a permutation of bytes: a shift would become a product, and take the place of one. */
static __device__ __forceinline__ float ls_tile_low(uint32_t pair) {
    return __uint_as_float(__byte_perm(pair, 0, 0x1044));
}
static __device__ __forceinline__ void ls_tile_four(float (&x)[4], const float *from) { ls_load_four(x, from); }
static __device__ __forceinline__ void ls_tile_four(float (&x)[4], const uint16_t *from) {
    const uint2 v = *(const uint2 *)from;
    x[0] = ls_tile_low(v.x), x[1] = __uint_as_float(v.x & 0xFFFF0000u);
    x[2] = ls_tile_low(v.y), x[3] = __uint_as_float(v.y & 0xFFFF0000u);
}
static __device__ __forceinline__ float ls_tile_one(const float *from) { return *from; }
static __device__ __forceinline__ float ls_tile_one(const uint16_t *from) { return ls_widen_raw<LS_BF16>(*from); }

/* f[i][j] = chain_d fma(a[row + 4 i][d], b[d](j), f[i][j]), d ascending; a begins at the thread's own row. Column j is
 * row `column` + 8 j of a tile of rows, where b begins at the thread's own; TURNED: of a tile [dimension][..], the j-th
 * of four neighbours from where b begins. */
template <bool TURNED, int COLUMNS, int A_PITCH, int B_PITCH, class A, class B>
static __device__ __forceinline__ void ls_tile_dots(ls_fragment<COLUMNS> &f, const A *a, const B *b, int dims) {
    static_assert(!TURNED || COLUMNS == 4, "neighbours are loaded four at a time");
    int d = 0;
#pragma unroll 1
    for (; d + 4 <= dims; d += 4) {
        float y[COLUMNS][4]; /* TURNED: [dimension][column] */
#pragma unroll
        for (int j = 0; j < COLUMNS; j++)
            ls_tile_four(y[j], TURNED ? b + (int64_t)(d + j) * B_PITCH : b + j * 8 * B_PITCH + d);
#pragma unroll
        for (int i = 0; i < LS_TILE_ROWS; i++) {
            float x[4];
            ls_tile_four(x, a + i * 4 * A_PITCH + d);
#pragma unroll
            for (int e = 0; e < 4; e++)
#pragma unroll
                for (int j = 0; j < COLUMNS; j++) f[i][j] = ls_fma(x[e], TURNED ? y[e][j % 4] : y[j][e], f[i][j]);
        }
    }
#pragma unroll 1
    for (; d < dims; d++)
#pragma unroll
        for (int i = 0; i < LS_TILE_ROWS; i++)
#pragma unroll
            for (int j = 0; j < COLUMNS; j++)
                f[i][j] = ls_fma(ls_tile_one(a + i * 4 * A_PITCH + d),
                                 ls_tile_one(TURNED ? b + (int64_t)d * B_PITCH + j : b + j * 8 * B_PITCH + d), f[i][j]);
}

/* A thread's part of a product over dimensions, as weights: the fragment's columns become the weights' rows, from
 * `column` on, that of the thread's first. */
template <int COLUMNS>
static __device__ __forceinline__ void ls_tile_put(ls_tile_weights &to, const ls_fragment<COLUMNS> &f, int column) {
    const int row = ls_lane_row();
#pragma unroll
    for (int j = 0; j < COLUMNS; j++)
#pragma unroll
        for (int i = 0; i < LS_TILE_ROWS; i++) to[column + 8 * j][row + 4 * i] = f[i][j];
}

/* Which t of a product over rows count: row i of a fragment takes those in [low[i], high[i]). */
typedef struct ls_tile_reach {
    int low[LS_TILE_ROWS], high[LS_TILE_ROWS];
} ls_tile_reach;

/* What the rows of a softmax take of the keys of the block that begins at position `first`. */
static __device__ __forceinline__ ls_tile_reach ls_tile_takes(const ls_softmax<LS_TILE> *s, int64_t first) {
    const int four = ls_lane_four();
    ls_tile_reach takes;
#pragma unroll
    for (int i = 0; i < LS_TILE_ROWS; i++) {
        const int row = ls_fragment_row(four, i);
        takes.low[i] = ls_keys_before(s->first[row], first);
        takes.high[i] = ls_keys_before(s->keys[row], first);
    }
    return takes;
}

/* f[i][c] = chain_t fma(w[t][..i], x[t][..c], f[i][c]), t ascending in [begin, end) and, if REACH, in the row's reach;
 * x begins at the thread's dimension. */
template <bool REACH, int COLUMNS, int PITCH, class T>
static __device__ __forceinline__ void ls_tile_sums(ls_fragment<COLUMNS> &f, const ls_tile_weights &w, const T *x,
                                                    int begin, int end, const ls_tile_reach *takes) {
    const int four = ls_lane_four();
#pragma unroll(REACH ? 1 : 2)
    for (int t = begin; t < end; t++) {
        float low[4], high[4], y[COLUMNS / 4][4];
        ls_load_four(low, &w[t][four]);
        ls_load_four(high, &w[t][four + 16]);
#pragma unroll
        for (int g = 0; g < COLUMNS / 4; g++) ls_tile_four(y[g], x + (int64_t)t * PITCH + g * 32);
#pragma unroll
        for (int i = 0; i < LS_TILE_ROWS; i++)
#pragma unroll
            for (int c = 0; c < COLUMNS; c++)
                if (!REACH || (t >= takes->low[i] && t < takes->high[i]))
                    f[i][c] = ls_fma(i < 4 ? low[i % 4] : high[i % 4], y[c / 4][c % 4], f[i][c]);
    }
}

#endif
