/* regroup against its contract, bit for bit in both directions: counts of parts, widths, strides, instruction sets,
 * threads; what lies between rows stays; bad arguments. */
#include "op/op_case.h"
#include "op/regroup.h"

typedef struct shape {
    int64_t rows, heads, n_parts, widths[LS_REGROUP_PARTS_MAX], pad;
} shape;

static const shape shapes[] = {
    {1, 1, 1, {1}, 0},        {3, 5, 2, {2, 2}, 1}, {4, 2, 4, {8, 8, 16, 16}, 4}, {2, 16, 2, {1, 3}, 2},
    {7, 3, 3, {4, 12, 8}, 0}, {0, 2, 2, {2, 2}, 0}, {5, 1, 4, {3, 1, 2, 5}, 3},   {9, 4, 4, {64, 64, 128, 128}, 0}};

typedef struct problem {
    op_array x, part[LS_REGROUP_PARTS_MAX];
    ls_regroup_args args;
} problem;

static problem problem_make(const shape *s, bool gathers) {
    problem p = {.args = {.n_parts = s->n_parts, .rows = s->rows, .heads = s->heads, .gathers = gathers}};
    uint64_t seed = 7;
    int64_t width = 0;
    for (int64_t i = 0; i < s->n_parts; i++) {
        p.part[i] = op_array_make(LS_F32, s->rows, s->heads * s->widths[i], s->pad * i);
        if (gathers) op_fill(&p.part[i], op_special, &seed);
        if (!gathers) op_guard(&p.part[i]);
        p.args.part[i] = (ls_regroup_part){(float *)p.part[i].data, p.part[i].stride, s->widths[i]};
        width += s->widths[i];
    }
    p.x = op_array_make(LS_F32, s->rows, s->heads * width, s->pad);
    if (!gathers) op_fill(&p.x, op_special, &seed);
    if (gathers) op_guard(&p.x);
    p.args.x = (float *)p.x.data;
    p.args.x_stride = p.x.stride;
    return p;
}

static void problem_free(problem *p) {
    for (int64_t i = 0; i < p->args.n_parts; i++) op_array_free(&p->part[i]);
    op_array_free(&p->x);
}

/* Column by column of x, which knows its head and its place there. */
static void reference(const problem *p) {
    const int64_t heads = p->args.heads, width = p->x.cols / heads;
    for (int64_t r = 0; r < p->x.rows; r++)
        for (int64_t c = 0; c < p->x.cols; c++) {
            int64_t part = 0, in = c % width;
            while (in >= p->args.part[part].width) in -= p->args.part[part++].width;
            in += c / width * p->args.part[part].width;
            if (p->args.gathers) op_put(&p->x, r, c, op_get(&p->part[part], r, in));
            if (!p->args.gathers) op_put(&p->part[part], r, in, op_get(&p->x, r, c));
        }
}

static void every_shape_equals_the_contract(void **state) {
    const ls_isa isa = op_isa(state);
    for (int64_t i = 0; i < 2 * OP_COUNT(shapes); i++)
        for (int32_t t = 0; t < OP_THREADS_MAX; t++) {
            problem want = problem_make(&shapes[i / 2], i % 2 != 0), got = problem_make(&shapes[i / 2], i % 2 != 0);
            ls_error err;
            reference(&want);
            assert_ok(ls_regroup(op_devices[isa][t], &got.args, &err), err);
            op_check(&want.x, &got.x, OP_NAN_PINNED, "x of shape %lld", (long long)(i / 2));
            for (int64_t k = 0; k < got.args.n_parts; k++)
                op_check(&want.part[k], &got.part[k], OP_NAN_PINNED, "part of shape %lld", (long long)(i / 2));
            problem_free(&got);
            problem_free(&want);
        }
}

static void bad_arguments_are_named(void **state) {
    static const shape s = {2, 3, 2, {2, 4}, 0};
    problem p = problem_make(&s, false);
    ls_error err;
    (void)state;
#define REFUSED(word, ...)                                                               \
    do {                                                                                 \
        ls_regroup_args args = p.args;                                                   \
        __VA_ARGS__;                                                                     \
        check_failed(ls_regroup(op_devices[0][0], &args, &err), &err, "regroup: " word); \
    } while (0)
    REFUSED("x is a null", args.x = NULL);
    REFUSED("part is a null", args.part[1].rows = NULL);
    REFUSED("rows -1", args.rows = -1);
    REFUSED("rows 2, heads 0", args.heads = 0);
    REFUSED("rows 2, heads 3, parts 0", args.n_parts = 0);
    REFUSED("rows 2, heads 3, parts 5", args.n_parts = 5);
    REFUSED("width 0 of part 1", args.part[1].width = 0);
    REFUSED("1000000 heads of 6 columns are more than", args.heads = 1000000);
    REFUSED("x: stride 17", args.x_stride = 17);
    REFUSED("part: stride 5", args.part[0].stride = 5);
#undef REFUSED
    problem_free(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {OP_CASES(every_shape_equals_the_contract),
                                       cmocka_unit_test(bad_arguments_are_named)};
    return cmocka_run_group_tests(tests, op_open, op_close);
}
