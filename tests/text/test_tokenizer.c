/* The tokenizer against what the reference library gave for the same files and texts (tests/fixtures/tok-*, written by
 * make_tokenizer_vectors.py), and its behaviour at the edges: broken text, long lines, files that must be refused. */
#define _GNU_SOURCE
#include <jansson.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/utf8.h"
#include "harness.h"
#include "record/text_lines.h"
#include "text/charsmap.h"
#include "text/regex.h"
#include "text/tokenizer.h"
#include "text/unicode.h"

static const char *const large_names[] = {"bytelevel", "cl100k-style", "spm"};
#define LARGE_N 3

static ls_tokenizer *open_large(const char *name) {
    char path[512];
    ls_tokenizer *tokenizer;
    ls_error err;
    snprintf(path, sizeof path, "%s/tok-%s", LS_FIXTURES, name);
    assert_ok(ls_tokenizer_open(&tokenizer, path, &err), err);
    return tokenizer;
}

static json_t *load_json(const char *file) {
    char path[512];
    json_error_t error;
    json_t *json;
    snprintf(path, sizeof path, "%s/%s", LS_FIXTURES, file);
    json = json_load_file(path, JSON_ALLOW_NUL, &error);
    if (json == NULL) fail_msg("%s: %s", path, error.text);
    return json;
}

static int64_t failures;

static void report(const char *name, json_t *text, const char *what, const char *detail) {
    char *shown = json_dumps(text, JSON_ENCODE_ANY | JSON_ENSURE_ASCII);
    if (failures++ < 20) print_error("%s: %s differs for %.300s: %.900s\n", name, what, shown, detail);
    free(shown);
}

static void check_ids(const ls_tokenizer *tokenizer, const char *name, json_t *text, json_t *want, bool special) {
    int32_t *ids;
    int64_t n;
    ls_error err;
    bool same;
    if (ls_tokenizer_encode(tokenizer, json_string_value(text), (int64_t)json_string_length(text), special, &ids, &n,
                            &err) != LS_OK) {
        report(name, text, "encoding", err.text);
        return;
    }
    if ((int64_t)json_string_length(text) > ls_tokenizer_bytes_max(tokenizer, n)) {
        char detail[80];
        snprintf(detail, sizeof detail, "%lld tokens, %lld bytes at most", (long long)n,
                 (long long)ls_tokenizer_bytes_max(tokenizer, n));
        report(name, text, "bound", detail);
    }
    same = n == (int64_t)json_array_size(want);
    for (int64_t i = 0; same && i < n; i++) same = ids[i] == json_integer_value(json_array_get(want, (size_t)i));
    if (!same) {
        char *list = json_dumps(want, 0), detail[2000];
        size_t used = (size_t)snprintf(detail, sizeof detail, "want %.800s have", list);
        for (int64_t i = 0; i < n && used < sizeof detail - 20; i++)
            used += (size_t)snprintf(detail + used, sizeof detail - used, " %d", ids[i]);
        report(name, text, special ? "ids" : "plain ids", detail);
        free(list);
    }
    free(ids);
}

static void check_text(const ls_tokenizer *tokenizer, const char *name, json_t *text, json_t *ids, json_t *want,
                       bool skip) {
    const size_t n = json_array_size(ids);
    int32_t *list = malloc((n + 1) * sizeof *list);
    char *out;
    int64_t bytes;
    ls_error err;
    for (size_t i = 0; i < n; i++) list[i] = (int32_t)json_integer_value(json_array_get(ids, i));
    if (ls_tokenizer_decode(tokenizer, list, (int64_t)n, skip, &out, &bytes, &err) != LS_OK) {
        report(name, text, "decoding", err.text);
    } else {
        if ((size_t)bytes != json_string_length(want) || memcmp(out, json_string_value(want), (size_t)bytes) != 0)
            report(name, text, skip ? "text without special tokens" : "text", out);
        free(out);
    }
    free(list);
}

static void check_vectors(const ls_tokenizer *tokenizer, const char *name, json_t *vectors) {
    size_t i;
    json_t *vector;
    json_array_foreach(vectors, i, vector) {
        json_t *text = json_object_get(vector, "text"), *ids = json_object_get(vector, "ids");
        json_t *plain = json_object_get(vector, "plain"), *skipped = json_object_get(vector, "skipped");
        json_t *whole = json_object_get(vector, "whole");
        /* A field that would repeat another is left out. */
        if (skipped == NULL) skipped = text;
        check_ids(tokenizer, name, text, ids, true);
        check_ids(tokenizer, name, text, plain == NULL ? ids : plain, false);
        check_text(tokenizer, name, text, ids, skipped, true);
        check_text(tokenizer, name, text, ids, whole == NULL ? skipped : whole, false);
    }
    assert_true(i > 0);
}

static void first_vectors_match(void **state) {
    (void)state;
    failures = 0;
    for (int k = 0; k < LARGE_N; k++) {
        char file[64];
        ls_tokenizer *tokenizer = open_large(large_names[k]);
        json_t *vectors, *vector;
        size_t i;
        snprintf(file, sizeof file, "tok-%s/vectors.json", large_names[k]);
        vectors = load_json(file);
        assert_int_equal(ls_tokenizer_size(tokenizer), 4096);
        json_array_foreach(vectors, i, vector) {
            json_t *text = json_object_get(vector, "text"), *ids = json_object_get(vector, "ids");
            check_ids(tokenizer, large_names[k], text, ids, true);
            check_ids(tokenizer, large_names[k], text, json_object_get(vector, "ids_no_special"), false);
            check_text(tokenizer, large_names[k], text, ids, json_object_get(vector, "decoded"), true);
        }
        assert_true(i > 10);
        json_decref(vectors);
        ls_tokenizer_free(tokenizer);
    }
    assert_int_equal(failures, 0);
}

static void large_vectors_match(void **state) {
    json_t *all = load_json("tok-extra/large.json");
    (void)state;
    failures = 0;
    for (int k = 0; k < LARGE_N; k++) {
        ls_tokenizer *tokenizer = open_large(large_names[k]);
        check_vectors(tokenizer, large_names[k], json_object_get(json_object_get(all, large_names[k]), "vectors"));
        ls_tokenizer_free(tokenizer);
    }
    json_decref(all);
    assert_int_equal(failures, 0);
}

/* Returns how many tokenizers there were. */
static size_t check_cases(const char *path) {
    json_t *all = load_json(path), *models = json_object_get(all, "models"), *one;
    size_t i;
    failures = 0;
    json_array_foreach(json_object_get(all, "cases"), i, one) {
        const char *name = json_string_value(json_object_get(one, "name"));
        json_t *file = json_object_get(one, "tokenizer");
        const json_int_t model = json_integer_value(json_object_get(file, "model"));
        ls_tokenizer *tokenizer;
        char *text;
        ls_error err;
        json_object_set(file, "model", json_array_get(models, (size_t)model));
        text = json_dumps(file, 0);
        if (ls_tokenizer_parse(&tokenizer, text, (int64_t)strlen(text), name, &err) != LS_OK) {
            report(name, json_object_get(one, "name"), "parsing", err.text);
        } else {
            check_vectors(tokenizer, name, json_object_get(one, "vectors"));
            ls_tokenizer_free(tokenizer);
        }
        free(text);
    }
    json_decref(all);
    assert_int_equal(failures, 0);
    return i;
}

static void small_vectors_match(void **state) {
    (void)state;
    assert_true(check_cases("tok-extra/small.json") > 60);
}

static void unigram_vectors_match(void **state) {
    (void)state;
    assert_int_equal(check_cases("tok-extra/unigram.json"), 6);
}

static void families_match(void **state) {
    (void)state;
    assert_int_equal(check_cases("tok-extra/families.json"), 5);
}

#define UNIGRAM(rest) "{\"model\":{\"type\":\"Unigram\"," rest "}}"

/* Hostile rules are refused when they are read, or when they are needed; nothing is read beyond them. */
static void broken_rules_are_refused(void **state) {
    static const char *const bad[][2] = {{"", "0 bytes with a trie"},
                                         {"A", "1 characters are no base64"},
                                         {"!AAA", "character 0 is not of base64"},
                                         {"AAAA", "3 bytes with a trie"},
                                         {"BAAAAAA=", "5 bytes with a trie of 4"},
                                         {"////fwAAAAA=", "8 bytes with a trie of"},
                                         {"BAAAAAAAAAD/", "the replacements are not UTF-8"}};
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        ls_charsmap map;
        ls_error err;
        check_failed(ls_charsmap_parse(&map, bad[i][0], (int64_t)strlen(bad[i][0]), &err), &err, bad[i][1]);
    }
    /* One unit that leads out of the trie. */
    {
        ls_charsmap map;
        ls_text out = {0};
        ls_error err;
        assert_ok(ls_charsmap_parse(&map, "BAAAAAD8//8=", 12, &err), err);
        assert_ok(ls_charsmap_apply(&map, "a\xc3\xa9", 3, &out, &err), err);
        assert_int_equal(out.bytes, 3);
        assert_memory_equal(out.data, "a\xc3\xa9", 3);
        ls_text_deinit(&out);
        ls_charsmap_deinit(&map);
    }
}

static void broken_unigram_models_are_refused(void **state) {
    static const char *const bad[][2] = {
        {UNIGRAM("\"unk_id\":0"), "'vocab' is missing"},
        {UNIGRAM("\"unk_id\":0,\"vocab\":[]"), "model.vocab: 0 pieces"},
        {UNIGRAM("\"unk_id\":0,\"vocab\":[[\"a\"]]"), "model.vocab[0]: a piece and its score"},
        {UNIGRAM("\"unk_id\":0,\"vocab\":[[\"a\",\"x\"]]"), "model.vocab[0][1]: a number"},
        {UNIGRAM("\"unk_id\":0,\"vocab\":[[\"\",-1]]"), "model.vocab[0][0]: an empty piece"},
        {UNIGRAM("\"unk_id\":0,\"vocab\":[[\"a\",-1],[\"a\",-2]]"), "'a' stands here a second time"},
        {UNIGRAM("\"unk_id\":2,\"vocab\":[[\"a\",-1],[\"b\",-2]]"), "model.unk_id: 2 is not in 0..1"},
        {UNIGRAM("\"merges\":[],\"vocab\":[[\"a\",-1]]"), "model.merges: this field is not supported"}};
    ls_tokenizer *tokenizer = NULL;
    int32_t *ids;
    int64_t n;
    ls_error err;
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        check_failed(ls_tokenizer_parse(&tokenizer, bad[i][0], (int64_t)strlen(bad[i][0]), "F", &err), &err, bad[i][1]);
    {
        static const char no_unknown[] = UNIGRAM("\"unk_id\":null,\"vocab\":[[\"a\",-1]]");
        assert_ok(ls_tokenizer_parse(&tokenizer, no_unknown, (int64_t)strlen(no_unknown), "F", &err), err);
    }
    assert_ok(ls_tokenizer_encode(tokenizer, "aa", 2, false, &ids, &n, &err), err);
    assert_int_equal(n, 2);
    free(ids);
    check_failed(ls_tokenizer_encode(tokenizer, "ab", 2, false, &ids, &n, &err), &err, "U+0062 needs an unknown token");
    ls_tokenizer_free(tokenizer);
}

static uint64_t hash_id(uint64_t hash, uint32_t id) {
    for (int shift = 0; shift < 32; shift += 8) hash = (hash ^ (id >> shift & 0xFF)) * 0x100000001B3ull;
    return hash;
}

/* Sanitizers make everything ten times as long: of code points one block in four, of a long line an eighth. */
enum { CODE_STEP = SANITIZED ? 4 * 4096 : 4096, LINE_BYTES = SANITIZED ? 1 << 17 : 1 << 20 };

/* Each code point four times, in contexts where its category decides the cut: CaC 'C\n. */
static void every_code_point_matches(void **state) {
    json_t *all = load_json("tok-extra/large.json");
    (void)state;
    failures = 0;
    for (int k = 0; k < LARGE_N; k++) {
        ls_tokenizer *tokenizer = open_large(large_names[k]);
        json_t *want = json_object_get(json_object_get(all, large_names[k]), "codes");
        assert_int_equal(json_array_size(want), 0x110000 / 4096);
        for (int32_t start = 0; start < 0x110000; start += CODE_STEP) {
            uint64_t hash = 0xCBF29CE484222325ull;
            char hex[20];
            for (int32_t block = start; block < start + 4096; block += 64) {
                uint8_t text[64 * 16];
                int64_t n = 0, n_ids;
                int32_t *ids;
                ls_error err;
                for (int32_t c = block; c < block + 64; c++) {
                    if (c >= 0xD800 && c <= 0xDFFF) continue;
                    n += ls_utf8_encode(c, text + n);
                    text[n++] = 'a';
                    n += ls_utf8_encode(c, text + n);
                    text[n++] = ' ';
                    text[n++] = '\'';
                    n += ls_utf8_encode(c, text + n);
                    text[n++] = '\n';
                }
                assert_ok(ls_tokenizer_encode(tokenizer, (char *)text, n, false, &ids, &n_ids, &err), err);
                for (int64_t i = 0; i < n_ids; i++) hash = hash_id(hash, (uint32_t)ids[i]);
                hash = hash_id(hash, 0xFFFFFFFFu);
                free(ids);
            }
            snprintf(hex, sizeof hex, "%016llx", (unsigned long long)hash);
            if (strcmp(hex, json_string_value(json_array_get(want, (size_t)(start / 4096)))) != 0) {
                print_error("%s: U+%04X..U+%04X differ\n", large_names[k], (unsigned)start, (unsigned)start + 4095);
                failures++;
            }
        }
        ls_tokenizer_free(tokenizer);
    }
    json_decref(all);
    assert_int_equal(failures, 0);
}

/* The negative control of the test above: one id more must change the hash. */
static void hash_sees_one_id(void **state) {
    (void)state;
    assert_true(hash_id(hash_id(1, 7), 8) != hash_id(hash_id(1, 8), 7));
    assert_true(hash_id(1, 7) != hash_id(1, 8));
}

static void ill_formed_text_is_replaced(void **state) {
    static const struct {
        const char *broken, *repaired;
    } cases[] = {{"a\xFF", "a\xEF\xBF\xBD"},
                 {"\x80\x80", "\xEF\xBF\xBD\xEF\xBF\xBD"},
                 {"\xE2\x82 x", "\xEF\xBF\xBD x"},
                 {"\xED\xA0\x80", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"},
                 {"\xF0\x9F\x98", "\xEF\xBF\xBD"},
                 {"a\xF1\x80\x80\xE1\x80\xC2"
                  "b",
                  "a\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"
                  "b"},
                 {"\xC0\xAF<|endoftext|>\xF8", "\xEF\xBF\xBD\xEF\xBF\xBD<|endoftext|>\xEF\xBF\xBD"}};
    (void)state;
    for (int k = 0; k < LARGE_N; k++) {
        ls_tokenizer *tokenizer = open_large(large_names[k]);
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
            int32_t *a, *b;
            int64_t n_a, n_b;
            ls_error err;
            assert_ok(
                ls_tokenizer_encode(tokenizer, cases[i].broken, (int64_t)strlen(cases[i].broken), true, &a, &n_a, &err),
                err);
            assert_ok(ls_tokenizer_encode(tokenizer, cases[i].repaired, (int64_t)strlen(cases[i].repaired), true, &b,
                                          &n_b, &err),
                      err);
            assert_int_equal(n_a, n_b);
            assert_memory_equal(a, b, (size_t)n_a * sizeof *a);
            free(a);
            free(b);
        }
        ls_tokenizer_free(tokenizer);
    }
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static double seconds_to_encode(const ls_tokenizer *tokenizer, const char *line, int64_t n, int32_t **ids,
                                int64_t *n_ids) {
    const double begin = seconds();
    ls_error err;
    assert_ok(ls_tokenizer_encode(tokenizer, line, n, true, ids, n_ids, &err), err);
    return seconds() - begin;
}

enum { PARTS = 8, TURNS = 4 };

/* One line of a megabyte without a space, beside an eighth of it: a quadratic merge loop or matcher would take 64 times
 * as long, in every turn; a machine that is busy meanwhile does not, in one of four. */
static void long_lines_take_linear_time(void **state) {
    static const char *const units[] = {"a",
                                        "ab",
                                        "abcdefghijklmnopqrstuvwxyz",
                                        "1",
                                        "\xE4\xBD\xA0\xE5\xA5\xBD",
                                        " ",
                                        "\n",
                                        "e\xCC\x81\xCC\xA3",
                                        "\xCC\x81\xCC\xA3",
                                        "A",
                                        "<|",
                                        "'s",
                                        "\xFF",
                                        "x <|endoftext|>"};
    const int64_t bytes = LINE_BYTES;
    (void)state;
    for (int k = 0; k < LARGE_N; k++) {
        ls_tokenizer *tokenizer = open_large(large_names[k]);
        for (size_t u = 0; u < sizeof units / sizeof units[0]; u++) {
            char *line = malloc((size_t)bytes + 64), *back;
            const int64_t unit = (int64_t)strlen(units[u]);
            int64_t n = 0, n_ids, n_back;
            int32_t *ids;
            double part, whole;
            int turn = 0;
            ls_error err;
            for (; n < bytes; n += unit) memcpy(line + n, units[u], (size_t)unit);
            do {
                if (turn > 0) free(ids);
                part = seconds_to_encode(tokenizer, line, n / PARTS, &ids, &n_ids);
                free(ids);
                whole = seconds_to_encode(tokenizer, line, n, &ids, &n_ids);
            } while (whole > 3 * PARTS * part && ++turn < TURNS);
            print_message("  %-12s %lld KiB of '%.8s': %8lld ids in %.3f s\n", large_names[k], (long long)bytes >> 10,
                          units[u][0] < 0x20 ? "\\" : units[u], (long long)n_ids, whole);
            assert_true(turn < TURNS);
            assert_ok(ls_tokenizer_decode(tokenizer, ids, n_ids, false, &back, &n_back, &err), err);
            /* NFC rewrites the marks, the ill-formed bytes are replaced, and spm's text starts after its mark. */
            if (k == 0 && u != 12) {
                assert_int_equal(n_back, n);
                assert_memory_equal(back, line, (size_t)n);
            }
            free(back);
            free(ids);
            free(line);
        }
        ls_tokenizer_free(tokenizer);
    }
}

/* Byte-level: any well-formed text comes back. */
static void decode_inverts_encode(void **state) {
    ls_tokenizer *tokenizer = open_large("bytelevel");
    uint64_t random = 12345;
    (void)state;
    for (int round = 0; round < 300; round++) {
        uint8_t text[400];
        char *back;
        int32_t *ids;
        int64_t n = 0, n_ids, n_back;
        ls_error err;
        while (n < 390 && test_random(&random) % 100 != 0) {
            const uint64_t pick = test_random(&random);
            const int32_t top = pick % 3 == 0 ? 0x110000 : pick % 3 == 1 ? 0x80 : 0x3000;
            const int32_t code = (int32_t)(test_random(&random) % (uint64_t)top);
            if (code >= 0xD800 && code <= 0xDFFF) continue;
            n += ls_utf8_encode(code, text + n);
        }
        assert_ok(ls_tokenizer_encode(tokenizer, (char *)text, n, true, &ids, &n_ids, &err), err);
        assert_ok(ls_tokenizer_decode(tokenizer, ids, n_ids, true, &back, &n_back, &err), err);
        assert_true(n <= ls_tokenizer_bytes_max(tokenizer, n_ids) && ls_tokenizer_bytes_max(tokenizer, 1) < 1000);
        assert_int_equal(n, n_back);
        assert_memory_equal(text, back, (size_t)n);
        free(back);
        free(ids);
    }
    ls_tokenizer_free(tokenizer);
}

static void unknown_ids_are_named(void **state) {
    ls_tokenizer *tokenizer = open_large("spm");
    const int32_t ids[] = {5, 4095, 4096}, negative[] = {-1};
    char *text = NULL;
    int64_t bytes;
    ls_error err;
    (void)state;
    check_failed(ls_tokenizer_decode(tokenizer, ids, 3, true, &text, &bytes, &err), &err, "4096 at position 2");
    check_failed(ls_tokenizer_decode(tokenizer, negative, 1, true, &text, &bytes, &err), &err, "-1 at position 0");
    assert_null(text);
    ls_tokenizer_free(tokenizer);
    check_failed(ls_tokenizer_open(&tokenizer, "/no-such-directory", &err), &err, "/no-such-directory/tokenizer.json");
    assert_null(tokenizer);
    ls_tokenizer_free(NULL);
}

/* A whole file around one component; %s in order: added tokens, normalizer, pre-tokenizer, post-processor, decoder,
 * more fields of the model. */
static char *file_with(const char *key, const char *value) {
    static const char *const keys[] = {"added_tokens", "normalizer", "pre_tokenizer", "post_processor",
                                       "decoder",      "truncation", "padding",       "version"};
    json_t *root =
        json_loads("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"a b\"]}}", 0, NULL);
    json_t *part = json_loads(value, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    bool top = strcmp(key, "extra") == 0 || strcmp(key, "model") == 0;
    char *text;
    assert_non_null(root);
    assert_non_null(part);
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) top = top || strcmp(keys[i], key) == 0;
    json_object_set_new(top ? root : json_object_get(root, "model"), key, part);
    text = json_dumps(root, 0);
    json_decref(root);
    return text;
}

/* *ids of the text, by a file that says so and so; released with free(). */
static ls_status encode_by(const char *file, const char *text, int32_t **ids, int64_t *n, ls_error *err) {
    ls_tokenizer *tokenizer;
    ls_status status;
    assert_ok(ls_tokenizer_parse(&tokenizer, file, (int64_t)strlen(file), "F", err), *err);
    status = ls_tokenizer_encode(tokenizer, text, (int64_t)strlen(text), true, ids, n, err);
    ls_tokenizer_free(tokenizer);
    return status;
}

/* What was checked against tokenizers 0.23.3 by way of transformers 5.24.0. */
static void words_are_tokens_and_nothing_is_cut(void **state) {
#define WORDS(unk, more)                                                                                        \
    "{\"version\":\"1.0\",\"model\":{\"type\":\"WordLevel\",\"vocab\":{\"A\":0,\"C\":1,\"N\":4,\",\":2},\"unk_" \
    "token\":\"" unk "\"},\"pre_tokenizer\":{\"type\":\"Whitespace\"}" more "}"
#define CUT                                                                                                       \
    ",\"truncation\":{\"direction\":\"Right\",\"max_length\":2,\"strategy\":\"LongestFirst\",\"stride\":0},"      \
    "\"padding\":{"                                                                                               \
    "\"strategy\":{\"Fixed\":20},\"direction\":\"Left\",\"pad_to_multiple_of\":8,\"pad_id\":0,\"pad_type_id\":0," \
    "\"pad_token\":"                                                                                              \
    "\"A\"}"
    static const struct {
        const char *file, *text;
        int64_t n;
        int32_t ids[4];
    } cases[] = {
        {WORDS("N", ""), "A C AC", 3, {0, 1, 4}},
        {WORDS("N", ""), "A,N", 3, {0, 2, 4}},
        {WORDS("N", ""), "  ", 0, {0}},
        {WORDS("N", CUT), "A A C", 3, {0, 0, 1}},
        {WORDS("N", CUT), "", 0, {0}},
        {WORDS("none", ""), "A", 1, {0}},
        {WORDS("N", ",\"normalizer\":{\"type\":\"Nmt\"}"),
         "\x01"
         "A\xE2\x80\x8B"
         "C\x7F"
         "C",
         2,
         {0, 4}},
        {WORDS("N", ",\"normalizer\":{\"type\":\"Nmt\"}"),
         "A\xEF\xBB\xBF"
         "A\xE2\x96\x81"
         "C",
         3,
         {0, 0, 1}},
    };
    int32_t *ids;
    int64_t n;
    ls_error err;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_ok(encode_by(cases[i].file, cases[i].text, &ids, &n, &err), err);
        assert_int_equal(n, cases[i].n);
        for (int64_t k = 0; k < n; k++) assert_int_equal(ids[k], cases[i].ids[k]);
        free(ids);
    }
    check_failed(encode_by(WORDS("none", ""), "A B", &ids, &n, &err), &err, "'B' is not in the vocabulary, nor is");
}

/* Tokens with NUL in them, as tokenizers 0.23.3 reads them. */
static void vocabularies_may_hold_nul(void **state) {
    static const char file[] =
        "{\"version\":\"1.0\",\"model\":{\"type\":\"WordLevel\",\"vocab\":{\"a\":0,\"\\u0000\":1,\"[UNK]\":2,"
        "\"x\\\\u0000\":3,"
        "\"\\u0000b\\u0000\":4,\"\\ufdd0\":5},\"unk_token\":\"[UNK]\"},\"pre_tokenizer\":{\"type\":\"WhitespaceSplit\"}"
        "}";
    static const char text[] = "a \0 b x\\u0000 \0b\0 \xEF\xB7\x90";
    static const int32_t expected[] = {0, 1, 2, 3, 4, 5};
    ls_tokenizer *tokenizer;
    int32_t *ids;
    int64_t n, bytes;
    char *back;
    ls_error err;
    (void)state;
    assert_ok(ls_tokenizer_parse(&tokenizer, file, (int64_t)strlen(file), "F", &err), err);
    assert_ok(ls_tokenizer_encode(tokenizer, text, (int64_t)sizeof text - 1, false, &ids, &n, &err), err);
    assert_int_equal(n, 6);
    assert_memory_equal(ids, expected, sizeof expected);
    assert_ok(ls_tokenizer_decode(tokenizer, ids + 3, 2, false, &back, &bytes, &err), err);
    assert_int_equal(bytes, 11);
    assert_memory_equal(back, "x\\u0000 \0b\0", 11);
    free(back);
    free(ids);
    ls_tokenizer_free(tokenizer);
}

static void unsupported_parts_are_refused(void **state) {
    static const struct {
        ls_status status;
        const char *key, *value, *says;
    } cases[] = {
        {LS_ERR_FORMAT, "truncation", "3", "F: truncation: an object is required"},
        {LS_ERR_FORMAT, "padding", "[]", "F: padding: an object is required"},
        {LS_ERR_UNSUPPORTED, "version", "\"2.0\"", "version '2.0'"},
        {LS_ERR_UNSUPPORTED, "extra", "1", "F: extra: "},
        {LS_ERR_UNSUPPORTED, "dropout", "0.1", "F: model.dropout: "},
        {LS_ERR_UNSUPPORTED, "dropout", "\"x\"", "F: model.dropout: "},
        {LS_ERR_UNSUPPORTED, "type", "\"WordPiece\"", "F: model.type: the model 'WordPiece'"},
        {LS_ERR_UNSUPPORTED, "type", "\"Unigram\"", "F: model."},
        {LS_ERR_UNSUPPORTED, "type", "\"WordLevel\"", "F: model.merges: "},
        {LS_ERR_FORMAT, "model", "{\"type\":\"WordLevel\",\"vocab\":{\"a\":0}}", "F: model: 'unk_token' is missing"},
        {LS_ERR_UNSUPPORTED, "zap", "1", "F: model.zap: "},
        {LS_ERR_FORMAT, "model", "3", "F: model: an object is required"},
        {LS_ERR_FORMAT, "vocab", "{\"a\":0,\"b\":0,\"ab\":2}", "F: model.vocab.b: two tokens have the id 0"},
        {LS_ERR_FORMAT, "vocab", "{\"a\":-1}", "F: model.vocab.a: -1"},
        {LS_ERR_FORMAT, "vocab", "{\"a\":1.5}", "F: model.vocab.a: "},
        {LS_ERR_FORMAT, "vocab", "[]", "F: model.vocab: an object is required, found an array"},
        {LS_ERR_FORMAT, "merges", "[\"a c\"]", "F: model.merges[0]: 'c' is not in the vocabulary"},
        {LS_ERR_FORMAT, "merges", "[\"a b\",\"b a\"]", "F: model.merges[1]: 'ba'"},
        {LS_ERR_FORMAT, "merges", "[\"ab\"]", "F: model.merges[0]: "},
        {LS_ERR_FORMAT, "merges", "[[\"a\",\"b\"],\"a b\"]", "F: model.merges[1]: "},
        {LS_ERR_FORMAT, "merges", "[[\"a\"]]", "two parts"},
        {LS_ERR_UNSUPPORTED, "normalizer", "{\"type\":\"BertNormalizer\"}",
         "F: normalizer.type: the normalizer 'BertNormalizer'"},
        {LS_ERR_UNSUPPORTED, "normalizer", "{\"type\":\"NFC\",\"x\":1}", "F: normalizer.x: "},
        {LS_ERR_UNSUPPORTED, "normalizer",
         "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},{\"type\":\"ByteLevel\"}]}",
         "F: normalizer.normalizers[1].type: the normalizer 'ByteLevel'"},
        {LS_ERR_FORMAT, "normalizer", "{\"type\":\"Replace\",\"pattern\":{},\"content\":\"\"}",
         "F: normalizer.pattern: "},
        {LS_ERR_FORMAT, "normalizer", "[]", "F: normalizer: an object is required"},
        {LS_ERR_UNSUPPORTED, "pre_tokenizer",
         "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"UnicodeScripts\"}]}",
         "F: pre_tokenizer.pretokenizers[0].type: the pre-tokenizer 'UnicodeScripts'"},
        {LS_ERR_UNSUPPORTED, "pre_tokenizer",
         "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a&\"},\"behavior\":\"isolated\",\"invert\":false}",
         "F: pre_tokenizer.behavior: 'isolated'"},
        {LS_ERR_UNSUPPORTED, "pre_tokenizer",
         "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[a&&b]\"},\"behavior\":\"Isolated\",\"invert\":false}",
         "F: pre_tokenizer.pattern.Regex: class intersection"},
        {LS_ERR_FORMAT, "pre_tokenizer", "{\"type\":\"Metaspace\",\"replacement\":\"xy\"}",
         "F: pre_tokenizer.replacement: 'xy'"},
        {LS_ERR_FORMAT, "pre_tokenizer", "{\"type\":\"Metaspace\",\"replacement\":\"_\",\"add_prefix_space\":false}",
         "prepend_scheme"},
        {LS_ERR_FORMAT, "pre_tokenizer", "{\"type\":\"Digits\"}", "'individual_digits' is missing"},
        {LS_ERR_UNSUPPORTED, "post_processor",
         "{\"type\":\"TemplateProcessing\",\"single\":[{\"Sequence\":{\"id\":\"B\"}}],\"special_tokens\":{}}",
         "F: post_processor.single[0].Sequence.id: the sequence 'B'"},
        {LS_ERR_FORMAT, "post_processor",
         "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"Q\"}}],\"special_tokens\":{}}",
         "'Q' is not in special_tokens"},
        {LS_ERR_FORMAT, "post_processor", "{\"type\":\"BertProcessing\",\"sep\":[\"a\",9],\"cls\":[\"a\",0]}",
         "no token has the id 9"},
        {LS_ERR_UNSUPPORTED, "decoder", "{\"type\":\"WordPiece\",\"prefix\":\"##\",\"cleanup\":true}",
         "F: decoder.type: the decoder 'WordPiece'"},
        {LS_ERR_UNSUPPORTED, "decoder", "{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"CTC\"}]}",
         "F: decoder.decoders[0].type: "},
        {LS_ERR_UNSUPPORTED, "added_tokens",
         "[{\"id\":7,\"content\":\"x\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,"
         "\"special\":true}]",
         "F: added_tokens[0]: the id 7; this token's place gives it 3"},
        {LS_ERR_FORMAT, "added_tokens", "[{\"id\":3,\"content\":\"x\"}]",
         "F: added_tokens[0]: 'single_word' is missing"},
        {LS_ERR_FORMAT, "added_tokens",
         "[{\"id\":3,\"content\":\"\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,"
         "\"special\":true}]",
         "must not be empty"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *text = file_with(cases[i].key, cases[i].value);
        ls_tokenizer *tokenizer;
        ls_error err = {0};
        const ls_status status = ls_tokenizer_parse(&tokenizer, text, (int64_t)strlen(text), "F", &err);
        check_failed(status, &err, cases[i].says);
        if (status != cases[i].status) fail_msg("%s: status is %s", err.text, ls_status_name(status));
        assert_null(tokenizer);
        free(text);
    }
}

static void malformed_files_are_refused(void **state) {
    static const char *const files[] = {"",
                                        "{",
                                        "[]",
                                        "null",
                                        "{\"model\":{}}",
                                        "{\"model\":{\"vocab\":{}}}",
                                        "\xFF",
                                        "{\"model\":{\"vocab\":{\"a\":0,\"a\":1},\"merges\":[]}}",
                                        "{\"model\":{\"vocab\":{\"\\u0000\":0,\"\\u0000\":1},\"merges\":[]}}"};
    (void)state;
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        ls_tokenizer *tokenizer;
        ls_error err = {0};
        check_failed(ls_tokenizer_parse(&tokenizer, files[i], (int64_t)strlen(files[i]), "F", &err), &err, "F");
        assert_int_equal(err.status, LS_ERR_FORMAT);
    }
}

static void other_forms_of_tokenizers_are_named(void **state) {
    static const char *const cases[][2] = {{"tokenizer.model", "tokenizer.model alone; convert it: python3 -c"},
                                           {"vocab.json", "vocab.json of the older form; convert it: python3 -c"},
                                           {"readme", "tokenizer.json: cannot open"}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char dir[] = "/tmp/ls-test-XXXXXX", path[100];
        ls_tokenizer *tokenizer;
        ls_error err = {0};
        assert_non_null(mkdtemp(dir));
        snprintf(path, sizeof path, "%s/%s", dir, cases[i][0]);
        assert_int_equal(fclose(fopen(path, "w")), 0);
        check_failed(ls_tokenizer_open(&tokenizer, dir, &err), &err, cases[i][1]);
        assert_int_equal(unlink(path), 0);
        assert_int_equal(rmdir(dir), 0);
    }
}

static void patterns_outside_the_dialect_are_refused(void **state) {
    static const char *const unsupported[] = {
        "a{2}?", "(?m:a)", "(?x) a",  "(?<n>a)",     "(a)\\1",        "[[:alpha:]]", "[a[b]]",  "\\X",
        "\\K",   "\\pL",   "\\p{C}",  "\\p{Cn}",     "\\p{Klingon}",  "[\\P{L}]",    "[\\W]",   "a**",
        "a+*",   "*a",     "(?i:ss)", "(?i:\\p{L})", "(?i:\xC3\x9F)", "(?i:[^a])",   "\\cA",    "\\01",
        "\\x80", "[]a]",   "[a-c-e]", "a{1,2000}",   "(?i:s+)",       "\\G",         "(*FAIL)", "a(?i)b"};
    static const char *const malformed[] = {"(",     ")",           "[",       "[a",      "\\",   "\\p{L",
                                            "[z-a]", "\\x{110000}", "\\uD800", "[a-\\d]", "\\u00"};
    (void)state;
    for (size_t i = 0; i < sizeof unsupported / sizeof unsupported[0]; i++) {
        ls_regex *regex = NULL;
        ls_error err = {0};
        if (ls_regex_compile(&regex, unsupported[i], (int64_t)strlen(unsupported[i]), &err) != LS_ERR_UNSUPPORTED)
            fail_msg("'%s' is not refused: %s", unsupported[i], err.text);
        assert_null(regex);
    }
    for (size_t i = 0; i < sizeof malformed / sizeof malformed[0]; i++) {
        ls_regex *regex = NULL;
        ls_error err = {0};
        if (ls_regex_compile(&regex, malformed[i], (int64_t)strlen(malformed[i]), &err) != LS_ERR_FORMAT)
            fail_msg("'%s' is not malformed: %s", malformed[i], err.text);
        assert_null(regex);
    }
}

static void growth_is_bounded(void **state) {
    static const char step[] = "{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":\"aaaaaaaaaaaaaaaa\"}";
    char list[4096] = "{\"type\":\"Sequence\",\"normalizers\":[";
    char *text;
    ls_tokenizer *tokenizer;
    int32_t *ids = NULL;
    int64_t n;
    ls_error err;
    (void)state;
    for (int i = 0; i < 10; i++) {
        if (i > 0) strcat(list, ",");
        strcat(list, step);
    }
    strcat(list, "]}");
    text = file_with("normalizer", list);
    assert_ok(ls_tokenizer_parse(&tokenizer, text, (int64_t)strlen(text), "F", &err), err);
    check_failed(ls_tokenizer_encode(tokenizer, "a", 1, true, &ids, &n, &err), &err, "grow the text");
    assert_null(ids);
    assert_ok(ls_tokenizer_encode(tokenizer, "b", 1, true, &ids, &n, &err), err);
    assert_int_equal(n, 1);
    free(ids);
    ls_tokenizer_free(tokenizer);
    free(text);
}

static void runaway_patterns_give_up(void **state) {
    static const char hard[] = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaac b";
    char *text = file_with(
        "pre_tokenizer",
        "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(?:a+)+b\"},\"behavior\":\"Isolated\",\"invert\":false}");
    ls_tokenizer *tokenizer;
    int32_t *ids = NULL;
    int64_t n;
    ls_error err;
    (void)state;
    assert_ok(ls_tokenizer_parse(&tokenizer, text, (int64_t)strlen(text), "F", &err), err);
    check_failed(ls_tokenizer_encode(tokenizer, hard, (int64_t)strlen(hard), true, &ids, &n, &err), &err, "gave up");
    ls_tokenizer_free(tokenizer);
    free(text);
}

/* utf8proc's own ordering would take a quadratic time here, and marks newer than the reference stay put. */
static void marks_are_ordered(void **state) {
    ls_text out = {0};
    ls_error err;
    (void)state;
    assert_ok(ls_unicode_normalize("a\xCC\x81\xCC\xA3", 5, 0, &out, &err), err); /* acute (230), dot below (220) */
    assert_int_equal(out.bytes, 5);
    assert_memory_equal(out.data, "a\xCC\xA3\xCC\x81", 5);
    out.bytes = 0;
    assert_ok(ls_unicode_normalize("a\xCC\x81\xE0\xA2\x99\xCC\xA3", 8, 0, &out, &err), err); /* U+0899 parts them */
    assert_memory_equal(out.data, "a\xCC\x81\xE0\xA2\x99\xCC\xA3", 8);
    ls_text_deinit(&out);
}

typedef struct worker {
    const ls_tokenizer *tokenizer;
    int64_t wrong;
} worker;

static void *encode_often(void *context) {
    static const char text[] = "Threads share one handle: 1234, na\xC3\xAFve <|endoftext|> \xE4\xBD\xA0\xE5\xA5\xBD";
    worker *w = context;
    int32_t *want, *ids;
    int64_t n_want, n;
    if (ls_tokenizer_encode(w->tokenizer, text, sizeof text - 1, true, &want, &n_want, NULL) != LS_OK) return NULL;
    for (int i = 0; i < 200; i++) {
        if (ls_tokenizer_encode(w->tokenizer, text, sizeof text - 1, true, &ids, &n, NULL) != LS_OK) {
            w->wrong++;
            continue;
        }
        w->wrong += n != n_want || memcmp(ids, want, (size_t)n * sizeof *ids) != 0;
        free(ids);
    }
    free(want);
    return NULL;
}

static void threads_share_a_handle(void **state) {
    ls_tokenizer *tokenizer = open_large("cl100k-style");
    pthread_t threads[4];
    worker workers[4];
    (void)state;
    for (int i = 0; i < 4; i++) {
        workers[i] = (worker){.tokenizer = tokenizer};
        assert_int_equal(pthread_create(&threads[i], NULL, encode_often, &workers[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(workers[i].wrong, 0);
    }
    ls_tokenizer_free(tokenizer);
}

static void lines_are_read(void **state) {
    ls_text_line text;
    ls_ids_line ids;
    ls_error err;
    const char *good = "{\"text\":\"a\\u0000\\u00e9\",\"id\":[1,\"x\"]}";
    (void)state;
    assert_ok(ls_text_line_parse(&text, good, (int64_t)strlen(good), "standard input", 1, &err), err);
    assert_int_equal(text.bytes, 4);
    assert_memory_equal(text.text, "a\0\xC3\xA9", 4);
    assert_string_equal(text.id, "[1,\"x\"]");
    ls_text_line_deinit(&text);
    assert_ok(ls_text_line_parse(&text, "{\"text\":\"\"}", 11, "standard input", 1, &err), err);
    assert_null(text.id);
    ls_text_line_deinit(&text);
    assert_ok(ls_text_line_parse(&text, "{\"n\":1,\"text\":\"b\"}", 18, "standard input", 1, &err), err);
    assert_string_equal(text.text, "b");
    ls_text_line_deinit(&text);
    assert_ok(ls_ids_line_parse(&ids, "{\"ids\":[1,2,70000]}", 19, "standard input", 1, &err), err);
    assert_int_equal(ids.n, 3);
    assert_int_equal(ids.ids[2], 70000);
    ls_ids_line_deinit(&ids);
    static const struct {
        const char *line, *says;
    } bad_texts[] = {{"{\"text\":", "standard input: line 37"},
                     {"", "standard input: line 37"},
                     {"{\"txt\":\"a\"}", "'text' is missing"},
                     {"{\"id\":1}", "'text' is missing"},
                     {"{\"text\":3}", "standard input: line 37: text: a string is required"},
                     {"[1]", "expected an object"},
                     {"{\"text\":\"\\ud800\"}", "standard input: line 37"},
                     {"{\"text\":\"\xFF\"}", "standard input: line 37"},
                     {"{\"text\":\"a\"} x", "standard input: line 37"}};
    for (size_t i = 0; i < sizeof bad_texts / sizeof bad_texts[0]; i++)
        check_failed(ls_text_line_parse(&text, bad_texts[i].line, (int64_t)strlen(bad_texts[i].line), "standard input",
                                        37, &err),
                     &err, bad_texts[i].says);
    check_failed(ls_ids_line_parse(&ids, "{\"ids\":[1,-2]}", 14, "standard input", 37, &err), &err, "ids[1]: -2");
    check_failed(ls_ids_line_parse(&ids, "{\"ids\":[1.0]}", 13, "standard input", 37, &err), &err, "ids[0]");
    check_failed(ls_ids_line_parse(&ids, "{\"ids\":[4294967296]}", 20, "standard input", 37, &err), &err, "4294967296");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(first_vectors_match),
        cmocka_unit_test(large_vectors_match),
        cmocka_unit_test(small_vectors_match),
        cmocka_unit_test(families_match),
        cmocka_unit_test(unigram_vectors_match),
        cmocka_unit_test(broken_unigram_models_are_refused),
        cmocka_unit_test(broken_rules_are_refused),
        cmocka_unit_test(every_code_point_matches),
        cmocka_unit_test(hash_sees_one_id),
        cmocka_unit_test(ill_formed_text_is_replaced),
        cmocka_unit_test(long_lines_take_linear_time),
        cmocka_unit_test(decode_inverts_encode),
        cmocka_unit_test(unknown_ids_are_named),
        cmocka_unit_test(words_are_tokens_and_nothing_is_cut),
        cmocka_unit_test(vocabularies_may_hold_nul),
        cmocka_unit_test(unsupported_parts_are_refused),
        cmocka_unit_test(malformed_files_are_refused),
        cmocka_unit_test(other_forms_of_tokenizers_are_named),
        cmocka_unit_test(patterns_outside_the_dialect_are_refused),
        cmocka_unit_test(growth_is_bounded),
        cmocka_unit_test(runaway_patterns_give_up),
        cmocka_unit_test(marks_are_ordered),
        cmocka_unit_test(threads_share_a_handle),
        cmocka_unit_test(lines_are_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
