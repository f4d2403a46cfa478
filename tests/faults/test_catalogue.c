/* Bugs that serving engines for hybrid models have shipped, each as a property that this engine must have: it holds,
 * and with a fault of that kind armed it does not. Then what the records rest on: draws, log-probabilities, weights.
 *
 * Every property is tried with every fault; the table of what sees what is the one in docs/reference/faults.md. */
#define _GNU_SOURCE
#include <unistd.h>

#include "faults/catalogue.h"
#include "model/architectures.h"
#include "model/init.h"
#include "model/tape.h"
#include "op/conv1d.h"
#include "op/op_grad.h"
#include "op/scan.h"

/* ---- slots ---- */

/* A sequence gives the same in every slot: the first, the middle one, the last, and those whose offset is the first
 * past 2^31 and 2^32, in bytes and in elements. The pool is address space, of which only the slots in use exist; on a
 * GPU it is memory, and no larger than that. */
static bool any_slot(const subject *s, ls_inject fault) {
    enum { SLOTS = 69776, SLOTS_OF_MEMORY = 48000, SLOT_WORDS = 89600 };
    const int64_t n_slots = test_on_gpu() ? SLOTS_OF_MEMORY : SLOTS;
    const int64_t slots[] = {0, 5992, 11984, 23968, n_slots / 2, 47935, n_slots - 1};
    static const int64_t lengths[] = {7, 1};
    rollout r[COUNT(lengths)];
    rollouts_make(s, r, lengths, COUNT(r));
    for (int64_t i = 0; i < COUNT(slots); i++) {
        ls_engine_opts opts = engine_opts(s);
        opts.levers.batch = COUNT(r);
        opts.levers.slots = n_slots;
        opts.levers.slot_words = SLOT_WORDS;
        opts.levers.slot_base = slots[i];
        if (!together(s, &opts, fault, r, COUNT(r))) return false;
        if (r[0].request.slot != slots[i]) return refuted("slot %d, not %lld", r[0].request.slot, (long long)slots[i]);
    }
    return true;
}

/* First chunks of 1 to 5 tokens begin their sequence, whatever the slot held: NaN or what another sequence left. */
static bool short_first_chunks(const subject *s, ls_inject fault) {
    static const int64_t lengths[] = {1, 2, 3, 4, 5, 6, 1, 11};
    rollout r[COUNT(lengths)];
    rollouts_make(s, r, lengths, COUNT(r));
    for (int poison = 0; poison < 2; poison++)
        for (int64_t chunk = 1; chunk <= 5; chunk++) {
            ls_engine_opts opts = engine_opts(s);
            opts.levers.batch = 2;
            opts.levers.chunk = chunk;
            opts.levers.poison = poison == 1;
            if (!together(s, &opts, fault, r, COUNT(r))) return false;
        }
    return true;
}

/* ---- chunks ---- */

/* From any position on, a chunk of any length gives the outputs and the state of the whole: around the page size from
 * every position, around a block of attention from some. */
static bool any_chunk(const subject *s, ls_inject fault) {
    static const int64_t chunks[] = {1, 2, 3, 4, 5, PAGE - 1, PAGE, PAGE + 1, 63, 64, 65};
    bool holds = true;
    track t;
    track_open(&t, s->model, s->dtype, 1, 1, PAGE);
    for (int64_t i = 0; holds && i < COUNT(chunks); i++)
        for (int64_t start = 0; holds && start <= (chunks[i] > PAGE + 1 ? 3 : 2 * PAGE + 2); start++) {
            if (start > 0) recall(s, &t, 0, 0, start);
            track_run(&t, fault, s->text + start, start, chunks[i], 0, 0);
            holds = recalls_rows(s, &t, 0, start, chunks[i]) && recalls(s, &t, 0, 0, start + chunks[i]);
        }
    track_close(&t);
    return holds;
}

/* Prefill of n tokens and n steps of decode leave the same outputs and state. */
static bool scan_is_recurrence(const subject *s, ls_inject fault) {
    enum { N = 20 };
    const int64_t each = row_bytes(&s->at);
    uint8_t step[4096], at_once[4096];
    bool holds = true;
    track whole, steps;
    assert_in_range((uintmax_t)each, 1, sizeof step);
    track_open(&whole, s->model, s->dtype, 1, 1, PAGE);
    track_open(&steps, s->model, s->dtype, 1, 1, PAGE);
    track_run(&whole, fault, s->text, 0, N, 0, 0);
    for (int64_t i = 0; holds && i < N; i++) {
        track_run(&steps, fault, s->text + i, i, 1, 0, 0);
        track_rows(&steps, 0, 1, step);
        track_rows(&whole, i, 1, at_once);
        holds = memcmp(step, at_once, (size_t)each) == 0 || refuted("output %lld of decode", (long long)i);
    }
    holds = holds && same_state(steps.cache, 0, steps.pages, whole.cache, 0, whole.pages, N);
    track_close(&steps);
    track_close(&whole);
    return holds;
}

/* Drafts from the expected tokens, of which every second call's are wrong from its first, second or third one on. */
typedef struct foresight {
    const rollout *rollouts;
    int64_t vocab, calls;
} foresight;

static int64_t foresee(void *context, const ls_request *r, int64_t most, int32_t *out) {
    foresight *f = context;
    const rollout *x = f->rollouts;
    const int64_t right = f->calls++ % 4;
    while (&x->request != r) x++;
    for (int64_t k = 0; k < most; k++) {
        out[k] = x->want[r->n_completion + k];
        if (k >= right) out[k] = (int32_t)((out[k] + 1) % f->vocab);
    }
    return most;
}

/* The engine's own drafts: sequences with some and without any in a tick, and preemption in between. */
static bool drafts_of_the_engine(const subject *s, ls_inject fault) {
    static const int64_t lengths[] = {7, 1, 12, 3};
    rollout r[COUNT(lengths)];
    rollouts_make(s, r, lengths, COUNT(r));
    for (int64_t every = 0; every <= 2; every += 2) {
        ls_engine_opts opts = engine_opts(s);
        foresight f = {.rollouts = r, .vocab = s->model->config.vocab};
        ls_engine *e;
        bool holds;
        opts.levers.drafts = 3;
        opts.levers.poison = true;
        opts.levers.preempt_every = every;
        opts.levers.preempt_by = LS_PREEMPT_ALTERNATE;
        e = engine_open(s, &opts, fault);
        e->drafter = foresee;
        e->drafter_context = &f;
        for (int64_t i = 0; i < COUNT(r); i++) submit(e, &r[i]);
        holds = tick_to_end(e) && agree(r, COUNT(r));
        if (holds && (e->stats.drafts_accepted == 0 || e->stats.drafts_accepted == e->stats.drafts_proposed))
            holds = refuted("%lld of %lld drafts stayed", (long long)e->stats.drafts_accepted,
                            (long long)e->stats.drafts_proposed);
        if (!engine_close(e, fault, holds)) return false;
    }
    return true;
}

/* Drafts of K tokens that are rejected at every place leave no trace: the state comes back from a copy, the accepted
 * tokens run again, keys and values of the others are written over. */
static bool rejected_drafts(const subject *s, ls_inject fault) {
    enum { K_MAX = 5 };
    int32_t draft[K_MAX];
    bool holds = true;
    track t;
    track_open(&t, s->model, s->dtype, 2, 1, PAGE);
    for (int64_t k = 1; holds && k <= K_MAX; k += 2)
        for (int64_t pos = 1; holds && pos <= 2 * PAGE; pos += 3)
            for (int64_t accepted = 0; holds && accepted < k; accepted++) {
                recall(s, &t, 0, 0, pos);
                copy_slot(t.cache, 1, t.cache, 0);
                for (int64_t i = 0; i < k; i++)
                    draft[i] = i < accepted ? s->text[pos + i] : (s->text[pos + i] + 1) % s->model->config.vocab;
                track_run(&t, fault, draft, pos, k, 0, 0);
                holds = recalls_rows(s, &t, 0, pos, accepted);
                copy_slot(t.cache, 0, t.cache, 1);
                holds = holds && recalls(s, &t, 0, 0, pos);
                if (accepted > 0) track_run(&t, fault, s->text + pos, pos, accepted, 0, 0);
                holds = holds && recalls(s, &t, 0, 0, pos + accepted);
                track_run(&t, fault, s->text + pos + accepted, pos + accepted, 1, 0, 0);
                holds = holds && recalls_rows(s, &t, 0, pos + accepted, 1) && recalls(s, &t, 0, 0, pos + accepted + 1);
            }
    track_close(&t);
    return holds && drafts_of_the_engine(s, fault);
}

/* ---- prefix entries ---- */

/* A hit and a tail of 1 to 3 tokens, shorter than the window: the continuation is right, and the entry that was hit is
 * afterwards what it was. Its last page is shared and half full. */
static bool hit_with_short_tail(const subject *s, ls_inject fault) {
    enum { DEPTH = PAGE + 4 };
    rollout r[3];
    for (int64_t i = 0; i < COUNT(r); i++) {
        rollout_init(&r[i], DEPTH + 1 + i, 200 + (uint32_t)i);
        random_tokens(s, r[i].prompt, DEPTH + 1 + i, 200 + (uint64_t)i);
        memcpy(r[i].prompt, s->text, DEPTH * sizeof *s->text);
        expect(s, s->model, &r[i]);
    }
    for (int64_t i = 0; i < COUNT(r); i++) {
        ls_engine_opts opts = engine_opts(s);
        ls_engine *e;
        bool holds;
        opts.levers.prefix = LS_PREFIX_ON;
        e = engine_open(s, &opts, fault);
        holds = warm(e, s->text, DEPTH + 1) && entry_is_sound(s, e, s->text, DEPTH);
        if (holds) submit(e, &r[i]);
        holds = holds && tick_to_end(e) && agree(&r[i], 1) && entry_is_sound(s, e, s->text, DEPTH);
        if (holds && r[i].request.n_hit != DEPTH)
            holds = refuted("a hit of %lld tokens", (long long)r[i].request.n_hit);
        if (!engine_close(e, fault, holds)) return false;
    }
    return true;
}

/* Prompts that are prefilled in one forward leave the snapshots that each leaves alone, in whatever order they come. */
static bool snapshots_of_a_batch(const subject *s, ls_inject fault) {
    static const int orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    static const int64_t lengths[] = {3, 9, 14};
    for (int64_t o = 0; o < COUNT(orders); o++) {
        ls_engine_opts opts = engine_opts(s);
        rollout r[COUNT(lengths)];
        ls_engine *e;
        bool holds;
        opts.levers.prefix = LS_PREFIX_ON;
        e = engine_open(s, &opts, fault);
        for (int i = 0; i < COUNT(r); i++) {
            const int which = orders[o][i];
            rollout_init(&r[i], lengths[which], 300 + (uint32_t)which);
            r[i].request.max_tokens = 0;
            random_tokens(s, r[i].prompt, lengths[which], 300 + (uint64_t)which);
            submit(e, &r[i]);
        }
        holds = tick_to_end(e);
        for (int i = 0; holds && i < COUNT(r); i++)
            holds = entry_is_sound(s, e, r[i].prompt, r[i].request.n_prompt - 1);
        if (!engine_close(e, fault, holds)) return false;
    }
    return true;
}

/* The state at every boundary inside a prompt is its recomputation, for all page and chunk sizes; pages that would
 * leave a block of attention in pieces are refused at the start. */
static bool boundary_states(const subject *s, ls_inject fault) {
    enum { N = 22, EVERY = 4 };
    static const int64_t refused[] = {-8, 0, 3, 5, 6, 7, 12, 24, 48, 63, 65, 128}, chunks[] = {0, 1, 3, 8};
    ls_engine_opts opts = engine_opts(s);
    opts.levers.prefix = LS_PREFIX_ON;
    opts.levers.snapshot_every = EVERY;
    for (int64_t page = 1; page <= 64; page *= 2)
        for (int64_t c = 0; c < COUNT(chunks); c++) {
            ls_engine *e;
            bool holds;
            opts.levers.page_tokens = page;
            opts.levers.chunk = chunks[c];
            e = engine_open(s, &opts, fault);
            holds = warm(e, s->text, N);
            for (int64_t depth = EVERY; holds && depth < N - 1; depth += EVERY)
                holds = entry_is_sound(s, e, s->text, depth);
            if (!engine_close(e, fault, holds && entry_is_sound(s, e, s->text, N - 1))) return false;
        }
    for (int64_t i = 0; i < COUNT(refused); i++) {
        ls_engine *e;
        ls_error err;
        opts.levers.page_tokens = refused[i];
        if (ls_engine_create(&e, s->model, machine, &opts, &err) == LS_OK) {
            ls_engine_free(e);
            return refuted("pages of %lld tokens were taken", (long long)refused[i]);
        }
        if (strstr(err.text, "page") == NULL)
            return refuted("pages of %lld tokens: %s", (long long)refused[i], err.text);
    }
    return true;
}

/* Prompts that begin alike and go on differently: a hit ends where they part. */
static bool hits_of_other_prompts(const subject *s, ls_inject fault) {
    static const int64_t lengths[] = {9, 9, 14, 14, 3};
    ls_engine_opts opts = engine_opts(s);
    rollout r[COUNT(lengths)];
    for (int64_t i = 0; i < COUNT(r); i++) {
        rollout_init(&r[i], lengths[i], 400 + (uint32_t)i);
        random_tokens(s, r[i].prompt, lengths[i], 400 + (uint64_t)i);
        memcpy(r[i].prompt, s->text, (size_t)(i == 3 ? 6 : 2) * sizeof *s->text);
        expect(s, s->model, &r[i]);
    }
    opts.levers.prefix = LS_PREFIX_ON;
    opts.levers.batch = 1; /* one after another: each may hit what those before it left */
    return together(s, &opts, fault, r, COUNT(r));
}

/* Nothing that was computed with other weights is used: not what the cache holds, not what is running. */
static bool weights_change(const subject *s, ls_inject fault) {
    static const int64_t lengths[] = {12, 12, 12, 7};
    enum { BEFORE = 2 };
    const ls_model *models[] = {s->model, s->other, s->model};
    ls_engine_opts opts = engine_opts(s);
    rollout r[COUNT(lengths)];
    bool holds = true;
    ls_engine *e;
    ls_error err;
    for (int64_t i = 0; i < COUNT(r); i++) {
        rollout_init(&r[i], lengths[i], 500);
        random_tokens(s, r[i].prompt, lengths[i], 500);
        expect(s, models[i % COUNT(models)], &r[i]);
    }
    opts.levers.prefix = LS_PREFIX_ON;
    e = engine_open(s, &opts, fault);
    for (int64_t i = 0; holds && i < COUNT(models); i++) {
        if (i > 0) assert_ok(ls_engine_set_weights(e, models[i], (uint64_t)i + 1, &err), err);
        submit(e, &r[i]);
        holds = tick_to_end(e) && agree(&r[i], 1);
        if (holds && r[i].weights[0] != (uint64_t)i + 1) holds = refuted("weights %lld by name", (long long)i + 1);
    }
    /* In the middle of a completion: what follows is what the new weights say of all of it. */
    if (holds) submit(e, &r[3]);
    while (holds && r[3].request.n_completion < BEFORE) holds = tick(e);
    if (holds) assert_ok(ls_engine_set_weights(e, s->other, 4, &err), err);
    holds = holds && tick_to_end(e) && replays(s->other, &opts, &r[3], BEFORE);
    for (int64_t i = 0; holds && i < COMPLETION; i++)
        if (r[3].weights[i] != (i < BEFORE ? 3 : 4)) holds = refuted("token %lld by name of its weights", (long long)i);
    return engine_close(e, fault, holds);
}

/* An entry of one engine's cache, copied into another's. */
static bool import_entry(ls_engine *to, ls_engine *from, const int32_t *tokens, int64_t depth) {
    ls_prefix_hit hit;
    int32_t source[TEXT], pages[TEXT], snapshot;
    const int64_t n_pages = ls_engine_pages(to, depth);
    if (!entry_open(from, tokens, depth, &hit, source)) return false;
    snapshot = ls_prefix_take(to->prefix);
    for (int64_t p = 0; p < n_pages; p++) pages[p] = ls_ids_acquire(to->pages);
    copy_state(to->snapshots, snapshot, pages, from->snapshots, hit.snapshot, source, 0);
    for (int64_t p = 0; p < n_pages; p++) copy_page(to->cache, pages[p], from->cache, source[p]);
    entry_close(from, &hit, source);
    ls_prefix_publish(to->prefix, tokens, depth, pages, snapshot);
    for (int64_t p = 0; p < n_pages; p++) ls_ids_release(to->pages, pages[p]);
    return hit.n_tokens == depth ||
           refuted("an entry behind %lld tokens, not %lld", (long long)hit.n_tokens, (long long)depth);
}

/* One engine prefills, another decodes: from the state behind N - 1 tokens of a prompt, and from the one behind N. */
static bool exported_states(const subject *s, ls_inject fault) {
    enum { N = 13 };
    ls_engine_opts opts = engine_opts(s);
    ls_engine *from, *to;
    rollout r[2];
    bool holds;
    rollout_make(s, &r[0], N, 600);
    rollout_init(&r[1], N + 1, 600); /* the same, its first token drawn before the move */
    memcpy(r[1].prompt, r[0].prompt, N * sizeof *r[0].prompt);
    r[1].prompt[N] = r[0].want[0];
    r[1].request.max_tokens = COMPLETION - 1;
    memcpy(r[1].want, r[0].want + 1, (COMPLETION - 1) * sizeof *r[0].want);
    memcpy(r[1].want_logprob, r[0].want_logprob + 1, (COMPLETION - 1) * sizeof *r[0].want_logprob);
    opts.levers.prefix = LS_PREFIX_ON;
    from = engine_open(s, &opts, fault);
    opts.levers.slots = 9;
    opts.levers.policy = LS_POLICY_HIGHEST;
    to = engine_open(s, &opts, fault);
    holds = warm(from, r[1].prompt, N) && warm(from, r[1].prompt, N + 1);
    for (int64_t i = 0; holds && i < COUNT(r); i++) {
        holds = import_entry(to, from, r[i].prompt, N - 1 + i);
        if (holds) submit(to, &r[i]);
        holds = holds && tick_to_end(to) && agree(&r[i], 1);
        if (holds && r[i].request.n_hit != N - 1 + i) holds = refuted("a hit of %lld", (long long)r[i].request.n_hit);
    }
    engine_close(from, fault, holds);
    return engine_close(to, fault, holds);
}

/* ---- coming and going ---- */

/* One forward of four sequences, once more with slots, pages and order permuted. Then an engine in which lanes change
 * hands while it runs. (That a graph's replay equals the forward is for the back end to show: tests/backend.) */
static bool lanes_change_hands(const subject *s, ls_inject fault) {
    enum { LANES = 4 };
    static const int64_t at[LANES] = {5, 17, 8, 30}, lengths[] = {4, 9, 2, 13, 6, 8};
    static const int lane_of[2][LANES] = {{0, 1, 2, 3}, {2, 0, 3, 1}};
    rollout r[COUNT(lengths)];
    ls_engine_opts opts = engine_opts(s);
    bool holds = true;
    ls_engine *e;
    ls_error err;
    track t;
    track_open(&t, s->model, s->dtype, LANES, LANES, PAGE);
    for (int round = 0; holds && round < 2; round++) {
        ls_span spans[LANES];
        int32_t tokens[LANES];
        for (int q = 0; q < LANES; q++) {
            const int lane = lane_of[round][q], row = round == 0 ? q : LANES - 1 - q;
            recall(s, &t, lane, lane, at[q]);
            spans[row] = (ls_span){row, 1, at[q], lane, track_table(&t, lane)};
            tokens[row] = s->text[at[q]];
        }
        track_forward(&t, fault, tokens, spans, LANES);
        for (int q = 0; holds && q < LANES; q++)
            holds = recalls_rows(s, &t, round == 0 ? q : LANES - 1 - q, at[q], 1) &&
                    recalls(s, &t, lane_of[round][q], lane_of[round][q], at[q] + 1);
    }
    track_close(&t);
    if (!holds) return false;

    rollouts_make(s, r, lengths, COUNT(r));
    opts.levers.batch = LANES;
    opts.levers.preempt_by = LS_PREEMPT_ALTERNATE;
    e = engine_open(s, &opts, fault);
    for (int64_t i = 0; i < LANES; i++) submit(e, &r[i]);
    holds = tick(e) && tick(e);
    if (holds) {
        assert_ok(ls_engine_cancel(e, &r[0].request, &err), err);
        assert_true(ls_engine_preempt(e, LS_PREEMPT_SWAP) && ls_engine_preempt(e, LS_PREEMPT_RECOMPUTE));
        r[4].request.priority = -1; /* takes a lane before those that had them */
        submit(e, &r[4]);
    }
    holds = holds && tick(e) && tick(e);
    if (holds) {
        r[5].request.priority = -1;
        submit(e, &r[5]);
        submit(e, &r[0]);
    }
    return engine_close(e, fault, holds && tick_to_end(e) && agree(r, COUNT(r)));
}

/* Sleep and wake before any token, and inside a prompt. What is cached after it is verified by computing it again. */
static bool sleep_between_tokens(const subject *s, ls_inject fault) {
    static const int64_t lengths[] = {10, 3};
    rollout r[COUNT(lengths)];
    rollouts_make(s, r, lengths, COUNT(r));
    for (int64_t before = 0; before < COMPLETION; before++) {
        ls_engine_opts opts = engine_opts(s);
        bool holds = true;
        ls_engine *e;
        opts.levers.batch = COUNT(r);
        opts.levers.chunk = 4;
        opts.levers.prefix = LS_PREFIX_ON;
        opts.levers.verify = 1.0;
        opts.levers.poison = true;
        e = engine_open(s, &opts, fault);
        for (int64_t i = 0; i < COUNT(r); i++) submit(e, &r[i]);
        do holds = tick(e);
        while (holds && r[0].request.n_completion < before);
        holds = holds && ls_engine_sleep(e, NULL) == LS_OK;
        holds = holds && tick_to_end(e) && agree(r, COUNT(r));
        for (int64_t i = 0; holds && i < COUNT(r); i++) submit(e, &r[i]);
        holds = holds && tick_to_end(e) && agree(r, COUNT(r));
        if (holds && e->stats.verified == 0) holds = refuted("nothing was verified");
        if (!engine_close(e, fault, holds)) return false;
    }
    return true;
}

/* A sequence is taken out at every step of every phase, by recomputation and by swap, and goes on. */
static bool preemption(const subject *s, ls_inject fault) {
    enum { STEPS = 9 };
    static const int64_t lengths[] = {10, 1, 7};
    rollout r[COUNT(lengths)];
    rollouts_make(s, r, lengths, COUNT(r));
    for (int by = LS_PREEMPT_RECOMPUTE; by <= LS_PREEMPT_ALTERNATE; by++)
        for (int64_t step = 1; step <= STEPS; step++) { /* the last ones: at every step, and every second one */
            ls_engine_opts opts = engine_opts(s);
            bool holds = true;
            ls_engine *e;
            opts.levers.batch = COUNT(r);
            opts.levers.chunk = 3;
            opts.levers.preempt_by = (ls_preempt_by)by;
            if (step > STEPS - 2) opts.levers.preempt_every = STEPS - step + 1;
            e = engine_open(s, &opts, fault);
            for (int64_t i = 0; i < COUNT(r); i++) submit(e, &r[i]);
            if (step <= STEPS - 2) {
                for (int64_t i = 0; holds && i < step; i++) holds = tick(e);
                if (holds && !ls_engine_preempt(e, opts.levers.preempt_by)) holds = refuted("nothing left to take out");
            }
            if (!engine_close(e, fault, holds && tick_to_end(e) && agree(r, COUNT(r)))) return false;
        }
    return true;
}

/* Free slots and pages are NaN and there are too few of them: everything is remapped and nothing surfaces. */
static bool remapped_memory(const subject *s, ls_inject fault) {
    static const int64_t lengths[] = {9, 1, 17, 9, 5, 1, 12};
    ls_engine_opts opts = engine_opts(s);
    rollout r[COUNT(lengths)];
    rollouts_make(s, r, lengths, COUNT(r));
    opts.levers.batch = 3;
    opts.levers.pages = 6;
    opts.levers.prefix = LS_PREFIX_ON;
    opts.levers.preempt_every = 4;
    opts.levers.preempt_by = LS_PREEMPT_ALTERNATE;
    opts.levers.poison = opts.levers.guards = true;
    for (int policy = 0; policy < LS_POLICY_COUNT; policy++) {
        int64_t n_preempted = 0;
        opts.levers.policy = (ls_policy)policy;
        if (!together(s, &opts, fault, r, COUNT(r))) return false;
        for (int64_t i = 0; i < COUNT(r); i++) n_preempted += r[i].request.n_preempted;
        if (n_preempted == 0) return refuted("there was memory enough");
    }
    return true;
}

/* ---- packed documents ---- */

enum { FIRST = 3, SECOND = 5, PACKED = FIRST + SECOND, DIM = 40, STATES = 5, D_CONV = 4 };

static op_array random_rows(int64_t rows, int64_t cols, float low, float high, uint64_t seed) {
    const op_array a = op_array_make(LS_F32, rows, cols, 0);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t c = 0; c < cols; c++) op_put(&a, i, c, test_uniform(&seed, low, high));
    return a;
}

/* The gradients of both documents' rows by every input that has rows, [6][PACKED]; those of the second are compared.
 * The arrays are the host's, the call's are copies of them. */
static void packed_gradients(ls_inject fault, op_array *in, const op_array *grad) {
    enum { U, DT, B, CC, Z, DOUT, A2, BIAS, D, CONV_W };
    const ls_span both[] = {{0, FIRST, 0, 0, 0}, {FIRST, SECOND, 0, 1, 0}};
    ls_span *spans = to_device(machine, both, sizeof both);
    float *da2 = to_device(machine, NULL, DIM * STATES * (int64_t)sizeof *da2);
    float *dw = to_device(machine, NULL, D_CONV * DIM * (int64_t)sizeof *dw);
    float *dbias = to_device(machine, NULL, 2 * DIM * (int64_t)sizeof *dbias);
    float *row[10], *out[6];
    for (int i = 0; i < 10; i++) row[i] = to_device(machine, in[i].data, in[i].bytes);
    for (int i = 0; i < 6; i++) out[i] = to_device(machine, grad[i].data, grad[i].bytes);
    {
        const ls_scan_backward_args scan = {.in_dtype = LS_F32,
                                            .u = row[U],
                                            .dt_raw = row[DT],
                                            .b = row[B],
                                            .cc = row[CC],
                                            .z = row[Z],
                                            .u_stride = DIM,
                                            .dt_stride = DIM,
                                            .b_stride = STATES,
                                            .c_stride = STATES,
                                            .z_stride = DIM,
                                            .a2 = row[A2],
                                            .dt_bias = row[BIAS],
                                            .d = row[D],
                                            .dout = row[DOUT],
                                            .dout_stride = DIM,
                                            .du = out[0],
                                            .ddt = out[1],
                                            .db = out[2],
                                            .dcc = out[3],
                                            .dz = out[4],
                                            .da2 = da2,
                                            .ddt_bias = dbias,
                                            .dd = dbias + DIM,
                                            .rows = PACKED,
                                            .dim = DIM,
                                            .n_states = STATES,
                                            .spans = spans,
                                            .n_spans = 2};
        const ls_conv1d_backward_args conv = {.x = row[U],
                                              .x_dtype = LS_F32,
                                              .state_dtype = LS_F32,
                                              .x_stride = DIM,
                                              .w = row[CONV_W],
                                              .bias = row[BIAS],
                                              .dy = row[DOUT],
                                              .dy_stride = DIM,
                                              .dx = out[5],
                                              .dx_stride = DIM,
                                              .dw = dw,
                                              .dbias = dbias,
                                              .rows = PACKED,
                                              .dim = DIM,
                                              .d_conv = D_CONV,
                                              .spans = spans,
                                              .n_spans = 2};
        ls_error err;
        assert_ok(FAULTS_CALL(fault, machine, ls_scan_backward(machine, &scan, &err), &err), err);
        assert_ok(FAULTS_CALL(fault, machine, ls_conv1d_backward(machine, &conv, &err), &err), err);
    }
    for (int i = 0; i < 6; i++) from_device(machine, grad[i].data, out[i], grad[i].bytes);
    for (int i = 0; i < 6; i++) ls_memory_free(machine, out[i]);
    for (int i = 0; i < 10; i++) ls_memory_free(machine, row[i]);
    ls_memory_free(machine, dbias);
    ls_memory_free(machine, dw);
    ls_memory_free(machine, da2);
    ls_memory_free(machine, spans);
}

static bool gradients_apart(ls_inject fault) {
    static const char *const names[] = {"u", "dt", "b", "c", "z", "convolution's input"};
    op_array in[10], grad[2][6];
    bool holds = true;
    for (int i = 0; i < 6; i++)
        in[i] = random_rows(PACKED, i == 2 || i == 3 ? STATES : DIM, -1.0f, 1.0f, 70 + (uint64_t)i);
    in[6] = random_rows(DIM, STATES, -4.0f, -0.01f, 80);
    in[7] = random_rows(1, DIM, -1.0f, 1.0f, 81);
    in[8] = random_rows(1, DIM, -1.0f, 1.0f, 82);
    in[9] = random_rows(D_CONV, DIM, -1.0f, 1.0f, 83);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 6; i++)
            grad[round][i] = random_rows(PACKED, i == 2 || i == 3 ? STATES : DIM, 0.0f, 1.0f, 90);
        packed_gradients(fault, in, grad[round]);
        for (int i = 0; i < 6; i++) /* the last token of the first document */
            for (int64_t c = 0; c < in[i].cols; c++) op_put(&in[i], FIRST - 1, c, op_get(&in[i], FIRST - 1, c) + 0.5f);
    }
    for (int i = 0; i < 6; i++) {
        const size_t bytes = (size_t)(SECOND * grad[0][i].cols) * sizeof(float);
        assert_memory_not_equal(op_at(&grad[0][i], 0, 0), op_at(&grad[1][i], 0, 0),
                                FIRST * (size_t)grad[0][i].cols * 4);
        if (memcmp(op_at(&grad[0][i], FIRST, 0), op_at(&grad[1][i], FIRST, 0), bytes) != 0)
            holds = refuted("gradient of %s in the second document", names[i]);
    }
    for (int i = 0; i < 10; i++) op_array_free(&in[i]);
    for (int i = 0; i < 12; i++) op_array_free(&grad[i / 6][i % 6]);
    return holds;
}

/* Two documents in one forward: the second is what it is alone, whatever the last token of the first, and so are its
 * scores and gradients. */
static bool packed_documents(const subject *s, ls_inject fault) {
    int32_t tokens[FIRST + TEXT / 2];
    bool holds = true;
    track t;
    track_open(&t, s->model, s->dtype, 2, 2, PAGE);
    random_tokens(s, tokens, FIRST, 700);
    for (int64_t second = 1; holds && second <= TEXT / 2; second += 7)
        for (int32_t last = 0; holds && last < 3; last++) {
            const ls_span spans[] = {{0, FIRST, 0, 0, track_table(&t, 0)}, {FIRST, second, 0, 1, track_table(&t, 1)}};
            const ls_score_opts opts = {.dtype = s->dtype, .batch = 2, .chunk = 0, .page_tokens = PAGE};
            float solo[TEXT], packed[TEXT], first[TEXT];
            ls_score_item items[] = {{.tokens = s->text, .n_tokens = second, .logprob = solo},
                                     {.tokens = tokens, .n_tokens = FIRST, .logprob = first},
                                     {.tokens = s->text, .n_tokens = second, .logprob = packed}};
            ls_error err;
            tokens[FIRST - 1] = (tokens[FIRST - 1] + last) % s->model->config.vocab;
            memcpy(tokens + FIRST, s->text, (size_t)second * sizeof *tokens);
            track_forward(&t, fault, tokens, spans, 2);
            holds = recalls_rows(s, &t, FIRST, 0, second) && recalls(s, &t, 1, 1, second);
            if (!holds || second < 2) continue;
            assert_ok(ls_score(s->model, machine, &opts, &items[0], 1, &err), err);
            assert_ok(FAULTS_CALL(fault, machine, ls_score(s->model, machine, &opts, &items[1], 2, &err), &err), err);
            holds = count_bit_diffs(solo, packed, second - 1) == 0 || refuted("scores of the second document");
        }
    track_close(&t);
    return holds && gradients_apart(fault);
}

/* ---- records ---- */

/* Tokens do not depend on slot, order of arrival or company. */
static bool draws_by_address(const subject *s, ls_inject fault) {
    static const int64_t lengths[] = {4, 1, 9, 2, 3, 6, 5, 11, 8, 10}, batches[] = {1, 3, COUNT(lengths)};
    rollout r[COUNT(lengths)];
    rollouts_make(s, r, lengths, COUNT(r));
    for (int64_t b = 0; b < COUNT(batches); b++)
        for (int64_t first = 0; first < 2; first++) {
            ls_engine_opts opts = engine_opts(s);
            ls_engine *e;
            opts.levers.batch = batches[b];
            opts.levers.slots = 2 * batches[b];
            opts.levers.policy = first == 0 ? LS_POLICY_HIGHEST : LS_POLICY_RANDOM;
            opts.levers.policy_seed = 5;
            e = engine_open(s, &opts, fault);
            for (int64_t i = 0; i < COUNT(r); i++) submit(e, &r[(first + 3 * i) % COUNT(r)]);
            if (!engine_close(e, fault, tick_to_end(e) && agree(r, COUNT(r)))) return false;
        }
    return true;
}

/* Recorded log-probabilities are those that scoring gives, of the distribution that was asked for. */
static bool recorded(const subject *s, ls_inject fault, ls_logprob_of of, const ls_sampling *sampling) {
    static const int64_t lengths[] = {6, 2, 11};
    ls_engine_opts opts = engine_opts(s);
    rollout r[COUNT(lengths)];
    bool holds;
    ls_engine *e;
    opts.logprob_of = of;
    opts.sampling = *sampling;
    e = engine_open(s, &opts, fault);
    for (int64_t i = 0; i < COUNT(r); i++) {
        rollout_init(&r[i], lengths[i], 800 + (uint32_t)i);
        random_tokens(s, r[i].prompt, lengths[i], 800 + (uint64_t)i);
        submit(e, &r[i]);
    }
    holds = tick_to_end(e);
    for (int64_t i = 0; holds && i < COUNT(r); i++) holds = replays(s->model, &opts, &r[i], 0);
    return engine_close(e, fault, holds);
}

static bool processed_records(const subject *s, ls_inject fault) {
    static const ls_sampling samplings[] = {
        {.temperature = 0.7f, .top_p = 1.0f, .seed = 8},
        {.temperature = 1.6f, .top_p = 0.9f, .seed = 9},
        {.temperature = 0.8f, .top_k = 12, .top_p = 1.0f, .min_p = 0.05f, .seed = 10}};
    for (int64_t i = 0; i < COUNT(samplings); i++)
        if (!recorded(s, fault, LS_LOGPROB_PROCESSED, &samplings[i])) return false;
    return true;
}

static bool raw_records(const subject *s, ls_inject fault) {
    static const ls_sampling samplings[] = {{.temperature = 1.0f, .top_p = 1.0f, .seed = 11},
                                            {.temperature = 0.7f, .top_p = 0.8f, .seed = 12}};
    for (int64_t i = 0; i < COUNT(samplings); i++)
        if (!recorded(s, fault, LS_LOGPROB_RAW, &samplings[i])) return false;
    return true;
}

/* ---- all of them, with every fault ---- */

#define BIT(fault) (1u << LS_INJECT_##fault)

/* ---- gradients of branches ---- */

/* Of a trunk with three branches, the last sequences of a forward, behind `n` others of it. */
static float *branch_gradient(const subject *s, const ls_parameters *p, ls_inject fault, int64_t n) {
    static const int64_t offsets[] = {0, 7, 18, 23, 31, 34}, parents[] = {-1, -1, 1, 1, 1}, alone[] = {-1, 0, 0, 0};
    const ls_tape_opts opts = {
        .dtype = s->dtype, .rows_max = TEXT, .spans_max = 5, .temperature = 1.0f, .longest = TEXT, .group = 3};
    const int64_t bytes = p->n_elements * (int64_t)sizeof(float), row = offsets[1];
    float d[TEXT], *gradient = malloc((size_t)bytes), *there = to_device(machine, NULL, bytes);
    int64_t targets[TEXT];
    ls_tape *tape;
    ls_error err;
    for (int64_t r = 0; r < TEXT; r++) {
        targets[r] = s->text[(r + 1) % TEXT];
        d[r] = 0.5f + 0.01f * (float)r;
    }
    const int64_t shift = n > 0 ? 0 : row;
    const ls_leaf_part part = {.begin = n,
                               .end = n + 4,
                               .targets = targets + shift,
                               .d_logprob = d + shift,
                               .is_first = true,
                               .is_last = true};
    assert_ok(ls_tape_create(&tape, p, machine, &opts, &err), err);
    assert_ok(ls_tape_forward_trees(tape, s->text, offsets + 1 - n, n > 0 ? parents : alone, 4 + n, &err), err);
    assert_ok(FAULTS_CALL(fault, machine, ls_tape_backward(tape, &part, there, &err), &err), err);
    from_device(machine, gradient, there, bytes);
    ls_memory_free(machine, there);
    ls_tape_free(tape);
    return gradient;
}

/* What sequences give a beginning that they share does not depend on what else a forward holds. */
static bool branches_in_company(const subject *s, ls_inject fault) {
    char path[512];
    ls_parameters *p;
    float *alone, *company;
    ls_error err;
    bool holds;
    snprintf(path, sizeof path, "%s/%s", LS_FIXTURES, s->fixture);
    assert_ok(ls_parameters_open(&p, s->model, machine, path, &err), err);
    alone = branch_gradient(s, p, LS_INJECT_NONE, 0);
    company = branch_gradient(s, p, fault, 1);
    holds = memcmp(alone, company, (size_t)p->n_elements * sizeof *alone) == 0 || refuted("a gradient in company");
    free(alone);
    free(company);
    ls_parameters_free(p);
    return holds;
}

typedef struct property {
    const char *name;
    bool (*holds)(const subject *s, ls_inject fault);
    unsigned made_for; /* faults that it must see */
    unsigned sees;     /* faults that it was found to see */
    bool measured;
} property;

/* A model of Mamba-2 with fresh weights, whose heads are of a size that every back end holds tokens of. */
static ls_model *late_model(void) {
    static const char config[] =
        "{\"architectures\":[\"Mamba2ForCausalLM\"],\"model_type\":\"mamba2\",\"dtype\":\"bfloat16\",\"vocab_size\":"
        "300,"
        "\"bos_token_id\":1,\"eos_token_id\":2,\"pad_token_id\":0,\"hidden_act\":\"silu\",\"layer_norm_epsilon\":1e-05,"
        "\"hidden_size\":48,\"expand\":2,\"head_dim\":16,\"num_heads\":6,\"n_groups\":2,\"state_size\":128,"
        "\"num_hidden_layers\":2,\"conv_kernel\":4,\"chunk_size\":8,\"use_bias\":false,\"use_conv_bias\":true,"
        "\"tie_word_embeddings\":true}";
    char directory[] = "/tmp/lockstep-catalogue-XXXXXX", of_config[64], of_weights[64];
    ls_model_config c;
    ls_model *model;
    ls_error err;
    FILE *file;
    assert_non_null(mkdtemp(directory));
    snprintf(of_config, sizeof of_config, "%s/config.json", directory);
    snprintf(of_weights, sizeof of_weights, "%s/model.safetensors", directory);
    file = fopen(of_config, "w");
    assert_non_null(file);
    assert_true(fputs(config, file) >= 0 && fclose(file) == 0);
    assert_ok(ls_model_config_open(&c, directory, &err), err);
    assert_ok(ls_model_init(of_weights, &c, 7, 0.1, 1, &err), err);
    assert_ok(ls_model_open(&model, machine, directory, &err), err);
    assert_true(unlink(of_config) == 0 && unlink(of_weights) == 0 && rmdir(directory) == 0);
    return model;
}

/* States are written with each fourth token: what a prefix hit copies lacks two of them, which go along. */
static bool states_written_late(const subject *s, ls_inject fault) {
    enum { DEPTH = 11, EVERY = 4 };
    const subject late = {.model = late_model(), .fixture = "late", .dtype = s->dtype};
    ls_engine_opts opts = engine_opts(&late);
    rollout r;
    ls_engine *e;
    bool holds;
    rollout_make(&late, &r, DEPTH + 5, 1500);
    opts.levers.prefix = LS_PREFIX_ON;
    opts.levers.chunk = 1;
    opts.levers.state_every = EVERY;
    e = engine_open(&late, &opts, fault);
    holds = warm(e, r.prompt, DEPTH + 1);
    if (holds) submit(e, &r);
    holds = holds && tick_to_end(e) && agree(&r, 1) && entry_is_sound(&late, e, r.prompt, DEPTH);
    if (holds && r.request.n_hit != DEPTH) holds = refuted("a hit of %lld tokens", (long long)r.request.n_hit);
    holds = engine_close(e, fault, holds);
    ls_model_close(late.model);
    return holds;
}

static property properties[] = {
    {.name = "any slot", .holds = any_slot, .made_for = BIT(SLOT_STRIDE_U32)},
    {.name = "short first chunks", .holds = short_first_chunks, .made_for = BIT(STALE_SLOT)},
    {.name = "any chunk", .holds = any_chunk, .made_for = BIT(CONV_SHORT_CHUNK)},
    {.name = "hit with short tail",
     .holds = hit_with_short_tail,
     .made_for = BIT(CONV_SHORT_CHUNK) | BIT(PREFIX_STATE_SHIFT)},
    {.name = "snapshots of a batch",
     .holds = snapshots_of_a_batch,
     .made_for = BIT(NO_RESET_PACKED) | BIT(PREFIX_STATE_SHIFT)},
    {.name = "boundary states", .holds = boundary_states, .made_for = BIT(PREFIX_STATE_SHIFT)},
    {.name = "lanes change hands", .holds = lanes_change_hands},
    {.name = "sleep between tokens", .holds = sleep_between_tokens},
    {.name = "rejected drafts", .holds = rejected_drafts, .made_for = BIT(DRAFT_STATE)},
    {.name = "exported states", .holds = exported_states, .made_for = BIT(PREFIX_STATE_SHIFT)},
    {.name = "preemption", .holds = preemption},
    {.name = "packed documents", .holds = packed_documents, .made_for = BIT(NO_RESET_PACKED)},
    {.name = "remapped memory", .holds = remapped_memory, .made_for = BIT(STALE_SLOT)},
    {.name = "scan is recurrence", .holds = scan_is_recurrence, .made_for = BIT(SOFTPLUS_NAIVE) | BIT(SPLIT_K)},
    {.name = "hits of other prompts", .holds = hits_of_other_prompts, .made_for = BIT(PREFIX_CROSS)},
    {.name = "weights change", .holds = weights_change, .made_for = BIT(STALE_WEIGHTS_PREFIX)},
    {.name = "processed records", .holds = processed_records, .made_for = BIT(TEMPERATURE)},
    {.name = "draws by address", .holds = draws_by_address, .made_for = BIT(SEED_BY_SLOT)},
    {.name = "raw records", .holds = raw_records, .made_for = BIT(LAG_ONE)},
    {.name = "branches in company", .holds = branches_in_company, .made_for = BIT(BRANCH_ORDER)},
    {.name = "states written late", .holds = states_written_late, .made_for = BIT(HELD_LEFT_BEHIND)},
};

static void check_property(void **state) {
    property *p = *state;
    for (int64_t i = 0; i < COUNT(subjects); i++)
        if (!p->holds(&subjects[i], LS_INJECT_NONE)) fail_msg("%s: %s: %s", p->name, subjects[i].fixture, note);
    for (int fault = LS_INJECT_NONE + 1; fault < LS_INJECT_COUNT; fault++)
        for (int64_t i = 0; i < COUNT(subjects) && (p->sees >> fault & 1) == 0; i++)
            if (!p->holds(&subjects[i], (ls_inject)fault)) p->sees |= 1u << fault;
    p->measured = true;
    for (int fault = 0; fault < LS_INJECT_COUNT; fault++)
        if ((p->made_for & ~p->sees) >> fault & 1)
            fail_msg("%s does not see %s", p->name, ls_inject_name((ls_inject)fault));
}

/* A row of the table: a column for each fault in the order of its enumerator. */
static void print_row(char *text, size_t bytes, int64_t property_i) {
    size_t n = (size_t)snprintf(text, bytes, "| %2d %-21s |", (int)property_i + 1, properties[property_i].name);
    for (int fault = 1; fault < LS_INJECT_COUNT; fault++)
        n += (size_t)snprintf(text + n, bytes - n, " %s |", properties[property_i].sees >> fault & 1 ? "x" : " ");
    snprintf(text + n, bytes - n, "\n");
}

static void every_fault_is_seen(void **state) {
    static char docs[1 << 16];
    unsigned seen = 0;
    int64_t n_other = 0;
    FILE *file = fopen(LS_SOURCE_DIR "/docs/reference/faults.md", "r");
    (void)state;
    assert_non_null(file);
    docs[fread(docs, 1, sizeof docs - 1, file)] = '\0';
    fclose(file);
    for (int64_t i = 0; i < COUNT(properties); i++) {
        char row[160];
        if (!properties[i].measured) fail_msg("%s was not measured", properties[i].name);
        seen |= properties[i].sees;
        print_row(row, sizeof row, i);
        print_message("%s", row);
        n_other += strstr(docs, row) == NULL;
    }
    for (int fault = 1; fault < LS_INJECT_COUNT; fault++)
        if ((seen >> fault & 1) == 0) fail_msg("no property sees %s", ls_inject_name((ls_inject)fault));
    if (n_other > 0) fail_msg("%lld of these rows are not in docs/reference/faults.md", (long long)n_other);
}

static int open_subjects(void **state) {
    (void)state;
    machine = test_device(1, ls_isa_best());
    for (int64_t i = 0; i < COUNT(subjects); i++) subject_open(&subjects[i]);
    return 0;
}

static int close_subjects(void **state) {
    (void)state;
    for (int64_t i = 0; i < COUNT(subjects); i++) subject_close(&subjects[i]);
    test_device_close(machine);
    return 0;
}

int main(void) {
    struct CMUnitTest tests[COUNT(properties) + 1];
    for (int64_t i = 0; i < COUNT(properties); i++)
        tests[i] = (struct CMUnitTest){properties[i].name, check_property, NULL, NULL, &properties[i]};
    tests[COUNT(properties)] = (struct CMUnitTest)cmocka_unit_test(every_fault_is_seen);
    return cmocka_run_group_tests(tests, open_subjects, close_subjects);
}
