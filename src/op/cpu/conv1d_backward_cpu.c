/* conv1d backward on the CPU: lanes are channels. One pass over a span keeps the last d_conv inputs and gradients of
 * the sums, so dx follows d_conv - 1 tokens behind. */
#include "num/expf.h"
#include "op/conv1d.h"
#include "op/cpu/kernels.h"
#include "op/rows.h"

typedef float lanes[LS_CONV1D_BLOCK];

/* Rings of what the last d_conv tokens had: token t at t % d_conv. Those before the first token are the initial inputs.
 */
typedef struct window {
    lanes x[LS_CONV_WIDTH_MAX], da[LS_CONV_WIDTH_MAX];
} window;

/* Token t's x' and da for n channels from `channel` on, into the rings. */
static void enter_token(window *ring, const ls_conv1d_backward_args *a, int64_t row, int64_t t, int64_t channel,
                        int64_t n) {
    const float *dy = a->dy + row * a->dy_stride + channel;
    float *newest = ring->x[t % a->d_conv], *da = ring->da[t % a->d_conv];
    lanes acc;
    ls_row_widen(newest, ls_at(a->x, a->x_dtype, row * a->x_stride + channel), a->x_dtype, n);
    if (a->state_dtype != a->x_dtype)
        for (int64_t c = 0; c < n; c++) newest[c] = ls_round_to(newest[c], a->state_dtype);
    for (int64_t c = 0; c < n; c++) acc[c] = a->bias != NULL ? a->bias[channel + c] : 0.0f;
    for (int64_t k = 0; k < a->d_conv; k++) {
        const float *w = a->w + k * a->dim + channel, *x = ring->x[(t + 1 + k) % a->d_conv];
        for (int64_t c = 0; c < n; c++) acc[c] = ls_fma(w[c], x[c], acc[c]);
    }
    for (int64_t c = 0; c < n; c++) {
        const float s = ls_sigmoid(acc[c]), l = ls_silu(acc[c]);
        da[c] = ls_mul(dy[c], ls_fma(l, ls_sub(1.0f, s), s));
    }
}

/* Where entry j of span i's window begins, in a tensor of windows. */
static int64_t window_at(const ls_conv1d_backward_args *a, int64_t i, int64_t j, int64_t channel) {
    return (i * (a->d_conv - 1) + j) * a->dim + channel;
}

static void enter_initial(window *ring, const ls_conv1d_backward_args *a, int64_t i, int64_t channel, int64_t n) {
    memset(ring->x, 0, sizeof ring->x);
    for (int64_t j = 0; j < a->d_conv - 1 && a->initial != NULL; j++)
        ls_row_widen(ring->x[j + 1], ls_at(a->initial, a->state_dtype, window_at(a, i, j, channel)), a->state_dtype, n);
}

/* The gradient of input t of span i, one before the span where t < 0: to dx or dinitial. */
static void leave_input(const window *ring, const ls_conv1d_backward_args *a, int64_t i, int64_t t, int64_t channel,
                        int64_t n) {
    const ls_span *span = &a->spans[i];
    const int64_t taps = a->d_conv, past = taps - 1, j = t - span->n_rows + past;
    lanes dx = {0};
    if (t < 0 && a->dinitial == NULL) return;
    for (int64_t later = t < 0 ? -t : 0; later < taps && t + later < span->n_rows; later++) {
        const float *w = a->w + (past - later) * a->dim + channel, *da = ring->da[(t + later) % taps];
        for (int64_t c = 0; c < n; c++) dx[c] = ls_fma(w[c], da[c], dx[c]);
    }
    if (a->dfinal != NULL && j >= 0)
        for (int64_t c = 0; c < n; c++) dx[c] = ls_add(dx[c], a->dfinal[window_at(a, i, j, channel) + c]);
    if (t >= 0)
        ls_row_narrow(ls_at_mut(a->dx, a->dx_dtype, (span->row + t) * a->dx_stride + channel), a->dx_dtype, dx, n);
    else
        memcpy(a->dinitial + window_at(a, i, t + past, channel), dx, (size_t)n * sizeof(float));
}

/* Channels [channel, channel + n) of span i; its shares of the parameters' gradients go to shares[block][tap][dim]. */
static void run_block(const ls_conv1d_backward_args *a, float *shares, int64_t i, int64_t channel, int64_t n) {
    const ls_span *span = &a->spans[i];
    const int64_t taps = a->d_conv, past = taps - 1;
    lanes sum[LS_CONV_WIDTH_MAX + 1]; /* dw's taps, then dbias */
    window ring;
    if (span->n_rows == 0) return;
    enter_initial(&ring, a, i, channel, n);
    for (int64_t t = 0; t < span->n_rows + past; t++) {
        if (t < span->n_rows) {
            const float *da = ring.da[t % taps];
            if (t % LS_CONV1D_SUM_BLOCK == 0) memset(sum, 0, sizeof sum);
            enter_token(&ring, a, span->row + t, t, channel, n);
            for (int64_t k = 0; k < taps; k++) {
                const float *x = ring.x[(t + 1 + k) % taps];
                for (int64_t c = 0; c < n; c++) sum[k][c] = ls_fma(da[c], x[c], sum[k][c]);
            }
            for (int64_t c = 0; c < n; c++) sum[taps][c] = ls_add(sum[taps][c], da[c]);
            if ((t + 1) % LS_CONV1D_SUM_BLOCK == 0 || t + 1 == span->n_rows)
                for (int64_t k = 0; k <= taps; k++)
                    memcpy(shares + (t / LS_CONV1D_SUM_BLOCK * (taps + 1) + k) * a->dim + channel, sum[k],
                           (size_t)n * sizeof(float));
        }
        leave_input(&ring, a, i, t - past, channel, n);
    }
}

static int64_t channels(const ls_conv1d_backward_args *a, int64_t block) {
    const int64_t rest = a->dim - block * LS_CONV1D_BLOCK;
    return rest < LS_CONV1D_BLOCK ? rest : LS_CONV1D_BLOCK;
}

/* The first share of span i. */
static float *shares_of(const ls_workspace_call *call, int64_t i) {
    const ls_conv1d_backward_args *a = call->args;
    return call->floats + (a->spans[i].row / LS_CONV1D_SUM_BLOCK + i) * (a->d_conv + 1) * a->dim;
}

LS_KERNEL_DEFINE(ls_conv1d_backward_kernel) {
    const ls_workspace_call *call = context;
    const ls_conv1d_backward_args *a = call->args;
    const int64_t blocks = (a->dim + LS_CONV1D_BLOCK - 1) / LS_CONV1D_BLOCK;
    (void)scratch;
    for (int64_t item = begin; item < end; item++) {
        const int64_t i = item / blocks, block = item % blocks;
        if (a->spans[i].slot >= 0) run_block(a, shares_of(call, i), i, block * LS_CONV1D_BLOCK, channels(a, block));
    }
}

/* The sum of parameter k (a tap, then the bias) of a channel. */
static float *sum_of(const ls_conv1d_backward_args *a, int64_t k, int64_t channel) {
    if (k == a->d_conv) return a->dbias + channel;
    return a->dw + (a->dw_by_channel ? channel * a->d_conv + k : k * a->dim + channel);
}

/* Items are blocks of channels: blocks of tokens add up to spans, spans to the call. */
LS_KERNEL_DEFINE(ls_conv1d_parameters_kernel) {
    const ls_workspace_call *call = context;
    const ls_conv1d_backward_args *a = call->args;
    (void)scratch;
    for (int64_t block = begin; block < end; block++)
        for (int64_t k = 0; k <= a->d_conv; k++) {
            const int64_t channel = block * LS_CONV1D_BLOCK, n = channels(a, block);
            lanes total = {0};
            if (k == a->d_conv && a->dbias == NULL) continue;
            for (int64_t c = 0; c < n && a->continued; c++) total[c] = *sum_of(a, k, channel + c);
            for (int64_t i = 0; i < a->n_spans; i++) {
                lanes part = {0};
                if (a->spans[i].slot < 0) continue;
                for (int64_t t = 0; t < a->spans[i].n_rows; t += LS_CONV1D_SUM_BLOCK) {
                    const float *share =
                        shares_of(call, i) + channel + (t / LS_CONV1D_SUM_BLOCK * (a->d_conv + 1) + k) * a->dim;
                    for (int64_t c = 0; c < n; c++) part[c] = ls_add(part[c], share[c]);
                }
                for (int64_t c = 0; c < n; c++) total[c] = ls_add(total[c], part[c]);
            }
            for (int64_t c = 0; c < n; c++) *sum_of(a, k, channel + c) = total[c];
        }
}
