/* The renderings of a comparison: a table and a page for people, JSON for programs. Owns the names that each uses. */
#define _POSIX_C_SOURCE 200809L
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/html_out.h"
#include "diagnose/compare/compare.h"
#include "diagnose/report/report_parts.h"

static uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static void row_count(FILE *file, const char *name, int64_t value) {
    fprintf(file, "  %-36s %14" PRId64 "\n", name, value);
}

static void row_share(FILE *file, const char *name, int64_t value, double share) {
    fprintf(file, "  %-36s %14" PRId64 "   %.4f %%\n", name, value, 100.0 * share);
}

static void row_number(FILE *file, const char *name, double value) {
    if (isnan(value)) {
        fprintf(file, "  %-36s %14s\n", name, "n/a");
    } else {
        fprintf(file, "  %-36s %14.7g\n", name, value);
    }
}

static void print_special(FILE *file, const ls_comparison *c) {
    const struct {
        const char *name;
        int64_t a, b;
    } rows[] = {
        {"NaN", c->special_a.nan, c->special_b.nan},
        {"+infinity", c->special_a.plus_infinity, c->special_b.plus_infinity},
        {"-infinity", c->special_a.minus_infinity, c->special_b.minus_infinity},
        {"above 0", c->special_a.positive, c->special_b.positive},
        {"exactly 0", c->special_a.zero, c->special_b.zero},
    };
    fprintf(file, "\nspecial values %38s %14s\n", "A", "B");
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        fprintf(file, "  %-36s %14" PRId64 " %14" PRId64 "\n", rows[i].name, rows[i].a, rows[i].b);
}

static int id_width(const ls_comparison *c) {
    size_t width = 2;
    for (int64_t i = 0; i < c->n_worst; i++)
        if (strlen(c->worst[i].id) > width) width = strlen(c->worst[i].id);
    return width < 40 ? (int)width : 40;
}

static void print_worst(FILE *file, const ls_comparison *c) {
    const int width = id_width(c);
    if (c->n_worst == 0) return;
    fprintf(file, "\nworst tokens (%" PRId64 " of %" PRId64 ")\n", c->n_worst, c->n_different);
    fprintf(file, "  %-*s %8s %8s %14s %8s %14s %8s %12s %11s\n", width, "id", "position", "token", "A", "bits", "B",
            "bits", "abs diff", "ulps");
    for (int64_t i = 0; i < c->n_worst; i++) {
        const ls_worst_token *w = &c->worst[i];
        const double diff = fabs((double)w->b - (double)w->a);
        char token[16] = "-", ulps[24] = "-", diff_text[24] = "-";
        if (w->token >= 0) snprintf(token, sizeof token, "%d", w->token);
        if (w->ulps >= 0) snprintf(ulps, sizeof ulps, "%" PRId64, w->ulps);
        if (!isnan(diff)) snprintf(diff_text, sizeof diff_text, "%.5g", diff);
        fprintf(file, "  %-*.*s %8" PRId64 " %8s %14.9g %08x %14.9g %08x %12s %11s\n", width, width, w->id, w->position,
                token, (double)w->a, bits_of(w->a), (double)w->b, bits_of(w->b), diff_text, ulps);
    }
}

static const char *verdict(const ls_comparison *c) {
    const ls_finding *named = ls_compare_named(&c->causes);
    if (c->n_different == 0) return "no difference";
    if (named != NULL) return ls_cause_name(named->cause);
    if (c->digest != NULL) return LS_REPORT_BROKEN; /* which is never rounding */
    return c->causes.rounding ? LS_REPORT_ROUNDING : LS_REPORT_UNNAMED;
}

static void print_causes(FILE *file, const ls_comparison *c) {
    const ls_compare_causes *k = &c->causes;
    const ls_finding *named = ls_compare_named(k);
    if (c->n_different == 0) return;
    fprintf(file, "\ncauses, best first\n");
    fprintf(file,
            "  floor %.2g, a lower quartile of |d|; from %.2g on a token is off: %" PRId64 " tokens, %" PRId64
            " sequences\n",
            k->floor, k->limit, k->n_off, k->n_sequences_off);
    ls_report_findings(file, &k->found);
    if (named != NULL)
        fprintf(file, "\nCAUSE: %s\n  look at    %s\n  confidence %.2f\n  seen       %s\n", ls_cause_name(named->cause),
                ls_cause_records_look(named->cause), named->confidence, named->evidence);
    else
        fprintf(file, "\n%s\n", verdict(c));
}

/* Mean |d| by place, as far as there are tokens. */
static void draw_places(FILE *file, const ls_comparison *c) {
    double x[LS_COMPARE_PLACES], y[LS_COMPARE_PLACES], high = 0.0;
    int64_t n = 0;
    for (int p = 0; p < LS_COMPARE_PLACES; p++) {
        if (c->place_n[p] == 0) continue;
        x[n] = p;
        y[n++] = c->place_abs[p];
        high = fmax(high, c->place_abs[p]);
    }
    if (n < 2 || !(high > 0.0)) return;
    {
        const ls_chart chart = {.kind = LS_CHART_POINTS,
                                .title = "Mean |d| by place",
                                .x_label = "place in the completion",
                                .y_label = "mean |d|",
                                .x = x,
                                .y = y,
                                .n = n,
                                .x_low = -0.5,
                                .x_high = x[n - 1] + 0.5,
                                .y_high = high,
                                .mark = (double)NAN,
                                .colour = "#b3261e"};
        ls_chart_write(file, &chart);
    }
}

void ls_comparison_html(FILE *file, const ls_comparison *c, const char *name_a, const char *name_b) {
    const ls_compare_causes *k = &c->causes;
    const ls_finding *named = ls_compare_named(k);
    char *table = NULL;
    size_t bytes = 0;
    FILE *text;
    ls_html_begin(file, "Two records compared");
    fprintf(file, "<div class=\"box%s\">", c->n_different > 0 && !k->rounding ? "" : " good");
    ls_html_cause(file, verdict(c), named != NULL ? named->evidence : NULL,
                  named != NULL ? ls_cause_records_look(named->cause) : NULL);
    fputs("</div>\n", file);
    ls_report_findings_html(file, &k->found);
    draw_places(file, c);
    text = open_memstream(&table, &bytes);
    if (text != NULL) {
        ls_comparison_print(text, c, name_a, name_b);
        fclose(text);
        fputs("<h2>Measures</h2>\n<pre>", file);
        ls_html_bytes(file, table, (int64_t)bytes);
        fputs("</pre>\n", file);
        free(table);
    }
    ls_html_end(file);
}

static void write_causes(ls_json_out *json, const ls_comparison *c) {
    const ls_finding *named = ls_compare_named(&c->causes);
    ls_json_string(json, "verdict", verdict(c));
    ls_json_string_or_null(json, "cause", named != NULL ? ls_cause_name(named->cause) : NULL);
    ls_report_ranked_json(json, &c->causes.found, false);
}

/* What a reader must know before the numbers. */
static void print_notes(FILE *file, const ls_comparison *c) {
    if (c->n_only_a + c->n_only_b > 0)
        fprintf(file,
                "note: the files have unequal sets of sequences: %" PRId64 " in both, which are compared, %" PRId64
                " in A only, %" PRId64 " in B only\n",
                c->n_sequences, c->n_only_a, c->n_only_b);
    if (c->n_error_a + c->n_error_b > 0)
        fprintf(file,
                "note: finish is error in %" PRId64 " sequences of A and %" PRId64
                " of B, which end where the error was\n",
                c->n_error_a, c->n_error_b);
    if (c->n_seeds_differ > 0)
        fprintf(file, "note: the seeds of A and B differ in %" PRId64 " sequences\n", c->n_seeds_differ);
    if (c->n_temperatures_differ > 0)
        fprintf(file, "note: the temperatures of A and B differ in %" PRId64 " sequences\n", c->n_temperatures_differ);
}

void ls_comparison_print(FILE *file, const ls_comparison *c, const char *name_a, const char *name_b) {
    fprintf(file, "A  %s (rollout, r)\nB  %s (trainer, t)\n\n", name_a, name_b);
    if (ls_comparison_same(c)) {
        fprintf(file, "same: every one of %" PRId64 " log-probabilities has the same bits\n", c->n_compared);
    } else {
        fprintf(file,
                "different: %" PRId64 " of %" PRId64 " log-probabilities differ in bits, %" PRId64
                " more are on one side only\n",
                c->n_different, c->n_compared, c->missing_a + c->missing_b);
    }
    if (c->digest != NULL && c->n_different > 0)
        fprintf(file,
                "both sides say %s, which promises equal bits for the same tokens and weights: the weights are not the "
                "same, or one side is wrong\n",
                c->digest);
    print_notes(file, c);
    fprintf(file, "\ntokens\n");
    row_count(file, "sequences", c->n_sequences);
    row_count(file, "  with a difference", c->n_sequences_different);
    if (c->n_only_a + c->n_only_b > 0) {
        row_count(file, "  in A only, not compared", c->n_only_a);
        row_count(file, "  in B only, not compared", c->n_only_b);
    }
    if (c->n_sequences_without_ids > 0)
        row_count(file, "  matched by id only (no token ids)", c->n_sequences_without_ids);
    row_count(file, "tokens compared", c->n_compared);
    row_share(file, "  equal bits", c->n_equal, c->measures.equal_fraction);
    row_share(file, "  different bits", c->n_different, 1.0 - c->measures.equal_fraction);
    row_count(file, "  finite on both sides", c->measures.n);
    row_count(file, "missing in A only", c->missing_a);
    row_count(file, "missing in B only", c->missing_b);
    row_count(file, "missing in both", c->missing_both);
    row_count(file, "outside the common tail", c->unaligned);
    fprintf(file, "\ndifference d = t - r\n");
    row_number(file, "mean of abs d", c->measures.abs_mean);
    row_number(file, "std of abs d", c->measures.abs_std);
    for (int i = 0; i < LS_QUANTILES; i++) {
        char name[40];
        snprintf(name, sizeof name, "quantile %g of abs d", ls_mismatch_quantiles[i]);
        row_number(file, name, c->measures.abs_quantiles[i]);
    }
    row_number(file, "max of abs d", c->measures.abs_max);
    row_number(file, "mean of d", c->measures.signed_mean);
    row_number(file, "mean over sequences of mean abs d", c->measures.sequence_abs_mean);
    row_number(file, "largest mean abs d of a sequence", c->measures.sequence_abs_max);
    if (c->sequence_worst != NULL) fprintf(file, "    %-34s %14s\n", "which is", c->sequence_worst);
    fprintf(file, "\ndivergence, rho = exp(d)\n");
    row_number(file, "k1 = mean(r - t)", c->measures.k1);
    row_number(file, "k2 = mean(d^2) / 2", c->measures.k2);
    row_number(file, "k3 = mean(rho - 1 - d)", c->measures.k3);
    row_number(file, "k3 reversed", c->measures.k3_reverse);
    row_number(file, "arithmetic mean of rho", c->measures.rho_mean);
    row_number(file, "geometric mean of rho", c->measures.rho_geometric);
    row_number(file, "min of rho", c->measures.rho_min);
    row_number(file, "max of rho", c->measures.rho_max);
    row_number(file, "std of rho", c->measures.rho_std);
    row_number(file, "chi2 = mean(rho^2) - 1", c->measures.chi2_token);
    row_number(file, "effective sample fraction", c->measures.effective_fraction);
    row_number(file, "mean of exp(abs d)", c->measures.mult_error);
    fprintf(file, "\nprobabilities\n");
    row_number(file, "mean of abs(exp t - exp r)", c->measures.prob_mean);
    row_number(file, "std of abs(exp t - exp r)", c->measures.prob_std);
    row_number(file, "max of abs(exp t - exp r)", c->measures.prob_max);
    row_number(file, "Pearson correlation", c->measures.prob_correlation);
    fprintf(file, "\nstructure\n");
    for (int i = 0; i < LS_LAGS; i++) {
        char name[40];
        snprintf(name, sizeof name, "correlation of r and t at lag %d", i - LS_LAGS / 2);
        row_number(file, name, c->measures.lag_correlation[i]);
    }
    row_number(file, "slope of t on r", c->measures.slope);
    row_number(file, "intercept of t on r", c->measures.intercept);
    row_number(file, "residual of t on r", c->measures.residual);
    row_number(file, "slope of d on position", c->measures.position_slope);
    row_number(file, "slope of abs d on position", c->measures.position_abs_slope);
    print_special(file, c);
    print_worst(file, c);
    print_causes(file, c);
}

static void write_special(ls_json_out *json, const char *key, const ls_special_counts *counts) {
    ls_json_begin_object(json, key);
    ls_json_int(json, "nan", counts->nan);
    ls_json_int(json, "plus_infinity", counts->plus_infinity);
    ls_json_int(json, "minus_infinity", counts->minus_infinity);
    ls_json_int(json, "positive", counts->positive);
    ls_json_int(json, "zero", counts->zero);
    ls_json_end_object(json);
}

static void write_bits(ls_json_out *json, const char *key, float value) {
    char text[9];
    snprintf(text, sizeof text, "%08x", bits_of(value));
    ls_json_string(json, key, text);
}

static void write_worst(ls_json_out *json, const ls_comparison *c) {
    ls_json_begin_array(json, "worst");
    for (int64_t i = 0; i < c->n_worst; i++) {
        const ls_worst_token *w = &c->worst[i];
        ls_json_begin_object(json, NULL);
        ls_json_string(json, "id", w->id);
        ls_json_int(json, "position", w->position);
        if (w->token >= 0) {
            ls_json_int(json, "token", w->token);
        } else {
            ls_json_null(json, "token");
        }
        ls_json_float(json, "a", w->a);
        write_bits(json, "a_bits", w->a);
        ls_json_float(json, "b", w->b);
        write_bits(json, "b_bits", w->b);
        ls_json_double(json, "abs_diff", fabs((double)w->b - (double)w->a));
        if (w->ulps >= 0) {
            ls_json_int(json, "ulps", w->ulps);
        } else {
            ls_json_null(json, "ulps");
        }
        ls_json_end_object(json);
    }
    ls_json_end_array(json);
}

void ls_comparison_write(ls_json_out *json, const ls_comparison *c, const char *name_a, const char *name_b) {
    ls_json_begin_object(json, NULL);
    ls_json_string(json, "a", name_a);
    ls_json_string(json, "b", name_b);
    ls_json_bool(json, "same", ls_comparison_same(c));
    ls_json_begin_object(json, "counts");
    ls_json_int(json, "sequences", c->n_sequences);
    ls_json_int(json, "sequences_different", c->n_sequences_different);
    ls_json_int(json, "sequences_without_ids", c->n_sequences_without_ids);
    ls_json_int(json, "sequences_only_a", c->n_only_a);
    ls_json_int(json, "sequences_only_b", c->n_only_b);
    ls_json_int(json, "finish_error_a", c->n_error_a);
    ls_json_int(json, "finish_error_b", c->n_error_b);
    ls_json_int(json, "seeds_differ", c->n_seeds_differ);
    ls_json_int(json, "temperatures_differ", c->n_temperatures_differ);
    ls_json_int(json, "compared", c->n_compared);
    ls_json_int(json, "equal", c->n_equal);
    ls_json_int(json, "different", c->n_different);
    ls_json_int(json, "finite", c->measures.n);
    ls_json_int(json, "missing_a", c->missing_a);
    ls_json_int(json, "missing_b", c->missing_b);
    ls_json_int(json, "missing_both", c->missing_both);
    ls_json_int(json, "unaligned", c->unaligned);
    ls_json_end_object(json);
    ls_json_begin_object(json, "measures");
    ls_mismatch_write(json, &c->measures);
    ls_json_string_or_null(json, "sequence_worst", c->sequence_worst);
    ls_json_end_object(json);
    write_special(json, "special_a", &c->special_a);
    write_special(json, "special_b", &c->special_b);
    if (c->digest != NULL)
        ls_json_string(json, "digest", c->digest);
    else
        ls_json_null(json, "digest");
    write_worst(json, c);
    write_causes(json, c);
    ls_json_begin_object(json, "aliases");
    ls_mismatch_write_aliases(json, &c->measures);
    ls_json_end_object(json);
    ls_json_end_object(json);
    ls_json_newline(json);
}
