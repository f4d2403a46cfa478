/* Checkpoints: what comes back is what went in; a process that is killed, or refused by the system, at any call leaves
 * a complete checkpoint to go on from; damage and other options are named. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/durable.h"
#include "base/file.h"
#include "train/run_checkpoint.h"
#include "train/train_options.h"
#include "train/training.h"

/* ---- the system's calls, counted ---- */

typedef enum what_happens { NOTHING, KILLED, REFUSED } what_happens;

/* Calls that change the file system are counted while `armed`; at number `moment` this happens. In shared memory: a
 * child counts for its parent. */
typedef struct trap {
    what_happens what;
    bool armed;
    int64_t moment, calls;
} trap;

static trap *the_trap;

int fsync(int fd);
ssize_t write(int fd, const void *data, size_t bytes);
ssize_t pwrite(int fd, const void *data, size_t bytes, off_t place);
int rename(const char *from, const char *to);
int mkdir(const char *path, mode_t mode);
int unlink(const char *path);
int rmdir(const char *path);

/* True where the call must fail. place: of what is written; -1: behind what was. */
static bool step_on(int fd, const void *data, size_t bytes, off_t place) {
    if (the_trap == NULL || !the_trap->armed || ++the_trap->calls != the_trap->moment) return false;
    if (the_trap->what == NOTHING) return false;
    if (bytes > 1 && place < 0) (void)syscall(SYS_write, fd, data, bytes / 2); /* half of it gets there */
    if (bytes > 1 && place >= 0) (void)syscall(SYS_pwrite64, fd, data, bytes / 2, place);
    if (the_trap->what == KILLED) (void)kill(getpid(), SIGKILL);
    errno = ENOSPC;
    return true;
}

ssize_t write(int fd, const void *data, size_t bytes) {
    return step_on(fd, data, bytes, -1) ? -1 : (ssize_t)syscall(SYS_write, fd, data, bytes);
}
ssize_t pwrite(int fd, const void *data, size_t bytes, off_t place) {
    return step_on(fd, data, bytes, place) ? -1 : (ssize_t)syscall(SYS_pwrite64, fd, data, bytes, place);
}
int fsync(int fd) { return step_on(0, NULL, 0, -1) ? -1 : (int)syscall(SYS_fsync, fd); }
int rename(const char *from, const char *to) {
    return step_on(0, NULL, 0, -1) ? -1 : (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
}
int mkdir(const char *path, mode_t mode) {
    return step_on(0, NULL, 0, -1) ? -1 : (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode);
}
int unlink(const char *path) { return step_on(0, NULL, 0, -1) ? -1 : (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0); }
int rmdir(const char *path) {
    return step_on(0, NULL, 0, -1) ? -1 : (int)syscall(SYS_unlinkat, AT_FDCWD, path, AT_REMOVEDIR);
}

/* ---- scratch ---- */

static char scratch[] = "/tmp/lockstep-test-XXXXXX";
static char run_path[64];

static int remove_entry(const char *path, const struct stat *st, int kind, struct FTW *walk) {
    (void)st;
    (void)kind;
    (void)walk;
    return remove(path);
}

static void clear_run(void) { (void)nftw(run_path, remove_entry, 16, FTW_DEPTH | FTW_PHYS); }

static int scratch_make(void **state) {
    (void)state;
    the_trap = mmap(NULL, sizeof *the_trap, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (the_trap == MAP_FAILED || mkdtemp(scratch) == NULL || chmod(scratch, 0755) != 0) return 1;
    snprintf(run_path, sizeof run_path, "%s/run", scratch);
    return 0;
}

static int scratch_remove(void **state) {
    (void)state;
    return nftw(scratch, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

/* ---- a run ---- */

static ls_train_options train_options;
static ls_config config;
static ls_saves_position position = {"drawn", 0};
static ls_saves_description description = {"test", "exact/2/f32", 0x1234, &config, NULL, &position, 1};

static void describe(void) {
    config.n = 0;
    ls_train_options_init(&train_options);
    train_options.leaf = 1;
    ls_config_add(&config, ls_train_option_table(&train_options));
}

static const char *source = "jamba-nobias";

/* Whether saves are made while the run goes on. */
static bool is_behind;

static ls_status start_writer(ls_saves *run, const ls_train_state *state, ls_error *err) {
    return is_behind ? ls_saves_start_writer(run, state, err) : LS_OK;
}

static void save(const training *t, int64_t keep) {
    ls_saves *run;
    ls_error err;
    assert_ok(ls_saves_open(&run, run_path, true, &err), err);
    assert_ok(ls_saves_keep_files(run, fixture_path(source), &err), err);
    position.value = 100 * t->state->step;
    assert_ok(start_writer(run, t->state, &err), err);
    assert_ok(ls_saves_save(run, t->state, &description, keep, &err), err);
    assert_ok(ls_saves_wait(run, t->state, &err), err);
    ls_saves_close(run);
}

/* Opens the newest checkpoint as a new process would. */
static void resume(training *t, const ls_trainer_opts *opts) {
    char path[LS_SAVES_PATH_MAX];
    int64_t step;
    ls_saves *run;
    ls_error err;
    assert_ok(ls_saves_open(&run, run_path, true, &err), err);
    assert_ok(ls_saves_newest(run, &step, path, &err), err);
    assert_true(step >= 0);
    training_open(t, path, opts, 1, ls_isa_best());
    assert_ok(ls_saves_load(path, t->state, &description, &err), err);
    assert_int_equal(t->state->step, step);
    assert_int_equal(position.value, 100 * step);
    ls_saves_close(run);
}

static int64_t count_entries(void) {
    char **names;
    int64_t n;
    ls_error err;
    assert_ok(ls_directory_list(&names, &n, run_path, &err), err);
    ls_names_free(names, n);
    return n;
}

/* ---- what comes back ---- */

static void a_resumed_run_has_the_bits_of_one_that_did_not_stop(void **state) {
    static const char *const names[] = {"jamba-nobias",       "jamba-odd",         "jamba-moe",        "jamba-sharded",
                                        "mamba-small",        "mamba-odd",         "llama-odd",        "qwen3-small",
                                        "falcon-mamba-small", "mamba2-small",      "nemotron-h-small", "qwen3.5-small",
                                        "qwen3.5-moe-small",  "granite-moe-small", "granite-odd"};
    (void)state;
    for (size_t m = 0; m < sizeof names / sizeof names[0]; m++) {
        ls_trainer_opts opts = usual_opts();
        uint64_t bits, digest;
        training t;
        ls_error err;
        opts.moments = m % 2 == 1 ? LS_BF16 : LS_F32;
        describe();
        source = names[m];
        training_open(&t, fixture_path(source), &opts, 1, ls_isa_best());
        (void)train(&t, 1, 4);
        save(&t, 2);
        bits = state_bits(t.state);
        digest = weight_digest(t.state->parameters);
        (void)train(&t, 4, 6);
        {
            training r;
            ls_model *model;
            ls_parameters *p;
            char path[LS_SAVES_PATH_MAX];
            resume(&r, &opts);
            assert_true(state_bits(r.state) == bits);
            (void)train(&r, 4, 6);
            assert_true(state_bits(r.state) == state_bits(t.state));
            training_close(&r);
            /* As a model of its own it has the same weights. */
            snprintf(path, sizeof path, "%s/step-00000003", run_path);
            assert_ok(ls_model_open(&model, test_home(), path, &err), err);
            assert_ok(ls_parameters_open(&p, model, test_home(), path, &err), err);
            assert_true(weight_digest(p) == digest);
            ls_parameters_free(p);
            ls_model_close(model);
        }
        training_close(&t);
        clear_run();
    }
    source = names[0];
}

/* Every tensor of one file is in the other one, of the same shape and type; `same`: and of the same bytes. */
static void check_tensors(const char *path, const char *other, bool same) {
    ls_safetensors *a, *b;
    ls_error err;
    assert_ok(ls_safetensors_open(&a, path, &err), err);
    assert_ok(ls_safetensors_open(&b, other, &err), err);
    assert_int_equal(ls_safetensors_count(a), ls_safetensors_count(b));
    for (int64_t i = 0; i < ls_safetensors_count(a); i++) {
        const ls_tensor_view *x = ls_safetensors_at(a, i), *y = ls_safetensors_find(b, x->name);
        uint8_t *bytes[2] = {malloc((size_t)x->bytes), malloc((size_t)x->bytes)};
        if (y == NULL || x->n_dims != y->n_dims || memcmp(x->dims, y->dims, sizeof x->dims) != 0 ||
            x->dtype != y->dtype)
            fail_msg("%s: %s", other, x->name);
        assert_ok(ls_tensor_read(bytes[0], x, &err), err);
        assert_ok(ls_tensor_read(bytes[1], y, &err), err);
        if (same) assert_memory_equal(bytes[0], bytes[1], (size_t)x->bytes);
        free(bytes[0]);
        free(bytes[1]);
    }
    ls_safetensors_close(a);
    ls_safetensors_close(b);
}

/* Experts and feed-forwards that have a tensor together have it in what is written: in a model for others, in a
 * checkpoint, and its masters in one tensor as well. */
static void tensors_are_written_as_they_were_read(void **state) {
    static const char gate_up[] = "master.model.layers.1.block_sparse_moe.input_linear.weight";
    const ls_trainer_opts opts = usual_opts();
    char path[LS_SAVES_PATH_MAX];
    const char *before = source;
    const ls_tensor_view *view;
    ls_safetensors *file;
    ls_saves *run;
    training t;
    ls_error err;
    (void)state;
    describe();
    source = "granite-moe-small";
    training_open(&t, fixture_path(source), &opts, 1, ls_isa_best());
    assert_ok(ls_saves_open(&run, run_path, true, &err), err);
    assert_ok(ls_saves_keep_files(run, fixture_path(source), &err), err);
    snprintf(path, sizeof path, "%s/pushed", run_path);
    assert_ok(ls_directory_make(path, &err), err);
    assert_ok(ls_saves_save_model(run, path, t.state->parameters, &err), err);
    ls_saves_close(run);
    snprintf(path, sizeof path, "%s/pushed/model.safetensors", run_path);
    check_tensors(LS_FIXTURES "/granite-moe-small/model.safetensors", path, true);
    (void)train(&t, 1, 2);
    save(&t, 2);
    snprintf(path, sizeof path, "%s/step-00000001/model.safetensors", run_path);
    check_tensors(LS_FIXTURES "/granite-moe-small/model.safetensors", path, false);
    snprintf(path, sizeof path, "%s/step-00000001/optimizer.safetensors", run_path);
    assert_ok(ls_safetensors_open(&file, path, &err), err);
    view = ls_safetensors_find(file, gate_up);
    assert_true(view != NULL && view->n_dims == 3 && view->dims[0] == 5 && view->dims[1] == 12 && view->dims[2] == 20);
    ls_safetensors_close(file);
    training_close(&t);
    clear_run();
    source = before;
}

static void only_the_newest_stay(void **state) {
    const ls_trainer_opts opts = usual_opts();
    training t;
    (void)state;
    describe();
    training_open(&t, fixture_path("jamba-nobias"), &opts, 1, ls_isa_best());
    for (int64_t keep = 0; keep <= 3; keep++) {
        for (t.state->step = 1; t.state->step <= 5; t.state->step++) save(&t, keep);
        assert_int_equal(count_entries(), keep == 0 ? 5 : keep);
        {
            training r;
            resume(&r, &opts);
            assert_int_equal(r.state->step, 5);
            training_close(&r);
        }
        clear_run();
    }
    training_close(&t);
}

/* ---- killed, refused ---- */

/* Moments among the calls that write tensors. The calls are the same everywhere: on the CPU without sanitizers many of
 * them are tried, elsewhere, where one takes three times as long, some. */
static int64_t moments_between(void) { return SANITIZED || test_defers() ? 12 : 30; }

typedef struct two_states {
    training before, after; /* steps 2 and 3 */
    uint64_t before_bits, after_bits;
} two_states;

static void two_states_open(two_states *s) {
    const ls_trainer_opts opts = usual_opts();
    describe();
    training_open(&s->before, fixture_path("jamba-nobias"), &opts, 1, ls_isa_best());
    training_open(&s->after, fixture_path("jamba-nobias"), &opts, 1, ls_isa_best());
    (void)train(&s->before, 1, 3);
    (void)train(&s->after, 1, 4);
    s->before_bits = state_bits(s->before.state);
    s->after_bits = state_bits(s->after.state);
}

static void two_states_close(two_states *s) {
    training_close(&s->before);
    training_close(&s->after);
}

/* Saves the later state as a process of its own that the trap waits for; its exit code, or 1000 + signal. A refusal
 * must be one sentence. */
static int save_in_child(const two_states *s, what_happens what, int64_t moment) {
    int status;
    pid_t child;
    *the_trap = (trap){what, false, moment, 0};
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        ls_saves *run;
        ls_error err = {LS_OK, ""};
        ls_status saved;
        if (ls_saves_open(&run, run_path, true, &err) != LS_OK) _exit(2);
        if (ls_saves_keep_files(run, fixture_path(source), &err) != LS_OK) _exit(3);
        position.value = 300;
        if (start_writer(run, s->after.state, &err) != LS_OK) _exit(5);
        the_trap->armed = true;
        saved = ls_saves_save(run, s->after.state, &description, 1, &err);
        if (saved == LS_OK) saved = ls_saves_wait(run, s->after.state, &err);
        the_trap->armed = false;
        if (saved == LS_OK) _exit(0);
        _exit(strstr(err.text, run_path) != NULL && strstr(err.text, strerror(ENOSPC)) != NULL ? 10 : 4);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

/* A new process finds one of the two states, whole; leftovers go; it can go on. */
static void check_recovery(const two_states *s, int64_t moment) {
    const ls_trainer_opts opts = usual_opts();
    training r;
    uint64_t bits;
    resume(&r, &opts);
    bits = state_bits(r.state);
    if (r.state->step == 2 ? bits != s->before_bits : r.state->step != 3 || bits != s->after_bits)
        fail_msg("moment %lld: step %lld came back with other bits", (long long)moment, (long long)r.state->step);
    training_close(&r);
    save(&s->after, 1);
    assert_int_equal(count_entries(), 1);
    resume(&r, &opts);
    assert_true(state_bits(r.state) == s->after_bits);
    training_close(&r);
}

/* All of the first and of the last, and of those between as many. */
static int64_t moment_after(int64_t moment, int64_t calls, int64_t first, int64_t last, int64_t between) {
    const int64_t step = moment + calls / between, begin = calls - last;
    if (moment <= first || moment >= begin) return moment + 1;
    return step < begin ? step : begin;
}

static void check_every_moment_of(what_happens what) {
    two_states s;
    const int64_t between = moments_between(), first = between < 30 ? 2 : 12, last = between < 30 ? 4 : 30;
    int64_t calls, tried = 0, old = 0;
    two_states_open(&s);
    save(&s.before, 1);
    assert_int_equal(save_in_child(&s, NOTHING, 0), 0);
    calls = the_trap->calls;
    clear_run();
    /* Most calls write tensors: some of them, and all of the others, which come first and last. */
    for (int64_t moment = 1; moment <= calls; moment = moment_after(moment, calls, first, last, between), tried++) {
        int code;
        training r;
        const ls_trainer_opts opts = usual_opts();
        save(&s.before, 1);
        code = save_in_child(&s, what, moment);
        if (code != (what == KILLED ? 1000 + SIGKILL : 10))
            fail_msg("moment %lld of %lld: ended with %d", (long long)moment, (long long)calls, code);
        if (what == REFUSED) { /* the checkpoint that was there is untouched, the new one is there or not at all */
            resume(&r, &opts);
            old += r.state->step == 2;
            training_close(&r);
        }
        check_recovery(&s, moment);
        clear_run();
    }
    print_message("%lld of %lld calls\n", (long long)tried, (long long)calls);
    assert_true(tried >= first + last + between / 2 || tried == calls);
    assert_true(what == KILLED || old > tried / 2);
    two_states_close(&s);
}

static void check_every_moment(what_happens what) {
    for (int i = 0; i < 2; i++) {
        is_behind = i == 1;
        check_every_moment_of(what);
    }
    is_behind = false;
}

static void a_killed_save_loses_nothing(void **state) {
    test_forks();
    (void)state;
    check_every_moment(KILLED);
}

static void a_full_disk_loses_nothing(void **state) {
    test_forks();
    (void)state;
    check_every_moment(REFUSED);
}

/* While a checkpoint is written the state goes on; what is saved is what it was. One that nobody settles comes to its
 * name by looks, one that is not complete when the run ends is none, and the next save waits for the one before. */
static void a_save_behind_is_of_its_moment(void **state) {
    const ls_trainer_opts opts = usual_opts();
    char path[LS_SAVES_PATH_MAX];
    uint64_t bits;
    int64_t step = -1;
    training t, r;
    ls_saves *run;
    ls_error err;
    (void)state;
    describe();
    training_open(&t, fixture_path(source), &opts, 1, ls_isa_best());
    (void)train(&t, 1, 3);
    bits = state_bits(t.state);
    assert_ok(ls_saves_open(&run, run_path, true, &err), err);
    assert_ok(ls_saves_keep_files(run, fixture_path(source), &err), err);
    assert_ok(ls_saves_look(run, t.state, &err), err);
    assert_ok(ls_saves_wait(run, t.state, &err), err);
    assert_ok(ls_saves_start_writer(run, t.state, &err), err);
    position.value = 100 * t.state->step;
    assert_ok(ls_saves_save(run, t.state, &description, 0, &err), err);
    (void)train(&t, 3, 4);
    for (int i = 0; i < 10000 && step < 0; i++) {
        assert_ok(ls_saves_look(run, t.state, &err), err);
        assert_ok(ls_saves_newest(run, &step, path, &err), err);
        if (step < 0) usleep(1000);
    }
    assert_int_equal(step, 2);
    assert_int_equal(count_entries(), 1);
    position.value = 100 * t.state->step;
    assert_ok(ls_saves_save(run, t.state, &description, 0, &err), err);
    (void)train(&t, 4, 5);
    position.value = 100 * t.state->step;
    assert_ok(ls_saves_save(run, t.state, &description, 0, &err), err); /* settles that of step 3 */
    assert_ok(ls_saves_newest(run, &step, path, &err), err);
    assert_int_equal(step, 3);
    ls_saves_close(run); /* and that of step 4 never was */
    assert_int_equal(count_entries(), 2);
    resume(&r, &opts);
    assert_int_equal(r.state->step, 3);
    training_close(&r);
    snprintf(path, sizeof path, "%s/step-00000002", run_path);
    training_open(&r, path, &opts, 1, ls_isa_best());
    assert_ok(ls_saves_load(path, r.state, &description, &err), err);
    assert_true(state_bits(r.state) == bits);
    training_close(&r);
    training_close(&t);
    clear_run();
}

/* The system's own refusals: a limit on the size of files, and a directory of somebody else's. */
static void the_systems_limits_are_one_sentence(void **state) {
    two_states s;
    pid_t child;
    int status;
    test_forks();
    (void)state;
    two_states_open(&s);
    save(&s.before, 1);
    for (int i = 0; i < 3; i++) {
        child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            static const char *const words[] = {"model.safetensors: cannot write: File too large",
                                                ".step-00000003.new: cannot make this directory: Permission denied",
                                                "other/run: cannot make this directory: No such file"};
            const struct rlimit limit = {20000, 20000};
            ls_saves *run;
            ls_error err = {LS_OK, ""};
            ls_status saved;
            if (i == 0 && (signal(SIGXFSZ, SIG_IGN) == SIG_ERR || setrlimit(RLIMIT_FSIZE, &limit) != 0)) _exit(5);
            if (i == 1 && geteuid() == 0 && setuid(65534) != 0) _exit(6);
            if (i == 1 && chmod(run_path, 0555) != 0 && errno != EPERM) _exit(7);
            saved = ls_saves_open(&run, i == 2 ? "/tmp/lockstep-no-such-place/other/run" : run_path, true, &err);
            if (saved == LS_OK) saved = ls_saves_save(run, s.after.state, &description, 1, &err);
            _exit(saved != LS_OK && strstr(err.text, words[i]) != NULL ? 0 : 8);
        }
        assert_int_equal(waitpid(child, &status, 0), child);
        if (status != 0) fail_msg("case %d: status %x", i, (unsigned)status);
        assert_int_equal(chmod(run_path, 0755), 0);
        assert_int_equal(count_entries(), 1);
    }
    check_recovery(&s, 0);
    clear_run();
    two_states_close(&s);
}

/* ---- refusals ---- */

static void must_not_load_with(const ls_trainer_opts *opts, const char *words) {
    char path[LS_SAVES_PATH_MAX];
    training r;
    ls_error err;
    snprintf(path, sizeof path, "%s/step-00000002", run_path);
    training_open(&r, path, opts, 1, ls_isa_best());
    check_failed(ls_saves_load(path, r.state, &description, &err), &err, words);
    training_close(&r);
}

static void must_not_load(const char *words) {
    const ls_trainer_opts opts = usual_opts();
    must_not_load_with(&opts, words);
}

/* Replaces the first occurrence of a text in a file by another of the same length. */
static void edit(const char *name, const char *from, const char *to) {
    char path[LS_SAVES_PATH_MAX], *text, *at;
    int64_t bytes;
    FILE *file;
    ls_error err;
    snprintf(path, sizeof path, "%s/step-00000002/%s", run_path, name);
    assert_ok(ls_file_read(&text, &bytes, path, 1 << 24, &err), err);
    at = memmem(text, (size_t)bytes, from, strlen(from));
    assert_non_null(at);
    memcpy(at, to, strlen(to));
    file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, (size_t)bytes, file), bytes);
    fclose(file);
    free(text);
}

static void what_does_not_belong_is_refused(void **state) {
    static const char *const edits[][3] = {{"\"format\":2", "\"format\":3", "format: 3 is not in 2..2"},
                                           {"\"kind\":\"test\"", "\"kind\":\"grpo\"", "kind: was grpo and is test now"},
                                           {"exact/2/f32", "exact/1/f32", "numerics: was exact/1/f32"},
                                           {"exact/2/f32", "mma16/2/f32", "numerics: was mma16/2/f32"},
                                           {"0000001234", "0000001235", "data: was 0000000000001235"},
                                           {"\"leaf\":1", "\"leaf\":2", "options.leaf: was 2 and is 1 now"},
                                           {"\"rate\":0.0001", "\"rate\":0.0002", "options.rate: was 0.0002 and is"},
                                           {"\"seed\":\"0\"", "\"seed\":\"7\"", "options.seed: was 7 and is 0 now"},
                                           {"\"step\":2", "\"stop\":2", "'step' is missing"},
                                           {"\"drawn\":", "\"drawn\":1", "positions: step or positions are not those"},
                                           {"\"step\":2", "\"step\":3", "positions: step or positions are not those"},
                                           {"\"drawn\"", "\"drawm\"", "positions: 'drawn' is missing"},
                                           {"\"eps\":", "\"ups\":", "options: 'eps' is missing"},
                                           {"{", "[", "invalid JSON"}};
    const ls_trainer_opts opts = usual_opts();
    char path[LS_SAVES_PATH_MAX];
    training t;
    ls_saves *run, *second;
    ls_error err;
    (void)state;
    describe();
    training_open(&t, fixture_path("jamba-nobias"), &opts, 1, ls_isa_best());
    (void)train(&t, 1, 3);
    for (size_t i = 0; i < sizeof edits / sizeof edits[0]; i++) {
        save(&t, 1);
        edit("state.json", edits[i][0], edits[i][1]);
        must_not_load(edits[i][2]);
        clear_run();
    }
    save(&t, 1);
    edit("optimizer.safetensors", "\"m.model", "\"w.model");
    must_not_load("optimizer.safetensors: m.model.");
    clear_run();
    save(&t, 1);
    {
        /* One bit of one moment. */
        char from[5] = "", to[5] = "";
        from_device(t.device, from, (const float *)t.state->m + 100, 4);
        memcpy(to, from, 4);
        to[0] = (char)(to[0] ^ 1);
        assert_true(strlen(from) == 4 && strlen(to) == 4);
        edit("optimizer.safetensors", from, to);
        must_not_load("optimizer: was ");
    }
    snprintf(path, sizeof path, "%s/step-00000002/optimizer.safetensors", run_path);
    assert_int_equal(truncate(path, 1000), 0);
    must_not_load("optimizer.safetensors");
    clear_run();
    save(&t, 1);
    edit("config.json", "\"rms_norm_eps\": 1e-06", "\"rms_norm_eps\": 5e-01");
    must_not_load("config.json or another file of the model is not the one");
    clear_run();
    save(&t, 1);
    /* Nor is one that was renamed, which the number in its name would find, but not its path. */
    {
        char to[LS_SAVES_PATH_MAX];
        int64_t step;
        snprintf(path, sizeof path, "%s/step-00000002", run_path);
        snprintf(to, sizeof to, "%s/step-2", run_path);
        assert_int_equal(rename(path, to), 0);
        assert_ok(ls_saves_open(&run, run_path, true, &err), err);
        check_failed(ls_saves_newest(run, &step, path, &err), &err,
                     "step-2: a checkpoint that is not named step-00000002");
        ls_saves_close(run);
        snprintf(path, sizeof path, "%s/step-00000002", run_path);
        assert_int_equal(rename(to, path), 0);
    }
    /* A directory without state.json is no checkpoint, and not ours to remove. */
    snprintf(path, sizeof path, "%s/step-00000009", run_path);
    assert_int_equal(mkdir(path, 0777), 0);
    {
        int64_t step;
        assert_ok(ls_saves_open(&run, run_path, true, &err), err);
        assert_ok(ls_saves_newest(run, &step, path, &err), err);
        assert_int_equal(step, 2);
        check_failed(ls_saves_open(&second, run_path, true, &err), &err, "another process is at work here");
        assert_null(second);
        assert_ok(ls_saves_open(&second, run_path, false, &err), err);
        ls_saves_close(second);
        /* In the way of the step that it is named like, it is named. */
        t.state->step = 9;
        check_failed(ls_saves_save(run, t.state, &description, 0, &err), &err,
                     "step-00000009: in the way of this step's checkpoint");
        ls_saves_close(run);
    }
    clear_run();
    training_close(&t);
}

/* Moments are what their tensors are, also where the checkpoint is older than the option. */
static void moments_keep_their_type(void **state) {
    static const char *const none[] = {"moments", NULL};
    ls_trainer_opts wide = usual_opts(), narrow = wide;
    (void)state;
    narrow.moments = LS_BF16;
    for (int i = 0; i < 2; i++) {
        const ls_trainer_opts *own = i == 0 ? &wide : &narrow, *other = i == 0 ? &narrow : &wide;
        training t, r;
        uint64_t bits;
        describe();
        training_open(&t, fixture_path("jamba-nobias"), own, 1, ls_isa_best());
        (void)train(&t, 1, 3);
        train_options.moments = i;
        save(&t, 1);
        bits = state_bits(t.state);
        training_close(&t);
        train_options.moments = 1 - i;
        must_not_load_with(other, i == 0 ? "options.moments: was f32 and is bf16 now" : "was bf16 and is f32 now");
        description.free = none;
        must_not_load_with(other, i == 0 ? "optimizer.safetensors: moments: was f32 and is bf16 now"
                                         : "optimizer.safetensors: moments: was bf16 and is f32 now");
        edit("state.json", "\"moments\"", "\"momemts\"");
        must_not_load_with(other, "optimizer.safetensors: moments: was ");
        resume(&r, own);
        assert_true(state_bits(r.state) == bits);
        training_close(&r);
        edit("optimizer.safetensors", i == 0 ? "F32" : "BF16", i == 0 ? "I32" : "IF16");
        must_not_load_with(own, "optimizer.safetensors");
        description.free = NULL;
        clear_run();
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_resumed_run_has_the_bits_of_one_that_did_not_stop),
        cmocka_unit_test(only_the_newest_stay),
        cmocka_unit_test(tensors_are_written_as_they_were_read),
        cmocka_unit_test(a_killed_save_loses_nothing),
        cmocka_unit_test(a_full_disk_loses_nothing),
        cmocka_unit_test(a_save_behind_is_of_its_moment),
        cmocka_unit_test(the_systems_limits_are_one_sentence),
        cmocka_unit_test(what_does_not_belong_is_refused),
        cmocka_unit_test(moments_keep_their_type),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
