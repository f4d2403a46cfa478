/* Conversations through the program: the text of a template, prompts, scores, and both kinds of training. */
#define _GNU_SOURCE
#include "program.h"

#define TALKS                                                                                                   \
    "{\"id\":\"a\",\"messages\":[{\"role\":\"user\",\"content\":\"2+3=\"},{\"role\":\"assistant\",\"content\":" \
    "\"5\"}],\"answer\":\"5\"}\n"                                                                               \
    "{\"id\":\"b\",\"messages\":[{\"role\":\"user\",\"content\":\"1+1=\"},{\"role\":\"assistant\",\"content\":" \
    "\"2\"},{\"role\":\"user\",\"content\":\"2+2=\"},{\"role\":\"assistant\",\"content\":\"4\"}],\"answer\":\"4\"}\n"

/* "KEY=PATH", good until the next call with the same slot. */
static const char *with_path(int slot, const char *key, const char *path) {
    static char texts[2][2 * PATH_BYTES];
    const size_t n = strlen(key), m = strlen(path);
    assert_true(n + m < sizeof texts[0]);
    memcpy(texts[slot], key, n);
    memcpy(texts[slot] + n, path, m + 1);
    return texts[slot];
}

static void templates_write_text_ids_and_what_is_learnt(void **state) {
    json_t *line;
    (void)state;
    text_write(at("talks.jsonl"), TALKS);
    run_args(at("talks.jsonl"), -1,
             (const char *const[]){"chat", "--model", TINY, "--learnt", "--ids", "--out", at("learnt.jsonl"), NULL});
    must_exit(0);
    line = line_read(at("learnt.jsonl"), 1);
    assert_string_equal(json_string_value(member(line, "text")), "<|startoftext|>user: 1+1=\n>2\nuser: 2+2=\n>4\n");
    assert_int_equal(json_array_size(member(line, "learnt")), 2);
    assert_string_equal(json_string_value(json_array_get(member(line, "learnt"), 1)), "4\n");
    assert_int_equal(json_array_size(member(line, "ids")), json_array_size(member(line, "mask")));
    /* The beginning of a sequence is there once, from the template. */
    assert_int_equal(json_integer_value(json_array_get(member(line, "ids"), 0)), 1);
    assert_true(json_integer_value(json_array_get(member(line, "ids"), 1)) != 1);
    json_decref(line);
    text_write(
        at("calls.jsonl"),
        "{\"messages\":[{\"role\":\"user\",\"content\":\"w?\"},{\"role\":\"assistant\",\"content\":null,"
        "\"tool_calls\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"a\\\":1}\"}}]}]}\n");
    run_args(at("calls.jsonl"), -1,
             (const char *const[]){"chat", "--model", TINY, "--learnt", "--out", at("learnt.jsonl"), NULL});
    must_exit(0);
    line = line_read(at("learnt.jsonl"), 0);
    assert_int_equal(json_array_size(member(line, "learnt")), 1);
    assert_string_equal(json_string_value(json_array_get(member(line, "learnt"), 0)),
                        "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}}</tool_call>\n");
    json_decref(line);
    text_write(at("one.jinja"), "{{ messages|length }}{{ eos_token }}{{ add_generation_prompt }}");
    run_args(
        at("talks.jsonl"), -1,
        (const char *const[]){"chat", "--model", TINY, "--template", at("one.jinja"), "--no-generation-prompt", NULL});
    must_exit(0);
    assert_non_null(strstr(last.out, "{\"text\":\"2<|endoftext|>False\"}"));
    text_write(at("bad.jinja"), "\n{{ messages|wordwrap }}");
    run_args(at("talks.jsonl"), -1,
             (const char *const[]){"chat", "--model", TINY, "--template", at("bad.jinja"), NULL});
    must_exit(2);
    assert_non_null(strstr(last.err, "bad.jinja: line 2: the filter 'wordwrap' is not supported"));
}

static void conversations_are_prompts_and_sequences(void **state) {
    json_t *line;
    (void)state;
    text_write(at("talks.jsonl"), TALKS);
    RUN_OK("generate", "--model", TINY, "--prompts", at("talks.jsonl"), "--max-tokens", "4", "--out", at("out.jsonl"));
    line = line_read(at("out.jsonl"), 0);
    /* "<|startoftext|>user: 2+3=\n>5\n>": its last tokens begin the answer. */
    assert_int_equal(json_integer_value(json_array_get(member(line, "prompt_ids"), 0)), 1);
    json_decref(line);
    RUN_OK("score", "--model", TINY, "--rollouts", at("out.jsonl"), "--out", at("scored.jsonl"));
    RUN_OK("compare", at("out.jsonl"), at("scored.jsonl"));
    RUN_OK("check", "--model", TINY, "--prompts", at("talks.jsonl"), "--max-tokens", "4");
    RUN_OK("score", "--model", TINY, "--tokens", at("talks.jsonl"), "--out", at("talks-scored.jsonl"));
    assert_int_equal(count_lines(at("talks-scored.jsonl")), 2);
    text_write(at("both.jsonl"), "{\"id\":\"a\",\"prompt\":\"x\",\"messages\":[{\"role\":\"user\"}]}\n");
    RUN("generate", "--model", TINY, "--prompts", at("both.jsonl"));
    must_refuse("both.jsonl: line 1: id 'a': messages beside prompt or prompt_ids");
    RUN("generate", "--model", LS_SOURCE_DIR "/models/tiny-sort", "--prompts", at("talks.jsonl"));
    must_refuse("messages need a chat template");
}

/* A token that comes anyway ends its completion, as its last one; what comes before is the same. */
static void tokens_end_completions(void **state) {
    json_t *whole, *cut, *ids;
    char id[16];
    size_t n;
    (void)state;
    text_write(at("talks.jsonl"), TALKS);
    RUN_OK("generate", "--model", TINY, "--prompts", at("talks.jsonl"), "--max-tokens", "12", "--ignore-eos", "--out",
           at("whole.jsonl"));
    whole = line_read(at("whole.jsonl"), 0);
    ids = json_object_get(whole, "completion_ids");
    assert_int_equal(json_array_size(ids), 12);
    snprintf(id, sizeof id, "%lld", (long long)json_integer_value(json_array_get(ids, 5)));
    RUN_OK("generate", "--model", TINY, "--prompts", at("talks.jsonl"), "--max-tokens", "12", "--ignore-eos",
           "--stop-id", id, "--out", at("cut.jsonl"));
    cut = line_read(at("cut.jsonl"), 0);
    n = json_array_size(member(cut, "completion_ids"));
    assert_true(n >= 1 && n <= 6);
    assert_string_equal(json_string_value(member(cut, "finish")), "stop");
    for (size_t i = 0; i < n; i++)
        assert_int_equal(json_integer_value(json_array_get(member(cut, "completion_ids"), i)),
                         json_integer_value(json_array_get(ids, i)));
    assert_int_equal(json_integer_value(json_array_get(member(cut, "completion_ids"), n - 1)), atoi(id));
    json_decref(whole);
    json_decref(cut);
    RUN("generate", "--model", TINY, "--prompts", at("talks.jsonl"), "--stop-id", "512");
    must_refuse("--stop-id: 512 is not in the vocabulary 0..511");
}

static void conversations_are_trained_on(void **state) {
    (void)state;
    text_write(at("talks.jsonl"), TALKS);
    RUN_OK("train", "sft", "--set", "model=" TINY, "--set", with_path(0, "run=", at("sft")), "--set",
           with_path(1, "data=", at("talks.jsonl")), "--set", "steps=2", "--set", "batch=2", "--set", "threads=1");
    RUN("train", "grpo", "--set", "model=" TINY, "--set", with_path(0, "run=", at("no")), "--set",
        with_path(1, "data=", at("talks.jsonl")), "--set", "reward=number", "--set", "steps=1");
    must_refuse("talks.jsonl: line 1: messages: the last one is the assistant's, and a prompt ends before its answer");
    text_write(at("questions.jsonl"),
               "{\"messages\":[{\"role\":\"user\",\"content\":\"2+2=\"}],\"answer\":\"4\"}\n"
               "{\"messages\":[{\"role\":\"user\",\"content\":\"3+4=\"}],\"answer\":\"7\"}\n");
    RUN_OK("train", "grpo", "--set", "model=" TINY, "--set", with_path(0, "run=", at("grpo")), "--set",
           with_path(1, "data=", at("questions.jsonl")), "--set", "reward=number", "--set", "steps=1", "--set",
           "prompts=2", "--set", "samples=2", "--set", "held_out=0", "--set", "max_tokens=4", "--set", "threads=1");
    assert_non_null(strstr(last.err, "mismatch 0 of "));
    text_write(at("asked.jsonl"), "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}\n");
    RUN("train", "sft", "--set", "model=" TINY, "--set", with_path(0, "run=", at("none")), "--set",
        with_path(1, "data=", at("asked.jsonl")), "--set", "steps=1");
    must_refuse("asked.jsonl: line 1: messages: the assistant says nothing that could be learnt");
    RUN("train", "grpo", "--set", "model=" TINY, "--set", with_path(0, "run=", at("no")), "--set",
        with_path(1, "data=", at("talks.jsonl")), "--set", "reward=number", "--set", "steps=1", "--set",
        "data_template=Q: {prompt}");
    must_refuse("data_template stands around texts, not around messages");
}

/* As text where they are text, refused where they are not: nothing of a conversation is dropped without a word. */
static void parts_of_content_are_text_everywhere(void **state) {
    static const char parts[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"2+2=\"}]}],\"answer\":\"4\"}\n";
    static const char image[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"2+2=\"},{\"type\":\"image\"}]}],"
        "\"answer\":\"4\"}\n";
    (void)state;
    text_write(at("parts.jsonl"), parts);
    run_args(at("parts.jsonl"), -1, (const char *const[]){"chat", "--model", TINY, NULL});
    must_exit(0);
    assert_non_null(strstr(last.out, "user: 2+2=\\n>"));
    text_write(at("image.jsonl"), image);
    run_args(at("image.jsonl"), -1, (const char *const[]){"chat", "--model", TINY, NULL});
    must_refuse("standard input: line 1: messages[0].content[1]: a part of type 'image'");
    text_write(at("reads.jinja"),
               "{% for m in messages %}{% for p in m.content %}{% if p.type == 'text' %}{{ p.text }}{% endif %}"
               "{% endfor %}{% endfor %}");
    run_args(at("image.jsonl"), -1,
             (const char *const[]){"chat", "--model", TINY, "--template", at("reads.jinja"), NULL});
    must_refuse("a part of type 'image'");
    RUN("train", "grpo", "--set", "model=" TINY, "--set", with_path(0, "run=", at("images")), "--set",
        with_path(1, "data=", at("image.jsonl")), "--set", "reward=number", "--set", "steps=1", "--set", "held_out=0");
    must_refuse("image.jsonl: line 1: messages[0].content[1]: a part of type 'image'");
    RUN("train", "sft", "--set", "model=" TINY, "--set", with_path(0, "run=", at("images")), "--set",
        with_path(1, "data=", at("image.jsonl")), "--set", "steps=1");
    must_refuse("image.jsonl: line 1: messages[0].content[1]: a part of type 'image'");
}

/* What Windows writes in front of a text is no part of it, whoever reads it; nor are blank lines. */
static void marks_and_blank_lines_are_skipped(void **state) {
#define MARK "\xEF\xBB\xBF"
    static const char *const commands[] = {"tokenize", "detokenize", "chat"};
    static const char *const lines[] = {"{\"text\":\"hello\"}\n", "{\"ids\":[72,101]}\n",
                                        "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}\n"};
    static char plain[OUTPUT_BYTES];
    char marked[256];
    (void)state;
    for (int i = 0; i < 3; i++) {
        text_write(at("plain"), lines[i]);
        run_args(at("plain"), -1, (const char *const[]){commands[i], "--model", TINY, NULL});
        must_exit(0);
        memcpy(plain, last.out, sizeof plain);
        snprintf(marked, sizeof marked, MARK "%s", lines[i]);
        text_write(at("marked"), marked);
        run_args(at("marked"), -1, (const char *const[]){commands[i], "--model", TINY, NULL});
        if (last.code != 0 || strcmp(last.out, plain) != 0) fail_msg("%s: %s%s", commands[i], last.out, last.err);
        snprintf(marked, sizeof marked, "%s" MARK "%s", lines[i], lines[i]); /* in the middle it is no mark */
        text_write(at("marked"), marked);
        run_args(at("marked"), -1, (const char *const[]){commands[i], "--model", TINY, NULL});
        must_refuse("standard input: line 2");
        snprintf(marked, sizeof marked, "\n%s \t\r\n\n", lines[i]);
        text_write(at("blank"), marked);
        run_args(at("blank"), -1, (const char *const[]){commands[i], "--model", TINY, NULL});
        if (last.code != 0 || strcmp(last.out, plain) != 0) fail_msg("%s: %s%s", commands[i], last.out, last.err);
    }
    text_write(at("marked.jsonl"), MARK "{\"id\":\"a\",\"prompt\":\"hello\"}\n");
    RUN_OK("generate", "--model", TINY, "--prompts", at("marked.jsonl"), "--max-tokens", "1");
    text_write(at("pairs.jsonl"), MARK "{\"prompt\":\"1+1=\",\"completion\":\"2\"}\n");
    text_write(at("ids.jsonl"), MARK "{\"prompt_ids\":[1],\"completion_ids\":[2]}\n");
    text_write(at("run.json"), MARK "{\"steps\":1,\"batch\":1}");
    RUN_OK("train", "sft", "--config", at("run.json"), "--set", "model=" TINY, "--set",
           with_path(0, "run=", at("marked-run")), "--set", with_path(1, "data=", at("pairs.jsonl")));
    RUN_OK("train", "sft", "--config", at("run.json"), "--set", "model=" TINY, "--set",
           with_path(0, "run=", at("marked-ids")), "--set", with_path(1, "data=", at("ids.jsonl")));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(marks_and_blank_lines_are_skipped),
        cmocka_unit_test(parts_of_content_are_text_everywhere),
        cmocka_unit_test(templates_write_text_ids_and_what_is_learnt),
        cmocka_unit_test(conversations_are_prompts_and_sequences),
        cmocka_unit_test(tokens_end_completions),
        cmocka_unit_test(conversations_are_trained_on),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
