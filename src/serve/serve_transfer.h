/* Weights that a trainer broadcasts over NCCL, as vLLM's clients send them: names, types and shapes are announced, the
 * tensors follow as bytes in this order. They become a checkpoint on disk, shard by shard, which is then served like
 * any other. What carries the bytes is a function, so that all but the wire runs without a GPU. */
#ifndef LS_SERVE_SERVE_TRANSFER_H
#define LS_SERVE_SERVE_TRANSFER_H

#include "json/json_node.h"
#include "op/nccl.h"

/* ---- what is announced ---- */

enum { LS_TRANSFER_DIMS_MAX = 8 };
/* A packed chunk is closed by the tensor that takes it above this. */
#define LS_TRANSFER_CHUNK_BYTES (INT64_C(1) << 30)

typedef struct ls_transfer_tensor {
    char *name;
    const char *type; /* as safetensors has it: "BF16", "F16", "F32" */
    int64_t dims[LS_TRANSFER_DIMS_MAX];
    int32_t n_dims;
    int64_t bytes;
} ls_transfer_tensor;

typedef struct ls_transfer_plan {
    ls_transfer_tensor *tensors; /* [n] */
    int64_t n;
    bool packed; /* update_info says so */
} ls_transfer_plan;

/* {"names", "dtype_names", "shapes", "packed"?}; other members are refused by name. */
ls_status ls_transfer_plan_read(ls_transfer_plan **out, const ls_node *update_info, ls_error *err);
void ls_transfer_plan_free(ls_transfer_plan *plan); /* accepts NULL */
/* The broadcast that begins with tensor `first`: its bytes, and in *end the tensor behind it. chunk_bytes 0: each
 * tensor has its own. */
int64_t ls_transfer_chunk(const ls_transfer_plan *plan, int64_t first, int64_t chunk_bytes, int64_t *end);

/* ---- to disk ---- */

/* Makes a directory for weights on their way, below TMPDIR. */
enum { LS_TRANSFER_PATH_MAX = 512 };
ls_status ls_transfer_directory(char out[LS_TRANSFER_PATH_MAX], ls_error *err);

/* Fills host memory with the next broadcast. */
typedef ls_status (*ls_transfer_receive)(void *context, void *host, int64_t bytes, ls_error *err);
/* Receives all tensors of a plan into a safetensors file. */
ls_status ls_transfer_write(const ls_transfer_plan *plan, const char *path, int64_t chunk_bytes,
                            ls_transfer_receive receive, void *context, ls_error *err);

/* An update that comes in parts: a temporary directory of shards, and in the end their index. */
typedef struct ls_transfer_shards ls_transfer_shards;
ls_status ls_transfer_shards_create(ls_transfer_shards **out, ls_error *err);
void ls_transfer_shards_free(ls_transfer_shards *shards); /* removes the directory; accepts NULL */
/* Receives a plan as the next shard. */
ls_status ls_transfer_shards_add(ls_transfer_shards *shards, const ls_transfer_plan *plan, int64_t chunk_bytes,
                                 ls_transfer_receive receive, void *context, ls_error *err);
/* Writes the index; the directory is then a checkpoint without a configuration. */
ls_status ls_transfer_shards_finish(ls_transfer_shards *shards, const char **directory, ls_error *err);

/* ---- the wire ---- */

typedef struct ls_transfer ls_transfer;

/* {"master_address", "master_port", "rank_offset", "world_size", "packed"?}: meets the trainer, which is rank 0. The
 * device is borrowed, and must be a GPU. */
ls_status ls_transfer_open(ls_transfer **out, ls_device *device, const ls_node *init_info, ls_error *err);
void ls_transfer_close(ls_transfer *transfer); /* accepts NULL */
/* Receives a plan as the next shard. A failure ends the group. */
ls_status ls_transfer_take(ls_transfer *transfer, const ls_transfer_plan *plan, ls_transfer_shards *shards,
                           ls_error *err);

#endif
