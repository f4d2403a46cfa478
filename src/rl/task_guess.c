/* A hidden number over several turns: the environment says higher, lower or right until it is found or turns are out.
 */
#include <stdio.h>
#include <string.h>

#include "rl/task_family.h"

enum { OPTION_HIGH = 1, OPTION_TURNS, OPTION_REWARD };
enum { REWARD_WIN, REWARD_SPEED };
enum { GUESS_DIGITS_MAX = 9, UNREADABLE = -1 };

static bool draw_guess(ls_problem *out, const ls_task *task, ls_task_random *random) {
    const int64_t high = task->option[OPTION_HIGH], secret = ls_task_uniform(random, 1, high);
    ls_task_append(out->prompt, sizeof out->prompt,
                   task->option[LS_OPTION_STYLE] == LS_STYLE_BARE
                       ? "guess 1..%lld, turns %lld:\n"
                       : "I think of a whole number from 1 to %lld. Find it in at most %lld turns: to each guess I say "
                         "higher, lower or right. Write only your guess on the last line.\n",
                   (long long)high, (long long)task->option[OPTION_TURNS]);
    ls_task_append(out->answer, sizeof out->answer, "%lld", (long long)secret);
    ls_task_append(out->key, sizeof out->key, "%lld/%lld", (long long)secret, (long long)high);
    out->values[0] = secret;
    out->n_values = 1;
    return true;
}

/* The number that a completion guesses, or UNREADABLE. */
static int64_t guess_of(const ls_task *task, const ls_reply *reply) {
    const ls_reply answer = ls_task_answer(task, reply);
    int64_t value = 0;
    if (answer.bytes == 0 || answer.bytes > GUESS_DIGITS_MAX) return UNREADABLE;
    for (int64_t i = 0; i < answer.bytes; i++) {
        if (answer.text[i] < '0' || answer.text[i] > '9') return UNREADABLE;
        value = 10 * value + (answer.text[i] - '0');
    }
    return value;
}

static double reward_guess(const ls_task *task, const ls_problem *problem, const ls_reply *replies, int64_t n) {
    const int64_t turns = task->option[OPTION_TURNS];
    for (int64_t k = 0; k < n && k < turns; k++) {
        if (guess_of(task, &replies[k]) != problem->values[0]) continue;
        return task->option[OPTION_REWARD] == REWARD_WIN ? 1.0 : (double)(turns - k) / (double)turns;
    }
    return 0.0;
}

static void turn(ls_turn *out, const ls_task *task, const ls_problem *problem, const ls_reply *replies, int64_t n) {
    const int64_t guess = guess_of(task, &replies[n - 1]), secret = problem->values[0];
    out->end = guess == secret || n >= task->option[OPTION_TURNS];
    if (guess == UNREADABLE)
        snprintf(out->text, sizeof out->text, "\na number from 1 to %lld\n", (long long)task->option[OPTION_HIGH]);
    else
        snprintf(out->text, sizeof out->text, "\n%s\n",
                 guess == secret  ? "right"
                 : guess < secret ? "higher"
                                  : "lower");
}

/* Halves what the answers so far leave. */
static void solve(char out[LS_ANSWER_MAX], const ls_task *task, const ls_problem *problem, const ls_reply *replies,
                  int64_t n) {
    int64_t low = 1, high = task->option[OPTION_HIGH];
    const int64_t secret = problem->values[0];
    for (int64_t i = 0; i < n; i++) {
        const int64_t guess = guess_of(task, &replies[i]);
        if (guess != UNREADABLE && guess < secret && guess >= low) low = guess + 1;
        if (guess != UNREADABLE && guess > secret && guess <= high) high = guess - 1;
        if (guess == secret) low = high = secret;
    }
    snprintf(out, LS_ANSWER_MAX, "%lld", (long long)(low + (high - low) / 2));
}

const ls_task_family ls_task_guess = {
    .name = "guess-number",
    .text = "find a hidden number by higher and lower, over several turns",
    .stream = 5,
    .options = {LS_TASK_OPTION_STYLE,
                {"high", "the largest number", 2, 1000000, 100, {NULL}},
                {"turns", "guesses, at most", 1, 64, 7, {NULL}},
                {"reward", "for what", 0, 0, REWARD_WIN, {"win", "speed"}}},
    .draw = draw_guess,
    .reward = reward_guess,
    .turn = turn,
    .solve = solve,
};
