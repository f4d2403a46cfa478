/* One text, again and again: whether a server's values of it hang on the request in front, on what had its slot before,
 * or on whose turn it is. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "base/sort.h"
#include "diagnose/rounding/inquiry.h"

enum { TIMES = 5, ROUNDS = 2, FILLERS = 4, FILLER_SHORT = 40, FILLER_LONG = 1000, TEXT_LENGTH = 11, TEXT_NEW = 6 };
/* A prompt so short that it may be taken for a sequence that is under way. */
enum { TEXT_SHORT = 3 };

static void greedy_trial(const ls_inquiry *q, ls_trial *trial) {
    ls_stack_trial(q, LS_STACK_SOLO_C, trial, NULL);
    trial->sampling.temperature = 0.0f; /* so that tokens are the same wherever seeds are not kept */
    trial->max_tokens = TEXT_NEW;
}

/* The same requests in front, so that what a server keeps of those before them is the same or gone. They are long: a
 * state that is never cleared has forgotten what was before them. */
static ls_status add_fillers(ls_inquiry *q, ls_requests *r, int64_t n, ls_error *err) {
    for (int64_t i = 0; i < n; i++)
        LS_TRY(ls_requests_plain(q, r, 3090, q->filler > 0 ? q->filler : FILLER_SHORT, err));
    return LS_OK;
}

/* `text` below 0: with one more in front, which servers that take turns notice. */
static ls_status lay_again(ls_inquiry *q, int64_t text, ls_trial *trial, ls_requests *r, ls_error *err) {
    greedy_trial(q, trial);
    LS_TRY(add_fillers(q, r, FILLERS + (text < 0), err));
    for (int i = 0; i < TIMES; i++) LS_TRY(ls_requests_plain(q, r, text < 0 ? -text : text, TEXT_LENGTH, err));
    return LS_OK;
}

/* Behind one text, behind another, and the same once more: a prompt, one that is short, and one that is as long as what
 * was off alone, where nothing shorter was: it may be read in pieces. */
enum { LENGTHS = 3, LONG_TEXT = LENGTHS - 1 };
static ls_status lay_behind(ls_inquiry *q, int64_t text, ls_trial *trial, ls_requests *r, ls_error *err) {
    const int64_t lengths[LENGTHS] = {TEXT_LENGTH, TEXT_SHORT, q->long_text};
    greedy_trial(q, trial);
    for (int i = 0; i < 2 * ROUNDS; i++) {
        LS_TRY(add_fillers(q, r, FILLERS, err));
        for (int k = 0; k < LENGTHS && lengths[k] > 0; k++) {
            LS_TRY(ls_requests_plain(q, r, text + 1 + i % 2, lengths[k] > TEXT_LENGTH ? lengths[k] : TEXT_LENGTH, err));
            LS_TRY(ls_requests_plain(q, r, text, lengths[k], err));
        }
    }
    return LS_OK;
}

/* Tokens of the shortest request alone that is longer than those that are tried in any case and has a value that is no
 * rounding, where none of theirs is; 0: there is none. */
static int64_t length_of_long(const ls_inquiry *q) {
    int64_t least = 0;
    for (int r = 0; r < LS_PROBE_SOLO; r++) {
        const ls_outcomes *o = &q->f->seen[ls_probe_solo[r]].outcomes;
        for (int64_t s = 0; s < o->n; s++) {
            const int64_t n = o->of[s].n_prompt;
            if (!(ls_probe_size(&o->of[s]) > ls_probe_flip_of_bf16(q->f))) continue;
            if (n <= TEXT_LENGTH) return 0;
            if (least == 0 || n < least) least = n;
        }
    }
    return least;
}

/* A pair that comes again has to give the same by so much better than another pair. */
#define REPEATS 4.0
/* How far the same requests in the same order are apart, three times over. */
static ls_status measure_repeats(ls_inquiry *q, int64_t text, double *moved, int64_t *n_right, ls_error *err) {
    ls_seen s[3] = {0};
    ls_status status = LS_OK;
    *moved = 0.0;
    for (int k = 0; k < 3 && status == LS_OK; k++)
        status = ls_foreign_try_laid(q, lay_again, k == 2 ? -text : text, &s[k], err);
    for (int k = 1; k < 3 && status == LS_OK; k++)
        for (int64_t i = 1; i <= TIMES && i <= s[0].outcomes.n && i <= s[k].outcomes.n; i++)
            *moved = fmax(
                *moved, ls_probe_apart(&s[0].outcomes.of[s[0].outcomes.n - i], &s[k].outcomes.of[s[k].outcomes.n - i]));
    for (int k = 0; k < 3 && status == LS_OK; k++)
        for (int64_t i = 1; i <= TIMES && i <= s[k].outcomes.n; i++)
            *n_right += ls_probe_size(&s[k].outcomes.of[s[k].outcomes.n - i]) < 0.5 * ls_probe_moved_from(q);
    for (int k = 0; k < 3; k++) ls_seen_deinit(&s[k]);
    return status;
}

/* ---- whose turn it is ---- */

/* By less than this a sound server may choose another kernel for a copy. */
#define LEAST_OF_TURNS 1e-3
#define SAME_VALUE 1e-6
/* Values of one text that are a few sets, each of them to the last bit and each several times: servers that take turns
 * have one each. What a race makes has no sets, and a rounding that falls now here, now there does not come again. Two
 * sound servers with caches have one miss more than one of them has, in each of three rounds. */
enum { SETS_MOST = 4, SET_LEAST = 4, COPIES_MOST = 3 * TIMES };

static ls_status collect_copies(ls_inquiry *q, int64_t text, ls_seen *of, const ls_outcome **copies, int64_t *n,
                                ls_error *err) {
    *n = 0;
    for (int k = 0; k < 3; k++) {
        LS_TRY(ls_foreign_try_laid(q, lay_again, k == 2 ? -text : text, &of[k], err));
        /* Not the first: the others may be hits of it. */
        for (int64_t i = 1; i < TIMES && of[k].outcomes.n >= TIMES; i++)
            copies[(*n)++] = &of[k].outcomes.of[of[k].outcomes.n - i];
    }
    return LS_OK;
}

/* Whether they are at least two sets and none is of a few copies; *moved: how far sets are apart. */
static bool are_sets(const ls_outcome **copies, int64_t n, double *moved) {
    const ls_outcome *first[SETS_MOST];
    int64_t members[SETS_MOST] = {0}, n_sets = 0;
    *moved = 0.0;
    for (int64_t i = 0; i < n; i++) {
        int64_t set = 0;
        while (set < n_sets && ls_probe_apart(copies[i], first[set]) > SAME_VALUE) set++;
        if (set == SETS_MOST) return false;
        if (set == n_sets) first[n_sets++] = copies[i];
        members[set]++;
        *moved = fmax(*moved, ls_probe_apart(copies[i], first[0]));
    }
    for (int64_t set = 0; set < n_sets; set++)
        if (members[set] < SET_LEAST) return false;
    return n_sets >= 2;
}

/* ---- noise that comes and goes ---- */

/* Many copies of a text are equal to the last bit. Of the others no two are, so that they are no sets, and they are
 * farther away than two kernels are in the middle: another order of sums does not make that. */
#define NOISE_KERNELS 3.0
enum { NOISE_TEXTS = 6, STRAYS_LEAST = 3, STRAY_TOKENS = 256 };

typedef struct strays {
    int64_t n, n_copies, n_texts;
    int64_t n_far, n_far_texts; /* farther away than one rounding takes a value */
    double sizes[STRAY_TOKENS]; /* |d| of their tokens from the copies that are equal */
    int64_t n_sizes;
    double most;
} strays;

/* The copy that most others are equal to; -1: fewer than a quarter are. */
static int64_t most_common(const ls_outcome **copies, int64_t n) {
    int64_t best = -1, most = n / 4;
    for (int64_t i = 0; i < n; i++) {
        int64_t n_equal = 0;
        for (int64_t k = 0; k < n; k++) n_equal += !(ls_probe_apart(copies[i], copies[k]) > SAME_VALUE);
        if (n_equal > most) most = n_equal, best = i;
    }
    return best;
}

static bool has_twin(const ls_outcome **copies, int64_t n, int64_t i) {
    for (int64_t k = 0; k < n; k++)
        if (k != i && !(ls_probe_apart(copies[i], copies[k]) > SAME_VALUE)) return true;
    return false;
}

static void add_stray(const ls_outcome *a, const ls_outcome *b, strays *out) {
    for (int64_t i = 0; i < a->n && i < b->n && out->n_sizes < STRAY_TOKENS; i++) {
        const double d =
            ((double)a->logprob[i] - (double)a->scored[i]) - ((double)b->logprob[i] - (double)b->scored[i]);
        if (isfinite(d) && (double)b->scored[i] < LS_SURE_TOKEN) out->sizes[out->n_sizes++] = fabs(d);
        if (a->completion[i] != b->completion[i]) break; /* behind it the contexts are others */
    }
}

static void add_strays(const ls_foreign *f, const ls_outcome **copies, int64_t n, strays *out) {
    const int64_t common = most_common(copies, n), before = out->n, far_before = out->n_far;
    for (int64_t i = 0; i < n && common >= 0; i++) {
        const double d = ls_probe_apart(copies[i], copies[common]);
        if (!(d > SAME_VALUE) || has_twin(copies, n, i)) continue;
        out->n++;
        out->n_far += d > fmax(ls_probe_flip_of_bf16(f), NOISE_KERNELS * f->paths[LS_PATH_DECODE].q90);
        out->most = fmax(out->most, d);
        add_stray(copies[i], copies[common], out);
    }
    out->n_copies += common >= 0 ? n : 0;
    out->n_texts += out->n > before;
    out->n_far_texts += out->n_far > far_before;
}

/* ---- noise of every step ---- */

/* First tokens of copies are equal, and of decoded ones no two copies are: neither what stands in front nor another
 * order of sums does that where the prompt's values are of float32. */
#define NOISE_OF_STEPS 1e-3
enum { NOISY_LEAST = 2 };

typedef struct noisy {
    int64_t n_texts, n_tried, n_copies;
    double middle, most; /* of the distances of copies from the first one */
} noisy;

static void add_noisy(const ls_outcome **copies, int64_t n, noisy *out) {
    double sizes[COPIES_MOST], middle;
    bool all = n > 2;
    for (int64_t i = 0; i < n && all; i++) {
        all = fabs((double)copies[i]->logprob[0] - (double)copies[0]->logprob[0]) <= SAME_VALUE &&
              !has_twin(copies, n, i);
        if (i > 0) sizes[i - 1] = ls_probe_apart(copies[i], copies[0]);
    }
    out->n_tried++;
    if (!all) return;
    middle = ls_quantile(sizes, n - 1, 0.5, 0.0);
    if (!(middle > NOISE_OF_STEPS)) return;
    out->n_texts++;
    out->n_copies += n;
    out->middle = out->n_texts == 1 ? middle : fmin(out->middle, middle);
    out->most = fmax(out->most, sizes[n - 2]);
}

static void decide_noisy(ls_inquiry *q, const noisy *s, bool *found) {
    const ls_path_floor *first = &q->f->paths[LS_PATH_PREFILL];
    *found = s->n_texts >= NOISY_LEAST && s->n_texts == s->n_tried && first->n > 0 && first->most <= LS_FINE;
    if (!*found) return;
    q->f->repeat = fmax(q->f->repeat, s->most);
    ls_foreign_find(q->f, LS_CAUSE_NOT_REPEATABLE, LS_STACK_AGAIN, 0.93,
                    "the same request alone, again and again: first tokens are equal, and of %" PRId64
                    " copies of %" PRId64
                    " texts no two have the same decoded values; they are %.2g apart in the middle and up to "
                    "%.2g, where first tokens are within %.2g of the prompt's values",
                    s->n_copies, s->n_texts, s->middle, s->most, first->most);
}

static void decide_strays(ls_inquiry *q, strays *s, bool *found) {
    const ls_path_floor *paths = q->f->paths;
    const double kernels = fmax(paths[LS_PATH_PREFILL].median, paths[LS_PATH_DECODE].median);
    const double middle = ls_quantile(s->sizes, s->n_sizes, 0.5, 0.0);
    /* Of a coarse type whose paths agree to the bit two kernels are not known to be nearer than one rounding. */
    const double one = ls_probe_is_flip(q->f, 0.0) ? ls_probe_flip_of_bf16(q->f) / NOISE_KERNELS : LEAST_OF_TURNS;
    /* What happens at a step leaves the tokens before it as they are, so that the middle may be theirs. */
    *found = (s->n >= STRAYS_LEAST && s->n_texts >= 2 && middle > fmax(one, NOISE_KERNELS * kernels)) ||
             (s->n_far >= STRAYS_LEAST && s->n_far_texts >= 2);
    if (!*found) return;
    q->f->repeat = fmax(q->f->repeat, s->most);
    ls_foreign_find(q->f, LS_CAUSE_NOT_REPEATABLE, LS_STACK_AGAIN, s->n > STRAYS_LEAST ? 0.95 : 0.9,
                    "the same request alone, again and again: %" PRId64 " of %" PRId64
                    " have values of their own, %.2g away in the middle and up to %.2g, %" PRId64
                    " of them farther than a rounding; the others are equal to the last bit, and two kernels are %.2g "
                    "apart",
                    s->n, s->n_copies, middle, s->most, s->n_far, kernels);
}

/* Of a text that gives some copies no value nothing is told: its first token may have none. */
static bool all_have_values(const ls_outcome **copies, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        if (copies[i]->n == 0) return false;
    return true;
}

ls_status ls_probe_decide_turns(ls_inquiry *q, bool *found, ls_error *err) {
    enum { LEAST = 3 };
    strays stray = {0};
    noisy noise = {0};
    int64_t n_texts = 0, n_tried = 0;
    double most = 0.0;
    for (int64_t text = 3100; text < 3100 + NOISE_TEXTS; text++) {
        const ls_outcome *copies[COPIES_MOST];
        ls_seen of[3] = {0};
        int64_t n;
        double moved = 0.0;
        const ls_status status = collect_copies(q, text, of, copies, &n, err);
        const bool tells = status == LS_OK && all_have_values(copies, n);
        if (tells) {
            n_tried++;
            n_texts += are_sets(copies, n, &moved) && moved > LEAST_OF_TURNS;
            most = fmax(most, moved);
            add_strays(q->f, copies, n, &stray);
            add_noisy(copies, n, &noise);
        }
        for (int k = 0; k < 3; k++) ls_seen_deinit(&of[k]);
        LS_TRY(status);
        if (!tells) continue;
        if (moved == 0.0 && stray.n == 0) break; /* nobody takes turns */
        /* Noise that comes seldom needs more texts, and sets do not. */
        if (n_tried >= LEAST && (n_texts > 0 || stray.n == 0 || stray.n >= STRAYS_LEAST)) break;
    }
    if (n_texts < 2) {
        decide_strays(q, &stray, found);
        if (!*found) decide_noisy(q, &noise, found);
        return LS_OK;
    }
    *found = true;
    q->f->repeat = fmax(q->f->repeat, most);
    ls_foreign_find(q->f, LS_CAUSE_NOT_REPEATABLE, LS_STACK_AGAIN, n_texts == n_tried ? 0.97 : 0.93,
                    "the same request alone, one time after the other, has a few sets of values, each to the last bit "
                    "and up to %.2g apart; so in %" PRId64 " of %" PRId64
                    " texts: as servers that take turns and are not alike",
                    most, n_texts, n_tried);
    return LS_OK;
}

/* ---- what had the slot before, however long ago that was ---- */

enum { FLOOD = 72, FLOOD_LENGTH = 20, FLOOD_TEXTS = 4, FLOOD_TIMES = 2, PHASES = 4 };

/* So many at once that each slot has had that text. */
static ls_status lay_flood(ls_inquiry *q, int64_t text, ls_trial *trial, ls_requests *r, ls_error *err) {
    ls_stack_trial(q, LS_STACK_CROWD, trial, NULL);
    trial->sampling.temperature = 0.0f;
    trial->max_tokens = 1;
    for (int i = 0; i < FLOOD; i++) LS_TRY(ls_requests_plain(q, r, text, FLOOD_LENGTH, err));
    return LS_OK;
}

static ls_status lay_behind_flood(ls_inquiry *q, int64_t text, ls_trial *trial, ls_requests *r, ls_error *err) {
    greedy_trial(q, trial);
    for (int i = 0; i < FLOOD_TEXTS * FLOOD_TIMES; i++)
        LS_TRY(ls_requests_plain(q, r, text + i % FLOOD_TEXTS, i % 2 == 0 ? TEXT_LENGTH : TEXT_SHORT, err));
    return LS_OK;
}

/* How far the copies of a text in one phase are from the nearest one in another, at most. */
static double beyond(const ls_seen *a, const ls_seen *b, int text) {
    double most = 0.0;
    for (int64_t i = text; i < a->outcomes.n; i += FLOOD_TEXTS) {
        double least = (double)INFINITY;
        for (int64_t j = text; j < b->outcomes.n; j += FLOOD_TEXTS)
            least = fmin(least, ls_probe_apart(&a->outcomes.of[i], &b->outcomes.of[j]));
        most = fmax(most, least);
    }
    return most;
}

/* Behind a crowd of one text, behind one of another, and the same once more. */
static ls_status decide_flood(ls_inquiry *q, bool *found, ls_error *err) {
    ls_seen of[PHASES] = {0};
    int64_t n_moved = 0;
    double other_most = 0.0, same_most = 0.0;
    ls_status status = LS_OK;
    for (int k = 0; k < PHASES && status == LS_OK; k++) {
        ls_seen flood = {0};
        status = ls_foreign_try_laid(q, lay_flood, 3160 + k % 2, &flood, err);
        ls_seen_deinit(&flood);
        if (status == LS_OK) status = ls_foreign_try_laid(q, lay_behind_flood, 3170, &of[k], err);
    }
    for (int text = 0; text < FLOOD_TEXTS && status == LS_OK; text++) {
        const double other = fmin(beyond(&of[2], &of[1], text), beyond(&of[3], &of[2], text));
        const double same = fmax(beyond(&of[2], &of[0], text), beyond(&of[3], &of[1], text));
        if (!isfinite(other) || !isfinite(same) || !(other > ls_probe_moved_from(q)) || other < REPEATS * same)
            continue;
        n_moved++;
        other_most = fmax(other_most, other);
        same_most = fmax(same_most, same);
    }
    for (int k = 0; k < PHASES; k++) ls_seen_deinit(&of[k]);
    LS_TRY(status);
    *found = n_moved >= 2;
    if (*found)
        ls_foreign_find(q->f, LS_CAUSE_STALE_SLOT, LS_STACK_LENGTHS, n_moved > 2 ? 0.95 : 0.91,
                        "a request's values move by up to %.2g with the text that a crowd of %d had before it, and by "
                        "%.2g when the same crowd comes again; so do %" PRId64 " of %d texts",
                        other_most, FLOOD, same_most, n_moved, FLOOD_TEXTS);
    return LS_OK;
}

/* ---- what had the slot before, where it changes hands while others run ---- */

enum { HANDED_AT_ONCE = 8, HANDED_BEFORE = 2 * HANDED_AT_ONCE, HANDED_TEXTS = 3 };

/* A crowd of one text, and as many of another one as run at once. */
static ls_status lay_handed(ls_inquiry *q, int64_t crowd, ls_trial *trial, ls_requests *r, ls_error *err) {
    ls_stack_trial(q, LS_STACK_BATCH, trial, NULL);
    trial->sampling.temperature = 0.0f;
    trial->max_tokens = TEXT_NEW;
    for (int i = 0; i < HANDED_BEFORE; i++) LS_TRY(ls_requests_plain(q, r, crowd, TEXT_LENGTH, err));
    for (int i = 0; i < HANDED_AT_ONCE; i++) LS_TRY(ls_requests_plain(q, r, crowd / 10 * 10 + 5, TEXT_LENGTH, err));
    return LS_OK;
}

/* Of copies behind a crowd that are off: how many are equal to one behind the other. */
static void count_twins(const ls_foreign *f, const ls_seen *a, const ls_seen *b, int64_t *n_twins, int64_t *n) {
    for (int64_t i = HANDED_BEFORE; i < a->outcomes.n; i++) {
        bool twin = false;
        if (!ls_sequence_off(f, &a->outcomes.of[i])) continue;
        for (int64_t j = HANDED_BEFORE; j < b->outcomes.n && !twin; j++)
            twin = ls_probe_apart(&a->outcomes.of[i], &b->outcomes.of[j]) <= f->limit;
        (*n)++;
        *n_twins += twin;
    }
}

#define HANDED_CHANCE 1e-4
ls_status ls_probe_decide_handed(ls_inquiry *q, ls_stack_experiment experiment, bool *found, ls_error *err) {
    int64_t twins[2] = {0, 0}, n[2] = {0, 0}; /* behind the other crowd; behind the same */
    double chance;
    for (int64_t text = 0; text < HANDED_TEXTS; text++) {
        ls_seen of[PHASES] = {0};
        ls_status status = LS_OK;
        for (int k = 0; k < PHASES && status == LS_OK; k++)
            status = ls_foreign_try_laid(q, lay_handed, 3300 + 10 * text + k % 2, &of[k], err);
        for (int k = 0; k < 2 && status == LS_OK; k++) {
            count_twins(q->f, &of[2 * k], &of[2 * k + 1], &twins[0], &n[0]);
            count_twins(q->f, &of[k], &of[k + 2], &twins[1], &n[1]);
        }
        for (int k = 0; k < PHASES; k++) ls_seen_deinit(&of[k]);
        LS_TRY(status);
    }
    chance = ls_probe_chance(twins[1], n[1], twins[0], n[0]);
    *found = chance <= HANDED_CHANCE && 2 * twins[0] <= twins[1];
    if (*found)
        ls_foreign_find(q->f, LS_CAUSE_STALE_SLOT, experiment, ls_probe_sure(chance, 0.0),
                        "of copies of one text that are off, %d at a time, %" PRId64 " of %" PRId64
                        " have the same values again behind the crowd that had their slots, and %" PRId64 " of %" PRId64
                        " behind a crowd of another text",
                        HANDED_AT_ONCE, twins[1], n[1], twins[0], n[0]);
    return LS_OK;
}

/* ---- what a client that left has left ---- */

enum { LEFT_ROUNDS = 8, LEFT_TEXTS = 8, LEFT_LEAST = 3, LEFT_FROM = 3340 };
#define LEFT_CHANCE 1e-4

/* `text` below 0: those in front, of as many tokens, are read to their end. */
static ls_status lay_left(ls_inquiry *q, int64_t text, ls_trial *trial, ls_requests *r, ls_error *err) {
    greedy_trial(q, trial);
    trial->rounds = LEFT_ROUNDS;
    if (text >= 0) trial->outside = LS_OUTSIDE_LEAVERS;
    if (text < 0) LS_TRY(ls_requests_plain(q, r, 20 - text, TEXT_LENGTH, err));
    return ls_requests_plain(q, r, text < 0 ? -text : text, TEXT_LENGTH, err);
}

ls_status ls_probe_decide_leavers(ls_inquiry *q, bool *found, ls_error *err) {
    int64_t off[2] = {0, 0}, n[2] = {0, 0};
    double chance = 1.0, most = 0.0;
    for (int64_t k = 0; k < LEFT_TEXTS && chance > LEFT_CHANCE && (k < LEFT_LEAST || off[0] > 4 * off[1]); k++) {
        for (int stays = 0; stays < 2; stays++) {
            ls_seen s;
            LS_TRY(ls_foreign_try_laid(q, lay_left, (stays ? -1 : 1) * (LEFT_FROM + k), &s, err));
            for (int64_t i = stays; i < s.outcomes.n; i += 1 + stays) {
                n[stays]++;
                off[stays] += ls_sequence_off(q->f, &s.outcomes.of[i]);
            }
            if (!stays) most = fmax(most, s.abs_max);
            ls_seen_deinit(&s);
        }
        chance = ls_probe_chance(off[0], n[0], off[1], n[1]);
    }
    *found = chance <= LEFT_CHANCE && off[1] == 0;
    if (*found)
        ls_foreign_find(q->f, LS_CAUSE_STALE_SLOT, LS_STACK_LEAVERS, ls_probe_sure(chance, 0.0),
                        "one at a time behind two whose clients left %" PRId64 " of %" PRId64
                        " are off by up to %.2g; behind one that was read to its end none of %" PRId64 " is",
                        off[0], n[0], most, n[1]);
    return LS_OK;
}

/* ---- what all requests before have left ---- */

enum { DRIFT_TEXTS = 3, TRIPLE = 3, STRANGERS = 16, DRIFTS = 3 };

static ls_status lay_triples(ls_inquiry *q, int64_t text, ls_trial *trial, ls_requests *r, ls_error *err) {
    greedy_trial(q, trial);
    for (int i = 0; i < DRIFT_TEXTS * TRIPLE; i++) LS_TRY(ls_requests_plain(q, r, text + i / TRIPLE, TEXT_LENGTH, err));
    return LS_OK;
}

/* Texts and draws that were not there before. */
static ls_status lay_others(ls_inquiry *q, int64_t text, ls_trial *trial, ls_requests *r, ls_error *err) {
    ls_stack_trial(q, LS_STACK_SOLO_C, trial, NULL);
    for (int i = 0; i < STRANGERS; i++) LS_TRY(ls_requests_plain(q, r, text + i, TEXT_LENGTH, err));
    return LS_OK;
}

static ls_status run_drift(ls_inquiry *q, ls_seen of[DRIFTS], ls_error *err) {
    for (int k = 0; k < DRIFTS; k++) {
        ls_seen others = {0};
        LS_TRY(ls_foreign_try_laid(q, lay_triples, 3190, &of[k], err));
        if (k + 1 < DRIFTS) LS_TRY(ls_foreign_try_laid(q, lay_others, 3200 + STRANGERS * k, &others, err));
        ls_seen_deinit(&others);
    }
    return LS_OK;
}

ls_status ls_probe_measure_drift(ls_inquiry *q, ls_error *err) {
    ls_seen of[DRIFTS] = {0};
    ls_drift *d = &q->drift;
    const ls_status status = run_drift(q, of, err);
    for (int k = 0; k + 1 < DRIFTS && status == LS_OK; k++)
        for (int i = 0; i < DRIFT_TEXTS * TRIPLE && i < of[k].outcomes.n && i < of[k + 1].outcomes.n; i += TRIPLE) {
            const ls_outcome *a = &of[k].outcomes.of[i], *b = &of[k + 1].outcomes.of[i];
            const double away = ls_probe_apart(&a[TRIPLE - 1], &b[TRIPLE - 1]);
            const double at_once = fmax(ls_probe_apart(&a[1], &a[2]), ls_probe_apart(&b[1], &b[2]));
            d->n++;
            d->n_moved += away > LS_LEAST_PATTERN && away > REPEATS * at_once;
            d->most = fmax(d->most, away);
            d->at_once = fmax(d->at_once, at_once);
        }
    for (int k = 0; k < DRIFTS; k++) ls_seen_deinit(&of[k]);
    return status;
}

/* A text that comes again at once is the same, and another one when others have been there. */
void ls_probe_decide_drift(ls_inquiry *q, bool *found) {
    const ls_drift *d = &q->drift;
    *found = d->n > 0 && 3 * d->n_moved >= 2 * d->n;
    if (*found)
        ls_foreign_find(q->f, LS_CAUSE_STALE_SLOT, LS_STACK_LENGTHS, 0.9 + 0.06 * ls_portion(d->n_moved, d->n),
                        "a request's values move by up to %.2g when %d others have been there, %" PRId64 " of %" PRId64
                        " times, and by %.2g when it comes again at once: what they leave stays",
                        d->most, STRANGERS, d->n_moved, d->n, d->at_once);
}

/* ---- what the end of the request in front leaves ---- */

enum { ENDED_TEXTS = 4, ENDED_PAIRS = 6, ENDED_NEW = 16, ENDED_FROM = 3400 };
#define ENDED_CHANCE 1e-4

/* Behind one text and behind another, in turn; `text` below 0: all of them may end at a stop token. */
static ls_status lay_ended(ls_inquiry *q, int64_t text, ls_trial *trial, ls_requests *r, ls_error *err) {
    const int64_t own = text < 0 ? -text : text;
    greedy_trial(q, trial);
    trial->max_tokens = ENDED_NEW;
    if (text < 0) trial->outside = LS_OUTSIDE_STOPS;
    for (int i = 0; i < ENDED_PAIRS; i++) {
        LS_TRY(ls_requests_plain(q, r, own + 1 + i % 2, TEXT_LENGTH, err));
        LS_TRY(ls_requests_plain(q, r, own, TEXT_LENGTH, err));
    }
    return LS_OK;
}

double ls_probe_records_apart(const ls_outcome *a, const ls_outcome *b) {
    double most = 0.0;
    for (int64_t i = 0; i < a->n && i < b->n; i++) {
        most = fmax(most, fabs((double)a->logprob[i] - (double)b->logprob[i]));
        if (a->completion[i] != b->completion[i]) break;
    }
    return most;
}

typedef struct ended {
    int64_t n, n_moved, n_whole; /* copies of a text; with other values than the second has; that ended at no stop */
    double most;
} ended;

static ls_status count_ended(ls_inquiry *q, int64_t text, ended *out, ls_error *err) {
    ls_seen s;
    LS_TRY(ls_foreign_try_laid(q, lay_ended, text, &s, err));
    for (int64_t i = 0; i < s.outcomes.n; i++) {
        const double d = i % 2 == 1 && i > 3 ? ls_probe_records_apart(&s.outcomes.of[i], &s.outcomes.of[3]) : 0.0;
        out->n_whole += s.outcomes.of[i].n == ENDED_NEW;
        out->n += i % 2 == 1 && i > 3;
        out->n_moved += d > ls_probe_moved_from(q);
        out->most = fmax(out->most, d);
    }
    ls_seen_deinit(&s);
    return LS_OK;
}

/* A text is the same behind requests that ended at a stop token, whichever, and another each time behind those that
 * ended at their length: what comes and goes by itself does not ask for that. */
static ls_status decide_ended(ls_inquiry *q, bool *found, ls_error *err) {
    ended at_length = {0}, at_stop = {0};
    double chance;
    *found = false;
    if ((q->runner->door->subject->does & LS_OUTSIDE_STOPS) == 0) return LS_OK;
    for (int64_t k = 0; k < ENDED_TEXTS; k++) {
        LS_TRY(count_ended(q, ENDED_FROM + 3 * k, &at_length, err));
        LS_TRY(count_ended(q, -(ENDED_FROM + 3 * k), &at_stop, err));
    }
    chance = ls_probe_chance(at_length.n_moved, at_length.n, at_stop.n_moved, at_stop.n);
    *found = at_stop.n > 0 && at_stop.n_whole == 0 && at_stop.n_moved == 0 && chance <= ENDED_CHANCE;
    if (*found)
        ls_foreign_find(q->f, LS_CAUSE_STALE_SLOT, LS_STACK_LENGTHS, ls_probe_sure(chance, 0.0),
                        "behind requests that ended at their length %" PRId64 " of %" PRId64
                        " copies of a text have other values, by up to %.2g, and behind those that ended at a stop "
                        "token none of %" PRId64 ": what the former leave stays",
                        at_length.n_moved, at_length.n, at_length.most, at_stop.n);
    return LS_OK;
}

/* ---- what comes and goes ---- */

/* Of what comes and goes so large a part is right that chance does not make it: one in so many. */
#define RIGHT_NOW_AND_THEN 4.0
ls_status ls_probe_decide_repeats(ls_inquiry *q, bool *found, ls_error *err) {
    ls_foreign *f = q->f;
    int64_t n_moved = 0, n_right = 0;
    double most = 0.0, share;
    for (int64_t text = 3100; text < 3103; text++) {
        double moved;
        LS_TRY(measure_repeats(q, text, &moved, &n_right, err));
        n_moved += moved > ls_probe_moved_from(q);
        most = fmax(most, moved);
    }
    if (n_moved < 2) return LS_OK;
    LS_TRY(decide_flood(q, found, err));
    if (!*found) ls_probe_decide_drift(q, found);
    if (!*found) LS_TRY(decide_ended(q, found, err));
    if (*found) return LS_OK;
    share = (double)n_right / (9.0 * TIMES);
    /* What is never right may be a few sets of values, which nothing that stays makes. */
    *found = false;
    if (RIGHT_NOW_AND_THEN * share < 1.0) LS_TRY(ls_probe_decide_turns(q, found, err));
    if (*found) return LS_OK;
    *found = true;
    f->repeat = fmax(f->repeat, most);
    /* What comes and goes is right now and then. What is never right may as well hang on all that came before. */
    ls_foreign_find(f, LS_CAUSE_NOT_REPEATABLE, LS_STACK_AGAIN, 0.7 + 0.27 * fmin(1.0, RIGHT_NOW_AND_THEN * share),
                    "the same requests in the same order, three times over, have values up to %.2g apart, in %" PRId64
                    " of 3 texts; %" PRId64 " of %d are right%s",
                    most, n_moved, n_right, 9 * TIMES,
                    RIGHT_NOW_AND_THEN * share >= 1.0
                        ? ""
                        : ". A state that is never cleared looks the same: try one on a fresh server");
    return LS_OK;
}

/* Three texts behind one text and behind another, each pair twice. */
typedef struct behind {
    int64_t n_moved, n_texts;
    double other, same, other_most, same_most; /* sums of how far pairs are apart, and the farthest */
} behind;

static void add_behind(const ls_inquiry *q, const ls_outcome *o, int64_t group, behind *out) {
    /* The last of groups 0 and 2 stands behind the one text. */
    const double same = fmax(ls_probe_apart(&o[0], &o[2 * group]), ls_probe_apart(&o[group], &o[3 * group]));
    const double other = ls_probe_apart(&o[0], &o[group]);
    out->n_texts++;
    out->n_moved += other > ls_probe_moved_from(q) && other > 2.0 * same;
    out->other += other;
    out->same += same;
    out->other_most = fmax(out->other_most, other);
    out->same_most = fmax(out->same_most, same);
}

/* Of each length. Where the first two texts do not move, the third would be alone. */
static ls_status measure_behind(ls_inquiry *q, behind out[LENGTHS], ls_error *err) {
    const int64_t n = q->long_text > 0 ? LENGTHS : LONG_TEXT, group = FILLERS + 2 * n;
    memset(out, 0, LENGTHS * sizeof *out);
    for (int64_t text = 3110;
         text < 3140 && (text < 3130 || out[0].n_moved + out[1].n_moved + out[LONG_TEXT].n_moved > 0); text += 10) {
        ls_seen s;
        LS_TRY(ls_foreign_try_laid(q, lay_behind, text, &s, err));
        for (int64_t k = 0; k < n && s.outcomes.n == 2 * ROUNDS * group; k++)
            add_behind(q, &s.outcomes.of[FILLERS + 1 + 2 * k], group, &out[k]);
        ls_seen_deinit(&s);
    }
    return LS_OK;
}

static bool is_behind(const behind *b) { return b->n_moved >= 2 && b->other > REPEATS * b->same; }

/* A server that takes long for a token is not asked for as many as forgetting takes: there is more to be tried. */
#define LONG_SHARE 0.25
/* The same ordered pair twice gives the same, another one in front gives something else. Where a state is never cleared
 * the same pair gives the same only behind requests that are long enough for it to be forgotten. */
ls_status ls_probe_decide_predecessors(ls_inquiry *q, bool *found, ls_error *err) {
    static const int64_t fillers[2] = {FILLER_SHORT, FILLER_LONG};
    const int64_t most = q->runner->sweep->opts.length_max;
    behind of[LENGTHS] = {0}, b = {0};
    double took = 0.0, left = 0.0;
    q->long_text = length_of_long(q);
    for (int k = 0; k < 2 && !*found; k++) {
        const double start = ls_clock_seconds();
        int which = LENGTHS - 1;
        if (most > 0 && fillers[k] + TEXT_NEW > most) break;
        if (k > 0 && took * (double)fillers[k] / (double)fillers[0] > left) break;
        q->filler = fillers[k];
        LS_TRY(measure_behind(q, of, err));
        took = ls_clock_seconds() - start;
        left = ls_door_share(q->runner->door, LONG_SHARE) - ls_clock_seconds();
        while (which > 0 && !is_behind(&of[which])) which--;
        b = of[is_behind(&of[0]) ? 0 : which];
        *found = is_behind(&b);
        if (!(of[0].other_most > ls_probe_moved_from(q))) break; /* nothing moves */
    }
    q->filler = 0;
    if (*found)
        ls_foreign_find(q->f, LS_CAUSE_STALE_SLOT, LS_STACK_LENGTHS,
                        (0.98 - 0.2 * b.same / b.other) * (b.n_moved < b.n_texts ? 0.97 : 1.0),
                        "a request's values move by up to %.2g with the request in front of it, and by %.2g when the "
                        "same pair comes again; so do %" PRId64 " of %" PRId64 " texts",
                        b.other_most, b.same_most, b.n_moved, b.n_texts);
    return LS_OK;
}
