/* Dense products of the profile mma16 by mma.sync m16n8k16: any strides, sizes and alignments, on any device whose
 * tensor cores compute the step of num/mma16.h; and the short test that they do. */
#include <atomic>

#include "num/mma16.h"
#include "op/cuda/groups_cuda.h"
#include "op/cuda/mma16_cuda.h"
#include "op/cuda/product_cuda.h"
#include "op/gemm_cuda.h"

#define TILE 64
#define DEPTH 32
#define THREADS 128
#define PITCH (DEPTH + 8) /* a row of 16-bit elements: fragments of eight rows meet in no bank */

/* Where depth s of `depths` lies; below zero: it is padding. */
static __device__ __forceinline__ int64_t depth_at(const ls_group_step *steps, int64_t s, int64_t depths) {
    if (s >= depths) return -1;
    if (steps == NULL) return s;
    const ls_group_step step = steps[s / 16];
    return s % 16 < step.n_rows ? step.row + s % 16 : -1;
}

/* TILE rows of DEPTH, +0 where there are none. */
static __device__ __forceinline__ void fetch(uint16_t (*to)[PITCH], const void *from, int64_t first, int64_t count,
                                             int64_t along, int64_t depth, int64_t depths, int64_t by,
                                             const ls_group_step *steps) {
    for (int at = threadIdx.x; at < TILE * DEPTH; at += THREADS) {
        const int i = by == 1 ? at / DEPTH : at % TILE, s = by == 1 ? at % DEPTH : at / TILE;
        const int64_t own = first + i < count ? depth_at(steps, depth + s, depths) : -1;
        to[i][s] = own >= 0 ? ((const uint16_t *)from)[(first + i) * along + own * by] : (uint16_t)0;
    }
}

typedef struct plain_params {
    ls_product p;
    int64_t col_tiles;
    ls_step_list list;
} plain_params;

static __global__ void __launch_bounds__(THREADS) plain_kernel(const __grid_constant__ plain_params q) {
    ls_cuda_begin();
    __shared__ __align__(16) uint16_t a[TILE][PITCH], b[TILE][PITCH];
    const ls_product *p = &q.p;
    const int64_t row = blockIdx.x / q.col_tiles * TILE, col = blockIdx.x % q.col_tiles * TILE;
    const int lane = threadIdx.x % 32, r = threadIdx.x / 32 * 16 + lane / 4, k = lane % 4 * 2;
    float d[TILE / 8][4];
    ls_product_part part;
    const ls_group_step *steps = q.list.steps;
    if (!ls_product_part_of(p, &part) || row >= part.row_end || row + TILE <= part.row) return;
    if (steps != NULL) {
        steps += ls_group_first_step(q.list.group, *q.list.offset, q.list.n_sequences);
        part.depth_end = *q.list.n_steps * 16;
    }
#pragma unroll
    for (int j = 0; j < TILE / 8; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) d[j][i] = ls_product_begin(p, row + r + i / 2 * 8, col + j * 8 + k + i % 2);
    for (int64_t depth = part.depth; depth < part.depth_end; depth += DEPTH) {
        fetch(a, p->a, row, p->rows, p->a_row, depth, part.depth_end, p->a_step, steps);
        fetch(b, p->b, col, p->cols, p->b_col, depth, part.depth_end, p->b_step, steps);
        __syncthreads();
#pragma unroll
        for (int s = 0; s < DEPTH; s += 16) {
            uint32_t x[4], y[2];
            /* A step of padding alone would turn a -0 that continues, so it is not taken. */
            if (depth + s >= part.depth_end) break;
#pragma unroll
            for (int i = 0; i < 4; i++) x[i] = *(const uint32_t *)&a[r + i % 2 * 8][s + k + i / 2 * 8];
#pragma unroll
            for (int j = 0; j < TILE / 8; j++) {
                y[0] = *(const uint32_t *)&b[j * 8 + lane / 4][s + k];
                y[1] = *(const uint32_t *)&b[j * 8 + lane / 4][s + k + 8];
                ls_mma16(d[j], x, y);
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int j = 0; j < TILE / 8; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int64_t at = row + r + i / 2 * 8, to = col + j * 8 + k + i % 2;
            if (at >= part.row && at < part.row_end && to < p->cols) ls_product_store(p, at, to, d[j][i]);
        }
}

ls_status ls_product_mma16_steps(const ls_exec *exec, const ls_product *product, const ls_step_list *list,
                                 ls_error *err) {
    plain_params q = {*product, (product->cols - 1) / TILE + 1, *list};
    const ls_index index[LS_PRODUCT_INDICES] = LS_PRODUCT_INDEX(product);
    const ls_launch launch = {product->op, {ls_launch_blocks((product->rows - 1) / TILE + 1, q.col_tiles, 1), 1, 1},
                              THREADS,     0,
                              index,       LS_PRODUCT_INDICES};
    return ls_cuda_launch(exec, &launch, (const void *)plain_kernel, &q, err);
}

ls_status ls_product_mma16_plain(const ls_exec *exec, const ls_product *product, ls_error *err) {
    const ls_step_list none = {};
    return ls_product_mma16_steps(exec, product, &none, err);
}

/* ---- the proof ---- */

#define PROOF_BLOCKS 64
#define PROOF_STEPS 64
#define DEVICES_MAX 64

static __device__ uint32_t proof_differ[PROOF_BLOCKS];

static __device__ __forceinline__ uint32_t mixed(uint32_t x) {
    x = (x ^ x >> 16) * 0x7FEB352Du;
    x = (x ^ x >> 15) * 0x846CA68Bu;
    return x ^ x >> 16;
}

/* A bf16: exponents within 16 of 1, now and then a zero, a subnormal or a large number. */
static __device__ __forceinline__ uint16_t proof_operand(uint32_t i) {
    const uint32_t r = mixed(i), field = r >> 24 < 4 ? 0 : r >> 24 < 8 ? 150 : 112 + (r >> 8) % 32;
    return (uint16_t)((r & 0x8000u) | field << 7 | (r >> 24 < 2 ? 0 : (r & 0x7Fu)));
}

/* A warp a block: chains of PROOF_STEPS steps of 16 x 8 outputs, compared after each step. */
static __global__ void __launch_bounds__(32) proof_kernel(void) {
    __shared__ __align__(16) uint16_t a[16][16], b[8][16];
    const int lane = threadIdx.x;
    float d[4] = {0, 0, 0, 0};
    uint32_t model[4] = {0, 0, 0, 0};
    int differ = 0;
    for (int s = 0; s < PROOF_STEPS; s++) {
        uint32_t x[4], y[2];
        for (int i = lane; i < 24 * 16; i += 32)
            (i < 256 ? a[i / 16] : b[i / 16 - 16])[i % 16] = proof_operand((blockIdx.x * PROOF_STEPS + s) * 384u + i);
        __syncwarp();
        for (int i = 0; i < 4; i++) x[i] = *(const uint32_t *)&a[lane / 4 + i % 2 * 8][lane % 4 * 2 + i / 2 * 8];
        for (int i = 0; i < 2; i++) y[i] = *(const uint32_t *)&b[lane / 4][lane % 4 * 2 + i * 8];
        ls_mma16(d, x, y);
        for (int i = 0; i < 4; i++) {
            model[i] = ls_mma16_step(model[i], a[lane / 4 + i / 2 * 8], 1, b[lane % 4 * 2 + i % 2], 1);
            differ += __float_as_uint(d[i]) != model[i];
        }
        __syncwarp();
    }
    for (int lanes = 16; lanes > 0; lanes /= 2) differ += __shfl_xor_sync(LS_ALL_LANES, differ, lanes);
    if (lane == 0) proof_differ[blockIdx.x] = (uint32_t)differ;
}

static ls_status prove(int64_t *differ, ls_error *err) {
    uint32_t counts[PROOF_BLOCKS];
    cudaStream_t stream;
    ls_status status;
    *differ = 0;
    LS_CUDA_TRY(ls_cuda_status(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "mma16 proof", err));
    proof_kernel<<<PROOF_BLOCKS, 32, 0, stream>>>();
    status = ls_cuda_status(cudaGetLastError(), "mma16 proof", err);
    if (status == LS_OK)
        status = ls_cuda_status(
            cudaMemcpyFromSymbolAsync(counts, proof_differ, sizeof counts, 0, cudaMemcpyDeviceToHost, stream),
            "mma16 proof", err);
    if (status == LS_OK) status = ls_cuda_status(cudaStreamSynchronize(stream), "mma16 proof", err);
    (void)cudaStreamDestroy(stream);
    if (status != LS_OK) return status;
    for (int i = 0; i < PROOF_BLOCKS; i++) *differ += counts[i];
    return LS_OK;
}

ls_status ls_cuda_mma16_proven(ls_error *err) {
    /* 0: not tested; 1: proven; else 2 + results that differ. Two threads may both test, and find the same. */
    static std::atomic<int64_t> known[DEVICES_MAX];
    int device;
    int64_t found, differ = 0;
    LS_CUDA_TRY(ls_cuda_status(cudaGetDevice(&device), "mma16 proof", err));
    found = device < DEVICES_MAX ? known[device].load() : 0;
    if (found == 1) return LS_OK;
    if (found == 0) {
        LS_CUDA_TRY(prove(&differ, err));
        found = differ == 0 ? 1 : 2 + differ;
        if (device < DEVICES_MAX) known[device].store(found);
    }
    if (found == 1) return LS_OK;
    return LS_FAIL(err, LS_ERR_UNSUPPORTED,
                   "profile mma16: device %d computes another step: %lld of %d results differ from the contract's",
                   device, (long long)(found - 2), PROOF_BLOCKS * PROOF_STEPS * 128);
}
