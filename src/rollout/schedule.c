/* Who runs, on which slot and pages. Admission follows (priority, arrival) and never overtakes; when pages run out the
 * prefix cache gives way first, where that frees enough of them, then the running entry that is last in that order.
 * The first one can therefore always go on, and everything ends: alone, what it does not hold is free or the cache's
 * to give up. */
#include <string.h>

#include "base/mem.h"
#include "rollout/engine_state.h"

/* ---- pages and slots ---- */

void ls_schedule_page_freed(void *context, int32_t page_i) {
    ls_engine *e = context;
    if (e->opts.levers.poison) LS_MOVE(e, ls_cache_poison_page(e->cache, page_i, &e->movement));
}

static void release_page(ls_engine *e, int32_t page_i) {
    if (ls_ids_release(e->pages, page_i)) ls_schedule_page_freed(e, page_i);
}

/* A padded pool is as large as an experiment wants it; only slots in use are to cost memory. */
void ls_schedule_release_slot(ls_engine *e, int32_t slot) {
    if (!ls_ids_release(e->slots, slot)) return;
    if (e->opts.levers.poison)
        LS_MOVE(e, ls_cache_poison_slot(e->cache, slot, &e->movement));
    else if (e->opts.levers.slot_words > 0)
        LS_MOVE(e, ls_cache_drop_slot(e->cache, slot, &e->movement));
}

void ls_schedule_trim(ls_engine *e, entry *x, int64_t n_tokens) {
    while (x->n_pages > ls_engine_pages(e, n_tokens)) release_page(e, ls_entry_pages(e, x)[--x->n_pages]);
}

/* Gives pages back that no later token of x sees. */
static void trim_front(ls_engine *e, entry *x) {
    const int64_t first = ls_engine_first_page(e, x->n_cached);
    for (; x->first_page < first; x->first_page++) {
        release_page(e, ls_entry_pages(e, x)[x->first_page]);
        e->stats.pages_given_back++;
    }
}

static bool make_room(ls_engine *e, int64_t n) {
    return ls_ids_available(e->pages) >= n || (e->prefix != NULL && ls_prefix_make_room(e->prefix, n));
}

/* ---- leaving ---- */

/* Another entry takes over a prefill that others wait for. */
static void pass_on_lead(ls_engine *e, const entry *x) {
    entry *heir = NULL;
    for (int64_t i = 0; i < e->n_running; i++) {
        entry *y = e->running[i];
        if (y->leader != x) continue;
        y->leader = heir;
        if (heir == NULL)
            heir = y;
        else
            heir->n_followers++;
    }
}

static void end_verify(ls_engine *e, entry *x) {
    if (x->verify.node != NULL) ls_prefix_unpin(e->prefix, x->verify.node);
    x->verify.node = NULL;
}

void ls_schedule_leave(ls_engine *e, entry *x) {
    const int32_t *pages = ls_entry_pages(e, x);
    int64_t i = 0;
    while (i < e->n_running && e->running[i] != x) i++;
    LS_ASSERT(i < e->n_running, "entry %lld does not run", (long long)x->arrival);
    e->n_running--;
    memmove(e->running + i, e->running + i + 1, (size_t)(e->n_running - i) * sizeof(entry *));
    if (x->leader != NULL) x->leader->n_followers--;
    pass_on_lead(e, x);
    end_verify(e, x);
    for (int64_t p = x->first_page; p < x->n_pages; p++) release_page(e, pages[p]);
    ls_schedule_release_slot(e, x->slot);
    if (x->spare >= 0) ls_schedule_release_slot(e, x->spare);
    e->lanes[e->n_lanes++] = x->lane;
    x->first_page = x->n_pages = 0;
    x->n_cached = 0;
    x->n_indexed = 0;
    x->slot = x->spare = x->lane = -1;
    x->leader = NULL;
    x->n_followers = 0;
    x->branch = 0;
}

void ls_schedule_drop_swap(ls_engine *e, entry *x) {
    const int32_t *table;
    if (x->swap_slot < 0) return;
    table = e->swap_tables + x->swap_slot * e->pages_max;
    for (int64_t p = x->first_page; p < x->n_pages; p++) ls_ids_release(e->swap_pages, table[p]);
    ls_ids_release(e->swap_slots, x->swap_slot);
    x->swap_slot = -1;
    x->first_page = x->n_pages = 0;
    x->n_cached = 0;
}

/* Copies what x holds to swap space; false when there is too little of it, or nothing to keep. */
static bool swap_out(ls_engine *e, entry *x, int32_t *swap_slot) {
    const int32_t *pages = ls_entry_pages(e, x);
    int32_t *table;
    if (e->swap == NULL || x->n_cached == 0 || ls_ids_available(e->swap_slots) == 0 ||
        ls_ids_available(e->swap_pages) < x->n_pages - x->first_page)
        return false;
    *swap_slot = ls_ids_acquire(e->swap_slots);
    table = e->swap_tables + *swap_slot * e->pages_max;
    LS_MOVE(e, ls_cache_copy_slot(e->swap, *swap_slot, e->cache, x->slot, &e->movement));
    for (int64_t p = x->first_page; p < x->n_pages; p++) {
        table[p] = ls_ids_acquire(e->swap_pages);
        LS_MOVE(e, ls_cache_copy_page(e->swap, table[p], e->cache, pages[p], &e->movement));
    }
    return true;
}

void ls_schedule_preempt(ls_engine *e, entry *x, ls_preempt_by by) {
    const int64_t n_cached = x->n_cached, first_page = x->first_page, n_pages = x->n_pages;
    int32_t swap_slot = -1;
    bool swapped;
    if (by == LS_PREEMPT_ALTERNATE)
        by = (e->stats.preempted_recompute + e->stats.preempted_swap) % 2 == 0 ? LS_PREEMPT_RECOMPUTE : LS_PREEMPT_SWAP;
    swapped = by == LS_PREEMPT_SWAP && swap_out(e, x, &swap_slot);
    ls_schedule_leave(e, x);
    if (swapped) {
        x->swap_slot = swap_slot;
        x->n_cached = n_cached;
        x->first_page = first_page;
        x->n_pages = n_pages;
        e->stats.preempted_swap++;
    } else {
        e->stats.preempted_recompute++;
    }
    x->request->n_preempted++;
    ls_waiting_push(&e->waiting, x);
}

static entry *last_running(const ls_engine *e) { return e->n_running > 0 ? e->running[e->n_running - 1] : NULL; }

void ls_schedule_force(ls_engine *e) {
    const int64_t every = e->opts.levers.preempt_every;
    if (every == 0 || e->stats.ticks % every != 0) return;
    /* One that has drawn since it came back: else recomputation could go on for ever. */
    for (int64_t i = e->n_running - 1; i >= 0; i--)
        if (e->running[i]->drew) {
            ls_schedule_preempt(e, e->running[i], e->opts.levers.preempt_by);
            return;
        }
}

/* One step towards a free page at the expense of what comes after x. False: x itself has had to give way. */
static bool give_way(ls_engine *e, entry *x) {
    entry *last = last_running(e);
    if (x->verify.node != NULL) { /* what it would be compared with is in its way */
        end_verify(e, x);
        return true;
    }
    LS_ASSERT(last != x || e->n_running > 1, "%lld pages do not hold one sequence", (long long)e->plan.pages);
    ls_schedule_preempt(e, last, e->opts.levers.preempt_by);
    return last != x;
}

/* Pages for tokens up to `end`, of which those from n_cached on may be written. False: x was preempted. */
static bool assure_pages(ls_engine *e, entry *x, int64_t end) {
    const int64_t each = e->opts.levers.page_tokens, partial = x->n_cached / each;
    int32_t *pages = ls_entry_pages(e, x);
    /* A page that others hold too is not written: its tokens are copied first. Where no page is to be had for the copy
     * and the other holder is the prefix cache, that forgets it, and the page itself will do. */
    while (x->n_cached % each != 0 && ls_ids_references(e->pages, pages[partial]) > 1) {
        if (make_room(e, 1)) {
            const int32_t own = ls_ids_acquire(e->pages);
            LS_MOVE(e, ls_cache_copy_page(e->cache, own, e->cache, pages[partial], &e->movement));
            release_page(e, pages[partial]);
            pages[partial] = own;
        } else if (ls_ids_firm(e->pages, pages[partial]) == 1) {
            ls_prefix_forget_page(e->prefix, pages[partial]);
        } else if (!give_way(e, x)) {
            return false;
        }
    }
    while (x->n_pages * each < end) {
        if (make_room(e, 1))
            pages[x->n_pages++] = ls_ids_acquire(e->pages);
        else if (!give_way(e, x))
            return false;
    }
    return true;
}

/* ---- admission ---- */

/* A running entry that is still computing the part of the prompt that x could share. */
static entry *find_leader(const ls_engine *e, const entry *x) {
    const ls_request *r = x->request;
    if (!e->opts.levers.fork || r->n_prompt < 2 || r->prompt_logprob != NULL) return NULL;
    for (int64_t i = 0; i < e->n_running; i++) {
        entry *y = e->running[i];
        const ls_request *s = y->request;
        if (y->leader == NULL && s->n_prompt == r->n_prompt && s->salt == r->salt && y->n_cached < s->n_prompt - 1 &&
            memcmp(s->prompt, r->prompt, (size_t)r->n_prompt * sizeof *r->prompt) == 0)
            return y;
    }
    return NULL;
}

/* Whether this hit is one that is computed again: a share of all, chosen by address. */
static bool is_verified(const ls_engine *e, const ls_request *r) {
    uint64_t x = ((uint64_t)r->prompt_i << 32 | r->sample_i) + UINT64_C(0x9E3779B97F4A7C15);
    x = (x ^ x >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ x >> 27) * UINT64_C(0x94D049BB133111EB);
    return (double)(x >> 11) * 0x1p-53 < e->opts.levers.verify;
}

/* What the prefix cache holds of x's prompt: pinned, its pages referenced by x's table. */
static ls_prefix_hit look_up_prefix(ls_engine *e, entry *x) {
    const ls_request *r = x->request;
    ls_prefix_hit hit = {.snapshot = -1};
    if (e->prefix != NULL && r->salt == 0 && r->prompt_logprob == NULL)
        ls_prefix_lookup(e->prefix, r->prompt, r->n_prompt, r->n_prompt - 1, x->was_looked_up, &hit,
                         ls_entry_pages(e, x));
    x->was_looked_up = true;
    return hit;
}

static void release_hit_pages(ls_engine *e, const entry *x, const ls_prefix_hit *hit) {
    const int32_t *pages = ls_entry_pages(e, x);
    const int64_t n = ls_engine_pages(e, hit->n_tokens);
    for (int64_t p = ls_engine_first_page(e, hit->n_tokens); p < n; p++) release_page(e, pages[p]);
}

/* x has a slot and goes on from the hit. */
static void use_hit(ls_engine *e, entry *x, const ls_prefix_hit *hit) {
    const ls_request *r = x->request;
    if (hit->n_matched > hit->n_tokens && hit->n_matched < r->n_prompt - 1) x->branch = hit->n_matched;
    if (hit->node == NULL) return;
    if (is_verified(e, r)) { /* keep the node, not the pages */
        release_hit_pages(e, x, hit);
        x->verify = *hit;
        return;
    }
    LS_MOVE(e, ls_cache_copy_slot(e->cache, x->slot, e->snapshots, hit->snapshot, &e->movement));
    x->n_cached = hit->n_tokens;
    x->first_page = ls_engine_first_page(e, hit->n_tokens);
    x->n_pages = ls_engine_pages(e, hit->n_tokens);
    ls_prefix_unpin(e->prefix, hit->node);
}

static void swap_in(ls_engine *e, entry *x) {
    const int32_t *table = e->swap_tables + x->swap_slot * e->pages_max;
    const int64_t first_page = x->first_page, n_pages = x->n_pages, n_cached = x->n_cached;
    int32_t *pages = ls_entry_pages(e, x);
    const bool has_pages = make_room(e, n_pages - first_page);
    LS_ASSERT(has_pages, "%lld pages are not free", (long long)(n_pages - first_page));
    LS_MOVE(e, ls_cache_copy_slot(e->cache, x->slot, e->swap, x->swap_slot, &e->movement));
    for (int64_t p = first_page; p < n_pages; p++) {
        pages[p] = ls_ids_acquire(e->pages);
        LS_MOVE(e, ls_cache_copy_page(e->cache, pages[p], e->swap, table[p], &e->movement));
    }
    ls_schedule_drop_swap(e, x);
    x->first_page = first_page;
    x->n_pages = n_pages;
    x->n_cached = n_cached;
}

static void insert_running(ls_engine *e, entry *x) {
    int64_t i = e->n_running++;
    for (; i > 0 && ls_entry_before(x, e->running[i - 1]); i--) e->running[i] = e->running[i - 1];
    e->running[i] = x;
}

/* Pages that x, running or about to, is yet to take for what is known of it, holding n_held. One more than its tokens
 * need where the prefix cache will share the last page of the prompt, so that it has to copy it. */
static int64_t pages_needed(const ls_engine *e, const entry *x, int64_t n_held) {
    return ls_max_i64(ls_engine_pages_at_once(e, ls_entry_total(x)) - n_held, 0) + (e->prefix != NULL);
}

/* Whether there will be n more pages when all that runs has its own: else what is admitted would only come and go.
 * Nothing is evicted for it yet. */
static bool has_room(const ls_engine *e, int64_t n) {
    int64_t left = ls_ids_available(e->pages) + ls_ids_reclaimable(e->pages);
    for (int64_t i = 0; i < e->n_running; i++)
        left -= e->running[i]->leader != NULL
                    ? 1
                    : pages_needed(e, e->running[i], e->running[i]->n_pages - e->running[i]->first_page);
    return left >= n;
}

/* Puts the first waiting entry to work. False: there is none, or no room for it. */
static bool admit_one(ls_engine *e) {
    entry *x = ls_waiting_top(&e->waiting), *last = last_running(e), *leader;
    ls_prefix_hit hit = {.snapshot = -1};
    int64_t need, n_shared = 0;
    if (x == NULL) return false;
    if (e->n_running == e->batch || ls_ids_available(e->slots) == 0) {
        if (last == NULL || !ls_entry_before(x, last)) return false;
        ls_schedule_preempt(e, last, e->opts.levers.preempt_by);
    }
    leader = x->swap_slot < 0 ? find_leader(e, x) : NULL;
    x->lane = e->lanes[e->n_lanes - 1];
    if (x->swap_slot < 0 && leader == NULL) hit = look_up_prefix(e, x);
    /* What it shares is there already, but for a page that it has to copy. */
    if (hit.node != NULL && !is_verified(e, x->request))
        n_shared = ls_engine_pages(e, hit.n_tokens) - ls_engine_first_page(e, hit.n_tokens);
    need = leader != NULL ? 1 : pages_needed(e, x, n_shared);
    if (e->n_running > 0 && !has_room(e, need)) {
        if (hit.node != NULL) {
            release_hit_pages(e, x, &hit);
            ls_prefix_unpin(e->prefix, hit.node);
        }
        x->lane = -1;
        return false;
    }
    ls_waiting_remove(&e->waiting, x);
    e->n_lanes--;
    x->slot = x->request->slot = ls_ids_acquire(e->slots);
    x->drew = false;
    x->leader = leader;
    if (leader != NULL) leader->n_followers++;
    if (x->swap_slot >= 0)
        swap_in(e, x);
    else
        use_hit(e, x, &hit);
    if (!x->was_admitted) x->request->n_hit = x->n_cached;
    x->was_admitted = true;
    insert_running(e, x);
    e->stats.admitted++;
    return true;
}

void ls_schedule_admit(ls_engine *e) {
    while (admit_one(e)) continue;
    e->stats.slots_used = e->plan.slots - ls_ids_available(e->slots);
    if (e->stats.slots_used > e->stats.slots_used_max) e->stats.slots_used_max = e->stats.slots_used;
}

/* ---- the spans of a tick ---- */

static int64_t nearest(int64_t cut, int64_t depth, int64_t n_cached) {
    return depth > n_cached && depth < cut ? depth : cut;
}

int64_t ls_schedule_cut(const ls_engine *e, const entry *x) {
    const int64_t last = x->request->n_prompt - 1, every = e->opts.levers.snapshot_every;
    const int64_t late = LS_INJECTED(LS_INJECT_PREFIX_STATE_SHIFT) ? 1 : 0;
    int64_t cut = INT64_MAX;
    if (x->n_cached > last) return cut;
    if (x->verify.node != NULL) cut = nearest(cut, x->verify.n_tokens, x->n_cached);
    if (x->n_followers > 0) cut = nearest(cut, last, x->n_cached);
    if (e->prefix == NULL) return cut;
    cut = nearest(cut, last + late, x->n_cached);
    if (x->branch > 0) cut = nearest(cut, x->branch + late, x->n_cached);
    if (every > 0) {
        const int64_t next = ((x->n_cached - late + every) / every) * every + late;
        if (next < last) cut = nearest(cut, next, x->n_cached);
    }
    return cut;
}

/* Tokens that x computes in this tick, of at most `budget` where it is more than one. */
static int64_t span_rows(const ls_engine *e, const entry *x, int64_t budget) {
    const int64_t need = ls_entry_total(x) - x->n_cached, chunk = e->opts.levers.chunk;
    int64_t n = need, cut;
    if (need == 1) return 1;
    if (chunk > 0) n = ls_min_i64(n, chunk);
    n = ls_min_i64(n, budget);
    cut = ls_schedule_cut(e, x);
    return cut == INT64_MAX ? n : ls_min_i64(n, cut - x->n_cached);
}

/* How many drafts may follow the n tokens of x that a tick computes. They are to cost nobody anything: they take rows
 * and draws that are left, pages that are free, and so is the second slot of a model with state. */
static int64_t drafts_most(const ls_engine *e, const entry *x, int64_t n, int64_t budget, int64_t draws) {
    const ls_request *r = x->request;
    const int64_t drafts = e->opts.levers.drafts, chunk = e->opts.levers.chunk, each = e->opts.levers.page_tokens;
    const int64_t free_pages = ls_max_i64(ls_ids_available(e->pages) - e->n_running, 0);
    int64_t most = ls_min_i64(ls_min_i64(drafts, budget), draws);
    if (drafts == 0 || e->observer != NULL || x->n_cached < r->n_prompt - 1) return 0;
    if (x->n_cached + n < ls_entry_total(x) || n > 1 + drafts) return 0;
    if (e->cache->slot.bytes > 0 && ls_ids_available(e->slots) == 0) return 0;
    if (chunk > 0) most = ls_min_i64(most, chunk - n);
    most = ls_min_i64(most, (x->n_pages + free_pages) * each - x->n_cached - n);
    return ls_min_i64(most, r->max_tokens - r->n_completion - 1);
}

/* Drafts behind the n tokens of x that the tick computes, into out; returns their number. */
static int64_t add_drafts(ls_engine *e, entry *x, int64_t n, int64_t budget, int64_t draws, int32_t *out) {
    const int64_t most = drafts_most(e, x, n, budget, draws),
                  n_drafts = most > 0 ? ls_draft_propose(e, x, most, out) : 0;
    if (n_drafts == 0) return 0;
    while (x->n_pages < ls_engine_pages(e, x->n_cached + n + n_drafts))
        ls_entry_pages(e, x)[x->n_pages++] = ls_ids_acquire(e->pages);
    x->spare_cached = x->n_cached;
    if (e->cache->slot.bytes > 0) {
        x->spare = ls_ids_acquire(e->slots);
        LS_MOVE(e, ls_cache_copy_slot(e->cache, x->spare, e->cache, x->slot, &e->movement));
    }
    e->stats.drafts_proposed += n_drafts;
    return n_drafts;
}

void ls_schedule_spans(ls_engine *e) {
    int64_t rows = 0, budget = e->plan.rows, draws = e->draws_max - e->n_running;
    e->n_spans = 0;
    ls_draft_begin_tick(e);
    for (int64_t i = 0; i < e->n_running; i++)
        if (e->running[i]->leader == NULL && ls_entry_total(e->running[i]) - e->running[i]->n_cached == 1) budget--;
    /* Entries later in the order may be preempted on the way, earlier ones never are. */
    for (int64_t i = 0; i < e->n_running; i++) {
        entry *x = e->running[i];
        const bool decodes = ls_entry_total(x) - x->n_cached == 1;
        const int64_t n = x->leader != NULL ? 0 : span_rows(e, x, budget);
        ls_span *span = &e->spans[e->n_spans];
        int64_t n_drafts;
        if (n == 0) continue;
        trim_front(e, x);
        if (!assure_pages(e, x, x->n_cached + n)) break; /* x was the last one */
        for (int64_t t = 0; t < n; t++) e->tokens[rows + t] = ls_entry_token(x, x->n_cached + t);
        if (!decodes) budget -= n;
        n_drafts = add_drafts(e, x, n, budget, draws, e->tokens + rows + n);
        budget -= n_drafts;
        draws -= n_drafts;
        span->row = rows;
        span->n_rows = n + n_drafts;
        span->pos = x->n_cached;
        span->slot = x->slot;
        span->table = (int64_t)x->lane * e->pages_max;
        e->span_drafts[e->n_spans] = n_drafts;
        e->span_entry[e->n_spans++] = x;
        rows += n + n_drafts;
    }
    e->stats.rows += rows;
    e->stats.pages_used = e->plan.pages - ls_ids_available(e->pages);
    if (e->stats.pages_used > e->stats.pages_used_max) e->stats.pages_used_max = e->stats.pages_used;
}

bool ls_engine_preempt(ls_engine *e, ls_preempt_by by) {
    if (e->n_running == 0) return false;
    ls_schedule_preempt(e, e->running[e->n_running - 1], by);
    return true;
}

void ls_engine_preempt_all(ls_engine *e) {
    while (ls_engine_preempt(e, LS_PREEMPT_RECOMPUTE)) continue;
    for (int64_t i = 0; i < e->waiting.n; i++) ls_schedule_drop_swap(e, e->waiting.heap[i]);
}
