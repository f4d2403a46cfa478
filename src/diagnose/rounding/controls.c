/* What a cause is worth. A rule sees that one experiment is off, of many that were tried, and proposes a cause. Here it
 * is run again with texts it has not had, and beside it its control: the same requests with the experiment's lever
 * where it was in the baseline. Only what the lever does counts, by how far it stands out of the control:
 *   - by rank: the chance that sequences with the lever lie above those without it if it did nothing (Mann-Whitney);
 *   - by size: the chance that the largest of n values is r times the largest of m others if tails are as heavy as 1/x.
 * The smaller of the two, twice, is the doubt; a rule's own fit times one minus the doubt is the confidence. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "diagnose/rounding/inquiry.h"

enum { WEIGHED_MOST = 6 };
/* Two causes nearer to each other than this fit equally well. */
#define MARGIN 0.005

/* Texts of the second look. */
#define OTHER_TEXTS 0x5DEECE66Du

static double finite_distance(const ls_outcome *c, int64_t i) {
    const double d = fabs((double)c->scored[i] - (double)c->logprob[i]);
    return isfinite(d) ? d : 1e9;
}

/* The largest |d| of a sequence that rounding does not excuse at its place. */
static double sequence_size(const ls_outcome *c) {
    double most = 0.0;
    if (c->failure != LS_FAILURE_NONE) return 1e9;
    for (int64_t i = 0; i < c->n; i++)
        if (!(i < 64 && (c->excused >> i & 1))) most = fmax(most, finite_distance(c, i));
    return most;
}

static double largest_of_sequences(const ls_outcomes *o, int64_t *n_tokens) {
    double most = 0.0;
    for (int64_t s = 0; s < o->n; s++) {
        most = fmax(most, sequence_size(&o->of[s]));
        *n_tokens += o->of[s].n;
    }
    return most;
}

static double doubt_by_size(const ls_outcomes *with, const ls_outcomes *without) {
    int64_t n = 0, m = 0;
    const double top = largest_of_sequences(with, &n), other = largest_of_sequences(without, &m);
    if (n == 0 || m == 0 || !(top > 0.0)) return 1.0;
    return (double)n / ((double)n + (double)m * top / fmax(other, 1e-12));
}

static double doubt_by_rank(const ls_outcomes *with, const ls_outcomes *without) {
    const double n = (double)with->n, m = (double)without->n;
    double above = 0.0, z;
    if (n < 1.0 || m < 1.0) return 1.0;
    for (int64_t i = 0; i < with->n; i++)
        for (int64_t j = 0; j < without->n; j++) {
            const double a = sequence_size(&with->of[i]), b = sequence_size(&without->of[j]);
            above += a > b ? 1.0 : a < b ? 0.0 : 0.5;
        }
    z = (above - n * m / 2.0 - 0.5) / sqrt(n * m * (n + m + 1.0) / 12.0);
    return 0.5 * erfc(z / sqrt(2.0));
}

static double doubt_of(const ls_outcomes *with, const ls_outcomes *without) {
    return fmin(1.0, 2.0 * fmin(doubt_by_size(with, without), doubt_by_rank(with, without)));
}

/* The experiment's trial with its one lever where the baseline has it, everything else as it was. */
void ls_foreign_control(const ls_inquiry *q, ls_stack_experiment experiment, const ls_requests *r, ls_trial *out) {
    const int32_t special = ls_stack_special_token(q, experiment);
    ls_trial plain;
    ls_levers *l = &out->levers;
    ls_stack_trial(q, LS_STACK_FRESH, &plain, NULL);
    ls_stack_trial(q, experiment, out, NULL);
    out->sampling = plain.sampling;
    out->outside = 0;
    switch (ls_stack_experiment_of(experiment)->control) {
        case LS_CONTROL_NONE: break;
        case LS_CONTROL_COMPANY:
            l->batch = 1;
            l->slots = plain.levers.slots > r->n ? plain.levers.slots : r->n;
            break;
        case LS_CONTROL_CHUNK: l->chunk = plain.levers.chunk; break;
        case LS_CONTROL_CACHE: l->prefix = plain.levers.prefix; break;
        case LS_CONTROL_LEVERS:
        case LS_CONTROL_DRAWS:
            l->page_tokens = plain.levers.page_tokens;
            l->slot_base = plain.levers.slot_base;
            l->policy = plain.levers.policy;
            l->fork = plain.levers.fork;
            /* As many draws of each text and as many rows at once, each with a prefill of its own. */
            out->rounds *= l->samples / plain.levers.samples;
            if (q->f->is_server) l->batch *= l->samples / plain.levers.samples;
            l->samples = plain.levers.samples;
            l->preempt_every = plain.levers.preempt_every;
            l->sleep_every = plain.levers.sleep_every;
            break;
    }
    for (int64_t i = 0; special >= 0 && i < r->n_ids; i++)
        if (r->ids[i] == special) r->ids[i] = ls_plain_token(q, 3000, i);
}

/* The doubt that is left on what an experiment's lever does, with the texts of q->seed. */
static ls_status find_doubt(ls_inquiry *q, ls_stack_experiment experiment, double *doubt, bool *off, ls_error *err) {
    ls_requests keep = q->requests[experiment], *r = &q->requests[experiment];
    ls_seen with = {0}, without = {0};
    ls_trial trial;
    ls_status status;
    *doubt = 1.0;
    *off = false;
    memset(r, 0, sizeof *r);
    LS_TRY_DONE(ls_stack_requests(q, experiment, err));
    ls_stack_trial(q, experiment, &trial, NULL);
    LS_TRY_DONE(ls_foreign_try(q, &trial, 0, r->of, r->n, &with, err));
    *off = with.look == LS_LOOK_OFF;
    if (!*off) goto done;
    ls_foreign_control(q, experiment, r, &trial);
    LS_TRY_DONE(ls_foreign_try(q, &trial, 0, r->of, r->n, &without, err));
    *doubt = doubt_of(&with.outcomes, &without.outcomes);
done:
    ls_seen_deinit(&with);
    ls_seen_deinit(&without);
    free(r->ids);
    *r = keep;
    return status;
}

static bool has_control(ls_stack_experiment experiment) {
    const ls_control control = ls_stack_experiment_of(experiment)->control;
    return control != LS_CONTROL_NONE && control != LS_CONTROL_DRAWS;
}

/* What is found and was not looked at a second time is worth so much of it. */
#define UNWEIGHED 0.9

static ls_status weigh(ls_inquiry *q, ls_stack_experiment experiment, double *doubt, ls_error *err) {
    const uint64_t seed = q->seed;
    bool off;
    ls_status status;
    q->seed ^= OTHER_TEXTS;
    status = find_doubt(q, experiment, doubt, &off, err);
    q->seed = seed;
    if (status != LS_OK || off) return status;
    /* It needs the texts it was found with. It was one of many then. */
    LS_TRY(find_doubt(q, experiment, doubt, &off, err));
    *doubt = fmin(1.0, *doubt * (double)LS_STACK_EXPERIMENTS);
    return LS_OK;
}

static int by_confidence(const void *a, const void *b) {
    const ls_finding *x = a, *y = b;
    if (x->confidence != y->confidence) return x->confidence < y->confidence ? 1 : -1;
    return (int)x->experiment - (int)y->experiment;
}

ls_status ls_foreign_weigh(ls_inquiry *q, ls_error *err) {
    ls_foreign *f = q->f;
    double known[LS_STACK_EXPERIMENTS];
    for (int r = 0; r < LS_STACK_EXPERIMENTS; r++) known[r] = -1.0;
    for (int64_t i = 0; i < f->found.n && i < WEIGHED_MOST; i++) {
        ls_finding *one = &f->found.of[i];
        if (one->confidence < LS_NAMED || one->is_confirmed || !has_control(one->experiment)) continue;
        if (f->seen[one->experiment].outcomes.n == 0) continue;
        if (known[one->experiment] < 0.0) LS_TRY(weigh(q, one->experiment, &known[one->experiment], err));
        if (ls_door_is_closed(q->runner->door)) {
            one->confidence *= UNWEIGHED;
            continue;
        }
        one->doubt = known[one->experiment];
        one->confidence *= 1.0 - one->doubt;
    }
    qsort(f->found.of, (size_t)f->found.n, sizeof *f->found.of, by_confidence);
    for (int64_t i = 1; i < f->found.n && f->found.n > 0; i++) {
        if (f->found.of[i].confidence < f->found.of[0].confidence - MARGIN) break;
        if (f->found.of[i].cause != f->found.of[0].cause && f->found.of[0].confidence >= LS_NAMED)
            f->rival = f->found.of[i].cause;
    }
    return LS_OK;
}
