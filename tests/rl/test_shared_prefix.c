/* Runs with prefix=shared: one digest whatever does not carry bits, processes included, with all that it goes with; the
 * trainer's log-probabilities, which are the rollouts'; what it refuses. */
#define _GNU_SOURCE
#include "rl/ranks_run.h"

#define SHARED "prefix=shared"
/* Completions so much alike that a group is a tree of several levels. */
#define ALIKE "temperature=0.3", "max_tokens=30", "length=60", "top_p=0.95"

/* What each run is, up to NULL; then what must not matter. Adapters are trained by one process; the CPU alone draws
 * ahead, and then nobody sleeps. */
enum { ADAPTERS = 3, AHEAD = 6 };
static const char *const bases[][8] = {
    {SHARED, "steps=3"},
    {SHARED, "steps=3", ALIKE},
    {SHARED, "steps=2", "leaf=8", "leaves=by_length", "epochs=2", "minibatches=2", "entropy_bonus=0.01",
     "correction=token-truncate=2"},
    {SHARED, "steps=2", "lora_rank=2"},
    {SHARED, "steps=2", "dtype=bf16", "profile=mma16"},
    {SHARED, "steps=2", "leaf=8", "top_p=0.9", "epochs=2", "minibatches=2", "task=guess-number",
     "task_options=turns=2"},
    {SHARED, "steps=3", "lag=1"},
};
static const char *const others[][3] = {
    {"microbatch=1"},
    {"microbatch=2", "recompute=true", "gradients=1"},
    {"rows=212", "threads=2", "isa=generic"},
    {"rows=240", "sleep=true"},
};

static int64_t count(const char *const *sets, int64_t n) {
    int64_t i = 0;
    while (i < n && sets[i] != NULL) i++;
    return i;
}

static void settings_carry_no_bits(void **state) {
    (void)state;
    for (int64_t b = 0; b < AHEAD; b++) {
        const int64_t n_base = count(bases[b], COUNT(bases[b]));
        const uint64_t want = digest_with(bases[b], n_base);
        for (int64_t i = 0; i < COUNT(others); i++) {
            const char *sets[16];
            int64_t n = 0;
            for (; n < n_base; n++) sets[n] = bases[b][n];
            for (int64_t k = 0; k < count(others[i], 3); k++) sets[n++] = others[i][k];
            if (digest_with(sets, n) != want) fail_msg("run %lld: %s", (long long)b, others[i][0]);
        }
    }
}

static void processes_have_the_bits_of_one(void **state) {
    test_forks();
    (void)state;
    for (int64_t b = 0; b < COUNT(bases); b++) {
        const int64_t n = count(bases[b], COUNT(bases[b]));
        uint64_t want;
        pid_t children[3];
        job j;
        if (b == ADAPTERS || (b == AHEAD && test_defers())) continue;
        want = digest_with(bases[b], n);
        j = job_make("ranks");
        for (int64_t i = 0; i < n; i++) job_set(&j, bases[b][i]);
        if (b == 0 && !test_defers()) job_set(&j, "weights=by_layer");
        start_ranks(&j, 2, want, children);
        job_must_run(&j);
        end_ranks(2, children);
        assert_int_equal(j.result.digest, want);
        remove_tree(j.o->train.run);
        job_free(&j);
    }
}

/* What a run is told of a step. */
static double number_of(const job *j, const char *name) {
    char path[1200], key[64], *text;
    const char *at;
    int64_t bytes;
    ls_error err;
    double value;
    snprintf(path, sizeof path, "%s/metrics.jsonl", j->o->train.run);
    snprintf(key, sizeof key, "\"%s\":", name);
    assert_ok(ls_file_read(&text, &bytes, path, 1 << 20, &err), err);
    at = strstr(text, key);
    assert_non_null(at);
    value = strtod(at + strlen(key), NULL);
    free(text);
    return value;
}

/* The first step draws the same episodes, and the gate passes: what the trainer gives each token is what the rollout
 * recorded. Gradients are near, and other bits. */
static void a_step_learns_about_the_same(void **state) {
    double norms[2];
    (void)state;
    for (int shared = 0; shared < 2; shared++) {
        job j = job_make("step");
        job_set(&j, shared ? SHARED : "prefix=off");
        job_set(&j, "steps=1");
        job_set(&j, "profile=exact"); /* whose sums are of float32 */
        job_set(&j, "leaf=4");
        job_must_run(&j);
        assert_true(j.result.gate.n_tokens > 0 && j.result.gate.n_differing == 0);
        norms[shared] = number_of(&j, "gradient_norm");
        remove_tree(j.o->train.run);
        job_free(&j);
    }
    assert_true(norms[0] > 0 && norms[1] / norms[0] - 1 < 1e-6 && norms[0] / norms[1] - 1 < 1e-6);
    assert_true(norms[0] != norms[1]);
}

static void what_it_refuses_is_named(void **state) {
    static const char *const cases[][2] = {
        {"leaf=6", "leaf: 6 sequences are no whole groups of 4"},
        {"rows=80", "rows: 80; with prefix=shared a forward takes a group, of up to 96 tokens"},
    };
    (void)state;
    for (int64_t i = 0; i < COUNT(cases); i++) {
        job j = job_make("refused");
        ls_error err;
        job_set(&j, SHARED);
        job_set(&j, cases[i][0]);
        check_failed(job_run(&j, &err), &err, cases[i][1]);
        job_free(&j);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(processes_have_the_bits_of_one),
        cmocka_unit_test(settings_carry_no_bits),
        cmocka_unit_test(a_step_learns_about_the_same),
        cmocka_unit_test(what_it_refuses_is_named),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
