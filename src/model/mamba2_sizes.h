/* Sizes of Mamba-2 mixers as configurations give them. Private to src/model. */
#ifndef LS_MODEL_MAMBA2_SIZES_H
#define LS_MODEL_MAMBA2_SIZES_H

#include "base/status.h"

/* Each at least 1; the names of fields are for error sentences. */
typedef struct ls_mamba2_sizes {
    int64_t hidden, n_heads, head_dim, n_groups, n_states, d_conv;
    const char *heads_name, *head_dim_name, *states_name;
} ls_mamba2_sizes;

/* Groups divide the heads, rows and sizes of all tensors fit the types that hold them, and the scan is built for
 * them. */
ls_status ls_mamba2_check_sizes(const ls_mamba2_sizes *sizes, ls_error *err);

#endif
