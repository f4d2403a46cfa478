/* Episodes, and what older weights left to draw from, from process to process: each has some, all learn from the whole
 * of them. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "rl/grpo_state.h"

/* An episode on its way: this, then tokens, log-probabilities, flags, what truncation kept, and for each reply its
 * bytes and its text. */
typedef struct episode_head {
    int64_t n, n_drawn, n_replies, n_hit, n_preempted;
    int32_t slot;
    uint8_t overlong, failed, unused[2];
} episode_head;

typedef struct writer {
    uint8_t *at; /* NULL: only counts */
    int64_t bytes;
} writer;

static void put_data(writer *w, const void *data, int64_t bytes) {
    if (w->at != NULL && bytes > 0) memcpy(w->at + w->bytes, data, (size_t)bytes);
    w->bytes += bytes;
}

static void put_episode(writer *w, const ls_episode *x) {
    const episode_head head = {x->n,    x->n_drawn,  x->n_replies, x->n_hit, x->n_preempted,
                               x->slot, x->overlong, x->failed,    {0}};
    put_data(w, &head, (int64_t)sizeof head);
    put_data(w, x->tokens, x->n * (int64_t)sizeof *x->tokens);
    put_data(w, x->logprob, x->n * (int64_t)sizeof *x->logprob);
    put_data(w, x->drawn, x->n);
    put_data(w, x->kept, x->n * (int64_t)sizeof *x->kept);
    put_data(w, x->log_mass, x->n * (int64_t)sizeof *x->log_mass);
    for (int64_t k = 0; k < x->n_replies; k++) {
        put_data(w, &x->replies[k].bytes, (int64_t)sizeof x->replies[k].bytes);
        put_data(w, x->replies[k].text, x->replies[k].bytes);
    }
}

typedef struct reader {
    const uint8_t *at;
    int64_t left;
} reader;

static ls_status get(reader *r, void *out, int64_t bytes, ls_error *err) {
    if (bytes < 0 || bytes > r->left)
        return LS_FAIL(err, LS_ERR_FORMAT, "an episode of another process: %lld bytes where %lld are left",
                       (long long)bytes, (long long)r->left);
    if (bytes > 0) memcpy(out, r->at, (size_t)bytes);
    r->at += bytes;
    r->left -= bytes;
    return LS_OK;
}

/* A text of its own, with a NUL behind it. */
static ls_status get_reply(reader *r, ls_reply *out, ls_error *err) {
    char *text;
    int64_t bytes = 0;
    ls_status status;
    LS_TRY(get(r, &bytes, (int64_t)sizeof bytes, err));
    if (bytes < 0 || bytes > r->left)
        return LS_FAIL(err, LS_ERR_FORMAT, "a completion of another process: %lld bytes where %lld are left",
                       (long long)bytes, (long long)r->left);
    LS_TRY(ls_array_alloc((void **)&text, bytes + 1, 1, "completion", err));
    status = get(r, text, bytes, err);
    *out = (ls_reply){text, bytes};
    return status;
}

static ls_status get_episode(reader *r, ls_episode *x, int64_t length, ls_error *err) {
    episode_head h;
    LS_TRY(get(r, &h, (int64_t)sizeof h, err));
    if (h.n < x->n_prompt || h.n > length || h.n_drawn < 0 || h.n_drawn > h.n || h.n_replies < 0 ||
        h.n_replies > LS_TURNS_MAX)
        return LS_FAIL(err, LS_ERR_FORMAT, "an episode of another process: %lld tokens, %lld drawn, in %lld turns",
                       (long long)h.n, (long long)h.n_drawn, (long long)h.n_replies);
    x->n = h.n;
    x->n_drawn = h.n_drawn;
    x->n_hit = h.n_hit;
    x->n_preempted = h.n_preempted;
    x->slot = h.slot;
    x->overlong = h.overlong != 0;
    x->failed = h.failed != 0;
    x->ended = true;
    LS_TRY(get(r, x->tokens, x->n * (int64_t)sizeof *x->tokens, err));
    LS_TRY(get(r, x->logprob, x->n * (int64_t)sizeof *x->logprob, err));
    LS_TRY(get(r, x->drawn, x->n, err));
    LS_TRY(get(r, x->kept, x->n * (int64_t)sizeof *x->kept, err));
    LS_TRY(get(r, x->log_mass, x->n * (int64_t)sizeof *x->log_mass, err));
    for (int64_t k = 0; k < h.n_replies; k++) {
        x->n_replies = k + 1; /* a text that is there is freed with the episode */
        LS_TRY(get_reply(r, &x->replies[k], err));
    }
    return LS_OK;
}

/* Bytes that every process has of it, one process behind the other. */
static ls_status share_sizes(const grpo *g, int64_t own, int64_t *begins, const char *what, ls_error *err) {
    const int32_t n_ranks = ls_comm_ranks(g->comm);
    int64_t places[LS_RANKS_MAX + 1], sizes[LS_RANKS_MAX];
    for (int32_t r = 0; r <= n_ranks; r++) places[r] = r * (int64_t)sizeof *sizes;
    sizes[ls_comm_rank(g->comm)] = own;
    LS_TRY(ls_comm_share(g->comm, sizes, places, what, err));
    begins[0] = 0;
    for (int32_t r = 0; r < n_ranks; r++) {
        if (sizes[r] < 0 || begins[r] > INT64_MAX - sizes[r])
            return LS_FAIL(err, LS_ERR_FORMAT, "rank %d has %lld bytes of %s", r, (long long)sizes[r], what);
        begins[r + 1] = begins[r] + sizes[r];
    }
    return LS_OK;
}

static ls_status take_others(const grpo *g, ls_episodes *e, const uint8_t *bytes, const int64_t *begins,
                             ls_error *err) {
    const int64_t n_ranks = ls_comm_ranks(g->comm);
    for (int64_t rank = 0; rank < n_ranks; rank++) {
        reader r = {bytes + begins[rank], begins[rank + 1] - begins[rank]};
        if (rank == ls_comm_rank(g->comm)) continue;
        for (int64_t i = rank * e->n / n_ranks; i < (rank + 1) * e->n / n_ranks; i++)
            if (!e->list[i].is_fixed) LS_TRY(get_episode(&r, &e->list[i], e->length, err));
    }
    return LS_OK;
}

ls_status ls_grpo_gather(const grpo *g, ls_episodes *e, ls_error *err) {
    int64_t begins[LS_RANKS_MAX + 1], begin, end;
    uint8_t *bytes = NULL;
    writer count = {NULL, 0}, w;
    ls_status status;
    ls_grpo_share(g, e->n, &begin, &end);
    for (int64_t i = begin; i < end; i++)
        if (!e->list[i].is_fixed) put_episode(&count, &e->list[i]); /* the others are with everybody */
    LS_TRY_DONE(share_sizes(g, count.bytes, begins, "the episodes", err));
    LS_TRY_DONE(ls_array_alloc((void **)&bytes, begins[ls_comm_ranks(g->comm)], 1, "episodes", err));
    w = (writer){bytes + begins[ls_comm_rank(g->comm)], 0};
    for (int64_t i = begin; i < end; i++)
        if (!e->list[i].is_fixed) put_episode(&w, &e->list[i]);
    LS_TRY_DONE(ls_comm_share(g->comm, bytes, begins, "the episodes", err));
    LS_TRY_DONE(take_others(g, e, bytes, begins, err));
done:
    free(bytes);
    return status;
}

/* ---- supports ---- */

/* A row on its way: this, then its numbers. */
typedef struct support_head {
    int64_t row, kept, n;
} support_head;

/* Of episodes [begin, end) by number. */
static void put_supports(writer *w, const grpo_draws *d, int64_t begin, int64_t end) {
    const int64_t length = d->episodes->length;
    for (int64_t row = begin * length; row < end * length; row++) {
        if (!ls_supports_has(d->supports, row)) continue;
        const ls_support_row of = ls_supports_row(d->supports, row);
        const support_head head = {row, of.kept, of.n};
        put_data(w, &head, (int64_t)sizeof head);
        put_data(w, of.numbers, of.n * (int64_t)sizeof *of.numbers);
    }
}

/* numbers [words] are scratch. */
static ls_status get_support(reader *r, ls_supports *s, int64_t begin, int64_t end, uint32_t *numbers, ls_error *err) {
    support_head h;
    LS_TRY(get(r, &h, (int64_t)sizeof h, err));
    if (h.row < begin || h.row >= end || ls_supports_has(s, h.row) || h.n < 0 || h.n > s->words)
        return LS_FAIL(err, LS_ERR_FORMAT, "a support of another process: row %lld, of %lld numbers", (long long)h.row,
                       (long long)h.n);
    LS_TRY(get(r, numbers, h.n * (int64_t)sizeof *numbers, err));
    return ls_supports_put_row(s, h.row, &(ls_support_row){h.kept, h.n, numbers}, err);
}

static ls_status take_other_supports(const grpo *g, grpo_draws *d, const uint8_t *bytes, const int64_t *begins,
                                     uint32_t *numbers, ls_error *err) {
    const int64_t n_ranks = ls_comm_ranks(g->comm), n = d->episodes->n, length = d->episodes->length;
    for (int64_t rank = 0; rank < n_ranks; rank++) {
        const int64_t begin = rank * n / n_ranks * length, end = (rank + 1) * n / n_ranks * length;
        reader r = {bytes + begins[rank], begins[rank + 1] - begins[rank]};
        while (rank != ls_comm_rank(g->comm) && r.left > 0)
            LS_TRY(get_support(&r, d->supports, begin, end, numbers, err));
    }
    return LS_OK;
}

ls_status ls_grpo_gather_supports(const grpo *g, grpo_draws *d, ls_error *err) {
    static const char what[] = "the supports";
    int64_t begins[LS_RANKS_MAX + 1], begin, end;
    uint8_t *bytes = NULL;
    uint32_t *numbers = NULL;
    writer count = {NULL, 0}, w;
    ls_status status;
    ls_grpo_share(g, d->episodes->n, &begin, &end);
    put_supports(&count, d, begin, end);
    LS_TRY_DONE(share_sizes(g, count.bytes, begins, what, err));
    LS_TRY_DONE(ls_array_alloc((void **)&bytes, begins[ls_comm_ranks(g->comm)], 1, what, err));
    LS_TRY_DONE(ls_array_alloc((void **)&numbers, d->supports->words, sizeof *numbers, what, err));
    w = (writer){bytes + begins[ls_comm_rank(g->comm)], 0};
    put_supports(&w, d, begin, end);
    LS_TRY_DONE(ls_comm_share(g->comm, bytes, begins, what, err));
    LS_TRY_DONE(take_other_supports(g, d, bytes, begins, numbers, err));
done:
    free(bytes);
    free(numbers);
    return status;
}
