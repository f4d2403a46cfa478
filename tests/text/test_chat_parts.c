/* Content of messages that is a list of parts: which templates read it, and what becomes of it for others. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <unistd.h>

#include "harness.h"
#include "template/chat.h"

#define PLAIN "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}"
#define READS "{% for m in messages %}{% for p in m['content'] %}<{{ p.type }}={{ p.text }}>{% endfor %}{% endfor %}"

static void templates_are_read_for_loops_over_content(void **state) {
    static const struct {
        const char *text;
        bool reads;
    } templates[] = {
        {PLAIN, false},
        {READS, true},
        {"{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}"
         "{{ p.text }}{% endfor %}{% endif %}{% endfor %}",
         true},
        {"{% set all = messages[1:] %}{% for m in all %}{% set c = m.content | trim %}{% for p in c %}{% endfor %}"
         "{% endfor %}",
         true},
        {"{% macro show(x) %}{% for p in x %}{{ p }}{% endfor %}{% endmacro %}{% for m in messages %}"
         "{{ show(m.content) }}{% endfor %}",
         true},
        {"{% macro show(x, y=1) %}{% for p in y %}{{ p }}{% endfor %}{% endmacro %}{{ show(1, y=messages[0].content) "
         "}}",
         true},
        {"{{ messages[0]['content'] | map(attribute='text') | join }}", true},
        {"{% for p in messages[-1].get('content') %}{% endfor %}", true},
        {"{% set ns = namespace() %}{% set ns.s = messages[0].content %}{% for p in ns.s %}{% endfor %}", true},
        {"{% for p in (messages | last).content %}{% endfor %}", true},
        {"{% for m in messages if m.content %}{% for t in tools %}{{ t }}{% endfor %}{% endfor %}", false},
        {"{% for m in messages %}{% for c in m.tool_calls %}{{ c }}{% endfor %}{{ m.content | length }}{% endfor %}",
         false},
        {"{% for m in documents %}{% for p in m.content %}{% endfor %}{% endfor %}", false},
        {"{% for content in tools %}{% for p in content %}{% endfor %}{% endfor %}", false},
    };
    (void)state;
    for (size_t i = 0; i < sizeof templates / sizeof templates[0]; i++) {
        ls_template *t;
        ls_error err;
        assert_ok(ls_template_parse(&t, templates[i].text, (int64_t)strlen(templates[i].text), "case", &err), err);
        if (ls_template_reads_parts(t) != templates[i].reads) fail_msg("%s", templates[i].text);
        ls_template_free(t);
    }
}

static char path[64];

static ls_chat *open_chat(const char *template) {
    ls_chat *chat;
    ls_error err;
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(template, file);
    fclose(file);
    assert_ok(ls_chat_open(&chat, "/nowhere", path, &err), err);
    return chat;
}

static int make_file(void **state) {
    int fd;
    (void)state;
    snprintf(path, sizeof path, "/tmp/lockstep-parts-XXXXXX");
    fd = mkstemp(path);
    return fd < 0 || close(fd) != 0;
}

static int remove_file(void **state) {
    (void)state;
    return unlink(path);
}

static void parts_become_what_the_template_reads(void **state) {
    static const struct {
        const char *template, *line, *text;
    } cases[] = {
        {PLAIN, "{\"messages\":[{\"role\":\"u\",\"content\":[{\"type\":\"text\",\"text\":\"2+2=\"}]}]}", "u:2+2=;"},
        {PLAIN,
         "{\"messages\":[{\"role\":\"u\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},\"b\",{\"type\":\"input_"
         "text\","
         "\"text\":\"c\"}]},{\"role\":\"v\",\"content\":\"d\"}]}",
         "u:a\nb\nc;v:d;"},
        {PLAIN, "{\"messages\":[{\"role\":\"u\",\"content\":[]}]}", "u:;"},
        {PLAIN, "{\"messages\":[{\"role\":\"u\",\"content\":null}]}", "u:;"},
        {"{% for m in messages %}{{ 'tool_calls' in m }}{{ m.content is defined }}{{ m.n }}{% endfor %}",
         "{\"messages\":[{\"role\":\"u\",\"content\":\"x\",\"tool_calls\":null,\"n\":{\"a\":null}}]}",
         "FalseTrue{'a': None}"},
        {READS,
         "{\"messages\":[{\"role\":\"u\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},\"b\",{\"type\":\"output_"
         "text\","
         "\"text\":\"c\"}]}]}",
         "<text=a><text=b><text=c>"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ls_chat *chat = open_chat(cases[i].template);
        ls_template_output out;
        ls_error err;
        assert_ok(ls_chat_render_text(chat, cases[i].line, (int64_t)strlen(cases[i].line), "line", true, &out, &err),
                  err);
        assert_string_equal(out.text, cases[i].text);
        ls_template_output_deinit(&out);
        ls_chat_free(chat);
    }
}

static void parts_that_are_no_text_are_refused(void **state) {
    static const struct {
        const char *line, *says;
    } cases[] = {
        {"{\"messages\":[{\"role\":\"u\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"image_url\","
         "\"image_url\":{\"url\":\"http://x\"}}]}]}",
         "line: messages[0].content[1]: a part of type 'image_url'"},
        {"{\"messages\":[{\"role\":\"u\",\"content\":\"x\"},{\"role\":\"u\",\"content\":[{\"type\":\"input_audio\"}]}]"
         "}",
         "line: messages[1].content[0]: a part of type 'input_audio'"},
        {"{\"messages\":[{\"role\":\"u\",\"content\":[{\"text\":\"x\"}]}]}", "content[0]: 'type' is missing"},
        {"{\"messages\":[{\"role\":\"u\",\"content\":[{\"type\":\"text\"}]}]}", "content[0]: 'text' is missing"},
        {"{\"messages\":[{\"role\":\"u\",\"content\":[7]}]}", "content[0]"},
    };
    (void)state;
    for (int reads = 0; reads < 2; reads++) {
        ls_chat *chat = open_chat(reads ? READS : PLAIN);
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
            const int64_t bytes = (int64_t)strlen(cases[i].line);
            ls_template_output out;
            ls_error err;
            check_failed(ls_chat_render_text(chat, cases[i].line, bytes, "line", true, &out, &err), &err,
                         cases[i].says);
            check_failed(ls_chat_render_learnt(chat, cases[i].line, bytes, "line", &out, &err), &err, cases[i].says);
        }
        ls_chat_free(chat);
    }
}

/* As OpenAI's clients send a call back and data has it: the template sees its arguments as an object, as vLLM has it.
 * In transformers the text is escaped once more, and so it would be learnt. */
static void arguments_of_calls_are_objects_to_templates(void **state) {
    static const char line[] =
        "{\"messages\":[{\"role\":\"a\",\"content\":null,\"tool_calls\":[{\"id\":\"1\",\"type\":\"function\","
        "\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"x\\\": 0.1}\"}},{\"function\":{\"name\":\"g\",\"arguments\":"
        "\"\"}},{\"function\":{\"name\":\"h\",\"arguments\":{\"y\":2}}}]}]}";
    static const char broken[] =
        "{\"messages\":[{\"role\":\"a\",\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":\"[1]\"}}]}]}";
    static const char both[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"u\"},{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{"
        "\"name\":\"f\",\"arguments\":\"{\\\"x\\\": 0.1}\"}}]}]}";
    static const char alone[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"u\"},{\"role\":\"assistant\",\"content\":null,"
        "\"tool_calls\":[]}]}";
    static const char vast[] =
        "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":"
        "{\"x\": 18446744073709551616}}}]}]}";
    ls_chat *learnt = open_chat(
        "{% for m in messages %}{% if m.tool_calls %}{% generation %}{% for c in m.tool_calls %}"
        "{{ c.function.arguments | tojson }};{% endfor %}{% endgeneration %}{% else %}"
        "{{ m.content }};{% endif %}{% endfor %}");
    ls_chat *chat = open_chat("{% for c in messages[0].tool_calls %}{{ c.function.arguments | tojson }};{% endfor %}");
    ls_template_output out;
    ls_json_doc *doc;
    ls_node root;
    ls_error err;
    (void)state;
    assert_ok(ls_json_doc_open(&doc, line, sizeof line - 1, "line", &err), err);
    root = ls_json_root(doc);
    assert_ok(ls_chat_render(chat, &root, true, &out, &err), err);
    assert_string_equal(out.text, "{\"x\": 0.1};{};{\"y\": 2};");
    ls_template_output_deinit(&out);
    ls_json_doc_free(doc);
    assert_ok(ls_chat_render_text(chat, line, sizeof line - 1, "line", true, &out, &err), err);
    assert_string_equal(out.text, "{\"x\": 0.1};{};{\"y\": 2};");
    ls_template_output_deinit(&out);
    assert_ok(ls_chat_render_learnt(learnt, both, sizeof both - 1, "line", &out, &err), err);
    assert_string_equal(out.text, "u;{\"x\": 0.1};");
    ls_template_output_deinit(&out);
    ls_chat_free(learnt);
    learnt = open_chat("{% for m in messages %}{{ m.role + m.content }}{% endfor %}");
    assert_ok(ls_json_doc_open(&doc, broken, sizeof broken - 1, "line", &err), err);
    root = ls_json_root(doc);
    check_failed(ls_chat_render(chat, &root, true, &out, &err), &err,
                 "line: messages[0].tool_calls[0].function.arguments: no JSON object");
    ls_json_doc_free(doc);
    /* A template that wants text where the message has calls alone. */
    check_failed(ls_chat_render_text(learnt, alone, sizeof alone - 1, "line", true, &out, &err), &err,
                 "'content' is undefined: messages[1] has none");
    ls_chat_free(learnt);
    /* Python would write all digits, which no value of a template has here. */
    check_failed(ls_chat_render_text(chat, vast, sizeof vast - 1, "line", true, &out, &err), &err,
                 "templates have whole numbers of 64 bits, not 18446744073709551616");
    ls_chat_free(chat);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(templates_are_read_for_loops_over_content),
        cmocka_unit_test(parts_become_what_the_template_reads),
        cmocka_unit_test(parts_that_are_no_text_are_refused),
        cmocka_unit_test(arguments_of_calls_are_objects_to_templates),
    };
    return cmocka_run_group_tests(tests, make_file, remove_file);
}
