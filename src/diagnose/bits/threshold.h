/* From a threshold to its cause: an id from which on a pool is damaged is compared with the ids at which id * stride
 * leaves 31 or 32 bits, for every pooled tensor and unit. */
#ifndef LS_DIAGNOSE_BITS_THRESHOLD_H
#define LS_DIAGNOSE_BITS_THRESHOLD_H

#include "base/status.h"
#include "load/model_config.h"

/* What a threshold counts. */
typedef enum ls_bounded {
    LS_BOUNDED_SLOT = 0,
    LS_BOUNDED_PAGE,
    LS_BOUNDED_CHUNK,
    LS_BOUNDED_BATCH,
    LS_BOUNDED_LENGTH,
    LS_BOUNDED_REQUESTS
} ls_bounded;
const char *ls_bounded_name(ls_bounded what); /* "slot" */

/* A tensor with one entry for each id. */
typedef struct ls_pooled_tensor {
    const char *name;   /* "Mamba scan state" */
    ls_bounded id;      /* slot or page */
    int64_t stride;     /* bytes between entries */
    int64_t elem_bytes; /* of its elements */
    int64_t n;          /* entries */
} ls_pooled_tensor;

enum { LS_POOLED_MAX = 4 };

/* The pooled tensors of a model whose slots and pages lie this far apart. */
int64_t ls_pooled_tensors(ls_pooled_tensor out[LS_POOLED_MAX], const ls_model_config *config, ls_dtype dtype,
                          int64_t slot_stride, int64_t n_slots, int64_t page_stride, int64_t n_pages);

/* One expression that can wrap: id * stride in units of elements or bytes, in a signed or unsigned 32-bit integer. */
typedef struct ls_wrap {
    const ls_pooled_tensor *tensor;
    bool in_bytes, is_signed;
    int64_t stride;    /* in its unit */
    int64_t first_bad; /* the first id whose product does not fit */
    double share;      /* of the ids, from first_bad on */
    bool fits;         /* first_bad is the threshold that was seen */
} ls_wrap;

enum { LS_WRAPS_MAX = 4 * LS_POOLED_MAX };

/* All expressions, those next to the threshold first; returns their number. Only those on ids of this name can fit. */
int64_t ls_threshold_invert(ls_wrap out[LS_WRAPS_MAX], const ls_pooled_tensor *tensors, int64_t n_tensors,
                            ls_bounded id, int64_t threshold);
/* "uint32 slot * stride in elements" */
void ls_wrap_describe(char *text, size_t bytes, const ls_wrap *wrap);

#endif
