/* Sizes of Mamba-2 mixers as configurations give them. Private to src/model. */
#ifndef LS_MODEL_MAMBA2_SIZES_H
#define LS_MODEL_MAMBA2_SIZES_H

#include "base/status.h"

struct json_t;

/* The channels of a head as "mamba_d_head" says them: `inner` over n_heads, which divides it, by default. */
ls_status ls_mamba2_read_head_dim(int64_t *out, const struct json_t *config, int64_t n_heads, int64_t inner,
                                  ls_error *err);

/* Each at least 1; the names of fields are for error sentences. */
typedef struct ls_mamba2_sizes {
    int64_t hidden, n_heads, head_dim, n_groups, n_states, d_conv;
    const char *heads_name, *head_dim_name, *states_name;
} ls_mamba2_sizes;

/* Groups divide the heads, rows and sizes of all tensors fit the types that hold them, and the scan is built for
 * them. */
ls_status ls_mamba2_check_sizes(const ls_mamba2_sizes *sizes, ls_error *err);

#endif
