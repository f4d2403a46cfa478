/* Small runs of several processes: the ranks above 0 as children, and who watches them. */
#ifndef LS_TESTS_RANKS_RUN_H
#define LS_TESTS_RANKS_RUN_H

#include <signal.h>
#include <sys/wait.h>

#include "rl/grpo_run.h"
#include "train/run_files.h"

#define COUNT(array) ((int64_t)(sizeof(array) / sizeof((array)[0])))

/* Says which rank this is as torchrun does. */
static inline void set_environment(const job *j, int64_t rank, int64_t ranks) {
    char text[32];
    snprintf(text, sizeof text, "%lld", (long long)rank);
    assert_int_equal(setenv("RANK", text, 1), 0);
    snprintf(text, sizeof text, "%lld", (long long)ranks);
    assert_int_equal(setenv("WORLD_SIZE", text, 1), 0);
    assert_int_equal(setenv("MASTER_ADDR", "127.0.0.1", 1), 0);
    assert_int_equal(setenv("MASTER_PORT", strchr(j->o->train.address, ':') + 1, 1), 0);
}

static inline void clear_environment(void) {
    static const char *const names[] = {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"};
    for (int64_t i = 0; i < COUNT(names); i++) (void)unsetenv(names[i]);
}

/* Ranks 1 and above as processes of their own, each of which must come to the digest `want`, unless it is 0. Three are
 * told by the environment, others by options. */
static inline void start_ranks(job *j, int64_t ranks, uint64_t want, pid_t *children) {
    choose_address(j->o->train.address);
    if (ranks == 3)
        set_environment(j, 0, ranks);
    else
        j->o->train.ranks = ranks;
    for (int64_t r = 1; r < ranks; r++) {
        ls_error err;
        children[r] = fork();
        assert_true(children[r] >= 0);
        if (children[r] != 0) continue;
        if (ranks == 3)
            set_environment(j, r, ranks);
        else
            j->o->train.rank = r;
        if (job_run(j, &err) == LS_OK) _exit(want == 0 || j->result.digest == want ? 0 : 1);
        _exit(2);
    }
}

static inline void end_ranks(int64_t ranks, const pid_t *children) {
    clear_environment();
    for (int64_t r = 1; r < ranks; r++) {
        int status;
        assert_int_equal(waitpid(children[r], &status, 0), children[r]);
        assert_int_equal(status, 0);
    }
}

/* Does something to a process as soon as the run has so many records. */
static inline pid_t watch(const char *run, int64_t lines, pid_t victim, int signal_number) {
    const pid_t watcher = fork();
    assert_true(watcher >= 0);
    if (watcher != 0) return watcher;
    for (int i = 0; i < 60000 && steps_done(run) < lines; i++) usleep(1000);
    _exit(kill(victim, signal_number) == 0 ? 0 : 1);
}

#endif
