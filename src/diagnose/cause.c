/* The table of causes. */
#include "diagnose/cause.h"

#include "base/status.h"
#include "diagnose/experiment.h"

#define IN(name) ((uint64_t)1 << LS_TRY_##name)
#define EVERYTHING (((uint64_t)1 << LS_EXPERIMENTS) - 1)

/* Experiments in which several requests share a prefill or take part of it from a cache. */
#define CACHED (IN(REPEATS_CACHED) | IN(SHARED_CACHED) | IN(ROUNDS_CACHED) | IN(UPDATE_CACHED) | IN(FORK))
#define PREEMPTED (IN(RECOMPUTE) | IN(SWAP))
#define FAR_ALL (IN(FAR) | IN(FAR_HALF) | IN(FAR_ATTENTION) | IN(FAR_CHUNK1) | IN(FAR_PAGES))

/* What is in none of a pattern's sets must be clean. The prompts as given are never in one: they are the user's. */
static const ls_cause_row rows[LS_CAUSES] = {
#define LS_CAUSE_ROW(name, ...) [LS_CAUSE_##name] = {__VA_ARGS__},
#include "diagnose/cause.def"
};

const ls_cause_row *ls_cause_of(ls_cause cause) {
    LS_ASSERT(cause > LS_CAUSE_NONE && cause < LS_CAUSES, "cause %d of %d", (int)cause, (int)LS_CAUSES);
    return &rows[cause];
}

const char *ls_cause_name(ls_cause cause) { return ls_cause_of(cause)->name; }

bool ls_cause_is_of_bits(ls_cause cause) {
    const ls_bits_pattern *p = &ls_cause_of(cause)->bits;
    return (p->large | p->small | p->moved) != 0 || p->sign != LS_SIGN_NONE;
}

const char *ls_cause_bits_text(ls_cause cause) {
    const ls_cause_row *row = ls_cause_of(cause);
    return row->bits.text != NULL ? row->bits.text : row->text;
}

const char *ls_cause_bits_look(ls_cause cause) {
    const ls_cause_row *row = ls_cause_of(cause);
    return row->bits.look != NULL ? row->bits.look : row->look;
}

const char *ls_cause_records_look(ls_cause cause) {
    const ls_cause_row *row = ls_cause_of(cause);
    return row->look_of_records != NULL ? row->look_of_records : row->look;
}
