/* Levers and stop texts from the outside: no lever changes a result, every record says what was set, and a completion
 * ends with the first token that completes a stop text. */
#define _GNU_SOURCE
#include "program.h"

#define PROMPTS TINY "/prompts.jsonl"
#define SIX "--model", TINY, "--prompts", PROMPTS, "--samples", "3", "--max-tokens", "20"

/* Runs generate with further options, given by words separated by blanks, into `out`. */
static void generate(const char *out, const char *options) {
    const char *args[40] = {"generate", SIX, "--out", out};
    char words[400], *rest = words, *word;
    int n = 11;
    assert_null(args[n]);
    snprintf(words, sizeof words, "%s", options);
    while ((word = strsep(&rest, " ")) != NULL)
        if (*word != '\0') args[n++] = word;
    assert_true(n < 39);
    run_args(NULL, -1, args);
    must_exit(0);
}

static void no_lever_changes_a_result(void **state) {
    static const char *const variants[] = {
        "--prefix off --fork off",
        "--prefix cold --fork on --verify 1",
        "--prefix warm --snapshot-every 3",
        "--prefix on --fork off --prefix-memory 200K --shuffle 3",
        "--preempt-every 2 --poison on",
        "--preempt-every 3 --preempt-by swap --guards on",
        "--preempt-every 2 --preempt-by alternate --policy random --policy-seed 9 --page 4",
        "--slots 3 --slot-base 2 --policy highest",
        "--slots 64 --slot-permutation 18446744073709551615 --policy lowest --poison on --guards on",
        "--slot-words 4096 --batch 5 --tick-tokens 6",
        "--memory 8M --page 8",
        "--pool-share 0.25 --chunk 3",
        "--memory-fraction 0.5 --sleep-every 4 --poison on",
        "--preempt-every 3 --preempt-by swap --swap-memory 2M --sleep-every 7 --graphs off",
        "--pages 12 --page 4 --batch 24",
        "--drafts 8 --preempt-every 5",
        "--drafts 1 --fork off --batch 2",
        "--state-every 8 --chunk 1",
    };
    (void)state;
    generate(at("first.jsonl"), "");
    for (size_t v = 0; v < sizeof variants / sizeof variants[0]; v++) {
        generate(at("other.jsonl"), variants[v]);
        must_be_same_results(at("first.jsonl"), at("other.jsonl"));
        RUN_OK("compare", at("first.jsonl"), at("other.jsonl"));
    }
}

static void records_say_what_was_set(void **state) {
    json_t *record, *levers;
    (void)state;
    generate(at("set.jsonl"),
             "--chunk whole --verify 0.1 --memory 16M --shuffle 18446744073709551615 --isa generic "
             "--threads 1 --preempt-every 4 --slot-permutation 7");
    record = line_read(at("set.jsonl"), 5);
    levers = member(member(record, "meta"), "levers");
    assert_string_equal(text_member(levers, "chunk"), "whole");
    assert_true(json_real_value(member(levers, "verify")) == 0.1);
    assert_int_equal(int_member(levers, "memory"), 16 << 20);
    assert_string_equal(text_member(levers, "shuffle"), "18446744073709551615");
    assert_string_equal(text_member(levers, "isa"), "generic");
    assert_int_equal(int_member(levers, "threads"), 1);
    assert_int_equal(int_member(levers, "slot-permutation"), 7);
    assert_string_equal(text_member(levers, "prefix"), "on");
    assert_int_equal(int_member(levers, "samples"), 3);
    assert_true(json_object_size(levers) > 20);
    json_decref(record);
    /* Scoring keeps it all. */
    RUN_OK("score", "--model", TINY, "--rollouts", at("set.jsonl"), "--out", at("scored.jsonl"));
    must_be_same_file(at("set.jsonl"), at("scored.jsonl"));
}

static void hits_and_preemptions_are_told(void **state) {
    int64_t hits = 0, preemptions = 0, told = 0;
    json_t *summary, *stats;
    (void)state;
    generate(at("told.jsonl"), "--prefix warm --preempt-every 2 --json");
    summary = json_loads(last.out, 0, NULL);
    assert_non_null(summary);
    assert_true(int_member(member(summary, "plan"), "total_bytes") > 0);
    assert_int_equal(int_member(member(summary, "plan"), "slots"), 16);
    stats = member(summary, "stats");
    assert_true(int_member(stats, "prefix_tokens_hit") > 0 && int_member(stats, "prefill_tokens") > 0);
    preemptions = int_member(stats, "preempted_recompute");
    assert_true(preemptions > 0);
    json_decref(summary);
    for (int64_t i = 0; i < count_lines(at("told.jsonl")); i++) {
        json_t *record = line_read(at("told.jsonl"), i);
        hits += int_member(member(record, "meta"), "cache_hit");
        told += int_member(member(record, "meta"), "preemptions");
        json_decref(record);
    }
    assert_true(hits > 0);
    assert_int_equal(told, preemptions);
    generate(at("told.jsonl"), "");
    assert_non_null(strstr(last.err, "16 slots of "));
    assert_non_null(strstr(last.err, "prefix cache"));
}

static void check_takes_every_lever(void **state) {
    json_t *result;
    (void)state;
    RUN_OK("check", "--model", LS_FIXTURES "/jamba-moe", "--max-tokens", "6", "--prefix", "warm", "--verify", "1",
           "--preempt-every", "3", "--preempt-by", "alternate", "--policy", "random", "--poison", "on", "--guards",
           "on", "--page", "4", "--json");
    result = json_loads(last.out, 0, NULL);
    assert_non_null(result);
    assert_int_equal(int_member(result, "differing_bits"), 0);
    assert_int_equal(int_member(result, "sequences"), 64); /* four of each of sixteen */
    assert_true(int_member(member(result, "stats"), "verified") > 0);
    json_decref(result);
}

/* An ablation is another model, to every command alike. */
static void ablation_is_scored_as_it_was_run(void **state) {
    static const char *const names[] = {"attention-only", "mamba-only"};
    (void)state;
    generate(at("first.jsonl"), "");
    for (int i = 0; i < 2; i++) {
        RUN_OK("generate", SIX, "--ablation", names[i], "--out", at("ablated.jsonl"));
        RUN_OK("score", "--model", TINY, "--rollouts", at("ablated.jsonl"), "--ablation", names[i], "--out",
               at("scored.jsonl"));
        must_be_same_file(at("ablated.jsonl"), at("scored.jsonl"));
        RUN_OK("score", "--model", TINY, "--rollouts", at("ablated.jsonl"), "--out", at("scored.jsonl"));
        RUN("compare", at("ablated.jsonl"), at("scored.jsonl"));
        must_exit(3);
        RUN_OK("check", "--model", TINY, "--max-tokens", "8", "--ablation", names[i]);
    }
}

static bool stops(const char *text, const char *const *stop, int n) {
    for (int i = 0; i < n; i++)
        if (strstr(text, stop[i]) != NULL) return true;
    return false;
}

/* Every completion is the one without stop texts up to the first token that completes one. */
static void stop_texts_end_completions(void **state) {
    static const char *const stop[] = {"th", "e w", "17"};
    int64_t n_short = 0;
    (void)state;
    RUN_OK("generate", SIX, "--temperature", "1.5", "--top-k", "8", "--out", at("whole.jsonl"));
    RUN_OK("generate", SIX, "--temperature", "1.5", "--top-k", "8", "--stop", stop[0], "--stop", stop[1], "--stop",
           stop[2], "--preempt-every", "2", "--out", at("stopped.jsonl"));
    for (int64_t i = 0; i < count_lines(at("whole.jsonl")); i++) {
        json_t *whole = line_read(at("whole.jsonl"), i), *cut = line_read(at("stopped.jsonl"), i), *line, *got;
        const json_t *ids = member(cut, "completion_ids"), *all = member(whole, "completion_ids");
        const size_t n = json_array_size(ids);
        const char *text = text_member(cut, "text");
        size_t t;
        json_t *id;
        assert_true(n >= 1 && n <= json_array_size(all));
        json_array_foreach(ids, t, id) assert_true(json_equal(id, json_array_get(all, t)));
        if (n < json_array_size(all)) {
            assert_true(stops(text, stop, 3));
            n_short++;
        } else if (!stops(text, stop, 3)) {
            assert_string_equal(text_member(cut, "finish"), text_member(whole, "finish"));
        }
        if (stops(text, stop, 3)) { /* and without the last token it does not stop */
            FILE *file = fopen(at("ids-line.jsonl"), "w");
            assert_string_equal(text_member(cut, "finish"), "stop");
            assert_non_null(file);
            line = json_pack("{s:[]}", "ids");
            for (t = 0; t + 1 < n; t++) json_array_append(member(line, "ids"), json_array_get(ids, t));
            json_dumpf(line, file, 0);
            json_decref(line);
            fputc('\n', file);
            fclose(file);
            RUN_IN(at("ids-line.jsonl"), "detokenize", "--model", TINY);
            must_exit(0);
            got = json_loads(last.out, 0, NULL);
            assert_false(stops(text_member(got, "text"), stop, 3));
            json_decref(got);
        }
        json_decref(whole);
        json_decref(cut);
    }
    assert_true(n_short > 3);
    RUN("generate", "--model", LS_FIXTURES "/jamba-dense", "--prompts", PROMPTS, "--stop", "x");
    must_refuse("tokenizer.json");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_lever_changes_a_result),        cmocka_unit_test(records_say_what_was_set),
        cmocka_unit_test(hits_and_preemptions_are_told),    cmocka_unit_test(check_takes_every_lever),
        cmocka_unit_test(ablation_is_scored_as_it_was_run), cmocka_unit_test(stop_texts_end_completions),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
