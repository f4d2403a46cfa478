/* The meeting place of trainers that use torch: a TCPStore that the trainer hosts, with the name of an NCCL group in it
 * as a pickled object. Only what a peer needs to join is spoken: the greeting, one more worker, one key. */
#ifndef LS_SERVE_TORCH_STORE_H
#define LS_SERVE_TORCH_STORE_H

#include "op/nccl.h"

/* Joins the store at host:port as one of its workers and waits for a key, all within timeout_s, and no longer
 * than until a signal is remembered (base/interrupt.h). *out is released with free(). */
ls_status ls_torch_store_get(uint8_t **out, int64_t *bytes, const char *host, int64_t port, const char *key,
                             double timeout_s, ls_error *err);
/* The 128 bytes of a pickled ncclUniqueId, whatever class it was pickled from: the one byte string of this length. */
ls_status ls_nccl_id_unpickle(ls_nccl_id *out, const uint8_t *pickle, int64_t bytes, ls_error *err);

#endif
