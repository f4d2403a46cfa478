/* Dynamic sampling and the penalty of length: which problems take the place of groups with equal rewards, that this has
 * one digest whatever carries no bits, what length costs, and what is recorded of it. */
#define _GNU_SOURCE
#include <math.h>

#include "rl/ranks_run.h"
#include "run/history.h"

/* Problems of several steps whose rewards are often equal: three samples of one letter. */
#define FILTERED "samples=3", "task_options=words=1,letters=2", "filter_groups=true", "max_num_gen_batches=4"

static double metric(const ls_history *h, const char *name, int64_t k) {
    for (int64_t i = 0; i < h->n_names; i++)
        if (strcmp(h->names[i], name) == 0) return h->values[i * h->n_steps + k];
    fail_msg("no measure %s", name);
    return 0;
}

static void equal_groups_are_replaced(void **state) {
    static const char *const sets[] = {FILTERED, "record_samples=12"};
    job j = job_make("filtered");
    ls_history h = {0};
    ls_history_sample *samples;
    int64_t n, again = 0;
    ls_error err;
    (void)state;
    for (int64_t i = 0; i < COUNT(sets); i++) job_set(&j, sets[i]);
    job_must_run(&j);
    assert_ok(ls_history_read(&h, j.o->train.run, &err), err);
    assert_int_equal(h.n_steps, 5);
    for (int64_t k = 0; k < h.n_steps; k++) {
        const double batches = metric(&h, "reward/batches", k), equal = metric(&h, "reward/groups_equal", k);
        assert_true(batches >= 1 && batches <= 4);
        if (equal > 0 && batches < 4)
            fail_msg("step %lld: %g equal groups after %g batches", (long long)k, equal, batches);
        if (metric(&h, "reward/kept", k) > 3 * (4 - equal))
            fail_msg("step %lld: an equal group is learnt", (long long)k);
        again += batches > 1;
    }
    assert_true(again > 0); /* or the test tries nothing */
    /* All samples of a group are recorded, under the episodes' names. */
    assert_ok(ls_history_samples(&samples, &n, j.o->train.run, h.steps, h.n_steps, 100, &err), err);
    assert_int_equal(n, 12 * h.n_steps);
    for (int64_t i = 0; i < n; i++) {
        const char *id = samples[i].sample.id, *sign = strchr(id, '#');
        assert_non_null(sign);
        assert_int_equal(atoi(sign + 1), i % 3);
        assert_int_equal(strncmp(id, samples[i - i % 3].sample.id, (size_t)(sign - id)), 0);
    }
    ls_history_samples_free(samples, n);
    ls_history_deinit(&h);
    remove_tree(j.o->train.run);
    job_free(&j);
}

static void filtering_carries_one_digest(void **state) {
    static const char *const base[] = {FILTERED};
    static const char *const others[] = {"threads=2", "engine.batch=3", "engine.prefix=off", "microbatch=1",
                                         "sleep=true"};
    const uint64_t want = digest_with(base, COUNT(base));
    job j;
    (void)state;
    for (int64_t i = 0; i < COUNT(others); i++) {
        const char *sets[COUNT(base) + 1];
        memcpy(sets, base, sizeof base);
        sets[COUNT(base)] = others[i];
        if (digest_with(sets, COUNT(sets)) != want) fail_msg("%s", others[i]);
    }
    /* A run that goes on draws the same problems as one that went through. */
    j = job_make("parts");
    for (int64_t i = 0; i < COUNT(base); i++) job_set(&j, base[i]);
    job_set(&j, "steps=2");
    job_must_run(&j);
    job_set(&j, "resume=true");
    job_set(&j, "steps=5");
    job_must_run(&j);
    assert_int_equal(j.result.digest, want);
    remove_tree(j.o->train.run);
    job_free(&j);
}

static void several_processes_filter_alike(void **state) {
    static const char *const base[] = {FILTERED};
    const uint64_t want = digest_with(base, COUNT(base));
    test_forks();
    (void)state;
    for (int64_t ranks = 2; ranks <= 3; ranks++) {
        pid_t children[4];
        job j = job_make("ranks");
        for (int64_t i = 0; i < COUNT(base); i++) job_set(&j, base[i]);
        start_ranks(&j, ranks, want, children);
        job_must_run(&j);
        end_ranks(ranks, children);
        assert_int_equal(j.result.digest, want);
        remove_tree(j.o->train.run);
        job_free(&j);
    }
}

/* An environment of two turns whose problems are its own: 1 for a B in the last completion. */
#define WORLD                                                                                                  \
    "environment_command=while IFS= read -r line; do id=${line#*'\"id\":\"'}; id=${id%%'\"'*}; "               \
    "i=${line#*'\"index\":'}; i=${i%%[!0-9]*}; last=${line##*'\"completion\":\"'}; last=${last%%'\"'*}; "      \
    "r=0; case $last in *B*) r=1;; esac; case $line in "                                                       \
    "*'\"op\":\"reset\"'*) echo \"{\\\"id\\\":$id,\\\"prompt\\\":\\\"p$i:\\\"}\";; "                           \
    "*'\"op\":\"end\"'*|*'\"observation\"'*) echo \"{\\\"id\\\":$id,\\\"done\\\":true,\\\"reward\\\":$r}\";; " \
    "*) echo \"{\\\"id\\\":$id,\\\"observation\\\":\\\"+\\\"}\";; esac; done"
static const char *const world[] = {WORLD,    "samples=3",     "filter_groups=true", "max_num_gen_batches=4",
                                    "stop=e", "max_tokens=24", "length=64",          "steps=4"};

/* Groups of an environment are replaced by its next problems, with all their turns. */
static void groups_of_environments_are_replaced(void **state) {
    static char ids[4 * 4 * 12][80];
    char assignment[256], *text;
    int64_t bytes, n = 0, n_two = 0;
    ls_history h = {0};
    ls_error err;
    job j = job_make("world");
    (void)state;
    for (int64_t i = 0; i < COUNT(world); i++) job_set(&j, world[i]);
    snprintf(assignment, sizeof assignment, "environment_record=%s", run_dir("world.jsonl"));
    job_set(&j, assignment);
    job_must_run(&j);
    assert_false(j.result.differs);
    assert_ok(ls_history_read(&h, j.o->train.run, &err), err);
    for (int64_t k = 0; k < h.n_steps; k++) {
        const double batches = metric(&h, "reward/batches", k), equal = metric(&h, "reward/groups_equal", k);
        if (equal > 0 && batches < 4)
            fail_msg("step %lld: %g equal groups after %g batches", (long long)k, equal, batches);
    }
    /* Every episode that was drawn is there once: of another problem each time. */
    assert_ok(ls_file_read(&text, &bytes, strchr(assignment, '=') + 1, 1 << 24, &err), err);
    for (char *at = text, *end; (end = strchr(at, '\n')) != NULL; at = end + 1, n++) {
        const char *id = strstr(at, "\"episode\":");
        *end = '\0';
        n_two += strstr(at, "\"observation\":\"+\"") != NULL;
        assert_non_null(id);
        snprintf(ids[n], sizeof ids[n], "%.*s", (int)strcspn(id, ","), id);
        for (int64_t i = 0; i < n; i++)
            if (strcmp(ids[i], ids[n]) == 0) fail_msg("%s is there twice", ids[n]);
    }
    assert_true(n > 4 * 12 && n % 3 == 0 && n_two > 0);
    free(text);
    ls_history_deinit(&h);
    remove_tree(j.o->train.run);
    job_free(&j);
}

static void filtered_environments_carry_one_digest(void **state) {
    static const char *const others[] = {"threads=2", "reward_concurrency=1", "engine.batch=3"};
    const uint64_t want = digest_with(world, COUNT(world));
    const char *sets[COUNT(world) + COUNT(others)];
    job j;
    (void)state;
    memcpy(sets, world, sizeof world);
    memcpy(sets + COUNT(world), others, sizeof others);
    assert_true(digest_with(sets, COUNT(sets)) == want);
    j = job_make("parts");
    for (int64_t i = 0; i < COUNT(world); i++) job_set(&j, world[i]);
    job_set(&j, "steps=2");
    job_must_run(&j);
    job_set(&j, "resume=true");
    job_set(&j, "steps=4");
    job_must_run(&j);
    assert_true(j.result.digest == want);
    remove_tree(j.o->train.run);
    job_free(&j);
}

/* Where every reward is equal the tries end, it is said, and nothing is learnt. */
static void tries_are_bounded(void **state) {
    char data[600], *said = NULL;
    size_t n;
    FILE *stream = open_memstream(&said, &n), *file;
    job j = job_make("never");
    ls_error err;
    (void)state;
    snprintf(data, sizeof data, "data=%s", run_dir("never.jsonl"));
    file = fopen(data + 5, "w");
    assert_non_null(file);
    for (int i = 0; i < 9; i++) fprintf(file, "{\"prompt\":\"%d+\",\"answer\":\"no completion is this\"}\n", i);
    assert_int_equal(fclose(file), 0);
    job_set(&j, data);
    job_set(&j, "reward=exact");
    job_set(&j, "held_out=0");
    job_set(&j, "steps=2");
    job_set(&j, "filter_groups=true");
    job_set(&j, "max_num_gen_batches=3");
    assert_ok(ls_grpo_run(j.o, &j.config, stream, &j.result, &err), err);
    fclose(stream);
    if (strstr(said, "step 2: after 3 batches of problems 4 of 4 groups have equal rewards\n") == NULL)
        fail_msg("%s", said);
    if (strstr(said, "\nno step had a group whose rewards differ: nothing was learnt from them") == NULL)
        fail_msg("%s", said);
    free(said);
    remove_tree(j.o->train.run);
    job_free(&j);
    /* Where some differ it is not said. */
    j = job_make("some");
    job_set(&j, "steps=1");
    stream = open_memstream(&said, &n);
    assert_ok(ls_grpo_run(j.o, &j.config, stream, &j.result, &err), err);
    fclose(stream);
    if (strstr(said, "no step had a group") != NULL) fail_msg("%s", said);
    free(said);
    remove_tree(j.o->train.run);
    job_free(&j);
}

/* reward - penalty * (tokens - (max_tokens - buffer)) / buffer, where that is above 0. */
static void length_costs_reward(void **state) {
    ls_history_sample *plain, *punished;
    ls_history h = {0};
    int64_t n, m, n_less = 0;
    ls_error err;
    job j = job_make("plain");
    (void)state;
    job_set(&j, "steps=1");
    job_set(&j, "record_samples=16");
    job_must_run(&j);
    assert_ok(ls_history_read(&h, j.o->train.run, &err), err);
    assert_ok(ls_history_samples(&plain, &n, j.o->train.run, h.steps, 1, 100, &err), err);
    ls_history_deinit(&h);
    remove_tree(j.o->train.run);
    job_set(&j, "overlong_buffer=4");
    job_set(&j, "overlong_penalty=0.5");
    job_must_run(&j);
    assert_ok(ls_history_read(&h, j.o->train.run, &err), err);
    assert_ok(ls_history_samples(&punished, &m, j.o->train.run, h.steps, 1, 100, &err), err);
    assert_int_equal(n, 16);
    assert_int_equal(m, n);
    for (int64_t i = 0; i < n; i++) {
        const int64_t over = punished[i].sample.n_completion - 2;
        const double cost = over > 0 ? 0.5 * (double)over / 4 : 0;
        if (fabs(punished[i].sample.reward - (plain[i].sample.reward - cost)) > 1e-12)
            fail_msg("%lld tokens: %g of %g", (long long)punished[i].sample.n_completion, punished[i].sample.reward,
                     plain[i].sample.reward);
        n_less += cost > 0;
    }
    assert_true(n_less > 0 && metric(&h, "reward/overlong_penalty", 0) > 0);
    ls_history_deinit(&h);
    ls_history_samples_free(plain, n);
    ls_history_samples_free(punished, m);
    remove_tree(j.o->train.run);
    job_free(&j);
}

static void what_has_no_effect_is_refused(void **state) {
    static const struct {
        const char *sets[3], *says;
    } cases[] = {
        {{"max_num_gen_batches=3"}, "max_num_gen_batches: without filter_groups"},
        {{"filter_groups=true", "samples=1"}, "filter_groups: the rewards of groups of one sample"},
        {{"overlong_buffer=2"}, "overlong_penalty: missing"},
        {{"overlong_penalty=2"}, "overlong_buffer: missing"},
        {{"overlong_buffer=7", "overlong_penalty=1"}, "overlong_buffer: 7 tokens of 6"},
        {{"overlong_buffer=2", "overlong_penalty=1", "environment_command=cat"},
         "overlong_buffer: with an environment"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        job j = job_make("refused");
        ls_error err;
        for (int k = 0; k < 3 && cases[i].sets[k] != NULL; k++) job_set(&j, cases[i].sets[k]);
        check_failed(job_run(&j, &err), &err, cases[i].says);
        job_free(&j);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_groups_are_replaced),
        cmocka_unit_test(filtering_carries_one_digest),
        cmocka_unit_test(several_processes_filter_alike),
        cmocka_unit_test(groups_of_environments_are_replaced),
        cmocka_unit_test(filtered_environments_carry_one_digest),
        cmocka_unit_test(tries_are_bounded),
        cmocka_unit_test(length_costs_reward),
        cmocka_unit_test(what_has_no_effect_is_refused),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
