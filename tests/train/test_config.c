/* The tables of options: values from JSON and from texts, and everything that must be refused by name; the order of
 * examples. */
#define _XOPEN_SOURCE 700
#include <math.h>
#include <stdlib.h>

#include "harness.h"
#include "train/order.h"
#include "train/sft.h"

static ls_sft_options o;
static ls_config config;

static int reset(void **state) {
    (void)state;
    ls_sft_options_init(&o, &config);
    return 0;
}

static ls_status parse(const char *json, ls_error *err) {
    return ls_config_parse(&config, json, (int64_t)strlen(json), "run.json", err);
}

static void values_come_from_json_and_texts(void **state) {
    ls_error err;
    (void)state;
    assert_ok(parse("{\"model\":\"m\",\"run\":\"r\",\"seed\":\"18446744073709551615\",\"dtype\":\"bf16\",\"leaf\":4,"
                    "\"rate\":1,\"decay\":0.25,\"resume\":true,\"schedule\":\"linear\",\"batch\":7,"
                    "\"append_eos\":false,\"data\":\"d \\u00e9\"}",
                    &err),
              err);
    assert_string_equal(o.train.model, "m");
    assert_true(o.train.seed == UINT64_MAX);
    assert_int_equal(o.train.dtype, LS_BF16);
    assert_int_equal(o.train.leaf, 4);
    assert_true(o.train.rate == 1.0 && o.train.decay == 0.25);
    assert_true(o.train.resume && !o.append_eos);
    assert_int_equal(o.train.schedule, LS_RATE_LINEAR);
    assert_int_equal(o.batch, 7);
    assert_string_equal(o.data.data, "d \xC3\xA9");
    o.train.seed = 0;
    assert_ok(parse("{\"seed\":18446744073709551615}", &err), err);
    assert_true(o.train.seed == UINT64_MAX);
    assert_ok(ls_config_set(&config, "rate=2.5e-4", &err), err);
    assert_ok(ls_config_set(&config, "data=a=b", &err), err);
    assert_ok(ls_config_set(&config, "dtype=f32", &err), err);
    assert_ok(ls_config_set(&config, "seed=3", &err), err);
    assert_ok(ls_config_set(&config, "resume=false", &err), err);
    assert_true(o.train.rate == 2.5e-4 && o.train.seed == 3 && o.train.dtype == LS_F32 && !o.train.resume);
    assert_string_equal(o.data.data, "a=b");
    o.train.steps = 10;
    assert_ok(ls_train_options_check(&o.train, &err), err);
    assert_int_equal(o.train.schedule_steps, 10);
}

static void comments_say_nothing(void **state) {
    ls_error err;
    (void)state;
    assert_ok(
        parse("// what this run is for\n{\"leaf\": /* two // \n lines */ 4, \"data\": \"a//b/*c*/\\\"//\", // last\n"
              "\"batch\":/**/7}//",
              &err),
        err);
    assert_int_equal(o.train.leaf, 4);
    assert_int_equal(o.batch, 7);
    assert_string_equal(o.data.data, "a//b/*c*/\"//");
    /* -0 is 0, which is what a checkpoint says of it. */
    assert_ok(parse("{\"rate\":-0e3}", &err), err);
    assert_true(o.train.rate == 0.0 && !signbit(o.train.rate));
    check_failed(parse("// one\n/* two\n*/ {\"leaf\":4,}", &err), &err, "line 3, column");
    check_failed(parse("{}\n/* no end *", &err), &err, "run.json: invalid JSON at line 2: a comment that does not end");
    check_failed(parse("{}/*/", &err), &err, "does not end");
    check_failed(parse("{\"leaf\":4} / 2", &err), &err, "invalid JSON");
    check_failed(parse("{\"data\":\"//\\", &err), &err, "invalid JSON");
    check_failed(parse("// nothing else", &err), &err, "invalid JSON");
}

static void what_is_wrong_is_named(void **state) {
    static const struct {
        const char *json, *says;
    } files[] = {
        {"{\"bach\":3}", "run.json: bach: is no option of this run"},
        {"{\"batch\":\"3\"}", "run.json: batch: an integer is required"},
        {"{\"batch\":3.0}", "run.json: batch: an integer is required"},
        {"{\"batch\":null}", "run.json: batch: an integer is required"},
        {"{\"batch\":0}", "run.json: batch: '0' is not an integer in 1..1048576"},
        {"{\"batch\":1048577}", "'1048577' is not an integer"},
        {"{\"batch\":99999999999999999999}", "run.json: batch: '99999999999999999999' is not an integer in 1..1048576"},
        {"{\"rate\":\"fast\"}", "run.json: rate: a number is required"},
        {"{\"rate\":-1e-5}", "run.json: rate: '-1e-05' is not a number in 0..1000"},
        {"{\"resume\":1}", "run.json: resume: true or false is required"},
        {"{\"dtype\":\"f64\"}", "run.json: dtype: 'f64' is not one of f32, bf16"},
        {"{\"dtype\":[]}", "run.json: dtype: a string is required"},
        {"{\"seed\":-1}", "run.json: seed: '-1' is not an integer in 0..2^64-1"},
        {"{\"seed\":\"x\"}", "run.json: seed: 'x'"},
        {"{\"seed\":18446744073709551616}", "run.json: seed: '18446744073709551616'"},
        {"{\"data\":18446744073709551616}", "run.json: data: a string is required"},
        {"{\"seed\":\"18446744073709551616\"}", "run.json: seed: '18446744073709551616'"},
        {"{\"data\":\"a\\u0000b\"}", "NUL"},
        {"{\"leaf\":1,\"leaf\":2}", "duplicate"},
        {"[]", "expected an object"},
        {"", "empty"},
        {"{\"leaf\":1", "invalid JSON"},
    };
    static const struct {
        const char *text, *says;
    } sets[] = {
        {"batch", "'batch' is not key=value"},
        {"=3", "'' is no option of this run"},
        {"batc=3", "'batc' is no option of this run"},
        {"batch=", "batch: '' is not an integer"},
        {"batch=3x", "batch: '3x' is not an integer"},
        {"rate=nan", "rate: 'nan' is not a number"},
        {"rate=inf", "rate: 'inf' is not a number"},
        {"rate=1e-400x", "rate: '1e-400x'"},
        {"resume=yes", "resume: 'yes' is not true or false"},
        {"schedule=step", "schedule: 'step' is not one of constant, linear, cosine"},
        {"data=\xFF\xFE", "data: the text is not UTF-8"},
        {"threads=-1", "threads: '-1'"},
    };
    ls_sft_options before;
    ls_error err;
    char *longest = calloc(LS_OPTION_TEXT_MAX + 10, 1);
    (void)state;
    before = o;
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++)
        check_failed(parse(files[i].json, &err), &err, files[i].says);
    for (size_t i = 0; i < sizeof sets / sizeof sets[0]; i++)
        check_failed(ls_config_set(&config, sets[i].text, &err), &err, sets[i].says);
    memset(longest, 'x', LS_OPTION_TEXT_MAX + 5);
    memcpy(longest, "data=", 5);
    check_failed(ls_config_set(&config, longest, &err), &err, "the limit is 1023");
    free(longest);
    before.train.leaf = o.train.leaf; /* of the file that named it twice */
    assert_memory_equal(&before, &o, sizeof o);
    check_failed(ls_config_read(&config, "/nowhere/run.json", &err), &err, "/nowhere/run.json: cannot open");
}

static void impossible_together(void **state) {
    static const struct {
        const char *json, *says;
    } cases[] = {
        {"{\"run\":\"r\"}", "model: missing"},
        {"{\"model\":\"m\"}", "run: missing"},
        {"{\"model\":\"m\",\"run\":\"r\",\"rank\":2,\"ranks\":2}", "rank: 2 of 2"},
        {"{\"model\":\"m\",\"run\":\"r\",\"ranks\":2}", "address: missing"},
        {"{\"model\":\"m\",\"run\":\"r\",\"rate_floor\":1}", "floor"},
        {"{\"model\":\"m\",\"run\":\"r\",\"warmup\":10}", "cosine over 10 steps, 10 of them warm-up"},
    };
    ls_error err;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        (void)reset(state);
        assert_ok(parse(cases[i].json, &err), err);
        o.train.steps = 10;
        check_failed(ls_train_options_check(&o.train, &err), &err, cases[i].says);
    }
}

/* What is written reads back, and the digest is of what carries bits only. */
static void written_values_agree(void **state) {
    char *text;
    size_t bytes;
    FILE *file = open_memstream(&text, &bytes);
    ls_json_out json;
    ls_json_doc *doc;
    ls_node root;
    uint64_t digest;
    ls_error err;
    (void)state;
    o.train.rate = nextafter(0.1, 1);
    o.train.seed = UINT64_MAX;
    ls_json_init(&json, file);
    ls_json_begin_object(&json, NULL);
    ls_config_write(&json, &config);
    ls_json_end_object(&json);
    fclose(file);
    digest = ls_config_digest(&config);
    assert_ok(ls_json_doc_open(&doc, text, (int64_t)bytes, "state", &err), err);
    root = ls_json_root(doc);
    assert_ok(ls_config_agree(&config, &root, NULL, &err), err);
    o.train.threads = 7;
    o.train.microbatch = 3;
    assert_ok(ls_config_agree(&config, &root, NULL, &err), err);
    assert_true(ls_config_digest(&config) == digest);
    o.train.rate = 0.1;
    check_failed(ls_config_agree(&config, &root, NULL, &err), &err,
                 "state: rate: was 0.10000000000000002 and is 0.1 now");
    assert_false(ls_config_digest(&config) == digest);
    (void)reset(state);
    assert_ok(ls_config_parse(&config, text, (int64_t)bytes, "state", &err), err);
    assert_true(ls_config_digest(&config) == digest);
    ls_json_doc_free(doc);
    free(text);
}

/* A run that knows nothing of a choice did what is the first of it now. */
static void runs_older_than_a_choice_agree(void **state) {
    char *text = NULL, *from, *to;
    int64_t bytes;
    ls_json_doc *doc;
    ls_node root;
    ls_error err;
    (void)state;
    assert_ok(ls_config_text(&text, &bytes, &config, &err), err);
    from = strstr(text, "\"leaves\":\"by_number\",");
    assert_non_null(from);
    to = from + strlen("\"leaves\":\"by_number\",");
    memmove(from, to, strlen(to) + 1);
    assert_ok(ls_json_doc_open(&doc, text, (int64_t)strlen(text), "state", &err), err);
    root = ls_json_root(doc);
    assert_ok(ls_config_agree(&config, &root, NULL, &err), err);
    o.train.leaves = LS_LEAVES_BY_LENGTH;
    check_failed(ls_config_agree(&config, &root, NULL, &err), &err, "'leaves' is missing");
    ls_json_doc_free(doc);
    free(text);
}

static void every_epoch_is_a_permutation(void **state) {
    enum { N = 50 };
    ls_order *order, *again;
    int64_t differ = 0, first[N];
    ls_error err;
    (void)state;
    assert_ok(ls_order_create(&order, N, 5, &err), err);
    assert_ok(ls_order_create(&again, N, 5, &err), err);
    for (int64_t epoch = 0; epoch < 4; epoch++) {
        bool seen[N] = {false};
        for (int64_t i = 0; i < N; i++) {
            const int64_t k = ls_order_at(order, epoch * N + i);
            assert_true(k >= 0 && k < N && !seen[k]);
            seen[k] = true;
            if (epoch == 0) first[i] = k;
            differ += k != first[i];
        }
    }
    assert_true(differ > 2 * N);
    for (int64_t at = 4 * N - 1; at >= 0; at -= 37) assert_int_equal(ls_order_at(again, at), ls_order_at(order, at));
    ls_order_free(again);
    ls_order_free(order);
    /* Places of example 0 of 4 over many seeds. */
    {
        int64_t places[4] = {0};
        for (uint64_t seed = 0; seed < 4000; seed++) {
            assert_ok(ls_order_create(&order, 4, seed, &err), err);
            for (int64_t i = 0; i < 4; i++)
                if (ls_order_at(order, i) == 0) places[i]++;
            ls_order_free(order);
        }
        for (int i = 0; i < 4; i++) assert_true(places[i] > 900 && places[i] < 1100);
    }
    assert_ok(ls_order_create(&order, 1, 1, &err), err);
    assert_int_equal(ls_order_at(order, 77), 0);
    ls_order_free(order);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(values_come_from_json_and_texts, reset),
        cmocka_unit_test_setup(comments_say_nothing, reset),
        cmocka_unit_test_setup(what_is_wrong_is_named, reset),
        cmocka_unit_test_setup(impossible_together, reset),
        cmocka_unit_test_setup(written_values_agree, reset),
        cmocka_unit_test(runs_older_than_a_choice_agree),
        cmocka_unit_test(every_epoch_is_a_permutation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
