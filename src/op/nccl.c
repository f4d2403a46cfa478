/* NCCL behind a table of its functions. Owns the group, an event, and the library for as long as the process lives. */
#define _GNU_SOURCE
#include "op/nccl.h"

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "dev/device.h"

/* Values of nccl.h. */
enum { NCCL_SUCCESS = 0, NCCL_IN_PROGRESS = 7, NCCL_INT8 = 0, NCCL_FLOAT32 = 7, NCCL_SUM = 0 };

/* ncclConfig_t as NCCL 2.14 has it, the first to know it; the library takes the rest of later ones as not said. */
typedef struct config {
    size_t size;
    unsigned int magic, version;
    int blocking, rest;
} config;
enum { CONFIG_VERSION = 21400, CONFIG_NOT_SAID = INT_MIN };
#define CONFIG_MAGIC 0xcafebeefu

/* A wait looks all the time at first, then at the caller's side between two looks. */
#define EAGER_SECONDS 0.05
#define LOOK_MICROSECONDS 1000
/* How long closing waits for the others; what is not over then is given up. */
#define CLOSE_SECONDS 10.0

typedef struct library {
    int (*get_unique_id)(ls_nccl_id *id);
    int (*comm_init_rank_config)(void **comm, int n_ranks, ls_nccl_id id, int rank, config *how);
    int (*comm_finalize)(void *comm);
    int (*comm_destroy)(void *comm);
    int (*comm_abort)(void *comm);
    int (*comm_get_async_error)(void *comm, int *error);
    const char *(*get_error_string)(int result);
    const char *(*get_last_error)(void *comm);
    int (*group_start)(void);
    int (*group_end)(void);
    int (*send)(const void *from, size_t count, int type, int peer, void *comm, void *stream);
    int (*recv)(void *to, size_t count, int type, int peer, void *comm, void *stream);
    int (*all_reduce)(const void *from, void *to, size_t count, int type, int op, void *comm, void *stream);
    int (*broadcast)(const void *from, void *to, size_t count, int type, int root, void *comm, void *stream);
} library;

struct ls_nccl {
    const library *lib;
    ls_device *device;
    void *comm;
    void *event;
    ls_nccl_patience patience;
    bool has_met, is_under_way; /* under way: calls that were put on the stream and have not been seen to end */
};

/* ---- the library ---- */

static pthread_once_t once = PTHREAD_ONCE_INIT;
static library loaded;
static bool is_loaded;
static char why_not[400];

static void *symbol(void *handle, const char *name) {
    void *found = dlsym(handle, name);
    if (found == NULL && why_not[0] == '\0')
        snprintf(why_not, sizeof why_not, "transport nccl: the library has no %s", name);
    return found;
}

/* A pointer to a function through memory, which C allows. */
#define LOAD(field, name)                             \
    do {                                              \
        void *const found = symbol(handle, name);     \
        memcpy(&loaded.field, &found, sizeof(found)); \
    } while (0)

static void load(void) {
    const char *named = getenv("LOCKSTEP_NCCL");
    void *handle;
    (void)setenv("NCCL_NVLS_ENABLE", "0", 0); /* NCCL reads it once; what the user says stays */
    handle = dlopen(named != NULL && named[0] != '\0' ? named : "libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL) {
        const char *said = dlerror();
        snprintf(why_not, sizeof why_not,
                 "transport nccl: the library is not there (%.250s); LOCKSTEP_NCCL may name its file, transport=tcp "
                 "does without",
                 said != NULL ? said : "no reason given");
        return;
    }
    LOAD(get_unique_id, "ncclGetUniqueId");
    LOAD(comm_init_rank_config, "ncclCommInitRankConfig");
    LOAD(comm_finalize, "ncclCommFinalize");
    LOAD(comm_destroy, "ncclCommDestroy");
    LOAD(comm_abort, "ncclCommAbort");
    LOAD(comm_get_async_error, "ncclCommGetAsyncError");
    LOAD(get_error_string, "ncclGetErrorString");
    LOAD(get_last_error, "ncclGetLastError");
    LOAD(group_start, "ncclGroupStart");
    LOAD(group_end, "ncclGroupEnd");
    LOAD(send, "ncclSend");
    LOAD(recv, "ncclRecv");
    LOAD(all_reduce, "ncclAllReduce");
    LOAD(broadcast, "ncclBroadcast");
    is_loaded = why_not[0] == '\0';
}

static ls_status get_library(const library **out, ls_error *err) {
    (void)pthread_once(&once, load);
    *out = &loaded;
    return is_loaded ? LS_OK : LS_FAIL(err, LS_ERR_UNSUPPORTED, "%s", why_not);
}

static ls_status ask_status(const library *lib, void *comm, int result, const char *what, ls_error *err) {
    if (result == NCCL_SUCCESS) return LS_OK;
    return LS_FAIL(err, LS_ERR_IO, "NCCL: %s: %s: %.300s", what, lib->get_error_string(result),
                   lib->get_last_error(comm));
}

ls_status ls_nccl_check(const ls_device *device, ls_error *err) {
    const library *lib;
    if (device == NULL || device->exec.backend != LS_BACKEND_CUDA)
        return LS_FAIL(err, LS_ERR_UNSUPPORTED, "transport nccl: it carries the memory of GPUs; this device is %s",
                       device == NULL ? "none" : device->table->title);
    return get_library(&lib, err);
}

/* ---- a group ---- */

ls_status ls_nccl_id_make(ls_nccl_id *out, ls_error *err) {
    const library *lib;
    LS_TRY(get_library(&lib, err));
    return ask_status(lib, NULL, lib->get_unique_id(out), "a name for the group", err);
}

/* Calls of a group return before they are done. Waits for the last one, whose result is `result`, at most `seconds`: no
 * other call may be made before, and nothing of it is on the stream before. */
static ls_status await_calls(const ls_nccl *g, int result, const char *what, double seconds, ls_error *err) {
    const double start = ls_clock_seconds();
    if (result != NCCL_IN_PROGRESS) LS_TRY(ask_status(g->lib, g->comm, result, what, err));
    for (;;) {
        int state = NCCL_SUCCESS;
        LS_TRY(ask_status(g->lib, g->comm, g->lib->comm_get_async_error(g->comm, &state), what, err));
        if (state != NCCL_IN_PROGRESS) return ask_status(g->lib, g->comm, state, what, err);
        const double waited = ls_clock_seconds() - start;
        if (waited > seconds) return LS_FAIL(err, LS_ERR_IO, "NCCL: %s did not end within %g s", what, seconds);
        if (waited < EAGER_SECONDS) continue;
        if (g->patience.look != NULL) LS_TRY(g->patience.look(g->patience.context, what, err));
        usleep(LOOK_MICROSECONDS);
    }
}

ls_status ls_nccl_group_open(ls_nccl **out, ls_device *device, const ls_nccl_id *id, int32_t rank, int32_t n_ranks,
                             const ls_nccl_patience *patience, ls_error *err) {
    config how = {sizeof how, CONFIG_MAGIC, CONFIG_VERSION, 0, CONFIG_NOT_SAID};
    ls_nccl *g = NULL;
    int result;
    ls_status status;
    *out = NULL;
    LS_TRY_DONE(ls_array_alloc((void **)&g, 1, sizeof *g, "NCCL", err));
    g->device = device;
    g->patience = *patience;
    LS_TRY_DONE(get_library(&g->lib, err));
    LS_TRY_DONE(ls_device_wait(device, err)); /* which makes its GPU the thread's */
    LS_TRY_DONE(ls_cuda_event_create(&g->event, false, err));
    result = g->lib->comm_init_rank_config(&g->comm, n_ranks, *id, rank, &how);
    if (g->comm == NULL && result == NCCL_IN_PROGRESS) {
        status = LS_FAIL(err, LS_ERR_IO, "NCCL: meeting: the library gives no group");
        goto done;
    }
    LS_TRY_DONE(g->comm == NULL ? ask_status(g->lib, NULL, result, "meeting", err)
                                : await_calls(g, result, "meeting", patience->seconds, err));
    g->has_met = true;
    *out = g;
    g = NULL;
done:
    ls_nccl_group_close(g);
    return status;
}

/* Whether all that was put on the stream has ended there. */
static bool is_quiet(const ls_nccl *g) {
    bool reached = true;
    return !g->is_under_way || (ls_cuda_event_reached(g->event, &reached, NULL) == LS_OK && reached);
}

/* Together with the others, as long as they come; false where nothing is left but giving up. */
static bool leave_group(ls_nccl *g) {
    const double seconds = g->patience.seconds < CLOSE_SECONDS ? g->patience.seconds : CLOSE_SECONDS;
    if (!g->has_met || !is_quiet(g)) return false;
    g->patience.look = NULL; /* what it looks at may be gone */
    return await_calls(g, g->lib->comm_finalize(g->comm), "leaving", seconds, NULL) == LS_OK;
}

void ls_nccl_group_close(ls_nccl *g) {
    if (g == NULL) return;
    if (g->comm != NULL && leave_group(g)) {
        (void)g->lib->comm_destroy(g->comm);
        g->comm = NULL;
    }
    ls_nccl_abandon(g);
    if (g->event != NULL) ls_cuda_event_free(g->event);
    free(g);
}

void ls_nccl_abandon(ls_nccl *g) {
    if (g->comm != NULL) (void)g->lib->comm_abort(g->comm);
    g->comm = NULL;
}

/* ---- moves ---- */

static ls_status check_open(const ls_nccl *g, ls_error *err) {
    return g->comm != NULL ? LS_OK : LS_FAIL(err, LS_ERR_IO, "NCCL: the group was given up");
}

/* A call that is on its way to the stream, or is there. Returns when it is there, with the place behind it marked. */
static ls_status put_call(ls_nccl *g, int result, const char *what, ls_error *err) {
    g->is_under_way = true;
    LS_TRY(await_calls(g, result, what, g->patience.seconds, err));
    return ls_cuda_event_record(&g->device->exec, g->event, err);
}

/* One of the calls between begin and end, which begin with it. */
static ls_status add_nccl_call(const ls_nccl *g, int result, const char *what, ls_error *err) {
    return result == NCCL_IN_PROGRESS ? LS_OK : ask_status(g->lib, g->comm, result, what, err);
}

ls_status ls_nccl_begin(ls_nccl *g, ls_error *err) {
    LS_TRY(check_open(g, err));
    return ask_status(g->lib, g->comm, g->lib->group_start(), "a group of moves", err);
}

ls_status ls_nccl_send(ls_nccl *g, int32_t peer, const void *memory, int64_t bytes, ls_error *err) {
    void *stream = g->device->exec.stream;
    return add_nccl_call(g, g->lib->send(memory, (size_t)bytes, NCCL_INT8, peer, g->comm, stream), "a send", err);
}

ls_status ls_nccl_receive(ls_nccl *g, int32_t peer, void *memory, int64_t bytes, ls_error *err) {
    void *stream = g->device->exec.stream;
    return add_nccl_call(g, g->lib->recv(memory, (size_t)bytes, NCCL_INT8, peer, g->comm, stream), "a receive", err);
}

ls_status ls_nccl_end(ls_nccl *g, ls_error *err) { return put_call(g, g->lib->group_end(), "a group of moves", err); }

ls_status ls_nccl_sum(ls_nccl *g, float *memory, int64_t n, ls_error *err) {
    void *stream = g->device->exec.stream;
    LS_TRY(check_open(g, err));
    return put_call(g, g->lib->all_reduce(memory, memory, (size_t)n, NCCL_FLOAT32, NCCL_SUM, g->comm, stream), "a sum",
                    err);
}

ls_status ls_nccl_take(ls_nccl *g, int32_t root, void *memory, int64_t bytes, ls_error *err) {
    void *stream = g->device->exec.stream;
    LS_TRY(check_open(g, err));
    return put_call(g, g->lib->broadcast(memory, memory, (size_t)bytes, NCCL_INT8, root, g->comm, stream),
                    "a broadcast", err);
}

ls_status ls_nccl_reached(ls_nccl *g, bool *out, ls_error *err) {
    int error = NCCL_SUCCESS;
    LS_TRY(check_open(g, err));
    LS_TRY(ls_cuda_event_reached(g->event, out, err));
    if (*out) {
        g->is_under_way = false;
        return LS_OK;
    }
    LS_TRY(ask_status(g->lib, g->comm, g->lib->comm_get_async_error(g->comm, &error), "the group's state", err));
    return error == NCCL_IN_PROGRESS ? LS_OK : ask_status(g->lib, g->comm, error, "the group", err);
}
