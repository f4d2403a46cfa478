/* The rows of bits, and what a row moves. Those of stacks that promise no bits are in
 * rounding/stack_experiments.c, beside what makes their requests. */
#include "diagnose/experiment.h"

static const ls_experiment_row rows[LS_EXPERIMENTS] = {
#define LS_TRY_ROW(name, ...) [LS_TRY_##name] = {__VA_ARGS__},
#include "diagnose/experiment.def"
};

const ls_experiment_row *ls_experiment_of(ls_experiment experiment) { return &rows[experiment]; }
const char *ls_experiment_name(ls_experiment experiment) { return rows[experiment].name; }
const char *ls_experiment_text(ls_experiment experiment) { return rows[experiment].text; }

static void move_lever(int64_t *value, int64_t to) {
    if (to != 0) *value = to;
}

void ls_moves_apply(ls_trial *trial, const ls_moves *moves) {
    ls_levers *l = &trial->levers;
    move_lever(&l->drafts, moves->drafts);
    move_lever(&l->batch, moves->batch);
    move_lever(&l->chunk, moves->chunk);
    move_lever(&l->slots, moves->slots);
    move_lever(&l->slot_base, moves->slot_base);
    move_lever(&l->page_tokens, moves->page_tokens);
    move_lever(&l->samples, moves->samples);
    move_lever(&l->preempt_every, moves->preempt_every);
    move_lever(&l->sleep_every, moves->sleep_every);
    move_lever(&trial->max_tokens, moves->max_tokens);
    move_lever(&trial->rounds, moves->rounds);
    if (moves->whole) l->chunk = 0;
    if (moves->pool_share > 0.0) l->pool_share = moves->pool_share;
    if (moves->fork) l->fork = true;
    if (moves->swap) l->preempt_by = LS_PREEMPT_SWAP;
    if (moves->poison) l->poison = true;
    if (moves->guards) l->guards = true;
    if (moves->attention_only) l->ablation = LS_ATTENTION_ONLY;
    if (moves->generic_isa) l->isa = LS_ISA_GENERIC;
    if (moves->top_k > 0) trial->sampling.top_k = (int32_t)moves->top_k;
    if (moves->top_p > 0.0f) trial->sampling.top_p = moves->top_p;
    if (moves->temperature > 0.0f) trial->sampling.temperature = moves->temperature;
    if (moves->greedy) trial->sampling.temperature = 0.0f;
    if (moves->processed) trial->logprob_of = LS_LOGPROB_PROCESSED;
    trial->update = moves->update;
    trial->outside = moves->outside;
}
