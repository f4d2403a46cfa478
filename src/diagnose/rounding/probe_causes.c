/* What the experiments mean where the suspect is a server: missing values and failures are counted first. Then come
 * requests alone, and then one lever after the other, each beside its control with other texts, and told by a trial
 * from what looks like it. What no trial tells apart is listed with its size and what to try, and not named. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "diagnose/rounding/inquiry.h"

/* ---- what is counted ---- */

/* Of all experiments of one run together, that chance makes one stand out. */
#define FAMILY_ERROR 0.01

/* Answers that are about other tokens than those that were sent. */
static void decide_oddities(ls_inquiry *q) {
    const ls_server_oddities *o = q->runner->door->subject->odd;
    ls_foreign *f = q->f;
    if (o->n_unforced >= 4) {
        /* What a bias leaves of one request to the next; else the server has biases of its own. */
        const bool stays = 10 * o->n_forced_before >= 9 * o->n_unforced;
        ls_foreign_find(f, stays ? LS_CAUSE_STALE_SLOT : LS_CAUSE_UNLISTED, LS_STACK_SOLO_C, stays ? 0.95 : 0.5,
                        "%" PRId64 " tokens came that were not the only one that logit_bias left; %" PRId64
                        " of them are what a request before was biased to",
                        o->n_unforced, o->n_forced_before);
    } else if (o->n_longer + o->n_shorter >= 2 && 10 * (o->n_longer + o->n_shorter) > o->n_answers) {
        ls_foreign_find(f, LS_CAUSE_OTHER_TOKENS, LS_STACK_SOLO_C, 0.97,
                        "%" PRId64 " of %" PRId64
                        " answers say that the prompt has another number of tokens than was "
                        "sent%s; the last one by %" PRId64,
                        o->n_longer + o->n_shorter, o->n_answers, o->n_longer > 0 ? ", most of them more" : ", fewer",
                        o->longer_by);
    } else if (o->n_other >= 2) {
        const bool all = 2 * o->n_other > o->n_answers;
        ls_foreign_find(f, all ? LS_CAUSE_OTHER_TOKENS : LS_CAUSE_CACHE_CROSSED,
                        all ? LS_STACK_SOLO_C : LS_STACK_CACHED_LENGTH, 0.95,
                        "%" PRId64 " of %" PRId64
                        " answers are about other tokens than those that were sent, as many of them",
                        o->n_other, o->n_answers);
    }
}

/* Requests that were never answered. What is off beside them may be theirs, so nothing else is decided when they are
 * several. One that was given more than it could do in the time says nothing. */
static void decide_hangs(ls_inquiry *q) {
    const ls_server_oddities *o = q->runner->door->subject->odd;
    const int64_t n = o->failures.n[LS_FAILURE_TIMED_OUT] + o->failures.n[LS_FAILURE_DIED];
    ls_stack_experiment experiment = LS_STACK_SOLO_LONG;
    int64_t n_slow = 0;
    if (n == 0) return;
    for (int r = LS_STACK_EXPERIMENTS - 1; r >= 0; r--) {
        if (q->f->seen[r].first_hung < 0) continue;
        experiment = (ls_stack_experiment)r;
        if (ls_foreign_is_slow(q, experiment)) n_slow += q->f->seen[r].failures.n[LS_FAILURE_TIMED_OUT];
    }
    if (n - n_slow < 2) return; /* one of hundreds is a network's */
    ls_foreign_find(q->f, LS_CAUSE_NO_ANSWER, experiment, 0.95,
                    "%" PRId64 " of %" PRId64 " requests were never answered: %" PRId64
                    " had no answer after %g s, %" PRId64 " broke off%s",
                    n, o->n_requests, o->failures.n[LS_FAILURE_TIMED_OUT], q->runner->door->limits.timeout,
                    o->failures.n[LS_FAILURE_DIED],
                    n_slow > 0 ? "; some were given more than they could do in the time" : "");
}

bool ls_probe_is_odd(const ls_inquiry *q) {
    const ls_server_oddities *o = q->runner->door->subject->odd;
    return o->n_longer + o->n_shorter >= 2 && 10 * (o->n_longer + o->n_shorter) > o->n_answers;
}

/* Zeros in place of values: of tokens that the prompt says are not sure. It says nothing where most of the other such
 * tokens are far off as well: then a sure token's 0 stands beside a wrong value of the prompt. */
static int64_t count_zeros(const ls_foreign *f) {
    int64_t n_zero = 0, n_near = 0, n_far = 0;
    for (int r = 0; r < LS_STACK_EXPERIMENTS; r++)
        for (int64_t s = 0; s < f->seen[r].outcomes.n; s++) {
            const ls_outcome *c = &f->seen[r].outcomes.of[s];
            n_zero += c->n_zero;
            for (int64_t i = 0; i < c->n; i++) {
                if (!((double)c->scored[i] < LS_SURE_TOKEN) || !isfinite((double)c->logprob[i])) continue;
                if (fabs((double)c->scored[i] - (double)c->logprob[i]) < -0.5 * LS_SURE_TOKEN)
                    n_near++;
                else if ((double)c->logprob[i] < 0.0)
                    n_far++;
            }
        }
    return n_near >= n_far ? n_zero : 0;
}

/* Values that are not there, zeros that stand in their place included. A zero is one where a cut leaves one token. */
static ls_status decide_missing(ls_inquiry *q, bool *found, ls_error *err) {
    const ls_server_oddities *o = q->runner->door->subject->odd;
    ls_foreign *f = q->f;
    const int64_t n_zero = count_zeros(f);
    *found = false;
    if (o->n_missing == 0 && o->n_missing_again == 0 && n_zero < 2) return LS_OK;
    if (o->n_missing == 0 && o->n_missing_again == 0) LS_TRY(ls_probe_decide_own_cut(q, found, err));
    if (*found) return LS_OK;
    *found = true;
    ls_foreign_find(f, LS_CAUSE_MISSING, LS_STACK_SOLO_LONG, 0.98,
                    "%" PRId64 " of %" PRId64 " decoded values are null, NaN, an infinity or below -9000, %" PRId64
                    " of them of first tokens, and %" PRId64 " are 0 for tokens that are not sure; %" PRId64
                    " of %" PRId64 " values of prompts are missing. The others were compared",
                    o->n_missing, o->n_values, o->n_missing_first, n_zero, o->n_missing_again, o->n_again);
    return LS_OK;
}

/* ---- one lever ---- */

/* How sure a lever is by its own count: what is left is chance, and causes that the trials do not know. */
#define SURE 0.97

/* The experiment of [from, to] that is off in the largest share of its requests; LS_STACK_EXPERIMENTS: none is. */
static ls_stack_experiment largest_share(const ls_inquiry *q, ls_stack_experiment from, ls_stack_experiment to) {
    ls_stack_experiment experiment = LS_STACK_EXPERIMENTS;
    double share = 0.0;
    for (int r = (int)from; r <= (int)to; r++) {
        const ls_seen *s = &q->f->seen[r];
        if (!ls_stack_is_off(q, (ls_stack_experiment)r) || ls_portion(s->n_sequences_off, s->n_sequences) <= share)
            continue;
        share = ls_portion(s->n_sequences_off, s->n_sequences);
        experiment = (ls_stack_experiment)r;
    }
    return experiment;
}

/* Of a coarse type: where the lever is not moved requests are off as often, and that is seldom and in a few of them. A
 * tie makes that, by as much as two experts differ. */
#define TIES_OF_TOKENS 0.01
#define TIES_OF_SEQUENCES (1.0 / 3.0)
static bool are_ties(const ls_foreign *f, const ls_confirmed *c) {
    return f->floor_q90 >= LS_LEAST_PATTERN && c->without > 0 && 2 * c->without >= c->with &&
           (double)c->n_tokens_off <= TIES_OF_TOKENS * (double)c->n_tokens &&
           (double)c->with <= TIES_OF_SEQUENCES * (double)c->n_with;
}

/* How sure it is that an experiment holds out beside its control; 0 where it is LS_STACK_EXPERIMENTS. */
static ls_status weigh(ls_inquiry *q, ls_stack_experiment experiment, double *sure, ls_error *err) {
    ls_confirmed c;
    *sure = 0.0;
    if (experiment == LS_STACK_EXPERIMENTS) return LS_OK;
    LS_TRY(ls_probe_confirm(q, experiment, &c, err));
    if (are_ties(q->f, &c))
        q->f->seen[experiment].look = LS_LOOK_CLEAN;
    else if (c.with >= 2)
        q->left = experiment;
    *sure = fmax(0.0, SURE - c.chance);
    return LS_OK;
}

static ls_status strongest(ls_inquiry *q, ls_stack_experiment from, ls_stack_experiment to,
                           ls_stack_experiment *experiment, double *sure, ls_error *err) {
    *experiment = largest_share(q, from, to);
    return weigh(q, *experiment, sure, err);
}

static bool holds(double sure) { return sure > SURE - FAMILY_ERROR; }

static void list_cause(ls_inquiry *q, ls_stack_experiment experiment, double sure, ls_cause cause, const char *what) {
    const ls_seen *s = &q->f->seen[experiment];
    if (holds(sure))
        ls_foreign_find(q->f, cause, experiment, sure,
                        "%s: %" PRId64 " of %" PRId64
                        " sequences are off by up to %.2g, and "
                        "those of other texts; without it they are right",
                        what, s->n_sequences_off, s->n_sequences, s->abs_max);
}

/* ---- draws ---- */

/* What draws are made with must not change what is recorded of them, which is the model's own. */
static ls_status decide_draws(ls_inquiry *q, ls_error *err) {
    ls_foreign *f = q->f;
    const double asked = LS_SLOPE_AT;
    double sure;
    ls_slope line;
    ls_stack_experiment experiment;
    bool hot, cut = false;
    LS_TRY(strongest(q, LS_STACK_RAW, LS_STACK_COLD, &experiment, &sure, err));
    /* Of a model that is sure at low temperatures these show nothing, and a high one has been tried before. */
    hot = experiment == LS_STACK_EXPERIMENTS && q->runner->sweep->opts.hot_differs;
    if (hot) experiment = LS_STACK_RAW, sure = SURE;
    if (experiment < LS_STACK_EXPERIMENTS && holds(sure)) {
        LS_TRY(ls_probe_measure_slope(q, &line, err));
        if (line.n >= 12 && fabs(line.slope - 1.0 / asked) < 0.02 && line.left < f->limit + 0.02) {
            q->left = LS_STACK_SOLO_A;
            if (q->runner->door->subject->records_processed)
                snprintf(f->convention, sizeof f->convention,
                         "values of what is generated are of the temperature that was asked for, those of prompts of "
                         "1: so this "
                         "server means them. Compare at temperature 1");
            else
                ls_foreign_find(f, LS_CAUSE_TEMPERATURE, experiment, sure,
                                "at temperature %g records go %.3f times as far apart as the prompt's values do, over "
                                "%" PRId64 " draws of %" PRId64 " texts; 1 / %g is %.3f",
                                asked, line.slope, line.n, line.n_texts, asked, 1.0 / asked);
        } else if (!hot && line.n >= 12 && fabs(line.slope) > 0.0) { /* draws of one token say nothing */
            LS_TRY(ls_probe_decide_own_cut(q, &cut, err));
            if (cut) return LS_OK;
            ls_foreign_find(f, LS_CAUSE_TEMPERATURE, experiment, 0.7,
                            "%s is off and its control is not, but records go %.3f times as far apart as the prompt's "
                            "values, not 1 / %g",
                            ls_stack_experiment_name(experiment), line.slope, asked);
        }
    }
    LS_TRY(strongest(q, LS_STACK_TOP_K, LS_STACK_TOP_P, &experiment, &sure, err));
    if (experiment < LS_STACK_EXPERIMENTS)
        list_cause(q, experiment, sure, LS_CAUSE_CUT, experiment == LS_STACK_TOP_K ? "with top-k 5" : "with top-p 0.8");
    if (f->found.n > 0 || f->convention[0] != '\0') return LS_OK;
    LS_TRY(strongest(q, LS_STACK_GREEDY, LS_STACK_GREEDY, &experiment, &sure, err));
    if (experiment < LS_STACK_EXPERIMENTS)
        list_cause(q, experiment, fmin(sure, 0.7), LS_CAUSE_TEMPERATURE, "at temperature 0 alone");
    return LS_OK;
}

/* ---- company ---- */

enum { BESIDE = 8, AS_LOADED = 24, OFTEN = 3, MOST_OFTEN = 9, MOST_OF_SELDOM = 24, SELDOM_LEAST = 1 };

/* Records that are the values of other requests' tokens: so many of those that are off have one within `near` of them.
 * `aside` is added to each: by chance as many have one there. */
static int64_t count_others_values(const ls_foreign *f, const ls_outcomes *o, double near, double aside, int64_t *n) {
    int64_t hits = 0;
    *n = 0;
    for (int64_t s = 0; s < o->n; s++)
        for (int64_t i = 0; i < o->of[s].n; i++) {
            const double record = (double)o->of[s].logprob[i] + aside;
            bool hit = false;
            if (!ls_token_off(f, &o->of[s], i) || !((double)o->of[s].logprob[i] < LS_SURE_TOKEN)) continue;
            (*n)++;
            for (int64_t other = 0; other < o->n && !hit; other++)
                for (int64_t k = 0; other != s && k < o->of[other].n && !hit; k++)
                    hit = fabs((double)o->of[other].scored[k] - record) <= near;
            hits += hit;
        }
    return hits;
}

#define EXCHANGED_CHANCE 1e-6
static bool decide_exchanged(ls_inquiry *q, ls_stack_experiment experiment, double sure) {
    ls_foreign *f = q->f;
    const ls_outcomes *o = &f->seen[experiment].outcomes;
    const double near = fmax(1e-5, fmin(f->floor_q90, 0.02));
    int64_t n, n_aside;
    const int64_t hits = count_others_values(f, o, near, 0.0, &n);
    const int64_t aside = count_others_values(f, o, near, 20.0 * near, &n_aside);
    if (n < 8 || 2 * hits < n || ls_probe_chance(hits, n, aside, n_aside) > EXCHANGED_CHANCE) return false;
    ls_foreign_find(
        f, LS_CAUSE_OTHERS_STATE, experiment, sure,
        "%" PRId64 " of %" PRId64
        " records that are off are the values of tokens of other requests beside them, within %.2g; %" PRId64
        " are by chance",
        hits, n, near, aside);
    return true;
}

/* So many at once: copies of one text; `value` below 0: all of them others. */
static ls_status lay_beside(ls_inquiry *q, int64_t value, ls_trial *trial, ls_requests *r, ls_error *err) {
    const int64_t text = value < 0 ? -value : value;
    ls_stack_trial(q, LS_STACK_BATCH, trial, NULL);
    trial->sampling.temperature = 0.0f; /* copies have the same tokens, and then the same values in any order */
    trial->levers.batch = q->beside;
    for (int64_t i = 0; i < q->beside; i++) LS_TRY(ls_requests_plain(q, r, value < 0 ? text + i : text, 9, err));
    return LS_OK;
}

/* Of unequal lengths, so many at once: one text, and others whose texts are those of `value`. */
static ls_status lay_unequal(ls_inquiry *q, int64_t value, ls_trial *trial, ls_requests *r, ls_error *err) {
    ls_stack_trial(q, LS_STACK_UNEQUAL, trial, NULL);
    trial->levers.batch = q->beside;
    trial->sampling.temperature = 0.0f;
    for (int64_t i = 0; i < q->beside; i++)
        LS_TRY(ls_requests_plain(q, r, i == 0 ? 3700 : value + i, i == 0 ? 6 : 14 + i - q->beside + q->longer, err));
    return LS_OK;
}

/* No type makes so much of another order of sums, in the middle of all tokens or in any, and of a server that computes
 * in float32 no kernel in bf16 makes more than a rounding: weights or states are others then, unless a number of rows
 * is what they hang on. */
#define ORDER_MOST 0.5
#define ORDER_MOST_OF_ANY 4.0
static bool is_beyond_order(const ls_foreign *f, ls_stack_experiment experiment) {
    const ls_seen *s = &f->seen[experiment];
    const bool fine = f->fine || (f->floor_q90 > 0.0 && f->floor_max <= LS_FINE);
    return s->abs_median > ORDER_MOST || s->abs_max > ORDER_MOST_OF_ANY ||
           (fine && s->abs_max > ls_probe_flip_of_bf16(f));
}

/* The number of rows may choose the kernel of a coarse type, as a hit may: copies of one text move by what one rounding
 * makes, and nothing is mixed. Then no request that others run beside is off by as little. */
static void pass_over_kernel(ls_inquiry *q) {
    q->rows_choose = true;
    for (int r = LS_STACK_SEQUENCE; r < LS_STACK_EXPERIMENTS; r++) {
        ls_seen *s = &q->f->seen[r];
        ls_trial trial;
        ls_stack_trial(q, (ls_stack_experiment)r, &trial, NULL);
        if (s->look != LS_LOOK_OFF || s->n_failed > 0 || !ls_probe_has_company(&trial) ||
            !ls_probe_is_flip(q->f, s->abs_max))
            continue;
        s->look = LS_LOOK_CLEAN;
        if (q->left == (ls_stack_experiment)r) q->left = LS_STACK_SOLO_A;
    }
}

/* What is off seldom has to be tried in as few rows as show it, and until no chance makes it. */
#define SELDOM_CHANCE 1e-4
static int64_t beside_of(const ls_inquiry *q, ls_stack_experiment experiment, bool seldom) {
    ls_trial trial;
    ls_stack_trial(q, experiment, &trial, NULL);
    if (seldom) return trial.levers.batch <= BESIDE ? BESIDE : AS_LOADED;
    return experiment == LS_STACK_PAIR || experiment == LS_STACK_BATCH ? BESIDE : AS_LOADED;
}

/* Some texts are off for a rounding that others have not: of texts that were, how many are off among copies of
 * themselves. */
enum { OWN_MOST = 6 };
static ls_status count_own(ls_inquiry *q, const int64_t *texts, int64_t n, int64_t *n_off, ls_error *err) {
    for (int64_t i = 0; i < n; i++) {
        ls_seen s;
        LS_TRY(ls_foreign_try_laid(q, lay_beside, texts[i], &s, err));
        *n_off += s.n_sequences_off > 0;
        ls_seen_deinit(&s);
    }
    return LS_OK;
}

/* Copies that ran at once are farther apart than kernels are: rows of one forward have one order of sums. */
static bool are_unlike(const ls_foreign *f, const ls_outcomes *copies) {
    for (int64_t i = 1; i < copies->n; i++)
        if (ls_probe_apart(&copies->of[0], &copies->of[i]) > f->limit) return true;
    return false;
}

/* A value so near to the limit that no trial shows again is the tail of what makes the limit. */
#define NEAR_LIMIT 4.0

static ls_status decide_unequal(ls_inquiry *q, ls_stack_experiment experiment, double sure, ls_error *err);

/* Rows of one length are off, and those of unlike lengths more often: what fills them up is in it all the same. So much
 * of it is tried that it outweighs what rows of one length take from each other. */
enum { LONGER = 50 };
static ls_status decide_unlike(ls_inquiry *q, bool *found, ls_error *err) {
    double chance, sure;
    ls_status status;
    LS_TRY(ls_probe_unlike_matter(q, &chance, err));
    sure = ls_probe_sure(chance, 0.0);
    *found = sure >= LS_NAMED;
    if (!*found) return LS_OK;
    q->longer = LONGER;
    status = decide_unequal(q, LS_STACK_UNEQUAL, sure, err);
    q->longer = 0;
    return status;
}

/* Some rows are off and others are not, of different texts (0) and of copies of one (1): which, else what to try. */
static ls_status decide_some_rows(ls_inquiry *q, ls_stack_experiment experiment, const int64_t off[2],
                                  const int64_t n[2], ls_error *err) {
    bool found = false;
    if (off[0] + off[1] == 0 && q->f->seen[experiment].abs_max <= NEAR_LIMIT * q->f->limit) return LS_OK;
    LS_TRY(ls_probe_decide_filled_up(q, experiment, &found, err));
    if (!found && off[1] > 2 && !ls_probe_is_flip(q->f, q->f->seen[experiment].abs_max))
        LS_TRY(ls_probe_decide_number(q, experiment, &found, err));
    if (!found) LS_TRY(ls_probe_decide_row_of_other(q, experiment, &found, err));
    if (!found) LS_TRY(decide_unlike(q, &found, err));
    if (!found) LS_TRY(ls_probe_decide_readers(q, experiment, &found, err));
    if (found) return LS_OK;
    if (2 * off[1] > off[0] && off[1] > 2)
        ls_foreign_find(q->f, LS_CAUSE_NOT_REPEATABLE, experiment, 0.7,
                        "%d at a time: %" PRId64 " of %" PRId64
                        " copies of one text are off and the others are not: one row of a batch, or a race. Try it "
                        "with two at a time",
                        (int)q->beside, off[1], n[1]);
    else
        ls_foreign_find(q->f, LS_CAUSE_OTHERS_STATE, experiment, 0.6,
                        "%s is off, one at a time it is not; of different texts %" PRId64 " of %" PRId64
                        ", of copies of one text %" PRId64 " of %" PRId64 ", which does not tell what the others do",
                        ls_stack_experiment_name(experiment), off[0], n[0], off[1], n[1]);
    return LS_OK;
}

/* What others hold is nothing to a request among copies of itself: as many rows, and no text but its own. */
static ls_status decide_equal(ls_inquiry *q, ls_stack_experiment experiment, double sure, ls_error *err) {
    ls_foreign *f = q->f;
    bool handed = false, unlike = false, filled = false, of_number = false, joined = false, by_lengths = false;
    const bool seldom = !holds(sure);
    const double enough = seldom ? SELDOM_CHANCE : FAMILY_ERROR;
    const int64_t most = seldom ? MOST_OF_SELDOM : MOST_OFTEN;
    int64_t off[2] = {0, 0}, n[2] = {0, 0}, texts[OWN_MOST], n_texts = 0, n_own = 0;
    double chance = 1.0;
    q->beside = beside_of(q, experiment, seldom);
    /* These values are evidence of their own. */
    if (decide_exchanged(q, experiment, seldom ? 0.9 : sure)) return LS_OK;
    /* More of them as long as it may yet be told. */
    for (int64_t k = 0; k < most && (k < OFTEN || (chance > enough && 4 * off[1] < off[0])); k++) {
        for (int copies = 0; copies < 2; copies++) {
            ls_seen s;
            LS_TRY(ls_foreign_try_laid(q, lay_beside, (copies ? 1 : -1) * (3710 + 30 * k), &s, err));
            off[copies] += s.n_sequences_off;
            n[copies] += s.n_sequences;
            unlike = unlike || (copies && are_unlike(f, &s.outcomes));
            for (int64_t i = 0; !copies && i < s.outcomes.n && n_texts < OWN_MOST; i++)
                if (ls_sequence_off(f, &s.outcomes.of[i])) texts[n_texts++] = 3710 + 30 * k + i;
            ls_seen_deinit(&s);
        }
        chance = ls_probe_chance(off[0], n[0], off[1], n[1]);
    }
    if (chance < FAMILY_ERROR && 4 * off[1] < off[0]) LS_TRY(count_own(q, texts, n_texts, &n_own, err));
    if (seldom) { /* these trials alone have to say it, and they say it of no other cause */
        if (4 * off[1] > off[0] || n_own > 0) {
            LS_TRY(ls_probe_decide_filled_up(q, experiment, &filled, err));
            return filled ? LS_OK : ls_probe_decide_row_of_other(q, experiment, &filled, err);
        }
        sure = ls_probe_sure(chance, 0.0);
    }
    if (unlike && 2 * off[1] > off[0]) LS_TRY(ls_probe_decide_handed(q, experiment, &handed, err));
    if (handed) return LS_OK;
    if (chance < FAMILY_ERROR && 4 * off[1] < off[0] && 2 * n_own <= n_texts)
        ls_foreign_find(f, LS_CAUSE_OTHERS_STATE, experiment, fmin(sure, SURE - chance),
                        "%d at a time: of different texts %" PRId64 " of %" PRId64
                        " are off, of copies of one text %" PRId64 " of %" PRId64 ", and of %" PRId64
                        " of these texts copies beside themselves are in %" PRId64,
                        (int)q->beside, off[0], n[0], off[1], n[1], n_texts, n_own);
    else if (2 * off[1] > off[0] && 2 * off[1] > n[1] && ls_probe_is_flip(f, f->seen[experiment].abs_max))
        pass_over_kernel(q);
    else if (2 * off[1] > off[0] && 2 * off[1] > n[1]) { /* as all rows of a batch are */
        if (is_beyond_order(f, experiment)) {
            LS_TRY(ls_probe_decide_joined(q, experiment, &joined, err));
            if (!joined) LS_TRY(ls_probe_decide_number(q, experiment, &of_number, err));
            if (!joined && !of_number) LS_TRY(decide_unlike(q, &by_lengths, err));
        }
        if (joined || of_number || by_lengths) return LS_OK;
        ls_foreign_find(f, LS_CAUSE_ORDER_BY_BATCH, experiment, is_beyond_order(f, experiment) ? 0.6 : sure,
                        "%d at a time: of different texts %" PRId64 " of %" PRId64
                        " are off, and of copies of one text %" PRId64 " of %" PRId64
                        " as well; one at a time they are right",
                        (int)q->beside, off[0], n[0], off[1], n[1]);
    } else
        return decide_some_rows(q, experiment, off, n, err);
    return LS_OK;
}

/* One text beside some texts and beside others of the same lengths, again and again. */
enum { UNEQUAL_ROUNDS = 6 };
typedef struct besides {
    ls_seen of[2][UNEQUAL_ROUNDS];
    int64_t n, n_off, twins, own; /* trials of each; off; off as in one of the others; .. as in one of the same */
    double content, same;         /* how far what is off is from the nearest of these */
} besides;

/* *twins: so many of `a` are within the limit of one of `b`. */
static double nearest_of(const ls_foreign *f, const ls_seen *a, const ls_seen *b, int64_t n, int64_t *twins) {
    double nearest = (double)INFINITY;
    for (int64_t i = 0; i < n; i++) {
        bool twin = false;
        for (int64_t j = 0; j < n; j++) {
            double d;
            if ((a == b && i == j) || a[i].outcomes.n == 0 || b[j].outcomes.n == 0) continue;
            if (!ls_sequence_off(f, &a[i].outcomes.of[0]) || !ls_sequence_off(f, &b[j].outcomes.of[0])) continue;
            d = ls_probe_apart(&a[i].outcomes.of[0], &b[j].outcomes.of[0]);
            nearest = fmin(nearest, d);
            twin = twin || d <= f->limit;
        }
        *twins += twin;
    }
    return nearest;
}

static ls_status try_besides(ls_inquiry *q, int64_t at_once, besides *out, ls_error *err) {
    const int64_t beside = q->beside;
    ls_status status = LS_OK;
    *out = (besides){.n = 0};
    q->beside = at_once;
    while (out->n < UNEQUAL_ROUNDS && out->twins == 0 && status == LS_OK) {
        for (int k = 0; k < 2 && status == LS_OK; k++) {
            const ls_seen *s = &out->of[k][out->n];
            status = ls_foreign_try_laid(q, lay_unequal, k == 1 ? 3850 : 3810, &out->of[k][out->n], err);
            out->n_off += s->outcomes.n > 0 && ls_sequence_off(q->f, &s->outcomes.of[0]);
        }
        out->n++;
        out->own = 0;
        out->content = nearest_of(q->f, out->of[0], out->of[1], out->n, &out->twins);
        out->same = fmin(nearest_of(q->f, out->of[0], out->of[0], out->n, &out->own),
                         nearest_of(q->f, out->of[1], out->of[1], out->n, &out->own));
        if (out->n == 2 && out->n_off == 0) break;
    }
    for (int k = 0; k < 2 * UNEQUAL_ROUNDS; k++) ls_seen_deinit(&out->of[k / UNEQUAL_ROUNDS][k % UNEQUAL_ROUNDS]);
    q->beside = beside;
    return status;
}

/* Padding is the same whatever the others hold. Which of many are in one forward may change from one time to the next,
 * and then their lengths do: so two are tried first, and a value that comes again beside other texts is of no text. */
static ls_status decide_unequal(ls_inquiry *q, ls_stack_experiment experiment, double sure, ls_error *err) {
    ls_foreign *f = q->f;
    besides b;
    LS_TRY(try_besides(q, 2, &b, err));
    if (b.n_off == 0) LS_TRY(try_besides(q, BESIDE, &b, err));
    if (b.twins == 0 && b.own > 0)
        ls_foreign_find(f, LS_CAUSE_OTHERS_STATE, experiment, sure,
                        "of unequal lengths: a request that is off beside some texts is so again beside the same ones, "
                        "to %.2g, and beside others it is not so near, but by %.2g, in %" PRId64 " trials of each",
                        b.same, isfinite(b.content) ? b.content : 0.0, b.n);
    else
        ls_foreign_find(f, LS_CAUSE_PADDING, experiment,
                        b.twins > 0    ? sure
                        : b.n_off == 0 ? fmin(sure, 0.9)
                                       : 0.7,
                        "of unequal lengths %" PRId64 " of %" PRId64 " are off, of equal length %" PRId64 " of %" PRId64
                        "; beside some texts and beside others of the same lengths one request is off in %" PRId64
                        " of %" PRId64 " trials, and by the same in %" PRId64,
                        f->seen[experiment].n_sequences_off, f->seen[experiment].n_sequences,
                        f->seen[LS_STACK_BATCH].n_sequences_off, f->seen[LS_STACK_BATCH].n_sequences, b.n_off, 2 * b.n,
                        b.twins);
    return LS_OK;
}

/* So many short ones as stand beside long ones in the other: if they are right, it is what the long ones take. */
static ls_status lay_loaded(ls_inquiry *q, int64_t text, ls_trial *trial, ls_requests *r, ls_error *err) {
    ls_stack_trial(q, LS_STACK_BATCH, trial, NULL);
    trial->levers.batch = AS_LOADED;
    for (int64_t i = 0; i < AS_LOADED; i++) LS_TRY(ls_requests_plain(q, r, text + i, 9, err));
    return LS_OK;
}

/* Long ones two at a time, whose lengths and completions are the same; and prompts alone, of which as many tokens come
 * at once and none is added. */
enum { PROMPTS_AT_ONCE = 12 };
static ls_status lay_pressed(ls_inquiry *q, int64_t at_once, ls_trial *trial, ls_requests *r, ls_error *err) {
    const ls_requests *of = &q->requests[LS_STACK_PRESSED];
    ls_stack_trial(q, LS_STACK_PRESSED, trial, NULL);
    trial->levers.batch = at_once;
    if (at_once == PROMPTS_AT_ONCE) trial->max_tokens = 3;
    for (int64_t i = 0; i < PROMPTS_AT_ONCE; i++) LS_TRY(ls_requests_add(r, of->of[i].ids, of->of[i].n, err));
    return LS_OK;
}

static ls_status is_right(ls_inquiry *q, ls_lay lay, int64_t value, bool *out, ls_error *err) {
    ls_seen s;
    LS_TRY(ls_foreign_try_laid(q, lay, value, &s, err));
    *out = s.outcomes.n > 0 && s.n_sequences_off == 0;
    ls_seen_deinit(&s);
    return LS_OK;
}

/* Long ones whose completions are as long, one at a time: nothing takes room from them. */
enum { ALONE = 4, ALONE_LENGTH = 96 };
static ls_status lay_grown(ls_inquiry *q, int64_t text, ls_trial *trial, ls_requests *r, ls_error *err) {
    ls_stack_trial(q, LS_STACK_PRESSED, trial, NULL);
    trial->levers.batch = 1;
    for (int64_t i = 0; i < ALONE; i++) LS_TRY(ls_requests_plain(q, r, text + i, ALONE_LENGTH, err));
    return LS_OK;
}

/* What grows so far may be off by itself, and company then shows what it shows alone. */
static ls_status grows_right(ls_inquiry *q, bool *out, ls_error *err) {
    ls_seen s;
    *out = true;
    if (ls_stack_refused(q, LS_STACK_PRESSED) != NULL) return LS_OK;
    LS_TRY(ls_foreign_try_laid(q, lay_grown, 3920, &s, err));
    *out = s.n_off == 0; /* a server that cannot do it alone says nothing */
    ls_seen_deinit(&s);
    return LS_OK;
}

/* What takes room from others: long requests, and what they grow by. *alone: one at a time they are off as often. */
static ls_status decide_load(ls_inquiry *q, bool *alone, ls_error *err) {
    const ls_stack_experiment which = ls_stack_is_off(q, LS_STACK_LOAD) ? LS_STACK_LOAD : LS_STACK_PRESSED;
    const ls_seen *loaded = &q->f->seen[which];
    double sure;
    bool alone_right, short_right, grown = false, read = false, two_right = true, prompts_right = true;
    ls_stack_experiment experiment;
    LS_TRY(strongest(q, which, which, &experiment, &sure, err));
    *alone = experiment < LS_STACK_EXPERIMENTS && !(sure > 0.0) &&
             (q->left == experiment || q->f->seen[experiment].look == LS_LOOK_CLEAN);
    if (experiment == LS_STACK_EXPERIMENTS || !holds(sure)) return LS_OK;
    LS_TRY(grows_right(q, &alone_right, err));
    if (!alone_right) LS_TRY(ls_probe_decide_grown(q, &grown, err));
    if (grown) return LS_OK;
    LS_TRY(is_right(q, lay_loaded, 3900, &short_right, err));
    if (short_right && which == LS_STACK_PRESSED) {
        LS_TRY(is_right(q, lay_pressed, 2, &two_right, err));
        LS_TRY(is_right(q, lay_pressed, PROMPTS_AT_ONCE, &prompts_right, err));
    }
    if (!(short_right && alone_right && two_right && prompts_right))
        LS_TRY(ls_probe_decide_readers(q, experiment, &read, err));
    if (!read && short_right && alone_right && !two_right) LS_TRY(ls_probe_decide_long_rows(q, experiment, &read, err));
    if (read) return LS_OK;
    if (short_right)
        ls_foreign_find(q->f, LS_CAUSE_PREEMPTED, experiment, alone_right && two_right && prompts_right ? sure : 0.6,
                        "%s: %" PRId64 " of %" PRId64
                        " sequences are off by up to %.2g, and those of other texts; of %d short ones at once none "
                        "is%s%s%s",
                        ls_stack_experiment_text(which, true), loaded->n_sequences_off, loaded->n_sequences,
                        loaded->abs_max, AS_LOADED,
                        which == LS_STACK_LOAD ? ""
                        : two_right            ? ", nor of the long ones two at a time"
                                               : ", but of the long ones two at a time some are",
                        which == LS_STACK_LOAD ? ""
                        : prompts_right        ? ", nor of such prompts where little is added"
                                               : ", but of such prompts where little is added some are",
                        alone_right ? "" : "; but long ones with long completions are off one at a time as well");
    /* Else it is how many there are that does it. */
    return q->f->found.n > 0 ? LS_OK : decide_equal(q, experiment, sure, err);
}

/* Others run beside a request, and nothing else is moved. */
static bool is_company_alone(const ls_inquiry *q, ls_stack_experiment r) {
    const uint32_t others = LS_OUTSIDE_STAGGERED | LS_OUTSIDE_LOAD;
    ls_trial trial;
    ls_stack_trial(q, r, &trial, NULL);
    return trial.levers.batch > 1 && trial.levers.samples == 1 && trial.levers.prefix != LS_PREFIX_ON &&
           (trial.outside & ~others) == 0;
}

/* What is off seldom is so in too few requests of one experiment. Of all of them together: how sure it is that those
 * beside others are off more often than those that run alone. *most: the one that is off in the largest share. */
static double sure_of_company(const ls_inquiry *q, ls_stack_experiment *most) {
    int64_t off[2] = {0, 0}, n[2] = {0, 0};
    double share = 0.0;
    *most = LS_STACK_EXPERIMENTS;
    for (int r = 0; r < LS_STACK_EXPERIMENTS; r++) {
        const ls_seen *s = &q->f->seen[r];
        const bool company = is_company_alone(q, (ls_stack_experiment)r);
        ls_trial trial;
        ls_stack_trial(q, (ls_stack_experiment)r, &trial, NULL);
        if (!company && (ls_probe_has_company(&trial) || trial.levers.prefix == LS_PREFIX_ON)) continue;
        off[company] += s->n_sequences_off;
        n[company] += s->n_sequences;
        if (!company || !ls_stack_is_off(q, (ls_stack_experiment)r) ||
            ls_portion(s->n_sequences_off, s->n_sequences) <= share)
            continue;
        share = ls_portion(s->n_sequences_off, s->n_sequences);
        *most = (ls_stack_experiment)r;
    }
    if (off[0] > 0 || off[1] < SELDOM_LEAST) *most = LS_STACK_EXPERIMENTS;
    return ls_probe_sure(ls_probe_chance(off[1], n[1], off[0], n[0]), 0.0);
}

static ls_status decide_company(ls_inquiry *q, ls_error *err) {
    const bool equal = ls_stack_is_off(q, LS_STACK_PAIR) || ls_stack_is_off(q, LS_STACK_BATCH);
    double sure, sure_of_all, chance;
    bool alone = false;
    ls_stack_experiment experiment, most;
    /* Four rows of unlike lengths are off, eight of one length hardly: it is no number of rows. */
    if (equal && !ls_stack_is_off(q, LS_STACK_PAIR) && ls_stack_is_off(q, LS_STACK_UNEQUAL)) {
        LS_TRY(ls_probe_lengths_matter(q, &chance, err));
        sure = ls_probe_sure(chance, 0.0);
        if (sure >= LS_NAMED) return decide_unequal(q, LS_STACK_UNEQUAL, sure, err);
    }
    LS_TRY(strongest(q, equal ? LS_STACK_PAIR : LS_STACK_UNEQUAL, equal ? LS_STACK_BATCH : LS_STACK_UNEQUAL,
                     &experiment, &sure, err));
    if (experiment < LS_STACK_EXPERIMENTS && !equal && holds(sure)) return decide_unequal(q, experiment, sure, err);
    if (experiment == LS_STACK_EXPERIMENTS)
        LS_TRY(strongest(q, LS_STACK_CROWD, LS_STACK_MANY, &experiment, &sure, err));
    if (experiment == LS_STACK_EXPERIMENTS)
        LS_TRY(strongest(q, LS_STACK_STAGGERED, LS_STACK_STAGGERED, &experiment, &sure, err));
    if (experiment < LS_STACK_EXPERIMENTS && holds(sure)) return decide_equal(q, experiment, sure, err);
    sure_of_all = sure_of_company(q, &most);
    if (most == LS_STACK_LOAD || most == LS_STACK_PRESSED) LS_TRY(decide_load(q, &alone, err));
    return most < LS_STACK_EXPERIMENTS && q->f->found.n == 0 && !alone ? decide_equal(q, most, sure_of_all, err)
                                                                       : LS_OK;
}

/* ---- the prefix cache ---- */

/* Whether requests at once are right where nothing is kept of one for another: what is left then is what is kept. */
static bool company_is_right(const ls_inquiry *q) {
    static const ls_stack_experiment company[] = {LS_STACK_PAIR,  LS_STACK_BATCH, LS_STACK_UNEQUAL, LS_STACK_FORK,
                                                  LS_STACK_CROWD, LS_STACK_MANY,  LS_STACK_LOAD,    LS_STACK_STAGGERED};
    for (size_t i = 0; i < sizeof company / sizeof company[0]; i++)
        if (ls_stack_is_off(q, company[i])) return false;
    return q->f->seen[LS_STACK_BATCH].n_sequences > 0;
}

static ls_status decide_cache(ls_inquiry *q, ls_error *err) {
    bool found = false;
    double sure;
    ls_stack_experiment experiment;
    ls_trial trial;
    experiment = largest_share(q, LS_STACK_CACHED_SAME, LS_STACK_CACHED_TWINS_WHOLE);
    if (experiment == LS_STACK_EXPERIMENTS) experiment = largest_share(q, LS_STACK_CACHED_RESET, LS_STACK_CACHED_RESET);
    if (experiment == LS_STACK_EXPERIMENTS) experiment = largest_share(q, LS_STACK_CACHED_LONG, LS_STACK_CACHED_BITS);
    if (experiment == LS_STACK_EXPERIMENTS) experiment = largest_share(q, LS_STACK_CACHED_MANY, LS_STACK_CACHED_LONGER);
    if (experiment == LS_STACK_EXPERIMENTS) return LS_OK;
    /* Pairs have controls of their own, and a cache that no client can keep out is in the experiment's control as well.
     *  */
    LS_TRY(ls_decide_previous_request(q, experiment, true, &found, err));
    if (found) return LS_OK;
    ls_stack_trial(q, experiment, &trial, NULL);
    if (trial.levers.batch == 1) LS_TRY(ls_probe_decide_continued(q, &found, err));
    if (found) return LS_OK;
    LS_TRY(weigh(q, experiment, &sure, err));
    if (trial.levers.batch == 1)
        list_cause(q, experiment, sure, LS_CAUSE_CACHE_HITS, "with the prefix cache");
    else if (company_is_right(q))
        list_cause(q, experiment, sure, LS_CAUSE_CACHE_HITS, "requests at once that share a beginning");
    else if (holds(sure)) /* one at a time they are right: what is kept is not what is wrong */
        ls_foreign_find(q->f, LS_CAUSE_CACHE_HITS, experiment, 0.6,
                        "%s: %" PRId64 " of %" PRId64
                        " sequences are off, and one at a time none is: it may be the cache or the company",
                        ls_stack_experiment_name(experiment), q->f->seen[experiment].n_sequences_off,
                        q->f->seen[experiment].n_sequences);
    return LS_OK;
}

/* ---- everything else ---- */

/* Off again with other texts, and no lever takes it away or no trial says why. */
static void decide_unlisted(ls_inquiry *q) {
    const ls_seen *s = &q->f->seen[q->left];
    if (q->left == LS_STACK_SOLO_A || ls_probe_pass_over_keys(q->f)) return; /* none was */
    ls_foreign_find(q->f, LS_CAUSE_UNLISTED, q->left, 0.5,
                    "%s: %" PRId64 " of %" PRId64
                    " sequences are off by up to %.2g, and of other texts as well; its "
                    "control does not tell why. Try it with a fresh server, and with fewer levers",
                    ls_stack_experiment_name(q->left), s->n_sequences_off, s->n_sequences, s->abs_max);
}

/* Prompts that are longer than all others, and stop tokens, of which no cause is known. */
static ls_status decide_long(ls_inquiry *q, ls_error *err) {
    bool found = false;
    double sure;
    if (ls_stack_is_off(q, LS_STACK_STOPPED)) LS_TRY(weigh(q, LS_STACK_STOPPED, &sure, err));
    /* Completions are the longest there, and its control has as long ones. */
    if (ls_stack_is_off(q, LS_STACK_STAGGERED)) LS_TRY(ls_probe_decide_borders(q, &found, err));
    if (found || !ls_stack_is_off(q, LS_STACK_LONG)) return LS_OK;
    LS_TRY(ls_probe_decide_threshold(q, &found, err));
    return found ? LS_OK : weigh(q, LS_STACK_LONG, &sure, err);
}

/* Requests whose completions begin alike. */
static int64_t count_alike(const ls_outcomes *a, const ls_outcomes *b, int64_t tokens, int64_t *n) {
    int64_t n_alike = 0;
    *n = 0;
    for (int64_t s = 0; s < a->n && s < b->n; s++) {
        int64_t i = 0;
        while (i < tokens && i < a->of[s].n && i < b->of[s].n && a->of[s].completion[i] == b->of[s].completion[i]) i++;
        (*n)++;
        n_alike += i == tokens;
    }
    return n_alike;
}

/* A seed gives the same tokens alone and two at a time, and others among eight. Rounding moves a draw seldom. */
static void decide_seeds(ls_inquiry *q) {
    const ls_seen *seen = q->f->seen;
    int64_t n_again, n;
    const int64_t again = count_alike(&seen[LS_STACK_SOLO_LONG].outcomes, &seen[LS_STACK_AGAIN].outcomes, 6, &n_again);
    const int64_t alike = count_alike(&seen[LS_STACK_PAIR].outcomes, &seen[LS_STACK_BATCH].outcomes, 1, &n);
    if (n_again == 0 || again < n_again || n < 8 || 2 * alike > n) return;
    ls_foreign_find(q->f, LS_CAUSE_DRAWS_BY_SLOT, LS_STACK_BATCH, 0.93,
                    "with the same seed a request alone has the same tokens when it comes again; eight at a time and "
                    "two at a time %" PRId64 " of %" PRId64 " have the same first token. Records are right",
                    alike, n);
}

/* What requests with penalties and biases leave may stay for good. Then the control is off as well, which comes behind
 * them; right are the same requests that came before. */
static bool decide_marks(ls_inquiry *q) {
    const ls_seen *marked = &q->f->seen[LS_STACK_MARKED];
    int64_t off = 0, n = 0;
    double chance;
    for (int r = LS_STACK_SEQUENCE; r < LS_STACK_MARKED; r++) {
        off += q->f->seen[r].look == LS_LOOK_OFF ? q->f->seen[r].n_sequences_off : 0;
        n += q->f->seen[r].n_sequences;
    }
    if (!ls_stack_is_off(q, LS_STACK_MARKED) || 2 * marked->n_sequences_off < marked->n_sequences || off > 0)
        return false;
    chance = (double)LS_STACK_EXPERIMENTS * ls_probe_chance(marked->n_sequences_off, marked->n_sequences, off, n);
    ls_foreign_find(q->f, LS_CAUSE_STALE_SLOT, LS_STACK_MARKED, fmax(0.0, SURE - chance),
                    "behind requests with penalties and biases %" PRId64 " of %" PRId64
                    " sequences are off by up to %.2g; before there were any, none of %" PRId64 " was",
                    marked->n_sequences_off, marked->n_sequences, marked->abs_max, n);
    return true;
}

/* Something is off whose prompts are as long as blocks of a cache may be. */
static bool is_off_in_long_prompts(const ls_inquiry *q) {
    return ls_stack_is_off(q, LS_STACK_LONG) ||
           largest_share(q, LS_STACK_CACHED_SAME, LS_STACK_CACHED_TWINS_WHOLE) < LS_STACK_EXPERIMENTS;
}

/* A prefix cache is off, and not yet where it holds little. */
static bool is_off_when_full(const ls_inquiry *q) {
    return largest_share(q, LS_STACK_CACHED_SAME, LS_STACK_CACHED_TWINS_WHOLE) == LS_STACK_EXPERIMENTS &&
           (largest_share(q, LS_STACK_CACHED_LONG, LS_STACK_CACHED_BITS) < LS_STACK_EXPERIMENTS ||
            largest_share(q, LS_STACK_CACHED_MANY, LS_STACK_CACHED_LONGER) < LS_STACK_EXPERIMENTS);
}

static ls_status decide_levers(ls_inquiry *q, ls_error *err) {
    static const struct {
        ls_stack_experiment experiment;
        ls_cause cause;
        const char *what;
    } rest[] = {{LS_STACK_FORK, LS_CAUSE_FORK, "four samples of a prompt"},
                {LS_STACK_LEAVERS, LS_CAUSE_STALE_SLOT, "behind clients that left"},
                {LS_STACK_MARKED, LS_CAUSE_STALE_SLOT, "behind requests with penalties and biases"},
                {LS_STACK_EOS, LS_CAUSE_EOS_INSIDE, "with an end-of-sequence token inside"},
                {LS_STACK_BOS, LS_CAUSE_SPECIAL_TOKEN, "with a begin-of-sequence token inside"},
                {LS_STACK_PAD, LS_CAUSE_SPECIAL_TOKEN, "with the padding token inside"}};
    bool alone, talks, left, flushed, placed, evicted, grown, read, periodic;
    if (decide_marks(q)) return LS_OK;
    LS_TRY(decide_draws(q, err));
    if (q->f->found.n == 0 && is_off_when_full(q)) LS_TRY(ls_probe_decide_evicted(q, &evicted, err));
    if (q->f->found.n > 0) return LS_OK;
    if (ls_foreign_any_off(q->f)) LS_TRY(ls_probe_decide_periods(q, &periodic, err));
    if (q->f->found.n > 0) return LS_OK;
    if (!q->company_decided) LS_TRY(decide_company(q, err));
    if (q->f->found.n > 0) return LS_OK;
    if (!q->cache_decided) LS_TRY(decide_cache(q, err));
    for (size_t i = 0; i < sizeof rest / sizeof rest[0] && q->f->found.n == 0; i++) {
        ls_stack_experiment experiment;
        double sure;
        LS_TRY(strongest(q, rest[i].experiment, rest[i].experiment, &experiment, &sure, err));
        if (experiment < LS_STACK_EXPERIMENTS) list_cause(q, experiment, sure, rest[i].cause, rest[i].what);
        if (experiment == LS_STACK_LEAVERS && !holds(sure)) LS_TRY(ls_probe_decide_leavers(q, &left, err));
    }
    if (q->f->found.n == 0 && ls_stack_is_off(q, LS_STACK_LEFT)) LS_TRY(ls_probe_decide_left(q, &left, err));
    if (q->f->found.n == 0 && is_off_in_long_prompts(q)) LS_TRY(ls_probe_decide_flushed(q, &flushed, err));
    if (q->f->found.n == 0) LS_TRY(decide_load(q, &alone, err));
    if (q->f->found.n == 0) LS_TRY(ls_decide_failures(q, err));
    if (q->f->found.n == 0) LS_TRY(decide_long(q, err));
    if (q->f->found.n == 0) LS_TRY(ls_probe_decide_talk(q, &talks, err));
    if (q->f->found.n == 0) decide_seeds(q);
    if (q->f->found.n == 0 && q->left != LS_STACK_SOLO_A) LS_TRY(ls_probe_decide_positions(q, &placed, err));
    if (q->f->found.n == 0 && q->left == LS_STACK_PRESSED) LS_TRY(ls_probe_decide_grown(q, &grown, err));
    if (q->f->found.n == 0) LS_TRY(ls_probe_decide_lengths(q, err));
    if (q->f->found.n == 0 && (q->left == LS_STACK_LOAD || q->left == LS_STACK_PRESSED))
        LS_TRY(ls_probe_decide_readers(q, q->left, &read, err));
    if (q->f->found.n == 0) decide_unlisted(q);
    return LS_OK;
}

static bool company_is_off(const ls_inquiry *q) {
    return ls_stack_is_off(q, LS_STACK_PAIR) || ls_stack_is_off(q, LS_STACK_BATCH) ||
           ls_stack_is_off(q, LS_STACK_UNEQUAL);
}

static bool cache_alone_is_off(const ls_inquiry *q) {
    const ls_stack_experiment experiment = largest_share(q, LS_STACK_CACHED_SAME, LS_STACK_CACHED_TWINS_WHOLE);
    ls_trial trial;
    if (experiment == LS_STACK_EXPERIMENTS) return false;
    ls_stack_trial(q, experiment, &trial, NULL);
    return trial.levers.batch == 1;
}

/* Company and pairs of requests have controls of their own, so no later experiment says more of them, and there is time
 * for these while it is early. Missing values come first, whatever else is off. */
ls_status ls_probe_decide_early(ls_inquiry *q, ls_stack_experiment next, bool *named, ls_error *err) {
    const ls_server_oddities *o = q->runner->door->subject->odd;
    *named = false;
    if (o->n_missing > 0 || o->n_missing_again > 0 || count_zeros(q->f) >= 2 || ls_probe_is_odd(q)) return LS_OK;
    if (((next == LS_STACK_SEQUENCE && ls_stack_is_off(q, LS_STACK_BATCH)) || next == LS_STACK_CACHED_SAME) &&
        !q->company_decided && company_is_off(q)) {
        LS_TRY(decide_company(q, err));
        q->company_decided = q->f->found.n > 0 || q->rows_choose;
    } else if (next == LS_STACK_SEQUENCE && !company_is_off(q) && cache_alone_is_off(q)) {
        LS_TRY(decide_cache(q, err)); /* once more when more has been tried, where it is not told */
    } else if (next == LS_STACK_PROCESSED && !company_is_off(q) && cache_alone_is_off(q)) {
        q->cache_decided = true;
        LS_TRY(decide_cache(q, err));
    }
    *named = q->f->found.n > 0 && q->f->found.of[0].confidence >= LS_NAMED;
    return LS_OK;
}

ls_status ls_probe_decide(ls_inquiry *q, ls_error *err) {
    ls_foreign *f = q->f;
    bool wrong_solo = false, other_model = false, masked = false, missing;
    const bool has_pattern = f->found.n > 0;
    decide_oddities(q);
    decide_hangs(q);
    f->undecided = false; /* counts need no trial */
    if (f->found.n > 0 && f->found.of[0].confidence >= LS_NAMED) return LS_OK;
    LS_TRY(decide_missing(q, &missing, err));
    if (missing) return LS_OK;
    if (ls_probe_decide_records(q)) return LS_OK;
    if (has_pattern) return LS_OK;
    LS_TRY(ls_probe_solo_holds(q, &wrong_solo, err));
    if (wrong_solo) LS_TRY(ls_probe_decide_solo(q, err));
    LS_TRY(ls_probe_check_cut(q, err));
    if (f->found.n > 0 && f->found.of[0].confidence >= LS_NAMED) return LS_OK;
    LS_TRY(ls_probe_decide_checkpoint(q, &other_model, err));
    if (other_model) return LS_OK;
    if (!wrong_solo) LS_TRY(decide_levers(q, err));
    if (f->found.n > 0 && f->found.of[0].confidence >= LS_NAMED) return LS_OK;
    return ls_probe_decide_masked(q, &masked, err);
}
