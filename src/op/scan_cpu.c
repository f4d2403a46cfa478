/* scan on the CPU: lanes are channels. A block's state and decay rates are transposed once a span to [state][channel],
 * so that memory traffic for them does not grow with the number of tokens. */
#include "base/inject.h"
#include "num/expf.h"
#include "op/kernels.h"
#include "op/rows.h"
#include "op/scan.h"

typedef float lanes[LS_SCAN_BLOCK];

/* Entry of the pool that the span starts from, or -1 for +0. */
static int32_t first_entry(const ls_scan_args *a, const ls_span *span) {
    if (span->pos > 0) return span->slot;
    if (LS_INJECTED(LS_INJECT_STALE_SLOT) && span->n_rows == 1) return span->slot;
    if (LS_INJECTED(LS_INJECT_NO_RESET_PACKED) && span > a->spans) return span[-1].slot;
    return -1;
}

/* Where the span's last state goes. */
static uint8_t *last_entry(const ls_scan_args *a, const ls_span *span) {
    if (LS_INJECTED(LS_INJECT_SLOT_STRIDE_U32) && span->n_rows > 1)
        return a->state.base + (size_t)((uint32_t)span->slot * (uint32_t)(a->state.stride / 4)) * 4;
    return ls_pool_at(&a->state, span->slot);
}

static void run_block(const ls_scan_args *a, const ls_span *span, int64_t channel, int64_t n, float *scratch) {
    const int64_t states = a->n_states, group = (states + 3) / 4;
    lanes *h = (lanes *)(void *)scratch, *a2 = h + states;
    float *b = (float *)(void *)(a2 + states), *cc = b + states;
    lanes bias = {0}, d = {0};
    const int32_t first = first_entry(a, span);
    if (n < LS_SCAN_BLOCK || first < 0) memset(h, 0, (size_t)states * sizeof(lanes));
    if (n < LS_SCAN_BLOCK) memset(a2, 0, (size_t)states * sizeof(lanes));
    if (first >= 0)
        ls_transpose(h[0], LS_SCAN_BLOCK, (const float *)ls_pool_at(&a->state, first) + channel * states, states, n,
                     states);
    ls_transpose(a2[0], LS_SCAN_BLOCK, a->a2 + channel * states, states, n, states);
    for (int64_t c = 0; c < n; c++) {
        if (a->dt_bias != NULL) bias[c] = a->dt_bias[channel + c];
        if (a->d != NULL) d[c] = a->d[channel + c];
    }
    for (int64_t t = 0; t < span->n_rows; t++) {
        const int64_t row = span->row + t;
        lanes dt = {0}, u = {0}, z = {0}, v, part[4], y;
        ls_row_widen(dt, ls_at(a->dt_raw, a->in_dtype, row * a->dt_stride + channel), a->in_dtype, n);
        ls_row_widen(u, ls_at(a->u, a->in_dtype, row * a->u_stride + channel), a->in_dtype, n);
        if (a->z != NULL) ls_row_widen(z, ls_at(a->z, a->in_dtype, row * a->z_stride + channel), a->in_dtype, n);
        ls_row_widen(b, ls_at(a->b, a->in_dtype, row * a->b_stride), a->in_dtype, states);
        ls_row_widen(cc, ls_at(a->cc, a->in_dtype, row * a->c_stride), a->in_dtype, states);
        /* Choices stand outside the loops over lanes, which vectorise only without them. */
        if (a->dt_bias != NULL)
            for (int c = 0; c < LS_SCAN_BLOCK; c++) dt[c] = ls_add(dt[c], bias[c]);
        if (LS_INJECTED(LS_INJECT_SOFTPLUS_NAIVE) && !a->dt_activated && span->n_rows == 1)
            for (int c = 0; c < LS_SCAN_BLOCK; c++) dt[c] = ls_log(ls_add(ls_exp(dt[c]), 1.0f));
        else if (!a->dt_activated)
            for (int c = 0; c < LS_SCAN_BLOCK; c++) dt[c] = ls_softplus(dt[c]);
        for (int c = 0; c < LS_SCAN_BLOCK; c++) v[c] = ls_mul(dt[c], u[c]);
        for (int g = 0; g < 4; g++) {
            const int64_t last = (g + 1) * group < states ? (g + 1) * group : states;
            lanes p = {0};
            for (int64_t s = g * group; s < last; s++) {
                const float b_s = b[s], c_s = cc[s];
                for (int c = 0; c < LS_SCAN_BLOCK; c++) {
                    const float decay = ls_exp2_product(dt[c], a2[s][c]);
                    h[s][c] = ls_fma(decay, h[s][c], ls_mul(v[c], b_s));
                    p[c] = ls_fma(h[s][c], c_s, p[c]);
                }
            }
            memcpy(part[g], p, sizeof p);
        }
        for (int c = 0; c < LS_SCAN_BLOCK; c++)
            y[c] = ls_add(ls_add(part[0][c], part[1][c]), ls_add(part[2][c], part[3][c]));
        if (a->d != NULL)
            for (int c = 0; c < LS_SCAN_BLOCK; c++) y[c] = ls_fma(d[c], u[c], y[c]);
        if (a->z != NULL)
            for (int c = 0; c < LS_SCAN_BLOCK; c++) y[c] = ls_mul(y[c], ls_silu(z[c]));
        ls_row_narrow(ls_at_mut(a->out, a->out_dtype, row * a->out_stride + channel), a->out_dtype, y, n);
    }
    if (span->n_rows > 0)
        ls_transpose((float *)(void *)last_entry(a, span) + channel * states, states, h[0], LS_SCAN_BLOCK, states, n);
}

LS_KERNEL_DEFINE(ls_scan_kernel) {
    const ls_scan_args *a = context;
    const int64_t blocks = (a->dim + LS_SCAN_BLOCK - 1) / LS_SCAN_BLOCK;
    for (int64_t item = begin; item < end; item++) {
        const ls_span *span = &a->spans[item / blocks];
        const int64_t channel = item % blocks * LS_SCAN_BLOCK, rest = a->dim - channel;
        if (span->slot >= 0) run_block(a, span, channel, rest < LS_SCAN_BLOCK ? rest : LS_SCAN_BLOCK, scratch);
    }
}
