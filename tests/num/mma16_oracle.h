/* The step of the profile mma16 as a textbook has it, in integers of 128 bits, and models that are wrong by little:
 * other numbers of fraction bits, blocks of 8 instead of 16, other floors of the largest exponent. Shares
 * nothing with num/mma16.h; plain enough for gcc, clang and nvcc. Also the classes of data that both are compared on.
 */
#ifndef LS_TESTS_MMA16_ORACLE_H
#define LS_TESTS_MMA16_ORACLE_H

#include <stdint.h>

#ifdef __CUDACC__
#define ORACLE __host__ __device__ __attribute__((unused))
#else
#define ORACLE inline __attribute__((unused))
#endif

__extension__ typedef __int128 oracle_int;

/* The right one is {25, 16, -133}. */
typedef struct oracle_model {
    int fraction; /* bits kept below the largest exponent */
    int block;    /* products added at a time */
    int floor;    /* the largest exponent is taken to be at least this */
} oracle_model;

/* (-1)^minus * digits * 2^exponent, with the leading digit of a normal number at `lead`. */
typedef struct oracle_number {
    int minus, lead, exponent, inf, nan;
    oracle_int digits;
} oracle_number;

static const oracle_model oracle_right = {25, 16, -133};
#define ORACLE_NEIGHBOURS 5
static const oracle_model oracle_neighbours[ORACLE_NEIGHBOURS] = {
    {24, 16, -133}, {26, 16, -133}, {25, 8, -133}, {25, 16, -126}, {25, 16, -10000}};
static const char *const oracle_neighbour_names[ORACLE_NEIGHBOURS] = {"24 bits", "26 bits", "two blocks of 8",
                                                                      "floor at -126", "no floor"};

static ORACLE oracle_number oracle_decode(uint32_t bits, int fraction_bits) {
    const int field = (int)(bits >> fraction_bits) & 255;
    const oracle_int fraction = bits & ((1u << fraction_bits) - 1u);
    oracle_number x;
    x.minus = (bits >> (fraction_bits + 8) & 1u) != 0;
    x.inf = field == 255 && fraction == 0;
    x.nan = field == 255 && fraction != 0;
    x.lead = fraction_bits;
    x.digits = field > 0 ? fraction + ((oracle_int)1 << fraction_bits) : fraction;
    x.exponent = (field > 0 ? field : 1) - 127 - fraction_bits;
    return x;
}

static ORACLE oracle_number oracle_times(oracle_number a, oracle_number b) {
    oracle_number p;
    const int a_zero = !a.inf && !a.nan && a.digits == 0, b_zero = !b.inf && !b.nan && b.digits == 0;
    p.minus = a.minus != b.minus;
    p.nan = a.nan || b.nan || (a.inf && b_zero) || (b.inf && a_zero);
    p.inf = !p.nan && (a.inf || b.inf);
    p.lead = a.lead + b.lead;
    p.digits = a.digits * b.digits;
    p.exponent = a.exponent + b.exponent;
    return p;
}

/* The number in whole units of 2^unit, cut toward zero. */
static ORACLE oracle_int oracle_units(oracle_number x, int unit) {
    oracle_int n = x.digits;
    int e = x.exponent;
    while (e > unit) {
        n = n * 2;
        e--;
    }
    while (e < unit && n != 0) {
        n = n / 2;
        e++;
    }
    return x.minus ? -n : n;
}

/* n * 2^unit as float32, cut toward zero. */
static ORACLE uint32_t oracle_encode(oracle_int n, int unit) {
    const uint32_t sign = n < 0 ? 0x80000000u : 0u;
    if (n == 0) return 0;
    if (n < 0) n = -n;
    while (n >= ((oracle_int)1 << 24) || unit < -149) {
        n = n / 2;
        unit++;
    }
    while (n != 0 && n < ((oracle_int)1 << 23) && unit > -149) {
        n = n * 2;
        unit--;
    }
    if (n == 0) return 0; /* what was cut to zero has lost its sign */
    if (unit + 23 > 127) return sign | 0x7F800000u;
    if (n < ((oracle_int)1 << 23)) return sign | (uint32_t)n;
    return sign | (uint32_t)(unit + 150) << 23 | ((uint32_t)n & 0x7FFFFFu);
}

/* c plus `count` products. */
static ORACLE uint32_t oracle_block(uint32_t c_bits, const uint16_t *a, const uint16_t *b, int count,
                                    oracle_model model) {
    oracle_number term[17];
    oracle_int sum = 0;
    int largest = model.floor, nan = 0, plus = 0, minus = 0;
    term[0] = oracle_decode(c_bits, 23);
    for (int i = 0; i < count; i++) term[i + 1] = oracle_times(oracle_decode(a[i], 7), oracle_decode(b[i], 7));
    for (int i = 0; i <= count; i++) {
        nan |= term[i].nan;
        plus |= term[i].inf && !term[i].minus;
        minus |= term[i].inf && term[i].minus;
        if (term[i].digits != 0 && term[i].exponent + term[i].lead > largest) largest = term[i].exponent + term[i].lead;
    }
    if (nan || (plus && minus)) return 0x7FFFFFFFu;
    if (plus || minus) return plus ? 0x7F800000u : 0xFF800000u;
    for (int i = 0; i <= count; i++)
        if (term[i].digits != 0) sum += oracle_units(term[i], largest - model.fraction);
    return oracle_encode(sum, largest - model.fraction);
}

static ORACLE uint32_t oracle_step(uint32_t c, const uint16_t *a, const uint16_t *b, oracle_model model) {
    for (int i = 0; i < 16; i += model.block) c = oracle_block(c, a + i, b + i, model.block, model);
    return c;
}

/* ---- data ---- */

/* Classes of operands. */
enum {
    MMA_PLAIN,     /* within a few powers of two of 1 */
    MMA_WIDE,      /* any exponent of a normal number */
    MMA_HUGE,      /* products overflow, sums more so */
    MMA_TINY,      /* products below 2^-126 */
    MMA_SUBNORMAL, /* subnormals of either sign, with some normal numbers */
    MMA_ZEROS,     /* mostly zeros of either sign */
    MMA_CANCEL,    /* few values, both signs */
    MMA_EDGE,      /* products near 2^127 and 2^-149 */
    MMA_MIXED,     /* zeros, subnormals and huge numbers side by side */
    MMA_INFINITE,  /* an infinity now and then, and zeros for it to meet */
    MMA_NAN,       /* a NaN now and then */
    MMA_ANY,       /* any pattern */
    MMA_CLASSES
};

/* Classes of accumulators: those of operands by value, and these. */
enum { MMA_C_ZERO, MMA_C_PLAIN, MMA_C_ANY, MMA_C_HUGE, MMA_C_SUBNORMAL, MMA_C_CANCEL, MMA_C_INFINITE, MMA_C_CLASSES };

static ORACLE uint64_t mma_mix(uint64_t x) {
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

static ORACLE uint16_t mma_number(uint64_t r, uint32_t lowest, uint32_t count) {
    return (uint16_t)((r & 1u) << 15 | (lowest + (uint32_t)(r >> 8 & 0xFFFFu) % count) << 7 | (r >> 1 & 0x7Fu));
}

/* One operand of a class, from 64 random bits. */
static ORACLE uint16_t mma_operand(int class_i, uint64_t random) {
    const uint64_t r = mma_mix(random);
    const uint16_t sign = (uint16_t)((r & 1u) << 15), fraction = (uint16_t)(r >> 1 & 0x7Fu);
    const uint32_t pick = (uint32_t)(r >> 40);
    switch (class_i) {
        case MMA_WIDE: return mma_number(r, 1, 254);
        case MMA_HUGE: return mma_number(r, 185, 70);
        case MMA_TINY: return mma_number(r, 1, 80);
        case MMA_SUBNORMAL: return pick % 8 == 0 ? mma_number(r, 100, 60) : (uint16_t)(sign | fraction);
        case MMA_ZEROS: return pick % 4 != 0 ? sign : mma_number(r, 120, 12);
        case MMA_CANCEL:
            return (uint16_t)(sign | (0x3F80u + (pick % 4 == 0 ? fraction % 4u : 0u) + (pick >> 8) % 2 * 0x80u));
        case MMA_EDGE: return pick % 2 == 0 ? mma_number(r, 188, 5) : mma_number(r, 50, 16);
        case MMA_MIXED:
            return pick % 4 == 0   ? sign
                   : pick % 4 == 1 ? (uint16_t)(sign | fraction)
                   : pick % 4 == 2 ? mma_number(r, 200, 50)
                                   : mma_number(r, 60, 60);
        case MMA_INFINITE:
            return pick % 40 == 0 ? (uint16_t)(sign | 0x7F80u) : pick % 40 == 1 ? sign : mma_number(r, 100, 60);
        case MMA_NAN: return pick % 64 == 0 ? (uint16_t)(sign | 0x7F80u | fraction) : mma_number(r, 100, 60);
        case MMA_ANY: return (uint16_t)(r >> 8);
        default: return mma_number(r, 122, 8);
    }
}

/* One accumulator of a class; step is what the products alone give, for cancellation. */
static ORACLE uint32_t mma_accumulator(int class_i, uint64_t random, uint32_t step) {
    const uint64_t r = mma_mix(random);
    const uint32_t sign = (uint32_t)(r & 1u) << 31, fraction = (uint32_t)(r >> 1) & 0x7FFFFFu;
    const uint32_t pick = (uint32_t)(r >> 32);
    switch (class_i) {
        case MMA_C_ZERO: return sign;
        case MMA_C_ANY: return (uint32_t)(r >> 8);
        case MMA_C_HUGE: return sign | (250u + pick % 5) << 23 | (pick % 3 == 0 ? 0x7FFFFFu : fraction);
        case MMA_C_SUBNORMAL: return sign | fraction >> pick % 23;
        case MMA_C_CANCEL: return step ^ 0x80000000u ^ (pick % 2 == 0 ? 0u : 1u << pick / 2 % 8);
        case MMA_C_INFINITE: return pick % 8 == 0 ? sign | 0x7F800000u | (pick % 16 == 0 ? fraction : 0u) : sign;
        default: return sign | (118u + pick % 16) << 23 | fraction;
    }
}

#endif
