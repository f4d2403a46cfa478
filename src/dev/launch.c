/* Evaluation of launch contracts. */
#include "dev/launch.h"

#include <stdio.h>
#include <string.h>

__extension__ typedef unsigned __int128 wide;

static const struct {
    const char *name;
    int64_t max;
} widths[] = {{"int32", INT32_MAX}, {"uint32", UINT32_MAX}, {"int64", INT64_MAX}};

/* Sums and products stop at 2^128 - 1 instead of wrapping. */
static const wide widest = ~(wide)0;

static wide times(wide a, wide b) {
    wide product;
    return __builtin_mul_overflow(a, b, &product) ? widest : product;
}

static wide plus(wide a, wide b) {
    wide sum;
    return __builtin_add_overflow(a, b, &sum) ? widest : sum;
}

/* Of values that are all >= 0. */
static wide evaluate(const ls_index *index) {
    wide sum = 0;
    for (int t = 0; t < LS_TERMS_MAX && index->terms[t][0].name != NULL; t++) {
        wide product = 1;
        for (int f = 0; f < LS_FACTORS_MAX && index->terms[t][f].name != NULL; f++)
            product = times(product, (wide)index->terms[t][f].value);
        sum = plus(sum, product);
    }
    return sum;
}

/* "slot * stride + column" or "69775 * 89600 + 3". */
static void describe_index(const ls_index *index, bool values, char *text, size_t text_n) {
    size_t used = 0;
    text[0] = '\0';
    for (int t = 0; t < LS_TERMS_MAX && index->terms[t][0].name != NULL; t++)
        for (int f = 0; f < LS_FACTORS_MAX && index->terms[t][f].name != NULL; f++) {
            const char *join = f > 0 ? " * " : t > 0 ? " + " : "";
            const ls_factor *factor = &index->terms[t][f];
            int n = values ? snprintf(text + used, text_n - used, "%s%lld", join, (long long)factor->value)
                           : snprintf(text + used, text_n - used, "%s%s", join, factor->name);
            if (n < 0 || (size_t)n >= text_n - used) return;
            used += (size_t)n;
        }
}

static void decimal(wide x, char *text, size_t text_n) {
    char digits[48];
    size_t n = 0, at = 0;
    if (x == widest) {
        snprintf(text, text_n, "2^128 - 1 or more");
        return;
    }
    do digits[n++] = (char)('0' + (int)(x % 10));
    while ((x /= 10) > 0);
    while (n > 0 && at + 1 < text_n) text[at++] = digits[--n];
    text[at] = '\0';
}

static ls_status check_index(const ls_launch *launch, const ls_index *index, ls_error *err) {
    char names[512], values[512], result[48];
    wide value;
    for (int t = 0; t < LS_TERMS_MAX && index->terms[t][0].name != NULL; t++)
        for (int f = 0; f < LS_FACTORS_MAX && index->terms[t][f].name != NULL; f++)
            if (index->terms[t][f].value < 0)
                return LS_FAIL(err, LS_ERR_ARG, "%s: %s is %lld", launch->kernel, index->terms[t][f].name,
                               (long long)index->terms[t][f].value);
    value = evaluate(index);
    if (value <= (wide)widths[index->width].max) return LS_OK;
    describe_index(index, false, names, sizeof names);
    describe_index(index, true, values, sizeof values);
    decimal(value, result, sizeof result);
    return LS_FAIL(err, LS_ERR_ARG, "%s: %s %s = %s = %s passes %lld", launch->kernel, widths[index->width].name, names,
                   values, result, (long long)widths[index->width].max);
}

ls_status ls_launch_check(const ls_launch *launch, int64_t shared_max, ls_error *err) {
    static const int64_t grid_max[3] = {INT32_MAX, 65535, 65535};
    for (int i = 0; i < 3; i++)
        if (launch->grid[i] < 1 || launch->grid[i] > grid_max[i])
            return LS_FAIL(err, LS_ERR_ARG, "%s: grid of %lld x %lld x %lld blocks; dimension %d takes 1 to %lld",
                           launch->kernel, (long long)launch->grid[0], (long long)launch->grid[1],
                           (long long)launch->grid[2], i, (long long)grid_max[i]);
    if (launch->threads < 1 || launch->threads > 1024)
        return LS_FAIL(err, LS_ERR_ARG, "%s: %lld threads a block", launch->kernel, (long long)launch->threads);
    if (launch->shared_bytes < 0 || launch->shared_bytes > shared_max)
        return LS_FAIL(err, LS_ERR_ARG, "%s: %lld bytes of shared memory, the limit is %lld", launch->kernel,
                       (long long)launch->shared_bytes, (long long)shared_max);
    for (int64_t i = 0; i < launch->n_index; i++) {
        const ls_status status = check_index(launch, &launch->index[i], err);
        if (status != LS_OK) return status;
    }
    return LS_OK;
}
