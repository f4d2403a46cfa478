/* Writing the records of a run. Owns the directory's lock, the database and the two files that grow beside it. */
#define _DEFAULT_SOURCE
#include "run/run.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "run/event_out.h"
#include "run/run_db.h"

#define LINES "metrics.jsonl"
#define EVENTS_BEGIN "events.out.tfevents."
#define EVENTS_END ".lockstep"

/* A file that grows step by step. */
typedef struct tail {
    char *path;
    int fd;
    int64_t bytes;
} tail;

/* A stream to memory. */
typedef struct memory {
    FILE *stream;
    char *data;
    size_t bytes;
} memory;

struct ls_run {
    int lock; /* the directory, open and locked; -1 before */
    ls_sql *sql;
    int64_t id; /* row of runs */
    tail lines, events;
    memory line_text, event_text; /* of the step that is committed */
    ls_event event;
    int64_t n_steps;

    bool open; /* a step is */
    int64_t step, last, n_samples;
    double began, seconds; /* of the clock; what the step took, or NaN: since it began */
    int64_t first;         /* step that this process committed first; -1 before */
    double first_ended;    /* of the clock */
    ls_status failed;      /* the first failure since the step began */
    ls_error err;
    ls_json_out json;

    ls_run_glance glance;
    bool terminal, shown;
};

static double clock_of(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* ---- progress ---- */

static void __attribute__((format(printf, 3, 4))) append(char *text, size_t bytes, const char *format, ...) {
    const size_t used = strlen(text);
    va_list args;
    va_start(args, format);
    vsnprintf(text + used, bytes - used, format, args);
    va_end(args);
}

void ls_run_glance_text(char *text, size_t bytes, const ls_run_glance *g) {
    snprintf(text, bytes, "step %lld", (long long)g->step);
    if (g->n_steps > 0) append(text, bytes, "/%lld", (long long)g->n_steps);
    if (!isnan(g->loss)) append(text, bytes, "  loss %.4g", g->loss);
    if (!isnan(g->reward)) append(text, bytes, "  reward %.4g", g->reward);
    if (!isnan(g->length)) append(text, bytes, "  length %.1f", g->length);
    if (!isnan(g->rate)) {
        char rate[LS_DOUBLE_TEXT_MAX];
        ls_double_round(rate, g->rate, 4);
        append(text, bytes, "  rate %s", rate);
    }
    if (!isnan(g->speed)) append(text, bytes, "  %.0f tokens/s", g->speed);
    if (g->tokens > 0)
        append(text, bytes, "  mismatch %lld of %lld tokens", (long long)g->different, (long long)g->tokens);
    if (g->left > 0) {
        char left[LS_DURATION_TEXT_MAX];
        ls_duration_text(left, g->left);
        append(text, bytes, "  %s left", left);
    }
}

double ls_run_seconds_left(const ls_run *run) {
    if (run->first < 0 || run->step <= run->first || run->step >= run->n_steps) return 0;
    return (clock_of(CLOCK_MONOTONIC) - run->first_ended) / (double)(run->step - run->first) *
           (double)(run->n_steps - run->step);
}

static void glance_clear(ls_run_glance *g) {
    g->reward = g->length = g->loss = g->rate = g->speed = (double)NAN;
    g->tokens = g->different = 0;
}

static void glance_take(ls_run_glance *g, const char *name, double value) {
    if (strcmp(name, LS_METRIC_REWARD) == 0) g->reward = value;
    if (strcmp(name, LS_METRIC_LENGTH) == 0) g->length = value;
    if (strcmp(name, LS_METRIC_LOSS) == 0) g->loss = value;
    if (strcmp(name, LS_METRIC_RATE) == 0) g->rate = value;
    if (strcmp(name, LS_METRIC_SPEED) == 0) g->speed = value;
}

static void glance_show(ls_run *run) {
    char text[256];
    if (!run->terminal) return;
    run->glance.left = ls_run_seconds_left(run);
    ls_run_glance_text(text, sizeof text, &run->glance);
    fprintf(stderr, "\r\033[K%s", text);
    fflush(stderr);
    run->shown = true;
}

/* ---- files that grow ---- */

static ls_status tail_open(tail *t, ls_error *err) {
    struct stat st;
    t->fd = open(t->path, O_WRONLY | O_APPEND | O_CLOEXEC);
    if (t->fd < 0 || fstat(t->fd, &st) != 0)
        return LS_FAIL(err, LS_ERR_IO, "%s: cannot open for writing: %s", t->path, strerror(errno));
    t->bytes = (int64_t)st.st_size;
    return LS_OK;
}

static ls_status tail_append(const tail *t, const memory *m, ls_error *err) {
    for (size_t done = 0; done < m->bytes;) {
        const ssize_t n = write(t->fd, m->data + done, m->bytes - done);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return LS_FAIL(err, LS_ERR_IO, "%s: cannot write: %s", t->path, strerror(errno));
        done += (size_t)n;
    }
    return LS_OK;
}

/* Back to what was committed. */
static void tail_restore(const tail *t) {
    if (ftruncate(t->fd, (off_t)t->bytes) != 0) return; /* the database tells the truth all the same */
}

static void tail_close(tail *t) {
    if (t->fd >= 0) close(t->fd);
    free(t->path);
}

static ls_status memory_open(memory *m, ls_error *err) {
    m->stream = open_memstream(&m->data, &m->bytes);
    return m->stream != NULL ? LS_OK : LS_FAIL(err, LS_ERR_NOMEM, "step record");
}

/* data and bytes are good after this. */
static ls_status memory_flush(memory *m, ls_error *err) {
    return fflush(m->stream) == 0 && !ferror(m->stream) ? LS_OK : LS_FAIL(err, LS_ERR_NOMEM, "step record");
}

static void memory_close(memory *m) {
    if (m->stream != NULL) fclose(m->stream);
    free(m->data);
}

/* ---- a step as a line and an event ---- */

typedef struct rendering {
    ls_run *run;
    ls_json_out json;
    FILE *lines, *events;
} rendering;

static ls_status render_metric(void *context, const ls_sql_value *row, ls_error *err) {
    rendering *r = context;
    ls_json_double(&r->json, row[0].text, row[1].real);
    return ls_event_scalar(&r->run->event, row[0].text, row[1].real, err);
}

/* row: step, time, seconds. */
static ls_status render_step(void *context, const ls_sql_value *row, ls_error *err) {
    static const char query[] =
        "SELECT n.name, m.value FROM metrics m CROSS JOIN names n ON n.id = m.name WHERE m.step = ?1 ORDER BY m.name";
    rendering *r = context;
    ls_json_init(&r->json, r->lines);
    ls_json_begin_object(&r->json, NULL);
    ls_json_int(&r->json, "step", row[0].integer);
    ls_json_double(&r->json, "time", row[1].real);
    ls_json_double(&r->json, "seconds", row[2].real);
    r->run->event.n = 0;
    LS_TRY(ls_sql_each(r->run->sql, query, row, 1, render_metric, r, err));
    ls_json_end_object(&r->json);
    ls_json_newline(&r->json);
    return ls_event_write(r->events, &r->run->event, row[1].real, row[0].integer, err);
}

/* Whether a file is an event file of an earlier start, or one of ours that a kill left incomplete. */
static bool is_leftover(const ls_run *run, const char *name) {
    const char *const kept = strrchr(run->events.path, '/') + 1;
    const bool events = strncmp(name, EVENTS_BEGIN, sizeof EVENTS_BEGIN - 1) == 0 && strstr(name, EVENTS_END) != NULL;
    return (events && strcmp(name, kept) != 0) || strncmp(name, LINES ".tmp-", sizeof LINES ".tmp-" - 1) == 0;
}

/* The new files have all steps. A failure leaves repeated curves, nothing worse. */
static void remove_leftovers(const ls_run *run, const char *dir) {
    DIR *entries = opendir(dir);
    struct dirent *entry;
    if (entries == NULL) return;
    while ((entry = readdir(entries)) != NULL)
        if (is_leftover(run, entry->d_name)) unlinkat(run->lock, entry->d_name, 0);
    closedir(entries);
}

/* Makes both files from the database, which mends whatever a kill or a resumed step has left in them. */
static ls_status make_files(ls_run *run, const char *dir, ls_error *err) {
    ls_status status;
    ls_output *lines = NULL, *events = NULL;
    rendering r = {.run = run};
    const double now = clock_of(CLOCK_REALTIME);
    int64_t first;
    char name[64];
    snprintf(name, sizeof name, EVENTS_BEGIN "%010lld" EVENTS_END, (long long)now);
    LS_TRY_DONE(ls_run_path(&run->lines.path, dir, LINES, err));
    LS_TRY_DONE(ls_run_path(&run->events.path, dir, name, err));
    LS_TRY_DONE(ls_sql_number(&first, run->sql, "SELECT min(step) FROM steps", 0, err));
    LS_TRY_DONE(ls_output_open(&lines, run->lines.path, err));
    LS_TRY_DONE(ls_output_open(&events, run->events.path, err));
    r.lines = ls_output_stream(lines);
    r.events = ls_output_stream(events);
    ls_event_start(r.events, now, first);
    LS_TRY_DONE(
        ls_sql_each(run->sql, "SELECT step, time, seconds FROM steps ORDER BY step", NULL, 0, render_step, &r, err));
    status = ls_output_commit(lines, err);
    lines = NULL;
    if (status != LS_OK) goto done;
    status = ls_output_commit(events, err);
    events = NULL;
    if (status != LS_OK) goto done;
    remove_leftovers(run, dir);
    LS_TRY_DONE(tail_open(&run->lines, err));
    LS_TRY_DONE(tail_open(&run->events, err));
done:
    ls_output_abandon(lines);
    ls_output_abandon(events);
    return status;
}

/* ---- opening ---- */

static ls_status lock_directory(ls_run *run, const char *dir, const ls_run_setup *setup, ls_error *err) {
    if (!setup->resume && mkdir(dir, 0777) != 0 && errno != EEXIST)
        return LS_FAIL(err, LS_ERR_IO, "%s: cannot make the directory: %s", dir, strerror(errno));
    run->lock = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (run->lock < 0) return LS_FAIL(err, LS_ERR_IO, "%s: cannot open the directory: %s", dir, strerror(errno));
    /* Some file systems lock no directories; there, nobody watches. */
    if (flock(run->lock, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        return LS_FAIL(err, LS_ERR_IO, "%s: another process is writing the records of this run", dir);
    return LS_OK;
}

static ls_status remove_steps(ls_run *run, const ls_run_setup *setup, ls_error *err) {
    static const char *const statements[] = {
        "DELETE FROM steps WHERE step > ?1",
        "DELETE FROM metrics WHERE step > ?1",
        "DELETE FROM samples WHERE step > ?1",
        "DELETE FROM gates WHERE step > ?1",
    };
    const ls_sql_value keep = ls_sql_int(setup->keep);
    for (size_t i = 0; i < sizeof statements / sizeof statements[0]; i++)
        LS_TRY(ls_sql_run(run->sql, statements[i], &keep, 1, err));
    return LS_OK;
}

static ls_status start_run(ls_run *run, const char *dir, const ls_run_setup *setup, ls_error *err) {
    const int64_t bytes = setup->config_bytes >= 0 ? setup->config_bytes : (int64_t)strlen(setup->config);
    const ls_sql_value row[] = {
        ls_sql_real(clock_of(CLOCK_REALTIME)),
        ls_sql_text("lockstep " LS_VERSION, sizeof LS_VERSION + 8),
        ls_sql_text(setup->kind, (int64_t)strlen(setup->kind)),
        ls_sql_text(setup->config, bytes),
        setup->resume ? ls_sql_int(setup->keep) : ls_sql_null(),
    };
    int64_t n_runs;
    LS_TRY(ls_sql_exec(run->sql, "BEGIN IMMEDIATE", err));
    LS_TRY(ls_sql_number(&n_runs, run->sql, "SELECT count(*) FROM runs", 0, err));
    LS_TRY(ls_sql_number(&run->last, run->sql, "SELECT max(step) FROM steps", -1, err));
    if (!setup->resume && run->last >= 0) {
        return LS_FAIL(err, LS_ERR_ARG, "%s: has records up to step %lld; resume that run or take another directory",
                       dir, (long long)run->last);
    }
    if (setup->resume && n_runs == 0) {
        return LS_FAIL(err, LS_ERR_ARG, "%s: has no run to resume", dir);
    }
    if (setup->resume) LS_TRY(remove_steps(run, setup, err));
    LS_TRY(ls_sql_run(run->sql, "INSERT INTO runs(time, program, kind, config, kept) VALUES(?1, ?2, ?3, ?4, ?5)", row,
                      5, err));
    LS_TRY(ls_sql_number(&run->id, run->sql, "SELECT max(id) FROM runs", 0, err));
    LS_TRY(ls_sql_number(&run->last, run->sql, "SELECT max(step) FROM steps", -1, err));
    return ls_sql_exec(run->sql, "COMMIT", err);
}

/* Resuming must not make a database where there is none, and the lines of steps that no database has are the only
 * record of them: making the file anew would lose it. */
static ls_status open_database(ls_run *run, const char *dir, const ls_run_setup *setup, ls_error *err) {
    ls_status status;
    char *path = NULL, *lines = NULL;
    struct stat st;
    LS_TRY_DONE(ls_run_path(&path, dir, LS_RUN_DB, err));
    LS_TRY_DONE(ls_run_path(&lines, dir, LINES, err));
    if (ls_file_exists(path))
        status = ls_run_db_open(&run->sql, dir, true, err);
    else if (stat(lines, &st) == 0 && st.st_size > 0)
        status = LS_FAIL(err, LS_ERR_ARG,
                         "%s: missing, and %s has steps that only it could restore; put it back, or move " LINES
                         " away to record anew",
                         path, lines);
    else if (setup->resume)
        status = LS_FAIL(err, LS_ERR_ARG, "%s: has no run to resume", dir);
    else
        status = ls_run_db_open(&run->sql, dir, true, err);
done:
    free(lines);
    free(path);
    return status;
}

ls_status ls_run_open(ls_run **out, const char *dir, const ls_run_setup *setup, ls_error *err) {
    ls_status status;
    ls_run *run = NULL;
    *out = NULL;
    LS_TRY_DONE(ls_array_alloc((void **)&run, 1, sizeof *run, "run", err));
    run->lock = run->lines.fd = run->events.fd = -1;
    run->n_steps = setup->n_steps;
    run->first = -1;
    run->terminal = isatty(STDERR_FILENO);
    LS_TRY_DONE(memory_open(&run->line_text, err));
    LS_TRY_DONE(memory_open(&run->event_text, err));
    LS_TRY_DONE(lock_directory(run, dir, setup, err));
    LS_TRY_DONE(open_database(run, dir, setup, err));
    LS_TRY_DONE(start_run(run, dir, setup, err));
    LS_TRY_DONE(make_files(run, dir, err));
    *out = run;
    run = NULL;
done:
    ls_run_close(run);
    return status;
}

ls_status ls_run_open_or_resume(ls_run **out, const char *dir, const ls_run_setup *setup, bool resume, ls_error *err) {
    ls_run_setup again = *setup;
    char *path = NULL;
    ls_status status;
    if (again.keep == 0) again.keep = -1; /* what was recorded before the first step is recorded anew */
    LS_TRY_DONE(ls_run_path(&path, dir, LS_RUN_DB, err));
    again.resume = resume && ls_file_exists(path);
    status = ls_run_open(out, dir, &again, err);
    if (status != LS_OK && again.resume && setup->keep == 0) {
        again.resume = false;
        status = ls_run_open(out, dir, &again, err);
    }
done:
    free(path);
    return status;
}

void ls_run_close(ls_run *run) {
    ls_error ignored;
    if (run == NULL) return;
    ls_run_step_drop(run);
    if (run->shown) fputc('\n', stderr);
    /* A run at rest is one file that also those can read who may not write beside it. With a reader in it, it stays as
     * it is. */
    if (run->sql != NULL) {
        ls_sql_rollback(run->sql);
        (void)ls_sql_exec(run->sql, "PRAGMA busy_timeout = 0; PRAGMA journal_mode = DELETE", &ignored);
    }
    ls_sql_close(run->sql);
    tail_close(&run->lines);
    tail_close(&run->events);
    memory_close(&run->line_text);
    memory_close(&run->event_text);
    ls_event_deinit(&run->event);
    if (run->lock >= 0) close(run->lock);
    free(run);
}

/* ---- steps ---- */

ls_status ls_run_step_begin(ls_run *run, int64_t step, ls_error *err) {
    LS_ASSERT(!run->open, "step %lld is open", (long long)run->step);
    if (step <= run->last)
        return LS_FAIL(err, LS_ERR_ARG, "%s: step %lld comes after step %lld", run->lines.path, (long long)step,
                       (long long)run->last);
    LS_TRY(ls_sql_exec(run->sql, "BEGIN IMMEDIATE", err));
    run->open = true;
    run->step = step;
    run->n_samples = 0;
    run->failed = LS_OK;
    run->began = clock_of(CLOCK_MONOTONIC);
    run->seconds = (double)NAN;
    glance_clear(&run->glance);
    run->glance.step = step;
    run->glance.n_steps = run->n_steps;
    return LS_OK;
}

void ls_run_step_seconds(ls_run *run, double seconds) { run->seconds = seconds; }

void ls_run_step_drop(ls_run *run) {
    if (run->open) ls_sql_rollback(run->sql);
    run->open = false;
}

/* Runs a statement of the open step unless one has failed. */
static void put_row(ls_run *run, const char *statement, const ls_sql_value *args, int64_t n) {
    LS_ASSERT(run->open, "no step is open: %s", statement);
    if (run->failed == LS_OK) run->failed = ls_sql_run(run->sql, statement, args, n, &run->err);
}

static ls_status write_step(ls_run *run, ls_error *err) {
    const ls_sql_value row[] = {
        ls_sql_int(run->step), ls_sql_real(clock_of(CLOCK_REALTIME)),
        ls_sql_real(isnan(run->seconds) ? clock_of(CLOCK_MONOTONIC) - run->began : run->seconds), ls_sql_int(run->id)};
    rendering r = {.run = run, .lines = run->line_text.stream, .events = run->event_text.stream};
    LS_TRY(ls_sql_run(run->sql, "INSERT INTO steps(step, time, seconds, run) VALUES(?1, ?2, ?3, ?4)", row, 4, err));
    rewind(run->line_text.stream);
    rewind(run->event_text.stream);
    LS_TRY(render_step(&r, row, err));
    LS_TRY(memory_flush(&run->line_text, err));
    LS_TRY(memory_flush(&run->event_text, err));
    LS_TRY(tail_append(&run->lines, &run->line_text, err));
    LS_TRY(tail_append(&run->events, &run->event_text, err));
    return ls_sql_exec(run->sql, "COMMIT", err);
}

ls_status ls_run_step_commit(ls_run *run, ls_error *err) {
    ls_status status = run->failed;
    LS_ASSERT(run->open, "no step is open after %lld", (long long)run->last);
    if (status != LS_OK)
        LS_FAIL(err, status, "%s", run->err.text);
    else
        status = write_step(run, err);
    if (status == LS_OK) {
        run->lines.bytes += (int64_t)run->line_text.bytes;
        run->events.bytes += (int64_t)run->event_text.bytes;
        run->last = run->step;
        if (run->first < 0) {
            run->first = run->step;
            run->first_ended = clock_of(CLOCK_MONOTONIC);
        }
        glance_show(run);
    } else {
        tail_restore(&run->lines);
        tail_restore(&run->events);
    }
    ls_run_step_drop(run);
    return status;
}

void ls_run_metric(ls_run *run, const char *name, double value) {
    static const char *const taken[] = {"step", "time", "seconds"};
    const int64_t bytes = (int64_t)strlen(name);
    const ls_sql_value args[] = {ls_sql_text(name, bytes), ls_sql_int(run->step), ls_sql_real(value)};
    bool bad = bytes == 0 || !ls_utf8_valid((const uint8_t *)name, bytes);
    for (size_t i = 0; i < sizeof taken / sizeof taken[0]; i++) bad = bad || strcmp(name, taken[i]) == 0;
    if (bad && run->failed == LS_OK)
        run->failed = LS_FAIL(&run->err, LS_ERR_ARG, "'%s' cannot be the name of a measure", name);
    put_row(run, "INSERT OR IGNORE INTO names(name) VALUES(?1)", args, 1);
    put_row(run, "INSERT OR REPLACE INTO metrics(step, name, value) SELECT ?2, id, ?3 FROM names WHERE name = ?1", args,
            3);
    glance_take(&run->glance, name, value);
}

static void take_number(void *context, const char *path, double value) {
    static const char aliases[] = "aliases/";
    const char *at = strstr(path, aliases);
    while (at != NULL && at != path && at[-1] != '/') at = strstr(at + 1, aliases);
    ls_run_metric(context, at != NULL ? at + sizeof aliases - 1 : path, value);
}

ls_json_out *ls_run_metrics(ls_run *run, const char *prefix) {
    ls_json_init_visit(&run->json, take_number, run);
    ls_json_begin_object(&run->json, NULL);
    if (prefix[0] != '\0') ls_json_begin_object(&run->json, prefix);
    return &run->json;
}

void ls_run_sample_add(ls_run *run, const ls_run_sample *s) {
    const ls_sql_value args[] = {
        ls_sql_int(run->step),
        ls_sql_int(run->n_samples++),
        ls_sql_text(s->id, (int64_t)strlen(s->id)),
        ls_sql_text(s->prompt, s->prompt_bytes),
        ls_sql_text(s->completion, s->completion_bytes),
        ls_sql_real(s->reward),
        ls_sql_real(s->advantage),
        ls_sql_int(s->n_prompt),
        ls_sql_int(s->n_completion),
        ls_sql_text(s->finish, (int64_t)strlen(s->finish)),
    };
    put_row(
        run,
        "INSERT INTO samples(step, sample, id, prompt, completion, reward, advantage, prompt_tokens, completion_tokens,"
        " finish) VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
        args, 10);
}

void ls_run_gate_add(ls_run *run, const ls_run_gate *g) {
    const ls_sql_value args[] = {
        ls_sql_int(run->step),   ls_sql_text(g->name, (int64_t)strlen(g->name)),
        ls_sql_int(g->tokens),   ls_sql_int(g->different),
        ls_sql_real(g->abs_max), ls_sql_real(g->k1),
        ls_sql_real(g->k2),      ls_sql_real(g->k3),
        ls_sql_int(g->passed),
    };
    ls_json_out *json = ls_run_metrics(run, "gate");
    put_row(run,
            "INSERT OR REPLACE INTO gates(step, name, tokens, different, abs_max, k1, k2, k3, passed)"
            " VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
            args, 9);
    ls_json_begin_object(json, g->name);
    ls_json_int(json, "tokens", g->tokens);
    ls_json_int(json, "different", g->different);
    ls_json_double(json, "abs_max", g->abs_max);
    ls_json_double(json, "k1", g->k1);
    ls_json_double(json, "k2", g->k2);
    ls_json_double(json, "k3", g->k3);
    ls_json_bool(json, "passed", g->passed);
    run->glance.tokens += g->tokens;
    run->glance.different += g->different;
}
