/* Problems to prompts, rounds of the engine, rewards. Owns tokens and texts of all episodes. */
#include "rl/episode.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "rl/dialogue.h"
#include "rl/environment.h"

ls_status ls_episodes_create(ls_episodes **out, int64_t n_problems, int64_t samples, int64_t length, int64_t max_tokens,
                             ls_error *err) {
    ls_episodes *e = NULL;
    int64_t total;
    ls_status status;
    *out = NULL;
    LS_TRY_DONE(ls_array_alloc((void **)&e, 1, sizeof *e, "episodes", err));
    e->n_problems = n_problems;
    e->samples = samples;
    e->length = length;
    e->max_tokens = max_tokens;
    if (!ls_mul_i64(n_problems, samples, &e->n) || !ls_mul_i64(e->n, length, &total)) {
        status = LS_FAIL(err, LS_ERR_NOMEM, "%lld prompts of %lld samples and %lld tokens do not fit",
                         (long long)n_problems, (long long)samples, (long long)length);
        goto done;
    }
    LS_TRY_DONE(ls_array_alloc((void **)&e->list, e->n, sizeof *e->list, "episodes", err));
    LS_TRY_DONE(ls_array_alloc((void **)&e->problems, n_problems, sizeof *e->problems, "problems", err));
    LS_TRY_DONE(ls_array_alloc((void **)&e->prompts, n_problems, sizeof *e->prompts, "problems", err));
    LS_TRY_DONE(ls_array_alloc((void **)&e->chats, n_problems, sizeof *e->chats, "problems", err));
    LS_TRY_DONE(ls_array_alloc((void **)&e->names, n_problems, sizeof *e->names, "problems", err));
    LS_TRY_DONE(ls_array_alloc((void **)&e->requests, e->n, sizeof *e->requests, "requests", err));
    LS_TRY_DONE(ls_array_alloc((void **)&e->taken, e->n, sizeof *e->taken, "requests", err));
    LS_TRY_DONE(ls_array_alloc((void **)&e->stops, e->n, sizeof *e->stops, "stop texts", err));
    LS_TRY_DONE(ls_array_alloc((void **)&e->owners, e->n, sizeof *e->owners, "requests", err));
    LS_TRY_DONE(ls_array_alloc((void **)&e->items, e->n, sizeof *e->items, "rewards", err));
    LS_TRY_DONE(ls_array_alloc((void **)&e->results, e->n, sizeof *e->results, "rewards", err));
    LS_TRY_DONE(ls_array_alloc((void **)&e->tokens, total, sizeof *e->tokens, "tokens", err));
    LS_TRY_DONE(ls_array_alloc((void **)&e->logprobs, total, sizeof *e->logprobs, "log-probabilities", err));
    LS_TRY_DONE(ls_array_alloc((void **)&e->drawn, total, 1, "tokens", err));
    LS_TRY_DONE(ls_array_alloc((void **)&e->kept, total, sizeof *e->kept, "log-probabilities", err));
    LS_TRY_DONE(ls_array_alloc((void **)&e->log_masses, total, sizeof *e->log_masses, "log-probabilities", err));
    *out = e;
    e = NULL;
done:
    ls_episodes_free(e);
    return status;
}

ls_status ls_episodes_date(ls_episodes *e, ls_error *err) {
    return ls_array_alloc((void **)&e->versions, e->n * e->length, sizeof *e->versions, "versions", err);
}

static void free_replies(ls_episode *x) {
    for (int64_t k = 0; k < x->n_replies; k++) {
        free((char *)(uintptr_t)x->replies[k].text);
        free((char *)(uintptr_t)x->observations[k].text);
    }
    x->n_replies = 0;
    free(x->rendered);
    x->rendered = NULL;
}

/* What an environment began problem p with. */
static void free_prompt(ls_episodes *e, int64_t p) {
    if (e->prompts != NULL) {
        free((char *)(uintptr_t)e->prompts[p].text);
        e->prompts[p] = (ls_reply){0};
    }
    if (e->chats != NULL) {
        free(e->chats[p]);
        e->chats[p] = NULL;
    }
}

static void free_texts(ls_episodes *e) {
    for (int64_t i = 0; e->list != NULL && i < e->n; i++) free_replies(&e->list[i]);
    for (int64_t p = 0; p < e->n_problems; p++) free_prompt(e, p);
}

void ls_episodes_free(ls_episodes *e) {
    if (e == NULL) return;
    free_texts(e);
    free(e->list);
    free(e->problems);
    free(e->prompts);
    free((void *)e->chats);
    free(e->names);
    free(e->requests);
    free(e->taken);
    free(e->stops);
    free(e->owners);
    free(e->items);
    free(e->results);
    free(e->tokens);
    free(e->logprobs);
    free(e->drawn);
    free(e->kept);
    free(e->log_masses);
    free(e->versions);
    free(e);
}

void ls_episode_id(char out[LS_EPISODE_ID_MAX], const ls_episode *e) {
    snprintf(out, LS_EPISODE_ID_MAX, "%s#%u", e->question.id, e->sample_i);
}

/* ---- prompts ---- */

static ls_status encode_prompt(ls_episodes *e, const ls_world *w, ls_episode *first, ls_error *err) {
    const ls_question *q = &first->question;
    int32_t *ids = NULL;
    int64_t n = 0;
    ls_status status;
    LS_TRY_DONE(ls_tokenizer_encode(w->tokenizer, q->prompt.text, q->prompt.bytes, !q->is_chat, &ids, &n, err));
    if (n == 0 || n >= e->length) {
        status = LS_FAIL(err, LS_ERR_CAPACITY, "a prompt of %lld tokens; sequences have at most %lld (length)%s",
                         (long long)n, (long long)e->length,
                         w->data != NULL && n > 0 ? "; overlong_prompts=leave_out leaves out such lines" : "");
        goto done;
    }
    for (int64_t k = 0; k < e->samples; k++) {
        memcpy(first[k].tokens, ids, (size_t)n * sizeof *ids);
        memset(first[k].drawn, 0, (size_t)e->length);
        first[k].n = first[k].n_prompt = n;
    }
done:
    if (status != LS_OK) ls_error_prefix(err, "%s", q->id);
    free(ids);
    return status;
}

/* Problem i of the split, in place p. */
static ls_status make_question(ls_question *out, ls_episodes *e, const ls_world *w, int64_t p, int64_t i,
                               ls_task_split split, ls_error *err) {
    ls_problem *problem = &e->problems[p];
    if (w->data != NULL) {
        const ls_data_line *line =
            ls_data_at(w->data, split == LS_TASK_SPLIT_TRAIN ? LS_DATA_TRAIN : LS_DATA_HELD_OUT, i);
        *out = (ls_question){line->id,
                             {line->prompt, line->prompt_bytes},
                             {line->answer, line->answer_bytes},
                             line->whole,
                             line->chat,
                             line->is_chat,
                             line->is_list,
                             line->max_tokens};
        if (e->prompts[p].text == NULL) return LS_OK;
        out->prompt = e->prompts[p]; /* an environment has its own */
        out->chat = e->chats[p];
        out->is_chat = e->chats[p] != NULL;
        return LS_OK;
    }
    if (w->task == NULL) {
        snprintf(e->names[p], sizeof e->names[p], "environment/%s/%lld",
                 split == LS_TASK_SPLIT_TRAIN ? "train" : "held-out", (long long)i);
        *out = (ls_question){
            .id = e->names[p], .prompt = e->prompts[p], .chat = e->chats[p], .is_chat = e->chats[p] != NULL};
        return LS_OK;
    }
    LS_TRY(ls_task_make(problem, w->task, split, i, err));
    *out = (ls_question){problem->id,
                         {problem->prompt, (int64_t)strlen(problem->prompt)},
                         {problem->answer[0] != '\0' ? problem->answer : NULL, (int64_t)strlen(problem->answer)},
                         NULL,
                         NULL,
                         false,
                         false,
                         0};
    return LS_OK;
}

/* What the environment says to begin the problems of `open` with, of which the first is problem `first`: always
 * without data, with data where it is asked. */
static ls_status reset(ls_episodes *e, const ls_world *w, ls_task_split split, const uint8_t *open, int64_t first,
                       ls_error *err) {
    ls_question *questions = NULL;
    ls_reply *prompts = NULL;
    char **chats = NULL;
    int64_t n = 0;
    ls_status status = LS_OK;
    if (w->environment == NULL || (w->data != NULL && !ls_reward_wants_resets(w->environment))) return LS_OK;
    LS_TRY_DONE(ls_array_alloc((void **)&questions, e->n_problems, sizeof *questions, "problems", err));
    LS_TRY_DONE(ls_array_alloc((void **)&prompts, e->n_problems, sizeof *prompts, "problems", err));
    LS_TRY_DONE(ls_array_alloc((void **)&chats, e->n_problems, sizeof *chats, "problems", err));
    for (int64_t p = 0; p < e->n_problems; p++) {
        if (open[p] == 0) continue;
        free_prompt(e, p);
        if (w->data != NULL) LS_TRY_DONE(make_question(&questions[n], e, w, p, first + n, split, err));
        n++;
    }
    status = ls_environment_reset(w, split, first, n, w->data != NULL ? questions : NULL, prompts, chats, err);
    n = 0;
    for (int64_t p = 0; p < e->n_problems; p++) { /* also of one that failed: from here on they are freed there */
        if (open[p] == 0) continue;
        e->prompts[p] = prompts[n];
        e->chats[p] = chats[n++];
    }
done:
    free(questions);
    free(prompts);
    free((void *)chats);
    return status;
}

/* Which line of the data problem i is. */
static void tell_line(const ls_world *w, ls_task_split split, int64_t i, ls_error *err) {
    const ls_data_line *line;
    const char *path;
    if (w->data == NULL || err == NULL) return;
    i = ls_data_index(w->data, split == LS_TASK_SPLIT_TRAIN ? LS_DATA_TRAIN : LS_DATA_HELD_OUT, i);
    if (ls_data_each(w->data, i, &line, &path)) ls_error_prefix(err, "%s: line %lld", path, (long long)line->line);
}

/* The group in place p as problem i. */
static ls_status begin_group(ls_episodes *e, const ls_world *w, int64_t p, int64_t i, ls_task_split split,
                             ls_error *err) {
    ls_episode *group = e->list + p * e->samples;
    ls_question question;
    ls_status status;
    LS_TRY(make_question(&question, e, w, p, i, split, err));
    for (int64_t k = 0; k < e->samples; k++) {
        const int64_t at = (p * e->samples + k) * e->length;
        group[k] = (ls_episode){.problem = w->task != NULL ? &e->problems[p] : NULL,
                                .question = question,
                                .prompt_i = (uint32_t)(e->first_problem + p),
                                .sample_i = (uint32_t)k,
                                .tokens = e->tokens + at,
                                .logprob = e->logprobs + at,
                                .drawn = e->drawn + at,
                                .kept = e->kept + at,
                                .log_mass = e->log_masses + at,
                                .version = e->versions != NULL ? e->versions + at : NULL,
                                .reward = (double)NAN,
                                .slot = -1};
    }
    status = encode_prompt(e, w, group, err);
    if (status != LS_OK) tell_line(w, split, i, err);
    return status;
}

/* Problems from `first` on, in the places of `open`. */
static ls_status begin_groups(ls_episodes *e, const ls_world *w, ls_task_split split, const uint8_t *open,
                              int64_t first, ls_error *err) {
    LS_TRY(reset(e, w, split, open, first, err));
    for (int64_t p = 0; p < e->n_problems; p++)
        if (open[p] != 0) LS_TRY(begin_group(e, w, p, first++, split, err));
    return LS_OK;
}

ls_status ls_episodes_begin(ls_episodes *e, const ls_world *w, ls_task_split split, int64_t first, ls_error *err) {
    uint8_t *all;
    ls_status status;
    free_texts(e);
    e->first_problem = first;
    e->n_failed = 0;
    e->is_numbered = false;
    e->message[0] = '\0';
    LS_TRY(ls_array_alloc((void **)&all, e->n_problems, 1, "problems", err));
    memset(all, 1, (size_t)e->n_problems);
    status = begin_groups(e, w, split, all, first, err);
    free(all);
    return status;
}

ls_status ls_episodes_renew(ls_episodes *e, const ls_world *w, ls_task_split split, const uint8_t *open, int64_t first,
                            ls_error *err) {
    for (int64_t i = 0; i < e->n; i++) {
        ls_episode *x = &e->list[i];
        x->is_fixed = open[i / e->samples] == 0;
        if (!x->is_fixed) free_replies(x);
    }
    return begin_groups(e, w, split, open, first, err);
}

/* ---- turns ---- */

/* The episode's next completion as request number k of the round. */
static void ask(ls_episodes *e, const ls_world *w, int64_t episode_i, int64_t k) {
    ls_episode *x = &e->list[episode_i];
    const int64_t own = x->question.max_tokens > 0 ? x->question.max_tokens : e->max_tokens;
    const int64_t room = ls_min_i64(e->length - x->n, own);
    e->owners[k] = episode_i;
    e->taken[k] = 0;
    e->requests[k] = (ls_request){.prompt = x->tokens,
                                  .n_prompt = x->n,
                                  .prompt_i = x->prompt_i,
                                  .sample_i = x->sample_i,
                                  .max_tokens = e->max_tokens < room ? e->max_tokens : room,
                                  .completion = x->tokens + x->n,
                                  .logprob = x->logprob + x->n};
    if (e->weighs) {
        e->requests[k].kept = x->kept + x->n;
        e->requests[k].log_mass = x->log_mass + x->n;
    }
    if (e->versions != NULL) e->requests[k].weights = x->version + x->n;
    if (w->stop == NULL) return;
    ls_stop_begin(&e->stops[k], w->stop);
    e->requests[k].stop = ls_stop_reached;
    e->requests[k].stop_context = &e->stops[k];
}

/* Text of ids; those that the tokenizer does not know have none. */
static ls_status decode(const ls_tokenizer *tokenizer, const int32_t *ids, int64_t n, ls_reply *out, ls_error *err) {
    char *text = NULL;
    int64_t bytes = 0;
    const ls_status status = ls_tokenizer_decode_known(tokenizer, ids, n, true, &text, &bytes, err);
    *out = (ls_reply){status == LS_OK ? text : NULL, bytes};
    return status;
}

/* Tokens that are given, behind what there is; the episode ends where there is no room for them and a token more. */
static void append(ls_episodes *e, ls_episode *x, const int32_t *ids, int64_t n) {
    if (n >= e->length - x->n) {
        x->ended = x->overlong = true;
        return;
    }
    if (n > 0) memcpy(x->tokens + x->n, ids, (size_t)n * sizeof *ids);
    x->n += n;
}

/* Text of an environment. */
static ls_status append_text(ls_episodes *e, const ls_world *w, ls_episode *x, const char *text, int64_t bytes,
                             ls_error *err) {
    int32_t *ids = NULL;
    int64_t n = 0;
    LS_TRY(ls_tokenizer_encode(w->tokenizer, text, bytes, false, &ids, &n, err));
    append(e, x, ids, n);
    free(ids);
    return LS_OK;
}

void ls_episodes_note(ls_episodes *e, const char *id, const char *text) {
    if (e->message[0] == '\0' && text[0] != '\0')
        snprintf(e->message, sizeof e->message, "%s%s%.400s", id, id[0] != '\0' ? ": " : "", text);
}

/* Messages of an environment. */
static ls_status append_messages(ls_episodes *e, const ls_world *w, ls_episode *x, ls_error *err) {
    char id[LS_EPISODE_ID_MAX];
    int32_t *ids = NULL;
    int64_t n = 0;
    bool failed;
    ls_error why;
    const ls_status status = ls_dialogue_next(&ids, &n, &failed, w, x, &why);
    ls_episode_id(id, x);
    if (status == LS_OK) {
        append(e, x, ids, n);
    } else if (failed) {
        x->failed = x->ended = true;
        ls_episodes_note(e, id, why.text);
    } else {
        return LS_FAIL(err, status, "%s: %s", id, why.text);
    }
    free(ids);
    return LS_OK;
}

/* What the task says to the last completion; the episode ends where it cannot go on. */
static ls_status answer(ls_episodes *e, const ls_world *w, ls_episode *x, ls_error *err) {
    ls_turn turn;
    if (w->environment != NULL) return LS_OK; /* all episodes are asked for together */
    x->ended = x->overlong || x->n_replies == LS_TURNS_MAX || w->task == NULL;
    if (x->ended) return LS_OK;
    ls_task_turn(&turn, w->task, x->problem, x->replies, x->n_replies);
    x->ended = turn.end;
    if (turn.end) return LS_OK;
    return append_text(e, w, x, turn.text, (int64_t)strlen(turn.text), err);
}

/* One answer of the environment. */
static ls_status take_answer(ls_episodes *e, const ls_world *w, ls_episode *x, ls_environment_answer *a, bool ends,
                             ls_error *err) {
    x->observations[x->n_replies - 1] = a->said; /* from here on the episode frees it */
    x->are_messages[x->n_replies - 1] = a->are_messages;
    if (!isnan(a->reward)) {
        x->earned += a->reward;
        x->is_judged = true;
    }
    x->failed = x->failed || a->failed;
    x->ended = ends || a->failed || a->done;
    if (x->ended) return LS_OK;
    if (a->said.text == NULL) {
        x->failed = x->ended = true; /* a turn needs something to answer to */
        return LS_OK;
    }
    if (a->are_messages) return append_messages(e, w, x, err);
    return append_text(e, w, x, a->said.text, a->said.bytes, err);
}

/* Asks the environment for episodes owners[0..n), those that end by themselves for the last time. */
static ls_status ask_environment(ls_episodes *e, const ls_world *w, const int64_t *owners, int64_t n, bool all_end,
                                 ls_error *err) {
    const ls_episode **episodes = NULL;
    char(*names)[LS_EPISODE_ID_MAX] = NULL;
    bool *ends = NULL;
    ls_environment_answer *answers = NULL;
    ls_status status;
    LS_TRY_DONE(ls_array_alloc((void **)&episodes, n, sizeof *episodes, "environment", err));
    LS_TRY_DONE(ls_array_alloc((void **)&names, n, sizeof *names, "environment", err));
    LS_TRY_DONE(ls_array_alloc((void **)&ends, n, sizeof *ends, "environment", err));
    LS_TRY_DONE(ls_array_alloc((void **)&answers, n, sizeof *answers, "environment", err));
    for (int64_t i = 0; i < n; i++) {
        episodes[i] = &e->list[owners[i]];
        ls_episode_id(names[i], episodes[i]);
        ends[i] = all_end || episodes[i]->overlong || episodes[i]->n_replies >= w->turns_max;
    }
    const ls_environment_call call = {episodes, names, ends, n, e->items, e->results};
    LS_TRY_DONE(ls_environment_ask(w->environment, &call, answers, err));
    ls_episodes_note(e, "", ls_reward_counts_of(w->environment)->message);
    for (int64_t i = 0; i < n; i++) {
        if (status != LS_OK) {
            free((char *)(uintptr_t)answers[i].said.text);
            continue;
        }
        status = take_answer(e, w, &e->list[owners[i]], &answers[i], ends[i], err);
    }
done:
    free((void *)episodes);
    free(names);
    free(ends);
    free(answers);
    return status;
}

/* Episodes for whose observation there was no room have an end without a reward: they are asked for once more. */
static ls_status ask_the_cut(ls_episodes *e, const ls_world *w, int64_t begin, int64_t end, ls_error *err) {
    int64_t n = 0;
    for (int64_t i = begin; i < end; i++) {
        const ls_episode *x = &e->list[i];
        if (x->overlong && !x->failed && !x->is_judged && !x->is_fixed) e->owners[n++] = i;
    }
    for (int64_t i = 0; i < n; i++) {
        ls_reply *last = &e->list[e->owners[i]].observations[e->list[e->owners[i]].n_replies - 1];
        free((char *)(uintptr_t)last->text); /* it was never said */
        *last = (ls_reply){0};
    }
    return n > 0 ? ask_environment(e, w, e->owners, n, true, err) : LS_OK;
}

static ls_status take(ls_episodes *e, const ls_world *w, ls_episode *x, const ls_request *r, ls_error *err) {
    char id[LS_EPISODE_ID_MAX];
    ls_status status;
    ls_episode_id(id, x);
    if (r->finish != LS_FINISH_STOP && r->finish != LS_FINISH_LENGTH)
        return LS_FAIL(err, r->error.status != LS_OK ? r->error.status : LS_ERR_ARG, "%s: ends by %s: %s", id,
                       ls_finish_name(r->finish), r->error.status != LS_OK ? r->error.text : "");
    LS_TRY_DONE(decode(w->tokenizer, r->completion, r->n_completion, &x->replies[x->n_replies], err));
    x->n_replies++;
    memset(x->drawn + x->n, 1, (size_t)r->n_completion);
    x->n += r->n_completion;
    x->n_drawn += r->n_completion;
    x->overlong = r->finish == LS_FINISH_LENGTH;
    x->slot = r->slot;
    x->n_hit = r->n_hit;
    x->n_preempted += r->n_preempted;
    LS_TRY_DONE(answer(e, w, x, err));
done:
    return status;
}

/* The episode is there for who judges it, and with the last of its group the group. */
static void feed_ended(ls_episodes *e, int64_t i) {
    const int64_t n = e->feeds_groups ? e->samples : 1, first = i / n * n;
    for (int64_t k = first; k < first + n; k++)
        if (!e->list[k].ended) return;
    for (int64_t k = first; k < first + n; k++) ls_feed_put(e->feed, k);
}

ls_status ls_episodes_finish(ls_episodes *e, const ls_world *w, int64_t k, ls_error *err) {
    ls_episode *x = &e->list[e->owners[k]];
    if (e->taken[k] != 0) return LS_OK;
    e->taken[k] = 1;
    LS_TRY(take(e, w, x, &e->requests[k], err));
    if (x->ended && e->feed != NULL) feed_ended(e, e->owners[k]);
    return LS_OK;
}

ls_status ls_episodes_run(ls_episodes *e, const ls_world *w, const ls_drawer *drawer, int64_t begin, int64_t end,
                          ls_error *err) {
    for (;;) {
        int64_t n = 0;
        for (int64_t i = begin; i < end; i++)
            if (!e->list[i].ended) ask(e, w, i, n++);
        if (n == 0) break;
        LS_TRY(drawer->draw(drawer->context, e->requests, n, err));
        for (int64_t k = 0; k < n; k++) LS_TRY(ls_episodes_finish(e, w, k, err));
        if (w->environment != NULL) LS_TRY(ask_environment(e, w, e->owners, n, false, err));
    }
    return w->environment != NULL ? ask_the_cut(e, w, begin, end, err) : LS_OK;
}

/* ---- what others see of it ---- */

ls_status ls_episode_text(const ls_episode *x, char **out, int64_t *bytes, ls_error *err) {
    int64_t at = 0;
    *bytes = 0;
    for (int64_t k = 0; k < x->n_replies; k++) *bytes += x->replies[k].bytes;
    LS_TRY(ls_array_alloc((void **)out, *bytes + 1, 1, "completion", err));
    for (int64_t k = 0; k < x->n_replies; k++) {
        memcpy(*out + at, x->replies[k].text, (size_t)x->replies[k].bytes);
        at += x->replies[k].bytes;
    }
    return LS_OK;
}
