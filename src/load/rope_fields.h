/* The frequencies of rotations (op/rope.h) as config.json states them: "rope_theta" with "rope_scaling", or
 * "rope_parameters", which holds both. The formulas are those of transformers' modeling_rope_utils.py, in the same
 * float32 steps; its powers come from the machine's libm and may differ in the last bit, ours (num/exp64.h) do not.
 *
 * R columns of a head rotate: head_dim times partial_rotary_factor, rounded down. B = rope_theta; O =
 * original_max_position_embeddings, or max_position_embeddings without it. With float32 for j < R / 2, one rounding for
 * each operation, and binary64 where it is named, rounded to float32 once:
 *   p[j] = B^(2j / R), the quotient float32, the power binary64;  f[j] = 1 / p[j]
 *   default:  inv_freq = f
 *   linear:   inv_freq = f / factor
 *   llama3:   L = float32(2 pi) / f;  low and high are low_freq_factor and high_freq_factor
 *             inv_freq = f / factor where L > O / low, f where L < O / high, both borders binary64; elsewhere, with
 *             s = (O / L - low) / float32(high - low):  inv_freq = ((1 - s) * f) / factor + s * f
 *   yarn:     border(t) = R log(O / (t 2 pi)) / (2 log B);  a = floor(border(beta_fast)), b = ceil(border(beta_slow)),
 *             not rounded where truncate is false;  a is raised to 0, b lowered to R - 1, and 0.001 added to b where
 *             they are equal: all of that in binary64
 *             k = 1 - min(max((j - a) / float32(b - a), 0), 1)
 *             inv_freq = (1 / (factor * p)) * (1 - k) + (1 / p) * k
 *             beta_fast is 32 by default, beta_slow 1, factor max_position_embeddings / O
 * The scale of cosines and sines is 1; of yarn it is attention_factor, by default g(mscale) / g(mscale_all_dim) where
 * both are above 0, else g(1):  g(m) = 0.1 m log(factor) + 1, or 1 where factor <= 1, in binary64. */
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
