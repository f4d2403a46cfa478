/* regroup on the CPU: items are rows. */
#include <string.h>

#include "op/cpu/kernels.h"
#include "op/regroup.h"

LS_KERNEL_DEFINE(ls_regroup_kernel) {
    const ls_regroup_args *a = context;
    const int64_t width = ls_regroup_width(a);
    (void)scratch;
    for (int64_t row = begin; row < end; row++) {
        float *x = a->x + row * a->x_stride;
        for (int64_t p = 0, offset = 0; p < a->n_parts; offset += a->part[p++].width) {
            const ls_regroup_part *part = &a->part[p];
            const size_t bytes = (size_t)part->width * sizeof *x;
            float *rows = part->rows + row * part->stride;
            for (int64_t h = 0; h < a->heads; h++) {
                float *one = x + h * width + offset, *other = rows + h * part->width;
                memcpy(a->gathers ? one : other, a->gathers ? other : one, bytes);
            }
        }
    }
}
