/* Cached state of all sequences, in device memory. A slot holds what one sequence has for one layer: the tensors of
 * ls_slot_layout_make, each at a multiple of 64 bytes. Slot ids mean the same sequence in every layer with slots. Page
 * ids likewise mean the same page_tokens positions in every attention layer. Pools are address space that the system
 * backs where it is touched, zero at first. */
#ifndef LS_MODEL_CACHE_H
#define LS_MODEL_CACHE_H

#include "load/model_config.h"
#include "op/backend.h"
#include "op/span.h"

/* A tensor of a slot: what a mixer leaves behind a token and reads at the next one, all of it written by every span
 * that has rows. */
typedef struct ls_state_tensor {
    const char *name, *pool; /* "scan"; "Mamba state pool, scan state" */
    ls_dtype dtype;
    int32_t n_dims;
    int64_t dims[3];
    int64_t offset, bytes; /* in the slot */
} ls_state_tensor;

/* What lies between and behind the tensors is nobody's. */
enum { LS_STATE_TENSORS_MAX = 4 };
typedef struct ls_slot_layout {
    int64_t n, bytes; /* bytes: of a slot */
    ls_state_tensor tensor[LS_STATE_TENSORS_MAX];
} ls_slot_layout;

/* The slots of the layers whose mixer is no attention: "conv", the convolution's window [W-1][D] in the activation
 * type, oldest first; "scan", the state [D][S] in float32. Of Mamba-2 the window is of x, B and C, and two tensors in
 * float32 follow: "ssd", the states [heads][S][P], and "scale", [heads] (op/ssd.h). Of the delta rule the
 * window is of q, k and v, and "delta", [heads][K][V], and "scale" follow likewise (op/delta.h). With states of heads
 * that are written every state_every tokens, above 1, "held" is last: what they lack (op/held.h). Of a model of
 * attention alone all are empty. */
void ls_slot_layout_make(ls_slot_layout *out, const ls_model_config *config, ls_dtype dtype, int64_t state_every);

/* Where a layer's state lies; a feed-forward alone has none. */
typedef enum ls_pool_kind { LS_POOL_NONE = 0, LS_POOL_SLOTS, LS_POOL_PAGES } ls_pool_kind;

typedef struct ls_cache {
    ls_device *device; /* borrowed */
    ls_dtype dtype;
    int64_t n_slots, slot_stride, slot_bytes; /* bytes; of a slot, slot_bytes are in use */
    ls_slot_layout slot;
    int64_t state_every; /* 1 where no slot has "held" */
    int64_t n_pages, page_tokens, page_stride, page_bytes;
    int64_t n_layers, n_kv_heads, n_groups; /* n_groups: of heads of a state, as op/held.h has them */
    bool guards, on_host, is_released;
    uint8_t kind[LS_LAYERS_MAX]; /* ls_pool_kind; a copy: weights may change and their models go */
    uint8_t **layer;             /* [n_layers]: the layer's slots or pages; NULL where there are none */
    int64_t *differs;            /* device memory: the answer of a comparison */
    ls_span *span;               /* device memory: the slot whose states a comparison writes; NULL where all are */
    uint8_t *guard_bytes;        /* [largest count of entries][64], what was read of guards; NULL without */
} ls_cache;

typedef struct ls_cache_opts {
    ls_dtype dtype;                        /* of activations */
    int64_t n_slots, n_pages, page_tokens; /* either count may be 0 */
    int64_t slot_stride;                   /* bytes, a multiple of 64; 0: the least */
    bool guards;                           /* 64 bytes of a known pattern behind every slot and page */
    bool on_host;                          /* in pinned memory of the host, undefined at first: copies alone reach it */
    int64_t state_every;                   /* tokens of decode that write a state once; 0 and 1: each does */
} ls_cache_opts;

ls_status ls_cache_create(ls_cache **out, ls_device *device, const ls_model_config *config, const ls_cache_opts *opts,
                          ls_error *err);
void ls_cache_free(ls_cache *cache);
/* The tensor of this name, which the layout must have; and that of all slots of a layer. */
const ls_state_tensor *ls_cache_tensor(const ls_cache *cache, const char *name);
ls_pool_view ls_cache_state(const ls_cache *cache, int64_t layer_i, const char *name);
/* That of "held"; an empty one where nothing is. */
ls_pool_view ls_cache_held(const ls_cache *cache, int64_t layer_i);
ls_pool_view ls_cache_pages(const ls_cache *cache, int64_t layer_i);
/* All layers of a slot or page, from one cache to another (or the same) of the same model, type, state_every and
 * device. */
ls_status ls_cache_copy_slot(const ls_cache *to, int32_t to_slot, const ls_cache *from, int32_t from_slot,
                             ls_error *err);
ls_status ls_cache_copy_page(const ls_cache *to, int32_t to_page, const ls_cache *from, int32_t from_page,
                             ls_error *err);
/* *layer_i: the first layer in which two slots differ, or -1; the same for the first n_tokens positions of two pages.
 * States that lack tokens are written first: when they were makes no difference. Waits for the device. */
ls_status ls_cache_slot_differs(int64_t *layer_i, const ls_cache *a, int32_t slot_a, const ls_cache *b, int32_t slot_b,
                                ls_error *err);
ls_status ls_cache_page_differs(int64_t *layer_i, const ls_cache *a, int32_t page_a, const ls_cache *b, int32_t page_b,
                                int64_t n_tokens, ls_error *err);
/* Fills a free slot or page with NaN: whoever reads it shows it. */
ls_status ls_cache_poison_slot(const ls_cache *cache, int32_t slot, ls_error *err);
ls_status ls_cache_poison_page(const ls_cache *cache, int32_t page, ls_error *err);
/* LS_OK when the patterns behind all slots and pages stand; the error names layer, id and byte. Waits for the
 * device. */
ls_status ls_cache_check_guards(const ls_cache *cache, ls_error *err);
/* Gives a slot's memory back to the system, as far as whole system pages go; it is zero there afterwards. */
ls_status ls_cache_drop_slot(const ls_cache *cache, int32_t slot, ls_error *err);
/* The same for all of it, guards written again. */
ls_status ls_cache_drop(const ls_cache *cache, ls_error *err);
/* Gives the pools' memory back, addresses included: until ls_cache_restore, which makes them again as they were at
 * first, nothing may reach them. Waits. Either one twice changes nothing; a failed restore leaves them released. */
ls_status ls_cache_release(ls_cache *cache, ls_error *err);
ls_status ls_cache_restore(ls_cache *cache, ls_error *err);
/* Bytes of a slot and of a page, for planning. */
int64_t ls_slot_bytes(const ls_model_config *config, ls_dtype dtype, int64_t state_every);
int64_t ls_page_bytes(const ls_model_config *config, ls_dtype dtype, int64_t page_tokens);

#endif
