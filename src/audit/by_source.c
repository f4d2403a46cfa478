/* Kernels with findings, sorted by their sources' names and then by the worst of each. */
#include "audit/by_source.h"

#include <stdlib.h>
#include <string.h>

#include "audit/kernel_source.h"
#include "base/mem.h"

typedef struct source {
    char *name;
    int64_t place; /* of the worst finding, in the order */
    int64_t n_kernels, n_findings;
} source;

static int by_kernel_name(const void *x, const void *y) {
    const source *a = x, *b = y;
    const int c = strcmp(a->name, b->name);
    return c != 0 ? c : (a->place > b->place) - (a->place < b->place);
}

static int by_place(const void *x, const void *y) {
    const source *a = x, *b = y;
    return (a->place > b->place) - (a->place < b->place);
}

/* One for each kernel, then one for each name. */
static ls_status gather(source *all, int64_t *n, const ls_audit *audit, const ls_audit_order *order, ls_error *err) {
    char name[LS_KERNEL_SOURCE_MAX];
    int64_t n_names = 0;
    for (int64_t i = 0; i < audit->n_findings; i++) {
        if (order[i].of_kernel == 0) continue;
        all[*n] = (source){NULL, i, 1, order[i].of_kernel};
        (void)ls_kernel_source(name, audit->findings[order[i].finding].kernel);
        LS_TRY(ls_text_copy(&all[*n].name, name, (int64_t)strlen(name), err));
        (*n)++;
    }
    qsort(all, (size_t)*n, sizeof *all, by_kernel_name);
    for (int64_t i = 0; i < *n; i++) {
        if (n_names > 0 && strcmp(all[n_names - 1].name, all[i].name) == 0) {
            all[n_names - 1].n_kernels++;
            all[n_names - 1].n_findings += all[i].n_findings;
            free(all[i].name);
        } else {
            all[n_names++] = all[i];
        }
    }
    *n = n_names;
    return LS_OK;
}

ls_status ls_audit_write_sources(FILE *file, const ls_audit *audit, const ls_audit_order *order, ls_error *err) {
    source *all = NULL;
    int64_t n = 0;
    ls_status status;
    LS_TRY_DONE(ls_array_alloc((void **)&all, audit->n_findings + 1, sizeof *all, "kernels", err));
    LS_TRY_DONE(gather(all, &n, audit, order, err));
    qsort(all, (size_t)n, sizeof *all, by_place);
    if (n > 0) fprintf(file, "kernels of the source, %lld with findings\n", (long long)n);
    for (int64_t i = 0; i < n; i++)
        fprintf(file, "  %s: %lld finding%s in %lld kernel%s, worst %s\n", all[i].name, (long long)all[i].n_findings,
                all[i].n_findings == 1 ? "" : "s", (long long)all[i].n_kernels, all[i].n_kernels == 1 ? "" : "s",
                audit->findings[order[all[i].place].finding].expression);
    if (n > 0) fputc('\n', file);
done:
    for (int64_t i = 0; i < n; i++) free(all[i].name);
    free(all);
    return status;
}
