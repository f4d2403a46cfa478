/* lockstep report: a page to a file or standard output, and refusals without output. */
#define _GNU_SOURCE
#include "program.h"
#include "run/run.h"

static void make_run(const char *dir) {
    const ls_run_setup setup = {.kind = "sft", .config = "lr = 1e-4", .config_bytes = -1};
    ls_run *run;
    ls_error err;
    assert_ok(ls_run_open(&run, dir, &setup, &err), err);
    for (int64_t step = 1; step < 9; step++) {
        assert_ok(ls_run_step_begin(run, step, &err), err);
        ls_run_metric(run, LS_METRIC_LOSS, 1.0 / (double)step);
        assert_ok(ls_run_step_commit(run, &err), err);
    }
    ls_run_close(run);
}

static void a_run_becomes_a_page(void **state) {
    char *page;
    size_t bytes;
    (void)state;
    make_run(at("run"));
    RUN_OK("report", at("run"));
    assert_non_null(strstr(last.out, "<h1>lockstep run</h1>"));
    assert_non_null(strstr(last.out, "8 steps from 1 to 8"));
    assert_string_equal(last.err, "");
    RUN_OK("report", at("run"), "--out", at("out/page.html"));
    assert_string_equal(last.out, "");
    page = file_read(at("out/page.html"), &bytes);
    assert_non_null(strstr(page, "loss: last 0.125, 0.125 to 1"));
    assert_string_equal(page + bytes - 8, "</html>\n");
    free(page);
    remove(at("out/page.html"));
}

static void what_is_no_run_is_refused(void **state) {
    (void)state;
    RUN("report", at("nothing"), "--out", at("out/page.html"));
    must_refuse_without_output("nothing/run.sqlite: no such file");
    RUN("report", at("run"), "--out", "/nonexistent/page.html");
    must_refuse("/nonexistent/page.html|cannot create");
    text_write(at("run/run.sqlite"), "");
    RUN("report", at("run"), "--out", at("out/page.html"));
    must_refuse_without_output("run.sqlite|not of a run");
    RUN("report");
    must_exit(1);
    assert_non_null(strstr(last.err, "the directory of a run is needed"));
    RUN("report", "a", "b");
    must_refuse("a/run.sqlite: no such file");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_run_becomes_a_page),
        cmocka_unit_test(what_is_no_run_is_refused),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
