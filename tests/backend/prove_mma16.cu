/* Compares the step of num/mma16.h with the tensor cores of the GPU that runs this, in raw bits: mma.sync m16n8k16 and
 * wgmma m64nNk16 for every N from 8 to 256, A from shared memory and from registers, operands in both orders, every
 * class of data of num/mma16_oracle.h with every other. Not a test: a proof to run once on a kind of machine.
 *
 *     prove_mma16 [MILLIONS_OF_STEPS [THOUSANDS_OF_CHAINS]]
 *
 * Prints what was compared and what differs; exit 0 only where nothing differs but the models that are wrong on
 * purpose. */
#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "num/mma16.h"
#include "num/mma16_oracle.h"
#include "op/cuda/wgmma_cuda.h"

#define ROWS 64
#define THREADS 128
#define NEIGHBOURS ORACLE_NEIGHBOURS
#define CHAIN_STEPS 64

typedef unsigned long long count_t;

typedef struct counts {
    count_t compared, differ, nan, infinite, subnormal, zero;
    count_t judged, neighbour[NEIGHBOURS], oracle; /* a part of the results, by the models of the oracle */
    count_t by_class[MMA_CLASSES][MMA_CLASSES];    /* differences */
    uint32_t example[4]; /* of a difference: classes, c, result of the machine, of the model */
} counts;

enum { MMA_SYNC, WGMMA_SHARED, WGMMA_REGISTERS };

/* One 16-bit operand where a descriptor without swizzle finds it: row r, step k of 16. */
static __device__ int core_index(int r, int k) { return (r / 8 * 2 + k / 8) * 64 + r % 8 * 8 + k % 8; }

template <int N>
static __device__ void step_mma_sync(float (&d)[N / 2], const uint16_t *a, const uint16_t *b) {
    const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4, k = lane % 4 * 2;
    uint32_t f[4], g[2];
    for (int i = 0; i < 4; i++) f[i] = *(const uint32_t *)&a[core_index(row + i % 2 * 8, k + i / 2 * 8)];
#pragma unroll
    for (int j = 0; j < N / 8; j++) {
        for (int i = 0; i < 2; i++) g[i] = *(const uint32_t *)&b[core_index(j * 8 + lane / 4, k + i * 8)];
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+f"(d[4 * j]), "+f"(d[4 * j + 1]), "+f"(d[4 * j + 2]), "+f"(d[4 * j + 3])
            : "r"(f[0]), "r"(f[1]), "r"(f[2]), "r"(f[3]), "r"(g[0]), "r"(g[1]));
    }
}

template <int ENGINE, int N>
static __device__ void step_machine(float (&d)[N / 2], const uint16_t *a, const uint16_t *b) {
    if constexpr (ENGINE == MMA_SYNC) {
        step_mma_sync<N>(d, a, b);
    } else {
        const uint64_t da = ls_wgmma_descriptor((uint32_t)__cvta_generic_to_shared(a), 128, 256, LS_WG_PLAIN);
        const uint64_t db = ls_wgmma_descriptor((uint32_t)__cvta_generic_to_shared(b), 128, 256, LS_WG_PLAIN);
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncthreads();
        if constexpr (ENGINE == WGMMA_SHARED) {
            ls_wgmma_fence();
            ls_wgmma<N>::template ss<0, 0>(d, da, db);
        } else {
            const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4, k = lane % 4 * 2;
            uint32_t f[4];
            for (int i = 0; i < 4; i++) f[i] = *(const uint32_t *)&a[core_index(row + i % 2 * 8, k + i / 2 * 8)];
            ls_wgmma_fence();
            ls_wgmma<N>::template rs<0>(d, f, db);
        }
        ls_wgmma_commit();
        ls_wgmma_wait<0>();
        ls_wgmma_hold(d);
    }
    __syncthreads();
}

static __device__ void count(count_t *where, bool yes) {
    const unsigned mask = __ballot_sync(0xFFFFFFFFu, yes);
    if (threadIdx.x % 32 == 0 && mask != 0) atomicAdd(where, (count_t)__popc(mask));
}

/* Each block takes one tile of 64 x N results at a time. chains: steps 1 to CHAIN_STEPS from +0; else one step from an
 * accumulator of any class. swapped: the model is given the operands in the other order. */
template <int ENGINE, int N>
__global__ void __launch_bounds__(THREADS) prove(counts *t, int64_t tiles, uint64_t seed, bool chains, bool swapped) {
    extern __shared__ __align__(128) uint8_t shared[];
    uint16_t *a = (uint16_t *)shared, *b = a + ROWS * 16, *a_rows = b + N * 16, *b_rows = a_rows + ROWS * 16;
    uint32_t *model = (uint32_t *)(b_rows + N * 16);
    for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const uint64_t draw = mma_mix(seed + (uint64_t)tile * 0x9E3779B97F4A7C15u);
        /* Chains take classes whose sums mostly stay finite two times of three. */
        const int classes = chains && draw % 3 != 0 ? MMA_INFINITE : MMA_CLASSES;
        const int a_class = (int)(draw >> 8 & 0xFFFFu) % classes, b_class = (int)(draw >> 24 & 0xFFFFu) % classes;
        const int c_class = (int)(draw >> 40 & 0xFFFFu) % MMA_C_CLASSES;
        const int steps = chains ? 1 + (int)(draw >> 56) % CHAIN_STEPS : 1;
        float d[N / 2];
        for (int s = 0; s < steps; s++) {
            __syncthreads();
            for (int i = threadIdx.x; i < (ROWS + N) * 16; i += THREADS) {
                const bool is_a = i < ROWS * 16;
                const int at = is_a ? i : i - ROWS * 16;
                const uint16_t x = mma_operand(is_a ? a_class : b_class, draw + (uint64_t)s * 8192u + (uint64_t)i + 1u);
                (is_a ? a : b)[core_index(at / 16, at % 16)] = x;
                (is_a ? a_rows : b_rows)[at] = x;
            }
            __syncthreads();
            if (s == 0)
                for (int i = threadIdx.x; i < ROWS * N; i += THREADS) {
                    const uint16_t *x = &a_rows[i / N * 16], *y = &b_rows[i % N * 16];
                    model[i] = chains ? 0u
                                      : mma_accumulator(c_class, draw + 0x100000u + (uint64_t)i,
                                                        c_class == MMA_C_CANCEL ? ls_mma16_step(0, x, 1, y, 1) : 0u);
                }
            __syncthreads();
            if (s == 0)
#pragma unroll
                for (int i = 0; i < N / 2; i++) {
                    const int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + i % 4 / 2 * 8;
                    d[i] = __uint_as_float(model[row * N + i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2]);
                }
            __syncthreads();
            /* Single steps: the models that are wrong, and the oracle itself, on one tile of 32. */
            if (!chains && tile % 32 == 0)
                for (int i = threadIdx.x; i < ROWS * N; i += THREADS) {
                    const oracle_model models[NEIGHBOURS + 1] = {{24, 16, -133}, {26, 16, -133},   {25, 8, -133},
                                                                 {25, 16, -126}, {25, 16, -10000}, {25, 16, -133}};
                    const uint16_t *x = &a_rows[i / N * 16], *y = &b_rows[i % N * 16];
                    const uint32_t expected = ls_mma16_step(model[i], x, 1, y, 1);
                    count(&t->judged, true);
                    for (int n = 0; n < NEIGHBOURS; n++)
                        count(&t->neighbour[n], oracle_step(model[i], x, y, models[n]) != expected);
                    count(&t->oracle, oracle_step(model[i], x, y, models[NEIGHBOURS]) != expected);
                }
            for (int i = threadIdx.x; i < ROWS * N; i += THREADS) {
                const uint16_t *x = &a_rows[i / N * 16], *y = &b_rows[i % N * 16];
                model[i] = swapped ? ls_mma16_step(model[i], y, 1, x, 1) : ls_mma16_step(model[i], x, 1, y, 1);
            }
            step_machine<ENGINE, N>(d, a, b);
        }
#pragma unroll 1
        for (int i = 0; i < N / 2; i++) {
            const int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + i % 4 / 2 * 8;
            const uint32_t expected = model[row * N + i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2];
            const uint32_t got = __float_as_uint(d[i]), magnitude = got & 0x7FFFFFFFu;
            count(&t->compared, true);
            count(&t->differ, got != expected);
            count(&t->nan, magnitude > 0x7F800000u);
            count(&t->infinite, magnitude == 0x7F800000u);
            count(&t->subnormal, magnitude != 0 && magnitude < 0x800000u);
            count(&t->zero, magnitude == 0);
            if (got != expected) {
                atomicAdd(&t->by_class[a_class][b_class], 1ull);
                t->example[0] = (uint32_t)(a_class << 16 | b_class << 8 | (chains ? 255 : c_class));
                t->example[1] = (uint32_t)steps;
                t->example[2] = got;
                t->example[3] = expected;
            }
        }
    }
}

static void check(cudaError_t status, const char *what) {
    if (status == cudaSuccess) return;
    fprintf(stderr, "prove_mma16: %s: %s\n", what, cudaGetErrorString(status));
    exit(2);
}

static counts total;
static bool failed;

static void report(const char *name, int n, const counts *t, bool chains) {
    if (t->differ != 0 || t->oracle != 0) {
        failed = true;
        printf("%s n %d %s: %llu of %llu differ; classes %u %u %u, %u steps: 0x%08x, model 0x%08x; oracle %llu\n", name,
               n, chains ? "chains" : "steps", t->differ, t->compared, t->example[0] >> 16, t->example[0] >> 8 & 255,
               t->example[0] & 255, t->example[1], t->example[2], t->example[3], t->oracle);
        for (int a = 0; a < MMA_CLASSES; a++)
            for (int b = 0; b < MMA_CLASSES; b++)
                if (t->by_class[a][b] != 0) printf("   class %d with %d: %llu\n", a, b, t->by_class[a][b]);
    }
    total.compared += t->compared;
    total.differ += t->differ;
    total.nan += t->nan;
    total.infinite += t->infinite;
    total.subnormal += t->subnormal;
    total.zero += t->zero;
    total.judged += t->judged;
    total.oracle += t->oracle;
    for (int i = 0; i < NEIGHBOURS; i++) total.neighbour[i] += t->neighbour[i];
}

/* results: how many to compare in each order of the operands. */
template <int ENGINE, int N>
static void engine(const char *name, counts *device, int64_t results, bool chains) {
    const int64_t tiles = (results + ROWS * N - 1) / (ROWS * N);
    const int shared = (ROWS + N) * 16 * 2 * 2 + ROWS * N * 4;
    counts t;
    check(cudaFuncSetAttribute(prove<ENGINE, N>, cudaFuncAttributeMaxDynamicSharedMemorySize, shared), "shared memory");
    check(cudaMemset(device, 0, sizeof t), "clear");
    for (int swapped = 0; swapped < 2; swapped++)
        prove<ENGINE, N><<<(unsigned)(tiles < 1056 ? tiles : 1056), THREADS, (size_t)shared>>>(
            device, tiles, (uint64_t)N * 64 + ENGINE * 8 + chains * 2 + swapped, chains, swapped != 0);
    check(cudaGetLastError(), "launch");
    check(cudaMemcpy(&t, device, sizeof t, cudaMemcpyDeviceToHost), name);
    report(name, N, &t, chains);
}

template <int N>
static void widths(counts *device, int64_t results, bool chains) {
    engine<WGMMA_SHARED, N>("wgmma, A shared", device, results, chains);
    engine<WGMMA_REGISTERS, N>("wgmma, A registers", device, results, chains);
    if constexpr (N < 256) widths<N + 8>(device, results, chains);
}

static void all(counts *device, int64_t results, bool chains) {
    memset(&total, 0, sizeof total);
    engine<MMA_SYNC, 8>("mma.sync", device, results / 4, chains);
    printf("%s, mma.sync: %llu compared, %llu differ\n", chains ? "chains" : "steps", total.compared, total.differ);
    widths<8>(device, results * 3 / 8 / 64, chains);
    printf("%s: %llu compared, %llu differ; results: %llu zero, %llu subnormal, %llu infinite, %llu NaN\n",
           chains ? "chains" : "steps", total.compared, total.differ, total.zero, total.subnormal, total.infinite,
           total.nan);
    if (chains) return;
    printf("of %llu steps the textbook differs in %llu; models that are wrong:", total.judged, total.oracle);
    for (int i = 0; i < NEIGHBOURS; i++) {
        printf(" %s %llu%s", oracle_neighbour_names[i], total.neighbour[i], i + 1 < NEIGHBOURS ? "," : "\n");
        if (total.neighbour[i] == 0) failed = true;
    }
}

int main(int argc, char **argv) {
    const int64_t steps = argc > 1 ? atoll(argv[1]) * 1000000 : 200000000;
    const int64_t chains = argc > 2 ? atoll(argv[2]) * 1000 : 20000000;
    cudaDeviceProp device;
    counts *t;
    check(cudaGetDeviceProperties(&device, 0), "device");
    printf("%s, sm_%d%d\n", device.name, device.major, device.minor);
    check(cudaMalloc((void **)&t, sizeof *t), "memory");
    all(t, steps, false);
    all(t, chains, true);
    check(cudaFree(t), "free");
    printf("%s\n", failed ? "FAILED" : "the model is what the tensor cores compute");
    return failed ? 1 : 0;
}
