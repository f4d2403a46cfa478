/* Gradients of the dense product on the CPU: checks of row numbers, and the split of the outputs over threads. */
#include "op/cpu/cpu_ops.h"
#include "op/cpu/gemm_backward_kernel.h"
#include "op/cpu/gemm_mma16.h"
#include "op/rows.h"

LS_KERNEL_TABLE(ls_gemm_dbias_kernel);
LS_KERNEL_TABLE_OF(ls_grid_kernel, ls_gemm_chain_kernel); /* args: ls_gemm_chain */

/* Below this many multiply-adds a part is not worth waking a thread for. */
#define PART_MACS_MIN (1 << 17)

static const char input_op[] = "gemm_backward_input";
static const char weight_op[] = "gemm_backward_weight";

/* Row numbers of a tensor of `count` rows. */
static ls_status check_rows(const char *op, const char *name, const int64_t *rows, int64_t m, int64_t count,
                            bool ascending, ls_error *err) {
    for (int64_t i = 0; i < m && rows != NULL; i++) {
        if (rows[i] < 0 || rows[i] >= count)
            return LS_FAIL(err, LS_ERR_ARG, "%s: %s_rows[%lld] is %lld, %s has %lld rows", op, name, (long long)i,
                           (long long)rows[i], name, (long long)count);
        if (ascending && i > 0 && rows[i] <= rows[i - 1])
            return LS_FAIL(err, LS_ERR_ARG, "%s: %s_rows[%lld] is %lld after %lld, rows ascend", op, name, (long long)i,
                           (long long)rows[i], (long long)rows[i - 1]);
    }
    return LS_OK;
}

/* Rows before columns: then the tiles of one panel are neighbours in cache. */
static void chain_run(ls_workers *workers, const ls_gemm_chain *chain) {
    const ls_grid grid = {.rows = chain->rows,
                          .cols = chain->cols,
                          .operations = (double)chain->rows * (double)chain->cols * (double)chain->steps,
                          .part_min = PART_MACS_MIN};
    ls_grid_run(workers, ls_gemm_chain_kernel_table, chain, &grid);
}

static ls_status check_range(const char *op, const int64_t *range, int64_t m, ls_error *err) {
    if (range[0] >= 0 && range[1] >= range[0] && range[1] <= m) return LS_OK;
    return LS_FAIL(err, LS_ERR_ARG, "%s: rows %lld to %lld of %lld", op, (long long)range[0], (long long)range[1],
                   (long long)m);
}

/* The rows that device memory names, as a call of their own. */
static ls_status narrow_input(ls_gemm_backward_input_args *a, ls_error *err) {
    const int64_t *range = a->range;
    if (range == NULL) return LS_OK;
    if (check_range(input_op, range, a->m, err) != LS_OK) return LS_ERR_ARG;
    if (a->dy != NULL) a->dy += range[0] * a->dy_stride;
    if (a->dy_rounded != NULL) a->dy_rounded += range[0] * a->dy_rounded_stride;
    if (a->dx_rows != NULL)
        a->dx_rows += range[0];
    else
        a->dx += range[0] * a->dx_stride;
    a->m = range[1] - range[0];
    return LS_OK;
}

static void input_run_mma16(ls_workers *workers, const ls_gemm_backward_input_args *args) {
    const int64_t whole[2] = {0, args->n};
    const bool is_rounded = args->dy_rounded != NULL;
    const ls_mma16_chain chain = {
        .rows = args->m,
        .cols = args->k,
        .segments = whole,
        .n_segments = 1,
        .a = is_rounded ? (const void *)args->dy_rounded : args->dy,
        .a_dtype = is_rounded ? LS_BF16 : LS_F32,
        .a_row = is_rounded ? args->dy_rounded_stride : args->dy_stride,
        .a_k = 1,
        .b = args->w,
        .b_k = args->k,
        .b_panel = LS_MMA16_PANEL,
        .out = args->dx,
        .out_dtype = LS_F32,
        .out_stride = args->dx_stride,
        .out_rows = args->dx_rows,
        .mode = args->add ? LS_MMA16_ADD : LS_MMA16_STORE,
    };
    ls_mma16_run(workers, &chain);
}

ls_status ls_cpu_gemm_backward_input(const ls_exec *exec, const ls_gemm_backward_input_args *all, ls_error *err) {
    ls_gemm_backward_input_args rows = *all;
    const ls_gemm_backward_input_args *args = &rows;
    LS_TRY(narrow_input(&rows, err));
    LS_TRY(check_rows(input_op, "dx", args->dx_rows, args->m, args->dx_count, true, err));
    if (args->m > 0 && args->profile == LS_PROFILE_MMA16) {
        input_run_mma16(exec->workers, args);
    } else if (args->m > 0) {
        const ls_gemm_chain chain = {
            .rows = args->m,
            .cols = args->k,
            .steps = args->n,
            .a = args->dy,
            .a_row = args->dy_stride,
            .a_step = 1,
            .b = args->w,
            .b_dtype = args->w_dtype,
            .b_stride = args->k,
            .out = args->dx,
            .out_stride = args->dx_stride,
            .out_rows = args->dx_rows,
            .mode = args->add ? LS_CHAIN_ADD : LS_CHAIN_FRESH,
        };
        chain_run(exec->workers, &chain);
    }
    return LS_OK;
}

static ls_status narrow_weight(ls_gemm_backward_weight_args *a, ls_error *err) {
    const int64_t *range = a->range;
    if (range == NULL) return LS_OK;
    if (check_range(weight_op, range, a->m, err) != LS_OK) return LS_ERR_ARG;
    a->dy += range[0] * a->dy_stride;
    if (a->x_rows != NULL)
        a->x_rows += range[0];
    else
        a->x = ls_at(a->x, a->x_dtype, range[0] * a->x_stride);
    a->m = range[1] - range[0];
    return LS_OK;
}

/* Sequences that mma16 pads one by one: offsets from 0 to m, ascending. */
static ls_status check_sequences(const ls_gemm_backward_weight_args *a, ls_error *err) {
    if (a->sequences[0] != 0 || a->sequences[a->n_sequences] != a->m)
        return LS_FAIL(err, LS_ERR_ARG, "%s: sequences: from row %lld to row %lld, not from 0 to m %lld", weight_op,
                       (long long)a->sequences[0], (long long)a->sequences[a->n_sequences], (long long)a->m);
    for (int64_t i = 0; i < a->n_sequences; i++)
        if (a->sequences[i + 1] < a->sequences[i])
            return LS_FAIL(err, LS_ERR_ARG, "%s: sequences[%lld] is %lld after %lld, offsets ascend", weight_op,
                           (long long)(i + 1), (long long)a->sequences[i + 1], (long long)a->sequences[i]);
    return LS_OK;
}

static void weight_run_mma16(ls_workers *workers, const ls_gemm_backward_weight_args *args) {
    const bool is_rounded = args->dy_rounded != NULL;
    const ls_mma16_chain chain = {
        .rows = args->n,
        .cols = args->k,
        .segments = args->sequences,
        .n_segments = args->n_sequences,
        .a = is_rounded ? (const void *)args->dy_rounded : args->dy,
        .a_dtype = is_rounded ? LS_BF16 : LS_F32,
        .a_row = 1,
        .a_k = is_rounded ? args->dy_rounded_stride : args->dy_stride,
        .b = args->x,
        .b_k = args->x_stride,
        .b_panel = LS_MMA16_PANEL,
        .b_rows = args->x_rows,
        .out = args->dw,
        .out_dtype = LS_F32,
        .out_stride = args->k,
        .mode = LS_MMA16_CONTINUE,
    };
    ls_mma16_run(workers, &chain);
}

ls_status ls_cpu_gemm_backward_weight(const ls_exec *exec, const ls_gemm_backward_weight_args *all, ls_error *err) {
    ls_gemm_backward_weight_args rows = *all;
    const ls_gemm_backward_weight_args *args = &rows;
    LS_TRY(narrow_weight(&rows, err));
    LS_TRY(check_rows(weight_op, "x", args->x_rows, args->m, args->x_count, false, err));
    if (args->m > 0 && args->profile == LS_PROFILE_MMA16) {
        LS_TRY(check_sequences(args, err));
        weight_run_mma16(exec->workers, args);
    } else if (args->m > 0) {
        const ls_gemm_chain chain = {
            .rows = args->n,
            .cols = args->k,
            .steps = args->m,
            .a = args->dy,
            .a_row = 1,
            .a_step = args->dy_stride,
            .b = args->x,
            .b_dtype = args->x_dtype,
            .b_stride = args->x_stride,
            .b_rows = args->x_rows,
            .out = args->dw,
            .out_stride = args->k,
            .mode = LS_CHAIN_CONTINUE,
        };
        chain_run(exec->workers, &chain);
    }
    if (args->m > 0 && args->dbias != NULL)
        ls_kernel_run(exec->workers, ls_gemm_dbias_kernel_table, args, (args->n - 1) / LS_GEMM_BIAS_BLOCK + 1,
                      args->m * LS_GEMM_BIAS_BLOCK);
    return LS_OK;
}
