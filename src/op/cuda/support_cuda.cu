/* Supports and penalties on the GPU: a warp a word of bits, a block a row's items. */
#include "op/cuda/cuda_ops.h"
#include "op/cuda/vector_cuda.h"
#include "op/support_math.h"

#define THREADS 256

/* ---- support ---- */

typedef struct support_params {
    ls_support_args a;
    int64_t words, blocks; /* of a row */
} support_params;

static __global__ void __launch_bounds__(THREADS) support_kernel(const __grid_constant__ support_params p) {
    ls_cuda_begin();
    const int64_t row = blockIdx.x / p.blocks, v = blockIdx.x % p.blocks * THREADS + threadIdx.x, word = v / 32;
    const float none = -ls_from_bits(LS_INF_BITS);
    const bool is_there = v < p.a.vocab;
    if (word >= p.words) return; /* whole warps */
    float *logit = p.a.logits + row * p.a.vocab + v;
    uint32_t *bits = p.a.bits + row * p.words + word;
    if (p.a.apply) {
        if (is_there && (*bits >> (v % 32) & 1u) == 0) *logit = none;
        return;
    }
    const uint32_t found = __ballot_sync(LS_ALL_LANES, is_there && !(*logit == none));
    if (v % 32 == 0) *bits = found;
}

ls_status ls_cuda_support(const ls_exec *exec, const ls_support_args *a, ls_error *err) {
    const bool none = a->rows == 0;
    const ls_cuda_operand operands[] = {{"logits", a->logits, 4, none}, {"bits", a->bits, 4, none}};
    const ls_index index[] = {{LS_WIDTH_I64, {{{"row", a->rows}, {"vocab", a->vocab}, {"element", 4}}}}};
    support_params p = {*a, ls_support_words(a->vocab), a->vocab / THREADS + (a->vocab % THREADS != 0)};
    const ls_launch launch = {"support", {ls_launch_blocks(a->rows, p.blocks, 1), 1, 1}, THREADS, 0, index, 1};
    LS_CUDA_TRY(ls_cuda_check("support", exec, operands, 2, LS_WORKSPACE_HEAD, err));
    return none ? LS_OK : ls_cuda_launch(exec, &launch, (const void *)support_kernel, &p, err);
}

/* ---- penalize ---- */

/* A row names no entry twice: its items are independent. */
static __global__ void __launch_bounds__(THREADS) penalize_kernel(const __grid_constant__ ls_penalize_args a) {
    ls_cuda_begin();
    const int64_t row = blockIdx.x, end = a.begins[row + 1];
    const ls_penalties penalties = a.penalties[row];
    for (int64_t i = a.begins[row] + threadIdx.x; i < end; i += THREADS) {
        float *logit = a.logits + row * a.vocab + a.items[i].token;
        if (a.undo) {
            *logit = a.saved[i];
        } else {
            const float l = *logit;
            a.saved[i] = l;
            *logit = ls_penalized(l, &penalties, a.items[i].count);
        }
    }
}

ls_status ls_cuda_penalize(const ls_exec *exec, const ls_penalize_args *a, ls_error *err) {
    const bool none = a->rows == 0;
    const ls_cuda_operand operands[] = {{"logits", a->logits, 4, none},
                                        {"penalties", a->penalties, 4, none},
                                        {"begins", a->begins, 8, none},
                                        {"items", a->items, 4, a->items_max == 0},
                                        {"saved", a->saved, 4, a->items_max == 0}};
    const ls_index index[] = {{LS_WIDTH_I64, {{{"row", a->rows}, {"vocab", a->vocab}, {"element", 4}}}},
                              {LS_WIDTH_I64, {{{"item", a->items_max}, {"bytes", 8}}}}};
    const ls_launch launch = {"penalize", {a->rows, 1, 1}, THREADS, 0, index, 2};
    ls_penalize_args params = *a;
    LS_CUDA_TRY(ls_cuda_check("penalize", exec, operands, 5, LS_WORKSPACE_HEAD, err));
    return none ? LS_OK : ls_cuda_launch(exec, &launch, (const void *)penalize_kernel, &params, err);
}
