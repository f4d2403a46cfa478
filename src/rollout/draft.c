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
 * taken to cost a forward more, however many sequences have drafts in it. */
#define ROWS_OF_A_CPU 3
#define ROWS_OF_A_GPU 128
#define ROWS_OF_A_RECORDING ROWS_OF_A_GPU
#define ROWS_AT_ONCE 64 /* of a GPU's products: with one more a forward is about twice as dear */

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

/* ---- whether they pay ---- */

static bool is_recorded(const ls_engine *e) { return e->opts.levers.graphs && ls_device_records(e->device); }

/* A token without drafts costs a row and its share of the forward, 1 + F / B of B sequences; so drafts pay where
 * rows <= accepted * (1 + F / B). */
static bool pays(const ls_engine *e, double rows, double accepted) {
    const double forward = is_recorded(e) ? ROWS_OF_A_GPU : ROWS_OF_A_CPU;
    return rows * (double)e->n_running <= accepted * ((double)e->n_running + forward);
}

/* Drafts that a tick may have of x, as far as they have paid. Beside what a GPU reads, rows are cheap, up to the next
 * for which it reads all once more: those are shared out. */
static int64_t reach_of(const ls_engine *e, const entry *x) {
    const int64_t each = e->draft_tick.room / ls_max_i64(e->n_running, 1);
    if (x->trust.pause > 0) return 0;
    return is_recorded(e) ? ls_min_i64(e->opts.levers.drafts, ls_max_i64(each, 1)) : x->trust.reach;
}

/* Whether a tick whose drafts are those of all sequences is worth that it is none that was recorded. Of those that a
 * sequence may have, as many are taken to stay as did of late. */
static bool tick_pays(ls_engine *e) {
    double rows = ROWS_OF_A_RECORDING, stay = 0;
    int64_t room = e->draft_tick.room;
    for (int64_t i = 0; i < e->n_running; i++) {
        int32_t drafts[LS_DRAFTS_MAX];
        entry *x = e->running[i];
        if (x->leader != NULL || ls_entry_total(x) - x->n_cached != 1) continue;
        index_tokens(e, x);
        const int64_t n = look_up_run(e, x, ls_min_i64(room, reach_of(e, x)), drafts);
        room -= n;
        rows += (double)n;
        stay += (double)n * (double)(1 + x->trust.accepted) / (double)(1 + x->trust.rows);
    }
    return pays(e, rows, stay);
}

void ls_draft_begin_tick(ls_engine *e) {
    ls_draft_tick *t = &e->draft_tick;
    t->rows = t->accepted = 0;
    t->is_open = true;
    t->room = is_recorded(e) ? (ROWS_AT_ONCE - e->n_running % ROWS_AT_ONCE) % ROWS_AT_ONCE : INT64_MAX;
    if (e->seen_at == NULL || e->drafter != NULL || !is_recorded(e)) return;
    t->is_open = t->pause == 0 && tick_pays(e);
    if (t->pause > 0) t->pause--;
}

void ls_draft_end_tick(ls_engine *e) {
    ls_draft_tick *t = &e->draft_tick;
    if (t->rows == 0 || !is_recorded(e)) return;
    if (pays(e, (double)(t->rows + ROWS_OF_A_RECORDING), (double)t->accepted)) {
        t->wait = WAIT_MIN;
        return;
    }
    t->pause = ls_max_i64(t->wait, WAIT_MIN);
    t->wait = ls_min_i64(4 * t->pause, WAIT_MAX);
}

int64_t ls_draft_propose(ls_engine *e, entry *x, int64_t most, int32_t *out) {
    if (e->drafter != NULL) return e->drafter(e->drafter_context, x->request, most, out);
    index_tokens(e, x);
    if (x->trust.pause > 0) {
        x->trust.pause--;
        return 0;
    }
    if (!e->draft_tick.is_open) return 0;
    const int64_t n = look_up_run(e, x, ls_min_i64(ls_min_i64(most, e->draft_tick.room), reach_of(e, x)), out);
    e->draft_tick.room -= n;
    return n;
}

void ls_draft_learn(ls_engine *e, entry *x, int64_t rows, int64_t accepted) {
    ls_draft_trust *t = &x->trust;
    e->draft_tick.rows += rows;
    e->draft_tick.accepted += accepted;
    t->ticks++;
    t->rows += rows;
    t->accepted += accepted;
    if (!pays(e, (double)t->rows, (double)t->accepted)) { /* beside many an attempt gains less, so there are fewer */
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
