/* Records of runs: what is written comes back, whatever its bytes; kills, resumed runs, full disks and strangers'
 * files. */
#define _GNU_SOURCE
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <sys/resource.h>
#include <time.h>

#include "base/file.h"
#include "cli/program.h"
#include "measure/mismatch.h"
#include "rl/loss.h"
#include "run/history.h"
#include "run/run_db.h"
#include "run/sql.h"

enum { MEASURES = 20, SAMPLES = 3, STEPS_MAX = 100000 };

static const ls_run_setup fresh = {.kind = "grpo", .config = "seed = 1\n", .config_bytes = -1};

static ls_run_setup resumed(int64_t keep) {
    ls_run_setup setup = fresh;
    setup.resume = true;
    setup.keep = keep;
    return setup;
}

static double value_of(int64_t step, int64_t i) { return (double)step + (double)i / 64.0; }

static void tell_step(ls_run *run, int64_t step) {
    char text[64];
    const ls_run_gate gate = {"rollout", 100 + step, 0, 0.0, 0.0, 0.0, 0.0, true};
    for (int64_t i = 0; i < MEASURES; i++) {
        snprintf(text, sizeof text, "measure/%lld", (long long)i);
        ls_run_metric(run, text, value_of(step, i));
    }
    for (int64_t i = 0; i < SAMPLES; i++) {
        const int n = snprintf(text, sizeof text, "completion %lld of %lld", (long long)i, (long long)step);
        const ls_run_sample sample = {"q", "2+2=", text, 4, n, (double)i, -(double)i, 4, n, "stop"};
        ls_run_sample_add(run, &sample);
    }
    ls_run_gate_add(run, &gate);
}

static void write_step(ls_run *run, int64_t step) {
    ls_error err;
    assert_ok(ls_run_step_begin(run, step, &err), err);
    tell_step(run, step);
    assert_ok(ls_run_step_commit(run, &err), err);
}

static void write_run(const char *dir, const ls_run_setup *setup, int64_t from, int64_t to) {
    ls_run *run;
    ls_error err;
    assert_ok(ls_run_open(&run, dir, setup, &err), err);
    for (int64_t step = from; step <= to; step++) write_step(run, step);
    ls_run_close(run);
}

static ls_status expect_ok(void *context, const ls_sql_value *row, ls_error *err) {
    (void)context;
    (void)err;
    assert_string_equal(row[0].text, "ok");
    return LS_OK;
}

/* Every step has all that belongs to it, nothing belongs to none; returns the last step, -1 without any. */
static int64_t check_database(const char *dir) {
    char path[PATH_BYTES];
    ls_history h;
    ls_history_sample *samples;
    ls_sql *sql;
    ls_error err;
    int64_t n, newest;
    snprintf(path, sizeof path, "%s/run.sqlite", dir);
    assert_ok(ls_sql_open(&sql, path, false, &err), err);
    assert_ok(ls_sql_each(sql, "PRAGMA integrity_check", NULL, 0, expect_ok, NULL, &err), err);
    assert_ok(
        ls_sql_number(&n, sql, "SELECT count(*) FROM metrics WHERE step NOT IN (SELECT step FROM steps)", 0, &err),
        err);
    assert_int_equal(n, 0);
    assert_ok(
        ls_sql_number(&n, sql, "SELECT count(*) FROM samples WHERE step NOT IN (SELECT step FROM steps)", 0, &err),
        err);
    assert_int_equal(n, 0);
    ls_sql_close(sql);

    assert_ok(ls_history_read(&h, dir, &err), err);
    for (int64_t i = 0; i < MEASURES && h.n_steps > 0; i++) {
        char name[64];
        const double *y;
        snprintf(name, sizeof name, "measure/%lld", (long long)i);
        y = ls_history_series(&h, name);
        assert_non_null(y);
        for (int64_t k = 0; k < h.n_steps; k++) assert_true(y[k] == value_of(h.steps[k], i));
    }
    assert_int_equal(h.n_gates, h.n_steps);
    for (int64_t k = 0; k < h.n_steps; k++) {
        assert_int_equal(h.n_samples[k], SAMPLES);
        assert_int_equal(h.gates[k].step, h.steps[k]);
        assert_int_equal(h.gates[k].gate.tokens, 100 + h.steps[k]);
    }
    newest = h.n_steps > 0 ? h.steps[h.n_steps - 1] : -1;
    assert_ok(ls_history_samples(&samples, &n, dir, &newest, 1, 100, &err), err);
    assert_int_equal(n, newest >= 0 ? SAMPLES : 0);
    ls_history_samples_free(samples, n);
    ls_history_deinit(&h);
    return newest;
}

/* Lines of metrics.jsonl: ascending whole steps from the first to the newest. `torn` allows a piece behind them.
 * Returns the newest line's step. */
static int64_t check_lines(const char *dir, bool torn) {
    char path[PATH_BYTES], *text, *line, *end;
    size_t bytes;
    int64_t newest = -1;
    snprintf(path, sizeof path, "%s/metrics.jsonl", dir);
    text = file_read(path, &bytes);
    for (line = text; (end = strchr(line, '\n')) != NULL; line = end + 1) {
        json_t *json;
        int64_t step;
        *end = '\0';
        json = json_loads(line, JSON_REJECT_DUPLICATES, NULL);
        assert_non_null(json);
        step = json_integer_value(json_object_get(json, "step"));
        assert_true(step > newest);
        newest = step;
        assert_int_equal(json_object_size(json), 3 + MEASURES + 7);
        assert_true(json_number_value(json_object_get(json, "measure/7")) == value_of(step, 7));
        json_decref(json);
    }
    assert_true(torn || *line == '\0');
    free(text);
    return newest;
}

static int64_t count_events(const char *dir) {
    DIR *entries = opendir(dir);
    struct dirent *entry;
    int64_t n = 0;
    assert_non_null(entries);
    while ((entry = readdir(entries)) != NULL) n += strncmp(entry->d_name, "events.out.tfevents.", 20) == 0;
    closedir(entries);
    return n;
}

static void what_is_written_comes_back(void **state) {
    static const char hostile[] = "<b>\"&'\\\n\0\xFF\xC0\x80\xED\xA0\x80\xE2\x82\xAC\x01\x7F end";
    static const char *const texts[] = {hostile, "", "plain \xE2\x82\xAC", "a\0b", "\xFF"};
    static const int64_t bytes[] = {sizeof hostile - 1, 0, 9, 3, 1};
    const char *dir = at("written");
    ls_run_setup setup = fresh;
    ls_run *run;
    ls_history h;
    ls_history_sample *samples;
    ls_error err;
    json_t *line;
    int64_t n;
    (void)state;
    setup.config = hostile;
    setup.config_bytes = sizeof hostile - 1;
    assert_ok(ls_run_open(&run, dir, &setup, &err), err);
    assert_ok(ls_run_step_begin(run, 0, &err), err);
    ls_run_metric(run, "reward/mean", 0.1);
    ls_run_metric(run, "n\xC3\xA4me \"<x>\"", 2.0);
    ls_run_metric(run, "nan", (double)NAN);
    ls_run_metric(run, "infinite", -(double)INFINITY);
    ls_run_metric(run, "twice", 1.0);
    ls_run_metric(run, "twice", 5e-324);
    for (int i = 0; i < 5; i++) {
        const ls_run_sample sample = {
            "id", texts[i], texts[(i + 1) % 5], bytes[i], bytes[(i + 1) % 5], (double)NAN, 0.25, i, 2 * i, "length"};
        ls_run_sample_add(run, &sample);
    }
    assert_ok(ls_run_step_commit(run, &err), err);
    assert_ok(ls_run_step_begin(run, 5, &err), err);
    ls_run_gate_add(run, &(ls_run_gate){"rollout", 10, 2, 0.5, -0.25, 1e-3, 2e-3, false});
    ls_run_metric(run, "late", 1.0);
    assert_ok(ls_run_step_commit(run, &err), err);
    ls_run_close(run);

    assert_ok(ls_history_read(&h, dir, &err), err);
    assert_int_equal(h.n_steps, 2);
    assert_int_equal(h.steps[1], 5);
    assert_true(h.times[0] > 1.6e9 && h.seconds[0] >= 0.0);
    assert_true(ls_history_series(&h, "reward/mean")[0] == 0.1);
    assert_true(isnan(ls_history_series(&h, "reward/mean")[1]));
    assert_true(ls_history_series(&h, "n\xC3\xA4me \"<x>\"")[0] == 2.0);
    assert_true(isnan(ls_history_series(&h, "nan")[0]));
    assert_true(ls_history_series(&h, "infinite")[0] == -(double)INFINITY);
    assert_true(ls_history_series(&h, "twice")[0] == 5e-324);
    assert_true(ls_history_series(&h, "gate/rollout/different")[1] == 2.0);
    assert_true(ls_history_series(&h, "gate/rollout/passed")[1] == 0.0);
    assert_null(ls_history_series(&h, "absent"));
    assert_int_equal(h.n_gates, 1);
    assert_string_equal(h.gates[0].gate.name, "rollout");
    assert_true(h.gates[0].gate.k1 == -0.25 && h.gates[0].gate.k3 == 2e-3 && !h.gates[0].gate.passed);
    assert_int_equal(h.n_starts, 1);
    assert_string_equal(h.starts[0].program, "lockstep " LS_VERSION);
    assert_string_equal(h.starts[0].kind, "grpo");
    assert_int_equal(h.starts[0].config_bytes, sizeof hostile - 1);
    assert_memory_equal(h.starts[0].config, hostile, sizeof hostile);
    assert_ok(ls_history_samples(&samples, &n, dir, h.steps, 2, 4, &err), err);
    assert_int_equal(n, 4);
    for (int i = 0; i < 4; i++) {
        const ls_run_sample *s = &samples[i].sample;
        assert_int_equal(s->prompt_bytes, bytes[i]);
        assert_memory_equal(s->prompt, texts[i], (size_t)bytes[i] + 1);
        assert_int_equal(s->completion_bytes, bytes[i + 1]);
        assert_memory_equal(s->completion, texts[i + 1], (size_t)bytes[i + 1] + 1);
        assert_true(isnan(s->reward) && s->advantage == 0.25 && s->n_prompt == i && s->n_completion == 2 * i);
        assert_string_equal(s->finish, "length");
    }
    ls_history_samples_free(samples, n);
    ls_history_deinit(&h);

    line = line_read(at("written/metrics.jsonl"), 0);
    assert_true(json_number_value(json_object_get(line, "reward/mean")) == 0.1);
    assert_true(json_is_null(json_object_get(line, "nan")));
    assert_true(json_is_null(json_object_get(line, "infinite")));
    assert_true(json_number_value(json_object_get(line, "twice")) == 5e-324);
    assert_true(json_is_number(json_object_get(line, "n\xC3\xA4me \"<x>\"")));
    json_decref(line);
    assert_int_equal(count_lines(at("written/metrics.jsonl")), 2);
    /* At rest: the database alone, without a log beside it, the lines and one file of events. */
    assert_int_equal(count_entries(dir), 3);
    assert_int_equal(count_events(dir), 1);
}

/* What the trainer's writers say becomes measures, under our names and under those of other trainers. */
static void measures_come_from_writers(void **state) {
    static const float r[4] = {-1.0f, -2.0f, -0.5f, -3.0f}, t[4] = {-1.0f, -2.25f, -0.5f, -2.5f};
    static const int64_t offsets[3] = {0, 2, 4};
    const ls_tokens tokens = {2, offsets, NULL};
    const ls_loss_metrics loss = {.n_tokens = 4, .loss = 0.75, .entropy = 1.5, .old_k1 = 0.125};
    ls_mismatch m;
    ls_run *run;
    ls_history h;
    ls_json_out *json;
    ls_error err;
    (void)state;
    assert_ok(ls_mismatch_of(&m, &tokens, r, t, &err), err);
    assert_ok(ls_run_open(&run, at("writers"), &fresh, &err), err);
    assert_ok(ls_run_step_begin(run, 1, &err), err);
    ls_mismatch_write(ls_run_metrics(run, LS_METRIC_MISMATCH), &m);
    ls_mismatch_write_aliases(ls_run_metrics(run, ""), &m);
    json = ls_run_metrics(run, "");
    ls_loss_metrics_write(json, "loss", &loss, LS_LOSS_POLICY_PPO);
    ls_json_begin_array(json, "list");
    ls_json_string(json, NULL, "no number");
    ls_json_begin_object(json, NULL);
    ls_json_bool(json, "flag", true);
    ls_json_null(json, "nothing");
    ls_json_end_object(json);
    ls_json_end_array(json);
    ls_json_uint(json, "after", 7);
    assert_ok(ls_run_step_commit(run, &err), err);
    ls_run_close(run);
    assert_ok(ls_history_read(&h, at("writers"), &err), err);
    assert_true(ls_history_series(&h, "mismatch/abs_max")[0] == 0.5);
    assert_true(ls_history_series(&h, "mismatch/equal_fraction")[0] == 0.5);
    assert_true(ls_history_series(&h, "mismatch/k3")[0] == m.k3);
    assert_true(ls_history_series(&h, "mismatch/abs_quantiles/0.5")[0] == m.abs_quantiles[0]);
    assert_true(ls_history_series(&h, "mismatch/lag_correlation/-1") != NULL);
    /* verl, TRL, prime-rl, NeMo-RL, slime */
    assert_true(ls_history_series(&h, "rollout_corr/kl")[0] == m.k1);
    assert_true(ls_history_series(&h, "sampling/sampling_logp_difference/max")[0] == 0.5);
    assert_true(ls_history_series(&h, "mismatch_kl/all/mean")[0] == m.k3);
    assert_true(ls_history_series(&h, "gen_kl_error")[0] == m.k3);
    assert_true(ls_history_series(&h, "train/train_rollout_logprob_abs_diff")[0] == m.sequence_abs_mean);
    assert_true(ls_history_series(&h, LS_METRIC_LOSS)[0] == 0.75);
    assert_true(ls_history_series(&h, "loss/entropy")[0] == 1.5);
    for (int64_t i = 0; i < h.n_names; i++) assert_null(strstr(h.names[i], "aliases"));
    assert_true(ls_history_series(&h, "actor/ppo_kl") != NULL);
    assert_true(ls_history_series(&h, "list/1/flag")[0] == 1.0);
    assert_null(ls_history_series(&h, "list/1/nothing"));
    assert_true(ls_history_series(&h, "after")[0] == 7.0);
    ls_history_deinit(&h);
}

static void later_steps_go_when_a_run_is_resumed(void **state) {
    const char *dir = at("resumed");
    ls_run_setup setup = resumed(6);
    ls_history h;
    ls_run *run;
    ls_error err;
    char *before, *after;
    size_t before_bytes, after_bytes;
    (void)state;
    check_failed(ls_run_open(&run, dir, &setup, &err), &err, "cannot open the directory");
    write_run(dir, &fresh, 1, 9);
    before = file_read(at("resumed/metrics.jsonl"), &before_bytes);
    check_failed(ls_run_open(&run, dir, &fresh, &err), &err, "has records up to step 9");
    setup.config = "seed = 2\n";
    write_run(dir, &setup, 7, 7);
    assert_int_equal(check_database(dir), 7);
    assert_int_equal(check_lines(dir, false), 7);
    assert_int_equal(count_lines(at("resumed/metrics.jsonl")), 7);
    assert_int_equal(count_events(dir), 1);
    after = file_read(at("resumed/metrics.jsonl"), &after_bytes);
    for (int i = 0, line = 0; line < 6; i++) {
        assert_int_equal(before[i], after[i]);
        line += before[i] == '\n';
    }
    free(before);
    free(after);
    /* Behind the end, and from before the first step. */
    setup = resumed(100);
    write_run(dir, &setup, 101, 101);
    assert_int_equal(check_lines(dir, false), 101);
    setup = resumed(-1);
    write_run(dir, &setup, 0, 2);
    assert_int_equal(check_database(dir), 2);
    assert_int_equal(count_lines(at("resumed/metrics.jsonl")), 3);
    assert_ok(ls_history_read(&h, dir, &err), err);
    assert_int_equal(h.n_starts, 4);
    assert_true(!h.starts[0].resumed && h.starts[1].resumed && h.starts[1].kept == 6);
    assert_string_equal(h.starts[1].config, "seed = 2\n");
    ls_history_deinit(&h);

    assert_int_equal(mkdir(at("empty"), 0777), 0);
    check_failed(ls_run_open(&run, at("empty"), &setup, &err), &err, "no run to resume");
    assert_int_equal(count_entries(at("empty")), 0);
    check_failed(ls_history_read(&h, at("empty"), &err), &err, "no such file");
}

static void steps_can_be_dropped_and_fail(void **state) {
    const char *dir = at("dropped");
    ls_run *run, *second;
    ls_error err;
    (void)state;
    assert_ok(ls_run_open(&run, dir, &fresh, &err), err);
    check_failed(ls_run_open(&second, dir, &fresh, &err), &err, "another process is writing");
    write_step(run, 3);
    check_failed(ls_run_step_begin(run, 3, &err), &err, "step 3 comes after step 3");
    assert_ok(ls_run_step_begin(run, 4, &err), err);
    tell_step(run, 4);
    assert_int_equal(check_database(dir), 3); /* a reader beside an open step */
    ls_run_step_drop(run);
    assert_ok(ls_run_step_begin(run, 4, &err), err);
    tell_step(run, 4);
    ls_run_metric(run, "seconds", 1.0);
    ls_run_metric(run, "\xFF", 1.0);
    check_failed(ls_run_step_commit(run, &err), &err, "'seconds' cannot be the name");
    write_step(run, 4);
    assert_ok(ls_run_step_begin(run, 5, &err), err);
    tell_step(run, 5);
    ls_run_close(run);
    assert_int_equal(check_database(dir), 4);
    assert_int_equal(check_lines(dir, false), 4);
}

static void sleep_us(int64_t us) {
    const struct timespec time = {us / 1000000, us % 1000000 * 1000};
    nanosleep(&time, NULL);
}

/* Writes steps behind `keep` until it is killed, and a byte to `told` after each. */
static void write_until_killed(const char *dir, const ls_run_setup *setup, int64_t keep, int told) {
    ls_run *run;
    if (ls_run_open(&run, dir, setup, NULL) != LS_OK) _exit(1);
    for (int64_t step = keep + 1; step < STEPS_MAX; step++) {
        if (ls_run_step_begin(run, step, NULL) != LS_OK) _exit(2);
        tell_step(run, step);
        if (ls_run_step_commit(run, NULL) != LS_OK) _exit(3);
        if (write(told, "", 1) != 1) _exit(4);
    }
    _exit(5);
}

/* Kills while the files are opened, and a moment after so many steps: how fast the disk is must not matter. */
static void kills_leave_whole_steps(void **state) {
    const char *dir = at("killed");
    uint64_t seed = 12345;
    int64_t keep = -1, total = 0;
    ls_run_setup setup = fresh;
    (void)state;
    for (int round = 0; round < 24; round++) {
        int status, told[2];
        int64_t last_step, last_line;
        pid_t child;
        assert_int_equal(pipe(told), 0);
        child = fork();
        assert_true(child >= 0);
        if (child == 0) write_until_killed(dir, &setup, keep, told[1]);
        close(told[1]);
        seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
        if (round % 3 != 0)
            for (uint64_t steps = 1 + (seed >> 60); steps > 0; steps--) {
                char byte;
                assert_int_equal(read(told[0], &byte, 1), 1);
            }
        sleep_us((int64_t)(seed >> 33) % 10000);
        kill(child, SIGKILL);
        assert_int_equal(waitpid(child, &status, 0), child);
        close(told[0]);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        if (!ls_file_exists(at("killed/run.sqlite"))) continue;
        {
            ls_history h;
            ls_error err;
            /* Killed before it had its tables, it has no records; it will be begun again. */
            if (ls_history_read(&h, dir, &err) != LS_OK) {
                assert_int_equal(total, 0);
                assert_non_null(strstr(err.text, "not of a run"));
                continue;
            }
            if (h.n_starts > 0) setup = resumed(0);
            ls_history_deinit(&h);
        }
        last_step = check_database(dir);
        if (last_step > keep) { /* not before the files were made anew */
            last_line = check_lines(dir, true);
            assert_true(last_line == last_step || last_line == last_step + 1);
        }
        total += last_step > keep ? last_step - keep : 0;
        keep = last_step > 3 ? last_step - (int64_t)(seed >> 40) % 3 : last_step;
        setup.keep = keep;
    }
    assert_true(total > 20);
    setup = resumed(keep);
    write_run(dir, &setup, keep + 1, keep + 1);
    assert_int_equal(check_database(dir), keep + 1);
    assert_int_equal(check_lines(dir, false), keep + 1);
    assert_int_equal(count_lines(at("killed/metrics.jsonl")), keep + 2);
    assert_int_equal(count_entries(dir), 3); /* no leftovers */
}

/* Files that may not grow stand for a disk that is full. */
static void a_full_disk_loses_nothing(void **state) {
    const char *dir = at("full");
    struct rlimit limit, small;
    ls_run *run;
    ls_error err = {0};
    ls_status status = LS_OK;
    int64_t step = 0, n;
    char *text;
    size_t bytes;
    (void)state;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    signal(SIGXFSZ, SIG_IGN);
    for (int round = 0; round < 3; round++) {
        const ls_run_setup setup = round == 0 ? fresh : resumed(step);
        assert_ok(ls_run_open(&run, dir, &setup, &err), err);
        write_step(run, ++step);
        text = file_read(at("full/metrics.jsonl"), &bytes);
        free(text);
        small = limit;
        small.rlim_cur = round == 0 ? bytes + 1000 : 70000 + bytes * 2; /* the lines' file, the database's */
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
        for (n = 0; n < 1000 && status == LS_OK; n++) {
            assert_ok(ls_run_step_begin(run, step + 1, &err), err);
            tell_step(run, step + 1);
            status = ls_run_step_commit(run, &err);
            if (status == LS_OK) step++;
        }
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
        assert_int_equal(status, LS_ERR_IO);
        assert_non_null(strstr(err.text, "/full/"));
        assert_non_null(strstr(err.text, "cannot"));
        status = LS_OK;
        assert_int_equal(check_database(dir), step);
        assert_int_equal(check_lines(dir, false), step);
        write_step(run, ++step); /* there is room again */
        ls_run_close(run);
        assert_int_equal(check_database(dir), step);
        assert_int_equal(check_lines(dir, false), step);
    }
    signal(SIGXFSZ, SIG_DFL);
}

static void what_cannot_be_written_is_said(void **state) {
    const char *dir = at("readonly");
    int status;
    pid_t child;
    (void)state;
    write_run(dir, &fresh, 1, 3);
    assert_int_equal(chmod(dir, 0555), 0);
    assert_int_equal(chmod(scratch, 0755), 0);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) { /* root may write everywhere */
        const ls_run_setup setup = resumed(3);
        ls_run *run;
        ls_history h;
        ls_error err;
        if (geteuid() == 0 && setuid(65534) != 0) _exit(77);
        if (ls_run_open(&run, dir, &setup, &err) != LS_ERR_IO || strstr(err.text, dir) == NULL) _exit(1);
        if (ls_history_read(&h, dir, &err) != LS_OK || h.n_steps != 3) _exit(2); /* reading goes on */
        if (ls_run_open(&run, at("readonly/new"), &fresh, &err) != LS_ERR_IO) _exit(3);
        if (strstr(err.text, "cannot make the directory") == NULL) _exit(4);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(chmod(dir, 0777), 0);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    assert_int_equal(check_database(dir), 3);
}

static void strangers_are_refused(void **state) {
    const char *path = at("strange/run.sqlite");
    ls_run *run;
    ls_history h;
    ls_sql *sql;
    ls_error err;
    char *data;
    size_t bytes;
    (void)state;
    write_run(at("strange"), &fresh, 1, 20);
    data = file_read(path, &bytes);
    assert_ok(ls_sql_open(&sql, path, true, &err), err);
    assert_ok(ls_sql_exec(sql, "PRAGMA user_version = 7", &err), err);
    ls_sql_close(sql);
    check_failed(ls_history_read(&h, at("strange"), &err), &err, "version 7");
    check_failed(ls_run_open(&run, at("strange"), &fresh, &err), &err, "version 7");
    assert_ok(ls_sql_open(&sql, path, true, &err), err);
    assert_ok(ls_sql_exec(sql, "PRAGMA application_id = 1", &err), err);
    ls_sql_close(sql);
    check_failed(ls_history_read(&h, at("strange"), &err), &err, "not of a run");
    text_write(path,
               "this is no database, however long one looks at it, and it is longer than a header of 100 bytes, too");
    check_failed(ls_history_read(&h, at("strange"), &err), &err, "not a database");
    check_failed(ls_run_open(&run, at("strange"), &fresh, &err), &err, "not a database");
    /* Cut, and with bytes turned over: an error or what is left of it, never a crash. */
    for (size_t i = 0; i < 40; i++) {
        ls_history_sample *samples;
        int64_t n;
        const int64_t step = 20;
        const size_t cut = i < 20 ? bytes * i / 20 : bytes;
        if (i >= 20)
            for (size_t k = 100 + i; k < bytes; k += 997) data[k] = (char)(data[k] ^ (1 << (i % 8)));
        file_write(path, data, cut);
        if (ls_history_read(&h, at("strange"), &err) == LS_OK) ls_history_deinit(&h);
        if (ls_history_samples(&samples, &n, at("strange"), &step, 1, 3, &err) == LS_OK)
            ls_history_samples_free(samples, n);
    }
    free(data);
}

static void thousands_of_steps_stay_quick(void **state) {
    const char *dir = at("long");
    const ls_run_setup setup = resumed(2999);
    ls_run *run;
    ls_error err;
    struct timespec begin, end;
    double seconds;
    (void)state;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    assert_ok(ls_run_open(&run, dir, &fresh, &err), err);
    for (int64_t step = 0; step < 3000; step++) write_step(run, step);
    ls_run_close(run);
    write_run(dir, &setup, 3000, 3000);
    assert_int_equal(check_database(dir), 3000);
    assert_int_equal(check_lines(dir, false), 3000);
    clock_gettime(CLOCK_MONOTONIC, &end);
    seconds = (double)(end.tv_sec - begin.tv_sec) + 1e-9 * (double)(end.tv_nsec - begin.tv_nsec);
    print_message("3001 steps: %.2f s\n", seconds);
    assert_true(seconds < 120.0); /* far above what it takes: a machine may be busy, a quadratic loop is not missed */
}

/* Without its database a resumed run would make metrics.jsonl anew, and shorter. */
static void a_missing_database_costs_no_line(void **state) {
    const ls_run_setup kinds[] = {fresh, resumed(2)};
    size_t bytes = 0, after = 0;
    char *lines, *again;
    ls_run *run;
    ls_error err;
    (void)state;
    write_run(at("lost"), &fresh, 1, 3);
    lines = file_read(at("lost/metrics.jsonl"), &bytes);
    assert_int_equal(unlink(at("lost/" LS_RUN_DB)), 0);
    for (int i = 0; i < 2; i++)
        check_failed(ls_run_open(&run, at("lost"), &kinds[i], &err), &err, "run.sqlite: missing");
    again = file_read(at("lost/metrics.jsonl"), &after);
    assert_true(bytes > 0);
    assert_int_equal(after, bytes);
    assert_memory_equal(lines, again, bytes);
    free(lines);
    free(again);
}

static void a_step_takes_the_seconds_it_is_told(void **state) {
    ls_run *run;
    ls_error err;
    json_t *line;
    (void)state;
    assert_ok(ls_run_open(&run, at("seconds"), &fresh, &err), err);
    assert_ok(ls_run_step_begin(run, 1, &err), err);
    ls_run_step_seconds(run, 2.5);
    ls_run_metric(run, "seconds/step", 2.5);
    assert_ok(ls_run_step_commit(run, &err), err);
    ls_run_close(run);
    line = line_read(at("seconds/metrics.jsonl"), 0);
    assert_true(json_real_value(member(line, "seconds")) == 2.5);
    json_decref(line);
}

static void a_glance_tells_what_is_known(void **state) {
    char text[256];
    ls_run_glance g = {3, 100, 0.5, 81.25, (double)NAN, 1e-5, 12034.4, 8123, 0, 0};
    (void)state;
    ls_run_glance_text(text, sizeof text, &g);
    assert_string_equal(text,
                        "step 3/100  reward 0.5  length 81.2  rate 1e-5  12034 tokens/s  mismatch 0 of 8123 tokens");
    g = (ls_run_glance){7, 0, (double)NAN, (double)NAN, 1.5, (double)NAN, (double)NAN, 0, 0, 0};
    ls_run_glance_text(text, sizeof text, &g);
    assert_string_equal(text, "step 7  loss 1.5");
    g.left = 12000;
    ls_run_glance_text(text, sizeof text, &g);
    assert_string_equal(text, "step 7  loss 1.5  3 h 20 min left");
    ls_run_glance_text(text, 8, &g);
    assert_string_equal(text, "step 7 ");
}

/* What a step says on standard error, which is `fd`. */
static void say_in_child(int fd, const char *dir) {
    int status;
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        ls_run *run;
        if (dup2(fd, 2) != 2 || ls_run_open(&run, dir, &fresh, NULL) != LS_OK) _exit(1);
        if (ls_run_step_begin(run, 1, NULL) != LS_OK) _exit(2);
        ls_run_metric(run, LS_METRIC_REWARD, 0.5);
        if (ls_run_step_commit(run, NULL) != LS_OK) _exit(3);
        ls_run_close(run);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

static void only_a_terminal_sees_progress(void **state) {
    char text[256];
    ssize_t n;
    int fds[2], terminal, user;
    (void)state;
    assert_int_equal(pipe(fds), 0);
    say_in_child(fds[1], at("piped"));
    close(fds[1]);
    assert_int_equal(read(fds[0], text, sizeof text), 0);
    close(fds[0]);
    terminal = posix_openpt(O_RDWR | O_NOCTTY);
    if (terminal < 0 || grantpt(terminal) != 0 || unlockpt(terminal) != 0) skip();
    user = open(ptsname(terminal), O_RDWR | O_NOCTTY);
    if (user < 0) skip();
    say_in_child(user, at("shown"));
    n = read(terminal, text, sizeof text - 1);
    assert_true(n > 0);
    text[n] = '\0';
    assert_non_null(strstr(text, "\r\033[Kstep 1  reward 0.5"));
    close(user);
    close(terminal);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_comes_back),
        cmocka_unit_test(measures_come_from_writers),
        cmocka_unit_test(later_steps_go_when_a_run_is_resumed),
        cmocka_unit_test(steps_can_be_dropped_and_fail),
        cmocka_unit_test(kills_leave_whole_steps),
        cmocka_unit_test(a_full_disk_loses_nothing),
        cmocka_unit_test(what_cannot_be_written_is_said),
        cmocka_unit_test(strangers_are_refused),
        cmocka_unit_test(thousands_of_steps_stay_quick),
        cmocka_unit_test(a_missing_database_costs_no_line),
        cmocka_unit_test(a_step_takes_the_seconds_it_is_told),
        cmocka_unit_test(a_glance_tells_what_is_known),
        cmocka_unit_test(only_a_terminal_sees_progress),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
