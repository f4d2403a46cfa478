/* What a request can ask for on its own, so that one engine serves several callers: sampling, addresses, prefixes kept
 * apart, the log-probabilities of its prompt, a look at its logits. None of it changes a bit of another request. */
#include "engine_case.h"
#include "model/score.h"

static bench odd;

static int open_bench(void **state) {
    (void)state;
    bench_open(&odd, "jamba-odd", LS_F32);
    return 0;
}

static int close_bench(void **state) {
    (void)state;
    bench_close(&odd);
    return 0;
}

static void each_request_has_its_own_sampling(void **state) {
    static const ls_sampling ways[3] = {{.temperature = 0.7f, .top_p = 0.9f, .seed = 11},
                                        {.temperature = 0.0f, .top_p = 1.0f, .seed = 12},
                                        {.temperature = 1.5f, .top_k = 7, .top_p = 1.0f, .min_p = 0.05f, .seed = 13}};
    const ls_levers l = plain_levers(4);
    ls_engine *e = engine_of(&odd, &l);
    job jobs[4];
    (void)state;
    for (uint32_t i = 0; i < 4; i++) {
        job_init(&jobs[i], odd.prompt[i % 3], 6 + (int64_t)i, i, 0, 9);
        if (i < 3) jobs[i].request.sampling = &ways[i];
        submit(e, &jobs[i]);
    }
    run_dry(e);
    for (int i = 0; i < 4; i++) {
        const distribution kept = odd.distribution;
        if (i < 3) odd.distribution.sampling = ways[i];
        is_complete(&odd, &jobs[i]);
        odd.distribution = kept;
    }
    jobs[0].request.sampling = &(const ls_sampling){.temperature = -1.0f, .top_p = 1.0f};
    refused(e, &jobs[0], "temperature");
    engine_end(e);
}

/* The same (prompt, sample) of two owners: the same draws, two requests. */
static void owners_number_their_prompts_alike(void **state) {
    const ls_levers l = plain_levers(2);
    ls_engine *e = engine_of(&odd, &l);
    job jobs[40];
    ls_error err;
    (void)state;
    for (uint32_t i = 0; i < 40; i++) {
        job_init(&jobs[i], odd.prompt[0], 8, 0, i % 2, 6)->owner = i / 2;
        submit(e, &jobs[i]);
    }
    refused(e, &(job){.request = jobs[7].request}, "not finished");
    tick(e, 3);
    assert_ok(ls_engine_cancel(e, &jobs[9].request, &err), err);
    run_dry(e);
    for (int i = 0; i < 40; i++) {
        if (i == 9)
            assert_string_equal(ls_finish_name(jobs[i].request.finish), "cancel");
        else
            is_complete(&odd, &jobs[i]);
    }
    engine_end(e);
}

typedef struct sight {
    const ls_request *request;
    int64_t n;
    int32_t token[LENGTH_MAX];
    float sum;
} sight;

static void look(void *context, int64_t position, int32_t token, const float *logits, int64_t vocab) {
    sight *s = context;
    s->token[position] = token;
    s->n++;
    for (int64_t v = 0; v < vocab; v++) s->sum += logits[v];
}

/* As the training forward gives them, whatever is cached, chunked, shared or thrown away. */
static void prompts_have_log_probabilities(void **state) {
    ls_levers l = plain_levers(3);
    (void)state;
    for (int variant = 0; variant < 3; variant++) {
        const ls_score_opts score = {.dtype = LS_F32, .batch = 1, .page_tokens = 16};
        float prompt[4][PROMPT_TOKENS], scored[LENGTH_MAX];
        static sight seen[4];
        int32_t tokens[LENGTH_MAX];
        job jobs[4];
        ls_engine *e;
        ls_error err;
        l.chunk = variant == 0 ? 5 : 0;
        l.prefix = variant == 0 ? LS_PREFIX_OFF : LS_PREFIX_ON;
        l.fork = variant > 0;
        l.preempt_every = variant == 2 ? 3 : 0;
        e = engine_of(&odd, &l);
        memset(seen, 0, sizeof seen);
        for (uint32_t i = 0; i < 4; i++) {
            /* The last one only wants them. */
            ls_request *r = job_init(&jobs[i], odd.prompt[1], PROMPT_TOKENS, 0, i, i == 3 ? 0 : 7);
            if (i == 0) { /* leaves the prompt in the cache */
                submit(e, &jobs[i]);
                run_dry(e);
                continue;
            }
            r->prompt_logprob = prompt[i];
            r->see = look;
            r->see_context = &seen[i];
            submit(e, &jobs[i]);
        }
        run_dry(e);
        memcpy(tokens, odd.prompt[1], sizeof odd.prompt[1]);
        for (int i = 1; i < 4; i++) {
            const int64_t n = PROMPT_TOKENS + jobs[i].request.n_completion;
            ls_score_item item = {.tokens = tokens, .n_tokens = n, .logprob = scored};
            if (i < 3) is_complete(&odd, &jobs[i]);
            memcpy(tokens + PROMPT_TOKENS, jobs[i].completion, sizeof jobs[i].completion);
            assert_ok(ls_score(odd.v.model[0], odd.device, &score, &item, 1, &err), err);
            assert_same_bits(prompt[i], scored, PROMPT_TOKENS - 1);
            assert_same_bits(jobs[i].logprob, scored + PROMPT_TOKENS - 1, jobs[i].request.n_completion);
            assert_in_range((uintmax_t)seen[i].n, (uintmax_t)n - 1, 10000);
            assert_memory_equal(seen[i].token + 1, tokens + 1, (size_t)(n - 1) * sizeof *tokens);
            assert_true(seen[i].sum == seen[i].sum && jobs[i].request.n_hit == 0);
        }
        engine_end(e);
    }
}

/* Requests with a salt leave nothing in the prefix cache and find nothing there; those of one salt still share. */
static void salts_keep_prefixes_apart(void **state) {
    ls_levers l = plain_levers(3);
    ls_engine *e;
    job jobs[5];
    (void)state;
    l.prefix = LS_PREFIX_ON;
    e = engine_of(&odd, &l);
    for (uint32_t i = 0; i < 5; i++) {
        job_init(&jobs[i], odd.prompt[0], 30, i, 0, 4)->salt = i == 1 || i == 2 ? 1 : i == 3 ? 2 : 0;
        submit(e, &jobs[i]);
        run_dry(e);
        is_complete(&odd, &jobs[i]);
        assert_int_equal(jobs[i].request.n_hit, i == 4 ? 29 : 0);
    }
    engine_end(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_request_has_its_own_sampling),
        cmocka_unit_test(owners_number_their_prompts_alike),
        cmocka_unit_test(prompts_have_log_probabilities),
        cmocka_unit_test(salts_keep_prefixes_apart),
    };
    return cmocka_run_group_tests(tests, open_bench, close_bench);
}
