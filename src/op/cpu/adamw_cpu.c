/* The optimizer on the CPU: lanes are elements; in the sum of squares they are chains. */
#include "base/mem.h"
#include "num/sum.h"
#include "op/adamw_math.h"
#include "op/cpu/adamw_kernel.h"
#include "op/rows.h"

/* Elements [first, first + n) of the call, which have the moments m and v. */
static void move(const ls_adamw_args *a, int64_t first, int64_t n, float *restrict m, float *restrict v) {
    const ls_adamw_factors f = a->factors;
    const float *restrict grad = a->grad + first;
    float *restrict w = a->w + first;
    const float scale = a->scale;
    for (int64_t i = 0; i < n; i++) {
        const float g = ls_mul(grad[i], scale);
        const float m_new = ls_fma(f.beta1, m[i], ls_mul(f.rest1, g));
        const float v_new = ls_fma(f.beta2, v[i], ls_mul(ls_mul(f.rest2, g), g));
        const float d = ls_div(ls_mul(m_new, f.debias1), ls_fma(ls_sqrt(v_new), f.debias2, f.eps));
        m[i] = m_new;
        v[i] = v_new;
        w[i] = ls_fma(-f.lr, ls_fma(f.decay, w[i], d), w[i]);
    }
}

#define DRAWS 64 /* at a time; a power of two: the low word of a counter never wraps within them */
#define PIECE (4 * DRAWS)

/* The random words of elements [4 draw, 4 draw + PIECE). */
static void draw_words(uint32_t *restrict word, const ls_adamw_rounding *r, int64_t draw) {
    uint32_t lanes[PIECE];
    ls_philox_lanes(lanes, DRAWS, r->seed, (uint32_t)draw, (uint32_t)(draw >> 32), (uint32_t)r->step,
                    ls_moment_counter(r->step));
    for (int i = 0; i < DRAWS; i++)
        for (int j = 0; j < 4; j++) word[4 * i + j] = lanes[j * DRAWS + i];
}

/* The same of moments in bf16: [first, last), in pieces of draws. */
static void move_narrow(const ls_adamw_args *a, int64_t first, int64_t last) {
    float m[PIECE], v[PIECE];
    uint32_t word[PIECE];
    for (int64_t at = first, n; at < last; at += n) {
        const int64_t element = a->rounding.first + at, skip = element % PIECE;
        uint16_t *m_at = (uint16_t *)a->m + at, *v_at = (uint16_t *)a->v + at;
        n = ls_min_i64(PIECE - skip, last - at);
        draw_words(word, &a->rounding, (element - skip) / 4);
        ls_row_widen(m, m_at, LS_BF16, n);
        ls_row_widen(v, v_at, LS_BF16, n);
        move(a, at, n, m, v);
        for (int64_t i = 0; i < n; i++) m[i] = ls_moment_round(m[i], word[skip + i] & 0xFFFFu);
        for (int64_t i = 0; i < n; i++) v[i] = ls_moment_round(v[i], word[skip + i] >> 16);
        ls_row_narrow(m_at, LS_BF16, m, n);
        ls_row_narrow(v_at, LS_BF16, v, n);
    }
}

/* Elements [first, last) of one tensor, of which there is at least one. */
static void move_tensor(const ls_adamw_args *a, int64_t first, int64_t last) {
    if (a->moments == LS_BF16)
        move_narrow(a, first, last);
    else
        move(a, first, last - first, (float *)a->m + first, (float *)a->v + first);
    if (a->value != NULL)
        ls_row_narrow(ls_at_mut(a->value, a->value_dtype, first), a->value_dtype, a->w + first, last - first);
}

/* Part `i` as if it were a call of its own. */
static ls_adamw_args of_part(const ls_adamw_args *a, int64_t i) {
    const ls_adamw_part *part = &a->parts[i];
    const int64_t end = i + 1 < a->n_parts ? part[1].begin : a->n;
    ls_adamw_args of = *a;
    of.w += part->begin;
    of.m = (uint8_t *)a->m + part->begin * ls_dtype_bytes(a->moments);
    of.v = (uint8_t *)a->v + part->begin * ls_dtype_bytes(a->moments);
    of.grad += part->begin;
    of.rounding.first += part->begin;
    of.n = end - part->begin;
    of.value = part->value;
    of.value_dtype = part->value_dtype;
    if (!part->decays) of.factors.decay = 0.0f;
    return of;
}

LS_KERNEL_DEFINE(ls_adamw_kernel) {
    const ls_adamw_args *a = context;
    const int64_t first = begin * LS_ADAMW_BLOCK, last = ls_min_i64(end * LS_ADAMW_BLOCK, a->n);
    (void)scratch;
    if (first >= last) return;
    if (a->parts == NULL) {
        move_tensor(a, first, last);
        return;
    }
    for (int64_t i = ls_adamw_part_of(a, first); i < a->n_parts && a->parts[i].begin < last; i++) {
        const ls_adamw_args part = of_part(a, i);
        const int64_t at = a->parts[i].begin;
        move_tensor(&part, ls_max_i64(first - at, 0), ls_min_i64(last - at, part.n));
    }
}

LS_KERNEL_DEFINE(ls_squares_kernel) {
    const ls_squares_args *call = context;
    (void)scratch;
    for (int64_t block = begin; block < end; block++) {
        const ls_squares_range *range = call->ranges != NULL ? &call->ranges[block] : NULL;
        const int64_t first = range != NULL ? range->begin : block * LS_SQUARES_BLOCK;
        const int64_t last = range != NULL ? first + range->n : ls_min_i64(first + LS_SQUARES_BLOCK, call->n);
        float chain[LS_SUM_CHAINS] = {0};
        for (int64_t base = first; base < last; base += LS_SUM_CHAINS) {
            const float *x = call->x + base;
            const int64_t n = ls_min_i64(LS_SUM_CHAINS, last - base);
            for (int64_t i = 0; i < n; i++) chain[i] = ls_fma(x[i], x[i], chain[i]);
        }
        call->blocks[block] = ls_sum_fold(chain);
    }
}

LS_KERNEL_DEFINE(ls_weight_cast_kernel) {
    const ls_weight_cast_args *call = context;
    const int64_t first = begin * LS_ADAMW_BLOCK, n = ls_min_i64(end * LS_ADAMW_BLOCK, call->n) - first;
    (void)scratch;
    if (n > 0) ls_row_narrow(ls_at_mut(call->out, call->dtype, first), call->dtype, call->w + first, n);
}
