/* A sweep as one HTML page that stands alone: the verdict, the plots, what was tried, the smallest requests. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/html_out.h"
#include "diagnose/rounding/inquiry.h"

static const char *const colours[] = {"#1f6fb2", "#2e7d4f", "#a15c00", "#6a3fb5", "#b3261e"};

static double largest_point(const double *y, int64_t n) {
    double most = 0.0;
    for (int64_t i = 0; i < n; i++)
        if (isfinite(y[i]) && y[i] > most) most = y[i];
    return most;
}

static void write_verdict(FILE *file, const ls_sweep *s) {
    const ls_ranked *named = ls_sweep_cause(s);
    fprintf(file, "<div class=\"box%s\">", s->different ? "" : " good");
    if (!s->different) {
        fprintf(file, "<p><b>No difference.</b> %" PRId64 " trials, %" PRId64 " sequences, 0 differing bits.</p>",
                s->n_trials, s->n_sequences);
    } else if (named == NULL) {
        fputs("<p><b>No known cause fits all that was seen.</b> The experiments below tell which levers change it.</p>",
              file);
    } else {
        ls_html_cause(file, ls_cause_name(named->cause), ls_cause_bits_text(named->cause),
                      ls_cause_bits_look(named->cause));
    }
    for (int64_t i = 0; i < s->n_wraps; i++) {
        const ls_wrap *w = &s->wraps[i];
        char text[64];
        if (!w->fits) continue;
        ls_wrap_describe(text, sizeof text, w);
        fprintf(file,
                "<p>%s, 32-bit product (%s): first bad %s <b>%" PRId64 "</b>, <b>%.1f %%</b> of %" PRId64 " %ss.</p>",
                w->tensor->name, text, ls_bounded_name(w->tensor->id), w->first_bad, 100.0 * w->share, w->tensor->n,
                ls_bounded_name(w->tensor->id));
    }
    fputs("</div>\n", file);
}

static void write_bounds(FILE *file, const ls_sweep *s) {
    if (s->n_bounds == 0) return;
    fputs(
        "<h2>Thresholds</h2>\n<table><tr><th>lever</th><th>differs</th><th>clean</th><th>activations</th>"
        "<th>trials</th></tr>\n",
        file);
    for (int64_t i = 0; i < s->n_bounds; i++) {
        const ls_bound *b = &s->bounds[i];
        fprintf(file,
                "<tr><td>%s</td><td>%" PRId64 " and %s</td><td>%" PRId64 "</td><td>%s</td><td>%" PRId64 "</td></tr>\n",
                ls_bounded_name(b->lever), b->value, b->from_above ? "below" : "above",
                b->from_above ? b->value + 1 : b->value - 1, ls_dtype_name(b->dtype), b->n_trials);
    }
    fputs("</table>\n", file);
    if (s->n_wraps == 0) return;
    fputs(
        "<p>Where a 32-bit product of id and stride stops fitting, for every pooled tensor:</p>\n<table><tr>"
        "<th>tensor</th><th>type</th><th>unit</th><th>stride</th><th>first bad</th><th>share</th><th></th></tr>\n",
        file);
    for (int64_t i = 0; i < s->n_wraps; i++) {
        const ls_wrap *w = &s->wraps[i];
        fprintf(file,
                "<tr><td>%s</td><td>%s</td><td>%s</td><td class=\"n\">%" PRId64 "</td><td class=\"n\">%" PRId64
                "</td><td class=\"n\">%.1f %%</td><td>%s</td></tr>\n",
                w->tensor->name, w->is_signed ? "int32" : "uint32", w->in_bytes ? "bytes" : "elements", w->stride,
                w->first_bad, 100.0 * w->share, w->fits ? "<b>fits</b>" : "");
    }
    fputs("</table>\n", file);
}

static void write_series(FILE *file, const ls_sweep *s) {
    double high = 0.0;
    if (s->n_series == 0) return;
    fprintf(file,
            "<h2>Mismatch by step</h2>\n<p>Steps of %" PRId64 " prompts through one engine with %" PRId64
            " slots in rotation, for each number of rollouts per prompt.</p>\n",
            s->series[0].n_prompts, s->opts.far_slots);
    for (int64_t i = 0; i < s->n_series; i++)
        high = fmax(high, largest_point(s->series[i].step_abs, s->series[i].n_steps));
    for (int64_t i = 0; i < s->n_series; i++) {
        const ls_series *x = &s->series[i];
        double step[LS_STEPS_MAX];
        char title[160];
        for (int64_t t = 0; t < x->n_steps; t++) step[t] = (double)(t + 1);
        snprintf(title, sizeof title, "%" PRId64 " rollouts per prompt: %" PRId64 " of %" PRId64 " sequences differ",
                 x->rollouts, x->n_sequences_different, x->n_sequences);
        const ls_chart chart = {.kind = LS_CHART_BARS,
                                .title = title,
                                .x_label = "step",
                                .y_label = "mean |d|",
                                .x = step,
                                .y = x->step_abs,
                                .n = x->n_steps,
                                .x_low = 0.5,
                                .x_high = (double)s->series[0].n_steps + 0.5,
                                .y_high = high,
                                .mark = x->onset >= 0.0 ? x->onset + 0.5 : (double)NAN,
                                .mark_label = "first bad sequence",
                                .colour = colours[i % 5]};
        ls_chart_write(file, &chart);
    }
    fputs(
        "<table><tr><th>rollouts</th><th>steps</th><th>sequences</th><th>differ</th><th>first bad sequence</th>"
        "<th>onset, steps</th><th>period, steps</th></tr>\n",
        file);
    for (int64_t i = 0; i < s->n_series; i++) {
        const ls_series *x = &s->series[i];
        fprintf(file, "<tr><td>%" PRId64 "</td><td>%" PRId64 "</td><td>%" PRId64 "</td><td>%" PRId64 "</td>",
                x->rollouts, x->n_steps, x->n_sequences, x->n_sequences_different);
        if (x->first_bad >= 0)
            fprintf(file, "<td>%" PRId64 "</td><td>%.2f</td>", x->first_bad, x->onset);
        else
            fputs("<td>none</td><td></td>", file);
        if (isnan(x->period))
            fputs("<td></td></tr>\n", file);
        else
            fprintf(file, "<td>%.2f</td></tr>\n", x->period);
    }
    fputs("</table>\n", file);
    if (!isnan(s->onset_slope))
        fprintf(file,
                "<p>Slope of log onset on log rollouts: <b>%.3f</b>; of log period: <b>%.3f</b>. A slope of &minus;1 "
                "says that "
                "the number of sequences counts, a resource that fills up, not the training step.</p>\n",
                s->onset_slope, s->period_slope);
}

static double threshold_of(const ls_sweep *s) {
    for (int64_t i = 0; i < s->n_bounds; i++)
        if (s->bounds[i].lever == LS_BOUNDED_SLOT) return (double)s->bounds[i].value;
    return (double)NAN;
}

static void write_slots(FILE *file, const ls_sweep *s) {
    double x[LS_SLOT_BINS], y[LS_SLOT_BINS], px[LS_PROBES_MAX], py[LS_PROBES_MAX];
    const double threshold = threshold_of(s);
    char label[32] = "";
    int64_t n = 0;
    if (!isnan(threshold)) snprintf(label, sizeof label, "slot %.0f", threshold);
    for (int i = 0; i < LS_SLOT_BINS; i++) {
        if (s->slot_n[i] == 0) continue;
        x[n] = ((double)i + 0.5) * (double)s->opts.far_slots / LS_SLOT_BINS;
        y[n++] = s->slot_abs[i];
    }
    if (n == 0 && s->n_probes == 0) return;
    fputs("<h2>Mismatch by slot</h2>\n", file);
    if (n > 0) {
        const ls_chart chart = {.kind = LS_CHART_BARS,
                                .title = "all sequences of the series",
                                .x_label = "slot",
                                .y_label = "mean |d|",
                                .x = x,
                                .y = y,
                                .n = n,
                                .x_low = 0.0,
                                .x_high = (double)s->opts.far_slots,
                                .y_high = largest_point(y, n),
                                .mark = threshold,
                                .mark_label = label,
                                .colour = colours[0]};
        ls_chart_write(file, &chart);
    }
    for (int64_t i = 0; i < s->n_probes; i++) {
        px[i] = (double)s->probes[i].slot;
        py[i] = s->probes[i].abs_mean;
    }
    if (s->n_probes > 0) {
        const ls_chart chart = {.kind = LS_CHART_POINTS,
                                .title = "one sequence placed at chosen slots",
                                .x_label = "slot",
                                .y_label = "mean |d|",
                                .x = px,
                                .y = py,
                                .n = s->n_probes,
                                .x_low = 0.0,
                                .x_high = (double)s->opts.far_slots,
                                .y_high = largest_point(py, s->n_probes),
                                .mark = threshold,
                                .mark_label = label,
                                .colour = colours[4]};
        ls_chart_write(file, &chart);
    }
}

/* The experiment that shows the cause, by place in the completion. */
static void write_positions(FILE *file, const ls_sweep *s) {
    const ls_observation *o = &s->seen[s->repro_of];
    double x[LS_POSITIONS], y[LS_POSITIONS];
    char title[160];
    int64_t n = 0;
    for (int i = 0; i < LS_POSITIONS; i++) {
        if (o->position_n[i] == 0) continue;
        x[n] = (double)(i + 1);
        y[n++] = o->position_abs[i];
    }
    if (!s->different || n == 0) return;
    snprintf(title, sizeof title, "%s", ls_experiment_text(s->repro_of));
    const ls_chart chart = {.kind = LS_CHART_BARS,
                            .title = title,
                            .x_label = "token of the completion",
                            .y_label = "mean |d|",
                            .x = x,
                            .y = y,
                            .n = n,
                            .x_low = 0.5,
                            .x_high = (double)n + 0.5,
                            .y_high = largest_point(y, n),
                            .mark = (double)NAN,
                            .mark_label = "",
                            .colour = colours[0]};
    fputs("<h2>Mismatch by position</h2>\n", file);
    ls_chart_write(file, &chart);
}

static void write_experiments(FILE *file, const ls_sweep *s) {
    fputs(
        "<h2>Experiments</h2>\n<table><tr><th>experiment</th><th>what is moved</th><th>verdict</th><th>structure</th>"
        "</tr>\n",
        file);
    for (int i = 0; i < LS_EXPERIMENTS; i++) {
        const char *verdict = ls_verdict_name(s->seen[i].verdict);
        char text[LS_NOTE_BYTES + 64];
        ls_observation_describe(text, sizeof text, &s->seen[i]);
        fprintf(file, "<tr><td>%s</td><td>%s</td><td class=\"%s\">%s</td><td>", ls_experiment_name((ls_experiment)i),
                ls_experiment_text((ls_experiment)i), verdict, verdict);
        ls_html_text(file, text);
        fputs("</td></tr>\n", file);
    }
    fputs("</table>\n", file);
}

static void write_causes(FILE *file, const ls_sweep *s) {
    if (!s->different) return;
    fputs("<h2>Causes</h2>\n<table><tr><th>score</th><th>cause</th><th>against it</th></tr>\n", file);
    for (int64_t i = 0; i < s->n_ranked && s->ranked[i].score > 0.0; i++) {
        const ls_ranked *r = &s->ranked[i];
        fprintf(file, "<tr><td>%.3f</td><td>%s</td><td>", r->score, ls_cause_name(r->cause));
        for (int e = 0; e < LS_EXPERIMENTS; e++)
            if (r->missed >> e & 1) fprintf(file, "%s ", ls_experiment_name((ls_experiment)e));
        fputs("</td></tr>\n", file);
    }
    fputs("</table>\n", file);
}

static void write_repro(FILE *file, const ls_sweep *s) {
    if (s->n_repro == 0) return;
    fprintf(file,
            "<h2>Smallest requests that still fail</h2>\n<p>%" PRId64 " of %" PRId64
            " prompts of experiment %s, %" PRId64 " tokens generated, found in %" PRId64 " trials.</p>\n<pre>",
            s->n_repro, s->repro_from, ls_experiment_name(s->repro_of), s->repro_trial.max_tokens, s->repro_trials);
    ls_sweep_repro(file, s);
    for (int64_t i = 0; i < ls_levers_count(); i++) {
        char value[64];
        ls_lever_format(value, sizeof value, &s->repro_trial.levers, i);
        fprintf(file, "%s%s %s", i == 0 ? "\n" : i % 6 == 0 ? "\n" : ", ", ls_lever_name(i), value);
    }
    fputs("</pre>\n", file);
}

void ls_sweep_html(FILE *file, const ls_sweep *s) {
    ls_html_begin(file, s->foreign != NULL && s->foreign->is_server ? "lockstep probe" : "lockstep sweep");
    fputs("<p>", file);
    ls_html_text(file, s->opts.model);
    fprintf(file, ": %" PRId64 " trials, %" PRId64 " sequences", s->n_trials, s->n_sequences);
    if (s->foreign == NULL) fprintf(file, ", %" PRId64 " differing bits", s->n_bits);
    fprintf(file, ", seed %" PRIu64 ", %.1f s</p>\n", s->opts.seed, s->seconds);
    if (s->foreign != NULL) {
        ls_foreign_html(file, s);
        ls_html_end(file);
        return;
    }
    write_verdict(file, s);
    write_series(file, s);
    write_slots(file, s);
    write_positions(file, s);
    write_bounds(file, s);
    write_repro(file, s);
    write_causes(file, s);
    write_experiments(file, s);
    fputs("<p>d is the trainer's log-probability minus the recorded one; a difference is one of any bit.</p>\n", file);
    ls_html_end(file);
}
