/* The property of test_invariance on few tokens, quick enough for sanitizers: 8 prompts of 1 to 6 tokens and one of
 * 48, 2 samples, 4 tokens each, on five fixtures (four for the slow generic set) in both activation types with every
 * instruction set, or once on the device that LS_TEST_DEVICE puts in the CPU's place, and on those of bf16 weights in
 * the profile mma16, whose steps are slow: under sanitizers on the smallest of them, and the generic set on those that
 * are not all dense. Under sanitizers the types take turns: each has half of the fixtures with one instruction set and
 * the other half with the next. Each value of each lever occurs. */
#include "invariance.h"

#define N_TOKENS 4
#define LONGEST 6 /* prompt but for the last */
#define COUNT(array) ((int64_t)(sizeof(array) / sizeof(array)[0]))

static const levers first_levers = {16, 256, 16, 1, 0, false, 1};

static const levers lever_rows[] = {
    {1, WHOLE, 64, 2, 0, true, 2}, {3, 5, 1, 1, 32, true, 3},  {16, 1, 16, 2, 33, false, 4},
    {16, 2, 64, 1, 34, true, 64},  {3, 64, 1, 2, 0, false, 0},
};

static void small_case(const char *name, ls_dtype dtype, ls_profile profile, ls_isa isa) {
    ls_device *devices[3] = {NULL, test_device(1, isa), test_device(2, isa)};
    ls_device *best = test_device(1, ls_isa_best());
    request_set want, got, both;
    fixture f;
    differences d;
    ls_error err;
    fixture_open(&f, name);
    assert_ok(ls_model_set_profile(f.model, profile, dtype, &err), err);
    set_make(&want, f.model->config.vocab, 9, 2, LONGEST, N_TOKENS, 3, 0);
    generate(f.model, best, dtype, &first_levers, &plain_sampling, &want);
    set_pick(&got, &want, want.n, N_TOKENS);
    for (int64_t i = 0; i < COUNT(lever_rows); i++) {
        const levers *l = &lever_rows[i];
        int64_t row;
        float *scores;
        generate(f.model, devices[l->threads], dtype, l, &plain_sampling, &got);
        d = compare_sets(&want, &got);
        must_agree(&d, want.n * N_TOKENS, "generate", l);
        scores = score(f.model, devices[l->threads], dtype, l, &plain_sampling, &want, N_TOKENS, i, &row);
        d = compare_scores(&want, scores, row, N_TOKENS);
        must_agree(&d, want.n * N_TOKENS, "score", l);
        free(scores);
    }
    /* one request of each pair is a stranger with another address and length */
    set_alloc(&both, 2 * want.n, N_TOKENS);
    for (int64_t i = 0; i < want.n; i++) {
        ls_request *stranger = &both.requests[2 * i];
        set_borrow(&both, 2 * i, &want.requests[want.n - 1 - i]);
        stranger->prompt_i += 1000;
        stranger->max_tokens = 1 + i % N_TOKENS;
        set_borrow(&both, 2 * i + 1, &want.requests[i]);
    }
    generate(f.model, devices[2], dtype, &lever_rows[2], &plain_sampling, &both);
    d = compare_sets(&want, &both);
    must_agree(&d, want.n * N_TOKENS, "generate with neighbours", &lever_rows[2]);
    set_free(&both);
    set_free(&got);
    set_free(&want);
    fixture_close(&f);
    test_device_close(best);
    test_device_close(devices[1]);
    test_device_close(devices[2]);
}

static void no_lever_reaches_a_bit(void **state) {
#ifdef LS_SANITIZED
    /* Odd sizes, experts, windows, norms without weights; `schedules` runs the others here. */
    static const char *const names[] = {"jamba-odd",          "llama-odd",    "qwen2-window",
                                        "falcon-mamba-small", "mamba2-small", "nemotron-h-odd",
                                        "bamba-small",        "qwen3.5-odd",  "jamba-bf16"};
    const bool one_type = true;
#else
    static const char *const names[] = {"jamba-dense",  "jamba-moe",        "jamba-odd",    "mamba-odd",
                                        "llama-odd",    "qwen3-small",      "qwen2-window", "falcon-mamba-small",
                                        "mamba2-small", "nemotron-h-odd",   "bamba-small",  "qwen3.5-odd",
                                        "jamba-bf16",   "granite-moe-small"};
    const bool one_type = false;
#endif
    const ls_isa isa = *(const ls_isa *)*state;
    skip_elsewhere(isa);
    for (int64_t i = 0; i < COUNT(names) - (isa == LS_ISA_GENERIC); i++)
        for (int64_t type = 0; type < 2; type++)
            if (!one_type || type == (i + isa) % 2)
                small_case(names[i], type == 0 ? LS_F32 : LS_BF16, LS_PROFILE_EXACT, isa);
}

static void no_lever_reaches_a_bit_of_mma16(void **state) {
    static const char *const names[] = {"jamba-odd", "jamba-nobias", "jamba-bf16"};
#ifdef LS_SANITIZED
    const int64_t n = 1;
#else
    const int64_t n = COUNT(names) - (*(const ls_isa *)*state == LS_ISA_GENERIC);
#endif
    const ls_isa isa = *(const ls_isa *)*state;
    skip_elsewhere(isa);
    for (int64_t i = 0; i < n; i++) small_case(names[i], LS_BF16, LS_PROFILE_MMA16, isa);
}

int main(void) {
    static ls_isa isas[] = {LS_ISA_GENERIC, LS_ISA_AVX2, LS_ISA_AVX512, LS_ISA_COUNT};
    const struct CMUnitTest tests[] = {
        {"small_generic", no_lever_reaches_a_bit, NULL, NULL, &isas[0]},
        {"small_avx2", no_lever_reaches_a_bit, NULL, NULL, &isas[1]},
        {"small_avx512", no_lever_reaches_a_bit, NULL, NULL, &isas[2]},
        {"small_device", no_lever_reaches_a_bit, NULL, NULL, &isas[3]},
        {"small_mma16_generic", no_lever_reaches_a_bit_of_mma16, NULL, NULL, &isas[0]},
        {"small_mma16_avx2", no_lever_reaches_a_bit_of_mma16, NULL, NULL, &isas[1]},
        {"small_mma16_avx512", no_lever_reaches_a_bit_of_mma16, NULL, NULL, &isas[2]},
        {"small_mma16_device", no_lever_reaches_a_bit_of_mma16, NULL, NULL, &isas[3]},
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
