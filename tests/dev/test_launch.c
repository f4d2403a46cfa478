/* Launch contracts: each width at its border, products and sums that pass 64 and 128 bits, grids, and what a refusal
 * says. */
#include "dev/launch.h"
#include "harness.h"

#define SHARED_MAX (48 * 1024)
#define TWO_31 ((int64_t)1 << 31)
#define TWO_32 ((int64_t)1 << 32)
#define TWO_62 ((int64_t)1 << 62)

static ls_status check_grid(int64_t x, int64_t y, int64_t z, int64_t threads, int64_t shared_bytes, ls_error *err) {
    const ls_launch launch = {"k", {x, y, z}, threads, shared_bytes, NULL, 0};
    return ls_launch_check(&launch, SHARED_MAX, err);
}

static ls_status check_index(const ls_index *index, int64_t n, ls_error *err) {
    const ls_launch launch = {"k", {1, 1, 1}, 32, 0, index, n};
    return ls_launch_check(&launch, SHARED_MAX, err);
}

static ls_status check_one(const ls_index *index, ls_error *err) { return check_index(index, 1, err); }

static void takes(ls_index index) {
    ls_error err = {LS_OK, ""};
    assert_ok(check_one(&index, &err), err);
}

/* The whole sentence counts, not a word of it. */
static void refuses(ls_index index, const char *sentence) {
    ls_error err = {LS_OK, ""};
    assert_int_equal(check_one(&index, &err), LS_ERR_ARG);
    assert_int_equal(err.status, LS_ERR_ARG);
    assert_string_equal(err.text, sentence);
}

static void a_value_at_the_border_of_each_width(void **state) {
    (void)state;
    takes((ls_index){LS_WIDTH_I32, {{{"i", 0}}}});
    takes((ls_index){LS_WIDTH_I32, {{{"i", TWO_31 - 1}}}});
    refuses((ls_index){LS_WIDTH_I32, {{{"i", TWO_31}}}}, "k: int32 i = 2147483648 = 2147483648 passes 2147483647");
    takes((ls_index){LS_WIDTH_U32, {{{"i", TWO_31}}}});
    takes((ls_index){LS_WIDTH_U32, {{{"i", TWO_32 - 1}}}});
    refuses((ls_index){LS_WIDTH_U32, {{{"i", TWO_32}}}}, "k: uint32 i = 4294967296 = 4294967296 passes 4294967295");
    takes((ls_index){LS_WIDTH_I64, {{{"i", TWO_32}}}});
    takes((ls_index){LS_WIDTH_I64, {{{"i", INT64_MAX}}}});
    refuses((ls_index){LS_WIDTH_I64, {{{"i", INT64_MAX}}, {{"j", 1}}}},
            "k: int64 i + j = 9223372036854775807 + 1 = 9223372036854775808 passes 9223372036854775807");
}

static void a_product_at_the_border_of_each_width(void **state) {
    (void)state;
    /* 2^31 - 1 is prime; 2^32 - 1 = 65535 * 65537; 2^63 - 1 = 7^2 * 188232082384791343. */
    takes((ls_index){LS_WIDTH_I32, {{{"a", 2}, {"b", (TWO_31 - 2) / 2}}, {{"c", 1}}}});
    refuses((ls_index){LS_WIDTH_I32, {{{"a", 2}, {"b", TWO_31 / 2}}}},
            "k: int32 a * b = 2 * 1073741824 = 2147483648 passes 2147483647");
    takes((ls_index){LS_WIDTH_U32, {{{"a", 65535}, {"b", 65537}}}});
    refuses((ls_index){LS_WIDTH_U32, {{{"a", 65536}, {"b", 65536}}}},
            "k: uint32 a * b = 65536 * 65536 = 4294967296 passes 4294967295");
    takes((ls_index){LS_WIDTH_I64, {{{"a", 7}, {"b", 7}, {"c", 188232082384791343}}}});
    refuses((ls_index){LS_WIDTH_I64, {{{"a", 2}, {"b", TWO_62}}}},
            "k: int64 a * b = 2 * 4611686018427387904 = 9223372036854775808 passes 9223372036854775807");
}

static void a_state_slot_in_32_bits(void **state) {
    (void)state;
    const ls_index slots = {LS_WIDTH_U32, {{{"slot", 69775}, {"stride", 89600}}}};
    refuses(slots, "k: uint32 slot * stride = 69775 * 89600 = 6251840000 passes 4294967295");
    takes((ls_index){LS_WIDTH_I64, {{{"slot", 69775}, {"stride", 89600}}}});
    takes((ls_index){LS_WIDTH_U32, {{{"slot", 47934}, {"stride", 89600}}}});
    refuses((ls_index){LS_WIDTH_U32, {{{"slot", 47935}, {"stride", 89600}}}},
            "k: uint32 slot * stride = 47935 * 89600 = 4294976000 passes 4294967295");
}

/* Each term fits; the sum of all four does not. */
static void a_sum_of_products(void **state) {
    (void)state;
    takes((ls_index){LS_WIDTH_I32, {{{"row", 32767}, {"stride", 65535}}, {{"column", 98302}}}});
    refuses((ls_index){LS_WIDTH_I32, {{{"row", 32767}, {"stride", 65535}}, {{"column", 98303}}}},
            "k: int32 row * stride + column = 32767 * 65535 + 98303 = 2147483648 passes 2147483647");
    takes(
        (ls_index){LS_WIDTH_U32, {{{"a", TWO_31}}, {{"b", 32768}, {"c", 32768}}, {{"d", (1 << 30) - 1}}, {{"e", 0}}}});
    refuses(
        (ls_index){LS_WIDTH_U32, {{{"a", TWO_31}}, {{"b", 32768}, {"c", 32768}}, {{"d", (1 << 30) - 1}}, {{"e", 1}}}},
        "k: uint32 a + b * c + d + e = 2147483648 + 32768 * 32768 + 1073741823 + 1 = 4294967296 passes 4294967295");
}

/* A product with a zero is zero, whatever else it holds; a term without factors ends the sum. */
static void zeros(void **state) {
    (void)state;
    takes((ls_index){LS_WIDTH_I32, {{{"a", INT64_MAX}, {"b", INT64_MAX}, {"c", INT64_MAX}, {"d", 0}}}});
    takes((ls_index){LS_WIDTH_I32, {{{"d", 0}, {"a", INT64_MAX}, {"b", INT64_MAX}, {"c", INT64_MAX}}}});
    takes((ls_index){LS_WIDTH_I32, {{{"a", INT64_MAX}, {"b", 0}}, {{"c", TWO_31 - 1}}}});
    refuses((ls_index){LS_WIDTH_I32, {{{"a", INT64_MAX}, {"b", 0}}, {{"c", TWO_31}}}},
            "k: int32 a * b + c = 9223372036854775807 * 0 + 2147483648 = 2147483648 passes 2147483647");
    takes((ls_index){LS_WIDTH_I32, {{{NULL, 0}}}});
    takes((ls_index){LS_WIDTH_I32, {{{"a", 1}}, {{NULL, 0}}, {{"b", INT64_MAX}}}});
    takes((ls_index){LS_WIDTH_I32, {{{"a", 1}, {NULL, INT64_MAX}, {"b", INT64_MAX}}}});
}

static void negative_values(void **state) {
    (void)state;
    refuses((ls_index){LS_WIDTH_I64, {{{"a", -1}}}}, "k: a is -1");
    refuses((ls_index){LS_WIDTH_I64, {{{"a", INT64_MIN}}}}, "k: a is -9223372036854775808");
    /* Two of them would make a product that fits, a zero one that is zero. */
    refuses((ls_index){LS_WIDTH_I64, {{{"a", 3}, {"b", -2}, {"c", -2}}}}, "k: b is -2");
    refuses((ls_index){LS_WIDTH_I64, {{{"a", 0}, {"b", -2}}}}, "k: b is -2");
    refuses((ls_index){LS_WIDTH_I64, {{{"a", 5}}, {{"b", 1}, {"c", 1}, {"d", 1}, {"e", -5}}}}, "k: e is -5");
}

/* 2^128 would wrap to nothing. */
static void beyond_128_bits(void **state) {
    (void)state;
    refuses(
        (ls_index){LS_WIDTH_I64, {{{"a", INT64_MAX}, {"b", INT64_MAX}}}},
        "k: int64 a * b = 9223372036854775807 * 9223372036854775807 = 85070591730234615847396907784232501249 passes "
        "9223372036854775807");
    refuses((ls_index){LS_WIDTH_I64, {{{"a", TWO_62}, {"b", TWO_62}, {"c", 16}}}},
            "k: int64 a * b * c = 4611686018427387904 * 4611686018427387904 * 16 = 2^128 - 1 or more passes "
            "9223372036854775807");
    refuses(
        (ls_index){LS_WIDTH_I64, {{{"a", TWO_62}, {"b", TWO_62}, {"c", TWO_62}, {"d", 4}}}},
        "k: int64 a * b * c * d = 4611686018427387904 * 4611686018427387904 * 4611686018427387904 * 4 = 2^128 - 1 or "
        "more passes 9223372036854775807");
    refuses(
        (ls_index){LS_WIDTH_U32, {{{"a", TWO_62}, {"b", TWO_62}, {"c", 8}}, {{"a", TWO_62}, {"b", TWO_62}, {"c", 8}}}},
        "k: uint32 a * b * c + a * b * c = 4611686018427387904 * 4611686018427387904 * 8 + 4611686018427387904 * "
        "4611686018427387904 * 8 = 2^128 - 1 or more passes 4294967295");
}

/* As many terms and factors as there can be, each as long as can be: nothing is cut off. */
static void the_longest_refusal(void **state) {
    char expected[LS_ERROR_TEXT_MAX] = "k: int32 ";
    ls_index index;
    ls_error err;
    (void)state;
    index.width = LS_WIDTH_I32;
    for (int t = 0; t < LS_TERMS_MAX; t++)
        for (int f = 0; f < LS_FACTORS_MAX; f++) index.terms[t][f] = (ls_factor){"a_rather_long_name", INT64_MAX};
    for (int i = 0; i < LS_TERMS_MAX * LS_FACTORS_MAX; i++) {
        strcat(expected, i == 0 ? "" : i % LS_FACTORS_MAX == 0 ? " + " : " * ");
        strcat(expected, "a_rather_long_name");
    }
    strcat(expected, " = ");
    for (int i = 0; i < LS_TERMS_MAX * LS_FACTORS_MAX; i++) {
        strcat(expected, i == 0 ? "" : i % LS_FACTORS_MAX == 0 ? " + " : " * ");
        strcat(expected, "9223372036854775807");
    }
    strcat(expected, " = 2^128 - 1 or more passes 2147483647");
    assert_int_equal(check_one(&index, &err), LS_ERR_ARG);
    assert_string_equal(err.text, expected);
}

static void every_index_is_checked(void **state) {
    const ls_index indices[3] = {{LS_WIDTH_I64, {{{"first", INT64_MAX}}}},
                                 {LS_WIDTH_U32, {{{"second", 1}}}},
                                 {LS_WIDTH_I32, {{{"third", TWO_31}}}}};
    ls_error err = {LS_OK, ""};
    (void)state;
    assert_ok(check_index(indices, 0, &err), err);
    assert_ok(check_index(indices, 2, &err), err);
    check_failed(check_index(indices, 3, &err), &err, "third = 2147483648");
    assert_int_equal(check_index(indices, 3, NULL), LS_ERR_ARG);
}

static void grids(void **state) {
    static const char y_text[] = "k: grid of 1 x 65536 x 1 blocks; dimension 1 takes 1 to 65535";
    ls_error err = {LS_OK, ""};
    (void)state;
    assert_ok(check_grid(1, 1, 1, 1, 0, &err), err);
    assert_ok(check_grid(TWO_31 - 1, 65535, 65535, 1024, SHARED_MAX, &err), err);
    assert_int_equal(check_grid(1, 65536, 1, 1, 0, &err), LS_ERR_ARG);
    assert_string_equal(err.text, y_text);
    check_failed(check_grid(TWO_31, 1, 1, 1, 0, &err), &err,
                 "grid of 2147483648 x 1 x 1 blocks; dimension 0 takes 1 to");
    check_failed(check_grid(TWO_32 + 1, 1, 1, 1, 0, &err), &err, "grid of 4294967297 x");
    check_failed(check_grid(1, 1, 65536, 1, 0, &err), &err, "x 65536 blocks; dimension 2");
    check_failed(check_grid(0, 1, 1, 1, 0, &err), &err, "dimension 0");
    check_failed(check_grid(1, 0, 1, 1, 0, &err), &err, "dimension 1");
    check_failed(check_grid(1, 1, -1, 1, 0, &err), &err, "dimension 2");
    check_failed(check_grid(1, 1, 1, 0, 0, &err), &err, "k: 0 threads a block");
    check_failed(check_grid(1, 1, 1, 1025, 0, &err), &err, "k: 1025 threads a block");
    check_failed(check_grid(1, 1, 1, TWO_32 + 1, 0, &err), &err, "k: 4294967297 threads a block");
    check_failed(check_grid(1, 1, 1, 1, SHARED_MAX + 1, &err), &err,
                 "k: 49153 bytes of shared memory, the limit is 49152");
    check_failed(check_grid(1, 1, 1, 1, -1, &err), &err, "k: -1 bytes of shared memory");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_value_at_the_border_of_each_width),
        cmocka_unit_test(a_product_at_the_border_of_each_width),
        cmocka_unit_test(a_state_slot_in_32_bits),
        cmocka_unit_test(a_sum_of_products),
        cmocka_unit_test(zeros),
        cmocka_unit_test(negative_values),
        cmocka_unit_test(beyond_128_bits),
        cmocka_unit_test(the_longest_refusal),
        cmocka_unit_test(every_index_is_checked),
        cmocka_unit_test(grids),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
