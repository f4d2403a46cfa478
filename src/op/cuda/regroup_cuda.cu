/* regroup on the GPU: a thread copies a unit, which is four neighbouring columns where every width, stride and address
 * allows it, else one. */
#include "op/cuda/cuda_ops.h"
#include "op/cuda/elements_cuda.h"
#include "op/regroup.h"

#define THREADS 256

typedef struct regroup_params {
    ls_regroup_args a; /* widths and strides in units */
    int64_t width, row_units;
} regroup_params;

template <typename UNIT>
static __global__ void __launch_bounds__(THREADS) regroup_kernel(const __grid_constant__ regroup_params p) {
    ls_cuda_begin();
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    const int64_t row = i / p.row_units, column = i % p.row_units, head = column / p.width;
    if (row >= p.a.rows) return;
    UNIT *const x = (UNIT *)p.a.x + row * p.a.x_stride + column;
    int64_t in = column - head * p.width;
#pragma unroll
    for (int part = 0; part < LS_REGROUP_PARTS_MAX; part++) {
        if (part >= p.a.n_parts) return;
        const ls_regroup_part *const to = &p.a.part[part];
        if (in < to->width) {
            UNIT *const other = (UNIT *)to->rows + row * to->stride + head * to->width + in;
            if (p.a.gathers)
                *x = *other;
            else
                *other = *x;
            return;
        }
        in -= to->width;
    }
}

static bool in_fours(const ls_regroup_args *a) {
    bool fours = ls_four_fits(a->x, LS_F32) && a->x_stride % 4 == 0;
    for (int64_t p = 0; p < a->n_parts; p++)
        fours =
            fours && ls_four_fits(a->part[p].rows, LS_F32) && a->part[p].stride % 4 == 0 && a->part[p].width % 4 == 0;
    return fours;
}

ls_status ls_cuda_regroup(const ls_exec *exec, const ls_regroup_args *a, ls_error *err) {
    const bool fours = in_fours(a);
    const int64_t columns = fours ? 4 : 1;
    ls_cuda_operand operands[LS_REGROUP_PARTS_MAX + 1] = {{"x", a->x, 4, a->rows == 0}};
    ls_index index[LS_REGROUP_PARTS_MAX + 1] = {
        {LS_WIDTH_I64, {{{"row", a->rows}, {"x stride", a->x_stride}, {"element", 4}}}}};
    regroup_params p = {};
    for (int64_t part = 0; part < a->n_parts; part++) {
        operands[part + 1] = {"part", a->part[part].rows, 4, a->rows == 0};
        index[part + 1] = {LS_WIDTH_I64, {{{"row", a->rows}, {"stride", a->part[part].stride}, {"element", 4}}}};
    }
    LS_CUDA_TRY(ls_cuda_check("regroup", exec, operands, a->n_parts + 1, LS_WORKSPACE_HEAD, err));
    if (a->rows == 0) return LS_OK;
    p.a = *a;
    p.a.x_stride /= columns;
    for (int64_t part = 0; part < a->n_parts; part++) {
        p.a.part[part].stride /= columns;
        p.a.part[part].width /= columns;
    }
    p.width = ls_regroup_width(&p.a);
    p.row_units = p.width * a->heads;
    const int64_t units = ls_launch_blocks(a->rows, p.row_units, 1);
    const ls_launch launch = {"regroup",     {units / THREADS + (units % THREADS != 0), 1, 1}, THREADS, 0, index,
                              a->n_parts + 1};
    return ls_cuda_launch(exec, &launch,
                          fours ? (const void *)regroup_kernel<float4> : (const void *)regroup_kernel<float>, &p, err);
}
