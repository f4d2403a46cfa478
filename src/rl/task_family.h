/* What a family of tasks is to the rest: a table of options and four functions. Inside src/rl only. */
#ifndef LS_RL_TASK_FAMILY_H
#define LS_RL_TASK_FAMILY_H

#include "rl/task.h"

enum { LS_TASK_OPTIONS_MAX = 6, LS_TASK_WORDS_MAX = 6 };

/* A number in low..high or, where there are words, one of them: the value is its index. */
typedef struct ls_task_option {
    const char *name, *text;
    int64_t low, high, start;
    const char *words[LS_TASK_WORDS_MAX];
} ls_task_option;

/* Option 0 of every family. */
enum { LS_OPTION_STYLE = 0, LS_STYLE_BARE = 0, LS_STYLE_WORDS = 1 };
#define LS_TASK_OPTION_STYLE                                                                                 \
    {                                                                                                        \
        "style", "prompts for a model that continues a text, or that follows orders", 0, 0, LS_STYLE_BARE, { \
            "bare", "words"                                                                                  \
        }                                                                                                    \
    }

/* Draws of one attempt at one problem. */
typedef struct ls_task_random {
    uint64_t key;
    uint32_t c0, c1, c2, c3;
} ls_task_random;

/* Uniform in low..high, both included. */
int64_t ls_task_uniform(ls_task_random *random, int64_t low, int64_t high);

typedef struct ls_task_family {
    const char *name, *text;
    uint32_t stream; /* keeps the draws of families apart; never changes */
    ls_task_option options[LS_TASK_OPTIONS_MAX];
    /* Fills prompt, answer, key and values; false when this draw makes no problem. */
    bool (*draw)(ls_problem *out, const ls_task *task, ls_task_random *random);
    double (*reward)(const ls_task *task, const ls_problem *problem, const ls_reply *replies, int64_t n);
    void (*turn)(ls_turn *out, const ls_task *task, const ls_problem *problem, const ls_reply *replies,
                 int64_t n); /* NULL: one turn */
    void (*solve)(char out[LS_ANSWER_MAX], const ls_task *task, const ls_problem *problem, const ls_reply *replies,
                  int64_t n); /* NULL: the answer */
} ls_task_family;

struct ls_task {
    const ls_task_family *family;
    int64_t option[LS_TASK_OPTIONS_MAX];
    uint64_t key;
};

extern const ls_task_family ls_task_arithmetic, ls_task_reverse, ls_task_sort, ls_task_countdown, ls_task_guess;

/* The line of a completion that counts, by the task's style. */
ls_reply ls_task_answer(const ls_task *task, const ls_reply *reply);
/* 1 if the answer is the problem's, else 0. */
double ls_task_exact(const ls_problem *problem, ls_reply answer);
/* 2 c / (a + b) against the problem's answer, as task.h has it. */
double ls_task_ratio(const ls_problem *problem, ls_reply answer);
/* Appends to a NUL-terminated text in an array of `size` bytes, which must be large enough. */
void ls_task_append(char *text, size_t size, const char *format, ...) __attribute__((format(printf, 3, 4)));

#endif
