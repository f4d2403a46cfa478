/* Whole models in the profile mma16: every logit against a textbook reading that multiplies on its own, how near the
 * values are to Hugging Face's, and what has no such profile. */
#define _GNU_SOURCE
#include "fresh.h"
#include "measure.h"
#include "textbook.h"

static void open_profile(ls_model **out, const char *directory, ls_profile profile) {
    ls_error err;
    assert_ok(ls_model_open(out, test_home(), directory, &err), err);
    assert_ok(ls_model_set_profile(*out, profile, LS_BF16, &err), err);
}

/* Bits of all logits of n tokens, with every instruction set and 1 and 2 threads. */
static void equals_textbook(const char *directory, int64_t n) {
    int32_t tokens[64];
    ls_model *model;
    float *want;
    open_profile(&model, directory, LS_PROFILE_MMA16);
    for (int64_t i = 0; i < n; i++) tokens[i] = (int32_t)((i * 37 + 11) % model->config.vocab);
    want = textbook_logits(directory, &model->config, tokens, n);
    for (ls_isa isa = LS_ISA_GENERIC; isa < LS_ISA_COUNT; isa++)
        for (int32_t threads = 1; threads <= 2; threads++) {
            ls_device *device;
            float *got;
            int64_t diffs;
            if (!ls_isa_available(isa)) continue;
            device = test_device(threads, isa);
            got = logits_of(model, device, tokens, n, LS_BF16);
            diffs = count_bit_diffs(want, got, n * model->config.vocab);
            if (diffs != 0)
                fail_msg("%s, %s, %d threads: %lld of %lld logits differ", directory, ls_isa_name(isa), threads,
                         (long long)diffs, (long long)(n * model->config.vocab));
            free(got);
            test_device_close(device);
        }
    free(want);
    ls_model_close(model);
}

static void logits_are_the_textbooks(void **state) {
    (void)state;
    equals_textbook(LS_FIXTURES "/jamba-odd", 40);    /* attention, experts, biases, inner norms */
    equals_textbook(LS_FIXTURES "/jamba-nobias", 12); /* tied head */
    equals_textbook(LS_FIXTURES "/jamba-bf16", 3);    /* dense feed-forward */
}

/* Without norms of dt, B and C; sizes that are no multiple of a step. */
static void mamba_alone_is_the_textbooks(void **state) {
    char directory[] = "/tmp/ls-test-XXXXXX";
    (void)state;
    fresh_model(directory, FRESH_MAMBA("true"));
    equals_textbook(directory, 50);
    remove_model(directory);
}

/* Rounding what enters x_proj and dt_proj, and cutting sums at 25 bits, is of the size of the rounding of activations
 * that both profiles have: the mean error against float32 less than doubles. */
static void values_stay_near(void **state) {
    static const char *const names[] = {"jamba-odd", "jamba-nobias", "jamba-bf16"};
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const errors exact = measure(names[i], LS_BF16), mma16 = measure_in(names[i], LS_BF16, LS_PROFILE_MMA16);
        assert_true(mma16.mean_logprob < 0.06 && mma16.mean_logprob < 2.0 * exact.mean_logprob);
        assert_true(mma16.mean_logprob != exact.mean_logprob); /* it is another profile */
    }
}

/* A model goes back to exact with the bits that it had. */
static void exact_is_what_it_was(void **state) {
    ls_device *device = test_device(1, ls_isa_best());
    int32_t tokens[20];
    float *before, *other, *after;
    ls_model *model;
    ls_error err;
    (void)state;
    for (int32_t i = 0; i < 20; i++) tokens[i] = i * 7;
    assert_ok(ls_model_open(&model, test_home(), LS_FIXTURES "/jamba-odd", &err), err);
    before = logits_of(model, device, tokens, 20, LS_BF16);
    assert_ok(ls_model_set_profile(model, LS_PROFILE_MMA16, LS_BF16, &err), err);
    other = logits_of(model, device, tokens, 20, LS_BF16);
    assert_ok(ls_model_set_profile(model, LS_PROFILE_EXACT, LS_BF16, &err), err);
    after = logits_of(model, device, tokens, 20, LS_BF16);
    assert_same_bits(before, after, 20 * (int64_t)model->config.vocab);
    assert_true(count_bit_diffs(before, other, 20 * (int64_t)model->config.vocab) > 0);
    free(before);
    free(other);
    free(after);
    ls_model_close(model);
    test_device_close(device);
}

static void what_has_no_mma16_is_named(void **state) {
    ls_model *model;
    ls_workspace *ws;
    ls_cache *cache;
    ls_batch *batch;
    ls_error err;
    (void)state;
    open_profile(&model, LS_FIXTURES "/jamba-dense", LS_PROFILE_EXACT);
    check_failed(ls_model_set_profile(model, LS_PROFILE_MMA16, LS_BF16, &err), &err,
                 "profile mma16: model.embed_tokens.weight is stored as F32");
    check_failed(ls_model_set_profile(model, LS_PROFILE_MMA16, LS_F32, &err), &err,
                 "profile mma16: activations are f32");
    check_failed(ls_model_set_profile(model, (ls_profile)2, LS_BF16, &err), &err, "profile 2 is neither");
    assert_int_equal(model->profile, LS_PROFILE_EXACT);
    ls_model_close(model);
    open_profile(&model, LS_FIXTURES "/jamba-odd", LS_PROFILE_EXACT);
    assert_ok(ls_workspace_create(&ws, test_home(), model, LS_BF16, 4, false, &err), err);
    assert_ok(ls_model_set_profile(model, LS_PROFILE_MMA16, LS_BF16, &err), err);
    assert_ok(ls_cache_create(&cache, test_home(), &model->config,
                              &(ls_cache_opts){.dtype = LS_BF16, .n_slots = 1, .n_pages = 1, .page_tokens = 16}, &err),
              err);
    assert_ok(ls_batch_create(&batch, test_home(), 4, 1, 1, &err), err);
    check_failed(ls_model_forward(&(ls_forward){model, cache, ws, batch, NULL, 0, false}, NULL, NULL, &err), &err,
                 "workspace is of the profile exact, the model of mma16");
    ls_batch_free(batch);
    ls_cache_free(cache);
    ls_workspace_free(ws);
    ls_model_close(model);
}

static bool prefers(ls_device *device) {
    (void)device;
    return true;
}

/* The profile that nobody asked for, on a device that prefers mma16 and on one that does not. */
static void the_default_follows_device_and_model(void **state) {
    static const struct {
        const char *fixture;
        ls_dtype activations;
        ls_profile want; /* where the device prefers mma16 */
    } cases[] = {
        {"jamba-nobias", LS_BF16, LS_PROFILE_MMA16},
        {"jamba-nobias", LS_F32, LS_PROFILE_EXACT},
        {"jamba-odd", LS_BF16, LS_PROFILE_MMA16},   /* a mixture of experts */
        {"jamba-dense", LS_BF16, LS_PROFILE_EXACT}, /* weights of float32 */
    };
    ls_device *device = test_home();
    const ls_backend_table *own = device->table;
    ls_backend_table table = *own;
    (void)state;
    assert_int_equal(ls_profile_default(true, LS_BF16), LS_PROFILE_MMA16);
    assert_int_equal(ls_profile_default(true, LS_F32), LS_PROFILE_EXACT);
    assert_int_equal(ls_profile_default(false, LS_BF16), LS_PROFILE_EXACT);
    assert_int_equal(ls_profile_default(false, LS_F32), LS_PROFILE_EXACT);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (int preferred = 0; preferred < 2; preferred++) {
            char path[512];
            ls_model *model;
            ls_profile found;
            ls_error err;
            snprintf(path, sizeof path, "%s/%s", LS_FIXTURES, cases[i].fixture);
            assert_ok(ls_model_open(&model, device, path, &err), err);
            table.prefers_mma16 = preferred ? prefers : NULL;
            device->table = &table;
            found = ls_model_default_profile(model, cases[i].activations);
            device->table = own;
            assert_int_equal(found, preferred ? cases[i].want : LS_PROFILE_EXACT);
            assert_int_equal(model->profile, LS_PROFILE_EXACT); /* looking sets nothing */
            ls_model_close(model);
        }
    if (test_on_gpu()) /* which GPU it is decides */
        print_message("this GPU prefers %s\n", ls_device_prefers_mma16(device) ? "mma16" : "exact");
    else
        assert_false(ls_device_prefers_mma16(device));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_are_the_textbooks),   cmocka_unit_test(mamba_alone_is_the_textbooks),
        cmocka_unit_test(values_stay_near),           cmocka_unit_test(exact_is_what_it_was),
        cmocka_unit_test(what_has_no_mma16_is_named), cmocka_unit_test(the_default_follows_device_and_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
