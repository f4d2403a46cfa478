/* Which subject each key belongs to. */
#include "cli/train_keys.h"

#include <string.h>

enum { KEYS_MAX = 32, ALL_MAX = 512 };

typedef struct subject {
    const char *heading;
    const char *keys[KEYS_MAX]; /* up to NULL; one that ends with '.' takes all that begin with it */
} subject;

static const subject subjects[] = {
    {"Problems and data",
     {"task", "task_options", "data", "eval_data", "held_out", "data_prompt", "data_answer", "data_id", "data_template",
      "data_max_tokens", "append_eos", "overlong_prompts"}},
    {"How long, and what is kept",
     {"steps", "epochs", "seed", "save_every", "save_behind", "keep", "resume", "new_schedule", "record_samples"}},
    {"The step", {"batch", "prompts", "samples", "minibatches", "leaf", "leaves", "prefix"}},
    {"Rollouts", {"max_tokens", "length", "stop", "temperature", "top_k", "top_p", "min_p"}},
    {"Rewards",
     {"reward", "reward_weights", "reward_pattern", "reward_schema", "reward_command", "reward_url", "reward_timeout",
      "reward_batch", "reward_concurrency", "reward_workers", "python"}},
    {"Advantages and loss",
     {"advantages",
      "population",
      "advantage_eps",
      "drop_equal",
      "filter_groups",
      "max_num_gen_batches",
      "overlong_buffer",
      "overlong_penalty",
      "loss",
      "norm",
      "norm_length",
      "eps_low",
      "eps_high",
      "dual_clip",
      "mask_overlong",
      "correction",
      "kl",
      "beta",
      "reference",
      "entropy_bonus"}},
    {"Learning rate and optimizer",
     {"rate", "schedule", "warmup", "rate_floor", "schedule_steps", "clip", "beta1", "beta2", "eps", "decay",
      "moments"}},
    {"Adapters", {"lora_rank", "lora_alpha", "lora_targets"}},
    {"The check, and evaluations", {"gate", "eval_every", "eval_n", "eval_temperature"}},
    {"Episodes of several turns",
     {"environment", "environment_command", "environment_url", "environment_turns", "environment_record"}},
    {"Rollouts ahead of the trainer", {"lag", "updates", "follow", "draw_threads", "draw_device", "check_share"}},
    {"Rollouts of servers",
     {"rollout_url", "rollout_key_file", "rollout_timeout", "rollout_concurrency", "rollout_push"}},
    {"Numbers and device", {"dtype", "profile", "device", "threads", "isa"}},
    {"Memory", {"microbatch", "rows", "recompute", "sleep", "moments_on", "gradients"}},
    {"Several processes", {"ranks", "rank", "address", "launcher", "timeout", "transport", "weights"}},
    {"The rollout engine: no bit of a result depends on these", {"engine."}},
};
#define N_SUBJECTS (sizeof subjects / sizeof subjects[0])

static bool takes(const char *key, const char *name) {
    const size_t n = strlen(key);
    return key[n - 1] == '.' ? strncmp(key, name, n) == 0 : strcmp(key, name) == 0;
}

/* Rows of `config` that `key` takes and that were not printed yet; the heading goes before the first. */
static void print_key(FILE *file, const ls_config *config, const char *key, bool *printed, const char **heading) {
    int64_t i = 0;
    for (int64_t t = 0; t < config->n; t++)
        for (int64_t k = 0; k < config->tables[t].n; k++, i++) {
            if (printed[i] || (key != NULL && !takes(key, config->tables[t].options[k].name))) continue;
            if (*heading != NULL) fprintf(file, "%s\n", *heading);
            *heading = NULL;
            printed[i] = true;
            ls_config_print(file, &config->tables[t], k);
        }
}

void ls_train_keys_print(FILE *file, const ls_config *config, const char *const *required) {
    bool printed[ALL_MAX] = {false};
    const char *heading = "Required";
    int64_t n = 0;
    for (int64_t t = 0; t < config->n; t++) n += config->tables[t].n;
    LS_ASSERT(n <= ALL_MAX, "%lld keys", (long long)n);
    for (int k = 0; required[k] != NULL; k++) print_key(file, config, required[k], printed, &heading);
    for (size_t s = 0; s < N_SUBJECTS; s++) {
        heading = subjects[s].heading;
        for (int k = 0; k < KEYS_MAX && subjects[s].keys[k] != NULL; k++)
            print_key(file, config, subjects[s].keys[k], printed, &heading);
    }
    heading = "Others";
    print_key(file, config, NULL, printed, &heading);
}
