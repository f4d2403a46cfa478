/* Records: what each kind of line gives, the errors that name line and field, and bits that survive a round trip. */
#define _GNU_SOURCE
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "harness.h"
#include "record/record.h"

static ls_record *parse(const char *text, ls_record_kind kind, int64_t n_expected) {
    ls_record *records;
    int64_t n;
    ls_error err;
    assert_ok(ls_records_parse(&records, &n, text, (int64_t)strlen(text), "in.jsonl", kind, &err), err);
    assert_int_equal(n, n_expected);
    return records;
}

static void prompts_are_read(void **state) {
    ls_record *r = parse(
        "{\"id\":\"a\",\"prompt\":\"x\\u0000y\",\"other\":[{}]}\n\n \t\r\n"
        "{\"id\":\"b\",\"prompt_ids\":[0,2147483647],\"prompt\":null}",
        LS_RECORD_PROMPT, 2);
    (void)state;
    assert_string_equal(r[0].id, "a");
    assert_int_equal(r[0].prompt_bytes, 3);
    assert_memory_equal(r[0].prompt, "x\0y", 4);
    assert_null(r[0].prompt_ids);
    assert_false(r[0].has_seed);
    assert_int_equal(r[0].sample, -1);
    assert_int_equal(r[1].line, 4);
    assert_int_equal(r[1].n_prompt, 2);
    assert_int_equal(r[1].prompt_ids[1], 2147483647);
    assert_null(r[1].prompt);
    ls_records_free(r, 2);
}

#define ROLLOUT                                                                                                        \
    "{\"id\":\"q7/3\",\"prompt_ids\":[5,6],\"completion_ids\":[7,8,9,10],\"logprobs\":[-1.25,null,-0.100000001,null]," \
    "\"logprob_bits\":[\"bfa00000\",null,\"bdcccccd\",\"7fc00001\"],\"finish\":\"stop\",\"seed\":7,\"sample\":3,"      \
    "\"text\":\"hi\\n\",\"meta\":{\"logprob_of\":\"raw\",\"temperature\":0.5,\"top_k\":40,\"top_p\":1,\"min_p\":0,"    \
    "\"digest\":\"00ff\",\"weights\":2,\"slot\":47935,\"cache_hit\":3,\"preemptions\":1,\"error\":\"no more\","        \
    "\"levers\":{\"batch\":16,\"chunk\":\"whole\",\"verify\":0.1,\"shuffle\":\"18446744073709551615\"}}}\n"

static void rollout_is_read_and_written_back(void **state) {
    ls_record *r = parse(ROLLOUT, LS_RECORD_LOGPROB, 1);
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);
    ls_json_out json;
    uint32_t bits;
    (void)state;
    assert_int_equal(r->n_prompt, 2);
    assert_int_equal(r->n_completion, 4);
    assert_false(r->is_tokens);
    assert_true(r->has_logprobs);
    assert_int_equal(r->n_logprobs, 4);
    assert_true(r->logprobs[0] == -1.25f);
    assert_int_equal(r->logprob_missing[0], 0);
    assert_int_equal(r->logprob_missing[1], 1);
    assert_true(r->logprobs[2] == -0.1f);
    assert_int_equal(r->logprob_missing[3], 0);
    memcpy(&bits, &r->logprobs[3], 4);
    assert_int_equal(bits, 0x7fc00001);
    assert_string_equal(r->finish, "stop");
    assert_true(r->has_seed);
    assert_int_equal(r->seed, 7);
    assert_int_equal(r->sample, 3);
    assert_string_equal(r->text, "hi\n");
    assert_string_equal(r->logprob_of, "raw");
    assert_true(r->temperature == 0.5);
    assert_int_equal(r->top_k, 40);
    assert_string_equal(r->digest, "00ff");
    assert_int_equal(r->weights, 2);
    assert_int_equal(r->slot, 47935);
    assert_int_equal(r->cache_hit, 3);
    assert_int_equal(r->preemptions, 1);
    assert_string_equal(r->error, "no more");
    assert_int_equal(r->n_levers, 4);
    assert_string_equal(r->levers[0].name, "batch");
    assert_string_equal(r->levers[0].value, "16");
    assert_true(r->levers[0].is_number && r->levers[2].is_number);
    assert_string_equal(r->levers[1].value, "whole");
    assert_false(r->levers[1].is_number || r->levers[3].is_number);
    assert_string_equal(r->levers[2].value, "0.1");
    ls_json_init(&json, file);
    ls_record_write(&json, r);
    fclose(file);
    assert_string_equal(text, ROLLOUT);
    free(text);
    ls_records_free(r, 1);
}

static void bits_survive_a_round_trip(void **state) {
    uint64_t seed = 11;
    float values[512];
    uint8_t missing[512] = {0};
    int32_t ids[513] = {0};
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);
    ls_json_out json;
    ls_record record, *r;
    int64_t n;
    ls_error err;
    (void)state;
    for (int i = 0; i < 512; i++) {
        const uint32_t bits = (uint32_t)test_random(&seed) | UINT32_C(0x80000000); /* none is above 0 */
        memcpy(&values[i], &bits, 4);
    }
    ls_record_init(&record);
    record.id = (char *)(uintptr_t) "s";
    record.is_tokens = true;
    record.completion_ids = ids;
    record.n_completion = 513;
    record.has_logprobs = true;
    record.logprobs = values;
    record.logprob_missing = missing;
    record.n_logprobs = 512;
    ls_json_init(&json, file);
    ls_score_write(&json, &record);
    fclose(file);
    assert_ok(ls_records_parse(&r, &n, text, (int64_t)bytes, "m", LS_RECORD_LOGPROB, &err), err);
    assert_int_equal(r->n_logprobs, 512);
    assert_same_bits(r->logprobs, values, 512);
    ls_records_free(r, n);
    free(text);
}

static void nine_digits_are_enough(void **state) {
    uint64_t seed = 5;
    (void)state;
    for (int i = 0; i < 2000; i++) {
        char line[100];
        const float value = test_uniform(&seed, -20.0f, 0.0f);
        ls_record *r;
        snprintf(line, sizeof line, "{\"id\":\"s\",\"logprobs\":[%.9g]}", (double)value);
        r = parse(line, LS_RECORD_LOGPROB, 1);
        assert_same_bits(r->logprobs, &value, 1);
        ls_records_free(r, 1);
    }
}

static void refused(const char *text, ls_record_kind kind, const char *word) {
    ls_record *records;
    int64_t n;
    ls_error err;
    check_failed(ls_records_parse(&records, &n, text, (int64_t)strlen(text), "in.jsonl", kind, &err), &err, word);
    if (strstr(err.text, "in.jsonl: ") != err.text) fail_msg("'%s' does not start with the file", err.text);
    assert_null(records);
    assert_int_equal(n, 0);
}

static void values_and_bits_do_not_contradict(void **state) {
    static const char *const good[] = {
        "[-1.25],\"logprob_bits\":[\"bfa00000\"]", "[-0.1],\"logprob_bits\":[\"bdcccccd\"]",
        "[null],\"logprob_bits\":[\"7fc00001\"]",  "[null],\"logprob_bits\":[null]",
        "[-0],\"logprob_bits\":[\"80000000\"]",    "[1e-5]"};
    static const char *const bad[][2] = {
        {"[-1.25],\"logprob_bits\":[\"bfa10000\"]", "logprobs: item 0 is -1.25, and \"bfa10000\" in logprob_bits"},
        {"[null],\"logprob_bits\":[\"bfa00000\"]", "logprobs: item 0 is null"},
        {"[-1.25],\"logprob_bits\":[null]", "logprobs: item 0 is -1.25, and null"},
        {"[-1.25],\"logprob_bits\":[\"7fc00001\"]", "logprobs: item 0"},
        {"[0.5]", "logprobs: item 0 is 0.5; a log-probability is at most 0"},
        {"[0.5],\"logprob_bits\":[\"3f000000\"]", "a log-probability is at most 0"}};
    char line[256];
    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        snprintf(line, sizeof line, "{\"id\":17,\"logprobs\":%s}", good[i]);
        ls_record *r = parse(line, LS_RECORD_LOGPROB, 1);
        assert_string_equal(r->id, "17");
        ls_records_free(r, 1);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        snprintf(line, sizeof line, "{\"id\":\"a\",\"logprobs\":%s}", bad[i][0]);
        refused(line, LS_RECORD_LOGPROB, bad[i][1]);
    }
}

static void large_seeds_survive(void **state) {
    const uint64_t seeds[] = {0, INT64_MAX, (uint64_t)INT64_MAX + 1, UINT64_MAX};
    (void)state;
    for (int i = 0; i < 4; i++) {
        char *text = NULL, id[] = "s";
        int32_t ids[1] = {1};
        size_t bytes = 0;
        FILE *file = open_memstream(&text, &bytes);
        ls_json_out json;
        ls_record record, *r;
        ls_record_init(&record);
        record.id = id;
        record.prompt_ids = ids;
        record.n_prompt = 1;
        record.has_seed = true;
        record.seed = seeds[i];
        ls_json_init(&json, file);
        ls_record_write(&json, &record);
        fclose(file);
        r = parse(text, LS_RECORD_PROMPT, 1);
        assert_true(r->has_seed && r->seed == seeds[i]);
        ls_records_free(r, 1);
        free(text);
    }
}

static void what_is_absent_reads_as_absent(void **state) {
    ls_record *r = parse(
        "{\"id\":\"a\",\"prompt\":\"\",\"meta\":{\"slot\":null,\"levers\":{}}}\n"
        "{\"id\":\"b\",\"prompt\":\"\"}\n",
        LS_RECORD_PROMPT, 2);
    (void)state;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(r[i].slot, -1);
        assert_int_equal(r[i].weights, -1);
        assert_int_equal(r[i].cache_hit, -1);
        assert_int_equal(r[i].preemptions, -1);
        assert_null(r[i].error);
        assert_int_equal(r[i].n_levers, 0);
    }
    assert_non_null(r[0].levers);
    assert_null(r[1].levers);
    ls_records_free(r, 2);
}

/* Numbers of levers, written in many ways, are the same text after every reading. */
static void lever_numbers_survive(void **state) {
    static const char *const numbers[][2] = {
        {"0", "0"},
        {"-0.0", "0"},
        {"1.0", "1"},
        {"0.10000000000000001", "0.1"},
        {"1e2", "100"},
        {"1E300", "1e+300"},
        {"-5", "-5"},
        {"9223372036854775807", "9223372036854775807"},
        {"1e15", "1e+15"},
        {"4e-320", NULL},
        {"0.3333333333333333", "0.3333333333333333"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        char line[200], *text = NULL;
        size_t bytes = 0;
        FILE *file = open_memstream(&text, &bytes);
        ls_json_out json;
        ls_record *r, *again;
        snprintf(line, sizeof line, "{\"id\":\"a\",\"prompt\":\"\",\"meta\":{\"levers\":{\"x\":%s}}}", numbers[i][0]);
        r = parse(line, LS_RECORD_PROMPT, 1);
        if (numbers[i][1] != NULL) assert_string_equal(r->levers[0].value, numbers[i][1]);
        ls_json_init(&json, file);
        ls_record_write(&json, r);
        fclose(file);
        again = parse(text, LS_RECORD_PROMPT, 1);
        assert_true(again->levers[0].is_number);
        assert_string_equal(again->levers[0].value, r->levers[0].value);
        ls_records_free(again, 1);
        ls_records_free(r, 1);
        free(text);
    }
}

static void sequences_are_read(void **state) {
    ls_record *r = parse(
        "{\"id\":\"a\",\"token_ids\":[4,5,6]}\n"
        "{\"id\":\"b\",\"prompt_ids\":[1],\"completion_ids\":[]}\n"
        "{\"id\":\"c\",\"token_ids\":[4,5,6],\"logprobs\":[-1,-2]}\n"
        "{\"id\":\"d\",\"token_ids\":[4],\"logprobs\":[]}\n",
        LS_RECORD_SEQUENCE, 4);
    (void)state;
    assert_true(r[0].is_tokens);
    assert_int_equal(r[0].n_completion, 3);
    assert_non_null(r[1].completion_ids);
    assert_int_equal(r[1].n_completion, 0);
    assert_false(r[1].has_logprobs);
    assert_int_equal(r[2].n_logprobs, 2);
    assert_true(r[3].has_logprobs);
    assert_int_equal(r[3].n_logprobs, 0);
    ls_records_free(r, 4);
}

static void scores_without_tokens_are_read(void **state) {
    ls_record *r = parse("{\"id\":\"a\",\"logprob_bits\":[\"BF800000\",null]}", LS_RECORD_LOGPROB, 1);
    (void)state;
    assert_null(r->completion_ids);
    assert_int_equal(r->n_logprobs, 2);
    assert_true(r->logprobs[0] == -1.0f);
    assert_int_equal(r->logprob_missing[1], 1);
    ls_records_free(r, 1);
}

static void bad_lines_are_refused(void **state) {
    (void)state;
    refused("", LS_RECORD_PROMPT, "no record");
    refused("\n\n", LS_RECORD_PROMPT, "no record");
    refused("{\"id\":\"a\",\"prompt\":\"\"}\n{", LS_RECORD_PROMPT, "line 2: invalid JSON");
    refused("[]", LS_RECORD_PROMPT, "line 1: the JSON value is an array");
    refused("7", LS_RECORD_PROMPT, "line 1: invalid JSON");
    refused("{\"prompt\":\"x\"}", LS_RECORD_PROMPT, "line 1: id: missing");
    refused("{\"id\":7.5,\"prompt\":\"x\"}", LS_RECORD_PROMPT, "id: 7.5, expected a string");
    refused("{\"id\":7,\"prompt\":\"x\"}\n{\"id\":\"7\",\"prompt\":\"x\"}", LS_RECORD_PROMPT,
            "id: '7' is also on line 1");
    refused("{\"id\":\"a\\u0000b\",\"prompt\":\"x\"}", LS_RECORD_PROMPT, "id: contains a NUL");
    refused("{\"id\":\"a\",\"id\":\"b\",\"prompt\":\"x\"}", LS_RECORD_PROMPT, "duplicate");
    refused("{\"id\":\"a\",\"prompt\":7}", LS_RECORD_PROMPT, "prompt: 7");
    refused("{\"id\":\"a\"}", LS_RECORD_PROMPT, "neither prompt nor prompt_ids");
    refused("{\"id\":\"a\",\"prompt\":\"x\",\"prompt_ids\":[1]}", LS_RECORD_PROMPT, "both prompt and prompt_ids");
    refused("{\"id\":\"a\",\"prompt_ids\":[]}", LS_RECORD_PROMPT, "prompt_ids: an empty list");
    refused("{\"id\":\"a\",\"prompt_ids\":[1,-1]}", LS_RECORD_PROMPT, "prompt_ids: item 1 is -1");
    refused("{\"id\":\"a\",\"prompt_ids\":[2147483648]}", LS_RECORD_PROMPT, "item 0 is 2147483648");
    refused("{\"id\":\"a\",\"prompt_ids\":[1.0]}", LS_RECORD_PROMPT, "item 0 is 1");
    refused("{\"id\":\"a\",\"prompt_ids\":[null]}", LS_RECORD_PROMPT, "item 0 is null");
    refused("{\"id\":\"a\",\"prompt_ids\":{}}", LS_RECORD_PROMPT, "prompt_ids: an object");
    refused("{\"id\":\"a\",\"token_ids\":[]}", LS_RECORD_SEQUENCE, "token_ids: an empty list");
    refused("{\"id\":\"a\",\"prompt_ids\":[],\"completion_ids\":[1]}", LS_RECORD_SEQUENCE, "prompt_ids: an empty list");
    refused("{\"id\":\"a\",\"completion_ids\":[1]}", LS_RECORD_SEQUENCE, "prompt_ids: missing");
    refused("{\"id\":\"a\",\"prompt_ids\":[1]}", LS_RECORD_SEQUENCE, "neither token_ids nor completion_ids");
    refused("{\"id\":\"a\",\"prompt_ids\":[1],\"token_ids\":[1]}", LS_RECORD_SEQUENCE, "token_ids: stands beside");
    refused("{\"id\":\"a\",\"completion_ids\":[1]}", LS_RECORD_LOGPROB, "neither logprobs nor logprob_bits");
    refused("{\"id\":\"a\",\"completion_ids\":[1],\"logprobs\":[]}", LS_RECORD_LOGPROB,
            "logprobs: 0 entries, expected 1");
    refused("{\"id\":\"a\",\"token_ids\":[1,2],\"logprobs\":[-1,-1]}", LS_RECORD_LOGPROB,
            "logprobs: 2 entries, expected 1");
    refused("{\"id\":\"a\",\"logprobs\":[-1],\"logprob_bits\":[]}", LS_RECORD_LOGPROB,
            "logprob_bits: 0 entries, expected 1");
    refused("{\"id\":\"a\",\"logprobs\":[\"-1\"]}", LS_RECORD_LOGPROB, "logprobs: item 0 is \"-1\"");
    refused("{\"id\":\"a\",\"logprobs\":[1e39]}", LS_RECORD_LOGPROB, "logprobs: item 0");
    refused("{\"id\":\"a\",\"logprobs\":-1}", LS_RECORD_LOGPROB, "logprobs: -1, expected a list");
    refused("{\"id\":\"a\",\"logprob_bits\":[\"bf80000\"]}", LS_RECORD_LOGPROB, "logprob_bits: item 0 is \"bf80000\"");
    refused("{\"id\":\"a\",\"logprob_bits\":[\"bf80000g\"]}", LS_RECORD_LOGPROB, "8 hex digits");
    refused("{\"id\":\"a\",\"logprob_bits\":[\"+f800000\"]}", LS_RECORD_LOGPROB, "8 hex digits");
    refused("{\"id\":\"a\",\"logprob_bits\":[3212836864]}", LS_RECORD_LOGPROB, "item 0 is 3212836864");
    refused("{\"id\":\"a\",\"prompt\":\"\",\"seed\":-1}", LS_RECORD_PROMPT, "seed: -1");
    refused("{\"id\":\"a\",\"prompt\":\"\",\"seed\":\"-1\"}", LS_RECORD_PROMPT, "seed: \"-1\"");
    refused("{\"id\":\"a\",\"prompt\":\"\",\"seed\":\"18446744073709551616\"}", LS_RECORD_PROMPT, "seed");
    refused("{\"id\":\"a\",\"prompt\":\"\",\"seed\":1.5}", LS_RECORD_PROMPT, "seed: 1.5");
    refused("{\"id\":\"a\",\"prompt\":\"\",\"sample\":-1}", LS_RECORD_PROMPT, "sample: -1");
    refused("{\"id\":\"a\",\"prompt\":\"\",\"finish\":1}", LS_RECORD_PROMPT, "finish: 1");
    refused("{\"id\":\"a\",\"prompt\":\"\",\"meta\":[]}", LS_RECORD_PROMPT, "meta: a list");
    refused("{\"id\":\"a\",\"prompt\":\"\",\"meta\":{\"top_k\":1.5}}", LS_RECORD_PROMPT, "meta: top_k: 1.5");
    refused("{\"id\":\"a\",\"prompt\":\"\",\"meta\":{\"logprob_of\":\"x\"}}", LS_RECORD_PROMPT, "logprob_of: \"x\"");
    refused("{\"id\":\"a\",\"prompt\":\"\",\"meta\":{\"slot\":-1}}", LS_RECORD_PROMPT, "meta: slot: -1");
    refused("{\"id\":\"a\",\"prompt\":\"\",\"meta\":{\"weights\":1.5}}", LS_RECORD_PROMPT, "meta: weights: 1.5");
    refused("{\"id\":\"a\",\"prompt\":\"\",\"meta\":{\"error\":7}}", LS_RECORD_PROMPT, "meta: error: 7");
    refused("{\"id\":\"a\",\"prompt\":\"\",\"meta\":{\"levers\":[]}}", LS_RECORD_PROMPT, "meta: levers: a list");
    refused("{\"id\":\"a\",\"prompt\":\"\",\"meta\":{\"levers\":{\"a\":1,\"b\":true}}}", LS_RECORD_PROMPT,
            "meta: levers: b: true");
    refused("{\"id\":\"a\",\"prompt\":\"\",\"meta\":{\"levers\":{\"b\":\"\\u0000\"}}}", LS_RECORD_PROMPT,
            "meta: levers: b: contains a NUL");
    refused("{\"id\":\"a\",\"prompt\":\"\xFF\"}", LS_RECORD_PROMPT, "line 1: invalid JSON");
}

static void repeated_ids_name_both_lines(void **state) {
    (void)state;
    refused(
        "{\"id\":\"z\",\"prompt\":\"\"}\n{\"id\":\"a\",\"prompt\":\"\"}\n\n{\"id\":\"z\",\"prompt\":\"\"}\n"
        "{\"id\":\"a\",\"prompt\":\"\"}\n",
        LS_RECORD_PROMPT, "line 4: id: 'z' is also on line 1");
}

static void files_are_read(void **state) {
    char path[] = "/tmp/ls-test-XXXXXX";
    const int fd = mkstemp(path);
    ls_record *records;
    int64_t n;
    ls_error err;
    FILE *file;
    (void)state;
    assert_true(fd >= 0);
    file = fdopen(fd, "w");
    assert_non_null(file);
    fputs(ROLLOUT "{\"id\":\"x\",\"logprobs\":[]}", file); /* no newline at the end */
    fclose(file);
    assert_ok(ls_records_read(&records, &n, path, LS_RECORD_LOGPROB, &err), err);
    assert_int_equal(n, 2);
    ls_records_free(records, n);
    check_failed(ls_records_read(&records, &n, path, LS_RECORD_PROMPT, &err), &err, "line 2: id 'x': neither prompt");
    assert_non_null(strstr(err.text, path));
    unlink(path);
    check_failed(ls_records_read(&records, &n, path, LS_RECORD_PROMPT, &err), &err, "cannot open");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prompts_are_read),
        cmocka_unit_test(rollout_is_read_and_written_back),
        cmocka_unit_test(bits_survive_a_round_trip),
        cmocka_unit_test(nine_digits_are_enough),
        cmocka_unit_test(values_and_bits_do_not_contradict),
        cmocka_unit_test(large_seeds_survive),
        cmocka_unit_test(what_is_absent_reads_as_absent),
        cmocka_unit_test(lever_numbers_survive),
        cmocka_unit_test(sequences_are_read),
        cmocka_unit_test(scores_without_tokens_are_read),
        cmocka_unit_test(bad_lines_are_refused),
        cmocka_unit_test(repeated_ids_name_both_lines),
        cmocka_unit_test(files_are_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
