/* NCCL behind a table of its functions. Owns the group, an event, and the library for as long as the process lives. */
#define _GNU_SOURCE
#include "op/nccl.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "dev/device.h"

/* Values of nccl.h. */
enum { NCCL_SUCCESS = 0, NCCL_IN_PROGRESS = 7, NCCL_INT8 = 0, NCCL_FLOAT32 = 7, NCCL_SUM = 0 };

typedef struct library {
    int (*get_unique_id)(ls_nccl_id *id);
    int (*comm_init_rank)(void **comm, int n_ranks, ls_nccl_id id, int rank);
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
    (void)setenv("NCCL_NVLS_ENABLE", "0", 1);
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
    LOAD(comm_init_rank, "ncclCommInitRank");
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

static ls_status ask(const library *lib, void *comm, int result, const char *what, ls_error *err) {
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
    return ask(lib, NULL, lib->get_unique_id(out), "a name for the group", err);
}

ls_status ls_nccl_group_open(ls_nccl **out, ls_device *device, const ls_nccl_id *id, int32_t rank, int32_t n_ranks,
                             ls_error *err) {
    ls_nccl *g = NULL;
    ls_status status;
    *out = NULL;
    LS_TRY_DONE(ls_array_alloc((void **)&g, 1, sizeof *g, "NCCL", err));
    g->device = device;
    LS_TRY_DONE(get_library(&g->lib, err));
    LS_TRY_DONE(ls_device_wait(device, err)); /* which makes its GPU the thread's */
    LS_TRY_DONE(ls_cuda_event_create(&g->event, false, err));
    LS_TRY_DONE(ask(g->lib, NULL, g->lib->comm_init_rank(&g->comm, n_ranks, *id, rank), "meeting", err));
    *out = g;
    g = NULL;
done:
    ls_nccl_group_close(g);
    return status;
}

void ls_nccl_group_close(ls_nccl *g) {
    if (g == NULL) return;
    if (g->comm != NULL) (void)g->lib->comm_destroy(g->comm);
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

ls_status ls_nccl_begin(ls_nccl *g, ls_error *err) {
    LS_TRY(check_open(g, err));
    return ask(g->lib, g->comm, g->lib->group_start(), "a group of moves", err);
}

ls_status ls_nccl_send(ls_nccl *g, int32_t peer, const void *memory, int64_t bytes, ls_error *err) {
    void *stream = g->device->exec.stream;
    return ask(g->lib, g->comm, g->lib->send(memory, (size_t)bytes, NCCL_INT8, peer, g->comm, stream), "a send", err);
}

ls_status ls_nccl_receive(ls_nccl *g, int32_t peer, void *memory, int64_t bytes, ls_error *err) {
    void *stream = g->device->exec.stream;
    return ask(g->lib, g->comm, g->lib->recv(memory, (size_t)bytes, NCCL_INT8, peer, g->comm, stream), "a receive",
               err);
}

ls_status ls_nccl_end(ls_nccl *g, ls_error *err) {
    LS_TRY(ask(g->lib, g->comm, g->lib->group_end(), "a group of moves", err));
    return ls_cuda_event_record(&g->device->exec, g->event, err);
}

ls_status ls_nccl_sum(ls_nccl *g, float *memory, int64_t n, ls_error *err) {
    void *stream = g->device->exec.stream;
    LS_TRY(check_open(g, err));
    LS_TRY(ask(g->lib, g->comm, g->lib->all_reduce(memory, memory, (size_t)n, NCCL_FLOAT32, NCCL_SUM, g->comm, stream),
               "a sum", err));
    return ls_cuda_event_record(&g->device->exec, g->event, err);
}

ls_status ls_nccl_take(ls_nccl *g, int32_t root, void *memory, int64_t bytes, ls_error *err) {
    void *stream = g->device->exec.stream;
    LS_TRY(check_open(g, err));
    LS_TRY(ask(g->lib, g->comm, g->lib->broadcast(memory, memory, (size_t)bytes, NCCL_INT8, root, g->comm, stream),
               "a broadcast", err));
    return ls_cuda_event_record(&g->device->exec, g->event, err);
}

ls_status ls_nccl_reached(ls_nccl *g, bool *out, ls_error *err) {
    int error = NCCL_SUCCESS;
    LS_TRY(check_open(g, err));
    LS_TRY(ls_cuda_event_reached(g->event, out, err));
    if (*out) return LS_OK;
    LS_TRY(ask(g->lib, g->comm, g->lib->comm_get_async_error(g->comm, &error), "the group's state", err));
    return error == NCCL_IN_PROGRESS ? LS_OK : ask(g->lib, g->comm, error, "the group", err);
}
