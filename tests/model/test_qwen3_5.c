/* Qwen3.5 against Hugging Face's numbers: what is read of the configuration, logits and log-probabilities in both
 * activation types, the bits of a sequence that arrives in chunks, and files as they are published. */
#define _GNU_SOURCE
#include <math.h>

#include "load/safetensors_write.h"
#include "measure.h"
#include "model/cache.h"
#include "model/summary.h"

static const char *const names[] = {"qwen3.5-small", "qwen3.5-odd", "qwen3.5-moe-small", "qwen3-next-small"};
enum { N_NAMES = sizeof names / sizeof names[0] };

static void configurations_are_read(void **state) {
    fixture f;
    const ls_model_config *c;
    (void)state;
    fixture_open(&f, "qwen3.5-small");
    c = &f.model->config;
    assert_true(c->n_layers == 3 && c->hidden == 16 && c->ffn == 20 && c->vocab == 67 && c->tied && !c->pad_is_trained);
    assert_true(c->n_heads == 2 && c->n_kv_heads == 1 && c->head_dim == 16 && c->rope.half == 2 && !c->qkv_bias);
    assert_true(c->head_norms && c->head_gates && c->norms_above_one && c->rms_eps == 1e-3f);
    assert_true(c->delta_heads == 4 && c->delta_key_heads == 2 && c->d_state == 8 && c->d_inner == 32);
    assert_true(c->d_conv == 4 && !c->conv_bias && ls_config_conv_dim(c) == 64 && c->ssd_heads == 0);
    for (int32_t i = 0; i < c->n_layers; i++) assert_int_equal(c->is_attention[i], i == 1);
    assert_true(f.model->layers[1].attention.q.n == 64 && f.model->layers[0].delta.qkv.n == 64);
    fixture_close(&f);

    fixture_open(&f, "qwen3.5-odd");
    c = &f.model->config;
    assert_true(c->n_layers == 2 && c->hidden == 15 && c->ffn == 17 && c->vocab == 53 && !c->tied);
    assert_true(c->n_heads == 3 && c->n_kv_heads == 3 && c->head_dim == 10 && c->rope.half == 3);
    assert_true(c->delta_heads == 6 && c->delta_key_heads == 2 && c->d_state == 5 && c->d_inner == 42);
    assert_true(c->is_attention[0] && !c->is_attention[1] && c->n_eos == 2 && c->eos[1] == 7 && !c->delta_by_head);
    fixture_close(&f);

    fixture_open(&f, "qwen3-next-small");
    c = &f.model->config;
    assert_true(c->delta_by_head && c->delta_heads == 4 && c->delta_key_heads == 2 && c->d_state == 6);
    assert_true(c->n_experts == 4 && c->top_k == 2 && c->reweighs && c->ffn == 10 && c->shared_ffn == 7);
    assert_true(f.model->layers[0].delta.qkvz.n == 24 + 2 * 20 && f.model->layers[0].delta.ba.n == 8);
    assert_true(f.model->layers[0].delta.qkv.n == 0 && f.model->layers[0].delta.b.n == 0);
    fixture_close(&f);
}

/* A slot: the window of q, k and v, the states of heads, their scales. */
static void states_are_laid_out(void **state) {
    fixture f;
    ls_slot_layout layout;
    (void)state;
    fixture_open(&f, "qwen3.5-odd");
    ls_slot_layout_make(&layout, &f.model->config, LS_BF16, 1);
    assert_int_equal(layout.n, 3);
    assert_string_equal(layout.tensor[0].name, "conv");
    assert_true(layout.tensor[0].bytes == 2 * (42 + 20) * 2 && layout.tensor[0].offset == 0);
    assert_string_equal(layout.tensor[1].name, "delta");
    assert_true(layout.tensor[1].bytes == 6 * 5 * 7 * 4 && layout.tensor[1].offset == 256);
    assert_string_equal(layout.tensor[2].name, "scale");
    assert_true(layout.tensor[2].bytes == 6 * 4 && layout.tensor[2].offset == 256 + 896);
    /* of those written with each fourth token: counts of heads, and three times d, factors and keys */
    ls_slot_layout_make(&layout, &f.model->config, LS_BF16, 4);
    assert_int_equal(layout.n, 4);
    assert_string_equal(layout.tensor[3].name, "held");
    assert_true(layout.tensor[3].bytes == (8 + 3 * (44 + 8 + 12)) * 4 && layout.tensor[3].offset == 256 + 896 + 64);
    fixture_close(&f);
}

/* The expected values are within 2e-6 of float64. The least of the mistakes that the fixtures' script tries costs
 * 0.06. */
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

/* The fixture's tensors under the names that models with images have, and one more. */
static void write_published(const char *path, const char *more) {
    static char renamed[64][160];
    ls_tensor_out tensors[64];
    const ls_tensor_out extra = {more, LS_ST_F32, 1, (const int64_t[]){2}, (const float[]){1.0f, 2.0f}};
    ls_safetensors *file;
    char *bytes;
    int64_t n;
    ls_error err;
    tensors_open(&file, &bytes, LS_FIXTURES "/qwen3.5-small/model.safetensors");
    n = ls_safetensors_count(file);
    assert_true(n < 64);
    for (int64_t i = 0; i < n; i++) {
        const ls_tensor_view *view = ls_safetensors_at(file, i);
        const bool is_layer = strncmp(view->name, "model.", 6) == 0;
        snprintf(renamed[i], sizeof renamed[i], "%s%s", is_layer ? "model.language_" : "", view->name);
        tensors[i] = (ls_tensor_out){renamed[i], view->dtype, view->n_dims, view->dims, view->data};
    }
    tensors[n++] = extra;
    assert_ok(ls_safetensors_write(path, tensors, n, NULL, NULL, &err), err);
    ls_safetensors_close(file);
    free(bytes);
}

static void published_names_are_read(void **state) {
    static const char *const others[] = {"mtp.fc.weight", "model.visual.patch_embed.proj.weight"};
    ls_stored_summary plain, published;
    ls_error err;
    (void)state;
    assert_ok(ls_stored_summarize(&plain, LS_FIXTURES "/qwen3.5-small", &err), err);
    for (int i = 0; i < 3; i++) {
        char dir[] = "/tmp/ls-test-XXXXXX", path[100], command[600];
        assert_non_null(mkdtemp(dir));
        snprintf(path, sizeof path, "%s/model.safetensors", dir);
        write_published(path, i < 2 ? others[i] : "visual.x");
        snprintf(command, sizeof command, "cp %s/qwen3.5-small/config.json %s", LS_FIXTURES, dir);
        assert_int_equal(system(command), 0);
        if (i < 2) {
            assert_ok(ls_stored_summarize(&published, dir, &err), err);
            assert_true(published.digest == plain.digest && published.n_parameters == plain.n_parameters);
        } else {
            check_failed(ls_stored_summarize(&published, dir, &err), &err, "visual.x: the configuration (3 layers)");
        }
        snprintf(command, sizeof command, "rm -r %s", dir);
        assert_int_equal(system(command), 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(configurations_are_read),
        cmocka_unit_test(states_are_laid_out),
        cmocka_unit_test(f32_matches),
        cmocka_unit_test(bf16_activations_stay_near),
        cmocka_unit_test(chunks_change_no_bit),
        cmocka_unit_test(published_names_are_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
