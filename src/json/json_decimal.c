/* Digits are compared where they stand; the only arithmetic is a remainder, of 64 bits. */
#include "json/json_decimal.h"

#include "base/mem.h"
#include "base/utf8.h"

enum { EXPONENT_DIGITS = 15 };

__extension__ typedef unsigned __int128 wide;

/* Passes over digits; returns how many. */
static int64_t skip_digits(const char **at, const char *end) {
    const char *begin = *at;
    while (*at < end && ls_is_digit(**at)) ++*at;
    return *at - begin;
}

/* What stands from e or E to the end. */
static bool read_exponent(ls_json_decimal *out, const char *at, const char *end) {
    bool is_negative;
    const char *first;
    if (at == end) return true;
    if (*at != 'e' && *at != 'E') return false;
    at++;
    is_negative = at < end && *at == '-';
    if (at < end && (*at == '-' || *at == '+')) at++;
    first = at;
    if (skip_digits(&at, end) == 0 || at != end) return false;
    while (*first == '0' && first + 1 < end) first++;
    out->is_vast = end - first > EXPONENT_DIGITS;
    for (int i = 0; i < EXPONENT_DIGITS && first < end; i++) out->exponent = out->exponent * 10 + (*first++ - '0');
    if (is_negative) out->exponent = -out->exponent;
    return true;
}

static int digit(const ls_json_decimal *a, int64_t i) { return a->digits[i + (i >= a->point)] - '0'; }

bool ls_json_decimal_read(ls_json_decimal *out, const char *text, int64_t bytes) {
    const char *at = text, *end = text + bytes;
    int64_t whole, fraction = 0;
    *out = (ls_json_decimal){.is_negative = bytes > 0 && *at == '-'};
    if (out->is_negative) at++;
    out->digits = at;
    whole = skip_digits(&at, end);
    if (whole == 0 || (whole > 1 && out->digits[0] == '0')) return false;
    if (at < end && *at == '.') {
        at++;
        if ((fraction = skip_digits(&at, end)) == 0) return false;
    }
    if (!read_exponent(out, at, end)) return false;
    out->point = whole;
    out->n = whole + fraction;
    out->exponent -= fraction;
    for (; out->n > 0 && digit(out, out->n - 1) == 0; out->n--) out->exponent++;
    for (; out->n > 0 && digit(out, 0) == 0; out->n--) {
        out->digits += out->point == 0 ? 2 : 1;
        out->point = out->point == 0 ? INT64_MAX : out->point - 1;
    }
    if (out->n == 0) {
        out->exponent = 0;
        out->is_vast = false;
    }
    return true;
}

/* Without signs; neither is 0. */
static int compare_sizes(const ls_json_decimal *a, const ls_json_decimal *b) {
    const int64_t x = a->n + a->exponent, y = b->n + b->exponent;
    if (x != y) return x < y ? -1 : 1;
    for (int64_t i = 0; i < a->n && i < b->n; i++)
        if (digit(a, i) != digit(b, i)) return digit(a, i) < digit(b, i) ? -1 : 1;
    return a->n < b->n ? -1 : a->n > b->n; /* what one has more does not end in 0 */
}

static int sign(const ls_json_decimal *a) { return a->n == 0 ? 0 : a->is_negative ? -1 : 1; }

int ls_json_decimal_compare(const ls_json_decimal *a, const ls_json_decimal *b) {
    const int x = sign(a), y = sign(b);
    if (x != y) return x < y ? -1 : 1;
    return x * (x == 0 ? 0 : compare_sizes(a, b));
}

bool ls_json_decimal_is_integer(const ls_json_decimal *a) { return a->exponent >= 0; }

/* A power of ten that is high enough has all twos and fives of the divisor. */
static uint64_t without_2_and_5(uint64_t divisor) {
    while (divisor % 2 == 0) divisor /= 2;
    while (divisor % 5 == 0) divisor /= 5;
    return divisor;
}

bool ls_json_decimal_is_multiple(const ls_json_decimal *a, const ls_json_decimal *b) {
    enum { TWOS_MAX = 60 }; /* of 18 digits */
    int64_t e = a->exponent - b->exponent;
    uint64_t divisor = 0;
    wide rest = 0;
    LS_ASSERT(b->n > 0 && b->n <= LS_DECIMAL_DIVISOR_DIGITS, "a divisor of %lld digits", (long long)b->n);
    if (a->n == 0) return true;
    if (e < 0) return false; /* a would be a multiple of 10, and its last digit is not 0 */
    for (int64_t i = 0; i < b->n; i++) divisor = divisor * 10 + (uint64_t)digit(b, i);
    if (e >= TWOS_MAX) {
        divisor = without_2_and_5(divisor);
        e = 0;
    }
    for (int64_t i = 0; i < a->n; i++) rest = (rest * 10 + (unsigned)digit(a, i)) % (wide)divisor;
    for (; e > 0; e--) rest = rest * 10 % (wide)divisor;
    return rest == 0;
}
