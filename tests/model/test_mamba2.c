/* Mamba-2 alone, Nemotron-H, Bamba and Granite against Hugging Face's numbers: what is read of the configuration,
 * logits and log-probabilities in both activation types, and the bits of a sequence that arrives in chunks. */
#include <math.h>

#include "measure.h"
#include "model/cache.h"

static const char *const names[] = {"mamba2-small",   "mamba2-odd",  "nemotron-h-small",  "nemotron-h-odd",
                                    "nemotron-h-moe", "bamba-small", "granite-moe-small", "granite-odd"};
enum { N_NAMES = sizeof names / sizeof names[0] };

static void configurations_are_read(void **state) {
    fixture f;
    const ls_model_config *c;
    (void)state;
    fixture_open(&f, "mamba2-small");
    c = &f.model->config;
    assert_true(c->hidden == 48 && c->d_inner == 96 && c->d_state == 16 && c->d_conv == 4 && c->dt_rank == 0);
    assert_true(c->ssd_heads == 6 && c->ssd_groups == 2 && c->dt_min == 0.0f && isinf(c->dt_max));
    assert_true(ls_config_conv_dim(c) == 160 && f.model->layers[0].mamba2.in_proj.n == 262);
    assert_true(c->n_layers == 3 && c->vocab == 300 && c->tied && c->conv_bias && !c->proj_bias);
    assert_true(c->rms_eps == 1e-5f && c->pad == 0 && c->bos == 1 && c->n_eos == 1 && c->eos[0] == 2);
    for (int32_t i = 0; i < c->n_layers; i++) assert_true(!c->is_attention[i] && !c->is_moe[i]);
    fixture_close(&f);

    fixture_open(&f, "mamba2-odd");
    c = &f.model->config;
    assert_true(c->hidden == 35 && c->d_inner == 105 && c->d_state == 11 && c->d_conv == 3);
    assert_true(c->ssd_heads == 5 && c->ssd_groups == 1 && c->dt_min == 0.05f && c->dt_max == 0.9f);
    assert_true(c->n_layers == 2 && c->vocab == 131 && !c->tied && !c->conv_bias && c->proj_bias);
    assert_true(c->rms_eps == 1e-3f && c->pad == 0 && c->bos == 0 && c->n_eos == 1 && c->eos[0] == 0);
    assert_null(f.model->layers[0].mamba2.conv_bias);
    fixture_close(&f);
}

/* Layers of Nemotron-H have one half each. */
static void layers_of_one_half_are_read(void **state) {
    static const char kinds[] = "M-MM*-";
    fixture f;
    const ls_model_config *c;
    (void)state;
    fixture_open(&f, "nemotron-h-small");
    c = &f.model->config;
    assert_true(c->n_layers == 6 && c->hidden == 40 && c->ffn == 56 && c->ungated && c->vocab == 150 && !c->tied);
    assert_true(c->n_heads == 4 && c->n_kv_heads == 2 && c->head_dim == 12 && c->rope.half == 0);
    assert_true(c->ssd_heads == 6 && c->ssd_groups == 3 && c->d_inner == 60 && c->d_state == 12 && c->d_conv == 4);
    assert_true(c->dt_min == 0.08f && isinf(c->dt_max) && c->rms_eps == 1e-4f && c->positions_max == 512);
    for (int32_t i = 0; i < c->n_layers; i++) {
        const ls_layer *layer = &f.model->layers[i];
        assert_true(c->is_attention[i] == (kinds[i] == '*') && c->no_mixer[i] == (kinds[i] == '-'));
        assert_true((layer->mixer == NULL) == (kinds[i] == '-') && (layer->ffn == NULL) == (kinds[i] != '-'));
        assert_true((layer->input_norm == NULL) == (kinds[i] == '-') && (layer->ffn_norm == NULL) == (kinds[i] != '-'));
    }
    fixture_close(&f);
}

static void mixtures_are_read(void **state) {
    fixture f;
    const ls_model_config *c;
    (void)state;
    fixture_open(&f, "nemotron-h-moe");
    c = &f.model->config;
    assert_true(c->n_layers == 4 && c->is_moe[1] && c->is_moe[3] && !c->is_moe[0] && !c->is_moe[2]);
    assert_true(c->ungated && c->ffn == 11 && c->shared_ffn == 17 && c->n_experts == 8 && c->top_k == 3);
    assert_true(c->router_groups == 4 && c->router_top_groups == 2 && c->router_scale == 1.7f && c->reweighs);
    assert_true(f.model->layers[1].mixer == NULL && f.model->layers[1].router_bias != NULL);
    assert_true(f.model->layers[1].shared.up.n == 17 && f.model->layers[1].shared_gate.n == 0);
    fixture_close(&f);
}

/* Half of each head of Bamba's attention rotates. */
static void half_of_heads_rotates(void **state) {
    fixture f;
    const ls_model_config *c;
    (void)state;
    fixture_open(&f, "bamba-small");
    c = &f.model->config;
    assert_true(c->n_layers == 3 && c->hidden == 48 && c->ffn == 52 && !c->ungated && c->vocab == 140 && c->tied);
    assert_true(c->n_heads == 3 && c->n_kv_heads == 1 && c->head_dim == 16 && c->qkv_bias && c->o_bias);
    assert_true(c->rope.half == 4 && c->rope.inv_freq[0] == 1.0f && !c->pad_is_trained);
    assert_true(c->ssd_heads == 6 && c->ssd_groups == 2 && c->d_inner == 96 && c->d_state == 10 && c->proj_bias);
    assert_true(c->dt_min == 0.02f && c->dt_max == 1.5f && c->rms_eps == 1e-4f && c->positions_max == 512);
    for (int32_t i = 0; i < c->n_layers; i++)
        assert_true(c->is_attention[i] == (i == 1) && !c->no_mixer[i] && !c->no_ffn[i]);
    fixture_close(&f);
}

/* Factors, heads that do not rotate, and experts that lie in two tensors. */
static void factors_and_joined_tensors_are_read(void **state) {
    fixture f;
    const ls_model_config *c;
    const ls_layer *layer;
    (void)state;
    fixture_open(&f, "granite-moe-small");
    c = &f.model->config;
    layer = &f.model->layers[1];
    assert_true(c->n_layers == 2 && c->hidden == 20 && c->vocab == 60 && c->tied && c->rms_eps == 1e-4f);
    assert_true(c->embed_scale == 3.0f && c->residual_scale == 0.41f && c->attention_scale == 0.6f);
    assert_true(c->logit_scale == 1.0f / 1.7f && c->rope.half == 0 && !c->is_attention[0] && c->is_attention[1]);
    assert_true(c->n_experts == 5 && c->top_k == 2 && c->ffn == 6 && c->shared_ffn == 9 && c->reweighs);
    assert_true(layer->expert[4].gate.n == 6 && layer->expert[4].up.k == 20 && layer->expert[4].down.k == 6);
    assert_true(layer->shared.gate.n == 9 && layer->shared.up.n == 9 && layer->shared_gate.n == 0);
    assert_int_equal(f.model->n_parameters, 10535);
    fixture_close(&f);

    fixture_open(&f, "granite-odd");
    c = &f.model->config;
    assert_true(c->n_layers == 3 && c->ffn == 13 && c->shared_ffn == 0 && c->n_experts == 1 && !c->tied);
    assert_true(c->rope.half == 3 && c->qkv_bias && c->o_bias && c->ssd_groups == 3 && c->dt_max == 1.5f);
    assert_true(f.model->layers[0].expert[0].gate.n == 13 && f.model->layers[0].expert[0].up.n == 13);
    assert_int_equal(f.model->n_parameters, 11280);
    fixture_close(&f);
}

/* A slot: the window of x, B and C, the states of heads, their scales. */
static void states_are_laid_out(void **state) {
    fixture f;
    ls_slot_layout layout;
    (void)state;
    fixture_open(&f, "mamba2-odd");
    ls_slot_layout_make(&layout, &f.model->config, LS_BF16, 1);
    assert_int_equal(layout.n, 3);
    assert_string_equal(layout.tensor[0].name, "conv");
    assert_true(layout.tensor[0].bytes == 2 * (105 + 22) * 2 && layout.tensor[0].offset == 0);
    assert_string_equal(layout.tensor[1].name, "ssd");
    assert_true(layout.tensor[1].bytes == 5 * 11 * 21 * 4 && layout.tensor[1].offset == 512);
    assert_string_equal(layout.tensor[2].name, "scale");
    assert_true(layout.tensor[2].bytes == 5 * 4 && layout.tensor[2].offset == 512 + 4672);
    assert_int_equal(layout.bytes, 512 + 4672 + 64);
    /* of those written with each fourth token: counts of heads, and three times u, factors and b, in fours of floats */
    ls_slot_layout_make(&layout, &f.model->config, LS_BF16, 4);
    assert_int_equal(layout.n, 4);
    assert_string_equal(layout.tensor[3].name, "held");
    assert_true(layout.tensor[3].bytes == (8 + 3 * (108 + 8 + 12)) * 4);
    assert_int_equal(layout.tensor[3].offset, 512 + 4672 + 64);
    assert_int_equal(layout.bytes, 512 + 4672 + 64 + 1600);
    fixture_close(&f);
}

/* The expected values are within 1e-6 of float64. A tenth of the norms' epsilon would cost 3e-3 at least. */
static void f32_matches(void **state) {
    (void)state;
    for (size_t i = 0; i < N_NAMES; i++) {
        const errors e = measure(names[i], LS_F32);
        assert_true(e.max_logit <= 1e-5 && e.max_logprob <= 1e-5);
    }
}

/* Rounding the inputs of matrix products and of the convolution. */
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
        cmocka_unit_test(layers_of_one_half_are_read),
        cmocka_unit_test(mixtures_are_read),
        cmocka_unit_test(half_of_heads_rotates),
        cmocka_unit_test(states_are_laid_out),
        cmocka_unit_test(f32_matches),
        cmocka_unit_test(bf16_activations_stay_near),
        cmocka_unit_test(chunks_change_no_bit),
        cmocka_unit_test(factors_and_joined_tensors_are_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
