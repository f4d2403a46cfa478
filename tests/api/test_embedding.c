/* The public interface as a program uses it: engine, scoring and trainer in one process with the same bits, weights
 * that go from trainer to engine, checkpoints, and every refusal. */
#define _GNU_SOURCE
#include <ftw.h>
#include <math.h>
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <unistd.h>

#include "device.h"
#include "lockstep/train.h"

enum { PROMPTS = 4, SAMPLES = 4, N = PROMPTS * SAMPLES, NEW = 12, LENGTH = 24 };

/* Rollouts as a batch. */
typedef struct rollouts {
    int64_t offsets[N + 1];
    int32_t tokens[N * LENGTH];
    uint8_t mask[N * LENGTH];
    float recorded[N * LENGTH], advantages[N];
    uint64_t weights;
} rollouts;

static lockstep_model *open_model(const char *directory) {
    lockstep_model_options o;
    lockstep_model *model = NULL;
    ls_error err;
    lockstep_model_options_init(&o, sizeof o);
    o.device = "cpu";
    o.threads = 2;
    assert_ok(lockstep_model_open(&model, directory, &o, &err), err);
    return model;
}

static lockstep_engine *open_engine(lockstep_model *model, const char *const *levers, int64_t n) {
    lockstep_engine_options o;
    lockstep_engine *engine = NULL;
    ls_error err;
    lockstep_engine_options_init(&o, sizeof o);
    o.length_max = LENGTH;
    o.seed = 5;
    o.levers = levers;
    o.n_levers = n;
    assert_ok(lockstep_engine_open(&engine, model, &o, &err), err);
    return engine;
}

static lockstep_trainer_options trainer_options(void) {
    lockstep_trainer_options o;
    lockstep_trainer_options_init(&o, sizeof o);
    o.sequences_max = N;
    o.length_max = LENGTH;
    o.rate = 1e-3;
    o.leaf = 2;
    return o;
}

static lockstep_trainer *open_trainer(lockstep_model *model) {
    const lockstep_trainer_options o = trainer_options();
    lockstep_trainer *trainer = NULL;
    ls_error err;
    assert_ok(lockstep_trainer_open(&trainer, model, &o, &err), err);
    return trainer;
}

static int32_t prompt_token(int64_t prompt, int64_t i) { return (int32_t)((prompt * 7 + i * 3 + 1) % 40); }

static void submit_all(lockstep_engine *engine, int64_t max_tokens) {
    int32_t tokens[PROMPTS + 2];
    ls_error err;
    for (uint32_t i = 0; i < N; i++) {
        lockstep_request r;
        int64_t ticket = -1;
        lockstep_request_init(&r, sizeof r);
        r.prompt = i / SAMPLES;
        r.sample = i % SAMPLES;
        r.n_tokens = 2 + (int64_t)r.prompt;
        for (int64_t k = 0; k < r.n_tokens; k++) tokens[k] = prompt_token(r.prompt, k);
        r.tokens = tokens;
        r.max_tokens = max_tokens;
        assert_ok(lockstep_engine_submit(engine, &r, &ticket, &err), err);
        assert_true(ticket >= 0);
    }
}

/* Results come as requests end; in the batch they lie by address. */
static void take_all(lockstep_engine *engine, rollouts *out) {
    int32_t tokens[N][LENGTH];
    float logprob[N][LENGTH];
    int64_t n_new[N], row = 0;
    ls_error err;
    for (int64_t taken_n = 0; taken_n < N; taken_n++) {
        lockstep_result r = {.size = sizeof r};
        bool taken;
        assert_ok(lockstep_engine_take(engine, &r, &taken, &err), err);
        assert_true(taken);
        assert_true(r.finish == LOCKSTEP_FINISH_STOP || r.finish == LOCKSTEP_FINISH_LENGTH);
        const uint32_t i = r.prompt * SAMPLES + r.sample;
        n_new[i] = r.n_tokens;
        memcpy(tokens[i], r.tokens, (size_t)r.n_tokens * sizeof(int32_t));
        memcpy(logprob[i], r.logprob, (size_t)r.n_tokens * sizeof(float));
        out->weights = r.weights[r.n_tokens - 1];
    }
    memset(out->mask, 0, sizeof out->mask);
    for (int64_t i = 0; i < N; i++) {
        out->offsets[i] = row;
        out->advantages[i] = (float)(i % SAMPLES) - 1.5f;
        for (int64_t k = 0; k < 2 + i / SAMPLES; k++) out->tokens[row++] = prompt_token(i / SAMPLES, k);
        for (int64_t k = 0; k < n_new[i]; k++, row++) {
            out->tokens[row] = tokens[i][k];
            out->recorded[row] = logprob[i][k];
            out->mask[row] = 1;
        }
    }
    out->offsets[N] = row;
}

static void generate(lockstep_engine *engine, rollouts *out) {
    ls_error err;
    submit_all(engine, NEW);
    assert_ok(lockstep_engine_run(engine, &err), err);
    take_all(engine, out);
}

static lockstep_batch batch_of(const rollouts *r) {
    lockstep_batch b;
    lockstep_batch_init(&b, sizeof b);
    b.n = N;
    b.offsets = r->offsets;
    b.tokens = r->tokens;
    b.mask = r->mask;
    b.recorded = r->recorded;
    b.advantages = r->advantages;
    return b;
}

/* Differing bits of what was recorded and of `other`, over drawn tokens. */
static int64_t differing(const rollouts *r, const float *other) {
    int64_t n = 0;
    for (int64_t i = 0; i < r->offsets[N]; i++)
        n += r->mask[i] != 0 && memcmp(&r->recorded[i], &other[i], sizeof other[i]) != 0;
    return n;
}

static char folder[64];

static int make_folder(void **state) {
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/lockstep-embedding-XXXXXX");
    return mkdtemp(folder) == NULL;
}

static int remove_one(const char *path, const struct stat *status, int kind, struct FTW *place) {
    (void)status, (void)kind, (void)place;
    return remove(path);
}

static int remove_folder(void **state) {
    (void)state;
    return nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static void engine_scoring_and_trainer_agree_over_steps(void **state) {
    static rollouts r;
    static float scored[N * LENGTH], trained[N * LENGTH];
    lockstep_model *model = open_model(LS_FIXTURES "/jamba-nobias");
    lockstep_engine *engine = open_engine(model, NULL, 0);
    lockstep_trainer *trainer = open_trainer(model);
    ls_error err;
    (void)state;
    for (int64_t step = 1; step <= 3; step++) {
        lockstep_step_stats stats = {.size = sizeof stats};
        generate(engine, &r);
        assert_int_equal(r.weights, step - 1);
        const lockstep_batch b = batch_of(&r);
        assert_ok(lockstep_score(model, r.tokens, r.offsets, N, NULL, scored, &err), err);
        assert_int_equal(differing(&r, scored), 0);
        assert_ok(lockstep_trainer_score(trainer, &b, trained, &err), err);
        assert_int_equal(differing(&r, trained), 0);
        assert_ok(lockstep_trainer_policy(trainer, &b, &stats, &err), err);
        assert_int_equal(stats.step, step);
        assert_int_equal(stats.differing, 0);
        assert_true(stats.compared > N);
        assert_true(stats.ratio_min == 1 && stats.ratio_max == 1 && stats.norm > 0 && isfinite(stats.entropy));
        assert_int_equal(lockstep_trainer_step(trainer), step);
        check_failed(lockstep_engine_tick(engine, NULL, &err), &err, "lockstep_engine_update");
        assert_ok(lockstep_engine_update(engine, &err), err);
    }
    /* The weights have moved. */
    assert_ok(lockstep_score(model, r.tokens, r.offsets, N, NULL, scored, &err), err);
    assert_true(differing(&r, scored) > 0);
    lockstep_model_close(model); /* engine and trainer hold it */
    lockstep_engine_close(engine);
    lockstep_trainer_close(trainer);
}

static void levers_move_no_bit(void **state) {
    static const char *const levers[] = {"batch=2", "chunk=1", "prefix=off", "preempt-every=3"};
    static rollouts a, b;
    lockstep_model *model = open_model(LS_FIXTURES "/jamba-nobias");
    lockstep_engine *one = open_engine(model, NULL, 0), *other = open_engine(model, levers, 4);
    ls_error err;
    (void)state;
    generate(one, &a);
    generate(other, &b);
    assert_memory_equal(a.offsets, b.offsets, sizeof a.offsets);
    assert_memory_equal(a.tokens, b.tokens, (size_t)a.offsets[N] * sizeof a.tokens[0]);
    assert_same_bits(a.recorded, b.recorded, a.offsets[N]);
    assert_ok(lockstep_engine_sleep(one, &err), err);
    generate(one, &b);
    assert_same_bits(a.recorded, b.recorded, a.offsets[N]);
    lockstep_engine_close(one);
    lockstep_engine_close(other);
    lockstep_model_close(model);
}

/* The gate of a policy step: one bit is enough, and nothing has changed then. */
static void a_flipped_bit_stops_the_step(void **state) {
    static rollouts r;
    static float scored[N * LENGTH];
    lockstep_model *model = open_model(LS_FIXTURES "/jamba-nobias");
    lockstep_engine *engine = open_engine(model, NULL, 0);
    lockstep_trainer *trainer = open_trainer(model);
    lockstep_step_stats stats = {.size = sizeof stats};
    int64_t last;
    uint32_t bits;
    ls_error err;
    (void)state;
    generate(engine, &r);
    lockstep_batch b = batch_of(&r);
    last = r.offsets[N] - 1;
    memcpy(&bits, &r.recorded[last], sizeof bits);
    bits ^= 1;
    memcpy(&r.recorded[last], &bits, sizeof bits);
    check_failed(lockstep_trainer_policy(trainer, &b, &stats, &err), &err, "1 of ");
    check_failed(LS_ERR_ARG, &err, "sequence 15");
    assert_int_equal(stats.differing, 1);
    assert_int_equal(lockstep_trainer_step(trainer), 0);
    assert_ok(lockstep_score(model, r.tokens, r.offsets, N, NULL, scored, &err), err);
    assert_int_equal(differing(&r, scored), 1);
    b.check = 0;
    assert_ok(lockstep_trainer_policy(trainer, &b, &stats, &err), err);
    assert_int_equal(stats.differing, 1);
    assert_int_equal(stats.step, 1);
    lockstep_trainer_close(trainer);
    lockstep_engine_close(engine);
    lockstep_model_close(model);
}

static void supervised_steps_learn(void **state) {
    static rollouts r;
    lockstep_model *model = open_model(LS_FIXTURES "/jamba-nobias");
    lockstep_engine *engine = open_engine(model, NULL, 0);
    lockstep_trainer *trainer = open_trainer(model);
    lockstep_step_stats stats = {.size = sizeof stats};
    double first = 0;
    ls_error err;
    (void)state;
    generate(engine, &r);
    const lockstep_batch b = batch_of(&r);
    for (int i = 0; i < 4; i++) {
        assert_ok(lockstep_trainer_sft(trainer, &b, &stats, &err), err);
        if (i == 0) first = stats.loss;
    }
    assert_true(stats.loss < first);
    assert_true(isnan(stats.ratio_mean));
    lockstep_trainer_close(trainer);
    lockstep_engine_close(engine);
    lockstep_model_close(model);
}

/* Two steps, a checkpoint in between: one run, another one that goes on from there, and what is exported. */
static void a_run_that_goes_on_has_the_same_bits(void **state) {
    static rollouts r;
    static float whole[N * LENGTH], resumed[N * LENGTH], exported[N * LENGTH];
    char run[96], path[160], bare[96];
    lockstep_model *model = open_model(LS_FIXTURES "/jamba-nobias");
    lockstep_engine *engine = open_engine(model, NULL, 0);
    lockstep_trainer *trainer = open_trainer(model);
    ls_error err;
    (void)state;
    snprintf(run, sizeof run, "%s/run", folder);
    snprintf(path, sizeof path, "%s/step-00000001", run);
    snprintf(bare, sizeof bare, "%s/model", folder);
    generate(engine, &r);
    const lockstep_batch b = batch_of(&r);
    assert_ok(lockstep_trainer_sft(trainer, &b, NULL, &err), err);
    assert_ok(lockstep_trainer_save(trainer, run, 0, &err), err);
    assert_ok(lockstep_trainer_sft(trainer, &b, NULL, &err), err);
    assert_ok(lockstep_trainer_export(trainer, bare, &err), err);
    assert_ok(lockstep_score(model, r.tokens, r.offsets, N, NULL, whole, &err), err);
    lockstep_trainer_close(trainer);
    check_failed(lockstep_trainer_open(&trainer, model, NULL, &err), &err, "open it again");
    lockstep_engine_close(engine);
    lockstep_model_close(model);

    model = open_model(path);
    trainer = open_trainer(model);
    assert_ok(lockstep_trainer_resume(trainer, &err), err);
    assert_int_equal(lockstep_trainer_step(trainer), 1);
    check_failed(lockstep_trainer_resume(trainer, &err), &err, "already");
    assert_ok(lockstep_trainer_sft(trainer, &b, NULL, &err), err);
    assert_ok(lockstep_score(model, r.tokens, r.offsets, N, NULL, resumed, &err), err);
    assert_same_bits(whole, resumed, r.offsets[N]);
    lockstep_trainer_close(trainer);
    lockstep_model_close(model);

    model = open_model(bare);
    assert_ok(lockstep_score(model, r.tokens, r.offsets, N, NULL, exported, &err), err);
    assert_same_bits(whole, exported, r.offsets[N]);
    lockstep_model_close(model);

    lockstep_trainer_options other = trainer_options();
    other.rate = 2e-3;
    model = open_model(path);
    assert_ok(lockstep_trainer_open(&trainer, model, &other, &err), err);
    check_failed(lockstep_trainer_resume(trainer, &err), &err, "rate");
    check_failed(lockstep_trainer_sft(trainer, &b, NULL, &err), &err, "could not resume");
    check_failed(lockstep_trainer_save(trainer, run, 0, &err), &err, "could not resume");
    lockstep_trainer_close(trainer);
    other.rate = 1e-3;
    other.moments = LS_BF16;
    assert_ok(lockstep_trainer_open(&trainer, model, &other, &err), err);
    check_failed(lockstep_trainer_resume(trainer, &err), &err, "moments: was f32 and is bf16 now");
    lockstep_trainer_close(trainer);
    other.moments = LS_F16;
    check_failed(lockstep_trainer_open(&trainer, model, &other, &err), &err, "moments: 2 is none of 0..1");
    other.moments = LS_F32;
    other.reserved = 1;
    check_failed(lockstep_trainer_open(&trainer, model, &other, &err), &err, "reserved is 1, not 0");
    /* A program that was built before the member. */
    other.size = offsetof(lockstep_trainer_options, moments);
    assert_ok(lockstep_trainer_open(&trainer, model, &other, &err), err);
    assert_ok(lockstep_trainer_resume(trainer, &err), err);
    lockstep_trainer_close(trainer);
    lockstep_model_close(model);
}

/* What a thread does with a model of its own. */
static void *generate_alone(void *out) {
    lockstep_model *model = open_model(LS_FIXTURES "/jamba-nobias");
    lockstep_engine *engine = open_engine(model, NULL, 0);
    generate(engine, out);
    lockstep_engine_close(engine);
    lockstep_model_close(model);
    return NULL;
}

static void threads_have_models_of_their_own(void **state) {
    static rollouts both[2];
    pthread_t threads[2];
    (void)state;
    if (test_defers()) {
        print_message("skipped: threads on a device that is not the CPU\n");
        skip();
    }
    for (int i = 0; i < 2; i++) assert_int_equal(pthread_create(&threads[i], NULL, generate_alone, &both[i]), 0);
    for (int i = 0; i < 2; i++) assert_int_equal(pthread_join(threads[i], NULL), 0);
    assert_memory_equal(both[0].tokens, both[1].tokens, (size_t)both[0].offsets[N] * sizeof both[0].tokens[0]);
    assert_same_bits(both[0].recorded, both[1].recorded, both[0].offsets[N]);
}

/* Sizes tell versions. */
static void structs_of_other_versions(void **state) {
    struct {
        lockstep_model_options known;
        int64_t newer;
    } o;
    lockstep_model *model = NULL;
    ls_error err;
    (void)state;
    lockstep_model_options_init(&o.known, sizeof o);
    o.known.device = "cpu";
    assert_int_equal(o.known.size, sizeof o);
    assert_ok(lockstep_model_open(&model, LS_FIXTURES "/jamba-nobias", &o.known, &err), err);
    lockstep_model_close(model);
    o.newer = 1;
    model = NULL;
    assert_int_equal(lockstep_model_open(&model, LS_FIXTURES "/jamba-nobias", &o.known, &err), LS_ERR_UNSUPPORTED);
    check_failed(LS_ERR_UNSUPPORTED, &err, "lockstep_model_options");
    assert_null(model);
    o.known.size = 4;
    check_failed(lockstep_model_open(&model, LS_FIXTURES "/jamba-nobias", &o.known, &err), &err, "size is 4");
    assert_string_equal(lockstep_version(), LS_VERSION);
    assert_int_equal(lockstep_abi(), LOCKSTEP_ABI);
}

/* What a description of the device that tests run on begins with. */
static const char *device_name(void) {
    const char *name = getenv("LS_TEST_DEVICE");
    return name != NULL ? name : "cpu";
}

static void models_describe_themselves(void **state) {
    lockstep_model *model = open_model(LS_FIXTURES "/jamba-nobias");
    struct {
        lockstep_model_info known;
        int64_t beyond;
    } info = {.known.size = offsetof(lockstep_model_info, layers), .beyond = 7};
    ls_error err;
    (void)state;
    check_failed(lockstep_model_describe(model, &info.known, &err), &err, "lockstep_model_info");
    info.known.size = sizeof info;
    assert_ok(lockstep_model_describe(model, &info.known, &err), err);
    assert_int_equal(info.beyond, 7);
    assert_true(info.known.vocab > 40 && info.known.layers > 0 && info.known.parameters > 0);
    assert_string_equal(info.known.numerics, "exact/2/f32");
    assert_non_null(strstr(info.known.device, device_name()));
    lockstep_model_close(model);
}

static void requests_are_refused_and_cancelled(void **state) {
    static const char *const bad_levers[][2] = {
        {"nothing=1", "nothing"}, {"batch", "NAME=VALUE"}, {"threads=2", "threads"}, {"batch=0", "batch"}};
    const int32_t tokens[] = {1, 2, 100000};
    lockstep_model *model = open_model(LS_FIXTURES "/jamba-nobias");
    lockstep_engine *engine = NULL;
    lockstep_engine_options o;
    lockstep_result result = {.size = sizeof result};
    lockstep_request r;
    bool taken = true;
    int64_t ticket, unfinished;
    ls_error err;
    (void)state;
    for (size_t i = 0; i < sizeof bad_levers / sizeof bad_levers[0]; i++) {
        lockstep_engine_options_init(&o, sizeof o);
        o.levers = &bad_levers[i][0];
        o.n_levers = 1;
        check_failed(lockstep_engine_open(&engine, model, &o, &err), &err, bad_levers[i][1]);
    }
    engine = open_engine(model, NULL, 0);
    assert_ok(lockstep_engine_take(engine, &result, &taken, &err), err);
    assert_false(taken);
    lockstep_request_init(&r, sizeof r);
    check_failed(lockstep_engine_submit(engine, &r, NULL, &err), &err, "NULL");
    r.tokens = tokens;
    r.n_tokens = 3;
    r.max_tokens = 4;
    check_failed(lockstep_engine_submit(engine, &r, NULL, &err), &err, "100000");
    r.n_tokens = 2;
    r.max_tokens = LENGTH;
    check_failed(lockstep_engine_submit(engine, &r, NULL, &err), &err, "length_max is 24");
    r.max_tokens = INT64_MAX;
    check_failed(lockstep_engine_submit(engine, &r, NULL, &err), &err, "length_max is 24");
    r.max_tokens = 4;
    r.repetition_penalty = 0;
    check_failed(lockstep_engine_submit(engine, &r, NULL, &err), &err, "repetition_penalty: 0");
    r.repetition_penalty = 1.2f;
    r.presence_penalty = NAN;
    check_failed(lockstep_engine_submit(engine, &r, NULL, &err), &err, "presence_penalty");
    r.presence_penalty = 0.5f;
    assert_ok(lockstep_engine_submit(engine, &r, &ticket, &err), err);
    check_failed(lockstep_engine_submit(engine, &r, NULL, &err), &err, "not finished");
    assert_ok(lockstep_engine_tick(engine, &unfinished, &err), err);
    assert_int_equal(unfinished, 1);
    check_failed(lockstep_engine_cancel(engine, ticket + 1, &err), &err, "ticket");
    assert_ok(lockstep_engine_cancel(engine, ticket, &err), err);
    assert_ok(lockstep_engine_take(engine, &result, &taken, &err), err);
    assert_true(taken);
    assert_int_equal(result.ticket, ticket);
    assert_int_equal(result.finish, LOCKSTEP_FINISH_CANCEL);
    assert_string_equal(result.error, "");
    r.sample = 1;
    assert_ok(lockstep_engine_submit(engine, &r, NULL, &err), err); /* closed while it waits */
    lockstep_engine_close(engine);
    lockstep_model_close(model);
}

static void batches_and_options_are_refused(void **state) {
    const int64_t offsets[] = {0, 3, 5}, short_one[] = {0, 1, 5}, from_one[] = {1, 3, 5};
    const int32_t tokens[] = {1, 2, 3, 4, 5}, outside[] = {1, 2, -1, 4, 5};
    const uint8_t nothing[] = {1, 0, 0, 1, 0};
    const float numbers[] = {0, 0, 0, 0, 0};
    lockstep_model *model = open_model(LS_FIXTURES "/jamba-nobias");
    lockstep_trainer *trainer = open_trainer(model), *second = NULL;
    lockstep_trainer_options o = trainer_options();
    lockstep_batch b;
    float out[5];
    ls_error err;
    (void)state;
    check_failed(lockstep_trainer_open(&second, model, &o, &err), &err, "not closed");
    lockstep_trainer_close(trainer);
    o.loss = 9;
    check_failed(lockstep_trainer_open(&trainer, model, &o, &err), &err, "loss: 9");
    o = trainer_options();
    o.temperature = 0;
    check_failed(lockstep_trainer_open(&trainer, model, &o, &err), &err, "temperature");
    o.temperature = 1;
    o.kl_weight = -1;
    check_failed(lockstep_trainer_open(&trainer, model, &o, &err), &err, "kl_weight");
    o.kl_weight = 0.1;
    assert_ok(lockstep_trainer_open(&trainer, model, &o, &err), err);
    lockstep_batch_init(&b, sizeof b);
    check_failed(lockstep_trainer_sft(trainer, &b, NULL, &err), &err, "NULL");
    b.n = 2;
    b.tokens = tokens;
    b.offsets = short_one;
    check_failed(lockstep_trainer_sft(trainer, &b, NULL, &err), &err, "sequence 0");
    b.offsets = from_one;
    check_failed(lockstep_trainer_sft(trainer, &b, NULL, &err), &err, "offsets[0]");
    b.offsets = offsets;
    b.tokens = outside;
    check_failed(lockstep_trainer_sft(trainer, &b, NULL, &err), &err, "token 2 is -1");
    b.tokens = tokens;
    b.mask = nothing;
    check_failed(lockstep_trainer_sft(trainer, &b, NULL, &err), &err, "nothing to learn");
    b.mask = NULL;
    check_failed(lockstep_trainer_policy(trainer, &b, NULL, &err), &err, "advantages");
    b.advantages = numbers;
    check_failed(lockstep_trainer_policy(trainer, &b, NULL, &err), &err, "recorded");
    b.recorded = numbers;
    check_failed(lockstep_trainer_policy(trainer, &b, NULL, &err), &err, "reference");
    check_failed(lockstep_score(model, tokens, offsets, 0, NULL, out, &err), &err, "n is 0");
    check_failed(lockstep_advantages(out, numbers, 5, 2, LOCKSTEP_ADVANTAGE_STD, &err), &err, "5");
    lockstep_trainer_close(trainer);
    lockstep_model_close(model);
}

/* Their bits are for the test changes. */
static void changes_are_written(void **state) {
    static const char base[] = LS_FIXTURES "/jamba-nobias";
    char changes[96];
    int64_t bytes;
    ls_error err;
    (void)state;
    snprintf(changes, sizeof changes, "%s/changes", folder);
    assert_ok(lockstep_changes_write(base, base, changes, &bytes, &err), err);
    assert_true(bytes > 0);
    check_failed(lockstep_changes_write(base, base, changes, &bytes, &err), &err, "changes.safetensors");
    snprintf(changes, sizeof changes, "%s/other", folder);
    check_failed(lockstep_changes_write(base, LS_FIXTURES "/llama-odd", changes, &bytes, &err), &err, "compared with");
    check_failed(lockstep_changes_write(base, changes, changes, &bytes, &err), &err, "holds neither");
    check_failed(lockstep_changes_write(base, NULL, changes, &bytes, &err), &err, "NULL");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(engine_scoring_and_trainer_agree_over_steps),
        cmocka_unit_test(levers_move_no_bit),
        cmocka_unit_test(a_flipped_bit_stops_the_step),
        cmocka_unit_test(supervised_steps_learn),
        cmocka_unit_test(a_run_that_goes_on_has_the_same_bits),
        cmocka_unit_test(threads_have_models_of_their_own),
        cmocka_unit_test(structs_of_other_versions),
        cmocka_unit_test(models_describe_themselves),
        cmocka_unit_test(changes_are_written),
        cmocka_unit_test(requests_are_refused_and_cancelled),
        cmocka_unit_test(batches_and_options_are_refused),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
