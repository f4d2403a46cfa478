/* Rows to arrays. */
#include "run/history.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "run/run_db.h"

static ls_status add_start(void *context, const ls_sql_value *row, ls_error *err) {
    ls_history *h = context;
    ls_history_start *start;
    LS_TRY(ls_array_grow((void **)&h->starts, &h->starts_cap, h->n_starts + 1, sizeof *h->starts, "starts", err));
    start = &h->starts[h->n_starts++];
    *start = (ls_history_start){.time = row[0].real,
                                .config_bytes = row[3].bytes,
                                .resumed = row[4].kind == LS_SQL_INT,
                                .kept = row[4].integer};
    LS_TRY(ls_text_copy(&start->program, row[1].text, row[1].bytes, err));
    LS_TRY(ls_text_copy(&start->kind, row[2].text, row[2].bytes, err));
    return ls_text_copy(&start->config, row[3].text, row[3].bytes, err);
}

static ls_status add_step(void *context, const ls_sql_value *row, ls_error *err) {
    ls_history *h = context;
    const int64_t i = h->n_steps;
    if (i == h->steps_cap) return LS_FAIL(err, LS_ERR_FORMAT, "steps: more than the table has");
    h->steps[i] = row[0].integer;
    h->times[i] = row[1].real;
    h->seconds[i] = row[2].real;
    h->n_samples[i] = row[3].integer;
    h->n_steps++;
    return LS_OK;
}

static ls_status add_name(void *context, const ls_sql_value *row, ls_error *err) {
    ls_history *h = context;
    const int64_t i = h->n_names;
    ls_status status;
    if (i == h->names_cap) return LS_FAIL(err, LS_ERR_FORMAT, "names: more than the table has");
    status = ls_text_copy(&h->names[i], row[1].text, row[1].bytes, err);
    if (status != LS_OK) return status;
    h->ids[i] = row[0].integer;
    h->n_names++;
    return LS_OK;
}

/* Index of x in the ascending list, or -1. */
static int64_t find_step(const int64_t *list, int64_t n, int64_t x) {
    int64_t low = 0, high = n;
    while (low < high) {
        const int64_t mid = low + (high - low) / 2;
        if (list[mid] < x)
            low = mid + 1;
        else
            high = mid;
    }
    return low < n && list[low] == x ? low : -1;
}

static ls_status add_value(void *context, const ls_sql_value *row, ls_error *err) {
    ls_history *h = context;
    const int64_t step = find_step(h->steps, h->n_steps, row[0].integer),
                  name = find_step(h->ids, h->n_names, row[1].integer);
    (void)err;
    if (step >= 0 && name >= 0) h->values[name * h->n_steps + step] = row[2].real;
    return LS_OK;
}

static ls_status add_gate(void *context, const ls_sql_value *row, ls_error *err) {
    ls_history *h = context;
    ls_history_gate *g;
    char *name = NULL;
    ls_status status;
    LS_TRY_DONE(ls_array_grow((void **)&h->gates, &h->gates_cap, h->n_gates + 1, sizeof *h->gates, "gates", err));
    LS_TRY_DONE(ls_text_copy(&name, row[1].text, row[1].bytes, err));
    if (row[2].integer < 0 || row[3].integer < 0 || row[3].integer > row[2].integer) {
        status = LS_FAIL(err, LS_ERR_FORMAT, "gates: step %lld, '%.60s': %lld of %lld tokens differ",
                         (long long)row[0].integer, name, (long long)row[3].integer, (long long)row[2].integer);
        free(name);
        goto done;
    }
    g = &h->gates[h->n_gates++];
    *g = (ls_history_gate){row[0].integer,
                           {.name = name,
                            .tokens = row[2].integer,
                            .different = row[3].integer,
                            .abs_max = row[4].real,
                            .k1 = row[5].real,
                            .k2 = row[6].real,
                            .k3 = row[7].real,
                            .passed = row[8].integer != 0}};
done:
    return status;
}

static ls_status read_tables(ls_history *h, ls_sql *sql, ls_error *err) {
    int64_t n_steps, n_names, n_values;
    LS_TRY(ls_sql_number(&n_steps, sql, "SELECT count(*) FROM steps", 0, err));
    LS_TRY(ls_sql_number(&n_names, sql, "SELECT count(*) FROM names", 0, err));
    LS_TRY(ls_array_alloc((void **)&h->steps, n_steps, sizeof *h->steps, "steps", err));
    LS_TRY(ls_array_alloc((void **)&h->times, n_steps, sizeof *h->times, "steps", err));
    LS_TRY(ls_array_alloc((void **)&h->seconds, n_steps, sizeof *h->seconds, "steps", err));
    LS_TRY(ls_array_alloc((void **)&h->n_samples, n_steps, sizeof *h->n_samples, "steps", err));
    LS_TRY(ls_array_alloc((void **)&h->names, n_names, sizeof *h->names, "measures", err));
    LS_TRY(ls_array_alloc((void **)&h->ids, n_names, sizeof *h->ids, "measures", err));
    if (!ls_mul_i64(n_steps, n_names, &n_values)) n_values = INT64_MAX;
    h->steps_cap = n_steps;
    h->names_cap = n_names;
    LS_TRY(ls_array_alloc((void **)&h->values, n_values, sizeof *h->values, "values", err));
    for (int64_t i = 0; i < n_values; i++) h->values[i] = (double)NAN;
    LS_TRY(
        ls_sql_each(sql, "SELECT time, program, kind, config, kept FROM runs ORDER BY id", NULL, 0, add_start, h, err));
    LS_TRY(ls_sql_each(sql,
                       "SELECT step, time, seconds, (SELECT count(*) FROM samples WHERE samples.step = steps.step)"
                       " FROM steps ORDER BY step",
                       NULL, 0, add_step, h, err));
    LS_TRY(ls_sql_each(sql, "SELECT id, name FROM names ORDER BY id", NULL, 0, add_name, h, err));
    LS_TRY(ls_sql_each(sql, "SELECT step, name, value FROM metrics", NULL, 0, add_value, h, err));
    return ls_sql_each(sql,
                       "SELECT step, name, tokens, different, abs_max, k1, k2, k3, passed FROM gates"
                       " ORDER BY step, name",
                       NULL, 0, add_gate, h, err);
}

ls_status ls_history_read(ls_history *out, const char *dir, ls_error *err) {
    ls_sql *sql = NULL;
    ls_status status;
    memset(out, 0, sizeof *out);
    LS_TRY_DONE(ls_run_db_open(&sql, dir, false, err));
    LS_TRY_DONE(ls_sql_exec(sql, "BEGIN", err)); /* all that follows sees one moment */
    LS_TRY_DONE(read_tables(out, sql, err));
done:
    ls_sql_close(sql);
    if (status != LS_OK) ls_history_deinit(out);
    return status;
}

/* Owned text behind the const pointers of the records of run.h. */
static void release_text(const char *text) {
    union {
        const char *in;
        char *out;
    } pointer = {text};
    free(pointer.out);
}

void ls_history_deinit(ls_history *h) {
    for (int64_t i = 0; i < h->n_starts; i++) {
        free(h->starts[i].program);
        free(h->starts[i].kind);
        free(h->starts[i].config);
    }
    for (int64_t i = 0; i < h->n_names; i++) free(h->names[i]);
    for (int64_t i = 0; i < h->n_gates; i++) release_text(h->gates[i].gate.name);
    free(h->starts);
    free(h->steps);
    free(h->times);
    free(h->seconds);
    free(h->n_samples);
    free(h->names);
    free(h->ids);
    free(h->values);
    free(h->gates);
    memset(h, 0, sizeof *h);
}

const double *ls_history_series(const ls_history *h, const char *name) {
    for (int64_t i = 0; i < h->n_names; i++)
        if (strcmp(h->names[i], name) == 0) return h->values + i * h->n_steps;
    return NULL;
}

typedef struct sample_list {
    ls_history_sample *samples;
    int64_t n, cap;
} sample_list;

static ls_status add_sample(void *context, const ls_sql_value *row, ls_error *err) {
    sample_list *list = context;
    char *texts[4] = {0};
    static const int columns[4] = {1, 2, 3, 8};
    ls_status status;
    LS_TRY_DONE(ls_array_grow((void **)&list->samples, &list->cap, list->n + 1, sizeof *list->samples, "samples", err));
    for (int i = 0; i < 4; i++) LS_TRY_DONE(ls_text_copy(&texts[i], row[columns[i]].text, row[columns[i]].bytes, err));
    list->samples[list->n++] = (ls_history_sample){row[0].integer,
                                                   {.id = texts[0],
                                                    .prompt = texts[1],
                                                    .completion = texts[2],
                                                    .prompt_bytes = row[2].bytes,
                                                    .completion_bytes = row[3].bytes,
                                                    .reward = row[4].real,
                                                    .advantage = row[5].real,
                                                    .n_prompt = row[6].integer,
                                                    .n_completion = row[7].integer,
                                                    .finish = texts[3]}};
done:
    if (status != LS_OK)
        for (int i = 0; i < 4; i++) free(texts[i]);
    return status;
}

ls_status ls_history_samples(ls_history_sample **out, int64_t *n, const char *dir, const int64_t *steps,
                             int64_t n_steps, int64_t n_each, ls_error *err) {
    ls_sql *sql = NULL;
    sample_list list = {0};
    ls_status status;
    *out = NULL;
    *n = 0;
    LS_TRY_DONE(ls_run_db_open(&sql, dir, false, err));
    for (int64_t i = 0; i < n_steps; i++) {
        const ls_sql_value args[] = {ls_sql_int(steps[i]), ls_sql_int(n_each)};
        LS_TRY_DONE(
            ls_sql_each(sql,
                        "SELECT step, id, prompt, completion, reward, advantage, prompt_tokens, completion_tokens,"
                        " finish FROM samples WHERE step = ?1 ORDER BY sample LIMIT ?2",
                        args, 2, add_sample, &list, err));
    }
    *out = list.samples;
    *n = list.n;
    list = (sample_list){0};
done:
    ls_sql_close(sql);
    ls_history_samples_free(list.samples, list.n);
    return status;
}

void ls_history_samples_free(ls_history_sample *samples, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        release_text(samples[i].sample.id);
        release_text(samples[i].sample.prompt);
        release_text(samples[i].sample.completion);
        release_text(samples[i].sample.finish);
    }
    free(samples);
}
