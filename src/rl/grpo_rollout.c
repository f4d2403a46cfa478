/* Who draws a run's episodes: the engine of this process, or servers, which get the trainer's weights from disk before
 * they draw with them. */
#include "rl/grpo_state.h"

/* ---- weights ---- */

/* The servers draw with these. */
static ls_status publish_weights(grpo *g, const grpo_weights *weights, ls_error *err) {
    ls_rollout_versions versions;
    if (g->published == weights->update) return LS_OK;
    if (ls_grpo_writes(g)) LS_TRY(ls_grpo_push_weights(g, weights, err));
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
    if (o->rollout_push == LS_PUSH_CHANGED && ls_grpo_writes(g)) LS_TRY(ls_grpo_push_open(&g->push, err));
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
