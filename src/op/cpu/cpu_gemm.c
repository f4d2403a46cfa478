/* Dense product on the CPU: layout and packing of weights, and the split of the outputs over threads. */
#include <string.h>

#include "base/inject.h"
#include "base/mem.h"
#include "num/half.h"
#include "op/cpu/cpu_ops.h"
#include "op/cpu/gemm_mma16.h"
#include "op/rows.h"

LS_KERNEL_TABLE_OF(ls_grid_kernel, ls_gemm_kernel); /* args: ls_gemm_args */

/* Below this many multiply-adds a part is not worth another thread. Products of one row follow each other so slowly
 * that a small model's would find the thread asleep, and waking it costs more than handing a part to it. */
#define PART_MACS_MIN(m) ((m) > 1 ? 1 << 16 : 1 << 17)

/* Steps of k packed at a time: sixteen rows of them stay in cache. */
#define PACK_STEPS 64

/* Rows [row, row + rows) of w to one panel, zero in the lanes past `rows`: f32 and bf16 move unchanged, f16 is widened,
 * exactly. */
static void panel_pack_f32(float *panel, const void *w, ls_dtype dtype, int64_t row, int64_t rows, int64_t k) {
    for (int64_t begin = 0; begin < k; begin += PACK_STEPS) {
        const int64_t end = begin + PACK_STEPS < k ? begin + PACK_STEPS : k;
        for (int64_t lane = 0; lane < LS_GEMM_PANEL; lane++) {
            const int64_t from = (row + lane) * k;
            if (lane >= rows)
                for (int64_t i = begin; i < end; i++) panel[i * LS_GEMM_PANEL + lane] = 0.0f;
            else if (dtype == LS_F32)
                for (int64_t i = begin; i < end; i++) panel[i * LS_GEMM_PANEL + lane] = ((const float *)w)[from + i];
            else
                for (int64_t i = begin; i < end; i++)
                    panel[i * LS_GEMM_PANEL + lane] = ls_f16_to_f32(((const uint16_t *)w)[from + i]);
        }
    }
}

static void panel_pack_bf16(uint16_t *panel, const uint16_t *w, int64_t row, int64_t rows, int64_t k) {
    for (int64_t begin = 0; begin < k; begin += PACK_STEPS) {
        const int64_t end = begin + PACK_STEPS < k ? begin + PACK_STEPS : k;
        for (int64_t lane = 0; lane < LS_GEMM_PANEL; lane++)
            for (int64_t i = begin; i < end; i++)
                panel[i * LS_GEMM_PANEL + lane] = lane < rows ? w[(row + lane) * k + i] : (uint16_t)0;
    }
}

static void panels_pack(const ls_gemm_weight *weight, const void *w, ls_dtype dtype) {
    for (int64_t row = 0; row < weight->n; row += LS_GEMM_PANEL) {
        const int64_t rows = weight->n - row < LS_GEMM_PANEL ? weight->n - row : LS_GEMM_PANEL;
        void *to = (char *)weight->panels + row / LS_GEMM_PANEL * weight->panel_stride;
        if (weight->dtype == LS_BF16)
            panel_pack_bf16(to, w, row, rows, weight->k);
        else
            panel_pack_f32(to, w, dtype, row, rows, weight->k);
    }
}

/* Type of the panels of a weight that is stored as dtype. */
static ls_dtype packed_type(ls_dtype dtype) { return dtype == LS_BF16 ? LS_BF16 : LS_F32; }

ls_status ls_cpu_gemm_pack_plan(ls_gemm_weight *out, ls_dtype dtype, int64_t n, int64_t k, ls_error *err) {
    const ls_dtype packed = packed_type(dtype);
    const int64_t n_panels = (n - 1) / LS_GEMM_PANEL + 1;
    int64_t panel_elems, panel_bytes, stride, bytes;
    if (!ls_mul_i64(k, LS_GEMM_PANEL, &panel_elems) || !ls_mul_i64(panel_elems, ls_dtype_bytes(packed), &panel_bytes) ||
        !ls_add_i64(panel_bytes, panel_bytes % 4096 == 0 ? LS_GEMM_PANEL_GAP : 0, &stride) ||
        !ls_mul_i64(n_panels, stride, &bytes))
        return LS_FAIL(err, LS_ERR_NOMEM, "gemm weight: n %lld times k %lld does not fit 64-bit arithmetic",
                       (long long)n, (long long)k);
    *out = (ls_gemm_weight){packed, n, k, NULL, stride, bytes};
    return LS_OK;
}

ls_status ls_cpu_gemm_repack(const ls_exec *exec, const ls_gemm_repack_args *args, ls_error *err) {
    (void)exec;
    if (packed_type(args->dtype) != args->weight->dtype)
        return LS_FAIL(err, LS_ERR_ARG, "gemm weight: %s into panels of %s", ls_dtype_name(args->dtype),
                       ls_dtype_name(args->weight->dtype));
    panels_pack(args->weight, args->w, args->dtype);
    return LS_OK;
}

static void run_mma16(ls_workers *workers, const ls_gemm_args *args) {
    const ls_gemm_weight *weight = args->weight;
    const int64_t whole[2] = {0, weight->k};
    const ls_mma16_chain chain = {
        .rows = args->m,
        .cols = weight->n,
        .segments = whole,
        .n_segments = 1,
        .a = args->x,
        .a_dtype = LS_BF16,
        .a_row = args->x_stride,
        .a_k = 1,
        .b = weight->panels,
        .b_k = LS_GEMM_PANEL,
        .b_panel = weight->panel_stride / 2,
        .out = args->out,
        .out_dtype = args->out_dtype,
        .out_stride = args->out_stride,
        .bias = args->bias,
        .mode = LS_MMA16_STORE,
    };
    ls_mma16_run(workers, &chain);
}
_Static_assert(LS_GEMM_PANEL == LS_MMA16_PANEL, "packed weights are the panels of a chain");

static void run_exact(ls_workers *workers, const ls_gemm_args *args) {
    const int64_t m = args->m, n = args->weight->n;
    const ls_grid grid = {.rows = m,
                          .cols = n,
                          .operations = (double)m * (double)n * (double)args->weight->k,
                          .part_min = PART_MACS_MIN(m),
                          .cols_first = true}; /* then each weight is read by one thread */
    ls_grid_run(workers, ls_gemm_kernel_table, args, &grid);
}

static void run(ls_workers *workers, const ls_gemm_args *args) {
    if (args->m == 0 || ls_inject_split_k(workers->pool, args)) return;
    if (args->profile == LS_PROFILE_MMA16)
        run_mma16(workers, args);
    else
        run_exact(workers, args);
}

ls_status ls_cpu_gemm(const ls_exec *exec, const ls_gemm_args *args, ls_error *err) {
    const int64_t *range = args->range;
    ls_gemm_args rows;
    if (range == NULL) {
        run(exec->workers, args);
        return LS_OK;
    }
    if (range[0] < 0 || range[1] < range[0] || range[1] > args->m)
        return LS_FAIL(err, LS_ERR_ARG, "gemm: rows %lld to %lld of %lld", (long long)range[0], (long long)range[1],
                       (long long)args->m);
    if (range[0] == range[1]) return LS_OK;
    /* The rows that device memory names, as a product of its own. */
    rows = *args;
    rows.x = ls_at(args->x, args->x_dtype, range[0] * args->x_stride);
    rows.out = ls_at_mut(args->out, args->out_dtype, range[0] * args->out_stride);
    rows.m = range[1] - range[0];
    rows.range = NULL;
    run(exec->workers, &rows);
    return LS_OK;
}
