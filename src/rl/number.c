/* A reader that goes through the text once, and products of digits. */
#include "rl/number.h"

#include <string.h>

#include "base/utf8.h"

/* Of a power of ten, at most: what is larger is no number that anybody writes. */
#define EXPONENT_MAX 400

/* ---- texts ---- */

typedef struct text {
    const char *at, *end;
} text;

static bool is_letter(char c) { return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z'); }

static bool starts_with(const text *t, const char *word) {
    const size_t n = strlen(word);
    return (size_t)(t->end - t->at) >= n && memcmp(t->at, word, n) == 0;
}

static bool take(text *t, const char *word) {
    if (!starts_with(t, word)) return false;
    t->at += strlen(word);
    return true;
}

static bool take_any(text *t, const char *const *words) {
    for (; *words != NULL; words++)
        if (take(t, *words)) return true;
    return false;
}

static void skip_spaces(text *t) {
    static const char *const spaces[] = {" ",   "\t", "\r",       "\n",           "\\,",          "\\;", "\\ ",
                                         "\\!", "~",  "\xC2\xA0", "\xE2\x80\xAF", "\xE2\x80\x89", NULL};
    while (take_any(t, spaces)) {
    }
}

static const char *const minus_signs[] = {"-", "\xE2\x88\x92", NULL}; /* U+2212 */
static const char *const currencies[] = {"\\$", "$", "\xE2\x82\xAC", "\xC2\xA3", "\xC2\xA5", NULL};

/* ---- digits ---- */

/* Appends a digit; false where there are too many. */
static bool push(uint8_t *digits, int32_t *n, char c) {
    if (*n == 0 && c == '0') return true; /* needless */
    if (*n == LS_NUMBER_DIGITS) return false;
    digits[(*n)++] = (uint8_t)(c - '0');
    return true;
}

/* A separator and three digits behind it that no fourth follows. */
static bool is_group(const text *t, text *after) {
    static const char *const separators[] = {",",        "{,}", "\\,", "\\!", "\xE2\x80\x89", "\xE2\x80\xAF",
                                             "\xC2\xA0", NULL};
    *after = *t;
    if (!take_any(after, separators)) return false;
    if (after->at[-1] == ',' && take(after, "\\!")) {
    } /* ,\! */
    if (after->end - after->at < 3) return false;
    for (int i = 0; i < 3; i++)
        if (!ls_is_digit(after->at[i])) return false;
    return after->end - after->at == 3 || !ls_is_digit(after->at[3]);
}

/* Digits, maybe in groups; false where there are none or too many. */
static bool read_integer(text *t, uint8_t *digits, int32_t *n) {
    const char *begin = t->at;
    text group;
    for (; t->at < t->end && ls_is_digit(*t->at); t->at++)
        if (!push(digits, n, *t->at)) return false;
    if (t->at == begin || t->at - begin > 3) return t->at > begin;
    while (is_group(t, &group)) {
        for (int i = 0; i < 3; i++)
            if (!push(digits, n, group.at[i])) return false;
        t->at = group.at + 3;
    }
    return true;
}

/* A power of ten behind a number, where there is one. */
static bool read_power(text *t, int32_t *exponent) {
    static const char *const times[] = {"\\times", "\\cdot", "\xC3\x97", "*", "x", NULL};
    text a = *t;
    int32_t value = 0;
    bool braces = false, negative;
    if (take(&a, "e") || take(&a, "E")) {
        if (a.at == a.end || !(ls_is_digit(*a.at) || *a.at == '-' || *a.at == '+')) return true;
    } else {
        skip_spaces(&a);
        if (!take_any(&a, times)) return true;
        skip_spaces(&a);
        if (!take(&a, "10^")) return true;
        braces = take(&a, "{");
    }
    negative = take_any(&a, minus_signs);
    if (!negative) (void)take(&a, "+");
    if (a.at == a.end || !ls_is_digit(*a.at)) return true;
    for (; a.at < a.end && ls_is_digit(*a.at); a.at++) {
        value = 10 * value + (*a.at - '0');
        if (value > EXPONENT_MAX) return false;
    }
    if (braces && !take(&a, "}")) return true;
    *exponent += negative ? -value : value;
    *t = a;
    return true;
}

/* Digits with a point, or a point and digits. The point is at the exponent's cost. */
static bool read_decimal(text *t, ls_number *x) {
    const bool leads = t->end - t->at > 1 && t->at[0] == '.' && ls_is_digit(t->at[1]);
    if (!leads && !read_integer(t, x->numerator, &x->n_numerator)) return false;
    if (t->end - t->at > 1 && t->at[0] == '.' && ls_is_digit(t->at[1])) {
        for (t->at++; t->at < t->end && ls_is_digit(*t->at); t->at++) {
            if (!push(x->numerator, &x->n_numerator, *t->at)) return false;
            x->exponent--;
        }
    }
    return read_power(t, &x->exponent);
}

/* ---- fractions ---- */

/* n digits as a number that fits; false where it does not. */
static bool small_value(const uint8_t *digits, int32_t n, int64_t *out) {
    *out = 0;
    if (n > 8) return false;
    for (int32_t i = 0; i < n; i++) *out = 10 * *out + digits[i];
    return true;
}

static void put_value(uint8_t *digits, int32_t *n, int64_t value) {
    char reversed[24];
    int k = 0;
    for (; value > 0; value /= 10) reversed[k++] = (char)('0' + value % 10);
    for (*n = 0; k > 0;) digits[(*n)++] = (uint8_t)(reversed[--k] - '0');
}

/* {integer}, or one digit as in \frac12. */
static bool read_argument(text *t, uint8_t *digits, int32_t *n, bool *negative) {
    skip_spaces(t);
    if (take(t, "{")) {
        skip_spaces(t);
        if (take_any(t, minus_signs)) *negative = !*negative;
        if (!read_integer(t, digits, n)) return false;
        skip_spaces(t);
        return take(t, "}");
    }
    return t->at < t->end && ls_is_digit(*t->at) && push(digits, n, *t->at++);
}

static bool read_frac(text *t, ls_number *x) {
    static const char *const names[] = {"\\frac", "\\dfrac", "\\tfrac", "\\cfrac", NULL};
    if (!take_any(t, names)) return false;
    return read_argument(t, x->numerator, &x->n_numerator, &x->is_negative) &&
           read_argument(t, x->denominator, &x->n_denominator, &x->is_negative) && x->n_denominator > 0;
}

/* An integer and a fraction behind it: both add. */
static bool read_mixed(text *t, ls_number *x) {
    ls_number part = {.is_negative = false};
    int64_t whole, top, bottom;
    text a = *t;
    skip_spaces(&a);
    if (!starts_with(&a, "\\frac") && !starts_with(&a, "\\dfrac") && !starts_with(&a, "\\tfrac")) return true;
    if (!read_frac(&a, &part) || part.is_negative || x->exponent != 0 ||
        !small_value(x->numerator, x->n_numerator, &whole) || !small_value(part.numerator, part.n_numerator, &top) ||
        !small_value(part.denominator, part.n_denominator, &bottom))
        return false;
    put_value(x->numerator, &x->n_numerator, whole * bottom + top);
    put_value(x->denominator, &x->n_denominator, bottom);
    *t = a;
    return true;
}

/* Behind an integer: /integer. */
static bool read_slash(text *t, ls_number *x) {
    text a = *t;
    skip_spaces(&a);
    if (!take(&a, "/")) return true;
    skip_spaces(&a);
    if (a.at == a.end || !ls_is_digit(*a.at)) return true;
    if (x->exponent != 0) return false;
    if (!read_integer(&a, x->denominator, &x->n_denominator) || x->n_denominator == 0) return false;
    *t = a;
    return true;
}

/* ---- numbers ---- */

static bool read_value(text *t, ls_number *x) {
    if (starts_with(t, "\\")) return read_frac(t, x);
    return read_decimal(t, x) && read_mixed(t, x) && (x->n_denominator > 0 || read_slash(t, x));
}

/* From here on, as far as it goes. */
static bool read_number(text *t, ls_number *x) {
    *x = (ls_number){.is_negative = false};
    for (int i = 0; i < 2; i++) { /* a sign may stand on either side of the currency */
        if (take_any(t, minus_signs))
            x->is_negative = !x->is_negative;
        else
            (void)take(t, "+");
        skip_spaces(t);
        if (!take_any(t, currencies)) break;
        skip_spaces(t);
    }
    if (!read_value(t, x)) return false;
    {
        text a = *t;
        skip_spaces(&a);
        x->is_percent = take(&a, "\\%") || take(&a, "%");
        if (x->is_percent) *t = a;
    }
    if (x->n_denominator == 0) x->denominator[x->n_denominator++] = 1;
    if (x->n_numerator == 0) x->is_negative = false; /* there is no -0 */
    return true;
}

/* ---- whole texts ---- */

static bool ends_with(const text *t, const char *word) {
    const size_t n = strlen(word);
    return (size_t)(t->end - t->at) >= n && memcmp(t->end - n, word, n) == 0;
}

static void trim(text *t) {
    while (t->at < t->end && ls_is_space(*t->at)) t->at++;
    while (t->end > t->at && ls_is_space(t->end[-1])) t->end--;
}

/* Whether the brace in front of t->at closes at the very end. */
static bool closes_at_end(const text *t) {
    int depth = 1;
    for (const char *c = t->at; c < t->end; c++) {
        depth += *c == '{' ? 1 : *c == '}' ? -1 : 0;
        if (depth == 0) return c + 1 == t->end;
    }
    return false;
}

/* Takes off what stands around a number. */
static void unwrap(text *t) {
    static const char *const pairs[][2] = {{"\\(", "\\)"}, {"\\[", "\\]"}, {"$$", "$$"}, {"$", "$"}, {"**", "**"}};
    for (bool changed = true; changed;) {
        changed = false;
        trim(t);
        if (ends_with(t, ".")) t->end--, changed = true;
        for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
            const int64_t a = (int64_t)strlen(pairs[i][0]), b = (int64_t)strlen(pairs[i][1]);
            if (t->end - t->at <= a + b || !starts_with(t, pairs[i][0]) || !ends_with(t, pairs[i][1])) continue;
            if (i == 3 && ends_with(t, "\\$")) continue;
            t->at += a;
            t->end -= b;
            changed = true;
        }
        {
            text inside = *t;
            if (!take(&inside, "\\boxed{") || !closes_at_end(&inside)) continue;
            inside.end--;
            *t = inside;
            changed = true;
        }
    }
}

/* x = in front: one letter. */
static void skip_name(text *t) {
    text a = *t;
    if (a.at == a.end || !is_letter(*a.at)) return;
    a.at++;
    skip_spaces(&a);
    if (!take(&a, "=")) return;
    skip_spaces(&a);
    *t = a;
}

/* A unit behind: words that a space parts from the number, \text{..}, degrees. */
static void skip_unit(text *t) {
    static const char *const degrees[] = {"^\\circ", "^{\\circ}", "\xC2\xB0", NULL};
    static const char *const marks[] = {"\\text{", "\\mathrm{", "\\mbox{", "\\textrm{", "\\textbf{", NULL};
    const char *begin = t->at;
    if (take_any(t, degrees)) return;
    skip_spaces(t);
    if (take_any(t, marks)) {
        while (t->at < t->end && *t->at != '}') t->at++;
        (void)take(t, "}");
        if (take(t, "^2") || take(t, "^3") || take(t, "^{2}") || take(t, "^{3}")) {
        }
        return;
    }
    if (t->at == begin) return;
    while (t->at < t->end && (is_letter(*t->at) || ls_is_space(*t->at))) t->at++;
}

bool ls_number_read(ls_number *out, const char *string, int64_t bytes) {
    text t = {string, string + bytes};
    unwrap(&t);
    skip_name(&t);
    skip_spaces(&t);
    if (!read_number(&t, out)) return false;
    skip_unit(&t);
    skip_spaces(&t);
    return t.at == t.end;
}

/* ---- the last number of a text ---- */

/* Whether a number may begin here: what stands before is no part of one. */
static bool may_begin(const char *begin, const char *at) {
    const char before = at > begin ? at[-1] : ' ';
    return !ls_is_digit(before) && before != '.' && !(before == ',' && at - begin > 1 && ls_is_digit(at[-2]));
}

/* Whether what stands around makes a number a part of a formula, a list or a word. */
static bool is_part(const char *begin, const char *from, const text *rest) {
    static const char *const joins[] = {"^",        "\\sqrt", "\\pi", "\\cdot", "\\times", "\xE2\x88\x9A",
                                        "\xCF\x80", "*",      "_",    NULL};
    const char before = from > begin ? from[-1] : ' ', after = rest->at < rest->end ? *rest->at : ' ';
    const char next = rest->end - rest->at > 1 ? rest->at[1] : ' ';
    text r = *rest;
    if (strchr("^_/:*{\\", before) != NULL || before == '\x9A') return true; /* the last byte of a root */
    if (strchr(",-+", before) != NULL && from - begin > 1 && ls_is_digit(from[-2])) return true;
    if (strchr(":/,-+", after) != NULL && ls_is_digit(next)) return true;
    return take_any(&r, joins);
}

bool ls_number_first(ls_number *out, const char *string, int64_t bytes) {
    text t = {string, string + bytes};
    trim(&t);
    if (ls_number_read(out, t.at, t.end - t.at)) return true;
    skip_name(&t);
    return read_number(&t, out) && !is_part(string, string, &t) &&
           !(t.at < t.end && (is_letter(*t.at) || *t.at == '\\'));
}

/* A sign, and the currency, that belong to the number at `at`. 3-2 has two numbers and no negative one. */
static const char *sign_of(const char *begin, const char *at) {
    const char *from = at;
    if (from - begin > 0 && from[-1] == '$') from -= from - begin > 1 && from[-2] == '\\' ? 2 : 1;
    if (from - begin > 0 && (from[-1] == '-' || from[-1] == '+')) {
        from--;
    } else if (from - begin > 2 && memcmp(from - 3, minus_signs[1], 3) == 0) {
        from -= 3;
    } else {
        return from;
    }
    return from > begin && (ls_is_digit(from[-1]) || is_letter(from[-1]) || from[-1] == ')') ? at : from;
}

bool ls_number_last(ls_number *out, const char *string, int64_t bytes) {
    const char *const end = string + bytes;
    bool found = false, by_itself = false;
    for (const char *at = string; at < end;) {
        text t = {at, end};
        ls_number x;
        const bool begins = (ls_is_digit(*at) || (*at == '.' && at + 1 < end && ls_is_digit(at[1])) ||
                             starts_with(&t, "\\frac") || starts_with(&t, "\\dfrac") || starts_with(&t, "\\tfrac")) &&
                            may_begin(string, at);
        t.at = begins ? sign_of(string, at) : at;
        if (!begins) {
            at++;
            continue;
        }
        {
            const char *const from = t.at;
            const bool is_number = read_number(&t, &x);
            if (t.at <= at) t.at = at + 1;
            while (!is_number && t.at < end && ls_is_digit(*t.at)) t.at++;
            found = true;
            by_itself = is_number && !is_part(string, from, &t);
            if (by_itself) *out = x;
            at = t.at;
        }
    }
    return found && by_itself;
}

/* ---- comparing ---- */

/* Digits of a product, the lowest first. */
enum { PRODUCT_DIGITS = 2 * LS_NUMBER_DIGITS + 2 * EXPONENT_MAX + LS_NUMBER_DIGITS + 8 };

/* a times b times 10^shift. */
static void multiply(uint8_t *out, const uint8_t *a, int32_t n_a, const uint8_t *b, int32_t n_b, int32_t shift) {
    memset(out, 0, PRODUCT_DIGITS);
    for (int32_t i = 0; i < n_a; i++) {
        int32_t carry = 0, at = shift + i;
        for (int32_t k = 0; k < n_b; k++, at++) {
            carry += out[at] + a[n_a - 1 - i] * b[n_b - 1 - k];
            out[at] = (uint8_t)(carry % 10);
            carry /= 10;
        }
        for (; carry > 0; carry /= 10, at++) {
            carry += out[at];
            out[at] = (uint8_t)(carry % 10);
        }
    }
}

/* With so many powers of ten more. */
static bool equal_shifted(const ls_number *a, int32_t a_exponent, const ls_number *b, int32_t b_exponent) {
    uint8_t left[PRODUCT_DIGITS], right[PRODUCT_DIGITS];
    const int32_t least = a_exponent < b_exponent ? a_exponent : b_exponent;
    if (a->n_numerator == 0 || b->n_numerator == 0) return a->n_numerator == b->n_numerator;
    if (a->is_negative != b->is_negative) return false;
    if (a_exponent - least > 2 * EXPONENT_MAX + LS_NUMBER_DIGITS ||
        b_exponent - least > 2 * EXPONENT_MAX + LS_NUMBER_DIGITS)
        return false;
    multiply(left, a->numerator, a->n_numerator, b->denominator, b->n_denominator, a_exponent - least);
    multiply(right, b->numerator, b->n_numerator, a->denominator, a->n_denominator, b_exponent - least);
    return memcmp(left, right, sizeof left) == 0;
}

bool ls_number_equal(const ls_number *a, const ls_number *b) {
    const int32_t x = a->exponent - (a->is_percent ? 2 : 0), y = b->exponent - (b->is_percent ? 2 : 0);
    if (equal_shifted(a, x, b, y)) return true;
    return a->is_percent != b->is_percent && equal_shifted(a, a->exponent, b, b->exponent);
}
