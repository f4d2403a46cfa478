/* What a request can ask for on its own, so that one engine serves several callers: sampling, addresses, prefixes kept
 * apart, the log-probabilities of its prompt, a look at its logits. None of it changes a bit of another request. */
#include <math.h>

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

typedef struct weighed {
    job job;
    int32_t kept[JOB_TOKENS];
    float of_all[JOB_TOKENS], of_kept[JOB_TOKENS], of_model[JOB_TOKENS];
    int64_t seen[JOB_TOKENS]; /* entries that were left, of what was shown */
} weighed;

static void count_kept(void *context, int64_t position, int32_t token, const float *logits, const float *processed,
                       int64_t vocab) {
    weighed *w = context;
    int64_t *n = &w->seen[position - w->job.request.n_prompt];
    (void)token, (void)logits;
    *n = 0;
    for (int64_t v = 0; v < vocab; v++) *n += processed[v] > -INFINITY;
}

/* Requests that ask beside some that do not, of an engine that records either kind: what one engine records is what the
 * other weighs, and nobody's bits depend on who asks. */
static void distributions_are_weighed_for_who_asks(void **state) {
    static const ls_sampling ways[4] = {{.temperature = 0.7f, .top_p = 0.9f, .seed = 11},
                                        {.temperature = 1.0f, .top_k = 4, .top_p = 1.0f, .seed = 12},
                                        {.temperature = 0.0f, .top_p = 1.0f, .seed = 13},
                                        {.temperature = 1.0f, .top_p = 1.0f, .seed = 14}};
    const distribution before = odd.distribution;
    static weighed jobs[2][6]; /* by what is recorded */
    (void)state;
    for (int of = 0; of < 2; of++) {
        const ls_levers l = plain_levers(4);
        ls_engine_opts opts = {.dtype = odd.dtype,
                               .levers = l,
                               .length_max = odd.length_max,
                               .logprob_of = of == 0 ? LS_LOGPROB_RAW : LS_LOGPROB_PROCESSED,
                               .sampling = before.sampling,
                               .weighs = true,
                               .weighs_model = true};
        ls_engine *e;
        ls_error err;
        assert_ok(ls_engine_create(&e, odd.v.model[0], odd.device, &opts, &err), err);
        for (uint32_t i = 0; i < 6; i++) {
            weighed *w = &jobs[of][i];
            ls_request *r = job_init(&w->job, odd.prompt[i % 3], 6 + (int64_t)i, i, 0, 9);
            r->sampling = &ways[i % 4];
            if (i < 4) {
                r->kept = w->kept;
                r->of_all = w->of_all;
                r->of_kept = w->of_kept;
                r->of_model = w->of_model;
                r->see = count_kept;
                r->see_context = w;
                r->sees_processed = true;
            }
            submit(e, &w->job);
        }
        run_dry(e);
        engine_end(e);
        for (int i = 0; i < 6; i++) {
            odd.distribution = (distribution){ways[i % 4], opts.logprob_of, before.penalties};
            is_complete(&odd, &jobs[of][i].job);
        }
    }
    odd.distribution = before;
    for (int i = 0; i < 4; i++) {
        const weighed *raw = &jobs[0][i], *processed = &jobs[1][i];
        const int64_t n = raw->job.request.n_completion;
        const size_t bytes = (size_t)n * sizeof(float);
        assert_int_equal(processed->job.request.n_completion, n);
        assert_memory_equal(raw->of_model, raw->job.logprob, bytes);
        assert_memory_equal(processed->of_model, raw->job.logprob, bytes);
        assert_memory_equal(raw->of_kept, processed->job.logprob, bytes);
        assert_memory_equal(processed->of_kept, processed->job.logprob, bytes);
        assert_memory_equal(raw->of_all, processed->of_all, bytes);
        if (ways[i].temperature == 1.0f) assert_memory_equal(raw->of_all, raw->of_model, bytes);
        for (int64_t t = 0; t < n; t++) {
            assert_int_equal(raw->kept[t], processed->kept[t]);
            assert_int_equal(raw->kept[t], raw->seen[t]);
        }
    }
    for (int weighs = 0; weighs < 2; weighs++) { /* who gives it at all */
        const ls_levers l = plain_levers(1);
        const ls_engine_opts opts = {.dtype = odd.dtype,
                                     .levers = l,
                                     .length_max = odd.length_max,
                                     .sampling = before.sampling,
                                     .weighs = weighs == 1};
        float of[JOB_TOKENS];
        ls_engine *e;
        ls_error err;
        job j;
        assert_ok(ls_engine_create(&e, odd.v.model[0], odd.device, &opts, &err), err);
        job_init(&j, odd.prompt[0], 6, 0, 0, 3)->of_model = of;
        refused(e, &j, "does not weigh");
        j.request.of_model = NULL;
        j.request.of_all = of;
        if (weighs == 0) refused(e, &j, "does not weigh");
        engine_end(e);
    }
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

typedef struct seen_logits {
    const ls_request *request;
    int64_t n;
    int32_t token[LENGTH_MAX];
    float sum;
} seen_logits;

static void look(void *context, int64_t position, int32_t token, const float *logits, const float *processed,
                 int64_t vocab) {
    seen_logits *s = context;
    (void)processed;
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
        static seen_logits seen[4];
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

enum { TOP = 40, TOP_TOKENS = 8 };

typedef struct likeliest {
    job job;
    int32_t id[TOP_TOKENS * TOP];
    float logprob[TOP_TOKENS * TOP];
} likeliest;

/* Lists of three requests, the second with penalties where raw ones are recorded. */
static void list_likeliest(likeliest out[3], const ls_levers *l, ls_logprob_of of) {
    static const ls_penalties penalties = {1.3f, 0.5f, -0.25f};
    const ls_engine_opts opts = {.dtype = LS_F32,
                                 .levers = *l,
                                 .length_max = LENGTH_MAX,
                                 .logprob_of = of,
                                 .sampling = {.temperature = 0.9f, .top_p = 1.0f, .top_k = 30, .seed = 5},
                                 .penalizes = of == LS_LOGPROB_RAW,
                                 .top = TOP};
    ls_engine *e;
    ls_error err;
    assert_ok(ls_engine_create(&e, odd.v.model[0], odd.device, &opts, &err), err);
    for (uint32_t i = 0; i < 3; i++) {
        ls_request *r = job_init(&out[i].job, odd.prompt[i], 6 + (int64_t)i, i, 0, TOP_TOKENS);
        r->top_id = out[i].id;
        if (i == 1 && of == LS_LOGPROB_RAW) r->penalties = &penalties;
        refused(e, &out[i].job, "likeliest tokens without their values");
        r->top_logprob = out[i].logprob;
        submit(e, &out[i].job);
    }
    run_dry(e);
    engine_end(e);
}

/* Of the recorded distribution, whatever the levers: lists descend, and a drawn token that is in one has there the
 * value that was recorded for it. */
static void likeliest_tokens_are_told(void **state) {
    (void)state;
    for (int of = LS_LOGPROB_RAW; of <= LS_LOGPROB_PROCESSED; of++)
        for (int variant = 0; variant < 3; variant++) {
            static likeliest first[3], got[3];
            ls_levers l = plain_levers(variant == 0 ? 1 : 3);
            int64_t found = 0;
            if (variant == 2) l.chunk = 0, l.preempt_every = 3, l.prefix = LS_PREFIX_ON;
            list_likeliest(variant == 0 ? first : got, &l, (ls_logprob_of)of);
            for (int i = 0; i < 3; i++) {
                const likeliest *x = variant == 0 ? &first[i] : &got[i];
                assert_int_equal(x->job.request.n_completion, TOP_TOKENS);
                assert_memory_equal(x->id, first[i].id, sizeof x->id);
                assert_same_bits(x->logprob, first[i].logprob, TOP_TOKENS * TOP);
                for (int64_t k = 0; k < TOP_TOKENS * TOP; k++) {
                    assert_true(k % TOP == 0 || x->logprob[k] <= x->logprob[k - 1]);
                    if (x->id[k] != x->job.completion[k / TOP]) continue;
                    assert_same_bits(&x->logprob[k], &x->job.logprob[k / TOP], 1);
                    found++;
                }
            }
            assert_true(found == 3 * TOP_TOKENS || (of == LS_LOGPROB_RAW && found > 0));
        }
    for (int i = 0; i < 3; i++) {
        const ls_engine_opts opts = {.levers = plain_levers(1),
                                     .length_max = LENGTH_MAX,
                                     .sampling = odd.distribution.sampling,
                                     .top = i == 0   ? -1
                                            : i == 1 ? LS_TOP_MAX + 1
                                                     : odd.v.model[0]->config.vocab + 1};
        ls_engine *e;
        ls_error err;
        check_failed(ls_engine_create(&e, odd.v.model[0], odd.device, &opts, &err), &err, "likeliest of ");
    }
    {
        const ls_levers l = plain_levers(1);
        ls_engine *e = engine_of(&odd, &l);
        likeliest x;
        ls_request *r = job_init(&x.job, odd.prompt[0], 6, 0, 0, TOP_TOKENS);
        r->top_id = x.id;
        r->top_logprob = x.logprob;
        refused(e, &x.job, "of an engine that gives none");
        engine_end(e);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_request_has_its_own_sampling), cmocka_unit_test(owners_number_their_prompts_alike),
        cmocka_unit_test(prompts_have_log_probabilities),    cmocka_unit_test(salts_keep_prefixes_apart),
        cmocka_unit_test(likeliest_tokens_are_told),         cmocka_unit_test(distributions_are_weighed_for_who_asks),
    };
    return cmocka_run_group_tests(tests, open_bench, close_bench);
}
