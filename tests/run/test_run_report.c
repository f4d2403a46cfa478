/* The page of a run: its structure, what it must say, what it must not contain, its size. */
#define _GNU_SOURCE
#include <math.h>

#include "base/html_out.h"
#include "cli/program.h"
#include "run/run_db.h"
#include "run/run_report.h"

static const ls_run_setup setup = {.kind = "grpo", .config = "clip = 0.2 <&>\n", .config_bytes = -1};

/* The page without its style; the caller frees it. */
static char *page_of(const char *dir) {
    ls_history h;
    ls_history_sample *samples;
    ls_error err;
    int64_t n;
    char *page = NULL, *begin, *end;
    size_t bytes = 0;
    FILE *file = open_memstream(&page, &bytes);
    assert_non_null(file);
    assert_ok(ls_history_read(&h, dir, &err), err);
    assert_ok(ls_report_samples(&samples, &n, dir, &h, &err), err);
    assert_ok(ls_report_write(file, dir, &h, samples, n, &err), err);
    assert_int_equal(fclose(file), 0);
    ls_history_samples_free(samples, n);
    ls_history_deinit(&h);
    assert_int_equal(strlen(page), bytes);
    begin = strstr(page, "<style>");
    end = strstr(page, "</style>");
    assert_true(begin != NULL && end > begin);
    memmove(begin, end + 8, strlen(end + 8) + 1);
    return page;
}

/* Every element that is opened is closed, in order; attributes are quoted; no & but that of an entity. */
static void must_be_well_formed(const char *page) {
    static const char *const empty[] = {"!DOCTYPE", "meta", NULL};
    char open[64][16];
    int depth = 0;
    for (const char *at = page; *at != '\0'; at++) {
        char name[16] = "";
        bool closing, self = false;
        if (*at == '&' && strncmp(at, "&amp;", 5) != 0 && strncmp(at, "&lt;", 4) != 0 && strncmp(at, "&gt;", 4) != 0 &&
            strncmp(at, "&quot;", 6) != 0)
            fail_msg("a bare & at '%.40s'", at);
        if (*at == '>') fail_msg("a bare > at '%.40s'", at - 20);
        if (*at != '<') continue;
        closing = at[1] == '/';
        at += 1 + closing;
        for (int i = 0; i < 15 && *at != '>' && *at != ' ' && *at != '/'; i++) name[i] = *at++, name[i + 1] = '\0';
        while (*at != '>') {
            if (*at == '"') at = strchr(at + 1, '"');
            assert_true(at != NULL && *at != '\0' && *at != '<');
            self = *at == '/' && at[1] == '>';
            at++;
        }
        for (int i = 0; empty[i] != NULL; i++) self = self || strcmp(empty[i], name) == 0;
        if (self) continue;
        if (closing) {
            if (depth == 0 || strcmp(open[--depth], name) != 0) fail_msg("</%s> closes <%s>", name, open[depth]);
        } else {
            assert_true(depth < 64);
            memcpy(open[depth++], name, sizeof name);
        }
    }
    assert_int_equal(depth, 0);
}

static int64_t count_of(const char *text, const char *word) {
    int64_t n = 0;
    for (const char *at = text; (at = strstr(at, word)) != NULL; at++) n++;
    return n;
}

static void must_say(const char *page, const char *words) {
    char list[1024], *word, *rest = list;
    const char *at = page;
    snprintf(list, sizeof list, "%s", words);
    while ((word = strsep(&rest, "|")) != NULL) {
        const char *found = strstr(at, word);
        if (found == NULL) fail_msg("the page does not say '%s' in its place: %.3000s", word, at);
        at = found + strlen(word);
    }
}

static void must_stand_alone(const char *page) {
    static const char *const words[] = {
        "<script", "href=", "src=", "http:", "https:", "url(", "@import", "onload", "<img"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (strstr(page, words[i]) != NULL) fail_msg("the page contains '%s'", words[i]);
    assert_non_null(strstr(page, "default-src 'none'"));
}

static void a_small_run_has_its_page(void **state) {
    static const char hostile[] = "<script>alert(\"1\")</script>\0&\xFF</pre>";
    ls_run *run;
    ls_error err;
    char *page;
    (void)state;
    assert_ok(ls_run_open(&run, at("small"), &setup, &err), err);
    for (int64_t step = 1; step <= 5; step++) {
        assert_ok(ls_run_step_begin(run, step, &err), err);
        ls_run_metric(run, LS_METRIC_REWARD, -1.0 + 0.25 * (double)step);
        ls_run_metric(run, LS_METRIC_LENGTH, 10.0);
        ls_run_metric(run, "loss/entropy", step == 3 ? (double)NAN : 2.0 / (double)step);
        ls_run_metric(run, "loss/reference_kl", 0.001 * (double)step);
        ls_run_metric(run, "mismatch/abs_max", 0.0);
        ls_run_metric(run, "mismatch_bf16/abs_max", 0.125);
        ls_run_metric(run, "odd & <name>", 3.0);
        ls_run_gate_add(run, &(ls_run_gate){"roll<out>", 50, 0, 0.0, 0.0, 0.0, 0.0, true});
        ls_run_gate_add(run, &(ls_run_gate){"cache", 50, step == 4, 0.5 * (step == 4), 0.0, 0.0, 0.0, step != 4});
        for (int i = 0; i < 4; i++)
            ls_run_sample_add(run,
                              &(ls_run_sample){"q1", "2+2=", hostile, 4, sizeof hostile - 1, 1.0, -0.5, 4, 7, "stop"});
        assert_ok(ls_run_step_commit(run, &err), err);
    }
    ls_run_close(run);
    page = page_of(at("small"));
    must_stand_alone(page);
    must_be_well_formed(page);
    must_say(
        page,
        "<h1>lockstep run</h1>|small: grpo, begun 2|, 5 steps from 1 to 5, |<div class=\"box\">|1 of 10 bit checks "
        "failed, the first at step 4|1 of 500 tokens differ|<h2>Curves</h2>|>Reward<|<polyline|mean: last 0.25, -0.75 "
        "to 0.25|>Length of completions<|mean: 10 throughout|>Entropy<|>KL<|>Trainer against rollout: largest"
        "|this run: 0 throughout|in bf16 that varies with the batch: 0.125 throughout|>Tokens that differ in the "
        "bit check<|<h2>Bit checks</h2>|cache</td><td>5</td><td>4</td><td>250</td><td>1</td><td>0.5</td>|step "
        "4|roll&lt;out&gt;</td><td>5</td><td>5</td>|The first that failed|<h2>Completions</h2>|Step 1, "
        "<b>q1</b>, prompt of 4 tokens|2+2=|reward 1, advantage -0.5, 7 tokens, stop|&lt;script&gt;alert(&quot;1&quot;)"
        "&lt;/script&gt;\xEF\xBF\xBD&amp;\xEF\xBF\xBD&lt;/pre&gt;</pre>|Step 5, "
        "|<h2>Configuration</h2>|lockstep " LS_VERSION
        "|clip = 0.2 &lt;&amp;&gt;|<h2>Measures</h2>|reward/mean</td><td class=\"n\">5</td>|odd &amp; &lt;name&gt;");
    assert_int_equal(count_of(page, "reward 1, advantage"), 4 * 3);
    assert_int_equal(count_of(page, "<svg"), 4);
    assert_int_equal(count_of(page, "<p class=\"flat\">"), 2); /* what never moves is a line of text */
    /* The gap at step 3 parts the line of the entropy in two. */
    assert_int_equal(
        count_of(strstr(page, "<title>Entropy"), "<polyline") - count_of(strstr(page, "<title>KL"), "<polyline"), 2);
    free(page);
}

static void empty_and_resumed_runs_have_pages(void **state) {
    ls_run_setup again = setup;
    ls_run *run;
    ls_error err;
    char *page;
    (void)state;
    assert_ok(ls_run_open(&run, at("empty"), &setup, &err), err);
    ls_run_close(run);
    page = page_of(at("empty"));
    must_be_well_formed(page);
    must_say(page, "No step is recorded.|Configuration");
    free(page);
    again.resume = true;
    for (int i = 0; i < 2; i++) {
        if (i == 1) again.config = "new";
        assert_ok(ls_run_open(&run, at("empty"), &again, &err), err);
        assert_ok(ls_run_step_begin(run, 1, &err), err);
        ls_run_metric(run, LS_METRIC_REWARD, (double)INFINITY);
        ls_run_gate_add(run, &(ls_run_gate){"rollout", 9, 0, 0.0, 0.0, 0.0, 0.0, true});
        assert_ok(ls_run_step_commit(run, &err), err);
        ls_run_close(run);
    }
    page = page_of(at("empty"));
    must_be_well_formed(page);
    must_say(
        page,
        "1 steps from 1 to 1|<div class=\"box good\">|All 1 bit checks passed|0 of 9 tokens differ|clip = 0.2|resumed "
        "behind step 0, the same configuration|resumed behind step 0:|new");
    free(page);
}

/* A page of a long run stays light, and a single step that is off stays visible. */
static void long_runs_have_light_pages(void **state) {
    ls_run *run;
    ls_error err;
    char *page;
    (void)state;
    assert_ok(ls_run_open(&run, at("long"), &setup, &err), err);
    for (int64_t step = 0; step < 4000; step++) {
        assert_ok(ls_run_step_begin(run, step, &err), err);
        ls_run_metric(run, LS_METRIC_REWARD, sin((double)step));
        ls_run_metric(run, "mismatch/abs_max", step == 1234 ? 7.5 : 0.0);
        ls_run_sample_add(run, &(ls_run_sample){"q", "p", "c", 1, 1, 0.0, 0.0, 1, 1, "stop"});
        assert_ok(ls_run_step_commit(run, &err), err);
    }
    ls_run_close(run);
    page = page_of(at("long"));
    must_be_well_formed(page);
    must_say(
        page,
        "4000 steps|<polygon class=\"band\"|this run: last 0, 0 to 7.5|Step 0, |Step 1333, |Step 2666, |Step 3999, ");
    assert_true(strlen(page) < 60000);
    free(page);
}

/* A run of `steps` with a configuration, a measured reward every step and a held-out one every so often. */
static void write_plain_run(const char *dir, const char *config, int64_t steps, int64_t every) {
    const ls_run_setup one = {.kind = "grpo", .config = config, .config_bytes = -1};
    ls_run *run;
    ls_error err;
    assert_ok(ls_run_open(&run, dir, &one, &err), err);
    for (int64_t step = 1; step <= steps; step++) {
        assert_ok(ls_run_step_begin(run, step, &err), err);
        ls_run_metric(run, LS_METRIC_REWARD, 0.5 + 0.001 * (double)step);
        if (step % every == 0) ls_run_metric(run, LS_METRIC_HELD_OUT, 0.25 + 0.002 * (double)step);
        ls_run_metric(run, "loss/clip_fraction", 0.0);
        assert_ok(ls_run_step_commit(run, &err), err);
    }
    ls_run_close(run);
}

/* The held-out curve comes first, as a line through its points; what never moves is one line of text; the configuration
 * is a table. */
static void what_matters_comes_first(void **state) {
    char *page;
    (void)state;
    write_plain_run(at("first"), "{\"rate\":0.5,\"task\":\"a<b\",\"resume\":false}", 60, 10);
    page = page_of(at("first"));
    must_be_well_formed(page);
    must_say(
        page,
        "<title>Held-out reward</title>|mean: last 0.37, 0.27 to 0.37|<b>Clipped tokens</b>, share of tokens: at "
        "either bound: 0 throughout|<table class=\"config\">|<td>rate</td><td>0.5</td>|<td>task</td><td>a&lt;b</td>|"
        "<td>resume</td><td>false</td>");
    assert_true(strstr(page, "<title>Held-out reward") < strstr(page, "<title>Reward</title>"));
    assert_null(strstr(page, "<title>Clipped tokens"));
    assert_null(strstr(page, "<circle")); /* six points, one line: none stands alone */
    free(page);
}

/* Two runs side by side: a line each, and the shorter one ends where it ends. */
static void several_runs_share_a_page(void **state) {
    const char *const dirs[] = {at("long-run"), at("short-run")};
    ls_history h[2];
    ls_error err;
    char *page = NULL, *begin, *end, *reward;
    size_t bytes = 0;
    FILE *file = open_memstream(&page, &bytes);
    (void)state;
    write_plain_run(dirs[0], "{\"rate\":0.5,\"seed\":\"1\",\"task\":\"t\"}", 100, 10);
    write_plain_run(dirs[1], "{\"rate\":0.25,\"seed\":\"1\"}", 50, 10);
    for (int i = 0; i < 2; i++) assert_ok(ls_history_read(&h[i], dirs[i], &err), err);
    assert_ok(ls_report_write_several(file, dirs, h, 2, &err), err);
    assert_int_equal(fclose(file), 0);
    for (int i = 0; i < 2; i++) ls_history_deinit(&h[i]);
    begin = strstr(page, "<style>");
    end = strstr(page, "</style>");
    memmove(begin, end + 8, strlen(end + 8) + 1);
    must_be_well_formed(page);
    must_say(page, "<td>rate</td><td>0.5</td><td>0.25</td>|<td>task</td><td>&quot;t&quot;</td><td></td>");
    assert_null(strstr(page, "<td>seed</td>"));
    reward = strstr(page, "<title>Reward</title>");
    assert_non_null(reward);
    /* The frame is 634 wide for steps 1 to 100: step 100 is at 704, step 50 at 70 + 634 * 49 / 99. */
    must_say(reward, "704.0,|long-run: last 0.6, 0.501 to 0.6|383.8,|short-run: last 0.55, 0.501 to 0.55");
    free(page);
}

/* Sums of counts stay within 64 bits whatever a file says; a count that cannot be is an error. */
static void hostile_counts_are_no_overflow(void **state) {
    ls_run *run;
    ls_history h;
    ls_sql *sql;
    ls_error err;
    char *page;
    (void)state;
    assert_ok(ls_run_open(&run, at("hostile"), &setup, &err), err);
    for (int64_t step = 1; step <= 3; step++) {
        assert_ok(ls_run_step_begin(run, step, &err), err);
        ls_run_gate_add(run, &(ls_run_gate){"rollout", INT64_MAX - 1, INT64_MAX - 2, 0.0, 0.0, 0.0, 0.0, false});
        assert_ok(ls_run_step_commit(run, &err), err);
    }
    ls_run_close(run);
    page = page_of(at("hostile"));
    must_be_well_formed(page);
    must_say(page, "9223372036854775807 of 9223372036854775807 tokens differ");
    free(page);
    assert_ok(ls_run_db_open(&sql, at("hostile"), true, &err), err);
    assert_ok(ls_sql_exec(sql, "UPDATE runs SET time = 1e300; UPDATE gates SET tokens = -5 WHERE step = 2", &err), err);
    ls_sql_close(sql);
    check_failed(ls_history_read(&h, at("hostile"), &err), &err, "gates: step 2");
}

static void text_is_made_harmless(void **state) {
    static const char text[] = "a<b>&\"\n\t\x1b[31m\x7f\xc2\x9b\xe2\x82\xac\xed\xa0\x80\xf0\x9f\x98\x80\xff";
    char out[256] = "";
    FILE *file = fmemopen(out, sizeof out, "w");
    (void)state;
    assert_non_null(file);
    ls_html_bytes(file, text, sizeof text - 1);
    fclose(file);
    assert_string_equal(out,
                        "a&lt;b&gt;&amp;&quot;\n\t\xEF\xBF\xBD[31m\xEF\xBF\xBD\xEF\xBF\xBD\xe2\x82\xac"
                        "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xf0\x9f\x98\x80\xEF\xBF\xBD");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_small_run_has_its_page),   cmocka_unit_test(empty_and_resumed_runs_have_pages),
        cmocka_unit_test(long_runs_have_light_pages), cmocka_unit_test(hostile_counts_are_no_overflow),
        cmocka_unit_test(what_matters_comes_first),   cmocka_unit_test(several_runs_share_a_page),
        cmocka_unit_test(text_is_made_harmless),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
