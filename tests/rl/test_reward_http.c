/* Rewards from a web server. */
#define _GNU_SOURCE
#include <dirent.h>
#include <math.h>

#include "rl/beside.h"
#include "rl/http_server.h"
#include "rl/late_items.h"
#include "rl/reward.h"

enum { N_MAX = 400 };

/* ---- Answers. ---- */

/* The completion is the reward. */
static reply echo(int64_t request_i, const char *body) {
    char said[1][32], text[64];
    (void)request_i;
    members(body, "completion", said, 1);
    snprintf(text, sizeof text, "{\"reward\":%s}", said[0]);
    return say(200, text);
}

/* Later requests are answered earlier. */
static reply echo_slowly(int64_t request_i, const char *body) {
    reply r = echo(request_i, body);
    r.delay_ms = 20 * (7 - request_i % 8);
    return r;
}

static char *batch_body(const char *body, bool leave_one_out) {
    static _Thread_local char ids[64][32], said[64][32];
    char *text = NULL;
    size_t bytes = 0;
    const int64_t n = members(body, "id", ids, 64);
    FILE *stream = open_memstream(&text, &bytes);
    if (stream == NULL || members(body, "completion", said, 64) != n) abort();
    fprintf(stream, "{\"items\":[");
    for (int64_t i = n; i-- > (leave_one_out ? 1 : 0);)
        fprintf(stream, "%s{\"id\":\"%s\",\"reward\":%s}", i == n - 1 ? "" : ",", ids[i], said[i]);
    fprintf(stream, "]}");
    fclose(stream);
    return text;
}

static reply batches_backwards(int64_t request_i, const char *body) {
    (void)request_i;
    return (reply){.status = 200, .body = batch_body(body, false)};
}

static reply batches_with_a_hole(int64_t request_i, const char *body) {
    (void)request_i;
    return (reply){.status = 200, .body = batch_body(body, true)};
}

static reply fails_twice(int64_t request_i, const char *body) {
    reply r = echo(request_i, body);
    if (request_i == 0) r.status = 503;
    if (request_i == 1) r.hang_up = true;
    return r;
}

static reply is_cut_once(int64_t request_i, const char *body) {
    reply r = echo(request_i, body);
    r.cut = request_i == 0 ? 10 : 0;
    return r;
}

static reply speaks(int64_t request_i, const char *body) {
    char ids[2][32], text[256];
    const char *said = "\"messages\":[{\"role\":\"tool\",\"content\":\"5\"}],\"tools\":[],\"reward\":0.5";
    (void)request_i;
    if (strstr(body, "\"items\"") == NULL || members(body, "id", ids, 2) != 2) {
        snprintf(text, sizeof text, "{%s}", said);
        return say(200, text);
    }
    snprintf(text, sizeof text, "{\"items\":[{\"id\":\"%s\",%s},{\"id\":\"%s\",\"messages\":5}]}", ids[0], said,
             ids[1]);
    return say(200, text);
}

/* By what the completion asks for. */
static reply does_as_told(int64_t request_i, const char *body) {
    char said[1][32];
    reply r;
    (void)request_i;
    members(body, "completion", said, 1);
    if (strcmp(said[0], "500") == 0) return say(500, "{\"reward\":1}");
    if (strcmp(said[0], "429") == 0) return say(429, "{\"reward\":1}");
    if (strcmp(said[0], "404") == 0) return say(404, "{\"reward\":1}");
    if (strcmp(said[0], "moved") == 0) {
        r = say(302, "");
        r.head = "Location: file:///etc/passwd\r\n";
        return r;
    }
    if (strcmp(said[0], "html") == 0) return say(200, "<html>");
    if (strcmp(said[0], "nothing") == 0) return say(200, "");
    if (strcmp(said[0], "list") == 0) return say(200, "[1]");
    if (strcmp(said[0], "nan") == 0) return say(200, "{\"reward\":NaN}");
    if (strcmp(said[0], "text") == 0) return say(200, "{\"reward\":\"1\"}");
    if (strcmp(said[0], "other") == 0) return say(200, "{\"id\":\"999999\",\"reward\":1}");
    if (strcmp(said[0], "error") == 0) return say(200, "{\"error\":\"no judge\"}");
    r = say(200, "{\"reward\":1}");
    if (strcmp(said[0], "close") == 0) r.hang_up = true;
    if (strcmp(said[0], "slow") == 0) r.delay_ms = 1500;
    return r;
}

/* Waits for a request that is not yet there, for all of four. */
static reply four_together(int64_t request_i, const char *body) {
    while (atomic_load(&the_server.n_requests) < 4) pause_ms(1);
    return echo(request_i, body);
}

static atomic_bool is_left, may_answer;

/* By then nobody waits for it any more. */
static reply comes_too_late(int64_t request_i, const char *body) {
    atomic_store(&is_left, true);
    while (!atomic_load(&may_answer)) pause_ms(1);
    return echo(request_i, body);
}

static reply tells_a_story(int64_t request_i, const char *body) {
    char *text = malloc(5000001);
    (void)request_i;
    (void)body;
    if (text == NULL) abort();
    memset(text, ' ', 5000000);
    memcpy(text, "{\"reward\":1", 11);
    memcpy(text + 4999999, "}", 2);
    return (reply){.status = 200, .body = text};
}

/* ---- The tests. ---- */

static ls_reward_item items[N_MAX];
static ls_reward_result results[N_MAX];

static ls_reward *open_server(const ls_reward_http_options *with) {
    ls_reward_http_options options = *with;
    ls_reward *reward = NULL;
    ls_error err;
    if (options.url == NULL) options.url = the_server.url;
    assert_ok(ls_reward_http_open(&reward, &options, &err), err);
    return reward;
}

static void ask_said(ls_reward *reward, const char *const *said, int64_t n) {
    ls_error err;
    for (int64_t i = 0; i < n; i++)
        items[i] = (ls_reward_item){"p", {"q", 1}, {said[i], (int64_t)strlen(said[i])}, NULL, 0, NULL, .op = NULL};
    assert_ok(ls_reward_ask(reward, results, items, n, &err), err);
}

static void ask_numbers(ls_reward *reward, int64_t n) {
    static char texts[N_MAX][8];
    static const char *said[N_MAX];
    for (int64_t i = 0; i < n; i++) {
        snprintf(texts[i], sizeof texts[i], "%d", (int)i);
        said[i] = texts[i];
    }
    ask_said(reward, said, n);
}

static void assert_number(int64_t i) {
    if (!results[i].ok || results[i].reward != (double)i)
        fail_msg("item %lld: %g %s", (long long)i, results[i].reward, results[i].error);
}

static void assert_failed(int64_t i, const char *says) {
    if (results[i].ok || !isnan(results[i].reward) || strstr(results[i].error, says) == NULL)
        fail_msg("item %lld: %g '%s', not '%s'", (long long)i, results[i].reward, results[i].error, says);
}

static ls_reward_http_options defaults(void) {
    ls_reward_http_options options;
    ls_reward_http_init(&options);
    options.backoff_s = 0.01;
    return options;
}

static int64_t count_fds(void) {
    DIR *folder = opendir("/proc/self/fd");
    int64_t n = 0;
    assert_non_null(folder);
    while (readdir(folder) != NULL) n++;
    closedir(folder);
    return n;
}

static int64_t fds_before;
static int look_before(void **state) {
    (void)state;
    fds_before = count_fds();
    return 0;
}
static int look_after(void **state) {
    (void)state;
    assert_int_equal(count_fds(), fds_before);
    return 0;
}

static void answers_stand_where_items_stand(void **state) {
    ls_reward_http_options options = defaults();
    ls_reward *reward;
    (void)state;
    server_start(echo_slowly);
    reward = open_server(&options);
    for (int round = 0; round < 2; round++) {
        ask_numbers(reward, 40);
        for (int64_t i = 0; i < 40; i++) assert_number(i);
    }
    assert_string_equal(ls_reward_counts_of(reward)->message, "");
    assert_int_equal(ls_reward_counts_of(reward)->ok, 80);
    assert_int_equal(atomic_load(&the_server.n_requests), 80);
    assert_in_range(atomic_load(&the_server.n_now_max), 2, 8);
    ls_reward_close(reward);
    server_stop();
}

static void one_at_a_time_where_that_is_the_limit(void **state) {
    ls_reward_http_options options = defaults();
    const char *const headers[] = {"Authorization: Bearer secret"};
    ls_reward *reward;
    (void)state;
    options.concurrency = 1;
    options.headers = headers;
    options.n_headers = 1;
    server_start(echo);
    reward = open_server(&options);
    ask_numbers(reward, 20);
    for (int64_t i = 0; i < 20; i++) assert_number(i);
    assert_int_equal(atomic_load(&the_server.n_now_max), 1);
    assert_non_null(strstr(the_server.last_head, "POST /reward HTTP/1.1\r\n"));
    assert_non_null(strstr(the_server.last_head, "Authorization: Bearer secret\r\n"));
    assert_non_null(strstr(the_server.last_head, "Content-Type: application/json\r\n"));
    ls_reward_close(reward);
    server_stop();
}

static void batches_come_back_in_any_order(void **state) {
    ls_reward_http_options options = defaults();
    ls_reward *reward;
    (void)state;
    options.batch = 7;
    server_start(batches_backwards);
    reward = open_server(&options);
    ask_numbers(reward, 100);
    for (int64_t i = 0; i < 100; i++) assert_number(i);
    assert_int_equal(atomic_load(&the_server.n_requests), 15);
    ls_reward_close(reward);
    server_stop();

    server_start(batches_with_a_hole);
    reward = open_server(&options);
    ask_numbers(reward, 100);
    for (int64_t i = 0; i < 100; i++) {
        if (i % 7 == 0)
            assert_failed(i, "the server's answer leaves this item out");
        else
            assert_number(i);
    }
    assert_int_equal(ls_reward_counts_of(reward)->failed, 15);
    ls_reward_close(reward);
    server_stop();
}

static void a_request_that_failed_is_made_again(void **state) {
    ls_reward_http_options options = defaults();
    ls_reward *reward;
    (void)state;
    options.concurrency = 1;
    server_start(fails_twice);
    reward = open_server(&options);
    ask_numbers(reward, 4);
    for (int64_t i = 0; i < 4; i++) assert_number(i);
    assert_int_equal(ls_reward_counts_of(reward)->retried, 2);
    assert_int_equal(ls_reward_counts_of(reward)->failed, 0);
    assert_non_null(strstr(ls_reward_counts_of(reward)->message, "status 503"));
    ls_reward_close(reward);
    server_stop();

    server_start(is_cut_once);
    reward = open_server(&options);
    ask_numbers(reward, 1);
    assert_number(0);
    assert_int_equal(ls_reward_counts_of(reward)->retried, 1);
    ls_reward_close(reward);
    server_stop();
}

static void a_failure_stops_nothing_else(void **state) {
    static const char *const said[] = {"1",    "500", "404",   "moved", "html", "nothing", "list", "nan",
                                       "text", "429", "error", "close", "slow", "other",   "fine"};
    ls_reward_http_options options = defaults();
    const ls_reward_counts *counts;
    ls_reward *reward;
    (void)state;
    options.retries = 1;
    options.timeout_s = 1;
    server_start(does_as_told);
    reward = open_server(&options);
    ask_said(reward, said, 15);
    assert_true(results[0].ok && results[14].ok);
    assert_failed(1, "status 500, 2 tries");
    assert_failed(2, "status 404, 1 tries");
    assert_failed(3, "status 302, 1 tries");
    assert_failed(4, "answer: is an HTML page");
    assert_failed(5, "answer: empty");
    assert_failed(6, "expected an object");
    assert_failed(7, "reward: \"NaN\", expected a finite number");
    assert_failed(8, "reward: \"1\"");
    assert_failed(9, "status 429, 2 tries");
    assert_failed(10, "no judge");
    assert_failed(11, "Empty reply from server, 2 tries");
    assert_failed(12, "timed out");
    assert_failed(13, "leaves this item out");
    counts = ls_reward_counts_of(reward);
    assert_int_equal(counts->ok, 2);
    assert_int_equal(counts->failed, 13);
    assert_int_equal(counts->retried, 4);
    assert_int_equal(counts->unreadable, 3);
    assert_int_equal(counts->strays, 1);
    assert_true(counts->message[0] != '\0');
    ls_reward_close(reward);
    server_stop();
}

static void who_is_left_is_not_waited_for(void **state) {
    ls_reward_http_options options = defaults();
    ls_reward_questions asked = {.items = items, .results = results, .n = 1, .is_left = &is_left};
    ls_reward *reward;
    ls_error err;
    (void)state;
    options.timeout_s = 80000;
    server_start(comes_too_late);
    reward = open_server(&options);
    items[0] = (ls_reward_item){"p", {"q", 1}, {"7", 1}, NULL, 0, NULL, .op = NULL};
    check_failed(ls_reward_ask_about(reward, &asked, &err), &err, "nobody waits for the server any more");
    atomic_store(&may_answer, true);
    ls_reward_close(reward);
    server_stop();
}

static void an_absent_server_is_an_error_of_each_item(void **state) {
    ls_reward_http_options options = defaults();
    ls_reward *reward;
    char url[64];
    (void)state;
    server_start(echo);
    snprintf(url, sizeof url, "%s", the_server.url);
    server_stop();
    options.url = url;
    options.retries = 2;
    reward = open_server(&options);
    ask_numbers(reward, 20);
    for (int64_t i = 0; i < 20; i++) assert_failed(i, ", 3 tries");
    assert_int_equal(ls_reward_counts_of(reward)->retried, 40);
    ls_reward_close(reward);

    options.url = "http://[::bad/";
    reward = open_server(&options);
    ask_numbers(reward, 2);
    assert_failed(0, "1 tries");
    ls_reward_close(reward);
}

static void waiting_grows(void **state) {
    static const char *const said[] = {"500"};
    ls_reward_http_options options = defaults();
    struct timespec begin, end;
    ls_reward *reward;
    double took;
    (void)state;
    options.backoff_s = 0.05;
    server_start(does_as_told);
    reward = open_server(&options);
    clock_gettime(CLOCK_MONOTONIC, &begin);
    ask_said(reward, said, 1);
    clock_gettime(CLOCK_MONOTONIC, &end);
    took = (double)(end.tv_sec - begin.tv_sec) + 1e-9 * (double)(end.tv_nsec - begin.tv_nsec);
    assert_failed(0, "status 500, 4 tries");
    assert_true(took >= 0.05 + 0.1 + 0.2);
    ls_reward_close(reward);
    server_stop();
}

static void long_answers_are_read(void **state) {
    ls_reward_http_options options = defaults();
    ls_reward *reward;
    (void)state;
    server_start(tells_a_story);
    reward = open_server(&options);
    ask_numbers(reward, 2);
    assert_true(results[0].ok && results[0].reward == 1 && results[1].ok);
    ls_reward_close(reward);
    server_stop();
}

static void bad_options_are_named(void **state) {
    static const char *const bad_header[] = {"X: 1\r\nY: 2"};
    ls_reward_http_options options = defaults(), o;
    ls_reward *reward = NULL;
    ls_error err;
    (void)state;
    check_failed(ls_reward_http_open(&reward, &options, &err), &err, "does not begin with http://");
    options.url = "file:///etc/passwd";
    check_failed(ls_reward_http_open(&reward, &options, &err), &err, "'file:///etc/passwd' does not begin");
    options.url = "http://127.0.0.1/";
    o = options;
    o.batch = 0;
    check_failed(ls_reward_http_open(&reward, &o, &err), &err, "batch 0");
    o = options;
    o.concurrency = 0;
    check_failed(ls_reward_http_open(&reward, &o, &err), &err, "concurrency 0");
    o = options;
    o.retries = -1;
    check_failed(ls_reward_http_open(&reward, &o, &err), &err, "-1 retries");
    o = options;
    o.timeout_s = 0;
    check_failed(ls_reward_http_open(&reward, &o, &err), &err, "timeout of 0 s");
    o = options;
    o.headers = bad_header;
    o.n_headers = 1;
    check_failed(ls_reward_http_open(&reward, &o, &err), &err, "header 0");
    assert_null(reward);
}

/* Environments may speak messages, alone and in batches. */
static void messages_are_taken(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) items[i] = (ls_reward_item){.op = "step", .problem = "p"};
    server_start(speaks);
    for (int64_t batch = 1; batch <= 2; batch++) {
        ls_reward_http_options options = defaults();
        ls_reward *reward;
        ls_error err;
        options.batch = batch;
        reward = open_server(&options);
        assert_ok(ls_reward_ask(reward, results, items, 2, &err), err);
        assert_true(results[0].ok && results[0].are_messages && results[0].reward == 0.5);
        assert_string_equal(results[0].text, "{\"messages\":[{\"role\":\"tool\",\"content\":\"5\"}],\"tools\":[]}");
        if (batch == 2) assert_string_equal(results[1].error, "messages is no list of messages that have a role");
        for (int i = 0; i < 2; i++) free(results[i].text);
        ls_reward_close(reward);
    }
    server_stop();
}

#define watched(test) cmocka_unit_test_setup_teardown(test, look_before, look_after)

/* ---- items that come late ---- */

static int64_t n_requests(const void *context) {
    (void)context;
    return atomic_load(&the_server.n_requests);
}

static ls_status ask_late(late_items *l, int64_t batch, ls_error *err) {
    ls_reward_http_options options = defaults();
    ls_reward *reward;
    ls_status status;
    options.batch = batch;
    l->n_seen = batch == 1 ? n_requests : NULL;
    server_start(batch == 1 ? echo : batches_backwards);
    reward = open_server(&options);
    status = late_ask(l, reward, results, err);
    ls_reward_close(reward);
    server_stop();
    return status;
}

/* Each goes out when it is there, or when all of its request are, and its reward is where it belongs. */
static void late_items_go_out_as_they_come(void **state) {
    late_items l = {.items = items, .n = LATE_ITEMS};
    ls_error err;
    (void)state;
    assert_ok(ls_feed_create(&l.feed, LATE_ITEMS, &err), err);
    for (int64_t batch = 1; batch <= 2; batch++) {
        assert_ok(ask_late(&l, batch, &err), err);
        assert_int_equal(l.n_complete, LATE_ITEMS);
        for (int64_t i = 0; i < LATE_ITEMS; i++) assert_number(i);
    }
    l.n = 3; /* whoever makes them ended */
    check_failed(ask_late(&l, 1, &err), &err, "3 of 5 items came");
    ls_feed_free(l.feed);
}

/* ---- several asks at a time ---- */

static void ask_four_beside(int64_t concurrency) {
    static const char *const said[] = {"0", "1", "2", "3"};
    ls_reward_http_options options = defaults();
    ls_reward *reward;
    beside b[4];
    options.concurrency = concurrency;
    reward = open_server(&options);
    for (int k = 0; k < 4; k++) {
        items[k] = (ls_reward_item){"p", {"q", 1}, {said[k], 1}, NULL, 0, NULL, .op = NULL};
        beside_begin(&b[k], reward, &items[k], &results[k], 1, NULL);
    }
    for (int k = 0; k < 4; k++) {
        assert_ok(beside_end(&b[k]), b[k].err);
        assert_number(k);
    }
    assert_int_equal(ls_reward_counts_of(reward)->ok, 4);
    assert_int_equal(ls_reward_counts_of(reward)->retried, 0);
    ls_reward_close(reward);
}

/* A server that waits for the last of four asks before it answers the first gets it; and of all together no more are
 * there than may be. */
static void asks_share_the_server(void **state) {
    (void)state;
    server_start(four_together);
    ask_four_beside(4);
    server_stop();
    server_start(echo);
    ask_four_beside(1);
    assert_int_equal(atomic_load(&the_server.n_now_max), 1);
    server_stop();
}

/* One whose items do not come fails, and another goes on. */
static void an_ask_that_fails_leaves_the_others(void **state) {
    ls_reward_http_options options = defaults();
    ls_reward_late late = {0};
    ls_reward *reward;
    beside b[2];
    ls_error err;
    (void)state;
    assert_ok(ls_feed_create(&late.feed, 1, &err), err);
    ls_feed_begin(late.feed);
    ls_feed_end(late.feed);
    server_start(echo_slowly);
    reward = open_server(&options);
    for (int k = 0; k < 2; k++) items[k] = (ls_reward_item){"p", {"q", 1}, {"0", 1}, NULL, 0, NULL, .op = NULL};
    for (int k = 0; k < 2; k++) beside_begin(&b[k], reward, &items[k], &results[k], 1, k == 1 ? &late : NULL);
    check_failed(beside_end(&b[1]), &b[1].err, "0 of 1 items came");
    assert_ok(beside_end(&b[0]), b[0].err);
    assert_number(0);
    ls_reward_close(reward);
    server_stop();
    ls_feed_free(late.feed);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        watched(answers_stand_where_items_stand),
        watched(one_at_a_time_where_that_is_the_limit),
        watched(batches_come_back_in_any_order),
        watched(a_request_that_failed_is_made_again),
        watched(a_failure_stops_nothing_else),
        watched(who_is_left_is_not_waited_for),
        watched(an_absent_server_is_an_error_of_each_item),
        watched(waiting_grows),
        watched(long_answers_are_read),
        watched(bad_options_are_named),
        watched(messages_are_taken),
        watched(late_items_go_out_as_they_come),
        watched(asks_share_the_server),
        watched(an_ask_that_fails_leaves_the_others),
    };
    setenv("no_proxy", "*", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
