/* Gradients of the convolution against a textbook reading of their contract, bit for bit, and against central
 * differences of a float64 convolution. */
#include "op/conv1d.h"
#include "op/op_grad.h"

typedef struct problem {
    grad_layout layout;
    int64_t dim, d_conv;
    ls_dtype state_dtype;
    bool with_bias, with_states;
    op_array x, dy; /* [rows] */
    op_array w, bias;
    op_array initial, dfinal; /* [spans * (d_conv - 1)] */
} problem;

enum { DX, DW, DBIAS, DINITIAL, N_GRADS };
static const char *const grad_names[N_GRADS] = {"dx", "dw", "dbias", "dinitial"};

typedef struct grads {
    op_array of[N_GRADS];
} grads;

/* Rows of a tensor of windows, with one for a pointer where there are none. */
static int64_t windows(const problem *p) { return p->layout.n_spans * (p->d_conv - 1) + 1; }

static grads grads_make(const problem *p, int64_t pad) {
    grads g = {{op_array_make(LS_F32, p->layout.rows, p->dim, pad), op_array_make(LS_F32, p->d_conv, p->dim, 0),
                op_array_make(LS_F32, 1, p->dim, 0), op_array_make(LS_F32, windows(p), p->dim, 0)}};
    for (int i = 0; i < N_GRADS; i++) op_guard(&g.of[i]);
    return g;
}

static void grads_free(grads *g) {
    for (int i = 0; i < N_GRADS; i++) op_array_free(&g->of[i]);
}

static float *grads_at(const grads *g, int i) { return (float *)(void *)g->of[i].data; }

/* combo: one bit each for the types of x and state, 4 for a bias, 8 for NaN, infinities and denormals, 16 for spans
 * that continue others. */
static problem problem_make(const grad_layout *layout, int64_t dim, int64_t d_conv, int64_t combo, uint64_t seed) {
    const ls_dtype types[] = {LS_F32, LS_BF16};
    problem p;
    p.layout = *layout;
    p.dim = dim;
    p.d_conv = d_conv;
    p.state_dtype = types[combo / 2 % 2];
    p.with_bias = combo / 4 % 2;
    p.x = op_array_make(types[combo % 2], layout->rows, dim, (int64_t)(test_random(&seed) % 4));
    p.dy = op_array_make(LS_F32, layout->rows, dim, (int64_t)(test_random(&seed) % 4));
    p.w = op_array_make(LS_F32, d_conv, dim, 0);
    p.bias = op_array_make(LS_F32, 1, dim, 0);
    grad_fill(&p.x, layout, combo / 8 % 2 ? op_special : op_wide, &seed);
    grad_fill(&p.dy, layout, combo / 8 % 2 ? op_special : op_plain, &seed);
    op_fill(&p.w, op_plain, &seed);
    op_fill(&p.bias, op_plain, &seed);
    p.with_states = combo / 16 % 2;
    p.initial = op_array_make(p.state_dtype, windows(&p), dim, 0);
    p.dfinal = op_array_make(LS_F32, windows(&p), dim, 0);
    op_fill(&p.initial, op_plain, &seed);
    op_fill(&p.dfinal, op_plain, &seed);
    for (int64_t i = 0; i < layout->n_spans && p.with_states; i++) p.layout.spans[i].pos = 3 * i;
    return p;
}

static void problem_free(problem *p) {
    op_array *arrays[] = {&p->x, &p->dy, &p->w, &p->bias, &p->initial, &p->dfinal};
    for (int64_t i = 0; i < OP_COUNT(arrays); i++) op_array_free(arrays[i]);
}

static ls_conv1d_backward_args problem_args(const problem *p, const grads *g) {
    const ls_conv1d_backward_args args = {
        .x = p->x.data,
        .x_dtype = p->x.dtype,
        .state_dtype = p->state_dtype,
        .x_stride = p->x.stride,
        .w = (const float *)(const void *)p->w.data,
        .bias = p->with_bias ? (const float *)(const void *)p->bias.data : NULL,
        .dy = (const float *)(const void *)p->dy.data,
        .dy_stride = p->dy.stride,
        .dx = grads_at(g, DX),
        .dx_stride = g->of[DX].stride,
        .dw = grads_at(g, DW),
        .dbias = p->with_bias ? grads_at(g, DBIAS) : NULL,
        .rows = p->layout.rows,
        .dim = p->dim,
        .d_conv = p->d_conv,
        .spans = p->layout.spans,
        .n_spans = p->layout.n_spans,
        .initial = p->with_states ? p->initial.data : NULL,
        .dinitial = p->with_states ? grads_at(g, DINITIAL) : NULL,
        .dfinal = p->with_states ? (const float *)(const void *)p->dfinal.data : NULL,
    };
    return args;
}

/* The op on a device, in a workspace of exactly its size. */
static void run(const problem *p, const grads *g, ls_device *device) {
    const ls_conv1d_backward_args args = problem_args(p, g);
    grad_workspace workspace = grad_workspace_lend(device, ls_op_conv1d_backward_workspace(&args));
    ls_error err;
    assert_ok(ls_conv1d_backward(device, &args, &err), err);
    grad_workspace_take_back(&workspace);
}

/* ---- the textbook ---- */

/* Wrong on purpose: tokens summed without blocks, spans added from the last to the first, dx from the latest token to
 * the earliest, the input not rounded to the state's type, the gradient of the window behind before that of tokens. */
typedef enum variant { RIGHT, NO_BLOCKS, SPANS_REVERSED, LATEST_FIRST, INPUT_UNROUNDED, FINAL_FIRST } variant;

/* Entry j of the window of a span, in a tensor of windows. */
static float window_ref(const problem *p, const op_array *tensor, const ls_span *span, int64_t j, int64_t c) {
    return p->with_states ? op_get(tensor, (span - p->layout.spans) * (p->d_conv - 1) + j, c) : 0.0f;
}

static float input_ref(const problem *p, const ls_span *span, int64_t t, int64_t c, variant v) {
    const float x = t < 0 ? window_ref(p, &p->initial, span, t + p->d_conv - 1, c) : op_get(&p->x, span->row + t, c);
    return v == INPUT_UNROUNDED ? x : op_round(x, p->state_dtype);
}

static float da_ref(const problem *p, const ls_span *span, int64_t t, int64_t c, variant v) {
    float a = p->with_bias ? op_get(&p->bias, 0, c) : 0.0f, s, l;
    for (int64_t k = 0; k < p->d_conv; k++)
        a = ls_fma(op_get(&p->w, k, c), input_ref(p, span, t - (p->d_conv - 1) + k, c, v), a);
    s = ls_sigmoid(a);
    l = ls_silu(a);
    return ls_mul(op_get(&p->dy, span->row + t, c), ls_fma(l, ls_sub(1.0f, s), s));
}

static void add_into(const op_array *a, int64_t row, int64_t col, float x) {
    op_put(a, row, col, ls_add(op_get(a, row, col), x));
}

/* Channel c of a span; da: room for its tokens. */
static void channel_ref(const problem *p, const ls_span *span, int64_t c, const grads *out, float *da, variant v) {
    const int64_t taps = p->d_conv, n = span->n_rows, block = v == NO_BLOCKS ? INT64_MAX / 2 : 64;
    for (int64_t t = 0; t < n; t++) da[t] = da_ref(p, span, t, c, v);
    for (int64_t t = p->with_states && n > 0 ? 1 - taps : 0; t < n; t++) {
        const int64_t j = t - n + taps - 1;
        const float behind = p->with_states && j >= 0 ? window_ref(p, &p->dfinal, span, j, c) : 0.0f;
        float dx = v == FINAL_FIRST ? behind : 0.0f;
        for (int64_t i = 0; i < taps; i++) {
            const int64_t later = v == LATEST_FIRST ? t + taps - 1 - i : t + i;
            if (later >= 0 && later < n) dx = ls_fma(op_get(&p->w, t - later + taps - 1, c), da[later], dx);
        }
        if (v != FINAL_FIRST && p->with_states && j >= 0) dx = ls_add(dx, behind);
        if (t >= 0)
            op_put(&out->of[DX], span->row + t, c, dx);
        else
            op_put(&out->of[DINITIAL], (span - p->layout.spans) * (taps - 1) + t + taps - 1, c, dx);
    }
    for (int64_t k = 0; k <= taps; k++) {
        float sum = 0.0f;
        for (int64_t first = 0; first < n; first += block) {
            float part = 0.0f;
            for (int64_t t = first; t < n && t < first + block; t++)
                part =
                    k == taps ? ls_add(part, da[t]) : ls_fma(da[t], input_ref(p, span, t - (taps - 1) + k, c, v), part);
            sum = ls_add(sum, part);
        }
        if (k < taps)
            add_into(&out->of[DW], k, c, sum);
        else if (p->with_bias)
            add_into(&out->of[DBIAS], 0, c, sum);
    }
}

/* out holds guards. */
static void grad_ref(const problem *p, const grads *out, variant v) {
    const int64_t n_spans = p->layout.n_spans;
    float *da = op_alloc(p->layout.rows * 4);
    memset(out->of[DW].data, 0, (size_t)out->of[DW].bytes);
    if (p->with_bias) memset(out->of[DBIAS].data, 0, (size_t)out->of[DBIAS].bytes);
    for (int64_t i = 0; i < n_spans; i++) {
        const ls_span *span = &p->layout.spans[v == SPANS_REVERSED ? n_spans - 1 - i : i];
        for (int64_t c = 0; c < p->dim && span->slot >= 0; c++) channel_ref(p, span, c, out, da, v);
    }
    free(da);
}

/* ---- equality in bits ---- */

static void problem_check(const problem *p, ls_isa isa, const char *what) {
    for (int32_t t = 0; t < OP_THREADS_MAX; t++) {
        grads expected = grads_make(p, t), got = grads_make(p, t);
        grad_ref(p, &expected, RIGHT);
        run(p, &got, op_devices[isa][t]);
        for (int i = 0; i < N_GRADS; i++)
            op_check(&expected.of[i], &got.of[i], OP_NAN_ANY,
                     "%s: %s of dim %lld, %lld taps, x %s, state %s, bias %d, states %d, threads %d", what,
                     grad_names[i], (long long)p->dim, (long long)p->d_conv, ls_dtype_name(p->x.dtype),
                     ls_dtype_name(p->state_dtype), p->with_bias, p->with_states, t + 1);
        grads_free(&got);
        grads_free(&expected);
    }
}

/* Shorter than the window, as long, and on both sides of one and two blocks of tokens. */
static const int64_t lengths[] = {1, 2, 3, 4, 5, 31, 32, 33, 63, 64, 65, 70, 128, 131};

static void every_shape_equals_the_textbook(void **state) {
    const ls_isa isa = op_isa(state);
    const int64_t dims[] = {1, 7, 17, 33, 64, 65, 130};
    uint64_t seed = 5;
    for (int64_t d = 0; d < OP_COUNT(dims); d++)
        for (int64_t d_conv = 1; d_conv <= 5; d_conv++) {
            const grad_layout layout = grad_layout_random(lengths, OP_COUNT(lengths), &seed);
            problem p = problem_make(&layout, dims[d], d_conv, (int64_t)(test_random(&seed) % 32), test_random(&seed));
            problem_check(&p, isa, "shapes");
            problem_free(&p);
        }
}

static void every_option_equals_the_textbook(void **state) {
    const ls_isa isa = op_isa(state);
    uint64_t seed = 6;
    for (int64_t combo = 0; combo < 32; combo++) {
        const grad_layout layout = grad_layout_random(lengths, OP_COUNT(lengths), &seed);
        problem p = problem_make(&layout, 19, 4, combo, test_random(&seed));
        problem_check(&p, isa, "options");
        problem_free(&p);
    }
}

static void every_length_equals_the_textbook(void **state) {
    const ls_isa isa = op_isa(state);
    for (int64_t i = 0; i < OP_COUNT(lengths); i++)
        for (int64_t d_conv = 4; d_conv <= LS_CONV_WIDTH_MAX; d_conv += 12) {
            const int64_t three[] = {lengths[i], lengths[(i * 3 + 1) % OP_COUNT(lengths)], lengths[i]};
            const grad_layout layout = grad_layout_make(1 + i % 3, three, i % 2 == 1, (uint64_t)i + 1);
            problem p = problem_make(&layout, 5, d_conv, 4 + 16 * (i % 2), (uint64_t)i + 1);
            problem_check(&p, isa, "lengths");
            problem_free(&p);
        }
}

/* Without tokens the gradients of parameters are +0 and nothing else is written. */
static void no_tokens_give_zero_gradients(void **state) {
    const ls_isa isa = op_isa(state);
    for (int64_t n_spans = 0; n_spans < 3; n_spans++) {
        const grad_layout layout = {6, n_spans, {{0, 3, 0, -1, 0}, {4, 0, 0, 2, 0}}};
        problem p = problem_make(&layout, 20, 4, 4 + 16 * (n_spans % 2), 3);
        grads got = grads_make(&p, 0);
        problem_check(&p, isa, "no tokens");
        run(&p, &got, op_devices[isa][0]);
        for (int64_t c = 0; c < 20; c++) assert_int_equal(ls_bits(op_get(&got.of[DBIAS], 0, c)), 0);
        grads_free(&got);
        problem_free(&p);
    }
}

/* ---- independence ---- */

/* Gradients of a sequence's rows are the same alone and packed; gradients of vectors add over the spans of a call, so
 * that one sequence among padding gives what it gives alone. */
static void sequences_do_not_see_each_other(void **state) {
    const ls_isa isa = op_isa(state);
    const int64_t three[] = {70, 5, 129};
    for (uint64_t seed = 1; seed <= 6; seed++) {
        const grad_layout layout = grad_layout_make((int64_t)seed % 3 + 1, three, seed > 1, seed);
        problem p = problem_make(&layout, 70, 4, (int64_t)seed % 4 + 4, seed);
        grads packed = grads_make(&p, 0), sums = grads_make(&p, 0);
        for (int i = DW; i <= DBIAS; i++) memset(sums.of[i].data, 0, (size_t)sums.of[i].bytes);
        run(&p, &packed, op_devices[isa][2]);
        for (int64_t s = 0; s < layout.n_spans; s++) {
            const ls_span *span = &layout.spans[s];
            problem q = p;
            op_array rows;
            grads alone;
            if (span->slot < 0) continue;
            q.layout = grad_layout_make(1, &span->n_rows, false, 1);
            q.x = grad_rows(&p.x, span);
            q.dy = grad_rows(&p.dy, span);
            alone = grads_make(&q, 0);
            rows = grad_rows(&packed.of[DX], span);
            run(&q, &alone, op_devices[isa][s % OP_THREADS_MAX]);
            op_check(&alone.of[DX], &rows, OP_NAN_PINNED, "packed: dx of span %lld", (long long)s);
            for (int i = DW; i <= DBIAS; i++)
                for (int64_t j = 0; j < alone.of[i].rows * q.dim; j++)
                    add_into(&sums.of[i], j / q.dim, j % q.dim, op_get(&alone.of[i], j / q.dim, j % q.dim));
            op_array_free(&rows);
            op_array_free(&q.x);
            op_array_free(&q.dy);
            grads_free(&alone);
        }
        for (int i = DW; i <= DBIAS; i++)
            op_check(&sums.of[i], &packed.of[i], OP_NAN_PINNED, "sum over spans: %s", grad_names[i]);
        grads_free(&packed);
        grads_free(&sums);
        problem_free(&p);
    }
}

/* ---- truth ---- */

enum { T_ROWS = 75, T_DIM = 3, T_TAPS = 4 };

/* The same problem in float64: two sequences of 70 and 5 tokens, or a tree. */
typedef struct exact {
    bool with_bias, is_tree;
    grad_layout layout;
    double x[T_ROWS * T_DIM], dy[T_ROWS * T_DIM], w[T_TAPS * T_DIM], bias[T_DIM];
} exact;

/* The row `back` tokens before row t of span s. */
static int64_t exact_before(const exact *e, int64_t s, int64_t t, int64_t back) {
    if (e->is_tree) return grad_tree_before(&e->layout, s, t, back);
    return t - back >= e->layout.spans[s].row ? t - back : -1;
}

/* The sum of dy * y. */
static double exact_loss(const void *context) {
    const exact *e = context;
    double loss = 0.0;
    for (int64_t s = 0; s < e->layout.n_spans; s++)
        for (int64_t i = 0; i < e->layout.spans[s].n_rows * T_DIM; i++) {
            const int64_t t = e->layout.spans[s].row + i / T_DIM, c = i % T_DIM;
            double a = e->with_bias ? e->bias[c] : 0.0;
            for (int k = 0; k < T_TAPS; k++) {
                const int64_t from = exact_before(e, s, t, T_TAPS - 1 - k);
                if (from >= 0) a += e->w[k * T_DIM + c] * e->x[from * T_DIM + c];
            }
            loss += e->dy[t * T_DIM + c] * a / (1.0 + exp(-a));
        }
    return loss;
}

static void widen_to(double *to, const op_array *from) {
    for (int64_t r = 0; r < from->rows; r++)
        for (int64_t c = 0; c < from->cols; c++) *to++ = op_get(from, r, c);
}

/* Every gradient is within 1e-4 of the largest of its kind; measured errors are near 1e-7. */
static void gradients_are_those_of_float64(void **state) {
    const ls_isa isa = op_isa(state);
    const int64_t two[] = {70, 5};
    const grad_layout layout = grad_layout_make(2, two, false, 1);
    double worst = 0.0;
    for (int with_bias = 0; with_bias < 2; with_bias++) {
        problem p = problem_make(&layout, T_DIM, T_TAPS, 4 * with_bias, 3);
        grads got = grads_make(&p, 0);
        static exact e;
        double *const inputs[DINITIAL] = {e.x, e.w, e.bias};
        const op_array *from[DINITIAL] = {&p.x, &p.w, &p.bias};
        e.with_bias = with_bias;
        e.layout = layout;
        for (int i = 0; i < DINITIAL; i++) widen_to(inputs[i], from[i]);
        widen_to(e.dy, &p.dy);
        run(&p, &got, op_devices[isa][0]);
        for (int i = 0; i < DBIAS + with_bias; i++) {
            const double error =
                grad_worst(grads_at(&got, i), inputs[i], from[i]->rows * from[i]->cols, exact_loss, &e);
            if (!(error <= 1e-4)) fail_msg("%s, bias %d: error %g of the largest", grad_names[i], with_bias, error);
            worst = fmax(worst, error);
        }
        grads_free(&got);
        problem_free(&p);
    }
    print_message("worst error %.3g of the largest gradient of its kind\n", worst);
}

/* ---- spans that continue others ---- */

/* The windows that the spans of a tree begin with. */
static void tree_windows(const problem *p) {
    const int64_t past = p->d_conv - 1;
    for (int64_t i = 0; i < GRAD_TREE_SPANS * past * p->dim; i++) {
        const int64_t s = i / p->dim / past, j = i / p->dim % past, c = i % p->dim;
        const int64_t from = grad_tree_before(&p->layout, s, p->layout.spans[s].row, past - j);
        op_put(&p->initial, s * past + j, c, from >= 0 ? op_round(op_get(&p->x, from, c), p->state_dtype) : 0.0f);
    }
}

/* Gradients of a tree, level by level, the deepest first. */
static void tree_back(const problem *p, const grads *got, ls_device *device) {
    const int64_t each = (p->d_conv - 1) * p->dim, entry = each * ls_dtype_bytes(p->state_dtype);
    float *dfinal = (float *)(void *)p->dfinal.data;
    memset(dfinal, 0, (size_t)p->dfinal.bytes);
    for (int64_t level = GRAD_TREE_LEVELS - 1; level >= 0; level--) {
        const grad_level l = grad_level_make(&p->layout, level);
        void *initial = grad_level_gather(&l, p->initial.data, entry);
        float *last = grad_level_gather(&l, dfinal, each * 4), *first = op_alloc(l.n * each * 4);
        ls_conv1d_backward_args args = problem_args(p, got);
        grad_workspace workspace = grad_workspace_lend(device, ls_op_conv1d_backward_workspace(&args));
        ls_error err;
        args.spans = l.spans;
        args.n_spans = l.n;
        args.continued = level < GRAD_TREE_LEVELS - 1;
        args.initial = level > 0 ? initial : NULL;
        args.dinitial = level > 0 ? first : NULL;
        args.dfinal = level < GRAD_TREE_LEVELS - 1 ? last : NULL;
        assert_ok(ls_conv1d_backward(device, &args, &err), err);
        grad_workspace_take_back(&workspace);
        if (level > 0) grad_level_give(&l, first, dfinal, each);
        free(initial);
        free(last);
        free(first);
    }
}

/* A trunk is computed once for all that continue it: within 1e-4 of float64, as whole sequences are. */
static void gradients_of_a_tree_are_those_of_float64(void **state) {
    const int64_t rows[] = {9, 2, 5, 59};
    const grad_layout tree = grad_tree_make(rows);
    problem p = problem_make(&tree, T_DIM, T_TAPS, 4, 3);
    grads got = grads_make(&p, 0);
    static exact e;
    double *const inputs[DINITIAL] = {e.x, e.w, e.bias};
    const op_array *from[DINITIAL] = {&p.x, &p.w, &p.bias};
    e.with_bias = e.is_tree = true;
    e.layout = tree;
    for (int i = 0; i < DINITIAL; i++) widen_to(inputs[i], from[i]);
    widen_to(e.dy, &p.dy);
    p.layout = tree;
    tree_windows(&p);
    tree_back(&p, &got, op_devices[op_isa(state)][1]);
    for (int i = 0; i < DINITIAL; i++) {
        const double error = grad_worst(grads_at(&got, i), inputs[i], from[i]->rows * from[i]->cols, exact_loss, &e);
        if (!(error <= 1e-4)) fail_msg("%s: error %g of the largest", grad_names[i], error);
    }
    grads_free(&got);
    problem_free(&p);
}

/* The second part of a sequence has the rows' gradients that it has in the whole, in bits. */
static void a_cut_changes_no_row_behind_it(void **state) {
    enum { ROWS = 75, CUT = 10 };
    const int64_t one[] = {ROWS};
    const ls_span behind = {CUT, ROWS - CUT, CUT, 0, 0};
    const grad_layout layout = grad_layout_make(1, one, false, 1);
    problem p = problem_make(&layout, 33, 4, 1 + 2 + 4, 3);
    grads whole = grads_make(&p, 0), got = grads_make(&p, 0);
    run(&p, &whole, op_devices[op_isa(state)][0]);
    p.with_states = true;
    p.layout.spans[0] = behind;
    for (int64_t i = 0; i < 3 * 33; i++) op_put(&p.initial, i / 33, i % 33, op_get(&p.x, CUT - 3 + i / 33, i % 33));
    memset(p.dfinal.data, 0, (size_t)p.dfinal.bytes);
    run(&p, &got, op_devices[op_isa(state)][1]);
    grad_rows_check(&whole.of[DX], &got.of[DX], &behind, "behind a cut: dx");
    grads_free(&got);
    grads_free(&whole);
    problem_free(&p);
}

/* Spans that begin with zeros, and that nothing continues, have the bits of whole sequences. */
static void zero_states_change_nothing(void **state) {
    const int64_t two[] = {70, 2};
    const grad_layout layout = grad_layout_make(2, two, true, 3);
    problem p = problem_make(&layout, 33, 4, 2 + 4 + 16, 3);
    grads whole = grads_make(&p, 0), got = grads_make(&p, 0);
    p.with_states = false;
    for (int64_t i = 0; i < p.layout.n_spans; i++) p.layout.spans[i].pos = 0;
    run(&p, &whole, op_devices[op_isa(state)][0]);
    memset(p.initial.data, 0, (size_t)p.initial.bytes);
    memset(p.dfinal.data, 0, (size_t)p.dfinal.bytes);
    p.with_states = true;
    for (int64_t i = 0; i < p.layout.n_spans; i++) p.layout.spans[i].pos = 7;
    run(&p, &got, op_devices[op_isa(state)][1]);
    for (int i = 0; i < DINITIAL; i++) op_check(&whole.of[i], &got.of[i], OP_NAN_PINNED, "zero: %s", grad_names[i]);
    grads_free(&got);
    grads_free(&whole);
    problem_free(&p);
}

/* ---- errors ---- */

static void bad_arguments_are_named(void **state) {
    const grad_layout layout = {9, 2, {{0, 4, 0, 0, 0}, {4, 5, 0, 1, 0}}};
    problem p = problem_make(&layout, 4, 3, 4, 1);
    grads got = grads_make(&p, 1), untouched = grads_make(&p, 1);
    const ls_conv1d_backward_args right = problem_args(&p, &got);
    ls_device *device = op_devices[0][1];
    grad_workspace workspace = grad_workspace_lend(device, ls_op_conv1d_backward_workspace(&right));
    ls_conv1d_backward_args args;
    ls_span spans[2];
    ls_error err;
    (void)state;
#define REFUSED(word, ...)                                                 \
    do {                                                                   \
        args = right;                                                      \
        memcpy(spans, layout.spans, sizeof spans);                         \
        args.spans = spans;                                                \
        __VA_ARGS__;                                                       \
        check_failed(ls_conv1d_backward(device, &args, &err), &err, word); \
        check_failed(err.status, &err, "conv1d_backward");                 \
    } while (0)
    REFUSED("x is a null", args.x = NULL);
    REFUSED("w is a null", args.w = NULL);
    REFUSED("dy is a null", args.dy = NULL);
    REFUSED("dx is a null", args.dx = NULL);
    REFUSED("dw is a null", args.dw = NULL);
    REFUSED("bias is a null pointer and dbias is not", args.bias = NULL);
    REFUSED("dbias is a null pointer and bias is not", args.dbias = NULL);
    REFUSED("x f16", args.x_dtype = LS_F16);
    REFUSED("state f16", args.state_dtype = LS_F16);
    REFUSED("width 0", args.d_conv = 0);
    REFUSED("width 17", args.d_conv = 17);
    REFUSED("rows -1", args.rows = -1);
    REFUSED("dim 0", args.dim = 0);
    REFUSED("x: stride 3", args.x_stride = 3);
    REFUSED("dy: stride -4", args.dy_stride = -4);
    REFUSED("dx: stride 0", args.dx_stride = 0);
    REFUSED("dy: 9 rows of stride 9223372036854775807", args.dy_stride = INT64_MAX);
    REFUSED("9223372036854775807 rows", args.rows = INT64_MAX);
    REFUSED("-1 spans", args.n_spans = -1);
    REFUSED("workspace of 9 rows, 9223372036854775807 spans", args.n_spans = INT64_MAX);
    REFUSED("2 spans at", args.spans = NULL);
    REFUSED("-3 rows a span", args.span_rows_max = -3);
    REFUSED("span 1: row 4, rows 5", args.span_rows_max = 4);
    REFUSED("span 1: position 2", spans[1].pos = 2);
    REFUSED("span 1: position 2", spans[1].pos = 2; args.dfinal = grads_at(&got, DINITIAL));
    REFUSED("span 1: position -2", spans[1].pos = -2; args.initial = p.initial.data);
    REFUSED("span 1: row 3 before", spans[1].row = 3);
    REFUSED("span 0: row -1", spans[0].row = -1);
    REFUSED("span 1: row 4, rows 6", spans[1].n_rows = 6);
    REFUSED("span 1: row 4, rows 9223372036854775807", spans[1].n_rows = INT64_MAX);
#undef REFUSED
    for (int i = 0; i < N_GRADS; i++)
        op_check(&untouched.of[i], &got.of[i], OP_NAN_PINNED, "refused: %s", grad_names[i]);
    grad_workspace_take_back(&workspace);
    grads_free(&got);
    grads_free(&untouched);
    problem_free(&p);
}

/* Sizes that do not fit are no workspace, whatever the other arguments are. */
static void workspaces_that_do_not_fit(void **state) {
    const int64_t wild[] = {0, 1, 33, INT64_MAX / 2, INT64_MAX, -1, INT64_MIN};
    int64_t refused = 0;
    (void)state;
    for (int64_t i = 0; i < 7 * 7 * 7 * 7; i++) {
        const ls_conv1d_backward_args args = {
            .rows = wild[i % 7], .dim = wild[i / 7 % 7], .d_conv = wild[i / 49 % 7], .n_spans = wild[i / 343]};
        const bool negative = args.rows < 0 || args.dim < 0 || args.d_conv < 0 || args.n_spans < 0;
        const int64_t bytes = ls_op_conv1d_backward_workspace(&args);
        assert_true(bytes == -1 || (!negative && bytes >= LS_WORKSPACE_HEAD));
        refused += bytes == -1;
    }
    assert_true(refused > 7 * 7 * 7);
}

/* ---- the comparison itself ---- */

static void variants_are_caught(void **state) {
    const struct {
        variant wrong;
        int seen_in;
    } cases[] = {{NO_BLOCKS, DW},         {NO_BLOCKS, DBIAS}, {SPANS_REVERSED, DW},
                 {SPANS_REVERSED, DBIAS}, {LATEST_FIRST, DX}, {INPUT_UNROUNDED, DX},
                 {INPUT_UNROUNDED, DW},   {FINAL_FIRST, DX},  {FINAL_FIRST, DINITIAL}};
    const int64_t three[] = {131, 2, 80};
    const grad_layout layout = grad_layout_make(3, three, true, 2);
    problem p = problem_make(&layout, 9, 4, 6 + 16, 8);
    grads right = grads_make(&p, 0);
    (void)state;
    grad_ref(&p, &right, RIGHT);
    for (int64_t i = 0; i < OP_COUNT(cases); i++) {
        grads wrong = grads_make(&p, 0);
        char text[160];
        grad_ref(&p, &wrong, cases[i].wrong);
        if (op_diffs(&right.of[cases[i].seen_in], &wrong.of[cases[i].seen_in], OP_NAN_ANY, text) == 0)
            fail_msg("variant %d is not seen in %s", (int)cases[i].wrong, grad_names[cases[i].seen_in]);
        grads_free(&wrong);
    }
    grads_free(&right);
    problem_free(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        OP_CASES(every_shape_equals_the_textbook),          OP_CASES(every_option_equals_the_textbook),
        OP_CASES(every_length_equals_the_textbook),         OP_CASES(no_tokens_give_zero_gradients),
        OP_CASES(sequences_do_not_see_each_other),          OP_CASES(gradients_are_those_of_float64),
        OP_CASES(gradients_of_a_tree_are_those_of_float64), OP_CASES(zero_states_change_nothing),
        OP_CASES(a_cut_changes_no_row_behind_it),           cmocka_unit_test(bad_arguments_are_named),
        cmocka_unit_test(workspaces_that_do_not_fit),       cmocka_unit_test(variants_are_caught),
    };
    return cmocka_run_group_tests(tests, op_open, op_close);
}
