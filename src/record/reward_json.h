/* Answers of reward programs and servers: {"id","reward"} or {"id","error"}, one or a list of them. Whatever is not a
 * finite number is an answer that failed, not a reward. Environments answer {"id","prompt"}, {"id","observation"},
 * {"id","messages"} or {"id","done"}, each with or without a reward; beside messages there may be "tools". Messages
 * are a list that is not empty of objects with a role that is a text. Any answer may have a "note", a text. */
#ifndef LS_RECORD_REWARD_JSON_H
#define LS_RECORD_REWARD_JSON_H

#include "base/status.h"

#define LS_REWARD_ERROR_MAX 200

typedef struct ls_reward_answer {
    int64_t id; /* -1 when absent */
    bool ok;
    bool is_none;                    /* the reward is null */
    double reward;                   /* finite; 0 unless ok */
    char error[LS_REWARD_ERROR_MAX]; /* why it is not ok */
    /* Of environments. */
    bool is_turn, done; /* it has one of their members; the episode is over */
    bool is_broken;     /* such a member is not what it should be, in these words */
    const char *broken;
    bool are_messages; /* the text is {"messages":[..]}, with "tools" where the answer has them */
    char *text;        /* the prompt or the observation, or NULL: released with free() */
    int64_t text_bytes;
    char note[LS_REWARD_ERROR_MAX]; /* or "" */
} ls_reward_answer;

/* One object. "id" is a whole number >= 0 or its decimal text. Fails when the text is no object or its id no such
 * number; errors begin with name. Python's NaN and Infinity, which are not JSON, are read as rewards that failed. */
ls_status ls_reward_answer_parse(ls_reward_answer *out, const char *text, int64_t bytes, const char *name,
                                 ls_error *err);

/* {"items": [ANSWER,..]} of at most n_max answers, each with an id; *n is their number. */
ls_status ls_reward_answers_parse(ls_reward_answer *out, int64_t *n, int64_t n_max, const char *text, int64_t bytes,
                                  const char *name, ls_error *err);

#endif
