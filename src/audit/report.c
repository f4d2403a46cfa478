/* Writers of an audit. */
#include "audit/report.h"

#include <string.h>

#include "audit/kernel_source.h"
#include "base/html_out.h"
#include "json/json_out.h"

static const char *width_name(const ls_audit_finding *f) {
    if (f->bits == 16) return f->is_signed ? "16-bit signed" : "16-bit unsigned";
    return f->is_signed ? "32-bit signed" : "32-bit unsigned";
}

static void write_finding(FILE *file, const ls_audit_finding *f, int64_t n_alike) {
    const int64_t even = ls_audit_even(f);
    char a[LS_WIDE_TEXT_MAX], b[LS_WIDE_TEXT_MAX], c[LS_WIDE_TEXT_MAX];
    fprintf(file, "\n%s:%lld: %s\n", f->file, (long long)f->line, f->kernel);
    fprintf(file, "  %s is %s and reaches %s", f->expression, width_name(f), ls_wide_text(a, f->high));
    fprintf(file, "%s\n", f->is_declared ? "" : " in the ranges of its types");
    if (f->made_by[0] != '\0')
        fprintf(file, "  made by %s on line %lld, taken by %s", f->made_by, (long long)f->made_line, f->op);
    else
        fprintf(file, "  taken by %s", f->op);
    if (f->source > 0) fprintf(file, ", line %d of the source", f->source);
    fprintf(file, "; first of %lld accesses: %s on line %lld\n", (long long)f->n_accesses, f->access,
            (long long)f->access_line);
    if (f->share >= 1.0 && f->lever_high == f->lever_low)
        fprintf(file, "  no value alone keeps it within its type\n");
    else
        fprintf(file, "  lever %s in %s..%s: first bad value %s, %.1f %% of the range\n", f->lever,
                ls_wide_text(a, f->lever_low), ls_wide_text(b, f->lever_high), ls_wide_text(c, f->first),
                100.0 * f->share);
    if (even > 0 && !f->is_declared) fprintf(file, "  wraps once every value in it may reach %lld\n", (long long)even);
    if (n_alike > 0) fprintf(file, "  the same %lld times more in this kernel\n", (long long)n_alike);
}

/* A line for every kernel with a finding, in the order of its worst. */
static void write_kernels(FILE *file, const ls_audit *audit, const ls_audit_order *order) {
    if (audit->n_findings > 0) fprintf(file, "\n");
    for (int64_t i = 0; i < audit->n_findings; i++) {
        const ls_audit_finding *f = &audit->findings[order[i].finding];
        const long long n = order[i].of_kernel;
        if (n == 0) continue; /* its line stands above */
        fprintf(file, "%s: %lld finding%s, worst %s%s\n", f->kernel, n, n == 1 ? "" : "s", f->expression,
                f->is_declared ? "" : " (ranges of types)");
    }
}

static void write_summary(FILE *file, const ls_audit *audit) {
    fprintf(
        file,
        "files       %lld\nkernels     %lld, %lld instructions\naccesses    %lld: %lld exact, %lld wrap, %lld unknown\n"
        "findings    %lld\n",
        (long long)audit->n_files, (long long)audit->n_kernels, (long long)audit->n_instructions,
        (long long)audit->n_accesses, (long long)audit->n_exact, (long long)audit->n_wraps, (long long)audit->n_unknown,
        (long long)audit->n_findings);
}

void ls_audit_write_text(FILE *file, const ls_audit *audit, const ls_audit_order *order, bool with_unknown) {
    write_summary(file, audit);
    write_kernels(file, audit, order);
    for (int64_t i = 0; i < audit->n_findings; i++) {
        const ls_audit_finding *f = &audit->findings[order[i].finding];
        int64_t n = 0;
        while (i + 1 < audit->n_findings && ls_audit_alike(f, &audit->findings[order[i + 1].finding])) n++, i++;
        write_finding(file, f, n);
    }
    if (audit->n_left_out > 0) fprintf(file, "\n%lld more findings are not listed\n", (long long)audit->n_left_out);
    for (int64_t i = 0; with_unknown && i < audit->n_unknowns; i++) {
        const ls_audit_unknown *u = &audit->unknowns[i];
        fprintf(file, "\n%s:%lld: %s: unknown %s\n  %s\n", u->file, (long long)u->line, u->kernel, u->access,
                u->reason);
    }
    if (audit->n_unknown > audit->n_unknowns && with_unknown)
        fprintf(file, "\n%lld more unknown accesses are not listed\n",
                (long long)(audit->n_unknown - audit->n_unknowns));
}

/* Numbers past 64 bits are text: no reader of JSON would keep them. */
static void json_wide(ls_json_out *json, const char *key, ls_wide value) {
    char text[LS_WIDE_TEXT_MAX];
    if (value >= INT64_MIN && value <= INT64_MAX)
        ls_json_int(json, key, (int64_t)value);
    else
        ls_json_string(json, key, ls_wide_text(text, value));
}

static void json_finding(ls_json_out *json, const ls_audit_finding *f) {
    char source[LS_KERNEL_SOURCE_MAX];
    ls_json_begin_object(json, NULL);
    ls_json_string(json, "file", f->file);
    ls_json_string(json, "kernel", f->kernel);
    ls_json_string(json, "source_kernel", ls_kernel_source(source, f->kernel));
    ls_json_int(json, "line", f->line);
    ls_json_int(json, "source_line", f->source);
    ls_json_string(json, "expression", f->expression);
    ls_json_int(json, "bits", f->bits);
    ls_json_bool(json, "signed", f->is_signed);
    json_wide(json, "largest", f->high);
    ls_json_string(json, "taken_by", f->op);
    ls_json_string(json, "made_by", f->made_by);
    ls_json_int(json, "made_line", f->made_line);
    ls_json_string(json, "access", f->access);
    ls_json_int(json, "access_line", f->access_line);
    ls_json_int(json, "accesses", f->n_accesses);
    ls_json_string(json, "lever", f->lever);
    json_wide(json, "lever_low", f->lever_low);
    json_wide(json, "lever_high", f->lever_high);
    json_wide(json, "first_bad", f->first);
    ls_json_int(json, "even", ls_audit_even(f));
    ls_json_bool(json, "grid_alone", ls_audit_is_grid(f));
    ls_json_double(json, "share", f->share);
    ls_json_bool(json, "declared", f->is_declared);
    ls_json_int(json, "scale_bytes", f->scale);
    ls_json_end_object(json);
}

void ls_audit_write_json(FILE *file, const ls_audit *audit, const ls_audit_order *order) {
    ls_json_out json;
    ls_json_init(&json, file);
    ls_json_begin_object(&json, NULL);
    ls_json_int(&json, "files", audit->n_files);
    ls_json_int(&json, "kernels", audit->n_kernels);
    ls_json_int(&json, "instructions", audit->n_instructions);
    ls_json_int(&json, "accesses", audit->n_accesses);
    ls_json_int(&json, "exact", audit->n_exact);
    ls_json_int(&json, "wrap", audit->n_wraps);
    ls_json_int(&json, "unknown", audit->n_unknown);
    ls_json_begin_array(&json, "findings");
    for (int64_t i = 0; i < audit->n_findings; i++) json_finding(&json, &audit->findings[order[i].finding]);
    ls_json_end_array(&json);
    ls_json_begin_array(&json, "unknown_accesses");
    for (int64_t i = 0; i < audit->n_unknowns; i++) {
        const ls_audit_unknown *u = &audit->unknowns[i];
        ls_json_begin_object(&json, NULL);
        ls_json_string(&json, "file", u->file);
        ls_json_string(&json, "kernel", u->kernel);
        ls_json_int(&json, "line", u->line);
        ls_json_string(&json, "access", u->access);
        ls_json_string(&json, "reason", u->reason);
        ls_json_end_object(&json);
    }
    ls_json_end_array(&json);
    ls_json_end_object(&json);
    ls_json_newline(&json);
}

static void cell(FILE *file, const char *text) {
    fprintf(file, "<td>");
    ls_html_text(file, text);
    fprintf(file, "</td>");
}

static void html_finding(FILE *file, const ls_audit_finding *f) {
    char line[96], a[LS_WIDE_TEXT_MAX], b[LS_WIDE_TEXT_MAX];
    fprintf(file, "<tr>");
    cell(file, f->kernel);
    cell(file, f->expression);
    cell(file, width_name(f));
    cell(file, f->lever);
    snprintf(line, sizeof line, "%s..%s", ls_wide_text(a, f->lever_low), ls_wide_text(b, f->lever_high));
    cell(file, line);
    cell(file, ls_wide_text(a, f->first));
    snprintf(line, sizeof line, "%.1f %%", 100.0 * f->share);
    cell(file, line);
    cell(file, f->is_declared ? "declared" : "types");
    fprintf(file, "<td>");
    ls_html_text(file, f->file);
    fprintf(file, ":%lld</td></tr>\n", (long long)f->line);
}

void ls_audit_write_html(FILE *file, const ls_audit *audit, const ls_audit_order *order) {
    ls_html_begin(file, "Audit of index widths");
    fprintf(file, "<p>%lld kernels, %lld accesses: %lld exact, %lld wrap, %lld unknown. %lld findings.</p>\n",
            (long long)audit->n_kernels, (long long)audit->n_accesses, (long long)audit->n_exact,
            (long long)audit->n_wraps, (long long)audit->n_unknown, (long long)audit->n_findings);
    fprintf(file,
            "<table><tr><th>kernel</th><th>expression</th><th>width</th><th>lever</th><th>its range</th>"
            "<th>first bad</th><th>share</th><th>ranges</th><th>place</th></tr>\n");
    for (int64_t i = 0; i < audit->n_findings; i++) html_finding(file, &audit->findings[order[i].finding]);
    fprintf(file,
            "</table>\n<h2>Unknown</h2>\n<table><tr><th>kernel</th><th>access</th><th>line</th><th>reason</th></tr>\n");
    for (int64_t i = 0; i < audit->n_unknowns; i++) {
        const ls_audit_unknown *u = &audit->unknowns[i];
        fprintf(file, "<tr>");
        cell(file, u->kernel);
        cell(file, u->access);
        fprintf(file, "<td>%lld</td>", (long long)u->line);
        cell(file, u->reason);
        fprintf(file, "</tr>\n");
    }
    fprintf(file, "</table>\n");
    ls_html_end(file);
}
