/* The table and what its values mean to the trainer. */
#include "train/train_options.h"

#include <math.h>
#include <string.h>

#include "base/fnv.h"
#include "base/host_memory.h"
#include "base/parallel.h"
#include "model/layer_buffer.h"
#include "model/shared_weights.h"
#include "op/lora.h"
#include "op/planned.h"
#include "train/balance.h"
#include "train/run_checkpoint.h"

static const char *const dtypes[] = {[LS_F32] = "f32", [LS_BF16] = "bf16", NULL};
static const char *const types[] = {"f32", "bf16", [LS_TRAIN_DTYPE_AUTO] = "auto", NULL};
static const char *const profiles[] = {"exact", "mma16", [LS_TRAIN_PROFILE_AUTO] = "auto", NULL};
static const char *const schedules[] = {"constant", "linear", "cosine", NULL};
static const char *const transports[] = {[LS_TRANSPORT_TCP] = "tcp", [LS_TRANSPORT_NCCL] = "nccl", NULL};
static const char *const leaves[] = {[LS_LEAVES_BY_NUMBER] = "by_number", [LS_LEAVES_BY_LENGTH] = "by_length", NULL};
static const char *const weights[] = {[LS_WEIGHTS_WHOLE] = "whole", [LS_WEIGHTS_BY_LAYER] = "by_layer", NULL};
static const char *const switches[] = {"auto", "false", "true", NULL};
static const char *const places[] = {
    [LS_MOMENTS_AUTO] = "auto", [LS_MOMENTS_ON_DEVICE] = "device", [LS_MOMENTS_ON_HOST] = "host", NULL};
static const char *const isas[] = {"best", "generic", "avx2", "avx512", NULL};

#define AT(field) offsetof(ls_train_options, field)
#define TEXT(name, field, help) \
    { name, LS_OPTION_TEXT, false, AT(field), 0, 0, NULL, help }
#define INT(name, bits, field, low, high, help) \
    { name, LS_OPTION_INT, bits, AT(field), low, high, NULL, help }
#define NUMBER(name, bits, field, low, high, help) \
    { name, LS_OPTION_NUMBER, bits, AT(field), low, high, NULL, help }
#define SWITCH(name, field, help) \
    { name, LS_OPTION_SWITCH, false, AT(field), 0, 0, NULL, help }
#define CHOICE(name, bits, field, choices, help) \
    { name, LS_OPTION_CHOICE, bits, AT(field), 0, 0, choices, help }

#define STEPS_MAX 1e12
#define SEQUENCES_MAX 1048576

static const ls_option rows[] = {
    TEXT("model", model, "Checkpoint directory to begin with"),
    TEXT("run", run, "Directory of the run: checkpoints and metrics.jsonl; it is made where it is missing"),
    {"seed", LS_OPTION_SEED, true, AT(seed), 0, 0, NULL, "Seed of all random draws"},
    CHOICE("dtype", true, dtype, types,
           "Type of activations: f32, bf16, or auto: bf16 where the weights are and the device has products of the "
           "profile mma16, else f32"),
    CHOICE("profile", true, profile, profiles,
           "How dense products are summed: exact, or mma16, with dtype=bf16 and weights in bf16 (auto: mma16 on a GPU "
           "where both are bf16 and the model has its gradient, else exact; a run that goes on keeps its own)"),
    INT("leaf", true, leaf, 0, SEQUENCES_MAX,
        "Sequences whose gradient is one ordered computation (0: an update has 8 leaves, of a model whose gradients "
        "are "
        "large fewer, down to 2: docs/reference/plans.md)"),
    CHOICE(
        "leaves", true, leaves, leaves,
        "Which sequences of an update share a leaf: by_number, neighbours, or by_length, so that leaves, and with them "
        "the processes, have about as many tokens each"),
    CHOICE("schedule", true, schedule, schedules, "Learning rate behind the warm-up: constant, linear or cosine"),
    NUMBER("rate", true, rate, 0, 1e3, "Largest learning rate"),
    NUMBER("rate_floor", true, rate_floor, 0, 1e3, "Learning rate at the end of a linear or cosine schedule"),
    INT("warmup", true, warmup, 0, STEPS_MAX, "Steps over which the learning rate rises to its largest"),
    INT("schedule_steps", true, schedule_steps, 0, STEPS_MAX, "Step at which the schedule ends (0: steps)"),
    NUMBER("beta1", true, beta1, 0, 1, "AdamW: decay of the first moment, below 1"),
    NUMBER("beta2", true, beta2, 0, 1, "AdamW: decay of the second moment, below 1"),
    NUMBER("eps", true, eps, 0, 1, "AdamW: eps, above 0"),
    NUMBER("decay", true, decay, 0, 1e3, "AdamW: weight decay of matrices, embedding and convolution taps"),
    CHOICE("moments", true, moments, dtypes,
           "AdamW: type that both moments are stored in, f32, or bf16, rounded by random numbers of the seed"),
    NUMBER("clip", true, clip, 0, 1e30, "Largest norm of a gradient (0: no limit)"),
    INT("lora_rank", true, lora_rank, 0, LS_LORA_RANK_MAX,
        "Train adapters of this rank, merged into the weights, instead of the weights (0: the weights)"),
    NUMBER("lora_alpha", true, lora_alpha, 0, 1e6, "Of adapters: their product counts lora_alpha / lora_rank times"),
    {"lora_targets", LS_OPTION_TEXT, true, AT(lora_targets), 0, 0, NULL,
     "Of adapters: names of modules, in_proj,o_proj, or all-linear, as PEFT has them"},
    INT("steps", false, steps, 0, STEPS_MAX, "Steps of the run (0: of sft, by epochs)"),
    INT("save_every", false, save_every, 0, STEPS_MAX, "Steps between checkpoints (0: only the last step's)"),
    SWITCH("save_behind", save_behind,
           "Go on while a checkpoint is written, from a copy in the host's memory; it counts when it is complete"),
    INT("keep", false, keep, 0, STEPS_MAX, "Checkpoints that stay, the newest (0: all)"),
    SWITCH("resume", resume, "Go on from the newest checkpoint of the run, where it has one"),
    SWITCH("new_schedule", new_schedule,
           "Of a resumed run: schedule, rate, rate_floor, warmup and schedule_steps may be others than before"),
    INT("microbatch", false, microbatch, 1, SEQUENCES_MAX, "Leaves of one forward, at most"),
    INT("rows", false, rows, 0, 1 << 30,
        "Tokens of one forward, at most; a leaf that has more takes several (0: what fits the device)"),
    CHOICE("recompute", false, recompute, switches,
           "Compute activations again in the backward instead of keeping them: false, true, or auto, by what fits"),
    CHOICE(
        "sleep", false, sleep, switches,
        "Rollout engine and trainer sleep in turn, each giving back what it alone needs of the device's memory: false, "
        "true, or auto, by what fits"),
    CHOICE(
        "moments_on", false, moments_on, places,
        "Where both moments are: device, host, in pinned memory that each update goes through, or auto, by what fits"),
    INT("gradients", false, gradients, 0, 64,
        "Gradients of leaves and of sums of leaves that the device holds at a time, at most; the others wait in the "
        "host's "
        "memory (0: what fits)"),
    INT("threads", false, threads, 0, LS_THREADS_MAX, "Threads (0: all processors)"),
    CHOICE("isa", false, isa, isas, "Instruction set: best, generic, avx2 or avx512"),
    TEXT("device", device, "Where to compute: auto, cpu, cuda or cuda:N (auto: a GPU where this build can use one)"),
    INT("rank", false, rank, 0, LS_RANKS_MAX - 1, "Number of this process among those that share a step"),
    INT("ranks", false, ranks, 1, LS_RANKS_MAX, "Processes that share a step"),
    TEXT("address", address, "HOST:PORT of rank 0, with more than one process"),
    NUMBER("timeout", false, timeout, 0.001, 1e6, "Seconds after which a silent process is given up"),
    CHOICE("launcher", false, launcher, ls_launcher_names,
           "Whose environment says which process this is: auto, none, torchrun, mpirun or srun (auto: whichever is "
           "there)"),
    CHOICE("transport", false, transport, transports,
           "How device memory gets from process to process: tcp, or nccl between GPUs"),
    CHOICE("weights", false, weights, weights,
           "Of several processes on one machine: whole, each has all weights, or by_layer, each has its share of those "
           "of layers and gets a layer's just before it is used"),
};

void ls_train_options_init(ls_train_options *options) {
    const ls_train_options defaults = {.dtype = LS_TRAIN_DTYPE_AUTO,
                                       .profile = LS_TRAIN_PROFILE_AUTO,
                                       .schedule = LS_RATE_COSINE,
                                       .rate = 1e-4,
                                       .beta1 = 0.9,
                                       .beta2 = 0.95,
                                       .eps = 1e-8,
                                       .decay = 0.1,
                                       .clip = 1.0,
                                       .lora_alpha = 16,
                                       .lora_targets = "all-linear",
                                       .save_every = 100,
                                       .keep = 2,
                                       .microbatch = 4,
                                       .device = LS_DEVICE_AUTO,
                                       .ranks = 1,
                                       .timeout = 600};
    *options = defaults;
}

ls_option_table ls_train_option_table(ls_train_options *options) {
    const ls_option_table table = {rows, (int64_t)(sizeof rows / sizeof rows[0]), options};
    return table;
}

/* Of a gradient of the whole model, bytes: so many of all that are there at once. */
#define GRADIENTS_BYTES 26e9
/* Leaves of an update: one for each GPU of a machine. */
#define LEAVES 8

int64_t ls_train_options_leaf(int64_t sequences, int64_t n_parameters) {
    const double gradient = 4.0 * (double)n_parameters;
    int64_t n = LEAVES, levels = 3;
    while (gradient <= GRADIENTS_BYTES && n > 2 && (double)(levels + 1) * gradient > GRADIENTS_BYTES) {
        n /= 2;
        levels--;
    }
    return (sequences - 1) / n + 1;
}

ls_status ls_train_options_choose_leaf(ls_train_options *o, int64_t sequences, const char *directory, ls_error *err) {
    const ls_planned_opts paper = {.title = "paper"};
    ls_device *device = NULL;
    ls_model *model = NULL;
    ls_status status = LS_OK;
    if (o->leaf > 0) return LS_OK;
    LS_TRY_DONE(ls_device_open_planned(&device, &paper, err));
    LS_TRY_DONE(ls_model_open(&model, device, directory, err));
    o->leaf = ls_train_options_leaf(sequences, model->n_parameters);
done:
    ls_model_close(model);
    ls_device_close(device);
    return status;
}

/* Of the memory that is available so much may be pinned: the rest is for files, judges and copies of checkpoints. */
#define PINNED_SHARE 0.8

int64_t ls_train_options_host_bytes(const ls_train_options *o) {
    return (int64_t)(PINNED_SHARE * (double)ls_host_memory_available()) / o->own_rank.ranks;
}

void ls_train_options_cards(ls_train_options *o, const ls_train_target *target) {
    if (target->n_cards == 0) return;
    o->rank = 0;
    o->ranks = target->n_cards;
    o->launcher = LS_LAUNCHER_NONE;
    snprintf(o->address, sizeof o->address, "paper:1"); /* nobody is met */
}

ls_status ls_train_options_target(const ls_card **card, int64_t *total, int64_t *taken, ls_train_options *o,
                                  const ls_train_target *target, ls_error *err) {
    ls_device_choice choice;
    ls_device *device = NULL;
    ls_memory_state memory;
    ls_status status = LS_OK;
    *card = target->card;
    *total = *taken = 0;
    if (target->card != NULL) {
        *total = target->card->bytes;
        *taken = LS_CARD_TAKEN;
        return LS_OK;
    }
    LS_TRY_DONE(ls_train_options_device(&device, &choice, o, err));
    LS_TRY_DONE(ls_device_memory(device, &memory, err));
    if (!memory.is_limited) {
        status = LS_FAIL(err, LS_ERR_ARG, "device: %s has the host's memory, which is not planned for; name a card: %s",
                         choice.name, ls_card_names());
        goto done;
    }
    *total = memory.total;
    *taken = memory.total - memory.free;
    *card = ls_card_like(device, memory.total);
done:
    ls_device_close(device);
    return status;
}

void ls_train_options_wish(ls_train_wish *out, const ls_train_options *o) {
    out->rows = o->rows;
    out->recompute = o->recompute == 0 ? -1 : o->recompute == 1 ? 0 : LS_RECOMPUTE_ALL;
    out->moments_on_host = o->moments_on - 1;
    out->sleeps = o->sleep - 1;
    out->gradients = o->gradients;
    out->leaf = o->leaf;
}

/* The profile is in the numerics and the type of moments in their tensors, which must be the same as well; runs that
 * are older than these names lack the options. */
const char *const *ls_train_options_free(const ls_train_options *o) {
    static const char *const names[] = {"profile", "moments",        "schedule", "rate", "rate_floor",
                                        "warmup",  "schedule_steps", "dtype",    NULL};
    static const char *const reported[] = {"profile", "dtype", "moments", NULL};
    return o->new_schedule ? names : reported;
}

/* Where the run goes on, the model comes from one of its checkpoints, which tells both. */
static ls_status choose_numerics(ls_train_options *o, const ls_model *model, const char *directory, ls_error *err) {
    ls_profile profile = LS_PROFILE_EXACT;
    ls_dtype dtype = LS_F32;
    if (o->resume && strcmp(directory, o->model) != 0 &&
        (o->profile == LS_TRAIN_PROFILE_AUTO || o->dtype == LS_TRAIN_DTYPE_AUTO)) {
        LS_TRY(ls_saves_numerics(&profile, &dtype, directory, err));
    } else if (o->profile == LS_TRAIN_PROFILE_AUTO) {
        profile = ls_model_default_profile(model, o->dtype == LS_F32 ? LS_F32 : LS_BF16);
        dtype = profile == LS_PROFILE_MMA16 ? LS_BF16 : LS_F32;
    } else {
        dtype = o->profile == LS_PROFILE_MMA16 ? LS_BF16 : LS_F32;
    }
    if (o->profile == LS_TRAIN_PROFILE_AUTO) o->profile = (int32_t)profile;
    if (o->dtype == LS_TRAIN_DTYPE_AUTO) o->dtype = (int32_t)dtype;
    return LS_OK;
}

ls_status ls_train_options_open(ls_model **out, ls_device *device, const char *directory, ls_weights_kind kind,
                                bool decodes, ls_train_options *o, ls_error *err) {
    const ls_model_loading how = {.by_layer = kind == LS_WEIGHTS_BY_LAYER, .no_tiles = !decodes};
    LS_TRY(ls_model_open_with(out, device, directory, &how, err));
    LS_TRY(choose_numerics(o, *out, directory, err));
    return ls_model_set_profile(*out, (ls_profile)o->profile, (ls_dtype)o->dtype, err);
}

void ls_train_options_numerics(char text[LS_NUMERICS_BYTES], const ls_train_options *o) {
    ls_numerics_text(text, (ls_profile)o->profile, (ls_dtype)o->dtype);
}

void ls_train_options_tell_weights(FILE *file, const ls_parameters *p) {
    const int64_t buffer = 2 * ls_layer_buffer_bytes(p->model),
                  own = p->shared == NULL ? 0 : ls_shared_weights_bytes(p->shared);
    int64_t all = 0;
    if (file == NULL || p->shared == NULL) return;
    for (int64_t i = 0; i < p->n; i++)
        if (!ls_parameter_is_whole(p, &p->list[i])) all += p->list[i].n_elements * ls_dtype_bytes(p->list[i].dtype);
    fprintf(file,
            "weights by layer: embedding, last norm and head whole, %.1f MB; of the layers' %.1f MB a share of %.1f MB "
            "and a buffer of two layers, %.1f MB\n",
            (double)(p->model->device_bytes - buffer) * 1e-6, (double)all * 1e-6, (double)own * 1e-6,
            (double)buffer * 1e-6);
}

void ls_train_options_tell(FILE *file, const ls_device_choice *choice, const ls_train_options *o) {
    if (file != NULL) fprintf(file, "device: %s; profile %s\n", choice->text, ls_profile_name((ls_profile)o->profile));
}

ls_isa ls_train_options_isa(const ls_train_options *o) { return o->isa == 0 ? ls_isa_best() : (ls_isa)(o->isa - 1); }

ls_status ls_train_options_device(ls_device **out, ls_device_choice *choice, const ls_train_options *o, ls_error *err) {
    const ls_device_wish wish = {.name = o->device,
                                 .n_threads = o->threads == 0 ? ls_cpu_count() : (int32_t)o->threads,
                                 .isa = ls_train_options_isa(o),
                                 .rank = o->own_rank.rank,
                                 .ranks = o->own_rank.ranks,
                                 .local = o->own_rank.local};
    return ls_device_open_wished(out, choice, &wish, err);
}

static ls_rate rate_of(const ls_train_options *o) {
    const ls_rate rate = {(ls_rate_kind)o->schedule, o->rate, o->rate_floor, o->warmup, o->schedule_steps};
    return rate;
}

void ls_train_options_tell_rate(FILE *file, const ls_train_options *o, int64_t done, int64_t updates) {
    const int64_t last = o->schedule_steps - 1; /* that has another rate than the floor */
    const int64_t zero = updates - (done > last ? done : last), left = updates - done;
    if (file == NULL || o->schedule == LS_RATE_CONSTANT || o->rate_floor > 0 || zero <= 0 || zero * 10 < left) return;
    fprintf(file,
            "%lld of %lld updates have rate 0 and teach nothing: schedule=%s ends at rate_floor=0 in update %lld; set "
            "%sschedule=constant, rate_floor or schedule_steps\n",
            (long long)zero, (long long)left, ls_rate_name((ls_rate_kind)o->schedule), (long long)o->schedule_steps,
            done > 0 && !o->new_schedule ? "new_schedule=true, perhaps with " : "");
}

void ls_train_options_tell_adapters(FILE *file, const ls_parameters *p) {
    bool is_refused = false, is_passed_over = false;
    for (int64_t i = 0; file != NULL && i < p->n; i++) {
        is_refused = is_refused || strstr(p->list[i].slot.name, ".mixer.out_proj.lora_") != NULL;
        is_passed_over = is_passed_over || strstr(p->list[i].slot.name, ".mamba.dt_proj.lora_") != NULL;
    }
    if (is_refused)
        fputs(
            "PEFT refuses adapters of out_proj in models of this kind; name other lora_targets if it is to load them, "
            "or pass on what lockstep merge makes\n",
            file);
    if (is_passed_over)
        fputs(
            "transformers computes Jamba's dt_proj without its adapter until PEFT, or lockstep merge, has merged it\n",
            file);
}

/* Which process this one is. */
static ls_status find_own_rank(ls_train_options *o, ls_error *err) {
    ls_own_rank *p = &o->own_rank;
    if (o->rank >= o->ranks)
        return LS_FAIL(err, LS_ERR_ARG, "rank: %lld of %lld", (long long)o->rank, (long long)o->ranks);
    *p = (ls_own_rank){.rank = o->rank, .ranks = o->ranks};
    snprintf(p->address, sizeof p->address, "%s", o->address);
    LS_TRY(ls_own_rank_find(p, (ls_launcher)o->launcher, LS_RANKS_MAX, err));
    if (p->ranks > 1 && p->address[0] == '\0')
        return LS_FAIL(err, LS_ERR_ARG, "address: missing; %lld processes meet there%s", (long long)p->ranks,
                       p->launcher == LS_LAUNCHER_NONE ? "" : ", unless MASTER_ADDR and MASTER_PORT say where");
    return LS_OK;
}

ls_status ls_train_options_comm(ls_comm **out, const ls_train_options *o, ls_device *device, uint64_t identity,
                                ls_error *err) {
    const ls_own_rank *p = &o->own_rank;
    const ls_comm_opts comm = {
        (int32_t)p->rank, (int32_t)p->ranks, p->address, o->timeout, (ls_transport_kind)o->transport, device};
    *out = NULL;
    identity = ls_fnv_mix(identity, &o->weights, (int64_t)sizeof o->weights); /* what they exchange depends on it */
    return p->ranks > 1 ? ls_comm_open(out, &comm, identity, err) : LS_OK;
}

ls_status ls_train_options_check(ls_train_options *o, ls_error *err) {
    ls_rate rate;
    if (o->model[0] == '\0') return LS_FAIL(err, LS_ERR_ARG, "model: missing; it names a checkpoint directory");
    if (o->run[0] == '\0') return LS_FAIL(err, LS_ERR_ARG, "run: missing; it names the directory of the run");
    LS_TRY(find_own_rank(o, err));
    if (ls_device_name_check(o->device, err) != LS_OK) {
        ls_error_prefix(err, "device");
        return LS_ERR_ARG;
    }
    if (!ls_isa_available(ls_train_options_isa(o)))
        return LS_FAIL(err, LS_ERR_UNSUPPORTED, "isa: this processor has no %s", ls_isa_name(ls_train_options_isa(o)));
    if (o->weights == LS_WEIGHTS_BY_LAYER && o->own_rank.ranks == 1)
        return LS_FAIL(err, LS_ERR_ARG, "weights: by_layer with one process, which has nobody to share them with");
    if (o->lora_rank > 0 && o->own_rank.ranks > 1)
        return LS_FAIL(err, LS_ERR_UNSUPPORTED, "lora_rank: %lld with %lld processes; adapters are trained by one",
                       (long long)o->lora_rank, (long long)o->own_rank.ranks);
    if (o->lora_rank > 0 && !(o->lora_alpha > 0)) return LS_FAIL(err, LS_ERR_ARG, "lora_alpha: it is not above 0");
    if (o->steps == 0) return LS_OK;
    if (o->schedule == LS_RATE_CONSTANT)
        o->schedule_steps = 0;
    else if (o->schedule_steps == 0)
        o->schedule_steps = o->steps;
    rate = rate_of(o);
    return ls_rate_check(&rate, err);
}

const char *ls_train_options_weights(const ls_train_options *o, const char *begin) {
    return o->lora_rank > 0 ? o->model : begin;
}

ls_status ls_train_options_order(int64_t *order, const int64_t *lengths, int64_t n, const ls_train_options *o,
                                 ls_error *err) {
    if (o->leaves == LS_LEAVES_BY_LENGTH) return ls_balance(order, lengths, n, o->leaf, err);
    for (int64_t i = 0; i < n; i++) order[i] = i;
    return LS_OK;
}

void ls_train_options_trainer(ls_trainer_opts *out, const ls_train_options *o, const ls_train_plan *plan) {
    out->adapters = (ls_adapters_opts){o->lora_rank, o->lora_alpha, o->lora_targets, o->seed};
    out->dtype = (ls_dtype)o->dtype;
    out->leaf = o->leaf;
    out->adamw = (ls_adamw_options){o->rate, o->beta1, o->beta2, o->eps, o->decay};
    out->moments = (ls_dtype)o->moments;
    out->seed = o->seed;
    out->rate = rate_of(o);
    out->max_norm = o->clip > 0 ? o->clip : INFINITY;
    out->microbatch = o->microbatch;
    out->rows_max = plan->rows;
    out->spans_max = plan->spans;
    out->recompute = plan->recompute;
    out->moments_on_host = plan->moments_on_host;
    out->gradients = o->gradients > 0 ? o->gradients : plan->gradients;
}
