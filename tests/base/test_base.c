/* Base layer: checked sizes, UTF-8 against table 3-7, atomic output, thread splits, JSON escapes. */
#define _GNU_SOURCE
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/parallel.h"
#include "base/utf8.h"
#include "harness.h"
#include "json/json_out.h"

static void sizes_are_checked(void **state) {
    int64_t out = 7;
    void *array;
    ls_error err;
    (void)state;
    assert_true(ls_mul_i64(1 << 20, 1 << 20, &out));
    assert_int_equal(out, (int64_t)1 << 40);
    assert_false(ls_mul_i64(INT64_MAX, 2, &out));
    assert_false(ls_mul_i64(-1, 2, &out));
    assert_false(ls_add_i64(INT64_MAX, 1, &out));
    check_failed(ls_array_alloc(&array, INT64_MAX / 2, 4, "huge", &err), &err, "huge");
    assert_null(array);
    check_failed(ls_array_alloc(&array, INT64_MAX - 10, 1, "edge", &err), &err, "edge");
}

static void durations_are_for_people(void **state) {
    static const struct {
        double seconds;
        const char *text;
    } cases[] = {{-1, "0 s"},         {0.4, "0 s"},        {99.4, "99 s"},           {100, "2 min"},
                 {720, "12 min"},     {5969, "99 min"},    {6000, "1 h 40 min"},     {12000, "3 h 20 min"},
                 {172800, "2 d 0 h"}, {187200, "2 d 4 h"}, {1e300, "1157407 d 10 h"}};
    char text[LS_DURATION_TEXT_MAX];
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ls_duration_text(text, cases[i].seconds);
        assert_string_equal(text, cases[i].text);
    }
}

static void utf8_follows_the_standard(void **state) {
    int32_t code;
    (void)state;
    for (int32_t c = 0; c <= 0x10FFFF; c++) {
        uint8_t bytes[4];
        int64_t n;
        if (c >= 0xD800 && c <= 0xDFFF) continue;
        n = ls_utf8_encode(c, bytes);
        assert_int_equal(ls_utf8_decode(bytes, n, &code), n);
        assert_int_equal(code, c);
    }
    /* Maximal subparts of the standard's own example: 61 F1 80 80 E1 80 C2 62. */
    const uint8_t text[] = {0x61, 0xF1, 0x80, 0x80, 0xE1, 0x80, 0xC2, 0x62};
    const int64_t lengths[] = {1, 3, 2, 1, 1};
    const int32_t codes[] = {0x61, -1, -1, -1, 0x62};
    int64_t at = 0;
    for (int i = 0; i < 5; i++) {
        assert_int_equal(ls_utf8_decode(text + at, 8 - at, &code), lengths[i]);
        assert_int_equal(code, codes[i]);
        at += lengths[i];
    }
    const char *bad[] = {"\xC0\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xE0\x9F\xBF", "\xFF", "\xE2\x82"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_false(ls_utf8_valid((const uint8_t *)bad[i], (int64_t)strlen(bad[i])));
}

static void output_appears_only_when_complete(void **state) {
    char directory[] = "/tmp/ls-test-XXXXXX", path[64], *text;
    ls_output *output;
    ls_error err;
    int64_t bytes;
    (void)state;
    assert_non_null(mkdtemp(directory));
    snprintf(path, sizeof path, "%s/out", directory);
    assert_ok(ls_output_open(&output, path, &err), err);
    fputs("half", ls_output_stream(output));
    assert_false(ls_file_exists(path));
    ls_output_abandon(output);
    assert_false(ls_file_exists(path));
    assert_ok(ls_output_open(&output, path, &err), err);
    fputs("whole", ls_output_stream(output));
    assert_ok(ls_output_commit(output, &err), err);
    assert_ok(ls_file_read(&text, &bytes, path, 100, &err), err);
    assert_string_equal(text, "whole");
    free(text);
    check_failed(ls_file_read(&text, &bytes, path, 3, &err), &err, "limit is 3");
    unlink(path);
    assert_int_equal(rmdir(directory), 0); /* no temporary left behind */
    check_failed(ls_output_open(&output, "/no-such-directory/x", &err), &err, "/no-such-directory/x");
}

static void mark(void *context, int64_t begin, int64_t end, int32_t thread_i) {
    int32_t *seen = context;
    (void)thread_i;
    for (int64_t i = begin; i < end; i++) seen[i]++;
}

static void every_item_runs_once(void **state) {
    (void)state;
    for (int32_t threads = 1; threads <= 5; threads++) {
        ls_pool *pool;
        ls_error err;
        assert_ok(ls_pool_create(&pool, threads, &err), err);
        for (int64_t n = 0; n < 40; n++)
            for (int64_t grain = 1; grain < 9; grain += 3) {
                int32_t seen[40] = {0};
                ls_parallel_for(pool, n, grain, mark, seen);
                for (int64_t i = 0; i < 40; i++) assert_int_equal(seen[i], i < n);
            }
        ls_pool_free(pool);
    }
}

/* Jobs so short that threads come late to most of them, when the caller has run their parts and gone on. */
static void late_threads_do_no_harm(void **state) {
    ls_pool *pool;
    ls_error err;
    int32_t seen[8] = {0};
    (void)state;
    assert_ok(ls_pool_create(&pool, ls_cpu_count() + 2, &err), err);
    for (int32_t job = 1; job <= 20000; job++) {
        const int64_t n = 1 + job % 8;
        ls_parallel_for(pool, n, 1, mark, seen);
        for (int64_t i = 0; i < 8; i++) {
            assert_int_equal(seen[i], i < n);
            seen[i] = 0;
        }
    }
    ls_pool_free(pool);
}

static void json_is_escaped(void **state) {
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);
    ls_json_out json;
    (void)state;
    ls_json_init(&json, file);
    ls_json_begin_object(&json, NULL);
    ls_json_string(&json, "a\"b", "line\nend\x01\xFF");
    ls_json_begin_array(&json, "n");
    ls_json_int(&json, NULL, -3);
    ls_json_float(&json, NULL, 0.1f);
    ls_json_null(&json, NULL);
    ls_json_end_array(&json);
    ls_json_end_object(&json);
    fclose(file);
    assert_string_equal(text, "{\"a\\\"b\":\"line\\nend\\u0001\xEF\xBF\xBD\",\"n\":[-3,0.100000001,null]}");
    free(text);
}

static void note_number(void *context, const char *path, double value) {
    char *text = context;
    sprintf(text + strlen(text), "%s=%g ", path, value);
}

static void json_can_be_told(void **state) {
    char text[256] = "";
    ls_json_out json;
    (void)state;
    ls_json_init_visit(&json, note_number, text);
    ls_json_begin_object(&json, NULL);
    ls_json_int(&json, "a", -3);
    ls_json_begin_object(&json, "b");
    ls_json_string(&json, "skipped", "text");
    ls_json_null(&json, "skipped too");
    ls_json_float(&json, "c/d", 0.5f);
    ls_json_begin_array(&json, "list");
    ls_json_null(&json, NULL);
    ls_json_uint(&json, NULL, 7);
    ls_json_begin_object(&json, NULL);
    ls_json_bool(&json, "yes", true);
    ls_json_end_object(&json);
    ls_json_end_array(&json);
    ls_json_end_object(&json);
    ls_json_double(&json, "e", (double)INFINITY);
    ls_json_end_object(&json);
    ls_json_newline(&json);
    ls_json_int(&json, NULL, 1);
    assert_string_equal(text, "a=-3 b/c/d=0.5 b/list/1=7 b/list/2/yes=1 e=inf =1 ");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_are_checked),         cmocka_unit_test(durations_are_for_people),
        cmocka_unit_test(utf8_follows_the_standard), cmocka_unit_test(output_appears_only_when_complete),
        cmocka_unit_test(every_item_runs_once),      cmocka_unit_test(late_threads_do_no_harm),
        cmocka_unit_test(json_is_escaped),           cmocka_unit_test(json_can_be_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
