/* The experiments: trials with a purpose. */
#ifndef LS_DIAGNOSE_EXPERIMENT_H
#define LS_DIAGNOSE_EXPERIMENT_H

typedef enum ls_experiment {
    LS_TRY_GIVEN = 0,
    LS_TRY_SOLO,
    LS_TRY_AGAIN,
    LS_TRY_FIRST,
    LS_TRY_WHOLE,
    LS_TRY_CHUNK1,
    LS_TRY_CHUNK1_FRESH,
    LS_TRY_CHUNK1_POISON,
    LS_TRY_CHUNK2,
    LS_TRY_CHUNK2_FIRST,
    LS_TRY_SINGLE,
    LS_TRY_PAIR,
    LS_TRY_BATCH,
    LS_TRY_SOLO_ATTENTION,
    LS_TRY_BATCH_ATTENTION,
    LS_TRY_SLOTS,
    LS_TRY_POISON,
    LS_TRY_PAGE,
    LS_TRY_THREADS,
    LS_TRY_ISA,
    LS_TRY_REPEATS,
    LS_TRY_REPEATS_CACHED,
    LS_TRY_SHARED,
    LS_TRY_SHARED_CACHED,
    LS_TRY_ROUNDS_CACHED,
    LS_TRY_UPDATE,
    LS_TRY_UPDATE_CACHED,
    LS_TRY_FORK,
    LS_TRY_RECOMPUTE,
    LS_TRY_SWAP,
    LS_TRY_PROCESSED,
    LS_TRY_TEMPERATURE_RAW,
    LS_TRY_TEMPERATURE,
    LS_TRY_FAR,
    LS_TRY_FAR_HALF,
    LS_TRY_FAR_ATTENTION,
    LS_TRY_FAR_CHUNK1,
    LS_TRY_FAR_PAGES,
    LS_EXPERIMENTS
} ls_experiment;
const char *ls_experiment_name(ls_experiment experiment); /* "chunk1-fresh" */
const char *ls_experiment_text(ls_experiment experiment); /* what is moved, for people */

#endif
