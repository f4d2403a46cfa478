/* The climb: one experiment after the other, while there is time. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "diagnose/rounding/inquiry.h"

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
static ls_status run_slot(ls_inquiry *q, ls_stack_experiment experiment, ls_seen *seen, ls_error *err) {
    const int first = q->slot_way;
    int64_t most = -1;
    for (int k = 0; k < LS_SLOT_WAYS; k++) {
        ls_trial trial;
        uint64_t needs;
        q->slot_way = (first + k) % LS_SLOT_WAYS;
        ls_seen_deinit(seen);
        ls_stack_trial(q, experiment, &trial, &needs);
        LS_TRY(ls_foreign_try(q, &trial, needs, q->requests[experiment].of, q->requests[experiment].n, seen, err));
        if (seen->look == LS_LOOK_OFF || farthest_slot(seen) == ls_slot_of(experiment)) return LS_OK;
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

ls_status ls_foreign_run_experiment(ls_inquiry *q, ls_stack_experiment experiment, ls_error *err) {
    ls_seen *seen = &q->f->seen[experiment];
    ls_trial trial;
    uint64_t needs;
    ls_sweep_tell(&q->runner->sweep->opts, experiment, LS_STACK_EXPERIMENTS,
                  ls_stack_experiment_text(experiment, q->f->is_server));
    if (ls_stack_refused(q, experiment) != NULL) {
        snprintf(seen->note, sizeof seen->note, "%s", ls_stack_refused(q, experiment));
        return LS_OK;
    }
    if (past(q)) {
        q->f->out_of_time = true;
        q->f->n_untried++;
        snprintf(seen->note, sizeof seen->note, "no time was left");
        return LS_OK;
    }
    if (q->runner->door->subject->is_near_limit != NULL &&
        q->runner->door->subject->is_near_limit(q->runner->door->subject->context)) {
        q->f->out_of_time = true;
        q->f->n_untried++;
        snprintf(seen->note, sizeof seen->note, "--max-requests or --max-tokens leaves no room for it");
        return LS_OK;
    }
    ls_stack_trial(q, experiment, &trial, &needs);
    LS_TRY(ls_stack_requests(q, experiment, err));
    if (q->runner->door->subject->is_server) needs = 0; /* what it cannot do is refused */
    if (ls_slot_of(experiment) >= 0 && !q->f->is_server)
        LS_TRY(run_slot(q, experiment, seen, err));
    else
        LS_TRY(ls_foreign_try(q, &trial, needs, q->requests[experiment].of, q->requests[experiment].n, seen, err));
    *(seen->failures.whole == LS_FAILURE_NO_TIME ? &q->f->n_untried : &q->f->n_tried) += 1;
    return LS_OK;
}

bool ls_foreign_any_off(const ls_foreign *f) {
    for (int i = 0; i < LS_STACK_EXPERIMENTS; i++)
        if (f->seen[i].look == LS_LOOK_OFF) return true;
    return false;
}

/* Of the experiments that run few sequences, with no cache. */
static bool any_small_off(const ls_foreign *f) {
    for (int i = 0; i < LS_STACK_CACHED_SAME; i++)
        if (f->seen[i].look == LS_LOOK_OFF) return true;
    return false;
}

/* What the first of the requests alone came to nothing for; that no time was left is the last thing to say. */
const char *ls_foreign_why_untried(const ls_foreign *f) {
    for (int i = LS_STACK_SOLO_C; i > LS_STACK_SOLO_A; i--)
        if (f->seen[i].failures.whole != LS_FAILURE_NO_TIME) return f->seen[i].note;
    return f->seen[LS_STACK_SOLO_A].note;
}

static bool was_tried(const ls_seen *s) { return s->look != LS_LOOK_UNTRIED || s->note[0] != '\0'; }

/* Of a slow server one of each kind of path comes before any is tried in another way, so that half of the time shows
 * all of them. */
#define KINDS_SHARE 0.5
/* Lengths are one request in twenty-five of all. */
#define OF_LENGTHS 25.0
#define SLOW_SHARE 0.5
bool ls_probe_lacks_time(const ls_inquiry *q) {
    const ls_door *door = q->runner->door;
    return door->limits.end > 0.0 && OF_LENGTHS * q->f->seen[LS_STACK_LENGTHS].seconds > SLOW_SHARE * door->seconds;
}

ls_status ls_foreign_run_kinds(ls_inquiry *q, ls_error *err) {
    static const ls_stack_experiment kinds[] = {LS_STACK_BATCH, LS_STACK_UNEQUAL,   LS_STACK_CACHED_SAME,
                                                LS_STACK_RAW,   LS_STACK_STAGGERED, LS_STACK_CACHED_EXTENDED,
                                                LS_STACK_FORK,  LS_STACK_PRESSED,   LS_STACK_CROWD};
    q->climb_end = ls_door_share(q->runner->door, KINDS_SHARE);
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0] && !past(q); i++)
        if (kinds[i] < LS_STACK_CROWD || !ls_foreign_any_off(q->f)) LS_TRY(ls_foreign_run_experiment(q, kinds[i], err));
    q->f->undecided = false;
    return LS_OK;
}

/* A server that has so many requests hang is asked for no more than what tells causes apart. */
enum { HANGS_MOST = 8 };

ls_status ls_foreign_climb(ls_inquiry *q, ls_early *early, ls_error *err) {
    const ls_server_oddities *odd = q->runner->door->subject->odd;
    int n_timeouts = 0;
    bool named = false;
    q->climb_end = ls_door_share(q->runner->door, CLIMB_SHARE);
    for (int i = LS_STACK_SEQUENCE; i < LS_STACK_EXPERIMENTS; i++) {
        if (early != NULL && !named) LS_TRY(early(q, (ls_stack_experiment)i, &named, err));
        /* The crowds are for what smaller experiments do not show. What shows with a cache, with forks or with
         * preemption may be the number of slots that they take, so the crowds without them are tried. */
        if (was_tried(&q->f->seen[i])) continue;
        if (named)
            snprintf(q->f->seen[i].note, sizeof q->f->seen[i].note, "what is off was told before");
        else if (i >= LS_STACK_CROWD && (i == LS_STACK_CACHED_MANY ? ls_foreign_any_off(q->f) : any_small_off(q->f)))
            snprintf(q->f->seen[i].note, sizeof q->f->seen[i].note, "a smaller experiment is off already");
        else
            LS_TRY(ls_foreign_run_experiment(q, (ls_stack_experiment)i, err));
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
