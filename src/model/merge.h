/* A whole model's weights from those of a base and of the adapters on it (op/lora.h, as model/adapters.h merges them):
 * W = R(W0 + s B A), rounded once to the type that W0 is stored in, for one adapter after the other. Every other tensor
 * is that of the base. Whoever opens a directory with an adapter reads its weights here; `lockstep merge` writes them.
 */
#ifndef LS_MODEL_MERGE_H
#define LS_MODEL_MERGE_H

#include "load/adapter_chain.h"
#include "load/safetensors.h"
#include "model/model.h"

typedef struct ls_merging ls_merging;

/* The adapters of a chain that has some, over the checkpoint of its home; both are borrowed. Every tensor of an
 * adapter must be A or B of a matrix of the base, with the shapes of both and the rank of its configuration. Computes
 * on a CPU of its own, and holds one matrix at a time. */
ls_status ls_merging_open(ls_merging **out, const ls_adapter_chain *chain, ls_checkpoint *base, ls_error *err);
void ls_merging_close(ls_merging *merging); /* accepts NULL */
/* Whether a tensor of the base is another one. */
bool ls_merging_has(const ls_merging *merging, const ls_tensor_view *view);
/* Bytes [at, at + bytes) of it. One caller at a time. */
ls_status ls_merging_read(ls_merging *merging, void *host, const ls_tensor_view *view, int64_t at, int64_t bytes,
                          ls_error *err);
/* No file of an adapter changed since it was opened. */
ls_status ls_merging_check(const ls_merging *merging, ls_error *err);

/* Writes the file `path`, which must not exist yet; *n_merged: how many matrices are others. watcher: is told the bytes
 * of tensors that are written, or NULL. */
ls_status ls_merging_write(const char *path, const ls_adapter_chain *chain, int64_t *n_merged, ls_model_watcher watcher,
                           ls_error *err);

#endif
