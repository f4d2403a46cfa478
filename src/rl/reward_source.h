/* What a source of rewards is to reward.c, and what the sources share. Inside src/rl only. */
#ifndef LS_RL_REWARD_SOURCE_H
#define LS_RL_REWARD_SOURCE_H

#include "json/json_out.h"
#include "rl/reward.h"

/* First member of every source. Items of an ask have the ids first_id + index. */
struct ls_reward {
    ls_status (*ask)(ls_reward *reward, ls_reward_result *results, const ls_reward_item *items, int64_t n,
                     ls_error *err);
    void (*close)(ls_reward *reward);
    int64_t first_id;
    bool is_environment; /* of the ask that runs */
    bool wants_groups, wants_resets, takes_none, takes_late;
    const ls_reward_late *late; /* of the ask that runs; NULL: all items are there */
    ls_reward_counts counts;
};

/* One item as JSON; key NULL. */
void ls_reward_write_item(ls_json_out *json, int64_t id, const ls_reward_item *item);

/* What messages call it. */
const char *ls_reward_item_name(const ls_reward_item *item);

/* Keeps the sentence as the ask's message if it is the first. */
void ls_reward_note(ls_reward *reward, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Puts an answer to where it belongs: index of the item, or -1 for a stray, which is counted. done [n] tells the items
 * that wait no more; it is set for the item. The answer's text goes to the result, or is freed. */
int64_t ls_reward_resolve(ls_reward *reward, ls_reward_result *results, bool *done, int64_t n,
                          ls_reward_answer *answer);

/* Marks one item as failed. */
void ls_reward_fail(ls_reward_result *result, const char *text);

#endif
