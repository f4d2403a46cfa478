/* Stop texts against the plain way: after every token decode all of the completion and search it. */
#define _GNU_SOURCE
#include <malloc.h>
#include <stdlib.h>

#include "harness.h"
#include "text/stop.h"
#include "text/tokenizer.h"

#define TEXTS_MAX 4
#define IDS_MAX 96
#define TEXT_BYTES 512

typedef struct texts {
    char text[TEXTS_MAX][TEXT_BYTES];
    int64_t n;
} texts;

static bool contains(const ls_tokenizer *tokenizer, const int32_t *ids, int64_t n, const texts *stop) {
    char *text;
    int64_t bytes;
    ls_error err;
    bool found = false;
    assert_ok(ls_tokenizer_decode(tokenizer, ids, n, true, &text, &bytes, &err), err);
    for (int64_t i = 0; i < stop->n && !found; i++)
        found = memmem(text, (size_t)bytes, stop->text[i], strlen(stop->text[i])) != NULL;
    free(text);
    return found;
}

/* Runs one completion up to its stop; returns the number of tokens it took, 0 when it never stopped. */
static int64_t compare(const char *name, const ls_tokenizer *tokenizer, const int32_t *ids, int64_t n,
                       const texts *stop) {
    const char *list[TEXTS_MAX];
    ls_stop *object;
    ls_stop_state state;
    ls_error err;
    int64_t stopped = 0;
    for (int64_t i = 0; i < stop->n; i++) list[i] = stop->text[i];
    assert_ok(ls_stop_create(&object, tokenizer, list, stop->n, &err), err);
    ls_stop_begin(&state, object);
    for (int64_t t = 1; t <= n && stopped == 0; t++) {
        const bool expected = contains(tokenizer, ids, t, stop), got = ls_stop_reached(&state, ids, t);
        if (expected != got)
            fail_msg("%s: after %lld tokens, the last one %d: %s, expected %s for '%s'", name, (long long)t, ids[t - 1],
                     got ? "stop" : "go on", expected ? "stop" : "go on", stop->text[0]);
        if (got) stopped = t;
    }
    if (stopped > 1) { /* all at once, and the same state for another completion */
        assert_false(ls_stop_reached(&state, ids, stopped - 1));
        ls_stop_begin(&state, object);
        assert_true(ls_stop_reached(&state, ids, stopped));
        assert_false(ls_stop_reached(&state, ids, 1));
        assert_true(ls_stop_reached(&state, ids, stopped));
    }
    ls_stop_free(object);
    return stopped;
}

static int64_t char_begin(const char *text, int64_t at) {
    while (at > 0 && ((uint8_t)text[at] & 0xC0) == 0x80) at--;
    return at;
}

/* Some characters out of the text that the ids decode to, so that most texts do occur, with or without a last one that
 * does not fit. */
static void draw_texts(texts *out, const ls_tokenizer *tokenizer, const int32_t *ids, int64_t n, uint64_t *seed) {
    char *text;
    int64_t bytes;
    ls_error err;
    assert_ok(ls_tokenizer_decode(tokenizer, ids, n, true, &text, &bytes, &err), err);
    out->n = 1 + (int64_t)(test_random(seed) % TEXTS_MAX);
    for (int64_t i = 0; i < out->n; i++) {
        char *to = out->text[i];
        int64_t begin = bytes == 0 ? 0 : char_begin(text, (int64_t)(test_random(seed) % (uint64_t)bytes)), end;
        end = begin + 1 + (int64_t)(test_random(seed) % 24);
        end = end >= bytes ? bytes : char_begin(text, end);
        snprintf(to, TEXT_BYTES, "%.*s", (int)(end - begin), text + begin); /* ends at a NUL of the text */
        if (to[0] == '\0' || test_random(seed) % 4 == 0) {
            const size_t used = strlen(to);
            snprintf(to + used, TEXT_BYTES - used, "%s", test_random(seed) % 2 == 0 ? "\xEF\xBF\xBD" : "q");
        }
    }
    free(text);
}

static int64_t n_stopped;

static void random_texts(const char *name, const ls_tokenizer *tokenizer, int64_t vocab, int64_t rounds,
                         const int32_t *favourites, int64_t n_favourites) {
    uint64_t seed = 17;
    for (int64_t round = 0; round < rounds; round++) {
        const int64_t n = 1 + (int64_t)(test_random(&seed) % IDS_MAX);
        const uint64_t share = test_random(&seed) % 11;
        int32_t ids[IDS_MAX];
        texts stop;
        for (int64_t i = 0; i < n; i++)
            ids[i] = n_favourites > 0 && test_random(&seed) % 10 < share
                         ? favourites[test_random(&seed) % (uint64_t)n_favourites]
                         : (int32_t)(test_random(&seed) % (uint64_t)vocab);
        draw_texts(&stop, tokenizer, ids, n, &seed);
        n_stopped += compare(name, tokenizer, ids, n, &stop) > 0;
    }
}

/* Tokens of parts of characters are drawn often: most sequences of them are broken text. In tok-spm they are special
 * and leave no text. */
static void random_completions_of_the_fixtures(void **state) {
    static const char *const names[] = {"tok-bytelevel", "tok-cl100k-style", "tok-spm"};
    (void)state;
    for (int k = 0; k < 3; k++) {
        ls_tokenizer *tokenizer;
        ls_error err;
        int32_t parts[4096];
        int64_t n_parts = 0, vocab;
        char path[512];
        snprintf(path, sizeof path, "%s/%s", LS_FIXTURES, names[k]);
        assert_ok(ls_tokenizer_open(&tokenizer, path, &err), err);
        vocab = ls_tokenizer_size(tokenizer);
        for (int32_t id = 0; id < vocab && n_parts < 4096; id++) {
            char *text;
            int64_t bytes;
            assert_ok(ls_tokenizer_decode(tokenizer, &id, 1, false, &text, &bytes, &err), err);
            if (strstr(text, "\xEF\xBF\xBD") != NULL) parts[n_parts++] = id;
            free(text);
        }
        assert_true(n_parts > 60);
        n_stopped = 0;
        random_texts(names[k], tokenizer, vocab, 400, parts, n_parts);
        assert_true(n_stopped > 100);
        ls_tokenizer_free(tokenizer);
    }
}

/* Real text, cut by the tokenizer, with a stop text at every place in it. */
static void texts_across_tokens_are_found(void **state) {
    static const char *const names[] = {"tok-bytelevel", "tok-cl100k-style", "tok-spm"};
    static const char sentence[] =
        "Then he said: \xE4\xBD\xA0\xE5\xA5\xBD, na\xC3\xAFve \xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x92\xBB world!\n\n"
        "Question:  2 + 2 = ?\n\tAnswer: </s> four";
    (void)state;
    for (int k = 0; k < 3; k++) {
        ls_tokenizer *tokenizer;
        ls_error err;
        int32_t *ids;
        int64_t n, bytes;
        char path[512], *text;
        snprintf(path, sizeof path, "%s/%s", LS_FIXTURES, names[k]);
        assert_ok(ls_tokenizer_open(&tokenizer, path, &err), err);
        assert_ok(ls_tokenizer_encode(tokenizer, sentence, (int64_t)strlen(sentence), false, &ids, &n, &err), err);
        assert_ok(ls_tokenizer_decode(tokenizer, ids, n, true, &text, &bytes, &err), err);
        for (int64_t begin = 0; begin < bytes; begin++)
            for (int64_t length = 1; length < 12 && begin + length <= bytes; length += 2) {
                texts stop = {.n = 1};
                if (char_begin(text, begin) != begin || char_begin(text, begin + length) != begin + length) continue;
                memcpy(stop.text[0], text + begin, (size_t)length);
                assert_true(compare(names[k], tokenizer, ids, n, &stop) > 0);
            }
        free(text);
        free(ids);
        ls_tokenizer_free(tokenizer);
    }
}

/* A vocabulary of what the decoders below treat in special ways. */
#define VOCAB_N 24
static ls_tokenizer *small(const char *decoder) {
    static const char *const vocab =
        "\"a\":0,\"b\":1,\"\\u2581\":2,\"\\u2581a\":3,\"a\\u2581b\":4,\"<0xE4>\":5,\"<0xBD>\":6,\"<0xA0>\":7,"
        "\"<0x61>\":8,\"<0xF0>\":9,\"ab</w>\":10,\"</w>\":11,\" \":12,\"  \":13,\"\\u00e9\":14,\"\\u4f60\":15,"
        "\"\\u2581\\u2581\":16,\"a \":17,\" b\":18,\"\\ufffd\":19,\"\\u0120a\":20,\"\\u00e4\\u00bd\":21,\"x\":22";
    char json[4096];
    ls_tokenizer *tokenizer;
    ls_error err;
    snprintf(
        json, sizeof json,
        "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":[{\"id\":23,\"content\":\"<end>\","
        "\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,\"special\":true}],"
        "\"normalizer\":null,\"pre_tokenizer\":null,\"post_processor\":null,\"decoder\":%s,"
        "\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,\"continuing_subword_prefix\":null,"
        "\"end_of_word_suffix\":null,\"fuse_unk\":false,\"byte_fallback\":false,\"ignore_merges\":false,"
        "\"vocab\":{%s},\"merges\":[]}}",
        decoder, vocab);
    assert_ok(ls_tokenizer_parse(&tokenizer, json, (int64_t)strlen(json), "small", &err), err);
    assert_int_equal(ls_tokenizer_size(tokenizer), VOCAB_N);
    return tokenizer;
}

#define REPLACE(from, to) "{\"type\":\"Replace\",\"pattern\":" from ",\"content\":\"" to "\"}"
#define STRIP(start, stop) "{\"type\":\"Strip\",\"content\":\" \",\"start\":" #start ",\"stop\":" #stop "}"
#define METASPACE(scheme) \
    "{\"type\":\"Metaspace\",\"replacement\":\"\\u2581\",\"prepend_scheme\":\"" scheme "\",\"split\":true}"
#define BPE "{\"type\":\"BPEDecoder\",\"suffix\":\"</w>\"}"
#define BYTES "{\"type\":\"ByteFallback\"}"
#define BYTE_LEVEL "{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":true,\"use_regex\":true}"
#define FUSE "{\"type\":\"Fuse\"}"
#define BAR "{\"String\":\"\\u2581\"}"
#define SEQUENCE(steps) "{\"type\":\"Sequence\",\"decoders\":[" steps "]}"

static void every_form_of_decoder_is_followed(void **state) {
    static const char *const decoders[] = {
        "null",
        BYTE_LEVEL,
        METASPACE("always"),
        METASPACE("never"),
        BPE,
        FUSE,
        BYTES,
        SEQUENCE(REPLACE(BAR, " ") "," BYTES "," FUSE "," STRIP(1, 0)),
        SEQUENCE(REPLACE(BAR, " ") "," BYTES "," FUSE),
        SEQUENCE(REPLACE(BAR, " ") "," BYTES "," FUSE "," STRIP(0, 1)),
        SEQUENCE(REPLACE(BAR, " ") "," BYTES "," FUSE "," STRIP(2, 3)),
        SEQUENCE(BYTES "," FUSE "," STRIP(1, 2)),
        SEQUENCE(METASPACE("first") "," BYTES),
        SEQUENCE(METASPACE("always") "," BPE "," FUSE "," STRIP(0, 2)),
        SEQUENCE(STRIP(1, 1) "," REPLACE("{\"Regex\":\"[ab]+\"}", "<0x61>") "," BYTES "," FUSE "," STRIP(1, 1)),
        SEQUENCE(REPLACE(BAR, " ") "," BYTE_LEVEL "," STRIP(1, 1)),
    };
    static const int32_t parts[] = {5, 6, 7, 5, 6, 7, 8, 9, 2, 12, 13, 16, 23};
    (void)state;
    for (size_t i = 0; i < sizeof decoders / sizeof decoders[0]; i++) {
        ls_tokenizer *tokenizer = small(decoders[i]);
        n_stopped = 0;
        random_texts(decoders[i], tokenizer, VOCAB_N, 600, parts, sizeof parts / sizeof parts[0]);
        assert_true(n_stopped > 200);
        ls_tokenizer_free(tokenizer);
    }
}

static void what_a_decoder_takes_back_is_not_found(void **state) {
    static const int32_t run[] = {5, 6, 7, 5, 6, 0};
    ls_tokenizer *tokenizer = small(BYTES);
    texts stop = {.n = 1};
    (void)state;
    snprintf(stop.text[0], TEXT_BYTES, "\xE4\xBD\xA0");
    assert_int_equal(compare("run", tokenizer, run, 6, &stop), 3);
    snprintf(stop.text[0], TEXT_BYTES, "\xE4\xBD\xA0\xEF\xBF\xBD"); /* one broken byte breaks the whole run */
    assert_int_equal(compare("run", tokenizer, run, 6, &stop), 0);
    snprintf(stop.text[0], TEXT_BYTES, "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"); /* three are a character by then */
    assert_int_equal(compare("run", tokenizer, run, 6, &stop), 4);
    ls_tokenizer_free(tokenizer);
}

static void unknown_ids_have_no_text(void **state) {
    static const int32_t ids[] = {0, 1000000, -5, 1};
    static const char *const list[] = {"ab"};
    ls_tokenizer *tokenizer = small(BYTE_LEVEL);
    ls_stop_state at;
    ls_stop *stop;
    ls_error err;
    (void)state;
    assert_ok(ls_stop_create(&stop, tokenizer, list, 1, &err), err);
    ls_stop_begin(&at, stop);
    for (int64_t n = 1; n <= 4; n++) assert_int_equal(ls_stop_reached(&at, ids, n), n == 4);
    ls_stop_free(stop);
    ls_tokenizer_free(tokenizer);
}

static void refused(const char *decoder, const char *text, const char *word) {
    ls_tokenizer *tokenizer = small(decoder);
    ls_stop *stop;
    ls_error err;
    check_failed(ls_stop_create(&stop, tokenizer, &text, 1, &err), &err, word);
    assert_null(stop);
    ls_tokenizer_free(tokenizer);
}

static void what_cannot_be_followed_is_refused(void **state) {
    (void)state;
    refused(BYTE_LEVEL, "", "stop text 0: is empty");
    refused(BYTE_LEVEL, "\xC3", "stop text 0: is not UTF-8");
    refused(SEQUENCE(FUSE "," REPLACE(BAR, " ")), "a", "step 1 of the tokenizer's decoder");
    refused(SEQUENCE(BYTES "," STRIP(1, 0)), "a", "step 1");
    refused(SEQUENCE(BYTE_LEVEL "," BYTE_LEVEL), "a", "step 1");
}

/* A long completion: the time is that of its tokens, and the heap is not touched. */
static void long_completions_cost_their_length(void **state) {
    enum { N = 1 << 18 };
    static const char *const list[] = {"never in it", "aaaaaaab"};
    ls_tokenizer *tokenizer = small(SEQUENCE(METASPACE("always") "," BYTES "," FUSE "," STRIP(1, 4)));
    static int32_t ids[N];
    uint64_t seed = 5;
    ls_stop_state at;
    ls_stop *stop;
    ls_error err;
    struct mallinfo2 before;
    (void)state;
    for (int64_t i = 0; i < N; i++) ids[i] = test_random(&seed) % 2 == 0 ? 0 : 5; /* never "b" */
    assert_ok(ls_stop_create(&stop, tokenizer, list, 2, &err), err);
    ls_stop_begin(&at, stop);
    before = mallinfo2();
    for (int64_t n = 1; n <= N; n++)
        if (ls_stop_reached(&at, ids, n)) fail_msg("stopped after %lld", (long long)n);
    assert_true(mallinfo2().uordblks == before.uordblks);
    ls_stop_free(stop);
    ls_tokenizer_free(tokenizer);
}

/* Long texts take a few bytes for each of theirs, and what belongs to the tokenizer is there once. */
static void long_texts_take_little(void **state) {
    enum { LONG_TEXT = 1 << 20 };
    ls_tokenizer *tokenizer = small(BYTE_LEVEL);
    ls_stop_tokens *tokens;
    ls_stop *stop;
    char *text = malloc(LONG_TEXT + 1);
    const char *const list[] = {text, "b"};
    size_t before, taken;
    ls_error err;
    (void)state;
    assert_non_null(text);
    memset(text, 'a', LONG_TEXT);
    text[LONG_TEXT] = '\0';
    assert_ok(ls_stop_tokens_create(&tokens, tokenizer, &err), err);
    before = mallinfo2().uordblks + mallinfo2().hblkhd;
    assert_ok(ls_stop_create_with(&stop, tokens, list, 2, &err), err);
    taken = mallinfo2().uordblks + mallinfo2().hblkhd - before; /* 0 under a sanitizer */
    if (taken > LS_STOP_NODE_BYTES * (size_t)LONG_TEXT + 4096) fail_msg("%zu bytes for a text of %d", taken, LONG_TEXT);
    ls_stop_free(stop);
    ls_stop_tokens_free(tokens);
    ls_tokenizer_free(tokenizer);
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_completions_of_the_fixtures), cmocka_unit_test(texts_across_tokens_are_found),
        cmocka_unit_test(every_form_of_decoder_is_followed),  cmocka_unit_test(what_a_decoder_takes_back_is_not_found),
        cmocka_unit_test(unknown_ids_have_no_text),           cmocka_unit_test(what_cannot_be_followed_is_refused),
        cmocka_unit_test(long_completions_cost_their_length), cmocka_unit_test(long_texts_take_little),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
