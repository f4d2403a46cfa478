/* A server that is a function, for rules of a probe: behind some tokens each token has a value, and a fault moves what
 * is recorded of it, what is read, or what is kept. */
#ifndef LS_TESTS_DIAGNOSE_FAULTY_SERVER_H
#define LS_TESTS_DIAGNOSE_FAULTY_SERVER_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "diagnose/rounding/inquiry.h"
#include "faults_of_server.h"
#include "harness.h"

enum {
    VOCAB = 64,
    BOS = 1,
    END = 2,
    LENGTH_MOST = 1200,
    KEPT_MOST = 64,
    TAIL = 20,
    BLOCK = 128,
    UNSEEN = 4,
    SEED = 3,
    ROOM = 1400
};

typedef struct server {
    fault fault;
    int64_t n_runs, n_kept, n_prompt, n_new, batch, n_scored;
    int64_t n_pressed; /* long ones at once so far */
    double temperature;
    bool reads_first;                            /* the row's keys are those of another request */
    bool row_is_off;                             /* of the rows that run at once */
    bool is_drafted;                             /* a token is a draft's */
    uint64_t beside;                             /* what they put into the row; 0: nothing */
    uint64_t owners[LS_FOREIGN_PROMPTS], before; /* of slots, by their text; of the row's slot, 0: nothing of it */
    uint64_t stays;                              /* of all requests before; 0: nothing */
    uint64_t ahead, left;                        /* what the row reads of the one before; what that one left */
    bool unsalted;                               /* the request brings no salt */
    int64_t longest, n_left;                     /* since a short one; tokens of the one before */
    uint64_t past[KEPT_MOST];                    /* texts of the last runs */
    struct {
        int32_t ids[LENGTH_MOST];
        int64_t n, run;
    } kept[KEPT_MOST], scored[KEPT_MOST];
    /* What stands around it. */
    ls_subject subject;
    ls_server_oddities odd;
    ls_door door;
    ls_model_config config;
    ls_bits_trials trials;
    ls_runner runner;
    ls_sweep sweep;
    ls_foreign foreign;
    ls_inquiry inquiry;
} server;

static uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 31)) * 0x7fb5d329728ea185u;
    x = (x ^ (x >> 27)) * 0x81dadef4bc2dd44du;
    return x ^ (x >> 33);
}

static double unit(uint64_t x) { return (double)(mix(x) >> 11) / 9007199254740992.0; }

static uint64_t hash_of(const int32_t *ids, int64_t n) {
    uint64_t hash = 7;
    for (int64_t i = 0; i < n; i++) hash = mix(hash + (uint64_t)ids[i] + 1);
    return hash;
}

/* The distribution behind n tokens. In some of these contexts the end is likely. */
static void probabilities(const int32_t *ids, int64_t n, double temperature, double *p) {
    const uint64_t hash = hash_of(ids, n);
    double sum = 0.0;
    for (uint64_t v = 0; v < VOCAB; v++) {
        const double logit = 4.0 * unit(hash + v) - (v == END && unit(hash) < 0.7 ? 6.0 : 0.0);
        p[v] = exp(logit / temperature);
        sum += p[v];
    }
    for (int v = 0; v < VOCAB; v++) p[v] /= sum;
}

static int32_t draw(const double *p, double u, bool greedy) {
    int32_t best = 0;
    for (int32_t v = 0; v < VOCAB; v++) {
        if (!greedy && u < p[v]) return v;
        u -= p[v];
        if (p[v] > p[best]) best = v;
    }
    return best;
}

static bool same_set(const int32_t *a, const int32_t *b, int64_t n) {
    int count[VOCAB] = {0};
    for (int64_t i = 0; i < n; i++) count[a[i]]++, count[b[i]]--;
    for (int v = 0; v < VOCAB; v++)
        if (count[v] != 0) return false;
    return true;
}

/* The same tokens but for one bit of each, and not the same. */
static bool same_but(const int32_t *a, const int32_t *b, int64_t n, int32_t bit) {
    bool same = true;
    for (int64_t i = 0; i < n; i++) {
        if ((a[i] & ~bit) != (b[i] & ~bit)) return false;
        same = same && a[i] == b[i];
    }
    return !same;
}

/* Blocks of 16 that are there come one behind the other, and one of them stood behind other ones. */
static bool crosses(const server *s, const int32_t *ids, int64_t n) {
    for (int64_t at = 0; at + 16 < n; at += 16) {
        bool own = false, other = false;
        for (int64_t k = 0; k < s->n_kept; k++) {
            if (s->kept[k].n < at + 16 || memcmp(s->kept[k].ids + at, ids + at, 16 * sizeof *ids) != 0) continue;
            *(memcmp(s->kept[k].ids, ids, (size_t)at * sizeof *ids) == 0 ? &own : &other) = true;
        }
        if (!own) return other;
    }
    return false;
}

/* So many requests are between one and its return. */
enum { OLD = 40 };

/* A prompt before this one had the same tokens but for those that are not looked at. */
static bool is_hit(const server *s, const int32_t *ids, int64_t n) {
    for (int64_t k = 0; k < s->n_kept; k++) {
        const int32_t *other = s->kept[k].ids;
        if (s->fault == PIECES_MOVED && k + 1 == s->n_kept && n > TAIL && s->kept[k].n > n &&
            memcmp(other + s->kept[k].n - TAIL, ids + n - TAIL, TAIL * sizeof *ids) == 0)
            return true;
        if (s->fault == BLOCK_SETS && n > TAIL && memcmp(other, ids, 16 * sizeof *ids) != 0 && same_set(other, ids, 16))
            return true;
        if ((s->fault == LAST_BITS || s->fault == FIRST_BITS) && n > 16 && s->kept[k].n > 16 &&
            same_but(other, ids, 16, s->fault == LAST_BITS ? 1 : VOCAB / 2))
            return true;
        if (s->fault == WHAT_DECODE_LEFT && s->kept[k].n < n && s->kept[k].n > TAIL &&
            memcmp(other, ids, (size_t)s->kept[k].n * sizeof *ids) == 0)
            return true;
        if (s->fault == HALF_BLOCK && s->kept[k].n % 16 > 8 && s->kept[k].n / 16 * 16 + 16 < n && s->kept[k].n < n &&
            memcmp(other, ids, (size_t)s->kept[k].n * sizeof *ids) == 0)
            return true;
        if (s->fault == FEW_BITS && n > 16 && s->n_kept > 40) return true;
        if ((s->fault == EVICTED || s->fault == AGED) && s->kept[k].n == n && s->n_runs - s->kept[k].run > OLD &&
            memcmp(other, ids, (size_t)n * sizeof *ids) == 0)
            return true;
        if (s->fault == KEY_UNWRITTEN && n > 16 && memcmp(other, ids, 16 * sizeof *ids) == 0) return true;
        if ((s->fault == HEAD_KEY || s->fault == ONCE_AND_KEYS) && n > 8 && s->kept[k].n == n &&
            memcmp(other, ids, 8 * sizeof *ids) == 0)
            return memcmp(other, ids, (size_t)n * sizeof *ids) != 0;
        if (s->fault == HIT_KERNEL && n > UNSEEN && memcmp(other, ids, UNSEEN * sizeof *ids) == 0) return true;
        if (s->fault == BLOCK_ENDS && n > BLOCK && s->kept[k].n > BLOCK &&
            memcmp(other, ids, (BLOCK - UNSEEN) * sizeof *ids) == 0)
            return memcmp(other, ids, BLOCK * sizeof *ids) != 0;
    }
    return false;
}

static void keep(server *s, const int32_t *ids, int64_t n) {
    const int64_t at = s->n_kept < KEPT_MOST ? s->n_kept++ : KEPT_MOST - 1;
    memcpy(s->kept[at].ids, ids, (size_t)n * sizeof *ids);
    s->kept[at].n = n;
    s->kept[at].run = s->n_runs;
    s->past[s->n_runs % KEPT_MOST] = hash_of(ids, n);
    if (s->fault == PIECE_KEYS && s->n_kept == KEPT_MOST) s->n_kept = 0;
}

static int falling(const void *a, const void *b) {
    const double *x = a, *y = b;
    return (*x < *y) - (*x > *y);
}

/* Of the 20 likeliest tokens, and of one that was drawn nevertheless. */
static double mass_of(const double *p, double own) {
    double sorted[VOCAB], sum = 0.0;
    memcpy(sorted, p, sizeof sorted);
    qsort(sorted, VOCAB, sizeof *sorted, falling);
    for (int v = 0; v < 20; v++) sum += sorted[v];
    return own < sorted[19] ? sum + own : sum;
}

static double entropy_of(const double *p) {
    double sum = 0.0;
    for (int v = 0; v < VOCAB; v++) sum += p[v] * log(p[v]);
    return sum;
}

/* Of the so many likeliest; the n-th is 0 for the likeliest. */
static double nth_of(const double *p, int n) {
    double sorted[VOCAB];
    memcpy(sorted, p, sizeof sorted);
    qsort(sorted, VOCAB, sizeof *sorted, falling);
    return sorted[n];
}

static double mass_above(const double *p, double own) {
    double sum = 0.0;
    for (int v = 0; v < VOCAB; v++) sum += p[v] >= own ? p[v] : 0.0;
    return fmax(sum, mass_of(p, own));
}

/* Logits rounded to so many parts of 1. */
static double log_of_steps(const int32_t *ids, int64_t n, int32_t token, double parts) {
    double p[VOCAB], sum = 0.0;
    probabilities(ids, n, 1.0, p);
    for (int v = 0; v < VOCAB; v++) sum += exp(nearbyint(parts * log(p[v])) / parts);
    return nearbyint(parts * log(p[token])) / parts - log(sum);
}

static bool stands_in(const int32_t *ids, int64_t n, int32_t token) {
    for (int64_t i = 0; i < n; i++)
        if (ids[i] == token) return true;
    return false;
}

static bool has_odd(const int32_t *ids, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        if (ids[i] % 2 == 1) return true;
    return false;
}

/* What a kernel chosen by the length of the whole, or other weights, make of a value of prompts. */
/* What a kernel for few rows makes of a value. */
static double few_rows(const int32_t *ids, int64_t at, int64_t n_rows) {
    return n_rows <= 8 ? 0.3 + 0.3 * unit(hash_of(ids, at) + 11) : 0.0;
}

static double moved_by(const server *s, const int32_t *ids, int64_t at, int64_t n, int32_t token) {
    const double noise = unit(hash_of(ids, at) + (uint64_t)n) - 0.5;
    switch (s->fault) {
        case NARROW:
        case FINE: return 1e-5 * noise;
        case COARSE: return 0.02 * noise;
        case FEW_ROWS: return few_rows(ids, at, n);
        case OTHER_HEAD: return 0.1 * (unit((uint64_t)token) - 0.5) + 0.02 * noise;
        default: return 0.0;
    }
}

/* A decoded token at the end of 16 is among those in front. */
static bool has_border(int64_t n_prompt, int64_t n) {
    for (int64_t at = n_prompt; at < n; at++)
        if (at % 16 == 15) return true;
    return false;
}

/* To either side. */
static double later_off(const int32_t *ids, int64_t n) {
    return (unit(hash_of(ids, n) + 1) < 0.5 ? -1.0 : 1.0) * (0.2 + 0.4 * unit(hash_of(ids, n)));
}

/* Token n behind those in front of it. */
static bool is_likeliest(const int32_t *ids, int64_t n) {
    double p[VOCAB];
    probabilities(ids, n, 1.0, p);
    return p[ids[n]] >= nth_of(p, 0);
}

static double record_of(const server *s, const double *p, const int32_t *ids, int64_t n, int32_t token, bool hit) {
    double warm[VOCAB];
    const double noise = unit(hash_of(ids, n) + (uint64_t)s->n_runs) - 0.5;
    switch (s->fault) {
        case NOISE: return log(p[token]) + (s->n_runs % 5 == 3 ? 0.6 * noise : 0.0);
        case STEP_NOISE: return log(p[token]) + (n > s->n_prompt ? 0.2 * noise : 0.0);
        case UNSALTED_STALE: return log(p[token]) + (s->unsalted ? 0.2 + unit(hash_of(ids, n)) : 0.0);
        case FEW_ROWS: return log(p[token]) + few_rows(ids, n, n > s->n_prompt ? 1 : n);
        case EVER_LONGEST: return log(p[token]) + 1e-3 * (double)s->longest * unit(hash_of(ids, n));
        case ORDERS: return log(p[token]) + (s->n_runs % 5 == 3 ? 0.04 * noise : 0.0);
        case MASKED: return log(p[token]) - log1p(-p[END]);
        case RAISED: return log(p[token]) + 0.1 + 0.005 * unit(hash_of(ids, n) + 3);
        case WARM: probabilities(ids, n, 1.3, warm); return log(warm[token]);
        case TWICE_AS_WARM: probabilities(ids, n, LS_SLOPE_AT, warm); return log(warm[token]);
        case LIKELIEST: return log(p[token]) - log(mass_of(p, p[token]));
        case PREEMPTED: return log(p[token]) + (s->row_is_off && n > s->n_prompt + 20 ? 0.5 : 0.0);
        case FILLED_UP:
        case BEHIND_FOUR:
        case ROOM_OF_PADS:
        case LONG_FIRST:
        case UNLIKE: return log(p[token]) + (s->row_is_off && n > s->n_prompt ? 0.2 + unit(hash_of(ids, n)) : 0.0);
        case LONG_ROWS: return log(p[token]) + (s->batch > 1 && s->n_prompt > 64 ? 0.5 : 0.0);
        case EVICTED: /* the text that is there now */
            return log(p[token]) + (hit ? 0.2 + unit(hash_of(ids, n) + s->past[(s->n_runs - OLD) % KEPT_MOST]) : 0.0);
        case HANDED_OVER:
        case LEFT_MARKS:
        case LEFT_ONCE:
        case LEFT_TWICE:
        case STAYS:
        case STAYS_AT_LENGTH:
        case LEFT: return log(p[token]) + (s->before != 0 ? 0.2 + unit(hash_of(ids, n) + s->before) : 0.0);
        case LAST_ROW:
        case LAST_ROW_SELDOM: return log(p[token]) + (s->reads_first ? 0.3 + unit(hash_of(ids, n)) : 0.0);
        case ONE_STEP:
            return log(p[token]) - (n > s->n_prompt && unit((uint64_t)(1000 * s->n_runs + n)) < 0.05
                                        ? 0.4 + unit(hash_of(ids, n))
                                        : 0.0);
        case HIDDEN_CUT:
            probabilities(ids, n, s->temperature, warm);
            return log(warm[token]) - log(mass_of(warm, warm[token]));
        case LIKELIER: return log(p[token]) - log(mass_above(p, p[token]));
        case NEGATED: return -log(p[token]);
        case LATE_IN_ALL: return log(p[token]) + (n - s->n_prompt > 9 ? 0.2 + 0.5 * unit(hash_of(ids, n)) : 0.0);
        case ENTROPIES: return entropy_of(p);
        case FIRST_ALONE: return log(p[token]) + (n == s->n_prompt ? 0.5 * unit(hash_of(ids, n)) : 0.0);
        case LAST_ALONE: return log(p[token]) - (n - s->n_prompt == s->n_new - 1 ? 0.7 : 0.0);
        case ODD_LENGTHS: return log(p[token]) + (s->n_prompt % 2 == 1 ? 0.5 * unit(hash_of(ids, n)) : 0.0);
        case SCALED: return 1.4 * log(p[token]);
        case HIT_KERNEL: return log(p[token]) + (hit ? 0.03 : 0.0);
        case THOUSANDTHS: return nearbyint(1000.0 * log(p[token])) / 1000.0;
        case F16_LOGITS: return log_of_steps(ids, n, token, 1024.0);
        case NARROW: return log_of_steps(ids, n, token, 2048.0);
        case F16_SMALL_LOGITS: return log_of_steps(ids, n, token, 8192.0);
        case PER_MILLE: return log(nearbyint(1000.0 * p[token]) / 1000.0);
        case ROWS_KERNEL: return log(p[token]) + (s->batch > 1 ? 0.03 : 0.0);
        case ROWS_FAR: return log(p[token]) + (s->batch > 1 ? 0.3 : 0.0);
        case ROWS_OF_SOME:
            return log(p[token]) + (s->batch > 2 && unit(hash_of(ids, s->n_prompt) + 7) < 0.1 ? 0.4 : 0.0);
        case AT_16: return log(p[token]) + (n > s->n_prompt && n % 16 == 1 ? 0.7 : 0.0);
        case AT_32: return log(p[token]) + (n > s->n_prompt && n % 32 == 1 ? 0.7 : 0.0);
        case LONGER_32:
            if (s->n_prompt > 32) return log(p[token]) + (noise > 0.0 ? 0.3 : -0.3) + noise;
            return log(p[token]) + (s->n_prompt > 11 && unit(hash_of(ids, n) + 9) < 0.3 ? 0.1 * noise : 0.0);
        case FROM_32: return log(p[token]) + (n > s->n_prompt && n > 32 ? 0.7 : 0.0);
        case PRESENCE: return log(p[token]) + (stands_in(ids + s->n_prompt, n - s->n_prompt, token) ? -0.6 : 0.004);
        case ROWS: return log(p[token]) + 0.4 * (unit(hash_of(ids, n) + 5) + 0.2) * (has_odd(ids, n) ? -1.0 : 0.0);
        case OTHER_IDS: return log(p[token]) + (has_odd(ids, n) ? 2.0 + unit(hash_of(ids, n)) : 0.0);
        case BORDER_ZERO: return log(p[token]) + (has_border(s->n_prompt, n) ? 0.4 + 0.5 * unit(hash_of(ids, n)) : 0.0);
        case PADDED_BEHIND:
            return log(p[token]) + (s->n_prompt % 8 != 0 && n > s->n_prompt ? 0.4 + 0.5 * unit(hash_of(ids, n)) : 0.0);
        case TO_POWERS:
            return log(p[token]) + 0.08 * (unit(hash_of(ids, n) + 1) - 0.5) +
                   ((s->n_prompt & (s->n_prompt - 1)) != 0 ? 0.2 + 0.5 * unit(hash_of(ids, n)) : 0.0);
        case NEXT_ID: return log(p[(token + 1) % VOCAB]);
        case SECOND_BEST: return log(nth_of(p, 1));
        case TENTH_AT_LEAST: return log(fmax(p[token], nth_of(p, 9)));
        case TWICE_SUMMED: return log(p[token]) - log1p(p[3] + p[4] + p[5] + p[6] + p[7] + p[8]);
        case FIRST_IDS_LOST: return log(p[token]) - log1p(-(p[0] + p[1] + p[2]));
        case LOG_PLUS: return log(p[token] + 1e-3);
        case TO_A_POWER: return -pow(-log(p[token]), 1.2);
        case ON_A_CURVE: return log(p[token]) + 0.4 * sin(2.0 * log(p[token]));
        case FROM_FOUR: return log(p[token]) + (s->batch > 3 ? 6.0 * unit(hash_of(ids, n)) : 0.0);
        case FOURTH_SLOT: return log(p[token]) + (s->row_is_off ? 6.0 * unit(hash_of(ids, n)) : 0.0);
        case PADS_IN:
        case TEXTS_IN:
        case ROOM_TAKEN:
            return log(p[token]) +
                   (s->beside != 0 && n > s->n_prompt ? 0.2 + unit(hash_of(ids, n) + mix(s->beside)) : 0.0);
        case DRAFTED:
            return s->is_drafted ? log(0.6 * p[token] + 0.4 * unit(hash_of(ids, n) + 17 * (uint64_t)token))
                                 : log(p[token]);
        case REPLICAS: return log(p[token]) + (s->n_runs % 2 == 1 ? 0.2 + unit(hash_of(ids, n)) : 0.0);
        case GROWN: return log(p[token]) + (s->n_prompt <= 128 && s->n_prompt + s->n_new > 128 ? 0.5 : 0.0);
        case KEPT_TWENTY: return log(p[token]) - log(mass_of(p, p[token]));
        case RAISED_MUCH: return log(p[token]) + 0.5;
        case TIES:
            return log(p[token]) + 0.02 * (unit(hash_of(ids, n)) - 0.5) -
                   (n > 100 && s->n_new > 40 && unit(hash_of(ids, n) + 13) < 0.004 ? 5.0 : 0.0);
        case NEAR_TAIL:
            return log(p[token]) + 4e-6 * (unit(hash_of(ids, n)) - 0.5) +
                   (s->n_pressed > 0 && s->n_pressed <= 16 && unit(hash_of(ids, n) + 13) < 0.002 ? 1.2e-4 : 0.0);
        case KEY_FLIPS:
        case FAR_FLIPS:
            return log(p[token]) + 4e-6 * (unit(hash_of(ids, n)) - 0.5) +
                   (s->n_runs > 60 && unit(hash_of(ids, n) + 13) < 0.008 ? (s->fault == KEY_FLIPS ? 2e-3 : 2e-2) : 0.0);
        case JOINED: return log(p[token]) + (s->row_is_off && n > s->n_prompt ? 0.6 + unit(hash_of(ids, n)) : 0.0);
        case LONGEST:
            return log(p[token]) + (s->n_prompt > 32 ? 0.2 + unit(hash_of(ids, n) + (uint64_t)s->longest) : 0.0);
        case READS_AHEAD: return log(p[token]) + (s->ahead != 0 ? 0.2 + unit(hash_of(ids, n) + s->ahead) : 0.0);
        case ONCE_AND_KEYS: return log(p[token]) + (hit || s->n_runs == 5 ? 0.5 : 0.0); /* the long prompt once more */
        case WINDOWS_64:
            return log(p[token]) +
                   (s->n_prompt > 64 ? later_off(ids, n) * 4.0 * pow(0.85, (double)((s->n_prompt - 1) % 64)) : 0.0);
        case ROW_BEHIND_64:
            return log(p[token]) + (s->n_prompt > 64 && s->n_prompt % 64 == 1 ? 2.0 * later_off(ids, n) : 0.0);
        case FADES:
            return log(p[token]) + (n > s->n_prompt ? later_off(ids, n) * pow(0.7, (double)(n - s->n_prompt)) : 0.0);
        case DRAWN_OFF: return log(p[token]) + (n > s->n_prompt && !is_likeliest(ids, n - 1) ? later_off(ids, n) : 0.0);
        case LATER_OFF: return log(p[token]) + (n > s->n_prompt ? later_off(ids, n) : 0.0);
        case SURE_LATER_OFF:
            return log(p[token]) + (n > s->n_prompt                   ? 2.0 * later_off(ids, n)
                                    : unit(hash_of(ids, n) + 7) < 0.1 ? 0.1
                                                                      : 0.0);
        case ONE_LEFT: return 0.0;
        case ZEROS: return unit(hash_of(ids, n) + 11) < 0.1 ? 0.0 : log(p[token]);
        case FIVE_PLACES: return log(nearbyint(1e5 * p[token]) / 1e5);
        default: return log(p[token]) + (hit ? 0.5 : 0.0);
    }
}

static int by_id(const void *a, const void *b) {
    const int32_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

/* Of a tokenizer that has a longer token for each even id and the next one. */
static int64_t through_text(void *context, const int32_t *ids, int64_t n, bool special, int32_t *out, int64_t most) {
    int64_t at = 0;
    (void)context;
    if (special) out[at++] = BOS;
    for (int64_t i = 0; i < n && at < most; i++) {
        const bool joins = i + 1 < n && ids[i] % 2 == 0 && ids[i + 1] > ids[i];
        out[at++] = joins ? (ids[i] * 7 + ids[i + 1]) % VOCAB : ids[i];
        i += joins;
    }
    return at;
}

/* As a tokenizer does that has no text for some of its ids. */
static int64_t lose_bytes(const int32_t *ids, int64_t n, int32_t *out) {
    int64_t at = 0;
    out[at++] = BOS;
    for (int64_t i = 0; i < n; i++) {
        out[at++] = ids[i] % 4 == 0 ? (ids[i] * 5 + 1) % VOCAB : ids[i];
        if (ids[i] % 4 == 0) out[at++] = (ids[i] * 3 + 2) % VOCAB;
    }
    return at;
}

static int64_t merge(const int32_t *ids, int64_t n, int32_t *out) {
    int64_t at = 0;
    for (int64_t i = 0; i < n; i++)
        if (at > 0 && (7 * out[at - 1] + ids[i]) % 24 == 0)
            out[at - 1] = (out[at - 1] + ids[i]) % (VOCAB - 3) + 3;
        else
            out[at++] = ids[i];
    return at;
}

/* What decode reads of a prompt; how many tokens. */
static int64_t read_prompt(const server *s, const int32_t *prompt, int64_t n_prompt, int32_t *out) {
    const int64_t front = s->fault == BOS_TWICE || s->fault == TWO_IN_FRONT ? 2 : 0;
    int64_t n = n_prompt - (s->fault == LAST_TWO_LOST && n_prompt > 2 ? 2 : 0);
    if (s->fault == MERGED) return merge(prompt, n, out);
    if (s->fault == BYTES_LOST) return lose_bytes(prompt, n, out);
    if (s->fault == THROUGH_TEXT) return through_text(NULL, prompt, n, false, out, LENGTH_MOST);
    for (int64_t i = 0; i < front; i++) out[i] = s->fault == BOS_TWICE ? BOS : prompt[i % n];
    for (int64_t i = 0; i < n; i++) out[front + i] = prompt[s->fault == TURNED_ROUND ? n - 1 - i : i];
    if (s->fault == TWO_BEHIND) out[n++] = 2;
    if (s->fault == IN_ORDER) qsort(out, (size_t)n, sizeof *out, by_id);
    return front + n;
}

/* Records that are of all values so far. */
static void gather(const server *s, ls_outcome *c) {
    double sum = 0.0;
    for (int64_t i = 0; i < c->n; i++) {
        sum += (double)c->logprob[i];
        if (s->fault == MEANS_SO_FAR) c->logprob[i] = (float)(sum / (double)(i + 1));
        if (s->fault == MOST_SO_FAR && i > 0) c->logprob[i] = fmaxf(c->logprob[i], c->logprob[i - 1]);
    }
}

/* Some pairs of ids become one, as on a way through text; nothing is done to records but that the last ones go. */
static void join_ids(ls_outcome *c) {
    int64_t n = 0;
    for (int64_t i = 0; i < c->n; i++) {
        if (n > 0 && (7 * c->completion[n - 1] + c->completion[i]) % 24 == 0)
            c->completion[n - 1] = (c->completion[n - 1] + c->completion[i]) % VOCAB;
        else
            c->completion[n++] = c->completion[i];
    }
    c->n = n;
}

/* Records that have lost their place. */
static void misplace(const server *s, ls_outcome *c) {
    for (int64_t i = 0; i < c->n; i++) {
        const int64_t at = s->fault == BACKWARDS      ? c->n - 1 - i
                           : s->fault == FOURS_TURNED ? i / 4 * 4 + 3 - i % 4
                           : i % 2 == 0               ? i + 1
                                                      : c->n;
        const float own = c->logprob[i];
        if ((s->fault != BACKWARDS && s->fault != NEIGHBOURS_PLACE && s->fault != FOURS_TURNED) || at <= i ||
            at >= c->n)
            continue;
        c->logprob[i] = c->logprob[at];
        c->logprob[at] = own;
    }
}

/* Of a request that begins alike, if there was one: its prompt. */
static void take_other(const server *s, int32_t *ids, int64_t *n) {
    for (int64_t k = 0; k<s->n_kept && * n> 16; k++)
        if (s->kept[k].n > 16 && memcmp(s->kept[k].ids, ids, 16 * sizeof *ids) == 0) {
            memcpy(ids, s->kept[k].ids, (size_t)s->kept[k].n * sizeof *ids);
            *n = s->kept[k].n;
            return;
        }
}

/* Of the so many likeliest alone; 0: all. */
static void cut(const double *p, int64_t top_k, double *out) {
    const double least = top_k > 0 ? nth_of(p, (int)top_k - 1) : 0.0;
    double sum = 0.0;
    for (int v = 0; v < VOCAB; v++) sum += p[v] >= least ? p[v] : 0.0;
    for (int v = 0; v < VOCAB; v++) out[v] = p[v] >= least ? p[v] / sum : 0.0;
}

static void generate(server *s, const ls_trial *trial, ls_outcome *c, uint64_t seed) {
    int32_t ids[LENGTH_MOST];
    int64_t n = read_prompt(s, c->prompt, c->n_prompt, ids);
    const bool greedy = !(trial->sampling.temperature > 0.0f);
    const bool cuts = s->fault == HIDDEN_CUT || s->fault == KEPT_TWENTY;
    const bool hit =
        (s->fault == PIECE_KEYS ? crosses(s, c->prompt, c->n_prompt) : is_hit(s, c->prompt, c->n_prompt)) &&
        (trial->levers.prefix == LS_PREFIX_ON || s->fault == FEW_BITS);
    if (s->fault == ANSWERS_KEPT && trial->levers.prefix == LS_PREFIX_ON) take_other(s, ids, &n), seed = SEED;
    s->n_runs++;
    s->batch = trial->levers.batch;
    s->n_new = trial->max_tokens;
    s->n_pressed += s->batch > 8 && s->n_new > 40;
    s->temperature = greedy ? 1.0 : (double)trial->sampling.temperature;
    s->n_prompt = n;
    c->n = 0;
    if (s->fault == NO_VALUES && trial->sampling.seed == SEED) return;
    if (s->fault == REPLICAS && s->n_runs % 2 == 1 && unit(hash_of(c->prompt, c->n_prompt)) < 0.5) return;
    for (; c->n < trial->max_tokens; c->n++) {
        double p[VOCAB], at[VOCAB], warm[VOCAB];
        const double u = unit((s->fault == ONE_DRAW ? 0 : seed) + hash_of(ids, n));
        int32_t token;
        probabilities(ids, n, 1.0, p);
        probabilities(ids, n, greedy ? 1.0 : (double)trial->sampling.temperature, at);
        if (s->fault == ONE_DRAW) cut(at, trial->sampling.top_k, warm);
        for (int v = 0; v < VOCAB && cuts; v++) warm[v] = at[v] < nth_of(at, 19) ? 0.0 : at[v];
        token = s->fault == ONE_LEFT   ? draw(p, 0.0, true)
                : s->fault == ONE_DRAW ? draw(warm, u, greedy)
                : cuts                 ? draw(warm, u * mass_of(at, 1.0), greedy)
                                       : draw(at, u, greedy);
        if (s->fault == MASKED && token == END) token = END + 1;
        if (s->fault == OTHER_DRAWS && s->batch > 16 && c->n == 0) token = (int32_t)((token + s->n_runs % 5) % VOCAB);
        s->is_drafted = unit(mix(seed) + hash_of(ids, n)) < 0.6;
        c->completion[c->n] = token;
        c->logprob[c->n] = (float)(s->fault == ONE_DRAW ? log(at[token]) : record_of(s, p, ids, n, token, hit));
        ids[n++] = token;
        if (s->fault == ENDS_OFF && token % 16 == 3) {
            c->logprob[c->n++] -= 0.7f;
            break;
        }
        if ((trial->outside & LS_OUTSIDE_STOPS) && token % 2 == 0) {
            c->n++;
            break;
        }
    }
    s->stays = s->fault == STAYS_AT_LENGTH && c->n < trial->max_tokens ? 0 : mix(s->stays + hash_of(ids, n));
    for (int64_t i = 0; s->fault == THREE_EARLY && i + 3 < c->n; i++) c->logprob[i] = c->logprob[i + 3];
    if (s->fault == JOINED_IDS) join_ids(c);
    misplace(s, c);
    gather(s, c);
    if (s->fault == WHAT_DECODE_LEFT)
        keep(s, ids, n);
    else
        keep(s, c->prompt, c->n_prompt);
}

static bool same_prompt(const ls_outcome *a, const ls_outcome *b) {
    return a->n_prompt == b->n_prompt && memcmp(a->prompt, b->prompt, (size_t)a->n_prompt * sizeof *a->prompt) == 0;
}

/* The last row of a batch, where the first one's text is another. */
static bool reads_first(const server *s, int64_t batch, const ls_outcomes *o, int64_t k) {
    const bool acts = s->fault == LAST_ROW || (s->fault == LAST_ROW_SELDOM && unit((uint64_t)s->n_runs) < 0.6);
    return acts && batch > 2 && k % batch == batch - 1 && !same_prompt(&o->of[k], &o->of[k - k % batch]);
}

/* By what runs beside row k. */
static bool row_is_off(const server *s, const ls_trial *trial, const ls_outcomes *o, int64_t k) {
    const int64_t batch = trial->levers.batch, first = k - k % batch;
    int64_t tokens = 0, n = 0, longest = 0, power = 1;
    for (int64_t i = first; i < o->n && i < first + batch; i++, n++) {
        tokens += o->of[i].n_prompt + trial->max_tokens;
        if (o->of[i].n_prompt > longest) longest = o->of[i].n_prompt;
    }
    while (power < n) power *= 2;
    switch (s->fault) {
        case FOURTH_SLOT: return k - first == 3;
        case BEHIND_FOUR: return k - first >= 4;
        case ROOM_OF_PADS: return n - 1 - (k - first) < power - n;
        case LONG_FIRST: return o->of[k].n_prompt > 64 && !same_prompt(&o->of[k], &o->of[first]);
        case JOINED: /* of those that are sent at once the last one begins late more often than not */
            return k - first + 1 < n && ((trial->outside & LS_OUTSIDE_STAGGERED) != 0 ||
                                         (n > 2 && unit((uint64_t)(s->n_runs / batch)) < 0.8));
        case PREEMPTED: return tokens > ROOM && 2 * (k - first) >= batch;
        case FILLED_UP: return (n & (n - 1)) != 0 ? k == first : n == 8 && unit((uint64_t)s->n_runs) < 0.05;
        case UNLIKE: return o->of[k].n_prompt < longest || (n == 8 && unit((uint64_t)s->n_runs) < 0.2);
        default: return false;
    }
}

/* What longer rows beside row k put into it. */
static uint64_t beside_row(const server *s, const ls_trial *trial, const ls_outcomes *o, int64_t k) {
    const int64_t batch = trial->levers.batch, first = k - k % batch;
    uint64_t out = 0;
    for (int64_t i = first; i < o->n && i < first + batch; i++) {
        const ls_outcome *c = &o->of[i];
        if (s->fault == ROOM_TAKEN && i != k && out == 0 && c->n_prompt <= o->of[k].n_prompt &&
            unit((uint64_t)s->n_runs) < (c->n_prompt < o->of[k].n_prompt ? 0.9 : 0.4))
            out = hash_of(c->prompt, c->n_prompt);
        if (c->n_prompt <= o->of[k].n_prompt) continue;
        if (s->fault == ROOM_TAKEN) return (uint64_t)c->n_prompt; /* tokens of one longer row */
        if (s->fault == PADS_IN && (uint64_t)c->n_prompt > out) out = (uint64_t)c->n_prompt;
        if (s->fault == TEXTS_IN) out += hash_of(c->prompt, c->n_prompt);
    }
    return out;
}

/* What is left in the row's slot, which its first row finds empty. */
static uint64_t take_slot(server *s, const ls_trial *trial, const ls_outcomes *o, int64_t k) {
    const int64_t slot = k % trial->levers.batch;
    const uint32_t marked = LS_OUTSIDE_LEAVERS | LS_OUTSIDE_MARKED;
    const bool behind_left = (trial->outside & LS_OUTSIDE_LEAVERS) != 0;
    const ls_outcome *c = &o->of[k], *beside = &o->of[(k ^ 1) < o->n ? k ^ 1 : k];
    const uint64_t before = s->owners[slot];
    s->owners[slot] = hash_of(c->prompt, c->n_prompt);
    if (s->fault == LEFT) return behind_left && unit((uint64_t)s->n_runs) < 0.3;
    if (s->fault == LEFT_MARKS) return (trial->outside & marked) == marked;
    if (s->fault == LEFT_TWICE || s->fault == LEFT_ONCE)
        return behind_left && memcmp(c->prompt, beside->prompt, 3 * sizeof *c->prompt) != 0 &&
               (s->fault == LEFT_ONCE ? slot == 3 : unit((uint64_t)s->n_runs) < 0.4);
    if (s->fault == STAYS || s->fault == STAYS_AT_LENGTH) return s->stays;
    return slot > 0 ? before : 0;
}

/* Of each `every` rows the first one's record `at` is of the distribution behind two tokens of the next row. */
static void take_row_of_next(ls_outcomes *o, int64_t every, int64_t at) {
    for (int64_t k = 0; k + 1 < o->n; k += every) {
        ls_outcome *c = &o->of[k], *next = c + 1;
        int32_t ids[LENGTH_MOST];
        double p[VOCAB];
        if (c->n < 3 || next->n < 3) continue;
        memcpy(ids, next->prompt, (size_t)next->n_prompt * sizeof *ids);
        memcpy(ids + next->n_prompt, next->completion, 2 * sizeof *ids);
        probabilities(ids, next->n_prompt + 2, 1.0, p);
        c->logprob[at] = (float)log(p[c->completion[at]]);
    }
}

static bool has_long(const ls_outcomes *o) {
    for (int64_t k = 0; k < o->n; k++)
        if (o->of[k].n_prompt > 64) return true;
    return false;
}

static ls_status run(void *context, const ls_trial *trial, const ls_prompt *prompts, int64_t n_prompts,
                     ls_outcomes *out, ls_error *err) {
    server *s = context;
    (void)prompts, (void)err;
    for (int64_t k = 0; k < out->n; k++) {
        if (k == n_prompts && (trial->outside & LS_OUTSIDE_RESET)) s->n_kept = 0;
        s->reads_first = reads_first(s, trial->levers.batch, out, k);
        s->row_is_off = row_is_off(s, trial, out, k);
        s->beside = beside_row(s, trial, out, k);
        s->before = take_slot(s, trial, out, k);
        s->unsalted = (trial->outside & LS_OUTSIDE_UNSALTED) != 0;
        s->longest = out->of[k].n_prompt < 32 && s->fault != EVER_LONGEST ? 0
                     : out->of[k].n_prompt > s->longest                   ? out->of[k].n_prompt
                                                                          : s->longest;
        s->ahead = out->of[k].n_prompt > 32 && s->n_left >= out->of[k].n_prompt ? s->left : 0;
        s->n_left = out->of[k].n_prompt;
        s->left = hash_of(out->of[k].prompt, s->n_left);
        generate(s, trial, &out->of[k], mix(trial->sampling.seed) + (uint64_t)k);
    }
    if (s->fault == ROW_OF_NEXT && trial->levers.batch > 1) take_row_of_next(out, 2, 2);
    for (int64_t k = out->n - 1; k > 0 && s->fault == READERS && has_long(out); k--)
        for (int64_t i = 4; i < 12 && i < out->of[k].n && i < out->of[k - 1].n; i++)
            out->of[k].logprob[i] = out->of[k - 1].logprob[i];
    if ((s->fault == LATE_ROW || s->fault == OTHER_DRAWS) && trial->levers.batch > 16) take_row_of_next(out, 3, 1);
    return LS_OK;
}

static float in_bf16(float value) {
    uint32_t word;
    memcpy(&word, &value, sizeof word);
    word = (word + 0x8000u) & 0xFFFF0000u;
    memcpy(&value, &word, sizeof value);
    return value;
}

/* Tokens of as many that begin alike, if there were any. */
static void take_scored(server *s, int32_t *ids, int64_t n) {
    const int64_t at = s->n_scored % KEPT_MOST;
    for (int64_t k = 0; k < KEPT_MOST && n > 8; k++)
        if (s->scored[k].n == n && memcmp(s->scored[k].ids, ids, 8 * sizeof *ids) == 0) {
            memcpy(ids, s->scored[k].ids, (size_t)n * sizeof *ids);
            return;
        }
    memcpy(s->scored[at].ids, ids, (size_t)n * sizeof *ids);
    s->scored[at].n = n;
    s->n_scored++;
}

static ls_status score(void *context, const ls_trial *trial, const ls_scored *list, int64_t n, ls_error *err) {
    server *s = context;
    (void)trial;
    (void)err;
    for (int64_t k = 0; k < n; k++) {
        int32_t ids[LENGTH_MOST] = {BOS, BOS};
        const int64_t front = s->fault == BOS_TWICE_AGAIN ? 2 : s->fault == FIRST_LOST_AGAIN ? -1 : 0;
        for (int64_t i = front < 0; i < list[k].n; i++) ids[front + i] = list[k].tokens[i];
        if (s->fault == SCORES_KEPT) take_scored(s, ids, list[k].n);
        for (int64_t i = list[k].from > 0 ? list[k].from : 1; i < list[k].n; i++) {
            double p[VOCAB];
            probabilities(ids, front + i, 1.0, p);
            list[k].values[i - 1] =
                (float)(log(p[list[k].tokens[i]]) + moved_by(s, ids, front + i, list[k].n, list[k].tokens[i]));
            if (s->fault == BF16_AGAIN) list[k].values[i - 1] = in_bf16(list[k].values[i - 1]);
        }
    }
    return LS_OK;
}

/* Where two kernels are a hundredth apart. */
static server *start(fault how) {
    server *s = calloc(1, sizeof *s);
    ls_error err;
    assert_non_null(s);
    s->fault = how;
    s->subject = (ls_subject){.context = s,
                              .run = run,
                              .is_server = true,
                              .obeys = ~(uint64_t)0,
                              .odd = &s->odd,
                              .does = LS_OUTSIDE_RESET | LS_OUTSIDE_UNSALTED,
                              .through_text = through_text};
    s->door.subject = &s->subject;
    assert_ok(ls_sweep_trainer_create_by(&s->door.trainer, (ls_scorer){s, score}, &err), err);
    s->config = (ls_model_config){.vocab = VOCAB, .bos = BOS, .pad = -1, .n_eos = how != TWO_BEHIND, .eos = {END}};
    s->sweep.opts = (ls_sweep_opts){.samples = 1, .dtype = LS_F32, .seed = SEED, .threads = 1, .temperature = 1.0};
    s->trials = (ls_bits_trials){.config = &s->config, .opts = &s->sweep.opts};
    s->runner = (ls_runner){&s->sweep, &s->trials, &s->door};
    s->foreign.is_server = true;
    s->foreign.limit = 1e-3;
    s->foreign.paths[LS_PATH_DECODE].median = 0.01;
    s->inquiry = (ls_inquiry){
        .runner = &s->runner, .f = &s->foreign, .config = &s->config, .seed = SEED, .climb_end = (double)INFINITY};
    return s;
}

static void stop(server *s) {
    for (int i = 0; i < LS_STACK_EXPERIMENTS; i++) {
        ls_seen_deinit(&s->foreign.seen[i]);
        free(s->inquiry.requests[i].ids);
    }
    ls_sweep_drop_repro(&s->sweep);
    ls_sweep_trainer_free(s->door.trainer);
    free(s);
}

static void run_alone(server *s) {
    ls_error err;
    for (int i = 0; i < LS_PROBE_SOLO; i++)
        assert_ok(ls_foreign_run_experiment(&s->inquiry, ls_probe_solo[i], &err), err);
}

static void check_cause(const server *s, bool found, ls_cause cause) {
    const ls_finding *named = ls_foreign_named(&s->foreign);
    assert_int_equal(found, cause != LS_CAUSE_NONE);
    assert_int_equal(named != NULL ? named->cause : LS_CAUSE_NONE, cause);
}

#endif
