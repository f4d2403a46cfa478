/* Whether a request is off for the one in front of it: tried in pairs, with texts, lengths and beginnings that no
 * request had before. */
#include <inttypes.h>
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
                                                      "one with other first bits of its tokens"};

enum { PAIRS = 3, FIRST_LENGTH = 66, LONGEST = 280, PIECE = 9 };

typedef struct relations_tried {
    int64_t off[RELATIONS], n[RELATIONS]; /* second requests */
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
    if (how == MOVED && (i < n / 4 || i >= n / 4 + PIECE)) return ls_plain_token(q, own, i < n / 4 ? i : i - PIECE);
    return ls_plain_token(q, shared ? own : own + 1, i);
}

/* Two requests, one behind the other; is the second one off, for what is kept of the first? */
static ls_status try_pair(ls_inquiry *q, relation how, int64_t text, bool cached, relations_tried *k, ls_error *err) {
    ls_requests *r = calloc(1, sizeof *r);
    int32_t ids[LONGEST];
    const int64_t n = fresh_length(k), own = 5000 + 2 * text;
    const int64_t n_first = how == UNRELATED ? fresh_length(k) : how == MOVED ? n + PIECE : n;
    ls_seen seen = {0};
    ls_trial trial;
    ls_status status;
    bool is_off, unrelated = false;
    LS_TRY_DONE(r != NULL ? LS_OK : LS_FAIL(err, LS_ERR_NOMEM, "prompts"));
    for (int64_t i = 0; i < n_first; i++) ids[i] = token_before(q, how, own, n, i);
    LS_TRY_DONE(ls_requests_add(r, ids, n_first, err));
    for (int64_t i = 0; i < n; i++) ids[i] = ls_plain_token(q, own, i);
    LS_TRY_DONE(ls_requests_add(r, ids, n, err));
    ls_stack_trial(q, cached ? LS_STACK_CACHED_SHARED : LS_STACK_SEQUENCE, &trial, NULL);
    if (q->f->is_server && how != UNRELATED) LS_TRY_DONE(off_unrelated(q, &trial, text, n, k, &unrelated, err));
    LS_TRY_DONE(ls_foreign_try(q, &trial, 0, r->of, r->n, &seen, err));
    if (seen.outcomes.n == 2) {
        k->n[how]++;
        is_off = ls_sequence_off(q->f, &seen.outcomes.of[1]);
        is_off = is_off && !unrelated;
        k->off[how] += is_off;
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

/* Of a server, by how unlikely chance makes the related ones off and the unrelated ones right. */
static double sure_of(const ls_inquiry *q, const relations_tried *k, double of_programs) {
    int64_t off = 0, n = 0;
    if (!q->f->is_server) return of_programs;
    for (int how = LIKE_LENGTH; how < RELATIONS; how++)
        if (mostly(k, (relation)how)) off += k->off[how], n += k->n[how];
    return fmax(0.0, 0.97 - ls_probe_chance(off, n, k->off[UNRELATED], k->n[UNRELATED]));
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

/* What a request in front of another one does to it. *found: it was that, and is found. */
ls_status ls_decide_previous_request(ls_inquiry *q, ls_stack_experiment experiment, bool cached, bool *found,
                                     ls_error *err) {
    relations_tried k = {.next_length = FIRST_LENGTH};
    char which[240] = "";
    const int n_relations = q->f->is_server ? RELATIONS : MOVED;
    bool other = false;
    *found = false;
    for (int how = 0; how < n_relations && !(q->f->is_server && is_crossed(&k)); how++)
        for (int64_t i = 0; i < PAIRS; i++) LS_TRY(try_pair(q, (relation)how, PAIRS * how + i, cached, &k, err));
    if (q->f->is_server) LS_TRY(try_more(q, cached, &k, err));
    for (int how = LIKE_LENGTH; how < n_relations; how++) {
        if (how == SAME || !mostly(&k, (relation)how)) continue;
        snprintf(which + strlen(which), sizeof which - strlen(which), "%s%s", which[0] != '\0' ? ", " : "",
                 relation_words[how]);
        other = other || how != LIKE_HEAD || !mostly(&k, SAME); /* a beginning is shared by right, as the whole is */
    }
    /* Not for what the two have in common, where the unrelated are off as well. */
    if (k.off[UNRELATED] > 0 || (!other && !mostly(&k, SAME))) {
        if (q->f->is_server) ls_sweep_drop_repro(q->runner->sweep);
        return LS_OK;
    }
    if (other) {
        *found = true;
        ls_foreign_find(q->f, LS_CAUSE_CACHE_CROSSED, experiment, sure_of(q, &k, 0.95),
                        "of two requests one at a time, the second is off when the first is %s; it is right behind %s "
                        "(%" PRId64 " of %" PRId64 " off)",
                        which, relation_words[UNRELATED], k.off[UNRELATED], k.n[UNRELATED]);
    } else if (mostly(&k, SAME)) {
        *found = true;
        ls_foreign_find(q->f, LS_CAUSE_SNAPSHOT_SHIFTED, experiment, sure_of(q, &k, 0.93),
                        "a request is off when it comes a second time, %" PRId64 " of %" PRId64
                        "; behind any other it is right",
                        k.off[SAME], k.n[SAME]);
    }
    if (*found) q->f->found.of[0].is_confirmed = true;
    return LS_OK;
}
