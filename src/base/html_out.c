/* Pages and charts. A chart is a frame, a grid of round numbers, the data. */
#include "base/html_out.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "base/utf8.h"

enum { WIDTH = 720, HEIGHT = 200, LEFT = 70, RIGHT = 16, TOP = 26, BOTTOM = 40 };
enum { BUCKETS = 300, LEGEND_HEIGHT = 16 };

/* ---- page ---- */

static const char style[] =
    "body{font:15px/1.5 system-ui,sans-serif;color:#1c2733;background:#fff;max-width:760px;margin:2em auto;"
    "padding:0 1em}"
    "h1{font-size:1.5em;margin-bottom:.2em}h2{font-size:1.1em;margin:2em 0 .5em}"
    "table{border-collapse:collapse;width:100%;font-size:13px}th{text-align:left;font-weight:600}"
    "td,th{border-bottom:1px solid #e3e8ee;padding:3px 8px 3px 0;vertical-align:top}td.n{text-align:right}"
    ".box{border-left:4px solid #b3261e;background:#fbf1f0;padding:.6em 1em}"
    ".box.good{border-color:#2e7d4f;background:#eff7f2}"
    ".differs{color:#b3261e;font-weight:600}.rounding{color:#a15c00;font-weight:600}"
    ".tokens{color:#6a3fb5;font-weight:600}.clean{color:#2e7d4f}.not{color:#8793a0}"
    "pre{background:#f5f7f9;padding:.8em;overflow-x:auto;font-size:12.5px}pre.text{white-space:pre-wrap}"
    "svg{width:100%;height:auto;margin:.3em 0}svg.bar{width:260px;height:12px;margin:0}svg text{font:11px "
    "system-ui,sans-serif;fill:#48566a}"
    "svg .title{font-weight:600;fill:#1c2733}svg .right{text-anchor:end}svg .middle{text-anchor:middle}"
    "svg .grid{stroke:#e3e8ee}svg .axis{stroke:#8793a0}svg .mark{stroke:#1c2733;stroke-dasharray:4 3}"
    "svg polyline{fill:none;stroke-width:1.4}svg .band{stroke:none;opacity:.18}"
    "p{margin:.4em 0}";

void ls_html_begin(FILE *file, const char *title) {
    fputs(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        "<meta name=\"viewport\" content=\"width=device-width\"><title>",
        file);
    ls_html_text(file, title);
    fprintf(file, "</title><style>%s</style></head><body>\n<h1>", style);
    ls_html_text(file, title);
    fputs("</h1>\n", file);
}

void ls_html_end(FILE *file) { fputs("</body></html>\n", file); }

void ls_html_bytes(FILE *file, const char *text, int64_t bytes) {
    for (int64_t i = 0, used; i < bytes; i += used) {
        int32_t code;
        used = ls_utf8_decode((const uint8_t *)text + i, bytes - i, &code);
        switch (code) {
            case '&': fputs("&amp;", file); break;
            case '<': fputs("&lt;", file); break;
            case '>': fputs("&gt;", file); break;
            case '"': fputs("&quot;", file); break;
            default:
                if (code < 0 || (code < 0x20 && code != '\n' && code != '\t') || (code >= 0x7f && code < 0xa0))
                    fputs("\xEF\xBF\xBD", file);
                else
                    fwrite(text + i, 1, (size_t)used, file);
        }
    }
}

void ls_html_text(FILE *file, const char *text) { ls_html_bytes(file, text, (int64_t)strlen(text)); }

void ls_html_cause(FILE *file, const char *name, const char *text, const char *look) {
    fputs("<p><b>", file);
    ls_html_text(file, name);
    fputs("</b></p>", file);
    if (text == NULL) return;
    fputs("<p>", file);
    ls_html_text(file, text);
    fputs(".</p><p>Look at: ", file);
    ls_html_text(file, look);
    fputs(".</p>", file);
}

/* ---- the frame of a chart ---- */

typedef struct frame {
    const char *title, *x_label, *y_label;
    double x_low, x_high, y_low, y_high; /* what the axes show */
} frame;

static double place_x(const frame *f, double x) {
    const double span = f->x_high > f->x_low ? f->x_high - f->x_low : 1.0;
    return LEFT + (x - f->x_low) / span * (WIDTH - LEFT - RIGHT);
}

static double place_y(const frame *f, double y) {
    const double share = f->y_high > f->y_low ? (y - f->y_low) / (f->y_high - f->y_low) : 0.0;
    return HEIGHT - BOTTOM - (share > 1.0 ? 1.0 : share) * (HEIGHT - TOP - BOTTOM);
}

/* 1, 2 or 5 times a power of ten, so that about `n` steps make the span. */
static double round_step(double span, double n) {
    const double power = pow(10.0, floor(log10(span / n)));
    const double digit = span / n / power;
    return power * (digit < 1.5 ? 1.0 : digit < 3.5 ? 2.0 : digit < 7.5 ? 5.0 : 10.0);
}

static void write_text(FILE *file, double x, double y, const char *class, const char *text) {
    fprintf(file, "<text class=\"%s\" x=\"%.1f\" y=\"%.1f\">", class, x, y);
    ls_html_text(file, text);
    fputs("</text>\n", file);
}

/* The k-th multiple of step from the lowest that is shown; a tick at zero is zero and no rounding of it. */
static double tick(double low, double step, int64_t k) { return (ceil(low / step - 1e-6) + (double)k) * step + 0.0; }

/* Digits that tell ticks apart: those of the largest, down to the step's own. */
static int tick_digits(double low, double high, double step) {
    const double largest = fmax(fabs(low), fabs(high));
    const int digits = (int)floor(log10(largest)) - (int)floor(log10(step)) + 2;
    return digits < 6 ? 6 : digits > 15 ? 15 : digits;
}

static void begin_chart(FILE *file, const frame *f, int height) {
    const double right = WIDTH - RIGHT, low = HEIGHT - BOTTOM;
    char text[32];
    fprintf(file, "<svg viewBox=\"0 0 %d %d\" role=\"img\">\n<title>", WIDTH, height);
    ls_html_text(file, f->title);
    fputs("</title>\n", file);
    if (f->y_high > f->y_low) {
        const double step = round_step(f->y_high - f->y_low, 4.0);
        const int digits = tick_digits(f->y_low, f->y_high, step);
        for (int64_t k = 0; tick(f->y_low, step, k) <= f->y_high + 1e-4 * step; k++) {
            const double y = tick(f->y_low, step, k);
            fprintf(file, "<line class=\"grid\" x1=\"%d\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>\n", LEFT, right,
                    place_y(f, y), place_y(f, y));
            snprintf(text, sizeof text, "%.*g", digits, y);
            write_text(file, LEFT - 6, place_y(f, y) + 4.0, "right", text);
        }
    }
    if (f->x_high > f->x_low) {
        const double step = round_step(f->x_high - f->x_low, 8.0);
        const int digits = tick_digits(f->x_low, f->x_high, step);
        for (int64_t k = 0; tick(f->x_low, step, k) <= f->x_high + 1e-4 * step; k++) {
            const double x = tick(f->x_low, step, k);
            snprintf(text, sizeof text, "%.*g", digits, x);
            write_text(file, place_x(f, x), low + 15.0, "middle", text);
        }
    }
    fprintf(file, "<line class=\"axis\" x1=\"%d\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>\n", LEFT, right, low, low);
    write_text(file, LEFT, 16.0, "title", f->title);
    write_text(file, (LEFT + right) / 2.0, HEIGHT - 8.0, "middle", f->x_label);
    fprintf(file, "<text class=\"middle\" transform=\"translate(13 %.1f) rotate(-90)\">", (TOP + low) / 2.0);
    ls_html_text(file, f->y_label);
    fputs("</text>\n", file);
}

/* ---- bars and points ---- */

static void write_mark(FILE *file, const frame *f, const ls_chart *c) {
    const double x = place_x(f, c->mark);
    if (isnan(c->mark)) return;
    fprintf(file, "<line class=\"mark\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\"/>\n", x, x, TOP, HEIGHT - BOTTOM);
    if (x < WIDTH / 2.0)
        write_text(file, x + 4.0, TOP + 10.0, "left", c->mark_label);
    else
        write_text(file, x - 4.0, TOP + 10.0, "right", c->mark_label);
}

static void write_data(FILE *file, const frame *f, const ls_chart *c) {
    const double low = HEIGHT - BOTTOM;
    const double width = c->n > 1 ? 0.8 * (place_x(f, c->x[1]) - place_x(f, c->x[0])) : 24.0;
    for (int64_t i = 0; i < c->n; i++) {
        const double x = place_x(f, c->x[i]), y = place_y(f, c->y[i]);
        if (!isfinite(c->y[i])) continue;
        if (c->kind == LS_CHART_POINTS)
            fprintf(file, "<circle fill=\"%s\" cx=\"%.1f\" cy=\"%.1f\" r=\"3\"/>\n", c->colour, x, y);
        else if (c->y[i] > 0.0)
            fprintf(file, "<rect fill=\"%s\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"/>\n", c->colour,
                    x - width / 2.0, y, width, low - y);
    }
}

void ls_chart_write(FILE *file, const ls_chart *c) {
    const frame f = {c->title, c->x_label, c->y_label, c->x_low, c->x_high, 0.0, c->y_high};
    begin_chart(file, &f, HEIGHT);
    write_data(file, &f, c);
    write_mark(file, &f, c);
    fputs("</svg>\n", file);
}

/* ---- lines ---- */

typedef struct line_range {
    double low, high, last;
    int64_t n; /* finite values */
} line_range;

static void range_add(line_range *r, double y) {
    if (!isfinite(y)) return;
    if (r->n == 0 || y < r->low) r->low = y;
    if (r->n == 0 || y > r->high) r->high = y;
    r->last = y;
    r->n++;
}

static line_range range_of(const double *y, int64_t n) {
    line_range r = {0};
    for (int64_t i = 0; i < n; i++) range_add(&r, y[i]);
    return r;
}

/* The values of one bucket of neighbours: where it stands, their mean and range. */
typedef struct bucket {
    double x, mean;
    line_range range;
} bucket;

static bucket chart_bucket(const double *x, const double *y, int64_t begin, int64_t end) {
    bucket b = {0};
    for (int64_t i = begin; i < end; i++) {
        if (!isfinite(y[i])) continue;
        range_add(&b.range, y[i]);
        b.x += x[i];
        b.mean += y[i];
    }
    if (b.range.n > 0) {
        b.x /= (double)b.range.n;
        b.mean /= (double)b.range.n;
    }
    return b;
}

/* Buckets [begin, end) have values: the line through their means and, where they hold several, the band. */
static void write_piece(FILE *file, const frame *f, const bucket *b, int64_t begin, int64_t end, bool band,
                        const char *colour) {
    if (end - begin == 1 && !band) {
        fprintf(file, "<circle fill=\"%s\" cx=\"%.1f\" cy=\"%.1f\" r=\"2\"/>\n", colour, place_x(f, b[begin].x),
                place_y(f, b[begin].mean));
        return;
    }
    if (band) {
        fprintf(file, "<polygon class=\"band\" fill=\"%s\" points=\"", colour);
        for (int64_t i = begin; i < end; i++)
            fprintf(file, "%.1f,%.1f ", place_x(f, b[i].x), place_y(f, b[i].range.high));
        for (int64_t i = end - 1; i >= begin; i--)
            fprintf(file, "%.1f,%.1f ", place_x(f, b[i].x), place_y(f, b[i].range.low));
        fputs("\"/>\n", file);
    }
    fprintf(file, "<polyline stroke=\"%s\" points=\"", colour);
    for (int64_t i = begin; i < end; i++) fprintf(file, "%.1f,%.1f ", place_x(f, b[i].x), place_y(f, b[i].mean));
    fputs("\"/>\n", file);
}

static void write_line(FILE *file, const frame *f, const ls_line_chart *c, const ls_line *line) {
    const double *x = line->x != NULL ? line->x : c->x;
    const int64_t n_points = line->x != NULL ? line->n : c->n;
    const bool band = n_points > 2 * BUCKETS;
    const int64_t n = band ? BUCKETS : n_points;
    bucket b[2 * BUCKETS];
    int64_t begin = 0;
    for (int64_t i = 0; i < n; i++) {
        const int64_t from = band ? i * n_points / n : i;
        b[i] = chart_bucket(x, line->y, from, band ? (i + 1) * n_points / n : i + 1);
    }
    for (int64_t i = 0; i <= n; i++) {
        if (i < n && b[i].range.n > 0) continue;
        if (i > begin) write_piece(file, f, b, begin, i, band, line->colour);
        begin = i + 1;
    }
}

static void write_legend(FILE *file, const ls_line *line, int64_t i, const line_range *r) {
    const double y = HEIGHT + 4.0 + (double)i * LEGEND_HEIGHT;
    char text[256];
    if (r->n == 0)
        snprintf(text, sizeof text, "%s: no finite value", line->label);
    else if (r->low < r->high)
        snprintf(text, sizeof text, "%s: last %.6g, %.6g to %.6g", line->label, r->last, r->low, r->high);
    else
        snprintf(text, sizeof text, "%s: %.6g throughout", line->label, r->last);
    fprintf(file, "<rect fill=\"%s\" x=\"%d\" y=\"%.1f\" width=\"10\" height=\"10\"/>\n", line->colour, LEFT, y - 9.0);
    write_text(file, LEFT + 16, y, "legend", text);
}

static line_range range_of_line(const ls_line_chart *c, const ls_line *line) {
    return range_of(line->y, line->x != NULL ? line->n : c->n);
}

/* From the first point of any line to the last of any. */
static void find_x(frame *f, const ls_line_chart *c) {
    bool any = false;
    for (int64_t k = 0; k < c->n_lines; k++) {
        const double *x = c->lines[k].x != NULL ? c->lines[k].x : c->x;
        const int64_t n = c->lines[k].x != NULL ? c->lines[k].n : c->n;
        if (n == 0) continue;
        if (!any || x[0] < f->x_low) f->x_low = x[0];
        if (!any || x[n - 1] > f->x_high) f->x_high = x[n - 1];
        any = true;
    }
}

bool ls_line_chart_is_flat(const ls_line_chart *c) {
    for (int64_t k = 0; k < c->n_lines; k++) {
        const line_range r = range_of_line(c, &c->lines[k]);
        if (r.n < 2 || r.low < r.high) return false;
    }
    return c->n_lines > 0;
}

void ls_line_chart_write_flat(FILE *file, const ls_line_chart *c) {
    fputs("<p class=\"flat\"><b>", file);
    ls_html_text(file, c->title);
    fputs("</b>, ", file);
    ls_html_text(file, c->y_label);
    for (int64_t k = 0; k < c->n_lines; k++) {
        if (k > 0) fputs(";", file);
        if (strcmp(c->lines[k].label, c->y_label) != 0) {
            fputs(k == 0 ? ": " : " ", file);
            ls_html_text(file, c->lines[k].label);
        }
        fprintf(file, ": %.6g throughout", range_of_line(c, &c->lines[k]).last);
    }
    fputs("</p>\n", file);
}

void ls_line_chart_write(FILE *file, const ls_line_chart *c) {
    frame f = {c->title, c->x_label, c->y_label, 0.0, 0.0, 0.0, 0.0};
    line_range all = {0};
    for (int64_t k = 0; k < c->n_lines; k++) {
        const line_range r = range_of_line(c, &c->lines[k]);
        if (r.n == 0) continue;
        range_add(&all, r.low);
        range_add(&all, r.high);
    }
    find_x(&f, c);
    f.y_low = all.low;
    f.y_high = all.high;
    /* Zero is shown where it is near, and a flat line has room above it. */
    if (f.y_low > 0.0 && f.y_low < 0.5 * f.y_high) f.y_low = 0.0;
    if (f.y_high < 0.0 && f.y_high > 0.5 * f.y_low) f.y_high = 0.0;
    if (!(f.y_high > f.y_low)) f.y_high = f.y_low + fmax(1.0, fabs(f.y_low));
    begin_chart(file, &f, HEIGHT + (int)c->n_lines * LEGEND_HEIGHT);
    for (int64_t k = 0; k < c->n_lines; k++) {
        const line_range r = range_of_line(c, &c->lines[k]);
        write_line(file, &f, c, &c->lines[k]);
        write_legend(file, &c->lines[k], k, &r);
    }
    fputs("</svg>\n", file);
}
