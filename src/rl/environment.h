/* Environments from outside: a command or a server (rl/reward.h) that says what comes between the turns of an episode.
 * Items are objects with an op, a line or a request each; all episodes that wait are asked together, and answered in
 * any order.
 *
 *   {"id","op":"reset","problem","split","index"}             a problem without data: {"id","prompt"}, its prompt
 *   {"id","op":"step","problem","episode","prompt","turns"}   behind a completion: {"id","observation"}, what is said
 *                                                             to it, or {"id","done":true}; each with "reward" or not
 *   {"id","op":"end", the same}                               the episode ends by its length: {"id","reward"}
 *
 * In the place of a prompt or an observation there may be "messages", a list, with a prompt also "tools": the model's
 * own chat template writes them (rl/dialogue.h). Of a conversation an item has "prompt_messages".
 *
 * "turns" is the whole episode so far: [{"completion","observation"}, ..], the last without observation. So an
 * environment may keep nothing, and one that was started again can go on; the same item may come twice and must be
 * answered alike. Of problems of data an item has "answer" and "data", the line. "split" is "train" or "held-out", and
 * problem `index` of a split must always be the same.
 *
 * The reward of an episode is the sum of the rewards of its answers; an episode that got none, or met an answer that
 * failed, has failed. Observations are part of the sequence and carry no loss. */
#ifndef LS_RL_ENVIRONMENT_H
#define LS_RL_ENVIRONMENT_H

#include "rl/episode.h"

/* Prompts of n problems of a split from `first` on: prompts [n] are texts, each released with free(); where it said
 * messages, chats [n] are conversations as JSON, released in the same way, and prompts their renderings. One that
 * failed is an error: there is no episode without. questions [n]: problems of data, for which a prompt may be
 * missing; or NULL. */
ls_status ls_environment_reset(const ls_world *world, ls_task_split split, int64_t first, int64_t n,
                               const ls_question *questions, ls_reply *prompts, char **chats, ls_error *err);

/* What the environment said to an episode's last completion. */
typedef struct ls_environment_answer {
    bool failed, done;
    double reward;     /* NaN: none */
    ls_reply said;     /* text NULL: nothing; released with free() */
    bool are_messages; /* that is an object with messages as JSON */
    const char *error; /* why it failed; as long as the results live */
} ls_environment_answer;

/* What it is asked about: n episodes. */
typedef struct ls_environment_call {
    const ls_episode *const *episodes;
    char (*names)[LS_EPISODE_ID_MAX];
    const bool *ends; /* for the last time */
    int64_t n;
    ls_reward_item *items;     /* [n], scratch memory as results */
    ls_reward_result *results; /* [n] */
} ls_environment_call;

ls_status ls_environment_ask(ls_reward *environment, const ls_environment_call *call, ls_environment_answer *answers,
                             ls_error *err);
/* The episode so far as the JSON list "turns"; released with free(). */
ls_status ls_environment_turns(const ls_episode *episode, char **out, ls_error *err);

#endif
