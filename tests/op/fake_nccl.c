/* A library with NCCL's names and nobody behind it: what it is to do, and what it was asked for, is its state
 * (fake_nccl.h). Loaded by test_nccl through LOCKSTEP_NCCL. */
#include "op/fake_nccl.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, SYSTEM_ERROR = 2, IN_PROGRESS = 7 };

fake_nccl fake_nccl_state;
static int group;

static int begun(void) { return fake_nccl_state.blocks ? SUCCESS : IN_PROGRESS; }

int ncclGetUniqueId(void *id);
int ncclGetUniqueId(void *id) {
    memset(id, 1, 128);
    return SUCCESS;
}

typedef struct name {
    char bytes[128];
} name;
typedef struct settings {
    size_t size;
    unsigned int magic, version;
    int blocking, rest;
} settings;

int ncclCommInitRankConfig(void **comm, int n_ranks, name id, int rank, const settings *how);
int ncclCommInitRankConfig(void **comm, int n_ranks, name id, int rank, const settings *how) {
    const char *nvls = getenv("NCCL_NVLS_ENABLE");
    (void)n_ranks, (void)id, (void)rank;
    fake_nccl_state.n_inits++;
    strncpy(fake_nccl_state.nvls, nvls == NULL ? "unset" : nvls, sizeof fake_nccl_state.nvls - 1);
    fake_nccl_state.config_is_sound = how->size == 24 && how->magic == 0xcafebeefu && how->version == 21400 &&
                                      how->blocking == 0 && how->rest == INT_MIN;
    *comm = &group;
    fake_nccl_state.polls_left = fake_nccl_state.polls;
    return begun();
}

int ncclCommGetAsyncError(void *comm, int *error);
int ncclCommGetAsyncError(void *comm, int *error) {
    (void)comm;
    *error = fake_nccl_state.polls_left > 0 ? IN_PROGRESS : fake_nccl_state.fails ? SYSTEM_ERROR : SUCCESS;
    if (fake_nccl_state.polls_left > 0 && fake_nccl_state.polls_left < FAKE_NEVER) fake_nccl_state.polls_left--;
    return SUCCESS;
}

int ncclCommFinalize(void *comm);
int ncclCommFinalize(void *comm) {
    (void)comm;
    fake_nccl_state.n_finals++;
    fake_nccl_state.polls_left = fake_nccl_state.polls;
    return begun();
}
int ncclCommDestroy(void *comm);
int ncclCommDestroy(void *comm) {
    (void)comm;
    fake_nccl_state.n_destroyed++;
    return SUCCESS;
}
int ncclCommAbort(void *comm);
int ncclCommAbort(void *comm) {
    (void)comm;
    fake_nccl_state.n_aborted++;
    return SUCCESS;
}
const char *ncclGetErrorString(int result);
const char *ncclGetErrorString(int result) { return result == SYSTEM_ERROR ? "system error" : "other"; }
const char *ncclGetLastError(void *comm);
const char *ncclGetLastError(void *comm) {
    (void)comm;
    return "as told";
}
int ncclGroupStart(void);
int ncclGroupStart(void) { return SUCCESS; }
int ncclGroupEnd(void);
int ncclGroupEnd(void) {
    fake_nccl_state.polls_left = fake_nccl_state.polls;
    return begun();
}
int ncclSend(const void *from, size_t count, int type, int peer, void *comm, void *stream);
int ncclSend(const void *from, size_t count, int type, int peer, void *comm, void *stream) {
    (void)from, (void)count, (void)type, (void)peer, (void)comm, (void)stream;
    return SUCCESS;
}
int ncclRecv(void *to, size_t count, int type, int peer, void *comm, void *stream);
int ncclRecv(void *to, size_t count, int type, int peer, void *comm, void *stream) {
    (void)to, (void)count, (void)type, (void)peer, (void)comm, (void)stream;
    return SUCCESS;
}
int ncclAllReduce(const void *from, void *to, size_t count, int type, int op, void *comm, void *stream);
int ncclAllReduce(const void *from, void *to, size_t count, int type, int op, void *comm, void *stream) {
    (void)from, (void)to, (void)count, (void)type, (void)op, (void)comm, (void)stream;
    fake_nccl_state.polls_left = fake_nccl_state.polls;
    return begun();
}
int ncclBroadcast(const void *from, void *to, size_t count, int type, int root, void *comm, void *stream);
int ncclBroadcast(const void *from, void *to, size_t count, int type, int root, void *comm, void *stream) {
    (void)from, (void)to, (void)count, (void)type, (void)root, (void)comm, (void)stream;
    fake_nccl_state.polls_left = fake_nccl_state.polls;
    return begun();
}
