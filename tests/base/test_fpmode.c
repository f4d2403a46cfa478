/* The floating-point mode: set on entry, restored on return, for the caller and for the threads it makes. */
#define _POSIX_C_SOURCE 200809L
#include <fenv.h>
#include <pthread.h>
#include <stdlib.h>

#include "base/fpmode.h"
#include "base/parallel.h"
#include "harness.h"
#include "lockstep/ops.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#define FLUSH 0x8040u /* FTZ and DAZ */

static uint32_t mode_now(void) { return _mm_getcsr() & ~0x3Fu; }              /* without the flags that results raise */
static void mode_spoil(void) { _mm_setcsr((_mm_getcsr() | FLUSH) & ~0x80u); } /* and division by zero of 0s traps */
static void mode_round(void) { fesetround(FE_UPWARD); }
static void mode_default(void) {
    fesetround(FE_TONEAREST);
    _mm_setcsr(0x1F80u);
}
#else
static uint32_t mode_now(void) { return (uint32_t)fegetround(); }
static void mode_spoil(void) { fesetround(FE_DOWNWARD); }
static void mode_round(void) { fesetround(FE_UPWARD); }
static void mode_default(void) { fesetround(FE_TONEAREST); }
#endif

enum { ROWS = 8, VOCAB = 300 };
static float logits[ROWS * VOCAB], out[ROWS], expected[ROWS];
static int64_t targets[ROWS];

static void fill(void) {
    uint64_t seed = 3;
    for (int i = 0; i < ROWS * VOCAB; i++) logits[i] = test_uniform(&seed, -9.0f, 9.0f);
    for (int i = 0; i < ROWS; i++) targets[i] = i * 31;
    /* Subnormal logits and differences: with denormals flushed their rows come out otherwise. */
    for (int i = 0; i < VOCAB; i++) logits[i] = i == 0 ? 0x1p-130f : -200.0f;
}

static void run(ls_workers *workers, float *to) {
    const ls_logprob_args args = {.logits = logits,
                                  .rows = ROWS,
                                  .vocab = VOCAB,
                                  .row_stride = VOCAB,
                                  .targets = targets,
                                  .ignore_index = -100,
                                  .logprob = to};
    const ls_exec exec = {.backend = LS_BACKEND_CPU, .workers = workers};
    ls_error err;
    assert_ok(ls_op_logprob(&exec, &args, &err), err);
}

/* The workers begin with their maker's mode, the calling thread has its own. */
static void ops_do_not_depend_on_the_callers_mode(void **state) {
    static void (*const modes[])(void) = {mode_default, mode_spoil, mode_round};
    (void)state;
    fill();
    for (size_t maker = 0; maker < 3; maker++)
        for (size_t caller = 0; caller < 3; caller++) {
            ls_workers *workers = NULL;
            ls_error err;
            uint32_t before;
            modes[maker]();
            assert_ok(ls_cpu_workers_create(&workers, 3, NULL, &err), err);
            mode_default();
            modes[caller]();
            before = mode_now();
            run(workers, maker + caller == 0 ? expected : out);
            assert_int_equal(mode_now(), before);
            mode_default();
            if (maker + caller > 0) assert_same_bits(out, expected, ROWS);
            ls_cpu_workers_free(workers);
        }
}

typedef struct seen {
    uint32_t mode[3];
    pthread_barrier_t all_run; /* no thread takes the part of another */
} seen;

static void look(void *context, int64_t begin, int64_t end, int32_t thread_i) {
    seen *s = context;
    (void)begin;
    (void)end;
    s->mode[thread_i] = mode_now();
    pthread_barrier_wait(&s->all_run);
}

static void threads_do_not_inherit_a_mode(void **state) {
    ls_pool *pool = NULL;
    ls_error err;
    seen s = {.mode = {0}};
    uint32_t plain;
    (void)state;
    assert_int_equal(pthread_barrier_init(&s.all_run, NULL, 3), 0);
    mode_default();
    plain = mode_now();
    mode_spoil();
    assert_true(mode_now() != plain);
    assert_ok(ls_pool_create(&pool, 3, &err), err);
    mode_default();
    ls_parallel_for(pool, 3, 1, look, &s);
    for (int i = 0; i < 3; i++) assert_int_equal(s.mode[i], plain);
    ls_pool_free(pool);
    pthread_barrier_destroy(&s.all_run);
}

static void entering_sets_and_leaving_restores(void **state) {
    ls_fpmode saved;
    uint32_t plain, spoilt;
    volatile float tiny = 0x1p-126f;
    (void)state;
    mode_default();
    plain = mode_now();
    mode_spoil();
    spoilt = mode_now();
    ls_fpmode_enter(&saved);
    assert_int_equal(mode_now(), plain);
    assert_true(tiny * 0.5f > 0.0f);
    ls_fpmode_leave(&saved);
    assert_int_equal(mode_now(), spoilt);
    mode_default();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(entering_sets_and_leaving_restores),
        cmocka_unit_test(threads_do_not_inherit_a_mode),
        cmocka_unit_test(ops_do_not_depend_on_the_callers_mode),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
