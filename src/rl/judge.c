/* Rewards of episodes: each judge is asked, and what they said is added. */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "rl/dialogue.h"
#include "rl/episode.h"

/* The items of an ask, and what they hold: item k is of episode owners[k]. */
typedef struct question_list {
    ls_episodes *e;
    const ls_world *w;
    ls_reward *source; /* or NULL */
    int64_t *owners;
    char (*names)[LS_EPISODE_ID_MAX];
    char *(*lists)[2]; /* messages, released with free() */
    int64_t n;
} question_list;

/* What is known of an episode before it is drawn. */
static void name_item(question_list *q, int64_t i) {
    const ls_episode *x = &q->e->list[i];
    const int64_t k = q->n++;
    q->owners[k] = i;
    ls_episode_id(q->names[k], x);
    q->e->items[k] = (ls_reward_item){.problem = x->question.id,
                                      .sample = q->names[k],
                                      .prompt = x->question.prompt,
                                      .answer = x->question.answer.text,
                                      .answer_bytes = x->question.answer.bytes,
                                      .data = x->question.whole};
}

/* The rest of it. */
static ls_status complete_item(void *context, int64_t k, ls_error *err) {
    question_list *q = context;
    const int64_t i = q->owners[k];
    const ls_episode *x = &q->e->list[i];
    const bool is_reported = q->source != NULL && x->question.chat != NULL;
    ls_reward_item *out = &q->e->items[k];
    char *text = NULL;
    int64_t bytes = 0;
    LS_TRY(ls_episode_text(x, &text, &bytes, err));
    out->completion = (ls_reply){text, bytes};
    if (is_reported) LS_TRY(ls_dialogue_messages(&q->lists[k][0], x->question.chat, err));
    if (is_reported) LS_TRY(ls_dialogue_said(&q->lists[k][1], q->w, x, err));
    out->prompt_messages = q->lists[k][0];
    out->completion_messages = q->lists[k][1];
    if (q->source == NULL || !ls_reward_wants_groups(q->source)) return LS_OK;
    out->completion_ids = x->tokens + x->n_prompt;
    out->n_completion_ids = x->n - x->n_prompt;
    out->group = i / q->e->samples;
    out->group_n = q->e->samples;
    return LS_OK;
}

void ls_episodes_number(ls_episodes *e, const ls_world *w) {
    for (int64_t j = 0; j < w->n_judges; j++)
        if (w->judges[j].source != NULL) e->first_ids[j] = ls_reward_number(w->judges[j].source, e->n);
    e->is_numbered = true;
}

/* Of episodes that are still drawn each is asked about when it has ended. */
static ls_status ask_source(question_list *q, int64_t j, ls_error *err) {
    ls_episodes *e = q->e;
    const ls_reward_late late = {e->feed, complete_item, q};
    ls_reward_questions asked = {.items = e->items, .results = e->results, .n = q->n, .is_left = q->w->is_left};
    LS_ASSERT(!e->is_numbered || q->n == e->n, "%lld of %lld items", (long long)q->n, (long long)e->n);
    asked.first_id = e->is_numbered ? e->first_ids[j] : ls_reward_number(q->source, q->n);
    if (e->feed != NULL) asked.late = &late;
    for (int64_t k = 0; e->feed == NULL && k < q->n; k++) LS_TRY(complete_item(q, k, err));
    LS_TRY(ls_reward_ask_about(q->source, &asked, err));
    ls_episodes_note(e, "", asked.counts.message);
    return LS_OK;
}

static ls_status ask_verifier(question_list *q, const ls_judge *judge, ls_error *err) {
    ls_episodes *e = q->e;
    for (int64_t k = 0; k < q->n; k++) {
        const ls_question *of = &e->list[q->owners[k]].question;
        LS_TRY(complete_item(q, k, err));
        LS_TRY(ls_verify_judge(judge->verify, e->items[k].completion, of->answer, of->any_of, &e->results[k], err));
        if (!e->results[k].ok) ls_episodes_note(e, q->names[k], e->results[k].error);
    }
    return LS_OK;
}

/* What a source or a verifier says of those that are not fixed. */
static ls_status ask_about_all(ls_episodes *e, const ls_world *w, int64_t j, ls_error *err) {
    question_list q = {.e = e, .w = w, .source = w->judges[j].source};
    ls_status status;
    memset(e->items, 0, (size_t)e->n * sizeof *e->items);
    LS_TRY_DONE(ls_array_alloc((void **)&q.owners, e->n, sizeof *q.owners, "rewards", err));
    LS_TRY_DONE(ls_array_alloc((void **)&q.names, e->n, sizeof *q.names, "rewards", err));
    LS_TRY_DONE(ls_array_alloc((void **)&q.lists, e->n, sizeof *q.lists, "rewards", err));
    for (int64_t i = 0; i < e->n; i++)
        if (!e->list[i].is_fixed) name_item(&q, i);
    LS_TRY_DONE(q.source != NULL ? ask_source(&q, j, err) : ask_verifier(&q, &w->judges[j], err));
    for (int64_t k = 0; k < q.n; k++) {
        ls_episode *x = &e->list[q.owners[k]];
        x->failed = x->failed || !e->results[k].ok; /* or its environment did */
        x->parts[j] = e->results[k].reward;
    }
done:
    for (int64_t i = 0; i < e->n; i++) free((char *)(uintptr_t)e->items[i].completion.text);
    for (int64_t i = 0; q.lists != NULL && i < e->n; i++) {
        free(q.lists[i][0]);
        free(q.lists[i][1]);
    }
    free(q.owners);
    free(q.names);
    free((void *)q.lists);
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
