/* Where requests end: what is taken, what is not, and that both do not depend on how the bytes are cut. */
#include <stdlib.h>

#include "harness.h"
#include "serve/serve_frame.h"

#define HEAD "POST /x HTTP/1.1\r\nHost: a\r\n"
#define CHUNKED HEAD "Transfer-Encoding: chunked\r\n\r\n"

/* Feeds `step` bytes at a time and returns how many were taken in all. */
static int64_t feed(ls_frame *f, const char *text, int64_t n, int64_t step) {
    int64_t at = 0;
    while (at < n) {
        const int64_t some = n - at < step ? n - at : step;
        char *copy = malloc((size_t)some); /* so that a read beyond it is seen */
        int64_t used;
        assert_non_null(copy);
        memcpy(copy, text + at, (size_t)some);
        used = ls_frame_feed(f, copy, some);
        free(copy);
        at += used;
        if (used < some) break;
    }
    return at;
}

static void whole_requests_go_on(void **state) {
    static const struct {
        const char *in, *out, *behind; /* out NULL: as it came */
    } cases[] = {
        {"GET / HTTP/1.1\r\nHost: a\r\n\r\n", NULL, ""},
        {"GET / HTTP/1.0\r\n\r\n", NULL, ""},
        {"\r\nGET / HTTP/1.1\r\nHost:\r\n\r\n", "GET / HTTP/1.1\r\nHost:\r\n\r\n", ""},
        {HEAD "Content-Length: 5\r\n\r\nabc\r\n", NULL, "GET"},
        {HEAD "content-length:  5\t\r\n\r\n\n\n\r\r\r", NULL, "GET / HTTP/1.1\r\n"},
        {HEAD "Content-Length: 0\r\n\r\n", NULL, "x"},
        {HEAD "X: \xc3\xa4\t \"'\r\n\r\n", NULL, ""},
        {CHUNKED "5\r\nab\r\nc\r\n0\r\n\r\n", NULL, "GET"},
        {CHUNKED "00A;x=\"y\"; z\r\n0123456789\r\n000\r\nTrailer: 1\r\nOther:\r\n\r\n",
         CHUNKED "a\r\n0123456789\r\n0\r\n\r\n", "\r\n"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (int64_t step = 1; step < 40; step++) {
            const char *wanted = cases[i].out != NULL ? cases[i].out : cases[i].in;
            const int64_t n = (int64_t)strlen(cases[i].in);
            char text[512];
            ls_frame f = {0};
            snprintf(text, sizeof text, "%s%s", cases[i].in, cases[i].behind);
            if (feed(&f, text, (int64_t)strlen(text), step) != n || f.state != LS_FRAME_END)
                fail_msg("%s: %s", cases[i].in, f.why != NULL ? f.why : "no end");
            assert_int_equal(f.out_bytes, (int64_t)strlen(wanted));
            assert_memory_equal(f.out, wanted, (size_t)f.out_bytes);
            ls_frame_reset(&f);
        }
    }
}

static void what_is_read_in_two_ways_is_refused(void **state) {
    static const struct {
        const char *in;
        int status;
    } cases[] = {
        {"GET / HTTP/1.1\nHost: a\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nHost: a\n\r\n", 400},
        {HEAD "\n", 400},
        {HEAD "X: a\rY: b\r\n\r\n", 400},
        {HEAD "X: a\r\r\n\r\n", 400},
        {HEAD "X: a\x01\r\n\r\n", 400},
        {HEAD "X: a\x7f\r\n\r\n", 400},
        {HEAD "X : a\r\n\r\n", 400},
        {HEAD ": a\r\n\r\n", 400},
        {HEAD "X\r\n\r\n", 400},
        {HEAD "X: a\r\n b\r\n\r\n", 400},
        {HEAD "Content-Length: 5\r\nContent-Length: 5\r\n\r\n", 400},
        {HEAD "Content-Length: 5, 5\r\n\r\n", 400},
        {HEAD "Content-Length: +5\r\n\r\n", 400},
        {HEAD "Content-Length: -1\r\n\r\n", 400},
        {HEAD "Content-Length: 0x5\r\n\r\n", 400},
        {HEAD "Content-Length:\r\n\r\n", 400},
        {HEAD "Content-Length: 5 5\r\n\r\n", 400},
        {HEAD "Content-Length: 99999999999999999999\r\n\r\n", 400},
        {HEAD "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
        {HEAD "Transfer-Encoding: gzip, chunked\r\n\r\n", 400},
        {HEAD "Transfer-Encoding: xchunked\r\n\r\n", 400},
        {HEAD "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
        {HEAD "Transfer-Encoding:\x0b"
              "chunked\r\n\r\n",
         400},
        {"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
        {HEAD "Host: a\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\n\r\n", 400},
        {"GET  / HTTP/1.1\r\nHost: a\r\n\r\n", 400},
        {"GET /\xc3\xa4 HTTP/1.1\r\nHost: a\r\n\r\n", 400},
        {"GET /\tHTTP/1.1\r\nHost: a\r\n\r\n", 400},
        {"GET / HTTP/1.1 \r\nHost: a\r\n\r\n", 400},
        {"GET / HTTP/1\r\nHost: a\r\n\r\n", 400},
        {"GET /\r\nHost: a\r\n\r\n", 400},
        {" GET / HTTP/1.1\r\nHost: a\r\n\r\n", 400},
        {"\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", 400},
        {"GET / HTTP/2.0\r\nHost: a\r\n\r\n", 505},
        {"GET / HTTP/1.2\r\nHost: a\r\n\r\n", 505},
        {CHUNKED "5\nabcde\r\n0\r\n\r\n", 400},
        {CHUNKED "5\r\nabcde\n0\r\n\r\n", 400},
        {CHUNKED "5\r\nabcdef\r\n0\r\n\r\n", 400},
        {CHUNKED "\r\n", 400},
        {CHUNKED "5 \r\n", 400},
        {CHUNKED " 5\r\n", 400},
        {CHUNKED "0x5\r\n", 400},
        {CHUNKED "-5\r\n", 400},
        {CHUNKED "ffffffffffffffff\r\n", 400},
        {CHUNKED "5;a\nb\r\n", 400},
        {CHUNKED "0\r\n\n", 400},
        {CHUNKED "0\r\nX\r\n\r\n", 400},
        {CHUNKED "0\r\n X: 1\r\n\r\n", 400},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (int64_t step = 1; step < 40; step += 6) {
            ls_frame f = {0};
            (void)feed(&f, cases[i].in, (int64_t)strlen(cases[i].in), step);
            if (f.state != LS_FRAME_BAD) fail_msg("taken: %s", cases[i].in);
            if (f.status != cases[i].status) fail_msg("%s: %d, %s", cases[i].in, f.status, f.why);
            if (f.out_bytes > 0 && strncmp(cases[i].in, CHUNKED, strlen(CHUNKED)) != 0)
                fail_msg("a head goes on: %s", cases[i].in);
            ls_frame_reset(&f);
        }
    }
}

static void lines_are_bounded(void **state) {
    ls_frame f = {0};
    int64_t n = 0;
    (void)state;
    assert_int_equal(ls_frame_feed(&f, HEAD "X: ", (int64_t)strlen(HEAD "X: ")), (int64_t)strlen(HEAD "X: "));
    while (f.state != LS_FRAME_BAD && n < 1 << 20) n += ls_frame_feed(&f, "a", 1);
    assert_int_equal(f.status, 431);
    assert_true(n <= LS_FRAME_HEAD_MAX && f.line_cap <= 2 * LS_FRAME_HEAD_MAX);
    ls_frame_reset(&f);
    assert_int_equal(ls_frame_feed(&f, CHUNKED "0\r\n", (int64_t)strlen(CHUNKED "0\r\n")),
                     (int64_t)strlen(CHUNKED "0\r\n"));
    for (n = 0; f.state != LS_FRAME_BAD && n < 1 << 20; n++) (void)ls_frame_feed(&f, "X: y\r\n", 6);
    assert_int_equal(f.status, 431);
    assert_true(n <= LS_FRAME_TRAILERS_MAX);
    ls_frame_reset(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_requests_go_on),
        cmocka_unit_test(what_is_read_in_two_ways_is_refused),
        cmocka_unit_test(lines_are_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
