/* Prefill and decode speed of a whole model, each beside the bound that applies to it: the multiply-adds of its dense
 * products over the machine's fma peak, and its packed weights, read once a forward, over the machine's read bandwidth.
 *
 *   bench_model DIR [threads] [dtype] [profile]
 *
 * The larger of the two times is the floor; the scan, attention and norms come on top of it. Medians of repetitions. */
#define _GNU_SOURCE
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "model/forward.h"
#include "model_bounds.h"
#include "num/half.h"

typedef struct bench {
    ls_model *model;
    ls_device *device;
    ls_dtype dtype;
    int32_t threads;
    model_bounds bounds;
    double macs_row; /* multiply-adds of the dense products for one row, head included */
} bench;

static void need(ls_status status, const ls_error *err) {
    if (status == LS_OK) return;
    fprintf(stderr, "bench_model: %s\n", err->text);
    exit(2);
}

/* Seconds of one forward of `batch` sequences of `rows` tokens each at position pos, with the head on head_rows rows.
 */
static double time_forward(bench *b, int64_t batch, int64_t rows, int64_t pos, int64_t head_rows) {
    const ls_model_config *c = &b->model->config;
    const int64_t pages_each = (pos + rows + 15) / 16, n = batch * rows;
    const ls_cache_opts opts = {.dtype = b->dtype, .n_slots = batch, .n_pages = batch * pages_each, .page_tokens = 16};
    double seconds[REPS];
    ls_cache *cache;
    ls_workspace *ws;
    ls_batch *input;
    int32_t *pages, *tokens;
    ls_span *spans;
    float *h, *logits;
    ls_error err;
    need(ls_cache_create(&cache, b->device, c, &opts, &err), &err);
    need(ls_workspace_create(&ws, b->device, b->model, b->dtype, n, false, &err), &err);
    need(ls_batch_create(&input, b->device, n, batch, opts.n_pages, &err), &err);
    need(ls_memory_alloc(b->device, (void **)&h, n, c->hidden * (int64_t)sizeof *h, "stream", &err), &err);
    need(ls_memory_alloc(b->device, (void **)&logits, head_rows * c->vocab, sizeof *logits, "logits", &err), &err);
    need(ls_array_alloc((void **)&pages, opts.n_pages, sizeof *pages, "pages", &err), &err);
    need(ls_array_alloc((void **)&tokens, n, sizeof *tokens, "tokens", &err), &err);
    need(ls_array_alloc((void **)&spans, batch, sizeof *spans, "spans", &err), &err);
    for (int64_t i = 0; i < opts.n_pages; i++) pages[i] = (int32_t)i;
    for (int64_t i = 0; i < n; i++) tokens[i] = (int32_t)(i * 31 % c->vocab);
    for (int64_t i = 0; i < batch; i++) spans[i] = (ls_span){i * rows, rows, pos, (int32_t)i, i * pages_each};
    for (int r = -1; r < REPS; r++) {
        const ls_forward f = {b->model, cache, ws, input, h, 0, false};
        const double start = now();
        need(ls_batch_write(input, tokens, spans, batch, pages, opts.n_pages, &err), &err);
        need(ls_model_forward(&f, NULL, NULL, &err), &err);
        need(ls_model_logits(b->model, b->device, ws->a.x, head_rows, logits, &err), &err);
        need(ls_device_wait(b->device, &err), &err);
        if (r >= 0) seconds[r] = now() - start;
    }
    free(spans);
    free(tokens);
    free(pages);
    ls_memory_free(b->device, logits);
    ls_memory_free(b->device, h);
    ls_batch_free(input);
    ls_workspace_free(ws);
    ls_cache_free(cache);
    return median(seconds, REPS);
}

static void report(bench *b, const char *name, int64_t batch, int64_t rows, int64_t pos, int64_t head_rows) {
    const double t = time_forward(b, batch, rows, pos, head_rows), n = (double)(batch * rows);
    const double head = gemm_macs(&b->model->head);
    const double macs = n * (b->macs_row - head) + (double)head_rows * head;
    const double fma_floor = 2.0 * macs / b->bounds.peak,
                 read_floor = (double)b->model->weight_bytes / b->bounds.bandwidth;
    printf("%-22s %12.0f %14.0f %-7s %6.0f %%\n", name, n / t, n / fmax(fma_floor, read_floor),
           fma_floor > read_floor ? "fma" : "memory", 100.0 * fmax(fma_floor, read_floor) / t);
}

int main(int argc, char **argv) {
    bench b = {.threads = argc > 2 ? atoi(argv[2]) : 1,
               .dtype = argc > 3 && strcmp(argv[3], "bf16") == 0 ? LS_BF16 : LS_F32};
    ls_profile profile = LS_PROFILE_EXACT;
    ls_error err;
    if (argc < 2 || (argc > 4 && !ls_profile_parse(&profile, argv[4]))) {
        fprintf(stderr, "usage: bench_model DIR [threads] [f32|bf16] [exact|mma16]\n");
        return 1;
    }
    need(ls_device_open_cpu(&b.device, b.threads, ls_isa_best(), &err), &err);
    need(ls_model_open(&b.model, b.device, argv[1], &err), &err);
    need(ls_model_set_profile(b.model, profile, b.dtype, &err), &err);
    b.macs_row = model_macs(b.model);
    b.bounds = measure_bounds(b.device);
    printf(
        "%s, %s, activations %s, %s, %d thread%s: fma peak %.1f GFLOP/s, read %.1f GB/s, weights %.2f MB, %.2f MFLOP a "
        "token\n",
        argv[1], ls_profile_name(profile), ls_dtype_name(b.dtype), ls_isa_name(b.device->exec.workers->isa), b.threads,
        b.threads == 1 ? "" : "s", b.bounds.peak * 1e-9, b.bounds.bandwidth * 1e-9,
        (double)b.model->weight_bytes * 1e-6, 2e-6 * b.macs_row);
    printf("%-22s %12s %14s %-7s %8s\n", "", "tokens/s", "bound", "by", "of it");
    report(&b, "prefill 1 x 512", 1, 512, 0, 1);
    report(&b, "prefill 4 x 512", 4, 512, 0, 4);
    report(&b, "decode batch 1", 1, 1, 100, 1);
    report(&b, "decode batch 16", 16, 1, 100, 16);
    report(&b, "decode batch 64", 64, 1, 100, 64);
    report(&b, "score 8 x 128", 8, 128, 0, 8 * 128);
    ls_model_close(b.model);
    ls_device_close(b.device);
    return 0;
}
