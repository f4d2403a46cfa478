/* Draws whose weights change on the way (updates=in_flight). A new version is given to the engine as soon as it is
 * published. The engine then computes every state again, so a token has the value that its version gives behind all
 * tokens before it. Which version drew which tokens goes into the run's log (rl/borders.h) before anything is learnt
 * from the step.
 *
 * A step that a log has is drawn along it: version by version, every sequence up to its next border. It is then
 * submitted again behind what it has drawn, and draws are addressed by positions: the bits are those of the run that
 * wrote the log, whenever versions arrive. */
#define _POSIX_C_SOURCE 200809L
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "rl/grpo_state.h"

/* A request of the round, up to its next border. */
typedef struct part {
    ls_request *request;
    int64_t before; /* tokens of its completion that are drawn */
} part;

struct grpo_flight {
    const grpo *g;
    grpo_versions versions;
    char path[LS_SAVES_PATH_MAX]; /* of the log */
    int64_t bytes;                /* of it */
    ls_borders *own, *followed;   /* what it had when the run went on, and the option's; or NULL */
    grpo_draws *draws;            /* the step that is drawn */
    const ls_step_borders *along; /* its borders in a log; NULL: freely */
    /* One round along a log. */
    ls_request *parts;
    part *owners;                /* [episodes], as parts */
    ls_engine_progress progress; /* who else is told of a tick, drawn freely */
    void *progress_context;
    /* What failed within a tick's report. */
    ls_status status;
    ls_error reason;
};

/* ---- freely ---- */

static void take_newest(void *context, int64_t n_done, int64_t n_requests, int64_t n_tokens) {
    grpo_flight *f = context;
    const grpo_versions *v = &f->versions;
    f->progress(f->progress_context, n_done, n_requests, n_tokens);
    if (f->status == LS_OK) f->status = v->use(v->context, v->newest(v->context), &f->reason);
}

static ls_status draw_freely(grpo_flight *f, ls_engine *engine, ls_request *requests, int64_t n, ls_error *err) {
    f->status = LS_OK;
    take_newest(f, 0, n, 0);
    if (f->status == LS_OK) LS_TRY(ls_engine_run(engine, requests, n, take_newest, f, err));
    if (f->status != LS_OK && err != NULL) *err = f->reason;
    return f->status;
}

/* ---- along a log ---- */

static bool is_stopped(void *context, const int32_t *completion, int64_t n) {
    const part *p = context;
    (void)completion; /* the end of the request's */
    return p->request->stop(p->request->stop_context, p->request->completion, p->before + n);
}

static int64_t episode_of(const ls_episodes *e, const ls_request *r) {
    return ((int64_t)r->prompt_i - e->first_problem) * e->samples + r->sample_i;
}

/* An episode's prompt and completion lie one behind the other. */
static void ask_part(ls_request *out, part *p, ls_request *r, int64_t end) {
    const int64_t before = r->n_completion;
    *p = (part){r, before};
    *out = *r;
    out->n_prompt = r->n_prompt + before;
    out->max_tokens = end - out->n_prompt;
    out->completion = r->completion + before;
    out->logprob = r->logprob + before;
    out->weights = r->weights + before;
    if (r->kept != NULL) out->kept = r->kept + before;
    if (r->log_mass != NULL) out->log_mass = r->log_mass + before;
    out->n_completion = 0;
    if (r->stop == NULL) return;
    out->stop = is_stopped;
    out->stop_context = p;
}

static void take_part(const ls_request *drawn, const part *p) {
    ls_request *r = p->request;
    if (p->before == 0) r->n_hit = drawn->n_hit;
    r->n_completion = p->before + drawn->n_completion;
    r->n_preempted += drawn->n_preempted;
    r->slot = drawn->slot;
    r->error = drawn->error;
    if (drawn->finish != LS_FINISH_LENGTH || r->n_completion == r->max_tokens) r->finish = drawn->finish;
}

/* Everything that this version draws. */
static ls_status draw_version(grpo_flight *f, int64_t version, ls_engine *engine, ls_request *requests, int64_t n,
                              ls_error *err) {
    int64_t m = 0;
    for (int64_t k = 0; k < n; k++) {
        ls_request *r = &requests[k];
        const int64_t i = episode_of(f->draws->episodes, r), token = r->n_prompt + r->n_completion;
        if (r->finish != LS_FINISH_NONE || ls_borders_version(f->along, i, token) != version) continue;
        ask_part(&f->parts[m], &f->owners[m], r, ls_borders_next(f->along, i, token, r->n_prompt + r->max_tokens));
        m++;
    }
    if (m == 0) return LS_OK;
    LS_TRY(f->versions.use(f->versions.context, version, err));
    LS_TRY(ls_engine_run(engine, f->parts, m, NULL, NULL, err));
    for (int64_t k = 0; k < m; k++) take_part(&f->parts[k], &f->owners[k]);
    return LS_OK;
}

static ls_status draw_along(grpo_flight *f, ls_engine *engine, ls_request *requests, int64_t n, ls_error *err) {
    const grpo_draws *d = f->draws;
    for (int64_t k = 0; k < n; k++) {
        requests[k].n_completion = requests[k].n_preempted = 0;
        requests[k].finish = LS_FINISH_NONE;
    }
    for (int64_t v = ls_max_i64(d->step - 1 - f->g->o->lag, 0); v < d->step; v++)
        LS_TRY(draw_version(f, v, engine, requests, n, err));
    return LS_OK;
}

ls_status ls_grpo_flight_draw(grpo_flight *f, ls_engine *engine, ls_request *requests, int64_t n,
                              ls_engine_progress progress, void *context, ls_error *err) {
    f->progress = progress;
    f->progress_context = context;
    return f->along != NULL ? draw_along(f, engine, requests, n, err) : draw_freely(f, engine, requests, n, err);
}

/* ---- steps ---- */

static bool is_logged(const grpo_flight *f, int64_t step) { return ls_borders_of(f->own, step) != NULL; }

void ls_grpo_flight_begin(grpo_flight *f, grpo_draws *d) {
    f->draws = d;
    f->along = ls_borders_of(is_logged(f, d->step) ? f->own : f->followed, d->step);
}

ls_status ls_grpo_flight_end(grpo_flight *f, ls_error *err) {
    grpo_draws *d = f->draws;
    ls_step_borders drawn;
    ls_status status = LS_OK;
    LS_TRY(ls_borders_find(&drawn, d->episodes, err));
    d->behind = d->step - 1;
    d->newest = 0;
    for (int64_t k = 0; k < drawn.ends[drawn.n]; k++) {
        d->behind = ls_min_i64(d->behind, drawn.list[k].version);
        d->newest = ls_max_i64(d->newest, drawn.list[k].version);
    }
    d->n_borders = drawn.ends[drawn.n] - drawn.n;
    if (f->along != NULL) LS_TRY_DONE(ls_borders_agree(&drawn, f->along, err));
    if (!is_logged(f, d->step)) status = ls_borders_add(f->path, &f->bytes, d->step, &drawn, err);
done:
    ls_step_borders_deinit(&drawn);
    return status;
}

/* ---- opening ---- */

/* A run that begins has no log yet; what lies there is another's. */
static ls_status open_log(grpo_flight *f, ls_error *err) {
    const grpo *g = f->g;
    const ls_borders_limits limits = {g->episodes->n, g->o->length, g->o->lag};
    snprintf(f->path, sizeof f->path, "%.1100s/" LS_BORDERS_NAME, g->o->train.run);
    if (g->o->follow[0] != '\0') LS_TRY(ls_borders_read(&f->followed, g->o->follow, &limits, err));
    if (g->o->train.resume && ls_file_exists(f->path)) LS_TRY(ls_borders_read(&f->own, f->path, &limits, err));
    if (f->own != NULL) f->bytes = f->own->bytes;
    if (g->step > 0 && !is_logged(f, g->step))
        return LS_FAIL(err, LS_ERR_FORMAT, "%s: %lld steps; the run has learnt from %lld", f->path,
                       (long long)(f->own != NULL ? f->own->n : 0), (long long)g->step);
    return ls_borders_begin(f->path, f->bytes, err);
}

ls_status ls_grpo_flight_open(grpo_flight **out, const grpo *g, const grpo_versions *versions, ls_error *err) {
    const int64_t n = g->episodes->n;
    grpo_flight *f;
    LS_TRY(ls_array_alloc((void **)&f, 1, sizeof *f, "updates", err));
    *out = f;
    f->g = g;
    f->versions = *versions;
    LS_TRY(ls_array_alloc((void **)&f->parts, n, sizeof *f->parts, "updates", err));
    LS_TRY(ls_array_alloc((void **)&f->owners, n, sizeof *f->owners, "updates", err));
    return open_log(f, err);
}

void ls_grpo_flight_close(grpo_flight *f) {
    if (f == NULL) return;
    ls_borders_free(f->own);
    ls_borders_free(f->followed);
    free(f->parts);
    free(f->owners);
    free(f);
}
