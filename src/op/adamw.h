/* The optimizer: AdamW (Loshchilov & Hutter 2019, arXiv:1711.05101) on float32 master weights, and the norm of a
 * gradient.
 *
 * adamw, every element on its own, one float32 rounding for each operation:
 *   g = grad * scale
 *   m = fma(beta1, m, rest1 * g)
 *   v = fma(beta2, v, (rest2 * g) * g)
 *   d = (m * debias1) / fma(sqrt(v), debias2, eps)
 *   w = fma(-lr, fma(decay, w, d), w);  value = w rounded to its type (weight_cast of op/weight.h), where it is wanted
 * m and v as on the right are widened from the type that they are stored in, those on the left enter d and w as they
 * are, and only what is stored is rounded: not at all in f32. In bf16, whose half unit is more than a step with beta2
 * near 1 changes v by, they are rounded by chance, so that the mean of what is stored is what was computed:
 *   the 32 bits of the value + r, of which the low 16 are cut off
 *   r: 16 bits of a word of Philox4x32-10, the low ones for m, the high ones for v: element e, counted over all
 *      parameters, has word e % 4 of (key = seed; counter = e / 4 low, e / 4 high, t low, "mome" xor t high)
 *   from the largest finite bf16 on, 0x7F7F, r is 0: no finite value becomes infinite, infinities stay, NaN is 0x7FC0
 * What bf16 holds stays as it is, +-0 and subnormals included; v is never negative.
 * Its factors are computed in binary64 and rounded to float32 once: rest1 = 1 - beta1, debias1 = 1 / (1 - beta1^t),
 * rest2 = 1 - beta2, debias2 = 1 / sqrt(1 - beta2^t), t being the step, from 1 on. beta^t: p = 1; for the bits of t
 * from the lowest on: p = p * b where the bit is set, b = b * b, b starting as beta.
 *
 * squares: a tensor is cut into blocks of 65,536 elements; the sum of squares of a block is the 256-chain tree of
 *   num/sum.h, each chain fma(x, x, chain), in float32; blocks widen to binary64 and add in ascending order to what is
 *   there. Tensors follow one another in the caller's order.
 * scale: in binary64, norm = sqrt(squares) / count; scale = 1 / count, where norm > max_norm (max_norm / norm) / count,
 *   rounded to float32 once. count is the number of tokens that the loss is a mean over. */
#ifndef LS_OP_ADAMW_H
#define LS_OP_ADAMW_H

#include "base/status.h"
#include "lockstep/lockstep.h"

typedef struct ls_adamw_options {
    double lr, beta1, beta2, eps, decay;
} ls_adamw_options;

typedef struct ls_adamw_factors {
    float lr, beta1, rest1, debias1, beta2, rest2, debias2, eps, decay;
} ls_adamw_factors;

/* lr and decay are finite and not negative, betas in [0, 1), eps is positive, all of them as float32 too; step is at
 * least 1. The error names the value. */
ls_status ls_adamw_factors_make(ls_adamw_factors *out, const ls_adamw_options *options, int64_t step, ls_error *err);

/* What moments in bf16 are rounded by. */
typedef struct ls_adamw_rounding {
    uint64_t seed;
    int64_t step;  /* t */
    int64_t first; /* number of the call's first element over all parameters */
} ls_adamw_rounding;

/* A tensor of several that one call moves: the elements from `begin` to where the next one begins. */
typedef struct ls_adamw_part {
    int64_t begin;
    void *value; /* of its first element; NULL: not wanted */
    ls_dtype value_dtype;
    bool decays; /* false: its decay is 0 */
} ls_adamw_part;

typedef struct ls_adamw_args {
    float *w;                   /* [n], updated */
    void *m, *v;                /* [n] of `moments`, updated; they begin at +0; the host's too (ls_memory_pin) */
    ls_dtype moments;           /* f32 or bf16 */
    ls_adamw_rounding rounding; /* read for bf16 */
    const float *grad;          /* [n] */
    float scale;
    ls_adamw_factors factors;
    int64_t n;
    void *value; /* [n] of value_dtype; NULL: not wanted */
    ls_dtype value_dtype;
    /* Device memory: what the n elements are, so that one call takes all tensors. The first begins at 0 and they
     * ascend; none is empty; value_dtype of each is f32, bf16 or f16. NULL: one tensor, whose value is above. */
    const ls_adamw_part *parts;
    int64_t n_parts;
} ls_adamw_args;

/* No array may overlap another. NaN and infinity of a gradient reach the weight and the moments of their own element
 * alone. */
ls_status ls_adamw_check(const ls_adamw_args *args, ls_error *err);

/* Elements of a block of the sum of squares. */
#define LS_SQUARES_BLOCK 65536

/* Elements [begin, begin + n) of x; n at most LS_SQUARES_BLOCK. */
typedef struct ls_squares_range {
    int64_t begin, n;
} ls_squares_range;

typedef struct ls_squares_args {
    const float *x; /* [n] */
    int64_t n;
    float *blocks; /* [ls_squares_blocks(n)], or [n_ranges], written: the sum of each block */
    /* Device memory: the blocks of several tensors in x, so that one call takes them all. NULL: x is one tensor. */
    const ls_squares_range *ranges;
    int64_t n_ranges;
} ls_squares_args;

ls_status ls_squares_check(const ls_squares_args *args, ls_error *err);
int64_t ls_squares_blocks(int64_t n); /* n is not negative */
/* squares + blocks[0] + blocks[1] + .., on the host. */
double ls_squares_add(double squares, const float *blocks, int64_t n_blocks);

/* norm may be NULL. max_norm +inf clips nothing. Squares that are not finite are an error, before any weight changes.
 */
ls_status ls_gradient_scale(float *scale, double *norm, double squares, double count, double max_norm, ls_error *err);

#endif
