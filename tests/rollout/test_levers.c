/* Levers: every value goes through its text and back exactly, and what is out of range is refused by name. */
#include <stdlib.h>

#include "harness.h"
#include "rollout/levers.h"

/* Every field by itself, so that padding is never compared. */
static bool same_levers(const ls_levers *a, const ls_levers *b) {
    for (int64_t i = 0; i < ls_levers_count(); i++) {
        char x[64], y[64];
        ls_lever_format(x, sizeof x, a, i);
        ls_lever_format(y, sizeof y, b, i);
        if (strcmp(x, y) != 0) return false;
    }
    return memcmp(&a->memory_fraction, &b->memory_fraction, 8) == 0 && memcmp(&a->pool_share, &b->pool_share, 8) == 0 &&
           memcmp(&a->verify, &b->verify, 8) == 0 && a->shuffle == b->shuffle &&
           a->slot_permutation == b->slot_permutation && a->policy_seed == b->policy_seed;
}

static void set(ls_levers *levers, const char *name, const char *text) {
    const int64_t i = ls_lever_find(name);
    ls_error err;
    if (i < 0) fail_msg("no lever is called %s", name);
    assert_ok(ls_lever_parse(levers, i, text, &err), err);
}

static void refused(const char *name, const char *text, const char *word) {
    ls_levers levers, before;
    const int64_t i = ls_lever_find(name);
    ls_error err;
    if (i < 0) fail_msg("no lever is called %s", name);
    ls_levers_init(&levers);
    before = levers;
    check_failed(ls_lever_parse(&levers, i, text, &err), &err, word);
    if (strstr(err.text, name) != err.text) fail_msg("'%s' does not begin with %s", err.text, name);
    if (strstr(err.text, text) == NULL) fail_msg("'%s' does not name the value '%s'", err.text, text);
    assert_true(same_levers(&levers, &before));
}

static void defaults_are_what_the_help_says(void **state) {
    static const char *const expected[][2] = {
        {"samples", "1"},     {"batch", "16"},        {"chunk", "256"},     {"tick-tokens", "0"},
        {"page", "16"},       {"slots", "0"},         {"pages", "0"},       {"memory", "0"},
        {"policy", "fifo"},   {"slot-words", "0"},    {"slot-base", "0"},   {"memory-fraction", "auto"},
        {"prefix", "on"},     {"policy-seed", "0"},   {"verify", "0"},      {"slot-permutation", "0"},
        {"fork", "on"},       {"preempt-every", "0"}, {"shuffle", "0"},     {"snapshot-every", "0"},
        {"ablation", "none"}, {"prefix-memory", "0"}, {"poison", "off"},    {"preempt-by", "recompute"},
        {"guards", "off"},    {"graphs", "on"},       {"pool-share", "1"},  {"swap-memory", "0"},
        {"sleep-every", "0"}, {"drafts", "0"},        {"state-every", "0"},
    };
    ls_levers levers;
    char text[64], help[8];
    ls_error err;
    (void)state;
    ls_levers_init(&levers);
    assert_ok(ls_levers_check(&levers, &err), err);
    for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++) {
        assert_true(ls_lever_find(expected[i][0]) >= 0);
        ls_lever_format(text, sizeof text, &levers, ls_lever_find(expected[i][0]));
        assert_string_equal(text, expected[i][1]);
    }
    assert_int_equal(levers.threads, ls_cpu_count());
    assert_int_equal(levers.isa, ls_isa_best());
    assert_int_equal(ls_levers_count(), sizeof expected / sizeof expected[0] + 2);
    assert_int_equal(ls_lever_find("absent"), -1);
    for (int64_t i = 0; i < ls_levers_count(); i++) {
        assert_int_equal(ls_lever_find(ls_lever_name(i)), i);
        assert_true(strlen(ls_lever_help(i)) > 10 && strlen(ls_lever_value(i)) > 0);
        ls_lever_format(help, sizeof help, &levers, i); /* a short buffer is cut, not overrun */
    }
}

/* Any value that may be set, drawn without regard to sense. */
static void draw(ls_levers *l, uint64_t *seed) {
    static const int64_t pages[] = {1, 2, 4, 8, 16, 32, 64};
    l->samples = 1 + (int64_t)(test_random(seed) % (1 << 20));
    l->batch = 1 + (int64_t)(test_random(seed) % 1024);
    l->chunk = (int64_t)(test_random(seed) % 3) * 77;
    l->tick_tokens = (int64_t)(test_random(seed) & INT32_MAX);
    l->page_tokens = pages[test_random(seed) % 7];
    l->slots = test_random(seed) % 2 == 0 ? 0 : INT32_MAX;
    l->pages = (int64_t)(test_random(seed) & INT32_MAX);
    l->memory_bytes = (int64_t)(test_random(seed) & INT64_MAX);
    l->memory_fraction = (double)(test_random(seed) >> 11) * 0x1p-53;
    if (!(l->memory_fraction > 0)) l->memory_fraction = 0.1;
    if (test_random(seed) % 4 == 0) l->memory_fraction = 0; /* auto */
    l->pool_share = (double)(1 + (test_random(seed) >> 12)) * 0x1p-52;
    l->swap_bytes = (int64_t)(test_random(seed) & INT64_MAX);
    l->sleep_every = (int64_t)(test_random(seed) % 100);
    l->state_every = (int64_t)(test_random(seed) % (LS_STATE_EVERY_MAX + 1));
    l->slot_words = 16 * (int64_t)(test_random(seed) % (1 << 30));
    l->policy = (ls_policy)(test_random(seed) % LS_POLICY_COUNT);
    l->slot_base = (int64_t)(test_random(seed) % INT32_MAX);
    l->slot_permutation = test_random(seed);
    l->policy_seed = test_random(seed);
    l->prefix = (ls_prefix_mode)(test_random(seed) % 4);
    l->snapshot_every = (int64_t)(test_random(seed) % 4096);
    l->prefix_bytes = (int64_t)(test_random(seed) & INT64_MAX);
    l->verify = (double)(test_random(seed) >> 11) * 0x1p-53;
    l->fork = test_random(seed) % 2 == 0;
    l->preempt_every = (int64_t)(test_random(seed) % 100);
    l->preempt_by = (ls_preempt_by)(test_random(seed) % 3);
    l->shuffle = test_random(seed);
    l->threads = 1 + (int32_t)(test_random(seed) % LS_THREADS_MAX);
    l->isa = (ls_isa)(test_random(seed) % LS_ISA_COUNT);
    l->ablation = (ls_ablation)(test_random(seed) % LS_ABLATION_COUNT);
    l->poison = test_random(seed) % 2 == 0;
    l->guards = test_random(seed) % 2 == 0;
}

static void text_and_value_are_the_same(void **state) {
    uint64_t seed = 3;
    (void)state;
    for (int round = 0; round < 2000; round++) {
        ls_levers from, to;
        ls_error err;
        ls_levers_init(&from);
        ls_levers_init(&to);
        draw(&from, &seed);
        assert_ok(ls_levers_check(&from, &err), err);
        for (int64_t i = 0; i < ls_levers_count(); i++) {
            char text[64], *end;
            ls_lever_format(text, sizeof text, &from, i);
            assert_ok(ls_lever_parse(&to, i, text, &err), err);
            if (ls_lever_is_number(&from, i)) {
                (void)strtod(text, &end);
                assert_true(*end == '\0');
            }
        }
        assert_true(same_levers(&from, &to));
        assert_int_equal(from.threads, to.threads);
        assert_int_equal(from.isa, to.isa);
    }
}

static void texts_for_people_are_read(void **state) {
    ls_levers levers;
    (void)state;
    ls_levers_init(&levers);
    set(&levers, "chunk", "whole");
    assert_int_equal(levers.chunk, 0);
    set(&levers, "chunk", "0");
    assert_int_equal(levers.chunk, 0);
    set(&levers, "memory", "3K");
    assert_int_equal(levers.memory_bytes, 3072);
    set(&levers, "memory", "2M");
    assert_int_equal(levers.memory_bytes, 2 << 20);
    set(&levers, "memory", "5G");
    assert_true(levers.memory_bytes == (int64_t)5 << 30);
    set(&levers, "memory", "9223372036854775807");
    assert_true(levers.memory_bytes == INT64_MAX);
    set(&levers, "memory-fraction", "0.5");
    assert_true(levers.memory_fraction == 0.5);
    set(&levers, "memory-fraction", "auto");
    assert_true(levers.memory_fraction == 0);
    assert_false(ls_lever_is_number(&levers, ls_lever_find("memory-fraction")));
    set(&levers, "pool-share", "0.25");
    assert_true(levers.pool_share == 0.25);
    set(&levers, "verify", "1");
    assert_true(levers.verify == 1.0);
    set(&levers, "shuffle", "18446744073709551615");
    assert_true(levers.shuffle == UINT64_MAX);
    assert_false(ls_lever_is_number(&levers, ls_lever_find("shuffle")));
    assert_false(ls_lever_is_number(&levers, ls_lever_find("chunk")));
    set(&levers, "ablation", "mamba-only");
    assert_int_equal(levers.ablation, LS_MAMBA_ONLY);
    set(&levers, "fork", "off");
    assert_false(levers.fork);
}

static void wrong_texts_are_refused(void **state) {
    (void)state;
    refused("samples", "0", "1..1048576");
    refused("batch", "1025", "1..1024");
    refused("batch", "", "integer");
    refused("batch", "4x", "integer");
    refused("batch", "99999999999999999999", "integer");
    refused("chunk", "-1", "0..");
    refused("chunk", "half", "integer");
    refused("page", "3", "does not divide 64");
    refused("page", "128", "1..64");
    refused("slot-words", "17", "multiple of 16");
    refused("threads", "0", "1..1024");
    refused("memory", "-1", "bytes");
    refused("memory", "1T", "bytes");
    refused("memory", "1KK", "bytes");
    refused("memory", "K", "bytes");
    refused("memory", "8589934592G", "bytes");
    refused("memory", "9007199254740992K", "bytes");
    refused("memory-fraction", "0", "above 0");
    refused("memory-fraction", "1.5", "above 0");
    refused("memory-fraction", "nan", "above 0");
    refused("memory-fraction", "50%", "above 0");
    refused("pool-share", "0", "above 0");
    refused("pool-share", "auto", "above 0");
    refused("pool-share", "1.5", "above 0");
    refused("swap-memory", "1T", "bytes");
    refused("sleep-every", "-1", "0..");
    refused("verify", "-0.1", "0..1");
    refused("verify", "often", "0..1");
    refused("policy", "lifo", "fifo, lowest, highest or random");
    refused("prefix", "hot", "off, on, cold or warm");
    refused("preempt-by", "force", "recompute, swap or alternate");
    refused("isa", "sse", "generic, avx2 or avx512");
    refused("ablation", "all", "none, attention-only or mamba-only");
    refused("fork", "yes", "on or off");
    refused("shuffle", "-1", "2^64-1");
    refused("shuffle", "18446744073709551616", "2^64-1");
}

#define REFUSED(field, value, word)                               \
    do {                                                          \
        ls_levers levers;                                         \
        ls_error err;                                             \
        ls_levers_init(&levers);                                  \
        levers.field = (value);                                   \
        check_failed(ls_levers_check(&levers, &err), &err, word); \
    } while (0)

static void wrong_fields_are_refused(void **state) {
    (void)state;
    REFUSED(samples, 0, "samples: '0'");
    REFUSED(batch, -1, "batch: '-1'");
    REFUSED(page_tokens, 48, "page: 48 does not divide 64");
    REFUSED(memory_fraction, -0.5, "memory-fraction: '-0.5'");
    REFUSED(memory_fraction, 1.25, "memory-fraction: '1.25'");
    REFUSED(pool_share, 0.0, "pool-share: '0'");
    REFUSED(pool_share, 1.25, "pool-share: '1.25'");
    REFUSED(verify, -1.0, "verify: '-1'");
    REFUSED(slot_words, -16, "slot-words: '-16'");
    REFUSED(slot_words, 8, "slot-words: 8 is not a multiple");
    REFUSED(memory_bytes, -5, "memory: '-5'");
    REFUSED(threads, -1, "threads: '-1'");
    REFUSED(policy, LS_POLICY_COUNT, "policy: '4'");
    REFUSED(prefix, (ls_prefix_mode)17, "prefix: '17'");
    {
        ls_levers levers;
        ls_error err;
        ls_levers_init(&levers);
        levers.slots = levers.slot_base = 4;
        check_failed(ls_levers_check(&levers, &err), &err, "slot-base: 4 is none of the 4 slots");
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_are_what_the_help_says), cmocka_unit_test(text_and_value_are_the_same),
        cmocka_unit_test(texts_for_people_are_read),       cmocka_unit_test(wrong_texts_are_refused),
        cmocka_unit_test(wrong_fields_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
