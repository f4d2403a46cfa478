/* The page of a run: what it was, whether trainer and rollout agreed, curves, completions, every measure. */
#define _POSIX_C_SOURCE 200809L
#include "run/run_report.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/html_out.h"
#include "base/mem.h"
#include "json/json_node.h"

enum { CURVES = 3, SAMPLE_STEPS = 4, SAMPLES_EACH = 3, FAILURES_MAX = 20, GATE_NAMES = 8, TEXT_BYTES_MAX = 4000 };

static const char *const colours[] = {"#1f6fb2", "#b3261e", "#2e7d4f", "#a15c00", "#6a3fb5"};

typedef struct curve {
    const char *name, *label;
} curve;

/* A chart is shown when one of its measures was recorded. */
static const struct {
    const char *title, *y_label;
    curve curves[CURVES];
} charts[] = {
    {"Held-out reward", "reward", {{LS_METRIC_HELD_OUT, "mean"}}},
    {"Held-out loss", "nats", {{LS_METRIC_HELD_OUT_LOSS, "loss"}}},
    {"Reward", "reward", {{LS_METRIC_REWARD, "mean"}}},
    {"Loss", "loss", {{LS_METRIC_LOSS, "loss"}}},
    {"Length of completions", "tokens", {{LS_METRIC_LENGTH, "mean"}}},
    {"Entropy", "nats", {{"loss/entropy", "mean"}, {"entropy", "entropy"}}},
    {"KL",
     "nats",
     {{"loss/reference_kl", "to the reference"}, {"loss/old_k3", "to the weights before the update, k3"}}},
    {"Trainer against rollout: largest difference of a log-probability",
     "nats",
     {{LS_METRIC_MISMATCH "/abs_max", "this run"},
      {LS_METRIC_MISMATCH_BF16 "/abs_max", "in bf16 that varies with the batch"}}},
    {"Trainer against rollout: k3, an estimate of the KL",
     "nats",
     {{LS_METRIC_MISMATCH "/k3", "this run"}, {LS_METRIC_MISMATCH_BF16 "/k3", "in bf16 that varies with the batch"}}},
    {"Trainer against rollout: tokens with the same bits",
     "share of tokens",
     {{LS_METRIC_MISMATCH "/equal_fraction", "this run"},
      {LS_METRIC_MISMATCH_BF16 "/equal_fraction", "in bf16 that varies with the batch"}}},
    {"Clipped tokens", "share of tokens", {{"loss/clip_fraction", "at either bound"}}},
    {"Norm of the gradient", "norm", {{"gradient_norm", "before clipping"}}},
    {"Learning rate", "rate", {{"learning_rate", "rate"}}},
    {"Speed", "tokens/s", {{LS_METRIC_SPEED, "tokens per second"}}},
};

typedef struct summary {
    double first, last, low, high;
    int64_t n; /* finite values */
} summary;

static summary summarise(const double *y, int64_t n) {
    summary s = {0};
    for (int64_t i = 0; y != NULL && i < n; i++) {
        if (!isfinite(y[i])) continue;
        if (s.n == 0) s = (summary){y[i], y[i], y[i], y[i], 0};
        s.last = y[i];
        s.low = fmin(s.low, y[i]);
        s.high = fmax(s.high, y[i]);
        s.n++;
    }
    return s;
}

static void write_time(FILE *file, double time) {
    const time_t seconds = fabs(time) < 1e15 ? (time_t)time : 0;
    struct tm parts;
    char text[64] = "?";
    if (fabs(time) < 1e15 && gmtime_r(&seconds, &parts) != NULL)
        strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S UTC", &parts);
    fputs(text, file);
}

/* ---- what it was ---- */

static void write_head(FILE *file, const char *dir, const ls_history *h) {
    double seconds = 0.0;
    for (int64_t i = 0; i < h->n_steps; i++) seconds += h->seconds[i];
    fputs("<p>", file);
    ls_html_text(file, dir);
    if (h->n_starts > 0) {
        fputs(": ", file);
        ls_html_text(file, h->starts[0].kind);
        fputs(", begun ", file);
        write_time(file, h->starts[0].time);
    }
    if (h->n_steps > 0)
        fprintf(file, ", %" PRId64 " steps from %" PRId64 " to %" PRId64 ", %.1f s in steps", h->n_steps, h->steps[0],
                h->steps[h->n_steps - 1], seconds);
    fputs("</p>\n", file);
    if (h->n_steps == 0) fputs("<p>No step is recorded.</p>\n", file);
}

/* ---- gates ---- */

typedef struct gate_summary {
    const char *name;
    int64_t n, passed, tokens, different, first_failure; /* a step; -1: none */
    double abs_max;
} gate_summary;

/* Counts come from a file, which anybody may have written: sums stay at the largest number. */
static int64_t add_counts(int64_t a, int64_t b) {
    int64_t sum;
    return ls_add_i64(a, b, &sum) ? sum : INT64_MAX;
}

/* Gates of one name; the last place takes all names that find none. */
static int64_t summarise_gates(gate_summary sums[GATE_NAMES], const ls_history *h) {
    int64_t n = 0;
    for (int64_t i = 0; i < h->n_gates; i++) {
        const ls_run_gate *g = &h->gates[i].gate;
        int64_t k = 0;
        while (k < n && strcmp(sums[k].name, g->name) != 0) k++;
        if (k == GATE_NAMES) sums[--k].name = "others";
        if (k == n) sums[n++] = (gate_summary){.name = g->name, .first_failure = -1};
        sums[k].n++;
        sums[k].passed += g->passed;
        sums[k].tokens = add_counts(sums[k].tokens, g->tokens);
        sums[k].different = add_counts(sums[k].different, g->different);
        if (g->abs_max > sums[k].abs_max) sums[k].abs_max = g->abs_max;
        if (!g->passed && sums[k].first_failure < 0) sums[k].first_failure = h->gates[i].step;
    }
    return n;
}

static void write_verdict(FILE *file, const ls_history *h) {
    int64_t passed = 0, tokens = 0, different = 0, first = -1;
    for (int64_t i = 0; i < h->n_gates; i++) {
        passed += h->gates[i].gate.passed;
        tokens = add_counts(tokens, h->gates[i].gate.tokens);
        different = add_counts(different, h->gates[i].gate.different);
        if (!h->gates[i].gate.passed && first < 0) first = h->gates[i].step;
    }
    if (h->n_gates == 0) return;
    fprintf(file, "<div class=\"box%s\"><p>", passed == h->n_gates ? " good" : "");
    if (passed == h->n_gates)
        fprintf(file, "<b>All %" PRId64 " bit checks passed:</b> ", h->n_gates);
    else
        fprintf(file, "<b>%" PRId64 " of %" PRId64 " bit checks failed, the first at step %" PRId64 ":</b> ",
                h->n_gates - passed, h->n_gates, first);
    fprintf(file,
            "%" PRId64 " of %" PRId64
            " tokens differ between trainer and rollout. Before a step's first update its bit check compares the "
            "trainer's log-probability of every drawn token with the one that was recorded when it was drawn.</p>"
            "</div>\n",
            different, tokens);
}

static void write_gates(FILE *file, const ls_history *h) {
    gate_summary sums[GATE_NAMES];
    const int64_t n = summarise_gates(sums, h);
    int64_t shown = 0;
    if (n == 0) return;
    fputs(
        "<h2>Bit checks</h2>\n<table id=\"gates\"><tr><th>of</th><th>steps</th><th>passed</th><th>tokens</th>"
        "<th>differ</th><th>largest |d|</th><th>first failure</th></tr>\n",
        file);
    for (int64_t i = 0; i < n; i++) {
        fputs("<tr><td>", file);
        ls_html_text(file, sums[i].name);
        fprintf(file,
                "</td><td>%" PRId64 "</td><td>%" PRId64 "</td><td>%" PRId64 "</td><td>%" PRId64
                "</td><td>%.6g</td><td>",
                sums[i].n, sums[i].passed, sums[i].tokens, sums[i].different, sums[i].abs_max);
        if (sums[i].first_failure >= 0)
            fprintf(file, "<span class=\"differs\">step %" PRId64 "</span>", sums[i].first_failure);
        fputs("</td></tr>\n", file);
    }
    fputs("</table>\n", file);
    for (int64_t i = 0; i < h->n_gates && shown < FAILURES_MAX; i++) {
        const ls_run_gate *g = &h->gates[i].gate;
        if (g->passed) continue;
        if (shown++ == 0)
            fputs(
                "<p>The first that failed:</p>\n<table id=\"failures\"><tr><th>step</th><th>of</th><th>differ</th>"
                "<th>tokens</th><th>largest |d|</th><th>k1</th><th>k2</th><th>k3</th></tr>\n",
                file);
        fprintf(file, "<tr><td>%" PRId64 "</td><td>", h->gates[i].step);
        ls_html_text(file, g->name);
        fprintf(file,
                "</td><td>%" PRId64 "</td><td>%" PRId64
                "</td><td>%.6g</td><td>%.6g</td><td>%.6g</td><td>%.6g</td></tr>\n",
                g->different, g->tokens, g->abs_max, g->k1, g->k2, g->k3);
    }
    if (shown > 0) fputs("</table>\n", file);
}

/* ---- curves ---- */

/* A measure that is taken every so often is one line through its points, not a row of dots. *made owns it. */
static ls_status thin_out(ls_line *line, double **made, const ls_history *h, const double *y, const double *x,
                          ls_error *err) {
    const int64_t n = summarise(y, h->n_steps).n;
    int64_t k = 0;
    if (n == h->n_steps || 2 * n > h->n_steps) return LS_OK; /* single gaps are shown */
    LS_TRY(ls_array_alloc((void **)made, 2 * n, sizeof **made, "curve", err));
    for (int64_t i = 0; i < h->n_steps; i++) {
        if (!isfinite(y[i])) continue;
        (*made)[k] = x[i];
        (*made)[n + k++] = y[i];
    }
    line->x = *made;
    line->y = *made + n;
    line->n = n;
    return LS_OK;
}

static ls_status write_charts(FILE *file, const ls_history *h, const double *x, ls_error *err) {
    bool any = false;
    ls_status status = LS_OK;
    for (size_t i = 0; i < sizeof charts / sizeof charts[0]; i++) {
        ls_line lines[CURVES];
        double *made[CURVES] = {NULL};
        ls_line_chart chart = {charts[i].title, "step", charts[i].y_label, x, h->n_steps, lines, 0};
        for (int k = 0; k < CURVES && charts[i].curves[k].name != NULL; k++) {
            const double *y = ls_history_series(h, charts[i].curves[k].name);
            if (summarise(y, h->n_steps).n == 0) continue;
            lines[chart.n_lines] = (ls_line){charts[i].curves[k].label, colours[k], y, NULL, 0};
            if ((status = thin_out(&lines[chart.n_lines], &made[chart.n_lines], h, y, x, err)) != LS_OK) break;
            chart.n_lines++;
        }
        if (chart.n_lines > 0) {
            if (!any) fputs("<h2>Curves</h2>\n", file);
            any = true;
            if (ls_line_chart_is_flat(&chart))
                ls_line_chart_write_flat(file, &chart);
            else
                ls_line_chart_write(file, &chart);
        }
        for (int k = 0; k < CURVES; k++) free(made[k]);
    }
    return status;
}

static void write_gate_chart(FILE *file, const ls_history *h, const double *x) {
    gate_summary sums[GATE_NAMES];
    const int64_t n = summarise_gates(sums, h);
    ls_line lines[GATE_NAMES];
    ls_line_chart chart = {"Tokens that differ in the bit check", "step", "tokens", x, h->n_steps, lines, 0};
    for (int64_t i = 0; i < n; i++) {
        char name[256];
        const double *y;
        snprintf(name, sizeof name, "gate/%s/different", sums[i].name);
        y = ls_history_series(h, name);
        if (y != NULL) lines[chart.n_lines++] = (ls_line){sums[i].name, colours[i % 5], y, NULL, 0};
    }
    if (chart.n_lines == 0) return;
    if (ls_line_chart_is_flat(&chart))
        ls_line_chart_write_flat(file, &chart);
    else
        ls_line_chart_write(file, &chart);
}

/* ---- completions ---- */

ls_status ls_report_samples(ls_history_sample **out, int64_t *n, const char *dir, const ls_history *h, ls_error *err) {
    int64_t chosen[SAMPLE_STEPS], n_chosen = 0, n_with = 0, seen = 0;
    for (int64_t i = 0; i < h->n_steps; i++) n_with += h->n_samples[i] > 0;
    /* Of the steps that have samples: the first, the last, and others evenly between. */
    for (int64_t i = 0; i < h->n_steps; i++) {
        if (h->n_samples[i] == 0) continue;
        if (n_with <= SAMPLE_STEPS || seen == n_chosen * (n_with - 1) / (SAMPLE_STEPS - 1))
            chosen[n_chosen++] = h->steps[i];
        seen++;
    }
    return ls_history_samples(out, n, dir, chosen, n_chosen, SAMPLES_EACH, err);
}

static void write_text(FILE *file, const char *text, int64_t bytes) {
    fputs("<pre class=\"text\">", file);
    ls_html_bytes(file, text, bytes < TEXT_BYTES_MAX ? bytes : TEXT_BYTES_MAX);
    fputs("</pre>\n", file);
    if (bytes > TEXT_BYTES_MAX) fprintf(file, "<p class=\"not\">%" PRId64 " more bytes</p>\n", bytes - TEXT_BYTES_MAX);
}

static void write_samples(FILE *file, const ls_history_sample *samples, int64_t n) {
    if (n > 0) fputs("<h2>Completions</h2>\n", file);
    for (int64_t i = 0; i < n; i++) {
        const ls_run_sample *s = &samples[i].sample;
        const bool again =
            i > 0 && samples[i - 1].step == samples[i].step && strcmp(samples[i - 1].sample.id, s->id) == 0;
        if (!again) {
            fprintf(file, "<p>Step %" PRId64 ", <b>", samples[i].step);
            ls_html_text(file, s->id);
            fprintf(file, "</b>, prompt of %" PRId64 " tokens:</p>\n", s->n_prompt);
            write_text(file, s->prompt, s->prompt_bytes);
        }
        fputs("<p>", file);
        if (!isnan(s->reward)) fprintf(file, "reward %.6g, ", s->reward);
        if (!isnan(s->advantage)) fprintf(file, "advantage %.6g, ", s->advantage);
        fprintf(file, "%" PRId64 " tokens, ", s->n_completion);
        ls_html_text(file, s->finish);
        fputs(":</p>\n", file);
        write_text(file, s->completion, s->completion_bytes);
    }
}

/* ---- everything else ---- */

/* The value of a member as people read it. */
static void write_value(FILE *file, const ls_node *node) {
    const char *text;
    char *dumped = NULL;
    int64_t bytes;
    if (ls_node_kind_of(node) == LS_NODE_TEXT && ls_node_text(node, &text, &bytes, NULL) == LS_OK) {
        ls_html_bytes(file, text, bytes);
        return;
    }
    if (ls_node_dump(node, &dumped, NULL) == LS_OK) ls_html_text(file, dumped);
    free(dumped);
}

static bool same_value(const ls_node *a, const ls_node *b) {
    char *x = NULL, *y = NULL;
    const bool same = ls_node_dump(a, &x, NULL) == LS_OK && ls_node_dump(b, &y, NULL) == LS_OK && strcmp(x, y) == 0;
    free(x);
    free(y);
    return same;
}

/* A configuration is one JSON object: a table, of a later start only what it changed. Any other text stands as it is.
 */
static void write_config(FILE *file, const ls_history_start *s, const ls_history_start *before) {
    ls_json_doc *doc = NULL, *old = NULL;
    ls_node root, old_root, child, was;
    void *iterator = NULL;
    if (ls_json_doc_open(&doc, s->config, s->config_bytes, "configuration", NULL) != LS_OK) {
        write_text(file, s->config, s->config_bytes);
        return;
    }
    if (before != NULL) (void)ls_json_doc_open(&old, before->config, before->config_bytes, "configuration", NULL);
    root = ls_json_root(doc);
    if (old != NULL) old_root = ls_json_root(old);
    fputs("<table class=\"config\"><tr><th>key</th><th>value</th></tr>\n", file);
    while (ls_node_next(&root, &iterator, &child)) {
        if (old != NULL && ls_node_get(&old_root, child.key, &was) && same_value(&child, &was)) continue;
        fputs("<tr><td>", file);
        ls_html_text(file, child.key);
        fputs("</td><td>", file);
        write_value(file, &child);
        fputs("</td></tr>\n", file);
    }
    fputs("</table>\n", file);
    ls_json_doc_free(old);
    ls_json_doc_free(doc);
}

static void write_starts(FILE *file, const ls_history *h) {
    if (h->n_starts > 0) fputs("<h2>Configuration</h2>\n", file);
    for (int64_t i = 0; i < h->n_starts; i++) {
        const ls_history_start *s = &h->starts[i], *before = i > 0 ? s - 1 : NULL;
        fputs("<p>", file);
        write_time(file, s->time);
        fputs(", ", file);
        ls_html_text(file, s->program);
        if (s->resumed) fprintf(file, ", resumed behind step %" PRId64, s->kept);
        if (before != NULL && before->config_bytes == s->config_bytes &&
            memcmp(before->config, s->config, (size_t)s->config_bytes) == 0) {
            fputs(", the same configuration</p>\n", file);
            continue;
        }
        fputs(":</p>\n", file);
        write_config(file, s, before);
    }
}

static void write_measures(FILE *file, const ls_history *h) {
    if (h->n_names == 0) return;
    fputs(
        "<h2>Measures</h2>\n<details><summary>All that was recorded</summary>\n<table id=\"measures\"><tr>"
        "<th>measure</th><th>steps</th><th>first</th><th>last</th><th>lowest</th><th>highest</th></tr>\n",
        file);
    for (int64_t i = 0; i < h->n_names; i++) {
        const summary s = summarise(h->values + i * h->n_steps, h->n_steps);
        fputs("<tr><td>", file);
        ls_html_text(file, h->names[i]);
        fprintf(file, "</td><td class=\"n\">%" PRId64 "</td>", s.n);
        if (s.n > 0)
            fprintf(file,
                    "<td class=\"n\">%.6g</td><td class=\"n\">%.6g</td><td class=\"n\">%.6g</td><td "
                    "class=\"n\">%.6g</td>",
                    s.first, s.last, s.low, s.high);
        fputs("</tr>\n", file);
    }
    fputs("</table></details>\n", file);
}

ls_status ls_report_write(FILE *file, const char *dir, const ls_history *h, const ls_history_sample *samples,
                          int64_t n_samples, ls_error *err) {
    double *x = NULL;
    ls_status status;
    LS_TRY_DONE(ls_array_alloc((void **)&x, h->n_steps, sizeof *x, "steps", err));
    for (int64_t i = 0; i < h->n_steps; i++) x[i] = (double)h->steps[i];
    ls_html_begin(file, "lockstep run");
    write_head(file, dir, h);
    write_verdict(file, h);
    LS_TRY_DONE(write_charts(file, h, x, err));
    write_gate_chart(file, h, x);
    write_gates(file, h);
    write_samples(file, samples, n_samples);
    write_starts(file, h);
    write_measures(file, h);
    fputs(
        "<p>d is the trainer's log-probability minus the recorded one of the rollout, in nats. k1, k2 and k3 estimate "
        "the KL divergence by the means of -d, d<sup>2</sup>/2 and e<sup>d</sup> - 1 - d.</p>\n",
        file);
    ls_html_end(file);
done:
    free(x);
    return status;
}
