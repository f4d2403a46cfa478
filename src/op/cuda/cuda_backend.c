/* CUDA as a back end of the flat ABI: the ops that have a reading. */
#include "op/backend.h"
#include "op/cuda/cuda_ops.h"

#define OP(name) .name = ls_cuda_##name,
const ls_backend_table ls_backend_table_cuda = {.title = "cuda", LS_CUDA_OPS(OP)};
#undef OP
