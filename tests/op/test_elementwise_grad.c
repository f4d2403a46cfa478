/* Gradients of the SwiGLU gate and of the embedding against a textbook reading of their contracts, bit for bit: shapes,
 * instruction sets, threads, special values, gradients over inputs, rows split over calls; the gate against central
 * differences in float64; variants that must be caught; bad arguments. */
#include "op/elementwise_backward.h"
#include "op/op_grad.h"

static const int64_t dims[] = {1, 7, 16, 17, 63, 64, 65, 257, 2560};

/* ---- SwiGLU ---- */

/* Wrong on purpose: gate' as s + l (1 - s) in two roundings, and the factors of dgate in another order. */
typedef enum variant { RIGHT, UNFUSED, OTHER_PRODUCT } variant;

static void swiglu_ref(const op_array in[3], const op_array out[2], variant v) {
    for (int64_t r = 0; r < in[0].rows; r++)
        for (int64_t c = 0; c < in[0].cols; c++) {
            const float gate = op_get(&in[0], r, c), up = op_get(&in[1], r, c), dy = op_get(&in[2], r, c);
            const float s = ls_sigmoid(gate), l = ls_silu(gate);
            const float slope = v == UNFUSED ? ls_add(ls_mul(l, ls_sub(1.0f, s)), s) : ls_fma(l, ls_sub(1.0f, s), s);
            op_put(&out[0], r, c, v == OTHER_PRODUCT ? ls_mul(dy, ls_mul(up, slope)) : ls_mul(ls_mul(dy, up), slope));
            op_put(&out[1], r, c, ls_mul(dy, l));
        }
}

static void arrays_make(op_array *arrays, int64_t n, int64_t rows, int64_t dim) {
    for (int64_t i = 0; i < n; i++) arrays[i] = op_array_make(LS_F32, rows, dim, 0);
    for (int64_t i = 0; i < n; i++) op_guard(&arrays[i]);
}

static void arrays_free(op_array *arrays, int64_t n) {
    for (int64_t i = 0; i < n; i++) op_array_free(&arrays[i]);
}

static ls_swiglu_backward_args swiglu_args(const op_array in[3], const op_array *dgate, const op_array *dup) {
    const ls_swiglu_backward_args args = {op_floats(&in[0]), op_floats(&in[1]), op_floats(&in[2]), op_floats(dgate),
                                          op_floats(dup),    in[0].rows,        in[0].cols};
    return args;
}

static void swiglu_equals_the_textbook(void **state) {
    const ls_isa isa = op_isa(state);
    const op_maker makers[] = {op_plain, op_wide, op_special};
    uint64_t seed = 2;
    for (int64_t d = 0; d < OP_COUNT(dims); d++)
        for (int64_t i = 0; i < 9; i++) {
            op_array in[3], expected[2], got[2];
            ls_error err;
            arrays_make(in, 3, 1 + i % 3 * 3, dims[d]);
            arrays_make(expected, 2, in[0].rows, dims[d]);
            arrays_make(got, 2, in[0].rows, dims[d]);
            for (int j = 0; j < 3; j++) op_fill(&in[j], makers[i / 3], &seed);
            swiglu_ref(in, expected, RIGHT);
            for (int32_t t = 0; t < OP_THREADS_MAX; t++) {
                const ls_swiglu_backward_args args = swiglu_args(in, &got[0], &got[1]);
                op_guard(&got[0]);
                op_guard(&got[1]);
                assert_ok(ls_swiglu_backward(op_devices[isa][t], &args, &err), err);
                for (int j = 0; j < 2; j++)
                    op_check(&expected[j], &got[j], OP_NAN_ANY, "swiglu_backward %d dim %lld threads %d", j,
                             (long long)dims[d], t + 1);
            }
            arrays_free(in, 3);
            arrays_free(expected, 2);
            arrays_free(got, 2);
        }
}

/* Each of the two gradients over each of the three inputs. */
static void swiglu_works_in_place(void **state) {
    const ls_isa isa = op_isa(state);
    for (int pair = 0; pair < 9; pair++) {
        const int over_gate = pair / 3, over_up = pair % 3;
        uint64_t seed = 3;
        op_array in[3], expected[2];
        ls_swiglu_backward_args args;
        ls_error err;
        if (over_gate == over_up) continue;
        arrays_make(in, 3, 5, 333);
        arrays_make(expected, 2, 5, 333);
        for (int j = 0; j < 3; j++) op_fill(&in[j], op_wide, &seed);
        swiglu_ref(in, expected, RIGHT);
        args = swiglu_args(in, &in[over_gate], &in[over_up]);
        assert_ok(ls_swiglu_backward(op_devices[isa][1], &args, &err), err);
        op_check(&expected[0], &in[over_gate], OP_NAN_PINNED, "dgate over input %d", over_gate);
        op_check(&expected[1], &in[over_up], OP_NAN_PINNED, "dup over input %d", over_up);
        arrays_free(in, 3);
        arrays_free(expected, 2);
    }
}

enum { T_DIM = 200 };

typedef struct exact {
    double gate[T_DIM], up[T_DIM], dy[T_DIM];
} exact;

static double exact_loss(const void *context) {
    const exact *e = context;
    double loss = 0.0;
    for (int c = 0; c < T_DIM; c++) loss += e->dy[c] * e->gate[c] / (1.0 + exp(-e->gate[c])) * e->up[c];
    return loss;
}

/* Within 1e-5 of the largest gradient of its kind. */
static void swiglu_is_that_of_float64(void **state) {
    const ls_isa isa = op_isa(state);
    uint64_t seed = 4;
    op_array in[3], got[2];
    static exact e;
    double *const inputs[3] = {e.gate, e.up, e.dy};
    ls_swiglu_backward_args args;
    ls_error err;
    arrays_make(in, 3, 1, T_DIM);
    arrays_make(got, 2, 1, T_DIM);
    for (int j = 0; j < 3; j++) {
        op_fill(&in[j], op_wide, &seed);
        for (int c = 0; c < T_DIM; c++) inputs[j][c] = op_get(&in[j], 0, c);
    }
    args = swiglu_args(in, &got[0], &got[1]);
    assert_ok(ls_swiglu_backward(op_devices[isa][0], &args, &err), err);
    for (int j = 0; j < 2; j++) {
        const double error = grad_worst(op_floats(&got[j]), inputs[j], T_DIM, exact_loss, &e);
        print_message("%s: worst error %.3g of the largest\n", j == 0 ? "dgate" : "dup", error);
        assert_true(error <= 1e-5);
    }
    arrays_free(in, 3);
    arrays_free(got, 2);
}

static void variants_are_caught(void **state) {
    uint64_t seed = 5;
    op_array in[3], right[2], wrong[2];
    char text[160];
    (void)state;
    arrays_make(in, 3, 2, 100);
    arrays_make(right, 2, 2, 100);
    arrays_make(wrong, 2, 2, 100);
    for (int j = 0; j < 3; j++) op_fill(&in[j], op_wide, &seed);
    swiglu_ref(in, right, RIGHT);
    for (int v = UNFUSED; v <= OTHER_PRODUCT; v++) {
        swiglu_ref(in, wrong, (variant)v);
        if (op_diffs(&right[0], &wrong[0], OP_NAN_ANY, text) == 0) fail_msg("variant %d is not seen", v);
    }
    arrays_free(in, 3);
    arrays_free(right, 2);
    arrays_free(wrong, 2);
}

/* ---- embedding ---- */

enum { VOCAB = 37, ROWS = 200 };

typedef struct lookup {
    op_array dy, dtable, expected;
    int32_t tokens[ROWS], pad;
} lookup;

static void embed_ref(const lookup *l, const op_array *dtable, bool reversed) {
    for (int64_t i = 0; i < ROWS; i++) {
        const int64_t r = reversed ? ROWS - 1 - i : i;
        if (l->tokens[r] == l->pad) continue;
        for (int64_t c = 0; c < dtable->cols; c++)
            op_put(dtable, l->tokens[r], c, ls_add(op_get(dtable, l->tokens[r], c), op_get(&l->dy, r, c)));
    }
}

/* Token 5 is half of all, odd tokens above 20 do not occur and keep their guards; with an even seed, 7 is padding. */
static lookup lookup_make(int64_t dim, op_maker make, uint64_t seed) {
    lookup l;
    l.pad = seed % 2 == 0 ? 7 : -1;
    l.dy = op_array_make(LS_F32, ROWS, dim, (int64_t)(test_random(&seed) % 4));
    l.dtable = op_array_make(LS_F32, VOCAB, dim, 0);
    op_guard(&l.dtable);
    op_fill(&l.dy, make, &seed);
    for (int64_t token = 0; token < VOCAB; token++)
        if (token <= 20 || token % 2 == 0) op_fill_row(&l.dtable, token, make, &seed);
    for (int64_t r = 0; r < ROWS; r++) {
        l.tokens[r] = r % 2 == 0 ? 5 : (int32_t)(test_random(&seed) % VOCAB);
        if (l.tokens[r] > 20 && l.tokens[r] % 2 == 1) l.tokens[r]--;
    }
    l.tokens[1] = 7;
    l.expected = op_copy(&l.dtable);
    embed_ref(&l, &l.expected, false);
    return l;
}

static void lookup_free(lookup *l) {
    op_array_free(&l->dy);
    op_array_free(&l->dtable);
    op_array_free(&l->expected);
}

/* The call for rows [begin, end). */
static ls_embed_backward_args lookup_args(const lookup *l, const op_array *dtable, int64_t begin, int64_t end) {
    const ls_embed_backward_args args = {
        .tokens = l->tokens + begin,
        .dy = op_at(&l->dy, begin, 0),
        .dy_stride = l->dy.stride,
        .dtable = op_floats(dtable),
        .vocab = VOCAB,
        .dim = dtable->cols,
        .rows = end - begin,
        .pad = l->pad,
    };
    return args;
}

static void embedding_equals_the_textbook(void **state) {
    const ls_isa isa = op_isa(state);
    const int64_t cuts[] = {ROWS, 1, 7, 102};
    for (int64_t d = 0; d < OP_COUNT(dims); d++)
        for (int special = 0; special < 2; special++) {
            lookup l = lookup_make(dims[d], special ? op_special : op_wide, (uint64_t)d + 1);
            for (int32_t t = 0; t < OP_THREADS_MAX; t++)
                for (int64_t i = 0; i < OP_COUNT(cuts); i++) {
                    const int64_t rows = cuts[i];
                    op_array dtable = op_copy(&l.dtable);
                    ls_error err;
                    for (int64_t begin = 0; begin < ROWS; begin += rows) {
                        const ls_embed_backward_args args =
                            lookup_args(&l, &dtable, begin, begin + rows < ROWS ? begin + rows : ROWS);
                        assert_ok(ls_embed_backward(op_devices[isa][t], &args, &err), err);
                    }
                    op_check(&l.expected, &dtable, OP_NAN_ANY, "embed_backward dim %lld threads %d, %lld rows a call",
                             (long long)dims[d], t + 1, (long long)rows);
                    op_array_free(&dtable);
                }
            lookup_free(&l);
        }
}

/* Within 1e-5 of the sum of absolute terms; and the order of the rows shows in bits. */
static void embedding_is_accurate_and_ordered(void **state) {
    lookup l = lookup_make(64, op_wide, 3);
    op_array reversed = op_copy(&l.dtable);
    char text[160];
    double worst = 0.0;
    (void)state;
    for (int64_t token = 0; token <= 20; token++)
        for (int64_t c = 0; c < 64; c++) {
            double sum = op_get(&l.dtable, token, c), size = fabs(sum);
            for (int64_t r = 0; r < ROWS; r++) {
                sum += l.tokens[r] == token ? (double)op_get(&l.dy, r, c) : 0.0;
                size += l.tokens[r] == token ? fabs((double)op_get(&l.dy, r, c)) : 0.0;
            }
            worst = fmax(worst, fabs((double)op_get(&l.expected, token, c) - sum) / size);
        }
    print_message("embedding: worst error %.3g of the sum of absolute terms\n", worst);
    assert_true(worst <= 1e-5);
    embed_ref(&l, &reversed, true);
    assert_true(op_diffs(&l.expected, &reversed, OP_NAN_ANY, text) > 0);
    op_array_free(&reversed);
    lookup_free(&l);
}

static void bad_arguments_are_named(void **state) {
    const int32_t bad[] = {-1, VOCAB, INT32_MIN, INT32_MAX};
    lookup l = lookup_make(9, op_plain, 1);
    op_array in[3], got[2], untouched[2];
    ls_error err;
    (void)state;
    arrays_make(in, 3, 2, 3);
    arrays_make(got, 2, 2, 3);
    arrays_make(untouched, 2, 2, 3);
#define SWIGLU(word, ...)                                                                                \
    do {                                                                                                 \
        ls_swiglu_backward_args args = swiglu_args(in, &got[0], &got[1]);                                \
        __VA_ARGS__;                                                                                     \
        check_failed(ls_swiglu_backward(op_devices[0][1], &args, &err), &err, "swiglu_backward: " word); \
    } while (0)
#define EMBED(word, ...)                                                                               \
    do {                                                                                               \
        ls_embed_backward_args args = lookup_args(&l, &l.dtable, 0, ROWS);                             \
        __VA_ARGS__;                                                                                   \
        check_failed(ls_embed_backward(op_devices[0][1], &args, &err), &err, "embed_backward: " word); \
    } while (0)
    SWIGLU("gate is a null", args.gate = NULL);
    SWIGLU("up is a null", args.up = NULL);
    SWIGLU("dy is a null", args.dy = NULL);
    SWIGLU("dgate is a null", args.dgate = NULL);
    SWIGLU("dup is a null", args.dup = NULL);
    SWIGLU("rows -1", args.rows = -1);
    SWIGLU("rows 2, dim 0", args.dim = 0);
    SWIGLU("gate: 9223372036854775807 rows", args.rows = INT64_MAX);
    for (int j = 0; j < 2; j++) op_check(&untouched[j], &got[j], OP_NAN_PINNED, "refused: gradient %d", j);
    op_array_free(&l.expected);
    l.expected = op_copy(&l.dtable);
    EMBED("tokens is a null", args.tokens = NULL);
    EMBED("dy is a null", args.dy = NULL);
    EMBED("dtable is a null", args.dtable = NULL);
    EMBED("dy: stride 8", args.dy_stride = 8);
    EMBED("rows -2", args.rows = -2);
    EMBED("rows 200, dim -1", args.dim = -1);
    EMBED("vocab -1", args.vocab = -1);
    EMBED("dtable: 9223372036854775807 rows", args.vocab = INT64_MAX);
    for (int64_t i = 0; i < OP_COUNT(bad); i++) {
        char named[64];
        const int32_t kept = l.tokens[70];
        l.tokens[70] = bad[i];
        snprintf(named, sizeof named, "row 70: token %d is not in 0..36", bad[i]);
        EMBED("row", (void)args);
        check_failed(err.status, &err, named);
        l.tokens[70] = kept;
    }
#undef SWIGLU
#undef EMBED
    op_check(&l.expected, &l.dtable, OP_NAN_PINNED, "refused: dtable");
    lookup_free(&l);
    arrays_free(in, 3);
    arrays_free(got, 2);
    arrays_free(untouched, 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        OP_CASES(swiglu_equals_the_textbook),
        OP_CASES(swiglu_works_in_place),
        OP_CASES(swiglu_is_that_of_float64),
        OP_CASES(embedding_equals_the_textbook),
        cmocka_unit_test(embedding_is_accurate_and_ordered),
        cmocka_unit_test(variants_are_caught),
        cmocka_unit_test(bad_arguments_are_named),
    };
    return cmocka_run_group_tests(tests, op_open, op_close);
}
