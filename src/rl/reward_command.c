/* Rewards from a command that reads and writes JSON lines. Owns the child, its process group and its three pipes. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/interrupt.h"
#include "base/mem.h"
#include "rl/reward_source.h"

enum { LINE_MAX_BYTES = 65536, LAST_WORDS_MAX = 120, TRIES_MAX = 2, ENDS_MAX = 8, ENDS_MAX_MUTE = 3 };

#define GRACE_S 2.0    /* from the end of its input until a command is killed */
#define FAREWELL_S 0.2 /* from the end of its output */
#define LOOK_S 0.2     /* between two looks at whether a signal stops the run */

typedef struct child {
    pid_t pid;   /* 0: none runs */
    pid_t guard; /* leads the command's process group, and ends it when this process is no more */
    int leash;   /* the guard's input, which ends with this process */
    int in, out, err;
    char line[LINE_MAX_BYTES]; /* the answer that has not ended yet */
    int64_t line_n;
    bool line_too_long;
    char words[LAST_WORDS_MAX]; /* the end of standard error */
    int64_t words_n;
} child;

typedef struct source {
    ls_reward base;
    char *command;
    int64_t window;
    double silence_s;
    const char *preamble;
    int64_t preamble_bytes;
    bool is_together;
    child child;
} source;

/* One ask. Items are not there yet, in index order to be sent (not done, not sent), sent, or done. */
typedef struct ask {
    source *s;
    ls_reward_result *results;
    const ls_reward_item *items;
    int64_t n, n_done, n_sent, next;
    bool *done, *sent;
    bool *there; /* NULL: all are */
    int64_t n_there;
    uint8_t *tries; /* how often the item was with a command that ended */
    char *out;      /* what is being written, from out_at on */
    size_t out_bytes, out_at;
    double heard;           /* when there last was an answer, or reason to wait for one */
    int64_t ends;           /* in a row without an answer */
    bool any_answer, alone; /* alone: what is sent is to be the only one */
} ask;

static void close_fd(int *fd) {
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

/* The group with everything in it, the guard included. */
static void end_group(child *c) {
    kill(-c->guard, SIGKILL);
    close_fd(&c->leash);
    while (waitpid(c->guard, NULL, 0) < 0 && errno == EINTR) continue;
    c->guard = 0;
}

static void close_pipes(child *c) {
    close_fd(&c->in);
    close_fd(&c->out);
    close_fd(&c->err);
}

/* A process that does not take part and outlives this one by a moment: its input ends when this process does, however
 * that comes about, and then it kills its group. The command may signal its group: the guard minds nothing but KILL. */
static int spawn_guard(child *c) {
    char shell[] = "/bin/sh", dash_c[] = "-c",
         text[] = "trap '' INT TERM HUP QUIT PIPE USR1 USR2\nread _\nkill -KILL 0";
    char *const argv[] = {shell, dash_c, text, NULL}, *const none[] = {NULL};
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    int pipe_fds[2] = {-1, -1}, error = 0;
    if (pipe2(pipe_fds, O_CLOEXEC) != 0) return errno;
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
    posix_spawnattr_setpgroup(&attributes, 0);
    posix_spawn_file_actions_adddup2(&actions, pipe_fds[0], 0);
    posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_addclosefrom_np(&actions, 3);
    error = posix_spawn(&c->guard, shell, &actions, &attributes, argv, none);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    close_fd(&pipe_fds[0]);
    if (error != 0) {
        c->guard = 0;
        close_fd(&pipe_fds[1]);
    }
    c->leash = pipe_fds[1];
    return error;
}

/* Pipes as [0] for reading and [1] for writing; -1 where closed. */
static ls_status spawn(source *s, ls_error *err) {
    child *c = &s->child;
    int pipes[3][2] = {{-1, -1}, {-1, -1}, {-1, -1}}, error = 0;
    char shell[] = "/bin/sh", dash_c[] = "-c", *text = strdup(s->command);
    char *const argv[] = {shell, dash_c, text, NULL};
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t none, reset;
    ls_status status = LS_OK;
    extern char **environ;
    if (text == NULL) return LS_FAIL(err, LS_ERR_NOMEM, "command");
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&attributes);
    for (int i = 0; i < 3 && error == 0; i++)
        if (pipe2(pipes[i], O_CLOEXEC) != 0) error = errno;
    if (error == 0) error = spawn_guard(c);
    sigemptyset(&none);
    sigemptyset(&reset);
    sigaddset(&reset, SIGPIPE); /* which this program ignores, as it does */
    sigaddset(&reset, SIGXFSZ);
    if (error == 0) {
        posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
        posix_spawnattr_setpgroup(&attributes, c->guard);
        posix_spawnattr_setsigdefault(&attributes, &reset);
        posix_spawnattr_setsigmask(&attributes, &none);
        posix_spawn_file_actions_adddup2(&actions, pipes[0][0], 0);
        posix_spawn_file_actions_adddup2(&actions, pipes[1][1], 1);
        posix_spawn_file_actions_adddup2(&actions, pipes[2][1], 2);
        posix_spawn_file_actions_addclosefrom_np(&actions, 3);
        error = posix_spawn(&c->pid, shell, &actions, &attributes, argv, environ);
    }
    close_fd(&pipes[0][0]);
    close_fd(&pipes[1][1]);
    close_fd(&pipes[2][1]);
    c->in = pipes[0][1];
    c->out = pipes[1][0];
    c->err = pipes[2][0];
    c->line_n = c->words_n = 0;
    c->line_too_long = false;
    if (error != 0) {
        c->pid = 0;
        if (c->guard != 0) end_group(c);
        close_pipes(c);
        status = LS_FAIL(err, LS_ERR_IO, "cannot start the command: %s", strerror(error));
    } else {
        /* The pipe is empty and holds it; a reader that has gone shows when items are written. */
        if (s->preamble_bytes > 0) (void)!write(c->in, s->preamble, (size_t)s->preamble_bytes);
        fcntl(c->in, F_SETFL, O_NONBLOCK);
        fcntl(c->out, F_SETFL, O_NONBLOCK);
        fcntl(c->err, F_SETFL, O_NONBLOCK);
    }
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    free(text);
    return status;
}

/* Reads what there is of standard error and keeps its end. */
static void hear_words(child *c) {
    char text[4096];
    ssize_t n;
    /* Not all that may come: whoever writes without end must not keep us from the answers. */
    for (int i = 0; i < 16 && c->err >= 0 && (n = read(c->err, text, sizeof text)) != -1; i++) {
        const int64_t keep = n < LAST_WORDS_MAX ? n : LAST_WORDS_MAX;
        const int64_t old = c->words_n + keep > LAST_WORDS_MAX ? LAST_WORDS_MAX - keep : c->words_n;
        if (n == 0) {
            close_fd(&c->err);
            return;
        }
        memmove(c->words, c->words + c->words_n - old, (size_t)old);
        memcpy(c->words + old, text + n - keep, (size_t)keep);
        c->words_n = old + keep;
    }
}

/* Waits up to grace_s for the command to end, then ends it and all it started. *status is its own, as wait has it. */
static bool reap(child *c, double grace_s, int *status) {
    static const struct timespec nap = {0, 2000000};
    const double deadline = ls_clock_seconds() + grace_s;
    siginfo_t info;
    bool by_itself;
    for (;;) {
        memset(&info, 0, sizeof info);
        by_itself = waitid(P_PID, (id_t)c->pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == c->pid;
        hear_words(c); /* or it might wait for a reader, not end */
        if (by_itself || ls_clock_seconds() >= deadline) break;
        nanosleep(&nap, NULL);
    }
    kill(-c->guard, SIGKILL); /* the group is there until its leader is waited for */
    while (waitpid(c->pid, status, 0) < 0 && errno == EINTR) continue;
    end_group(c);
    c->pid = 0;
    return by_itself;
}

/* " (last words: ..)" of one line, or nothing. */
static void quote_words(char out[LAST_WORDS_MAX + 32], const child *c) {
    int64_t begin = 0, end = c->words_n;
    out[0] = '\0';
    while (end > 0 && (unsigned char)c->words[end - 1] <= ' ') end--;
    for (int64_t i = end; i-- > 0 && begin == 0;)
        if (c->words[i] == '\n') begin = i + 1;
    if (begin == end) return;
    snprintf(out, LAST_WORDS_MAX + 32, " (last words: %.*s)", (int)(end - begin), c->words + begin);
}

static void hear_answer(ask *a, const char *line, int64_t bytes) {
    source *s = a->s;
    ls_reward_answer answer;
    ls_error err;
    int64_t i;
    if (bytes == 0) return;
    if (ls_reward_answer_parse(&answer, line, bytes, "answer", &err) != LS_OK) {
        s->base.counts.unreadable++;
        ls_reward_note(&s->base, "the command wrote \"%.*s\": %.160s", (int)(bytes < 80 ? bytes : 80), line, err.text);
        return;
    }
    /* An item that was not given out cannot be answered, even if its id can be guessed. */
    i = answer.id - s->base.first_id;
    if (i >= 0 && i < a->n && !a->sent[i]) answer.id = -1;
    i = ls_reward_resolve(&s->base, a->results, a->done, a->n, &answer);
    if (i < 0) return;
    if (answer.note[0] != '\0') ls_reward_note(&s->base, "%.80s: %s", ls_reward_item_name(&a->items[i]), answer.note);
    a->n_sent--;
    a->n_done++;
    a->heard = ls_clock_seconds();
    a->ends = 0;
    a->any_answer = true;
}

/* Reads answers; false at the end of the command's output. */
static bool hear(ask *a) {
    child *c = &a->s->child;
    for (int i = 0; i < 16; i++) {
        const ssize_t n = read(c->out, c->line + c->line_n, (size_t)(LINE_MAX_BYTES - c->line_n));
        int64_t begin = 0;
        if (n == 0) {
            if (!c->line_too_long) hear_answer(a, c->line, c->line_n); /* a last line without its newline */
            return false;
        }
        if (n < 0) return errno == EAGAIN || errno == EINTR;
        c->line_n += n;
        for (;;) {
            const char *newline = memchr(c->line + begin, '\n', (size_t)(c->line_n - begin));
            if (newline == NULL) break;
            if (!c->line_too_long) hear_answer(a, c->line + begin, newline - (c->line + begin));
            c->line_too_long = false;
            begin = newline - c->line + 1;
        }
        memmove(c->line, c->line + begin, (size_t)(c->line_n - begin));
        c->line_n -= begin;
        if (c->line_n < LINE_MAX_BYTES) continue;
        if (!c->line_too_long) {
            a->s->base.counts.unreadable++;
            ls_reward_note(&a->s->base, "the command wrote a line of more than %d bytes", LINE_MAX_BYTES);
        }
        c->line_too_long = true;
        c->line_n = 0;
    }
    return true;
}

static bool can_be_sent(const ask *a, int64_t i) {
    return !a->done[i] && !a->sent[i] && (a->there == NULL || a->there[i]);
}

/* Makes the next item ready to be written, if one may be sent. One that was with a command that ended goes alone. */
static ls_status prepare(ask *a, ls_error *err) {
    ls_json_out json;
    FILE *stream;
    while (a->next < a->n && !can_be_sent(a, a->next)) a->next++;
    if (a->out_at < a->out_bytes || a->next == a->n || a->n_sent >= a->s->window) return LS_OK;
    if (!a->s->is_together && a->n_sent > 0 && (a->alone || a->tries[a->next] > 0)) return LS_OK;
    free(a->out);
    a->out = NULL;
    a->out_bytes = a->out_at = 0;
    stream = open_memstream(&a->out, &a->out_bytes);
    if (stream == NULL) return LS_FAIL(err, LS_ERR_NOMEM, "item for the command");
    ls_json_init(&json, stream);
    ls_reward_write_item(&json, a->s->base.first_id + a->next, &a->items[a->next]);
    ls_json_newline(&json);
    if (fclose(stream) != 0) return LS_FAIL(err, LS_ERR_NOMEM, "item for the command");
    if (a->n_sent == 0) a->heard = ls_clock_seconds();
    a->alone = a->ends > 0 || a->tries[a->next] > 0;
    a->sent[a->next] = true;
    a->n_sent++;
    if (a->tries[a->next] > 0) a->s->base.counts.retried++;
    return LS_OK;
}

/* The end of its input is not yet the end of the command: what it wrote before is still heard. */
static void say(ask *a) {
    child *c = &a->s->child;
    while (a->out_at < a->out_bytes && c->in >= 0) {
        const ssize_t n = write(c->in, a->out + a->out_at, a->out_bytes - a->out_at);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) return;
        if (n < 0) {
            close_fd(&c->in);
            return;
        }
        a->out_at += (size_t)n;
    }
}

/* The command is no more, for this reason: its items wait again or have failed. */
static void command_ended(ask *a, const char *reason) {
    char words[LAST_WORDS_MAX + 32], text[LS_REWARD_ERROR_MAX];
    quote_words(words, &a->s->child);
    snprintf(text, sizeof text, "%s%s", reason, words);
    ls_reward_note(&a->s->base, "%s", text);
    a->ends++;
    for (int64_t i = 0; i < a->n; i++) {
        if (a->done[i] || !a->sent[i]) continue;
        a->sent[i] = false;
        if (++a->tries[i] < TRIES_MAX) continue;
        ls_reward_fail(&a->results[i], text);
        a->done[i] = true;
        a->n_done++;
    }
    a->n_sent = a->next = 0;
    a->out_bytes = a->out_at = 0;
    if (a->ends < (a->any_answer ? ENDS_MAX : ENDS_MAX_MUTE)) return;
    for (int64_t i = 0; i < a->n; i++)
        if (!a->done[i]) ls_reward_fail(&a->results[i], text);
    a->n_done = a->n;
}

static void end_command(ask *a, bool silent) {
    child *c = &a->s->child;
    char reason[64];
    int status = 0;
    bool by_itself;
    close_fd(&c->in);
    by_itself = reap(c, silent ? 0 : FAREWELL_S, &status);
    close_pipes(c);
    if (silent)
        snprintf(reason, sizeof reason, "no answer for %g s", a->s->silence_s);
    else if (!by_itself)
        snprintf(reason, sizeof reason, "the command closed its output");
    else if (WIFSIGNALED(status))
        snprintf(reason, sizeof reason, "the command was killed by signal %d", WTERMSIG(status));
    else
        snprintf(reason, sizeof reason, "the command ended with status %d", WEXITSTATUS(status));
    command_ended(a, reason);
}

/* One round: writes and reads what can be, and looks at the clock. */
static void converse(ask *a) {
    child *c = &a->s->child;
    const double left = a->heard + a->s->silence_s - ls_clock_seconds();
    struct pollfd fds[4] = {{c->out, POLLIN, 0},
                            {c->err, POLLIN, 0},
                            {a->out_at < a->out_bytes ? c->in : -1, POLLOUT, 0},
                            {a->there != NULL ? ls_feed_fd(a->s->base.late->feed) : -1, POLLIN, 0}};
    const int wait_ms = left <= 0 ? 0 : left < LOOK_S ? (int)(1000 * left) + 1 : (int)(1000 * LOOK_S);
    bool more = true;
    (void)poll(fds, 4, wait_ms); /* where it fails, nothing is ready */
    if (fds[1].revents != 0) hear_words(c);
    if (fds[0].revents != 0) more = hear(a);
    if (fds[2].revents != 0) say(a);
    if (!more)
        end_command(a, false);
    else if (a->n_sent > 0 && ls_clock_seconds() >= a->heard + a->s->silence_s)
        end_command(a, true);
}

/* Takes what has come. While nothing is with the command it is not silent. */
static ls_status take_late(ask *a, ls_error *err) {
    const ls_reward_late *late = a->s->base.late;
    int64_t i;
    if (a->there == NULL) return LS_OK;
    while (ls_feed_take(late->feed, &i)) {
        LS_TRY(late->complete(late->context, i, err));
        a->there[i] = true;
        a->n_there++;
        a->next = i < a->next ? i : a->next;
    }
    if (a->n_sent == 0) a->heard = ls_clock_seconds();
    if (a->n_there < a->n && ls_feed_is_over(late->feed))
        return LS_FAIL(err, LS_ERR_ARG, "rewards: %lld of %lld items came", (long long)a->n_there, (long long)a->n);
    return LS_OK;
}

static ls_status run(ask *a, ls_error *err) {
    source *s = a->s;
    bool ran = s->base.first_id > 0;
    while (a->n_done < a->n) {
        if (s->child.pid == 0) {
            ls_error why;
            if (spawn(s, &why) != LS_OK) {
                a->ends = ENDS_MAX;
                command_ended(a, why.text);
                continue;
            }
            s->base.counts.restarts += ran;
        }
        ran = true;
        LS_TRY(take_late(a, err));
        LS_TRY(prepare(a, err));
        converse(a);
        if (a->n_done < a->n && ls_interrupt_is_over(a->heard, ls_clock_seconds()))
            return LS_FAIL(err, LS_ERR_IO, "a signal stops the run, and the command is silent");
    }
    return LS_OK;
}

static void stop(child *c, double grace_s) {
    int status;
    close_pipes(c);
    reap(c, grace_s, &status);
}

static ls_status command_ask(ls_reward *reward, ls_reward_result *results, const ls_reward_item *items, int64_t n,
                             ls_error *err) {
    ask a = {.s = (source *)reward, .results = results, .items = items, .n = n};
    void *done = NULL, *sent = NULL, *there = NULL, *tries = NULL;
    ls_status status;
    if (reward->late != NULL) LS_TRY_DONE(ls_array_alloc(&there, n, sizeof *a.there, "rewards", err));
    LS_TRY_DONE(ls_array_alloc(&done, n, sizeof *a.done, "rewards", err));
    LS_TRY_DONE(ls_array_alloc(&sent, n, sizeof *a.sent, "rewards", err));
    LS_TRY_DONE(ls_array_alloc(&tries, n, sizeof *a.tries, "rewards", err));
    a.done = done;
    a.sent = sent;
    a.there = there;
    a.tries = tries;
    status = run(&a, err);
    /* An item of which a part was written when it was answered: what follows could not be told apart from it. */
    if ((status != LS_OK || a.out_at < a.out_bytes) && a.s->child.pid != 0) stop(&a.s->child, 0);
done:
    free(a.out);
    free(done);
    free(sent);
    free(there);
    free(tries);
    return status;
}

static void command_close(ls_reward *reward) {
    source *s = (source *)reward;
    if (s->child.pid != 0) stop(&s->child, GRACE_S);
    free(s->command);
    free(s);
}

void ls_reward_command_init(ls_reward_command_options *out) {
    *out = (ls_reward_command_options){.window = 64, .silence_s = 60};
}

ls_status ls_reward_command_open(ls_reward **out, const ls_reward_command_options *options, ls_error *err) {
    ls_status status = LS_OK;
    source *s = NULL;
    if (options->command == NULL || options->command[0] == '\0')
        return LS_FAIL(err, LS_ERR_ARG, "reward command: it is empty");
    if (options->window < 1)
        return LS_FAIL(err, LS_ERR_ARG, "reward command: window %lld is not at least 1", (long long)options->window);
    if (!(options->silence_s > 0))
        return LS_FAIL(err, LS_ERR_ARG, "reward command: silence of %g s is not above 0", options->silence_s);
    s = calloc(1, sizeof *s);
    if (s == NULL) return LS_FAIL(err, LS_ERR_NOMEM, "reward command");
    s->base.ask = command_ask;
    s->base.close = command_close;
    s->base.takes_late = true;
    s->window = options->window;
    s->silence_s = options->silence_s;
    s->preamble = options->preamble;
    s->preamble_bytes = options->preamble_bytes;
    s->is_together = options->is_together;
    s->child.in = s->child.out = s->child.err = s->child.leash = -1;
    LS_TRY_DONE(ls_text_copy(&s->command, options->command, (int64_t)strlen(options->command), err));
    *out = &s->base;
    s = NULL;
done:
    free(s);
    return status;
}
