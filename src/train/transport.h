/* How bytes get from process to process: a table, so that one kind of memory has one way and another has another. A
 * transport moves bytes and nothing else: whatever is added, is added by the leaf tree (train/gradient.h). */
#ifndef LS_TRAIN_TRANSPORT_H
#define LS_TRAIN_TRANSPORT_H

#include "op/backend.h"

/* A piece of memory that goes to a peer, or comes from it. */
typedef struct ls_comm_move {
    int32_t peer; /* not this rank */
    void *memory;
    int64_t bytes; /* 0: no move at all */
} ls_comm_move;

/* An exchange, to which every rank has its own part. Between two ranks sends and receives meet in the order of their
 * lists and have the same sizes. No memory of one exchange overlaps what it receives. */
typedef struct ls_comm_moves {
    const ls_comm_move *sends, *receives;
    int64_t n_sends, n_receives;
} ls_comm_moves;

/* `what` stands in errors. Of several exchanges with the same peers, or some of them, the first alone needs a
 * meeting. */
typedef struct ls_transport {
    const char *name; /* "tcp", "nccl" */
    /* Returns when the peers of these moves are there. NULL: the moves see to it. */
    ls_status (*barrier)(void *self, const ls_comm_moves *moves, const char *what, ls_error *err);
    /* Of device memory: a call on the device, which runs behind the calls before it and before those behind it. */
    ls_status (*move)(void *self, ls_device *device, const ls_comm_moves *moves, const char *what, ls_error *err);
    /* Returns when all moves have run. NULL: they have run when they return. */
    ls_status (*wait)(void *self, const char *what, ls_error *err);
    void (*abandon)(void *self); /* what is under way, without waiting for it */
    void (*close)(void *self);
} ls_transport;

#endif
