/* Lines of a resident program, and programs that do not keep to them. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "diagnose/bits/bits_run.h"
#include "diagnose/trial/resident.h"
#include "harness.h"

static void test_lines(void **state) {
    static const struct {
        const char *line;
        ls_status greeting, answer;
        const char *said; /* of the answer */
    } all[] = {
        {"{\"lockstep\": 1}", LS_OK, LS_ERR_FORMAT, "'ok' is missing"},
        {"{\"lockstep\": 2, \"ok\": true}", LS_OK, LS_OK, ""},
        {"{\"lockstep\": 3, \"ok\": true}", LS_ERR_FORMAT, LS_OK, ""},
        {" {\"ok\" : true} ", LS_ERR_FORMAT, LS_OK, ""},
        {"{\"ok\": false, \"error\": \"\\\"ok\\\": true\"}", LS_ERR_FORMAT, LS_ERR_UNSUPPORTED, "p: \"ok\": true"},
        {"{\"ok\": false}", LS_ERR_FORMAT, LS_ERR_UNSUPPORTED, "says no more"},
        {"{\"ok\": false, \"error\": 3}", LS_ERR_FORMAT, LS_ERR_FORMAT, "error: "},
        {"{\"ok\": 1}", LS_ERR_FORMAT, LS_ERR_FORMAT, "ok: "},
        {"loading \"lockstep\" \"ok\": true", LS_ERR_FORMAT, LS_ERR_FORMAT, "invalid JSON"},
        {"", LS_ERR_FORMAT, LS_ERR_FORMAT, "empty"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        ls_error err = {.text = ""};
        int version = 0;
        assert_int_equal(ls_resident_greeting(&version, all[i].line, "p", &err), all[i].greeting);
        err.text[0] = '\0';
        assert_int_equal(ls_resident_answer(all[i].line, "p", &err), all[i].answer);
        assert_non_null(strstr(err.text, all[i].said));
    }
}

/* A shell script as the resident scorer of one token; what is said of it, and as what it counts. */
static void expect_said(const char *script, double timeout, const char *said, ls_failure kind) {
    char directory[] = "/tmp/lockstep-resident-XXXXXX", path[64];
    const int32_t tokens[2] = {1, 2};
    float values[1];
    const ls_scored list = {.tokens = tokens, .n = 2, .values = values};
    const ls_trial trial = {.sampling = {.temperature = 1.0f}, .limits = {.timeout = timeout}};
    ls_error err = {.text = ""};
    assert_non_null(mkdtemp(directory));
    snprintf(path, sizeof path, "%s/scorer", directory);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fprintf(file, "#!/bin/sh\n%s\n", script);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(chmod(path, 0700), 0);
    ls_program_subject program = {.program = path, .model = "m", .directory = directory, .resident = true};
    const ls_scorer scorer = ls_scorer_program(&program);
    assert_int_not_equal(scorer.score(scorer.context, &trial, &list, 1, &err), LS_OK);
    assert_int_equal(program.why, kind);
    ls_program_subject_end(&program);
    if (strstr(err.text, said) == NULL) fail_msg("'%s' is not in: %s", said, err.text);
    unlink(path);
    assert_int_equal(rmdir(directory), 0);
}

static void test_programs(void **state) {
    (void)state;
    expect_said("exit 3", 20.0, "ended with exit code 3 without an answer", LS_FAILURE_DIED);
    expect_said("echo '{\"lockstep\": 1}'; read x; kill -9 $$", 20.0, "died of signal 9 without an answer",
                LS_FAILURE_DIED);
    expect_said("echo loading; read x", 20.0, "invalid JSON", LS_FAILURE_NONE);
    expect_said("echo '{\"lockstep\": 1}'; read x; echo '{\"ok\": false, \"error\": \"no scores\"}'; read x", 20.0,
                "no scores", LS_FAILURE_REFUSED);
    expect_said("echo '{\"lockstep\": 1}'; exec <&- >&-; exec sleep 20", 20.0, "closed its output without an answer",
                LS_FAILURE_DIED);
    expect_said("exec sleep 20", 0.1, "no answer after 0.1 s", LS_FAILURE_TIMED_OUT);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_lines), cmocka_unit_test(test_programs)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
