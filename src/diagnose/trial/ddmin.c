/* ddmin and bisection. Owns the candidate list while it runs. */
#include "diagnose/trial/ddmin.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

typedef struct search {
    int64_t *items, n;
    int64_t *candidate;
    ls_ddmin_test test;
    void *context;
    int64_t tests_left;
} search;

/* Tries items without part [begin, end), or that part alone; takes it when it fails. */
static ls_status try_part(search *s, int64_t begin, int64_t end, bool alone, bool *taken, ls_error *err) {
    int64_t n = 0;
    ls_status status;
    *taken = false;
    for (int64_t i = 0; i < s->n; i++)
        if ((i >= begin && i < end) == alone) s->candidate[n++] = s->items[i];
    if (n == 0 || n == s->n || s->tests_left == 0) return LS_OK;
    s->tests_left--;
    status = s->test(s->context, s->candidate, n, taken, err);
    if (status != LS_OK || !*taken) return status;
    memcpy(s->items, s->candidate, (size_t)n * sizeof *s->items);
    s->n = n;
    return LS_OK;
}

/* One round at a granularity: every part alone, then everything without each part. */
static ls_status try_parts(search *s, int64_t parts, bool alone, bool *taken, ls_error *err) {
    const int64_t n = s->n;
    ls_status status = LS_OK;
    *taken = false;
    for (int64_t i = 0; i < parts && !*taken && status == LS_OK; i++)
        status = try_part(s, n * i / parts, n * (i + 1) / parts, alone, taken, err);
    return status;
}

ls_status ls_ddmin(int64_t *items, int64_t *n, ls_ddmin_test test, void *context, int64_t tests_max, int64_t *n_tests,
                   ls_error *err) {
    search s = {items, *n, NULL, test, context, tests_max};
    int64_t parts = 2;
    ls_status status;
    LS_TRY_DONE(ls_array_alloc((void **)&s.candidate, *n, sizeof *s.candidate, "items", err));
    while (s.n >= 2 && s.tests_left > 0) {
        bool taken;
        LS_TRY_DONE(try_parts(&s, parts, true, &taken, err));
        if (taken) {
            parts = 2;
            continue;
        }
        /* With two parts the one without the other has just been tried. */
        if (parts > 2) LS_TRY_DONE(try_parts(&s, parts, false, &taken, err));
        if (taken)
            parts = parts - 1 > 2 ? parts - 1 : 2;
        else if (parts >= s.n)
            break;
        else
            parts = ls_min_i64(2 * parts, s.n);
    }
done:
    free(s.candidate);
    *n = s.n;
    if (n_tests != NULL) *n_tests = tests_max - s.tests_left;
    return status;
}

ls_status ls_bisect(int64_t *out, int64_t low, int64_t high, ls_bisect_test test, void *context, ls_error *err) {
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        bool fails;
        const ls_status status = test(context, middle, &fails, err);
        if (status != LS_OK) return status;
        if (fails)
            high = middle;
        else
            low = middle + 1;
    }
    *out = high;
    return LS_OK;
}
