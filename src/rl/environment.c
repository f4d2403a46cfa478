/* What environments are asked and what they say. Owns the texts of questions while they are asked. */
#define _POSIX_C_SOURCE 200809L
#include "rl/environment.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "json/json_out.h"
#include "rl/dialogue.h"

static const char *split_name(ls_task_split split) { return split == LS_TASK_SPLIT_TRAIN ? "train" : "held-out"; }

/* What was said of one problem. */
static ls_status take_prompt(const ls_world *w, ls_reward_result *r, const ls_question *q, ls_reply *prompt,
                             char **chat, ls_error *err) {
    if (!r->ok) return LS_FAIL(err, LS_ERR_IO, "%s", r->error);
    if (r->text == NULL && q != NULL) return LS_OK;
    if (r->text == NULL || r->text_bytes == 0) return LS_FAIL(err, LS_ERR_IO, "the answer has no prompt");
    if (r->are_messages) {
        if (q != NULL && q->chat != NULL) {
            LS_TRY(ls_dialogue_replace(chat, q->chat, r->text, err));
        } else {
            *chat = r->text;
            r->text = NULL;
        }
        return ls_dialogue_begin(prompt, w, *chat, err);
    }
    *prompt = (ls_reply){r->text, r->text_bytes};
    r->text = NULL;
    return LS_OK;
}

/* The question of data as an item; lists is what is released with free(). */
static ls_status ask_question(ls_reward_item *item, char **lists, const ls_question *q, ls_error *err) {
    if (q->chat != NULL) LS_TRY(ls_dialogue_messages(lists, q->chat, err));
    item->problem = q->id;
    item->prompt = q->prompt;
    item->answer = q->answer.text;
    item->answer_bytes = q->answer.bytes;
    item->data = q->whole;
    item->prompt_messages = *lists;
    return LS_OK;
}

ls_status ls_environment_reset(const ls_world *w, ls_task_split split, int64_t first, int64_t n,
                               const ls_question *questions, ls_reply *prompts, char **chats, ls_error *err) {
    ls_reward_item *items = NULL;
    ls_reward_result *results = NULL;
    char(*names)[LS_PROBLEM_ID_MAX] = NULL, **lists = NULL;
    ls_status status;
    LS_TRY_DONE(ls_array_alloc((void **)&items, n, sizeof *items, "environment", err));
    LS_TRY_DONE(ls_array_alloc((void **)&results, n, sizeof *results, "environment", err));
    LS_TRY_DONE(ls_array_alloc((void **)&names, n, sizeof *names, "environment", err));
    LS_TRY_DONE(ls_array_alloc((void **)&lists, n, sizeof *lists, "environment", err));
    for (int64_t i = 0; i < n; i++) {
        snprintf(names[i], sizeof names[i], "environment/%s/%lld", split_name(split), (long long)(first + i));
        items[i] = (ls_reward_item){.problem = names[i], .op = "reset", .split = split_name(split), .index = first + i};
        if (questions != NULL) LS_TRY_DONE(ask_question(&items[i], &lists[i], &questions[i], err));
    }
    LS_TRY_DONE(ls_reward_ask(w->environment, results, items, n, err));
    for (int64_t i = 0; i < n && status == LS_OK; i++) {
        status = take_prompt(w, &results[i], questions != NULL ? &questions[i] : NULL, &prompts[i], &chats[i], err);
        if (status != LS_OK)
            ls_error_prefix(err, "environment: reset of problem %lld (%s)", (long long)(first + i), split_name(split));
    }
done:
    for (int64_t i = 0; results != NULL && i < n; i++) free(results[i].text);
    for (int64_t i = 0; lists != NULL && i < n; i++) free(lists[i]);
    free((void *)lists);
    free(items);
    free(results);
    free(names);
    return status;
}

/* What was said to completion k, if anything. */
static void write_said(ls_json_out *json, const ls_episode *x, int64_t k) {
    const ls_reply *said = &x->observations[k];
    char *list = NULL;
    if (said->text == NULL) return;
    if (!x->are_messages[k]) {
        ls_json_text(json, "observation", said->text, said->bytes);
    } else if (ls_dialogue_messages(&list, said->text, NULL) == LS_OK) {
        ls_json_raw(json, "messages", list);
        free(list);
    }
}

ls_status ls_environment_turns(const ls_episode *x, char **out, ls_error *err) {
    size_t bytes = 0;
    ls_json_out json;
    FILE *stream = open_memstream(out, &bytes);
    if (stream == NULL) return LS_FAIL(err, LS_ERR_NOMEM, "turns of an episode");
    ls_json_init(&json, stream);
    ls_json_begin_array(&json, NULL);
    for (int64_t k = 0; k < x->n_replies; k++) {
        ls_json_begin_object(&json, NULL);
        ls_json_text(&json, "completion", x->replies[k].text, x->replies[k].bytes);
        write_said(&json, x, k);
        ls_json_end_object(&json);
    }
    ls_json_end_array(&json);
    return fclose(stream) == 0 ? LS_OK : LS_FAIL(err, LS_ERR_NOMEM, "turns of an episode");
}

static void take_answer(ls_environment_answer *out, ls_reward_result *r) {
    *out = (ls_environment_answer){.failed = !r->ok,
                                   .done = r->done,
                                   .reward = r->ok ? r->reward : (double)NAN,
                                   .said = {r->text, r->text_bytes},
                                   .are_messages = r->are_messages,
                                   .error = r->error};
    r->text = NULL;
}

ls_status ls_environment_ask(ls_reward *environment, const ls_environment_call *call, ls_environment_answer *answers,
                             ls_error *err) {
    const int64_t n = call->n;
    char **turns = NULL, **lists = NULL;
    ls_status status;
    LS_TRY_DONE(ls_array_alloc((void **)&turns, n, sizeof *turns, "environment", err));
    LS_TRY_DONE(ls_array_alloc((void **)&lists, n, sizeof *lists, "environment", err));
    for (int64_t i = 0; i < n; i++) {
        const ls_question *q = &call->episodes[i]->question;
        LS_TRY_DONE(ls_environment_turns(call->episodes[i], &turns[i], err));
        call->items[i] =
            (ls_reward_item){.op = call->ends[i] ? "end" : "step", .episode = call->names[i], .turns = turns[i]};
        LS_TRY_DONE(ask_question(&call->items[i], &lists[i], q, err));
    }
    LS_TRY_DONE(ls_reward_ask(environment, call->results, call->items, n, err));
    for (int64_t i = 0; i < n; i++) take_answer(&answers[i], &call->results[i]);
done:
    for (int64_t i = 0; turns != NULL && i < n; i++) free(turns[i]);
    for (int64_t i = 0; lists != NULL && i < n; i++) free(lists[i]);
    free((void *)turns);
    free((void *)lists);
    return status;
}
