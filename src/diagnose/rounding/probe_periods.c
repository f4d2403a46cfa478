/* Decoded tokens that are off at one place of every page, and right in front of it and behind it: as where the newest
 * key is left out when it is a page's last one. Of a coarse type they are few, of any experiment, and their sizes are
 * no more than ties make of others. It is where they stand that tells. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "base/mem.h"
#include "base/sort.h"
#include "diagnose/rounding/inquiry.h"

/* Prompts whose lengths have all remainders, so that no number of steps is a position. */
enum { TEXTS = 16, TEXT = 5300, SHORT = 5, APART = 3, NEW = 40, PAGE_LEAST = 8, PAGE_MOST = 64 };
/* What is off is so many times beyond nearly all that stand elsewhere, and so much of what stands there is. */
#define MOST_OF_OTHERS 0.95
#define TIMES 2.0
#define PART 3
/* Of all pages and places, that chance makes one stand out; and of one of them. */
#define CHANCE_OF_ANY 1e-7
#define CHANCE 1e-5

typedef struct decoded {
    int64_t position; /* of the key that is the newest when it is computed, from 1 on */
    double d;
} decoded;

typedef struct tokens {
    decoded *of;
    double *others; /* room for as many */
    int64_t n;
} tokens;

static void free_tokens(tokens *t) {
    free(t->of);
    free(t->others);
}

static int64_t count(const ls_seen *seen, int64_t n_seen) {
    int64_t n = 0;
    for (int64_t r = 0; r < n_seen; r++)
        for (int64_t s = 0; s < seen[r].outcomes.n; s++) n += seen[r].outcomes.of[s].n;
    return n;
}

static ls_status gather_tokens(const ls_seen *seen, int64_t n_seen, tokens *out, ls_error *err) {
    const int64_t room = count(seen, n_seen) + 1;
    *out = (tokens){0};
    LS_TRY(ls_array_alloc((void **)&out->of, room, sizeof *out->of, "tokens", err));
    LS_TRY(ls_array_alloc((void **)&out->others, room, sizeof *out->others, "tokens", err));
    for (int64_t r = 0; r < n_seen; r++)
        for (int64_t s = 0; s < seen[r].outcomes.n; s++) {
            const ls_outcome *c = &seen[r].outcomes.of[s];
            for (int64_t i = 1; i < c->n; i++) {
                const double d = fabs((double)c->scored[i] - (double)c->logprob[i]);
                if (isfinite(d) && (double)c->scored[i] < LS_SURE_TOKEN)
                    out->of[out->n++] = (decoded){c->n_prompt + i, d};
            }
        }
    return LS_OK;
}

typedef struct place {
    int64_t page, at;
    int64_t off, n, off_elsewhere, n_elsewhere;
    double chance, most;
} place;

static void look(tokens *t, place *p) {
    double cut;
    p->off = p->n = p->off_elsewhere = p->n_elsewhere = 0;
    p->most = 0.0;
    for (int64_t i = 0; i < t->n; i++)
        if (t->of[i].position % p->page != p->at) t->others[p->n_elsewhere++] = t->of[i].d;
    cut = fmax(LS_LEAST_PATTERN, TIMES * ls_quantile(t->others, p->n_elsewhere, MOST_OF_OTHERS, 0.0));
    for (int64_t i = 0; i < t->n; i++) {
        const bool there = t->of[i].position % p->page == p->at, off = t->of[i].d > cut;
        p->n += there;
        p->off += there && off;
        p->off_elsewhere += !there && off;
        if (there) p->most = fmax(p->most, t->of[i].d);
    }
    p->chance = PART * p->off < p->n ? 1.0 : ls_probe_chance(p->off, p->n, p->off_elsewhere, p->n_elsewhere);
}

static place find_place(tokens *t) {
    place best = {.chance = 1.0};
    for (int64_t page = PAGE_LEAST; page <= PAGE_MOST; page *= 2)
        for (int64_t at = 0; at < page; at++) {
            place p = {.page = page, .at = at};
            look(t, &p);
            if (p.chance < best.chance) best = p;
        }
    return best;
}

static ls_status lay_over_pages(ls_inquiry *q, int64_t ignored, ls_trial *trial, ls_requests *r, ls_error *err) {
    (void)ignored;
    ls_stack_trial(q, LS_STACK_SOLO_C, trial, NULL);
    trial->max_tokens = NEW;
    for (int64_t i = 0; i < TEXTS; i++) LS_TRY(ls_requests_plain(q, r, TEXT + i, SHORT + APART * i, err));
    return LS_OK;
}

/* One at a time, of other texts; of that page, or of one that it is a multiple of. */
static ls_status try_alone(ls_inquiry *q, place *p, ls_error *err) {
    tokens t = {0};
    ls_seen s;
    ls_status status;
    LS_TRY(ls_foreign_try_laid(q, lay_over_pages, 0, &s, err));
    status = gather_tokens(&s, 1, &t, err);
    p->chance = 1.0;
    for (int64_t page = p->page; page >= PAGE_LEAST && status == LS_OK; page /= 2) {
        place one = {.page = page, .at = p->at % page};
        look(&t, &one);
        if (one.chance < p->chance) *p = one;
    }
    free_tokens(&t);
    ls_seen_deinit(&s);
    return status;
}

ls_status ls_probe_decide_periods(ls_inquiry *q, bool *found, ls_error *err) {
    tokens t = {0};
    place p = {.chance = 1.0};
    ls_status status = gather_tokens(q->f->seen, LS_STACK_EXPERIMENTS, &t, err);
    if (status == LS_OK) p = find_place(&t);
    free_tokens(&t);
    if (status != LS_OK || p.chance > CHANCE_OF_ANY) return status;
    LS_TRY(try_alone(q, &p, err));
    *found = p.chance <= CHANCE;
    if (*found)
        ls_foreign_find(q->f, LS_CAUSE_PAGE_SIZE, LS_STACK_LENGTHS,
                        ls_probe_sure(p.chance, ls_portion(p.off_elsewhere, p.off + p.off_elsewhere)),
                        "requests alone of unlike lengths: of decoded tokens over a multiple of %" PRId64
                        " keys and %" PRId64 " more %" PRId64 " of %" PRId64
                        " are off, by up to %.2g, and of all others %" PRId64 " of %" PRId64,
                        p.page, p.at, p.off, p.n, p.most, p.off_elsewhere, p.n_elsewhere);
    return LS_OK;
}
