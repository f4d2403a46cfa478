/* Sums, differences and products of whole numbers. Operands are uniform in 0..10^digits - 1. */
#include <string.h>

#include "rl/task_family.h"

enum { OPTION_DIGITS = 1, OPTION_OPS, OPTION_NEGATIVE };
enum { OPS_ADD, OPS_SUB, OPS_MUL, OPS_ADD_SUB, OPS_ALL };

static bool draw_arithmetic(ls_problem *out, const ls_task *task, ls_task_random *random) {
    static const char *const signs[] = {"+", "-", "*", "+-", "+-*"}; /* by OPS */
    const char *set = signs[task->option[OPTION_OPS]];
    int64_t bound = 1, a, b;
    char sign;
    for (int64_t i = 0; i < task->option[OPTION_DIGITS]; i++) bound *= 10;
    sign = set[ls_task_uniform(random, 0, (int64_t)strlen(set) - 1)];
    a = ls_task_uniform(random, 0, bound - 1);
    b = ls_task_uniform(random, 0, bound - 1);
    if (sign == '-' && task->option[OPTION_NEGATIVE] == 0 && a < b) {
        const int64_t larger = b;
        b = a;
        a = larger;
    }
    ls_task_append(out->prompt, sizeof out->prompt,
                   task->option[LS_OPTION_STYLE] == LS_STYLE_BARE
                       ? "%lld%c%lld="
                       : "What is %lld %c %lld? Write only the number on the last line.",
                   (long long)a, sign, (long long)b);
    ls_task_append(out->answer, sizeof out->answer, "%lld",
                   (long long)(sign == '+'   ? a + b
                               : sign == '-' ? a - b
                                             : a * b));
    /* Swapped operands make the same problem, or one that shows its answer's digits. */
    ls_task_append(out->key, sizeof out->key, "%lld%c%lld", (long long)(a < b ? a : b), sign,
                   (long long)(a < b ? b : a));
    return true;
}

static double reward_arithmetic(const ls_task *task, const ls_problem *problem, const ls_reply *replies, int64_t n) {
    return ls_task_exact(problem, ls_task_answer(task, &replies[n - 1]));
}

const ls_task_family ls_task_arithmetic = {
    .name = "arithmetic",
    .text = "12+7= is 19",
    .stream = 1,
    .options = {LS_TASK_OPTION_STYLE,
                {"digits", "decimal digits of an operand, at most", 1, 9, 2, {NULL}},
                {"ops", "operations", 0, 0, OPS_ADD, {"add", "sub", "mul", "add-sub", "all"}},
                {"negative", "whether a difference may be below zero", 0, 0, 0, {"no", "yes"}}},
    .draw = draw_arithmetic,
    .reward = reward_arithmetic,
};
