/* Built-in verifiers: what they accept, what they do not, and answers that cannot be judged against. */
#define _POSIX_C_SOURCE 200809L
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "harness.h"
#include "rl/number.h"
#include "rl/verify.h"

static ls_reply reply(const char *text) { return (ls_reply){text, text == NULL ? 0 : (int64_t)strlen(text)}; }

static void must_judge(const ls_verify *v, const char *completion, const char *answer, int expected) {
    ls_reward_result r;
    ls_error err;
    assert_ok(ls_verify_judge(v, reply(completion), reply(answer), false, &r, &err), err);
    if (!r.ok || r.reward != expected)
        fail_msg("'%s' against '%s': %g %s, expected %d", completion, answer, r.reward, r.error, expected);
}

static ls_verify *open_kind(ls_verify_kind kind, const char *pattern, const char *schema) {
    ls_verify *v;
    ls_error err;
    assert_ok(ls_verify_open(&v, kind, pattern, schema, &err), err);
    return v;
}

static void must_refuse_answer(const ls_verify *v, const char *answer, const char *says) {
    ls_reward_result r;
    ls_error err;
    check_failed(ls_verify_check(v, reply(answer), false, &err), &err, says);
    assert_ok(ls_verify_judge(v, reply("x"), reply(answer), false, &r, &err), err);
    assert_true(!r.ok && isnan(r.reward) && strstr(r.error, says) != NULL);
}

static void exact_answers(void **state) {
    ls_verify *v = open_kind(LS_VERIFY_EXACT, NULL, NULL);
    (void)state;
    must_judge(v, " ab c\n", "ab c", 1);
    must_judge(v, "ab  c", "ab c", 0);
    must_judge(v, "", "a", 0);
    must_judge(v, "AB", "ab", 0);
    must_refuse_answer(v, NULL, "missing");
    must_refuse_answer(v, " \n", "is blank");
    ls_verify_close(v);
}

static void numbers(void **state) {
    static const struct {
        const char *completion, *answer;
        int expected;
    } cases[] = {
        {"The answer is 42.", "6*7=42\n#### 42", 1},
        {"42", "41", 0},
        {"#### 42 (not 43)", "42", 1},
        {"so \\boxed{1,234} of 5", "#### 1234", 1},
        {"7 apples, 8 pears", "8", 1},
        {"7 apples, 8 pears", "7", 0},
        {"42.0", "42", 1},
        {"+0042", "42", 1},
        {"-42", "42", 0},
        {"3-2", "2", 0}, /* a formula, or a range */
        {"x = -2", "-2", 1},
        {"-0", "0", 1},
        {"$1,000,000", "1000000", 1},
        {"-$5", "-5", 1},
        {".5", "0.50", 1},
        {"0.5", "5", 0},
        {"1,23", "23", 0},
        {"1,23", "1", 0},
        {"12345678901234567890123", "12345678901234567890123", 1},
        {"12345678901234567890124", "12345678901234567890123", 0},
        {"1e5", "5", 0},
        {"1e5", "100000", 1},
        {"none", "0", 0},
        {"", "0", 0},
        {"#### none, 3", "3", 1},
        {"####", "3", 0},
        {"1,234,567.80", "1234567.8", 1},
        {"0.10", "0.1000", 1},
        {"0,5", "5", 0},
        {"00.5", ".5", 1},
    };
    ls_verify *v = open_kind(LS_VERIFY_NUMBER, NULL, NULL);
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        must_judge(v, cases[i].completion, cases[i].answer, cases[i].expected);
    must_refuse_answer(v, "none", "'none' is no single number");
    must_refuse_answer(v, "(1,5)", "'(1,5)' is no single number");
    must_refuse_answer(v, "2\\sqrt{2}", "is no single number");
    must_refuse_answer(v, "#### 3:5", "is no single number");
    ls_verify_close(v);
}

/* Pairs in the forms that GSM8K, MATH and AIME write answers in, each with what it must pay. */
static void numbers_of_published_forms(void **state) {
    ls_verify *v = open_kind(LS_VERIFY_NUMBER, NULL, NULL);
    FILE *file = fopen(LS_SOURCE_DIR "/tests/rl/number_pairs.jsonl", "r");
    char line[1024];
    int64_t n = 0;
    (void)state;
    assert_non_null(file);
    for (; fgets(line, sizeof line, file) != NULL; n++) {
        json_t *pair = json_loads(line, 0, NULL);
        assert_non_null(pair);
        must_judge(v, json_string_value(json_object_get(pair, "completion")),
                   json_string_value(json_object_get(pair, "answer")),
                   (int)json_integer_value(json_object_get(pair, "reward")));
        json_decref(pair);
    }
    fclose(file);
    assert_true(n >= 200);
    ls_verify_close(v);
}

/* A list in the data: each in it is right. */
static void lists_of_answers(void **state) {
    static const struct {
        ls_verify_kind kind;
        const char *completion, *list;
        int expected; /* -1: the answer is refused, and says `says` */
        const char *says;
    } cases[] = {
        {LS_VERIFY_NUMBER, "it is 0.5", "[\"1/2\",7]", 1, NULL},
        {LS_VERIFY_NUMBER, "7", "[\"1/2\",7]", 1, NULL},
        {LS_VERIFY_NUMBER, "0.1", "[3,0.1]", 1, NULL},
        {LS_VERIFY_NUMBER, "8", "[\"1/2\",7]", 0, NULL},
        {LS_VERIFY_NUMBER, "123456789012345678901234567890", "[3,123456789012345678901234567890]", 1, NULL},
        {LS_VERIFY_NUMBER, "123456789012345678901234567891", "[3,123456789012345678901234567890]", 0, NULL},
        {LS_VERIFY_NUMBER, "0.1", "[0.10000000000000000000001]", 0, NULL},
        {LS_VERIFY_NUMBER, "8", "[]", -1, "an empty list"},
        {LS_VERIFY_NUMBER, "8", "[8,\"none\"]", -1, "[1]: 'none' is no single number"},
        {LS_VERIFY_NUMBER, "8", "[8,[8]]", -1, "[1]: a list of answers holds texts and numbers"},
        {LS_VERIFY_NUMBER, "8", "[8,null]", -1, "[1]: a list of answers holds texts and numbers"},
        {LS_VERIFY_EXACT, "Berlin\n", "[\"Bonn\",\"Berlin\"]", 1, NULL},
        {LS_VERIFY_EXACT, "berlin", "[\"Bonn\",\"Berlin\"]", 0, NULL},
        {LS_VERIFY_EXACT, "[\"Bonn\"]", "[\"Bonn\"]", 0, NULL},
        {LS_VERIFY_EXACT, "x", "[\"x\",\" \"]", -1, "[1]: is blank"},
        {LS_VERIFY_CHOICE, "The answer is C.", "[\"A\",\"C\"]", 1, NULL},
        {LS_VERIFY_CHOICE, "The answer is B.", "[\"A\",\"C\"]", 0, NULL},
        {LS_VERIFY_REGEX, "aab", "[\"c+\",\"a+b\"]", 1, NULL},
        {LS_VERIFY_REGEX, "aa", "[\"c+\",\"a+b\"]", 0, NULL},
        {LS_VERIFY_REGEX, "aa", "[\"(\"]", -1, "[0]"},
        {LS_VERIFY_JSON, "1", "[1]", -1, "answer"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ls_verify *v = open_kind(cases[i].kind, NULL, NULL);
        ls_reward_result r;
        ls_error err;
        const ls_status status = ls_verify_check(v, reply(cases[i].list), true, &err);
        assert_ok(ls_verify_judge(v, reply(cases[i].completion), reply(cases[i].list), true, &r, &err), err);
        if (cases[i].expected < 0) {
            assert_true(status != LS_OK && !r.ok);
            if (strstr(r.error, cases[i].says) == NULL) fail_msg("%s: %s", cases[i].list, r.error);
        } else if (status != LS_OK || !r.ok || r.reward != cases[i].expected) {
            fail_msg("'%s' against %s: %g", cases[i].completion, cases[i].list, r.reward);
        }
        ls_verify_close(v);
    }
}

/* Exact, whatever the size, and no more than what is said of it. */
static void numbers_are_rational(void **state) {
    static const struct {
        const char *a, *b;
        bool equal;
    } cases[] = {{"1/3", "2/6", true},
                 {"1/3", "0.3333333333333333333333", false},
                 {"9007199254740993", "9007199254740992", false},
                 {"1e400", "10e399", true},
                 {"0.1", "1/10", true},
                 {"1e-3", "0.001", true},
                 {"0/5", "-0", true},
                 {"-1/2", "1/-2", false},
                 {"50%", "1/2", true},
                 {"50%", "50", true},
                 {"50%", "50.5", false}};
    char longest[LS_NUMBER_DIGITS + 2];
    ls_number x, y;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const bool both = ls_number_read(&x, cases[i].a, (int64_t)strlen(cases[i].a)) &&
                          ls_number_read(&y, cases[i].b, (int64_t)strlen(cases[i].b));
        if ((both && ls_number_equal(&x, &y)) != cases[i].equal) fail_msg("%s and %s", cases[i].a, cases[i].b);
    }
    memset(longest, '7', sizeof longest);
    assert_true(ls_number_read(&x, longest, LS_NUMBER_DIGITS) && ls_number_equal(&x, &x));
    assert_false(ls_number_read(&x, longest, LS_NUMBER_DIGITS + 1));
    assert_false(ls_number_read(&x, "1e401", 5));
    assert_false(ls_number_read(&x, "1/0", 3));
    assert_false(ls_number_read(&x, "", 0));
}

static void letters(void **state) {
    static const struct {
        const char *completion, *answer;
        int expected;
    } cases[] = {
        {"B", "B", 1},
        {"b", "B", 1},
        {" (b). ", "B", 1},
        {"The answer is (C).", "C", 1},
        {"Not A. The answer: D, because A is wrong.", "D", 1},
        {"A or B? I'd say B", "B", 1},
        {"A man", "B", 0},
        {"ANSWER IS C", "C", 1},
        {"none of them", "A", 0},
        {"B2", "B", 0},
        {"caf\xc3\xa9 E", "E", 1},
    };
    ls_verify *v = open_kind(LS_VERIFY_CHOICE, NULL, NULL);
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        must_judge(v, cases[i].completion, cases[i].answer, cases[i].expected);
    must_refuse_answer(v, "42", "has no letter");
    ls_verify_close(v);
}

static void patterns(void **state) {
    ls_verify *v = open_kind(LS_VERIFY_REGEX, "<answer>(.*?)</answer>", NULL), *own, *bad = NULL;
    ls_reward_result r;
    ls_error err;
    (void)state;
    must_judge(v, "hm <answer> 4 </answer>", "4", 1);
    must_judge(v, "hm <answer>5</answer>", "4", 0);
    must_judge(v, "4", "4", 0);
    must_judge(v, "<answer>9</answer>", NULL, 1);
    ls_verify_close(v);
    own = open_kind(LS_VERIFY_REGEX, "", NULL);
    must_judge(own, "abc", "^a.c$", 1);
    must_judge(own, "abd", "^a.c$", 0);
    must_refuse_answer(own, "(", "does not compile");
    must_refuse_answer(own, NULL, "missing");
    /* A pattern that gives up fails the reward, it neither earns nor loses it. */
    assert_ok(
        ls_verify_judge(own, reply("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab"), reply("(a+)+$"), false, &r, &err),
        err);
    assert_false(r.ok);
    ls_verify_close(own);
    check_failed(ls_verify_open(&bad, LS_VERIFY_REGEX, "[", NULL, &err), &err, "reward_pattern: the pattern does not");
}

static void forms(void **state) {
    char path[] = "/tmp/lockstep-test-XXXXXX";
    const int fd = mkstemp(path);
    static const char schema[] = "{\"type\":\"object\",\"required\":[\"x\"]}";
    ls_verify *v, *own = open_kind(LS_VERIFY_JSON, NULL, "");
    ls_error err;
    (void)state;
    assert_int_equal(write(fd, schema, sizeof schema - 1), sizeof schema - 1);
    close(fd);
    v = open_kind(LS_VERIFY_JSON, NULL, path);
    unlink(path);
    must_judge(v, "{\"x\":1}", NULL, 1);
    must_judge(v, "Here:\n```json\n{\"x\":1}\n```\nDone.", NULL, 1);
    must_judge(v, "{\"y\":1}", NULL, 0);
    must_judge(v, "{\"x\":1} and more", NULL, 0);
    must_judge(own, "[1]", "{\"type\":\"array\"}", 1);
    must_judge(own, "1", "{\"type\":\"array\"}", 0);
    must_refuse_answer(own, "{\"kind\":1}", "kind: this field is not supported");
    ls_verify_close(v);
    ls_verify_close(own);
    check_failed(ls_verify_open(&v, LS_VERIFY_JSON, NULL, "/nowhere/schema.json", &err), &err, "/nowhere/schema.json");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exact_answers),
        cmocka_unit_test(numbers),
        cmocka_unit_test(lists_of_answers),
        cmocka_unit_test(numbers_of_published_forms),
        cmocka_unit_test(numbers_are_rational),
        cmocka_unit_test(letters),
        cmocka_unit_test(patterns),
        cmocka_unit_test(forms),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
