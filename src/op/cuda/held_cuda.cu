/* write_held on the GPU: a block is one head of one span, and most find nothing to do. */
#include "dev/device.h"
#include "op/cuda/cuda_ops.h"
#include "op/cuda/elements_cuda.h"
#include "op/cuda/held_cuda.h"

#define THREADS 256

typedef struct write_params {
    ls_write_held_args a;
    ls_held held;
    bool with_rows;
    const ls_fault *fault;
} write_params;

static __global__ void __launch_bounds__(THREADS) write_kernel(const __grid_constant__ write_params p) {
    ls_cuda_begin();
    const ls_held *h = &p.held;
    const ls_span *span = &p.a.spans[blockIdx.x / h->heads];
    const int64_t head = blockIdx.x % h->heads, each = h->rows * h->cols;
    if (p.fault->code != LS_FAULT_NONE || span->slot < 0 || (p.with_rows && span->n_rows == 0)) return;
    float *entry = (float *)ls_pool_at(&p.a.held, span->slot);
    float *s = (float *)ls_pool_at(&p.a.state, span->slot) + head * each;
    const int64_t n = span->pos > 0 ? ls_held_count(h, entry, head) : 0;
    for (int64_t i = threadIdx.x; i < each && n > 0; i += THREADS) {
        float v = s[i];
        for (int64_t t = 0; t < n; t++) {
            float *record = ls_held_record(h, entry, t);
            const float factor = *ls_held_factor(h, record, head);
            const float own = ls_held_own(h, record, head)[i % h->cols];
            const float shared = ls_held_shared(h, record, head)[i / h->cols];
            v = ls_fma(own, shared, factor != 1.0f ? ls_mul(v, factor) : v);
        }
        s[i] = v;
    }
    __syncthreads();
    if (threadIdx.x == 0) ls_held_set_count(entry, head, 0);
}

ls_status ls_held_write(const char *op, const ls_exec *exec, const ls_write_held_args *a, bool with_rows,
                        const ls_fault *fault, ls_error *err) {
    const ls_index index[] = {
        {LS_WIDTH_I64, {{{"slot", a->state.n_entries}, {"state stride in bytes", a->state.stride}}}},
        {LS_WIDTH_I64, {{{"slot", a->held.n_entries}, {"held stride in bytes", a->held.stride}}}}};
    const ls_launch launch = {
        op, {ls_launch_blocks(a->n_spans, a->n_heads, 1), 1, 1}, THREADS, 0, index, sizeof index / sizeof index[0]};
    write_params p = {*a, ls_held_make(a->state_every, a->n_heads, a->n_groups, a->state_rows, a->state_cols),
                      with_rows, fault};
    LS_CUDA_TRY(ls_launch_check(&launch, LS_CUDA_SHARED_MAX, err));
    return ls_cuda_launch(exec, &launch, (const void *)write_kernel, &p, err);
}

ls_status ls_cuda_write_held(const ls_exec *exec, const ls_write_held_args *a, ls_error *err) {
    const ls_cuda_operand operands[] = {{"state", a->state.base, 16, a->state.n_entries == 0},
                                        {"held", a->held.base, 16, a->held.n_entries == 0},
                                        {"spans", a->spans, 8, a->n_spans == 0}};
    ls_fault *fault;
    LS_CUDA_TRY(ls_cuda_check("write_held", exec, operands, (int64_t)(sizeof operands / sizeof operands[0]),
                              LS_WORKSPACE_HEAD, err));
    if (a->n_spans == 0) return LS_OK;
    LS_CUDA_TRY(ls_cuda_fault_begin("write_held", exec, &fault, err));
    ls_span_check check = ls_span_check_of(a, a->rows, a->state.n_entries, fault);
    LS_CUDA_TRY(a->spans_checked ? ls_cuda_checked_before("write_held", exec, err)
                                 : ls_cuda_check_spans("write_held", exec, &check, err));
    return ls_held_write("write_held", exec, a, false, fault, err);
}
