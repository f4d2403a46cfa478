/* Which findings to read first. */
#ifndef LS_AUDIT_RANK_H
#define LS_AUDIT_RANK_H

#include "audit/audit.h"

/* The smallest t such that the expression can pass its type with no value in it above t and its own limit: small
 * for a product of several sizes, near 2^31 for one that is scaled. 0 where the expression is too long to say. */
int64_t ls_audit_even(const ls_audit_finding *finding);

/* Whether nothing stands in it but blocks and threads: what the hardware allows and hardly a launch does. */
bool ls_audit_is_grid(const ls_audit_finding *finding);

/* Whether two findings say the same of one kernel. */
bool ls_audit_alike(const ls_audit_finding *a, const ls_audit_finding *b);

typedef struct ls_audit_order {
    int64_t finding;   /* its number */
    int64_t of_kernel; /* the worst one of a kernel: how many that kernel has; else 0 */
} ls_audit_order;

/* The findings in order, to be freed: those of declared ranges first, then of parameters and what is read, then of
 * grids alone; in each the smallest even value first, then the largest share. Alike ones stand together. */
ls_status ls_audit_rank(ls_audit_order **order, const ls_audit *audit, ls_error *err);

#endif
