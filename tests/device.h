/* Devices of tests: the CPU, or, where the environment says LS_TEST_DEVICE=deferred, the CPU behind a queue, whose
 * memory the host cannot touch. Results are the same bits. */
#ifndef LS_TESTS_DEVICE_H
#define LS_TESTS_DEVICE_H

#include <stdlib.h>

#include "harness.h"
#include "op/backend.h"

static inline ls_device *test_device(int32_t threads, ls_isa isa) {
    const char *name = getenv("LS_TEST_DEVICE");
    ls_device *device;
    ls_error err;
    if (name != NULL && strcmp(name, "deferred") == 0)
        assert_ok(ls_device_open_deferred(&device, threads, isa, &err), err);
    else
        assert_ok(ls_device_open_cpu(&device, threads, isa, &err), err);
    return device;
}

/* Where models live that are run on several devices; those of one back end share their memory. Never closed. */
static inline ls_device *test_home(void) {
    static ls_device *home;
    if (home == NULL) home = test_device(1, ls_isa_best());
    return home;
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
