/* Tasks: problems made from a seed, with rewards that follow exact rules. Text only; tokens are the caller's matter.
 *
 * Problem i of a split depends on (task, options, seed, split, i) and on nothing else, so any range can be made at any
 * time in any order. Splits never share a problem, whatever the seeds and ranges: the content of a problem (its key,
 * which does not tell apart 3+5 and 5+3, or the order of numbers to sort or to combine) belongs to one split by a fixed
 * hash, one content in eight to held-out; a draw of the other split is thrown away. Within a split a problem may come
 * again.
 *
 * An answer is one line of a completion without spaces, tabs and carriage returns around it. style=bare: the first
 * line, for models that continue a text; style=words: the last line that is not blank, for models that follow
 * instructions.
 *
 * Rewards, always in 0..1:
 *   arithmetic    1 if the answer is the result in decimal without leading zeros, "-" in front if negative
 *   reverse-text  ratio: 2 c / (a + b), c the longest common subsequence of answer and reversed text, a and b their
 *                 lengths in bytes; 0 for an answer above 4096 bytes. exact: 1 if they are equal
 *   sort-digits   the same with the digits in ascending order, one space between them
 *   countdown     1 if the answer is an expression of value target: numbers, + - * / with the usual precedence, left to
 *                 right, and parentheses, spaces anywhere between; each given number at most once and no other;
 *                 divisions without remainder; no signs; every value in 64 bits; at most 64 open parentheses. graded:
 *                 0.1 for such an expression of another value
 *   guess-number  win: 1 if one of the first `turns` answers is the secret; speed: (turns - k) / turns when the answer
 *                 at k, from 0, is the first that is. A guess is 1 to 9 decimal digits */
#ifndef LS_RL_TASK_H
#define LS_RL_TASK_H

#include "base/status.h"

typedef enum ls_task_split { LS_TASK_SPLIT_TRAIN = 0, LS_TASK_SPLIT_HELD_OUT = 1 } ls_task_split;

const char *ls_task_split_name(ls_task_split split); /* "train", "held-out" */
bool ls_task_split_parse(ls_task_split *out, const char *name);

enum {
    LS_PROBLEM_ID_MAX = 256, /* as LS_DATA_ID_MAX has it */
    LS_PROMPT_MAX = 1024,
    LS_ANSWER_MAX = 256,
    LS_TURN_TEXT_MAX = 64,
    LS_PROBLEM_VALUES_MAX = 8
};

typedef struct ls_problem {
    char id[LS_PROBLEM_ID_MAX]; /* "TASK/SPLIT/I" */
    char prompt[LS_PROMPT_MAX];
    char answer[LS_ANSWER_MAX];                      /* one that earns the reward 1 (guess-number: the secret) */
    char key[LS_ANSWER_MAX];                         /* equal for problems that are the same */
    int64_t values[LS_PROBLEM_VALUES_MAX], n_values; /* what the reward goes by, for those that need numbers */
} ls_problem;

/* A text that need not end in NUL and may hold any bytes. */
typedef struct ls_reply {
    const char *text;
    int64_t bytes;
} ls_reply;

/* What the environment says to a completion. Prompt, completions and these texts are simply written one behind the
 * other. */
typedef struct ls_turn {
    bool end;
    char text[LS_TURN_TEXT_MAX];
} ls_turn;

typedef struct ls_task ls_task;

/* The tasks there are, for lists and help. */
int64_t ls_tasks_count(void);
const char *ls_tasks_name(int64_t task_i);
const char *ls_tasks_text(int64_t task_i);
int64_t ls_tasks_options_count(int64_t task_i);
/* Writes "NAME=A..B (DEFAULT): TEXT" or "NAME=WORD|WORD (DEFAULT): TEXT". */
void ls_tasks_option_text(char *out, size_t size, int64_t task_i, int64_t option_i);

/* options: "NAME=VALUE,NAME=VALUE", NULL or "" for the defaults. */
ls_status ls_task_open(ls_task **out, const char *name, const char *options, uint64_t seed, ls_error *err);
void ls_task_free(ls_task *task); /* NULL is accepted */

/* Problem i >= 0 of a split. LS_ERR_CAPACITY when the options leave a split without problems. */
ls_status ls_task_make(ls_problem *out, const ls_task *task, ls_task_split split, int64_t i, ls_error *err);

/* The reward of a conversation, given all its completions in order, n >= 1. Tasks of one turn look at the last. */
double ls_task_reward(const ls_task *task, const ls_problem *problem, const ls_reply *replies, int64_t n);

/* What follows the last of n >= 1 completions. Tasks of one turn end. */
void ls_task_turn(ls_turn *out, const ls_task *task, const ls_problem *problem, const ls_reply *replies, int64_t n);

/* The reference solver: the next completion after n >= 0 others. */
void ls_task_solve(char out[LS_ANSWER_MAX], const ls_task *task, const ls_problem *problem, const ls_reply *replies,
                   int64_t n);

#endif
