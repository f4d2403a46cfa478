/* A step of policy-gradient training on several ranks of one machine: what each part of it takes, and what the exchange
 * takes beside moving the same bytes without adding and, over NCCL, beside NCCL's own all-reduce.
 *
 *   bench_ranks DIR [--ranks N] [--device cpu|cuda] [--transport tcp|nccl] [options]
 *
 * The program starts its ranks itself; rank r takes GPU r. A step is: every rank draws its share of the sequences
 * (--prompts x --samples, --prompt + --new tokens, drawn to their full length), all ranks get all of them, every rank
 * scores its leaves with the training forward and compares every log-probability with the record, takes the backward,
 * adds its range of the gradient, updates its range, and hands the weights on. Seconds are those of the slowest rank.
 * The last line is a digest of weights, masters, moments and tokens, which is the same for any number of ranks. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <getopt.h>
#include <math.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fnv.h"
#include "base/mem.h"
#include "base/parallel.h"
#include "base/rng.h"
#include "failures.h"
#include "op/choice.h"
#include "op/nccl.h"
#include "plan.h"
#include "rollout/engine.h"
#include "train/balance.h"
#include "train/trainer.h"

/* Of the gradient, at most, in the measure of exchanges alone: elements. */
#define PIECE ((int64_t)1 << 28)
#define TIMEOUT_S 600.0

typedef struct options {
    const char *directory, *device;
    ls_profile profile;
    ls_dtype dtype;
    ls_transport_kind transport;
    int64_t ranks, prompts, samples, prompt, new_tokens, leaf, microbatch, rows, steps, batch, prefix_mb, threads;
    int64_t recompute;
    bool moments_on_host, vary, by_length, by_layer, apart;
} options;

/* ---- options ---- */

static const char usage[] =
    "Usage: bench_ranks DIR [OPTION...]\n"
    "\n"
    "  --ranks N              processes, one GPU each (1)\n"
    "  --device cpu|cuda      (cpu)\n"
    "  --transport tcp|nccl   of device memory (tcp)\n"
    "  --apart                to NCCL each rank is a host of its own: they may share GPUs, and all goes over sockets\n"
    "  --profile exact|mma16  of dense products (exact)\n"
    "  --dtype f32|bf16       of activations (f32)\n"
    "  --prompts N --samples N    sequences of a step (8, 4)\n"
    "  --prompt N --new N     tokens of a prompt, and drawn for each (16, 16)\n"
    "  --leaf N               sequences of a leaf (1)\n"
    "  --leaves by_number|by_length   neighbours, or leaves of about as many tokens each (by_number)\n"
    "  --weights whole|by_layer       on every rank, or layers shared by all (whole)\n"
    "  --microbatch N         leaves of a forward (4)\n"
    "  --rows N               tokens of a forward; a leaf that has more takes several (what fits a GPU, else those of\n"
    "                         a microbatch)\n"
    "  --vary                 completions of 1 to --new tokens, those of a prompt alike, in place of --new each\n"
    "  --batch N              sequences that decode at a time (a rank's share, at most 1024)\n"
    "  --prefix-mb N          millions of bytes of the engine's prefix cache (four entries for each running sequence)\n"
    "  --recompute            keep the residual stream only\n"
    "  --moments-on-host      keep AdamW's moments in the host's memory\n"
    "  --steps N              timed, behind one that is not; the fastest counts (2)\n"
    "  --threads N            of each rank on the CPU (1)\n";

static int64_t count(const char *name, const char *text) {
    char *end;
    const double value = strtod(text, &end);
    if (*text == '\0' || *end != '\0' || !(value >= 1 && value <= 1e6) || value != floor(value))
        quit(1, "--%s: '%s' is no integer in 1..1000000", name, text);
    return (int64_t)value;
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
    } counts[] = {
        {"ranks", &o->ranks},    {"prompts", &o->prompts}, {"samples", &o->samples}, {"prompt", &o->prompt},
        {"new", &o->new_tokens}, {"leaf", &o->leaf},       {"steps", &o->steps},     {"microbatch", &o->microbatch},
        {"batch", &o->batch},    {"threads", &o->threads}, {"rows", &o->rows},       {"prefix-mb", &o->prefix_mb}};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
        if (strcmp(name, counts[i].name) == 0) *counts[i].value = count(name, text);
    if (strcmp(name, "device") == 0) o->device = choice(name, text, "cpu", "cuda") == 0 ? "cpu" : "cuda";
    if (strcmp(name, "transport") == 0)
        o->transport = choice(name, text, "tcp", "nccl") == 0 ? LS_TRANSPORT_TCP : LS_TRANSPORT_NCCL;
    if (strcmp(name, "profile") == 0)
        o->profile = choice(name, text, "exact", "mma16") == 0 ? LS_PROFILE_EXACT : LS_PROFILE_MMA16;
    if (strcmp(name, "dtype") == 0) o->dtype = choice(name, text, "f32", "bf16") == 0 ? LS_F32 : LS_BF16;
    if (strcmp(name, "leaves") == 0) o->by_length = choice(name, text, "by_number", "by_length") == 1;
    if (strcmp(name, "weights") == 0) o->by_layer = choice(name, text, "whole", "by_layer") == 1;
    if (strcmp(name, "recompute") == 0) o->recompute = LS_RECOMPUTE_ALL;
    if (strcmp(name, "moments-on-host") == 0) o->moments_on_host = true;
    if (strcmp(name, "vary") == 0) o->vary = true;
    if (strcmp(name, "apart") == 0) o->apart = true;
}

static options read_options(int argc, char **argv) {
    static const struct option list[] = {{"ranks", required_argument, NULL, 1},
                                         {"device", required_argument, NULL, 1},
                                         {"transport", required_argument, NULL, 1},
                                         {"profile", required_argument, NULL, 1},
                                         {"dtype", required_argument, NULL, 1},
                                         {"prompts", required_argument, NULL, 1},
                                         {"samples", required_argument, NULL, 1},
                                         {"prompt", required_argument, NULL, 1},
                                         {"new", required_argument, NULL, 1},
                                         {"leaf", required_argument, NULL, 1},
                                         {"microbatch", required_argument, NULL, 1},
                                         {"batch", required_argument, NULL, 1},
                                         {"steps", required_argument, NULL, 1},
                                         {"threads", required_argument, NULL, 1},
                                         {"rows", required_argument, NULL, 1},
                                         {"prefix-mb", required_argument, NULL, 1},
                                         {"leaves", required_argument, NULL, 1},
                                         {"weights", required_argument, NULL, 1},
                                         {"recompute", no_argument, NULL, 1},
                                         {"moments-on-host", no_argument, NULL, 1},
                                         {"vary", no_argument, NULL, 1},
                                         {"apart", no_argument, NULL, 1},
                                         {"help", no_argument, NULL, 2},
                                         {NULL, 0, NULL, 0}};
    options o = {.device = "cpu",
                 .dtype = LS_F32,
                 .ranks = 1,
                 .prompts = 8,
                 .samples = 4,
                 .prompt = 16,
                 .new_tokens = 16,
                 .leaf = 1,
                 .microbatch = 4,
                 .steps = 2,
                 .threads = 1};
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
    if (o.ranks > LS_RANKS_MAX) quit(1, "--ranks: %lld is more than %d", (long long)o.ranks, LS_RANKS_MAX);
    o.directory = argv[optind];
    return o;
}

/* ---- a rank ---- */

/* Seconds of the parts of a step. */
enum { ROLLOUT, EPISODES, GATE, BACKWARD, UPDATE, EXCHANGE, STEP, N_PARTS };
static const char *const part_names[N_PARTS] = {"rollout", "episodes", "gate",  "backward",
                                                "update",  "exchange", "a step"};

typedef struct bench {
    const options *o;
    int32_t rank, ranks;
    int64_t n, length, begin, end; /* sequences, their tokens at most, those that this rank draws */
    int64_t n_drawn;               /* tokens of the step that are drawn */
    ls_device *device;
    ls_device_choice choice;
    ls_model *model;
    ls_comm *comm; /* NULL: alone */
    ls_engine *engine;
    ls_trainer *trainer;
    ls_train_plan plan;
    bool planned; /* on a GPU */
    ls_request *requests;
    int32_t *tokens; /* [n][length] */
    float *logprobs; /* [n][new_tokens] */
    int64_t *drawn;  /* [n]: tokens of completions */
    int32_t *rows;   /* those of the sequences but their last, one behind the other */
    int64_t *offsets, *targets;
    int64_t *order; /* [n]: the sequence at each place of the batch */
    int64_t n_differing;
    double seconds[N_PARTS]; /* of the slowest rank */
    double fastest[N_PARTS];
} bench;

static void must(bench *b, ls_status status, const ls_error *err) {
    if (status == LS_OK) return;
    if (b->comm != NULL) ls_comm_abort(b->comm, err);
    quit(2, "%s", err->text);
}

static void alloc(void **out, int64_t n, int64_t bytes) {
    ls_error err;
    need(ls_array_alloc(out, n, bytes, "sequences", &err), &err);
}

static ls_status open_model(bench *b, ls_error *err) {
    const ls_model_loading how = {.by_layer = b->o->by_layer};
    LS_TRY(ls_model_open_with(&b->model, b->device, b->o->directory, &how, err));
    return ls_model_set_profile(b->model, b->o->profile, b->o->dtype, err);
}

static ls_status open_engine(bench *b, ls_error *err) {
    const int64_t share = b->end - b->begin > 0 ? b->end - b->begin : 1;
    ls_engine_opts opts = {.dtype = b->o->dtype,
                           .length_max = b->length,
                           .logprob_of = LS_LOGPROB_RAW,
                           .sampling = {.temperature = 1.0f, .top_p = 1.0f}};
    ls_levers_init(&opts.levers);
    opts.levers.batch = b->o->batch > 0 ? b->o->batch : share < LS_BATCH_MAX ? share : LS_BATCH_MAX;
    if (b->planned) opts.levers.batch = b->plan.batch;
    if (b->plan.slots > 0) opts.levers.slots = b->plan.slots;
    if (b->plan.pages > 0) opts.levers.pages = b->plan.pages;
    opts.levers.prefix_bytes = 1000000 * b->o->prefix_mb;
    opts.levers.threads = (int32_t)b->o->threads;
    return ls_engine_create(&b->engine, b->model, b->device, &opts, err);
}

static ls_status open_trainer(bench *b, ls_error *err) {
    const options *o = b->o;
    const ls_trainer_opts opts = {.dtype = o->dtype,
                                  .temperature = 1.0f,
                                  .leaf = o->leaf,
                                  .adamw = {0, 0.9, 0.95, 1e-8, 0.1},
                                  .rate = {LS_RATE_CONSTANT, 1e-6, 0, 0, 0},
                                  .max_norm = 1.0,
                                  .microbatch = o->microbatch,
                                  .rows_max = b->plan.rows,
                                  .spans_max = b->plan.spans,
                                  .gradients = b->plan.gradients,
                                  .leaf_rows_max = o->leaf * b->length,
                                  .sequences_max = b->n,
                                  .moments_on_host = b->plan.moments_on_host,
                                  .recompute = b->plan.recompute,
                                  .n_metrics = 1,
                                  .comm = b->comm};
    return ls_trainer_create(&b->trainer, b->model, o->directory, b->device, &opts, err);
}

/* ls_train_rehearse: what a rank makes. */
static ls_status rehearse(void *context, ls_device *device, ls_train_plan *plan, ls_train_outlook *out,
                          void (*look)(void *looker, const ls_device *device), void *looker, ls_error *err) {
    bench b = *(const bench *)context;
    ls_engine_plan engine;
    void *recordings = NULL;
    ls_status status;
    b.device = device;
    b.plan = *plan;
    b.planned = true;
    LS_TRY_DONE(ls_comm_open_on_paper(&b.comm, b.rank, b.ranks, err));
    LS_TRY_DONE(open_model(&b, err));
    LS_TRY_DONE(open_engine(&b, err));
    LS_TRY_DONE(open_trainer(&b, err));
    ls_engine_get_plan(b.engine, &engine);
    plan->slots = engine.slots;
    plan->pages = engine.pages;
    LS_TRY_DONE(ls_memory_alloc(device, &recordings, engine.recording_bytes, 1, "recordings", err));
    LS_TRY_DONE(ls_trainer_rehearse(b.trainer, b.length, err));
    plan->workspace = device->exec.workspace_bytes;
    plan->gradients = ls_trainer_device_gradients(b.trainer);
    *out = ls_trainer_outlook(b.trainer);
    out->slot_bytes = engine.slot_stride * b.model->config.n_layers;
    look(looker, device);
done:
    ls_memory_free(device, recordings);
    ls_trainer_free(b.trainer);
    ls_comm_close(b.comm);
    ls_engine_free(b.engine);
    ls_model_close(b.model);
    return status;
}

/* What the options say, and of a GPU what they leave open. */
static void choose(bench *b) {
    const options *o = b->o;
    const ls_train_wish wish = {.rows = o->rows,
                                .moments_on_host = o->moments_on_host ? 1 : -1,
                                .recompute = o->recompute > 0 ? o->recompute : -1,
                                .batch = o->batch,
                                .has_engine = true,
                                .sequences = (b->n - 1) / b->ranks + 1,
                                .longest = b->length,
                                .leaf = o->leaf,
                                .new_tokens = o->new_tokens};
    b->plan = bench_plan(&b->planned, b->device, &wish, rehearse, b, b->rank == 0);
    if (b->planned) return;
    b->plan = (ls_train_plan){.rows = o->rows > 0 ? o->rows : o->microbatch * o->leaf * b->length,
                              .moments_on_host = o->moments_on_host,
                              .recompute = o->recompute};
}

static void open_rank(bench *b, const char *address) {
    const options *o = b->o;
    const ls_device_wish wish = {.name = o->device,
                                 .n_threads = (int32_t)o->threads,
                                 .isa = ls_isa_best(),
                                 .rank = b->rank,
                                 .ranks = b->ranks,
                                 .local = b->rank};
    ls_error err;
    need(ls_device_open_wished(&b->device, &b->choice, &wish, &err), &err);
    choose(b);
    need(open_model(b, &err), &err);
    if (b->ranks > 1) {
        const ls_comm_opts comm = {b->rank, b->ranks, address, TIMEOUT_S, o->transport, b->device};
        need(ls_comm_open(&b->comm, &comm, 1, &err), &err);
    }
    alloc((void **)&b->requests, b->n, sizeof *b->requests);
    alloc((void **)&b->tokens, b->n * b->length, sizeof *b->tokens);
    alloc((void **)&b->logprobs, b->n * o->new_tokens, sizeof *b->logprobs);
    alloc((void **)&b->drawn, b->n, sizeof *b->drawn);
    alloc((void **)&b->rows, b->n * b->length, sizeof *b->rows);
    alloc((void **)&b->targets, b->n * b->length, sizeof *b->targets);
    alloc((void **)&b->offsets, b->n + 1, sizeof *b->offsets);
    alloc((void **)&b->order, b->n, sizeof *b->order);
}

/* ---- a step ---- */

/* A number in (0, 1], of a place of a step. */
static double fraction(int64_t step, int64_t place, uint32_t kind) {
    const ls_philox draw = ls_philox_draw(0, (uint32_t)place, kind, (uint32_t)step, 8);
    return ((double)draw.word[0] + 1.0) / 4294967296.0;
}

/* How many tokens each completion has: with --vary as long as its prompt says, and up to a quarter shorter. */
static void choose_lengths(bench *b, int64_t step) {
    b->n_drawn = 0;
    for (int64_t s = 0; s < b->n; s++) {
        const double part = fraction(step, s / b->o->samples, 0) * (1.0 - 0.25 * fraction(step, s, 1));
        b->drawn[s] = b->o->vary ? 1 + (int64_t)((double)(b->o->new_tokens - 1) * part) : b->o->new_tokens;
        b->n_drawn += b->drawn[s];
    }
}

static void draw(bench *b, int64_t step) {
    const options *o = b->o;
    ls_error err;
    for (int64_t s = 0; s < b->n; s++) {
        const int64_t p = s / o->samples;
        for (int64_t k = 0; k < o->prompt; k++) {
            const ls_philox draw = ls_philox_draw(0, (uint32_t)p, (uint32_t)k, (uint32_t)step, 7);
            b->tokens[s * b->length + k] = (int32_t)(1 + draw.word[0] % (uint64_t)(b->model->config.vocab - 1));
        }
        b->requests[s] = (ls_request){.prompt = b->tokens + s * b->length,
                                      .n_prompt = o->prompt,
                                      .prompt_i = (uint32_t)(step * o->prompts + p),
                                      .sample_i = (uint32_t)(s % o->samples),
                                      .max_tokens = b->drawn[s],
                                      .completion = b->tokens + s * b->length + o->prompt,
                                      .logprob = b->logprobs + s * o->new_tokens};
    }
    if (b->end > b->begin)
        must(b, ls_engine_run(b->engine, b->requests + b->begin, b->end - b->begin, NULL, NULL, &err), &err);
    for (int64_t s = b->begin; s < b->end; s++)
        if (b->requests[s].finish != LS_FINISH_LENGTH) quit(2, "sequence %lld was not drawn", (long long)s);
}

static void share_episodes(bench *b) {
    int64_t begins[LS_RANKS_MAX + 1];
    ls_error err;
    if (b->comm == NULL) return;
    for (int64_t r = 0; r <= b->ranks; r++) begins[r] = r * b->n / b->ranks * b->length * (int64_t)sizeof *b->tokens;
    must(b, ls_comm_share(b->comm, b->tokens, begins, "the episodes", &err), &err);
    for (int64_t r = 0; r <= b->ranks; r++)
        begins[r] = r * b->n / b->ranks * b->o->new_tokens * (int64_t)sizeof *b->logprobs;
    must(b, ls_comm_share(b->comm, b->logprobs, begins, "the episodes", &err), &err);
}

/* The last token of a sequence is predicted, not read. */
static ls_train_batch lay_out(bench *b) {
    int64_t row = 0;
    ls_error err;
    if (b->o->by_length)
        must(b, ls_balance(b->order, b->drawn, b->n, b->o->leaf, &err), &err);
    else
        for (int64_t s = 0; s < b->n; s++) b->order[s] = s;
    for (int64_t place = 0; place < b->n; place++) {
        const int64_t s = b->order[place];
        const int32_t *tokens = b->tokens + s * b->length;
        b->offsets[place] = row;
        for (int64_t i = 1; i < b->o->prompt + b->drawn[s]; i++, row++) {
            b->rows[row] = tokens[i - 1];
            b->targets[row] = i >= b->o->prompt ? tokens[i] : -1;
        }
    }
    b->offsets[b->n] = row;
    return (ls_train_batch){b->rows, b->offsets, b->targets, b->n, (double)b->n_drawn, NULL};
}

/* Every drawn token's bits; half of the sequences are to become likelier, half less. */
static void compare(bench *b, const ls_train_rows *r) {
    for (int64_t i = 0; i < r->n_sequences; i++) {
        const int64_t s = b->order[r->sequence + i];
        const float *recorded = b->logprobs + s * b->o->new_tokens;
        for (int64_t row = r->offsets[i] + b->o->prompt - 1; row < r->offsets[i + 1]; row++, recorded++) {
            b->n_differing += memcmp(recorded, &r->logprob[row], sizeof *recorded) != 0;
            r->d_logprob[row] = s % 2 == 0 ? -1.0f : 1.0f;
        }
    }
}

static void learn(bench *b) {
    const ls_train_batch batch = lay_out(b);
    ls_train_stats stats;
    ls_train_rows rows;
    double at;
    ls_error err;
    must(b, ls_trainer_begin(b->trainer, &batch, &err), &err);
    while (ls_trainer_has_more(b->trainer)) {
        at = ls_clock_seconds();
        must(b, ls_trainer_forward(b->trainer, &rows, &err), &err);
        compare(b, &rows);
        b->seconds[GATE] += ls_clock_seconds() - at;
        at = ls_clock_seconds();
        must(b, ls_trainer_backward(b->trainer, &err), &err);
        must(b, ls_device_wait(b->device, &err), &err);
        b->seconds[BACKWARD] += ls_clock_seconds() - at;
    }
    at = ls_clock_seconds();
    must(b, ls_trainer_update(b->trainer, &stats, &err), &err);
    b->seconds[UPDATE] = ls_clock_seconds() - at;
    must(b, ls_engine_set_weights(b->engine, b->model, (uint64_t)stats.step, &err), &err);
}

/* The slowest rank's seconds, and the fastest one's. */
static void slowest(bench *b) {
    double all[LS_RANKS_MAX][N_PARTS];
    int64_t begins[LS_RANKS_MAX + 1];
    ls_error err;
    memcpy(b->fastest, b->seconds, sizeof b->fastest);
    if (b->comm == NULL) return;
    for (int32_t r = 0; r <= b->ranks; r++) begins[r] = r * (int64_t)sizeof all[0];
    memcpy(all[b->rank], b->seconds, sizeof all[0]);
    must(b, ls_comm_share(b->comm, all, begins, "the seconds", &err), &err);
    for (int32_t r = 0; r < b->ranks; r++)
        for (int k = 0; k < N_PARTS; k++) {
            if (all[r][k] > b->seconds[k]) b->seconds[k] = all[r][k];
            if (all[r][k] < b->fastest[k]) b->fastest[k] = all[r][k];
        }
}

static ls_comm_use used(const bench *b) { return b->comm == NULL ? (ls_comm_use){0} : ls_comm_used(b->comm); }

static void step(bench *b, int64_t number) {
    const ls_comm_use before = used(b);
    const double start = ls_clock_seconds();
    double at = start;
    memset(b->seconds, 0, sizeof b->seconds);
    choose_lengths(b, number);
    draw(b, number);
    b->seconds[ROLLOUT] = ls_clock_seconds() - at;
    at = ls_clock_seconds();
    share_episodes(b);
    b->seconds[EPISODES] = ls_clock_seconds() - at;
    learn(b);
    b->seconds[EXCHANGE] = used(b).seconds - before.seconds;
    b->seconds[STEP] = ls_clock_seconds() - start;
    slowest(b);
}

/* ---- exchanges alone ---- */

typedef struct exchange_bench {
    float *values, *buffer;
    int64_t n, n_buffer, begins[LS_RANKS_MAX + 1];
} exchange_bench;

/* The bytes of the sum, all at once into one place, nothing added: what moving alone takes. */
static void move_only(bench *b, const exchange_bench *x) {
    ls_comm_move sends[LS_RANKS_MAX], receives[LS_RANKS_MAX];
    ls_comm_moves moves = {sends, receives, 0, 0};
    const int64_t step = x->n_buffer / b->ranks, own = x->begins[b->rank + 1] - x->begins[b->rank];
    ls_error err;
    for (int64_t at = 0; at < x->begins[1] + b->ranks; at += step) {
        moves.n_sends = moves.n_receives = 0;
        for (int32_t r = 0; r < b->ranks; r++) {
            const int64_t theirs = x->begins[r + 1] - x->begins[r];
            if (r == b->rank) continue;
            if (at < theirs)
                sends[moves.n_sends++] =
                    (ls_comm_move){r, x->values + x->begins[r] + at, (theirs - at < step ? theirs - at : step) * 4};
            if (at < own)
                receives[moves.n_receives++] =
                    (ls_comm_move){r, x->buffer + r * step, (own - at < step ? own - at : step) * 4};
        }
        must(b, ls_comm_exchange(b->comm, b->device, &moves, "bytes", &err), &err);
    }
}

static void add_ranges(bench *b, const exchange_bench *x) {
    const ls_comm_sum sum = {x->values, x->begins, b->ranks, x->buffer, x->n_buffer, NULL, NULL};
    ls_error err;
    must(b, ls_comm_add(b->comm, b->device, &sum, &err), &err);
}

/* Every rank gets all ranges: with the sum before it an all-reduce. */
static void gather_ranges(bench *b, const exchange_bench *x) {
    ls_comm_move sends[LS_RANKS_MAX], receives[LS_RANKS_MAX];
    ls_comm_moves moves = {sends, receives, 0, 0};
    ls_error err;
    for (int32_t r = 0; r < b->ranks; r++) {
        if (r == b->rank) continue;
        sends[moves.n_sends++] =
            (ls_comm_move){r, x->values + x->begins[b->rank], (x->begins[b->rank + 1] - x->begins[b->rank]) * 4};
        receives[moves.n_receives++] =
            (ls_comm_move){r, x->values + x->begins[r], (x->begins[r + 1] - x->begins[r]) * 4};
    }
    must(b, ls_comm_exchange(b->comm, b->device, &moves, "bytes", &err), &err);
}

static void add_and_gather(bench *b, const exchange_bench *x) {
    add_ranges(b, x);
    gather_ranges(b, x);
}

static void nccl_sum(bench *b, const exchange_bench *x) {
    bool reached = false;
    ls_error err;
    must(b, ls_nccl_sum(ls_comm_nccl(b->comm), x->values, x->n, &err), &err);
    while (!reached) must(b, ls_nccl_reached(ls_comm_nccl(b->comm), &reached, &err), &err);
}

static void time_exchange(bench *b, const exchange_bench *x, const char *name,
                          void (*work)(bench *, const exchange_bench *)) {
    double best = 0.0;
    ls_error err;
    for (int i = -1; i < 3; i++) {
        uint8_t here[LS_RANKS_MAX] = {0};
        int64_t begins[LS_RANKS_MAX + 1];
        double start;
        must(b, ls_device_wait(b->device, &err), &err);
        for (int32_t r = 0; r <= b->ranks; r++) begins[r] = r;
        must(b, ls_comm_share(b->comm, here, begins, "the others", &err), &err);
        start = ls_clock_seconds();
        work(b, x);
        must(b, ls_device_wait(b->device, &err), &err);
        if (i >= 0 && (best == 0.0 || ls_clock_seconds() - start < best)) best = ls_clock_seconds() - start;
    }
    if (b->rank == 0)
        printf("  %-34s %10.3f ms %10.2f GB/s of the array\n", name, 1e3 * best, 4e-9 * (double)x->n / best);
}

static void time_exchanges(bench *b) {
    static const int64_t buffers[] = {16 << 20, 64 << 20, 256 << 20};
    const int64_t all = ls_trainer_state(b->trainer)->parameters->n_elements;
    exchange_bench x = {.n = all < PIECE ? all : PIECE};
    const int64_t most = x.n + b->ranks * ls_comm_buffer_min(b->ranks);
    ls_error err;
    if (b->comm == NULL) return;
    for (int32_t r = 0; r <= b->ranks; r++) x.begins[r] = x.n / b->ranks * r + x.n % b->ranks * r / b->ranks;
    must(b, ls_memory_alloc(b->device, (void **)&x.values, x.n, 4, "exchange", &err), &err);
    must(b, ls_memory_alloc(b->device, (void **)&x.buffer, most, 4, "exchange", &err), &err);
    if (b->rank == 0)
        printf("exchanges alone, %lld of %lld float32 elements, over %s\n", (long long)x.n, (long long)all,
               ls_comm_transport(b->comm));
    for (size_t i = 0; i < sizeof buffers / sizeof buffers[0] && x.n_buffer < most; i++) {
        x.n_buffer = buffers[i] < most ? buffers[i] : most;
        if (b->rank == 0) printf(" through %.0f MB on each rank\n", 4e-6 * (double)x.n_buffer);
        time_exchange(b, &x, "slices to their owners, not added", move_only);
        time_exchange(b, &x, "sum by ranges, the tree's order", add_ranges);
        time_exchange(b, &x, "the same, then gathered by all", add_and_gather);
    }
    if (ls_comm_nccl(b->comm) != NULL) time_exchange(b, &x, "all-reduce of NCCL, its order", nccl_sum);
    ls_memory_free(b->device, x.values);
    ls_memory_free(b->device, x.buffer);
}

/* ---- the run ---- */

static void report(bench *b, const double *best, const double *fastest, const ls_comm_use *use) {
    ls_memory_state memory;
    ls_error err;
    const double drawn = (double)b->n_drawn, all = (double)(b->offsets[b->n] + b->n);
    const double tokens[N_PARTS] = {drawn, 0, all, all, 0, 0, drawn};
    must(b, ls_device_memory(b->device, &memory, &err), &err);
    printf("%-12s %12s %12s %14s %8s\n", "part", "ms", "fastest rank", "tokens/s", "share");
    for (int k = 0; k < N_PARTS; k++) {
        printf("%-12s %12.3f %12.3f ", part_names[k], 1e3 * best[k], 1e3 * fastest[k]);
        if (tokens[k] > 0)
            printf("%14.0f", tokens[k] / best[k]);
        else
            printf("%14s", "");
        printf(" %7.1f%%\n", 100.0 * best[k] / best[STEP]);
    }
    if (b->comm != NULL)
        printf("exchange is within update; rank 0 sent %.3f MB and received %.3f MB a step\n", 1e-6 * (double)use->sent,
               1e-6 * (double)use->received);
    printf(
        "masters, weights, moments, gradients of a rank %.4g GB, all it has %.4g GB, and %.4g GB of the host's "
        "memory\n",
        1e-9 * (double)ls_trainer_bytes(b->trainer), 1e-9 * (double)memory.used_max, 1e-9 * (double)memory.pinned);
    printf("log-probabilities that differ %lld\n", (long long)b->n_differing);
}

/* Weights in bf16 may not have moved in a few steps: masters and moments have. */
static uint64_t digest_of(bench *b) {
    const ls_train_state *state = ls_trainer_state(b->trainer);
    uint64_t weights, optimizer;
    ls_error err;
    must(b, ls_parameters_digest(state->parameters, &weights, &err), &err);
    must(b, ls_train_state_digest(state, &optimizer, &err), &err);
    weights = ls_fnv_mix(weights, &optimizer, (int64_t)sizeof optimizer);
    return ls_fnv_mix(weights, b->tokens, b->n * b->length * (int64_t)sizeof *b->tokens);
}

static void close_rank(bench *b) {
    void *const arrays[] = {b->requests, b->tokens, b->logprobs, b->drawn, b->rows, b->targets, b->offsets, b->order};
    ls_trainer_free(b->trainer);
    ls_engine_free(b->engine);
    ls_comm_close(b->comm);
    ls_model_close(b->model);
    ls_device_close(b->device);
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++) free(arrays[i]);
}

/* NCCL refuses two ranks of a host on one GPU, and tells hosts apart by this. */
static void name_host(int32_t rank) {
    char name[32];
    snprintf(name, sizeof name, "rank-%d", rank);
    if (setenv("NCCL_HOSTID", name, 1) != 0) quit(2, "cannot name rank %d's host", rank);
}

static int run_rank(const options *o, int32_t rank, const char *address) {
    bench b = {.o = o, .rank = rank, .ranks = (int32_t)o->ranks, .n = o->prompts * o->samples};
    double best[N_PARTS] = {0}, fastest[N_PARTS] = {0};
    ls_comm_use use = {0};
    uint64_t digest;
    ls_error err;
    if (o->apart) name_host(rank);
    b.length = o->prompt + o->new_tokens;
    b.begin = rank * b.n / o->ranks;
    b.end = (rank + 1) * b.n / o->ranks;
    open_rank(&b, address);
    must(&b, open_engine(&b, &err), &err);
    must(&b, open_trainer(&b, &err), &err);
    if (rank == 0)
        printf("%s: %.4g billion parameters; %s; %lld ranks over %s; %lld x %lld sequences of %lld + %lld tokens\n",
               o->directory, 1e-9 * (double)b.model->n_parameters, b.choice.text, (long long)o->ranks,
               b.comm == NULL ? "nothing" : ls_comm_transport(b.comm), (long long)o->prompts, (long long)o->samples,
               (long long)o->prompt, (long long)o->new_tokens);
    for (int64_t i = 0; i <= o->steps; i++) {
        const ls_comm_use before = used(&b);
        step(&b, i);
        if (i == 0 || (best[STEP] > 0 && b.seconds[STEP] >= best[STEP])) continue;
        memcpy(best, b.seconds, sizeof best);
        memcpy(fastest, b.fastest, sizeof fastest);
        use = (ls_comm_use){0, used(&b).sent - before.sent, used(&b).received - before.received};
    }
    digest = digest_of(&b);
    if (rank == 0) report(&b, best, fastest, &use);
    time_exchanges(&b);
    if (rank == 0) printf("digest %016llx\n", (unsigned long long)digest);
    fflush(stdout);
    must(&b, ls_trainer_end(b.trainer, &err), &err);
    close_rank(&b);
    return b.n_differing == 0 ? 0 : 3;
}

/* A port that was free a moment ago. */
static void choose_address(char out[64]) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof a) != 0 || getsockname(fd, (struct sockaddr *)&a, &n) != 0)
        quit(2, "no port is free");
    close(fd);
    snprintf(out, 64, "127.0.0.1:%d", (int)ntohs(a.sin_port));
}

/* Before the first rank is started nothing has touched a device. */
int main(int argc, char **argv) {
    const options o = read_options(argc, argv);
    char address[64];
    int code = 0;
    choose_address(address);
    for (int32_t r = 1; r < o.ranks; r++) {
        const pid_t child = fork();
        if (child < 0) quit(2, "cannot start rank %d", r);
        if (child == 0) _exit(run_rank(&o, r, address));
    }
    code = run_rank(&o, 0, address);
    for (int32_t r = 1; r < o.ranks; r++) {
        int status;
        if (wait(&status) > 0 && status != 0 && code == 0) code = WIFEXITED(status) ? WEXITSTATUS(status) : 2;
    }
    return code;
}
