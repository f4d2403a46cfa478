/* An audit as text, JSON and a page. */
#ifndef LS_AUDIT_REPORT_H
#define LS_AUDIT_REPORT_H

#include <stdio.h>

#include "audit/rank.h"

/* Findings in the order of ls_audit_rank. with_unknown: every access without a claim on a line of its own. */
void ls_audit_write_text(FILE *file, const ls_audit *audit, const ls_audit_order *order, bool with_unknown);
void ls_audit_write_json(FILE *file, const ls_audit *audit, const ls_audit_order *order);
void ls_audit_write_html(FILE *file, const ls_audit *audit, const ls_audit_order *order);

#endif
