/* What all sources of rewards share: asking, counting, the form of an item. */
#define _POSIX_C_SOURCE 200809L
#include "rl/reward.h"

#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/mem.h"
#include "rl/reward_source.h"

/* What only environments are told. */
static void write_turn(ls_json_out *json, const ls_reward_item *item) {
    ls_json_string(json, "op", item->op);
    if (item->split != NULL) ls_json_string(json, "split", item->split);
    if (item->split != NULL) ls_json_int(json, "index", item->index);
    if (item->episode != NULL) ls_json_string(json, "episode", item->episode);
    if (item->turns != NULL) ls_json_raw(json, "turns", item->turns);
}

void ls_reward_write_item(ls_json_out *json, const ls_reward_questions *q, int64_t i) {
    const ls_reward_item *item = &q->items[i];
    char text[24];
    snprintf(text, sizeof text, "%lld", (long long)(q->first_id + i));
    ls_json_begin_object(json, NULL);
    ls_json_string(json, "id", text);
    if (item->op != NULL) write_turn(json, item);
    ls_json_string(json, "problem", item->problem);
    if (item->prompt.text != NULL) ls_json_text(json, "prompt", item->prompt.text, item->prompt.bytes);
    if (item->completion.text != NULL) ls_json_text(json, "completion", item->completion.text, item->completion.bytes);
    if (item->answer != NULL)
        ls_json_text(json, "answer", item->answer,
                     item->answer_bytes > 0 ? item->answer_bytes : (int64_t)strlen(item->answer));
    if (item->data != NULL) ls_json_raw(json, "data", item->data);
    if (item->prompt_messages != NULL) ls_json_raw(json, "prompt_messages", item->prompt_messages);
    if (item->completion_messages != NULL) ls_json_raw(json, "completion_messages", item->completion_messages);
    if (item->completion_ids != NULL) {
        ls_json_begin_array(json, "completion_ids");
        for (int64_t t = 0; t < item->n_completion_ids; t++) ls_json_int(json, NULL, item->completion_ids[t]);
        ls_json_end_array(json);
    }
    if (item->group_n > 0) {
        ls_json_begin_object(json, "group");
        ls_json_int(json, "of", q->first_id + item->group); /* no other ask's */
        ls_json_int(json, "n", item->group_n);
        ls_json_end_object(json);
    }
    ls_json_end_object(json);
}

const char *ls_reward_item_name(const ls_reward_item *item) {
    return item->sample != NULL ? item->sample : item->episode != NULL ? item->episode : item->problem;
}

/* What sources say goes into messages of one line. */
static void make_one_line(char *text) {
    for (; *text != '\0'; text++)
        if ((unsigned char)*text < ' ') *text = ' ';
}

void ls_reward_note(ls_reward_questions *q, const char *format, ...) {
    va_list args;
    if (q->counts.message[0] != '\0') return;
    va_start(args, format);
    vsnprintf(q->counts.message, sizeof q->counts.message, format, args);
    va_end(args);
    make_one_line(q->counts.message);
}

void ls_reward_fail(ls_reward_result *result, const char *text) {
    result->ok = false;
    result->reward = (double)NAN;
    snprintf(result->error, sizeof result->error, "%s", text);
    make_one_line(result->error);
}

int64_t ls_reward_resolve(ls_reward_asked *a, ls_reward_answer *answer) {
    const int64_t i = answer->id - a->q->first_id;
    char *text = answer->text;
    ls_reward_result *result;
    answer->text = NULL;
    if (i < 0 || i >= a->q->n || a->done[i]) {
        free(text);
        a->q->counts.strays++;
        ls_reward_note(a->q, "an answer to an item that does not wait for one");
        return -1;
    }
    a->done[i] = true;
    result = &a->q->results[i];
    if (a->is_environment && answer->is_broken)
        ls_reward_fail(result, answer->broken);
    else if (answer->ok || (a->is_environment ? answer->is_turn : a->takes_none && answer->is_none))
        *result = (ls_reward_result){.ok = true, .reward = answer->ok ? answer->reward : (double)NAN};
    else
        ls_reward_fail(result, answer->error);
    if (a->is_environment && result->ok) {
        result->done = answer->done;
        result->text = text;
        result->text_bytes = answer->text_bytes;
        result->are_messages = answer->are_messages;
    } else {
        free(text);
    }
    return i;
}

/* A source whose reader went away is an error of the write, not a signal, whatever the program does about SIGPIPE. */
static void hold_sigpipe(sigset_t *saved, bool *was_pending) {
    sigset_t pipe_set, pending;
    sigemptyset(&pipe_set);
    sigaddset(&pipe_set, SIGPIPE);
    sigpending(&pending);
    *was_pending = sigismember(&pending, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &pipe_set, saved);
}

static void release_sigpipe(const sigset_t *saved, bool was_pending) {
    static const struct timespec at_once = {0, 0};
    sigset_t pipe_set;
    sigemptyset(&pipe_set);
    sigaddset(&pipe_set, SIGPIPE);
    if (!was_pending) sigtimedwait(&pipe_set, NULL, &at_once);
    pthread_sigmask(SIG_SETMASK, saved, NULL);
}

void ls_reward_init(ls_reward *reward) { pthread_mutex_init(&reward->lock, NULL); }

void ls_reward_deinit(ls_reward *reward) { pthread_mutex_destroy(&reward->lock); }

int64_t ls_reward_number(ls_reward *reward, int64_t n) {
    int64_t first;
    pthread_mutex_lock(&reward->lock);
    first = reward->next_id;
    reward->next_id += n;
    pthread_mutex_unlock(&reward->lock);
    return first;
}

static void count_results(ls_reward_questions *q) {
    q->counts.asked = q->n;
    for (int64_t i = 0; i < q->n; i++) {
        q->counts.ok += q->results[i].ok;
        q->counts.failed += !q->results[i].ok;
        if (!q->results[i].ok) ls_reward_note(q, "%.80s: %s", ls_reward_item_name(&q->items[i]), q->results[i].error);
    }
}

static void add_counts(ls_reward *reward, const ls_reward_counts *c) {
    ls_reward_counts *sum = &reward->counts;
    pthread_mutex_lock(&reward->lock);
    sum->asked += c->asked;
    sum->ok += c->ok;
    sum->failed += c->failed;
    sum->retried += c->retried;
    sum->restarts += c->restarts;
    sum->unreadable += c->unreadable;
    sum->strays += c->strays;
    memcpy(sum->message, c->message, sizeof sum->message);
    pthread_mutex_unlock(&reward->lock);
}

static ls_status ask_source(ls_reward *reward, ls_reward_questions *q, ls_error *err) {
    ls_reward_asked asked = {.q = q, .is_environment = q->items[0].op != NULL, .takes_none = reward->takes_none};
    void *done = NULL;
    ls_status status;
    sigset_t saved;
    bool was_pending;
    LS_TRY(ls_array_alloc(&done, q->n, sizeof *asked.done, "rewards", err));
    asked.done = done;
    hold_sigpipe(&saved, &was_pending);
    status = reward->ask(reward, &asked, err);
    release_sigpipe(&saved, was_pending);
    free(done);
    return status;
}

ls_status ls_reward_ask_about(ls_reward *reward, ls_reward_questions *q, ls_error *err) {
    ls_status status = LS_OK;
    LS_ASSERT(q->late == NULL || reward->takes_late, "items of a source that wants all of them at once");
    q->counts = (ls_reward_counts){0};
    for (int64_t i = 0; i < q->n; i++) {
        q->results[i] = (ls_reward_result){0};
        ls_reward_fail(&q->results[i], "no answer");
    }
    if (q->n > 0) status = ask_source(reward, q, err);
    count_results(q);
    add_counts(reward, &q->counts);
    if (q->late != NULL) ls_feed_wait(q->late->feed);
    return status;
}

ls_status ls_reward_ask(ls_reward *reward, ls_reward_result *results, const ls_reward_item *items, int64_t n,
                        ls_error *err) {
    ls_reward_questions q = {.items = items, .results = results, .n = n, .first_id = ls_reward_number(reward, n)};
    return ls_reward_ask_about(reward, &q, err);
}

bool ls_reward_takes_late(const ls_reward *reward) { return reward->takes_late; }

void ls_reward_take_none(ls_reward *reward) { reward->takes_none = true; }

bool ls_reward_wants_groups(const ls_reward *reward) { return reward->wants_groups; }
bool ls_reward_wants_resets(const ls_reward *reward) { return reward->wants_resets; }

const ls_reward_counts *ls_reward_counts_of(const ls_reward *reward) { return &reward->counts; }

void ls_reward_close(ls_reward *reward) {
    if (reward != NULL) reward->close(reward);
}
