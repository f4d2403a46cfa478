/* A database file: statements with arguments, rows to a visitor. The library's types stay opaque here.
 *
 * Text is stored as text where it is UTF-8 without NUL, as a blob otherwise, so that its bytes come back as they were
 * and other programs can read the tables. NaN is stored as NULL and comes back as NaN. */
#ifndef LS_RUN_SQL_H
#define LS_RUN_SQL_H

#include "base/status.h"

typedef enum ls_sql_kind { LS_SQL_NULL, LS_SQL_INT, LS_SQL_REAL, LS_SQL_TEXT } ls_sql_kind;

typedef struct ls_sql_value {
    ls_sql_kind kind;
    int64_t integer;
    double real; /* of a row also what an integer is, NaN for NULL */
    const char *text;
    int64_t bytes;
} ls_sql_value;

static inline ls_sql_value ls_sql_int(int64_t x) { return (ls_sql_value){.kind = LS_SQL_INT, .integer = x}; }
static inline ls_sql_value ls_sql_real(double x) { return (ls_sql_value){.kind = LS_SQL_REAL, .real = x}; }
static inline ls_sql_value ls_sql_text(const char *text, int64_t bytes) { /* NULL with 0 bytes is empty */
    return (ls_sql_value){.kind = LS_SQL_TEXT, .text = text != NULL ? text : "", .bytes = bytes};
}
static inline ls_sql_value ls_sql_null(void) { return (ls_sql_value){.kind = LS_SQL_NULL}; }

typedef struct ls_sql ls_sql;

/* Opens for writing, creating the file, or for reading one that is there. A file that is no database is an error. */
ls_status ls_sql_open(ls_sql **out, const char *path, bool write, ls_error *err);
void ls_sql_close(ls_sql *sql); /* rolls back what is not committed; NULL is accepted */

/* Several statements without arguments. */
ls_status ls_sql_exec(ls_sql *sql, const char *text, ls_error *err);
void ls_sql_rollback(ls_sql *sql); /* ends the transaction that is open, if one is */
/* One statement with arguments ?1..?n; it is prepared once, text must outlive the handle. Texts of arguments must live
 * until the call returns. */
ls_status ls_sql_run(ls_sql *sql, const char *text, const ls_sql_value *args, int64_t n, ls_error *err);

/* Row after row; what is not LS_OK ends it and is returned. Texts live until the visitor returns, and end in NUL. */
typedef ls_status (*ls_sql_row)(void *context, const ls_sql_value *row, ls_error *err);
ls_status ls_sql_each(ls_sql *sql, const char *text, const ls_sql_value *args, int64_t n, ls_sql_row visit,
                      void *context, ls_error *err);
/* The first column of the only row as an integer; `otherwise` when there is none or it is NULL. */
ls_status ls_sql_number(int64_t *out, ls_sql *sql, const char *text, int64_t otherwise, ls_error *err);

#endif
