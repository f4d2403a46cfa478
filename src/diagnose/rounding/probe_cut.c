/* Whether records are of a distribution that the server cuts by itself: of one text all draws are above the prompt's
 * values by one amount, and where one token is left its record is 0, which is then no value that is missing. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "diagnose/rounding/inquiry.h"

enum { TEXTS = 16, SEEDS = 6, SAMPLES = 4, TEXT = 4700, LENGTH = 9, DRAWN_MOST = SEEDS * SAMPLES, PAIRS_LEAST = 6 };
/* Draws of one text are as near as two paths are, and a text that is raised is so by more. */
#define NEAR_LEAST 0.02
#define RAISED 3.0 /* of that */
/* One amount for all texts is no cut. */
#define OTHER_AMOUNT 0.1
/* By chance a second token of a text is above its value by as much as the first one. */
#define PAIR_CHANCE 0.1
#define CHANCE 1e-4

/* Draws of one text at temperature 1, where a record is one value whether it follows the temperature or not. */
typedef struct drawn {
    int32_t tokens[DRAWN_MOST];
    int64_t n_tokens, n;            /* that differ; draws */
    double lowest, highest, likely; /* how far records are above the prompt's values; the last token's own */
    bool is_zero;                   /* of all records */
} drawn;

static ls_status lay_texts(ls_inquiry *q, int64_t ignored, ls_trial *trial, ls_requests *r, ls_error *err) {
    (void)ignored;
    ls_stack_trial(q, LS_STACK_COLD, trial, NULL);
    trial->max_tokens = 1;
    if (ls_probe_takes_samples(q)) trial->levers.samples = SAMPLES;
    for (int64_t i = 0; i < TEXTS; i++) LS_TRY(ls_requests_plain(q, r, TEXT + i, LENGTH, err));
    return LS_OK;
}

/* What stood there as 0 was passed over, and is looked at here. */
static void add_draw(drawn *out, const ls_outcome *c) {
    const double scored = c->n > 0 ? (double)c->scored[0] : (double)NAN;
    const double raised = (c->n_zero > 0 ? 0.0 : c->n > 0 ? (double)c->logprob[0] : (double)NAN) - scored;
    bool known = false;
    if (!isfinite(raised) || out->n == DRAWN_MOST) return;
    for (int64_t i = 0; i < out->n_tokens; i++) known = known || out->tokens[i] == c->completion[0];
    if (!known) out->tokens[out->n_tokens++] = c->completion[0];
    out->lowest = out->n > 0 ? fmin(out->lowest, raised) : raised;
    out->highest = out->n > 0 ? fmax(out->highest, raised) : raised;
    out->is_zero = (out->n == 0 || out->is_zero) && c->n_zero > 0;
    out->likely = scored;
    out->n++;
}

static ls_status draw_texts(ls_inquiry *q, drawn of[TEXTS], ls_error *err) {
    const uint64_t seed = q->runner->sweep->opts.seed;
    const int64_t seeds = ls_probe_takes_samples(q) ? 2 : SEEDS;
    ls_status status = LS_OK;
    for (int64_t k = 0; k < seeds && status == LS_OK; k++) {
        ls_seen s;
        q->runner->sweep->opts.seed = seed + 21 + (uint64_t)k;
        status = ls_foreign_try_laid(q, lay_texts, 0, &s, err);
        for (int64_t i = 0; status == LS_OK && i < s.outcomes.n && s.outcomes.n >= TEXTS; i++)
            add_draw(&of[i / (s.outcomes.n / TEXTS)], &s.outcomes.of[i]);
        ls_seen_deinit(&s);
        if (k == 0 && status == LS_OK && of[0].n == 0 && seeds < SEEDS) {
            q->refuses_samples = true;
            break;
        }
    }
    q->runner->sweep->opts.seed = seed;
    return status == LS_OK && seeds < SEEDS && q->refuses_samples ? draw_texts(q, of, err) : status;
}

typedef struct amounts {
    int64_t n_texts, n_raised, n_pairs, n_unlike; /* of several tokens; .. above by one amount; tokens beside it; not */
    int64_t n_sole;                               /* of one token, whatever the seed, whose record is 0 */
    double least, most, sole_chance;
} amounts;

static amounts amounts_of(const ls_inquiry *q, const drawn of[TEXTS]) {
    const double near = fmax(NEAR_LEAST, 2.0 * q->f->paths[LS_PATH_DECODE].q90);
    amounts a = {.least = (double)INFINITY, .sole_chance = 1.0};
    for (int k = 0; k < TEXTS; k++) {
        const drawn *t = &of[k];
        if (t->n_tokens == 1 && t->is_zero && t->likely < LS_SURE_TOKEN) {
            a.n_sole++;
            a.sole_chance *= exp(t->likely * (double)(t->n - 1));
        }
        if (t->n_tokens < 2) continue;
        a.n_texts++;
        a.n_unlike += t->highest - t->lowest > near || t->lowest < -near;
        if (t->highest - t->lowest > near || t->lowest < RAISED * near) continue;
        a.n_raised++;
        a.n_pairs += t->n_tokens - 1;
        a.least = fmin(a.least, t->lowest);
        a.most = fmax(a.most, t->highest);
    }
    return a;
}

ls_status ls_probe_decide_own_cut(ls_inquiry *q, bool *found, ls_error *err) {
    drawn of[TEXTS] = {0};
    amounts a;
    double chance;
    bool masked = false;
    LS_TRY(draw_texts(q, of, err));
    a = amounts_of(q, of);
    chance = a.n_pairs >= PAIRS_LEAST && a.most - a.least > OTHER_AMOUNT * a.most ? pow(PAIR_CHANCE, (double)a.n_pairs)
                                                                                  : 1.0;
    chance = fmin(chance, a.sole_chance);
    if (chance > CHANCE || 10 * a.n_unlike > a.n_texts) return LS_OK;
    if (a.n_sole == 0) LS_TRY(ls_probe_decide_masked(q, &masked, err)); /* which raises texts as well */
    *found = true;
    if (!masked)
        ls_foreign_find(q->f, LS_CAUSE_CUT, LS_STACK_COLD, ls_probe_sure(chance, ls_portion(a.n_unlike, a.n_texts)),
                        "at temperature 1 all draws of one text are above the prompt's values by one amount, up to "
                        "%.2g: so in %" PRId64 " of %" PRId64 " texts that gave several tokens. %" PRId64
                        " texts gave one token alone, whatever the seed, and its record is 0, as it is where a cut "
                        "leaves no other",
                        a.most, a.n_raised, a.n_texts, a.n_sole);
    return LS_OK;
}

/* ---- what is kept of a text ---- */

/* A cut draws from no others than what is normalised over. So the prompt's probabilities of the tokens that many draws
 * of one text give come near to what records are raised by, and never pass it. One number that is added to all records
 * has nothing to do with that. */
enum { KEPT_TEXTS = 3, KEPT_TEXT = 4720, KEPT_DRAWS = 320, KEPT_MORE = 48 };
#define KEPT_FROM 0.95
#define KEPT_TO 1.01
/* Of more than this nothing is cut that draws from all tokens would soon show. */
#define KEPT_MASS 0.8
/* By chance draws from all tokens come so near and stay there. */
#define KEPT_CHANCE 0.05

typedef struct kept {
    int32_t tokens[KEPT_DRAWS];
    int64_t n_tokens, n, n_unlike; /* that differ; draws; that are raised by another amount than the first */
    int64_t n_enough;              /* draws after which their tokens had nearly all; 0: they have not */
    double sum, mass, near;        /* of probabilities; of what records are normalised over */
} kept;

static ls_status lay_kept(ls_inquiry *q, int64_t text, ls_trial *trial, ls_requests *r, ls_error *err) {
    ls_stack_trial(q, LS_STACK_RAW, trial, NULL);
    trial->max_tokens = 1;
    trial->sampling.temperature = (float)LS_SLOPE_AT;
    if (ls_probe_takes_samples(q)) trial->levers.samples = SAMPLES;
    return ls_requests_plain(q, r, KEPT_TEXT + text, LENGTH, err);
}

static void add_kept(kept *out, const ls_outcome *c) {
    const double scored = c->n > 0 ? (double)c->scored[0] : (double)NAN;
    const double raised = c->n > 0 ? (double)c->logprob[0] - scored : (double)NAN;
    if (!isfinite(raised) || out->n == KEPT_DRAWS) return;
    if (out->n++ == 0) out->mass = exp(-raised);
    out->n_unlike += fabs(raised + log(out->mass)) > out->near;
    for (int64_t i = 0; i < out->n_tokens; i++)
        if (out->tokens[i] == c->completion[0]) return;
    out->tokens[out->n_tokens++] = c->completion[0];
    out->sum += exp(scored);
    if (out->n_enough == 0 && out->sum >= KEPT_FROM * out->mass) out->n_enough = out->n;
}

static bool may_be_kept(const kept *k) {
    return k->n_unlike == 0 && k->mass <= KEPT_MASS && k->sum <= KEPT_TO * k->mass;
}

/* So many draws more brought no others. */
static bool is_kept(const kept *k) {
    return may_be_kept(k) && k->n_tokens > 1 && k->n_enough > 0 && k->n >= k->n_enough + KEPT_MORE;
}

/* Draws until they are enough, or are of more than is kept. */
static ls_status draw_kept(ls_inquiry *q, int64_t text, kept *out, ls_error *err) {
    const uint64_t seed = q->runner->sweep->opts.seed;
    ls_status status = LS_OK;
    *out = (kept){.near = fmax(NEAR_LEAST, 2.0 * q->f->paths[LS_PATH_DECODE].q90), .mass = 1.0};
    out->near = fmin(out->near, OTHER_AMOUNT);
    for (uint64_t k = 0; k < KEPT_DRAWS && out->n < KEPT_DRAWS && status == LS_OK; k++) {
        const int64_t before = out->n;
        ls_seen s;
        q->runner->sweep->opts.seed = seed + 41 + k;
        status = ls_foreign_try_laid(q, lay_kept, text, &s, err);
        for (int64_t i = 0; status == LS_OK && i < s.outcomes.n; i++) add_kept(out, &s.outcomes.of[i]);
        ls_seen_deinit(&s);
        if (out->n == before || !may_be_kept(out) || is_kept(out)) break;
    }
    q->runner->sweep->opts.seed = seed;
    return status;
}

ls_status ls_probe_decide_kept(ls_inquiry *q, bool *found, ls_error *err) {
    double lowest = 1.0, highest = 0.0;
    int64_t n = 0, fewest = KEPT_DRAWS, most = 0;
    kept k;
    for (int64_t text = 0; text < KEPT_TEXTS; text++) {
        LS_TRY(draw_kept(q, text, &k, err));
        if (!is_kept(&k)) return LS_OK;
        n += k.n;
        lowest = fmin(lowest, k.sum / k.mass), highest = fmax(highest, k.sum / k.mass);
        fewest = k.n_tokens < fewest ? k.n_tokens : fewest, most = k.n_tokens > most ? k.n_tokens : most;
    }
    *found = true;
    ls_foreign_find(q->f, LS_CAUSE_CUT, LS_STACK_SOLO_LONG, ls_probe_sure(pow(KEPT_CHANCE, KEPT_TEXTS), 0.0),
                    "%" PRId64 " draws of %d texts give %" PRId64 " to %" PRId64
                    " tokens of each. By the prompt's values these have %.3f to %.3f of the probability that records "
                    "are normalised over, and no draw is of another token",
                    n, KEPT_TEXTS, fewest, most, lowest, highest);
    return LS_OK;
}

/* A cut divides all values of one text by the same: draws of it are as far apart as the prompt's values. Of another
 * text it is another number, which a constant is not. */
#define CUT_LEFT 0.2
ls_status ls_probe_check_cut(ls_inquiry *q, ls_error *err) {
    ls_foreign *f = q->f;
    ls_slope line;
    bool holds = false;
    if (f->found.n == 0 || f->found.of[0].cause != LS_CAUSE_CUT || f->found.of[0].confidence < LS_NAMED) return LS_OK;
    LS_TRY(ls_probe_measure_line(q, &line, err));
    if (line.cut_least > 0.0) return LS_OK;
    if (line.n >= 12 && fabs(line.slope - 1.0) <= 0.1 && line.left <= CUT_LEFT) {
        if (ls_probe_hangs_on_text(&line)) return LS_OK;
        LS_TRY(ls_probe_decide_kept(q, &holds, err)); /* texts may be much alike */
    }
    if (!holds) f->found.of[0].confidence = 0.6;
    return LS_OK;
}
