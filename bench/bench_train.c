/* Training speed of a whole model beside the bound of its dense products: forward, gradient of the inputs and gradient
 * of the weights, three times the forward's multiply-adds, over the machine's fma peak.
 *
 *   bench_train DIR [threads] [dtype]
 *
 * A step is one forward of 1,024 tokens (8 sequences of 128 in leaves), backward, fold, norm, AdamW and publishing.
 * The first line is the products alone: forward and both gradients of every matrix over as many rows; the last one has
 * moments in bf16. Medians of repetitions. */
#define _GNU_SOURCE
#include <stdio.h>

#include "model_bounds.h"
#include "op/gemm_backward.h"
#include "train/trainer.h"

#define SEQUENCES 8
#define TOKENS 128
#define ROWS (SEQUENCES * TOKENS)

static void need(ls_status status, const ls_error *err) {
    if (status == LS_OK) return;
    fprintf(stderr, "bench_train: %s\n", err->text);
    exit(2);
}

static ls_status loss(void *context, const ls_train_rows *rows, ls_error *err) {
    (void)context;
    (void)err;
    for (int64_t r = 0; r < rows->n_rows; r++) rows->d_logprob[r] = -1.0f;
    return LS_OK;
}

/* Seconds of a step. */
static double time_step(const char *directory, ls_model *model, ls_device *device, ls_dtype dtype, ls_dtype moments,
                        int64_t leaf, bool recompute) {
    const ls_trainer_opts opts = {.dtype = dtype,
                                  .temperature = 1.0f,
                                  .leaf = leaf,
                                  .adamw = {0, 0.9, 0.95, 1e-8, 0.1},
                                  .moments = moments,
                                  .rate = {LS_RATE_CONSTANT, 1e-6, 0, 0, 0},
                                  .max_norm = 1.0,
                                  .microbatch = SEQUENCES / leaf,
                                  .rows_max = ROWS,
                                  .sequences_max = SEQUENCES,
                                  .recompute = recompute ? LS_RECOMPUTE_ALL : 0,
                                  .n_metrics = 1,
                                  .loss = loss};
    int32_t tokens[ROWS];
    int64_t offsets[SEQUENCES + 1] = {0}, targets[ROWS];
    const ls_train_batch batch = {tokens, offsets, targets, SEQUENCES, ROWS, NULL};
    double seconds[REPS];
    ls_trainer *trainer;
    ls_train_stats stats;
    ls_error err;
    for (int64_t i = 0; i < ROWS; i++) {
        tokens[i] = (int32_t)(1 + i * 31 % (model->config.vocab - 1)); /* 0 pads: its embedding is 0 */
        targets[i] = i * 17 % model->config.vocab;
    }
    for (int64_t i = 0; i < SEQUENCES; i++) offsets[i + 1] = (i + 1) * TOKENS;
    need(ls_trainer_create(&trainer, model, directory, device, &opts, &err), &err);
    for (int r = -1; r < REPS; r++) {
        const double start = now();
        need(ls_trainer_step(trainer, &batch, &stats, &err), &err);
        if (r >= 0) seconds[r] = now() - start;
    }
    ls_trainer_free(trainer);
    return median(seconds, REPS);
}

/* What the products read and write. */
typedef struct operands {
    float *x, *y, *dw;
} operands;

static void run_products(ls_device *device, const ls_parameter *p, const ls_gemm_weight *w, int64_t m,
                         const operands *o) {
    const ls_gemm_args forward = {.x = o->x, .x_stride = w->k, .weight = w, .out = o->y, .out_stride = w->n, .m = m};
    const ls_gemm_backward_input_args input = {.dy = o->y,
                                               .dy_stride = w->n,
                                               .w = ls_parameter_value(p),
                                               .w_dtype = p->dtype,
                                               .dx = o->x,
                                               .dx_stride = w->k,
                                               .dx_count = m,
                                               .m = m,
                                               .n = w->n,
                                               .k = w->k};
    const ls_gemm_backward_weight_args weight = {.dy = o->y,
                                                 .dy_stride = w->n,
                                                 .x = o->x,
                                                 .x_stride = w->k,
                                                 .x_count = m,
                                                 .dw = o->dw,
                                                 .m = m,
                                                 .n = w->n,
                                                 .k = w->k};
    ls_error err;
    need(ls_gemm(device, &forward, &err), &err);
    need(ls_gemm_backward_weight(device, &weight, &err), &err);
    memset(o->x, 0, (size_t)(m * w->k) * sizeof(float));
    need(ls_gemm_backward_input(device, &input, &err), &err);
}

/* Seconds of all products of a step; an expert gets its share of the rows. */
static double time_products(const char *directory, ls_model *model, ls_device *device) {
    const ls_model_config *c = &model->config;
    int64_t widest = c->vocab;
    double seconds[REPS];
    ls_parameters *list;
    operands o;
    ls_error err;
    need(ls_parameters_open(&list, model, device, directory, &err), &err);
    for (int64_t i = 0; i < list->n; i++)
        for (int32_t d = 0; d < list->list[i].slot.n_dims; d++)
            if (list->list[i].slot.dims[d] > widest) widest = list->list[i].slot.dims[d];
    need(ls_array_alloc((void **)&o.x, ROWS, widest * (int64_t)sizeof(float), "x", &err), &err);
    need(ls_array_alloc((void **)&o.y, ROWS, widest * (int64_t)sizeof(float), "y", &err), &err);
    need(ls_array_alloc((void **)&o.dw, widest, widest * (int64_t)sizeof(float), "dw", &err), &err);
    for (int r = -1; r < REPS; r++) {
        const double start = now();
        for (int64_t i = 0; i < list->n; i++) {
            const ls_parameter *p = &list->list[i];
            const bool expert = strstr(p->slot.name, ".experts.") != NULL;
            if (p->slot.kind == LS_SLOT_MATRIX)
                run_products(device, p, p->slot.matrix, expert ? ROWS * c->top_k / c->n_experts : ROWS, &o);
            if (p->slot.kind == LS_SLOT_EMBED && c->tied) run_products(device, p, &model->head, ROWS, &o);
        }
        if (r >= 0) seconds[r] = now() - start;
    }
    free(o.x);
    free(o.y);
    free(o.dw);
    ls_parameters_free(list);
    return median(seconds, REPS);
}

static void report(const char *name, double seconds, double floor_s) {
    printf("%-32s %12.0f %14.0f %6.0f %%\n", name, ROWS / seconds, ROWS / floor_s, 100.0 * floor_s / seconds);
}

int main(int argc, char **argv) {
    const int32_t threads = argc > 2 ? atoi(argv[2]) : 1;
    const ls_dtype dtype = argc > 3 && strcmp(argv[3], "bf16") == 0 ? LS_BF16 : LS_F32;
    ls_device *device;
    ls_model *model;
    model_bounds bounds;
    double floor_s;
    ls_error err;
    if (argc < 2) {
        fprintf(stderr, "usage: bench_train DIR [threads] [f32|bf16]\n");
        return 1;
    }
    if (threads == 1) clock_used = CLOCK_PROCESS_CPUTIME_ID;
    need(ls_device_open_cpu(&device, threads, ls_isa_best(), &err), &err);
    need(ls_model_open(&model, device, argv[1], &err), &err);
    bounds = measure_bounds(device);
    floor_s = 3.0 * 2.0 * model_macs(model) * ROWS / bounds.peak;
    printf("%s, activations %s, %s, %d thread%s: fma peak %.1f GFLOP/s, %.2f MFLOP a token\n", argv[1],
           ls_dtype_name(dtype), ls_isa_name(device->exec.workers->isa), threads, threads == 1 ? "" : "s",
           bounds.peak * 1e-9, 6e-6 * model_macs(model));
    printf("%-32s %12s %14s %8s\n", "1,024 tokens a forward", "tokens/s", "bound (fma)", "of it");
    report("products alone", time_products(argv[1], model, device), floor_s);
    for (int64_t leaf = 1; leaf <= SEQUENCES; leaf *= 8)
        for (int recompute = 0; recompute < 2; recompute++) {
            const double t = time_step(argv[1], model, device, dtype, LS_F32, leaf, recompute);
            char name[64];
            snprintf(name, sizeof name, "leaf %lld%s", (long long)leaf, recompute ? ", recompute" : "");
            report(name, t, floor_s);
        }
    report("leaf 8, moments in bf16", time_step(argv[1], model, device, dtype, LS_BF16, SEQUENCES, false), floor_s);
    ls_model_close(model);
    ls_device_close(device);
    return 0;
}
