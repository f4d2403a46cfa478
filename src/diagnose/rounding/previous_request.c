/* Whether a request is off for what is in front of it: tried in pairs, with texts, lengths and beginnings that no
 * request had before. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "diagnose/rounding/inquiry.h"

/* How a request is related to the one in front of it. */
typedef enum relation {
    UNRELATED = 0,
    LIKE_LENGTH,
    LIKE_TAIL,
    LIKE_HEAD,
    LIKE_SET,
    SAME,
    MOVED, /* of a server: pieces that are kept may be put elsewhere, behind other tokens */
    LAST_BITS,
    FIRST_BITS,
    CONTINUED, /* of a server: what is kept of the first is right for the second */
    PIECES,    /* of a server: a piece may be known by its own tokens, whatever stood in front of it */
    RELATIONS
} relation;
static const char *const relation_words[RELATIONS] = {"another one",
                                                      "one of the same length",
                                                      "one with the same end",
                                                      "one with the same beginning",
                                                      "the same tokens",
                                                      "itself",
                                                      "one with a piece more in it",
                                                      "one with other last bits of its tokens",
                                                      "one with other first bits of its tokens",
                                                      "its own beginning",
                                                      "one with its beginning and one with the rest of it"};

/* What PIECES are cut at is a border of blocks of any common size, and so many tokens more hold two of them. */
enum { PAIRS = 3, FIRST_LENGTH = 66, LONGEST = 400, PIECE = 9, BLOCK = 128, MORE_BLOCKS = 192 };

typedef struct relations_tried {
    int64_t off[RELATIONS], n[RELATIONS]; /* second requests */
    int64_t taken[RELATIONS];             /* of those that are off: the answer is the first request's */
    int64_t by_values[RELATIONS];         /* .. : the prompt's values have moved, and not what was generated */
    int64_t next_length;                  /* lengths that no request had */
} relations_tried;

static int64_t fresh_length(relations_tried *k) {
    while (k->next_length == 80 || k->next_length == 100 || k->next_length == 129 || k->next_length == 130)
        k->next_length++;
    return k->next_length++;
}

/* A text of the same length behind one that it has nothing in common with, before the pair: what is off here is off for
 * its length. A server alone is asked, whose trials share one process. */
static ls_status off_unrelated(ls_inquiry *q, const ls_trial *trial, int64_t text, int64_t n, relations_tried *k,
                               bool *is_off, ls_error *err) {
    ls_requests *r = calloc(1, sizeof *r);
    ls_seen seen = {0};
    ls_status status;
    *is_off = false;
    LS_TRY_DONE(r != NULL ? LS_OK : LS_FAIL(err, LS_ERR_NOMEM, "prompts"));
    LS_TRY_DONE(ls_requests_plain(q, r, 6000 + 2 * text, fresh_length(k), err));
    LS_TRY_DONE(ls_requests_plain(q, r, 6001 + 2 * text, n, err));
    LS_TRY_DONE(ls_foreign_try(q, trial, 0, r->of, r->n, &seen, err));
    *is_off = seen.outcomes.n != 2 || ls_sequence_off(q->f, &seen.outcomes.of[1]);
done:
    ls_seen_deinit(&seen);
    if (r != NULL) free(r->ids);
    free(r);
    return status;
}

/* Token i of the request in front of one whose text is `own` and has n tokens. */
static int32_t token_before(const ls_inquiry *q, relation how, int64_t own, int64_t n, int64_t i) {
    const bool shared = how == SAME || (how == LIKE_HEAD && i < n - n / 3) || (how == LIKE_TAIL && i >= n / 3);
    if (how == LAST_BITS || how == FIRST_BITS) return ls_other_bit(q, ls_plain_token(q, own, i), how == FIRST_BITS);
    if (how == LIKE_SET && q->f->is_server) return ls_plain_token(q, own, ls_exchanged(i, n));
    if (how == LIKE_SET) return ls_plain_token(q, own, i < n - 1 ? (i + 7) % (n - 1) : i);
    if (how == CONTINUED) return ls_plain_token(q, own, i);
    if (how == PIECES) return ls_plain_token(q, i < BLOCK ? own : own + 1, i);
    if (how == MOVED && (i < n / 4 || i >= n / 4 + PIECE)) return ls_plain_token(q, own, i < n / 4 ? i : i - PIECE);
    return ls_plain_token(q, shared ? own : own + 1, i);
}

/* The same tokens and the same values, of another prompt. */
static bool is_answer_of(const ls_outcome *c, const ls_outcome *first) {
    bool same = c->n == first->n && c->n > 0;
    for (int64_t i = 0; i < c->n && same; i++)
        same = c->completion[i] == first->completion[i] && !(fabsf(c->logprob[i] - first->logprob[i]) > 1e-6f);
    return same;
}

/* Values of prompts may be kept as well. With one more token behind them they are of a prompt that was not there yet:
 * whether they are then what was recorded. Where each value is a request of its own nothing else can be asked. */
static ls_status are_values_moved(ls_inquiry *q, const ls_outcome *c, bool *moved, ls_error *err) {
    int32_t tokens[LONGEST];
    float again[LONGEST];
    int64_t n_right = 0;
    *moved = false;
    if (q->runner->door->subject->scores_by_token || c->n + 1 > LONGEST) return LS_OK;
    memcpy(tokens, c->completion, (size_t)c->n * sizeof *tokens);
    tokens[c->n] = ls_plain_token(q, 1, c->n_prompt);
    LS_TRY(ls_probe_score(q, (ls_prompt){c->prompt, c->n_prompt}, tokens, c->n + 1, again, err));
    for (int64_t i = 0; i < c->n; i++) n_right += fabs((double)again[i] - (double)c->logprob[i]) <= q->f->limit;
    *moved = n_right == c->n;
    return LS_OK;
}

/* The other one of PIECES: what the first has not. */
static ls_status add_other_pieces(ls_inquiry *q, ls_requests *r, int64_t own, int64_t n, ls_error *err) {
    int32_t ids[LONGEST];
    for (int64_t i = 0; i < n; i++) ids[i] = ls_plain_token(q, i < BLOCK ? own + 1 : own, i);
    return ls_requests_add(r, ids, n, err);
}

/* Two requests or three, one behind the other; is the last one off, for what is kept of those in front? */
static ls_status try_pair(ls_inquiry *q, relation how, int64_t text, bool cached, relations_tried *k, ls_error *err) {
    ls_requests *r = calloc(1, sizeof *r);
    int32_t ids[LONGEST];
    const int64_t n = fresh_length(k) + (how == PIECES ? MORE_BLOCKS : 0), own = 5000 + 2 * text;
    const int64_t n_first = how == UNRELATED   ? fresh_length(k)
                            : how == MOVED     ? n + PIECE
                            : how == CONTINUED ? n - n / 3
                                               : n;
    const ls_outcome *last;
    ls_seen seen = {0};
    ls_trial trial;
    ls_status status;
    bool is_off, unrelated = false, moved = false;
    LS_TRY_DONE(r != NULL ? LS_OK : LS_FAIL(err, LS_ERR_NOMEM, "prompts"));
    for (int64_t i = 0; i < n_first; i++) ids[i] = token_before(q, how, own, n, i);
    LS_TRY_DONE(ls_requests_add(r, ids, n_first, err));
    if (how == PIECES) LS_TRY_DONE(add_other_pieces(q, r, own, n, err));
    for (int64_t i = 0; i < n; i++) ids[i] = ls_plain_token(q, own, i);
    LS_TRY_DONE(ls_requests_add(r, ids, n, err));
    ls_stack_trial(q, cached ? LS_STACK_CACHED_SHARED : LS_STACK_SEQUENCE, &trial, NULL);
    if (q->f->is_server && how != UNRELATED) LS_TRY_DONE(off_unrelated(q, &trial, text, n, k, &unrelated, err));
    LS_TRY_DONE(ls_foreign_try(q, &trial, 0, r->of, r->n, &seen, err));
    if (seen.outcomes.n == r->n) {
        last = &seen.outcomes.of[r->n - 1];
        k->n[how]++;
        is_off = ls_sequence_off(q->f, last);
        is_off = is_off && !unrelated;
        k->off[how] += is_off;
        k->taken[how] += is_off && is_answer_of(last, &seen.outcomes.of[0]);
        if (q->f->is_server && is_off) LS_TRY_DONE(are_values_moved(q, last, &moved, err));
        k->by_values[how] += moved;
        /* A server that remembers shows it to those that it has not seen yet: the pair itself is what shows it. */
        if (q->f->is_server && how != UNRELATED && is_off && q->runner->sweep->n_repro == 0)
            LS_TRY_DONE(ls_sweep_keep_repro(q->runner->sweep, r->of, r->n, &trial, err));
    }
done:
    ls_seen_deinit(&seen);
    if (r != NULL) free(r->ids);
    free(r);
    return status;
}

static bool mostly(const relations_tried *k, relation how) { return k->n[how] >= 2 && 2 * k->off[how] > k->n[how]; }

typedef struct share {
    int64_t off, n;
} share;

static void add_share(share *to, const relations_tried *k, relation how) { to->off += k->off[how], to->n += k->n[how]; }

/* Of a server, by how unlikely chance makes the related ones off and those of the control right. */
static double sure_of(const ls_inquiry *q, share related, share control, double of_programs) {
    if (!q->f->is_server) return of_programs;
    return fmax(0.0, 0.97 - ls_probe_chance(related.off, related.n, control.off, control.n));
}

/* Two that share no beginning, and one is off for the other: nothing else is to be known of a server in little time. */
static bool is_crossed(const relations_tried *k) {
    return k->n[UNRELATED] >= PAIRS && k->off[UNRELATED] == 0 &&
           (k->off[LIKE_LENGTH] == PAIRS || k->off[LIKE_TAIL] == PAIRS || k->off[LIKE_SET] == PAIRS ||
            k->off[LAST_BITS] == PAIRS);
}

/* Three pairs beside three are chance once in twenty: as many again of what was off, and of what should not be. */
static ls_status try_more(ls_inquiry *q, bool cached, relations_tried *k, ls_error *err) {
    const bool undecided = q->f->undecided; /* by what it has to be told from, and not by these */
    bool any = false;
    for (int how = LIKE_LENGTH; how < RELATIONS; how++) {
        const bool more = mostly(k, (relation)how);
        any = any || more;
        for (int64_t i = 0; i < PAIRS && more; i++)
            LS_TRY(try_pair(q, (relation)how, PAIRS * (RELATIONS + how) + i, cached, k, err));
    }
    for (int64_t i = 0; i < PAIRS && any && k->off[UNRELATED] == 0; i++)
        LS_TRY(try_pair(q, UNRELATED, PAIRS * RELATIONS + i, cached, k, err));
    q->f->undecided = undecided;
    return LS_OK;
}

/* A beginning is shared by right, as the whole is: such a hit is a wrong one only where hits of a request's own are
 * right, or where the answer is the first one's. */
static bool begins_alike(relation how) { return how == LIKE_HEAD || how == MOVED || how == PIECES; }

static share own_hits(const relations_tried *k) {
    share own = {0};
    add_share(&own, k, SAME);
    add_share(&own, k, CONTINUED);
    return own;
}

static bool has_crossed(const ls_inquiry *q, const relations_tried *k, relation how) {
    const bool own_off = q->f->is_server ? own_hits(k).off > 0 : mostly(k, SAME);
    if (how == SAME || how == CONTINUED || !mostly(k, how)) return false;
    return !begins_alike(how) || !own_off || 2 * k->taken[how] > k->off[how];
}

static void find_crossed(ls_inquiry *q, ls_stack_experiment experiment, const relations_tried *k) {
    char which[240] = "", beside[120] = "";
    const share own = own_hits(k);
    share related = {0}, control = {0};
    int64_t taken = 0;
    bool alike = true; /* all of them in the beginning */
    for (int how = LIKE_LENGTH; how < RELATIONS; how++) {
        if (!has_crossed(q, k, (relation)how)) continue;
        snprintf(which + strlen(which), sizeof which - strlen(which), "%s%s", which[0] != '\0' ? ", " : "",
                 relation_words[how]);
        add_share(&related, k, (relation)how);
        taken += k->taken[how];
        alike = alike && begins_alike((relation)how);
    }
    add_share(&control, k, UNRELATED);
    if (q->f->is_server && alike && own.off == 0) control = own;
    if (q->f->is_server && own.n > 0)
        snprintf(beside, sizeof beside,
                 ". %" PRId64 " of %" PRId64 " have the first one's answer; of hits of its own %" PRId64 " of %" PRId64
                 " are off",
                 taken, related.off, own.off, own.n);
    ls_foreign_find(q->f, LS_CAUSE_CACHE_CROSSED, experiment, sure_of(q, related, control, 0.95),
                    "of two requests one at a time, the second is off when the first is %s; it is right behind %s "
                    "(%" PRId64 " of %" PRId64 " off)%s",
                    which, relation_words[UNRELATED], k->off[UNRELATED], k->n[UNRELATED], beside);
}

/* Those of all that are off whose values of prompts have moved. */
static share moved_values(const relations_tried *k) {
    share s = {0};
    for (int how = LIKE_LENGTH; how < RELATIONS; how++) s.off += k->by_values[how], s.n += k->off[how];
    return s;
}

static void find_values(ls_inquiry *q, ls_stack_experiment experiment, const relations_tried *k) {
    share related = {0}, control = {0};
    for (int how = LIKE_LENGTH; how < RELATIONS; how++)
        if (k->off[how] > 0) add_share(&related, k, (relation)how);
    add_share(&control, k, UNRELATED);
    ls_foreign_find(
        q->f, LS_CAUSE_CACHE_HITS, experiment, sure_of(q, related, control, 0.0),
        "what is generated is right, and the prompt's values are another one's that was like it: of %" PRId64
        " requests that are off, %" PRId64
        " are right when one more token stands behind what is scored; "
        "behind unlike ones %" PRId64 " of %" PRId64 " are off",
        moved_values(k).n, moved_values(k).off, control.off, control.n);
}

/* Whatever a request has in common with the one before by right, it is off behind it. */
static void find_hits(ls_inquiry *q, ls_stack_experiment experiment, const relations_tried *k) {
    const share own = own_hits(k);
    share related = own, control = {0};
    add_share(&related, k, LIKE_HEAD);
    add_share(&control, k, UNRELATED);
    ls_foreign_find(q->f, mostly(k, SAME) ? LS_CAUSE_SNAPSHOT_SHIFTED : LS_CAUSE_CACHE_HITS, experiment,
                    sure_of(q, related, control, 0.93),
                    "a request is off when it comes a second time or behind its own beginning, %" PRId64 " of %" PRId64
                    ", and behind another with that beginning, %" PRId64 " of %" PRId64
                    "; behind any other it is right",
                    own.off, own.n, k->off[LIKE_HEAD], k->n[LIKE_HEAD]);
}

/* What a request in front of another one does to it. *found: it was that, and is found. */
ls_status ls_decide_previous_request(ls_inquiry *q, ls_stack_experiment experiment, bool cached, bool *found,
                                     ls_error *err) {
    relations_tried k = {.next_length = FIRST_LENGTH};
    const int64_t most = q->runner->sweep->opts.length_max;
    const int n_relations = !q->f->is_server ? MOVED : most > 0 && most < LONGEST ? PIECES : RELATIONS;
    bool crossed = false, any = false;
    *found = false;
    for (int how = 0; how < n_relations && !(q->f->is_server && is_crossed(&k)); how++)
        for (int64_t i = 0; i < PAIRS; i++) LS_TRY(try_pair(q, (relation)how, PAIRS * how + i, cached, &k, err));
    if (q->f->is_server) LS_TRY(try_more(q, cached, &k, err));
    for (int how = LIKE_LENGTH; how < n_relations; how++) {
        any = any || mostly(&k, (relation)how);
        crossed = crossed || has_crossed(q, &k, (relation)how);
    }
    /* Not for what the two have in common, where the unrelated are off as well. */
    if (k.off[UNRELATED] > 0 || !any) {
        if (q->f->is_server) ls_sweep_drop_repro(q->runner->sweep);
        return LS_OK;
    }
    *found = true;
    if (10 * moved_values(&k).off >= 9 * moved_values(&k).n && moved_values(&k).off > 0)
        find_values(q, experiment, &k);
    else if (crossed)
        find_crossed(q, experiment, &k);
    else
        find_hits(q, experiment, &k);
    q->f->found.of[0].is_confirmed = true;
    return LS_OK;
}
