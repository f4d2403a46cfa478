/* Every fault of the laboratory, found from outside: the sweep sees tokens, bits, slots and levers, never which fault
 * is armed. What it names is held against what was armed. */
#define _GNU_SOURCE
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "device.h"
#include "diagnose/bits/bits_run.h"
#include "faults/faults.h"

/* The word that each fault's cause must have in its name, and the thresholds that are found with it. */
static const struct {
    const char *cause;
    const char *bounds; /* as describe_bounds writes them; NULL: none is looked at */
    int64_t n_repro;    /* prompts that are left of 8 */
} expected[LS_INJECT_COUNT] = {
    [LS_INJECT_NONE] = {NULL, "", 0},
    [LS_INJECT_SLOT_STRIDE_U32] = {"32-bit slot offset", "slot>=47935/f32 slot>=47935/bf16 ", 1},
    [LS_INJECT_STALE_SLOT] = {"stale state of a reused slot", "chunk<=1/f32 ", 2},
    [LS_INJECT_PREFIX_STATE_SHIFT] = {"prefix snapshot at the wrong token", "", 2},
    [LS_INJECT_PREFIX_CROSS] = {"prefix hit across different prompts", "", 2},
    [LS_INJECT_CONV_SHORT_CHUNK] = {"convolution window lost in short chunks", "chunk<=2/f32 ", 1},
    [LS_INJECT_NO_RESET_PACKED] = {"no reset between packed sequences", "batch>=2/f32 ", 2},
    [LS_INJECT_STALE_WEIGHTS_PREFIX] = {"prefix cache outlives the weights", "", 1},
    [LS_INJECT_TEMPERATURE] = {"temperature on one side only", "", 1},
    [LS_INJECT_SPLIT_K] = {"order of sums follows the batch", "chunk>=8/f32 batch>=8/f32 ", 1},
    [LS_INJECT_SOFTPLUS_NAIVE] = {"other arithmetic in decode", NULL, 1},
    [LS_INJECT_SEED_BY_SLOT] = {"draws follow the slot", "", 1},
    [LS_INJECT_LAG_ONE] = {"records one token late", "", 1},
    [LS_INJECT_DRAFT_STATE] = {"refused drafts leave their state", "", 1},
    [LS_INJECT_BRANCH_ORDER] = {NULL, "", 0},     /* of gradients, at which a sweep does not look */
    [LS_INJECT_HELD_LEFT_BEHIND] = {NULL, "", 0}, /* of Mamba-2 and the delta rule, which this model has not */
};

/* A model, prompts for it, and the words of a sweep over them. */
typedef struct bench {
    char model[512];
    ls_device *device;
    ls_sweep_trainer *trainer;
    ls_prompt prompts[8];
    int32_t ids[8][32];
    ls_sweep_opts opts;
} bench;

static void bench_open(bench *b, const char *name, bool story) {
    uint64_t seed = 88172645463325252u;
    ls_model *model;
    ls_error err;
    memset(b, 0, sizeof *b);
    snprintf(b->model, sizeof b->model, "%s/%s", LS_FIXTURES, name);
    b->device = test_device(2, ls_isa_best());
    assert_ok(ls_sweep_trainer_create(&b->trainer, b->model, b->device, &err), err);
    assert_ok(ls_sweep_trainer_model(b->trainer, 0, &model, &err), err);
    for (int i = 0; i < 8; i++) {
        for (int t = 0; t < 32; t++) b->ids[i][t] = (int32_t)(test_random(&seed) >> 33) % model->config.vocab;
        b->prompts[i] = (ls_prompt){b->ids[i], 3 + 3 * i};
    }
    b->opts = (ls_sweep_opts){.model = b->model,
                              .prompts = b->prompts,
                              .n_prompts = 8,
                              .samples = 2,
                              .max_tokens = 8,
                              .dtype = LS_F32,
                              .threads = 2,
                              .isa = ls_isa_best(),
                              .far_slots = 69776,
                              .far_words = 89600,
                              .story = story};
}

static void bench_close(bench *b) {
    ls_sweep_trainer_free(b->trainer);
    test_device_close(b->device);
}

static void bench_sweep(ls_sweep *out, bench *b, ls_inject fault) {
    ls_engine_subject engine = {
        .trainer = b->trainer, .device = b->device, .inject = fault, .threads = b->opts.threads, .isa = b->opts.isa};
    const ls_subject subject = ls_subject_engine(&engine);
    ls_door door;
    ls_error err;
    door = (ls_door){.subject = &subject, .trainer = b->trainer};
    assert_ok(ls_sweep_run(out, &b->opts, &door, &err), err);
}

static void describe_bounds(char *text, size_t bytes, const ls_sweep *s) {
    text[0] = '\0';
    for (int64_t i = 0; i < s->n_bounds; i++) {
        const ls_bound *b = &s->bounds[i];
        const size_t used = strlen(text);
        snprintf(text + used, bytes - used, "%s%s%lld/%s ", ls_bounded_name(b->lever),
                 b->from_above ? "<=" : ">=", (long long)b->value, ls_dtype_name(b->dtype));
    }
}

/* The row of the confusion table: true when the cause is the right one. */
static bool check_row(const ls_sweep *s, ls_inject fault) {
    const ls_ranked *named = ls_sweep_cause(s);
    const char *name = named != NULL ? ls_cause_name(named->cause) : s->different ? "(none fits)" : "(no difference)";
    char bounds[256];
    bool right;
    describe_bounds(bounds, sizeof bounds, s);
    right = expected[fault].cause == NULL ? !s->different : named != NULL && strcmp(name, expected[fault].cause) == 0;
    print_message("%-26s %-5s %-40s next %.3f, %lld of %lld prompts, %s\n", ls_inject_name(fault),
                  right ? "right" : "WRONG", name, s->ranked[1].score, (long long)s->n_repro, (long long)s->repro_from,
                  bounds);
    if (!right) return false;
    if (expected[fault].bounds != NULL) assert_string_equal(bounds, expected[fault].bounds);
    assert_int_equal(s->n_repro, expected[fault].n_repro);
    return true;
}

static void confusion(const char *model) {
    static ls_sweep sweep;
    bench b;
    int64_t n_wrong = 0;
    bench_open(&b, model, false);
    for (int fault = 0; fault < LS_INJECT_COUNT; fault++) {
        bench_sweep(&sweep, &b, (ls_inject)fault);
        n_wrong += !check_row(&sweep, (ls_inject)fault);
        if (fault == LS_INJECT_NONE) assert_int_equal(sweep.n_bits, 0);
        ls_sweep_deinit(&sweep);
    }
    bench_close(&b);
    assert_int_equal(n_wrong, 0);
}

static void all_are_told_apart_without_attention(void **state) {
    (void)state;
    confusion("jamba-nobias");
}

static void all_are_told_apart_with_attention(void **state) {
    (void)state;
    confusion("jamba-dense");
}

static void the_slot_threshold_names_its_expression(void **state) {
    static ls_sweep s;
    bench b;
    int64_t n_fitting = 0;
    char *page = NULL;
    size_t bytes = 0;
    FILE *file;
    (void)state;
    bench_open(&b, "jamba-nobias", false);
    bench_sweep(&s, &b, LS_INJECT_SLOT_STRIDE_U32);
    for (int64_t i = 0; i < s.n_wraps; i++) n_fitting += s.wraps[i].fits;
    assert_int_equal(n_fitting, 1);
    assert_true(s.wraps[0].fits && !s.wraps[0].is_signed && !s.wraps[0].in_bytes);
    assert_string_equal(s.wraps[0].tensor->name, "Mamba state pool, scan state");
    assert_int_equal(s.wraps[0].first_bad, 47935);
    assert_int_equal((int)(1000.0 * s.wraps[0].share + 0.5), 313);
    assert_int_equal(s.seen[LS_TRY_FAR_HALF].verdict, LS_CLEAN);
    assert_int_equal(s.seen[LS_TRY_FAR_ATTENTION].verdict, LS_CLEAN);
    assert_int_equal(s.repro_trial.levers.slot_base, 47935);
    assert_int_equal(s.repro[0].n, 4); /* one chunk of 3, and one more token that reads what it left */
    assert_int_equal(s.repro_trial.max_tokens, 1);

    file = open_memstream(&page, &bytes);
    assert_non_null(file);
    ls_sweep_html(file, &s);
    fclose(file);
    assert_null(strstr(page, "<script"));
    assert_null(strstr(page, "://")); /* nothing comes from elsewhere */
    assert_non_null(strstr(page, "<svg"));
    assert_non_null(strstr(page, "first bad slot <b>47935</b>, <b>31.3 %</b>"));
    free(page);
    ls_sweep_deinit(&s);
    bench_close(&b);
}

/* The series with a smaller pool, whose threshold lies at the same share of it. */
static void the_series_has_the_law_of_a_counter(void **state) {
    static ls_sweep s;
    const int64_t slots = 2048, words = 89600 * (int64_t)69776 / 2048 / 16 * 16,
                  threshold = ((int64_t)1 << 32) / words + 1;
    bench b;
    (void)state;
    bench_open(&b, "jamba-nobias", true);
    b.opts.far_slots = slots;
    b.opts.far_words = words;
    bench_sweep(&s, &b, LS_INJECT_SLOT_STRIDE_U32);
    assert_int_equal(s.n_series, 5);
    for (int64_t i = 0; i < 5; i++) {
        const ls_series *x = &s.series[i];
        assert_int_equal(x->rollouts, 8 << i);
        assert_int_equal(x->first_bad, threshold);
        assert_true(llabs(x->second_bad - slots - threshold) < 64);
        for (int64_t t = 0; t < x->n_steps; t++) /* clean up to the step of the onset */
            assert_true(t > (int64_t)x->onset || (x->step_abs[t] > 0.0) == (t == (int64_t)x->onset));
    }
    assert_true(fabs(s.onset_slope + 1.0) < 1e-9);
    assert_true(fabs(s.period_slope + 1.0) < 0.01);
    for (int i = 0; i < LS_SLOT_BINS; i++)
        assert_true((s.slot_abs[i] > 0.0) == ((i + 1) * slots / LS_SLOT_BINS > threshold));
    assert_int_equal(s.wraps[0].first_bad, threshold);
    assert_true(s.wraps[0].fits);
    ls_sweep_deinit(&s);

    bench_sweep(&s, &b, LS_INJECT_NONE);
    assert_false(s.different);
    assert_int_equal(s.n_bits, 0);
    assert_true(s.series[4].first_bad == -1 && isnan(s.onset_slope));
    ls_sweep_deinit(&s);
    bench_close(&b);
}

/* From one process to the next: the same by records alone. New weights on the way are what cannot be tried. */
static void a_program_is_a_subject(void **state) {
    static ls_sweep s;
    static const ls_inject faults[] = {LS_INJECT_NONE, LS_INJECT_SLOT_STRIDE_U32, LS_INJECT_PREFIX_CROSS,
                                       LS_INJECT_SEED_BY_SLOT};
    char directory[] = "/tmp/lockstep-test-XXXXXX", inject[] = "--inject", name[64];
    bench b;
    (void)state;
    test_forks();
    assert_non_null(mkdtemp(directory));
    bench_open(&b, "jamba-nobias", false);
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
        char *more[] = {inject, name};
        ls_program_subject program = {LS_FAULTY_PROGRAM, b.model, directory, more, 2, .resident = false};
        const ls_subject subject = ls_subject_program(&program);
        ls_door door;
        ls_error err;
        snprintf(name, sizeof name, "%s", ls_inject_name(faults[i]));
        if (faults[i] == LS_INJECT_NONE) program.n_more = 0;
        door = (ls_door){.subject = &subject, .trainer = b.trainer};
        assert_ok(ls_sweep_run(&s, &b.opts, &door, &err), err);
        assert_int_equal(s.seen[LS_TRY_UPDATE].verdict, LS_UNTRIED);
        assert_true(check_row(&s, faults[i]));
        ls_sweep_deinit(&s);
    }
    bench_close(&b);
    assert_int_equal(rmdir(directory), 0); /* nothing is left in it */
}

/* A suspect that is none ends the sweep with its reason: nothing tried is not nothing found. */
static void what_cannot_run_is_no_suspect(void **state) {
    static ls_sweep s;
    static const char *const programs[] = {"/nonexistent/program", "/bin/false"};
    char directory[] = "/tmp/lockstep-test-XXXXXX";
    bench b;
    (void)state;
    test_forks();
    assert_non_null(mkdtemp(directory));
    bench_open(&b, "jamba-nobias", false);
    for (int i = 0; i < 2; i++) {
        ls_program_subject program = {programs[i], b.model, directory, NULL, 0, .resident = false};
        const ls_subject subject = ls_subject_program(&program);
        ls_error err;
        ls_door door = {.subject = &subject, .trainer = b.trainer};
        check_failed(ls_sweep_run(&s, &b.opts, &door, &err), &err, i == 0 ? "cannot start" : "exit code 1");
    }
    bench_close(&b);
    assert_int_equal(rmdir(directory), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_are_told_apart_without_attention),
        cmocka_unit_test(all_are_told_apart_with_attention),
        cmocka_unit_test(the_slot_threshold_names_its_expression),
        cmocka_unit_test(the_series_has_the_law_of_a_counter),
        cmocka_unit_test(a_program_is_a_subject),
        cmocka_unit_test(what_cannot_run_is_no_suspect),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
