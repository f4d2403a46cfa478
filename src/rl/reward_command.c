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
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/interrupt.h"
#include "base/mem.h"
#include "base/relay.h"
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

typedef struct ask ask;

typedef struct source {
    ls_reward base;
    char *command;
    int64_t window;
    double silence_s;
    const char *preamble;
    int64_t preamble_bytes;
    bool is_together;
    int begun; /* an eventfd: there is another ask */
    ls_relay relay;
    /* Under its lock. */
    child child;
    bool has_run;
    ask *asks; /* that run, the oldest first */
    int64_t n_asks;
    int64_t n_sent; /* items that are with the command */
    bool alone;     /* what is sent is to be the only one */
    bool owes;      /* it may still answer items that nobody waits for */
    char *out;      /* what is being written, from out_at on */
    size_t out_bytes, out_at;
    double heard; /* when there last was an answer, or reason to wait for one */
} source;

/* One ask. Items are not there yet, in index order to be sent (not done, not sent), sent, or done. */
struct ask {
    ask *next_ask;
    source *s;
    ls_reward_asked *of;
    int64_t n, n_done, n_sent, next;
    bool *sent;
    bool *there; /* NULL: all are */
    int64_t n_there;
    uint8_t *tries;  /* how often the item was with a command that ended */
    int64_t ends;    /* of commands that had its items, in a row without an answer */
    bool any_answer; /* since it began */
    ls_status status;
    ls_error reason; /* where it is not LS_OK */
};

static bool ask_is_over(const void *part) {
    const ask *a = part;
    return a->status != LS_OK || a->n_done == a->n;
}

/* Nobody waits any more for its items that are with the command. */
static void fail_ask(ask *a, const ls_error *reason) {
    a->status = reason->status;
    a->reason = *reason;
    a->s->owes = a->s->owes || a->n_sent > 0;
    a->s->n_sent -= a->n_sent;
    a->n_sent = 0;
}

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

/* What belongs to no item is told with the oldest ask. */
static void note_unreadable(source *s, const char *text) {
    ls_reward_questions *q = s->asks->of->q;
    q->counts.unreadable++;
    ls_reward_note(q, "%s", text);
}

/* An item that was not given out cannot be answered, even if its id can be guessed. */
static ask *find_asker(const source *s, int64_t id) {
    for (ask *a = s->asks; a != NULL; a = a->next_ask) {
        const int64_t i = id - a->of->q->first_id;
        if (!ask_is_over(a) && i >= 0 && i < a->n) return a->sent[i] ? a : NULL;
    }
    return NULL;
}

static void hear_answer(source *s, const char *line, int64_t bytes) {
    ls_reward_answer answer;
    ls_error err;
    ask *a;
    int64_t i;
    if (bytes == 0) return;
    if (ls_reward_answer_parse(&answer, line, bytes, "answer", &err) != LS_OK) {
        char text[LS_REWARD_ERROR_MAX + 128];
        snprintf(text, sizeof text, "the command wrote \"%.*s\": %.160s", (int)(bytes < 80 ? bytes : 80), line,
                 err.text);
        note_unreadable(s, text);
        return;
    }
    a = find_asker(s, answer.id);
    if (a == NULL) answer.id = -1;
    i = ls_reward_resolve(a != NULL ? a->of : s->asks->of, &answer);
    if (i < 0) return;
    if (answer.note[0] != '\0')
        ls_reward_note(a->of->q, "%.80s: %s", ls_reward_item_name(&a->of->q->items[i]), answer.note);
    a->n_sent--;
    a->n_done++;
    s->n_sent--;
    s->heard = ls_clock_seconds();
    for (ask *each = s->asks; each != NULL; each = each->next_ask) {
        each->ends = 0;
        each->any_answer = true;
    }
}

/* Reads answers; false at the end of the command's output. */
static bool hear(source *s) {
    child *c = &s->child;
    for (int i = 0; i < 16; i++) {
        const ssize_t n = read(c->out, c->line + c->line_n, (size_t)(LINE_MAX_BYTES - c->line_n));
        int64_t begin = 0;
        if (n == 0) {
            if (!c->line_too_long) hear_answer(s, c->line, c->line_n); /* a last line without its newline */
            return false;
        }
        if (n < 0) return errno == EAGAIN || errno == EINTR;
        c->line_n += n;
        for (;;) {
            const char *newline = memchr(c->line + begin, '\n', (size_t)(c->line_n - begin));
            if (newline == NULL) break;
            if (!c->line_too_long) hear_answer(s, c->line + begin, newline - (c->line + begin));
            c->line_too_long = false;
            begin = newline - c->line + 1;
        }
        memmove(c->line, c->line + begin, (size_t)(c->line_n - begin));
        c->line_n -= begin;
        if (c->line_n < LINE_MAX_BYTES) continue;
        if (!c->line_too_long) {
            char text[64];
            snprintf(text, sizeof text, "the command wrote a line of more than %d bytes", LINE_MAX_BYTES);
            note_unreadable(s, text);
        }
        c->line_too_long = true;
        c->line_n = 0;
    }
    return true;
}

static bool can_be_sent(const ask *a, int64_t i) {
    return !a->of->done[i] && !a->sent[i] && (a->there == NULL || a->there[i]);
}

/* The ask whose item is the next one to be written, its number in a->next; NULL: there is none now. */
static ask *next_asker(const source *s) {
    for (ask *a = s->asks; a != NULL; a = a->next_ask) {
        if (ask_is_over(a)) continue;
        while (a->next < a->n && !can_be_sent(a, a->next)) a->next++;
        if (a->next < a->n) return a;
    }
    return NULL;
}

/* Makes the next item ready to be written, if one may be sent. One that was with a command that ended goes alone. */
static ls_status prepare(source *s, ls_error *err) {
    ask *a = next_asker(s);
    ls_json_out json;
    FILE *stream;
    if (s->out_at < s->out_bytes || a == NULL || s->n_sent >= s->window) return LS_OK;
    if (!s->is_together && s->n_sent > 0 && (s->alone || a->tries[a->next] > 0)) return LS_OK;
    free(s->out);
    s->out = NULL;
    s->out_bytes = s->out_at = 0;
    stream = open_memstream(&s->out, &s->out_bytes);
    if (stream == NULL) return LS_FAIL(err, LS_ERR_NOMEM, "item for the command");
    ls_json_init(&json, stream);
    ls_reward_write_item(&json, a->of->q, a->next);
    ls_json_newline(&json);
    if (fclose(stream) != 0) return LS_FAIL(err, LS_ERR_NOMEM, "item for the command");
    s->alone = a->ends > 0 || a->tries[a->next] > 0;
    a->sent[a->next] = true;
    a->n_sent++;
    s->n_sent++;
    if (a->tries[a->next] > 0) a->of->q->counts.retried++;
    return LS_OK;
}

/* The end of its input is not yet the end of the command: what it wrote before is still heard. */
static void say(source *s) {
    child *c = &s->child;
    while (s->out_at < s->out_bytes && c->in >= 0) {
        const ssize_t n = write(c->in, s->out + s->out_at, s->out_bytes - s->out_at);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) return;
        if (n < 0) {
            close_fd(&c->in);
            return;
        }
        s->out_at += (size_t)n;
    }
}

/* The command that had items of an ask is no more: they wait again or have failed, and so have all where it is given
 * up. */
static void lose_items(ask *a, const char *text, bool is_given_up) {
    ls_reward_result *results = a->of->q->results;
    ls_reward_note(a->of->q, "%s", text);
    a->ends++;
    for (int64_t i = 0; i < a->n; i++) {
        if (a->of->done[i] || !a->sent[i]) continue;
        a->sent[i] = false;
        if (++a->tries[i] < TRIES_MAX) continue;
        ls_reward_fail(&results[i], text);
        a->of->done[i] = true;
        a->n_done++;
    }
    a->n_sent = a->next = 0;
    if (!is_given_up && a->ends < (a->any_answer ? ENDS_MAX : ENDS_MAX_MUTE)) return;
    for (int64_t i = 0; i < a->n; i++)
        if (!a->of->done[i]) ls_reward_fail(&results[i], text);
    a->n_done = a->n;
}

/* The end of a command counts for those that had items with it; of one that had none, for all. */
static void command_ended(source *s, const char *reason, bool is_given_up) {
    char words[LAST_WORDS_MAX + 32], text[LS_REWARD_ERROR_MAX];
    const bool had_none = s->n_sent == 0;
    quote_words(words, &s->child);
    snprintf(text, sizeof text, "%s%s", reason, words);
    for (ask *a = s->asks; a != NULL; a = a->next_ask)
        if (!ask_is_over(a) && (had_none || a->n_sent > 0)) lose_items(a, text, is_given_up);
    s->n_sent = 0;
    s->out_bytes = s->out_at = 0;
    s->owes = false;
}

static void end_command(source *s, bool silent) {
    child *c = &s->child;
    char reason[64];
    int status = 0;
    bool by_itself;
    close_fd(&c->in);
    by_itself = reap(c, silent ? 0 : FAREWELL_S, &status);
    close_pipes(c);
    if (silent)
        snprintf(reason, sizeof reason, "no answer for %g s", s->silence_s);
    else if (!by_itself)
        snprintf(reason, sizeof reason, "the command closed its output");
    else if (WIFSIGNALED(status))
        snprintf(reason, sizeof reason, "the command was killed by signal %d", WTERMSIG(status));
    else
        snprintf(reason, sizeof reason, "the command ended with status %d", WEXITSTATUS(status));
    command_ended(s, reason, false);
}

/* Writes and reads what can be, and looks at the clock. Others may ask while it waits. */
static void converse(source *s) {
    child *c = &s->child;
    const double left = s->heard + s->silence_s - ls_clock_seconds();
    struct pollfd fds[4 + LS_REWARD_ASKS_MAX] = {{c->out, POLLIN, 0},
                                                 {c->err, POLLIN, 0},
                                                 {s->out_at < s->out_bytes ? c->in : -1, POLLOUT, 0},
                                                 {s->begun, POLLIN, 0}};
    const int wait_ms = left <= 0 ? 0 : left < LOOK_S ? (int)(1000 * left) + 1 : (int)(1000 * LOOK_S);
    nfds_t n = 4;
    uint64_t seen;
    bool more = true;
    for (const ask *a = s->asks; a != NULL; a = a->next_ask)
        if (a->there != NULL && !ask_is_over(a))
            fds[n++] = (struct pollfd){ls_feed_fd(a->of->q->late->feed), POLLIN, 0};
    pthread_mutex_unlock(&s->relay.lock);
    (void)poll(fds, n, wait_ms); /* where it fails, nothing is ready */
    pthread_mutex_lock(&s->relay.lock);
    if (fds[1].revents != 0) hear_words(c);
    if (fds[0].revents != 0) more = hear(s);
    if (fds[2].revents != 0) say(s);
    if (fds[3].revents != 0) (void)!read(s->begun, &seen, sizeof seen);
    if (!more)
        end_command(s, false);
    else if (s->n_sent > 0 && ls_clock_seconds() >= s->heard + s->silence_s)
        end_command(s, true);
}

/* Takes what has come. */
static ls_status take_late(ask *a, ls_error *err) {
    const ls_reward_late *late = a->of->q->late;
    int64_t i;
    while (ls_feed_take(late->feed, &i)) {
        LS_TRY(late->complete(late->context, i, err));
        a->there[i] = true;
        a->n_there++;
        a->next = i < a->next ? i : a->next;
    }
    if (a->n_there < a->n && ls_feed_is_over(late->feed))
        return LS_FAIL(err, LS_ERR_ARG, "rewards: %lld of %lld items came", (long long)a->n_there, (long long)a->n);
    return LS_OK;
}

static void fail_asks(const source *s, const ls_error *reason) {
    for (ask *a = s->asks; a != NULL; a = a->next_ask)
        if (!ask_is_over(a)) fail_ask(a, reason);
}

static bool start(source *s) {
    ls_error why;
    if (spawn(s, &why) != LS_OK) {
        command_ended(s, why.text, true);
        return false;
    }
    s->asks->of->q->counts.restarts += s->has_run;
    s->has_run = true;
    return true;
}

static bool any_waits(const source *s) {
    for (const ask *a = s->asks; a != NULL; a = a->next_ask)
        if (!ask_is_over(a)) return true;
    return false;
}

static void fail_left(const source *s) {
    ls_error err;
    for (ask *a = s->asks; a != NULL; a = a->next_ask) {
        const atomic_bool *is_left = a->of->q->is_left;
        if (is_left == NULL || !atomic_load(is_left) || ask_is_over(a)) continue;
        (void)LS_FAIL(&err, LS_ERR_IO, "nobody waits for the command any more");
        fail_ask(a, &err);
    }
}

/* A step of the conversation, for all asks. While nothing is with the command it is not silent. */
static void take_step(void *conversation) {
    source *s = conversation;
    ls_error err = {LS_OK, ""};
    fail_left(s);
    if (!any_waits(s) || (s->child.pid == 0 && !start(s))) return;
    for (ask *a = s->asks; a != NULL; a = a->next_ask)
        if (a->there != NULL && !ask_is_over(a) && take_late(a, &err) != LS_OK) fail_ask(a, &err);
    if (s->n_sent == 0) s->heard = ls_clock_seconds();
    if (prepare(s, &err) != LS_OK) fail_asks(s, &err);
    if (any_waits(s)) converse(s);
    if (any_waits(s) && ls_interrupt_is_over(s->heard, ls_clock_seconds())) {
        (void)LS_FAIL(&err, LS_ERR_IO, "a signal stops the run, and the command is silent");
        fail_asks(s, &err);
    }
}

static void stop(child *c, double grace_s) {
    int status;
    close_pipes(c);
    reap(c, grace_s, &status);
}

static void join(ask *a) {
    const uint64_t one = 1;
    source *s = a->s;
    ask **end = &s->asks;
    LS_ASSERT(s->n_asks < LS_REWARD_ASKS_MAX, "%lld asks at a time", (long long)s->n_asks + 1);
    while (*end != NULL) end = &(*end)->next_ask;
    *end = a;
    s->n_asks++;
    (void)!write(s->begun, &one, sizeof one);
}

/* Behind the last one the command ends where it would answer what nobody waits for, or where a part of an item was
 * written: what follows could not be told apart from it. */
static void leave(ask *a) {
    source *s = a->s;
    ask **at = &s->asks;
    while (*at != a) at = &(*at)->next_ask;
    *at = a->next_ask;
    s->n_asks--;
    if (s->asks != NULL) return;
    if ((s->owes || s->out_at < s->out_bytes) && s->child.pid != 0) stop(&s->child, 0);
    free(s->out);
    s->out = NULL;
    s->out_bytes = s->out_at = 0;
    s->owes = false;
}

static ls_status command_ask(ls_reward *reward, ls_reward_asked *asked, ls_error *err) {
    ask a = {.s = (source *)reward, .of = asked, .n = asked->q->n};
    void *sent = NULL, *there = NULL, *tries = NULL;
    ls_status status;
    if (asked->q->late != NULL) LS_TRY_DONE(ls_array_alloc(&there, a.n, sizeof *a.there, "rewards", err));
    LS_TRY_DONE(ls_array_alloc(&sent, a.n, sizeof *a.sent, "rewards", err));
    LS_TRY_DONE(ls_array_alloc(&tries, a.n, sizeof *a.tries, "rewards", err));
    a.sent = sent;
    a.there = there;
    a.tries = tries;
    pthread_mutex_lock(&a.s->relay.lock);
    join(&a);
    ls_relay_run(&a.s->relay, take_step, a.s, ask_is_over, &a);
    leave(&a);
    pthread_mutex_unlock(&a.s->relay.lock);
    status = a.status;
    if (status != LS_OK && err != NULL) *err = a.reason;
done:
    free(sent);
    free(there);
    free(tries);
    return status;
}

static void command_close(ls_reward *reward) {
    source *s = (source *)reward;
    if (s->child.pid != 0) stop(&s->child, GRACE_S);
    close_fd(&s->begun);
    ls_relay_deinit(&s->relay);
    ls_reward_deinit(&s->base);
    free(s->command);
    free(s);
}

void ls_reward_command_init(ls_reward_command_options *out) {
    *out = (ls_reward_command_options){.window = 64, .silence_s = 60};
}

ls_status ls_reward_command_open(ls_reward **out, const ls_reward_command_options *options, ls_error *err) {
    ls_status status = LS_OK;
    source *s;
    if (options->command == NULL || options->command[0] == '\0')
        return LS_FAIL(err, LS_ERR_ARG, "reward command: it is empty");
    if (options->window < 1)
        return LS_FAIL(err, LS_ERR_ARG, "reward command: window %lld is not at least 1", (long long)options->window);
    if (!(options->silence_s > 0))
        return LS_FAIL(err, LS_ERR_ARG, "reward command: silence of %g s is not above 0", options->silence_s);
    s = calloc(1, sizeof *s);
    if (s == NULL) return LS_FAIL(err, LS_ERR_NOMEM, "reward command");
    ls_reward_init(&s->base);
    ls_relay_init(&s->relay);
    s->base.ask = command_ask;
    s->base.close = command_close;
    s->base.takes_late = true;
    s->window = options->window;
    s->silence_s = options->silence_s;
    s->preamble = options->preamble;
    s->preamble_bytes = options->preamble_bytes;
    s->is_together = options->is_together;
    s->child.in = s->child.out = s->child.err = s->child.leash = -1;
    s->begun = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (s->begun < 0) {
        status = LS_FAIL(err, LS_ERR_IO, "reward command: eventfd: %s", strerror(errno));
        goto done;
    }
    LS_TRY_DONE(ls_text_copy(&s->command, options->command, (int64_t)strlen(options->command), err));
done:
    if (status == LS_OK)
        *out = &s->base;
    else
        command_close(&s->base);
    return status;
}
