/* Random words of small letters, to be written backwards. */
#include <string.h>

#include "rl/task_family.h"

enum { OPTION_WORDS = 1, OPTION_LETTERS, OPTION_REWARD };
enum { REWARD_RATIO, REWARD_EXACT };

static bool draw_reverse(ls_problem *out, const ls_task *task, ls_task_random *random) {
    size_t n;
    for (int64_t word_i = 0; word_i < task->option[OPTION_WORDS]; word_i++) {
        const int64_t letters = ls_task_uniform(random, 1, task->option[OPTION_LETTERS]);
        if (word_i > 0) ls_task_append(out->key, sizeof out->key, " ");
        for (int64_t i = 0; i < letters; i++)
            ls_task_append(out->key, sizeof out->key, "%c", (int)('a' + ls_task_uniform(random, 0, 25)));
    }
    n = strlen(out->key);
    for (size_t i = 0; i < n; i++) out->answer[i] = out->key[n - 1 - i];
    ls_task_append(out->prompt, sizeof out->prompt,
                   task->option[LS_OPTION_STYLE] == LS_STYLE_BARE
                       ? "reverse %s:"
                       : "Write this text backwards, letter by letter, and only that on the last line: %s",
                   out->key);
    return true;
}

static double reward_reverse(const ls_task *task, const ls_problem *problem, const ls_reply *replies, int64_t n) {
    const ls_reply answer = ls_task_answer(task, &replies[n - 1]);
    return task->option[OPTION_REWARD] == REWARD_EXACT ? ls_task_exact(problem, answer)
                                                       : ls_task_ratio(problem, answer);
}

const ls_task_family ls_task_reverse = {
    .name = "reverse-text",
    .text = "reverse abc de: is ed cba",
    .stream = 2,
    .options = {LS_TASK_OPTION_STYLE,
                {"words", "words of a text", 1, 16, 3, {NULL}},
                {"letters", "letters of a word, at most", 1, 12, 5, {NULL}},
                {"reward", "for what", 0, 0, REWARD_RATIO, {"ratio", "exact"}}},
    .draw = draw_reverse,
    .reward = reward_reverse,
};
