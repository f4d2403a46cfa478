/* Charts as inline SVG: a row of bars or points, axes, a few labels. Written for pages without scripts. */
#ifndef LS_PARITY_SVG_H
#define LS_PARITY_SVG_H

#include <stdint.h>
#include <stdio.h>

typedef enum ls_chart_kind { LS_CHART_BARS = 0, LS_CHART_POINTS } ls_chart_kind;

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
/* Text with & < > " as entities. */
void ls_html_text(FILE *file, const char *text);

#endif
