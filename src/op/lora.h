/* Low-rank adapters of a matrix (Hu et al. 2021, arXiv:2106.09685) as merged weights: W = W0 + s B A.
 *
 *   merge       out[n][k] = R(fma(s, p, w0[n][k])), p = chain_j fma(b[n][j], a[j][k], p)
 *               w0 widens exactly; R is one rounding to nearest even to the type that w0 is stored in, none for f32
 *   gradients   da[j][k] = s * (chain_n fma(b[n][j], dw[n][k], chain))
 *               db[n][j] = s * (chain_k fma(dw[n][k], a[j][k], chain))
 * Chains ascend from +0 in float32; R is the identity to the gradients. All matrices are rows without gaps. */
#ifndef LS_OP_LORA_H
#define LS_OP_LORA_H

#include "base/status.h"
#include "lockstep/lockstep.h"

#define LS_LORA_RANK_MAX 1024

typedef struct ls_lora_merge_args {
    const void *w0;     /* [n][k] of dtype */
    const float *a, *b; /* [rank][k], [n][rank] */
    void *out;          /* [n][k] of dtype; may be w0 */
    ls_dtype dtype;
    int64_t n, k, rank;
    float scale; /* s */
} ls_lora_merge_args;

typedef struct ls_lora_backward_args {
    const float *dw;    /* [n][k] */
    const float *a, *b; /* [rank][k], [n][rank] */
    float *da, *db;     /* the same, written */
    int64_t n, k, rank;
    float scale;
} ls_lora_backward_args;

ls_status ls_lora_merge_check(const ls_lora_merge_args *args, ls_error *err);
ls_status ls_lora_backward_check(const ls_lora_backward_args *args, ls_error *err);

#endif
