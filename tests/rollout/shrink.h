/* From a failing schedule to a small one that fails too, as text that tells it. Candidates run in processes of their
 * own, so that a broken invariant, a crash or an endless loop is a failure like any other. */
#ifndef LS_TESTS_SHRINK_H
#define LS_TESTS_SHRINK_H

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "schedules.h"

#define SECONDS_MAX 60 /* for one candidate */

/* What a process says to the one that waits for it: shared memory. */
typedef struct report {
    uint64_t seed; /* being run */
    bool failed;
    char text[400];
    counts total;
} report;

static inline report *reports_map(int64_t n) {
    void *p = mmap(NULL, (size_t)n * sizeof(report), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(p != MAP_FAILED);
    return p;
}

static inline void reports_unmap(report *reports, int64_t n) { munmap(reports, (size_t)n * sizeof *reports); }

/* The child's side of a fork: cmocka's handlers would take its signals for the parent's test. */
static inline void default_signals(void) {
    static const int signals[] = {SIGFPE, SIGILL, SIGSEGV, SIGBUS, SIGSYS, SIGABRT};
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++) signal(signals[i], SIG_DFL);
}

/* Whether the schedule fails, and how. */
static inline bool fails_apart(laboratory *lab, const schedule *s, report *r) {
    int how = 0;
    pid_t child;
    memset(r, 0, sizeof *r);
    fflush(NULL);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        default_signals();
        if (freopen("/dev/null", "w", stderr) == NULL) _exit(2);
        alarm(SECONDS_MAX);
        r->failed = !run_schedule(lab, s, &r->total, r->text, sizeof r->text);
        _exit(0);
    }
    while (waitpid(child, &how, 0) < 0) continue;
    if (WIFEXITED(how) && WEXITSTATUS(how) == 0) return r->failed;
    if (WIFSIGNALED(how))
        snprintf(r->text, sizeof r->text, "ended by signal %d%s", WTERMSIG(how),
                 WTERMSIG(how) == SIGALRM ? ", after too long" : "");
    else
        snprintf(r->text, sizeof r->text, "exited with %d", WEXITSTATUS(how));
    return r->failed = true;
}

/* Whether it fails as the one did that is being shrunk: levers that no engine can have are a failure of their own. */
static inline bool still_fails(laboratory *lab, const schedule *s, report *r) {
    return fails_apart(lab, s, r) && (strncmp(r->text, "engine: ", 8) == 0) == s->unmakable;
}

/* ddmin (Zeller and Hildebrandt 2002) by complements: ever smaller parts of the operations are left out while what is
 * left still fails. */
static inline void shrink_operations(laboratory *lab, schedule *s, report *r) {
    operation *kept = malloc((size_t)s->n_ops * sizeof *kept);
    for (int64_t part = (s->n_ops + 1) / 2; part >= 1 && s->n_ops > 0;) {
        bool shrunk = false;
        for (int64_t from = 0; from < s->n_ops; from += part) {
            const int64_t n = s->n_ops - from < part ? s->n_ops - from : part, all = s->n_ops;
            memcpy(kept, s->ops, (size_t)all * sizeof *kept);
            memmove(s->ops + from, s->ops + from + n, (size_t)(all - from - n) * sizeof *kept);
            s->n_ops = all - n;
            if (still_fails(lab, s, r)) {
                shrunk = true;
                break;
            }
            memcpy(s->ops, kept, (size_t)all * sizeof *kept);
            s->n_ops = all;
        }
        if (!shrunk && part == 1) break;
        if (!shrunk || part > (s->n_ops + 1) / 2) part = part > 1 ? (part + 1) / 2 : 1;
    }
    free(kept);
}

/* Every field of every operation, and every lever, goes to its plainest value if the failure stays. */
static inline void shrink_values(laboratory *lab, schedule *s, report *r) {
    for (int64_t i = 0; i < s->n_ops; i++) {
        operation *op = &s->ops[i];
        int32_t *const fields[] = {&op->sample, &op->max_tokens, &op->stop_at, &op->priority, &op->n};
        for (size_t f = 0; f < sizeof fields / sizeof fields[0]; f++) {
            const int32_t value = *fields[f];
            for (int32_t plain = 0; plain < value || (plain == 0 && value < 0); plain++) {
                *fields[f] = plain;
                if (still_fails(lab, s, r)) break;
                *fields[f] = value;
            }
        }
    }
    for (int64_t i = 0; i < ls_levers_count(); i++) {
        const ls_levers before = s->levers;
        ls_levers plain;
        char text[64];
        ls_levers_init(&plain);
        plain.threads = 1;
        plain.batch = 1;
        plain.chunk = 0;
        plain.prefix = LS_PREFIX_OFF;
        plain.fork = false;
        ls_lever_format(text, sizeof text, &plain, i);
        if (ls_lever_parse(&s->levers, i, text, NULL) != LS_OK || memcmp(&before, &s->levers, sizeof before) == 0 ||
            !still_fails(lab, s, r))
            s->levers = before;
    }
}

/* s fails; afterwards it is small and r says how it still does. */
static inline void shrink(laboratory *lab, schedule *s, report *r) {
    assert_true(fails_apart(lab, s, r));
    s->unmakable = strncmp(r->text, "engine: ", 8) == 0;
    shrink_operations(lab, s, r);
    shrink_values(lab, s, r);
    shrink_operations(lab, s, r);
    assert_true(still_fails(lab, s, r));
}

static inline void print_operation(FILE *out, const operation *op) {
    switch (op->kind) {
        case OP_SUBMIT:
            fprintf(out, "submit(.prompt = %d, .sample = %d, .max_tokens = %d, .stop_at = %d, .priority = %d);\n",
                    op->prompt, op->sample, op->max_tokens, op->stop_at, op->priority);
            return;
        case OP_TICK: fprintf(out, "tick(%d);\n", op->n); return;
        case OP_CANCEL: fprintf(out, "cancel(.prompt = %d, .sample = %d);\n", op->prompt, op->sample); return;
        case OP_PREEMPT: fprintf(out, "preempt(%d);\n", op->n); return;
        case OP_WEIGHTS: fprintf(out, "weights(%d);\n", op->n); return;
        case OP_SLEEP: fprintf(out, "sleep();\n"); return;
    }
}

static inline void print_schedule(FILE *out, const laboratory *lab, const schedule *s) {
    bool shown[PROMPTS] = {false};
    fprintf(out, "/* seed %llu */\n", (unsigned long long)s->seed);
    fprintf(out, "fixture = \"%s\"; dtype = \"%s\"; distribution = %d; isa = \"%s\";\n", fixture_names[s->fixture],
            ls_dtype_name(s->dtype), s->distribution, s->generic ? "generic" : "best");
    if (s->foretold) fprintf(out, "drafts = foretold;\n");
    fprintf(out, "length_max = %lld; stop = [%d, %d);\n", (long long)s->length_max, s->stop_first,
            s->stop_first + s->n_stop);
    for (int64_t i = 0; i < ls_levers_count(); i++) {
        ls_levers plain;
        char text[64], usual[64];
        ls_levers_init(&plain);
        ls_lever_format(text, sizeof text, &s->levers, i);
        ls_lever_format(usual, sizeof usual, &plain, i);
        if (strcmp(text, usual) != 0) fprintf(out, "lever(\"%s\", \"%s\");\n", ls_lever_name(i), text);
    }
    for (int64_t i = 0; i < s->n_ops; i++) {
        const prompt *p = &lab->prompts[s->ops[i].prompt];
        if (s->ops[i].kind != OP_SUBMIT || shown[s->ops[i].prompt]) continue;
        shown[s->ops[i].prompt] = true;
        fprintf(out, "prompt[%d] = {", s->ops[i].prompt);
        for (int64_t t = 0; t < p->n; t++) fprintf(out, "%s%d", t > 0 ? ", " : "", p->token[t]);
        fprintf(out, "};\n");
    }
    for (int64_t i = 0; i < s->n_ops; i++) print_operation(out, &s->ops[i]);
}

#endif
