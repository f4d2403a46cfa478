/* The tensors of a checkpoint as one walk: names, shapes, and where in ls_model each belongs. Whoever reads, lists or
 * writes weights takes this walk, so that no two of them can disagree. */
#ifndef LS_MODEL_SLOTS_H
#define LS_MODEL_SLOTS_H

#include "model/model.h"

#define LS_TENSOR_NAME_MAX 160

typedef enum ls_slot_kind {
    LS_SLOT_MATRIX, /* [n][k], packed into *matrix */
    LS_SLOT_VECTOR, /* [n], widened into *vector */
    LS_SLOT_CONV,   /* [D][1][W], widened into *vector as [W][D] */
    LS_SLOT_DECAY,  /* A_log [D][S]; *vector holds a2 = -exp(A_log) * LOG2E */
    LS_SLOT_RATES,  /* A_log [n] of Mamba-2; *vector holds a = -exp(A_log) */
    LS_SLOT_EMBED   /* [V][H], kept as stored in *embed; with tied embeddings the head too */
} ls_slot_kind;

/* The tensor that has a slot's elements, and from which of its own on. A tensor may have those of several slots, which
 * then follow each other in the walk as they do in it. */
typedef struct ls_slot_tensor {
    int64_t at;
    int32_t n_dims;
    int64_t dims[3];
} ls_slot_tensor;

typedef struct ls_weight_slot {
    char name[LS_TENSOR_NAME_MAX];
    ls_slot_kind kind;
    int64_t layer_i; /* -1: of no layer */
    bool above_one;  /* of LS_SLOT_VECTOR: *vector holds 1 + what is stored */
    int32_t n_dims;
    int64_t dims[3];
    ls_slot_tensor tensor;  /* the tensor of that name in a checkpoint */
    ls_gemm_weight *matrix; /* of LS_SLOT_MATRIX */
    float **vector;         /* of vectors, taps, decays and rates */
    void **embed;
} ls_weight_slot;

static inline int64_t ls_slot_elements(const ls_weight_slot *slot) {
    int64_t n = 1;
    for (int32_t i = 0; i < slot->n_dims; i++) n *= slot->dims[i];
    return n;
}

static inline int64_t ls_slot_tensor_elements(const ls_slot_tensor *tensor) {
    int64_t n = 1;
    for (int32_t i = 0; i < tensor->n_dims; i++) n *= tensor->dims[i];
    return n;
}

typedef ls_status (*ls_slot_visit)(void *context, const ls_weight_slot *slot, ls_error *err);

/* A model of this configuration without weights, for walks; ls_model_close releases it. */
ls_status ls_model_outline(ls_model **out, const ls_model_config *config, ls_error *err);

/* Calls visit for every tensor that the configuration calls for: embedding, last norm, layers ascending, head. The
 * first failure ends the walk. */
ls_status ls_model_slots(ls_model *model, ls_slot_visit visit, void *context, ls_error *err);

/* Whether the model holds the slot's tensor as it is stored, of this type: the table of embeddings, and a packed matrix
 * that begins with its rows. */
bool ls_slot_is_value(const ls_weight_slot *slot, const ls_device *device, ls_dtype dtype);

/* What a slot is but for its values, for a digest: name, shape and stored type. They stay where they are. */
#define LS_SLOT_PARTS 3
void ls_slot_parts(ls_digest_part out[LS_SLOT_PARTS], const ls_weight_slot *slot, const ls_dtype *dtype);

/* Fills *slot->vector (of vectors, taps, decays and rates; it is there) from the stored tensor; all device memory. */
ls_status ls_slot_fill(const ls_weight_slot *slot, ls_device *device, const void *data, ls_dtype dtype, ls_error *err);

/* ---- for parts: one call for each of their tensors ---- */

typedef struct ls_walk {
    ls_model *model;
    const ls_tensor_names *names;
    ls_slot_visit visit;
    void *context;
    int64_t layer_i; /* -1 outside the layers */
    ls_error *err;
} ls_walk;

/* The tensor is called LAYER PREFIX NAME. One without dimensions is the slot's alone. */
ls_status ls_walk_slot(const ls_walk *walk, ls_weight_slot slot, const char *prefix, const char *name);
ls_status ls_walk_matrix(const ls_walk *walk, ls_gemm_weight *out, int64_t n, int64_t k, const char *prefix,
                         const char *name);
/* A matrix that is a part of a tensor. */
ls_status ls_walk_part(const ls_walk *walk, ls_gemm_weight *out, int64_t n, int64_t k, const ls_slot_tensor *tensor,
                       const char *prefix, const char *name);
ls_status ls_walk_vector(const ls_walk *walk, float **out, int64_t n, const char *prefix, const char *name);
/* A norm of the stream or of heads: stored as the model's configuration says. */
ls_status ls_walk_norm(const ls_walk *walk, float **out, int64_t n, const char *prefix, const char *name);

#endif
