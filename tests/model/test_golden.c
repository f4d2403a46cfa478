/* The bits themselves. One FNV-1a hash a fixture, activation type and profile, over the ids and log-probability bits of
 * 512 tokens: 4 requests of 64 greedy with raw log-probabilities, 4 of 64 sampled with top-k, top-p and processed ones.
 * Every instruction set must give it. Whoever changes a hash changes the numerics: LS_NUMERICS_VERSION must go up with
 * it. */
#include "invariance.h"
#include "num/contract.h"

#define N_TOKENS 64

static const levers golden_levers = {4, 16, 16, 2, 0, false, 0};
static const distribution greedy = {{.temperature = 0.0f, .top_p = 1.0f, .seed = 1}, LS_LOGPROB_RAW};
static const distribution sampled = {{.temperature = 0.8f, .top_k = 40, .top_p = 0.95f, .seed = 9007199254740993u},
                                     LS_LOGPROB_PROCESSED};

static void hash_bytes(uint64_t *hash, uint32_t word) {
    for (int i = 0; i < 4; i++) {
        *hash ^= (word >> (8 * i)) & 0xff;
        *hash *= 1099511628211u;
    }
}

static void hash_run(uint64_t *hash, const fixture *f, ls_device *device, ls_dtype dtype, const distribution *d) {
    request_set set;
    set_make(&set, f->model->config.vocab, 2, 2, PROMPT_MAX, N_TOKENS, 7, 0);
    generate(f->model, device, dtype, &golden_levers, d, &set);
    for (int64_t i = 0; i < set.n; i++)
        for (int64_t t = 0; t < N_TOKENS; t++) {
            uint32_t bits;
            memcpy(&bits, &set.requests[i].logprob[t], sizeof bits);
            hash_bytes(hash, (uint32_t)set.requests[i].completion[t]);
            hash_bytes(hash, bits);
        }
    set_free(&set);
}

typedef struct golden {
    const char *fixture;
    uint64_t hash[3]; /* f32, bf16 activations; the profile mma16, 0 where the weights are not bf16 */
} golden;

/* Version 4 of the numerics; exact is that of version 2. */
static const golden goldens[] = {
    {"jamba-dense", {0x766b027a75c9b5e9u, 0x3f4d45a675e4ec11u, 0}},
    {"jamba-moe", {0x7a9296727b33e4e4u, 0xd4d8c95bd291d98cu, 0}},
    {"jamba-bf16", {0x2ceea887c0358207u, 0xf78e6e91ea97f547u, 0xee84a44e1e3a4a41u}},
    {"jamba-odd", {0xd168891b6c5f1126u, 0x71a35d6da9a842fau, 0x416a3f8ebdfb5987u}},
    {"jamba-nobias", {0x1e34fad0cb562df6u, 0x096b2d851bc6dd6bu, 0x65d5e86dd4ae6dcfu}},
    {"mamba-small", {0xbe9a5bce4ae8184fu, 0x440e4a59d5626c78u, 0}},
    {"mamba-odd", {0x0fccdd636a4a7fbcu, 0xd4f455a72374d240u, 0}},
    {"falcon-mamba-small", {0x3c23d44cfc574033u, 0x15e3c311f66f0964u, 0xca8eb7c50a85f4bau}},
    {"mamba2-small", {0x99c26568cb7b6ab6u, 0x55defdd49f2ecad3u, 0xed4f46aa904b1bd4u}},
    {"mamba2-odd", {0x0300b3fb83ae0907u, 0x2642b5d682b5c61au, 0}},
    {"nemotron-h-small", {0xfc9ea3748574c8f2u, 0xce925b1bff6e0993u, 0xc3628c8e51fdc592u}},
    {"nemotron-h-moe", {0x3c1156de88b28211u, 0x0a9a1e2659d29a01u, 0x3ca0304e00f02febu}},
    {"nemotron-h-odd", {0x0d8e7400977a0784u, 0xe8daa29f9f7a6106u, 0}},
    {"bamba-small", {0xd8c2fd0473b3e2a0u, 0x585edbe1bd2fa81au, 0x99ffa2289743dba3u}},
    {"qwen3.5-small", {0x1d8927fa29eceda5u, 0xd144d4e43c515492u, 0xf96355b7ec8e7cddu}},
    {"qwen3.5-odd", {0x942d4f6580eb6d69u, 0x1e07a66e9ae8b9b3u, 0xa90a6be0282d522cu}},
    {"qwen3.5-moe-small", {0x88a4d03e35181a62u, 0x173dbdd2d09127ecu, 0xc0627c55a114381au}},
    {"qwen3-next-small", {0x8f36bff7bd571015u, 0x832f1e1faae3920bu, 0xba2380ac34d7804bu}},
    {"llama-small", {0x93f0364fe3d8fb82u, 0xbf1462b630a964b8u, 0x1a1413b056dbffc8u}},
    {"llama-odd", {0x5f3fee35809f1044u, 0xf1a64d7134e7e510u, 0xf8ebaaee2265fb72u}},
    {"mistral-small", {0x08a28deba9c8fcc0u, 0xbf88de121fb3cd00u, 0xc19dc6e08b25add6u}},
    {"mistral-window", {0x745774eb9a682900u, 0x05a51ad2ecde321cu, 0x1664a6c735e33993u}},
    {"qwen2-window", {0x793c708275a45319u, 0xcaac372aae565af0u, 0xd38c4a2b3ec039edu}},
    {"qwen2-small", {0x0639b9bf31b209e8u, 0xefd907cb1e440e90u, 0x029f79fb80797fecu}},
    {"qwen3-small", {0x5f10d8ac4e107a4au, 0x24810c7f2854ee75u, 0xc6eefa8e2b52fa86u}},
    {"qwen3-moe-small", {0xad8c66f5b2f0c595u, 0xe2572a43894b01c1u, 0xf76dd5b50d1151a6u}},
    {"mixtral-small", {0x7a310bdf83cd1957u, 0x34bc2c27e05f2f33u, 0x117ae5d65ae3f02eu}},
    {"granite-moe-small", {0x1ebda2b8e7c0dcb3u, 0x3f0ebd66c46b08d7u, 0x29d07f6708d5c6dcu}},
    {"granite-odd", {0xa188177bb279fdc9u, 0x81db1b7279ed90a9u, 0x724cdf2b6d279170u}},
};

static void bits_are_golden(void **state) {
    const ls_isa isa = *(const ls_isa *)*state;
    ls_device *device;
    int n_wrong = 0;
    if (!ls_isa_available(isa)) {
        print_message("this processor cannot run %s\n", ls_isa_name(isa));
        skip();
    }
    device = test_device(2, isa);
    for (size_t i = 0; i < sizeof goldens / sizeof goldens[0]; i++) {
        fixture f;
        fixture_open(&f, goldens[i].fixture);
        for (int type = 0; type < 3; type++) {
            uint64_t hash = 14695981039346656037u;
            const ls_dtype dtype = type == 0 ? LS_F32 : LS_BF16;
            const ls_profile profile = type == 2 ? LS_PROFILE_MMA16 : LS_PROFILE_EXACT;
            ls_error err;
            if (type == 2 && goldens[i].hash[type] == 0) continue;
            assert_ok(ls_model_set_profile(f.model, profile, dtype, &err), err);
            hash_run(&hash, &f, device, dtype, &greedy);
            hash_run(&hash, &f, device, dtype, &sampled);
            if (hash == goldens[i].hash[type]) continue;
            n_wrong++;
            print_message("%s, %s, %s activations: %016llx, recorded %016llx\n", goldens[i].fixture,
                          ls_profile_name(profile), ls_dtype_name(dtype), (unsigned long long)hash,
                          (unsigned long long)goldens[i].hash[type]);
        }
        fixture_close(&f);
    }
    test_device_close(device);
    if (n_wrong > 0)
        fail_msg(
            "%d hashes are not those of numerics version %d: if the change is intended, raise LS_NUMERICS_VERSION "
            "(src/num/contract.h) and the version in NUMERICS.md, and record the new hashes",
            n_wrong, LS_NUMERICS_VERSION);
}

static void hashes_belong_to_this_version(void **state) {
    (void)state;
    assert_int_equal(LS_NUMERICS_VERSION, 4); /* the version that goldens[] was recorded under */
    assert_string_equal(ls_profile_name(LS_PROFILE_EXACT), "exact");
}

int main(void) {
    static ls_isa isas[] = {LS_ISA_GENERIC, LS_ISA_AVX2, LS_ISA_AVX512};
    const struct CMUnitTest tests[] = {
        {"golden_generic", bits_are_golden, NULL, NULL, &isas[0]},
        {"golden_avx2", bits_are_golden, NULL, NULL, &isas[1]},
        {"golden_avx512", bits_are_golden, NULL, NULL, &isas[2]},
        cmocka_unit_test(hashes_belong_to_this_version),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
