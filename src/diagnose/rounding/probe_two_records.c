/* Whether one token behind one text has two records, by the seed alone: the one is its value, and the other is another
 * model's, as that of a draft is. */
#include <inttypes.h>
#include <math.h>

#include "diagnose/rounding/inquiry.h"

enum { TEXTS = 8, SEEDS = 16, TEXT = 4880, LENGTH = 9, BOTH_LEAST = 2, BOTH_SURE = 4 };
/* So low that draws of one text are often the same token. */
#define COOL 0.5f
#define SAME 1e-4
#define NEAR 0.2 /* of what is off */
/* By chance a token has another record, and it is the same with the same seed. */
#define BOTH_CHANCE 0.03

static ls_status lay_texts(ls_inquiry *q, int64_t ignored, ls_trial *trial, ls_requests *r, ls_error *err) {
    (void)ignored;
    ls_stack_trial(q, LS_STACK_RAW, trial, NULL);
    trial->sampling.temperature = COOL;
    trial->max_tokens = 1;
    for (int64_t i = 0; i < TEXTS; i++) LS_TRY(ls_requests_plain(q, r, TEXT + i, LENGTH, err));
    return LS_OK;
}

typedef struct one_draw {
    int32_t token;
    double record, scored;
} one_draw;

/* Seeds in their order or backwards, which servers that take turns notice. */
static ls_status draw_all(ls_inquiry *q, bool backwards, one_draw of[SEEDS][TEXTS], ls_error *err) {
    const uint64_t seed = q->runner->sweep->opts.seed;
    ls_status status = LS_OK;
    for (int64_t turn = 0; turn < SEEDS && status == LS_OK; turn++) {
        const int64_t k = backwards ? SEEDS - 1 - turn : turn;
        ls_seen s;
        q->runner->sweep->opts.seed = seed + 41 + (uint64_t)k;
        status = ls_foreign_try_laid(q, lay_texts, 0, &s, err);
        for (int64_t i = 0; status == LS_OK && i < TEXTS; i++) {
            const ls_outcome *c = i < s.outcomes.n ? &s.outcomes.of[i] : NULL;
            of[k][i] = c != NULL && c->n > 0 ? (one_draw){c->completion[0], (double)c->logprob[0], (double)c->scored[0]}
                                             : (one_draw){-1, 0.0, 0.0};
        }
        ls_seen_deinit(&s);
    }
    q->runner->sweep->opts.seed = seed;
    return status;
}

/* Of one text's token: how many records are its value, how many are one other, and how many are neither. */
typedef struct records {
    int64_t n_right, n_other, n_neither;
    bool is_far; /* the other from the value */
} records;

static records records_of(one_draw of[SEEDS][TEXTS], int64_t text, int64_t from, double near, double far) {
    const one_draw *one = &of[from][text];
    double other = (double)NAN;
    records out = {0};
    for (int64_t k = 0; k < SEEDS; k++) {
        const one_draw *d = &of[k][text];
        if (d->token != one->token) continue;
        if (fabs(d->record - d->scored) <= near) {
            out.n_right++;
            continue;
        }
        if (isnan(other)) other = d->record, out.is_far = fabs(d->record - d->scored) > far;
        *(fabs(d->record - other) <= SAME ? &out.n_other : &out.n_neither) += 1;
    }
    return out;
}

static bool is_new_token(one_draw of[SEEDS][TEXTS], int64_t text, int64_t at) {
    for (int64_t k = 0; k < at; k++)
        if (of[k][text].token == of[at][text].token) return false;
    return of[at][text].token >= 0;
}

/* Of first tokens alone some are right and some are off. */
enum { EACH_LEAST = 4 };
static bool are_mixed(const ls_foreign *f, double near, double far) {
    const ls_outcomes *o = &f->seen[LS_STACK_LENGTHS].outcomes;
    int64_t n_right = 0, n_off = 0;
    for (int64_t s = 0; s < o->n; s++) {
        const ls_outcome *c = &o->of[s];
        const double d = c->n > 0 ? fabs((double)c->scored[0] - (double)c->logprob[0]) : (double)NAN;
        n_right += d <= near && (double)c->scored[0] < LS_SURE_TOKEN;
        n_off += d > far;
    }
    return n_right >= EACH_LEAST && n_off >= EACH_LEAST;
}

ls_status ls_probe_decide_two_records(ls_inquiry *q, bool *found, ls_error *err) {
    const double far = ls_probe_moved_from(q), near = NEAR * far;
    one_draw of[SEEDS][TEXTS], again[SEEDS][TEXTS];
    int64_t n_both = 0, n_again = 0, n_neither = 0, n_moved = 0;
    if (!are_mixed(q->f, near, far)) return LS_OK;
    LS_TRY(draw_all(q, false, of, err));
    for (int64_t text = 0; text < TEXTS; text++)
        for (int64_t k = 0; k < SEEDS; k++) {
            const records r = records_of(of, text, k, near, far);
            if (!is_new_token(of, text, k)) continue;
            n_both += r.n_right > 0 && r.is_far;
            n_again += r.n_other > 1 ? r.n_other - 1 : 0;
            n_neither += r.n_neither;
        }
    if (n_both < BOTH_LEAST || 4 * n_neither > n_both) return LS_OK;
    LS_TRY(draw_all(q, true, again, err));
    for (int64_t i = 0; i < SEEDS * TEXTS; i++) {
        const one_draw *a = &of[i / TEXTS][i % TEXTS], *b = &again[i / TEXTS][i % TEXTS];
        n_moved += a->token != b->token || fabs(a->record - b->record) > fmax(SAME, near);
    }
    *found = 20 * n_moved <= SEEDS * TEXTS;
    if (*found)
        ls_foreign_find(q->f, LS_CAUSE_WEIGHTS, LS_STACK_SOLO_C,
                        fmin(n_both >= BOTH_SURE ? 0.93 : 0.85, ls_probe_sure(pow(BOTH_CHANCE, (double)n_both), 0.0)),
                        "one token behind one text has two records, by the seed alone: %" PRId64
                        " tokens of %d texts have their value with some seeds and one other with others, which came "
                        "again %" PRId64
                        " times to the last bits, and with the same seed always. The other is another "
                        "model's, as a draft's is",
                        n_both, TEXTS, n_again);
    return LS_OK;
}
