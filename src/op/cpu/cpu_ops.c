/* The CPU's implementations but for the dense products: checks of what lies in memory, then how many items a kernel
 * has, and about how many scalar operations an item takes, which decides how many threads are worth waking. */
#include "op/cpu/cpu_ops.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "op/cpu/adamw_kernel.h"
#include "op/cpu/lora_kernel.h"
#include "op/cpu/sample_kernel.h"

LS_KERNEL_TABLE(ls_adamw_kernel);
LS_KERNEL_TABLE(ls_attention_backward_kernel);
LS_KERNEL_TABLE(ls_attention_backward_mma16_kernel);
LS_KERNEL_TABLE(ls_attention_kernel);
LS_KERNEL_TABLE(ls_attention_mma16_kernel);
LS_KERNEL_TABLE(ls_attention_rounded_kernel);
LS_KERNEL_TABLE(ls_attention_softmax_kernel);
LS_KERNEL_TABLE(ls_conv1d_backward_kernel);
LS_KERNEL_TABLE(ls_conv1d_kernel);
LS_KERNEL_TABLE(ls_conv1d_parameters_kernel);
LS_KERNEL_TABLE(ls_decay_kernel);
LS_KERNEL_TABLE(ls_rates_kernel);
LS_KERNEL_TABLE(ls_delta_backward_kernel);
LS_KERNEL_TABLE(ls_delta_kernel);
LS_KERNEL_TABLE(ls_delta_parameters_kernel);
LS_KERNEL_TABLE(ls_embed_backward_kernel);
LS_KERNEL_TABLE(ls_embed_kernel);
LS_KERNEL_TABLE(ls_gated_norm_backward_kernel);
LS_KERNEL_TABLE(ls_gated_norm_dw_kernel);
LS_KERNEL_TABLE(ls_gated_norm_kernel);
LS_KERNEL_TABLE(ls_gather_kernel);
LS_KERNEL_TABLE(ls_kv_store_kernel);
LS_KERNEL_TABLE(ls_logprob_backward_kernel);
LS_KERNEL_TABLE(ls_logprob_combine_kernel);
LS_KERNEL_TABLE(ls_logprob_kernel);
LS_KERNEL_TABLE(ls_logprob_shard_kernel);
LS_KERNEL_TABLE(ls_lora_backward_a_kernel);
LS_KERNEL_TABLE(ls_lora_backward_b_kernel);
LS_KERNEL_TABLE(ls_lora_merge_kernel);
LS_KERNEL_TABLE(ls_moe_combine_backward_kernel);
LS_KERNEL_TABLE(ls_moe_combine_kernel);
LS_KERNEL_TABLE(ls_moe_gather_backward_kernel);
LS_KERNEL_TABLE(ls_moe_reweigh_backward_kernel);
LS_KERNEL_TABLE(ls_moe_reweigh_kernel);
LS_KERNEL_TABLE(ls_moe_route_backward_kernel);
LS_KERNEL_TABLE(ls_moe_route_kernel);
LS_KERNEL_TABLE(ls_moe_sigmoid_route_backward_kernel);
LS_KERNEL_TABLE(ls_moe_sigmoid_route_kernel);
LS_KERNEL_TABLE(ls_moe_sum_kernel);
LS_KERNEL_TABLE(ls_multiply_kernel);
LS_KERNEL_TABLE(ls_penalize_kernel);
LS_KERNEL_TABLE(ls_regroup_kernel);
LS_KERNEL_TABLE(ls_relu2_backward_kernel);
LS_KERNEL_TABLE(ls_relu2_kernel);
LS_KERNEL_TABLE(ls_residual_kernel);
LS_KERNEL_TABLE(ls_rmsnorm_backward_kernel);
LS_KERNEL_TABLE(ls_scale_kernel);
LS_KERNEL_TABLE(ls_swiglu_backward_rounded_kernel);
LS_KERNEL_TABLE(ls_rmsnorm_dw_kernel);
LS_KERNEL_TABLE(ls_rmsnorm_kernel);
LS_KERNEL_TABLE(ls_rope_backward_kernel);
LS_KERNEL_TABLE(ls_rope_dnorm_kernel);
LS_KERNEL_TABLE(ls_rope_kernel);
LS_KERNEL_TABLE(ls_rope_norm_fold_kernel);
LS_KERNEL_TABLE(ls_rope_table_kernel);
LS_KERNEL_TABLE(ls_round_rows_kernel);
LS_KERNEL_TABLE(ls_scan_backward_kernel);
LS_KERNEL_TABLE(ls_scan_channel_sums_kernel);
LS_KERNEL_TABLE(ls_scan_kernel);
LS_KERNEL_TABLE(ls_scan_parameters_kernel);
LS_KERNEL_TABLE(ls_sequence_sum_kernel);
LS_KERNEL_TABLE(ls_squares_kernel);
LS_KERNEL_TABLE(ls_sigmoid_gate_backward_kernel);
LS_KERNEL_TABLE(ls_sigmoid_gate_kernel);
LS_KERNEL_TABLE(ls_write_held_kernel);
LS_KERNEL_TABLE(ls_ssd_backward_kernel);
LS_KERNEL_TABLE(ls_ssd_kernel);
LS_KERNEL_TABLE(ls_ssd_parameters_kernel);
LS_KERNEL_TABLE(ls_ssd_pieces_kernel);
LS_KERNEL_TABLE(ls_ssd_sums_kernel);
LS_KERNEL_TABLE(ls_support_kernel);
LS_KERNEL_TABLE(ls_top_kernel);
LS_KERNEL_TABLE(ls_swiglu_backward_kernel);
LS_KERNEL_TABLE(ls_swiglu_kernel);
LS_KERNEL_TABLE(ls_taps_kernel);
LS_KERNEL_TABLE(ls_weight_cast_kernel);
LS_KERNEL_TABLE(ls_widen_kernel);
LS_KERNEL_TABLE_OF(ls_sample_kernel, ls_sample_kernel);

#define RUN(name, n_items, item_ops) ls_kernel_run(exec->workers, ls_##name##_kernel_table, args, n_items, item_ops)

static int64_t blocks_of(int64_t n, int64_t block) { return n / block + (n % block != 0); }

/* ---- rows ---- */

static ls_status check_tokens(const char *op, const int32_t *tokens, int64_t rows, int64_t vocab, ls_error *err) {
    for (int64_t r = 0; r < rows; r++)
        if (tokens[r] < 0 || tokens[r] >= vocab)
            return LS_FAIL(err, LS_ERR_ARG, "%s: row %lld: token %d is not in 0..%lld", op, (long long)r, tokens[r],
                           (long long)vocab - 1);
    return LS_OK;
}

ls_status ls_cpu_embed(const ls_exec *exec, const ls_embed_args *args, ls_error *err) {
    const ls_status status = check_tokens("embed", args->tokens, args->rows, args->vocab, err);
    if (status == LS_OK) RUN(embed, args->rows, args->dim);
    return status;
}

/* One item a block of columns: rows of one token must follow one another. */
ls_status ls_cpu_embed_backward(const ls_exec *exec, const ls_embed_backward_args *args, ls_error *err) {
    const ls_status status = check_tokens("embed_backward", args->tokens, args->rows, args->vocab, err);
    if (status == LS_OK) RUN(embed_backward, blocks_of(args->dim, LS_EMBED_BLOCK), 2 * LS_EMBED_BLOCK * args->rows);
    return status;
}

ls_status ls_cpu_residual(const ls_exec *exec, const ls_residual_args *args, ls_error *err) {
    (void)err;
    RUN(residual, args->rows, args->dim);
    return LS_OK;
}

ls_status ls_cpu_multiply(const ls_exec *exec, const ls_multiply_args *args, ls_error *err) {
    (void)err;
    RUN(multiply, blocks_of(args->n, LS_ADAMW_BLOCK), LS_ADAMW_BLOCK);
    return LS_OK;
}

ls_status ls_cpu_scale(const ls_exec *exec, const ls_scale_args *args, ls_error *err) {
    (void)err;
    RUN(scale, blocks_of(args->n, LS_ADAMW_BLOCK), LS_ADAMW_BLOCK);
    return LS_OK;
}

ls_status ls_cpu_round_rows(const ls_exec *exec, const ls_round_rows_args *args, ls_error *err) {
    (void)err;
    RUN(round_rows, args->rows, 2 * args->dim);
    return LS_OK;
}

ls_status ls_cpu_swiglu(const ls_exec *exec, const ls_swiglu_args *args, ls_error *err) {
    (void)err;
    RUN(swiglu, args->rows, 50 * args->dim);
    return LS_OK;
}

ls_status ls_cpu_gemm_three(const ls_exec *exec, const ls_gemm_three_args *args, ls_error *err) {
    LS_TRY(ls_cpu_gemm(exec, &args->first, err));
    for (int i = 0; i < 2; i++) {
        const ls_gemm_args other = ls_gemm_other(args, i);
        LS_TRY(ls_cpu_gemm(exec, &other, err));
    }
    return LS_OK;
}

ls_status ls_cpu_gemm_gated(const ls_exec *exec, const ls_gemm_gated_args *args, ls_error *err) {
    const ls_gemm_args *gate = &args->gate;
    ls_gemm_args up = *gate;
    const ls_swiglu_args swiglu = {gate->out, args->up_out, args->y, args->y_dtype, gate->m, args->up->n};
    up.weight = args->up;
    up.out = args->up_out;
    LS_TRY(ls_cpu_gemm(exec, gate, err));
    LS_TRY(ls_cpu_gemm(exec, &up, err));
    return ls_cpu_swiglu(exec, &swiglu, err);
}

ls_status ls_cpu_swiglu_backward(const ls_exec *exec, const ls_swiglu_backward_args *args, ls_error *err) {
    (void)err;
    RUN(swiglu_backward, args->rows, 60 * args->dim);
    return LS_OK;
}

ls_status ls_cpu_swiglu_backward_rounded(const ls_exec *exec, const ls_swiglu_backward_rounded_args *args,
                                         ls_error *err) {
    (void)err;
    RUN(swiglu_backward_rounded, args->rows, 60 * args->dim);
    return LS_OK;
}

ls_status ls_cpu_regroup(const ls_exec *exec, const ls_regroup_args *args, ls_error *err) {
    (void)err;
    RUN(regroup, args->rows, args->heads * ls_regroup_width(args));
    return LS_OK;
}

ls_status ls_cpu_relu2(const ls_exec *exec, const ls_relu2_args *args, ls_error *err) {
    (void)err;
    RUN(relu2, args->rows, 2 * args->dim);
    return LS_OK;
}

ls_status ls_cpu_relu2_backward(const ls_exec *exec, const ls_relu2_backward_args *args, ls_error *err) {
    (void)err;
    RUN(relu2_backward, args->rows, 3 * args->dim);
    return LS_OK;
}

ls_status ls_cpu_sigmoid_gate(const ls_exec *exec, const ls_sigmoid_gate_args *args, ls_error *err) {
    (void)err;
    RUN(sigmoid_gate, args->rows, 2 * args->dim + 30 * args->gates);
    return LS_OK;
}

ls_status ls_cpu_sigmoid_gate_backward(const ls_exec *exec, const ls_sigmoid_gate_backward_args *args, ls_error *err) {
    (void)err;
    RUN(sigmoid_gate_backward, args->rows, 4 * args->dim + 60 * args->gates);
    return LS_OK;
}

ls_status ls_cpu_gated_norm(const ls_exec *exec, const ls_gated_norm_args *args, ls_error *err) {
    (void)err;
    RUN(gated_norm, args->rows, 54 * args->dim + 400 * args->groups);
    return LS_OK;
}

ls_status ls_cpu_gated_norm_backward(const ls_exec *exec, const ls_gated_norm_backward_args *args, ls_error *err) {
    (void)err;
    RUN(gated_norm_backward, args->rows, 110 * args->dim + 1000 * args->groups);
    RUN(gated_norm_dw, blocks_of(args->dim, LS_GATED_NORM_BLOCK), 52 * LS_GATED_NORM_BLOCK * args->rows);
    return LS_OK;
}

ls_status ls_cpu_rmsnorm(const ls_exec *exec, const ls_rmsnorm_args *args, ls_error *err) {
    (void)err;
    RUN(rmsnorm, args->rows, 4 * args->dim + 400);
    return LS_OK;
}

ls_status ls_cpu_add_rmsnorm(const ls_exec *exec, const ls_add_rmsnorm_args *args, ls_error *err) {
    const ls_residual_args add = {args->h, args->add, args->rows, args->dim, args->sum};
    const ls_rmsnorm_args norm = ls_add_rmsnorm_norm(args);
    LS_TRY(ls_cpu_residual(exec, &add, err));
    return ls_cpu_rmsnorm(exec, &norm, err);
}

ls_status ls_cpu_rmsnorm_parts(const ls_exec *exec, const ls_rmsnorm_parts_args *args, ls_error *err) {
    for (int64_t i = 0; i < args->n; i++) LS_TRY(ls_cpu_rmsnorm(exec, &args->part[i], err));
    return LS_OK;
}

ls_status ls_cpu_rmsnorm_backward(const ls_exec *exec, const ls_rmsnorm_backward_args *args, ls_error *err) {
    (void)err;
    RUN(rmsnorm_backward, args->rows, 5 * args->dim + 1000);
    if (args->dw != NULL) RUN(rmsnorm_dw, blocks_of(args->dim, LS_RMSNORM_BLOCK), 2 * LS_RMSNORM_BLOCK * args->rows);
    return LS_OK;
}

ls_status ls_cpu_rmsnorm_parts_backward(const ls_exec *exec, const ls_rmsnorm_parts_backward_args *args,
                                        ls_error *err) {
    for (int64_t i = 0; i < args->n; i++) LS_TRY(ls_cpu_rmsnorm_backward(exec, &args->part[i], err));
    return LS_OK;
}

/* One item a span. */
ls_status ls_cpu_rope_table(const ls_exec *exec, const ls_rope_table_args *args, ls_error *err) {
    LS_TRY(ls_spans_check_rows("rope_table", args->spans, args->n_spans, args->rows, args->span_rows_max, err));
    if (args->n_spans == 0) return LS_OK;
    RUN(rope_table, args->n_spans, ls_spans_rows(args->spans, args->n_spans) / args->n_spans * args->half * 80);
    return LS_OK;
}

ls_status ls_cpu_rope(const ls_exec *exec, const ls_rope_args *args, ls_error *err) {
    (void)err;
    RUN(rope, args->rows, 8 * ls_rope_heads(args->part, args->n_parts) * args->head_dim);
    return LS_OK;
}

ls_status ls_cpu_rope_backward(const ls_exec *exec, const ls_rope_backward_args *args, ls_error *err) {
    const int64_t heads = ls_rope_heads(args->part, args->n_parts);
    bool trains = false;
    (void)err;
    RUN(rope_backward, args->rows, 12 * heads * args->head_dim);
    for (int64_t i = 0; i < args->n_parts; i++) trains |= args->part[i].dnorm != NULL;
    if (trains) RUN(rope_dnorm, heads, 8 * args->rows * args->head_dim);
    return LS_OK;
}

ls_status ls_cpu_rope_norm_fold(const ls_exec *exec, const ls_rope_norm_fold_args *args, ls_error *err) {
    (void)err;
    RUN(rope_norm_fold, args->head_dim, args->n_heads);
    return LS_OK;
}

ls_status ls_cpu_gather(const ls_exec *exec, const ls_gather_args *args, ls_error *err) {
    for (int64_t i = 0; i < args->n; i++)
        if (args->index[i] < 0 || args->index[i] >= args->x_rows)
            return LS_FAIL(err, LS_ERR_ARG, "gather: entry %lld: row %lld is not in 0..%lld", (long long)i,
                           (long long)args->index[i], (long long)args->x_rows - 1);
    RUN(gather, args->n, args->row_bytes / 4 + 20);
    return LS_OK;
}

ls_status ls_cpu_differs(const ls_exec *exec, const ls_differs_args *args, ls_error *err) {
    const uint8_t *a = args->a, *b = args->b;
    (void)exec, (void)err;
    for (int64_t row = 0; row < args->rows; row++)
        if (memcmp(a + row * args->stride, b + row * args->stride, (size_t)args->row_bytes) != 0) *args->differs = 1;
    return LS_OK;
}

/* ---- mixture of experts ---- */

ls_status ls_cpu_moe_route(const ls_exec *exec, const ls_moe_route_args *args, ls_error *err) {
    (void)err;
    RUN(moe_route, args->rows, 50 * args->n_experts);
    return LS_OK;
}

/* Of each row the chosen experts exist and ascend. */
static ls_status check_chosen(const char *op, const int32_t *expert, int64_t rows, int64_t top_k, int64_t n_experts,
                              ls_error *err) {
    for (int64_t i = 0; i < rows * top_k; i++) {
        const int32_t least = i % top_k == 0 ? 0 : expert[i - 1] + 1;
        if (expert[i] < least || expert[i] >= n_experts)
            return LS_FAIL(err, LS_ERR_ARG, "%s: row %lld: expert %d, choice %lld, is not in %d..%lld", op,
                           (long long)(i / top_k), expert[i], (long long)(i % top_k), least, (long long)n_experts - 1);
    }
    return LS_OK;
}

ls_status ls_cpu_moe_reweigh(const ls_exec *exec, const ls_moe_reweigh_args *args, ls_error *err) {
    LS_TRY(check_chosen("moe_reweigh", args->expert, args->rows, args->top_k, args->n_experts, err));
    RUN(moe_reweigh, args->rows, 40 * args->top_k);
    return LS_OK;
}

ls_status ls_cpu_moe_reweigh_backward(const ls_exec *exec, const ls_moe_reweigh_backward_args *args, ls_error *err) {
    LS_TRY(check_chosen("moe_reweigh_backward", args->expert, args->rows, args->top_k, args->n_experts, err));
    RUN(moe_reweigh_backward, args->rows, args->n_experts + 40 * args->top_k);
    return LS_OK;
}

ls_status ls_cpu_moe_sigmoid_route(const ls_exec *exec, const ls_moe_sigmoid_route_args *args, ls_error *err) {
    (void)err;
    RUN(moe_sigmoid_route, args->rows, (30 + args->top_k) * args->n_experts);
    return LS_OK;
}

ls_status ls_cpu_moe_sigmoid_route_backward(const ls_exec *exec, const ls_moe_sigmoid_route_backward_args *args,
                                            ls_error *err) {
    LS_TRY(check_chosen("moe_sigmoid_route_backward", args->expert, args->rows, args->top_k, args->n_experts, err));
    RUN(moe_sigmoid_route_backward, args->rows, args->n_experts + 80 * args->top_k);
    return LS_OK;
}

ls_status ls_cpu_moe_route_backward(const ls_exec *exec, const ls_moe_route_backward_args *args, ls_error *err) {
    LS_TRY(check_chosen("moe_route_backward", args->expert, args->rows, args->top_k, args->n_experts, err));
    RUN(moe_route_backward, args->rows, 40 * args->n_experts);
    return LS_OK;
}

/* A counting sort: picks of one expert keep the order of their rows. */
ls_status ls_cpu_moe_place(const ls_exec *exec, const ls_moe_place_args *args, ls_error *err) {
    const int64_t n = args->rows * args->top_k;
    int64_t next[LS_EXPERTS_MAX], first = 0;
    (void)exec;
    memset(next, 0, (size_t)args->n_experts * sizeof *next);
    for (int64_t i = 0; i < n; i++) {
        if (args->expert[i] < 0 || args->expert[i] >= args->n_experts)
            return LS_FAIL(err, LS_ERR_ARG, "moe_place: row %lld: expert %d is not in 0..%lld",
                           (long long)(i / args->top_k), args->expert[i], (long long)args->n_experts - 1);
        next[args->expert[i]]++;
    }
    for (int64_t e = 0; e < args->n_experts; e++) {
        const int64_t count = next[e];
        args->offsets[e] = next[e] = first;
        first += count;
    }
    args->offsets[args->n_experts] = first;
    for (int64_t i = 0; i < n; i++) {
        const int64_t at = next[args->expert[i]]++;
        args->pick[at] = i;
        args->row[at] = i / args->top_k;
        args->place[i] = at;
    }
    return LS_OK;
}

ls_status ls_cpu_moe_combine(const ls_exec *exec, const ls_moe_combine_args *all, ls_error *err) {
    const int64_t whole[2] = {0, all->n}, *range = all->range != NULL ? all->range : whole;
    if (range[0] < 0 || range[1] < range[0] || range[1] > all->n)
        return LS_FAIL(err, LS_ERR_ARG, "moe_combine: rows %lld to %lld of %lld", (long long)range[0],
                       (long long)range[1], (long long)all->n);
    if (range[0] == range[1]) return LS_OK;
    ls_moe_combine_args rows = *all;
    const ls_moe_combine_args *args = &rows;
    rows.y += range[0] * rows.dim;
    rows.rows += range[0];
    rows.weight += range[0];
    rows.n = range[1] - range[0];
    RUN(moe_combine, args->n, args->dim);
    return LS_OK;
}

ls_status ls_cpu_moe_combine_backward(const ls_exec *exec, const ls_moe_combine_backward_args *args, ls_error *err) {
    for (int64_t i = 0; i < args->n; i++)
        if (args->rows[i] < 0 || args->rows[i] >= args->acc_rows)
            return LS_FAIL(err, LS_ERR_ARG, "moe_combine_backward: row %lld, entry %lld, is not in 0..%lld",
                           (long long)args->rows[i], (long long)i, (long long)args->acc_rows - 1);
    RUN(moe_combine_backward, args->n, 2 * args->dim + 300);
    return LS_OK;
}

ls_status ls_cpu_moe_sum(const ls_exec *exec, const ls_moe_sum_args *args, ls_error *err) {
    (void)err;
    RUN(moe_sum, args->rows, args->top_k * args->dim);
    return LS_OK;
}

ls_status ls_cpu_moe_gather_backward(const ls_exec *exec, const ls_moe_gather_backward_args *args, ls_error *err) {
    (void)err;
    RUN(moe_gather_backward, args->rows, 2 * args->top_k * args->dim);
    return LS_OK;
}

/* ---- attention ---- */

static ls_status check_pages(const ls_attention_args *a, ls_error *err) {
    for (int64_t i = 0; i < a->n_spans; i++) {
        const ls_span *s = &a->spans[i];
        int64_t end, n_pages;
        if (s->slot < 0) continue;
        if (!ls_add_i64(s->pos, s->n_rows, &end))
            return LS_FAIL(err, LS_ERR_ARG, "attention: span %lld: position %lld, rows %lld do not fit 64 bits",
                           (long long)i, (long long)s->pos, (long long)s->n_rows);
        n_pages = blocks_of(end, a->page_tokens);
        if (s->table < 0 || s->table > a->n_tables - n_pages)
            return LS_FAIL(err, LS_ERR_ARG, "attention: span %lld: %lld pages from %lld on, of tables with %lld",
                           (long long)i, (long long)n_pages, (long long)s->table, (long long)a->n_tables);
        for (int64_t page = 0; page < n_pages; page++) {
            const int32_t id = a->tables[s->table + page];
            if (id < 0 || id >= a->pages.n_entries)
                return LS_FAIL(err, LS_ERR_ARG, "attention: span %lld: page %d is not in a pool of %lld", (long long)i,
                               id, (long long)a->pages.n_entries);
        }
    }
    return LS_OK;
}

/* Scalar operations of a product in a step of mma16. */
#define STEP_COST 8

/* One pass stores the new keys and values, one attends (item: row x head). */
ls_status ls_cpu_attention(const ls_exec *exec, const ls_attention_args *args, ls_error *err) {
    int64_t rows, keys = 0, tiles = 0; /* keys: over all rows */
    LS_TRY(ls_spans_check_rows("attention", args->spans, args->n_spans, args->rows, 0, err));
    LS_TRY(check_pages(args, err));
    rows = ls_spans_rows(args->spans, args->n_spans);
    if (rows == 0) return LS_OK;
    for (int64_t i = 0; i < args->n_spans; i++) {
        const int64_t each = args->spans[i].pos + args->spans[i].n_rows / 2 + 1;
        keys += args->spans[i].n_rows * (args->window > 0 && args->window < each ? args->window : each);
        tiles += ls_attention_tiles_mma16(args->spans[i].n_rows, args->n_heads / args->n_kv_heads) * args->n_kv_heads;
    }
    RUN(kv_store, args->n_spans, rows / args->n_spans * args->n_kv_heads * args->head_dim * 8);
    if (args->profile == LS_PROFILE_MMA16) {
        RUN(attention_mma16, tiles, keys * args->n_heads / tiles * (2 * args->head_dim * STEP_COST + 50));
        return LS_OK;
    }
    RUN(attention, rows * args->n_heads, keys / rows * (2 * args->head_dim + 50));
    return LS_OK;
}

/* ---- ops with a workspace ---- */

/* What kernels are given that work in the workspace. */
static ls_status open_workspace(const char *op, const ls_exec *exec, int64_t bytes, float **floats, ls_error *err) {
    if (exec->workspace == NULL || exec->workspace_bytes < bytes)
        return LS_FAIL(err, LS_ERR_CAPACITY, "%s: workspace of %lld bytes at %p, %lld are needed", op,
                       (long long)exec->workspace_bytes, exec->workspace, (long long)bytes);
    *floats = ls_workspace_floats(exec->workspace);
    return LS_OK;
}

ls_status ls_cpu_attention_heads(const ls_exec *exec, const ls_attention_heads_args *args, ls_error *err) {
    LS_TRY(ls_cpu_rope(exec, &args->heads, err));
    return ls_cpu_attention(exec, &args->attention, err);
}

/* One pass over queries keeps what their softmax came to, one over keys follows. A query meets half of its span's rows,
 * in two products before the first pass is over and in five in the second. */
ls_status ls_cpu_attention_backward(const ls_exec *exec, const ls_attention_backward_args *all, ls_error *err) {
    ls_workspace_call call = {all, NULL};
    const ls_workspace_call *args = &call;
    int64_t rows, tiles = 0;
    LS_TRY(ls_spans_check_order("attention_backward", all->spans, all->n_spans, all->rows, all->span_rows_max,
                                all->key_rows == NULL, err));
    if (all->key_rows != NULL)
        LS_TRY(ls_spans_check_keys("attention_backward", all->spans, all->n_spans, all->key_rows, all->key_rows_n,
                                   all->keys_max, err));
    rows = ls_spans_rows(all->spans, all->n_spans);
    if (rows == 0) return LS_OK;
    LS_TRY(open_workspace("attention_backward", exec, ls_op_attention_backward_workspace(all), &call.floats, err));
    if (all->profile == LS_PROFILE_MMA16) {
        RUN(attention_rounded, all->rows, 4 * all->n_heads * all->head_dim);
        RUN(attention_backward_mma16, all->n_spans * all->n_kv_heads,
            rows / all->n_spans * (all->n_heads / all->n_kv_heads) * LS_ATTENTION_BLOCK_MMA16 *
                (5 * all->head_dim * STEP_COST + 50) / 2);
        return LS_OK;
    }
    for (int64_t i = 0; i < all->n_spans; i++) tiles += ls_attention_tiles(all->spans[i].n_rows);
    RUN(attention_softmax, tiles * all->n_heads,
        rows / all->n_spans * LS_ATTENTION_BLOCK * (2 * all->head_dim + 50) / 2);
    RUN(attention_backward, all->n_spans * all->n_kv_heads,
        rows / all->n_spans * LS_ATTENTION_BLOCK * (5 * all->head_dim + 50) / 2);
    return LS_OK;
}

/* y once more, rounded: rows of spans that follow each other at a time, without those of padding. */
static ls_status round_outputs(const ls_exec *exec, const ls_conv1d_args *a, ls_error *err) {
    const float *y = a->y;
    for (int64_t i = 0; i < a->n_spans;) {
        const int64_t first = a->spans[i].row;
        int64_t end = first;
        do end += a->spans[i].slot >= 0 ? a->spans[i].n_rows : 0;
        while (++i < a->n_spans && a->spans[i].slot >= 0 && a->spans[i].row == end);
        if (end > first) {
            const ls_round_rows_args rows = {
                y + first * a->y_stride, a->y_stride, a->rounded + first * a->rounded_stride,
                a->rounded_stride,       end - first, a->dim};
            LS_TRY(ls_cpu_round_rows(exec, &rows, err));
        }
    }
    return LS_OK;
}

/* One item for each span and block of channels. */
ls_status ls_cpu_conv1d(const ls_exec *exec, const ls_conv1d_args *args, ls_error *err) {
    const ls_status status =
        ls_spans_check_slots("conv1d", args->spans, args->n_spans, args->rows, args->span_rows_max, &args->state, err);
    if (status != LS_OK || args->n_spans == 0) return status;
    RUN(conv1d, args->n_spans * blocks_of(args->dim, LS_CONV1D_BLOCK),
        ls_spans_rows(args->spans, args->n_spans) / args->n_spans * LS_CONV1D_BLOCK * (args->d_conv + 50));
    return args->rounded == NULL ? LS_OK : round_outputs(exec, args, err);
}

/* The same, then the ordered sums. */
ls_status ls_cpu_conv1d_backward(const ls_exec *exec, const ls_conv1d_backward_args *all, ls_error *err) {
    const int64_t blocks = blocks_of(all->dim, LS_CONV1D_BLOCK);
    ls_workspace_call call = {all, NULL};
    const ls_workspace_call *args = &call;
    int64_t rows;
    LS_TRY(ls_spans_check_order("conv1d_backward", all->spans, all->n_spans, all->rows, all->span_rows_max,
                                all->initial == NULL, err));
    rows = ls_spans_rows(all->spans, all->n_spans);
    LS_TRY(open_workspace("conv1d_backward", exec, ls_op_conv1d_backward_workspace(all), &call.floats, err));
    if (all->n_spans > 0)
        RUN(conv1d_backward, all->n_spans * blocks, rows / all->n_spans * LS_CONV1D_BLOCK * (3 * all->d_conv + 50));
    RUN(conv1d_parameters, blocks, (rows / LS_CONV1D_SUM_BLOCK + all->n_spans) * LS_CONV1D_BLOCK * all->d_conv);
    return LS_OK;
}

/* One item for each span and block of channels. */
ls_status ls_cpu_scan(const ls_exec *exec, const ls_scan_args *args, ls_error *err) {
    const ls_status status =
        ls_spans_check_slots("scan", args->spans, args->n_spans, args->rows, args->span_rows_max, &args->state, err);
    if (status != LS_OK || args->n_spans == 0) return status;
    RUN(scan, args->n_spans * blocks_of(args->dim, LS_SCAN_BLOCK),
        ls_spans_rows(args->spans, args->n_spans) / args->n_spans * LS_SCAN_BLOCK * (10 * args->n_states + 60));
    return LS_OK;
}

/* The same, then the ordered sums over blocks of channels and over spans. */
ls_status ls_cpu_scan_backward(const ls_exec *exec, const ls_scan_backward_args *all, ls_error *err) {
    const int64_t blocks = ls_scan_sum_blocks(all->dim);
    ls_workspace_call call = {all, NULL};
    const ls_workspace_call *args = &call;
    int64_t rows;
    LS_TRY(ls_spans_check_order("scan_backward", all->spans, all->n_spans, all->rows, all->span_rows_max,
                                all->initial == NULL, err));
    rows = ls_spans_rows(all->spans, all->n_spans);
    LS_TRY(open_workspace("scan_backward", exec, ls_op_scan_backward_workspace(all), &call.floats, err));
    if (all->n_spans > 0) {
        RUN(scan_backward, all->n_spans * blocks, rows / all->n_spans * LS_SCAN_SUM_BLOCK * (60 * all->n_states + 300));
        RUN(scan_channel_sums, all->rows, 2 * all->n_states * blocks);
    }
    RUN(scan_parameters, all->dim, all->n_spans * (all->n_states + 2));
    return LS_OK;
}

/* One item for each span and head. */
ls_status ls_cpu_ssd(const ls_exec *exec, const ls_ssd_args *args, ls_error *err) {
    const ls_status status =
        ls_spans_check_slots("ssd", args->spans, args->n_spans, args->rows, args->span_rows_max, &args->state, err);
    if (status != LS_OK || args->n_spans == 0) return status;
    RUN(ssd, args->n_spans * args->n_heads,
        ls_spans_rows(args->spans, args->n_spans) / args->n_spans * args->head_dim * (2 * args->n_states + 20));
    return LS_OK;
}

ls_status ls_cpu_write_held(const ls_exec *exec, const ls_write_held_args *args, ls_error *err) {
    const ls_status status =
        ls_spans_check_slots("write_held", args->spans, args->n_spans, args->rows, 0, &args->state, err);
    if (status != LS_OK || args->n_spans == 0) return status;
    RUN(write_held, args->n_spans * args->n_heads, args->state_every * args->state_rows * args->state_cols);
    return LS_OK;
}

/* One item for each span and block of heads, then scalars, then the ordered sums over blocks and over pieces. */
ls_status ls_cpu_ssd_backward(const ls_exec *exec, const ls_ssd_backward_args *all, ls_error *err) {
    const int64_t group_blocks = ls_ssd_group_blocks(all->n_heads, all->n_groups),
                  blocks = group_blocks * all->n_groups;
    ls_workspace_call call = {all, NULL};
    const ls_workspace_call *args = &call;
    int64_t rows;
    LS_TRY(ls_spans_check_order("ssd_backward", all->spans, all->n_spans, all->rows, all->span_rows_max,
                                all->initial == NULL, err));
    rows = ls_spans_rows(all->spans, all->n_spans);
    LS_TRY(open_workspace("ssd_backward", exec, ls_op_ssd_backward_workspace(all), &call.floats, err));
    if (all->n_spans > 0) {
        RUN(ssd_backward, all->n_spans * blocks,
            rows / all->n_spans * LS_SSD_SUM_HEADS * all->head_dim * (10 * all->n_states + 50));
        RUN(ssd_pieces, all->n_spans * all->n_heads, rows / all->n_spans * 100);
        RUN(ssd_sums, all->rows, 2 * all->n_states * blocks);
    }
    RUN(ssd_parameters, all->n_heads, 3 * (all->n_spans + all->rows / LS_SSD_PIECE));
    return LS_OK;
}

/* One item for each span and value head. */
ls_status ls_cpu_delta(const ls_exec *exec, const ls_delta_args *args, ls_error *err) {
    const ls_status status =
        ls_spans_check_slots("delta", args->spans, args->n_spans, args->rows, args->span_rows_max, &args->state, err);
    if (status != LS_OK || args->n_spans == 0) return status;
    RUN(delta, args->n_spans * args->n_heads,
        ls_spans_rows(args->spans, args->n_spans) / args->n_spans * args->value_dim * (3 * args->key_dim + 60));
    return LS_OK;
}

/* One item for each span and key head, then the ordered sums over spans. */
ls_status ls_cpu_delta_backward(const ls_exec *exec, const ls_delta_backward_args *all, ls_error *err) {
    ls_workspace_call call = {all, NULL};
    const ls_workspace_call *args = &call;
    int64_t rows;
    LS_TRY(ls_spans_check_order("delta_backward", all->spans, all->n_spans, all->rows, all->span_rows_max,
                                all->initial == NULL, err));
    rows = ls_spans_rows(all->spans, all->n_spans);
    LS_TRY(open_workspace("delta_backward", exec, ls_op_delta_backward_workspace(all), &call.floats, err));
    if (all->n_spans > 0)
        RUN(delta_backward, all->n_spans * all->n_key_heads,
            rows / all->n_spans * (all->n_heads / all->n_key_heads) * all->value_dim * (14 * all->key_dim + 60));
    RUN(delta_parameters, all->n_heads, 2 * all->n_spans);
    return LS_OK;
}

/* ---- log-probabilities ---- */

/* Targets and temperatures of rows that are not left out. */
static ls_status check_targets(const char *op, int64_t rows, int64_t vocab, const int64_t *targets,
                               int64_t ignore_index, const uint8_t *mask, const float *temperature, ls_error *err) {
    for (int64_t r = 0; r < rows; r++) {
        ls_fault fault = {LS_FAULT_NONE, r, 0, vocab};
        if (!ls_logprob_keeps(targets, ignore_index, mask, r)) continue;
        if (temperature != NULL && !(temperature[r] > 0.0f && isfinite(temperature[r]))) {
            fault.code = LS_FAULT_TEMPERATURE;
            fault.value = (int64_t)ls_bits(temperature[r]);
        }
        if (targets[r] < 0 || targets[r] >= vocab) {
            fault.code = LS_FAULT_TARGET;
            fault.value = targets[r];
        }
        if (fault.code != LS_FAULT_NONE) return ls_fault_status(op, &fault, err);
    }
    return LS_OK;
}

static ls_status check_offsets(const char *op, const ls_sequence_sum_args *args, ls_error *err) {
    int64_t least = 0;
    for (int64_t s = 0; s <= args->n_sequences && args->offsets != NULL; s++) {
        /* A bad offset is the end of the sequence before it. */
        const ls_fault fault = {LS_FAULT_OFFSET, s > 0 ? s - 1 : 0, args->offsets[s], args->rows};
        if (args->offsets[s] < least || args->offsets[s] > args->rows) return ls_fault_status(op, &fault, err);
        least = args->offsets[s];
    }
    return LS_OK;
}

ls_status ls_cpu_logprob(const ls_exec *exec, const ls_logprob_args *args, ls_error *err) {
    const ls_status status = check_targets("logprob", args->rows, args->vocab, args->targets, args->ignore_index,
                                           args->mask, args->temperature, err);
    if (status == LS_OK) RUN(logprob, args->rows, 15 * args->vocab);
    return status;
}

ls_status ls_cpu_logprob_shard(const ls_exec *exec, const ls_logprob_shard_args *args, ls_error *err) {
    const ls_status status = check_targets("logprob_shard", args->rows, args->total, args->targets, args->ignore_index,
                                           args->mask, args->temperature, err);
    if (status == LS_OK) RUN(logprob_shard, args->rows, 15 * args->vocab);
    return status;
}

ls_status ls_cpu_logprob_combine(const ls_exec *exec, const ls_logprob_combine_args *args, ls_error *err) {
    const ls_status status = check_targets("logprob_combine", args->rows, args->total, args->targets,
                                           args->ignore_index, args->mask, NULL, err);
    if (status == LS_OK) RUN(logprob_combine, args->rows, 30 * ls_logprob_leaves(args->total));
    return status;
}

ls_status ls_cpu_logprob_backward(const ls_exec *exec, const ls_logprob_backward_args *args, ls_error *err) {
    const ls_status status = check_targets("logprob_backward", args->rows, args->vocab, args->targets,
                                           args->ignore_index, args->mask, args->temperature, err);
    if (status == LS_OK) RUN(logprob_backward, args->rows, 15 * args->vocab);
    return status;
}

ls_status ls_cpu_sequence_sum(const ls_exec *exec, const ls_sequence_sum_args *args, ls_error *err) {
    const ls_status status = check_offsets("sequence_sum", args, err);
    if (status == LS_OK) RUN(sequence_sum, args->n_sequences, 1000);
    return status;
}

/* ---- sampling: a row is one item, whatever is in it ---- */

typedef struct rows_call {
    const void *args;
    const ls_sample_kernel *kernel;
} rows_call;

static void process_rows(void *context, int64_t begin, int64_t end, int32_t thread_i) {
    const rows_call *call = context;
    const ls_process_args *a = call->args;
    (void)thread_i;
    for (int64_t r = begin; r < end; r++) {
        float *row = a->out + r * a->vocab;
        int64_t kept;
        if (a->mask != NULL && a->mask[r] == 0) continue;
        kept = call->kernel->process(row, a->logits + r * a->vocab, a->vocab, &a->sampling[r],
                                     a->sort_space + 2 * r * a->vocab);
        if (kept == 0) row[0] = ls_from_bits(0x7FC00000u);
        if (a->kept != NULL) a->kept[r] = kept;
    }
}

ls_status ls_cpu_process(const ls_exec *exec, const ls_process_args *args, ls_error *err) {
    rows_call call = {args, ls_sample_kernel_table[exec->workers->isa]};
    (void)err;
    ls_parallel_for(exec->workers->pool, args->rows, 1, process_rows, &call);
    return LS_OK;
}

static void sample_rows(void *context, int64_t begin, int64_t end, int32_t thread_i) {
    const rows_call *call = context;
    const ls_sample_args *a = call->args;
    (void)thread_i;
    for (int64_t r = begin; r < end; r++)
        a->token[r] = a->kept[r] > 0
                          ? call->kernel->draw(a->processed + r * a->vocab, a->vocab, &a->sampling[r], &a->draws[r])
                          : -1;
}

ls_status ls_cpu_sample(const ls_exec *exec, const ls_sample_args *args, ls_error *err) {
    rows_call call = {args, ls_sample_kernel_table[exec->workers->isa]};
    (void)err;
    ls_parallel_for(exec->workers->pool, args->rows, 1, sample_rows, &call);
    return LS_OK;
}

ls_status ls_cpu_support(const ls_exec *exec, const ls_support_args *args, ls_error *err) {
    (void)err;
    RUN(support, args->rows, args->vocab);
    return LS_OK;
}

ls_status ls_cpu_top(const ls_exec *exec, const ls_top_args *args, ls_error *err) {
    (void)err;
    RUN(top, args->rows, args->vocab);
    return LS_OK;
}

static ls_status check_items(const ls_penalize_args *a, ls_error *err) {
    for (int64_t r = 0; r < a->rows; r++) {
        if (a->begins[r] < 0 || a->begins[r + 1] < a->begins[r] || a->begins[r + 1] > a->items_max)
            return LS_FAIL(err, LS_ERR_ARG, "penalize: row %lld has items %lld to %lld of %lld", (long long)r,
                           (long long)a->begins[r], (long long)a->begins[r + 1], (long long)a->items_max);
        for (int64_t i = a->begins[r]; i < a->begins[r + 1]; i++)
            if (a->items[i].token < 0 || a->items[i].token >= a->vocab)
                return LS_FAIL(err, LS_ERR_ARG, "penalize: row %lld: token %d is not in 0..%lld", (long long)r,
                               a->items[i].token, (long long)a->vocab - 1);
    }
    return LS_OK;
}

ls_status ls_cpu_penalize(const ls_exec *exec, const ls_penalize_args *args, ls_error *err) {
    const ls_status status = check_items(args, err);
    if (status == LS_OK) RUN(penalize, args->rows, 1000);
    return status;
}

/* ---- training ---- */

ls_status ls_cpu_adamw(const ls_exec *exec, const ls_adamw_args *args, ls_error *err) {
    (void)err;
    RUN(adamw, blocks_of(args->n, LS_ADAMW_BLOCK), 20 * LS_ADAMW_BLOCK);
    return LS_OK;
}

ls_status ls_cpu_lora_merge(const ls_exec *exec, const ls_lora_merge_args *args, ls_error *err) {
    (void)err;
    RUN(lora_merge, args->n, args->k * args->rank);
    return LS_OK;
}

ls_status ls_cpu_lora_backward(const ls_exec *exec, const ls_lora_backward_args *args, ls_error *err) {
    (void)err;
    RUN(lora_backward_a, blocks_of(args->k, LS_LORA_BLOCK), LS_LORA_BLOCK * args->n * args->rank);
    RUN(lora_backward_b, args->n, args->k * args->rank);
    return LS_OK;
}

ls_status ls_cpu_squares(const ls_exec *exec, const ls_squares_args *args, ls_error *err) {
    (void)err;
    RUN(squares, args->ranges != NULL ? args->n_ranges : ls_squares_blocks(args->n), LS_SQUARES_BLOCK);
    return LS_OK;
}

ls_status ls_cpu_weight_cast(const ls_exec *exec, const ls_weight_cast_args *args, ls_error *err) {
    (void)err;
    RUN(weight_cast, blocks_of(args->n, LS_ADAMW_BLOCK), 4 * LS_ADAMW_BLOCK);
    return LS_OK;
}

ls_status ls_cpu_widen(const ls_exec *exec, const ls_widen_args *args, ls_error *err) {
    (void)err;
    RUN(widen, blocks_of(args->n, LS_ADAMW_BLOCK), LS_ADAMW_BLOCK);
    return LS_OK;
}

ls_status ls_cpu_decay(const ls_exec *exec, const ls_decay_args *args, ls_error *err) {
    (void)err;
    RUN(decay, blocks_of(args->n, LS_ADAMW_BLOCK), 20 * LS_ADAMW_BLOCK);
    return LS_OK;
}

ls_status ls_cpu_rates(const ls_exec *exec, const ls_rates_args *args, ls_error *err) {
    (void)err;
    RUN(rates, blocks_of(args->n, LS_ADAMW_BLOCK), 20 * LS_ADAMW_BLOCK);
    return LS_OK;
}

ls_status ls_cpu_taps(const ls_exec *exec, const ls_taps_args *args, ls_error *err) {
    (void)err;
    RUN(taps, args->rows, 2 * args->cols);
    return LS_OK;
}

/* ---- several ops in one ---- */

ls_status ls_cpu_mamba_step(const ls_exec *exec, const ls_mamba_step_args *args, ls_error *err) {
    LS_TRY(ls_cpu_gemm(exec, &args->in_proj, err));
    LS_TRY(ls_cpu_conv1d(exec, &args->conv, err));
    LS_TRY(ls_cpu_gemm(exec, &args->x_proj, err));
    LS_TRY(ls_cpu_rmsnorm_parts(exec, &args->norms, err));
    LS_TRY(ls_cpu_gemm(exec, &args->dt_proj, err));
    return ls_cpu_scan(exec, &args->scan, err);
}
