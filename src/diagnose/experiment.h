/* The experiments: trials with a purpose, each a row of experiment.def. There are two kinds: those of an engine
 * that promises bits, and those of a stack that does not. */
#ifndef LS_DIAGNOSE_EXPERIMENT_H
#define LS_DIAGNOSE_EXPERIMENT_H

#include "diagnose/trial/trial.h"

typedef enum ls_experiment {
#define LS_TRY_ROW(name, ...) LS_TRY_##name,
#include "diagnose/experiment.def"
    LS_EXPERIMENTS
} ls_experiment;

typedef enum ls_stack_experiment {
#define LS_STACK_ROW(name, ...) LS_STACK_##name,
#include "diagnose/experiment.def"
    LS_STACK_EXPERIMENTS
} ls_stack_experiment;

/* What a trial moves away from the baseline; 0: nothing. */
typedef struct ls_moves {
    int64_t drafts, batch, chunk, slots, slot_base, page_tokens, samples, preempt_every, sleep_every, max_tokens,
        rounds, top_k;
    double pool_share;
    float temperature, top_p;
    bool greedy; /* temperature 0 */
    bool whole;  /* prompts in one piece */
    bool cache;  /* the prefix cache, as the suspect has it */
    bool fork, swap, poison, guards, update;
    bool processed; /* log-probabilities */
    bool attention_only, generic_isa;
    bool other_threads, far_slots, far_pages; /* of bits */
    uint32_t outside;                         /* set of LS_OUTSIDE_.. */
} ls_moves;

/* All of them but those that each kind has its own way with: cache, other_threads, far_slots, far_pages. */
void ls_moves_apply(ls_trial *trial, const ls_moves *moves);

/* Lists of prompts of bits. All but the given ones are made from their tokens. */
typedef enum ls_prompt_set {
    LS_SET_GIVEN = 0,
    LS_SET_PLAIN,   /* 8 of 12 and 24 tokens, first tokens all different */
    LS_SET_ONE,     /* the first of them */
    LS_SET_SINGLE,  /* their first tokens alone */
    LS_SET_REPEATS, /* the first 4, twice */
    LS_SET_SHARED,  /* 8 of 12 tokens that part after the 6th */
    LS_SET_LONG,    /* 16 of 32 tokens, for bisection to cut */
    LS_SETS
} ls_prompt_set;

typedef struct ls_experiment_row {
    const char *name; /* "chunk1-fresh" */
    const char *text; /* what is moved, for people */
    ls_prompt_set set;
    ls_experiment baseline; /* whose tokens this one's should be; GIVEN: none. It comes earlier */
    ls_moves moves;
} ls_experiment_row;

const ls_experiment_row *ls_experiment_of(ls_experiment experiment);
const char *ls_experiment_name(ls_experiment experiment);
const char *ls_experiment_text(ls_experiment experiment);

#endif
