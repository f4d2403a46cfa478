/* Llama, Mistral, Mixtral, Qwen2, Qwen3 and Qwen3-MoE against Hugging Face's numbers: what is read of their
 * configurations, logits and log-probabilities in both activation types, the bits of a sequence that arrives in chunks,
 * frequencies of rotations, and cosines and sines at positions up to 131,071. */
#include <jansson.h>

#include "load/rope_fields.h"
#include "measure.h"
#include "model/architectures.h"
#include "op/rope.h"

static const char *const names[] = {"llama-small",     "llama-odd",     "mistral-small",  "qwen2-small", "qwen3-small",
                                    "qwen3-moe-small", "mixtral-small", "mistral-window", "qwen2-window"};
enum { N_NAMES = sizeof names / sizeof names[0] };

static void configurations_are_read(void **state) {
    static const struct {
        int32_t heads, kv_heads, head_dim, n_layers, vocab, pad, n_eos;
        bool head_norms, qkv_bias, o_bias, tied;
    } expected[N_NAMES] = {
        {4, 2, 8, 2, 96, 0, 1, false, false, false, true},   {3, 1, 14, 3, 131, 0, 2, false, true, true, false},
        {4, 4, 12, 2, 96, 0, 1, false, false, false, false}, {4, 2, 8, 2, 96, 0, 1, false, true, false, true},
        {3, 1, 20, 2, 96, -1, 1, true, false, false, false}, {4, 2, 12, 2, 96, -1, 1, true, false, false, false},
        {4, 2, 8, 2, 96, 0, 1, false, false, false, false},  {4, 2, 8, 2, 96, 0, 1, false, false, false, true},
        {4, 2, 8, 3, 96, 0, 1, false, true, false, false}};
    static const int32_t window[N_NAMES][3] = {[7] = {20, 20}, [8] = {0, 7, 7}};
    (void)state;
    for (size_t i = 0; i < N_NAMES; i++) {
        fixture f;
        const ls_model_config *c;
        const bool mixes = i == 5 || i == 6;
        fixture_open(&f, names[i]);
        c = &f.model->config;
        assert_true(c->n_heads == expected[i].heads && c->n_kv_heads == expected[i].kv_heads);
        assert_true(c->head_dim == expected[i].head_dim && c->rope.half == expected[i].head_dim / 2);
        assert_true(c->n_layers == expected[i].n_layers && c->vocab == expected[i].vocab);
        assert_true(c->pad == expected[i].pad && c->bos == 1 && c->n_eos == expected[i].n_eos && c->eos[0] == 2);
        assert_true(c->head_norms == expected[i].head_norms && c->tied == expected[i].tied);
        assert_true(c->qkv_bias == expected[i].qkv_bias && c->o_bias == expected[i].o_bias);
        assert_true(c->d_inner == 0 && !c->pad_is_trained);
        assert_true(c->n_experts == (!mixes ? 1 : i == 5 ? 5 : 4) && c->top_k == (!mixes ? 1 : 2));
        assert_true(c->reweighs == mixes && c->ffn == (!mixes ? c->ffn : i == 5 ? 20 : 24));
        for (int32_t k = 0; k < c->n_layers; k++)
            assert_true(c->is_attention[k] && c->is_moe[k] == mixes && c->window[k] == window[i][k]);
        fixture_close(&f);
    }
}

/* The expected values are within 2e-6 of float64; what a part left out would cost, the fixtures' script says. */
static void f32_matches(void **state) {
    (void)state;
    for (size_t i = 0; i < N_NAMES; i++) {
        const errors e = measure(names[i], LS_F32);
        assert_true(e.max_logit <= 1e-5 && e.max_logprob <= 1e-5);
    }
}

static void bf16_activations_stay_near(void **state) {
    (void)state;
    for (size_t i = 0; i < N_NAMES; i++) assert_true(measure(names[i], LS_BF16).mean_logprob < 0.01);
}

static void chunks_change_no_bit(void **state) {
    static const int64_t chunks[] = {1, 2, 7, 64};
    ls_device *device = test_device(2, ls_isa_best());
    (void)state;
    for (size_t i = 0; i < N_NAMES; i++)
        for (ls_dtype dtype = LS_F32; dtype <= LS_BF16; dtype++) {
            fixture f;
            float whole[80], parts[80];
            ls_error err;
            fixture_open(&f, names[i]);
            assert_true(f.n_tokens <= 80);
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

/* ---- frequencies ---- */

static int64_t integer_of(const json_t *object, const char *key) {
    return json_integer_value(json_object_get(object, key));
}

static float float_of(const json_t *list, int64_t i) {
    return ls_from_bits((uint32_t)strtoul(json_string_value(json_array_get(list, (size_t)i)), NULL, 16));
}

/* Cosines and sines at a position. Ours are the nearest of the rounded angle; torch's may be one step of float32
 * beside, before they are scaled. Another last bit of a frequency turns the angle by position times it, and the angle's
 * own rounding may then fall otherwise. */
static void check_turn(const json_t *line, const json_t *at, const ls_rope_config *rope) {
    static const char *const names_of[] = {"cos", "sin"};
    const int64_t position = integer_of(at, "position");
    const ls_span span = {0, 1, position, -1, 0};
    float table[2 * LS_HEAD_DIM_MAX];
    const ls_rope_table_args args = {.inv_freq = rope->inv_freq,
                                     .half = rope->half,
                                     .scale = rope->scale,
                                     .table = table,
                                     .spans = &span,
                                     .n_spans = 1,
                                     .rows = 1};
    ls_device *device; /* the host reads the table */
    ls_error err;
    assert_ok(ls_device_open_cpu(&device, 1, ls_isa_best(), &err), err);
    assert_ok(ls_rope_table(device, &args, &err), err);
    ls_device_close(device);
    for (int32_t k = 0; k < 2 * rope->half; k++) {
        const int32_t j = k % rope->half, which = k / rope->half;
        const double ours = (double)rope->inv_freq[j];
        const double apart = fabs(ours - (double)float_of(json_object_get(line, "inv_freq"), j));
        const double turned = apart == 0.0 ? 0.0 : (double)position * apart + ldexp((double)position * ours, -23);
        const float theirs = float_of(json_object_get(at, names_of[which]), j);
        if (!(fabs((double)table[k] - (double)theirs) <= (turned + 0x1p-23) * (double)rope->scale))
            fail_msg("%s, position %lld, %s of frequency %d: %a, transformers has %a",
                     json_string_value(json_object_get(line, "name")), (long long)position, names_of[which], j,
                     (double)table[k], (double)theirs);
    }
}

/* A line of rope-vectors.jsonl. transformers' powers come from a libm whose last bit may be another one; in what
 * llama3 and YaRN make of them it may count once more. */
static void check_rotation(const json_t *line) {
    const json_t *config = json_object_get(line, "config"), *bits = json_object_get(line, "inv_freq");
    const json_t *turns = json_object_get(line, "at");
    const int64_t head_dim = integer_of(config, "head_dim");
    ls_rope_config rope;
    ls_error err;
    int64_t n_other = 0;
    assert_ok(
        ls_rope_fields_read(&rope, config, head_dim, 10000.0, integer_of(config, "max_position_embeddings"), &err),
        err);
    assert_int_equal(rope.half, head_dim / 2);
    assert_int_equal(json_array_size(bits), (size_t)rope.half);
    assert_true(rope.scale == (float)json_real_value(json_object_get(line, "scale")));
    for (int32_t j = 0; j < rope.half; j++) {
        const uint32_t theirs = (uint32_t)strtoul(json_string_value(json_array_get(bits, (size_t)j)), NULL, 16);
        const int64_t distance = (int64_t)theirs - (int64_t)ls_bits(rope.inv_freq[j]);
        if (distance < -2 || distance > 2)
            fail_msg("%s, frequency %d: %a, transformers has %a", json_string_value(json_object_get(line, "name")), j,
                     (double)rope.inv_freq[j], (double)ls_from_bits(theirs));
        n_other += distance != 0;
    }
    assert_int_equal(json_array_size(turns), 3);
    for (size_t i = 0; i < 3; i++) check_turn(line, json_array_get(turns, i), &rope);
    if (n_other > rope.half / 8)
        fail_msg("%s: %lld others", json_string_value(json_object_get(line, "name")), (long long)n_other);
}

static void rotations_are_those_of_transformers(void **state) {
    FILE *file = fopen(LS_FIXTURES "/rope-vectors.jsonl", "r");
    static char line[16384];
    int n = 0;
    (void)state;
    assert_non_null(file);
    for (; fgets(line, sizeof line, file) != NULL; n++) {
        json_t *json = json_loads(line, 0, NULL);
        assert_non_null(json);
        check_rotation(json);
        json_decref(json);
    }
    assert_int_equal(fclose(file), 0);
    assert_int_equal(n, 12);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(configurations_are_read),
        cmocka_unit_test(f32_matches),
        cmocka_unit_test(bf16_activations_stay_near),
        cmocka_unit_test(chunks_change_no_bit),
        cmocka_unit_test(rotations_are_those_of_transformers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
