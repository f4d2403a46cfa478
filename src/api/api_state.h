/* What the files of the public interface share: its handles, and how structs of several versions are read. Private to
 * src/api.
 *
 *   api_struct.c   structs whose size tells their version; sequences that a caller passes in
 *   api_model.c    models and scoring
 *   api_engine.c   the engine: requests, their results
 *   api_batch.c    a batch of sequences as rows
 *   api_trainer.c  the trainer: steps
 *   api_saves.c    its checkpoints */
#ifndef LS_API_API_STATE_H
#define LS_API_API_STATE_H

#include "base/fpmode.h"
#include "lockstep/train.h"
#include "model/model.h"
#include "op/choice.h"
#include "op/sample.h"
#include "rl/gate.h"
#include "rl/loss.h"
#include "train/run_checkpoint.h"

/* Runs a call with the floating-point mode that results count on, and leaves the caller's. */
#define LS_API_RETURN(call)         \
    do {                            \
        ls_fpmode api_mode;         \
        ls_status api_status;       \
        ls_fpmode_enter(&api_mode); \
        api_status = (call);        \
        ls_fpmode_leave(&api_mode); \
        return api_status;          \
    } while (0)

/* ---- structs ---- */

/* A struct of the interface: its name in errors, its size here and in the first version that had it. */
typedef struct ls_api_struct {
    const char *name;
    size_t size, first_size;
} ls_api_struct;

/* Writes defaults, whose first member is a size, into a caller's struct of `size` bytes. */
void ls_api_init(void *out, size_t size, const void *defaults, const ls_api_struct *of);
/* A caller's struct over the defaults in *own. What this library does not know must be 0. */
ls_status ls_api_read(void *own, const void *theirs, const ls_api_struct *of, ls_error *err);
/* Our struct into a caller's, as far as it has room. */
ls_status ls_api_write(void *theirs, const void *own, const ls_api_struct *of, ls_error *err);

/* Tokens in the vocabulary, no sequence shorter than `shortest`. */
ls_status ls_api_check_sequences(const lockstep_model *model, const int32_t *tokens, const int64_t *offsets, int64_t n,
                                 int64_t shortest, ls_error *err);
ls_status ls_api_sampling(ls_sampling *out, float temperature, int64_t top_k, float top_p, float min_p, uint64_t seed,
                          ls_error *err);
ls_status ls_api_check_choice(const char *what, int32_t value, int32_t n, ls_error *err);

/* ---- handles ---- */

struct lockstep_model {
    ls_device *device;
    ls_device_choice choice; /* which one it is */
    ls_model *model;
    ls_dtype dtype;
    char *directory, numerics[LS_NUMERICS_BYTES];
    uint64_t version;  /* of the weights */
    int64_t n_holders; /* the caller's handle, engines, trainers */
    bool has_trainer;
};

void ls_api_model_release(lockstep_model *model);

/* A batch as rows: those of a sequence are its tokens but the last, each with the token behind it as its target. */
typedef struct ls_api_rows {
    int64_t n, n_rows, sequences_cap, rows_cap;
    int64_t n_targets;
    int64_t *offsets; /* [n + 1] */
    int64_t *targets; /* -1 where nothing is learnt */
    int32_t *tokens;
    uint8_t *mask;
    float *recorded, *reference, *trainer; /* of targets; trainer: of this step's forward */
    ls_loss_sums *sums;                    /* [n] */
    bool has_recorded, has_reference;
} ls_api_rows;

ls_status ls_api_rows_create(ls_api_rows *rows, int64_t sequences_max, int64_t length_max, ls_error *err);
void ls_api_rows_free(ls_api_rows *rows);
/* A batch that has been checked (ls_api_check_sequences) and fits. */
void ls_api_rows_fill(ls_api_rows *rows, const lockstep_batch *batch);

struct lockstep_trainer {
    lockstep_model *model;
    lockstep_trainer_options options;
    ls_loss_options loss;
    ls_trainer *trainer;
    ls_saves *files; /* the model's own, for checkpoints */
    ls_api_rows rows;
    /* One step. */
    lockstep_batch batch;
    ls_loss_totals totals;
    ls_gate gate;
    bool is_spoiled; /* by a failure to resume, which leaves masters of two runs */
};

/* Refuses NULL and one that is spoiled. */
ls_status ls_api_check_trainer(const lockstep_trainer *trainer, ls_error *err);
/* The options that a checkpoint keeps. */
ls_config ls_api_trainer_config(lockstep_trainer_options *options);

#endif
