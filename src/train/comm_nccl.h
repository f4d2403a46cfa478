/* The transport over NCCL: device memory of GPUs (op/nccl.h). While GPUs move bytes the host watches the mesh, so that
 * a rank that is lost, fails or is silent ends the exchange with its name. */
#ifndef LS_TRAIN_COMM_NCCL_H
#define LS_TRAIN_COMM_NCCL_H

#include "op/nccl.h"
#include "train/mesh.h"

extern const ls_transport ls_transport_nccl;

/* All ranks call it with the id that one of them made; mesh and device are borrowed. *out is the table's `self`. */
ls_status ls_nccl_open(void **out, ls_mesh *mesh, ls_device *device, const ls_nccl_id *id, int32_t rank,
                       int32_t n_ranks, double timeout_s, ls_error *err);
/* The group, for measuring beside. */
ls_nccl *ls_nccl_group_of(void *self);

#endif
