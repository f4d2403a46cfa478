/* Three measures of the rollout engine:
 *
 * - Decode speed by batch size, beside the bound of the model's dense products: their multiply-adds over the machine's
 *   fma peak of the same run.
 * - What drafts gain where likeliest tokens repeat themselves. What they cost where any of four tokens may come next,
 *   so that runs are found and most drafts are refused.
 * - The prompt tokens that eight samples of one long prompt compute, with and without what shares them.
 *
 *   bench_engine DIR [threads] [dtype] [tokens] [repetitions] [batch]
 *
 * Every batch size runs as many sequences as it has lanes, with prefix cache and forks off, so that all lanes decode to
 * the end; the tick that takes the prompts is not timed. Repetitions of the batch sizes take turns and the best of each
 * counts: on a machine that others use, slow repetitions tell of the others. With a batch only that one runs, for a
 * profiler. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "bounds.h"
#include "model/model.h"
#include "model_macs.h"
#include "rollout/engine.h"

#define PROMPT 8

#define DRAFTED_BATCHES 3

#define SHARED_PROMPT 1000
#define SHARED_SAMPLES 8
#define SHARED_TOKENS 4
#define SHARED_FACTOR 5.0 /* what sharing has to save at least */

static const int64_t batches[] = {1, 2, 4, 8, 16, 32};
#define N_BATCHES ((int64_t)(sizeof batches / sizeof batches[0]))
#define BATCH_MAX 32

typedef struct bench {
    ls_model *model;
    ls_device *device;
    ls_dtype dtype;
    int32_t threads;
    int64_t tokens; /* a sequence */
    ls_request requests[BATCH_MAX];
    int32_t *prompts, *completions;
    float *logprobs;
} bench;

static void need(ls_status status, const ls_error *err) {
    if (status == LS_OK) return;
    fprintf(stderr, "bench_engine: %s\n", err->text);
    exit(2);
}

/* One of a sequence of tokens without any repetition to speak of. */
static int32_t token_at(const bench *b, int64_t i) {
    return (int32_t)(ls_philox_draw(0, (uint32_t)i, 0, 0, 0).word[0] % (uint32_t)b->model->config.vocab);
}

static void lay_out_requests(bench *b) {
    ls_error err;
    need(ls_array_alloc((void **)&b->prompts, BATCH_MAX * PROMPT, sizeof *b->prompts, "prompts", &err), &err);
    need(ls_array_alloc((void **)&b->completions, BATCH_MAX * b->tokens, sizeof *b->completions, "tokens", &err), &err);
    need(ls_array_alloc((void **)&b->logprobs, BATCH_MAX * b->tokens, sizeof *b->logprobs, "logprobs", &err), &err);
    for (int64_t i = 0; i < BATCH_MAX * PROMPT; i++) b->prompts[i] = token_at(b, i);
    for (int64_t i = 0; i < BATCH_MAX; i++)
        b->requests[i] = (ls_request){.prompt = b->prompts + i * PROMPT,
                                      .n_prompt = PROMPT,
                                      .prompt_i = (uint32_t)i,
                                      .max_tokens = b->tokens,
                                      .completion = b->completions + i * b->tokens,
                                      .logprob = b->logprobs + i * b->tokens};
}

static ls_engine *make_engine(const bench *b, int64_t batch, bool fork, ls_prefix_mode prefix, int64_t length_max,
                              int64_t drafts) {
    ls_engine_opts opts = {.dtype = b->dtype,
                           .length_max = length_max,
                           .logprob_of = LS_LOGPROB_RAW,
                           .sampling = {.temperature = 1.0f, .top_p = 1.0f}};
    ls_engine *engine;
    ls_error err;
    ls_levers_init(&opts.levers);
    opts.levers.batch = batch;
    opts.levers.fork = fork;
    opts.levers.prefix = prefix;
    opts.levers.drafts = drafts;
    opts.penalizes = true;
    opts.levers.threads = b->threads;
    need(ls_engine_create(&engine, b->model, b->device, &opts, &err), &err);
    return engine;
}

/* Seconds a token of the ticks that only decode. */
static double time_decode(bench *b, ls_engine *engine, int64_t batch) {
    ls_engine_stats first, last;
    double start, seconds;
    ls_error err;
    for (int64_t i = 0; i < batch; i++) need(ls_engine_submit(engine, &b->requests[i], &err), &err);
    do {
        need(ls_engine_tick(engine, &err), &err);
        ls_engine_get_stats(engine, &first);
    } while (b->requests[batch - 1].n_completion == 0);
    start = now();
    while (ls_engine_unfinished(engine) > 0) need(ls_engine_tick(engine, &err), &err);
    seconds = now() - start;
    ls_engine_get_stats(engine, &last);
    LS_ASSERT(last.prefill_tokens == first.prefill_tokens, "prompts are timed too");
    return seconds / (double)(last.tokens - first.tokens);
}

static double fma_peak(const bench *b) {
    bounds_job job = {.isa = b->device->exec.workers->isa};
    const double start = now();
    ls_parallel_for(b->device->exec.workers->pool, b->threads, 1, fma_part, &job);
    return fma_flops(b->device->exec.workers->isa, b->threads) / (now() - start);
}

static void bench_decode(bench *b, int64_t reps, int64_t only) {
    ls_engine *engines[N_BATCHES] = {0};
    double best[N_BATCHES] = {0}, peak = 0.0, floor_us;
    for (int64_t i = 0; i < N_BATCHES; i++)
        if (only == 0 || batches[i] == only)
            engines[i] = make_engine(b, batches[i], false, LS_PREFIX_OFF, PROMPT + b->tokens, 0);
    for (int64_t r = 0; r < reps; r++) {
        const double flops = fma_peak(b);
        peak = flops > peak ? flops : peak;
        for (int64_t i = 0; i < N_BATCHES; i++) {
            double seconds;
            if (engines[i] == NULL) continue;
            seconds = time_decode(b, engines[i], batches[i]);
            if (r == 0 || seconds < best[i]) best[i] = seconds;
        }
    }
    floor_us = 2e6 * model_macs(b->model) / peak;
    printf("decode, %lld tokens a sequence: fma peak %.1f GFLOP/s, %.1f us a token\n", (long long)b->tokens,
           peak * 1e-9, floor_us);
    printf("%5s %10s %10s %12s %10s\n", "batch", "tokens/s", "us/token", "to batch 1", "of fma");
    for (int64_t i = 0; i < N_BATCHES; i++) {
        if (engines[i] == NULL) continue;
        printf("%5lld %10.0f %10.1f %12.2f %8.0f %%\n", (long long)batches[i], 1.0 / best[i], 1e6 * best[i],
               best[0] / best[i], floor_us / (1e4 * best[i]));
        ls_engine_free(engines[i]);
    }
}

/* ---- drafts ---- */

/* Seconds of a run, its prompts included. */
static double time_drafts(bench *b, ls_engine *engine, int64_t batch) {
    const double start = now();
    ls_error err;
    need(ls_engine_run(engine, b->requests, batch, NULL, NULL, &err), &err);
    return now() - start;
}

/* A row of the table: the same run without drafts and with, in turns. A penalty below 1 makes any model repeat what it
 * has had. */
static void drafts_row(bench *b, bool repeats, int64_t batch, int64_t reps) {
    static const ls_sampling likeliest = {.temperature = 0.0f, .top_p = 1.0f},
                             any_of_four = {.temperature = 1e6f, .top_k = 4, .top_p = 1.0f};
    static const ls_penalties repeating = {.repetition = 1e-3f};
    double best[2] = {0};
    ls_engine *engine[2];
    ls_engine_stats stats;
    for (int way = 0; way < 2; way++)
        engine[way] = make_engine(b, batch, false, LS_PREFIX_OFF, PROMPT + b->tokens, way * LS_DRAFTS_MAX);
    for (int64_t i = 0; i < batch; i++) {
        b->requests[i].sampling = repeats ? &likeliest : &any_of_four;
        b->requests[i].penalties = &repeating;
    }
    for (int64_t r = 0; r < reps; r++)
        for (int way = 0; way < 2; way++) {
            const double seconds = time_drafts(b, engine[way], batch);
            if (r == 0 || seconds < best[way]) best[way] = seconds;
        }
    ls_engine_get_stats(engine[1], &stats);
    printf("%-10s %5lld %10.0f %10.0f %8.2f %9lld %9lld %12.2f\n", repeats ? "repeating" : "random", (long long)batch,
           (double)(batch * b->tokens) / best[0], (double)(batch * b->tokens) / best[1], best[0] / best[1],
           (long long)(stats.drafts_proposed / reps), (long long)(stats.drafts_accepted / reps),
           (double)stats.tokens / (double)(stats.forwards * batch));
    for (int64_t i = 0; i < batch; i++) b->requests[i].sampling = NULL, b->requests[i].penalties = NULL;
    for (int way = 0; way < 2; way++) ls_engine_free(engine[way]);
}

static void bench_drafts(bench *b, int64_t reps, int64_t only) {
    static const int64_t drafted[DRAFTED_BATCHES] = {1, 8, 32};
    printf("drafts of up to %d tokens\n%-10s %5s %10s %10s %8s %9s %9s %12s\n", LS_DRAFTS_MAX, "text", "batch",
           "tokens/s", "with", "faster", "drafted", "taken", "to a forward");
    for (int repeats = 1; repeats >= 0; repeats--)
        for (int64_t i = 0; i < DRAFTED_BATCHES; i++)
            if (only == 0 || drafted[i] == only) drafts_row(b, repeats == 1, drafted[i], reps);
}

/* ---- sharing ---- */

/* Prompt tokens that the samples of one prompt compute, and the seconds that all of it takes. */
static int64_t count_prefill(const bench *b, int64_t batch, bool fork, ls_prefix_mode prefix, double *seconds) {
    ls_engine *engine = make_engine(b, batch, fork, prefix, SHARED_PROMPT + SHARED_TOKENS, 0);
    int32_t prompt[SHARED_PROMPT], completion[SHARED_SAMPLES][SHARED_TOKENS];
    float logprob[SHARED_SAMPLES][SHARED_TOKENS];
    ls_request requests[SHARED_SAMPLES];
    ls_engine_stats stats;
    ls_error err;
    for (int64_t t = 0; t < SHARED_PROMPT; t++) prompt[t] = token_at(b, t);
    for (uint32_t s = 0; s < SHARED_SAMPLES; s++)
        requests[s] = (ls_request){.prompt = prompt,
                                   .n_prompt = SHARED_PROMPT,
                                   .sample_i = s,
                                   .max_tokens = SHARED_TOKENS,
                                   .completion = completion[s],
                                   .logprob = logprob[s]};
    *seconds = -now();
    need(ls_engine_run(engine, requests, SHARED_SAMPLES, NULL, NULL, &err), &err);
    *seconds += now();
    ls_engine_get_stats(engine, &stats);
    ls_engine_free(engine);
    return stats.prefill_tokens;
}

/* False when something that is to share does not. */
static bool bench_sharing(const bench *b) {
    static const struct {
        int64_t batch;
        bool fork;
        ls_prefix_mode prefix;
        const char *name;
    } ways[] = {{SHARED_SAMPLES, false, LS_PREFIX_OFF, "nothing shared"},
                {SHARED_SAMPLES, true, LS_PREFIX_OFF, "forks"},
                {1, false, LS_PREFIX_ON, "prefix cache, one by one"},
                {SHARED_SAMPLES / 2, true, LS_PREFIX_ON, "both, half at a time"}};
    int64_t alone = 0;
    double alone_seconds = 0;
    bool good = true;
    printf("%d samples of a prompt of %d tokens, %d tokens each\n%-26s %14s %8s %8s\n", SHARED_SAMPLES, SHARED_PROMPT,
           SHARED_TOKENS, "", "prefill tokens", "fewer", "faster");
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        double seconds;
        const int64_t n = count_prefill(b, ways[i].batch, ways[i].fork, ways[i].prefix, &seconds);
        if (i == 0) {
            alone = n;
            alone_seconds = seconds;
        }
        printf("%-26s %14lld %8.2f %8.2f\n", ways[i].name, (long long)n, (double)alone / (double)n,
               alone_seconds / seconds);
        good = good && (i == 0 || (double)alone >= SHARED_FACTOR * (double)n);
    }
    if (!good) fprintf(stderr, "bench_engine: less than %g times fewer\n", SHARED_FACTOR);
    return good;
}

int main(int argc, char **argv) {
    const int64_t reps = argc > 5 ? atoi(argv[5]) : 15, only = argc > 6 ? atoi(argv[6]) : 0;
    bench b = {.threads = argc > 2 ? atoi(argv[2]) : 2,
               .dtype = argc > 3 && strcmp(argv[3], "bf16") == 0 ? LS_BF16 : LS_F32,
               .tokens = argc > 4 ? atoi(argv[4]) : 64};
    bool good;
    ls_error err;
    if (argc < 2 || b.tokens < 2 || reps < 1) {
        fprintf(stderr, "usage: bench_engine DIR [threads] [f32|bf16] [tokens, at least 2] [repetitions] [batch]\n");
        return 1;
    }
    if (b.threads == 1) clock_used = CLOCK_PROCESS_CPUTIME_ID;
    need(ls_device_open_cpu(&b.device, b.threads, ls_isa_best(), &err), &err);
    need(ls_model_open(&b.model, b.device, argv[1], &err), &err);
    lay_out_requests(&b);
    printf("%s, activations %s, %s, %d thread%s\n", argv[1], ls_dtype_name(b.dtype),
           ls_isa_name(b.device->exec.workers->isa), b.threads, b.threads == 1 ? "" : "s");
    bench_decode(&b, reps, only);
    bench_drafts(&b, reps, only);
    good = only > 0 || bench_sharing(&b);
    free(b.logprobs);
    free(b.completions);
    free(b.prompts);
    ls_model_close(b.model);
    ls_device_close(b.device);
    return good ? 0 : 2;
}
