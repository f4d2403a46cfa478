/* URLs with credentials: nothing of them is written down or said, and what was written down is used again. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "base/url.h"
#include "harness.h"

static void redacted(const char *text, const char *want) {
    char out[400];
    ls_url_redact(out, sizeof out, text);
    assert_string_equal(out, want);
    ls_url_redact(out, sizeof out, want); /* once more changes nothing */
    assert_string_equal(out, want);
}

static void credentials_are_not_said(void **state) {
    char small[12];
    (void)state;
    redacted("", "");
    redacted("models/tiny-sort", "models/tiny-sort");
    redacted("http://host:80/judge", "http://host:80/judge");
    redacted("http://u:p@host:80/judge?x=1", "http://REDACTED@host:80/judge?x=1");
    redacted("https://token@host", "https://REDACTED@host");
    redacted("http://u:p@x@host/a@b", "http://REDACTED@host/a@b");
    redacted("http://u:p,q@host", "http://REDACTED@host");
    redacted("http://a:1,http://u:p@b:2,https://c/d", "http://a:1,http://REDACTED@b:2,https://c/d");
    redacted("http://h/?api_key=1234&n=3&Token=t#x", "http://h/?api_key=REDACTED&n=3&Token=REDACTED#x");
    redacted("http://h/?sig=a,http://u@i", "http://h/?sig=REDACTED,http://REDACTED@i");
    redacted("curl -s 'http://u:p@h/x' | judge --at me@home", "curl -s 'http://REDACTED@h/x' | judge --at me@home");
    redacted("http://u:p@onehttp://two/x", "http://REDACTED@onehttp://two/x");
    redacted("http://h/x?to=http://u:p@i/", "http://h/x?to=http://REDACTED@i/");
    redacted("http://h/http://u:p@i/", "http://h/http://REDACTED@i/");
    redacted("://", "://");
    redacted("a://@b", "a://REDACTED@b");
    ls_url_redact(small, sizeof small, "http://u:secret@host");
    assert_string_equal(small, "http://REDA");
}

static void what_was_kept_is_used_again(void **state) {
    char out[60];
    ls_error err;
    (void)state;
    (void)unsetenv(LS_URL_VARIABLE);
    assert_ok(ls_url_complete(out, sizeof out, "http://u:p@host/x", "reward_url", &err), err);
    assert_string_equal(out, "http://u:p@host/x");
    check_failed(ls_url_complete(out, sizeof out, "http://REDACTED@host/x", "reward_url", &err), &err,
                 "reward_url: user and password of http://REDACTED@host/x are not kept");
    check_failed(err.status, &err, LS_URL_VARIABLE);
    (void)setenv(LS_URL_VARIABLE, "me:mine", 1);
    assert_ok(ls_url_complete(out, sizeof out, "http://REDACTED@host/x", "reward_url", &err), err);
    assert_string_equal(out, "http://me:mine@host/x");
    check_failed(ls_url_complete(out, sizeof out, "http://host/?key=REDACTED", "reward_url", &err), &err,
                 "a key in the query");
    check_failed(ls_url_complete(out, 10, "http://host/x", "reward_url", &err), &err, "too long");
    (void)unsetenv(LS_URL_VARIABLE);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(credentials_are_not_said),
                                       cmocka_unit_test(what_was_kept_is_used_again)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
