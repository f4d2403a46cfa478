/* Rewards from a command: every way in which a program can misbehave, played by this program itself, which is started
 * again with the name of a part. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "harness.h"
#include "rl/beside.h"
#include "rl/late_items.h"
#include "rl/reward.h"

enum { N_MAX = 2000 };

/* ---- The parts: what a reward program may do with an item. ---- */

static void put_answer(const char *id, const char *value) {
    printf("{\"id\":\"%s\",\"reward\":%s}\n", id, value);
    fflush(stdout);
}

/* The text of a member of a line that ls_reward_ask wrote; here it holds no escapes. */
static char *member(const char *line, const char *name) {
    char key[32];
    const char *begin;
    snprintf(key, sizeof key, "\"%s\":\"", name);
    begin = strstr(line, key);
    if (begin == NULL) return strdup("");
    begin += strlen(key);
    return strndup(begin, strcspn(begin, "\""));
}

static void answer_part(const char *part, const char *id, const char *said, int64_t item_i) {
    static char *held[8];
    if (strcmp(part, "echo") == 0 || strcmp(said, "fine") == 0) {
        put_answer(id, strcmp(said, "fine") == 0 ? "1" : said);
    } else if (strcmp(part, "reversed") == 0) {
        held[item_i % 8] = strdup(id);
        if (item_i % 8 != 7) return;
        for (int k = 8; k-- > 0;) put_answer(held[k], held[k]);
        for (int k = 0; k < 8; k++) free(held[k]);
    } else if (strcmp(part, "pairs") == 0) {
        held[item_i % 2] = strdup(id);
        if (item_i % 2 == 0) return;
        for (int k = 0; k < 2; k++) put_answer(held[k], held[k]);
        for (int k = 0; k < 2; k++) free(held[k]);
    } else if (strcmp(part, "group") == 0) {
        char text[24];
        snprintf(text, sizeof text, "%d", (int)getpgrp());
        put_answer(id, text);
    } else if (strcmp(part, "rubbish") == 0) {
        printf("loading\n{\"id\":\n\n[1]\n{\"id\":\"x\",\"reward\":1}\n{\"reward\":1}\n\xFF\n");
        put_answer(id, said);
    } else if (strcmp(part, "twice") == 0) {
        put_answer(id, said);
        put_answer(id, "77");
        put_answer("123456789", "77");
        printf("{\"id\":%s,\"reward\":77}\n", id);
    } else if (strcmp(part, "ahead") == 0) {
        char next[24];
        snprintf(next, sizeof next, "%lld", atoll(id) + 1); /* not given out yet: the window is one item */
        put_answer(next, "77");
        put_answer(id, said);
    } else if (strcmp(part, "values") == 0) {
        if (strcmp(said, "error") == 0)
            printf("{\"id\":%s,\"error\":\"too\\nlong\"}\n", id);
        else if (strcmp(said, "empty") == 0)
            printf("{\"id\":%s,\"error\":5}\n", id);
        else if (strcmp(said, "absent") == 0)
            printf("{\"id\":%s}\n", id);
        else if (strcmp(said, "text") == 0)
            put_answer(id, "\"0.5\"");
        else
            put_answer(id, said);
    } else if (strcmp(part, "flood") == 0) {
        for (int k = 0; k < 20000; k++) fprintf(stderr, "line %d of a great many that nobody asked for\n", k);
        put_answer(id, said);
    } else if (strcmp(part, "long") == 0) {
        for (int k = 0; k < 200000; k++) putchar('x');
        putchar('\n');
        put_answer(id, said);
    }
    if (strcmp(said, "die") == 0) {
        fprintf(stderr, "Traceback:\nValueError: no\n\n");
        exit(3);
    }
    if (strcmp(said, "crash") == 0) raise(SIGKILL);
    if (strcmp(said, "hang") == 0) pause();
    if (strcmp(said, "unended") == 0) {
        printf("{\"id\":\"%s\",\"reward\":9}", id);
        fflush(stdout);
        exit(0);
    }
    if (strcmp(said, "shut") == 0) {
        close(1);
        pause();
    }
}

static int play(const char *part) {
    char *line = NULL;
    size_t cap = 0;
    if (strcmp(part, "silent") == 0)
        for (;;) pause();
    if (strcmp(part, "babble") == 0)
        for (;;) printf("and so on\n");
    if (strcmp(part, "stubborn") == 0) {
        signal(SIGTERM, SIG_IGN);
        signal(SIGHUP, SIG_IGN);
    }
    for (int64_t i = 0; getline(&line, &cap, stdin) > 0; i++) {
        char *id = member(line, "id"), *said = member(line, "completion");
        answer_part(strcmp(part, "stubborn") == 0 ? "group" : part, id, said, i);
        free(id);
        free(said);
    }
    free(line);
    if (strcmp(part, "stubborn") == 0)
        for (;;) pause();
    return 0;
}

/* ---- The tests. ---- */

static char program[1024];

static ls_reward *open_part(const char *part, int64_t window, double silence_s) {
    ls_reward_command_options options;
    ls_reward *reward = NULL;
    ls_error err;
    char command[1200];
    snprintf(command, sizeof command, "exec '%s' %s", program, part);
    ls_reward_command_init(&options);
    options.command = command;
    options.window = window;
    options.silence_s = silence_s;
    assert_ok(ls_reward_command_open(&reward, &options, &err), err);
    return reward;
}

static ls_reward_result results[N_MAX];
static ls_reward_item items[N_MAX];

/* Asks about completions said[0..n). */
static void ask_said(ls_reward *reward, const char *const *said, int64_t n) {
    ls_error err;
    for (int64_t i = 0; i < n; i++)
        items[i] = (ls_reward_item){"p", {"1+1=", 4}, {said[i], (int64_t)strlen(said[i])}, "2", 0, NULL, .op = NULL};
    assert_ok(ls_reward_ask(reward, results, items, n, &err), err);
}

/* Asks about the numbers 0..n - 1, each as its own completion. */
static void ask_numbers(ls_reward *reward, int64_t n) {
    static char texts[N_MAX][8];
    static const char *said[N_MAX];
    for (int64_t i = 0; i < n; i++) {
        snprintf(texts[i], sizeof texts[i], "%d", (int)i);
        said[i] = texts[i];
    }
    ask_said(reward, said, n);
}

static void assert_numbers(int64_t n) {
    for (int64_t i = 0; i < n; i++)
        if (!results[i].ok || results[i].reward != (double)i)
            fail_msg("item %lld: %g %s", (long long)i, results[i].reward, results[i].error);
}

static void assert_failed(int64_t i, const char *says) {
    if (results[i].ok || !isnan(results[i].reward) || strstr(results[i].error, says) == NULL)
        fail_msg("item %lld: %g '%s', not '%s'", (long long)i, results[i].reward, results[i].error, says);
}

static void assert_message(const ls_reward *reward, const char *says) {
    const char *message = ls_reward_counts_of(reward)->message;
    if (strstr(message, says) == NULL) fail_msg("'%s' does not say '%s'", message, says);
}

static int64_t count_fds(void) {
    DIR *folder = opendir("/proc/self/fd");
    int64_t n = 0;
    assert_non_null(folder);
    while (readdir(folder) != NULL) n++;
    closedir(folder);
    return n;
}

/* After each test: no child, dead or alive, and no file that was not there before. */
static int64_t fds_before;
static int look_before(void **state) {
    (void)state;
    fds_before = count_fds();
    return 0;
}
static int look_after(void **state) {
    (void)state;
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
    assert_int_equal(errno, ECHILD);
    assert_int_equal(count_fds(), fds_before);
    return 0;
}

static void answers_stand_where_items_stand(void **state) {
    static const char *const parts[] = {"echo", "reversed"};
    (void)state;
    for (int p = 0; p < 2; p++) {
        ls_reward *reward = open_part(parts[p], p == 0 ? 64 : 8, 20);
        const ls_reward_counts *counts = ls_reward_counts_of(reward);
        ask_numbers(reward, 1000);
        assert_numbers(1000);
        assert_string_equal(counts->message, "");
        if (p == 0) {
            ask_numbers(reward, 64); /* the same command, new ids */
            assert_numbers(64);
            assert_true(counts->asked == 1064 && counts->ok == 1064 && counts->failed == 0 && counts->restarts == 0);
        }
        ask_numbers(reward, 0);
        ls_reward_close(reward);
    }
    ls_reward_close(NULL);
}

/* What goes out is what the header says, and texts survive it. */
static void items_go_out_as_documented(void **state) {
    char command[256], path[] = "/tmp/reward-items-XXXXXX", text[512];
    ls_reward_command_options options;
    ls_reward *reward;
    ls_reward_result result;
    const ls_reward_item item = {"q/1", {"a\"b\n", 4}, {"c\0d", 3}, NULL, 0, NULL, .op = NULL};
    ls_error err;
    const int fd = mkstemp(path);
    ssize_t n;
    (void)state;
    assert_true(fd >= 0);
    snprintf(command, sizeof command, "read -r line; printf %%s \"$line\" > %s; echo '{\"id\":0,\"reward\":-0.25}'",
             path);
    ls_reward_command_init(&options);
    options.command = command;
    assert_ok(ls_reward_command_open(&reward, &options, &err), err);
    assert_ok(ls_reward_ask(reward, &result, &item, 1, &err), err);
    assert_true(result.ok && result.reward == -0.25);
    ls_reward_close(reward);
    n = read(fd, text, sizeof text - 1);
    assert_true(n > 0);
    text[n] = '\0';
    assert_string_equal(text,
                        "{\"id\":\"0\",\"problem\":\"q/1\",\"prompt\":\"a\\\"b\\n\",\"completion\":\"c\\u0000d\"}");
    close(fd);
    unlink(path);
}

static void a_dying_command_costs_its_killer_only(void **state) {
    static const char *const said[] = {"fine", "fine", "die", "fine", "crash", "fine", "fine", "shut", "fine"};
    ls_reward *reward = open_part("none", 64, 20);
    const ls_reward_counts *counts = ls_reward_counts_of(reward);
    (void)state;
    ask_said(reward, said, 9);
    for (int64_t i = 0; i < 9; i++)
        if (i != 2 && i != 4 && i != 7 && !results[i].ok) fail_msg("item %lld: %s", (long long)i, results[i].error);
    assert_failed(2, "the command ended with status 3 (last words: ValueError: no)");
    assert_failed(4, "the command was killed by signal 9");
    assert_failed(7, "the command closed its output");
    assert_int_equal(counts->ok, 6);
    assert_int_equal(counts->failed, 3);
    assert_true(counts->restarts >= 3 && counts->retried >= 3);
    assert_message(reward, "the command ended with status 3");
    ls_reward_close(reward);
}

static void a_hanging_item_costs_itself_only(void **state) {
    static const char *const said[] = {"fine", "hang", "fine", "fine"};
    ls_reward *reward = open_part("none", 64, 1);
    (void)state;
    ask_said(reward, said, 4);
    assert_true(results[0].ok && results[2].ok && results[3].ok);
    assert_failed(1, "no answer for 1 s");
    ask_said(reward, said, 1);
    assert_true(results[0].ok);
    assert_string_equal(ls_reward_counts_of(reward)->message, "");
    ls_reward_close(reward);
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* A command that never answers costs three times its silence, not one for each item. */
static void a_command_that_never_answers_is_given_up(void **state) {
    static const char *const parts[] = {"silent", "babble"};
    (void)state;
    for (int p = 0; p < 2; p++) {
        ls_reward *reward = open_part(parts[p], 8, 0.2);
        const double begin = seconds();
        ask_numbers(reward, 500);
        assert_true(seconds() - begin < 10);
        for (int64_t i = 0; i < 500; i++) assert_failed(i, "no answer for 0.2 s");
        assert_message(reward, p == 0 ? "no answer for 0.2 s" : "the command wrote \"and so on\"");
        ls_reward_close(reward);
    }
}

static void a_command_that_cannot_start_says_so(void **state) {
    static const char *const commands[] = {"/nowhere/reward", "exit 0", "exec 0<&-; sleep 0.05"};
    static const char *const says[] = {"status 127 (last words: ", "status 0", "status 0"};
    (void)state;
    for (int k = 0; k < 3; k++) {
        ls_reward_command_options options;
        ls_reward *reward;
        ls_error err;
        ls_reward_command_init(&options);
        options.command = commands[k];
        assert_ok(ls_reward_command_open(&reward, &options, &err), err);
        ask_numbers(reward, 300);
        for (int64_t i = 0; i < 300; i++) assert_failed(i, says[k]);
        assert_message(reward, says[k]);
        ls_reward_close(reward);
    }
}

static void rubbish_is_counted_and_passed_over(void **state) {
    ls_reward *reward = open_part("rubbish", 64, 20);
    (void)state;
    ask_numbers(reward, 20);
    assert_numbers(20);
    assert_int_equal(ls_reward_counts_of(reward)->unreadable, 20 * 5);
    assert_int_equal(ls_reward_counts_of(reward)->strays, 20); /* the answer without an id */
    assert_message(reward, "the command wrote \"loading\": answer: invalid JSON");
    ls_reward_close(reward);

    reward = open_part("long", 64, 20);
    ask_numbers(reward, 3);
    assert_numbers(3);
    assert_int_equal(ls_reward_counts_of(reward)->unreadable, 3);
    assert_message(reward, "a line of more than 65536 bytes");
    ls_reward_close(reward);
}

static void the_first_of_several_answers_counts(void **state) {
    ls_reward *reward = open_part("twice", 1, 20);
    const ls_reward_counts *counts = ls_reward_counts_of(reward);
    (void)state;
    for (int round = 0; round < 3; round++) { /* what is late from one ask must not reach the next */
        ask_numbers(reward, 50);
        assert_numbers(50);
    }
    assert_in_range(counts->strays, 49 * 3, 150 * 3);
    assert_message(reward, "does not wait for one");
    ls_reward_close(reward);

    reward = open_part("ahead", 1, 20);
    ask_numbers(reward, 50);
    assert_numbers(50);
    assert_int_equal(ls_reward_counts_of(reward)->strays, 50);
    ls_reward_close(reward);
}

static void odd_rewards_are_failures(void **state) {
    static const char *const said[] = {"NaN",   "Infinity", "-Infinity", "null", "true", "text",  "[1]",  "{}",
                                       "error", "empty",    "absent",    "1e3",  "-2",   "0.125", "-0.0", "1e-400"};
    static const char *const says[] = {"reward: \"NaN\", expected a finite number",
                                       "reward: \"Infinity\"",
                                       "reward: \"-Infinity\"",
                                       "reward: null",
                                       "reward: true",
                                       "reward: \"0.5\"",
                                       "reward: [1]",
                                       "reward: {}",
                                       "too long",
                                       "an error without words",
                                       "neither reward nor error"};
    ls_reward *reward = open_part("values", 64, 20);
    (void)state;
    ask_said(reward, said, 16);
    for (int64_t i = 0; i < 11; i++) assert_failed(i, says[i]);
    assert_true(results[11].ok && results[11].reward == 1000);
    assert_true(results[12].ok && results[12].reward == -2);
    assert_true(results[13].ok && results[13].reward == 0.125);
    assert_true(results[14].ok && results[14].reward == 0 && results[15].ok && results[15].reward == 0);
    assert_int_equal(ls_reward_counts_of(reward)->failed, 11);
    assert_message(reward, "p: reward: \"NaN\", expected a finite number");
    ls_reward_close(reward);
}

static void a_flood_of_complaints_stops_nothing(void **state) {
    ls_reward *reward = open_part("flood", 64, 20);
    (void)state;
    ask_numbers(reward, 20);
    assert_numbers(20);
    assert_string_equal(ls_reward_counts_of(reward)->message, "");
    ls_reward_close(reward);
}

static void a_last_line_needs_no_newline(void **state) {
    static const char *const said[] = {"unended", "unended"};
    ls_reward *reward = open_part("none", 1, 20);
    (void)state;
    ask_said(reward, said, 2);
    assert_true(results[0].ok && results[1].ok && results[1].reward == 9);
    ls_reward_close(reward);
}

/* Texts larger than a pipe go both ways while the command answers. */
static void large_items_do_not_block(void **state) {
    enum { N = 20, BYTES = 300000 };
    static ls_reward_item large[N];
    char *text = malloc(BYTES);
    ls_reward *reward = open_part("flood", 64, 60);
    ls_error err;
    (void)state;
    assert_non_null(text);
    memset(text, 'x', BYTES);
    for (int64_t i = 0; i < N; i++)
        large[i] = (ls_reward_item){"p", {text, BYTES}, {"1", 1}, NULL, 0, NULL, .op = NULL};
    assert_ok(ls_reward_ask(reward, results, large, N, &err), err);
    for (int64_t i = 0; i < N; i++) assert_true(results[i].ok);
    ls_reward_close(reward);
    free(text);
}

/* Whatever the command started, and whether it wants to end or not, nothing of it is left. Orphans come to this
 * process, so that it depends on nobody else to collect them. */
static void nothing_is_left_behind(void **state) {
    (void)state;
    assert_int_equal(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
    for (int k = 0; k < 2; k++) {
        ls_reward_command_options options;
        ls_reward *reward;
        ls_error err;
        char command[1200];
        pid_t group;
        int status = 0;
        snprintf(command, sizeof command, k == 0 ? "sleep 1000 & sleep 1000 & exec '%s' group" : "'%s' stubborn",
                 program);
        ls_reward_command_init(&options);
        options.command = command;
        assert_ok(ls_reward_command_open(&reward, &options, &err), err);
        ask_numbers(reward, 1);
        assert_true(results[0].ok);
        group = (pid_t)results[0].reward;
        assert_true(group > 1 && group != getpgrp() && kill(-group, 0) == 0);
        ls_reward_close(reward);
        while (waitpid(-1, &status, 0) > 0) assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        assert_int_equal(kill(-group, 0), -1);
        assert_int_equal(errno, ESRCH);
    }
    assert_int_equal(prctl(PR_SET_CHILD_SUBREAPER, 0), 0);
}

/* Opens a command that reads and does not end with its input, tells its group, and waits for the end. */
static void keep_a_stubborn_command(int told) {
    ls_reward *reward = open_part("stubborn", 4, 60);
    pid_t group;
    ask_numbers(reward, 1);
    group = (pid_t)results[0].reward;
    if (write(told, &group, sizeof group) != (ssize_t)sizeof group) _exit(1);
    for (;;) pause();
}

static void a_command_does_not_outlive_a_killed_parent(void **state) {
    int told[2];
    pid_t child, group = 0;
    (void)state;
    assert_int_equal(pipe(told), 0);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) keep_a_stubborn_command(told[1]);
    close(told[1]);
    assert_int_equal(read(told[0], &group, sizeof group), sizeof group);
    close(told[0]);
    assert_true(group > 1 && kill(-group, 0) == 0);
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, NULL, 0), child);
    for (int i = 0; i < 2000 && kill(-group, 0) == 0; i++) usleep(10000);
    assert_int_equal(kill(-group, 0), -1);
    assert_int_equal(errno, ESRCH);
}

/* Learning is in float32: what it cannot hold would be an infinity there, and pass for a failed reward unsaid. */
static void rewards_beyond_float32_are_failures(void **state) {
    static const char *const said[] = {"1e300", "-4e38", "3e38", "1e-300", "1e400", "100000000000000000000"};
    ls_reward *reward = open_part("values", 64, 20);
    (void)state;
    ask_said(reward, said, 6);
    assert_failed(0, "reward: 1e+300 is beyond float32");
    assert_failed(1, "reward: -4e+38 is beyond float32");
    assert_true(results[2].ok && results[2].reward == 3e38 && results[3].ok);
    assert_failed(4, "reward: 1e400, expected a finite number");
    assert_true(results[5].ok && results[5].reward == 1e20); /* as Python writes 10**20 */
    assert_message(reward, "beyond float32");
    ls_reward_close(reward);
}

/* SIGPIPE has its default here: had one come, there would be no test left. Ours to see is that a blocked one stays. */
static void signals_stay_as_they_were(void **state) {
    ls_reward_command_options options;
    ls_reward *reward;
    ls_error err;
    sigset_t set, before, after;
    (void)state;
    ls_reward_command_init(&options);
    options.command = "exit 0";
    assert_ok(ls_reward_command_open(&reward, &options, &err), err);
    sigprocmask(SIG_SETMASK, NULL, &before);
    ask_numbers(reward, 10);
    sigprocmask(SIG_SETMASK, NULL, &after);
    assert_int_equal(sigismember(&before, SIGPIPE), 0);
    assert_int_equal(sigismember(&after, SIGPIPE), 0);
    sigpending(&set);
    assert_int_equal(sigismember(&set, SIGPIPE), 0);
    ls_reward_close(reward);
}

static void bad_options_are_named(void **state) {
    ls_reward_command_options options;
    ls_reward *reward = NULL;
    ls_error err;
    (void)state;
    ls_reward_command_init(&options);
    check_failed(ls_reward_command_open(&reward, &options, &err), &err, "it is empty");
    options.command = "cat";
    options.window = 0;
    check_failed(ls_reward_command_open(&reward, &options, &err), &err, "window 0");
    options.window = 1;
    options.silence_s = 0;
    check_failed(ls_reward_command_open(&reward, &options, &err), &err, "silence of 0 s");
    assert_null(reward);
}

#define watched(test) cmocka_unit_test_setup_teardown(test, look_before, look_after)

/* ---- items that come late ---- */

/* Of a file in which the command writes a line for each item that it has read. */
static int64_t lines_of(const void *path) {
    FILE *file = fopen(path, "r");
    int64_t n = 0;
    assert_non_null(file);
    for (int c; (c = fgetc(file)) != EOF;) n += c == '\n';
    assert_int_equal(fclose(file), 0);
    return n;
}

static ls_status ask_late(late_items *l, ls_error *err) {
    ls_reward_command_options options;
    ls_reward *reward;
    char seen[] = "/tmp/lockstep-test-late-XXXXXX", command[400];
    ls_status status;
    assert_int_equal(close(mkstemp(seen)), 0);
    snprintf(command, sizeof command,
             "while IFS= read -r l; do echo x >> %s; id=${l#*'\"id\":\"'}; id=${id%%%%'\"'*}; "
             "said=${l#*'\"completion\":\"'}; echo \"{\\\"id\\\":\\\"$id\\\",\\\"reward\\\":${said%%%%'\"'*}}\"; done",
             seen);
    l->n_seen = lines_of;
    l->context = seen;
    ls_reward_command_init(&options);
    options.command = command;
    options.silence_s = 20;
    assert_ok(ls_reward_command_open(&reward, &options, err), *err);
    status = late_ask(l, reward, results, err);
    ls_reward_close(reward);
    assert_int_equal(unlink(seen), 0);
    return status;
}

/* Each goes out when it is there, and its reward is where it belongs. */
static void late_items_go_out_as_they_come(void **state) {
    late_items l = {.items = items, .n = LATE_ITEMS};
    ls_error err;
    (void)state;
    assert_ok(ls_feed_create(&l.feed, LATE_ITEMS, &err), err);
    for (int round = 0; round < 2; round++) {
        assert_ok(ask_late(&l, &err), err);
        assert_int_equal(l.n_complete, LATE_ITEMS);
        for (int64_t i = 0; i < LATE_ITEMS; i++) assert_true(results[i].ok && results[i].reward == (double)i);
    }
    l.n = 3; /* whoever makes them ended */
    check_failed(ask_late(&l, &err), &err, "3 of 5 items came");
    ls_feed_free(l.feed);
}

/* ---- several asks at a time ---- */

static const ls_reward_item one_item = {"p", {"?", 1}, {"x", 1}, NULL, 0, NULL, .op = NULL};

/* A command that answers the second item first gets it from another ask. */
static void asks_have_their_items_with_it_together(void **state) {
    ls_reward *reward = open_part("pairs", 64, 20);
    ls_reward_result of[4];
    beside b[4];
    (void)state;
    for (int k = 0; k < 4; k++) beside_begin(&b[k], reward, &one_item, &of[k], 1, NULL);
    for (int k = 0; k < 4; k++) {
        assert_ok(beside_end(&b[k]), b[k].err);
        assert_true(of[k].ok && of[k].reward == k); /* its id, whoever was first */
        assert_string_equal(b[k].q.counts.message, "");
    }
    assert_int_equal(ls_reward_counts_of(reward)->ok, 4);
    assert_int_equal(ls_reward_counts_of(reward)->restarts, 0);
    ls_reward_close(reward);
}

/* An ask whose items do not come fails while the item of another waits, which is answered then. */
static void an_ask_that_fails_leaves_the_others(void **state) {
    ls_reward *reward = open_part("pairs", 64, 20);
    ls_reward_result of[4];
    beside waiting, failing, third;
    ls_reward_late late = {0};
    ls_error err;
    (void)state;
    assert_ok(ls_feed_create(&late.feed, 1, &err), err);
    ls_feed_begin(late.feed);
    ls_feed_end(late.feed);
    beside_begin(&waiting, reward, &one_item, &of[0], 1, NULL);
    beside_begin(&failing, reward, &one_item, &of[1], 1, &late);
    check_failed(beside_end(&failing), &failing.err, "0 of 1 items came");
    beside_begin(&third, reward, &one_item, &of[2], 1, NULL);
    assert_ok(beside_end(&waiting), waiting.err);
    assert_ok(beside_end(&third), third.err);
    assert_true(of[0].ok && of[0].reward == 0 && of[2].ok && of[2].reward == 2);
    assert_int_equal(ls_reward_counts_of(reward)->restarts, 0);
    ls_reward_close(reward);
    ls_feed_free(late.feed);
}

/* The item that ends the command fails, and none of its neighbours in either ask. */
static void a_dying_command_costs_no_other_ask(void **state) {
    ls_reward *reward = open_part("none", 64, 20);
    ls_reward_item of[2][20];
    ls_reward_result said[2][20];
    beside b[2];
    (void)state;
    for (int i = 0; i < 40; i++) {
        of[i / 20][i % 20] = one_item;
        of[i / 20][i % 20].completion = (ls_reply){"fine", 4};
    }
    of[1][7].completion = (ls_reply){"die", 3};
    for (int k = 0; k < 2; k++) beside_begin(&b[k], reward, of[k], said[k], 20, NULL);
    for (int k = 0; k < 2; k++) assert_ok(beside_end(&b[k]), b[k].err);
    for (int i = 0; i < 40; i++) assert_int_equal(said[i / 20][i % 20].ok, i != 27);
    assert_non_null(strstr(said[1][7].error, "the command ended with status 3 (last words: ValueError: no)"));
    ls_reward_close(reward);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        watched(answers_stand_where_items_stand),
        watched(items_go_out_as_documented),
        watched(a_dying_command_costs_its_killer_only),
        watched(a_hanging_item_costs_itself_only),
        watched(a_command_that_never_answers_is_given_up),
        watched(a_command_that_cannot_start_says_so),
        watched(rubbish_is_counted_and_passed_over),
        watched(the_first_of_several_answers_counts),
        watched(odd_rewards_are_failures),
        watched(a_flood_of_complaints_stops_nothing),
        watched(a_last_line_needs_no_newline),
        watched(large_items_do_not_block),
        watched(nothing_is_left_behind),
        watched(a_command_does_not_outlive_a_killed_parent),
        watched(rewards_beyond_float32_are_failures),
        watched(signals_stay_as_they_were),
        watched(bad_options_are_named),
        cmocka_unit_test(late_items_go_out_as_they_come),
        watched(asks_have_their_items_with_it_together),
        watched(an_ask_that_fails_leaves_the_others),
        watched(a_dying_command_costs_no_other_ask),
    };
    ssize_t n;
    if (argc > 1) return play(argv[1]);
    n = readlink("/proc/self/exe", program, sizeof program - 1);
    if (n <= 0) return 1;
    program[n] = '\0';
    (void)argv;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
