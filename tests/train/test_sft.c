/* Supervised runs as a whole: 20 steps have the same masters and moments whatever the microbatch, recomputation,
 * threads, instruction set and number of processes, and when killed and resumed; the loss falls; what a run leaves is a
 * model; bad data and directories are named. */
#define _GNU_SOURCE
#include <ftw.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "base/file.h"
#include "device.h"
#include "json/json_node.h"
#include "train/run_files.h"
#include "train/sft.h"

enum { STEPS = 20 };

static int64_t setting_steps(void) { return test_looks() ? 5 : STEPS; }

static char scratch[] = "/tmp/lockstep-test-XXXXXX";
static char data_path[64];

static int remove_entry(const char *path, const struct stat *st, int kind, struct FTW *walk) {
    (void)st;
    (void)kind;
    (void)walk;
    return remove(path);
}

/* Ten pairs of ids that every fixture has. */
static void write_data(const char *path) {
    FILE *file = fopen(path, "w");
    uint64_t seed = 11;
    assert_non_null(file);
    for (int i = 0; i < 10; i++) {
        const int n_prompt = 1 + (int)(test_random(&seed) % 5), n = 1 + (int)(test_random(&seed) % 9);
        fprintf(file, "{\"prompt_ids\":[%d", i);
        for (int k = 1; k < n_prompt; k++) fprintf(file, ",%d", (int)(test_random(&seed) % 60));
        fprintf(file, "],\"completion_ids\":[%d", (int)(test_random(&seed) % 60));
        for (int k = 1; k < n; k++) fprintf(file, ",%d", (int)(test_random(&seed) % 60));
        fprintf(file, "],\"id\":\"pair %d\"}\n%s", i, i == 4 ? " \t\n" : "");
    }
    assert_int_equal(fclose(file), 0);
}

static int scratch_make(void **state) {
    (void)state;
    if (mkdtemp(scratch) == NULL) return 1;
    snprintf(data_path, sizeof data_path, "%s/data.jsonl", scratch);
    write_data(data_path);
    return 0;
}

static int scratch_remove(void **state) {
    (void)state;
    return nftw(scratch, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

static const char *run_dir(const char *name) {
    static char path[8][128];
    static int next;
    next = (next + 1) % 8;
    snprintf(path[next], sizeof path[next], "%s/%s", scratch, name);
    return path[next];
}

/* ---- runs ---- */

typedef struct job {
    ls_sft_options o;
    ls_config config;
} job;

static job job_make(const char *fixture, const char *run) {
    job j;
    ls_sft_options_init(&j.o, &j.config);
    snprintf(j.o.train.model, sizeof j.o.train.model, "%s/%s", LS_FIXTURES, fixture);
    snprintf(j.o.train.run, sizeof j.o.train.run, "%s", run_dir(run));
    snprintf(j.o.data.data, sizeof j.o.data.data, "%s", data_path);
    j.o.batch = 8;
    j.o.train.steps = STEPS;
    j.o.train.rate = 3e-3;
    j.o.train.rate_floor = 3e-4;
    j.o.train.warmup = 2;
    j.o.train.save_every = 4;
    j.o.train.threads = 1;
    return j;
}

static ls_status job_run(job *j, ls_error *err) {
    ls_config config;
    const ls_sft_options kept = j->o;
    ls_sft_options_init(&j->o, &config); /* tables over where the options are now */
    j->o = kept;
    return ls_sft_run(&j->o, &config, NULL, NULL, err);
}

static void job_must_run(job *j) {
    ls_error err;
    assert_ok(job_run(j, &err), err);
}

/* A file of the last checkpoint. */
static char *read_last(const job *j, const char *name, int64_t *bytes) {
    char path[1200], *text;
    ls_error err;
    snprintf(path, sizeof path, "%s/checkpoints/step-%08lld/%s", j->o.train.run, (long long)j->o.train.steps, name);
    assert_ok(ls_file_read(&text, bytes, path, 1 << 26, &err), err);
    return text;
}

/* Digests of weights, and of masters and moments. */
static void digests_of(const job *j, char out[64]) {
    int64_t bytes;
    char *text = read_last(j, "state.json", &bytes);
    const char *weights, *optimizer;
    ls_json_doc *doc;
    ls_node root, child;
    ls_error err;
    assert_ok(ls_json_doc_open(&doc, text, bytes, "state.json", &err), err);
    root = ls_json_root(doc);
    assert_true(ls_node_get(&root, "weights", &child));
    assert_ok(ls_node_string(&child, &weights, &err), err);
    assert_true(ls_node_get(&root, "optimizer", &child));
    assert_ok(ls_node_string(&child, &optimizer, &err), err);
    snprintf(out, 64, "%s %s", weights, optimizer);
    ls_json_doc_free(doc);
    free(text);
}

static void must_equal(const job *j, const char *want, const char *what) {
    char got[64];
    digests_of(j, got);
    if (strcmp(got, want) != 0) fail_msg("%s: %s, expected %s", what, got, want);
    (void)nftw(j->o.train.run, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

/* The metrics of a run without the times. */
static char *metrics_of(const char *run) {
    char path[1200], *text, *at;
    int64_t bytes;
    ls_error err;
    snprintf(path, sizeof path, "%s/metrics.jsonl", run);
    assert_ok(ls_file_read(&text, &bytes, path, 1 << 26, &err), err);
    for (at = text; (at = strstr(at, "\"time\":")) != NULL;) { /* and the seconds behind it */
        const char *end = strchr(strchr(at, ',') + 1, ',');
        memmove(at, end, strlen(end) + 1);
    }
    for (at = text; (at = strstr(at, "\"tokens_per_second\":")) != NULL;) {
        const char *end = strchr(at, '\n');
        memmove(at, end, strlen(end) + 1);
    }
    return text;
}

static void settings_carry_no_bits(void **state) {
    static const char *const names[] = {"jamba-nobias", "jamba-odd", "jamba-moe"};
    (void)state;
    for (size_t m = 0; m < 3; m++) {
        char want[64];
        job j = job_make(names[m], "plain");
        if (m > 0) j.o.train.leaf = 2;
        if (m > 1) j.o.train.leaves = LS_LEAVES_BY_LENGTH;
        if (m == 2) j.o.train.save_every = 0;
        j.o.train.microbatch = 1;
        j.o.train.steps = setting_steps();
        job_must_run(&j);
        digests_of(&j, want);
        for (int i = 0; i < 7; i++) {
            job k = job_make(names[m], "other");
            k.o.train.steps = setting_steps();
            k.o.train.leaf = j.o.train.leaf;
            k.o.train.leaves = j.o.train.leaves;
            k.o.train.save_every = i;
            k.o.train.microbatch = i < 4 ? 1 << i : 3;
            k.o.train.recompute = i % 2 == 1;
            k.o.train.threads = 1 + i / 2 % 2;
            if (i == 4) k.o.train.rows = 40;
            if (i >= 5 && !ls_isa_available((ls_isa)(i - 5))) continue;
            if (i >= 5) k.o.train.isa = i - 5 + 1;
            if (m == 2 && i != 3 && i != 4) continue;
            job_must_run(&k);
            must_equal(&k, want, names[m]);
        }
        (void)nftw(j.o.train.run, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    }
}

/* The same in mma16: leaves of two sequences, whose rows have places of their own in steps of 16. */
static void check_settings_in_mma16(const char *fixture) {
    char want[64], exact[64];
    for (int i = 0; i < 7; i++) {
        job k = job_make(fixture, i == 0 ? "plain" : "other");
        k.o.train.steps = setting_steps();
        k.o.train.dtype = LS_BF16;
        k.o.train.profile = i == 6 ? LS_PROFILE_EXACT : LS_PROFILE_MMA16;
        k.o.train.leaf = 2;
        k.o.train.microbatch = i < 4 ? 1 << i : 3;
        k.o.train.recompute = i % 2 == 1;
        k.o.train.threads = 1 + i / 2 % 2;
        if (i == 4) k.o.train.rows = 80;
        if (i == 5) k.o.train.isa = LS_ISA_GENERIC + 1;
        job_must_run(&k);
        if (i == 0)
            digests_of(&k, want);
        else if (i < 6)
            must_equal(&k, want, fixture);
        else
            digests_of(&k, exact);
        (void)nftw(k.o.train.run, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    }
    assert_string_not_equal(want, exact);
}

static void settings_carry_no_bits_in_mma16(void **state) {
    (void)state;
    check_settings_in_mma16("jamba-nobias");
    check_settings_in_mma16("jamba-odd"); /* with experts */
}

/* Runs were saved before profiles had a name: they are exact, and go on. */
static void a_run_without_a_profile_goes_on(void **state) {
    static const char name[] = "\"profile\":\"exact\",";
    char path[1200], *text, *at;
    int64_t bytes;
    FILE *file;
    ls_error err;
    job j = job_make("jamba-nobias", "before");
    (void)state;
    job_must_run(&j);
    snprintf(path, sizeof path, "%s/checkpoints/step-%08d/state.json", j.o.train.run, STEPS);
    assert_ok(ls_file_read(&text, &bytes, path, 1 << 20, &err), err);
    at = strstr(text, name);
    assert_non_null(at);
    memset(at, ' ', strlen(name));
    file = fopen(path, "w");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, (size_t)bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
    free(text);
    j.o.train.resume = j.o.train.new_schedule = true;
    j.o.train.steps = STEPS + 1;
    job_must_run(&j);
    (void)nftw(j.o.train.run, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

/* ---- killed ---- */

static void kill_and_resume(ls_dtype moments) {
    char want[64], *want_metrics, *got_metrics;
    job plain = job_make("jamba-odd", "plain"), j = job_make("jamba-odd", "killed");
    test_forks();
    plain.o.train.moments = j.o.train.moments = (int32_t)moments;
    job_must_run(&plain);
    digests_of(&plain, want);
    want_metrics = metrics_of(plain.o.train.run);
    for (int64_t kill_at = 9; kill_at <= 17; kill_at += 8) {
        const pid_t child = fork();
        int status;
        assert_true(child >= 0);
        if (child == 0) {
            ls_error err;
            j.o.train.resume = kill_at > 9;
            _exit(job_run(&j, &err) == LS_OK ? 0 : 1);
        }
        while (steps_done(j.o.train.run) < kill_at && waitpid(child, &status, WNOHANG) == 0) usleep(500);
        (void)kill(child, SIGKILL);
        (void)waitpid(child, &status, 0);
        assert_true(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
    }
    {
        job wrong = j;
        ls_error err;
        check_failed(job_run(&wrong, &err), &err, "the run has checkpoints, the newest of step ");
        wrong.o.train.resume = true;
        wrong.o.train.decay = 0.5;
        check_failed(job_run(&wrong, &err), &err, "options.decay: was 0.1 and is 0.5 now");
        wrong.o.train.decay = 0.1;
        wrong.o.train.moments = moments == LS_F32 ? LS_BF16 : LS_F32;
        check_failed(job_run(&wrong, &err), &err,
                     moments == LS_F32 ? "moments: was f32 and is bf16 now" : "moments: was bf16 and is f32 now");
    }
    j.o.train.resume = true;
    j.o.train.microbatch = 2;
    job_must_run(&j);
    got_metrics = metrics_of(j.o.train.run);
    assert_string_equal(got_metrics, want_metrics);
    must_equal(&j, want, "killed and resumed");
    (void)nftw(plain.o.train.run, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    free(got_metrics);
    free(want_metrics);
}

static void a_killed_run_goes_on(void **state) {
    (void)state;
    kill_and_resume(LS_F32);
    kill_and_resume(LS_BF16);
}

/* ---- processes ---- */

static void share(ls_dtype moments) {
    char want[64];
    job plain = job_make("jamba-nobias", "plain"), j = job_make("jamba-nobias", "shared");
    test_forks();
    plain.o.train.moments = j.o.train.moments = (int32_t)moments;
    job_must_run(&plain);
    digests_of(&plain, want);
    for (int part = 0; part < 2; part++) { /* of two eight steps, of three the rest from the checkpoint */
        pid_t children[3];
        int status;
        j.o.train.ranks = 2 + part;
        j.o.train.steps = part == 0 ? 8 : STEPS;
        j.o.train.schedule_steps = STEPS;
        j.o.train.resume = part == 1;
        /* and the weights by layer, where the device has memory for that */
        j.o.train.weights = part == 1 && !test_defers() ? LS_WEIGHTS_BY_LAYER : LS_WEIGHTS_WHOLE;
        choose_address(j.o.train.address);
        for (int r = 1; r < j.o.train.ranks; r++) {
            children[r] = fork();
            assert_true(children[r] >= 0);
            if (children[r] != 0) continue;
            ls_error err;
            j.o.train.rank = r;
            _exit(job_run(&j, &err) == LS_OK ? 0 : 1);
        }
        job_must_run(&j);
        for (int r = 1; r < j.o.train.ranks; r++) {
            assert_int_equal(waitpid(children[r], &status, 0), children[r]);
            assert_int_equal(status, 0);
        }
    }
    must_equal(&j, want, "two and three processes");
    j.o.train.ranks = 2;
    j.o.train.weights = LS_WEIGHTS_WHOLE;
    /* Another seed is another run: both say so. */
    {
        pid_t child;
        int status;
        ls_error err;
        j.o.train.resume = false;
        choose_address(j.o.train.address);
        child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            j.o.train.rank = 1;
            j.o.train.seed = 1;
            _exit(job_run(&j, &err) != LS_OK && strstr(err.text, "other options, data or weights") != NULL ? 0 : 1);
        }
        check_failed(job_run(&j, &err), &err, "rank 1 was started with other options, data or weights");
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_int_equal(status, 0);
    }
    (void)nftw(plain.o.train.run, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

static void processes_have_the_bits_of_one(void **state) {
    (void)state;
    share(LS_F32);
    share(LS_BF16);
}

/* ---- text, and learning it ---- */

static double last_loss(const char *run) {
    char *text = metrics_of(run), *at = text;
    double loss = NAN;
    while ((at = strstr(at, "\"loss/loss\":")) != NULL) loss = strtod(at += 12, NULL);
    free(text);
    return loss;
}

static void learn_text(ls_dtype moments) {
    job j = job_make("jamba-odd", "text");
    FILE *file;
    snprintf(j.o.train.model, sizeof j.o.train.model, "%s/models/tiny-text", LS_SOURCE_DIR);
    snprintf(j.o.data.data, sizeof j.o.data.data, "%s/text.jsonl", scratch);
    file = fopen(j.o.data.data, "w");
    assert_non_null(file);
    fprintf(file,
            "{\"prompt\":\"The cat\",\"completion\":\" sat on the mat.\"}\n"
            "{\"prompt\":\"A dog\",\"completion\":\" ran away.\",\"completion_ids\":null}\n");
    fclose(file);
    j.o.batch = 2;
    j.o.train.schedule = LS_RATE_CONSTANT;
    j.o.train.rate = 2e-3;
    j.o.train.moments = (int32_t)moments;
    job_must_run(&j);
    print_message("moments in %s: loss %.4f after %d steps\n", ls_dtype_name(moments), last_loss(j.o.train.run), STEPS);
    assert_true(last_loss(j.o.train.run) < 0.3);
    /* Twice as long, from where it stopped. */
    j.o.train.resume = true;
    j.o.train.steps = 2 * STEPS;
    job_must_run(&j);
    assert_true(last_loss(j.o.train.run) < 0.1);
    (void)nftw(j.o.train.run, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

static void text_is_learnt(void **state) {
    (void)state;
    learn_text(LS_F32);
    learn_text(LS_BF16);
}

/* ---- refusals ---- */

static void bad_data_are_named(void **state) {
    static const struct {
        const char *line, *says;
    } cases[] = {
        {"{\"prompt_ids\":[1],\"completion_ids\":[64]}", "line 1: completion_ids[0]: 64 is not in 0..63"},
        {"\n{\"prompt_ids\":[1],\"completion_ids\":[]}", "line 2: completion_ids: is empty"},
        {"{\"prompt_ids\":[1,-1],\"completion_ids\":[1]}", "line 1: prompt_ids[1]: -1 is not in"},
        {"{\"prompt_ids\":[1.5],\"completion_ids\":[1]}", "line 1: prompt_ids[0]: a whole number is required"},
        {"{\"prompt_ids\":[1]}", "line 1: 'completion_ids' is missing"},
        {"{\"prompt\":\"a\",\"completion_ids\":[1]}", "line 1: one of 'prompt' with 'completion' and"},
        {"{\"text\":\"a\"}",
         "line 1: one of 'prompt' with 'completion' and 'prompt_ids' with 'completion_ids' is required; or messages, "
         "or"},
        {"{\"prompt\":\"a\",\"completion\":\"\"}", "line 1: completion: is empty"},
        {"{\"prompt\":\"a\",\"completion\":7}", "line 1: completion: a string is required"},
        {"{\"prompt\":\"a\",\"completion\":\"b\"}", "tokenizer.json"},
        {"{\"prompt_ids\":[1,2,3,4,5,6],\"completion_ids\":[1,2,3]}", "line 1: 9 tokens; the limit is 8 (length)"},
        {"not JSON", "line 1: invalid JSON"},
        {"  \n", "holds no pair"},
    };
    ls_error err;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        job j = job_make("jamba-nobias", "bad");
        FILE *file;
        snprintf(j.o.data.data, sizeof j.o.data.data, "%s/bad.jsonl", scratch);
        file = fopen(j.o.data.data, "w");
        assert_non_null(file);
        fputs(cases[i].line, file);
        fclose(file);
        j.o.length = 8;
        check_failed(job_run(&j, &err), &err, cases[i].says);
        check_failed(LS_ERR_IO, &err, i == 9 ? "jamba-nobias" : "bad.jsonl");
    }
    for (int i = 0; i < 5; i++) {
        static const char *const says[] = {"/nowhere: cannot open", "config.json: cannot open", "data: missing",
                                           "cannot make this directory", "a forward holds 5"};
        job j = job_make("jamba-nobias", "bad");
        if (i == 0) snprintf(j.o.data.data, sizeof j.o.data.data, "/nowhere");
        if (i == 1) snprintf(j.o.train.model, sizeof j.o.train.model, "/nowhere");
        if (i == 2) j.o.data.data[0] = '\0';
        if (i == 3) snprintf(j.o.train.run, sizeof j.o.train.run, "/nowhere/at/all");
        if (i == 4) j.o.train.rows = 5;
        check_failed(job_run(&j, &err), &err, says[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(settings_carry_no_bits),
        cmocka_unit_test(settings_carry_no_bits_in_mma16),
        cmocka_unit_test(a_run_without_a_profile_goes_on),
        cmocka_unit_test(a_killed_run_goes_on),
        cmocka_unit_test(processes_have_the_bits_of_one),
        cmocka_unit_test(text_is_learnt),
        cmocka_unit_test(bad_data_are_named),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
