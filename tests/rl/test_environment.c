/* Runs against an environment: a shell that speaks between the turns. Episodes, rewards and weights do not depend on
 * how it is asked, on its being started again, or on how the run is cut; what it does wrong fails its own episodes. */
#define _GNU_SOURCE
#include "harness.h"
#include "json/json_node.h"
#include "rl/grpo_run.h"

/* `before` runs for every line; a prompt tells its problem. The first completion is answered with a text and a quarter,
 * the second ends the episode: 1 if it has a letter from a to m. */
#define WORLD(before)                                                                                 \
    "while IFS= read -r line; do id=${line#*'\"id\":\"'}; id=${id%%'\"'*}; i=${line#*'\"index\":'}; " \
    "i=${i%%[!0-9]*}; last=${line##*'\"completion\":\"'}; last=${last%%'\"'*}; r=0; " before          \
    "case $line in *'\"op\":\"reset\"'*) echo \"{\\\"id\\\":$id,\\\"prompt\\\":\\\"p$i:\\\"}\";; "    \
    "*'\"op\":\"end\"'*) echo \"{\\\"id\\\":$id,\\\"reward\\\":-1}\";; "                              \
    "*'\"observation\"'*) case $last in *[a-m]*) r=1;; esac; "                                        \
    "echo \"{\\\"id\\\":$id,\\\"done\\\":true,\\\"reward\\\":$r}\";; "                                \
    "*) echo \"{\\\"id\\\":$id,\\\"observation\\\":\\\"+more=\\\",\\\"reward\\\":0.25}\";; esac; done"

static job world_job(const char *run, const char *environment) {
    job j = job_make(run);
    job_set(&j, environment);
    job_set(&j, "steps=3");
    return j;
}

static uint64_t world_digest(const char *environment, const char *const *sets, int64_t n) {
    return job_digest(world_job("with", environment), sets, n);
}

static void runs_do_not_depend_on_how_it_is_asked(void **state) {
    static const char *const cut[] = {"threads=2", "microbatch=1", "reward_concurrency=1", "engine.batch=3"};
    /* Ends without a word at every seventh line: items that it had are asked again. */
    const char *mortal = "environment_command=n=0; " WORLD("n=$((n+1)); [ $n = 7 ] && exit 1; ");
    const char *sound = "environment_command=" WORLD("");
    const uint64_t want = world_digest(sound, NULL, 0);
    (void)state;
    assert_true(world_digest(sound, cut, 4) == want);
    assert_true(world_digest(mortal, cut + 2, 1) == want);
}

static double number_of(const ls_node *object, const char *name) {
    ls_node node;
    if (!ls_node_get(object, name, &node)) fail_msg("%s is missing", name);
    return ls_node_number(&node);
}

static bool has_text(const ls_node *object, const char *name, const char *text) {
    const char *said;
    ls_node node;
    return ls_node_get(object, name, &node) && ls_node_string(&node, &said, NULL) == LS_OK && strcmp(said, text) == 0;
}

/* One line: a completion that its length cut is the last, and costs one. Returns the turns. */
static int64_t check_line(const ls_node *root) {
    const bool cut = has_text(root, "finish", "length");
    const double reward = number_of(root, "reward");
    ls_node turns, first;
    int64_t n;
    assert_true(ls_node_get(root, "turns", &turns));
    n = ls_node_count(&turns);
    assert_true(n == 2 || (n == 1 && cut));
    first = ls_node_at(&turns, 0);
    assert_true(has_text(&first, "observation", "+more=") == (n == 2));
    if (cut)
        assert_true(reward == (n == 2 ? -0.75 : -1));
    else
        assert_true(reward == 0.25 || reward == 1.25);
    return n;
}

/* Lines of the record; n[k]: those of k turns. */
static int64_t read_record(const char *path, int64_t n[3]) {
    char *text;
    int64_t bytes, lines = 0;
    ls_error err;
    assert_ok(ls_file_read(&text, &bytes, path, 1 << 24, &err), err);
    for (char *at = text, *end; (end = strchr(at, '\n')) != NULL; at = end + 1, lines++) {
        ls_json_doc *doc;
        ls_node root;
        assert_ok(ls_json_doc_open(&doc, at, end - at, "record", &err), err);
        root = ls_json_root(doc);
        n[check_line(&root)]++;
        ls_json_doc_free(doc);
    }
    free(text);
    return lines;
}

static void every_turn_is_recorded_and_rewards_add_up(void **state) {
    job j = world_job("recorded", "environment_command=" WORLD(""));
    char assignment[256], path[160];
    int64_t n[3] = {0};
    (void)state;
    snprintf(path, sizeof path, "%s/turns.jsonl", scratch);
    snprintf(assignment, sizeof assignment, "environment_record=%s", path);
    job_set(&j, assignment);
    job_set(&j, "stop=e"); /* ends many completions, not all */
    job_set(&j, "max_tokens=24");
    job_set(&j, "length=64");
    job_must_run(&j);
    assert_false(j.result.differs);
    assert_int_equal(read_record(path, n), 3 * 4 * 4);
    assert_true(n[1] > 0 && n[2] > 0);
    remove_tree(j.o->train.run);
    job_free(&j);
}

static void refuse_run(const char *environment, const char *says) {
    job j = world_job("refused", environment);
    ls_error err;
    check_failed(job_run(&j, &err), &err, says);
    remove_tree(j.o->train.run);
    job_free(&j);
}

static void what_it_does_wrong_is_told(void **state) {
    (void)state;
    refuse_run("environment_command=exit 3", "environment: reset of problem 0 (train): ");
    refuse_run("environment_command=" WORLD("case $line in *reset*) ;; *) echo '{\"id\":'$id',\"done\":\"x\"}'; "
                                            "continue;; esac; "),
               "environment: all 16 episodes failed: ");
    refuse_run("environment_command=" WORLD("case $line in *reset*) ;; *) echo '{\"id\":'$id',\"done\":true}'; "
                                            "continue;; esac; "),
               "they ended without a reward");
    refuse_run("environment_command=" WORLD("case $line in *reset*) echo '{\"id\":'$id',\"done\":false}'; continue;; "
                                            "esac; "),
               "the answer has no prompt");
}

/* Some episodes fail, the others are learnt from. */
static void some_may_fail(void **state) {
    job j = world_job("some", "environment_command=" WORLD("case $line in *'#1\"'*) echo '{\"id\":'$id',\"error\":"
                                                           "\"no\"}'; continue;; esac; "));
    (void)state;
    job_must_run(&j);
    assert_false(j.result.differs);
    remove_tree(j.o->train.run);
    job_free(&j);
}

/* Where there is no room for an observation the episode ends, and is asked for a last time. */
static void episodes_without_room_end(void **state) {
    job j = world_job("short", "environment_command=" WORLD(""));
    char assignment[256], path[160], *text;
    int64_t bytes;
    ls_error err;
    (void)state;
    snprintf(path, sizeof path, "%s/short.jsonl", scratch);
    snprintf(assignment, sizeof assignment, "environment_record=%s", path);
    job_set(&j, assignment);
    job_set(&j, "length=12");
    job_set(&j, "steps=1");
    job_must_run(&j);
    assert_false(j.result.differs);
    assert_ok(ls_file_read(&text, &bytes, path, 1 << 24, &err), err);
    assert_non_null(strstr(text, "\"finish\":\"length\""));
    free(text);
    remove_tree(j.o->train.run);
    job_free(&j);
}

static void options_that_do_not_go_together(void **state) {
    static const struct {
        const char *set, *says;
    } bad[] = {
        {"environment_url=http://localhost:1/", "environment_url: there is an environment_command, too"},
        {"reward=task", "reward: task; there is an environment instead"},
        {"reward=number", "problems of an environment have no answer for number"},
    };
    ls_error err;
    job j = job_make("none");
    (void)state;
    job_set(&j, "environment_record=x");
    check_failed(ls_grpo_options_check(j.o, &err), &err, "environment_command: missing; environment_record needs it");
    job_free(&j);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        j = world_job("none", "environment_command=true");
        job_set(&j, bad[i].set);
        check_failed(ls_grpo_options_check(j.o, &err), &err, bad[i].says);
        job_free(&j);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(runs_do_not_depend_on_how_it_is_asked),
        cmocka_unit_test(every_turn_is_recorded_and_rewards_add_up),
        cmocka_unit_test(what_it_does_wrong_is_told),
        cmocka_unit_test(some_may_fail),
        cmocka_unit_test(episodes_without_room_end),
        cmocka_unit_test(options_that_do_not_go_together),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
