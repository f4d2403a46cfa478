/* The frequencies of rotations (op/rope.h) as config.json states them: "rope_theta" with "rope_scaling", or
 * "rope_parameters", which holds both. The formulas are those of transformers' modeling_rope_utils.py, in the same
 * float32 steps; its powers come from the machine's libm and may differ in the last bit, ours (num/exp64.h) do not. */
#ifndef LS_LOAD_ROPE_FIELDS_H
#define LS_LOAD_ROPE_FIELDS_H

#include "load/model_config.h"

/* Names of the fields that are read here, for an architecture's list of special ones; they end with NULL. */
#define LS_ROPE_FIELDS "rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor"

/* Types: default, linear, llama3, yarn. Those whose frequencies depend on a sequence's length (dynamic, longrope) are
 * refused by name: keys that are cached would be of another rotation than those that follow. head_dim is even. */
ls_status ls_rope_fields_read(ls_rope_config *out, const struct json_t *config, int64_t head_dim, double default_theta,
                              int64_t positions_max, ls_error *err);
/* Of an architecture whose files may say which share of a head's columns rotate, the first ones. */
typedef struct ls_rope_family {
    double theta, share;      /* where the file does not say them */
    const char *const *inert; /* parameters that change nothing for text; ends with NULL */
} ls_rope_family;
/* The columns that rotate are head_dim times the share, rounded down, which is even. */
ls_status ls_rope_fields_read_share(ls_rope_config *out, const struct json_t *config, int64_t head_dim,
                                    const ls_rope_family *family, int64_t positions_max, ls_error *err);
/* The same for heads of which half the columns rotate, the first ones: partial_rotary_factor is 0.5 where it is given.
 * Half of head_dim is even. */
ls_status ls_rope_fields_read_half(ls_rope_config *out, const struct json_t *config, int64_t head_dim,
                                   double default_theta, int64_t positions_max, ls_error *err);

#endif
