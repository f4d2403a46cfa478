/* A whole model's weights from those of a base and an adapter's files (op/lora.h, as model/adapters.h merges them):
 * W = R(W0 + s B A), rounded once to the type that W0 is stored in. Every other tensor is copied. */
#ifndef LS_MODEL_MERGE_H
#define LS_MODEL_MERGE_H

#include "load/adapter_config.h"
#include "model/model.h"

/* Writes the file `path`, which must not exist yet, from the checkpoint of directory `base` and
 * ADAPTER/adapter_model.safetensors; *n_merged: how many matrices are others. Every tensor of the adapter must be A or
 * B of a matrix of the base, with the shapes of both and the rank of config. Holds one matrix at a time. watcher: is
 * told the bytes of tensors that are written, or NULL. */
ls_status ls_adapter_merge_files(const char *path, const char *base, const char *adapter,
                                 const ls_adapter_config *config, ls_device *device, int64_t *n_merged,
                                 ls_model_watcher watcher, ls_error *err);

#endif
