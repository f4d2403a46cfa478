/* Random digits, to be written in ascending order. */
#include <string.h>

#include "rl/task_family.h"

enum { OPTION_COUNT = 1, OPTION_REWARD };
enum { REWARD_EXACT, REWARD_RATIO };
enum { COUNT_MAX = 32 };

static bool draw_sort(ls_problem *out, const ls_task *task, ls_task_random *random) {
    const bool bare = task->option[LS_OPTION_STYLE] == LS_STYLE_BARE;
    int64_t seen[10] = {0};
    ls_task_append(out->prompt, sizeof out->prompt, bare ? "sort" : "Sort these digits in ascending order:");
    for (int64_t i = 0; i < task->option[OPTION_COUNT]; i++) {
        const int64_t digit = ls_task_uniform(random, 0, 9);
        seen[digit]++;
        ls_task_append(out->prompt, sizeof out->prompt, " %d", (int)digit);
    }
    ls_task_append(out->prompt, sizeof out->prompt,
                   bare ? ":" : ". Write only the digits, one space between them, on the last line.");
    for (int digit = 0; digit < 10; digit++)
        while (seen[digit]-- > 0)
            ls_task_append(out->answer, sizeof out->answer, "%s%d", out->answer[0] == '\0' ? "" : " ", digit);
    memcpy(out->key, out->answer, sizeof out->key); /* all orders of the same digits are one problem */
    return true;
}

static double reward_sort(const ls_task *task, const ls_problem *problem, const ls_reply *replies, int64_t n) {
    const ls_reply answer = ls_task_answer(task, &replies[n - 1]);
    return task->option[OPTION_REWARD] == REWARD_EXACT ? ls_task_exact(problem, answer)
                                                       : ls_task_ratio(problem, answer);
}

const ls_task_family ls_task_sort = {
    .name = "sort-digits",
    .text = "sort 3 1 2: is 1 2 3",
    .stream = 3,
    .options = {LS_TASK_OPTION_STYLE,
                {"count", "digits to sort", 2, COUNT_MAX, 6, {NULL}},
                {"reward", "for what", 0, 0, REWARD_EXACT, {"exact", "ratio"}}},
    .draw = draw_sort,
    .reward = reward_sort,
};
