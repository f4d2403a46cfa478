/* The model against Hugging Face's numbers: logits and log-probabilities of every fixture, in both activation types. */
#define _GNU_SOURCE
#include <unistd.h>

#include "measure.h"

static void f32_weights_match(void **state) {
    const char *names[] = {"jamba-dense", "jamba-moe", "jamba-odd", "jamba-sharded"};
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const errors e = measure(names[i], LS_F32);
        assert_true(e.max_logit < 1e-4 && e.max_logprob < 1e-4);
    }
}

static void bf16_weights_match_in_f32(void **state) {
    const char *names[] = {"jamba-bf16", "jamba-nobias"};
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const errors e = measure(names[i], LS_F32);
        assert_true(e.max_logit < 2e-3 && e.max_logprob < 2e-3);
    }
}

static void bf16_activations_stay_near(void **state) {
    const char *names[] = {"jamba-dense", "jamba-moe", "jamba-odd", "jamba-bf16"};
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        assert_true(measure(names[i], LS_BF16).mean_logprob < 0.05);
}

static void score_bits(const ls_model *model, ls_device *device, float *logprob, int64_t n) {
    static const ls_score_opts opts = {.dtype = LS_F32, .batch = 1, .chunk = 0, .page_tokens = 64};
    int32_t ids[64];
    ls_score_item item = {.tokens = ids, .n_tokens = n, .logprob = logprob};
    ls_error err;
    for (int64_t i = 0; i < n; i++) ids[i] = (int32_t)(i * 7 % model->config.vocab);
    assert_ok(ls_score(model, device, &opts, &item, 1, &err), err);
}

/* A model is what its file was when it was opened, whatever becomes of the file. */
static void a_file_that_changes_later_does_not_matter(void **state) {
    static const char *const names[] = {"jamba-dense", "jamba-moe"}; /* tied head; its own */
    ls_device *device = test_device(2, ls_isa_best());
    (void)state;
    for (int k = 0; k < 2; k++) {
        char dir[] = "/tmp/ls-test-XXXXXX", path[64], command[600];
        float before[64] = {0}, after[64] = {0}, cut[64] = {0};
        ls_model *model;
        ls_error err;
        FILE *file;
        assert_non_null(mkdtemp(dir));
        snprintf(command, sizeof command, "cp %s/%s/config.json %s/%s/model.safetensors %s", LS_FIXTURES, names[k],
                 LS_FIXTURES, names[k], dir);
        assert_int_equal(system(command), 0);
        assert_ok(ls_model_open(&model, device, dir, &err), err);
        score_bits(model, device, before, 64);
        snprintf(path, sizeof path, "%s/model.safetensors", dir);
        file = fopen(path, "r+b"); /* in place: a map would show it */
        assert_non_null(file);
        assert_int_equal(fseek(file, 0, SEEK_END), 0);
        for (long left = ftell(file), i = fseek(file, 0, SEEK_SET); i < left; i++) fputc(0x3F, file);
        assert_int_equal(fclose(file), 0);
        score_bits(model, device, after, 64);
        assert_same_bits(before, after, 63);
        assert_int_equal(truncate(path, 10), 0); /* reading a map past the end is a signal */
        score_bits(model, device, cut, 64);
        assert_same_bits(before, cut, 63);
        ls_model_close(model);
        snprintf(command, sizeof command, "rm -r %s", dir);
        assert_int_equal(system(command), 0);
    }
    test_device_close(device);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f32_weights_match),
        cmocka_unit_test(bf16_weights_match_in_f32),
        cmocka_unit_test(bf16_activations_stay_near),
        cmocka_unit_test(a_file_that_changes_later_does_not_matter),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
