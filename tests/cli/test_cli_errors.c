/* The program on input that is wrong: exit code 2, one line that names file, field and value, and no output left
 * behind. */
#define _GNU_SOURCE
#include "program.h"

#define OUT at("out/result.jsonl")
#define PROMPTS TINY "/prompts.jsonl"
#define DENSE LS_FIXTURES "/jamba-dense"
#define MOE LS_FIXTURES "/jamba-moe"
#define NOBIAS LS_FIXTURES "/jamba-nobias"

/* The option's value must be refused where a run would otherwise succeed. */
#define REFUSE(words, ...)                 \
    do {                                   \
        RUN(__VA_ARGS__);                  \
        must_refuse_without_output(words); \
    } while (0)

/* The same of a command that finds it out under way. */
#define REFUSE_BEGUN(words, ...)           \
    do {                                   \
        RUN(__VA_ARGS__);                  \
        must_tell_device();                \
        must_refuse_without_output(words); \
    } while (0)

/* Copies of checkpoints with one thing wrong. */

static void file_copy(const char *directory, const char *from, const char *name) {
    char path[PATH_BYTES];
    size_t bytes;
    char *data;
    snprintf(path, sizeof path, "%s/%s", from, name);
    data = file_read(path, &bytes);
    snprintf(path, sizeof path, "%s/%s", directory, name);
    file_write(path, data, bytes);
    free(data);
}

/* A directory `bad` with the files of a small checkpoint. */
static const char *copy_checkpoint(const char *from) {
    static const char *const names[] = {"config.json", "generation_config.json", "model.safetensors"};
    const char *bad = at("bad");
    (void)mkdir(bad, 0777);
    for (int i = 0; i < 3; i++) file_copy(bad, from, names[i]);
    if (strcmp(from, TINY) == 0)
        file_copy(bad, from, "tokenizer.json");
    else
        (void)unlink(at("bad/tokenizer.json"));
    return bad;
}

/* A safetensors file taken apart; weights_write puts it together again. */
typedef struct weights {
    char *file;
    size_t file_bytes;
    json_t *header;
    const char *data;
    size_t data_bytes;
} weights;

static void weights_read(weights *w, const char *path) {
    uint64_t length;
    w->file = file_read(path, &w->file_bytes);
    memcpy(&length, w->file, sizeof length);
    w->header = json_loadb(w->file + 8, (size_t)length, 0, NULL);
    assert_non_null(w->header);
    w->data = w->file + 8 + length;
    w->data_bytes = w->file_bytes - 8 - (size_t)length;
}

static void weights_write(weights *w, const char *path) {
    char *text = json_dumps(w->header, JSON_COMPACT);
    const uint64_t length = (strlen(text) + 7) / 8 * 8;
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    fwrite(&length, sizeof length, 1, file);
    fprintf(file, "%-*s", (int)length, text);
    fwrite(w->data, 1, w->data_bytes, file);
    assert_int_equal(fclose(file), 0);
    free(text);
    json_decref(w->header);
    free(w->file);
}

static json_t *tensor(const weights *w, const char *name) {
    json_t *entry = json_object_get(w->header, name);
    if (entry == NULL) fail_msg("the fixture has no tensor %s", name);
    return entry;
}

static size_t offset_of(const json_t *entry, size_t i) {
    return (size_t)json_integer_value(json_array_get(json_object_get(entry, "data_offsets"), i));
}

static void refuse_generate(const char *model, const char *words) {
    text_write(at("ids.jsonl"), "{\"id\":\"a\",\"prompt_ids\":[1,2,3]}\n");
    REFUSE(words, "generate", "--model", model, "--prompts", at("ids.jsonl"), "--max-tokens", "4", "--out", OUT);
}

static void damaged_files_are_refused(void **state) {
    const char *bad = copy_checkpoint(NOBIAS), *path = at("bad/model.safetensors");
    const uint64_t lengths[] = {(uint64_t)1 << 63, UINT64_MAX, 100000001, 90000000};
    static const char *const shown[] = {"9223372036854775808", "18446744073709551615", "100000001", "90000000"};
    size_t bytes;
    char *data = file_read(path, &bytes), words[256];
    static const size_t cuts[] = {0, 7, 8, 100, 5000, 41755};
    (void)state;
    refuse_generate(NOBIAS "-absent", "jamba-nobias-absent|config.json");
    for (size_t i = 0; i < sizeof cuts / sizeof cuts[0]; i++) {
        file_write(path, data, cuts[i]);
        refuse_generate(bad, "bad/model.safetensors");
        RUN("inspect", bad);
        must_refuse("bad/model.safetensors");
    }
    for (int i = 0; i < 4; i++) {
        memcpy(data, &lengths[i], sizeof lengths[i]);
        file_write(path, data, bytes);
        snprintf(words, sizeof words, "bad/model.safetensors|header length|%s", shown[i]);
        refuse_generate(bad, words);
    }
    free(data);
    unlink(path);
    refuse_generate(bad, "bad: |model.safetensors");
}

static void wrong_tensors_are_refused(void **state) {
    static const char *const norm = "model.final_layernorm.weight";
    static const char *const gate = "model.layers.0.feed_forward.gate_proj.weight";
    const char *bad = copy_checkpoint(DENSE), *path = at("bad/model.safetensors"), *key;
    json_t *entry, *last_entry = NULL;
    char last_name[128] = "", words[320];
    weights w;
    (void)state;

    weights_read(&w, path); /* overlap: one tensor's bytes are another's */
    json_object_set(tensor(&w, gate), "data_offsets",
                    json_object_get(tensor(&w, "model.layers.0.feed_forward.up_proj.weight"), "data_offsets"));
    weights_write(&w, path);
    refuse_generate(bad, "bad/model.safetensors|model.layers.0.feed_forward");

    copy_checkpoint(DENSE); /* a product of dimensions past 2^64 */
    weights_read(&w, path);
    json_object_set_new(tensor(&w, norm), "shape", json_pack("[I,I]", (json_int_t)1 << 40, (json_int_t)1 << 40));
    weights_write(&w, path);
    refuse_generate(bad, "bad/model.safetensors|model.final_layernorm.weight|shape");

    copy_checkpoint(DENSE); /* integers where weights belong */
    weights_read(&w, path);
    json_object_set_new(tensor(&w, gate), "dtype", json_string("I32"));
    weights_write(&w, path);
    refuse_generate(bad, "bad/model.safetensors|model.layers.0.feed_forward.gate_proj.weight|I32");

    copy_checkpoint(DENSE); /* another shape of the same size */
    weights_read(&w, path);
    json_object_set_new(tensor(&w, norm), "shape", json_pack("[i,i]", 8, 8));
    weights_write(&w, path);
    refuse_generate(bad, "bad/model.safetensors|model.final_layernorm.weight|[8, 8]|[64]");

    copy_checkpoint(DENSE); /* the last tensor is gone */
    weights_read(&w, path);
    json_object_foreach(w.header, key, entry) {
        if (json_object_get(entry, "data_offsets") == NULL || offset_of(entry, 1) != w.data_bytes) continue;
        snprintf(last_name, sizeof last_name, "%s", key);
        last_entry = entry;
    }
    assert_non_null(last_entry);
    w.data_bytes = offset_of(last_entry, 0);
    json_object_del(w.header, last_name);
    weights_write(&w, path);
    snprintf(words, sizeof words, "/bad|missing|%s", last_name);
    refuse_generate(bad, words);

    copy_checkpoint(DENSE); /* one too many, of four bytes more */
    weights_read(&w, path);
    json_object_set_new(w.header, "model.layers.0.surprise",
                        json_pack("{s:s,s:[i],s:[I,I]}", "dtype", "F32", "shape", 1, "data_offsets",
                                  (json_int_t)w.data_bytes, (json_int_t)w.data_bytes + 4));
    w.data -= 4; /* what the bytes are does not matter */
    w.data_bytes += 4;
    weights_write(&w, path);
    refuse_generate(bad, "bad/model.safetensors|model.layers.0.surprise");
}

/* The record of a request that came to nothing: as far as it came, which is without a token here. */
static void check_error_record(int64_t i) {
    json_t *record = line_read(OUT, i), *meta = json_object_get(record, "meta");
    assert_string_equal(json_string_value(json_object_get(record, "finish")), "error");
    assert_int_equal(json_array_size(json_object_get(record, "completion_ids")), 0);
    assert_int_equal(json_array_size(json_object_get(record, "logprobs")), 0);
    assert_non_null(strstr(json_string_value(json_object_get(meta, "error")), "NaN"));
    json_decref(record);
}

static void not_a_number_is_an_error_not_a_token(void **state) {
    static const char *const names[] = {"model.final_layernorm.weight", "model.layers.2.input_layernorm.weight",
                                        "model.embed_tokens.weight"};
    const uint32_t nan_bits = 0x7fc00000;
    (void)state;
    for (int i = 0; i < 3; i++) {
        const bool one_row = i == 2; /* of an embedding that is not the head: that of token 2 */
        const char *bad = copy_checkpoint(one_row ? MOE : DENSE), *path = at("bad/model.safetensors");
        weights w;
        weights_read(&w, path);
        memcpy(w.file + (w.data - w.file) + offset_of(tensor(&w, names[i]), 0) + (one_row ? 256 * 2 : 0), &nan_bits, 4);
        weights_write(&w, path);
        text_write(at("ids.jsonl"), "{\"id\":\"a\",\"prompt_ids\":[1,2,3]}\n{\"id\":\"b\",\"prompt_ids\":[4]}\n");
        RUN("generate", "--model", bad, "--prompts", at("ids.jsonl"), "--max-tokens", "4", "--out", OUT);
        if (one_row) { /* the other request is none the worse */
            json_t *record;
            must_tell_device();
            must_refuse("1 of 2 requests|a/0|NaN|prompt 0, sample 0|position 3");
            record = line_read(OUT, 1);
            assert_string_equal(json_string_value(json_object_get(record, "finish")), "length");
            assert_int_equal(json_array_size(json_object_get(record, "completion_ids")), 4);
            assert_null(json_object_get(json_object_get(record, "meta"), "error"));
            json_decref(record);
        } else {
            must_tell_device();
            must_refuse("2 of 2 requests|a/0|NaN|prompt 0, sample 0|position 3");
            check_error_record(1);
        }
        check_error_record(0);
        assert_int_equal(unlink(OUT), 0);
        RUN("check", "--model", bad, "--prompts", at("ids.jsonl"), "--max-tokens", "4");
        must_tell_device();
        must_refuse("requests|a/0|NaN|prompt 0, sample 0|position 3");
    }
}

static void refuse_config(const char *field, json_t *value, const char *words) {
    const char *bad = copy_checkpoint(NOBIAS);
    json_t *config = json_load_file(at("bad/config.json"), 0, NULL);
    assert_non_null(config);
    json_object_set_new(config, field, value);
    assert_int_equal(json_dump_file(config, at("bad/config.json"), 0), 0);
    json_decref(config);
    refuse_generate(bad, words);
    RUN("check", "--model", bad);
    must_refuse(words);
    RUN("inspect", bad);
    must_refuse(words);
}

static void other_models_are_refused(void **state) {
    const char *bad;
    (void)state;
    refuse_config("architectures", json_pack("[s]", "LlamaForCausalLM"),
                  "bad/config.json|architectures|LlamaForCausalLM");
    refuse_config("model_type", json_string("mamba3"), "bad/config.json|model_type|mamba3");
    refuse_config("hidden_act", json_string("gelu"), "bad/config.json|hidden_act|gelu|silu");
    refuse_config("sliding_window", json_integer(4096), "bad/config.json|sliding_window|4096");
    refuse_config("quantization_config", json_pack("{s:s}", "quant_method", "experts_int8"),
                  "bad/config.json|quantization_config|object of 1");
    refuse_config("num_hidden_layers", json_integer(4), "/bad|missing|model.layers.3");
    refuse_config("num_hidden_layers", json_integer(2), "bad/model.safetensors|model.layers.2");
    refuse_config("hidden_size", json_integer(40), "bad/model.safetensors|[64, 20]|[64, 40]");
    refuse_config("vocab_size", json_integer((json_int_t)1 << 40), "bad/config.json|vocab_size|1099511627776");
    refuse_config("rms_norm_eps", json_string("small"), "bad/config.json|rms_norm_eps|small");
    bad = copy_checkpoint(NOBIAS);
    text_write(at("bad/config.json"), "{\"model_type\": \"jamba\",");
    refuse_generate(bad, "bad/config.json");
}

static void unknown_tokenizers_are_refused(void **state) {
    const char *bad = copy_checkpoint(TINY);
    json_t *tokenizer = json_load_file(at("bad/tokenizer.json"), 0, NULL);
    (void)state;
    assert_non_null(tokenizer);
    json_object_set_new(tokenizer, "normalizer", json_pack("{s:s}", "type", "Shouting"));
    assert_int_equal(json_dump_file(tokenizer, at("bad/tokenizer.json"), 0), 0);
    json_decref(tokenizer);
    REFUSE("bad/tokenizer.json|normalizer|Shouting", "generate", "--model", bad, "--prompts", PROMPTS, "--out", OUT);
    RUN("tokenize", "--model", bad);
    must_refuse("bad/tokenizer.json|normalizer|Shouting");
    text_write(at("bad/tokenizer.json"), "{}");
    REFUSE("bad/tokenizer.json|model", "generate", "--model", bad, "--prompts", PROMPTS, "--out", OUT);
    unlink(at("bad/tokenizer.json"));
    REFUSE("bad/tokenizer.json", "generate", "--model", bad, "--prompts", PROMPTS, "--out", OUT);
}

static void refuse_prompts(const char *lines, const char *words) {
    text_write(at("prompts.jsonl"), lines);
    REFUSE(words, "generate", "--model", TINY, "--prompts", at("prompts.jsonl"), "--out", OUT);
    RUN("check", "--model", TINY, "--prompts", at("prompts.jsonl"));
    must_refuse(words);
}

static void refuse_sequences(const char *option, const char *lines, const char *words) {
    text_write(at("sequences.jsonl"), lines);
    REFUSE(words, "score", "--model", TINY, option, at("sequences.jsonl"), "--out", OUT);
}

static void wrong_prompts_are_refused(void **state) {
    static char text[40000];
    size_t used = 0;
    (void)state;
    refuse_prompts("{\"id\":\"a\",\"prompt_ids\":[1,512]}\n", "prompts.jsonl|line 1|prompt_ids|512|511");
    refuse_prompts("{\"id\":\"a\",\"prompt_ids\":[1,-1]}\n", "prompts.jsonl|line 1|prompt_ids|-1");
    refuse_prompts("{\"id\":\"a\",\"prompt_ids\":[1,99999999999]}\n", "prompts.jsonl|line 1|prompt_ids|99999999999");
    refuse_prompts("{\"id\":\"a\",\"prompt_ids\":[1,2.5]}\n", "prompts.jsonl|line 1|prompt_ids|2.5");
    refuse_prompts("{\"id\":\"a\",\"prompt_ids\":[]}\n", "prompts.jsonl|line 1|prompt_ids|empty");
    refuse_prompts("{\"id\":\"a\",\"prompt\":\"x\"}\n{\"id\":\"b\",\"prompt\":\"\"}\n",
                   "prompts.jsonl|line 2|prompt|empty");
    refuse_prompts("{\"id\":\"a\"}\n", "prompts.jsonl|line 1|prompt");
    refuse_prompts("{\"prompt\":\"x\"}\n", "prompts.jsonl|line 1|id");
    refuse_prompts("{\"id\":\"a\",\"prompt\":7}\n", "prompts.jsonl|line 1|prompt|7");
    refuse_prompts("", "prompts.jsonl|no record");
    refuse_prompts(
        "{\"id\":\"a\",\"prompt\":\"x\"}\n{\"id\":\"b\",\"prompt\":\"x\"}\n{\"id\":\"a\",\"prompt\":\"x\"}\n",
        "prompts.jsonl|line 3|id|'a'|line 1");
    refuse_prompts("{\"id\":\"a\\nb\",\"prompt\":\"x\"}\n{\"id\":\"a\\nb\",\"prompt\":\"x\"}\n", "line 2|id");
    for (int i = 1; i <= 36; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "{\"id\":\"p%d\",\"prompt\":\"x\"}\n", i);
    snprintf(text + used, sizeof text - used, "{\"id\":\"p37\",\"prompt\":\"x\"\n{\"id\":\"p38\",\"prompt\":\"x\"}\n");
    refuse_prompts(text, "prompts.jsonl|line 37");

    used = (size_t)snprintf(text, sizeof text, "{\"id\":\"long\",\"prompt_ids\":[1");
    for (int i = 1; i < 4096; i++) used += (size_t)snprintf(text + used, sizeof text - used, ",5");
    snprintf(text + used, sizeof text - used, "]}\n");
    refuse_prompts(text, "prompts.jsonl|line 1|prompt|4096|--max-length");
    text_write(at("prompts.jsonl"), "{\"id\":\"a\",\"prompt_ids\":[1,2,3,4]}\n");
    REFUSE("prompts.jsonl|line 1|4 tokens|limit of 4|--max-length", "generate", "--model", TINY, "--prompts",
           at("prompts.jsonl"), "--max-length", "4", "--out", OUT);
    RUN_OK("generate", "--model", TINY, "--prompts", at("prompts.jsonl"), "--max-length", "5"); /* one token of room */
    REFUSE("absent.jsonl", "generate", "--model", TINY, "--prompts", at("absent.jsonl"), "--out", OUT);
}

static void wrong_sequences_are_refused(void **state) {
    (void)state;
    refuse_sequences("--tokens", "{\"id\":\"a\",\"token_ids\":[1,2,512]}\n",
                     "sequences.jsonl|line 1|token_ids|512|511");
    refuse_sequences("--tokens", "{\"id\":\"a\",\"token_ids\":[]}\n", "sequences.jsonl|line 1|token_ids|empty");
    refuse_sequences("--tokens", "{\"id\":\"a\",\"token_ids\":\"1 2\"}\n", "sequences.jsonl|line 1|token_ids");
    refuse_sequences("--rollouts", "{\"id\":\"a\",\"prompt_ids\":[1],\"completion_ids\":[2,600]}\n",
                     "sequences.jsonl|line 1|completion_ids|600");
    refuse_sequences("--rollouts", "{\"id\":\"a\",\"completion_ids\":[2]}\n", "sequences.jsonl|line 1|prompt_ids");
    refuse_sequences("--rollouts",
                     "{\"id\":\"a\",\"prompt_ids\":[1],\"completion_ids\":[2],\"meta\":{\"logprob_of\":\"cooked\"}}\n",
                     "sequences.jsonl|line 1|logprob_of|cooked");
    refuse_sequences("--rollouts",
                     "{\"id\":\"a\",\"prompt_ids\":[1],\"completion_ids\":[2]}\n\n{\"id\":\"a\",\"prompt_ids\":[1],"
                     "\"completion_ids\":[2]}\n",
                     "sequences.jsonl|line 3|id|'a'");
    refuse_sequences("--rollouts",
                     "{\"id\":\"a\",\"prompt_ids\":[1],\"completion_ids\":[2,3],\"meta\":{\"weights\":[1]}}\n",
                     "sequences.jsonl|line 1|weights|1 versions|2 tokens");
    refuse_sequences("--rollouts",
                     "{\"id\":\"a\",\"prompt_ids\":[1],\"completion_ids\":[2,3],\"meta\":{\"weights\":[1,-1]}}\n",
                     "sequences.jsonl|line 1|weights|-1");
    text_write(at("sequences.jsonl"),
               "{\"id\":\"a\",\"prompt_ids\":[1],\"completion_ids\":[2,3],\"meta\":{\"weights\":[1,4]}}\n");
    REFUSE("sequences.jsonl|line 1|version 4|token 1|--weights", "score", "--model", TINY, "--rollouts",
           at("sequences.jsonl"), "--weights", "1=" TINY, "--out", OUT);
    REFUSE("--weights|'1:x'|N=DIR", "score", "--model", TINY, "--rollouts", at("sequences.jsonl"), "--weights", "1:x",
           "--out", OUT);
    REFUSE("--weights|version 1 twice", "score", "--model", TINY, "--rollouts", at("sequences.jsonl"), "--weights",
           "1=" TINY, "--weights", "1=" TINY, "--out", OUT);
    REFUSE_BEGUN("--weights|vocabulary of", "score", "--model", TINY, "--rollouts", at("sequences.jsonl"), "--weights",
                 "1=" NOBIAS, "--weights", "4=" TINY, "--out", OUT);
    text_write(at("sequences.jsonl"), "{\"id\":\"a\",\"token_ids\":[1,2,3]}\n");
    REFUSE("sequences.jsonl|line 1|3 tokens|limit of 2|--max-length", "score", "--model", TINY, "--tokens",
           at("sequences.jsonl"), "--max-length", "2", "--out", OUT);
    REFUSE("sequences.jsonl|line 1|logprobs", "compare", at("sequences.jsonl"), at("sequences.jsonl"), "--out", OUT);
    REFUSE("absent.jsonl", "compare", at("absent.jsonl"), at("sequences.jsonl"), "--out", OUT);
}

static void values_out_of_range_are_refused(void **state) {
    static const char *const bad[][3] = {
        {"--dtype", "f64", "f64"},
        {"--isa", "foo", "foo"},
        {"--samples", "0", "'0'"},
        {"--samples", "-3", "-3"},
        {"--temperature", "-1", "-1"},
        {"--temperature", "nan", "nan"},
        {"--temperature", "1e-38", "1e-38"},
        {"--temperature", "1e-300", "1e-300"},
        {"--top-p", "1e-300", "too small for float32"},
        {"--temperature", "warm", "warm"},
        {"--top-p", "0", "0"},
        {"--top-p", "1.5", "1.5"},
        {"--min-p", "-0.1", "-0.1"},
        {"--top-k", "-1", "-1"},
        {"--max-tokens", "0", "'0'"},
        {"--max-tokens", "9999999999999999999999", "9999999999999999999999"},
        {"--batch", "0", "'0'"},
        {"--batch", "1025", "1025"},
        {"--chunk", "-1", "-1"},
        {"--chunk", "half", "half"},
        {"--page", "3", "3"},
        {"--page", "128", "128"},
        {"--threads", "0", "'0'"},
        {"--seed", "-1", "-1"},
        {"--seed", "18446744073709551616", "18446744073709551616"},
        {"--logprobs", "none", "none"},
        {"--max-length", "1", "'1'"},
        {"--samples", "4x", "4x"},
        {"--memory", "12Q", "12Q"},
        {"--memory-fraction", "0", "'0'"},
        {"--pool-share", "0", "'0'"},
        {"--verify", "2", "'2'"},
        {"--policy", "lifo", "lifo"},
        {"--prefix", "hot", "hot"},
        {"--preempt-by", "luck", "luck"},
        {"--fork", "maybe", "maybe"},
        {"--ablation", "all", "all"},
        {"--slot-words", "17", "17"},
        {"--stop", "", "empty"},
        {"--stop", "\xC3", "UTF-8"},
    };
    /* Good values with which this model and these prompts cannot run. */
    static const char *const impossible[][3] = {
        {"--memory", "4K", "--memory: |bytes are needed|4096"},
        {"--memory-fraction", "1e-9", "--memory-fraction: the engine needs |head |rows of a forward "},
        {"--prefix-memory", "1K", "--prefix-memory: 1024 bytes|one snapshot"},
        {"--slot-words", "16", "--slot-words: "},
        {"--tick-tokens", "3", "--tick-tokens: 3 rows"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char words[128];
        snprintf(words, sizeof words, "%s|%s", bad[i][0], bad[i][2]);
        REFUSE(words, "generate", "--model", TINY, "--prompts", PROMPTS, "--out", OUT, bad[i][0], bad[i][1]);
        RUN("check", "--model", TINY, bad[i][0], bad[i][1]);
        must_refuse(words);
    }
    for (size_t i = 0; i < sizeof impossible / sizeof impossible[0]; i++)
        REFUSE(impossible[i][2], "generate", "--model", TINY, "--prompts", PROMPTS, "--out", OUT, impossible[i][0],
               impossible[i][1]);
    REFUSE_BEGUN("sample 0|KV pages, the pool has 1", "generate", "--model", TINY, "--prompts", PROMPTS, "--out", OUT,
                 "--pages", "1");
    RUN("inspect", "--dtype", "f64", TINY);
    must_refuse("--dtype|f64");
    text_write(at("one.jsonl"), "{\"prompt_ids\":[1]}\n");
    REFUSE("--repetition-penalty|1e-45", "generate", "--model", TINY, "--prompts", at("one.jsonl"),
           "--repetition-penalty", "1e-45", "--out", OUT);
    REFUSE("--presence-penalty|too small for float32", "generate", "--model", TINY, "--prompts", at("one.jsonl"),
           "--presence-penalty", "1e-300", "--out", OUT);
}

static void wrong_lines_to_the_tokenizer_are_refused(void **state) {
    (void)state;
    text_write(at("lines"), "{\"text\":\"a\"}\n{\"text\":5}\n");
    RUN_IN(at("lines"), "tokenize", "--model", TINY, "--out", OUT);
    must_refuse_without_output("standard input|line 2|text");
    text_write(at("lines"), "{\"ids\":[1,512]}\n");
    RUN_IN(at("lines"), "detokenize", "--model", TINY, "--out", OUT);
    must_refuse_without_output("standard input|line 1|512");
    text_write(at("lines"), "not JSON\n");
    RUN_IN(at("lines"), "detokenize", "--model", TINY, "--out", OUT);
    must_refuse_without_output("standard input|line 1");
}

static void outputs_that_cannot_be_written_are_errors(void **state) {
    (void)state;
    REFUSE("absent/result.jsonl", "generate", "--model", TINY, "--prompts", PROMPTS, "--out",
           at("absent/result.jsonl"));
    REFUSE("/out", "generate", "--model", TINY, "--prompts", PROMPTS, "--max-tokens", "2", "--out", at("out"));
    REFUSE_BEGUN("/dev/full", "generate", "--model", TINY, "--prompts", PROMPTS, "--max-tokens", "2", "--out",
                 "/dev/full");
    text_write(at("sequences.jsonl"), "{\"id\":\"a\",\"token_ids\":[1,2,3]}\n");
    REFUSE_BEGUN("/dev/full", "score", "--model", TINY, "--tokens", at("sequences.jsonl"), "--out", "/dev/full");
}

/* Standard output that is full, gone or closed. The commands share one path out, but each has its own way to it. */
static void refuse_stream(int fd) {
    enum { COMPUTE = 4 }; /* the first ones */
    const char *const commands[][8] = {
        {"generate", "--model", TINY, "--prompts", PROMPTS, "--max-tokens", "2"},
        {"score", "--model", TINY, "--tokens", at("sequences.jsonl")},
        {"check", "--model", NOBIAS, "--max-tokens", "2"},
        {"check", "--model", NOBIAS, "--max-tokens", "2", "--json"},
        {"compare", at("scores.jsonl"), at("scores.jsonl")},
        {"inspect", TINY},
        {"inspect", "--json", TINY},
        {"--help"},
        {"--version"},
    };
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        run_args(NULL, fd, commands[i]);
        if (last.code != 2) fail_msg("%s: exit code %d, expected 2: %.2000s", commands[i][0], last.code, last.err);
        if (i < COMPUTE) must_tell_device();
        must_refuse("standard output|write");
    }
    run_args(at("lines"), fd, (const char *const[]){"tokenize", "--model", TINY, NULL});
    must_refuse("standard output|write");
}

static void lost_output_is_an_error(void **state) {
    int ends[2], full = open("/dev/full", O_WRONLY | O_CLOEXEC), unwritable = open("/dev/null", O_RDONLY | O_CLOEXEC);
    (void)state;
    assert_true(full >= 0 && unwritable >= 0);
    text_write(at("sequences.jsonl"), "{\"id\":\"a\",\"token_ids\":[1,2,3]}\n");
    text_write(at("lines"), "{\"text\":\"a\"}\n");
    RUN_OK("score", "--model", TINY, "--tokens", at("sequences.jsonl"), "--out", at("scores.jsonl"));
    refuse_stream(full);
    refuse_stream(unwritable);
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    close(ends[0]);
    refuse_stream(ends[1]);
    close(ends[1]);
    close(full);
    close(unwritable);
}

static void wrong_usage_exits_with_one(void **state) {
    (void)state;
    RUN("generate", "--modle", TINY);
    must_exit(1);
    assert_non_null(strstr(last.err, "modle"));
    RUN("generate", "--model", TINY, "stray");
    must_exit(1);
    assert_non_null(strstr(last.err, "stray"));
    RUN("generate", "--model");
    must_exit(1);
    RUN("score", "--model", TINY, "--samples", "2"); /* an option of another command */
    must_exit(1);
    RUN("compare", PROMPTS);
    must_exit(1);
    RUN("generate", "--prompts", PROMPTS, "--out", OUT);
    must_exit(1);
    assert_non_null(strstr(last.err, "--model"));
    RUN("generate", "--model", TINY, "--out", OUT);
    must_exit(1);
    assert_non_null(strstr(last.err, "--prompts"));
    RUN("score", "--model", TINY, "--out", OUT);
    must_exit(1);
    assert_non_null(strstr(last.err, "--rollouts"));
    RUN("inspect");
    must_exit(1);
    assert_int_equal(count_entries(at("out")), 0);
    RUN("tokenize");
    must_exit(1);
    RUN("ponder");
    must_exit(1);
    assert_non_null(strstr(last.err, "ponder"));
    run_args(NULL, -1, (const char *const[]){NULL});
    must_exit(1);
    assert_non_null(strstr(last.err, "Usage"));
    assert_string_equal(last.out, "");
}

/* An earlier result stays as it was until the new one is complete. */
static void failure_leaves_an_earlier_result(void **state) {
    size_t bytes;
    char *kept;
    (void)state;
    text_write(at("kept.jsonl"), "precious\n");
    text_write(at("prompts.jsonl"), "{\"id\":\"a\",\"prompt_ids\":[1,512]}\n");
    RUN("generate", "--model", TINY, "--prompts", at("prompts.jsonl"), "--out", at("kept.jsonl"));
    must_refuse("512");
    kept = file_read(at("kept.jsonl"), &bytes);
    assert_string_equal(kept, "precious\n");
    free(kept);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(damaged_files_are_refused),
        cmocka_unit_test(wrong_tensors_are_refused),
        cmocka_unit_test(not_a_number_is_an_error_not_a_token),
        cmocka_unit_test(other_models_are_refused),
        cmocka_unit_test(unknown_tokenizers_are_refused),
        cmocka_unit_test(wrong_prompts_are_refused),
        cmocka_unit_test(wrong_sequences_are_refused),
        cmocka_unit_test(values_out_of_range_are_refused),
        cmocka_unit_test(wrong_lines_to_the_tokenizer_are_refused),
        cmocka_unit_test(outputs_that_cannot_be_written_are_errors),
        cmocka_unit_test(lost_output_is_an_error),
        cmocka_unit_test(wrong_usage_exits_with_one),
        cmocka_unit_test(failure_leaves_an_earlier_result),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
