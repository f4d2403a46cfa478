/* Checks a function of num/expf.h on all 2^32 inputs: prove_num NAME [--threads N] [--filter] [--bound ULPS].
 *
 * Every input is compared with MPFR, except inside the ranges of num_constants[], where the result is proven constant
 * or equal to x: there its bits alone are checked. --filter compares with float64 instead and asks MPFR only above 1.5
 * ulp: minutes for a quick answer instead of an hour. Prints the largest error, where it is, how many inputs exceed 1
 * ulp; exit status 1 above the bound. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "num_oracle.h"

/* For low <= x <= high the correctly rounded result is one value, `bits` or x itself, because the true values there all
 * round to it:
 * - e^x > 2^128 from 88.73, and e^x < 2^-150 up to -103.98;
 * - for |x| <= 2^-26, e^x and 2^x lie within 2^-25 above 1 and 2^-26 below, sigmoid within 2^-28 of 1/2, softplus
 * within 2^-26 of 0x3F317218, the float32 next to ln 2: all under half an ulp;
 * - sigmoid > 1 - 2^-25 from 18; sigmoid and softplus are below e^x, so below 2^-150 up to -103.98;
 * - |silu|, which grows with x below -2, is below 2^-150 up to -109;
 * - x - silu(x) and softplus(x) - x are below x e^-x < 5e-8 from 20, where half an ulp is 9.5e-7 and more;
 * - |x - log1p(x)| < 0.501 x^2 < 2^-25 |x| for |x| < 2^-25, and half an ulp of x is above 2^-25 |x|.
 *
 * NaN inputs and everything num_special() names are checked by their bits too. */
typedef struct {
    int function;
    float low, high;
    int identity;
    uint32_t bits;
} num_constant;

static const num_constant num_constants[] = {
    {NUM_EXP2_BOUNDED, 127.0f, INFINITY, 0, 0x7F000000u},
    {NUM_EXP2_BOUNDED, -INFINITY, -126.0f, 0, 0x00800000u},
    {NUM_EXP2_BOUNDED, -0x1p-26f, 0x1p-26f, 0, 0x3F800000u},
    {NUM_EXP, 88.73f, INFINITY, 0, 0x7F800000u},
    {NUM_EXP, -INFINITY, -103.98f, 0, 0},
    {NUM_EXP, -0x1p-26f, 0x1p-26f, 0, 0x3F800000u},
    {NUM_LOG1P, -0x1.fffffep-26f, 0x1.fffffep-26f, 1, 0},
    {NUM_SIGMOID, 18.0f, INFINITY, 0, 0x3F800000u},
    {NUM_SIGMOID, -0x1p-26f, 0x1p-26f, 0, 0x3F000000u},
    {NUM_SIGMOID, -INFINITY, -103.98f, 0, 0},
    {NUM_SILU, -INFINITY, -109.0f, 0, 0x80000000u},
    {NUM_SILU, 20.0f, INFINITY, 1, 0},
    {NUM_SOFTPLUS, -0x1p-26f, 0x1p-26f, 0, 0x3F317218u},
    {NUM_SOFTPLUS, -INFINITY, -103.98f, 0, 0},
    {NUM_SOFTPLUS, 20.0f, INFINITY, 1, 0},
};

enum { BLOCK_BITS = 16, BLOCK = 1 << BLOCK_BITS };

typedef struct {
    int function, filter;
    num_loop loop;
    atomic_uint next_block;
    pthread_mutex_t lock;
    double worst;
    uint32_t worst_bits;
    uint64_t above_one, by_mpfr;
} proof;

static int find_constant(int function, float x) {
    const int n = (int)(sizeof num_constants / sizeof num_constants[0]);
    for (int i = 0; i < n; i++)
        if (num_constants[i].function == function && x >= num_constants[i].low && x <= num_constants[i].high) return i;
    return -1;
}

static void *prove_blocks(void *argument) {
    proof *p = argument;
    num_mpfr m;
    float *x = malloc(BLOCK * sizeof *x), *got = malloc(BLOCK * sizeof *got);
    double worst = -1.0;
    uint32_t worst_bits = 0, block;
    uint64_t above_one = 0, by_mpfr = 0;
    if (x == NULL || got == NULL) {
        fprintf(stderr, "prove_num: out of memory\n");
        exit(2);
    }
    num_mpfr_init(&m);
    while ((block = atomic_fetch_add(&p->next_block, 1u)) < 1u << (32 - BLOCK_BITS)) {
        for (uint32_t i = 0; i < BLOCK; i++) x[i] = ls_from_bits(block << BLOCK_BITS | i);
        p->loop(got, x, BLOCK);
        for (uint32_t i = 0; i < BLOCK; i++) {
            const int constant = find_constant(p->function, x[i]);
            double error;
            if (constant >= 0) {
                const num_constant *c = &num_constants[constant];
                error = num_special_error(c->identity ? ls_bits(x[i]) : c->bits, got[i]);
            } else {
                error = p->filter ? num_error64(p->function, x[i], got[i]) : 2.0;
                if (error > 1.5) {
                    error = num_error_mpfr(&m, p->function, x[i], got[i]);
                    by_mpfr++;
                }
            }
            above_one += error > 1.0;
            if (error > worst) {
                worst = error;
                worst_bits = block << BLOCK_BITS | i;
            }
        }
    }
    num_mpfr_clear(&m);
    free(x);
    free(got);
    pthread_mutex_lock(&p->lock);
    if (worst > p->worst || (worst == p->worst && worst_bits < p->worst_bits)) {
        p->worst = worst;
        p->worst_bits = worst_bits;
    }
    p->above_one += above_one;
    p->by_mpfr += by_mpfr;
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static int usage(void) {
    fprintf(stderr, "usage: prove_num NAME [--threads N] [--filter] [--bound ULPS], NAME one of");
    for (int i = 0; i < NUM_FUNCTIONS; i++) fprintf(stderr, " %s", num_names[i]);
    fprintf(stderr, "\n");
    return 2;
}

int main(int argc, char **argv) {
    enum { THREADS_MAX = 1024 };
    static pthread_t threads[THREADS_MAX];
    proof p = {.function = -1, .worst = -1.0};
    double bound = 2.0;
    const double start = seconds();
    float at, result;
    int n_threads = 1;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--filter") == 0) {
            p.filter = 1;
        } else if (strcmp(argv[i], "--threads") == 0 && i + 1 < argc) {
            n_threads = atoi(argv[++i]);
        } else if (strcmp(argv[i], "--bound") == 0 && i + 1 < argc) {
            bound = atof(argv[++i]);
        } else {
            if (p.function >= 0) return usage();
            for (int f = 0; f < NUM_FUNCTIONS; f++)
                if (strcmp(argv[i], num_names[f]) == 0) p.function = f;
            if (p.function < 0) return usage();
        }
    }
    if (p.function < 0 || n_threads < 1 || n_threads > THREADS_MAX || !(bound > 0)) return usage();
    p.loop = num_loops[p.function][num_body_runs(NUM_AVX2) ? NUM_AVX2 : NUM_SCALAR];
    pthread_mutex_init(&p.lock, NULL);
    for (int i = 0; i < n_threads; i++)
        if (pthread_create(&threads[i], NULL, prove_blocks, &p) != 0) {
            fprintf(stderr, "prove_num: cannot start thread %d\n", i);
            return 2;
        }
    for (int i = 0; i < n_threads; i++) pthread_join(threads[i], NULL);
    at = ls_from_bits(p.worst_bits);
    p.loop(&result, &at, 1);
    printf(
        "%s: max %.6f ulp at %a (0x%08x) -> %a, %llu of 2^32 inputs above 1 ulp, %llu compared with MPFR%s, %.1f s\n",
        num_names[p.function], p.worst, (double)at, p.worst_bits, (double)result, (unsigned long long)p.above_one,
        (unsigned long long)p.by_mpfr, p.filter ? " (float64 filter)" : "", seconds() - start);
    return p.worst <= bound ? 0 : 1;
}
