/* HTML pages that stand alone: text, one style, charts as inline SVG. No scripts, nothing from the network. */
#ifndef LS_BASE_HTML_OUT_H
#define LS_BASE_HTML_OUT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* From the first byte to the heading, and the end of the page. The page forbids itself whatever is not in it. */
void ls_html_begin(FILE *file, const char *title);
void ls_html_end(FILE *file);

/* Text with & < > " as entities; what is not UTF-8 and control characters but newline and tab become U+FFFD. */
void ls_html_bytes(FILE *file, const char *text, int64_t bytes);
void ls_html_text(FILE *file, const char *text); /* NUL-terminated */

/* What a diagnosis says, to stand in a box: the name, and for a cause a sentence on it and where to look; or NULL. */
void ls_html_cause(FILE *file, const char *name, const char *text, const char *look);

typedef enum ls_chart_kind { LS_CHART_BARS = 0, LS_CHART_POINTS } ls_chart_kind;

/* A row of bars or points. */
typedef struct ls_chart {
    ls_chart_kind kind;
    const char *title, *x_label, *y_label;
    const double *x, *y; /* [n], bars equally far apart; a y that is not finite is left out */
    int64_t n;
    double x_low, x_high, y_high; /* what the axes show; y begins at 0 */
    double mark;                  /* a dashed line at this x with the label; NaN: none */
    const char *mark_label;
    const char *colour;
} ls_chart;

void ls_chart_write(FILE *file, const ls_chart *chart);

typedef struct ls_line {
    const char *label, *colour;
    const double *y; /* [n]; one that is not finite is a gap */
    const double *x; /* NULL: the chart's; else its own, [n] ascending, so that lines may end where they end */
    int64_t n;       /* read with x */
} ls_line;

/* Lines over one x, with their last value and their range in words. Where there are more points than the eye could tell
 * apart, a line is the mean of neighbours and a band their range, so that no spike is lost. */
typedef struct ls_line_chart {
    const char *title, *x_label, *y_label;
    const double *x; /* [n], ascending */
    int64_t n;
    const ls_line *lines;
    int64_t n_lines;
} ls_line_chart;

void ls_line_chart_write(FILE *file, const ls_line_chart *chart);
/* True when no line moves; such a chart says as much in the one line of text that ls_line_chart_write_flat writes. */
bool ls_line_chart_is_flat(const ls_line_chart *chart);
void ls_line_chart_write_flat(FILE *file, const ls_line_chart *chart);

#endif
