/* An audit as text, JSON and a page. */
#ifndef LS_AUDIT_REPORT_H
#define LS_AUDIT_REPORT_H

#include <stdio.h>

#include "audit/audit.h"

/* with_unknown: every access without a claim on a line of its own; else their reasons, counted by kind. */
void ls_audit_write_text(FILE *file, const ls_audit *audit, bool with_unknown);
void ls_audit_write_json(FILE *file, const ls_audit *audit);
void ls_audit_write_html(FILE *file, const ls_audit *audit);

#endif
