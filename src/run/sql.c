/* SQLite. Owns the connection and the prepared statements. */
#include "run/sql.h"

#include <math.h>
#include <sqlite3.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"

enum { STATEMENTS_MAX = 32, COLUMNS_MAX = 16, BUSY_MS = 60000 };

struct ls_sql {
    sqlite3 *db;
    char *path;
    struct {
        const char *text;
        sqlite3_stmt *statement;
    } prepared[STATEMENTS_MAX];
    int64_t n_prepared;
};

/* The sentence for the connection's latest error. */
static ls_status fail_statement(const ls_sql *sql, const char *doing, ls_error *err) {
    const int code = sqlite3_errcode(sql->db) & 0xff;
    const int number = sqlite3_system_errno(sql->db);
    const bool system = number != 0 && (code == SQLITE_IOERR || code == SQLITE_CANTOPEN);
    const ls_status status = code == SQLITE_NOMEM                              ? LS_ERR_NOMEM
                             : code == SQLITE_CORRUPT || code == SQLITE_NOTADB ? LS_ERR_FORMAT
                                                                               : LS_ERR_IO;
    return LS_FAIL(err, status, "%s: cannot %s: %s%s%s", sql->path, doing, sqlite3_errmsg(sql->db), system ? ": " : "",
                   system ? strerror(number) : "");
}

ls_status ls_sql_open(ls_sql **out, const char *path, bool write, ls_error *err) {
    ls_status status;
    ls_sql *sql = NULL;
    *out = NULL;
    LS_TRY_DONE(ls_array_alloc((void **)&sql, 1, sizeof *sql, "database", err));
    LS_TRY_DONE(ls_text_copy(&sql->path, path, (int64_t)strlen(path), err));
    if (sqlite3_open_v2(path, &sql->db, SQLITE_OPEN_READWRITE | (write ? SQLITE_OPEN_CREATE : 0), NULL) != SQLITE_OK) {
        status = fail_statement(sql, "open", err);
        goto done;
    }
    sqlite3_busy_timeout(sql->db, BUSY_MS);
    /* The first access looks at the file. */
    LS_TRY_DONE(
        ls_sql_exec(sql, write ? "PRAGMA schema_version" : "PRAGMA query_only = 1; PRAGMA schema_version", err));
    *out = sql;
    sql = NULL;
done:
    ls_sql_close(sql);
    return status;
}

void ls_sql_close(ls_sql *sql) {
    if (sql == NULL) return;
    for (int64_t i = 0; i < sql->n_prepared; i++) sqlite3_finalize(sql->prepared[i].statement);
    sqlite3_close(sql->db);
    free(sql->path);
    free(sql);
}

ls_status ls_sql_exec(ls_sql *sql, const char *text, ls_error *err) {
    return sqlite3_exec(sql->db, text, NULL, NULL, NULL) == SQLITE_OK ? LS_OK : fail_statement(sql, "use", err);
}

void ls_sql_rollback(ls_sql *sql) {
    if (!sqlite3_get_autocommit(sql->db)) sqlite3_exec(sql->db, "ROLLBACK", NULL, NULL, NULL);
}

static ls_status prepare_statement(sqlite3_stmt **out, ls_sql *sql, const char *text, ls_error *err) {
    for (int64_t i = 0; i < sql->n_prepared; i++)
        if (sql->prepared[i].text == text) {
            *out = sql->prepared[i].statement;
            return LS_OK;
        }
    LS_ASSERT(sql->n_prepared < STATEMENTS_MAX, "%s", text);
    if (sqlite3_prepare_v3(sql->db, text, -1, SQLITE_PREPARE_PERSISTENT, out, NULL) != SQLITE_OK)
        return fail_statement(sql, "read", err);
    sql->prepared[sql->n_prepared].text = text;
    sql->prepared[sql->n_prepared++].statement = *out;
    return LS_OK;
}

static int bind(sqlite3_stmt *statement, int at, const ls_sql_value *value) {
    switch (value->kind) {
        case LS_SQL_INT: return sqlite3_bind_int64(statement, at, value->integer);
        case LS_SQL_REAL: return sqlite3_bind_double(statement, at, value->real);
        case LS_SQL_TEXT:
            if (memchr(value->text, '\0', (size_t)value->bytes) != NULL ||
                !ls_utf8_valid((const uint8_t *)value->text, value->bytes))
                return sqlite3_bind_blob64(statement, at, value->text, (sqlite3_uint64)value->bytes, SQLITE_STATIC);
            return sqlite3_bind_text64(statement, at, value->text, (sqlite3_uint64)value->bytes, SQLITE_STATIC,
                                       SQLITE_UTF8);
        default: return sqlite3_bind_null(statement, at);
    }
}

static ls_status start_statement(sqlite3_stmt **out, ls_sql *sql, const char *text, const ls_sql_value *args, int64_t n,
                                 ls_error *err) {
    ls_status status = prepare_statement(out, sql, text, err);
    if (status != LS_OK) return status;
    LS_ASSERT(n == sqlite3_bind_parameter_count(*out), "%s: %lld arguments", text, (long long)n);
    for (int64_t i = 0; i < n; i++)
        if (bind(*out, (int)i + 1, &args[i]) != SQLITE_OK) return fail_statement(sql, "write", err);
    return LS_OK;
}

static void stop(sqlite3_stmt *statement) {
    sqlite3_reset(statement);
    sqlite3_clear_bindings(statement);
}

/* Blobs carry no NUL behind them, texts do; the visitor is promised one. */
static ls_status read_row(ls_sql_value *row, char **copies, ls_sql *sql, sqlite3_stmt *statement, int n,
                          ls_error *err) {
    for (int i = 0; i < n; i++) {
        const int type = sqlite3_column_type(statement, i);
        row[i] = (ls_sql_value){.kind = LS_SQL_NULL, .real = (double)NAN, .text = ""};
        if (type == SQLITE_INTEGER || type == SQLITE_FLOAT) {
            row[i].kind = type == SQLITE_INTEGER ? LS_SQL_INT : LS_SQL_REAL;
            row[i].integer = sqlite3_column_int64(statement, i);
            row[i].real = sqlite3_column_double(statement, i);
        } else if (type != SQLITE_NULL) {
            const void *data = type == SQLITE_BLOB ? sqlite3_column_blob(statement, i)
                                                   : (const void *)sqlite3_column_text(statement, i);
            row[i].kind = LS_SQL_TEXT;
            row[i].bytes = sqlite3_column_bytes(statement, i);
            if (data == NULL && row[i].bytes > 0) return fail_statement(sql, "read", err);
            if (data == NULL) continue;
            row[i].text = data;
            if (type != SQLITE_BLOB) continue;
            LS_TRY(ls_text_copy(&copies[i], data, row[i].bytes, err));
            row[i].text = copies[i];
        }
    }
    return LS_OK;
}

ls_status ls_sql_each(ls_sql *sql, const char *text, const ls_sql_value *args, int64_t n, ls_sql_row visit,
                      void *context, ls_error *err) {
    sqlite3_stmt *statement = NULL;
    ls_status status = start_statement(&statement, sql, text, args, n, err);
    while (status == LS_OK) {
        ls_sql_value row[COLUMNS_MAX];
        char *copies[COLUMNS_MAX] = {0};
        const int code = sqlite3_step(statement), n_columns = sqlite3_column_count(statement);
        if (code != SQLITE_ROW) {
            if (code != SQLITE_DONE) status = fail_statement(sql, visit != NULL ? "read" : "write", err);
            break;
        }
        LS_ASSERT(n_columns <= COLUMNS_MAX && visit != NULL, "%s", text);
        status = read_row(row, copies, sql, statement, n_columns, err);
        if (status == LS_OK) status = visit(context, row, err);
        for (int i = 0; i < n_columns; i++) free(copies[i]);
    }
    if (statement != NULL) stop(statement);
    return status;
}

ls_status ls_sql_run(ls_sql *sql, const char *text, const ls_sql_value *args, int64_t n, ls_error *err) {
    return ls_sql_each(sql, text, args, n, NULL, NULL, err);
}

static ls_status take_number(void *context, const ls_sql_value *row, ls_error *err) {
    (void)err;
    if (row->kind == LS_SQL_INT) *(int64_t *)context = row->integer;
    return LS_OK;
}

ls_status ls_sql_number(int64_t *out, ls_sql *sql, const char *text, int64_t otherwise, ls_error *err) {
    *out = otherwise;
    return ls_sql_each(sql, text, NULL, 0, take_number, out, err);
}
