/* The climb: one experiment after the other, while there is time. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "diagnose/rounding/foreign.h"

/* The rest is for the trials that tell causes apart and shrink requests. */
#define CLIMB_SHARE 0.7

static bool past(const ls_inquiry *q) {
    return ls_door_is_closed(q->runner->door) || ls_clock_seconds() > q->climb_end;
}

/* The largest slot that any request had; -1: the suspect does not tell. */
static int64_t farthest_slot(const ls_seen *seen) {
    int64_t most = -1;
    for (int64_t s = 0; s < seen->outcomes.n; s++)
        if (seen->outcomes.of[s].slot > most) most = seen->outcomes.of[s].slot;
    return most;
}

/* A slot with a high number, asked for in every way until the suspect says that it was there. */
static ls_status run_slot(ls_inquiry *q, ls_rung rung, ls_seen *seen, ls_error *err) {
    const int first = q->slot_way;
    int64_t most = -1;
    for (int k = 0; k < LS_SLOT_WAYS; k++) {
        ls_trial trial;
        uint64_t needs;
        q->slot_way = (first + k) % LS_SLOT_WAYS;
        ls_seen_deinit(seen);
        ls_rung_trial(q, rung, &trial, &needs);
        LS_TRY(ls_foreign_try(q, &trial, needs, q->requests[rung].of, q->requests[rung].n, seen, err));
        if (seen->look == LS_LOOK_OFF || farthest_slot(seen) == ls_slot_of(rung)) return LS_OK;
        most = farthest_slot(seen) > most ? farthest_slot(seen) : most;
    }
    q->slot_way = first;
    if (seen->look == LS_LOOK_CLEAN && most >= 0) {
        seen->look = LS_LOOK_UNTRIED;
        snprintf(seen->note, sizeof seen->note, "not reached: the farthest slot that a request had was %" PRId64, most);
    } else if (seen->look == LS_LOOK_CLEAN) {
        snprintf(seen->note, sizeof seen->note, "the suspect does not say which slots its requests had");
    }
    return LS_OK;
}

ls_status ls_foreign_run_rung(ls_inquiry *q, ls_rung rung, ls_error *err) {
    ls_seen *seen = &q->f->seen[rung];
    ls_trial trial;
    uint64_t needs;
    ls_sweep_tell(&q->runner->sweep->opts, rung, LS_RUNGS, ls_rung_text(rung));
    if (past(q)) {
        q->f->out_of_time = true;
        snprintf(seen->note, sizeof seen->note, "no time was left");
        return LS_OK;
    }
    if (ls_rung_refused(q, rung) != NULL) {
        snprintf(seen->note, sizeof seen->note, "%s", ls_rung_refused(q, rung));
        return LS_OK;
    }
    if (q->runner->door->subject->is_near_limit != NULL &&
        q->runner->door->subject->is_near_limit(q->runner->door->subject->context)) {
        q->f->out_of_time = true;
        snprintf(seen->note, sizeof seen->note, "--max-requests or --max-tokens leaves no room for it");
        return LS_OK;
    }
    ls_rung_trial(q, rung, &trial, &needs);
    LS_TRY(ls_rung_requests(q, rung, err));
    if (q->runner->door->subject->is_server) needs = 0; /* what it cannot do is refused */
    if (ls_slot_of(rung) >= 0 && !q->f->is_server) return run_slot(q, rung, seen, err);
    return ls_foreign_try(q, &trial, needs, q->requests[rung].of, q->requests[rung].n, seen, err);
}

bool ls_foreign_any_off(const ls_foreign *f) {
    for (int i = 0; i < LS_RUNGS; i++)
        if (f->seen[i].look == LS_LOOK_OFF) return true;
    return false;
}

/* Of the rungs that run few sequences, with no cache. */
static bool any_small_off(const ls_foreign *f) {
    for (int i = 0; i < LS_RUNG_CACHED_SAME; i++)
        if (f->seen[i].look == LS_LOOK_OFF) return true;
    return false;
}

/* What the first of the requests alone came to nothing for; that no time was left is the last thing to say. */
const char *ls_foreign_why_untried(const ls_foreign *f) {
    for (int i = LS_RUNG_ALONE_C; i > LS_RUNG_ALONE_A; i--)
        if (f->seen[i].failures.whole != LS_FAILURE_NO_TIME) return f->seen[i].note;
    return f->seen[LS_RUNG_ALONE_A].note;
}

/* A server that has so many requests hang is asked for no more than what tells causes apart. */
enum { HANGS_MOST = 8 };

ls_status ls_foreign_climb(ls_inquiry *q, ls_error *err) {
    const ls_server_oddities *odd = q->runner->door->subject->odd;
    int n_timeouts = 0;
    q->climb_end = ls_door_share(q->runner->door, CLIMB_SHARE);
    for (int i = LS_RUNG_SEQUENCE; i < LS_RUNGS; i++) {
        /* The crowds are for what smaller rungs do not show. What shows with a cache, with forks or with preemption may
         * be the number of slots that they take, so the crowds without them are tried. */
        if (i >= LS_RUNG_CROWD && (i == LS_RUNG_CACHED_MANY ? ls_foreign_any_off(q->f) : any_small_off(q->f)))
            snprintf(q->f->seen[i].note, sizeof q->f->seen[i].note, "a smaller experiment is off already");
        else
            LS_TRY(ls_foreign_run_rung(q, (ls_rung)i, err));
        /* One that hangs twice would hang again and again. */
        n_timeouts += q->f->seen[i].failures.whole == LS_FAILURE_TIMED_OUT;
        if (n_timeouts == 2 || (odd != NULL && odd->failures.n[LS_FAILURE_TIMED_OUT] >= HANGS_MOST)) {
            ls_door_hurry(q->runner->door);
            q->climb_end = 0.0;
        }
    }
    q->f->undecided = false;
    return LS_OK;
}
