/* The order of findings. Owns nothing. */
#include "audit/rank.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

/* The largest value with every symbol at most t. */
static double value_at(const ls_audit_finding *f, double t) {
    double sum = 0;
    for (int32_t i = 0; i < f->n_terms; i++) {
        double product = (double)f->terms[i].factor;
        if (product < 0) continue;
        for (int32_t k = 0; k < f->terms[i].n; k++) {
            const double high = (double)f->symbols[f->terms[i].symbols[k]].high;
            product *= high < t ? high : t;
        }
        sum += product;
    }
    return sum;
}

int64_t ls_audit_even(const ls_audit_finding *f) {
    const double window = f->bits == 16  ? (f->is_signed ? 32767.0 : 65535.0)
                          : f->is_signed ? 2147483647.0
                                         : 4294967295.0;
    int64_t low = 0, high = INT64_C(1) << 62;
    if (f->n_terms == 0 || value_at(f, (double)high) <= window) return 0;
    while (high - low > 1) {
        const int64_t middle = low + (high - low) / 2;
        if (value_at(f, (double)middle) > window)
            high = middle;
        else
            low = middle;
    }
    return high;
}

bool ls_audit_is_grid(const ls_audit_finding *f) {
    static const char *const names[] = {"threadIdx.", "blockIdx.", "blockDim.", "gridDim."};
    if (f->n_symbols == 0) return false;
    for (int32_t i = 0; i < f->n_symbols; i++) {
        bool known = false;
        for (size_t k = 0; k < sizeof names / sizeof names[0]; k++)
            known = known || strncmp(f->symbols[i].name, names[k], strlen(names[k])) == 0;
        if (!known) return false;
    }
    return true;
}

bool ls_audit_alike(const ls_audit_finding *a, const ls_audit_finding *b) {
    return a->bits == b->bits && a->is_signed == b->is_signed && a->first == b->first &&
           strcmp(a->kernel, b->kernel) == 0 && strcmp(a->expression, b->expression) == 0 &&
           strcmp(a->lever, b->lever) == 0;
}

typedef struct ranked {
    const ls_audit_finding *finding;
    int64_t index, even;
    int32_t group;
} ranked;

static int by_danger(const void *x, const void *y) {
    const ranked *a = x, *b = y;
    if (a->group != b->group) return a->group - b->group;
    if (a->even != b->even) return a->even < b->even ? -1 : 1;
    if (a->finding->share != b->finding->share) return a->finding->share > b->finding->share ? -1 : 1;
    int c = strcmp(a->finding->kernel, b->finding->kernel);
    if (c == 0) c = strcmp(a->finding->expression, b->finding->expression);
    if (c == 0) c = strcmp(a->finding->lever, b->finding->lever);
    return c != 0 ? c : (a->index > b->index) - (a->index < b->index);
}

/* By kernel, and in a kernel as they were. */
typedef struct placed {
    const char *kernel;
    int64_t place;
} placed;

static int by_kernel(const void *x, const void *y) {
    const placed *a = x, *b = y;
    const int c = strcmp(a->kernel, b->kernel);
    return c != 0 ? c : (a->place > b->place) - (a->place < b->place);
}

static ls_status count_kernels(ls_audit_order *order, const ls_audit *audit, ls_error *err) {
    placed *all;
    LS_TRY(ls_array_alloc((void **)&all, audit->n_findings + 1, sizeof *all, "findings", err));
    for (int64_t i = 0; i < audit->n_findings; i++) all[i] = (placed){audit->findings[order[i].finding].kernel, i};
    qsort(all, (size_t)audit->n_findings, sizeof *all, by_kernel);
    for (int64_t i = 0, first = 0; i < audit->n_findings; i++) {
        if (strcmp(all[first].kernel, all[i].kernel) != 0) first = i;
        order[all[first].place].of_kernel++;
    }
    free(all);
    return LS_OK;
}

ls_status ls_audit_rank(ls_audit_order **order, const ls_audit *audit, ls_error *err) {
    ranked *all = NULL;
    ls_status status = LS_OK;
    LS_TRY_DONE(ls_array_alloc((void **)&all, audit->n_findings + 1, sizeof *all, "findings", err));
    LS_TRY_DONE(ls_array_alloc((void **)order, audit->n_findings + 1, sizeof **order, "findings", err));
    for (int64_t i = 0; i < audit->n_findings; i++) {
        const ls_audit_finding *f = &audit->findings[i];
        const int64_t even = ls_audit_even(f);
        all[i] = (ranked){f, i, even == 0 ? INT64_MAX : even, f->is_declared ? 0 : ls_audit_is_grid(f) ? 2 : 1};
    }
    qsort(all, (size_t)audit->n_findings, sizeof *all, by_danger);
    for (int64_t i = 0; i < audit->n_findings; i++) (*order)[i] = (ls_audit_order){all[i].index, 0};
    status = count_kernels(*order, audit, err);
done:
    free(all);
    return status;
}
