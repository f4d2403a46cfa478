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

#include "rl/reward_source.h"

/* What only environments are told. */
static void write_turn(ls_json_out *json, const ls_reward_item *item) {
    ls_json_string(json, "op", item->op);
    if (item->split != NULL) ls_json_string(json, "split", item->split);
    if (item->split != NULL) ls_json_int(json, "index", item->index);
    if (item->episode != NULL) ls_json_string(json, "episode", item->episode);
    if (item->turns != NULL) ls_json_raw(json, "turns", item->turns);
}

void ls_reward_write_item(ls_json_out *json, int64_t id, const ls_reward_item *item) {
    char text[24];
    snprintf(text, sizeof text, "%lld", (long long)id);
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
        for (int64_t i = 0; i < item->n_completion_ids; i++) ls_json_int(json, NULL, item->completion_ids[i]);
        ls_json_end_array(json);
    }
    if (item->group_n > 0) {
        ls_json_begin_object(json, "group");
        ls_json_int(json, "of", item->group);
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

void ls_reward_note(ls_reward *reward, const char *format, ...) {
    va_list args;
    if (reward->counts.message[0] != '\0') return;
    va_start(args, format);
    vsnprintf(reward->counts.message, sizeof reward->counts.message, format, args);
    va_end(args);
    make_one_line(reward->counts.message);
}

void ls_reward_fail(ls_reward_result *result, const char *text) {
    result->ok = false;
    result->reward = (double)NAN;
    snprintf(result->error, sizeof result->error, "%s", text);
    make_one_line(result->error);
}

int64_t ls_reward_resolve(ls_reward *reward, ls_reward_result *results, bool *done, int64_t n,
                          ls_reward_answer *answer) {
    const int64_t i = answer->id - reward->first_id;
    char *text = answer->text;
    answer->text = NULL;
    if (i < 0 || i >= n || done[i]) {
        free(text);
        reward->counts.strays++;
        ls_reward_note(reward, "an answer to an item that does not wait for one");
        return -1;
    }
    done[i] = true;
    if (reward->is_environment && answer->is_broken)
        ls_reward_fail(&results[i], answer->broken);
    else if (answer->ok || (reward->is_environment ? answer->is_turn : reward->takes_none && answer->is_none))
        results[i] = (ls_reward_result){.ok = true, .reward = answer->ok ? answer->reward : (double)NAN};
    else
        ls_reward_fail(&results[i], answer->error);
    if (reward->is_environment && results[i].ok) {
        results[i].done = answer->done;
        results[i].text = text;
        results[i].text_bytes = answer->text_bytes;
        results[i].are_messages = answer->are_messages;
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

ls_status ls_reward_ask(ls_reward *reward, ls_reward_result *results, const ls_reward_item *items, int64_t n,
                        ls_error *err) {
    ls_status status;
    sigset_t saved;
    bool was_pending;
    reward->counts.message[0] = '\0';
    if (n == 0) return LS_OK;
    reward->is_environment = items[0].op != NULL;
    for (int64_t i = 0; i < n; i++) {
        results[i] = (ls_reward_result){0};
        ls_reward_fail(&results[i], "no answer");
    }
    hold_sigpipe(&saved, &was_pending);
    status = reward->ask(reward, results, items, n, err);
    release_sigpipe(&saved, was_pending);
    reward->first_id += n;
    reward->counts.asked += n;
    for (int64_t i = 0; i < n; i++) {
        reward->counts.ok += results[i].ok;
        reward->counts.failed += !results[i].ok;
        if (!results[i].ok) ls_reward_note(reward, "%.80s: %s", ls_reward_item_name(&items[i]), results[i].error);
    }
    return status;
}

ls_status ls_reward_ask_late(ls_reward *reward, ls_reward_result *results, const ls_reward_item *items, int64_t n,
                             const ls_reward_late *late, ls_error *err) {
    ls_status status;
    LS_ASSERT(reward->takes_late, "items of a source that wants all of them at once");
    reward->late = late;
    status = ls_reward_ask(reward, results, items, n, err);
    reward->late = NULL;
    ls_feed_wait(late->feed);
    return status;
}

bool ls_reward_takes_late(const ls_reward *reward) { return reward->takes_late; }

void ls_reward_take_none(ls_reward *reward) { reward->takes_none = true; }

bool ls_reward_wants_groups(const ls_reward *reward) { return reward->wants_groups; }
bool ls_reward_wants_resets(const ls_reward *reward) { return reward->wants_resets; }

const ls_reward_counts *ls_reward_counts_of(const ls_reward *reward) { return &reward->counts; }

void ls_reward_close(ls_reward *reward) {
    if (reward != NULL) reward->close(reward);
}
