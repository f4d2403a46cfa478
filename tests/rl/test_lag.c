/* Runs whose episodes a thread draws ahead: one digest whatever carries no bits, a gate of the weights that drew,
 * kills, processes, and what is refused. */
#define _GNU_SOURCE
#include <math.h>

#include "base/mem.h"
#include "rl/grpo_state.h"
#include "rl/ranks_run.h"
#include "run/history.h"

static uint64_t digest_of(const char *first, const char *const *others) {
    const char *sets[6] = {first};
    int64_t n = 1;
    for (; n < 5 && others != NULL && others[n - 1] != NULL; n++) sets[n] = others[n - 1];
    return digest_with(sets, n);
}

/* Neither the speed nor the threads of either side, nor who waits for whom. */
static void settings_carry_no_bits(void **state) {
    static const char *const others[][5] = {
        {"threads=2", "draw_threads=1"},
        {"threads=4", "draw_threads=2", "engine.batch=5"},
        {"draw_threads=3", "microbatch=1", "recompute=true"},
        {"check_share=0"},
        {"check_share=0.5", "engine.batch=3", "engine.prefix=off"},
        {"eval_every=2", "eval_n=4", "engine.shuffle=7", "gate=warn"},
        {"save_every=1", "save_behind=true", "keep=1"},
    };
    const uint64_t want = digest_of("lag=2", NULL);
    (void)state;
    for (int64_t i = 0; i < COUNT(others); i++)
        if (digest_of("lag=2", others[i]) != want) fail_msg("%s", others[i][0]);
}

/* And lag=0 is the run without the option: the first steps of all have the weights that the run begins with. */
static void a_lag_carries_bits(void **state) {
    static const char *const lags[] = {"lag=0", "lag=1", "lag=2", "lag=4"};
    static const char *const one[5] = {"steps=1"};
    uint64_t seen[COUNT(lags)];
    (void)state;
    for (int64_t i = 0; i < COUNT(lags); i++) {
        assert_int_equal(digest_of(lags[i], one), digest_with(one, 1));
        seen[i] = digest_of(lags[i], NULL);
        for (int64_t k = 0; k < i; k++) assert_int_not_equal(seen[i], seen[k]);
    }
    assert_int_equal(seen[0], digest_with(NULL, 0));
}

static double metric(const ls_history *h, const char *name, int64_t k) {
    for (int64_t i = 0; i < h->n_names; i++)
        if (strcmp(h->names[i], name) == 0) return h->values[i * h->n_steps + k];
    fail_msg("no measure %s", name);
    return 0;
}

/* Every token is compared with what the weights that drew it say, also of those that the trainer has left behind, whose
 * ratios are not 1 any more. */
static void old_tokens_are_checked(void **state) {
    job j = job_make("checked");
    ls_history h = {0};
    ls_error err;
    (void)state;
    job_set(&j, "lag=2");
    job_must_run(&j);
    assert_ok(ls_history_read(&h, j.o->train.run, &err), err);
    assert_int_equal(h.n_steps, 5);
    for (int64_t k = 0; k < h.n_steps; k++) {
        const bool fresh = k == 0;
        assert_true(metric(&h, "lag/steps", k) == (k < 2 ? (double)k : 2));
        assert_true(metric(&h, "lag/checked", k) == 16 * metric(&h, LS_METRIC_LENGTH, k));
        assert_true(metric(&h, "mismatch/abs_max", k) == 0);
        assert_true((metric(&h, "staleness/abs_max", k) == 0) == fresh);
        assert_true((metric(&h, "first_update/ratio_max", k) == 1) == fresh);
    }
    ls_history_deinit(&h);
    remove_tree(j.o->train.run);
    job_free(&j);
}

/* Tokens are learnt from over what the weights that drew them left. The trainer's own weights leave another set, which
 * lacks some of the drawn tokens: their log-probability would not be finite. */
static void truncated_draws_keep_their_supports(void **state) {
    static const char *const bases[][5] = {{"lag=2", "top_k=3", "rate=0.02", NULL},
                                           {"lag=1", "top_p=0.8", "temperature=1.3", "epochs=2", "minibatches=3"},
                                           {"lag=3", "min_p=0.2", "lora_rank=2", NULL}};
    (void)state;
    for (int64_t i = 0; i < (SANITIZED ? 2 : COUNT(bases)); i++) {
        const char *sets[9];
        int64_t n = 0;
        uint64_t want;
        for (; n < 5 && bases[i][n] != NULL; n++) sets[n] = bases[i][n];
        sets[n] = "profile=exact";
        want = digest_with(sets, n + 1);
        assert_int_equal(digest_elsewhere(job_make("elsewhere"), sets, n), want);
        sets[n + 1] = "threads=3";
        sets[n + 2] = "draw_threads=2";
        sets[n + 3] = "engine.batch=3";
        assert_int_equal(digest_with(sets, n + 4), want);
    }
}

/* Another model is the reference: what it says of older draws hangs on neither side's speed, nor on what is checked. */
static void a_reference_goes_with_it(void **state) {
    static const char *const settings[] = {"threads=3", "draw_threads=2", "check_share=0.5"};
    const char *sets[6] = {"lag=2", "beta=0.05"};
    char reference[LS_OPTION_TEXT_MAX + 64];
    job teacher = job_make("teacher");
    uint64_t want;
    (void)state;
    job_set(&teacher, "steps=1");
    job_must_run(&teacher);
    snprintf(reference, sizeof reference, "reference=%s/checkpoints/step-%08d", teacher.o->train.run, 1);
    sets[2] = reference;
    want = digest_with(sets, 3);
    assert_int_not_equal(digest_with(sets, 2), want);
    for (int64_t i = 0; i < COUNT(settings); i++) sets[3 + i] = settings[i];
    assert_int_equal(digest_with(sets, 3 + COUNT(settings)), want);
    remove_tree(teacher.o->train.run);
    job_free(&teacher);
}

static void everything_goes_with_it(void **state) {
    static const char *const bases[][5] = {
        {"epochs=2", "minibatches=3", "beta=0.05", "correction=token-truncate=2"},
        {"dtype=bf16", "moments=bf16", "task=guess-number", "task_options=turns=2"},
        {"lora_rank=2", "minibatches=2"},
        {"samples=3", "task_options=words=1,letters=2", "filter_groups=true", "max_num_gen_batches=4"},
    };
    (void)state;
    for (int64_t i = 0; i < COUNT(bases); i++) {
        const char *sets[6] = {"lag=1"};
        int64_t n = 1;
        for (; n < 5 && bases[i][n - 1] != NULL; n++) sets[n] = bases[i][n - 1];
        const uint64_t want = digest_with(sets, n);
        sets[n] = "draw_threads=2";
        assert_int_equal(digest_with(sets, n + 1), want);
    }
}

/* A judge that writes down whom it is asked about, and rewards each by its number. */
static uint64_t digest_judged(const char *file, const char *const *sets, int64_t n) {
    job j = job_make("judged");
    char command[600];
    snprintf(command, sizeof command,
             "reward_command=while IFS= read -r l; do id=${l#*'\"id\":\"'}; id=${id%%%%'\"'*}; echo $id >> %s; "
             "echo \"{\\\"id\\\":\\\"$id\\\",\\\"reward\\\":$((id %% 3))}\"; done",
             file);
    job_set(&j, command);
    return job_digest(j, sets, n);
}

static int64_t steps_back(const char *path) {
    FILE *file = fopen(path, "r");
    int64_t n = 0;
    long last = -1, id;
    assert_non_null(file);
    for (; fscanf(file, "%ld", &id) == 1; last = id) n += id < last;
    assert_int_equal(fclose(file), 0);
    return n;
}

/* Episodes are judged as they end, in whatever order that is: each has its own reward. */
static void the_order_of_judging_carries_no_bits(void **state) {
    static const char *const plain[] = {"lag=1"}, *const slow[] = {"lag=1", "engine.batch=1", "engine.shuffle=7",
                                                                   "max_tokens=6"};
    char path[200];
    int64_t n = 0;
    uint64_t want;
    (void)state;
    snprintf(path, sizeof path, "%s", run_dir("judged-ids"));
    want = digest_judged(path, plain, COUNT(plain));
    for (int tries = 0; n == 0 && tries < 10; tries++) {
        (void)remove(path);
        assert_int_equal(digest_judged(path, slow, COUNT(slow)), want);
        n = steps_back(path);
    }
    assert_true(n > 0);
}

/* Where the trainer's memory is out of reach a version goes by the host to a device of the thread. */
static void a_device_of_its_own_has_the_bits(void **state) {
    static const char *const bases[][5] = {
        {"lag=2", "check_share=0.5", "eval_every=2", "eval_n=4"},
        {"lag=1", "lora_rank=2", "minibatches=2", "save_every=1", "save_behind=true"},
        {"lag=1", "dtype=bf16", "draw_device=cpu", "task=guess-number", "task_options=turns=2"},
    };
    (void)state;
    for (int64_t i = 0; i < COUNT(bases); i++) {
        const int64_t n = bases[i][4] != NULL ? 5 : 4;
        uint64_t want;
        ls_device_open_by(ls_device_open_cpu);
        want = digest_with(bases[i], n);
        assert_int_equal(digest_elsewhere(job_make("elsewhere"), bases[i], n), want);
    }
}

/* Versions that lie beside a checkpoint come to such a device as well. */
static void a_device_of_its_own_goes_on(void **state) {
    static const char *const sets[] = {"lag=2", "steps=5"};
    job j = job_make("goes-on");
    (void)state;
    ls_device_open_by(test_defers() ? test_opener() : ls_device_open_deferred);
    job_set(&j, "profile=exact");
    job_set(&j, "lag=2");
    job_set(&j, "steps=3");
    job_must_run(&j);
    job_set(&j, "steps=5");
    j.o->train.resume = true;
    job_must_run(&j);
    ls_device_open_by(ls_device_open_cpu);
    assert_int_equal(j.result.digest, digest_with(sets, COUNT(sets)));
    remove_tree(j.o->train.run);
    job_free(&j);
}

static void open_weights(ls_model **model, ls_parameters **weights, ls_device *device) {
    ls_error err;
    assert_ok(ls_model_open(model, device, model_dir, &err), err);
    assert_ok(ls_parameters_open_share(weights, *model, device, model_dir, 1, 1, &err), err);
}

/* Copies all tensors but one. */
static void push_without(const ls_parameters *from, const ls_parameters *to, int64_t left_out) {
    ls_error err;
    for (int64_t i = 0; i < from->n; i++) {
        const ls_parameter *p = &from->list[i];
        const int64_t bytes = p->n_elements * ls_dtype_bytes(p->dtype);
        if (i == left_out) continue;
        assert_ok(ls_memory_copy(to->device, ls_parameter_value(&to->list[i]), ls_parameter_value(p), bytes, &err),
                  err);
    }
}

/* Whichever tensor of a version is left behind: nothing is drawn with the others, and it is named. */
static void a_missing_tensor_is_named(void **state) {
    ls_device *device = test_home();
    ls_model *models[2];
    ls_parameters *from, *to;
    uint64_t *sent;
    ls_error err;
    (void)state;
    open_weights(&models[0], &from, device);
    open_weights(&models[1], &to, device);
    assert_non_null(sent = calloc((size_t)from->n, sizeof *sent));
    for (int64_t v = 0; v < from->n; v++) { /* a version each */
        for (int64_t i = 0; i < from->n; i++) {
            const ls_parameter *p = &from->list[i];
            assert_ok(ls_memory_fill(device, ls_parameter_value(p), (int)(0x30 + v % 8),
                                     p->n_elements * ls_dtype_bytes(p->dtype), &err),
                      err);
        }
        assert_ok(ls_grpo_weights_digests(from, sent, &err), err);
        push_without(from, to, v);
        check_failed(ls_grpo_weights_arrive(to, sent, &err), &err, from->list[v].slot.name);
        push_without(from, to, -1);
        assert_ok(ls_grpo_weights_arrive(to, sent, &err), err);
    }
    free(sent);
    ls_parameters_free(from);
    ls_parameters_free(to);
    ls_model_close(models[0]);
    ls_model_close(models[1]);
}

static char *plan_with(const char *const *sets, int64_t n) {
    const ls_config *config;
    job j = job_make("planned");
    ls_train_target target = {0};
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);
    ls_error err;
    assert_non_null(file);
    config = &j.config;
    for (int64_t i = 0; i < n; i++) job_set(&j, sets[i]);
    assert_ok(ls_card_find(&target.card, "h100-80", &err), err);
    assert_ok(ls_grpo_plan(j.o, config, &target, file, &err), err);
    assert_int_equal(fclose(file), 0);
    job_free(&j);
    return text;
}

static double left_of(const char *plan) {
    const char *line = strstr(plan, "  left ");
    assert_non_null(line);
    return strtod(line + 7, NULL);
}

/* Engines of draws and of evaluations are awake together; one on another card takes nothing of this one. */
static void a_plan_knows_who_draws(void **state) {
    static const char *const here[] = {"lag=1", "device=cuda", "eval_every=1"},
                             *const elsewhere[] = {"lag=1", "device=cuda", "draw_device=cuda:1"},
                             *const turns[] = {"lag=0", "device=cuda", "eval_every=1"};
    char *plans[] = {plan_with(here, 3), plan_with(elsewhere, 3), plan_with(turns, 3)};
    (void)state;
    assert_true(left_of(plans[0]) + 0.9 < left_of(plans[2])); /* the prefix cache of an engine */
    assert_non_null(strstr(plans[0], "engine.batch"));
    assert_null(strstr(plans[1], "engine.batch"));
    for (int i = 0; i < 3; i++) free(plans[i]);
}

/* Killed at any moment, the run draws what it had drawn, with the versions that lie beside its checkpoints. */
static void kill_and_resume(const char *base, const char *more, bool is_behind) {
    const char *const sets[] = {"steps=12", "lag=2", base, more};
    const uint64_t want = digest_with(sets, COUNT(sets));
    job j = job_make("killed");
    for (int64_t i = 0; i < COUNT(sets); i++) job_set(&j, sets[i]);
    j.o->train.save_behind = is_behind;
    for (int64_t kill_at = 2; kill_at <= 11; kill_at += 3) {
        const pid_t child = fork();
        int status;
        assert_true(child >= 0);
        if (child == 0) {
            ls_error err;
            j.o->train.resume = kill_at > 2;
            _exit(job_run(&j, &err) == LS_OK ? 0 : 1);
        }
        while (steps_done(j.o->train.run) < kill_at && waitpid(child, &status, WNOHANG) == 0) usleep(500);
        (void)kill(child, SIGKILL);
        (void)waitpid(child, &status, 0);
        assert_true(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
    }
    j.o->train.resume = true;
    job_must_run(&j);
    assert_int_equal(j.result.digest, want);
    assert_int_equal(steps_done(j.o->train.run), 12);
    remove_tree(j.o->train.run);
    job_free(&j);
}

static void a_killed_run_goes_on(void **state) {
    (void)state;
    test_forks();
    kill_and_resume("minibatches=2", "beta=0.05", false);
    kill_and_resume("lora_rank=2", "top_k=3", true);
}

/* A version that is gone is named, and one that another run left is none. */
static void versions_are_needed(void **state) {
    job j = job_make("versions");
    char path[1400];
    ls_error err;
    (void)state;
    assert_int_equal(mkdir(j.o->train.run, 0777), 0);
    snprintf(path, sizeof path, "%s/versions", j.o->train.run);
    assert_int_equal(mkdir(path, 0777), 0);
    snprintf(path, sizeof path, "%s/versions/step-00000003", j.o->train.run);
    assert_int_equal(mkdir(path, 0777), 0);
    job_set(&j, "lag=2");
    job_set(&j, "steps=4");
    job_must_run(&j);
    snprintf(path, sizeof path, "%s/versions/step-00000003/model.safetensors", j.o->train.run);
    assert_true(ls_file_exists(path));
    *strrchr(path, '/') = '\0';
    remove_tree(path);
    job_set(&j, "steps=6");
    j.o->train.resume = true;
    check_failed(job_run(&j, &err), &err, "versions/step-00000003 is missing");
    remove_tree(j.o->train.run);
    job_free(&j);
}

/* When step 4 is saved the checkpoint of step 3 may lack its name: killed then, the run goes on behind step 2, and its
 * step 3 takes version 1. */
static void versions_of_the_checkpoint_before_are_kept(void **state) {
    static const char *const sets[] = {"lag=1", "steps=4", "save_every=1", "save_behind=true"};
    job j = job_make("kept");
    char path[1400];
    (void)state;
    for (int64_t i = 0; i < COUNT(sets); i++) job_set(&j, sets[i]);
    job_must_run(&j);
    for (int v = 0; v < 4; v++) {
        snprintf(path, sizeof path, "%s/versions/step-%08d", j.o->train.run, v);
        assert_int_equal(ls_file_exists(path), v > 0);
    }
    remove_tree(j.o->train.run);
    job_free(&j);
}

static void processes_have_the_bits_of_one(void **state) {
    static const char *const sets[][5] = {{"lag=2", "minibatches=2", "check_share=0.5", "eval_every=2", "beta=0.05"},
                                          {"lag=2", "minibatches=2", "top_p=0.7", "leaf=2", "epochs=2"}};
    (void)state;
    test_forks();
    for (int64_t ranks = 2; ranks <= 4; ranks++) {
        const char *const *set = sets[ranks / 4];
        const uint64_t want = digest_with(set, COUNT(sets[0]));
        pid_t children[4];
        job j = job_make("shared");
        for (int64_t i = 0; i < COUNT(sets[0]); i++) job_set(&j, set[i]);
        start_ranks(&j, ranks, want, children);
        job_must_run(&j);
        end_ranks(ranks, children);
        assert_int_equal(j.result.digest, want);
        remove_tree(j.o->train.run);
        job_free(&j);
    }
}

/* A judge of a shell's, which gets four steps at a time. `hears` is done with each item, which has an id, a step s from
 * 0 on, and a completion c. It says answer ID REWARD or refuse ID. The step is written down in `file`. */
static void set_judge(job *j, const char *file, const char *hears) {
    char command[1000];
    snprintf(command, sizeof command,
             "reward_command=answer() { echo \"{\\\"id\\\":\\\"$1\\\",\\\"reward\\\":$2}\"; }; "
             "refuse() { echo \"{\\\"id\\\":\\\"$1\\\",\\\"error\\\":\\\"no\\\"}\"; }; m=0; h=; "
             "while IFS= read -r l; do id=${l#*'\"id\":\"'}; id=${id%%%%'\"'*}; s=$((id / 16)); "
             "c=${l#*'\"completion\":\"'}; c=${c%%%%'\"'*}; echo $s >> %s; %s; done",
             file, hears);
    job_set(j, command);
    job_set(j, "reward_concurrency=64");
}

#define ANSWER_BY_ID "answer $id $((id % 3))"
/* A judge that ends, when it has answered steps 1 and 2 and was asked about a later one, and again whenever it is
 * begun, fails in step 3, whoever was ahead. */
static void failures_end_the_run_in_their_step(void **state) {
    job j = job_make("failing");
    char hears[400];
    ls_error err;
    (void)state;
    snprintf(hears, sizeof hears,
             "[ -e %s ] && exit 7; if [ $s -lt 2 ]; then %s; m=$((m + 1)); else h=1; fi; "
             "[ $m = 32 ] && [ -n \"$h\" ] && : > %s && exit 7",
             run_dir("ended"), ANSWER_BY_ID, run_dir("ended"));
    set_judge(&j, "/dev/null", hears);
    job_set(&j, "lag=3");
    check_failed(job_run(&j, &err), &err, "step 3: ");
    assert_int_equal(steps_done(j.o->train.run), 2);
    remove_tree(j.o->train.run);
    job_free(&j);
}

/* Answers no item of a step before it has one of the next step, but for the last of five steps. */
#define HOLD_A_STEP                                                                                      \
    "[ $s -gt $m ] && m=$s; h=\"$h $id\"; r=; for i in $h; do if [ $((i / 16)) -lt $m ] || [ $m = 4 ]; " \
    "then answer $i $((i % 3)); else r=\"$r $i\"; fi; done; h=$r"

/* A judge that waits for the next step gets it, and one result is the run's. */
static void steps_are_judged_side_by_side(void **state) {
    static const char *const lags[] = {"lag=1", "lag=3"}, *const judges[] = {ANSWER_BY_ID, HOLD_A_STEP};
    (void)state;
    for (int64_t i = 0; i < COUNT(lags); i++) {
        uint64_t digests[2];
        for (int k = 0; k < 2; k++) {
            job j = job_make("side");
            set_judge(&j, "/dev/null", judges[k]);
            digests[k] = job_digest(j, &lags[i], 1);
        }
        assert_int_equal(digests[0], digests[1]);
    }
}

/* Steps 2 and 3 are with the judge, which refuses all of step 3 at once and only then answers step 2. */
static void a_judge_that_fails_ahead_fails_in_its_step(void **state) {
    job j = job_make("ahead");
    ls_error err;
    (void)state;
    set_judge(&j, "/dev/null",
              "if [ $s = 1 ]; then h=\"$h $id\"; elif [ $s = 2 ]; then refuse $id; m=$((m + 1)); "
              "[ $m = 16 ] && for i in $h; do answer $i $((i % 3)); done; else answer $id $((id % 3)); fi");
    job_set(&j, "lag=1");
    check_failed(job_run(&j, &err), &err, "step 3: all 16 rewards failed");
    assert_int_equal(steps_done(j.o->train.run), 2);
    remove_tree(j.o->train.run);
    job_free(&j);
}

/* Step 2 fails while step 3 is with a judge that says nothing about it, and is not waited for. */
static void a_silent_judge_does_not_hold_what_has_failed(void **state) {
    job j = job_make("silent");
    ls_error err;
    (void)state;
    set_judge(&j, "/dev/null",
              "if [ $s = 0 ]; then " ANSWER_BY_ID
              "; else [ $s = 1 ] && h=\"$h $id\" || m=1; "
              "[ $m = 1 ] && { for i in $h; do refuse $i; done; h=; }; fi");
    job_set(&j, "lag=1");
    job_set(&j, "reward_timeout=100000");
    check_failed(job_run(&j, &err), &err, "step 2: all 16 rewards failed");
    remove_tree(j.o->train.run);
    job_free(&j);
}

static bool has_line(const char *path, const char *line) {
    char text[16] = "";
    bool has = false;
    FILE *file = fopen(path, "r");
    while (file != NULL && !has && fgets(text, sizeof text, file) != NULL) has = strcmp(text, line) == 0;
    if (file != NULL) assert_int_equal(fclose(file), 0);
    return has;
}

/* Killed while steps 3 and 4 are with the judge, the run has them judged again. */
static void a_run_killed_under_two_judgements_goes_on(void **state) {
    static const char by_words[] = "answer $id $((${#c} % 3))";
    const char *const sets[] = {"lag=1"};
    job j = job_make("judging"), other = job_make("judged-once");
    char seen[200];
    int status;
    pid_t child;
    uint64_t want;
    (void)state;
    test_forks();
    snprintf(seen, sizeof seen, "%s", run_dir("seen"));
    set_judge(&other, "/dev/null", by_words);
    want = job_digest(other, sets, 1);
    set_judge(&j, seen, "[ $s -ge 2 ] || answer $id $((${#c} % 3))");
    job_set(&j, "lag=1");
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        ls_error err;
        _exit(job_run(&j, &err) == LS_OK ? 0 : 1);
    }
    while (!has_line(seen, "3\n") && waitpid(child, &status, WNOHANG) == 0) usleep(1000);
    (void)kill(child, SIGKILL);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(steps_done(j.o->train.run), 2);
    set_judge(&j, "/dev/null", by_words);
    j.o->train.resume = true;
    job_must_run(&j);
    assert_int_equal(j.result.digest, want);
    remove_tree(j.o->train.run);
    job_free(&j);
}

/* Completions of a line of data are no longer than it says, and no longer than those of all. */
static void lines_bound_their_completions(void **state) {
    static const int bounds[] = {1, 2, 3, 100};
    job j = job_make("bounds");
    ls_history h = {0};
    ls_history_sample *samples;
    char data[600];
    int64_t n, n_bound = 0;
    FILE *file;
    ls_error err;
    (void)state;
    snprintf(data, sizeof data, "data=%s", run_dir("bounds.jsonl"));
    file = fopen(data + 5, "w");
    assert_non_null(file);
    for (int i = 0; i < 4; i++) fprintf(file, "{\"prompt\":\"%c\",\"answer\":\"b\",\"n\":%d}\n", 'a' + i, bounds[i]);
    assert_int_equal(fclose(file), 0);
    job_set(&j, data);
    for (const char *const *set = (const char *const[]){"reward=exact", "held_out=0", "steps=1", "lag=1",
                                                        "stop=", "data_max_tokens=n", "record_samples=16", NULL};
         *set != NULL; set++)
        job_set(&j, *set);
    job_must_run(&j);
    assert_ok(ls_history_read(&h, j.o->train.run, &err), err);
    assert_ok(ls_history_samples(&samples, &n, j.o->train.run, h.steps, 1, 100, &err), err);
    assert_int_equal(n, 16);
    for (int64_t i = 0; i < n; i++) {
        const int64_t line = samples[i].sample.prompt[samples[i].sample.prompt_bytes - 1] - 'a';
        const int64_t most = ls_min_i64(bounds[line], j.o->max_tokens), drawn = samples[i].sample.n_completion;
        assert_in_range(drawn, 1, most);
        n_bound += drawn == most && most < j.o->max_tokens;
    }
    assert_true(n_bound > 0);
    ls_history_samples_free(samples, n);
    ls_history_deinit(&h);
    remove_tree(j.o->train.run);
    job_free(&j);
}

static void impossible_options_are_named(void **state) {
    static const struct {
        const char *sets[4], *word;
    } cases[] = {
        {{"lag=1", "top_k=5", "check_share=0.5"}, "check_share: 0.5 with top_k"},
        {{"lag=1", "sleep=true"}, "lag: 1 with sleep=true"},
        {{"data_max_tokens=n"}, "data_max_tokens: without data"},
        {{"check_share=0.5"}, "check_share: without lag"},
        {{"draw_threads=2"}, "draw_threads: without lag"},
        {{"draw_device=cpu"}, "draw_device: without lag"},
        {{"lag=1", "draw_device=cuda"}, "draw_device: 'cuda' is neither cpu nor cuda:N"},
        {{"lag=1", "draw_device=cuda:x"}, "draw_device: 'cuda:x' is neither cpu nor cuda:N"},
        {{"lag=1", "draw_device=cuda:77"}, "draw_device: "},
        {{"lag=1", "draw_device=cpu", "ranks=2", "address=127.0.0.1:1"}, "draw_device: cpu with several ranks"}};
    (void)state;
    for (int64_t i = 0; i < COUNT(cases); i++) {
        job j = job_make("impossible");
        ls_error err;
        for (int64_t k = 0; k < 4 && cases[i].sets[k] != NULL; k++) job_set(&j, cases[i].sets[k]);
        check_failed(job_run(&j, &err), &err, cases[i].word);
        job_free(&j);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_lag_carries_bits),
        cmocka_unit_test(settings_carry_no_bits),
        cmocka_unit_test(old_tokens_are_checked),
        cmocka_unit_test(truncated_draws_keep_their_supports),
        cmocka_unit_test(a_reference_goes_with_it),
        cmocka_unit_test(everything_goes_with_it),
        cmocka_unit_test(the_order_of_judging_carries_no_bits),
        cmocka_unit_test(a_device_of_its_own_has_the_bits),
        cmocka_unit_test(a_device_of_its_own_goes_on),
        cmocka_unit_test(a_missing_tensor_is_named),
        cmocka_unit_test(a_plan_knows_who_draws),
        cmocka_unit_test(a_killed_run_goes_on),
        cmocka_unit_test(versions_are_needed),
        cmocka_unit_test(versions_of_the_checkpoint_before_are_kept),
        cmocka_unit_test(processes_have_the_bits_of_one),
        cmocka_unit_test(failures_end_the_run_in_their_step),
        cmocka_unit_test(steps_are_judged_side_by_side),
        cmocka_unit_test(a_judge_that_fails_ahead_fails_in_its_step),
        cmocka_unit_test(a_silent_judge_does_not_hold_what_has_failed),
        cmocka_unit_test(a_run_killed_under_two_judgements_goes_on),
        cmocka_unit_test(lines_bound_their_completions),
        cmocka_unit_test(impossible_options_are_named),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
