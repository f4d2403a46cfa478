/* Whether a checkpoint with something in few bits, and nothing else, gives a server's values: where first tokens are
 * right and decoded ones are not, the head's weights, of what decode records; where both sides are alike, keys and
 * values, of the prompt's. One half of the requests says which bits, and the other whether it holds. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "base/mem.h"
#include "base/sort.h"
#include "diagnose/rounding/inquiry.h"

/* Texts so short that the reference forward takes little time. */
enum { TEXTS = 14, LENGTH_LIMIT = 12, TOKENS = 8, VALUES = TEXTS * TOKENS, MOVED_LEAST = 8, KINDS = 12 };
/* What bits leave of what a token is off by, and what such as have nothing to do with it leave by chance. */
#define LEFT 0.1
#define NEAR_BY_CHANCE 0.2
/* A token has moved by so much of the middle of all. */
#define MOVED 0.1

/* The first: as the checkpoint has it. */
typedef struct kind {
    ls_edit edit;
    const char *what;
} kind;

#define OF_HEAD(to) \
    { .layer = -1, .head_weights = (to) }
static const kind heads[KINDS] = {{{.layer = -1}, ""},
                                  {OF_HEAD(LS_CHANGED_BF16), "bf16"},
                                  {OF_HEAD(LS_CHANGED_F16), "f16"},
                                  {OF_HEAD(LS_CHANGED_FP8), "fp8 (e4m3), by row"},
                                  {OF_HEAD(LS_CHANGED_FP8_TENSOR), "fp8 (e4m3)"},
                                  {OF_HEAD(LS_CHANGED_INT8), "int8, by row"},
                                  {OF_HEAD(LS_CHANGED_INT8_TENSOR), "int8"},
                                  {OF_HEAD(LS_CHANGED_INT4), "int4, by row"},
                                  {OF_HEAD(LS_CHANGED_INT4_GROUPS), "int4, by 32"},
                                  {OF_HEAD(LS_CHANGED_E4M3), "fp8 (e4m3) without a scale"},
                                  {OF_HEAD(LS_CHANGED_E5M2), "fp8 (e5m2) without a scale"},
                                  {OF_HEAD(LS_CHANGED_WIDE_FP8), "of three bits of mantissa"}};

#define OF_KEYS(to, per, which) \
    { .layer = -1, .keys = (to), .keys_per = (per), .keys_which = (which) }
static const kind caches[KINDS] = {{{.layer = -1}, ""},
                                   {OF_KEYS(LS_ROUND_FP8, 0, 0), "keys and values in fp8 (e4m3)"},
                                   {OF_KEYS(LS_ROUND_E5M2, 0, 0), "keys and values in fp8 (e5m2)"},
                                   {OF_KEYS(LS_ROUND_FP8, 1, 0), "keys and values in fp8, by head"},
                                   {OF_KEYS(LS_ROUND_FP8, 2, 0), "keys and values in fp8, by token"},
                                   {OF_KEYS(LS_ROUND_INT8, 1, 0), "keys and values in int8, by head"},
                                   {OF_KEYS(LS_ROUND_INT8, 2, 0), "keys and values in int8, by token"},
                                   {OF_KEYS(LS_ROUND_INT8, 3, 0), "keys and values in int8, by 32"},
                                   {OF_KEYS(LS_ROUND_FP8, 0, 1), "keys in fp8 (e4m3)"},
                                   {OF_KEYS(LS_ROUND_FP8, 0, 2), "values in fp8 (e4m3)"},
                                   {OF_KEYS(LS_ROUND_INT8, 1, 1), "keys in int8, by head"},
                                   {OF_KEYS(LS_ROUND_INT8, 1, 2), "values in int8, by head"}};

/* Tokens of one half of the texts: the server's value, and that of each kind. */
typedef struct half {
    int64_t n;
    double seen[VALUES], of[VALUES][KINDS];
} half;

/* Of decoded tokens what is recorded, or of all what the prompt says. */
typedef struct question {
    const kind *kinds;
    bool of_prompts;
} question;

static ls_status add_text(ls_inquiry *q, const question *of, const ls_outcome *c, half *out, ls_error *err) {
    const int64_t n = c->n < TOKENS ? c->n : TOKENS;
    double values[KINDS * TOKENS];
    ls_edit edits[KINDS];
    for (int k = 0; k < KINDS; k++) edits[k] = of->kinds[k].edit;
    LS_TRY(ls_values_of_edits(q, c, n, edits, KINDS, values, err));
    for (int64_t i = !of->of_prompts; i < n; i++) {
        const double seen = (double)(of->of_prompts ? c->scored[i] : c->logprob[i]);
        if (!((double)c->scored[i] < LS_SURE_TOKEN) || !isfinite(seen)) continue;
        out->seen[out->n] = seen;
        for (int k = 0; k < KINDS; k++) out->of[out->n][k] = values[k * n + i];
        out->n++;
    }
    return LS_OK;
}

static ls_status add_texts(ls_inquiry *q, const question *of, half out[2], ls_error *err) {
    int64_t n = 0;
    for (int r = 0; r < LS_PROBE_SOLO; r++) {
        const ls_outcomes *o = &q->f->seen[ls_probe_solo[r]].outcomes;
        for (int64_t s = 0; s < o->n && n < TEXTS; s++)
            if (o->of[s].n > 1 && o->of[s].n_prompt <= LENGTH_LIMIT)
                LS_TRY(add_text(q, of, &o->of[s], &out[n++ % 2], err));
    }
    return LS_OK;
}

static double left_by(const half *h, int k) {
    double list[VALUES];
    for (int64_t i = 0; i < h->n; i++) list[i] = fabs(h->seen[i] - h->of[i][k]);
    return ls_quantile(list, h->n, 0.5, 0.0);
}

/* The kind that one half says, and of the other half's tokens that have moved those that are its. */
typedef struct answer {
    bool asked, holds;
    const char *what;
    int64_t n_moved, n_explained;
} answer;

static answer judge(const question *of, const half h[2]) {
    const half *other = &h[1];
    const double before = left_by(&h[0], 0);
    answer a = {.asked = h[0].n >= MOVED_LEAST && h[1].n >= MOVED_LEAST};
    int best = 1;
    for (int k = 2; k < KINDS; k++)
        if (left_by(&h[0], k) < left_by(&h[0], best)) best = k;
    a.what = of->kinds[best].what;
    for (int64_t i = 0; i < other->n; i++) {
        const double d = fabs(other->seen[i] - other->of[i][0]);
        if (!(d > MOVED * before)) continue;
        a.n_moved++;
        a.n_explained += fabs(other->seen[i] - other->of[i][best]) < LEFT * d;
    }
    a.holds = a.asked && before > 0.0 && a.n_moved >= MOVED_LEAST && 10 * a.n_explained >= 9 * a.n_moved;
    return a;
}

static ls_status ask(ls_inquiry *q, const char *directory, const ls_model_config *config, const question *of,
                     answer *out, ls_error *err) {
    half *h = NULL;
    ls_error none;
    ls_status status;
    *out = (answer){.asked = false};
    /* Of a model that the reference forward does not take nothing is asked. */
    if (ls_reference_create(&q->reference, directory, config, LS_REFERENCE_PARAMETERS, &none) != LS_OK) return LS_OK;
    LS_TRY_DONE(ls_array_alloc((void **)&h, 2, sizeof *h, "values", err));
    h[0].n = h[1].n = 0;
    LS_TRY_DONE(add_texts(q, of, h, err));
    *out = judge(of, h);
done:
    free(h);
    ls_reference_free(q->reference);
    q->reference = NULL;
    return status;
}

ls_status ls_probe_decide_head_weights(ls_inquiry *q, const char *directory, const ls_model_config *config, bool *found,
                                       ls_error *err) {
    static const question of_head = {heads, false};
    answer a;
    LS_TRY(ask(q, directory, config, &of_head, &a, err));
    *found = a.holds;
    if (*found)
        ls_foreign_find(
            q->f, LS_CAUSE_COARSE_HEAD, LS_STACK_SOLO_LONG,
            ls_probe_sure(pow(NEAR_BY_CHANCE, (double)a.n_explained), 1.0 - ls_portion(a.n_explained, a.n_moved)),
            "first tokens are right, and decoded ones are those of the checkpoint with the head's weights "
            "in %s, which one half of the requests says; so are %" PRId64 " of the other half's %" PRId64
            ", to a tenth of what they are off by",
            a.what, a.n_explained, a.n_moved);
    return LS_OK;
}

ls_status ls_probe_has_coarse_keys(ls_inquiry *q, const char *directory, const ls_model_config *config, bool *asked,
                                   bool *has, ls_error *err) {
    static const question of_keys = {caches, true};
    answer a;
    LS_TRY(ask(q, directory, config, &of_keys, &a, err));
    *asked = a.asked;
    *has = a.holds;
    if (*has)
        snprintf(q->f->convention, sizeof q->f->convention,
                 "values of both sides are the checkpoint's with %s, as one half of the requests says: %" PRId64
                 " of the other half's %" PRId64 ". Compare with a trainer that has them so",
                 a.what, a.n_explained, a.n_moved);
    return LS_OK;
}
