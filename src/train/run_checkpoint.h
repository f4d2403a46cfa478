/* The directory of a run and its checkpoints.
 *
 * RUN/step-00000040 is one checkpoint, complete when it has this name:
 *   model.safetensors      every weight, rounded, in the type that it is stored in
 *   config.json and the other files that make a model: copied from the model that the run began with
 *   optimizer.safetensors  master.NAME in F32, m.NAME and v.NAME in F32 or BF16, as the run has its moments, for every
 *                          parameter
 *   state.json             format, kind, step, numerics, digests of weights, optimizer and data, positions, options
 * With adapters (model/adapters.h) adapter_model.safetensors and adapter_config.json, which PEFT reads, stand in the
 * place of the model's files, and the optimizer has the adapters alone; the model is that which the run began with.
 * Else it is a model directory for every reader of models.
 *
 * It is written as RUN/.step-00000040.new; every file, then the directory, is synced, then it gets its name, and RUN is
 * synced. Old ones are renamed before they are removed. So at any moment the directories that have a checkpoint's name
 * are complete, and what a killed process left behind is known by its name and removed by the next one. A save that
 * fails leaves the checkpoints that are there alone.
 *
 * Loading restores masters, moments and step exactly: the run goes on as if it had not stopped. */
#ifndef LS_TRAIN_RUN_CHECKPOINT_H
#define LS_TRAIN_RUN_CHECKPOINT_H

#include "train/config.h"
#include "train/trainer.h"

#define LS_SAVES_PATH_MAX 1200

typedef struct ls_saves ls_saves;

/* A number that a kind of training needs to go on. */
typedef struct ls_saves_position {
    const char *name;
    int64_t value;
} ls_saves_position;

/* What must be the same for a run to go on, and where it goes on. */
typedef struct ls_saves_description {
    const char *kind;     /* of training */
    const char *numerics; /* as in records: "exact/2/f32" */
    uint64_t data;        /* digest of what is learnt from */
    const ls_config *config;
    const char *const *free; /* options that may differ from the checkpoint's all the same (ls_config_agree), or NULL */
    ls_saves_position *positions; /* [n_positions] */
    int64_t n_positions;
} ls_saves_description;

/* A writer makes the directory where it is missing (not its parents), keeps other writers out and removes what a killed
 * one left. */
ls_status ls_saves_open(ls_saves **out, const char *directory, bool is_writer, ls_error *err);
void ls_saves_close(ls_saves *run); /* accepts NULL */
/* Step and path of the newest complete checkpoint; -1 when there is none. */
ls_status ls_saves_newest(const ls_saves *run, int64_t *step, char path[LS_SAVES_PATH_MAX], ls_error *err);
/* Keeps the files of a model directory, but for its weights, for the checkpoints to come. */
ls_status ls_saves_keep_files(ls_saves *run, const char *model_directory, ls_error *err);
/* Of a writer. A checkpoint of this step that is there already is this one, as a run has one result. Then removes all
 * checkpoints but the newest `keep`; 0 keeps all. Of several processes rank 0 is the writer, and all of them call it at
 * the same step, in the same directory: each writes its part of the tensors (train/saved_tensors.h), and the files are
 * the same whatever their number. */
ls_status ls_saves_save(ls_saves *run, const ls_train_state *state, const ls_saves_description *description,
                        int64_t keep, ls_error *err);

/* From here on a save copies what it saves to the host's memory, which is taken here, and returns; a thread writes
 * while the run goes on. The checkpoint has its name once a look finds that all processes have written, or somebody
 * waits for it. A run that ends before that has the checkpoint before. The state must live as long. Of several
 * processes all do the same. */
ls_status ls_saves_start_writer(ls_saves *run, const ls_train_state *state, ls_error *err);
/* A line of a run's plan, where saves do not wait. */
void ls_saves_tell(FILE *file, const ls_saves *run);
/* Between steps. Does not wait; a failure of the thread is found here. */
ls_status ls_saves_look(ls_saves *run, const ls_train_state *state, ls_error *err);
/* Waits. The next save does that as well. */
ls_status ls_saves_wait(ls_saves *run, const ls_train_state *state, ls_error *err);

/* The weights and the kept files as a model, into a directory that is there. */
ls_status ls_saves_save_model(const ls_saves *run, const char *directory, const ls_parameters *parameters,
                              ls_error *err);

/* The profile that the checkpoint was computed in, and the type of activations. */
ls_status ls_saves_numerics(ls_profile *profile, ls_dtype *dtype, const char *path, ls_error *err);

/* Masters, moments, step and positions from a checkpoint; the model must have been opened from the same path. Of
 * several processes, whatever the number of those that saved it, all call it, and each reads its own part. */
ls_status ls_saves_load(const char *path, ls_train_state *state, const ls_saves_description *description,
                        ls_error *err);

#endif
