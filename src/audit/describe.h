/* Findings in words: names of values, the lever, its first bad value. */
#ifndef LS_AUDIT_DESCRIBE_H
#define LS_AUDIT_DESCRIBE_H

#include "audit/audit.h"
#include "audit/work.h"

void ls_describe_finding(ls_work *work, const ls_sum *sum, int32_t block, ls_range window, ls_audit_finding *out);
void ls_describe_unknown(ls_work *work, const ls_check *check, char *out, size_t bytes);

#endif
