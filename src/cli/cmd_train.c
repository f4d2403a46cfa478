/* lockstep train KIND: a configuration from a file and from --set, then the run. A kind is a row of the table. */
#include <argp.h>
#include <stdio.h>
#include <string.h>

#include "cli/commands.h"
#include "cli/device_option.h"
#include "cli/help.h"
#include "cli/train_keys.h"
#include "rl/grpo.h"
#include "run/history.h"
#include "train/sft.h"

enum { SETS_MAX = 256, CARDS_MAX = 256, OPT_CONFIG = 256, OPT_SET, OPT_KEYS, OPT_CARD, OPT_CARDS };

typedef struct train_arguments {
    const char *config, *sets[SETS_MAX];
    const char *run;      /* of resume */
    const char *recorded; /* its configuration, NULL but with resume */
    int64_t recorded_bytes;
    int64_t n_sets;
    const char *const *required; /* keys that the kind cannot do without */
    const char *kind;            /* of plan */
    bool keys, plans;            /* plans: says what would be chosen, and runs nothing */
    ls_train_target target;
    ls_status status; /* of options that are read */
    ls_error *err;
} train_arguments;

static const struct argp_option options[] = {
    {"config", OPT_CONFIG, "FILE", 0, "One JSON object of keys and values; // and /* */ are comments", 0},
    {"set", OPT_SET, "KEY=VALUE", 0, "Set one key, over what there was; may be given again", 0},
    {"keys", OPT_KEYS, NULL, 0, "Print all keys, their values as set so far and what they mean", 0},
    {0},
};

static error_t on_train_option(int key, char *text, struct argp_state *state) {
    train_arguments *a = state->input;
    switch (key) {
        case OPT_CONFIG: a->config = text; return 0;
        case OPT_KEYS: a->keys = true; return 0;
        case OPT_SET:
            if (a->n_sets == SETS_MAX) ls_cli_wrong(state, "more than %d --set", SETS_MAX);
            a->sets[a->n_sets++] = text;
            return 0;
        case ARGP_KEY_ARG: ls_cli_wrong(state, "unexpected argument '%s'", text); return 0;
        default: return ARGP_ERR_UNKNOWN;
    }
}

/* What a resumed run has in place of its recorded values: itself, and that it goes on. */
static ls_status take_up(const ls_config *config, const train_arguments *a, ls_error *err) {
    char text[LS_OPTION_TEXT_MAX + 8];
    if (snprintf(text, sizeof text, "run=%s", a->run) >= (int)sizeof text)
        return LS_FAIL(err, LS_ERR_ARG, "%.200s...: the path is too long", a->run);
    LS_TRY(ls_config_set(config, text, err));
    LS_TRY(ls_config_set(config, "new_schedule=false", err));
    return ls_config_set(config, "resume=true", err);
}

static bool is_set(const train_arguments *a, const char *key) {
    const size_t n = strlen(key);
    for (int64_t i = 0; i < a->n_sets; i++)
        if (strncmp(a->sets[i], key, n) == 0 && a->sets[i][n] == '=') return true;
    return false;
}

/* What the options are that `config` sets: the recorded run has so many updates a step. */
typedef struct filled {
    ls_train_options *train;
    const int64_t *epochs, *minibatches; /* NULL: one */
} filled;

/* Whether the schedule of the recorded run ends within its steps. */
static bool ends_within_steps(const filled *f) {
    int64_t updates = f->train->steps;
    if (f->epochs != NULL) updates *= *f->epochs * *f->minibatches;
    return f->train->schedule_steps <= updates;
}

static ls_status fill_config(const ls_config *config, const filled *f, const train_arguments *a, ls_error *err) {
    bool is_over = false;
    ls_status status = LS_OK;
    if (a->config != NULL) LS_TRY_DONE(ls_config_read(config, a->config, err));
    if (a->recorded != NULL) LS_TRY_DONE(ls_config_parse(config, a->recorded, a->recorded_bytes, a->run, err));
    if (a->recorded != NULL) is_over = ends_within_steps(f);
    if (a->recorded != NULL) LS_TRY_DONE(take_up(config, a, err));
    for (int64_t i = 0; i < a->n_sets; i++)
        if ((status = ls_config_set(config, a->sets[i], err)) != LS_OK) {
            ls_error_prefix(err, "--set");
            goto done;
        }
    /* A new schedule in the place of one that is over ends with the steps that there are now. */
    if (is_over && f->train->new_schedule && !is_set(a, "schedule_steps")) f->train->schedule_steps = 0;
    if (!a->keys) goto done;
    ls_train_keys_print(stdout, config, a->required);
    printf("* carries bits: another value is another result, and a run cannot go on with it\n");
done:
    return status;
}

static const char *const sft_required[] = {"model", "run", "data", NULL};
static const char *const grpo_required[] = {"model", "run", NULL};

static ls_status run_sft(const train_arguments *a, int *code, ls_error *err) {
    static ls_sft_options o;
    bool stopped = false;
    ls_config config;
    ls_status status;
    ls_sft_options_init(&o, &config);
    LS_TRY_DONE(fill_config(&config, &(filled){&o.train, NULL, NULL}, a, err));
    if (a->plans)
        status = ls_sft_plan(&o, &config, &a->target, stdout, err);
    else if (!a->keys)
        status = ls_sft_run(&o, &config, stderr, &stopped, err);
    if (stopped) *code = LS_EXIT_STOPPED;
done:
    return status;
}

static ls_status run_grpo(const train_arguments *a, int *code, ls_error *err) {
    static ls_grpo_options o;
    ls_grpo_result result = {0};
    ls_config config;
    ls_status status;
    ls_grpo_options_init(&o, &config);
    LS_TRY_DONE(fill_config(&config, &(filled){&o.train, &o.epochs, &o.minibatches}, a, err));
    if (a->plans)
        status = ls_grpo_plan(&o, &config, &a->target, stdout, err);
    else if (!a->keys)
        status = ls_grpo_run(&o, &config, stderr, &result, err);
    if (result.stopped) *code = LS_EXIT_STOPPED;
    if (result.differs) *code = LS_EXIT_DIFFERENT;
done:
    return status;
}

static const struct train_kind {
    const char *name, *text;
    ls_status (*run)(const train_arguments *a, int *code, ls_error *err);
    const char *const *required;
} kinds[] = {
    {"sft", "Supervised training on pairs of prompt and completion. Exit code 4: a signal stopped it, saved.", run_sft,
     sft_required},
    {"grpo",
     "Training by policy gradients on the problems of a task or of data. Exit code 3: rollout and trainer "
     "differed; 4: a signal stopped it, saved.",
     run_grpo, grpo_required},
};
#define N_KINDS (sizeof kinds / sizeof kinds[0])

/* ---- resume ---- */

static const char resume_text[] =
    "Goes on with the run in the directory RUN, from its newest checkpoint, with the configuration that it was last "
    "started with; --set changes what may be changed.";

static error_t on_resume_option(int key, char *text, struct argp_state *state) {
    train_arguments *a = state->input;
    switch (key) {
        case ARGP_KEY_ARG:
            if (a->run != NULL) ls_cli_wrong(state, "unexpected argument '%s'", text);
            a->run = text;
            return 0;
        case ARGP_KEY_END:
            if (a->run == NULL) ls_cli_wrong(state, "RUN is missing");
            return 0;
        default: return on_train_option(key, text, state);
    }
}

static int run_resume(int argc, char **argv) {
    static const struct argp argp = {options + 1, on_resume_option, "RUN", resume_text, NULL, NULL, NULL};
    train_arguments a = {0};
    ls_history history = {0};
    const ls_history_start *start;
    char name[64];
    int code = LS_EXIT_OK;
    size_t kind = 0;
    ls_error err;
    ls_status status;
    snprintf(name, sizeof name, "%s resume", argv[0]);
    argv[1] = name;
    ls_cli_parse(&argp, argc - 1, argv + 1, &a);
    LS_TRY_DONE(ls_history_read(&history, a.run, &err));
    if (history.n_starts == 0) {
        status = LS_FAIL(&err, LS_ERR_FORMAT, "%s: no start of this run is recorded", a.run);
        goto done;
    }
    start = &history.starts[history.n_starts - 1];
    while (kind < N_KINDS && strcmp(kinds[kind].name, start->kind) != 0) kind++;
    if (kind == N_KINDS) {
        status = LS_FAIL(&err, LS_ERR_FORMAT, "%s: a run of the kind '%.60s', which is not known", a.run, start->kind);
        goto done;
    }
    a.required = kinds[kind].required;
    a.recorded = start->config;
    a.recorded_bytes = start->config_bytes;
    status = kinds[kind].run(&a, &code, &err);
done:
    ls_history_deinit(&history);
    return status == LS_OK ? code : ls_cli_fail(&err);
}

/* ---- plan ---- */

static const char plan_text[] =
    "Says what a run of KIND with these options would hold in a GPU's memory, what it would choose so that it fits, "
    "and "
    "what that costs. Nothing is run. Exit code 2: it does not fit.";

static const struct argp_option plan_options[] = {
    {"config", OPT_CONFIG, "FILE", 0, "One JSON object of keys and values; // and /* */ are comments", 0},
    {"set", OPT_SET, "KEY=VALUE", 0, "Set one key, over what there was; may be given again", 0},
    {"card", OPT_CARD, "NAME", 0, "A card that need not be here: h100-80, h200, b200, a100-80, a100-40 (the device)",
     0},
    {"cards", OPT_CARDS, "N", 0, "So many of them share a step (as the options say)", 0},
    {0},
};

static error_t on_plan_option(int key, char *text, struct argp_state *state) {
    train_arguments *a = state->input;
    switch (key) {
        case OPT_CARD:
            if (a->status == LS_OK && (a->status = ls_card_find(&a->target.card, text, a->err)) != LS_OK)
                ls_error_prefix(a->err, "--card");
            return 0;
        case OPT_CARDS:
            if (a->status == LS_OK) a->status = ls_cli_int(&a->target.n_cards, "--cards", text, 1, CARDS_MAX, a->err);
            return 0;
        case ARGP_KEY_ARG:
            if (a->kind != NULL) ls_cli_wrong(state, "unexpected argument '%s'", text);
            a->kind = text;
            return 0;
        case ARGP_KEY_END:
            if (a->kind == NULL) ls_cli_wrong(state, "KIND is missing: sft or grpo");
            return 0;
        default: return on_train_option(key, text, state);
    }
}

static int run_plan(int argc, char **argv) {
    static const struct argp argp = {plan_options, on_plan_option, "KIND", plan_text, NULL, NULL, NULL};
    ls_error err;
    train_arguments a = {.plans = true, .err = &err};
    char name[64];
    int code = LS_EXIT_OK;
    size_t kind = 0;
    snprintf(name, sizeof name, "%s plan", argv[0]);
    argv[1] = name;
    ls_cli_parse(&argp, argc - 1, argv + 1, &a);
    if (a.status != LS_OK) return ls_cli_fail(&err);
    while (kind < N_KINDS && strcmp(kinds[kind].name, a.kind) != 0) kind++;
    if (kind == N_KINDS) {
        LS_FAIL(&err, LS_ERR_ARG, "'%.60s' is no kind of training: sft or grpo", a.kind);
        return ls_cli_fail(&err);
    }
    a.required = kinds[kind].required;
    return kinds[kind].run(&a, &code, &err) == LS_OK ? code : ls_cli_fail(&err);
}

/* ---- replay ---- */

static const char replay_text[] = "Draws the differing sequence of a bundle again. Exit code 3: it still differs.";

typedef struct replay_arguments {
    const char *directory;
    ls_replay_opts opts;
    int64_t threads;
    bool json;
    ls_error *err;
    ls_status status;
} replay_arguments;

enum { OPT_THREADS = 300, OPT_DEVICE, OPT_JSON, OPT_INJECT };

static const struct argp_option replay_options[] = {
    {"threads", OPT_THREADS, "N", 0, "Threads (those of the run)", 0},
    {"device", OPT_DEVICE, "NAME", 0, LS_DEVICE_HELP, 0},
    {"json", OPT_JSON, NULL, 0, "Print the finding as JSON", 0},
#ifdef LS_FAULTS
    {"inject", OPT_INJECT, "NAME", 0, "Run with this fault", 0},
#endif
    {0},
};

static error_t on_replay_option(int key, char *text, struct argp_state *state) {
    replay_arguments *a = state->input;
    switch (key) {
        case OPT_THREADS:
            if (a->status == LS_OK) a->status = ls_cli_int(&a->threads, "--threads", text, 1, LS_THREADS_MAX, a->err);
            return 0;
        case OPT_DEVICE:
            if (a->status == LS_OK) a->status = ls_cli_device_name(&a->opts.device, "--device", text, a->err);
            return 0;
        case OPT_JSON: a->json = true; return 0;
#ifdef LS_FAULTS
        case OPT_INJECT:
            if (!ls_inject_parse(&a->opts.inject, text)) ls_cli_wrong(state, "'%s' is no fault", text);
            return 0;
#endif
        case ARGP_KEY_ARG:
            if (a->directory != NULL) ls_cli_wrong(state, "unexpected argument '%s'", text);
            a->directory = text;
            return 0;
        case ARGP_KEY_END:
            if (a->directory == NULL) ls_cli_wrong(state, "BUNDLE is missing");
            return 0;
        default: return ARGP_ERR_UNKNOWN;
    }
}

static int run_replay(int argc, char **argv) {
    const struct argp argp = {replay_options, on_replay_option, "BUNDLE", replay_text, NULL, NULL, NULL};
    char name[64];
    ls_error err;
    ls_replay_finding finding;
    replay_arguments a = {.err = &err, .opts = {.device = LS_DEVICE_AUTO, .notes = stderr}};
    snprintf(name, sizeof name, "%s replay", argv[0]);
    argv[1] = name;
    ls_cli_parse(&argp, argc - 1, argv + 1, &a);
    a.opts.threads = (int32_t)a.threads;
    if (a.status != LS_OK || ls_replay(&finding, a.directory, &a.opts, &err) != LS_OK) return ls_cli_fail(&err);
    if (a.json) {
        ls_json_out json;
        ls_json_init(&json, stdout);
        ls_json_begin_object(&json, NULL);
        ls_finding_write(&json, &finding);
        ls_json_end_object(&json);
        ls_json_newline(&json);
    } else {
        ls_finding_print(stdout, &finding);
    }
    return finding.differs ? LS_EXIT_DIFFERENT : LS_EXIT_OK;
}

/* ---- the command ---- */

int ls_cmd_train(int argc, char **argv) {
    char name[64];
    for (size_t i = 0; argc > 1 && i < N_KINDS; i++) {
        const struct argp argp = {options, on_train_option, NULL, kinds[i].text, NULL, NULL, NULL};
        train_arguments a = {.required = kinds[i].required};
        int code = LS_EXIT_OK;
        ls_error err;
        if (strcmp(argv[1], kinds[i].name) != 0) continue;
        snprintf(name, sizeof name, "%s %s", argv[0], kinds[i].name);
        argv[1] = name;
        ls_cli_parse(&argp, argc - 1, argv + 1, &a);
        return kinds[i].run(&a, &code, &err) == LS_OK ? code : ls_cli_fail(&err);
    }
    if (argc > 1 && strcmp(argv[1], "resume") == 0) return run_resume(argc, argv);
    if (argc > 1 && strcmp(argv[1], "replay") == 0) return run_replay(argc, argv);
    if (argc > 1 && strcmp(argv[1], "plan") == 0) return run_plan(argc, argv);
    if (argc > 1 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
        printf("Usage: %s KIND [OPTION...]\n\n", argv[0]);
        for (size_t i = 0; i < N_KINDS; i++) printf("  %-6s %s\n", kinds[i].name, kinds[i].text);
        printf("  %-6s %s\n  %-6s %s\n", "resume", resume_text, "replay", replay_text);
        printf("  %-6s %s\n", "plan", plan_text);
        printf("\n%s KIND --help tells its options, --keys its keys.\n\nExamples:\n", argv[0]);
        for (size_t i = 0; i < N_KINDS; i++) {
            snprintf(name, sizeof name, "train %s", kinds[i].name);
            printf("%s", ls_help_examples(name));
        }
        return LS_EXIT_OK;
    }
    ls_cli_usage(argv[0], argc > 1 ? "this kind of training is not known" : "the kind of training is missing");
}
