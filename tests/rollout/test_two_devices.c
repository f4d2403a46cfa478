/* What one device has generated, another scores: two devices at once, each with a model of its own, and the same bits.
 * The first is the tests' (tests/device.h); the second is opened by name, and once more the CPU itself. */
#include "engine_case.h"
#include "model/score.h"
#include "op/choice.h"

enum { JOBS = 6, PROMPT = 17 };

static void generate(bench *b, job *jobs) {
    const ls_levers l = plain_levers(4);
    ls_engine *e = engine_of(b, &l);
    for (int i = 0; i < JOBS; i++) {
        job_init(&jobs[i], b->prompt[i % 3], PROMPT + i, (uint32_t)i, 0, JOB_TOKENS);
        submit(e, &jobs[i]);
    }
    run_dry(e);
    engine_end(e);
}

static void score_on(ls_device *device, const bench *b, const char *directory, const job *jobs) {
    const ls_score_opts opts = {.dtype = b->dtype, .batch = 4, .chunk = 7, .page_tokens = 8};
    int32_t tokens[JOBS][LENGTH_MAX];
    float logprobs[JOBS][LENGTH_MAX];
    ls_score_item items[JOBS];
    ls_model *model;
    ls_error err;
    assert_ok(ls_model_open(&model, device, directory, &err), err);
    for (int i = 0; i < JOBS; i++) {
        const ls_request *r = &jobs[i].request;
        assert_int_equal(r->n_completion, JOB_TOKENS);
        memcpy(tokens[i], r->prompt, (size_t)r->n_prompt * sizeof tokens[i][0]);
        memcpy(tokens[i] + r->n_prompt, r->completion, JOB_TOKENS * sizeof tokens[i][0]);
        items[i] = (ls_score_item){.tokens = tokens[i],
                                   .n_tokens = r->n_prompt + JOB_TOKENS,
                                   .of = b->distribution.of,
                                   .sampling = b->distribution.sampling,
                                   .logprob = logprobs[i]};
    }
    assert_ok(ls_score(model, device, &opts, items, JOBS, &err), err);
    for (int i = 0; i < JOBS; i++)
        assert_same_bits(jobs[i].logprob, logprobs[i] + jobs[i].request.n_prompt - 1, JOB_TOKENS);
    ls_model_close(model);
}

static void one_generates_and_the_other_scores(void **state) {
    static const ls_dtype dtypes[] = {LS_F32, LS_BF16};
    (void)state;
    for (int d = 0; d < 2; d++) {
        bench b;
        job jobs[JOBS];
        ls_device *named, *cpu;
        ls_error err;
        bench_open(&b, "jamba-nobias", dtypes[d]);
        assert_ok(ls_device_open_named(&named, "cpu", 2, ls_isa_best(), &err), err);
        assert_ok(ls_device_open_cpu(&cpu, 1, LS_ISA_GENERIC, &err), err);
        generate(&b, jobs);
        score_on(named, &b, LS_FIXTURES "/jamba-nobias", jobs);
        score_on(cpu, &b, LS_FIXTURES "/jamba-nobias", jobs);
        ls_device_close(cpu);
        ls_device_close(named);
        bench_close(&b);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(one_generates_and_the_other_scores)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
