/* Prompts that are filled up to a multiple of some number of tokens: those that are one by themselves are right. */
#include <inttypes.h>
#include <math.h>

#include "base/sort.h"
#include "diagnose/rounding/inquiry.h"

enum { TEXTS = 8, MOST = 64 };

/* A quantile of the largest |d| of each. */
static double size_at(const ls_seen *s, double quantile) {
    double list[TEXTS];
    int64_t n = 0;
    for (int64_t k = 0; k < s->outcomes.n && n < TEXTS; k++) {
        const ls_outcome *c = &s->outcomes.of[k];
        list[n] = 0.0;
        for (int64_t i = 0; i < c->n; i++) list[n] = fmax(list[n], fabs((double)c->scored[i] - (double)c->logprob[i]));
        n++;
    }
    return ls_quantile(list, n, quantile, 0.0);
}

/* Prompts and completions both of multiples of a number, so that a prompt is one with its completion as well; negative:
 * both one off. */
static ls_status lay(ls_inquiry *q, int64_t value, ls_trial *trial, ls_requests *r, ls_error *err) {
    const int64_t of = value < 0 ? -value : value, off = value < 0;
    ls_stack_trial(q, LS_STACK_SOLO_C, trial, NULL);
    trial->max_tokens = of + (off && of > 2);
    for (int64_t i = 0; i < TEXTS; i++)
        LS_TRY(ls_requests_plain(q, r, 3300 + i, of * (1 + i % (MOST / of < 4 ? MOST / of : 4)) + off, err));
    return LS_OK;
}

ls_status ls_decide_multiples(ls_inquiry *q, double right, double least, bool *found, ls_error *err) {
    for (int64_t m = 2; m <= MOST && !*found; m *= 2) {
        ls_seen whole, other;
        double a, b;
        bool tried;
        LS_TRY(ls_foreign_try_laid(q, lay, m, &whole, err));
        a = size_at(&whole, 0.75); /* of those of half the number half are right */
        tried = whole.outcomes.n > 0;
        ls_seen_deinit(&whole);
        if (!tried) break;
        if (a > right) continue;
        LS_TRY(ls_foreign_try_laid(q, lay, -m, &other, err));
        b = size_at(&other, 0.5);
        *found = other.outcomes.n > 0 && b > least && a < 0.1 * b;
        if (*found)
            ls_foreign_find(q->f, LS_CAUSE_PADDING, LS_STACK_LENGTHS, 0.98 - 0.4 * a / b,
                            "prompts and completions of multiples of %" PRId64
                            " tokens are off by %.2g, three quarters of %d; those of one token more by %.2g in the "
                            "middle",
                            m, a, TEXTS, b);
        ls_seen_deinit(&other);
        if (!*found) break; /* right at all lengths of this trial: no multiple is what tells */
    }
    return LS_OK;
}
