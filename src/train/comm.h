/* Several processes that train as one: what they exchange, and how sums over all of them are made.
 *
 * Elements are shared by range: rank r owns elements [begins[r], begins[r + 1]) of every array over all parameters.
 * A sum over ranks is made where its range is owned, by the leaf tree's own addition (train/gradient.h): the first
 * n_parts ranks hold roots of complete subtrees, and their slices add in the aligned binary tree over rank numbers,
 * left + right, an absent right neighbour leaving the left as it is. That is the top of the tree over leaves, so
 * n processes have the bits of one. Transports (train/transport.h) only carry.
 *
 * Host memory travels over TCP (train/mesh.h), which is also where ranks meet; device memory by the transport that was
 * asked for: TCP, or NCCL. After an error the handle is only good to be closed. */
#ifndef LS_TRAIN_COMM_H
#define LS_TRAIN_COMM_H

#include "train/mesh.h"

typedef struct ls_comm ls_comm;

typedef enum ls_transport_kind { LS_TRANSPORT_TCP, LS_TRANSPORT_NCCL } ls_transport_kind;

typedef struct ls_comm_opts {
    int32_t rank, n_ranks; /* n_ranks at least 2 */
    const char *address;   /* HOST:PORT of rank 0 */
    double timeout_s;      /* without a sign of a peer that is waited for */
    ls_transport_kind transport;
    ls_device *device; /* of NCCL, which needs a GPU; borrowed */
} ls_comm_opts;

/* Returns when all ranks are there. identity: of what must be equal on all of them, else they refuse each other. */
ls_status ls_comm_open(ls_comm **out, const ls_comm_opts *opts, uint64_t identity, ls_error *err);
/* Of a plan: nobody is met, and what is exchanged is as it was. One process alone: *out is NULL. */
ls_status ls_comm_open_on_paper(ls_comm **out, int32_t rank, int32_t n_ranks, ls_error *err);
void ls_comm_close(ls_comm *comm); /* accepts NULL */
int32_t ls_comm_rank(const ls_comm *comm);
int32_t ls_comm_ranks(const ls_comm *comm);
const char *ls_comm_transport(const ls_comm *comm);

/* Moves of this rank, to which those of the others belong; device NULL: host memory. `what` stands in errors. */
ls_status ls_comm_exchange(ls_comm *comm, ls_device *device, const ls_comm_moves *moves, const char *what,
                           ls_error *err);
/* Bytes [begins[r], begins[r + 1]) of host memory are rank r's; afterwards every rank has all of them. */
ls_status ls_comm_share(ls_comm *comm, void *data, const int64_t *begins, const char *what, ls_error *err);
/* Returns when all ranks have called it. */
ls_status ls_comm_barrier(ls_comm *comm, const char *what, ls_error *err);
/* One value of rank `from` to all. */
ls_status ls_comm_tell(ls_comm *comm, int32_t from, void *data, int64_t bytes, const char *what, ls_error *err);

/* A sum over ranks, of which each gets its range. */
typedef struct ls_comm_sum {
    /* All elements, of the first n_parts ranks: in the host's memory (ls_memory_pin) where there is `out`, and it stays
     * as it is. Else in the device's, and the sum comes into this rank's range; what lies outside is undefined then. */
    float *root;
    const int64_t *begins; /* [n_ranks + 1] */
    int32_t n_parts;       /* at least 1 */
    float *buffer;         /* [buffer_elements], at least ls_comm_buffer_min; device memory */
    int64_t buffer_elements;
    /* Of a root in the host's memory, else NULL; device memory. */
    float *sent; /* [buffer_elements]: what goes to the others goes through here */
    float *out;  /* [elements of this rank's range]: where the sum goes */
} ls_comm_sum;

int64_t ls_comm_buffer_min(int32_t n_ranks);
ls_status ls_comm_add(ls_comm *comm, ls_device *device, const ls_comm_sum *sum, ls_error *err);

/* What exchanges of device memory have taken so far, with the additions of sums. */
typedef struct ls_comm_use {
    double seconds;
    int64_t sent, received; /* bytes */
} ls_comm_use;

ls_comm_use ls_comm_used(const ls_comm *comm);

/* The group of the transport nccl, for measuring beside; else NULL. */
struct ls_nccl *ls_comm_nccl(const ls_comm *comm);

/* Tells all peers why this rank fails. */
void ls_comm_abort(ls_comm *comm, const ls_error *reason);

#endif
