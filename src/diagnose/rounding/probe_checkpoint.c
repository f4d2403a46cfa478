/* Server and checkpoint: both sides of the server are alike, and not as the checkpoint has it. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "diagnose/rounding/inquiry.h"

/* Another model than the checkpoint's, in spreads of our own orders of addition: more than any order makes; or so much
 * that rounding cannot be most of it, where it is not drawn anew either. */
#define OTHER_MODEL 8.0
#define MORE_THAN_ORDERS 3.0

/* ---- whether what is apart is drawn anew ---- */

/* Texts, each with two first tokens; values of the last few tokens, which have the rest of the text in front. */
enum { TEXTS = 24, LENGTH = 64, LAST = 4, VALUES = TEXTS * LAST, TEXT = 4200, OTHER_FIRST = 4300, GROUPS = 2 };
/* Of how far the two rank correlations are apart, in the spread that chance gives it. */
#define LIKE_SPREADS 4.0
enum { VALUES_LEAST = 40, VALUES_OF_ALL = 20 };

typedef struct version {
    ls_sweep_trainer *of;
    ls_dtype dtype;
} version;

/* Values of the last tokens of texts from `text` on; `other`: with another first token. */
static ls_status score(ls_inquiry *q, const version *v, int64_t text, bool other, double *out, ls_error *err) {
    ls_requests *r = calloc(1, sizeof *r);
    ls_outcomes o = {0};
    ls_trial trial;
    ls_status status;
    LS_TRY_DONE(r != NULL ? LS_OK : LS_FAIL(err, LS_ERR_NOMEM, "prompts"));
    for (int64_t i = 0; i < TEXTS; i++) {
        int32_t ids[LENGTH - LAST];
        for (int64_t k = 0; k < LENGTH - LAST; k++)
            ids[k] = ls_plain_token(q, other && k == 0 ? text + OTHER_FIRST - TEXT + i : text + i, k);
        LS_TRY_DONE(ls_requests_add(r, ids, LENGTH - LAST, err));
    }
    ls_stack_trial(q, LS_STACK_SOLO_C, &trial, NULL);
    trial.max_tokens = LAST;
    trial.dtype = v->dtype;
    trial.profile = LS_PROFILE_EXACT;
    LS_TRY_DONE(ls_outcomes_create(&o, &trial, r->of, r->n, err));
    for (int64_t i = 0; i < o.n; i++) {
        o.of[i].n = LAST;
        for (int64_t k = 0; k < LAST; k++) o.of[i].completion[k] = ls_plain_token(q, text + i, LENGTH - LAST + k);
    }
    LS_TRY_DONE(ls_sweep_trainer_score(v->of, &trial, &o, err));
    for (int64_t i = 0; i < VALUES; i++) out[i] = (double)o.of[i / LAST].scored[i % LAST];
done:
    ls_outcomes_deinit(&o);
    if (r != NULL) free(r->ids);
    free(r);
    return status;
}

/* How alike values are apart with either first token: the server's, and ours in bf16, from ours in float32. */
typedef struct likeness {
    double seen, rounding;
    int64_t n;
} likeness;

static ls_status measure_likeness(ls_inquiry *q, int64_t text, likeness *out, ls_error *err) {
    const version of[3] = {{q->runner->sweep->opts.checkpoint, LS_F32},
                           {q->runner->door->trainer, LS_F32},
                           {q->runner->sweep->opts.checkpoint, LS_BF16}};
    double values[3][2][VALUES], d[3][2][VALUES];
    *out = (likeness){0};
    for (int k = 0; k < 3; k++)
        for (int other = 0; other < 2; other++) LS_TRY(score(q, &of[k], text, other == 1, values[k][other], err));
    for (int64_t i = 0; i < VALUES; i++) {
        bool counts = values[0][0][i] < LS_SURE_TOKEN;
        for (int k = 0; k < 3; k++)
            for (int other = 0; other < 2; other++) counts = counts && isfinite(values[k][other][i]);
        if (!counts) continue;
        for (int k = 1; k < 3; k++)
            for (int other = 0; other < 2; other++) d[k][other][out->n] = values[k][other][i] - values[0][other][i];
        out->n++;
    }
    out->seen = ls_rank_correlation(d[1][0], d[1][1], out->n);
    out->rounding = ls_rank_correlation(d[2][0], d[2][1], out->n);
    return LS_OK;
}

/* Rounding is drawn anew when a token far in front is another one. Another weight is not. Of two sets of texts. */
static ls_status decide_anew(ls_inquiry *q, bool *found, ls_error *err) {
    const ls_expected *e = &q->f->expected;
    double seen = 0.0, rounding = 0.0, nearer = 0.0, chance = 0.0;
    int64_t n = 0;
    for (int64_t group = 0; group < GROUPS; group++) {
        likeness l;
        LS_TRY(measure_likeness(q, TEXT + TEXTS * group, &l, err));
        if (l.n < VALUES_LEAST) {
            *found = false;
            return LS_OK;
        }
        seen += l.seen / GROUPS;
        rounding += l.rounding / GROUPS;
        nearer += atanh(l.seen) - atanh(l.rounding);
        chance += 2.0 / (double)(l.n - 3);
        n += l.n;
    }
    *found = nearer > LIKE_SPREADS * sqrt(chance);
    if (*found)
        ls_foreign_find(q->f, LS_CAUSE_WEIGHTS, LS_STACK_SOLO_LONG, 0.97 - 0.2 * (1.0 - seen) / (1.0 - rounding),
                        "the server's values of prompts are %.2g away from the checkpoint's, where orders of addition "
                        "in bf16 make %.2g; with another first token they are so at the same of %" PRId64
                        " places (rank correlation %.3f), and what bf16 makes is not (%.3f)",
                        e->apart, e->median, n, seen, rounding);
    return LS_OK;
}

/* Where nobody can say whether keys are of 8 bits, what these may make is listed. */
#define OF_KEYS_PERHAPS 0.75
static void decide_far(ls_inquiry *q, bool fine, bool perhaps, double limit) {
    const ls_expected *e = &q->f->expected;
    const double sure = 0.98 - 0.4 * limit / OTHER_MODEL / e->apart;
    ls_foreign_find(q->f, LS_CAUSE_WEIGHTS, LS_STACK_SOLO_LONG, perhaps ? fmin(sure, OF_KEYS_PERHAPS) : sure,
                    "the server's values of prompts are %.2g away from the checkpoint's in the middle of %" PRId64
                    " tokens, and %s %.2g; what it generates agrees with its prompts (%.2g)%s",
                    e->apart, e->n, fine ? "keys of two bytes make less than" : "orders of addition in bf16 make",
                    fine ? limit : e->median, q->f->floor,
                    perhaps ? ". Keys and values in 8 bits may make that"
                    : fine  ? ". Keys and values in 8 bits do not make that"
                            : "");
}

/* Keys and values in 8 bits are a choice: they make more than such of two bytes, and of both sides alike. Where one of
 * them falls on the other side of a rounding, a value moves by less than all of them together make. */
ls_status ls_probe_ask_for_keys(ls_inquiry *q, ls_error *err) {
    const ls_expected *e = &q->f->expected;
    ls_sweep_trainer *checkpoint = q->runner->sweep->opts.checkpoint;
    ls_model *model;
    if (checkpoint == NULL || ls_sweep_trainer_directory(checkpoint) == NULL || e->n < VALUES_OF_ALL ||
        !(e->apart > LS_FLIP_OF_F16) || !ls_probe_is_fine(&q->f->seen[LS_STACK_LENGTHS].outcomes, INT64_MAX))
        return LS_OK;
    LS_TRY(ls_sweep_trainer_model(checkpoint, 0, &model, err));
    LS_TRY(ls_probe_has_coarse_keys(q, ls_sweep_trainer_directory(checkpoint), &model->config, &q->asked_for_keys,
                                    &q->has_coarse_keys, err));
    if (q->has_coarse_keys) q->f->limit = fmax(q->f->limit, e->apart);
    return LS_OK;
}

/* What bf16 makes of the whole model is no excuse for a server whose two sides agree as float32 does. It may have keys
 * and values in a type of two bytes: in f16 they make little, in bf16 a part of what the whole makes. In between values
 * are held against that: rounding is drawn anew. In a type of one byte they make more, and the checkpoint with such
 * keys says whether it is that. */
ls_status ls_probe_decide_checkpoint(ls_inquiry *q, bool *found, ls_error *err) {
    const ls_expected *e = &q->f->expected;
    const bool out_of_time = q->f->out_of_time;
    const bool fine = ls_probe_is_fine(&q->f->seen[LS_STACK_LENGTHS].outcomes, INT64_MAX);
    const double limit = fine ? fmax(LS_FLIP_OF_F16, e->median) : fmax(OTHER_MODEL * e->median, 1e-3);
    const double least = fine ? LS_FLIP_OF_F16 : fmax(MORE_THAN_ORDERS * e->median, 1e-3);
    bool perhaps;
    *found = !q->has_coarse_keys && e->n >= VALUES_OF_ALL && e->apart > limit;
    if (*found && q->f->repeat > q->f->limit) { /* no weights and no formula give one request two values */
        ls_foreign_find(q->f, LS_CAUSE_NOT_REPEATABLE, LS_STACK_AGAIN, 0.7,
                        "the same request twice differs by up to %.2g, where a token is off from %.2g on; what changed "
                        "between them was not found",
                        q->f->repeat, q->f->limit);
        return LS_OK;
    }
    if (q->has_coarse_keys) return LS_OK;
    q->f->out_of_time = false; /* both sides are alike: no lever has to be tried to tell it */
    perhaps = *found && fine && !q->asked_for_keys && e->apart <= OTHER_MODEL * e->median;
    if (*found && !perhaps)
        decide_far(q, fine, false, limit);
    else if (perhaps || (e->n >= VALUES_OF_ALL && e->apart > least && !(q->f->repeat > q->f->limit)))
        LS_TRY(decide_anew(q, found, err));
    if (perhaps && !*found) decide_far(q, fine, true, limit);
    *found = *found || perhaps;
    q->f->out_of_time = out_of_time;
    return LS_OK;
}
