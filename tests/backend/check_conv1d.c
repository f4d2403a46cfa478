/* The causal convolution on every back end: bits of the CPU contract for every width, shape, type, cut, batch, slot and
 * repetition. */
#include "state_case.h"

static void every_width(bk_run *run) {
    static const int64_t length[] = {3, 1, 18, 2, 33, 5}, dims[] = {1, 7, 8, 33, 65};
    for (int64_t taps = 1; taps <= LS_CONV_WIDTH_MAX; taps += bk_size(run, 5, 1, 1))
        for (int64_t i = 0; i < bk_size(run, 1, BK_COUNT(dims), BK_COUNT(dims)); i++) {
            const conv_shape shape = {dims[(i + taps) % BK_COUNT(dims)], taps, (int)((taps * 5 + i * 3) % CONV_OPTIONS),
                                      (values)(i % 2)};
            problem p = conv_problem(run, &shape, length, BK_COUNT(length), (uint64_t)(taps * 10 + i));
            check_cuts(run, &p);
            problem_free(&p);
        }
}

static void every_dim(bk_run *run) {
    static const int64_t length[] = {17, 2, 3, 1, 100, 31}, dims[] = {1, 7, 8, 9, 33, 64, 65, 128, 2560, 5120};
    for (int64_t i = 0; i < 2 * BK_COUNT(dims); i++) {
        const conv_shape shape = {dims[i / 2], 4, (int)(i * 7 % CONV_OPTIONS), (values)(i % 2)};
        problem p;
        if (run->small && (shape.dim > 65 || i % 3 != 0)) continue;
        p = conv_problem(run, &shape, length, BK_COUNT(length), (uint64_t)i + 200);
        check_cuts(run, &p);
        problem_free(&p);
    }
}

/* Every type of x, y and state, with bias and without; plain and special values. */
static void every_option(bk_run *run) {
    static const int64_t length[] = {5, 18, 2, 33};
    for (int64_t i = 0; i < 4 * CONV_OPTIONS; i++) {
        const conv_shape shape = {i % 3 == 0 ? 64 : 33, i < 2 * CONV_OPTIONS ? 4 : 3, (int)(i % CONV_OPTIONS),
                                  (values)(i / CONV_OPTIONS % 2)};
        problem p;
        if (run->small && i % 5 != 0) continue;
        p = conv_problem(run, &shape, length, BK_COUNT(length), (uint64_t)i + 300);
        check_cuts(run, &p);
        problem_free(&p);
    }
}

static void every_length(bk_run *run) {
    static const int64_t length[] = {1, 2, 3, 15, 16, 17, 31, 33, 64, 100, 300};
    static const conv_shape shapes[] = {{65, 4, X_BF16 | STATE_BF16, SPECIAL}, {128, 4, STATE_BF16, PLAIN}};
    for (int64_t i = 0; i < bk_size(run, 1, BK_COUNT(shapes), BK_COUNT(shapes)); i++) {
        problem p = conv_problem(run, &shapes[i], length, bk_size(run, 6, BK_COUNT(length), BK_COUNT(length)),
                                 (uint64_t)i + 350);
        check_cuts(run, &p);
        problem_free(&p);
    }
}

static const conv_shape serving[] = {
    {33, 4, 0, PLAIN}, {64, 4, X_BF16 | Y_BF16 | STATE_BF16, PLAIN}, {128, 8, STATE_BF16, SPECIAL}};

static void for_each_serving(bk_run *run, void (*check)(bk_run *, const problem *)) {
    for (int64_t i = 0; i < bk_size(run, 1, BK_COUNT(serving), BK_COUNT(serving)); i++) {
        int64_t length[SEQS_MAX];
        problem p;
        for (int64_t s = 0; s < SEQS_MAX; s++) length[s] = 1 + (s * 7 + 17) % 20;
        p = conv_problem(run, &serving[i], length, SEQS_MAX, (uint64_t)i + 400);
        check(run, &p);
        problem_free(&p);
    }
}

static void fifty_times(bk_run *run, const problem *p) { check_repeats(run, p, bk_size(run, 3, 50, 50)); }

static void any_batch_and_position(bk_run *run) { for_each_serving(run, check_batches); }
static void repeated_runs(bk_run *run) { for_each_serving(run, fifty_times); }
static void replayed_graph(bk_run *run) { for_each_serving(run, check_graph); }
static void two_streams(bk_run *run) { for_each_serving(run, check_streams); }

static void golden_bits(bk_run *run) {
    static const int64_t length[] = {40, 1, 17, 2};
    static const conv_shape shapes[] = {{33, 4, 0, PLAIN},
                                        {128, 4, X_BF16 | Y_BF16 | STATE_BF16, PLAIN},
                                        {65, 2, STATE_BF16 | NO_BIAS, PLAIN},
                                        {64, 16, Y_BF16, PLAIN}};
    for (int64_t i = 0; i < BK_COUNT(shapes); i++) {
        problem p = conv_problem(run, &shapes[i], length, BK_COUNT(length), (uint64_t)i + 500);
        check_golden(run, &p, &golden_conv1d[i]);
        problem_free(&p);
    }
}

/* ---- wrong on purpose ---- */

/* The input kept unrounded within a span; a span shorter than the window overwrites it from the start; a window that
 * begins with what the slot's last owner left. */
static enum { RIGHT, INPUT_UNROUNDED, SHORT_SPAN, STALE_WINDOW } variant;

/* Input t of the span, before its first token from the window. f32 and a bf16 window. */
static float variant_input(const problem *p, const operands *o, const ls_span *span, const uint16_t *window, int64_t t,
                           int64_t c) {
    if (t < 0)
        return span->pos == 0 && variant != STALE_WINDOW ? 0.0f
                                                         : ls_bf16_to_f32(window[(t + p->width - 1) * p->dim + c]);
    const float x = ((const float *)o->in[0])[(span->row + t) * o->in_stride[0] + c];
    return variant == INPUT_UNROUNDED ? x : ls_round_bf16(x);
}

/* A textbook convolution of one channel of one span. */
static void variant_channel(const problem *p, const operands *o, const ls_span *span, int64_t c) {
    const int64_t past = p->width - 1;
    uint16_t *window = (uint16_t *)(void *)(o->pool.base + span->slot * o->pool.stride), next[LS_CONV_WIDTH_MAX];
    for (int64_t t = 0; t < span->n_rows; t++) {
        float a = o->param[CONV_BIAS][c];
        for (int64_t k = 0; k <= past; k++)
            a = ls_fma(o->param[CONV_W][k * p->dim + c], variant_input(p, o, span, window, t - past + k, c), a);
        ((float *)o->out)[(span->row + t) * o->out_stride + c] = ls_silu(a);
    }
    for (int64_t k = 0; k < past; k++)
        next[k] = ls_f32_to_bf16(variant_input(p, o, span, window, span->n_rows - past + k, c));
    for (int64_t k = 0; k < past; k++)
        if (variant != SHORT_SPAN || span->n_rows >= past || k < span->n_rows) window[k * p->dim + c] = next[k];
}

static ls_status variant_call(const ls_exec *exec, const problem *p, const operands *o, ls_error *err) {
    (void)exec, (void)err;
    for (int64_t i = 0; i < o->n_spans; i++)
        for (int64_t c = 0; c < p->dim && o->spans[i].slot >= 0 && o->spans[i].n_rows > 0; c++)
            variant_channel(p, o, &o->spans[i], c);
    return LS_OK;
}

static void variants_are_caught(bk_run *run) {
    static const int64_t length[] = {5, 18, 2, 33};
    static const conv_shape shape = {33, 4, STATE_BF16, PLAIN};
    static const variant_cut list[] = {
        {RIGHT, {RANDOM, PACKED, BOUND_EXACT, true, false, 0}, false},
        {RIGHT, {1, ALONE, BOUND_EXACT, true, false, 0}, false},
        {INPUT_UNROUNDED, {3, PACKED, BOUND_EXACT, false, false, 0}, true},
        {SHORT_SPAN, {2, PACKED, BOUND_EXACT, false, false, 0}, true},
        {SHORT_SPAN, {WHOLE, PACKED, BOUND_EXACT, true, false, 0}, true},
        {STALE_WINDOW, {WHOLE, PACKED, BOUND_EXACT, false, false, 0}, true},
    };
    problem p = conv_problem(run, &shape, length, BK_COUNT(length), 600);
    p.call = variant_call;
    for (int64_t i = 0; i < BK_COUNT(list); i++) {
        variant = list[i].variant;
        check_variant(run, &p, &list[i]);
    }
    problem_free(&p);
}

int main(int argc, char **argv) {
    static const bk_case cases[] = {
        {"every width", every_width, BK_ANYWHERE},
        {"every dim", every_dim, BK_ANYWHERE},
        {"every option", every_option, BK_ANYWHERE},
        {"every length", every_length, BK_ANYWHERE},
        {"any batch and position", any_batch_and_position, BK_ANYWHERE},
        {"repeated runs", repeated_runs, BK_ANYWHERE},
        {"replayed graph", replayed_graph, BK_CUDA_ONLY},
        {"two streams", two_streams, BK_CUDA_ONLY},
        {"golden bits", golden_bits, BK_ANYWHERE},
        {"variants are caught", variants_are_caught, BK_CPU_ONLY},
    };
    return bk_main(argc, argv, cases, BK_COUNT(cases));
}
