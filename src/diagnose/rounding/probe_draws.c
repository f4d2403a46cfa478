/* Records of several draws of one text, likely and unlikely ones: whether they are one value for any token, whether
 * they have a least value that hangs on the text, and whether they are of a vocabulary that lacks some ids. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "diagnose/rounding/inquiry.h"

enum { TEXTS = 3, SEEDS = 6, SAMPLES = 4, HEATS = 3, MOST = SEEDS * HEATS + SAMPLES * HEATS, LENGTH = 9, TEXT = 4600 };
/* From likely tokens to all. */
static const float heats[HEATS] = {0.25f, 1.0f, 2.0f};

typedef struct draw {
    int32_t token;
    double x, y; /* the prompt's value, and the record */
} draw;

typedef struct drawn {
    draw of[MOST]; /* of tokens that differ */
    int64_t n;
} drawn;

bool ls_probe_takes_samples(const ls_inquiry *q) {
    return (q->runner->door->subject->obeys >> ls_lever_find("samples") & 1) != 0 && !q->refuses_samples;
}

static ls_status lay_draw(ls_inquiry *q, int64_t value, ls_trial *trial, ls_requests *r, ls_error *err) {
    ls_stack_trial(q, LS_STACK_RAW, trial, NULL);
    trial->max_tokens = 1;
    trial->sampling.temperature = heats[value % HEATS];
    if (ls_probe_takes_samples(q)) trial->levers.samples = SAMPLES;
    return ls_requests_plain(q, r, TEXT + value / HEATS, LENGTH, err);
}

static void add_draw(drawn *out, const ls_outcome *c) {
    if (c->n == 0 || !isfinite(c->logprob[0]) || !isfinite(c->scored[0])) return;
    for (int64_t i = 0; i < out->n; i++)
        if (out->of[i].token == c->completion[0]) return;
    if (out->n < MOST) out->of[out->n++] = (draw){c->completion[0], (double)c->scored[0], (double)c->logprob[0]};
}

static ls_status draw_texts(ls_inquiry *q, drawn of[TEXTS], ls_error *err) {
    const uint64_t seed = q->runner->sweep->opts.seed;
    const int64_t seeds = ls_probe_takes_samples(q) ? SEEDS / SAMPLES + 1 : SEEDS;
    ls_status status = LS_OK;
    for (int64_t k = 0; k < TEXTS * HEATS * seeds && status == LS_OK; k++) {
        ls_seen s;
        q->runner->sweep->opts.seed = seed + 1 + (uint64_t)(k % seeds);
        status = ls_foreign_try_laid(q, lay_draw, k / seeds, &s, err);
        for (int64_t i = 0; status == LS_OK && i < s.outcomes.n; i++)
            add_draw(&of[k / seeds / HEATS], &s.outcomes.of[i]);
        ls_seen_deinit(&s);
        if (k == 0 && status == LS_OK && of[0].n == 0 && ls_probe_takes_samples(q)) {
            q->refuses_samples = true;
            break;
        }
    }
    q->runner->sweep->opts.seed = seed;
    return status == LS_OK && seeds < SEEDS && q->refuses_samples ? draw_texts(q, of, err) : status;
}

/* ---- one value for any token, or a least one ---- */

#define SAME 1e-5
enum { TOKENS_LEAST = 5, SHARED_LEAST = 3 };

/* Of one text: the lowest record, how many tokens have it that should have less, and how many others have their own. */
typedef struct least {
    double value;
    int64_t n_shared, n_own, n_neither;
} least;

static least least_of(const drawn *d, double near) {
    least out = {.value = (double)INFINITY};
    for (int64_t i = 0; i < d->n; i++) out.value = fmin(out.value, d->of[i].y);
    for (int64_t i = 0; i < d->n; i++) {
        const bool shared = d->of[i].y - out.value < SAME && d->of[i].x < out.value + near;
        const bool own = fabs(d->of[i].y - d->of[i].x) <= near && d->of[i].x > out.value - near;
        out.n_shared += shared;
        out.n_own += own && !shared;
        out.n_neither += !shared && !own;
    }
    return out;
}

/* Of each text another one: a bound of all is told by the records alone. */
static void decide_least(ls_inquiry *q, const drawn of[TEXTS], bool *found) {
    const double near = ls_probe_moved_from(q);
    double lowest = (double)INFINITY, highest = -(double)INFINITY;
    int64_t n_shared = 0, n_own = 0, n_neither = 0;
    for (int k = 0; k < TEXTS; k++) {
        const least one = least_of(&of[k], near);
        if (one.n_shared < SHARED_LEAST) return;
        lowest = fmin(lowest, one.value);
        highest = fmax(highest, one.value);
        n_shared += one.n_shared, n_own += one.n_own, n_neither += one.n_neither;
    }
    *found = n_own >= TEXTS && n_neither == 0 && highest - lowest > SAME;
    if (*found) /* by chance one in a thousand has another one's value to the last bits */
        ls_foreign_find(
            q->f, LS_CAUSE_CLAMPED, LS_STACK_SOLO_LONG, ls_probe_sure(pow(1e-3, (double)(n_shared - TEXTS)), 0.0),
            "of each of %d texts unlikely tokens have one record, %.3g to %.3g by the text, as a token at a "
            "fixed place of the list has: %" PRId64 " tokens that should have less. %" PRId64
            " likelier ones have their own",
            TEXTS, lowest, highest, n_shared, n_own);
}

/* All tokens of a text have one record, and it is the value of one of them. */
static void decide_one(ls_inquiry *q, const drawn of[TEXTS], bool *found) {
    int64_t n = 0, n_values = 0;
    for (int k = 0; k < TEXTS; k++) {
        bool is_value = false;
        if (of[k].n < TOKENS_LEAST) return;
        for (int64_t i = 0; i < of[k].n; i++) {
            if (fabs(of[k].of[i].y - of[k].of[0].y) > SAME) return;
            is_value = is_value || fabs(of[k].of[i].x - of[k].of[0].y) < fmax(SAME, 0.02 * ls_probe_moved_from(q));
        }
        n += of[k].n;
        n_values += is_value;
    }
    *found = true;
    ls_foreign_find(q->f, n_values == TEXTS ? LS_CAUSE_OTHER_RECORDS : LS_CAUSE_UNLISTED, LS_STACK_SOLO_LONG,
                    n_values == TEXTS ? ls_probe_sure(pow(1e-3, (double)(n - TEXTS)), 0.0) : 0.7,
                    "of each of %d texts any token has one record, %" PRId64 " tokens; of %" PRId64
                    " texts it is the value of one of them",
                    TEXTS, n, n_values);
}

/* ---- a vocabulary that lacks ids ---- */

/* Of one text all records lie above the prompt's values by one height, and of another text by another one: they are of
 * a distribution that lacks something. Which ids that is, the server says: their probabilities make that height. */
#define HEIGHT_LEAST 5e-4
#define OF_HEIGHT 0.05                             /* of the highest: scatter of a text; what the right ids leave */
enum { IDS = 12, ENDS = 2 * IDS, SETS = 4 * IDS }; /* the first ids, the last ones */

/* Of requests alone nearly no record is below the prompt's value: of a distribution that lacks a little none is. */
#define ABOVE_SHARE 0.95
enum { ABOVE_LEAST = 20 };
static bool are_above(const ls_inquiry *q) {
    int64_t n = 0, n_above = 0;
    for (int r = 0; r < LS_PROBE_SOLO; r++) {
        const ls_outcomes *o = &q->f->seen[ls_probe_solo[r]].outcomes;
        for (int64_t s = 0; s < o->n; s++)
            for (int64_t i = 0; i < o->of[s].n; i++) {
                if (!((double)o->of[s].scored[i] < LS_SURE_TOKEN)) continue;
                n++, n_above += (double)o->of[s].logprob[i] > (double)o->of[s].scored[i];
            }
    }
    return n >= ABOVE_LEAST && (double)n_above > ABOVE_SHARE * (double)n;
}

typedef struct heights {
    double of[TEXTS], highest;
    int64_t n;
    bool are_flat; /* each text has one, and they differ */
} heights;

static heights heights_of(const drawn of[TEXTS]) {
    heights h = {.are_flat = true};
    double lowest = (double)INFINITY;
    for (int k = 0; k < TEXTS; k++) {
        for (int64_t i = 0; i < of[k].n; i++) h.of[k] += (of[k].of[i].y - of[k].of[i].x) / (double)of[k].n;
        h.n += of[k].n;
        lowest = fmin(lowest, h.of[k]);
        h.highest = fmax(h.highest, h.of[k]);
        h.are_flat = h.are_flat && of[k].n >= TOKENS_LEAST;
    }
    for (int k = 0; k < TEXTS; k++)
        for (int64_t i = 0; i < of[k].n; i++)
            h.are_flat = h.are_flat && fabs(of[k].of[i].y - of[k].of[i].x - h.of[k]) < OF_HEIGHT * h.highest;
    h.are_flat = h.are_flat && h.highest > HEIGHT_LEAST && h.highest - lowest > 2.0 * OF_HEIGHT * h.highest;
    return h;
}

static int32_t id_at(const ls_inquiry *q, int i) {
    return i < IDS ? i : q->config->vocab > ENDS ? q->config->vocab - 1 - (i - IDS) : -1;
}

static ls_status ask_ids(ls_inquiry *q, int64_t text, double p[ENDS], ls_error *err) {
    int32_t ids[LENGTH];
    for (int64_t i = 0; i < LENGTH; i++) ids[i] = ls_plain_token(q, TEXT + text, i);
    for (int i = 0; i < ENDS; i++) {
        const int32_t id = id_at(q, i);
        float value = -INFINITY;
        if (id >= 0) LS_TRY(ls_probe_score(q, (ls_prompt){ids, LENGTH}, &id, 1, &value, err));
        p[i] = exp((double)value);
    }
    return LS_OK;
}

/* A set of ids is one of them alone; or, behind those, so many of the first or of the last. */
static double sum_of(const double *p, int set) {
    const int at = set % ENDS;
    double sum = 0.0;
    for (int i = set < ENDS ? at : at / IDS * IDS; i <= at; i++) sum += p[i];
    return sum;
}

static void tell_set(const ls_inquiry *q, int set, char *out, size_t bytes) {
    const int at = set % ENDS, from = set < ENDS ? at : at / IDS * IDS;
    snprintf(out, bytes, from < at ? "ids %d to %d" : "id %d", (int)id_at(q, from), (int)id_at(q, at));
}

/* The set that makes the heights of all texts, to *left of them; -1: none does. */
static int set_of(double p[TEXTS][ENDS], const heights *h, double *left) {
    int best = -1;
    *left = OF_HEIGHT;
    for (int set = 0; set < SETS; set++) {
        double one = 0.0;
        for (int k = 0; k < TEXTS; k++)
            one = fmax(one, fabs(-log1p(-fmin(sum_of(p[k], set), 0.999)) - h->of[k]) / h->highest);
        if (one < *left) *left = one, best = set;
    }
    return best;
}

static ls_status decide_lacking(ls_inquiry *q, const drawn of[TEXTS], bool *found, ls_error *err) {
    const heights h = heights_of(of);
    const int32_t eos = q->config->n_eos > 0 ? q->config->eos[0] : -1;
    char which[64] = "tokens that are none of the first and last ids";
    double p[TEXTS][ENDS], left;
    int set;
    if (!h.are_flat || !are_above(q)) return LS_OK;
    for (int64_t k = 0; k < TEXTS; k++) LS_TRY(ask_ids(q, k, p[k], err));
    set = set_of(p, &h, &left);
    if (set >= 0) tell_set(q, set, which, sizeof which);
    *found = true;
    /* A set leaves so little by chance in as large a share of texts. */
    ls_foreign_find(
        q->f, set >= 0 && set < ENDS && id_at(q, set) == eos ? LS_CAUSE_EOS_MASKED : LS_CAUSE_CUT, LS_STACK_SOLO_LONG,
        set >= 0 ? fmax(0.85, ls_probe_sure(SETS * pow(left, TEXTS), 0.0)) : 0.85,
        "records of any token of one text are above the prompt's values by as much, over %" PRId64
        " tokens of %d texts, and by %.2g, %.2g and %.2g by the text: they are of a distribution without %s%s",
        h.n, TEXTS, h.of[0], h.of[1], h.of[2], which, set >= 0 ? ", whose probabilities make just that" : "");
    return LS_OK;
}

ls_status ls_probe_decide_draws(ls_inquiry *q, bool *found, ls_error *err) {
    drawn *of;
    ls_status status;
    if (q->of_pattern && !are_above(q)) return LS_OK; /* the others move values by more than two kernels do */
    of = calloc(TEXTS, sizeof *of);
    LS_TRY_DONE(of != NULL ? LS_OK : LS_FAIL(err, LS_ERR_NOMEM, "draws"));
    LS_TRY_DONE(draw_texts(q, of, err));
    decide_least(q, of, found);
    if (!*found) decide_one(q, of, found);
    if (!*found) LS_TRY_DONE(decide_lacking(q, of, found, err));
done:
    free(of);
    return status;
}
