/* The ends of requests. */
#include "serve/serve_frame.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/mem.h"

static void fail_frame(ls_frame *f, int status, const char *why) {
    f->state = LS_FRAME_BAD;
    f->status = status;
    f->why = why;
}

static bool append_bytes(ls_frame *f, char **to, int64_t *n, int64_t *cap, const char *bytes, int64_t more) {
    if (ls_array_grow((void **)to, cap, *n + more, 1, "request", NULL) != LS_OK) {
        fail_frame(f, 500, "out of memory");
        return false;
    }
    memcpy(*to + *n, bytes, (size_t)more);
    *n += more;
    return true;
}

static bool put_bytes_of(ls_frame *f, const char *bytes, int64_t n) {
    return append_bytes(f, &f->out, &f->out_bytes, &f->out_cap, bytes, n);
}

/* ---- a head that is complete ---- */

static bool is_token(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           (c != '\0' && strchr("!#$%&'*+-.^_`|~", c) != NULL);
}

/* Behind a token of at least one character; NULL where there is none. */
static const char *skip_token(const char *at, const char *end) {
    const char *begin = at;
    while (at < end && is_token(*at)) at++;
    return at > begin ? at : NULL;
}

/* METHOD SP TARGET SP HTTP/1.x, without its line break. */
static void read_request_line(ls_frame *f, const char *at, const char *end) {
    static const char *const wrong = "the first line is not METHOD TARGET HTTP/1.1 with single spaces";
    const char *target;
    if ((at = skip_token(at, end)) == NULL || at == end || *at != ' ') {
        fail_frame(f, 400, wrong);
        return;
    }
    for (target = ++at; at<end && * at> ' ' && *at < 127;) at++;
    if (at == target || end - at != 9 || memcmp(at, " HTTP/", 6) != 0 || at[6] < '0' || at[6] > '9' || at[7] != '.' ||
        at[8] < '0' || at[8] > '9')
        fail_frame(f, 400, wrong);
    else if (at[6] != '1' || at[8] > '1')
        fail_frame(f, 505, "versions 1.1 and 1.0 of HTTP are spoken");
    else
        f->is_old = at[8] == '0';
}

/* What the headers say of the length. */
typedef struct framing {
    int64_t lengths, codings, hosts, length;
    bool is_bad;
} framing;

static bool is_name(const char *name, int64_t n, const char *what) {
    return n == (int64_t)strlen(what) && strncasecmp(name, what, (size_t)n) == 0;
}

static void read_length(framing *found, const char *at, const char *end) {
    found->lengths++;
    found->length = 0;
    if (at == end || end - at > 18) found->is_bad = true;
    for (; at < end && !found->is_bad; at++) {
        if (*at < '0' || *at > '9')
            found->is_bad = true;
        else
            found->length = found->length * 10 + (*at - '0');
    }
}

static void read_header(ls_frame *f, framing *found, const char *at, const char *end) {
    const char *name = at, *colon = skip_token(at, end);
    int64_t n;
    if (colon == NULL || colon == end || *colon != ':') {
        fail_frame(f, 400, *at == ' ' || *at == '\t' ? "a header goes over two lines" : "a header is not NAME: VALUE");
        return;
    }
    n = colon - name;
    for (at = colon + 1; at < end && (*at == ' ' || *at == '\t');) at++;
    while (end > at && (end[-1] == ' ' || end[-1] == '\t')) end--;
    if (is_name(name, n, "Content-Length")) read_length(found, at, end);
    if (is_name(name, n, "Transfer-Encoding")) {
        found->codings++;
        found->is_bad = found->is_bad || !is_name(at, end - at, "chunked") || f->is_old;
    }
    if (is_name(name, n, "Host")) found->hosts++;
}

static void read_head(ls_frame *f) {
    const char *at = f->line, *const end = f->line + f->line_bytes - 2; /* the empty line */
    framing found = {0};
    for (bool first = true; at < end && f->state != LS_FRAME_BAD; first = false) {
        const char *stop = memchr(at, '\r', (size_t)(end - at));
        if (first)
            read_request_line(f, at, stop);
        else
            read_header(f, &found, at, stop);
        at = stop + 2;
    }
    if (f->state == LS_FRAME_BAD) return;
    if (found.is_bad || found.lengths + found.codings > 1 || found.hosts > 1 || (found.hosts == 0 && !f->is_old)) {
        fail_frame(f, 400, "the header does not say once and clearly how long the request is, and for whom");
        return;
    }
    if (!put_bytes_of(f, f->line, f->line_bytes)) return;
    f->line_bytes = 0;
    f->left = found.length;
    f->state = found.codings > 0 ? LS_FRAME_CHUNK_LINE : f->left > 0 ? LS_FRAME_BODY : LS_FRAME_END;
}

/* ---- lines as they come ---- */

/* One more byte of a head or line, held to what may stand there. True: it is complete, with its line break. */
static bool take_byte(ls_frame *f, char c, int64_t most, int status) {
    const char last = f->line_bytes > 0 ? f->line[f->line_bytes - 1] : '\0';
    if ((last == '\r') != (c == '\n'))
        fail_frame(f, 400, "CR and LF stand together, at the end of a line, and nowhere else");
    else if (((unsigned char)c < ' ' && c != '\t' && c != '\r' && c != '\n') || c == 127)
        fail_frame(f, 400, "a control character in a line");
    else if (f->line_bytes == most)
        fail_frame(f, status, "a line or all header lines are too long");
    else if (append_bytes(f, &f->line, &f->line_bytes, &f->line_cap, &c, 1))
        return c == '\n';
    return false;
}

static void take_head(ls_frame *f, char c) {
    const int64_t n = f->line_bytes + 1;
    if (!take_byte(f, c, LS_FRAME_HEAD_MAX, 431)) return;
    if (n == 2 && f->skipped) {
        fail_frame(f, 400, "empty lines where a request begins");
    } else if (n == 2) { /* one is passed over, as RFC 9112 wants it */
        f->skipped = true;
        f->line_bytes = 0;
    } else if (n >= 4 && f->line[n - 4] == '\r' && f->line[n - 3] == '\n') {
        read_head(f);
    }
}

static int digit_of(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

/* SIZE in hexadecimal digits, and perhaps ;EXTENSIONS. */
static void take_chunk_line(ls_frame *f, char c) {
    char text[24];
    int64_t i = 0, size = 0;
    if (!take_byte(f, c, LS_FRAME_LINE_MAX, 400)) return;
    for (; digit_of(f->line[i]) >= 0 && i < 15; i++) size = size * 16 + digit_of(f->line[i]);
    if (i == 0 || (f->line[i] != '\r' && f->line[i] != ';')) {
        fail_frame(f, 400, "a chunk does not begin with its size");
        return;
    }
    f->line_bytes = 0;
    f->left = size;
    f->state = size > 0 ? LS_FRAME_CHUNK : LS_FRAME_TRAILERS;
    (void)put_bytes_of(f, text, snprintf(text, sizeof text, "%llx\r\n", (unsigned long long)size));
}

static void take_chunk_end(ls_frame *f, char c) {
    if (!take_byte(f, c, 2, 400)) return;
    if (f->line_bytes != 2) {
        fail_frame(f, 400, "a chunk is longer than it says");
        return;
    }
    f->line_bytes = 0;
    if (put_bytes_of(f, "\r\n", 2)) f->state = LS_FRAME_CHUNK_LINE;
}

static void take_trailer(ls_frame *f, char c) {
    if (++f->trailers > LS_FRAME_TRAILERS_MAX) {
        fail_frame(f, 431, "the trailers are too long");
        return;
    }
    if (!take_byte(f, c, LS_FRAME_LINE_MAX, 431)) return;
    if (f->line_bytes == 2) {
        if (put_bytes_of(f, "\r\n", 2)) f->state = LS_FRAME_END;
    } else {
        const char *colon = skip_token(f->line, f->line + f->line_bytes);
        if (colon == NULL || *colon != ':') fail_frame(f, 400, "a trailer is not NAME: VALUE");
    }
    f->line_bytes = 0;
}

int64_t ls_frame_feed(ls_frame *f, const char *bytes, int64_t n) {
    int64_t i = 0;
    while (i < n) {
        const int64_t some = n - i < f->left ? n - i : f->left;
        switch (f->state) {
            case LS_FRAME_HEAD: take_head(f, bytes[i++]); break;
            case LS_FRAME_CHUNK_LINE: take_chunk_line(f, bytes[i++]); break;
            case LS_FRAME_CHUNK_END: take_chunk_end(f, bytes[i++]); break;
            case LS_FRAME_TRAILERS: take_trailer(f, bytes[i++]); break;
            case LS_FRAME_BODY:
            case LS_FRAME_CHUNK:
                if (!put_bytes_of(f, bytes + i, some)) return i;
                i += some;
                f->left -= some;
                if (f->left == 0) f->state = f->state == LS_FRAME_BODY ? LS_FRAME_END : LS_FRAME_CHUNK_END;
                break;
            case LS_FRAME_END:
            case LS_FRAME_BAD: return i;
        }
    }
    return i;
}

void ls_frame_reset(ls_frame *f) {
    free(f->out);
    free(f->line);
    memset(f, 0, sizeof *f);
}
