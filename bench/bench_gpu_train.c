/* Training steps of a whole model on a GPU beside what the chip allows.
 *
 *   bench_gpu_train DIR [--device cuda|cpu] [--profile exact|mma16] [--dtype f32|bf16] [options]
 *
 * A step is the forward, the log-probabilities, the backward of every leaf, the leaf tree, the norm, AdamW and
 * publishing, of --sequences sequences of --tokens tokens, every one with a target. Floor of a step: three times the
 * forward's operations (the forward, gradients of inputs and of weights), four times with --recompute, over --rate; the
 * scan's forward and, three times as long, its backward, at --scan us a token of 26 layers of 5,120 channels; and 30
 * bytes a parameter of the update, 22 with --moments bf16, over --bandwidth. */
#define _GNU_SOURCE
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/parallel.h"
#include "base/rng.h"
#include "failures.h"
#include "model_macs.h"
#include "op/timing.h"
#include "plan.h"
#include "train/trainer.h"

/* Bytes of a parameter's update: gradient, master and both moments read, master, moments and weight written. */
static double update_bytes(ls_dtype moments) { return moments == LS_BF16 ? 22.0 : 30.0; }

typedef struct options {
    const char *directory, *device;
    ls_profile profile;
    ls_dtype dtype, moments;
    int64_t sequences, tokens, leaf, microbatch, rows, steps, profile_steps, recompute;
    bool moments_on_host;
    double bandwidth, rate, scan_us; /* bytes/s, operations/s, us a token of 26 layers; 0: no floor */
} options;

/* ---- options ---- */

static const char usage[] =
    "Usage: bench_gpu_train DIR [OPTION...]\n"
    "\n"
    "  --device cuda|cpu      (cuda)\n"
    "  --profile exact|mma16  of dense products (exact)\n"
    "  --dtype f32|bf16       of activations (bf16)\n"
    "  --moments f32|bf16     of AdamW (f32)\n"
    "  --sequences N --tokens N   of a step (8, 1024)\n"
    "  --leaf N               sequences of a leaf (the step's)\n"
    "  --microbatch N         leaves of a forward (as many as there are)\n"
    "  --rows N               tokens of a forward; a leaf that has more takes several (what fits a GPU)\n"
    "  --recompute            keep the residual stream only\n"
    "  --recompute-halves N   so of N halves of layers, mixers first\n"
    "  --moments-on-host      keep AdamW's moments in the host's memory\n"
    "  --steps N              timed, behind one that is not; the fastest counts (3)\n"
    "  --profile-steps N      then so many steps by kind of call (0)\n"
    "  --bandwidth GB/S --rate TFLOP/S --scan US   for floors (cuda: 4570, 60 or in mma16 650, 2.0; cpu: none)\n";

static double number(const char *name, const char *text, double low, double high, bool whole) {
    char *end;
    const double value = strtod(text, &end);
    if (*text == '\0' || *end != '\0' || !(value >= low && value <= high) || (whole && value != floor(value)))
        quit(1, "--%s: '%s' is no %s in %g..%g", name, text, whole ? "integer" : "number", low, high);
    return value;
}

static int choice(const char *name, const char *text, const char *first, const char *second) {
    if (strcmp(text, first) == 0) return 0;
    if (strcmp(text, second) != 0) quit(1, "--%s: '%s' is not %s or %s", name, text, first, second);
    return 1;
}

static void take(options *o, const char *name, char *text) {
    const struct {
        const char *name;
        int64_t *value;
    } counts[] = {{"sequences", &o->sequences},
                  {"tokens", &o->tokens},
                  {"leaf", &o->leaf},
                  {"microbatch", &o->microbatch},
                  {"rows", &o->rows},
                  {"steps", &o->steps},
                  {"profile-steps", &o->profile_steps},
                  {"recompute-halves", &o->recompute}};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
        if (strcmp(name, counts[i].name) == 0) *counts[i].value = (int64_t)number(name, text, 1, 1e6, true);
    if (strcmp(name, "device") == 0) o->device = choice(name, text, "cuda", "cpu") == 0 ? "cuda" : "cpu";
    if (strcmp(name, "profile") == 0)
        o->profile = choice(name, text, "exact", "mma16") == 0 ? LS_PROFILE_EXACT : LS_PROFILE_MMA16;
    if (strcmp(name, "dtype") == 0) o->dtype = choice(name, text, "f32", "bf16") == 0 ? LS_F32 : LS_BF16;
    if (strcmp(name, "moments") == 0) o->moments = choice(name, text, "f32", "bf16") == 0 ? LS_F32 : LS_BF16;
    if (strcmp(name, "bandwidth") == 0) o->bandwidth = 1e9 * number(name, text, 1e-3, 1e9, false);
    if (strcmp(name, "rate") == 0) o->rate = 1e12 * number(name, text, 1e-6, 1e9, false);
    if (strcmp(name, "scan") == 0) o->scan_us = number(name, text, 1e-6, 1e9, false);
    if (strcmp(name, "recompute") == 0) o->recompute = LS_RECOMPUTE_ALL;
    if (strcmp(name, "moments-on-host") == 0) o->moments_on_host = true;
}

static options read_options(int argc, char **argv) {
    static const struct option list[] = {{"device", required_argument, NULL, 1},
                                         {"profile", required_argument, NULL, 1},
                                         {"dtype", required_argument, NULL, 1},
                                         {"moments", required_argument, NULL, 1},
                                         {"sequences", required_argument, NULL, 1},
                                         {"tokens", required_argument, NULL, 1},
                                         {"leaf", required_argument, NULL, 1},
                                         {"microbatch", required_argument, NULL, 1},
                                         {"rows", required_argument, NULL, 1},
                                         {"steps", required_argument, NULL, 1},
                                         {"profile-steps", required_argument, NULL, 1},
                                         {"bandwidth", required_argument, NULL, 1},
                                         {"rate", required_argument, NULL, 1},
                                         {"scan", required_argument, NULL, 1},
                                         {"recompute", no_argument, NULL, 1},
                                         {"recompute-halves", required_argument, NULL, 1},
                                         {"moments-on-host", no_argument, NULL, 1},
                                         {"help", no_argument, NULL, 2},
                                         {NULL, 0, NULL, 0}};
    options o = {.device = "cuda", .dtype = LS_BF16, .sequences = 8, .tokens = 1024, .steps = 3};
    int c, i;
    while ((c = getopt_long(argc, argv, "", list, &i)) > 0) {
        if (c == '?') exit(1);
        if (c == 2) {
            fputs(usage, stdout);
            exit(0);
        }
        take(&o, list[i].name, optarg);
    }
    if (optind != argc - 1) {
        fputs(usage, stderr);
        exit(1);
    }
    o.directory = argv[optind];
    if (o.leaf == 0) o.leaf = o.sequences;
    if (o.microbatch == 0) o.microbatch = (o.sequences - 1) / o.leaf + 1;
    if (strcmp(o.device, "cuda") == 0) {
        if (o.bandwidth == 0) o.bandwidth = 4.57e12;
        if (o.rate == 0) o.rate = o.profile == LS_PROFILE_MMA16 ? 650e12 : 60e12;
        if (o.scan_us == 0) o.scan_us = 2.0;
    }
    return o;
}

/* ---- the run ---- */

/* The least that a step takes, in seconds; 0 without rates. */
static double floor_of(const options *o, const ls_model *model) {
    const ls_model_config *c = &model->config;
    const double rows = (double)o->sequences * (double)o->tokens, passes = o->recompute ? 4.0 : 3.0;
    double mamba = 0.0;
    if (o->bandwidth == 0 || o->rate == 0) return 0.0;
    for (int32_t i = 0; i < c->n_layers; i++) mamba += c->is_attention[i] == 0;
    return passes * rows * 2.0 * model_macs(model) / o->rate +
           (passes + 1.0) * rows * 1e-6 * o->scan_us * mamba * c->d_inner * c->d_state / (26.0 * 5120 * 16) +
           update_bytes(o->moments) * (double)model->n_parameters / o->bandwidth;
}

static ls_status loss(void *context, const ls_train_rows *rows, ls_error *err) {
    (void)context;
    (void)err;
    for (int64_t r = 0; r < rows->n_rows; r++) rows->d_logprob[r] = -1.0f;
    return LS_OK;
}

typedef struct batch_memory {
    int32_t *tokens;
    int64_t *offsets, *targets;
} batch_memory;

static ls_train_batch make_batch(batch_memory *m, const options *o, int64_t vocab) {
    const int64_t rows = o->sequences * o->tokens;
    ls_error err;
    need(ls_array_alloc((void **)&m->tokens, rows, sizeof *m->tokens, "tokens", &err), &err);
    need(ls_array_alloc((void **)&m->targets, rows, sizeof *m->targets, "targets", &err), &err);
    need(ls_array_alloc((void **)&m->offsets, o->sequences + 1, sizeof *m->offsets, "offsets", &err), &err);
    for (int64_t i = 0; i < rows; i++) {
        const ls_philox block = ls_philox_draw(0, (uint32_t)i, 0, 0, 0);
        m->tokens[i] = (int32_t)(1 + block.word[0] % (uint32_t)(vocab - 1)); /* 0 pads: its embedding is not trained */
        m->targets[i] = block.word[1] % (uint32_t)vocab;
    }
    for (int64_t i = 0; i <= o->sequences; i++) m->offsets[i] = i * o->tokens;
    return (ls_train_batch){m->tokens, m->offsets, m->targets, o->sequences, (double)rows, NULL};
}

static ls_status make_trainer(ls_trainer **out, const options *o, ls_model *model, ls_device *device,
                              const ls_train_plan *plan, ls_error *err) {
    const ls_trainer_opts opts = {.dtype = o->dtype,
                                  .temperature = 1.0f,
                                  .leaf = o->leaf,
                                  .adamw = {0, 0.9, 0.95, 1e-8, 0.1},
                                  .moments = o->moments,
                                  .rate = {LS_RATE_CONSTANT, 1e-6, 0, 0, 0},
                                  .max_norm = 1.0,
                                  .microbatch = o->microbatch,
                                  .rows_max = plan->rows,
                                  .leaf_rows_max = o->leaf * o->tokens,
                                  .sequences_max = o->sequences,
                                  .spans_max = plan->spans,
                                  .gradients = plan->gradients,
                                  .moments_on_host = plan->moments_on_host,
                                  .recompute = plan->recompute,
                                  .n_metrics = 1,
                                  .loss = loss};
    return ls_trainer_create(out, model, o->directory, device, &opts, err);
}

static ls_status open_model(ls_model **out, const options *o, ls_device *device, ls_error *err) {
    const ls_model_loading how = {.no_tiles = true};
    LS_TRY(ls_model_open_with(out, device, o->directory, &how, err));
    return ls_model_set_profile(*out, o->profile, o->dtype, err);
}

/* ls_train_rehearse. */
static ls_status rehearse(void *context, ls_device *device, ls_train_plan *plan, ls_train_outlook *out,
                          void (*look)(void *looker, const ls_device *device), void *looker, ls_error *err) {
    const options *o = context;
    ls_model *model = NULL;
    ls_trainer *trainer = NULL;
    ls_status status;
    LS_TRY_DONE(open_model(&model, o, device, err));
    LS_TRY_DONE(make_trainer(&trainer, o, model, device, plan, err));
    LS_TRY_DONE(ls_trainer_rehearse(trainer, o->tokens, err));
    plan->workspace = device->exec.workspace_bytes;
    plan->gradients = ls_trainer_device_gradients(trainer);
    *out = ls_trainer_outlook(trainer);
    look(looker, device);
done:
    ls_trainer_free(trainer);
    ls_model_close(model);
    return status;
}

/* What the options say, and of a GPU what they leave open. */
static ls_train_plan choose(options *o, ls_device *device) {
    const ls_train_wish wish = {.rows = o->rows,
                                .moments_on_host = o->moments_on_host ? 1 : -1,
                                .recompute = o->recompute > 0 ? o->recompute : -1,
                                .sequences = o->sequences,
                                .longest = o->tokens,
                                .leaf = o->leaf};
    bool planned;
    const ls_train_plan plan = bench_plan(&planned, device, &wish, rehearse, o, true);
    if (planned) return plan;
    return (ls_train_plan){.rows = o->rows > 0 ? o->rows : o->microbatch * o->leaf * o->tokens,
                           .moments_on_host = o->moments_on_host,
                           .recompute = o->recompute};
}

static double step(ls_trainer *trainer, const ls_train_batch *batch, double *norm) {
    const double start = ls_clock_seconds();
    ls_train_stats stats;
    ls_error err;
    need(ls_trainer_step(trainer, batch, &stats, &err), &err);
    *norm = stats.norm;
    return ls_clock_seconds() - start;
}

static void profile(const options *o, ls_trainer *trainer, const ls_train_batch *batch, ls_device *device) {
    ls_timing *timing;
    const ls_timed_row *rows;
    int64_t n;
    double total, inside = 0.0, norm;
    ls_error err;
    need(ls_timing_begin(&timing, device, &err), &err);
    for (int64_t i = 0; i < o->profile_steps; i++) (void)step(trainer, batch, &norm);
    need(ls_timing_read(timing, &rows, &n, &total, &err), &err);
    printf("%-32s %10s %10s %8s\n", "a step", "calls", "ms", "share");
    for (int64_t i = 0; i < n; i++) {
        inside += rows[i].ms;
        printf("  %-30s %10.1f %10.3f %7.1f%%\n", rows[i].name, (double)rows[i].calls / (double)o->profile_steps,
               rows[i].ms / (double)o->profile_steps, 100.0 * rows[i].ms / total);
    }
    printf("  %-30s %10s %10.3f %7.1f%%\n", "(between calls)", "", (total - inside) / (double)o->profile_steps,
           100.0 * (total - inside) / total);
    ls_timing_end(timing);
}

int main(int argc, char **argv) {
    options o = read_options(argc, argv);
    ls_train_plan plan;
    ls_device *device;
    ls_model *model;
    ls_trainer *trainer;
    ls_train_batch batch;
    batch_memory memory;
    ls_error err;
    double best = 0.0, norm = 0.0, floor_s;
    if (strcmp(o.device, "cpu") == 0)
        need(ls_device_open_cpu(&device, ls_cpu_count(), ls_isa_best(), &err), &err);
    else
        need(ls_device_open_cuda(&device, 0, &err), &err);
    plan = choose(&o, device);
    need(open_model(&model, &o, device, &err), &err);
    batch = make_batch(&memory, &o, model->config.vocab);
    need(make_trainer(&trainer, &o, model, device, &plan, &err), &err);
    floor_s = floor_of(&o, model);
    printf("%s: %.4g billion parameters; %s, activations %s, profile %s\n", o.directory,
           1e-9 * (double)model->n_parameters, device->table->title, ls_dtype_name(o.dtype),
           ls_profile_name(o.profile));
    printf("%lld x %lld tokens, leaves of %lld, %lld in a forward, %s; masters, weights, moments, gradients %.4g GB\n",
           (long long)o.sequences, (long long)o.tokens, (long long)o.leaf, (long long)o.microbatch,
           plan.recompute > 0 ? "recomputed" : "kept", 1e-9 * (double)ls_trainer_bytes(trainer));
    fflush(stdout);
    for (int64_t i = 0; i <= o.steps; i++) {
        const double s = step(trainer, &batch, &norm);
        if (i > 0 && (best == 0.0 || s < best)) best = s;
    }
    printf("step %10.3f ms %12.0f tokens/s   norm %.9g", 1e3 * best, batch.count / best, norm);
    if (floor_s > 0.0) printf("   floor %.3f ms, %.2f times", 1e3 * floor_s, best / floor_s);
    printf("\n");
    fflush(stdout);
    if (o.profile_steps > 0) profile(&o, trainer, &batch, device);
    ls_trainer_free(trainer);
    ls_model_close(model);
    ls_device_close(device);
    free(memory.tokens);
    free(memory.offsets);
    free(memory.targets);
    return 0;
}
