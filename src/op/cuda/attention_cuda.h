/* What the kernels of attention share on the host's side. */
#ifndef LS_OP_CUDA_ATTENTION_CUDA_H
#define LS_OP_CUDA_ATTENTION_CUDA_H

#include "dev/cuda.h"
#include "op/attention.h"

/* On a device of sm_90: the spans of a call whose keys and values lie in their pages already, for calls that are mostly
 * one token a span; `taken` is whether types, sizes and pages are those that it takes. */
ls_status ls_attention_tokens(const ls_exec *exec, const ls_attention_args *args, const ls_fault *fault, bool *taken,
                              ls_error *err);

#endif
