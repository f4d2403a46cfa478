/* Episodes that a thread draws ahead of the trainer. Which weights draw a step is a function of the step alone, so a
 * run with a lag has one result, however fast either side is.
 *
 * Version v is the weights behind step v, 0 those that the run begins with. Copies of the last lag + 1 versions are
 * models of their own: version v is in copy v % (lag + 1), which nobody draws with any more when version v + lag + 1
 * comes. The main thread publishes versions and takes episodes. A second one draws the steps in their order, and
 * scores what is to be checked with the weights that drew it. No more than lag + 1 steps are drawn and not learnt from.
 * Each of these has a place, and a thread there that has its episodes judged meanwhile, beside those of other places.
 *
 * Devices of the CPU share their memory: the thread draws with a copy where it lies. Else (a GPU, or another device
 * than the trainer's) the copies lie in the host's memory. The thread has a device of its own, with room for one
 * version, and brings that there which it draws or checks with. No device is used by two threads at a time.
 *
 * In flight (grpo_flight.c) draws of step s take version s - 1 - lag or newer ones, as soon as these are published.
 * When version v comes, the steps up to v are drawn, and no later one takes the version whose copy it is written to. */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/durable.h"
#include "base/file.h"
#include "base/fpmode.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/thread.h"
#include "model/score.h"
#include "rl/grpo_state.h"

#define VERSION_PREFIX "step-"

/* Sequences that are decoded at a time on a device without a plan. */
enum { BATCH_GPU = 512, BATCH_CPU = 64 };

typedef struct version {
    ls_model *model;
    ls_parameters *weights; /* without masters */
    uint64_t *digests;      /* of each tensor, as the trainer had it */
    int64_t update;
} version;

/* What becomes of a step where it is drawn, in this order. It is judged when it is drawn, or from its beginning on
 * where episodes are judged as they come. */
typedef enum stage_kind { BEGUN, DRAWN, CHECKED, N_STAGES } stage_kind;

typedef struct stage {
    int64_t step; /* the last one that is through */
    bool failed;  /* the next one */
    ls_error reason;
} stage;

/* Who judges the steps of a place: step s is in place s % (lag + 1). */
typedef struct judging {
    grpo_ahead *a;
    int64_t place;
    stage stage; /* under the lock */
    pthread_t thread;
} judging;

struct grpo_ahead {
    grpo *g;
    int64_t n; /* copies, and steps whose episodes are kept: lag + 1 */
    version *versions;
    grpo_draws *draws;
    ls_device *own;    /* what the thread computes with */
    ls_device *keeper; /* the CPU, where versions are kept; NULL: the thread's device has them in reach */
    version there;     /* with a keeper: in the memory of `own` */
    int64_t loaded;    /* the version in it; -1: none */
    ls_engine *engine;
    grpo_flight *flight; /* NULL: weights change between steps */
    ls_sampling sampling;
    int64_t drawing;      /* the version that the engine has; -1: it may be any */
    int64_t saved, named; /* steps of the last checkpoint, and of the last that surely has its name */
    pthread_t drawing_thread;
    bool has_drawing_thread;
    judging *judges;     /* [n] */
    int64_t n_judges;    /* whose threads were started */
    atomic_bool is_left; /* what is with the judges is not waited for */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    /* Under the lock. */
    int64_t published; /* the newest version */
    int64_t awaited;   /* draws go on when this version is published */
    stage stages[N_STAGES];
    bool quit;
};

static int64_t version_of(const grpo_ahead *a, int64_t step) { return step > a->n ? step - a->n : 0; }

_Static_assert(LS_GRPO_LAG_MAX + 1 <= LS_REWARD_ASKS_MAX, "every place may ask the same source");

/* What several processes drew is judged by the main thread, when all of it is together; with filter_groups it is while
 * it is drawn. */
static bool is_judged_here(const grpo *g) { return g->comm == NULL && !g->o->filter_groups; }

static version *copy_of(const grpo_ahead *a, int64_t v) { return &a->versions[v % a->n]; }

/* ---- where the thread draws ---- */

static ls_status load_version(grpo_ahead *a, int64_t v, ls_error *err) {
    const version *from = copy_of(a, v), *to = &a->there;
    a->loaded = -1;
    for (int64_t i = 0; i < from->weights->n; i++) {
        const ls_parameter *p = &from->weights->list[i];
        LS_TRY(ls_memory_write(a->own, ls_parameter_value(&to->weights->list[i]), ls_parameter_value(p),
                               p->n_elements * ls_dtype_bytes(p->dtype), err));
    }
    LS_TRY(ls_grpo_weights_arrive(to->weights, from->digests, err));
    a->loaded = v;
    return LS_OK;
}

/* The model of version v as `own` computes with it. */
static ls_status bring(grpo_ahead *a, int64_t v, const ls_model **out, ls_error *err) {
    *out = a->keeper == NULL ? copy_of(a, v)->model : a->there.model;
    return a->keeper == NULL || a->loaded == v ? LS_OK : load_version(a, v, err);
}

/* ---- checks ---- */

/* By hash: whether an episode is checked depends on its address alone. */
static bool is_chosen(const grpo *g, int64_t step, int64_t i) {
    const ls_philox draw =
        ls_philox_draw(g->o->train.seed, (uint32_t)i, (uint32_t)step, (uint32_t)(step >> 32), UINT32_C(0x63686563));
    return (double)draw.word[0] < g->o->check_share * 4294967296.0;
}

/* Tokens of an episode up to the last one that this version drew; 0: it drew none. */
static int64_t end_of_version(const grpo_ahead *a, const grpo_draws *d, const ls_episode *x, int64_t v) {
    int64_t n = x->n;
    if (a->flight == NULL) return v == d->behind ? n : 0;
    while (n > 0 && (x->drawn[n - 1] == 0 || (int64_t)x->version[n - 1] != v)) n--;
    return n;
}

/* The first token of an episode that this version drew, which has drawn some. */
static int64_t begin_of_version(const grpo_ahead *a, const ls_episode *x, int64_t v) {
    int64_t i = x->n_prompt;
    while (x->drawn[i] == 0 || (a->flight != NULL && (int64_t)x->version[i] != v)) i++;
    return i;
}

/* Scores what is to be checked of this process's share as far as version v drew. */
static ls_status check_version(grpo_ahead *a, grpo_draws *d, int64_t v, ls_score_item *items, ls_error *err) {
    const grpo *g = a->g;
    const ls_model *model;
    const ls_score_opts opts = ls_grpo_score_opts(g);
    int64_t begin, end, n = 0;
    ls_grpo_share(g, d->episodes->n, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        const ls_episode *x = &d->episodes->list[i];
        const int64_t n_tokens = d->is_checked[i] != 0 ? end_of_version(a, d, x, v) : 0;
        if (n_tokens == 0) continue;
        items[n] = (ls_score_item){.tokens = x->tokens,
                                   .n_tokens = n_tokens,
                                   .of = g->engine_opts.logprob_of,
                                   .sampling = a->sampling,
                                   .logprob = d->logprob + i * g->o->length};
        if (d->supports != NULL && x->n_drawn > 0)
            items[n].supports = (ls_score_supports){d->supports, i * g->o->length, begin_of_version(a, x, v) - 1};
        n++;
    }
    if (n == 0) return LS_OK;
    LS_TRY(bring(a, v, &model, err));
    return ls_score(model, a->own, &opts, items, n, err);
}

/* Scores episodes with the weights that drew them. The newest version comes first: each older one then puts its values
 * in the place of those for tokens that it drew, and for those before. */
static ls_status check(grpo_ahead *a, grpo_draws *d, bool all, ls_error *err) {
    ls_score_item *items = NULL;
    ls_status status;
    LS_TRY_DONE(ls_array_alloc((void **)&items, d->episodes->n, sizeof *items, "checks", err));
    if (d->supports != NULL) ls_supports_clear(d->supports);
    for (int64_t i = 0; i < d->episodes->n; i++) d->is_checked[i] = all || is_chosen(a->g, d->step, i);
    for (int64_t v = d->newest; v >= d->behind; v--) LS_TRY_DONE(check_version(a, d, v, items, err));
done:
    free(items);
    return status;
}

/* Of several processes every one gets what the others scored. */
static ls_status share_checks(const grpo *g, const grpo_draws *d, ls_error *err) {
    int64_t begins[LS_RANKS_MAX + 1];
    if (g->comm == NULL) return LS_OK;
    for (int64_t r = 0; r <= ls_comm_ranks(g->comm); r++)
        begins[r] = r * d->episodes->n / ls_comm_ranks(g->comm) * g->o->length * (int64_t)sizeof *d->logprob;
    return ls_comm_share(g->comm, d->logprob, begins, "the checks", err);
}

/* ---- stages ---- */

static void end_stage(grpo_ahead *a, stage *s, int64_t step, ls_status status, const ls_error *reason) {
    pthread_mutex_lock(&a->lock);
    if (status == LS_OK) s->step = step;
    s->failed = status != LS_OK;
    if (s->failed) s->reason = *reason;
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
}

static bool any_judge_failed(const grpo_ahead *a) {
    for (int64_t i = 0; i < a->n_judges; i++)
        if (a->judges[i].stage.failed) return true;
    return false;
}

/* False: the run is to end. Draws that are not judged any more are not learnt from. */
static bool wait_for_version(grpo_ahead *a, int64_t v) {
    bool is_wanted;
    pthread_mutex_lock(&a->lock);
    a->awaited = v;
    pthread_cond_broadcast(&a->changed);
    while (!a->quit && !any_judge_failed(a) && a->published < v) pthread_cond_wait(&a->changed, &a->lock);
    is_wanted = !a->quit && !any_judge_failed(a);
    pthread_mutex_unlock(&a->lock);
    return is_wanted;
}

/* The engine has this version from here on. A check may have brought another one to its place meanwhile. */
static ls_status use_version(void *context, int64_t v, ls_error *err) {
    grpo_ahead *a = context;
    const ls_model *model;
    const bool has_it = a->drawing == v;
    if (has_it && (a->keeper == NULL || a->loaded == v)) return LS_OK;
    if (!wait_for_version(a, v)) return LS_FAIL(err, LS_ERR_ARG, "lag: the run ends");
    LS_TRY(bring(a, v, &model, err));
    a->drawing = v;
    return has_it ? LS_OK : ls_engine_set_weights(a->engine, model, (uint64_t)v, err);
}

static int64_t newest_version(void *context) {
    grpo_ahead *a = context;
    int64_t v;
    pthread_mutex_lock(&a->lock);
    v = a->published;
    pthread_mutex_unlock(&a->lock);
    return v;
}

/* The step's episodes: in flight, which weights drew them is known when they are there. */
static ls_status make_draws(grpo_ahead *a, grpo_draws *d, ls_error *err) {
    const version *v = copy_of(a, d->behind);
    const grpo_drawer drawer = {a->engine, {v->weights, v->update}, &a->sampling, true, a->flight};
    if (a->flight == NULL) {
        if (a->engine != NULL) LS_TRY(use_version(a, d->behind, err));
        return ls_grpo_draws_make(a->g, d, &drawer, err);
    }
    ls_grpo_flight_begin(a->flight, d);
    LS_TRY(ls_grpo_draws_make(a->g, d, &drawer, err));
    return ls_grpo_flight_end(a->flight, err);
}

static ls_status begin_step(grpo_ahead *a, int64_t step, double idle, ls_error *err) {
    grpo_draws *d = &a->draws[step % a->n];
    d->step = step;
    d->behind = d->newest = version_of(a, step);
    memset(d->is_checked, 0, (size_t)d->episodes->n);
    LS_TRY(ls_grpo_draws_begin(a->g, d, err));
    if (is_judged_here(a->g)) ls_episodes_number(d->episodes, &a->g->world);
    d->idle = idle;
    return LS_OK;
}

static ls_status draw_step(grpo_ahead *a, int64_t step, ls_error *err) {
    grpo_draws *d = &a->draws[step % a->n];
    const ls_status status = make_draws(a, d, err);
    if (d->feed != NULL) ls_feed_end(d->feed);
    return status;
}

static ls_status check_step(grpo_ahead *a, int64_t step, ls_error *err) {
    grpo_draws *d = &a->draws[step % a->n];
    const double start = ls_clock_seconds();
    if (d->behind < step - 1 && a->g->o->check_share > 0) LS_TRY(check(a, d, false, err));
    d->check = ls_clock_seconds() - start;
    return LS_OK;
}

/* Where a step's version is there the copies that its episodes will lie in are free as well: they were those of the
 * step behind which that version is, or of one before. */
static void *run_draws(void *context) {
    grpo_ahead *a = context;
    const int64_t steps = a->g->o->train.steps;
    ls_status status = LS_OK;
    ls_fpmode_enter(NULL);
    for (int64_t step = a->stages[CHECKED].step + 1; step <= steps && status == LS_OK; step++) {
        ls_error err = {LS_OK, ""};
        const double start = ls_clock_seconds();
        if (!wait_for_version(a, version_of(a, step))) break;
        status = begin_step(a, step, ls_clock_seconds() - start, &err);
        end_stage(a, &a->stages[BEGUN], step, status, &err);
        if (status != LS_OK) break;
        status = draw_step(a, step, &err);
        end_stage(a, &a->stages[DRAWN], step, status, &err);
        if (status != LS_OK) break;
        status = check_step(a, step, &err);
        end_stage(a, &a->stages[CHECKED], step, status, &err);
    }
    (void)wait_for_version(a, INT64_MAX);
    return NULL;
}

/* Whether there is something to judge; false: there will be nothing. */
static bool wait_for_draws(grpo_ahead *a, int64_t step) {
    const bool is_early = a->draws[step % a->n].feed != NULL;
    const stage *begun = &a->stages[BEGUN], *drawn = &a->stages[DRAWN], *s = is_early ? begun : drawn;
    bool is_there;
    pthread_mutex_lock(&a->lock);
    while (!a->quit && !begun->failed && !drawn->failed && s->step < step) pthread_cond_wait(&a->changed, &a->lock);
    is_there = !a->quit && s->step >= step;
    pthread_mutex_unlock(&a->lock);
    return is_there;
}

static void *run_judges(void *context) {
    judging *j = context;
    grpo_ahead *a = j->a;
    ls_status status = LS_OK;
    int64_t step = j->stage.step + 1;
    ls_fpmode_enter(NULL);
    while (step % a->n != j->place) step++;
    for (; step <= a->g->o->train.steps && status == LS_OK; step += a->n) {
        ls_error err = {LS_OK, ""};
        if (!wait_for_draws(a, step)) break;
        status = ls_grpo_draws_join(a->g, &a->draws[step % a->n], &err);
        end_stage(a, &j->stage, step, status, &err);
    }
    return NULL;
}

/* ---- the main thread ---- */

/* Waits until g->step is through it. */
static ls_status wait_for_stage(grpo *g, const stage *s, ls_error *err) {
    grpo_ahead *a = g->ahead;
    ls_status status;
    pthread_mutex_lock(&a->lock);
    while (s->step < g->step && !s->failed) pthread_cond_wait(&a->changed, &a->lock);
    status = s->step < g->step ? s->reason.status : LS_OK;
    if (status != LS_OK && err != NULL) *err = s->reason;
    pthread_mutex_unlock(&a->lock);
    return status;
}

ls_status ls_grpo_ahead_take(grpo *g, ls_error *err) {
    grpo_ahead *a = g->ahead;
    const double start = ls_clock_seconds();
    LS_TRY(wait_for_stage(g, &a->stages[BEGUN], err));
    LS_TRY(wait_for_stage(g, &a->stages[DRAWN], err));
    if (a->n_judges > 0) LS_TRY(wait_for_stage(g, &a->judges[g->step % a->n].stage, err));
    LS_TRY(wait_for_stage(g, &a->stages[CHECKED], err));
    g->times.wait = ls_clock_seconds() - start;
    g->draws = &a->draws[g->step % a->n];
    g->episodes = g->draws->episodes;
    if (g->comm == NULL) return LS_OK;
    LS_TRY(ls_grpo_draws_join(g, g->draws, err));
    if (ls_grpo_is_fresh(g)) return LS_OK;
    LS_TRY(share_checks(g, g->draws, err));
    return g->draws->supports != NULL ? ls_grpo_gather_supports(g, g->draws, err) : LS_OK;
}

/* Of what was drawn nothing is left to judge. */
static bool all_are_judged(const grpo_ahead *a) {
    const int64_t last = a->stages[DRAWN].step;
    for (int64_t step = last; a->n_judges > 0 && step > 0 && step > last - a->n; step--) {
        const stage *s = &a->judges[step % a->n].stage;
        if (s->step < step && !s->failed) return false;
    }
    return true;
}

/* Nothing is drawn, judged or checked: each waits for the main thread, or has failed. */
static bool rests(const grpo_ahead *a) {
    const bool has_failed = a->stages[BEGUN].failed || a->stages[DRAWN].failed || a->stages[CHECKED].failed;
    return (has_failed || a->awaited > a->published) && all_are_judged(a);
}

void ls_grpo_ahead_rest(grpo *g) {
    grpo_ahead *a = g->ahead;
    pthread_mutex_lock(&a->lock);
    while (!rests(a)) pthread_cond_wait(&a->changed, &a->lock);
    pthread_mutex_unlock(&a->lock);
}

/* A version as the trainer has it now. */
static ls_status copy_weights(grpo *g, version *to, ls_error *err) {
    const ls_train_state *state = ls_trainer_state(g->trainer);
    const ls_parameters *from = state->weights;
    for (int64_t i = 0; i < from->n; i++) {
        const ls_parameter *p = &from->list[i];
        LS_TRY(ls_memory_read(g->device, ls_parameter_value(&to->weights->list[i]), ls_parameter_value(p),
                              p->n_elements * ls_dtype_bytes(p->dtype), err));
    }
    LS_TRY(ls_device_wait(g->device, err));
    LS_TRY(ls_grpo_weights_digests(from, to->digests, err));
    to->update = state->step;
    return g->ahead->keeper != NULL ? LS_OK : ls_grpo_weights_arrive(to->weights, to->digests, err);
}

ls_status ls_grpo_ahead_publish(grpo *g, ls_error *err) {
    grpo_ahead *a = g->ahead;
    LS_TRY(copy_weights(g, copy_of(a, g->step), err));
    pthread_mutex_lock(&a->lock);
    a->published = g->step;
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
    return LS_OK;
}

const ls_parameters *ls_grpo_ahead_weights(const grpo *g) {
    const ls_gate *gate = &g->gate;
    const bool is_token = g->ahead->flight != NULL && gate->sequence >= 0;
    const int64_t v = is_token ? (int64_t)g->episodes->list[gate->sequence].version[gate->row + 1] : g->draws->behind;
    return copy_of(g->ahead, v)->weights;
}

const ls_engine *ls_grpo_ahead_engine(const grpo *g) { return g->ahead->engine; }

/* ---- versions beside checkpoints ---- */

static void path_of_version(const grpo *g, int64_t v, const char *prefix, char path[LS_SAVES_PATH_MAX]) {
    snprintf(path, LS_SAVES_PATH_MAX, "%.1100s/versions/%s" VERSION_PREFIX "%08lld", g->o->train.run, prefix,
             (long long)v);
}

static void directory_of_versions(const grpo *g, char path[LS_SAVES_PATH_MAX + 16]) {
    snprintf(path, LS_SAVES_PATH_MAX + 16, "%s/versions", g->o->train.run);
}

/* A model directory, with the number of its updates. */
static ls_status write_version(const grpo *g, int64_t v, ls_error *err) {
    const version *of = copy_of(g->ahead, v);
    char fresh[LS_SAVES_PATH_MAX], path[LS_SAVES_PATH_MAX], file[LS_SAVES_PATH_MAX + 16], text[32];
    path_of_version(g, v, ".new-", fresh);
    path_of_version(g, v, "", path);
    if (ls_file_exists(path)) return LS_OK; /* a run has one result */
    if (ls_file_exists(fresh)) LS_TRY(ls_directory_remove(fresh, err));
    LS_TRY(ls_directory_make(fresh, err));
    LS_TRY(ls_saves_save_model(g->saves, fresh, of->weights, err));
    snprintf(file, sizeof file, "%s/update", fresh);
    snprintf(text, sizeof text, "%lld\n", (long long)of->update);
    LS_TRY(ls_durable_file(file, text, (int64_t)strlen(text), err));
    LS_TRY(ls_directory_sync(fresh, err));
    return ls_path_rename(fresh, path, err);
}

ls_status ls_grpo_ahead_list(grpo *g, ls_bundle_version *list, int64_t *n, ls_error *err) {
    char directory[LS_SAVES_PATH_MAX + 16];
    directory_of_versions(g, directory);
    LS_TRY(ls_directory_make(directory, err));
    *n = 0;
    for (int64_t v = g->draws->behind; v <= g->draws->newest; v++) {
        LS_TRY(ls_parameters_digest(copy_of(g->ahead, v)->weights, &list[*n].weights, err));
        list[(*n)++].step = v;
        LS_TRY(write_version(g, v, err));
    }
    return ls_directory_sync(directory, err);
}

/* Versions before `first`, and what a killed process left. */
static ls_status remove_versions(const char *directory, int64_t first, ls_error *err) {
    char path[LS_SAVES_PATH_MAX + 300], **names = NULL;
    int64_t n = 0;
    ls_status status;
    LS_TRY_DONE(ls_directory_list(&names, &n, directory, err));
    for (int64_t i = 0; i < n; i++) {
        const bool is_version = strncmp(names[i], VERSION_PREFIX, sizeof VERSION_PREFIX - 1) == 0;
        if (is_version && strtoll(names[i] + sizeof VERSION_PREFIX - 1, NULL, 10) >= first) continue;
        snprintf(path, sizeof path, "%s/%s", directory, names[i]);
        LS_TRY_DONE(ls_directory_remove(path, err));
    }
done:
    ls_names_free(names, n);
    return status;
}

/* Those of a run that was in this directory before. */
static ls_status forget_versions(const grpo *g, ls_error *err) {
    char directory[LS_SAVES_PATH_MAX + 16];
    directory_of_versions(g, directory);
    return ls_grpo_writes(g) && ls_file_exists(directory) ? remove_versions(directory, INT64_MAX, err) : LS_OK;
}

/* A checkpoint that is written behind the run has its name when the next but one begins: what the one before needs is
 * kept as well. */
ls_status ls_grpo_ahead_save(grpo *g, ls_error *err) {
    grpo_ahead *a = g->ahead;
    char directory[LS_SAVES_PATH_MAX + 16];
    if (!ls_grpo_writes(g)) return LS_OK;
    directory_of_versions(g, directory);
    LS_TRY(ls_directory_make(directory, err));
    for (int64_t v = version_of(a, g->step + 1); v < g->step; v++) LS_TRY(write_version(g, v, err));
    LS_TRY(ls_directory_sync(directory, err));
    LS_TRY(remove_versions(directory, version_of(a, a->named + 1), err));
    a->named = a->saved;
    a->saved = g->step;
    return LS_OK;
}

static ls_status read_update(int64_t *out, const char *directory, ls_error *err) {
    char path[LS_SAVES_PATH_MAX + 16], *text = NULL;
    int64_t bytes;
    snprintf(path, sizeof path, "%s/update", directory);
    LS_TRY(ls_file_read(&text, &bytes, path, 32, err));
    *out = strtoll(text, NULL, 10);
    free(text);
    return LS_OK;
}

/* ---- opening ---- */

static ls_status open_version(const grpo *g, version *out, ls_device *device, bool computes, const char *directory,
                              ls_error *err) {
    LS_TRY(ls_train_options_open(&out->model, device, directory, LS_WEIGHTS_WHOLE, computes, &g->o->train, err));
    LS_TRY(ls_parameters_open_share(&out->weights, out->model, device, directory, 1, 1, err));
    return ls_array_alloc((void **)&out->digests, out->weights->n, sizeof *out->digests, "lag", err);
}

/* A version that lies beside the checkpoint. */
static ls_status read_version(const grpo *g, version *to, ls_device *device, const char *path, ls_error *err) {
    if (!ls_file_exists(path))
        return LS_FAIL(err, LS_ERR_IO, "lag: %s is missing; the run goes on with the weights in it", path);
    LS_TRY(open_version(g, to, device, g->ahead->keeper == NULL, path, err));
    LS_TRY(ls_grpo_weights_digests(to->weights, to->digests, err));
    return read_update(&to->update, path, err);
}

/* The versions that steps behind g->step draw with: of a run that goes on from files, the newest as the trainer has
 * it. Copies without a version yet are opened as well: their memory is taken now. */
static ls_status open_versions(grpo *g, ls_error *err) {
    grpo_ahead *a = g->ahead;
    ls_device *device = a->keeper != NULL ? a->keeper : g->device;
    const char *begin = ls_train_options_weights(&g->o->train, g->begin);
    for (int64_t v = g->step - a->n + 1; v <= g->step; v++) {
        version *to = &a->versions[(v + a->n) % a->n];
        char path[LS_SAVES_PATH_MAX];
        path_of_version(g, v, "", path);
        if (v >= 0 && v < g->step)
            LS_TRY(read_version(g, to, device, path, err));
        else
            LS_TRY(open_version(g, to, device, a->keeper == NULL, begin, err));
    }
    if (a->keeper != NULL) LS_TRY(open_version(g, &a->there, a->own, true, begin, err));
    return copy_weights(g, copy_of(a, g->step), err);
}

static ls_status open_device(grpo_ahead *a, ls_error *err) {
    const grpo *g = a->g;
    const int32_t n_threads = (int32_t)ls_grpo_draw_threads(g->o);
    const ls_isa isa = ls_train_options_isa(&g->o->train);
    const bool is_here = ls_grpo_draws_here(g->o, g->choice.name);
    if (is_here) LS_TRY(ls_device_open_sharing(&a->own, g->device, n_threads, err));
    if (a->own != NULL) return LS_OK;                    /* its memory and threads are the trainer's */
    LS_TRY(ls_device_open_cpu(&a->keeper, 1, isa, err)); /* which only holds */
    if (ls_device_open_named(&a->own, is_here ? g->choice.name : g->o->draw_device, n_threads, isa, err) == LS_OK)
        return LS_OK;
    if (err != NULL) ls_error_prefix(err, "draw_device");
    return err != NULL ? err->status : LS_ERR_DEVICE;
}

/* The plan of the run is that of the trainer's device: on another one the engine takes what is there. */
static ls_status engine_opts(ls_engine_opts *out, const grpo_ahead *a, ls_error *err) {
    const grpo *g = a->g;
    ls_memory_state memory;
    *out = g->engine_opts;
    if (ls_grpo_draws_here(g->o, g->choice.name)) return LS_OK;
    LS_TRY(ls_grpo_levers(&out->levers, g->o, err));
    LS_TRY(ls_device_memory(a->own, &memory, err));
    if (out->levers.batch == 0)
        out->levers.batch = ls_min_i64(memory.is_limited ? BATCH_GPU : BATCH_CPU, g->episodes->n);
    return LS_OK;
}

static ls_status open_engine(grpo_ahead *a, ls_error *err) {
    const ls_model *model;
    ls_engine_opts opts;
    if (a->g->rollout != NULL) return LS_OK;
    LS_TRY(engine_opts(&opts, a, err));
    LS_TRY(bring(a, version_of(a, a->g->step + 1), &model, err));
    return ls_engine_create(&a->engine, model, a->own, &opts, err);
}

static ls_status open_flight(grpo_ahead *a, ls_error *err) {
    const grpo_versions versions = {a, use_version, newest_version};
    if (a->g->o->updates != LS_UPDATES_IN_FLIGHT) return LS_OK;
    for (int64_t i = 0; i < a->n; i++) LS_TRY(ls_episodes_date(a->draws[i].episodes, err));
    return ls_grpo_flight_open(&a->flight, a->g, &versions, err);
}

static ls_status start_thread(pthread_t *out, void *(*run)(void *context), void *context, ls_error *err) {
    const int error = ls_thread_start(out, run, context);
    return error == 0 ? LS_OK : LS_FAIL(err, LS_ERR_NOMEM, "lag: no thread: %s", strerror(error));
}

/* Judges begin first: they wait for draws. */
static ls_status start_threads(grpo_ahead *a, ls_error *err) {
    for (; is_judged_here(a->g) && a->n_judges < a->n; a->n_judges++) {
        judging *j = &a->judges[a->n_judges];
        *j = (judging){.a = a, .place = a->n_judges, .stage = {.step = a->g->step}};
        LS_TRY(start_thread(&j->thread, run_judges, j, err));
    }
    LS_TRY(start_thread(&a->drawing_thread, run_draws, a, err));
    a->has_drawing_thread = true;
    return LS_OK;
}

/* One source that takes episodes as they come judges them while others are drawn. */
static ls_status open_feed(const grpo *g, grpo_draws *d, ls_error *err) {
    const ls_reward *source = g->judges[0].source;
    const bool is_alone = g->comm == NULL && g->o->n_judges == 1 && g->environment == NULL && g->rollout == NULL;
    if (!is_alone || g->o->filter_groups || source == NULL || !ls_reward_takes_late(source)) return LS_OK;
    LS_TRY(ls_feed_create(&d->feed, d->episodes->n, err));
    d->episodes->feed = d->feed;
    d->episodes->feeds_groups = ls_reward_wants_groups(source);
    return LS_OK;
}

ls_status ls_grpo_ahead_open(grpo *g, ls_error *err) {
    grpo_ahead *a;
    LS_TRY(ls_array_alloc((void **)&a, 1, sizeof *a, "lag", err));
    g->ahead = a;
    g->world.is_left = &a->is_left;
    *a = (grpo_ahead){.g = g,
                      .n = g->o->lag + 1,
                      .sampling = g->engine_opts.sampling,
                      .loaded = -1,
                      .drawing = -1,
                      .saved = g->step,
                      .named = g->step,
                      .published = g->step};
    for (int k = 0; k < N_STAGES; k++) a->stages[k].step = g->step;
    pthread_mutex_init(&a->lock, NULL);
    pthread_cond_init(&a->changed, NULL);
    LS_TRY(ls_array_alloc((void **)&a->versions, a->n, sizeof *a->versions, "lag", err));
    LS_TRY(ls_array_alloc((void **)&a->draws, a->n, sizeof *a->draws, "lag", err));
    LS_TRY(ls_array_alloc((void **)&a->judges, a->n, sizeof *a->judges, "lag", err));
    for (int64_t i = 0; i < a->n; i++) LS_TRY(ls_grpo_draws_create(&a->draws[i], g, err));
    for (int64_t i = 0; i < a->n; i++) LS_TRY(open_feed(g, &a->draws[i], err));
    for (int64_t i = 0; i < a->n; i++) a->draws[i].episodes->weighs = g->engine_opts.weighs;
    LS_TRY(open_device(a, err));
    if (g->step == 0) LS_TRY(forget_versions(g, err));
    LS_TRY(open_versions(g, err));
    LS_TRY(open_engine(a, err));
    LS_TRY(open_flight(a, err));
    return start_threads(a, err);
}

static void end_threads(grpo_ahead *a) {
    atomic_store(&a->is_left, true);
    pthread_mutex_lock(&a->lock);
    a->quit = true;
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
    if (a->has_drawing_thread) pthread_join(a->drawing_thread, NULL);
    a->has_drawing_thread = false;
    for (; a->n_judges > 0; a->n_judges--) pthread_join(a->judges[a->n_judges - 1].thread, NULL);
}

ls_status ls_grpo_ahead_check_all(grpo *g, ls_error *err) {
    end_threads(g->ahead);
    LS_TRY(check(g->ahead, g->draws, true, err));
    return share_checks(g, g->draws, err);
}

static void close_version(version *v) {
    ls_parameters_free(v->weights);
    ls_model_close(v->model);
    free(v->digests);
}

void ls_grpo_ahead_close(grpo_ahead *a) {
    if (a == NULL) return;
    end_threads(a);
    ls_grpo_flight_close(a->flight);
    ls_engine_free(a->engine);
    for (int64_t i = 0; a->draws != NULL && i < a->n; i++) ls_grpo_draws_free(&a->draws[i]);
    for (int64_t i = 0; a->versions != NULL && i < a->n; i++) close_version(&a->versions[i]);
    close_version(&a->there);
    ls_device_close(a->own);
    ls_device_close(a->keeper);
    free(a->draws);
    free(a->judges);
    free(a->versions);
    pthread_cond_destroy(&a->changed);
    pthread_mutex_destroy(&a->lock);
    free(a);
}
