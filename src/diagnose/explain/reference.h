/* A third opinion: the model's forward in float64, with the oldest order of sums there is, and with one thing changed
 * on demand. What a foreign stack records is compared with what it would record if it had this fault or that one: the
 * fault whose values it has, to its rounding, is the one.
 *
 * Meant for small checkpoints: weights are held as float64 and nothing is blocked or threaded. */
#ifndef LS_DIAGNOSE_EXPLAIN_REFERENCE_H
#define LS_DIAGNOSE_EXPLAIN_REFERENCE_H

#include "load/model_config.h"

/* Weights, of all layers or of one. */
typedef enum ls_weight_change {
    LS_CHANGED_SAME = 0,
    LS_CHANGED_BF16,
    LS_CHANGED_F16,
    LS_CHANGED_FP8,         /* e4m3, one scale a row */
    LS_CHANGED_FP8_TENSOR,  /* e4m3, one scale a matrix */
    LS_CHANGED_INT8,        /* one scale a row */
    LS_CHANGED_INT8_TENSOR, /* one scale a matrix */
    LS_CHANGED_INT4,        /* one scale a row */
    LS_CHANGED_INT4_GROUPS, /* one scale each 32 values */
    LS_CHANGED_E4M3,        /* no scale */
    LS_CHANGED_E5M2,        /* no scale */
    LS_CHANGED_WIDE_FP8,    /* e4m3 with any exponent, as with a scale that is a power of two */
    LS_CHANGED_OF_LAYER,    /* those of layer `other` */
    LS_CHANGED_NO_MIXER,
    LS_CHANGED_NO_FFN,
    LS_CHANGED_NORM_ONES,         /* the input norm's */
    LS_CHANGED_FFN_NORM_ONES,     /* the feed-forward's norm */
    LS_CHANGED_GATE_UP,           /* gate and up are exchanged */
    LS_CHANGED_IN_HALVES,         /* so are the halves of in_proj */
    LS_CHANGED_KEYS_VALUES,       /* so are keys and values */
    LS_CHANGED_B_C,               /* so are the rows of B and C */
    LS_CHANGED_EXPERTS_TURNED,    /* each expert is the next one */
    LS_CHANGED_EXPERTS_EXCHANGED, /* those of the numbers other / E and other % E */
    LS_CHANGED_FFN_OF_LAYER,      /* the feed-forward is that of layer `other` */
    LS_CHANGED_MIXER_OF_LAYER
} ls_weight_change;

/* What is rounded, to which type. */
typedef enum ls_rounding {
    LS_ROUND_NONE = 0,
    LS_ROUND_BF16,
    LS_ROUND_F16,
    LS_ROUND_FP8,  /* e4m3 */
    LS_ROUND_E5M2, /* e5m2 */
    LS_ROUND_INT8, /* with a scale alone */
    LS_ROUND_INT4  /* likewise */
} ls_rounding;

/* What is lost where a sequence is cut. A set. */
enum { LS_LOSE_WINDOW = 1, LS_LOSE_STATE = 2, LS_LOSE_KEYS = 4 };

/* Of a convolution window that is not lost as a whole where a sequence is cut. */
typedef enum ls_window_kept {
    LS_WINDOW_LOST = 0,
    LS_WINDOW_TURNED, /* its inputs in another order */
    LS_WINDOW_LATE,   /* earlier inputs */
    LS_WINDOW_NEWEST, /* without the oldest */
    LS_WINDOW_OLDEST  /* without the newest */
} ls_window_kept;

/* Everything 0: the model as it is. */
typedef struct ls_edit {
    ls_weight_change weights;
    int32_t layer, other; /* layer -1: all */
    bool everything;      /* `weights` is of what enters no matrix product as well: norms, biases, embedding, .. */
    ls_weight_change head_weights, embed_weights;
    ls_rounding activations; /* of what enters a matrix product */
    ls_rounding head_input, logits, logprobs, keys;
    int32_t keys_per;      /* what has a scale of its own: 0 nothing, 1 a token's head, 2 a token, 3 each 32 values */
    int32_t keys_which;    /* of these: 0 both, 1 keys, 2 values */
    bool rope, rope_pairs; /* on queries and keys, halves or neighbours */
    double rope_base;      /* 0: 10,000 */
    bool no_inner_norms, router_renormalised, no_d, gelu;
    bool no_conv_silu, no_conv_bias, no_dt_bias, dt_bias_twice, turned_taps, eps_outside;
    bool heads_interleaved;                                 /* head h reads the keys h modulo their number */
    bool sink;                                              /* attention may go to a key of logit 0 and value 0 */
    int32_t experts_more;                                   /* top-k plus so many */
    double attention_scale, norm_eps, softcap, embed_scale; /* 0: as it is; scale multiplies the model's own */
    double attention_cap;                                   /* of the logits of attention; 0: none */
    double attention_slope;                                 /* per token of distance, taken off its logits */
    double attention_log_base;                              /* its logits times log(context + 1) to this base; 0: not */
    bool slope_by_head;                                     /* head h has 2^(-8 (h + 1) / H) times as much */
    bool sees_ahead;                                        /* within the prompt */
    int64_t n_prompt;                                       /* its length, for the above */
    double mixer_scale, ffn_scale, skip_scale;              /* of what a layer adds, of D; 0: as it is */
    double decay_scale;                                     /* of A, the rate at which states fade; 0: as it is */
    int64_t window;                                         /* attention sees so many tokens; 0: all */
    int64_t first_keys;                                     /* attention sees no key behind so many; 0: all */
    int64_t lost_every, lost_at; /* nor keys whose position modulo `every` is `at`, but the token's own; 0: all */
    bool own_too;                /* the two above hold for a token's own key as well */
    bool own_unseen;             /* a token does not see its own key, but the first one */
    int64_t cut_every, cut_from,
        cut_before; /* a sequence is cut in front of the multiples of `every` in [from, before);
                                                every 0: nowhere; before 0: to its end */
    int32_t lose;
    ls_window_kept window_kept; /* what a window is in place of lost, by so many places */
    int64_t window_by;
    int32_t reset_token; /* behind it nothing is remembered of what came before, minus 1; 0: none */
} ls_edit;

typedef struct ls_reference ls_reference;

/* The checkpoint of this configuration, which is copied. LS_ERR_UNSUPPORTED for more than parameters_max. */
ls_status ls_reference_create(ls_reference **out, const char *directory, const ls_model_config *config,
                              int64_t parameters_max, ls_error *err);
void ls_reference_free(ls_reference *reference);
const ls_model_config *ls_reference_config(const ls_reference *reference);
/* logits [n][V] behind each of tokens [n]. edit may be NULL. A change that the model has no place for leaves it as it
 * is. */
ls_status ls_reference_logits(ls_reference *reference, const ls_edit *edit, const int32_t *tokens, int64_t n,
                              double *logits, ls_error *err);
/* x rounded, ties to even. FP8 without a scale. */
double ls_rounded(double x, ls_rounding to);

#endif
