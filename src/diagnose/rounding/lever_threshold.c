/* Thresholds of a stack that promises no bits: the first value of a lever with which a trial is off. */
#include <stdlib.h>
#include <string.h>

#include "diagnose/rounding/inquiry.h"
#include "diagnose/trial/ddmin.h"

typedef struct search {
    ls_inquiry *q;
    ls_lay lay;
    int64_t n_trials;
} search;

ls_status ls_foreign_try_laid(ls_inquiry *q, ls_lay lay, int64_t value, ls_seen *seen, ls_error *err) {
    ls_requests *r = calloc(1, sizeof *r);
    ls_trial trial;
    ls_status status;
    memset(seen, 0, sizeof *seen);
    LS_TRY_DONE(r != NULL ? LS_OK : LS_FAIL(err, LS_ERR_NOMEM, "prompts"));
    LS_TRY_DONE(lay(q, value, &trial, r, err));
    LS_TRY_DONE(ls_foreign_try(q, &trial, 0, r->of, r->n, seen, err));
    for (int64_t i = 0; i < seen->outcomes.n; i++) seen->outcomes.of[i].prompt = NULL; /* they end here */
done:
    if (r != NULL) free(r->ids);
    free(r);
    return status;
}

static ls_status try_value(void *context, int64_t value, bool *fails, ls_error *err) {
    search *s = context;
    ls_seen seen;
    LS_TRY(ls_foreign_try_laid(s->q, s->lay, value, &seen, err));
    s->n_trials++;
    *fails = seen.look == LS_LOOK_OFF;
    ls_seen_deinit(&seen);
    return LS_OK;
}

ls_status ls_foreign_bound(ls_inquiry *q, ls_bounded lever, int64_t value, bool from_above, int64_t trials) {
    ls_sweep *s = q->runner->sweep;
    if (s->n_bounds == LS_BOUNDS_MAX || q->f->undecided) return LS_OK;
    s->bounds[s->n_bounds++] = (ls_bound){lever, s->opts.dtype, value, from_above, trials};
    return LS_OK;
}

ls_status ls_foreign_bisect(ls_inquiry *q, ls_bounded lever, int64_t low, int64_t high, ls_lay lay, int64_t *value,
                            ls_error *err) {
    search s = {q, lay, 0};
    bool fails;
    *value = -1;
    ls_foreign_tell(q, ls_bounded_name(lever));
    LS_TRY(try_value(&s, low, &fails, err));
    if (fails) return LS_OK; /* from the first value on: no threshold */
    LS_TRY(try_value(&s, high, &fails, err));
    if (!fails) return LS_OK;
    LS_TRY(ls_bisect(value, low, high, try_value, &s, err));
    if (q->f->undecided) *value = -1; /* what was refused is no answer */
    return ls_foreign_bound(q, lever, *value, false, s.n_trials);
}
