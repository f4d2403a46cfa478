/* What the files of attention's forward share. */
#ifndef LS_OP_CUDA_ATTENTION_CUDA_H
#define LS_OP_CUDA_ATTENTION_CUDA_H

#include "dev/cuda.h"
#include "op/attention.h"
#include "op/rope.h"

/* Bytes that move as one. */
template <int BYTES>
struct ls_piece;
template <>
struct ls_piece<2> {
    typedef uint16_t type;
};
template <>
struct ls_piece<4> {
    typedef uint32_t type;
};
template <>
struct ls_piece<8> {
    typedef uint2 type;
};
template <>
struct ls_piece<16> {
    typedef uint4 type;
};
template <>
struct ls_piece<32> {
    struct __align__(16) type {
        uint4 word[2];
    };
};

/* On a device of sm_90: the spans of a call whose keys and values lie in their pages already, for calls that are mostly
 * one token a span; `taken` is whether types, sizes and pages are those that it takes. */
ls_status ls_attention_tokens(const ls_exec *exec, const ls_attention_args *args, const ls_fault *fault, bool *taken,
                              ls_error *err);

/* The profile mma16, whose keys and values lie in their pages already, too, or which makes them and its queries of
 * `heads`; refuses what is not of sm_90. */
ls_status ls_attention_mma16(const ls_exec *exec, const ls_attention_args *args, const ls_rope_args *heads,
                             const ls_fault *fault, ls_error *err);
/* What the host can see of op rope's memory (rope_cuda.cu). */
ls_status ls_cuda_rope_check(const ls_exec *exec, const ls_rope_args *args, ls_error *err);
/* Whether it can make them: of heads that turn whole, by a half of their columns, and can be read in fours. */
bool ls_attention_mma16_makes(const ls_attention_args *args, const ls_rope_args *heads);

/* The same of the gradient. */
ls_status ls_attention_backward_mma16(const ls_exec *exec, const ls_attention_backward_args *args,
                                      const ls_fault *fault, ls_error *err);

#endif
