/* Numbers in texts, read exactly: an integer or decimal, a fraction, a percentage, a power of ten, as people, GSM8K and
 * LaTeX write them. What is no single number, an interval, a ratio, a surd, a formula, is none, and no part of it
 * counts.
 *
 *   number    [sign] [currency] value [percent], value being one of
 *             digits, in groups of three or not, with a point and digits behind it, and a power of ten (e3,
 *             \times 10^{3}); integer/integer; \frac{..}{..} of two integers; an integer and a \frac behind it, which
 *             add
 *   sign      + - and U+2212; one in front of the currency as well
 *   groups    of three digits, between them , {,} \, \! or a thin or no-break space
 *   currency  $ \$ and the signs of euro, pound, yen, which say nothing
 *   percent   % or \%: the number is a hundredth
 *
 * Of a whole text also \( \[ $ \boxed{} around it, a letter and = in front, and a unit behind: words, \text{..},
 * ^\circ. */
#ifndef LS_RL_NUMBER_H
#define LS_RL_NUMBER_H

#include <stdbool.h>
#include <stdint.h>

/* Digits of a numerator or denominator, at most; a number with more is none. */
enum { LS_NUMBER_DIGITS = 512 };

/* numerator 10^exponent / denominator. */
typedef struct ls_number {
    bool is_negative, is_percent; /* percent: it stands as the number in front of the sign */
    int32_t n_numerator, n_denominator, exponent;
    uint8_t numerator[LS_NUMBER_DIGITS], denominator[LS_NUMBER_DIGITS]; /* decimal digits, the highest first */
} ls_number;

/* The number that the whole text is; false: it is none. */
bool ls_number_read(ls_number *out, const char *text, int64_t bytes);
/* The number that a text begins with, by itself: what follows is no part of it. */
bool ls_number_first(ls_number *out, const char *text, int64_t bytes);
/* The last number of a text, of those that are no part of another or of a formula. */
bool ls_number_last(ls_number *out, const char *text, int64_t bytes);
/* Equal as rationals. Where only one of them is a percentage, it may stand for the number in front of its sign too. */
bool ls_number_equal(const ls_number *a, const ls_number *b);

#endif
