/* Who draws a run's episodes: the engine of this process, or servers, which get the trainer's weights from disk before
 * they draw with them. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/durable.h"
#include "base/file.h"
#include "base/mem.h"
#include "rl/grpo_state.h"

#define WEIGHTS_PREFIX "weights-"

/* ---- weights ---- */

/* Everything in RUN/rollout but the directory that is served: earlier weights, and what a killed process left. */
static ls_status remove_others(const char *directory, const char *name, ls_error *err) {
    char path[LS_SAVES_PATH_MAX + 300], **names = NULL;
    int64_t n = 0;
    ls_status status;
    LS_TRY_DONE(ls_directory_list(&names, &n, directory, err));
    for (int64_t i = 0; i < n; i++) {
        if (strcmp(names[i], name) == 0) continue;
        snprintf(path, sizeof path, "%s/%s", directory, names[i]);
        LS_TRY_DONE(ls_directory_remove(path, err));
    }
done:
    ls_names_free(names, n);
    return status;
}

/* The model directory appears under its name when it is complete. */
static ls_status write_weights(const grpo *g, const ls_parameters *weights, const char *directory, const char *name,
                               ls_error *err) {
    char fresh[LS_SAVES_PATH_MAX + 64], path[LS_SAVES_PATH_MAX + 64];
    snprintf(fresh, sizeof fresh, "%s/.%s.new", directory, name);
    snprintf(path, sizeof path, "%s/%s", directory, name);
    LS_TRY(ls_directory_make(directory, err));
    if (ls_file_exists(fresh)) LS_TRY(ls_directory_remove(fresh, err));
    LS_TRY(ls_directory_make(fresh, err));
    LS_TRY(ls_saves_save_model(g->saves, fresh, weights, err));
    if (ls_file_exists(path)) LS_TRY(ls_directory_remove(path, err)); /* of a run that began in this directory */
    return ls_path_rename(fresh, path, err);
}

/* Rank 0 writes the weights, has them served and tells their versions. */
static ls_status send_weights(grpo *g, const grpo_weights *weights, ls_error *err) {
    char directory[LS_SAVES_PATH_MAX], name[40], path[LS_SAVES_PATH_MAX + 64], *full;
    ls_status status;
    snprintf(directory, sizeof directory, "%s/rollout", g->o->train.run);
    snprintf(name, sizeof name, WEIGHTS_PREFIX "%08lld", (long long)weights->update);
    snprintf(path, sizeof path, "%s/%s", directory, name);
    LS_TRY(write_weights(g, weights->list, directory, name, err));
    if ((full = realpath(path, NULL)) == NULL) return LS_FAIL(err, LS_ERR_IO, "%s: %s", path, strerror(errno));
    status = ls_rollout_publish(g->rollout, full, (uint64_t)weights->update, err);
    free(full);
    return status == LS_OK ? remove_others(directory, name, err) : status;
}

/* The servers draw with these. */
static ls_status publish_weights(grpo *g, const grpo_weights *weights, ls_error *err) {
    ls_rollout_versions versions;
    if (g->published == weights->update) return LS_OK;
    if (ls_grpo_writes(g)) LS_TRY(send_weights(g, weights, err));
    versions = *ls_rollout_versions_of(g->rollout);
    if (g->comm != NULL)
        LS_TRY(ls_comm_tell(g->comm, 0, &versions, (int64_t)sizeof versions, "the servers' versions", err));
    ls_rollout_versions_set(g->rollout, &versions);
    g->published = weights->update;
    return LS_OK;
}

/* ---- draws ---- */

ls_status ls_grpo_open_rollout(grpo *g, ls_error *err) {
    const ls_grpo_options *o = g->o;
    char numerics[LS_NUMERICS_BYTES];
    const ls_rollout_options options = {.urls = o->rollout_url,
                                        .key_file = o->rollout_key_file,
                                        .concurrency = o->rollout_concurrency,
                                        .timeout_s = o->rollout_timeout,
                                        .notes = g->notes};
    const ls_rollout_model model = {.numerics = numerics,
                                    .vocab = g->model->config.vocab,
                                    .length = o->length,
                                    .logprob_of = g->engine_opts.logprob_of,
                                    .weighs = g->engine_opts.weighs,
                                    .stop = o->stop};
    ls_train_options_numerics(numerics, &o->train);
    g->published = -1;
    if (ls_rollout_open(&g->rollout, &options, &model, err) == LS_OK) return LS_OK;
    if (err != NULL) ls_error_prefix(err, "rollout_url");
    return err != NULL ? err->status : LS_ERR_IO;
}

typedef struct drawing {
    const grpo *g;
    const grpo_drawer *drawer;
    ls_episodes *episodes;
    /* Of the round. */
    int64_t n_done;
    ls_status status;
    ls_error reason;
} drawing;

/* Behind each tick: what has finished in it need not wait for the others. */
static void take_finished(void *context, int64_t n_done, int64_t n_requests, int64_t n_tokens) {
    drawing *d = context;
    ls_episodes *e = d->episodes;
    (void)n_tokens;
    if (e->feed == NULL || n_done == d->n_done) return;
    d->n_done = n_done;
    for (int64_t k = 0; k < n_requests && d->status == LS_OK; k++)
        if (e->requests[k].finish == LS_FINISH_STOP || e->requests[k].finish == LS_FINISH_LENGTH)
            d->status = ls_episodes_finish(e, &d->g->world, k, &d->reason);
}

static ls_status draw_by_engine(drawing *d, ls_request *requests, int64_t n, ls_error *err) {
    const grpo_drawer *by = d->drawer;
    d->n_done = 0;
    d->status = LS_OK;
    if (by->flight != NULL)
        LS_TRY(ls_grpo_flight_draw(by->flight, by->engine, requests, n, take_finished, d, err));
    else
        LS_TRY(ls_engine_run(by->engine, requests, n, take_finished, d, err));
    if (d->status != LS_OK && err != NULL) *err = d->reason;
    return d->status;
}

static ls_status draw_requests(void *context, ls_request *requests, int64_t n, ls_error *err) {
    drawing *d = context;
    const grpo_drawer *by = d->drawer;
    if (by->engine != NULL) return draw_by_engine(d, requests, n, err);
    return ls_rollout_draw(d->g->rollout, requests, n, by->sampling, by->is_recorded, err);
}

ls_status ls_grpo_draw(grpo *g, ls_episodes *e, const grpo_drawer *by, ls_error *err) {
    drawing d = {.g = g, .drawer = by, .episodes = e};
    const ls_drawer drawer = {draw_requests, &d};
    int64_t begin, end;
    if (by->engine == NULL) LS_TRY(publish_weights(g, &by->weights, err));
    LS_TRY(ls_grpo_wake(g, GRPO_ENGINE, err));
    ls_grpo_share(g, e->n, &begin, &end);
    return ls_episodes_run(e, &g->world, &drawer, begin, end, err);
}
