/* Tensors under the names that models are read by, where a checkpoint has others: names without the wrappers of torch
 * (compile, FSDP, activation checkpointing, DataParallel), a language model's without what told it from layers for
 * images (model.language_model.X is model.X), and the experts of a layer, which transformers 5 holds as one tensor, one
 * by one. Granite's experts are one tensor in published files too: they get the names that they have there. Bytes are
 * the same: every view is a part of the file. */
#ifndef LS_LOAD_TENSOR_NAMES_H
#define LS_LOAD_TENSOR_NAMES_H

#include "load/safetensors.h"

typedef struct ls_tensor_names_own {
    ls_tensor_view *views; /* [n]; none where all names stand as they are */
    char **names;          /* [n], of the views */
    int64_t n, views_cap, names_cap;
} ls_tensor_names_own;

/* Experts of one tensor, and tensors of a checkpoint that are made so. */
#define LS_FUSED_EXPERTS_MAX 4096
#define LS_FUSED_TENSORS_MAX 1000000

/* X.experts.gate_up_proj [e][2 f][h] is X.experts.i.gate_proj.weight [f][h] and ...up_proj.weight behind it, for every
 * i; X.experts.down_proj [e][h][f] is X.experts.i.down_proj.weight. Where X ends with block_sparse_moe they stay one
 * tensor: X.input_linear.weight and X.output_linear.weight, and X.router.weight is X.router.layer.weight. out is empty
 * on entry; ls_tensor_names_deinit ends it, also after a failure. */
ls_status ls_tensor_names_resolve(ls_tensor_names_own *out, const ls_tensor_view *const *views, int64_t n,
                                  ls_error *err);
void ls_tensor_names_deinit(ls_tensor_names_own *own);

#endif
