/* What families of tasks are written with: draws, the answer in a reply, and how near it is. */
#include "rl/task_family.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/rng.h"

enum { RATIO_BYTES_MAX = 4096 };

int64_t ls_task_uniform(ls_task_random *random, int64_t low, int64_t high) {
    const uint64_t n = (uint64_t)high - (uint64_t)low + 1, surplus = (UINT64_MAX - n + 1) % n;
    uint64_t x;
    do {
        const ls_philox draw = ls_philox_draw(random->key, random->c0, random->c1, random->c2, random->c3++);
        x = (uint64_t)draw.word[1] << 32 | draw.word[0];
    } while (x > UINT64_MAX - surplus);
    return low + (int64_t)(x % n);
}

static bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }

static ls_reply trim_lines(const char *begin, const char *end) {
    while (begin < end && is_blank(*begin)) begin++;
    while (begin < end && is_blank(end[-1])) end--;
    return (ls_reply){begin, end - begin};
}

ls_reply ls_task_answer(const ls_task *task, const ls_reply *reply) {
    const char *begin = reply->text, *end;
    if (reply->bytes == 0) return (ls_reply){"", 0};
    end = begin + reply->bytes;
    if (task->option[LS_OPTION_STYLE] == LS_STYLE_BARE) {
        const char *newline = memchr(begin, '\n', (size_t)reply->bytes);
        return trim_lines(begin, newline != NULL ? newline : end);
    }
    while (end > begin && (is_blank(end[-1]) || end[-1] == '\n')) end--;
    for (const char *line = end; line > begin; line--)
        if (line[-1] == '\n') return trim_lines(line, end);
    return trim_lines(begin, end);
}

double ls_task_exact(const ls_problem *problem, ls_reply answer) {
    const size_t n = strlen(problem->answer);
    return answer.bytes == (int64_t)n && memcmp(answer.text, problem->answer, n) == 0 ? 1.0 : 0.0;
}

double ls_task_ratio(const ls_problem *problem, ls_reply answer) {
    int64_t row[LS_ANSWER_MAX] = {0}; /* row[j]: longest common subsequence with the first j characters */
    const int64_t n = (int64_t)strlen(problem->answer);
    if (answer.bytes > RATIO_BYTES_MAX) return 0.0;
    for (int64_t i = 0; i < answer.bytes; i++) {
        int64_t diagonal = 0;
        for (int64_t j = 0; j < n; j++) {
            const int64_t above = row[j + 1];
            if (answer.text[i] == problem->answer[j])
                row[j + 1] = diagonal + 1;
            else if (row[j] > above)
                row[j + 1] = row[j];
            diagonal = above;
        }
    }
    return 2.0 * (double)row[n] / (double)(n + answer.bytes);
}

void ls_task_append(char *text, size_t size, const char *format, ...) {
    const size_t used = strlen(text);
    va_list args;
    int n;
    va_start(args, format);
    n = vsnprintf(text + used, size - used, format, args);
    va_end(args);
    LS_ASSERT(n >= 0 && (size_t)n < size - used, "%d characters at %zu of %zu", n, used, size);
}
