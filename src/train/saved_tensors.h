/* The tensors of a checkpoint as files, which all processes of a run write together: each its own elements of weights,
 * masters and moments, into their places. The files are those that one process writes, whatever their number; what they
 * hold is told in train/run_checkpoint.h.
 *
 * Elements are written from the device, piece by piece, or copied to the host all at once, in memory that is taken
 * beforehand, and written from there by any thread while the run goes on. */
#ifndef LS_TRAIN_SAVED_TENSORS_H
#define LS_TRAIN_SAVED_TENSORS_H

#include <stdatomic.h>

#include "load/safetensors_write.h"
#include "train/trainer.h"

/* As files name it. */
ls_st_dtype ls_saved_dtype(ls_dtype dtype);

/* The three arrays of the optimizer, of this process's range. */
enum { LS_SAVED_ARRAYS = 3 };
typedef char ls_saved_name[LS_TENSOR_NAME_MAX + 16];
/* "master.NAME", "m.NAME", "v.NAME" */
void ls_saved_array_name(ls_saved_name out, int array, const ls_parameter *parameter);
ls_dtype ls_saved_array_dtype(const ls_train_state *state, int array);
/* Element `at` of a parameter, which is in this process's range; device memory. */
void *ls_saved_array_element(const ls_train_state *state, int array, const ls_parameter *parameter, int64_t at);

/* The weights alone, as the tensors of a model's file. */
typedef struct ls_saved_weights {
    const ls_parameters *parameters; /* borrowed */
    ls_tensor_out *tensors;          /* [parameters->n_tensors] */
} ls_saved_weights;
/* ls_saved_weights_close, also after a failure. */
ls_status ls_saved_weights_open(ls_saved_weights *out, const ls_parameters *parameters, ls_error *err);
void ls_saved_weights_close(ls_saved_weights *weights);
/* Brings bytes of a tensor to the host: an ls_tensor_fetch, whose context they are. Who asks for tensors in
 * order brings shared weights of no layer to the device twice. */
ls_status ls_saved_weights_fetch(void *context, void *host, const ls_tensor_out *tensor, int64_t at, int64_t bytes,
                                 ls_error *err);

typedef struct ls_saved ls_saved;

/* The state is borrowed. */
ls_status ls_saved_open(ls_saved **out, const ls_train_state *state, ls_error *err);
void ls_saved_close(ls_saved *saved); /* accepts NULL */

/* Makes the files, with their headers alone, in a directory that is there. */
ls_status ls_saved_begin(const ls_saved *saved, const char *directory, ls_error *err);
/* Writes this process's elements into files that were begun, by whichever process, and syncs them. */
ls_status ls_saved_write(const ls_saved *saved, const char *directory, ls_error *err);

/* Takes the host's memory for a copy. */
ls_status ls_saved_reserve(ls_saved *saved, ls_error *err);
/* Bytes of it. */
int64_t ls_saved_bytes(const ls_saved *saved);
/* This process's elements as they are now, into that memory. */
ls_status ls_saved_copy(ls_saved *saved, ls_error *err);
/* As ls_saved_write, from the copy, by any one thread. *stop becomes true: it ends with LS_ERR_IO before it is done. */
ls_status ls_saved_write_copy(const ls_saved *saved, const char *directory, const atomic_bool *stop, ls_error *err);

#endif
