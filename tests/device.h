/* Devices of tests: the CPU; or, where the environment says LS_TEST_DEVICE=deferred, the CPU behind a queue, whose
 * memory the host cannot touch; or, with LS_TEST_DEVICE=cuda, the first GPU. Results are the same bits. */
#ifndef LS_TESTS_DEVICE_H
#define LS_TESTS_DEVICE_H

#include <stdlib.h>

#include "harness.h"
#include "op/choice.h"

static inline ls_status test_open_cuda(ls_device **out, int32_t n_threads, ls_isa isa, ls_error *err) {
    (void)n_threads, (void)isa;
    return ls_device_open_cuda(out, 0, err);
}

/* What the environment asks for in place of the CPU, or NULL. */
static inline ls_device_opener test_opener(void) {
    const char *name = getenv("LS_TEST_DEVICE");
    if (name == NULL || strcmp(name, "cpu") == 0) return NULL;
    if (strcmp(name, "deferred") == 0) return ls_device_open_deferred;
    if (strcmp(name, "cuda") == 0) return test_open_cuda;
    fprintf(stderr, "LS_TEST_DEVICE=%s is none of cpu, deferred and cuda\n", name);
    exit(1);
}

static inline bool test_on_gpu(void) { return test_opener() == test_open_cuda; }

/* A process that has used a GPU cannot go on after a fork: a case that forks is skipped there, in so many words. */
static inline void test_forks(void) {
    if (!test_on_gpu()) return;
    print_message("skipped: a fork of a process that has used a GPU\n");
    skip();
}

/* Whether device memory is out of the host's reach. */
static inline bool test_defers(void) { return test_opener() != NULL; }

/* Whether a test is run for how it reaches memory, on the deferred device too. */
static inline bool test_looks(void) { return SANITIZED || (test_defers() && !test_on_gpu()); }

/* Runs that open a device of their own open that one too: never a GPU that nobody asked for. */
__attribute__((constructor, unused)) static void test_choose_device(void) {
    ls_device_open_by(test_opener() != NULL ? test_opener() : ls_device_open_cpu);
}

/* Of the deferred device. A program that forks says 1: a child has no thread but its own. */
#ifndef TEST_HOME_THREADS
#define TEST_HOME_THREADS 2
#endif

/* Where models live that are run on several devices. Those of the CPU share their memory; a deferred one does not, so
 * that it is the only one. Never closed. */
static inline ls_device *test_home(void) {
    static ls_device *home;
    ls_error err;
    if (home == NULL) assert_ok(ls_device_open(&home, test_defers() ? TEST_HOME_THREADS : 1, ls_isa_best(), &err), err);
    return home;
}

static inline ls_device *test_device(int32_t threads, ls_isa isa) {
    ls_device *device;
    ls_error err;
    if (test_defers()) return test_home();
    assert_ok(ls_device_open_cpu(&device, threads, isa, &err), err);
    return device;
}
static inline void test_device_close(ls_device *device) {
    if (device != NULL && device != test_home()) ls_device_close(device);
}

/* Device memory with what host[0..bytes) holds, and its content afterwards. */
static inline void *to_device(ls_device *device, const void *host, int64_t bytes) {
    void *memory;
    ls_error err;
    assert_ok(ls_memory_alloc(device, &memory, bytes, 1, "test", &err), err);
    if (host != NULL) assert_ok(ls_memory_write(device, memory, host, bytes, &err), err);
    return memory;
}
static inline void from_device(ls_device *device, void *host, const void *memory, int64_t bytes) {
    ls_error err;
    assert_ok(ls_memory_take(device, host, memory, bytes, &err), err);
}

#endif
