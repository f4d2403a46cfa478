/* The run: everything is opened, steps follow one another, checkpoints and evaluations between them. */
#define _POSIX_C_SOURCE 200809L
#include "rl/grpo.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/durable.h"
#include "base/file.h"
#include "base/fnv.h"
#include "base/interrupt.h"
#include "base/mem.h"
#include "base/url.h"
#include "op/memory.h"
#include "rl/grpo_state.h"
#include "rl/reward_python.h"
#include "train/stopping.h"

/* ---- checkpoints ---- */

enum { POSITION_STEP, POSITION_DIGEST_LOW, POSITION_DIGEST_HIGH, N_POSITIONS };

typedef struct description {
    ls_saves_description d;
    char numerics[LS_NUMERICS_BYTES];
    ls_saves_position positions[N_POSITIONS];
} description;

static void describe_run(const grpo *g, description *out) {
    ls_train_options_numerics(out->numerics, &g->o->train);
    out->positions[POSITION_STEP] = (ls_saves_position){"step", g->step};
    out->positions[POSITION_DIGEST_LOW] = (ls_saves_position){"digest_low", (int64_t)(g->result->digest & UINT32_MAX)};
    out->positions[POSITION_DIGEST_HIGH] = (ls_saves_position){"digest_high", (int64_t)(g->result->digest >> 32)};
    out->d = (ls_saves_description){
        "grpo", out->numerics, g->data, g->config, ls_train_options_free(&g->o->train), out->positions, N_POSITIONS};
}

static ls_status save_run(grpo *g, ls_error *err) {
    description d;
    describe_run(g, &d);
    if (g->ahead != NULL) LS_TRY(ls_grpo_ahead_save(g, err));
    return ls_saves_save(g->saves, ls_trainer_state(g->trainer), &d.d, g->o->train.keep, err);
}

/* The first line of a run, once nothing is left that could refuse it. */
static void tell_device(const grpo *g) { ls_train_options_tell(g->notes, &g->choice, &g->o->train); }

static ls_status resume_run(grpo *g, ls_error *err) {
    description d;
    ls_train_state *state = ls_trainer_state(g->trainer);
    describe_run(g, &d);
    LS_TRY(ls_saves_load(g->begin, state, &d.d, err));
    if (state->step != g->begin_update)
        return LS_FAIL(err, LS_ERR_FORMAT, "%s/state.json: update %lld", g->begin, (long long)state->step);
    g->step = d.positions[POSITION_STEP].value;
    g->result->digest =
        (uint64_t)d.positions[POSITION_DIGEST_LOW].value | (uint64_t)d.positions[POSITION_DIGEST_HIGH].value << 32;
    if (g->engine != NULL) LS_TRY(ls_engine_set_weights(g->engine, g->model, (uint64_t)state->step, err));
    tell_device(g);
    if (g->progress != NULL) fprintf(g->progress, "going on behind step %lld from %s\n", (long long)g->step, g->begin);
    return LS_OK;
}

/* ---- opening ---- */

static const char *weights_of(const grpo *g) { return ls_train_options_weights(&g->o->train, g->begin); }

/* Where the run begins: at its newest checkpoint, or with the model. */
static ls_status find_beginning(grpo *g, ls_error *err) {
    const ls_train_options *t = &g->o->train;
    int64_t update = -1;
    snprintf(g->checkpoints, sizeof g->checkpoints, "%s/checkpoints", t->run);
    if (ls_grpo_writes(g)) LS_TRY(ls_directory_make(t->run, err));
    LS_TRY(ls_saves_open(&g->saves, g->checkpoints, ls_grpo_writes(g), err));
    /* Without resume only rank 0 looks at the directory, which it has just made. */
    if (ls_grpo_writes(g) || t->resume) LS_TRY(ls_saves_newest(g->saves, &update, g->begin, err));
    if (update >= 0 && !t->resume)
        return LS_FAIL(err, LS_ERR_ARG,
                       "%s: the run has checkpoints, the newest of update %lld; set resume=true to go on, or choose "
                       "another run",
                       t->run, (long long)update);
    if (update >= 0)
        g->begin_update = update;
    else
        snprintf(g->begin, sizeof g->begin, "%s", t->model);
    if (ls_grpo_writes(g)) LS_TRY(ls_saves_keep_files(g->saves, weights_of(g), err));
    return LS_OK;
}

/* A judge or an environment; without a command and a URL *out stays NULL. */
static ls_status open_source(ls_reward **out, const ls_grpo_options *o, const char *command, const char *command_name,
                             const char *url, const char *url_name, ls_error *err) {
    if (command[0] != '\0') {
        char whole[2 * LS_OPTION_TEXT_MAX];
        ls_reward_command_options c;
        ls_reward_command_init(&c);
        LS_TRY(ls_url_complete(whole, sizeof whole, command, command_name, err)); /* a URL in it, where there is one */
        c.command = whole;
        c.window = o->reward_concurrency;
        c.silence_s = o->reward_timeout;
        return ls_reward_command_open(out, &c, err);
    }
    if (url[0] != '\0') {
        ls_reward_http_options h;
        ls_reward_http_init(&h);
        h.url = url;
        h.name = url_name;
        h.batch = o->reward_batch;
        h.concurrency = o->reward_concurrency;
        h.timeout_s = o->reward_timeout;
        return ls_reward_http_open(out, &h, err);
    }
    return LS_OK;
}

/* A function or class of Python's. */
static ls_status open_python(ls_reward **out, const ls_grpo_options *o, const char *value, bool is_environment,
                             ls_error *err) {
    const ls_reward_python_options p = {.spec = value + sizeof LS_PYTHON_PREFIX - 1,
                                        .python = o->python,
                                        .option = is_environment ? "environment" : "reward",
                                        .is_environment = is_environment,
                                        .takes_none = o->n_judges > 1,
                                        .workers = o->reward_workers,
                                        .timeout_s = o->reward_timeout};
    return ls_reward_python_open(out, &p, err);
}

static ls_status open_judge(ls_judge *out, const ls_grpo_options *o, const ls_grpo_judge *judge, ls_error *err) {
    if (judge->mode == LS_REWARD_PYTHON) return open_python(&out->source, o, judge->spec, false, err);
    if (judge->mode == LS_REWARD_COMMAND)
        LS_TRY(open_source(&out->source, o, o->reward_command, "reward_command", "", "", err));
    if (judge->mode == LS_REWARD_SERVER) LS_TRY(open_source(&out->source, o, "", "", o->reward_url, "reward_url", err));
    if (out->source != NULL && o->n_judges > 1) ls_reward_take_none(out->source);
    return LS_OK;
}

static ls_status open_sources(grpo *g, ls_error *err) {
    const ls_grpo_options *o = g->o;
    for (int64_t j = 0; j < o->n_judges; j++) {
        g->judges[j].weight = o->judges[j].weight;
        g->judges[j].is_environment = o->judges[j].mode == LS_REWARD_ENVIRONMENT;
        if (ls_grpo_writes(g)) LS_TRY(open_judge(&g->judges[j], o, &o->judges[j], err));
    }
    if (!ls_grpo_writes(g)) return LS_OK;
    if (o->environment[0] != '\0') LS_TRY(open_python(&g->environment, o, o->environment, true, err));
    return open_source(&g->environment, o, o->environment_command, "environment_command", o->environment_url,
                       "environment_url", err);
}

/* Whether a prompt leaves a token to draw (ls_data_options). */
static ls_status leaves_room(void *context, bool *leaves, const ls_data_line *line, ls_error *err) {
    const grpo *g = context;
    int32_t *ids = NULL;
    int64_t n = 0;
    LS_TRY(ls_tokenizer_encode(g->tokenizer, line->prompt, line->prompt_bytes, !line->is_chat, &ids, &n, err));
    free(ids);
    *leaves = n < g->o->length;
    return LS_OK;
}

/* A task, or data, of which there must be enough to hold some out where evaluations are asked for. */
static ls_status open_problems(grpo *g, ls_error *err) {
    const ls_grpo_options *o = g->o;
    ls_data_options d = ls_data_options_of(&o->data, o->train.seed);
    int64_t n;
    ls_status status;
    d.fields.max_tokens = o->data_max_tokens;
    g->eval_n = o->eval_n;
    if (o->data.data[0] == '\0' && g->environment != NULL) return LS_OK; /* it has problems of its own */
    if (o->data.data[0] == '\0') {
        status = ls_task_open(&g->task, o->task, o->task_options, o->train.seed, err);
        if (status != LS_OK) ls_error_prefix(err, "task");
        return status;
    }
    d.chat = o->train.model;
    if (o->overlong_prompts == 1) {
        d.keeps = leaves_room;
        d.context = g;
    }
    LS_TRY_DONE(ls_data_open(&g->problems, &d, err));
    n = ls_data_count(g->problems, LS_DATA_HELD_OUT);
    if (o->eval_every > 0 && n == 0)
        status = LS_FAIL(err, LS_ERR_ARG, "eval_every: no line of data is held out; set held_out or eval_data");
    if (n < g->eval_n) g->eval_n = n;
done:
    return status;
}

/* Every answer is looked at now, not when its turn comes. */
static ls_status check_answers(const grpo *g, const ls_verify *verify, ls_error *err) {
    const char *field = g->o->data.answer;
    const ls_data_line *line;
    const char *path;
    for (int64_t i = 0; g->problems != NULL && ls_data_each(g->problems, i, &line, &path); i++) {
        const ls_reply answer = {line->answer, line->answer_bytes};
        const ls_status status = ls_verify_check(verify, answer, line->is_list, err);
        if (status == LS_OK) continue;
        ls_error_prefix(err, "%s: line %lld: %s", path, (long long)line->line, field[0] != '\0' ? field : "answer");
        return status;
    }
    return LS_OK;
}

enum { LINES_LOOKED_AT = 8 };

/* Whether a Python function finds what it needs in one of the data's first lines. A line that lacks it fails its
 * samples later; where all of them do, the run would draw a whole step for nothing. */
static ls_status check_columns(const grpo *g, int64_t judge, ls_error *err) {
    ls_reward_item items[LINES_LOOKED_AT];
    ls_reward_result results[LINES_LOOKED_AT];
    const ls_data_line *line;
    const char *path, *first = NULL;
    int64_t n = 0, number = 0;
    bool any = false;
    for (; g->problems != NULL && n < LINES_LOOKED_AT && ls_data_each(g->problems, n, &line, &path); n++) {
        if (n == 0) number = line->line, first = path;
        items[n] = (ls_reward_item){.problem = line->id,
                                    .op = "check",
                                    .answer = line->answer,
                                    .answer_bytes = line->answer_bytes,
                                    .data = line->whole,
                                    .prompt_messages = line->chat != NULL ? "[]" : NULL};
    }
    if (n == 0) return LS_OK;
    LS_TRY(ls_reward_ask(g->judges[judge].source, results, items, n, err));
    for (int64_t i = 0; i < n; i++) {
        free(results[i].text);
        any = any || results[i].ok;
    }
    return any ? LS_OK : LS_FAIL(err, LS_ERR_ARG, "%s: line %lld: %s", first, (long long)number, results[0].error);
}

static ls_status check_functions(const grpo *g, ls_error *err) {
    for (int64_t j = 0; j < g->o->n_judges; j++) {
        ls_status status = LS_OK;
        if (g->judges[j].source != NULL && g->o->judges[j].mode == LS_REWARD_PYTHON) status = check_columns(g, j, err);
        if (status == LS_OK) continue;
        ls_error_prefix(err, "reward");
        return status;
    }
    return LS_OK;
}

static ls_status open_verifiers(grpo *g, ls_error *err) {
    const ls_grpo_options *o = g->o;
    for (int64_t j = 0; j < o->n_judges; j++) {
        const ls_reward_mode mode = o->judges[j].mode;
        if (mode < LS_REWARD_EXACT || mode > LS_REWARD_JSON) continue;
        LS_TRY(ls_verify_open(&g->judges[j].verify, (ls_verify_kind)(mode - LS_REWARD_EXACT), o->reward_pattern,
                              o->reward_schema, err));
        LS_TRY(check_answers(g, g->judges[j].verify, err));
    }
    return LS_OK;
}

static ls_status open_world(grpo *g, ls_error *err) {
    const ls_grpo_options *o = g->o;
    const char *stop = o->stop;
    ls_status status;
    LS_TRY_DONE(ls_tokenizer_open(&g->tokenizer, weights_of(g), err));
    LS_TRY_DONE(open_sources(g, err));
    LS_TRY_DONE(open_problems(g, err));
    if (stop[0] != '\0' && (status = ls_stop_create(&g->stop, g->tokenizer, &stop, 1, err)) != LS_OK) {
        ls_error_prefix(err, "stop");
        goto done;
    }
    LS_TRY_DONE(open_verifiers(g, err));
    LS_TRY_DONE(check_functions(g, err));
    /* A model without a template may do without: whoever needs it says that it is missing. */
    if (g->environment != NULL && ls_chat_open(&g->chat, o->train.model, NULL, NULL) != LS_OK) g->chat = NULL;
    g->world = (ls_world){.task = g->task,
                          .tokenizer = g->tokenizer,
                          .stop = g->stop,
                          .data = g->problems,
                          .judges = g->judges,
                          .n_judges = o->n_judges,
                          .environment = g->environment,
                          .turns_max = o->environment_turns,
                          .chat = g->chat,
                          .model = o->train.model,
                          .stop_text = stop[0] != '\0' ? stop : NULL};
    LS_TRY_DONE(ls_grpo_draws_create(&g->own_draws, g, err));
    g->draws = &g->own_draws;
    g->episodes = g->draws->episodes;
    if (o->eval_every > 0) LS_TRY_DONE(ls_episodes_create(&g->held_out, g->eval_n, 1, o->length, o->max_tokens, err));
done:
    return status;
}

static ls_status open_reference(grpo *g, ls_error *err) {
    const char *directory = g->o->reference[0] != '\0' ? g->o->reference : g->o->train.model;
    ls_status status;
    if (g->loss.beta == 0) return LS_OK;
    if ((status = ls_train_options_open(&g->reference, g->device, directory, LS_WEIGHTS_WHOLE, false, &g->o->train,
                                        err)) != LS_OK) {
        ls_error_prefix(err, "reference");
        goto done;
    }
    if (g->reference->config.vocab != g->model->config.vocab)
        status = LS_FAIL(err, LS_ERR_ARG, "reference: %s has a vocabulary of %d, the model one of %d", directory,
                         g->reference->config.vocab, g->model->config.vocab);
done:
    return status;
}

/* Of what the options do not tell: the first problems as tokens, and the reference. */
static ls_status digest_data(grpo *g, ls_error *err) {
    LS_TRY(ls_episodes_begin(g->episodes, &g->world, LS_TASK_SPLIT_TRAIN, 0, err));
    g->data = LS_FNV_START;
    for (int64_t s = 0; s < g->episodes->n; s += g->episodes->samples) {
        const ls_episode *x = &g->episodes->list[s];
        g->data = ls_fnv_mix(g->data, x->tokens, x->n * (int64_t)sizeof *x->tokens);
    }
    if (g->problems != NULL) {
        const uint64_t digest = ls_data_digest(g->problems);
        g->data = ls_fnv_mix(g->data, &digest, (int64_t)sizeof digest);
    }
    if (g->reference != NULL)
        LS_TRY(ls_memory_digest(g->device, &g->data, g->reference->embed,
                                (int64_t)g->reference->config.vocab * g->reference->config.hidden *
                                    ls_dtype_bytes(g->reference->embed_dtype),
                                err));
    return LS_OK;
}

/* An engine that draws, or one for held-out problems. */
static bool has_engine(const grpo *g) {
    const ls_grpo_options *o = g->o;
    return o->rollout_url[0] == '\0' && (o->lag == 0 || ls_grpo_draws_here(g->o, g->choice.name) || o->eval_every > 0);
}

static ls_status make_engine(ls_engine **out, const grpo *g, const ls_sampling *sampling, ls_error *err) {
    ls_engine_opts opts = g->engine_opts;
    opts.sampling = *sampling;
    return ls_engine_create(out, g->model, g->device, &opts, err);
}

static ls_status open_engine(grpo *g, ls_error *err) {
    const ls_grpo_options *o = g->o;
    const ls_model_config *c = &g->model->config;
    const ls_sampling sampling = ls_grpo_sampling(o);
    g->engine_opts = (ls_engine_opts){.dtype = (ls_dtype)o->train.dtype,
                                      .length_max = o->length,
                                      .logprob_of = ls_logprob_of_drawn(&sampling),
                                      .sampling = sampling,
                                      .weighs = ls_sampling_truncates(&sampling),
                                      .stop = c->eos,
                                      .n_stop = c->n_eos,
                                      .inject = ls_grpo_inject(o)};
    LS_TRY(ls_grpo_levers(&g->engine_opts.levers, o, err));
    if (g->plan.batch > 0) g->engine_opts.levers.batch = g->plan.batch;
    if (g->plan.prefix_bytes > 0) g->engine_opts.levers.prefix_bytes = g->plan.prefix_bytes;
    if (g->plan.slots > 0) g->engine_opts.levers.slots = g->plan.slots;
    if (g->plan.pages > 0) g->engine_opts.levers.pages = g->plan.pages;
    if (!g->on_paper) g->episodes->weighs = g->engine_opts.weighs;
    if (o->rollout_url[0] != '\0') return g->on_paper ? LS_OK : ls_grpo_open_rollout(g, err);
    if (g->on_paper ? !has_engine(g) : o->lag > 0) return LS_OK;
    return make_engine(&g->engine, g, &sampling, err);
}

static ls_status open_trainer(grpo *g, ls_error *err) {
    const ls_grpo_options *o = g->o;
    const int64_t n = o->prompts * o->samples;
    ls_trainer_opts opts = {
        .temperature = (float)o->temperature, .sequences_max = n, .entropy = true, .n_metrics = LS_GRPO_METRICS};
    const uint64_t identity = ls_config_digest(g->config) ^ g->data;
    ls_train_options_trainer(&opts, &o->train, &g->plan);
    if (ls_grpo_truncates(g)) opts.truncation = &g->engine_opts.sampling;
    if (!ls_mul_i64(o->train.leaf < n ? o->train.leaf : n, o->length, &opts.leaf_rows_max))
        return LS_FAIL(err, LS_ERR_NOMEM, "a leaf of %lld sequences of %lld tokens", (long long)o->train.leaf,
                       (long long)o->length);
    if (g->on_paper)
        LS_TRY(ls_comm_open_on_paper(&g->comm, (int32_t)o->train.own_rank.rank, (int32_t)o->train.own_rank.ranks, err));
    else
        LS_TRY(ls_train_options_comm(&g->comm, &o->train, g->device, identity, err));
    opts.comm = g->comm;
    if (o->prefix == LS_BEGINNINGS_SHARED) {
        opts.group = o->samples;
        opts.longest = o->length;
    }
    LS_TRY(ls_grpo_wake(g, GRPO_TRAINER, err));
    LS_TRY(ls_trainer_create(&g->trainer, g->model, weights_of(g), g->device, &opts, err));
    g->rows_max = opts.rows_max;
    return LS_OK;
}

static ls_status open_grpo_model(grpo *g, ls_error *err) {
    return ls_train_options_open(&g->model, g->device, weights_of(g), (ls_weights_kind)g->o->train.weights,
                                 g->o->rollout_url[0] == '\0', &g->o->train, err);
}

/* An engine for held-out problems, while the first one sleeps: there is memory for one. With a lag that one is never
 * asleep. */
static ls_status open_second(ls_engine **out, grpo *g, const ls_sampling *sampling, ls_error *err) {
    LS_TRY(ls_grpo_wake(g, GRPO_ENGINE, err));
    if (g->engine != NULL && g->o->lag == 0) LS_TRY(ls_engine_sleep(g->engine, err));
    return make_engine(out, g, sampling, err);
}

/* ---- the plan ---- */

static void close_memory(grpo *g) {
    ls_trainer_free(g->trainer);
    ls_comm_close(g->comm);
    ls_engine_free(g->engine);
    ls_model_close(g->reference);
    ls_model_close(g->model);
}

/* What a tick's recordings take is no allocation of the ledger's. */
static ls_status plan_recordings(grpo *g, void **recordings, ls_train_plan *plan, ls_error *err) {
    ls_engine_plan engine;
    if (g->engine == NULL) return LS_OK;
    ls_engine_get_plan(g->engine, &engine);
    plan->slots = engine.slots;
    plan->pages = engine.pages;
    return ls_memory_alloc(g->device, recordings, engine.recording_bytes, 1, "recordings", err);
}

/* What draws is there at once: the engine, or the one for held-out problems while the first one sleeps. */
static ls_status rehearse_draws(grpo *g, ls_error *err) {
    ls_engine *second = NULL;
    ls_status status;
    if (g->engine == NULL) return LS_OK;
    LS_TRY(ls_grpo_wake(g, GRPO_ENGINE, err));
    if (g->o->eval_every == 0 || (g->o->lag > 0 && !ls_grpo_draws_here(g->o, g->choice.name))) return LS_OK;
    status = open_second(&second, g, &g->engine_opts.sampling, err);
    ls_engine_free(second);
    return status == LS_OK ? ls_engine_wake(g->engine, err) : status;
}

/* What the thread of a lag has on the trainer's device: the version that it draws with, and a workspace. */
typedef struct ahead_memory {
    ls_model *model;
    ls_parameters *weights;
    void *workspace;
} ahead_memory;

static ls_status plan_ahead(grpo *g, ahead_memory *out, ls_error *err) {
    const char *directory = weights_of(g);
    if (g->o->lag == 0 || !ls_grpo_draws_here(g->o, g->choice.name)) return LS_OK;
    LS_TRY(ls_train_options_open(&out->model, g->device, directory, LS_WEIGHTS_WHOLE, true, &g->o->train, err));
    LS_TRY(ls_parameters_open_share(&out->weights, out->model, g->device, directory, 1, 1, err));
    return ls_memory_alloc(g->device, &out->workspace, g->device->exec.workspace_bytes, 1, "workspace", err);
}

static void close_ahead(ls_device *device, ahead_memory *ahead) {
    ls_memory_free(device, ahead->workspace);
    ls_parameters_free(ahead->weights);
    ls_model_close(ahead->model);
}

/* As open_all and steps do it, on paper. */
static ls_status rehearse(void *context, ls_device *device, ls_train_plan *plan, ls_train_outlook *out,
                          void (*look)(void *looker, const ls_device *device), void *looker, ls_error *err) {
    const grpo *run = context;
    ls_grpo_options *o = NULL;
    grpo g = *run;
    void *recordings = NULL;
    ahead_memory ahead = {0};
    ls_status status;
    LS_TRY_DONE(ls_array_alloc((void **)&o, 1, sizeof *o, "plan", err));
    *o = *run->o; /* whose profile the model chooses */
    g.o = o;
    g.device = device;
    g.plan = *plan;
    g.on_paper = true;
    LS_TRY_DONE(open_grpo_model(&g, err));
    LS_TRY_DONE(open_reference(&g, err));
    LS_TRY_DONE(open_engine(&g, err));
    LS_TRY_DONE(open_trainer(&g, err));
    LS_TRY_DONE(plan_recordings(&g, &recordings, plan, err));
    LS_TRY_DONE(ls_trainer_rehearse(g.trainer, o->length, err));
    plan->workspace = device->exec.workspace_bytes;
    LS_TRY_DONE(plan_ahead(&g, &ahead, err));
    plan->gradients = ls_trainer_device_gradients(g.trainer);
    *out = ls_trainer_outlook(g.trainer);
    out->slot_bytes = ls_slot_bytes(&g.model->config, (ls_dtype)o->train.dtype,
                                    ls_levers_state_every(&g.engine_opts.levers, &g.model->config, device)) *
                      g.model->config.n_layers;
    look(looker, device);
    LS_TRY_DONE(rehearse_draws(&g, err));
    look(looker, device);
done:
    ls_memory_free(device, recordings);
    close_ahead(device, &ahead);
    close_memory(&g);
    free(o);
    return status;
}

static ls_status make_wish(ls_train_wish *out, const grpo *g, ls_error *err) {
    const ls_grpo_options *o = g->o;
    ls_levers levers;
    LS_TRY(ls_grpo_levers(&levers, o, err));
    ls_train_options_wish(out, &o->train);
    out->batch = levers.batch;
    out->has_engine = has_engine(g);
    if (o->lag > 0) out->sleeps = 0; /* engine and trainer are awake together */
    out->sequences = (o->prompts * o->samples - 1) / o->train.own_rank.ranks + 1;
    out->longest = o->length;
    out->new_tokens = o->max_tokens;
    out->group = o->prefix == LS_BEGINNINGS_SHARED ? o->samples : 0;
    out->group_rows = ls_grpo_group_rows(o);
    return LS_OK;
}

static ls_status choose_leaf(const grpo *g, ls_error *err) {
    ls_grpo_options *o = g->o;
    const int64_t update = (o->prompts - 1) / o->minibatches + 1;
    LS_TRY(ls_train_options_choose_leaf(&o->train, update * o->samples, weights_of(g), err));
    if (o->prefix == LS_BEGINNINGS_SHARED) o->train.leaf = ((o->train.leaf - 1) / o->samples + 1) * o->samples;
    return LS_OK;
}

/* A run on paper of options that are changed, and the memory that it has. */
typedef struct variant {
    grpo g;
    ls_grpo_options o;
    int64_t total, taken;
} variant;

static bool variant_fits(void *context) {
    variant *v = context;
    return make_wish(&v->g.wish, &v->g, NULL) == LS_OK &&
           ls_train_plan_fits(v->g.card, v->total, v->taken, &v->g.wish, rehearse, &v->g);
}

static void suggest(const grpo *g, int64_t total, int64_t taken, ls_error *err) {
    variant *v = calloc(1, sizeof *v);
    if (v == NULL || err == NULL) return;
    v->g = *g;
    v->o = *g->o;
    v->g.o = &v->o;
    v->total = total;
    v->taken = taken;
    ls_train_plan_suggest(err, &v->o.train, &v->o.length, variant_fits, v);
    free(v);
}

static ls_status plan_for(grpo *g, const ls_card *card, int64_t total, int64_t taken, ls_error *err) {
    ls_status status;
    g->card = card;
    LS_TRY(make_wish(&g->wish, g, err));
    if (g->device != NULL) g->wish.host_bytes = ls_train_options_host_bytes(&g->o->train);
    status = ls_train_plan_make(&g->planned, card, total, taken, &g->wish, rehearse, g, err);
    if (status == LS_ERR_CAPACITY) suggest(g, total, taken, err);
    g->plan = g->planned.plan;
    return status;
}

/* The leaf, where the options leave it open, and what carries no bit. */
static ls_status make_plan(grpo *g, ls_error *err) {
    const ls_grpo_options *o = g->o;
    ls_memory_state memory;
    ls_train_wish wish = {0};
    int64_t rows;
    LS_TRY(choose_leaf(g, err));
    LS_TRY(ls_device_memory(g->device, &memory, err));
    if (memory.is_limited) {
        LS_TRY(plan_for(g, ls_card_like(g->device, memory.total), memory.total, memory.total - memory.free, err));
        return ls_device_prepare(g->device, g->plan.workspace, err);
    }
    LS_TRY(make_wish(&wish, g, err));
    if (!ls_mul_i64(o->train.microbatch, o->train.leaf, &rows) || rows > o->prompts * o->samples)
        rows = o->prompts * o->samples;
    if (!ls_mul_i64(rows, o->length, &rows))
        return LS_FAIL(err, LS_ERR_NOMEM, "a forward of sequences of %lld tokens", (long long)o->length);
    g->plan = ls_train_plan_plain(&wish, rows);
    return LS_OK;
}

ls_status ls_grpo_plan(ls_grpo_options *o, const ls_config *config, const ls_train_target *target, FILE *out,
                       ls_error *err) {
    grpo g = {.o = o, .config = config};
    const ls_card *card;
    int64_t total, taken;
    if (o->train.run[0] == '\0') snprintf(o->train.run, sizeof o->train.run, "plan"); /* nothing is made there */
    ls_train_options_cards(&o->train, target);
    LS_TRY(ls_grpo_options_check(o, err));
    LS_TRY(ls_train_options_target(&card, &total, &taken, &o->train, target, err));
    g.loss = ls_grpo_loss(o);
    snprintf(g.begin, sizeof g.begin, "%s", o->train.model);
    LS_TRY(choose_leaf(&g, err));
    LS_TRY(plan_for(&g, card, total, taken, err));
    ls_train_plan_tell(out, &g.planned, g.card, &g.wish);
    return LS_OK;
}

static void print_plan(const grpo *g) {
    const ls_grpo_options *o = g->o;
    char memory[400];
    if (g->progress == NULL) return;
    if (g->problems != NULL && ls_data_left_out(g->problems) > 0)
        fprintf(g->progress, "%lld lines of data are left out: prompts of %lld tokens or more (length)\n",
                (long long)ls_data_left_out(g->problems), (long long)o->length);
    if (g->problems != NULL)
        fprintf(g->progress, "%lld problems to train on, %lld held out\n",
                (long long)ls_data_count(g->problems, LS_DATA_TRAIN),
                (long long)ls_data_count(g->problems, LS_DATA_HELD_OUT));
    fprintf(g->progress,
            "%lld steps of %lld prompts with %lld samples of at most %lld tokens\n"
            "%lld parameters; weights, moments and gradients %.1f MB, forwards of at most %lld tokens\n",
            (long long)o->train.steps, (long long)o->prompts, (long long)o->samples, (long long)o->max_tokens,
            (long long)ls_trainer_state(g->trainer)->parameters->n_elements,
            (double)ls_trainer_bytes(g->trainer) * 1e-6, (long long)g->rows_max);
    if (ls_trainer_host_bytes(g->trainer) > 0)
        fprintf(g->progress, "%.1f MB of gradients and moments wait in the host's memory\n",
                (double)ls_trainer_host_bytes(g->trainer) * 1e-6);
    if (g->planned.n_fit > 0) ls_train_plan_tell(g->progress, &g->planned, g->card, &g->wish);
    ls_saves_tell(g->progress, g->saves);
    ls_train_options_tell_weights(g->progress, ls_trainer_state(g->trainer)->weights);
    ls_memory_tell(g->device, memory, sizeof memory);
    fprintf(g->progress, "%s\n", memory);
    if (g->step > 0 && g->step >= o->train.steps) ls_stop_tell_done(g->progress, g->step, o->train.steps);
    ls_train_options_tell_adapters(g->progress, ls_trainer_state(g->trainer)->parameters);
    ls_train_options_tell_rate(g->progress, &o->train, g->begin_update, o->train.steps * o->epochs * o->minibatches);
}

static ls_status open_records(grpo *g, ls_error *err) {
    const ls_train_options *t = &g->o->train;
    char *config = NULL;
    int64_t bytes = 0;
    ls_run_setup setup = {.kind = "grpo", .keep = g->step, .n_steps = t->steps};
    ls_status status;
    if (!ls_grpo_writes(g)) return LS_OK;
    LS_TRY_DONE(ls_config_text(&config, &bytes, g->config, err));
    setup.config = config;
    setup.config_bytes = bytes;
    status = ls_run_open_or_resume(&g->records, t->run, &setup, t->resume, err);
done:
    free(config);
    return status;
}

static ls_status open_all(grpo *g, ls_error *err) {
    g->loss = ls_grpo_loss(g->o);
    g->advantages = ls_grpo_advantages(g->o);
    LS_TRY(ls_correction_parse(&g->correction, g->o->correction, err));
    LS_TRY(find_beginning(g, err));
    LS_TRY(ls_train_options_device(&g->device, &g->choice, &g->o->train, err));
    LS_TRY(make_plan(g, err));
    LS_TRY(open_grpo_model(g, err));
    LS_TRY(open_world(g, err));
    LS_TRY(open_reference(g, err));
    LS_TRY(digest_data(g, err));
    LS_TRY(open_engine(g, err));
    LS_TRY(open_trainer(g, err));
    LS_TRY(ls_grpo_rows_create(g, err));
    if (g->begin_update > 0) LS_TRY(resume_run(g, err));
    if (g->begin_update == 0) tell_device(g);
    LS_TRY(ls_trainer_agree(g->trainer, err));
    if (g->o->lag > 0) LS_TRY(ls_grpo_ahead_open(g, err));
    if (g->o->train.save_behind) LS_TRY(ls_saves_start_writer(g->saves, ls_trainer_state(g->trainer), err));
    print_plan(g);
    return open_records(g, err);
}

static void close_all(grpo *g) {
    ls_run_close(g->records);
    ls_grpo_ahead_close(g->ahead); /* whose thread has the judges and writes models */
    ls_grpo_rows_free(&g->rows);
    ls_saves_close(g->saves); /* which may be writing what the trainer has */
    ls_rollout_close(g->rollout);
    ls_grpo_push_close(g->push);
    close_memory(g);
    ls_grpo_draws_free(&g->own_draws);
    ls_episodes_free(g->held_out);
    for (int64_t j = 0; j < LS_JUDGES_MAX; j++) {
        ls_reward_close(g->judges[j].source);
        ls_verify_close(g->judges[j].verify);
    }
    ls_reward_close(g->environment);
    ls_chat_free(g->chat);
    ls_stop_free(g->stop);
    ls_task_free(g->task);
    ls_data_close(g->problems);
    ls_tokenizer_free(g->tokenizer);
    ls_device_close(g->device);
}

/* ---- evaluation ---- */

/* Held-out problems have draws of their own. */
#define EVAL_SEED UINT64_C(0x68656C642D6F7574)

static ls_status evaluate(grpo *g, ls_error *err) {
    const double start = ls_clock_seconds();
    ls_engine *engine = NULL;
    ls_sampling sampling = g->engine_opts.sampling;
    double reward = 0, length = 0;
    int64_t n = 0;
    ls_status status;
    sampling.temperature = (float)g->o->eval_temperature;
    sampling.seed = g->o->train.seed ^ EVAL_SEED;
    if (g->ahead != NULL) ls_grpo_ahead_rest(g); /* it has the judges, and the servers other weights */
    if (g->rollout == NULL) LS_TRY_DONE(open_second(&engine, g, &sampling, err));
    const grpo_drawer drawer = {
        engine, {ls_trainer_state(g->trainer)->weights, ls_trainer_state(g->trainer)->step}, &sampling, false, NULL};
    LS_TRY_DONE(ls_episodes_begin(g->held_out, &g->world, LS_TASK_SPLIT_HELD_OUT, 0, err));
    LS_TRY_DONE(ls_grpo_draw(g, g->held_out, &drawer, err));
    if (g->comm != NULL) LS_TRY_DONE(ls_grpo_gather(g, g->held_out, err));
    if (!ls_grpo_writes(g)) goto done; /* who records it judges it */
    LS_TRY_DONE(ls_episodes_judge(g->held_out, &g->world, err));
    ls_grpo_tell_episodes(g, g->step, g->held_out, "evaluation: ");
    for (int64_t i = 0; i < g->held_out->n; i++) {
        const ls_episode *x = &g->held_out->list[i];
        length += (double)x->n_drawn;
        if (x->failed) continue;
        reward += x->reward;
        n++;
    }
    g->eval_reward = reward / (double)n;
    g->eval_length = length / (double)g->held_out->n;
    g->times.eval = ls_clock_seconds() - start;
done:
    ls_engine_free(engine);
    if (g->engine != NULL) { /* also behind one that was given up */
        const ls_status woken = ls_engine_wake(g->engine, status == LS_OK ? err : NULL);
        if (status == LS_OK) status = woken;
    }
    if (status != LS_OK) ls_error_prefix(err, "evaluation");
    return status;
}

static bool is_evaluated(const grpo *g) {
    const int64_t every = g->o->eval_every;
    return every > 0 && (g->step % every == 0 || g->step == g->o->train.steps);
}

/* ---- steps ---- */

/* Whether a wait for somebody outside was given up for a signal. What several processes do together cannot be left by
 * one of them: there it is an error like others, and the run goes on from its newest checkpoint. */
static bool was_given_up(const grpo *g, ls_status status) {
    return status != LS_OK && g->comm == NULL && ls_interrupt_gave_up();
}

/* The step that is given up before anything was learnt in it was none: the run ends behind the one before. */
static ls_status leave_step(grpo *g, ls_error *err) {
    g->step--;
    g->result->stopped = true;
    if (g->step > 0) {
        LS_TRY(save_run(g, err));
        LS_TRY(ls_saves_wait(g->saves, ls_trainer_state(g->trainer), err));
    }
    ls_stop_tell(g->progress, g->step, g->o->train.run);
    return LS_OK;
}

/* One that is given up for a signal is left out. */
static ls_status evaluate_update(grpo *g, ls_error *err) {
    const ls_status status = evaluate(g, err);
    if (!was_given_up(g, status)) return status;
    g->eval_reward = g->eval_length = (double)NAN;
    return LS_OK;
}

static ls_status run_grpo_step(grpo *g, bool *stopped, ls_error *err) {
    const ls_train_options *t = &g->o->train;
    const double start = ls_clock_seconds();
    bool asked = false;
    ls_status status;
    g->eval_reward = g->eval_length = (double)NAN;
    status = ls_grpo_step(g, stopped, err);
    if (was_given_up(g, status) && g->n_updates == 0) return leave_step(g, err);
    LS_TRY_DONE(status);
    if (g->gate.n_differing > 0) LS_TRY_DONE(ls_grpo_bundle(g, err));
    if (!*stopped && is_evaluated(g)) LS_TRY_DONE(evaluate_update(g, err));
    LS_TRY_DONE(ls_grpo_log(g, ls_clock_seconds() - start, err));
    if (*stopped) goto done;
    g->result->step = g->step;
    if (g->ahead != NULL) LS_TRY_DONE(ls_grpo_ahead_publish(g, err));
    LS_TRY_DONE(ls_stop_asked(&asked, g->comm, err));
    g->result->stopped = asked && g->step < t->steps;
    if (g->result->stopped || g->step == t->steps || (t->save_every > 0 && g->step % t->save_every == 0))
        LS_TRY_DONE(save_run(g, err));
    else
        LS_TRY_DONE(ls_saves_look(g->saves, ls_trainer_state(g->trainer), err));
    if (g->result->stopped) LS_TRY_DONE(ls_saves_wait(g->saves, ls_trainer_state(g->trainer), err));
    if (g->result->stopped) ls_stop_tell(g->progress, g->step, t->run);
done:
    if (status != LS_OK) ls_error_prefix(err, "step %lld", (long long)g->step);
    return status;
}

/* What the run leaves, and whether anything was learnt behind step `first`. */
static ls_status tell_end(const grpo *g, int64_t first, ls_error *err) {
    char path[LS_SAVES_PATH_MAX];
    int64_t update;
    if (g->progress == NULL) return LS_OK;
    if (g->step > first && !g->any_differ)
        fprintf(g->progress,
                "no step had a group whose rewards differ: nothing was learnt from them; lockstep report %s shows "
                "completions\n",
                g->o->train.run);
    LS_TRY(ls_saves_newest(g->saves, &update, path, err));
    if (update >= 0 && !g->result->stopped) fprintf(g->progress, "the model is in %s\n", path);
    fprintf(g->progress, "digest %016llx\n", (unsigned long long)g->result->digest);
    return LS_OK;
}

static ls_status run_steps(grpo *g, ls_error *err) {
    const int64_t first = g->step;
    bool stopped = false;
    g->result->step = g->step;
    if (g->step == 0 && is_evaluated(g)) {
        const ls_status status = evaluate(g, err);
        if (was_given_up(g, status)) {
            g->result->stopped = true;
            ls_stop_tell(g->progress, 0, g->o->train.run);
            return LS_OK;
        }
        LS_TRY(status);
        if (g->progress != NULL) fprintf(g->progress, "held-out %.3f before the first step\n", g->eval_reward);
        if (ls_grpo_writes(g)) LS_TRY(ls_grpo_log_beginning(g, err));
    }
    while (g->step < g->o->train.steps && !stopped && !g->result->stopped) {
        g->step++;
        LS_TRY(run_grpo_step(g, &stopped, err));
    }
    LS_TRY(ls_saves_wait(g->saves, ls_trainer_state(g->trainer), err));
    return stopped ? LS_OK : tell_end(g, first, err);
}

ls_status ls_grpo_run(ls_grpo_options *o, const ls_config *config, FILE *progress, ls_grpo_result *result,
                      ls_error *err) {
    grpo g = {.o = o, .config = config, .notes = progress, .result = result};
    ls_error reason = {LS_OK, ""};
    ls_status status;
    *result = (ls_grpo_result){.digest = LS_FNV_START};
    ls_interrupt_defer(true);
    LS_TRY_DONE(ls_grpo_options_check(o, &reason));
    g.progress = ls_grpo_writes(&g) ? progress : NULL;
    LS_TRY_DONE(open_all(&g, &reason));
    LS_TRY_DONE(run_steps(&g, &reason));
    LS_TRY_DONE(ls_trainer_end(g.trainer, &reason));
done:
    ls_interrupt_defer(false);
    if (status != LS_OK && g.comm != NULL) ls_comm_abort(g.comm, &reason);
    if (status != LS_OK && err != NULL) *err = reason;
    close_all(&g);
    return status;
}
