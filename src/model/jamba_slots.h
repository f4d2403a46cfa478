/* The tensors of a Jamba checkpoint as one walk: names, shapes, and where in ls_jamba each belongs. Whoever reads,
 * lists or writes weights takes this walk, so that no two of them can disagree. */
#ifndef LS_MODEL_JAMBA_SLOTS_H
#define LS_MODEL_JAMBA_SLOTS_H

#include "model/jamba.h"

#define LS_TENSOR_NAME_MAX 160

typedef enum ls_slot_kind {
    LS_SLOT_MATRIX, /* [n][k], packed into *matrix */
    LS_SLOT_VECTOR, /* [n], widened into *vector */
    LS_SLOT_CONV,   /* [D][1][W], widened into *vector as [W][D] */
    LS_SLOT_DECAY,  /* A_log [D][S]; *vector holds a2 = -exp(A_log) * LOG2E */
    LS_SLOT_EMBED   /* [V][H], kept as stored in *embed; with tied embeddings the head too */
} ls_slot_kind;

typedef struct ls_weight_slot {
    char name[LS_TENSOR_NAME_MAX];
    ls_slot_kind kind;
    int32_t n_dims;
    int64_t dims[3];
    ls_gemm_weight *matrix; /* of LS_SLOT_MATRIX */
    float **vector;         /* of vectors, taps and decays */
    void **embed;
} ls_weight_slot;

typedef ls_status (*ls_slot_visit)(void *context, const ls_weight_slot *slot, ls_error *err);

/* A model of this configuration without weights, for walks; ls_jamba_close releases it. */
ls_status ls_jamba_outline(ls_jamba **out, const ls_jamba_config *config, ls_error *err);

/* Calls visit for every tensor that the configuration calls for: embedding, last norm, layers ascending, head. The
 * first failure ends the walk. */
ls_status ls_jamba_slots(ls_jamba *model, ls_slot_visit visit, void *context, ls_error *err);

/* Fills *slot->vector (of vectors, taps and decays; it is there) from the stored tensor. */
void ls_slot_fill(const ls_weight_slot *slot, const void *data, ls_dtype dtype);

#endif
