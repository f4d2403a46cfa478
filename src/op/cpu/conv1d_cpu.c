/* conv1d on the CPU: lanes are channels; a block keeps its window of inputs in registers and cache. */
#include "base/inject.h"
#include "op/conv1d.h"
#include "op/cpu/kernels.h"
#include "op/cpu/row_math.h"
#include "op/rows.h"

/* out = silu of one token's sums over `taps` inputs, oldest first. */
static inline __attribute__((always_inline)) void convolve(float *restrict out, const float *restrict bias,
                                                           const float *const *x, const float *restrict w,
                                                           int64_t w_stride, const int64_t taps, int64_t n) {
    for (int64_t c = 0; c < n; c++) {
        float acc = bias[c];
        for (int64_t k = 0; k < taps; k++) acc = ls_fma(w[k * w_stride + c], x[k][c], acc);
        out[c] = acc;
    }
}

static void run_block(const ls_conv1d_args *a, const ls_span *span, int64_t channel, int64_t n) {
    const int64_t past = a->d_conv - 1;
    const bool resumes = span->pos > 0 || (LS_INJECTED(LS_INJECT_STALE_SLOT) && span->n_rows == 1);
    const float *w = a->w + channel;
    float window[LS_CONV_WIDTH_MAX][LS_CONV1D_BLOCK], bias[LS_CONV1D_BLOCK] = {0}, y[LS_CONV1D_BLOCK];
    float *x[LS_CONV_WIDTH_MAX]; /* the window's rows, oldest input first; the last one is free between tokens */
    void *state = ls_pool_at(&a->state, span->slot);
    if (a->bias != NULL) ls_row_widen(bias, a->bias + channel, LS_F32, n);
    for (int64_t k = 0; k <= past; k++) x[k] = window[k];
    for (int64_t k = 0; k < past; k++) {
        if (resumes)
            ls_row_widen(x[k], ls_at(state, a->state_dtype, k * a->dim + channel), a->state_dtype, n);
        else
            memset(x[k], 0, sizeof window[k]);
    }
    for (int64_t t = 0; t < span->n_rows; t++) {
        const int64_t row = span->row + t;
        float *oldest = x[0], *newest = x[past];
        ls_row_widen(newest, ls_at(a->x, a->x_dtype, row * a->x_stride + channel), a->x_dtype, n);
        if (a->state_dtype != a->x_dtype)
            for (int64_t c = 0; c < n; c++) newest[c] = ls_round_to(newest[c], a->state_dtype);
        if (a->d_conv == 4) /* the usual width: sums stay in registers */
            convolve(y, bias, (const float *const *)x, w, a->dim, 4, n);
        else
            convolve(y, bias, (const float *const *)x, w, a->dim, a->d_conv, n);
        ls_row_silu(y, y, n);
        ls_row_narrow(ls_at_mut(a->y, a->y_dtype, row * a->y_stride + channel), a->y_dtype, y, n);
        for (int64_t k = 0; k < past; k++) x[k] = x[k + 1];
        x[past] = oldest;
    }
    for (int64_t k = 0; k < past && span->n_rows > 0; k++) {
        if (LS_INJECTED(LS_INJECT_CONV_SHORT_CHUNK) && span->n_rows > 1 && k + span->n_rows < past)
            memset(x[k], 0, sizeof window[0]);
        ls_row_narrow(ls_at_mut(state, a->state_dtype, k * a->dim + channel), a->state_dtype, x[k], n);
    }
}

LS_KERNEL_DEFINE(ls_conv1d_kernel) {
    const ls_conv1d_args *a = context;
    const int64_t blocks = (a->dim + LS_CONV1D_BLOCK - 1) / LS_CONV1D_BLOCK;
    (void)scratch;
    for (int64_t item = begin; item < end; item++) {
        const ls_span *span = &a->spans[item / blocks];
        const int64_t channel = item % blocks * LS_CONV1D_BLOCK, rest = a->dim - channel;
        if (span->slot >= 0) run_block(a, span, channel, rest < LS_CONV1D_BLOCK ? rest : LS_CONV1D_BLOCK);
    }
}
