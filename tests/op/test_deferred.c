/* The deferred back end: the CPU's bits from a chain of ops that sees memory through the door alone; nothing is there
 * before a wait; a host access ends the program and is named; errors, releases, recordings, pools that are larger than
 * the machine, two devices at once. */
#define _GNU_SOURCE
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "op/op_chain.h"

#define UNWRITTEN 0xA5 /* what a read's destination holds before the wait */

static ls_device *open_deferred(ls_isa isa, int32_t n_threads) {
    ls_device *device;
    ls_error err;
    assert_ok(ls_device_open_deferred(&device, n_threads, isa, &err), err);
    return device;
}

static void take(ls_device *device, void *host, const void *from, int64_t bytes) {
    ls_error err;
    assert_ok(ls_memory_take(device, host, from, bytes, &err), err);
}

static bool is_unwritten(const void *memory, int64_t bytes) {
    int64_t other = 0;
    for (int64_t i = 0; i < bytes; i++) other += ((const uint8_t *)memory)[i] != UNWRITTEN;
    return other == 0;
}

/* ---- a chain of ops ---- */

static void chains_have_the_bits_of_the_cpu(void **state) {
    const ls_isa isa = op_isa(state);
    for (int32_t t = 0; t < OP_THREADS_MAX; t++) {
        ls_device *device = open_deferred(isa, t + 1);
        for (uint64_t seed = 1; seed < 4; seed++) {
            chain_results expected, got;
            ls_error err;
            chain_call(op_devices[isa][t], seed, &expected);
            chain_call(device, seed, &got);
            /* Nothing has made the device wait since these were asked for. */
            assert_true(is_unwritten(got.dq, sizeof got.dq) && is_unwritten(got.dk, sizeof got.dk));
            assert_ok(ls_device_wait(device, &err), err);
            assert_memory_equal(&expected, &got, sizeof got);
            assert_true(got.differs == 1 && got.offsets[CHAIN_EXPERTS] == CHAIN_PICKS &&
                        got.token[CHAIN_ROWS - 1] >= 0);
        }
        ls_device_close(device);
    }
}

/* ---- nothing is there before a wait ---- */

static void results_wait_for_the_wait(void **state) {
    ls_device *device = open_deferred(LS_ISA_GENERIC, 1);
    const float one[] = {1.0f, 2.0f, 3.0f, 4.0f};
    float *x = chain_put(device, one, sizeof one, "x"), *y = chain_put(device, one, sizeof one, "y");
    float got[4] = {0}, later[4] = {0};
    const ls_multiply_args square = {x, y, 4, 1.0f};
    ls_error err;
    (void)state;
    assert_ok(ls_multiply(device, &square, &err), err);
    assert_ok(ls_memory_read(device, got, x, sizeof got, &err), err);
    assert_ok(ls_multiply(device, &square, &err), err);
    assert_ok(ls_memory_read(device, later, x, sizeof later, &err), err);
    assert_true(is_unwritten(got, sizeof got) && is_unwritten(later, sizeof later));
    assert_ok(ls_device_wait(device, &err), err);
    /* In the order of the calls: each read sees what was there when it was called. */
    for (int i = 0; i < 4; i++) assert_true(got[i] == one[i] * one[i] && later[i] == one[i] * one[i] * one[i]);
    assert_ok(ls_memory_fill(device, x, 0x11, 8, &err), err);
    assert_ok(ls_memory_copy_rows(device, &(ls_copy_args){y, x, 8, 4, 2, 4}, &err), err);
    take(device, got, y, sizeof got);
    assert_true(ls_bits(got[0]) == 0x11111111u && got[1] == 2.0f && ls_bits(got[2]) == 0x11111111u && got[3] == 4.0f);
    ls_device_close(device);
}

/* ---- a host access ends the program ---- */

typedef struct death {
    int status;
    char text[1024];
} death;

/* Runs f in a child whose standard error comes back. */
static death die(void (*f)(void *context), void *context) {
    death d = {0, ""};
    size_t used = 0;
    ssize_t n;
    int ends[2];
    pid_t pid;
    assert_int_equal(pipe(ends), 0);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        dup2(ends[1], STDERR_FILENO);
        f(context);
        _exit(0);
    }
    close(ends[1]);
    while ((n = read(ends[0], d.text + used, sizeof d.text - 1 - used)) > 0) used += (size_t)n;
    close(ends[0]);
    assert_int_equal(waitpid(pid, &d.status, 0), pid);
    return d;
}

static void look_at(void *context) { (void)*(volatile uint8_t *)context; }
static void write_to(void *context) { *(volatile uint8_t *)context = 1; }

static void expect_death(void (*f)(void *context), void *context, const char *word) {
    const death d = die(f, context);
    if (!WIFSIGNALED(d.status) || WTERMSIG(d.status) != SIGABRT) fail_msg("status %#x: %s", d.status, d.text);
    if (strstr(d.text, word) == NULL) fail_msg("'%s' does not mention '%s'", d.text, word);
}

static void host_accesses_are_named(void **state) {
    ls_device *device = open_deferred(LS_ISA_GENERIC, 1);
    const float one[] = {1.0f, 2.0f, 3.0f, 4.0f};
    uint8_t *x = chain_put(device, one, sizeof one, "residual stream"), *y = chain_put(device, one, sizeof one, "gate");
    uint8_t *w = chain_put(device, one, sizeof one, "expert weights");
    ls_gemm_weight packed;
    float out[4];
    ls_error err;
    (void)state;
    assert_ok(ls_gemm_pack(device, &packed, w, LS_F32, 2, 2, &err), err);
    assert_ok(ls_multiply(device, &(ls_multiply_args){(float *)(void *)x, (float *)(void *)y, 4, 1.0f}, &err), err);
    assert_ok(ls_memory_read(device, out, y, sizeof out, &err), err);
    /* Calls 1 to 3 write, 4 packs. */
    expect_death(look_at, x + 5, "'residual stream', byte 5 of 16; the last call with a pointer into it is multiply, ");
    expect_death(look_at, x + 5, "multiply, number 5\n");
    expect_death(write_to, x, "'residual stream', byte 0 of 16;");
    expect_death(look_at, y, "'gate', byte 0 of 16; the last call with a pointer into it is read, number 6\n");
    /* The panels stand in the weight that a call's arguments point to. */
    expect_death(look_at, packed.panels, "'gemm weight', byte 0 of");
    expect_death(look_at, packed.panels, "is gemm_repack, number 4\n");
    expect_death(look_at, w + 4096, "which is in no buffer\n");
    assert_ok(ls_device_wait(device, &err), err);
    expect_death(look_at, x + 15, "'residual stream', byte 15 of 16; no call with a pointer into it is waiting\n");
    ls_memory_free(device, x);
    expect_death(look_at, x, "'residual stream', byte 0 of 16, which has been released;");
    assert_ok(device->table->record(device, &err), err);
    assert_ok(ls_memory_fill(device, y, 0, 16, &err), err);
    expect_death(look_at, y,
                 "'gate', byte 0 of 16; the last call with a pointer into it is fill, recorded as number 1\n");
    ls_device_close(device);
}

/* The first touch of a buffer that no call was made about. */
static void fresh_memory_cannot_be_touched(void **state) {
    ls_device *device = open_deferred(LS_ISA_GENERIC, 1);
    void *pool;
    ls_error err;
    (void)state;
    assert_ok(ls_memory_reserve(device, &pool, 100, 4, "pool", &err), err);
    expect_death(write_to, pool, "'pool', byte 0 of 400; no call");
    ls_device_close(device);
}

/* Faults elsewhere are not ours: they go to who was there before. */
static void leave_by_43(int signal_number) { _exit(43 + (signal_number != SIGSEGV)); }
static void leave_by_44(int signal_number, siginfo_t *info, void *context) {
    (void)context;
    _exit(44 + (signal_number != SIGSEGV || info->si_addr == NULL));
}

typedef struct strange {
    void *address;
    struct sigaction before; /* what the program had set */
} strange;

static void fault_elsewhere(void *context) {
    const strange *s = context;
    ls_device *device;
    if (sigaction(SIGSEGV, &s->before, NULL) != 0) _exit(1);
    if (ls_device_open_deferred(&device, 1, LS_ISA_GENERIC, NULL) != LS_OK) _exit(2);
    look_at(s->address);
}

static void other_faults_pass(void **state) {
    const int64_t bytes = sysconf(_SC_PAGESIZE);
    strange s;
    (void)state;
    memset(&s, 0, sizeof s);
    s.address = mmap(NULL, (size_t)bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(s.address != MAP_FAILED);
    s.before.sa_handler = leave_by_43;
    assert_int_equal(WEXITSTATUS(die(fault_elsewhere, &s).status), 43);
    s.before.sa_sigaction = leave_by_44;
    s.before.sa_flags = SA_SIGINFO;
    assert_int_equal(WEXITSTATUS(die(fault_elsewhere, &s).status), 44);
    for (int ignored = 0; ignored < 2; ignored++) {
        death d;
        s.before.sa_handler = ignored ? SIG_IGN : SIG_DFL;
        s.before.sa_flags = 0;
        d = die(fault_elsewhere, &s);
        assert_true(WIFSIGNALED(d.status) && WTERMSIG(d.status) == SIGSEGV);
        assert_string_equal(d.text, "");
    }
    munmap(s.address, (size_t)bytes);
}

/* A framework that takes the signal for itself, as cmocka does before each case, does not blind the device. */
static void look_after_another_handler(void *context) {
    ls_device *device = context;
    void *x;
    if (ls_memory_alloc(device, &x, 8, 1, "late", NULL) != LS_OK) _exit(1);
    signal(SIGSEGV, leave_by_43);
    if (ls_memory_fill(device, x, 0, 8, NULL) != LS_OK) _exit(2);
    look_at(x);
}

static void the_handler_comes_back(void **state) {
    ls_device *device = open_deferred(LS_ISA_GENERIC, 1);
    (void)state;
    expect_death(look_after_another_handler, device,
                 "'late', byte 0 of 8; the last call with a pointer into it is fill");
    ls_device_close(device);
}

/* ---- errors ---- */

static void errors_surface_at_the_wait(void **state) {
    ls_device *device = open_deferred(LS_ISA_GENERIC, 2);
    const int32_t bad[] = {0, 7, 2}, good[] = {2, 0, 1};
    const float table[] = {1.0f, 2.0f, 3.0f};
    int32_t *tokens = chain_put(device, bad, sizeof bad, "tokens");
    float *rows = chain_space(device, 3, 4, "rows"), got[3], before[3] = {9.0f, 9.0f, 9.0f};
    const ls_embed_args args = {chain_put(device, table, sizeof table, "table"), LS_F32, 3, 1, tokens, rows, LS_F32, 3};
    void *released = chain_space(device, 1, 4, "released");
    ls_error err;
    (void)state;
    assert_ok(ls_memory_write(device, rows, before, sizeof before, &err), err);
    assert_ok(ls_embed(device, &args, &err), err);
    /* Dropped with the rest, but for the release. */
    assert_ok(ls_memory_fill(device, rows, 0, sizeof before, &err), err);
    assert_ok(ls_memory_read(device, got, rows, sizeof got, &err), err);
    ls_memory_free(device, released);
    check_failed(ls_device_wait(device, &err), &err, "call 4, embed: embed: row 1: token 7 is not in 0..2");
    assert_int_equal(err.status, LS_ERR_ARG);
    assert_true(is_unwritten(got, sizeof got));
    assert_ok(ls_device_wait(device, &err), err);
    take(device, got, rows, sizeof got);
    assert_memory_equal(got, before, sizeof got);
    assert_ptr_equal(chain_space(device, 1, 4, "released"), released);
    assert_ok(ls_memory_write(device, tokens, good, sizeof good, &err), err);
    assert_ok(ls_embed(device, &args, &err), err);
    take(device, got, rows, sizeof got);
    assert_true(got[0] == 3.0f && got[1] == 1.0f && got[2] == 2.0f);
    /* What the host can see is refused at once, and nothing is queued. */
    check_failed(ls_multiply(device, &(ls_multiply_args){NULL, rows, 3, 1.0f}, &err), &err, "multiply: x is a null");
    /* A wait that another call makes for itself returns what it finds. */
    assert_ok(ls_memory_write(device, tokens, bad, sizeof bad, &err), err);
    assert_ok(ls_embed(device, &args, &err), err);
    check_failed(ls_memory_take(device, got, rows, sizeof got, &err), &err, "embed: row 1");
    ls_device_close(device);
}

/* ---- memory ---- */

static void memory_outlives_the_calls_that_use_it(void **state) {
    ls_device *device = open_deferred(LS_ISA_GENERIC, 1);
    uint8_t bytes[9000], got[9000], *a, *b = chain_space(device, 9000, 1, "b"), *c, *d;
    ls_error err;
    (void)state;
    memset(bytes, 7, sizeof bytes);
    a = chain_put(device, bytes, sizeof bytes, "a");
    assert_ok(ls_memory_copy(device, b, a, sizeof bytes, &err), err);
    ls_memory_free(device, a);
    memset(bytes, 8, sizeof bytes);
    c = chain_put(device, bytes, sizeof bytes, "c");
    assert_ptr_not_equal(a, c);
    take(device, got, b, sizeof got);
    for (int64_t i = 0; i < OP_COUNT(got); i++) assert_int_equal(got[i], 7);
    /* Its addresses are free now, and hold nothing. */
    d = chain_space(device, 9000, 1, "d");
    assert_ptr_equal(a, d);
    take(device, got, d, sizeof got);
    for (int64_t i = 0; i < OP_COUNT(got); i++) assert_int_equal(got[i], 0);
    take(device, got, c, sizeof got);
    for (int64_t i = 0; i < OP_COUNT(got); i++) assert_int_equal(got[i], 8);
    ls_device_close(device);
}

/* What op/backend.h promises of memory, on the CPU and behind the queue. */
static void memory_is_zero_and_aligned(void **state) {
    const int64_t sizes[] = {0, 1, 63, 64, 65, 4096, 4097, 100000, (4 << 20) - 1, 4 << 20, (6 << 20) + 5};
    ls_device *devices[] = {op_devices[0][0], open_deferred(LS_ISA_GENERIC, 1)};
    (void)state;
    for (int64_t i = 0; i < 2; i++)
        for (int64_t s = 0; s < OP_COUNT(sizes); s++) {
            ls_error err;
            /* The second time around the memory has been used. */
            for (int time = 0; time < 2; time++) {
                uint8_t *memory = chain_space(devices[i], sizes[s], 1, "memory"), *host = op_alloc(sizes[s]);
                int64_t set = 0;
                assert_non_null(memory);
                assert_int_equal((uintptr_t)memory % 256, 0);
                take(devices[i], host, memory, sizes[s]);
                for (int64_t b = 0; b < sizes[s]; b++) set += host[b] != 0;
                assert_int_equal(set, 0);
                assert_ok(ls_memory_fill(devices[i], memory, 0xFF, sizes[s], &err), err);
                ls_memory_free(devices[i], memory);
                assert_ok(ls_device_wait(devices[i], &err), err);
                free(host);
            }
        }
    for (int64_t i = 0; i < 2; i++) {
        void *memory = devices;
        ls_error err;
        check_failed(ls_memory_alloc(devices[i], &memory, INT64_MAX / 4, 8, "stream", &err), &err, "stream: ");
        assert_null(memory);
        check_failed(ls_memory_alloc(devices[i], &memory, INT64_MAX, 1, "stream", &err), &err, "stream: ");
        assert_null(memory);
        check_failed(ls_memory_alloc(devices[i], &memory, -1, 1, "stream", &err), &err, "stream: ");
    }
    ls_device_close(devices[1]);
}

static int64_t resident_bytes(void) {
    long long pages = 0, ignored;
    FILE *file = fopen("/proc/self/statm", "r");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%lld %lld", &ignored, &pages), 2);
    fclose(file);
    return pages * (int64_t)sysconf(_SC_PAGESIZE);
}

/* 25 GB of addresses, of which three places are touched. */
static void pools_cost_what_is_touched(void **state) {
    const int64_t bytes = INT64_C(25) << 30, places[] = {0, bytes / 2 + 12345, bytes - 8};
    ls_device *device = open_deferred(LS_ISA_GENERIC, 1);
    const int64_t before = resident_bytes();
    uint8_t *pool, *next;
    void *memory;
    int64_t got[3];
    ls_error err;
    (void)state;
    assert_ok(ls_memory_reserve(device, &memory, bytes, 1, "pool", &err), err);
    pool = memory;
    next = chain_space(device, 8, 1, "next");
    for (int64_t i = 0; i < 3; i++) assert_ok(ls_memory_write(device, pool + places[i], &places[i], 8, &err), err);
    for (int64_t i = 0; i < 3; i++) assert_ok(ls_memory_read(device, &got[i], pool + places[i], 8, &err), err);
    assert_ok(ls_device_wait(device, &err), err);
    assert_memory_equal(got, places, sizeof got);
    take(device, got, next, 8);
    assert_int_equal(got[0], 0);
    assert_true(resident_bytes() - before < 64 << 20);
    /* Dropped in the order of the calls; zero afterwards. */
    assert_ok(ls_memory_read(device, &got[0], pool + places[1], 8, &err), err);
    assert_ok(ls_memory_drop(device, pool, bytes, &err), err);
    take(device, &got[1], pool + places[1], 8);
    assert_true(got[0] == places[1] && got[1] == 0);
    assert_ok(ls_memory_reserve(device, &memory, bytes, 1, "second pool", &err), err);
    ls_memory_unreserve(device, pool, bytes);
    assert_ok(ls_device_wait(device, &err), err);
    check_failed(ls_memory_reserve(device, &memory, INT64_C(1) << 41, 1, "third pool", &err), &err, "third pool: ");
    ls_device_close(device);
}

/* ---- recordings ---- */

static void recordings_run_again(void **state) {
    ls_device *device = open_deferred(LS_ISA_GENERIC, 2);
    const float one[] = {1.0f, 10.0f, 100.0f};
    float host[3] = {2.0f, 3.0f, 4.0f}, got[3] = {0}, sum[3] = {0};
    float *h = chain_put(device, one, sizeof one, "h"), *x = chain_put(device, host, sizeof host, "x");
    void *recording, *none;
    ls_error err;
    (void)state;
    check_failed(device->table->recorded(device, &none, &err), &err, "recorded without record");
    assert_ok(device->table->record(device, &err), err);
    check_failed(device->table->record(device, &err), &err, "record while calls are recorded");
    assert_ok(ls_residual(device, &(ls_residual_args){h, x, 1, 3, NULL}, &err), err);
    assert_ok(ls_memory_read(device, got, h, sizeof got, &err), err);
    check_failed(ls_device_wait(device, &err), &err, "a wait while calls are recorded");
    assert_ok(device->table->recorded(device, &recording, &err), err);
    /* Nothing of it has run. */
    take(device, sum, h, sizeof sum);
    assert_memory_equal(sum, one, sizeof sum);
    /* It reads what lies at its addresses when it runs. */
    memcpy(sum, one, sizeof sum);
    for (int64_t turn = 1; turn < 4; turn++) {
        for (int i = 0; i < 3; i++) sum[i] += host[i] = (float)(turn * (i + 5));
        assert_ok(ls_memory_write(device, x, host, sizeof host, &err), err);
        memset(got, 0, sizeof got);
        assert_ok(device->table->replay(device, recording, &err), err);
        assert_true(is_unwritten(got, sizeof got));
        assert_ok(ls_device_wait(device, &err), err);
        assert_memory_equal(got, sum, sizeof got);
    }
    /* Forgotten while it waits twice. */
    for (int i = 0; i < 3; i++) sum[i] += 2 * host[i];
    for (int time = 0; time < 2; time++) assert_ok(device->table->replay(device, recording, &err), err);
    device->table->forget(device, recording);
    assert_ok(ls_device_wait(device, &err), err);
    assert_memory_equal(got, sum, sizeof got);
    ls_device_close(device);
}

/* ---- two at once ---- */

static void devices_do_not_wait_for_each_other(void **state) {
    ls_device *devices[2] = {open_deferred(LS_ISA_GENERIC, 1), open_deferred(LS_ISA_GENERIC, 2)};
    const char *const names[2] = {"left", "right"};
    float *x[2], got[2][2];
    ls_error err;
    (void)state;
    for (int i = 0; i < 2; i++) {
        const float start[] = {3.0f + (float)i, 5.0f};
        x[i] = chain_put(devices[i], start, sizeof start, names[i]);
        assert_ok(ls_multiply(devices[i], &(ls_multiply_args){x[i], x[i], 2, 1.0f}, &err), err);
        assert_ok(ls_memory_read(devices[i], got[i], x[i], sizeof got[i], &err), err);
    }
    assert_ok(ls_device_wait(devices[1], &err), err);
    assert_true(is_unwritten(got[0], sizeof got[0]) && got[1][0] == 16.0f);
    expect_death(look_at, x[0], "'left', byte 0 of 8; the last call with a pointer into it is read, number 3\n");
    expect_death(look_at, x[1], "'right', byte 0 of 8; no call");
    ls_device_close(devices[1]);
    assert_ok(ls_device_wait(devices[0], &err), err);
    assert_true(got[0][0] == 9.0f && got[0][1] == 25.0f);
    expect_death(look_at, x[0], "'left', byte 0 of 8; no call");
    ls_device_close(devices[0]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        OP_CASES(chains_have_the_bits_of_the_cpu),    cmocka_unit_test(results_wait_for_the_wait),
        cmocka_unit_test(host_accesses_are_named),    cmocka_unit_test(fresh_memory_cannot_be_touched),
        cmocka_unit_test(other_faults_pass),          cmocka_unit_test(the_handler_comes_back),
        cmocka_unit_test(errors_surface_at_the_wait), cmocka_unit_test(memory_outlives_the_calls_that_use_it),
        cmocka_unit_test(memory_is_zero_and_aligned), cmocka_unit_test(pools_cost_what_is_touched),
        cmocka_unit_test(recordings_run_again),       cmocka_unit_test(devices_do_not_wait_for_each_other),
    };
    return cmocka_run_group_tests(tests, op_open, op_close);
}
