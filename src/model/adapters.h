/* Low-rank adapters of a model's matrices as merged weights (op/lora.h): A and B are trained in float32, the model
 * computes with W0 + (alpha / rank) B A, rounded once to the type that W0 is stored in. So whoever computes with the
 * model, the rollout and the trainer, computes with the same bits as with any other weights.
 *
 * Names are those of PEFT: the adapters of model.layers.0.mamba.in_proj.weight are
 * base_model.model.model.layers.0.mamba.in_proj.lora_A.weight [rank][in] and ...lora_B.weight [out][rank].
 *
 * At first B is +0, and A is drawn uniformly from [-1 / sqrt(in), 1 / sqrt(in)), as PEFT draws it: element i of
 * matrix m is (2 (word >> 8) 2^-24 - 1) * (float)(1 / sqrt(in)), word number i % 4 of
 * Philox4x32-10(key = seed; counter = i / 4 low, i / 4 high, m, "lora"). Merging turns -0 of W0 into +0. */
#ifndef LS_MODEL_ADAPTERS_H
#define LS_MODEL_ADAPTERS_H

#include "model/params.h"

typedef struct ls_adapters_opts {
    int64_t rank;
    double alpha;
    const char *targets; /* "in_proj,o_proj": last parts of modules' names, or whole names; "all-linear": all matrices
                          * but the head, and routers and experts, which have no adapters */
    uint64_t seed;
} ls_adapters_opts;

typedef struct ls_adapter {
    const ls_parameter *base; /* the first of its tensor; its others follow */
    int64_t n_parts;          /* parameters of it */
    void *w0;                 /* as stored, device memory */
    int64_t a, b;             /* their numbers in list */
    char module[LS_TENSOR_NAME_MAX];
} ls_adapter;

typedef struct ls_adapters {
    ls_parameters *base; /* of the model, without masters; borrowed */
    ls_parameters *list; /* A and B of every adapted matrix, in the order of base: their masters are what is learnt */
    ls_adapter *adapters;
    int64_t n, rank;
    double alpha;
    float scale; /* alpha / rank, rounded once */
    char *targets;
    char *directory; /* where the model was opened from */
} ls_adapters;

/* base: ls_parameters_open_share(.., 1, 1), which holds no masters. A target that names no matrix is an error. */
ls_status ls_adapters_open(ls_adapters **out, ls_parameters *base, const char *directory, const ls_adapters_opts *opts,
                           ls_error *err);
void ls_adapters_free(ls_adapters *adapters); /* accepts NULL */
/* The gradient of list's elements from that of base's, both device memory. */
ls_status ls_adapters_gradient(const ls_adapters *adapters, const float *base, float *out, ls_error *err);
/* The masters of list become weights of the model. Nothing may run on it meanwhile. */
ls_status ls_adapters_merge(const ls_adapters *adapters, ls_error *err);
/* Bytes of W0 and of the adapters' values. */
int64_t ls_adapters_bytes(const ls_adapters *adapters);

#endif
