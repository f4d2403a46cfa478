/* scan backward on the CPU: lanes are the channels of one block of the channel sums. A first pass keeps the state
 * before every LS_SCAN_KEEP tokens; then, from the last of these segments to the first, a segment's states and decays
 * are computed again and its tokens walked backwards. */
#include "num/expf.h"
#include "op/cpu/kernels.h"
#include "op/rows.h"
#include "op/scan.h"

#define LANES LS_SCAN_SUM_BLOCK

typedef float lanes[LANES];

/* Of a token, once computed forwards. */
typedef struct token {
    lanes raw, dt, u, v, y; /* raw: what softplus took */
} token;

/* A block of channels of one span. */
typedef struct block {
    const ls_scan_backward_args *a;
    int64_t channel, n; /* n lanes are channels, the others hold +0 or what follows from it */
    lanes *h;           /* [KEEP + 1][states]: before the segment, then after each of its tokens */
    lanes *decay;       /* [KEEP][states] */
    token *tokens;      /* [KEEP] */
    lanes *a2, *g, *da2;
    float *b, *cc; /* of one token */
    lanes bias, d, dd, ddt_bias;
} block;

#define SCRATCH_MAX \
    (((2 * LS_SCAN_KEEP + 1 + 3) * LS_SCAN_STATES_MAX + 5 * LS_SCAN_KEEP) * LANES + 2 * LS_SCAN_STATES_MAX)
_Static_assert(SCRATCH_MAX <= LS_SCRATCH_FLOATS, "a block of the largest op fits the scratch of a thread");

/* Of du, db and dcc. */
static ls_dtype du_type(const ls_scan_backward_args *a) { return a->du_bf16 ? LS_BF16 : LS_F32; }

static void load_lanes(float *out, const block *k, const void *rows, int64_t stride, int64_t row) {
    ls_row_widen(out, ls_at(rows, k->a->in_dtype, row * stride + k->channel), k->a->in_dtype, k->n);
}

static void load_token(const block *k, token *t, int64_t row) {
    const ls_scan_backward_args *a = k->a;
    load_lanes(t->raw, k, a->dt_raw, a->dt_stride, row);
    load_lanes(t->u, k, a->u, a->u_stride, row);
    ls_row_widen(k->b, ls_at(a->b, a->in_dtype, row * a->b_stride), a->in_dtype, a->n_states);
    ls_row_widen(k->cc, ls_at(a->cc, a->in_dtype, row * a->c_stride), a->in_dtype, a->n_states);
    if (a->dt_bias != NULL)
        for (int c = 0; c < LANES; c++) t->raw[c] = ls_add(t->raw[c], k->bias[c]);
    memcpy(t->dt, t->raw, sizeof t->dt);
    if (!a->dt_activated)
        for (int c = 0; c < LANES; c++) t->dt[c] = ls_softplus(t->dt[c]);
    for (int c = 0; c < LANES; c++) t->v[c] = ls_mul(t->dt[c], t->u[c]);
}

/* h to the state after the token; next may be h. */
static void advance(const block *k, lanes *next, lanes *decay, lanes *h, const token *t) {
    for (int64_t s = 0; s < k->a->n_states; s++) {
        const float b = k->b[s];
        for (int c = 0; c < LANES; c++) {
            decay[s][c] = ls_exp2_product(t->dt[c], k->a2[s][c]);
            next[s][c] = ls_fma(decay[s][c], h[s][c], ls_mul(t->v[c], b));
        }
    }
}

/* The first state of group g of the four-chain tree. */
static int64_t group_begin(int64_t states, int64_t g) {
    const int64_t at = g * ((states + 3) / 4);
    return at < states ? at : states;
}

static void add_groups(lanes out, lanes part[4]) {
    for (int c = 0; c < LANES; c++) out[c] = ls_add(ls_add(part[0][c], part[1][c]), ls_add(part[2][c], part[3][c]));
}

/* y of a token from the state after it. */
static void read_out(const block *k, token *t, lanes *h) {
    lanes part[4] = {{0}};
    for (int64_t g = 0; g < 4; g++)
        for (int64_t s = group_begin(k->a->n_states, g); s < group_begin(k->a->n_states, g + 1); s++) {
            const float cc = k->cc[s];
            for (int c = 0; c < LANES; c++) part[g][c] = ls_fma(h[s][c], cc, part[g][c]);
        }
    add_groups(t->y, part);
    if (k->a->d != NULL)
        for (int c = 0; c < LANES; c++) t->y[c] = ls_fma(k->d[c], t->u[c], t->y[c]);
}

/* The sum over a block's channels: in each run of 8 by halves 4, 2, 1, then over the four runs by halves 2, 1. */
static float channel_sum(const float *x) {
    float four[4][4], two[4][2], one[4];
    for (int run = 0; run < 4; run++)
        for (int j = 0; j < 4; j++) four[run][j] = ls_add(x[8 * run + j], x[8 * run + j + 4]);
    for (int run = 0; run < 4; run++)
        for (int j = 0; j < 2; j++) two[run][j] = ls_add(four[run][j], four[run][j + 2]);
    for (int run = 0; run < 4; run++) one[run] = ls_add(two[run][0], two[run][1]);
    return ls_add(ls_add(one[0], one[2]), ls_add(one[1], one[3]));
}
_Static_assert(LANES == 32, "a block of the channel sums is four runs of 8");

/* dz, where there is a gate, and dy. */
static void gate_back(const block *k, lanes dy, const token *t, int64_t row) {
    const ls_scan_backward_args *a = k->a;
    const ls_dtype dout_type = a->dout_bf16 ? LS_BF16 : LS_F32;
    lanes z = {0}, dz;
    memset(dy, 0, sizeof(lanes));
    ls_row_widen(dy, ls_at(a->dout, dout_type, row * a->dout_stride + k->channel), dout_type, k->n);
    if (a->z == NULL) return;
    load_lanes(z, k, a->z, a->z_stride, row);
    for (int c = 0; c < LANES; c++) {
        const float sig = ls_sigmoid(z[c]), sl = ls_silu(z[c]);
        dz[c] = ls_mul(ls_mul(dy[c], t->y[c]), ls_fma(sl, ls_sub(1.0f, sig), sig));
        dy[c] = ls_mul(dy[c], sl);
    }
    ls_row_narrow(ls_at_mut(a->dz, a->out_dtype, row * ls_scan_dz_stride(a) + k->channel), a->out_dtype, dz, k->n);
}

/* One state of a token backwards: the lanes that it reads and those that it adds to or writes. None overlap. */
typedef struct state_lanes {
    const float *dy, *a2, *decay, *before, *after; /* before, after: h, of the token */
    float b, cc;
    float *g, *da2, *part_v, *part_t; /* added to */
    float *for_b, *for_cc;            /* written */
} state_lanes;

static void state_back(const state_lanes *s, const token *restrict t) {
    const float *restrict dy = s->dy, *restrict a2 = s->a2, *restrict decay = s->decay;
    const float *restrict before = s->before, *restrict after = s->after;
    float *restrict g = s->g, *restrict da2 = s->da2, *restrict part_v = s->part_v, *restrict part_t = s->part_t;
    float *restrict for_b = s->for_b, *restrict for_cc = s->for_cc;
    const float b = s->b, cc = s->cc;
    for (int c = 0; c < LANES; c++) {
        const float x = ls_mul(t->dt[c], a2[c]);
        const float sum = ls_fma(dy[c], cc, g[c]);
        const float through = ls_mul(sum, ls_mul(decay[c], before[c]));
        const float w = x >= -126.0f && x <= 127.0f ? through : 0.0f;
        for_cc[c] = ls_mul(dy[c], after[c]);
        for_b[c] = ls_mul(sum, t->v[c]);
        part_v[c] = ls_fma(sum, b, part_v[c]);
        part_t[c] = ls_fma(w, a2[c], part_t[c]);
        da2[c] = ls_fma(w, t->dt[c], da2[c]);
        g[c] = ls_mul(sum, decay[c]);
    }
}

/* One token backwards: h before and after it, its decays; sums: its [2][states] of this block. */
static void step_back(block *k, const token *t, int64_t row, lanes *before, lanes *after, lanes *decay, float *sums) {
    const ls_scan_backward_args *a = k->a;
    const int64_t states = a->n_states;
    lanes dy, part_v[4] = {{0}}, part_t[4] = {{0}}, v_sum, t_sum, du, ddt;
    gate_back(k, dy, t, row);
    for (int64_t g = 0; g < 4; g++)
        for (int64_t s = group_begin(states, g); s < group_begin(states, g + 1); s++) {
            lanes for_b, for_cc;
            const state_lanes of = {.dy = dy,
                                    .a2 = k->a2[s],
                                    .decay = decay[s],
                                    .before = before[s],
                                    .after = after[s],
                                    .b = k->b[s],
                                    .cc = k->cc[s],
                                    .g = k->g[s],
                                    .da2 = k->da2[s],
                                    .part_v = part_v[g],
                                    .part_t = part_t[g],
                                    .for_b = for_b,
                                    .for_cc = for_cc};
            state_back(&of, t);
            for (int64_t c = k->n; c < LANES; c++) for_b[c] = for_cc[c] = 0.0f;
            sums[s] = channel_sum(for_b);
            sums[states + s] = channel_sum(for_cc);
        }
    add_groups(v_sum, part_v);
    add_groups(t_sum, part_t);
    for (int c = 0; c < LANES; c++) {
        ddt[c] = ls_fma(t_sum[c], LS_LN2, ls_mul(v_sum[c], t->u[c]));
        du[c] = ls_mul(v_sum[c], t->dt[c]);
    }
    if (a->d != NULL)
        for (int c = 0; c < LANES; c++) {
            du[c] = ls_fma(dy[c], k->d[c], du[c]);
            k->dd[c] = ls_fma(dy[c], t->u[c], k->dd[c]);
        }
    if (!a->dt_activated)
        for (int c = 0; c < LANES; c++) ddt[c] = ls_mul(ddt[c], ls_sigmoid(t->raw[c]));
    for (int c = 0; c < LANES; c++) k->ddt_bias[c] = ls_add(k->ddt_bias[c], ddt[c]);
    ls_row_narrow(ls_at_mut(a->du, du_type(a), row * a->dim + k->channel), du_type(a), du, k->n);
    ls_row_narrow(ls_at_mut(a->ddt, a->out_dtype, row * a->dim + k->channel), a->out_dtype, ddt, k->n);
}

/* The tokens [first, first + n) of the span, states kept in `kept`; sums: the block's [rows][2][states]. */
static void segment_back(block *k, const ls_span *span, int64_t first, int64_t n, const float *kept, float *sums) {
    const int64_t states = k->a->n_states;
    memset(k->h, 0, (size_t)states * sizeof(lanes));
    ls_transpose(k->h[0], LANES, kept, states, k->n, states);
    for (int64_t i = 0; i < n; i++) {
        load_token(k, &k->tokens[i], span->row + first + i);
        advance(k, k->h + (i + 1) * states, k->decay + i * states, k->h + i * states, &k->tokens[i]);
        if (k->a->z != NULL) read_out(k, &k->tokens[i], k->h + (i + 1) * states);
    }
    for (int64_t i = n - 1; i >= 0; i--) {
        const int64_t row = span->row + first + i;
        ls_row_widen(k->b, ls_at(k->a->b, k->a->in_dtype, row * k->a->b_stride), k->a->in_dtype, states);
        ls_row_widen(k->cc, ls_at(k->a->cc, k->a->in_dtype, row * k->a->c_stride), k->a->in_dtype, states);
        step_back(k, &k->tokens[i], row, k->h + i * states, k->h + (i + 1) * states, k->decay + i * states,
                  sums + 2 * row * states);
    }
}

static void block_open(block *k, const ls_scan_backward_args *a, int64_t channel, float *scratch) {
    const int64_t states = a->n_states, rest = a->dim - channel;
    memset(k, 0, sizeof *k);
    k->a = a;
    k->channel = channel;
    k->n = rest < LANES ? rest : LANES;
    k->h = (lanes *)(void *)scratch;
    k->decay = k->h + (LS_SCAN_KEEP + 1) * states;
    k->a2 = k->decay + LS_SCAN_KEEP * states;
    k->g = k->a2 + states;
    k->da2 = k->g + states;
    k->tokens = (token *)(void *)(k->da2 + states);
    k->b = (float *)(void *)(k->tokens + LS_SCAN_KEEP);
    k->cc = k->b + states;
    memset(k->h, 0, (size_t)states * sizeof(lanes));
    memset(k->a2, 0, (size_t)states * 3 * sizeof(lanes));
    memset(k->tokens, 0, LS_SCAN_KEEP * sizeof(token));
    ls_transpose(k->a2[0], LANES, a->a2 + channel * states, states, k->n, states);
    if (a->dt_bias != NULL) memcpy(k->bias, a->dt_bias + channel, (size_t)k->n * sizeof(float));
    if (a->d != NULL) memcpy(k->d, a->d + channel, (size_t)k->n * sizeof(float));
}

/* Channels [32 block_i, 32 block_i + 32) of span i. */
static void run_block(const ls_scan_backward_args *a, const ls_scan_backward_plan *plan, float *work, int64_t i,
                      int64_t block_i, float *scratch) {
    const ls_span *span = &a->spans[i];
    const int64_t states = a->n_states, channel = block_i * LANES;
    const int64_t share = i * a->dim + channel, last = (span->n_rows - 1) / LS_SCAN_KEEP * LS_SCAN_KEEP;
    float *kept = work + plan->states + ((span->row / LS_SCAN_KEEP + i) * a->dim + channel) * states;
    const int64_t at = share * states; /* in tensors of states */
    block k;
    block_open(&k, a, channel, scratch);
    if (a->initial != NULL) ls_transpose(k.h[0], LANES, a->initial + at, states, k.n, states);
    if (a->dfinal != NULL) ls_transpose(k.g[0], LANES, a->dfinal + at, states, k.n, states);
    for (int64_t t = 0; t < span->n_rows; t++) {
        if (t % LS_SCAN_KEEP == 0)
            ls_transpose(kept + t / LS_SCAN_KEEP * a->dim * states, states, k.h[0], LANES, states, k.n);
        if (t == last) break;
        load_token(&k, k.tokens, span->row + t);
        advance(&k, k.h, k.decay, k.h, k.tokens);
    }
    for (int64_t first = last; first >= 0 && span->n_rows > 0; first -= LS_SCAN_KEEP) {
        const int64_t left = span->n_rows - first;
        segment_back(&k, span, first, left < LS_SCAN_KEEP ? left : LS_SCAN_KEEP,
                     kept + first / LS_SCAN_KEEP * a->dim * states, work + plan->sums + block_i * a->rows * 2 * states);
    }
    if (a->dinitial != NULL && span->n_rows > 0) ls_transpose(a->dinitial + at, states, k.g[0], LANES, states, k.n);
    ls_transpose(work + plan->a2 + at, states, k.da2[0], LANES, states, k.n);
    memcpy(work + plan->d + share, k.dd, (size_t)k.n * sizeof(float));
    memcpy(work + plan->bias + share, k.ddt_bias, (size_t)k.n * sizeof(float));
}

LS_KERNEL_DEFINE(ls_scan_backward_kernel) {
    const ls_workspace_call *call = context;
    const ls_scan_backward_args *a = call->args;
    ls_scan_backward_plan plan;
    ls_scan_backward_plan_make(&plan, a);
    for (int64_t item = begin; item < end; item++)
        if (a->spans[item / plan.n_blocks].slot >= 0)
            run_block(a, &plan, call->floats, item / plan.n_blocks, item % plan.n_blocks, scratch);
}

/* Items are rows: those of spans that are no padding get db and dcc. */
LS_KERNEL_DEFINE(ls_scan_channel_sums_kernel) {
    const ls_workspace_call *call = context;
    const ls_scan_backward_args *a = call->args;
    const int64_t row_floats = 2 * a->n_states;
    ls_scan_backward_plan plan;
    ls_scan_backward_plan_make(&plan, a);
    for (int64_t i = 0; i < a->n_spans; i++) {
        const ls_span *span = &a->spans[i];
        const int64_t span_end = span->row + span->n_rows, last = span_end < end ? span_end : end;
        for (int64_t row = span->row > begin ? span->row : begin; row < last && span->slot >= 0; row++) {
            memset(scratch, 0, (size_t)row_floats * sizeof(float));
            for (int64_t block_i = 0; block_i < plan.n_blocks; block_i++) {
                const float *share = call->floats + plan.sums + (block_i * a->rows + row) * row_floats;
                for (int64_t s = 0; s < row_floats; s++) scratch[s] = ls_add(scratch[s], share[s]);
            }
            ls_row_narrow(ls_at_mut(a->db, du_type(a), row * a->n_states), du_type(a), scratch, a->n_states);
            ls_row_narrow(ls_at_mut(a->dcc, du_type(a), row * a->n_states), du_type(a), scratch + a->n_states,
                          a->n_states);
        }
    }
}

/* Items are channels. */
LS_KERNEL_DEFINE(ls_scan_parameters_kernel) {
    const ls_workspace_call *call = context;
    const ls_scan_backward_args *a = call->args;
    const int64_t states = a->n_states;
    ls_scan_backward_plan plan;
    ls_scan_backward_plan_make(&plan, a);
    for (int64_t c = begin; c < end; c++) {
        float dd = a->continued && a->dd != NULL ? a->dd[c] : 0.0f;
        float ddt_bias = a->continued && a->ddt_bias != NULL ? a->ddt_bias[c] : 0.0f;
        for (int64_t s = 0; s < states; s++) scratch[s] = a->continued ? a->da2[c * states + s] : 0.0f;
        for (int64_t i = 0; i < a->n_spans; i++) {
            const int64_t share = i * a->dim + c;
            const float *da2 = call->floats + plan.a2 + share * states;
            if (a->spans[i].slot < 0) continue;
            for (int64_t s = 0; s < states; s++) scratch[s] = ls_add(scratch[s], da2[s]);
            dd = ls_add(dd, call->floats[plan.d + share]);
            ddt_bias = ls_add(ddt_bias, call->floats[plan.bias + share]);
        }
        for (int64_t s = 0; s < states; s++)
            a->da2[c * states + s] = a->continued ? scratch[s] : ls_mul(scratch[s], LS_LN2);
        if (a->dd != NULL) a->dd[c] = dd;
        if (a->ddt_bias != NULL) a->ddt_bias[c] = ddt_bias;
    }
}
