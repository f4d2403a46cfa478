/* Requests that run while a long prompt is read, a part in each step: whether their records are then those of other
 * rows of the step. The same requests beside a short one in its place are right. */
#include <inttypes.h>
#include <math.h>

#include "diagnose/rounding/inquiry.h"

/* One prompt alone is read at a time, so that most rows of a step are those of requests that run. */
enum { ROUNDS = 3, AT_ONCE = 8, READER = 5, TEXT = 5000, SHORT = 9, LONG = 320, NEW = 32 };
/* So many tokens of a request are off; and so many of them have a token's value of one other request, at places as far
 * apart, which chance makes of one request in ten thousand. */
enum { OFF_LEAST = 5, ALIGNED_LEAST = 4, EXPLAINED_LEAST = 4 };
#define NEAR_MOST 0.05
#define EXPLAINED_CHANCE 1e-4

/* `text` below 0: none is read. */
static ls_status lay_readers(ls_inquiry *q, int64_t text, ls_trial *trial, ls_requests *r, ls_error *err) {
    const int64_t first = text < 0 ? -text : text;
    ls_stack_trial(q, LS_STACK_STAGGERED, trial, NULL);
    trial->levers.batch = AT_ONCE;
    trial->max_tokens = NEW;
    for (int64_t i = 0; i < AT_ONCE; i++)
        LS_TRY(ls_requests_plain(q, r, first + i, text > 0 && i == READER ? LONG : SHORT, err));
    return LS_OK;
}

static int64_t count_tokens_off(const ls_foreign *f, const ls_outcome *c) {
    int64_t n = 0;
    for (int64_t i = 0; i < c->n; i++) n += ls_token_off(f, c, i);
    return n;
}

/* Of what is off in `c`, most that have the value of the token so many places on in another request. */
static int64_t count_aligned(const ls_foreign *f, const ls_outcome *c, const ls_outcome *other, double near) {
    int64_t most = 0;
    for (int64_t by = -c->n; by <= other->n; by++) {
        int64_t n = 0;
        for (int64_t i = by < 0 ? -by : 0; i < c->n && i + by < other->n; i++)
            n += ls_token_off(f, c, i) && fabs((double)c->logprob[i] - (double)other->scored[i + by]) <= near;
        if (n > most) most = n;
    }
    return most;
}

/* Requests with several tokens off, and those of them that one other request explains. */
static void count_explained(const ls_foreign *f, const ls_outcomes *o, int64_t *n, int64_t *n_explained) {
    const double near = fmax(1e-5, fmin(f->floor_q90, NEAR_MOST));
    for (int64_t s = 0; s < o->n; s++) {
        const int64_t n_off = count_tokens_off(f, &o->of[s]);
        int64_t most = 0;
        if (n_off < OFF_LEAST) continue;
        for (int64_t k = 0; k < o->n; k++) {
            const int64_t one = k != s ? count_aligned(f, &o->of[s], &o->of[k], near) : 0;
            if (one > most) most = one;
        }
        ++*n;
        *n_explained += most >= ALIGNED_LEAST && 2 * most > n_off;
    }
}

ls_status ls_probe_decide_readers(ls_inquiry *q, ls_stack_experiment experiment, bool *found, ls_error *err) {
    const int64_t most = q->runner->sweep->opts.length_max;
    int64_t off[2] = {0, 0}, n = 0, n_explained = 0;
    *found = false;
    if (most > 0 && LONG + NEW + 1 > most) return LS_OK;
    for (int64_t k = 0; k < ROUNDS && (k == 0 || n_explained > 0); k++)
        for (int alone = 0; alone < 2; alone++) {
            ls_seen s;
            LS_TRY(ls_foreign_try_laid(q, lay_readers, (alone ? -1 : 1) * (TEXT + AT_ONCE * k), &s, err));
            off[alone] += s.n_off;
            if (!alone) count_explained(q->f, &s.outcomes, &n, &n_explained);
            ls_seen_deinit(&s);
        }
    /* The row in front of the first is that of the part that is read. */
    *found = 8 * off[1] <= off[0] && n_explained >= EXPLAINED_LEAST && 2 * n_explained >= n;
    if (*found)
        ls_foreign_find(q->f, LS_CAUSE_OTHERS_STATE, experiment,
                        ls_probe_sure(pow(EXPLAINED_CHANCE, (double)n_explained), ls_portion(off[1], off[0])),
                        "while a long prompt is read %" PRId64
                        " records of requests that run are off, and beside a short one in its place %" PRId64
                        "; of %" PRId64 " requests with several such records %" PRId64
                        " have those of the tokens of one other request, as far on",
                        off[0], off[1], n, n_explained);
    return LS_OK;
}
