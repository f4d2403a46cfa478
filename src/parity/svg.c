/* Charts: a frame, a grid of round numbers, the data. */
#include "parity/svg.h"

#include <math.h>
#include <stddef.h>

enum { WIDTH = 720, HEIGHT = 200, LEFT = 70, RIGHT = 16, TOP = 26, BOTTOM = 40 };

void ls_html_text(FILE *file, const char *text) {
    for (; *text != '\0'; text++) {
        switch (*text) {
            case '&': fputs("&amp;", file); break;
            case '<': fputs("&lt;", file); break;
            case '>': fputs("&gt;", file); break;
            case '"': fputs("&quot;", file); break;
            default: fputc(*text, file);
        }
    }
}

static double place_x(const ls_chart *c, double x) {
    const double span = c->x_high > c->x_low ? c->x_high - c->x_low : 1.0;
    return LEFT + (x - c->x_low) / span * (WIDTH - LEFT - RIGHT);
}

static double place_y(const ls_chart *c, double y) {
    const double share = c->y_high > 0.0 ? y / c->y_high : 0.0;
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

static void write_axes(FILE *file, const ls_chart *c) {
    const double right = WIDTH - RIGHT, low = HEIGHT - BOTTOM;
    char text[32];
    if (c->y_high > 0.0) {
        const double step = round_step(c->y_high, 4.0);
        for (double y = 0.0; y <= c->y_high * 1.0001; y += step) {
            fprintf(file, "<line class=\"grid\" x1=\"%d\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>\n", LEFT, right,
                    place_y(c, y), place_y(c, y));
            snprintf(text, sizeof text, "%.3g", y);
            write_text(file, LEFT - 6, place_y(c, y) + 4.0, "right", text);
        }
    }
    if (c->x_high > c->x_low) {
        const double step = round_step(c->x_high - c->x_low, 8.0);
        for (double x = ceil(c->x_low / step) * step; x <= c->x_high * 1.0001; x += step) {
            snprintf(text, sizeof text, "%.6g", x);
            write_text(file, place_x(c, x), low + 15.0, "middle", text);
        }
    }
    fprintf(file, "<line class=\"axis\" x1=\"%d\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>\n", LEFT, right, low, low);
    write_text(file, LEFT, 16.0, "title", c->title);
    write_text(file, (LEFT + right) / 2.0, HEIGHT - 8.0, "middle", c->x_label);
    fprintf(file, "<text class=\"middle\" transform=\"translate(13 %.1f) rotate(-90)\">", (TOP + low) / 2.0);
    ls_html_text(file, c->y_label);
    fputs("</text>\n", file);
}

static void write_mark(FILE *file, const ls_chart *c) {
    const double x = place_x(c, c->mark);
    if (isnan(c->mark)) return;
    fprintf(file, "<line class=\"mark\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\"/>\n", x, x, TOP, HEIGHT - BOTTOM);
    if (x < WIDTH / 2.0)
        write_text(file, x + 4.0, TOP + 10.0, "left", c->mark_label);
    else
        write_text(file, x - 4.0, TOP + 10.0, "right", c->mark_label);
}

static void write_data(FILE *file, const ls_chart *c) {
    const double low = HEIGHT - BOTTOM;
    const double width = c->n > 1 ? 0.8 * (place_x(c, c->x[1]) - place_x(c, c->x[0])) : 24.0;
    for (int64_t i = 0; i < c->n; i++) {
        const double x = place_x(c, c->x[i]), y = place_y(c, c->y[i]);
        if (!isfinite(c->y[i])) continue;
        if (c->kind == LS_CHART_POINTS)
            fprintf(file, "<circle fill=\"%s\" cx=\"%.1f\" cy=\"%.1f\" r=\"3\"/>\n", c->colour, x, y);
        else if (c->y[i] > 0.0)
            fprintf(file, "<rect fill=\"%s\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"/>\n", c->colour,
                    x - width / 2.0, y, width, low - y);
    }
}

void ls_chart_write(FILE *file, const ls_chart *c) {
    fprintf(file, "<svg viewBox=\"0 0 %d %d\" role=\"img\">\n<title>", WIDTH, HEIGHT);
    ls_html_text(file, c->title);
    fputs("</title>\n", file);
    write_axes(file, c);
    write_data(file, c);
    write_mark(file, c);
    fputs("</svg>\n", file);
}
