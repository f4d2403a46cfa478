/* Drafts by look-up: where the last tokens of a sequence were seen before, in itself or in another sample of its
 * prompt, what came behind them there may come again. Owns the tables of where runs of tokens were seen last. No bit
 * depends on any of it: a draft is only taken where it is what the draw gives.
 *
 * Whether drafts go on is a matter of counts. Rows of drafts cost; a right one saves a tick's row. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "rollout/engine_state.h"

#define RUN_MIN 2 /* tokens of the runs that are looked up, longest first */
#define RUN_MAX 4
#define CAP_MAX (1 << 15) /* of a lane's table, which forgets where two runs meet */
#define SIBLINGS_MAX 8    /* other samples that are looked into */

/* A forward costs about as much as so many of its rows, whatever it computes: what a draft can save. Of models on two
 * threads of a CPU (2 to 3), and of Jamba-3B on an H100; there a tick with drafts is none that was recorded, which is
 * taken to cost half as much again. */
#define ROWS_OF_A_CPU 3
#define ROWS_OF_A_GPU 128
#define ROWS_OF_A_RECORDING (ROWS_OF_A_GPU / 2)

#define WAIT_MIN 8      /* ticks of the first pause; each that follows a failure is four times as long */
#define WAIT_MAX 128    /* ticks from one attempt to the next, where all have failed */
#define TICKS_TRUSTED 4 /* that paid: the next pause is a short one */
#define TICKS_MEANT 16  /* counts are halved from here on */

ls_status ls_draft_allocate(ls_engine *e, ls_error *err) {
    const int64_t runs = (RUN_MAX - RUN_MIN + 1) * e->opts.length_max;
    if (e->opts.levers.drafts == 0) return LS_OK;
    for (e->seen_cap = 16; e->seen_cap < CAP_MAX && e->seen_cap < runs; e->seen_cap *= 2) continue;
    return ls_array_alloc((void **)&e->seen_at, e->batch, e->seen_cap * (int64_t)sizeof *e->seen_at, "drafts", err);
}

void ls_draft_deallocate(ls_engine *e) { free(e->seen_at); }

void ls_draft_begin(entry *x) {
    x->spare = -1;
    x->n_indexed = 0;
    x->trust = (ls_draft_trust){.reach = 1, .wait = WAIT_MIN};
}

/* ---- look-up ---- */

/* Where the lane of y has the token behind the run of n tokens of x that ends before `end`. 0: nothing was seen. */
static int32_t *seen_place(const ls_engine *e, const entry *y, const entry *x, int64_t end, int64_t n) {
    uint64_t hash = (uint64_t)n;
    for (int64_t i = end - n; i < end; i++)
        hash = (hash ^ (uint64_t)(uint32_t)ls_entry_token(x, i)) * UINT64_C(0x9E3779B97F4A7C15);
    return e->seen_at + (int64_t)y->lane * e->seen_cap + ((hash >> 32) & (uint64_t)(e->seen_cap - 1));
}

/* The table of x's lane gets to know its tokens. A run is there when it is known what comes behind. */
static void index_tokens(const ls_engine *e, entry *x) {
    const int64_t total = ls_entry_total(x);
    if (x->n_indexed == 0)
        memset(e->seen_at + (int64_t)x->lane * e->seen_cap, 0, (size_t)e->seen_cap * sizeof *e->seen_at);
    for (int64_t end = ls_max_i64(x->n_indexed, RUN_MIN); end < total; end++)
        for (int64_t n = RUN_MIN; n <= ls_min_i64(RUN_MAX, end); n++) *seen_place(e, x, x, end, n) = (int32_t)end;
    x->n_indexed = total;
}

/* Behind which place of y stands the run of x's last n tokens, as far as y's table knows; 0: none. */
static int64_t find_run(const ls_engine *e, const entry *y, const entry *x, int64_t n) {
    const int64_t total = ls_entry_total(x), at = *seen_place(e, y, x, total, n);
    if (at < n || at >= ls_entry_total(y)) return 0;
    for (int64_t i = 1; i <= n; i++)
        if (ls_entry_token(y, at - i) != ls_entry_token(x, total - i)) return 0;
    return at;
}

static bool is_sibling(const entry *y, const entry *x) {
    const ls_request *r = x->request, *s = y->request;
    return y != x && y->n_indexed > 0 && s->prompt_i == r->prompt_i && s->owner == r->owner && s->salt == r->salt;
}

/* What stands behind place `at` of y. In x itself that may go on into the drafts, as it does in a sequence that
 * repeats itself. */
static int64_t copy_behind(const entry *y, int64_t at, const entry *x, int64_t most, int32_t *out) {
    const int64_t total = ls_entry_total(y);
    int64_t n = 0;
    for (; n < most && (at + n < total || y == x); n++)
        out[n] = at + n < total ? ls_entry_token(y, at + n) : out[at + n - total];
    return n;
}

static int64_t look_up_run(ls_engine *e, const entry *x, int64_t most, int32_t *out) {
    const entry *among[1 + SIBLINGS_MAX] = {x};
    int64_t n_among = 1;
    for (int64_t i = 0; i < e->n_running && n_among <= SIBLINGS_MAX; i++)
        if (is_sibling(e->running[i], x)) among[n_among++] = e->running[i];
    for (int64_t n = ls_min_i64(RUN_MAX, ls_entry_total(x)); n >= RUN_MIN; n--)
        for (int64_t i = 0; i < n_among; i++) {
            const int64_t at = find_run(e, among[i], x, n);
            if (at > 0) return copy_behind(among[i], at, x, most, out);
        }
    return 0;
}

int64_t ls_draft_propose(ls_engine *e, entry *x, int64_t most, int32_t *out) {
    if (e->drafter != NULL) return e->drafter(e->drafter_context, x->request, most, out);
    index_tokens(e, x);
    if (x->trust.pause > 0) {
        x->trust.pause--;
        return 0;
    }
    return look_up_run(e, x, ls_min_i64(most, x->trust.reach), out);
}

/* ---- whether they pay ---- */

static bool is_recorded(const ls_engine *e) { return e->opts.levers.graphs && ls_device_records(e->device); }

/* A token without drafts costs a row and its share of the forward, 1 + F / B of B sequences; so drafts pay where
 * rows <= accepted * (1 + F / B). */
static bool pays(const ls_engine *e, const ls_draft_trust *t) {
    const int64_t forward = is_recorded(e) ? ROWS_OF_A_GPU : ROWS_OF_A_CPU;
    return t->rows * e->n_running <= t->accepted * (e->n_running + forward);
}

void ls_draft_learn(const ls_engine *e, entry *x, int64_t rows, int64_t accepted) {
    ls_draft_trust *t = &x->trust;
    t->ticks++;
    t->rows += rows + (is_recorded(e) ? ROWS_OF_A_RECORDING / e->n_drafting : 0);
    t->accepted += accepted;
    if (!pays(e, t)) { /* beside many an attempt gains less, so there are fewer */
        *t = (ls_draft_trust){.reach = 1,
                              .pause = ls_min_i64(t->wait * (1 + e->n_running / WAIT_MIN), WAIT_MAX),
                              .wait = ls_min_i64(4 * t->wait, WAIT_MAX)};
        return;
    }
    if (t->ticks >= TICKS_TRUSTED) t->wait = WAIT_MIN;
    t->reach = ls_max_i64(1, ls_min_i64(2 * accepted, e->opts.levers.drafts));
    if (t->ticks < TICKS_MEANT) return;
    t->ticks /= 2;
    t->rows /= 2;
    t->accepted /= 2;
}
