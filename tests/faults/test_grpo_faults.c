/* The gate against engines with faults: the run ends in the first step that is affected, before it learns from it,
 * leaves a bundle, and the bundle shows the fault again, in the smallest surroundings that can, and where it begins. */
#define _GNU_SOURCE
#include "base/file.h"
#include "faults/faults.h"
#include "rl/flying_run.h"

#define COUNT(array) ((int64_t)(sizeof(array) / sizeof((array)[0])))

typedef struct fault_case {
    const char *name;
    const char *sets[6];      /* levers under which the fault can show */
    int64_t step;             /* in which it must stop */
    const char *surroundings; /* that the replay must name */
    int64_t layer;            /* of the first difference; -2: behind the residual stream */
} fault_case;

static const fault_case cases[] = {
    {"slot-stride-u32", {"engine.slot-words=1073741824", "engine.chunk=3"}, 1, "alone", 0},
    {"stale-slot", {"engine.chunk=1", "engine.prefix=off", "engine.fork=off", "engine.batch=4"}, 1, "again", 0},
    {"prefix-state-shift", {"engine.batch=1", "engine.fork=off"}, 1, "again", 0},
    {"conv-short-chunk", {"engine.chunk=2"}, 1, "alone", 0},
    {"no-reset-packed", {"engine.fork=off", "engine.prefix=off"}, 1, "group", 0},
    {"stale-weights-prefix", {"task=guess-number", "task_options=turns=1", "entropy_bonus=0.1"}, 2, "new-weights", 0},
    {"temperature-not-mirrored", {"temperature=0.8"}, 1, "alone", -2},
    {"split-k-by-batch", {"engine.prefix=off"}, 1, "alone", 0},
    {"softplus-naive", {"engine.batch=2"}, 1, "alone", 0},
    {"softplus-naive", {"leaves=by_length", "leaf=2", "minibatches=2"}, 1, "alone", 0},
    {"no-reset-packed", {"engine.fork=off", "engine.prefix=off", "leaves=by_length", "leaf=2"}, 1, "group", 0},
    {"lag-one", {"minibatches=2"}, 1, "alone", -2},
    {"conv-short-chunk", {"engine.chunk=2", "dtype=bf16", "profile=mma16"}, 1, "alone", 0},
    {"stale-weights-prefix",
     {"task=guess-number", "task_options=turns=1", "entropy_bonus=0.1", "lag=1"},
     3,
     "new-weights",
     0},
    {"stale-weights-prefix",
     {"task=guess-number", "task_options=turns=1", "entropy_bonus=0.1", "lag=1", "top_k=20"},
     3,
     "new-weights",
     0},
    {"stale-slot",
     {"engine.chunk=1", "engine.prefix=off", "engine.fork=off", "engine.batch=4", "lag=2"},
     1,
     "again",
     0},
};

static void run_case(const fault_case *c, job *j) {
    char inject[64];
    ls_error err;
    snprintf(inject, sizeof inject, "inject=%s", c->name);
    job_set(j, inject);
    for (int k = 0; k < 6 && c->sets[k] != NULL; k++) job_set(j, c->sets[k]);
    if (job_run(j, &err) != LS_OK) fail_msg("%s: %s", c->name, err.text);
}

/* The bundle again from its files, with the fault and without. */
static void replay_again(const fault_case *c, const job *j) {
    ls_replay_opts opts = {.threads = 2};
    ls_replay_finding again, sound;
    ls_error err;
    assert_true(ls_inject_parse(&opts.inject, c->name));
    assert_ok(ls_replay(&again, j->result.bundle, &opts, &err), err);
    assert_true(again.differs);
    assert_string_equal(again.surroundings, j->result.finding.surroundings);
    assert_int_equal(again.position, j->result.finding.position);
    assert_int_equal(again.element, j->result.finding.element);
    opts.inject = LS_INJECT_NONE;
    assert_ok(ls_replay(&sound, j->result.bundle, &opts, &err), err);
    assert_false(sound.differs);
}

static bool bundle_has(const job *j, const char *name) {
    char path[1400];
    snprintf(path, sizeof path, "%s/%s", j->result.bundle, name);
    return ls_file_exists(path);
}

static void the_gate_stops_the_first_affected_step(void **state) {
    static const char *const files[] = {"bundle.json", "rollout.jsonl",     "trainer.jsonl",
                                        "config.json", "model.safetensors", "finding.json"};
    (void)state;
    for (int64_t i = 0; i < COUNT(cases); i++) {
        const fault_case *c = &cases[i];
        const ls_replay_finding *f;
        char checkpoint[1400];
        job j = job_make(c->name);
        run_case(c, &j);
        f = &j.result.finding;
        if (!j.result.differs) fail_msg("%s: not seen", c->name);
        if (j.result.step != c->step - 1) fail_msg("%s: stopped behind step %lld", c->name, (long long)j.result.step);
        for (int64_t k = 0; k < COUNT(files); k++)
            if (!bundle_has(&j, files[k])) fail_msg("%s: %s/%s is missing", c->name, j.result.bundle, files[k]);
        if (!f->differs || strcmp(f->surroundings, c->surroundings) != 0)
            fail_msg("%s: '%s', expected '%s'", c->name, f->differs ? f->surroundings : "-", c->surroundings);
        if (f->has_place != (c->layer >= -1) || (f->has_place && f->layer != c->layer))
            fail_msg("%s: layer %lld, expected %lld", c->name, f->has_place ? (long long)f->layer : -2,
                     (long long)c->layer);
        snprintf(checkpoint, sizeof checkpoint, "%s/checkpoints/step-%08lld", j.o->train.run, (long long)c->step);
        assert_false(ls_file_exists(checkpoint));
        replay_again(c, &j);
        remove_tree(j.o->train.run);
        job_free(&j);
    }
}

/* With gate=warn the run goes on to its end, and a correction keeps what it learns in bounds. */
static void a_warning_goes_on(void **state) {
    const fault_case c = {"softplus-naive", {"gate=warn", "correction=token-truncate=2"}, 0, NULL, 0};
    job j = job_make("warned");
    (void)state;
    run_case(&c, &j);
    assert_true(j.result.differs);
    assert_int_equal(j.result.step, 5);
    assert_true(bundle_has(&j, "bundle.json"));
    remove_tree(j.o->train.run);
    job_free(&j);
}

/* What does not reach the log-probabilities does not stop a run. */
static void a_sound_engine_passes(void **state) {
    job j = job_make("sound");
    (void)state;
    job_must_run(&j);
    assert_false(j.result.differs);
    remove_tree(j.o->train.run);
    job_free(&j);
}

/* What was cached of the old weights is found behind the new ones: only the check sees it, of the tokens behind the
 * borders. The bundle names the versions, and their episodes are not drawn again without the log. */
static void stale_states_behind_borders_are_found(void **state) {
    const fault_case c = {"stale-weights-prefix", {NULL}, 2, NULL, 0};
    const ls_replay_opts opts = {0};
    ls_replay_finding finding;
    job j = flying_job("stale");
    char log[200], *text;
    int64_t bytes;
    ls_error err;
    (void)state;
    snprintf(log, sizeof log, "%s", run_dir("stale-log"));
    write_log(log, 2, 1);
    set_text(&j, "follow", log);
    run_case(&c, &j);
    assert_true(j.result.differs);
    assert_int_equal(j.result.step, 1);
    assert_int_equal(j.result.gate.n_sequences_differing, EPISODES);
    assert_int_equal(j.result.gate.n_differing, EPISODES / 2 * (6 - 2) + EPISODES / 2 * (6 - 3));
    assert_false(bundle_has(&j, "finding.json"));
    assert_ok(ls_file_read(&text, &bytes, strcat(strcpy(log, j.result.bundle), "/bundle.json"), 1 << 20, &err), err);
    assert_non_null(strstr(text, "\"versions\":[{\"step\":0"));
    free(text);
    check_failed(ls_replay(&finding, j.result.bundle, &opts, &err), &err, "versions: several versions drew");
    snprintf(log, sizeof log, "%.100s/versions/step-00000001/model.safetensors", j.o->train.run);
    assert_true(ls_file_exists(log));
    remove_tree(j.o->train.run);
    job_free(&j);
}

static void bundles_that_are_damaged_are_refused(void **state) {
    static const struct {
        const char *file, *text, *word;
    } cases_[] = {
        {"trainer.jsonl", "{\"id\":\"x\",\"prompt_ids\":[1],\"completion_ids\":[2],\"logprobs\":[-1]}\n", "1 records"},
        {"rollout.jsonl", "", "rollout.jsonl"},
        {"bundle.json", "{\"format\":3}", "format"},
        {"bundle.json", "{\"format\":2,\"step\":1,\"dtype\":\"bf16\"}", "profile"},
        {"bundle.json", "{\"format\":2,\"step\":1,\"dtype\":\"bf16\",\"profile\":\"tf32\"}",
         "profile: 'tf32' is not exact or mma16"},
        {"bundle.json", "[", "bundle.json"},
    };
    const fault_case c = {"softplus-naive", {NULL}, 1, NULL, 0};
    const ls_replay_opts opts = {0};
    ls_replay_finding finding;
    ls_error err;
    (void)state;
    for (int64_t i = 0; i < COUNT(cases_); i++) {
        job j = job_make("damaged");
        char path[1400];
        FILE *file;
        run_case(&c, &j);
        snprintf(path, sizeof path, "%s/%s", j.result.bundle, cases_[i].file);
        file = fopen(path, "w");
        assert_non_null(file);
        fputs(cases_[i].text, file);
        assert_int_equal(fclose(file), 0);
        check_failed(ls_replay(&finding, j.result.bundle, &opts, &err), &err, cases_[i].word);
        remove_tree(j.o->train.run);
        job_free(&j);
    }
    check_failed(ls_replay(&finding, "/nowhere", &opts, &err), &err, "/nowhere");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sound_engine_passes),
        cmocka_unit_test(the_gate_stops_the_first_affected_step),
        cmocka_unit_test(a_warning_goes_on),
        cmocka_unit_test(stale_states_behind_borders_are_found),
        cmocka_unit_test(bundles_that_are_damaged_are_refused),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
