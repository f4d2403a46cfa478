/* The float64 forward with changes. One sequence at a time, from position 0, all tokens in one piece. */
#include "diagnose/explain/reference.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "diagnose/explain/reference_state.h"
#include "diagnose/explain/rounded.h"
#include "op/attention.h"

/* ---- rounding ---- */

static void round_all(double *x, int64_t n, ls_rounding to) {
    if (to == LS_ROUND_NONE) return;
    for (int64_t i = 0; i < n; i++) x[i] = ls_rounded(x[i], to);
}

static double largest_of(const double *x, int64_t n) {
    double most = 0.0;
    for (int64_t i = 0; i < n; i++) most = fabs(x[i]) > most ? fabs(x[i]) : most;
    return most;
}

/* Integers up to `top`, or e4m3 for top 448, with one scale. */
static void quantise(double *out, const double *in, int64_t n, double top) {
    const double scale = largest_of(in, n) / top + 1e-30;
    for (int64_t i = 0; i < n; i++)
        out[i] = (top == 448.0 ? ls_rounded_fp8(in[i] / scale) : rint(in[i] / scale)) * scale;
}

/* x [n][groups][size] as a cache would hold it. */
static void round_keys(double *x, int64_t n, int64_t groups, int64_t size, const ls_edit *e) {
    const int64_t all = n * groups * size, per = e->keys_per == 1 ? size : e->keys_per == 2 ? groups * size : 32;
    if (e->keys_per == 0 || e->keys == LS_ROUND_NONE) {
        round_all(x, all, e->keys);
        return;
    }
    for (int64_t i = 0; i < all; i += per)
        quantise(x + i, x + i, i + per < all ? per : all - i,
                 e->keys == LS_ROUND_FP8    ? 448.0
                 : e->keys == LS_ROUND_INT4 ? 7.0
                                            : 127.0);
}

static void change_matrix(double *out, const matrix *m, ls_weight_change change) {
    const int64_t n = m->rows * m->columns;
    switch (change) {
        case LS_CHANGED_BF16: memcpy(out, m->at, (size_t)n * sizeof *out), round_all(out, n, LS_ROUND_BF16); return;
        case LS_CHANGED_F16: memcpy(out, m->at, (size_t)n * sizeof *out), round_all(out, n, LS_ROUND_F16); return;
        case LS_CHANGED_FP8_TENSOR: quantise(out, m->at, n, 448.0); return;
        case LS_CHANGED_INT8_TENSOR: quantise(out, m->at, n, 127.0); return;
        case LS_CHANGED_FP8:
        case LS_CHANGED_INT8:
        case LS_CHANGED_INT4: {
            const double top = change == LS_CHANGED_FP8 ? 448.0 : change == LS_CHANGED_INT8 ? 127.0 : 7.0;
            for (int64_t i = 0; i < m->rows; i++)
                quantise(out + i * m->columns, m->at + i * m->columns, m->columns, top);
            return;
        }
        case LS_CHANGED_INT4_GROUPS:
            for (int64_t i = 0; i < n; i += 32) quantise(out + i, m->at + i, i + 32 < n ? 32 : n - i, 7.0);
            return;
        case LS_CHANGED_E4M3: memcpy(out, m->at, (size_t)n * sizeof *out), round_all(out, n, LS_ROUND_FP8); return;
        case LS_CHANGED_E5M2: memcpy(out, m->at, (size_t)n * sizeof *out), round_all(out, n, LS_ROUND_E5M2); return;
        case LS_CHANGED_WIDE_FP8:
            for (int64_t i = 0; i < n; i++) out[i] = ls_rounded_mantissa(m->at[i], 4);
            return;
        default: memcpy(out, m->at, (size_t)n * sizeof *out); return;
    }
}

static bool is_rounding(ls_weight_change change) { return change >= LS_CHANGED_BF16 && change <= LS_CHANGED_WIDE_FP8; }

/* Rows [a, a + n) and [b, b + n) exchanged. */
static void exchange_rows(double *out, const matrix *m, int64_t a, int64_t b, int64_t n) {
    const size_t bytes = (size_t)(n * m->columns) * sizeof *out;
    memcpy(out, m->at, (size_t)(m->rows * m->columns) * sizeof *out);
    memcpy(out + a * m->columns, m->at + b * m->columns, bytes);
    memcpy(out + b * m->columns, m->at + a * m->columns, bytes);
}

/* ---- the forward ---- */

/* Arrays of one call, given back together. */
typedef struct scratch {
    void **list;
    int64_t n, cap;
} scratch;

static ls_status room(scratch *s, double **out, int64_t rows, int64_t columns, ls_error *err) {
    int64_t n;
    if (!ls_mul_i64(rows, columns, &n)) return LS_FAIL(err, LS_ERR_NOMEM, "reference forward");
    LS_TRY(ls_array_grow((void **)&s->list, &s->cap, s->n + 1, sizeof *s->list, "scratch", err));
    LS_TRY(ls_array_alloc((void **)out, n, sizeof **out, "reference forward", err));
    s->list[s->n++] = *out;
    return LS_OK;
}

static void release_scratch(scratch *s, int64_t from) {
    while (s->n > from) free(s->list[--s->n]);
}

static void release_all(scratch *s) {
    release_scratch(s, 0);
    free(s->list);
}

typedef struct pass {
    const ls_reference *r;
    const ls_model_config *c;
    ls_edit e;
    const int32_t *tokens;
    int64_t n;
    scratch *s;
    ls_error *err;
} pass;

/* y [n][rows] = x [n][columns] . m + bias. */
static void matrix_product(double *y, const double *x, int64_t n, const matrix *m, const matrix *bias) {
    for (int64_t t = 0; t < n; t++)
        for (int64_t o = 0; o < m->rows; o++) {
            const double *w = m->at + o * m->columns, *in = x + t * m->columns;
            double sum[4] = {0.0, 0.0, 0.0, 0.0};
            int64_t i = 0;
            for (; i + 4 <= m->columns; i += 4)
                for (int k = 0; k < 4; k++) sum[k] += w[i + k] * in[i + k];
            for (; i < m->columns; i++) sum[0] += w[i] * in[i];
            y[t * m->rows + o] =
                sum[0] + sum[1] + sum[2] + sum[3] + (bias != NULL && bias->at != NULL ? bias->at[o] : 0.0);
        }
}

/* own: the configuration's epsilon of this norm. */
static void rms_with(const pass *p, double *y, const double *x, int64_t n, const double *w, bool ones, double own) {
    const double eps = p->e.norm_eps > 0.0 ? p->e.norm_eps : own;
    double sum = 0.0, factor;
    for (int64_t i = 0; i < n; i++) sum += x[i] * x[i];
    factor = p->e.eps_outside ? 1.0 / (sqrt(sum / (double)n) + eps) : 1.0 / sqrt(sum / (double)n + eps);
    for (int64_t i = 0; i < n; i++) y[i] = x[i] * factor * (ones ? 1.0 : w[i]);
}

static void rms(const pass *p, double *y, const double *x, int64_t n, const double *w, bool ones) {
    rms_with(p, y, x, n, w, ones, (double)p->c->rms_eps);
}

/* A norm of dt, B or C, in place. */
static void inner_rms(const pass *p, double *x, int64_t n, const double *w) {
    rms_with(p, x, x, n, w, w == NULL, (double)p->c->inner_eps);
}

static double silu(double x) { return x / (1.0 + exp(-x)); }
static double softplus(double x) { return x > 0.0 ? x + log1p(exp(-x)) : log1p(exp(x)); }
static double gelu(double x) { return 0.5 * x * (1.0 + erf(x * 0.70710678118654752)); }

static bool is_cut(const pass *p, int64_t position) {
    return p->e.cut_every > 0 && position > 0 && position % p->e.cut_every == 0 && position >= p->e.cut_from &&
           (p->e.cut_before == 0 || position < p->e.cut_before);
}

/* From which position on position t still remembers. */
static int64_t memory_from(const pass *p, int64_t t, int32_t what) {
    for (int64_t i = t; i > 0; i--) {
        if ((p->e.lose & what) != 0 && is_cut(p, i)) return i;
        if (p->e.reset_token > 0 && p->tokens[i] == p->e.reset_token - 1) return i;
    }
    return 0;
}

/* The input that stands where that of `at` should, in a window that was cut in front of `from`; -1: none. */
static int64_t window_input(const pass *p, int64_t at, int64_t from) {
    const int64_t width = p->c->d_conv - 1, first = from - width, by = p->e.window_by;
    if (at >= from) return at;
    switch (p->e.window_kept) {
        case LS_WINDOW_TURNED: return first + (at - first + by) % width;
        case LS_WINDOW_LATE: return at - by;
        case LS_WINDOW_NEWEST: return at >= first + by ? at : -1;
        case LS_WINDOW_OLDEST: return at < from - by ? at : -1;
        default: return -1;
    }
}

static ls_status mamba(const pass *p, double *out, const double *x, const layer *l) {
    const ls_model_config *c = p->c;
    const int64_t n = p->n, d = c->d_inner, states = c->d_state, rank = c->dt_rank, narrow = rank + 2 * states;
    const int64_t mark = p->s->n;
    const double bias_factor = p->e.no_dt_bias ? 0.0 : p->e.dt_bias_twice ? 2.0 : 1.0;
    const double skip = p->e.no_d ? 0.0 : p->e.skip_scale > 0.0 ? p->e.skip_scale : 1.0;
    double *uz, *u, *xp, *dt, *h, *y, *kept, *a;
    LS_TRY(room(p->s, &uz, n, 2 * d, p->err));
    LS_TRY(room(p->s, &u, n, d, p->err));
    LS_TRY(room(p->s, &xp, n, narrow, p->err));
    LS_TRY(room(p->s, &kept, n, rank, p->err));
    LS_TRY(room(p->s, &dt, n, d, p->err));
    LS_TRY(room(p->s, &h, d, states, p->err));
    LS_TRY(room(p->s, &y, n, d, p->err));
    LS_TRY(room(p->s, &a, d, states, p->err));
    for (int64_t i = 0; i < d * states; i++)
        a[i] = exp(l->of[A_LOG].at[i]) * (p->e.decay_scale > 0.0 ? p->e.decay_scale : 1.0);
    matrix_product(uz, x, n, &l->of[IN_PROJ], &l->of[IN_BIAS]);
    for (int64_t t = 0; t < n; t++) {
        const int64_t from = memory_from(p, t, LS_LOSE_WINDOW);
        for (int64_t i = 0; i < d; i++) {
            double sum = l->of[CONV_BIAS].at != NULL && !p->e.no_conv_bias ? l->of[CONV_BIAS].at[i] : 0.0;
            for (int64_t j = 0; j < c->d_conv; j++) {
                const int64_t at = window_input(p, t - (c->d_conv - 1) + j, from);
                const int64_t tap = p->e.turned_taps ? c->d_conv - 1 - j : j;
                if (at >= 0) sum += uz[at * 2 * d + i] * l->of[CONV].at[i * c->d_conv + tap];
            }
            u[t * d + i] = p->e.no_conv_silu ? sum : silu(sum);
        }
    }
    round_all(u, n * d, p->e.activations);
    matrix_product(xp, u, n, &l->of[X_PROJ], NULL);
    for (int64_t t = 0; t < n; t++) {
        double *row = xp + t * narrow;
        if (c->inner_norms && !p->e.no_inner_norms) {
            inner_rms(p, row, rank, l->of[DT_NORM].at);
            inner_rms(p, row + rank, states, l->of[B_NORM].at);
            inner_rms(p, row + rank + states, states, l->of[C_NORM].at);
        }
        memcpy(kept + t * rank, row, (size_t)rank * sizeof *row);
    }
    matrix_product(dt, kept, n, &l->of[DT_PROJ], NULL);
    for (int64_t i = 0; l->of[DT_BIAS].at != NULL && i < n * d; i++) dt[i] += bias_factor * l->of[DT_BIAS].at[i % d];
    for (int64_t i = 0; i < d * states; i++) h[i] = 0.0;
    for (int64_t t = 0; t < n; t++) {
        const double *b = xp + t * narrow + rank, *cc = b + states;
        if (t > 0 && memory_from(p, t, LS_LOSE_STATE) == t)
            for (int64_t i = 0; i < d * states; i++) h[i] = 0.0;
        for (int64_t i = 0; i < d; i++) {
            const double step = softplus(dt[t * d + i]), in = step * u[t * d + i], z = uz[t * 2 * d + d + i];
            double sum = skip * l->of[SKIP].at[i] * u[t * d + i];
            for (int64_t s = 0; s < states; s++) {
                double *state = &h[i * states + s];
                *state = exp(-step * a[i * states + s]) * *state + in * b[s];
                sum += *state * cc[s];
            }
            y[t * d + i] = sum * silu(z);
        }
    }
    round_all(y, n * d, p->e.activations);
    matrix_product(out, y, n, &l->of[OUT_PROJ], &l->of[OUT_BIAS]);
    release_scratch(p->s, mark);
    return LS_OK;
}

/* Behind the scan of Mamba-2: the gate, then the norm of each group. */
static void gated_norm(const pass *p, double *y, const double *z, const double *w) {
    const ls_model_config *c = p->c;
    const int64_t n = c->d_inner / c->ssd_groups;
    const double eps = p->e.norm_eps > 0.0 ? p->e.norm_eps : (double)c->rms_eps;
    for (int64_t g = 0; g < c->ssd_groups; g++) {
        double sum = 0.0;
        for (int64_t i = g * n; i < (g + 1) * n; i++) {
            y[i] *= silu(z[i]);
            sum += y[i] * y[i];
        }
        for (int64_t i = g * n; i < (g + 1) * n; i++) y[i] = y[i] / sqrt(sum / (double)n + eps) * w[i];
    }
}

/* Columns from `first` on of rows go through the convolution, in place of themselves. */
static ls_status convolve_columns(const pass *p, double *rows, int64_t stride, int64_t first, const layer *l) {
    const ls_model_config *c = p->c;
    const int64_t n = p->n, d = first, conv = ls_config_conv_dim(c);
    double *u;
    LS_TRY(room(p->s, &u, n, conv, p->err));
    for (int64_t t = 0; t < n; t++) {
        const int64_t from = memory_from(p, t, LS_LOSE_WINDOW);
        for (int64_t i = 0; i < conv; i++) {
            double sum = l->of[CONV_BIAS].at != NULL && !p->e.no_conv_bias ? l->of[CONV_BIAS].at[i] : 0.0;
            for (int64_t j = 0; j < c->d_conv; j++) {
                const int64_t at = window_input(p, t - (c->d_conv - 1) + j, from);
                const int64_t tap = p->e.turned_taps ? c->d_conv - 1 - j : j;
                if (at >= 0) sum += rows[at * stride + d + i] * l->of[CONV].at[i * c->d_conv + tap];
            }
            u[t * conv + i] = p->e.no_conv_silu ? sum : silu(sum);
        }
    }
    for (int64_t t = 0; t < n; t++) memcpy(rows + t * stride + d, u + t * conv, (size_t)conv * sizeof *u);
    return LS_OK;
}

/* z | x | B | C | dt of x, of which x, B and C go through the convolution in place of themselves. */
static ls_status mamba2_inputs(const pass *p, double *rows, const double *x, const layer *l) {
    const ls_model_config *c = p->c;
    matrix_product(rows, x, p->n, &l->of[IN_PROJ], &l->of[IN_BIAS]);
    return convolve_columns(p, rows, c->d_inner + ls_config_conv_dim(c) + c->ssd_heads, c->d_inner, l);
}

/* One token of a head: y of its channels, and its state [P][S] behind it. */
static void mamba2_head(const pass *p, double *y, double *state, const double *row, const layer *l, int64_t head) {
    const ls_model_config *c = p->c;
    const int64_t size = c->d_inner / c->ssd_heads, states = c->d_state, d = c->d_inner;
    const int64_t group = head / (c->ssd_heads / c->ssd_groups);
    const double *x = row + d + head * size, *b = row + 2 * d + group * states, *cc = b + c->ssd_groups * states;
    const double bias_factor = p->e.no_dt_bias ? 0.0 : p->e.dt_bias_twice ? 2.0 : 1.0;
    const double skip = (p->e.no_d ? 0.0 : p->e.skip_scale > 0.0 ? p->e.skip_scale : 1.0) * l->of[SKIP].at[head];
    const double rate = exp(l->of[A_LOG].at[head]) * (p->e.decay_scale > 0.0 ? p->e.decay_scale : 1.0);
    const double raw = row[d + ls_config_conv_dim(c) + head] + bias_factor * l->of[HEAD_BIAS].at[head];
    const double step = fmin(fmax(softplus(raw), (double)c->dt_min), (double)c->dt_max), decay = exp(-step * rate);
    for (int64_t i = 0; i < size; i++) {
        double sum = skip * x[i];
        for (int64_t s = 0; s < states; s++) {
            double *at = &state[i * states + s];
            *at = decay * *at + step * x[i] * b[s];
            sum += *at * cc[s];
        }
        y[i] = sum;
    }
}

static ls_status mamba2(const pass *p, double *out, const double *x, const layer *l) {
    const ls_model_config *c = p->c;
    const int64_t n = p->n, d = c->d_inner, stride = d + ls_config_conv_dim(c) + c->ssd_heads;
    const int64_t size = d / c->ssd_heads, of_head = size * c->d_state, mark = p->s->n;
    double *rows, *h, *y;
    LS_TRY(room(p->s, &rows, n, stride, p->err));
    LS_TRY(room(p->s, &h, c->ssd_heads, of_head, p->err));
    LS_TRY(room(p->s, &y, n, d, p->err));
    LS_TRY(mamba2_inputs(p, rows, x, l));
    for (int64_t t = 0; t < n; t++) {
        if (t == 0 || memory_from(p, t, LS_LOSE_STATE) == t) memset(h, 0, (size_t)(c->ssd_heads * of_head) * sizeof *h);
        for (int64_t i = 0; i < c->ssd_heads; i++)
            mamba2_head(p, y + t * d + i * size, h + i * of_head, rows + t * stride, l, i);
        gated_norm(p, y + t * d, rows + t * stride, l->of[GATED_NORM].at);
    }
    round_all(y, n * d, p->e.activations);
    matrix_product(out, y, n, &l->of[OUT_PROJ], &l->of[OUT_BIAS]);
    release_scratch(p->s, mark);
    return LS_OK;
}

/* ---- the gated delta rule ---- */

static void unit(double *x, int64_t n) {
    double sum = 1e-6;
    for (int64_t i = 0; i < n; i++) sum += x[i] * x[i];
    for (int64_t i = 0; i < n; i++) x[i] /= sqrt(sum);
}

/* One token of a head: y of its columns, of its state [K][V], with the key head's q and k, of length 1. */
static void delta_head(const pass *p, double *y, double *state, const double *q, const double *k, const double *v,
                       double decay, double beta) {
    const int64_t keys = p->c->d_state, size = p->c->d_inner / p->c->delta_heads;
    for (int64_t i = 0; i < keys * size; i++) state[i] *= decay;
    for (int64_t j = 0; j < size; j++) {
        double seen = 0.0, out = 0.0, change;
        for (int64_t i = 0; i < keys; i++) seen += k[i] * state[i * size + j];
        change = beta * (v[j] - seen);
        for (int64_t i = 0; i < keys; i++) {
            state[i * size + j] += k[i] * change;
            out += q[i] * state[i * size + j];
        }
        y[j] = out / sqrt((double)keys);
    }
}

/* All heads of token t, whose q | k | v are at `row` behind the convolution, each through the norm and its gate. */
static void delta_token(const pass *p, double *y, double *states, double *row, const double *z, const double *b,
                        const double *a, const layer *l) {
    const ls_model_config *c = p->c;
    const int64_t keys = c->d_state, size = c->d_inner / c->delta_heads, of_key = c->delta_heads / c->delta_key_heads;
    const int64_t all = c->delta_key_heads * keys;
    const double bias_factor = p->e.no_dt_bias ? 0.0 : p->e.dt_bias_twice ? 2.0 : 1.0;
    for (int64_t i = 0; i < 2 * (int64_t)c->delta_key_heads; i++) unit(row + i * keys, keys);
    for (int64_t h = 0; h < c->delta_heads; h++) {
        const double *q = row + h / of_key * keys, *v = row + 2 * all + h * size;
        const double rate = exp(l->of[A_LOG].at[h]) * (p->e.decay_scale > 0.0 ? p->e.decay_scale : 1.0);
        const double decay = exp(-rate * softplus(a[h] + bias_factor * l->of[HEAD_BIAS].at[h]));
        double *out = y + h * size;
        delta_head(p, out, states + h * keys * size, q, q + all, v, decay, 1.0 / (1.0 + exp(-b[h])));
        rms(p, out, out, size, l->of[GATED_NORM].at, false);
        for (int64_t j = 0; j < size; j++) out[j] *= silu(z[h * size + j]);
    }
}

static ls_status delta_rule(const pass *p, double *out, const double *x, const layer *l) {
    const ls_model_config *c = p->c;
    const int64_t n = p->n, d = c->d_inner, qkv = ls_config_conv_dim(c), heads = c->delta_heads, mark = p->s->n;
    const int64_t of_states = d * c->d_state;
    double *rows, *z, *b, *a, *states, *y;
    LS_TRY(room(p->s, &rows, n, qkv, p->err));
    LS_TRY(room(p->s, &z, n, d, p->err));
    LS_TRY(room(p->s, &b, n, heads, p->err));
    LS_TRY(room(p->s, &a, n, heads, p->err));
    LS_TRY(room(p->s, &states, 1, of_states, p->err));
    LS_TRY(room(p->s, &y, n, d, p->err));
    matrix_product(rows, x, n, &l->of[IN_QKV], NULL);
    matrix_product(z, x, n, &l->of[IN_Z], NULL);
    matrix_product(b, x, n, &l->of[IN_B], NULL);
    matrix_product(a, x, n, &l->of[IN_A], NULL);
    LS_TRY(convolve_columns(p, rows, qkv, 0, l));
    for (int64_t t = 0; t < n; t++) {
        if (t == 0 || memory_from(p, t, LS_LOSE_STATE) == t) memset(states, 0, (size_t)of_states * sizeof *states);
        delta_token(p, y + t * d, states, rows + t * qkv, z + t * d, b + t * heads, a + t * heads, l);
    }
    round_all(y, n * d, p->e.activations);
    matrix_product(out, y, n, &l->of[OUT_PROJ], NULL);
    release_scratch(p->s, mark);
    return LS_OK;
}

/* ---- attention ---- */

/* The model's own rotation. */
static void rotate_as_configured(double *x, int64_t heads, int64_t size, int64_t position, const ls_rope_config *rope) {
    for (int64_t h = 0; h < heads; h++)
        for (int64_t i = 0; i < rope->half; i++) {
            const double angle = (double)((float)position * rope->inv_freq[i]), scale = (double)rope->scale;
            double *a = x + h * size + i, *b = a + rope->half;
            const double left = *a, right = *b;
            *a = (left * cos(angle) - right * sin(angle)) * scale;
            *b = (right * cos(angle) + left * sin(angle)) * scale;
        }
}

/* A rotation where there is none. */
static void rotate(double *x, int64_t heads, int64_t size, int64_t position, const ls_edit *e) {
    const int64_t half = size / 2;
    for (int64_t h = 0; h < heads; h++)
        for (int64_t i = 0; i < half; i++) {
            const double base = e->rope_base > 0.0 ? e->rope_base : 10000.0;
            const double angle = (double)position / pow(base, (double)i / (double)half);
            double *a = x + h * size + (e->rope_pairs ? 2 * i : i), *b = e->rope_pairs ? a + 1 : a + half;
            const double left = *a, right = *b;
            *a = left * cos(angle) - right * sin(angle);
            *b = right * cos(angle) + left * sin(angle);
        }
}

/* Key j is not read at position t. */
static bool is_unseen(const pass *p, int64_t j, int64_t t) {
    if (j == t && p->e.own_unseen) return t > 0;
    if (j == t && !p->e.own_too) return false;
    return (p->e.first_keys > 0 && j >= p->e.first_keys) ||
           (p->e.lost_every > 0 && j % p->e.lost_every == p->e.lost_at);
}

/* Heads of q [n][heads][P], and the gate behind each of them in what the product gives. */
static ls_status heads_and_gates(const pass *p, double *q, double *gate, const double *x, const layer *l) {
    const int64_t size = p->c->head_dim, n = p->n * p->c->n_heads;
    double *both;
    LS_TRY(room(p->s, &both, n, 2 * size, p->err));
    matrix_product(both, x, p->n, &l->of[WQ], NULL);
    for (int64_t i = 0; i < n; i++) {
        memcpy(q + i * size, both + 2 * i * size, (size_t)size * sizeof *q);
        memcpy(gate + i * size, both + (2 * i + 1) * size, (size_t)size * sizeof *q);
    }
    return LS_OK;
}

static ls_status attention(const pass *p, int64_t layer_i, double *out, const double *x, const layer *l) {
    const ls_model_config *c = p->c;
    const int64_t n = p->n, size = c->head_dim, heads = c->n_heads, groups = c->n_kv_heads, mark = p->s->n;
    const double own_scale = c->attention_scale > 0.0f ? (double)c->attention_scale : 1.0 / sqrt((double)size);
    const double scale = (p->e.attention_scale > 0.0 ? p->e.attention_scale : 1.0) * own_scale;
    double *q, *k, *v, *y, *w, *gate;
    LS_TRY(room(p->s, &q, n, heads * size, p->err));
    LS_TRY(room(p->s, &gate, c->head_gates ? n : 0, heads * size, p->err));
    LS_TRY(room(p->s, &k, n, groups * size, p->err));
    LS_TRY(room(p->s, &v, n, groups * size, p->err));
    LS_TRY(room(p->s, &y, n, heads * size, p->err));
    LS_TRY(room(p->s, &w, n, 1, p->err));
    if (c->head_gates)
        LS_TRY(heads_and_gates(p, q, gate, x, l));
    else
        matrix_product(q, x, n, &l->of[WQ], &l->of[Q_BIAS]);
    matrix_product(k, x, n, &l->of[WK], &l->of[K_BIAS]);
    matrix_product(v, x, n, &l->of[WV], &l->of[V_BIAS]);
    if (l->of[Q_NORM].at != NULL) {
        for (int64_t i = 0; i < n * heads; i++) rms(p, q + i * size, q + i * size, size, l->of[Q_NORM].at, false);
        for (int64_t i = 0; i < n * groups; i++) rms(p, k + i * size, k + i * size, size, l->of[K_NORM].at, false);
    }
    for (int64_t t = 0; t < n && c->rope.half > 0; t++) {
        rotate_as_configured(q + t * heads * size, heads, size, t, &c->rope);
        rotate_as_configured(k + t * groups * size, groups, size, t, &c->rope);
    }
    if (p->e.rope || p->e.rope_pairs)
        for (int64_t t = 0; t < n; t++) {
            rotate(q + t * heads * size, heads, size, t, &p->e);
            rotate(k + t * groups * size, groups, size, t, &p->e);
        }
    if (p->e.keys_which != 2) round_keys(k, n, groups, size, &p->e);
    if (p->e.keys_which != 1) round_keys(v, n, groups, size, &p->e);
    for (int64_t t = 0; t < n; t++)
        for (int64_t h = 0; h < heads; h++) {
            const int64_t g = p->e.heads_interleaved ? h % groups : h / (heads / groups);
            const int64_t to = p->e.sees_ahead && t < p->e.n_prompt ? p->e.n_prompt - 1 : t;
            const double slope =
                p->e.attention_slope * (p->e.slope_by_head ? exp2(-8.0 * (double)(h + 1) / (double)heads) : 1.0);
            const double by_length =
                p->e.attention_log_base > 0.0 ? log((double)(t + 2)) / log(p->e.attention_log_base) : 1.0;
            int64_t from = memory_from(p, t, LS_LOSE_KEYS);
            const int64_t own = ls_attention_first(t, c->window[layer_i]);
            double most = -(double)INFINITY, sum = 0.0;
            if (own > from) from = own;
            if (p->e.window > 0 && t + 1 - p->e.window > from) from = t + 1 - p->e.window;
            for (int64_t j = from; j <= to; j++) {
                double dot = 0.0;
                for (int64_t i = 0; i < size; i++)
                    dot += q[(t * heads + h) * size + i] * k[(j * groups + g) * size + i];
                w[j] = dot * scale * by_length - slope * (double)(t - j);
                if (p->e.attention_cap > 0.0) w[j] = p->e.attention_cap * tanh(w[j] / p->e.attention_cap);
                if (is_unseen(p, j, t)) w[j] = -(double)INFINITY;
                most = w[j] > most ? w[j] : most;
            }
            if (p->e.sink && most < 0.0) most = 0.0;
            if (p->e.sink) sum = exp(-most);
            for (int64_t j = from; j <= to; j++) sum += w[j] = isfinite(most) ? exp(w[j] - most) : 0.0;
            for (int64_t i = 0; i < size; i++) {
                double total = 0.0;
                for (int64_t j = from; j <= to; j++) total += w[j] * v[(j * groups + g) * size + i];
                y[(t * heads + h) * size + i] = sum > 0.0 ? total / sum : 0.0; /* no key is seen */
            }
        }
    for (int64_t i = 0; c->head_gates && i < n * heads * size; i++) y[i] /= 1.0 + exp(-gate[i]);
    round_all(y, n * heads * size, p->e.activations);
    matrix_product(out, y, n, &l->of[WO], &l->of[O_BIAS]);
    release_scratch(p->s, mark);
    return LS_OK;
}

/* out [n][H] += share * ffn(x); share NULL: 1. */
static double relu2(double x) { return x > 0.0 ? x * x : 0.0; }

static ls_status dense(const pass *p, double *out, const double *x, int64_t n, const matrix *expert, double share) {
    const int64_t mark = p->s->n, f = expert[1].rows, hidden = p->c->hidden;
    double *gate, *up, *y;
    LS_TRY(room(p->s, &gate, n, f, p->err));
    LS_TRY(room(p->s, &up, n, f, p->err));
    LS_TRY(room(p->s, &y, n, hidden, p->err));
    if (!p->c->ungated) matrix_product(gate, x, n, &expert[0], NULL);
    matrix_product(up, x, n, &expert[1], NULL);
    for (int64_t i = 0; i < n * f; i++)
        gate[i] = p->c->ungated ? relu2(up[i]) : (p->e.gelu ? gelu(gate[i]) : silu(gate[i])) * up[i];
    round_all(gate, n * f, p->e.activations);
    matrix_product(y, gate, n, &expert[2], NULL);
    for (int64_t i = 0; i < n * hidden; i++) out[i] += share * y[i];
    release_scratch(p->s, mark);
    return LS_OK;
}

/* The largest of score[n] to share[n], which is 0 for the others, among those whose order is above -inf; what the
 * shares add up to. order is destroyed. */
static double choose(double *share, const double *score, double *order, int64_t n, int64_t top_k) {
    double chosen = 0.0;
    for (int64_t e = 0; e < n; e++) share[e] = 0.0;
    for (int64_t k = 0; k < top_k && k < n; k++) {
        int64_t best = 0;
        for (int64_t e = 1; e < n; e++)
            if (order[e] > order[best]) best = e;
        if (!isfinite(order[best])) break; /* no other group is open */
        chosen += share[best] = score[best];
        order[best] = -(double)INFINITY;
    }
    return chosen;
}

/* Only experts of the best groups keep an order above -inf. */
static void close_groups(double *order, int64_t n, int64_t groups, int64_t top_groups) {
    const int64_t size = n / groups;
    double score[LS_EXPERTS_MAX];
    for (int64_t g = 0; g < groups; g++) {
        double first = -(double)INFINITY, second = first;
        for (int64_t e = g * size; e < (g + 1) * size; e++) {
            second = fmax(second, fmin(first, order[e]));
            first = fmax(first, order[e]);
        }
        score[g] = first + second;
    }
    for (int64_t g = 0; g < groups; g++) {
        int64_t before = 0;
        for (int64_t other = 0; other < groups; other++)
            before += score[other] > score[g] || (score[other] == score[g] && other < g);
        for (int64_t e = g * size; before >= top_groups && e < (g + 1) * size; e++) order[e] = -(double)INFINITY;
    }
}

/* Shares of a token's experts, from the router's logits, which are destroyed. */
static void route(const pass *p, double *share, double *logit, double *order, const layer *l) {
    const ls_model_config *c = p->c;
    const int64_t experts = c->n_experts, top_k = c->top_k + p->e.experts_more;
    const bool renormalised = p->e.router_renormalised || c->reweighs;
    double most = -(double)INFINITY, sum = 0.0, chosen, scale = 1.0;
    if (c->router_groups > 0) {
        for (int64_t e = 0; e < experts; e++) logit[e] = 1.0 / (1.0 + exp(-logit[e]));
        for (int64_t e = 0; e < experts; e++) order[e] = logit[e] + l->of[ROUTER_BIAS].at[e];
        if (c->router_groups > 1) close_groups(order, experts, c->router_groups, c->router_top_groups);
        scale = (double)c->router_scale;
    } else {
        for (int64_t e = 0; e < experts; e++) most = logit[e] > most ? logit[e] : most;
        for (int64_t e = 0; e < experts; e++) sum += logit[e] = exp(logit[e] - most);
        for (int64_t e = 0; e < experts; e++) order[e] = logit[e] /= sum;
    }
    chosen = choose(share, logit, order, experts, top_k);
    for (int64_t e = 0; e < experts; e++) share[e] *= scale / (renormalised ? chosen : 1.0);
}

static ls_status shared_expert(const pass *p, double *out, const double *x, const layer *l, double share) {
    double gate = 0.0;
    if (l->of[SHARED_GATE].at == NULL) return dense(p, out, x, 1, l->shared, share);
    matrix_product(&gate, x, 1, &l->of[SHARED_GATE], NULL);
    return dense(p, out, x, 1, l->shared, share / (1.0 + exp(-gate)));
}

/* out [n][H] += scale * mixture(x). */
static ls_status mixture(const pass *p, double *out, const double *x, const layer *l, double scale) {
    const int64_t experts = p->c->n_experts, hidden = p->c->hidden, mark = p->s->n;
    double *logit, *share, *order;
    LS_TRY(room(p->s, &logit, 1, experts, p->err));
    LS_TRY(room(p->s, &share, 1, experts, p->err));
    LS_TRY(room(p->s, &order, 1, experts, p->err));
    for (int64_t t = 0; t < p->n; t++) {
        matrix_product(logit, x + t * hidden, 1, &l->of[ROUTER], NULL);
        route(p, share, logit, order, l);
        for (int64_t e = 0; e < experts; e++)
            if (share[e] > 0.0)
                LS_TRY(dense(p, out + t * hidden, x + t * hidden, 1, &l->expert[3 * e], scale * share[e]));
        if (p->c->shared_ffn > 0) LS_TRY(shared_expert(p, out + t * hidden, x + t * hidden, l, scale));
    }
    release_scratch(p->s, mark);
    return LS_OK;
}

/* A copy of the layer's list of experts, which may be changed. */
static ls_status own_experts(const pass *p, layer *l, int64_t n, ls_error *err) {
    double *list;
    matrix *copy;
    LS_TRY(room(p->s, &list, n, (int64_t)(sizeof *copy / sizeof *list) + 1, err));
    copy = (matrix *)(void *)list;
    memcpy(copy, l->expert, (size_t)n * sizeof *copy);
    l->expert = copy;
    return LS_OK;
}

static ls_status own_exchanged(const pass *p, matrix *m, int64_t a, int64_t b, int64_t n, ls_error *err) {
    const matrix from = *m;
    if (from.at == NULL) return LS_OK;
    LS_TRY(room(p->s, &m->at, m->rows, m->columns, err));
    exchange_rows(m->at, &from, a, b, n);
    return LS_OK;
}

/* Tensors that stand at each other's place. */
static ls_status misplaced(const pass *p, layer *out, int64_t experts, ls_error *err) {
    const ls_model_config *c = p->c;
    const matrix keys = out->of[WK];
    switch (p->e.weights) {
        case LS_CHANGED_IN_HALVES: return own_exchanged(p, &out->of[IN_PROJ], 0, c->d_inner, c->d_inner, err);
        case LS_CHANGED_B_C:
            if (c->ssd_heads > 0) {
                const int64_t b = 2 * (int64_t)c->d_inner, states = (int64_t)c->ssd_groups * c->d_state;
                return own_exchanged(p, &out->of[IN_PROJ], b, b + states, states, err);
            }
            return own_exchanged(p, &out->of[X_PROJ], c->dt_rank, c->dt_rank + c->d_state, c->d_state, err);
        case LS_CHANGED_KEYS_VALUES: out->of[WK] = out->of[WV], out->of[WV] = keys; return LS_OK;
        case LS_CHANGED_GATE_UP:
            if (c->ungated) return LS_OK;
            if (experts > 0) LS_TRY(own_experts(p, out, 3 * experts, err));
            for (int64_t i = 0; i < experts; i++) {
                const matrix gate = out->expert[3 * i];
                out->expert[3 * i] = out->expert[3 * i + 1];
                out->expert[3 * i + 1] = gate;
            }
            return LS_OK;
        case LS_CHANGED_EXPERTS_TURNED: {
            const matrix *from = out->expert;
            if (experts < 2) return LS_OK;
            LS_TRY(own_experts(p, out, 3 * experts, err));
            for (int64_t i = 0; i < 3 * experts; i++) out->expert[i] = from[(i + 3) % (3 * experts)];
            return LS_OK;
        }
        case LS_CHANGED_EXPERTS_EXCHANGED: {
            const int64_t a = experts > 0 ? p->e.other / experts : 0, b = experts > 0 ? p->e.other % experts : 0;
            const matrix *from = out->expert;
            if (experts < 2) return LS_OK;
            LS_TRY(own_experts(p, out, 3 * experts, err));
            memcpy(&out->expert[3 * a], &from[3 * b], 3 * sizeof *from);
            memcpy(&out->expert[3 * b], &from[3 * a], 3 * sizeof *from);
            return LS_OK;
        }
        default: return LS_OK;
    }
}

static bool is_of_mixer(int tensor) { return tensor != INPUT_NORM && tensor != FFN_NORM && tensor < SHARED_GATE; }

/* Tensors of another layer, where they are of the same shape. */
static void borrowed(const pass *p, layer *out, int32_t layer_i) {
    const layer *other = &p->r->layers[p->e.other];
    const bool mixer = p->e.weights != LS_CHANGED_FFN_OF_LAYER, ffn = p->e.weights != LS_CHANGED_MIXER_OF_LAYER;
    for (int i = 0; i < TENSORS; i++)
        if (out->of[i].rows == other->of[i].rows && out->of[i].columns == other->of[i].columns &&
            (p->e.weights == LS_CHANGED_OF_LAYER || (is_of_mixer(i) ? mixer : ffn && i >= SHARED_GATE)))
            out->of[i] = other->of[i];
    if (ffn && p->c->is_moe[layer_i] == p->c->is_moe[p->e.other] && p->c->no_ffn[layer_i] == p->c->no_ffn[p->e.other])
        out->expert = other->expert, memcpy(out->shared, other->shared, sizeof out->shared);
}

static ls_status rounded(const pass *p, layer *out, int64_t experts, ls_error *err) {
    for (int i = 0; i < TENSORS; i++) {
        matrix *m = &out->of[i];
        const bool of_product = i == IN_PROJ || i == X_PROJ || i == DT_PROJ || i == OUT_PROJ ||
                                (i >= WQ && i <= K_NORM) || (i >= IN_QKV && i != ROUTER_BIAS);
        const matrix source = *m;
        if ((!of_product && !p->e.everything) || source.at == NULL) continue;
        LS_TRY(room(p->s, &m->at, m->rows, m->columns, err));
        change_matrix(m->at, &source, p->e.weights);
    }
    if (experts == 0) return LS_OK;
    LS_TRY(own_experts(p, out, 3 * experts, err));
    for (int64_t i = 0; i < 3 * experts; i++) {
        const matrix source = out->expert[i];
        if (source.at == NULL) continue;
        LS_TRY(room(p->s, &out->expert[i].at, source.rows, source.columns, err));
        change_matrix(out->expert[i].at, &source, p->e.weights);
    }
    return LS_OK;
}

/* The layer as the edit has it. */
static ls_status edited(const pass *p, layer *out, int32_t layer_i, ls_error *err) {
    const ls_edit *e = &p->e;
    const int64_t experts = p->c->ffn == 0 || p->c->no_ffn[layer_i] ? 0 : p->c->is_moe[layer_i] ? p->c->n_experts : 1;
    *out = p->r->layers[layer_i];
    if (e->layer >= 0 && e->layer != layer_i) return LS_OK;
    if (is_rounding(e->weights)) return rounded(p, out, experts, err);
    if (e->weights == LS_CHANGED_OF_LAYER || e->weights == LS_CHANGED_FFN_OF_LAYER ||
        e->weights == LS_CHANGED_MIXER_OF_LAYER) {
        borrowed(p, out, layer_i);
        return LS_OK;
    }
    return misplaced(p, out, experts, err);
}

static ls_status mix_tokens(const pass *p, int32_t layer_i, double *y, const double *x, const layer *l) {
    if (p->c->is_attention[layer_i]) return attention(p, layer_i, y, x, l);
    switch (ls_config_recurrence(p->c)) {
        case LS_RECURRENCE_DELTA: return delta_rule(p, y, x, l);
        case LS_RECURRENCE_SSD: return mamba2(p, y, x, l);
        default: return mamba(p, y, x, l);
    }
}

/* A factor of the configuration. */
static double factor_of(float scale) { return scale > 0.0f ? (double)scale : 1.0; }

static ls_status run_layer(const pass *p, double *h, double *x, double *y, int32_t layer_i) {
    const int64_t n = p->n, hidden = p->c->hidden, mark = p->s->n;
    const bool here = p->e.layer < 0 || p->e.layer == layer_i;
    const double added = factor_of(p->c->residual_scale);
    const double mixer = (here && p->e.mixer_scale > 0.0 ? p->e.mixer_scale : 1.0) * added;
    const double ffn = (here && p->e.ffn_scale > 0.0 ? p->e.ffn_scale : 1.0) * added;
    pass mixing = *p;
    layer l;
    if (!here) mixing.e.cut_every = 0;
    LS_TRY(edited(p, &l, layer_i, p->err));
    if (!p->c->no_mixer[layer_i]) {
        for (int64_t t = 0; t < n; t++)
            rms(p, x + t * hidden, h + t * hidden, hidden, l.of[INPUT_NORM].at,
                here && p->e.weights == LS_CHANGED_NORM_ONES);
        round_all(x, n * hidden, p->e.activations);
        if (!(here && p->e.weights == LS_CHANGED_NO_MIXER)) {
            LS_TRY(mix_tokens(&mixing, layer_i, y, x, &l));
            for (int64_t i = 0; i < n * hidden; i++) h[i] += mixer * y[i];
        }
    }
    if (p->c->ffn > 0 && !p->c->no_ffn[layer_i] && !(here && p->e.weights == LS_CHANGED_NO_FFN)) {
        for (int64_t t = 0; t < n; t++)
            rms(p, x + t * hidden, h + t * hidden, hidden, l.of[FFN_NORM].at,
                here && p->e.weights == LS_CHANGED_FFN_NORM_ONES);
        round_all(x, n * hidden, p->e.activations);
        LS_TRY(p->c->is_moe[layer_i] ? mixture(p, h, x, &l, added) : dense(p, h, x, n, l.expert, ffn));
    }
    release_scratch(p->s, mark);
    return LS_OK;
}

static ls_status run_head(const pass *p, double *logits, const double *h, double *x) {
    const int64_t hidden = p->c->hidden, vocab = p->c->vocab;
    const ls_weight_change change =
        p->e.everything && is_rounding(p->e.weights) && p->e.layer < 0 ? p->e.weights : p->e.head_weights;
    matrix head = p->r->head;
    if (change != LS_CHANGED_SAME) {
        LS_TRY(room(p->s, &head.at, head.rows, head.columns, p->err));
        change_matrix(head.at, &p->r->head, change);
    }
    for (int64_t t = 0; t < p->n; t++) rms(p, x + t * hidden, h + t * hidden, hidden, p->r->final_norm.at, false);
    round_all(x, p->n * hidden, p->e.activations);
    if (p->e.head_input == LS_ROUND_INT8)
        for (int64_t t = 0; t < p->n; t++) quantise(x + t * hidden, x + t * hidden, hidden, 127.0);
    else
        round_all(x, p->n * hidden, p->e.head_input);
    matrix_product(logits, x, p->n, &head, NULL);
    for (int64_t i = 0; i < p->n * vocab; i++) logits[i] *= factor_of(p->c->logit_scale);
    round_all(logits, p->n * vocab, p->e.logits);
    for (int64_t i = 0; p->e.softcap > 0.0 && i < p->n * vocab; i++)
        logits[i] = p->e.softcap * tanh(logits[i] / p->e.softcap);
    return LS_OK;
}

ls_status ls_reference_logits(ls_reference *r, const ls_edit *edit, const int32_t *tokens, int64_t n, double *logits,
                              ls_error *err) {
    static const ls_edit none = {.layer = -1};
    const int64_t hidden = r->config.hidden;
    scratch s = {0};
    const pass p = {r, &r->config, edit != NULL ? *edit : none, tokens, n, &s, err};
    const bool everything = p.e.everything && is_rounding(p.e.weights) && p.e.layer < 0;
    const ls_weight_change embed_change = everything ? p.e.weights : p.e.embed_weights;
    double *h, *x, *y;
    ls_status status;
    for (int64_t t = 0; t < n; t++)
        if (tokens[t] < 0 || tokens[t] >= r->config.vocab)
            return LS_FAIL(err, LS_ERR_ARG, "token %d at place %lld: the vocabulary has %d", tokens[t], (long long)t,
                           r->config.vocab);
    LS_TRY_DONE(room(&s, &h, n, hidden, err));
    LS_TRY_DONE(room(&s, &x, n, hidden, err));
    LS_TRY_DONE(room(&s, &y, n, hidden, err));
    for (int64_t t = 0; t < n; t++) {
        const matrix row = {r->embed.at + tokens[t] * hidden, 1, hidden};
        change_matrix(h + t * hidden, &row, embed_change);
    }
    for (int64_t i = 0; i < n * hidden; i++)
        h[i] *= factor_of(r->config.embed_scale) * (p.e.embed_scale > 0.0 ? p.e.embed_scale : 1.0);
    for (int32_t i = 0; i < r->config.n_layers; i++) LS_TRY_DONE(run_layer(&p, h, x, y, i));
    LS_TRY_DONE(run_head(&p, logits, h, x));
done:
    release_all(&s);
    return status;
}
