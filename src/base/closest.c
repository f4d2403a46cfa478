/* Edit distances by the usual table, three rows of it. */
#include "base/closest.h"

#include <stdio.h>
#include <string.h>

enum { NAME_MAX_BYTES = 63 };

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* Both of at most NAME_MAX_BYTES bytes. What is above `limit` is not told from another such distance. */
static int64_t edit_distance(const char *a, int64_t n_a, const char *b, int64_t n_b, int64_t limit) {
    int64_t rows[3][NAME_MAX_BYTES + 1], nearest = 0, nearest_above;
    if (n_a - n_b > limit || n_b - n_a > limit) return limit + 1;
    for (int64_t j = 0; j <= n_b; j++) rows[0][j] = j;
    for (int64_t i = 1; i <= n_a; i++) {
        const int64_t *above = rows[(i - 1) % 3], *two_above = rows[(i + 1) % 3];
        int64_t *row = rows[i % 3];
        nearest_above = nearest;
        row[0] = nearest = i;
        for (int64_t j = 1; j <= n_b; j++) {
            row[j] = least(above[j - 1] + (a[i - 1] != b[j - 1]), least(above[j], row[j - 1]) + 1);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                row[j] = least(row[j], two_above[j - 2] + 1);
            nearest = least(nearest, row[j]);
        }
        if (nearest > limit && nearest_above > limit) return limit + 1; /* rows below build on these two */
    }
    return rows[n_a % 3][n_b];
}

void ls_closest_try(ls_closest *closest, const char *text, int64_t bytes, const char *name) {
    const int64_t n = (int64_t)strlen(name), third = least(bytes, n) / 3, limit = third > 1 ? third : 1;
    int64_t d;
    if (bytes < 1 || bytes > NAME_MAX_BYTES || n > NAME_MAX_BYTES) return;
    d = edit_distance(text, bytes, name, n, limit);
    if (d > limit) return;
    if (d >= least(bytes, n)) return; /* nothing in common */
    if (closest->name != NULL && closest->distance <= d) return;
    *closest = (ls_closest){name, d};
}

const char *ls_closest_hint(char out[LS_CLOSEST_HINT_MAX], const ls_closest *closest, const char *prefix) {
    out[0] = '\0';
    if (closest->name != NULL) snprintf(out, LS_CLOSEST_HINT_MAX, "; did you mean %s%s?", prefix, closest->name);
    return out;
}
