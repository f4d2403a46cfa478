/* Mamba-1 alone, and FalconMamba, against Hugging Face's numbers: what is read of the configuration, logits and
 * log-probabilities in both activation types, and the bits of a sequence that arrives in chunks. */
#include "measure.h"

static const char *const names[] = {"mamba-small", "mamba-odd", "falcon-mamba-small"};
enum { N_NAMES = sizeof names / sizeof names[0] };

static void configurations_are_read(void **state) {
    fixture f;
    const ls_model_config *c;
    (void)state;
    fixture_open(&f, "mamba-small");
    c = &f.model->config;
    assert_true(c->hidden == 64 && c->d_inner == 128 && c->d_state == 16 && c->d_conv == 4 && c->dt_rank == 4);
    assert_true(c->n_layers == 3 && c->vocab == 300 && c->tied && c->conv_bias && !c->proj_bias);
    assert_true(c->rms_eps == 1e-5f && c->pad == 0 && c->bos == 1 && c->n_eos == 1 && c->eos[0] == 2);
    for (int32_t i = 0; i < c->n_layers; i++) assert_true(!c->is_attention[i] && !c->is_moe[i]);
    fixture_close(&f);

    /* intermediate_size says 54, expand * hidden_size would be 72. One token is padding, beginning and end. */
    fixture_open(&f, "mamba-odd");
    c = &f.model->config;
    assert_true(c->hidden == 36 && c->d_inner == 54 && c->d_state == 5 && c->d_conv == 3 && c->dt_rank == 3);
    assert_true(c->n_layers == 3 && c->vocab == 131 && !c->tied && !c->conv_bias && c->proj_bias);
    assert_true(c->rms_eps == 1e-5f && c->pad == 0 && c->bos == 0 && c->n_eos == 1 && c->eos[0] == 0);
    for (int32_t i = 0; i < c->n_layers; i++) assert_true(!c->is_attention[i] && !c->is_moe[i]);
    fixture_close(&f);

    fixture_open(&f, "falcon-mamba-small");
    c = &f.model->config;
    assert_true(c->hidden == 28 && c->d_inner == 44 && c->d_state == 5 && c->d_conv == 4 && c->dt_rank == 6);
    assert_true(c->n_layers == 2 && c->vocab == 99 && !c->tied && c->conv_bias && c->proj_bias);
    assert_true(c->inner_norms && !c->inner_weights && c->rms_eps == 1e-5f && c->inner_eps == 1e-3f);
    assert_null(f.model->layers[0].mamba.dt_norm);
    fixture_close(&f);
}

/* The expected values are within 2.1e-6 of float64. A norm's epsilon of 1e-6 instead of 1e-5 would cost 5e-4. */
static void f32_matches(void **state) {
    (void)state;
    for (size_t i = 0; i < N_NAMES; i++) {
        const errors e = measure(names[i], LS_F32);
        assert_true(e.max_logit <= 1e-5 && e.max_logprob <= 1e-5);
    }
}

/* Rounding the inputs of matrix products and of the convolution costs 0.004 on average, computed in float64. */
static void bf16_activations_stay_near(void **state) {
    (void)state;
    for (size_t i = 0; i < N_NAMES; i++) assert_true(measure(names[i], LS_BF16).mean_logprob < 0.01);
}

/* Windows shorter than the convolution, and one token at a time, as decoding goes. */
static void chunks_change_no_bit(void **state) {
    static const int64_t chunks[] = {1, 2, 7, 16};
    ls_device *device = test_device(2, ls_isa_best());
    (void)state;
    for (size_t i = 0; i < N_NAMES; i++)
        for (ls_dtype dtype = LS_F32; dtype <= LS_BF16; dtype++) {
            fixture f;
            float whole[64], parts[64];
            ls_error err;
            fixture_open(&f, names[i]);
            assert_true(f.n_tokens <= 64);
            for (int64_t s = 0; s < f.n_sequences; s++) {
                ls_score_item item = {.tokens = f.ids + s * f.n_tokens, .n_tokens = f.n_tokens, .logprob = whole};
                ls_score_opts opts = {.dtype = dtype, .batch = 1, .chunk = 0, .page_tokens = 64};
                assert_ok(ls_score(f.model, device, &opts, &item, 1, &err), err);
                item.logprob = parts;
                for (size_t k = 0; k < sizeof chunks / sizeof chunks[0]; k++) {
                    opts.chunk = chunks[k];
                    assert_ok(ls_score(f.model, device, &opts, &item, 1, &err), err);
                    assert_same_bits(whole, parts, f.n_tokens - 1);
                }
            }
            fixture_close(&f);
        }
    test_device_close(device);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(configurations_are_read),
        cmocka_unit_test(f32_matches),
        cmocka_unit_test(bf16_activations_stay_near),
        cmocka_unit_test(chunks_change_no_bit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
