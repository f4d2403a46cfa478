/* The step of num/mma16.h against a textbook in 128-bit integers: every class of operands with every other and with
 * every class of accumulators; chains; edges by hand; models that are wrong by little and must be caught. */
#include "harness.h"
#include "mma16_oracle.h"
#include "num/mma16.h"

enum { STEPS = 300000, CHAIN_STEPS = 40, CHAINS = 4000 };

/* Operands of draw `i`: classes and values follow from it. */
static uint32_t draw(uint16_t a[16], uint16_t b[16], uint64_t i) {
    const uint64_t seed = mma_mix(i * 0x9E3779B97F4A7C15u + 1);
    const int a_class = (int)(i % MMA_CLASSES), b_class = (int)(i / MMA_CLASSES % MMA_CLASSES);
    for (uint64_t k = 0; k < 16; k++) {
        a[k] = mma_operand(a_class, seed + 2 * k);
        b[k] = mma_operand(b_class, seed + 2 * k + 1);
    }
    return mma_accumulator((int)(i / (MMA_CLASSES * MMA_CLASSES) % MMA_C_CLASSES), seed + 32,
                           oracle_step(0, a, b, oracle_right));
}

static void steps_equal_the_textbook(void **state) {
    int64_t differ[ORACLE_NEIGHBOURS] = {0}, kinds[5] = {0};
    (void)state;
    for (uint64_t i = 0; i < STEPS; i++) {
        uint16_t a[16], b[16];
        const uint32_t c = draw(a, b, i), expected = oracle_step(c, a, b, oracle_right),
                       got = ls_mma16_step(c, a, 1, b, 1);
        const uint32_t magnitude = expected & 0x7FFFFFFFu;
        if (got != expected || ls_mma16_step(c, b, 1, a, 1) != expected)
            fail_msg("draw %llu: 0x%08x, not 0x%08x", (unsigned long long)i, got, expected);
        kinds[magnitude == 0             ? 0
              : magnitude < 0x800000u    ? 1
              : magnitude < 0x7F800000u  ? 2
              : magnitude == 0x7F800000u ? 3
                                         : 4]++;
        for (int n = 0; n < ORACLE_NEIGHBOURS; n++) differ[n] += oracle_step(c, a, b, oracle_neighbours[n]) != expected;
    }
    print_message("results: %lld zero, %lld subnormal, %lld normal, %lld infinite, %lld NaN\n", (long long)kinds[0],
                  (long long)kinds[1], (long long)kinds[2], (long long)kinds[3], (long long)kinds[4]);
    for (int k = 0; k < 5; k++) assert_true(kinds[k] > STEPS / 200);
    for (int n = 0; n < ORACLE_NEIGHBOURS; n++) {
        print_message("%s: %lld of %d differ\n", oracle_neighbour_names[n], (long long)differ[n], STEPS);
        /* Few draws have c = 0 and tiny products; that there is a floor shows in edges(). */
        if (n < 4) assert_true(differ[n] > (n < 3 ? STEPS / 200 : 10));
    }
}

static void chains_equal_the_textbook(void **state) {
    int64_t differ[ORACLE_NEIGHBOURS] = {0};
    (void)state;
    for (uint64_t i = 0; i < CHAINS; i++) {
        const uint64_t seed = mma_mix(i + 77), steps = 1 + seed % CHAIN_STEPS;
        const int class_i = (int)(i % MMA_TINY); /* chains of finite sums */
        uint32_t got = 0, expected = 0, other[ORACLE_NEIGHBOURS] = {0};
        for (uint64_t s = 0; s < steps; s++) {
            uint16_t a[16], b[16];
            for (uint64_t k = 0; k < 16; k++) {
                a[k] = mma_operand(class_i == MMA_HUGE ? MMA_CANCEL : class_i, seed + (s * 16 + k) * 2);
                b[k] = mma_operand(MMA_PLAIN, seed + (s * 16 + k) * 2 + 1);
            }
            got = ls_mma16_step(got, a, 1, b, 1);
            expected = oracle_step(expected, a, b, oracle_right);
            for (int n = 0; n < ORACLE_NEIGHBOURS; n++) other[n] = oracle_step(other[n], a, b, oracle_neighbours[n]);
        }
        if (got != expected) fail_msg("chain %llu: 0x%08x, not 0x%08x", (unsigned long long)i, got, expected);
        for (int n = 0; n < ORACLE_NEIGHBOURS; n++) differ[n] += other[n] != expected;
    }
    for (int n = 0; n < 3; n++) {
        print_message("%s: %lld of %d chains differ\n", oracle_neighbour_names[n], (long long)differ[n], CHAINS);
        assert_true(differ[n] > CHAINS / 20);
    }
}

/* One product a[0] b[0], the rest +0. */
static uint32_t one(uint32_t c, uint16_t a0, uint16_t b0) {
    uint16_t a[16] = {0}, b[16] = {0};
    a[0] = a0;
    b[0] = b0;
    return ls_mma16_step(c, a, 1, b, 1);
}

static void edges(void **state) {
    const uint16_t plus_one = 0x3F80, minus_one = 0xBF80, inf = 0x7F80, most = 0x7F7F;
    uint16_t a[16] = {0}, b[16] = {0};
    (void)state;
    assert_int_equal(one(0x80000000u, 0, 0), 0);                       /* -0 and nothing: +0 */
    assert_int_equal(one(0x3F800000u, 0, 0), 0x3F800000u);             /* a step of zeros changes nothing */
    assert_int_equal(one(0x00000001u, 0x8000, plus_one), 0x00000001u); /* nor a subnormal */
    assert_int_equal(one(0xBF800000u, plus_one, plus_one), 0);         /* 1 - 1 is +0 */
    assert_int_equal(one(0, minus_one, 0), 0);                         /* -1 * +0 is +0 */
    assert_int_equal(one(0, 0x0001, plus_one), 0x00010000u);           /* a subnormal operand counts */
    assert_int_equal(one(0, 0x0001, 0x0001), 0);                       /* 2^-266 is cut */
    assert_int_equal(one(0, 0x8001, 0x0001), 0);                       /* to +0, also where it was negative */
    assert_int_equal(one(0, inf, 0), LS_MMA16_NAN);
    assert_int_equal(one(0, inf, minus_one), 0xFF800000u);
    assert_int_equal(one(0x7F800000u, inf, minus_one), LS_MMA16_NAN);
    assert_int_equal(one(0x7F800000u, plus_one, minus_one), 0x7F800000u);
    assert_int_equal(one(0xFFC12345u, plus_one, plus_one), LS_MMA16_NAN);
    assert_int_equal(one(0, 0xFF81, plus_one), LS_MMA16_NAN);
    assert_int_equal(one(0, most, most), 0x7F800000u);                   /* overflow of one product */
    assert_int_equal(one(0x7F7FFFFFu, plus_one, plus_one), 0x7F7FFFFFu); /* toward zero: stays finite */
    /* Products beyond float32 that cancel: the sum is exact in between. */
    a[0] = a[1] = b[0] = most;
    b[1] = 0xFF7F;
    a[2] = b[2] = plus_one;
    assert_int_equal(ls_mma16_step(0, a, 1, b, 1), 0);
    /* With c = 0 the largest exponent is at least -133: 2^-140 - 2^-160 does not see the second, 2^-140 - 2^-158 does.
     */
    memset(a, 0, sizeof a);
    memset(b, 0, sizeof b);
    a[0] = b[0] = 0x1C80;
    a[1] = 0x1780;
    b[1] = 0x9780;
    assert_int_equal(ls_mma16_step(0, a, 1, b, 1), 0x200);
    assert_int_equal(oracle_step(0, a, b, oracle_right), 0x200);
    assert_int_equal(oracle_step(0, a, b, oracle_neighbours[4]), 0x1FF);
    a[1] = 0x1800;
    b[1] = 0x9800;
    assert_int_equal(ls_mma16_step(0, a, 1, b, 1), 0x1FF);
    /* Bit 25 below the largest exponent counts, bit 26 is cut before anything is added. */
    assert_int_equal(one(0x3F800000u, 0x3300, minus_one), 0x3F7FFFFFu); /* 1 - 2^-25, cut to 24 bits */
    assert_int_equal(one(0x3F800000u, 0x3280, minus_one), 0x3F800000u); /* 1 - 2^-26 */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(edges),
        cmocka_unit_test(steps_equal_the_textbook),
        cmocka_unit_test(chains_equal_the_textbook),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
