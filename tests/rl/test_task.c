/* Tasks: golden problems, splits that never meet, draws that reach everything, rewards against definitions that share
 * no code with them. */
#define _POSIX_C_SOURCE 200809L
#include <stdlib.h>

#include "harness.h"
#include "rl/task.h"

static ls_task *open_task(const char *name, const char *options, uint64_t seed) {
    ls_task *task = NULL;
    ls_error err;
    assert_ok(ls_task_open(&task, name, options, seed, &err), err);
    return task;
}

static ls_problem make(const ls_task *task, ls_task_split split, int64_t i) {
    ls_problem problem;
    ls_error err;
    assert_ok(ls_task_make(&problem, task, split, i, &err), err);
    return problem;
}

static double reward_bytes(const ls_task *task, const ls_problem *problem, const char *text, int64_t bytes) {
    /* An exact copy, so that a sanitizer sees a read behind the end. */
    char *copy = malloc(bytes > 0 ? (size_t)bytes : 1);
    ls_reply reply = {copy, bytes};
    double reward;
    assert_non_null(copy);
    memcpy(copy, text, (size_t)bytes);
    reward = ls_task_reward(task, problem, &reply, 1);
    free(copy);
    return reward;
}

static double reward(const ls_task *task, const ls_problem *problem, const char *text) {
    return reward_bytes(task, problem, text, (int64_t)strlen(text));
}

#define assert_reward(task, problem, text, expected)                                                     \
    do {                                                                                                 \
        const double reward_ = reward((task), (problem), (text));                                        \
        if (reward_ != (expected)) fail_msg("'%s': %.17g, not %g", (text), reward_, (double)(expected)); \
    } while (0)

/* A problem is part of the interface: data made by one version must be what another one judges. */
static void first_problems_are_golden(void **state) {
    static const struct {
        const char *task, *options;
        ls_task_split split;
        int64_t i;
        const char *id, *prompt, *answer;
    } golden[] = {
        {"arithmetic", NULL, LS_TASK_SPLIT_TRAIN, 0, "arithmetic/train/0", "51+2=", "53"},
        {"arithmetic", "", LS_TASK_SPLIT_HELD_OUT, 1, "arithmetic/held-out/1", "26+40=", "66"},
        {"arithmetic", NULL, LS_TASK_SPLIT_TRAIN, INT64_MAX, "arithmetic/train/9223372036854775807", "58+15=", "73"},
        {"arithmetic", "digits=9,ops=mul", LS_TASK_SPLIT_TRAIN, 0, "arithmetic/train/0",
         "181045251*777846702=", "140825451403112202"},
        {"arithmetic", "style=words,ops=sub,negative=yes", LS_TASK_SPLIT_TRAIN, 3, "arithmetic/train/3",
         "What is 84 - 7? Write only the number on the last line.", "77"},
        {"reverse-text", NULL, LS_TASK_SPLIT_TRAIN, 0, "reverse-text/train/0", "reverse adiwi fql k:", "k lqf iwida"},
        {"sort-digits", NULL, LS_TASK_SPLIT_TRAIN, 0, "sort-digits/train/0", "sort 5 9 2 7 0 2:", "0 2 2 5 7 9"},
        {"countdown", NULL, LS_TASK_SPLIT_TRAIN, 1, "countdown/train/1", "make 80 from 8 4 10 16:", "4*(16*10)/8"},
        {"countdown", "style=words,numbers=6", LS_TASK_SPLIT_TRAIN, 0, "countdown/train/0",
         "Make 91 from the numbers 7 10 9 15 2 4, each at most once, with + - * / and parentheses. Write only the "
         "expression on the last line.",
         "15+10*9-7*4/2"},
        {"guess-number", NULL, LS_TASK_SPLIT_HELD_OUT, 0, "guess-number/held-out/0", "guess 1..100, turns 7:\n", "42"},
    };
    (void)state;
    for (size_t k = 0; k < sizeof golden / sizeof golden[0]; k++) {
        ls_task *task = open_task(golden[k].task, golden[k].options, 0);
        const ls_problem problem = make(task, golden[k].split, golden[k].i);
        assert_string_equal(problem.id, golden[k].id);
        if (strcmp(problem.prompt, golden[k].prompt) != 0 || strcmp(problem.answer, golden[k].answer) != 0)
            fail_msg("%s: \"%s\", \"%s\"", problem.id, problem.prompt, problem.answer);
        ls_task_free(task);
    }
}

static const char *const all_tasks[] = {"arithmetic", "reverse-text", "sort-digits", "countdown", "guess-number"};
enum { N_TASKS = sizeof all_tasks / sizeof all_tasks[0] };

static void a_problem_depends_on_seed_split_and_number_alone(void **state) {
    (void)state;
    for (int t = 0; t < N_TASKS; t++) {
        ls_task *task = open_task(all_tasks[t], NULL, 7), *again = open_task(all_tasks[t], NULL, 7),
                *other = open_task(all_tasks[t], NULL, (uint64_t)7 << 32);
        int64_t differ = 0;
        for (int64_t i = 40; i-- > 0;) {
            const ls_problem a = make(task, LS_TASK_SPLIT_TRAIN, i), b = make(again, LS_TASK_SPLIT_TRAIN, i),
                             c = make(other, LS_TASK_SPLIT_TRAIN, i);
            assert_memory_equal(&a, &b, sizeof a);
            differ += strcmp(a.key, c.key) != 0;
        }
        assert_true(differ > 30);
        ls_task_free(task);
        ls_task_free(again);
        ls_task_free(other);
    }
}

static int by_text(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

/* Small problem spaces, where many contents come again and again, other seeds and overlapping options. */
static void splits_never_share_a_problem(void **state) {
    static const char *const options[N_TASKS] = {"digits=1,ops=all", "words=1,letters=2", "count=3",
                                                 "numbers=3,largest=9,target=20", "high=50"};
    enum { N = 1500 };
    static char *keys[2][N];
    (void)state;
    for (int t = 0; t < N_TASKS; t++) {
        ls_task *task[2] = {open_task(all_tasks[t], options[t], 1), open_task(all_tasks[t], options[t], 2)};
        int64_t distinct[2] = {0, 0};
        for (int split = 0; split < 2; split++) {
            for (int64_t i = 0; i < N; i++) {
                const ls_problem problem = make(task[split], (ls_task_split)split, i);
                keys[split][i] = strdup(problem.key);
            }
            qsort(keys[split], N, sizeof keys[split][0], by_text);
            for (int64_t i = 0; i < N; i++)
                distinct[split] += i == 0 || strcmp(keys[split][i], keys[split][i - 1]) != 0;
        }
        for (int64_t i = 0; i < N; i++)
            if (bsearch(&keys[1][i], keys[0], N, sizeof keys[0][0], by_text) != NULL)
                fail_msg("%s: '%s' is in both splits", all_tasks[t], keys[1][i]);
        assert_true(distinct[0] > distinct[1] && distinct[1] >= 3);
        for (int64_t i = 0; i < N; i++) {
            free(keys[0][i]);
            free(keys[1][i]);
        }
        ls_task_free(task[0]);
        ls_task_free(task[1]);
    }
}

/* The order of what may be in any order is no new problem. */
static void keys_do_not_tell_orders_apart(void **state) {
    ls_task *task = open_task("sort-digits", "count=2", 0);
    bool seen_plain = false, seen_swapped = false;
    (void)state;
    for (int64_t i = 0; i < 3000; i++) {
        const ls_problem problem = make(task, LS_TASK_SPLIT_TRAIN, i);
        seen_plain = seen_plain || strcmp(problem.prompt, "sort 3 7:") == 0;
        seen_swapped = seen_swapped || strcmp(problem.prompt, "sort 7 3:") == 0;
        if (strcmp(problem.answer, "3 7") == 0) assert_string_equal(problem.key, "3 7");
    }
    assert_true(seen_plain && seen_swapped);
    ls_task_free(task);
}

/* Every operand, letter, digit and secret comes, about as often as it should: 5 standard deviations. */
static void draws_reach_everything(void **state) {
    enum { N = 20000 };
    ls_task *task = open_task("arithmetic", "digits=1,ops=all", 3);
    int64_t first[10] = {0}, sign[3] = {0}, digit[10] = {0}, letter[26] = {0}, n_letters = 0, secret[100] = {0};
    (void)state;
    for (int64_t i = 0; i < N; i++) {
        const ls_problem problem = make(task, (ls_task_split)(i % 2), i);
        const char *at = strchr("+-*", problem.prompt[1]);
        first[problem.prompt[0] - '0']++;
        assert_true(at != NULL && at[0] != '\0');
        sign[strchr("+-*", problem.prompt[1]) - "+-*"]++;
        assert_true(problem.prompt[1] != '-' || problem.answer[0] != '-');
    }
    for (int i = 0; i < 3; i++) assert_in_range(sign[i], N / 5, N / 2);
    for (int i = 0; i < 10; i++) assert_true(first[i] > N / 40);
    ls_task_free(task);

    task = open_task("sort-digits", "count=10", 3);
    for (int64_t i = 0; i < N / 10; i++) {
        const ls_problem problem = make(task, LS_TASK_SPLIT_TRAIN, i);
        for (int k = 0; k < 10; k++) digit[problem.prompt[5 + 2 * k] - '0']++;
    }
    for (int i = 0; i < 10; i++) assert_in_range(digit[i], N / 10 - 212, N / 10 + 212);
    ls_task_free(task);

    task = open_task("reverse-text", NULL, 3);
    for (int64_t i = 0; i < N / 10; i++) {
        const ls_problem problem = make(task, LS_TASK_SPLIT_TRAIN, i);
        for (const char *c = problem.answer; *c != '\0'; c++)
            if (*c != ' ') letter[*c - 'a']++, n_letters++;
    }
    for (int i = 0; i < 26; i++) assert_in_range(letter[i], n_letters / 26 - 130, n_letters / 26 + 130);
    ls_task_free(task);

    task = open_task("guess-number", NULL, 3);
    for (int64_t i = 0; i < N; i++)
        secret[make(task, i % 8 == 0 ? LS_TASK_SPLIT_HELD_OUT : LS_TASK_SPLIT_TRAIN, i).values[0] - 1]++;
    for (int i = 0; i < 100; i++) assert_true(secret[i] > 100);
    ls_task_free(task);
}

/* Under all kinds of options the reference answer earns 1 and texts stay inside their arrays. */
static void reference_answers_earn_everything(void **state) {
    static const char *const cases[][2] = {
        {"arithmetic", "digits=9,ops=all,negative=yes"},
        {"arithmetic", "digits=9,ops=mul,style=words"},
        {"reverse-text", "words=16,letters=12"},
        {"reverse-text", "style=words,reward=exact"},
        {"sort-digits", "count=32"},
        {"sort-digits", "count=32,reward=ratio,style=words"},
        {"countdown", "numbers=2"},
        {"countdown", "numbers=6,largest=1000,target=100000"},
        {"countdown", "numbers=6,largest=2,target=100"},
        {"countdown", "numbers=5,style=words,reward=graded"},
    };
    (void)state;
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        ls_task *task = open_task(cases[k][0], cases[k][1], 11);
        for (int64_t i = 0; i < 300; i++) {
            const ls_problem problem = make(task, (ls_task_split)(i % 2), i);
            char solved[LS_ANSWER_MAX];
            ls_reply reply;
            ls_turn turn;
            ls_task_solve(solved, task, &problem, NULL, 0);
            assert_reward(task, &problem, solved, 1);
            reply = (ls_reply){solved, (int64_t)strlen(solved)};
            ls_task_turn(&turn, task, &problem, &reply, 1);
            assert_true(turn.end);
            assert_string_equal(turn.text, "");
        }
        ls_task_free(task);
    }
}

static void the_answer_is_one_line(void **state) {
    ls_task *bare = open_task("arithmetic", NULL, 0), *words = open_task("arithmetic", "style=words", 0);
    const ls_problem problem = make(bare, LS_TASK_SPLIT_TRAIN, 0); /* 51+2= */
    (void)state;
    assert_string_equal(problem.answer, "53");
    assert_reward(bare, &problem, "53", 1);
    assert_reward(bare, &problem, " \t53 \r\n99", 1);
    assert_reward(bare, &problem, "53\n", 1);
    assert_reward(bare, &problem, "\n53", 0);
    assert_reward(bare, &problem, "", 0);
    assert_reward(bare, &problem, "5 3", 0);
    assert_reward(bare, &problem, "+53", 0);
    assert_reward(bare, &problem, "053", 0);
    assert_reward(bare, &problem, "53.", 0);
    assert_reward(bare, &problem, "530", 0);
    assert_reward(bare, &problem, "5", 0);
    assert_true(reward_bytes(bare, &problem, "53\0", 3) == 0.0);
    assert_true(reward_bytes(bare, &problem, "\xFF\xFE", 2) == 0.0);
    assert_reward(words, &problem, "Let me see.\n51 + 2 makes\n 53 \n\r\n \n", 1);
    assert_reward(words, &problem, "53", 1);
    assert_reward(words, &problem, "53\nI am sure.", 0);
    assert_reward(words, &problem, "\n \n", 0);
    ls_task_free(bare);
    ls_task_free(words);
}

static int64_t common(const char *a, const char *b) {
    if (*a == '\0' || *b == '\0') return 0;
    if (*a == *b) return 1 + common(a + 1, b + 1);
    const int64_t x = common(a + 1, b), y = common(a, b + 1);
    return x > y ? x : y;
}

static void ratios_follow_the_longest_common_subsequence(void **state) {
    ls_task *task = open_task("reverse-text", NULL, 0), *exact = open_task("reverse-text", "reward=exact", 0);
    uint64_t random = 5;
    char *flood = malloc(5000);
    (void)state;
    for (int64_t i = 0; i < 400; i++) {
        ls_problem problem = make(task, LS_TASK_SPLIT_TRAIN, i);
        char text[10];
        int64_t n, a;
        for (n = 0; n < i % 10; n++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            text[n] = (char)('a' + (random >> 60) % 3);
        }
        text[n] = '\0';
        for (char *c = problem.answer; *c != '\0'; c++) *c = (char)('a' + *c % 3);
        problem.answer[9] = '\0';
        a = (int64_t)strlen(problem.answer);
        assert_reward(task, &problem, text, 2.0 * (double)common(text, problem.answer) / (double)(a + n));
        assert_reward(exact, &problem, text, strcmp(text, problem.answer) == 0 ? 1.0 : 0.0);
    }
    assert_non_null(flood);
    memset(flood, 'a', 5000);
    {
        ls_problem problem = make(task, LS_TASK_SPLIT_TRAIN, 0);
        strcpy(problem.answer, "aaaa");
        assert_true(reward_bytes(task, &problem, flood, 4096) == 8.0 / 4100.0);
        assert_true(reward_bytes(task, &problem, flood, 4097) == 0.0);
    }
    free(flood);
    ls_task_free(task);
    ls_task_free(exact);
}

/* Another way to a value, for texts of a few characters: the last operator of the weakest kind outside parentheses
 * divides the text in two. NO_VALUE where there is none. */
enum { NO_VALUE = INT32_MIN };

static int64_t value_of(const char *text, int64_t n) {
    static const char *const kinds[] = {"+-", "*/"};
    while (n > 0 && text[0] == ' ') text++, n--;
    while (n > 0 && text[n - 1] == ' ') n--;
    if (n == 0) return NO_VALUE;
    for (int kind = 0; kind < 2; kind++) {
        int depth = 0;
        for (int64_t i = n; i-- > 0;) {
            int64_t a, b;
            if (text[i] == ')') depth++;
            if (text[i] == '(') depth--;
            if (depth != 0 || strchr(kinds[kind], text[i]) == NULL) continue;
            a = value_of(text, i);
            b = value_of(text + i + 1, n - i - 1);
            if (a == NO_VALUE || b == NO_VALUE) return NO_VALUE;
            if (text[i] == '+') return a + b;
            if (text[i] == '-') return a - b;
            if (text[i] == '*') return a * b;
            return b == 0 || a % b != 0 ? NO_VALUE : a / b;
        }
    }
    if (text[0] == '(') return n < 2 || text[n - 1] != ')' ? NO_VALUE : value_of(text + 1, n - 2);
    int64_t value = 0;
    for (int64_t i = 0; i < n; i++) {
        if (text[i] < '0' || text[i] > '9') return NO_VALUE;
        value = 10 * value + (text[i] - '0');
    }
    return value;
}

static bool parentheses_match(const char *text) {
    int depth = 0;
    for (; *text != '\0'; text++) {
        depth += *text == '(' ? 1 : *text == ')' ? -1 : 0;
        if (depth < 0) return false;
    }
    return depth == 0;
}

/* Whether the runs of digits are numbers that are there, each as often as it is there. */
static bool numbers_allowed(const char *text, const int64_t *numbers, int64_t n) {
    bool used[LS_PROBLEM_VALUES_MAX] = {false};
    while (*text != '\0') {
        int64_t value = 0, i = 0;
        if (*text < '0' || *text > '9') {
            text++;
            continue;
        }
        for (; *text >= '0' && *text <= '9'; text++) value = 10 * value + (*text - '0');
        while (i < n && (used[i] || numbers[i] != value)) i++;
        if (i == n) return false;
        used[i] = true;
    }
    return true;
}

/* Every text of up to seven characters over these nine. */
static void expressions_agree_with_another_evaluator(void **state) {
    static const char alphabet[] = "123+-*/()";
    ls_task *task = open_task("countdown", "reward=graded", 0);
    ls_problem problem = {.values = {1, 2, 2, 3, 12, 4}, .n_values = 6};
    int64_t n_right = 0, n_valid = 0;
    (void)state;
    for (int64_t length = 1; length <= 7; length++) {
        int64_t n = 1;
        for (int64_t i = 0; i < length; i++) n *= 9;
        for (int64_t k = 0; k < n; k++) {
            char text[8] = "";
            int64_t rest = k, value;
            double expected;
            ls_reply reply = {text, length};
            for (int64_t i = 0; i < length; i++, rest /= 9) text[i] = alphabet[rest % 9];
            value =
                parentheses_match(text) && numbers_allowed(text, problem.values, 5) ? value_of(text, length) : NO_VALUE;
            expected = value == NO_VALUE ? 0.0 : value == 4 ? 1.0 : 0.1;
            if (ls_task_reward(task, &problem, &reply, 1) != expected)
                fail_msg("'%s' is %lld, expected %g", text, (long long)value, expected);
            n_right += value == 4;
            n_valid += value != NO_VALUE;
        }
    }
    if (n_right < 200 || n_valid < 2000) fail_msg("%lld right, %lld valid", (long long)n_right, (long long)n_valid);
    ls_task_free(task);
}

static void odd_expressions(void **state) {
    ls_task *task = open_task("countdown", NULL, 0), *graded = open_task("countdown", "reward=graded", 0);
    ls_problem problem = {.values = {3, 7, 8, 2, 24}, .n_values = 5};
    const ls_problem ones = {.values = {1, 1, 2, 8, 24}, .n_values = 5};
    ls_problem large = {.values = {3037000500, 3037000500, 2, 4611686018427387904, 9, 9}, .n_values = 6};
    char deep[512];
    (void)state;
    assert_reward(task, &problem, "(8-2)*(7-3)", 1);
    assert_reward(task, &problem, " ( 8 -\t2 ) * ( 7-3 ) \r\nand so on", 1);
    assert_reward(task, &problem, "8*3", 1);
    assert_reward(task, &problem, "8*3=24", 0);
    assert_reward(task, &problem, "24", 0);
    assert_reward(task, &problem, "8*3*2/2", 0);
    assert_reward(task, &problem, "-2+8*3+2", 0);
    assert_reward(task, &problem, "7/2*8-4", 0);
    assert_reward(task, &problem, "8*3+7*0", 0);
    assert_reward(task, &problem, "08*3", 1);
    assert_reward(task, &problem, "8 3", 0);
    assert_reward(task, &problem, "8**3", 0);
    assert_reward(task, &problem, "8*3)", 0);
    assert_reward(task, &problem, "(8*3", 0);
    assert_reward(task, &problem, "8*3+(", 0);
    assert_reward(task, &problem, "8*x", 0);
    assert_true(reward_bytes(task, &problem, "8*3\0", 4) == 0.0);
    assert_reward(graded, &problem, "8-7", 0.1);
    assert_reward(graded, &problem, "2-7", 0.1);
    assert_reward(graded, &problem, "8/(7-3-2)", 0.1);
    assert_reward(graded, &problem, "8/(7-7)", 0);
    assert_reward(graded, &ones, "8/(2-1)", 0.1);
    assert_reward(graded, &ones, "8/(2-1-1)", 0);
    assert_reward(graded, &ones, "(2-1-1)/8", 0.1);
    assert_reward(graded, &problem, "8/3", 0);

    /* What does not fit 64 bits is no value: as a number, a product, a sum, a difference. */
    assert_reward(graded, &large, "3037000500*2", 0.1);
    assert_reward(graded, &large, "3037000500*3037000500", 0);
    assert_reward(graded, &large, "4611686018427387904*2", 0);
    assert_reward(graded, &large, "99999999999999999999999999999999", 0);
    assert_reward(graded, &large, "18446744073709551618", 0);
    large.values[0] = large.values[1] = 4611686018427387904;
    assert_reward(graded, &large, "4611686018427387904+4611686018427387904", 0);
    assert_reward(graded, &large, "2-4611686018427387904-4611686018427387904-9", 0);
    /* INT64_MIN, which has no quotient by -1: 0 - 2^62 - 2^62, over 2 - 3. */
    large = (ls_problem){.values = {4611686018427387904, 4611686018427387904, 3, 2, 0, 1}, .n_values = 6};
    assert_reward(graded, &large, "(0-4611686018427387904-4611686018427387904)", 0.1);
    assert_reward(graded, &large, "(0-4611686018427387904-4611686018427387904)/(2-3)", 0);

    memset(deep, '(', 64);
    memset(deep + 67, ')', 64);
    memcpy(deep + 64, "8*3", 3);
    deep[131] = '\0';
    assert_reward(task, &problem, deep, 1);
    memset(deep, '(', 65);
    memset(deep + 68, ')', 65);
    memcpy(deep + 65, "8*3", 3);
    deep[133] = '\0';
    assert_reward(task, &problem, deep, 0);
    memset(deep, '(', 511);
    deep[511] = '\0';
    assert_reward(task, &problem, deep, 0);
    ls_task_free(task);
    ls_task_free(graded);
}

/* The solver and the environment until the end. Returns the number of completions. */
static int64_t play(const ls_task *task, const ls_problem *problem, double *reward_out) {
    char texts[64][LS_ANSWER_MAX];
    ls_reply replies[64];
    ls_turn turn = {0};
    int64_t n = 0;
    while (!turn.end) {
        assert_true(n < 64);
        ls_task_solve(texts[n], task, problem, replies, n);
        replies[n] = (ls_reply){texts[n], (int64_t)strlen(texts[n])};
        n++;
        ls_task_turn(&turn, task, problem, replies, n);
    }
    *reward_out = ls_task_reward(task, problem, replies, n);
    return n;
}

static void guessing_plays(void **state) {
    ls_task *win = open_task("guess-number", "high=1000,turns=10", 0),
            *speed = open_task("guess-number", "high=1000,turns=10,reward=speed", 0),
            *few = open_task("guess-number", "high=1000,turns=2", 0);
    int64_t lost = 0;
    (void)state;
    for (int64_t i = 0; i < 500; i++) {
        const ls_problem problem = make(win, (ls_task_split)(i % 2), i);
        double earned;
        const int64_t n = play(win, &problem, &earned);
        assert_true(earned == 1.0 && n <= 10);
        assert_int_equal(play(speed, &problem, &earned), n);
        assert_true(earned == (double)(11 - n) / 10.0);
        assert_true(play(few, &problem, &earned) <= 2);
        lost += earned == 0.0;
    }
    assert_true(lost > 450);
    ls_task_free(win);
    ls_task_free(speed);
    ls_task_free(few);
}

static void guessing_answers(void **state) {
    ls_task *task = open_task("guess-number", "turns=4", 0);
    ls_problem problem = make(task, LS_TASK_SPLIT_TRAIN, 0);
    ls_reply replies[5] = {{"50", 2}, {" 40 \n60", 7}, {"forty", 5}, {"42", 2}, {"42", 2}};
    static const char *const says[] = {"\nlower\n", "\nhigher\n", "\na number from 1 to 100\n", "\nright\n"};
    ls_turn turn;
    (void)state;
    problem.values[0] = 42;
    for (int64_t n = 1; n <= 4; n++) {
        ls_task_turn(&turn, task, &problem, replies, n);
        assert_string_equal(turn.text, says[n - 1]);
        assert_int_equal(turn.end, n == 4);
        assert_true(ls_task_reward(task, &problem, replies, n) == (n == 4 ? 1.0 : 0.0));
    }
    replies[3] = (ls_reply){"43", 2}; /* the turns are out; a fifth completion comes too late */
    ls_task_turn(&turn, task, &problem, replies, 4);
    assert_string_equal(turn.text, "\nlower\n");
    assert_true(turn.end);
    assert_true(ls_task_reward(task, &problem, replies, 5) == 0.0);
    replies[0] = (ls_reply){"0000000042", 10};
    assert_true(ls_task_reward(task, &problem, replies, 1) == 0.0);
    replies[0] = (ls_reply){"000000042", 9};
    assert_true(ls_task_reward(task, &problem, replies, 1) == 1.0);
    replies[0] = (ls_reply){NULL, 0};
    assert_true(ls_task_reward(task, &problem, replies, 1) == 0.0);
    ls_task_turn(&turn, task, &problem, replies, 1);
    assert_string_equal(turn.text, says[2]);
    ls_task_free(task);
}

static void bad_options_are_named(void **state) {
    static const char *const cases[][3] = {
        {"nothing", NULL, "'nothing' is not a task; there are arithmetic, reverse-text"},
        {"arithmetic", "digits=10", "task arithmetic: option digits: '10' is not in 1..9"},
        {"arithmetic", "digits=0", "'0' is not in 1..9"},
        {"arithmetic", "digits=-1", "'-1' is not in 1..9"},
        {"arithmetic", "digits=", "'' is not in 1..9"},
        {"arithmetic", "digits=2x", "'2x'"},
        {"arithmetic", "digits=99999999999999999999", "is not in 1..9"},
        {"arithmetic", "digits", "expected NAME=VALUE"},
        {"arithmetic", "digits=2,", "expected NAME=VALUE"},
        {"arithmetic", "ops=div", "'div' is not in add|sub|mul|add-sub|all"},
        {"arithmetic", "ops=0", "'0' is not in add|"},
        {"countdown", "digits=2", "'digits' is not an option of this task"},
    };
    ls_task *task = NULL;
    ls_problem problem;
    ls_error err;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        check_failed(ls_task_open(&task, cases[i][0], cases[i][1], 0, &err), &err, cases[i][2]);
        assert_null(task);
    }
    /* Two secrets; the fixed hash puts both into held-out or one in each, or none: one split may be left empty. */
    for (int64_t high = 2; high <= 8; high++) {
        char options[16];
        int64_t made = 0;
        snprintf(options, sizeof options, "high=%d", (int)high);
        task = open_task("guess-number", options, 0);
        for (int split = 0; split < 2; split++) {
            const ls_status status = ls_task_make(&problem, task, (ls_task_split)split, 0, &err);
            if (status == LS_OK)
                made++;
            else
                check_failed(status, &err, "its options leave too few");
        }
        assert_true(made >= 1);
        ls_task_free(task);
    }
}

static void lists_tell_everything(void **state) {
    char text[256];
    (void)state;
    assert_int_equal(ls_tasks_count(), N_TASKS);
    for (int64_t i = 0; i < N_TASKS; i++) {
        assert_string_equal(ls_tasks_name(i), all_tasks[i]);
        assert_true(strlen(ls_tasks_text(i)) > 5);
        for (int64_t k = 0; k < ls_tasks_options_count(i); k++) {
            ls_tasks_option_text(text, sizeof text, i, k);
            assert_non_null(strchr(text, '='));
        }
    }
    ls_tasks_option_text(text, sizeof text, 0, 1);
    assert_string_equal(text, "digits=1..9 (2): decimal digits of an operand, at most");
    ls_tasks_option_text(text, sizeof text, 4, 3);
    assert_string_equal(text, "reward=win|speed (win): for what");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(first_problems_are_golden),
        cmocka_unit_test(a_problem_depends_on_seed_split_and_number_alone),
        cmocka_unit_test(splits_never_share_a_problem),
        cmocka_unit_test(keys_do_not_tell_orders_apart),
        cmocka_unit_test(draws_reach_everything),
        cmocka_unit_test(reference_answers_earn_everything),
        cmocka_unit_test(the_answer_is_one_line),
        cmocka_unit_test(ratios_follow_the_longest_common_subsequence),
        cmocka_unit_test(expressions_agree_with_another_evaluator),
        cmocka_unit_test(odd_expressions),
        cmocka_unit_test(guessing_plays),
        cmocka_unit_test(guessing_answers),
        cmocka_unit_test(bad_options_are_named),
        cmocka_unit_test(lists_tell_everything),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
