/* scan on the CPU. An item is a block of channels of one span; the spans of a block follow each other, so that a decode
 * step of many sequences reads a block's parameters once.
 *
 * Two bodies update the state. With 16 states lanes are the states of a channel, as they lie in memory, and only the
 * tree over states moves them, in registers. With any other number lanes are channels, and a block's state and decay
 * rates are transposed once a span to [state][channel], so that this does not grow with the number of tokens. */
#include "base/inject.h"
#include "op/cpu/kernels.h"
#include "op/cpu/row_math.h"
#include "op/cpu/simd.h"
#include "op/rows.h"
#include "op/scan.h"

#define LANES 16
typedef float lanes[LANES];

#define BLOCK LS_SCAN_BLOCK
_Static_assert(BLOCK % LANES == 0, "a block is a number of lanes");

/* A block of channels of the op; arrays past its n channels are zero up to `width`, a multiple of LANES. */
typedef struct block {
    const ls_scan_args *args;
    int64_t channel, n, width;
    float bias[BLOCK], d[BLOCK];
    float rate_max; /* largest |a2| of the block, NaN if there is one */
} block;

/* One token of a block: inputs, and y before the gate. */
typedef struct token {
    float dt[BLOCK], u[BLOCK], v[BLOCK], z[BLOCK], y[BLOCK];
    float b[LS_SCAN_STATES_MAX], cc[LS_SCAN_STATES_MAX];
} token;

static void block_init(block *k, const ls_scan_args *a, int64_t channel) {
    const int64_t rest = a->dim - channel;
    k->args = a;
    k->channel = channel;
    k->n = rest < BLOCK ? rest : BLOCK;
    k->width = (k->n + LANES - 1) / LANES * LANES;
    memset(k->bias, 0, sizeof k->bias);
    memset(k->d, 0, sizeof k->d);
    if (a->dt_bias != NULL) ls_row_widen(k->bias, a->dt_bias + channel, LS_F32, k->n);
    if (a->d != NULL) ls_row_widen(k->d, a->d + channel, LS_F32, k->n);
    k->rate_max = ls_row_magnitude(a->a2 + channel * a->n_states, k->n * a->n_states);
}

/* Entry of the pool that the span starts from, or -1 for +0. */
static int32_t first_entry(const ls_scan_args *a, const ls_span *span) {
    if (span->pos > 0) return span->slot;
    if (LS_INJECTED(LS_INJECT_STALE_SLOT) && span->n_rows == 1) return span->slot;
    if (LS_INJECTED(LS_INJECT_NO_RESET_PACKED) && span > a->spans) return span[-1].slot;
    return -1;
}

/* Where the span's last state goes. */
static float *last_entry(const ls_scan_args *a, const ls_span *span) {
    if (LS_INJECTED(LS_INJECT_SLOT_STRIDE_U32) && span->n_rows > 1)
        return (float *)(void *)(a->state.base + (size_t)((uint32_t)span->slot * (uint32_t)(a->state.stride / 4)) * 4);
    return ls_pool_at(&a->state, span->slot);
}

/* Choices stand outside the loops over lanes, which vectorise only without them. */
static void load_token(token *t, const block *k, int64_t row, const ls_span *span) {
    const ls_scan_args *a = k->args;
    const int64_t n = k->n, width = k->width;
    ls_row_widen(t->dt, ls_at(a->dt_raw, a->in_dtype, row * a->dt_stride + k->channel), a->in_dtype, n);
    ls_row_widen(t->u, ls_at(a->u, a->in_dtype, row * a->u_stride + k->channel), a->in_dtype, n);
    if (a->z != NULL) ls_row_widen(t->z, ls_at(a->z, a->in_dtype, row * a->z_stride + k->channel), a->in_dtype, n);
    ls_row_widen(t->b, ls_at(a->b, a->in_dtype, row * a->b_stride), a->in_dtype, a->n_states);
    ls_row_widen(t->cc, ls_at(a->cc, a->in_dtype, row * a->c_stride), a->in_dtype, a->n_states);
    if (a->dt_bias != NULL)
        for (int64_t c = 0; c < width; c++) t->dt[c] = ls_add(t->dt[c], k->bias[c]);
    if (LS_INJECTED(LS_INJECT_SOFTPLUS_NAIVE) && !a->dt_activated && span->n_rows == 1)
        for (int64_t c = 0; c < width; c++) t->dt[c] = ls_log(ls_add(ls_exp(t->dt[c]), 1.0f));
    else if (!a->dt_activated)
        ls_row_softplus(t->dt, width);
    for (int64_t c = 0; c < width; c++) t->v[c] = ls_mul(t->dt[c], t->u[c]);
}

static void store_token(token *t, const block *k, int64_t row) {
    const ls_scan_args *a = k->args;
    if (a->d != NULL)
        for (int64_t c = 0; c < k->width; c++) t->y[c] = ls_fma(k->d[c], t->u[c], t->y[c]);
    if (a->z != NULL) {
        ls_row_silu(t->z, t->z, k->width);
        for (int64_t c = 0; c < k->width; c++) t->y[c] = ls_mul(t->y[c], t->z[c]);
    }
    ls_row_narrow(ls_at_mut(a->out, a->out_dtype, row * a->out_stride + k->channel), a->out_dtype, t->y, k->n);
}

/* ---- 16 states ---- */

#define STATES 16
#define SIDE 4 /* channels side by side */

/* h of SIDE channels after a token, in place. inside: every dt * a2 is known to lie within [-126, 126]. */
static LS_SIMD void update_16(float *restrict h, const float *restrict a2, const float *restrict b,
                              const float *restrict dt, const float *restrict v, const int n, const bool inside) {
    for (int c = 0; c < n; c++)
        for (int s = 0; s < STATES; s++) {
            const int i = c * STATES + s;
            const float decay = inside ? ls_exp2_product_inside(dt[c], a2[i]) : ls_exp2_product(dt[c], a2[i]);
            h[i] = ls_fma(decay, h[i], ls_mul(v[c], b[s]));
        }
}

static float tree_16(const float *h, const float *cc) {
    float p[4] = {0};
    for (int j = 0; j < 4; j++)
        for (int g = 0; g < 4; g++) p[g] = ls_fma(h[4 * g + j], cc[4 * g + j], p[g]);
    return ls_add(ls_add(p[0], p[1]), ls_add(p[2], p[3]));
}

#if defined(__AVX2__)
/* Group of each lane when two channels' states are transposed within 128-bit halves. */
static const int lane_group[8] = {0, 2, 0, 2, 1, 3, 1, 3};

/* (p0 + p1, p2 + p3) of two channels; cc_at[j]: cc of step j for each lane. */
static LS_SIMD __m128 pair_sums(const float *h, const __m256 cc_at[4]) {
    const __m256 a0 = _mm256_loadu_ps(h), a1 = _mm256_loadu_ps(h + 8);
    const __m256 b0 = _mm256_loadu_ps(h + 16), b1 = _mm256_loadu_ps(h + 24);
    const __m256 a_low = _mm256_unpacklo_ps(a0, a1), a_high = _mm256_unpackhi_ps(a0, a1);
    const __m256 b_low = _mm256_unpacklo_ps(b0, b1), b_high = _mm256_unpackhi_ps(b0, b1);
    __m256 p = _mm256_setzero_ps();
    p = _mm256_fmadd_ps(_mm256_shuffle_ps(a_low, b_low, 0x44), cc_at[0], p);
    p = _mm256_fmadd_ps(_mm256_shuffle_ps(a_low, b_low, 0xEE), cc_at[1], p);
    p = _mm256_fmadd_ps(_mm256_shuffle_ps(a_high, b_high, 0x44), cc_at[2], p);
    p = _mm256_fmadd_ps(_mm256_shuffle_ps(a_high, b_high, 0xEE), cc_at[3], p);
    return _mm_add_ps(_mm256_castps256_ps128(p), _mm256_extractf128_ps(p, 1));
}
#endif

static LS_SIMD void token_16(float *h, const float *a2, token *t, const int64_t n, const bool inside) {
    int64_t c = 0;
#if defined(__AVX2__)
    __m256 cc_at[4];
    for (int j = 0; j < 4; j++) {
        float at[8];
        for (int l = 0; l < 8; l++) at[l] = t->cc[4 * lane_group[l] + j];
        cc_at[j] = _mm256_loadu_ps(at);
    }
    for (; c + SIDE <= n; c += SIDE) {
        float *side = h + c * STATES;
        __m128 first, second;
        update_16(side, a2 + c * STATES, t->b, t->dt + c, t->v + c, SIDE, inside);
        first = pair_sums(side, cc_at);
        second = pair_sums(side + 2 * STATES, cc_at);
        _mm_storeu_ps(t->y + c, _mm_add_ps(_mm_shuffle_ps(first, second, 0x88), _mm_shuffle_ps(first, second, 0xDD)));
    }
#endif
    for (; c < n; c++) {
        update_16(h + c * STATES, a2 + c * STATES, t->b, t->dt + c, t->v + c, 1, inside);
        t->y[c] = tree_16(h + c * STATES, t->cc);
    }
}

static void span_16(const block *k, const ls_span *span, token *t) {
    const float *a2 = k->args->a2 + k->channel * STATES;
    const int32_t first = first_entry(k->args, span);
    float *h = last_entry(k->args, span) + k->channel * STATES;
    if (first < 0) {
        memset(h, 0, (size_t)(k->n * STATES) * sizeof *h);
    } else {
        const float *from = (const float *)ls_pool_at(&k->args->state, first) + k->channel * STATES;
        if (from != h) memcpy(h, from, (size_t)(k->n * STATES) * sizeof *h);
    }
    for (int64_t row = span->row; row < span->row + span->n_rows; row++) {
        load_token(t, k, row, span);
        /* A product of magnitudes bounds every product, rounding included; with a NaN it is none. */
        if (ls_mul(ls_row_magnitude(t->dt, k->width), k->rate_max) <= 126.0f)
            token_16(h, a2, t, k->n, true);
        else
            token_16(h, a2, t, k->n, false);
        store_token(t, k, row);
    }
}

/* ---- any number of states ---- */

/* LANES channels: h and a2 [states][LANES]. */
static void token_lanes(lanes *h, lanes *a2, token *t, int64_t first, int64_t states) {
    const int64_t group = (states + 3) / 4;
    const float *dt = t->dt + first, *v = t->v + first;
    float *y = t->y + first;
    lanes part[4];
    for (int g = 0; g < 4; g++) {
        const int64_t last = (g + 1) * group < states ? (g + 1) * group : states;
        lanes p = {0};
        for (int64_t s = g * group; s < last; s++) {
            const float b_s = t->b[s], c_s = t->cc[s];
            for (int c = 0; c < LANES; c++) {
                const float decay = ls_exp2_product(dt[c], a2[s][c]);
                h[s][c] = ls_fma(decay, h[s][c], ls_mul(v[c], b_s));
                p[c] = ls_fma(h[s][c], c_s, p[c]);
            }
        }
        memcpy(part[g], p, sizeof p);
    }
    for (int c = 0; c < LANES; c++) y[c] = ls_add(ls_add(part[0][c], part[1][c]), ls_add(part[2][c], part[3][c]));
}

static void span_lanes(const block *k, const ls_span *span, token *t, float *scratch) {
    const int64_t states = k->args->n_states;
    const float *rates = k->args->a2 + k->channel * states;
    const int32_t first = first_entry(k->args, span);
    float *state = last_entry(k->args, span) + k->channel * states;
    lanes *h = (lanes *)(void *)scratch, *a2 = h + k->width / LANES * states;
    if (k->n < k->width || first < 0) memset(h, 0, (size_t)(k->width * states) * sizeof(float));
    if (k->n < k->width) memset(a2, 0, (size_t)(k->width * states) * sizeof(float));
    for (int64_t c = 0; c < k->n; c += LANES) {
        const int64_t n = k->n - c < LANES ? k->n - c : LANES, at = c / LANES * states;
        if (first >= 0)
            ls_transpose(h[at], LANES, (const float *)ls_pool_at(&k->args->state, first) + (k->channel + c) * states,
                         states, n, states);
        ls_transpose(a2[at], LANES, rates + c * states, states, n, states);
    }
    for (int64_t row = span->row; row < span->row + span->n_rows; row++) {
        load_token(t, k, row, span);
        for (int64_t c = 0; c < k->n; c += LANES)
            token_lanes(h + c / LANES * states, a2 + c / LANES * states, t, c, states);
        store_token(t, k, row);
    }
    for (int64_t c = 0; c < k->n; c += LANES)
        ls_transpose(state + c * states, states, h[c / LANES * states], LANES, states,
                     k->n - c < LANES ? k->n - c : LANES);
}

LS_KERNEL_DEFINE(ls_scan_kernel) {
    const ls_scan_args *a = context;
    token t;
    block k;
    memset(&t, 0, sizeof t);
    for (int64_t item = begin; item < end; item++) {
        const ls_span *span = &a->spans[item % a->n_spans];
        if (item == begin || item % a->n_spans == 0) block_init(&k, a, item / a->n_spans * BLOCK);
        if (span->slot < 0 || span->n_rows == 0) continue;
        if (a->n_states == STATES)
            span_16(&k, span, &t);
        else
            span_lanes(&k, span, &t, scratch);
    }
}
