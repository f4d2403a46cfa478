/* One engine on one fixture, and requests with their storage, for the named cases. */
#ifndef LS_TESTS_ENGINE_CASE_H
#define LS_TESTS_ENGINE_CASE_H

#include "oracle.h"
#include "rollout/engine_state.h"

#ifndef PROMPT_TOKENS
#define PROMPT_TOKENS 40
#endif
#define JOB_TOKENS 12
#define LENGTH_MAX (PROMPT_TOKENS + JOB_TOKENS)

static const distribution plain_distribution = {
    {.temperature = 1.0f, .top_p = 1.0f, .seed = 5}, LS_LOGPROB_RAW, {.repetition = 0}};

typedef struct job {
    ls_request request;
    int32_t completion[JOB_TOKENS];
    float logprob[JOB_TOKENS];
    uint64_t weights[JOB_TOKENS];
} job;

typedef struct bench {
    versions v;
    ls_device *device;
    alone alone;
    ls_dtype dtype;
    distribution distribution;
    int32_t prompt[3][PROMPT_TOKENS]; /* unrelated ones; [2] begins as [1] does */
    const int32_t *stop;
    int64_t n_stop, requests_max, length_max;
} bench;

static inline void bench_open(bench *b, const char *name, ls_dtype dtype) {
    uint64_t random = 99;
    memset(b, 0, sizeof *b);
    b->device = test_device(1, ls_isa_best());
    b->dtype = dtype;
    b->distribution = plain_distribution;
    b->length_max = LENGTH_MAX;
    versions_open(&b->v, name);
    alone_open(&b->alone, b->v.model[0], b->device, dtype, LENGTH_MAX);
    for (int64_t t = 0; t < PROMPT_TOKENS; t++)
        for (int p = 0; p < 3; p++)
            b->prompt[p][t] = (int32_t)(test_random(&random) % (uint64_t)b->v.model[0]->config.vocab);
    memcpy(b->prompt[2], b->prompt[1], PROMPT_TOKENS / 2 * sizeof b->prompt[2][0]);
}

static inline void bench_close(bench *b) {
    alone_close(&b->alone);
    versions_close(&b->v);
    test_device_close(b->device);
}

/* Small pages and chunks, nothing shared; what is free holds NaN. */
static inline ls_levers plain_levers(int64_t batch) {
    ls_levers l;
    ls_levers_init(&l);
    l.threads = 1;
    l.batch = batch;
    l.chunk = 5;
    l.page_tokens = 4;
    l.prefix = LS_PREFIX_OFF;
    l.fork = false;
    l.poison = l.guards = true;
    return l;
}

static inline ls_status engine_try(ls_engine **out, const bench *b, const ls_levers *l, ls_error *err) {
    const ls_engine_opts opts = {.dtype = b->dtype,
                                 .levers = *l,
                                 .length_max = b->length_max,
                                 .requests_max = b->requests_max,
                                 .logprob_of = b->distribution.of,
                                 .sampling = b->distribution.sampling,
                                 .stop = b->stop,
                                 .n_stop = b->n_stop};
    return ls_engine_create(out, b->v.model[0], b->device, &opts, err);
}

static inline ls_engine *engine_of(const bench *b, const ls_levers *l) {
    ls_engine *e;
    ls_error err;
    assert_ok(engine_try(&e, b, l, &err), err);
    return e;
}

/* Idle, and gone. */
static inline void engine_end(ls_engine *e) {
    ls_engine_check_idle(e);
    ls_engine_free(e);
}

static inline ls_request *job_init(job *j, const int32_t *prompt, int64_t n_prompt, uint32_t prompt_i,
                                   uint32_t sample_i, int64_t max_tokens) {
    memset(j, 0, sizeof *j);
    j->request = (ls_request){.prompt = prompt,
                              .n_prompt = n_prompt,
                              .prompt_i = prompt_i,
                              .sample_i = sample_i,
                              .max_tokens = max_tokens,
                              .completion = j->completion,
                              .logprob = j->logprob,
                              .weights = j->weights};
    return &j->request;
}

static inline void submit(ls_engine *e, job *j) {
    ls_error err;
    assert_ok(ls_engine_submit(e, &j->request, &err), err);
}

static inline void refused(ls_engine *e, job *j, const char *word) {
    ls_error err;
    const int64_t n = ls_engine_unfinished(e);
    check_failed(ls_engine_submit(e, &j->request, &err), &err, word);
    assert_int_equal(ls_engine_unfinished(e), n);
}

static inline void tick(ls_engine *e, int64_t n) {
    ls_error err;
    for (int64_t i = 0; i < n; i++) assert_ok(ls_engine_tick(e, &err), err);
}

static inline void run_dry(ls_engine *e) {
    for (int64_t i = 0; ls_engine_unfinished(e) > 0; i++) {
        assert_true(i < 100000);
        tick(e, 1);
    }
}

/* The n tokens that a job has are the first n of what it gives alone with a version of the weights. */
static inline void has_bits(bench *b, const job *j, int version, int64_t n) {
    int32_t completion[JOB_TOKENS];
    float logprob[JOB_TOKENS];
    const ls_request *r = &j->request;
    assert_int_equal(r->n_completion, n);
    alone_complete(&b->alone, b->v.model[version], r->prompt, r->n_prompt, &b->distribution, r->prompt_i, r->sample_i,
                   n, completion, logprob);
    assert_memory_equal(j->completion, completion, (size_t)n * sizeof *completion);
    assert_same_bits(j->logprob, logprob, n);
}

/* All of it, ended by its length. */
static inline void is_complete(bench *b, const job *j) {
    assert_string_equal(ls_finish_name(j->request.finish), "length");
    has_bits(b, j, 0, j->request.max_tokens);
}

#endif
