/* Sequences much longer than a window: what is in front of it goes back to the pool, from sequences, forks, swap space
 * and the prefix cache, and no bit moves. What is free holds NaN. */
#define PROMPT_TOKENS 600
#include "engine_case.h"
#include "model/score.h"

enum { WINDOW = 20, BLOCK = LS_ATTENTION_BLOCK_MMA16, PROMPTS = 7 };

/* Positions that a sequence holds at most, in chunks of `chunk`. */
static int64_t held_most(int64_t chunk) { return WINDOW + BLOCK - 2 + chunk; }

static ls_engine_stats stats_of(const ls_engine *e) {
    ls_engine_stats stats;
    ls_engine_get_stats(e, &stats);
    return stats;
}

static void a_sequence_holds_its_window(void **state) {
    (void)state;
    for (int64_t page = 4; page <= 64; page *= 4) {
        ls_levers l = plain_levers(1);
        bench b;
        ls_engine *e;
        ls_engine_plan plan;
        job j;
        bench_open(&b, "mistral-window", page == 16 ? LS_BF16 : LS_F32);
        assert_int_equal(ls_config_window(&b.v.model[0]->config), WINDOW);
        l.page_tokens = page;
        e = engine_of(&b, &l);
        ls_engine_get_plan(e, &plan);
        assert_int_equal(plan.pages, (held_most(l.chunk) + page - 1) / page); /* less than half of the sequence */
        submit(e, (job_init(&j, b.prompt[0], PROMPT_TOKENS, 0, 0, JOB_TOKENS), &j));
        run_dry(e);
        is_complete(&b, &j);
        assert_int_equal(stats_of(e).pages_used_max, plan.pages);
        assert_int_equal(stats_of(e).pages_given_back,
                         ls_attention_begin(LENGTH_MAX - 1, WINDOW) / page); /* all but those of the last window */
        engine_end(e);
        bench_close(&b);
    }
}

/* A layer without a window needs every page. */
static void a_layer_that_sees_all_keeps_all(void **state) {
    ls_levers l = plain_levers(1);
    bench b;
    ls_engine *e;
    job j;
    (void)state;
    bench_open(&b, "qwen2-window", LS_F32);
    e = engine_of(&b, &l);
    submit(e, (job_init(&j, b.prompt[0], PROMPT_TOKENS, 0, 0, 3), &j));
    run_dry(e);
    is_complete(&b, &j);
    assert_int_equal(stats_of(e).pages_given_back, 0);
    assert_int_equal(stats_of(e).pages_used_max, (PROMPT_TOKENS + 3 - 1 + l.page_tokens - 1) / l.page_tokens);
    engine_end(e);
    bench_close(&b);
}

/* What a prompt left is found, and holds the pages of its window alone. A prompt that leaves it far in front of that is
 * a miss, and is counted; the next one finds what it left. */
static void a_place_without_pages_is_a_miss(void **state) {
    enum { EARLY = 300 };
    static const int64_t hits[] = {0, PROMPT_TOKENS - 1, 0, EARLY}, counts[] = {0, 0, 1, 1};
    ls_levers l = plain_levers(1);
    int32_t early[2][PROMPT_TOKENS];
    const int32_t *prompts[4];
    bench b;
    ls_engine *e;
    (void)state;
    bench_open(&b, "mistral-window", LS_F32);
    for (int i = 0; i < 2; i++) {
        memcpy(early[i], b.prompt[0], sizeof early[i]);
        early[i][EARLY] = (early[i][EARLY] + 1 + i) % 90;
    }
    prompts[0] = prompts[1] = b.prompt[0];
    prompts[2] = early[0];
    prompts[3] = early[1];
    l.prefix = LS_PREFIX_ON;
    l.page_tokens = 16;
    e = engine_of(&b, &l);
    for (uint32_t i = 0; i < 4; i++) {
        job j;
        submit(e, (job_init(&j, prompts[i], PROMPT_TOKENS, i, 0, 2), &j));
        run_dry(e);
        is_complete(&b, &j);
        assert_int_equal(j.request.n_hit, hits[i]);
        assert_int_equal(stats_of(e).prefix.out_of_window, counts[i]);
        ls_prefix_check(e->prefix);
        if (i == 0) /* its end, and the token in front of it */
            assert_int_equal(stats_of(e).pages_used,
                             (PROMPT_TOKENS - 1 + 15) / 16 - ls_attention_begin(PROMPT_TOKENS - 1, WINDOW) / 16);
    }
    engine_end(e);
    bench_close(&b);
}

/* Scoring in chunks holds as little: its pages are written again and again, and the bits are those of one forward. */
static void scores_of_chunks_are_those_of_the_whole(void **state) {
    static float whole[2][PROMPT_TOKENS], chunked[2][PROMPT_TOKENS];
    ls_error err;
    (void)state;
    for (int64_t page = 4; page <= 64; page *= 4) {
        ls_score_opts opts = {.dtype = LS_F32, .batch = 2, .page_tokens = page};
        ls_score_item items[2];
        bench b;
        bench_open(&b, "mistral-window", LS_F32);
        for (int i = 0; i < 2; i++)
            items[i] = (ls_score_item){.tokens = b.prompt[i], .n_tokens = PROMPT_TOKENS - 70 * i, .logprob = whole[i]};
        assert_ok(ls_score(b.v.model[0], b.device, &opts, items, 2, &err), err);
        for (opts.chunk = 3; opts.chunk < 150; opts.chunk = 5 * opts.chunk + 1) {
            for (int i = 0; i < 2; i++) items[i].logprob = chunked[i];
            assert_ok(ls_score(b.v.model[0], b.device, &opts, items, 2, &err), err);
            for (int i = 0; i < 2; i++) assert_same_bits(chunked[i], whole[i], items[i].n_tokens - 1);
        }
        bench_close(&b);
    }
}

/* ---- everything at once ---- */

/* Levers that share, move, compare and take away pages. */
static ls_levers any_levers(uint64_t *random) {
    static const int64_t pages[] = {4, 16, 64}, chunks[] = {7, 64, 150};
    ls_levers l = plain_levers(1 + (int64_t)(test_random(random) % 4));
    l.page_tokens = pages[test_random(random) % 3];
    l.chunk = chunks[test_random(random) % 3];
    l.prefix = test_random(random) % 4 > 0 ? LS_PREFIX_ON : LS_PREFIX_OFF;
    l.snapshot_every = test_random(random) % 2 > 0 ? 0 : 90;
    l.prefix_bytes = 0;
    l.fork = test_random(random) % 2 > 0;
    l.verify = test_random(random) % 3 > 0 ? 0 : 1;
    l.preempt_every = test_random(random) % 2 > 0 ? 0 : 5;
    l.preempt_by = (ls_preempt_by)(test_random(random) % 3);
    l.drafts = test_random(random) % 2 > 0 ? 0 : 3;
    l.policy = (ls_policy)(test_random(random) % LS_POLICY_COUNT);
    if (test_random(random) % 2 > 0) /* hardly more than one sequence takes */
        l.pages = (held_most(l.chunk) + l.page_tokens - 1) / l.page_tokens + (int64_t)(test_random(random) % 4);
    return l;
}

/* Prompts that leave one another anywhere, some of them twice. */
static void any_prompts(const bench *b, int32_t prompts[PROMPTS][PROMPT_TOKENS], int64_t *n, uint64_t *random) {
    for (int i = 0; i < PROMPTS; i++) {
        const int64_t from = i == 0 ? 0 : (int64_t)(test_random(random) % (uint64_t)i);
        const int64_t kept = i == 0 ? 0 : (int64_t)(test_random(random) % (uint64_t)n[from]);
        n[i] = 150 + (int64_t)(test_random(random) % (PROMPT_TOKENS - 150));
        memcpy(prompts[i], b->prompt[i % 2], sizeof prompts[i]);
        if (i > 0) memcpy(prompts[i], prompts[from], (size_t)ls_min_i64(kept, n[i]) * sizeof(int32_t));
    }
}

/* LS_WINDOWS: how many engines are tried. */
static void no_schedule_moves_a_bit(void **state) {
    static const char *const names[] = {"mistral-window", "qwen2-window"};
    static int32_t prompts[PROMPTS][PROMPT_TOKENS];
    const char *text = getenv("LS_WINDOWS");
    const int64_t n_engines = text == NULL ? 16 : strtoll(text, NULL, 10);
    int64_t n[PROMPTS], given_back = 0, swapped = 0, forked = 0, verified = 0, hits = 0, missed = 0;
    (void)state;
    for (int f = 0; f < 2; f++) {
        uint64_t random = 2;
        bench b;
        job want[PROMPTS];
        bench_open(&b, names[f], LS_F32);
        any_prompts(&b, prompts, n, &random);
        for (int i = 0; i < PROMPTS; i++) {
            job_init(&want[i], prompts[i], n[i], 0, 0, 4);
            alone_complete(&b.alone, b.v.model[0], prompts[i], n[i], &b.distribution, 0, 0, 4, want[i].completion,
                           want[i].logprob);
        }
        for (int64_t k = 0; k < n_engines / (1 + 3 * f); k++) {
            ls_levers l = any_levers(&random);
            job jobs[2 * PROMPTS];
            ls_engine *e;
            if (f > 0) l.pages = 0;
            e = engine_of(&b, &l);
            for (uint32_t i = 0; i < 2 * PROMPTS; i++) {
                const uint32_t p = (uint32_t)(test_random(&random) % PROMPTS);
                job_init(&jobs[i], prompts[p], n[p], 0, 0, 4);
                jobs[i].request.owner = 100 * p + i;
                submit(e, &jobs[i]);
                tick(e, (int64_t)(test_random(&random) % 12));
                if (e->prefix != NULL) ls_prefix_check(e->prefix);
            }
            run_dry(e);
            for (int i = 0; i < 2 * PROMPTS; i++) {
                const job *w = &want[jobs[i].request.owner / 100];
                assert_string_equal(ls_finish_name(jobs[i].request.finish), "length");
                assert_memory_equal(jobs[i].completion, w->completion, 4 * sizeof *w->completion);
                assert_same_bits(jobs[i].logprob, w->logprob, 4);
            }
            given_back += stats_of(e).pages_given_back;
            swapped += stats_of(e).preempted_swap;
            forked += stats_of(e).forked;
            verified += stats_of(e).verified;
            hits += stats_of(e).prefix.hits;
            missed += stats_of(e).prefix.out_of_window;
            engine_end(e);
        }
        assert_int_equal(given_back > 0, true);
        bench_close(&b);
    }
    assert_true(swapped > 0 && forked > 0 && verified > 0 && hits > 0 && missed > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sequence_holds_its_window),     cmocka_unit_test(a_layer_that_sees_all_keeps_all),
        cmocka_unit_test(a_place_without_pages_is_a_miss), cmocka_unit_test(scores_of_chunks_are_those_of_the_whole),
        cmocka_unit_test(no_schedule_moves_a_bit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
