/* What the parts of the engine share: entries, the running list, pools. Private to src/rollout.
 *
 *   engine.c    the interface: submission, weights, runs
 *   plan.c      sizes of everything, and its allocation
 *   fit.c       the plan against the memory that there is, and its lines for people
 *   sleep.c     the pools' memory given back and taken again
 *   schedule.c  who runs, on which slot and pages: admission, page assurance, preemption, the spans of a tick
 *   draft.c     tokens that may come next, by look-up, and whether they pay
 *   decode.c    ticks of one token a sequence, recorded and replayed
 *   commit.c    what a forward left: prefix entries, forks, verification, draws, ends
 *   penalty.c   penalties on the tokens that a request has had
 *   waiting.c   waiting entries in order, live addresses */
#ifndef LS_ROLLOUT_ENGINE_STATE_H
#define LS_ROLLOUT_ENGINE_STATE_H

#include "base/mem.h"
#include "model/head.h"
#include "op/attention.h"
#include "rollout/engine.h"
#include "rollout/token_counts.h"

/* Whether drafts of a sequence pay: counts of what was drafted and what came of it, and nothing else. */
typedef struct ls_draft_trust {
    int64_t reach;                 /* drafts that it may have in a tick */
    int64_t pause;                 /* ticks without any that are left */
    int64_t wait;                  /* how long the next pause is */
    int64_t ticks, rows, accepted; /* of late: with drafts; rows that they cost; drafts that stayed */
} ls_draft_trust;

/* Whether a tick has drafts at all, where that costs its recording. */
typedef struct ls_draft_tick {
    bool is_open;
    int64_t room;           /* rows that drafts may take yet */
    int64_t rows, accepted; /* of this tick's drafts */
    int64_t pause, wait;    /* ticks without any that are left; how long the next pause is */
} ls_draft_tick;

/* A request in the engine's care. It waits (in the heap) or runs (in the running list). */
typedef struct entry {
    ls_request *request;
    int64_t arrival;
    int64_t n_cached;                       /* tokens whose keys, values and state are in pages and slot, or in swap */
    int32_t slot;                           /* -1 while waiting */
    int32_t lane;                           /* row of the page tables; -1 while waiting */
    int64_t first_page, n_pages;            /* [first_page, n_pages) are held: in the lane's table, or the swap table */
    int32_t swap_slot;                      /* -1: not swapped out; also the row of the swap tables */
    struct entry *leader;                   /* the running entry whose prefill of the same prompt this one waits for */
    int64_t n_followers;                    /* that wait for this one */
    int64_t branch;                         /* depth where the prompt leaves what the prefix cache knows; 0: none */
    ls_prefix_hit verify;                   /* a hit that is computed again to be compared; node NULL: none */
    bool was_looked_up, was_admitted, drew; /* ever; ever; since the last admission */
    float last_logprob;
    ls_token_counts *counts; /* of penalties; NULL: none act */
    /* Of drafts. While a forward runs, `spare` is a second slot, with the state behind spare_cached tokens. */
    int32_t spare; /* -1: none */
    int64_t spare_cached;
    int64_t n_indexed; /* tokens that its lane's look-up table knows; 0: the table is another's */
    ls_draft_trust trust;
    int64_t heap_i; /* while waiting */
    struct entry *next_free;
} entry;

/* Waiting entries by (priority, arrival), and the addresses (owner, prompt, sample) of all live ones. */
typedef struct waiting {
    entry **heap;
    int64_t n, cap;
    entry **table; /* open addressing, by address; cap a power of two, at most half full */
    int64_t table_n, table_cap;
} waiting;

bool ls_entry_before(const entry *a, const entry *b);
/* Room for n live entries: the one allocation, at submission. */
ls_status ls_waiting_reserve(waiting *w, int64_t n, ls_error *err);
void ls_waiting_push(waiting *w, entry *x);
entry *ls_waiting_top(const waiting *w); /* NULL when empty */
void ls_waiting_remove(waiting *w, entry *x);
entry *ls_live_find(const waiting *w, const ls_request *address);
void ls_live_add(waiting *w, entry *x);
void ls_live_remove(waiting *w, const entry *x);
void ls_waiting_deinit(waiting *w);

struct ls_engine {
    const ls_model *model;
    ls_device *device;
    ls_engine_opts opts; /* levers within */
    int32_t *stop;       /* [opts.n_stop] */
    int64_t state_every; /* as ls_levers_state_every has it */
    ls_prefix_key key;
    ls_engine_plan plan;
    ls_engine_stats stats;
    ls_error poisoned; /* status != LS_OK: every call returns it */
    bool sleeps;       /* the pools have no memory */

    ls_cache *cache, *snapshots, *swap; /* the latter two NULL where there is no such thing */
    ls_ids *slots, *pages, *swap_slots, *swap_pages;
    ls_prefix *prefix; /* NULL: off */
    ls_workspace *ws;
    ls_batch *tick; /* what the forward reads */
    ls_head *head;
    float *h;          /* [rows][H]: the residual stream, device memory */
    ls_error movement; /* of copies, fills and drops of cached state, which cannot be undone half way: the first error,
                          which ends the tick that it happened in */
    ls_engine_observer observer; /* NULL: none */
    void *observer_context;

    waiting waiting;
    entry *free_entries;
    int64_t n_live, n_arrivals;
    entry **running; /* [batch], in order */
    int64_t n_running, batch;
    int64_t draws_max;  /* of a tick: what the head holds */
    int64_t pages_max;  /* of one sequence's table */
    int64_t pages_held; /* of one sequence at once: fewer where a window lets it give pages back */
    int64_t window;     /* ls_config_window */
    int32_t *tables;    /* [batch][pages_max] */
    int32_t *lanes;     /* [batch] free rows of tables, a stack */
    int64_t n_lanes;
    int32_t *swap_tables; /* [swap slots][pages_max] */

    /* Drafts: for each lane a table of where runs of tokens were seen last. */
    int32_t *seen_at; /* [batch][seen_cap]; NULL without drafts */
    int64_t seen_cap; /* a power of two */
    ls_draft_tick draft_tick;
    /* Of tests: drafts in place of those that are looked up, `most` at most. NULL: look-up, as far as it pays. */
    int64_t (*drafter)(void *context, const ls_request *request, int64_t most, int32_t *out);
    void *drafter_context;

    /* Ticks of one token a sequence, by their number of rows. */
    ls_recording *recordings; /* [4][batch + 1]: plain, of ticks with penalties, of ticks that weigh, of both */
    bool *was_run;            /* the same: such a tick has run since the model is this one */

    /* One tick. */
    int32_t *tokens;      /* [rows] */
    ls_span *spans;       /* [batch] */
    entry **span_entry;   /* [batch] */
    int64_t *span_drafts; /* [batch]: rows of the span, its last ones, that are drafts */
    int64_t n_spans;
    /* One row gives one draw. A sequence with drafts has one more than it has drafts, one behind the other. */
    entry **drawing;   /* [draws_max], as all down to top_logprob */
    int64_t *last_row; /* the rows that give the draws */
    ls_draw *draws;
    ls_sampling *sampling;
    int64_t *drawn;
    float *logprob;
    int64_t *kept; /* as the next: of an engine that weighs */
    float *of_all, *of_kept, *of_model;
    int32_t *top_id; /* [draws_max][top], as the next one: of an engine with `top` */
    float *top_logprob;
    float *seen;          /* [rows][H]: what an observer is shown; NULL without */
    float *row;           /* [V]: what a request is shown */
    float *processed_row; /* [V], likewise */

    /* Of an engine that penalizes, device memory and what it is written from. */
    struct {
        ls_penalties *penalties; /* [draws_max] */
        int64_t *begins;         /* [draws_max + 1] */
        ls_penalty_item *items;  /* [items_max] */
        float *saved;            /* [items_max]; device memory alone */
    } penal, penal_host;
    int64_t items_max;
    bool tick_penalizes; /* some row of the tick has items */
    bool tick_weighs;    /* some row of the tick wants what ls_head_weigh gives */
};

/* Moves cached state, unless that has failed before. */
#define LS_MOVE(e, call)                                 \
    do {                                                 \
        if ((e)->movement.status == LS_OK) (void)(call); \
    } while (0)

static inline int32_t *ls_entry_pages(const ls_engine *e, const entry *x) {
    return e->tables + (int64_t)x->lane * e->pages_max;
}

/* Token number i of the entry's sequence: prompt, then completion. */
static inline int32_t ls_entry_token(const entry *x, int64_t i) {
    const ls_request *r = x->request;
    return i < r->n_prompt ? r->prompt[i] : r->completion[i - r->n_prompt];
}
static inline int64_t ls_entry_total(const entry *x) { return x->request->n_prompt + x->request->n_completion; }

/* How many of the n rows of a tick's draws are of the entry of row i, which is its first. */
static inline int64_t ls_drawing_rows(const ls_engine *e, int64_t i, int64_t n) {
    int64_t end = i + 1;
    while (end < n && e->drawing[end] == e->drawing[i]) end++;
    return end - i;
}

/* Whether it wants what ls_head_weigh gives. */
static inline bool ls_request_weighs(const ls_request *r) {
    return r->kept != NULL || r->log_mass != NULL || r->of_all != NULL || r->of_kept != NULL || r->of_model != NULL;
}

/* Pages that n tokens take. */
static inline int64_t ls_engine_pages(const ls_engine *e, int64_t n_tokens) {
    const int64_t each = e->opts.levers.page_tokens;
    return (n_tokens + each - 1) / each;
}

/* The first page that a sequence of n_cached tokens still reads. */
static inline int64_t ls_engine_first_page(const ls_engine *e, int64_t n_cached) {
    return ls_attention_begin(n_cached, e->window) / e->opts.levers.page_tokens;
}

/* The most pages that a sequence holds at once on its way to n_tokens. */
static inline int64_t ls_engine_pages_at_once(const ls_engine *e, int64_t n_tokens) {
    const int64_t chunk = e->opts.levers.chunk, rows = chunk > 0 ? ls_min_i64(chunk, e->plan.rows) : e->plan.rows;
    if (e->window == 0) return ls_engine_pages(e, n_tokens);
    return ls_engine_pages(e, ls_min_i64(n_tokens, e->window + LS_ATTENTION_BLOCK_MMA16 - 2 + rows));
}

/* plan.c */
ls_status ls_engine_allocate(ls_engine *e, ls_error *err);
void ls_engine_deallocate(ls_engine *e);
void ls_engine_poison(ls_engine *e); /* all slots and pages, if the lever says so; nothing may be in use */

/* fit.c */
/* Bytes of one of each in all layers, and what does not depend on how many there are. */
typedef struct ls_plan_units {
    int64_t slot, snapshot, page, fixed;
} ls_plan_units;
/* Takes slots, pages and snapshots that were not asked for by number down to what the device has; refuses the plan
 * where the least does not fit. */
ls_status ls_plan_fit(ls_engine *e, const ls_plan_units *units, ls_error *err);
/* The finished plan against what is free. */
ls_status ls_plan_check(const ls_engine *e, ls_error *err);

/* Slots that a running sequence may hold: a second one of a model with state, while drafts are verified. */
static inline int64_t ls_engine_slots_each(const ls_engine *e, bool has_state) {
    return e->opts.levers.drafts > 0 && has_state ? 2 : 1;
}

/* draft.c */
ls_status ls_draft_allocate(ls_engine *e, ls_error *err);
void ls_draft_deallocate(ls_engine *e);
void ls_draft_begin(entry *x); /* of a new entry */
/* Tokens that may follow those of x, `most` at most, into out; returns their number. Once a tick. */
int64_t ls_draft_propose(ls_engine *e, entry *x, int64_t most, int32_t *out);
/* `accepted` of x's drafts were right, at the cost of `rows`. */
void ls_draft_learn(ls_engine *e, entry *x, int64_t rows, int64_t accepted);
/* Around the spans of a tick, and what came of their drafts. */
void ls_draft_begin_tick(ls_engine *e);
void ls_draft_end_tick(ls_engine *e);

/* decode.c, for the plan */
int64_t ls_decode_sizes(const ls_engine *e); /* how many recordings there can be */

/* schedule.c */
void ls_engine_preempt_all(ls_engine *e); /* none of it kept */
void ls_schedule_admit(ls_engine *e);
void ls_schedule_force(ls_engine *e); /* the preemption that the lever asks for in this tick */
void ls_schedule_spans(ls_engine *e);
void ls_schedule_preempt(ls_engine *e, entry *x, ls_preempt_by by); /* of a running entry */
void ls_schedule_leave(ls_engine *e, entry *x);                     /* gives back all that a running entry holds */
void ls_schedule_drop_swap(ls_engine *e, entry *x);
void ls_schedule_release_slot(ls_engine *e, int32_t slot);
/* Gives pages back that hold none of the first n_tokens. Those in front of windows go before a span. */
void ls_schedule_trim(ls_engine *e, entry *x, int64_t n_tokens);
void ls_schedule_page_freed(void *context, int32_t page_i); /* poison; for the prefix cache too */
/* Depth at which the state of x must be caught next, beyond n_cached: a chunk ends there. INT64_MAX: nowhere. */
int64_t ls_schedule_cut(const ls_engine *e, const entry *x);

/* decode.c */
bool ls_decode_fits(const ls_engine *e); /* the tick's spans are one token each, which draw the next, on a device that
                                            records */
ls_status ls_decode_tick(ls_engine *e, ls_error *err); /* the forward, and what it left */
void ls_decode_forget(ls_engine *e);                   /* all recordings */

/* commit.c */
ls_status ls_commit_forward(ls_engine *e, ls_error *err);
/* penalty.c: the penalties of the tick's draws written, applied to the head's logits, taken off again. */
ls_status ls_penalty_allocate(ls_engine *e, ls_error *err);
void ls_penalty_deallocate(ls_engine *e);
int64_t ls_penalty_bytes(const ls_engine *e); /* of the device */
ls_status ls_penalty_check(const ls_engine *e, const ls_request *r, ls_error *err);
ls_status ls_penalty_write(ls_engine *e, int64_t n, int64_t rows, ls_error *err);
ls_status ls_penalty_apply(ls_engine *e, int64_t rows, bool undo, ls_error *err);
/* Its parts, for rows e->last_row of the forward, the n of e->drawing and then padding: writes what
 * the draws read; draws; waits and gives each entry its tokens. */
ls_status ls_commit_write(ls_engine *e, int64_t n, int64_t rows, ls_error *err);
ls_status ls_commit_draw(ls_engine *e, int64_t rows, ls_error *err);
ls_status ls_commit_accept(ls_engine *e, int64_t n, ls_error *err);
/* The sequence of span i has moved on. */
ls_status ls_commit_span(ls_engine *e, int64_t i, ls_error *err);
/* The entry's end: it leaves what it holds and the engine's care. */
void ls_commit_finish(ls_engine *e, entry *x, ls_finish finish);

#endif
