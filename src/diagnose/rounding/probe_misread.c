/* What one side of a server may read in place of the prompt that it was sent: tokens in front of it, twice, lost, in
 * another order, or other ids. Those of decode are tried on the prompt's values, and those of the prompt's values on
 * what is generated. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/sort.h"
#include "diagnose/rounding/inquiry.h"

typedef enum trip { NO_TRIP = 0, THROUGH_TEXT, THROUGH_TEXT_WITH_SPECIALS } trip;

typedef struct misread {
    const char *what;
    int64_t again_first, lost_first, lost_last, again_last; /* so many of the prompt's own */
    int64_t n_front, n_behind;                              /* so many of `token` */
    bool twice, exchanged, exchanged_last, turned, in_order;
    int32_t moved; /* of ids */
    trip trip;
    int32_t token;
    char name[72]; /* in place of what */
} misread;

static const misread misreads[] = {
    {"the prompt", .n_front = 0},
    {"the prompt through text and back", .trip = THROUGH_TEXT},
    {"the prompt through text and back, with special tokens around it", .trip = THROUGH_TEXT_WITH_SPECIALS},
    {"the prompt's first token twice", .again_first = 1},
    {"the prompt's first two tokens twice", .again_first = 2},
    {"the prompt's first three tokens twice", .again_first = 3},
    {"the prompt's last token twice", .again_last = 1},
    {"the prompt's last two tokens twice", .again_last = 2},
    {"the prompt's last three tokens twice", .again_last = 3},
    {"the prompt without its first token", .lost_first = 1},
    {"the prompt without its first two tokens", .lost_first = 2},
    {"the prompt without its first three tokens", .lost_first = 3},
    {"the prompt without its last token", .lost_last = 1},
    {"the prompt without its last two tokens", .lost_last = 2},
    {"the prompt without its last three tokens", .lost_last = 3},
    {"the prompt without its first and last token", .lost_first = 1, .lost_last = 1},
    {"the prompt twice", .twice = true},
    {"the prompt with its first two tokens exchanged", .exchanged = true},
    {"the prompt with its last two tokens exchanged", .exchanged_last = true},
    {"the prompt from its end to its beginning", .turned = true},
    {"the prompt with its tokens in the order of their ids", .in_order = true},
    {"the prompt with ids larger by one", .moved = 1},
    {"the prompt with ids smaller by one", .moved = -1}};

enum {
    PLAIN_MISREADS = sizeof misreads / sizeof misreads[0],
    PROMPT_MOST = 60,
    READ_MOST = 2 * PROMPT_MOST + 4,
    SHORT_TEXTS = 3,
    NEW_MOST = 16,
    NEW_FIRST = 3, /* values that say whether more of them are worth asking for */
    CHECKED_MOST = 10,
    VALUES_LEAST = 8,
    FIRST_IDS = 8, /* where special tokens are, at either end of the vocabulary */
    LAST_IDS = 6,
    ADDED_MOST = 3 * (FIRST_IDS + LAST_IDS + 2),
    MISREADS_MOST = PLAIN_MISREADS + ADDED_MOST
};
/* Of what is off, what the right one leaves. */
#define LEFT 0.1
/* Of one text, from which on the others are not tried. */
#define HALF 0.5
/* So little that no other one is tried. */
#define LEFT_NOTHING 0.01

static const char *what_of(const misread *how) { return how->what != NULL ? how->what : how->name; }

/* One token in front, two, and one behind. Of each token once. */
static void add_special(misread *list, int *n, const char *name, int32_t token) {
    static const struct {
        int64_t n_front, n_behind;
        const char *where;
    } places[] = {
        {1, 0, " in front of the prompt"}, {2, 0, " twice in front of the prompt"}, {0, 1, " behind the prompt"}};
    for (int k = PLAIN_MISREADS; k < *n; k++)
        if (list[k].token == token) return;
    for (size_t k = 0; k < sizeof places / sizeof places[0] && *n < MISREADS_MOST; k++) {
        misread *how = &list[(*n)++];
        *how = (misread){.n_front = places[k].n_front, .n_behind = places[k].n_behind, .token = token};
        if (name != NULL)
            snprintf(how->name, sizeof how->name, "%s%s", name, places[k].where);
        else
            snprintf(how->name, sizeof how->name, "token %d%s", (int)token, places[k].where);
    }
}

/* Special tokens have names where a checkpoint says so. Else they are among the first and the last ids. */
static int list_misreads(const ls_model_config *c, misread *list) {
    int n = PLAIN_MISREADS;
    memcpy(list, misreads, sizeof misreads);
    if (c->bos >= 0) add_special(list, &n, "a begin-of-sequence token", c->bos);
    if (c->n_eos > 0) add_special(list, &n, "an end-of-sequence token", c->eos[0]);
    for (int32_t i = 0; i < FIRST_IDS; i++) add_special(list, &n, NULL, i);
    for (int32_t i = 1; i <= LAST_IDS && c->vocab > FIRST_IDS + LAST_IDS; i++)
        add_special(list, &n, NULL, c->vocab - i);
    return n;
}

static int by_id(const void *a, const void *b) {
    const int32_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

/* How many tokens are read; 0: no such prompt is there. */
static int64_t read_as(const ls_inquiry *q, const misread *how, const ls_outcome *one, int32_t *out) {
    const ls_model_config *c = q->config;
    const ls_subject *subject = q->runner->door->subject;
    const int64_t n = one->n_prompt, to = n - how->lost_last;
    int64_t at = 0;
    if (how->moved != 0 && c->vocab == 0) return 0; /* nobody says how many there are */
    if (n > PROMPT_MOST || how->lost_first + how->lost_last >= n || how->again_first >= n || how->again_last >= n ||
        n < 2)
        return 0;
    if (how->trip != NO_TRIP && subject->through_text == NULL) return 0;
    if (how->trip != NO_TRIP)
        return subject->through_text(subject->context, one->prompt, n, how->trip == THROUGH_TEXT_WITH_SPECIALS, out,
                                     READ_MOST);
    for (int64_t i = 0; i < how->n_front; i++) out[at++] = how->token;
    for (int64_t i = 0; i < how->again_first; i++) out[at++] = one->prompt[i];
    for (int64_t i = how->lost_first; i < to; i++) out[at++] = one->prompt[how->turned ? n - 1 - i : i];
    for (int64_t i = n - how->again_last; i < n; i++) out[at++] = one->prompt[i];
    for (int64_t i = 0; how->twice && i < n; i++) out[at++] = one->prompt[i];
    for (int64_t i = 0; i < how->n_behind; i++) out[at++] = how->token;
    if (how->exchanged) out[0] = one->prompt[1], out[1] = one->prompt[0];
    if (how->exchanged_last) out[n - 2] = one->prompt[n - 1], out[n - 1] = one->prompt[n - 2];
    if (how->in_order) qsort(out, (size_t)at, sizeof *out, by_id);
    for (int64_t i = 0; i < at && how->moved != 0; i++) out[i] = (int32_t)((out[i] + how->moved + c->vocab) % c->vocab);
    return at;
}

static double recorded_off(const ls_outcome *c, int64_t i) {
    return fabs((double)c->logprob[i] - (double)c->scored[i]);
}

/* |d| of a request's first `most` records, were its prompt read so; *n: 0: it cannot be. */
static ls_status score_as(ls_inquiry *q, const misread *how, const ls_outcome *one, int64_t most, double *list,
                          int64_t *n, ls_error *err) {
    int32_t ids[READ_MOST];
    float values[NEW_MOST];
    const int64_t n_new = one->n < most ? one->n : most;
    ls_prompt prompt = {ids, 0};
    *n = 0;
    if (one->n > NEW_MOST || n_new == 0) return LS_OK;
    prompt.n = read_as(q, how, one, ids);
    if (prompt.n == 0) return LS_OK;
    LS_TRY(ls_probe_score(q, prompt, one->completion, n_new, values, err));
    for (int64_t i = 0; i < n_new; i++) list[i] = fabs((double)one->logprob[i] - (double)values[i]);
    *n = n_new;
    return LS_OK;
}

/* The median of the short requests alone; infinite where one cannot be read so, or the first says that it is not. */
static ls_status measure(ls_inquiry *q, const misread *how, double at_first, double *median, ls_error *err) {
    double list[SHORT_TEXTS * NEW_MOST];
    int64_t n = 0;
    *median = (double)INFINITY;
    for (int r = 0; r < SHORT_TEXTS; r++) {
        const ls_outcomes *seen = &q->f->seen[ls_probe_solo[r]].outcomes;
        int64_t n_one = 0;
        if (r == 0 && seen->n == 1 && isfinite(at_first)) {
            LS_TRY(score_as(q, how, &seen->of[0], NEW_FIRST, list, &n_one, err));
            if (n_one == 0 || ls_quantile(list, n_one, 0.5, 0.0) > at_first) return LS_OK;
        }
        if (seen->n == 1) LS_TRY(score_as(q, how, &seen->of[0], NEW_MOST, list + n, &n_one, err));
        if (n_one == 0) return LS_OK;
        n += n_one;
        if (r == 0 && ls_quantile(list, n, 0.5, 0.0) > at_first) return LS_OK;
    }
    *median = ls_quantile(list, n, 0.5, 0.0);
    return LS_OK;
}

/* The same of other prompts, which it was not found with: of records that are off, how many are not with that. */
static ls_status check_misread(ls_inquiry *q, const misread *how, int64_t *n_right, int64_t *n_off, ls_error *err) {
    const double from = ls_probe_moved_from(q);
    const ls_outcomes *o = &q->f->seen[LS_STACK_LENGTHS].outcomes;
    int64_t n_checked = 0;
    *n_right = *n_off = 0;
    for (int64_t s = 0; s < o->n && n_checked < CHECKED_MOST; s++) {
        double list[NEW_MOST];
        int64_t n;
        LS_TRY(score_as(q, how, &o->of[s], NEW_MOST, list, &n, err));
        n_checked += n > 0;
        for (int64_t i = 0; i < n; i++) {
            if (!(recorded_off(&o->of[s], i) > from)) continue;
            ++*n_off;
            *n_right += list[i] < 2.0 * LEFT * recorded_off(&o->of[s], i);
        }
    }
    return LS_OK;
}

/* The |d| of a short request that is generated from what is read of its prompt, beside its values as it was sent. */
static ls_status add_sent_as(ls_inquiry *q, const misread *how, const ls_outcome *one, int64_t most, double *list,
                             int64_t *n, ls_error *err) {
    int32_t ids[READ_MOST];
    float values[NEW_MOST];
    const ls_prompt read = {ids, read_as(q, how, one, ids)}, plain = {one->prompt, one->n_prompt};
    ls_seen s = {0};
    ls_trial trial;
    ls_status status;
    int64_t n_new;
    if (read.n == 0) return LS_OK;
    ls_stack_trial(q, LS_STACK_SOLO_C, &trial, NULL);
    if (trial.max_tokens > most) trial.max_tokens = most;
    LS_TRY_DONE(ls_foreign_try(q, &trial, 0, &read, 1, &s, err));
    if (s.outcomes.n == 0 || s.outcomes.of[0].n == 0) goto done;
    n_new = s.outcomes.of[0].n;
    LS_TRY_DONE(ls_probe_score(q, plain, s.outcomes.of[0].completion, n_new, values, err));
    for (int64_t i = 0; i < n_new; i++) list[(*n)++] = fabs((double)s.outcomes.of[0].logprob[i] - (double)values[i]);
done:
    ls_seen_deinit(&s);
    return status;
}

/* Of all short requests; *n: 0: the first says that it is not so. */
static ls_status measure_sent_as(ls_inquiry *q, const misread *how, double at_first, double *list, int64_t *n,
                                 ls_error *err) {
    for (int r = -1; r < SHORT_TEXTS; r++) {
        const ls_outcomes *seen = &q->f->seen[ls_probe_solo[r < 0 ? 0 : r]].outcomes;
        *n = r <= 0 ? 0 : *n;
        if (seen->n == 1) LS_TRY(add_sent_as(q, how, &seen->of[0], r < 0 ? NEW_FIRST : NEW_MOST, list, n, err));
        if (r <= 0 && (*n == 0 || ls_quantile(list, *n, 0.5, 0.0) > at_first)) {
            *n = 0;
            return LS_OK;
        }
    }
    return LS_OK;
}

/* It is the prompt's values that are of something else. */
static ls_status decide_values(ls_inquiry *q, const misread *list, int n_list, double as_sent, bool *found,
                               ls_error *err) {
    for (int k = 1; k < n_list && !*found; k++) {
        double off[SHORT_TEXTS * NEW_MOST], median;
        int64_t n, n_right = 0;
        LS_TRY(measure_sent_as(q, &list[k], HALF * as_sent, off, &n, err));
        for (int64_t i = 0; i < n; i++) n_right += off[i] < 2.0 * LEFT * as_sent;
        median = ls_quantile(off, n, 0.5, 0.0);
        *found = n >= VALUES_LEAST && median < LEFT * as_sent;
        if (*found)
            ls_foreign_find(q->f, LS_CAUSE_OTHER_TOKENS, LS_STACK_SOLO_C,
                            ls_probe_sure(0.0, 1.0 - ls_portion(n_right, n)),
                            "the prompt's values are of %s: with that before decode as well the median |d| is %.2g in "
                            "place of %.2g, and so it is of %" PRId64 " of %" PRId64 " records",
                            what_of(&list[k]), median, as_sent, n_right, n);
    }
    return LS_OK;
}

/* ---- what is read of some prompts ---- */

/* On the way through text tokens are put in front, and of the others some become others. Prompts of two tokens keep
 * both often enough: of these a misread leaves hardly anything, in all values of a prompt at once. */
enum { PAIRS = 8, PAIR = 2, PAIR_TEXT = 4140, PAIRS_LEAST = 2 };
#define PAIR_CHANCE 0.01
#define PAIRS_SURE 0.95

/* r has to live as long as *out, and is emptied by the caller. */
static ls_status try_pairs(ls_inquiry *q, int64_t text, ls_requests *r, ls_seen *out, ls_error *err) {
    ls_trial trial;
    ls_stack_trial(q, LS_STACK_SOLO_C, &trial, NULL);
    trial.max_tokens = NEW_FIRST;
    for (int64_t i = 0; i < PAIRS; i++) LS_TRY(ls_requests_plain(q, r, text + i, PAIR, err));
    return ls_foreign_try(q, &trial, 0, r->of, r->n, out, err);
}

/* Of prompts that are off, those of which nothing is left when they are read so. One of which the first half shows
 * nothing is not looked at further. */
static ls_status count_read(ls_inquiry *q, const misread *how, const ls_outcomes *o, int64_t *n_read, int64_t *n_off,
                            ls_error *err) {
    *n_read = *n_off = 0;
    for (int64_t s = 0; s < o->n && (s < o->n / 2 || *n_read > 0); s++) {
        double list[NEW_MOST], sent = 0.0, left = 0.0;
        int64_t n;
        if (!(ls_probe_size(&o->of[s]) > ls_probe_moved_from(q))) continue;
        LS_TRY(score_as(q, how, &o->of[s], NEW_FIRST, list, &n, err));
        for (int64_t i = 0; i < n; i++) sent += recorded_off(&o->of[s], i), left += list[i];
        *n_off += n > 0;
        *n_read += n == NEW_FIRST && left < LEFT * sent;
    }
    return LS_OK;
}

static ls_status decide_pairs(ls_inquiry *q, const misread *list, int n_list, bool *found, ls_error *err) {
    ls_requests *r = calloc(2, sizeof *r);
    ls_seen of[2] = {0};
    int64_t most = PAIRS_LEAST - 1, n_read = 0, n_off = 0;
    int best = 0;
    ls_status status;
    LS_TRY_DONE(r != NULL ? LS_OK : LS_FAIL(err, LS_ERR_NOMEM, "prompts"));
    for (int k = 0; k < 2; k++) LS_TRY_DONE(try_pairs(q, PAIR_TEXT + PAIRS * k, &r[k], &of[k], err));
    for (int k = 1; k < n_list; k++) {
        LS_TRY_DONE(count_read(q, &list[k], &of[0].outcomes, &n_read, &n_off, err));
        if (n_read > most) most = n_read, best = k;
    }
    if (best == 0) goto done;
    LS_TRY_DONE(count_read(q, &list[best], &of[1].outcomes, &n_read, &n_off, err));
    *found = n_read >= PAIRS_LEAST;
    if (*found)
        ls_foreign_find(q->f, LS_CAUSE_OTHER_TOKENS, LS_STACK_SOLO_C,
                        fmin(PAIRS_SURE, ls_probe_sure(pow(PAIR_CHANCE, (double)n_read), 0.0)),
                        "decode reads %s: of %" PRId64 " other prompts of two tokens that are off %" PRId64
                        " are right with that, in all their values. Of the rest it reads other tokens yet, as it is "
                        "where a prompt goes through text",
                        what_of(&list[best]), n_off, n_read);
done:
    for (int k = 0; k < 2; k++) {
        ls_seen_deinit(&of[k]);
        if (r != NULL) free(r[k].ids);
    }
    free(r);
    return status;
}

ls_status ls_probe_decide_misread(ls_inquiry *q, bool *found, ls_error *err) {
    misread list[MISREADS_MOST];
    const int n_list = list_misreads(q->config, list);
    double least, as_sent;
    int64_t n_right, n_off;
    int best = 0;
    LS_TRY(measure(q, &list[0], (double)INFINITY, &as_sent, err));
    if (!(as_sent > ls_probe_moved_from(q)) || !isfinite(as_sent)) return LS_OK;
    least = as_sent;
    for (int k = 1; k < n_list && !(least < LEFT_NOTHING * as_sent); k++) {
        double median;
        LS_TRY(measure(q, &list[k], HALF * as_sent, &median, err));
        if (median < least) least = median, best = k;
    }
    if (best == 0 || !(least < LEFT * as_sent)) {
        LS_TRY(decide_values(q, list, n_list, as_sent, found, err));
        return *found ? LS_OK : decide_pairs(q, list, n_list, found, err);
    }
    LS_TRY(check_misread(q, &list[best], &n_right, &n_off, err));
    *found = 2 * n_right > n_off;
    if (*found)
        ls_foreign_find(q->f, LS_CAUSE_OTHER_TOKENS, LS_STACK_SOLO_C,
                        ls_probe_sure(0.0, 1.0 - ls_portion(n_right, n_off)),
                        "decode reads %s: with that the median |d| is %.2g in place of %.2g, and of %" PRId64
                        " records of other prompts that are off %" PRId64 " are right",
                        what_of(&list[best]), least, as_sent, n_off, n_right);
    return LS_OK;
}
