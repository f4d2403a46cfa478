/* Rows in the order of their experts against a textbook reading: shapes, experts that nobody chose, that everybody
 * chose; bad experts and bad arguments. */
#include "op/moe.h"
#include "op/op_case.h"

typedef struct problem {
    int64_t rows, n_experts, top_k, n;
    int32_t *expert;
    int64_t *numbers, *expected; /* pick, row and place [n] each, then offsets [n_experts + 1], then a guard */
} problem;

static int64_t numbers_of(const problem *p) { return 3 * p->n + p->n_experts + 2; }

/* The places by selection: expert after expert, pick after pick. */
static void place_ref(problem *p) {
    int64_t *pick = p->expected, *row = pick + p->n, *place = row + p->n, *offsets = place + p->n, at = 0;
    memset(p->expected, OP_GUARD, (size_t)(numbers_of(p) * 8));
    for (int64_t e = 0; e < p->n_experts; e++) {
        offsets[e] = at;
        for (int64_t r = 0; r < p->rows; r++)
            for (int64_t k = 0; k < p->top_k; k++)
                if (p->expert[r * p->top_k + k] == e) {
                    pick[at] = r * p->top_k + k;
                    row[at] = r;
                    place[r * p->top_k + k] = at++;
                }
    }
    offsets[p->n_experts] = at;
    assert_int_equal(at, p->n);
}

/* kind 0: choices as routing makes them; 1: one set of experts for all rows. */
static problem problem_make(int64_t rows, int64_t n_experts, int64_t top_k, int64_t kind, uint64_t seed) {
    problem p = {.rows = rows, .n_experts = n_experts, .top_k = top_k, .n = rows * top_k};
    p.expert = op_alloc(p.n * 4);
    p.numbers = op_alloc(numbers_of(&p) * 8);
    p.expected = op_alloc(numbers_of(&p) * 8);
    for (int64_t r = 0; r < rows; r++) {
        int64_t left = top_k;
        /* Ascending: an expert is taken with the chance that leaves top_k of them. */
        for (int64_t e = 0; e < n_experts && left > 0; e++) {
            const bool due = n_experts - e == left;
            if (due || (kind == 0 && (int64_t)(test_random(&seed) % (uint64_t)(n_experts - e)) < left))
                p.expert[r * top_k + top_k - left--] = (int32_t)e;
        }
    }
    place_ref(&p);
    return p;
}

static void problem_free(problem *p) {
    free(p->expert);
    free(p->numbers);
    free(p->expected);
}

static ls_moe_place_args problem_args(const problem *p) {
    const ls_moe_place_args args = {p->expert,  p->rows,           p->n_experts,          p->top_k,
                                    p->numbers, p->numbers + p->n, p->numbers + 2 * p->n, p->numbers + 3 * p->n};
    return args;
}

static void places_equal_the_textbook(void **state) {
    const ls_isa isa = op_isa(state);
    const int64_t shapes[][2] = {{1, 1}, {2, 1}, {6, 2}, {16, 4}, {16, 16}, {160, 6}, {1024, 3}};
    const int64_t counts[] = {0, 1, 2, 33, 200};
    for (int64_t s = 0; s < OP_COUNT(shapes); s++)
        for (int64_t c = 0; c < OP_COUNT(counts); c++)
            for (int64_t kind = 0; kind < 2; kind++) {
                problem p = problem_make(counts[c], shapes[s][0], shapes[s][1], kind, (uint64_t)(s + c) + 1);
                const ls_moe_place_args args = problem_args(&p);
                for (int32_t t = 0; t < OP_THREADS_MAX; t++) {
                    ls_error err;
                    memset(p.numbers, OP_GUARD, (size_t)(numbers_of(&p) * 8));
                    assert_ok(ls_moe_place(op_devices[isa][t], &args, &err), err);
                    if (memcmp(p.numbers, p.expected, (size_t)(numbers_of(&p) * 8)) != 0)
                        fail_msg("%lld rows, %lld of %lld experts, kind %lld", (long long)counts[c],
                                 (long long)shapes[s][1], (long long)shapes[s][0], (long long)kind);
                }
                problem_free(&p);
            }
}

static void bad_experts_are_named(void **state) {
    const ls_isa isa = op_isa(state);
    const int32_t bad[] = {-1, 6, INT32_MIN, INT32_MAX};
    for (int64_t b = 0; b < OP_COUNT(bad); b++)
        for (int64_t at = 0; at < 8; at++) {
            problem p = problem_make(4, 6, 2, 0, 1);
            const ls_moe_place_args args = problem_args(&p);
            char text[100];
            ls_error err;
            p.expert[at] = bad[b];
            snprintf(text, sizeof text, "moe_place: row %lld: expert %d is not in 0..5", (long long)(at / 2), bad[b]);
            memset(p.numbers, OP_GUARD, (size_t)(numbers_of(&p) * 8));
            memset(p.expected, OP_GUARD, (size_t)(numbers_of(&p) * 8));
            check_failed(ls_moe_place(op_devices[isa][0], &args, &err), &err, text);
            assert_memory_equal(p.numbers, p.expected, (size_t)(numbers_of(&p) * 8));
            problem_free(&p);
        }
}

static void bad_arguments_are_named(void **state) {
    problem p = problem_make(4, 6, 2, 0, 1);
    ls_error err;
    (void)state;
#define REFUSED(word, ...)                                                                   \
    do {                                                                                     \
        ls_moe_place_args args = problem_args(&p);                                           \
        __VA_ARGS__;                                                                         \
        check_failed(ls_moe_place(op_devices[0][0], &args, &err), &err, "moe_place: " word); \
    } while (0)
    memset(p.numbers, OP_GUARD, (size_t)(numbers_of(&p) * 8));
    memset(p.expected, OP_GUARD, (size_t)(numbers_of(&p) * 8));
    REFUSED("expert is a null", args.expert = NULL);
    REFUSED("pick is a null", args.pick = NULL);
    REFUSED("row is a null", args.row = NULL);
    REFUSED("place is a null", args.place = NULL);
    REFUSED("offsets is a null", args.offsets = NULL);
    REFUSED("-4 rows", args.rows = -4);
    REFUSED("4 rows, top 0 of 6", args.top_k = 0);
    REFUSED("4 rows, top 7 of 6", args.top_k = 7);
    REFUSED("4 rows, top 2 of 1025 experts (at most 1024)", args.n_experts = 1025);
    REFUSED("4 rows, top 2 of 0", args.n_experts = 0);
    REFUSED("expert: 4611686018427387904 rows of stride 2", args.rows = INT64_C(1) << 62);
#undef REFUSED
    assert_memory_equal(p.numbers, p.expected, (size_t)(numbers_of(&p) * 8));
    problem_free(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        OP_CASES(places_equal_the_textbook),
        OP_CASES(bad_experts_are_named),
        cmocka_unit_test(bad_arguments_are_named),
    };
    return cmocka_run_group_tests(tests, op_open, op_close);
}
