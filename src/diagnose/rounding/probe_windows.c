/* Prompts that are computed in windows of which each begins with an empty state. Where a state forgets, those that end
 * right behind a border are off and those that end in front of the next one are right again, which no length makes; and
 * none within the first window is off, which padding to a multiple makes. */
#include <inttypes.h>
#include <math.h>

#include "base/sort.h"
#include "diagnose/rounding/inquiry.h"

/* Windows that are looked for, the longest first: a border of one is a border of its halves as well. */
static const int64_t windows[] = {512, 384, 256, 192, 128, 96, 64, 48, 32};
enum { WINDOWS = sizeof windows / sizeof windows[0], BEHIND = 3, TEXTS = 3, TEXT = 4960, ENDS = 9, TRIED_MOST = 2 };
/* Prompts that end behind borders, and others, of one length each; three tokens behind a border no single row of a last
 * chunk is what is off. */
typedef struct end {
    int64_t halves, more; /* of a window; tokens behind that */
    bool is_behind;
} end;
static const end ends[ENDS] = {{1, 1, false},  {2, -1, false}, {2, 0, false}, {2, 1, true}, {2, 3, true},
                               {4, -1, false}, {4, 0, false},  {4, 1, true},  {4, 3, true}};
/* Of what is off by in the middle: what a state has forgotten by the next border is nearer. */
#define FORGOTTEN 0.2
/* A number of rows may choose a kernel; bf16 makes less than this of it in the middle. */
#define LEAST_SIZE 0.05

/* Whether requests that were tried let it be so: all behind a border are off but for one, and of those up to the first
 * border, and at one, none is. */
static bool may_be(const ls_inquiry *q, int64_t window, double cut) {
    static const ls_stack_experiment experiments[2] = {LS_STACK_LENGTHS, LS_STACK_LONG};
    int64_t n_behind = 0, n_right = 0;
    for (int r = 0; r < 2; r++) {
        const ls_outcomes *o = &q->f->seen[experiments[r]].outcomes;
        for (int64_t s = 0; s < o->n; s++) {
            const int64_t n = o->of[s].n_prompt;
            const bool off = ls_probe_size(&o->of[s]) > cut;
            if (o->of[s].n == 0) continue;
            if (n <= window && off) return false;
            if (n <= window || (n - 1) % window >= BEHIND) continue;
            n_behind++;
            n_right += !off;
        }
    }
    return n_behind > 0 && n_right < n_behind && n_right <= 1;
}

static ls_status lay_ends(ls_inquiry *q, int64_t window, ls_trial *trial, ls_requests *r, ls_error *err) {
    ls_stack_trial(q, LS_STACK_SOLO_C, trial, NULL);
    trial->max_tokens = 2;
    for (int64_t i = 0; i < ENDS * TEXTS; i++)
        LS_TRY(ls_requests_plain(q, r, TEXT + i, ends[i % ENDS].halves * window / 2 + ends[i % ENDS].more, err));
    return LS_OK;
}

static ls_status try_window(ls_inquiry *q, int64_t window, double cut, bool *found, ls_error *err) {
    double behind[ENDS * TEXTS], from;
    int64_t n_behind = 0, off[2] = {0, 0}, n[2] = {0, 0};
    double sure;
    ls_seen s;
    LS_TRY(ls_foreign_try_laid(q, lay_ends, window, &s, err));
    for (int64_t i = 0; i < s.outcomes.n && i < ENDS * TEXTS; i++)
        if (ends[i % ENDS].is_behind) behind[n_behind++] = ls_probe_size(&s.outcomes.of[i]);
    from = fmax(cut, FORGOTTEN * ls_quantile(behind, n_behind, 0.5, 0.0));
    for (int64_t i = 0; i < s.outcomes.n && i < ENDS * TEXTS; i++) {
        const bool is_behind = ends[i % ENDS].is_behind;
        n[is_behind] += s.outcomes.of[i].n > 0;
        off[is_behind] += s.outcomes.of[i].n > 0 && ls_probe_size(&s.outcomes.of[i]) > from;
    }
    ls_seen_deinit(&s);
    sure = ls_probe_sure(WINDOWS * ls_probe_chance(off[1], n[1], off[0], n[0]), 0.0);
    *found = 4 * off[1] >= 3 * n[1] && 8 * off[0] <= n[0] && sure >= LS_NAMED;
    if (*found)
        ls_foreign_find(q->f, LS_CAUSE_STATE_BETWEEN_CHUNKS, LS_STACK_LENGTHS, sure,
                        "of prompts that end one and three tokens behind the first two borders of %" PRId64
                        " tokens, %" PRId64 " of %" PRId64
                        " are off, and of those that end at such borders, right in "
                        "front of them and one token behind half of the first, %" PRId64 " of %" PRId64,
                        window, off[1], n[1], off[0], n[0]);
    return LS_OK;
}

ls_status ls_probe_decide_windows(ls_inquiry *q, bool *found, ls_error *err) {
    const int64_t most = q->runner->sweep->opts.length_max;
    const double cut = q->of_pattern ? LEAST_SIZE : ls_probe_moved_from(q);
    int n_tried = 0;
    *found = false;
    for (int k = 0; k < WINDOWS && n_tried < TRIED_MOST && !*found; k++)
        if ((most == 0 || 2 * windows[k] + 2 * BEHIND <= most) && may_be(q, windows[k], cut)) {
            LS_TRY(try_window(q, windows[k], cut, found, err));
            n_tried++;
        }
    return LS_OK;
}
