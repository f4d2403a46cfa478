/* Rewards of episodes: each judge is asked, and what they said is added. */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "rl/dialogue.h"
#include "rl/episode.h"

/* One episode as an item of a source, or of none; lists: its messages, released with free(). */
static ls_status make_item(ls_reward_item *out, const ls_episodes *e, const ls_world *w, const ls_reward *source,
                           int64_t i, char *lists[2], const char *name, ls_error *err) {
    const ls_episode *x = &e->list[i];
    const bool is_reported = source != NULL && x->question.chat != NULL;
    char *text = NULL;
    int64_t bytes = 0;
    LS_TRY(ls_episode_text(x, &text, &bytes, err));
    *out = (ls_reward_item){.problem = x->question.id,
                            .sample = name,
                            .prompt = x->question.prompt,
                            .completion = {text, bytes},
                            .answer = x->question.answer.text,
                            .answer_bytes = x->question.answer.bytes,
                            .data = x->question.whole};
    if (is_reported) LS_TRY(ls_dialogue_messages(&lists[0], x->question.chat, err));
    if (is_reported) LS_TRY(ls_dialogue_said(&lists[1], w, x, err));
    out->prompt_messages = lists[0];
    out->completion_messages = lists[1];
    if (source == NULL || !ls_reward_wants_groups(source)) return LS_OK;
    out->completion_ids = x->tokens + x->n_prompt;
    out->n_completion_ids = x->n - x->n_prompt;
    out->group = i / e->samples;
    out->group_n = e->samples;
    return LS_OK;
}

static ls_status ask_judge(ls_episodes *e, const ls_judge *judge, char (*names)[LS_EPISODE_ID_MAX], int64_t n,
                           ls_error *err) {
    if (judge->source != NULL) {
        LS_TRY(ls_reward_ask(judge->source, e->results, e->items, n, err));
        ls_episodes_note(e, "", ls_reward_counts_of(judge->source)->message);
        return LS_OK;
    }
    for (int64_t k = 0; k < n; k++) {
        const ls_question *q = &e->list[e->owners[k]].question;
        LS_TRY(ls_verify_judge(judge->verify, e->items[k].completion, q->answer, q->any_of, &e->results[k], err));
        if (!e->results[k].ok) ls_episodes_note(e, names[k], e->results[k].error);
    }
    return LS_OK;
}

/* What a source or a verifier says of those that are not fixed: item k is of episode owners[k]. */
static ls_status ask_about_all(ls_episodes *e, const ls_world *w, int64_t j, ls_error *err) {
    const ls_judge *judge = &w->judges[j];
    char(*names)[LS_EPISODE_ID_MAX] = NULL, *(*lists)[2] = NULL;
    int64_t n = 0;
    ls_status status = LS_OK;
    memset(e->items, 0, (size_t)e->n * sizeof *e->items);
    LS_TRY_DONE(ls_array_alloc((void **)&names, e->n, sizeof *names, "rewards", err));
    LS_TRY_DONE(ls_array_alloc((void **)&lists, e->n, sizeof *lists, "rewards", err));
    for (int64_t i = 0; i < e->n; i++) {
        if (e->list[i].is_fixed) continue;
        e->owners[n] = i;
        ls_episode_id(names[n], &e->list[i]);
        LS_TRY_DONE(make_item(&e->items[n], e, w, judge->source, i, lists[n], names[n], err));
        n++;
    }
    LS_TRY_DONE(ask_judge(e, judge, names, n, err));
    for (int64_t k = 0; k < n; k++) {
        ls_episode *x = &e->list[e->owners[k]];
        x->failed = x->failed || !e->results[k].ok; /* or its environment did */
        x->parts[j] = e->results[k].reward;
    }
done:
    for (int64_t i = 0; i < e->n; i++) free((char *)(uintptr_t)e->items[i].completion.text);
    for (int64_t i = 0; lists != NULL && i < e->n; i++) {
        free(lists[i][0]);
        free(lists[i][1]);
    }
    free(names);
    free((void *)lists);
    return status;
}

/* What is known without a question: the task's reward, or what the environment has said in the course of the episode.
 */
static void take_known(ls_episodes *e, const ls_world *w, int64_t j) {
    for (int64_t i = 0; i < e->n; i++) {
        ls_episode *x = &e->list[i];
        if (x->is_fixed) continue;
        if (w->judges[j].is_environment)
            x->parts[j] = x->is_judged ? x->earned : (double)NAN;
        else
            x->parts[j] = ls_task_reward(w->task, x->problem, x->replies, x->n_replies);
    }
}

/* The weighted sum of what was given. One judge of weight 1 gives its reward, to the bit. */
static void add_up(ls_episodes *e, const ls_world *w, ls_episode *x) {
    char id[LS_EPISODE_ID_MAX];
    bool is_given = false;
    double sum = 0;
    for (int64_t j = 0; j < w->n_judges; j++) {
        const double part = w->judges[j].weight * x->parts[j];
        if (isnan(x->parts[j])) continue;
        sum = is_given ? sum + part : part;
        is_given = true;
    }
    if (!is_given && !x->failed && w->n_judges > 1) {
        ls_episode_id(id, x);
        ls_episodes_note(e, id, "no reward was given");
    }
    if (is_given && !x->failed && fabs(sum) > (double)FLT_MAX) { /* learning is in float32 */
        ls_episode_id(id, x);
        ls_episodes_note(e, id, "the sum of its rewards is beyond float32");
        is_given = false;
    }
    x->failed = x->failed || !is_given;
    x->reward = x->failed ? (double)NAN : sum;
}

static ls_status fail_all(const ls_episodes *e, const ls_world *w, ls_error *err) {
    if (w->n_judges == 1 && w->judges[0].is_environment)
        return LS_FAIL(err, LS_ERR_IO, "environment: all %lld episodes failed: %s", (long long)e->n,
                       e->message[0] != '\0' ? e->message : "they ended without a reward");
    return LS_FAIL(err, LS_ERR_IO, "all %lld rewards failed: %s", (long long)e->n, e->message);
}

ls_status ls_episodes_judge(ls_episodes *e, const ls_world *w, ls_error *err) {
    for (int64_t j = 0; j < w->n_judges; j++) {
        if (w->judges[j].source != NULL || w->judges[j].verify != NULL)
            LS_TRY(ask_about_all(e, w, j, err));
        else
            take_known(e, w, j);
    }
    e->n_failed = 0;
    for (int64_t i = 0; i < e->n; i++) {
        if (!e->list[i].is_fixed) add_up(e, w, &e->list[i]);
        e->n_failed += e->list[i].failed;
    }
    return e->n_failed < e->n ? LS_OK : fail_all(e, w, err);
}
