/* What is told of a step: its record, a line for people, the bundle of a mismatch. */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/durable.h"
#include "base/file.h"
#include "base/mem.h"
#include "num/exp64.h"
#include "rl/grpo_state.h"

static double mean_drawn(const grpo *g) {
    double sum = 0;
    for (int64_t s = 0; s < g->rows.n; s++) sum += (double)g->episodes->list[s].n_drawn;
    return sum / (double)g->rows.n;
}

static double share_overlong(const grpo *g) {
    double sum = 0;
    for (int64_t s = 0; s < g->rows.n; s++) sum += g->rows.overlong[s];
    return sum / (double)g->rows.n;
}

static double mean_turns(const grpo *g) {
    double sum = 0;
    for (int64_t s = 0; s < g->rows.n; s++) sum += (double)g->episodes->list[s].n_replies;
    return sum / (double)g->rows.n;
}

/* Numbers under the names that records of runs have (docs/reference/runs.md). */
typedef struct number {
    const char *name;
    double value;
} number;

static void tell_numbers(ls_run *run, const number *numbers, size_t n) {
    for (size_t i = 0; i < n; i++) ls_run_metric(run, numbers[i].name, numbers[i].value);
}

static void tell_rewards(const grpo *g) {
    const ls_advantage_metrics *a = &g->advantage_metrics;
    const number numbers[] = {
        {LS_METRIC_REWARD, a->reward_mean},      {"reward/std", a->reward_std},
        {"reward/min", a->reward_min},           {"reward/max", a->reward_max},
        {"reward/group_std", a->group_std_mean}, {"reward/failed", (double)a->n_failed},
        {"reward/groups", (double)a->n_groups},  {"reward/groups_equal", (double)a->n_groups_equal},
        {"reward/kept", (double)a->n_kept},      {LS_METRIC_LENGTH, mean_drawn(g)},
        {"length/overlong", share_overlong(g)},  {"length/turns", mean_turns(g)}};
    tell_numbers(g->records, numbers, sizeof numbers / sizeof numbers[0]);
    if (g->o->filter_groups) ls_run_metric(g->records, "reward/batches", (double)g->draws->n_batches);
    if (g->o->overlong_buffer > 0) ls_run_metric(g->records, "reward/overlong_penalty", g->overlong_penalty);
}

/* What each of several judges gave, without its weight, over the episodes that it gave anything. */
static void tell_judges(const grpo *g) {
    for (int64_t j = 0; j < g->o->n_judges && g->o->n_judges > 1; j++) {
        char name[sizeof g->o->judges[j].name + sizeof LS_METRIC_JUDGES + 8];
        double sum = 0, n = 0;
        for (int64_t i = 0; i < g->episodes->n; i++) {
            const ls_episode *x = &g->episodes->list[i];
            if (x->failed || isnan(x->parts[j])) continue;
            sum += x->parts[j];
            n++;
        }
        snprintf(name, sizeof name, LS_METRIC_JUDGES "%s/mean", g->o->judges[j].name);
        ls_run_metric(g->records, name, sum / n);
    }
}

/* What truncation left to draw from, over all drawn tokens. */
static void tell_support(const grpo *g) {
    double mass = 0, least = 1, kept = 0, n = 0;
    if (!ls_grpo_truncates(g)) return;
    for (int64_t s = 0; s < g->episodes->n; s++) {
        const ls_episode *x = &g->episodes->list[s];
        for (int64_t i = 0; i < x->n; i++) {
            if (x->drawn[i] == 0) continue;
            const double one = ls_exp64((double)x->log_mass[i]);
            mass += one;
            least = one < least ? one : least;
            kept += x->kept[i];
            n++;
        }
    }
    const number numbers[] = {{"support/mass", mass / n}, {"support/mass_min", least}, {"support/tokens", kept / n}};
    tell_numbers(g->records, numbers, n > 0 ? sizeof numbers / sizeof numbers[0] : 0);
}

static void tell_updates(const grpo *g) {
    ls_json_out *json;
    const number numbers[] = {{"updates", (double)ls_trainer_state(g->trainer)->step},
                              {"gradient_norm", g->stats.norm},
                              {"gradient_clipped", g->stats.clipped ? 1 : 0},
                              {LS_METRIC_RATE, g->stats.rate}};
    tell_numbers(g->records, numbers, g->n_updates > 0 ? sizeof numbers / sizeof numbers[0] : 1);
    if (g->n_updates == 0) return;
    json = ls_run_metrics(g->records, "");
    ls_loss_metrics_write(json, "loss", &g->last_loss, g->loss.policy);
    json = ls_run_metrics(g->records, "first_update");
    ls_json_double(json, "ratio_min", g->first_loss.ratio_min);
    ls_json_double(json, "ratio_max", g->first_loss.ratio_max);
    ls_json_double(json, "clip_fraction", g->first_loss.clip_fraction);
    ls_json_double(json, "k1", g->first_loss.old_k1);
    ls_json_double(json, "k2", g->first_loss.old_k2);
    ls_json_double(json, "k3", g->first_loss.old_k3);
}

/* How far the trainer's weights have gone from those that drew: nothing that a kernel or an engine did. */
static ls_status tell_staleness(const grpo *g, ls_error *err) {
    const ls_tokens tokens = {g->rows.n, g->rows.offsets, g->rows.mask};
    const number numbers[] = {{"lag/steps", (double)(g->step - 1 - g->draws->behind)},
                              {"lag/checked", (double)g->gate.n_tokens}};
    ls_mismatch m;
    if (g->ahead == NULL) return LS_OK;
    tell_numbers(g->records, numbers, sizeof numbers / sizeof numbers[0]);
    if (g->o->updates == LS_UPDATES_IN_FLIGHT) ls_run_metric(g->records, "lag/borders", (double)g->draws->n_borders);
    if (ls_grpo_stops(g)) return LS_OK;
    LS_TRY(ls_mismatch_of(&m, &tokens, g->rows.recorded, g->rows.trainer, err));
    ls_mismatch_write(ls_run_metrics(g->records, "staleness"), &m);
    return LS_OK;
}

static ls_status tell_gate(const grpo *g, ls_error *err) {
    const bool fresh = ls_grpo_is_fresh(g);
    const ls_tokens tokens = {g->rows.n, g->rows.offsets, fresh ? g->rows.mask : g->rows.is_checked};
    ls_mismatch m;
    ls_run_gate gate;
    ls_json_out *json;
    LS_TRY(ls_mismatch_of(&m, &tokens, g->rows.recorded, fresh ? g->rows.trainer : g->rows.checked, err));
    m.equal_fraction = g->gate.n_tokens == 0
                           ? (double)NAN
                           : (double)(g->gate.n_tokens - g->gate.n_differing) / (double)g->gate.n_tokens;
    gate = (ls_run_gate){"rollout", g->gate.n_tokens,        g->gate.n_differing, m.abs_max, m.k1, m.k2,
                         m.k3,      g->gate.n_differing == 0};
    ls_run_gate_add(g->records, &gate);
    json = ls_run_metrics(g->records, LS_METRIC_MISMATCH);
    ls_mismatch_write(json, &m);
    ls_json_begin_object(json, "aliases");
    ls_mismatch_write_aliases(json, &m);
    ls_json_end_object(json);
    if (g->correction.n == 0 || ls_grpo_stops(g)) return LS_OK;
    json = ls_run_metrics(g->records, "correction");
    ls_correction_write(json, &g->correction_metrics, &g->correction);
    ls_json_begin_object(json, "aliases");
    ls_correction_write_aliases(json, &g->correction_metrics, &g->correction);
    ls_json_end_object(json);
    return LS_OK;
}

static void tell_times(const grpo *g, double seconds) {
    const grpo_times *t = &g->times;
    const number numbers[] = {
        {"seconds/step", seconds},       {"seconds/rollout", t->rollout},
        {"seconds/reward", t->reward},   {"seconds/reference", t->reference},
        {"seconds/gate", t->gate},       {"seconds/update", t->update},
        {"seconds/evaluation", t->eval}, {LS_METRIC_SPEED, mean_drawn(g) * (double)g->rows.n / seconds}};
    tell_numbers(g->records, numbers, sizeof numbers / sizeof numbers[0]);
    if (g->ahead == NULL) return;
    const number ahead[] = {
        {"seconds/wait", t->wait}, {"seconds/idle", g->draws->idle}, {"seconds/check", g->draws->check}};
    tell_numbers(g->records, ahead, sizeof ahead / sizeof ahead[0]);
}

/* The first groups, whole, with record_samples episodes or a few more. */
static ls_status tell_samples(const grpo *g, ls_error *err) {
    const int64_t samples = g->o->samples, groups = (g->o->record_samples + samples - 1) / samples;
    for (int64_t s = 0; s < groups * samples && s < g->episodes->n; s++) {
        const ls_episode *x = &g->episodes->list[s];
        char id[LS_EPISODE_ID_MAX];
        char *text = NULL;
        int64_t bytes;
        LS_TRY(ls_episode_text(x, &text, &bytes, err));
        ls_episode_id(id, x);
        const ls_run_sample sample = {.id = id,
                                      .prompt = x->question.prompt.text,
                                      .prompt_bytes = x->question.prompt.bytes,
                                      .completion = text,
                                      .completion_bytes = bytes,
                                      .reward = x->reward,
                                      .advantage = (double)g->rows.advantages[g->rows.places[s]],
                                      .n_prompt = x->n_prompt,
                                      .n_completion = x->n_drawn,
                                      .finish = x->overlong ? "length" : "stop"};
        ls_run_sample_add(g->records, &sample);
        free(text);
    }
    return LS_OK;
}

/* What a number cannot hold as a whole is told in halves. */
static void tell_digest(const grpo *g) {
    ls_run_metric(g->records, "digest/high", (double)(g->result->digest >> 32));
    ls_run_metric(g->records, "digest/low", (double)(g->result->digest & UINT32_MAX));
}

static void show_step(const grpo *g, double seconds) {
    const ls_run_glance glance = {.step = g->step,
                                  .n_steps = g->o->train.steps,
                                  .reward = g->advantage_metrics.reward_mean,
                                  .length = mean_drawn(g),
                                  .loss = g->n_updates > 0 ? g->last_loss.loss : (double)NAN,
                                  .rate = g->n_updates > 0 ? g->stats.rate : (double)NAN,
                                  .speed = mean_drawn(g) * (double)g->rows.n / seconds,
                                  .tokens = g->gate.n_tokens,
                                  .different = g->gate.n_differing,
                                  .left = ls_run_seconds_left(g->records)};
    char text[256];
    if (g->progress == NULL || (isatty(fileno(g->progress)) && isnan(g->eval_reward))) return; /* records show it */
    ls_run_glance_text(text, sizeof text, &glance);
    fprintf(g->progress, "%s%s", isatty(fileno(g->progress)) ? "\r\033[K" : "", text);
    if (!isnan(g->eval_reward)) fprintf(g->progress, "  held-out reward %.4g", g->eval_reward);
    fputc('\n', g->progress);
}

/* What was written for servers: before the step's draws, or for an evaluation behind the step before. */
static void tell_push(grpo *g) {
    if (g->rollout != NULL) ls_run_metric(g->records, "rollout/push_bytes", (double)atomic_exchange(&g->pushed, 0));
}

ls_status ls_grpo_log(grpo *g, double seconds, ls_error *err) {
    ls_status status = LS_OK;
    if (!ls_grpo_writes(g)) return LS_OK;
    LS_TRY_DONE(ls_run_step_begin(g->records, g->step, err));
    ls_run_step_seconds(g->records, seconds);
    tell_rewards(g);
    tell_judges(g);
    tell_support(g);
    tell_updates(g);
    LS_TRY_DONE(tell_gate(g, err));
    LS_TRY_DONE(tell_staleness(g, err));
    if (!isnan(g->eval_reward)) {
        ls_run_metric(g->records, "held_out/reward", g->eval_reward);
        ls_run_metric(g->records, "held_out/length", g->eval_length);
    }
    tell_digest(g);
    tell_times(g, seconds);
    tell_push(g);
    LS_TRY_DONE(tell_samples(g, err));
    LS_TRY_DONE(ls_run_step_commit(g->records, err));
    show_step(g, seconds);
done:
    if (status != LS_OK) ls_run_step_drop(g->records);
    return status;
}

ls_status ls_grpo_log_beginning(grpo *g, ls_error *err) {
    LS_TRY(ls_run_step_begin(g->records, 0, err));
    ls_run_step_seconds(g->records, g->times.eval);
    ls_run_metric(g->records, LS_METRIC_HELD_OUT, g->eval_reward);
    ls_run_metric(g->records, "held_out/length", g->eval_length);
    tell_push(g);
    return ls_run_step_commit(g->records, err);
}

/* ---- a mismatch ---- */

/* Of the engine; of servers, as many as their answers show. */
static int64_t slots_of(const grpo *g) {
    ls_engine_plan plan;
    int64_t slots = 1;
    const ls_engine *engine = g->ahead != NULL ? ls_grpo_ahead_engine(g) : g->engine;
    if (engine != NULL) {
        ls_engine_get_plan(engine, &plan);
        return plan.slots;
    }
    for (int64_t s = 0; s < g->rows.n; s++)
        if (g->episodes->list[s].slot >= slots) slots = g->episodes->list[s].slot + 1;
    return slots;
}

/* That its episodes were drawn with. */
static const ls_parameters *weights_of_step(const grpo *g) {
    return g->ahead != NULL ? ls_grpo_ahead_weights(g) : ls_trainer_state(g->trainer)->weights;
}

static bool has_versions(const grpo *g) { return g->draws->newest > g->draws->behind; }

static ls_status describe_bundle(const grpo *g, ls_bundle *b, ls_error *err) {
    *b = (ls_bundle){.step = g->step,
                     .dtype = (ls_dtype)g->o->train.dtype,
                     .profile = (ls_profile)g->o->train.profile,
                     .sampling = g->engine_opts.sampling,
                     .first_prompt = g->episodes->list[0].prompt_i,
                     .samples = g->o->samples,
                     .length = g->o->length,
                     .slots = slots_of(g),
                     .levers = g->engine_opts.levers,
                     .n_tokens = g->gate.n_tokens,
                     .n_differing = g->gate.n_differing,
                     .n_sequences_differing = g->gate.n_sequences_differing,
                     .sequence = g->gate.sequence,
                     .row = g->gate.row,
                     .n = g->rows.n};
    return ls_parameters_digest(weights_of_step(g), &b->weights, err);
}

static ls_status list_sequences(const grpo *g, ls_bundle *b, char (**ids)[LS_EPISODE_ID_MAX], ls_error *err) {
    LS_TRY(ls_array_alloc((void **)&b->sequences, b->n, sizeof *b->sequences, "bundle", err));
    LS_TRY(ls_array_alloc((void **)ids, b->n, sizeof **ids, "bundle", err));
    for (int64_t s = 0; s < b->n; s++) {
        const ls_episode *x = &g->episodes->list[s];
        const int64_t row = g->rows.offsets[g->rows.places[s]];
        ls_episode_id((*ids)[s], x);
        b->sequences[s] = (ls_bundle_sequence){(*ids)[s],
                                               x->tokens,
                                               x->n,
                                               x->n_prompt,
                                               g->rows.mask + row,
                                               g->rows.recorded + row,
                                               (ls_grpo_is_fresh(g) ? g->rows.trainer : g->rows.checked) + row,
                                               x->slot,
                                               x->n_hit,
                                               x->n_preempted};
    }
    return LS_OK;
}

/* The bundle is complete when it has its name; what a killed process leaves is removed with its checkpoints. */
static ls_status write_bundle(const grpo *g, const ls_bundle *b, ls_error *err) {
    char fresh[LS_SAVES_PATH_MAX + 64];
    const ls_replay_opts replay = {.inject = g->engine_opts.inject, .device = g->choice.name};
    bool is_made = false;
    ls_status status;
    snprintf(fresh, sizeof fresh, "%s/.step-%08lld.mismatch", g->checkpoints, (long long)g->step);
    LS_TRY_DONE(ls_directory_make(fresh, err));
    is_made = true;
    LS_TRY_DONE(ls_saves_save_model(g->saves, fresh, weights_of_step(g), err));
    LS_TRY_DONE(ls_bundle_write(fresh, b, g->config, err));
    if (!has_versions(g)) {
        LS_TRY_DONE(ls_replay(&g->result->finding, fresh, &replay, err));
        LS_TRY_DONE(ls_finding_save(fresh, &g->result->finding, err));
    }
    LS_TRY_DONE(ls_directory_sync(fresh, err));
    if (ls_file_exists(g->result->bundle)) LS_TRY_DONE(ls_directory_remove(g->result->bundle, err));
    LS_TRY_DONE(ls_path_rename(fresh, g->result->bundle, err));
    is_made = false;
    LS_TRY_DONE(ls_directory_sync(g->o->train.run, err));
done:
    if (is_made) (void)ls_directory_remove(fresh, NULL);
    return status;
}

static void tell_update(const grpo *g) {
    char id[LS_EPISODE_ID_MAX];
    const ls_gate *gate = &g->gate;
    if (g->progress == NULL) return;
    ls_episode_id(id, &g->episodes->list[gate->sequence]);
    fprintf(g->progress,
            "step %lld: rollout and trainer differ in %lld of %lld tokens, %lld of %lld episodes\n"
            "first difference: %s, token %lld: rollout %.9g (%08x), trainer %.9g (%08x), %lld ulps\n",
            (long long)g->step, (long long)gate->n_differing, (long long)gate->n_tokens,
            (long long)gate->n_sequences_differing, (long long)g->rows.n, id, (long long)gate->row + 1,
            (double)gate->rollout, ls_float_bits(gate->rollout), (double)gate->trainer, ls_float_bits(gate->trainer),
            (long long)ls_float_ulps(gate->rollout, gate->trainer));
    if (has_versions(g)) {
        fprintf(
            g->progress,
            "versions %lld to %lld drew them: they are in %s/versions\n"
            "reproduce: lockstep train grpo with the options of this run, another run, and follow=%s/" LS_BORDERS_NAME
            "\n",
            (long long)g->draws->behind, (long long)g->draws->newest, g->o->train.run, g->o->train.run);
        return;
    }
    ls_finding_print(g->progress, &g->result->finding);
    fprintf(g->progress, "reproduce: lockstep train replay %s\n", g->result->bundle);
}

ls_status ls_grpo_bundle(grpo *g, ls_error *err) {
    ls_bundle b;
    ls_bundle_version versions[LS_GRPO_LAG_MAX + 1];
    char(*ids)[LS_EPISODE_ID_MAX] = NULL;
    ls_status status = LS_OK;
    if (!ls_grpo_writes(g) || g->result->bundle[0] != '\0') return LS_OK;
    LS_TRY_DONE(describe_bundle(g, &b, err));
    LS_TRY_DONE(list_sequences(g, &b, &ids, err));
    b.versions = versions;
    if (has_versions(g)) LS_TRY_DONE(ls_grpo_ahead_list(g, versions, &b.n_versions, err));
    snprintf(g->result->bundle, sizeof g->result->bundle, "%s/mismatch-%08lld", g->o->train.run, (long long)g->step);
    LS_TRY_DONE(write_bundle(g, &b, err));
    tell_update(g);
done:
    free(ids);
    free(b.sequences);
    return status;
}
