/* Conversations of episodes: what an environment says as messages becomes tokens by the model's own chat template.
 *
 * An episode's text is what the template wrote, and what the model wrote in between. When an environment answers with
 * messages the template renders the whole conversation with them and with what begins the next answer. That text must
 * begin with the text of the turns before, and go on with what the model wrote last; blanks around that may differ.
 * What follows is appended: the template's end of the model's turn, without what the model wrote of it itself, the
 * messages, the beginning of the next answer. So tokens that the model drew are never encoded again, and stay as they
 * were.
 *
 * A template that writes earlier turns otherwise when others follow is refused, with its name and the turn. Where it
 * does so for a certain completion only, that episode fails. */
#ifndef LS_RL_DIALOGUE_H
#define LS_RL_DIALOGUE_H

#include "rl/episode.h"

/* An environment's own messages for a problem of data: what the line's conversation has beside its messages stays, but
 * for tools where it says others. Released with free(). */
ls_status ls_dialogue_replace(char **out, const char *conversation, const char *said, ls_error *err);
/* The messages of a conversation as a JSON list; released with free(). */
ls_status ls_dialogue_messages(char **out, const char *conversation, ls_error *err);
/* All that was said in an episode as a JSON list of messages: completions are the assistant's, texts of an environment
 * the user's. Calls of tools that the template's format has in a completion are its tool_calls, too. */
ls_status ls_dialogue_said(char **out, const ls_world *world, const ls_episode *episode, ls_error *err);
/* The prompt of a conversation: its rendering with what begins the answer. */
ls_status ls_dialogue_begin(ls_reply *prompt, const ls_world *world, const char *conversation, ls_error *err);
/* Ids of what the messages of the last observation add; released with free(). *failed: this completion does not come
 * out of the template as the model wrote it, and err says why; else an error is one of the run. */
ls_status ls_dialogue_next(int32_t **ids, int64_t *n, bool *failed, const ls_world *world, ls_episode *episode,
                           ls_error *err);

#endif
