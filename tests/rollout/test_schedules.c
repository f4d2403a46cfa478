/* The property behind every promise of the engine: 10,000 random schedules of requests, cancellations, preemptions,
 * weight updates and sleeps, under random levers, give every request the bits that it has alone; no tick allocates; and
 * in the end every page and slot is back. A failing schedule is shrunk and printed.
 *
 * LS_SCHEDULES: how many (10,000; 300 in sanitizer builds). LS_SEED: the first seed (1). LS_PROCESSES: this program as
 * often, each with its share of the seeds (1): on a GPU, where a process runs one schedule after the other,
 *
 *     LS_TEST_DEVICE=cuda LS_PROCESSES=12 LS_SCHEDULES=10000 LS_SEED=1 test_schedules
 *
 * prints each process's output as it ends, then one line for all. Nobody counts allocations on a device that defers: a
 * queue allocates what it puts off, and CUDA's runtime, which is linked in, when it likes. On a GPU a failing schedule
 * is printed as it was drawn, since no child could try smaller ones. */
#define _GNU_SOURCE
#define TEST_HOME_THREADS 1
#include <stdatomic.h>

#include "base/mem.h"
#include "shrink.h"

#define N_SCHEDULES (SANITIZED ? 300 : 10000)
#define OPS_MAX 24
#define WORKERS 2
#define PROCESSES_MAX 256
#define TELL_EVERY 100

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

/* The same in this process, which says how far it is: the seed of a crash is among the last ones told. */
static void work_alone(laboratory *lab, uint64_t first, uint64_t end, report *r) {
    for (uint64_t at = first; at < end && !r->failed; at += TELL_EVERY) {
        const uint64_t until = end - at < TELL_EVERY ? end : at + TELL_EVERY;
        print_message("seeds %llu to %llu\n", (unsigned long long)at, (unsigned long long)(until - 1));
        fflush(NULL);
        work(lab, at, until, 1, r);
    }
}

/* The first seed of [first, end) that fails, or end. On a GPU, which no child can use, one after the other. */
static uint64_t first_failure(laboratory *lab, uint64_t first, uint64_t end, counts *total) {
    report *r = reports_map(WORKERS);
    pid_t child[WORKERS];
    fflush(NULL);
    if (test_on_gpu()) {
        work_alone(lab, first, end, r);
        add_counts(total, &r->total);
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
        add_counts(total, &r[w].total);
        if (WIFEXITED(how) && WEXITSTATUS(how) == 0 && !r[w].failed) continue;
        if (!WIFEXITED(how) || WEXITSTATUS(how) != 0)
            print_message("process %d ended with status %#x at seed %llu\n", w, (unsigned)how,
                          (unsigned long long)r[w].seed);
        if (r[w].seed < end) end = r[w].seed;
    }
    reports_unmap(r, WORKERS);
    return end;
}

/* Shrinks the schedule of a seed, where children can try smaller ones, and prints what is left. */
static void explain(laboratory *lab, uint64_t seed, schedule *s, operation *ops, report *r) {
    draw(s, lab, seed, ops);
    if (test_on_gpu())
        r->failed = !run_schedule(lab, s, &r->total, r->text, sizeof r->text);
    else
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
        counts total = {0};
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
    counts t = {0};
    const uint64_t seed = first_failure(&lab, first, first + n, &t);
    (void)state;
    print_counts(&t);
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

/* ---- many processes ---- */

/* A process with its share of the seeds. */
typedef struct share {
    pid_t pid;
    uint64_t first, n;
    FILE *output;
} share;

/* This program once more, before anything here has used a device. */
static void share_start(share *x) {
    x->output = tmpfile();
    assert_non_null(x->output);
    fflush(NULL);
    x->pid = fork();
    assert_true(x->pid >= 0);
    if (x->pid == 0) {
        char first[32], n[32];
        snprintf(first, sizeof first, "%llu", (unsigned long long)x->first);
        snprintf(n, sizeof n, "%llu", (unsigned long long)x->n);
        if (setenv("LS_SEED", first, 1) != 0 || setenv("LS_SCHEDULES", n, 1) != 0 || unsetenv("LS_PROCESSES") != 0 ||
            dup2(fileno(x->output), 1) < 0 || dup2(fileno(x->output), 2) < 0)
            _exit(126);
        execl("/proc/self/exe", "test_schedules", (char *)NULL);
        _exit(127);
    }
}

/* Waits for it and prints what it printed; whether all was well. */
static bool share_end(share *x) {
    int how = 0, c;
    while (waitpid(x->pid, &how, 0) < 0) continue;
    rewind(x->output);
    printf("== seeds %llu to %llu\n", (unsigned long long)x->first, (unsigned long long)(x->first + x->n - 1));
    while ((c = fgetc(x->output)) != EOF) putchar(c);
    fclose(x->output);
    if (WIFEXITED(how) && WEXITSTATUS(how) == 0) return true;
    printf("FAILED: seeds from %llu on: status %#x\n", (unsigned long long)x->first, (unsigned)how);
    return false;
}

static int run_shares(uint64_t n_shares) {
    static share shares[PROCESSES_MAX];
    const uint64_t n = number_from("LS_SCHEDULES", N_SCHEDULES), first = number_from("LS_SEED", 1);
    int64_t n_failed = 0;
    if (n_shares > PROCESSES_MAX) n_shares = PROCESSES_MAX;
    if (n_shares > n) n_shares = n;
    for (uint64_t i = 0; i < n_shares; i++) {
        const uint64_t from = n * i / n_shares, to = n * (i + 1) / n_shares;
        shares[i] = (share){.first = first + from, .n = to - from};
        share_start(&shares[i]);
    }
    for (uint64_t i = 0; i < n_shares; i++) n_failed += !share_end(&shares[i]);
    printf("%llu schedules from seed %llu in %llu processes: %lld failed\n", (unsigned long long)n,
           (unsigned long long)first, (unsigned long long)n_shares, (long long)n_failed);
    return n_failed > 0;
}

int main(void) {
    const uint64_t n_processes = number_from("LS_PROCESSES", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(oracle_agrees_with_itself),
        cmocka_unit_test(allocations_are_counted),
        cmocka_unit_test(planted_differences_are_found),
        cmocka_unit_test(schedules_never_change_a_bit),
    };
    if (n_processes > 1) return run_shares(n_processes);
    return cmocka_run_group_tests(tests, open_lab, close_lab);
}
