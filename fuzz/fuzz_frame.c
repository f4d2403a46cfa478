/* Any bytes as what a client sends. Cut anywhere they are read the same; what goes on to the library is a request that
 * reads as itself, with every line ended by CR LF; what is refused says why. The first byte says how they are cut. */
#include <stdlib.h>
#include <string.h>

#include "serve/serve_frame.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

static int64_t feed(ls_frame *f, const char *bytes, int64_t n, int64_t step) {
    int64_t at = 0;
    while (at < n) {
        const int64_t some = n - at < step ? n - at : step;
        char *copy = malloc((size_t)some);
        int64_t used;
        if (copy == NULL) abort();
        memcpy(copy, bytes + at, (size_t)some);
        used = ls_frame_feed(f, copy, some);
        free(copy);
        if (used < 0 || used > some) abort();
        at += used;
        if (used < some) break;
    }
    return at;
}

/* The head has no line that ends otherwise. */
static void check_head(const char *out, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        if ((out[i] == '\n') != (i > 0 && out[i - 1] == '\r')) abort();
        if (i >= 3 && memcmp(out + i - 3, "\r\n\r\n", 4) == 0) return;
    }
    abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes) {
    ls_frame one = {0}, cut = {0}, again = {0};
    const char *bytes = (const char *)data + 1;
    int64_t n, used;
    if (n_bytes < 1) return 0;
    n = (int64_t)n_bytes - 1;
    used = feed(&one, bytes, n, n > 0 ? n : 1);
    if (feed(&cut, bytes, n, 1 + data[0] % 16) != used || cut.state != one.state || cut.status != one.status ||
        cut.out_bytes != one.out_bytes || (cut.out_bytes > 0 && memcmp(cut.out, one.out, (size_t)cut.out_bytes) != 0))
        abort();
    if (one.state == LS_FRAME_BAD && (one.why == NULL || one.status < 400)) abort();
    if (one.state != LS_FRAME_END && one.state != LS_FRAME_BAD && used != n) abort();
    if (one.out_bytes > 0) check_head(one.out, one.out_bytes);
    if (one.state == LS_FRAME_END) {
        if (feed(&again, one.out, one.out_bytes, one.out_bytes) != one.out_bytes || again.state != LS_FRAME_END ||
            again.out_bytes != one.out_bytes || memcmp(again.out, one.out, (size_t)one.out_bytes) != 0)
            abort();
    }
    ls_frame_reset(&one);
    ls_frame_reset(&cut);
    ls_frame_reset(&again);
    return 0;
}
