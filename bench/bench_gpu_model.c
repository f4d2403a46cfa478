/* A whole model on a GPU beside what the chip allows: decode by batch, a run of many samples, scoring, the first token;
 * and its memory, as planned and as held.
 *
 *   bench_gpu_model DIR [--device cuda|cpu] [--profile exact|mma16] [--dtype f32|bf16] [options]
 *
 * Floors. A step reads and computes at least this, with the chip's rates (an H200's unless options say others):
 *
 *   weights   all packed weights, read once a forward; of a mixture of experts all experts, as large batches read them
 *   state     of each sequence in a step: convolution windows and scan states of all layers, read and written
 *   keys      keys and values of every cached token of a sequence, read in a step
 *   products  two operations for each weight of a dense product and row; the head for rows that draw or are scored
 *   scan      of a prompt's token: 2.0 us for 26 layers of 5,120 channels of 16 states, in proportion for others
 *
 *   tick of batch B at context C    max(weights / bandwidth, B products / rate) + B (state + C keys) / bandwidth
 *   forward over N prompt tokens    max(weights / bandwidth, N products / rate) + N scan
 *   run                             the forward over its prompts, each computed once, and one tick a drawn token
 *
 * Layers follow each other, so a scan does not hide behind a product; a product hides its own weights. Attention's own
 * operations and whatever is small (norms, logits, draws) are left out: a floor is what nothing can be below.
 *
 * Memory: the engine of the largest batch is made, decodes through every size of a tick, sleeps, and its weights are
 * parked and come back. What the device holds at each point stands beside what was planned; more than 2 % of a
 * difference, or an allocation after the start, ends the program with exit code 3.
 *
 * A tick's host part is the time from its begin to its first wait: where it is near the tick's own, the device starves.
 */
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
#include "json/json_out.h"
#include "model/cache.h"
#include "model/score.h"
#include "model_macs.h"
#include "model_memory.h"
#include "op/timing.h"
#include "rollout/engine.h"

#define BATCHES_MAX 16
#define REPS_MAX 101

/* Ticks behind the prompts that are not timed. */
#define WARM_TICKS 2

enum { SECTION_DECODE = 1, SECTION_RUN = 2, SECTION_SCORE = 4, SECTION_FIRST = 8, SECTION_MEMORY = 16 };

typedef struct options {
    const char *directory, *device;
    ls_profile profile;
    ls_dtype dtype;
    int32_t threads;
    int64_t sections;
    int64_t batches[BATCHES_MAX], n_batches;
    int64_t prompt, new_tokens;                            /* of decode */
    int64_t run_prompts, run_samples, run_prompt, run_new; /* of the run */
    int64_t score_sequences, score_tokens, score_batch;
    int64_t first_prompt, reps;
    int64_t tick_tokens, profile_ticks, state_every;
    double bandwidth, rate, scan_us; /* bytes/s, operations/s, us a token of 26 layers; 0: no floor */
    bool json;
} options;

typedef struct bench {
    options o;
    ls_device *device;
    ls_model *model;
    double macs, head_macs;        /* a row, head included; the head's */
    double state_bytes, key_bytes; /* of a sequence in a step, moved; of a cached token, read */
    double scan_seconds;           /* of a prompt's token */
    int64_t begin_bytes;           /* of a limited device, held when it was opened: the context, and others */
} bench;

/* ---- time ---- */

/* The device's table with a wait that tells when it began. */
static ls_backend_table watching;
static const ls_backend_table *watched;
static double wait_began; /* of the first wait since it was set 0 */

static ls_status watch_wait(ls_device *device, ls_error *err) {
    if (wait_began == 0.0) wait_began = ls_clock_seconds();
    return watched->wait(device, err);
}

static void watch_waits(ls_device *device) {
    watched = device->table;
    watching = *watched;
    watching.wait = watch_wait;
    device->table = &watching;
}

static void unwatch_waits(ls_device *device) { device->table = watched; }

/* ---- options ---- */

static const char usage[] =
    "Usage: bench_gpu_model DIR [OPTION...]\n"
    "\n"
    "  --device cuda|cpu      (cuda)\n"
    "  --profile exact|mma16  of dense products (exact)\n"
    "  --dtype f32|bf16       of activations (bf16)\n"
    "  --threads N            of the CPU (the processors)\n"
    "  --sections LIST        of decode, run, score, first, memory (all)\n"
    "  --batches LIST         of decode (1,8,64,256,512)\n"
    "  --prompt N --new N     tokens of a sequence of decode (128, 256)\n"
    "  --run-prompts N --run-samples N --run-prompt N --run-new N   (64, 16, 512, 512)\n"
    "  --score-sequences N --score-tokens N --score-batch N         (64, 1024, 16 in one forward)\n"
    "  --first-prompt N       tokens (512)\n"
    "  --reps N               of score and first; the median counts (5)\n"
    "  --tick-tokens N        rows of one tick (8192)\n"
    "  --state-every N        tokens of decode that write a state once (0: as the engine has it)\n"
    "  --profile-ticks N      then so many ticks of decode, and a forward of scoring, by kind of call (0)\n"
    "  --bandwidth GB/S --rate TFLOP/S --scan US   for floors (cuda: 4570, 60 or in mma16 650, 2.0; cpu: none)\n"
    "  --json                 a JSON object a line instead of the table\n";

static int64_t integer(const char *name, const char *text, int64_t low, int64_t high) {
    char *end;
    const long long value = strtoll(text, &end, 10);
    if (*text == '\0' || *end != '\0' || value < low || value > high)
        quit(1, "--%s: '%s' is no integer in %lld..%lld", name, text, (long long)low, (long long)high);
    return value;
}

static double positive(const char *name, const char *text) {
    char *end;
    const double value = strtod(text, &end);
    if (*text == '\0' || *end != '\0' || !(value > 0) || !isfinite(value))
        quit(1, "--%s: '%s' is no positive number", name, text);
    return value;
}

static int64_t sections_of(char *text) {
    static const char *const names[] = {"decode", "run", "score", "first", "memory"};
    enum { N = sizeof names / sizeof names[0] };
    int64_t out = 0;
    for (char *part = strtok(text, ","); part != NULL; part = strtok(NULL, ",")) {
        int i = 0;
        while (i < N && strcmp(part, names[i]) != 0) i++;
        if (i == N) quit(1, "--sections: '%s' is none of decode, run, score, first, memory", part);
        out |= (int64_t)1 << i;
    }
    return out;
}

static void read_batches(options *o, char *text) {
    o->n_batches = 0;
    for (char *part = strtok(text, ","); part != NULL; part = strtok(NULL, ",")) {
        if (o->n_batches == BATCHES_MAX) quit(1, "--batches: more than %d", BATCHES_MAX);
        o->batches[o->n_batches++] = integer("batches", part, 1, LS_BATCH_MAX);
    }
    if (o->n_batches == 0) quit(1, "--batches: the list is empty");
}

typedef struct integer_option {
    const char *name;
    size_t offset;
    int64_t low, high;
} integer_option;

#define MILLION 1000000
static const integer_option integer_options[] = {
    {"prompt", offsetof(options, prompt), 1, MILLION},
    {"new", offsetof(options, new_tokens), WARM_TICKS + 2, MILLION},
    {"run-prompts", offsetof(options, run_prompts), 1, MILLION},
    {"run-samples", offsetof(options, run_samples), 1, MILLION},
    {"run-prompt", offsetof(options, run_prompt), 1, MILLION},
    {"run-new", offsetof(options, run_new), 1, MILLION},
    {"score-sequences", offsetof(options, score_sequences), 1, MILLION},
    {"score-tokens", offsetof(options, score_tokens), 2, MILLION},
    {"score-batch", offsetof(options, score_batch), 1, 1024},
    {"first-prompt", offsetof(options, first_prompt), 1, MILLION},
    {"reps", offsetof(options, reps), 1, REPS_MAX},
    {"tick-tokens", offsetof(options, tick_tokens), 1, MILLION},
    {"state-every", offsetof(options, state_every), 0, LS_STATE_EVERY_MAX},
    {"profile-ticks", offsetof(options, profile_ticks), 0, MILLION},
};
#define N_INTEGERS ((int)(sizeof integer_options / sizeof integer_options[0]))

static void take_text(options *o, const char *name, char *text) {
    if (strcmp(name, "device") == 0) {
        if (strcmp(text, "cuda") != 0 && strcmp(text, "cpu") != 0) quit(1, "--device: '%s' is not cuda or cpu", text);
        o->device = text;
    } else if (strcmp(name, "profile") == 0) {
        if (strcmp(text, "exact") != 0 && strcmp(text, "mma16") != 0)
            quit(1, "--profile: '%s' is not exact or mma16", text);
        o->profile = strcmp(text, "mma16") == 0 ? LS_PROFILE_MMA16 : LS_PROFILE_EXACT;
    } else if (strcmp(name, "dtype") == 0) {
        if (strcmp(text, "f32") != 0 && strcmp(text, "bf16") != 0) quit(1, "--dtype: '%s' is not f32 or bf16", text);
        o->dtype = strcmp(text, "f32") == 0 ? LS_F32 : LS_BF16;
    } else if (strcmp(name, "threads") == 0) {
        o->threads = (int32_t)integer(name, text, 1, LS_THREADS_MAX);
    } else if (strcmp(name, "sections") == 0) {
        o->sections = sections_of(text);
    } else if (strcmp(name, "batches") == 0) {
        read_batches(o, text);
    } else if (strcmp(name, "bandwidth") == 0) {
        o->bandwidth = 1e9 * positive(name, text);
    } else if (strcmp(name, "rate") == 0) {
        o->rate = 1e12 * positive(name, text);
    } else if (strcmp(name, "scan") == 0) {
        o->scan_us = positive(name, text);
    } else {
        o->json = true;
    }
}

/* What is known of an H200: 4.57 TB/s read, 650 TFLOP/s of bf16 products in mma16, 60 of float32 chains, a scan of
 * 2.0 us a token of 26 layers of 5,120 channels. */
static void default_rates(options *o) {
    if (strcmp(o->device, "cuda") != 0) return;
    if (o->bandwidth == 0) o->bandwidth = 4.57e12;
    if (o->rate == 0) o->rate = o->profile == LS_PROFILE_MMA16 ? 650e12 : 60e12;
    if (o->scan_us == 0) o->scan_us = 2.0;
}

static options read_options(int argc, char **argv) {
    static const char *const texts[] = {"device",  "profile",   "dtype", "threads", "sections",
                                        "batches", "bandwidth", "rate",  "scan",    "json"};
    enum { N_TEXTS = sizeof texts / sizeof texts[0] };
    struct option list[N_INTEGERS + N_TEXTS + 2] = {{0}};
    options o = {.device = "cuda",
                 .dtype = LS_BF16,
                 .threads = ls_cpu_count(),
                 .sections = SECTION_DECODE | SECTION_RUN | SECTION_SCORE | SECTION_FIRST | SECTION_MEMORY,
                 .batches = {1, 8, 64, 256, 512},
                 .n_batches = 5,
                 .prompt = 128,
                 .new_tokens = 256,
                 .run_prompts = 64,
                 .run_samples = 16,
                 .run_prompt = 512,
                 .run_new = 512,
                 .score_sequences = 64,
                 .score_tokens = 1024,
                 .score_batch = 16,
                 .first_prompt = 512,
                 .reps = 5,
                 .tick_tokens = 8192};
    int i, c;
    for (i = 0; i < N_INTEGERS; i++) list[i] = (struct option){integer_options[i].name, required_argument, NULL, i + 1};
    for (; i < N_INTEGERS + N_TEXTS; i++)
        list[i] = (struct option){texts[i - N_INTEGERS],
                                  i == N_INTEGERS + N_TEXTS - 1 ? no_argument : required_argument, NULL, i + 1};
    list[i] = (struct option){"help", no_argument, NULL, i + 1};
    while ((c = getopt_long(argc, argv, "", list, NULL)) > 0) {
        if (c == '?') exit(1);
        if (c == N_INTEGERS + N_TEXTS + 1) {
            fputs(usage, stdout);
            exit(0);
        }
        if (c > N_INTEGERS) {
            take_text(&o, texts[c - 1 - N_INTEGERS], optarg);
        } else {
            const integer_option *x = &integer_options[c - 1];
            *(int64_t *)(void *)((char *)&o + x->offset) = integer(x->name, optarg, x->low, x->high);
        }
    }
    if (optind != argc - 1) {
        fputs(usage, stderr);
        exit(1);
    }
    o.directory = argv[optind];
    default_rates(&o);
    return o;
}

/* ---- the model ---- */

static void open_model(bench *b) {
    ls_error err;
    if (strcmp(b->o.device, "cpu") == 0)
        need(ls_device_open_cpu(&b->device, b->o.threads, ls_isa_best(), &err), &err);
    else
        need(ls_device_open_cuda(&b->device, 0, &err), &err);
    b->begin_bytes = held_bytes(b->device);
    need(ls_model_open(&b->model, b->device, b->o.directory, &err), &err);
    need(ls_model_set_profile(b->model, b->o.profile, b->o.dtype, &err), &err);
}

/* Bytes of a layer's state that a step reads and writes: what is held is half full, on average. */
static double state_traffic(const bench *b) {
    const ls_model_config *c = &b->model->config;
    const ls_levers levers = {.state_every = b->o.state_every};
    const int64_t every = ls_levers_state_every(&levers, c, b->device);
    const double state = (double)ls_slot_bytes(c, b->o.dtype, 1);
    return state + state / (double)every + 0.5 * ((double)ls_slot_bytes(c, b->o.dtype, every) - state);
}

static void count_work(bench *b) {
    const ls_model_config *c = &b->model->config;
    int64_t n_attention = 0, n_mamba;
    for (int32_t i = 0; i < c->n_layers; i++) n_attention += c->is_attention[i] != 0;
    n_mamba = c->n_layers - n_attention;
    b->macs = model_macs(b->model);
    b->head_macs = gemm_macs(&b->model->head);
    b->state_bytes = (double)n_mamba * state_traffic(b);
    b->key_bytes = (double)(n_attention * ls_page_bytes(c, b->o.dtype, 64)) / 64.0;
    b->scan_seconds = 1e-6 * b->o.scan_us * (double)n_mamba * c->d_inner * c->d_state / (26.0 * 5120 * 16);
}

static bool has_floors(const bench *b) { return b->o.bandwidth > 0 && b->o.rate > 0; }

/* Seconds of a decoding tick of `batch` sequences with `context` cached tokens each. */
static double tick_floor(const bench *b, double batch, double context) {
    const double weights = (double)b->model->weight_bytes / b->o.bandwidth;
    return fmax(weights, batch * 2.0 * b->macs / b->o.rate) +
           batch * (b->state_bytes + context * b->key_bytes) / b->o.bandwidth;
}

/* Seconds of n prompt tokens in `forwards` forwards, of which head_rows go through the head. */
static double prompt_floor(const bench *b, double n, double head_rows, double forwards) {
    const double weights = forwards * (double)b->model->weight_bytes / b->o.bandwidth;
    const double products = 2.0 * (n * (b->macs - b->head_macs) + head_rows * b->head_macs) / b->o.rate;
    return fmax(weights, products) + n * b->scan_seconds;
}

/* ---- the table ---- */

typedef struct result {
    const char *section;
    char shape[64];
    double rate;        /* tokens a second */
    double ms, host_ms; /* host_ms < 0: none */
    double floor_ms;    /* 0: none */
} result;

static void print_header(const bench *b) {
    const ls_model_config *c = &b->model->config;
    ls_json_out json;
    if (b->o.json) {
        ls_json_init(&json, stdout);
        ls_json_begin_object(&json, NULL);
        ls_json_string(&json, "section", "model");
        ls_json_string(&json, "directory", b->o.directory);
        ls_json_string(&json, "device", b->device->table->title);
        ls_json_string(&json, "profile", ls_profile_name(b->o.profile));
        ls_json_string(&json, "dtype", ls_dtype_name(b->o.dtype));
        ls_json_int(&json, "parameters", b->model->n_parameters);
        ls_json_int(&json, "weight_bytes", b->model->weight_bytes);
        ls_json_double(&json, "state_bytes", b->state_bytes);
        ls_json_double(&json, "key_bytes", b->key_bytes);
        ls_json_double(&json, "flop", 2.0 * b->macs);
        ls_json_end_object(&json);
        ls_json_newline(&json);
        return;
    }
    printf("%s: %d layers, %d wide, %.4g billion parameters; %s, activations %s, profile %s\n", b->o.directory,
           c->n_layers, c->hidden, 1e-9 * (double)b->model->n_parameters, b->device->table->title,
           ls_dtype_name(b->o.dtype), ls_profile_name(b->o.profile));
    printf(
        "a forward reads %.4g GB of weights; a sequence's step moves %.4g MB of state and reads %.4g KB for each "
        "cached token; %.4g GFLOP a token\n",
        1e-9 * (double)b->model->weight_bytes, 1e-6 * b->state_bytes, b->key_bytes / 1024, 2e-9 * b->macs);
    if (has_floors(b))
        printf("floors: %.4g GB/s, %.4g TFLOP/s, scan %.4g us a token\n", 1e-9 * b->o.bandwidth, 1e-12 * b->o.rate,
               1e6 * b->scan_seconds);
    printf("%-8s %-26s %12s %12s %10s %10s %8s\n", "", "", "tokens/s", "ms", "host ms", "floor ms", "x floor");
    fflush(stdout);
}

static void print_result(const bench *b, const result *r) {
    const bool has_floor = has_floors(b);
    if (b->o.json) {
        ls_json_out json;
        ls_json_init(&json, stdout);
        ls_json_begin_object(&json, NULL);
        ls_json_string(&json, "section", r->section);
        ls_json_string(&json, "shape", r->shape);
        ls_json_double(&json, "tokens_per_s", r->rate);
        ls_json_double(&json, "ms", r->ms);
        if (r->host_ms >= 0) ls_json_double(&json, "host_ms", r->host_ms);
        if (has_floor) ls_json_double(&json, "floor_ms", r->floor_ms);
        if (has_floor) ls_json_double(&json, "times_floor", r->ms / r->floor_ms);
        ls_json_end_object(&json);
        ls_json_newline(&json);
    } else {
        printf("%-8s %-26s %12.0f %12.3f ", r->section, r->shape, r->rate, r->ms);
        if (r->host_ms >= 0)
            printf("%10.3f ", r->host_ms);
        else
            printf("%10s ", "");
        if (has_floor) printf("%10.3f %8.2f", r->floor_ms, r->ms / r->floor_ms);
        printf("\n");
    }
    fflush(stdout);
}

/* ---- requests ---- */

/* Sequences and the memory of their results. */
typedef struct work {
    ls_request *requests; /* [n] */
    int64_t n;
    int32_t *prompts, *completions;
    float *logprobs;
} work;

/* One of a sequence of tokens without any repetition to speak of. */
static int32_t token_at(const bench *b, int64_t i) {
    return (int32_t)(ls_philox_draw(0, (uint32_t)i, 0, 0, 0).word[0] % (uint32_t)b->model->config.vocab);
}

static void work_make(work *w, const bench *b, int64_t n_prompts, int64_t samples, int64_t prompt, int64_t new_tokens) {
    ls_error err;
    int64_t n, tokens, drawn;
    if (!ls_mul_i64(n_prompts, samples, &n) || !ls_mul_i64(n_prompts, prompt, &tokens) ||
        !ls_mul_i64(n, new_tokens, &drawn))
        quit(1, "%lld prompts with %lld samples do not fit 64 bits", (long long)n_prompts, (long long)samples);
    *w = (work){.n = n};
    need(ls_array_alloc((void **)&w->requests, n, sizeof *w->requests, "requests", &err), &err);
    need(ls_array_alloc((void **)&w->prompts, tokens, sizeof *w->prompts, "prompts", &err), &err);
    need(ls_array_alloc((void **)&w->completions, drawn, sizeof *w->completions, "tokens", &err), &err);
    need(ls_array_alloc((void **)&w->logprobs, drawn, sizeof *w->logprobs, "log-probabilities", &err), &err);
    for (int64_t i = 0; i < tokens; i++) w->prompts[i] = token_at(b, i);
    for (int64_t i = 0; i < n; i++)
        w->requests[i] = (ls_request){.prompt = w->prompts + i / samples * prompt,
                                      .n_prompt = prompt,
                                      .prompt_i = (uint32_t)(i / samples),
                                      .sample_i = (uint32_t)(i % samples),
                                      .max_tokens = new_tokens,
                                      .completion = w->completions + i * new_tokens,
                                      .logprob = w->logprobs + i * new_tokens};
}

static void work_free(work *w) {
    free(w->requests);
    free(w->prompts);
    free(w->completions);
    free(w->logprobs);
}

/* What the requests drew is there, or the figure is of something else. */
static void check_work(const work *w, const char *section) {
    for (int64_t i = 0; i < w->n; i++)
        if (w->requests[i].finish != LS_FINISH_LENGTH)
            quit(2, "%s: sequence %lld ended by %s: %s", section, (long long)i, ls_finish_name(w->requests[i].finish),
                 w->requests[i].finish == LS_FINISH_ERROR ? w->requests[i].error.text : "");
}

static ls_engine *make_engine(const bench *b, int64_t batch, int64_t length_max, int64_t prompts) {
    ls_engine_opts opts = {.dtype = b->o.dtype,
                           .length_max = length_max,
                           .requests_max = prompts,
                           .logprob_of = LS_LOGPROB_RAW,
                           .sampling = {.temperature = 1.0f, .top_p = 1.0f}};
    ls_engine *engine;
    ls_error err;
    ls_levers_init(&opts.levers);
    opts.levers.batch = batch;
    opts.levers.chunk = 0;
    opts.levers.tick_tokens = b->o.tick_tokens < batch ? batch : b->o.tick_tokens;
    opts.levers.state_every = b->o.state_every;
    opts.levers.prefix = LS_PREFIX_OFF;
    opts.levers.threads = b->o.threads;
    need(ls_engine_create(&engine, b->model, b->device, &opts, &err), &err);
    return engine;
}

/* ---- decode ---- */

static void tick(ls_engine *engine) {
    ls_error err;
    need(ls_engine_tick(engine, &err), &err);
}

/* Whether every sequence has drawn a token, and how many ticks are left before the first one ends. */
static bool all_decode(const work *w, int64_t *left) {
    bool all = true;
    *left = INT64_MAX;
    for (int64_t i = 0; i < w->n; i++) {
        const ls_request *r = &w->requests[i];
        all = all && r->n_completion > 0;
        if (r->max_tokens - r->n_completion < *left) *left = r->max_tokens - r->n_completion;
    }
    return all;
}

/* Of ticks in which every sequence draws one token. */
typedef struct ticks {
    int64_t n;
    double seconds, host_seconds;
} ticks;

static ticks time_ticks(const bench *b, ls_engine *engine, int64_t n) {
    ticks t = {.n = n};
    watch_waits(b->device);
    for (int64_t i = 0; i < n; i++) {
        const double start = ls_clock_seconds();
        wait_began = 0.0;
        tick(engine);
        t.seconds += ls_clock_seconds() - start;
        t.host_seconds += wait_began - start;
    }
    unwatch_waits(b->device);
    return t;
}

static void print_profile(const bench *b, const ls_timed_row *rows, int64_t n_rows, int64_t n_ticks, double total,
                          int64_t batch) {
    double sum = 0.0;
    for (int64_t i = 0; i < n_rows; i++) sum += rows[i].ms;
    if (!b->o.json)
        printf("         %lld ticks by kind of call, a tick: %.3f ms\n         %-26s %10s %12s %8s\n",
               (long long)n_ticks, total / (double)n_ticks, "", "calls", "ms", "share");
    for (int64_t i = 0; i <= n_rows; i++) {
        const char *name = i < n_rows ? rows[i].name : "(between calls)";
        const double ms = i < n_rows ? rows[i].ms : total - sum, calls = i < n_rows ? (double)rows[i].calls : 0;
        ls_json_out json;
        if (!b->o.json) {
            printf("         %-26s %10.1f %12.4f %6.1f %%\n", name, calls / (double)n_ticks, ms / (double)n_ticks,
                   100.0 * ms / total);
            continue;
        }
        ls_json_init(&json, stdout);
        ls_json_begin_object(&json, NULL);
        ls_json_string(&json, "section", "tick");
        ls_json_int(&json, "batch", batch);
        ls_json_string(&json, "call", name);
        ls_json_double(&json, "calls", calls / (double)n_ticks);
        ls_json_double(&json, "ms", ms / (double)n_ticks);
        ls_json_double(&json, "share", ms / total);
        ls_json_end_object(&json);
        ls_json_newline(&json);
    }
}

typedef struct profile {
    ls_timing *timing;
    const bench *b;
} profile;

static profile profile_begin(const bench *b) {
    profile p = {NULL, b};
    ls_error err;
    need(ls_timing_begin(&p.timing, b->device, &err), &err);
    return p;
}

static void profile_end(const profile *p, int64_t n_ticks, int64_t batch) {
    const ls_timed_row *rows;
    int64_t n;
    double total;
    ls_error err;
    need(ls_timing_read(p->timing, &rows, &n, &total, &err), &err);
    print_profile(p->b, rows, n, n_ticks, total, batch);
    ls_timing_end(p->timing);
}

static void profile_ticks(const bench *b, ls_engine *engine, int64_t batch) {
    const profile p = profile_begin(b);
    for (int64_t i = 0; i < b->o.profile_ticks; i++) tick(engine);
    profile_end(&p, b->o.profile_ticks, batch);
}

static void bench_decode(const bench *b, int64_t batch) {
    const int64_t drawn = b->o.new_tokens + b->o.profile_ticks, length = b->o.prompt + drawn;
    ls_engine *engine = make_engine(b, batch, length, batch);
    result r = {.section = "decode"};
    int64_t left, first_left;
    double context;
    work w;
    ticks t;
    ls_error err;
    work_make(&w, b, batch, 1, b->o.prompt, drawn);
    for (int64_t i = 0; i < batch; i++) need(ls_engine_submit(engine, &w.requests[i], &err), &err);
    do tick(engine);
    while (!all_decode(&w, &left) && left > 0);
    for (int i = 0; i < WARM_TICKS && left > 1; i++, left--) tick(engine);
    if (left <= b->o.profile_ticks)
        quit(1,
             "decode: prompts take so many ticks that none is left in which all of %lld sequences decode; raise "
             "--new or --tick-tokens",
             (long long)batch);
    first_left = left;
    t = time_ticks(b, engine, left - b->o.profile_ticks);
    context = (double)length - (double)first_left + 0.5 * (double)t.n;
    snprintf(r.shape, sizeof r.shape, "batch %lld, context %.0f", (long long)batch, context);
    r.rate = (double)(t.n * batch) / t.seconds;
    r.ms = 1e3 * t.seconds / (double)t.n;
    r.host_ms = 1e3 * t.host_seconds / (double)t.n;
    if (has_floors(b)) r.floor_ms = 1e3 * tick_floor(b, (double)batch, context);
    print_result(b, &r);
    if (b->o.profile_ticks > 0) profile_ticks(b, engine, batch);
    while (ls_engine_unfinished(engine) > 0) tick(engine);
    check_work(&w, "decode");
    ls_engine_free(engine);
    work_free(&w);
}

/* ---- the run of samples ---- */

static void bench_run(const bench *b) {
    const options *o = &b->o;
    const int64_t n = o->run_prompts * o->run_samples, batch = n < LS_BATCH_MAX ? n : LS_BATCH_MAX;
    ls_engine *engine = make_engine(b, batch, o->run_prompt + o->run_new, n);
    const double context = (double)o->run_prompt + 0.5 * (double)o->run_new;
    result r = {.section = "run", .host_ms = -1};
    work w;
    ls_error err;
    work_make(&w, b, o->run_prompts, o->run_samples, o->run_prompt, o->run_new);
    r.ms = -1e3 * ls_clock_seconds();
    need(ls_engine_run(engine, w.requests, w.n, NULL, NULL, &err), &err);
    r.ms += 1e3 * ls_clock_seconds();
    check_work(&w, "run");
    snprintf(r.shape, sizeof r.shape, "%lld x %lld, %lld + %lld", (long long)o->run_prompts, (long long)o->run_samples,
             (long long)o->run_prompt, (long long)o->run_new);
    r.rate = 1e3 * (double)(n * o->run_new) / r.ms;
    if (has_floors(b))
        r.floor_ms = 1e3 * prompt_floor(b, (double)(o->run_prompts * o->run_prompt), 0, 1) +
                     1e3 * (double)(n * o->run_new) / (double)batch * tick_floor(b, (double)batch, context);
    print_result(b, &r);
    ls_engine_free(engine);
    work_free(&w);
}

/* ---- scoring ---- */

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int64_t n) {
    qsort(values, (size_t)n, sizeof *values, by_value);
    return n % 2 ? values[n / 2] : 0.5 * (values[n / 2 - 1] + values[n / 2]);
}

static void bench_score(const bench *b) {
    const int64_t n = b->o.score_sequences, length = b->o.score_tokens;
    const ls_score_opts opts = {.dtype = b->o.dtype, .batch = b->o.score_batch, .page_tokens = 16};
    double seconds[REPS_MAX];
    result r = {.section = "score", .host_ms = -1};
    ls_score_item *items;
    int32_t *tokens;
    float *logprobs;
    ls_error err;
    int64_t all;
    if (!ls_mul_i64(n, length, &all)) quit(1, "score: %lld sequences do not fit 64 bits", (long long)n);
    need(ls_array_alloc((void **)&items, n, sizeof *items, "sequences", &err), &err);
    need(ls_array_alloc((void **)&tokens, all, sizeof *tokens, "tokens", &err), &err);
    need(ls_array_alloc((void **)&logprobs, all, sizeof *logprobs, "log-probabilities", &err), &err);
    for (int64_t i = 0; i < all; i++) tokens[i] = token_at(b, i);
    for (int64_t i = 0; i < n; i++)
        items[i] = (ls_score_item){
            .tokens = tokens + i * length, .n_tokens = length, .of = LS_LOGPROB_RAW, .logprob = logprobs + i * length};
    for (int64_t i = 0; i < b->o.reps; i++) {
        const double start = ls_clock_seconds();
        need(ls_score(b->model, b->device, &opts, items, n, &err), &err);
        seconds[i] = ls_clock_seconds() - start;
    }
    for (int64_t i = 0; i < n; i++)
        if (!(logprobs[i * length] < 0)) quit(2, "score: a log-probability is %g", (double)logprobs[i * length]);
    r.ms = 1e3 * median(seconds, b->o.reps);
    r.rate = 1e3 * (double)all / r.ms;
    snprintf(r.shape, sizeof r.shape, "%lld x %lld, %lld at once", (long long)n, (long long)length,
             (long long)opts.batch);
    if (has_floors(b))
        r.floor_ms = 1e3 * prompt_floor(b, (double)all, (double)(all - n), ceil((double)n / (double)opts.batch));
    print_result(b, &r);
    if (b->o.profile_ticks > 0) { /* one forward, as a tick of its sequences */
        const profile p = profile_begin(b);
        need(ls_score(b->model, b->device, &opts, items, n < opts.batch ? n : opts.batch, &err), &err);
        profile_end(&p, 1, n < opts.batch ? n : opts.batch);
    }
    free(items);
    free(tokens);
    free(logprobs);
}

/* ---- the first token ---- */

static void bench_first(const bench *b) {
    const int64_t prompt = b->o.first_prompt;
    ls_engine *engine = make_engine(b, 1, prompt + 1, 1);
    double seconds[REPS_MAX];
    result r = {.section = "first", .host_ms = -1};
    work w;
    ls_error err;
    work_make(&w, b, 1, 1, prompt, 1);
    for (int64_t i = -1; i < b->o.reps; i++) {
        const double start = ls_clock_seconds();
        need(ls_engine_submit(engine, &w.requests[0], &err), &err);
        while (ls_engine_unfinished(engine) > 0) tick(engine);
        if (i >= 0) seconds[i] = ls_clock_seconds() - start;
        check_work(&w, "first");
    }
    r.ms = 1e3 * median(seconds, b->o.reps);
    r.rate = 1e3 * (double)prompt / r.ms;
    snprintf(r.shape, sizeof r.shape, "prompt of %lld", (long long)prompt);
    if (has_floors(b)) r.floor_ms = 1e3 * prompt_floor(b, (double)prompt, 1, 1);
    print_result(b, &r);
    ls_engine_free(engine);
    work_free(&w);
}

/* ---- memory ---- */

typedef struct sizes {
    const bench *b;
    int64_t batch;
} sizes;

/* Every sequence one token longer than the last: ticks shrink through all sizes, several of each. */
static void run_through_sizes(void *context, ls_engine *engine) {
    const sizes *s = context;
    ls_error err;
    work w;
    work_make(&w, s->b, s->batch, 1, s->b->o.prompt, s->batch + WARM_TICKS);
    for (int64_t i = 0; i < s->batch; i++) w.requests[i].max_tokens = WARM_TICKS + 1 + i;
    for (int64_t i = 0; i < s->batch; i++) need(ls_engine_submit(engine, &w.requests[i], &err), &err);
    while (ls_engine_unfinished(engine) > 0) tick(engine);
    check_work(&w, "memory");
    work_free(&w);
}

static bool bench_memory(bench *b) {
    memory_bench m = {b->device, b->model, b->begin_bytes, b->o.json};
    sizes s = {b, 1};
    ls_engine *engine;
    bool is_as_planned;
    for (int64_t i = 0; i < b->o.n_batches; i++)
        if (b->o.batches[i] > s.batch) s.batch = b->o.batches[i];
    engine = make_engine(b, s.batch, b->o.prompt + s.batch + WARM_TICKS, s.batch);
    is_as_planned = memory_is_as_planned(&m, engine, run_through_sizes, &s);
    ls_engine_free(engine);
    return is_as_planned;
}

int main(int argc, char **argv) {
    bench b = {.o = read_options(argc, argv)};
    bool is_as_planned = true;
    open_model(&b);
    count_work(&b);
    print_header(&b);
    if (b.o.sections & SECTION_MEMORY) is_as_planned = bench_memory(&b);
    if (b.o.sections & SECTION_DECODE)
        for (int64_t i = 0; i < b.o.n_batches; i++) bench_decode(&b, b.o.batches[i]);
    if (b.o.sections & SECTION_RUN) bench_run(&b);
    if (b.o.sections & SECTION_SCORE) bench_score(&b);
    if (b.o.sections & SECTION_FIRST) bench_first(&b);
    ls_model_close(b.model);
    ls_device_close(b.device);
    return is_as_planned ? 0 : 3;
}
