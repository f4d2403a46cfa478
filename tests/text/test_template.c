/* Chat templates against what jinja2 made of the same templates (tests/fixtures/template-vectors.jsonl, written by
 * make_template_vectors.py), their limits, and conversations over a model's directory. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "harness.h"
#include "template/chat.h"

enum { FILE_BYTES_MAX = 1 << 24, VARIABLES_MAX = 32 };

static char *read_fixture(const char *name, int64_t *bytes) {
    char path[512], *text;
    ls_error err;
    snprintf(path, sizeof path, "%s/%s", LS_FIXTURES, name);
    assert_ok(ls_file_read(&text, bytes, path, FILE_BYTES_MAX, &err), err);
    return text;
}

static ls_status render(const char *template, int64_t bytes, const ls_template_variable *variables, int64_t n,
                        int64_t now, const ls_template_limits *limits, ls_template_output *out, ls_error *err) {
    ls_template *t;
    ls_status status;
    LS_TRY(ls_template_parse(&t, template, bytes, "case", err));
    status = ls_template_render(t, variables, n, now, limits, out, err);
    ls_template_free(t);
    return status;
}

/* One line of the vectors; counts those that are not as they should be. */
static int64_t check_vector(const ls_node *line, const ls_template_variable *variables, int64_t n, int64_t now) {
    const char *template, *text;
    int64_t bytes, text_bytes;
    ls_node node;
    ls_template_output out = {0};
    ls_error err = {0};
    ls_status status;
    bool same;
    assert_true(ls_node_get(line, "template", &node));
    assert_ok(ls_node_text(&node, &template, &bytes, &err), err);
    status = render(template, bytes, variables, n, now, NULL, &out, &err);
    if (!ls_node_get(line, "text", &node)) {
        if (status == LS_OK) print_error("%s\n  should fail, gives %s\n", template, out.text);
        if (status != LS_OK && strncmp(err.text, "case: line ", 11) != 0) print_error("%s\n", err.text);
        ls_template_output_deinit(&out);
        return status == LS_OK || strncmp(err.text, "case: line ", 11) != 0;
    }
    assert_ok(ls_node_text(&node, &text, &text_bytes, &err), err);
    same = status == LS_OK && out.bytes == text_bytes && memcmp(out.text, text, (size_t)text_bytes) == 0;
    if (!same) print_error("%s\n  jinja2   %s\n  lockstep %s\n", template, text, status == LS_OK ? out.text : err.text);
    ls_template_output_deinit(&out);
    return !same;
}

static void templates_are_rendered_as_by_jinja2(void **state) {
    int64_t bytes, n_variables = 0, n = 0, failed = 0, now = 0;
    char *text = read_fixture("template-variables.json", &bytes), *lines;
    ls_template_variable variables[VARIABLES_MAX];
    ls_node nodes[VARIABLES_MAX], root, all, node;
    ls_json_doc *doc;
    void *iterator = NULL;
    ls_error err;
    (void)state;
    setenv("TZ", "UTC", 1);
    assert_ok(ls_json_doc_open(&doc, text, bytes, "variables", &err), err);
    root = ls_json_root(doc);
    assert_true(ls_node_get(&root, "variables", &all) && ls_node_get(&root, "now", &node));
    assert_ok(ls_node_int(&node, 0, INT64_MAX, &now, &err), err);
    for (; ls_node_next(&all, &iterator, &nodes[n_variables]); n_variables++)
        variables[n_variables] = (ls_template_variable){
            .name = nodes[n_variables].key, .kind = LS_TEMPLATE_NODE, .node = &nodes[n_variables]};
    lines = read_fixture("template-vectors.jsonl", &bytes);
    for (char *at = lines, *end; (end = strchr(at, '\n')) != NULL; at = end + 1, n++) {
        ls_json_doc *line;
        assert_ok(ls_json_doc_open(&line, at, end - at, "vector", &err), err);
        root = ls_json_root(line);
        failed += check_vector(&root, variables, n_variables, now);
        ls_json_doc_free(line);
    }
    free(lines);
    free(text);
    ls_json_doc_free(doc);
    assert_true(n > 60);
    assert_int_equal(failed, 0);
}

static void errors_name_template_line_and_construct(void **state) {
    static const struct {
        const char *template, *says;
    } bad[] = {
        {"a\n{{ x|wordcount }}", "case: line 2: the filter 'wordcount' is not supported"},
        {"\n\n{% if x is filter %}{% endif %}", "case: line 3: the test 'filter' is not supported"},
        {"{% import 'x' as y %}", "the tag 'import' is not supported here"},
        {"{% call f() %}{% endcall %}", "the tag 'call' is not supported here"},
        {"{{ 'x'.center(3) }}", "the method 'center' of a text is not supported"},
        {"{{ [1].append(2) }}", "the method 'append' of a list is not supported"},
        {"{% for a in [1] recursive %}{% endfor %}", "a recursive loop is not supported"},
        {"{{ '%s' % 1 }}", "% of a text"},
        {"{{ cycler }}", "the function 'cycler' is not supported"},
        {"{% if a %}", "the template ends, expected elif"},
        {"{{ a b }}", "found 'b', expected }}"},
        {"{{ (1 }}", "'}' closes nothing"},
        {"{# open", "a comment: its end is missing"},
        {"{% raw %}", "raw: its end is missing"},
        {"{{ x.y }}", "'x' is undefined, and 'y' of it is asked for"},
        {"{{ raise_exception('no ' ~ 1) }}", "the template raises: no 1"},
        {"{{ 9223372036854775807 + 1 }}", "beyond 64 bits"},
        {"\xff", "is not UTF-8"},
        {"{{ f(**x) }}", "arguments with ** are not supported"},
        {"{{ f(*x, 1) }}", "found '1', expected an argument with a name"},
        {"{{ f(*x, *y) }}", "expected one argument with *"},
        {"{% macro f(a) %}{% endmacro %}{{ f(1, *[2]) }}", "macro f takes 1 arguments, not 2"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        ls_template_output out = {0};
        ls_error err = {0};
        check_failed(render(bad[i].template, (int64_t)strlen(bad[i].template), NULL, 0, 0, NULL, &out, &err), &err,
                     bad[i].says);
    }
}

static void work_memory_depth_and_output_are_bounded(void **state) {
    static const ls_template_limits small = {20000, 1 << 22, 1000};
    static const struct {
        const char *template, *says;
    } bad[] = {
        {"{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "more than"},
        {"{% set n = namespace(x='aaaaaaaa') %}{% for a in range(99) %}{% set n.x = n.x + n.x %}{% endfor %}",
         "more than"},
        {"{{ 'a' * 900000000 }}", "more than"},
        {"{{ range(100001) }}", "more than"},
        {"{% for a in range(1001) %}x{% endfor %}", "the output is longer than 1000 bytes"},
        {"{% macro m(n) %}{{ m(n) }}{% endmacro %}{{ m(1) }}", "nest more than"},
    };
    char deep[2048];
    ls_template_output out = {0};
    ls_error err = {0};
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        check_failed(render(bad[i].template, (int64_t)strlen(bad[i].template), NULL, 0, 0, &small, &out, &err), &err,
                     bad[i].says);
    memset(deep, '(', 1000);
    memcpy(deep, "{{", 2);
    check_failed(render(deep, 1000, NULL, 0, 0, NULL, &out, &err), &err, "nest");
    for (int i = 0; i < 500; i++) memcpy(deep + 3 + 4 * i, "not ", 4);
    memcpy(deep, "{{ ", 3);
    memcpy(deep + 2003, "1}}", 3);
    check_failed(render(deep, 2006, NULL, 0, 0, NULL, &out, &err), &err, "nest more than 200 deep");
}

/* ---- conversations ---- */

static char directory[64];

static void write_file(const char *name, const char *text) {
    char path[200];
    FILE *file;
    snprintf(path, sizeof path, "%s/%s", directory, name);
    file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static void remove_file(const char *name) {
    char path[200];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    unlink(path);
}

static int make_directory(void **state) {
    (void)state;
    snprintf(directory, sizeof directory, "/tmp/lockstep-chat-XXXXXX");
    return mkdtemp(directory) == NULL;
}

static int remove_directory(void **state) {
    (void)state;
    remove_file("chat_template.jinja");
    remove_file("tokenizer_config.json");
    remove_file("special_tokens_map.json");
    return rmdir(directory);
}

static void expect_chat(const char *line, bool add_prompt, const char *expected) {
    ls_chat *chat;
    ls_template_output out;
    ls_error err;
    assert_ok(ls_chat_open(&chat, directory, NULL, &err), err);
    assert_ok(ls_chat_render_text(chat, line, (int64_t)strlen(line), "line", add_prompt, &out, &err), err);
    assert_string_equal(out.text, expected);
    ls_template_output_deinit(&out);
    ls_chat_free(chat);
}

static void templates_are_found_where_models_keep_them(void **state) {
    static const char one[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}";
    static const char tools[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"tools\":[{\"n\":1}],"
        "\"chat_template_kwargs\":{\"more\":\"m\"}}";
    ls_chat *chat;
    ls_error err;
    (void)state;
    check_failed(ls_chat_open(&chat, directory, NULL, &err), &err, "messages need a chat template");
    write_file("tokenizer_config.json",
               "{\"bos_token\":{\"content\":\"<s>\"},\"chat_template\":\"{{ bos_token }}{{ eos_token }}{{ "
               "messages[0].content }}{{ add_generation_prompt }}{{ tools is none }}{{ more }}\"}");
    write_file("special_tokens_map.json", "{\"bos_token\":\"<other>\",\"eos_token\":\"</s>\"}");
    expect_chat(one, true, "<s></s>xTrueTrue");
    expect_chat(tools, false, "<s></s>xFalseFalsem");
    write_file("tokenizer_config.json",
               "{\"chat_template\":[{\"name\":\"default\",\"template\":\"d\"},{\"name\":\"rag\",\"template\":\"{% "
               "broken\"},{\"name\":\"tool_use\",\"template\":\"t{{ tools|tojson }}\"}]}");
    expect_chat(one, true, "d");
    expect_chat(tools, true, "t[{\"n\": 1}]");
    write_file("chat_template.jinja", "file\n");
    expect_chat(one, true, "file");
    check_failed(ls_chat_open(&chat, directory, "/nowhere.jinja", &err), &err, "/nowhere.jinja");
}

/* As transformers 5 saves templates with names; beside a file that of tokenizer_config.json does not count. */
static void templates_with_names_are_files(void **state) {
    static const char one[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}";
    static const char tools[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"tools\":[{\"n\":1}]}";
    char path[sizeof directory + 40];
    ls_chat *chat;
    ls_error err;
    (void)state;
    snprintf(path, sizeof path, "%s/additional_chat_templates", directory);
    assert_int_equal(mkdir(path, 0700), 0);
    write_file("tokenizer_config.json", "{\"chat_template\":\"config\"}");
    write_file("chat_template.jinja", "plain");
    expect_chat(tools, true, "plain");
    write_file("additional_chat_templates/tool_use.jinja", "tools {{ tools|tojson }}");
    write_file("additional_chat_templates/rag.jinja", "{% broken");
    expect_chat(one, true, "plain");
    expect_chat(tools, true, "tools [{\"n\": 1}]");
    write_file("additional_chat_templates/default.jinja", "default");
    expect_chat(one, true, "default");
    remove_file("chat_template.jinja");
    remove_file("additional_chat_templates/default.jinja");
    remove_file("additional_chat_templates/tool_use.jinja");
    check_failed(ls_chat_open(&chat, directory, NULL, &err), &err, "that of tokenizer_config.json does not count");
    remove_file("additional_chat_templates/rag.jinja");
    expect_chat(one, true, "config");
    assert_int_equal(rmdir(path), 0);
}

static void tokens_with_names_of_their_own_are_seen(void **state) {
    static const char one[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}";
    ls_chat *chat;
    ls_error err;
    (void)state;
    write_file("chat_template.jinja",
               "{{ image_token }}{{ sep }}{{ audio_token }}{{ eos_token }}{{ boi_token }}"
               "{{ add_bos_token is defined }}{{ other_token is defined }}");
    write_file(
        "tokenizer_config.json",
        "{\"image_token\":\"<i>\",\"add_bos_token\":true,\"other_token\":null,\"audio_token\":{\"content\":\"<a>\","
        "\"__type\":\"AddedToken\"},\"extra_special_tokens\":{\"sep\":\"<|>\",\"boi_token\":\"<b>\"}}");
    write_file("special_tokens_map.json", "{\"image_token\":\"<other>\",\"eos_token\":\"</s>\"}");
    expect_chat(one, true, "<i><|><a></s><b>FalseFalse");
    write_file("tokenizer_config.json", "{\"extra_special_tokens\":[\"<x>\",\"<y>\"]}");
    expect_chat(one, true, "<other></s>FalseFalse");
    write_file("tokenizer_config.json", "{\"extra_special_tokens\":{\"messages\":\"<x>\"}}");
    check_failed(ls_chat_open(&chat, directory, NULL, &err), &err, "extra_special_tokens.messages");
    remove_file("tokenizer_config.json");
    remove_file("special_tokens_map.json");
}

/* Where no mask is asked for, a block of a macro is its text. */
static void generation_within_macros_is_text(void **state) {
    (void)state;
    write_file("chat_template.jinja",
               "{% macro w(x) %}{% generation %}{{ x }}{% endgeneration %}{% endmacro %}{% for m in messages %}"
               "{{ w(m.content) }}{% endfor %}{% set t %}{% generation %}!{% endgeneration %}{% endset %}{{ t }}");
    expect_chat("{\"messages\":[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":\"a\"}]}",
                true, "qa!");
}

static void expect_learnt(const char *template, const char *line, const char *const *expected) {
    ls_chat *chat;
    ls_template_output out;
    ls_error err = {0};
    int64_t n = 0;
    write_file("chat_template.jinja", template);
    assert_ok(ls_chat_open(&chat, directory, NULL, &err), err);
    if (expected[0][0] == '!') {
        check_failed(ls_chat_render_learnt(chat, line, (int64_t)strlen(line), "line", &out, &err), &err,
                     expected[0] + 1);
        ls_chat_free(chat);
        return;
    }
    assert_ok(ls_chat_render_learnt(chat, line, (int64_t)strlen(line), "line", &out, &err), err);
    for (; expected[n] != NULL; n++) {
        assert_true(n < out.n_spans);
        assert_int_equal(out.spans[n].end - out.spans[n].begin, (int64_t)strlen(expected[n]));
        assert_memory_equal(out.text + out.spans[n].begin, expected[n], strlen(expected[n]));
    }
    assert_int_equal(n, out.n_spans);
    ls_template_output_deinit(&out);
    ls_chat_free(chat);
}

static void only_the_assistant_is_learnt(void **state) {
    static const char chat[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\","
        "\"content\":\"b\"},{\"role\":\"user\",\"content\":\"c\"},{\"role\":\"assistant\","
        "\"content\":\"d\"}]}";
    static const char asked[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}";
    static const char plain[] =
        "{% for m in messages %}[{{ m.role }}]{{ m.content }};{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}";
    (void)state;
    expect_learnt(plain, chat, (const char *const[]){"b;", "d;", NULL});
    expect_learnt("{% for m in messages %}{{ m.role }}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
                  chat, (const char *const[]){"a", "b", "c", "d", NULL});
    expect_learnt(
        "{% macro w(x) %}{% generation %}{{ x }}{% endgeneration %}{% endmacro %}{{ w(messages[1].content) }}", chat,
        (const char *const[]){"!within a macro", NULL});
    expect_learnt(plain, asked, (const char *const[]){"!the assistant says nothing", NULL});
    /* Earlier answers are written otherwise once more follow: a prefix is no prefix. */
    expect_learnt("{% for m in messages %}{{ m.content }}{% if loop.last %}!{% endif %}{% endfor %}", chat,
                  (const char *const[]){"!cannot be told apart", NULL});
}

static void conversations_are_checked(void **state) {
    static const struct {
        const char *line, *says;
    } bad[] = {
        {"{}", "'messages' is missing"},
        {"{\"messages\":[]}", "line: messages: is empty"},
        {"{\"messages\":[1]}", "line: messages[0]"},
        {"{\"messages\":[{\"content\":\"x\"}]}", "line: messages[0]: 'role' is missing"},
        {"{\"messages\":[{\"role\":\"u\"}],\"tools\":{}}", "line: tools"},
        {"{\"messages\":[{\"role\":\"u\"}],\"chat_template_kwargs\":[]}", "line: chat_template_kwargs"},
    };
    ls_chat *chat;
    ls_error err;
    (void)state;
    write_file("chat_template.jinja", "x");
    assert_ok(ls_chat_open(&chat, directory, NULL, &err), err);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        ls_template_output out;
        check_failed(ls_chat_render_text(chat, bad[i].line, (int64_t)strlen(bad[i].line), "line", true, &out, &err),
                     &err, bad[i].says);
    }
    ls_chat_free(chat);
}

/* Other stacks say in the data what is learnt; learning it all instead would go unseen. */
static void marks_of_what_is_learnt_are_refused(void **state) {
    static const struct {
        const char *of_message, *of_row, *says;
    } cases[] = {
        {",\"weight\":0", "", "!line: messages[1].weight: says whether the message is learnt"},
        {",\"train\":false", "", "!line: messages[1].train: says"},
        {",\"training\":false", "", "!line: messages[1].training: says"},
        {",\"trainable\":false", "", "!line: messages[1].trainable: says"},
        {",\"loss_mask\":0", "", "!line: messages[1].loss_mask: says"},
        {"", ",\"message_loss_mask\":[0,0]", "!line: message_loss_mask: says which messages are learnt"},
        {"", ",\"loss_mask\":[0,0]", "!line: loss_mask: says"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *const expected[] = {cases[i].says, NULL};
        char line[400];
        snprintf(
            line, sizeof line,
            "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b\"%s}]%s}",
            cases[i].of_message, cases[i].of_row);
        expect_learnt("{% for m in messages %}{{ m.content }}{% endfor %}", line, expected);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(templates_are_rendered_as_by_jinja2),
        cmocka_unit_test(errors_name_template_line_and_construct),
        cmocka_unit_test(work_memory_depth_and_output_are_bounded),
        cmocka_unit_test(templates_are_found_where_models_keep_them),
        cmocka_unit_test(templates_with_names_are_files),
        cmocka_unit_test(tokens_with_names_of_their_own_are_seen),
        cmocka_unit_test(generation_within_macros_is_text),
        cmocka_unit_test(only_the_assistant_is_learnt),
        cmocka_unit_test(conversations_are_checked),
        cmocka_unit_test(marks_of_what_is_learnt_are_refused),
    };
    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
