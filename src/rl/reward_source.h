/* What a source of rewards is to reward.c, and what the sources share. Inside src/rl only. */
#ifndef LS_RL_REWARD_SOURCE_H
#define LS_RL_REWARD_SOURCE_H

#include <pthread.h>

#include "json/json_out.h"
#include "rl/reward.h"

/* An ask that runs. Item i has the id first_id + i. */
typedef struct ls_reward_asked {
    ls_reward_questions *q;
    bool is_environment, takes_none;
    bool *done; /* [n]: items that wait no more */
} ls_reward_asked;

/* First member of every source. */
struct ls_reward {
    /* Several threads may be in it. */
    ls_status (*ask)(ls_reward *reward, ls_reward_asked *asked, ls_error *err);
    void (*close)(ls_reward *reward);
    bool wants_groups, wants_resets, takes_none, takes_late;
    pthread_mutex_t lock;
    /* Under the lock. */
    int64_t next_id;
    ls_reward_counts counts;
};

/* For who opens and closes a source, which is zero before. */
void ls_reward_init(ls_reward *reward);
void ls_reward_deinit(ls_reward *reward);

/* Item i of an ask as JSON; key NULL. */
void ls_reward_write_item(ls_json_out *json, const ls_reward_questions *questions, int64_t i);

/* What messages call it. */
const char *ls_reward_item_name(const ls_reward_item *item);

/* Keeps the sentence as the ask's message if it is the first. */
void ls_reward_note(ls_reward_questions *questions, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Puts an answer to where it belongs: index of the item, or -1 for a stray, which is counted. done is set for the item.
 * The answer's text goes to the result, or is freed. */
int64_t ls_reward_resolve(ls_reward_asked *asked, ls_reward_answer *answer);

/* Marks one item as failed. */
void ls_reward_fail(ls_reward_result *result, const char *text);

#endif
