/* The loss of a policy step and its gradient with respect to every token's log-probability and entropy.
 *
 * t is a token's log-probability under the weights being trained, o under those that the step began with, f under the
 * reference model; A is the sequence's advantage and w the token's correction weight (rl/correction.h), both
 * constants. rho = exp(b(t - o)), where b() bounds a log ratio to +-20, and the gradient of what is bounded is 0.
 *
 *   ppo        P = max(-A rho, -A min(max(rho, 1 - eps_low), 1 + eps_high)); where A < 0 and dual_clip c > 0,
 *              P = min(P, -A c)
 *   gspo       the same with rho = exp(b(mean of t - o over the sequence's counted tokens)) for all of its tokens
 *   cispo      P = -A min(rho, 1 + eps_high) t, that clipped rho being a constant (MiniMax-M1, arXiv:2506.13585, which
 *              clips above alone); eps_low is not read
 *   reinforce  P = -A t; rho is 1
 *
 * KL to the reference, d = f - t: k1 = -d, k2 = d^2 / 2, k3 = exp(b(d)) - 1 - b(d), times beta, as a term of the loss:
 * its gradient is that of the formula (so that of k1 is beta whatever the reference is; k2 and k3 pull towards it).
 * loss = sum over counted tokens of (w P + beta KL - entropy_bonus * entropy) / D, with D from the whole step:
 *   token     D = number of counted tokens of the step
 *   sequence  D = number of counted sequences of the step * number of counted tokens of this sequence
 *   length    D = number of counted sequences of the step * the constant `length`
 *
 * A token is counted where its mask is set and its sequence is kept, and, with mask_overlong, did not end by length. A
 * sequence is counted when one of its tokens is. ls_loss_count adds up both numbers, ls_loss works on any subset of the
 * step's sequences with the numbers of all: what it gives for a sequence depends on that sequence and those numbers
 * only. Arithmetic is binary64, tokens in index order, one division by D and one rounding to float32 for each
 * gradient. With t = o every rho is exactly 1, no token is clipped and k1, k2, k3 are exactly 0. */
#ifndef LS_RL_LOSS_H
#define LS_RL_LOSS_H

#include "json/json_out.h"
#include "measure/tokens.h"

typedef enum ls_policy_kind {
    LS_LOSS_POLICY_PPO,
    LS_LOSS_POLICY_GSPO,
    LS_LOSS_POLICY_CISPO,
    LS_LOSS_POLICY_REINFORCE
} ls_policy_kind;
typedef enum ls_loss_norm { LS_LOSS_NORM_TOKEN, LS_LOSS_NORM_SEQUENCE, LS_LOSS_NORM_LENGTH } ls_loss_norm;
typedef enum ls_kl_kind { LS_KL_K1, LS_KL_K2, LS_KL_K3 } ls_kl_kind;
/* In the order of the kinds, NULL at the end. */
extern const char *const ls_policy_names[];
extern const char *const ls_loss_norm_names[];
extern const char *const ls_kl_names[];

typedef struct ls_loss_options {
    ls_policy_kind policy;
    ls_loss_norm norm;
    ls_kl_kind kl;
    double eps_low, eps_high; /* 0 <= eps_low < 1, 0 <= eps_high */
    double dual_clip;         /* above 1; 0: none */
    double beta;              /* 0: no KL term, no reference */
    double entropy_bonus;     /* 0: no entropy term */
    double length;            /* of LS_LOSS_NORM_LENGTH */
    bool mask_overlong;
} ls_loss_options;

typedef struct ls_loss_totals {
    int64_t n_tokens, n_sequences;
} ls_loss_totals;

typedef struct ls_loss_input {
    ls_tokens tokens;
    const uint8_t *keep;     /* [n_sequences] or NULL: all */
    const uint8_t *overlong; /* [n_sequences], ended by length; NULL: none */
    const float *advantages; /* [n_sequences] */
    const float *logprobs;   /* t [tokens] */
    const float *old;        /* o [tokens]; NULL for reinforce alone */
    const float *reference;  /* f [tokens]; NULL when beta is 0 */
    const float *weights;    /* w [tokens]; NULL: 1 */
    const float *entropy;    /* [tokens]; NULL when entropy_bonus is 0 */
} ls_loss_input;

/* What one sequence adds to the measures. */
typedef struct ls_loss_sums {
    int64_t n_tokens, clip_low, clip_high, clip_dual;
    double policy, kl, entropy;         /* its parts of the loss, divided; the loss is their sum */
    double ratio, ratio_min, ratio_max; /* rho */
    double old_k1, old_k2, old_k3;      /* of d = t - o: -d, d^2 / 2, exp(b(d)) - 1 - b(d) */
    double reference_kl, token_entropy; /* of the chosen kind; NaN where there is no reference or entropy */
} ls_loss_sums;

typedef struct ls_loss_metrics {
    int64_t n_tokens, n_sequences;
    double loss, policy_loss, kl_loss, entropy_loss;
    double clip_fraction, clip_low, clip_high, clip_dual; /* fractions of the tokens; the first is any of them */
    double ratio_mean, ratio_min, ratio_max;
    double old_k1, old_k2, old_k3, reference_kl, entropy; /* means over tokens */
} ls_loss_metrics;

ls_status ls_loss_options_check(const ls_loss_options *options, ls_error *err);

/* Adds the counted tokens and sequences of this subset; advantages and what follows them are not read. */
void ls_loss_count(ls_loss_totals *totals, const ls_loss_input *input, const ls_loss_options *options);

/* d_logprob[tokens] = d loss / d t and d_entropy[tokens] (may be NULL) = d loss / d entropy, +0 for tokens that are not
 * counted; sums[n_sequences]. A counted token with a number that is not finite is an error that names it. */
ls_status ls_loss(float *d_logprob, float *d_entropy, ls_loss_sums *sums, const ls_loss_input *input,
                  const ls_loss_totals *totals, const ls_loss_options *options, ls_error *err);

/* The step's measures from the sums of all of its sequences, in index order. Without a token they are NaN, the loss 0.
 */
void ls_loss_measure(ls_loss_metrics *out, const ls_loss_sums *sums, int64_t n_sequences);
/* One object: our names, and under "aliases" those of other trainers. */
void ls_loss_metrics_write(ls_json_out *json, const char *key, const ls_loss_metrics *metrics, ls_policy_kind policy);

#endif
