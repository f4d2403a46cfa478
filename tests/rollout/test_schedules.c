/* The property behind every promise of the engine: 10,000 random schedules of requests, cancellations, preemptions,
 * weight updates and sleeps, under random levers, give every request the bits that it has alone; no tick allocates; and
 * in the end every page and slot is back. A failing schedule is shrunk and printed.
 *
 * LS_SCHEDULES: how many (10,000; 300 in sanitizer builds). LS_SEED: the first seed (1). */
#define _GNU_SOURCE
#define TEST_HOME_THREADS 1
#include <stdatomic.h>

#include "base/mem.h"
#include "shrink.h"

#ifdef LS_SANITIZED
#define N_SCHEDULES 300
#else
#define N_SCHEDULES 10000
#endif
#define OPS_MAX 24
#define WORKERS 2

/* ---- allocations, counted by the linker's --wrap ---- */

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t n, size_t bytes);
void *__real_realloc(void *p, size_t bytes);
void *__real_aligned_alloc(size_t align, size_t bytes);
void *__real_mmap(void *at, size_t bytes, int protection, int flags, int file, off_t offset);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t n, size_t bytes);
void *__wrap_realloc(void *p, size_t bytes);
void *__wrap_aligned_alloc(size_t align, size_t bytes);
void *__wrap_mmap(void *at, size_t bytes, int protection, int flags, int file, off_t offset);

static atomic_llong n_allocations;

void *__wrap_malloc(size_t bytes) {
    atomic_fetch_add(&n_allocations, 1);
    return __real_malloc(bytes);
}
void *__wrap_calloc(size_t n, size_t bytes) {
    atomic_fetch_add(&n_allocations, 1);
    return __real_calloc(n, bytes);
}
void *__wrap_realloc(void *p, size_t bytes) {
    atomic_fetch_add(&n_allocations, 1);
    return __real_realloc(p, bytes);
}
void *__wrap_aligned_alloc(size_t align, size_t bytes) {
    atomic_fetch_add(&n_allocations, 1);
    return __real_aligned_alloc(align, bytes);
}
void *__wrap_mmap(void *at, size_t bytes, int protection, int flags, int file, off_t offset) {
    atomic_fetch_add(&n_allocations, 1);
    return __real_mmap(at, bytes, protection, flags, file, offset);
}

static int64_t count_allocations(void) { return atomic_load(&n_allocations); }

/* ---- many schedules, in two processes ---- */

static uint64_t number_from(const char *name, uint64_t otherwise) {
    const char *text = getenv(name);
    return text != NULL ? strtoull(text, NULL, 10) : otherwise;
}

static void draw(schedule *s, const laboratory *lab, uint64_t seed, operation *ops) {
    dice d = {seed, 1000000};
    draw_schedule(s, lab, seed, ops, 1 + roll(&d, OPS_MAX));
}

/* Seeds first, first + step, .. below end, up to the first that fails. */
static void work(laboratory *lab, uint64_t first, uint64_t end, uint64_t step, report *r) {
    operation ops[OPS_MAX];
    schedule s;
    for (r->seed = first; r->seed < end; r->seed += step) {
        draw(&s, lab, r->seed, ops);
        r->failed = !run_schedule(lab, &s, &r->total, r->text, sizeof r->text);
        if (r->failed) return;
    }
}

/* The first seed of [first, end) that fails, or end. On a GPU, which no child can use, one after the other. */
static uint64_t first_failure(laboratory *lab, uint64_t first, uint64_t end, tally *total) {
    report *r = reports_map(WORKERS);
    pid_t child[WORKERS];
    fflush(NULL);
    if (test_on_gpu()) {
        work(lab, first, end, 1, r);
        add_tally(total, &r->total);
        if (r->failed) end = r->seed;
        reports_unmap(r, WORKERS);
        return end;
    }
    for (int w = 0; w < WORKERS; w++) {
        child[w] = fork();
        assert_true(child[w] >= 0);
        if (child[w] == 0) {
            default_signals();
            work(lab, first + (uint64_t)w, end, WORKERS, &r[w]);
            exit(0); /* a leak checker looks here */
        }
    }
    for (int w = 0; w < WORKERS; w++) {
        int how = 0;
        while (waitpid(child[w], &how, 0) < 0) continue;
        add_tally(total, &r[w].total);
        if (WIFEXITED(how) && WEXITSTATUS(how) == 0 && !r[w].failed) continue;
        if (!WIFEXITED(how) || WEXITSTATUS(how) != 0)
            print_message("process %d ended with status %#x at seed %llu\n", w, (unsigned)how,
                          (unsigned long long)r[w].seed);
        if (r[w].seed < end) end = r[w].seed;
    }
    reports_unmap(r, WORKERS);
    return end;
}

/* Shrinks the schedule of a seed and prints what is left. */
static void explain(laboratory *lab, uint64_t seed, schedule *s, operation *ops, report *r) {
    draw(s, lab, seed, ops);
    shrink(lab, s, r);
    printf("%s\n", r->text);
    print_schedule(stdout, lab, s);
    fflush(stdout);
}

/* ---- tests ---- */

static laboratory lab;

static int open_lab(void **state) {
    (void)state;
    laboratory_open(&lab, 1, NULL);
    if (!test_defers()) lab.allocations = count_allocations; /* a queue allocates what it puts off */
    return 0;
}

static int close_lab(void **state) {
    (void)state;
    laboratory_close(&lab, true);
    return 0;
}

/* The oracle stands on its own feet: token by token it says the same as all at once. */
static void oracle_agrees_with_itself(void **state) {
    (void)state;
    for (int f = 0; f < FIXTURES; f++)
        for (int i = 0; i < 2 * PROMPTS; i++) {
            const prompt *p = &lab.prompts[i / 2];
            const distribution *d = &distributions[i % DISTRIBUTIONS];
            const ls_draw draw_at = {(uint32_t)i, 0, (uint32_t)p->n};
            int32_t token[2];
            float logprob[2];
            ls_error err;
            for (int way = 0; way < 2; way++)
                assert_ok(alone_next(&lab.alone[f][i % 2], lab.model[f].model[i % VERSIONS], p->token, p->n, way, d,
                                     &draw_at, &token[way], &logprob[way], &err),
                          err);
            assert_int_equal(token[0], token[1]);
            assert_same_bits(&logprob[0], &logprob[1], 1);
        }
}

static void allocations_are_counted(void **state) {
    const int64_t before = count_allocations();
    void *array;
    ls_error err;
    (void)state;
    assert_ok(ls_array_alloc(&array, 1, 1, "test", &err), err);
    free(array);
    assert_int_equal(count_allocations(), before + 1);
}

/* A wrong oracle, and a crash, for one prompt: found, and shrunk to its submission. */
static void planted_differences_are_found(void **state) {
    report *r = reports_map(1);
    test_forks();
    (void)state;
    lab.planted_prompt = 9;
    for (int crash = 0; crash < 2; crash++) {
        tally total = {0};
        operation ops[OPS_MAX];
        schedule s;
        uint64_t seed;
        lab.planted_abort = crash;
        seed = first_failure(&lab, 1, 200, &total);
        assert_true(seed < 200);
        print_message("planted:\n");
        explain(&lab, seed, &s, ops, r);
        assert_int_equal(s.n_ops, 1);
        assert_int_equal(s.ops[0].kind, OP_SUBMIT);
        assert_int_equal(s.ops[0].prompt, lab.planted_prompt);
        assert_int_equal(s.ops[0].max_tokens, crash ? 0 : 2);
        assert_int_equal(s.levers.preempt_every, 0);
    }
    lab.planted_abort = false;
    lab.planted_prompt = -1;
    reports_unmap(r, 1);
}

static void schedules_never_change_a_bit(void **state) {
    const uint64_t n = number_from("LS_SCHEDULES", N_SCHEDULES), first = number_from("LS_SEED", 1);
    tally t = {0};
    const uint64_t seed = first_failure(&lab, first, first + n, &t);
    (void)state;
    print_tally(&t);
    if (seed < first + n) {
        report *r = reports_map(1);
        operation ops[OPS_MAX];
        schedule s;
        explain(&lab, seed, &s, ops, r);
        fail_msg("seed %llu: %s", (unsigned long long)seed, r->text);
    }
    if (n >= 300) { /* each thing that schedules are there for has happened, and often */
        const int64_t *count = (const int64_t *)&t;
        for (size_t i = 0; i < sizeof t / sizeof *count; i++) assert_true(count[i] >= (int64_t)n / 20);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(oracle_agrees_with_itself),
        cmocka_unit_test(allocations_are_counted),
        cmocka_unit_test(planted_differences_are_found),
        cmocka_unit_test(schedules_never_change_a_bit),
    };
    return cmocka_run_group_tests(tests, open_lab, close_lab);
}
