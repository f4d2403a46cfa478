/* Exchanges over NCCL, watched over TCP. Owns the group. */
#include "train/comm_nccl.h"

#include <stdlib.h>

#include "base/clock.h"
#include "base/mem.h"

/* How long the host looks at the mesh before it looks at the GPU again; at first it looks all the time. */
#define LOOK_SECONDS 0.001
#define EAGER_SECONDS 0.05

typedef struct nccl_transport {
    ls_nccl *group;
    ls_mesh *mesh;
    int32_t rank;
    double timeout_s;
} nccl_transport;

/* Waits until the GPU is done, or somebody is not there any more. Without a sign of progress for the timeout the peers
 * of the exchange are named by who has not come. */
static ls_status nccl_wait(void *self, const char *what, ls_error *err) {
    nccl_transport *t = self;
    const double start = ls_clock_seconds();
    bool reached = false;
    for (;;) {
        const double waited = ls_clock_seconds() - start;
        LS_TRY(ls_nccl_reached(t->group, &reached, err));
        if (reached) return LS_OK;
        if (waited > t->timeout_s)
            return LS_FAIL(err, LS_ERR_IO, "rank %d: %s did not end within %g s over NCCL", t->rank, what,
                           t->timeout_s);
        if (waited > EAGER_SECONDS) LS_TRY(ls_mesh_look(t->mesh, LOOK_SECONDS, what, err));
    }
}

/* Every rank comes to the exchange over TCP first: who does not come within the timeout is silent by name. */
static ls_status nccl_barrier(void *self, const ls_comm_moves *moves, const char *what, ls_error *err) {
    const nccl_transport *t = self;
    uint8_t here[LS_RANKS_MAX] = {0}, there[LS_RANKS_MAX] = {0};
    ls_comm_move sends[LS_RANKS_MAX], receives[LS_RANKS_MAX];
    ls_comm_moves words = {sends, receives, 0, 0};
    bool to[LS_RANKS_MAX] = {false}, from[LS_RANKS_MAX] = {false};
    for (int64_t i = 0; i < moves->n_sends; i++)
        if (moves->sends[i].bytes > 0) to[moves->sends[i].peer] = true;
    for (int64_t i = 0; i < moves->n_receives; i++)
        if (moves->receives[i].bytes > 0) from[moves->receives[i].peer] = true;
    for (int32_t r = 0; r < LS_RANKS_MAX; r++) {
        if (!to[r] && !from[r]) continue; /* the same pairs on both sides */
        sends[words.n_sends++] = (ls_comm_move){r, &here[r], 1};
        receives[words.n_receives++] = (ls_comm_move){r, &there[r], 1};
    }
    return ls_mesh_exchange(t->mesh, NULL, &words, what, err);
}

static ls_status nccl_move(void *self, ls_device *device, const ls_comm_moves *moves, const char *what, ls_error *err) {
    ls_nccl *group = ((nccl_transport *)self)->group;
    (void)device;
    (void)what;
    LS_TRY(ls_nccl_begin(group, err));
    for (int64_t i = 0; i < moves->n_sends; i++) {
        const ls_comm_move *m = &moves->sends[i];
        if (m->bytes > 0) LS_TRY(ls_nccl_send(group, m->peer, m->memory, m->bytes, err));
    }
    for (int64_t i = 0; i < moves->n_receives; i++) {
        const ls_comm_move *m = &moves->receives[i];
        if (m->bytes > 0) LS_TRY(ls_nccl_receive(group, m->peer, m->memory, m->bytes, err));
    }
    return ls_nccl_end(group, err);
}

/* While the library waits for the others. */
static ls_status look_for_abort(void *self, const char *what, ls_error *err) {
    return ls_mesh_look(((nccl_transport *)self)->mesh, LOOK_SECONDS, what, err);
}

static void abandon(void *self) { ls_nccl_abandon(((nccl_transport *)self)->group); }

static void close_transport(void *self) {
    nccl_transport *t = self;
    if (t == NULL) return;
    ls_nccl_group_close(t->group);
    free(t);
}

const ls_transport ls_transport_nccl = {"nccl", nccl_barrier, nccl_move, nccl_wait, abandon, close_transport};

ls_nccl *ls_nccl_group_of(void *self) { return ((nccl_transport *)self)->group; }

ls_status ls_nccl_open(void **out, ls_mesh *mesh, ls_device *device, const ls_nccl_id *id, int32_t rank,
                       int32_t n_ranks, double timeout_s, ls_error *err) {
    nccl_transport *t = NULL;
    ls_nccl_patience patience = {timeout_s, look_for_abort, NULL};
    ls_status status;
    LS_TRY_DONE(ls_array_alloc((void **)&t, 1, sizeof *t, "NCCL", err));
    t->mesh = mesh;
    t->rank = rank;
    t->timeout_s = timeout_s;
    patience.context = t;
    LS_TRY_DONE(ls_nccl_group_open(&t->group, device, id, rank, n_ranks, &patience, err));
    *out = t;
    t = NULL;
done:
    close_transport(t);
    return status;
}
