/* What is declared of the values that a kernel is given: ranges and names of parameters, of what is read through them,
 * of grids and blocks. docs/guide/audit.md has the form of the file. */
#ifndef LS_AUDIT_RANGES_H
#define LS_AUDIT_RANGES_H

#include <stdio.h>

#include "audit/poly.h"

typedef struct ls_ranges ls_ranges;

ls_status ls_ranges_create(ls_ranges **out, ls_error *err);
void ls_ranges_free(ls_ranges *ranges); /* accepts NULL */

/* Adds the lines of a file. `name` starts the errors. A name that the text uses and nothing gives a range yet is no
 * error: it may come later. */
ls_status ls_ranges_parse(ls_ranges *ranges, const char *text, int64_t bytes, const char *name, ls_error *err);
/* After audits: says on a line each which lines of files were about nothing that a kernel reads, and how parameters are
 * called there. */
void ls_ranges_tell_unused(FILE *file, const ls_ranges *ranges);
/* Gives a name its range: for all kernels, behind what files say. */
ls_status ls_ranges_name(ls_ranges *ranges, const char *name, int64_t low, int64_t high, ls_error *err);

typedef enum ls_range_subject {
    LS_SUBJECT_PARAMETER, /* index, offset */
    LS_SUBJECT_LOADED,    /* what is read through the pointer of a parameter */
    LS_SUBJECT_TID,
    LS_SUBJECT_CTAID,
    LS_SUBJECT_NTID,
    LS_SUBJECT_NCTAID,
    LS_SUBJECT_THREADS /* nctaid * ntid of an axis */
} ls_range_subject;

typedef struct ls_declared {
    const char *name;         /* NULL: none; lives as long as the ranges */
    bool has_range, is_other; /* is_other: no line speaks of it, and range is that of the others */
    ls_range range;
} ls_declared;

/* A subject of a kernel. */
typedef struct ls_range_query {
    const char *kernel;
    int32_t kernel_bytes;
    ls_range_subject subject;
    int32_t index;              /* of the parameter, -1 where none is known; or the axis, 0 to 2 */
    int64_t offset;             /* in bytes, inside the parameter */
    const char *parameter_name; /* NULL: none is known */
    int32_t name_bytes;
} ls_range_query;

/* What is declared for it. */
ls_declared ls_ranges_find(const ls_ranges *ranges, const ls_range_query *query);

#endif
