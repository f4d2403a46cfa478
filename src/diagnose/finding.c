/* Findings in the order of their confidence. */
#include "diagnose/finding.h"

#include <string.h>

void ls_findings_add(ls_findings *f, const ls_finding *finding, int64_t most) {
    int64_t at = f->n;
    LS_ASSERT(most <= LS_FINDINGS_MAX, "%lld findings", (long long)most);
    while (at > 0 && f->of[at - 1].confidence < finding->confidence) at--;
    if (at == most) return;
    if (f->n < most) f->n++;
    memmove(&f->of[at + 1], &f->of[at], (size_t)(f->n - 1 - at) * sizeof *f->of);
    f->of[at] = *finding;
}

const ls_finding *ls_findings_named(const ls_findings *f) {
    return f->n > 0 && f->of[0].confidence >= LS_NAMED ? &f->of[0] : NULL;
}
