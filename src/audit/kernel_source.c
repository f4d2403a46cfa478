/* A reader of mangled names that keeps the names and passes over the arguments of templates. */
#define _POSIX_C_SOURCE 200809L
#include "audit/kernel_source.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"

enum { DEPTH_MAX = 64 };

typedef struct reader {
    const char *at; /* NULL: not understood */
    char *out;
    size_t n;
    bool is_cut; /* it ends within the arguments of a template, as a long name that was cut does */
} reader;

/* A length and so many bytes; added to the name where `keeps`. */
static void read_word(reader *r, bool keeps) {
    size_t n = 0;
    while (ls_is_digit(*r->at) && n < LS_KERNEL_SOURCE_MAX) n = n * 10 + (size_t)(*r->at++ - '0');
    if (!keeps && n > 0 && strnlen(r->at, n) < n) r->is_cut = true;
    if (n == 0 || strnlen(r->at, n) < n || (keeps && r->n + n + 3 > LS_KERNEL_SOURCE_MAX)) {
        r->at = NULL;
        return;
    }
    if (keeps) {
        const bool is_hidden = n > 11 && memcmp(r->at, "_GLOBAL__N_", 11) == 0; /* a namespace without a name */
        if (r->n > 0) r->n += (size_t)snprintf(r->out + r->n, 3, "::");
        if (is_hidden)
            r->n += (size_t)snprintf(r->out + r->n, LS_KERNEL_SOURCE_MAX - r->n, "(anonymous)");
        else
            memcpy(r->out + r->n, r->at, n), r->n += n;
        if (r->n >= LS_KERNEL_SOURCE_MAX) {
            r->at = NULL;
            return;
        }
        r->out[r->n] = '\0';
    }
    r->at += n;
}

/* S_, S0_, T_, T12_, or St and its like. */
static void skip_number(reader *r) {
    r->at++;
    if (r->at[0] != '_' && !ls_is_digit(r->at[0]) && !(r->at[0] >= 'A' && r->at[0] <= 'Z')) {
        r->at = r->at[0] == '\0' ? NULL : r->at + 1;
        return;
    }
    while (ls_is_digit(*r->at) || (*r->at >= 'A' && *r->at <= 'Z')) r->at++;
    r->at = *r->at == '_' ? r->at + 1 : NULL;
}

/* Up to the E of what has begun, over whatever is nested. */
static void skip_to_end(reader *r, int depth) {
    if (depth == DEPTH_MAX) r->at = NULL;
    while (r->at != NULL && *r->at != 'E') {
        const char c = *r->at;
        if (c == '\0') {
            r->is_cut = true;
            r->at = NULL;
        } else if (ls_is_digit(c)) {
            read_word(r, false);
        } else if (c == 'S' || c == 'T') {
            skip_number(r);
        } else if (c == 'L' && r->at[1] >= 'a' && r->at[1] <= 'z') { /* a literal of a type of one letter */
            r->at = strchr(r->at, 'E');
            if (r->at != NULL) r->at++;
        } else if (c == 'L') { /* of another type: its digits are no length */
            r->at++;
            if (*r->at == 'N') {
                r->at++;
                skip_to_end(r, depth + 1);
            } else if (ls_is_digit(*r->at)) {
                read_word(r, false);
            } else {
                r->at = NULL;
            }
            if (r->at != NULL) r->at = strchr(r->at, 'E');
            if (r->at != NULL) r->at++;
        } else if (c == 'I' || c == 'N' || c == 'J' || c == 'F' || c == 'X') {
            r->at++;
            skip_to_end(r, depth + 1);
        } else if (c == 'A' || (c == 'D' && r->at[1] == 'v')) { /* A4_i, Dv4_f */
            r->at += c == 'A' ? 1 : 2;
            while (ls_is_digit(*r->at)) r->at++;
            r->at = *r->at == '_' ? r->at + 1 : NULL;
        } else if ((c >= 'a' && c <= 'z') || c == 'P' || c == 'R' || c == 'O' || c == 'K' || c == 'V' || c == 'D') {
            r->at++;
        } else {
            r->at = NULL;
        }
    }
    if (r->at != NULL) r->at++;
}

static void read_part(reader *r) {
    if (*r->at == 'L') r->at++; /* of one file */
    if (ls_is_digit(*r->at))
        read_word(r, true);
    else
        r->at = NULL;
    if (r->at != NULL && *r->at == 'I') {
        r->at++;
        skip_to_end(r, 0);
    }
}

const char *ls_kernel_source(char out[LS_KERNEL_SOURCE_MAX], const char *kernel) {
    reader r = {.at = kernel, .out = out};
    out[0] = '\0';
    if (strncmp(kernel, "_Z", 2) == 0) {
        r.at += 2;
        if (*r.at == 'N') {
            r.at++;
            while (*r.at == 'K' || *r.at == 'V' || *r.at == 'r') r.at++;
            while (r.at != NULL && *r.at != 'E' && *r.at != '\0') read_part(&r);
            if (r.at != NULL && *r.at != 'E') r.at = NULL;
        } else {
            read_part(&r);
        }
        if ((r.at != NULL || r.is_cut) && r.n > 0) return out;
    }
    snprintf(out, LS_KERNEL_SOURCE_MAX, "%s", kernel);
    return out;
}
