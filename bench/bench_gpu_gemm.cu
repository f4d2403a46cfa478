/* Dense products of the profile mma16 on this GPU beside cuBLAS in the same run: the six shapes of Jamba-3B, few rows
 * and many, and the gradients. Weights rotate through more memory than the second-level cache holds; times are of
 * graphs.
 *
 *     bench_gpu_gemm [decode | narrow | wide | gradients | head | groups | exact | plans]...
 *
 * Prints microseconds of both, their ratio, how many results are equal in bits, TFLOP/s or the share of the time that
 * reading weights takes at READ_RATE. */
#include <cublas_v2.h>
#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "op/cuda/cuda_ops.h"
#include "op/cuda/gemm_size_cuda.h"
#include "op/cuda/product_cuda.h"
#include "op/gemm_cuda.h"
#include "op/gemm_groups.h"

#define READ_RATE 4.3e12 /* bytes a second, of a large copy on an H200 */
#define ROTATED_BYTES ((int64_t)400 << 20)

static cudaStream_t stream;
static cublasHandle_t blas;
static ls_exec exec_;

static void check(cudaError_t status, const char *what) {
    if (status == cudaSuccess) return;
    printf("bench_gpu_gemm: %s: %s\n", what, cudaGetErrorString(status));
    exit(1);
}
static void check_ls(ls_status status, const ls_error *err) {
    if (status == LS_OK) return;
    printf("bench_gpu_gemm: %s\n", err->text);
    exit(1);
}
static void check_blas(cublasStatus_t status, const char *what) {
    if (status == CUBLAS_STATUS_SUCCESS) return;
    printf("bench_gpu_gemm: cublas: %s: %d\n", what, (int)status);
    exit(1);
}

static void *device_memory(int64_t bytes) {
    void *memory;
    check(cudaMalloc(&memory, (size_t)bytes), "memory");
    return memory;
}

static __global__ void fill_kernel(uint16_t *to, int64_t n, uint32_t seed) {
    for (int64_t i = blockIdx.x * 256ll + threadIdx.x; i < n; i += gridDim.x * 256ll) {
        uint32_t x = (uint32_t)i * 2654435761u + seed;
        x = (x ^ x >> 16) * 0x7FEB352Du;
        x = (x ^ x >> 15) * 0x846CA68Bu;
        x ^= x >> 16;
        to[i] = (uint16_t)((x & 0x8000u) | (120u + (x >> 16) % 6) << 7 | (x & 0x7Fu));
    }
}
static void fill(void *to, int64_t n, uint32_t seed) { fill_kernel<<<1024, 256, 0, stream>>>((uint16_t *)to, n, seed); }

static __global__ void equal_kernel(const uint16_t *a, const uint16_t *b, int64_t n, unsigned long long *equal) {
    unsigned long long mine = 0;
    for (int64_t i = blockIdx.x * 256ll + threadIdx.x; i < n; i += gridDim.x * 256ll) mine += a[i] == b[i];
    atomicAdd(equal, mine);
}
static double equal_share(const void *a, const void *b, int64_t n) {
    static unsigned long long *count;
    unsigned long long host;
    if (count == NULL) count = (unsigned long long *)device_memory(8);
    check(cudaMemsetAsync(count, 0, 8, stream), "count");
    equal_kernel<<<256, 256, 0, stream>>>((const uint16_t *)a, (const uint16_t *)b, n, count);
    check(cudaMemcpyAsync(&host, count, 8, cudaMemcpyDeviceToHost, stream), "count");
    check(cudaStreamSynchronize(stream), "count");
    return (double)host / (double)n;
}

/* One product: everything that its contenders need. Copies rotate. */
typedef struct problem {
    int64_t m, n, k, copies;
    uint8_t *x, *w, *tiles, *ours, *theirs;
    int64_t w_bytes, tile_bytes;
    ls_decode_plan plan; /* stage_tiles 0: the product's own choice */
    bool with_tiles, nan_open;
} problem;

typedef void (*contender)(const problem *, int64_t copy);

static void run_cublas(const problem *p, int64_t copy) {
    const float one = 1, zero = 0;
    check_blas(cublasGemmEx(blas, CUBLAS_OP_T, CUBLAS_OP_N, (int)p->n, (int)p->m, (int)p->k, &one,
                            p->w + copy * p->w_bytes, CUDA_R_16BF, (int)p->k, p->x, CUDA_R_16BF, (int)p->k, &zero,
                            p->theirs, CUDA_R_16BF, (int)p->n, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
               "gemm");
}

static void run_ours(const problem *p, int64_t copy) {
    const ls_cuda_gemm_args args = {p->x,        LS_BF16,
                                    p->k,        p->w + copy * p->w_bytes,
                                    LS_BF16,     p->with_tiles ? p->tiles + copy * p->tile_bytes : NULL,
                                    NULL,        p->ours,
                                    LS_BF16,     p->n,
                                    p->m,        p->n,
                                    p->k,        LS_PROFILE_MMA16,
                                    p->nan_open, NULL};
    ls_error err;
    if (p->plan.stage_tiles == 0) {
        check_ls(ls_cuda_gemm_stored(&exec_, &args, &err), &err);
    } else {
        const ls_product product = {"gemm",           p->m,    p->n, p->k,  args.x,  LS_BF16, p->k, 1,
                                    args.w,           LS_BF16, p->k, 1,     p->ours, LS_BF16, p->n, NULL,
                                    LS_PRODUCT_STORE, NULL,    NULL, false, NULL,    NULL};
        bool taken;
        check_ls(ls_product_mma16_decode(&exec_, &product, args.w_tiles, p->plan, &taken, &err), &err);
    }
}

static int by_size(const void *a, const void *b) {
    return (*(const float *)a > *(const float *)b) - (*(const float *)a < *(const float *)b);
}

/* Microseconds of one call: the median of some replays of a graph of `calls`. */
static double time_of(contender run, const problem *p, int64_t calls) {
    cudaGraph_t graph;
    cudaGraphExec_t replay;
    cudaEvent_t begin, end;
    float times[9];
    check(cudaEventCreate(&begin), "event");
    check(cudaEventCreate(&end), "event");
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
    for (int64_t i = 0; i < calls; i++) run(p, i % p->copies);
    check(cudaStreamEndCapture(stream, &graph), "capture");
    check(cudaGraphInstantiate(&replay, graph, 0), "graph");
    for (int i = -2; i < 9; i++) {
        check(cudaEventRecord(begin, stream), "record");
        check(cudaGraphLaunch(replay, stream), "launch");
        check(cudaEventRecord(end, stream), "record");
        check(cudaStreamSynchronize(stream), "replay");
        if (i >= 0) check(cudaEventElapsedTime(&times[i], begin, end), "time");
    }
    check(cudaGraphExecDestroy(replay), "graph");
    check(cudaGraphDestroy(graph), "graph");
    check(cudaEventDestroy(begin), "event");
    check(cudaEventDestroy(end), "event");
    qsort(times, 9, sizeof times[0], by_size);
    return (double)times[4] * 1e3 / (double)calls;
}

static problem problem_make(int64_t m, int64_t n, int64_t k, bool with_tiles) {
    problem p;
    ls_error err;
    memset(&p, 0, sizeof p);
    p.m = m;
    p.n = n;
    p.k = k;
    p.w_bytes = n * k * 2;
    p.copies = ROTATED_BYTES / p.w_bytes + 1;
    if (p.copies > 64) p.copies = 64;
    p.with_tiles = with_tiles;
    p.tile_bytes = ls_cuda_gemm_tiles_bytes(n, k);
    p.x = (uint8_t *)device_memory(m * k * 2);
    p.w = (uint8_t *)device_memory(p.copies * p.w_bytes);
    p.ours = (uint8_t *)device_memory(m * n * 2);
    p.theirs = (uint8_t *)device_memory(m * n * 2);
    fill(p.x, m * k, 1);
    fill(p.w, p.copies * n * k, 2);
    if (with_tiles) {
        p.tiles = (uint8_t *)device_memory(p.copies * p.tile_bytes);
        for (int64_t c = 0; c < p.copies; c++)
            check_ls(ls_cuda_gemm_pack(&exec_, p.tiles + c * p.tile_bytes, p.w + c * p.w_bytes, n, k, &err), &err);
    }
    check(cudaStreamSynchronize(stream), "fill");
    return p;
}

static void problem_free(problem *p) {
    void *all[] = {p->x, p->w, p->tiles, p->ours, p->theirs};
    for (int i = 0; i < 5; i++) check(cudaFree(all[i]), "free");
}

static const int64_t shapes[][2] = {{10240, 2560}, {16384, 2560}, {65536, 2560},
                                    {2560, 5120},  {2560, 8192},  {192, 5120}};

static void line(problem *p, const char *what, int64_t calls) {
    const double ours = time_of(run_ours, p, calls), theirs = time_of(run_cublas, p, calls);
    const double flop = 2.0 * (double)p->m * (double)p->n * (double)p->k;
    run_ours(p, 0);
    run_cublas(p, 0);
    printf(
        "%s %5lld -> %5lld M %4lld: %8.2f us, cublas %8.2f, ratio %.3f, equal %.4f, %6.1f of %6.1f TFLOP/s, floor %.2f "
        "us\n",
        what, (long long)p->k, (long long)p->n, (long long)p->m, ours, theirs, ours / theirs,
        equal_share(p->ours, p->theirs, p->m * p->n), flop / ours * 1e-6, flop / theirs * 1e-6,
        (double)p->w_bytes / READ_RATE * 1e6);
}

static void decode(void) {
    static const int64_t rows[] = {1, 8, 16, 32, 48, 64};
    for (int s = 0; s < 6; s++)
        for (int r = 0; r < 6; r++) {
            problem p = problem_make(rows[r], shapes[s][0], shapes[s][1], true);
            line(&p, "decode", p.copies * (p.copies < 16 ? 4 : 1));
            problem_free(&p);
        }
}

/* Every way to cut a product of few rows. */
static void plans(void) {
    static const int64_t rows[] = {1, 8, 16, 32, 48, 64}, tiles[] = {1, 2, 4, 6, 8, 12, 16},
                         shared[] = {74 << 10, 112 << 10, 226 << 10};
    for (int s = 0; s < 6; s++)
        for (int r = 0; r < 6; r++) {
            problem p = problem_make(rows[r], shapes[s][0], shapes[s][1], true);
            const int64_t calls = p.copies * (p.copies < 16 ? 4 : 1), rows8 = (rows[r] + 7) / 8 * 8;
            const double theirs = time_of(run_cublas, &p, calls);
            struct {
                double time;
                ls_decode_plan plan;
            } best[4] = {{1e9, {}}, {1e9, {}}, {1e9, {}}, {1e9, {}}};
            for (int i = 0; i < 21; i++) {
                const ls_decode_plan plan = {tiles[i % 7], shared[i / 7], 64};
                const int64_t stage = plan.stage_tiles * (rows8 * 128 + ls_decode_columns(p.n) * 128);
                double time;
                if ((plan.shared_bytes - 9216) / stage < 2) continue;
                p.plan = plan;
                time = time_of(run_ours, &p, calls);
                for (int b = 0; b < 4; b++)
                    if (time < best[b].time) {
                        for (int c = 3; c > b; c--) best[c] = best[c - 1];
                        best[b].time = time;
                        best[b].plan = plan;
                        break;
                    }
            }
            printf("plans %5lld -> %5lld M %2lld columns %3lld: cublas %6.2f;", (long long)p.k, (long long)p.n,
                   (long long)p.m, (long long)ls_decode_columns(p.n), theirs);
            for (int b = 0; b < 4; b++)
                printf(" %6.2f (%.3f) tiles %lld shared %lldK;", best[b].time, best[b].time / theirs,
                       (long long)best[b].plan.stage_tiles, (long long)best[b].plan.shared_bytes >> 10);
            printf("\n");
            problem_free(&p);
        }
}

static void wide(void) {
    static const int64_t rows[] = {64, 128, 256, 1024, 8192};
    for (int s = 0; s < 6; s++)
        for (int r = 0; r < 5; r++) {
            problem p = problem_make(rows[r], shapes[s][0], shapes[s][1], false);
            line(&p, "wide  ", rows[r] > 1024 ? 2 : 16);
            ls_error err;
            const ls_cuda_gemm_args args = {p.x, LS_BF16, p.k, p.w, LS_BF16,          NULL, NULL, p.ours, LS_BF16,
                                            p.n, p.m,     p.n, p.k, LS_PROFILE_MMA16, true, NULL};
            p.nan_open = true;
            if (ls_cuda_gemm_prepare(&args, &err) == LS_OK)
                line(&p, "proven", rows[r] > 1024 ? 2 : 16);
            else
                printf("proven %s\n", err.text);
            problem_free(&p);
        }
}

/* Narrow weights at many rows, from tiles. */
static void narrow(void) {
    static const int64_t rows[] = {128, 256, 1024, 4096};
    for (int r = 0; r < 4; r++) {
        problem p = problem_make(rows[r], 192, 5120, true);
        line(&p, "narrow", 16);
        problem_free(&p);
    }
}

/* Gradients beside cuBLAS: whole calls with rounding and gathering, and what the library takes for bf16 operands; or,
 * where dy is rounded before, sequences are whole steps of 16 and dw starts from zero, as in training, the products. */
static bool products_alone;
static void run_dx(const problem *p, int64_t copy) {
    const ls_gemm_backward_input_args args = {(const float *)p->tiles,
                                              p->n,
                                              p->w + copy * p->w_bytes,
                                              LS_BF16,
                                              (float *)p->ours,
                                              p->k,
                                              p->m,
                                              NULL,
                                              false,
                                              p->m,
                                              p->n,
                                              p->k,
                                              LS_PROFILE_MMA16,
                                              NULL,
                                              products_alone ? (const uint16_t *)p->tiles : NULL,
                                              p->n};
    ls_error err;
    check_ls(ls_cuda_gemm_backward_input(&exec_, &args, &err), &err);
}
static void cublas_dx(const problem *p, int64_t copy) {
    const float one = 1, zero = 0;
    check_blas(cublasGemmEx(blas, CUBLAS_OP_N, CUBLAS_OP_N, (int)p->k, (int)p->m, (int)p->n, &one,
                            p->w + copy * p->w_bytes, CUDA_R_16BF, (int)p->k, p->tiles, CUDA_R_16BF, (int)p->n, &zero,
                            p->theirs, CUDA_R_32F, (int)p->k, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
               "dx");
}
static int64_t *sequences;
static void run_dw(const problem *p, int64_t copy) {
    const ls_gemm_backward_weight_args args = {(const float *)p->tiles,
                                               p->n,
                                               p->x,
                                               LS_BF16,
                                               p->k,
                                               p->m,
                                               NULL,
                                               (float *)p->ours,
                                               NULL,
                                               p->m,
                                               p->n,
                                               p->k,
                                               LS_PROFILE_MMA16,
                                               sequences,
                                               8,
                                               NULL,
                                               products_alone ? (const uint16_t *)p->tiles : NULL,
                                               p->n,
                                               products_alone,
                                               products_alone};
    ls_error err;
    (void)copy;
    check_ls(ls_cuda_gemm_backward_weight(&exec_, &args, &err), &err);
}
static void cublas_dw(const problem *p, int64_t copy) {
    const float one = 1, before = products_alone ? 0 : 1;
    (void)copy;
    check_blas(cublasGemmEx(blas, CUBLAS_OP_N, CUBLAS_OP_T, (int)p->k, (int)p->n, (int)p->m, &one, p->x, CUDA_R_16BF,
                            (int)p->k, p->tiles, CUDA_R_16BF, (int)p->n, &before, p->theirs, CUDA_R_32F, (int)p->k,
                            CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
               "dw");
}
static void gradient(int64_t m, int64_t n, int64_t k) {
    const double flop = 2.0 * (double)m * (double)n * (double)k;
    const int64_t out_bytes = (m > n ? m : n) * k * 4;
    int64_t offsets[9];
    problem p;
    memset(&p, 0, sizeof p);
    p.m = m, p.n = n, p.k = k, p.copies = 1;
    p.x = (uint8_t *)device_memory(m * k * 2);
    p.w = (uint8_t *)device_memory(n * k * 2);
    p.tiles = (uint8_t *)device_memory(m * n * 4); /* dy */
    p.ours = (uint8_t *)device_memory(out_bytes);
    p.theirs = (uint8_t *)device_memory(out_bytes);
    fill(p.x, m * k, 1);
    fill(p.w, n * k, 2);
    fill(p.tiles, m * n * 2, 3);
    for (int i = 0; i < 9; i++) offsets[i] = m / 8 * i;
    check(cudaMemcpy(sequences, offsets, sizeof offsets, cudaMemcpyHostToDevice), "sequences");
    check(cudaMemset(p.ours, 0, (size_t)out_bytes), "clear");
    check(cudaMemset(p.theirs, 0, (size_t)out_bytes), "clear");
    check(cudaStreamSynchronize(stream), "fill");
    run_dx(&p, 0); /* which proves cuBLASLt at the first call */
    run_dw(&p, 0);
    const double dx = time_of(run_dx, &p, 2), their_dx = time_of(cublas_dx, &p, 2);
    const double dw = time_of(run_dw, &p, 2), their_dw = time_of(cublas_dw, &p, 2);
    printf(
        "%s n %5lld k %5lld m %lld: dx %7.1f us (%5.1f TFLOP/s), cublas %7.1f, ratio %.3f; dw %7.1f us (%5.1f), "
        "cublas %7.1f, ratio %.3f\n",
        products_alone ? "products " : "gradients", (long long)n, (long long)k, (long long)m, dx, flop / dx * 1e-6,
        their_dx, dx / their_dx, dw, flop / dw * 1e-6, their_dw, dw / their_dw);
    problem_free(&p);
}

static void gradients(void) {
    exec_.fault = (ls_fault *)device_memory(sizeof(ls_fault));
    check(cudaMemset(exec_.fault, 0, sizeof(ls_fault)), "record");
    sequences = (int64_t *)device_memory(9 * 8);
    for (int s = 0; s < 6; s++) {
        const int64_t n = shapes[s][0], k = shapes[s][1];
        if (n > 20000) continue;
        products_alone = false;
        gradient(8192, n, k);
        products_alone = true;
        gradient(128, n, k);
        gradient(1024, n, k);
        gradient(8192, n, k);
    }
    exec_.fault = NULL;
}

/* A head of Qwen3's vocabulary over as many rows as its logits of 1 GB are. */
static void head(void) {
    exec_.fault = (ls_fault *)device_memory(sizeof(ls_fault));
    check(cudaMemset(exec_.fault, 0, sizeof(ls_fault)), "record");
    sequences = (int64_t *)device_memory(9 * 8);
    for (int i = 0; i < 4; i++) {
        products_alone = i % 2 == 1;
        gradient(1664, 151936, i < 2 ? 1024 : 2048);
    }
    exec_.fault = NULL;
}

/* ---- groups of rows ---- */

#define EXPERTS 128

/* A mixture's products in training: what a call of the groups and one of cuBLAS with the same operations need. */
static struct {
    ls_gemm_weight weights[EXPERTS];
    const ls_gemm_weight *list[EXPERTS];
    const void *w[EXPERTS];
    float *dw[EXPERTS];
    int64_t *offsets, *rows, *sequences;
    ls_dtype out_dtype;
} experts;

static void run_groups_out(const problem *p, int64_t copy) {
    const ls_gemm_groups_args args = {p->x,    LS_BF16,           p->k, experts.list, EXPERTS,         experts.offsets,
                                      p->ours, experts.out_dtype, p->n, p->m,         LS_PROFILE_MMA16};
    ls_error err;
    (void)copy;
    check_ls(ls_cuda_gemm_groups(&exec_, &args, &err), &err);
}
static void cublas_out(const problem *p, int64_t copy) {
    const float one = 1, zero = 0;
    const cudaDataType_t type = experts.out_dtype == LS_F32 ? CUDA_R_32F : CUDA_R_16BF;
    (void)copy;
    check_blas(cublasGemmEx(blas, CUBLAS_OP_T, CUBLAS_OP_N, (int)p->n, (int)p->m, (int)p->k, &one, p->w, CUDA_R_16BF,
                            (int)p->k, p->x, CUDA_R_16BF, (int)p->k, &zero, p->theirs, type, (int)p->n,
                            CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
               "gemm");
}
static void run_groups_dx(const problem *p, int64_t copy) {
    const ls_gemm_groups_backward_input_args args = {
        p->tiles,         LS_BF16, p->n, experts.w, LS_BF16, EXPERTS,         experts.offsets,
        (float *)p->ours, p->k,    p->m, p->n,      p->k,    LS_PROFILE_MMA16};
    ls_error err;
    (void)copy;
    check_ls(ls_cuda_gemm_groups_backward_input(&exec_, &args, &err), &err);
}
static void run_groups_dw(const problem *p, int64_t copy) {
    const ls_gemm_groups_backward_weight_args args = {
        p->tiles,     LS_BF16,           p->n, p->x, LS_BF16, p->k, experts.dw,       EXPERTS, experts.offsets,
        experts.rows, experts.sequences, 8,    p->m, p->n,    p->k, LS_PROFILE_MMA16, true};
    ls_error err;
    (void)copy;
    check_ls(ls_cuda_gemm_groups_backward_weight(&exec_, &args, &err), &err);
}

static void group_line(const char *what, contender ours, contender theirs, const problem *p, double bytes) {
    const double time = time_of(ours, p, 4), dense = time_of(theirs, p, 4);
    const double flop = 2.0 * (double)p->m * (double)p->n * (double)p->k;
    printf(
        "groups %-4s %4lld rows of each, %5lld -> %5lld: %7.1f us, a dense product of the operations %7.1f, %.2f of "
        "its pace, %5.1f TFLOP/s, %4.0f GB/s\n",
        what, (long long)(p->m / EXPERTS), (long long)p->k, (long long)p->n, time, dense, dense / time,
        flop / time * 1e-6, bytes / time * 1e-3);
}

static void groups_of(int64_t each, int64_t n, int64_t k, ls_dtype out_dtype) {
    const int64_t m = each * EXPERTS, widest = n > k ? n : k;
    const double w_bytes = (double)EXPERTS * (double)(n * k), x_bytes = (double)(m * k), y_bytes = (double)(m * n);
    int64_t offsets[EXPERTS + 1], sequences[9];
    int64_t *rows = (int64_t *)malloc((size_t)m * sizeof *rows);
    problem p;
    ls_error err;
    memset(&p, 0, sizeof p);
    p.m = m, p.n = n, p.k = k, p.copies = 1;
    p.x = (uint8_t *)device_memory(m * k * 2);
    p.w = (uint8_t *)device_memory(EXPERTS * n * k * 2);
    p.tiles = (uint8_t *)device_memory(m * n * 2); /* dy */
    p.ours = (uint8_t *)device_memory(m * widest * 4);
    p.theirs = (uint8_t *)device_memory(m * widest * 4);
    fill(p.x, m * k, 1);
    fill(p.tiles, m * n, 3);
    float *dw = (float *)device_memory(EXPERTS * n * k * 4);
    for (int i = 0; i < EXPERTS; i++) {
        offsets[i] = each * i;
        check_ls(ls_op_gemm_plan(LS_BACKEND_CUDA, LS_BF16, n, k, &experts.weights[i], &err), &err);
        experts.weights[i].panels = p.w + i * n * k * 2;
        experts.list[i] = &experts.weights[i];
        experts.w[i] = experts.weights[i].panels;
        experts.dw[i] = dw + i * n * k;
    }
    fill(p.w, EXPERTS * n * k, 2);
    offsets[EXPERTS] = m;
    for (int i = 0; i < 9; i++) sequences[i] = each / 8 * i;
    for (int64_t i = 0; i < m; i++) rows[i] = i % each;
    experts.offsets = (int64_t *)device_memory(sizeof offsets);
    experts.rows = (int64_t *)device_memory(m * 8);
    experts.sequences = (int64_t *)device_memory(sizeof sequences);
    experts.out_dtype = out_dtype;
    check(cudaMemcpy(experts.offsets, offsets, sizeof offsets, cudaMemcpyHostToDevice), "offsets");
    check(cudaMemcpy(experts.rows, rows, (size_t)m * 8, cudaMemcpyHostToDevice), "rows");
    check(cudaMemcpy(experts.sequences, sequences, sizeof sequences, cudaMemcpyHostToDevice), "sequences");
    check(cudaStreamSynchronize(stream), "fill");
    group_line("out", run_groups_out, cublas_out, &p,
               2 * w_bytes + 2 * x_bytes + y_bytes * (double)ls_dtype_bytes(out_dtype));
    group_line("dx", run_groups_dx, cublas_dx, &p, 2 * w_bytes + 2 * y_bytes + 4 * x_bytes);
    products_alone = true;
    group_line("dw", run_groups_dw, cublas_dw, &p, 4 * w_bytes + 2 * y_bytes + 2 * x_bytes);
    void *all[] = {experts.offsets, experts.rows, experts.sequences, dw};
    for (int i = 0; i < 4; i++) check(cudaFree(all[i]), "free");
    problem_free(&p);
    free(rows);
}

/* Qwen3-30B-A3B's experts. */
static void groups(void) {
    exec_.fault = (ls_fault *)device_memory(sizeof(ls_fault));
    check(cudaMemset(exec_.fault, 0, sizeof(ls_fault)), "record");
    for (int64_t each = 64; each <= 1024; each *= each == 64 ? 4 : 2) {
        groups_of(each, 768, 2048, LS_BF16);
        groups_of(each, 2048, 768, LS_F32);
    }
    exec_.fault = NULL;
}

/* The float32 chain. */
static void run_exact(const problem *p, int64_t copy) {
    const ls_cuda_gemm_args args = {
        p->x, LS_BF16, p->k, p->w + copy * p->w_bytes, LS_BF16, NULL, NULL, p->ours, LS_BF16, p->n,
        p->m, p->n,    p->k, LS_PROFILE_EXACT,         false,   NULL};
    ls_error err;
    check_ls(ls_cuda_gemm_stored(&exec_, &args, &err), &err);
}
static void exact(void) {
    static const int64_t rows[] = {1, 64, 1024, 8192};
    for (int r = 0; r < 4; r++) {
        problem p = problem_make(rows[r], 10240, 2560, false);
        const double time = time_of(run_exact, &p, 2);
        printf("exact 2560 -> 10240 M %4lld: %9.1f us, %5.1f TFLOP/s\n", (long long)p.m, time,
               2.0 * (double)p.m * (double)p.n * (double)p.k / time * 1e-6);
        problem_free(&p);
    }
}

int main(int argc, char **argv) {
    ls_error err;
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
    check_blas(cublasCreate(&blas), "create");
    check_blas(cublasSetStream(blas, stream), "stream");
    check_blas(cublasSetWorkspace(blas, device_memory(64 << 20), 64 << 20), "workspace");
    exec_.backend = LS_BACKEND_CUDA;
    exec_.stream = stream;
    exec_.workspace_bytes = (int64_t)1 << 30;
    exec_.workspace = device_memory(exec_.workspace_bytes);
    check_ls(ls_cuda_mma16_proven(&err), &err);
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "decode") == 0) decode();
        if (strcmp(argv[i], "plans") == 0) plans();
        if (strcmp(argv[i], "wide") == 0) wide();
        if (strcmp(argv[i], "narrow") == 0) narrow();
        if (strcmp(argv[i], "gradients") == 0) gradients();
        if (strcmp(argv[i], "head") == 0) head();
        if (strcmp(argv[i], "groups") == 0) groups();
        if (strcmp(argv[i], "exact") == 0) exact();
    }
    return 0;
}
