/* The report on a stack that promises no bits: text, JSON, HTML. */
#define _POSIX_C_SOURCE 200809L
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "base/html_out.h"
#include "diagnose/report/report_parts.h"
#include "diagnose/rounding/inquiry.h"

static void describe_seen(char *text, size_t bytes, const ls_seen *s) {
    int used = 0;
    text[0] = '\0';
    if (s->outcomes.n > 0 || s->n_tokens > 0)
        used = snprintf(text, bytes,
                        "%" PRId64 " of %" PRId64 " sequences, %" PRId64 " of %" PRId64
                        " tokens off, median |d| %.2g, max %.2g%s",
                        s->n_sequences_off, s->n_sequences, s->n_off, s->n_tokens, s->abs_median, s->abs_max,
                        s->spread ? ", all a little" : "");
    if (s->note[0] != '\0' && (size_t)used < bytes)
        snprintf(text + used, bytes - (size_t)used, "%s%s", used > 0 ? "; " : "", s->note);
}

static void print_levers(FILE *file, const ls_trial *trial) {
    ls_levers defaults;
    ls_levers_init(&defaults);
    ls_report_levers(file, trial, &defaults);
    fprintf(file, " --max-tokens %" PRId64 " --temperature %g --seed %" PRIu64 " --logprobs %s --dtype %s --ignore-eos",
            trial->max_tokens, (double)trial->sampling.temperature, trial->sampling.seed,
            trial->logprob_of == LS_LOGPROB_RAW ? "raw" : "processed", ls_dtype_name(trial->dtype));
}

/* What only servers have says nothing of a program. */
static bool is_shown(const ls_foreign *f, int experiment) {
    return f->is_server || !ls_stack_is_of_servers((ls_stack_experiment)experiment);
}

/* A server's decoded values are not those of its prompts, by more than float32 leaves. */
#define SHOWN_FROM 5e-5
static bool has_two_kernels(const ls_foreign *f) { return f->is_server && f->paths[LS_PATH_DECODE].most > SHOWN_FROM; }

static const char *verdict(const ls_sweep *s) {
    const ls_finding *named = ls_foreign_named(s->foreign);
    if (named != NULL) return ls_cause_name(named->cause);
    if (s->different) return LS_REPORT_UNNAMED;
    if (ls_foreign_is_incomplete(s->foreign)) return LS_REPORT_STOPPED;
    return has_two_kernels(s->foreign) ? LS_REPORT_KERNELS : LS_REPORT_ROUNDING;
}

static const char *const path_names[LS_PATHS] = {"prefill", "decode", "cache hit"};

static void print_paths(FILE *file, const ls_foreign *f) {
    for (int k = 0; k < LS_PATHS; k++)
        if (f->paths[k].n > 0)
            fprintf(file,
                    "%s against prefill: median |d| %.2g of %" PRId64
                    " tokens, nine tenths below %.2g, all below %.2g\n",
                    path_names[k], f->paths[k].median, f->paths[k].n, f->paths[k].q90, f->paths[k].most);
    if (f->expected.n > 0)
        fprintf(file,
                "of the checkpoint, orders of addition in bf16 make a median of %.2g and %.2g at most; the "
                "server's values of prompts are %.2g away from ours in float32\n",
                f->expected.median, f->expected.most, f->expected.apart);
    if (f->convention[0] != '\0') fprintf(file, "convention: %s\n", f->convention);
}

/* What a clean verdict is worth, and what to do with what is left. */
static void print_kernels(FILE *file, const ls_foreign *f) {
    fprintf(file,
            "\n%s: median |d| %.2g, at most %.2g%s\nThis much of a mismatch between rollout and training is what "
            "corrections (TIS and its kin) are for. A mode of the server\nthat is invariant to the batch takes it "
            "away where the model has one; lockstep serve has none of it.\n",
            LS_REPORT_KERNELS, f->paths[LS_PATH_DECODE].median, f->paths[LS_PATH_DECODE].most,
            f->expected.n > 0 ? "; it is what this checkpoint has in bf16"
                              : "; with --model and the checkpoint it is held against what that model has");
}

static void print_floor(FILE *file, const ls_foreign *f) {
    if (f->is_server) print_paths(file, f);
    fprintf(file, "floor: median |d| %.2g of %" PRId64 " tokens alone, nine tenths below %.2g, all below %.2g\n",
            f->floor, f->floor_tokens, f->floor_q90, f->floor_max);
    fprintf(file, "limit: a token is off from |d| %.2g on\n", f->limit);
    if (f->repeat >= 0.0) fprintf(file, "the same request twice: %.2g at most\n", f->repeat);
    if (f->bf16_size > 0.0)
        fprintf(file, "bf16 weights, activations and keys would make a median of %.2g\n", f->bf16_size);
    if (f->no_reference[0] != '\0')
        fprintf(file, "explanations of the records alone were tried, none of the model: %s\n", f->no_reference);
    for (int64_t i = 0; i < f->n_best; i++)
        fprintf(file, "%s: %s; the median |d| is %.2g then\n", f->best[i].harmless ? "rounding" : "explained",
                f->best[i].what, f->best[i].median);
}

static void print_findings(FILE *file, const ls_sweep *s) {
    const ls_foreign *f = s->foreign;
    const ls_finding *named = ls_foreign_named(f);
    const ls_cause_row *row;
    if (f->found.n > 0) fprintf(file, "\ncauses, best first\n");
    ls_report_findings(file, &f->found);
    for (int64_t i = 0; i < f->found.n; i++)
        if (f->found.of[i].doubt > 0.0)
            fprintf(file, "  beside its control with other texts, \"%s\" keeps a doubt of %.2g\n",
                    ls_cause_name(f->found.of[i].cause), f->found.of[i].doubt);
    if (f->rival != LS_CAUSE_NONE) {
        fprintf(file, "\ntwo causes fit equally well and none is named: %s, %s\n", ls_cause_name(f->found.of[0].cause),
                ls_cause_name(f->rival));
        return;
    }
    if (named == NULL) {
        fprintf(file, "\nno cause reaches %.1f; what differs and what does not stands above\n", LS_NAMED);
        return;
    }
    row = ls_cause_of(named->cause);
    fprintf(file, "\nCAUSE: %s\n  %s\n  look at    %s\n  confidence %.2f\n  seen       %s\n",
            ls_cause_name(named->cause), row->text, row->look, named->confidence, named->evidence);
    if (f->is_server && (named->cause == LS_CAUSE_STALE_SLOT || named->cause == LS_CAUSE_NOT_REPEATABLE))
        fputs(
            "  show it    start the server anew and send the last request below several times: each of its values must "
            "stay what it is\n",
            file);
}

void ls_foreign_print(FILE *file, const ls_sweep *s) {
    const ls_foreign *f = s->foreign;
    char text[LS_NOTE_BYTES + 200];
    if (f->is_server)
        fprintf(
            file,
            "%s against itself: what it records while it decodes, and its values of the same tokens as a prompt\n\n",
            s->opts.model);
    else
        fprintf(file,
                "%s, %s activations; the suspect promises no bits, so effects are measured against its rounding\n\n",
                s->opts.model, ls_dtype_name(s->opts.dtype));
    print_floor(file, f);
    fprintf(file, "\n%-20s %-10s %s\n", "experiment", "verdict", "what is moved: what is seen");
    for (int i = 0; i < LS_STACK_EXPERIMENTS; i++) {
        if (!is_shown(f, i)) continue;
        describe_seen(text, sizeof text, &f->seen[i]);
        fprintf(file, "%-20s %-10s %s%s%s\n", ls_stack_experiment_name((ls_stack_experiment)i),
                ls_look_name(f->seen[i].look), ls_stack_experiment_text((ls_stack_experiment)i, f->is_server),
                text[0] != '\0' ? ": " : "", text);
    }
    if (f->out_of_time)
        fprintf(file,
                "\n%" PRId64 " of %" PRId64
                " experiments were run; no time or no requests were left for the others; --seconds%s gives more\n",
                f->n_tried, f->n_tried + f->n_untried, f->is_server ? ", --max-requests or --max-tokens" : "");
    if (!s->different) {
        if (has_two_kernels(f) && !ls_foreign_is_incomplete(f)) print_kernels(file, f);
        fprintf(file, "\n%s: |d| at most %.2g; %" PRId64 " trials, %" PRId64 " sequences (%.1f s)\n", verdict(s),
                f->floor_max, s->n_trials, s->n_sequences, s->seconds);
        return;
    }
    print_findings(file, s);
    ls_report_bounds(file, s);
    if (s->n_repro > 0) {
        fprintf(file,
                "\nsmallest requests that still fail (%" PRId64 " of %" PRId64 " prompts of %s, %" PRId64
                " trials%s)\n",
                s->n_repro, s->repro_from, ls_stack_experiment_name(f->repro_of), s->repro_trials,
                f->repro_shown ? ", seen again" : "");
        if (s->repro_text != NULL) {
            fputs(s->repro_text, file);
        } else {
            ls_sweep_repro(file, s);
            fprintf(file, "  SUSPECT generate --model %s --prompts FILE --out RECORDS", s->opts.model);
            print_levers(file, &s->repro_trial);
            fputc('\n', file);
        }
    }
    fprintf(file, "\n%" PRId64 " trials, %" PRId64 " sequences (%.1f s)\n", s->n_trials, s->n_sequences, s->seconds);
}

static void write_paths(ls_json_out *json, const ls_foreign *f) {
    ls_json_begin_array(json, "paths");
    for (int k = 0; k < LS_PATHS; k++) {
        ls_json_begin_object(json, NULL);
        ls_json_string(json, "name", path_names[k]);
        ls_json_int(json, "tokens", f->paths[k].n);
        ls_json_double(json, "median", f->paths[k].median);
        ls_json_double(json, "q90", f->paths[k].q90);
        ls_json_double(json, "max", f->paths[k].most);
        ls_json_end_object(json);
    }
    ls_json_end_array(json);
    ls_json_begin_object(json, "expected");
    ls_json_int(json, "tokens", f->expected.n);
    ls_json_double(json, "median", f->expected.median);
    ls_json_double(json, "max", f->expected.most);
    ls_json_double(json, "apart", f->expected.apart);
    ls_json_end_object(json);
    ls_json_string_or_null(json, "convention", f->convention[0] != '\0' ? f->convention : NULL);
}

void ls_foreign_write(ls_json_out *json, const ls_sweep *s) {
    const ls_foreign *f = s->foreign;
    const ls_finding *named = ls_foreign_named(f);
    ls_json_begin_object(json, NULL);
    ls_json_bool(json, "different", s->different);
    ls_json_string(json, "verdict", verdict(s));
    ls_json_string(json, "dtype", ls_dtype_name(s->opts.dtype));
    ls_json_string_or_null(json, "cause", named != NULL ? ls_cause_name(named->cause) : NULL);
    ls_json_double(json, "confidence", f->found.n > 0 ? f->found.of[0].confidence : 0.0);
    ls_report_ranked_json(json, &f->found, true);
    ls_json_begin_object(json, "floor");
    ls_json_double(json, "median", f->floor);
    ls_json_double(json, "q90", f->floor_q90);
    ls_json_double(json, "max", f->floor_max);
    ls_json_double(json, "limit", f->limit);
    ls_json_int(json, "tokens", f->floor_tokens);
    ls_json_double(json, "repeat", f->repeat);
    ls_json_end_object(json);
    if (f->is_server) write_paths(json, f);
    ls_json_begin_array(json, "experiments");
    for (int i = 0; i < LS_STACK_EXPERIMENTS; i++) {
        const ls_seen *o = &f->seen[i];
        if (!is_shown(f, i)) continue;
        ls_json_begin_object(json, NULL);
        ls_json_string(json, "name", ls_stack_experiment_name((ls_stack_experiment)i));
        ls_json_string(json, "verdict", ls_look_name(o->look));
        ls_report_counts_json(json, o->n_sequences, o->n_sequences_off, o->n_tokens, o->n_off);
        ls_json_double(json, "median_abs", o->abs_median);
        ls_json_double(json, "max_abs", o->abs_max);
        if (o->note[0] != '\0') ls_json_string(json, "note", o->note);
        ls_json_end_object(json);
    }
    ls_json_end_array(json);
    ls_report_bounds_json(json, s);
    ls_report_repro_json(json, s);
    ls_json_bool(json, "repro_shown", f->repro_shown);
    if (s->repro_text != NULL) ls_json_string(json, "repro_commands", s->repro_text);
    ls_json_int(json, "trials", s->n_trials);
    ls_json_int(json, "sequences", s->n_sequences);
    ls_json_double(json, "seconds", s->seconds);
    ls_json_end_object(json);
    ls_json_newline(json);
}

/* Median and largest |d| of every experiment on a logarithmic scale, with the limit. */
static void draw_effects(FILE *file, const ls_foreign *f) {
    const double low = 1e-8, high = 10.0, width = 420.0;
    fputs(
        "<h2>Effects</h2>\n<table><tr><th>experiment</th><th>verdict</th><th>|d|: median to largest, 1e-8 to 10; "
        "the line is the limit</th><th>seen</th></tr>\n",
        file);
    for (int i = 0; i < LS_STACK_EXPERIMENTS; i++) {
        const ls_seen *s = &f->seen[i];
        const double limit = width * log(f->limit / low) / log(high / low);
        char text[LS_NOTE_BYTES + 200];
        if (!is_shown(f, i)) continue;
        describe_seen(text, sizeof text, s);
        fprintf(file, "<tr><td>%s</td><td>%s</td><td>", ls_stack_experiment_name((ls_stack_experiment)i),
                ls_look_name(s->look));
        if (s->n_tokens > 0) {
            const double a = width * fmax(log(fmax(s->abs_median, low) / low) / log(high / low), 0.0);
            const double b = width * fmin(log(fmax(s->abs_max, low) / low) / log(high / low), 1.0);
            fprintf(file,
                    "<svg class=\"bar\" viewBox=\"0 0 %g 12\" preserveAspectRatio=\"none\"><rect x=\"%.1f\" y=\"3\" "
                    "width=\"%.1f\" height=\"6\" fill=\"%s\"/>"
                    "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"0\" y2=\"12\" stroke=\"#444\"/></svg>",
                    width, a, fmax(b - a, 2.0), s->look == LS_LOOK_OFF ? "#b3261e" : "#2e7d4f", limit, limit);
        }
        fputs("</td><td>", file);
        ls_html_text(file, text);
        fputs("</td></tr>\n", file);
    }
    fputs("</table>\n", file);
}

/* The lines of the text report. */
static void html_floor(FILE *file, const ls_foreign *f) {
    char *text = NULL;
    size_t bytes = 0;
    FILE *lines = open_memstream(&text, &bytes);
    if (lines != NULL) print_floor(lines, f);
    if (lines != NULL && fclose(lines) == 0) {
        fputs("<pre>", file);
        ls_html_text(file, text);
        fputs("</pre>\n", file);
    }
    free(text);
}

void ls_foreign_html(FILE *file, const ls_sweep *s) {
    const ls_foreign *f = s->foreign;
    const ls_finding *named = ls_foreign_named(f);
    fprintf(file, "<div class=\"box%s\">", s->different ? "" : " good");
    ls_html_cause(file, verdict(s), named != NULL ? ls_cause_of(named->cause)->text : NULL,
                  named != NULL ? ls_cause_of(named->cause)->look : NULL);
    fputs("</div>\n", file);
    html_floor(file, f);
    ls_report_findings_html(file, &f->found);
    for (int64_t i = 0; i < s->n_bounds; i++)
        fprintf(file, "<p>Threshold: %s <b>%" PRId64 "</b> and %s.</p>\n", ls_bounded_name(s->bounds[i].lever),
                s->bounds[i].value, s->bounds[i].from_above ? "below" : "above");
    draw_effects(file, f);
    if (s->n_repro > 0) {
        fputs("<h2>Smallest requests</h2>\n<pre>", file);
        if (s->repro_text != NULL)
            ls_html_text(file, s->repro_text);
        else
            ls_sweep_repro(file, s);
        fputs("</pre>\n", file);
    }
}
