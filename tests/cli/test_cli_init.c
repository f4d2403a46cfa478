/* `lockstep init`: every kind of tensor as its contract says, the same bits every time, and refusals that leave nothing
 * behind. */
#define _GNU_SOURCE
#include <math.h>

#include "load/safetensors.h"
#include "model/shapes.h"
#include "program.h"

#define MOE LS_FIXTURES "/jamba-moe"
#define ADD LS_SOURCE_DIR "/models/tiny-sort"

static const ls_tensor_view *tensor(const ls_checkpoint *checkpoint, const char *name) {
    const ls_tensor_view *view = ls_checkpoint_find(checkpoint, name);
    if (view == NULL) fail_msg("no tensor %s", name);
    return view;
}

/* A tensor's elements, until the next call. */
static const float *floats(const ls_checkpoint *checkpoint, const char *name) {
    static float elements[1 << 16];
    const ls_tensor_view *view = ls_checkpoint_find(checkpoint, name);
    ls_error err;
    assert_non_null(view);
    assert_int_equal(view->dtype, LS_ST_F32);
    assert_true(view->bytes <= (int64_t)sizeof elements);
    assert_ok(ls_tensor_read(elements, view, &err), err);
    return elements;
}

/* Mean and deviation of a tensor within five of their standard errors, and none further out than the sum of eight. */
static void check_normal(const ls_checkpoint *checkpoint, const char *name, double deviation) {
    const int64_t n = tensor(checkpoint, name)->n_elements;
    const float *x = floats(checkpoint, name);
    double sum = 0, squares = 0, most = 0;
    for (int64_t i = 0; i < n; i++) {
        const double z = (double)x[i] / deviation;
        sum += z;
        squares += z * z;
        if (fabs(z) > most) most = fabs(z);
    }
    if (fabs(sum) > 5 * sqrt((double)n) || fabs(squares - (double)n) > 5 * sqrt(2 * (double)n) || most > 4.9)
        fail_msg("%s: sum %g, squares %g of %lld, most %g", name, sum, squares, (long long)n, most);
}

static void check_equal(const ls_checkpoint *checkpoint, const char *name, float value) {
    const float *x = floats(checkpoint, name);
    for (int64_t i = 0; i < tensor(checkpoint, name)->n_elements; i++) assert_true(x[i] == value);
}

static void tensors_are_as_promised(void **state) {
    ls_checkpoint *checkpoint;
    const float *x;
    const ls_tensor_view *view;
    ls_error err;
    (void)state;
    RUN_OK("init", "--config", MOE "/config.json", "--seed", "7", "--out", at("moe"));
    assert_ok(ls_checkpoint_open(&checkpoint, at("moe"), &err), err);
    check_normal(checkpoint, "model.embed_tokens.weight", 0.125);
    check_normal(checkpoint, "lm_head.weight", 0.125);
    check_normal(checkpoint, "model.layers.0.mamba.in_proj.weight", 0.125);
    check_normal(checkpoint, "model.layers.0.mamba.conv1d.weight", 0.5);
    check_normal(checkpoint, "model.layers.0.mamba.dt_proj.weight", 0.5);
    check_normal(checkpoint, "model.layers.1.self_attn.q_proj.weight", 0.125);
    check_normal(checkpoint, "model.layers.1.feed_forward.router.weight", 0.125);
    check_normal(checkpoint, "model.layers.1.feed_forward.experts.3.down_proj.weight", 1 / sqrt(96));
    check_equal(checkpoint, "model.final_layernorm.weight", 1);
    check_equal(checkpoint, "model.layers.0.input_layernorm.weight", 1);
    check_equal(checkpoint, "model.layers.0.mamba.dt_layernorm.weight", 1);
    check_equal(checkpoint, "model.layers.0.mamba.D", 1);
    check_equal(checkpoint, "model.layers.0.mamba.conv1d.bias", 0);
    x = floats(checkpoint, "model.layers.0.mamba.A_log");
    for (int64_t i = 0; i < 128 * 16; i++) assert_true(fabs(exp((double)x[i]) - (double)(i % 16 + 1)) < 1e-5);
    view = tensor(checkpoint, "model.layers.0.mamba.dt_proj.bias");
    for (int64_t i = 0; i < view->n_elements; i++) {
        const double dt = log1p(exp((double)floats(checkpoint, view->name)[i]));
        assert_true(dt > 0.9999e-3 && dt < 1.0001e-1);
    }
    ls_checkpoint_close(checkpoint);
}

/* Under Mamba's names: the last norm's ends in norm_f.weight. */
static void tensors_of_mamba_are_as_promised(void **state) {
    ls_checkpoint *checkpoint;
    ls_error err;
    (void)state;
    RUN_OK("init", "--config", LS_FIXTURES "/mamba-odd/config.json", "--seed", "7", "--out", at("mamba"));
    assert_ok(ls_checkpoint_open(&checkpoint, at("mamba"), &err), err);
    check_normal(checkpoint, "backbone.embeddings.weight", 1 / 6.0);
    check_normal(checkpoint, "lm_head.weight", 1 / 6.0);
    check_normal(checkpoint, "backbone.layers.2.mixer.out_proj.weight", 1 / sqrt(54));
    check_normal(checkpoint, "backbone.layers.2.mixer.conv1d.weight", 1 / sqrt(3));
    check_equal(checkpoint, "backbone.norm_f.weight", 1);
    check_equal(checkpoint, "backbone.layers.1.norm.weight", 1);
    check_equal(checkpoint, "backbone.layers.1.mixer.D", 1);
    check_equal(checkpoint, "backbone.layers.1.mixer.in_proj.bias", 0);
    check_equal(checkpoint, "backbone.layers.1.mixer.out_proj.bias", 0);
    assert_null(ls_checkpoint_find(checkpoint, "backbone.layers.1.mixer.conv1d.bias"));
    ls_checkpoint_close(checkpoint);
}

static void bits_follow_from_the_seed(void **state) {
    (void)state;
    RUN_OK("init", "--config", MOE "/config.json", "--seed", "7", "--out", at("again"));
    assert_non_null(strstr(last.out, "359212 parameters, f32, weights 7285a3bea22dce19\n"));
    must_be_same_file(at("moe/model.safetensors"), at("again/model.safetensors"));
    must_be_same_file(MOE "/config.json", at("again/config.json"));
    RUN_OK("init", "--config", ADD "/config.json", "--seed", "1", "--out", at("add"));
    assert_non_null(strstr(last.out, "210364 parameters, bf16, weights 087c61fd5e02c2b2\n"));
}

/* Pieces of tensors are drawn by as many threads as one likes. */
static void threads_carry_no_bits(void **state) {
    static const char *const counts[] = {"1", "2", "3"};
    (void)state;
    for (int i = 0; i < 3; i++) {
        char out[8];
        snprintf(out, sizeof out, "by%s", counts[i]);
        RUN_OK("init", "--shape", "jamba-tiny", "--deviation", "0.02", "--threads", counts[i], "--out", at(out));
        assert_non_null(strstr(last.out, "239916 parameters, bf16, weights 3795266dfd35dc5d\n"));
    }
    must_be_same_file(at("by1/model.safetensors"), at("by2/model.safetensors"));
    must_be_same_file(at("by1/model.safetensors"), at("by3/model.safetensors"));
}

/* The configuration of a shape is a file that init takes, too. */
static void shape_is_a_configuration(void **state) {
    (void)state;
    RUN_OK("init", "--config", at("by1/config.json"), "--deviation", "0.02", "--out", at("by-file"));
    must_be_same_file(at("by1/model.safetensors"), at("by-file/model.safetensors"));
    RUN_OK("check", "--model", at("by1"), "--max-tokens", "8");
}

/* Shapes of published models have as many parameters as their publishers say, those of Qwen3.5 as transformers counts
 * the language model: bytes of bf16 behind the header. */
static void shapes_are_as_large_as_published(void **state) {
    static const struct {
        const char *name, *file;
        int64_t parameters;
    } published[] = {{"mamba2-2.7b", "mamba2-2.7b/model.safetensors", 2702599680},
                     {"nemotron-nano-9b-v2", "nemotron-nano-9b-v2/model.safetensors", 8888227328},
                     {"nemotron-3-nano-30b-a3b", "nemotron-3-nano-30b-a3b/model.safetensors", 31577940288},
                     {"granite-4-h-small", "granite-4-h-small/model.safetensors", 32207337984},
                     {"qwen3.5-4b", "qwen3.5-4b/model.safetensors", 4205751296},
                     {"qwen3.5-27b", "qwen3.5-27b/model.safetensors", 26895998464},
                     {"qwen3.5-35b-a3b", "qwen3.5-35b-a3b/model.safetensors", 34660610688},
                     {"qwen3-next-80b-a3b", "qwen3-next-80b-a3b/model.safetensors", 79674391296},
                     {"falcon-mamba-7b", "falcon-mamba-7b/model.safetensors", 7272665088},
                     {"qwen3-30b-a3b", "qwen3-30b-a3b/model.safetensors", 30532122624}};
    (void)state;
    for (size_t i = 0; i < sizeof published / sizeof published[0]; i++) {
        uint64_t header;
        FILE *file;
        RUN_OK("init", "--shape", published[i].name, "--empty", "--out", at(published[i].name));
        file = fopen(at(published[i].file), "rb");
        assert_non_null(file);
        assert_int_equal(fread(&header, sizeof header, 1, file), 1);
        assert_int_equal(fseeko(file, 0, SEEK_END), 0);
        assert_int_equal(ftello(file) - 8 - (int64_t)header, 2 * published[i].parameters);
        fclose(file);
    }
}

static void deviation_is_the_one_asked_for(void **state) {
    ls_checkpoint *checkpoint;
    ls_error err;
    (void)state;
    RUN_OK("init", "--config", MOE "/config.json", "--deviation", "0.02", "--out", at("narrow"));
    assert_ok(ls_checkpoint_open(&checkpoint, at("narrow"), &err), err);
    check_normal(checkpoint, "model.embed_tokens.weight", 0.02);
    check_normal(checkpoint, "model.layers.0.mamba.x_proj.weight", 0.02);
    ls_checkpoint_close(checkpoint);
}

static void it_is_a_model(void **state) {
    (void)state;
    RUN_OK("init", "--config", ADD "/config.json", "--tokenizer", ADD, "--out", at("whole"));
    must_be_same_file(ADD "/tokenizer.json", at("whole/tokenizer.json"));
    RUN_OK("task", "arithmetic", "--n", "3", "--out", at("prompts"));
    RUN_OK("check", "--model", at("whole"), "--prompts", at("prompts"), "--max-tokens", "8");
}

static void refusals_leave_nothing(void **state) {
    (void)state;
    text_write(at("bad.json"), "{\"model_type\":\"jamba\",\"vocab_size\":0}");
    RUN("init", "--config", at("bad.json"), "--out", at("out/model"));
    must_refuse_without_output("bad.json|vocab_size");
    RUN("init", "--config", at("none.json"), "--out", at("out/model"));
    must_refuse_without_output("none.json");
    RUN("init", "--config", ADD "/config.json", "--tokenizer", TINY, "--out", at("out/model"));
    must_refuse_without_output("vocab_size|99|511");
    RUN("init", "--config", ADD "/config.json", "--out", at("moe"));
    must_refuse("exists already");
    RUN("init", "--config", ADD "/config.json", "--seed", "-1", "--out", at("out/model"));
    must_refuse_without_output("--seed|'-1'");
    RUN("init", "--shape", "jamba-4b", "--out", at("out/model"));
    must_refuse_without_output("--shape|'jamba-4b'|jamba-3b-cut");
    RUN("init", "--shape", "jamba-tiny", "--threads", "0", "--out", at("out/model"));
    must_refuse_without_output("--threads|'0'");
    RUN("init", "--config", ADD "/config.json", "--shape", "jamba-tiny", "--out", at("out/model"));
    must_exit(1);
    RUN("init", "--config", ADD "/config.json");
    must_exit(1);
    RUN("init", "--out", at("out/model"));
    must_exit(1);
}

/* The help lists every shape. */
static void help_lists_all_shapes(void **state) {
    (void)state;
    RUN_OK("init", "--help");
    assert_true(ls_shape_count() > 20);
    for (int64_t i = 0; i < ls_shape_count(); i++) {
        char line[128];
        snprintf(line, sizeof line, "\n  %-27s ", ls_shape_at(i)->name);
        if (strstr(last.out, line) == NULL) fail_msg("no line of %s", ls_shape_at(i)->name);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(help_lists_all_shapes),
        cmocka_unit_test(tensors_are_as_promised),
        cmocka_unit_test(tensors_of_mamba_are_as_promised),
        cmocka_unit_test(bits_follow_from_the_seed),
        cmocka_unit_test(threads_carry_no_bits),
        cmocka_unit_test(shape_is_a_configuration),
        cmocka_unit_test(shapes_are_as_large_as_published),
        cmocka_unit_test(deviation_is_the_one_asked_for),
        cmocka_unit_test(it_is_a_model),
        cmocka_unit_test(refusals_leave_nothing),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
