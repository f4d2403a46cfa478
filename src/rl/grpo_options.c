/* The options of a run as a table, and what their values mean to the parts that it is made of. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/parallel.h"
#include "op/choice.h"
#include "rl/borders.h"
#include "rl/grpo.h"
#include "train/shared_rows.h"

static const char *const push_names[] = {[LS_PUSH_WHOLE] = "whole", [LS_PUSH_CHANGED] = "changed", NULL};
static const char *const gates[] = {"stop", "warn", NULL};
static const char *const rewards[] = {"auto", "task",    "exact",  "number",      "choice", "regex",
                                      "json", "command", "server", "environment", "python", NULL};

static const char *const prefix_names[] = {"off", "shared", NULL};
static const char *const overlong_names[] = {"refuse", "leave_out", NULL};
static const char *const update_names[] = {"between", "in_flight", NULL};

#define AT(field) offsetof(ls_grpo_options, field)
#define TEXT(bits, field, help) \
    { #field, LS_OPTION_TEXT, bits, AT(field), 0, 0, NULL, help }
#define INT(bits, field, low, high, help) \
    { #field, LS_OPTION_INT, bits, AT(field), low, high, NULL, help }
#define NUMBER(bits, field, low, high, help) \
    { #field, LS_OPTION_NUMBER, bits, AT(field), low, high, NULL, help }
#define SWITCH(bits, field, help) \
    { #field, LS_OPTION_SWITCH, bits, AT(field), 0, 0, NULL, help }
#define CHOICE(bits, field, choices, help) \
    { #field, LS_OPTION_CHOICE, bits, AT(field), 0, 0, choices, help }

static const ls_option rows[] = {
    TEXT(true, task, "Task whose problems are trained on (lockstep task --list)"),
    TEXT(true, task_options, "Its options: NAME=VALUE,NAME=VALUE"),
    TEXT(true, stop,
         "Text that ends a completion, besides the end-of-sequence token (empty: none; auto: a line break for tasks of "
         "style=bare)"),
    INT(true, prompts, 1, 1 << 20, "Problems of a step"),
    INT(true, samples, 1, 1 << 20, "Episodes of a problem: the group over which advantages are taken"),
    INT(true, max_tokens, 0, 1 << 24, "Tokens of a completion, at most (0: 32 for tasks of style=bare, else 256)"),
    TEXT(true, data_max_tokens,
         "Field of a line of data that bounds its completions further (empty: none; docs/guide/data.md)"),
    INT(true, length, 0, 1 << 24,
        "Tokens of an episode, prompt and all turns, at most (0: max_tokens + 128, with data + 512)"),
    NUMBER(true, temperature, 1e-6, 1e6, "Of rollouts, and of the log-probabilities that are learnt from"),
    INT(true, top_k, 0, 1 << 30,
        "Rollouts draw from this many of the likeliest tokens, and that is learnt (0: from all)"),
    NUMBER(true, top_p, 0, 1, "The same: from the fewest tokens with this probability together (1: from all)"),
    NUMBER(true, min_p, 0, 1, "The same: from tokens of this part of the likeliest one's probability (0: from all)"),
    CHOICE(true, advantages, ls_advantage_names, "Reward to advantage: mean, std or rloo (docs/reference/losses.md)"),
    SWITCH(true, population, "Of std: the deviation divides by n, not n - 1"),
    NUMBER(true, advantage_eps, 0, 1e6, "Of std: added to the deviation"),
    SWITCH(true, drop_equal, "Leave out groups whose rewards are all equal"),
    SWITCH(true, filter_groups,
           "Draw other problems in the place of groups whose rewards are all equal, and leave out what is still equal "
           "in the end (DAPO's dynamic sampling)"),
    INT(true, max_num_gen_batches, 0, 1 << 16,
        "Of filter_groups: how often a step draws, at most, the first time included (0: 10)"),
    INT(true, overlong_buffer, 0, 1 << 24,
        "Tokens in front of max_tokens in which a completion's length costs reward (DAPO's soft overlong penalty)"),
    NUMBER(true, overlong_penalty, 0, 1e6, "Of overlong_buffer: what a completion of max_tokens loses (0: nothing)"),
    CHOICE(true, loss, ls_policy_names, "Policy loss: ppo, gspo, cispo or reinforce"),
    CHOICE(true, norm, ls_loss_norm_names, "What the loss is divided by: token, sequence or length"),
    NUMBER(true, norm_length, 0, 1e9, "Of norm=length: the constant (0: max_tokens)"),
    NUMBER(true, eps_low, 0, 1, "Ratios are clipped at 1 - eps_low, which is below 1"),
    NUMBER(true, eps_high, 0, 1e9, "Ratios are clipped at 1 + eps_high"),
    NUMBER(true, dual_clip, 0, 1e9, "Bound of the ratio where the advantage is negative, above 1 (0: none)"),
    CHOICE(true, kl, ls_kl_names, "Formula of the KL term: k1, k2 or k3"),
    NUMBER(true, beta, 0, 1e9, "Weight of the KL to the reference model (0: no reference)"),
    NUMBER(true, entropy_bonus, -1e9, 1e9, "Weight of the entropy"),
    CHOICE(true, overlong_prompts, overlong_names,
           "Prompts that leave no token of length to draw: refuse the run, or leave_out such lines of data, which are "
           "counted"),
    SWITCH(true, mask_overlong, "Leave out episodes that did not come to an end by themselves"),
    TEXT(true, correction, "Corrections of trainer against rollout: token-truncate=2,... (docs/reference/losses.md)"),
    INT(true, epochs, 1, 1 << 20, "How often a step learns from its episodes"),
    INT(true, minibatches, 1, 1 << 20, "Updates of an epoch: parts that the prompts are cut into"),
    CHOICE(
        true, prefix, prefix_names,
        "What a group's episodes begin with in common: off, trained once for each, or shared, once for all, which is "
        "another order of the sums of gradients (docs/guide/shared-prefix.md)"),
    INT(true, lag, 0, LS_GRPO_LAG_MAX,
        "Steps that rollouts are behind: a thread draws step s with the weights behind step s - 1 - lag while the "
        "trainer trains (0: they take turns; docs/guide/overlap.md)"),
    CHOICE(true, updates, update_names,
           "Of a lag: when new weights reach the draws: between steps, or in_flight, also in the middle of "
           "completions (the log of that: RUN/" LS_BORDERS_NAME ")"),
    TEXT(false, reward,
         "Who judges: task, a verifier (exact, number, choice, regex, json: docs/guide/data.md), command, server, "
         "environment, "
         "python:MODULE:FUNCTION or python:FILE.py:FUNCTION (docs/guide/python-functions.md), or auto; several: with "
         "commas between, whose rewards are added"),
    TEXT(false, reward_weights,
         "Of several rewards: a number for each, with commas between, by which it is multiplied (empty: 1)"),
    TEXT(false, reward_pattern, "Of reward=regex: the pattern (empty: each answer is one)"),
    TEXT(false, reward_schema, "Of reward=json: the file of the schema (empty: each answer is one)"),
    TEXT(false, reward_command, "Rewards from this command, for /bin/sh (docs/reference/tasks.md)"),
    TEXT(false, reward_url, "Rewards from this web server (docs/reference/tasks.md)"),
    NUMBER(false, reward_timeout, 0.001, 1e6,
           "Seconds that the command may be silent, or that a request or a call of Python may take"),
    INT(false, reward_workers, 1, 256, "Processes that call Python functions and environments"),
    TEXT(false, python, "Interpreter of Python functions and environments (empty: python3 of PATH)"),
    INT(false, reward_batch, 1, 1 << 20, "Of the server: items of a request"),
    INT(false, reward_concurrency, 1, 1 << 16, "Requests to the server, or items with the command, at a time"),
    TEXT(false, environment,
         "What is said between turns comes from python:MODULE:CLASS or python:FILE.py:CLASS "
         "(docs/guide/python-functions.md)"),
    TEXT(false, environment_command, "What is said between turns comes from this command (docs/guide/environments.md)"),
    TEXT(false, environment_url, "What is said between turns comes from this web server (docs/guide/environments.md)"),
    INT(true, environment_turns, 1, LS_TURNS_MAX, "Of an environment: completions of an episode, at most"),
    TEXT(false, environment_record, "File to which every episode's turns are added (empty: none)"),
    TEXT(false, rollout_url,
         "Rollouts come from this server, `lockstep serve`, not from an engine of this process; several: with commas "
         "between (docs/guide/serving.md)"),
    TEXT(false, rollout_key_file, "File with the key of these servers"),
    NUMBER(false, rollout_timeout, 0.001, 1e6, "Seconds that a rollout may take, or no such server may answer"),
    INT(false, rollout_concurrency, 1, 1024, "Rollouts that such servers are asked for at a time"),
    CHOICE(
        false, rollout_push, push_names,
        "What such servers get of new weights: whole, all of them, or changed, the elements that changed, from a copy "
        "in the host's memory (docs/reference/changes.md)"),
    TEXT(false, reference, "Model directory of the KL term's reference (empty: the model that the run begins with)"),
    CHOICE(false, gate, gates, "What happens when rollout and trainer differ: stop (exit 3) or warn"),
    INT(false, draw_threads, 0, LS_THREADS_MAX,
        "Of a lag: how many of the threads draw while the trainer works, at most (0: a third)"),
    TEXT(false, draw_device,
         "Of a lag: the device that draws, cpu or cuda:N (empty: the trainer's, which holds both then)"),
    NUMBER(false, check_share, 0, 1,
           "Of a lag: the share of older episodes that the weights that drew them score once more; one that differs is "
           "the gate's"),
    TEXT(false, follow,
         "Of updates=in_flight: draw along this log, the " LS_BORDERS_NAME " of a run, which gives its digest again; "
         "behind its end the run goes on freely (empty: none)"),
    INT(false, eval_every, 0, 1e12, "Steps between evaluations on held-out problems, also before the first (0: none)"),
    INT(false, eval_n, 1, 1 << 20, "Problems of an evaluation, always the same"),
    NUMBER(false, eval_temperature, 0, 1e6, "Of evaluations; 0 is greedy"),
    INT(false, record_samples, 0, 1 << 20, "Episodes of a step that are recorded as texts, rounded up to whole groups"),
#ifdef LS_FAULTS
    TEXT(false, inject, "Run with this fault"),
#endif
};
#define N_ROWS ((int64_t)(sizeof rows / sizeof rows[0]))

/* Of engine.batch: as many as fit the device. */
#define AUTO "auto"

/* Levers that are options of training, or another model. */
static bool is_offered(const char *name) {
    static const char *const not [] = {"samples", "threads", "isa", "ablation", NULL};
    return ls_name_find(not, name) < 0;
}

static ls_option_table lever_table(ls_grpo_options *o) {
    ls_option_table table = {o->lever_options, 0, o};
    ls_levers defaults;
    ls_levers_init(&defaults);
    for (int64_t i = 0; i < ls_levers_count(); i++) {
        const int64_t k = table.n;
        if (!is_offered(ls_lever_name(i))) continue;
        LS_ASSERT(k < LS_GRPO_LEVERS_MAX, "%lld levers", (long long)ls_levers_count());
        snprintf(o->lever_names[k], sizeof o->lever_names[k], "engine.%s", ls_lever_name(i));
        ls_lever_format(o->lever_values[k], sizeof o->lever_values[k], &defaults, i);
        if (strcmp(ls_lever_name(i), "batch") == 0) snprintf(o->lever_values[k], sizeof o->lever_values[k], AUTO);
        o->lever_options[k] = (ls_option){.name = o->lever_names[k],
                                          .kind = LS_OPTION_VALUE,
                                          .offset = AT(lever_values) + (size_t)k * sizeof o->lever_values[0],
                                          .help = ls_lever_help(i)};
        table.n++;
    }
    return table;
}

void ls_grpo_options_init(ls_grpo_options *o, ls_config *config) {
    memset(o, 0, sizeof *o);
    ls_train_options_init(&o->train);
    o->train.steps = 100;
    o->train.rate = 1e-5;
    o->train.save_every = 20;
    o->train.schedule = LS_RATE_CONSTANT;
    o->train.decay = 0.0;
    snprintf(o->task, sizeof o->task, "arithmetic");
    snprintf(o->stop, sizeof o->stop, LS_STOP_AUTO);
    o->data.held_out = 10;
    o->prompts = o->samples = 8;
    o->temperature = o->top_p = 1.0;
    o->advantages = LS_ADVANTAGE_STD;
    o->advantage_eps = 1e-6;
    o->loss = LS_LOSS_POLICY_PPO;
    o->norm = LS_LOSS_NORM_TOKEN;
    o->kl = LS_KL_K3;
    o->eps_low = o->eps_high = 0.2;
    o->epochs = o->minibatches = 1;
    o->check_share = 1;
    o->reward_timeout = 60;
    o->reward_batch = 1;
    o->reward_concurrency = 8;
    o->reward_workers = 4;
    snprintf(o->reward, sizeof o->reward, "auto");
    o->environment_turns = 8;
    o->rollout_timeout = 600;
    o->rollout_concurrency = 64;
    o->eval_n = 64;
    o->record_samples = 4;
    config->n = 0;
    ls_config_add(config, ls_train_option_table(&o->train));
    ls_config_add(config, (ls_option_table){rows, N_ROWS, o});
    ls_config_add(config, ls_data_option_table(&o->data));
    ls_config_add(config, lever_table(o));
}

ls_status ls_grpo_levers(ls_levers *out, const ls_grpo_options *o, ls_error *err) {
    bool is_open = false;
    ls_status status = LS_OK;
    ls_levers_init(out);
    for (int64_t k = 0; k < LS_GRPO_LEVERS_MAX && o->lever_names[k][0] != '\0'; k++) {
        const char *name = strchr(o->lever_names[k], '.') + 1;
        if (strcmp(name, "batch") == 0 && strcmp(o->lever_values[k], AUTO) == 0) {
            out->batch = 0;
            continue;
        }
        LS_TRY_DONE(ls_lever_parse(out, ls_lever_find(name), o->lever_values[k], err));
    }
    is_open = out->batch == 0;
    if (is_open) out->batch = 1; /* to be checked with the others */
    out->samples = o->samples;
    out->threads = o->train.threads == 0 ? out->threads : (int32_t)o->train.threads;
    out->isa = ls_train_options_isa(&o->train);
    LS_TRY_DONE(ls_levers_check(out, err));
    if (is_open) out->batch = 0;
done:
    if (status != LS_OK && err != NULL) { /* the sentence begins with the lever's name */
        const ls_error lever = *err;
        ls_error_set(err, status, "engine.%s", lever.text);
    }
    return status;
}

static bool has_environment(const ls_grpo_options *o) {
    return o->environment[0] != '\0' || o->environment_command[0] != '\0' || o->environment_url[0] != '\0';
}

/* A trunk is at most the prompt; where it is too short to be one, each episode has it, and what follows. */
int64_t ls_grpo_group_rows(const ls_grpo_options *o) {
    const int64_t apart = o->samples * o->length, drawn = o->samples * (o->max_tokens + LS_TRUNK_LEAST);
    return has_environment(o) ? apart : ls_min_i64(apart, o->length + drawn);
}

ls_sampling ls_grpo_sampling(const ls_grpo_options *o) {
    return (ls_sampling){.temperature = (float)o->temperature,
                         .top_k = o->top_k,
                         .top_p = (float)o->top_p,
                         .min_p = (float)o->min_p,
                         .seed = o->train.seed};
}

ls_loss_options ls_grpo_loss(const ls_grpo_options *o) {
    const ls_loss_options loss = {.policy = (ls_policy_kind)o->loss,
                                  .norm = (ls_loss_norm)o->norm,
                                  .kl = (ls_kl_kind)o->kl,
                                  .eps_low = o->eps_low,
                                  .eps_high = o->eps_high,
                                  .dual_clip = o->dual_clip,
                                  .beta = o->beta,
                                  .entropy_bonus = o->entropy_bonus,
                                  .length = o->norm_length > 0 ? o->norm_length : (double)o->max_tokens,
                                  .mask_overlong = o->mask_overlong};
    return loss;
}

ls_advantage_options ls_grpo_advantages(const ls_grpo_options *o) {
    const ls_advantage_options a = {(ls_advantage_kind)o->advantages, o->population, o->advantage_eps,
                                    o->drop_equal || o->filter_groups};
    return a;
}

ls_inject ls_grpo_inject(const ls_grpo_options *o) {
    ls_inject inject = LS_INJECT_NONE;
#ifdef LS_FAULTS
    if (o->inject[0] != '\0' && !ls_inject_parse(&inject, o->inject)) LS_ASSERT(false, "inject: %s", o->inject);
#else
    (void)o;
#endif
    return inject;
}

static int64_t all_threads(const ls_grpo_options *o) {
    return o->train.threads > 0 ? o->train.threads : ls_cpu_count();
}

int64_t ls_grpo_draw_threads(const ls_grpo_options *o) {
    const int64_t third = all_threads(o) / 3;
    return o->draw_threads > 0 ? o->draw_threads : third > 0 ? third : 1;
}

/* Before it is chosen, a GPU without a number is the first. */
bool ls_grpo_draws_here(const ls_grpo_options *o, const char *name) {
    const bool is_chosen = name[0] != '\0', is_first = !is_chosen && strcmp(o->draw_device, "cuda:0") == 0;
    const char *device = is_chosen ? name : o->train.device;
    if (o->draw_device[0] == '\0' || strcmp(o->draw_device, device) == 0) return true;
    return is_first && strcmp(device, "cpu") != 0 && strchr(device, ':') == NULL;
}

/* Problems whose answer is the first line of a completion. */
static bool is_bare(const ls_grpo_options *o) {
    return o->data.data[0] == '\0' && !has_environment(o) && strstr(o->task_options, "style=words") == NULL;
}

/* "python:PLACE:NAME" */
static bool is_python(const char *text) {
    const char *spec = text + sizeof LS_PYTHON_PREFIX - 1;
    const char *colon;
    if (strncmp(text, LS_PYTHON_PREFIX, sizeof LS_PYTHON_PREFIX - 1) != 0) return false;
    colon = strrchr(spec, ':');
    return colon != NULL && colon > spec && colon[1] != '\0';
}

bool ls_grpo_judged_by(const ls_grpo_options *o, ls_reward_mode mode) {
    for (int64_t j = 0; j < o->n_judges; j++)
        if (o->judges[j].mode == mode) return true;
    return false;
}

static ls_status read_mode(ls_reward_mode *out, const char *text, ls_error *err) {
    char list[256] = "";
    size_t used = 0;
    *out = LS_REWARD_PYTHON;
    if (is_python(text)) return LS_OK;
    for (int32_t i = 0; i < LS_REWARD_PYTHON; i++) {
        *out = (ls_reward_mode)i;
        if (strcmp(text, rewards[i]) == 0) return LS_OK;
        used += (size_t)snprintf(list + used, sizeof list - used, "%s, ", rewards[i]);
    }
    return LS_FAIL(err, LS_ERR_ARG, "reward: '%.100s' is not one of %spython:MODULE:FUNCTION, python:FILE.py:FUNCTION",
                   text, list);
}

/* In records a judge has its own name, a function the one that it has in its module; the second of a name has its
 * number behind it. */
static void name_judge(ls_grpo_options *o, int64_t j) {
    const char *own = o->judges[j].mode == LS_REWARD_PYTHON ? strrchr(o->judges[j].spec, ':') + 1 : o->judges[j].spec;
    int64_t n = 1;
    for (int64_t i = 0; i < j; i++) {
        const char *other = o->judges[i].spec;
        if (o->judges[i].mode == LS_REWARD_PYTHON) other = strrchr(other, ':') + 1;
        n += strcmp(other, own) == 0;
    }
    if (n == 1)
        snprintf(o->judges[j].name, sizeof o->judges[j].name, "%.50s", own);
    else
        snprintf(o->judges[j].name, sizeof o->judges[j].name, "%.40s_%lld", own, (long long)n);
}

/* The part of a list up to the next comma; *at is behind it, or NULL. */
static void next_part(char out[LS_OPTION_TEXT_MAX], const char **at) {
    const size_t n = strcspn(*at, ",");
    snprintf(out, LS_OPTION_TEXT_MAX, "%.*s", (int)n, *at);
    *at = (*at)[n] == ',' ? *at + n + 1 : NULL;
}

static ls_status read_judges(ls_grpo_options *o, ls_error *err) {
    const char *at = o->reward;
    for (o->n_judges = 0; at != NULL; o->n_judges++) {
        ls_grpo_judge *judge = &o->judges[o->n_judges];
        if (o->n_judges == LS_JUDGES_MAX)
            return LS_FAIL(err, LS_ERR_ARG, "reward: at most %d are added", LS_JUDGES_MAX);
        next_part(judge->spec, &at);
        LS_TRY(read_mode(&judge->mode, judge->spec, err));
        for (int64_t j = 0; j < o->n_judges; j++)
            if (strcmp(o->judges[j].spec, judge->spec) == 0)
                return LS_FAIL(err, LS_ERR_ARG, "reward: '%.100s' is there twice", judge->spec);
        if (judge->mode == LS_REWARD_AUTO && (o->n_judges > 0 || at != NULL))
            return LS_FAIL(err, LS_ERR_ARG, "reward: auto stands alone; a list names every reward");
        name_judge(o, o->n_judges);
    }
    return LS_OK;
}

static ls_status read_weights(ls_grpo_options *o, ls_error *err) {
    const char *at = o->reward_weights[0] != '\0' ? o->reward_weights : NULL;
    char text[LS_OPTION_TEXT_MAX], *end;
    int64_t n = 0;
    for (int64_t j = 0; j < o->n_judges; j++) o->judges[j].weight = 1;
    for (; at != NULL; n++) {
        double weight;
        next_part(text, &at);
        weight = strtod(text, &end);
        if (end == text || *end != '\0' || !isfinite(weight))
            return LS_FAIL(err, LS_ERR_ARG, "reward_weights: '%.60s' is no number", text);
        if (n < o->n_judges) o->judges[n].weight = weight;
    }
    if (n > 0 && n != o->n_judges)
        return LS_FAIL(err, LS_ERR_ARG, "reward_weights: %lld numbers for %lld rewards", (long long)n,
                       (long long)o->n_judges);
    return LS_OK;
}

static ls_status check_environment(const ls_grpo_options *o, ls_error *err) {
    const int n = (o->environment[0] != '\0') + (o->environment_command[0] != '\0') + (o->environment_url[0] != '\0');
    if (o->environment[0] != '\0' && !is_python(o->environment))
        return LS_FAIL(err, LS_ERR_ARG, "environment: '%.100s' is neither python:MODULE:CLASS nor python:FILE.py:CLASS",
                       o->environment);
    if (o->environment[0] != '\0' && n > 1)
        return LS_FAIL(err, LS_ERR_ARG, "environment: there is an %s, too; give one of them",
                       o->environment_url[0] != '\0' ? "environment_url" : "environment_command");
    return LS_OK;
}

/* Who judges where nobody is named. */
static ls_status choose_judge(ls_grpo_options *o, ls_error *err) {
    ls_grpo_judge *judge = &o->judges[0];
    const bool command = o->reward_command[0] != '\0', url = o->reward_url[0] != '\0';
    if (judge->mode != LS_REWARD_AUTO) return LS_OK;
    if (command && url) return LS_FAIL(err, LS_ERR_ARG, "reward_url: there is a reward_command, too; give one of them");
    if (!command && !url && !has_environment(o) && o->data.data[0] != '\0')
        return LS_FAIL(
            err, LS_ERR_ARG,
            "reward: missing; data has no judge of its own: exact, number, choice, regex, json, command, server "
            "or python:MODULE:FUNCTION");
    judge->mode = command              ? LS_REWARD_COMMAND
                  : url                ? LS_REWARD_SERVER
                  : has_environment(o) ? LS_REWARD_ENVIRONMENT
                                       : LS_REWARD_TASK;
    snprintf(judge->spec, sizeof judge->spec, "%s", rewards[judge->mode]);
    snprintf(o->reward, sizeof o->reward, "%s", judge->spec);
    name_judge(o, 0);
    return LS_OK;
}

static bool is_verifier(ls_reward_mode mode) { return mode >= LS_REWARD_EXACT && mode <= LS_REWARD_JSON; }

/* Whether a judge has what it judges by. */
static ls_status check_judge(const ls_grpo_options *o, const ls_grpo_judge *judge, ls_error *err) {
    const bool data = o->data.data[0] != '\0';
    if (judge->mode == LS_REWARD_TASK && (has_environment(o) || data))
        return LS_FAIL(err, LS_ERR_ARG, "reward: task; there is %s instead",
                       has_environment(o) ? "an environment" : "data");
    if (has_environment(o) && !data && is_verifier(judge->mode) && judge->mode != LS_REWARD_REGEX)
        return LS_FAIL(err, LS_ERR_ARG, "reward: problems of an environment have no answer for %s", judge->spec);
    return LS_OK;
}

static ls_status resolve_reward(ls_grpo_options *o, ls_error *err) {
    const bool command = o->reward_command[0] != '\0', url = o->reward_url[0] != '\0', data = o->data.data[0] != '\0';
    const bool environment = has_environment(o);
    LS_TRY(read_judges(o, err));
    LS_TRY(check_environment(o, err));
    if (o->environment_command[0] != '\0' && o->environment_url[0] != '\0')
        return LS_FAIL(err, LS_ERR_ARG, "environment_url: there is an environment_command, too; give one of them");
    if (environment && o->train.own_rank.ranks > 1)
        return LS_FAIL(err, LS_ERR_UNSUPPORTED, "ranks: %lld; an environment is asked by one process",
                       (long long)o->train.own_rank.ranks);
    if (!environment && (ls_grpo_judged_by(o, LS_REWARD_ENVIRONMENT) || o->environment_record[0] != '\0'))
        return LS_FAIL(err, LS_ERR_ARG, "environment_command: missing; %s needs it or environment_url",
                       o->environment_record[0] == '\0' ? "reward=environment" : "environment_record");
    LS_TRY(choose_judge(o, err));
    for (int64_t j = 0; j < o->n_judges; j++) LS_TRY(check_judge(o, &o->judges[j], err));
    if (command != ls_grpo_judged_by(o, LS_REWARD_COMMAND))
        return LS_FAIL(err, LS_ERR_ARG, "reward_command: it is %s, and reward is %.100s", command ? "given" : "missing",
                       o->reward);
    if (url != ls_grpo_judged_by(o, LS_REWARD_SERVER))
        return LS_FAIL(err, LS_ERR_ARG, "reward_url: it is %s, and reward is %.100s", url ? "given" : "missing",
                       o->reward);
    if (o->reward_pattern[0] != '\0' && !ls_grpo_judged_by(o, LS_REWARD_REGEX))
        return LS_FAIL(err, LS_ERR_ARG, "reward_pattern: without reward=regex it has no effect");
    if (o->reward_schema[0] != '\0' && !ls_grpo_judged_by(o, LS_REWARD_JSON))
        return LS_FAIL(err, LS_ERR_ARG, "reward_schema: without reward=json it has no effect");
    if (!data && o->data_max_tokens[0] != '\0')
        return LS_FAIL(err, LS_ERR_ARG, "data_max_tokens: without data it has no effect");
    if (!data && o->data.eval_data[0] != '\0')
        return LS_FAIL(err, LS_ERR_ARG, "eval_data: without data it has no effect");
    return read_weights(o, err);
}

static ls_status check_rollout(const ls_grpo_options *o, ls_error *err) {
    const bool is_remote = o->rollout_url[0] != '\0';
    if (!is_remote && o->rollout_key_file[0] != '\0')
        return LS_FAIL(err, LS_ERR_ARG, "rollout_key_file: without rollout_url it has no effect");
    if (!is_remote && o->rollout_push != LS_PUSH_WHOLE)
        return LS_FAIL(err, LS_ERR_ARG, "rollout_push: without rollout_url it has no effect");
    if (is_remote && o->train.lora_rank > 0)
        return LS_FAIL(err, LS_ERR_UNSUPPORTED, "rollout_url: with lora_rank; a server takes whole weights");
    if (is_remote && o->train.seed > INT64_MAX)
        return LS_FAIL(err, LS_ERR_ARG, "seed: %llu; a server takes seeds below 2^63",
                       (unsigned long long)o->train.seed);
    return LS_OK;
}

/* Dynamic sampling and the penalty of length. */
static ls_status check_dapo(ls_grpo_options *o, ls_error *err) {
    if (!o->filter_groups && o->max_num_gen_batches > 0)
        return LS_FAIL(err, LS_ERR_ARG, "max_num_gen_batches: without filter_groups it has no effect");
    if (o->filter_groups && o->samples == 1)
        return LS_FAIL(err, LS_ERR_ARG, "filter_groups: the rewards of groups of one sample are always equal");
    if ((o->overlong_buffer > 0) != (o->overlong_penalty > 0))
        return LS_FAIL(err, LS_ERR_ARG, "%s: missing; overlong_buffer and overlong_penalty go together",
                       o->overlong_buffer > 0 ? "overlong_penalty" : "overlong_buffer");
    if (o->overlong_buffer > o->max_tokens)
        return LS_FAIL(err, LS_ERR_ARG, "overlong_buffer: %lld tokens of %lld (max_tokens)",
                       (long long)o->overlong_buffer, (long long)o->max_tokens);
    if (o->overlong_buffer > 0 && o->data_max_tokens[0] != '\0')
        return LS_FAIL(err, LS_ERR_UNSUPPORTED,
                       "overlong_buffer: with data_max_tokens, which differ from line to line");
    if (o->overlong_buffer > 0 && has_environment(o))
        return LS_FAIL(err, LS_ERR_UNSUPPORTED,
                       "overlong_buffer: with an environment, whose episodes have several turns");
    if (o->filter_groups && o->max_num_gen_batches == 0) o->max_num_gen_batches = 10;
    return LS_OK;
}

/* A group goes through a forward whole, and is part of one leaf. */
static ls_status check_prefix(const ls_grpo_options *o, ls_error *err) {
    if (o->prefix == LS_BEGINNINGS_APART) return LS_OK;
    if (o->train.leaf % o->samples != 0)
        return LS_FAIL(err, LS_ERR_ARG, "leaf: %lld sequences are no whole groups of %lld, which prefix=shared takes",
                       (long long)o->train.leaf, (long long)o->samples);
    if (o->train.rows > 0 && o->train.rows < ls_grpo_group_rows(o))
        return LS_FAIL(err, LS_ERR_ARG, "rows: %lld; with prefix=shared a forward takes a group, of up to %lld tokens",
                       (long long)o->train.rows, (long long)ls_grpo_group_rows(o));
    return LS_OK;
}

/* What weights in flight do not go with. */
static ls_status check_updates(const ls_grpo_options *o, ls_error *err) {
    const char *what = NULL;
    if (o->follow[0] != '\0' && o->updates != LS_UPDATES_IN_FLIGHT)
        return LS_FAIL(err, LS_ERR_ARG, "follow: without updates=in_flight it has no effect");
    if (o->updates != LS_UPDATES_IN_FLIGHT) return LS_OK;
    if (o->lag == 0) return LS_FAIL(err, LS_ERR_ARG, "updates: in_flight without lag; nothing is drawn in a flight");
    if (o->rollout_url[0] != '\0') what = "rollout_url; servers draw whole episodes with the weights that they get";
    if (o->filter_groups) what = "filter_groups, of whose first draws the log says nothing";
    if (o->train.own_rank.ranks > 1) what = "several ranks, which would have to change weights at the same tokens";
    if (what == NULL) return LS_OK;
    return LS_FAIL(err, LS_ERR_UNSUPPORTED, "updates: in_flight with %s", what);
}

/* What has no effect without a lag; NULL: nothing of it is set. */
static const char *name_of_lag(const ls_grpo_options *o) {
    if (o->draw_threads > 0) return "draw_threads";
    if (o->draw_device[0] != '\0') return "draw_device";
    return o->check_share != 1 ? "check_share" : NULL;
}

static ls_status check_draw_device(const ls_grpo_options *o, ls_error *err) {
    const char *name = o->draw_device;
    if (name[0] == '\0') return LS_OK;
    if (strcmp(name, "cpu") != 0 && (strncmp(name, "cuda:", 5) != 0 || ls_device_name_check(name, NULL) != LS_OK))
        return LS_FAIL(err, LS_ERR_ARG, "draw_device: '%.100s' is neither cpu nor cuda:N", name);
    if (o->train.own_rank.ranks > 1)
        return LS_FAIL(err, LS_ERR_UNSUPPORTED, "draw_device: %.100s with several ranks, which draw where they train",
                       name);
    return LS_OK;
}

/* What a lag does not go with. */
static ls_status check_lag(const ls_grpo_options *o, ls_error *err) {
    const ls_sampling sampling = ls_grpo_sampling(o);
    const char *what = NULL;
    if (o->lag == 0 && name_of_lag(o) != NULL)
        return LS_FAIL(err, LS_ERR_ARG, "%s: without lag it has no effect", name_of_lag(o));
    if (o->lag == 0) return LS_OK;
    LS_TRY(check_draw_device(o, err));
    if (o->train.weights == LS_WEIGHTS_BY_LAYER) what = "weights=by_layer, of which no process has a version whole";
    if (o->filter_groups && o->train.own_rank.ranks > 1) what = "filter_groups of several ranks";
    if (o->rollout_url[0] != '\0' && o->train.own_rank.ranks > 1) what = "rollout_url of several ranks";
    if (o->train.sleep == 2) what = "sleep=true: engine and trainer are awake together";
    if (what != NULL) return LS_FAIL(err, LS_ERR_UNSUPPORTED, "lag: %lld with %s", (long long)o->lag, what);
    if (ls_sampling_truncates(&sampling) && o->check_share != 1)
        return LS_FAIL(err, LS_ERR_UNSUPPORTED,
                       "check_share: %g with top_k, top_p or min_p; the check finds what every token was drawn from",
                       o->check_share);
    return LS_OK;
}

ls_status ls_grpo_options_check(ls_grpo_options *o, ls_error *err) {
    const ls_loss_options loss = ls_grpo_loss(o);
    const ls_sampling sampling = ls_grpo_sampling(o);
    int64_t n, updates;
    ls_levers levers;
    ls_correction correction;
    ls_status status;
    if (o->train.steps == 0) return LS_FAIL(err, LS_ERR_ARG, "steps: 0; how many are to be done?");
    if (o->eval_temperature != 0 && o->eval_temperature < LS_TEMPERATURE_MIN)
        return LS_FAIL(err, LS_ERR_ARG, "eval_temperature: %g is not 0 and below %g", o->eval_temperature,
                       LS_TEMPERATURE_MIN);
    if (!ls_mul_i64(o->epochs, o->minibatches, &updates) || !ls_mul_i64(updates, o->train.steps, &updates))
        return LS_FAIL(err, LS_ERR_ARG, "epochs: %lld of %lld updates and %lld steps are too many",
                       (long long)o->epochs, (long long)o->minibatches, (long long)o->train.steps);
    if (o->train.schedule_steps == 0) o->train.schedule_steps = updates;
    LS_TRY_DONE(ls_train_options_check(&o->train, err));
    LS_TRY_DONE(resolve_reward(o, err));
    if (strcmp(o->stop, LS_STOP_AUTO) == 0) snprintf(o->stop, sizeof o->stop, "%s", is_bare(o) ? "\n" : "");
    if (o->max_tokens == 0) o->max_tokens = is_bare(o) ? 32 : 256;
    if (o->length == 0 && (o->data.data[0] != '\0' || has_environment(o))) o->length = o->max_tokens + 512;
    if (o->length == 0) o->length = o->max_tokens + 128;
    if (o->max_tokens >= o->length)
        return LS_FAIL(err, LS_ERR_ARG, "length: %lld tokens leave no room for a prompt and max_tokens %lld",
                       (long long)o->length, (long long)o->max_tokens);
    if (o->minibatches > o->prompts)
        return LS_FAIL(err, LS_ERR_ARG, "minibatches: %lld of %lld prompts", (long long)o->minibatches,
                       (long long)o->prompts);
    if (!ls_mul_i64(o->prompts, o->samples, &n) || n > 1 << 20)
        return LS_FAIL(err, LS_ERR_ARG, "samples: %lld of %lld prompts are more than %d episodes",
                       (long long)o->samples, (long long)o->prompts, 1 << 20);
    LS_TRY_DONE(check_dapo(o, err));
    if (!ls_mul_i64(o->prompts, o->train.steps, &n) ||
        !ls_mul_i64(n, o->filter_groups ? o->max_num_gen_batches : 1, &n) || n > UINT32_MAX)
        return LS_FAIL(err, LS_ERR_ARG, "steps: %lld of %lld prompts are more than 2^32 problems",
                       (long long)o->train.steps, (long long)o->prompts);
    LS_TRY_DONE(check_rollout(o, err));
    LS_TRY_DONE(check_lag(o, err));
    LS_TRY_DONE(check_updates(o, err));
    LS_TRY_DONE(check_prefix(o, err));
    if (o->reference[0] != '\0' && o->beta == 0)
        return LS_FAIL(err, LS_ERR_ARG, "reference: without beta it has no effect");
    LS_TRY_DONE(ls_sampling_check(&sampling, err));
    if (ls_sampling_truncates(&sampling) && o->beta != 0)
        return LS_FAIL(err, LS_ERR_UNSUPPORTED,
                       "beta: %g with top_k, top_p or min_p; there is no reference on a support that was sampled",
                       o->beta);
    LS_TRY_DONE(ls_loss_options_check(&loss, err));
    if ((status = ls_correction_parse(&correction, o->correction, err)) != LS_OK) {
        ls_error_prefix(err, "correction");
        goto done;
    }
    LS_TRY_DONE(ls_grpo_levers(&levers, o, err));
#ifdef LS_FAULTS
    {
        ls_inject inject;
        if (o->inject[0] != '\0' && !ls_inject_parse(&inject, o->inject))
            status = LS_FAIL(err, LS_ERR_ARG, "inject: '%s' is no fault", o->inject);
    }
#endif
done:
    return status;
}
