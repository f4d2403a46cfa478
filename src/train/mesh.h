/* Ranks and the TCP connections between them, one for every pair.
 *
 * Meeting. Rank 0 listens at the run's address; every other rank listens at a port that is free, comes to rank 0 and
 * says which. When all are there rank 0 tells each of them where the others are and a number that only ranks of this
 * meeting know; then rank r connects to ranks 1 .. r - 1. A connection that does not open with the right words is none
 * of ours and is closed.
 *
 * Messages. A header (what it is, its number on its way, its length) and bytes. In an exchange all ways move at once,
 * so nobody waits for a neighbour that waits for somebody else. Who waits says so from time to time, which the others
 * count as a sign of life: a rank is given up that was silent for the timeout while it was waited for, and not one that
 * waits for it. Whoever fails tells the others, and each of them fails with that sentence. After an error the mesh is
 * only good to be closed.
 *
 * There is no encryption and no authentication beyond the run's identity: for trusted networks. */
#ifndef LS_TRAIN_MESH_H
#define LS_TRAIN_MESH_H

#include "train/transport.h"

#define LS_RANKS_MAX 256

typedef struct ls_mesh ls_mesh;

typedef struct ls_mesh_opts {
    int32_t rank, n_ranks; /* n_ranks at least 2 */
    const char *address;   /* HOST:PORT of rank 0 */
    double timeout_s;      /* without a sign of a peer that is waited for */
} ls_mesh_opts;

/* Returns when all ranks are there. identity: of what must be equal on all of them, else they refuse each other. */
ls_status ls_mesh_open(ls_mesh **out, const ls_mesh_opts *opts, uint64_t identity, ls_error *err);
void ls_mesh_close(ls_mesh *mesh); /* accepts NULL */

/* device NULL: host memory. */
ls_status ls_mesh_exchange(ls_mesh *mesh, ls_device *device, const ls_comm_moves *moves, const char *what,
                           ls_error *err);
/* For who waits for something else: whether a peer has failed or is gone; returns within `seconds`. */
ls_status ls_mesh_look(ls_mesh *mesh, double seconds, const char *what, ls_error *err);
/* Tells all peers why this rank fails. */
void ls_mesh_abort(ls_mesh *mesh, const ls_error *reason);

#endif
