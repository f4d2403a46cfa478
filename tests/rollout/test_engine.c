/* The engine by named cases: who runs when, what is refused and how, ends of all kinds, weights, sleep. Bits are those
 * of the sequence alone. Random schedules are in test_schedules.c, the prefix cache behind the engine in
 * test_engine_prefix.c. */
#include "engine_case.h"

static bench odd; /* jamba-odd in bf16: attention, Mamba and experts; a window wider than some prompts */

static int open_bench(void **state) {
    (void)state;
    bench_open(&odd, "jamba-odd", LS_BF16);
    return 0;
}

static int close_bench(void **state) {
    (void)state;
    bench_close(&odd);
    return 0;
}

/* ---- runs ---- */

/* Results lie where the requests lie, in whatever order these were submitted, ran and ended. */
static void results_are_in_the_callers_order(void **state) {
    ls_levers l = plain_levers(3);
    job jobs[12];
    ls_request requests[12];
    (void)state;
    for (uint64_t seed = 0; seed < 3; seed++) {
        ls_device *one = odd.device;
        ls_engine *e;
        ls_error err;
        l.shuffle = seed;
        odd.device = seed == 1 ? test_device(2, ls_isa_best()) : one;
        e = engine_of(&odd, &l);
        for (int i = 0; i < 12; i++) {
            requests[i] =
                *job_init(&jobs[i], odd.prompt[i % 3], 1 + 3 * i, (uint32_t)i / 4, (uint32_t)i % 4, 1 + i % 5);
            requests[i].priority = i % 2;
        }
        assert_ok(ls_engine_run(e, requests, 12, NULL, NULL, &err), err);
        for (int i = 0; i < 12; i++) {
            jobs[i].request = requests[i];
            is_complete(&odd, &jobs[i]);
        }
        engine_end(e);
        if (seed == 1) test_device_close(odd.device);
        odd.device = one;
    }
}

static void lower_priority_values_run_first(void **state) {
    const ls_levers l = plain_levers(1);
    ls_engine *e = engine_of(&odd, &l);
    job late, first, urgent;
    (void)state;
    job_init(&late, odd.prompt[0], 7, 0, 0, 6)->priority = 2;
    job_init(&first, odd.prompt[1], 9, 1, 0, 6)->priority = 1;
    job_init(&urgent, odd.prompt[2], 11, 2, 0, 6)->priority = -3;
    submit(e, &late);
    submit(e, &first);
    tick(e, 4); /* the lower value was submitted later and runs first */
    assert_true(first.request.n_completion > 0);
    assert_int_equal(late.request.n_completion, 0);
    submit(e, &urgent); /* and this one takes the only place from it */
    run_dry(e);
    assert_true(urgent.request.tick_last < first.request.tick_first + 100);
    assert_true(urgent.request.tick_last < first.request.tick_last);
    assert_true(first.request.tick_last < late.request.tick_first);
    assert_int_equal(first.request.n_preempted, 1);
    is_complete(&odd, &late);
    is_complete(&odd, &first);
    is_complete(&odd, &urgent);
    engine_end(e);
}

/* A run that is refused half way, and one whose warming up is, leave an engine that runs the next one. */
static void a_refused_run_leaves_nothing_behind(void **state) {
    (void)state;
    for (int warm = 0; warm < 2; warm++) {
        ls_levers l = plain_levers(2);
        job jobs[3];
        ls_request requests[3];
        ls_engine *e;
        ls_error err;
        if (warm) l.prefix = LS_PREFIX_WARM;
        e = engine_of(&odd, &l);
        for (int i = 0; i < 3; i++) requests[i] = *job_init(&jobs[i], odd.prompt[i], 6, (uint32_t)i, 0, 3);
        requests[2].n_prompt = 0;
        check_failed(ls_engine_run(e, requests, 3, NULL, NULL, &err), &err,
                     warm ? "warm-up: prompt 2" : "prompt 2, sample 0: the prompt is empty");
        assert_int_equal(ls_engine_unfinished(e), 0);
        assert_ok(ls_engine_run(e, requests, 2, NULL, NULL, &err), err);
        jobs[0].request = requests[0];
        is_complete(&odd, &jobs[0]);
        engine_end(e);
    }
}

/* ---- what cannot be ---- */

static void cannot(const ls_levers *l, const char *word) {
    ls_engine *e;
    ls_error err;
    check_failed(engine_try(&e, &odd, l, &err), &err, word);
    assert_null(e);
}

static void impossible_budgets_name_value_and_limit(void **state) {
    ls_levers l = plain_levers(4);
    (void)state;
    l.tick_tokens = 3;
    cannot(&l, "tick-tokens: 3 rows do not hold one token of each of 4 sequences");
    l = plain_levers(4);
    l.memory_bytes = 1000;
    cannot(&l, "the budget is 1000");
    l.pages = 64;
    cannot(&l, "the budget is 1000");
    l = plain_levers(4);
    l.slot_words = 16;
    cannot(&l, "state slots: stride of 64 bytes");
    l = plain_levers(4);
    l.prefix = LS_PREFIX_ON;
    l.prefix_bytes = 100;
    cannot(&l, "prefix-memory: 100 bytes do not hold one snapshot, which takes ");
    l = plain_levers(0);
    cannot(&l, "batch: '0'");
    l = plain_levers(4);
    l.slots = 2;
    l.slot_base = 2;
    cannot(&l, "slot-base: 2 is none of the 2 slots");
}

/* Whatever the budget, what is planned stays below it, and more of it is never fewer pages. */
static void plans_stay_within_the_budget(void **state) {
    (void)state;
    for (int by = LS_PREEMPT_RECOMPUTE; by <= LS_PREEMPT_SWAP; by++) {
        int64_t pages = 0;
        for (int64_t bytes = 1 << 16; bytes < 1 << 22; bytes = bytes * 9 / 8) {
            ls_levers l = plain_levers(4);
            ls_engine_plan plan;
            ls_engine *e;
            l.memory_bytes = bytes;
            l.preempt_by = (ls_preempt_by)by;
            l.prefix = LS_PREFIX_ON;
            if (engine_try(&e, &odd, &l, NULL) != LS_OK) {
                assert_int_equal(pages, 0);
                continue;
            }
            ls_engine_get_plan(e, &plan);
            assert_true(plan.total_bytes <= bytes && plan.pages >= pages && plan.pages > 0);
            pages = plan.pages;
            engine_end(e);
        }
        assert_true(pages > 0);
    }
}

static void requests_that_cannot_run_are_refused_by_name(void **state) {
    ls_levers l = plain_levers(2);
    ls_engine *e;
    job j, running;
    const int32_t wrong[] = {3, odd.v.model[0]->config.vocab};
    ls_error err;
    (void)state;
    l.pages = 5;
    e = engine_of(&odd, &l);
    submit(e, (job_init(&running, odd.prompt[0], 9, 7, 0, 8), &running));
    tick(e, 3);
    job_init(&j, odd.prompt[1], 0, 1, 2, 3);
    refused(e, &j, "prompt 1, sample 2: the prompt is empty");
    job_init(&j, odd.prompt[1], 5, 1, 2, -1);
    refused(e, &j, "max_tokens -1 is negative");
    job_init(&j, wrong, 2, 1, 2, 3);
    refused(e, &j, "token 1 is 300, the vocabulary is 0..299");
    job_init(&j, odd.prompt[1], PROMPT_TOKENS, 1, 2, JOB_TOKENS + 1);
    refused(e, &j, "40 tokens and a completion of 13 are more than the engine's 52");
    job_init(&j, odd.prompt[1], PROMPT_TOKENS, 1, 2, 3); /* longer than the pool, while another one runs */
    refused(e, &j, "43 tokens take 11 KV pages, the pool has 5");
    job_init(&j, odd.prompt[1], 5, 1, 2, 3);
    check_failed(ls_engine_cancel(e, &j.request, &err), &err, "no such unfinished request");
    run_dry(e);
    is_complete(&odd, &running);
    engine_end(e);
}

static void addresses_are_unique_while_they_live(void **state) {
    const ls_levers l = plain_levers(2);
    ls_engine *e = engine_of(&odd, &l);
    job first, second;
    ls_error err;
    (void)state;
    job_init(&first, odd.prompt[0], 5, 4, 1, 3);
    job_init(&second, odd.prompt[0], 5, 4, 1, 3);
    submit(e, &first);
    refused(e, &second, "prompt 4, sample 1: a request with this address is not finished");
    check_failed(ls_engine_cancel(e, &second.request, &err), &err, "no such unfinished request");
    run_dry(e);
    submit(e, &second);
    run_dry(e);
    is_complete(&odd, &first);
    is_complete(&odd, &second);
    engine_end(e);
}

static void unfinished_requests_have_a_limit(void **state) {
    const ls_levers l = plain_levers(2);
    ls_engine *e;
    job jobs[3];
    (void)state;
    odd.requests_max = 2;
    e = engine_of(&odd, &l);
    odd.requests_max = 0;
    for (int i = 0; i < 3; i++) job_init(&jobs[i], odd.prompt[i], 5, (uint32_t)i, 0, 3);
    submit(e, &jobs[0]);
    submit(e, &jobs[1]);
    refused(e, &jobs[2], "2 requests are unfinished, which is the limit");
    run_dry(e);
    submit(e, &jobs[2]);
    run_dry(e);
    is_complete(&odd, &jobs[2]);
    engine_end(e);
}

/* Two samples of one prompt on pages for one: the fork that is made has to be given up again, and the page that the two
 * shared is the leader's own once more. */
static void a_fork_without_room_gives_way(void **state) {
    (void)state;
    for (int64_t n = 2; n < 12; n++) {
        ls_levers l = plain_levers(2);
        ls_engine *e;
        job a, b;
        l.fork = true;
        l.pages = (n + 1 + 3) / 4;
        l.prefix = n % 2 == 0 ? LS_PREFIX_ON : LS_PREFIX_OFF;
        e = engine_of(&odd, &l);
        submit(e, (job_init(&a, odd.prompt[0], n, 0, 0, 1), &a));
        submit(e, (job_init(&b, odd.prompt[0], n, 0, 1, 1), &b));
        run_dry(e);
        is_complete(&odd, &a);
        is_complete(&odd, &b);
        engine_end(e);
    }
}

/* ---- ends ---- */

static void cancelled_requests_touch_no_other(void **state) {
    (void)state;
    for (int fork = 0; fork < 2; fork++) {
        ls_levers l = plain_levers(4);
        ls_engine *e;
        job leader, followers[2], other, waits, swapped;
        ls_error err;
        l.fork = fork;
        l.prefix = fork ? LS_PREFIX_OFF : LS_PREFIX_ON;
        l.preempt_by = LS_PREEMPT_SWAP;
        e = engine_of(&odd, &l);
        submit(e, (job_init(&leader, odd.prompt[1], 23, 1, 0, 4), &leader));
        for (int i = 0; i < 2; i++)
            submit(e, (job_init(&followers[i], odd.prompt[1], 23, 1, 1 + (uint32_t)i, 4), &followers[i]));
        submit(e, (job_init(&other, odd.prompt[0], 9, 0, 0, 8), &other));
        submit(e, (job_init(&waits, odd.prompt[2], 9, 2, 0, 4), &waits));
        tick(e, 2);
        assert_int_equal(e->running[1]->leader == e->running[0], fork);
        assert_ok(ls_engine_cancel(e, &waits.request, &err), err);
        assert_ok(ls_engine_cancel(e, &leader.request, &err), err); /* in the midst of what two wait for */
        assert_int_equal(leader.request.n_completion, 0);
        assert_int_equal(e->running[1]->leader == e->running[0], fork); /* one of them goes on for both */
        submit(e, (job_init(&swapped, odd.prompt[2], 13, 2, 1, 8), &swapped));
        tick(e, 8);
        assert_true(ls_engine_preempt(e, LS_PREEMPT_SWAP));
        assert_ptr_equal(ls_waiting_top(&e->waiting)->request, &swapped.request);
        assert_true(ls_waiting_top(&e->waiting)->swap_slot >= 0);
        assert_ok(ls_engine_cancel(e, &swapped.request, &err), err);
        assert_ok(ls_engine_cancel(e, &followers[1].request, &err), err); /* while it draws */
        run_dry(e);
        is_complete(&odd, &followers[0]);
        is_complete(&odd, &other);
        has_bits(&odd, &swapped, 0, swapped.request.n_completion);
        has_bits(&odd, &followers[1], 0, followers[1].request.n_completion);
        for (int i = 0; i < 3; i++) {
            const job *ended[] = {&leader, &waits, &swapped};
            assert_string_equal(ls_finish_name(ended[i]->request.finish), "cancel");
        }
        engine_end(e);
    }
}

static bool stop_at_three(void *context, const int32_t *completion, int64_t n) {
    int64_t *calls = context;
    (void)completion;
    ++*calls;
    assert_int_equal(n, *calls);
    return n == 3;
}

static void completions_stop_by_token_or_callback(void **state) {
    const ls_levers l = plain_levers(2);
    int64_t calls = 0;
    ls_engine *e;
    job called, free_run, stopped;
    int32_t stop[2];
    (void)state;
    e = engine_of(&odd, &l);
    job_init(&called, odd.prompt[0], 6, 0, 0, 8);
    called.request.stop = stop_at_three;
    called.request.stop_context = &calls;
    submit(e, &called);
    submit(e, (job_init(&free_run, odd.prompt[1], 6, 1, 0, 8), &free_run));
    run_dry(e);
    assert_string_equal(ls_finish_name(called.request.finish), "stop");
    has_bits(&odd, &called, 0, 3);
    is_complete(&odd, &free_run);
    engine_end(e);
    /* the fifth token of the one that ran free stops it, unless it came before */
    stop[0] = stop[1] = free_run.completion[4];
    odd.stop = stop;
    odd.n_stop = 2;
    e = engine_of(&odd, &l);
    odd.n_stop = 0;
    submit(e, (job_init(&stopped, odd.prompt[1], 6, 1, 0, 8), &stopped));
    run_dry(e);
    assert_string_equal(ls_finish_name(stopped.request.finish), "stop");
    assert_int_equal(stopped.completion[stopped.request.n_completion - 1], stop[0]);
    has_bits(&odd, &stopped, 0, stopped.request.n_completion);
    engine_end(e);
}

/* A sample of prompt 0 whose first token is in no prompt and is not drawn by two samples of prompt 1: that token. */
static int32_t find_stranger(bench *b, int64_t n_prompt, uint32_t *sample) {
    int32_t token[8];
    float logprob[8];
    for (*sample = 0; *sample < 1000; ++*sample) {
        int32_t first = -1;
        bool used = false;
        alone_complete(&b->alone, b->v.model[0], b->prompt[0], n_prompt, &b->distribution, 0, *sample, 1, &first,
                       logprob);
        for (int64_t t = 0; t < n_prompt; t++) used = used || b->prompt[0][t] == first || b->prompt[1][t] == first;
        for (uint32_t other = 0; other < 2; other++) {
            alone_complete(&b->alone, b->v.model[0], b->prompt[1], n_prompt, &b->distribution, 1, other, 6, token,
                           logprob);
            for (int t = 0; t < 6; t++) used = used || token[t] == first;
        }
        if (!used) return first;
    }
    fail_msg("every token is used");
    return -1;
}

/* A copy of the model's embedding with NaN in the row of a token; the caller frees it. */
static void *poisoned_embedding(const ls_model *model, int32_t token) {
    const int64_t row_bytes = model->config.hidden * ls_dtype_bytes(model->embed_dtype);
    const int64_t bytes = row_bytes * model->config.vocab;
    uint8_t *data = to_device(test_home(), NULL, bytes);
    ls_error err;
    assert_ok(ls_memory_copy(test_home(), data, model->embed, bytes, &err), err);
    assert_ok(ls_memory_fill(test_home(), data + token * row_bytes, 0xFF, row_bytes, &err), err);
    assert_ok(ls_device_wait(test_home(), &err), err);
    return data;
}

/* An embedding row of NaN, for one token that one prompt holds and another request draws: both end there with an error
 * that says where, and those beside them, before and after, do not notice. */
static void not_a_number_ends_one_request(void **state) {
    static const char *const names[] = {"jamba-odd",        "jamba-dense",    "jamba-moe",          "jamba-nobias",
                                        "mamba-odd",        "qwen3-small",    "falcon-mamba-small", "mamba2-small",
                                        "nemotron-h-small", "bamba-small",    "qwen3.5-small",      "qwen3.5-moe-small",
                                        "qwen3-next-small", "nemotron-h-moe", "granite-moe-small"};
    enum { N = 9 };
    (void)state;
    for (size_t f = 0; f < sizeof names / sizeof names[0]; f++) {
        bench b;
        ls_levers l = plain_levers(3);
        void *poisoned, *embed;
        ls_engine *e;
        job draws, holds[2], sound[2], after;
        int32_t bad;
        uint32_t sample;
        bench_open(&b, names[f], f % 2 == 0 ? LS_F32 : LS_BF16);
        l.prefix = LS_PREFIX_ON;
        l.fork = true;
        l.verify = 1;
        b.distribution.sampling.temperature = 4.0f; /* else some of the models only repeat the last token */
        bad = find_stranger(&b, N, &sample);
        embed = b.v.model[0]->embed;
        poisoned = poisoned_embedding(b.v.model[0], bad);
        b.v.model[0]->embed = poisoned;
        b.prompt[2][4] = bad;
        e = engine_of(&b, &l);
        for (uint32_t i = 0; i < 2; i++) {
            submit(e, (job_init(&holds[i], b.prompt[2], N, 2, i, 6), &holds[i]));
            submit(e, (job_init(&sound[i], b.prompt[1], N, 1, i, 6), &sound[i]));
        }
        submit(e, (job_init(&draws, b.prompt[0], N, 0, sample, 6), &draws));
        run_dry(e);
        submit(e, (job_init(&after, b.prompt[1], N - 1, 3, 0, 1), &after)); /* into slots and pages that held NaN */
        run_dry(e);
        for (int i = 0; i < 2; i++) {
            assert_string_equal(ls_finish_name(holds[i].request.finish), "error");
            assert_int_equal(holds[i].request.n_completion, 0);
            check_failed(holds[i].request.error.status, &holds[i].request.error, "at position 9 hold NaN");
        }
        assert_string_equal(ls_finish_name(draws.request.finish), "error");
        assert_int_equal(draws.completion[0], bad);
        check_failed(draws.request.error.status, &draws.request.error, "at position 10 hold NaN");
        b.v.model[0]->embed = embed;
        for (int i = 0; i < 2; i++) is_complete(&b, &sound[i]);
        is_complete(&b, &after);
        has_bits(&b, &draws, 0, 1);
        engine_end(e);
        ls_memory_free(test_home(), poisoned);
        bench_close(&b);
    }
}

/* Finite logits that the temperature makes infinite: nothing to draw from. */
static void nothing_to_draw_from_ends_a_request(void **state) {
    const ls_levers l = plain_levers(2);
    ls_engine *e;
    job j;
    (void)state;
    odd.distribution.sampling.temperature = 3e-39f;
    e = engine_of(&odd, &l);
    odd.distribution = plain_distribution;
    submit(e, (job_init(&j, odd.prompt[0], 4, 0, 0, 3), &j));
    run_dry(e);
    assert_string_equal(ls_finish_name(j.request.finish), "error");
    check_failed(j.request.error.status, &j.request.error, "prompt 0, sample 0: logits at position 4");
    engine_end(e);
}

/* ---- sharing a prefill ---- */

static int64_t prefill_of_samples(const bench *b, const ls_levers *l, const int32_t *prompt, int64_t n, job *jobs) {
    ls_engine *e = engine_of(b, l);
    ls_engine_stats stats;
    for (uint32_t i = 0; i < 8; i++) submit(e, (job_init(&jobs[i], prompt, n, 0, i, 4), &jobs[i]));
    run_dry(e);
    ls_engine_get_stats(e, &stats);
    engine_end(e);
    assert_int_equal(stats.tokens, 8 * 4);
    assert_true(stats.rows >= stats.prefill_tokens + 8 * 3);
    return stats.prefill_tokens;
}

static void samples_share_their_prefill(void **state) {
    enum { N = 1000 };
    int32_t prompt[N];
    job want[8], got[8];
    int64_t apart;
    uint64_t random = 3;
    ls_levers l = plain_levers(8);
    (void)state;
    for (int t = 0; t < N; t++) prompt[t] = (int32_t)(test_random(&random) % 300);
    l.chunk = 256;
    l.page_tokens = 16;
    odd.length_max = N + 4;
    apart = prefill_of_samples(&odd, &l, prompt, N, want);
    assert_in_range(apart, 8 * (N - 1), 8 * N);
    for (int way = 0; way < 3; way++) { /* by fork; by prefix, one after the other; by both, with preemptions */
        int64_t shared;
        l.batch = way == 1 ? 1 : 8;
        l.fork = way != 1;
        l.prefix = way > 0 ? LS_PREFIX_ON : LS_PREFIX_OFF;
        l.preempt_every = way == 2 ? 2 : 0;
        shared = prefill_of_samples(&odd, &l, prompt, N, got);
        print_message("%lld prefill tokens apart, %lld shared\n", (long long)apart, (long long)shared);
        assert_true(5 * shared <= apart);
        for (int i = 0; i < 8; i++) {
            assert_memory_equal(got[i].completion, want[i].completion, 4 * sizeof(int32_t));
            assert_same_bits(got[i].logprob, want[i].logprob, 4);
        }
    }
    odd.length_max = LENGTH_MAX;
}

/* ---- weights and sleep ---- */

/* Tokens drawn after an update are those that the new weights give behind all tokens before them, and say so. */
static void weights_change_in_mid_flight(void **state) {
    (void)state;
    for (int by = LS_PREEMPT_RECOMPUTE; by <= LS_PREEMPT_SWAP; by++) {
        ls_levers l = plain_levers(3);
        ls_engine *e;
        job jobs[4], again;
        ls_error err;
        bench b;
        bench_open(&b, "jamba-odd", LS_F32);
        l.prefix = LS_PREFIX_ON;
        l.fork = true;
        l.preempt_by = (ls_preempt_by)by;
        e = engine_of(&b, &l);
        for (uint32_t i = 0; i < 4; i++)
            submit(e, (job_init(&jobs[i], b.prompt[i / 2], 11, i / 2, i % 2, 8), &jobs[i]));
        tick(e, 5);
        assert_true(jobs[0].request.n_completion > 0 && jobs[0].request.n_completion < 8);
        ls_engine_preempt(e, (ls_preempt_by)by); /* with swap, states of the old weights wait in swap space */
        assert_ok(ls_engine_set_weights(e, b.v.model[1], 1, &err), err);
        ls_model_close(b.v.model[0]); /* the old weights may go */
        versions_open_one(&b.v, 0, "jamba-odd");
        run_dry(e);
        for (int i = 0; i < 4; i++) {
            const ls_request *r = &jobs[i].request;
            int32_t tokens[LENGTH_MAX];
            memcpy(tokens, r->prompt, (size_t)r->n_prompt * sizeof *tokens);
            for (int64_t t = 0; t < 8; t++) {
                const ls_draw draw = {r->prompt_i, r->sample_i, (uint32_t)(r->n_prompt + t)};
                int32_t token;
                float logprob;
                assert_true(jobs[i].weights[t] <= 1 && (t == 0 || jobs[i].weights[t] >= jobs[i].weights[t - 1]));
                assert_ok(alone_next(&b.alone, b.v.model[jobs[i].weights[t]], tokens, r->n_prompt + t, 0,
                                     &b.distribution, &draw, &token, &logprob, &err),
                          err);
                assert_int_equal(jobs[i].completion[t], token);
                assert_same_bits(&jobs[i].logprob[t], &logprob, 1);
                tokens[r->n_prompt + t] = token;
            }
        }
        assert_int_equal(jobs[0].weights[0], 0);
        assert_int_equal(jobs[0].weights[7], 1);
        submit(e, (job_init(&again, b.prompt[0], 11, 9, 0, 4), &again));
        run_dry(e);
        has_bits(&b, &again, 1, 4);
        engine_end(e);
        bench_close(&b);
    }
}

static void weights_of_another_model_are_refused(void **state) {
    const ls_levers l = plain_levers(1);
    ls_engine *e = engine_of(&odd, &l);
    ls_model twin = *odd.v.model[0];
    versions other;
    ls_error err;
    (void)state;
    versions_open(&other, "jamba-nobias");
    check_failed(ls_engine_set_weights(e, other.model[0], 7, &err), &err, "weights version 7: the configuration");
    twin.config.d_state++;
    check_failed(ls_engine_set_weights(e, &twin, 7, &err), &err, "weights version 7: the configuration");
    twin.config.d_state--;
    twin.profile = LS_PROFILE_MMA16;
    check_failed(ls_engine_set_weights(e, &twin, 7, &err), &err, "weights version 7: the profile is mma16");
    twin.profile = LS_PROFILE_EXACT;
    twin.config.stored_dtype = LS_F16; /* what only the file says */
    twin.config.n_eos = 0;
    assert_ok(ls_engine_set_weights(e, &twin, 7, &err), err);
    versions_close(&other);
    engine_end(e);
}

/* Asleep, the pools are no memory; awake, everything goes on. */
static void sleep_loses_nothing_but_memory(void **state) {
    (void)state;
    for (int poison = 0; poison < 2; poison++) {
        ls_levers l = plain_levers(3);
        ls_engine *e;
        job jobs[4];
        int64_t n_touched = 0;
        ls_error err;
        l.poison = poison;
        l.guards = poison;
        l.prefix = LS_PREFIX_ON;
        l.verify = 1;
        l.preempt_by = LS_PREEMPT_SWAP;
        l.slots = 20;
        e = engine_of(&odd, &l);
        for (uint32_t i = 0; i < 4; i++)
            submit(e, (job_init(&jobs[i], odd.prompt[i / 2], 21, i / 2, i % 2, 8), &jobs[i]));
        for (int i = 0; i < 4; i++) {
            tick(e, 3);
            ls_engine_preempt(e, LS_PREEMPT_SWAP);
            assert_ok(ls_engine_sleep(e, &err), err);
            assert_true(ls_engine_sleeps(e));
            assert_int_equal(e->n_running, 0);
        }
        for (int64_t layer = 0; layer < e->cache->n_layers; layer++) assert_null(e->cache->layer[layer]);
        assert_ok(ls_engine_wake(e, &err), err);
        for (int64_t layer = 0; !poison && layer < e->cache->n_layers; layer++) {
            const int64_t bytes = e->cache->kind[layer] == LS_POOL_PAGES ? e->cache->n_pages * e->cache->page_stride
                                                                         : e->cache->n_slots * e->cache->slot_stride;
            uint8_t *pool = malloc((size_t)bytes + 1);
            assert_non_null(pool);
            from_device(e->device, pool, e->cache->layer[layer], bytes);
            for (int64_t i = 0; i < bytes / 4096 * 4096; i++) n_touched += pool[i] != 0;
            free(pool);
        }
        assert_int_equal(n_touched, 0);
        run_dry(e);
        for (int i = 0; i < 4; i++) is_complete(&odd, &jobs[i]);
        engine_end(e);
    }
}

/* ---- guards ---- */

static void an_overwritten_guard_stops_the_engine(void **state) {
    (void)state;
    for (int attention = 0; attention < 2; attention++) {
        const ls_levers l = plain_levers(2);
        ls_engine *e = engine_of(&odd, &l);
        job j;
        ls_error err;
        int64_t layer = 0, at;
        submit(e, (job_init(&j, odd.prompt[0], 9, 0, 0, 4), &j));
        tick(e, 1);
        while (e->cache->kind[layer] != (attention ? LS_POOL_PAGES : LS_POOL_SLOTS)) layer++;
        at = attention ? 3 * e->cache->page_stride + e->cache->page_bytes + 5
                       : 1 * e->cache->slot_stride + e->cache->slot_bytes + 5;
        assert_ok(ls_memory_fill(e->device, e->cache->layer[layer] + at, 1, 1, &err), err);
        check_failed(ls_engine_tick(e, &err), &err,
                     attention ? "layer 1: byte 5 behind page 3 was overwritten with 0x01"
                               : "layer 0: byte 5 behind slot 1 was overwritten with 0x01");
        err.text[0] = '\0';
        check_failed(ls_engine_tick(e, &err), &err, "was overwritten"); /* for good */
        check_failed(ls_engine_submit(e, &j.request, &err), &err, "was overwritten");
        ls_engine_free(e);
    }
}

/* States of heads that are written every few tokens: nobody sees when. Chunks of one token leave some that lack tokens
 * to forks, snapshots, drafts and swap. */
static void states_may_be_written_late(void **state) {
    static const char *const fixtures[] = {"mamba2-small", "nemotron-h-small", "qwen3.5-small", "qwen3-next-small"};
    static const int64_t every[] = {1, 2, 4, LS_STATE_EVERY_MAX};
    (void)state;
    for (int i = 0; i < 16; i++) {
        ls_levers l = plain_levers(3);
        bench b;
        ls_engine *e;
        job jobs[4];
        bench_open(&b, fixtures[i / 4], i / 4 % 2 == 0 ? LS_F32 : LS_BF16);
        l.state_every = every[i % 4];
        l.chunk = 1 + i % 2;
        l.prefix = LS_PREFIX_ON;
        l.fork = true;
        l.verify = i % 2;
        l.drafts = i % 3;
        l.preempt_every = 5;
        l.preempt_by = LS_PREEMPT_ALTERNATE;
        e = engine_of(&b, &l);
        assert_int_equal(e->cache->state_every, every[i % 4]);
        for (uint32_t k = 0; k < 4; k++) /* the second is a fork of the first, the last a hit behind it */
            submit(e, (job_init(&jobs[k], b.prompt[k / 2], 9 + k / 3, k / 2, k % 2, JOB_TOKENS), &jobs[k]));
        run_dry(e);
        for (int k = 0; k < 4; k++) is_complete(&b, &jobs[k]);
        assert_true(e->stats.forked > 0 && e->stats.preempted_swap > 0);
        engine_end(e);
        bench_close(&b);
    }
}

/* What a lever of 0 chooses, and what models without states of heads make of it. */
static void the_lever_is_resolved_once(void **state) {
    static const char *const fixtures[] = {"jamba-odd", "llama-odd", "mamba2-small", "qwen3.5-small"};
    (void)state;
    for (int i = 0; i < 8; i++) {
        const int64_t asked = i % 2 == 0 ? 0 : 3;
        ls_levers l = plain_levers(2);
        ls_engine_plan plan;
        bench b;
        ls_engine *e;
        bench_open(&b, fixtures[i / 2], LS_F32);
        l.state_every = asked;
        e = engine_of(&b, &l);
        ls_engine_get_plan(e, &plan);
        if (i < 4)
            assert_int_equal(e->state_every, 1);
        else if (asked > 0)
            assert_int_equal(e->state_every, asked);
        else
            assert_int_equal(e->state_every, !test_on_gpu() ? 1 : i == 4 ? 8 : 4);
        assert_int_equal(e->cache->state_every, e->state_every);
        assert_int_equal(plan.slot_stride, ls_slot_bytes(&b.v.model[0]->config, LS_F32, e->state_every));
        assert_int_equal(e->opts.levers.state_every, asked);
        engine_end(e);
        bench_close(&b);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(results_are_in_the_callers_order),
        cmocka_unit_test(lower_priority_values_run_first),
        cmocka_unit_test(a_refused_run_leaves_nothing_behind),
        cmocka_unit_test(impossible_budgets_name_value_and_limit),
        cmocka_unit_test(plans_stay_within_the_budget),
        cmocka_unit_test(requests_that_cannot_run_are_refused_by_name),
        cmocka_unit_test(addresses_are_unique_while_they_live),
        cmocka_unit_test(unfinished_requests_have_a_limit),
        cmocka_unit_test(a_fork_without_room_gives_way),
        cmocka_unit_test(cancelled_requests_touch_no_other),
        cmocka_unit_test(completions_stop_by_token_or_callback),
        cmocka_unit_test(not_a_number_ends_one_request),
        cmocka_unit_test(nothing_to_draw_from_ends_a_request),
        cmocka_unit_test(samples_share_their_prefill),
        cmocka_unit_test(weights_change_in_mid_flight),
        cmocka_unit_test(weights_of_another_model_are_refused),
        cmocka_unit_test(sleep_loses_nothing_but_memory),
        cmocka_unit_test(an_overwritten_guard_stops_the_engine),
        cmocka_unit_test(states_may_be_written_late),
        cmocka_unit_test(the_lever_is_resolved_once),
    };
    return cmocka_run_group_tests(tests, open_bench, close_bench);
}
