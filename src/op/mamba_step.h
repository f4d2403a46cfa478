/* One token of each sequence through a Mamba-1 mixer, from what in_proj reads to what out_proj reads: six ops as one
 * call.
 *
 * The bits of scan.out and of both pools are those of gemm(in_proj), conv1d(conv), gemm(x_proj), rmsnorm_parts(norms),
 * gemm(dt_proj), scan(scan), called one after the other. What lies between them (in_proj.out, conv.y and conv.rounded,
 * x_proj.out, what the norms write, dt_proj.out) is working memory of the call, whose content afterwards is undefined:
 * a back end may keep it to itself. */
#ifndef LS_OP_MAMBA_STEP_H
#define LS_OP_MAMBA_STEP_H

#include "op/conv1d.h"
#include "op/gemm.h"
#include "op/rmsnorm.h"
#include "op/scan.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Each reads what those before it wrote: conv.x in in_proj.out, x_proj.x in conv.y or conv.rounded, norms of the three
 * parts dt, B and C of x_proj.out, dt_proj.x the first of them, scan.b and scan.cc the other two, scan.dt_raw in
 * dt_proj.out. conv and scan have the same spans, of at most one row, and pools of as many entries. */
typedef struct ls_mamba_step_args {
    ls_gemm_args in_proj;
    ls_conv1d_args conv;
    ls_gemm_args x_proj;
    ls_rmsnorm_parts_args norms;
    ls_gemm_args dt_proj;
    ls_scan_args scan;
} ls_mamba_step_args;

ls_status ls_mamba_step_check(const ls_mamba_step_args *args, ls_error *err);

#ifdef __cplusplus
}
#endif
#endif
