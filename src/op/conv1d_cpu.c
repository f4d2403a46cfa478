/* conv1d on the CPU: lanes are channels; a block keeps its window of inputs in registers and cache. */
#include "base/inject.h"
#include "num/expf.h"
#include "op/conv1d.h"
#include "op/kernels.h"
#include "op/rows.h"

static void run_block(const ls_conv1d_args *a, const ls_span *span, int64_t channel, int64_t n) {
    const int64_t past = a->d_conv - 1;
    const bool resumes = span->pos > 0 || (LS_INJECTED(LS_INJECT_STALE_SLOT) && span->n_rows == 1);
    float window[LS_CONV_WIDTH_MAX][LS_CONV1D_BLOCK]; /* a ring: row (first + k) % d_conv is tap k */
    int64_t first = 0;
    void *state = ls_pool_at(&a->state, span->slot);
    for (int64_t k = 0; k < past; k++) {
        if (resumes)
            ls_row_widen(window[k], ls_at(state, a->state_dtype, k * a->dim + channel), a->state_dtype, n);
        else
            memset(window[k], 0, sizeof window[k]);
    }
    for (int64_t t = 0; t < span->n_rows; t++) {
        const int64_t row = span->row + t;
        float *newest = window[(first + past) % a->d_conv], acc[LS_CONV1D_BLOCK];
        ls_row_widen(newest, ls_at(a->x, a->x_dtype, row * a->x_stride + channel), a->x_dtype, n);
        if (a->state_dtype != a->x_dtype)
            for (int64_t c = 0; c < n; c++) newest[c] = ls_round_to(newest[c], a->state_dtype);
        for (int64_t c = 0; c < n; c++) acc[c] = a->bias != NULL ? a->bias[channel + c] : 0.0f;
        for (int64_t k = 0; k <= past; k++) {
            const float *w = a->w + k * a->dim + channel, *x = window[(first + k) % a->d_conv];
            for (int64_t c = 0; c < n; c++) acc[c] = ls_fma(w[c], x[c], acc[c]);
        }
        for (int64_t c = 0; c < n; c++) acc[c] = ls_silu(acc[c]);
        ls_row_narrow(ls_at_mut(a->y, a->y_dtype, row * a->y_stride + channel), a->y_dtype, acc, n);
        first = (first + 1) % a->d_conv;
    }
    for (int64_t k = 0; k < past && span->n_rows > 0; k++) {
        float *kept = window[(first + k) % a->d_conv];
        if (LS_INJECTED(LS_INJECT_CONV_SHORT_CHUNK) && span->n_rows > 1 && k + span->n_rows < past)
            memset(kept, 0, sizeof window[0]);
        ls_row_narrow(ls_at_mut(state, a->state_dtype, k * a->dim + channel), a->state_dtype, kept, n);
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
