/* First tokens are right and decoded ones are not: whether the checkpoint with the head's weights in few bits, and
 * nothing else, gives what decode records. One half of the requests says which bits, and the other whether it holds. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "base/mem.h"
#include "base/sort.h"
#include "diagnose/rounding/inquiry.h"

/* Texts so short that the reference forward takes little time. */
enum { TEXTS = 14, LENGTH_LIMIT = 12, TOKENS = 8, VALUES = TEXTS * TOKENS, MOVED_LEAST = 8, KINDS = 12 };
/* What a head leaves of what its token is off by, and what one that has nothing to do with it does by chance. */
#define LEFT 0.1
#define NEAR_BY_CHANCE 0.2
/* A token has moved by so much of the middle of all. */
#define MOVED 0.1

static const struct {
    ls_weight_change to; /* the first: as the checkpoint has it */
    const char *what;
} heads[KINDS] = {{LS_CHANGED_SAME, ""},
                  {LS_CHANGED_BF16, "bf16"},
                  {LS_CHANGED_F16, "f16"},
                  {LS_CHANGED_FP8, "fp8 (e4m3), by row"},
                  {LS_CHANGED_FP8_TENSOR, "fp8 (e4m3)"},
                  {LS_CHANGED_INT8, "int8, by row"},
                  {LS_CHANGED_INT8_TENSOR, "int8"},
                  {LS_CHANGED_INT4, "int4, by row"},
                  {LS_CHANGED_INT4_GROUPS, "int4, by 32"},
                  {LS_CHANGED_E4M3, "fp8 (e4m3) without a scale"},
                  {LS_CHANGED_E5M2, "fp8 (e5m2) without a scale"},
                  {LS_CHANGED_WIDE_FP8, "of three bits of mantissa"}};

/* Decoded tokens of one half of the texts: the record, and its value with each head. */
typedef struct half {
    int64_t n;
    double record[VALUES], of[VALUES][KINDS];
} half;

static ls_status add_text(ls_inquiry *q, const ls_outcome *c, half *out, ls_error *err) {
    const int64_t n = c->n < TOKENS ? c->n : TOKENS;
    double values[KINDS * TOKENS];
    ls_edit edits[KINDS];
    for (int k = 0; k < KINDS; k++) edits[k] = (ls_edit){.layer = -1, .head_weights = heads[k].to};
    LS_TRY(ls_values_of_edits(q, c, n, edits, KINDS, values, err));
    for (int64_t i = 1; i < n; i++) {
        if (!((double)c->scored[i] < LS_SURE_TOKEN) || !isfinite((double)c->logprob[i])) continue;
        out->record[out->n] = (double)c->logprob[i];
        for (int k = 0; k < KINDS; k++) out->of[out->n][k] = values[k * n + i];
        out->n++;
    }
    return LS_OK;
}

static ls_status add_texts(ls_inquiry *q, half of[2], ls_error *err) {
    int64_t n = 0;
    for (int r = 0; r < LS_PROBE_SOLO; r++) {
        const ls_outcomes *o = &q->f->seen[ls_probe_solo[r]].outcomes;
        for (int64_t s = 0; s < o->n && n < TEXTS; s++)
            if (o->of[s].n > 1 && o->of[s].n_prompt <= LENGTH_LIMIT) LS_TRY(add_text(q, &o->of[s], &of[n++ % 2], err));
    }
    return LS_OK;
}

static double left_by(const half *h, int kind) {
    double list[VALUES];
    for (int64_t i = 0; i < h->n; i++) list[i] = fabs(h->record[i] - h->of[i][kind]);
    return ls_quantile(list, h->n, 0.5, 0.0);
}

static void judge_heads(ls_inquiry *q, const half of[2], bool *found) {
    const half *other = &of[1];
    const double before = left_by(&of[0], 0);
    int64_t n_moved = 0, n_explained = 0;
    int best = 1;
    for (int k = 2; k < KINDS; k++)
        if (left_by(&of[0], k) < left_by(&of[0], best)) best = k;
    for (int64_t i = 0; i < other->n; i++) {
        const double d = fabs(other->record[i] - other->of[i][0]);
        if (!(d > MOVED * before)) continue;
        n_moved++;
        n_explained += fabs(other->record[i] - other->of[i][best]) < LEFT * d;
    }
    *found = before > 0.0 && n_moved >= MOVED_LEAST && 10 * n_explained >= 9 * n_moved;
    if (*found)
        ls_foreign_find(q->f, LS_CAUSE_COARSE_HEAD, LS_STACK_SOLO_LONG,
                        ls_probe_sure(pow(NEAR_BY_CHANCE, (double)n_explained), 1.0 - ls_portion(n_explained, n_moved)),
                        "first tokens are right, and decoded ones are those of the checkpoint with the head's weights "
                        "in %s, which one half of the requests says; so are %" PRId64 " of the other half's %" PRId64
                        ", to a tenth of what they are off by",
                        heads[best].what, n_explained, n_moved);
}

ls_status ls_probe_decide_head_weights(ls_inquiry *q, const char *directory, const ls_model_config *config, bool *found,
                                       ls_error *err) {
    half *of = NULL;
    ls_error none;
    ls_status status;
    *found = false;
    /* Of a model that the reference forward does not take nothing is asked. */
    if (ls_reference_create(&q->reference, directory, config, LS_REFERENCE_PARAMETERS, &none) != LS_OK) return LS_OK;
    LS_TRY_DONE(ls_array_alloc((void **)&of, 2, sizeof *of, "values", err));
    of[0].n = of[1].n = 0;
    LS_TRY_DONE(add_texts(q, of, err));
    if (of[0].n >= MOVED_LEAST && of[1].n >= MOVED_LEAST) judge_heads(q, of, found);
done:
    free(of);
    ls_reference_free(q->reference);
    q->reference = NULL;
    return status;
}
