/* Lines of problems: fields by any name, ids, what is kept, and errors that name file, line and field. */
#include <stdlib.h>

#include "harness.h"
#include "record/data_lines.h"

static const ls_data_fields usual = {.prompt = NULL};

static ls_data_line *parse(const char *text, const ls_data_fields *fields, int64_t expected) {
    ls_data_line *lines;
    int64_t n;
    ls_error err;
    assert_ok(ls_data_lines_parse(&lines, &n, text, (int64_t)strlen(text), "F", fields, &err), err);
    assert_int_equal(n, expected);
    return lines;
}

static void refused(const char *text, const ls_data_fields *fields, const char *says) {
    ls_data_line *lines;
    int64_t n;
    ls_error err;
    check_failed(ls_data_lines_parse(&lines, &n, text, (int64_t)strlen(text), "F", fields, &err), &err, says);
}

/* GSM8K as it is published: no id, and the answer is behind the reasoning. */
static void published_formats_are_read(void **state) {
    ls_data_line *x = parse(
        "{\"question\": \"How many?\", \"answer\": \"2+2=4\\n#### 4\"}\n \t\n"
        "{\"question\": \"How many?\", \"answer\": \"5\"}\n",
        &usual, 2);
    (void)state;
    assert_string_equal(x[0].prompt, "How many?");
    assert_string_equal(x[0].answer, "2+2=4\n#### 4");
    assert_int_equal(x[1].line, 3);
    assert_false(x[0].has_id);
    assert_string_equal(x[0].id, x[1].id); /* of one prompt */
    assert_int_equal(strlen(x[0].id), 16);
    ls_data_lines_free(x, 2);
}

static void fields_have_any_name(void **state) {
    const ls_data_fields named = {.prompt = "q.text", .answer = "a", .id = "meta.key"};
    ls_data_line *x = parse(
        "{\"q\":{\"text\":\"x\"},\"a\":{\"b\":[1,2.5,null]},\"meta\":{\"key\":-7},\"more\":true}\n"
        "{\"q\":{\"text\":\"y\"},\"a\":12,\"meta\":{\"key\":\"k\"}}\n"
        "{\"q.text\":\"z\\u0000z\",\"a\":false,\"meta\":{\"key\":8}}",
        &named, 3);
    (void)state;
    assert_string_equal(x[0].answer, "{\"b\":[1,2.5,null]}");
    assert_string_equal(x[0].id, "-7");
    assert_true(x[0].has_id);
    assert_non_null(strstr(x[0].whole, "\"more\":true"));
    assert_string_equal(x[1].answer, "12");
    assert_string_equal(x[1].id, "k");
    assert_int_equal(x[2].prompt_bytes, 3);
    assert_memory_equal(x[2].prompt, "z\0z", 4);
    assert_string_equal(x[2].answer, "false");
    ls_data_lines_free(x, 3);
}

/* What neither 64 bits nor a double hold stays as it was written; with 17 digits or fewer it is the double. */
static void long_numbers_keep_their_digits(void **state) {
    ls_data_line *x = parse(
        "{\"prompt\":\"x\",\"answer\":123456789012345678901234567890,\"id\":18446744073709551615}\n"
        "{\"prompt\":\"x\",\"answer\":[-9223372036854775809,0.1234567890123456789,0.10000000000000001],\"id\":2,"
        "\"n\":{\"k\":[1,\"20000000000000000000\",20000000000000000000,2]}}",
        &usual, 2);
    (void)state;
    assert_string_equal(x[0].answer, "123456789012345678901234567890");
    assert_string_equal(x[0].id, "18446744073709551615");
    assert_string_equal(x[1].answer, "[-9223372036854775809,0.1234567890123456789,0.1]");
    assert_non_null(strstr(x[1].whole, "{\"k\":[1,\"20000000000000000000\",20000000000000000000,2]}"));
    ls_data_lines_free(x, 2);
    refused("{\"prompt\":\"x\",\"answer\":1e400}", &usual, "F: line 1: invalid JSON at line 1, column");
    refused("{\"prompt\":\"x\",\"id\":18446744073709551615.5}", &usual, "F: line 1: id: a string is required");
}

/* Decimals as they were written: 0.1 and not the 17 digits of its double. */
static void answers_keep_their_decimals(void **state) {
    ls_data_line *x = parse(
        "{\"prompt\":\"x\",\"answer\":0.1,\"id\":1}\n"
        "{\"prompt\":\"x\",\"answer\":[0.1,3.0,1e-7,\"0.10000000000000001 \\\\\\\"\",-2.5e30,\"\"],\"id\":2}\n"
        "{\"prompt\":\"x\",\"answer\":-7,\"id\":3}",
        &usual, 3);
    (void)state;
    assert_string_equal(x[0].answer, "0.1");
    assert_false(x[0].is_list);
    assert_string_equal(x[1].answer, "[0.1,3.0,1e-7,\"0.10000000000000001 \\\\\\\"\",-2.5e30,\"\"]");
    assert_true(x[1].is_list);
    assert_string_equal(x[2].answer, "-7");
    assert_non_null(strstr(x[0].whole, "\"answer\":0.1,"));
    ls_data_lines_free(x, 3);
}

static void an_answer_may_be_missing(void **state) {
    ls_data_line *x = parse("{\"prompt\":\"x\",\"id\":3}\n{\"prompt\":\"y\",\"answer\":null,\"id\":\"4\"}", &usual, 2);
    (void)state;
    assert_null(x[0].answer);
    assert_null(x[1].answer);
    ls_data_lines_free(x, 2);
}

static void other_names_of_an_answer_are_read(void **state) {
    ls_data_line *x = parse(
        "{\"prompt\":\"x\",\"label\":\"a\"}\n{\"prompt\":\"y\",\"ground_truth\":\"b\"}\n"
        "{\"prompt\":\"z\",\"reward_model\":{\"style\":\"rule\",\"ground_truth\":\"c\"}}",
        &usual, 3);
    (void)state;
    assert_string_equal(x[0].answer, "a");
    assert_string_equal(x[1].answer, "b");
    assert_string_equal(x[2].answer, "c");
    ls_data_lines_free(x, 3);
}

static void an_instruction_is_never_dropped(void **state) {
    static const ls_data_fields named = {.prompt = "instruction"};
    static const char both[] = "{\"instruction\":\"Add.\",\"input\":\"2+2\",\"output\":\"4\"}";
    ls_data_line *x = parse("{\"instruction\":\"Add 2 and 2.\",\"input\":\"\",\"output\":\"4\"}", &usual, 1);
    (void)state;
    assert_string_equal(x->prompt, "Add 2 and 2.");
    assert_string_equal(x->answer, "4");
    ls_data_lines_free(x, 1);
    refused(both, &usual, "F: line 1: input: stands beside 'instruction'");
    x = parse(both, &named, 1);
    assert_string_equal(x->prompt, "Add.");
    ls_data_lines_free(x, 1);
}

static void marks_of_a_conversation_stay_with_it(void **state) {
    ls_data_line *x = parse("{\"messages\":[{\"role\":\"user\"}],\"message_loss_mask\":[0]}", &usual, 1);
    (void)state;
    assert_non_null(strstr(x->prompt, ",\"message_loss_mask\":[0]}"));
    ls_data_lines_free(x, 1);
}

static void a_byte_order_mark_is_skipped(void **state) {
    ls_data_line *x = parse("\xef\xbb\xbf{\"prompt\":\"x\"}\n \n", &usual, 1);
    (void)state;
    assert_string_equal(x->prompt, "x");
    ls_data_lines_free(x, 1);
    refused("{\"prompt\":\"x\"}\n\xef\xbb\xbf{\"prompt\":\"y\"}", &usual, "F: line 2: begins with a byte order mark");
}

/* Only where somebody says which field it is. */
static void a_line_may_bound_its_completions(void **state) {
    const ls_data_fields named = {.max_tokens = "meta.budget"};
    const char *const text =
        "{\"prompt\":\"x\",\"meta\":{\"budget\":16777216},\"max_tokens\":\"no number\"}\n"
        "{\"prompt\":\"y\",\"max_tokens\":7}";
    ls_data_line *x = parse(text, &named, 2);
    (void)state;
    assert_int_equal(x[0].max_tokens, 1 << 24);
    assert_int_equal(x[1].max_tokens, 0);
    ls_data_lines_free(x, 2);
    x = parse(text, &usual, 2);
    assert_int_equal(x[0].max_tokens + x[1].max_tokens, 0);
    ls_data_lines_free(x, 2);
    refused("{\"prompt\":\"x\",\"meta\":{\"budget\":0}}", &named, "F: line 1: meta.budget: ");
    refused("{\"prompt\":\"x\",\"meta\":{\"budget\":16777217}}", &named, "F: line 1: meta.budget: ");
    refused("{\"prompt\":\"x\",\"meta\":{\"budget\":1.5}}", &named, "F: line 1: meta.budget: ");
}

static void errors_name_file_line_and_field(void **state) {
    const ls_data_fields named = {.prompt = "q", .answer = "a", .id = "n"};
    char id[400];
    (void)state;
    refused("", &usual, "F: holds no line");
    refused(" \n\t\n", &usual, "F: holds no line");
    refused("{\"prompt\":\"x\"}\nx", &usual, "F: line 2: invalid JSON");
    refused("PAR1x", &usual, "F: line 1: is Parquet; convert it: python3 -c \"import sys, pandas; ");
    refused("{\"text\":\"x\"}", &usual, "F: line 1: none of prompt, question");
    refused("{\"prompt\":\"x\"}", &named, "F: line 1: 'q' is missing");
    refused("{\"prompt\":\"x\",\"images\":[\"a.png\"]}", &usual, "F: line 1: images: the model reads text alone");
    refused("{\"prompt\":\"x\",\"audio\":{\"path\":\"a\"}}", &usual, "F: line 1: audio: the model reads text alone");
    refused("{\"q\":\"x\"}", &named, "F: line 1: 'a' is missing");
    refused("{\"q\":\"x\",\"a\":\"y\"}", &named, "F: line 1: 'n' is missing");
    refused("{\"prompt\":\"\"}", &usual, "F: line 1: prompt: is empty");
    refused("{\"prompt\":\"[{\\\"role\\\":\\\"user\\\",\\\"content\\\":\\\"x\\\"}]\"}", &usual,
            "F: line 1: prompt: is the JSON text of messages");
    refused("{\"prompt\":[1]}", &usual, "F: line 1: prompt: a string is required, found an array");
    refused("{\"prompt\":\"x\",\"id\":[1]}", &usual, "F: line 1: id: a string is required");
    refused("{\"prompt\":\"x\",\"id\":\"\"}", &usual, "F: line 1: id: 0 bytes");
    refused("{\"prompt\":\"x\",\"id\":1}\n{\"prompt\":\"y\",\"id\":\"1\"}", &usual,
            "F: line 2: id: '1' is also on line 1");
    snprintf(id, sizeof id, "{\"prompt\":\"x\",\"id\":\"%0300d\"}", 7);
    refused(id, &usual, "id: 300 bytes; an id has 1 to 255");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_line_may_bound_its_completions),
        cmocka_unit_test(published_formats_are_read),
        cmocka_unit_test(fields_have_any_name),
        cmocka_unit_test(answers_keep_their_decimals),
        cmocka_unit_test(long_numbers_keep_their_digits),
        cmocka_unit_test(an_answer_may_be_missing),
        cmocka_unit_test(other_names_of_an_answer_are_read),
        cmocka_unit_test(an_instruction_is_never_dropped),
        cmocka_unit_test(marks_of_a_conversation_stay_with_it),
        cmocka_unit_test(a_byte_order_mark_is_skipped),
        cmocka_unit_test(errors_name_file_line_and_field),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
