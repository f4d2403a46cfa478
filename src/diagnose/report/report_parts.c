/* Parts of reports. */
#include "diagnose/report/report_parts.h"

#include <inttypes.h>

#include "base/html_out.h"

void ls_report_findings(FILE *file, const ls_findings *findings) {
    for (int64_t i = 0; i < findings->n; i++)
        fprintf(file, "  %4.2f %s\n       %s\n", findings->of[i].confidence, ls_cause_name(findings->of[i].cause),
                findings->of[i].evidence);
}

void ls_report_findings_html(FILE *file, const ls_findings *findings) {
    if (findings->n == 0) return;
    fputs("<h2>Causes</h2>\n<table><tr><th>confidence</th><th>cause</th><th>seen</th></tr>\n", file);
    for (int64_t i = 0; i < findings->n; i++) {
        fprintf(file, "<tr><td>%.2f</td><td>", findings->of[i].confidence);
        ls_html_text(file, ls_cause_name(findings->of[i].cause));
        fputs("</td><td>", file);
        ls_html_text(file, findings->of[i].evidence);
        fputs("</td></tr>\n", file);
    }
    fputs("</table>\n", file);
}

void ls_report_bounds(FILE *file, const ls_sweep *s) {
    for (int64_t i = 0; i < s->n_bounds; i++) {
        const ls_bound *b = &s->bounds[i];
        fprintf(file,
                "  threshold  %s %" PRId64 " and %s differ, %" PRId64 " is clean (%s activations, %" PRId64
                " trials)\n",
                ls_bounded_name(b->lever), b->value, b->from_above ? "below" : "above",
                b->from_above ? b->value + 1 : b->value - 1, ls_dtype_name(b->dtype), b->n_trials);
    }
}

void ls_report_levers(FILE *file, const ls_trial *trial, const ls_levers *from) {
    for (int64_t i = 0; i < ls_levers_count(); i++) {
        char value[64];
        if (ls_lever_is_same(&trial->levers, from, i)) continue;
        ls_lever_format(value, sizeof value, &trial->levers, i);
        fprintf(file, " --%s %s", ls_lever_name(i), value);
    }
}

void ls_report_ranked_json(ls_json_out *json, const ls_findings *findings, bool weighed) {
    ls_json_begin_array(json, "ranked");
    for (int64_t i = 0; i < findings->n; i++) {
        const ls_finding *f = &findings->of[i];
        ls_json_begin_object(json, NULL);
        ls_json_string(json, "cause", ls_cause_name(f->cause));
        ls_json_double(json, "score", f->confidence);
        if (weighed) ls_json_bool(json, "fits", f->confidence >= LS_NAMED);
        if (weighed) ls_json_double(json, "doubt", f->doubt);
        ls_json_string(json, "evidence", f->evidence);
        ls_json_end_object(json);
    }
    ls_json_end_array(json);
}

void ls_report_counts_json(ls_json_out *json, int64_t sequences, int64_t sequences_off, int64_t tokens,
                           int64_t tokens_off) {
    ls_json_int(json, "sequences", sequences);
    ls_json_int(json, "sequences_different", sequences_off);
    ls_json_int(json, "tokens", tokens);
    ls_json_int(json, "tokens_different", tokens_off);
}

void ls_report_bounds_json(ls_json_out *json, const ls_sweep *s) {
    ls_json_begin_array(json, "bounds");
    for (int64_t i = 0; i < s->n_bounds; i++) {
        ls_json_begin_object(json, NULL);
        ls_json_string(json, "lever", ls_bounded_name(s->bounds[i].lever));
        ls_json_string(json, "dtype", ls_dtype_name(s->bounds[i].dtype));
        ls_json_int(json, "value", s->bounds[i].value);
        ls_json_string(json, "differs", s->bounds[i].from_above ? "up to it" : "from it on");
        ls_json_end_object(json);
    }
    ls_json_end_array(json);
}

void ls_report_repro_json(ls_json_out *json, const ls_sweep *s) {
    ls_json_begin_array(json, "repro");
    for (int64_t i = 0; i < s->n_repro; i++) {
        ls_json_begin_array(json, NULL);
        for (int64_t t = 0; t < s->repro[i].n; t++) ls_json_int(json, NULL, s->repro[i].ids[t]);
        ls_json_end_array(json);
    }
    ls_json_end_array(json);
}

void ls_sweep_repro(FILE *file, const ls_sweep *s) {
    for (int64_t i = 0; i < s->n_repro; i++) {
        fprintf(file, "{\"id\":\"r%" PRId64 "\",\"prompt_ids\":[", i);
        for (int64_t t = 0; t < s->repro[i].n; t++) fprintf(file, "%s%d", t > 0 ? "," : "", s->repro[i].ids[t]);
        fprintf(file, "]}\n");
    }
}
