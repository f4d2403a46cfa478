/* `lockstep task`: problems of a task as prompts, or with the reference solver's completions as data for supervised
 * training; and rewards of completions. Owns nothing that outlives the command. */
#define _POSIX_C_SOURCE 200809L
#include <argp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "cli/commands.h"
#include "json/json_out.h"
#include "record/record.h"
#include "rl/task.h"

enum { OPT_N = 256, OPT_FROM, OPT_SEED, OPT_SPLIT, OPT_OPTIONS, OPT_FORMAT, OPT_JUDGE, OPT_OUT, OPT_LIST };
enum { TURNS_MAX = 64 };

typedef struct options {
    const char *name, *settings, *judge, *out;
    int64_t n, from;
    uint64_t seed;
    ls_task_split split;
    bool sft, list;
    ls_status status;
    ls_error err;
} options;

static ls_status parse_value(options *o, int key, const char *text) {
    switch (key) {
        case OPT_N: return ls_cli_int(&o->n, "--n", text, 1, (int64_t)1 << 32, &o->err);
        case OPT_FROM: return ls_cli_int(&o->from, "--from", text, 0, (int64_t)1 << 62, &o->err);
        case OPT_SEED: return ls_cli_seed(&o->seed, "--seed", text, &o->err);
        case OPT_SPLIT:
            if (!ls_task_split_parse(&o->split, text))
                return LS_FAIL(&o->err, LS_ERR_ARG, "--split: '%s' is not train or held-out", text);
            return LS_OK;
        default:
            if (strcmp(text, "prompts") != 0 && strcmp(text, "sft") != 0)
                return LS_FAIL(&o->err, LS_ERR_ARG, "--format: '%s' is not prompts or sft", text);
            o->sft = strcmp(text, "sft") == 0;
            return LS_OK;
    }
}

static error_t parse_problem_option(int key, char *arg, struct argp_state *state) {
    options *o = state->input;
    switch (key) {
        case OPT_N:
        case OPT_FROM:
        case OPT_SEED:
        case OPT_SPLIT:
        case OPT_FORMAT:
            if (o->status == LS_OK) o->status = parse_value(o, key, arg);
            return 0;
        case OPT_OPTIONS: o->settings = arg; return 0;
        case OPT_JUDGE: o->judge = arg; return 0;
        case OPT_OUT: o->out = arg; return 0;
        case OPT_LIST: o->list = true; return 0;
        case ARGP_KEY_ARG:
            if (o->name != NULL) ls_cli_wrong(state, "unexpected argument '%s'", arg);
            o->name = arg;
            return 0;
        case ARGP_KEY_END:
            if (o->name == NULL && !o->list) ls_cli_wrong(state, "NAME is missing; --list tells the tasks");
            return 0;
        default: return ARGP_ERR_UNKNOWN;
    }
}

static void print_tasks(void) {
    for (int64_t i = 0; i < ls_tasks_count(); i++) {
        printf("%s: %s\n", ls_tasks_name(i), ls_tasks_text(i));
        for (int64_t k = 0; k < ls_tasks_options_count(i); k++) {
            char text[256];
            ls_tasks_option_text(text, sizeof text, i, k);
            printf("    %s\n", text);
        }
    }
}

static void write_line(ls_json_out *json, const char *id, const char *prompt, int64_t prompt_bytes,
                       const char *completion) {
    ls_json_begin_object(json, NULL);
    ls_json_string(json, "id", id);
    ls_json_text(json, "prompt", prompt, prompt_bytes);
    if (completion != NULL) ls_json_string(json, "completion", completion);
    ls_json_end_object(json);
    ls_json_newline(json);
}

/* The solver's conversation, one line a completion: what was said before it is its prompt. */
static ls_status write_solved(ls_json_out *json, const ls_task *task, const ls_problem *problem, ls_error *err) {
    ls_status status = LS_OK;
    char completions[TURNS_MAX][LS_ANSWER_MAX];
    ls_reply replies[TURNS_MAX];
    ls_turn turn = {0};
    char *said = NULL;
    size_t bytes = 0;
    FILE *stream = open_memstream(&said, &bytes);
    if (stream == NULL) return LS_FAIL(err, LS_ERR_NOMEM, "conversation");
    fputs(problem->prompt, stream);
    for (int64_t n = 0; n < TURNS_MAX && !turn.end; n++) {
        char id[LS_PROBLEM_ID_MAX + 24];
        ls_task_solve(completions[n], task, problem, replies, n);
        replies[n] = (ls_reply){completions[n], (int64_t)strlen(completions[n])};
        ls_task_turn(&turn, task, problem, replies, n + 1);
        if (fflush(stream) != 0) {
            status = LS_FAIL(err, LS_ERR_NOMEM, "conversation");
            goto done;
        }
        if (n == 0 && turn.end)
            snprintf(id, sizeof id, "%s", problem->id);
        else
            snprintf(id, sizeof id, "%s/%lld", problem->id, (long long)n);
        write_line(json, id, said, (int64_t)bytes, completions[n]);
        fprintf(stream, "%s%s", completions[n], turn.text);
    }
done:
    fclose(stream);
    free(said);
    return status;
}

static ls_status write_problems(const options *o, const ls_task *task, ls_output *output, ls_error *err) {
    ls_json_out json;
    ls_problem problem;
    ls_json_init(&json, ls_output_stream(output));
    for (int64_t i = o->from; i < o->from + o->n; i++) {
        LS_TRY(ls_output_check(output, err));
        LS_TRY(ls_task_make(&problem, task, o->split, i, err));
        if (o->sft)
            LS_TRY(write_solved(&json, task, &problem, err));
        else
            write_line(&json, problem.id, problem.prompt, (int64_t)strlen(problem.prompt), NULL);
    }
    return LS_OK;
}

/* The problem of a record: its id is that of the problem, and with samples a slash and the sample's number follow. */
static ls_status find_problem(ls_problem *out, const options *o, const ls_task *task, const ls_record *record,
                              ls_error *err) {
    const size_t name = strlen(o->name);
    char split[16];
    long long i;
    ls_task_split which;
    if (strncmp(record->id, o->name, name) != 0 || sscanf(record->id + name, "/%15[^/]/%lld", split, &i) != 2 ||
        i < 0 || !ls_task_split_parse(&which, split))
        return LS_FAIL(err, LS_ERR_FORMAT, "%s: line %lld: id: '%.100s' is no problem of %s", o->judge,
                       (long long)record->line, record->id, o->name);
    return ls_task_make(out, task, which, i, err);
}

/* Completions as `generate` writes them, those of a problem one behind the other. */
static ls_status judge_completions(const options *o, const ls_task *task, ls_output *output, ls_error *err) {
    ls_record *records = NULL;
    ls_problem problem = {.id = ""}, previous;
    ls_json_out json;
    int64_t n = 0, n_problems = 0;
    double sum = 0, best = 0, best_sum = 0;
    ls_status status;
    ls_json_init(&json, ls_output_stream(output));
    LS_TRY_DONE(ls_records_read(&records, &n, o->judge, LS_RECORD_LOGPROB, err));
    for (int64_t i = 0; i < n; i++) {
        const ls_record *r = &records[i];
        const ls_reply reply = {r->text, r->text_bytes};
        double reward;
        LS_TRY_DONE(ls_output_check(output, err));
        if (r->text == NULL) {
            status = LS_FAIL(err, LS_ERR_FORMAT, "%s: line %lld: no text", o->judge, (long long)r->line);
            goto done;
        }
        previous = problem;
        LS_TRY_DONE(find_problem(&problem, o, task, r, err));
        reward = ls_task_reward(task, &problem, &reply, 1);
        if (strcmp(previous.id, problem.id) != 0) {
            best_sum += best;
            best = 0;
            n_problems++;
        }
        sum += reward;
        if (reward > best) best = reward;
        ls_json_begin_object(&json, NULL);
        ls_json_string(&json, "id", r->id);
        ls_json_double(&json, "reward", reward);
        ls_json_end_object(&json);
        ls_json_newline(&json);
    }
    fprintf(stderr, "%lld completions of %lld problems: mean reward %.4f, mean of the problems' best %.4f\n",
            (long long)n, (long long)n_problems, sum / (double)n, (best_sum + best) / (double)n_problems);
done:
    ls_records_free(records, n);
    return status;
}

static int run_task(const options *o) {
    ls_task *task = NULL;
    ls_output *output = NULL;
    ls_error err = {0};
    ls_status status;
    LS_TRY_DONE(ls_task_open(&task, o->name, o->settings, o->seed, &err));
    LS_TRY_DONE(ls_output_open(&output, o->out, &err));
    LS_TRY_DONE((o->judge != NULL ? judge_completions : write_problems)(o, task, output, &err));
    status = ls_output_commit(output, &err);
    output = NULL;
done:
    ls_output_abandon(output);
    ls_task_free(task);
    return status == LS_OK ? LS_EXIT_OK : ls_cli_fail(&err);
}

int ls_cmd_task(int argc, char **argv) {
    static const struct argp_option list[] = {
        {"n", OPT_N, "N", 0, "How many problems (100)", 0},
        {"from", OPT_FROM, "I", 0, "The first problem's number (0)", 0},
        {"seed", OPT_SEED, "N", 0, "Seed of the problems (0)", 0},
        {"split", OPT_SPLIT, "SPLIT", 0, "train (default) or held-out; they never share a problem", 0},
        {"options", OPT_OPTIONS, "NAME=VALUE,..", 0, "The task's own options; --list tells them", 0},
        {"format", OPT_FORMAT, "FORMAT", 0,
         "prompts: lines {\"id\",\"prompt\"} (default); sft: {\"id\",\"prompt\",\"completion\"}, solved, one line a "
         "turn",
         0},
        {"judge", OPT_JUDGE, "FILE", 0,
         "Instead of problems write the rewards {\"id\",\"reward\"} of the completions in FILE, which generate made of "
         "this task's prompts (tasks of one turn)",
         0},
        {"out", OPT_OUT, "FILE", 0, "Write to FILE, which appears when it is complete (default: standard output)", 0},
        {"list", OPT_LIST, NULL, 0, "Print the tasks and their options, with defaults in parentheses", 0},
        {0}};
    static const struct argp parser = {list,
                                       parse_problem_option,
                                       "NAME",
                                       "Writes problems of a task, or judges completions. Problem I depends on the "
                                       "task, its options, the seed, the split and I alone.",
                                       NULL,
                                       NULL,
                                       NULL};
    options o = {.n = 100};
    ls_cli_parse(&parser, argc, argv, &o);
    if (o.status != LS_OK) return ls_cli_fail(&o.err);
    if (!o.list) return run_task(&o);
    print_tasks();
    return LS_EXIT_OK;
}
