/* The findings by kernel of the source: what a template was instantiated to is one of them. */
#ifndef LS_AUDIT_BY_SOURCE_H
#define LS_AUDIT_BY_SOURCE_H

#include <stdio.h>

#include "audit/rank.h"

/* A line for each, in the order of its worst finding. Nothing where there is no finding. */
ls_status ls_audit_write_sources(FILE *file, const ls_audit *audit, const ls_audit_order *order, ls_error *err);

#endif
