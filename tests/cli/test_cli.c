/* The program from the outside, on input that is right: what each command writes, and which exit code it gives. */
#define _GNU_SOURCE
#include "op/backend.h"
#include "program.h"

#define GREEDY LS_FIXTURES "/tiny-text-expected/greedy.jsonl"
#define PROMPTS TINY "/prompts.jsonl"

/* The prompts of the expected completions, one form of each: "prompt" or "prompt_ids". */
static void write_greedy_prompts(const char *path, const char *form) {
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    for (int64_t i = 0; i < count_lines(GREEDY); i++) {
        json_t *line = line_read(GREEDY, i);
        json_t *prompt = json_pack("{s:O,s:O}", "id", member(line, "id"), form, member(line, form));
        json_dumpf(prompt, file, 0);
        fputc('\n', file);
        json_decref(prompt);
        json_decref(line);
    }
    assert_int_equal(fclose(file), 0);
}

static void greedy_is_what_transformers_wrote(void **state) {
    static const char *const forms[] = {"prompt", "prompt_ids"};
    (void)state;
    for (int f = 0; f < 2; f++) {
        write_greedy_prompts(at("greedy-prompts.jsonl"), forms[f]);
        RUN_OK("generate", "--model", TINY, "--prompts", at("greedy-prompts.jsonl"), "--temperature", "0", "--out",
               at("greedy.jsonl"));
        assert_int_equal(count_lines(at("greedy.jsonl")), count_lines(GREEDY));
        for (int64_t i = 0; i < count_lines(GREEDY); i++) {
            json_t *want = line_read(GREEDY, i), *got = line_read(at("greedy.jsonl"), i);
            assert_true(json_equal(member(want, "prompt_ids"), member(got, "prompt_ids")));
            assert_true(json_equal(member(want, "completion_ids"), member(got, "completion_ids")));
            assert_string_equal(text_member(got, "finish"), "stop");
            json_decref(want);
            json_decref(got);
        }
    }
}

/* logprobs and logprob_bits say the same float32, one entry a token, and a log-probability it is. */
static void check_logprobs(const json_t *record, int64_t n) {
    const json_t *values = member(record, "logprobs"), *bits = member(record, "logprob_bits");
    assert_int_equal(json_array_size(values), n);
    assert_int_equal(json_array_size(bits), n);
    for (int64_t i = 0; i < n; i++) {
        const char *digits = json_string_value(json_array_get(bits, (size_t)i));
        const float value = (float)json_number_value(json_array_get(values, (size_t)i));
        uint32_t value_bits;
        memcpy(&value_bits, &value, sizeof value_bits);
        assert_non_null(digits);
        assert_int_equal(strspn(digits, "0123456789abcdef"), 8);
        assert_int_equal(strlen(digits), 8);
        assert_int_equal(strtoul(digits, NULL, 16), value_bits);
        assert_true(value <= 0.0f && value > -1000.0f);
    }
}

static void records_are_in_the_format(void **state) {
    const char *finishes[] = {"stop", "length"};
    bool seen[2] = {false, false};
    (void)state;
    RUN_OK("generate", "--model", TINY, "--prompts", PROMPTS, "--samples", "3", "--max-tokens", "12", "--seed",
           "18446744073709551615", "--top-k", "40", "--temperature", "0.75", "--out", at("three.jsonl"));
    assert_int_equal(count_lines(at("three.jsonl")), 3 * count_lines(PROMPTS));
    for (int64_t i = 0; i < count_lines(at("three.jsonl")); i++) {
        json_t *prompt = line_read(PROMPTS, i / 3), *record = line_read(at("three.jsonl"), i);
        const json_t *meta = member(record, "meta");
        const int64_t n = (int64_t)json_array_size(member(record, "completion_ids"));
        char id[64];
        snprintf(id, sizeof id, "%s/%lld", text_member(prompt, "id"), (long long)(i % 3));
        assert_string_equal(text_member(record, "id"), id);
        assert_int_equal(int_member(record, "sample"), i % 3);
        assert_string_equal(text_member(record, "seed"), "18446744073709551615");
        assert_true(json_array_size(member(record, "prompt_ids")) > 1 && n >= 1 && n <= 12);
        text_member(record, "text");
        check_logprobs(record, n);
        for (int f = 0; f < 2; f++) seen[f] |= strcmp(text_member(record, "finish"), finishes[f]) == 0;
        if (strcmp(text_member(record, "finish"), "length") == 0) assert_int_equal(n, 12);
        assert_string_equal(text_member(meta, "logprob_of"), "raw");
        assert_true(json_real_value(member(meta, "temperature")) == 0.75);
        assert_int_equal(int_member(meta, "top_k"), 40);
        assert_string_equal(text_member(meta, "digest"), "exact/2/f32");
        assert_int_equal(int_member(meta, "weights"), 0);
        assert_true(int_member(meta, "slot") >= 0 && int_member(meta, "cache_hit") >= 0);
        assert_int_equal(int_member(meta, "preemptions"), 0);
        assert_int_equal(int_member(member(meta, "levers"), "samples"), 3);
        json_decref(prompt);
        json_decref(record);
    }
    assert_true(seen[0] && seen[1]);
}

/* The first of the likeliest tokens is what greedy draws, with its bits; the list descends. */
static void likeliest_tokens_are_recorded(void **state) {
    (void)state;
    RUN_OK("generate", "--model", TINY, "--prompts", PROMPTS, "--max-tokens", "5", "--temperature", "0",
           "--top-logprobs", "4", "--out", at("top.jsonl"));
    for (int64_t i = 0; i < count_lines(at("top.jsonl")); i++) {
        json_t *record = line_read(at("top.jsonl"), i);
        const size_t n = json_array_size(member(record, "completion_ids"));
        for (size_t t = 0; t < n; t++) {
            const json_t *ids = json_array_get(member(record, "top_ids"), t);
            const json_t *bits = json_array_get(member(record, "top_logprob_bits"), t);
            const json_t *values = json_array_get(member(record, "top_logprobs"), t);
            assert_int_equal(json_array_size(ids), 4);
            assert_true(json_equal(json_array_get(ids, 0), json_array_get(member(record, "completion_ids"), t)));
            assert_true(json_equal(json_array_get(bits, 0), json_array_get(member(record, "logprob_bits"), t)));
            for (size_t k = 1; k < 4; k++)
                assert_true(json_number_value(json_array_get(values, k)) <=
                            json_number_value(json_array_get(values, k - 1)));
        }
        json_decref(record);
    }
}

/* Penalties change draws and are told; log-probabilities stay those that scoring gives. */
static void penalties_leave_log_probabilities(void **state) {
    (void)state;
    RUN_OK("generate", "--model", TINY, "--prompts", PROMPTS, "--samples", "2", "--max-tokens", "20",
           "--presence-penalty", "1.5", "--frequency-penalty", "-0.25", "--repetition-penalty", "1.25", "--out",
           at("penal.jsonl"));
    RUN_OK("generate", "--model", TINY, "--prompts", PROMPTS, "--samples", "2", "--max-tokens", "20",
           "--presence-penalty", "1.5", "--frequency-penalty", "-0.25", "--repetition-penalty", "1.25", "--batch", "3",
           "--chunk", "2", "--preempt-every", "2", "--isa", "generic", "--out", at("again.jsonl"));
    RUN_OK("score", "--model", TINY, "--rollouts", at("penal.jsonl"), "--out", at("scored.jsonl"));
    RUN_OK("compare", at("penal.jsonl"), at("scored.jsonl"));
    for (int64_t i = 0; i < count_lines(at("penal.jsonl")); i++) {
        json_t *record = line_read(at("penal.jsonl"), i), *again = line_read(at("again.jsonl"), i);
        assert_true(json_real_value(member(member(record, "meta"), "repetition_penalty")) == 1.25);
        assert_true(json_equal(member(record, "logprob_bits"), member(again, "logprob_bits")));
        assert_true(json_equal(member(record, "completion_ids"), member(again, "completion_ids")));
        json_decref(record);
        json_decref(again);
    }
}

/* The same results from every setting that may not matter, on text and on token ids, in both activation types. */
static void settings_change_no_result(void **state) {
    static const char *const variants[][13] = {
        {"--batch", "1", "--chunk", "1", "--threads", "1", "--page", "1"},
        {"--batch", "3", "--chunk", "5", "--threads", "2", "--page", "64", "--shuffle", "9"},
        {"--batch", "24", "--chunk", "whole", "--threads", "1", "--shuffle", "10"},
        {"--batch", "7", "--chunk", "2", "--threads", "2", "--isa", "generic"},
        {"--batch", "5", "--chunk", "3", "--isa", "avx2"},
        {"--batch", "5", "--chunk", "3", "--isa", "avx512"},
    };
    static const char *const types[] = {"f32", "bf16"};
    const char *ids = at("ids.jsonl");
    (void)state;
    text_write(ids,
               "{\"id\":\"a\",\"prompt_ids\":[1,262,13,25,31]}\n\n{\"id\":\"b\",\"prompt_ids\":[7]}\n"
               "{\"id\":\"c\",\"prompt\":\"Once upon\",\"prompt_ids\":null}\n");
    for (int t = 0; t < 2; t++) {
        const char *const files[] = {ids, PROMPTS};
        for (int f = 0; f < 2; f++) {
            RUN_OK("generate", "--model", TINY, "--prompts", files[f], "--samples", "2", "--max-tokens", "9", "--dtype",
                   types[t], "--out", at("first.jsonl"));
            for (size_t v = 0; v < sizeof variants / sizeof variants[0]; v++) {
                const char *args[32] = {
                    "generate",     "--model", TINY,      "--prompts", files[f], "--samples",      "2",
                    "--max-tokens", "9",       "--dtype", types[t],    "--out",  at("other.jsonl")};
                ls_isa isa = LS_ISA_GENERIC;
                for (int i = 0; variants[v][i] != NULL; i++) {
                    args[13 + i] = variants[v][i];
                    if (strcmp(variants[v][i], "--isa") == 0) assert_true(ls_isa_parse(&isa, variants[v][i + 1]));
                }
                run_args(NULL, -1, args);
                if (!ls_isa_available(isa)) {
                    must_refuse(ls_isa_name(isa));
                    continue;
                }
                must_exit(0);
                must_be_same_results(at("first.jsonl"), at("other.jsonl"));
            }
        }
    }
    RUN_OK("generate", "--model", TINY, "--prompts", PROMPTS, "--samples", "2", "--max-tokens", "9", "--seed", "1",
           "--dtype", "bf16", "--out", at("other.jsonl"));
    RUN("compare", at("first.jsonl"), at("other.jsonl")); /* another seed draws other tokens */
    assert_true(last.code == 2 || last.code == 3);
}

static void standard_streams_serve_as_files(void **state) {
    (void)state;
    RUN_OK("generate", "--model", TINY, "--prompts", PROMPTS, "--max-tokens", "4", "--out", at("named.jsonl"));
    RUN_IN(PROMPTS, "generate", "--model", TINY, "--prompts", "-", "--max-tokens", "4");
    must_exit(0);
    text_write(at("streamed.jsonl"), last.out);
    must_be_same_file(at("named.jsonl"), at("streamed.jsonl"));
}

/* Flips the last bit of the first log-probability of the n-th line, in both spellings where value is given. */
static void flip_a_bit(const char *from, const char *to, int64_t line) {
    size_t bytes;
    char *text = file_read(from, &bytes), *digit = text;
    for (; line > 0; line--) digit = strchr(digit, '\n') + 1;
    digit = strstr(digit, "\"logprob_bits\":[\"");
    assert_non_null(digit);
    digit += strlen("\"logprob_bits\":[\"") + 7;
    *digit = *digit == '0' ? '1' : *digit == 'a' ? 'b' : *digit == '9' ? '8' : (char)(*digit ^ 1);
    file_write(to, text, bytes);
    free(text);
}

/* A score carries the numerics it was made with, and equal bits under another digest are not called equal. */
static void numerics_are_named_and_compared(void **state) {
    size_t bytes;
    char *text, *digest;
    (void)state;
    RUN_OK("generate", "--model", TINY, "--prompts", PROMPTS, "--max-tokens", "4", "--out", at("a.jsonl"));
    RUN_OK("score", "--model", TINY, "--rollouts", at("a.jsonl"), "--dtype", "bf16", "--out", at("b.jsonl"));
    assert_non_null(
        strstr(last.err, "have log-probabilities of the numerics exact/2/f32; these here are of exact/2/bf16"));
    text = file_read(at("b.jsonl"), &bytes);
    assert_null(strstr(text, "exact/2/f32"));
    assert_non_null(strstr(text, "exact/2/bf16"));
    free(text);
    text = file_read(at("a.jsonl"), &bytes);
    digest = strstr(text, "exact/2/f32");
    assert_non_null(digest);
    digest[strlen("exact/")] = '0';
    file_write(at("c.jsonl"), text, bytes);
    free(text);
    RUN("compare", at("a.jsonl"), at("c.jsonl"));
    must_exit(3);
    RUN_OK("score", "--model", TINY, "--rollouts", at("a.jsonl"), "--out", at("b.jsonl"));
    assert_null(strstr(last.err, "note:"));
}

/* Ids that are there twice, in records and in a batch of verl; a mark of the order of bytes. */
static void what_has_no_ids_of_its_own_is_matched_by_order(void **state) {
    static const char records[] =
        "\xef\xbb\xbf{\"id\":\"x\",\"completion_ids\":[1],\"logprobs\":[-1]}\n"
        "{\"id\":\"x\",\"completion_ids\":[2],\"logprobs\":[-2]}\n";
    static const char batch[] =
        "{\"uid\":\"g\",\"responses\":[1],\"response_mask\":[1],\"rollout_log_probs\":[-1],\"old_log_probs\":[-1]}\n"
        "{\"uid\":\"g\",\"responses\":[2],\"response_mask\":[1],\"rollout_log_probs\":[-2],\"old_log_probs\":[-2]}\n";
    (void)state;
    file_write(at("records.jsonl"), records, sizeof records - 1);
    file_write(at("verl.jsonl"), batch, sizeof batch - 1);
    RUN("compare", at("records.jsonl"), at("records.jsonl"));
    must_exit(2);
    RUN_OK("compare", at("records.jsonl"), at("records.jsonl"), "--by-order");
    RUN_OK("compare", at("verl.jsonl"), at("verl.jsonl"), "--format", "verl");
    RUN_OK("compare", at("verl.jsonl"), at("records.jsonl"), "--format-a", "verl", "--by-order");
    RUN("compare", at("."), at("."));
    must_exit(2);
    assert_non_null(strstr(last.err, "lockstep report RUN RUN"));
    file_write(at("dump.pt"), "PK\3\4rest", 8);
    RUN("compare", at("dump.pt"), at("dump.pt"), "--format", "slime");
    must_exit(2);
    assert_non_null(strstr(last.err, "zip archive, as torch.save"));
}

static void scoring_confirms_every_bit(void **state) {
    static const char *const kinds[] = {"raw", "processed"};
    (void)state;
    for (int k = 0; k < 2; k++) {
        RUN_OK("generate", "--model", TINY, "--prompts", PROMPTS, "--samples", "2", "--max-tokens", "20", "--top-p",
               "0.9", "--temperature", "0.8", "--logprobs", kinds[k], "--out", at("a.jsonl"));
        RUN_OK("score", "--model", TINY, "--rollouts", at("a.jsonl"), "--out", at("b.jsonl"), "--batch", "3", "--chunk",
               "7");
        RUN_OK("compare", at("a.jsonl"), at("b.jsonl"));
        must_be_same_file(at("a.jsonl"), at("b.jsonl"));
        flip_a_bit(at("b.jsonl"), at("c.jsonl"), 5);
        RUN("compare", at("a.jsonl"), at("c.jsonl"));
        must_exit(3);
        RUN("compare", "--json", at("a.jsonl"), at("c.jsonl"));
        must_exit(3);
        {
            json_t *result = json_loads(last.out, 0, NULL);
            assert_non_null(result);
            json_decref(result);
        }
    }
}

static void token_lines_give_one_entry_after_the_first(void **state) {
    (void)state;
    text_write(at("tokens.jsonl"),
               "{\"id\":\"long\",\"token_ids\":[1,262,13,25,31,273,2]}\n{\"id\":\"two\",\"token_ids\":[5,6]}\n"
               "{\"id\":\"one\",\"token_ids\":[5]}\n");
    RUN_OK("score", "--model", TINY, "--tokens", at("tokens.jsonl"), "--out", at("scored.jsonl"), "--json");
    {
        json_t *summary = json_loads(last.out, 0, NULL);
        assert_non_null(summary);
        assert_int_equal(int_member(summary, "sequences"), 3);
        assert_int_equal(int_member(summary, "tokens"), 10);
        json_decref(summary);
    }
    for (int64_t i = 0; i < 3; i++) {
        static const int64_t n[] = {6, 1, 0};
        json_t *record = line_read(at("scored.jsonl"), i);
        check_logprobs(record, n[i]);
        json_decref(record);
    }
}

static void text_survives_tokens(void **state) {
    json_t *prompt, *record, *got;
    FILE *file;
    (void)state;
    write_greedy_prompts(at("greedy-prompts.jsonl"), "prompt");
    RUN_OK("generate", "--model", TINY, "--prompts", at("greedy-prompts.jsonl"), "--temperature", "0", "--out",
           at("greedy.jsonl"));
    for (int64_t i = 0; i < count_lines(GREEDY); i++) {
        prompt = line_read(GREEDY, i);
        record = line_read(at("greedy.jsonl"), i);
        file = fopen(at("text.jsonl"), "w");
        assert_non_null(file);
        got = json_pack("{s:O}", "text", member(prompt, "prompt"));
        json_dumpf(got, file, 0);
        json_decref(got);
        fputc('\n', file);
        fclose(file);
        RUN_IN(at("text.jsonl"), "tokenize", "--model", TINY);
        must_exit(0);
        got = json_loads(last.out, 0, NULL);
        assert_true(json_equal(member(got, "ids"), member(prompt, "prompt_ids")));
        text_write(at("ids-line.jsonl"), last.out);
        json_decref(got);
        RUN_IN(at("ids-line.jsonl"), "detokenize", "--model", TINY);
        must_exit(0);
        got = json_loads(last.out, 0, NULL);
        assert_true(json_equal(member(got, "text"), member(prompt, "prompt")));
        json_decref(got);

        file = fopen(at("ids-line.jsonl"), "w");
        assert_non_null(file);
        got = json_pack("{s:O}", "ids", member(record, "completion_ids"));
        json_dumpf(got, file, 0);
        json_decref(got);
        fputc('\n', file);
        fclose(file);
        RUN_IN(at("ids-line.jsonl"), "detokenize", "--model", TINY);
        must_exit(0);
        got = json_loads(last.out, 0, NULL);
        assert_true(json_equal(member(got, "text"), member(record, "text")));
        json_decref(got);
        json_decref(prompt);
        json_decref(record);
    }
}

static void check_finds_no_difference(void **state) {
    static const char *const names[] = {
        "jamba-dense",      "jamba-moe",          "jamba-odd",         "jamba-nobias",  "jamba-sharded",
        "mamba-small",      "mamba-odd",          "llama-small",       "llama-odd",     "mistral-small",
        "qwen2-small",      "qwen3-small",        "qwen3-moe-small",   "mixtral-small", "mistral-window",
        "qwen2-window",     "falcon-mamba-small", "mamba2-small",      "mamba2-odd",    "nemotron-h-small",
        "nemotron-h-odd",   "bamba-small",        "qwen3.5-small",     "qwen3.5-odd",   "qwen3.5-moe-small",
        "qwen3-next-small", "nemotron-h-moe",     "granite-moe-small", "granite-odd"};
    json_t *result;
    (void)state;
    RUN_OK("check", "--model", TINY, "--prompts", PROMPTS, "--samples", "2", "--max-tokens", "16");
    if (strstr(last.out, "differing bits   0\n") == NULL) fail_msg("check said: %s", last.out);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char path[PATH_BYTES];
        snprintf(path, sizeof path, "%s/%s", LS_FIXTURES, names[i]);
        RUN_OK("check", "--model", path, "--max-tokens", "5", "--samples", "1", "--dtype", i % 2 == 0 ? "bf16" : "f32",
               "--logprobs", i % 2 == 0 ? "processed" : "raw", "--top-k", "20", "--score-batch", "5", "--score-chunk",
               "3", "--json");
        result = json_loads(last.out, 0, NULL);
        assert_non_null(result);
        assert_int_equal(int_member(result, "sequences"), 16);
        assert_int_equal(int_member(result, "tokens"), 80);
        assert_int_equal(int_member(result, "differing_tokens"), 0);
        assert_int_equal(int_member(result, "differing_bits"), 0);
        json_decref(result);
    }
}

/* One Mamba layer of 5,120 channels, 16 states and 4 taps: the state of the 3-billion-parameter Jamba. All weights
 * zero, in a file with a hole. */
static void write_wide_checkpoint(const char *directory) {
    static const struct {
        const char *name;
        int dims[3]; /* 0: absent */
    } tensors[] = {
        {"model.embed_tokens.weight", {16, 16, 0}},
        {"model.final_layernorm.weight", {16, 0, 0}},
        {"model.layers.0.input_layernorm.weight", {16, 0, 0}},
        {"model.layers.0.pre_ff_layernorm.weight", {16, 0, 0}},
        {"model.layers.0.mamba.in_proj.weight", {10240, 16, 0}},
        {"model.layers.0.mamba.x_proj.weight", {33, 5120, 0}},
        {"model.layers.0.mamba.dt_proj.weight", {5120, 1, 0}},
        {"model.layers.0.mamba.dt_proj.bias", {5120, 0, 0}},
        {"model.layers.0.mamba.out_proj.weight", {16, 5120, 0}},
        {"model.layers.0.mamba.conv1d.weight", {5120, 1, 4}},
        {"model.layers.0.mamba.conv1d.bias", {5120, 0, 0}},
        {"model.layers.0.mamba.dt_layernorm.weight", {1, 0, 0}},
        {"model.layers.0.mamba.b_layernorm.weight", {16, 0, 0}},
        {"model.layers.0.mamba.c_layernorm.weight", {16, 0, 0}},
        {"model.layers.0.mamba.D", {5120, 0, 0}},
        {"model.layers.0.mamba.A_log", {5120, 16, 0}},
        {"model.layers.0.feed_forward.gate_proj.weight", {8, 16, 0}},
        {"model.layers.0.feed_forward.up_proj.weight", {8, 16, 0}},
        {"model.layers.0.feed_forward.down_proj.weight", {16, 8, 0}},
    };
    char path[PATH_BYTES], header[8192];
    size_t used = 0;
    long long offset = 0;
    uint64_t length;
    FILE *file;
    assert_int_equal(mkdir(directory, 0777), 0);
    snprintf(path, sizeof path, "%s/config.json", directory);
    text_write(
        path,
        "{\"model_type\":\"jamba\",\"architectures\":[\"JambaForCausalLM\"],\"vocab_size\":16,\"hidden_size\":16,"
        "\"intermediate_size\":8,\"num_hidden_layers\":1,\"num_attention_heads\":1,\"num_key_value_heads\":1,"
        "\"num_experts\":1,\"num_experts_per_tok\":1,\"attn_layer_period\":2,\"attn_layer_offset\":1,"
        "\"mamba_expand\":320,\"mamba_d_state\":16,\"mamba_d_conv\":4,\"mamba_dt_rank\":1,"
        "\"tie_word_embeddings\":true}");
    for (size_t i = 0; i < sizeof tensors / sizeof tensors[0]; i++) {
        long long n = 1;
        used += (size_t)snprintf(header + used, sizeof header - used, "%s\"%s\":{\"dtype\":\"BF16\",\"shape\":[",
                                 i == 0 ? "{" : ",", tensors[i].name);
        for (int d = 0; d < 3 && tensors[i].dims[d] > 0; d++) {
            n *= tensors[i].dims[d];
            used += (size_t)snprintf(header + used, sizeof header - used, d == 0 ? "%d" : ",%d", tensors[i].dims[d]);
        }
        used += (size_t)snprintf(header + used, sizeof header - used, "],\"data_offsets\":[%lld,%lld]}", offset,
                                 offset + 2 * n);
        offset += 2 * n;
    }
    header[used++] = '}';
    while (used % 8 != 0) header[used++] = ' ';
    length = used;
    snprintf(path, sizeof path, "%s/model.safetensors", directory);
    file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(&length, sizeof length, 1, file), 1);
    assert_int_equal(fwrite(header, 1, used, file), used);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(truncate(path, (off_t)(8 + used) + (off_t)offset), 0);
}

static void inspect_knows_where_32_bits_end(void **state) {
    json_t *result, *scan = NULL, *pool;
    size_t i;
    (void)state;
    write_wide_checkpoint(at("wide"));
    RUN_OK("inspect", "--json", "--dtype", "bf16", at("wide"));
    result = json_loads(last.out, 0, NULL);
    assert_non_null(result);
    assert_int_equal(int_member(member(result, "config"), "d_inner"), 5120);
    assert_int_equal(int_member(member(result, "sequence"), "slot_stride_bytes"), 358400);
    json_array_foreach(member(result, "pools"), i, pool) if (strcmp(text_member(pool, "pool"), "Mamba scan state") == 0)
        scan = pool;
    assert_non_null(scan);
    assert_int_equal(int_member(scan, "stride"), 89600);
    assert_int_equal(int_member(scan, "first_past_2_32"), 47935);
    assert_int_equal(int_member(scan, "first_past_2_31"), 23968);
    json_decref(result);
    RUN_OK("inspect", at("wide"), "--tensors");
    assert_non_null(strstr(last.out, "47935"));
    assert_non_null(strstr(last.out, "model.layers.0.mamba.A_log"));
}

static void inspect_json_is_json(void **state) {
    static const char *const names[] = {
        "jamba-dense",       "jamba-moe",        "jamba-bf16",         "jamba-odd",         "jamba-nobias",
        "jamba-sharded",     "mamba-small",      "mamba-odd",          "llama-small",       "llama-odd",
        "mistral-small",     "qwen2-small",      "qwen3-small",        "qwen3-moe-small",   "mixtral-small",
        "mistral-window",    "qwen2-window",     "falcon-mamba-small", "mamba2-small",      "mamba2-odd",
        "nemotron-h-small",  "nemotron-h-odd",   "bamba-small",        "qwen3.5-small",     "qwen3.5-odd",
        "qwen3.5-moe-small", "qwen3-next-small", "nemotron-h-moe",     "granite-moe-small", "granite-odd"};
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char path[PATH_BYTES];
        json_t *result;
        int64_t n_layers;
        snprintf(path, sizeof path, "%s/%s", LS_FIXTURES, names[i]);
        RUN_OK("inspect", "--json", path);
        result = json_loads(last.out, 0, NULL);
        assert_non_null(result);
        n_layers = int_member(member(result, "config"), "n_layers");
        assert_int_equal(json_array_size(member(member(result, "config"), "layers")), n_layers);
        assert_true(json_array_size(member(result, "tensors")) > 0 && int_member(result, "parameters") > 0);
        json_decref(result);
    }
}

static void help_goes_to_standard_output(void **state) {
    static const char *const commands[] = {"generate", "score",   "check",    "compare",
                                           "correct",  "inspect", "tokenize", "detokenize"};
    (void)state;
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        RUN_OK(commands[i], "--help");
        assert_non_null(strstr(last.out, commands[i]));
        assert_string_equal(last.err, "");
    }
    RUN_OK("--help");
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) assert_non_null(strstr(last.out, commands[i]));
    RUN_OK("--version");
    assert_int_equal(strncmp(last.out, "lockstep ", 9), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_is_what_transformers_wrote),
        cmocka_unit_test(records_are_in_the_format),
        cmocka_unit_test(likeliest_tokens_are_recorded),
        cmocka_unit_test(penalties_leave_log_probabilities),
        cmocka_unit_test(settings_change_no_result),
        cmocka_unit_test(standard_streams_serve_as_files),
        cmocka_unit_test(numerics_are_named_and_compared),
        cmocka_unit_test(what_has_no_ids_of_its_own_is_matched_by_order),
        cmocka_unit_test(scoring_confirms_every_bit),
        cmocka_unit_test(token_lines_give_one_entry_after_the_first),
        cmocka_unit_test(text_survives_tokens),
        cmocka_unit_test(check_finds_no_difference),
        cmocka_unit_test(inspect_knows_where_32_bits_end),
        cmocka_unit_test(inspect_json_is_json),
        cmocka_unit_test(help_goes_to_standard_output),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
