/* JSON numbers as decimals: integers of 64 bits, and other numbers by the shortest text that is their double. */
#ifndef LS_TEXT_JSON_DECIMAL_H
#define LS_TEXT_JSON_DECIMAL_H

#include "json/json_node.h"

/* digits 10^exponent; of 0 both are 0. digits has no trailing zero. */
typedef struct ls_json_decimal {
    bool is_negative;
    uint64_t digits;
    int64_t exponent;
} ls_json_decimal;

/* Of a node that is a number. */
ls_json_decimal ls_json_decimal_of(const ls_node *node);
/* < 0, 0, > 0 */
int ls_json_decimal_compare(const ls_json_decimal *a, const ls_json_decimal *b);
bool ls_json_decimal_is_integer(const ls_json_decimal *a);
/* Whether a / b is an integer; b is not 0. */
bool ls_json_decimal_is_multiple(const ls_json_decimal *a, const ls_json_decimal *b);

#endif
