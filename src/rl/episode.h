/* Episodes: what the rollout engine makes of the problems of a task or of data. An episode is one sequence of tokens:
 * the prompt, a completion, and with tasks of several turns what the environment answers, the next completion, and so
 * on. Drawn tokens carry the log-probability that the engine recorded with them; the others are given and carry no
 * loss.
 *
 * Texts are encoded each for itself, the prompt with the tokenizer's special tokens unless a chat template wrote it,
 * the environment's words without.
 * Draws are addressed by the problem's number and the sample's, and turns run in rounds, all episodes of a round
 * together: an episode depends on its address, the weights and the sampling only. */
#ifndef LS_RL_EPISODE_H
#define LS_RL_EPISODE_H

#include "rl/feed.h"
#include "rl/reward.h"
#include "rl/verify.h"
#include "rollout/engine.h"
#include "template/chat.h"
#include "text/stop.h"
#include "train/data.h"

#define LS_TURNS_MAX 64
#define LS_EPISODE_MESSAGE_MAX 800
#define LS_JUDGES_MAX 8

/* Who gives rewards: a source from outside, a verifier, the environment, or, where it is none of them, the task. */
typedef struct ls_judge {
    ls_reward *source;
    ls_verify *verify;
    bool is_environment;
    double weight;
} ls_judge;

/* Where problems, words and rewards come from; all borrowed. */
typedef struct ls_world {
    const ls_task *task; /* NULL with data */
    const ls_tokenizer *tokenizer;
    const ls_stop *stop;    /* texts that end a completion; NULL: none */
    const ls_judge *judges; /* [n_judges] whose rewards are added by their weights */
    int64_t n_judges;
    ls_data *data;              /* NULL with a task */
    ls_reward *environment;     /* says what comes between turns; or NULL */
    int64_t turns_max;          /* completions of an episode with an environment */
    const ls_chat *chat;        /* of environments that speak messages; NULL: the model has no template */
    const char *model;          /* directory of the template, for errors */
    const char *stop_text;      /* of `stop`, or NULL */
    const atomic_bool *is_left; /* set: nobody waits for rewards any more (rl/reward.h); or NULL */
} ls_world;

/* Who draws the completions of a round: fills the results of n requests, as ls_engine_run does. */
typedef struct ls_drawer {
    ls_status (*draw)(void *context, ls_request *requests, int64_t n, ls_error *err);
    void *context;
} ls_drawer;

/* A problem as it is asked and judged, wherever it comes from; all borrowed. */
typedef struct ls_question {
    const char *id;
    ls_reply prompt, answer; /* answer.text NULL: none */
    const char *whole;       /* of data: the line as JSON; else NULL */
    const char *chat;        /* of a conversation: it as JSON, without what was said since; else NULL */
    bool is_chat;            /* the prompt has its special tokens as text */
    bool any_of;             /* the answer is a list's JSON; each in it is right */
    int64_t max_tokens;      /* of a completion, no more than of all; 0: as many as of all */
} ls_question;

typedef struct ls_episode {
    const ls_problem *problem; /* of the task; NULL with data */
    ls_question question;
    uint32_t prompt_i, sample_i; /* address of its draws */
    int32_t *tokens;             /* [length] */
    float *logprob;              /* [length], where drawn */
    uint8_t *drawn;              /* [length], 0 or 1 */
    int32_t *kept;               /* [length], where drawn and weighed: tokens that truncation left to draw from */
    float *log_mass;             /* the same: the logarithm of their mass */
    uint64_t *version;           /* [length], where drawn: of the weights that drew; NULL without ls_episodes_date */
    int64_t n, n_prompt, n_drawn;
    ls_reply replies[LS_TURNS_MAX];      /* what was drawn, as text */
    ls_reply observations[LS_TURNS_MAX]; /* what an environment said to each; text NULL: nothing */
    bool are_messages[LS_TURNS_MAX];     /* the observation is an object with messages, as JSON */
    int64_t n_replies;
    char *rendered; /* the conversation so far as the template wrote it, once the environment said messages; or NULL */
    int64_t rendered_bytes, rendered_ends[LS_TURNS_MAX]; /* the length behind each such turn */
    double earned;                                       /* the sum of an environment's rewards */
    bool is_judged;                                      /* by an environment; it has said a reward */
    bool is_fixed;                                       /* it stays as it is: neither drawn nor judged again */
    bool ended;
    bool overlong;               /* its last completion did not come to an end by itself */
    bool failed;                 /* there is no reward */
    double reward;               /* NaN where it failed */
    double parts[LS_JUDGES_MAX]; /* of each judge; NaN: it gave none */
    /* How its last turn came about. */
    int32_t slot;
    int64_t n_hit, n_preempted;
} ls_episode;

typedef struct ls_episodes {
    ls_episode *list; /* [n], by (problem, sample) */
    int64_t n, n_problems, samples, length, max_tokens;
    int64_t n_failed;
    int64_t first_problem;
    char message[LS_EPISODE_MESSAGE_MAX]; /* the first thing that went wrong since they began, or "" */
    ls_problem *problems;                 /* [n_problems] */
    ls_reply *prompts;                    /* [n_problems] of an environment; text NULL: it has none for the problem */
    char **chats;                         /* [n_problems] their conversations as JSON, or NULL */
    char (*names)[LS_PROBLEM_ID_MAX];     /* [n_problems] of them */
    ls_request *requests;                 /* [n]: of one round */
    uint8_t *taken;                       /* [n]: those of the round that have become turns */
    ls_stop_state *stops;
    int64_t *owners; /* [n]: the round's episodes */
    ls_reward_item *items;
    ls_reward_result *results;
    int32_t *tokens;
    float *logprobs;
    uint8_t *drawn;
    bool weighs; /* requests ask what truncation kept: the engine must weigh; false until the caller sets it */
    int32_t *kept;
    float *log_masses;
    uint64_t *versions; /* NULL: requests do not ask for them */
    /* Borrowed, or NULL: gets the numbers of episodes that have ended, of a group all at once where groups stay
     * together. They are judged while others are drawn: one source gives the rewards, and there is no environment. */
    ls_feed *feed;
    bool feeds_groups;
    bool is_numbered; /* ls_episodes_number */
    int64_t first_ids[LS_JUDGES_MAX];
} ls_episodes;

/* length: tokens of an episode; max_tokens: of one completion. */
ls_status ls_episodes_create(ls_episodes **out, int64_t n_problems, int64_t samples, int64_t length, int64_t max_tokens,
                             ls_error *err);
void ls_episodes_free(ls_episodes *episodes); /* accepts NULL */
/* Of those that begin from here on every drawn token has the version of the weights that drew it. */
ls_status ls_episodes_date(ls_episodes *episodes, ls_error *err);

/* Begins anew with problems [first, first + n_problems) of a split: their prompts. */
ls_status ls_episodes_begin(ls_episodes *episodes, const ls_world *world, ls_task_split split, int64_t first,
                            ls_error *err);
/* Puts other problems in the place of those of `open` (n_problems flags), in their order: the first becomes problem
 * `first` of the split, the next the one behind it. Their draws are addressed as those before in the same place. The
 * others are fixed. */
ls_status ls_episodes_renew(ls_episodes *episodes, const ls_world *world, ls_task_split split, const uint8_t *open,
                            int64_t first, ls_error *err);
/* All turns of episodes [begin, end). The others stay as they began, until somebody else's are put in their place. */
ls_status ls_episodes_run(ls_episodes *episodes, const ls_world *world, const ls_drawer *drawer, int64_t begin,
                          int64_t end, ls_error *err);
/* For who draws: request k of the round has finished, while others have not. */
ls_status ls_episodes_finish(ls_episodes *episodes, const ls_world *world, int64_t k, ls_error *err);
/* The rewards of those that are not fixed (judge.c): the weighted sum of what the judges gave. One whose judge
 * failed, or that got nothing, has failed. That all failed is an error; else those that did are marked. Several threads
 * may have episodes of theirs judged by the same judges. */
ls_status ls_episodes_judge(ls_episodes *episodes, const ls_world *world, ls_error *err);
/* Where several are judged at a time the order of these calls, not of their judging, is that of their items' ids. All
 * must be judged. It holds until they begin anew. */
void ls_episodes_number(ls_episodes *episodes, const ls_world *world);
/* Keeps the sentence as the message if it is the first; id may be "". */
void ls_episodes_note(ls_episodes *episodes, const char *id, const char *text);

/* All completions one behind the other; *text is released with free(). */
ls_status ls_episode_text(const ls_episode *episode, char **text, int64_t *bytes, ls_error *err);
/* "arithmetic/train/17#3" */
#define LS_EPISODE_ID_MAX (LS_PROBLEM_ID_MAX + 16)
void ls_episode_id(char out[LS_EPISODE_ID_MAX], const ls_episode *episode);

#endif
