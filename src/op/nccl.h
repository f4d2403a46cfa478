/* NCCL as a carrier of bytes between GPUs of several processes. The library is opened when it is asked for, so that no
 * build needs it; the few functions that are used are declared here by their ABI (NCCL 2, nccl.h). Only sends, receives
 * and broadcasts are used: nothing that counts is ever added by it. Multicast over NVLink (NVLS) is off, by
 * NCCL_NVLS_ENABLE=0 in the process's environment, unless the user has set this variable.
 *
 * No call waits for ever: groups are made without waiting (NCCL 2.14 and later), and whoever opens one says how long
 * its meeting and each of its calls may take. A group that did not come about, or that is left while a move is under
 * way, is aborted. */
#ifndef LS_OP_NCCL_H
#define LS_OP_NCCL_H

#include "op/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The name of a group: made by one process, told to all. */
typedef struct ls_nccl_id {
    char bytes[128];
} ls_nccl_id;

typedef struct ls_nccl ls_nccl;

/* How long a wait for the others may take, and what is looked at meanwhile: an error of `look` ends the wait with
 * it. */
typedef struct ls_nccl_patience {
    double seconds;
    ls_status (*look)(void *context, const char *what, ls_error *err); /* NULL: nothing */
    void *context;
} ls_nccl_patience;

/* Whether the library is there and the device is a GPU. LOCKSTEP_NCCL may name the file; else libnccl.so.2. */
ls_status ls_nccl_check(const ls_device *device, ls_error *err);
ls_status ls_nccl_id_make(ls_nccl_id *out, ls_error *err);
/* Waits for all n_ranks, each on a GPU of its own; the device is borrowed. */
ls_status ls_nccl_group_open(ls_nccl **out, ls_device *device, const ls_nccl_id *id, int32_t rank, int32_t n_ranks,
                             const ls_nccl_patience *patience, ls_error *err);
/* Moves between begin and end run together, behind the calls on the device so far. end, sum and take return when the
 * moves are on the device's stream. */
ls_status ls_nccl_begin(ls_nccl *group, ls_error *err);
ls_status ls_nccl_send(ls_nccl *group, int32_t peer, const void *memory, int64_t bytes, ls_error *err);
ls_status ls_nccl_receive(ls_nccl *group, int32_t peer, void *memory, int64_t bytes, ls_error *err);
ls_status ls_nccl_end(ls_nccl *group, ls_error *err);
/* Whether all of them have run. Does not wait; an error of the group is found here. */
ls_status ls_nccl_reached(ls_nccl *group, bool *out, ls_error *err);
/* For measuring beside: the library's own sum over ranks of n floats, in an order of its own. */
ls_status ls_nccl_sum(ls_nccl *group, float *memory, int64_t n, ls_error *err);
/* Takes part in a broadcast of bytes from `root`, which is another rank. */
ls_status ls_nccl_take(ls_nccl *group, int32_t root, void *memory, int64_t bytes, ls_error *err);
/* Gives up what is under way; only closing is left. */
void ls_nccl_abandon(ls_nccl *group);
/* Waits some seconds for the others, unless a move is under way, and gives up then. Accepts NULL. */
void ls_nccl_group_close(ls_nccl *group);

#ifdef __cplusplus
}
#endif
#endif
