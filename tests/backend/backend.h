/* What the back-end tests share. A test program check_NAME is a table of cases that runs on every back end of
 * lockstep/ops.h:
 *
 *     check_NAME [--case NAME] [BACKEND...]
 *
 * It needs the ops library and libc, nothing else, so that it runs on a bare GPU machine. A back end that cannot run
 * here is printed as skipped and counted. The last line is "N passed, N failed, N skipped"; the exit status is 0 only
 * without failures. A failure is printed and the case goes on.
 *
 * A case puts its inputs into device arrays between guard bytes, calls the op with exactly the workspace it asks for,
 * full of old bytes, and compares raw bits with what the CPU contract gives: the generic instruction set on one thread.
 * Its fused multiply-adds are library calls, so large references take the best instruction set; that both give the same
 * bits is what tests/op shows.
 *
 * LS_SMALL=1 in the environment asks for small sizes, for runs under compute-sanitizer. */
#ifndef LS_TESTS_BACKEND_H
#define LS_TESTS_BACKEND_H

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "lockstep/ops.h"
#include "random.h"

#define BK_PATTERN 0xA5 /* guards, outputs before a call, workspaces */
#define BK_GUARD 256    /* bytes on either side */
#define BK_ARRAYS_MAX 64
#define BK_FAILURES_SHOWN 12 /* of one case */
#define BK_COUNT(array) ((int64_t)(sizeof(array) / sizeof(array)[0]))

/* Device memory [offset guard bytes and more | bytes | guard]. */
typedef struct bk_array {
    const char *name;
    uint8_t *block, *data;
    int64_t bytes, block_bytes;
} bk_array;

/* One case on one back end. */
typedef struct bk_run {
    ls_exec exec; /* of the back end under test */
    const char *case_name;
    bool cuda, small;
    int64_t failures, skips;
    bk_array arrays[BK_ARRAYS_MAX], workspace;
    int64_t n_arrays;
    ls_exec exact, fast; /* the reference on the generic and on the best instruction set */
    ls_error err;
} bk_run;

typedef struct bk_case {
    const char *name;
    void (*body)(bk_run *run);
    enum { BK_ANYWHERE, BK_CPU_ONLY, BK_CUDA_ONLY } where;
} bk_case;

/* ---- verdicts ---- */

static inline const char *bk_backend(const bk_run *run) { return ls_backend_name(run->exec.backend); }

static inline void __attribute__((format(printf, 2, 3))) bk_fail(bk_run *run, const char *format, ...) {
    va_list args;
    if (++run->failures > BK_FAILURES_SHOWN) return;
    printf("FAILED: %s: %s: ", bk_backend(run), run->case_name);
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    printf("\n");
}

/* For what this machine cannot do: a case that skips does not pass. */
static inline void __attribute__((format(printf, 2, 3))) bk_skip(bk_run *run, const char *format, ...) {
    va_list args;
    run->skips++;
    printf("skipped: %s: %s: ", bk_backend(run), run->case_name);
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    printf("\n");
}

/* For what must work before anything can be tested. */
static inline void __attribute__((noreturn)) bk_die(const bk_run *run, const char *what) {
    printf("FAILED: %s: %s: %s: %s\n0 passed, 1 failed, 0 skipped\n", bk_backend(run), run->case_name, what,
           run->err.text);
    exit(1);
}

/* Number of elements whose bytes differ; the first one's index in *first, which may be NULL. */
static inline int64_t bk_differences(const void *a, const void *b, int64_t n, int64_t element_bytes, int64_t *first) {
    const uint8_t *x = a, *y = b;
    const size_t size = (size_t)element_bytes;
    int64_t count = 0;
    if (memcmp(a, b, (size_t)n * size) == 0) return 0;
    for (int64_t i = 0; i < n; i++)
        if (memcmp(x + i * element_bytes, y + i * element_bytes, size) != 0 && count++ == 0 && first != NULL)
            *first = i;
    return count;
}

static inline unsigned long long bk_pattern_at(const void *array, int64_t i, int64_t element_bytes) {
    unsigned long long bits = 0; /* little-endian, as every machine with these back ends */
    memcpy(&bits, (const uint8_t *)array + i * element_bytes, (size_t)element_bytes);
    return bits;
}

/* Fails and names the first element, with both bit patterns, unless all n elements of 1 to 8 bytes are the same. */
static inline bool __attribute__((format(printf, 6, 7)))
bk_same(bk_run *run, const void *expected, const void *got, int64_t n, int64_t element_bytes, const char *format, ...) {
    char what[256];
    int64_t first = 0;
    const int64_t count = bk_differences(expected, got, n, element_bytes, &first);
    va_list args;
    if (count == 0) return true;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    bk_fail(run, "%s: element %lld of %lld is 0x%0*llx, expected 0x%0*llx; %lld differ", what, (long long)first,
            (long long)n, (int)(2 * element_bytes), bk_pattern_at(got, first, element_bytes), (int)(2 * element_bytes),
            bk_pattern_at(expected, first, element_bytes), (long long)count);
    return false;
}

/* ---- host values ---- */

static inline void *bk_alloc(int64_t bytes) {
    void *memory = malloc(bytes > 0 ? (size_t)bytes : 1);
    if (memory == NULL) {
        printf("FAILED: no memory for %lld bytes\n0 passed, 1 failed, 0 skipped\n", (long long)bytes);
        exit(1);
    }
    return memory;
}

/* FNV-1a of 64 bits, continued from `hash`. */
#define BK_HASH_START 14695981039346656037ull
static inline uint64_t bk_hash(uint64_t hash, const void *bytes, int64_t n) {
    for (int64_t i = 0; i < n; i++) hash = (hash ^ ((const uint8_t *)bytes)[i]) * 1099511628211ull;
    return hash;
}

/* A size by where the case runs: under compute-sanitizer, on a CPU, on a GPU. */
static inline int64_t bk_size(const bk_run *run, int64_t small, int64_t cpu, int64_t cuda) {
    return run->small ? small : run->cuda ? cuda : cpu;
}

/* ---- device arrays ---- */

/* Fills *array; false where there is no memory for it. Starts `offset` bytes after an address aligned to 256 bytes. */
static inline bool bk_array_make(bk_run *run, bk_array *array, const char *name, int64_t bytes, int64_t offset) {
    void *block;
    ls_status status;
    array->name = name;
    array->bytes = bytes;
    array->block_bytes = BK_GUARD + offset + bytes + BK_GUARD;
    status = ls_device_alloc(run->exec.backend, &block, array->block_bytes, &run->err);
    if (status == LS_ERR_NOMEM) return false;
    if (status != LS_OK) bk_die(run, name);
    array->block = block;
    array->data = array->block + BK_GUARD + offset;
    if (ls_device_fill(&run->exec, block, BK_PATTERN, array->block_bytes, &run->err) != LS_OK) bk_die(run, name);
    return true;
}

/* A new array of the case, all BK_PATTERN. NULL where there is no memory for it. */
static inline void *bk_try_new(bk_run *run, const char *name, int64_t bytes, int64_t offset) {
    bk_array *array = &run->arrays[run->n_arrays];
    if (run->n_arrays == BK_ARRAYS_MAX) bk_die(run, "too many arrays");
    if (!bk_array_make(run, array, name, bytes, offset)) return NULL;
    run->n_arrays++;
    return array->data;
}

static inline void *bk_new(bk_run *run, const char *name, int64_t bytes, int64_t offset) {
    void *data = bk_try_new(run, name, bytes, offset);
    if (data == NULL) bk_die(run, name);
    return data;
}

/* Copies bytes between host and device, or within the device. */
static inline void bk_upload(bk_run *run, void *device, const void *from, int64_t bytes) {
    if (ls_device_upload(&run->exec, device, from, bytes, &run->err) != LS_OK) bk_die(run, "upload");
}

static inline void bk_download(bk_run *run, void *host, const void *device, int64_t bytes) {
    if (ls_device_download(&run->exec, host, device, bytes, &run->err) != LS_OK) bk_die(run, "download");
}

/* A new array with these bytes; NULL for NULL. */
static inline void *bk_put(bk_run *run, const char *name, const void *host, int64_t bytes, int64_t offset) {
    void *device;
    if (host == NULL) return NULL;
    device = bk_new(run, name, bytes, offset);
    bk_upload(run, device, host, bytes);
    return device;
}

/* Whether these device bytes still are BK_PATTERN. */
static inline bool bk_untouched(bk_run *run, const void *device, int64_t bytes) {
    uint8_t *host = bk_alloc(bytes);
    int64_t i = 0;
    bk_download(run, host, device, bytes);
    while (i < bytes && host[i] == BK_PATTERN) i++;
    free(host);
    return i == bytes;
}

static inline void bk_check_guards(bk_run *run, const bk_array *array) {
    const uint8_t *end = array->data + array->bytes;
    if (!bk_untouched(run, array->block, array->data - array->block))
        bk_fail(run, "bytes before %s were written", array->name);
    if (!bk_untouched(run, end, array->block + array->block_bytes - end))
        bk_fail(run, "bytes after %s were written", array->name);
}

/* Frees all but the first n arrays of the case. */
static inline void bk_clear_to(bk_run *run, int64_t n) {
    while (run->n_arrays > n) ls_device_free(run->exec.backend, run->arrays[--run->n_arrays].block);
}

/* Frees everything, also between the parts of a case. */
static inline void bk_clear(bk_run *run) {
    bk_clear_to(run, 0);
    if (run->workspace.block != NULL) ls_device_free(run->exec.backend, run->workspace.block);
    memset(&run->workspace, 0, sizeof run->workspace);
    run->exec.workspace = NULL;
    run->exec.workspace_bytes = 0;
}

/* ---- calls ---- */

/* A workspace of exactly this size, full of old bytes. */
static inline void bk_before_call(bk_run *run, int64_t workspace_bytes) {
    bk_array *workspace = &run->workspace;
    if (workspace->block != NULL && workspace->bytes != workspace_bytes) {
        ls_device_free(run->exec.backend, workspace->block);
        workspace->block = NULL;
    }
    if (workspace->block == NULL) {
        if (!bk_array_make(run, workspace, "workspace", workspace_bytes, 0)) bk_die(run, "workspace");
    } else if (ls_device_fill(&run->exec, workspace->data, BK_PATTERN, workspace_bytes, &run->err) != LS_OK) {
        bk_die(run, "workspace");
    }
    run->exec.workspace = workspace->data;
    run->exec.workspace_bytes = workspace_bytes;
}

/* Waits and checks all guards, whatever the call said. */
static inline void bk_after_call(bk_run *run) {
    if (ls_device_synchronize(&run->exec, &run->err) != LS_OK) bk_die(run, "synchronize");
    for (int64_t i = 0; i < run->n_arrays; i++) bk_check_guards(run, &run->arrays[i]);
    if (run->workspace.block != NULL) bk_check_guards(run, &run->workspace);
}

static inline bool bk_call_done(bk_run *run, const char *op, ls_status status) {
    ls_error err = run->err;
    bk_after_call(run);
    if (status != LS_OK) bk_fail(run, "%s: %s: %s", op, ls_status_name(status), err.text);
    return status == LS_OK;
}

/* The call must have failed with a sentence that holds every one of the n words. */
static inline void bk_call_refused(bk_run *run, const char *what, ls_status status, const char *const *words,
                                   int64_t n) {
    ls_error err = run->err;
    bk_after_call(run);
    if (status == LS_OK) bk_fail(run, "%s: the call was not refused", what);
    for (int64_t i = 0; i < n && status != LS_OK; i++)
        if (strstr(err.text, words[i]) == NULL) bk_fail(run, "%s: '%s' does not say '%s'", what, err.text, words[i]);
}

/* Calls ls_op_NAME on the back end under test and waits for it. False after a failure. */
#define BK_CALL(run, name, args)                              \
    (bk_before_call((run), ls_op_##name##_workspace((args))), \
     bk_call_done((run), #name, ls_op_##name(&(run)->exec, (args), &(run)->err)))

/* Calls ls_op_NAME as the reference, on host memory; `work` is the number of elements that it reads. */
#define BK_REFERENCE(run, name, args, work) \
    bk_reference_done(                      \
        (run), #name,                       \
        ls_op_##name(bk_reference((run), ls_op_##name##_workspace((args)), (work)), (args), &(run)->err))

static inline ls_exec *bk_reference(bk_run *run, int64_t workspace_bytes, int64_t work) {
    ls_exec *exec = work <= (1 << 19) ? &run->exact : &run->fast;
    exec->workspace = bk_alloc(workspace_bytes);
    exec->workspace_bytes = workspace_bytes;
    return exec;
}

static inline void bk_reference_done(bk_run *run, const char *op, ls_status status) {
    if (status != LS_OK) bk_die(run, op);
    free(run->exact.workspace);
    free(run->fast.workspace);
    run->exact.workspace = run->fast.workspace = NULL;
}

/* Another stream of the back end under test, with a workspace and a fault record of its own: calls do not wait. */
static inline ls_exec bk_async_exec(bk_run *run, int64_t workspace_bytes) {
    ls_exec exec = run->exec;
    if (ls_stream_create(exec.backend, &exec.stream, &run->err) != LS_OK) bk_die(run, "stream");
    exec.workspace = bk_new(run, "workspace of a stream", workspace_bytes, 0);
    exec.workspace_bytes = workspace_bytes;
    exec.fault = bk_new(run, "fault record", (int64_t)sizeof(ls_fault), 0);
    if (ls_device_fill(&run->exec, exec.fault, 0, (int64_t)sizeof(ls_fault), &run->err) != LS_OK) bk_die(run, "record");
    return exec;
}

/* ---- the program ---- */

typedef struct bk_totals {
    int64_t passed, failed, skipped;
} bk_totals;

static inline double bk_seconds(void) {
    struct timespec now;
    timespec_get(&now, TIME_UTC);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static inline void bk_run_case(bk_run *run, const bk_case *c, bk_totals *totals) {
    const double start = bk_seconds();
    run->case_name = c->name;
    run->failures = 0;
    run->skips = 0;
    c->body(run);
    bk_clear(run);
    if (run->failures > BK_FAILURES_SHOWN)
        printf("FAILED: %s: %s: %lld failures in all\n", bk_backend(run), c->name, (long long)run->failures);
    totals->skipped += run->skips;
    totals->failed += run->failures > 0;
    if (run->failures == 0 && run->skips == 0) {
        totals->passed++;
        printf("passed: %s: %s, %.1f s\n", bk_backend(run), c->name, bk_seconds() - start);
    }
}

/* Runs the cases, or the one called `only`, on a back end. */
static inline void bk_run_backend(ls_backend backend, const bk_case *cases, int64_t n, const char *only,
                                  bk_totals *totals) {
    const char *small = getenv("LS_SMALL"), *name = ls_backend_name(backend);
    bk_run run;
    memset(&run, 0, sizeof run);
    run.case_name = "start";
    run.exec.backend = backend;
    run.cuda = backend == LS_BACKEND_CUDA;
    run.small = small != NULL && strcmp(small, "1") == 0;
    if (!ls_backend_available(backend, &run.err)) {
        const size_t prefix = strlen(name);
        const bool named = strncmp(run.err.text, name, prefix) == 0 && strncmp(run.err.text + prefix, ": ", 2) == 0;
        printf("skipped: %s: %s\n", name, named ? run.err.text + prefix + 2 : run.err.text);
        totals->skipped++;
        return;
    }
    if (ls_cpu_workers_create(&run.exec.workers, 2, NULL, &run.err) != LS_OK ||
        ls_cpu_workers_create(&run.exact.workers, 1, "generic", &run.err) != LS_OK ||
        ls_cpu_workers_create(&run.fast.workers, 1, NULL, &run.err) != LS_OK ||
        ls_stream_create(backend, &run.exec.stream, &run.err) != LS_OK)
        bk_die(&run, "workers or stream");
    for (int64_t i = 0; i < n; i++) {
        const bool runs_here = cases[i].where == BK_ANYWHERE || (cases[i].where == BK_CUDA_ONLY) == run.cuda;
        if (runs_here && (only == NULL || strcmp(only, cases[i].name) == 0)) bk_run_case(&run, &cases[i], totals);
    }
    ls_stream_free(backend, run.exec.stream);
    ls_cpu_workers_free(run.exec.workers);
    ls_cpu_workers_free(run.exact.workers);
    ls_cpu_workers_free(run.fast.workers);
}

static inline int bk_main(int argc, char **argv, const bk_case *cases, int64_t n) {
    bk_totals totals = {0, 0, 0};
    const char *only = NULL;
    int64_t known = 0;
    bool chosen[LS_BACKEND_COUNT] = {false}, any = false;
    setvbuf(stdout, NULL, _IOLBF, 1 << 12);
    for (int i = 1; i < argc; i++) {
        int backend = 0;
        if (strcmp(argv[i], "--case") == 0 && i + 1 < argc) {
            only = argv[++i];
            continue;
        }
        while (backend < LS_BACKEND_COUNT && strcmp(argv[i], ls_backend_name((ls_backend)backend)) != 0) backend++;
        if (backend == LS_BACKEND_COUNT) {
            fprintf(stderr, "%s: unknown back end '%s'\nUsage: %s [--case NAME] [BACKEND...]\n", argv[0], argv[i],
                    argv[0]);
            return 1;
        }
        chosen[backend] = any = true;
    }
    for (int64_t i = 0; i < n; i++) known += only == NULL || strcmp(only, cases[i].name) == 0;
    if (known == 0) {
        fprintf(stderr, "%s: unknown case '%s'\n", argv[0], only);
        return 1;
    }
    for (int b = 0; b < LS_BACKEND_COUNT; b++)
        if (!any || chosen[b]) bk_run_backend((ls_backend)b, cases, n, only, &totals);
    printf("%lld passed, %lld failed, %lld skipped\n", (long long)totals.passed, (long long)totals.failed,
           (long long)totals.skipped);
    return totals.failed == 0 ? 0 : 1;
}

#endif
