/* Making and recognising the tables. */
#include "run/run_db.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"

#define APPLICATION 1280529234 /* "LSRR", in the file's header */
#define TEXT_OF(x) #x
#define NUMBER_TEXT(x) TEXT_OF(x)

static const char tables[] =
    "BEGIN IMMEDIATE;"
    "CREATE TABLE runs(id INTEGER PRIMARY KEY, time REAL NOT NULL, program TEXT NOT NULL, kind TEXT NOT NULL,"
    " config NOT NULL, kept INTEGER);"
    "CREATE TABLE steps(step INTEGER PRIMARY KEY, run INTEGER NOT NULL REFERENCES runs(id), time REAL NOT NULL,"
    " seconds REAL NOT NULL);"
    "CREATE TABLE names(id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);"
    "CREATE TABLE metrics(step INTEGER NOT NULL, name INTEGER NOT NULL REFERENCES names(id), value REAL,"
    " PRIMARY KEY(step, name)) WITHOUT ROWID;"
    "CREATE VIEW metric AS SELECT m.step AS step, n.name AS name, m.value AS value"
    " FROM metrics m JOIN names n ON n.id = m.name;"
    "CREATE TABLE samples(step INTEGER NOT NULL, sample INTEGER NOT NULL, id NOT NULL, prompt NOT NULL,"
    " completion NOT NULL, reward REAL, advantage REAL, prompt_tokens INTEGER NOT NULL,"
    " completion_tokens INTEGER NOT NULL, finish TEXT NOT NULL, PRIMARY KEY(step, sample));"
    "CREATE TABLE gates(step INTEGER NOT NULL, name TEXT NOT NULL, tokens INTEGER NOT NULL, different INTEGER NOT NULL,"
    " abs_max REAL, k1 REAL, k2 REAL, k3 REAL, passed INTEGER NOT NULL, PRIMARY KEY(step, name)) WITHOUT ROWID;"
    "PRAGMA application_id = " NUMBER_TEXT(APPLICATION) ";"
    "PRAGMA user_version = " NUMBER_TEXT(LS_RUN_VERSION) ";"
    "COMMIT;";

ls_status ls_run_path(char **out, const char *dir, const char *name, ls_error *err) {
    const size_t n = strlen(dir), bytes = n + strlen(name) + 2;
    ls_status status = ls_array_alloc((void **)out, (int64_t)bytes, 1, "path", err);
    if (status == LS_OK) snprintf(*out, bytes, "%s%s%s", dir, n > 0 && dir[n - 1] == '/' ? "" : "/", name);
    return status;
}

static ls_status check_version(ls_sql *sql, const char *path, ls_error *err) {
    int64_t application, version;
    ls_status status;
    LS_TRY_DONE(ls_sql_number(&application, sql, "PRAGMA application_id", 0, err));
    LS_TRY_DONE(ls_sql_number(&version, sql, "PRAGMA user_version", 0, err));
    if (application != APPLICATION)
        status = LS_FAIL(err, LS_ERR_FORMAT, "%s: a database, but not of a run", path);
    else if (version != LS_RUN_VERSION)
        status = LS_FAIL(err, LS_ERR_UNSUPPORTED, "%s: tables of version %lld; this program knows %d", path,
                         (long long)version, LS_RUN_VERSION);
done:
    return status;
}

ls_status ls_run_db_open(ls_sql **out, const char *dir, bool write, ls_error *err) {
    ls_status status;
    char *path = NULL;
    ls_sql *sql = NULL;
    int64_t n_tables;
    *out = NULL;
    LS_TRY_DONE(ls_run_path(&path, dir, LS_RUN_DB, err));
    if (!write && !ls_file_exists(path)) {
        status = LS_FAIL(err, LS_ERR_IO, "%s: no such file; the directory of a run is needed", path);
        goto done;
    }
    LS_TRY_DONE(ls_sql_open(&sql, path, write, err));
    LS_TRY_DONE(ls_sql_number(&n_tables, sql, "SELECT count(*) FROM sqlite_master", 0, err));
    if (write) {
        /* With a write-ahead log, readers and the run do not wait for each other; where the file system cannot have
         * one, the rollback journal stays. */
        LS_TRY_DONE(ls_sql_exec(sql, "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL", err));
        if (n_tables == 0) LS_TRY_DONE(ls_sql_exec(sql, tables, err));
    }
    LS_TRY_DONE(check_version(sql, path, err));
    *out = sql;
    sql = NULL;
done:
    ls_sql_close(sql);
    free(path);
    return status;
}
