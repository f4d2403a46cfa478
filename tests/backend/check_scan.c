/* The selective scan on every back end: bits of the CPU contract for every shape, cut, batch, slot and repetition. */
#include "state_case.h"

static void every_shape(bk_run *run) {
    static const int64_t dims[] = {1, 7, 8, 9, 33, 64, 65, 128},
                         states[] = {1, 2, 3, 4, 5, 8, 13, 14, 15, 16, 17, 32, 64, 256};
    static const int64_t length[] = {3, 1, 18, 2};
    for (int64_t i = 0; i < BK_COUNT(dims) * BK_COUNT(states); i++) {
        const scan_shape shape = {dims[i / BK_COUNT(states)], states[i % BK_COUNT(states)],
                                  (int)(i * 29 % SCAN_OPTIONS), PLAIN};
        problem p;
        if (run->small && shape.dim * shape.n_states > 300) continue;
        p = scan_problem(run, &shape, length, bk_size(run, 2, 4, 4), (uint64_t)i + 1);
        check_cuts(run, &p);
        problem_free(&p);
    }
}

static void wide_shapes(bk_run *run) {
    static const int64_t length[] = {17, 2, 33, 1, 100, 31};
    static const scan_shape list[] = {
        {2560, 16, IN_BF16 | OUT_BF16, PLAIN},
        {5120, 16, IN_BF16 | OUT_BF16, PLAIN},
        {5120, 16, OUT_BF16, BOUNDED},
        {2560, 1, 0, PLAIN},
        {5120, 2, OUT_BF16, PLAIN},
        {2560, 3, IN_BF16 | NO_D, PLAIN},
        {5120, 4, NO_GATE, PLAIN},
        {2560, 5, IN_BF16, PLAIN},
        {2560, 8, IN_BF16 | DT_ACTIVATED, BOUNDED},
        {2560, 17, 0, SPECIAL},
        {5120, 32, IN_BF16, PLAIN},
        {2560, 64, OUT_BF16, PLAIN},
        {2560, 256, IN_BF16 | OUT_BF16, PLAIN},
        {5120, 256, 0, PLAIN},
    };
    for (int64_t i = 0; i < bk_size(run, 0, BK_COUNT(list), BK_COUNT(list)); i++) {
        problem p = scan_problem(run, &list[i], length, bk_size(run, 1, 3, 6), (uint64_t)i + 100);
        check_cuts(run, &p);
        problem_free(&p);
    }
}

static void every_length(bk_run *run) {
    static const int64_t length[] = {1, 2, 3, 15, 16, 17, 31, 33, 64, 100, 300};
    static const scan_shape shapes[] = {{65, 16, IN_BF16 | OUT_BF16, PLAIN},
                                        {128, 16, 0, PLAIN},
                                        {33, 5, IN_BF16, BOUNDED},
                                        {64, 17, OUT_BF16, SPECIAL}};
    for (int64_t i = 0; i < bk_size(run, 1, BK_COUNT(shapes), BK_COUNT(shapes)); i++) {
        problem p = scan_problem(run, &shapes[i], length, bk_size(run, 6, BK_COUNT(length), BK_COUNT(length)),
                                 (uint64_t)i + 200);
        check_cuts(run, &p);
        problem_free(&p);
    }
}

/* z, d, dt_bias there or not, dt activated or not, every pair of types; plain, special and bounded values. */
static void every_option(bk_run *run) {
    static const int64_t length[] = {5, 18, 2, 33};
    static const int64_t shapes[][2] = {{33, 4}, {64, 16}, {9, 17}};
    for (int64_t i = 0; i < 3 * SCAN_OPTIONS; i++) {
        const scan_shape shape = {shapes[i % 3][0], shapes[i % 3][1], (int)(i % SCAN_OPTIONS),
                                  (values)(i / SCAN_OPTIONS)};
        problem p;
        if (run->small && i % 13 != 0) continue;
        p = scan_problem(run, &shape, length, 4, (uint64_t)i + 300);
        check_cuts(run, &p);
        problem_free(&p);
    }
}

static void borders_of_the_decay(bk_run *run) {
    static const int64_t length[] = {5, 18, 2, 33};
    for (int64_t i = 0; i < BK_COUNT(border_shapes); i++) {
        problem p = scan_problem(run, &border_shapes[i], length, BK_COUNT(length), (uint64_t)i + 380);
        check_cuts(run, &p);
        problem_free(&p);
    }
}

static const scan_shape serving[] = {
    {33, 5, 0, PLAIN}, {64, 16, IN_BF16 | OUT_BF16, PLAIN}, {128, 16, IN_BF16 | OUT_BF16, BOUNDED}};

static problem serving_problem(bk_run *run, int64_t i) {
    int64_t length[SEQS_MAX];
    for (int64_t s = 0; s < SEQS_MAX; s++) length[s] = 1 + (s * 7 + 17) % 20;
    return scan_problem(run, &serving[i], length, SEQS_MAX, (uint64_t)i + 400);
}

static void for_each_serving(bk_run *run, void (*check)(bk_run *, const problem *)) {
    for (int64_t i = 0; i < bk_size(run, 1, BK_COUNT(serving), BK_COUNT(serving)); i++) {
        problem p = serving_problem(run, i);
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
    static const int64_t length[] = {40, 1, 17, 64};
    static const scan_shape shapes[] = {{33, 5, 0, PLAIN},
                                        {128, 16, IN_BF16 | OUT_BF16, PLAIN},
                                        {64, 16, NO_GATE | NO_D | NO_DT_BIAS | DT_ACTIVATED, PLAIN},
                                        {65, 17, IN_BF16, BOUNDED},
                                        {33, 1, AT_BORDERS, BORDERS}};
    for (int64_t i = 0; i < BK_COUNT(shapes); i++) {
        problem p = scan_problem(run, &shapes[i], length, BK_COUNT(length), (uint64_t)i + 500);
        check_golden(run, &p, &golden_scan[i]);
        problem_free(&p);
    }
}

/* ---- wrong on purpose ---- */

/* One chain over the states when sequences share a call; the state stored in bf16; a first chunk of one token that is
 * taken for decoding and reads what its slot's last owner left. */
static enum { RIGHT, TREE_BY_BATCH, STORED_BF16, FIRST_TOKEN_DECODED } variant;

static float variant_decay(float dt, float a2) {
    const float x = ls_mul(dt, a2), round = ls_fma(dt, a2, LS_ROUND_MAGIC);
    const float poly = ls_exp2_poly(ls_fma(dt, a2, -ls_sub(round, LS_ROUND_MAGIC)));
    return x >= -126.0f && x <= 127.0f ? ls_from_bits(ls_bits(poly) + (ls_bits(round) << 23)) : ls_exp2_bounded(x);
}

/* A textbook scan of one channel of one span, f32, with every operand there. */
static void variant_channel(const problem *p, const operands *o, const ls_span *span, int64_t c) {
    const int64_t n = p->width, group = variant == TREE_BY_BATCH && o->n_spans > 1 ? n : (n + 3) / 4;
    float *h = (float *)(void *)(o->pool.base + span->slot * o->pool.stride) + c * n;
    const bool fresh = span->pos == 0 && !(variant == FIRST_TOKEN_DECODED && span->n_rows == 1);
    for (int64_t s = 0; s < n && fresh; s++) h[s] = 0.0f;
    for (int64_t row = span->row; row < span->row + span->n_rows; row++) {
        const float *in[INPUTS_MAX];
        float part[4] = {0}, dt, v, y;
        for (int64_t i = 0; i < INPUTS_MAX; i++) in[i] = (const float *)o->in[i] + row * o->in_stride[i];
        dt = ls_softplus(ls_add(in[SCAN_DT][c], o->param[SCAN_DT_BIAS][c]));
        v = ls_mul(dt, in[SCAN_U][c]);
        for (int64_t s = 0; s < n; s++) {
            h[s] = ls_fma(variant_decay(dt, o->param[SCAN_A2][c * n + s]), h[s], ls_mul(v, in[SCAN_B][s]));
            part[s / group] = ls_fma(h[s], in[SCAN_C][s], part[s / group]);
        }
        y = ls_add(ls_add(part[0], part[1]), ls_add(part[2], part[3]));
        y = ls_fma(o->param[SCAN_D][c], in[SCAN_U][c], y);
        ((float *)o->out)[row * o->out_stride + c] = ls_mul(y, ls_silu(in[SCAN_Z][c]));
    }
    for (int64_t s = 0; s < n && variant == STORED_BF16; s++) h[s] = ls_round_bf16(h[s]);
}

static ls_status variant_call(const ls_exec *exec, const problem *p, const operands *o, ls_error *err) {
    (void)exec, (void)err;
    for (int64_t i = 0; i < o->n_spans; i++)
        for (int64_t c = 0; c < p->dim && o->spans[i].slot >= 0 && o->spans[i].n_rows > 0; c++)
            variant_channel(p, o, &o->spans[i], c);
    return LS_OK;
}

/* The comparison of this program must pass a sound scan that it has never seen, and catch each wrong one where it is
 * wrong. */
static void variants_are_caught(bk_run *run) {
    static const int64_t length[] = {5, 18, 2, 33};
    static const scan_shape shape = {33, 16, 0, PLAIN};
    static const variant_cut list[] = {
        {RIGHT, {RANDOM, PACKED, BOUND_EXACT, true, false, 0}, false},
        {RIGHT, {1, ALONE, BOUND_EXACT, true, false, 0}, false},
        {TREE_BY_BATCH, {3, PACKED, BOUND_EXACT, false, false, 0}, true},
        {TREE_BY_BATCH, {3, ALONE, BOUND_EXACT, false, false, 0}, false},
        {STORED_BF16, {3, PACKED, BOUND_EXACT, false, false, 0}, true},
        {STORED_BF16, {WHOLE, PACKED, BOUND_EXACT, false, false, 0}, true},
        {FIRST_TOKEN_DECODED, {1, PACKED, BOUND_EXACT, false, false, 0}, true},
        {FIRST_TOKEN_DECODED, {2, PACKED, BOUND_EXACT, false, false, 0}, false},
    };
    problem p = scan_problem(run, &shape, length, BK_COUNT(length), 600);
    p.call = variant_call;
    for (int64_t i = 0; i < BK_COUNT(list); i++) {
        variant = list[i].variant;
        check_variant(run, &p, &list[i]);
    }
    problem_free(&p);
}

int main(int argc, char **argv) {
    static const bk_case cases[] = {
        {"every shape", every_shape, BK_ANYWHERE},
        {"wide shapes", wide_shapes, BK_ANYWHERE},
        {"every length", every_length, BK_ANYWHERE},
        {"every option", every_option, BK_ANYWHERE},
        {"borders of the decay", borders_of_the_decay, BK_ANYWHERE},
        {"any batch and position", any_batch_and_position, BK_ANYWHERE},
        {"repeated runs", repeated_runs, BK_ANYWHERE},
        {"replayed graph", replayed_graph, BK_CUDA_ONLY},
        {"two streams", two_streams, BK_CUDA_ONLY},
        {"golden bits", golden_bits, BK_ANYWHERE},
        {"variants are caught", variants_are_caught, BK_CPU_ONLY},
    };
    return bk_main(argc, argv, cases, BK_COUNT(cases));
}
