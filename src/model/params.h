/* The parameters of a model as one list, for training: float32 masters under the names and shapes of the checkpoint,
 * and the one place where a master becomes a weight.
 *
 * A weight is the master rounded once (nearest even) to the type that the checkpoint stores it in; no rounding for F32.
 * From that value, and from nothing else, follow the row-major copy that gradients read and what the model computes
 * with: packed panels, transposed taps, widened vectors, a2 = -exp(A_log) * LOG2E, a = -exp(A_log). Opening reads
 * masters by exact widening, so a list that is opened and published again changes no bit of the model.
 *
 * A list may hold the masters of a range of elements only, one of several shares (several processes that train as one).
 * Ranges begin where a block of the sum of squares does (op/adamw.h), so that every block has one owner: share s begins
 * at the first block at or behind element s n / shares. Values are there whole; who publishes rounds what it holds, and
 * the others' parts come from them.
 *
 * Order: that of model/slots.h. It is the order of every sum over parameters. With tied embeddings there is no
 * head, and the embedding is both. */
#ifndef LS_MODEL_PARAMS_H
#define LS_MODEL_PARAMS_H

#include "model/slots.h"

typedef struct ls_parameter {
    ls_weight_slot slot;        /* name, shape and place in the model */
    int64_t n_elements, offset; /* offset: of its elements in arrays over all parameters */
    int64_t tensor;             /* number of its tensor in a checkpoint that is written */
    ls_dtype dtype;             /* of the stored weight */
    int64_t begin, end;         /* elements of it whose masters are held here */
    float *master;              /* [end - begin], device memory */
    void *own;                  /* its value where the model does not hold one; see ls_parameter_value */
    void *part; /* of weights that come by layer: elements [begin, end) of its value, which others get from here */
} ls_parameter;

typedef struct ls_parameters {
    ls_device *device; /* borrowed, like the model */
    ls_model *model;   /* written by publish */
    int64_t n, n_elements, n_tensors;
    ls_parameter *list;               /* [n] */
    int64_t begin, end;               /* elements whose masters are held here; begin == end: none */
    float *masters;                   /* [end - begin], device memory */
    struct ls_shared_weights *shared; /* whence a layer buffer's layers come (shared_weights.h); NULL without buffer */
} ls_parameters;

/* directory: where model was opened from. */
ls_status ls_parameters_open(ls_parameters **out, ls_model *model, ls_device *device, const char *directory,
                             ls_error *err);
/* With the masters of share `share` of n_shares. */
ls_status ls_parameters_open_share(ls_parameters **out, ls_model *model, ls_device *device, const char *directory,
                                   int64_t share, int64_t n_shares, ls_error *err);
void ls_parameters_free(ls_parameters *parameters);
/* Where a share begins; share n_shares begins at n_elements. */
int64_t ls_parameters_share(const ls_parameters *parameters, int64_t share, int64_t n_shares);
/* The elements [*begin, *end) of a parameter that lie in elements [from, to) of all; none where *begin == *end. */
void ls_parameter_part(const ls_parameter *parameter, int64_t from, int64_t to, int64_t *begin, int64_t *end);
/* The rounded master, [n_elements] of dtype, rows as stored, device memory: the model's own table of embeddings, or
 * what a packed matrix begins with where the back end keeps rows, else a copy. Moves where the model's weights move. */
void *ls_parameter_value(const ls_parameter *parameter);
/* Of that the elements [begin, end) that are rounded here. */
void *ls_parameter_own(const ls_parameter *parameter);
/* False of one that is there only while its layer is in the model's layer buffer, which ls_parameter_need brings there,
 * in a pass (layer_buffer.h). */
bool ls_parameter_is_whole(const ls_parameters *parameters, const ls_parameter *parameter);
ls_status ls_parameter_need(const ls_parameters *parameters, const ls_parameter *parameter, ls_error *err);
/* Rounds every master into its value and the model. Nothing may run on the model meanwhile. Allocates nothing. All
 * masters must be held here; with shares it is done in its two halves, with the others' parts of the values put in
 * between. */
ls_status ls_parameters_publish(ls_parameters *parameters, ls_error *err);
ls_status ls_parameters_round(ls_parameters *parameters, ls_error *err); /* masters held here into values */
ls_status ls_parameters_store(ls_parameters *parameters, ls_error *err); /* whole values into the model */
/* One of them. */
ls_status ls_parameter_store(const ls_parameters *parameters, const ls_parameter *parameter, ls_error *err);
/* The parameter that this matrix of the model is packed from, that this vector of a layer, or of none (-1), is filled
 * from, and the table of embeddings. Asked for by kind, because a struct and its first field have one address, and by
 * layer, because layers of a buffer have their vectors at the same addresses. There must be one. */
const ls_parameter *ls_parameter_of_matrix(const ls_parameters *parameters, const ls_gemm_weight *matrix);
const ls_parameter *ls_parameter_of_vector(const ls_parameters *parameters, int64_t layer_i, const float *vector);
const ls_parameter *ls_parameter_of_embedding(const ls_parameters *parameters);
/* 64-bit digest (FNV-1a) of names, shapes, types and values, in order: equal for equal weights. */
ls_status ls_parameters_digest(const ls_parameters *parameters, uint64_t *out, ls_error *err);
/* *hash mixed with parts, in order, and with device memory. */
ls_status ls_parts_digest(ls_device *device, uint64_t *hash, const ls_digest_part *parts, int64_t n, ls_error *err);
ls_status ls_memory_digest(ls_device *device, uint64_t *hash, const void *memory, int64_t bytes, ls_error *err);

#endif
