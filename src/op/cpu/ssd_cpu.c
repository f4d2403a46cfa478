/* ssd on the CPU. An item is one head of one span; lanes are the head's channels, and its state is updated where it
 * lies in the pool; in a copy of it, where the token is held. */
#include "op/cpu/held_row.h"
#include "op/cpu/kernels.h"
#include "op/rows.h"
#include "op/ssd.h"
#include "op/ssd_math.h"

#define HEAD_MAX 256

/* A head of the op. */
typedef struct head {
    const ls_ssd_args *args;
    const ls_held *held;
    int64_t h, group;
    float a, dt_bias, d;
} head;

/* One token of a head. */
typedef struct token {
    float x[HEAD_MAX], u[HEAD_MAX], y[HEAD_MAX];
    float b[LS_SCAN_STATES_MAX], cc[LS_SCAN_STATES_MAX];
    ls_ssd_step step;
    float copy[LS_SSD_STATE_MAX];
} token;

static void load_token(token *t, const head *k, int64_t row, float scale) {
    const ls_ssd_args *a = k->args;
    float raw;
    ls_row_widen(t->x, ls_at(a->x, a->in_dtype, row * a->x_stride + k->h * a->head_dim), a->in_dtype, a->head_dim);
    ls_row_widen(t->b, ls_at(a->b, a->in_dtype, row * a->b_stride + k->group * a->n_states), a->in_dtype, a->n_states);
    ls_row_widen(t->cc, ls_at(a->cc, a->in_dtype, row * a->c_stride + k->group * a->n_states), a->in_dtype,
                 a->n_states);
    ls_row_widen(&raw, ls_at(a->dt_raw, a->in_dtype, row * a->dt_stride + k->h), a->in_dtype, 1);
    raw = ls_softplus(ls_add(raw, k->dt_bias));
    t->step = ls_ssd_step_of(scale, ls_ssd_clamp(raw, a->dt_min, a->dt_max), k->a);
    for (int64_t p = 0; p < a->head_dim; p++) t->u[p] = ls_mul(t->step.w, t->x[p]);
}

/* One state of all channels after a token, and its slice of y. None overlap. */
static inline void update_state(float *restrict s, float *restrict y, const float *restrict u, float b, float cc,
                                int64_t n) {
    for (int64_t p = 0; p < n; p++) {
        s[p] = ls_fma(u[p], b, s[p]);
        y[p] = ls_fma(cc, s[p], y[p]);
    }
}

/* S after the token, in place, and y. */
static void run_token(float *s, token *t, int64_t states, int64_t dim) {
    float slice[LS_SSD_SLICES][HEAD_MAX];
    for (int i = 0; i < LS_SSD_SLICES; i++)
        for (int64_t p = 0; p < dim; p++) slice[i][p] = 0.0f;
    if (t->step.rescaled)
        for (int64_t i = 0; i < states * dim; i++) s[i] = ls_mul(s[i], t->step.product);
    for (int64_t n = 0; n < states; n++)
        update_state(s + n * dim, slice[ls_ssd_slice(n)], t->u, t->b[n], t->cc[n], dim);
    for (int64_t p = 0; p < dim; p++) {
        const float low = ls_add(ls_add(slice[0][p], slice[1][p]), ls_add(slice[2][p], slice[3][p]));
        const float high = ls_add(ls_add(slice[4][p], slice[5][p]), ls_add(slice[6][p], slice[7][p]));
        t->y[p] = ls_mul(t->step.scale, ls_add(low, high));
    }
}
_Static_assert(LS_SSD_SLICES == 8, "the fold is written out");

static void run_span(const head *k, const ls_span *span, token *t) {
    const ls_ssd_args *a = k->args;
    const int64_t dim = a->head_dim;
    const ls_held_head held = ls_held_begin(k->held, &a->held, span, k->h);
    float *stored = (float *)ls_pool_at(&a->state, span->slot) + k->h * a->n_states * dim;
    float *s = ls_held_open(&held, span, stored, t->copy);
    float *scale = (float *)ls_pool_at(&a->scale, span->slot) + k->h;
    if (span->pos == 0) *scale = 1.0f;
    for (int64_t row = span->row; row < span->row + span->n_rows; row++) {
        load_token(t, k, row, *scale);
        run_token(s, t, a->n_states, dim);
        *scale = t->step.scale;
        for (int64_t p = 0; p < dim; p++) t->y[p] = ls_fma(k->d, t->x[p], t->y[p]);
        ls_row_narrow(ls_at_mut(a->out, a->out_dtype, row * a->out_stride + k->h * dim), a->out_dtype, t->y, dim);
    }
    ls_held_close(&held, t->u, t->b, t->step.rescaled ? t->step.product : 1.0f);
}

LS_KERNEL_DEFINE(ls_ssd_kernel) {
    const ls_ssd_args *a = context;
    const int64_t group_heads = a->n_heads / a->n_groups;
    const ls_held held = ls_ssd_held(a);
    token t;
    (void)scratch;
    for (int64_t item = begin; item < end; item++) {
        const ls_span *span = &a->spans[item % a->n_spans];
        const int64_t h = item / a->n_spans;
        const head k = {a, &held, h, h / group_heads, a->a[h], a->dt_bias[h], a->d[h]};
        if (span->slot >= 0 && span->n_rows > 0) run_span(&k, span, &t);
    }
}
