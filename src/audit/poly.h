/* Sums of products of symbols with integer factors, as they lie on the stack while they are computed, and intervals of
 * 128 bits that saturate. What a symbol is, others know: here it is a number. */
#ifndef LS_AUDIT_POLY_H
#define LS_AUDIT_POLY_H

#include "base/status.h"

__extension__ typedef __int128 ls_wide;

enum { LS_DEGREE_MAX = 6, LS_SUM_MAX = 40 };

typedef struct ls_term {
    int64_t factor;
    int32_t n, symbols[LS_DEGREE_MAX]; /* ascending; one symbol may stand several times */
} ls_term;

/* Terms with different symbols, ordered, none with factor 0. is_lost: it has grown past what is kept, or a factor past
 * 64 bits; the terms say nothing then. */
typedef struct ls_sum {
    bool is_lost;
    int32_t n;
    ls_term terms[LS_SUM_MAX];
} ls_sum;

void ls_sum_constant(ls_sum *out, int64_t value);
void ls_sum_symbol(ls_sum *out, int32_t symbol);
void ls_sum_copy(ls_sum *out, const ls_sum *a);
/* sum += factor * term */
void ls_sum_add_term(ls_sum *sum, const ls_term *term, int64_t factor);
/* sum += factor * a */
void ls_sum_add(ls_sum *sum, const ls_sum *a, int64_t factor);
/* out = a * b; out is neither. */
void ls_sum_multiply(ls_sum *out, const ls_sum *a, const ls_sum *b);
/* sum += term * a */
void ls_sum_add_product(ls_sum *sum, const ls_term *term, const ls_sum *a);
bool ls_sum_equal(const ls_sum *a, const ls_sum *b);
/* The value of a sum without symbols. */
bool ls_sum_is_constant(const ls_sum *sum, int64_t *value);
/* The symbol of a sum that is one symbol, -1 for any other. */
int32_t ls_sum_single(const ls_sum *sum);
/* How often a term has a symbol. */
int32_t ls_term_degree(const ls_term *term, int32_t symbol);
/* out = a without one occurrence of the symbol, which it has. */
ls_term ls_term_without(const ls_term *a, int32_t symbol);
/* out = a / b where that is a term with an integer factor. */
bool ls_term_divide(ls_term *out, const ls_term *a, const ls_term *b);

typedef struct ls_range {
    ls_wide low, high;
} ls_range;

#define LS_WIDE_MAX ((ls_wide)1 << 120) /* intervals end here, which stands for more */

ls_range ls_range_of(ls_wide low, ls_wide high);
ls_range ls_range_add(ls_range a, ls_range b);
ls_range ls_range_multiply(ls_range a, ls_range b);
ls_range ls_range_join(ls_range a, ls_range b);
bool ls_range_within(ls_range a, ls_range b);

#define LS_WIDE_TEXT_MAX 48
const char *ls_wide_text(char out[LS_WIDE_TEXT_MAX], ls_wide value);

#endif
