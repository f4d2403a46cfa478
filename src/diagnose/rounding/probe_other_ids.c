/* Records that are the value of another id at the same place: so many behind the token's own, or one that stands beside
 * it in the text. The server is asked for the value of that id. */
#include <inttypes.h>
#include <math.h>

#include "diagnose/rounding/inquiry.h"

typedef enum whose { OF_ID = 0, OF_PROMPTS_LAST, OF_PROMPTS_FIRST, OF_NEXT, OF_FIXED } whose;

typedef struct other_id {
    const char *what;
    whose whose;
    int32_t by; /* of ids; the id itself where it is fixed */
} other_id;

static const other_id other_ids[] = {{"the next id", OF_ID, 1},
                                     {"the id before", OF_ID, -1},
                                     {"the id 2 on", OF_ID, 2},
                                     {"the id 2 back", OF_ID, -2},
                                     {"the id 3 on", OF_ID, 3},
                                     {"the id 3 back", OF_ID, -3},
                                     {"the prompt's last token", OF_PROMPTS_LAST, 0},
                                     {"the prompt's first token", OF_PROMPTS_FIRST, 0},
                                     {"the token that came next", OF_NEXT, 0},
                                     {"id 0", OF_FIXED, 0},
                                     {"id 1", OF_FIXED, 1},
                                     {"id 2", OF_FIXED, 2}};
enum {
    OTHER_IDS = sizeof other_ids / sizeof other_ids[0],
    TRIED = 3,
    CHECKED_LEAST = 6,
    CHECKED_MOST = 12,
    LONGEST = 40
};
/* Of what a record is off by, what the other id's value leaves; by chance one in ten is so near. */
#define LEFT 0.1

/* -1: there is none. */
static int32_t id_of(const ls_inquiry *q, const other_id *o, const ls_outcome *c) {
    int32_t id = o->by;
    switch (o->whose) {
        case OF_ID: id += c->completion[0]; break;
        case OF_PROMPTS_LAST: id = c->prompt[c->n_prompt - 1]; break;
        case OF_PROMPTS_FIRST: id = c->prompt[0]; break;
        case OF_NEXT: id = c->n > 1 ? c->completion[1] : -1; break;
        case OF_FIXED: break;
    }
    if (o->whose == OF_ID && q->config->vocab > 0) id = (id + q->config->vocab) % q->config->vocab;
    return id == c->completion[0] ? -1 : id;
}

/* First tokens that are off, from number `at` on: how many of `most` have that id's value. */
static ls_status count_of_id(ls_inquiry *q, const other_id *o, int64_t at, int64_t most, int64_t *n, int64_t *n_its,
                             ls_error *err) {
    const ls_outcomes *lengths = &q->f->seen[LS_STACK_LENGTHS].outcomes;
    int64_t number = 0;
    *n = *n_its = 0;
    for (int64_t s = 0; s < lengths->n && *n < most; s++) {
        const ls_outcome *c = &lengths->of[s];
        const double off = c->n > 0 ? fabs((double)c->logprob[0] - (double)c->scored[0]) : 0.0;
        int32_t id;
        float value;
        if (c->n_prompt > LONGEST || !(off > ls_probe_moved_from(q))) continue;
        id = id_of(q, o, c);
        if (id < 0 || number++ < at) continue;
        LS_TRY(ls_probe_score(q, (ls_prompt){c->prompt, c->n_prompt}, &id, 1, &value, err));
        ++*n;
        *n_its += fabs((double)c->logprob[0] - (double)value) < LEFT * off;
    }
    return LS_OK;
}

ls_status ls_probe_decide_other_ids(ls_inquiry *q, bool *found, ls_error *err) {
    for (int k = 0; k < OTHER_IDS && !*found; k++) {
        int64_t n, n_its;
        LS_TRY(count_of_id(q, &other_ids[k], 0, TRIED, &n, &n_its, err));
        if (n == 0 || n_its < n) continue;
        LS_TRY(count_of_id(q, &other_ids[k], TRIED, CHECKED_MOST, &n, &n_its, err)); /* others than it was found with */
        *found = n >= CHECKED_LEAST && 10 * n_its >= 9 * n;
        if (*found)
            ls_foreign_find(q->f, LS_CAUSE_OTHER_RECORDS, LS_STACK_LENGTHS,
                            ls_probe_sure(OTHER_IDS * pow(LEFT, (double)n_its), 1.0 - ls_portion(n_its, n)),
                            "each record is the value of %s: so in %" PRId64 " of %" PRId64
                            " first tokens that are off, none of which it was found with",
                            other_ids[k].what, n_its, n);
    }
    return LS_OK;
}
