/* Tasks: the list of families, their options, the draws of a problem and its split. Owns ls_task. */
#define _POSIX_C_SOURCE 200809L
#include "rl/task.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "rl/task_family.h"

enum { ATTEMPTS_MAX = 200000, HELD_OUT_ONE_IN = 8 };

#define TASK_TAG 0x7461736Bu      /* draws of tasks and of sampling share a seed, not a stream */
#define SPLIT_KEY 0x73706C6974ull /* fixed: a problem's split is the same for every seed */

static const ls_task_family *const families[] = {&ls_task_arithmetic, &ls_task_reverse, &ls_task_sort,
                                                 &ls_task_countdown, &ls_task_guess};
#define N_FAMILIES ((int64_t)(sizeof families / sizeof families[0]))

static const char *const split_names[] = {"train", "held-out"};

const char *ls_task_split_name(ls_task_split split) { return split_names[split]; }

bool ls_task_split_parse(ls_task_split *out, const char *name) {
    for (int i = 0; i < 2; i++) {
        if (strcmp(name, split_names[i]) != 0) continue;
        *out = (ls_task_split)i;
        return true;
    }
    return false;
}

static const ls_task_family *family_at(int64_t task_i) {
    LS_ASSERT(task_i >= 0 && task_i < N_FAMILIES, "task %lld of %lld", (long long)task_i, (long long)N_FAMILIES);
    return families[task_i];
}

int64_t ls_tasks_count(void) { return N_FAMILIES; }
const char *ls_tasks_name(int64_t task_i) { return family_at(task_i)->name; }
const char *ls_tasks_text(int64_t task_i) { return family_at(task_i)->text; }

static int64_t options_count(const ls_task_family *family) {
    int64_t n = 0;
    while (n < LS_TASK_OPTIONS_MAX && family->options[n].name != NULL) n++;
    return n;
}

static int64_t words_count(const ls_task_option *option) {
    int64_t n = 0;
    while (n < LS_TASK_WORDS_MAX && option->words[n] != NULL) n++;
    return n;
}

int64_t ls_tasks_options_count(int64_t task_i) { return options_count(family_at(task_i)); }

/* "A..B" or "WORD|WORD". */
static void domain_text(char *out, size_t size, const ls_task_option *option) {
    const int64_t n = words_count(option);
    out[0] = '\0';
    if (n == 0) ls_task_append(out, size, "%lld..%lld", (long long)option->low, (long long)option->high);
    for (int64_t i = 0; i < n; i++) ls_task_append(out, size, "%s%s", i == 0 ? "" : "|", option->words[i]);
}

void ls_tasks_option_text(char *out, size_t size, int64_t task_i, int64_t option_i) {
    const ls_task_family *family = family_at(task_i);
    const ls_task_option *option = &family->options[option_i];
    char domain[128], start[24];
    LS_ASSERT(option_i >= 0 && option_i < options_count(family), "option %lld", (long long)option_i);
    domain_text(domain, sizeof domain, option);
    snprintf(start, sizeof start, "%lld", (long long)option->start);
    snprintf(out, size, "%s=%s (%s): %s", option->name, domain,
             words_count(option) > 0 ? option->words[option->start] : start, option->text);
}

static ls_status parse_value(int64_t *out, const ls_task_option *option, const char *text, ls_error *err) {
    char domain[128], *end;
    const int64_t n = words_count(option);
    for (int64_t i = 0; i < n; i++) {
        if (strcmp(option->words[i], text) != 0) continue;
        *out = i;
        return LS_OK;
    }
    if (n == 0 && text[0] >= '0' && text[0] <= '9') {
        errno = 0;
        const long long value = strtoll(text, &end, 10);
        if (*end == '\0' && errno == 0 && value >= option->low && value <= option->high) {
            *out = value;
            return LS_OK;
        }
    }
    domain_text(domain, sizeof domain, option);
    return LS_FAIL(err, LS_ERR_ARG, "option %s: '%.60s' is not in %s", option->name, text, domain);
}

/* One NAME=VALUE, which it cuts in two. */
static ls_status parse_task_option(ls_task *task, char *text, ls_error *err) {
    char *value = strchr(text, '=');
    const int64_t n = options_count(task->family);
    if (value == NULL) return LS_FAIL(err, LS_ERR_ARG, "option '%.60s': expected NAME=VALUE", text);
    *value++ = '\0';
    for (int64_t i = 0; i < n; i++)
        if (strcmp(task->family->options[i].name, text) == 0)
            return parse_value(&task->option[i], &task->family->options[i], value, err);
    return LS_FAIL(err, LS_ERR_ARG, "'%.60s' is not an option of this task", text);
}

static ls_status parse_options(ls_task *task, const char *options, ls_error *err) {
    ls_status status = LS_OK;
    char *copy = strdup(options), *next = copy;
    if (copy == NULL) return LS_FAIL(err, LS_ERR_NOMEM, "options");
    while (next != NULL) {
        char *text = next;
        next = strchr(text, ',');
        if (next != NULL) *next++ = '\0';
        LS_TRY_DONE(parse_task_option(task, text, err));
    }
done:
    free(copy);
    return status;
}

ls_status ls_task_open(ls_task **out, const char *name, const char *options, uint64_t seed, ls_error *err) {
    ls_status status = LS_OK;
    ls_task *task = NULL;
    ls_philox key;
    int64_t task_i = 0;
    while (task_i < N_FAMILIES && strcmp(families[task_i]->name, name) != 0) task_i++;
    if (task_i == N_FAMILIES) {
        char names[256] = "";
        for (int64_t i = 0; i < N_FAMILIES; i++)
            ls_task_append(names, sizeof names, "%s%s", i == 0 ? "" : ", ", families[i]->name);
        return LS_FAIL(err, LS_ERR_ARG, "'%.60s' is not a task; there are %s", name, names);
    }
    task = calloc(1, sizeof *task);
    if (task == NULL) return LS_FAIL(err, LS_ERR_NOMEM, "task");
    task->family = families[task_i];
    for (int64_t i = 0; i < LS_TASK_OPTIONS_MAX; i++) task->option[i] = task->family->options[i].start;
    key = ls_philox_draw(seed, TASK_TAG, task->family->stream, 0, 0);
    task->key = (uint64_t)key.word[1] << 32 | key.word[0];
    if (options != NULL && options[0] != '\0') status = parse_options(task, options, err);
    if (status != LS_OK) {
        ls_error_prefix(err, "task %s", name);
        goto done;
    }
    *out = task;
    task = NULL;
done:
    ls_task_free(task);
    return status;
}

void ls_task_free(ls_task *task) { free(task); }

/* The one split that a content belongs to. */
static ls_task_split split_of(const ls_task_family *family, const char *key) {
    const size_t n = strlen(key);
    uint64_t hash = SPLIT_KEY;
    for (size_t at = 0; at <= n; at += 8) {
        uint32_t word[2] = {0, 0};
        for (size_t i = 0; i < 8 && at + i < n; i++) word[i / 4] |= (uint32_t)(uint8_t)key[at + i] << (8 * (i % 4));
        const ls_philox draw = ls_philox_draw(hash, word[0], word[1], family->stream, (uint32_t)n);
        hash = (uint64_t)draw.word[1] << 32 | draw.word[0];
    }
    return hash % HELD_OUT_ONE_IN == 0 ? LS_TASK_SPLIT_HELD_OUT : LS_TASK_SPLIT_TRAIN;
}

ls_status ls_task_make(ls_problem *out, const ls_task *task, ls_task_split split, int64_t i, ls_error *err) {
    const ls_task_family *family = task->family;
    LS_ASSERT(i >= 0 && (split == LS_TASK_SPLIT_TRAIN || split == LS_TASK_SPLIT_HELD_OUT), "problem %lld of split %d",
              (long long)i, (int)split);
    for (uint32_t attempt = 0; attempt < ATTEMPTS_MAX; attempt++) {
        ls_task_random random = {task->key, (uint32_t)i, (uint32_t)((uint64_t)i >> 32), 2 * attempt + (uint32_t)split,
                                 0};
        memset(out, 0, sizeof *out);
        if (!family->draw(out, task, &random) || split_of(family, out->key) != split) continue;
        snprintf(out->id, sizeof out->id, "%s/%s/%lld", family->name, split_names[split], (long long)i);
        return LS_OK;
    }
    return LS_FAIL(err, LS_ERR_CAPACITY, "task %s: %d draws made no problem of the %s split; its options leave too few",
                   family->name, (int)ATTEMPTS_MAX, split_names[split]);
}

double ls_task_reward(const ls_task *task, const ls_problem *problem, const ls_reply *replies, int64_t n) {
    LS_ASSERT(n >= 1, "%lld completions", (long long)n);
    return task->family->reward(task, problem, replies, n);
}

void ls_task_turn(ls_turn *out, const ls_task *task, const ls_problem *problem, const ls_reply *replies, int64_t n) {
    LS_ASSERT(n >= 1, "%lld completions", (long long)n);
    memset(out, 0, sizeof *out);
    out->end = true;
    if (task->family->turn != NULL) task->family->turn(out, task, problem, replies, n);
}

void ls_task_solve(char out[LS_ANSWER_MAX], const ls_task *task, const ls_problem *problem, const ls_reply *replies,
                   int64_t n) {
    if (task->family->solve != NULL)
        task->family->solve(out, task, problem, replies, n);
    else
        memcpy(out, problem->answer, LS_ANSWER_MAX);
}
