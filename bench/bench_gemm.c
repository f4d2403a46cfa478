/* Dense product against OpenBLAS and against the machine: GFLOP/s for several M at one N and K, with the two bounds
 * measured in the same run: fma peak from a loop that lives in registers, read bandwidth from a stream over 256 MB.
 *
 *   bench_gemm [--n N] [--k K] [--m M,M,..] [--threads T] [--reps R] [--isa NAME]
 *
 * Every repetition runs all contenders once, one after the other (A B C A B C), and the bounds too, so that a slow
 * moment of the machine hits all of them; medians over repetitions are printed, and the ratio of best times too.
 * OpenBLAS gets what it does best: for M = 1 the faster of its sgemm and sgemv. Weights are packed outside the clock
 * for us, as a model does once. */
#define _GNU_SOURCE
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "base/mem.h"
#include "bounds.h"
#include "num/half.h"
#include "op/backend.h"

#if LS_HAVE_OPENBLAS
#include <cblas.h>
#endif

#define REPS_MAX 1001
#define M_COUNT_MAX 16

enum { OURS_F32, OURS_BF16, PEER_GEMM, PEER_GEMV, FMA_PEAK, READ_STREAM, N_CONTENDERS };

typedef struct bench {
    int64_t n, k, m[M_COUNT_MAX];
    int n_m, reps;
    int32_t threads;
    ls_device *device;
    float *x, *w, *out;
    ls_gemm_weight packed, packed_bf16;
    bounds_job bounds;
} bench;

static double contender_run(bench *b, int contender, int64_t m) {
    const double start = now();
    ls_error err;
    switch (contender) {
        case OURS_F32:
        case OURS_BF16: {
            const ls_gemm_weight *weight = contender == OURS_F32 ? &b->packed : &b->packed_bf16;
            const ls_gemm_args args = {b->x,   LS_F32, b->k, weight,           NULL, b->out,
                                       LS_F32, b->n,   m,    LS_PROFILE_EXACT, NULL, false};
            if (ls_gemm(b->device, &args, &err) != LS_OK) {
                fprintf(stderr, "bench_gemm: %s\n", err.text);
                exit(1);
            }
            break;
        }
#if LS_HAVE_OPENBLAS
        case PEER_GEMM:
            cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)m, (int)b->n, (int)b->k, 1.0f, b->x, (int)b->k,
                        b->w, (int)b->k, 0.0f, b->out, (int)b->n);
            break;
        case PEER_GEMV:
            if (m != 1) return INFINITY;
            cblas_sgemv(CblasRowMajor, CblasNoTrans, (int)b->n, (int)b->k, 1.0f, b->w, (int)b->k, b->x, 1, 0.0f, b->out,
                        1);
            break;
#else
        case PEER_GEMM:
        case PEER_GEMV: return INFINITY;
#endif
        case FMA_PEAK: ls_parallel_for(b->device->exec.workers->pool, b->threads, 1, fma_part, &b->bounds); break;
        case READ_STREAM:
            ls_parallel_for(b->device->exec.workers->pool, STREAM_BYTES / 4, 1024, stream_part, &b->bounds);
            break;
        default: break;
    }
    return now() - start;
}

static void m_run(bench *b, int64_t m) {
    static double seconds[N_CONTENDERS][REPS_MAX];
    double t[N_CONTENDERS], best[N_CONTENDERS];
    const double flops = 2.0 * (double)m * (double)b->n * (double)b->k;
    const double bytes_f32 = (double)b->packed.panel_bytes, bytes_bf16 = (double)b->packed_bf16.panel_bytes;
    double peak, bandwidth, peer, floor_f32, floor_bf16;
    for (int c = 0; c < N_CONTENDERS; c++) contender_run(b, c, m); /* warm up */
    for (int r = 0; r < b->reps; r++)
        for (int c = 0; c < N_CONTENDERS; c++) seconds[c][r] = contender_run(b, c, m);
    for (int c = 0; c < N_CONTENDERS; c++) {
        t[c] = median(seconds[c], b->reps);
        best[c] = seconds[c][0];
    }
    peak = fma_flops(b->device->exec.workers->isa, b->threads) / t[FMA_PEAK];
    bandwidth = (double)STREAM_BYTES / t[READ_STREAM];
    floor_f32 = fmax(flops / peak, bytes_f32 / bandwidth);
    floor_bf16 = fmax(flops / peak, bytes_bf16 / bandwidth);
    peer = fmin(t[PEER_GEMM], t[PEER_GEMV]);
    printf("%5lld  %8.1f %8.1f  %6.2f %5.2f  %7.1f %6.1f  %-6s %5.0f %%   %8.1f %-6s %5.0f %%\n", (long long)m,
           flops / t[OURS_F32] * 1e-9, flops / peer * 1e-9, peer / t[OURS_F32],
           fmin(best[PEER_GEMM], best[PEER_GEMV]) / best[OURS_F32], peak * 1e-9, bandwidth * 1e-9,
           flops / peak > bytes_f32 / bandwidth ? "fma" : "memory", 100.0 * floor_f32 / t[OURS_F32],
           flops / t[OURS_BF16] * 1e-9, flops / peak > bytes_bf16 / bandwidth ? "fma" : "memory",
           100.0 * floor_bf16 / t[OURS_BF16]);
    fflush(stdout);
}

static void bench_make(bench *b, ls_isa isa) {
    uint16_t *half;
    float *stream;
    int64_t m_max = 1;
    uint32_t seed = 1;
    ls_error err;
    ls_status status;
    for (int i = 0; i < b->n_m; i++) m_max = b->m[i] > m_max ? b->m[i] : m_max;
    LS_TRY_DONE(ls_device_open_cpu(&b->device, b->threads, isa, &err));
    LS_TRY_DONE(ls_array_alloc((void **)&b->x, m_max * b->k, 4, "x", &err));
    LS_TRY_DONE(ls_array_alloc((void **)&b->w, b->n * b->k, 4, "w", &err));
    LS_TRY_DONE(ls_array_alloc((void **)&half, b->n * b->k, 2, "w bf16", &err));
    LS_TRY_DONE(ls_array_alloc((void **)&b->out, m_max * b->n, 4, "out", &err));
    /* On huge pages where the system grants them, as packed weights are. */
    stream = aligned_alloc(2 << 20, STREAM_BYTES);
    if (stream == NULL) LS_TRY_DONE(LS_FAIL(&err, LS_ERR_NOMEM, "stream of %lld bytes", STREAM_BYTES));
#ifdef MADV_HUGEPAGE
    (void)madvise(stream, STREAM_BYTES, MADV_HUGEPAGE);
#endif
    memset(stream, 0, STREAM_BYTES);
    for (int64_t i = 0; i < m_max * b->k; i++)
        b->x[i] = (float)((seed = seed * 1664525u + 1013904223u) >> 8) * 0x1p-24f;
    for (int64_t i = 0; i < b->n * b->k; i++) {
        b->w[i] = (float)((seed = seed * 1664525u + 1013904223u) >> 8) * 0x1p-24f - 0.5f;
        half[i] = ls_f32_to_bf16(b->w[i]);
    }
    LS_TRY_DONE(ls_gemm_pack(b->device, &b->packed, b->w, LS_F32, b->n, b->k, &err));
    LS_TRY_DONE(ls_gemm_pack(b->device, &b->packed_bf16, half, LS_BF16, b->n, b->k, &err));
    free(half);
    b->bounds.isa = isa;
    b->bounds.stream = stream;
    return;
done:
    fprintf(stderr, "bench_gemm: %s\n", err.text);
    exit(1);
}

int main(int argc, char **argv) {
    static bench b = {.n = 4096, .k = 4096, .m = {1, 16, 64, 200}, .n_m = 4, .reps = 15, .threads = 1};
    ls_isa isa = ls_isa_best();
    for (int i = 1; i + 1 < argc; i += 2) {
        const char *name = argv[i], *value = argv[i + 1];
        if (strcmp(name, "--n") == 0)
            b.n = atoll(value);
        else if (strcmp(name, "--k") == 0)
            b.k = atoll(value);
        else if (strcmp(name, "--threads") == 0)
            b.threads = (int32_t)atoi(value);
        else if (strcmp(name, "--reps") == 0)
            b.reps = atoi(value);
        else if (strcmp(name, "--m") == 0) {
            char *rest = argv[i + 1];
            for (b.n_m = 0; b.n_m < M_COUNT_MAX && *rest != '\0'; rest += *rest == ',')
                b.m[b.n_m++] = strtoll(rest, &rest, 10);
        } else if (strcmp(name, "--isa") != 0 || !ls_isa_parse(&isa, value)) {
            fprintf(stderr, "bench_gemm: %s %s is not understood\n", name, value);
            return 2;
        }
    }
    if (b.n < 1 || b.k < 1 || b.reps < 1 || b.reps > REPS_MAX || b.threads < 1 || b.threads > LS_THREADS_MAX) {
        fprintf(stderr, "bench_gemm: n, k, reps (1..%d) or threads out of range\n", REPS_MAX);
        return 2;
    }
    if (b.threads == 1) clock_used = CLOCK_THREAD_CPUTIME_ID;
    bench_make(&b, isa);
#if LS_HAVE_OPENBLAS
    openblas_set_num_threads(b.threads);
    printf("peer: %s, %s\n", openblas_get_config(), openblas_get_corename());
#else
    printf("peer: built without OpenBLAS\n");
#endif
    printf(
        "n %lld, k %lld, %d threads, %s, medians of %d interleaved repetitions, %s time; GFLOP/s, GB/s, %% of bound\n",
        (long long)b.n, (long long)b.k, b.threads, ls_isa_name(isa), b.reps, b.threads == 1 ? "processor" : "wall");
    printf("    m   f32 w.     peer   ratio  best      fma   read  bound   of it    bf16 w. bound   of it\n");
    for (int i = 0; i < b.n_m; i++) m_run(&b, b.m[i]);
    ls_gemm_weight_free(b.device, &b.packed);
    ls_gemm_weight_free(b.device, &b.packed_bf16);
    free(b.x);
    free(b.w);
    free(b.out);
    free((void *)(uintptr_t)b.bounds.stream);
    ls_device_close(b.device);
    return 0;
}
