/* The parameters of a model as one list, for training: float32 masters under the names and shapes of the checkpoint,
 * and the one place where a master becomes a weight.
 *
 * A weight is the master rounded once (nearest even) to the type that the checkpoint stores it in; no rounding for F32.
 * From that value, and from nothing else, follow the row-major copy that gradients read and what the model computes
 * with: packed panels, transposed taps, widened vectors, a2 = -exp(A_log) * LOG2E. Opening reads masters by exact
 * widening, so a list that is opened and published again changes no bit of the model.
 *
 * Order: that of model/slots.h. It is the order of every sum over parameters. With tied embeddings there is no
 * head, and the embedding is both. */
#ifndef LS_MODEL_PARAMS_H
#define LS_MODEL_PARAMS_H

#include "model/slots.h"

typedef struct ls_parameter {
    ls_weight_slot slot;        /* name, shape and place in the model */
    int64_t n_elements, offset; /* offset: of its elements in arrays over all parameters */
    ls_dtype dtype;             /* of the stored weight */
    float *master;              /* [n_elements], device memory */
    void *own;                  /* its value where the model does not hold one; see ls_parameter_value */
} ls_parameter;

typedef struct ls_parameters {
    ls_device *device; /* borrowed, like the model */
    ls_model *model;   /* written by publish */
    int64_t n, n_elements;
    ls_parameter *list; /* [n] */
    float *masters;     /* [n_elements], all of them, device memory */
} ls_parameters;

/* directory: where model was opened from. */
ls_status ls_parameters_open(ls_parameters **out, ls_model *model, ls_device *device, const char *directory,
                             ls_error *err);
void ls_parameters_free(ls_parameters *parameters);
/* The rounded master, [n_elements] of dtype, rows as stored, device memory: the model's own table of embeddings, or
 * what a packed matrix begins with where the back end keeps rows, else a copy. Moves where the model's weights move. */
void *ls_parameter_value(const ls_parameter *parameter);
/* Rounds every master into its value, unless `rounded` says that this is done, and into the model. Nothing may run on the
 * model meanwhile. Allocates nothing. */
ls_status ls_parameters_publish(ls_parameters *parameters, bool rounded, ls_error *err);
/* The parameter that belongs to this place of the model: a matrix, a vector, or the embedding. */
const ls_parameter *ls_parameter_of(const ls_parameters *parameters, const void *place);
/* 64-bit digest (FNV-1a) of names, shapes, types and values, in order: equal for equal weights. */
ls_status ls_parameters_digest(const ls_parameters *parameters, uint64_t *out, ls_error *err);
/* *hash mixed with device memory. */
ls_status ls_memory_digest(ls_device *device, uint64_t *hash, const void *memory, int64_t bytes, ls_error *err);

#endif
