/* What environments are asked and what they say. Owns the texts of questions while they are asked. */
#define _POSIX_C_SOURCE 200809L
#include "rl/environment.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "json/json_out.h"

static const char *split_name(ls_task_split split) { return split == LS_TASK_SPLIT_TRAIN ? "train" : "held-out"; }

ls_status ls_environment_reset(ls_reward *environment, ls_task_split split, int64_t first, int64_t n, ls_reply *prompts,
                               ls_error *err) {
    ls_reward_item *items = NULL;
    ls_reward_result *results = NULL;
    char(*names)[LS_PROBLEM_ID_MAX] = NULL;
    ls_status status;
    LS_TRY_DONE(ls_array_alloc((void **)&items, n, sizeof *items, "environment", err));
    LS_TRY_DONE(ls_array_alloc((void **)&results, n, sizeof *results, "environment", err));
    LS_TRY_DONE(ls_array_alloc((void **)&names, n, sizeof *names, "environment", err));
    for (int64_t i = 0; i < n; i++) {
        snprintf(names[i], sizeof names[i], "environment/%s/%lld", split_name(split), (long long)(first + i));
        items[i] = (ls_reward_item){.problem = names[i], .op = "reset", .split = split_name(split), .index = first + i};
    }
    LS_TRY_DONE(ls_reward_ask(environment, results, items, n, err));
    for (int64_t i = 0; i < n && status == LS_OK; i++)
        if (!results[i].ok || results[i].text == NULL || results[i].text_bytes == 0)
            status = LS_FAIL(err, LS_ERR_IO, "environment: reset of problem %lld (%s): %s", (long long)(first + i),
                             split_name(split), results[i].ok ? "the answer has no prompt" : results[i].error);
    for (int64_t i = 0; i < n && status == LS_OK; i++) {
        prompts[i] = (ls_reply){results[i].text, results[i].text_bytes};
        results[i].text = NULL;
    }
done:
    for (int64_t i = 0; results != NULL && i < n; i++) free(results[i].text);
    free(items);
    free(results);
    free(names);
    return status;
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
        if (x->observations[k].text != NULL)
            ls_json_text(&json, "observation", x->observations[k].text, x->observations[k].bytes);
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
                                   .error = r->error};
    r->text = NULL;
}

ls_status ls_environment_ask(ls_reward *environment, const ls_episode *const *episodes,
                             char (*names)[LS_EPISODE_ID_MAX], const bool *ends, int64_t n, ls_reward_item *items,
                             ls_reward_result *results, ls_environment_answer *answers, ls_error *err) {
    char **turns = NULL;
    ls_status status;
    LS_TRY_DONE(ls_array_alloc((void **)&turns, n, sizeof *turns, "environment", err));
    for (int64_t i = 0; i < n; i++) {
        const ls_question *q = &episodes[i]->question;
        LS_TRY_DONE(ls_environment_turns(episodes[i], &turns[i], err));
        items[i] = (ls_reward_item){.problem = q->id,
                                    .prompt = q->prompt,
                                    .answer = q->answer.text,
                                    .answer_bytes = q->answer.bytes,
                                    .data = q->whole,
                                    .op = ends[i] ? "end" : "step",
                                    .episode = names[i],
                                    .turns = turns[i]};
    }
    LS_TRY_DONE(ls_reward_ask(environment, results, items, n, err));
    for (int64_t i = 0; i < n; i++) take_answer(&answers[i], &results[i]);
done:
    for (int64_t i = 0; turns != NULL && i < n; i++) free(turns[i]);
    free((void *)turns);
    return status;
}
