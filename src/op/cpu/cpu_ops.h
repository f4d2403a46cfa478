/* The CPU's implementations of all ops: `ls_cpu_NAME` of every name in LS_OPS. The arguments have passed ls_NAME_check;
 * what lies in memory (tokens, row numbers, spans, targets) is checked here, before anything is written. */
#ifndef LS_OP_CPU_CPU_OPS_H
#define LS_OP_CPU_CPU_OPS_H

#include "op/adamw.h"
#include "op/attention_backward.h"
#include "op/backend.h"
#include "op/conv1d.h"
#include "op/cpu/kernels.h"
#include "op/delta.h"
#include "op/elementwise.h"
#include "op/elementwise_backward.h"
#include "op/gated_norm.h"
#include "op/gather.h"
#include "op/gemm_backward.h"
#include "op/gemm_groups.h"
#include "op/logprob.h"
#include "op/lora.h"
#include "op/mamba_step.h"
#include "op/moe_backward.h"
#include "op/moe_sigmoid.h"
#include "op/regroup.h"
#include "op/rmsnorm.h"
#include "op/rmsnorm_backward.h"
#include "op/rope.h"
#include "op/sample.h"
#include "op/scan.h"
#include "op/sigmoid_gate.h"
#include "op/ssd.h"
#include "op/support.h"
#include "op/top.h"
#include "op/weight.h"

#define OP(name) ls_status ls_cpu_##name(const ls_exec *exec, const ls_##name##_args *args, ls_error *err);
LS_OPS(OP)
#undef OP

ls_status ls_cpu_gemm_pack_plan(ls_gemm_weight *out, ls_dtype dtype, int64_t n, int64_t k, ls_error *err);

#endif
