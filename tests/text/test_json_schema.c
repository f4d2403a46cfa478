/* Schemas: every keyword on values that are of the form and on values that are not; what is not known is refused. */
#include "harness.h"
#include "text/json_schema.h"

static void every_keyword_decides(void **state) {
    static const struct {
        const char *schema, *good[5], *bad[5];
    } cases[] = {
        {"{}", {"1", "null", "[{}]"}, {"", "1 2", "{", "1,\"x\":2", "nul"}},
        {"{\"type\":\"object\"}", {"{}", " {\"a\":1} "}, {"[]", "1"}},
        {"{\"type\":\"integer\"}", {"1", "-3", "2.0"}, {"1.5", "\"1\"", "true"}},
        {"{\"type\":\"number\"}", {"1", "1.5"}, {"\"1\""}},
        {"{\"type\":[\"string\",\"null\"]}", {"\"\"", "null"}, {"0", "[]"}},
        {"{\"type\":\"boolean\"}", {"true", "false"}, {"0"}},
        {"{\"enum\":[1,\"a\",[2,{\"b\":null}]]}",
         {"1", "1.0", "\"a\"", "[2,{\"b\":null}]"},
         {"2", "\"b\"", "[2]", "[2,{}]"}},
        {"{\"const\":{\"a\":1,\"b\":2}}", {"{\"b\":2,\"a\":1}"}, {"{\"a\":1}", "{\"a\":1,\"b\":2,\"c\":3}"}},
        {"{\"required\":[\"a\"]}", {"{\"a\":null}", "3"}, {"{}", "{\"b\":1}"}},
        {"{\"properties\":{\"a\":{\"type\":\"string\"}}}", {"{}", "{\"a\":\"\"}", "{\"b\":1}"}, {"{\"a\":1}"}},
        {"{\"properties\":{\"a\":true},\"additionalProperties\":false}", {"{}", "{\"a\":1}"}, {"{\"b\":1}"}},
        {"{\"additionalProperties\":{\"type\":\"null\"}}", {"{\"a\":null}"}, {"{\"a\":0}"}},
        {"{\"minProperties\":1,\"maxProperties\":2}", {"{\"a\":1}"}, {"{}", "{\"a\":1,\"b\":1,\"c\":1}"}},
        {"{\"items\":{\"type\":\"integer\"},\"minItems\":1,\"maxItems\":2}",
         {"[1]", "[1,2]"},
         {"[]", "[1,2,3]", "[\"a\"]"}},
        {"{\"minLength\":2,\"maxLength\":3}", {"\"ab\"", "\"\xc3\xa9\xc3\xa9\xc3\xa9\""}, {"\"a\"", "\"abcd\""}},
        {"{\"pattern\":\"^[0-9]+$\"}", {"\"12\"", "12"}, {"\"1a\"", "\"\""}},
        {"{\"minimum\":1,\"maximum\":2}", {"1", "2", "1.5"}, {"0", "2.1"}},
        {"{\"exclusiveMinimum\":1,\"exclusiveMaximum\":2}", {"1.5"}, {"1", "2"}},
        {"{\"multipleOf\":0.01}", {"19.99", "0", "-0.1", "3", "1e300"}, {"0.001", "1e-300", "19.995"}},
        {"{\"multipleOf\":3}", {"9007199254740993", "0.3e1", "-9"}, {"9007199254740992", "1e22", "0.3"}},
        {"{\"multipleOf\":1e-7}", {"0.3", "1e-7"}, {"1e-8"}},
        {"{\"multipleOf\":1e300}", {"2e300", "0"}, {"1", "1.5e300", "1e299"}},
        {"{\"minimum\":9007199254740993}", {"9007199254740993", "1e17"}, {"9007199254740992", "-1e300"}},
        {"{\"exclusiveMaximum\":-0.1}", {"-0.10000001", "-1e9"}, {"-0.1", "-0.10", "0", "-1e-9"}},
        {"{\"const\":9007199254740993}", {"9007199254740993"}, {"9007199254740992", "9007199254740994"}},
        /* Beyond 64 bits and beyond a double's digits. */
        {"{\"type\":\"integer\"}",
         {"123456789012345678901234567890", "-9223372036854775809", "1e400", "1.50e1"},
         {"123456789012345678901234567890.5", "0.1e-400", "1e-1"}},
        {"{\"const\":0.1}", {"0.1", "0.10", "1.0e-1"}, {"0.10000000000000000001", "0.10000000000000001"}},
        {"{\"enum\":[18446744073709551616,1e-400]}",
         {"18446744073709551616", "18446744073709551616.0", "0.1e-399"},
         {"18446744073709551617", "18446744073709551615", "0"}},
        {"{\"const\":[1,{\"a\":9007199254740993.5},2]}",
         {"[1,{\"a\":90071992547409935e-1},2]"},
         {"[1,{\"a\":9007199254740994},2]", "[9007199254740993.5,{\"a\":1},2]"}},
        {"{\"minimum\":0.30000000000000000000001,\"maximum\":1e400}",
         {"0.30000000000000000000001", "1e400", "9e399"},
         {"0.3", "0.30000000000000000000000999", "10e400", "-1e999"}},
        {"{\"exclusiveMinimum\":99999999999999999999}", {"100000000000000000000"}, {"99999999999999999999", "1e19"}},
        {"{\"multipleOf\":7}",
         {"70000000000000000000000000000007", "7e999"},
         {"70000000000000000000000000000008", "1e999"}},
        {"{\"multipleOf\":0.000000000000000001}", {"123456789012345678.000000000000000001"}, {"1e-19"}},
        {"{\"multipleOf\":8e-2}", {"1e60", "0.16"}, {"0.02", "3e-1"}},
        {"{\"anyOf\":[{\"type\":\"null\"},{\"minimum\":3}]}", {"null", "3"}, {"2"}},
        {"{\"allOf\":[{\"minimum\":1},{\"maximum\":2}]}", {"1"}, {"0", "3"}},
        {"{\"oneOf\":[{\"minimum\":1},{\"maximum\":2}]}", {"0", "3"}, {"1", "2"}},
        {"{\"not\":{\"type\":\"string\"}}", {"1"}, {"\"a\""}},
        {"{\"items\":false}", {"[]", "1"}, {"[1]"}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ls_json_schema *schema;
        ls_error err;
        assert_ok(ls_json_schema_parse(&schema, cases[i].schema, (int64_t)strlen(cases[i].schema), "S", &err), err);
        for (int k = 0; k < 5 && cases[i].good[k] != NULL; k++)
            if (!ls_json_schema_accepts(schema, cases[i].good[k], (int64_t)strlen(cases[i].good[k]), &err))
                fail_msg("%s refuses %s: %s", cases[i].schema, cases[i].good[k], err.text);
        for (int k = 0; k < 5 && cases[i].bad[k] != NULL; k++)
            if (ls_json_schema_accepts(schema, cases[i].bad[k], (int64_t)strlen(cases[i].bad[k]), &err))
                fail_msg("%s accepts %s", cases[i].schema, cases[i].bad[k]);
        ls_json_schema_free(schema);
    }
}

static void other_schemas_are_refused(void **state) {
    static const char *const bad[][2] = {
        {"[]", "S: "},
        {"{\"type\":\"float\"}", "S: type: 'float' is no type"},
        {"{\"type\":3}", "S: type: a string is required"},
        {"{\"$ref\":\"#/x\"}", "S: $ref: this field is not supported"},
        {"{\"properties\":{\"a\":{\"format\":\"date\"}}}", "S: properties.a.format: this field is not supported"},
        {"{\"anyOf\":[{\"uniqueItems\":true}]}", "S: anyOf[0].uniqueItems"},
        {"{\"required\":\"a\"}", "S: required: an array is required"},
        {"{\"minItems\":-1}", "S: minItems: -1 is not in"},
        {"{\"minimum\":\"1\"}", "S: minimum: a number is required"},
        {"{\"multipleOf\":0}", "S: multipleOf: a number above 0 is required"},
        {"{\"multipleOf\":1.000000000000000001}", "S: multipleOf: a number of more than 18 digits"},
        {"{\"minimum\":1e-1234567890123456}",
         "S: a number has an exponent of more than 15 digits: 1e-1234567890123456"},
        {"{\"minItems\":18446744073709551616}", "S: minItems: 18446744073709551616 is beyond 64 bits"},
        {"{\"multipleOf\":-2}", "S: multipleOf: a number above 0 is required"},
        {"{\"pattern\":\"(\"}", "S: pattern: the pattern does not compile"},
        {"{\"items\":[]}", "S: items: an object is required"},
        {"{\"not\":1}", "S: not: an object is required"}};
    ls_json_schema *schema;
    ls_error err;
    char deep[1024] = "";
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        check_failed(ls_json_schema_parse(&schema, bad[i][0], (int64_t)strlen(bad[i][0]), "S", &err), &err, bad[i][1]);
    for (int i = 0; i < 80; i++) strcat(deep, "{\"not\":");
    strcat(deep, "{}");
    for (int i = 0; i < 80; i++) strcat(deep, "}");
    check_failed(ls_json_schema_parse(&schema, deep, (int64_t)strlen(deep), "S", &err), &err, "schemas deep");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_keyword_decides),
        cmocka_unit_test(other_schemas_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
