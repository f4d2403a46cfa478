/* The weights of a model as they lie in its directory: which tensor of the checkpoint every slot of the walk is, and
 * the way of its bytes to a device. Whoever reads weights takes it, so that names, shapes and types are checked by one
 * text.
 *
 * Bytes go to the device in pieces (ls_memory_load), and several threads read a piece: host memory is bounded by a few
 * pieces, whatever the size of a tensor. Neither carries a bit. */
#ifndef LS_MODEL_STORED_H
#define LS_MODEL_STORED_H

#include "base/parallel.h"
#include "load/adapter_chain.h"
#include "load/safetensors.h"
#include "model/slots.h"

/* Bytes of a piece unless the caller says otherwise. */
#define LS_PIECE_BYTES ((int64_t)16 << 20)

typedef struct ls_stored {
    const char *directory; /* borrowed */
    const ls_tensor_names *names;
    ls_adapter_chain chain;      /* of a directory with an adapter: from it to its base */
    struct ls_merging *merging;  /* NULL: tensors are as the checkpoint stores them */
    ls_checkpoint *checkpoint;   /* owned until ls_stored_close; who takes it sets it NULL */
    const ls_tensor_view **used; /* [n_used], room for every tensor of the checkpoint */
    int64_t n_used;
    int64_t piece_bytes;
    ls_pool *pool;            /* reads a piece */
    int64_t done, total;      /* bytes of tensors: loaded, and all */
    ls_model_watcher watcher; /* NULL: nobody watches */
    void *watcher_context;
} ls_stored;

/* names: of the architecture; tensors that it does not read are not looked at. how: NULL for the defaults. out is
 * closed by ls_stored_close, also after a failure. */
ls_status ls_stored_open(ls_stored *out, const char *directory, const ls_tensor_names *names,
                         const ls_model_loading *how, ls_error *err);
void ls_stored_close(ls_stored *stored);
/* The tensor that has the slot's elements, with exactly its shape, and the type of its elements. Counts it as used. */
ls_status ls_stored_find(ls_stored *stored, const ls_tensor_view **out, ls_dtype *dtype, const ls_weight_slot *slot,
                         ls_error *err);
/* The slot's elements of its tensor to device memory, which has room for them. */
ls_status ls_stored_load(ls_stored *stored, ls_device *device, void *to, const ls_tensor_view *view,
                         const ls_weight_slot *slot, ls_error *err);
/* Bytes [at, at + bytes) of a tensor. */
ls_status ls_stored_load_part(ls_stored *stored, ls_device *device, void *to, const ls_tensor_view *view, int64_t at,
                              int64_t bytes, ls_error *err);
/* Bytes [at, at + bytes) of a tensor to host memory. */
ls_status ls_stored_read(const ls_stored *stored, void *host, const ls_tensor_view *view, int64_t at, int64_t bytes,
                         ls_error *err);
/* The head of a tied model is the embedding. Its checkpoint may store the head as well: it must then hold the
 * embedding's bytes, or the two readings of the file would be different models. */
ls_status ls_stored_check_head(ls_stored *stored, const ls_model_config *config, ls_error *err);
/* Every tensor of the checkpoint that the architecture reads has been found once, or the first that was not is named;
 * and no file changed since it was opened. */
ls_status ls_stored_check(const ls_stored *stored, int32_t n_layers, ls_error *err);

#endif
