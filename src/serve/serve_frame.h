/* Where a request of HTTP/1.1 ends, read as RFC 9112 has it and no other way. Two readers that find another end in the
 * same bytes are how one request is smuggled behind another, so nothing here is lenient: a line ends with CR LF, and
 * neither stands elsewhere in it; a header has no folded lines; a length is told once, in digits, or the body is
 * chunked and nothing else. What goes on to the HTTP library is a head as it came, a body, and chunks whose lines are
 * written anew, without extensions and trailers. */
#ifndef LS_SERVE_SERVE_FRAME_H
#define LS_SERVE_SERVE_FRAME_H

#include "base/status.h"

enum { LS_FRAME_HEAD_MAX = 60000, LS_FRAME_LINE_MAX = 4096, LS_FRAME_TRAILERS_MAX = 8192 };

typedef enum ls_frame_state {
    LS_FRAME_HEAD,
    LS_FRAME_BODY,
    LS_FRAME_CHUNK_LINE,
    LS_FRAME_CHUNK,
    LS_FRAME_CHUNK_END,
    LS_FRAME_TRAILERS,
    LS_FRAME_END, /* the request is whole */
    LS_FRAME_BAD  /* it is none: status and why */
} ls_frame_state;

typedef struct ls_frame {
    ls_frame_state state;
    char *out; /* to go on to the library; the caller takes from it what it has sent */
    int64_t out_bytes, out_cap;
    char *line; /* the head so far, or a line of a chunk or trailer */
    int64_t line_bytes, line_cap;
    int64_t left;     /* of the body or chunk */
    int64_t trailers; /* bytes */
    bool is_old;      /* HTTP/1.0 */
    bool skipped;     /* an empty line before the head */
    int status;       /* of a bad one: 400, 431, 505; 500: no memory */
    const char *why;
} ls_frame;

/* Takes bytes of one request, up to its end, and returns how many. */
int64_t ls_frame_feed(ls_frame *frame, const char *bytes, int64_t n);
/* For the next request; out must be empty. Keeps no memory. */
void ls_frame_reset(ls_frame *frame);

#endif
