/* What ranks do with a transport. Owns the mesh and what the transport opened. */
#include "train/comm.h"

#include <stdlib.h>

#include "base/clock.h"
#include "base/mem.h"
#include "train/comm_nccl.h"
#include "train/gradient.h"

/* Slices of a sum begin at multiples of this many elements of their range. */
#define SLICE_UNIT 64
/* Rounds of a sum that are under way at a time, at most: so long nobody looks whether the others are still there. */
#define ROUNDS_AHEAD 32

struct ls_comm {
    int32_t rank, n_ranks;
    ls_mesh *mesh;
    const ls_transport *transport; /* of device memory */
    void *self;                    /* the transport's */
    ls_comm_move *moves;           /* [2 n_ranks], of one exchange */
    float **slices;                /* [n_ranks], of one addition */
    ls_comm_use use;
};

int32_t ls_comm_rank(const ls_comm *c) { return c->rank; }
int32_t ls_comm_ranks(const ls_comm *c) { return c->n_ranks; }
const char *ls_comm_transport(const ls_comm *c) { return c->transport->name; }
ls_comm_use ls_comm_used(const ls_comm *c) { return c->use; }

ls_nccl *ls_comm_nccl(const ls_comm *c) {
    return c->transport == &ls_transport_nccl ? ls_nccl_group_of(c->self) : NULL;
}

/* ---- TCP ---- */

static ls_status tcp_move(void *self, ls_device *device, const ls_comm_moves *moves, const char *what, ls_error *err) {
    return ls_mesh_exchange(self, device, moves, what, err);
}

static void tcp_nothing(void *self) { (void)self; } /* the mesh is the handle's */

static const ls_transport tcp = {"tcp", NULL, tcp_move, NULL, tcp_nothing, tcp_nothing};

/* ---- opening ---- */

/* Rank 0 makes NCCL's name of the meeting; all of them meet again by it. */
static ls_status open_nccl(ls_comm *c, const ls_comm_opts *o, ls_error *err) {
    ls_nccl_id id = {{0}};
    ls_status made = LS_OK;
    if (c->rank == 0) made = ls_nccl_id_make(&id, err);
    if (made != LS_OK) return made;
    LS_TRY(ls_comm_tell(c, 0, &id, (int64_t)sizeof id, "the name of the NCCL group", err));
    LS_TRY(ls_nccl_open(&c->self, c->mesh, o->device, &id, c->rank, c->n_ranks, o->timeout_s, err));
    c->transport = &ls_transport_nccl;
    return LS_OK;
}

ls_status ls_comm_open(ls_comm **out, const ls_comm_opts *o, uint64_t identity, ls_error *err) {
    const ls_mesh_opts mesh = {o->rank, o->n_ranks, o->address, o->timeout_s};
    ls_comm *c = NULL;
    ls_error reason = {LS_OK, ""};
    ls_status status;
    *out = NULL;
    if (o->transport == LS_TRANSPORT_NCCL) LS_TRY(ls_nccl_check(o->device, err)); /* before anybody waits */
    LS_TRY_DONE(ls_array_alloc((void **)&c, 1, sizeof *c, "ranks", &reason));
    c->rank = o->rank;
    c->n_ranks = o->n_ranks;
    c->transport = &tcp;
    LS_TRY_DONE(ls_mesh_open(&c->mesh, &mesh, identity + (uint64_t)o->transport, &reason));
    c->self = c->mesh;
    LS_TRY_DONE(ls_array_alloc((void **)&c->moves, 2 * (int64_t)c->n_ranks, sizeof *c->moves, "ranks", &reason));
    LS_TRY_DONE(ls_array_alloc((void **)&c->slices, c->n_ranks, sizeof *c->slices, "ranks", &reason));
    if (o->transport == LS_TRANSPORT_NCCL) LS_TRY_DONE(open_nccl(c, o, &reason));
    *out = c;
    c = NULL;
done:
    if (status != LS_OK && c != NULL && c->mesh != NULL) ls_mesh_abort(c->mesh, &reason);
    if (status != LS_OK && err != NULL) *err = reason;
    ls_comm_close(c);
    return status;
}

/* ---- on paper ---- */

static ls_status paper_move(void *self, ls_device *device, const ls_comm_moves *moves, const char *what,
                            ls_error *err) {
    (void)self, (void)device, (void)moves, (void)what, (void)err;
    return LS_OK;
}

static const ls_transport paper = {"paper", NULL, paper_move, NULL, tcp_nothing, tcp_nothing};

ls_status ls_comm_open_on_paper(ls_comm **out, int32_t rank, int32_t n_ranks, ls_error *err) {
    ls_comm *c = NULL;
    ls_status status = LS_OK;
    *out = NULL;
    if (n_ranks == 1) return LS_OK;
    LS_TRY_DONE(ls_array_alloc((void **)&c, 1, sizeof *c, "ranks", err));
    c->rank = rank;
    c->n_ranks = n_ranks;
    c->transport = &paper;
    LS_TRY_DONE(ls_array_alloc((void **)&c->moves, 2 * (int64_t)n_ranks, sizeof *c->moves, "ranks", err));
    LS_TRY_DONE(ls_array_alloc((void **)&c->slices, n_ranks, sizeof *c->slices, "ranks", err));
    *out = c;
    c = NULL;
done:
    ls_comm_close(c);
    return status;
}

void ls_comm_close(ls_comm *c) {
    if (c == NULL) return;
    c->transport->close(c->self);
    ls_mesh_close(c->mesh);
    free(c->moves);
    free(c->slices);
    free(c);
}

void ls_comm_abort(ls_comm *c, const ls_error *reason) {
    ls_mesh_abort(c->mesh, reason); /* first: nobody waits for what is under way */
    c->transport->abandon(c->self);
}

/* ---- exchanges ---- */

static ls_status begin_moves(const ls_comm *c, const ls_comm_moves *moves, const char *what, ls_error *err) {
    return c->transport->barrier == NULL ? LS_OK : c->transport->barrier(c->self, moves, what, err);
}

static ls_status move_bytes(ls_comm *c, ls_device *device, const ls_comm_moves *moves, const char *what,
                            ls_error *err) {
    for (int64_t i = 0; i < moves->n_sends; i++) c->use.sent += moves->sends[i].bytes;
    for (int64_t i = 0; i < moves->n_receives; i++) c->use.received += moves->receives[i].bytes;
    return c->transport->move(c->self, device, moves, what, err);
}

static ls_status wait_for_moves(const ls_comm *c, const char *what, ls_error *err) {
    return c->transport->wait == NULL ? LS_OK : c->transport->wait(c->self, what, err);
}

ls_status ls_comm_exchange(ls_comm *c, ls_device *device, const ls_comm_moves *moves, const char *what, ls_error *err) {
    const double start = ls_clock_seconds();
    if (c->transport == &paper) return LS_OK;
    if (device == NULL) return ls_mesh_exchange(c->mesh, NULL, moves, what, err);
    LS_TRY(begin_moves(c, moves, what, err));
    LS_TRY(move_bytes(c, device, moves, what, err));
    LS_TRY(wait_for_moves(c, what, err));
    c->use.seconds += ls_clock_seconds() - start;
    return LS_OK;
}

ls_status ls_comm_share(ls_comm *c, void *data, const int64_t *begins, const char *what, ls_error *err) {
    uint8_t *bytes = data;
    ls_comm_move *sends = c->moves, *receives = c->moves + c->n_ranks;
    ls_comm_moves moves = {sends, receives, 0, 0};
    for (int32_t r = 0; r < c->n_ranks; r++) {
        if (r == c->rank) continue;
        sends[moves.n_sends++] = (ls_comm_move){r, bytes + begins[c->rank], begins[c->rank + 1] - begins[c->rank]};
        receives[moves.n_receives++] = (ls_comm_move){r, bytes + begins[r], begins[r + 1] - begins[r]};
    }
    return ls_comm_exchange(c, NULL, &moves, what, err);
}

ls_status ls_comm_barrier(ls_comm *c, const char *what, ls_error *err) {
    uint8_t marks[LS_RANKS_MAX] = {0};
    int64_t begins[LS_RANKS_MAX + 1];
    for (int32_t r = 0; r <= c->n_ranks; r++) begins[r] = r;
    return ls_comm_share(c, marks, begins, what, err);
}

ls_status ls_comm_tell(ls_comm *c, int32_t from, void *data, int64_t bytes, const char *what, ls_error *err) {
    ls_comm_moves moves = {c->moves, c->moves, 0, 0};
    if (c->rank != from) {
        c->moves[moves.n_receives++] = (ls_comm_move){from, data, bytes};
    } else {
        for (int32_t r = 0; r < c->n_ranks; r++)
            if (r != from) c->moves[moves.n_sends++] = (ls_comm_move){r, data, bytes};
    }
    return ls_comm_exchange(c, NULL, &moves, what, err);
}

/* ---- sums ---- */

int64_t ls_comm_buffer_min(int32_t n_ranks) { return (int64_t)n_ranks * SLICE_UNIT; }

/* Elements [*begin, *end) of rank r's range that round k is about; none where begin == end. */
static void slice_of(const ls_comm_sum *s, int32_t r, int64_t k, int64_t step, int64_t *begin, int64_t *end) {
    const int64_t last = s->begins[r + 1];
    *begin = s->begins[r] + k * step < last ? s->begins[r] + k * step : last;
    *end = *begin + step < last ? *begin + step : last;
}

static const char gradient[] = "the gradient";

/* What the others need of this rank's root, and what this one needs of theirs. */
static ls_status trade(ls_comm *c, ls_device *device, const ls_comm_sum *s, int64_t k, int64_t step, ls_error *err) {
    ls_comm_moves moves = {c->moves, c->moves + c->n_ranks, 0, 0};
    ls_comm_move *receives = c->moves + c->n_ranks;
    int64_t begin, end, own, own_end;
    slice_of(s, c->rank, k, step, &own, &own_end);
    for (int32_t r = 0; r < c->n_ranks; r++) {
        if (r == c->rank) continue;
        slice_of(s, r, k, step, &begin, &end);
        float *slice = s->out == NULL ? s->root + begin : s->sent + r * step;
        const int64_t bytes = (end - begin) * (int64_t)sizeof(float);
        if (c->rank < s->n_parts && s->out != NULL) LS_TRY(ls_memory_copy(device, slice, s->root + begin, bytes, err));
        if (c->rank < s->n_parts) c->moves[moves.n_sends++] = (ls_comm_move){r, slice, bytes};
        if (r < s->n_parts)
            receives[moves.n_receives++] =
                (ls_comm_move){r, s->buffer + r * step, (own_end - own) * (int64_t)sizeof(float)};
    }
    if (k == 0) LS_TRY(begin_moves(c, &moves, gradient, err)); /* who is in a later round is in the first */
    return move_bytes(c, device, &moves, gradient, err);
}

/* The tree over parts, for one slice: n elements at `out`. */
static ls_status add_slices(const ls_comm *c, ls_device *device, int32_t n_parts, float *out, int64_t n,
                            ls_error *err) {
    if (n_parts == 1 && c->slices[0] != out)
        return ls_memory_copy(device, out, c->slices[0], n * (int64_t)sizeof(float), err);
    for (int32_t width = 1; width < n_parts; width *= 2)
        for (int32_t p = 0; p + width < n_parts; p += 2 * width) {
            const bool is_last = 2 * width >= n_parts;
            LS_TRY(ls_gradient_add(device, is_last ? out : c->slices[p], c->slices[p], c->slices[p + width], n, err));
        }
    return LS_OK;
}

ls_status ls_comm_add(ls_comm *c, ls_device *device, const ls_comm_sum *s, ls_error *err) {
    const int64_t step = s->buffer_elements / c->n_ranks / SLICE_UNIT * SLICE_UNIT;
    const double start = ls_clock_seconds();
    int64_t longest = 0;
    LS_ASSERT(step > 0 && s->n_parts > 0 && s->n_parts <= c->n_ranks, "%lld elements for %d of %d ranks",
              (long long)s->buffer_elements, s->n_parts, c->n_ranks);
    for (int32_t r = 0; r < c->n_ranks; r++)
        if (s->begins[r + 1] - s->begins[r] > longest) longest = s->begins[r + 1] - s->begins[r];
    for (int64_t k = 0; k * step < longest; k++) {
        int64_t begin, end;
        LS_TRY(trade(c, device, s, k, step, err));
        slice_of(s, c->rank, k, step, &begin, &end);
        float *out = s->out == NULL ? s->root + begin : s->out + (begin - s->begins[c->rank]);
        if (s->out != NULL && c->rank < s->n_parts)
            LS_TRY(ls_memory_copy(device, out, s->root + begin, (end - begin) * (int64_t)sizeof(float), err));
        for (int32_t p = 0; p < s->n_parts; p++) c->slices[p] = p == c->rank ? out : s->buffer + p * step;
        if (end > begin) LS_TRY(add_slices(c, device, s->n_parts, out, end - begin, err));
        if ((k + 1) % ROUNDS_AHEAD == 0) LS_TRY(wait_for_moves(c, gradient, err));
    }
    LS_TRY(wait_for_moves(c, gradient, err));
    c->use.seconds += ls_clock_seconds() - start;
    return LS_OK;
}
