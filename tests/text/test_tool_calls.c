/* Tool calls in texts: every format, what is beside the calls, what is no call, and texts that still grow. */
#include <stdlib.h>

#include "harness.h"
#include "text/tool_calls.h"

typedef struct wanted {
    const char *format, *text, *content;
    const char *calls[4]; /* name and arguments in turns; none: the text is content */
} wanted;

static const wanted cases[] = {
    {"hermes", "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 0.1}}\n</tool_call>", "", {"f", "{\"x\": 0.1}"}},
    {"hermes",
     "Well.\n<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>\n<tool_call>{\"arguments\":{\"y\":\"}]\\\"\"},"
     "\"name\":\"g\"}</tool_call>\n",
     "Well.\n",
     {"f", "{}", "g", "{\"y\":\"}]\\\"\"}"}},
    {"hermes", "a<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call> and b", "a and b", {"f", "{}"}},
    {"hermes", "<tool_call>{\"name\":\"f\",\"arguments\":{}}", "", {"f", "{}"}},
    {"hermes", "<tool_call>{\"name\":\"f\",\"arguments\":{}</tool_call>", NULL, {0}},
    {"hermes", "<tool_call>{\"name\":\"f\",\"arguments\":\"{}\"}</tool_call>", NULL, {0}},
    {"hermes", "<tool_call>{\"name\":7,\"arguments\":{}}</tool_call>", NULL, {0}},
    {"hermes", "<tool_call>{\"name\":\"\",\"arguments\":{}}</tool_call>", NULL, {0}},
    {"hermes", "<tool_call>{\"name\":\"f\",\"parameters\":{}}</tool_call>", NULL, {0}},
    {"hermes", "<tool_call>{\"name\":\"f\",\"arguments\":{},\"name\":\"g\"}</tool_call>", NULL, {0}},
    {"hermes", "<tool_call>{\"name\":\"f\",\"arguments\":{}} no</tool_call>", NULL, {0}},
    {"hermes", "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call><tool_call>{</tool_call>", NULL, {0}},
    {"hermes", "<tool_call>", NULL, {0}},
    {"hermes", "no call", NULL, {0}},
    {"hermes", "", NULL, {0}},
    {"llama3_json", "{\"name\": \"f\", \"parameters\": {\"x\": [1, {}]}}", "", {"f", "{\"x\": [1, {}]}"}},
    {"llama3_json",
     "<|python_tag|>{\"name\":\"f\",\"arguments\":{}}; {\"name\":\"g\",\"parameters\":{}}\n",
     "",
     {"f", "{}", "g", "{}"}},
    {"llama3_json", "so: <|python_tag|>{\"name\":\"f\",\"parameters\":{}}", "so: ", {"f", "{}"}},
    {"llama3_json", "so: {\"name\":\"f\",\"parameters\":{}}", NULL, {0}},
    {"llama3_json", "{\"name\":\"f\",\"parameters\":{}} is it", NULL, {0}},
    {"llama3_json", "{\"name\":\"f\",\"parameters\":{}};", NULL, {0}},
    {"llama3_json", "{\"other\":1}", NULL, {0}},
    {"mistral",
     "[TOOL_CALLS][{\"name\":\"f\",\"arguments\":{}}, {\"name\":\"g\",\"arguments\":{\"a\":1}}]",
     "",
     {"f", "{}", "g", "{\"a\":1}"}},
    {"mistral", "x[TOOL_CALLS]f{\"a\": 1}[TOOL_CALLS]g-2.b[ARGS]{}", "x", {"f", "{\"a\": 1}", "g-2.b", "{}"}},
    {"mistral", "[TOOL_CALLS][]", NULL, {0}},
    {"mistral", "[TOOL_CALLS][{\"name\":\"f\",\"arguments\":{}}", NULL, {0}},
    {"mistral", "[TOOL_CALLS]{\"a\":1}", NULL, {0}},
    {"mistral", "[TOOL_CALLS]f{1}", NULL, {0}},
    {"jamba", "<tool_calls>[\n{\"name\": \"f\", \"arguments\": {}}\n]</tool_calls>", "", {"f", "{}"}},
    {"jamba", "<tool_calls>[{\"name\": \"f\", \"arguments\": {}}]", "", {"f", "{}"}},
    {"jamba", "<tool_calls>{\"name\": \"f\", \"arguments\": {}}</tool_calls>", NULL, {0}},
    {"off", "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>", NULL, {0}},
};
enum { N_CASES = sizeof cases / sizeof cases[0] };

static ls_call_format format_of(const wanted *w) {
    ls_call_format format;
    assert_true(ls_call_format_parse(&format, w->format));
    assert_string_equal(ls_call_format_name(format), w->format);
    return format;
}

static void calls_are_found_and_all_else_is_content(void **state) {
    (void)state;
    for (int i = 0; i < N_CASES; i++) {
        const wanted *w = &cases[i];
        ls_tool_calls calls;
        ls_error err;
        int64_t n = 0;
        assert_ok(ls_tool_calls_find(&calls, format_of(w), w->text, (int64_t)strlen(w->text), &err), err);
        for (; n < 2 && w->calls[2 * n] != NULL; n++) {
            if (n >= calls.n) fail_msg("%s: %lld calls", w->text, (long long)calls.n);
            assert_string_equal(calls.items[n].name, w->calls[2 * n]);
            assert_string_equal(calls.items[n].arguments, w->calls[2 * n + 1]);
        }
        if (n != calls.n) fail_msg("%s: %lld calls", w->text, (long long)calls.n);
        assert_string_equal(calls.content, w->content != NULL ? w->content : w->text);
        assert_int_equal(calls.content_bytes, (int64_t)strlen(calls.content));
        ls_tool_calls_deinit(&calls);
    }
}

/* What a stream may tell of every beginning is a beginning of the content, and grows; where there is no mark of a call,
 * all of it is told in time. */
static void beginnings_tell_content_alone(void **state) {
    (void)state;
    for (int i = 0; i < N_CASES; i++) {
        const wanted *w = &cases[i];
        const char *content = w->content != NULL ? w->content : w->text;
        int64_t told = 0;
        for (int64_t n = 0; n <= (int64_t)strlen(w->text); n++) {
            bool begins;
            char *copy = malloc((size_t)n + 1); /* so that a read beyond it is seen */
            int64_t settled;
            assert_non_null(copy);
            memcpy(copy, w->text, (size_t)n);
            settled = ls_tool_calls_final(format_of(w), copy, n, true, &begins);
            free(copy);
            if (settled < told || settled > n || strncmp(content, w->text, (size_t)settled) != 0)
                fail_msg("%.*s: %lld", (int)n, w->text, (long long)settled);
            told = settled;
        }
        assert_int_equal(told,
                         strstr(w->text, "no call") != NULL || w->format[0] == 'o' ? (int64_t)strlen(w->text) : told);
    }
}

static void templates_tell_their_format(void **state) {
    static const struct {
        const char *text, *format;
    } templates[] = {
        {"{{ '<tool_call>' }}", "hermes"},
        {"{{ '<tool_calls>' }}", "jamba"},
        {"{{ '[TOOL_CALLS]' }}", "mistral"},
        {"{{ '<|python_tag|>' }}", "llama3_json"},
        {"{\"name\": function name, \"parameters\": dictionary of argument name and its value}", "llama3_json"},
        {"<tool_call>\n<function=f>", "off"},
        {"{{ messages }}", "off"},
    };
    ls_call_format none;
    (void)state;
    for (size_t i = 0; i < sizeof templates / sizeof templates[0]; i++)
        assert_string_equal(
            ls_call_format_name(ls_call_format_guess(templates[i].text, (int64_t)strlen(templates[i].text))),
            templates[i].format);
    assert_false(ls_call_format_parse(&none, "auto"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_are_found_and_all_else_is_content),
        cmocka_unit_test(beginnings_tell_content_alone),
        cmocka_unit_test(templates_tell_their_format),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
