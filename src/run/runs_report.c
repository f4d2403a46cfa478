/* The page of several runs: what they are, their curves side by side, what they differ in. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/html_out.h"
#include "base/mem.h"
#include "json/json_node.h"
#include "run/run_report.h"

static const char *const colours[] = {"#1f6fb2", "#b3261e", "#2e7d4f", "#a15c00", "#6a3fb5", "#0f7f86",
                                      "#b0447d", "#5f6b00", "#274690", "#8f4a2a", "#3d7a1f", "#7a3b8f",
                                      "#00696d", "#9c2f4f", "#555f6b", "#8a6d00"};

static const struct {
    const char *name, *title, *y_label;
} charts[] = {
    {LS_METRIC_HELD_OUT, "Held-out reward", "reward"},
    {LS_METRIC_HELD_OUT_LOSS, "Held-out loss", "nats"},
    {LS_METRIC_REWARD, "Reward", "reward"},
    {LS_METRIC_LOSS, "Loss", "loss"},
    {LS_METRIC_LENGTH, "Length of completions", "tokens"},
    {"loss/entropy", "Entropy", "nats"},
    {"loss/reference_kl", "KL to the reference", "nats"},
    {LS_METRIC_MISMATCH "/abs_max", "Trainer against rollout: largest difference of a log-probability", "nats"},
    {"gradient_norm", "Norm of the gradient", "norm"},
    {"learning_rate", "Learning rate", "rate"},
    {LS_METRIC_SPEED, "Speed", "tokens/s"}};

/* The points of a measure that are there; *made owns both arrays. */
static ls_status take_line(ls_line *line, double **made, const ls_history *h, const double *y, ls_error *err) {
    int64_t n = 0, k = 0;
    for (int64_t i = 0; i < h->n_steps; i++) n += isfinite(y[i]);
    LS_TRY(ls_array_alloc((void **)made, 2 * n, sizeof **made, "curve", err));
    for (int64_t i = 0; i < h->n_steps; i++) {
        if (!isfinite(y[i])) continue;
        (*made)[k] = (double)h->steps[i];
        (*made)[n + k++] = y[i];
    }
    line->x = *made;
    line->y = *made + n;
    line->n = n;
    return LS_OK;
}

static ls_status write_chart(FILE *file, size_t which, const char *const *dirs, const ls_history *h, int64_t n,
                             ls_error *err) {
    ls_line lines[LS_REPORT_RUNS_MAX];
    double *made[LS_REPORT_RUNS_MAX] = {NULL};
    ls_line_chart chart = {charts[which].title, "step", charts[which].y_label, NULL, 0, lines, 0};
    ls_status status = LS_OK;
    for (int64_t r = 0; r < n; r++) {
        const double *y = ls_history_series(&h[r], charts[which].name);
        if (y == NULL) continue;
        lines[chart.n_lines] = (ls_line){.label = dirs[r], .colour = colours[r]};
        LS_TRY_DONE(take_line(&lines[chart.n_lines], &made[r], &h[r], y, err));
        chart.n_lines += lines[chart.n_lines].n > 0;
    }
    if (chart.n_lines > 0 && ls_line_chart_is_flat(&chart))
        ls_line_chart_write_flat(file, &chart);
    else if (chart.n_lines > 0)
        ls_line_chart_write(file, &chart);
done:
    for (int64_t r = 0; r < n; r++) free(made[r]);
    return status;
}

/* The last finite value of a measure, or NaN. */
static double last_of(const ls_history *h, const char *name) {
    const double *y = ls_history_series(h, name);
    double last = (double)NAN;
    for (int64_t i = 0; y != NULL && i < h->n_steps; i++)
        if (isfinite(y[i])) last = y[i];
    return last;
}

static void write_number(FILE *file, double value) {
    if (isnan(value))
        fputs("<td></td>", file);
    else
        fprintf(file, "<td class=\"n\">%.6g</td>", value);
}

static void write_runs(FILE *file, const char *const *dirs, const ls_history *h, int64_t n) {
    fputs(
        "<table id=\"runs\"><tr><th>run</th><th>kind</th><th>steps</th><th>bit checks failed</th><th>last held-out "
        "reward</th>"
        "<th>last reward</th><th>last loss</th></tr>\n",
        file);
    for (int64_t r = 0; r < n; r++) {
        int64_t failed = 0;
        for (int64_t i = 0; i < h[r].n_gates; i++) failed += !h[r].gates[i].gate.passed;
        fputs("<tr><td>", file);
        ls_html_text(file, dirs[r]);
        fputs("</td><td>", file);
        if (h[r].n_starts > 0) ls_html_text(file, h[r].starts[0].kind);
        fprintf(file, "</td><td class=\"n\">%" PRId64 "</td><td class=\"n\">%" PRId64 "</td>",
                h[r].n_steps > 0 ? h[r].steps[h[r].n_steps - 1] : 0, failed);
        write_number(file, last_of(&h[r], LS_METRIC_HELD_OUT));
        write_number(file, last_of(&h[r], LS_METRIC_REWARD));
        write_number(file, last_of(&h[r], LS_METRIC_LOSS));
        fputs("</tr>\n", file);
    }
    fputs("</table>\n", file);
}

/* ---- configurations ---- */

/* The member of a run's last configuration as JSON text, or NULL; released with free(). */
static char *value_of(const ls_json_doc *doc, const char *key) {
    ls_node root, child;
    char *text = NULL;
    if (doc == NULL) return NULL;
    root = ls_json_root(doc);
    if (!ls_node_get(&root, key, &child) || ls_node_dump(&child, &text, NULL) != LS_OK) return NULL;
    return text;
}

static void write_difference(FILE *file, ls_json_doc *const *docs, int64_t n, const char *key) {
    char *values[LS_REPORT_RUNS_MAX] = {NULL};
    bool differs = false;
    for (int64_t r = 0; r < n; r++) {
        values[r] = value_of(docs[r], key);
        if (r > 0)
            differs = differs || (values[r] == NULL) != (values[0] == NULL) ||
                      (values[r] != NULL && strcmp(values[r], values[0]) != 0);
    }
    if (differs) {
        fputs("<tr><td>", file);
        ls_html_text(file, key);
        for (int64_t r = 0; r < n; r++) {
            fputs("</td><td>", file);
            if (values[r] != NULL) ls_html_text(file, values[r]);
        }
        fputs("</td></tr>\n", file);
    }
    for (int64_t r = 0; r < n; r++) free(values[r]);
}

static void write_differences(FILE *file, const char *const *dirs, const ls_history *h, int64_t n) {
    ls_json_doc *docs[LS_REPORT_RUNS_MAX] = {NULL};
    int64_t first = -1;
    void *iterator = NULL;
    ls_node root, child;
    for (int64_t r = 0; r < n; r++) {
        const ls_history_start *last = h[r].n_starts > 0 ? &h[r].starts[h[r].n_starts - 1] : NULL;
        if (last != NULL) (void)ls_json_doc_open(&docs[r], last->config, last->config_bytes, "configuration", NULL);
        if (docs[r] != NULL && first < 0) first = r;
    }
    if (first >= 0) {
        fputs("<h2>What the configurations differ in</h2>\n<table id=\"differences\"><tr><th>key</th>", file);
        for (int64_t r = 0; r < n; r++) {
            fputs("<th>", file);
            ls_html_text(file, dirs[r]);
            fputs("</th>", file);
        }
        fputs("</tr>\n", file);
        root = ls_json_root(docs[first]);
        while (ls_node_next(&root, &iterator, &child)) write_difference(file, docs, n, child.key);
        fputs("</table>\n", file);
    }
    for (int64_t r = 0; r < n; r++) ls_json_doc_free(docs[r]);
}

ls_status ls_report_write_several(FILE *file, const char *const *dirs, const ls_history *h, int64_t n, ls_error *err) {
    LS_ASSERT(n >= 1 && n <= LS_REPORT_RUNS_MAX, "%lld runs", (long long)n);
    ls_html_begin(file, "lockstep runs");
    write_runs(file, dirs, h, n);
    fputs("<h2>Curves</h2>\n", file);
    for (size_t i = 0; i < sizeof charts / sizeof charts[0]; i++) LS_TRY(write_chart(file, i, dirs, h, n, err));
    write_differences(file, dirs, h, n);
    ls_html_end(file);
    return LS_OK;
}
