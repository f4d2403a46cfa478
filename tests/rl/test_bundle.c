/* What bundle.json may say: the fuzz program has the rest. */
#include <stdio.h>
#include <string.h>

#include "harness.h"
#include "rl/bundle.h"

static const char records_text[] =
    "{\"id\":\"a\",\"prompt_ids\":[5,6],\"completion_ids\":[7,8,9],\"logprobs\":[-0.5,null,-1.25]}\n";

/* bundle.json with these texts for seed and digest, and this first difference. */
static ls_status parse(ls_bundle **out, const char *seed, const char *weights, int row, ls_error *err) {
    char text[1024];
    ls_bundle_records records = {0};
    snprintf(
        text, sizeof text,
        "{\"format\":2,\"step\":3,\"dtype\":\"f32\",\"profile\":\"exact\",\"temperature\":1,\"seed\":\"%s\","
        "\"weights\":\"%s\",\"first_prompt\":0,\"samples\":1,\"length\":8,\"slots\":2,\"tokens\":2,\"differing\":1,"
        "\"differing_sequences\":1,\"first\":{\"sequence\":0,\"row\":%d},\"levers\":{}}",
        seed, weights, row);
    assert_int_equal(ls_records_parse(&records.rollout, &records.n_rollout, records_text, sizeof records_text - 1,
                                      "records", LS_RECORD_SEQUENCE, err),
                     LS_OK);
    assert_int_equal(ls_records_parse(&records.trainer, &records.n_trainer, records_text, sizeof records_text - 1,
                                      "records", LS_RECORD_SEQUENCE, err),
                     LS_OK);
    return ls_bundle_parse(out, text, (int64_t)strlen(text), &records, "b", err);
}

static void a_bundle_is_read(void **state) {
    ls_bundle *b;
    ls_error err;
    (void)state;
    assert_int_equal(parse(&b, "18446744073709551615", "ffffffffffffffff", 3, &err), LS_OK);
    assert_true(b->sampling.seed == UINT64_MAX && b->weights == UINT64_MAX);
    assert_int_equal(b->sequences[0].n, 5);
    assert_true(b->sequences[0].mask[1] && !b->sequences[0].mask[2] && b->sequences[0].mask[3]);
    ls_bundle_free(b);
}

static void expect_refusal(const char *seed, const char *weights, int row, const char *sentence) {
    ls_bundle *b;
    ls_error err;
    assert_int_equal(parse(&b, seed, weights, row, &err), LS_ERR_FORMAT);
    assert_null(b);
    assert_string_equal(err.text, sentence);
}

static void numbers_are_digits_within_64_bits(void **state) {
    (void)state;
    expect_refusal("18446744073709551616", "0", 1, "b/bundle.json: seed: '18446744073709551616' is no number");
    expect_refusal("-1", "0", 1, "b/bundle.json: seed: '-1' is no number");
    expect_refusal("", "0", 1, "b/bundle.json: seed: '' is no number");
    expect_refusal("1", "0x1", 1, "b/bundle.json: weights: '0x1' is no number");
    expect_refusal("1", "10000000000000000", 1, "b/bundle.json: weights: '10000000000000000' is no number");
}

static void the_first_difference_was_drawn(void **state) {
    (void)state;
    expect_refusal("1", "0", 2, "b/bundle.json: first: row 2 of sequence 0 was not drawn");
    expect_refusal("1", "0", 4, "b/bundle.json: first: row 4 of sequence 0 was not drawn");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_bundle_is_read),
                                       cmocka_unit_test(numbers_are_digits_within_64_bits),
                                       cmocka_unit_test(the_first_difference_was_drawn)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
