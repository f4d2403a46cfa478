/* Values for ops through the device interface, and comparisons of elements. */
#ifndef LS_TESTS_ELEMENTS_H
#define LS_TESTS_ELEMENTS_H

#include "num/half.h"
#include "sides.h"

/* PLAIN: near 1. WIDE: every exponent, subnormals and both zeros, all finite. SPECIAL: PLAIN with infinities, NaN of
 * either kind and the ends of the range between. CANCELLING: neighbours nearly undo one another. */
typedef enum value_kind { VALUES_PLAIN, VALUES_WIDE, VALUES_SPECIAL, VALUES_CANCELLING, VALUE_KINDS } value_kind;

static const char *const value_names[] = {"plain", "wide", "special", "cancelling"};

static inline float value_of(value_kind kind, int64_t i, uint64_t *state) {
    static const uint32_t special[] = {0x00000000u, 0x80000000u, 0x00000001u, 0x807FFFFFu, 0x00800000u, 0x7F800000u,
                                       0xFF800000u, 0x7FC00000u, 0xFFC12345u, 0x7F800001u, 0x7F7FFFFFu, 0xFF7FFFFFu,
                                       0x33800000u, 0xB3FFFFFFu, 0x42AF0000u, 0xC2B00000u, 0x41A00001u, 0xC2F00000u};
    const uint64_t random = test_random(state);
    const float plain = test_uniform(state, -2.0f, 2.0f);
    if (kind == VALUES_WIDE)
        return ls_from_bits(random % 16 == 0 ? (uint32_t)random & 0x80000000u : (uint32_t)(random >> 8) & 0xFF7FFFFFu);
    if (kind == VALUES_SPECIAL && random % 8 == 0) return ls_from_bits(special[random / 8 % BK_COUNT(special)]);
    if (kind == VALUES_CANCELLING) return (i % 2 == 0 ? 1.0f : -1.0f) * (1024.0f + 0.001f * plain);
    return plain;
}

/* n elements of the type; the caller frees them. */
static inline void *values_make(ls_dtype dtype, int64_t n, value_kind kind, uint64_t seed) {
    void *values = bk_alloc(n * ls_dtype_bytes(dtype));
    uint64_t state = seed * 2654435761u + 88172645463325252u;
    for (int64_t i = 0; i < n; i++) {
        const float x = value_of(kind, i, &state);
        if (dtype == LS_F32) ((uint32_t *)values)[i] = ls_bits(x);
        if (dtype == LS_BF16) ((uint16_t *)values)[i] = ls_f32_to_bf16(x);
        if (dtype == LS_F16) ((uint16_t *)values)[i] = ls_f32_to_f16(x);
        /* Narrowing makes one NaN of all: the others are put there as patterns. */
        if (kind == VALUES_SPECIAL && dtype != LS_F32 && i % 5 == 4)
            ((uint16_t *)values)[i] = (uint16_t)(test_random(&state) >> 20);
    }
    return values;
}

static inline sides_buffer values_put(sides *d, const char *name, ls_dtype dtype, int64_t n, value_kind kind,
                                      uint64_t seed, int64_t offset) {
    void *values = values_make(dtype, n, kind, seed);
    const sides_buffer b = sides_put(d, name, values, n * ls_dtype_bytes(dtype), offset);
    free(values);
    return b;
}

/* Fails unless both sides hold the same elements and whole guards. Of float32 a NaN is as good as another: which one an
 * operation gives is the processor's choice. */
static inline bool __attribute__((format(printf, 4, 5)))
values_same(sides *d, const sides_buffer *b, ls_dtype dtype, const char *format, ...) {
    char what[192];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    return sides_compare(d, b, ls_dtype_bytes(dtype), dtype == LS_F32, what);
}

/* Fails unless the buffer holds these bytes on both sides; NULL: BK_PATTERN. */
static inline void values_are(sides *d, const sides_buffer *b, const void *host, const char *what) {
    uint8_t *expected = bk_alloc(b->bytes);
    if (host == NULL)
        memset(expected, BK_PATTERN, (size_t)b->bytes);
    else
        memcpy(expected, host, (size_t)b->bytes);
    for (int s = 0; s < 2; s++) {
        uint8_t *got = sides_take(d, b, s);
        bk_same(d->run, expected, got + BK_GUARD, b->bytes, 1, "%s: side %d: %s", what, s, b->name);
        free(got);
    }
    free(expected);
}

#endif
