/* Any bytes as the completions of every task: a reward in 0..1, a turn that ends in NUL, the same each time. The first
 * byte says how many lines make a completion. */
#include <stdlib.h>
#include <string.h>

#include "rl/task.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

enum { REPLIES_MAX = 16 };

/* Cuts text behind each every-th newline; what is left over is the last completion. */
static int64_t cut(ls_reply *replies, const char *text, int64_t bytes, int64_t every) {
    int64_t n = 0, begin = 0, lines = 0;
    for (int64_t i = 0; i < bytes && n < REPLIES_MAX - 1; i++) {
        if (text[i] != '\n' || ++lines % every != 0) continue;
        replies[n++] = (ls_reply){text + begin, i - begin};
        begin = i + 1;
    }
    replies[n++] = (ls_reply){text + begin, bytes - begin};
    return n;
}

static void judge(const ls_task *task, const ls_problem *problem, const ls_reply *replies, int64_t n) {
    const double reward = ls_task_reward(task, problem, replies, n);
    char solved[LS_ANSWER_MAX];
    ls_turn turn;
    if (!(reward >= 0 && reward <= 1) || ls_task_reward(task, problem, replies, n) != reward) abort();
    ls_task_turn(&turn, task, problem, replies, n);
    if (memchr(turn.text, '\0', sizeof turn.text) == NULL) abort();
    ls_task_solve(solved, task, problem, replies, n);
    if (memchr(solved, '\0', sizeof solved) == NULL || solved[0] == '\0') abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes) {
    static const char *const cases[][2] = {
        {"arithmetic", "ops=all"},      {"reverse-text", ""},         {"sort-digits", "reward=ratio,style=words"},
        {"countdown", "reward=graded"}, {"countdown", "style=words"}, {"guess-number", "turns=5,reward=speed"},
        {"guess-number", "style=words"}};
    char *copy = malloc(n_bytes > 0 ? n_bytes : 1);
    ls_reply replies[REPLIES_MAX];
    int64_t n;
    if (copy == NULL) return 0;
    if (n_bytes > 1) memcpy(copy, data + 1, n_bytes - 1);
    n = cut(replies, copy, n_bytes > 1 ? (int64_t)n_bytes - 1 : 0, n_bytes > 0 ? 1 + data[0] % 4 : 1);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ls_task *task;
        ls_problem problem;
        if (ls_task_open(&task, cases[i][0], cases[i][1], 0, NULL) != LS_OK) abort();
        if (ls_task_make(&problem, task, LS_TASK_SPLIT_TRAIN, 0, NULL) != LS_OK) abort();
        if (strcmp(cases[i][0], "countdown") == 0) /* numbers at which 64 bits end soon */
            problem =
                (ls_problem){.values = {3037000500, 4611686018427387904, 3, 2, 0, 1}, .n_values = 6, .answer = "1"};
        judge(task, &problem, replies, n);
        ls_task_free(task);
    }
    /* The bytes as options. */
    if (n_bytes < 64) {
        char options[64] = "";
        ls_task *task;
        ls_error err;
        if (n_bytes > 0) memcpy(options, data, n_bytes);
        for (int64_t i = 0; i < ls_tasks_count(); i++)
            if (ls_task_open(&task, ls_tasks_name(i), options, 0, &err) == LS_OK) ls_task_free(task);
    }
    free(copy);
    return 0;
}
