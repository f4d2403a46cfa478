/* Gradients of the dense product against the machine: GFLOP/s of dx and dw for several N and K, beside the fma peak
 * that a loop in registers reaches in the same run, and beside the forward product.
 *
 *   bench_gemm_backward [--m M] [--threads T] [--reps R] [--isa NAME]
 *
 * Every repetition runs all contenders once, one after the other; medians are printed. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/mem.h"
#include "bounds.h"
#include "num/half.h"
#include "op/backend.h"
#include "op/gemm_backward.h"

#define REPS_MAX 1001
#define SIDE_MAX 1024

enum { FORWARD, DX, DX_BF16, DW, DW_BF16, FMA_PEAK, N_CONTENDERS };

typedef struct bench {
    int64_t m, n, k;
    int32_t threads;
    int reps;
    ls_device *device;
    float *x, *w, *dy, *out, *dx, *dw, *dbias;
    uint16_t *x_half, *w_half;
    ls_gemm_weight packed;
    bounds_job bounds;
} bench;

static ls_status contender_call(bench *b, int contender, ls_error *err) {
    const ls_gemm_args forward = {b->x,   LS_F32, b->k, &b->packed,       NULL, b->out,
                                  LS_F32, b->n,   b->m, LS_PROFILE_EXACT, NULL, false};
    ls_gemm_backward_input_args input = {.dy = b->dy, .dy_stride = b->n, .w = b->w, .dx = b->dx, .dx_stride = b->k};
    ls_gemm_backward_weight_args weight = {.dy = b->dy, .dy_stride = b->n, .x = b->x, .x_stride = b->k, .dw = b->dw};
    input.dx_count = input.m = weight.x_count = weight.m = b->m;
    input.n = weight.n = b->n;
    input.k = weight.k = b->k;
    weight.dbias = b->dbias;
    if (contender == DX_BF16) {
        input.w = b->w_half;
        input.w_dtype = LS_BF16;
    }
    if (contender == DW_BF16) {
        weight.x = b->x_half;
        weight.x_dtype = LS_BF16;
    }
    switch (contender) {
        case FORWARD: return ls_gemm(b->device, &forward, err);
        case DX:
        case DX_BF16: return ls_gemm_backward_input(b->device, &input, err);
        case DW:
        case DW_BF16: return ls_gemm_backward_weight(b->device, &weight, err);
        default: ls_parallel_for(b->device->exec.workers->pool, b->threads, 1, fma_part, &b->bounds); return LS_OK;
    }
}

static double contender_run(bench *b, int contender) {
    const double start = now();
    ls_error err;
    if (contender_call(b, contender, &err) != LS_OK) {
        fprintf(stderr, "bench_gemm_backward: %s\n", err.text);
        exit(1);
    }
    return now() - start;
}

static void shape_run(bench *b, int64_t n, int64_t k) {
    static double seconds[N_CONTENDERS][REPS_MAX];
    const double flops = 2.0 * (double)b->m * (double)n * (double)k;
    double peak;
    ls_error err;
    b->n = n;
    b->k = k;
    if (ls_gemm_pack(b->device, &b->packed, b->w, LS_F32, n, k, &err) != LS_OK) exit(1);
    for (int c = 0; c < N_CONTENDERS; c++) contender_run(b, c); /* warm up */
    for (int r = 0; r < b->reps; r++)
        for (int c = 0; c < N_CONTENDERS; c++) seconds[c][r] = contender_run(b, c);
    peak = fma_flops(b->device->exec.workers->isa, b->threads) / median(seconds[FMA_PEAK], b->reps);
    printf("%5lld %5lld  %7.1f", (long long)n, (long long)k, peak * 1e-9);
    for (int c = 0; c < FMA_PEAK; c++) {
        const double rate = flops / median(seconds[c], b->reps);
        printf("  %7.1f %3.0f %%", rate * 1e-9, 100.0 * rate / peak);
    }
    printf("\n");
    fflush(stdout);
    ls_gemm_weight_free(b->device, &b->packed);
}

static void bench_make(bench *b, ls_isa isa) {
    const int64_t side = b->m > SIDE_MAX ? b->m : SIDE_MAX, count = side * SIDE_MAX;
    uint32_t seed = 1;
    ls_error err;
    ls_status status;
    LS_TRY_DONE(ls_device_open_cpu(&b->device, b->threads, isa, &err));
    float **const arrays[] = {&b->x, &b->w, &b->dy, &b->out, &b->dx, &b->dw, &b->dbias};
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++) {
        LS_TRY_DONE(ls_array_alloc((void **)arrays[i], count, 4, "bench", &err));
        for (int64_t j = 0; j < count; j++)
            (*arrays[i])[j] = (float)((seed = seed * 1664525u + 1013904223u) >> 8) * 0x1p-24f - 0.5f;
    }
    LS_TRY_DONE(ls_array_alloc((void **)&b->x_half, count, 2, "bench", &err));
    LS_TRY_DONE(ls_array_alloc((void **)&b->w_half, count, 2, "bench", &err));
    for (int64_t j = 0; j < count; j++) b->x_half[j] = b->w_half[j] = ls_f32_to_bf16(b->x[j]);
    b->bounds.isa = isa;
    return;
done:
    fprintf(stderr, "bench_gemm_backward: %s\n", err.text);
    exit(1);
}

int main(int argc, char **argv) {
    static const int64_t sides[] = {128, 256, 512, 1024};
    static bench b = {.m = 1024, .threads = 1, .reps = 11};
    ls_isa isa = ls_isa_best();
    for (int i = 1; i + 1 < argc; i += 2) {
        const char *name = argv[i], *value = argv[i + 1];
        if (strcmp(name, "--m") == 0)
            b.m = atoll(value);
        else if (strcmp(name, "--threads") == 0)
            b.threads = (int32_t)atoi(value);
        else if (strcmp(name, "--reps") == 0)
            b.reps = atoi(value);
        else if (strcmp(name, "--isa") != 0 || !ls_isa_parse(&isa, value)) {
            fprintf(stderr, "bench_gemm_backward: %s %s is not understood\n", name, value);
            return 2;
        }
    }
    if (b.m < 1 || b.reps < 1 || b.reps > REPS_MAX || b.threads < 1 || b.threads > LS_THREADS_MAX) {
        fprintf(stderr, "bench_gemm_backward: m, reps (1..%d) or threads out of range\n", REPS_MAX);
        return 2;
    }
    if (b.threads == 1) clock_used = CLOCK_THREAD_CPUTIME_ID;
    bench_make(&b, isa);
    printf("%lld rows, %d threads, %s, medians of %d interleaved repetitions; GFLOP/s and %% of the fma peak\n",
           (long long)b.m, b.threads, ls_isa_name(isa), b.reps);
    printf("    n     k     peak        forward             dx        dx, bf16             dw        dw, bf16\n");
    for (size_t i = 0; i < sizeof sides / sizeof sides[0]; i++)
        for (size_t j = 0; j < sizeof sides / sizeof sides[0]; j++) shape_run(&b, sides[i], sides[j]);
    ls_device_close(b.device);
    free(b.x);
    free(b.w);
    free(b.dy);
    free(b.out);
    free(b.dx);
    free(b.dw);
    free(b.dbias);
    free(b.x_half);
    free(b.w_half);
    return 0;
}
