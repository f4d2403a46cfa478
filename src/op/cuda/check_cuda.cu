/* Checks on the device: one block looks at every row, span or offset and keeps the lowest bad one. */
#include "op/cuda/check_cuda.h"

#define THREADS 1024

template <typename CHECK>
static __device__ __forceinline__ void check_all(const CHECK *c, int64_t n) {
    const int64_t bad = ls_first_bad<THREADS>(c, n);
    if (threadIdx.x == 0 && bad != INT64_MAX && c->fault->code == LS_FAULT_NONE) *c->fault = ls_fault_at(c, bad);
}

static __global__ void __launch_bounds__(THREADS) check_rows(const __grid_constant__ ls_row_check c) {
    ls_cuda_begin();
    check_all(&c, c.rows);
}

static __global__ void __launch_bounds__(THREADS) check_spans(const __grid_constant__ ls_span_check c) {
    ls_cuda_begin();
    check_all(&c, c.n_spans);
}

static __global__ void __launch_bounds__(THREADS) check_keys(const __grid_constant__ ls_key_check c) {
    ls_cuda_begin();
    check_all(&c, c.n_spans);
}

static __global__ void __launch_bounds__(THREADS) check_offsets(const __grid_constant__ ls_offset_check c) {
    ls_cuda_begin();
    check_all(&c, c.n);
}

/* Waits for the verdict where the caller keeps no record. */
static ls_status launch(const char *op, const ls_exec *exec, const void *kernel, void *check, const ls_fault *fault,
                        ls_error *err) {
    const ls_launch contract = {op, {1, 1, 1}, THREADS, 0, NULL, 0};
    const ls_status status = ls_cuda_launch(exec, &contract, kernel, check, err);
    return status != LS_OK ? status : ls_cuda_fault_end(op, exec, fault, err);
}

ls_status ls_cuda_check_rows(const char *op, const ls_exec *exec, ls_row_check *check, ls_error *err) {
    return launch(op, exec, (const void *)check_rows, check, check->fault, err);
}

ls_status ls_cuda_check_spans(const char *op, const ls_exec *exec, ls_span_check *check, ls_error *err) {
    return launch(op, exec, (const void *)check_spans, check, check->fault, err);
}

ls_status ls_cuda_check_keys(const char *op, const ls_exec *exec, ls_key_check *check, ls_error *err) {
    return launch(op, exec, (const void *)check_keys, check, check->fault, err);
}

ls_status ls_cuda_check_offsets(const char *op, const ls_exec *exec, ls_offset_check *check, ls_error *err) {
    return launch(op, exec, (const void *)check_offsets, check, check->fault, err);
}

ls_status ls_cuda_checked_before(const char *op, const ls_exec *exec, ls_error *err) {
    if (exec->fault != NULL) return LS_OK;
    return LS_FAIL(err, LS_ERR_ARG, "%s: spans_checked needs the fault record of the call that checked them", op);
}
