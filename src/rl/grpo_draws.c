/* The episodes of one step: draws, rewards, and other problems in the place of groups that teach nothing. */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "rl/environment.h"
#include "rl/grpo_state.h"

ls_status ls_grpo_draws_create(grpo_draws *d, const grpo *g, ls_error *err) {
    const ls_grpo_options *o = g->o;
    LS_TRY(ls_episodes_create(&d->episodes, o->prompts, o->samples, o->length, o->max_tokens, err));
    LS_TRY(ls_array_alloc((void **)&d->equal, o->prompts, sizeof *d->equal, "groups", err));
    LS_TRY(ls_array_alloc((void **)&d->rewards, d->episodes->n, sizeof *d->rewards, "episodes", err));
    if (o->lag == 0) return LS_OK;
    LS_TRY(ls_array_alloc((void **)&d->logprob, d->episodes->n * o->length, sizeof *d->logprob, "episodes", err));
    LS_TRY(ls_array_alloc((void **)&d->is_checked, d->episodes->n, sizeof *d->is_checked, "episodes", err));
    if (!ls_grpo_truncates(g)) return LS_OK;
    return ls_supports_create(&d->supports, d->episodes->n * o->length, g->model->config.vocab, err);
}

void ls_grpo_draws_free(grpo_draws *d) {
    ls_episodes_free(d->episodes);
    ls_feed_free(d->feed);
    free(d->equal);
    free(d->rewards);
    free(d->logprob);
    free(d->is_checked);
    ls_supports_free(d->supports);
}

/* ---- turns, for a file ---- */

static void write_episode(ls_json_out *json, int64_t step, const ls_episode *x, const char *turns) {
    char id[LS_EPISODE_ID_MAX];
    ls_episode_id(id, x);
    ls_json_begin_object(json, NULL);
    ls_json_int(json, "step", step);
    ls_json_string(json, "episode", id);
    ls_json_text(json, "prompt", x->question.prompt.text, x->question.prompt.bytes);
    ls_json_raw(json, "turns", turns);
    ls_json_double(json, "reward", x->reward);
    ls_json_bool(json, "failed", x->failed);
    ls_json_string(json, "finish", x->overlong ? "length" : "stop");
    ls_json_end_object(json);
    ls_json_newline(json);
}

ls_status ls_grpo_record_turns(const grpo *g, const grpo_draws *d, const uint8_t *groups, ls_error *err) {
    const char *path = g->o->environment_record;
    ls_json_out json;
    ls_status status = LS_OK;
    FILE *file;
    if (path[0] == '\0') return LS_OK;
    if ((file = fopen(path, "a")) == NULL)
        return LS_FAIL(err, LS_ERR_IO, "environment_record: cannot write to %.200s: %s", path, strerror(errno));
    ls_json_init(&json, file);
    for (int64_t i = 0; i < d->episodes->n && status == LS_OK; i++) {
        char *turns = NULL;
        if (groups != NULL && groups[i / g->o->samples] == 0) continue;
        status = ls_environment_turns(&d->episodes->list[i], &turns, err);
        if (status == LS_OK) write_episode(&json, d->step, &d->episodes->list[i], turns);
        free(turns);
    }
    if (ferror(file) != 0 && status == LS_OK)
        status = LS_FAIL(err, LS_ERR_IO, "environment_record: cannot write to %.200s", path);
    if (fclose(file) != 0 && status == LS_OK)
        status = LS_FAIL(err, LS_ERR_IO, "environment_record: cannot write to %.200s", path);
    return status;
}

/* ---- rewards ---- */

void ls_grpo_tell_episodes(const grpo *g, int64_t step, const ls_episodes *e, const char *what) {
    if (g->progress == NULL || e->message[0] == '\0') return;
    if (e->n_failed > 0)
        fprintf(g->progress, "step %lld: %s%lld of %lld episodes failed: %s\n", (long long)step, what,
                (long long)e->n_failed, (long long)e->n, e->message);
    else
        fprintf(g->progress, "step %lld: %s%s\n", (long long)step, what, e->message);
}

/* Rewards from outside are asked for once, whatever the number of processes. */
static ls_status judge(const grpo *g, grpo_draws *d, ls_error *err) {
    ls_episodes *e = d->episodes;
    const int64_t bytes = e->n * (int64_t)sizeof(float);
    const bool outside = ls_grpo_judged_by(g->o, LS_REWARD_COMMAND) || ls_grpo_judged_by(g->o, LS_REWARD_SERVER) ||
                         ls_grpo_judged_by(g->o, LS_REWARD_PYTHON);
    int64_t begins[LS_RANKS_MAX + 1] = {0};
    if (ls_grpo_writes(g) || !outside) LS_TRY(ls_episodes_judge(e, &g->world, err));
    ls_grpo_tell_episodes(g, d->step, e, "");
    for (int64_t s = 0; s < e->n; s++) d->rewards[s] = (float)e->list[s].reward;
    if (g->comm == NULL || !outside) return LS_OK;
    for (int32_t r = 1; r <= ls_comm_ranks(g->comm); r++) begins[r] = bytes;
    LS_TRY(ls_comm_share(g->comm, d->rewards, begins, "the rewards", err));
    for (int64_t s = 0; s < e->n; s++) {
        e->list[s].reward = (double)d->rewards[s];
        e->list[s].failed = isnan(d->rewards[s]);
    }
    return LS_OK;
}

static ls_status judge_timed(const grpo *g, grpo_draws *d, ls_error *err) {
    const double start = ls_clock_seconds();
    LS_TRY(judge(g, d, err));
    d->reward += ls_clock_seconds() - start;
    return LS_OK;
}

/* Groups that teach nothing: draws->equal; returns how many. */
static int64_t find_equal(grpo_draws *d) {
    const ls_episodes *e = d->episodes;
    int64_t n = 0;
    for (int64_t p = 0; p < e->n_problems; p++) {
        const ls_episode *group = e->list + p * e->samples, *first = NULL;
        bool equal = true;
        for (int64_t k = 0; k < e->samples; k++) {
            if (group[k].failed) continue;
            if (first == NULL) first = &group[k];
            if ((float)group[k].reward != (float)first->reward) equal = false;
        }
        d->equal[p] = equal;
        n += equal;
    }
    return n;
}

/* ---- draws ---- */

static ls_status draw(grpo *g, grpo_draws *d, const grpo_drawer *drawer, ls_error *err) {
    const double start = ls_clock_seconds();
    LS_TRY(ls_grpo_draw(g, d->episodes, drawer, err));
    d->rollout += ls_clock_seconds() - start;
    return LS_OK;
}

static ls_status gather_episodes(const grpo *g, grpo_draws *d, ls_error *err) {
    const double start = ls_clock_seconds();
    if (g->comm == NULL) return LS_OK;
    LS_TRY(ls_grpo_gather(g, d->episodes, err));
    d->rollout += ls_clock_seconds() - start;
    return LS_OK;
}

ls_status ls_grpo_draws_join(grpo *g, grpo_draws *d, ls_error *err) {
    LS_TRY(gather_episodes(g, d, err));
    return judge_timed(g, d, err);
}

static ls_status draw_and_join(grpo *g, grpo_draws *d, const grpo_drawer *drawer, ls_error *err) {
    LS_TRY(draw(g, d, drawer, err));
    return ls_grpo_draws_join(g, d, err);
}

/* With filter_groups a step has so many batches of problems to itself, whether it takes them or not: which problem is
 * drawn when depends on no other step. */
static ls_status make_filtered(grpo *g, grpo_draws *d, const grpo_drawer *drawer, ls_error *err) {
    const ls_grpo_options *o = g->o;
    const int64_t most = o->max_num_gen_batches, first = (d->step - 1) * most * o->prompts;
    int64_t left;
    LS_TRY(ls_episodes_begin(d->episodes, &g->world, LS_TASK_SPLIT_TRAIN, first, err));
    LS_TRY(draw_and_join(g, d, drawer, err));
    for (d->n_batches = 1; (left = find_equal(d)) > 0; d->n_batches++) {
        if (d->n_batches == most) {
            if (g->progress != NULL)
                fprintf(g->progress,
                        "step %lld: after %lld batches of problems %lld of %lld groups have equal rewards\n",
                        (long long)d->step, (long long)most, (long long)left, (long long)o->prompts);
            break;
        }
        LS_TRY(ls_grpo_record_turns(g, d, d->equal, err));
        LS_TRY(ls_episodes_renew(d->episodes, &g->world, LS_TASK_SPLIT_TRAIN, d->equal,
                                 first + d->n_batches * o->prompts, err));
        LS_TRY(draw_and_join(g, d, drawer, err));
    }
    return LS_OK;
}

ls_status ls_grpo_draws_begin(grpo *g, grpo_draws *d, ls_error *err) {
    d->rollout = d->reward = d->check = d->idle = 0;
    d->n_batches = 1;
    if (g->o->filter_groups) return LS_OK;
    if (d->feed != NULL) ls_feed_begin(d->feed);
    return ls_episodes_begin(d->episodes, &g->world, LS_TASK_SPLIT_TRAIN, (d->step - 1) * g->o->prompts, err);
}

ls_status ls_grpo_draws_make(grpo *g, grpo_draws *d, const grpo_drawer *drawer, ls_error *err) {
    return g->o->filter_groups ? make_filtered(g, d, drawer, err) : draw(g, d, drawer, err);
}
