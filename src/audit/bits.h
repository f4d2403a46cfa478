/* What tables of three inputs (lop3) and selectors of bytes (prmt) do, as far as it can be said with and, or, xor and
 * masks. Pure functions of numbers. */
#ifndef LS_AUDIT_BITS_H
#define LS_AUDIT_BITS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct ls_bits_plan {
    int32_t n;          /* inputs that count: 0 for a table that is not understood */
    int32_t x, y, z;    /* n 1: x. n 2: x first y. n 3: (x first y) second z */
    char first, second; /* '&', '|', '^' */
    int32_t inverted;   /* the constant input that stands inverted, -1 for none */
    bool is_not;        /* n 1: ~x */
} ls_bits_plan;

/* values[i] is that of an input that is constant. */
ls_bits_plan ls_bits_table(int32_t table, const bool constant[3], const int64_t values[3]);

typedef struct ls_bits_bytes {
    bool known;    /* no sign is spread */
    int32_t bytes; /* that may be other than 0, from the lowest on */
    int32_t from;  /* in_place: 0 for a, 1 for b */
    bool in_place; /* all of them are those of one input where they stand there */
} ls_bits_bytes;

ls_bits_bytes ls_bits_permute(int64_t selector, bool a_zero, bool b_zero);

#endif
