/* Sizes of weights and workspaces of dense products on a GPU. */
#include "op/cuda/gemm_size_cuda.h"

#include "base/mem.h"
#include "num/mma16.h"
#include "op/gemm_cuda.h"

static int64_t up_to(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

/* As few as give every multiprocessor of the chip no more than one block. */
int64_t ls_decode_columns(int64_t cols) {
    static const int64_t sizes[] = {8, 16, 24, 32, 40, 64, 80, 128};
    for (int i = 0; i < 7; i++)
        if ((cols - 1) / sizes[i] + 1 <= LS_DECODE_PROCESSORS) return sizes[i];
    return 128;
}

int64_t ls_cuda_gemm_tiles_bytes(int64_t n, int64_t k) {
    int64_t bytes;
    if (n < 1 || k < 1 || n > INT64_MAX - 128 || k > INT64_MAX - 64) return -1;
    return ls_mul_i64(up_to(n, ls_decode_columns(n)), up_to(k, 64), &bytes) && ls_mul_i64(bytes, 2, &bytes) ? bytes
                                                                                                            : -1;
}

ls_status ls_cuda_gemm_pack_plan(ls_gemm_weight *out, ls_dtype dtype, int64_t n, int64_t k, ls_error *err) {
    const ls_dtype packed = dtype == LS_BF16 ? LS_BF16 : LS_F32;
    const int64_t tiles = packed == LS_BF16 ? ls_cuda_gemm_tiles_bytes(n, k) : 0;
    int64_t stored, bytes;
    if (!ls_mul_i64(n, k, &stored) || !ls_mul_i64(stored, ls_dtype_bytes(packed), &stored) ||
        stored > INT64_MAX - 256 || tiles < 0 || !ls_add_i64(up_to(stored, 256), tiles, &bytes))
        return LS_FAIL(err, LS_ERR_NOMEM, "gemm weight: n %lld times k %lld does not fit 64-bit arithmetic",
                       (long long)n, (long long)k);
    *out = (ls_gemm_weight){packed, n, k, NULL, up_to(stored, 256), bytes};
    return LS_OK;
}

int64_t ls_gemm_gathered_bytes(int64_t rows, int64_t cols) {
    int64_t bytes;
    if (cols > INT64_MAX - 8 || !ls_mul_i64(rows, up_to(cols, 8), &bytes) || !ls_mul_i64(bytes, 2, &bytes)) return -1;
    return bytes > INT64_MAX - 256 ? -1 : up_to(bytes, 256);
}

int64_t ls_gemm_padded_rows(const ls_gemm_backward_weight_args *a) {
    int64_t rows;
    if (a->n_sequences < 0 || !ls_mul_i64(a->n_sequences, LS_MMA16_STEP - 1, &rows) || !ls_add_i64(rows, a->m, &rows) ||
        rows > INT64_MAX - LS_MMA16_STEP)
        return -1;
    return up_to(rows, LS_MMA16_STEP);
}

int64_t ls_gemm_starts_bytes(const ls_gemm_backward_weight_args *a) {
    int64_t bytes;
    return a->n_sequences < INT64_MAX - 33 && ls_mul_i64(a->n_sequences + 1, 8, &bytes) && bytes < INT64_MAX - 256
               ? up_to(bytes, 256)
               : -1;
}

int64_t ls_op_gemm_groups_backward_weight_workspace(const ls_gemm_groups_backward_weight_args *a) {
    int64_t slots, bytes;
    if (a->profile != LS_PROFILE_MMA16 || a->m < 1) return LS_WORKSPACE_HEAD;
    if (a->n_sequences < 0 || a->n_sequences > INT64_MAX / 16 - 1 ||
        !ls_mul_i64(a->n_groups, a->n_sequences + 1, &slots) || !ls_add_i64(slots, a->m / LS_MMA16_STEP + 1, &slots) ||
        !ls_mul_i64(slots, (int64_t)sizeof(ls_group_step), &bytes) ||
        !ls_add_i64(bytes, LS_WORKSPACE_HEAD + (a->n_groups + 1) * (int64_t)sizeof(int64_t), &bytes))
        return -1;
    return bytes;
}

static int64_t workspace_sum(int64_t a, int64_t b) {
    int64_t sum;
    return a < 0 || b < 0 || !ls_add_i64(a, b, &sum) ? -1 : sum;
}

int64_t ls_cuda_gemm_backward_input_workspace(const ls_gemm_backward_input_args *args) {
    if (args->profile != LS_PROFILE_MMA16 || args->m < 1) return LS_WORKSPACE_HEAD;
    return workspace_sum(LS_WORKSPACE_HEAD, ls_gemm_gathered_bytes(args->m, args->n));
}

int64_t ls_cuda_gemm_backward_weight_workspace(const ls_gemm_backward_weight_args *a) {
    const int64_t rows = ls_gemm_padded_rows(a);
    int64_t bytes = LS_WORKSPACE_HEAD;
    if (a->profile != LS_PROFILE_MMA16 || a->m < 1) return bytes;
    bytes = workspace_sum(bytes, ls_gemm_starts_bytes(a));
    bytes = workspace_sum(bytes, rows < 0 ? -1 : ls_gemm_gathered_bytes(rows, a->n));
    return workspace_sum(bytes, rows < 0 ? -1 : ls_gemm_gathered_bytes(rows, a->k));
}
