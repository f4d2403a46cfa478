/* Comparisons of digits and exponents; no number is made larger than 128 bits. */
#include "text/json_decimal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "json/json_out.h"

__extension__ typedef unsigned __int128 wide;

static ls_json_decimal trimmed(bool is_negative, uint64_t digits, int64_t exponent) {
    while (digits != 0 && digits % 10 == 0) {
        digits /= 10;
        exponent++;
    }
    return (ls_json_decimal){is_negative && digits != 0, digits, digits != 0 ? exponent : 0};
}

ls_json_decimal ls_json_decimal_of(const ls_node *node) {
    char text[LS_DOUBLE_TEXT_MAX];
    uint64_t digits = 0;
    int64_t integer, exponent = 0;
    bool is_fraction = false;
    const char *at = text;
    if (ls_node_kind_of(node) == LS_NODE_INT && ls_node_int(node, INT64_MIN, INT64_MAX, &integer, NULL) == LS_OK)
        return trimmed(integer < 0, integer < 0 ? (uint64_t)0 - (uint64_t)integer : (uint64_t)integer, 0);
    ls_double_text(text, ls_node_number(node));
    for (at += *at == '-'; (*at >= '0' && *at <= '9') || *at == '.'; at++) {
        if (*at == '.') {
            is_fraction = true;
            continue;
        }
        digits = digits * 10 + (uint64_t)(*at - '0'); /* 17 of them, at most */
        exponent -= is_fraction;
    }
    if (*at == 'e') exponent += strtol(at + 1, NULL, 10);
    return trimmed(text[0] == '-', digits, exponent);
}

static int64_t places(uint64_t digits) {
    int64_t n = 0;
    for (; digits != 0; digits /= 10) n++;
    return n;
}

/* Without signs; neither is 0. */
static int compare_sizes(const ls_json_decimal *a, const ls_json_decimal *b) {
    const int64_t x = places(a->digits) + a->exponent, y = places(b->digits) + b->exponent;
    wide p = a->digits, q = b->digits;
    if (x != y) return x < y ? -1 : 1;
    for (int64_t e = a->exponent; e > b->exponent; e--) p *= 10; /* 19 times at most: both have as many places */
    for (int64_t e = b->exponent; e > a->exponent; e--) q *= 10;
    return p < q ? -1 : p > q;
}

int ls_json_decimal_compare(const ls_json_decimal *a, const ls_json_decimal *b) {
    const int x = a->digits == 0 ? 0 : a->is_negative ? -1 : 1, y = b->digits == 0 ? 0 : b->is_negative ? -1 : 1;
    if (x != y) return x < y ? -1 : 1;
    return x == 0 ? 0 : x * compare_sizes(a, b);
}

bool ls_json_decimal_is_integer(const ls_json_decimal *a) { return a->exponent >= 0; }

bool ls_json_decimal_is_multiple(const ls_json_decimal *a, const ls_json_decimal *b) {
    int64_t e = a->exponent - b->exponent;
    wide rest = a->digits, divisor = b->digits;
    if (a->digits == 0) return true;
    for (; e < 0; e++) { /* a has more places behind the point */
        if (divisor > rest) return false;
        divisor *= 10;
    }
    for (rest %= divisor; e > 0 && rest != 0; e--) rest = rest * 10 % divisor;
    return rest == 0;
}
