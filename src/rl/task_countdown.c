/* Numbers that must be combined to a target. A problem grows from an expression, so that each can be solved: two of the
 * terms left are taken and joined until one is left. */
#include <stdio.h>
#include <string.h>

#include "rl/task_family.h"

enum { OPTION_NUMBERS = 1, OPTION_LARGEST, OPTION_TARGET, OPTION_REWARD };
enum { REWARD_EXACT, REWARD_GRADED };
enum { NUMBERS_MAX = 6, OPEN_MAX = 64, TERM_TEXT_MAX = 64, BETWEEN_MAX = 1000000 };

/* The weakest operator outside parentheses. */
typedef enum binding { BINDS_SUM, BINDS_PRODUCT, BINDS_ALL } binding;

typedef struct term {
    int64_t value;
    binding binds;
    char text[TERM_TEXT_MAX];
} term;

/* Appends x, in parentheses where it binds less than `least`. */
static void append_term(char *text, const term *x, binding least) {
    ls_task_append(text, TERM_TEXT_MAX, x->binds < least ? "(%s)" : "%s", x->text);
}

/* out = a sign b; false where that is no term: a value below 0 or too large, or a division with remainder. */
static bool join_terms(term *out, const term *a, char sign, const term *b) {
    const bool product = sign == '*' || sign == '/';
    memset(out, 0, sizeof *out);
    if (sign == '/' && (b->value == 0 || a->value % b->value != 0)) return false;
    out->value = sign == '+'   ? a->value + b->value
                 : sign == '-' ? a->value - b->value
                 : sign == '*' ? a->value * b->value
                               : a->value / b->value;
    out->binds = product ? BINDS_PRODUCT : BINDS_SUM;
    append_term(out->text, a, out->binds);
    ls_task_append(out->text, sizeof out->text, "%c", sign);
    append_term(out->text, b, product ? BINDS_ALL : sign == '-' ? BINDS_PRODUCT : BINDS_SUM);
    return out->value >= 0 && out->value <= BETWEEN_MAX;
}

/* An expression of all numbers, in *out. */
static bool grow(term *out, const int64_t *numbers, int64_t n, ls_task_random *random) {
    term terms[NUMBERS_MAX];
    memset(terms, 0, sizeof terms);
    for (int64_t i = 0; i < n; i++) {
        terms[i].value = numbers[i];
        terms[i].binds = BINDS_ALL;
        ls_task_append(terms[i].text, sizeof terms[i].text, "%lld", (long long)numbers[i]);
    }
    for (; n > 1; n--) {
        const int64_t i = ls_task_uniform(random, 0, n - 1), j = (i + ls_task_uniform(random, 1, n - 1)) % n;
        const char sign = "+-*/"[ls_task_uniform(random, 0, 3)];
        term joined;
        if (!join_terms(&joined, &terms[i], sign, &terms[j])) return false;
        terms[i] = joined;
        terms[j] = terms[n - 1]; /* i may be the last: then the joined term moves to j */
    }
    *out = terms[0];
    return true;
}

static bool draw_countdown(ls_problem *out, const ls_task *task, ls_task_random *random) {
    const bool bare = task->option[LS_OPTION_STYLE] == LS_STYLE_BARE;
    const int64_t n = task->option[OPTION_NUMBERS];
    int64_t sorted[NUMBERS_MAX];
    term whole;
    for (int64_t i = 0; i < n; i++) {
        int64_t at = i;
        out->values[i] = ls_task_uniform(random, 1, task->option[OPTION_LARGEST]);
        for (; at > 0 && sorted[at - 1] > out->values[i]; at--) sorted[at] = sorted[at - 1];
        sorted[at] = out->values[i];
    }
    if (!grow(&whole, out->values, n, random) || whole.value < 1 || whole.value > task->option[OPTION_TARGET])
        return false;
    for (int64_t i = 0; i < n; i++)
        if (out->values[i] == whole.value) return false; /* the number alone would do */
    out->values[n] = whole.value;
    out->n_values = n + 1;
    ls_task_append(out->prompt, sizeof out->prompt, bare ? "make %lld from" : "Make %lld from the numbers",
                   (long long)whole.value);
    for (int64_t i = 0; i < n; i++) {
        ls_task_append(out->prompt, sizeof out->prompt, " %lld", (long long)out->values[i]);
        ls_task_append(out->key, sizeof out->key, "%lld ", (long long)sorted[i]);
    }
    ls_task_append(out->prompt, sizeof out->prompt,
                   bare ? ":"
                        : ", each at most once, with + - * / and parentheses. Write only the expression on the last "
                          "line.");
    ls_task_append(out->key, sizeof out->key, "= %lld", (long long)whole.value);
    ls_task_append(out->answer, sizeof out->answer, "%s", whole.text);
    return true;
}

/* The evaluator: one function for each level of the grammar; each returns false at the first thing that breaks a rule.
 */
typedef struct reader {
    const char *at, *end;
    const int64_t *numbers;
    int64_t n;
    bool used[NUMBERS_MAX];
    int open;
} reader;

static char look_at_next(reader *r) {
    while (r->at < r->end && (*r->at == ' ' || *r->at == '\t')) r->at++;
    return r->at < r->end ? *r->at : '\0';
}

/* A run of digits that is one of the numbers not used yet. */
static bool read_number(reader *r, int64_t *value) {
    *value = 0;
    for (; r->at < r->end && *r->at >= '0' && *r->at <= '9'; r->at++)
        if (__builtin_mul_overflow(*value, (int64_t)10, value) ||
            __builtin_add_overflow(*value, (int64_t)(*r->at - '0'), value))
            return false;
    for (int64_t i = 0; i < r->n; i++) {
        if (r->used[i] || r->numbers[i] != *value) continue;
        r->used[i] = true;
        return true;
    }
    return false;
}

static bool read_sum(reader *r, int64_t *value);

static bool read_atom(reader *r, int64_t *value) {
    const char c = look_at_next(r);
    if (c >= '0' && c <= '9') return read_number(r, value);
    if (c != '(' || r->open == OPEN_MAX) return false;
    r->at++;
    r->open++;
    if (!read_sum(r, value) || look_at_next(r) != ')') return false;
    r->at++;
    r->open--;
    return true;
}

static bool read_product(reader *r, int64_t *value) {
    int64_t right;
    if (!read_atom(r, value)) return false;
    for (char c = look_at_next(r); c == '*' || c == '/'; c = look_at_next(r)) {
        r->at++;
        if (!read_atom(r, &right)) return false;
        if (c == '*') {
            if (__builtin_mul_overflow(*value, right, value)) return false;
        } else {
            /* The smallest value divided by -1 does not fit. */
            if (right == 0 || (right == -1 && *value == INT64_MIN) || *value % right != 0) return false;
            *value /= right;
        }
    }
    return true;
}

static bool read_sum(reader *r, int64_t *value) {
    int64_t right;
    if (!read_product(r, value)) return false;
    for (char c = look_at_next(r); c == '+' || c == '-'; c = look_at_next(r)) {
        r->at++;
        if (!read_product(r, &right)) return false;
        if (c == '+' ? __builtin_add_overflow(*value, right, value) : __builtin_sub_overflow(*value, right, value))
            return false;
    }
    return true;
}

static double reward_countdown(const ls_task *task, const ls_problem *problem, const ls_reply *replies, int64_t n) {
    const ls_reply answer = ls_task_answer(task, &replies[n - 1]);
    reader r = {.at = answer.text, .end = answer.text + answer.bytes, .numbers = problem->values};
    int64_t value;
    r.n = problem->n_values - 1;
    if (!read_sum(&r, &value) || look_at_next(&r) != '\0' || r.at != r.end) return 0.0;
    if (value == problem->values[r.n]) return 1.0;
    return task->option[OPTION_REWARD] == REWARD_GRADED ? 0.1 : 0.0;
}

const ls_task_family ls_task_countdown = {
    .name = "countdown",
    .text = "make 24 from 3 7 8 2: is (8-2)*(7-3)",
    .stream = 4,
    .options =
        {LS_TASK_OPTION_STYLE,
         {"numbers", "numbers to combine", 2, NUMBERS_MAX, 4, {NULL}},
         {"largest", "the largest number", 2, 1000, 20, {NULL}},
         {"target", "the largest target", 2, 100000, 100, {NULL}},
         {"reward", "graded gives a valid expression of another value 0.1", 0, 0, REWARD_EXACT, {"exact", "graded"}}},
    .draw = draw_countdown,
    .reward = reward_countdown,
};
