/* A bundle: what is needed to look at a mismatch later and elsewhere. It is a directory:
 *
 *   config.json, model.safetensors, tokenizer.json, ...   the weights that rollout and trainer had, a model directory;
 *                   where several versions drew the episodes, those of the first differing token
 *   rollout.jsonl   records of all episodes of the step, with the log-probabilities of the rollout
 *   trainer.jsonl   the same records with those of the trainer: `lockstep compare` reads the two
 *   bundle.json     step, numerics, sampling, levers, digest of the weights, counts, the first differing token with
 *                   both values, options of the run; where several versions drew, what they are
 *   finding.json    what the replay found (rl/replay.h); there is none of several versions, which only the run's log
 *                   draws again (rl/borders.h)
 *
 * Rows are those of the trainer: row i of a sequence predicts its token i + 1. */
#ifndef LS_RL_BUNDLE_H
#define LS_RL_BUNDLE_H

#include "record/record.h"
#include "rl/episode.h"
#include "train/config.h"

typedef struct ls_bundle_sequence {
    const char *id;
    const int32_t *tokens; /* [n] */
    int64_t n, n_prompt;
    const uint8_t *mask;            /* [n - 1]: row predicts a drawn token */
    const float *rollout, *trainer; /* [n - 1], where mask is set */
    int64_t slot, n_hit, n_preempted;
} ls_bundle_sequence;

typedef struct ls_bundle_version {
    int64_t step;     /* behind which the weights are */
    uint64_t weights; /* their digest */
} ls_bundle_version;

typedef struct ls_bundle {
    int64_t step;
    ls_dtype dtype;
    ls_profile profile;
    ls_sampling sampling; /* of the rollout: temperature and truncation; its seed */
    uint64_t weights;     /* their digest */
    const ls_bundle_version
        *versions; /* [n_versions], where several drew; else NULL. A bundle that was read has none */
    int64_t n_versions;
    uint32_t first_prompt; /* address of sequence 0; sequence i is sample i % samples of prompt first + i / samples */
    int64_t samples, length;
    int64_t slots; /* of the engine's plan */
    ls_levers levers;
    int64_t n_tokens, n_differing, n_sequences_differing;
    int64_t sequence, row; /* of the first difference */
    ls_bundle_sequence *sequences;
    int64_t n;
    struct ls_bundle_store *store; /* what a bundle that was read owns */
} ls_bundle;

/* Adds the three files to a directory that holds the model; config may be NULL. */
ls_status ls_bundle_write(const char *directory, const ls_bundle *bundle, const ls_config *config, ls_error *err);
/* One of several versions is refused. */
ls_status ls_bundle_read(ls_bundle **out, const char *directory, ls_error *err);

/* What the records of a bundle are: both sides of the same sequences. */
typedef struct ls_bundle_records {
    ls_record *rollout, *trainer;
    int64_t n_rollout, n_trainer;
} ls_bundle_records;

/* The same of the text of bundle.json and of records, which it takes even if it fails. `directory` stands for the
 * bundle in errors. */
ls_status ls_bundle_parse(ls_bundle **out, const char *text, int64_t bytes, const ls_bundle_records *records,
                          const char *directory, ls_error *err);
void ls_bundle_free(ls_bundle *bundle); /* accepts NULL */

#endif
