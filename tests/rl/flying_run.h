/* Small runs of updates=in_flight, and logs of their borders by hand. */
#ifndef LS_TESTS_FLYING_RUN_H
#define LS_TESTS_FLYING_RUN_H

#include "rl/borders.h"
#include "rl/grpo_run.h"

enum { LAG = 2, STEPS = 5, EPISODES = 16, LENGTH = 40 };

/* Completions end at their length alone, so that a border can be put at any of their tokens. */
static inline job flying_job(const char *name) {
    job j = job_make(name);
    job_set(&j, "lag=2");
    job_set(&j, "updates=in_flight");
    job_set(&j, "stop=");
    job_set(&j, "seed=4");
    job_set(&j, "save_every=0");
    return j;
}

static inline const char *log_of(const char *run) {
    static char path[4][300];
    static int next;
    next = (next + 1) % 4;
    snprintf(path[next], sizeof path[next], "%.200s/" LS_BORDERS_NAME, run);
    return path[next];
}

static inline ls_borders *read_log(const char *path) {
    const ls_borders_limits limits = {EPISODES, LENGTH, LAG};
    ls_borders *b;
    ls_error err;
    assert_ok(ls_borders_read(&b, path, &limits, &err), err);
    return b;
}

static inline void write_file(const char *path, const char *text, int64_t bytes, const char *how) {
    FILE *file = fopen(path, how);
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, (size_t)bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

/* Where each episode's completion begins: as any run of these options says. */
static inline const ls_borders *beginnings(void) {
    static ls_borders *b;
    if (b == NULL) {
        job j = flying_job("beginnings");
        job_must_run(&j);
        b = read_log(log_of(j.o->train.run));
        remove_tree(j.o->train.run);
        job_free(&j);
    }
    return b;
}

/* A log by hand: from the oldest version that a step can have, `stride` tokens of each, the first `shift` more for
 * every second episode. Returns the borders within episodes, of all steps. */
static inline int64_t write_log(const char *path, int64_t stride, int64_t shift) {
    const ls_borders *b = beginnings();
    FILE *file = fopen(path, "w");
    int64_t n = 0;
    assert_non_null(file);
    for (int64_t step = 1; step <= STEPS; step++) {
        fprintf(file, "{\"format\":1,\"step\":%lld,\"borders\":[", (long long)step);
        for (int64_t i = 0; i < EPISODES; i++) {
            const ls_step_borders *of = ls_borders_of(b, step);
            int64_t token = of->list[of->ends[i]].token, v = step - 1 - LAG > 0 ? step - 1 - LAG : 0;
            fprintf(file, "%s[[%lld,%lld]", i > 0 ? "," : "", (long long)token, (long long)v);
            for (token += stride + i % 2 * shift; ++v < step && token < of->list[of->ends[i]].token + 6; n++) {
                fprintf(file, ",[%lld,%lld]", (long long)token, (long long)v);
                token += stride;
            }
            fprintf(file, "]");
        }
        fprintf(file, "]}\n");
    }
    assert_int_equal(fclose(file), 0);
    return n;
}

static inline void set_text(job *j, const char *key, const char *value) {
    char text[400];
    snprintf(text, sizeof text, "%s=%s", key, value);
    job_set(j, text);
}

#endif
