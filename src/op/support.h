/* Rows of logits before and beside a choice: the support of a distribution as bits, and penalties on tokens that were
 * there. Neither has a sum; a row depends on itself alone.
 *
 * support: entry v of row r is bit v % 32 of word bits[r][v / 32]; bits behind the vocabulary are 0.
 *   find    the bit is 1 where the row's entry is not -inf: of processed logits (op/sample.h) the kept set, and NaN
 *   apply   entries whose bit is 0 become -inf, the others stay as they are
 * penalize: item i of [begins[r], begins[r + 1]) names an entry of row r; l is the entry, n = items[i].count the times
 *   that the completion has the token (0: only the prompt has it), every operation rounded once:
 *     repetition  l = l / repetition where l > 0, else l * repetition
 *     frequency   l = l - frequency * n
 *     presence    l = l - presence where n > 0
 *   in this order, as vLLM has it (repetition alone is that of transformers). saved[i] is the entry before. With undo
 *   the entries become saved[i] again: the model's own logits, bit for bit. A row names no entry twice. */
#ifndef LS_OP_SUPPORT_H
#define LS_OP_SUPPORT_H

#include "base/status.h"
#include "lockstep/lockstep.h"

typedef struct ls_support_args {
    float *logits; /* [rows][vocab]; only read where bits are found */
    int64_t rows, vocab;
    uint32_t *bits; /* [rows][ls_support_words(vocab)] */
    bool apply;
} ls_support_args;

static inline int64_t ls_support_words(int64_t vocab) { return vocab / 32 + (vocab % 32 != 0); }

ls_status ls_support_check(const ls_support_args *args, ls_error *err);

/* The least repetition that options and requests may ask for: below it logits that models have overflow. */
#define LS_REPETITION_MIN 1e-6

typedef struct ls_penalties {
    float repetition; /* > 0; 1: none */
    float frequency;  /* finite; 0: none */
    float presence;   /* finite; 0: none */
} ls_penalties;

/* Whether they change a logit. */
static inline bool ls_penalties_act(const ls_penalties *p) {
    return p->repetition != 1.0f || p->frequency != 0.0f || p->presence != 0.0f;
}
/* The ranges above; the error names the field. */
ls_status ls_penalties_check(const ls_penalties *penalties, ls_error *err);

typedef struct ls_penalty_item {
    int32_t token, count;
} ls_penalty_item;

typedef struct ls_penalize_args {
    float *logits; /* [rows][vocab] */
    int64_t rows, vocab;
    const ls_penalties *penalties; /* [rows] */
    const int64_t *begins;         /* [rows + 1], ascending from 0 */
    const ls_penalty_item *items;  /* [items_max], of which begins[rows] are there; tokens within the vocabulary */
    float *saved;                  /* [items_max] */
    int64_t items_max;
    bool undo;
} ls_penalize_args;

ls_status ls_penalize_check(const ls_penalize_args *args, ls_error *err);

#endif
