/* Runs of policy gradients as a whole: one digest whatever does not carry bits, kills and processes included; what is
 * learnt; what is refused; rewards that fail. */
#define _GNU_SOURCE
#include <math.h>
#include <signal.h>
#include <sys/wait.h>

#include "base/fnv.h"
#include "load/safetensors.h"
#include "rl/http_server.h"
#include "rl/ranks_run.h"

/* ---- settings ---- */

/* `base` is part of every run, each line of `others` of one. */
static void must_not_matter(const char *const *base, int64_t n_base, const char *const (*others)[4], int64_t n_others) {
    const uint64_t want = digest_with(base, n_base);
    for (int64_t i = 0; i < n_others; i++) {
        const char *sets[16];
        int64_t n = 0;
        for (; n < n_base; n++) sets[n] = base[n];
        for (int64_t k = 0; k < 4 && others[i][k] != NULL; k++) sets[n++] = others[i][k];
        if (digest_with(sets, n) != want) fail_msg("%s %s", others[i][0], others[i][1] != NULL ? others[i][1] : "");
    }
}

static void settings_carry_no_bits(void **state) {
    static const char *const others[][4] = {
        {"microbatch=1"},
        {"microbatch=2", "recompute=true", "gradients=1"},
        {"microbatch=8", "threads=2"},
        {"rows=80", "isa=generic"},
        {"recompute=true", "threads=2"},
        {"engine.batch=3", "engine.chunk=2"},
        {"engine.prefix=off", "engine.fork=off"},
        {"engine.prefix=warm", "engine.verify=1", "engine.drafts=4"},
        {"engine.preempt-every=3", "engine.preempt-by=alternate"},
        {"engine.policy=random", "engine.policy-seed=5", "engine.poison=on", "engine.guards=on"},
        {"engine.shuffle=7", "engine.page=4", "engine.slots=9", "engine.slot-base=3"},
        {"eval_every=2", "eval_n=8", "eval_temperature=0.5"},
        {"sleep=true", "eval_every=1", "eval_n=3", "engine.poison=on"},
        {"sleep=true", "moments_on=host", "gradients=1", "microbatch=2"},
        {"save_every=0", "record_samples=0", "gate=warn"},
        {"save_every=1", "save_behind=true", "keep=1"},
    };
    (void)state;
    must_not_matter(NULL, 0, others, COUNT(others));
}

/* Every part of the loop at once: KL, corrections, epochs of minibatches, bf16, another temperature, leaves of three.
 */
static void settings_carry_no_bits_with_everything(void **state) {
    static const char *const base[] = {"epochs=2",
                                       "minibatches=3",
                                       "beta=0.05",
                                       "entropy_bonus=0.01",
                                       "mask_overlong=true",
                                       "temperature=0.7",
                                       "drop_equal=true",
                                       "leaf=3",
                                       "leaves=by_length",
                                       "dtype=bf16",
                                       "correction=token-truncate=2,geometric-reject=0.5:2"};
    static const char *const others[][4] = {
        {"microbatch=1", "threads=2"},
        {"microbatch=8", "recompute=true", "isa=generic"},
        {"engine.batch=2", "engine.chunk=1", "engine.prefix=off"},
        {"sleep=true", "rows=64"},
    };
    (void)state;
    must_not_matter(base, COUNT(base), others, COUNT(others));
}

/* Truncated rollouts: supports found once a step, epochs and minibatches over them. */
static void settings_carry_no_bits_with_truncation(void **state) {
    static const char *const base[] = {"top_p=0.9",       "top_k=20",           "min_p=0.001",
                                       "temperature=0.8", "dtype=bf16",         "epochs=2",
                                       "minibatches=3",   "entropy_bonus=0.01", "leaf=3"};
    static const char *const others[][4] = {
        {"microbatch=1", "threads=2"},
        {"microbatch=8", "recompute=true", "isa=generic"},
        {"rows=80", "engine.batch=2", "engine.chunk=1", "engine.prefix=off"},
        {"engine.preempt-every=3", "engine.preempt-by=alternate"},
    };
    (void)state;
    must_not_matter(base, COUNT(base), others, COUNT(others));
}

/* A metric of a step's record. */
static double measure(const char *run, int64_t line, const char *name) {
    char path[1200], key[64], *text, *at;
    int64_t bytes;
    double value;
    ls_error err;
    snprintf(path, sizeof path, "%s/metrics.jsonl", run);
    assert_ok(ls_file_read(&text, &bytes, path, 1 << 26, &err), err);
    at = text;
    for (int64_t i = 0; i < line; i++) at = strchr(at, '\n') + 1;
    snprintf(key, sizeof key, "\"%s\":", name);
    at = strstr(at, key);
    if (at == NULL) fail_msg("line %lld has no %s", (long long)line, name);
    value = strtod(at + strlen(key), NULL);
    free(text);
    return value;
}

/* How many tokens a draw was left with, and their mass, stand in the records of every step: as many as top_k says, a
 * mass that top_p reaches; and the distribution that is learnt is the one that was drawn from, bit for bit. */
static void truncation_is_recorded(void **state) {
    static const char *const kinds[] = {"top_k=7", "top_p=0.8", "min_p=0.02"};
    (void)state;
    for (int64_t k = 0; k < COUNT(kinds); k++) {
        job j = job_make("kept");
        job_set(&j, kinds[k]);
        job_must_run(&j);
        for (int64_t i = 0; i < j.o->train.steps; i++) {
            const double mass = measure(j.o->train.run, i, "support/mass"),
                         least = measure(j.o->train.run, i, "support/mass_min"),
                         tokens = measure(j.o->train.run, i, "support/tokens");
            assert_true(least > 0 && least < mass && mass < 1 && tokens >= 1);
            assert_true(k != 0 || tokens == 7);
            assert_true(k != 1 || least > 0.8 - 1e-6);
            assert_true(measure(j.o->train.run, i, "gate/rollout/different") == 0);
            assert_true(measure(j.o->train.run, i, "mismatch/k3") == 0);
        }
        remove_tree(j.o->train.run);
        job_free(&j);
    }
}

/* Adapters merged into the weights: rollout and trainer have the bits of each other, whatever the settings. */
static void settings_carry_no_bits_with_adapters(void **state) {
    static const char *const base[] = {"lora_rank=3",  "lora_alpha=6", "lora_targets=in_proj,mamba.out_proj,down_proj",
                                       "dtype=bf16",   "rate=0.02",    "leaf=3",
                                       "minibatches=2"};
    static const char *const others[][4] = {
        {"microbatch=1", "threads=2"},
        {"microbatch=8", "recompute=true", "isa=generic"},
        {"rows=80", "engine.batch=2", "engine.chunk=1", "engine.prefix=off"},
    };
    (void)state;
    must_not_matter(base, COUNT(base), others, COUNT(others));
}

/* Names, shapes and types that PEFT looks for: an A [rank][k] and a B [n][rank] of each module, and what they mean. */
static void must_be_for_peft(const char *directory, int64_t rank) {
    static const char *const says[] = {"\"peft_type\":\"LORA\"", "\"r\":2",
                                       "\"lora_alpha\":16",      "\"target_modules\":[",
                                       "\"use_rslora\":false",   "\"bias\":\"none\""};
    static const char prefix[] = "base_model.model.model.layers.", ends[2][16] = {".lora_A.weight", ".lora_B.weight"};
    char path[1400], *text;
    ls_safetensors *file;
    int64_t bytes, found[2] = {0, 0};
    ls_error err;
    snprintf(path, sizeof path, "%s/adapter_config.json", directory);
    assert_ok(ls_file_read(&text, &bytes, path, 1 << 20, &err), err);
    for (int64_t i = 0; i < COUNT(says); i++)
        if (strstr(text, says[i]) == NULL) fail_msg("adapter_config.json lacks %s: %s", says[i], text);
    free(text);
    snprintf(path, sizeof path, "%s/adapter_model.safetensors", directory);
    assert_ok(ls_safetensors_open(&file, path, &err), err);
    for (int64_t i = 0; i < ls_safetensors_count(file); i++) {
        const ls_tensor_view *t = ls_safetensors_at(file, i);
        const char *end = t->name + strlen(t->name) - strlen(ends[0]);
        const int which = strcmp(end, ends[1]) == 0;
        if (strncmp(t->name, prefix, strlen(prefix)) != 0 || strcmp(end, ends[which]) != 0 || t->n_dims != 2 ||
            t->dims[which] != rank || t->dtype != LS_ST_F32)
            fail_msg("%s is none of PEFT's", t->name);
        found[which]++;
    }
    assert_true(found[0] > 0 && found[0] == found[1]);
    ls_safetensors_close(file);
}

/* A checkpoint holds the adapters alone; a run goes on from it, on the model that it began with. */
static void a_run_of_adapters_goes_on(void **state) {
    static const char *const base[] = {"lora_rank=2", "rate=0.02", "save_every=1", "keep=0"};
    const char *whole[] = {"lora_rank=2", "rate=0.02", "steps=4"};
    const uint64_t want = digest_with(whole, COUNT(whole));
    char path[1200];
    job j = job_make("adapters");
    ls_error err;
    (void)state;
    for (int64_t i = 0; i < COUNT(base); i++) job_set(&j, base[i]);
    job_set(&j, "steps=2");
    job_must_run(&j);
    snprintf(path, sizeof path, "%s/checkpoints/step-00000002/adapter_model.safetensors", j.o->train.run);
    assert_true(ls_file_exists(path));
    snprintf(path, sizeof path, "%s/checkpoints/step-00000002", j.o->train.run);
    must_be_for_peft(path, 2);
    snprintf(path, sizeof path, "%s/checkpoints/step-00000002/model.safetensors", j.o->train.run);
    assert_false(ls_file_exists(path));
    job_set(&j, "steps=4");
    job_set(&j, "resume=true");
    job_set(&j, "lora_alpha=8");
    check_failed(job_run(&j, &err), &err, "lora_alpha");
    job_set(&j, "lora_alpha=16");
    job_must_run(&j);
    assert_int_equal(j.result.digest, want);
    assert_false(j.result.differs);
    remove_tree(j.o->train.run);
    job_free(&j);
}

/* Products in mma16, the reference's too: mismatch 0 in every step, and another run than exact in bf16. */
static void settings_carry_no_bits_in_mma16(void **state) {
    static const char *const base[] = {"profile=mma16", "dtype=bf16", "beta=0.05", "minibatches=2", "leaf=3"};
    static const char *const exact[] = {"profile=exact", "dtype=bf16", "beta=0.05", "minibatches=2", "leaf=3"};
    static const char *const others[][4] = {
        {"microbatch=1", "threads=2"},
        {"microbatch=8", "recompute=true", "isa=generic"},
        {"rows=80", "engine.batch=2", "engine.chunk=1", "engine.prefix=off"},
    };
    (void)state;
    must_not_matter(base, COUNT(base), others, COUNT(others));
    assert_int_not_equal(digest_with(base, COUNT(base)), digest_with(exact, COUNT(exact)));
}

/* A run is of one profile from its beginning to its end. */
static void a_run_keeps_its_profile(void **state) {
    static const char *const base[] = {"profile=mma16", "dtype=bf16", "steps=2"};
    const char *long_run[] = {"profile=mma16", "dtype=bf16", "steps=4"};
    const uint64_t want = digest_with(long_run, 3);
    job j = job_make("kept");
    ls_error err;
    (void)state;
    for (int64_t i = 0; i < COUNT(base); i++) job_set(&j, base[i]);
    job_must_run(&j);
    job_set(&j, "steps=4");
    job_set(&j, "resume=true");
    job_set(&j, "profile=exact");
    check_failed(job_run(&j, &err), &err, "mma16");
    check_failed(err.status, &err, "state.json");
    job_set(&j, "profile=mma16");
    job_set(&j, "steps=3");
    job_must_run(&j);
    job_set(&j, "profile=auto"); /* by itself it would be exact here */
    job_set(&j, "steps=4");
    job_must_run(&j);
    assert_int_equal(j.o->train.profile, LS_PROFILE_MMA16);
    assert_int_equal(j.result.digest, want);
    remove_tree(j.o->train.run);
    job_free(&j);
}

static void turns_carry_no_bits(void **state) {
    static const char *const base[] = {"task=guess-number", "task_options=high=9,turns=3,reward=speed", "max_tokens=3",
                                       "length=120", "stop=\n"};
    static const char *const others[][4] = {
        {"microbatch=1", "threads=2"},
        {"engine.batch=2", "engine.prefix=off", "engine.chunk=3"},
        {"engine.preempt-every=2"},
    };
    (void)state;
    must_not_matter(base, COUNT(base), others, COUNT(others));
}

/* What carries bits does. */
static void options_carry_bits(void **state) {
    static const char *const sets[] = {"seed=1",          "rate=0.002",        "beta=0.1",      "advantages=rloo",
                                       "temperature=0.9", "entropy_bonus=0.1", "minibatches=2", "epochs=2",
                                       "top_k=20",        "top_p=0.9",         "min_p=0.01",    "moments=bf16",
                                       "leaves=by_length"};
    uint64_t seen[COUNT(sets) + 1];
    (void)state;
    seen[COUNT(sets)] = digest_with(NULL, 0);
    for (int64_t i = 0; i < COUNT(sets); i++) {
        seen[i] = digest_with(&sets[i], 1);
        for (int64_t k = 0; k < i; k++) assert_int_not_equal(seen[i], seen[k]);
        assert_int_not_equal(seen[i], seen[COUNT(sets)]);
    }
}

/* ---- stops in between ---- */

static void kill_and_resume(const char *moments, const char *other, bool is_behind) {
    const char *sets[] = {"steps=12", moments};
    const uint64_t want = digest_with(sets, 2);
    job j = job_make("killed");
    test_forks();
    for (int i = 0; i < 2; i++) job_set(&j, sets[i]);
    j.o->train.save_behind = is_behind;
    for (int64_t kill_at = 3; kill_at <= 9; kill_at += 3) {
        const pid_t child = fork();
        int status;
        assert_true(child >= 0);
        if (child == 0) {
            ls_error err;
            j.o->train.resume = kill_at > 3;
            _exit(job_run(&j, &err) == LS_OK ? 0 : 1);
        }
        while (steps_done(j.o->train.run) < kill_at && waitpid(child, &status, WNOHANG) == 0) usleep(500);
        (void)kill(child, SIGKILL);
        (void)waitpid(child, &status, 0);
        assert_true(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
    }
    {
        ls_error err;
        check_failed(job_run(&j, &err), &err, "the run has checkpoints, the newest of update ");
        j.o->train.resume = true;
        job_set(&j, "eps_high=0.5");
        check_failed(job_run(&j, &err), &err, "options.eps_high: was 0.2 and is 0.5 now");
        job_set(&j, "eps_high=0.2");
        job_set(&j, other);
        check_failed(job_run(&j, &err), &err, "moments: was ");
        job_set(&j, moments);
        job_set(&j, "beta=0.5");
        check_failed(job_run(&j, &err), &err, "data: was");
    }
    job_set(&j, "beta=0");
    job_set(&j, "engine.batch=3");
    job_must_run(&j);
    assert_int_equal(j.result.digest, want);
    assert_int_equal(steps_done(j.o->train.run), 12);
    remove_tree(j.o->train.run);
    job_free(&j);
}

static void a_killed_run_goes_on(void **state) {
    (void)state;
    kill_and_resume("moments=f32", "moments=bf16", false);
    kill_and_resume("moments=bf16", "moments=f32", true);
}

/* A judge in the shell: 1 for completions that begin with a digit. */
#define JUDGE(body)                                                                        \
    "while IFS= read -r l; do id=${l#*'\"id\":\"'}; id=${id%%'\"'*}; r=0; case \"$l\" in " \
    "*'\"completion\":\"'[0-9]*) r=1;; esac; " body "echo \"{\\\"id\\\":\\\"$id\\\",\\\"reward\\\":$r}\"; done"

/* Two and three of them, with everything that a process has a share of: judges from outside, evaluations, a reference,
 * corrections, minibatches. */
static void processes_have_the_bits_of_one(void **state) {
    static const char *const sets[][6] = {
        {"minibatches=2", "reward_command=" JUDGE(""), "eval_every=2", "eval_n=5", NULL},
        {"beta=0.05", "epochs=2", "minibatches=3", "leaf=3", "correction=token-truncate=2", NULL},
        {"moments=bf16", "minibatches=2", "leaf=2", NULL},
        {"leaves=by_length", "minibatches=2", "leaf=2", "task=guess-number", "task_options=turns=2", NULL},
        {"top_p=0.9", "top_k=20", "epochs=2", "minibatches=3", "leaf=2", NULL},
        {"top_p=0.9", "leaves=by_length", "minibatches=3", NULL}};
    test_forks();
    (void)state;
    for (int64_t k = 0; k < COUNT(sets); k++) {
        int64_t n = 0;
        uint64_t want;
        while (sets[k][n] != NULL) n++;
        want = digest_with(sets[k], n);
        for (int64_t ranks = 2; ranks <= 3; ranks++) {
            pid_t children[3];
            job j = job_make("shared");
            for (int64_t i = 0; i < n; i++) job_set(&j, sets[k][i]);
            start_ranks(&j, ranks, want, children);
            job_must_run(&j);
            end_ranks(ranks, children);
            assert_int_equal(j.result.digest, want);
            remove_tree(j.o->train.run);
            job_free(&j);
        }
    }
}

/* Of all checkpoints of a run every byte, but for state.json, which has all options. */
static uint64_t digest_checkpoints(const char *run, int64_t n) {
    static const char *const files[] = {"model.safetensors", "optimizer.safetensors", "config.json"};
    uint64_t hash = LS_FNV_START;
    for (int64_t step = 1; step <= n; step++)
        for (int64_t k = 0; k < COUNT(files); k++) {
            char path[1400], *bytes;
            int64_t size;
            ls_error err;
            snprintf(path, sizeof path, "%s/checkpoints/step-%08lld/%s", run, (long long)step, files[k]);
            assert_ok(ls_file_read(&bytes, &size, path, 1 << 26, &err), err);
            hash = ls_fnv_mix(hash, &size, (int64_t)sizeof size);
            hash = ls_fnv_mix(hash, bytes, size);
            free(bytes);
        }
    return hash;
}

/* Whoever writes a checkpoint, and when: its files are those of one process that waits for them. */
static void checkpoints_are_the_same_files(void **state) {
    static const char *const sets[] = {"steps=4", "save_every=1", "keep=0"};
    uint64_t want = 0;
    test_forks();
    (void)state;
    for (int64_t ranks = 1; ranks <= 3; ranks++)
        for (int behind = 0; behind < 2; behind++) {
            pid_t children[3];
            job j = job_make("files");
            for (int64_t i = 0; i < COUNT(sets); i++) job_set(&j, sets[i]);
            j.o->train.save_behind = behind == 1;
            if (ranks > 1) start_ranks(&j, ranks, 0, children);
            job_must_run(&j);
            if (ranks > 1) end_ranks(ranks, children);
            const uint64_t found = digest_checkpoints(j.o->train.run, 4);
            if (ranks == 1 && behind == 0) want = found;
            if (found != want) fail_msg("%lld processes, behind %d", (long long)ranks, behind);
            remove_tree(j.o->train.run);
            job_free(&j);
        }
}

static void a_rank_that_does_not_see_the_run_is_named(void **state) {
    pid_t child;
    int status;
    ls_error err;
    job j = job_make("seen");
    test_forks();
    (void)state;
    choose_address(j.o->train.address);
    j.o->train.ranks = 2;
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        j.o->train.rank = 1;
        job_set(&j, "run=/tmp/lockstep-nobody-made-this");
        _exit(job_run(&j, &err) != LS_OK && strstr(err.text, "rank 1 does not see what rank 0 made") != NULL ? 0 : 1);
    }
    check_failed(job_run(&j, &err), &err, "rank 1 does not see what rank 0 made there");
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    remove_tree(j.o->train.run);
    job_free(&j);
}

/* A rank that is killed, and one that is stopped for longer than the timeout, end the run by their names; it goes on
 * with any number of processes. */
static void a_lost_rank_is_named_and_the_run_goes_on(void **state) {
    static const struct {
        int signal_number;
        int64_t ranks, victim;
        const char *words, *timeout;
    } cases[] = {{SIGKILL, 3, 2, "rank 2", "timeout=60"}, {SIGSTOP, 2, 1, "rank 1 was silent for 2 s", "timeout=2"}};
    const char *long_run = "steps=14";
    const uint64_t want = digest_with(&long_run, 1);
    job j = job_make("lost");
    test_forks();
    (void)state;
    job_set(&j, long_run);
    for (int64_t k = 0; k < COUNT(cases); k++) {
        pid_t children[3], watcher;
        int status;
        ls_error err;
        job_set(&j, cases[k].timeout);
        j.o->train.resume = k > 0;
        start_ranks(&j, cases[k].ranks, 0, children);
        watcher =
            watch(j.o->train.run, steps_done(j.o->train.run) + 3, children[cases[k].victim], cases[k].signal_number);
        check_failed(job_run(&j, &err), &err, cases[k].words);
        assert_int_equal(waitpid(watcher, &status, 0), watcher);
        assert_int_equal(status, 0);
        (void)kill(children[cases[k].victim], SIGKILL);
        clear_environment();
        for (int64_t r = 1; r < cases[k].ranks; r++) {
            assert_int_equal(waitpid(children[r], &status, 0), children[r]);
            assert_true(r == cases[k].victim ? WIFSIGNALED(status) : WIFEXITED(status) && WEXITSTATUS(status) == 2);
        }
    }
    j.o->train.ranks = 1;
    j.o->train.resume = true;
    job_must_run(&j);
    assert_int_equal(j.result.digest, want);
    assert_int_equal(steps_done(j.o->train.run), 14);
    remove_tree(j.o->train.run);
    job_free(&j);
}

/* ---- rewards ---- */

/* A preference for ten of 64 tokens is learnt in no time. */
static void learn(const char *moments) {
    job j = job_make("learns");
    double last = 0;
    job_set(&j, moments);
    job_set(&j, "reward_command=" JUDGE(""));
    job_set(&j, "steps=25");
    job_set(&j, "samples=16");
    job_set(&j, "max_tokens=1");
    job_set(&j, "rate=0.02");
    job_set(&j, "leaf=16");
    job_set(&j, "dtype=f32"); /* on every device */
    job_must_run(&j);
    for (int64_t i = 20; i < 25; i++) last += measure(j.o->train.run, i, "reward/mean") / 5;
    assert_true(measure(j.o->train.run, 0, "reward/mean") < 0.4);
    print_message("%s: reward %.3f at first, %.3f in the last five of 25 steps\n", moments,
                  measure(j.o->train.run, 0, "reward/mean"), last);
    if (last < 0.9) fail_msg("reward %g", last);
    for (int64_t i = 0; i < 25; i++) {
        assert_true(measure(j.o->train.run, i, "gate/rollout/different") == 0);
        assert_true(measure(j.o->train.run, i, "mismatch/k3") == 0);
        if (measure(j.o->train.run, i, "updates") > 0) {
            assert_true(measure(j.o->train.run, i, "first_update/ratio_min") == 1);
            assert_true(measure(j.o->train.run, i, "first_update/ratio_max") == 1);
            assert_true(measure(j.o->train.run, i, "first_update/clip_fraction") == 0);
        }
    }
    remove_tree(j.o->train.run);
    job_free(&j);
}

static void reward_rises(void **state) {
    (void)state;
    learn("moments=f32");
    learn("moments=bf16");
}

static void judges_that_fail(void **state) {
    const char *sound = "reward_command=" JUDGE("");
    const char *mortal = "reward_command=n=0; " JUDGE("n=$((n+1)); [ $n = 12 ] && exit 1; ");
    const uint64_t want = digest_with(&sound, 1);
    job j;
    ls_error err;
    (void)state;
    assert_int_equal(digest_with(&mortal, 1), want);
    j = job_make("failed");
    job_set(&j, "reward_command=exit 3");
    check_failed(job_run(&j, &err), &err, "step 1: all 16 rewards failed: ");
    remove_tree(j.o->train.run);
    /* Some rewards are missing: their episodes are left out, the run goes on. */
    job_set(&j, "reward_command=" JUDGE("case $id in *3) r=null;; esac; "));
    job_must_run(&j);
    assert_true(measure(j.o->train.run, 0, "reward/failed") > 0);
    remove_tree(j.o->train.run);
    /* A loss beyond float32 ends the run before the weights have changed. */
    job_set(&j, "reward_command=" JUDGE("case $id in *[02468]) r=1e38;; *) r=-1e38;; esac; "));
    job_set(&j, "advantages=mean");
    check_failed(job_run(&j, &err), &err, "step 1: ");
    check_failed(LS_ERR_ARG, &err, "gradient");
    remove_tree(j.o->train.run);
    job_free(&j);
}

/* The judge of JUDGE as a server; every seventh request is answered with an error first. */
static reply judge(int64_t request_i, const char *body) {
    char ids[16][32], said[16][32], *text = NULL;
    size_t bytes = 0;
    const int64_t n = members(body, "id", ids, 16);
    FILE *stream;
    if (request_i % 7 == 6) return say(503, "");
    stream = open_memstream(&text, &bytes);
    if (stream == NULL || members(body, "completion", said, 16) != n) abort();
    fprintf(stream, "{\"items\":[");
    for (int64_t i = 0; i < n; i++)
        fprintf(stream, "%s{\"id\":\"%s\",\"reward\":%d}", i == 0 ? "" : ",", ids[i],
                said[i][0] >= '0' && said[i][0] <= '9');
    fprintf(stream, "]}");
    fclose(stream);
    return (reply){.status = 200, .body = text};
}

static reply never_judges(int64_t request_i, const char *body) {
    (void)request_i;
    (void)body;
    return say(500, "");
}

/* Who judges carries no bits, as long as the rewards are the same; nor does the order in which answers come. */
static void a_server_judges_as_a_command(void **state) {
    const char *command = "reward_command=" JUDGE("");
    const uint64_t want = digest_with(&command, 1);
    char url[128];
    const char *sets[] = {url, "reward_batch=5", "reward_concurrency=3"};
    job j;
    ls_error err;
    (void)state;
    server_start(judge);
    snprintf(url, sizeof url, "reward_url=%s", the_server.url);
    assert_int_equal(digest_with(sets, 3), want);
    assert_true(atomic_load(&the_server.n_requests) > 5 * 16 / 5);
    server_stop();
    server_start(never_judges);
    snprintf(url, sizeof url, "reward_url=%s", the_server.url);
    j = job_make("unjudged");
    job_set(&j, url);
    check_failed(job_run(&j, &err), &err, "step 1: all 16 rewards failed: ");
    check_failed(LS_ERR_IO, &err, "status 500");
    remove_tree(j.o->train.run);
    job_free(&j);
    server_stop();
}

/* ---- refusals ---- */

static void impossible_options_are_named(void **state) {
    static const struct {
        const char *set, *also, *word;
    } cases[] = {
        {"steps=0", NULL, "steps: 0"},
        {"length=6", NULL, "length: 6 tokens leave no room"},
        {"length=8", NULL, "a prompt of 12 tokens; sequences have at most 8 (length)"},
        {"minibatches=5", NULL, "minibatches: 5 of 4 prompts"},
        {"samples=1000000", NULL, "samples: 1000000 of 4 prompts"},
        {"steps=2000000000", NULL, "more than 2^32 problems"},
        {"reward_command=cat", "reward_url=http://localhost", "reward_url: there is a reward_command, too"},
        {"reference=x", NULL, "reference: without beta"},
        {"dual_clip=0.5", NULL, "dual_clip: 0.5 is neither 0 nor above 1"},
        {"eps_low=1", NULL, "eps_low: 1 is not"},
        {"correction=token-truncate", NULL, "correction: "},
        {"engine.batch=0", NULL, "engine.batch: '0'"},
        {"engine.page=3", NULL, "engine.page: 3 does not divide 64"},
        {"engine.memory=1K", NULL, "memory: "},
        {"task=chess", NULL, "task: 'chess' is not a task"},
        {"task_options=words=99", NULL, "task: task reverse-text: option words: '99'"},
        {"rows=5", NULL, "a forward holds 5"},
        {"model=/nowhere", NULL, "/nowhere"},
        {"beta=0.1", "reference=/nowhere", "/nowhere"},
        {"profile=mma16", "dtype=f32", "profile mma16: activations are f32"},
        {"lora_rank=2", "lora_targets=in_proj,nowhere", "lora_targets: 'nowhere' is no matrix of this model"},
        {"lora_rank=2", "lora_alpha=0", "lora_alpha: it is not above 0"},
        {"lora_rank=2", "ranks=2", "address: missing"},
        {"top_p=0", NULL, "top_p: 0 is not in (0, 1]"},
        {"beta=0.1", "top_p=0.9", "beta: 0.1 with top_k, top_p or min_p"},
    };
    (void)state;
    for (int64_t i = 0; i < COUNT(cases); i++) {
        job j = job_make("refused");
        ls_error err;
        job_set(&j, cases[i].set);
        if (cases[i].also != NULL) job_set(&j, cases[i].also);
        check_failed(job_run(&j, &err), &err, cases[i].word);
        remove_tree(j.o->train.run);
        job_free(&j);
    }
}

static void unknown_keys_are_refused(void **state) {
    static const char *const texts[] = {"promts=3",        "engine.samples=2", "engine.ablation=mamba-only",
                                        "loss=dpo",        "temperature=0",    "gate=off",
                                        "engine.nothing=1"};
    static const char json[] =
        "{\"engine.batch\":8,\"engine.pool-share\":0.5,\"engine.prefix\":\"off\",\"stop\":\"\\n\"}";
    static const char bad[] = "{\"engine.batch\":true}";
    job j = job_make("keys");
    ls_error err;
    (void)state;
    for (int64_t i = 0; i < COUNT(texts); i++) assert_int_not_equal(ls_config_set(&j.config, texts[i], &err), LS_OK);
    assert_ok(ls_config_parse(&j.config, json, (int64_t)strlen(json), "json", &err), err);
    {
        ls_levers levers;
        assert_ok(ls_grpo_levers(&levers, j.o, &err), err);
        assert_true(levers.batch == 8 && levers.pool_share == 0.5 && levers.prefix == LS_PREFIX_OFF);
        assert_true(levers.samples == 4 && levers.threads == 1);
    }
    check_failed(ls_config_parse(&j.config, bad, (int64_t)strlen(bad), "json", &err), &err, "engine.batch");
    job_free(&j);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(settings_carry_no_bits),
        cmocka_unit_test(settings_carry_no_bits_with_everything),
        cmocka_unit_test(settings_carry_no_bits_with_truncation),
        cmocka_unit_test(truncation_is_recorded),
        cmocka_unit_test(settings_carry_no_bits_with_adapters),
        cmocka_unit_test(a_run_of_adapters_goes_on),
        cmocka_unit_test(settings_carry_no_bits_in_mma16),
        cmocka_unit_test(a_run_keeps_its_profile),
        cmocka_unit_test(turns_carry_no_bits),
        cmocka_unit_test(options_carry_bits),
        cmocka_unit_test(a_killed_run_goes_on),
        cmocka_unit_test(processes_have_the_bits_of_one),
        cmocka_unit_test(checkpoints_are_the_same_files),
        cmocka_unit_test(a_rank_that_does_not_see_the_run_is_named),
        cmocka_unit_test(a_lost_rank_is_named_and_the_run_goes_on),
        cmocka_unit_test(reward_rises),
        cmocka_unit_test(judges_that_fail),
        cmocka_unit_test(a_server_judges_as_a_command),
        cmocka_unit_test(impossible_options_are_named),
        cmocka_unit_test(unknown_keys_are_refused),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
