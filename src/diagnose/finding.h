/* What a diagnosis of values that round found: causes, each with how sure it is and what was seen. */
#ifndef LS_DIAGNOSE_FINDING_H
#define LS_DIAGNOSE_FINDING_H

#include "diagnose/cause.h"
#include "diagnose/experiment.h"

typedef struct ls_finding {
    ls_cause cause;
    double confidence; /* [0, 1]; named from LS_NAMED on */
    char evidence[400];
    ls_stack_experiment experiment; /* that shows it, for the smallest requests */
    bool is_confirmed;              /* it rests on more than its experiment's being off: ls_foreign_weigh leaves it */
    double doubt;                   /* that is left on what the experiment's lever does; 0 where it was not weighed */
} ls_finding;

#define LS_NAMED 0.8
enum { LS_FINDINGS_MAX = 24 };

typedef struct ls_findings {
    ls_finding of[LS_FINDINGS_MAX]; /* best first */
    int64_t n;
} ls_findings;

/* Among the `most` best, behind those that are as sure. */
void ls_findings_add(ls_findings *findings, const ls_finding *finding, int64_t most);
/* The best one when it is sure enough; else NULL. */
const ls_finding *ls_findings_named(const ls_findings *findings);

#endif
