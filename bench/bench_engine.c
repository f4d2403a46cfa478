/* Decode speed of the rollout engine by batch size, beside the bound of its dense products: their multiply-adds over
 * the machine's fma peak of the same run.
 *
 *   bench_engine DIR [threads] [dtype] [tokens] [repetitions] [batch]
 *
 * Every batch size runs as many sequences as it has lanes, so that all lanes decode to the end; the tick that takes the
 * prompts is not timed. Repetitions of the batch sizes take turns and the best of each counts: on a machine that others
 * use, slow repetitions tell of the others. With a batch only that one
 * runs, for a profiler. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "bounds.h"
#include "model/jamba.h"
#include "rollout/engine.h"

#define PROMPT 8

static const int64_t batches[] = {1, 2, 4, 8, 16, 32};
#define N_BATCHES ((int64_t)(sizeof batches / sizeof batches[0]))
#define BATCH_MAX 32

typedef struct bench {
    ls_jamba *model;
    ls_queue *queue;
    ls_dtype dtype;
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

static double count_macs(const ls_jamba *m) {
    const ls_gemm_weight *w = &m->head;
    double macs = (double)w->n * (double)w->k;
    for (int32_t i = 0; i < m->config.n_layers; i++) {
        const ls_layer *l = &m->layers[i];
        const ls_gemm_weight *mixer[] = {&l->attention.q,   &l->attention.k,   &l->attention.v,    &l->attention.o,
                                         &l->mamba.in_proj, &l->mamba.x_proj,  &l->mamba.dt_proj,  &l->mamba.out_proj};
        const ls_gemm_weight *ffn[] = {&l->ffn[0].gate, &l->ffn[0].up, &l->ffn[0].down};
        for (int j = 0; j < 4; j++) {
            w = mixer[l->is_attention ? j : 4 + j];
            macs += (double)w->n * (double)w->k;
        }
        for (int j = 0; j < 3; j++)
            macs += (double)(l->is_moe ? m->config.top_k : 1) * (double)ffn[j]->n * (double)ffn[j]->k;
    }
    return macs;
}

static void lay_out_requests(bench *b) {
    ls_error err;
    need(ls_array_alloc((void **)&b->prompts, BATCH_MAX * PROMPT, sizeof *b->prompts, "prompts", &err), &err);
    need(ls_array_alloc((void **)&b->completions, BATCH_MAX * b->tokens, sizeof *b->completions, "tokens", &err), &err);
    need(ls_array_alloc((void **)&b->logprobs, BATCH_MAX * b->tokens, sizeof *b->logprobs, "logprobs", &err), &err);
    for (int64_t i = 0; i < BATCH_MAX * PROMPT; i++)
        b->prompts[i] =
            (int32_t)(ls_philox_draw(0, (uint32_t)i, 0, 0, 0).word[0] % (uint32_t)b->model->config.vocab);
    for (int64_t i = 0; i < BATCH_MAX; i++) {
        const ls_request request = {.prompt = b->prompts + i * PROMPT,
                                    .n_prompt = PROMPT,
                                    .prompt_i = (uint32_t)i,
                                    .max_tokens = b->tokens,
                                    .completion = b->completions + i * b->tokens,
                                    .logprob = b->logprobs + i * b->tokens};
        b->requests[i] = request;
    }
}

/* When the first tick had ended and when the last had, and the tokens drawn by then. */
typedef struct span_of_time {
    double first, last;
    int64_t first_tokens, last_tokens;
} span_of_time;

static void note_time(void *context, int64_t n_done, int64_t n_requests, int64_t n_tokens) {
    span_of_time *s = context;
    (void)n_done;
    (void)n_requests;
    s->last = now();
    s->last_tokens = n_tokens;
    if (s->first_tokens > 0) return;
    s->first = s->last;
    s->first_tokens = n_tokens;
}

/* Seconds a token. */
static double time_batch(bench *b, int64_t batch) {
    span_of_time time = {0};
    const ls_engine_opts opts = {.dtype = b->dtype,
                                 .batch = batch,
                                 .page_tokens = 16,
                                 .logprob_of = LS_LOGPROB_RAW,
                                 .sampling = {.temperature = 1.0f, .top_p = 1.0f},
                                 .progress = note_time,
                                 .progress_context = &time};
    ls_error err;
    need(ls_engine_run(b->model, b->queue, &opts, b->requests, batch, &err), &err);
    return (time.last - time.first) / (double)(time.last_tokens - time.first_tokens);
}

static double fma_peak(bench *b, int32_t threads) {
    bounds_job job = {.isa = b->queue->isa};
    const double start = now();
    ls_parallel_for(b->queue->pool, threads, 1, fma_part, &job);
    return fma_flops(b->queue->isa, threads) / (now() - start);
}

int main(int argc, char **argv) {
    const int32_t threads = argc > 2 ? atoi(argv[2]) : 2;
    const int64_t reps = argc > 5 ? atoi(argv[5]) : 15, only = argc > 6 ? atoi(argv[6]) : 0;
    bench b = {.dtype = argc > 3 && strcmp(argv[3], "bf16") == 0 ? LS_BF16 : LS_F32,
               .tokens = argc > 4 ? atoi(argv[4]) : 64};
    double best[N_BATCHES] = {0}, peak = 0.0, floor_us;
    ls_error err;
    if (argc < 2 || b.tokens < 2 || reps < 1) {
        fprintf(stderr, "usage: bench_engine DIR [threads] [f32|bf16] [tokens, at least 2] [repetitions] [batch]\n");
        return 1;
    }
    if (threads == 1) clock_used = CLOCK_PROCESS_CPUTIME_ID;
    need(ls_queue_create(&b.queue, threads, ls_isa_best(), &err), &err);
    need(ls_jamba_open(&b.model, argv[1], &err), &err);
    lay_out_requests(&b);
    for (int64_t r = 0; r < reps; r++) {
        const double flops = fma_peak(&b, threads);
        peak = flops > peak ? flops : peak;
        for (int64_t i = 0; i < N_BATCHES; i++) {
            double seconds;
            if (only > 0 && batches[i] != only) continue;
            seconds = time_batch(&b, batches[i]);
            if (r == 0 || seconds < best[i]) best[i] = seconds;
        }
    }
    floor_us = 2e6 * count_macs(b.model) / peak;
    printf("%s, activations %s, %s, %d thread%s, %lld tokens a sequence: fma peak %.1f GFLOP/s, %.1f us a token\n",
           argv[1], ls_dtype_name(b.dtype), ls_isa_name(b.queue->isa), threads, threads == 1 ? "" : "s",
           (long long)b.tokens, peak * 1e-9, floor_us);
    printf("%5s %10s %10s %12s %10s\n", "batch", "tokens/s", "us/token", "to batch 1", "of fma");
    for (int64_t i = 0; i < N_BATCHES; i++) {
        if (only > 0 && batches[i] != only) continue;
        printf("%5lld %10.0f %10.1f %12.2f %8.0f %%\n", (long long)batches[i], 1.0 / best[i], 1e6 * best[i],
               best[0] / best[i], floor_us / (1e4 * best[i]));
    }
    free(b.logprobs);
    free(b.completions);
    free(b.prompts);
    ls_jamba_close(b.model);
    ls_queue_free(b.queue);
    return 0;
}
