/* Sums of products, and intervals. */
#include "audit/poly.h"

#include <stdio.h>
#include <string.h>

void ls_sum_constant(ls_sum *out, int64_t value) {
    out->is_lost = false;
    out->n = value != 0;
    out->terms[0] = (ls_term){.factor = value};
}

void ls_sum_symbol(ls_sum *out, int32_t symbol) {
    out->is_lost = false;
    out->n = 1;
    out->terms[0] = (ls_term){.factor = 1, .n = 1, .symbols = {symbol}};
}

void ls_sum_copy(ls_sum *out, const ls_sum *a) {
    out->is_lost = a->is_lost;
    out->n = a->n;
    memcpy(out->terms, a->terms, sizeof *a->terms * (size_t)a->n);
}

static int compare_terms(const ls_term *a, const ls_term *b) {
    if (a->n != b->n) return a->n < b->n ? 1 : -1; /* high degrees first, the constant last */
    for (int32_t i = 0; i < a->n; i++)
        if (a->symbols[i] != b->symbols[i]) return a->symbols[i] < b->symbols[i] ? -1 : 1;
    return 0;
}

void ls_sum_add_term(ls_sum *sum, const ls_term *term, int64_t factor) {
    int32_t at = 0;
    int order = -1;
    int64_t scaled;
    if (sum->is_lost || factor == 0 || term->factor == 0) return;
    if (__builtin_mul_overflow(term->factor, factor, &scaled)) goto lost;
    while (at < sum->n && (order = compare_terms(&sum->terms[at], term)) < 0) at++;
    if (at < sum->n && order == 0) {
        if (__builtin_add_overflow(sum->terms[at].factor, scaled, &scaled)) goto lost;
        sum->terms[at].factor = scaled;
        if (scaled != 0) return;
        memmove(sum->terms + at, sum->terms + at + 1, sizeof *term * (size_t)(sum->n - at - 1));
        sum->n--;
        return;
    }
    if (sum->n == LS_SUM_MAX) goto lost;
    memmove(sum->terms + at + 1, sum->terms + at, sizeof *term * (size_t)(sum->n - at));
    sum->terms[at] = *term;
    sum->terms[at].factor = scaled;
    sum->n++;
    return;
lost:
    sum->is_lost = true;
    sum->n = 0;
}

void ls_sum_add(ls_sum *sum, const ls_sum *a, int64_t factor) {
    if (a->is_lost) sum->is_lost = true, sum->n = 0;
    for (int32_t i = 0; i < a->n; i++) ls_sum_add_term(sum, &a->terms[i], factor);
}

static bool multiply(ls_term *out, const ls_term *a, const ls_term *b) {
    int32_t i = 0, k = 0;
    if (a->n + b->n > LS_DEGREE_MAX || __builtin_mul_overflow(a->factor, b->factor, &out->factor)) return false;
    out->n = a->n + b->n;
    for (int32_t at = 0; at < out->n; at++)
        out->symbols[at] =
            k == b->n || (i < a->n && a->symbols[i] <= b->symbols[k]) ? a->symbols[i++] : b->symbols[k++];
    return true;
}

void ls_sum_add_product(ls_sum *sum, const ls_term *term, const ls_sum *a) {
    if (a->is_lost) sum->is_lost = true, sum->n = 0;
    for (int32_t i = 0; i < a->n && !sum->is_lost; i++) {
        ls_term product;
        if (multiply(&product, term, &a->terms[i])) {
            ls_sum_add_term(sum, &product, 1);
        } else {
            sum->is_lost = true;
            sum->n = 0;
        }
    }
}

void ls_sum_multiply(ls_sum *out, const ls_sum *a, const ls_sum *b) {
    out->is_lost = a->is_lost || b->is_lost;
    out->n = 0;
    for (int32_t i = 0; i < a->n && !out->is_lost; i++) ls_sum_add_product(out, &a->terms[i], b);
}

bool ls_sum_equal(const ls_sum *a, const ls_sum *b) {
    if (a->is_lost || b->is_lost || a->n != b->n) return false;
    for (int32_t i = 0; i < a->n; i++)
        if (a->terms[i].factor != b->terms[i].factor || compare_terms(&a->terms[i], &b->terms[i]) != 0) return false;
    return true;
}

bool ls_sum_is_constant(const ls_sum *sum, int64_t *value) {
    if (sum->is_lost || sum->n > 1 || (sum->n == 1 && sum->terms[0].n > 0)) return false;
    *value = sum->n == 0 ? 0 : sum->terms[0].factor;
    return true;
}

int32_t ls_sum_single(const ls_sum *sum) {
    const bool is = !sum->is_lost && sum->n == 1 && sum->terms[0].n == 1 && sum->terms[0].factor == 1;
    return is ? sum->terms[0].symbols[0] : -1;
}

int32_t ls_term_degree(const ls_term *term, int32_t symbol) {
    int32_t n = 0;
    for (int32_t i = 0; i < term->n; i++) n += term->symbols[i] == symbol;
    return n;
}

ls_term ls_term_without(const ls_term *a, int32_t symbol) {
    ls_term out = {.factor = a->factor};
    bool gone = false;
    for (int32_t i = 0; i < a->n; i++) {
        if (!gone && a->symbols[i] == symbol)
            gone = true;
        else
            out.symbols[out.n++] = a->symbols[i];
    }
    return out;
}

bool ls_term_divide(ls_term *out, const ls_term *a, const ls_term *b) {
    int32_t k = 0;
    if (b->n > a->n || b->factor == 0 || (b->factor == -1 && a->factor == INT64_MIN) || a->factor % b->factor != 0)
        return false;
    *out = (ls_term){.factor = a->factor / b->factor};
    for (int32_t i = 0; i < a->n; i++) {
        if (k < b->n && a->symbols[i] == b->symbols[k])
            k++;
        else
            out->symbols[out->n++] = a->symbols[i];
    }
    return k == b->n;
}

static ls_wide clamp(ls_wide a) { return a > LS_WIDE_MAX ? LS_WIDE_MAX : a < -LS_WIDE_MAX ? -LS_WIDE_MAX : a; }

ls_range ls_range_of(ls_wide low, ls_wide high) { return (ls_range){low, high}; }

ls_range ls_range_add(ls_range a, ls_range b) { return (ls_range){clamp(a.low + b.low), clamp(a.high + b.high)}; }

static ls_wide wide_product(ls_wide a, ls_wide b) {
    ls_wide out;
    if (__builtin_mul_overflow(a, b, &out)) return (a < 0) == (b < 0) ? LS_WIDE_MAX : -LS_WIDE_MAX;
    return clamp(out);
}

ls_range ls_range_multiply(ls_range a, ls_range b) {
    const ls_wide p[4] = {wide_product(a.low, b.low), wide_product(a.low, b.high), wide_product(a.high, b.low),
                          wide_product(a.high, b.high)};
    ls_range out = {p[0], p[0]};
    for (int i = 1; i < 4; i++) {
        if (p[i] < out.low) out.low = p[i];
        if (p[i] > out.high) out.high = p[i];
    }
    return out;
}

ls_range ls_range_join(ls_range a, ls_range b) {
    return (ls_range){a.low < b.low ? a.low : b.low, a.high > b.high ? a.high : b.high};
}

bool ls_range_within(ls_range a, ls_range b) { return a.low >= b.low && a.high <= b.high; }

const char *ls_wide_text(char out[LS_WIDE_TEXT_MAX], ls_wide value) {
    char digits[LS_WIDE_TEXT_MAX];
    int n = 0, at = 0;
    const bool negative = value < 0;
    __extension__ unsigned __int128 left = negative ? -(unsigned __int128)value : (unsigned __int128)value;
    do digits[n++] = (char)('0' + (int)(left % 10));
    while ((left /= 10) != 0);
    if (negative) out[at++] = '-';
    while (n > 0) out[at++] = digits[--n];
    out[at] = '\0';
    return out;
}
