/* JSON numbers as decimals, read from their text: no digit is lost, however many there are. */
#ifndef LS_JSON_JSON_DECIMAL_H
#define LS_JSON_JSON_DECIMAL_H

#include "base/status.h"

/* Of the divisor of ls_json_decimal_is_multiple. */
enum { LS_DECIMAL_DIVISOR_DIGITS = 18 };

/* n digits 10^exponent, neither the first nor the last of them 0; of 0 n and exponent are 0. */
typedef struct ls_json_decimal {
    bool is_negative;
    bool is_vast;       /* the exponent as it was written has more than 15 digits: what there is of it is wrong */
    const char *digits; /* in the text that was read; a point among them is no digit */
    int64_t point;      /* the digit in front of which it stands */
    int64_t n, exponent;
} ls_json_decimal;

/* text[0..bytes), borrowed. False where it is no JSON number. */
bool ls_json_decimal_read(ls_json_decimal *out, const char *text, int64_t bytes);
/* < 0, 0, > 0 */
int ls_json_decimal_compare(const ls_json_decimal *a, const ls_json_decimal *b);
bool ls_json_decimal_is_integer(const ls_json_decimal *a);
/* Whether a / b is an integer; b is not 0 and has at most LS_DECIMAL_DIVISOR_DIGITS digits. */
bool ls_json_decimal_is_multiple(const ls_json_decimal *a, const ls_json_decimal *b);

#endif
