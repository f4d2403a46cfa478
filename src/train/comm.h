/* Several processes that train as one. Rank 0 listens, the others connect to it; bytes travel over TCP, and every
 * addition is the leaf tree's own (train/gradient.h), so that n processes have the bits of one.
 *
 * A message is a header (what it is, its number, its length) and bytes, or a failure with a sentence. Whoever fails
 * says so to the others, and each of them fails with that sentence; a peer that is lost, or silent for the timeout, is
 * an error that names its rank and what was awaited. After an error the handle is only good to be closed.
 *
 * There is no encryption and no authentication beyond the run's identity: for trusted networks. */
#ifndef LS_TRAIN_COMM_H
#define LS_TRAIN_COMM_H

#include "train/gradient.h"

#define LS_RANKS_MAX 256

typedef struct ls_comm ls_comm;

typedef struct ls_comm_opts {
    int32_t rank, n_ranks; /* n_ranks at least 2 */
    const char *address;   /* HOST:PORT of rank 0 */
    double timeout_s;      /* without a byte from a peer that is waited for */
} ls_comm_opts;

/* Returns when all ranks are there. identity: of what must be equal on all of them, else they refuse each other. */
ls_status ls_comm_open(ls_comm **out, const ls_comm_opts *opts, uint64_t identity, ls_error *err);
void ls_comm_close(ls_comm *comm); /* accepts NULL */
int32_t ls_comm_rank(const ls_comm *comm);
int32_t ls_comm_ranks(const ls_comm *comm);

/* Bytes [begins[r], begins[r + 1]) of data are rank r's; afterwards every rank has all of them. `what` stands in
 * errors. */
ls_status ls_comm_share(ls_comm *comm, void *data, const int64_t *begins, const char *what, ls_error *err);

/* The first n_parts ranks hold a tree over their share of the leaves (n_elements floats a node); *root, on every rank,
 * is the root of all of them together, in device memory. staging: [n_elements] host memory. */
ls_status ls_comm_fold(ls_comm *comm, ls_gradient *gradient, int64_t n_elements, float *staging, ls_device *device,
                       int32_t n_parts, float **root, ls_error *err);

/* Tells all peers why this rank fails. */
void ls_comm_abort(ls_comm *comm, const ls_error *reason);

#endif
