/* Another program as a subject: PROGRAM generate with every lever spelled out, once for each trial, by files. And as a
 * trainer: PROGRAM score, likewise. */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "diagnose/trial/resident.h"
#include "diagnose/trial/trial.h"
#include "record/record.h"

extern char **environ;

/* The kind of what went wrong beside its sentence. */
#define FAIL_AS(s, kind, err, status, ...) ((s)->why = (kind), LS_FAIL(err, status, __VA_ARGS__))

enum { PATH_BYTES = 4096, WORD_BYTES = 64, WORDS_MAX = 128, COMPLAINT_BYTES = 1 << 20 };

/* A command line under construction; words made here live in text. */
typedef struct words {
    char *argv[WORDS_MAX + 1];
    char text[WORDS_MAX][WORD_BYTES];
    int n;
} words;

static ls_status add_word(words *w, const char *word, ls_error *err) {
    if (w->n == WORDS_MAX)
        return LS_FAIL(err, LS_ERR_ARG, "more than %d words on the suspect's command line", WORDS_MAX);
    w->argv[w->n++] = (char *)(uintptr_t)word; /* posix_spawn takes them as char *, and leaves them alone */
    return LS_OK;
}

static ls_status add_option(words *w, const char *name, const char *value, ls_error *err) {
    char *text = w->text[w->n < WORDS_MAX ? w->n : 0];
    snprintf(text, WORD_BYTES, "--%s", name);
    LS_TRY(add_word(w, text, err));
    return add_word(w, value, err);
}

/* The same with a value that is copied. */
static ls_status add_setting(words *w, const char *name, const char *value, ls_error *err) {
    char *text = w->text[w->n + 1 < WORDS_MAX ? w->n + 1 : 0];
    snprintf(text, WORD_BYTES, "%s", value);
    return add_option(w, name, text, err);
}

/* Whether the program is left to its own default: programs of the first version read a number for each share, and one
 * that knows no drafts makes none. */
static bool is_left_open(const ls_trial *trial, int64_t lever, int protocol) {
    char text[WORD_BYTES];
    if (strcmp(ls_lever_name(lever), "drafts") == 0) return trial->levers.drafts == 0;
    ls_lever_format(text, sizeof text, &trial->levers, lever);
    return protocol < 2 && strcmp(ls_lever_name(lever), "memory-fraction") == 0 && strcmp(text, "auto") == 0;
}

static ls_status add_trial(words *w, const ls_trial *trial, int protocol, ls_error *err) {
    char text[WORD_BYTES];
    snprintf(text, sizeof text, "%" PRId64, trial->max_tokens);
    LS_TRY(add_setting(w, "max-tokens", text, err));
    ls_double_show(text, ls_float_plain(trial->sampling.temperature));
    LS_TRY(add_setting(w, "temperature", text, err));
    snprintf(text, sizeof text, "%" PRIu64, trial->sampling.seed);
    LS_TRY(add_setting(w, "seed", text, err));
    LS_TRY(add_option(w, "logprobs", trial->logprob_of == LS_LOGPROB_RAW ? "raw" : "processed", err));
    LS_TRY(add_option(w, "dtype", ls_dtype_name(trial->dtype), err));
    if (trial->dtype != LS_F32) LS_TRY(add_option(w, "profile", ls_profile_name(trial->profile), err));
    LS_TRY(add_word(w, "--ignore-eos", err));
    for (int64_t i = 0; i < ls_levers_count(); i++) {
        if (is_left_open(trial, i, protocol)) continue;
        ls_lever_format(text, sizeof text, &trial->levers, i);
        LS_TRY(add_setting(w, ls_lever_name(i), text, err));
    }
    return LS_OK;
}

/* Lines of {"id": LETTER and number, KEY: [ids]}, in rounds over the same ones. */
typedef struct id_lines {
    char letter;
    const char *key;
    const ls_prompt *of;
    int64_t n, rounds;
} id_lines;

static ls_status fill_lines(ls_json_out *json, const void *context, ls_error *err) {
    const id_lines *l = context;
    (void)err;
    for (int64_t i = 0; i < l->n * l->rounds; i++) {
        const ls_prompt *p = &l->of[i % l->n];
        char id[32];
        snprintf(id, sizeof id, "%c%" PRId64, l->letter, i);
        ls_json_begin_object(json, NULL);
        ls_json_string(json, "id", id);
        ls_json_begin_array(json, l->key);
        for (int64_t t = 0; t < p->n; t++) ls_json_int(json, NULL, p->ids[t]);
        ls_json_end_array(json);
        ls_json_end_object(json);
        ls_json_newline(json);
    }
    return LS_OK;
}

/* The last line that the program wrote to its standard error. */
static void read_complaint(char *text, size_t bytes, const char *path) {
    char *all = NULL, *line;
    int64_t n;
    snprintf(text, bytes, "no reason given");
    if (ls_file_read(&all, &n, path, COMPLAINT_BYTES, NULL) != LS_OK) return;
    while (n > 0 && (all[n - 1] == '\n' || all[n - 1] == '\r')) all[--n] = '\0';
    line = strrchr(all, '\n');
    if (n > 0) snprintf(text, bytes, "%s", line != NULL ? line + 1 : all);
    free(all);
}

static ls_status start_program(ls_program_subject *s, pid_t *pid, char *const *argv, const char *complaints,
                               ls_error *err) {
    posix_spawn_file_actions_t files;
    int failure;
    if (posix_spawn_file_actions_init(&files) != 0) return LS_FAIL(err, LS_ERR_NOMEM, "%s", argv[0]);
    failure = posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    if (failure == 0)
        failure =
            posix_spawn_file_actions_addopen(&files, STDERR_FILENO, complaints, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (failure == 0) failure = posix_spawnp(pid, argv[0], &files, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&files);
    if (failure != 0)
        return FAIL_AS(s, LS_FAILURE_NO_START, err, LS_ERR_UNSUPPORTED, "%s: cannot start: %s", argv[0],
                       strerror(failure));
    return LS_OK;
}

/* Waits for its end, looking more and more seldom. One that takes too long is ended. */
static ls_status wait_for(ls_program_subject *s, int *code, pid_t pid, double timeout, ls_error *err) {
    const double start = ls_clock_seconds();
    long nanoseconds = 1000000;
    for (;;) {
        const pid_t ended = waitpid(pid, code, timeout > 0.0 ? WNOHANG : 0);
        struct timespec pause = {0, nanoseconds};
        if (ended == pid) return LS_OK;
        if (ended < 0 && errno == EINTR) continue;
        if (ended < 0) return LS_FAIL(err, LS_ERR_UNSUPPORTED, "%s: %s", s->program, strerror(errno));
        if (ls_clock_seconds() - start > timeout) break;
        nanosleep(&pause, NULL);
        if (nanoseconds < 20000000) nanoseconds += nanoseconds / 4;
    }
    kill(pid, SIGKILL);
    while (waitpid(pid, code, 0) < 0 && errno == EINTR) continue;
    return FAIL_AS(s, LS_FAILURE_TIMED_OUT, err, LS_ERR_DEVICE, "%s: no end after %g s", s->program, timeout);
}

/* Runs it to its end. Records may be there though it ends with an error: some requests came to nothing then. */
static ls_status run_program(ls_program_subject *s, char *const *argv, const char *out, const char *complaints,
                             ls_error *err) {
    char why[256];
    pid_t pid;
    int code;
    LS_TRY(start_program(s, &pid, argv, complaints, err));
    LS_TRY(wait_for(s, &code, pid, s->timeout, err));
    if (WIFSIGNALED(code))
        return FAIL_AS(s, LS_FAILURE_DIED, err, LS_ERR_DEVICE, "%s: died of signal %d", argv[0], WTERMSIG(code));
    if (ls_file_exists(out)) return LS_OK;
    read_complaint(why, sizeof why, complaints);
    return FAIL_AS(s, LS_FAILURE_REFUSED, err, LS_ERR_UNSUPPORTED, "exit code %d: %s", WEXITSTATUS(code), why);
}

static ls_status take_record(ls_outcome *c, const ls_record *record, int64_t max_tokens, ls_error *err) {
    const int64_t n = record->n_completion;
    if (record->completion_ids == NULL || record->is_tokens || n > max_tokens || record->n_logprobs != n)
        return LS_FAIL(err, LS_ERR_FORMAT,
                       "record '%.100s': %" PRId64 " completion_ids and %" PRId64 " logprobs, %" PRId64
                       " of each at most",
                       record->id, n, record->n_logprobs, max_tokens);
    c->n = n;
    memcpy(c->completion, record->completion_ids, (size_t)n * sizeof *c->completion);
    memcpy(c->logprob, record->logprobs, (size_t)n * sizeof *c->logprob);
    if (record->finish != NULL && strcmp(record->finish, "error") == 0) c->failure = LS_FAILURE_GAVE_UP;
    c->slot = (int32_t)record->slot;
    c->n_hit = record->cache_hit;
    c->n_preempted = record->preemptions;
    for (int64_t i = 0; i < n; i++)
        if (record->logprob_missing[i])
            return LS_FAIL(err, LS_ERR_FORMAT, "record '%.100s': logprobs[%" PRId64 "] is missing", record->id, i);
    return LS_OK;
}

/* What the first record says of the suspect: whose numerics it has, and which levers it obeyed. */
static void hear(ls_outcomes *out, const ls_record *record, const ls_trial *trial, int protocol) {
    out->promises_nothing = record->digest == NULL;
    out->tells_levers = record->levers != NULL;
    for (int64_t i = 0; i < record->n_levers; i++) {
        const int64_t lever = ls_lever_find(record->levers[i].name);
        char text[WORD_BYTES];
        if (lever < 0) continue;
        ls_lever_format(text, sizeof text, &trial->levers, lever);
        if (is_left_open(trial, lever, protocol) || strcmp(text, record->levers[i].value) == 0)
            out->levers |= (uint64_t)1 << lever;
    }
}

/* In file order, which the ids must confirm. */
static ls_status take_records(ls_program_subject *s, ls_outcomes *out, const char *path, const ls_trial *trial,
                              ls_error *err) {
    const int64_t samples = trial->levers.samples;
    ls_record *records = NULL;
    int64_t n = 0;
    ls_status status;
    LS_TRY_DONE(ls_records_read(&records, &n, path, LS_RECORD_VALUE, err));
    if (n != out->n) {
        status = LS_FAIL(err, LS_ERR_FORMAT, "%" PRId64 " records for %" PRId64 " requests", n, out->n);
        goto done;
    }
    for (int64_t i = 0; i < n; i++) {
        char id[64];
        snprintf(id, sizeof id, "p%" PRId64 "/%" PRId64, i / samples, i % samples);
        if (strcmp(records[i].id, id) != 0) {
            status = FAIL_AS(s, LS_FAILURE_OTHER_IDS, err, LS_ERR_FORMAT, "record %" PRId64 " is '%.100s', not '%s'", i,
                             records[i].id, id);
            goto done;
        }
        LS_TRY_DONE(take_record(&out->of[i], &records[i], trial->max_tokens, err));
    }
    if (n > 0) hear(out, &records[0], trial, s->protocol);
done:
    ls_records_free(records, n);
    return status;
}

/* ---- a resident suspect ---- */

void ls_program_subject_end(ls_program_subject *s) {
    int code;
    if (s->pid == 0) return;
    close(s->pipe);
    kill(s->pid, SIGKILL);
    while (waitpid(s->pid, &code, 0) < 0 && errno == EINTR) continue;
    s->pid = 0;
}

/* Its standard input and output are one socket, so that writing to a dead one is an error and no signal. */
static ls_status spawn_resident(ls_program_subject *s, char *const *argv, int theirs, ls_error *err) {
    posix_spawn_file_actions_t files;
    pid_t pid;
    int failure;
    if (posix_spawn_file_actions_init(&files) != 0) return LS_FAIL(err, LS_ERR_NOMEM, "%s", argv[0]);
    failure = posix_spawn_file_actions_adddup2(&files, theirs, STDIN_FILENO);
    if (failure == 0) failure = posix_spawn_file_actions_adddup2(&files, theirs, STDOUT_FILENO);
    if (failure == 0) failure = posix_spawn_file_actions_addopen(&files, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    if (failure == 0) failure = posix_spawnp(&pid, argv[0], &files, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&files);
    if (failure != 0)
        return FAIL_AS(s, LS_FAILURE_NO_START, err, LS_ERR_UNSUPPORTED, "%s: cannot start: %s", argv[0],
                       strerror(failure));
    s->pid = (int)pid;
    return LS_OK;
}

enum { ANSWER_BYTES = 4096 };

/* It closed its end of the socket: how it ended, or that it did not. */
static ls_status tell_end(ls_program_subject *s, ls_error *err) {
    ls_error ignored;
    int code;
    const ls_status waited = wait_for(s, &code, s->pid, 1.0, &ignored);
    close(s->pipe);
    s->pid = 0;
    if (waited != LS_OK)
        return FAIL_AS(s, LS_FAILURE_DIED, err, LS_ERR_DEVICE, "%s: it closed its output without an answer",
                       s->program);
    if (WIFSIGNALED(code))
        return FAIL_AS(s, LS_FAILURE_DIED, err, LS_ERR_DEVICE, "%s: died of signal %d without an answer", s->program,
                       WTERMSIG(code));
    return FAIL_AS(s, LS_FAILURE_DIED, err, LS_ERR_DEVICE, "%s: ended with exit code %d without an answer", s->program,
                   WEXITSTATUS(code));
}

/* One line, without its newline. */
static ls_status hear_line(ls_program_subject *s, char *text, ls_error *err) {
    const double start = ls_clock_seconds();
    int n = 0;
    for (;;) {
        const double left = s->timeout > 0.0 ? s->timeout - (ls_clock_seconds() - start) : 3600.0;
        struct pollfd wait = {.fd = s->pipe, .events = POLLIN};
        ssize_t got;
        if (left <= 0.0)
            return FAIL_AS(s, LS_FAILURE_TIMED_OUT, err, LS_ERR_DEVICE, "%s: no answer after %g s", s->program,
                           s->timeout);
        if (poll(&wait, 1, (int)(left * 1000.0) + 1) < 0 && errno != EINTR)
            return LS_FAIL(err, LS_ERR_IO, "%s: %s", s->program, strerror(errno));
        if (!(wait.revents & (POLLIN | POLLHUP | POLLERR))) continue;
        got = read(s->pipe, text + n, 1);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return tell_end(s, err);
        if (text[n] == '\n') break;
        if (++n == ANSWER_BYTES) return LS_FAIL(err, LS_ERR_FORMAT, "%s: a line of more than %d bytes", s->program, n);
    }
    text[n] = '\0';
    return LS_OK;
}

static ls_status say(ls_program_subject *s, const char *text, size_t bytes, ls_error *err) {
    while (bytes > 0) {
        const ssize_t sent = send(s->pipe, text, bytes, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0 && errno == EPIPE) return tell_end(s, err);
        if (sent <= 0) return LS_FAIL(err, LS_ERR_DEVICE, "%s: %s", s->program, strerror(errno));
        text += sent;
        bytes -= (size_t)sent;
    }
    return LS_OK;
}

static ls_status start_resident(ls_program_subject *s, ls_error *err) {
    char line[ANSWER_BYTES + 1];
    int pair[2];
    ls_status status;
    words *w = calloc(1, sizeof *w);
    if (w == NULL) return LS_FAIL(err, LS_ERR_NOMEM, "command line");
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) {
        free(w);
        return LS_FAIL(err, LS_ERR_IO, "socket: %s", strerror(errno));
    }
    LS_TRY_DONE(add_word(w, s->program, err));
    LS_TRY_DONE(add_word(w, "serve", err));
    for (int64_t i = 0; i < s->n_more; i++) LS_TRY_DONE(add_word(w, s->more[i], err));
    LS_TRY_DONE(spawn_resident(s, w->argv, pair[1], err));
    s->pipe = pair[0];
    close(pair[1]); /* or its end would not be seen */
    pair[0] = pair[1] = -1;
    LS_TRY_DONE(hear_line(s, line, err));
    status = ls_resident_greeting(&s->protocol, line, s->program, err);
done:
    for (int i = 0; i < 2; i++)
        if (pair[i] >= 0) close(pair[i]);
    free(w);
    return status;
}

/* The words of a one-shot command line behind the program's name, as one line. */
static ls_status ask_resident(ls_program_subject *s, const words *w, ls_error *err) {
    char line[ANSWER_BYTES + 1];
    char *text = NULL;
    size_t bytes;
    FILE *file;
    ls_json_out json;
    ls_status status;
    if (s->pid == 0) LS_TRY(start_resident(s, err));
    file = open_memstream(&text, &bytes);
    if (file == NULL) return LS_FAIL(err, LS_ERR_NOMEM, "command line");
    ls_json_init(&json, file);
    ls_json_begin_object(&json, NULL);
    ls_json_begin_array(&json, "argv");
    for (int i = 1; i < w->n; i++) ls_json_string(&json, NULL, w->argv[i]);
    ls_json_end_array(&json);
    ls_json_end_object(&json);
    ls_json_newline(&json);
    fclose(file);
    LS_TRY_DONE(say(s, text, bytes, err));
    LS_TRY_DONE(hear_line(s, line, err));
    status = ls_resident_answer(line, s->program, err);
    if (status == LS_ERR_UNSUPPORTED) s->why = LS_FAILURE_REFUSED;
done:
    free(text);
    return status;
}

/* One that does not answer is ended, and started again for the next trial. */
static ls_status run_resident(ls_program_subject *s, const words *w, ls_error *err) {
    const ls_status status = ask_resident(s, w, err);
    if (status != LS_OK && status != LS_ERR_UNSUPPORTED) ls_program_subject_end(s);
    return status;
}

static void begin_trial(ls_program_subject *s, const ls_trial *trial) {
    s->timeout = (s->patience > 0.0 ? s->patience : 1.0) * trial->limits.timeout;
    s->why = LS_FAILURE_NONE;
}

static ls_status run_trial(void *context, const ls_trial *trial, const ls_prompt *prompts, int64_t n_prompts,
                           ls_outcomes *out, ls_error *err) {
    ls_program_subject *s = context;
    char in[PATH_BYTES], records[PATH_BYTES], complaints[PATH_BYTES];
    words *w = calloc(1, sizeof *w);
    const id_lines lines = {'p', "prompt_ids", prompts, n_prompts, trial->rounds};
    ls_status status;
    if (w == NULL) return LS_FAIL(err, LS_ERR_NOMEM, "command line");
    begin_trial(s, trial);
    snprintf(in, sizeof in, "%s/prompts.jsonl", s->directory);
    snprintf(records, sizeof records, "%s/records.jsonl", s->directory);
    snprintf(complaints, sizeof complaints, "%s/complaints", s->directory);
    if (trial->update) {
        status =
            LS_FAIL(err, LS_ERR_UNSUPPORTED, "a program that reads its model cannot be given new weights on the way");
        goto done;
    }
    if (s->resident && s->pid == 0 && (status = start_resident(s, err)) != LS_OK) { /* it says how levers are written */
        ls_program_subject_end(s);
        goto done;
    }
    LS_TRY_DONE(ls_json_save(in, fill_lines, &lines, err));
    LS_TRY_DONE(add_word(w, s->program, err));
    LS_TRY_DONE(add_word(w, "generate", err));
    LS_TRY_DONE(add_option(w, "model", s->model, err));
    LS_TRY_DONE(add_option(w, "prompts", in, err));
    LS_TRY_DONE(add_option(w, "out", records, err));
    LS_TRY_DONE(add_trial(w, trial, s->protocol, err));
    for (int64_t i = 0; !s->resident && i < s->n_more; i++) LS_TRY_DONE(add_word(w, s->more[i], err));
    if (s->resident)
        LS_TRY_DONE(run_resident(s, w, err));
    else
        LS_TRY_DONE(run_program(s, w->argv, records, complaints, err));
    LS_TRY_DONE(take_records(s, out, records, trial, err));
done:
    if (status != LS_OK) out->failures.whole = s->why;
    unlink(in);
    unlink(records);
    unlink(complaints);
    free(w);
    return status;
}

/* ---- a trainer ---- */

static ls_status write_tokens(const char *path, const ls_scored *list, int64_t n, ls_error *err) {
    id_lines lines = {'q', "token_ids", NULL, n, 1};
    ls_prompt *of = NULL;
    ls_status status;
    LS_TRY(ls_array_alloc((void **)&of, n, sizeof *of, "sequences", err));
    for (int64_t i = 0; i < n; i++) of[i] = (ls_prompt){list[i].tokens, list[i].n};
    lines.of = of;
    status = ls_json_save(path, fill_lines, &lines, err);
    free(of);
    return status;
}

static ls_status take_scores(const char *path, const ls_scored *list, int64_t n, ls_error *err) {
    ls_record *records = NULL;
    int64_t found = 0;
    ls_status status;
    LS_TRY_DONE(ls_records_read(&records, &found, path, LS_RECORD_LOGPROB, err));
    if (found != n) {
        status = LS_FAIL(err, LS_ERR_FORMAT, "%" PRId64 " records for %" PRId64 " sequences", found, n);
        goto done;
    }
    for (int64_t i = 0; i < n; i++) {
        char id[32];
        snprintf(id, sizeof id, "q%" PRId64, i);
        if (strcmp(records[i].id, id) != 0 || records[i].n_logprobs != list[i].n - 1) {
            status = LS_FAIL(err, LS_ERR_FORMAT,
                             "record %" PRId64 " is '%.100s' with %" PRId64 " logprobs, not '%s' with %" PRId64, i,
                             records[i].id, records[i].n_logprobs, id, list[i].n - 1);
            goto done;
        }
        for (int64_t t = 0; t < list[i].n - 1; t++)
            if (records[i].logprob_missing[t]) {
                status = LS_FAIL(err, LS_ERR_FORMAT, "record '%s': logprobs[%" PRId64 "] is missing", id, t);
                goto done;
            }
        memcpy(list[i].values, records[i].logprobs, (size_t)(list[i].n - 1) * sizeof *list[i].values);
    }
done:
    ls_records_free(records, found);
    return status;
}

static ls_status score_by_program(void *context, const ls_trial *trial, const ls_scored *list, int64_t n,
                                  ls_error *err) {
    ls_program_subject *s = context;
    char in[PATH_BYTES], records[PATH_BYTES], complaints[PATH_BYTES], text[WORD_BYTES];
    words *w = calloc(1, sizeof *w);
    ls_status status;
    if (w == NULL) return LS_FAIL(err, LS_ERR_NOMEM, "command line");
    begin_trial(s, trial);
    snprintf(in, sizeof in, "%s/tokens.jsonl", s->directory);
    snprintf(records, sizeof records, "%s/scores.jsonl", s->directory);
    snprintf(complaints, sizeof complaints, "%s/complaints", s->directory);
    LS_TRY_DONE(write_tokens(in, list, n, err));
    LS_TRY_DONE(add_word(w, s->program, err));
    LS_TRY_DONE(add_word(w, "score", err));
    LS_TRY_DONE(add_option(w, "model", s->model, err));
    LS_TRY_DONE(add_option(w, "tokens", in, err));
    LS_TRY_DONE(add_option(w, "out", records, err));
    ls_double_show(text, ls_float_plain(trial->sampling.temperature));
    LS_TRY_DONE(add_setting(w, "temperature", text, err));
    LS_TRY_DONE(add_option(w, "logprobs", trial->logprob_of == LS_LOGPROB_RAW ? "raw" : "processed", err));
    LS_TRY_DONE(add_option(w, "dtype", ls_dtype_name(trial->dtype), err));
    for (int64_t i = 0; !s->resident && i < s->n_more; i++) LS_TRY_DONE(add_word(w, s->more[i], err));
    if (s->resident)
        LS_TRY_DONE(run_resident(s, w, err));
    else
        LS_TRY_DONE(run_program(s, w->argv, records, complaints, err));
    LS_TRY_DONE(take_scores(records, list, n, err));
done:
    if (status != LS_OK) ls_error_prefix(err, "trainer");
    unlink(in);
    unlink(records);
    unlink(complaints);
    free(w);
    return status;
}

ls_scorer ls_scorer_program(ls_program_subject *program) {
    const ls_scorer scorer = {program, score_by_program};
    return scorer;
}

ls_subject ls_subject_program(ls_program_subject *program) {
    const ls_subject subject = {.context = program, .run = run_trial, .is_program = true};
    return subject;
}
