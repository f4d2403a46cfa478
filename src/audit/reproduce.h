/* Programs that show findings on a GPU: CUDA C of one file each, for nvcc. */
#ifndef LS_AUDIT_REPRODUCE_H
#define LS_AUDIT_REPRODUCE_H

#include <stdio.h>

#include "audit/audit.h"

/* Writes FOLDER/finding_N.cu (N from 1) for every finding whose expression is one of at most eight products with a
 * lever, and tells on `told` of which none is made and why. The folder is made where it is not there. */
ls_status ls_audit_reproduce(const ls_audit *audit, const char *folder, FILE *notes, ls_error *err);

#endif
